//! S12: never more nodes taken to a version by permits of the operator than the places of the canary steps that are passed and of
//! the one due, and until a node has proven the version, one goes alone.
//!
//! The operator's own count of places is not read: what nodes run, the ends of their attempts, users' approvals and policy are. A
//! ledger that a test wrote in place of nodes that are gone counts as these nodes.

use std::collections::{BTreeMap, BTreeSet};

use models::names::REMOVAL_TAINTS;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorSpec, CanaryStep, StepApproval};
use models::shadow::{HostState, Place, UPDATED};
use semver::Version;

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::{Field, Node, Operator, Shadow};

/// Variant, architecture and version.
type Key = (String, String, Version);

fn key_of(active: &ActiveRollout) -> Key {
    (active.variant.clone(), active.arch.clone(), active.version.clone())
}

/// Returns whether policy takes a node on any later version back: its target is one version.
fn leads_back(spec: &BottlerocketUpdateOperatorSpec) -> bool {
    let target = spec.version.as_ref().and_then(|version| version.target.as_deref());
    target.is_some_and(|target| target.trim_start_matches('v').parse::<Version>().is_ok())
}

/// A node whose reboot into the version was permitted.
#[derive(Default)]
struct Taken {
    name: String,
    proven: bool,
    /// True once its failure on the version is resolved, which frees the place.
    freed: bool,
    under_way: bool,
    /// True while it has a slot. One that is not back at the deadline gives it up, and may come back to the version later.
    has_slot: bool,
    /// The boot in which its reboot was permitted.
    boot_id: String,
    /// True once an autoscaler or a user has removed it, with its machine: it is not waited for.
    removed: bool,
}

#[derive(Default)]
struct Rollout {
    /// By the uid of the Node. A node that was deleted keeps its place, also where its machine is registered as another Node.
    taken: BTreeMap<String, Taken>,
    /// Uids of the nodes that were seen on another version, of this kind or of one that is not known. A share of them is at least that of the
    /// operator, and a share of the fewest that were taken or left at a permit is at most that. Those on a later version count among the fewest
    /// only where policy names the version: of a range, it is not known here which of them it takes back.
    to_update: BTreeSet<String>,
    fewest: usize,
    /// Nodes that have proven it before the history begins.
    given: usize,
    /// Places of steps that a user has approved, and whether without a proof.
    approved: BTreeSet<(usize, bool)>,
    /// Places of the last step that was passed.
    passed: usize,
}

impl Rollout {
    fn proven(&self) -> usize {
        self.given + self.taken.values().filter(|node| node.proven).count()
    }

    fn used(&self) -> usize {
        self.given + self.taken.values().filter(|node| !node.freed).count()
    }

    /// Frees the place of a proven node that is gone: once no node runs the version at the end of a soak, another one takes its place.
    fn free_one_that_is_gone(&mut self, world: &ClusterState) {
        let is_gone = |uid: &String| !world.nodes.values().any(|node| node.uid == *uid);
        let mut gone = self.taken.iter_mut().filter(|(uid, taken)| taken.proven && !taken.freed && is_gone(uid));
        if let Some((_, taken)) = gone.next() {
            taken.freed = true;
        }
    }

    /// Returns the most places that the step due may have; `None` where all are passed, or there are none.
    fn due(&mut self, spec: &BottlerocketUpdateOperatorSpec) -> Option<usize> {
        let (mut least, mut most) = (0, 0);
        for step in spec.strategy.iter().flat_map(|strategy| &strategy.canary) {
            let places = |nodes: usize, before: usize| step.nodes.rounded_up(nodes).max(before + 1);
            let before = least;
            least = places(self.given + self.fewest, before);
            most = places(self.given + self.to_update.len(), most);
            let mut named = self.approved.iter().filter(|(places, _)| (before + 1..=most).contains(places)).peekable();
            let approved = named.peek().is_some() || step.approval.unwrap_or_default() == StepApproval::Automatic;
            let accepted = named.any(|(_, unproven)| *unproven);
            let passes = approved && (accepted || self.proven() >= least);
            if most > self.passed && !passes {
                return Some(most);
            }
            self.passed = self.passed.max(most);
        }
        None
    }
}

/// Returns whether a canary step has a soak.
fn soaks(spec: &BottlerocketUpdateOperatorSpec) -> bool {
    spec.strategy.iter().flat_map(|strategy| &strategy.canary).any(|step| step.soak.is_some())
}

#[derive(Default)]
pub(super) struct Check {
    rollouts: BTreeMap<Key, Rollout>,
    approvals: String,
    /// The canary steps of policy, once it is seen.
    steps: Option<Vec<CanaryStep>>,
    /// Uids of the nodes that have had a slot since before policy had these steps: what has begun is finished.
    begun: BTreeSet<String>,
    /// The last uid of each machine, by the name of its Node and that of its cloud.
    machines: BTreeMap<(String, String), String>,
}

impl Check {
    fn read_approval(&mut self, operator: &Operator) {
        if operator.approve_step != self.approvals {
            self.approvals.clone_from(&operator.approve_step);
            let names = operator.approve_step.split('@').next().unwrap_or_default().split(',');
            for name in names {
                let mut parts = name.trim().split('/');
                let number = parts.next().and_then(|number| number.parse::<i64>().ok());
                let places = parts.next().and_then(|places| places.parse::<usize>().ok());
                let (Some(number), Some(places)) = (number, places) else { continue };
                let unproven = parts.next() == Some("unproven");
                for active in operator.status.active_rollouts.iter().filter(|active| active.number() == number) {
                    self.rollouts.entry(key_of(active)).or_default().approved.insert((places, unproven));
                }
            }
        }
    }

    fn read_steps(&mut self, operator: &Operator) {
        let steps = operator.spec.strategy.as_ref().map(|strategy| strategy.canary.clone()).unwrap_or_default();
        let slots = || operator.status.slots.iter().map(|slot| slot.uid.clone()).collect::<BTreeSet<String>>();
        if self.steps.replace(steps.clone()).is_some_and(|before| before != steps) {
            self.begun = slots();
        } else if !self.begun.is_empty() {
            let slots = slots();
            self.begun.retain(|uid| slots.contains(uid));
        }
    }

    /// Reads a ledger that a test wrote.
    fn read_ledgers(&mut self, operator: &Operator) {
        for active in &operator.status.active_rollouts {
            let Some(ledger) = &active.ledger else { continue };
            self.rollouts.entry(key_of(active)).or_default().given = usize::try_from(ledger.good()).unwrap_or(0);
        }
    }

    /// Follows a machine that is registered as another Node.
    fn read_machine(&mut self, node: &Node) {
        let machine = (node.name.clone(), node.provider_id.clone());
        let before = self.machines.insert(machine, node.uid.clone()).filter(|before| *before != node.uid);
        let Some(before) = before.filter(|_| !node.provider_id.is_empty()) else { return };
        for rollout in self.rollouts.values_mut() {
            if let Some(taken) = rollout.taken.remove(&before) {
                rollout.taken.insert(node.uid.clone(), taken);
            }
            if rollout.to_update.remove(&before) {
                rollout.to_update.insert(node.uid.clone());
            }
        }
    }

    /// Follows a node that is gone. One that an autoscaler or a user was removing has no slot any more, and no place either unless it had left its
    /// boot.
    fn read_gone(&mut self, node: &Node) {
        let taints = node.fields.get(&Field::Taints).map(String::as_str).unwrap_or_default();
        if !REMOVAL_TAINTS.iter().any(|taint| taints.contains(taint)) {
            return;
        }
        for taken in self.rollouts.values_mut().filter_map(|rollout| rollout.taken.get_mut(&node.uid)) {
            taken.removed = true;
            taken.freed |= taken.boot_id == node.boot_id;
        }
    }

    fn read_nodes(&mut self, world: &ClusterState) {
        for shadow in world.shadows.values() {
            if let Some((_, uid)) = &shadow.owner {
                self.read_node(uid, shadow);
            }
        }
    }

    /// Notes what a node runs and how its attempts ended.
    fn read_node(&mut self, uid: &str, new: &Shadow) {
        let agent = &new.status.agent;
        let controller = &new.status.controller;
        for (key, rollout) in &mut self.rollouts {
            let runs = agent.current_version.as_ref() == Some(&key.2);
            let differs = |own: &Option<String>, of: &String| own.as_ref().is_some_and(|own| own != of);
            if differs(&agent.variant, &key.0) || differs(&agent.arch, &key.1) {
                rollout.to_update.remove(uid);
            } else if !runs {
                rollout.to_update.insert(uid.to_owned());
            }
            let Some(taken) = rollout.taken.get_mut(uid) else { continue };
            // One that failed, and stages the image once more, waits for its turn.
            let progress = controller.progress.as_ref().filter(|progress| {
                let is_update = !progress.mode().is_verification() && progress.drill.is_none();
                is_update && progress.version == key.2 && progress.step.place() != Place::Waiting
            });
            taken.under_way = progress.is_some();
            taken.has_slot = progress.is_some_and(|progress| !progress.may_still_reboot());
            let failures = controller.record.iter().flat_map(|record| &record.version_failures);
            let mut own = failures.filter(|failure| failure.version == key.2).peekable();
            let failed = own.peek().is_some();
            let unresolved = own.any(|failure| failure.resolved_by.is_none());
            let last = controller.record.as_ref().and_then(|record| record.last.as_ref());
            taken.proven |= !taken.under_way && last.is_some_and(|l| l.version == key.2 && l.reason == UPDATED);
            taken.freed |= !taken.under_way && failed && !unresolved;
            let left = !taken.under_way && !runs && !unresolved && agent.armed.is_none();
            if left && new.spec.permit.is_none() {
                rollout.taken.remove(uid);
                if rollout.taken.is_empty() {
                    (rollout.passed, rollout.approved) = (0, BTreeSet::new());
                }
            }
        }
    }
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        if let (Object::Operator(operator), false) = (&moment.change.object, moment.change.gone)
            && moment.world.operator.as_ref().is_some_and(|active| active.name == operator.name)
        {
            self.read_approval(operator);
            self.read_steps(operator);
            if moment.writer.is_some() && moment.part().is_none() && self.rollouts.is_empty() {
                self.read_ledgers(operator);
            }
        }
        match &moment.change.object {
            Object::Node(node) if moment.change.gone => self.read_gone(node),
            Object::Node(node) => self.read_machine(node),
            _ => {}
        }
        let Some((new, old)) = moment.shadow() else { return };
        let Some((name, uid)) = &new.owner else { return };
        let permitted = new.permit_nonce().filter(|nonce| old.and_then(Shadow::permit_nonce) != Some(nonce));
        if permitted.is_some()
            && new.spec.state == HostState::RebootedIntoUpdate
            && let Some(version) = &new.spec.version
        {
            let agent = &new.status.agent;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let key = (text(&agent.variant), text(&agent.arch), version.clone());
            let is_run = moment.world.shadows.values().any(|shadow| {
                let other = &shadow.status.agent;
                let is_of_kind = (&other.variant, &other.arch) == (&agent.variant, &agent.arch);
                is_of_kind && other.current_version.as_ref() == Some(version)
            });
            if !self.rollouts.contains_key(&key) {
                self.rollouts.insert(key.clone(), Rollout::default());
                self.read_nodes(moment.world);
            }
            let rollout = self.rollouts.entry(key).or_default();
            if !is_run && moment.world.operator.as_ref().is_some_and(|operator| soaks(&operator.spec)) {
                rollout.free_one_that_is_gone(moment.world);
            }
            if rollout.taken.is_empty() {
                rollout.fewest = rollout.to_update.len();
            }
            let has_place = rollout.taken.get(uid).is_some_and(|taken| !taken.freed);
            let boot_id = moment.world.nodes.get(name).map(|node| node.boot_id.clone()).unwrap_or_default();
            let taken = Taken { name: name.clone(), under_way: true, has_slot: true, boot_id, ..Taken::default() };
            rollout.taken.entry(uid.clone()).or_insert(taken).freed = false;
            let leads_back = moment.world.operator.as_ref().is_some_and(|operator| leads_back(&operator.spec));
            let is_left = |shadow: &Shadow| {
                let is_owner = |uid: &String| rollout.to_update.contains(uid) && !rollout.taken.contains_key(uid);
                let is_later = || shadow.status.agent.current_version.as_ref().is_some_and(|runs| runs > version);
                shadow.owner.as_ref().is_some_and(|(_, uid)| is_owner(uid)) && (leads_back || !is_later())
            };
            let left = moment.world.shadows.values().filter(|shadow| is_left(shadow)).count();
            rollout.fewest = rollout.fewest.min(rollout.taken.len() + left);
            if let Some(operator) = moment.world.operator.as_ref().filter(|_| !has_place && !self.begun.contains(uid)) {
                let due = rollout.due(&operator.spec);
                let (used, proven) = (rollout.used(), rollout.proven());
                let accepted = rollout.approved.iter().any(|(_, unproven)| *unproven);
                let others =
                    rollout.taken.iter().filter(|(other, taken)| *other != uid && taken.has_slot && !taken.removed);
                let others: Vec<&str> = others.map(|(_, taken)| taken.name.as_str()).collect();
                let text = match due {
                    Some(due) if used > due => Some(format!("{used} nodes are taken to {version}, and {due} may be")),
                    _ if proven == 0 && !accepted && !others.is_empty() => {
                        Some(format!("it is taken to {version} beside {}, and none has proven it", others.join(", ")))
                    }
                    _ => None,
                };
                if let Some(text) = text {
                    verdict.report(Property::S12, Some(moment.revision()), Some(name), text);
                }
            }
        }
        self.read_node(uid, new);
    }
}

#[cfg(test)]
mod tests {
    use models::operator::{
        ActiveRollout, CanaryStep, CountOrPercent, RecordedRevision, RolloutLedger, RolloutPhase, RolloutRecord,
        StepApproval, StrategyPolicy,
    };
    use models::shadow::Step;

    use super::super::super::scenario::Scenario;
    use super::{Field, Property};

    fn canary(nodes: &[&str], steps: &[CountOrPercent], approval: StepApproval) -> Scenario {
        let mut scenario = Scenario::new(nodes);
        let step = |nodes: &CountOrPercent| CanaryStep { nodes: nodes.clone(), soak: None, approval: Some(approval) };
        let canary = steps.iter().map(step).collect();
        scenario.operator(|operator| {
            operator.spec.max_unavailable = Some(CountOrPercent::Count(9));
            operator.spec.strategy = Some(StrategyPolicy { canary, ..StrategyPolicy::default() });
        });
        scenario
    }

    fn approve(scenario: &mut Scenario, value: &str) {
        let record = RolloutRecord {
            number: 7,
            begun: scenario.now(),
            first: None,
            revision: RecordedRevision::default(),
            phase: RolloutPhase::Running,
            ended: None,
            first_estimate: None,
        };
        let begun = ActiveRollout::new("1.20.5".parse().unwrap(), String::new(), String::new(), scenario.now());
        scenario.operator(|operator| {
            operator.status.active_rollouts = vec![ActiveRollout { record: Some(record), ..begun }];
            operator.approve_step = value.to_owned();
        });
    }

    #[track_caller]
    fn assert_passes(scenario: &Scenario, passes: bool, sentence: &str) {
        if passes {
            assert_eq!(scenario.judge().violations, [], "{sentence}");
        } else {
            scenario.assert_only(Property::S12);
        }
    }

    /// Asserts whether `b` may be taken to the version after this approval.
    #[track_caller]
    fn assert_next_passes(scenario: &mut Scenario, approval: &str, passes: bool) {
        approve(scenario, approval);
        scenario.until_permit("b");
        assert_passes(scenario, passes, approval);
    }

    const ONE: CountOrPercent = CountOrPercent::Count(1);

    #[test]
    fn proven_steps_let_further_nodes_go() {
        let mut scenario = canary(&["a", "b", "c"], &[ONE], StepApproval::Automatic);
        scenario.update("a");
        scenario.until_permit("b");
        scenario.until_permit("c");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn node_beyond_places_is_detected_however_those_before_it_ended() {
        for reason in ["HookTimedOut", "HealthUnknown", "Released"] {
            let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
            scenario.update_ending("a", reason);
            assert_eq!(scenario.judge().violations, []);
            scenario.until_permit("b");
            scenario.assert_only(Property::S12);
        }
    }

    #[test]
    fn place_of_deleted_node_stays_used() {
        let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
        scenario.update_ending("a", "HealthUnknown");
        scenario.delete_node("a");
        scenario.until_permit("b");
        scenario.assert_only(Property::S12);
    }

    #[test]
    fn place_of_proven_node_that_is_gone_is_free_where_none_soaks() {
        for (sentence, soak, passes) in [("no soak", None, false), ("a soak", Some("1h"), true)] {
            let steps = [ONE, CountOrPercent::Count(3)];
            let mut scenario = canary(&["a", "b", "c", "d"], &steps, StepApproval::Automatic);
            scenario.operator(|operator| {
                let first = &mut operator.spec.strategy.as_mut().unwrap().canary[0];
                first.soak = soak.map(|soak: &str| soak.parse().unwrap());
            });
            scenario.update("a");
            scenario.delete_node("a");
            scenario.update("b");
            scenario.until_permit("c");
            assert_eq!(scenario.judge().violations, [], "{sentence}");
            scenario.until_permit("d");
            assert_passes(&scenario, passes, sentence);
        }
    }

    #[test]
    fn machine_that_is_registered_again_proves_its_own_place_alone() {
        for (machine, passes) in [("cloud:///a", true), ("cloud:///other", false)] {
            let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
            scenario.update_ending("a", "HealthUnknown");
            scenario.register_again("a", machine);
            scenario.until_permit("b");
            assert_passes(&scenario, passes, machine);
        }
    }

    #[test]
    fn place_of_node_that_left_version_is_free() {
        let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
        scenario.update_ending("a", "HealthUnknown");
        scenario.host_reboots_by_hand("a");
        scenario.agent("a", |agent| agent.current_version = Some("1.20.0".parse().unwrap()));
        scenario.until_permit("b");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn share_is_counted_over_nodes_that_have_to_be_updated() {
        let percent = CountOrPercent::Percent("50%".into());
        let mut scenario = canary(&["a", "b", "c", "d", "e", "f"], &[percent], StepApproval::Manual);
        for came_with_image in ["c", "d", "e", "f"] {
            scenario.agent(came_with_image, |agent| agent.current_version = Some("1.20.5".parse().unwrap()));
        }
        scenario.update("a");
        assert_eq!(scenario.judge().violations, []);
        scenario.until_permit("b");
        scenario.assert_only(Property::S12);
    }

    #[test]
    fn node_that_has_begun_before_policy_has_a_step_is_finished_and_no_other_begins() {
        for has_begun in [true, false] {
            let mut scenario = canary(&["a", "b", "c"], &[], StepApproval::Manual);
            scenario.update("a");
            scenario.until_drained("b");
            scenario.operator(|operator| {
                let step = CanaryStep { nodes: ONE, soak: None, approval: Some(StepApproval::Manual) };
                operator.spec.strategy.get_or_insert_default().canary = vec![step];
            });
            if has_begun {
                scenario.request_reboot("b");
                scenario.arming("b");
                scenario.issue_permit("b");
                assert_eq!(scenario.judge().violations, []);
            } else {
                scenario.until_permit("c");
                scenario.assert_only(Property::S12);
            }
        }
    }

    /// Half of four nodes are two, whatever nodes of another kind there are.
    #[test]
    fn share_is_counted_over_nodes_of_the_kind() {
        for (sentence, updated, then, passes) in [
            ("two have proven it", &["a", "b"][..], &["c", "d"][..], true),
            ("one has", &["a"][..], &["b", "c"][..], false),
        ] {
            let half = CountOrPercent::Percent("50%".into());
            let mut scenario = canary(&["a", "b", "c", "d", "e"], &[half], StepApproval::Automatic);
            scenario.agent("e", |agent| agent.variant = Some("aws-k8s-1.36".into()));
            updated.iter().for_each(|node| scenario.update(node));
            then.iter().for_each(|node| scenario.until_permit(node));
            assert_passes(&scenario, passes, sentence);
        }
    }

    #[test]
    fn share_is_counted_over_nodes_that_are_left() {
        let nodes = ["a", "b", "c", "d", "e", "f", "g", "h"];
        type Change = fn(&mut Scenario, &str);
        let unchanged: Change = |_, _| {};
        let deleted: Change = |scenario, node| scenario.delete_node(node);
        let later: Change = |scenario, node| {
            scenario.agent(node, |agent| agent.current_version = Some("1.21.0".parse().unwrap()));
        };
        let cases = [
            ("all are left", "latest", unchanged, false),
            ("most are gone", "latest", deleted, true),
            ("most are on a later version", "latest", later, true),
            ("most are on a later version, and policy leads back", "1.20.5", later, false),
        ];
        for (sentence, target, change, passes) in cases {
            let percent = CountOrPercent::Percent("25%".into());
            let mut scenario = canary(&nodes, &[percent], StepApproval::Manual);
            scenario.operator(|operator| {
                operator.spec.version.get_or_insert_default().target = Some(target.to_owned());
            });
            scenario.update("a");
            nodes.iter().rev().take(5).for_each(|node| change(&mut scenario, node));
            approve(&mut scenario, "7/1@x");
            scenario.update_ending("b", "HealthUnknown");
            assert_eq!(scenario.judge().violations, [], "{sentence}");
            scenario.until_permit("c");
            assert_passes(&scenario, passes, sentence);
        }
    }

    #[test]
    fn manual_step_passes_by_approval_of_its_own_places_alone() {
        for (value, passes) in [("7/1@x", true), ("7/2@x", false), ("6/1@x", false), ("", false)] {
            let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Manual);
            scenario.update("a");
            assert_next_passes(&mut scenario, value, passes);
        }
    }

    #[test]
    fn unproven_place_is_accepted_by_name_alone() {
        for (value, passes) in [("7/1/unproven@x", true), ("7/1@x", false)] {
            let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
            scenario.update_ending("a", "HealthUnknown");
            assert_next_passes(&mut scenario, value, passes);
        }
    }

    #[test]
    fn second_node_beside_first_is_detected_without_canary_steps() {
        let mut scenario = canary(&["a", "b"], &[], StepApproval::Automatic);
        scenario.until_permit("a");
        scenario.until_permit("b");
        scenario.assert_only(Property::S12);
    }

    /// The other node has the permit, is not back at the deadline, and is not Ready: then it gives its slot up.
    #[test]
    fn second_node_may_go_once_the_first_one_has_given_its_slot_up() {
        for (disruptive, passes) in [(true, false), (false, true)] {
            let mut scenario = canary(&["a", "b"], &[], StepApproval::Automatic);
            scenario.until_permit("a");
            scenario.step("a", Step::Releasing);
            scenario.controller("a", |shadow| {
                let progress = shadow.status.controller.progress.as_mut().unwrap();
                (progress.permit_issued, progress.disruptive) = (true, disruptive);
            });
            scenario.until_permit("b");
            assert_eq!(!scenario.judge().violates(Property::S12), passes, "has a slot: {disruptive}");
        }
    }

    #[test]
    fn second_node_may_go_once_the_first_one_was_removed_by_an_autoscaler() {
        for (sentence, taint, steps, left_its_boot, passes) in [
            ("removed by Karpenter", Some("karpenter.sh/disrupted"), &[][..], false, true),
            ("deleted", None, &[][..], false, false),
            (
                "removed before it left its boot, with a step of one node",
                Some("karpenter.sh/disrupted"),
                &[ONE][..],
                false,
                true,
            ),
            ("removed after that", Some("karpenter.sh/disrupted"), &[ONE][..], true, false),
        ] {
            let mut scenario = canary(&["a", "b"], steps, StepApproval::Automatic);
            scenario.until_permit("a");
            scenario.set_field("a", "admin", "karpenter", Field::Taints, taint);
            if left_its_boot {
                scenario.node("a", "system:node:a", |node| node.boot_id = "another".to_owned());
            }
            scenario.delete_node("a");
            scenario.until_permit("b");
            assert_eq!(!scenario.judge().violates(Property::S12), passes, "{sentence}");
        }
    }

    #[test]
    fn ledger_of_controller_is_no_evidence() {
        let mut scenario = canary(&["a", "b"], &[ONE], StepApproval::Automatic);
        scenario.update_ending("a", "HealthUnknown");
        let begun = ActiveRollout::new("1.20.5".parse().unwrap(), String::new(), String::new(), scenario.now());
        let ledger = RolloutLedger { proven: 1, ..RolloutLedger::default() };
        scenario.operator(|operator| {
            operator.status.active_rollouts = vec![ActiveRollout { ledger: Some(ledger), ..begun }];
        });
        scenario.until_permit("b");
        scenario.assert_only(Property::S12);
    }
}
