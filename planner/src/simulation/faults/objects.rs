//! Pods, labels and policies of a simulated cluster.

use super::*;

pub(super) fn pod(node: &str, number: u32) -> PodFacts {
    PodFacts {
        namespace: "shop".into(),
        name: format!("{node}-{number}"),
        uid: format!("{node}-{number}"),
        node: node.into(),
        controller_uid: Some("rs".into()),
        ready: true,
        ..PodFacts::default()
    }
}

/// A pod that tolerates the cordon, and that its owner creates again where it was.
pub(super) fn addon(node: &str, number: u32) -> PodFacts {
    let owner = Some(format!("addon-{node}"));
    PodFacts { namespace: "kube-system".into(), tolerates_cordon: true, controller_uid: owner, ..pod(node, number) }
}

/// A pod of an owner that binds its pods to this node itself.
pub(super) fn pinned(node: &str, number: u32) -> PodFacts {
    PodFacts { controller_uid: Some("pinned".into()), ..pod(node, number) }
}

/// Removes pods from a node; those that tolerate the cordon or are bound to it by their owner come back.
pub(super) fn leave(node: &mut NodeView, host: &mut Host, uids: &BTreeSet<&str>) {
    let (name, pods) = (&node.facts.name, node.pods.as_mut().unwrap());
    let left = |test: fn(&PodFacts) -> bool| pods.iter().filter(|p| uids.contains(p.uid.as_str()) && test(p)).count();
    let back = left(|p| p.tolerates_cordon);
    let bound = left(|p| p.controller_uid.as_deref() == Some("pinned"));
    pods.retain(|p| !uids.contains(p.uid.as_str()));
    for _ in 0..back {
        host.pods_made += 1;
        pods.push(addon(name, host.pods_made));
    }
    for _ in 0..bound {
        host.pinned_left += 1;
        assert!(host.pinned_left <= 4, "{name}: a pod that comes back each time is evicted again and again");
        if host.pinned {
            host.pods_made += 1;
            pods.push(pinned(name, host.pods_made));
        }
    }
}

/// A pod of a DaemonSet.
pub(super) fn daemon(node: &str, set: &str) -> PodFacts {
    PodFacts {
        name: format!("{set}-{node}"),
        uid: format!("{set}-{node}"),
        controller_uid: Some(set.into()),
        daemon_set: Some(set.into()),
        daemon_set_state: DaemonSetState::There,
        ..pod(node, 0)
    }
}

/// The time that the pods of the DaemonSet `slow` take to become Ready: longer than an update waits for pods.
pub(super) const SLOW: SignedDuration = SignedDuration::from_mins(16);

pub(super) fn some_labels(rng: &mut StdRng) -> BTreeMap<String, String> {
    let zone = if rng.random_bool(0.5) { "a" } else { "b" };
    let tier = if rng.random_bool(0.5) { "db" } else { "web" };
    [(models::names::ZONE_LABEL.to_owned(), zone.to_owned()), ("tier".to_owned(), tier.to_owned())].into()
}

/// A policy with a random choice of its parts. It never keeps a node from its update for good.
pub(in crate::simulation) fn some_policy(rng: &mut StdRng, budget: u32) -> BottlerocketUpdateOperatorSpec {
    let mut spec = json!({"maxUnavailable": budget});
    let parts = [
        json!({"nodeGroups": [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": 1, "health": {"after": {"soak": "30s"}}}]}),
        json!({"strategy": {"oneZoneAtATime": true}}),
        json!({"strategy": {"preStage": {"maxConcurrent": 2}}}),
        json!({"strategy": {"canary": [{"nodes": 1, "soak": "1m"}, {"nodes": "60%"}]}}),
        json!({"schedule": {"windows": [{"cron": "0 * * * *", "duration": "40m"}], "stopStartingBefore": "5m"}}),
        json!({"version": {"minimumAge": "10m"}}),
        json!({"health": {"before": {"podsReady": true, "maxUnhealthyNodes": 2}}}),
        json!({"loadBalancer": {"leaveBeforeDrain": "30s"}, "autoscaler": {"protect": false}}),
        json!({"drain": {"atDeadline": "Force", "timeout": "10m"}}),
        json!({"drain": {"cordonedNodes": "Update"}}),
    ];
    for part in parts {
        if rng.random_bool(0.3) {
            json_patch::merge(&mut spec, &part);
        }
    }
    serde_json::from_value(spec).unwrap()
}

/// Two hooks: `slow` answers after a while and seldom refuses, `deaf` never answers.
pub(super) fn some_hooks() -> Vec<models::operator::Hook> {
    let hooks = json!([
        {"name": "slow", "before": {"timeout": "3m"}, "after": {"timeout": "2m", "onTimeout": "Continue"}},
        {"name": "deaf", "before": {"timeout": "30s", "onTimeout": "Continue"}},
    ]);
    serde_json::from_value(hooks).unwrap()
}

/// Returns whether policy leaves the node alone where a user has cordoned it.
pub(super) fn skips(policy: &Policy, node: &NodeView) -> bool {
    policy.for_node(&node.facts).drain.cordoned_nodes == CordonedNodes::Skip
}
