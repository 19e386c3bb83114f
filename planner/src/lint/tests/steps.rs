//! Drills, verifications, and the steps that hooks, policy and budgets keep.

use models::shadow::{BottlerocketShadowSpec, DrainStatus, Drill, Progress};
use serde_json::json;

use super::*;
use crate::claims::ClaimFields;
use crate::fixtures::{NEW, at, cluster, cluster_with, invalid_policy, node, pod, progress, with_policy};
use crate::rules::Rules;

/// A view whose node `b`, which is drained, is in a drill.
fn in_drill(evict: bool) -> (ClusterView, Policy) {
    let (mut view, policy) = world(json!({}), false);
    let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
    shadow.spec.state = HostState::RehearsedUpdate;
    shadow.status.controller.progress.as_mut().unwrap().drill = Some(Drill { evict, ..Drill::default() });
    (view, policy)
}

#[test]
fn validator_rejects_reboot_and_unrequested_eviction_in_a_drill() {
    let permit = |pods_stay| acts("b", Action::Permit { nonce: "n".into(), rules: Rules::default(), pods_stay });
    let dry_run = || {
        let mut plan = evicts("b", "p-b");
        plan.evictions.get_mut("b").unwrap().dry_run = true;
        plan
    };
    for (sentence, evict, plan, property) in [
        ("a reboot", false, reboot("b", "b1"), Some("S2")),
        ("the wait for a reboot", true, goes_to("b", Step::Returning), Some("S2")),
        ("a rehearsal permit with pods on the node", false, permit(true), None),
        ("that after evictions", true, permit(true), Some("S3")),
        ("a rehearsal permit", true, permit(false), None),
        ("a dry run", false, dry_run(), None),
        ("a dry run where pods are to be evicted", true, dry_run(), Some("S6")),
        ("evictions", true, evicts("b", "p-b"), None),
        ("evictions that were not requested", false, evicts("b", "p-b"), Some("S6")),
        ("deletions", true, deletes("b", "p-b"), Some("S6")),
    ] {
        let (view, policy) = in_drill(evict);
        assert_eq!(broken(&view, &policy, plan), property, "{sentence}");
    }
    let (mut view, policy) = in_drill(false);
    view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().spec.state = HostState::RebootedIntoUpdate;
    let findings = lint(&view, &policy, &mut permit(false));
    assert_eq!(findings.first().map(|finding| finding.property), Some("S2"), "a permit of a reboot");
    let (view, policy) = world(json!({}), false);
    let findings = lint(&view, &policy, &mut permit(true));
    assert_eq!(findings.first().map(|finding| finding.property), Some("S3"), "an update whose pods stay");
    let rehearsal = BottlerocketShadowSpec { state: HostState::RehearsedUpdate, ..Default::default() };
    let plan = acts("b", Action::Spec { spec: Box::new(rehearsal) });
    assert_eq!(broken(&view, &policy, plan), Some("S2"), "an update that is rehearsed");
}

/// A node `v` that runs its version and is verified again, or is about to be.
fn in_verification(under_way: bool) -> (ClusterView, Policy, Progress) {
    let (mut view, policy) = world(json!({"maxUnavailable": 5}), false);
    let verification = Progress { verification: true, disruptive: false, attempt: 2, ..progress(Step::Verifying, 0) };
    let mut node = node("v");
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    node.shadow.as_mut().unwrap().status.controller.progress = under_way.then(|| verification.clone());
    view.nodes.insert("v".into(), node);
    (view, policy, verification)
}

#[test]
fn validator_rejects_what_takes_a_verified_node_out_of_service() {
    let spec = |state| Action::Spec { spec: Box::new(BottlerocketShadowSpec { state, ..Default::default() }) };
    let permit = || Action::Permit { nonce: "n".into(), rules: Rules::default(), pods_stay: false };
    let claim = || Action::Claim { fields: ClaimFields::CORDON, note: None };
    for (sentence, plan, property) in [
        ("its settings are written", acts("v", spec(HostState::Idle)), None),
        ("hooks are asked", acts("v", Action::Hook { request: Some("AfterUpdate/2/1".into()) }), None),
        ("a desired state", acts("v", spec(HostState::StagedUpdate)), Some("S2")),
        ("a claim", acts("v", claim()), Some("S1")),
        ("a permit", acts("v", permit()), Some("S2")),
        ("an eviction", evicts("v", "p-v"), Some("S6")),
        ("a slot", slots(&["b", "e", "v"]), Some("S1")),
    ] {
        let (mut view, policy, _) = in_verification(true);
        let node = view.nodes.get_mut("v").unwrap();
        node.facts.claims = ClaimFields::default();
        node.pods = Some(vec![pod("v", false)]);
        let mut plan = plan;
        let findings = lint(&view, &policy, &mut plan);
        let found = findings.iter().find(|finding| finding.text.contains("verif"));
        assert_eq!(found.map(|finding| finding.property), property, "{sentence}: {findings:?}");
        assert_eq!(findings.is_empty(), property.is_none(), "{sentence}: {findings:?}");
    }
}

#[test]
fn validator_accepts_a_verification_of_what_an_idle_node_runs_alone() {
    type Change = fn(&mut NodeView, &mut Policy, &mut Progress);
    let case = |sentence: &str, under_way: bool, property: Option<&str>, change: Change| {
        let (mut view, mut policy, mut next) = in_verification(under_way);
        let node = view.nodes.get_mut("v").unwrap();
        change(node, &mut policy, &mut next);
        let plan = acts("v", goes_on(node, next));
        assert_eq!(broken(&view, &policy, plan), property, "{sentence}");
    };
    case("it begins", false, None, |_, _, _| {});
    case("hooks are awaited", true, None, |_, _, next| next.step = Step::AfterUpdate);
    case("it ends", true, None, |_, _, next| next.step = Step::Releasing);
    case("it drains", true, Some("S1"), |_, _, next| next.step = Step::Draining);
    case("it waits for a reboot", true, Some("S1"), |_, _, next| next.step = Step::Returning);
    case("it takes the node out of service", true, Some("S1"), |_, _, next| next.disruptive = true);
    case("it becomes an update", true, Some("S1"), |_, _, next| next.verification = false);
    case("it is of another version", false, Some("S1"), |_, _, next| next.version = crate::fixtures::OLD);
    case("the node is claimed", false, Some("S1"), |node, _, _| node.facts.claims = ClaimFields::CORDON);
    case("under an invalid policy", false, Some("S13"), |_, policy, _| {
        policy.errors = invalid_policy();
    });
    case("a user holds the node", false, Some("S4"), |node, _, _| node.facts.hold = Some(crate::hold::Hold::default()));
}

#[test]
fn validator_rejects_drain_without_answer_of_hooks() {
    let wait = |action: &str| json!({"hooks": [{"name": "ceph", "before": {"timeout": "60s", "onTimeout": action}}]});
    let request = || crate::hooks::request(&progress(Step::BeforeDrain, 0)).unwrap();
    let (after, earlier) = (json!({"hooks": [{"name": "ceph", "after": {}}]}), Some("BeforeDrain/0/1".to_owned()));
    for (sentence, spec, step, answer, since, next, accepted) in [
        ("answered", wait("Fail"), Step::BeforeDrain, Some(request()), 1, Step::Draining, true),
        ("no hook", json!({}), Step::Staged, None, 1, Step::Draining, true),
        ("not awaited before", after, Step::Staged, None, 1, Step::Draining, true),
        ("the hooks come first", wait("Fail"), Step::Staged, None, 1, Step::BeforeDrain, true),
        ("not asked", wait("Continue"), Step::Staged, None, 60, Step::Draining, false),
        ("no answer", wait("Fail"), Step::BeforeDrain, None, 600, Step::Draining, false),
        ("no answer, a drill", wait("Fail"), Step::BeforeDrain, None, 600, Step::Draining, false),
        ("no answer, a load balancer", wait("Fail"), Step::BeforeDrain, None, 600, Step::LeavingLoadBalancer, false),
        ("an earlier answer", wait("Fail"), Step::BeforeDrain, earlier, 1, Step::Draining, false),
        ("too early", wait("Continue"), Step::BeforeDrain, None, 59, Step::Draining, false),
        ("late, and policy continues", wait("Continue"), Step::BeforeDrain, None, 60, Step::Draining, true),
        ("a drain under way", wait("Fail"), Step::Draining, None, 1, Step::Rebooting, true),
        ("the attempt fails", wait("Fail"), Step::BeforeDrain, None, 60, Step::Releasing, true),
    ] {
        let mut node = at("a", step, 0, HostState::StagedUpdate);
        node.facts.hook_answers = answer.into_iter().map(|answer| ("ceph".to_owned(), answer)).collect();
        let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.available_versions = vec![NEW];
        let (view, policy) = cluster_with(vec![node], &["a"], spec);
        let plan = acts("a", goes_on(&view.nodes["a"], progress(next, since)));
        assert_eq!(broken(&view, &policy, plan), (!accepted).then_some("S11"), "{sentence}");
    }
}

#[test]
fn validator_drops_what_starts_under_an_invalid_policy_and_permits_to_excluded_versions() {
    let findings = |node, excluded: &str, invalid: bool, action: Action| {
        let (mut view, _) = cluster(vec![node], &["a"]);
        let mut policy = with_policy(&mut view, json!({"version": {"exclude": [excluded]}}));
        policy.errors = if invalid { invalid_policy() } else { vec![] };
        let mut plan = acts("a", action);
        let found = lint(&view, &policy, &mut plan).into_iter().map(|finding| finding.property).next();
        assert_eq!(plan.actions.is_empty(), found.is_some());
        found
    };
    let goes_to = |step| {
        let node = at("a", step, 0, HostState::StagedUpdate);
        let action = goes_on(&node, progress(Step::Draining, 0));
        (node, action)
    };
    for (step, invalid, expected) in
        [(Step::Staged, true, Some("S13")), (Step::Staged, false, None), (Step::LeavingLoadBalancer, true, None)]
    {
        let (node, action) = goes_to(step);
        assert_eq!(findings(node, "1.20.5", invalid, action), expected, "{step:?}");
    }
    for (permitted, excluded, expected) in [
        (false, "1.20.5", Some("S13")),
        (false, "1.20.5 on aws-k8s-1.37/x86_64", Some("S13")),
        (false, "1.20.5 on aws-k8s-1.37/aarch64", None),
        (true, "1.20.5", None),
    ] {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![]);
        node.shadow.as_mut().unwrap().spec.permit =
            permitted.then(|| models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
        let rules = Rules::default();
        let permit = Action::Permit { nonce: "m".into(), rules, pods_stay: false };
        assert_eq!(findings(node, excluded, false, permit), expected, "{excluded}, permitted already: {permitted}");
    }
}

#[test]
fn validator_drops_what_leads_to_a_reboot_without_a_usable_policy() {
    for (sentence, step, permitted, next, leads) in [
        ("its drain begins", Step::BeforeDrain, false, Some(Step::Draining), true),
        ("its drain ends", Step::Draining, false, Some(Step::Rebooting), true),
        ("its drain begins again", Step::Rebooting, false, Some(Step::Draining), true),
        ("its reboot is permitted", Step::Rebooting, false, None, true),
        ("its reboot is permitted again", Step::Rebooting, true, None, false),
        ("it is released", Step::Draining, false, Some(Step::Releasing), false),
    ] {
        for (unusable, expected) in [(true, leads.then_some("S13")), (false, None)] {
            let state = if step == Step::Rebooting { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
            let mut node = at("a", step, 0, state);
            let shadow = node.shadow.as_mut().unwrap();
            shadow.spec.permit = permitted.then(|| models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
            let action = match next {
                Some(next) => goes_on(&node, progress(next, 0)),
                None => Action::Permit { nonce: "m".into(), rules: Rules::default(), pods_stay: false },
            };
            let (view, policy) = cluster(vec![node], &["a"]);
            let policy = Policy { unusable, ..policy };
            assert_eq!(broken(&view, &policy, acts("a", action)), expected, "{sentence}, unusable: {unusable}");
        }
    }
}

#[test]
fn validator_drops_what_disrupts_a_node_without_a_usable_policy() {
    let claim = || acts("a", Action::Claim { fields: ClaimFields::USUAL, note: None });
    for (sentence, step, claimed, plan, dropped) in [
        ("its first claim", Step::LeavingLoadBalancer, false, claim(), true),
        ("a claim that is made good", Step::LeavingLoadBalancer, true, claim(), false),
        ("what protects it after its reboot", Step::Verifying, false, claim(), false),
        ("evictions", Step::Draining, true, evicts("a", "p-a"), true),
        ("the desired reboot", Step::Rebooting, true, reboot("a", "b1"), true),
        ("the desired reboot, signed again", Step::Rebooting, true, reboot("a", "b1"), false),
    ] {
        let is_again = sentence.ends_with("again");
        let state = if is_again { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
        let mut node = at("a", step, 0, state);
        node.facts.claims = if claimed { ClaimFields::USUAL } else { ClaimFields::default() };
        node.pods = Some(vec![pod("a", false)]);
        let drain = DrainStatus { pods: [listed("p-a")].into(), ..DrainStatus::default() };
        node.shadow.as_mut().unwrap().status.controller.drain = Some(drain);
        let (view, policy) = cluster(vec![node], &["a"]);
        for (unusable, expected) in [(true, dropped.then_some("S13")), (false, None)] {
            let policy = Policy { unusable, ..policy.clone() };
            let mut plan = plan.clone();
            let findings = lint(&view, &policy, &mut plan);
            let found = findings.first().map(|finding| finding.property);
            assert_eq!(found, expected, "{sentence}, unusable: {unusable}: {findings:?}");
            assert_eq!(plan.actions.is_empty() && plan.evictions.is_empty(), expected.is_some(), "{sentence}");
        }
    }
}

#[test]
fn validator_drops_a_drain_that_a_known_budget_blocks() {
    let selector = || kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("app".into())]);
    let budget = || BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy: 2,
        desired: 2,
        expected: 3,
        selector: Some(selector()),
        ..BudgetFacts::default()
    };
    let counted = || BudgetFacts { healthy: 3, allowed: 1, ..budget() };
    let uncounted = || BudgetFacts { sync_error: Some("no scale".into()), allowed: 0, ..counted() };
    let guards = || BudgetFacts { allowed: 0, ..counted() };
    let node_with = |pod: PodFacts, step: Step| {
        let mut node = at("a", step, 0, HostState::StagedUpdate);
        node.pods = Some(vec![PodFacts { ready: true, ..pod }]);
        cluster(vec![node], &["a"]).0
    };
    let begins = |mut view: ClusterView, budget: BudgetFacts, forced: bool| {
        view.budgets = vec![budget];
        let at_deadline = if forced { "Force" } else { "Release" };
        let drain = json!({"atDeadline": at_deadline, "guardedPods": "Wait", "markedPods": "Wait"});
        let policy = with_policy(&mut view, json!({"drain": drain}));
        broken(&view, &policy, acts("a", goes_on(&view.nodes["a"], progress(Step::Draining, 0))))
    };
    let (mirror, marked) = (PodFacts { mirror: true, ..pod("a", false) }, PodFacts { marked: true, ..pod("a", false) });
    let ended = PodFacts { finished: true, ..mirror.clone() };
    assert_eq!(begins(node_with(ended, Step::Staged), budget(), false), None, "a static pod that has ended");
    for (sentence, pod, budget) in [
        ("a static pod, which ends with the reboot", mirror, budget()),
        ("a pod that is marked as not to be moved", marked, counted()),
    ] {
        for forced in [false, true] {
            let found = begins(node_with(pod.clone(), Step::Staged), budget.clone(), forced);
            assert_eq!(found, Some("S13"), "{sentence}, {forced}");
        }
    }
    for (sentence, budget, step, forced, expected) in [
        ("a pod of it is broken", budget(), Step::Staged, false, Some("S13")),
        ("after its hooks have answered", budget(), Step::BeforeDrain, false, Some("S13")),
        ("after it has left its load balancers", budget(), Step::LeavingLoadBalancer, false, Some("S13")),
        ("during the drain, the API server answers", budget(), Step::Draining, false, None),
        ("a pod of it is broken, and policy waits and deletes what stays", budget(), Step::Staged, true, Some("S13")),
        ("its pods are healthy", counted(), Step::Staged, false, None),
        ("it guards a pod, and policy waits", guards(), Step::Staged, false, Some("S13")),
        ("it guards a pod, and policy waits and deletes what stays", guards(), Step::Staged, true, Some("S13")),
        ("its pods cannot be counted", uncounted(), Step::Staged, false, Some("S13")),
    ] {
        assert_eq!(begins(node_with(pod("a", false), step), budget, forced), expected, "{sentence}");
    }
    for step in [Step::Staged, Step::BeforeDrain, Step::LeavingLoadBalancer] {
        let mut view = node_with(pod("a", false), step);
        view.nodes.get_mut("a").unwrap().facts.ready = false;
        assert_eq!(begins(view, counted(), false), Some("S13"), "not Ready, {step:?}");
    }
}

#[test]
fn validator_drops_a_drain_that_a_broken_budget_blocks_in_a_drill_which_deletes_nothing() {
    for (sentence, drill, expected) in [
        ("an update deletes what stays", None, None),
        ("a dry run asks as an update does", Some(false), None),
        ("a drill with evictions", Some(true), Some("S13")),
    ] {
        let mut node = at("a", Step::Staged, 0, HostState::StagedUpdate);
        node.pods = Some(vec![PodFacts { ready: true, ..pod("a", false) }]);
        let attempt =
            |step| Progress { drill: drill.map(|evict| Drill { evict, ..Drill::default() }), ..progress(step, 0) };
        node.shadow.as_mut().unwrap().status.controller.progress = Some(attempt(Step::Staged));
        let (mut view, _) = cluster(vec![node], &["a"]);
        view.budgets = vec![BudgetFacts {
            namespace: "shop".into(),
            name: "web".into(),
            healthy: 2,
            desired: 2,
            expected: 3,
            selector: Some(kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("app".into())])),
            ..BudgetFacts::default()
        }];
        let policy = with_policy(&mut view, json!({"drain": {"atDeadline": "Force", "guardedPods": "Ask"}}));
        let plan = acts("a", goes_on(&view.nodes["a"], attempt(Step::Draining)));
        assert_eq!(broken(&view, &policy, plan), expected, "{sentence}");
    }
}

#[test]
fn validator_drops_an_eviction_before_that_of_the_pods_that_are_asked_first() {
    let (asks, forces) = (json!({}), json!({"drain": {"atDeadline": "Force"}}));
    for (sentence, spec, evicted, dry_run, expected) in [
        ("the pod that is asked first", asks.clone(), "p-b", false, None),
        ("another one", asks.clone(), "addon-1", false, Some("S13")),
        ("another one, where policy deletes what stays", forces, "addon-1", false, None),
        ("a dry run of another one", asks, "addon-1", true, None),
    ] {
        let (mut view, policy) = world(spec, false);
        let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
        shadow.status.controller.drain.as_mut().unwrap().asked_first =
            [models::shadow::FirstPod { uid: "p-b".into(), accepted: None, unguarded: false }].into();
        if dry_run {
            shadow.spec.state = HostState::RehearsedUpdate;
            shadow.status.controller.progress.as_mut().unwrap().drill = Some(Drill::default());
        }
        let mut plan = evicts("b", evicted);
        plan.evictions.get_mut("b").unwrap().dry_run = dry_run;
        assert_eq!(broken(&view, &policy, plan), expected, "{sentence}");
    }
}
