//! S6: a pod is removed only under the uid that was seen on a node with a claim.

use std::collections::{BTreeMap, BTreeSet};

use super::{Evidence, Moment, Object, Property, Verdict, World};
use crate::oracle::facts::Node;

/// The history of one pod.
struct Seen {
    name: (String, String),
    /// True if it was bound to a node while that node was claimed.
    on_a_claimed_node: bool,
    /// Start of its termination: the revision, its node, and true if that node was claimed then.
    told: Option<(u64, String, bool)>,
}

#[derive(Default)]
pub(super) struct Check {
    pods: BTreeMap<String, Seen>,
}

impl Check {
    fn look(&mut self, world: &World, node: &Node) {
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
    fn at(&mut self, moment: &Moment, _: &Evidence, _: &mut Verdict) {
        match &moment.change.object {
            Object::Node(node) => self.look(moment.world, node),
            Object::Pod(pod) => {
                let node = pod.node.as_deref().and_then(|node| moment.world.nodes.get(node));
                let claimed = node.is_some_and(|node| node.claimed());
                let seen = self.pods.entry(pod.uid.clone()).or_insert_with(|| Seen {
                    name: (pod.namespace.clone(), pod.name.clone()),
                    on_a_claimed_node: false,
                    told: None,
                });
                seen.on_a_claimed_node |= claimed;
                if (pod.terminating || moment.change.gone) && seen.told.is_none() {
                    seen.told = Some((moment.revision(), pod.node.clone().unwrap_or_default(), claimed));
                }
            }
            Object::Budget(_) | Object::Shadow(_) | Object::Operator(_) => {}
        }
    }

    fn end(&mut self, _: &World, evidence: &Evidence, verdict: &mut Verdict) {
        let mut counted = BTreeSet::new();
        for removal in &evidence.removals {
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
            let told = seen.told.as_ref().filter(|(revision, ..)| {
                removal.succeeded && evidence.at_latest(*revision).is_none_or(|told| removal.received <= told)
            });
            match told {
                Some((revision, node, false)) => {
                    report(Some(*revision), Some(node), format!("was {what} from a node that was not claimed"));
                }
                None if !seen.on_a_claimed_node => {
                    report(None, None, format!("was to be {what} from a node that was never claimed"));
                }
                Some(_) | None => {}
            }
            if told.is_some() && removal.eviction && counted.insert(uid) {
                verdict.stats.evictions += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::{CONTROLLER, Story};
    use super::Property;

    #[test]
    fn a_pod_of_a_claimed_node_is_evicted_under_its_uid() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("a");
        story.evict("shop/cart-1");
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 1);
    }

    #[test]
    fn what_others_evict_is_not_ours() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.evict_as("admin", "shop/cart-1", None, 201);
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn an_eviction_without_a_uid_is_caught() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("a");
        story.evict_as(CONTROLLER, "shop/cart-1", None, 201);
        story.assert_only(Property::S6);
    }

    #[test]
    fn an_eviction_under_the_uid_of_another_pod_is_caught_even_if_it_was_refused() {
        let mut story = Story::new(&["a", "b"]);
        story.pod("shop/cart-1", "a", "cart");
        story.pod("shop/cart-2", "b", "cart");
        story.until_claimed("a");
        let other = story.uid_of("shop/cart-2");
        story.evict_as(CONTROLLER, "shop/cart-1", Some(&other), 409);
        story.assert_only(Property::S6);
    }

    #[test]
    fn an_eviction_from_a_node_that_is_not_claimed_is_caught() {
        let mut story = Story::new(&["a", "b"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("b");
        story.evict("shop/cart-1");
        story.assert_only(Property::S6);
    }

    #[test]
    fn an_eviction_after_the_release_is_caught() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("a");
        story.release("a");
        story.evict("shop/cart-1");
        story.assert_only(Property::S6);
    }

    #[test]
    fn a_pod_that_others_had_told_to_go_may_be_evicted_once_its_node_is_claimed() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.change_pod("shop/cart-1", |pod| pod.terminating = true);
        story.until_claimed("a");
        story.evict("shop/cart-1");
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 0);
    }

    #[test]
    fn a_blocked_eviction_from_a_claimed_node_is_right_and_counts_as_none() {
        let mut story = Story::new(&["a"]);
        story.pod("shop/cart-1", "a", "cart");
        story.until_claimed("a");
        let uid = story.uid_of("shop/cart-1");
        story.evict_as(CONTROLLER, "shop/cart-1", Some(&uid), 429);
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.evictions, 0);
    }
}
