//! The brake and the first node where it is hard: machines that die, writes that are under way, several ends at once, changes of policy.

use models::condition::true_condition;
use models::operator::{ActiveRollout, BRAKED, LedgerNode, NOT_READY, RolloutLedger};
use models::reason::Proof;
use models::shadow::{AttemptResult, HostState, NodeProof, Record, Step};
use serde_json::json;

use super::ledger::{entry, ledger, recorded_with, runs, slots_of, staged, with_place};
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

fn fleet(names: &[&str], ledger: RolloutLedger) -> (ClusterView, Policy) {
    let mut nodes: Vec<NodeView> = names.iter().map(|name| staged(name)).collect();
    nodes.extend((names.len()..10).map(|number| node(&format!("z{number}"))));
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 10, ..ledger }));
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5}));
    (view, policy)
}

fn row(ends: &[(&str, Proof, &str)]) -> Vec<LedgerNode> {
    ends.iter().map(|(node, proof, reason)| entry(node, *proof, reason)).collect()
}

fn slots(view: &mut ClusterView, nodes: Vec<NodeView>) {
    let names: Vec<String> = nodes.iter().map(|node| node.facts.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (other, _) = cluster(nodes.clone(), &names);
    view.operator.as_mut().unwrap().status.slots = other.operator.unwrap().status.slots;
    for node in nodes {
        view.nodes.insert(node.facts.name.clone(), node);
    }
}

const FREE: [(&str, Proof, &str); 3] =
    [("x1", Proof::Free, "AgentSilent"), ("x2", Proof::Free, "AgentSilent"), ("x3", Proof::Free, "AgentSilent")];

fn ended(name: &str, step: Option<Step>, reason: &str) -> NodeView {
    let mut node = match step {
        Some(step) => at(name, step, 0, HostState::Idle),
        None => node(name),
    };
    let last = AttemptResult { reason: reason.into(), ..updated().last.unwrap() };
    let record = Record { last: Some(last), failures: 1, not_before: Some(t(1000)), ..Record::default() };
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
    node
}

/// Node `a`, which has a slot, and whose attempt has ended since its machine did not come back.
fn dead_in_reboot(view: &mut ClusterView) -> NodeView {
    let mut dead = ended("a", Some(Step::Rebooting), "RebootTimedOut");
    slots(view, vec![dead.clone()]);
    let progress = dead.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
    (progress.step, progress.permit_issued, progress.disruptive) = (Step::Releasing, true, true);
    dead.facts.ready = false;
    dead
}

/// The machine of the first node dies in its reboot.
#[test]
fn first_node_that_never_comes_back_does_not_hold_all_others_for_ever() {
    let (mut view, policy) = fleet(&["b", "c"], RolloutLedger::default());
    let mut dead = dead_in_reboot(&mut view);
    let shadow = dead.shadow.as_mut().unwrap();
    shadow.status.controller.record.as_mut().unwrap().proof = Some(NodeProof {
        version: NEW,
        rollout: 7,
        attempt: 1,
        proof: Proof::Unproven,
        reason: "RebootTimedOut".into(),
    });
    view.nodes.insert("a".into(), dead);
    let made = plan(&view, &policy, t(1_000_000));
    let a = (made.waits.get("a").map(ToString::to_string), made.actions.get("a").map(|a| format!("{a:?}")));
    assert_eq!(slots_of(&made).len(), 2, "b waits: {}; a: {a:?}", made.waits["b"]);
}

/// The agent of the first node has the permit, and its host has not gone down within the deadline.
#[test]
fn no_other_node_goes_beside_one_whose_attempt_is_over_while_its_host_is_up_and_may_still_reboot() {
    let braked = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(30)), ..RolloutLedger::default() };
    let returning = i64::try_from(fleet(&[], braked.clone()).1.returning.as_secs()).unwrap();
    let first =
        "a has not rebooted by its permit in time; the next one goes once it is certain that it does not reboot";
    let alone = |second: i64, ready: bool, boot: &str, ledger: &RolloutLedger, text: &str, expected: &[&str]| {
        let (mut view, policy) = fleet(&["b"], ledger.clone());
        let mut over = dead_in_reboot(&mut view);
        over.facts.ready = ready;
        if !boot.is_empty() {
            over.facts.boot_id = boot.into();
        }
        view.nodes.insert("a".into(), over);
        let mut made = plan(&view, &policy, t(second));
        let sentence = format!("{second} s, Ready: {ready}, {boot}, {text}");
        assert_eq!(slots_of(&made), expected, "{sentence}");
        let waits = made.waits.get("b").map(ToString::to_string).unwrap_or_default();
        assert!(waits.contains(text) && !waits.contains("a is tried alone"), "{sentence}: {waits}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
    };
    let none = RolloutLedger::default();
    // No slots are written.
    alone(60, true, "", &none, first, &[]);
    alone(60, true, "", &braked, "the rollout is braked", &[]);
    // It may never be certain, as without a Lease.
    alone(returning, true, "", &none, "", &["a", "b"]);
    alone(60, true, "another boot", &none, "", &["a", "b"]);
    // It gives its slot up.
    alone(60, false, "", &none, "", &["a", "b"]);
}

/// The slot of an attempt that is over stays while its host may still reboot: each plan foresees the end that no write has counted.
#[test]
fn time_of_a_brake_that_is_foreseen_does_not_move_with_each_plan() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE[..2]), ..RolloutLedger::default() };
    let message = |second| {
        let (mut view, policy) = fleet(&["b"], recorded.clone());
        let mut over = dead_in_reboot(&mut view);
        over.facts.ready = true;
        view.nodes.insert("a".into(), over);
        let status = plan(&view, &policy, t(second)).status.unwrap();
        true_condition(&status.conditions, BRAKED).map(|condition| condition.message.clone())
    };
    assert!(message(60).is_some());
    assert_eq!(message(60), message(61));
}

/// The first proof is seen in a plan that still keeps its slot.
#[test]
fn plan_validator_agrees_with_a_planner_that_foresees_a_proof() {
    let mut all = Vec::new();
    for recorded in [
        RolloutLedger::default(),
        RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() },
    ] {
        let (mut view, policy) = fleet(&["b", "c"], recorded);
        slots(&mut view, vec![at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate)]);
        view.nodes.insert("a".into(), with_place("a", Proof::Proven, 7));
        // The write that withdraws its desired state is under way.
        view.busy.insert("a".into());
        all.extend(crate::lint::lint(&view, &policy, &mut plan(&view, &policy, t(60))));
    }
    assert_eq!(all, []);
}

/// Ten nodes are under way when the web API goes away.
#[test]
fn first_pause_is_ten_minutes_however_many_were_under_way() {
    let (mut view, policy) = fleet(&["b"], RolloutLedger { proven: 1, ..RolloutLedger::default() });
    let names: Vec<String> = (0..10).map(|n| format!("a{n}")).collect();
    let under_way = |name: &String| at(name, Step::Draining, 0, HostState::StagedUpdate);
    slots(&mut view, names.iter().map(under_way).collect());
    for name in &names {
        view.nodes.insert(name.clone(), ended(name, None, "DrainTimedOut"));
    }
    let made = plan(&view, &policy, t(60));
    let ledger = ledger(&made);
    assert_eq!((ledger.tried, ledger.braked_until), (0, Some(t(60 + 600))), "no node has been tried");
}

/// The shadow's acknowledgement is written, and the operator's status is not: it is written once a second at most.
#[test]
fn retry_ends_the_pause_also_if_its_acknowledgement_is_written_first() {
    let recorded =
        RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(21_600)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["a", "b"], recorded);
    shadow(&mut view).retry = Some("now".into());
    let made = plan(&view, &policy, t(60));
    assert!(!made.actions.contains_key("a"), "not acknowledged yet: {:?}", made.actions);
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    write_due(&mut view, &policy, 61);
    assert!(shadow(&mut view).pending_retry().is_none(), "acknowledged once the end of the pause is recorded");
    assert_eq!(ledger(&plan(&view, &policy, t(62))).braked_until, Some(t(60)));
}

/// While one node goes alone, the others begin one after the other without an end.
#[test]
fn no_more_images_are_downloaded_beside_the_first_node_than_without_it() {
    let begun = |proven| {
        let names: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
        let mut nodes: Vec<NodeView> = names.iter().map(|name| staged(name)).collect();
        nodes.extend((0..20).map(|n| node(&format!("z{n:02}"))));
        let (mut view, _) = cluster(nodes, &[]);
        recorded_with(&mut view, Some(RolloutLedger { base: 40, proven, ..RolloutLedger::default() }));
        slots(&mut view, vec![at("a", Step::Draining, 0, HostState::StagedUpdate)]);
        let policy = with_policy(&mut view, json!({"maxUnavailable": 5}));
        let made = plan(&view, &policy, t(60));
        made.actions.iter().filter(|(name, action)| name.starts_with('z') && Plan::starts(action)).count()
    };
    assert_eq!(begun(1), 0, "twenty have their images and wait");
    assert_eq!(begun(0), 0, "twenty have their images and wait for the first node");
}

/// A Node that is gone cannot show how its update ended: no further node goes after it into the version.
#[test]
fn no_node_is_tried_after_one_that_is_gone_without_a_proof() {
    for (sentence, end, is_tried) in [
        ("its Node was deleted after its permit", ("gone", Proof::Unproven, "NodeDeleted"), false),
        ("its Node was deleted before its permit", ("gone", Proof::Free, "HookTimedOut"), true),
        ("it fell back, and was terminated", ("gone", Proof::Failed, "BootFellBack"), true),
        ("its label was removed, and it runs the version", ("left", Proof::Unproven, "HookTimedOut"), false),
        ("its label was removed, and it runs the old version", ("old", Proof::Unproven, "RebootTimedOut"), true),
        ("it fell back, and runs the old version", ("z5", Proof::Failed, "BootFellBack"), true),
    ] {
        let ends = [end, FREE[1], FREE[2]];
        let recorded = RolloutLedger {
            proven: 1,
            unproven: i64::from(end.1 == Proof::Unproven),
            failed: i64::from(end.1 == Proof::Failed),
            row: row(&ends),
            braked_until: Some(t(600)),
            ..RolloutLedger::default()
        };
        let (mut view, policy) = fleet(&["b"], recorded);
        for (name, version) in [("left", NEW), ("old", OLD)] {
            let os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
            let facts = crate::view::NodeFacts { os_image, labelled: false, ..node(name).facts };
            view.unmanaged.insert(name.into(), facts);
        }
        let made = plan(&view, &policy, t(1_000_000));
        let tried: &[&str] = if is_tried { &["b"] } else { &[] };
        assert_eq!(slots_of(&made), tried, "{sentence}: {}", made.waits["b"]);
        if !is_tried {
            let wait = made.waits["b"].to_string();
            assert!(wait.contains("is gone after its permit") && wait.contains("only a resume"), "{wait}");
        }
    }
}

/// The plugin and the condition agree about which rollouts are braked.
#[test]
fn rollout_is_braked_for_the_plugin_exactly_if_it_is_by_its_condition() {
    let recorded =
        || RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() };
    let excluded = json!({"version": {"exclude": [NEW.to_string()]}});
    let more = json!({"failurePolicy": {"maxConsecutiveFailures": 5}});
    let mut wrong = Vec::new();
    for (sentence, spec, done) in [
        ("braked", json!({}), false),
        ("policy excludes the version", excluded, false),
        ("policy allows more", more, false),
        ("users have replaced all nodes", json!({}), true),
    ] {
        let (mut view, _) = fleet(&[], recorded());
        let policy = with_policy(&mut view, spec);
        if done {
            for node in view.nodes.values_mut() {
                node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
                let agent = &mut node.shadow.as_mut().unwrap().status.agent;
                agent.current_version = Some(NEW);
                agent.updates.as_mut().unwrap().chosen_version = None;
            }
        }
        let status = plan(&view, &policy, t(60)).status.unwrap();
        let by_condition = true_condition(&status.conditions, BRAKED).is_some();
        let for_plugin = status.active_rollouts.iter().any(models::operator::ActiveRollout::is_braked);
        if by_condition != for_plugin {
            wrong.push(format!("{sentence}: condition {by_condition}, plugin {for_plugin}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A node with a slot that has not begun when the brake comes.
#[test]
fn no_node_begins_its_drain_during_the_pause_of_a_brake() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["c"], recorded);
    slots(&mut view, vec![staged("b")]);
    let made = plan(&view, &policy, t(60));
    let begins = made.actions.get("b").map(|action| format!("{:?}", action.next_step()));
    assert_eq!(begins, None, "slots: {:?}, c waits: {}", slots_of(&made), made.waits["c"]);
}

/// A pause of a time in which the kind had two nodes, and a first node.
#[test]
fn notice_that_a_rollout_is_braked_is_made_only_while_it_is() {
    let recorded = RolloutLedger { row: row(&FREE[..1]), braked_until: Some(t(600)), ..RolloutLedger::default() };
    let (mut view, _) = fleet(&["b"], recorded);
    let receivers = json!([{"name": "chat", "format": "Slack", "urlKey": "chat"}]);
    let policy = with_policy(&mut view, json!({"notices": {"receivers": receivers}}));
    let mut notices = plan(&view, &policy, t(60)).status.unwrap().notices.unwrap();
    notices.approvals_reported.clear();
    view.operator.as_mut().unwrap().status.notices = Some(notices);
    let status = plan(&view, &policy, t(61)).status.unwrap();
    assert!(true_condition(&status.conditions, BRAKED).is_none());
    let braked: Vec<String> =
        status.notices.unwrap().pending.into_iter().map(|n| format!("{}: {}", n.event, n.cause)).collect();
    assert!(!braked.iter().any(|notice| notice.starts_with("Braked")), "{braked:?}");
}

/// The limit is lowered below the ends that there are.
#[test]
fn lower_limit_brakes_at_once() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), ..RolloutLedger::default() };
    let (mut view, _) = fleet(&["b", "c"], recorded);
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5, "failurePolicy": {"maxConsecutiveFailures": 2}}));
    let made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), Vec::<&str>::new(), "{:?}", policy.max_consecutive_failures);
}

/// Two kinds are braked: the message names both.
#[test]
fn command_ends_the_message_of_the_condition() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&[], recorded);
    let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
    let mut arm = rollouts[0].clone();
    arm.arch = "aarch64".into();
    arm.record = Some(crate::fixtures::recorded(8));
    arm.ledger.as_mut().unwrap().row = row(&[
        ("arm-1", Proof::Free, "HookRefused"),
        ("arm-2", Proof::Free, "HookRefused"),
        ("arm-3", Proof::Free, "HookRefused"),
    ]);
    rollouts.push(arm);
    for number in 0..5 {
        let mut node = node(&format!("arm-{number}"));
        node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        view.nodes.insert(node.facts.name.clone(), node);
    }
    let made = plan(&view, &policy, t(60));
    let condition = true_condition(&made.status.as_ref().unwrap().conditions, BRAKED).unwrap();
    // As `status` of the plugin cuts it.
    let shown = condition.message.split(": kubectl annotate").next().unwrap();
    assert!(shown.contains("arm-3") && shown.contains("x3"), "{shown}\n{}", condition.message);
}

/// The slot of a first node whose Node object was deleted after its permit.
#[test]
fn first_node_that_was_deleted_is_not_said_to_prove_the_version() {
    let (mut view, policy) = fleet(&["b"], RolloutLedger::default());
    slots(&mut view, vec![at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate)]);
    view.nodes.remove("a");
    let made = plan(&view, &policy, t(60));
    let text = made.waits["b"].to_string();
    assert!(text.contains("a, whose Node was deleted and whose machine may still reboot"), "{text}");
}

/// Braked by nodes without a proof, in the places of a canary step: what is shown lifts it.
#[test]
fn command_that_a_braked_node_shows_lets_it_go_on() {
    let ends = [
        ("x1", Proof::Unproven, "HookTimedOut"),
        ("x2", Proof::Unproven, "HookTimedOut"),
        ("x3", Proof::Unproven, "HookTimedOut"),
    ];
    let recorded = RolloutLedger {
        unproven: 3,
        due: 3,
        nodes: row(&ends),
        row: row(&ends),
        braked_until: Some(t(600)),
        ..RolloutLedger::default()
    };
    let (mut view, _) = fleet(&["b"], recorded);
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": 3}]}}));
    assert_eq!(plan(&view, &policy, t(60)).waits["b"].as_str(), "StepUnproven");
    view.operator.as_mut().unwrap().approve_step = Some("7/3/unproven@now".into());
    let made = plan(&view, &policy, t(61));
    assert_eq!(slots_of(&made), ["b"], "{}", made.waits["b"]);
}

/// The Node of the third end is gone, and its time to return is over, in the plan that gives slots.
#[test]
fn planner_foresees_the_end_of_a_node_that_is_gone() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE[..2]), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["b", "c"], recorded);
    slots(&mut view, vec![at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate)]);
    view.nodes.remove("a");
    let mut made = plan(&view, &policy, t(1_000_000));
    let given: Vec<String> = slots_of(&made).iter().map(ToString::to_string).collect();
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{given:?}");
}

/// `bruo` is deleted and made again while the rollout is braked, or a status is one of an earlier version.
#[test]
fn brake_of_a_ledger_that_is_missing_is_rebuilt_from_the_nodes() {
    let failed = |name: &str, reason: &str, second: i64| {
        let mut node = ended(name, None, reason);
        let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
        record.last.as_mut().unwrap().ended = t(second);
        node
    };
    let third = |reason| failed("x3", reason, 30);
    for (sentence, third, braked) in [
        ("three have ended without a proof", third("DrainTimedOut"), true),
        ("the third was withdrawn", third("ReleaseRequested"), false),
        ("the third is proven", runs_new("x3", 30), false),
    ] {
        for made_again in [true, false] {
            let nodes = vec![failed("x1", "DrainTimedOut", 10), failed("x2", "AgentSilent", 20), third.clone()];
            let (mut view, policy) = fleet(&["b", "c"], RolloutLedger::default());
            let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
            if made_again {
                rollouts.clear();
            } else {
                rollouts[0].ledger = None;
            }
            view.nodes.extend(nodes.into_iter().map(|node| (node.facts.name.clone(), node)));
            let made = plan(&view, &policy, t(60));
            let expected = braked.then(|| t(660));
            let found = ledger(&made).braked_until;
            assert_eq!(found, expected, "{sentence}, made again: {made_again}: {:?}", ledger(&made));
        }
    }
}

/// A node whose update ended well at this second.
fn runs_new(name: &str, second: i64) -> NodeView {
    let mut node = with_place(name, Proof::Proven, 7);
    let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
    record.last.as_mut().unwrap().ended = t(second);
    node
}

/// A ledger that is behind its nodes.
#[test]
fn brake_outlasts_a_ledger_that_is_behind() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["b", "c"], recorded);
    view.nodes.insert("p".into(), with_place("p", Proof::Proven, 7));
    view.nodes.insert("q".into(), with_place("q", Proof::Unproven, 7));
    let made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), Vec::<&str>::new(), "{:?}", ledger(&made));
}

/// The rollout was braked, and policy allows more since: then it is braked again.
#[test]
fn pause_is_ten_minutes_after_policy_has_allowed_more() {
    let mut ledger = RolloutLedger::default();
    for name in ["a", "b", "c"] {
        ledger.add_to_row((name, Proof::Free, "DrainTimedOut"), t(-1), 3, t(0));
    }
    // spec.failurePolicy.maxConsecutiveFailures is 5 now, and the rollout goes on, with all nodes that it may take.
    for name in ["d", "e"] {
        ledger.add_to_row((name, Proof::Free, "DrainTimedOut"), t(-1), 5, t(10_000));
    }
    assert_eq!((ledger.tried, ledger.braked_until), (0, Some(t(10_000 + 600))));
}

/// A trial that has ended, and whose node is being released: for good, if its machine is dead.
#[test]
fn node_whose_trial_has_ended_is_not_said_to_be_tried() {
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(0)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["b"], recorded);
    let mut tried = ended("a", Some(Step::Draining), "DrainTimedOut");
    slots(&mut view, vec![tried.clone()]);
    let progress = tried.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
    progress.step = Step::Releasing;
    view.nodes.insert("a".into(), tried);
    let made = plan(&view, &policy, t(100));
    assert!(!made.waits["b"].to_string().contains("a is tried alone"), "{}", made.waits["b"]);
}

/// No request of a user lets the others go on beside a first node whose machine is dead.
#[test]
fn resume_and_release_let_a_rollout_go_on_whose_first_machine_is_dead() {
    let (mut view, policy) = fleet(&["b", "c"], RolloutLedger::default());
    let mut dead = dead_in_reboot(&mut view);
    let shadow = dead.shadow.as_mut().unwrap();
    shadow.release = Some("now".into());
    view.nodes.insert("a".into(), dead);
    view.operator.as_mut().unwrap().resume = Some("now".into());
    let mut seen = Vec::new();
    for second in 0..4 {
        let made = plan(&view, &policy, t(1_000_000 + second));
        if let Some(crate::decision::Action::Status { .. }) = made.actions.get("a") {
            written(&mut view, &made.actions["a"]);
        }
        seen.push(format!("{:?} {}", slots_of(&made), made.waits.get("b").map_or("-", Wait::as_str)));
        view.operator.as_mut().unwrap().status = made.status.unwrap();
    }
    assert!(view.operator.as_ref().unwrap().status.slots.iter().any(|slot| slot.node == "b"), "{seen:?}");
}

/// After an outage of the web API no agent has reported, and no node is known to want the version.
#[test]
fn pause_of_a_brake_goes_on_while_it_is_not_known_what_hosts_may_have() {
    let until = t(600);
    let recorded = RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(until), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["b"], recorded);
    let known = view.nodes.clone();
    for node in view.nodes.values_mut() {
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.agent.updates = None;
        shadow.status.controller.progress = None;
    }
    let made = plan(&view, &policy, t(300));
    let status = made.status.unwrap();
    let kept = status.active_rollouts.iter().find(|rollout| rollout.version == NEW).unwrap();
    assert_eq!(kept.ledger.as_ref().unwrap().braked_until, Some(until));
    let braked = models::condition::find_condition(&status.conditions, models::operator::BRAKED).unwrap();
    assert_eq!(braked.status, models::condition::ConditionStatus::True);
    view.operator.as_mut().unwrap().status = status;
    view.nodes = known;
    assert_eq!(slots_of(&plan(&view, &policy, t(601))), ["b"]);
}

/// A host whose offers are not known would keep it braked, and the alert firing.
#[test]
fn braked_rollout_that_another_version_has_followed_is_over() {
    let newer = semver::Version::new(1, 20, 6);
    for (used, started, is_braked) in [(0, t(100), true), (1, t(100), false), (1, t(-100), true)] {
        let recorded =
            RolloutLedger { proven: 1, row: row(&FREE), braked_until: Some(t(600)), ..RolloutLedger::default() };
        let (mut view, policy) = fleet(&[], recorded);
        for node in view.nodes.values_mut() {
            node.shadow.as_mut().unwrap().status.agent.updates = None;
        }
        let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
        let next = ActiveRollout::new(newer.clone(), "aws-k8s-1.37".into(), "x86_64".into(), started);
        let ledger = Some(RolloutLedger { proven: used, ..RolloutLedger::default() });
        rollouts.push(ActiveRollout { ledger, ..next });
        let status = plan(&view, &policy, t(300)).status.unwrap();
        let braked = models::condition::find_condition(&status.conditions, BRAKED).unwrap();
        let found = braked.status == models::condition::ConditionStatus::True;
        assert_eq!(found, is_braked, "{used} used: {}", braked.message);
    }
}

/// A node with trouble of its own, which has nothing to do with the brake.
#[test]
fn one_node_without_a_proof_from_before_one_stops_no_trial() {
    for (before_proof, tried) in [(true, true), (false, false)] {
        let mut row = row(&[("a", Proof::Unproven, "HookTimedOut"), FREE[0], FREE[1], FREE[2]]);
        row[0].before_proof = before_proof;
        let recorded =
            RolloutLedger { proven: 150, unproven: 1, row, braked_until: Some(t(600)), ..RolloutLedger::default() };
        let (mut view, policy) = fleet(&["s"], recorded);
        view.nodes.insert("a".into(), with_place("a", Proof::Unproven, 7));
        let mut made = plan(&view, &policy, t(600));
        assert_eq!(slots_of(&made).contains(&"s"), tried, "{before_proof}: {:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    }
}

/// Others have proven the version since.
#[test]
fn nodes_without_a_proof_from_before_one_brake_until_one_of_them_proves_the_version_or_runs_another() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, braked: bool, change: Change| {
        let ends = ["a", "b", "c"].map(|name| (name, Proof::Unproven, "HookTimedOut"));
        let mut row = row(&ends);
        row.iter_mut().for_each(|end| end.before_proof = true);
        let recorded = RolloutLedger { proven: 10, unproven: 3, row, ..RolloutLedger::default() };
        let (mut view, policy) = fleet(&["s"], recorded);
        for (name, proof, _) in ends {
            view.nodes.insert(name.into(), with_place(name, proof, 7));
        }
        change(&mut view);
        let made = plan(&view, &policy, t(60));
        assert_eq!(ledger(&made).braked_until.is_some(), braked, "{sentence}: {:?}", ledger(&made));
    };
    case("all three run it", true, |_| {});
    case("one is gone", true, |view| drop(view.nodes.remove("c")));
    case("one is held", true, |view| c(view).facts.hold = Some(crate::hold::Hold::default()));
    case("one has lost its label", true, |view| c(view).facts.labelled = false);
    case("one has lost its label and its shadow", true, |view| {
        let left = view.nodes.remove("c").unwrap().facts;
        view.unmanaged.insert("c".into(), crate::view::NodeFacts { labelled: false, ..left });
    });
    case("another machine has the name of one", true, |view| *c(view) = node("c"));
    case("one has proven it", false, |view| *c(view) = with_place("c", Proof::Proven, 7));
    case("one has proven it and is held", false, |view| *c(view) = held(with_place("c", Proof::Proven, 7)));
    case("one runs the old version", false, |view| *c(view) = runs(with_place("c", Proof::Unproven, 7), false));
    case("one runs the old version and is held", false, |view| {
        *c(view) = held(runs(with_place("c", Proof::Unproven, 7), false));
    });
    case("one cannot be read", true, |view| {
        view.nodes.remove("c");
        view.unreadable.nodes.insert("c".into(), "a field".into());
    });
}

/// Three nodes had proven the version, were not Ready any more, and run the old version since. One of them may run the version again.
#[test]
fn nodes_that_were_taken_back_from_the_version_brake_it_and_stop_no_trial() {
    for (sentence, again, ready_since, braked, given) in [
        ("all three", false, None, true, vec!["s"]),
        ("one is on the version again, and has been Ready for an hour", true, Some(-3000), false, vec!["s"]),
        ("the same, for less", true, Some(-2999), true, vec![]),
        ("the same, and since when is not known", true, None, true, vec![]),
    ] {
        let fallen = |name| LedgerNode { before_proof: true, ..entry(name, Proof::Unproven, NOT_READY) };
        let row = ["a", "b", "c"].map(fallen).to_vec();
        let nodes = row.clone();
        let until = Some(t(600));
        let recorded =
            RolloutLedger { proven: 10, unproven: 3, nodes, row, braked_until: until, ..RolloutLedger::default() };
        let (mut view, policy) = fleet(&["s"], recorded);
        for name in ["a", "b", "c"] {
            view.nodes.insert(name.into(), runs(with_place(name, Proof::Proven, 7), again && name == "c"));
        }
        c(&mut view).facts.ready_since = ready_since.map(t);
        let mut made = plan(&view, &policy, t(600));
        assert_eq!(ledger(&made).braked_until.is_some(), braked, "{sentence}: {:?}", ledger(&made));
        assert_eq!(slots_of(&made), given, "{sentence}: {:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
    }
}

/// One of three nodes has proven the version, and a user deletes the second one while it is verified.
#[test]
fn node_that_is_deleted_in_its_verification_holds_no_third_one() {
    let (mut view, _) = cluster(vec![with_place("a", Proof::Proven, 7), staged("c")], &[]);
    let row = row(&[("b", Proof::Unproven, "NodeDeleted")]);
    let recorded = RolloutLedger { base: 3, proven: 1, unproven: 1, row, ..RolloutLedger::default() };
    recorded_with(&mut view, Some(recorded));
    let policy = with_policy(&mut view, json!({}));
    let mut made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), ["c"], "{:?}", made.waits);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
}

/// One of two nodes had proven the version, was not Ready any more, and is gone.
#[test]
fn last_node_of_a_kind_waits_for_a_resume_where_the_other_one_was_lost() {
    for (is_lost, given) in [(false, vec!["b"]), (true, vec![])] {
        let (mut view, _) = cluster(vec![staged("b")], &[]);
        let fallen = LedgerNode { before_proof: true, ..entry("a", Proof::Unproven, NOT_READY) };
        let lost = RolloutLedger { unproven: 1, nodes: vec![fallen.clone()], row: vec![fallen], ..Default::default() };
        let proven = RolloutLedger { proven: 1, ..RolloutLedger::default() };
        let ledger = if is_lost { lost } else { proven };
        recorded_with(&mut view, Some(RolloutLedger { base: 2, ..ledger }));
        let policy = with_policy(&mut view, json!({}));
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(slots_of(&made), given, "{:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
        view.operator.as_mut().unwrap().resume = Some("now".into());
        view.operator.as_mut().unwrap().status = plan(&view, &policy, t(61)).status.unwrap();
        assert!(plan(&view, &policy, t(62)).status.unwrap().slots.iter().any(|slot| slot.node == "b"), "{is_lost}");
    }
}

/// One node has ended without a proof, and is gone.
#[test]
fn nodes_that_are_gone_brake_a_small_kind_as_if_they_were_there() {
    use crate::survey::brake::limit_among;
    for (sentence, base, before_proof, left, expected) in [
        ("the only one, and another has replaced it", 1, false, 1, usize::MAX),
        ("one of two", 2, false, 1, 1),
        ("one of three", 3, true, 2, 2),
        ("one of three, without a proof since", 3, false, 2, 2),
        ("one of three, and another has replaced it", 3, true, 3, 2),
        ("one of ten, of which three are left", 10, true, 3, 3),
    ] {
        let (view, _) = cluster(Vec::new(), &[]);
        let end = LedgerNode { before_proof, ..entry("a", Proof::Unproven, "HealthUnknown") };
        let ledger = RolloutLedger { row: vec![end], ..RolloutLedger::default() };
        assert_eq!(limit_among(&view, &Policy::default(), &ledger, (left, base)).ends, expected, "{sentence}");
    }
}

/// As many ends as the number of nodes allows have braked the rollout.
#[test]
fn nodes_that_join_or_leave_do_not_change_how_many_ends_have_braked_a_rollout() {
    use crate::survey::brake::limit_among;
    for (sentence, among, max, now, expected) in [
        ("three nodes, and one joins", Some(3), None, 4, 2),
        ("the same, and how many there were is not recorded", None, None, 4, 3),
        ("ten nodes, of which three are left", Some(10), None, 3, 2),
        ("two nodes, of which one is left", Some(2), None, 1, 1),
        ("ten nodes, of which one is left", Some(10), None, 1, 1),
        ("policy allows more", Some(60), Some(5), 61, 5),
        ("policy allows any number", Some(2), Some(64), 1, usize::MAX),
    ] {
        let (view, _) = cluster(vec![node("a")], &[]);
        let row = row(&[("a", Proof::Free, "AgentSilent")]);
        let ledger = RolloutLedger { row, braked_until: Some(t(600)), braked_among: among, ..RolloutLedger::default() };
        let policy = Policy { max_consecutive_failures: max, ..Policy::default() };
        assert_eq!(limit_among(&view, &policy, &ledger, (now, now)).ends, expected, "{sentence}");
    }
}

/// The third of the nodes that run the version without a proof.
fn c(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("c").unwrap()
}

fn held(mut node: NodeView) -> NodeView {
    node.facts.hold = Some(crate::hold::Hold::default());
    node
}
