//! Drills: what they go through and what they never do, what refuses and what ends them, and what they leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use models::condition::Condition;
use models::operator::{ActiveRollout, CountOrPercent};
use models::reason::{ENDS, FailureReason};
use models::shadow::{
    DrillResult, Failure, HOST_REACHABLE, HistoryPosition, HostState, NodeBefore, Permit, Record, Step,
    UNSUPPORTED_STATE, is_agent_condition,
};
use serde_json::json;

use crate::claims::{ClaimField, ClaimFields};
use crate::decision::{Action, Evictions};
use crate::fixtures::*;
use crate::hold::Hold;
use crate::lint::lint;
use crate::plan::{Plan, TURN, checks, plan};
use crate::policy::Policy;
use crate::simulation::Host;
use crate::view::{Blocked, ClusterView, DaemonSetState, NodeFacts, PodFacts};
use crate::wait::Wait;

/// A cluster, the hosts of its nodes, and what was done to them.
struct Bench {
    view: ClusterView,
    policy: Policy,
    now: i64,
    hosts: BTreeMap<String, Host>,
    /// Seconds after which a refused eviction is tried again.
    retry: i64,
    /// The budget that refuses a pod, by its uid; empty: it is refused without one.
    refused: BTreeMap<String, &'static str>,
    /// The desired states of node `a`, each once, in their order.
    states: Vec<HostState>,
    /// Steps of node `a`.
    steps: Vec<Step>,
    evictions: Vec<Evictions>,
    /// The reasons of the Events about it.
    events: Vec<&'static str>,
    /// The most nodes that were out of service at a time.
    most_out: usize,
}

impl Bench {
    /// Nodes `a`, `b` … of which each has these pods, with a drill of `a` requested.
    fn new(nodes: &[&str], request: &str) -> Self {
        let members = nodes.iter().map(|name| {
            let mut node = node(name);
            let pods = ["web", "db"].map(|kind| PodFacts {
                name: format!("{kind}-{name}"),
                uid: format!("{kind}-{name}"),
                ready: true,
                ..pod(name, false)
            });
            node.pods = Some(pods.to_vec());
            let agent = &mut node.shadow.as_mut().unwrap().status.agent;
            agent.updates.as_mut().unwrap().available_versions = vec![OLD];
            agent.updates.as_mut().unwrap().chosen_version = None;
            node
        });
        let (mut view, policy) = cluster(members.collect(), &[]);
        shadow(&mut view).drill = Some(request.into());
        let hosts = nodes.iter().map(|name| ((*name).to_owned(), Host::new(OLD))).collect();
        Self {
            view,
            policy,
            now: 0,
            hosts,
            retry: 5,
            refused: BTreeMap::new(),
            states: vec![],
            steps: vec![],
            evictions: vec![],
            events: vec![],
            most_out: 0,
        }
    }

    fn plan(&self) -> Plan {
        let mut made = plan(&self.view, &self.policy, t(self.now));
        let findings = lint(&self.view, &self.policy, &mut made);
        assert!(findings.is_empty(), "{findings:?}");
        made
    }

    /// Makes one plan and carries it out; then each agent does its part, if `agents` are there.
    fn step(&mut self, agents: bool) {
        self.now += 1;
        let made = self.plan();
        if let Some(slots) = made.slots {
            self.view.operator.as_mut().unwrap().status.slots = slots;
        }
        for (name, evictions) in made.evictions {
            for pod in &evictions.pods {
                let node = self.view.nodes.get_mut(&name).unwrap();
                let budget = self.refused.get(&pod.uid);
                let (message, since, retry_at) = ("not now".to_owned(), t(self.now), t(self.now + self.retry));
                let accepted = budget.is_none();
                let budget = budget.filter(|budget| !budget.is_empty()).map(|budget| (*budget).to_owned());
                let since = node.blocked.get(&pod.uid).map_or(since, |before| before.since);
                let answer = Blocked { budget, message, since, retry_at, accepted, ..Blocked::default() };
                node.blocked.insert(pod.uid.clone(), answer);
                if accepted && !evictions.dry_run {
                    node.pods.as_mut().unwrap().retain(|other| other.uid != pod.uid);
                }
            }
            self.evictions.push(evictions);
        }
        for (name, action) in made.actions {
            self.carry_out(&name, action);
        }
        let out = self.view.nodes.values().filter(|node| node.facts.claimed()).count();
        self.most_out = self.most_out.max(out);
        for (name, host) in self.hosts.iter_mut().filter(|_| agents) {
            let node = self.view.nodes.get_mut(name).unwrap();
            let offered = node.shadow.as_ref().unwrap().status.agent.updates.clone().unwrap().available_versions;
            host.agent_step(node, &offered, true, t(self.now));
        }
    }

    fn carry_out(&mut self, name: &str, action: Action) {
        let of_a = name == "a";
        let node = self.view.nodes.get_mut(name).unwrap();
        let shadow = node.shadow.as_mut().unwrap();
        match action {
            Action::Status { status, note } => {
                let step = status.report.progress.as_ref().map(|progress| progress.step);
                self.steps.extend(step.filter(|step| of_a && self.steps.last() != Some(step)));
                self.events.extend(note.filter(|_| of_a).map(|note| note.reason));
                shadow.status.controller = status.report;
                shadow.status.conditions.retain(|condition| is_agent_condition(&condition.type_));
                shadow.status.conditions.extend(status.conditions);
            }
            Action::Spec { spec } => {
                let state = Some(spec.state).filter(|state| of_a && self.states.last() != Some(state));
                self.states.extend(state);
                shadow.spec = *spec;
                shadow.generation += 1;
            }
            Action::Claim { fields, .. } => {
                (node.facts.claims, node.facts.unschedulable) = (fields, fields.has(ClaimField::Cordon));
            }
            Action::Release => (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false),
            Action::Permit { nonce, .. } => {
                shadow.spec.permit = Some(Permit { nonce, jws: String::new() });
                shadow.generation += 1;
            }
            Action::Hook { request } => {
                node.facts.hook_answers = request.iter().map(|request| ("ceph".to_owned(), request.clone())).collect();
                node.facts.hook_request = request;
            }
            Action::ReadLease { .. } => node.lease = renewed_after(self.now),
            Action::ReadOwner { .. } | Action::ReadReplicaSet { .. } => {}
        }
    }

    /// Goes on until the drill has its result and the node is released, and returns the result.
    fn end(&mut self) -> DrillResult {
        for _ in 0..10_000 {
            self.step(true);
            let node = &self.view.nodes["a"];
            if let Some(found) = node.record().and_then(|record| record.drill.clone())
                && node.progress().is_none()
            {
                assert!(!node.facts.claimed() && !node.facts.unschedulable, "the node stays out of service");
                self.step(true);
                let slots = &self.view.operator.as_ref().unwrap().status.slots;
                assert!(slots.iter().all(|slot| slot.node != "a"), "the node keeps its slot");
                return found;
            }
        }
        panic!("the drill does not end: {:?}, {:?}", self.steps, self.plan().waits);
    }

    /// Goes on until the drill is at this step.
    fn until(&mut self, step: Step) {
        for _ in 0..1000 {
            if self.view.nodes["a"].step() == Some(step) {
                return;
            }
            self.step(true);
        }
        panic!("the drill does not come to {step:?}: {:?}, {:?}", self.steps, self.plan().waits);
    }

    fn record(&self) -> Record {
        self.view.nodes["a"].record().cloned().unwrap_or_default()
    }

    fn assert_nothing_armed_or_charged(&self) {
        assert!(self.hosts.values().all(|host| !host.armed && host.boots == 0 && !host.cleared));
        assert!(!self.states.contains(&HostState::RebootedIntoUpdate), "{:?}", self.states);
        let record = self.record();
        assert_eq!((record.failures, record.not_before, record.last), (0, None, None));
        assert!(record.version_failures.is_empty());
    }
}

#[test]
fn drill_waits_for_one_whose_first_write_is_under_way() {
    let mut bench = Bench::new(&["a", "b"], "1");
    bench.view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().drill = Some("1".into());
    bench.view.busy.insert("a".into());
    let waits = bench.plan().waits;
    assert_eq!(waits.get("b"), Some(&Wait::Queued { position: 1, behind: Some("a".into()) }), "{waits:?}");
}

#[test]
fn dry_run_drill_rehearses_all_steps_and_evicts_arms_and_reboots_nothing() {
    let mut bench = Bench::new(&["a"], "1");
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.pods), ("Passed", 2), "{found:?}");
    assert_eq!(found.message, "2 pod(s) may be evicted now, and the node stayed healthy");
    use Step::{Draining, Rebooting, Staging, Verifying};
    let short: Vec<_> = bench.steps.iter().filter(|step| **step != Step::Staged).copied().collect();
    assert_eq!(short, [Staging, Draining, Rebooting, Verifying]);
    assert_eq!(bench.states, [HostState::RehearsedUpdate, HostState::Idle]);
    assert!(bench.evictions.iter().all(|evictions| evictions.dry_run && !evictions.delete));
    let asked: usize = bench.evictions.iter().map(|evictions| evictions.pods.len()).sum();
    assert_eq!(asked, 2, "each pod is asked about once");
    assert_eq!(bench.view.nodes["a"].pods.as_ref().unwrap().len(), 2);
    assert_eq!(bench.events, ["DrillStarted", "DrillPassed"]);
    assert_eq!(bench.record().requests.unwrap().drill.as_deref(), Some("1"));
    assert!(found.drain_started < found.drain_ended && found.drain_ended < found.soak_started);
    let soak = i64::try_from(bench.policy.all.after.soak.as_secs()).unwrap();
    assert!(found.ended >= models::time::after(found.soak_started.unwrap(), bench.policy.all.after.soak), "{soak}");
    bench.assert_nothing_armed_or_charged();
    // The request is carried out once.
    for _ in 0..5 {
        bench.step(true);
    }
    assert_eq!(bench.view.nodes["a"].step(), None);
}

#[test]
fn drill_has_its_boot_and_a_place_in_no_rollout() {
    for request in ["1", "1 download"] {
        let mut bench = Bench::new(&["a"], request);
        let updates = shadow(&mut bench.view).status.agent.updates.as_mut().unwrap();
        (updates.available_versions, updates.chosen_version) = (vec![NEW, OLD], Some(NEW));
        let going_on = ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) };
        bench.view.operator.as_mut().unwrap().status.active_rollouts = vec![going_on];
        for _ in 0..5 {
            if bench.view.nodes["a"].progress().is_none() {
                bench.step(true);
            }
        }
        let place = bench.view.nodes["a"].progress().unwrap().rollout.clone().unwrap();
        assert_eq!(place, HistoryPosition { boot_id: "b1".into(), ..HistoryPosition::default() }, "{request}");
    }
}

#[test]
fn dry_run_names_pods_that_budgets_refuse_and_goes_on() {
    let mut bench = Bench::new(&["a"], "1");
    bench.refused.insert("web-a".into(), "shop/web");
    let found = bench.end();
    assert_eq!(found.result, "EvictionsRefused", "{found:?}");
    let refused: Vec<_> = found.drill.refused.iter().map(|b| (b.pod.as_str(), b.budget.as_deref())).collect();
    assert_eq!(refused, [("shop/web-a", Some("shop/web"))]);
    assert!(found.message.starts_with("1 of 2 pod(s)") && found.message.contains("PodDisruptionBudget shop/web"));
    assert_eq!(bench.steps.last(), Some(&Step::Verifying));
    assert_eq!(bench.events, ["DrillStarted", "DrillFailed"]);
    let asked: usize = bench.evictions.iter().map(|evictions| evictions.pods.len()).sum();
    assert_eq!(asked, 2, "a refused pod is not asked about again");
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn result_of_a_dry_run_tells_that_more_pods_may_be_refused_than_it_names() {
    for (count, expected) in
        [(31, "31 of 31 pod(s)"), (32, "at least 32 of 32 pod(s)"), (33, "at least 32 of 33 pod(s)")]
    {
        let mut bench = Bench::new(&["a"], "1");
        let names: Vec<String> = (0..count).map(|number| format!("web-{number:02}")).collect();
        let named = |name: &String| PodFacts { name: name.clone(), uid: name.clone(), ready: true, ..pod("a", false) };
        bench.view.nodes.get_mut("a").unwrap().pods = Some(names.iter().map(named).collect());
        bench.refused = names.into_iter().map(|name| (name, "shop/web")).collect();
        let found = bench.end();
        assert!(found.message.starts_with(expected), "{count}: {}", found.message);
    }
}

#[test]
fn refusal_without_a_budget_is_asked_about_again_for_a_minute_and_is_the_result_then() {
    let mut bench = Bench::new(&["a"], "1");
    bench.refused.insert("web-a".into(), "");
    bench.retry = 25;
    let found = bench.end();
    assert_eq!(found.result, "EvictionsRefused", "{found:?}");
    let refused: Vec<_> = found.drill.refused.iter().map(|b| (b.pod.as_str(), b.budget.as_deref())).collect();
    assert_eq!(refused, [("shop/web-a", None)]);
    let seconds = found.drain_ended.unwrap().duration_since(found.drain_started.unwrap()).as_secs();
    assert!((60..=62).contains(&seconds), "{seconds} s");
    let asked: usize = bench.evictions.iter().map(|evictions| evictions.pods.len()).sum();
    assert_eq!(asked, 1 + 1 + 60 / 25, "the other pod, then this one every 25 s");
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn pod_that_comes_before_the_node_is_cordoned_is_asked_about_too() {
    let mut bench = Bench::new(&["a"], "1");
    bench.until(Step::Draining);
    let late = PodFacts { name: "late-a".into(), uid: "late-a".into(), ready: true, ..pod("a", false) };
    bench.view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().push(late);
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.pods), ("Passed", 3), "{found:?}");
}

#[test]
fn drill_with_evictions_drains_node_and_deletes_no_pod_past_its_budget() {
    let mut bench = Bench::new(&["a"], "1 evict");
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.pods), ("Passed", 2), "{found:?}");
    assert_eq!(found.message, "2 pod(s) were evicted, and the node stayed healthy");
    assert!(bench.steps.contains(&Step::Draining) && bench.steps.contains(&Step::Rebooting));
    assert!(bench.evictions.iter().all(|evictions| !evictions.dry_run));
    assert!(bench.view.nodes["a"].pods.as_ref().unwrap().is_empty());
    bench.assert_nothing_armed_or_charged();

    let mut blocked = Bench::new(&["a"], "1 evict");
    blocked.policy.all.drain.at_deadline = models::operator::AtDeadline::Force;
    blocked.refused.insert("web-a".into(), "shop/web");
    let found = blocked.end();
    assert_eq!(found.result, "DrainTimedOut", "{found:?}");
    assert!(blocked.evictions.iter().all(|evictions| !evictions.delete));
    blocked.assert_nothing_armed_or_charged();
}

/// The scheduler had chosen the node for it before it observed the cordon.
#[test]
fn pod_that_comes_to_the_drained_node_of_a_drill_is_evicted_too_but_no_second_one() {
    for (come, expected) in [(1, "Passed"), (2, "PodsReturn")] {
        let mut bench = Bench::new(&["a"], "1 evict");
        for number in 0..come {
            bench.until(Step::Draining);
            bench.until(Step::Rebooting);
            let name = format!("late-{number}");
            let late = PodFacts { name: name.clone(), uid: name, ready: true, ..pod("a", false) };
            bench.view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().push(late);
        }
        let found = bench.end();
        assert_eq!(found.result, expected, "{found:?}");
        bench.assert_nothing_armed_or_charged();
    }
}

#[test]
fn node_is_protected_from_autoscalers_until_the_soak_of_its_drill_is_over() {
    for request in ["1", "1 evict"] {
        for protects in [true, false] {
            let mut bench = Bench::new(&["a"], request);
            bench.policy.protect_from_autoscalers = protects;
            bench.until(Step::Verifying);
            let protection = ClaimFields::USUAL.without(ClaimFields::CORDON);
            let expected = if protects { protection } else { ClaimFields::default() };
            for _ in 0..5 {
                bench.step(true);
                let facts = &bench.view.nodes["a"].facts;
                assert_eq!((facts.claims, facts.unschedulable), (expected, false), "{request}, {protects}");
            }
            assert_eq!(bench.view.nodes["a"].step(), Some(Step::Verifying), "{request}: it soaks");
            assert_eq!(bench.end().result, "Passed", "{request}: and nothing is claimed then");
        }
    }
}

#[test]
fn drill_with_download_stages_image_and_leaves_it_disarmed() {
    let mut bench = Bench::new(&["a"], "1,download");
    shadow(&mut bench.view).status.agent.updates.as_mut().unwrap().available_versions = vec![NEW, OLD];
    bench.step(true);
    shadow(&mut bench.view).drill = Some("2 download".into());
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.version.as_ref()), ("Passed", Some(&NEW)), "{found:?}");
    assert_eq!(bench.hosts["a"].staged, Some(NEW));
    let states = [HostState::StagedUpdate, HostState::RehearsedUpdate, HostState::Idle];
    assert_eq!(bench.states[bench.states.len() - 3..], states);
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn gate_of_an_update_ends_request_with_its_reason() {
    type Change = fn(&mut Bench);
    let facts = |bench: &mut Bench| bench.view.nodes.get_mut("a").unwrap().facts.clone();
    let case = |sentence: &str, request: &str, expected: &str, change: Change| {
        let mut bench = Bench::new(&["a", "b"], request);
        change(&mut bench);
        let before = facts(&mut bench);
        bench.step(true);
        let record = bench.record();
        let found = record.drill.clone().unwrap_or_else(|| panic!("{sentence}: {:?}", bench.plan().waits));
        assert_eq!((found.result.as_str(), found.attempt), (expected, None), "{sentence}");
        assert_eq!(record.requests.unwrap().drill.as_deref(), Some(request), "{sentence}");
        assert_eq!(bench.events, ["DrillFailed"], "{sentence}");
        assert_eq!(facts(&mut bench), before, "{sentence}: the node was changed");
        assert!(bench.steps.is_empty() && bench.states.is_empty(), "{sentence}: {:?}", bench.steps);
    };
    case("disabled", "1", "Disabled", |b| b.policy.enabled = false);
    case("without the operator's resource", "1", "NoOperatorResource", |b| b.policy.present = false);
    case("held", "1", "Held", |b| b.view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default()));
    case("not Ready", "1", "NodeNotReady", |b| b.view.nodes.get_mut("a").unwrap().facts.ready = false);
    case("cordoned by others", "1", "Cordoned", |b| b.view.nodes.get_mut("a").unwrap().facts.unschedulable = true);
    case("under pressure", "1", "NodePressure", |b| {
        b.view.nodes.get_mut("a").unwrap().facts.pressure = Some("DiskPressure".into());
    });
    case("frozen", "1", "Frozen", |b| {
        let record = shadow(&mut b.view).status.controller.record.get_or_insert_default();
        record.version_failures.push(failure(NEW));
    });
    case("outside of the window, also with pre-staging", "1", "WindowClosed", |b| {
        b.policy = with_policy(
            &mut b.view,
            serde_json::json!({
                "schedule": {"windows": [{"cron": "0 3 1 1 *", "duration": "1h"}]},
                "strategy": {"preStage": {"maxNodes": 1}},
            }),
        );
    });
    case("nothing to download", "1 download", "UpToDate", |_| {});
}

#[test]
fn drill_needs_no_version_and_no_end_of_a_back_off() {
    let mut bench = Bench::new(&["a"], "1");
    shadow(&mut bench.view).status.controller.record =
        Some(Record { failures: 2, not_before: Some(t(100_000)), ..updated() });
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.version), ("Passed", Some(OLD)));
    let record = bench.record();
    assert_eq!((record.failures, record.not_before, record.last), (2, Some(t(100_000)), updated().last));
}

#[test]
fn finding_about_the_pods_ends_drill_before_the_node_is_claimed() {
    let mut bench = Bench::new(&["a"], "1");
    bench.view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()[0].controller_uid = None;
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.drain_started), ("DrainRefused", None), "{found:?}");
    assert_eq!(bench.most_out, 0);
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn drill_waits_for_its_slot_and_update_of_the_node_waits_for_the_drill() {
    let mut bench = Bench::new(&["a", "b"], "1");
    for name in ["a", "b"] {
        let agent = &mut bench.view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().status.agent;
        agent.updates.as_mut().unwrap().available_versions = vec![NEW, OLD];
        agent.updates.as_mut().unwrap().chosen_version = Some(NEW);
    }
    // Another node has the only slot.
    let held = at("b", Step::Draining, 0, HostState::StagedUpdate);
    bench.view.nodes.insert("b".into(), held);
    bench.view.operator.as_mut().unwrap().status.slots = vec![slot("b")];
    bench.hosts.remove("b");
    for _ in 0..20 {
        bench.step(true);
    }
    assert_eq!(bench.view.nodes["a"].step(), Some(Step::Staged));
    assert!(!bench.view.nodes["a"].facts.claimed() && bench.record().drill.is_none());
    bench.view.nodes.insert("b".into(), node("b"));
    bench.view.nodes.get_mut("b").unwrap().facts.hold = Some(Hold::default());
    let found = bench.end();
    assert_eq!(found.result, "Passed", "{found:?}");
    assert_eq!(bench.most_out, 1);
    assert!(bench.states.iter().all(|state| *state != HostState::StagedUpdate), "{:?}", bench.states);
    // The node is updated next.
    for _ in 0..10 {
        bench.step(true);
    }
    assert!(bench.states.contains(&HostState::StagedUpdate), "{:?}", bench.states);
}

#[test]
fn drills_never_take_more_nodes_out_of_service_than_the_budget_allows() {
    for limit in [1, 2] {
        let mut bench = Bench::new(&["a", "b", "c"], "1");
        bench.policy.max_unavailable = CountOrPercent::Count(limit);
        for name in ["b", "c"] {
            bench.view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().drill = Some("1 evict".into());
        }
        let mut most_prepared = 0;
        for _ in 0..2000 {
            bench.step(true);
            let slots = &bench.view.operator.as_ref().unwrap().status.slots;
            let has_slot = |name: &String| slots.iter().any(|slot| slot.node == *name);
            let prepared =
                bench.view.nodes.iter().filter(|(name, node)| {
                    matches!(node.step(), Some(Step::Staging | Step::Staged)) && !has_slot(name)
                });
            most_prepared = most_prepared.max(prepared.count());
        }
        assert_eq!(most_prepared, usize::try_from(limit).unwrap(), "drills that have begun and have no slot yet");
        let passed = |name: &str| bench.view.nodes[name].record().and_then(|r| r.drill.clone()).map(|d| d.result);
        for name in ["a", "b", "c"] {
            assert_eq!(passed(name).as_deref(), Some("Passed"), "{name}");
        }
        assert_eq!(bench.most_out, usize::try_from(limit).unwrap());
    }
}

#[test]
fn drill_that_waits_for_room_in_its_group_keeps_no_other_drill_waiting() {
    let mut bench = Bench::new(&["a", "gpu-1", "gpu-2", "gpu-3", "gpu-down"], "1");
    let group = json!({"name": "gpu", "selector": {"matchLabels": {"tier": "gpu"}}, "maxUnavailable": 1});
    let spec = json!({"maxUnavailable": 3, "nodeGroups": [group]});
    bench.policy = Policy::from_spec(&serde_json::from_value(spec).unwrap()).unwrap();
    let asked = bench.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().drill.take();
    for name in ["gpu-1", "gpu-2", "gpu-3"] {
        let node = bench.view.nodes.get_mut(name).unwrap();
        node.facts.labels = Arc::new([("tier".to_owned(), "gpu".to_owned())].into());
        node.shadow.as_mut().unwrap().drill = Some("1".into());
    }
    let down = bench.view.nodes.get_mut("gpu-down").unwrap();
    down.facts.labels = Arc::new([("tier".to_owned(), "gpu".to_owned())].into());
    // They begin, and then a node of their group fails.
    bench.step(true);
    bench.view.nodes.get_mut("gpu-down").unwrap().facts.ready = false;
    for _ in 0..20 {
        bench.step(true);
    }
    let waits = bench.plan().waits;
    assert!(matches!(waits["gpu-1"], Wait::BudgetUsedUp { group: Some(_), .. }), "{:?}", waits["gpu-1"]);
    bench.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().drill = asked;
    assert_eq!(bench.end().result, "Passed");
}

#[test]
fn drill_that_waits_for_others_is_next_by_the_order_of_updates_and_is_ended_by_release() {
    let mut bench = Bench::new(&["a", "b", "c"], "1");
    // Another node has the only slot.
    bench.view.nodes.insert("c".into(), at("c", Step::Draining, 0, HostState::StagedUpdate));
    bench.view.operator.as_mut().unwrap().status.slots = vec![slot("c")];
    bench.hosts.remove("c");
    bench.view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().drill = Some("1".into());
    let labels = [(models::names::PRIORITY_LABEL.to_owned(), "9".to_owned())];
    bench.view.nodes.get_mut("b").unwrap().facts.labels = Arc::new(labels.into());
    for _ in 0..20 {
        bench.step(true);
    }
    assert_eq!((bench.view.nodes["a"].step(), bench.view.nodes["b"].step()), (None, Some(Step::Staged)));
    let made = bench.plan();
    let queued = Wait::Queued { position: 1, behind: Some("b".into()) };
    assert_eq!(made.waits["a"], queued);
    let checks = checks(&bench.view, &bench.policy, &made, t(bench.now), "a");
    let first = checks.iter().find(|check| check.wait().is_some()).unwrap();
    assert_eq!((first.name, first.wait()), (TURN, Some(&queued)), "{checks:?}");
    shadow(&mut bench.view).release = Some("2".into());
    bench.step(true);
    assert_eq!(bench.record().drill.map(|drill| drill.result).as_deref(), Some("ReleaseRequested"));
    for _ in 0..5 {
        bench.step(true);
    }
    assert_eq!(bench.view.nodes["a"].step(), None, "the request was carried out");
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn agent_that_does_not_know_drills_ends_drill_before_the_node_is_claimed() {
    for download in [false, true] {
        let mut bench = Bench::new(&["a"], if download { "1 download" } else { "1" });
        let updates = shadow(&mut bench.view).status.agent.updates.as_mut().unwrap();
        (updates.available_versions, updates.chosen_version) = (vec![NEW, OLD], Some(NEW));
        while bench.record().drill.is_none() {
            let rehearses = bench.view.nodes["a"].shadow.as_ref().unwrap().spec.state == HostState::RehearsedUpdate;
            bench.step(!rehearses);
            if rehearses {
                let conditions = &mut shadow(&mut bench.view).status.conditions;
                let unsupported: Condition = condition(HOST_REACHABLE, UNSUPPORTED_STATE, "not known");
                models::condition::set_condition(conditions, unsupported);
            }
        }
        let found = bench.record().drill.unwrap();
        assert_eq!((found.result.as_str(), found.drain_started), ("UnsupportedState", None), "{found:?}");
        assert_eq!(bench.most_out, 0);
    }
}

#[test]
fn drill_request_waits_for_a_host_until_its_agent_has_reported() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, expected: &str, change: Change| {
        let mut bench = Bench::new(&["a"], "1");
        shadow(&mut bench.view).status.conditions.push(unreachable());
        change(&mut bench.view);
        for _ in 0..3 {
            bench.step(false);
        }
        let ended = bench.record().drill.map_or_else(|| "waits".to_owned(), |drill| drill.result);
        assert_eq!(ended, expected, "{sentence}");
    };
    case("a report of an earlier boot", "waits", |view| shadow(view).status.agent.boot_id = Some("b0".into()));
    case("the agent is behind", "waits", |view| shadow(view).generation = 2);
    case("the agent has reported", "HostNotUsable", |_| {});
}

#[test]
fn drill_does_not_pass_while_the_agent_cannot_use_its_host() {
    let mut bench = Bench::new(&["a"], "1");
    bench.until(Step::Verifying);
    shadow(&mut bench.view).status.conditions.push(unreachable());
    let found = bench.end();
    assert_eq!(found.result, "NodeNotUsable", "{found:?}");
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn hold_release_pause_freeze_or_reboot_ends_drill_with_its_reason() {
    type Change = fn(&mut Bench);
    let case = |sentence: &str, step: Step, expected: &str, change: Change| {
        let mut bench = Bench::new(&["a"], "1");
        bench.until(step);
        change(&mut bench);
        for _ in 0..10 {
            bench.step(true);
        }
        let found = bench.record().drill.unwrap_or_else(|| panic!("{sentence}: {:?}", bench.plan().waits));
        assert_eq!(found.result, expected, "{sentence}");
        // The fleet is frozen by the failure of the case itself.
        let record = bench.record();
        assert_eq!((record.failures, record.not_before, record.last), (0, None, None), "{sentence}");
        // A hold keeps a node that is out of service as it is.
        let facts = &bench.view.nodes["a"].facts;
        assert!(!facts.claimed() || (facts.held() && step == Step::Rebooting), "{sentence}");
        assert_eq!(bench.view.nodes["a"].step(), None, "{sentence}");
    };
    case("a hold", Step::Rebooting, "Held", |b| b.view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default()));
    case("a release", Step::Rebooting, "ReleaseRequested", |b| shadow(&mut b.view).release = Some("now".into()));
    case("a release in the soak", Step::Verifying, "ReleaseRequested", |b| {
        shadow(&mut b.view).release = Some("now".into());
    });
    case("disabled before the slot", Step::Staging, "Disabled", |b| b.policy.enabled = false);
    case("frozen before the slot", Step::Staging, "Frozen", |b| {
        let record = shadow(&mut b.view).status.controller.record.get_or_insert_default();
        record.version_failures.push(failure(NEW));
    });
    case("rebooted by another client", Step::Rebooting, "RebootedByOther", |b| {
        b.view.nodes.get_mut("a").unwrap().facts.boot_id = "b2".into();
    });
    case("not Ready in the soak", Step::Verifying, "SoakFailed", |b| {
        b.view.nodes.get_mut("a").unwrap().facts.ready = false;
    });
    case("a hold in the soak", Step::Verifying, "Held", |b| {
        b.view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default());
    });
}

#[test]
fn failure_in_a_drill_charges_neither_version_nor_node() {
    for reason in ENDS.iter().filter_map(|end| end.failure) {
        let mut bench = Bench::new(&["a"], "1");
        bench.until(Step::Rebooting);
        let shadow = shadow(&mut bench.view);
        let (attempt, step) = (shadow.spec.attempt, HostState::RehearsedUpdate);
        shadow.status.agent.failure =
            Some(Failure { attempt, step, reason, message: String::new(), time: t(bench.now) });
        let found = bench.end();
        // No host falls back in a drill.
        let accepted = reason.end().by_agent && reason != FailureReason::BootFellBack;
        let expected = if accepted { reason } else { FailureReason::Unknown };
        assert_eq!(found.result, expected.as_str());
        bench.assert_nothing_armed_or_charged();
        let frozen = super::Quarantine::of(&bench.view, 1).frozen_by().is_some();
        assert!(!frozen, "{reason}");
    }
}

#[test]
fn permit_of_a_drill_is_requested_answered_and_verified_and_waits_for_the_agent() {
    let mut bench = Bench::new(&["a"], "1");
    bench.until(Step::Rebooting);
    // An agent that verifies nothing.
    let deadline = bench.now + i64::try_from(bench.policy.reboot.as_secs()).unwrap();
    while bench.now <= deadline {
        bench.step(false);
    }
    let found = bench.record().drill.unwrap();
    assert_eq!((found.result.as_str(), found.soak_started), ("AgentSilent", None));
    // By a rehearsal permit no host reboots, so nothing is waited for.
    bench.step(true);
    for _ in 0..4 {
        bench.step(true);
    }
    assert_eq!(bench.view.nodes["a"].step(), None);
}

#[test]
fn drill_asks_for_no_devices_and_keeps_the_facts_that_the_last_update_has_to_show() {
    let mut bench = Bench::new(&["a"], "1");
    let devices: BTreeMap<String, String> = [("nvidia.com/gpu".to_owned(), "8".to_owned())].into();
    let before = NodeBefore { allocatable: devices, ..NodeBefore::default() };
    shadow(&mut bench.view).status.controller.record = Some(Record { before: Some(before.clone()), ..updated() });
    assert_eq!(bench.end().result, "Passed");
    assert_eq!(bench.record().before, Some(before));
}

#[test]
fn drill_excuses_pods_that_were_unhealthy_before_it_and_leaves_those_of_the_last_update_as_they_are() {
    let ill = |owner: &str, daemon_set: Option<&str>| PodFacts {
        name: format!("{owner}-a"),
        uid: format!("{owner}-a"),
        controller_uid: Some(owner.into()),
        daemon_set: daemon_set.map(str::to_owned),
        daemon_set_state: DaemonSetState::There,
        ..pod("a", false)
    };
    for request in ["1", "1 evict"] {
        for released in [false, true] {
            let mut bench = Bench::new(&["a"], request);
            let pods = bench.view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap();
            pods.extend([ill("csi", Some("csi")), ill("rs-ill", None)]);
            let record = Record { unhealthy_before: vec!["before-the-update".into()], ..updated() };
            shadow(&mut bench.view).status.controller.record = Some(record);
            if released {
                bench.until(Step::Verifying);
                shadow(&mut bench.view).release = Some("now".into());
            }
            let expected = if released { "ReleaseRequested" } else { "Passed" };
            let found = bench.end();
            assert_eq!(found.result, expected, "{request}: {found:?}");
            assert_eq!(bench.record().unhealthy_before, ["before-the-update"], "{request}, {expected}");
        }
    }
}

#[test]
fn lost_record_of_a_drill_ends_it_as_a_drill() {
    let mut bench = Bench::new(&["a"], "1");
    bench.until(Step::Rebooting);
    shadow(&mut bench.view).status.controller.progress = None;
    let found = bench.end();
    assert_eq!((found.result.as_str(), found.drill.request.as_str()), ("ProgressLost", "1"));
    bench.assert_nothing_armed_or_charged();
}

#[test]
fn update_begins_only_once_the_slot_of_the_drill_is_removed() {
    let mut bench = Bench::new(&["a"], "1");
    shadow(&mut bench.view).drill = None;
    let updates = shadow(&mut bench.view).status.agent.updates.as_mut().unwrap();
    (updates.available_versions, updates.chosen_version) = (vec![NEW, OLD], Some(NEW));
    bench.view.operator.as_mut().unwrap().status.slots = vec![slot("a")];
    let made = bench.plan();
    assert_eq!((outcome(&made), made.slots), ("Acting".to_owned(), Some(vec![])));
    bench.view.operator.as_mut().unwrap().status.slots.clear();
    assert_eq!(outcome(&bench.plan()), "step Staging");
    // Nor does another drill.
    shadow(&mut bench.view).drill = Some("2".into());
    assert_eq!(outcome(&bench.plan()), "step Staging");
    bench.view.operator.as_mut().unwrap().status.slots = vec![slot("a")];
    assert_eq!(outcome(&bench.plan()), "Acting");
}

#[test]
fn drill_asks_hooks_with_and_without_eviction() {
    use Step::{AfterUpdate, BeforeDrain, Draining, Rebooting, Staging, Verifying};
    for request in ["1", "1 evict"] {
        let mut bench = Bench::new(&["a"], request);
        let spec = serde_json::json!({"hooks": [{"name": "ceph", "before": {}, "after": {}}]});
        bench.policy = crate::fixtures::with_policy(&mut bench.view, spec);
        assert_eq!(bench.end().result, "Passed", "{request}");
        let short: Vec<_> = bench.steps.iter().filter(|step| **step != Step::Staged).copied().collect();
        assert_eq!(short, [Staging, BeforeDrain, Draining, Rebooting, Verifying, AfterUpdate], "{request}");
        assert_eq!(bench.view.nodes["a"].facts.hook_request, None, "{request}");
    }
}

#[test]
fn drill_whose_node_does_not_stay_well_until_its_hooks_have_answered_does_not_pass() {
    type Change = fn(&mut NodeFacts);
    let case = |sentence: &str, expected: &str, change: Change| {
        let mut bench = Bench::new(&["a"], "1");
        let spec = serde_json::json!({"hooks": [{"name": "ceph", "after": {}}]});
        bench.policy = crate::fixtures::with_policy(&mut bench.view, spec);
        bench.until(Step::AfterUpdate);
        change(&mut bench.view.nodes.get_mut("a").unwrap().facts);
        assert_eq!(bench.end().result, expected, "{sentence}");
    };
    case("it stays well", "Passed", |_| {});
    case("not Ready", "SoakFailed", |facts| facts.ready = false);
    case("rebooted", "RebootedByOther", |facts| facts.boot_id = "b2".into());
    case("held", "Held", |facts| facts.hold = Some(Hold::default()));
}

#[test]
fn drill_names_the_hook_that_does_not_answer() {
    let mut bench = Bench::new(&["a"], "1");
    let spec = serde_json::json!({"hooks": [{"name": "deaf", "before": {"timeout": "10s"}}]});
    bench.policy = crate::fixtures::with_policy(&mut bench.view, spec);
    let found = bench.end();
    assert!(found.result == "HookTimedOut" && found.message.contains("hook deaf"), "{found:?}");
    bench.assert_nothing_armed_or_charged();
}

/// The answers of the API server come from the view of the last turn.
#[test]
fn dry_run_wakes_for_the_next_retry_and_ends_without_its_pods_at_the_deadline() {
    let in_drill = |pods: Vec<PodFacts>| {
        let (mut view, policy) = draining(json!({}), pods);
        let shadow = shadow(&mut view);
        shadow.spec.state = HostState::RehearsedUpdate;
        shadow.status.controller.progress.as_mut().unwrap().drill = Some(models::shadow::Drill::default());
        (view, policy)
    };
    let (mut view, policy) = in_drill(vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().blocked.insert("p-a".into(), answer(None, 0, false));
    assert_eq!(plan(&view, &policy, t(10)).wake, Some(t(60)), "it is asked about for a minute");
    let (mut view, policy) = in_drill(Vec::new());
    view.nodes.get_mut("a").unwrap().pods = None;
    for (second, waits) in [(1, true), (100_000, false)] {
        let made = plan(&view, &policy, t(second));
        assert_eq!(made.waits.get("a") == Some(&Wait::ReadingPods), waits, "{second} s: {:?}", made.waits);
    }
}
