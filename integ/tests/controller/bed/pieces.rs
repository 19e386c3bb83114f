//! Long runs, which are judged in pieces, so that neither what a piece costs nor what is kept of it grows with the run.

use std::sync::PoisonError;

use integ::oracle::{History, Stats, judge};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};

use super::{ControllerProcess, SHOP, ScriptedCluster, timeline};

impl ScriptedCluster {
    /// Judges what has happened since the last piece, and forgets it. Every node is idle.
    pub(crate) async fn judge_piece(&mut self) -> anyhow::Result<(History, Stats)> {
        let history = self.recorder.take_piece()?;
        let logs = self.fleet.take_logs();
        self.requests().await?;
        let records = std::mem::take(&mut self.records);
        self.audit.discard()?;
        self.ensure_no_defect()?;
        self.controllers.retain(ControllerProcess::runs);
        self.controllers.iter().for_each(ControllerProcess::shorten_log);
        let verdict = judge(&history, &logs, &records, &self.expectations);
        let course = |error| anyhow::anyhow!("{error:#}\n{}", timeline(&history, self.began));
        verdict.ensure_safe().map_err(course)?;
        Ok((history, verdict.stats))
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
