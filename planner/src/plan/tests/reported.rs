//! Ends of attempts that agents report: what a single agent reports concerns its own node.

use models::reason::{ENDS, FailureReason};
use models::shadow::{Failure, HostState, OfferedUpdates, Permit, Place, Record, Step};
use semver::Version;

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::view::NodeView;

fn at_step(step: Step) -> NodeView {
    let rebooting = matches!(step, Step::Rebooting | Step::Returning);
    at("a", step, 0, if rebooting { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate })
}

/// A node at this step whose agent reports that the attempt has failed.
fn reporting(step: Step, reason: FailureReason) -> NodeView {
    let mut node = at_step(step);
    let shadow = node.shadow.as_mut().unwrap();
    let message = "as the agent has it".to_owned();
    shadow.status.agent.failure = Some(Failure { attempt: 1, step: shadow.spec.state, reason, message, time: t(1) });
    node
}

/// Plans for node `a`, which has a slot if it is out of service.
fn plan_at(node: NodeView, second: i64) -> Plan {
    let waits = node.step().is_some_and(|step| step.place() == Place::Waiting);
    let slots: &[&str] = if waits { &[] } else { &["a"] };
    let (view, policy) = cluster(vec![node], slots);
    plan(&view, &policy, t(second))
}

fn record_of(made: &Plan) -> Option<&Record> {
    match made.actions.get("a") {
        Some(Action::Status { status, .. }) => status.report.record.as_ref(),
        _ => None,
    }
}

#[test]
fn end_that_an_agent_reports_before_its_permit_counts_against_its_node_alone() {
    for step in [Step::Staging, Step::Draining, Step::Rebooting] {
        for reason in ENDS.iter().filter_map(|end| end.failure) {
            let made = plan_at(reporting(step, reason), 5);
            let record = record_of(&made).unwrap();
            let accepted = reason.end().by_agent && reason != FailureReason::BootFellBack;
            let expected = if accepted { reason } else { FailureReason::Unknown };
            let last = record.last.as_ref().unwrap();
            assert_eq!(last.reason, expected.as_str(), "{step:?}, {reason}");
            assert_eq!(last.message.contains(reason.as_str()), !accepted, "{step:?}, {reason}: {}", last.message);
            assert_eq!((record.failures, record.not_before), (1, Some(t(605))), "{step:?}, {reason}");
            assert!(record.version_failures.is_empty() && record.refusing_budgets.is_empty(), "{step:?}, {reason}");
        }
    }
}

#[test]
fn boot_that_fell_back_counts_against_the_version_once_its_node_is_in_another_boot_after_a_permit() {
    for (sentence, step, permitted, boot, second, expected) in [
        ("in another boot", Step::Rebooting, true, "b2", 5, "BootFellBack"),
        ("seen in it before", Step::Returning, true, "b2", 5, "BootFellBack"),
        ("the kubelet has not reported the boot yet", Step::Rebooting, true, "b1", 5, "AwaitingReboot"),
        ("the kubelet never reports another boot", Step::Rebooting, true, "b1", 24 * 3600, "RebootTimedOut"),
        ("rebooted without a permit", Step::Rebooting, false, "b2", 5, "Unknown"),
        ("rebooted in its drain", Step::Draining, false, "b2", 5, "RebootedByOther"),
        ("rebooted before its drain", Step::Staging, false, "b2", 5, "Unknown"),
    ] {
        let mut node = reporting(step, FailureReason::BootFellBack);
        node.facts.boot_id = boot.into();
        node.shadow.as_mut().unwrap().spec.permit = permitted.then(|| Permit { nonce: "n".into(), jws: "j".into() });
        let made = plan_at(node, second);
        assert_eq!(outcome(&made), expected, "{sentence}");
        let charged = record_of(&made).map_or(0, |record| record.version_failures.len());
        assert_eq!(charged, usize::from(expected == "BootFellBack"), "{sentence}");
    }
}

#[test]
fn version_is_charged_for_the_kind_that_its_node_names_and_not_for_the_one_that_the_agent_reports() {
    let reported = ("metal-k8s-1.37", "aarch64");
    for (sentence, image, arch, expected) in [
        ("the Node names both", "(aws-k8s-1.37)", Some("amd64"), ("aws-k8s-1.37", "x86_64")),
        ("it names the variant", "(aws-k8s-1.37)", None, ("aws-k8s-1.37", reported.1)),
        ("it names neither", "", None, reported),
    ] {
        let mut node = failed(FailureReason::BootFellBack);
        node.facts.os_image = format!("Bottlerocket OS {OLD} {image}");
        let label = arch.map(|arch| ("kubernetes.io/arch".to_owned(), arch.to_owned()));
        node.facts.labels = std::sync::Arc::new(label.into_iter().collect());
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        (agent.variant, agent.arch) = (Some(reported.0.into()), Some(reported.1.into()));
        let made = plan_at(node, 5);
        let failures = &record_of(&made).unwrap().version_failures;
        let kinds: Vec<_> = failures.iter().map(|f| (f.variant.as_str(), f.arch.as_str())).collect();
        assert_eq!(kinds, [expected], "{sentence}");
    }
}

/// It could prove the version for other nodes, or escape a brake or a quarantine.
#[test]
fn node_whose_agent_reports_another_kind_stays_in_the_rollout_of_its_own() {
    let mut liar = at("a", Step::Staged, 0, HostState::StagedUpdate);
    liar.facts.labels = std::sync::Arc::new([("kubernetes.io/arch".to_owned(), "amd64".to_owned())].into());
    let mut shadow = liar.shadow.take().unwrap();
    (shadow.status.agent.variant, shadow.status.agent.arch) = (Some("metal-k8s-1.37".into()), Some("aarch64".into()));
    let (mut view, policy) = cluster(vec![], &[]);
    view.insert(liar.facts, Some(*shadow), t(0));
    view.nodes.get_mut("a").unwrap().pods = Some(vec![]);
    let status = plan(&view, &policy, t(5)).status.unwrap();
    let update = status.slots[0].update.as_ref().unwrap();
    let rollout = &status.active_rollouts[0];
    let kinds = [(&update.variant, &update.arch), (&rollout.variant, &rollout.arch)];
    assert_eq!(kinds.map(|(variant, arch)| (variant.as_str(), arch.as_str())), [("aws-k8s-1.37", "x86_64"); 2]);
}

#[test]
fn node_that_returns_to_service_because_its_version_is_no_longer_offered_backs_off() {
    for (step, backs_off) in [
        (Step::Staged, false),
        (Step::BeforeDrain, true),
        (Step::LeavingLoadBalancer, true),
        (Step::Draining, true),
        (Step::Rebooting, true),
    ] {
        let mut node = at_step(step);
        node.shadow.as_mut().unwrap().status.agent.updates = Some(OfferedUpdates::default());
        let made = plan_at(node, 5);
        let record = record_of(&made).unwrap();
        assert_eq!(record.last.as_ref().unwrap().reason, "Superseded", "{step:?}");
        assert_eq!((record.failures, record.not_before), (0, backs_off.then(|| t(605))), "{step:?}");
    }
}

#[test]
fn drain_goes_on_where_an_agent_reports_a_later_version_than_its_node_names() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    shadow(&mut view).status.agent.current_version = Some(Version::new(1, 21, 0));
    let made = plan(&view, &policy, t(1));
    assert!(made.evictions.contains_key("a"), "{:?} {:?}", made.actions, made.waits);
}

/// There is no other event of that.
#[test]
fn plan_wakes_once_a_version_is_old_enough_and_the_absence_of_an_agent_counts() {
    for (second, wakes) in [(50, true), (100, false), (150, false)] {
        let (mut view, policy) = cluster(vec![node("a")], &[]);
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
        let policy = crate::policy::Policy { minimum_age: std::time::Duration::from_secs(100), ..policy };
        assert_eq!(plan(&view, &policy, t(second)).wake == Some(t(100)), wakes, "{second} s");
    }
    for (second, wakes) in [(10, true), (30, false), (40, false)] {
        let mut a = node("a");
        a.agent_missing = Some(t(0));
        let (view, policy) = cluster(vec![a], &[]);
        assert_eq!(plan(&view, &policy, t(second)).wake == Some(t(30)), wakes, "{second} s");
    }
}
