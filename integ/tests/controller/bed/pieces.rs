//! Long runs, which are judged in pieces, so that neither what a piece costs nor what is kept of it grows with the run.

use std::sync::PoisonError;

use integ::control_plane::audit::Record;
use integ::oracle::{History, judge, settled_audit};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;

use super::{ControllerProcess, SHOP, ScriptedCluster, timeline};

impl ScriptedCluster {
    /// Reads the audit log, and keeps of it what the oracle reads.
    pub(crate) async fn read_requests(&mut self) -> anyhow::Result<()> {
        let read = settled_audit(&mut self.audit, &self.client).await?;
        self.records.extend(read.into_iter().map(outline));
        self.audit.discard()
    }

    /// Judges what has happened since the last piece, and forgets it. Every node is idle.
    pub(crate) async fn judge_piece(&mut self) -> anyhow::Result<History> {
        let history = self.recorder.take_piece()?;
        let logs = self.fleet.take_logs();
        self.read_requests().await?;
        let records = std::mem::take(&mut self.records);
        self.ensure_no_defect()?;
        self.controllers.retain(ControllerProcess::runs);
        self.controllers.iter().for_each(ControllerProcess::shorten_log);
        let verdict = judge(&history, &logs, &records, &self.expectations);
        let course = |error: anyhow::Error| anyhow::anyhow!("{error:#}\n{}", timeline(&history, self.began));
        verdict.ensure_safe().map_err(course)?;
        Ok(history)
    }

    /// Number of controllers that were started.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    /// Deletes a Node with its machine and its pods, as an autoscaler does.
    pub(crate) async fn remove_node(&self, node: &str) -> anyhow::Result<()> {
        self.deregister(node).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SHOP);
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        pods.delete_collection(&DeleteParams::default().grace_period(0), &on_node).await?;
        self.until("the Node is gone", |world| !world.nodes.contains_key(node)).await?;
        self.fleet.remove(node);
        self.kubelets.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
        Ok(())
    }
}

/// A record with the fields of its objects that the oracle reads: revisions, and preconditions of removals.
fn outline(mut record: Record) -> Record {
    for object in [&mut record.request, &mut record.response].into_iter().flatten() {
        *object = json!({
            "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
            "deleteOptions": object["deleteOptions"], "preconditions": object["preconditions"],
        });
    }
    record
}
