//! Canary steps: the places of nodes in them.

use models::operator::RolloutLedger;
use models::reason::Proof;
use models::shadow::{HostState, OfferedUpdates, Record, Step};
use semver::Version;

use super::health::{DEADLINE, SOAKED, healthy, verifying};
use super::ledger::{recorded_with, with_place};
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::view::ClusterView;
use crate::wait::Wait;

/// Under a canary step of one, a node that had to wait with its image is about to be disrupted.
#[test]
fn node_waiting_only_for_its_slot_keeps_its_canary_place() {
    for (sentence, pods, slots) in [("its pods are being read", None, 0), ("it gets its slot now", Some(vec![]), 1)] {
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        staged.pods = pods;
        let spec = serde_json::json!({"maxUnavailable": 2, "strategy": {"canary": [{"nodes": 1}]}});
        let (view, policy) = cluster_with(vec![staged, node("b")], &[], spec);
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.slots.map_or(0, |slots| slots.len()), slots, "{sentence}");
        let waits = matches!(made.waits.get("b"), Some(Wait::CanaryStep { step: 1, .. }));
        assert!(waits, "{sentence}: {:?}", made.actions);
    }
}

/// Under a canary step of two, a node has got its image a moment ago.
#[test]
fn staged_node_counts_once_in_canary_step() {
    let mut ready = at("a", Step::Staging, 0, HostState::StagedUpdate);
    ready.pods = None;
    let spec = serde_json::json!({"maxUnavailable": 2, "strategy": {"canary": [{"nodes": 2}]}});
    let (view, policy) = cluster_with(vec![ready, node("b"), node("c")], &[], spec);
    let made = plan(&view, &policy, t(1));
    assert!(made.pods.contains("a"), "it is looked at: {:?}", made.waits);
    assert!(made.actions.get("b").is_some_and(Plan::starts), "{:?}", made.waits);
    assert!(matches!(made.waits.get("c"), Some(Wait::CanaryStep { step: 1, .. })), "{:?}", made.actions);
}

/// Under a canary step of three, of which the first node goes alone, and with room for more.
#[test]
fn node_that_waits_for_the_first_one_counts_once_in_canary_step() {
    for step in [Step::Staging, Step::Staged] {
        let image = |(name, step)| at(name, step, 0, HostState::StagedUpdate);
        let under_way = [("a", Step::Draining), ("b", step)].map(image);
        let spec = serde_json::json!({"maxUnavailable": 3, "strategy": {"canary": [{"nodes": 3}]}});
        let (view, policy) = cluster_with(under_way.into_iter().chain([node("c"), node("d")]).collect(), &["a"], spec);
        let made = plan(&view, &policy, t(1));
        assert!(made.actions.get("c").is_some_and(Plan::starts), "{step:?}: {:?}", made.waits);
        assert!(matches!(made.waits.get("d"), Some(Wait::CanaryStep { step: 1, .. })), "{step:?}: {:?}", made.actions);
    }
}

/// Staged nodes of a version that waits for approval come first in the order.
#[test]
fn nodes_beyond_canary_step_do_not_delay_other_versions() {
    let staged = |name: &str| at(name, Step::Staged, 0, HostState::StagedUpdate);
    let mut other = staged("d");
    let shadow = other.shadow.as_mut().unwrap();
    let newer = Version::new(1, 21, 0);
    shadow.spec.version = Some(newer.clone());
    shadow.status.agent.updates.as_mut().unwrap().chosen_version = Some(newer.clone());
    shadow.status.controller.progress.as_mut().unwrap().version = newer;
    let (mut view, _) = cluster(vec![staged("a"), staged("b"), staged("c"), other], &[]);
    let canary = serde_json::json!([{"nodes": 1, "approval": "Manual"}]);
    let policy = with_policy(&mut view, serde_json::json!({"strategy": {"canary": canary}}));
    view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout(NEW)];
    // One node has had the first version, and no user has approved that it continues.
    let mut done = node("e");
    done.shadow.as_mut().unwrap().status.controller.record = Some(updated());
    view.nodes.insert("e".into(), done);
    let made = plan(&view, &policy, t(60));
    let slots: Vec<String> = made.slots.unwrap_or_default().into_iter().map(|slot| slot.node).collect();
    assert_eq!(slots, ["d"], "{:?}", made.waits);
    assert!(!made.pods.contains("a"), "its pods need not be looked at");
}

#[test]
fn approval_is_requested_also_while_window_is_closed() {
    for (sentence, enabled, expected) in [("a closed window", true, true), ("updates are disabled", false, false)] {
        let mut done = node("a");
        done.shadow.as_mut().unwrap().status.controller.record = Some(updated());
        let (mut view, policy) = cluster_with(
            vec![done, node("b")],
            &[],
            serde_json::json!({
                "enabled": enabled,
                "strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]},
                "schedule": {"blackouts": [{"from": "1970-01-01", "to": "2099-12-31"}]},
            }),
        );
        view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout(NEW)];
        let made = plan(&view, &policy, t(60));
        assert!(!matches!(made.waits.get("b"), Some(Wait::CanaryStep { .. })), "{sentence}: {:?}", made.waits);
        assert_eq!(!made.approvals.is_empty(), expected, "{sentence}");
    }
}

/// Under a canary step of one, and with room for more.
#[test]
fn node_with_pending_first_write_keeps_its_canary_place() {
    let spec = serde_json::json!({"maxUnavailable": 2, "strategy": {"canary": [{"nodes": 1}]}});
    let (mut view, policy) = cluster_with(vec![node("a"), node("b")], &[], spec);
    view.busy.insert("a".into());
    let made = plan(&view, &policy, t(1));
    assert!(matches!(made.waits.get("b"), Some(Wait::CanaryStep { step: 1, .. })), "{:?}", made.actions);
    // That write has failed. As long as it is not retried, another node has the place.
    view.paused.insert("a".into());
    let made = plan(&view, &policy, t(1));
    assert!(made.actions.get("b").is_some_and(Plan::starts), "{:?}", made.waits);
}

#[test]
fn request_for_approval_names_canaries_without_workloads() {
    for (without_workloads, named) in [(false, false), (true, true)] {
        let (mut view, _) = cluster(vec![node("a"), at("b", Step::Staged, 0, HostState::StagedUpdate)], &[]);
        let canary = serde_json::json!([{"nodes": 1, "approval": "Manual"}]);
        let policy = with_policy(&mut view, serde_json::json!({"strategy": {"canary": canary}}));
        view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout(NEW)];
        let proven = Record { without_workloads, ..updated() };
        view.nodes.get_mut("a").unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        shadow(&mut view).status.agent.current_version = Some(NEW);
        shadow(&mut view).status.controller.record = Some(proven);
        let made = plan(&view, &policy, t(60));
        let text = made.approvals[0].to_string();
        let words =
            "waits for approval (no pods of workloads were scheduled to a while they were verified): kubectl annotate";
        assert_eq!(text.contains(words), named, "{text}");
        assert!(text.contains("waits for approval"), "{text}");
    }
}

/// Under a canary step of one, the first node is back on the new version.
#[test]
fn no_node_follows_one_whose_host_does_not_answer_after_its_update() {
    for unusable in [false, true] {
        let mut first = verifying(vec![healthy()]);
        first.shadow.as_mut().unwrap().status.conditions.extend(unusable.then(unreachable));
        let (mut view, _) = cluster(vec![first, at("b", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
        recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 1, ..RolloutLedger::default() }));
        let spec = serde_json::json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": 1}]}});
        let policy = with_policy(&mut view, spec);
        let mut has_slot = false;
        for second in [SOAKED, DEADLINE, DEADLINE + 1] {
            for _ in 0..20 {
                let mut made = plan(&view, &policy, t(second));
                let status = made.status.take().unwrap();
                has_slot |= status.slots.iter().any(|slot| slot.node == "b");
                view.operator.as_mut().unwrap().status = status;
                match made.actions.remove("a") {
                    None => break,
                    Some(Action::Spec { spec }) => shadow(&mut view).spec = *spec,
                    Some(Action::ReadLease { .. }) => view.nodes.get_mut("a").unwrap().lease = renewed_after(second),
                    Some(action) => written(&mut view, &action),
                }
            }
        }
        let last = view.nodes["a"].record().unwrap().last.as_ref().unwrap();
        let expected = if unusable { "NodeNotUsable" } else { "Updated" };
        assert_eq!((last.reason.as_str(), has_slot), (expected, !unusable));
    }
}

/// A node has proven the version, and no host that is left has it as its target now.
#[test]
fn full_step_soaks_and_takes_approval_while_no_host_has_the_version_as_its_target() {
    let none = || Some(OfferedUpdates::default());
    let fails = || Some(OfferedUpdates { refresh_failure: Some("no route".into()), ..OfferedUpdates::default() });
    let offered = || Some(OfferedUpdates { available_versions: vec![NEW], ..OfferedUpdates::default() });
    for (sentence, target, updates, reason, goes_on) in [
        ("the repository is away", "latest", fails(), "RefreshFails", true),
        ("it has just been rebooted", "latest", None, "UpToDate", true),
        ("its wave has not come", "latest", none(), "WaveNotCome", true),
        ("its lock is about to choose it", "1.20.5", offered(), "Pinning", true),
        ("its user has locked it", "latest", offered(), "NotChosen", false),
    ] {
        let setup = |approval: &str, soak: &str| {
            let mut proven = with_place("a", Proof::Proven, 7);
            proven.shadow.as_mut().unwrap().status.agent.updates = offered();
            let mut left = node("b");
            left.shadow.as_mut().unwrap().status.agent.updates.clone_from(&updates);
            let (mut view, _) = cluster(vec![proven, left], &[]);
            let ledger = RolloutLedger { base: 2, due: 1, share: 1, proven: 1, ..RolloutLedger::default() };
            recorded_with(&mut view, Some(ledger));
            view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
            let canary = serde_json::json!([{"nodes": 1, "soak": soak, "approval": approval}]);
            let spec = serde_json::json!({"version": {"target": target}, "strategy": {"canary": canary}});
            let policy = with_policy(&mut view, spec);
            (view, policy)
        };
        let (mut view, policy) = setup("Manual", "0s");
        view.operator.as_mut().unwrap().approve_step = Some("7/1@yes".into());
        let made = plan(&view, &policy, t(60));
        let left = crate::survey::targets(&view, &policy, t(60)).remove("b").unwrap();
        assert_eq!(left.unwrap_err().as_str(), reason, "{sentence}");
        let status = made.status.unwrap();
        let requests = status.requests.as_ref().unwrap();
        assert_eq!(requests.approve_step.as_deref(), Some("7/1@yes"), "{sentence}: it is acknowledged");
        let passed = |view: &ClusterView| view.operator.as_ref().unwrap().status.active_rollouts[0].steps_passed;
        view.operator.as_mut().unwrap().status = status;
        assert_eq!(passed(&view), i64::from(goes_on), "{sentence}: it passes the step");

        let (view, policy) = setup("Automatic", "10m");
        let status = plan(&view, &policy, t(60)).status.unwrap();
        let soaks = status.active_rollouts[0].step_done;
        assert_eq!(soaks, goes_on.then(|| t(60)), "{sentence}: the soak begins");
    }
}
