//! The release of a node whose host may have a permit to reboot.

use std::time::Duration;

use models::operator::{ActiveRollout, RolloutLedger};
use models::permit::PERMIT_LIFETIME;
use models::reason::Proof;
use models::shadow::{AttemptResult, CORDONED, DrainStatus, HostState, NodeProof, Record, Step, VersionFailure};

use super::ledger::entry;
use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::hold::Hold;
use crate::lint::lint;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, LeaseObservations, NodeView};

/// The time that a host may take to go down, in seconds.
fn span() -> u64 {
    (PERMIT_LIFETIME + Policy::default().shutdown).as_secs()
}

/// A node whose desired state was withdrawn after a permit, at the second 0.
fn withdrawn() -> NodeView {
    let mut node = at("a", Step::Releasing, 0, HostState::Idle);
    let controller = &mut node.shadow.as_mut().unwrap().status.controller;
    controller.progress.as_mut().unwrap().permit_issued = true;
    // As it is written when a release begins.
    let last = AttemptResult {
        attempt: 1,
        from: Some(OLD),
        version: NEW,
        reason: "RebootTimedOut".into(),
        message: String::new(),
        started: t(0),
        ended: t(0),
    };
    controller.record = Some(Record { last: Some(last), ..Record::default() });
    node
}

/// Returns the action for the node, and the seconds until the leader decides again at the latest.
fn decide(node: NodeView, second: u64) -> (Option<Action>, Option<i64>) {
    let now = t(second.cast_signed());
    let (mut view, policy) = cluster(vec![node], &["a"]);
    let mut made = plan(&view, &policy, now);
    for _ in 0..2 {
        // First its slot is freed, where it is not Ready, and it shows why it waits.
        if let Some(action @ Action::Status { .. }) = made.actions.get("a") {
            written(&mut view, action);
            made = plan(&view, &policy, now);
        }
    }
    (made.actions.get("a").cloned(), made.wake.map(|wake| wake.duration_since(now).as_secs()))
}

/// Records two readings of the Lease.
fn observe_lease(node: &mut NodeView, first: i64, last: i64, second: u64) {
    let observed = |before, renewed| LeaseObservations::add(before, Some(t(renewed)), t(second.cast_signed()));
    node.lease = Some(observed(Some(observed(None, first)), last));
}

#[test]
fn release_after_permit_requires_new_boot_or_lease_renewal_after_wait() {
    let boot = |node: &mut NodeView| node.facts.boot_id = "b2".into();
    let alive = |node: &mut NodeView| observe_lease(node, 500, 510, span());
    let dead = |node: &mut NodeView| observe_lease(node, 500, 500, span());
    let alive_early = |node: &mut NodeView| observe_lease(node, 10, 20, 31);
    let says_so = |node: &mut NodeView| {
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        (agent.state, agent.armed) = (Some(HostState::Idle), None);
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut NodeView), u64, Option<Action>);
    let seen_in_a_queue = 30 + 68 + 150;
    let shuts_down = |node: &mut NodeView| {
        alive(node);
        node.facts.ready = false;
    };
    let cases: [Change<'_>; 11] = [
        ("in the first moment", &|_| {}, 1, None),
        ("when the permit has lapsed, which a host that took it has not noticed", &|_| {}, 31, None),
        ("on the word of the agent", &says_so, 31, None),
        ("on a sign of life before a shutdown can be over", &alive_early, 31, None),
        ("while a call may wait in the host's API server", &alive_early, seen_in_a_queue, None),
        ("when it can be over", &|_| {}, span(), Some(Action::ReadLease { pods: false })),
        ("on a Lease that is not renewed any more", &dead, span() + 1, None),
        ("on one that is", &alive, span() + 1, Some(Action::Release)),
        ("while it is shut down gracefully, which lets its kubelet renew it", &shuts_down, span() + 1, None),
        ("however long that takes", &shuts_down, 100_000, None),
        ("in another boot", &boot, 1, Some(Action::Release)),
    ];
    for (sentence, change, second, expected) in cases {
        let mut node = withdrawn();
        change(&mut node);
        assert_eq!(decide(node, second).0, expected, "{sentence}");
    }
    let mut alive_before = withdrawn();
    alive_before.lease = renewed_after(-100);
    assert_ne!(decide(alive_before, span()).0, Some(Action::Release), "on a sign of life from before it began");
}

/// A graceful shutdown of 20 minutes renews the Lease all the while, and then reboots.
#[test]
fn node_not_ready_after_its_attempt_keeps_its_cordon_and_frees_its_slot() {
    let mut node = withdrawn();
    observe_lease(&mut node, 500, 510, span());
    node.facts.ready = false;
    let staged = |name| {
        let mut node = at(name, Step::Staged, 0, HostState::StagedUpdate);
        node.shadow.as_mut().unwrap().status.agent.state = Some(HostState::StagedUpdate);
        node
    };
    let (mut view, mut policy) = cluster(vec![node, staged("b"), staged("c")], &["a"]);
    one_proven(&mut view);
    let second = span().cast_signed() + 1;
    let planned = |view: &ClusterView, policy: &Policy, second: i64| {
        let mut made = plan(view, policy, t(second));
        assert_eq!(lint(view, policy, &mut made), []);
        made
    };
    let made = planned(&view, &policy, second);
    assert_eq!(outcome(&made), "RebootTimedOut", "the record of the attempt, without its slot");
    written(&mut view, &made.actions["a"]);
    let slots = |made: &Plan| made.slots.iter().flatten().map(|slot| slot.node.clone()).collect::<Vec<_>>();
    // It counts as before, for however long.
    let made = planned(&view, &policy, 1_000_000);
    assert_eq!(slots(&made), [] as [&str; 0]);
    let used_up = made.waits["b"].to_string();
    assert!(used_up.contains("a first (not back from the reboot of its update)"), "{used_up}");
    view.operator.as_mut().unwrap().status.slots.clear();
    policy.max_unavailable = models::operator::CountOrPercent::Count(2);
    assert_eq!(slots(&planned(&view, &policy, 1_000_000)), ["b"], "and nothing more than that");
    type Change = fn(&mut NodeView);
    let case = |sentence: &str, given: usize, released: bool, change: Change| {
        let mut view = view.clone();
        change(view.nodes.get_mut("a").unwrap());
        let made = planned(&view, &policy, 1_000_000);
        let found = (slots(&made).len(), made.actions.get("a") == Some(&Action::Release));
        assert_eq!(found, (given, released), "{sentence}");
    };
    case("it shuts down", 1, false, |_| {});
    case("a user holds it", 2, false, |node| node.facts.hold = Some(Hold::default()));
    case("it is being deleted", 2, false, |node| node.facts.deleting = true);
    case("an autoscaler removes it", 2, false, |node| node.facts.removed_by = Some("ToBeDeleted".into()));
    case("it is Ready again, in the same boot", 1, true, |node| node.facts.ready = true);
    case("it comes back in another boot", 1, true, |node| node.facts.boot_id = "b2".into());
    for (held, reason) in [(false, "NodeNotReturned"), (true, "Held")] {
        let mut view = view.clone();
        view.nodes.get_mut("a").unwrap().facts.hold = held.then(Hold::default);
        let recorded = planned(&view, &policy, 1_000_000).actions.remove("a").unwrap();
        written(&mut view, &recorded);
        assert_eq!(planned(&view, &policy, 1_000_000).waits["a"].as_str(), reason, "a user who holds it knows of it");
    }
}

#[test]
fn place_is_free_once_node_is_certain_to_be_on_its_old_version() {
    let mut node = withdrawn();
    (node.facts.boot_id, node.facts.claims) = ("b2".into(), ClaimFields::default());
    let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
    record.proof = Some(NodeProof {
        version: NEW,
        rollout: 0,
        attempt: 1,
        proof: Proof::Unproven,
        reason: "RebootTimedOut".into(),
    });
    let named = entry("a", Proof::Unproven, "RebootTimedOut");
    let (mut view, policy) = cluster(vec![node], &[]);
    // Its slot was taken away when it was not Ready at the end of its attempt.
    let ledger = RolloutLedger { unproven: 1, nodes: vec![named], ..RolloutLedger::default() };
    view.operator.as_mut().unwrap().status.active_rollouts =
        vec![ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
    let counts = |view: &ClusterView| {
        let rollout = plan(view, &policy, t(60)).status.unwrap().active_rollouts.remove(0);
        rollout.ledger.unwrap().unproven
    };
    assert_eq!(counts(&view), 1);
    write_due(&mut view, &policy, 60);
    assert_eq!(view.nodes["a"].progress(), None);
    assert_eq!(counts(&view), 0);
}

#[test]
fn wait_after_permit_must_elapse_on_cluster_and_monotonic_clock() {
    for (sentence, observed_for, second, over, wake) in [
        ("neither", 0, 0, false, Some(span())),
        (
            "a clock that ran ahead when it was compared, or behind when it was written",
            5,
            100_000,
            false,
            Some(span() - 5),
        ),
        ("a clock that was set back", 100_000, 5, false, Some(span() - 5)),
        ("both", span(), span(), true, None),
    ] {
        let mut node = withdrawn();
        node.observed_for = Duration::from_secs(observed_for);
        let (action, woken) = decide(node.clone(), second);
        assert_eq!(action.is_some(), over, "{sentence}: {action:?}");
        if let Some(wake) = wake {
            assert_eq!(woken, Some(wake.cast_signed()), "{sentence}");
        }
        // Nor does a renewal count before it.
        observe_lease(&mut node, 0, 1, 0);
        assert_eq!(decide(node, second).0 == Some(Action::Release), over, "{sentence}");
    }
}

#[test]
fn lease_read_with_future_time_is_repeated() {
    let mut node = withdrawn();
    observe_lease(&mut node, 0, 0, 100_000);
    assert_eq!(decide(node, span() + 1).0, Some(Action::ReadLease { pods: false }));
}

/// A client edits the status by hand, or restores it from a backup.
#[test]
fn release_without_progress_waits_for_longest_shutdown() {
    let mut node = withdrawn();
    node.shadow.as_mut().unwrap().status.controller.progress = None;
    for (observed_for, released) in [(0, false), (span() - 1, false), (span(), true)] {
        node.observed_for = Duration::from_secs(observed_for);
        let (action, _) = decide(node.clone(), 1);
        assert_eq!(action == Some(Action::Release), released, "after {observed_for} s: {action:?}");
    }
    node.facts.ready = false;
    assert_eq!(decide(node, 1).0, None, "nor while its host may be shutting down");
}

#[test]
fn formerly_held_node_is_released_after_longest_shutdown() {
    for (observed_for, released) in [(1, false), (span(), true)] {
        let mut node = withdrawn();
        node.shadow.as_mut().unwrap().status.controller.progress = None;
        (node.facts.hold, node.observed_for) = (Some(Hold::default()), Duration::from_secs(observed_for));
        let (action, _) = decide(node.clone(), 1);
        assert_eq!(action, None, "a node that a user holds is not released");
        node.facts.hold = None;
        let (action, wake) = decide(node, 1);
        assert_eq!(action == Some(Action::Release), released, "after {observed_for} s: {action:?}");
        assert!(released || wake == Some((span() - observed_for).cast_signed()), "{wake:?}");
    }
}

#[test]
fn release_recorded_in_future_waits_on_monotonic_clock() {
    let noted_ahead = |observed_for| {
        let mut node = withdrawn();
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().since = t(1_000_000);
        node.observed_for = Duration::from_secs(observed_for);
        node
    };
    assert_eq!(decide(noted_ahead(0), 5), (None, Some(span().cast_signed())));
    assert_eq!(decide(noted_ahead(span()), 5).0, Some(Action::ReadLease { pods: false }));
}

#[test]
fn version_failure_is_listed_once_until_resolved() {
    let resolved = VersionFailure { resolved_by: Some("monday".into()), ..failure(NEW) };
    for (sentence, before, listed) in [
        ("the first failure", vec![], 1),
        ("the version has failed here before", vec![failure(NEW)], 1),
        ("that failure is resolved", vec![resolved.clone()], 2),
        ("another version has failed here", vec![failure(OLD)], 2),
        ("the list is full", vec![failure(OLD); 8], 8),
        ("the list is full, and one is resolved", [vec![failure(OLD); 7], vec![resolved]].concat(), 8),
    ] {
        let kept = before.iter().filter(|f| f.resolved_by.is_none()).count().min(7);
        let mut failed = failed(models::reason::FailureReason::BootFellBack);
        let record = Record { version_failures: before, ..Record::default() };
        failed.shadow.as_mut().unwrap().status.controller.record = Some(record);
        let (view, policy) = cluster(vec![failed], &["a"]);
        let made = plan(&view, &policy, t(2));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {made:?}") };
        let failures = &status.report.record.as_ref().unwrap().version_failures;
        assert_eq!(failures.len(), listed, "{sentence}: {failures:?}");
        assert!(failures.iter().any(|f| f.version == NEW && f.resolved_by.is_none()), "{sentence}: {failures:?}");
        let unresolved = failures.iter().filter(|f| f.resolved_by.is_none()).count();
        assert!(unresolved >= kept, "{sentence}: a resolved one goes first: {failures:?}");
    }
}

#[test]
fn claim_record_is_kept_while_held_node_is_claimed() {
    for (sentence, held, claimed, stays) in [
        ("released", false, false, false),
        ("held as it is", true, true, true),
        ("held, and not claimed any more", true, false, false),
    ] {
        let mut node = at("a", Step::Releasing, 0, HostState::Idle);
        (node.facts.hold, node.facts.unschedulable) = (held.then(Hold::default), claimed);
        node.facts.claims = if claimed { ClaimFields::USUAL } else { ClaimFields::default() };
        node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
        let (view, policy) = cluster(vec![node], &["a"]);
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {made:?}") };
        assert_eq!((&status.report.progress, status.report.drain.is_some()), (&None, stays), "{sentence}");
        let cordoned = models::condition::find_condition(&status.conditions, CORDONED);
        assert_eq!(cordoned.is_none(), stays, "{sentence}: {cordoned:?}");
        assert!(cordoned.is_none_or(|condition| condition.reason == "Released"), "{sentence}: {cordoned:?}");
    }
}
