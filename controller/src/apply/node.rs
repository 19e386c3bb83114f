//! Claims on Nodes are server-side-apply ownership: claiming is an apply with the field, releasing one without it. What a
//! person set before is owned by that person too, so it stays.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use models::condition::{ConditionStatus, find_condition};
use models::names;
use models::shadow::CORDONED;
use serde_json::{Value, json};

use super::{Applier, ApplyError, Learned};
use crate::view::{NodeFacts, NodeView};

/// The condition's reason on a node that was cordoned already when we claimed it.
pub const CORDONED_BEFORE: &str = "CordonedBefore";

fn is_field_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409
        && status.details.as_ref().is_some_and(|d| d.causes.iter().any(|c| c.reason == "FieldManagerConflict")))
}

impl Applier {
    async fn apply_node(&self, facts: &NodeFacts, spec: Option<Value>, force: bool) -> Result<Node, kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut body = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": facts.name, "uid": facts.uid, "resourceVersion": facts.resource_version},
        });
        if let Some(spec) = spec {
            body["spec"] = spec;
        }
        let params = PatchParams { force, ..PatchParams::apply(names::CONTROLLER_MANAGER) };
        let node = api.patch(&facts.name, &params, &Patch::Apply(body)).await?;
        self.nodes.written(&node);
        Ok(node)
    }

    pub(super) async fn claim(&self, facts: &NodeFacts) -> Result<(), ApplyError> {
        let cordon = json!({"unschedulable": true});
        match self.apply_node(facts, Some(cordon.clone()), false).await {
            // Somebody owns `unschedulable: false`: a default written down, and no wish that a cordon would break.
            Err(error) if is_field_conflict(&error) => self.apply_node(facts, Some(cordon), true).await.map(|_| ()),
            other => other.map(|_| ()),
        }
        .map_err(ApplyError::api("node_claim"))
    }

    pub(super) async fn release(&self, node: &NodeView) -> Result<(), ApplyError> {
        let released = self.apply_node(&node.facts, None, false).await.map_err(ApplyError::api("node_release"))?;
        let left = released.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        let by_us = node.shadow.as_ref().is_some_and(|shadow| {
            find_condition(&shadow.status.conditions, CORDONED)
                .is_some_and(|c| c.status == ConditionStatus::True && c.reason != CORDONED_BEFORE)
        });
        if left && by_us && !owned_by_somebody(&released) {
            // managedFields were reset while we held the claim, so that taking it back removed nothing. By our own
            // record the cordon is ours, and nobody else has said otherwise since.
            self.remove_cordon(&released).await?;
        }
        Ok(())
    }

    async fn remove_cordon(&self, node: &Node) -> Result<(), ApplyError> {
        let api: Api<Node> = Api::all(self.client.clone());
        // A merge patch with the resourceVersion in it is refused if anything was written in between.
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"unschedulable": null},
        });
        let name = node.metadata.name.clone().unwrap_or_default();
        let node = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(ApplyError::api("node_leftover"))?;
        self.nodes.written(&node);
        Ok(())
    }

    /// Puts a node under the operator. The manager owns the label and nothing else, so an apply of the label alone removes
    /// nothing; one without it never happens. Not forced: whoever was faster has decided.
    pub async fn label(&self, facts: &NodeFacts) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let api: Api<Node> = Api::all(self.client.clone());
        let body = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": facts.name, "uid": facts.uid, "resourceVersion": facts.resource_version,
                "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION},
            },
        });
        let params = PatchParams::apply(names::LABEL_MANAGER);
        let node = api.patch(&facts.name, &params, &Patch::Apply(body)).await.map_err(ApplyError::api("node_label"))?;
        self.nodes.written(&node);
        tracing::info!(node = facts.name, "labelled: it runs Bottlerocket");
        Ok(())
    }

    pub(super) async fn look_at_lease(&self, node: &str) -> Result<Learned, ApplyError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let lease = api.get_opt(node).await.map_err(ApplyError::api("node_lease"))?;
        let renewed = lease.and_then(|l| l.spec).and_then(|s| s.renew_time).map(|t| t.0);
        Ok(Learned { lease: Some((renewed, crate::clock::now())), ..Learned::default() })
    }
}

/// Whether a manager other than the reset's own owns the cordon.
fn owned_by_somebody(node: &Node) -> bool {
    node.metadata.managed_fields.iter().flatten().any(|entry| {
        entry.manager.as_deref() != Some("before-first-apply")
            && entry.fields_v1.as_ref().is_some_and(|f| f.0.pointer("/f:spec/f:unschedulable").is_some())
    })
}
