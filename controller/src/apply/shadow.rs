//! Writes to the operator's resources.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, Patch, PatchParams};
use models::condition::Condition;
use models::names;
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus};
use models::permit::SettingsClaims;
use models::shadow::{
    BottlerocketShadow, BottlerocketShadowSpec, ControllerReport, ControllerStatus, HostPolicy, HostState,
    is_controller_condition,
};
use serde_json::json;

use super::exact::Part;
use super::{Applier, ApplyError, create_params, delete_this};
use planner::history::RowId;
use planner::view::{OperatorFacts, ShadowFacts};

impl Applier {
    /// Applies the controller status. The resourceVersion guards it: the server ignores the uid on `/status`.
    pub(super) async fn write_status(&self, shadow: &ShadowFacts, status: &ControllerStatus) -> Result<(), ApplyError> {
        let name = names::shadow_name(&shadow.node);
        let body = self.body::<BottlerocketShadow>(&name, &shadow.resource_version, "status", status);
        // The list of conditions has those of others too.
        let whole = |report: &ControllerReport, conditions| {
            serde_json::to_value(ControllerStatus { report: report.clone(), conditions })
        };
        let others = shadow.status.conditions.iter().filter(|condition| !is_controller_condition(&condition.type_));
        let wanted = whole(&status.report, others.chain(&status.conditions).cloned().collect());
        let before = || whole(&shadow.status.controller, shadow.status.conditions.clone());
        let part = Part {
            api: self.api::<BottlerocketShadow>(),
            name: &name,
            section: "status",
            what: "shadow_status",
            read: |shadow| {
                let status = shadow.status.clone().unwrap_or_default();
                serde_json::to_value(ControllerStatus { report: status.controller, conditions: status.conditions })
            },
        };
        let written = part.apply(body, wanted, before).await?;
        self.caches.shadows.written(&written);
        Ok(())
    }

    /// Applies the controller status, and reads it again where there is no answer.
    pub(super) async fn record_status(
        &self,
        shadow: &ShadowFacts,
        status: &ControllerStatus,
    ) -> Result<(), ApplyError> {
        let is_there = async {
            self.read_node(&shadow.node).await;
            let read = self.caches.shadows.get(&shadow.node).filter(|read| read.uid == shadow.uid);
            read.is_some_and(|read| read.status.controller_status() == *status)
        };
        confirmed(self.write_status(shadow, status).await, is_there).await
    }

    /// Applies `HostReachable` of a silent agent, whose next report takes it back.
    pub async fn record_silence(&self, shadow: &ShadowFacts, condition: &Condition) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let name = names::shadow_name(&shadow.node);
        let conditions = json!({"conditions": [condition]});
        let body = self.body::<BottlerocketShadow>(&name, &shadow.resource_version, "status", &conditions);
        let manager = PatchParams::apply(names::SILENCE_MANAGER).force();
        let written = self.api::<BottlerocketShadow>().patch_status(&name, &manager, &Patch::Apply(body)).await;
        self.caches.shadows.written(&written.map_err(ApplyError::api("shadow_status"))?);
        let Condition { reason, message, .. } = condition;
        tracing::warn!(node = shadow.node, reason, detail = message, "agent silent");
        Ok(())
    }

    /// Removes results that a page of the history holds from the shadow of a node, unless it is another node's by now.
    pub async fn clear_results(&self, node: &str, rows: &BTreeSet<RowId>) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let Some(shadow) = self.caches.shadows.get(node) else { return Ok(()) };
        let uid = shadow.owner_uid.clone().unwrap_or_default();
        let mut status = shadow.status.controller_status();
        status.report.results.retain(|result| !rows.contains(&(uid.clone(), result.attempt)));
        if status.report.results.len() == shadow.status.controller.results.len() {
            return Ok(());
        }
        let written = self.write_status(&shadow, &status).await;
        if written.as_ref().is_err_and(|error| error.is_unknown() || error.code() == Some(409)) {
            self.read_node(node).await;
        }
        written
    }

    /// Signs the settings of a host, unless they are signed already.
    fn sign_settings(&self, node_uid: &str, host: &mut HostPolicy) -> Result<(), ApplyError> {
        let Some(claims) = SettingsClaims::of(node_uid, host) else {
            host.signature = None;
            return Ok(());
        };
        if host.signature.is_none() {
            host.signature = Some(self.sign(&claims)?);
        }
        Ok(())
    }

    /// Writes a desired state. Its host settings are signed on the way.
    pub(super) async fn write_spec(
        &self,
        shadow: &ShadowFacts,
        spec: &BottlerocketShadowSpec,
    ) -> Result<(), ApplyError> {
        let mut spec = spec.clone();
        if let Some(host) = &mut spec.host {
            let node_uid = shadow.owner_uid.as_deref().ok_or(ApplyError::Changed("the shadow's owner"))?;
            match self.sign_settings(node_uid, host) {
                // A desired state is withdrawn also while there is no key. The agent ignores unsigned settings, and
                // they are signed when there is a key.
                Err(ApplyError::NoKey) if spec.state == HostState::Idle => {}
                signed => signed?,
            }
        }
        self.apply_spec(shadow, &spec).await
    }

    /// Applies a spec, with the label that the shadow has: an apply without it would remove it.
    pub(super) async fn apply_spec(
        &self,
        shadow: &ShadowFacts,
        spec: &BottlerocketShadowSpec,
    ) -> Result<(), ApplyError> {
        let name = names::shadow_name(&shadow.node);
        let labels = shadow.revision.as_ref().map(|revision| json!({names::REVISION_LABEL: revision}));
        let mut body = self.body::<BottlerocketShadow>(&name, &shadow.resource_version, "spec", spec);
        body["metadata"]["uid"] = json!(shadow.uid);
        body["metadata"]["labels"] = json!(labels);
        let read = |shadow: &BottlerocketShadow| serde_json::to_value(&shadow.spec);
        let part =
            Part { api: self.api::<BottlerocketShadow>(), name: &name, section: "spec", what: "shadow_spec", read };
        let written = part.apply(body, serde_json::to_value(spec), || serde_json::to_value(&shadow.spec)).await?;
        self.caches.shadows.written(&written);
        Ok(())
    }

    /// Creates the shadow of a node. Not an apply: that would create a shadow again that had just been deleted.
    pub async fn create_shadow(&self, node: &str, node_uid: &str, host: HostPolicy) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let shadow = BottlerocketShadow::of_node(&self.namespace, node, node_uid, Some(host));
        let written = self.api::<BottlerocketShadow>().create(&create_params(), &shadow).await;
        self.caches.shadows.written(&written.map_err(ApplyError::api("shadow_create"))?);
        Ok(())
    }

    /// Deletes this very shadow.
    pub async fn delete_shadow(&self, node: &str, uid: &str) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let (api, name) = (self.api::<BottlerocketShadow>(), names::shadow_name(node));
        delete_this(&api, &name, uid, DeleteParams::default(), "shadow_delete").await.map(|_| ())
    }
}

/// Applies the operator's status, and reads it again where there is no answer.
pub(super) async fn record_operator_status(
    applier: &Applier,
    operator: &OperatorFacts,
    status: &BottlerocketUpdateOperatorStatus,
) -> Result<(), ApplyError> {
    let (name, version) = (names::OPERATOR_NAME, &operator.resource_version);
    let body = applier.body::<BottlerocketUpdateOperator>(name, version, "status", status);
    let part = Part {
        api: applier.api::<BottlerocketUpdateOperator>(),
        name,
        section: "status",
        what: "operator_status",
        read: |operator| serde_json::to_value(operator.status.clone().unwrap_or_default()),
    };
    let written = part.apply(body, serde_json::to_value(status), || serde_json::to_value(&operator.status)).await;
    let written = written.map(|written| applier.caches.operator.written(&written));
    let is_there = async {
        applier.read(applier.api(), name, |operator| applier.caches.operator.written(operator)).await;
        let read = applier.caches.operator.get(name).filter(|read| read.uid == operator.uid);
        read.is_some_and(|read| read.status == *status)
    };
    confirmed(written, is_there).await
}

/// Returns the result of the write of a status. One that is there when it is read again is written, although there was no answer: what is
/// counted and reported of it depends on this write.
async fn confirmed(written: Result<(), ApplyError>, is_there: impl Future<Output = bool>) -> Result<(), ApplyError> {
    if written.as_ref().is_err_and(ApplyError::is_unknown) && is_there.await { Ok(()) } else { written }
}
