//! The revisions of the policy: which are kept, whose they are, and which node has which.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use models::names::{OPERATOR_LABEL, OPERATOR_NAME, REVISION_LABEL, SYSTEM_NAMESPACE};
use models::shadow::BottlerocketShadow;
use serde_json::json;

use crate::bed::{OLD, ScriptedCluster, poll};

crate::cases![revisions_of_policy_are_kept_and_nodes_that_follow_are_only_labelled];

/// The number, the target and the name of a revision.
type Kept = (i64, String, String);

fn kept(revision: &ControllerRevision) -> Kept {
    let target = revision.data.0["target"].as_str().unwrap_or_default().to_owned();
    (revision.revision.unwrap_or_default(), target, revision.name_any())
}

fn api(cluster: &ScriptedCluster) -> Api<ControllerRevision> {
    Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE)
}

async fn revisions(cluster: &ScriptedCluster) -> anyhow::Result<Vec<ControllerRevision>> {
    let selector = format!("{OPERATOR_LABEL}={OPERATOR_NAME}");
    Ok(api(cluster).list(&ListParams::default().labels(&selector)).await?.items)
}

async fn shadows(cluster: &ScriptedCluster) -> anyhow::Result<Vec<BottlerocketShadow>> {
    let api: Api<BottlerocketShadow> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Waits until exactly these revisions are kept, by number and target, all owned by the operator's resource, and the last
/// one is that of the status and of every node. Returns them.
async fn until_kept(cluster: &ScriptedCluster, what: &str, expected: &[(i64, &str)]) -> anyhow::Result<Vec<Kept>> {
    poll(what, async || {
        let (found, shadows) = (revisions(cluster).await?, shadows(cluster).await?);
        let Some(operator) = cluster.operators().get_opt(OPERATOR_NAME).await? else { return Ok(None) };
        let uid = operator.uid().unwrap_or_default();
        let owned = |r: &ControllerRevision| r.owner_references().iter().any(|owner| owner.uid == uid);
        let mut all: Vec<_> = found.iter().map(kept).collect();
        all.sort();
        let numbers: Vec<_> = all.iter().map(|(number, target, _)| (*number, target.as_str())).collect();
        let last = all.last().map(|(_, _, name)| name.clone());
        let status = operator.status.unwrap_or_default();
        let followed = status.update_revision == last && status.current_revision == last;
        let labelled = shadows.len() == 2 && shadows.iter().all(|s| s.labels().get(REVISION_LABEL) == last.as_ref());
        Ok((numbers == expected && found.iter().all(owned) && followed && labelled).then_some(all))
    })
    .await
}

async fn target(cluster: &ScriptedCluster, target: &str) -> anyhow::Result<()> {
    cluster.policy(&json!({"version": {"target": target}})).await.map(drop)
}

/// The generations of the shadows: they rise with every change of `spec`.
async fn generations(cluster: &ScriptedCluster) -> anyhow::Result<Vec<Option<i64>>> {
    Ok(shadows(cluster).await?.iter().map(|shadow| shadow.metadata.generation).collect())
}

/// Deletes the policy alone, and creates it again with this target.
async fn recreate_policy(cluster: &ScriptedCluster, target: &str) -> anyhow::Result<()> {
    let before = revisions(cluster).await?.len();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    cluster.delete_policy(&orphan).await?;
    poll("the revisions have no owner", async || {
        let found = revisions(cluster).await?;
        let orphaned = found.len() == before && found.iter().all(|revision| revision.owner_references().is_empty());
        Ok(orphaned.then_some(()))
    })
    .await?;
    cluster.create_policy(json!({"version": {"target": target}})).await
}

async fn revisions_of_policy_are_kept_and_nodes_that_follow_are_only_labelled(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let old = OLD.to_string();
    cluster.start(2, json!({"version": {"target": "latest"}})).await?;
    let first = until_kept(cluster, "the first revision is made, and both nodes have it", &[(1, "latest")]).await?;
    target(cluster, &old).await?;
    until_kept(cluster, "a changed target is the second revision", &[(1, "latest"), (2, &old)]).await?;
    target(cluster, "latest").await?;
    let back = until_kept(cluster, "the first one is the third now", &[(2, &old), (3, "latest")]).await?;
    assert_eq!(back[1].2, first[0].2, "its name stays");

    for (_, _, name) in &back {
        let other = json!({"metadata": {"labels": {"example.com/a": "b"}, "annotations": {"example.com/a": "b"}}});
        api(cluster).patch(name, &PatchParams::default(), &Patch::Merge(other)).await?;
    }
    let orders = generations(cluster).await?;
    // The one of the policy last: else it would be made again beside the other.
    for (_, _, name) in &back {
        api(cluster).delete(name, &DeleteParams::default()).await?;
    }
    until_kept(cluster, "a history deleted by hand begins again", &[(1, "latest")]).await?;
    assert_eq!(generations(cluster).await?, orders, "a label is nothing new to an agent");

    target(cluster, &old).await?;
    cluster.replace_controller().await?;
    let what = "a leader killed in between leaves one revision of each";
    let two = until_kept(cluster, what, &[(1, "latest"), (2, &old)]).await?;

    recreate_policy(cluster, &old).await?;
    let what = "a new resource adopts what is orphaned";
    assert_eq!(until_kept(cluster, what, &[(1, "latest"), (2, &old)]).await?, two);

    cluster.policy(&json!({"revisionHistoryLimit": 0})).await?;
    until_kept(cluster, "with a limit of 0 the live one is kept", &[(2, &old)]).await?;
    let history = cluster.recorder.so_far()?;
    assert!(history.attempts().is_empty(), "{:#?}", history.attempts());
    history.replay(|_, _, world| assert!(world.nodes.values().all(|node| !node.claimed()), "a node was claimed"));
    Ok(())
}
