//! Tokens of deleted pods and nodes.

use anyhow::ensure;
use integ::bed::{TestCluster, workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use models::names::{AGENT, AGENT_NAMESPACE, TOKEN_AUDIENCE};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{LIMIT, NODE_DELETION_NODE, POD_DELETION_NODE, RefusalTest, agent_pod, token};

cases![
    token_of_recreated_node_is_refused,
    token_of_deleted_pod_is_refused_and_successor_is_accepted,
    token_of_recreated_pod_is_refused,
];

/// The pod that is created again.
const BARE: &str = "bare";

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
        // The API server and the web API cache the validity of a token, and a new Node has no shadow at first.
        ensure!([200, 404].contains(&status) && begun.elapsed() < LIMIT, "{status} {kind}");
        sleep(Duration::from_secs(1)).await;
    }
}

/// Tokens that were accepted before their object was deleted. All are deleted together, since the web API accepts each for as long
/// as it caches it.
pub(crate) struct TokensOfDeleted {
    pod: String,
    recreated_pod: String,
    recreated_node: String,
}

impl TokensOfDeleted {
    pub(crate) async fn of(refusal_test: &RefusalTest) -> anyhow::Result<Self> {
        Ok(Self {
            pod: delete_pod(refusal_test).await?,
            recreated_pod: recreate_pod(refusal_test).await?,
            recreated_node: recreate_node(refusal_test).await?,
        })
    }
}

fn pods(refusal_test: &RefusalTest) -> Api<Pod> {
    Api::namespaced(refusal_test.bed.client.clone(), AGENT_NAMESPACE)
}

/// Deletes an agent's pod, and returns its token.
async fn delete_pod(refusal_test: &RefusalTest) -> anyhow::Result<String> {
    let old = refusal_test.agents_token(POD_DELETION_NODE).await?;
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, &old).await?.0 == 200);
    let pod = agent_pod(&refusal_test.bed, POD_DELETION_NODE).await?;
    pods(refusal_test).delete(&pod.name_any(), &DeleteParams::default()).await?;
    Ok(old)
}

/// Deletes a pod of the agents' account and creates it again under its name, and returns the token of the first one.
async fn recreate_pod(refusal_test: &RefusalTest) -> anyhow::Result<String> {
    let create = || create_pod_on_node(&refusal_test.bed, AGENT_NAMESPACE, AGENT, BARE, POD_DELETION_NODE);
    let first = create().await?;
    let old = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, TOKEN_AUDIENCE, Some(&first)).await?;
    ensure!(
        read_shadow(refusal_test, POD_DELETION_NODE, &old).await?.0 == 200,
        "a pod of that account on that node is that node's agent"
    );
    pods(refusal_test).delete(BARE, &DeleteParams::default().grace_period(0)).await?;
    loop {
        match create().await {
            Ok(pod) if pod.uid() != first.uid() && pod.metadata.deletion_timestamp.is_none() => return Ok(old),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Deletes a Node and has its kubelet register it again, and returns the old token of its agent.
async fn recreate_node(refusal_test: &RefusalTest) -> anyhow::Result<String> {
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
    Ok(old)
}

async fn token_of_recreated_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let old = &refusal_test.deleted().await?.recreated_node;
    // The pod still exists, so the cluster accepts its old token, which names a deleted Node.
    until_refused(refusal_test, NODE_DELETION_NODE, old, (403, "agent-token-for-old-node")).await?;
    let new = refusal_test.agents_token(NODE_DELETION_NODE).await?;
    let served = read_shadow(refusal_test, NODE_DELETION_NODE, &new).await?;
    ensure!(served.0 == 200, "the new Node's agent is served: {served:?}");
    Ok(())
}

async fn token_of_deleted_pod_is_refused_and_successor_is_accepted(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let old = &refusal_test.deleted().await?.pod;
    until_refused(refusal_test, POD_DELETION_NODE, old, (401, "unauthorized")).await?;
    let new = refusal_test.agents_token(POD_DELETION_NODE).await?;
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, &new).await?.0 == 200);
    ensure!(read_shadow(refusal_test, POD_DELETION_NODE, old).await?.0 == 401);
    Ok(())
}

async fn token_of_recreated_pod_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let old = &refusal_test.deleted().await?.recreated_pod;
    until_refused(refusal_test, POD_DELETION_NODE, old, (401, "unauthorized")).await?;
    pods(refusal_test).delete(BARE, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
