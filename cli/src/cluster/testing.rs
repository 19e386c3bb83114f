//! Clusters for the unit tests.

use serde_json::{Value, json};

use super::*;

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// A cluster of these objects, in which everything was read and every component is there.
pub(crate) fn cluster(operator: Option<Value>, shadows: Vec<Value>, nodes: Vec<Value>) -> Cluster {
    let mut cluster =
        Cluster { namespace: names::SYSTEM_NAMESPACE.to_owned(), nodes: Some(BTreeMap::new()), ..Cluster::default() };
    if let Some(operator) = operator {
        cluster.add_operator(&serde_json::from_value(operator).unwrap());
    }
    for shadow in shadows {
        cluster.add_shadow(&serde_json::from_value(shadow).unwrap());
    }
    for node in nodes {
        cluster.add_node(&serde_json::from_value(node).unwrap());
    }
    cluster
}

/// A Node under the operator that is Ready.
pub(crate) fn node(name: &str, annotations: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("uid of {name}"), "resourceVersion": "5", "annotations": annotations,
            "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "bootID": "b", "osImage": "Bottlerocket OS 1.20.0 (aws-k8s-1.37)", "architecture": "amd64",
                "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                "machineID": "", "operatingSystem": "", "systemUUID": "",
            },
        },
    })
}

/// The shadow of such a node.
pub(crate) fn shadow(name: &str, status: Value) -> Value {
    let mut shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {
            "name": format!("brs-{name}"), "uid": "s", "resourceVersion": "5", "generation": 1,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": format!("uid of {name}")}],
        },
        "spec": {"state": "Idle", "attempt": 0, "host": {"refreshInterval": "1h"}},
    });
    shadow["status"] = status;
    shadow
}

/// The status of an idle host that is offered 1.20.5.
pub(crate) fn idle() -> Value {
    json!({
        "state": "Idle", "observedGeneration": 1, "currentVersion": "1.20.0", "variant": "aws-k8s-1.37", "arch": "x86_64",
        "bootId": "b",
        "updates": {"chosenVersion": "1.20.5", "availableVersions": ["1.20.5"], "lastRefresh": "2026-01-01T00:00:00Z"},
    })
}

/// The status of a host that is offered nothing.
pub(crate) fn current() -> Value {
    let mut current = idle();
    current["updates"] = json!({"availableVersions": [], "lastRefresh": "2026-01-01T00:00:00Z"});
    current
}

/// An attempt at 1.20.5 that is at this step.
pub(crate) fn progress(step: &str, attempt: i64) -> Value {
    let t = "2026-01-01T00:00:00Z";
    json!({"step": step, "since": t, "started": t, "attempt": attempt, "bootId": "b", "version": "1.20.5",
        "disruptive": !matches!(step, "Staging" | "Staged")})
}

/// The result of the first attempt at it.
pub(crate) fn last(reason: &str, message: &str) -> Value {
    json!({"attempt": 1, "from": "1.20.0", "version": "1.20.5", "reason": reason, "message": message,
        "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:05:00Z"})
}

/// A condition that is true.
pub(crate) fn condition(type_: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The shadow of a node whose update is staged.
pub(crate) fn staged(name: &str) -> Value {
    let mut status = idle();
    (status["state"], status["progress"]) = (json!("StagedUpdate"), progress("Staged", 1));
    let mut staged = shadow(name, status);
    staged["spec"] = json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b",
        "host": {"refreshInterval": "1h"}});
    staged
}

pub(crate) fn operator(spec: &Value, status: &Value) -> Value {
    json!({
        "metadata": {"name": "default", "uid": "o", "resourceVersion": "5", "generation": 1}, "spec": spec, "status": status,
    })
}

/// The operator's own pods: one of each of these components, Ready or not.
pub(crate) fn own(components: &[(&str, bool)]) -> BTreeMap<String, PodFacts> {
    let pod = |(component, ready): &(&str, bool)| PodFacts {
        name: (*component).to_owned(),
        ready: *ready,
        labels: std::sync::Arc::new(BTreeMap::from([(names::COMPONENT_LABEL.to_owned(), (*component).to_owned())])),
        ..PodFacts::default()
    };
    components.iter().map(pod).map(|pod| (pod.name.clone(), pod)).collect()
}

/// The Lease of the controller, which was renewed so many seconds before it was read.
pub(crate) fn lease(age: i64) -> ControllerLease {
    let renewed = Some(now() - SignedDuration::from_secs(age));
    ControllerLease { holder: Some(names::CONTROLLER.to_owned()), acquired: None, renewed, read: now() }
}

/// A cluster of the node `a`.
pub(crate) fn one(operator: Value, shadow: Value) -> Cluster {
    cluster(Some(operator), vec![shadow], vec![node("a", &json!({}))])
}

/// The same, staged under a policy with an expression, which has led to these conditions.
pub(crate) fn with_expression(conditions: &Value) -> Cluster {
    let policy = json!({
        "prometheus": {"url": "http://prometheus:9090"},
        "health": {"before": {"expressions": [{"name": "errors", "query": "errors > 0"}]}},
    });
    let status = json!({"observedGeneration": 1, "conditions": conditions});
    let mut cluster = one(operator(&policy, &status), staged("a"));
    cluster.pods.insert("a".to_owned(), vec![]);
    cluster
}

/// A cluster of the node `a`, which is offered 1.20.5 in a rollout with this ledger, and for whose kind these versions are known.
fn in_rollout(spec: &Value, ledger: &Value, versions: &Value) -> Cluster {
    let t = "2026-01-01T00:00:00Z";
    let status = json!({
        "observedGeneration": 1, "versions": versions,
        "activeRollouts": [{
            "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": t, "stepsPassed": 0, "ledger": ledger,
            "record": {"number": 3, "begun": t, "revision": {"number": 2, "name": "brupop-default-5d"}, "phase": "Running"},
        }],
    });
    one(operator(spec, &status), shadow("a", idle()))
}

/// The same, braked by the update of a node that is gone, which has shown this about the version.
pub(crate) fn braked(proof: &str) -> Cluster {
    let end = json!({"node": "gone", "proof": proof, "reason": "RebootTimedOut"});
    let ledger = json!({"base": 2, "row": [end], "brakedUntil": "2026-01-01T01:00:00Z"});
    in_rollout(&json!({"failurePolicy": {"maxConsecutiveFailures": 1}}), &ledger, &json!([]))
}

/// The same with a canary step, whose place a node that is gone has used up by a failure on the version, or without a proof.
pub(crate) fn step_used_up(by_failure: bool) -> Cluster {
    let (count, proof, reason) =
        if by_failure { ("failed", "Failed", "BootFellBack") } else { ("unproven", "Unproven", "HookTimedOut") };
    let end = json!({"node": "gone", "proof": proof, "reason": reason});
    let failed = if by_failure { json!(["gone"]) } else { json!([]) };
    let known = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64",
        "firstSeen": "2026-01-01T00:00:00Z", "failed": failed});
    let spec = json!({"strategy": {"canary": [{"nodes": 1}]}, "failurePolicy": {"maxFailures": 2}});
    in_rollout(&spec, &json!({"base": 2, "due": 1, count: 1, "nodes": [end]}), &json!([known]))
}

/// A fleet in the middle of a rollout: a drain that a budget blocks, a failed node, one that a user holds, one without an
/// agent, one that is up to date, and others that wait.
pub(crate) fn fleet() -> Cluster {
    let t = "2026-01-01T00:00:00Z";
    let policy = json!({
        "schedule": {"windows": [{"cron": "0 0 * * *", "duration": "4h"}]},
        "strategy": {"canary": [{"nodes": 1}, {"nodes": 3}]},
        "failurePolicy": {"maxFailures": 2},
        "maxUnavailable": 2,
        "autoscaler": {"protect": false},
    });
    let status = json!({
        "observedGeneration": 1,
        "counts": {"total": 7, "current": 1, "staged": 0, "updating": 1, "blocked": 3, "failed": 1},
        "slots": [{"uid": "uid of blocked", "node": "blocked", "since": t}],
        "activeRollouts": [{
            "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": t, "stepsPassed": 1,
            "record": {"number": 3, "begun": t, "revision": {"number": 2, "name": "brupop-default-5d"}, "phase": "Running"},
        }],
    });
    let mut blocked = staged("blocked");
    let drained = &mut blocked["status"];
    drained["progress"] = progress("Draining", 1);
    drained["progress"]["from"] = json!("1.20.0");
    drained["drain"] = json!({"pods": [{"namespace": "shop", "name": "web-1", "uid": "1"}], "blockers": [
        {"pod": "shop/web-1", "budget": "shop/web", "message": "no disruption", "since": t}]});
    let message = "the PodDisruptionBudget shop/web allows no disruption of shop/web-1; 1 pod(s) left";
    drained["conditions"] = json!([condition("Blocked", "DrainBlocked", message)]);
    let mut failed = idle();
    failed["record"] = json!({"failures": 1, "last": last("PrepareFailed", "no space left on device"),
        "notBefore": "2026-01-01T00:15:00Z"});
    let mut updated = current();
    updated["currentVersion"] = json!("1.20.5");
    updated["record"] = json!({"failures": 0, "last": last("Updated", "Ready on 1.20.5 for the soak")});
    let shadows = vec![
        blocked,
        shadow("failed", failed),
        shadow("held", idle()),
        shadow("silent", idle()),
        shadow("updated", updated),
        shadow("waiting-1", idle()),
        shadow("waiting-2", idle()),
    ];
    let none = json!({});
    let mut nodes: Vec<Value> =
        ["blocked", "failed", "silent", "updated", "waiting-1", "waiting-2"].map(|name| node(name, &none)).to_vec();
    nodes.push(node("held", &json!({names::HOLD_ANNOTATION: ""})));
    let mut cluster = cluster(Some(operator(&policy, &status)), shadows, nodes);
    let claimed = cluster.nodes.as_mut().unwrap().get_mut("blocked").unwrap();
    (claimed.unschedulable, claimed.claims) = (true, planner::claims::ClaimFields::CORDON);
    let agent = |node: &String| AgentPod {
        name: format!("brupop-agent-{node}"),
        node: node.clone(),
        serves: node != "silent",
        since: Some(t.parse().unwrap()),
        trouble: (node == "silent").then(|| "container agent: CrashLoopBackOff".to_owned()),
    };
    cluster.agents = Some(cluster.shadows.keys().map(agent).collect());
    let pod = PodFacts {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        uid: "1".to_owned(),
        node: "blocked".to_owned(),
        ready: true,
        controller: Some("ReplicaSet web".to_owned()),
        controller_uid: Some("2".to_owned()),
        ..PodFacts::default()
    };
    cluster.pods.insert("blocked".to_owned(), vec![pod]);
    cluster
}
