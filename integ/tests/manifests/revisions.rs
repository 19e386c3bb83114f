//! Revisions of the policy on a real API server, which compares the bytes of `data` at every write.

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use models::names::{OPERATOR_LABEL, OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus};
use planner::policy::Policy;
use planner::revisions::{PolicyRevision, RevisionAction, RevisionSnapshot, plan};
use planner::view::{OperatorFacts, Projection as _, RevisionFacts};
use serde_json::{Value, json};

use super::until;

/// The operator's resource with a policy for versions, and with a limit. The garbage collector deletes what has an owner that
/// does not exist: the uid is that of the resource.
fn facts(uid: &str, version: &Value, limit: u32, collisions: Option<i32>) -> anyhow::Result<OperatorFacts> {
    let spec = serde_json::from_value(json!({"version": version, "revisionHistoryLimit": limit}))?;
    let status = BottlerocketUpdateOperatorStatus { collision_count: collisions, ..Default::default() };
    Ok(OperatorFacts { uid: uid.to_owned(), spec, status, ..OperatorFacts::default() })
}

/// Plans and carries out, until nothing is left to do. Returns the names of the revisions that were written.
async fn settle(api: &Api<ControllerRevision>, operator: &OperatorFacts) -> anyhow::Result<Vec<String>> {
    let mut written = Vec::new();
    loop {
        let listed = api.list(&ListParams::default()).await?;
        let revisions: Vec<_> =
            listed.items.iter().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
        let planned = plan(&RevisionSnapshot {
            operator: Some(operator),
            policy: &Policy::in_force(Some(operator)),
            all_follow: false,
            revisions: &revisions,
            shadows: &[],
        });
        if planned.actions.is_empty() {
            return Ok(written);
        }
        ensure!(written.len() < 200, "it never ends: {written:?}");
        for action in planned.actions {
            written.push(match action {
                RevisionAction::Create(revision) => {
                    let created = api.create(&PostParams::default(), &revision).await?;
                    created.metadata.name.context("a created revision has a name")?
                }
                RevisionAction::Delete { name, uid } => {
                    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
                    api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await?;
                    name
                }
                RevisionAction::Adopt { name, patch }
                | RevisionAction::Release { name, patch }
                | RevisionAction::Renumber { name, patch } => {
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                        .await
                        .with_context(|| name.clone())?;
                    name
                }
                RevisionAction::RaiseCollisionCount(count) => bail!("a collision: {count}"),
            });
        }
    }
}

/// Each kind of policy.
fn policies() -> Vec<Value> {
    let targets = ["latest", "1.20.5", "v1.20.5-rc.1+build.7", "1.20", "1.20.*", "~1.20.3", "^1.20"];
    let ranges = [">=1.20, <1.23", "> 1.20,<= 1.22", "<1.20.5", ">=1.20"];
    let mut policies: Vec<Value> = targets.into_iter().chain(ranges).map(|t| json!({"target": t})).collect();
    policies.push(json!({"exclude": [">=1.21.0, <1.21.2", "1.20.3"], "ignoreWaves": true}));
    policies
}

pub(super) async fn every_revision_of_policy_can_be_changed(client: Client) -> anyhow::Result<()> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let uid = operators.get(OPERATOR_NAME).await?.metadata.uid.context("the resource has a uid")?;
    let api: Api<ControllerRevision> = Api::namespaced(client, SYSTEM_NAMESPACE);
    let policies = policies();
    for version in &policies {
        let written = settle(&api, &facts(&uid, version, 100, None)?).await?;
        let [name] = &written[..] else { bail!("{version}: {written:?}") };
        let label = json!({"metadata": {"labels": {"seen": "yes"}}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&label)).await.context("merge patch")?;
        api.patch(name, &PatchParams::default(), &Patch::Strategic(&label)).await.context("strategic patch")?;
        let stored = api.get(name).await?;
        api.replace(name, &PostParams::default(), &stored).await.context("PUT of what was read")?;
        let apply = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "data": stored.data,
            "revision": stored.revision,
        });
        api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&apply)).await.context("apply")?;
    }
    // The policy returns to each of them, and no other is created.
    for version in &policies {
        let written = settle(&api, &facts(&uid, version, 100, None)?).await?;
        ensure!(written.len() == 1, "{version}: {written:?}");
    }
    let last = &policies[policies.len() - 1];
    ensure!(api.list(&ListParams::default()).await?.items.len() == policies.len(), "one for each policy");

    // Without an owner, all are adopted; with another label, all are released, and the policy needs another name.
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    let relabelled = json!({"metadata": {"labels": {OPERATOR_LABEL: "other"}}});
    for (change, collisions, created) in [(orphaned, None, 0), (relabelled, Some(1), 1)] {
        for revision in api.list(&ListParams::default()).await?.items {
            let name = revision.metadata.name.unwrap_or_default();
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        }
        let written = settle(&api, &facts(&uid, last, 100, collisions)?).await?;
        ensure!(written.len() == policies.len() + created, "{written:?}");
    }

    // With the limit 0, only the revision of the policy is left.
    settle(&api, &facts(&uid, &policies[0], 0, Some(1))?).await?;
    let listed = api.list(&ListParams::default()).await?.items;
    let left: Vec<_> = listed.iter().filter_map(RevisionFacts::project).filter(|r| r.labelled).collect();
    ensure!(left.len() == 1 && left[0].number == 2, "{left:?}");
    Ok(())
}

/// Also those with a range in them: the garbage collector's patch of an orphan is a write like any other.
pub(super) async fn revisions_are_deleted_with_operator_unless_orphaned(client: Client) -> anyhow::Result<()> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let api: Api<ControllerRevision> = Api::namespaced(client, SYSTEM_NAMESPACE);
    let revisions = async || -> anyhow::Result<Vec<RevisionFacts>> {
        let listed = api.list(&ListParams::default()).await?.items;
        Ok(listed.iter().filter_map(RevisionFacts::project).filter(|r| r.labelled).collect())
    };
    let range = json!({"target": ">=1.20, <1.23"});
    for orphans in [true, false] {
        let operator = operators.get(OPERATOR_NAME).await?;
        let uid = operator.metadata.uid.as_deref().unwrap_or_default();
        settle(&api, &facts(uid, &range, 100, Some(1))?).await?;
        ensure!(revisions().await?.iter().all(|r| r.owners.iter().any(|owner| owner.uid == uid)), "all are owned");
        let policy = if orphans { PropagationPolicy::Orphan } else { PropagationPolicy::Background };
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        operators.delete(OPERATOR_NAME, &params).await?;
        until("the resource is gone", async || Ok(operators.get_opt(OPERATOR_NAME).await?.is_none())).await?;
        until("the garbage collector is done", async || {
            let left = revisions().await?;
            Ok(left.is_empty() != orphans && left.iter().all(|revision| revision.owners.is_empty()))
        })
        .await?;
        let mut again = BottlerocketUpdateOperator::new(OPERATOR_NAME, operator.spec);
        again.metadata.labels = operator.metadata.labels;
        operators.create(&PostParams::default(), &again).await?;
    }
    Ok(())
}
