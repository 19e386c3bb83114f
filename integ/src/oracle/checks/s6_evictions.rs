//! S6: a pod is removed only under the uid that was seen on a node with a claim.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::Node;

/// The history of one pod.
struct Seen {
    name: (String, String),
    /// True if it was bound to a node while that node was claimed.
    on_a_claimed_node: bool,
    /// Start of its termination: the revision, its node, and true if that node was claimed then.
    deleted: Option<(u64, String, bool)>,
}

#[derive(Default)]
pub(super) struct Check {
    pods: BTreeMap<String, Seen>,
}

impl Check {
    fn look(&mut self, world: &ClusterState, node: &Node) {
        if node.claimed() {
            for pod in world.pods.values().filter(|pod| pod.node.as_deref() == Some(node.name.as_str())) {
                if let Some(seen) = self.pods.get_mut(&pod.uid) {
                    seen.on_a_claimed_node = true;
                }
            }
        }
    }
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, _: &mut Verdict) {
        match &moment.change.object {
            Object::Node(node) => self.look(moment.world, node),
            Object::Pod(pod) => {
                let node = pod.node.as_deref().and_then(|node| moment.world.nodes.get(node));
                let claimed = node.is_some_and(|node| node.claimed());
                let seen = self.pods.entry(pod.uid.clone()).or_insert_with(|| Seen {
                    name: (pod.namespace.clone(), pod.name.clone()),
                    on_a_claimed_node: false,
                    deleted: None,
                });
                seen.on_a_claimed_node |= claimed;
                if (pod.terminating || moment.change.gone) && seen.deleted.is_none() {
                    seen.deleted = Some((moment.revision(), pod.node.clone().unwrap_or_default(), claimed));
                }
            }
            Object::Budget(_) | Object::Shadow(_) | Object::Operator(_) => {}
        }
    }

    fn end(&mut self, _: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        let mut counted = BTreeSet::new();
        for removal in &observations.removals {
            let what = if removal.eviction { "evicted" } else { "deleted" };
            let title = format!("{}/{}", removal.namespace, removal.name);
            if removal.part.is_none() {
                continue;
            }
            let mut report = |revision: Option<u64>, node: Option<&str>, text: String| {
                verdict.report(Property::S6, revision, node, format!("{title} {text} by {}", removal.user));
            };
            let Some(uid) = removal.uid.as_deref() else {
                report(None, None, format!("was {what} under no uid"));
                continue;
            };
            let Some(seen) = self.pods.get(uid) else {
                report(None, None, format!("was {what} under uid {uid}, which no pod ever had"));
                continue;
            };
            if seen.name != (removal.namespace.clone(), removal.name.clone()) {
                report(None, None, format!("was {what} under the uid of {}/{}", seen.name.0, seen.name.1));
            }
            // One received after the pod was terminating only found it terminating.
            let deleted = seen.deleted.as_ref().filter(|(revision, ..)| {
                removal.succeeded && observations.at_latest(*revision).is_none_or(|deleted| removal.received <= deleted)
            });
            match deleted {
                Some((revision, node, false)) => {
                    report(Some(*revision), Some(node), format!("was {what} from a node that was not claimed"));
                }
                None if !seen.on_a_claimed_node => {
                    report(None, None, format!("was to be {what} from a node that was never claimed"));
                }
                Some(_) | None => {}
            }
            if deleted.is_some() && removal.eviction && counted.insert(uid) {
                verdict.stats.evictions += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::{CONTROLLER, Scenario};
    use super::Property;

    #[test]
    fn eviction_with_pod_uid_from_claimed_node_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        scenario.evict("shop/cart-1");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 1);
    }

    #[test]
    fn eviction_by_other_client_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.evict_as("admin", "shop/cart-1", None, 201);
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn eviction_without_uid_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        scenario.evict_as(CONTROLLER, "shop/cart-1", None, 201);
        scenario.assert_only(Property::S6);
    }

    #[test]
    fn eviction_with_uid_of_other_pod_is_detected_even_if_refused() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.pod("shop/cart-2", "b", "cart");
        scenario.until_claimed("a");
        let other = scenario.uid_of("shop/cart-2");
        scenario.evict_as(CONTROLLER, "shop/cart-1", Some(&other), 409);
        scenario.assert_only(Property::S6);
    }

    #[test]
    fn eviction_from_unclaimed_node_is_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("b");
        scenario.evict("shop/cart-1");
        scenario.assert_only(Property::S6);
    }

    #[test]
    fn eviction_after_release_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        scenario.release("a");
        scenario.evict("shop/cart-1");
        scenario.assert_only(Property::S6);
    }

    #[test]
    fn eviction_of_terminating_pod_from_claimed_node_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.change_pod("shop/cart-1", |pod| pod.terminating = true);
        scenario.until_claimed("a");
        scenario.evict("shop/cart-1");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 0);
    }

    #[test]
    fn blocked_eviction_is_accepted_and_not_counted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        let uid = scenario.uid_of("shop/cart-1");
        scenario.evict_as(CONTROLLER, "shop/cart-1", Some(&uid), 429);
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 0);
    }
}
