//! S3: a host never reboots with an evictable pod still on it: there is none at the revision that gives the go, and none at
//! the one that acknowledges `Activated`, but those that were created after the go. The operator's own pods tolerate a cordon:
//! those that come to a node after its drain began, back from it or for the first time, are left to the reboot.

use std::collections::BTreeMap;

use models::names;
use models::shadow::{ArmedPhase, Step};

use super::{Evidence, Moment, Object, Property, Verdict, World};
use crate::oracle::facts::{Pod, Shadow};

#[derive(Default)]
pub(super) struct Check {
    /// The revision at which a pod (uid) was created.
    created: BTreeMap<String, u64>,
    /// The revision at which it was first seen on its node.
    bound: BTreeMap<String, u64>,
    /// The revision at which a node's last drain began.
    drains: BTreeMap<String, u64>,
    /// The revision of the go for a nonce.
    gos: BTreeMap<String, u64>,
}

impl Check {
    fn left(&self, world: &World, node: &str, go: u64) -> Vec<String> {
        let after = |revisions: &BTreeMap<String, u64>, pod: &Pod, since: u64| {
            revisions.get(&pod.uid).is_some_and(|revision| *revision > since)
        };
        let drain = self.drains.get(node);
        let own = |pod: &Pod| {
            pod.namespace == names::SYSTEM_NAMESPACE && drain.is_some_and(|drain| after(&self.bound, pod, *drain))
        };
        // Policy may say that what is being deleted and does not go is left to the reboot.
        let policy = world.nodes.get(node).and_then(|node| world.operator.as_ref()?.drain_of(node));
        let skips = policy.is_some_and(|drain| drain.skip_terminating_after.is_some());
        world
            .evictable_on(node)
            .filter(|pod| !(own(pod) || after(&self.created, pod, go) || (skips && pod.terminating)))
            .map(|pod| pod.title())
            .collect()
    }
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, _: &Evidence, verdict: &mut Verdict) {
        if let Object::Pod(pod) = &moment.change.object {
            self.created.entry(pod.uid.clone()).or_insert(moment.revision());
            if pod.node.is_some() {
                self.bound.entry(pod.uid.clone()).or_insert(moment.revision());
            }
        }
        let Some((new, old)) = moment.shadow() else { return };
        let drains = |step: Option<Step>| matches!(step, Some(Step::LeavingBalancer | Step::Draining));
        if drains(new.step()) && !drains(old.and_then(Shadow::step)) {
            self.drains.insert(new.node().to_owned(), moment.revision());
        }
        if let Some(nonce) = new.go()
            && old.and_then(Shadow::go) != Some(nonce)
        {
            self.gos.insert(nonce.to_owned(), moment.revision());
            let left = self.left(moment.world, new.node(), moment.revision());
            if !left.is_empty() {
                let text = format!("a go was given with {} still on the node", left.join(", "));
                verdict.report(Property::S3, Some(moment.revision()), Some(new.node()), text);
            }
        }
        let activated = |shadow: &Shadow| {
            let armed = shadow.status.agent.armed.as_ref().filter(|armed| armed.phase == ArmedPhase::Activated);
            armed.map(|armed| armed.nonce.clone())
        };
        if let Some(nonce) = activated(new)
            && old.and_then(activated).as_ref() != Some(&nonce)
            && let Some(go) = self.gos.get(&nonce)
        {
            let left = self.left(moment.world, new.node(), *go);
            if !left.is_empty() {
                let text = format!("armed with {} still on the node, there since before the go", left.join(", "));
                verdict.report(Property::S3, Some(moment.revision()), Some(new.node()), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::Story;
    use super::Property;
    use models::names;

    #[test]
    fn a_node_whose_pods_have_left_may_reboot() {
        let mut story = Story::new(&["a", "b"]);
        story.pod("shop/cart-1", "a", "cart");
        story.daemon_pod("kube-system/proxy", "a");
        story.until_drained("a");
        story.order("a");
        story.arming("a");
        story.go("a");
        story.host_arms("a");
        story.activated("a");
        story.host_reboots("a");
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 1);
    }

    #[test]
    fn a_go_with_a_pod_left_is_caught() {
        let mut story = Story::new(&["a"]);
        story.until_order("a");
        story.pod("shop/cart-1", "a", "cart");
        story.arming("a");
        story.go("a");
        story.assert_only(Property::S3);
    }

    #[test]
    fn a_pod_that_is_still_ending_is_still_there() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("a");
        story.evict("shop/cart-1");
        story.order("a");
        story.arming("a");
        story.go("a");
        story.assert_only(Property::S3);
    }

    #[test]
    fn a_finished_pod_may_stay() {
        let mut story = Story::new(&["a"]);
        story.until_order("a");
        story.pod("shop/job-1", "a", "job");
        story.change_pod("shop/job-1", |pod| pod.finished = true);
        story.arming("a");
        story.go("a");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn our_own_pods_may_stay_when_they_come_back_and_not_before() {
        for evicted in [true, false] {
            let mut story = Story::new(&["a"]);
            let pod = |number: u32| format!("{}/controller-{number}", names::SYSTEM_NAMESPACE);
            story.pod(&pod(1), "a", "controller");
            story.until_claimed("a");
            if evicted {
                story.evict(&pod(1));
                story.pod_gone(&pod(1));
                story.pod(&pod(2), "a", "controller");
            }
            story.order("a");
            story.arming("a");
            story.go("a");
            assert_eq!(story.judge().violates(Property::S3), !evicted);
        }
    }

    #[test]
    fn a_pod_that_comes_after_the_go_is_nobodys_fault() {
        let mut story = Story::new(&["a"]);
        story.until_go("a");
        story.pod("shop/cart-1", "a", "cart");
        story.host_arms("a");
        story.activated("a");
        story.host_reboots("a");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_pod_that_was_created_before_the_go_and_bound_after_it_is_caught_unless_it_is_our_own() {
        let own = format!("{}/controller-1", names::SYSTEM_NAMESPACE);
        for (pod, caught) in [("shop/cart-1", true), (own.as_str(), false)] {
            let mut story = Story::new(&["a"]);
            story.unbound_pod(pod, "app");
            story.until_go("a");
            story.change_pod(pod, |pod| pod.node = Some("a".into()));
            story.host_arms("a");
            story.activated("a");
            assert_eq!(story.judge().violates(Property::S3), caught, "{pod}");
        }
    }
}
