//! Clients that hinder the operator: they refuse its writes, and restore its objects.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource as _};
use models::names::{GROUP, OPERATOR_NAME, RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BLOCKED, BottlerocketShadow, HostState, Step};
use serde_json::json;

use crate::bed::{Held, NEW, ScriptedCluster, poll};

/// The message of a policy that refuses writes.
const FROZEN: &str = "changes are frozen for the audit";

crate::cases![
    permit_that_another_client_owns_too_is_withdrawn,
    policy_that_refuses_the_release_is_shown_on_the_node_and_the_release_follows_it,
    policy_that_refuses_the_operators_status_is_shown_on_the_next_node_and_its_update_follows_it,
];

/// Creates a policy that refuses all updates of a resource.
async fn refuse_updates(
    cluster: &ScriptedCluster,
    name: &str,
    (group, version, resource): (&str, &str, &str),
    message: &str,
) -> anyhow::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let policy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [group], "apiVersions": [version], "operations": ["UPDATE"], "resources": [resource]},
            ]},
            "validations": [{"expression": "false", "message": message}],
        },
    }))?;
    let binding = serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}),
    )?;
    policies.create(&PostParams::default(), &policy).await?;
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// Deletes such a policy.
async fn accept_updates(cluster: &ScriptedCluster, name: &str) -> anyhow::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    bindings.delete(name, &DeleteParams::default()).await?;
    policies.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until a node shows that a write for it is refused with this message.
async fn shows_refusal(cluster: &ScriptedCluster, node: &str, message: &str) -> anyhow::Result<()> {
    cluster.pass(Duration::from_secs(90)).await?;
    let shown =
        |world: &ClusterState| world.condition(node, BLOCKED).is_some_and(|blocked| blocked.reason == "ActionFails");
    let world = cluster.until("the node shows it", shown).await?;
    let found = &world.condition(node, BLOCKED).context("just seen")?.message;
    assert!(found.contains(message), "{found}");
    cluster.until_event("ActionFails", &[message]).await?;
    Ok(())
}

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
    shows_refusal(cluster, node, FROZEN).await
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
    refuse_updates(cluster, NAME, ("", "v1", "nodes"), FROZEN).await?;
    let shown = comes_back_under_policy(cluster, NODE).await;
    accept_updates(cluster, NAME).await?;
    shown?;
    cluster.updated().await.map(drop)
}

/// A policy engine forbids all changes of the operator's own status, which has the slots.
async fn policy_that_refuses_the_operators_status_is_shown_on_the_next_node_and_its_update_follows_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    const NAME: &str = "no-changes-of-the-status";
    cluster.start(1, json!({})).await?;
    refuse_updates(cluster, NAME, (GROUP, "v1", "bottlerocketupdateoperators/status"), FROZEN).await?;
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    poll("the policy is in force", async || {
        let change = Patch::Merge(json!({"status": {}}));
        Ok(operators.patch_status(OPERATOR_NAME, &PatchParams::default(), &change).await.err())
    })
    .await?;
    cluster.fleet.release(NEW);
    poll("the operator's status was refused", async || {
        let series = r#"rejected_writes_total{code="422",kind="operator_status"}"#;
        Ok((cluster.metric(series).await?.unwrap_or_default() > 0.0).then_some(()))
    })
    .await?;
    let shown = shows_refusal(cluster, NODE, FROZEN).await;
    accept_updates(cluster, NAME).await?;
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
