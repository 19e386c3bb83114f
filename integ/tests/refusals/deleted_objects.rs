//! Tokens of deleted pods and nodes.

use anyhow::ensure;
use integ::bed::{TestCluster, workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use models::names::{AGENT, AGENT_NAMESPACE};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{LIMIT, NODE_DELETION_NODE, POD_DELETION_NODE, RefusalTest, agent_pod};

cases![
    token_of_deleted_pod_is_refused_and_successor_is_accepted,
    token_of_recreated_pod_is_refused,
    token_of_recreated_node_is_refused
];

/// Creates a pod of a service account on a node. No kubelet has to run it: a token is bound to it all the same.
pub(crate) async fn create_pod_on_node(
    bed: &TestCluster,
    namespace: &str,
    account: &str,
    name: &str,
    node: &str,
) -> anyhow::Result<Pod> {
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
async fn read_shadow(refusal_test: &RefusalTest, node: &str, token: &str) -> anyhow::Result<(u16, String)> {
    let answer = refusal_test.answered(&Request::new("GET", format!("/v1/nodes/{node}/shadow")).bearer(token)).await?;
    if answer.status == 200 { Ok((200, String::new())) } else { answer.refusal() }
}

/// Waits until a token that was valid is refused for a reason.
async fn until_refused(
    refusal_test: &RefusalTest,
    node: &str,
    token: &str,
    expected: (u16, &str),
) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let (status, kind) = read_shadow(refusal_test, node, token).await?;
        if (status, kind.as_str()) == expected {
            return Ok(());
        }
        // The API server caches the validity of a token for some ten seconds, and a new Node has no shadow at first.
        ensure!([200, 404].contains(&status) && begun.elapsed() < LIMIT, "{status} {kind}");
        sleep(std::time::Duration::from_secs(1)).await;
    }
}

async fn token_of_deleted_pod_is_refused_and_successor_is_accepted(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let old = refusal_test.agents_token(POD_DELETION_NODE).await?;
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, &old).await?.0 == 200);
    let pods: Api<Pod> = Api::namespaced(refusal_test.bed.client.clone(), AGENT_NAMESPACE);
    let pod = agent_pod(&refusal_test.bed, POD_DELETION_NODE).await?;
    pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    until_refused(refusal_test, POD_DELETION_NODE, &old, (401, "unauthorized")).await?;
    let new = refusal_test.agents_token(POD_DELETION_NODE).await?;
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, &new).await?.0 == 200);
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, &old).await?.0 == 401);
    Ok(())
}

async fn token_of_recreated_pod_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let first = create_pod_on_node(&refusal_test.bed, AGENT_NAMESPACE, AGENT, "bare", POD_DELETION_NODE).await?;
    let token = crate::refusal_test::token(
        &refusal_test.bed,
        AGENT_NAMESPACE,
        AGENT,
        models::names::TOKEN_AUDIENCE,
        Some(&first),
    )
    .await?;
    ensure!(
        read_shadow(refusal_test, POD_DELETION_NODE, &token).await?.0 == 200,
        "a pod of that account on that node is that node's agent"
    );
    let pods: Api<Pod> = Api::namespaced(refusal_test.bed.client.clone(), AGENT_NAMESPACE);
    pods.delete("bare", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    let second = loop {
        match create_pod_on_node(&refusal_test.bed, AGENT_NAMESPACE, AGENT, "bare", POD_DELETION_NODE).await {
            Ok(pod) if pod.uid() != first.uid() && pod.metadata.deletion_timestamp.is_none() => break pod,
            _ => sleep(std::time::Duration::from_millis(100)).await,
        }
    };
    ensure!(second.uid() != first.uid());
    until_refused(refusal_test, POD_DELETION_NODE, &token, (401, "unauthorized")).await?;
    pods.delete("bare", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
    Ok(())
}

async fn token_of_recreated_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let old = refusal_test.agents_token(NODE_DELETION_NODE).await?;
    let member = refusal_test.bed.member(NODE_DELETION_NODE)?;
    let nodes: Api<Node> = Api::all(refusal_test.bed.client.clone());
    let before = nodes.get(NODE_DELETION_NODE).await?.uid();
    // The kubelet is paused, so that the pod stays, and with it the token that names the previous Node.
    member.kubelet.pause();
    nodes.delete(NODE_DELETION_NODE, &DeleteParams::default()).await?;
    member.kubelet.resume();
    member.kubelet.register().await?;
    refusal_test
        .bed
        .wait("the new Node has a shadow", LIMIT, |history| {
            let world = history.end();
            world
                .nodes
                .get(NODE_DELETION_NODE)
                .is_some_and(|node| Some(node.uid.as_str()) != before.as_deref() && world.shadow_of(node).is_some())
        })
        .await?;
    // The pod still exists, so the cluster accepts its old token, which names a deleted Node.
    until_refused(refusal_test, NODE_DELETION_NODE, &old, (403, "agent-token-for-old-node")).await?;
    let new = refusal_test.agents_token(NODE_DELETION_NODE).await?;
    let served = read_shadow(refusal_test, NODE_DELETION_NODE, &new).await?;
    ensure!(served.0 == 200, "the new Node's agent is served: {served:?}");
    Ok(())
}
