//! The operator's own pods: readiness of another replica of the controller to lead, of the web API, and of each node's
//! agent.

use std::collections::{BTreeMap, BTreeSet};

use models::names::{APISERVER, CONTROLLER};

use crate::cache::Cache;
use planner::standby::standby;
use planner::view::{NodeFacts, PodFacts, Standby};

/// The operator's own pods.
#[derive(Clone)]
pub struct Peers {
    /// The name of this process's own pod, which is its identity.
    pub identity: String,
    /// The pods in the operator's namespace: of the controller, this one among them, and of the web API.
    pub pods: Cache<PodFacts>,
    /// The agents' pods.
    pub agents: Cache<PodFacts>,
}

impl Peers {
    /// Returns the result of [`standby`]; none before the first list.
    pub fn standby(&self, own_node: Option<&str>, nodes: &BTreeMap<String, NodeFacts>) -> Standby {
        if !self.pods.synced() {
            return Standby::None;
        }
        let mut pods = self.pods.items();
        pods.retain(|_, pod| pod.is_of(CONTROLLER));
        standby(&self.identity, own_node, &pods, nodes)
    }

    /// Returns whether a pod of the web API is Ready; `None` before the first list.
    pub fn is_web_api_ready(&self) -> Option<bool> {
        let ready = |pod: &PodFacts| pod.is_of(APISERVER) && pod.serves();
        self.pods.synced().then(|| self.pods.read(|pods| pods.values().any(ready)))
    }

    /// Returns the nodes on which a pod of the agent is Ready; `None` before the first list.
    pub fn nodes_with_agent(&self) -> Option<BTreeSet<String>> {
        let nodes = |pods: &BTreeMap<String, PodFacts>| {
            pods.values().filter(|pod| pod.serves()).map(|pod| pod.node.clone()).collect()
        };
        self.agents.synced().then(|| self.agents.read(nodes))
    }
}
