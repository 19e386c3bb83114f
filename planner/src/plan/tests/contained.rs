//! A version that has failed on one kind of node, and a user who goes on with the others: variant and architecture are a kind.

use models::condition::{Condition, ConditionStatus, find_condition};
use models::operator::{CONTAINED, FROZEN, Quarantined, RESUMED, frozen_since};
use models::reason::FailureReason;
use models::shadow::{HostState, Step, VersionFailure};
use semver::Version;
use serde_json::json;

use crate::decision::Action;
use crate::fixtures::{NEW, OLD, at, cluster, cluster_with, failure, node, t, with_policy};
use crate::lint::lint;
use crate::plan::{Plan, continue_news, news, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView, ShadowFacts};
use crate::wait::Wait;

const ARM: &str = "aarch64";

fn shadow_of<'a>(view: &'a mut ClusterView, name: &str) -> &'a mut ShadowFacts {
    view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap()
}

fn of_arch(mut node: NodeView, arch: &str) -> NodeView {
    node.shadow.as_mut().unwrap().status.agent.arch = Some(arch.into());
    node
}

fn fail(view: &mut ClusterView, name: &str, arch: &str, version: Version) {
    let record = shadow_of(view, name).status.controller.record.get_or_insert_default();
    record.version_failures.push(VersionFailure { arch: arch.into(), ..failure(version) });
}

/// Two nodes of each of two kinds: `a` has failed, `b` is like it, `x` and `y` are of the other kind. The freeze is recorded.
fn frozen() -> (ClusterView, Policy) {
    let other = |name| of_arch(node(name), ARM);
    let (mut view, policy) =
        cluster_with(vec![node("a"), node("b"), other("x"), other("y")], &[], json!({"maxUnavailable": 4}));
    view.operator.as_mut().unwrap().status.observed_generation = Some(1);
    fail(&mut view, "a", "x86_64", NEW);
    turn(&mut view, &policy, 1);
    (view, policy)
}

/// Makes a plan and records its status; the validator has nothing against it.
fn turn(view: &mut ClusterView, policy: &Policy, second: i64) -> Plan {
    let mut made = plan(view, policy, t(second));
    assert_eq!(lint(view, policy, &mut made), []);
    let mut status = made.status.clone().unwrap();
    status.slots.clear();
    view.operator.as_mut().unwrap().status = status;
    made
}

/// Requests to continue without what has failed so far, as the condition `Frozen` says.
fn request(view: &mut ClusterView, policy: &Policy) -> String {
    let value = frozen_since(&view.operator.as_ref().unwrap().status.versions).unwrap().to_string();
    view.operator.as_mut().unwrap().continue_others = Some(value.clone());
    turn(view, policy, 2);
    value
}

fn condition(view: &ClusterView) -> Condition {
    find_condition(&view.operator.as_ref().unwrap().status.conditions, FROZEN).unwrap().clone()
}

fn begun(made: &Plan) -> Vec<&str> {
    made.actions.iter().filter(|(_, action)| action.next_step().is_some()).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn failure_of_one_kind_freezes_all_until_a_user_goes_on_with_the_others() {
    let (mut view, policy) = frozen();
    let made = turn(&mut view, &policy, 2);
    assert_eq!(begun(&made), [""; 0]);
    assert_eq!(made.waits["b"], Wait::Quarantined { version: NEW });
    assert_eq!(made.waits["x"], Wait::Frozen { version: NEW });
    assert_eq!(condition(&view).status, ConditionStatus::True);
    let command = format!("brupop.bottlerocket.aws/continue-others={}", t(1));
    assert!(condition(&view).message.ends_with(&command), "{:?}", condition(&view));

    let before = view.operator.clone().unwrap().status.conditions;
    let value = request(&mut view, &policy);
    let operator = &view.operator.as_ref().unwrap().status;
    assert_eq!(operator.requests.as_ref().unwrap().continue_others, Some(value));
    let frozen = condition(&view);
    assert_eq!((frozen.status, frozen.reason.as_str()), (ConditionStatus::False, CONTAINED));
    for part in ["1.20.5 for aws-k8s-1.37 x86_64 (BootFellBack on a)", "Other nodes go on", "aws/resume="] {
        assert!(frozen.message.contains(part), "{part}: {frozen:?}");
    }
    let reasons: Vec<_> = news(&before, &operator.conditions).into_iter().map(|note| note.reason).collect();
    assert_eq!(reasons, [CONTAINED]);

    let made = turn(&mut view, &policy, 3);
    assert_eq!(begun(&made), ["x", "y"]);
    for name in ["a", "b"] {
        assert_eq!(made.waits[name], Wait::Quarantined { version: NEW }, "{name}");
    }
    assert!(!made.quarantine.is_empty() && made.quarantine.frozen_by().is_none());
}

#[test]
fn other_kind_is_drained_and_the_failed_one_is_not_while_it_has_its_image() {
    let (mut view, policy) = frozen();
    for (name, arch) in [("b", "x86_64"), ("x", ARM)] {
        let staged = of_arch(at(name, Step::Staged, 0, HostState::StagedUpdate), arch);
        view.nodes.insert(name.into(), staged);
    }
    request(&mut view, &policy);
    let made = turn(&mut view, &policy, 3);
    let slots: Vec<_> = made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect();
    assert_eq!(slots, ["x"]);
}

#[test]
fn node_of_the_failed_kind_goes_to_another_version() {
    let (mut view, _) = frozen();
    let older = Version::new(1, 19, 5);
    for name in ["a", "b"] {
        let updates = shadow_of(&mut view, name).status.agent.updates.as_mut().unwrap();
        updates.chosen_version = Some(older.clone());
    }
    let policy = with_policy(&mut view, json!({"version": {"target": older.to_string()}, "maxUnavailable": 4}));
    request(&mut view, &policy);
    for name in ["a", "b"] {
        shadow_of(&mut view, name).spec.host.as_mut().unwrap().version_lock = Some(older.to_string());
    }
    let made = turn(&mut view, &policy, 3);
    assert!(begun(&made).contains(&"b"), "{:?}", made.waits);
}

#[test]
fn containment_lasts_until_resume_and_ends_with_the_quarantine() {
    let (mut view, policy) = frozen();
    request(&mut view, &policy);
    // Another node of the same kind fails, and the leader changes: both are read from the status.
    fail(&mut view, "b", "x86_64", NEW);
    for second in 3..6 {
        turn(&mut view, &policy, second);
        assert_eq!(condition(&view).reason, CONTAINED);
    }
    view.operator.as_mut().unwrap().resume = Some("tuesday".into());
    let made = turn(&mut view, &policy, 6);
    for name in ["a", "b"] {
        let Action::Status { status, .. } = &made.actions[name] else { panic!("{:?}", made.actions) };
        shadow_of(&mut view, name).status.controller = status.report.clone();
    }
    let before = view.operator.clone().unwrap().status.conditions;
    turn(&mut view, &policy, 7);
    assert_eq!(condition(&view).reason, RESUMED);
    let after = &view.operator.as_ref().unwrap().status;
    let reasons: Vec<_> = news(&before, &after.conditions).into_iter().map(|note| note.reason).collect();
    assert_eq!(reasons, ["Resumed"]);
    assert!(after.versions.iter().all(|known| known.quarantined.is_none()), "{:?}", after.versions);
    fail(&mut view, "a", "x86_64", NEW);
    turn(&mut view, &policy, 8);
    assert_eq!(condition(&view).status, ConditionStatus::True, "the request was for the failures before");
}

#[test]
fn later_failure_freezes_again() {
    for (sentence, name, arch, version) in
        [("the version on another kind", "x", ARM, NEW), ("another version on the same kind", "b", "x86_64", OLD)]
    {
        let (mut view, policy) = frozen();
        request(&mut view, &policy);
        fail(&mut view, name, arch, version.clone());
        let made = turn(&mut view, &policy, 3);
        assert_eq!(begun(&made), [""; 0], "{sentence}");
        assert_eq!(condition(&view).status, ConditionStatus::True, "{sentence}");
        assert_eq!(made.quarantine.frozen_by(), Some(&version), "{sentence}");
        turn(&mut view, &policy, 4);
        assert_eq!(condition(&view).status, ConditionStatus::True, "{sentence}: a request is carried out once");
        request(&mut view, &policy);
        assert_eq!(condition(&view).reason, CONTAINED, "{sentence}: another value is another request");
    }
}

#[test]
fn request_contains_no_failure_that_the_status_has_not_shown() {
    let (mut view, policy) = frozen();
    fail(&mut view, "x", ARM, NEW);
    request(&mut view, &policy);
    assert_eq!(condition(&view).status, ConditionStatus::True);
    let message = condition(&view).message;
    assert!(message.contains("aarch64") && !message.contains("x86_64"), "{message}");
}

#[test]
fn containment_that_is_lost_leaves_the_rollout_frozen() {
    // A resource that is made again has no status, and its request is an old one.
    let (mut view, policy) = frozen();
    request(&mut view, &policy);
    view.operator.as_mut().unwrap().status = Default::default();
    for second in 3..6 {
        assert_eq!(begun(&turn(&mut view, &policy, second)), [""; 0]);
    }
    assert_eq!(condition(&view).status, ConditionStatus::True);
}

/// An operator of an earlier version keeps neither the mark nor the acknowledgement, and another kind fails while it leads.
#[test]
fn request_that_is_carried_out_again_contains_no_later_failure() {
    for (sentence, fails) in [("nothing else fails", false), ("another kind fails", true)] {
        let (mut view, policy) = frozen();
        request(&mut view, &policy);
        let status = &mut view.operator.as_mut().unwrap().status;
        status.requests.get_or_insert_default().continue_others = None;
        for known in &mut status.versions {
            known.quarantined.as_mut().into_iter().for_each(|quarantined| quarantined.contained = false);
            if known.arch == ARM && fails {
                known.failed = vec!["x".into()];
                known.quarantined = Some(Quarantined {
                    reason: FailureReason::BootFellBack,
                    nodes: vec![],
                    since: t(5),
                    contained: false,
                });
            }
        }
        turn(&mut view, &policy, 6);
        let made = turn(&mut view, &policy, 7);
        assert_eq!(condition(&view).status == ConditionStatus::True, fails, "{sentence}");
        assert_eq!(begun(&made).is_empty(), fails, "{sentence}");
    }
}

#[test]
fn request_that_names_no_failure_is_refused_with_the_value_to_write() {
    for (value, contains) in [("monday".to_owned(), false), (t(0).to_string(), false), (t(1).to_string(), true)] {
        let (mut view, policy) = frozen();
        view.operator.as_mut().unwrap().continue_others = Some(value.clone());
        let before = view.operator.clone().unwrap().status;
        turn(&mut view, &policy, 2);
        let after = &view.operator.as_ref().unwrap().status;
        assert_eq!(after.requests.as_ref().and_then(|requests| requests.continue_others.as_ref()), Some(&value));
        let refused = continue_news(&before, after);
        assert_eq!(refused.is_none(), contains, "{value}: {refused:?}");
        let names_it =
            |note: crate::decision::Note| note.reason == "ContinueRefused" && note.message.contains(&t(1).to_string());
        assert!(refused.is_none_or(names_it), "{value}");
    }
    // What is contained already says nothing about another failure.
    let (mut view, policy) = frozen();
    request(&mut view, &policy);
    fail(&mut view, "x", ARM, NEW);
    turn(&mut view, &policy, 3);
    view.operator.as_mut().unwrap().continue_others = Some("tuesday".into());
    let before = view.operator.clone().unwrap().status;
    turn(&mut view, &policy, 4);
    let refused = continue_news(&before, &view.operator.as_ref().unwrap().status).unwrap();
    assert!(refused.message.contains(&t(3).to_string()), "{}", refused.message);
}

#[test]
fn request_where_all_nodes_are_of_the_failed_kind_says_so() {
    let (mut view, policy) = frozen();
    view.nodes.retain(|name, _| ["a", "b"].contains(&name.as_str()));
    turn(&mut view, &policy, 2);
    assert!(!condition(&view).message.contains("continue-others"), "it is not offered: {:?}", condition(&view));
    request(&mut view, &policy);
    let frozen = condition(&view);
    assert_eq!(frozen.reason, CONTAINED);
    assert!(frozen.message.contains("There are no nodes of another variant or architecture"), "{frozen:?}");
    assert_eq!(begun(&turn(&mut view, &policy, 3)), [""; 0]);
}

#[test]
fn validator_holds_the_failed_kind_alone() {
    let (mut view, policy) = frozen();
    request(&mut view, &policy);
    for name in ["b", "x"] {
        let arch = shadow_of(&mut view, name).status.agent.arch.clone().unwrap();
        let staged = of_arch(at(name, Step::Staged, 0, HostState::StagedUpdate), &arch);
        view.nodes.insert(name.into(), staged);
    }
    let slots = |name: &str| Plan { slots: Some(vec![crate::fixtures::slot(name)]), ..Plan::default() };
    for (name, expected) in [("b", true), ("x", false)] {
        let found = lint(&view, &policy, &mut slots(name)).iter().any(|finding| finding.property == "S8");
        assert_eq!(found, expected, "a slot for {name}");
        let mut status = view.nodes[name].shadow.as_ref().unwrap().status.controller_status();
        status.report.progress.as_mut().unwrap().step = Step::BeforeDrain;
        let begins = Action::Status { status: Box::new(status), note: None };
        let mut made = Plan { actions: [(name.to_owned(), begins)].into(), ..Plan::default() };
        let found = lint(&view, &policy, &mut made).iter().any(|finding| finding.property == "S8");
        assert_eq!(found, expected, "the drain of {name}");
    }
}

#[test]
fn version_that_is_excluded_for_one_kind_is_taken_by_the_other() {
    let other = |name| of_arch(node(name), ARM);
    let (mut view, _) = cluster(vec![node("a"), node("b"), other("x"), other("y")], &[]);
    let entry = "1.20 on aws-k8s-1.37/x86_64";
    let policy = with_policy(&mut view, json!({"maxUnavailable": 4, "version": {"exclude": [entry]}}));
    view.operator.as_mut().unwrap().status.observed_generation = Some(1);
    let made = turn(&mut view, &policy, 1);
    assert_eq!(begun(&made), ["x", "y"]);
    for name in ["a", "b"] {
        assert_eq!(made.waits[name], Wait::Excluded { version: NEW, rule: entry.into() }, "{name}");
    }
    // A resume is no way around it.
    let (mut view, _) = frozen();
    let policy = with_policy(&mut view, json!({"maxUnavailable": 4, "version": {"exclude": [entry]}}));
    let record = shadow_of(&mut view, "a").status.controller.record.as_mut().unwrap();
    record.version_failures[0].resolved_by = Some("monday".into());
    view.operator.as_mut().unwrap().resume = Some("monday".into());
    turn(&mut view, &policy, 2);
    assert_eq!(begun(&turn(&mut view, &policy, 3)), ["x", "y"]);
}
