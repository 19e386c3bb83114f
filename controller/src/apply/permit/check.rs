//! The live check before a permit: the Node and its pods are read from the API server and not from a cache.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use semver::Version;

use super::{Applier, ApplyError};
use planner::claims::Part;
use planner::drain;
use planner::rules::Rules;
use planner::view::{NodeFacts, PodFacts, Projection as _, ShadowFacts};

/// A node that passed the check: its uid, its boot, and the version of its desired state.
pub(super) struct Checked {
    pub(super) node_uid: String,
    pub(super) boot_id: String,
    pub(super) version: Version,
}

impl Applier {
    /// Checks that the node is the one of the decision, in the boot of its desired state, claimed, and free of pods.
    pub(super) async fn check_live(
        &self,
        decided_on: &NodeFacts,
        shadow: &ShadowFacts,
        rules: Rules,
    ) -> Result<Checked, ApplyError> {
        let (Some(version), Some(boot_id)) = (shadow.spec.version.clone(), shadow.spec.boot_id.clone()) else {
            return Err(ApplyError::Changed("the desired state"));
        };
        let name = &decided_on.name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let (node, pods) = futures::join!(nodes.get(name), pods.list(&on_node));
        let node = node.map_err(ApplyError::api("node_get"))?;
        let pods = pods.map_err(ApplyError::api("pod_list"))?;
        let live = NodeFacts::project(&node).ok_or(ApplyError::Changed("the node"))?;
        if live.uid != decided_on.uid || live.boot_id != boot_id {
            return Err(ApplyError::Changed("the node"));
        }
        // The caches of nodes and shadows are not in step: a hold may precede the agent's request.
        if live.held || !live.labelled || live.deleting {
            return Err(ApplyError::NoPermit("the node is held, leaving, or no longer under the operator".to_owned()));
        }
        if !live.unschedulable || !live.claims.has(Part::Cordon) {
            return Err(ApplyError::NoPermit("the node is not cordoned any more".to_owned()));
        }
        let pods: Vec<PodFacts> = pods.items.iter().map(PodFacts::of).collect();
        let drain = shadow.status.controller.drain.as_ref();
        // Pods that may be evicted count as well: none may be left.
        let sorted = drain::sort(&pods, rules, drain);
        if let Some(pod) = sorted.left().next() {
            return Err(ApplyError::NoPermit(format!("{} is on the node", pod.title())));
        }
        Ok(Checked { node_uid: live.uid, boot_id, version })
    }
}
