//! Agents that come and go with the label of their node.

use std::time::Duration;

use kube::api::{Api, DeleteParams};
use models::names::{AGENT, AGENT_NAMESPACE, INTERFACE_LABEL, INTERFACE_VERSION};
use models::shadow::Step;
use serde_json::json;

use super::ScriptedCluster;

impl ScriptedCluster {
    /// Lets the time pass in which a host may still act on its permit, and waits until the release of the node has ended:
    /// its kubelet has renewed its Lease after that.
    pub(crate) async fn outlive_permit(&self, node: &str) -> anyhow::Result<()> {
        // The controller observes the state from its next turn on, and then compares two readings of the Lease.
        for _ in 0..10 {
            if self.planned().await?.step(node) != Some(Step::Releasing) {
                return Ok(());
            }
            self.pass(Duration::from_mins(5)).await?;
        }
        anyhow::bail!("{node} is not released")
    }

    /// Labels a node for the operator; its agent starts, as the DaemonSet controller has it.
    pub(crate) async fn label(&self, node: &str) -> anyhow::Result<()> {
        self.patch_node(node, json!({"metadata": {"labels": {INTERFACE_LABEL: INTERFACE_VERSION}}})).await?;
        self.start_agent(node).await
    }

    /// Removes the label of a node; its agent ends.
    pub(crate) async fn unlabel(&self, node: &str) -> anyhow::Result<()> {
        self.patch_node(node, json!({"metadata": {"labels": {INTERFACE_LABEL: null}}})).await?;
        self.end_agent(node).await
    }

    /// Starts the agent of a node that has none.
    pub(crate) async fn start_agent(&self, node: &str) -> anyhow::Result<()> {
        self.fleet.script(node, |behaviour| behaviour.agent = true);
        self.create_agent(node).await
    }

    /// Ends the agent of a node.
    pub(crate) async fn end_agent(&self, node: &str) -> anyhow::Result<()> {
        self.fleet.script(node, |behaviour| behaviour.agent = false);
        let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(self.client.clone(), AGENT_NAMESPACE);
        pods.delete(&format!("{AGENT}-{node}"), &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}
