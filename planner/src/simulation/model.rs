//! A model of the update protocol: an exhaustive search over the planner itself, breadth first, by `stateright`.
//!
//! A state has the objects at the API server with their versions, the hosts and their agents, and two controllers with caches, memories
//! and writes under way (`state`). From it, everything that may happen next is an action (`moves`): the writes of the planner's own
//! plan (`view`, `write`), the steps of agents and hosts (`machine`), and faults, of which few are allowed. Each effect (`happen`) is
//! judged by S1 to S13 on the objects and hosts as they are (`judge`), and the plan validator may find nothing. `docs/testing.md` has the
//! bounds, and the limits of the search.

mod digest;
mod happen;
mod judge;
mod machine;
mod moves;
mod sentences;
mod state;
mod view;
mod write;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use models::operator::BottlerocketUpdateOperatorSpec;
use models::shadow::AgentReport;
use semver::Version;
use serde_json::json;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use self::moves::Move;
use self::state::{Controller, Machine, Object, State, Truth};
use super::host::Host;
use crate::fixtures;
use crate::policy::Policy;
use crate::view::{NodeView, OperatorFacts, PodFacts};

const NAMES: [&str; 3] = ["a", "b", "c"];
const OLD: Version = fixtures::OLD;
const NEW: Version = fixtures::NEW;
const NEWER: Version = Version::new(1, 20, 6);
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);
const SOAK: Duration = Duration::from_secs(60);

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    nodes: usize,
    budget: usize,
    /// The time for which a hook is awaited before a drain; `None` without one.
    hook: Option<Duration>,
    /// The number of updates in a row without a proof that brake a rollout, if the model judges it.
    brake: Option<usize>,
    /// The first canary step.
    canary: Option<usize>,
    /// False if the new version does not boot.
    boots: bool,
    faults: u8,
    /// The number of times that another node's turn comes first; `None` for any order.
    turns: Option<u8>,
    /// The time that the model looks at.
    span: Duration,
    depth: usize,
}

/// The depth to which three nodes are searched in each run of the unit tests: the number of states of a path, the last of which is not
/// judged.
const DEPTH: usize = 20;

/// The depth to which two faults are searched.
const DEPTH_OF_TWO: usize = 21;

/// Searches to the end have no such depth.
const UNBOUNDED: usize = 1_000;

const BOUNDS: Bounds = Bounds {
    nodes: 3,
    budget: 1,
    hook: None,
    brake: None,
    canary: None,
    boots: true,
    faults: 1,
    turns: Some(0),
    span: Duration::from_hours(4),
    depth: UNBOUNDED,
};

/// A model: its bounds and its policies, the first of which is in force at the beginning.
struct World {
    bounds: Bounds,
    specs: Vec<BottlerocketUpdateOperatorSpec>,
    /// `None` for the invalid one.
    policies: Vec<Option<Policy>>,
    excluding: usize,
    invalid: usize,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let spec = |part: serde_json::Value| -> BottlerocketUpdateOperatorSpec {
            let deadlines = json!({"stage": "5m", "reboot": "2m", "return": "3m"});
            let mut spec = json!({"maxUnavailable": bounds.budget, "deadlines": deadlines});
            if let Some(limit) = bounds.brake {
                spec["failurePolicy"] = json!({"maxConsecutiveFailures": limit});
            }
            if let Some(nodes) = bounds.canary {
                spec["strategy"] = json!({"canary": [{"nodes": nodes}]});
            }
            if bounds.hook.is_some() {
                spec["hooks"] = json!([{"name": "slow", "before": {"timeout": "3m", "onTimeout": "Continue"}}]);
            }
            json_patch::merge(&mut spec, &part);
            serde_json::from_value(spec).unwrap()
        };
        let excluding = spec(json!({"version": {"exclude": [NEW.to_string()]}}));
        let specs = vec![spec(json!({})), excluding, spec(json!({"version": {"target": ">2 <1"}}))];
        let policies: Vec<_> = specs.iter().map(|spec| Policy::from_spec(spec).ok()).collect();
        assert_eq!(policies.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        Self { bounds, specs, policies, excluding: 1, invalid: 2 }
    }
}

/// Returns a node at the beginning, and its shadow.
fn node(index: usize) -> NodeView {
    let name = NAMES[index];
    let mut node = fixtures::node(name);
    node.facts.provider_id = Some(format!("i-{name}"));
    node
}

/// Returns a pod on a node that an eviction ends.
fn pod(node: usize, name: &str) -> PodFacts {
    let uid = format!("{name}-{}", NAMES[node]);
    PodFacts { name: uid.clone(), uid, ready: true, ..fixtures::pod(NAMES[node], false) }
}

fn machine(node: &NodeView) -> Machine {
    let agent: AgentReport = node.shadow.as_ref().unwrap().status.agent.clone();
    Machine {
        host: Host::new(OLD),
        boot_id: node.facts.boot_id.clone(),
        os_image: node.facts.os_image.clone(),
        up: true,
        permitted: None,
        lingers: false,
        agent,
        agent_runs: true,
        shown: None,
        earlier: Vec::new(),
        reported: None,
        offered: vec![NEW, OLD],
        ready_since: START,
        orphaned: false,
        verified: false,
        taken: false,
    }
}

/// The end that has to be reachable, so that the search is not empty.
const UPDATED: &str = "all nodes are updated";

macro_rules! never_broken {
    ($($number:literal)+) => {
        const NUMBERS: [&str; 14] = [$($number),+];

        /// Returns the properties that hold in every state.
        fn never() -> Vec<Property<World>> {
            vec![$(Property::always($number, |_, state: &State| {
                state.broken.as_ref().is_none_or(|broken| broken.0 != $number)
            })),+]
        }
    };
}

never_broken!["S1" "S2" "S3" "S4" "S6" "S7" "S8" "S9" "S10" "S11" "S12" "S13" "L2" "lint"];

impl Model for World {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        let nodes: Vec<NodeView> = (0..self.bounds.nodes).map(node).collect();
        let truth = nodes.iter().enumerate().map(|(index, node)| Truth {
            node: Some(Object::new(node.facts.clone(), 0)),
            shadow: node.shadow.as_deref().map(|shadow| Object::new(shadow.clone(), 0)),
            pods: Object::new(vec![pod(index, "web")], 0),
        });
        let spec = self.specs[0].clone();
        let operator = Object::new(OperatorFacts { uid: "op".into(), spec, ..OperatorFacts::default() }, 0);
        let mut state = State {
            now: START,
            truth: truth.collect(),
            machines: nodes.iter().map(|node| Object::new(machine(node), 0)).collect(),
            operator,
            controllers: Vec::new(),
            late: Vec::new(),
            cordoned: vec![false; nodes.len()],
            earlier_operator: false,
            waited: 0,
            first: 0,
            turns: 0,
            faults: 0,
            broken: None,
        };
        state.controllers = vec![Controller::leader(&state, &self.bounds), Controller::new(&state, false)];
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Move>) {
        actions.extend(moves::next(state, self));
    }

    fn next_state(&self, before: &State, happens: Move) -> Option<State> {
        Some(happen::after_move(before, self, &happens))
    }

    fn format_action(&self, action: &Move) -> String {
        action.to_string()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = never();
        properties.push(Property::sometimes(UPDATED, |_, state: &State| {
            let idle = |truth: &Truth| {
                truth.shadow.as_ref().is_some_and(|shadow| shadow.value.status.controller.progress.is_none())
            };
            state.machines.iter().all(|machine| machine.value.host.runs == NEW) && state.truth.iter().all(idle)
        }));
        properties
    }
}

/// Searches all states within bounds, and prints what it has found.
fn search(name: &str, bounds: Bounds) {
    let began = Instant::now();
    let checker = World::new(bounds).checker().target_max_depth(bounds.depth);
    let of_truth = NUMBERS.into_iter().filter(|number| *number != "lint");
    let checker = checker.finish_when(HasDiscoveries::AnyOf(of_truth.collect())).spawn_bfs().join();
    let seconds = began.elapsed().as_secs_f64();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: depth {depth}, {states} states, {seconds:.1} s");
    let found = checker.discoveries();
    // The validator's findings come last: what follows from a plan says more.
    let Some((number, path)) = NUMBERS.iter().find_map(|number| Some((number, found.get(number)?))) else {
        let to_the_end = depth < bounds.depth && bounds.boots;
        assert!(found.contains_key(UPDATED) || !to_the_end, "{name}: no node is updated");
        return;
    };
    let path = path.clone().into_vec();
    let broken = path.last().and_then(|(state, _)| state.broken.clone());
    let text = broken.map_or_else(String::new, |broken| broken.1.clone());
    println!("{number} is broken after {} steps: {text}", path.len() - 1);
    for (state, happens) in &path {
        let seconds = state.now.as_second() - START.as_second();
        println!("  {seconds:>5} {}", happens.as_ref().map_or_else(String::new, Move::to_string));
    }
    panic!("{name}: {number} is broken after {} steps: {text}", path.len() - 1);
}

#[test]
fn one_node_survives_each_fault_at_each_step() {
    search("one node, each fault once", Bounds { nodes: 1, turns: None, ..BOUNDS });
}

#[test]
fn nodes_are_updated_in_every_order_of_steps() {
    let orders = Bounds { faults: 0, turns: None, ..BOUNDS };
    let two = Bounds { nodes: 2, budget: 2, ..orders };
    let bad = Bounds { boots: false, brake: Some(1), span: Duration::from_mins(20), ..two };
    search("three nodes, one at a time", orders);
    search("three nodes, two at a time, a canary step", Bounds { budget: 2, canary: Some(1), ..orders });
    search("two nodes at a time, a hook", Bounds { hook: Some(Duration::from_mins(3)), ..two });
    search("two nodes at a time, a version that does not boot", bad);
    search("three nodes in turn, a version that does not boot", Bounds { nodes: 3, turns: Some(0), ..bad });
}

#[test]
fn three_nodes_survive_each_fault_up_to_a_depth() {
    search("three nodes, each fault once", Bounds { depth: DEPTH, ..BOUNDS });
}

#[test]
#[ignore = "it takes ten minutes: make test-all"]
fn three_nodes_survive_each_fault_to_the_end() {
    search("three nodes, each fault once, to the end", BOUNDS);
}

#[test]
#[ignore = "it takes minutes: make test-all"]
fn one_node_survives_two_faults_up_to_a_depth() {
    search("one node, two faults", Bounds { nodes: 1, faults: 2, depth: DEPTH_OF_TWO, ..BOUNDS });
}
