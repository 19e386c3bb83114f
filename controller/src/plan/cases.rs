//! Single decisions that went wrong once, each as a sentence about what holds.

use jiff::Timestamp;
use models::condition::find_condition;
use models::operator::{BottlerocketUpdateOperatorSpec, Slot};
use models::reason::FailureReason;
use models::shadow::{Armed, ArmedPhase, BLOCKED, Go, HostState, OfferedUpdates, Progress, Step};
use semver::Version;

use super::{Action, Plan, Wait, plan};
use crate::claims::Parts;
use crate::policy::Policy;
use crate::view::{Blocked, ClusterView, LeaseLooks, NodeFacts, NodeView, OperatorFacts, PodFacts, ShadowFacts};

pub(crate) const OLD: Version = Version::new(1, 20, 0);
pub(crate) const NEW: Version = Version::new(1, 20, 5);

pub(crate) fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(crate) fn pod(node: &str, bare: bool) -> PodFacts {
    PodFacts {
        namespace: "shop".into(),
        name: format!("p-{node}"),
        uid: format!("p-{node}"),
        node: node.into(),
        controller_kind: (!bare).then(|| "ReplicaSet".into()),
        controller_uid: (!bare).then(|| "rs".into()),
        ..PodFacts::default()
    }
}

pub(crate) fn node(name: &str) -> NodeView {
    let facts = NodeFacts {
        name: name.into(),
        uid: format!("uid-{name}"),
        labelled: true,
        ready: true,
        boot_id: "b1".into(),
        os_image: format!("Bottlerocket OS {OLD} (aws-k8s-1.37)"),
        ..NodeFacts::default()
    };
    let mut shadow = ShadowFacts {
        node: name.into(),
        uid: format!("shadow-{name}"),
        generation: 1,
        owner_uid: Some(facts.uid.clone()),
        ..ShadowFacts::default()
    };
    shadow.spec.host = Some(models::shadow::HostPolicy {
        refresh_interval: Some(Policy::default().refresh_interval),
        ..models::shadow::HostPolicy::default()
    });
    let agent = &mut shadow.status.agent;
    agent.state = Some(HostState::Idle);
    agent.observed_generation = Some(1);
    agent.boot_id = Some("b1".into());
    agent.current_version = Some(OLD);
    agent.variant = Some("aws-k8s-1.37".into());
    agent.arch = Some("x86_64".into());
    agent.updates = Some(OfferedUpdates { chosen_version: Some(NEW), ..OfferedUpdates::default() });
    NodeView { facts, shadow: Some(shadow), pods: Some(vec![]), ..NodeView::default() }
}

pub(crate) fn progress(step: Step, since: i64) -> Progress {
    Progress {
        step,
        since: t(since),
        attempt: 1,
        boot_id: "b1".into(),
        version: NEW,
        from: Some(OLD),
        started: t(0),
        go_given: false,
        may_be_rebooting: false,
        soak_restarted: false,
        restarts: None,
        watched_since: None,
        disruptive: !matches!(step, Step::Staging | Step::Staged),
    }
}

/// A node of which the attempt stands at `step`, with the order `state`.
pub(crate) fn at(name: &str, step: Step, since: i64, state: HostState) -> NodeView {
    let mut node = node(name);
    let shadow = node.shadow.as_mut().unwrap();
    shadow.spec.state = state;
    shadow.spec.attempt = 1;
    if state != HostState::Idle {
        shadow.spec.version = Some(NEW);
        shadow.spec.boot_id = Some("b1".into());
    }
    shadow.status.agent.state = Some(state);
    if state == HostState::RebootedIntoUpdate {
        shadow.status.agent.state = Some(HostState::StagedUpdate);
    }
    shadow.status.controller.progress = Some(progress(step, since));
    if progress(step, 0).disruptive {
        node.facts.claims = Parts::USUAL;
        node.facts.unschedulable = true;
    }
    node
}

pub(crate) fn cluster(nodes: Vec<NodeView>, slots: &[&str]) -> (ClusterView, Policy) {
    let mut operator = OperatorFacts { uid: "op".into(), ..OperatorFacts::default() };
    operator.spec = BottlerocketUpdateOperatorSpec::default();
    operator.status.observed_generation = Some(operator.generation);
    operator.status.slots =
        slots.iter().map(|n| Slot { uid: format!("uid-{n}"), node: (*n).into(), since: t(0) }).collect();
    let policy = Policy::from_spec(&operator.spec).unwrap();
    let nodes = nodes.into_iter().map(|n| (n.facts.name.clone(), n)).collect();
    (ClusterView { nodes, operator: Some(operator), leader_since: t(-100_000), ..ClusterView::default() }, policy)
}

pub(crate) fn failure(version: Version) -> models::shadow::VersionFailure {
    models::shadow::VersionFailure {
        version,
        variant: "aws-k8s-1.37".into(),
        arch: "x86_64".into(),
        reason: FailureReason::BootFellBack,
        time: t(0),
        resolved_by: None,
    }
}

fn armed(phase: ArmedPhase) -> Armed {
    Armed { attempt: 1, boot_id: "b1".into(), version: NEW, phase, nonce: "n".into() }
}

/// a node that took the go and never came back: the Lease is looked at every 10 s, not in a loop.
#[test]
fn a_dead_nodes_lease_is_not_read_in_a_hot_loop() {
    let mut dead = at("a", Step::Releasing, 0, HostState::Idle);
    dead.facts.ready = false;
    dead.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().go_given = true;
    dead.shadow.as_mut().unwrap().status.agent.observed_generation = Some(0);
    let (mut view, policy) = cluster(vec![dead], &["a"]);
    let mut looks = 0;
    for millisecond in 0..100 {
        let now = t(200).checked_add(jiff::SignedDuration::from_millis(millisecond)).unwrap();
        if plan(&view, &policy, now).actions.get("a") == Some(&Action::LookAtLease) {
            looks += 1;
            // What a look brings back: the time at which the kubelet last renewed it, before the host died.
            let node = view.nodes.get_mut("a").unwrap();
            node.lease = Some(LeaseLooks::look(node.lease, Some(t(-30)), now));
        }
    }
    assert!(looks <= 1, "{looks} reads of the Lease in 100 ms, one for each turn");
}

/// nodes whose pods cannot be evicted give way to the others.
#[test]
fn staged_nodes_with_a_bare_pod_do_not_starve_the_rest() {
    let mut nodes: Vec<_> = ["a", "b"].map(|n| at(n, Step::Staged, 0, HostState::StagedUpdate)).into();
    for n in &mut nodes {
        n.pods = Some(vec![pod(&n.facts.name, true)]);
    }
    nodes.extend(["c", "d", "e"].map(node));
    let (view, policy) = cluster(nodes, &[]);
    let far = plan(&view, &policy, t(7 * 24 * 3600));
    let started = ["c", "d", "e"].iter().any(|n| matches!(far.actions.get(*n), Some(Action::Status { .. })));
    assert!(started, "after a week: {:?} {:?}", far.actions.keys(), far.waits);
}

/// the shadow is deleted right after its go (the docs tell people to delete shadows): the new one knows of no go.
#[test]
fn a_claim_whose_shadow_was_deleted_is_not_released_while_a_go_may_be_out() {
    let mut orphan = node("a");
    orphan.facts.claims = Parts::USUAL;
    orphan.facts.unschedulable = true;
    // Made anew a moment ago, the agent (which has just told the host to reboot) has not reported to it.
    let shadow = orphan.shadow.as_mut().unwrap();
    shadow.status = models::shadow::BottlerocketShadowStatus::default();
    shadow.created = Some(t(0));
    let (view, policy) = cluster(vec![orphan], &["a"]);
    let action = |at| plan(&view, &policy, t(at)).actions.get("a").cloned();
    assert_ne!(action(1), Some(Action::Release), "released one second after the go");
    assert_eq!(action(181), Some(Action::Release), "and never given back");
}

/// label and shadow are gone, the cordon is ours.
#[test]
fn a_claim_without_label_and_shadow_is_found_and_released() {
    let mut orphan = node("a");
    orphan.facts.claims = Parts::USUAL;
    orphan.facts.unschedulable = true;
    orphan.facts.labelled = false;
    orphan.shadow = None;
    let nodes = [("a".to_owned(), orphan.facts.clone())].into();
    let made = crate::shadows::changes(&nodes, &std::collections::BTreeMap::new());
    assert_eq!(made, [crate::shadows::Change::Create { node: "a".into(), uid: "uid-a".into() }]);
    let mut shadowed = node("a");
    shadowed.facts = orphan.facts;
    shadowed.shadow.as_mut().unwrap().created = Some(t(0));
    let (view, policy) = cluster(vec![shadowed], &["a"]);
    assert_eq!(plan(&view, &policy, t(181)).actions.get("a"), Some(&Action::Release));
}

/// a drained node with a silent agent is given up at the deadline, and nothing wakes in the past.
#[test]
fn an_empty_node_whose_agent_is_behind_is_given_up_at_the_drains_deadline() {
    let mut silent = at("a", Step::Draining, 0, HostState::StagedUpdate);
    silent.shadow.as_mut().unwrap().generation = 2; // the spec was touched, and nobody acknowledges it
    let (view, policy) = cluster(vec![silent], &["a"]);
    let now = t(365 * 24 * 3600);
    let plan = plan(&view, &policy, now);
    assert!(plan.wake.is_none_or(|at| at > now), "wakes at {:?}, in the past, again and again", plan.wake);
    assert!(plan.actions.contains_key("a"), "after a year: {:?}", plan.waits);
}

/// an image that kills the host's network: armed, rebooted, never seen again.
#[test]
fn a_node_that_never_comes_back_from_its_update_is_charged_to_the_version() {
    let mut gone = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    gone.facts.ready = false;
    let shadow = gone.shadow.as_mut().unwrap();
    shadow.spec.go = Some(Go { nonce: "n".into(), jws: String::new(), repeated: false });
    shadow.status.agent.armed = Some(armed(ArmedPhase::Activated));
    let (view, policy) = cluster(vec![gone], &["a"]);
    let plan = plan(&view, &policy, t(3600));
    let Some(Action::Status { status, .. }) = plan.actions.get("a") else { panic!("{:?}", plan.waits) };
    let record = status.report.record.as_ref().unwrap();
    assert!(!record.version_failures.is_empty(), "charged to nobody: {:?}", record.last.as_ref().unwrap().reason);
}

/// while the write that begins a drain is under way, its slot stays, whatever happens to the node meanwhile.
#[test]
fn the_slot_of_a_busy_node_is_never_given_away() {
    // The write of Draining is under way for a; a bare pod is bound to it in the same moment.
    let mut a = at("a", Step::Staged, 0, HostState::StagedUpdate);
    a.pods = Some(vec![pod("a", true)]);
    let b = at("b", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, policy) = cluster(vec![a, b], &["a"]);
    view.busy.insert("a".into());
    let first = plan(&view, &policy, t(1));
    let slots = |plan: &Plan| plan.slots.as_ref().map(|s| s.iter().map(|s| s.node.clone()).collect::<Vec<_>>());
    // Both land, in this order: the slots, and then the drain of a.
    if let Some(slots) = first.slots.clone() {
        view.operator.as_mut().unwrap().status.slots = slots;
    }
    let second = plan(&view, &policy, t(1));
    if let Some(slots) = second.slots.clone() {
        view.operator.as_mut().unwrap().status.slots = slots;
    }
    view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.progress =
        Some(progress(Step::Draining, 1));
    view.busy.clear();
    let third = plan(&view, &policy, t(1));
    let mut end = view;
    end.operator.as_mut().unwrap().status.slots = third.slots.clone().unwrap_or_default();
    let fourth = plan(&end, &policy, t(1));
    assert!(
        third.slots.as_ref().is_none_or(|s| s.len() <= 1),
        "slots one after the other: {:?} {:?} {:?}; then {:?}",
        slots(&first),
        slots(&second),
        slots(&third),
        fourth.actions
    );
}

/// a host that reboots again and again on the wanted version.
#[test]
fn another_boot_restarts_the_soak_once() {
    let mut looping = at("a", Step::Monitoring, 0, HostState::RebootedIntoUpdate);
    looping.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (looping.facts.claims, looping.facts.unschedulable) = (Parts::default(), false);
    let (mut view, policy) = cluster(vec![looping], &["a"]);
    for boot in 0..1000 {
        let now = t(40 * boot);
        let node = view.nodes.get_mut("a").unwrap();
        node.facts.boot_id = format!("b{}", boot + 2);
        let made = plan(&view, &policy, now);
        let node = view.nodes.get_mut("a").unwrap();
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
        node.shadow.as_mut().unwrap().status.controller = status.report.clone();
        if status.report.progress.as_ref().is_none_or(|p| p.step != Step::Monitoring) {
            return;
        }
    }
    panic!("1000 boots in 11 hours, and the soak begins anew each time");
}

/// a node that was not Ready for the whole soak time has not been Ready for the soak time.
#[test]
fn the_soak_counts_only_the_time_that_the_node_is_ready() {
    let mut flaky = at("a", Step::Monitoring, 0, HostState::RebootedIntoUpdate);
    flaky.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (flaky.facts.claims, flaky.facts.unschedulable) = (Parts::default(), false);
    flaky.facts.ready = false;
    let (mut view, policy) = cluster(vec![flaky], &["a"]);
    let mut step = |ready: bool, at: i64| {
        view.nodes.get_mut("a").unwrap().facts.ready = ready;
        let made = plan(&view, &policy, t(at));
        if let Some(Action::Status { status, .. }) = made.actions.get("a") {
            let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
            shadow.status.controller = status.report.clone();
        }
        let shadow = view.nodes["a"].shadow.as_ref().unwrap();
        let progress = shadow.status.controller.progress.clone().unwrap();
        (progress.step, made.waits.get("a").cloned())
    };
    assert_eq!(step(false, 10).0, Step::Returning);
    assert_eq!(step(false, 600), (Step::Returning, Some(Wait::AwaitingReady)));
    assert_eq!(step(true, 601).0, Step::Monitoring);
    assert_eq!(step(true, 602), (Step::Monitoring, Some(Wait::Soaking { until: t(661) })));
    // Once is nothing; a node that does it again does not hold.
    assert_eq!(step(false, 610).0, Step::Releasing);
}

/// the pods of the second node were listed first.
#[test]
fn a_node_whose_pods_are_still_being_read_keeps_its_turn() {
    let staged = |name: &str| {
        let mut node = at(name, Step::Staging, 0, HostState::StagedUpdate);
        node.pods = None;
        node
    };
    let (mut view, policy) = cluster(vec![staged("a"), staged("b")], &[]);
    view.nodes.get_mut("b").unwrap().pods = Some(vec![]);
    assert_eq!(plan(&view, &policy, t(1)).slots, None, "it is a's turn");
    view.nodes.get_mut("a").unwrap().pods = Some(vec![]);
    let slots = plan(&view, &policy, t(1)).slots.unwrap();
    assert_eq!(slots.iter().map(|slot| slot.node.as_str()).collect::<Vec<_>>(), ["a"]);
}

/// a node whose soak failed is in another boot than the one that its go was for.
#[test]
fn a_failed_soak_waits_for_no_go_and_gives_the_slot_back_at_once() {
    let mut failed = at("a", Step::Monitoring, 0, HostState::RebootedIntoUpdate);
    (failed.facts.claims, failed.facts.unschedulable, failed.facts.ready) = (Parts::default(), false, false);
    failed.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    failed.facts.boot_id = "b2".into();
    let shadow = failed.shadow.as_mut().unwrap();
    shadow.spec.go = Some(Go { nonce: "n".into(), jws: "j".into(), repeated: false });
    let progress = shadow.status.controller.progress.as_mut().unwrap();
    (progress.boot_id, progress.soak_restarted) = ("b2".into(), true);
    let (mut view, policy) = cluster(vec![failed], &["a"]);
    let mut steps = Vec::new();
    for _ in 0..4 {
        let Some(action) = plan(&view, &policy, t(10)).actions.remove("a") else { break };
        let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        match action {
            Action::Status { status, .. } => shadow.status.controller = status.report,
            Action::Spec { spec } => shadow.spec = *spec,
            other => panic!("{other:?} after {steps:?}"),
        }
        steps.push(shadow.status.controller.progress.as_ref().map(|progress| progress.step));
    }
    let releasing = Some(Step::Releasing);
    assert_eq!(steps, [releasing, releasing, None], "recorded, withdrawn, released");
    assert_eq!(plan(&view, &policy, t(10)).slots, Some(vec![]));
}

/// the failure that spends the budget and another node's start stand in one plan.
#[test]
fn no_node_starts_beside_the_failure_that_spends_the_budget() {
    let mut a = at("a", Step::Returning, 0, HostState::RebootedIntoUpdate);
    a.facts.boot_id = "b2".into();
    let shadow = a.shadow.as_mut().unwrap();
    shadow.status.agent.failure = Some(models::shadow::Failure {
        attempt: 1,
        step: HostState::RebootedIntoUpdate,
        reason: FailureReason::BootFellBack,
        message: String::new(),
        time: t(1),
    });
    let b = at("b", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, policy) = cluster(vec![a, b], &["a", "b"]);
    view.operator.as_mut().unwrap().spec.max_unavailable = Some(models::operator::CountOrPercent::Count(2));
    let mut policy = policy;
    policy.max_unavailable = models::operator::CountOrPercent::Count(2);
    let both = plan(&view, &policy, t(2));
    assert!(matches!(both.actions.get("a"), Some(Action::Status { .. })));
    assert!(!both.actions.contains_key("b"), "b starts its drain in the plan that freezes the rollout");
    // ... and also in each later plan while the failure's write is under way.
    view.busy.insert("a".into());
    assert!(!plan(&view, &policy, t(2)).actions.contains_key("b"));
}

/// A Node whose cordon is refused for ever does not keep the fleet waiting.
#[test]
fn a_node_that_cannot_be_cordoned_is_given_up_at_the_deadline() {
    for (step, order) in [(Step::Draining, HostState::StagedUpdate), (Step::Rebooting, HostState::RebootedIntoUpdate)] {
        let mut stubborn = at("a", step, 0, order);
        (stubborn.facts.claims, stubborn.facts.unschedulable) = (Parts::default(), false);
        let (view, policy) = cluster(vec![stubborn], &["a"]);
        assert_eq!(
            plan(&view, &policy, t(1)).actions.get("a"),
            Some(&Action::Claim { parts: Parts::USUAL, note: None })
        );
        let later = plan(&view, &policy, t(3600));
        let Some(Action::Status { status, .. }) = later.actions.get("a") else { panic!("{:?}", later.actions) };
        assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Releasing);
    }
}

/// The write that ends an attempt has come back, but not its outcome: the slot is kept for that moment, and counts.
#[test]
fn a_slot_that_is_kept_for_a_busy_node_counts_against_the_budget() {
    let ended = node("a");
    let mut wanting = at("b", Step::Staged, 0, HostState::StagedUpdate);
    wanting.pods = Some(vec![]);
    let (mut view, policy) = cluster(vec![ended, wanting], &["a"]);
    view.busy.insert("a".into());
    let mut plan = plan(&view, &policy, t(1));
    assert_eq!(crate::lint::lint(&view, &policy, &mut plan), []);
    assert!(plan.slots.is_none_or(|slots| slots.len() <= 1));
}

/// Two pods are held back, and one of them leaves: the condition that people read names the one that is left.
#[test]
fn a_blocked_drain_names_a_pod_that_is_still_there() {
    let held_back = Blocked {
        budget: Some("shop/web".into()),
        message: "not now".into(),
        since: t(1),
        retry_at: t(100),
        fatal: false,
        accepted: false,
        deleted: false,
    };
    let mut draining = at("a", Step::Draining, 0, HostState::StagedUpdate);
    draining.pods = Some(vec![pod("1", false), pod("2", false)]);
    draining.blocked = [("p-1".to_owned(), held_back.clone()), ("p-2".to_owned(), held_back)].into();
    let (mut view, policy) = cluster(vec![draining], &["a"]);
    let mut said = || {
        for _ in 0..10 {
            let made = plan(&view, &policy, t(2));
            let node = view.nodes.get_mut("a").unwrap();
            let status = &mut node.shadow.as_mut().unwrap().status;
            let Some(Action::Status { status: written, .. }) = made.actions.get("a") else {
                assert!(made.actions.is_empty(), "{:?}", made.actions);
                let message = find_condition(&status.conditions, BLOCKED).unwrap().message.clone();
                // The next time, the first pod is gone.
                node.pods.as_mut().unwrap().remove(0);
                return message;
            };
            (status.controller, status.conditions) = (written.report.clone(), written.conditions.clone());
        }
        panic!("written again and again");
    };
    assert_eq!(said(), "the PodDisruptionBudget shop/web does not let shop/p-1 go; 2 pod(s) left");
    assert_eq!(said(), "the PodDisruptionBudget shop/web does not let shop/p-2 go; 1 pod(s) left");
}

/// a manifest with an old `resume` in it was applied again, after the resource that had acknowledged it was deleted.
#[test]
fn a_resource_that_is_made_with_a_resume_in_it_ends_no_freeze_and_a_new_value_does() {
    let mut failed = node("a");
    let record = models::shadow::Record { version_failures: vec![failure(NEW)], ..models::shadow::Record::default() };
    failed.shadow.as_mut().unwrap().status.controller.record = Some(record);
    let (mut view, policy) = cluster(vec![failed], &[]);
    let operator = view.operator.as_mut().unwrap();
    operator.status.observed_generation = None;
    (operator.resume, operator.approve_step) = (Some("monday".into()), Some("monday".into()));
    let made = plan(&view, &policy, t(1));
    assert!(!made.actions.contains_key("a"), "{:?}", made.actions);
    let status = made.status.unwrap();
    let requests = status.requests.clone().unwrap();
    assert_eq!((requests.resume.as_deref(), requests.approve_step.as_deref()), (Some("monday"), Some("monday")));
    let frozen = |status: &models::operator::BottlerocketUpdateOperatorStatus| {
        find_condition(&status.conditions, models::operator::FROZEN).unwrap().status
    };
    assert_eq!(frozen(&status), models::condition::ConditionStatus::True);

    let operator = view.operator.as_mut().unwrap();
    (operator.status, operator.resume) = (status, Some("tuesday".into()));
    let resumed = plan(&view, &policy, t(2));
    let Some(Action::Status { status, .. }) = resumed.actions.get("a") else { panic!("{:?}", resumed.actions) };
    let record = status.report.record.as_ref().unwrap();
    assert_eq!(record.version_failures[0].resolved_by.as_deref(), Some("tuesday"));
}

/// A node that is drained, with the policy of `spec`.
fn draining(spec: serde_json::Value, pods: Vec<PodFacts>) -> (ClusterView, Policy) {
    let mut node = at("a", Step::Draining, 0, HostState::StagedUpdate);
    node.pods = Some(pods);
    let (mut view, _) = cluster(vec![node], &["a"]);
    let operator = view.operator.as_mut().unwrap();
    operator.spec = serde_json::from_value(spec).unwrap();
    let policy = Policy::from_spec(&operator.spec).unwrap();
    (view, policy)
}

fn written(view: &mut ClusterView, action: &Action) {
    let Action::Status { status, .. } = action else { panic!("{action:?}") };
    let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    shadow.status.controller = status.report.clone();
}

fn names(pods: &[super::Eviction]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

/// past the deadline, with `Force`.
#[test]
fn what_does_not_leave_is_deleted_only_where_policy_says_so_recorded_first_and_without_grace_last() {
    let stuck =
        || PodFacts { terminating: true, ends_by: Some(t(5)), ..PodFacts { name: "stuck".into(), ..pod("s", false) } };
    let (mut view, release) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false), stuck()]);
    let made = plan(&view, &release, t(60));
    assert!(
        matches!(made.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );

    view.operator.as_mut().unwrap().spec =
        serde_json::from_value(serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}})).unwrap();
    let force = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
    let before = plan(&view, &force, t(59));
    assert!(matches!(before.actions.get("a"), Some(Action::Evict { .. })), "{:?}", before.actions);
    let recorded = plan(&view, &force, t(60)).actions.remove("a").unwrap();
    assert!(matches!(&recorded, Action::Status { note: Some(note), .. } if note.reason == "DrainForced"
        && note.message.contains("shop/p-a") && note.message.contains("shop/stuck")));
    written(&mut view, &recorded);
    let Some(Action::Delete { pods, grace }) = plan(&view, &force, t(60)).actions.remove("a") else { panic!() };
    assert_eq!((names(&pods), grace), (vec!["stuck"], Some(0)), "it has outlived its own grace period");
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().retain(|pod| pod.name != "stuck");
    let Some(Action::Delete { pods, grace }) = plan(&view, &force, t(60)).actions.remove("a") else { panic!() };
    assert_eq!((names(&pods), grace), (vec!["p-a"], None));
    // Deleted, and waited for until its grace period is over.
    let leaving = PodFacts { terminating: true, ends_by: Some(t(90)), ..pod("a", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving]);
    let waits = plan(&view, &force, t(61));
    assert!(waits.actions.is_empty() && waits.wake <= Some(t(90)), "{:?} {:?}", waits.actions, waits.wake);
    let late = plan(&view, &force, t(90));
    assert!(matches!(late.actions.get("a"), Some(Action::Delete { grace: Some(0), .. })), "{:?}", late.actions);
    let never = plan(&view, &force, t(60 + 300));
    assert!(
        matches!(never.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );
}

/// somebody runs `kubectl uncordon` on a node that is being drained, again and again.
#[test]
fn a_node_that_is_uncordoned_in_mid_drain_is_cordoned_again_with_a_word_a_few_times_and_then_given_up() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    node.facts.unschedulable = false;
    let cordon: Parts = [crate::claims::Part::Cordon].into_iter().collect();
    node.facts.claims = node.facts.claims.without(cordon);
    for (made, told, ended) in [(0, false, false), (1, true, false), (3, true, false), (4, false, true)] {
        view.nodes.get_mut("a").unwrap().claims_made = made;
        match plan(&view, &policy, t(1)).actions.remove("a").unwrap() {
            Action::Claim { parts, note } => {
                assert!(!ended && parts == Parts::USUAL && note.is_some() == told, "{made}: {note:?}");
            }
            Action::Status { status, .. } => {
                let last = status.report.record.unwrap().last.unwrap();
                assert!(ended && last.reason == "Uncordoned", "{made}: {last:?}");
            }
            other => panic!("{made}: {other:?}"),
        }
    }
}

/// a label that somebody else has set otherwise is no part of the claim, and its absence holds nothing up.
#[test]
fn a_node_is_drained_although_somebody_else_keeps_a_part_of_the_claim() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    let facts = &mut view.nodes.get_mut("a").unwrap().facts;
    facts.claims = Parts::CORDON;
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Claim { .. })), "something is missing");
    let theirs = [crate::claims::Part::ScaleDown, crate::claims::Part::DoNotDisrupt].into_iter().collect();
    view.nodes.get_mut("a").unwrap().facts.set_otherwise = theirs;
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Evict { .. })));
}

#[test]
fn a_node_leaves_the_balancer_for_its_time_before_anything_is_evicted() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![pod("a", false)]);
    let (mut view, _) = cluster(vec![staged], &["a"]);
    view.operator.as_mut().unwrap().spec =
        serde_json::from_value(serde_json::json!({"loadBalancer": {"leaveBeforeDrain": "30s"}})).unwrap();
    let policy = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
    let started = plan(&view, &policy, t(0)).actions.remove("a").unwrap();
    written(&mut view, &started);
    let Some(Action::Claim { parts, .. }) = plan(&view, &policy, t(1)).actions.remove("a") else { panic!() };
    assert!(parts.has(crate::claims::Part::Balancer) && parts.has(crate::claims::Part::Cordon));
    let facts = &mut view.nodes.get_mut("a").unwrap().facts;
    (facts.claims, facts.unschedulable) = (parts, true);
    let waits = plan(&view, &policy, t(29));
    assert_eq!(waits.waits.get("a"), Some(&Wait::LeavingBalancer { until: t(30) }));
    assert_eq!(waits.wake, Some(t(30)));
    let drains = plan(&view, &policy, t(30)).actions.remove("a").unwrap();
    written(&mut view, &drains);
    assert!(matches!(plan(&view, &policy, t(31)).actions.get("a"), Some(Action::Evict { .. })));
}

#[test]
fn a_drain_waits_for_volumes_where_policy_asks_and_not_beyond_its_deadline() {
    for (spec, at, goes_on) in [
        (serde_json::json!({"drain": {"timeout": "1m"}}), 1, true),
        (serde_json::json!({"drain": {"timeout": "1m", "waitForVolumes": true}}), 1, false),
        (serde_json::json!({"drain": {"timeout": "1m", "waitForVolumes": true}}), 60, true),
    ] {
        let (mut view, policy) = draining(spec.clone(), vec![]);
        view.nodes.get_mut("a").unwrap().facts.volumes = 2;
        let made = plan(&view, &policy, t(at));
        assert_eq!(made.actions.contains_key("a"), goes_on, "{spec} at {at}: {:?}", made.waits);
        assert_eq!(made.waits.contains_key("a"), !goes_on);
    }
}

/// a person holds a node in mid-update.
#[test]
fn a_held_node_keeps_its_cordon_and_loses_its_slot_until_the_hold_goes() {
    let mut held = at("a", Step::Draining, 0, HostState::StagedUpdate);
    held.facts.held = true;
    let (mut view, policy) = cluster(vec![held], &["a"]);
    for second in 1..10 {
        let Some(action) = plan(&view, &policy, t(second)).actions.remove("a") else { break };
        let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        match action {
            Action::Status { status, .. } => shadow.status.controller = status.report,
            Action::Spec { spec } => {
                shadow.spec = *spec;
                shadow.status.agent.state = Some(HostState::Idle);
            }
            other => panic!("{other:?}"),
        }
    }
    let made = plan(&view, &policy, t(20));
    assert_eq!(made.slots, Some(vec![]), "it has no slot any more");
    assert!(view.nodes["a"].facts.claimed());
    view.nodes.get_mut("a").unwrap().facts.held = false;
    assert_eq!(plan(&view, &policy, t(21)).actions.get("a"), Some(&Action::Release));
}

fn with_policy(view: &mut ClusterView, spec: serde_json::Value) -> Policy {
    let operator = view.operator.as_mut().unwrap();
    operator.spec = serde_json::from_value(spec).unwrap();
    Policy::from_spec(&operator.spec).unwrap()
}

/// a person asked for a downgrade, and takes that back while a node waits for its window with the old image.
#[test]
fn an_attempt_that_policy_no_longer_asks_for_ends_before_its_node_is_touched() {
    let down = Version::new(1, 19, 0);
    for (sentence, version, spec, ends) in [
        ("a downgrade under a pin", down.clone(), serde_json::json!({"version": {"target": "1.19.0"}}), false),
        ("a downgrade under latest", down, serde_json::json!({}), true),
        ("an update under latest", NEW, serde_json::json!({}), false),
        ("an update that has become too young", NEW, serde_json::json!({"version": {"minimumAge": "72h"}}), true),
    ] {
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        let shadow = staged.shadow.as_mut().unwrap();
        shadow.status.controller.progress.as_mut().unwrap().version = version;
        let (mut view, _) = cluster(vec![staged], &[]);
        let policy = with_policy(&mut view, spec);
        let made = plan(&view, &policy, t(1));
        let reason = match made.actions.get("a") {
            Some(Action::Status { status, .. }) => {
                status.report.record.as_ref().and_then(|r| r.last.as_ref()).map(|l| l.reason.clone())
            }
            _ => None,
        };
        assert_eq!(reason.as_deref() == Some("PolicyChanged"), ends, "{sentence}: {:?}", made.actions);
    }
}

/// a pinned version that is older than what runs was never new to this operator.
#[test]
fn a_pin_down_waits_for_no_age() {
    let mut node = node("a");
    let agent = &mut node.shadow.as_mut().unwrap().status.agent;
    let down = Version::new(1, 19, 0);
    agent.updates = Some(OfferedUpdates {
        chosen_version: Some(down.clone()),
        available_versions: vec![down.clone()],
        ..OfferedUpdates::default()
    });
    let (mut view, _) = cluster(vec![node], &[]);
    let policy = with_policy(&mut view, serde_json::json!({"version": {"target": "1.19.0", "minimumAge": "72h"}}));
    let host = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().spec.host.as_mut().unwrap();
    host.version_lock = Some(down.to_string());
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
    assert_eq!(status.report.progress.as_ref().unwrap().version, down);
}

/// with a failure budget of two, each node that fails is deleted by whoever repairs the fleet.
#[test]
fn failures_of_nodes_that_are_gone_count_until_a_person_resumes() {
    let failed = |name: &str| {
        let mut node = node(name);
        let record =
            models::shadow::Record { version_failures: vec![failure(NEW)], ..models::shadow::Record::default() };
        node.shadow.as_mut().unwrap().status.controller.record = Some(record);
        node
    };
    let (mut view, _) = cluster(vec![failed("a")], &[]);
    let policy = with_policy(&mut view, serde_json::json!({"failurePolicy": {"maxFailures": 2}}));
    let first = plan(&view, &policy, t(1));
    assert!(first.quarantine.is_empty());
    view.operator.as_mut().unwrap().status = first.status.unwrap();
    view.nodes.remove("a");
    let second = failed("b");
    view.nodes.insert("b".into(), second);
    let made = plan(&view, &policy, t(2));
    assert_eq!(made.quarantine.frozen_by(), Some(&NEW), "two nodes have failed, one of them is gone");
    let operator = view.operator.as_mut().unwrap();
    (operator.status, operator.resume) = (made.status.unwrap(), Some("now".into()));
    view.nodes.remove("b");
    let resumed = plan(&view, &policy, t(3)).status.unwrap();
    assert!(resumed.versions.iter().all(|v| v.failed.is_empty() && v.quarantined.is_none()), "{:?}", resumed.versions);
}

/// a leader that slept wrote its `Draining` after another one had given the slot to `b`.
#[test]
fn a_node_that_lost_its_slot_before_it_was_touched_gets_none_back() {
    let mut late = at("a", Step::Draining, 0, HostState::StagedUpdate);
    (late.facts.claims, late.facts.unschedulable) = (Parts::default(), false);
    let (view, policy) = cluster(vec![late, at("b", Step::Draining, 0, HostState::StagedUpdate)], &["b"]);
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.slots, None, "b's alone");
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Releasing);
}

/// two nodes have their image and cannot be drained for a while.
#[test]
fn staged_nodes_that_something_keeps_waiting_give_way_to_others() {
    let mut short_of_disk =
        vec![at("a", Step::Staged, 0, HostState::StagedUpdate), at("b", Step::Staged, 0, HostState::StagedUpdate)];
    for node in &mut short_of_disk {
        node.facts.pressure = Some("DiskPressure".into());
    }
    short_of_disk.push(node("c"));
    let (view, policy) = cluster(short_of_disk, &[]);
    assert!(plan(&view, &policy, t(1)).actions.get("c").is_some_and(Plan::starts), "c begins");

    // The same under a canary step of one.
    let mut bare = at("a", Step::Staged, 0, HostState::StagedUpdate);
    bare.pods = Some(vec![pod("a", true)]);
    let (mut view, _) = cluster(vec![bare, node("c")], &[]);
    let policy = with_policy(&mut view, serde_json::json!({"strategy": {"canary": [{"nodes": 1}]}}));
    let made = plan(&view, &policy, t(1));
    assert!(made.actions.get("c").is_some_and(Plan::starts), "{:?}", made.waits);
}

/// the first node of a queue cannot be drained; another one is out of service and takes the only slot.
#[test]
fn what_a_look_has_found_stands_until_the_next_look() {
    let mut bare = at("a", Step::Staged, 0, HostState::StagedUpdate);
    bare.pods = Some(vec![pod("a", true)]);
    let (mut view, policy) = cluster(vec![bare], &[]);
    let told = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    assert!(matches!(&told, Action::Status { note: Some(note), .. } if note.reason == "DrainRefused"));
    let Action::Status { status, .. } = told else { unreachable!() };
    let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    (shadow.status.controller, shadow.status.conditions) = (status.report, status.conditions);
    // No slot is free: it is not looked at.
    view.nodes.insert("b".into(), at("b", Step::Draining, 0, HostState::StagedUpdate));
    view.nodes.get_mut("a").unwrap().pods = None;
    let made = plan(&view, &policy, t(2));
    assert!(!made.actions.contains_key("a"), "{:?}", made.actions);
    // The pod that was named is gone, and another one stands in the way.
    view.nodes.remove("b");
    view.operator.as_mut().unwrap().status.slots.clear();
    view.nodes.get_mut("a").unwrap().pods = Some(vec![PodFacts { name: "other".into(), ..pod("a", true) }]);
    let made = plan(&view, &policy, t(3));
    let Some(Action::Status { status, note: None }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert!(find_condition(&status.conditions, BLOCKED).unwrap().message.contains("shop/other"));
}

#[test]
fn a_pod_that_tolerates_the_cordon_and_comes_back_ends_the_drain_and_not_the_deadline() {
    let (mut view, policy) =
        draining(serde_json::json!({}), vec![PodFacts { tolerates_cordon: true, ..pod("a", false) }]);
    let listed = models::shadow::DrainedPod { namespace: "shop".into(), name: "p-a".into(), uid: "p-a".into() };
    let status = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status;
    status.controller.drain = Some(models::shadow::DrainStatus { pods: vec![listed], ..Default::default() });
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Evict { .. })), "it is listed");
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()[0].uid = "another".into();
    let made = plan(&view, &policy, t(2));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    let last = status.report.record.as_ref().unwrap().last.as_ref().unwrap();
    assert!(last.reason == "PodsReturn" && last.message.contains("shop/p-a"), "{last:?}");
}

#[test]
fn a_node_that_is_being_deleted_is_not_drained_any_further() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().facts.deleting = true;
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(status.report.record.as_ref().unwrap().last.as_ref().unwrap().reason, "NodeDeleted");
}

/// the scheduler had not seen the cordon yet.
#[test]
fn a_pod_that_was_placed_on_a_drained_node_is_drained_too_once_and_never_after_a_go() {
    let asks = |again: bool, go: bool, tolerates_cordon: bool| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![PodFacts { tolerates_cordon, ..pod("a", false) }]);
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.controller.drain =
            Some(models::shadow::DrainStatus { taken_up_again: again, ..Default::default() });
        shadow.spec.go = go.then(|| Go { nonce: "old".into(), jws: "j".into(), repeated: false });
        shadow.status.agent.armed = Some(Armed {
            version: NEW,
            boot_id: "b1".into(),
            attempt: 1,
            phase: ArmedPhase::Arming,
            nonce: "new".into(),
        });
        let (view, policy) = cluster(vec![node], &["a"]);
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
        let step = status.report.progress.as_ref().unwrap().step;
        if step == Step::Draining {
            // The agent confirms nothing while it waits for its go, and the drain goes on and ends all the same.
            let mut view = view.clone();
            let node = view.nodes.get_mut("a").unwrap();
            let shadow = node.shadow.as_mut().unwrap();
            shadow.status.controller = status.report.clone();
            shadow.generation = 2;
            assert!(matches!(plan(&view, &policy, t(2)).actions.get("a"), Some(Action::Evict { .. })));
            view.nodes.get_mut("a").unwrap().pods = Some(vec![]);
            let drained = plan(&view, &policy, t(3)).actions.remove("a").unwrap();
            written(&mut view, &drained);
            let gone = plan(&view, &policy, t(4));
            assert_eq!(gone.actions.get("a"), Some(&Action::Go { nonce: "new".into() }), "{:?}", gone.waits);
        }
        step
    };
    assert_eq!(asks(false, false, false), Step::Draining);
    assert_eq!(asks(true, false, false), Step::Releasing, "only once");
    assert_eq!(asks(false, true, false), Step::Releasing, "a go is out");
    assert_eq!(asks(false, false, true), Step::Releasing, "it would come back for ever");
}

/// a person holds the node while it reboots into its update.
#[test]
fn a_node_that_is_held_when_it_comes_back_stays_cordoned() {
    for step in [Step::Rebooting, Step::Returning, Step::Monitoring] {
        let mut back = at("a", step, 0, HostState::RebootedIntoUpdate);
        back.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        back.facts.boot_id = "b2".into();
        back.facts.held = true;
        if step == Step::Monitoring {
            back.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().boot_id = "b2".into();
        }
        let (mut view, policy) = cluster(vec![back], &["a"]);
        assert_ne!(plan(&view, &policy, t(1)).actions.get("a"), Some(&Action::Release), "{step:?}");
        view.nodes.get_mut("a").unwrap().facts.held = false;
        assert_eq!(plan(&view, &policy, t(1)).actions.get("a"), Some(&Action::Release), "{step:?}");
    }
}

/// managedFields were reset while the node rebooted, so that nothing on it is ours by ownership any more.
#[test]
fn what_is_ours_by_the_record_is_taken_back_also_where_nobody_owns_it() {
    for (theirs, released) in [(None, true), (Some("spec.unschedulable"), false)] {
        let mut back = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        back.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        back.facts.boot_id = "b2".into();
        (back.facts.claims, back.facts.unowned) = (Parts::default(), Parts::CORDON);
        let status = &mut back.shadow.as_mut().unwrap().status;
        let set_before = theirs.into_iter().map(str::to_owned).collect();
        status.controller.drain = Some(models::shadow::DrainStatus { set_before, ..Default::default() });
        status.conditions = vec![models::condition::Condition {
            type_: models::shadow::CORDONED.into(),
            status: models::condition::ConditionStatus::True,
            reason: "Updating".into(),
            message: String::new(),
            last_transition_time: t(0),
            observed_generation: None,
        }];
        let (view, policy) = cluster(vec![back], &["a"]);
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.actions.get("a") == Some(&Action::Release), released, "{theirs:?}: {:?}", made.actions);
    }
}

/// `Force`, and a pod that policy refuses came to the node meanwhile.
#[test]
fn force_deletes_nothing_that_policy_refuses_and_nothing_that_comes_back() {
    let spec = || serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let back = PodFacts { tolerates_cordon: true, ..pod("a", false) };
    for (pods, reason) in [(vec![pod("a", true)], "DrainTimedOut"), (vec![back], "DrainTimedOut")] {
        let (mut view, policy) = draining(spec(), pods);
        let status = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status;
        status.controller.drain = Some(models::shadow::DrainStatus { forced: Some(t(60)), ..Default::default() });
        let made = plan(&view, &policy, t(61));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
        assert_eq!(status.report.record.as_ref().unwrap().last.as_ref().unwrap().reason, reason);
    }
}

/// a label reconciler strips what we set beside the cordon.
#[test]
fn parts_that_somebody_strips_again_and_again_are_not_worth_an_update() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    (node.facts.claims, node.claims_made) = (Parts::CORDON, 3);
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Claim { note: None, .. })));
    view.nodes.get_mut("a").unwrap().claims_made = 4;
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Evict { .. })));
}

/// another node is drained at the same time, and its replica of ours lands here, since ours may run on a cordoned node.
#[test]
fn a_replica_of_ours_that_comes_in_mid_drain_is_noted_evicted_once_and_then_left_to_the_reboot() {
    let ours = |uid: &str| PodFacts {
        namespace: "brupop-system".into(),
        uid: uid.into(),
        tolerates_cordon: true,
        ..pod("a", false)
    };
    let (mut view, policy) = draining(serde_json::json!({}), vec![ours("first")]);
    view.own_namespace = "brupop-system".into();
    let noted = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    written(&mut view, &noted);
    let Some(Action::Evict { pods, .. }) = plan(&view, &policy, t(2)).actions.remove("a") else { panic!() };
    assert_eq!(pods[0].uid, "first");
    view.nodes.get_mut("a").unwrap().pods = Some(vec![ours("second")]);
    let made = plan(&view, &policy, t(3));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Rebooting);
}
