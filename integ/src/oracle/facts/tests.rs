use super::*;
use serde_json::json;

#[test]
fn node_fields_and_field_managers_are_parsed() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "a", "uid": "u", "resourceVersion": "7", "labels": {"zone": "1", "bottlerocket.aws/updater-interface-version": "2.0.0"},
            "managedFields": [
                {"manager": "kubectl-label", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:zone": {}}}}},
                {"manager": "brupop-controller", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
            ]},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {
            "bootID": "b1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}},
    });
    let Object::Node(node) = Object::parse(Kind::Node, node).unwrap() else { panic!("a node") };
    assert!(node.ready && node.claimed() && node.labelled() && !node.held());
    assert_eq!((node.boot_id.as_str(), node.uid.as_str()), ("b1", "u"));
    assert_eq!(node.owners[&Field::Label("zone".into())], BTreeSet::from(["kubectl-label".to_owned()]));
    assert!(!node.owners.contains_key(&Field::Label(names::INTERFACE_LABEL.into())));
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
        let read = Pod::read(&serde_json::from_value(pod).unwrap());
        assert_eq!(read.tolerates_cordon, expected, "{toleration}");
    }
}

#[test]
fn finished_daemon_set_and_static_pods_are_not_evictable() {
    let pod = Pod { node: Some("a".into()), ..Pod::default() };
    assert!(pod.evictable());
    assert!(Pod { terminating: true, ..pod.clone() }.evictable());
    assert!(!Pod { node: None, ..pod.clone() }.evictable());
    assert!(!Pod { finished: true, ..pod.clone() }.evictable());
    assert!(!Pod { mirror: true, ..pod.clone() }.evictable());
    assert!(!Pod { controller: Some(("DaemonSet".into(), "d".into())), ..pod.clone() }.evictable());
    assert!(Pod { controller: Some(("ReplicaSet".into(), "r".into())), ..pod }.evictable());
}

#[test]
fn pdb_without_selector_matches_no_pod_and_empty_selector_matches_namespace() {
    let pod =
        Pod { namespace: "shop".into(), labels: BTreeMap::from([("app".into(), "cart".into())]), ..Pod::default() };
    let budget = Budget { namespace: "shop".into(), ..Budget::default() };
    assert!(!budget.covers(&pod));
    let all = Budget { selector: Some(LabelSelector::default()), ..budget.clone() };
    assert!(all.covers(&pod));
    assert!(!Budget { namespace: "bank".into(), ..all }.covers(&pod));
    let other = LabelSelector {
        match_labels: Some(BTreeMap::from([("app".into(), "till".into())])),
        ..LabelSelector::default()
    };
    assert!(!Budget { selector: Some(other), ..budget }.covers(&pod));
}

#[test]
fn object_with_invalid_schema_is_reported_as_error() {
    assert!(Object::parse(Kind::Shadow, json!({"metadata": {"name": "brs-a"}, "spec": {"attempt": "one"}})).is_err());
}
