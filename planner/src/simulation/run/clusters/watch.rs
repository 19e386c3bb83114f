//! Properties of each plan, counted from what happens to the nodes and not from the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use models::operator::{ActiveRollout, CountOrPercent, RolloutLedger, Slot};
use models::reason::{End, FailureReason, Proof};
use models::shadow::{Place, Step, UPDATED, VersionFailure};
use models::time::after;
use semver::Version;

use crate::plan::Plan;
use crate::policy::Policy;
use crate::survey::key::{Key, key, key_of, kind};
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

/// The nodes of one version for one kind, by their names: a machine that is registered again is the same node.
#[derive(Debug, Default)]
struct Followed {
    /// The highest number of nodes that it has had to update.
    nodes: usize,
    /// The number of nodes of which its steps are shares, as the operator records it.
    base: usize,
    /// Those that were booted into the version by permits.
    booted: BTreeSet<String>,
    /// Those whose reboot into it is permitted now.
    permitted: BTreeSet<String>,
    proven: BTreeSet<String>,
    /// Those that may run it, and have not proven it.
    unproven: BTreeSet<String>,
    /// Those that a user has accepted without a proof.
    accepted: BTreeSet<String>,
    /// Those that have failed on it.
    failed: BTreeSet<String>,
    /// Those whose failures a user has resolved.
    resolved: BTreeSet<String>,
    /// The places of the steps that a user has approved.
    approved: BTreeSet<usize>,
    /// The places of the steps that are passed, and the time since which the next one has its proofs: so many, of its share of all nodes.
    passed: usize,
    since: Option<Timestamp>,
    full: (usize, usize),
    /// True once all steps are passed: what is proven then opens none again.
    is_open: bool,
    /// The ends in a row without a proof, by the names of their nodes: true for those that may run the version.
    row: BTreeMap<String, bool>,
    /// True if the last of them has braked the rollout.
    is_braked: bool,
}

impl Followed {
    fn end_row(&mut self) {
        self.row.clear();
        self.is_braked = false;
    }

    /// Frees the places of so many proven nodes that are gone: none of those that are `there`.
    fn free(&mut self, count: usize, there: &BTreeSet<&str>) {
        let gone = self.proven.iter().filter(|name| !there.contains(name.as_str()));
        let gone: Vec<String> = gone.take(count).cloned().collect();
        for name in &gone {
            self.proven.remove(name);
            self.booted.remove(name);
        }
    }

    /// Returns the number of nodes that may be taken to the version while so many are left, with the number where all are; `None` after the
    /// last step. `runs` says that a node runs the version.
    fn limit(&mut self, policy: &Policy, (left, runs): (usize, bool), now: Timestamp) -> Option<(usize, usize)> {
        let good = self.proven.union(&self.accepted).count();
        if self.is_open {
            self.passed = self.passed.max(good);
        }
        self.is_open = false;
        for ((step, places), few) in policy.canary.iter().zip(shares(policy, self.base)).zip(shares(policy, left)) {
            if places <= self.passed {
                continue;
            }
            if self.full.1 != places {
                (self.since, self.full) = (None, (0, places));
            }
            // A step that has its proofs keeps them, unless more than twice as many places are due then.
            self.since.take_if(|_| few.min(places) > 2 * good);
            let due = if self.since.is_some() { self.full.0 } else { few.min(places) };
            if good < due {
                self.since = None;
                return Some((due, places));
            }
            let since = *self.since.get_or_insert(now);
            self.full.0 = due;
            let approved = self.approved.iter().any(|approved| (due..=places).contains(approved));
            let is_asked = step.manual || (!step.soak.is_zero() && !runs);
            if now < after(since, step.soak) || (is_asked && !approved) {
                return Some((due, places));
            }
            (self.passed, self.since) = (places, None);
        }
        self.is_open = self.passed > 0;
        None
    }

    /// Follows the number of nodes that the operator records: it falls where a step is passed for few nodes alone, and what is passed with it.
    fn follow_base(&mut self, policy: &Policy, base: usize) {
        if base < self.base {
            let steps = shares(policy, self.base).iter().filter(|places| **places <= self.passed).count();
            let passed = steps.checked_sub(1).map_or(0, |last| shares(policy, base)[last]);
            // An earlier rollout of the version may have taken more.
            self.passed = passed.max(self.booted.len());
            (self.since, self.full) = (None, (0, 0));
        }
        self.base = base;
    }
}

/// Returns the places of each canary step among so many nodes, with those of the steps before it.
fn shares(policy: &Policy, nodes: usize) -> Vec<usize> {
    let mut before = 0;
    let places = policy.canary.iter().map(|step| {
        let own = match &step.nodes {
            CountOrPercent::Count(number) => *number as usize,
            CountOrPercent::Percent(share) => {
                let share: usize = share.trim_end_matches('%').parse().unwrap();
                (nodes * share).div_ceil(100)
            }
        };
        before = own.max(before + 1);
        before
    });
    places.collect()
}

/// The observations of a cluster, and the checks of its plans.
#[derive(Default)]
pub(in crate::simulation::run) struct Watch {
    /// The name of the cluster, for the messages of assertions.
    name: String,
    followed: BTreeMap<Key, Followed>,
    /// The version that each node runs, by its name.
    runs: BTreeMap<String, Version>,
    /// The devices that each node had before its last drain, by its uid.
    devices: BTreeMap<String, Arc<BTreeMap<String, String>>>,
    /// The nodes that were of the control plane when they were first seen: one that is registered again lacks the label.
    control_plane: BTreeSet<String>,
    /// The last attempt of each node that has ended.
    ended: BTreeMap<String, i64>,
    /// The nodes with a slot in the last plan.
    slots: BTreeSet<String>,
    /// The canary step for which the last plan waits for a user.
    pub(super) approval: Option<Wait>,
}

impl Watch {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn of(&mut self, node: &NodeView, version: &Version) -> &mut Followed {
        let (variant, arch, version) = key(node, version);
        self.followed.entry((variant.to_owned(), arch.to_owned(), version.clone())).or_default()
    }

    /// Returns the number of nodes that were booted into a version by permits.
    pub(super) fn booted(&self, version: &Version) -> usize {
        let of_version = self.followed.iter().filter(|((.., other), _)| other == version);
        of_version.map(|(_, followed)| followed.booted.len()).sum()
    }

    /// Notes that no ledger is left: what nodes that are gone have shown cannot be known.
    pub(super) fn forget(&mut self, view: &ClusterView) {
        let names: BTreeSet<&str> = view.nodes.values().map(|node| node.facts.name.as_str()).collect();
        for followed in self.followed.values_mut() {
            followed.end_row();
            followed.base = 0;
            // Where an earlier version has recorded no places, nodes that have failed are counted twice.
            followed.nodes += followed.failed.len();
            let Followed { booted, permitted, proven, unproven, accepted, failed, .. } = followed;
            for nodes in [booted, permitted, proven, unproven, accepted, failed] {
                nodes.retain(|name| names.contains(name.as_str()));
            }
        }
    }

    /// Notes that a user resolves all failures.
    pub(super) fn resume(&mut self) {
        for followed in self.followed.values_mut() {
            followed.resolved.append(&mut followed.failed);
            followed.end_row();
        }
    }

    /// Notes that a user approves a step of this rollout.
    pub(super) fn approve(&mut self, rollout: &ActiveRollout, places: usize, unproven: bool) {
        let Some(followed) = self.followed.get_mut(&key_of(rollout)) else { return };
        followed.approved.insert(places);
        if unproven {
            let open = followed.booted.iter().chain(&followed.permitted).chain(&followed.unproven);
            followed.accepted.extend(open.filter(|name| !followed.failed.contains(*name)).cloned());
            followed.end_row();
        }
    }

    /// Follows the nodes, and checks a plan before it is carried out.
    pub(in crate::simulation::run) fn check(
        &mut self,
        view: &ClusterView,
        policy: &Policy,
        plan: &Plan,
        now: Timestamp,
    ) {
        self.approval = plan.approvals.first().cloned();
        let mut totals: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for node in view.nodes.values() {
            *totals.entry(kind(node)).or_default() += usize::from(node.facts.labelled);
        }
        for node in view.nodes.values() {
            self.check_blame(view, node, now);
            self.follow(node, policy, totals[&kind(node)], now);
        }
        let recorded = view.operator.as_ref().map(|operator| &operator.status.slots);
        let slots: &[Slot] = plan.slots.as_ref().or(recorded).map_or(&[], Vec::as_slice);
        let had: BTreeSet<&str> = recorded.into_iter().flatten().map(|slot| slot.node.as_str()).collect();
        let mut by_key: BTreeMap<Key, Vec<&Slot>> = self.followed.keys().map(|own| (own.clone(), Vec::new())).collect();
        for slot in slots {
            let own = match &slot.update {
                Some(update) => Some((update.variant.clone(), update.arch.clone(), update.version.clone())),
                None => view.nodes.get(&slot.node).and_then(|node| {
                    let (variant, arch, version) = key(node, &node.update()?.version);
                    Some((variant.to_owned(), arch.to_owned(), version.clone()))
                }),
            };
            if let Some(own) = own {
                by_key.entry(own).or_default().push(slot);
            }
        }
        let away = recorded.into_iter().flatten().filter(|slot| !view.nodes.contains_key(&slot.node));
        for (slot, update) in away.filter_map(|slot| Some((slot, slot.update.as_ref()?))) {
            // Its machine may still reboot, or may have.
            if update.permitting_since.is_some() {
                let own = (update.variant.clone(), update.arch.clone(), update.version.clone());
                self.followed.entry(own).or_default().permitted.insert(slot.node.clone());
            }
        }
        self.slots = slots.iter().map(|slot| slot.node.clone()).collect();
        let control_plane = |slot: &&Slot| self.control_plane.contains(&slot.node);
        let of_control_plane = slots.iter().filter(control_plane).count();
        assert!(of_control_plane <= 1, "{}, {now}: {of_control_plane} slots for the control plane", self.name);
        for (own, slots) in &by_key {
            self.check_rollout((view, policy, plan), (own, slots, &had), now);
        }
        for name in view.nodes.keys() {
            let shown = plan.waits.contains_key(name)
                || plan.actions.contains_key(name)
                || plan.evictions.contains_key(name)
                || plan.pods.contains(name);
            assert!(shown, "{}, {now}: {name} has neither an action nor a reason", self.name);
        }
    }

    /// Asserts that trouble of the cluster counts against no version: two and half of the nodes beside, which do not run it, that are
    /// not Ready since the drain began.
    fn check_blame(&mut self, view: &ClusterView, node: &NodeView, now: Timestamp) {
        let Some(record) = node.record() else { return };
        let by_health = |failure: &&VersionFailure| {
            matches!(failure.reason, FailureReason::NotReadyAfterBoot | FailureReason::SoakFailed)
                && failure.resolved_by.is_none()
        };
        for failure in record.version_failures.iter().filter(by_health) {
            let version = &failure.version;
            let place = node.progress().and_then(|progress| progress.rollout.as_ref());
            let Some(drained) = place.and_then(|place| place.drain_started) else { continue };
            if self.of(node, version).failed.contains(&node.facts.name) {
                continue;
            }
            let beside = |other: &&NodeView| {
                other.facts.os_version().as_ref() != Some(version) && other.step().is_none() && !other.facts.joining
            };
            let beside = || view.nodes.values().filter(beside).filter(|other| other.facts.removed_by.is_none());
            let well = beside().filter(|other| other.facts.ready).count();
            let ill = beside().filter(|other| other.facts.not_ready_since.is_some_and(|since| since > drained)).count();
            assert!(
                ill < 2 || ill < well,
                "{}, {now}: {} counts against {version} ({}), and {ill} of {} nodes beside it have fallen ill",
                self.name,
                node.facts.name,
                failure.reason,
                ill + well
            );
        }
    }

    /// Follows the boots of a node, and the ends of its attempts.
    fn follow(&mut self, node: &NodeView, policy: &Policy, total: usize, now: Timestamp) {
        let name = &node.facts.name;
        let joined = !self.runs.contains_key(name);
        if node.facts.control_plane() {
            self.control_plane.insert(name.clone());
        }
        if let Some(runs) = node.facts.os_version()
            && let Some(before) = self.runs.insert(name.clone(), runs.clone())
            && before != runs
        {
            self.of(node, &runs).booted.insert(name.clone());
        }
        for followed in self.followed.values_mut() {
            followed.permitted.remove(name);
        }
        let permit = node.shadow.as_ref().is_some_and(|shadow| shadow.spec.permit.is_some());
        if let Some(progress) = node.update().filter(|_| permit) {
            self.of(node, &progress.version).permitted.insert(name.clone());
        }
        // What a Node had before it was registered again went with its shadow.
        let uid = &node.facts.uid;
        if !self.devices.contains_key(uid) || node.step().map(Step::place) == Some(Place::Leaving) {
            self.devices.insert(uid.clone(), node.facts.allocatable.clone());
        }
        let Some(record) = node.record() else { return };
        for failure in record.version_failures.iter().filter(|failure| failure.resolved_by.is_none()) {
            let followed = self.of(node, &failure.version);
            followed.failed.insert(name.clone());
            followed.accepted.remove(name);
        }
        if let Some(proof) = &record.proof {
            let has_devices = self.devices.get(uid) == Some(&node.facts.allocatable);
            let followed = self.of(node, &proof.version);
            if proof.proof == Proof::Unproven {
                followed.unproven.insert(name.clone());
            } else {
                followed.unproven.remove(name);
            }
            if proof.proof == Proof::Proven && followed.proven.insert(name.clone()) {
                followed.end_row();
                assert!(
                    has_devices,
                    "{}, {now}: {} proves {} without its devices",
                    self.name, node.facts.name, proof.version
                );
            }
        }
        let Some(last) = &record.last else { return };
        if self.ended.insert(name.clone(), last.attempt) == Some(last.attempt) || joined {
            return;
        }
        let had_slot = self.slots.contains(name);
        let own = record.proof.as_ref().filter(|proof| proof.attempt == last.attempt).map(|proof| proof.proof);
        let proof = own.unwrap_or(Proof::Free);
        let followed = self.of(node, &last.version);
        if last.reason == UPDATED {
            followed.proven.insert(name.clone());
            followed.end_row();
        } else if had_slot && End::of(&last.reason).is_some_and(|end| end.brakes(proof)) && last.ended <= now {
            followed.row.insert(name.clone(), proof != Proof::Free);
            followed.is_braked |= total > 1 && followed.row.len() >= row_limit(policy, total);
        }
    }

    fn check_rollout(
        &mut self,
        (view, policy, plan): (&ClusterView, &Policy, &Plan),
        (own, slots, had): (&Key, &[&Slot], &BTreeSet<&str>),
        now: Timestamp,
    ) {
        let (variant, arch, version) = own;
        let members = || {
            let of_kind = |node: &&NodeView| key(node, version) == (variant.as_str(), arch.as_str(), version);
            view.nodes.values().filter(|node| node.facts.labelled).filter(of_kind)
        };
        let lacks = |node: &&NodeView| node.facts.os_version().as_ref() != Some(version);
        let lacking = members().filter(lacks).count();
        let ended = &self.ended;
        let followed = self.followed.entry(own.clone()).or_default();
        followed.nodes = followed.nodes.max(lacking + followed.booted.len());
        let recorded = plan.status.iter().flat_map(|status| &status.active_rollouts);
        let recorded: Vec<_> = recorded.filter(|rollout| key_of(rollout) == *own).collect();
        let ledger = recorded.first().and_then(|rollout| rollout.ledger.as_ref());
        let recorded_base = ledger.map_or(0, |ledger| usize::try_from(ledger.base).unwrap());
        let left = members().filter(lacks).filter(|node| !followed.booted.contains(&node.facts.name)).count();
        let runs = members().any(|node| !lacks(&node));
        let mut stored = view.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
        let stored = stored.find(|rollout| key_of(rollout) == *own && rollout.ended.is_none());
        let freed = stored.zip(recorded.first()).map_or(0, |(was, is)| proven(was).saturating_sub(proven(is)));
        if freed > 0 && !members().any(|node| !lacks(&node) && node.facts.ready) {
            // A step does not soak without a node on the version.
            let has_proof = |node: &NodeView| node.record().is_some_and(|record| record.proof.is_some());
            let there = view.nodes.values().filter(|node| !lacks(node) || has_proof(node));
            let there: BTreeSet<&str> = there.map(|node| node.facts.name.as_str()).collect();
            followed.free(freed, &there);
        }
        let left = left + followed.booted.len();
        if (1..followed.base).contains(&recorded_base) {
            // A plan that passes a step for fewer nodes.
            followed.limit(policy, (left, runs), now);
        }
        if recorded_base > 0 {
            followed.follow_base(policy, recorded_base);
        }
        let allowed = followed.limit(policy, (left, runs), now);
        let context = || format!("{}, {now}: {version} on {variant} {arch}, {followed:#?}, {recorded:#?}", self.name);
        let (base, nodes) = (followed.base, followed.nodes);
        assert!(base <= nodes, "{}: shares of {base} nodes, and it has had {nodes}", context());
        let mut taken: BTreeSet<&str> = followed.booted.union(&followed.permitted).map(String::as_str).collect();
        taken.extend(slots.iter().map(|slot| slot.node.as_str()));
        if let Some((due, share)) = allowed {
            // Where nodes have gone since others were taken, no further one is.
            let is_new = |slot: &&Slot| !had.contains(slot.node.as_str()) && !followed.booted.contains(&slot.node);
            let is_given = slots.iter().any(is_new);
            let limit = if is_given { due } else { share } + followed.resolved.len();
            assert!(taken.len() <= limit, "{}: {taken:?} are taken to it, and its steps allow {limit}", context());
        }
        // An attempt that has ended holds no other back, although its slot is kept until its node is released.
        let goes = |slot: &&&Slot| {
            let ended = ended.get(&slot.node).copied();
            slot.update.as_ref().is_none_or(|update| ended != Some(update.attempt))
        };
        let slots: Vec<&&Slot> = slots.iter().filter(goes).collect();
        let names: Vec<&str> = slots.iter().map(|slot| slot.node.as_str()).collect();
        if followed.proven.is_empty() && followed.accepted.is_empty() {
            assert!(slots.len() <= 1, "{}: slots of {names:?} before a proven node", context());
        }
        let total = members().count();
        if followed.is_braked && total > 1 && followed.row.len() >= row_limit(policy, total) {
            let row = &followed.row;
            let new = slots.iter().filter(|slot| !had.contains(slot.node.as_str())).count();
            let runs = |name: &str| view.nodes.get(name).is_none_or(|n| n.facts.os_version().as_ref() == Some(version));
            let stuck = row.iter().any(|(name, without_proof)| *without_proof && runs(name));
            let fits = new == 0 || (slots.len() == 1 && !stuck);
            assert!(fits, "{}: slots of {names:?}, {new} of them new, while {row:?} brake it", context());
        }
    }
}

/// Returns the number of places that the ledger of a rollout has as proven, those of nodes included that were not well any more.
fn proven(rollout: &ActiveRollout) -> usize {
    let count = |ledger: &RolloutLedger| {
        let fallen = ledger.nodes.iter().filter(|node| node.has_fallen()).count();
        usize::try_from(ledger.proven).unwrap() + fallen
    };
    rollout.ledger.as_ref().map_or(0, count)
}

/// Returns the number of ends in a row that brake a rollout among so many nodes.
fn row_limit(policy: &Policy, total: usize) -> usize {
    policy.max_consecutive_failures.unwrap_or(3).min(total.saturating_sub(1)).max(1)
}
