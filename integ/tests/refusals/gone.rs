//! Tokens of deleted pods and nodes.

use anyhow::ensure;
use integ::bed::{Bed, workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use models::names::{AGENT, AGENT_NAMESPACE};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::cases;
use crate::court::{Court, LIMIT, NODE_GOES, POD_GOES, agent_pod};
use crate::raw::Request;

cases![
    of_a_deleted_pod_while_its_successor_is_served,
    of_a_pod_made_again_under_its_name,
    of_a_node_made_again_under_its_name
];

/// Creates a pod of a service account on a node. No kubelet has to run it: a token is bound to it all the same.
pub(crate) async fn pod_on(bed: &Bed, namespace: &str, account: &str, name: &str, node: &str) -> anyhow::Result<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node, "serviceAccountName": account, "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "example.invalid/c:1"}],
        },
    });
    let objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}),
        pod,
    ];
    workload::apply(&bed.client, objects).await?;
    Ok(Api::namespaced(bed.client.clone(), namespace).get(name).await?)
}

/// Status and kind of the response to a read of a node's own shadow.
async fn asked(court: &Court, node: &str, token: &str) -> anyhow::Result<(u16, String)> {
    let answer = court.answered(&Request::new("GET", format!("/v1/nodes/{node}/shadow")).bearer(token)).await?;
    if answer.status == 200 { Ok((200, String::new())) } else { answer.refusal() }
}

/// Waits until a token that was valid is refused for a reason.
async fn until_refused(court: &Court, node: &str, token: &str, told: (u16, &str)) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let (status, kind) = asked(court, node, token).await?;
        if (status, kind.as_str()) == told {
            return Ok(());
        }
        // The API server caches the validity of a token for some ten seconds, and a new Node has no shadow at first.
        ensure!([200, 404].contains(&status) && begun.elapsed() < LIMIT, "{status} {kind}");
        sleep(std::time::Duration::from_secs(1)).await;
    }
}

async fn of_a_deleted_pod_while_its_successor_is_served(court: &Court) -> anyhow::Result<()> {
    let old = court.agents_token(POD_GOES).await?;
    ensure!(asked(court, POD_GOES, &old).await?.0 == 200);
    let pods: Api<Pod> = Api::namespaced(court.bed.client.clone(), AGENT_NAMESPACE);
    let pod = agent_pod(&court.bed, POD_GOES).await?;
    pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    until_refused(court, POD_GOES, &old, (401, "unauthorized")).await?;
    let new = court.agents_token(POD_GOES).await?;
    ensure!(asked(court, POD_GOES, &new).await?.0 == 200);
    ensure!(asked(court, POD_GOES, &old).await?.0 == 401);
    Ok(())
}

async fn of_a_pod_made_again_under_its_name(court: &Court) -> anyhow::Result<()> {
    let first = pod_on(&court.bed, AGENT_NAMESPACE, AGENT, "bare", POD_GOES).await?;
    let token =
        crate::court::token(&court.bed, AGENT_NAMESPACE, AGENT, models::names::TOKEN_AUDIENCE, Some(&first)).await?;
    ensure!(asked(court, POD_GOES, &token).await?.0 == 200, "a pod of that account on that node is that node's agent");
    let pods: Api<Pod> = Api::namespaced(court.bed.client.clone(), AGENT_NAMESPACE);
    pods.delete("bare", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    let second = loop {
        match pod_on(&court.bed, AGENT_NAMESPACE, AGENT, "bare", POD_GOES).await {
            Ok(pod) if pod.uid() != first.uid() && pod.metadata.deletion_timestamp.is_none() => break pod,
            _ => sleep(std::time::Duration::from_millis(100)).await,
        }
    };
    ensure!(second.uid() != first.uid());
    until_refused(court, POD_GOES, &token, (401, "unauthorized")).await?;
    pods.delete("bare", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    Ok(())
}

async fn of_a_node_made_again_under_its_name(court: &Court) -> anyhow::Result<()> {
    let old = court.agents_token(NODE_GOES).await?;
    let member = court.bed.member(NODE_GOES)?;
    let nodes: Api<Node> = Api::all(court.bed.client.clone());
    let before = nodes.get(NODE_GOES).await?.uid();
    // The kubelet is paused, so that the pod stays, and with it the token that names the previous Node.
    member.kubelet.pause();
    nodes.delete(NODE_GOES, &DeleteParams::default()).await?;
    member.kubelet.resume();
    member.kubelet.register().await?;
    court
        .bed
        .wait("the new Node has a shadow", LIMIT, |history| {
            let world = history.end();
            world
                .nodes
                .get(NODE_GOES)
                .is_some_and(|node| Some(node.uid.as_str()) != before.as_deref() && world.shadow_of(node).is_some())
        })
        .await?;
    // The pod still exists, so the cluster accepts its old token, which names a deleted Node.
    until_refused(court, NODE_GOES, &old, (403, "agent-token-for-old-node")).await?;
    let new = court.agents_token(NODE_GOES).await?;
    let served = asked(court, NODE_GOES, &new).await?;
    ensure!(served.0 == 200, "the new Node's agent is served: {served:?}");
    Ok(())
}
