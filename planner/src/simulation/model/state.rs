//! A state: the objects at the API server, the hosts, the controllers, and the writes under way.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::{AgentReport, BottlerocketShadowSpec, ControllerReport};
use semver::Version;

use super::digest::{Digest, Digester};
use super::judge::Broken;
use super::write::Write;
use crate::claims::{ClaimFields, ClaimsMade};
use crate::simulation::host::Host;
use crate::view::{InFlight, LeaseObservations, NodeFacts, OperatorFacts, PodFacts, ShadowFacts, Standing};

/// An object in one version, which rises with each write.
#[derive(Debug)]
pub(super) struct Object<T> {
    pub(super) value: T,
    pub(super) version: u32,
    digest: Digest,
}

/// A value of which a digest can be made.
pub(super) trait Digestible {
    fn digest(&self, digester: &mut Digester);
}

impl<T: Digestible> Object<T> {
    pub(super) fn new(value: T, version: u32) -> Arc<Self> {
        let digest = Digest::of(|digester| value.digest(digester));
        Arc::new(Self { value, version, digest })
    }

    /// Returns the object after a write.
    pub(super) fn written(&self, value: T) -> Arc<Self> {
        Self::new(value, self.version + 1)
    }
}

fn bits(fields: ClaimFields) -> Vec<u8> {
    fields.iter().map(|field| field as u8).collect()
}

impl Digestible for NodeFacts {
    fn digest(&self, digester: &mut Digester) {
        let Self { uid, ready, boot_id, os_image, unschedulable, hook_request, hook_answers, labelled, .. } = self;
        digester.add((uid, ready, boot_id, os_image, unschedulable, hook_request, hook_answers, labelled));
        digester.add(self.hold.is_some());
        digester.add((bits(self.claims), bits(self.set_by_others), bits(self.set_otherwise)));
        digester.time(self.ready_since);
        digester.time(self.not_ready_since);
        digester.time(self.claimed_since);
        digester.time(self.cordoned_since);
    }
}

impl Digestible for ShadowFacts {
    fn digest(&self, digester: &mut Digester) {
        digester.add((&self.uid, self.generation, &self.owner_uid, self.deleting));
        digester.json(&self.spec);
        digester.json(&self.status.agent);
        let ControllerReport { progress, drain, record, results: _ } = &self.status.controller;
        digester.json(&(progress, drain, record));
        digester.json(&self.status.conditions);
    }
}

impl Digestible for OperatorFacts {
    fn digest(&self, digester: &mut Digester) {
        digester.add((&self.uid, self.generation));
        digester.json(&decisive(&self.status));
    }
}

/// Returns what of the operator's status decides anything.
pub(super) fn decisive(status: &BottlerocketUpdateOperatorStatus) -> impl serde::Serialize + use<'_> {
    let BottlerocketUpdateOperatorStatus {
        slots, versions, active_rollouts, budget_back_offs, unwell, requests, ..
    } = status;
    (slots, versions, active_rollouts, budget_back_offs, unwell, (requests, &status.rollout_count))
}

impl Digestible for Vec<PodFacts> {
    fn digest(&self, digester: &mut Digester) {
        for pod in self {
            digester.add((&pod.uid, &pod.node, pod.terminating, pod.ready));
        }
    }
}

/// A permit that an agent has verified: what its signature covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Verified {
    pub(super) node_uid: String,
    pub(super) boot_id: String,
    pub(super) attempt: i64,
    pub(super) version: Version,
}

/// A machine: its host, and its agent.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) host: Host,
    /// The boot that runs.
    pub(super) boot_id: String,
    pub(super) os_image: String,
    /// False between its end and its next boot.
    pub(super) up: bool,
    /// The permit by which it goes down, and the time of the call that reboots it.
    pub(super) permitted: Option<(Verified, Timestamp)>,
    /// True while its kubelet ends pods for a shutdown that takes as long as they need.
    pub(super) lingers: bool,
    /// The agent's own part of the status, as it has reported it.
    pub(super) agent: AgentReport,
    /// False while the agent is stopped.
    pub(super) agent_runs: bool,
    /// An earlier desired state that the web API shows the agent.
    pub(super) shown: Option<Arc<(BottlerocketShadowSpec, i64)>>,
    /// The desired states before the present one, the newest last.
    pub(super) earlier: Vec<Arc<(BottlerocketShadowSpec, i64)>>,
    /// The report before the present one.
    pub(super) reported: Option<Arc<AgentReport>>,
    /// The versions in its update repository, newest first.
    pub(super) offered: Vec<Version>,
    /// Time since which the Node has been Ready in this boot.
    pub(super) ready_since: Timestamp,
    /// True while its node has a claim that arrived after the end of its attempt: nothing that a controller writes then makes the API
    /// server refuse it, and the leader releases it.
    pub(super) orphaned: bool,
    /// True if it had soaked when its desired state was withdrawn.
    pub(super) verified: bool,
    /// True if the node was taken to the version that it runs by a permit.
    pub(super) taken: bool,
}

impl Digestible for Machine {
    fn digest(&self, digester: &mut Digester) {
        let Host { runs, staged, armed, boots, nonces, asked, cleared, waits_for_wave: _ } = &self.host;
        digester.add((runs, staged, armed, boots, nonces, cleared));
        digester.time(*asked);
        digester.add((
            &self.boot_id,
            &self.os_image,
            self.up,
            self.lingers,
            self.agent_runs,
            &self.offered,
            (self.taken, self.verified, self.orphaned),
        ));
        digester.add(self.permitted.as_ref().map(|(verified, _)| verified));
        digester.time(self.permitted.as_ref().map(|(_, at)| *at));
        digester.time(Some(self.ready_since));
        digester.json(&self.agent);
        digester.json(&self.shown.as_deref());
        digester.add(self.earlier.len());
        for earlier in &self.earlier {
            digester.json(&**earlier);
        }
        digester.json(&self.reported.as_deref());
    }
}

/// The objects of one node.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    /// `None` while the Node object is deleted.
    pub(super) node: Option<Arc<Object<NodeFacts>>>,
    pub(super) shadow: Option<Arc<Object<ShadowFacts>>>,
    pub(super) pods: Arc<Object<Vec<PodFacts>>>,
}

/// The memory that a controller has of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    pub(super) in_flight: BTreeMap<String, InFlight>,
    pub(super) lease: Option<LeaseObservations>,
    pub(super) claims_made: ClaimsMade,
    /// The state in which a wait for its host begins, and the time since which it was observed.
    pub(super) standing: Option<(Standing, Timestamp)>,
}

/// A kind of objects that has a cache of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nodes,
    Shadows,
    Operator,
    Pods,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Nodes, Self::Shadows, Self::Operator, Self::Pods];
}

/// A controller.
#[derive(Clone, Debug)]
pub(super) struct Controller {
    /// True while it believes that it has the Lease.
    pub(super) leads: bool,
    /// The number of writes that it may still make although another one has the Lease.
    pub(super) deposed: Option<u8>,
    pub(super) since: Timestamp,
    /// The kinds whose watch shows nothing new.
    pub(super) behind: [bool; 4],
    pub(super) seen: Vec<Truth>,
    pub(super) operator: Arc<Object<OperatorFacts>>,
    pub(super) memory: Vec<Memory>,
    /// The slots (uid) that a write takes away which may not have arrived, and the version that it was decided on.
    pub(super) retracting: Option<(u32, BTreeSet<String>)>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) truth: Vec<Truth>,
    pub(super) machines: Vec<Arc<Object<Machine>>>,
    pub(super) operator: Arc<Object<OperatorFacts>>,
    pub(super) controllers: Vec<Controller>,
    /// Writes whose senders do not wait for them any more.
    pub(super) late: Vec<Arc<Write>>,
    /// The nodes that a user has cordoned.
    pub(super) cordoned: Vec<bool>,
    /// A pod of the earlier operator.
    pub(super) earlier_operator: bool,
    /// The number of times that time has passed since something that may take any time was outstanding.
    pub(super) waited: u8,
    /// The node whose turn is first.
    pub(super) first: usize,
    /// The number of times that another node's turn came first.
    pub(super) turns: u8,
    /// The number of faults so far.
    pub(super) faults: u8,
    pub(super) broken: Option<Arc<Broken>>,
}

impl State {
    pub(super) fn machine(&self, node: usize) -> &Machine {
        &self.machines[node].value
    }

    pub(super) fn change_machine(&mut self, node: usize, change: impl FnOnce(&mut Machine)) {
        let mut machine = self.machines[node].value.clone();
        change(&mut machine);
        self.machines[node] = self.machines[node].written(machine);
    }

    pub(super) fn change_node(&mut self, node: usize, change: impl FnOnce(&mut NodeFacts)) {
        if let Some(object) = &self.truth[node].node {
            let mut facts = object.value.clone();
            change(&mut facts);
            if facts != object.value {
                self.truth[node].node = Some(object.written(facts));
            }
        }
    }

    pub(super) fn change_shadow(&mut self, node: usize, change: impl FnOnce(&mut ShadowFacts)) {
        if let Some(object) = &self.truth[node].shadow {
            let mut facts = object.value.clone();
            change(&mut facts);
            if facts != object.value {
                self.truth[node].shadow = Some(object.written(facts));
            }
        }
    }

    pub(super) fn change_pods(&mut self, node: usize, change: impl FnOnce(&mut Vec<PodFacts>)) {
        let mut pods = self.truth[node].pods.value.clone();
        change(&mut pods);
        self.truth[node].pods = self.truth[node].pods.written(pods);
    }

    pub(super) fn breaks(&mut self, broken: Option<Broken>) {
        if self.broken.is_none() {
            self.broken = broken.map(Arc::new);
        }
    }

    fn digest(&self) -> u64 {
        let (mut hasher, now) = (DefaultHasher::new(), self.now);
        for truth in &self.truth {
            truth.add_to(&mut hasher, now, None);
        }
        for machine in &self.machines {
            machine.digest.add_to(&mut hasher, now);
        }
        self.operator.digest.add_to(&mut hasher, now);
        for controller in &self.controllers {
            controller.add_to(&mut hasher, self);
        }
        for write in &self.late {
            write.digest.add_to(&mut hasher, now);
        }
        (&self.cordoned, self.earlier_operator, self.waited, self.first, self.turns, self.faults).hash(&mut hasher);
        self.broken.as_ref().map(|broken| broken.0).hash(&mut hasher);
        hasher.finish()
    }
}

impl Truth {
    /// Returns whether Node and shadow are in the same versions.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.node.as_ref().map(Arc::as_ptr) == other.node.as_ref().map(Arc::as_ptr)
            && self.shadow.as_ref().map(Arc::as_ptr) == other.shadow.as_ref().map(Arc::as_ptr)
    }

    /// Adds it to a digest; where it is what a cache shows, with which of it is the newest version.
    fn add_to(&self, hasher: &mut DefaultHasher, now: Timestamp, newest: Option<&Self>) {
        fn add<T>(
            own: Option<&Arc<Object<T>>>,
            newest: Option<Option<&Arc<Object<T>>>>,
            hasher: &mut DefaultHasher,
            now: Timestamp,
        ) {
            own.is_some().hash(hasher);
            if let Some(own) = own {
                own.digest.add_to(hasher, now);
                newest.map(|newest| newest.is_some_and(|newest| newest.version == own.version)).hash(hasher);
            }
        }
        add(self.node.as_ref(), newest.map(|truth| truth.node.as_ref()), hasher, now);
        add(self.shadow.as_ref(), newest.map(|truth| truth.shadow.as_ref()), hasher, now);
        add(Some(&self.pods), newest.map(|truth| Some(&truth.pods)), hasher, now);
    }
}

impl Controller {
    fn add_to(&self, hasher: &mut DefaultHasher, state: &State) {
        let now = state.now;
        (self.leads, self.deposed, self.behind).hash(hasher);
        if !self.leads {
            return;
        }
        (now.as_second() - self.since.as_second()).min(24 * 3600).hash(hasher);
        if self.behind.contains(&true) {
            for (seen, truth) in self.seen.iter().zip(&state.truth) {
                seen.add_to(hasher, now, Some(truth));
            }
            self.operator.digest.add_to(hasher, now);
            (self.operator.version == state.operator.version).hash(hasher);
        }
        for memory in &self.memory {
            let Memory { in_flight, lease, claims_made, standing } = memory;
            in_flight.keys().collect::<Vec<_>>().hash(hasher);
            let ago = |at: Timestamp| (now.as_second() - at.as_second()).min(24 * 3600);
            let of_lease = |lease: &LeaseObservations| {
                (lease.renewed.map(ago), lease.alive_after.map(ago), ago(lease.observed_at))
            };
            lease.as_ref().map(of_lease).hash(hasher);
            let ClaimsMade { fields, uncordoned, stripped } = claims_made;
            (bits(*fields), uncordoned.min(&2), stripped.min(&2)).hash(hasher);
            standing.as_ref().map(|(_, since)| (now.as_second() - since.as_second()).min(24 * 3600)).hash(hasher);
        }
        let retracting = self.retracting.as_ref().filter(|(base, _)| *base == self.operator.version);
        retracting.map(|(_, slots)| slots).hash(hasher);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}
