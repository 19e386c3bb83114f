//! Cases of the numbers that rollouts get in the history, and of their ends.

use models::operator::{BottlerocketUpdateOperatorStatus, RolloutRecord};
use models::shadow::{HistoryPosition, HostState, OfferedUpdates, Step};
use semver::Version;

use super::*;
use crate::fixtures::{NEW, OLD, at, cluster, node, progress, record_history, rollout, t, updated, with_policy};
use crate::plan::plan;
use crate::view::{Failing, NodeView};

/// A version after [`NEW`].
const NEWER: Version = Version::new(1, 21, 0);

/// A fleet whose status is written as each plan requires. Its nodes begin nothing.
struct Fleet {
    view: ClusterView,
    policy: Policy,
    second: i64,
}

impl Fleet {
    /// A fleet of these nodes, which want [`NEW`]. Nothing is recorded.
    fn of(nodes: Vec<NodeView>) -> Self {
        let (mut view, policy) = cluster(nodes, &[]);
        view.history.highest = Some(0);
        Self { view, policy, second: 0 }
    }

    fn status(&mut self) -> &mut BottlerocketUpdateOperatorStatus {
        &mut self.view.operator.as_mut().unwrap().status
    }

    /// Writes the status until it changes no more, and returns the records: version, number and phase.
    fn settle(&mut self) -> Vec<(Version, i64, RolloutPhase)> {
        for _ in 0..8 {
            self.second += 1;
            if self.view.revisions.is_some() {
                record_history(&mut self.view, &self.policy);
            }
            if let Some(mut status) = plan(&self.view, &self.policy, t(self.second)).status {
                status.slots.clear();
                *self.status() = status;
            }
        }
        let mut found: Vec<_> = self.records().map(|(v, record)| (v.clone(), record.number, record.phase)).collect();
        found.sort_by_key(|(_, number, _)| *number);
        found
    }

    fn records(&self) -> impl Iterator<Item = (&Version, &RolloutRecord)> {
        let rollouts = &self.view.operator.as_ref().unwrap().status.active_rollouts;
        rollouts.iter().filter_map(|rollout| Some((&rollout.version, rollout.record.as_ref()?)))
    }

    /// The newest record: its number and the one that it continues.
    fn newest(&self) -> (i64, Option<i64>) {
        let newest = self.records().map(|(_, record)| record).max_by_key(|record| record.number).unwrap();
        (newest.number, newest.first)
    }

    /// Sets the version that every node is offered.
    fn offer(&mut self, version: &Version) {
        for node in self.view.nodes.values_mut() {
            offer(node, Some(version.clone()));
        }
    }

    /// Lets every node run this version, and want none.
    fn run(&mut self, version: &Version) {
        for node in self.view.nodes.values_mut() {
            offer(node, None);
            node.facts.os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
            node.shadow.as_mut().unwrap().status.agent.current_version = Some(version.clone());
        }
    }

    fn add(&mut self, node: NodeView) {
        self.view.nodes.insert(node.facts.name.clone(), node);
    }
}

fn offer(node: &mut NodeView, version: Option<Version>) {
    let updates = OfferedUpdates { chosen_version: version, ..OfferedUpdates::default() };
    node.shadow.as_mut().unwrap().status.agent.updates = Some(updates);
}

/// A node with an attempt to this version that was begun in a rollout of this number.
fn under_way_in(number: i64, version: Version) -> NodeView {
    let mut node = at("b", Step::Staging, 0, HostState::StagedUpdate);
    let progress = node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
    progress.rollout = Some(HistoryPosition { rollout: number, ..HistoryPosition::default() });
    progress.version = version;
    node
}

/// A node with the result of such an attempt.
fn ended_in(number: i64, version: &Version) -> NodeView {
    let result = serde_json::json!({
        "rollout": number, "step": 0, "attempt": 1, "to": version, "result": "Updated", "started": t(0), "ended": t(1)
    });
    let mut node = node("b");
    node.shadow.as_mut().unwrap().status.controller.results =
        vec![std::sync::Arc::new(serde_json::from_value(result).unwrap())];
    node
}

/// One agent's word is one host's word, also in a kind that the agent has invented.
#[test]
fn version_that_one_host_alone_names_is_neither_recorded_nor_known() {
    let invented = Version::new(9, 9, 9);
    let mut fleet = Fleet::of(["a", "b", "c"].map(node).into());
    let of_fleet = vec![(NEW, 1, RolloutPhase::Running)];
    assert_eq!(fleet.settle(), of_fleet);
    for node in fleet.view.nodes.values_mut() {
        let labels = [("kubernetes.io/arch".to_owned(), "amd64".to_owned())];
        node.facts.labels = std::sync::Arc::new(labels.into());
    }
    for (variant, arch) in [("aws-k8s-1.37", "x86_64"), ("invented", "x86_64"), ("aws-k8s-1.37", "invented")] {
        let liar = fleet.view.nodes.get_mut("a").unwrap();
        let list = OfferedUpdates { available_versions: vec![invented.clone()], ..OfferedUpdates::default() };
        let agent = &mut liar.shadow.as_mut().unwrap().status.agent;
        (agent.variant, agent.arch) = (Some(variant.into()), Some(arch.into()));
        agent.updates = Some(OfferedUpdates { chosen_version: Some(invented.clone()), ..list });
        liar.correct_kind();
        assert_eq!(fleet.settle(), of_fleet, "{variant}/{arch}");
        let known = &fleet.status().versions;
        assert!(known.iter().all(|known| known.version != invented), "{variant}/{arch}: {known:?}");
    }
    offer(fleet.view.nodes.get_mut("b").unwrap(), Some(invented.clone()));
    assert!(fleet.settle().iter().any(|(version, ..)| *version == invented), "two hosts name it");
}

/// Lets as many records have begun at this second as begin in an hour.
fn exhaust(view: &mut ClusterView, second: i64) {
    let most = i64::try_from(MOST_BEGUN).unwrap();
    view.history.begun = (1..=most).map(|number| (number, t(second))).collect();
    view.history.highest = Some(most);
}

/// Two hosts are enough for a version to be known, and may name another one all the time.
#[test]
fn versions_that_change_all_the_time_begin_no_more_records_than_an_hour_has() {
    let most = i64::try_from(MOST_BEGUN).unwrap();
    let mut fleet = Fleet::of(vec![node("a"), node("b"), node("c")]);
    for patch in 0..2 * u64::try_from(most).unwrap() {
        fleet.offer(&Version::new(2, patch, 0));
        fleet.settle();
        let begun: Vec<_> = fleet.records().map(|(_, record)| (record.number, record.begun)).collect();
        fleet.view.history.begun.extend(begun);
    }
    assert_eq!(fleet.status().rollout_count, Some(most));
    let next = plan(&fleet.view, &fleet.policy, t(fleet.second)).wake.unwrap();
    assert!(next <= after(fleet.view.history.begun[&1], PERIOD), "the next one waits for the first one's hour");
    fleet.second += 3600;
    fleet.settle();
    assert_eq!(fleet.status().rollout_count, Some(most + 1));
}

#[test]
fn rollout_for_which_something_was_done_to_a_node_gets_its_record_at_once() {
    type Change = fn(&mut Fleet);
    let case = |sentence: &str, at_once: bool, change: Change| {
        let mut fleet = Fleet::of(vec![node("a"), node("b"), node("c")]);
        exhaust(&mut fleet.view, 0);
        change(&mut fleet);
        let status = plan(&fleet.view, &fleet.policy, t(1)).status.unwrap();
        let recorded = status.active_rollouts.iter().any(|rollout| rollout.version == NEW && rollout.record.is_some());
        assert_eq!(recorded, at_once, "{sentence}");
    };
    case("several hosts name it", false, |_| {});
    case("the first of the records began an hour ago", true, |fleet| _ = fleet.view.history.begun.insert(1, t(-3599)));
    case("an image is being downloaded", false, |fleet| fleet.add(under_way_in(0, NEW)));
    case("a download ended", false, |fleet| fleet.add(ended_in(0, &NEW)));
    case("the number of its attempts was given to it before", true, |fleet| fleet.add(under_way_in(77, NEW)));
    case("a slot", true, |fleet| {
        let (view, _) = cluster(vec![at("b", Step::Staged, 0, HostState::StagedUpdate)], &["b"]);
        fleet.add(view.nodes["b"].clone());
        fleet.status().slots = view.operator.unwrap().status.slots;
    });
    case("a node is out of service", true, |fleet| fleet.add(at("b", Step::Draining, 0, HostState::StagedUpdate)));
    case("a node was out of service", true, |fleet| {
        let mut node = ended_in(0, &NEW);
        let results = &mut node.shadow.as_mut().unwrap().status.controller.results;
        std::sync::Arc::make_mut(&mut results[0]).drain_started = Some(t(0));
        fleet.add(node);
    });
}

/// One host that reports its version, and then the one before it, and so on, has updates to get again and again.
#[test]
fn follow_up_waits_for_its_record_and_full_record_does_not() {
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.settle();
    exhaust(&mut fleet.view, fleet.second);
    fleet.view.history.full = [1].into();
    fleet.settle();
    let most = i64::try_from(MOST_BEGUN).unwrap();
    assert_eq!(fleet.newest(), (most + 1, Some(1)));
    fleet.run(&NEW);
    assert_eq!(fleet.settle(), [(NEW, most + 1, Completed)]);
    fleet.add(node("b"));
    assert_eq!(fleet.settle(), [(NEW, most + 1, Completed)], "it waits");
    let (late, new) = (&fleet.view.nodes["b"], NEW);
    let wanted = std::iter::once((late, &new));
    let later = std::iter::empty();
    let rollouts = crate::survey::rollout::follow(&fleet.view, &fleet.policy, wanted, later, t(fleet.second));
    assert_eq!(rollouts.of(late, &NEW).unwrap().number, 0, "its attempts are none of the ended record's");
    fleet.second += 3600;
    fleet.view.history.highest = Some(most + 1);
    assert_eq!(fleet.settle(), [(NEW, most + 2, Running)]);
    assert_eq!(fleet.newest(), (most + 2, Some(1)));
}

/// The first host of a wave is alone for a while.
#[test]
fn slot_begins_the_record_of_a_version_that_one_host_names() {
    for (slots, expected) in [(&[][..], 0), (&["a"][..], 1)] {
        let mut nodes = vec![at("a", Step::Staged, 0, HostState::StagedUpdate), node("b"), node("c")];
        nodes[1..].iter_mut().for_each(|node| offer(node, None));
        let (mut view, policy) = cluster(nodes, slots);
        view.history.highest = Some(0);
        let status = plan(&view, &policy, t(1)).status.unwrap();
        let records = status.active_rollouts.iter().filter(|rollout| rollout.record.is_some()).count();
        assert_eq!(records, expected, "{slots:?}");
    }
}

#[test]
fn number_of_attempt_whose_rollout_was_never_recorded_is_taken_again() {
    for (sentence, node_of, recorded, expected) in [
        ("under way", under_way_in(7, NEW), 0, 7),
        ("ended", ended_in(7, &NEW), 0, 7),
        ("the history has it: it is another rollout's", ended_in(7, &NEW), 7, 8),
    ] {
        let mut fleet = Fleet::of(vec![node("a"), node_of]);
        fleet.view.history.highest = Some(recorded);
        fleet.settle();
        assert_eq!(fleet.newest(), (expected, None), "{sentence}");
    }
}

use RolloutPhase::{Completed, Running, Stopped, Superseded};

/// No node waits for the version: the only one runs it.
#[test]
fn rollout_without_a_record_gets_one_afterwards_where_attempts_were_begun_in_it() {
    for (sentence, node, expected) in [
        ("an attempt without the number of a record has ended", ended_in(0, &NEW), &[(NEW, 1, Completed)][..]),
        ("none was begun", node("b"), &[]),
    ] {
        let mut fleet = Fleet::of(vec![node]);
        fleet.run(&NEW);
        fleet.status().active_rollouts = vec![rollout(NEW)];
        assert_eq!(fleet.settle(), expected, "{sentence}");
    }
}

#[test]
fn rollout_back_and_forth_between_versions_gets_three_numbers() {
    let mut fleet = Fleet::of(vec![node("a"), node("b")]);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)], "it keeps its number");
    fleet.offer(&NEWER);
    assert_eq!(fleet.settle(), [(NEW, 1, Superseded), (NEWER, 2, Running)]);
    fleet.view.history.highest = Some(2);
    fleet.offer(&NEW);
    assert_eq!(fleet.settle(), [(NEWER, 2, Superseded), (NEW, 3, Running)]);
    assert_eq!(fleet.newest(), (3, None), "it continues neither of them");
    assert_eq!(fleet.status().rollout_count, Some(3));
}

#[test]
fn number_is_above_every_one_that_is_known() {
    type Change = fn(&mut Fleet);
    let case = |sentence: &str, change: Change| {
        // The operator's status was lost.
        let mut fleet = Fleet::of(vec![node("a")]);
        change(&mut fleet);
        fleet.settle();
        assert_eq!(fleet.newest(), (8, None), "{sentence}");
        assert_eq!(fleet.status().rollout_count, Some(8), "{sentence}");
    };
    case("the status", |fleet| fleet.status().rollout_count = Some(7));
    case("the history", |fleet| fleet.view.history.highest = Some(7));
    case("the record of another rollout", |fleet| {
        let record = RolloutRecord {
            number: 7,
            begun: t(0),
            first: None,
            revision: RecordedRevision::default(),
            phase: Completed,
            ended: Some(t(0)),
            first_estimate: None,
        };
        fleet.status().active_rollouts = vec![ActiveRollout { record: Some(record), ..rollout(OLD) }];
    });
    case("an attempt under way", |fleet| {
        fleet.add(under_way_in(7, OLD));
    });
    case("the result of an attempt", |fleet| {
        fleet.add(ended_in(7, &OLD));
    });
}

#[test]
fn rollout_has_no_number_until_status_or_history_is_known() {
    let mut fleet = Fleet::of(vec![at("a", Step::Staging, 0, HostState::StagedUpdate)]);
    let place = HistoryPosition { rollout: 7, ..HistoryPosition::default() };
    let numbered = models::shadow::Progress { rollout: Some(place), ..progress(Step::Staging, 0) };
    let shadow = fleet.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    shadow.status.controller.progress = Some(numbered);
    fleet.view.history.highest = None;
    assert_eq!(fleet.settle(), [], "the shadows alone may not know the highest");
    assert_eq!(fleet.status().rollout_count, None);
    fleet.status().rollout_count = Some(3);
    assert_eq!(fleet.settle(), [(NEW, 7, Running)], "the number that its attempt has");
}

#[test]
fn retry_after_lifted_quarantine_is_another_rollout() {
    let mut fleet = Fleet::of(vec![node("a"), node("b")]);
    fleet.settle();
    let failures = |fleet: &mut Fleet, resolved_by: Option<&str>| {
        let record = fleet.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        let failure = models::shadow::VersionFailure {
            resolved_by: resolved_by.map(str::to_owned),
            ..crate::fixtures::failure(NEW)
        };
        record.status.controller.record.get_or_insert_default().version_failures = vec![failure];
    };
    failures(&mut fleet, None);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)], "a quarantine may be lifted");
    failures(&mut fleet, Some("again"));
    fleet.view.operator.as_mut().unwrap().resume = Some("again".into());
    let ended = plan(&fleet.view, &fleet.policy, t(100)).status.unwrap().active_rollouts;
    let record = ended[0].record.as_ref().unwrap();
    assert_eq!((record.number, record.phase, record.ended), (1, Stopped, Some(t(100))));
    fleet.view.history.running = [1].into();
    assert_eq!(fleet.settle(), [(NEW, 1, Stopped), (NEW, 2, Running)], "nodes of the first one may be under way");
    assert_eq!(fleet.newest(), (2, None));
}

#[test]
fn late_node_gets_rollout_that_names_first_one() {
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.settle();
    for (number, late) in [(2, "b"), (3, "c")] {
        fleet.run(&NEW);
        assert_eq!(fleet.settle(), [(NEW, number - 1, Completed)]);
        fleet.view.history.highest = Some(number - 1);
        fleet.add(node(late));
        assert_eq!(fleet.settle(), [(NEW, number, Running)]);
        assert_eq!(fleet.newest(), (number, Some(1)));
    }
}

#[test]
fn rollout_whose_record_is_full_continues_in_another_one() {
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.settle();
    for number in [2, 3] {
        (fleet.view.history.full, fleet.view.history.highest) = ([number - 1].into(), Some(number - 1));
        assert_eq!(fleet.settle(), [(NEW, number, Running)]);
        assert_eq!(fleet.newest(), (number, Some(1)));
    }
}

#[test]
fn record_that_another_one_replaces_stays_until_history_has_its_end() {
    type Change = fn(&mut Fleet);
    type Case<'a> = (&'a str, Change, &'a [(Version, i64, RolloutPhase)]);
    let cases: [Case<'_>; 4] = [
        (
            "a node comes after completion, and the record could not be created",
            |fleet| {
                fleet.run(&NEW);
                fleet.settle();
                (fleet.view.history.highest, fleet.view.history.running) = (Some(0), BTreeSet::new());
                fleet.add(node("b"));
            },
            &[(NEW, 1, Completed), (NEW, 2, Running)],
        ),
        (
            "a node comes after completion",
            |fleet| {
                fleet.run(&NEW);
                fleet.settle();
                fleet.add(node("b"));
            },
            &[(NEW, 1, Completed), (NEW, 2, Running)],
        ),
        ("it is full", |fleet| fleet.view.history.full = [1].into(), &[(NEW, 1, Stopped), (NEW, 2, Running)]),
        (
            "its version is tried again after another one",
            |fleet| {
                fleet.offer(&NEWER);
                fleet.settle();
                fleet.view.history.running = [1, 2].into();
                fleet.offer(&NEW);
            },
            &[(NEW, 1, Superseded), (NEWER, 2, Superseded), (NEW, 3, Running)],
        ),
    ];
    for (sentence, change, expected) in cases {
        let mut fleet = Fleet::of(vec![node("a")]);
        fleet.settle();
        fleet.view.history.highest = Some(1);
        fleet.view.history.running = [1].into();
        change(&mut fleet);
        assert_eq!(fleet.settle(), expected, "{sentence}");
        let rollouts = &fleet.view.operator.as_ref().unwrap().status.active_rollouts;
        let under_way = rollouts.iter().filter(|rollout| rollout.version == NEW && rollout.ended.is_none());
        assert_eq!(under_way.count(), 1, "{sentence}");
        let is_copy = |rollout: &&ActiveRollout| {
            rollout.record.as_ref().is_some_and(|record| matches!(record.phase, Completed | Stopped))
        };
        assert!(
            rollouts.iter().filter(is_copy).all(|copy| copy.ledger.is_none()),
            "{sentence}: it keeps a record alone"
        );
        fleet.view.history.running.remove(&1);
        fleet.view.history.highest = fleet.view.history.highest.max(Some(1));
        let left: Vec<_> = expected.iter().filter(|(_, number, _)| *number != 1).cloned().collect();
        assert_eq!(fleet.settle(), left, "{sentence}");
    }
}

/// A fleet of one node with recorded revisions, whose rollout has begun.
fn recorded() -> Fleet {
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.view.revisions = Some(Vec::new());
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    let revision = fleet.records().next().unwrap().1.revision.clone();
    assert!(revision.number == 1 && !revision.name.is_empty(), "{revision:?}");
    fleet
}

#[test]
fn rollout_ends_as_stopped_when_policy_no_longer_requires_version() {
    let mut fleet = recorded();
    fleet.policy = with_policy(&mut fleet.view, serde_json::json!({"maxUnavailable": 2, "drain": {"timeout": "1m"}}));
    assert_eq!(fleet.settle(), [(NEW, 1, Running)], "another policy requires it too");
    fleet.policy = with_policy(&mut fleet.view, serde_json::json!({"version": {"target": OLD.to_string()}}));
    assert_eq!(fleet.settle(), [(NEW, 1, Stopped)]);
}

#[test]
fn rollout_has_record_and_steps_a_name_also_while_revision_of_policy_cannot_be_written() {
    let quota = Failing { since: t(0), error: "policy_revision failed: exceeded quota (403)".into() };
    for (sentence, failing, second, expected) in [
        ("the revision is about to be written", None, 600, None),
        ("the first try has failed", Some(quota.clone()), 59, None),
        ("each try has failed for a minute", Some(quota), 60, Some("1/2")),
    ] {
        let mut fleet = Fleet::of(vec![node("a")]);
        (fleet.view.revisions, fleet.view.revisions_failing) = (Some(Vec::new()), failing);
        for _ in 0..4 {
            if let Some(mut status) = plan(&fleet.view, &fleet.policy, t(second)).status {
                status.slots.clear();
                *fleet.status() = status;
            }
        }
        let status = fleet.status();
        let rollout = status.active_rollouts.iter().find(|rollout| rollout.record.is_some());
        let revision = rollout.and_then(|rollout| Some(&rollout.record.as_ref()?.revision));
        assert!(revision.is_none_or(|revision| *revision == RecordedRevision::default()), "{sentence}: {revision:?}");
        let name = rollout.map(|rollout| rollout.step_name(2));
        assert_eq!(name.as_deref(), expected, "{sentence}");
        let degraded = true_condition(&status.conditions, DEGRADED);
        let shown = degraded.filter(|shown| shown.message.contains("exceeded quota")).map(|shown| &*shown.reason);
        assert_eq!(shown, expected.map(|_| UNRECORDED), "{sentence}: {degraded:?}");
        fleet.view.revisions_failing = None;
        for revisions in [Some(Vec::new()), None] {
            fleet.view.revisions = revisions;
            let next = plan(&fleet.view, &fleet.policy, t(second)).status.unwrap();
            let kept = true_condition(&next.conditions, DEGRADED).is_some();
            assert_eq!(kept, expected.is_some(), "the next leader does not know yet: {sentence}");
        }
    }
    let mut fleet = recorded();
    let denied = "policy_revision failed: denied (403)".into();
    fleet.view.revisions_failing = Some(Failing { since: t(-600), error: denied });
    assert_eq!(fleet.settle(), [(NEW, 1, Running)], "the policy has its revision: that of another one fails");
}

#[test]
fn rollout_goes_on_while_hosts_offer_nothing_or_revisions_are_unknown() {
    let mut fleet = recorded();
    offer(fleet.view.nodes.get_mut("a").unwrap(), None);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    // As under a new leader.
    fleet.view.revisions = None;
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    // It began while they were unknown.
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.settle();
    fleet.view.revisions = Some(Vec::new());
    offer(fleet.view.nodes.get_mut("a").unwrap(), None);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
}

#[test]
fn rollout_is_recorded_without_a_revision_only_while_the_policy_gets_none() {
    let fails = || Some(Failing { since: t(0), error: "exceeded quota (403)".into() });
    for (sentence, degraded, failing, second, is_begun) in [
        ("the first try has failed", None, fails(), 59, false),
        ("each try has failed for a minute", None, fails(), 60, true),
        ("the next leader has not tried yet", Some(UNRECORDED), None, 60, true),
        ("the operator is degraded for another reason", Some("NoWebApi"), None, 60, false),
    ] {
        let mut fleet = Fleet::of(vec![]);
        (fleet.view.revisions, fleet.view.revisions_failing) = (Some(Vec::new()), failing);
        let condition = degraded.map(|reason| crate::fixtures::condition(DEGRADED, reason, ""));
        fleet.status().conditions.extend(condition);
        let found = revision(&fleet.view, &fleet.policy, t(second));
        assert_eq!(found, is_begun.then(RecordedRevision::default), "{sentence}");
    }
}

#[test]
fn downgrade_that_no_node_ran_ends_as_stopped() {
    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.run(&NEWER);
    fleet.offer(&NEW);
    fleet.policy = with_policy(&mut fleet.view, serde_json::json!({"version": {"target": NEW.to_string()}}));
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    // The image is on its way, and the node no target any more.
    for under_way in [Some(progress(Step::Staging, 0)), None] {
        fleet.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.progress = under_way;
        assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    }
    fleet.policy = with_policy(&mut fleet.view, serde_json::json!({}));
    fleet.run(&NEWER);
    assert_eq!(fleet.settle(), [(NEW, 1, Stopped)]);
}

/// The canary step is full, and waits for its approval.
#[test]
fn record_of_a_downgrade_goes_on_while_other_hosts_have_yet_to_take_their_lock() {
    let mut fleet = Fleet::of(vec![node("a"), node("b")]);
    fleet.run(&NEWER);
    fleet.offer(&NEW);
    let spec = serde_json::json!({
        "version": {"target": NEW.to_string()},
        "strategy": {"canary": [{"nodes": 1, "soak": "0s", "approval": "Manual"}]},
    });
    fleet.policy = with_policy(&mut fleet.view, spec);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    let a = fleet.view.nodes.get_mut("a").unwrap();
    offer(a, None);
    a.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    let status = &mut a.shadow.as_mut().unwrap().status;
    status.agent.current_version = Some(NEW);
    let mut record = updated();
    record.proof.as_mut().unwrap().rollout = 1;
    status.controller.record = Some(record);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    let updates = OfferedUpdates { available_versions: vec![NEW], ..OfferedUpdates::default() };
    fleet.view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().status.agent.updates = Some(updates);
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
}

#[test]
fn rollout_ends_when_last_node_has_ended_its_attempt_or_is_gone() {
    let mut fleet = Fleet::of(vec![node("a"), node("b")]);
    fleet.settle();
    fleet.run(&NEW);
    let shadow = fleet.view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
    shadow.status.controller.progress = Some(progress(Step::Verifying, 0));
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    let shadow = fleet.view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
    shadow.status.controller.progress = None;
    assert_eq!(fleet.settle(), [(NEW, 1, Completed)]);

    let mut fleet = Fleet::of(vec![node("a")]);
    fleet.settle();
    fleet.view.nodes.clear();
    assert_eq!(fleet.settle(), [(NEW, 1, Stopped)]);
}

#[test]
fn rollout_does_not_end_while_the_shadow_of_a_node_cannot_be_read() {
    let mut fleet = Fleet::of(vec![node("a"), node("b")]);
    fleet.settle();
    fleet.run(&NEW);
    let shadow = fleet.view.nodes.get_mut("b").unwrap().shadow.take();
    fleet.view.unreadable.shadows.insert("b".into(), "a field".into());
    assert_eq!(fleet.settle(), [(NEW, 1, Running)]);
    fleet.view.unreadable.shadows.clear();
    fleet.view.nodes.get_mut("b").unwrap().shadow = shadow;
    assert_eq!(fleet.settle(), [(NEW, 1, Completed)]);
}

#[test]
fn variants_have_numbers_of_their_own() {
    let mut other = node("b");
    other.shadow.as_mut().unwrap().status.agent.variant = Some("aws-k8s-1.38".into());
    other.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.38)");
    let mut fleet = Fleet::of(vec![node("a"), other]);
    assert_eq!(fleet.settle(), [(NEW, 1, Running), (NEW, 2, Running)]);
    // One of them ends alone.
    let b = fleet.view.nodes.get_mut("b").unwrap();
    b.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.38)");
    b.shadow.as_mut().unwrap().status.agent.current_version = Some(NEW);
    offer(b, None);
    let phases = |fleet: &Fleet| {
        let rollouts = &fleet.view.operator.as_ref().unwrap().status.active_rollouts;
        let mut phases: Vec<_> =
            rollouts.iter().map(|r| (r.variant.clone(), r.record.as_ref().unwrap().phase)).collect();
        phases.sort();
        phases
    };
    fleet.settle();
    assert_eq!(phases(&fleet), [("aws-k8s-1.37".to_owned(), Running), ("aws-k8s-1.38".to_owned(), Completed)]);
}
