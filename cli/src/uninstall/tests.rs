use super::*;

/// The names of the resources are made from the kinds: the plural of each is regular.
#[tokio::test]
async fn api_of_each_deployed_object_has_its_path() {
    let served = [
        "/api/v1/namespaces",
        "/api/v1/namespaces/*/configmaps",
        "/api/v1/namespaces/*/secrets",
        "/api/v1/namespaces/*/serviceaccounts",
        "/api/v1/namespaces/*/services",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/apps/v1/namespaces/*/daemonsets",
        "/apis/apps/v1/namespaces/*/deployments",
        "/apis/brupop.bottlerocket.aws/v1/namespaces/*/bottlerocketupdateoperators",
        "/apis/coordination.k8s.io/v1/namespaces/*/leases",
        "/apis/networking.k8s.io/v1/namespaces/*/networkpolicies",
        "/apis/policy/v1/namespaces/*/poddisruptionbudgets",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/*/rolebindings",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/*/roles",
    ];
    let client = Client::try_from(kube::Config::new("http://localhost".parse().unwrap())).unwrap();
    let mut paths = BTreeSet::new();
    for object in deploy::everything().unwrap().into_iter().chain(made()) {
        let (api, _, name) = api(&client, &object).unwrap();
        assert_eq!(object["metadata"]["name"], name);
        let namespace = object["metadata"]["namespace"].as_str();
        let anywhere = |namespace| api.resource_url().replace(&format!("/{namespace}/"), "/*/");
        paths.insert(namespace.map_or_else(|| api.resource_url().to_owned(), anywhere));
    }
    assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), served);
}

#[tokio::test(start_paused = true)]
async fn namespace_that_does_not_end_keeps_no_secret() {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "spec": {"finalizers": ["kubernetes"]},
        "metadata": {"name": names::AGENT_NAMESPACE, "uid": "1", "labels": {names::APPLICATION_LABEL: names::APPLICATION}},
    });
    let (stays, secret) = ("/api/v1/namespaces/brupop-agents", "/api/v1/namespaces/brupop-system/secrets/brupop-ca");
    let server = testing::Server::default();
    server.add(stays, namespace.clone());
    server.add(secret, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "brupop-ca", "uid": "2"}}));
    let error = remove_containers(&server.client(), &[namespace]).await.unwrap_err().to_string();
    assert!(error.starts_with("Namespace brupop-agents is deleted and not gone: no reason is known. Run"), "{error}");
    assert_eq!(server.paths(), [stays]);
}

#[tokio::test(start_paused = true)]
async fn error_about_an_object_that_is_not_gone_has_its_finalizers_and_the_conditions_of_its_deletion() {
    let labels = json!({names::APPLICATION_LABEL: names::APPLICATION});
    let discovery = "Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1: stale GroupVersion discovery";
    let pods = "Some resources are remaining: configmaps. has 1 resource instances, pods. has 2 resource instances";
    let condition =
        |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "message": message});
    let content = |status: &str, message: &str| condition("NamespaceContentRemaining", status, message);
    let namespace = |conditions: Value| {
        let meta = json!({"name": names::AGENT_NAMESPACE, "uid": "1", "labels": labels});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "spec": {"finalizers": ["kubernetes"]},
            "status": {"conditions": conditions}})
    };
    let cleanup = "customresourcecleanup.apiextensions.k8s.io";
    let of_definition = [condition("Established", "True", "accepted"), condition("Terminating", "True", "in progress")];
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "a.b", "uid": "1", "labels": labels, "finalizers": [cleanup]},
        "spec": {"group": "b", "names": {"kind": "A"}, "versions": [{"name": "v1"}]},
        "status": {"conditions": of_definition}});
    let failed = condition("NamespaceDeletionDiscoveryFailure", "True", discovery);
    let agents = "/api/v1/namespaces/brupop-agents";
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/a.b";
    for (path, object, expected) in [
        (agents, namespace(json!([failed, content("False", "All content removed")])), format!("{discovery}. Run ")),
        (agents, namespace(json!([content("True", pods)])), format!("{pods}. Pods on a node that does not answer ")),
        (definitions, definition, format!("finalizer {cleanup}; in progress. Run ")),
    ] {
        let server = testing::Server::default();
        server.add(path, object.clone());
        let error = remove_containers(&server.client(), &[object]).await.unwrap_err().to_string();
        assert!(error.contains(&format!(" is deleted and not gone: {expected}")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn object_is_deleted_although_the_api_server_is_away_at_first() {
    let path = "/api/v1/namespaces/brupop-system/configmaps/brupop-aws";
    let meta = json!({"namespace": names::SYSTEM_NAMESPACE, "name": names::AWS, "uid": "1"});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta});
    let server = testing::Server::default();
    server.add_after(503, path, object.clone());
    remove(&server.client(), &[object]).await.unwrap();
    assert!(server.paths().is_empty());
}

#[tokio::test(start_paused = true)]
async fn wait_for_the_end_of_pods_goes_on_after_an_answer_that_the_api_server_is_away() {
    let server = testing::Server::default();
    let list = |kind: &str| json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": []});
    let mut agents = list("PodList");
    agents["items"] = json!([{"metadata": {"name": "agent"}, "spec": {"nodeName": "a", "containers": []}}]);
    let mut nodes = list("NodeList");
    nodes["items"] = json!([{"metadata": {"name": "a"}}]);
    server.add_after(503, "/api/v1/namespaces/brupop-system/pods", list("PodList"));
    server.add_after(503, "/api/v1/namespaces/brupop-agents/pods", agents);
    server.add_after(503, "/api/v1/nodes", nodes);
    ended(&server.client()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nodes_are_released_where_another_one_is_gone_and_the_api_server_is_away_at_first() {
    let field = json!({"manager": names::LABEL_MANAGER, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {}}}});
    let node = |name: &str, uid: &str| json!({"metadata": {"name": name, "uid": uid, "managedFields": [field]}});
    for (sentence, found, expected) in [
        ("a node that is gone", None, true),
        ("one that was replaced under its name", Some((422, "2")), true),
        ("one that is replaced at this moment", Some((409, "2")), true),
        ("one whose fields another client has", Some((409, "1")), false),
    ] {
        let server = testing::Server::default();
        let list =
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": [node("a", "1"), node("b", "1")]});
        server.add_after(503, "/api/v1/nodes", list);
        if let Some((code, uid)) = found {
            server.add_after(code, "/api/v1/nodes/a", node("a", uid));
        }
        server.add_after(503, "/api/v1/nodes/b", node("b", "1"));
        let swept = sweep(&server.client()).await;
        assert_eq!(swept.is_ok(), expected, "{sentence}: {swept:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_is_not_ready_is_waited_for_and_abandoned_after_five_minutes_if_that_is_requested() {
    let list = |kind: &str, item: Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": [item]});
    let claim = json!({"manager": names::CONTROLLER_MANAGER, "operation": "Apply", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}});
    let node = |ready: &str| {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        json!({"metadata": {"name": "a", "uid": "1", "managedFields": [claim]}, "status": status})
    };
    let shadow =
        json!({"metadata": {"name": "brs-a"}, "spec": {"state": "Idle", "attempt": 1}, "status": {"state": "Idle"}});
    let controller = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": names::CONTROLLER},
        "spec": {"selector": {}, "template": {}}, "status": {"readyReplicas": 1}});
    for (sentence, ready, abandon, minutes) in [
        ("not Ready, and abandoned", "Unknown", true, 5),
        ("not Ready", "Unknown", false, 10),
        ("Ready, and abandoned", "True", true, 10),
    ] {
        let server = testing::Server::default();
        server.add("/api/v1/nodes", list("NodeList", node(ready)));
        let shadows = "/apis/brupop.bottlerocket.aws/v3/namespaces/brupop-system/bottlerocketshadows";
        server.add(shadows, list("BottlerocketShadowList", shadow.clone()));
        server.add("/apis/apps/v1/namespaces/brupop-system/deployments/brupop-controller", controller.clone());
        let timeout = models::duration::Duration::from_secs(600);
        let options = UninstallOptions { yes: true, dry_run: false, timeout, abandon };
        let began = Instant::now();
        let ended = released(&server.client(), &options).await;
        assert_eq!(ended.is_ok(), abandon, "{sentence}: {ended:?}");
        assert_eq!(began.elapsed().as_secs() / 60, minutes, "{sentence}");
    }
}

#[tokio::test]
async fn operator_that_is_installed_in_another_namespace_stays() {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/brupop-controller";
    let own = json!({names::APPLICATION_LABEL: names::APPLICATION});
    for (sentence, found, refused) in [
        ("none is installed", None, false),
        ("in the namespace of the manifests", Some((&own, names::SYSTEM_NAMESPACE)), false),
        ("in another one", Some((&own, "platform")), true),
        ("another operator with an account of this name", Some((&json!({}), "platform")), false),
    ] {
        let server = testing::Server::default();
        server.add("/version", json!({"major": "1", "minor": "40", "gitVersion": "v1.40.0"}));
        if let Some((labels, namespace)) = found {
            let subject = json!({"kind": "ServiceAccount", "name": names::CONTROLLER, "namespace": namespace});
            let meta = json!({"name": names::CONTROLLER, "uid": "1", "labels": labels});
            let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": meta, "subjects": [subject]});
            server.add(path, binding);
        }
        let client = server.client();
        let checked = check_elsewhere(&client, &deploy::everything().unwrap()).await;
        assert_eq!(checked.is_err(), refused, "{sentence}: {checked:?}");
        let timeout = models::duration::Duration::ZERO;
        for dry_run in [true, false].into_iter().filter(|_| refused) {
            let options = UninstallOptions { yes: true, dry_run, timeout, abandon: true };
            let error = uninstall(client.clone(), names::SYSTEM_NAMESPACE, &options).await.unwrap_err().to_string();
            assert!(error.starts_with("the operator is installed in the namespace platform, "), "{error}");
            assert_eq!(server.paths(), [path, "/version"]);
        }
        let installs = crate::preflight::preflight(client, names::SYSTEM_NAMESPACE).await.unwrap_err().to_string();
        assert_eq!(
            installs.contains("\n  the operator is installed in the namespace platform, "),
            refused,
            "{installs}"
        );
    }
}

#[test]
fn other_namespace_than_that_of_the_manifests_is_refused() {
    assert!(check_namespace(names::SYSTEM_NAMESPACE).is_ok());
    let error = check_namespace("platform").unwrap_err().to_string();
    assert!(error.contains("in brupop-system alone") && error.contains("is platform"), "{error}");
}

#[test]
fn uninstall_covers_all_deployed_objects() {
    let objects = deploy::everything().unwrap();
    let kinds = |kinds: &[&str]| objects.iter().filter(|object| is_one_of(object, kinds)).count();
    assert_eq!((kinds(&WORKLOADS), kinds(&["Namespace"])), (4, 2));
    assert!(kinds(&["CustomResourceDefinition"]) >= 2);
    assert!(objects.iter().any(|object| object["metadata"]["name"] == "brupop-controller-force"));
    let removable = removable().unwrap();
    let kept = objects.iter().filter(|object| !removable.contains(object));
    let kept: BTreeSet<&str> = kept.filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert_eq!(kept, BTreeSet::from([names::CONTROLLER_JOBS, "brupop-controller-job-changes"]));
    for object in &objects {
        let meta: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert!(is_marked(&meta), "{} would stay", deploy::yaml::id(object));
    }
}

#[test]
fn what_is_removed_with_a_namespace_is_removed_where_the_namespace_stays() {
    let documented = include_str!("../../../docs/install.md");
    let (_, table) = documented.split_once("### What is removed by whom").unwrap();
    let rows = table.lines().filter(|row| ["| Secrets", "| ConfigMap", "| Lease"].iter().any(|of| row.starts_with(of)));
    let cells = rows.filter_map(|row| row.split('|').nth(2)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    // The record of the earlier operator is the user's, for the time after.
    let documented: BTreeSet<&str> = cells.filter(|name| name.starts_with("brupop-") && !name.contains('*')).collect();
    let asked = question();
    let users: Vec<&str> =
        table.lines().filter(|row| row.starts_with("| Secrets") && row.contains("| you (")).collect();
    for name in users.iter().flat_map(|row| row.split('|').nth(2)).flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        assert!(asked.contains(name), "{name} is not in: {asked}");
    }
    assert_eq!(users.len(), 1);
    let made = made();
    let names: BTreeSet<&str> = made.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert_eq!(names, documented);
    // The label is not asked for.
    let kinds: BTreeSet<&str> = made.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert!(!deploy::everything().unwrap().iter().any(|object| kinds.contains(object["kind"].as_str().unwrap())));
}
