//! Claims on Nodes are server-side-apply ownership: claiming is an apply with the field, releasing is one without it. A
//! field that a user set before is owned by that user too, so it stays.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use models::names;
use serde_json::{Value, json};

use super::{Applier, ApplyError, event, patch_params};
use planner::claims::{self, ClaimFields};
use planner::hooks;
use planner::plan::Note;
use planner::view::{NodeFacts, NodeView};

fn is_field_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409
        && status.details.as_ref().is_some_and(|d| d.causes.iter().any(|c| c.reason == "FieldManagerConflict")))
}

impl Applier {
    /// Writes a Node, and takes the answer into the cache.
    async fn patch_node(&self, name: &str, params: &PatchParams, patch: &Patch<Value>) -> kube::Result<Node> {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = api.patch(name, params, patch).await?;
        self.caches.nodes.written(&node);
        Ok(node)
    }

    async fn apply_node(&self, facts: &NodeFacts, fields: ClaimFields, force: bool) -> kube::Result<Node> {
        let body = claims::body(&facts.name, &facts.uid, &facts.resource_version, fields);
        let params = PatchParams { force, ..PatchParams::apply(names::CONTROLLER_MANAGER) };
        self.patch_node(&facts.name, &params, &Patch::Apply(body)).await
    }

    pub(super) async fn claim(&self, facts: &NodeFacts, fields: ClaimFields) -> Result<(), ApplyError> {
        let claimed = match self.apply_node(facts, fields, false).await {
            // Labels and annotations with another value from another client are not among the fields, at this very
            // version of the Node. `unschedulable: false` is left: a written default, and no wish that a cordon would
            // break.
            Err(error) if is_field_conflict(&error) => self.apply_node(facts, fields, true).await,
            claimed => claimed,
        };
        claimed.map(drop).map_err(ApplyError::api("node_claim"))
    }

    pub(super) async fn release(&self, node: &NodeView) -> Result<(), ApplyError> {
        let released = self
            .apply_node(&node.facts, ClaimFields::default(), false)
            .await
            .map_err(ApplyError::api("node_release"))?;
        let recorded = node.shadow.as_ref().map(|shadow| claims::recorded(&shadow.status)).unwrap_or_default();
        let unschedulable = released.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        let left = claims::unowned(&released.metadata, unschedulable).and(recorded);
        if !left.is_empty() {
            let version = released.metadata.resource_version.as_deref().unwrap_or_default();
            let patch = Patch::Merge(claims::removal(version, left));
            let removed = self.patch_node(&node.facts.name, &PatchParams::default(), &patch).await;
            removed.map_err(ApplyError::api("node_leftover"))?;
        }
        Ok(())
    }

    /// Sets the request to hooks, or removes it. The name of the annotation is the operator's, so no value of another client is
    /// kept.
    pub(super) async fn ask_hooks(&self, facts: &NodeFacts, request: Option<&str>) -> Result<(), ApplyError> {
        let patch = hooks::patch(&facts.uid, &facts.resource_version, request);
        let asked = self.patch_node(&facts.name, &patch_params(), &Patch::Merge(patch)).await;
        asked.map(drop).map_err(ApplyError::api("node_hooks"))
    }

    /// Sets the answer of a hook that Jobs answer, or removes it.
    pub(crate) async fn answer_hook(&self, node: &str, hook: &str, answer: Option<&str>) -> Result<(), ApplyError> {
        let facts = self.caches.nodes.get(node).ok_or(ApplyError::Changed("the node"))?;
        let annotation = format!("{}{hook}", names::HOOK_ANSWER_PREFIX);
        let patch = json!({"metadata": {
            "uid": facts.uid, "resourceVersion": facts.resource_version, "annotations": {annotation: answer},
        }});
        let answered = self.patch_node(node, &patch_params(), &Patch::Merge(patch)).await;
        answered.map(drop).map_err(ApplyError::api("node_hook_answer"))
    }

    /// Publishes an Event about a node.
    pub(crate) fn notify(&self, node: &NodeFacts, note: Note) {
        self.recorder.send(event::node(node), note, self.leadership.now());
    }

    /// Puts a node under the operator. The manager owns the label and nothing else, so an apply of the label alone
    /// removes nothing; one without it never happens. Not forced: the value of a client that was faster stays.
    pub async fn label(&self, facts: &NodeFacts) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let body = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": facts.name, "uid": facts.uid, "resourceVersion": facts.resource_version,
                "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION},
            },
        });
        let params = PatchParams::apply(names::LABEL_MANAGER);
        let labelled = self.patch_node(&facts.name, &params, &Patch::Apply(body)).await;
        labelled.map_err(ApplyError::api("node_label"))?;
        tracing::info!(node = facts.name, "node labelled: it runs Bottlerocket");
        Ok(())
    }

    /// Reads the Lease of a node: its time of renewal, if there is one, and the time of the read.
    pub(super) async fn read_lease(&self, node: &str) -> Result<(Option<Timestamp>, Timestamp), ApplyError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let lease = api.get_opt(node).await.map_err(ApplyError::api("node_lease"))?;
        let renewed = lease.and_then(|l| l.spec).and_then(|s| s.renew_time).map(|t| t.0);
        Ok((renewed, self.leadership.now()))
    }
}
