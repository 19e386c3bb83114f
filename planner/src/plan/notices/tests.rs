//! The events that notices are about, in turns of leaders over one cluster.

use models::operator::{LedgerNode, NoticeFormat, NoticeReceiver, RolloutLedger, RolloutRecord};
use models::reason::Proof;
use models::shadow::HostState;
use serde_json::json;

use super::*;
use crate::fixtures::{NEW, condition, failure, fallen_back, node, rollout, seen, t, updated, with_policy};
use crate::plan::{plan, plan_reporting};
use crate::policy::{CanaryStep, Policy};
use crate::view::{NodeView, NoticeFacts};

fn receiver(name: &str, events: &[NoticeEvent]) -> NoticeReceiver {
    NoticeReceiver {
        name: name.to_owned(),
        format: NoticeFormat::CloudEvents,
        url_key: "url".to_owned(),
        token_key: None,
        events: events.to_vec(),
    }
}

/// A cluster whose status is what the last turn wrote, with notices.
struct Cluster {
    view: ClusterView,
    done: BTreeSet<(String, String)>,
    policy: Policy,
}

impl Cluster {
    fn of(nodes: Vec<NodeView>) -> Self {
        let (mut view, mut policy) = crate::fixtures::cluster(nodes, &[]);
        view.history.highest = Some(0);
        let receivers = vec![receiver("all", &[])];
        policy.notices = Some(Notices { receivers, blocked_after: Duration::from_secs(3600) });
        Self { view, done: BTreeSet::new(), policy }
    }

    /// Has a turn whose write of the status arrives. Returns the ids and events that are new in it.
    fn turn(&mut self, now: Timestamp) -> Vec<Notice> {
        let before: Vec<String> = self.pending().iter().map(|notice| notice.id.clone()).collect();
        let notices = NoticeFacts { done: self.done.clone(), state: None };
        let reported = ReportedFacts { notices, ..ReportedFacts::default() };
        let status = plan_reporting(&self.view, &reported, &self.policy, now).status.unwrap();
        self.view.operator.as_mut().unwrap().status = status;
        let mut new = self.pending().to_vec();
        new.retain(|notice| !before.contains(&notice.id));
        new
    }

    fn state(&self) -> Option<&NoticesStatus> {
        self.view.operator.as_ref()?.status.notices.as_ref()
    }

    fn pending(&self) -> &[Notice] {
        self.state().map_or(&[], |state| &state.pending)
    }

    fn rollout(&mut self) -> &mut ActiveRollout {
        &mut self.view.operator.as_mut().unwrap().status.active_rollouts[0]
    }

    fn node(&mut self, name: &str) -> &mut crate::view::ShadowFacts {
        self.view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap()
    }

    /// Lets a node be blocked since this second, or not.
    fn block(&mut self, name: &str, since: Option<i64>) {
        let mut blocked = condition(shadow::BLOCKED, "DrainBlocked", "shop/web allows no disruption");
        blocked.last_transition_time = t(since.unwrap_or(0));
        blocked.status = since.is_some().into();
        self.node(name).status.conditions = vec![blocked];
    }
}

/// A node that was updated at this second.
fn finished(name: &str, second: i64) -> NodeView {
    let mut node = node(name);
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    let status = &mut node.shadow.as_mut().unwrap().status;
    status.agent.current_version = Some(NEW);
    status.agent.updates.as_mut().unwrap().chosen_version = None;
    let mut record = updated();
    record.last.as_mut().unwrap().ended = t(second);
    record.proof.as_mut().unwrap().rollout = 1;
    status.controller.record = Some(record);
    node
}

fn events(notices: &[Notice]) -> Vec<&str> {
    notices.iter().map(|notice| notice.event.as_str()).collect()
}

#[test]
fn each_event_of_rollout_has_one_notice_under_any_leader() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    let manual = CanaryStep { nodes: models::operator::CountOrPercent::Count(1), soak: Duration::ZERO, manual: true };
    cluster.policy.canary = vec![manual];
    // The first turn knows no rollout, since no host offers anything.
    for name in ["a", "b"] {
        cluster.node(name).status.agent.updates = None;
    }
    assert_eq!(cluster.turn(t(0)), []);
    for name in ["a", "b"] {
        cluster.node(name).status.agent.updates = node(name).shadow.unwrap().status.agent.updates;
    }
    let started = cluster.turn(t(10));
    assert_eq!(events(&started), ["RolloutStarted"]);
    assert_eq!(started[0].cause, "the rollout of 1.20.5 for aws-k8s-1.37 x86_64 began");
    assert_eq!((started[0].nodes.join(" "), started[0].command.as_str()), ("a b".into(), "kubectl brupop status"));
    assert_eq!(started[0].time, t(10));

    let done = finished("a", 20);
    cluster.view.nodes.insert("a".into(), done);
    let approval = cluster.turn(t(30));
    assert_eq!(events(&approval), ["AwaitingApproval"]);
    let cause = "the rollout of 1.20.5 for aws-k8s-1.37 x86_64: canary step 1 waits for approval";
    let found = (approval[0].cause.as_str(), approval[0].command.as_str());
    assert_eq!(found, (cause, "kubectl brupop approve 1 --rollout 1"));
    assert_eq!(approval[0].nodes, ["a"]);
    assert_eq!(cluster.turn(t(31)), []);
    // A node that joins in the place of one that is gone changes no step: its place stays proven.
    let updated = cluster.view.nodes.insert("a".into(), node("a")).unwrap();
    assert_eq!(cluster.turn(t(32)), []);
    cluster.view.nodes.insert("a".into(), updated);
    assert_eq!(cluster.turn(t(33)), []);

    cluster.view.operator.as_mut().unwrap().approve_step = Some("1/1@yes".into());
    let passed = cluster.turn(t(40));
    assert_eq!(events(&passed), ["StepPassed"]);
    assert_eq!(passed[0].cause, "canary step 1 of the rollout of 1.20.5 for aws-k8s-1.37 x86_64 is passed");
    assert_eq!((passed[0].nodes.join(" "), passed[0].command.as_str()), ("a".into(), "kubectl brupop status"));

    cluster.view.nodes.insert("b".into(), finished("b", 50));
    let ended = cluster.turn(t(60));
    assert_eq!(events(&ended), ["RolloutEnded"]);
    assert!(ended[0].cause.ends_with("ended (Completed): every node runs the version"), "{}", ended[0].cause);
    assert!(ended[0].command.starts_with("kubectl brupop history "), "{}", ended[0].command);
    assert_eq!(ended[0].nodes, ["a", "b"]);

    // Another leader plans from what is recorded.
    cluster.view.leader_since = t(70);
    assert_eq!(cluster.turn(t(71)), []);
    let all = ["RolloutStarted", "AwaitingApproval", "StepPassed", "RolloutEnded"];
    assert_eq!(events(cluster.pending()), all, "until they are sent they stay");
    let ids: std::collections::BTreeSet<_> = cluster.pending().iter().map(|notice| &notice.id).collect();
    assert_eq!(ids.len(), all.len());
}

#[test]
fn awaited_approval_has_the_number_of_the_record_that_begins_with_it() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    let manual = CanaryStep { nodes: models::operator::CountOrPercent::Count(1), soak: Duration::ZERO, manual: true };
    cluster.policy.canary = vec![manual];
    cluster.turn(t(0));
    cluster.turn(t(10));
    // The record is full when the step begins to wait.
    cluster.view.nodes.insert("a".into(), finished("a", 20));
    let history = &mut cluster.view.history;
    (history.highest, history.running, history.full) = (Some(1), [1].into(), [1].into());
    let new = cluster.turn(t(30));
    let approval = new.iter().find(|notice| notice.event == "AwaitingApproval").unwrap();
    assert_eq!(approval.command, "kubectl brupop approve 1 --rollout 2");
}

#[test]
fn rollout_that_goes_on_in_another_record_has_no_notice_of_an_end() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    cluster.turn(t(0));
    cluster.turn(t(1));
    let history = &mut cluster.view.history;
    (history.highest, history.running, history.full) = (Some(1), [1].into(), [1].into());
    let ended = cluster.turn(t(10));
    assert!(!events(&ended).contains(&"RolloutEnded"), "{ended:?}");
    let rollouts = &cluster.view.operator.as_ref().unwrap().status.active_rollouts;
    let ended = |rollout: &&ActiveRollout| rollout.record.as_ref().is_some_and(|record| record.ended.is_some());
    assert_eq!((rollouts.len(), rollouts.iter().filter(ended).count()), (2, 1));
}

#[test]
fn freeze_names_nodes_and_reason_and_second_freeze_is_another_event() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    cluster.turn(t(0));
    let mut record = models::shadow::Record { version_failures: vec![failure(NEW)], ..Default::default() };
    cluster.node("a").status.controller.record = Some(record.clone());
    let frozen = cluster.turn(t(10));
    assert_eq!(events(&frozen), ["Frozen"]);
    let cause = "failed too often: 1.20.5 for aws-k8s-1.37 x86_64 (BootFellBack on a). No update starts until the rollout is resumed, or nodes that failed prove the version";
    assert_eq!((frozen[0].cause.as_str(), frozen[0].subject.as_str()), (cause, "node/a"));
    assert_eq!(frozen[0].command, "kubectl brupop status");
    assert_eq!((frozen[0].nodes.join(" "), frozen[0].time), ("a".into(), t(10)));
    assert_eq!(cluster.turn(t(20)), []);

    record.version_failures[0].resolved_by = Some("x".into());
    cluster.node("a").status.controller.record = Some(record.clone());
    for known in &mut cluster.view.operator.as_mut().unwrap().status.versions {
        known.failed.clear();
        known.quarantined = None;
    }
    assert_eq!(cluster.turn(t(30)), []);
    record.version_failures.push(failure(NEW));
    cluster.node("a").status.controller.record = Some(record);
    let again = cluster.turn(t(40));
    assert_eq!(events(&again), ["Frozen"]);
    assert_ne!(again[0].id, frozen[0].id);
}

/// The ways in which a rollout has stopped: a sentence, the policy, the ledger, the event, and a part of its cause.
fn stopped() -> [(&'static str, serde_json::Value, RolloutLedger, &'static str, &'static str); 3] {
    let gone = |proof, reason: &str| {
        vec![LedgerNode { node: "gone".into(), proof, reason: reason.into(), accepted: false, before_proof: false }]
    };
    let step = RolloutLedger { base: 2, due: 1, ..RolloutLedger::default() };
    let failed = RolloutLedger { failed: 1, nodes: gone(Proof::Failed, "BootFellBack"), ..step.clone() };
    let unproven = RolloutLedger { unproven: 1, nodes: gone(Proof::Unproven, "HookTimedOut"), ..step };
    let row = gone(Proof::Unproven, "RebootTimedOut");
    let braked = RolloutLedger { base: 2, row, braked_until: Some(t(3600)), ..RolloutLedger::default() };
    let canary = json!({"strategy": {"canary": [{"nodes": 1}]}});
    [
        ("a node has failed in its step", canary.clone(), failed, "AwaitingApproval", "have failed on the version"),
        ("one has not proven it", canary, unproven, "AwaitingApproval", "have not proven the version"),
        ("braked", json!({"failurePolicy": {"maxConsecutiveFailures": 1}}), braked, "Braked", "braked"),
    ]
}

/// A cluster of one node, `b`, with this policy, whose rollout has begun.
fn begun(spec: serde_json::Value) -> Cluster {
    let mut cluster = Cluster::of(vec![node("b")]);
    let notices = cluster.policy.notices.take();
    cluster.policy = Policy { notices, ..with_policy(&mut cluster.view, spec) };
    cluster.turn(t(0));
    cluster.turn(t(10));
    cluster
}

#[test]
fn notice_of_a_rollout_that_has_stopped_has_the_command_that_shows_all_ways_to_go_on() {
    for (sentence, spec, ledger, event, cause) in stopped() {
        let mut cluster = begun(spec);
        cluster.rollout().ledger = Some(ledger);
        let found = cluster.turn(t(20));
        let found = found.iter().find(|notice| notice.event == event).unwrap_or_else(|| panic!("{sentence}"));
        assert!(found.cause.contains(cause), "{sentence}: {}", found.cause);
        assert_eq!(found.command, "kubectl brupop status", "{sentence}");
    }
}

/// Receivers discard an id that they have had.
#[test]
fn notice_of_a_rollout_that_stops_again_has_another_id() {
    for (sentence, spec, ledger, event, _) in stopped() {
        let mut cluster = begun(spec);
        let mut ids = BTreeSet::new();
        for minute in 1..=3 {
            cluster.rollout().ledger = Some(ledger.clone());
            let found = cluster.turn(t(minute * 60));
            ids.extend(found.into_iter().filter(|notice| notice.event == event).map(|notice| notice.id));
            let again = cluster.turn(t(minute * 60 + 1));
            assert!(!events(&again).contains(&event), "{sentence}: it is reported");
            cluster.rollout().ledger = Some(RolloutLedger { base: 2, ..RolloutLedger::default() });
            cluster.turn(t(minute * 60 + 2));
        }
        assert_eq!(ids.len(), 3, "{sentence}: {ids:?}");
    }
}

#[test]
fn notice_of_a_step_that_has_stopped_comes_again_once_it_has_other_places() {
    for (sentence, spec, ledger, event, _) in stopped().into_iter().take(2) {
        let mut cluster = begun(spec);
        cluster.rollout().ledger = Some(ledger.clone());
        assert!(events(&cluster.turn(t(20))).contains(&event), "{sentence}");
        cluster.policy.canary[0].nodes = models::operator::CountOrPercent::Count(2);
        let (failed, unproven) = (ledger.failed * 2, ledger.unproven * 2);
        let nodes = [ledger.nodes.clone(), ledger.nodes.clone()].concat();
        let ledger = RolloutLedger { base: 3, due: 2, share: 2, failed, unproven, nodes, ..ledger };
        cluster.rollout().ledger = Some(ledger);
        assert!(events(&cluster.turn(t(21))).contains(&event), "{sentence}: with another place");
    }
}

#[test]
fn notice_of_an_unwell_cluster_names_the_nodes_that_have_fallen_ill() {
    let draining = crate::fixtures::at("a", models::shadow::Step::Draining, 0, HostState::StagedUpdate);
    let mut cluster = Cluster::of([vec![draining], ["b", "c", "d"].map(node).into()].concat());
    cluster.turn(t(0));
    for name in ["b", "c"] {
        crate::fixtures::set_ready(&mut cluster.view.nodes.get_mut(name).unwrap().facts, false, t(20));
    }
    let found = cluster.turn(t(60));
    let unwell = found.iter().find(|notice| notice.event == NoticeEvent::ClusterUnwell.as_str()).unwrap();
    assert_eq!((unwell.nodes.join(" "), unwell.time), ("b c".to_owned(), t(60)));
}

/// Nodes that join have the step begin again.
#[test]
fn notice_of_a_step_that_is_passed_again_has_another_id() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    let step = CanaryStep { nodes: models::operator::CountOrPercent::Count(1), soak: Duration::ZERO, manual: false };
    cluster.policy.canary = vec![step];
    cluster.turn(t(0));
    cluster.turn(t(10));
    cluster.view.nodes.insert("a".into(), finished("a", 20));
    let first = cluster.turn(t(30));
    cluster.rollout().steps_passed = 0;
    let second = cluster.turn(t(40));
    assert_eq!((events(&first), events(&second)), (vec!["StepPassed"], vec!["StepPassed"]));
}

#[test]
fn past_events_have_no_notice_when_notices_are_enabled() {
    let mut cluster = Cluster::of(vec![node("a"), node("b")]);
    let mut old = rollout(NEW);
    (old.steps_passed, old.step_done) = (1, Some(t(0)));
    let status = &mut cluster.view.operator.as_mut().unwrap().status;
    status.active_rollouts = vec![old];
    status.versions =
        vec![KnownVersion { failed: vec!["a".into()], quarantined: Some(fallen_back(&["a"])), ..seen(NEW, 0) }];
    cluster.block("a", Some(-3600));
    assert_eq!(cluster.turn(t(60)), []);
    assert!(cluster.state().is_some());
    assert_eq!(cluster.turn(t(120)), []);
    // Disabled and enabled again: what happened in between is the past as well.
    let notices = cluster.policy.notices.take();
    cluster.turn(t(130));
    assert_eq!(cluster.state(), None);
    cluster.block("b", Some(140));
    cluster.turn(t(20_000));
    cluster.policy.notices = notices;
    assert_eq!(cluster.turn(t(20_060)), []);
}

#[test]
fn nodes_blocked_for_long_are_in_one_notice_with_cause_and_deadline_per_minute() {
    let draining = crate::fixtures::at("a", models::shadow::Step::Draining, 0, HostState::StagedUpdate);
    let names: Vec<String> = (0..5).map(|number| format!("n{number}")).collect();
    let mut nodes: Vec<_> = names.iter().map(|name| node(name)).collect();
    nodes.push(draining);
    let mut cluster = Cluster::of(nodes);
    cluster.turn(t(0));
    cluster.block("a", Some(10));
    assert_eq!(cluster.turn(t(3599)), []);
    assert_eq!(cluster.turn(t(3615)), [], "the period is not over");
    // Timestamps of the fixtures are whole minutes at multiples of 60.
    let wake = plan(&cluster.view, &cluster.policy, t(3615)).wake;
    assert!(wake.is_some_and(|at| at <= t(3660)), "{wake:?}");
    let found = cluster.turn(t(3660));
    assert_eq!(events(&found), ["NodesBlocked"]);
    assert_eq!(
        found[0].cause,
        "a has been blocked since 2027-01-15T08:00:10Z (DrainBlocked): shop/web allows no disruption"
    );
    assert_eq!((found[0].subject.as_str(), found[0].command.as_str()), ("node/a", "kubectl brupop explain a"));
    assert!(found[0].deadline.is_some(), "the drain's");
    assert_eq!(cluster.turn(t(3720)), []);

    for (second, name) in names.iter().enumerate() {
        cluster.block(name, Some(4000 + i64::try_from(second).unwrap()));
    }
    cluster.view.leader_since = t(7000);
    let found = cluster.turn(t(7660));
    assert_eq!(events(&found), ["NodesBlocked"]);
    assert_eq!((found[0].nodes.len(), found[0].subject.as_str()), (5, "nodes"));
    assert!(found[0].cause.ends_with("; and 2 more nodes"), "{}", found[0].cause);
    assert_eq!(cluster.turn(t(7720)), []);
    // Blocked again, later.
    cluster.block("a", None);
    cluster.turn(t(7730));
    cluster.block("a", Some(7740));
    assert_eq!(events(&cluster.turn(t(11_400))), ["NodesBlocked"]);
}

#[test]
fn cause_of_a_blocked_node_has_no_command_that_its_reader_has_to_fill_in() {
    let mut cluster = Cluster::of(vec![node("a")]);
    cluster.turn(t(0));
    cluster.block("a", Some(10));
    cluster.node("a").status.conditions[0].message = Wait::HostArmedByOther.to_string();
    let found = cluster.turn(t(3660));
    let blocked = found.iter().find(|notice| notice.event == NoticeEvent::NodesBlocked.as_str()).unwrap();
    assert!(blocked.cause.ends_with("or let the operator disarm it"), "{}", blocked.cause);
}

#[test]
fn receivers_get_their_events_and_sent_notices_are_removed() {
    let mut cluster = Cluster::of(vec![node("a")]);
    let notices = cluster.policy.notices.as_mut().unwrap();
    notices.receivers.push(receiver("frozen", &[NoticeEvent::Frozen]));
    cluster.turn(t(0));
    let failed = models::shadow::Record { version_failures: vec![failure(NEW)], ..Default::default() };
    cluster.node("a").status.controller.record = Some(failed);
    cluster.block("a", Some(0));
    let found = cluster.turn(t(3660));
    assert_eq!(events(&found), ["Frozen", "NodesBlocked"]);
    assert_eq!((found[0].receivers.join(" "), found[1].receivers.join(" ")), ("all frozen".into(), "all".into()));
    cluster.done.insert(("all".into(), found[0].id.clone()));
    cluster.turn(t(3661));
    assert_eq!(cluster.pending().iter().map(|n| n.receivers.join(" ")).collect::<Vec<_>>(), ["frozen", "all"]);
    cluster.policy.notices.as_mut().unwrap().receivers.truncate(1);
    cluster.turn(t(3662));
    assert_eq!(events(cluster.pending()), ["NodesBlocked"]);
    cluster.done.insert(("all".into(), found[1].id.clone()));
    cluster.turn(t(3663));
    assert_eq!(cluster.pending(), []);
}

#[test]
fn requested_notice_goes_to_every_receiver_once() {
    let mut cluster = Cluster::of(vec![]);
    let receivers = vec![receiver("all", &[]), receiver("few", &[NoticeEvent::Frozen])];
    cluster.policy.notices.as_mut().unwrap().receivers = receivers;
    let request = |cluster: &mut Cluster, value: &str| {
        cluster.view.operator.as_mut().unwrap().test_notices = Some(value.to_owned());
    };
    // A request that comes with the settings waits for the next turn.
    request(&mut cluster, "1");
    assert_eq!(cluster.turn(t(0)), []);
    let requests = |cluster: &Cluster| cluster.view.operator.as_ref().unwrap().status.requests.clone();
    assert_eq!(requests(&cluster).unwrap_or_default().test_notices, None);
    let sent = cluster.turn(t(10));
    assert_eq!(events(&sent), ["Test"]);
    let uid = cluster.view.operator.as_ref().unwrap().uid.clone();
    assert_eq!((sent[0].id.clone(), sent[0].receivers.join(" ")), (test_notice_id(&uid, "1"), "all few".to_owned()));
    assert_eq!(cluster.turn(t(20)), []);
    request(&mut cluster, "2");
    assert_eq!(events(&cluster.turn(t(30))), ["Test"]);
}

#[test]
fn pending_notices_are_bounded_and_oldest_are_dropped() {
    let Cluster { policy, .. } = Cluster::of(vec![node("a")]);
    let event = |number: usize| {
        let id = number.to_string();
        notice(&id, "Frozen", t(0), "nodes", &"x".repeat(5000), "c")
    };
    let pending = pending(&BTreeSet::new(), policy.notices.as_ref().unwrap(), &[], (0..40).map(event).collect());
    assert_eq!((pending.len(), pending[0].id.as_str()), (MOST_PENDING, "8"));
    assert_eq!(pending[0].cause.len(), CAUSE_LENGTH);
}

#[test]
fn rollout_continues_in_another_one_of_the_same_version_kind_and_beginning() {
    let stopped = || {
        let record = RolloutRecord { phase: RolloutPhase::Stopped, ..crate::fixtures::recorded(7) };
        ActiveRollout { ended: Some(t(60)), record: Some(record), ..rollout(NEW) }
    };
    let resumed = || {
        let record = RolloutRecord { first: Some(7), ..crate::fixtures::recorded(8) };
        ActiveRollout { record: Some(record), ..rollout(NEW) }
    };
    let running = || ActiveRollout { record: Some(crate::fixtures::recorded(7)), ..stopped() };
    for (sentence, ended, other, expected) in [
        ("it goes on", stopped(), resumed(), true),
        ("the other one has ended, too", stopped(), ActiveRollout { ended: Some(t(90)), ..resumed() }, false),
        ("the other one is the first of its own", stopped(), ActiveRollout { record: None, ..resumed() }, false),
        ("the other one began later", stopped(), ActiveRollout { started: t(90), ..resumed() }, false),
        ("its record was not stopped", running(), resumed(), false),
        ("it has not ended", ActiveRollout { ended: None, ..stopped() }, resumed(), false),
    ] {
        let status = BottlerocketUpdateOperatorStatus { active_rollouts: vec![other], ..Default::default() };
        assert_eq!(is_continued(&status, &ended), expected, "{sentence}");
    }
    assert_eq!(part(&rollout(NEW)), format!("aws-k8s-1.37/x86_64/{NEW}/{}", t(0).as_millisecond()));
}

#[test]
fn blocked_nodes_are_gathered_to_the_end_of_a_period() {
    let wake = |nodes: &[i64]| {
        let nodes = nodes.iter().map(|since| (t(*since), "a")).collect();
        Blocked { nodes, limit: t(0), after: Duration::from_secs(100), period: 60_000 }.wake()
    };
    assert_eq!(wake(&[]), None);
    assert_eq!(wake(&[0]), None, "it is reported now");
    assert_eq!(wake(&[0, 30]), Some(t(180)));
    assert_eq!(wake(&[20]), Some(t(120)), "at the end itself");
}
