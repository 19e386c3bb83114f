use models::operator::BottlerocketUpdateOperatorSpec;
use serde_json::json;

use super::*;
use crate::fixtures::t;

fn check(object_name: Option<&str>, expression: &str) -> ObjectCheck {
    let (api_version, kind) = ("ceph.rook.io/v1".into(), "CephCluster".into());
    let object_name = object_name.map(str::to_owned);
    ObjectCheck { api_version, kind, object_name, expression: expression.into(), ..ObjectCheck::default() }
}

fn asked(check: ObjectCheck, objects: &Objects) -> Answer {
    let (node, version) = (Some("a".into()), Some("1.20.5".into()));
    answer(&ObjectQuestion { node, version, check: Arc::new(check) }, objects, t(7))
}

fn read(objects: &[(&str, Value)]) -> Objects {
    Objects::Read(Arc::new(objects.iter().map(|(key, object)| ((*key).to_owned(), object.clone())).collect()))
}

#[test]
fn check_is_quiet_where_it_is_true_fires_where_it_is_false_and_is_unknown_otherwise() {
    let healthy = || ("rook/main", json!({"status": {"health": "OK"}, "node": "a"}));
    let ill = || ("rook/other", json!({"status": {"health": "ERR"}, "node": "b"}));
    let bare = || ("rook/new", json!({}));
    let quiet = Answer::Quiet { since: t(7), asked: t(7) };
    let fires = |series: &str| Answer::Firing { series: series.into(), since: t(7), asked: t(7) };
    let fails = |message: &str| Answer::Failed { message: message.into() };
    let (each, list) = ("self.status.health == 'OK'", "all.exists_one(c, c.status.health == 'OK')");
    let (none, no_such) = (
        "CephCluster of ceph.rook.io/v1: no such object exists",
        "CephCluster of ceph.rook.io/v1, main: no such object exists",
    );
    for (sentence, name, expression, objects, expected) in [
        ("true for each", None, each, read(&[healthy()]), quiet.clone()),
        ("false for one", None, each, read(&[healthy(), ill()]), fires("false for CephCluster rook/other")),
        ("no field", None, each, read(&[healthy(), bare()]), fails("CephCluster rook/new: No such key: status")),
        ("no object", None, each, read(&[]), fails(none)),
        (
            "not a boolean",
            None,
            "self.status.health",
            read(&[healthy()]),
            fails("CephCluster rook/main: it returned a string, which is neither true nor false"),
        ),
        ("true of the list", None, list, read(&[healthy(), ill()]), quiet.clone()),
        ("false of the list", None, list, read(&[ill()]), fires("false for 1 CephCluster")),
        ("an empty list is one", None, "all.all(c, c.status.health == 'OK')", read(&[]), quiet.clone()),
        ("the only object is missing", Some("main"), "size(all) == 0", read(&[]), fails(no_such)),
        ("for this node", None, "all.all(c, c.node != node || version == '1.20.5')", read(&[healthy()]), quiet.clone()),
        (
            "not read",
            None,
            each,
            Objects::Unread(Unread::NoKind),
            fails(
                "CephCluster of ceph.rook.io/v1: the API server does not serve this kind: its definition is missing, or has another version",
            ),
        ),
        (
            "too many",
            None,
            each,
            Objects::Unread(Unread::TooMany),
            fails(
                "CephCluster of ceph.rook.io/v1: there are more than 500: write a namespace, an objectName or a selector",
            ),
        ),
        (
            "no field of one in the list",
            None,
            "all.all(c, c.status.health == 'OK')",
            read(&[bare()]),
            fails("CephCluster: No such key: status"),
        ),
    ] {
        assert_eq!(asked(check(name, expression), &objects), expected, "{sentence}");
    }
    assert!(matches!(asked(check(None, "self."), &read(&[])), Answer::Failed { .. }));
}

#[test]
fn missing_right_is_named_with_the_role_and_the_binding_that_grant_it() {
    for (namespace, kind) in [(None, "ClusterRole"), (Some("rook"), "Role")] {
        let namespace = namespace.map(str::to_owned);
        let unread = Unread::NoRight {
            group: "ceph.rook.io".into(),
            resource: "cephclusters".into(),
            namespace: namespace.clone(),
            controller: "updates".into(),
        };
        let text = unread.to_string();
        let grant: Value = serde_saphyr::from_str(text.split_once("apply ").unwrap().1).unwrap();
        let (api_version, name) = ("rbac.authorization.k8s.io/v1", "brupop-reads-cephclusters.ceph.rook.io");
        let mut metadata = json!({"name": name});
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        let role = json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata,
            "rules": [{"apiGroups": ["ceph.rook.io"], "resources": ["cephclusters"], "verbs": ["get", "list", "watch"]}],
        });
        let binding = json!({
            "apiVersion": api_version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "brupop-controller", "namespace": "updates"}],
        });
        assert_eq!(grant, json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}));
    }
}

#[test]
fn objects_that_several_checks_read_are_one_source_with_the_fields_of_all() {
    let object = |name: &str, namespace: &str, expression: &str| json!({"name": name, "apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "expression": expression});
    let spec = json!({
        "health": {
            "before": {"objects": [object("a", "shop", "self.status.x == 1"), object("b", "shop", "self.status.y == 1")]},
            "after": {"objects": [object("c", "shop", "has(self.spec.z)"), object("d", "db", "has(self.spec)")]},
        },
        "nodeGroups": [{"name": "g", "selector": {}, "health": {"after": {"objects": [object("e", "web", "has(self.spec)")]}}}],
    });
    let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(spec).unwrap();
    let found = sources(&Policy::from_spec(&spec).unwrap());
    let namespaces: Vec<_> = found.keys().map(|source| source.namespace.as_deref().unwrap()).collect();
    assert_eq!(namespaces, ["db", "shop", "web"]);
    let object = json!({"spec": {"z": 1, "big": 2}, "status": {"x": 1, "y": 2, "big": 3}, "data": 4});
    let kept = found.values().nth(1).unwrap().kept_of(&object);
    assert_eq!(kept, json!({"spec": {"z": 1}, "status": {"x": 1, "y": 2}}));
}

#[test]
fn namespace_of_a_check_has_to_fit_the_scope_of_its_kind() {
    let missing = || Err(Unread::NoNamespace("main".into()));
    let of = |scope| ApiCapabilities { scope, subresources: vec![], operations: vec!["list".into(), "watch".into()] };
    for (scope, namespace, name, expected) in [
        (Scope::Namespaced, Some("rook"), Some("main"), Ok("rook")),
        (Scope::Namespaced, Some("rook"), None, Ok("rook")),
        (Scope::Namespaced, None, Some("main"), missing()),
        (Scope::Namespaced, None, None, Ok("")),
        (Scope::Cluster, None, Some("main"), Ok("")),
        (Scope::Cluster, Some("rook"), None, Err(Unread::Namespace)),
    ] {
        let source = Source { namespace: namespace.map(str::to_owned), ..Source::of(&check(name, "")) };
        assert_eq!(source.namespace_in(&of(scope)), expected, "{namespace:?} {name:?}");
    }
}

/// As of `metrics.k8s.io`.
#[test]
fn objects_of_a_kind_that_cannot_be_watched_are_not_known() {
    let of = |verbs: &[&str]| {
        let operations = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        ApiCapabilities { scope: Scope::Cluster, subresources: vec![], operations }
    };
    let source = Source::of(&check(None, ""));
    for (verbs, expected) in [
        (&["get", "list", "watch"][..], Ok("")),
        (&["get", "list"][..], Err(Unread::NoWatch)),
        (&["get"][..], Err(Unread::NoWatch)),
    ] {
        assert_eq!(source.namespace_in(&of(verbs)), expected, "{verbs:?}");
    }
}

/// The controller may read its own keys.
#[test]
fn secrets_are_neither_watched_nor_asked_for() {
    let secret = ObjectCheck { api_version: "v1".into(), kind: "Secret".into(), ..check(None, "has(self.data)") };
    let mut policy = Policy::default();
    policy.all.before.checks = vec![Check::Objects(Arc::new(secret))];
    assert!(sources(&policy).is_empty());
    let subject = crate::expressions::Subject { node: "a", version: None };
    assert_eq!(policy.all.before.checks[0].question(subject), Err(crate::expressions::QueryError::Secret));
}

/// The examples of the documentation, each on objects of which it is true, and on others of which it is false.
#[test]
fn documented_checks_are_true_of_healthy_objects_and_false_of_ill_ones() {
    let page = include_str!("../../../docs/object-checks.md");
    let mut checks: BTreeMap<String, ObjectCheck> = BTreeMap::new();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    for block in blocks.filter(|block| block.contains("health:")) {
        let object: Value = serde_saphyr::from_str(block).unwrap();
        for when in ["before", "after"] {
            for check in object["spec"]["health"][when]["objects"].as_array().into_iter().flatten() {
                let check: ObjectCheck = serde_json::from_value(check.clone()).unwrap();
                checks.insert(check.name.clone(), check);
            }
        }
    }
    let ceph = |health: &str, phase: &str| json!({"status": {"phase": phase, "ceph": {"health": health}}});
    let database = |phase: &str, ready: i64| json!({"spec": {"instances": 3}, "status": {"currentPrimary": "a", "targetPrimary": "a", "phase": phase, "readyInstances": ready}});
    let deployment = |status: &str| json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [{"type": "Available", "status": status}]}});
    let volume = |node: &str, attached: bool| json!({"metadata": {"name": "v"}, "spec": {"nodeName": node}, "status": {"attached": attached}});
    let mut seen = 0;
    for (name, healthy, ill) in [
        ("ceph", vec![ceph("HEALTH_OK", "Ready")], vec![ceph("HEALTH_WARN", "Ready")]),
        ("postgres", vec![database("Cluster in healthy state", 3)], vec![database("Failing over", 2)]),
        ("deployments", vec![deployment("True"), deployment("True")], vec![deployment("True"), deployment("False")]),
        ("volumes", vec![volume("a", true), volume("b", false)], vec![volume("a", false)]),
        ("volumes", vec![], vec![volume("a", false)]),
    ] {
        let check = &checks[name];
        let named = |objects: &[Value]| {
            let keyed = objects.iter().enumerate().map(|(index, object)| (index.to_string(), object.clone()));
            Objects::Read(Arc::new(keyed.collect()))
        };
        assert!(
            matches!(asked(check.clone(), &named(&healthy)), Answer::Quiet { .. }),
            "{name}: {:?}",
            asked(check.clone(), &named(&healthy))
        );
        assert!(
            matches!(asked(check.clone(), &named(&ill)), Answer::Firing { .. }),
            "{name}: {:?}",
            asked(check.clone(), &named(&ill))
        );
        seen += 1;
    }
    assert_eq!((seen, checks.len()), (5, 4));
}
