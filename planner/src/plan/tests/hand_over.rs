//! Replicas of the controller that hand the lead over, with a fleet whose nodes are all staged when the window opens.

use std::collections::{BTreeMap, BTreeSet};

use models::operator::{CountOrPercent, Slot};
use models::shadow::{HostState, Step};

use crate::fixtures::{NEW, at, cluster, node, one_proven, pod, t};
use crate::plan::plan;
use crate::policy::Policy;
use crate::standby::standby;
use crate::view::{ClusterView, NodeView, PodFacts, Standby};
use crate::wait::Wait;

/// The time that a node takes from its slot to its end, and a pod to its readiness, in seconds.
const UPDATE: i64 = 60;
const START: i64 = 5;

/// Pods of the controller, by name, with their node and the time at which they are Ready.
type Replicas = BTreeMap<String, (String, i64)>;

struct Fleet {
    names: Vec<String>,
    limit: u32,
    slots: Vec<Slot>,
    done: BTreeSet<String>,
    /// Nodes that have a pod that prevents their drain.
    refused: BTreeSet<String>,
    replicas: Replicas,
    made: usize,
    leader: String,
    /// True if the leader was handed the lead and has given no slot since.
    handed_over: bool,
    hand_overs: usize,
    now: i64,
}

impl Fleet {
    fn new(nodes: usize, replicas: usize, limit: u32) -> Self {
        let names: Vec<_> = (0..nodes).map(|n| format!("n{n}")).collect();
        let pods = (0..replicas).map(|pod| (format!("c{pod}"), (names[pod % nodes].clone(), 0)));
        Self {
            limit,
            slots: vec![],
            done: BTreeSet::new(),
            refused: BTreeSet::new(),
            replicas: pods.collect(),
            made: replicas,
            leader: "c0".into(),
            handed_over: false,
            hand_overs: 0,
            now: 0,
            names,
        }
    }

    fn works(&self, name: &str) -> bool {
        self.slots.iter().any(|slot| slot.node == name)
    }

    fn node(&self, name: &str) -> NodeView {
        if self.done.contains(name) {
            let mut done = node(name);
            done.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
            let agent = &mut done.shadow.as_mut().unwrap().status.agent;
            agent.current_version = Some(NEW);
            agent.updates.as_mut().unwrap().chosen_version = None;
            return done;
        }
        let step = if self.works(name) { Step::Draining } else { Step::Staged };
        let mut node = at(name, step, self.now, HostState::StagedUpdate);
        if self.refused.contains(name) {
            node.pods = Some(vec![pod(name, true)]);
        }
        node
    }

    fn standby(&self, view: &ClusterView) -> Standby {
        let pods = self.replicas.iter().map(|(name, (node, ready))| {
            let pod =
                PodFacts { name: name.clone(), node: node.clone(), ready: *ready <= self.now, ..PodFacts::default() };
            (name.clone(), pod)
        });
        let nodes = view.nodes.iter().map(|(name, node)| (name.clone(), node.facts.clone())).collect();
        standby(&self.leader, Some(&self.replicas[&self.leader].0), &pods.collect(), &nodes)
    }

    fn view(&self) -> ClusterView {
        let (mut view, _) = cluster(self.names.iter().map(|name| self.node(name)).collect(), &[]);
        view.operator.as_mut().unwrap().status.slots.clone_from(&self.slots);
        view.own_node = Some(self.replicas[&self.leader].0.clone());
        view.handed_over = self.handed_over;
        view.standby = self.standby(&view);
        view
    }

    /// Drains a node: its replicas are created again on another one if there is one, and another one leads.
    fn drain(&mut self, name: &str) {
        let gone: Vec<_> =
            self.replicas.iter().filter(|(_, (node, _))| node == name).map(|(pod, _)| pod.clone()).collect();
        for pod in gone {
            self.replicas.remove(&pod);
            let place = self.names.iter().find(|other| !self.works(other)).map_or(name, String::as_str).to_owned();
            self.made += 1;
            self.replicas.insert(format!("c{}", self.made), (place, self.now + START));
        }
        if !self.replicas.contains_key(&self.leader) {
            self.leader = self.replicas.iter().min_by_key(|(_, (_, ready))| *ready).unwrap().0.clone();
        }
    }

    /// Runs one second. Returns the reasons of the nodes that wait.
    fn second(&mut self) -> BTreeMap<String, Wait> {
        self.now += 1;
        let (now, done) = (self.now, &mut self.done);
        self.slots.retain(|slot| {
            let ended = slot.since.as_second() + UPDATE <= t(now).as_second();
            done.extend(ended.then(|| slot.node.clone()));
            !ended
        });
        if self.replicas[&self.leader].1 > self.now {
            return BTreeMap::new();
        }
        let view = self.view();
        let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(self.limit), ..Policy::default() };
        let plan = plan(&view, &policy, t(self.now));
        let given: Vec<_> = plan.slots.iter().flatten().filter(|slot| !self.works(&slot.node)).cloned().collect();
        assert!(!plan.hand_over || given.is_empty(), "the lead is handed over beside {given:?}");
        assert!(self.slots.len() + given.len() <= self.limit as usize);
        for slot in given {
            let own = view.own_node.as_ref() == Some(&slot.node);
            assert!(
                !own || view.standby != Standby::Ready || view.handed_over,
                "{} is drained under a leader that runs on it",
                slot.node
            );
            self.handed_over = false;
            self.slots.push(slot.clone());
            self.drain(&slot.node);
        }
        if plan.hand_over {
            assert!(!self.handed_over, "the lead is handed back");
            (self.handed_over, self.hand_overs) = (true, self.hand_overs + 1);
            let on = view.own_node.unwrap();
            let next =
                self.replicas.iter().find(|(_, (node, ready))| *node != on && *ready <= self.now && !self.works(node));
            self.leader = next.unwrap().0.clone();
        }
        plan.waits
    }
}

#[test]
fn all_nodes_are_updated_with_at_most_one_hand_over_per_node() {
    for (nodes, replicas, limit, refused) in fleets(3) {
        let mut fleet = Fleet::new(nodes, replicas, limit);
        fleet.refused.extend(refused.map(|number| format!("n{number}")));
        let wanted = nodes - usize::from(refused.is_some());
        let sentence =
            format!("{nodes} nodes, {replicas} replicas, maxUnavailable {limit}, {refused:?} has a bare pod");
        let mut waits = BTreeMap::new();
        // One after the other, and some seconds for each replica that is created again.
        let limit = 2 + i64::try_from(wanted).unwrap() * (UPDATE + 2 * START);
        while fleet.done.len() < wanted && fleet.now < limit {
            waits = fleet.second();
        }
        assert_eq!(fleet.done.len(), wanted, "{sentence}: {:?} after {} s: {waits:?}", fleet.done, fleet.now);
        assert!(fleet.hand_overs <= nodes, "{sentence}: {} times", fleet.hand_overs);
    }
}

/// All fleets of one to `most` nodes and replicas with every limit, in each of which no node or one of them is refused.
fn fleets(most: usize) -> Vec<(usize, usize, u32, Option<usize>)> {
    let mut all = Vec::new();
    for nodes in 1..=most {
        for replicas in 1..=most {
            for limit in 1..=u32::try_from(nodes).unwrap() {
                let refused = std::iter::once(None).chain((0..nodes).map(Some));
                all.extend(refused.map(|refused| (nodes, replicas, limit, refused)));
            }
        }
    }
    all
}

/// The pods of the other node are being read, to see if it may be drained.
#[test]
fn leader_keeps_lead_and_its_node_waits_while_another_node_is_checked() {
    for (sentence, replicas, handed_over) in [
        ("another replica is Ready", 2, false),
        ("another replica is Ready, and has handed the lead over", 2, true),
        ("the other replica is on the same node", 1, false),
    ] {
        let mut fleet = Fleet::new(2, replicas, 2);
        fleet.handed_over = handed_over;
        if replicas == 1 {
            fleet.replicas.insert("c1".into(), ("n0".into(), 0));
        }
        let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(2), ..Policy::default() };
        let mut view = fleet.view();
        one_proven(&mut view);
        assert_eq!(view.own_node.as_deref(), Some("n0"));
        view.nodes.get_mut("n1").unwrap().pods = None;
        let made = plan(&view, &policy, t(1));
        assert!(!made.hand_over, "{sentence}");
        assert_eq!(made.waits["n0"], Wait::HandingOver, "{sentence}");
        assert!(made.slots.is_none_or(|slots| slots.is_empty()), "{sentence}");
        view.nodes.get_mut("n1").unwrap().pods = Some(vec![]);
        let given: Vec<String> = plan(&view, &policy, t(2)).slots.unwrap().into_iter().map(|slot| slot.node).collect();
        assert_eq!(given, ["n1"], "{sentence}: once it is checked");
    }
}

#[test]
fn long_held_slot_does_not_delay_hand_over() {
    let mut fleet = Fleet::new(3, 2, 2);
    fleet.slots = vec![Slot { uid: "uid-n2".into(), node: "n2".into(), since: t(0), update: None }];
    fleet.done.insert("n1".into());
    let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(2), ..Policy::default() };
    for (second, hand_over) in [(599, false), (600, true)] {
        let mut view = fleet.view();
        one_proven(&mut view);
        let plan = plan(&view, &policy, t(second));
        assert_eq!(plan.hand_over, hand_over, "{second}");
        assert_eq!(plan.waits["n0"], Wait::HandingOver);
        assert!(hand_over || plan.wake.is_some_and(|wake| wake <= t(600)), "{:?}", plan.wake);
    }
}
