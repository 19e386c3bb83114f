//! The history of rollouts: one record for each, its entries, and a history that the API server refuses.

use std::time::Duration;

use controller::leader::Parameters;
use integ::bed::workload;
use integ::rollout_history::{Recorded, objects, recorded, with_phases};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use models::condition::ConditionStatus;
use models::history::{EntryKind, RolloutPhase};
use models::names::{APPROVE_STEP_ANNOTATION, INTERFACE_LABEL, INTERFACE_VERSION, SYSTEM_NAMESPACE};
use models::operator::{HISTORY_RECORDED, PROGRESSING};
use models::shadow::UPDATED;
use semver::Version;
use serde_json::{Value, json};

use crate::bed::{ControllerOptions, LEASE, NEW, SHOP, ScriptedCluster, poll};

crate::cases![
    rollouts_are_told_apart_and_late_node_belongs_to_a_follow_up,
    refused_history_is_reported_delays_no_update_and_is_written_later,
    leader_whose_lease_is_renewed_late_keeps_the_history,
];

/// Waits until there are records with exactly these phases, in the order of their numbers.
async fn until_completed(cluster: &ScriptedCluster, what: &str, rollouts: usize) -> anyhow::Result<Vec<Recorded>> {
    let phases = vec![RolloutPhase::Completed; rollouts];
    poll(what, async || with_phases(&cluster.client, &phases).await).await
}

/// Waits until every node runs a version, and is released.
async fn all_run(cluster: &ScriptedCluster, version: &Version) -> anyhow::Result<()> {
    let what = format!("every node runs {version}");
    cluster.until(&what, |world| world.nodes.keys().all(|node| world.is_updated(node, version))).await.map(drop)
}

/// Passes a canary step with a pause in between, as kubectl does it.
async fn canary_with_pause(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let awaits = |world: &integ::oracle::ClusterState| {
        world.operator_condition(PROGRESSING).is_some_and(|condition| condition.reason == "AwaitingApproval")
    };
    cluster.until("one node is updated, and the step waits for approval", awaits).await?;
    cluster.patch_operator("kubectl-patch", json!({"spec": {"enabled": false}})).await?;
    poll("the pause is recorded", async || {
        let all = recorded(&cluster.client).await?;
        Ok(all.iter().any(|record| record.kinds().contains(&EntryKind::Paused)).then_some(()))
    })
    .await?;
    cluster.patch_operator("kubectl-patch", json!({"spec": {"enabled": true}})).await?;
    let approval = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: "1/1@kubectl"}}});
    cluster.patch_operator("kubectl-annotate", approval).await
}

fn label(value: Option<&str>) -> Value {
    json!({"metadata": {"labels": {INTERFACE_LABEL: value}}})
}

async fn rollouts_are_told_apart_and_late_node_belongs_to_a_follow_up(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let (late, next) = ("node-3", Version::new(1, 20, 6));
    cluster.expectations.max_unavailable = Some(3);
    cluster
        .start(3, json!({"maxUnavailable": 3, "strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}}))
        .await?;
    cluster.patch_node(late, label(None)).await?;
    cluster.until("the late node is not under the operator", |world| world.shadow(late).is_none()).await?;
    cluster.fleet.release(NEW);
    canary_with_pause(cluster).await?;
    until_completed(cluster, "the first rollout is completed", 1).await?;
    cluster.patch_node(late, label(Some(INTERFACE_VERSION))).await?;
    cluster.until("the late node is updated", |world| world.is_updated(late, &NEW)).await?;
    until_completed(cluster, "its rollout is another one", 2).await?;

    cluster.delete_policy(&DeleteParams::default()).await?;
    cluster.create_policy(json!({"maxUnavailable": 3})).await?;
    cluster.fleet.release(next.clone());
    all_run(cluster, &next).await?;
    until_completed(cluster, "the history outlives the operator's resource", 3).await?;
    assert_eq!(cluster.now()?.status().rollout_count, Some(3));
    cluster.policy(&json!({"version": {"target": NEW.to_string()}})).await?;
    all_run(cluster, &NEW).await?;
    let all = until_completed(cluster, "the way back is a rollout too", 4).await?;
    cluster.policy(&json!({"rolloutHistory": {"records": 1}})).await?;
    let newest = all[3].name.as_str();
    poll("the oldest ones are removed, with their pages", async || {
        let left = objects(&cluster.client).list(&ListParams::default()).await?.items;
        Ok(left.iter().all(|object| object.spec.record == newest).then_some(()))
    })
    .await?;

    let attempts = cluster.recorder.so_far()?.attempts();
    assert!(attempts.len() == 9 && attempts.iter().all(integ::oracle::Attempt::updated), "{attempts:#?}");
    let [first, second, third, back] = &all[..] else { anyhow::bail!("{all:?}") };
    let numbers = [first, second, third, back].map(|record| (record.rollout.number, record.rollout.first));
    assert_eq!(numbers, [(1, None), (2, Some(1)), (3, None), (4, None)]);
    assert_eq!((&back.rollout.version, back.rows.len()), (&NEW, 3), "all nodes moved back");
    let steps: Vec<_> = first.rows.iter().map(|row| row.result.step).collect();
    assert_eq!(steps, [1, 0], "the second node came after the last step");
    assert_eq!(second.rows.iter().map(|row| row.node.as_str()).collect::<Vec<_>>(), [late]);
    let expected = [
        EntryKind::Begun,
        EntryKind::Paused,
        EntryKind::Resumed,
        EntryKind::Approved,
        EntryKind::StepPassed,
        EntryKind::Completed,
    ];
    assert_eq!(first.kinds(), expected);
    assert_eq!(first.manager(EntryKind::Paused), Some("kubectl-patch"));
    assert_eq!(first.manager(EntryKind::Approved), Some("kubectl-annotate"));
    assert!(first.rollout.policy.contains("canary") && first.rollout.steps.len() == 1, "{:?}", first.rollout);
    assert_ne!(first.rollout.operator.uid, third.rollout.operator.uid);
    Ok(())
}

async fn refused_history_is_reported_delays_no_update_and_is_written_later(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let none = json!({"hard": {"count/bottlerocketrollouthistories.brupop.bottlerocket.aws": "0"}});
    let name = "no-history";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": none.clone()});
    cluster.create(quotas.clone(), quota).await?;
    // As the controller of quotas does, which does not run.
    let counted = json!({"hard": none["hard"], "used": none["hard"]});
    quotas.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": counted}))).await?;
    cluster.start(2, json!({})).await?;
    cluster.shop(2, json!({"maxUnavailable": 1})).await?;
    workload::apply(&cluster.client, vec![workload::service(SHOP, "web")]).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    let refused = cluster.until_operator(HISTORY_RECORDED, ConditionStatus::False).await?;
    assert_eq!(refused.reason, "WriteFailed");
    assert!(refused.message.contains(name), "{refused:?}");
    assert!(recorded(&cluster.client).await?.is_empty());
    quotas.delete(name, &DeleteParams::default()).await?;
    let all = until_completed(cluster, "what waited is recorded", 1).await?;
    cluster.until_operator(HISTORY_RECORDED, ConditionStatus::True).await?;
    // That the rows are those of the run is judged by the scenario that kills the controllers after each write.
    let mut rows: Vec<_> = all[0].rows.iter().map(|row| (row.node.as_str(), row.result.result.as_str())).collect();
    rows.sort_unstable();
    assert_eq!(rows, [("node-1", UPDATED), ("node-2", UPDATED)]);
    Ok(())
}

/// For a part of each second the leader may not write, as after a stall of its machine, and still leads.
async fn leader_whose_lease_is_renewed_late_keeps_the_history(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let (renew_deadline, renew_period) = (Duration::from_millis(700), Duration::from_millis(900));
    let lease = Parameters { renew_deadline, renew_period, ..LEASE };
    cluster.start_with(2, json!({}), &ControllerOptions { lease, ..ControllerOptions::default() }).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    until_completed(cluster, "the rollout is recorded", 1).await.map(drop)
}
