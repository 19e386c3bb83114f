//! S3: a host never reboots with an evictable pod still on it: there is none at the revision that issues the permit,
//! and none at the one that acknowledges `Activated`, except those created after the permit.
//!
//! Pods that tolerate a cordon, as the operator's own do, may come to a node during a drain. They are evicted once: one
//! that came after the drain began, of an owner that has lost a pod there since, is left to the reboot. So is one that
//! was bound after the agent had requested its permit: between the last check of the pods and the permit nothing keeps
//! it away, and nothing waits for it.

use std::collections::{BTreeMap, BTreeSet};

use models::shadow::{ArmedPhase, HostState, Step};

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::{Pod, Shadow};

#[derive(Default)]
pub(super) struct Check {
    /// The revision at which a pod (uid) was created.
    created: BTreeMap<String, u64>,
    /// The revision at which it was first seen on its node.
    bound: BTreeMap<String, u64>,
    /// The revision at which a node's last drain began.
    drains: BTreeMap<String, u64>,
    /// By node, the owners (uid) that have lost a pod there since then.
    lost: BTreeMap<String, BTreeSet<String>>,
    /// The revision at which the agent requested a permit with a nonce.
    asked: BTreeMap<String, u64>,
    /// The revision of the permit for a nonce.
    permits: BTreeMap<String, u64>,
}

/// The nonce for which the host is about to arm, or has armed.
fn asks(shadow: &Shadow) -> Option<&str> {
    shadow.status.agent.armed.as_ref().map(|armed| armed.nonce.as_str())
}

/// The nonce that is acknowledged as armed.
fn activated(shadow: &Shadow) -> Option<&str> {
    let armed = shadow.status.agent.armed.as_ref().filter(|armed| armed.phase == ArmedPhase::Activated);
    armed.map(|armed| armed.nonce.as_str())
}

impl Check {
    /// The pods that should not be on a node that has a permit for this nonce since the revision `permit`.
    fn left(&self, world: &ClusterState, node: &str, nonce: &str, permit: u64) -> Vec<String> {
        let asked = self.asked.get(nonce).copied().unwrap_or(permit);
        let came_after = |since: u64, pod: &Pod| self.bound.get(&pod.uid).is_some_and(|bound| *bound > since);
        let came_back = |pod: &Pod| {
            let lost = |(_, owner): &(String, String)| self.lost.get(node).is_some_and(|lost| lost.contains(owner));
            pod.controller.as_ref().is_some_and(lost)
                && self.drains.get(node).is_some_and(|drain| came_after(*drain, pod))
        };
        let new = |pod: &Pod| self.created.get(&pod.uid).is_some_and(|created| *created > permit);
        // Policy may leave pods that are being deleted and do not end to the reboot.
        let policy = world.nodes.get(node).and_then(|node| world.operator.as_ref()?.drain_of(node));
        let skips = policy.is_some_and(|drain| drain.skip_terminating_after.is_some());
        world
            .evictable_on(node)
            .filter(|pod| !(pod.tolerates_cordon && (came_back(pod) || came_after(asked, pod))))
            .filter(|pod| !(new(pod) || (skips && pod.terminating)))
            .map(|pod| {
                let at = |revisions: &BTreeMap<String, u64>, key: &str| revisions.get(key).copied().unwrap_or_default();
                let (bound, drain) = (at(&self.bound, &pod.uid), at(&self.drains, node));
                let tolerates = if pod.tolerates_cordon { "tolerates" } else { "does not tolerate" };
                format!(
                    "{} (bound at {bound}, {tolerates} the cordon; drain at {drain}, request at {asked})",
                    pod.title()
                )
            })
            .collect()
    }

    fn pod(&mut self, pod: &Pod, moment: &RevisionContext) {
        let revision = moment.revision();
        self.created.entry(pod.uid.clone()).or_insert(revision);
        let Some(node) = &pod.node else { return };
        self.bound.entry(pod.uid.clone()).or_insert(revision);
        let leaves = pod.terminating || moment.change.gone;
        if let (true, Some((_, owner))) = (leaves, &pod.controller) {
            self.lost.entry(node.clone()).or_default().insert(owner.clone());
        }
    }
}

/// Returns true if the permit is one of a drill that evicts no pods, by which no host reboots.
fn rehearses_only(shadow: &Shadow) -> bool {
    let drill = shadow.status.controller.progress.as_ref().and_then(|progress| progress.drill.as_ref());
    shadow.spec.state == HostState::RehearsedUpdate && drill.is_some_and(|drill| !drill.evict)
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        if let Object::Pod(pod) = &moment.change.object {
            self.pod(pod, moment);
        }
        let Some((new, old)) = moment.shadow() else { return };
        let drains = |step: Option<Step>| matches!(step, Some(Step::LeavingLoadBalancer | Step::Draining));
        let before = old.and_then(Shadow::step);
        // A drain that is resumed, because a pod came after its end, is the same one.
        if drains(new.step()) && !drains(before) && before != Some(Step::Rebooting) {
            self.drains.insert(new.node().to_owned(), moment.revision());
            self.lost.remove(new.node());
        }
        if let Some(nonce) = asks(new) {
            self.asked.entry(nonce.to_owned()).or_insert(moment.revision());
        }
        if let Some(nonce) = new.permit_nonce()
            && old.and_then(Shadow::permit_nonce) != Some(nonce)
        {
            self.permits.insert(nonce.to_owned(), moment.revision());
            let stays = |pods: Vec<String>| if rehearses_only(new) { Vec::new() } else { pods };
            let left = self.left(moment.world, new.node(), nonce, moment.revision());
            let left = stays(left);
            if !left.is_empty() {
                let text = format!("a permit was issued with {} still on the node", left.join(", "));
                verdict.report(Property::S3, Some(moment.revision()), Some(new.node()), text);
            }
        }
        if let Some(nonce) = activated(new)
            && old.and_then(activated) != Some(nonce)
            && let Some(permit) = self.permits.get(nonce)
        {
            let left = self.left(moment.world, new.node(), nonce, *permit);
            if !left.is_empty() {
                let text = format!("armed with {} still on the node, there since before the permit", left.join(", "));
                verdict.report(Property::S3, Some(moment.revision()), Some(new.node()), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::Scenario;
    use super::{Property, Step};
    use models::names;

    /// The operator's own pod of this number.
    fn own(number: u32) -> String {
        format!("{}/controller-{number}", names::SYSTEM_NAMESPACE)
    }

    /// Sets the desired state to reboot; the agent requests its permit and gets it.
    fn order_and_permit(scenario: &mut Scenario) {
        scenario.request_reboot("a");
        scenario.arming("a");
        scenario.issue_permit("a");
    }

    /// The event after which a pod is bound.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum After {
        Order,
        Question,
        Permit,
    }

    #[test]
    fn reboot_of_drained_node_is_accepted() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.daemon_pod("kube-system/proxy", "a");
        scenario.until_drained("a");
        order_and_permit(&mut scenario);
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 1);
    }

    #[test]
    fn permit_with_remaining_pod_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_reboot_requested("a");
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.arming("a");
        scenario.issue_permit("a");
        scenario.assert_only(Property::S3);
    }

    #[test]
    fn permit_with_terminating_pod_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        scenario.evict("shop/cart-1");
        order_and_permit(&mut scenario);
        scenario.assert_only(Property::S3);
    }

    #[test]
    fn permit_with_finished_pod_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_reboot_requested("a");
        scenario.pod("shop/job-1", "a", "job");
        scenario.change_pod("shop/job-1", |pod| pod.finished = true);
        scenario.arming("a");
        scenario.issue_permit("a");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn only_recreated_pods_that_tolerate_cordon_may_remain() {
        // Toleration of the pods, eviction of the first one, owner of the second one, if there is one.
        for (sentence, tolerates, leaves, second, caught) in [
            ("there since before the drain", true, false, None, true),
            ("back after its eviction", true, true, Some("addon"), false),
            ("there beside the first, which stays", true, false, Some("addon"), true),
            ("of a new owner, in mid-drain", true, true, Some("next-addon"), true),
            ("back after its eviction without tolerating the cordon", false, true, Some("addon"), true),
        ] {
            let mut scenario = Scenario::new(&["a"]);
            let pod = |scenario: &mut Scenario, title: &str, owner: &str| {
                scenario.pod(title, "a", owner);
                scenario.change_pod(title, |pod| pod.tolerates_cordon = tolerates);
            };
            pod(&mut scenario, "kube-system/addon-1", "addon");
            scenario.until_claimed("a");
            if leaves {
                scenario.evict("kube-system/addon-1");
                scenario.pod_gone("kube-system/addon-1");
            }
            if let Some(owner) = second {
                pod(&mut scenario, "kube-system/addon-2", owner);
            }
            order_and_permit(&mut scenario);
            assert_eq!(scenario.judge().violates(Property::S3), caught, "{sentence}");
        }
    }

    #[test]
    fn operator_pod_recreated_after_deletion_during_drain_may_remain() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod(&own(1), "a", "controller");
        scenario.until_claimed("a");
        scenario.change_pod(&own(1), |pod| pod.terminating = true);
        scenario.pod_gone(&own(1));
        scenario.pod(&own(2), "a", "controller");
        order_and_permit(&mut scenario);
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn operator_pod_present_at_drain_start_may_not_remain() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod(&own(1), "a", "controller");
        scenario.change_pod(&own(1), |pod| pod.terminating = true);
        scenario.pod(&own(2), "a", "controller");
        scenario.until_claimed("a");
        scenario.pod_gone(&own(1));
        order_and_permit(&mut scenario);
        scenario.assert_only(Property::S3);
    }

    #[test]
    fn operator_pod_created_during_drain_may_remain_after_drain_restart() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod(&own(1), "a", "controller");
        scenario.until_claimed("a");
        scenario.pod(&own(2), "a", "controller");
        scenario.evict(&own(1));
        scenario.pod_gone(&own(1));
        scenario.request_reboot("a");
        scenario.step("a", Step::Draining);
        order_and_permit(&mut scenario);
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn eviction_in_earlier_drain_does_not_allow_recreated_pod_in_later_drain() {
        for comes_in_the_later_one in [false, true] {
            let mut scenario = Scenario::new(&["a"]);
            scenario.pod(&own(1), "a", "controller");
            scenario.until_claimed("a");
            scenario.evict(&own(1));
            scenario.pod_gone(&own(1));
            scenario.step("a", Step::Staged);
            if !comes_in_the_later_one {
                scenario.pod(&own(2), "a", "controller");
            }
            scenario.step("a", Step::Draining);
            if comes_in_the_later_one {
                scenario.pod(&own(2), "a", "controller");
            }
            order_and_permit(&mut scenario);
            assert!(scenario.judge().violates(Property::S3), "{comes_in_the_later_one}");
        }
    }

    #[test]
    fn pod_created_after_permit_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn only_operator_pod_may_bind_between_permit_request_and_acknowledgement() {
        let own = own(1);
        for (sentence, pod, at, caught) in [
            ("a workload's, after the permit", "shop/cart-1", After::Permit, true),
            ("a workload's, after the question", "shop/cart-1", After::Question, true),
            ("the operator's own, after the permit", &own, After::Permit, false),
            ("the operator's own, after the question", &own, After::Question, false),
            ("the operator's own, after the order", &own, After::Order, true),
        ] {
            let mut scenario = Scenario::new(&["a"]);
            scenario.unbound_pod(pod, "app");
            scenario.until_reboot_requested("a");
            let bind = |scenario: &mut Scenario, now: After| {
                if now == at {
                    scenario.change_pod(pod, |pod| pod.node = Some("a".into()));
                }
            };
            bind(&mut scenario, After::Order);
            scenario.arming("a");
            bind(&mut scenario, After::Question);
            scenario.issue_permit("a");
            bind(&mut scenario, After::Permit);
            scenario.host_arms("a");
            scenario.activated("a");
            assert_eq!(scenario.judge().violates(Property::S3), caught, "{sentence}");
        }
    }
}
