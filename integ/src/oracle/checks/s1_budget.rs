//! S1: never more nodes out of service because of the operator than the budget allows, also with two running
//! controllers.
//!
//! A node is out of service according to its slot, its progress *or* its claim, so that a lost slot hides nothing.
//! Nodes that are not Ready for other reasons use up the budget too, also that of their group. A budget that is lowered
//! while nodes are out cannot be met at once: until it is, no further node may go out.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::Node;

/// Time after which a node that is not Ready is known to every leader. One that fails at the moment of a write cannot
/// be.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(10);

#[derive(Default)]
pub(super) struct Check {
    out: BTreeMap<String, String>,
    /// Nodes (uid) that are not Ready, and since when.
    down: BTreeMap<String, Timestamp>,
}

/// The other nodes that use up the same budget.
struct Others<'a> {
    world: &'a ClusterState,
    out: &'a BTreeMap<String, String>,
    down: BTreeMap<&'a str, &'a Node>,
}

impl Others<'_> {
    /// Returns the names of the nodes that are out of service, the operator's and the others, of those that count.
    fn unavailable(&self, counts: impl Fn(&Node) -> bool) -> Vec<&str> {
        let nodes = self.world.nodes.values().filter(|node| counts(node));
        nodes
            .filter(|node| self.out.contains_key(&node.uid) || self.down.contains_key(node.uid.as_str()))
            .map(|node| node.name.as_str())
            .collect()
    }

    /// The reason why taking this node out of service exceeds a budget.
    fn broken_by(&self, node: &Node, budget: usize) -> Option<String> {
        let operator = self.world.operator.as_ref();
        let all = self.unavailable(|_| true);
        if all.len() > budget {
            let (count, names) = (all.len(), all.join(", "));
            return Some(format!("it went out of service as one of {count} ({names}), {budget} allowed"));
        }
        if let Some(operator) = operator
            && let Some(group) = operator.group_of(node)
            && let Some(limit) = &group.max_unavailable
        {
            let in_group = |other: &Node| operator.group_of(other).is_some_and(|its| its.name == group.name);
            let total = self.world.nodes.values().filter(|node| node.labelled() && in_group(node)).count();
            let (limit, here) = (limit.of(total), self.unavailable(in_group));
            if here.len() > limit {
                let (count, names, name) = (here.len(), here.join(", "), &group.name);
                return Some(format!(
                    "it went out of service as one of {count} ({names}) of group {name}, {limit} allowed"
                ));
            }
        }
        let ours = self.world.nodes.values().filter(|other| self.out.contains_key(&other.uid));
        let elsewhere = ours.filter(|other| other.zone() != node.zone()).map(|other| other.name.as_str()).next();
        match elsewhere {
            Some(other) if operator.is_some_and(|operator| operator.one_zone_at_a_time()) => {
                Some(format!("it went out of service beside {other} of another zone, and one zone is allowed"))
            }
            _ => None,
        }
    }
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, observations: &Observations, verdict: &mut Verdict) {
        let world = moment.world;
        match &moment.change.object {
            Object::Pod(_) | Object::Budget(_) => return,
            Object::Node(node) if node.down() && !moment.change.gone => {
                self.down.entry(node.uid.clone()).or_insert(moment.change.at);
            }
            Object::Node(node) => {
                self.down.remove(&node.uid);
            }
            Object::Shadow(_) | Object::Operator(_) => {}
        }
        let out = world.out_of_service();
        verdict.stats.out_of_service = verdict.stats.out_of_service.max(out.len());
        let policy = world.max_unavailable();
        let budget = observations.expectations.max_unavailable.map_or(policy, |ceiling| policy.min(ceiling));
        let known = |node: &&Arc<Node>| {
            self.down.get(&node.uid).is_some_and(|since| moment.change.at.duration_since(*since) > KNOWN_AFTER)
        };
        let down = world.nodes.values().filter(known).map(|node| (node.uid.as_str(), &**node)).collect();
        let others = Others { world, out: &out, down };
        let new = out.iter().filter(|(uid, _)| !self.out.contains_key(*uid)).map(|(_, name)| name);
        for node in new.filter_map(|name| world.nodes.get(name)) {
            if let Some(text) = others.broken_by(node, budget) {
                verdict.report(Property::S1, Some(moment.revision()), Some(&node.name), text);
            }
        }
        // Removing a hold takes no node out of service.
        self.out = world.out_of_service_or_held();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::Scenario;
    use super::Property;
    use crate::oracle::facts::Field;
    use models::operator::CountOrPercent;
    use models::shadow::Step;

    #[test]
    fn sequential_updates_are_within_max_unavailable() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.update("a");
        scenario.update("b");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.out_of_service, 1);
    }

    #[test]
    fn second_slot_exceeds_max_unavailable() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.take_slot("a");
        scenario.take_slot("b");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn overwritten_slots_of_second_controller_are_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.take_slot("a");
        scenario.claim("a");
        // The second controller does not know the first one's slot.
        scenario.operator(|operator| operator.status.slots.clear());
        scenario.take_slot("b");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn progress_without_slot_or_claim_uses_max_unavailable() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.take_slot("a");
        scenario.step("b", Step::LeavingLoadBalancer);
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn start_without_operator_resource_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.delete_operator();
        scenario.claim("a");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn lowered_max_unavailable_forbids_new_starts_only() {
        let mut scenario = Scenario::new(&["a", "b", "c"]);
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        scenario.take_slot("a");
        scenario.take_slot("b");
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(1)));
        assert_eq!(scenario.judge().violations, []);
        scenario.free_slot("a");
        scenario.take_slot("c");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn percentage_counts_nodes_managed_by_operator() {
        let mut scenario = Scenario::new(&["a", "b", "c", "d"]);
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Percent("50%".into())));
        scenario.take_slot("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
        scenario.take_slot("c");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn scenario_can_lower_expected_max_unavailable() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        scenario.take_slot("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
        scenario.expectations.max_unavailable = Some(1);
        scenario.assert_only(Property::S1);
    }

    fn group(name: &str, tier: &str, limit: u32) -> models::operator::NodeGroup {
        let group =
            serde_json::json!({"name": name, "selector": {"matchLabels": {"tier": tier}}, "maxUnavailable": limit});
        serde_json::from_value(group).unwrap()
    }

    #[test]
    fn node_group_has_its_own_max_unavailable() {
        let mut scenario = Scenario::new(&["a", "b", "c"]);
        scenario.operator(|operator| {
            operator.spec.max_unavailable = Some(CountOrPercent::Count(3));
            operator.spec.node_groups = vec![group("db", "db", 1)];
        });
        for node in ["a", "b"] {
            scenario.set_field(node, "admin", "kubectl", Field::Label("tier".into()), Some("db"));
        }
        scenario.take_slot("a");
        scenario.take_slot("c");
        assert_eq!(scenario.judge().violations, []);
        scenario.take_slot("b");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn one_zone_at_a_time_forbids_second_zone() {
        let mut scenario = Scenario::new(&["a", "b", "c"]);
        scenario.operator(|operator| {
            operator.spec.max_unavailable = Some(CountOrPercent::Count(3));
            operator.spec.strategy = serde_json::from_value(serde_json::json!({"oneZoneAtATime": true})).unwrap();
        });
        for (node, zone) in [("a", "1"), ("b", "1"), ("c", "2")] {
            scenario.set_field(node, "admin", "kubectl", Field::Label(models::names::ZONE_LABEL.into()), Some(zone));
        }
        scenario.take_slot("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
        scenario.take_slot("c");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn unready_node_uses_max_unavailable_after_delay() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.node("b", "", |node| node.ready = false);
        // A leader may not have seen it yet.
        scenario.take_slot("a");
        assert_eq!(scenario.judge().violations, []);
        scenario.free_slot("a");
        scenario.wait(30);
        scenario.take_slot("a");
        scenario.assert_only(Property::S1);
    }

    #[test]
    fn cordon_of_held_node_takes_no_slot() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.take_slot("a");
        scenario.claim("a");
        scenario.hold("a");
        scenario.free_slot("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
        // The user removes the hold, and the cordon is orphaned until it is released.
        let hold = Field::Annotation(models::names::HOLD_ANNOTATION.into());
        scenario.set_field("a", "admin", "kubectl", hold, None);
        assert_eq!(scenario.judge().violations, []);
    }
}
