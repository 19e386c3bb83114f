use serde_json::json;

use super::*;
use crate::view::ClusterView;

#[test]
fn volume_claims_of_pod_include_named_and_ephemeral_claims() {
    let volumes = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "cache", "emptyDir": {}},
    ]);
    let meta = json!({"name": "db-0", "creationTimestamp": "2026-01-01T00:00:00Z"});
    let pod = json!({"metadata": meta, "spec": {"containers": [], "volumes": volumes}});
    let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
    assert_eq!(facts.created, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!(facts.volume_claims, ["data-db-0", "db-0-scratch"]);
}

#[test]
fn key_of_budget_is_its_title_and_key_of_shadow_its_node() {
    let budget: PodDisruptionBudget =
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}})).unwrap();
    assert_eq!(BudgetFacts::key_of(&budget.metadata), BudgetFacts::project(&budget).unwrap().title());
    let shadow = json!({"name": names::shadow_name("a"), "namespace": names::SYSTEM_NAMESPACE});
    assert_eq!(ShadowFacts::key_of(&serde_json::from_value(shadow).unwrap()), "a");
    let operator = json!({"name": names::OPERATOR_NAME, "namespace": names::SYSTEM_NAMESPACE});
    assert_eq!(OperatorFacts::key_of(&serde_json::from_value(operator).unwrap()), names::OPERATOR_NAME);
}

#[test]
fn numbers_of_pdb_are_those_of_its_spec_or_nothing_is_counted() {
    let facts = |generation: i64, observed: i64, reason: &str| {
        let condition = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "no scale",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed,
        });
        let budget = json!({
            "metadata": {"name": "web", "namespace": "shop", "generation": generation},
            "status": {
                "observedGeneration": observed, "currentHealthy": 2, "desiredHealthy": 3, "expectedPods": 3,
                "disruptionsAllowed": 0, "conditions": [condition],
            },
        });
        let facts = BudgetFacts::project(&serde_json::from_value(budget).unwrap()).unwrap();
        (facts.lacks(), facts.sync_error)
    };
    let error = Some("no scale".to_owned());
    for (sentence, generation, observed, reason, expected) in [
        ("a pod is missing", 2, 2, "InsufficientPods", (1, None)),
        ("the numbers of an earlier spec", 3, 2, "InsufficientPods", (0, None)),
        ("it was never counted", 1, 0, "SyncFailed", (0, error.clone())),
        ("it cannot be counted any more", 2, 2, "SyncFailed", (1, error)),
    ] {
        assert_eq!(facts(generation, observed, reason), expected, "{sentence}");
    }
}

#[test]
fn approved_evictions_of_pdb_are_read() {
    let budget = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "status": {"disruptedPods": {"web-1": "2026-01-01T00:00:00Z"}, "currentHealthy": 2, "desiredHealthy": 2,
            "expectedPods": 3, "disruptionsAllowed": 0},
    });
    let facts = BudgetFacts::project(&serde_json::from_value(budget).unwrap()).unwrap();
    let approved: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(facts.approved, [("web-1".to_owned(), approved)].into());
    let found = |seconds, leaving| facts.unfinished_eviction(|_| leaving, after(approved, seconds));
    let second = std::time::Duration::from_secs;
    let text = "the eviction of shop/web-1 was approved at 2026-01-01T00:00:00Z and has not deleted it: the \
                PodDisruptionBudget counts it as gone until 2026-01-01T00:02:00Z";
    assert_eq!(found(second(5), false).unwrap().to_string(), text);
    assert_eq!(found(second(4), false), None, "it may go through");
    assert_eq!(found(second(5), true), None, "it has");
    assert!(found(second(119), false).is_some() && found(second(120), false).is_none());
}

#[test]
fn pod_that_autoscalers_are_not_to_move_is_marked() {
    for (annotation, value, expected) in [
        ("karpenter.sh/do-not-disrupt", "true", true),
        ("karpenter.sh/do-not-disrupt", "false", false),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false", true),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", false),
        ("example.com/other", "true", false),
    ] {
        let pod = json!({"metadata": {"annotations": {annotation: value}}, "spec": {"containers": []}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.marked, expected, "{annotation}: {value}");
    }
}

#[test]
fn toleration_of_cordon_is_recognized() {
    for (toleration, expected) in [
        (json!({"operator": "Exists"}), true),
        (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
        (json!({"operator": "Exists", "effect": "NoExecute"}), false),
        (json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}), true),
        (json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}), true),
        (json!({"key": "node.kubernetes.io/unschedulable", "value": "no"}), false),
        (json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}), false),
    ] {
        let pod = json!({"spec": {"containers": [], "tolerations": [toleration]}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.tolerates_cordon, expected, "{toleration}");
    }
}

#[test]
fn revision_of_shadow_is_that_of_its_label() {
    let shadow = json!({
        "metadata": {"name": names::shadow_name("a"), "labels": {names::REVISION_LABEL: "default-1"}},
        "spec": {"state": "Idle", "attempt": 0},
    });
    let facts = ShadowFacts::project(&serde_json::from_value(shadow).unwrap()).unwrap();
    assert_eq!(facts.revision.as_deref(), Some("default-1"));
}

#[test]
fn volumes_of_a_node_matter_while_the_operator_claims_it() {
    let node = || NodeFacts { resource_version: "5".into(), volumes: 1, ..NodeFacts::default() };
    let claimed = || NodeFacts { claims: claims::ClaimFields::CORDON, ..node() };
    for (sentence, old, new, expected) in [
        ("a heartbeat", claimed(), NodeFacts { resource_version: "6".into(), ..claimed() }, false),
        ("a volume is attached", node(), NodeFacts { volumes: 2, ..node() }, false),
        ("a volume is detached in a drain", claimed(), NodeFacts { volumes: 0, ..claimed() }, true),
        ("the node is cordoned meanwhile", node(), NodeFacts { unschedulable: true, volumes: 2, ..node() }, true),
    ] {
        assert_eq!(new.matters(&old), expected, "{sentence}");
    }
}

#[test]
fn node_is_ready_by_status_of_its_condition() {
    for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": status}]},
        }))
        .unwrap();
        assert_eq!(NodeFacts::project(&node).map(|facts| facts.ready), Some(ready), "{status}");
    }
}

#[test]
fn node_shows_since_when_it_is_in_or_out_of_service() {
    let (created, minute, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z");
    let facts = |ready: serde_json::Value, spec: serde_json::Value, managed: serde_json::Value| {
        let node = serde_json::from_value::<Node>(json!({
            "metadata": {"name": "a", "creationTimestamp": created, "managedFields": managed},
            "spec": spec, "status": {"conditions": ready},
        }));
        NodeFacts::project(&node.unwrap()).unwrap()
    };
    let ready = |status: &str, since: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": since}]);
    let at = |time: &str| Some(time.parse::<Timestamp>().unwrap());
    for (sentence, conditions, ready_since, not_ready_since, joining) in [
        ("Ready", ready("True", later), at(later), None, false),
        ("not Ready any more", ready("False", later), None, at(later), false),
        ("its kubelet is silent", ready("Unknown", later), None, at(later), false),
        ("it was never Ready", ready("False", minute), None, at(minute), true),
        ("its kubelet has not reported yet", json!([]), None, None, true),
    ] {
        let facts = facts(conditions, json!({}), json!([]));
        assert_eq!((facts.not_ready_since, facts.joining), (not_ready_since, joining), "{sentence}");
        assert_eq!((facts.ready, facts.ready_since), (sentence == "Ready", ready_since), "{sentence}");
        assert_eq!(facts.created, at(created), "{sentence}");
    }
    // The clock of its kubelet is ahead.
    let hour = "2026-01-01T01:00:00Z";
    for (condition, status, key) in [
        ("Ready", "False", "not-ready"),
        ("Ready", "Unknown", "unreachable"),
        ("DiskPressure", "True", "disk-pressure"),
    ] {
        let conditions = json!([{"type": condition, "status": status, "lastTransitionTime": hour}]);
        let taints = [("disk-full", minute), (key, later)];
        let taint = |(key, added): (&str, &str)| json!({"key": format!("node.kubernetes.io/{key}"), "effect": "NoSchedule", "timeAdded": added});
        let facts = facts(conditions, json!({"taints": taints.map(taint)}), json!([]));
        let since = if condition == "Ready" { facts.not_ready_since } else { facts.pressure_since };
        assert_eq!(since, at(later), "{condition} is {status}: the time of the taint");
    }
    let taint = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": later}]);
    let managed = json!([{
        "manager": "kubectl", "operation": "Update", "time": minute, "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
    }]);
    for (sentence, spec, managed, since) in [
        ("not cordoned", json!({}), json!([]), None),
        ("the taint of the control plane", json!({"unschedulable": true, "taints": taint}), managed.clone(), at(later)),
        ("no taint yet: the write of the cordon", json!({"unschedulable": true}), managed, at(minute)),
    ] {
        assert_eq!(facts(ready("True", created), spec, managed).cordoned_since, since, "{sentence}");
    }
    let annotation = json!({"f:metadata": {"f:annotations": {(format!("f:{}", names::HOLD_ANNOTATION)): {}}}});
    for (sentence, fields, since) in [
        ("the write of the hold", annotation, at(later)),
        ("another write", json!({"f:metadata": {"f:annotations": {"f:other": {}}}}), None),
    ] {
        let managed = json!([{"manager": "brupop-plugin", "operation": "Update", "time": later, "fieldsV1": fields}]);
        assert_eq!(facts(ready("True", created), json!({}), managed).held_since, since, "{sentence}");
    }
    for (taint, removed) in [
        ("ToBeDeletedByClusterAutoscaler", true),
        ("karpenter.sh/disrupted", true),
        ("DeletionCandidateOfClusterAutoscaler", false),
    ] {
        let spec = json!({"taints": [{"key": taint, "effect": "NoSchedule"}]});
        let found = facts(ready("True", created), spec, json!([])).removed_by;
        assert_eq!(found, removed.then(|| taint.to_owned()), "a mere candidate may stay for ever: {taint}");
    }
}

#[test]
fn node_is_well_since_it_is_ready_and_under_no_pressure() {
    let (early, late) = ("2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z");
    let at = |time: &str| Some(time.parse::<Timestamp>().unwrap());
    for (sentence, ready, pressure, since) in [
        ("Ready after its pressure", ("True", late), ("False", early), at(late)),
        ("without pressure after it was Ready", ("True", early), ("False", late), at(late)),
        ("under pressure", ("True", early), ("True", late), None),
        ("not Ready", ("False", late), ("False", early), None),
    ] {
        let condition = |type_: &str, (status, since): (&str, &str)| json!({"type": type_, "status": status, "lastTransitionTime": since});
        let conditions = [
            condition("Ready", ready),
            condition("DiskPressure", pressure),
            condition("Other", ("False", "2026-01-02T00:00:00Z")),
        ];
        let node = json!({"metadata": {"name": "a"}, "status": {"conditions": conditions}});
        let facts = NodeFacts::project(&serde_json::from_value(node).unwrap()).unwrap();
        assert_eq!(facts.well_since(), since, "{sentence}");
    }
}

#[test]
fn node_shows_its_devices_and_the_taints_that_kubernetes_does_not_remove_by_itself() {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "a"},
        "spec": {"taints": [
            {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
            {"key": "ebs.csi.aws.com/agent-not-ready", "effect": "NoExecute"},
            {"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        ]},
        "status": {"allocatable": {
            "nvidia.com/gpu": "8", "example.com/fpga": "0", "cpu": "7910m", "memory": "31Gi", "hugepages-2Mi": "64Mi",
            "ephemeral-storage": "95551679124", "pods": "110", "kubernetes.io/batch-cpu": "4k", "attachable-volumes-x": "9",
        }},
    }))
    .unwrap();
    let facts = NodeFacts::project(&node).unwrap();
    assert_eq!(facts.taints, ["dedicated:NoSchedule", "ebs.csi.aws.com/agent-not-ready:NoExecute"]);
    let resources: Vec<_> = facts.allocatable.keys().map(String::as_str).collect();
    assert_eq!(resources, ["cpu", "ephemeral-storage", "hugepages-2Mi", "memory", "nvidia.com/gpu"]);
    assert_eq!(facts.allocatable["nvidia.com/gpu"], "8");
}

#[test]
fn node_version_is_parsed_from_os_image() {
    let node = |image: &str| NodeFacts { os_image: image.into(), ..NodeFacts::default() };
    assert_eq!(node("Bottlerocket OS 1.20.5 (aws-k8s-1.37)").os_version(), Some(semver::Version::new(1, 20, 5)));
    assert_eq!(node("Debian GNU/Linux 12 (bookworm)").os_version(), None);
}

#[test]
fn node_is_of_the_kind_that_its_node_names_whatever_its_agent_reports() {
    let (own, other) = (("aws-k8s-1.37", "x86_64"), ("metal-k8s-1.37", "aarch64"));
    let (long, image) = ("v".repeat(100), "Bottlerocket OS 1.20.5 (aws-k8s-1.37)");
    let long_image = format!("Bottlerocket OS 1.20.5 ({long})");
    for (sentence, image, arch, reported, expected) in [
        ("its agent reports the same", image, Some("amd64"), Some(own), Some(own)),
        ("its agent reports another kind", image, Some("amd64"), Some(other), Some(own)),
        ("its Node names the variant alone", image, None, Some(other), Some((own.0, other.1))),
        ("its Node names none", "", None, Some(other), Some(other)),
        ("its agent has not reported", image, Some("amd64"), None, None),
        (
            "its Node names more than a record has room for",
            long_image.as_str(),
            None,
            Some(own),
            Some((&long[..64], own.1)),
        ),
    ] {
        let labels = arch.map(|arch| ("kubernetes.io/arch".to_owned(), arch.to_owned()));
        let labels = Arc::new(labels.into_iter().collect());
        let facts = NodeFacts { labelled: true, labels, os_image: image.to_owned(), ..NodeFacts::default() };
        let mut shadow = ShadowFacts { owner_uid: Some(String::new()), ..ShadowFacts::default() };
        let agent = &mut shadow.status.agent;
        agent.variant = reported.map(|(variant, _)| variant.to_owned());
        agent.arch = reported.map(|(_, arch)| arch.to_owned());
        let mut view = ClusterView::default();
        view.insert(facts, Some(shadow), Timestamp::UNIX_EPOCH);
        let agent = &view.nodes[""].shadow.as_ref().unwrap().status.agent;
        assert_eq!(agent.variant.as_deref().zip(agent.arch.as_deref()), expected, "{sentence}");
    }
}

#[test]
fn pod_that_was_ready_and_no_longer_is_shows_since_when() {
    for (sentence, status, since, expected) in [
        ("it has never been Ready", "False", "2027-01-15T08:00:01Z", None),
        ("it was", "False", "2027-01-15T08:05:00Z", Some("2027-01-15T08:05:01Z")),
        ("its node is silent", "Unknown", "2027-01-15T08:05:00Z", Some("2027-01-15T08:05:01Z")),
        ("it is", "True", "2027-01-15T08:05:00Z", None),
    ] {
        let pod = serde_json::json!({"metadata": {}, "status": {"startTime": "2027-01-15T08:00:00Z",
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.lost_ready_at.map(|at| at.to_string()).as_deref(), expected, "{sentence}");
    }
}

#[test]
fn pod_facts_include_last_restart_and_reason_for_not_ready() {
    let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
    let ended = |second: i64| serde_json::json!({"terminated": {"exitCode": 1, "finishedAt": at(second).to_string()}});
    let pod = |status: serde_json::Value| {
        PodFacts::of(&serde_json::from_value(serde_json::json!({"metadata": {}, "status": status})).unwrap())
    };
    let container = |name: &str, restarts: i32, state: serde_json::Value, last: serde_json::Value| {
        serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts,
            "state": state, "lastState": last})
    };
    let running = serde_json::json!({"running": {"startedAt": at(0).to_string()}});
    let waiting = serde_json::json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let crashed = pod(serde_json::json!({
        "initContainerStatuses": [container("sidecar", 4, running.clone(), ended(5))],
        "containerStatuses": [
            container("app", 2, waiting, ended(9)),
            container("other", 0, running.clone(), ended(20)),
        ],
    }));
    let expected = (4, Some(at(10)), Some("container app: CrashLoopBackOff"));
    assert_eq!((crashed.restarts, crashed.restarted_at, crashed.trouble.as_deref()), expected);
    for (sentence, status, expected) in [
        ("no status yet", serde_json::json!({}), Some("not Ready")),
        (
            "no place",
            serde_json::json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
            Some("Unschedulable"),
        ),
        (
            "it has just ended",
            serde_json::json!({"containerStatuses": [container("app", 0, ended(1), serde_json::json!({}))]}),
            Some("container app: exit code 1"),
        ),
        (
            "its probe fails",
            serde_json::json!({
                "containerStatuses": [container("app", 0, running, serde_json::json!({}))],
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            }),
            Some("ContainersNotReady"),
        ),
        (
            "its kubelet rejected it",
            serde_json::json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}),
            Some("UnexpectedAdmissionError"),
        ),
        ("it is Ready", serde_json::json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
    ] {
        let pod = pod(status);
        assert_eq!((pod.trouble.as_deref(), pod.restarted_at), (expected, None), "{sentence}");
    }
}

#[test]
fn pod_that_its_kubelet_rejected_differs_from_one_that_failed_later() {
    for (phase, reason, expected) in [
        ("Failed", Some("UnexpectedAdmissionError"), true),
        ("Failed", Some("OutOfnvidia.com/gpu"), true),
        ("Failed", Some("NodeAffinity"), true),
        ("Failed", Some("TopologyAffinityError"), true),
        ("Failed", Some("Evicted"), false),
        ("Failed", Some("NodeShutdown"), false),
        ("Failed", Some("Terminated"), false),
        ("Failed", Some("Preempting"), false),
        ("Failed", None, false),
        ("Pending", Some("UnexpectedAdmissionError"), false),
    ] {
        let pod = json!({"metadata": {}, "status": {"phase": phase, "reason": reason}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.rejected, expected, "{phase} {reason:?}");
    }
}

#[test]
fn pod_runs_to_completion_unless_its_containers_are_always_restarted() {
    for (policy, expected) in [(None, false), (Some("Always"), false), (Some("OnFailure"), true), (Some("Never"), true)]
    {
        let pod = json!({"metadata": {}, "spec": {"containers": [], "restartPolicy": policy}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.runs_to_completion, expected, "{policy:?}");
    }
}
