//! The permit of a reboot, from the agent's request to the desired state that holds it: checked live, signed, written; and
//! that of a drill, which permits no reboot.
//! For the check the Node, its pods, the budgets of those that the reboot ends and, for a node of the control plane, the other ones of it are read
//! from the API server and not from a cache.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use models::names::CONTROL_PLANE_LABEL;
use models::permit::{PermitClaims, RehearsalClaims};
use models::shadow::{BottlerocketShadowSpec, HostState, Permit};

use super::{Applier, ApplyError};
use planner::claims::ClaimField;
use planner::drain;
use planner::rules::Rules;
use planner::view::{BudgetFacts, EarlierPod, NodeFacts, NodeView, PodFacts, Projection as _, ShadowFacts};

#[cfg(test)]
mod tests;

impl Applier {
    /// Issues the permit for this agent's nonce, if the node as it is now still allows the reboot. It is written at the
    /// version of the shadow that the decision was made on.
    ///
    /// The desired state decides what is signed: under that of a drill, a rehearsal permit alone. `pods_stay` is true in a drill
    /// that evicts no pods, and means nothing for a reboot.
    pub(super) async fn issue_permit(
        &self,
        view: &NodeView,
        nonce: &str,
        rules: Rules,
        pods_stay: bool,
    ) -> Result<(), ApplyError> {
        let shadow = view.shadow.as_ref().ok_or(ApplyError::Changed("the shadow"))?;
        let rehearsal = match shadow.spec.state {
            HostState::RebootedIntoUpdate => false,
            HostState::RehearsedUpdate => true,
            _ => return Err(ApplyError::Changed("the desired state")),
        };
        let rules = Some(rules).filter(|_| !(rehearsal && pods_stay));
        let claims = self.check_live(&view.facts, shadow, nonce, rules).await?;
        let jws = if rehearsal { self.sign(&RehearsalClaims::of(claims))? } else { self.sign(&claims)? };
        let permit = Permit { nonce: nonce.to_owned(), jws };
        let spec = BottlerocketShadowSpec { permit: Some(permit), ..shadow.spec.clone() };
        self.leadership.check()?;
        self.write_spec(shadow, &spec).await
    }

    /// Checks that the node is the one of the decision, in the boot of its desired state, claimed, and free of pods, where
    /// there are `rules` for them. Returns what may be signed: a permit for one request of the agent in one boot of one node.
    async fn check_live(
        &self,
        decided_on: &NodeFacts,
        shadow: &ShadowFacts,
        nonce: &str,
        rules: Option<Rules>,
    ) -> Result<PermitClaims, ApplyError> {
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
        let live = NodeFacts::project(&node)
            .map(|live| live.at(self.leadership.now()))
            .ok_or(ApplyError::Changed("the node"))?;
        if live.uid != decided_on.uid || live.boot_id != boot_id {
            return Err(ApplyError::Changed("the node"));
        }
        // The caches of nodes and shadows are not in step: a hold may precede the agent's request.
        if live.held() || !live.labelled || live.deleting {
            return Err(ApplyError::NoPermit("the node is held, leaving, or no longer under the operator".to_owned()));
        }
        if !live.unschedulable || !live.claims.has(ClaimField::Cordon) {
            return Err(ApplyError::NoPermit("the node is not cordoned any more".to_owned()));
        }
        if let Some(pod) = pods.items.iter().find_map(EarlierPod::project) {
            return Err(ApplyError::NoPermit(format!("{} of the earlier operator is on the node", pod.title)));
        }
        let pods: Vec<PodFacts> = pods.items.iter().map(PodFacts::of).collect();
        let drain_status = shadow.status.controller.drain.as_ref();
        // Pods that may be evicted count as well: none may be left.
        let left = rules.and_then(|rules| {
            let sorted = drain::sort(&pods, rules, drain_status);
            sorted.left().next().map(PodFacts::title)
        });
        if let Some(pod) = left {
            return Err(ApplyError::NoPermit(format!("{pod} is on the node")));
        }
        // No drill reboots its host.
        let reboots = shadow.spec.state == HostState::RebootedIntoUpdate;
        if let Some(rules) = rules.filter(|_| reboots) {
            let ended: Vec<&PodFacts> = drain::ended_by_reboot(&pods, rules, drain_status).collect();
            self.check_budgets(&ended).await?;
        }
        if live.control_plane() && reboots {
            self.check_others_of_control_plane(&live).await?;
        }
        Ok(PermitClaims {
            node_uid: live.uid,
            boot_id,
            attempt: shadow.spec.attempt,
            version,
            nonce: nonce.to_owned(),
            host: shadow.spec.host.clone(),
        })
    }

    /// Checks that budgets let each of these pods go now, which the reboot ends. What the eviction of a pod on another node has used of them is in
    /// their status at once, and in the cache a moment later.
    async fn check_budgets(&self, pods: &[&PodFacts]) -> Result<(), ApplyError> {
        let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.namespace.as_str()).collect();
        for namespace in namespaces {
            let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), namespace);
            let all = api.list(&ListParams::default()).await.map_err(ApplyError::api("budget_list"))?;
            let budgets: Vec<BudgetFacts> = all.items.iter().filter_map(BudgetFacts::project).collect();
            for pod in pods.iter().filter(|pod| pod.namespace == namespace && !pod.pending) {
                let over: Vec<&BudgetFacts> = budgets.iter().filter(|budget| budget.selects(pod)).collect();
                // Of several, the eviction API would ask none.
                if let Some(budget) = over.iter().find(|budget| over.len() > 1 || budget.keeps_from_reboot(pod)) {
                    let (budget, pod) = (budget.title(), pod.title());
                    let refusal = format!("the PodDisruptionBudget {budget} allows no disruption of {pod}");
                    return Err(ApplyError::NoPermit(refusal));
                }
            }
        }
        Ok(())
    }

    /// Checks that all other nodes of the control plane are Ready now. Where one has lost its power together with the API server that the watch
    /// of Nodes is connected to, the cache shows it as Ready for as long as that watch may be silent.
    async fn check_others_of_control_plane(&self, node: &NodeFacts) -> Result<(), ApplyError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let labelled = ListParams::default().labels(CONTROL_PLANE_LABEL);
        let all = nodes.list(&labelled).await.map_err(ApplyError::api("node_get"))?;
        let mut others = all.items.iter().filter_map(NodeFacts::project).filter(|other| other.name != node.name);
        match others.find(|other| !other.ready) {
            Some(other) => Err(ApplyError::NoPermit(format!("{} of the control plane is not Ready", other.name))),
            None => Ok(()),
        }
    }
}
