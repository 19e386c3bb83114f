//! Tables of urgency: what passes windows and soaks, for how long, and what is reported about it.

use std::time::Duration;

use models::operator::CountOrPercent;

use super::*;
use crate::fixtures::{NEW, OLD, cluster, node, rollout, t, updated};
use crate::plan::{CheckResult, checks, plan};
use crate::policy::{CanaryStep, Policy, Urgent};
use crate::view::ClusterView;
use crate::wait::Wait;

const HOUR: i64 = 3600;

fn urgent(from: Version, until: i64) -> Option<Urgent> {
    Some(Urgent { from, reason: "CVE-2026-1234".into(), until: t(until) })
}

/// Returns the policy with a window that opens an hour after `t(0)`, at 09:00.
fn closed(policy: &mut Policy) {
    let spec = r#"{"schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]}}"#;
    policy.all.schedule = Policy::from_spec(&serde_json::from_str(spec).unwrap()).unwrap().all.schedule;
}

/// Three nodes that run [`OLD`] and are offered [`NEW`], and the policy with a closed window.
fn fleet() -> (ClusterView, Policy) {
    let (view, mut policy) = cluster(["a", "b", "c"].map(node).to_vec(), &[]);
    closed(&mut policy);
    (view, policy)
}

#[test]
fn urgent_version_passes_closed_window_until_it_expires() {
    let later = Version::new(1, 20, 6);
    for (sentence, urgent, second, passes) in [
        ("no urgency", None, 0, false),
        ("the version itself", urgent(NEW, 600), 0, true),
        ("a later one than the urgent one", urgent(Version::new(1, 20, 4), 600), 0, true),
        ("an earlier one than the urgent one", urgent(later, 600), 0, false),
        ("the nodes have the urgent version already", urgent(OLD, 600), 0, false),
        ("a moment before the end", urgent(NEW, 600), 599, true),
        ("the end", urgent(NEW, 600), 600, false),
    ] {
        let (view, mut policy) = fleet();
        policy.urgent = urgent;
        let made = plan(&view, &policy, t(second));
        assert_eq!(made.actions.contains_key("a"), passes, "{sentence}: {:?}", made.waits);
        let closed = Wait::WindowClosed { opens: Some(t(HOUR)) };
        assert_eq!(made.waits.get("a") == Some(&closed), !passes, "{sentence}");
        assert!(!made.window_open, "{sentence}: the schedule is as it is");
        let open = models::operator::WINDOW_OPEN;
        let conditions = made.status.as_ref().unwrap().conditions.clone();
        let window = models::condition::find_condition(&conditions, open).unwrap();
        assert_eq!(window.reason, "Closed", "{sentence}");
        if passes {
            assert!(made.wake.is_some_and(|wake| wake <= t(600)), "{sentence}: it plans again at the end");
        }
        let checks = checks(&view, &policy, &made, t(second), "a");
        let window = checks.iter().find(|check| check.name == "WindowOpen").unwrap();
        assert_eq!(window.exception.is_some(), passes, "{sentence}");
        assert_eq!(window.result == CheckResult::Passed, passes, "{sentence}");
    }
}

#[test]
fn blackout_applies_to_urgent_version() {
    let (view, mut policy) = fleet();
    policy.urgent = urgent(NEW, 600);
    let spec = r#"{"schedule": {"blackouts": [{"from": "2027-01-15"}]}}"#;
    policy.all.schedule = Policy::from_spec(&serde_json::from_str(spec).unwrap()).unwrap().all.schedule;
    let made = plan(&view, &policy, t(0));
    assert!(matches!(made.waits.get("a"), Some(Wait::Blackout { .. })), "{:?}", made.waits);
}

#[test]
fn urgent_version_passes_soak_but_neither_approval_nor_number_of_nodes() {
    let step = |nodes, soak, manual| CanaryStep {
        nodes: CountOrPercent::Count(nodes),
        soak: Duration::from_secs(soak),
        manual,
    };
    for (sentence, steps, expected) in [
        ("a soak", vec![step(1, 7200, false)], None),
        (
            "an approval after a soak",
            vec![step(1, 7200, true)],
            Some(Wait::CanaryStep {
                step: 1,
                until: None,
                approval: Some("0/1".into()),
                nodes: vec![],
                none_runs: false,
            }),
        ),
        (
            "a step of two nodes, of which one is updated",
            vec![step(2, 7200, false)],
            Some(Wait::CanaryStep { step: 1, until: None, approval: None, nodes: vec![], none_runs: false }),
        ),
    ] {
        let (mut view, mut policy) = fleet();
        (policy.urgent, policy.canary) = (urgent(NEW, 600), steps);
        let first = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        first.status.controller.record = Some(updated());
        first.status.agent.current_version = Some(NEW);
        view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout(NEW)];
        let passes = |second, policy: &Policy| {
            let made = plan(&view, policy, t(second));
            let status = made.status.unwrap();
            (status.active_rollouts[0].steps_passed, status.active_rollouts[0].urgent_until)
        };
        assert_eq!(passes(100, &policy), (i64::from(expected.is_none()), Some(t(600))), "{sentence}");
        assert_eq!(passes(600, &policy), (0, None), "{sentence}: after the end");
        let wanted = [(&view.nodes["b"], &NEW)];
        let followed = super::super::rollout::follow(&view, &policy, wanted.into_iter(), std::iter::empty(), t(100));
        assert_eq!(followed.of(&view.nodes["b"], &NEW).unwrap().wait, expected, "{sentence}");
    }
}

#[test]
fn urgency_lasts_no_longer_than_its_limit_and_never_begins_again_by_itself() {
    let (mut view, mut policy) = fleet();
    policy.urgent = urgent(NEW, 1000 * HOUR);
    let limit = 14 * 24 * HOUR;
    let at = |view: &ClusterView, policy: &Policy, second| Urgency::of(view, policy, t(second));
    let first = at(&view, &policy, 10);
    assert_eq!(first.until(), Some(t(10 + limit)));
    view.operator.as_mut().unwrap().status.urgent = first.record.clone();
    for second in [20, 10 + limit - 1, 10 + limit, 900 * HOUR] {
        let now = at(&view, &policy, second);
        assert_eq!(now.record, first.record, "at {second} s");
        assert_eq!(now.until().is_some(), second < 10 + limit, "at {second} s");
    }
    policy.urgent = urgent(NEW, 2000 * HOUR);
    assert_eq!(at(&view, &policy, 20).record, first.record, "a later end beyond the limit is no other urgency");
    policy.urgent = urgent(NEW, 100);
    assert_eq!(at(&view, &policy, 20).until(), Some(t(100)), "the end was set to an earlier time");
    policy.urgent = None;
    assert_eq!(at(&view, &policy, 20), Urgency { record: None, now: Some(t(20)) });
}

#[test]
fn each_urgent_rollout_emits_one_event() {
    let (mut view, mut policy) = fleet();
    policy.urgent = urgent(NEW, 600);
    let old = view.operator.as_ref().unwrap().status.clone();
    let new = plan(&view, &policy, t(0)).status.unwrap();
    let notes = urgent_news(&old, &new);
    assert_eq!(notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["UrgentVersion"]);
    for part in ["1.20.5", "aws-k8s-1.37 x86_64", "CVE-2026-1234", &t(600).to_string()] {
        assert!(notes[0].message.contains(part), "{part}: {}", notes[0].message);
    }
    view.operator.as_mut().unwrap().status = new.clone();
    let next = plan(&view, &policy, t(10)).status.unwrap();
    assert_eq!(urgent_news(&new, &next), []);
    policy.urgent = urgent(NEW, 900);
    let longer = plan(&view, &policy, t(20)).status.unwrap();
    assert_eq!(urgent_news(&next, &longer).len(), 1, "another end is another override");
}
