//! Clients that do beside the operator what is its own: they update or roll back hosts, and restore its objects.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource as _};
use models::condition::ConditionStatus;
use models::names::{HOLD_ANNOTATION, RELEASE_ANNOTATION, RETRY_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::operator::FROZEN;
use models::shadow::{BLOCKED, BottlerocketShadow, HostState, Step, UPDATED};
use serde_json::json;

use crate::bed::{Held, NEW, OLD, ScriptedCluster, other, poll};
use crate::leaders::blocked_drain;

crate::cases![
    update_by_other_client_ends_attempt_without_failure,
    rollback_by_other_client_is_reported_without_version_failure,
    permit_that_another_client_owns_too_is_withdrawn,
    policy_that_refuses_the_release_is_shown_on_the_node_and_the_release_follows_it,
    requests_that_begin_alike_are_two_and_a_hold_without_a_readable_end_is_refused,
];

/// Lets a node come back while a policy refuses all changes of Nodes, and checks that the node shows it.
async fn comes_back_under_policy(cluster: &mut ScriptedCluster, node: &str) -> anyhow::Result<()> {
    let mut tries = 0;
    poll("the policy is in force", async || {
        tries += 1;
        let change = json!({"metadata": {"annotations": {"example.com/try": tries.to_string()}}});
        Ok(cluster.patch_node(node, change).await.err())
    })
    .await?;
    cluster.fleet.script(node, |node| node.held = None);
    poll("the return to service was refused", async || {
        let mut count = 0.0;
        for kind in ["node_claim", "node_release"] {
            let series = format!(r#"rejected_writes_total{{code="422",kind="{kind}"}}"#);
            count += cluster.metric(&series).await?.unwrap_or_default();
        }
        Ok((count > 0.0).then_some(()))
    })
    .await?;
    cluster.pass(Duration::from_secs(90)).await?;
    let shown =
        |world: &ClusterState| world.condition(node, BLOCKED).is_some_and(|blocked| blocked.reason == "ActionFails");
    let world = cluster.until("the node shows it", shown).await?;
    let message = &world.condition(node, BLOCKED).context("just seen")?.message;
    assert!(message.contains("nodes are frozen for the audit"), "{message}");
    cluster.until_event("ActionFails", &["nodes are frozen for the audit"]).await?;
    Ok(())
}

/// A policy engine forbids all changes of Nodes while the node is out of service.
async fn policy_that_refuses_the_release_is_shown_on_the_node_and_the_release_follows_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    const NAME: &str = "no-changes-of-nodes";
    cluster.start(1, json!({})).await?;
    cluster.fleet.script(NODE, |node| node.held = Some(Held::Activation));
    cluster.fleet.release(NEW);
    cluster.until_step(NODE, Step::Rebooting).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let policy = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]},
            ]},
            "validations": [{"expression": "false", "message": "nodes are frozen for the audit"}],
        },
    }))?;
    let binding = serde_json::from_value(
        json!({"metadata": {"name": NAME}, "spec": {"policyName": NAME, "validationActions": ["Deny"]}}),
    )?;
    policies.create(&PostParams::default(), &policy).await?;
    bindings.create(&PostParams::default(), &binding).await?;
    let shown = comes_back_under_policy(cluster, NODE).await;
    bindings.delete(NAME, &DeleteParams::default()).await?;
    policies.delete(NAME, &DeleteParams::default()).await?;
    shown?;
    cluster.updated().await.map(drop)
}

/// A tool that restores objects, or applies them, owns all of their fields.
async fn permit_that_another_client_owns_too_is_withdrawn(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    cluster.start(1, json!({})).await?;
    cluster.fleet.script(NODE, |node| node.held = Some(Held::Activation));
    cluster.fleet.release(NEW);
    let permitted = |world: &ClusterState| world.shadow(NODE).is_some_and(|shadow| shadow.spec.permit.is_some());
    cluster.until("the permit is issued", permitted).await?;
    let api: Api<BottlerocketShadow> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let name = shadow_name(NODE);
    let restored = json!({
        "apiVersion": BottlerocketShadow::api_version(&()), "kind": BottlerocketShadow::kind(&()),
        "spec": api.get(&name).await?.spec,
    });
    api.patch(&name, &PatchParams::apply("backup"), &Patch::Apply(restored)).await?;
    cluster.request_of_node(NODE, RELEASE_ANNOTATION, "now").await?;
    let withdrawn = cluster.until("the permit is withdrawn", |world| {
        world.shadow(NODE).is_some_and(|shadow| shadow.spec.state == HostState::Idle && shadow.spec.permit.is_none())
    });
    withdrawn.await?;
    cluster.fleet.script(NODE, |node| node.held = None);
    cluster.outlive_permit(NODE).await?;
    cluster.updated().await.map(drop)
}

async fn requests_that_begin_alike_are_two_and_a_hold_without_a_readable_end_is_refused(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, json!({})).await?;
    let mut acknowledged = Vec::new();
    for end in ["one", "two"] {
        let value = format!("{}{end}", "maintenance-".repeat(6));
        cluster.request_of_node("node-1", RETRY_ANNOTATION, &value).await?;
        let taken = |world: &ClusterState| world.record("node-1").requests.and_then(|requests| requests.retry);
        let world = cluster
            .until("the request is acknowledged", |world| {
                taken(world).is_some_and(|value| !acknowledged.contains(&value))
            })
            .await?;
        acknowledged.extend(taken(&world));
    }
    let hold = |value: serde_json::Value| json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}});
    cluster.patch_node("node-1", hold(json!("until=tomorrow"))).await?;
    cluster.until_event("HoldRefused", &["until", "tomorrow"]).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await.map(drop)
}

async fn update_by_other_client_ends_attempt_without_failure(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(2, json!({"strategy": {"preStage": {}}})).await?;
    let drained = blocked_drain(cluster).await?;
    let staged = other(&drained);
    cluster.until_step(staged, Step::Staged).await?;
    cluster.fleet.install(staged, NEW);
    let world = cluster
        .until("the attempt is ended, and the node is as it should be", |world| {
            world.last_reason(staged).as_deref() == Some("UpdatedByOther") && world.is_updated(staged, &NEW)
        })
        .await?;
    let record = world.record(staged);
    assert_eq!((record.failures, record.not_before, record.version_failures), (0, None, vec![]));
    cluster.until_event("UpdateWithdrawn", &["UpdatedByOther"]).await?;
    cluster.unblock_shop().await?;
    let world = cluster.updated().await?;
    assert_ne!(world.operator_condition(FROZEN).map(|c| c.status), Some(ConditionStatus::True));
    let history = cluster.recorder.so_far()?;
    assert_eq!(history.results(staged), [(NEW, "UpdatedByOther".to_owned())]);
    assert_eq!(history.results(&drained), [(NEW, UPDATED.to_owned())]);
    assert_eq!(cluster.verdict().await?.stats.reboots, 1, "the other one was not the operator's");
    Ok(())
}

async fn rollback_by_other_client_is_reported_without_version_failure(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    cluster.start(1, json!({"health": {"after": {"soak": "10m", "timeout": "1h"}}})).await?;
    cluster.fleet.release(NEW);
    // To an agent that had not reported this boot, the host would have fallen back.
    let reported = cluster.until("the boot into the update is reported", |world| {
        let armed = world.shadow(NODE).is_some_and(|shadow| shadow.status.agent.armed.is_some());
        world.step(NODE) == Some(Step::Verifying) && !armed
    });
    reported.await?;
    cluster.fleet.install(NODE, OLD);
    let world = cluster
        .until("the attempt is ended and the node released", |world| {
            world.last_reason(NODE).as_deref() == Some("BootedOtherVersion") && world.is_released(NODE)
        })
        .await?;
    let record = world.record(NODE);
    assert_eq!(record.version_failures, [], "the version is not to blame");
    assert!(record.not_before.is_some(), "the client that did that is given time");
    cluster.until_event("UpdateFailed", &["BootedOtherVersion"]).await?;
    assert_ne!(world.operator_condition(FROZEN).map(|c| c.status), Some(ConditionStatus::True));

    cluster.policy(&json!({"health": {"after": {"soak": "1s"}}})).await?;
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    // While no attempt is under way nothing fails, and the node is updated again.
    cluster.fleet.install(NODE, OLD);
    cluster.until("it has begun again", |world| world.step(NODE).is_some()).await?;
    cluster.updated().await?;
    let ended = ["BootedOtherVersion", UPDATED, UPDATED].map(|result| (NEW, result.to_owned()));
    assert_eq!(cluster.recorder.so_far()?.results(NODE), ended);
    assert_eq!(cluster.verdict().await?.stats.reboots, 3);
    Ok(())
}
