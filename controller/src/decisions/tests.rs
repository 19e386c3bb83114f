//! Lines of the log, from what a write has changed.

use jiff::Timestamp;
use models::operator::Quarantined;
use models::reason::FailureReason;
use models::shadow::{AttemptResult, DrainStatus, DrainedPod, Drill, FirstPod, Permit, Record};

use super::*;
use planner::claims::ClaimFields;

fn at(step: Step) -> ControllerReport {
    let progress = serde_json::json!({
        "step": step, "since": Timestamp::UNIX_EPOCH, "attempt": 3, "bootId": "boot", "version": "1.20.5",
        "started": Timestamp::UNIX_EPOCH,
    });
    let progress = Some(serde_json::from_value(progress).unwrap());
    ControllerReport { progress, ..ControllerReport::default() }
}

fn ended(report: ControllerReport, reason: &str) -> ControllerReport {
    let last = AttemptResult {
        attempt: 3,
        from: None,
        version: Version::new(1, 20, 5),
        reason: reason.into(),
        message: "why".into(),
        started: Timestamp::UNIX_EPOCH,
        ended: Timestamp::UNIX_EPOCH,
    };
    ControllerReport { record: Some(Record { last: Some(last), ..Record::default() }), ..report }
}

fn idle() -> ControllerReport {
    ControllerReport::default()
}

/// The decisions of a write after which soaks began again with node `b`.
fn of_operator(before: &BottlerocketUpdateOperatorStatus, after: &BottlerocketUpdateOperatorStatus) -> Vec<Line> {
    super::of_operator(before, after, &|_| Some("b"))
}

fn texts(lines: &[Line]) -> Vec<(bool, &'static str)> {
    lines.iter().map(|line| (line.warning, line.text)).collect()
}

#[test]
fn each_step_change_logs_one_line() {
    let forced = ControllerReport {
        drain: Some(DrainStatus { forced_since: Some(Timestamp::UNIX_EPOCH), ..DrainStatus::default() }),
        ..at(Step::Draining)
    };
    let mut restarted = at(Step::Verifying);
    restarted.progress.as_mut().unwrap().since = Timestamp::MAX;
    for (before, after, expected) in [
        (idle(), at(Step::Staging), vec![(false, "attempt started")]),
        (at(Step::Staging), at(Step::Staged), vec![(false, "image staged")]),
        (at(Step::Staging), at(Step::Draining), vec![(false, "drain started")]),
        (at(Step::Staged), at(Step::BeforeDrain), vec![(false, "hooks awaited before the drain")]),
        (at(Step::BeforeDrain), at(Step::Draining), vec![(false, "drain started")]),
        (at(Step::Verifying), at(Step::AfterUpdate), vec![(false, "hooks awaited after the update")]),
        (at(Step::AfterUpdate), ended(idle(), UPDATED), vec![(false, "node verified")]),
        (at(Step::AfterUpdate), at(Step::Verifying), vec![(false, "soak restarted")]),
        (at(Step::BeforeDrain), ended(at(Step::Releasing), "HookTimedOut"), vec![(true, "attempt failed")]),
        (at(Step::Staged), at(Step::LeavingLoadBalancer), vec![(false, "leaving load balancers")]),
        (at(Step::LeavingLoadBalancer), at(Step::Draining), vec![(false, "drain started")]),
        (at(Step::Draining), at(Step::Draining), vec![]),
        (at(Step::Draining), forced, vec![(true, "drain forced: deleting the pods that are left")]),
        (at(Step::Draining), at(Step::Rebooting), vec![(false, "node drained")]),
        (at(Step::Rebooting), at(Step::Returning), vec![(false, "node rebooted: waiting for it to be Ready")]),
        (at(Step::Rebooting), at(Step::Verifying), vec![(false, "verification started")]),
        (at(Step::Returning), at(Step::Verifying), vec![(false, "verification started")]),
        (at(Step::Verifying), restarted, vec![(false, "soak restarted")]),
        (at(Step::Verifying), ended(idle(), UPDATED), vec![(false, "node verified")]),
        (at(Step::Draining), ended(at(Step::Releasing), "DrainTimedOut"), vec![(true, "attempt failed")]),
        (at(Step::Staging), ended(at(Step::Releasing), "PolicyChanged"), vec![(false, "attempt withdrawn")]),
        (at(Step::Releasing), ended(idle(), "DrainTimedOut"), vec![(false, "attempt ended")]),
        (ended(idle(), UPDATED), ended(idle(), UPDATED), vec![]),
    ] {
        let lines = of_report("a", &before, &after);
        assert_eq!(texts(&lines), expected, "{before:?} -> {after:?}");
        for line in lines {
            assert_eq!((line.node.as_deref(), line.attempt), (Some("a"), Some(3)), "{line:?}");
        }
    }
    let failed = of_report("a", &at(Step::Draining), &ended(at(Step::Releasing), "DrainTimedOut"));
    assert_eq!((failed[0].reason.as_deref(), failed[0].detail.as_deref()), (Some("DrainTimedOut"), Some("why")));
}

#[test]
fn claims_and_permits_log_one_line_each() {
    let facts = |claims: ClaimFields, unschedulable: bool| NodeFacts {
        name: "a".into(),
        claims,
        unschedulable,
        ..NodeFacts::default()
    };
    let shadow = |nonce: Option<&str>| {
        let mut shadow = ShadowFacts::default();
        shadow.status.controller = at(Step::Rebooting);
        shadow.spec.permit = nonce.map(|nonce| Permit { nonce: nonce.into(), jws: String::new() });
        shadow
    };
    let (none, cordon) = (ClaimFields::default(), ClaimFields::CORDON);
    let again = "node claimed again: it was uncordoned by others";
    for (sentence, before, after, expected) in [
        ("claimed", (none, false, None), (cordon, true, None), vec![(false, "node claimed")]),
        ("nothing", (cordon, true, None), (cordon, true, None), vec![]),
        ("claimed again", (cordon, false, None), (cordon, true, None), vec![(true, again)]),
        ("released", (cordon, true, None), (none, false, None), vec![(false, "node rebooted: released")]),
        ("permitted", (cordon, true, None), (cordon, true, Some("1")), vec![(false, "reboot permitted")]),
        ("permitted before", (cordon, true, Some("1")), (cordon, true, Some("1")), vec![]),
        ("permitted again", (cordon, true, Some("1")), (cordon, true, Some("2")), vec![(false, "reboot permitted")]),
    ] {
        let of = |(claims, unschedulable, nonce)| (facts(claims, unschedulable), shadow(nonce));
        let (before, after) = (of(before), of(after));
        let pair = |(facts, shadow): &(NodeFacts, ShadowFacts)| {
            of_node(Pair { facts: &before.0, shadow: Some(&before.1) }, Pair { facts, shadow: Some(shadow) }, false)
        };
        assert_eq!(texts(&pair(&after)), expected, "{sentence}");
    }
    let (mut before, after) = (shadow(None), facts(none, false));
    before.status.controller.progress.as_mut().unwrap().drill = Some(models::shadow::Drill::default());
    let of = |facts| Pair { facts, shadow: Some(&before) };
    let lines = of_node(of(&facts(cordon, true)), of(&after), true);
    assert_eq!(texts(&lines), [(false, "node released")], "no host reboots in a drill");
}

/// The write of the step comes before that of the claim.
#[test]
fn drain_starts_once_its_node_is_claimed() {
    let drill = |evict| {
        let mut report = at(Step::Draining);
        report.progress.as_mut().unwrap().drill = Some(Drill { evict, ..Drill::default() });
        report
    };
    let facts = |claimed: bool| NodeFacts {
        name: "a".into(),
        claims: if claimed { ClaimFields::CORDON } else { ClaimFields::default() },
        ..NodeFacts::default()
    };
    let with = |claimed_before: bool, before: (bool, ControllerReport), after: (bool, ControllerReport)| {
        let [before, after] = [before, after].map(|(claimed, report)| {
            let mut shadow = ShadowFacts::default();
            shadow.status.controller = report;
            (facts(claimed), shadow)
        });
        let lines = of_node(
            Pair { facts: &before.0, shadow: Some(&before.1) },
            Pair { facts: &after.0, shadow: Some(&after.1) },
            claimed_before,
        );
        texts(&lines).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    let of = |before, after| with(false, before, after);
    let drains = || at(Step::Draining);
    assert_eq!(of((false, at(Step::Staging)), (false, drains())), [""; 0]);
    assert_eq!(of((false, drains()), (true, drains())), ["node claimed", "drain started"]);
    assert_eq!(of((false, at(Step::Staging)), (true, drains())), ["node claimed", "drain started"]);
    assert_eq!(of((true, at(Step::BeforeDrain)), (true, drains())), ["drain started"], "claimed before");
    assert_eq!(of((false, at(Step::BeforeDrain)), (true, at(Step::BeforeDrain))), ["node claimed"]);
    assert_eq!(of((false, drill(true)), (true, drill(true))), ["node claimed", "drain started in a drill"]);
    let dry = of((false, at(Step::Staging)), (false, drill(false)));
    assert_eq!(dry, ["dry run of the drain started"], "no claim follows");

    // The pods are listed by the write of the step, before the claim.
    let drain = |drain: DrainStatus| ControllerReport { drain: Some(drain), ..at(Step::Draining) };
    let asked = |accepted| FirstPod { uid: "pod".into(), accepted, unguarded: false };
    let listed = || {
        let pods = [DrainedPod { uid: "pod".into(), ..DrainedPod::default() }].into();
        let (asked_first, preexisting) = (vec![asked(None)], vec!["spec.unschedulable".into()]);
        drain(DrainStatus { pods, asked_first, preexisting, ..DrainStatus::default() })
    };
    assert_eq!(of((false, at(Step::Staging)), (false, listed())), [""; 0]);
    assert_eq!(of((false, listed()), (true, listed())), ["node claimed", "drain started"]);

    // A user has uncordoned the node during its drain.
    let again = ["node claimed again: it was uncordoned by others"];
    assert_eq!(with(true, (false, listed()), (true, listed())), again);
    for (sentence, begun) in [
        ("a pod has left", DrainStatus { removed: 1, ..DrainStatus::default() }),
        ("an eviction", DrainStatus { asked_first: vec![asked(Some(Timestamp::MAX))], ..DrainStatus::default() }),
        ("an owner", DrainStatus { evicted_owners: vec!["owner".into()], ..DrainStatus::default() }),
        ("a restart", DrainStatus { restarted: true, ..DrainStatus::default() }),
    ] {
        let begun = drain(begun);
        assert_eq!(of((false, begun.clone()), (true, begun)), again, "{sentence}, of an earlier leader");
    }
    let before = || at(Step::BeforeDrain);
    assert_eq!(with(true, (false, before()), (true, before())), again, "uncordoned before its drain");
    assert_eq!(with(true, (false, before()), (false, drains())), ["drain started"], "which goes on without its cordon");
    assert_eq!(with(true, (false, drains()), (true, drains())), again);
}

#[test]
fn request_to_hooks_is_logged_when_set_and_when_withdrawn() {
    let facts = |request: Option<&str>| NodeFacts {
        name: "a".into(),
        hook_request: request.map(str::to_owned),
        ..NodeFacts::default()
    };
    for (before, after, expected) in [
        (None, Some("BeforeDrain/1/1"), vec![(false, "hooks requested")]),
        (Some("BeforeDrain/1/1"), Some("BeforeDrain/1/1"), vec![]),
        (Some("BeforeDrain/1/1"), Some("AfterUpdate/1/1"), vec![(false, "hooks requested")]),
        (Some("AfterUpdate/1/1"), None, vec![(false, "request to hooks withdrawn")]),
        (None, None, vec![]),
    ] {
        let (before, after) = (facts(before), facts(after));
        let lines = of_node(Pair { facts: &before, shadow: None }, Pair { facts: &after, shadow: None }, false);
        assert_eq!(texts(&lines), expected);
    }
}

#[test]
fn rollout_log_lines_name_variant_and_architecture() {
    let rollout = |arch: &str, steps_passed: i64| ActiveRollout {
        version: Version::new(1, 20, 5),
        variant: "aws-k8s-1.37".into(),
        arch: arch.into(),
        started: Timestamp::UNIX_EPOCH,
        steps_passed,
        step_done: None,
        approved: false,
        soak_repeated: false,
        ended: None,
        approved_step: None,
        ledger: None,
        urgent_until: None,
        estimated_completion: None,
        record: None,
    };
    let with = |rollouts: &[(&str, i64)]| BottlerocketUpdateOperatorStatus {
        active_rollouts: rollouts.iter().map(|(arch, passed)| rollout(arch, *passed)).collect(),
        ..BottlerocketUpdateOperatorStatus::default()
    };
    let (arm, intel) = ("aarch64", "x86_64");
    for (before, after, expected) in [
        (with(&[(arm, 0)]), with(&[(arm, 0), (intel, 0)]), vec![("rollout started", "aws-k8s-1.37/x86_64")]),
        (with(&[(arm, 0), (intel, 1)]), with(&[(arm, 0), (intel, 1)]), vec![]),
        (
            with(&[(arm, 1), (intel, 0)]),
            with(&[(arm, 1), (intel, 1)]),
            vec![("canary step passed", "1 step(s) passed on aws-k8s-1.37/x86_64")],
        ),
    ] {
        let lines = of_operator(&before, &after);
        let decisions: Vec<_> =
            lines.iter().map(|line| (line.text, line.detail.as_deref().unwrap_or_default())).collect();
        assert_eq!(decisions, expected, "{before:?} -> {after:?}");
    }
}

fn rollout() -> ActiveRollout {
    ActiveRollout::new(Version::new(1, 20, 5), "aws-k8s-1.37".into(), "x86_64".into(), Timestamp::UNIX_EPOCH)
}

#[test]
fn proof_that_is_lost_or_back_and_soak_that_begins_again_log_one_line_each() {
    use models::operator::{NOT_READY, RolloutLedger};
    let proven = RolloutLedger { proven: 2, ..RolloutLedger::default() };
    let mut lost = proven.clone();
    lost.fall(("a", NOT_READY), |_| false);
    let mut replaced = lost.clone();
    replaced.nodes.clear();
    let and_lost = |ledger: &RolloutLedger| {
        let mut ledger = ledger.clone();
        ledger.fall(("b", NOT_READY), |_| false);
        ledger
    };
    let other = vec![(true, "proof lost", Some("b"))];
    let at = |ledger: &RolloutLedger, second: Option<i64>| BottlerocketUpdateOperatorStatus {
        active_rollouts: vec![ActiveRollout {
            ledger: Some(ledger.clone()),
            step_done: second.map(|second| Timestamp::from_second(second).unwrap()),
            ..rollout()
        }],
        ..BottlerocketUpdateOperatorStatus::default()
    };
    let soaks = |second| at(&proven, Some(second));
    let mut repeated = at(&RolloutLedger { proven: 1, ..proven.clone() }, None);
    repeated.active_rollouts[0].soak_repeated = true;
    for (sentence, before, after, expected) in [
        ("lost", at(&proven, None), at(&lost, None), vec![(true, "proof lost", Some("a"))]),
        ("still lost", at(&lost, None), at(&lost, None), vec![]),
        ("back", at(&lost, None), at(&proven, None), vec![(false, "proof back", Some("a"))]),
        (
            "back, and another one is lost",
            at(&lost, None),
            at(&and_lost(&proven), None),
            [other.clone(), vec![(false, "proof back", Some("a"))]].concat(),
        ),
        ("gone, and its name is another one's", at(&lost, None), at(&replaced, None), vec![]),
        ("the same, and another one is lost", at(&lost, None), at(&and_lost(&replaced), None), other),
        ("the soak begins", at(&proven, None), soaks(60), vec![]),
        ("it goes on", soaks(60), soaks(60), vec![]),
        ("it begins again", soaks(60), soaks(90), vec![(false, "soak begins again", Some("b"))]),
        ("it is repeated", soaks(60), repeated.clone(), vec![(false, "soak repeated with another node", None)]),
        ("it is repeated already", repeated.clone(), repeated, vec![]),
    ] {
        let lines = of_operator(&before, &after);
        let found: Vec<_> = lines.iter().map(|line| (line.warning, line.text, line.node.as_deref())).collect();
        assert_eq!(found, expected, "{sentence}");
        assert!(lines.iter().all(|line| line.version == Some(Version::new(1, 20, 5))), "{sentence}: {lines:?}");
    }
}

#[test]
fn acknowledged_approval_logs_whether_it_had_an_effect() {
    use models::operator::{OperatorRequests, RolloutLedger};
    // The canary steps of two rollouts, which an approval names by their places alone while no record has a number.
    let step = |arch: &str, due| ActiveRollout {
        arch: arch.into(),
        ledger: Some(RolloutLedger { due, ..RolloutLedger::default() }),
        ..rollout()
    };
    let with = |observed_generation, approve_step: Option<&str>, named, other| BottlerocketUpdateOperatorStatus {
        observed_generation,
        requests: Some(OperatorRequests { approve_step: approve_step.map(str::to_owned), ..Default::default() }),
        active_rollouts: vec![named, other],
        ..BottlerocketUpdateOperatorStatus::default()
    };
    let (named, other) = (|| step("x86_64", 1), || step("aarch64", 2));
    let accepted = || {
        let ledger = RolloutLedger { due: 1, accepted: 1, ..RolloutLedger::default() };
        ActiveRollout { ledger: Some(ledger), ..named() }
    };
    let passed = |rollout: ActiveRollout| ActiveRollout { steps_passed: rollout.steps_passed + 1, ..rollout };
    let approved = || ActiveRollout { approved: true, ..named() };
    let refused = || vec!["approval acknowledged: no canary step waits for it"];
    for (sentence, observed, value, after, expected) in [
        ("a step waits for it", Some(1), "0/1@x", (approved(), other()), vec!["canary step approved"]),
        (
            "a place without a proof is accepted, and the soak of the step begins",
            Some(1),
            "0/1/unproven@x",
            (accepted(), other()),
            vec!["canary step approved"],
        ),
        ("it passes", Some(1), "0/1@x", (passed(named()), other()), vec!["canary step passed", "canary step approved"]),
        ("no step waits", Some(1), "0/1@x", (named(), other()), refused()),
        ("it names no step", Some(1), "yes", (approved(), other()), refused()),
        (
            "the step of another rollout passes meanwhile",
            Some(1),
            "0/1@x",
            (named(), passed(other())),
            [vec!["canary step passed"], refused()].concat(),
        ),
        ("the annotation of a new resource", None, "0/1@x", (named(), other()), vec![]),
    ] {
        let before = with(observed, None, named(), other());
        let lines = of_operator(&before, &with(Some(1), Some(value), after.0, after.1));
        let texts: Vec<_> = lines.iter().map(|line| line.text).collect();
        assert_eq!(texts, expected, "{sentence}");
    }
}

#[test]
fn freezes_quarantines_and_policy_changes_log_one_line_each() {
    let with = |type_: &str, reason: &str, policy: &str| BottlerocketUpdateOperatorStatus {
        policy_in_force: Some(policy.to_owned()),
        conditions: vec![Condition {
            type_: type_.to_owned(),
            status: (!reason.is_empty()).into(),
            reason: reason.to_owned(),
            message: format!("because of {reason}"),
            last_transition_time: Timestamp::UNIX_EPOCH,
            observed_generation: None,
        }],
        ..BottlerocketUpdateOperatorStatus::default()
    };
    let mut quarantined = with(FROZEN, "VersionFailed", "1");
    quarantined.versions.push(KnownVersion {
        version: Version::new(1, 20, 5),
        variant: "aws-k8s".into(),
        arch: "x86_64".into(),
        first_seen: Timestamp::UNIX_EPOCH,
        failed: vec!["a".into()],
        quarantined: Some(Quarantined {
            reason: FailureReason::SoakFailed,
            nodes: vec!["a".into()],
            since: Timestamp::UNIX_EPOCH,
            contained: false,
        }),
    });
    let mut contained = quarantined.clone();
    contained.conditions[0].reason = models::operator::CONTAINED.to_owned();
    contained.conditions[0].status = ConditionStatus::False;
    let running = || with(BLOCKED, "EarlierOperatorRunning", "1");
    let going = || {
        let mut status = with(BLOCKED, "EarlierOperatorGone", "1");
        status.conditions[0].status = ConditionStatus::Unknown;
        status
    };
    let bad = || with(DEGRADED, "InvalidPolicy", "1");
    for (before, after, expected) in [
        (with(FROZEN, "", "1"), quarantined.clone(), vec![(true, "version quarantined"), (true, "rollout frozen")]),
        (quarantined.clone(), quarantined.clone(), vec![]),
        (quarantined.clone(), with(FROZEN, "", "1"), vec![(false, "rollout resumed")]),
        (quarantined, contained.clone(), vec![(false, "rollout continues without the nodes that failed")]),
        (contained.clone(), contained.clone(), vec![]),
        (contained, with(FROZEN, "", "1"), vec![(false, "rollout resumed")]),
        (with(DEGRADED, "", "1"), bad(), vec![(true, "policy rejected")]),
        (bad(), bad(), vec![]),
        (bad(), with(DEGRADED, "", "2"), vec![(false, "policy accepted")]),
        (with(DEGRADED, "", "1"), with(DEGRADED, "", "2"), vec![(false, "policy accepted")]),
        (with(BLOCKED, "", "1"), running(), vec![(true, "paused: earlier operator running")]),
        (running(), going(), vec![]),
        (going(), with(BLOCKED, "", "1"), vec![(false, "resumed: earlier operator gone")]),
        (with(BLOCKED, "", "1"), with(BLOCKED, "ExpressionFires", "1"), vec![(true, "rollout blocked")]),
    ] {
        assert_eq!(texts(&of_operator(&before, &after)), expected, "{before:?} -> {after:?}");
    }
}

#[test]
fn each_step_of_a_drill_logs_one_line_that_names_it() {
    let drill = |step, evict| {
        let mut report = at(step);
        report.progress.as_mut().unwrap().drill = Some(Drill { evict, ..Drill::default() });
        report
    };
    let with = |report: ControllerReport, result: &str| {
        let found = serde_json::json!({
            "request": "1", "result": result, "message": "why", "started": "2026-01-01T00:00:00Z",
            "ended": "2026-01-01T00:00:00Z",
        });
        let drill = Some(serde_json::from_value(found).unwrap());
        ControllerReport { record: Some(Record { drill, ..Record::default() }), ..report }
    };
    use Step::{Draining, Rebooting, Releasing, Staging, Verifying};
    for (before, after, warning, part) in [
        (idle(), drill(Staging, false), false, "drill started: no pod is evicted"),
        (idle(), drill(Staging, true), false, "drill started: its pods are to be evicted"),
        (drill(Staging, false), drill(Draining, false), false, "dry run of the drain started"),
        (drill(Staging, true), drill(Draining, true), false, "drain started in a drill"),
        (drill(Draining, true), drill(Rebooting, true), false, "node drained in a drill"),
        (drill(Rebooting, true), drill(Verifying, true), false, "rehearsal permit verified"),
        (drill(Verifying, false), with(idle(), "Passed"), false, "drill passed"),
        (drill(Verifying, false), with(idle(), "EvictionsRefused"), true, "drill ended"),
        (drill(Verifying, false), with(drill(Releasing, false), "Held"), true, "drill ended"),
        (with(drill(Releasing, false), "Held"), with(idle(), "Held"), false, "drill over"),
        (idle(), with(idle(), "Disabled"), true, "drill ended"),
    ] {
        let lines = of_report("a", &before, &after);
        let is: Vec<_> = lines.iter().map(|line| (line.warning, line.text)).collect();
        assert!(matches!(is[..], [(w, text)] if w == warning && text.starts_with(part)), "{part}: {is:?}");
    }
}

#[test]
fn each_step_of_a_repeated_verification_logs_one_line() {
    let verification = |step| {
        let mut report = at(step);
        report.progress.as_mut().unwrap().verification = true;
        report
    };
    use Step::{AfterUpdate, Releasing, Verifying};
    for (before, after, warning, text) in [
        (idle(), verification(Verifying), false, "verification started: the node has not proven its version"),
        (verification(Verifying), verification(AfterUpdate), false, "hooks awaited after a verification"),
        (verification(Verifying), ended(idle(), UPDATED), false, "node verified"),
        (verification(AfterUpdate), ended(verification(Releasing), "HookTimedOut"), true, "attempt failed"),
        (verification(Verifying), ended(verification(Releasing), "Held"), false, "attempt withdrawn"),
    ] {
        assert_eq!(texts(&of_report("a", &before, &after)), [(warning, text)]);
    }
}
