use std::collections::{BTreeMap, BTreeSet};

use kube::core::error_boundary::InvalidObject;
use models::names;
use planner::view::{BudgetFacts, PodFacts};
use serde_json::{Value, json};

use super::aws::Hook;
use super::certificate::Certificate;
use super::facts::{Installed, required_by};
use super::jobs::Needed;
use super::*;
use crate::cluster::testing::{
    braked, cluster, condition, fleet, idle, lease, node, now, operator, own, shadow, step_used_up,
};
use crate::cluster::{AgentPod, Cluster, ControllerLease};
use crate::fixtures::{fitted, snapshot};
use crate::shell::testing::{with_context, without_context};
use crate::uninstall::testing::Server;

const OPERATOR: &str = "bottlerocketupdateoperator/brupop-system/default";

/// An object as the API server has it in an installation that works.
fn installed(wanted: Value) -> Installed {
    let mut found = wanted.clone();
    found["status"] = match wanted["kind"].as_str().unwrap() {
        "CustomResourceDefinition" => json!({"storedVersions": ["v1"], "conditions": [
            {"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"}]}),
        "Deployment" => {
            let all = &found["spec"]["replicas"];
            json!({"replicas": all, "updatedReplicas": all, "readyReplicas": all, "availableReplicas": all})
        }
        "DaemonSet" => json!({"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1}),
        _ => json!({}),
    };
    Installed { wanted, found: Some(found) }
}

/// An installation that works, with one node.
fn healthy() -> Facts {
    let objects = deploy::objects(&deploy::Options::default()).unwrap().into_iter().map(installed).collect();
    let mut done = idle();
    done["updates"] = json!({"availableVersions": [], "lastRefresh": "2026-01-01T00:00:00Z"});
    let operator = operator(&json!({}), &json!({"observedGeneration": 1}));
    let until = "2036-01-01T00:00:00Z".parse().unwrap();
    let authority = Certificate { from: "2025-01-01T00:00:00Z".parse().unwrap(), until };
    Facts {
        namespace: names::SYSTEM_NAMESPACE.to_owned(),
        version: "v1.37.1".to_owned(),
        objects,
        cluster: Some(cluster(Some(operator), vec![shadow("a", done)], vec![node("a", &json!({}))])),
        endpoints: Some(3),
        trust: Some(vec![Some(authority)]),
        lease: Some(lease(0)),
        node_renewed: BTreeMap::from([("a".to_owned(), now())]),
        read_at: now(),
        ..Facts::default()
    }
}

#[test]
fn next_steps_are_for_the_chosen_context() {
    let facts = Facts { cluster: Some(fleet()), ..healthy() };
    let diagnosis = with_context("c", || Diagnosis::of(&facts));
    let next: Vec<String> = diagnosis.findings.into_iter().flat_map(|finding| finding.next).collect();
    assert!(next.iter().any(|command| command.starts_with("kubectl ")), "{next:?}");
    assert_eq!(without_context(&next.join("\n")), None);
}

const SHADOWS: &str = "customresourcedefinition/bottlerocketshadows.brupop.bottlerocket.aws";

fn object<'a>(facts: &'a mut Facts, kind: &str, name: &str) -> &'a mut Option<Value> {
    let object = |object: &&mut Installed| object.wanted["kind"] == kind && object.wanted["metadata"]["name"] == name;
    &mut facts.objects.iter_mut().find(object).unwrap().found
}

fn found<'a>(facts: &'a mut Facts, kind: &str, name: &str) -> &'a mut Value {
    object(facts, kind, name).as_mut().unwrap()
}

fn shadows(facts: &mut Facts) -> &mut Value {
    found(facts, "CustomResourceDefinition", names::SHADOW_DEFINITION)
}

fn fleet_of(facts: &mut Facts) -> &mut Cluster {
    facts.cluster.as_mut().unwrap()
}

/// Gives the operator's resource this policy, which the controller has seen.
fn set_policy(facts: &mut Facts, spec: &Value) {
    set_operator(facts, operator(spec, &json!({"observedGeneration": 1})));
}

fn set_operator(facts: &mut Facts, operator: Value) {
    fleet_of(facts).add_operator(&serde_json::from_value(operator).unwrap());
}

fn await_aws(facts: &mut Facts) {
    set_policy(facts, &json!({"autoscaling": {"aws": {"mode": "Standby"}}}));
}

/// A pod, and so many budgets over it, each of which counts so many healthy ones of two.
fn pod(budgets: &[&str], healthy: i32, facts: &mut Facts) {
    let pod = PodFacts {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        node: "a".to_owned(),
        ready: true,
        controller_uid: Some("rs".to_owned()),
        labels: std::sync::Arc::new(BTreeMap::from([("app".to_owned(), "web".to_owned())])),
        ..PodFacts::default()
    };
    let budget = |name: &&str| BudgetFacts {
        namespace: "shop".to_owned(),
        name: (*name).to_owned(),
        healthy,
        desired: 2,
        expected: 2,
        selector: Some(serde_json::from_value(json!({"matchLabels": {"app": "web"}})).map(selector).unwrap()),
        ..BudgetFacts::default()
    };
    let cluster = fleet_of(facts);
    cluster.budgets = budgets.iter().map(budget).collect();
    cluster.pods.insert("a".to_owned(), vec![pod]);
}

fn selector(label: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector) -> kube::core::Selector {
    label.try_into().unwrap()
}

/// A condition that the controller has reported.
fn report(type_: &str, status: &str, reason: &str, facts: &mut Facts) {
    let condition = json!({"type": type_, "status": status, "reason": reason, "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    set_operator(facts, operator(&json!({}), &json!({"observedGeneration": 1, "conditions": [condition]})));
}

/// A condition of the shadow of the node.
fn block(type_: &str, reason: &str, facts: &mut Facts) {
    let condition = condition(type_, reason, "m");
    let shadow = fleet_of(facts).shadows.get_mut("a").unwrap();
    shadow.status.conditions.push(serde_json::from_value(condition).unwrap());
}

fn relabel(facts: &mut Facts, labels: Value) {
    let mut other = node("a", &json!({}));
    other["metadata"]["labels"] = labels;
    fleet_of(facts).add_node(&serde_json::from_value(other).unwrap());
}

/// Gives the policy these node groups.
fn group(facts: &mut Facts, groups: &Value) {
    set_policy(facts, &json!({"nodeGroups": groups}));
}

#[test]
fn node_group_with_an_empty_selector_is_noted_where_every_node_is_in_it() {
    let of = |name: &str, labels: Value| json!({"name": name, "selector": {"matchLabels": labels}});
    let label = || json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION});
    let all = || of("all", json!({}));
    for (sentence, groups, noted) in [
        ("it is the only group", json!([all()]), true),
        ("no node is in the group before it", json!([of("db", json!({"tier": "db"})), all()]), true),
        ("a node is in the group before it", json!([of("labelled", label()), all()]), false),
        ("the selector is not empty", json!([of("labelled", label())]), false),
    ] {
        let mut facts = healthy();
        group(&mut facts, &groups);
        let found = Diagnosis::of(&facts).findings;
        assert_eq!(found.iter().any(|found| found.reason == "NodeGroupAll"), noted, "{sentence}: {found:?}");
    }
}

#[test]
fn hidden_node_group_of_which_the_operator_warns_has_no_note() {
    let groups = json!([{"name": "all", "selector": {}}, {"name": "rest", "selector": {}}]);
    let degraded = condition("Degraded", "NodeGroupHidden", "m");
    for (sentence, conditions, expected) in [
        ("the controller has not reported it", json!([]), Severity::Note),
        ("it has", json!([degraded]), Severity::Warning),
    ] {
        let mut facts = healthy();
        let status = json!({"observedGeneration": 1, "conditions": conditions});
        set_operator(&mut facts, operator(&json!({"nodeGroups": groups}), &status));
        let found = Diagnosis::of(&facts).findings;
        let found: Vec<Severity> =
            found.iter().filter(|found| found.reason == "NodeGroupHidden").map(|found| found.severity).collect();
        assert_eq!(found, [expected], "{sentence}");
    }
}

#[test]
fn working_installation_has_no_errors_and_no_warnings() {
    let diagnosis = Diagnosis::of(&healthy());
    assert_eq!((diagnosis.errors, diagnosis.warnings), (0, 0), "{}", diagnosis.page(None));
    assert!(diagnosis.page(None).to_string().ends_with("Result:    all is well\n"));
}

#[test]
fn each_defect_is_found_with_its_object_and_a_next_step() {
    use Severity::{Error, Note, Warning};
    type Break<'a> = &'a dyn Fn(&mut Facts);
    let cases: [(&str, Severity, &str, Break<'_>); 61] = [
        ("KubernetesTooOld", Error, "", &|f| f.outdated = Some("Kubernetes 1.32 or later is needed".to_owned())),
        ("Missing", Error, SHADOWS, &|f| {
            *object(f, "CustomResourceDefinition", names::SHADOW_DEFINITION) = None;
        }),
        ("NotServed", Error, SHADOWS, &|f| shadows(f)["status"] = json!({})),
        ("VersionMissing", Error, SHADOWS, &|f| shadows(f)["spec"]["versions"][0]["served"] = json!(false)),
        ("SchemaDiffers", Error, SHADOWS, &|f| {
            let schema = &mut shadows(f)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"].as_object_mut().unwrap().remove("permit");
        }),
        ("AnotherInstallation", Warning, SHADOWS, &|f| shadows(f)["metadata"]["labels"] = json!({})),
        ("RightsMissing", Error, "clusterrole/brupop-controller", &|f| {
            found(f, "ClusterRole", names::CONTROLLER)["rules"][0]["verbs"] = json!(["get", "list", "watch"]);
        }),
        ("RightsMissing", Error, "clusterrolebinding/brupop-controller", &|f| {
            found(f, "ClusterRoleBinding", names::CONTROLLER)["subjects"] = json!([]);
        }),
        ("Missing", Error, "clusterrole/brupop-controller-force", &|f| {
            let selector = json!({"matchLabels": {"pool": "batch"}});
            let group = json!({"name": "batch", "selector": selector, "drain": {"atDeadline": "Force"}});
            assert!(required_by(&fleet_of(f).policy()).is_empty());
            set_policy(f, &json!({"nodeGroups": [group]}));
            let required = required_by(&fleet_of(f).policy());
            f.objects.extend(required.into_iter().map(|wanted| Installed { wanted, found: None }));
        }),
        ("NotReady", Error, "deployment/brupop-system/brupop-controller", &|f| {
            found(f, "Deployment", names::CONTROLLER)["status"] = json!({});
        }),
        ("NotReady", Warning, "daemonset/brupop-agents/brupop-agent", &|f| {
            found(f, "DaemonSet", names::AGENT)["status"]["desiredNumberScheduled"] = json!(2);
        }),
        ("AgentsNotReplaced", Warning, "node/a", &|f| {
            found(f, "DaemonSet", names::AGENT)["status"]["updatedNumberScheduled"] = json!(0);
            fleet_of(f).nodes.as_mut().unwrap().get_mut("a").unwrap().ready = false;
        }),
        ("ScaledToZero", Error, "deployment/brupop-system/brupop-controller", &|f| {
            found(f, "Deployment", names::CONTROLLER)["spec"]["replicas"] = json!(0);
        }),
        ("MixedVersions", Warning, "", &|f| {
            let pod = &mut found(f, "DaemonSet", names::AGENT)["spec"]["template"]["spec"];
            pod["containers"][0]["image"] = json!("x/agent:v0.0.1");
        }),
        ("Missing", Warning, "networkpolicy/brupop-system/brupop-default-deny", &|f| {
            let denies = |o: &&mut Installed| {
                o.wanted["kind"] == "NetworkPolicy"
                    && o.wanted["metadata"]["namespace"] == names::SYSTEM_NAMESPACE
                    && o.wanted["metadata"]["name"] == "brupop-default-deny"
            };
            f.objects.iter_mut().find(denies).unwrap().found = None;
        }),
        ("NoEndpoints", Error, "service/brupop-system/brupop-apiserver", &|f| f.endpoints = Some(0)),
        ("NoAuthority", Error, "configmap/brupop-agents/brupop-trust", &|f| f.trust = Some(vec![])),
        ("CertificateUnreadable", Error, "configmap/brupop-agents/brupop-trust", &|f| {
            f.trust.as_mut().unwrap().push(None);
        }),
        ("AuthorityExpires", Warning, "configmap/brupop-agents/brupop-trust", &|f| {
            f.trust.as_mut().unwrap()[0].as_mut().unwrap().until = "2026-01-02T00:00:00Z".parse().unwrap();
        }),
        ("NoLeader", Error, "lease/brupop-system/brupop-controller", &|f| f.lease = Some(lease(600))),
        ("NoLeader", Error, "lease/brupop-system/brupop-controller", &|f| f.lease = Some(ControllerLease::default())),
        ("NodeClock", Warning, "node/a", &|f| {
            f.node_renewed.insert("a".to_owned(), "2026-01-01T00:11:00Z".parse().unwrap());
        }),
        ("NoOperatorResource", Error, OPERATOR, &|f| {
            let cluster = fleet_of(f);
            cluster.operator = None;
            cluster.shadows.get_mut("a").unwrap().status.controller.record = Some(Default::default());
        }),
        ("NoOperatorResource", Warning, OPERATOR, &|f| {
            fleet_of(f).operator = None;
        }),
        ("ExpressionFires", Warning, OPERATOR, &|f| report("Blocked", "True", "ExpressionFires", f)),
        ("ClusterUnwell", Warning, OPERATOR, &|f| report("Blocked", "True", "ClusterUnwell", f)),
        ("NoticesNotSent", Warning, OPERATOR, &|f| report("NoticesSent", "False", "Failed", f)),
        ("UnknownRequest", Warning, OPERATOR, &|f| report("Degraded", "True", "UnknownRequest", f)),
        ("OperatorDegraded", Error, OPERATOR, &|f| report("Degraded", "True", "CertificatesInvalid", f)),
        ("OperatorDegraded", Error, OPERATOR, &|f| report("Blocked", "True", "ExpressionFails", f)),
        ("OperatorDegraded", Error, "deployment/brupop-system/brupop-controller", &|f| {
            let cluster = fleet_of(f);
            (cluster.operator, cluster.own) = (None, Some(own(&[(names::APISERVER, true)])));
        }),
        ("OperatorDegraded", Error, "deployment/brupop-system/brupop-apiserver", &|f| {
            let cluster = fleet_of(f);
            (cluster.operator, cluster.own) = (None, Some(own(&[(names::CONTROLLER, true)])));
        }),
        ("ActionFails", Error, "node/a", &|f| block("Blocked", "ActionFails", f)),
        ("ExpressionFails", Error, "node/a", &|f| block("Blocked", "ExpressionFails", f)),
        ("PolicyRejected", Error, OPERATOR, &|f| {
            let spec =
                json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "Mars/Base"}]}});
            set_policy(f, &spec);
        }),
        ("Braked", Warning, OPERATOR, &|f| f.cluster = Some(braked("Unproven"))),
        ("StepFailed", Warning, OPERATOR, &|f| f.cluster = Some(step_used_up(true))),
        ("StepUnproven", Warning, OPERATOR, &|f| f.cluster = Some(step_used_up(false))),
        ("NodeGroupEmpty", Note, OPERATOR, &|f| {
            let misspelt = json!({"matchLabels": {"teir": "db"}});
            group(f, &json!([{"name": "db", "selector": misspelt}, {"name": "rest", "selector": {}}]));
        }),
        ("NodeGroupHidden", Note, OPERATOR, &|f| {
            let all = json!({"matchExpressions": [{"key": names::INTERFACE_LABEL, "operator": "Exists"}]});
            group(f, &json!([{"name": "all", "selector": all}, {"name": "rest", "selector": {}}]));
        }),
        ("NotUpdated", Warning, "node/a", &|f| relabel(f, json!({}))),
        ("NotUpdated", Warning, "node/a", &|f| {
            relabel(f, json!({}));
            set_policy(f, &json!({"labelNodes": true}));
        }),
        ("WrongLabel", Warning, "node/a", &|f| relabel(f, json!({names::INTERFACE_LABEL: "1.0.0"}))),
        ("NotBottlerocket", Warning, "node/a", &|f| {
            fleet_of(f).nodes.as_mut().unwrap().get_mut("a").unwrap().os_image = "Debian 13".to_owned();
        }),
        ("ObjectUnreadable", Error, "brs/brs-a", &|f| {
            let metadata = serde_json::from_value(json!({"name": "brs-a"})).unwrap();
            let error = InvalidObject { error: "9999-12-31T23:59:59Z is out of range".to_owned(), metadata };
            let cluster = fleet_of(f);
            cluster.add_unreadable_shadow(&error);
            assert!(cluster.not_read().iter().any(|sentence| sentence.contains("brs-a")));
        }),
        ("NoShadow", Warning, "node/a", &|f| fleet_of(f).shadows.clear()),
        ("NoAgentPod", Error, "node/a", &|f| fleet_of(f).agents = Some(vec![])),
        ("HostNotUsable", Warning, "node/a", &|f| block("HostReachable", "UnsupportedState", f)),
        ("HostBusy", Warning, "node/a", &|f| block("HostReachable", "HostBusy", f)),
        ("AwsHookMissing", Error, "deployment/brupop-system/brupop-aws", &|f| {
            await_aws(f);
            f.aws = Some(Hook::default());
        }),
        ("AwsHookNotReady", Error, "deployment/brupop-system/brupop-aws", &|f| {
            await_aws(f);
            f.aws = Some(Hook { ready: Some(0), ..Hook::default() });
        }),
        ("AwsNotTakenBack", Warning, "configmap/brupop-system/brupop-aws", &|f| {
            let entry = json!({"group": "g", "mode": "Standby", "node": "a", "since": "2026-01-01T00:00:00Z"});
            let record = BTreeMap::from([("i-0a".to_owned(), entry.to_string())]);
            f.aws = Some(Hook { ready: Some(1), record, ..Hook::default() });
        }),
        ("HookRightMissing", Warning, "rolebinding/shop/brupop-controller-jobs", &|f| {
            f.missing_for_jobs.push(Needed::Right("shop".to_owned()));
        }),
        ("HookTemplateMissing", Error, "podtemplate/shop/set", &|f| {
            f.missing_for_jobs.push(Needed::Template("shop".to_owned(), "set".to_owned()));
        }),
        ("GuardedPods", Note, "node/a", &|f| pod(&["web"], 2, f)),
        ("BudgetNeverAllows", Warning, "node/a", &|f| {
            pod(&["web"], 2, f);
            let operator = fleet_of(f).operator.as_mut().unwrap();
            operator.spec.drain = serde_json::from_value(json!({"guardedPods": "Wait"})).unwrap();
        }),
        ("LongGracePeriod", Note, "node/a", &|f| {
            pod(&[], 0, f);
            fleet_of(f).pods.get_mut("a").unwrap()[0].grace = Some(7 * 24 * 3600);
        }),
        ("MarkedPods", Note, "node/a", &|f| {
            pod(&[], 0, f);
            let cluster = fleet_of(f);
            cluster.pods.get_mut("a").unwrap()[0].marked = true;
            cluster.operator.as_mut().unwrap().spec.drain =
                serde_json::from_value(json!({"markedPods": "Wait"})).unwrap();
        }),
        ("BudgetUnhealthy", Note, "node/a", &|f| pod(&["web"], 1, f)),
        ("BudgetSyncFailed", Warning, "node/a", &|f| {
            pod(&["web"], 1, f);
            fleet_of(f).budgets[0].sync_error = Some("no scale".into());
        }),
        ("MultipleBudgets", Warning, "node/a", &|f| pod(&["web", "other"], 2, f)),
    ];
    for (reason, severity, object, broken) in cases {
        let mut facts = healthy();
        broken(&mut facts);
        let diagnosis = Diagnosis::of(&facts);
        let found = diagnosis.findings.iter().find(|finding| finding.reason == reason);
        let found = found.unwrap_or_else(|| panic!("{reason}: {}", diagnosis.page(None)));
        assert_eq!(found.severity, severity, "{found:?}");
        assert_eq!(found.objects.first().map_or("", String::as_str), object, "{found:?}");
        assert!(
            !found.message.is_empty() && (severity == Note || reason == "KubernetesTooOld" || !found.next.is_empty()),
            "{found:?}"
        );
        assert_eq!(diagnosis.errors > 0, severity == Error || diagnosis.findings.iter().any(|f| f.severity == Error));
    }
}

/// Replaces the tag of the images of all workloads, or of one.
fn retag(facts: &mut Facts, workload: Option<&str>, tag: &str) {
    for object in &mut facts.objects {
        let is_one = workload.is_none_or(|name| object.wanted["metadata"]["name"] == name);
        let containers = object.found.as_mut().and_then(|found| found.pointer_mut("/spec/template/spec/containers"));
        for container in containers.filter(|_| is_one).and_then(Value::as_array_mut).into_iter().flatten() {
            let image = container["image"].as_str().unwrap();
            container["image"] = format!("r.example:5000/b/{}{tag}", image.split(':').next().unwrap()).into();
        }
    }
}

/// Sets fields in the status of the controller's Deployment.
fn rollout_of_controller(facts: &mut Facts, fields: &Value) {
    let status = found(facts, "Deployment", names::CONTROLLER)["status"].as_object_mut().unwrap();
    status.extend(fields.as_object().unwrap().clone());
}

#[test]
fn upgrade_that_has_not_ended_is_found() {
    type Break<'a> = &'a dyn Fn(&mut Facts);
    let digest = format!("@sha256:{}", "0".repeat(64));
    let surge = json!({"replicas": 3, "updatedReplicas": 1, "unavailableReplicas": 1});
    let exceeded =
        json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "late"}]);
    let cases: [(&str, Option<&str>, Break<'_>); 16] = [
        ("new pods hang, and earlier ones stay Ready", Some("RolloutIncomplete"), &|f| {
            rollout_of_controller(f, &surge);
        }),
        ("a change that its controller has not seen", Some("RolloutIncomplete"), &|f| {
            found(f, "DaemonSet", names::AGENT)["metadata"]["generation"] = json!(2);
        }),
        ("Kubernetes has given up", Some("RolloutFailed"), &|f| {
            rollout_of_controller(f, &surge);
            rollout_of_controller(f, &json!({"conditions": exceeded}));
        }),
        ("agents of the earlier version on some nodes", Some("RolloutIncomplete"), &|f| {
            found(f, "DaemonSet", names::AGENT)["status"]["updatedNumberScheduled"] = json!(0);
        }),
        ("all workloads of an earlier version", Some("VersionDiffers"), &|f| retag(f, None, ":v0.0.9")),
        ("one of them", Some("MixedVersions"), &|f| retag(f, Some(names::AGENT), ":v0.0.9")),
        ("the hook for AWS alone", Some("MixedVersions"), &|f| {
            let none = f.optional_objects().unwrap();
            assert!(none.is_empty(), "{none:?}");
            f.aws = Some(Hook { ready: Some(1), ..Hook::default() });
            f.objects.extend(f.optional_objects().unwrap().into_iter().map(installed));
            retag(f, Some(names::AWS), ":v0.0.9");
        }),
        ("no tag, which is the latest, on one", Some("MixedVersions"), &|f| retag(f, Some(names::AGENT), "")),
        ("tags of one's own", None, &|f| retag(f, None, ":stable")),
        ("images of one architecture", None, &|f| {
            retag(f, None, &format!(":v{}-arm64", env!("CARGO_PKG_VERSION")));
        }),
        ("images of two architectures", None, &|f| {
            retag(f, None, &format!(":v{}-arm64", env!("CARGO_PKG_VERSION")));
            retag(f, Some(names::AGENT), &format!(":v{}-amd64", env!("CARGO_PKG_VERSION")));
        }),
        ("dates", None, &|f| retag(f, None, ":v2026.11.29")),
        ("digests", None, &|f| retag(f, None, &digest)),
        ("an earlier tag beside a digest", Some("VersionDiffers"), &|f| {
            retag(f, None, ":v0.0.9");
            retag(f, Some(names::CONTROLLER), &digest);
        }),
        ("a digest beside tags", None, &|f| retag(f, Some(names::CONTROLLER), &digest)),
        ("an earlier tag with a digest", Some("VersionDiffers"), &|f| retag(f, None, &format!(":v0.0.9{digest}"))),
    ];
    for (sentence, expected, broken) in cases {
        let mut facts = healthy();
        broken(&mut facts);
        let diagnosis = Diagnosis::of(&facts);
        let important = diagnosis.findings.iter().filter(|finding| finding.severity != Severity::Note);
        let reasons: Vec<_> = important.map(|finding| finding.reason).collect();
        assert_eq!(reasons, expected.into_iter().collect::<Vec<_>>(), "{sentence}: {}", diagnosis.page(None));
        assert_eq!(diagnosis.errors > 0, expected == Some("RolloutFailed"), "{sentence}");
    }
}

#[tokio::test]
async fn answer_of_an_api_server_that_refuses_to_create_pods_is_in_the_finding_about_them() {
    let denial = "pods \"a\" is forbidden: exceeded quota: b";
    let status = json!({"replicas": 0, "updatedReplicas": 0, "readyReplicas": 0, "availableReplicas": 0,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": denial}]});
    let mut facts = healthy();
    rollout_of_controller(&mut facts, &status);
    await_aws(&mut facts);
    let server = Server::default();
    let deployment =
        json!({"metadata": {"name": names::AWS}, "spec": {"selector": {}, "template": {}}, "status": status});
    server.add(&format!("/apis/apps/v1/namespaces/brupop-system/deployments/{}", names::AWS), deployment);
    facts.aws = Some(aws::read(&server.client(), names::SYSTEM_NAMESPACE).await.unwrap());
    let findings = Diagnosis::of(&facts).findings;
    for reason in ["NotReady", "AwsHookNotReady"] {
        let found = findings.iter().find(|finding| finding.reason == reason).unwrap();
        assert!(found.message.contains(&format!("pods updated: {denial}")), "{found:?}");
    }
    // Where a quota has room for one of them.
    let one = json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1});
    rollout_of_controller(&mut facts, &one);
    let findings = Diagnosis::of(&facts).findings;
    let found = findings.iter().find(|finding| finding.reason == "NotReady").unwrap();
    assert_eq!(found.message, format!("1 of 2 pods are Ready: 1 of 2 pods updated: {denial}"));
}

#[test]
fn definition_of_another_version_is_an_error_where_the_operator_is_of_the_version_of_the_plugin() {
    let digest = format!("@sha256:{}", "0".repeat(64));
    for (sentence, tag, expected) in [
        ("it is", format!(":v{}", env!("CARGO_PKG_VERSION")), Severity::Error),
        ("it has a tag of one's own", ":stable".to_owned(), Severity::Error),
        ("it is of an earlier one", ":v0.0.9".to_owned(), Severity::Warning),
        ("its version is not known", digest, Severity::Warning),
    ] {
        let mut facts = healthy();
        let schema = &mut shadows(&mut facts)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["properties"].as_object_mut().unwrap().remove("permit");
        retag(&mut facts, None, &tag);
        let findings = Diagnosis::of(&facts).findings;
        let found = findings.iter().find(|finding| finding.reason == "SchemaDiffers").unwrap();
        assert_eq!(found.severity, expected, "{sentence}");
    }
}

/// Each part with an image of an earlier version, a definition with an earlier schema, and no operator's resource.
fn outdated() -> Facts {
    let mut facts = healthy();
    retag(&mut facts, None, ":v0.0.9");
    shadows(&mut facts)["spec"]["versions"][0]["served"] = json!(false);
    fleet_of(&mut facts).operator = None;
    facts
}

#[test]
fn next_steps_for_objects_of_a_release_are_those_of_helm() {
    let helm =
        |name: &str| json!({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": "brupop-system"});
    let flux = json!({"helm.toolkit.fluxcd.io/name": "x", "helm.toolkit.fluxcd.io/namespace": "flux-system"});
    let none = || json!({});
    let (crds, all) = ("helm upgrade brupop-crds CHART -n brupop-system", "helm upgrade brupop CHART -n brupop-system");
    let (apply, again) = ("kubectl apply --server-side -f crds.yaml  # of", "# apply its manifests again");
    let edit = "kubectl edit helmrelease x -n flux-system";
    for (sentence, of_definitions, rest, labels, expected) in [
        ("two releases", helm("brupop-crds"), helm("brupop"), none(), [crds, all]),
        ("definitions of kubectl", none(), helm("brupop"), none(), [apply, all]),
        ("the rest of kubectl", helm("brupop-crds"), none(), none(), [crds, again]),
        ("of Flux", helm("brupop"), helm("brupop"), flux, [edit; 2]),
    ] {
        let mut facts = outdated();
        for object in &mut facts.objects {
            let (kind, name) = (&object.wanted["kind"], &object.wanted["metadata"]["name"]);
            let meta = &mut object.found.as_mut().unwrap()["metadata"];
            let of = if kind == "CustomResourceDefinition" { &of_definitions } else { &rest };
            // As a takeover leaves it.
            meta["annotations"] = if name == names::SHADOW_DEFINITION { helm("earlier") } else { of.clone() };
            meta["labels"].as_object_mut().unwrap().extend(labels.as_object().unwrap().clone());
        }
        let findings = Diagnosis::of(&facts).findings;
        let [definitions, others] = expected;
        let policy = if rest == json!({}) {
            "kubectl apply --server-side --field-manager=policy -f POLICY.yaml"
        } else {
            others
        };
        for (reason, step) in
            [("VersionMissing", definitions), ("VersionDiffers", others), ("NoOperatorResource", policy)]
        {
            let found = findings.iter().find(|finding| finding.reason == reason).unwrap();
            assert!(found.next[0].starts_with(step), "{sentence}: {found:?}");
        }
    }
}

/// Gives each workload an image, in which `NAME` is that of the workload.
fn run(facts: &mut Facts, image: &str) {
    for object in &mut facts.objects {
        let name = object.wanted["metadata"]["name"].as_str().unwrap();
        let container = object.found.as_mut().and_then(|found| found.pointer_mut("/spec/template/spec/containers/0"));
        if let Some(container) = container {
            container["image"] = image.replace("NAME", name).into();
        }
    }
}

/// Returns the first step of the first finding with a reason.
fn step(facts: &Facts, reason: &str) -> String {
    let diagnosis = Diagnosis::of(facts);
    let found = diagnosis.findings.iter().find(|finding| finding.reason == reason);
    found.unwrap_or_else(|| panic!("{reason}: {}", diagnosis.page(None))).next[0].clone()
}

#[test]
fn missing_rights_are_installed_by_the_plugin_only_with_the_images_that_run() {
    let own = deploy::Options::default().tag;
    let again = "# apply its manifests again, with your images and options and without the policy: docs/install.md";
    let leaves = "kubectl brupop install --registry r.example/b  # leaves";
    let of_one = format!("kubectl brupop install --tag {own}-arm64  # leaves");
    let changes = "kubectl brupop install --registry r.example/b  # changes the operator to the version of this plugin";
    let changes_too = "kubectl brupop install  # changes the operator";
    let later = "kubectl brupop doctor  # with the plugin of version v9.0.0, that of the operator";
    let newest = || "NAME:v9.0.0".to_owned();
    for (sentence, image, of_controller, expected) in [
        ("this version", format!("r.example/b/NAME:{own}"), None, leaves),
        ("no registry", format!("NAME:{own}"), None, "kubectl brupop install  # leaves the policy as it is"),
        ("one architecture", format!("NAME:{own}-arm64"), None, of_one.as_str()),
        ("an earlier version", "r.example/b/NAME:v0.0.9".to_owned(), None, changes),
        ("an unfinished update", "NAME:v0.0.9".to_owned(), Some(format!("NAME:{own}")), changes_too),
        ("an earlier version for one architecture", "NAME:v0.0.9-arm64".to_owned(), None, again),
        ("several architectures", format!("NAME:{own}-arm64"), Some(format!("NAME:{own}-amd64")), again),
        ("several registries", format!("NAME:{own}"), Some(format!("r.example/NAME:{own}")), again),
        ("no tag", "NAME".to_owned(), None, again),
        ("a tag of the user's own", "NAME:stable".to_owned(), None, again),
        ("a digest", "NAME@sha256:0".to_owned(), None, again),
        ("a tag and a digest, as of a release", format!("NAME:{own}@sha256:0"), None, again),
        ("names of the user's own", format!("my-NAME:{own}"), None, again),
        ("names that begin as those of this project", format!("NAME-hardened:{own}"), None, again),
        ("a later version", newest(), None, later),
        ("one part of a later version", newest(), Some(format!("NAME:{own}")), "kubectl brupop doctor  # with"),
        (
            "one part of a later version, beside digests",
            "NAME@sha256:0".to_owned(),
            Some(newest() + "@sha256:0"),
            "kubectl brupop doctor  # with",
        ),
    ] {
        let mut facts = healthy();
        run(&mut facts, &image);
        if let Some(image) = of_controller {
            let pod = &mut found(&mut facts, "Deployment", names::CONTROLLER)["spec"]["template"]["spec"];
            pod["containers"][0]["image"] = image.replace("NAME", names::CONTROLLER).into();
        }
        found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
        shadows(&mut facts)["spec"]["versions"][0]["served"] = json!(false);
        fleet_of(&mut facts).operator = None;
        let rights = step(&facts, "RightsMissing");
        assert!(rights.starts_with(expected), "{sentence}: {rights}");
        // Definitions have no images, and a policy is the user's.
        let is_later = rights.starts_with("kubectl brupop doctor");
        let definitions = if is_later { rights } else { "kubectl apply --server-side -f crds.yaml  # of".to_owned() };
        assert!(step(&facts, "VersionMissing").starts_with(&definitions), "{sentence}");
        assert!(
            step(&facts, "NoOperatorResource")
                .starts_with("kubectl apply --server-side --field-manager=policy -f POLICY.yaml"),
            "{sentence}"
        );
    }
}

#[test]
fn missing_rights_are_not_installed_by_the_plugin_where_it_would_set_options_back() {
    let enforce = "/metadata/labels/pod-security.kubernetes.io~1enforce";
    let pool = json!({"kubernetes.io/os": "linux", "pool": "system"});
    for (kind, name, path, value) in [
        ("Deployment", names::CONTROLLER, "/spec/replicas", json!(5)),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/tolerations", json!([{"operator": "Exists"}])),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/nodeSelector", pool),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/priorityClassName", json!("own")),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/containers/0/imagePullPolicy", json!("Always")),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/containers/0/args/0", json!("--cluster-domain=example")),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/containers/0/resources/limits/memory", json!("4Gi")),
        ("NetworkPolicy", names::CONTROLLER, "/spec/egress/0/ports/1/port", json!(8443)),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/containers/0/livenessProbe/failureThreshold", json!(9)),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/terminationGracePeriodSeconds", json!(60)),
        ("Deployment", names::CONTROLLER, "/spec/template/spec/securityContext/runAsUser", json!(1000)),
        ("DaemonSet", names::AGENT, "/spec/updateStrategy/rollingUpdate/maxUnavailable", json!("50%")),
        ("PodDisruptionBudget", names::APISERVER, "/spec/maxUnavailable", json!(0)),
        ("PodDisruptionBudget", names::APISERVER, "/spec/unhealthyPodEvictionPolicy", json!("IfHealthyBudget")),
        ("ValidatingAdmissionPolicy", names::APISERVER, "/spec/validations/0/expression", json!("true")),
        ("Namespace", names::AGENT_NAMESPACE, enforce, json!("baseline")),
    ] {
        let mut facts = healthy();
        found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
        assert!(step(&facts, "RightsMissing").starts_with("kubectl brupop install"), "{path}");
        *found(&mut facts, kind, name).pointer_mut(path).unwrap() = value;
        let step = step(&facts, "RightsMissing");
        assert!(step.starts_with("# apply its manifests again, with your images and options"), "{path}: {step}");
    }
}

#[test]
fn missing_rights_are_installed_by_the_plugin_where_pods_have_defaults_and_a_container_of_another_field_manager() {
    let mut facts = healthy();
    found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
    let pod = &mut found(&mut facts, "Deployment", names::CONTROLLER)["spec"]["template"]["spec"];
    pod["restartPolicy"] = json!("Always");
    pod["containers"][0]["livenessProbe"]["successThreshold"] = json!(1);
    pod["containers"].as_array_mut().unwrap().insert(0, json!({"name": "proxy", "image": "proxy:v99.0.0"}));
    let step = step(&facts, "RightsMissing");
    assert!(step.starts_with("kubectl brupop install"), "{step}");
}

/// As the API server records an overlay of kustomize that was applied on its side.
#[test]
fn missing_rights_are_not_installed_by_the_plugin_where_it_would_remove_what_an_overlay_adds() {
    let of_pod = |pod: Value| json!({"f:spec": {"f:template": {"f:spec": pod}}});
    let of_container = |fields: Value| of_pod(json!({"f:containers": {"k:{\"name\":\"controller\"}": fields}}));
    let port = json!({".": {}, "f:containerPort": {}, "f:name": {}});
    let own = json!({".": {}, "f:args": {}, "f:ports": {"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": port}});
    let variable = json!({".": {}, "f:env": {"k:{\"name\":\"HTTPS_PROXY\"}": {".": {}, "f:value": {}}}});
    let secrets = json!({"f:imagePullSecrets": {}});
    let label = json!({"f:metadata": {"f:labels": {"f:mesh.example/inject": {}}}});
    let zones =
        json!({"k:{\"topologyKey\":\"zone\",\"whenUnsatisfiable\":\"DoNotSchedule\"}": {".": {}, "f:maxSkew": {}}});
    let zones = of_pod(json!({"f:topologySpreadConstraints": zones}));
    // A map that is owned as a whole.
    let selector = of_pod(json!({"f:nodeSelector": {}}));
    let binding = "ValidatingAdmissionPolicyBinding";
    let actions = |own: &str| json!({"f:spec": {"f:validationActions": {"v:\"Deny\"": {}, own: {}}}});
    for (sentence, kind, name, [manager, operation], fields, installs) in [
        ("Secrets", "ServiceAccount", names::CONTROLLER, ["kubectl", "Apply"], secrets.clone(), false),
        ("of a patch", "ServiceAccount", names::CONTROLLER, ["kubectl-patch", "Update"], secrets, true),
        ("a label", "Namespace", names::SYSTEM_NAMESPACE, ["kubectl", "Apply"], label, false),
        ("a spread", "Deployment", names::CONTROLLER, ["kubectl", "Apply"], zones, false),
        ("a selector as it is", "Deployment", names::CONTROLLER, ["kubectl", "Apply"], selector, true),
        ("an action", binding, names::APISERVER, ["kubectl", "Apply"], actions("v:\"Audit\""), false),
        ("its action alone", binding, names::APISERVER, ["kubectl", "Apply"], actions("v:\"Deny\""), true),
        ("a variable", "Deployment", names::CONTROLLER, ["kubectl", "Apply"], of_container(variable), false),
        ("nothing", "Deployment", names::CONTROLLER, ["kubectl", "Apply"], of_container(own), true),
        (
            "a policy, which stays",
            "BottlerocketUpdateOperator",
            names::OPERATOR_NAME,
            ["kubectl", "Apply"],
            json!({"f:spec": {"f:nodeGroups": {}}}),
            true,
        ),
    ] {
        let mut facts = healthy();
        found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
        found(&mut facts, kind, name)["metadata"]["managedFields"] = json!([{"manager": manager, "operation": operation,
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}]);
        let step = step(&facts, "RightsMissing");
        assert_eq!(step.starts_with("kubectl brupop install"), installs, "{sentence}: {step}");
    }
}

/// A selector is owned as a whole map, which `managedFields` does not show the entries of.
#[test]
fn missing_rights_are_not_installed_by_the_plugin_where_it_would_remove_what_an_overlay_adds_to_a_selector() {
    let mut facts = healthy();
    found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
    let service = found(&mut facts, "Service", names::APISERVER);
    let fields = json!({"f:spec": {"f:selector": {}}});
    service["metadata"]["managedFields"] = json!([{"manager": "kubectl", "operation": "Apply", "fieldsV1": fields}]);
    service["spec"]["selector"]["track"] = json!("stable");
    let step = step(&facts, "RightsMissing");
    assert!(step.starts_with("# apply its manifests again"), "{step}");
}

/// Rules and subjects are owned as whole lists, which `managedFields` does not show the items of. Those of an earlier version go.
#[test]
fn missing_rights_are_not_installed_by_the_plugin_where_it_would_remove_rules_or_subjects_that_an_overlay_adds() {
    let rules = json!([{"apiGroups": ["mesh.example"], "resources": ["routes"], "verbs": ["get"]}]);
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "ci", "name": "ci"}]);
    let again = "# apply its manifests again, with your images and options";
    let own = format!("NAME:{}", deploy::Options::default().tag);
    for (sentence, kind, list, items, image, expected) in [
        ("a rule", "ClusterRole", "rules", &rules, own.as_str(), again),
        ("a subject", "ClusterRoleBinding", "subjects", &subjects, own.as_str(), again),
        ("a rule of an earlier version", "ClusterRole", "rules", &rules, "NAME:v0.0.9", "and removes rules"),
    ] {
        let mut facts = healthy();
        run(&mut facts, image);
        found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
        assert!(step(&facts, "RightsMissing").starts_with("kubectl brupop install"), "{sentence}: without it");
        let there = found(&mut facts, kind, names::CONTROLLER)[list].as_array_mut().unwrap();
        there.extend(items.as_array().unwrap().clone());
        let step = step(&facts, "RightsMissing");
        assert!(step.contains(expected), "{sentence}: {step}");
    }
}

#[test]
fn missing_rights_are_installed_by_the_tool_that_keeps_the_objects() {
    let argo = json!({"annotations": {"argocd.argoproj.io/tracking-id": "app:apps/Deployment:n/x"}});
    let flux =
        json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "x", "kustomize.toolkit.fluxcd.io/namespace": "gitops"}});
    for (sentence, marks, of_definitions, expected) in [
        ("Argo CD", &argo, true, "argocd app sync app  #"),
        ("a Kustomization", &flux, true, "flux reconcile kustomization x -n gitops --with-source  #"),
        ("Argo CD, with definitions of kubectl", &argo, false, "argocd app sync app  #"),
    ] {
        let mut facts = healthy();
        for object in &mut facts.objects {
            let is_definition = object.wanted["kind"] == "CustomResourceDefinition";
            let found = object.found.as_mut().unwrap();
            for (part, values) in marks.as_object().unwrap().iter().filter(|_| of_definitions || !is_definition) {
                for (key, value) in values.as_object().unwrap() {
                    found["metadata"][part][key] = value.clone();
                }
            }
        }
        found(&mut facts, "ClusterRole", names::CONTROLLER)["rules"] = json!([]);
        shadows(&mut facts)["spec"]["versions"][0]["served"] = json!(false);
        fleet_of(&mut facts).operator = None;
        for reason in ["RightsMissing", "NoOperatorResource"] {
            assert!(step(&facts, reason).starts_with(expected), "{sentence}: {}", step(&facts, reason));
        }
        let definitions = if of_definitions { expected } else { "kubectl apply --server-side -f crds.yaml  # of" };
        let found = step(&facts, "VersionMissing");
        assert!(found.starts_with(definitions), "{sentence}: {found}");
    }
}

#[test]
fn optional_objects_are_installed_by_their_own_manifests_or_values() {
    type Break<'a> = &'a dyn Fn(&mut Facts);
    let release = json!({"meta.helm.sh/release-name": "brupop", "meta.helm.sh/release-namespace": "ops"});
    let with_hook = |facts: &mut Facts| {
        facts.aws = Some(Hook { ready: Some(1), ..Hook::default() });
        facts.objects.extend(facts.optional_objects().unwrap().into_iter().map(installed));
    };
    let (of_aws, of_force) = (("aws.yaml", "aws.enabled"), ("force.yaml", "rbac.forceDrain"));
    let cases: [(&str, &str, (&str, &str), Break<'_>); 4] = [
        ("a right of the hook for AWS", "RightsMissing", of_aws, &|facts| {
            with_hook(facts);
            found(facts, "ClusterRole", names::AWS)["rules"] = json!([]);
        }),
        ("the version of that hook alone", "MixedVersions", of_aws, &|facts| {
            with_hook(facts);
            retag(facts, Some(names::AWS), ":v0.0.9");
        }),
        ("that hook", "AwsHookMissing", of_aws, &|facts| {
            await_aws(facts);
            facts.aws = Some(Hook::default());
        }),
        ("a rule of the right to delete pods", "RightsMissing", of_force, &|facts| {
            facts.objects.extend(deploy::force().into_iter().map(installed));
            found(facts, "ClusterRole", "brupop-controller-force")["rules"] = json!([]);
        }),
    ];
    for (sentence, reason, (file, value), broken) in cases {
        let mut facts = healthy();
        broken(&mut facts);
        let with_kubectl = step(&facts, reason);
        assert!(
            with_kubectl.starts_with(&format!("kubectl apply --server-side -f {file}  #")),
            "{sentence}: {with_kubectl}"
        );
        found(&mut facts, "ClusterRole", names::CONTROLLER)["metadata"]["annotations"] = release.clone();
        let with_helm = step(&facts, reason);
        let upgrade = "helm upgrade brupop CHART -n ops --reset-then-reuse-values";
        let expected = format!("{upgrade}  # with the value {value}: ");
        assert!(with_helm.starts_with(&expected), "{sentence}: {with_helm}");
    }
}

#[test]
fn namespace_of_a_helm_release_is_no_other_installation() {
    let mut facts = healthy();
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    found(&mut facts, "Namespace", names::SYSTEM_NAMESPACE)["metadata"]["labels"] = labels;
    let diagnosis = Diagnosis::of(&facts);
    assert_eq!((diagnosis.errors, diagnosis.warnings), (0, 0), "{}", diagnosis.page(None));
}

#[test]
fn request_that_is_not_understood_is_one_warning() {
    let mut facts = healthy();
    let condition = condition("Degraded", "UnknownRequest", "m");
    let mut operator = operator(&json!({}), &json!({"observedGeneration": 1, "conditions": [condition]}));
    operator["metadata"]["annotations"] = json!({"brupop.bottlerocket.aws/resum": "1"});
    fleet_of(&mut facts).add_operator(&serde_json::from_value(operator).unwrap());
    let diagnosis = Diagnosis::of(&facts);
    let found: Vec<_> = diagnosis.findings.iter().filter(|finding| finding.severity != Severity::Note).collect();
    assert_eq!(found.iter().map(|finding| finding.reason).collect::<Vec<_>>(), ["UnknownRequest"], "{found:?}");
    assert_eq!(diagnosis.errors, 0);
}

#[test]
fn mistake_of_many_nodes_is_one_finding() {
    let mut facts = healthy();
    let cluster = fleet_of(&mut facts);
    for number in 0..100 {
        let name = format!("n{number:02}");
        let metadata = serde_json::from_value(json!({"name": format!("brs-{name}")})).unwrap();
        cluster.add_node(&serde_json::from_value(node(&name, &json!({names::APPROVE_STEP_ANNOTATION: "1"}))).unwrap());
        cluster.add_unreadable_shadow(&InvalidObject { error: "no spec".to_owned(), metadata });
    }
    let diagnosis = Diagnosis::of(&facts);
    for (reason, first) in [("UnknownRequest", "node/n00"), ("ObjectUnreadable", "brs/brs-n00")] {
        let found: Vec<_> = diagnosis.findings.iter().filter(|finding| finding.reason == reason).collect();
        let [found] = found.as_slice() else { panic!("{reason}: {found:?}") };
        assert_eq!((found.objects.len(), found.objects[0].as_str()), (100, first), "{reason}");
    }
}

#[test]
fn agent_of_a_node_is_missed_once_it_has_had_time_to_start() {
    let before = |seconds: i64| now() - jiff::SignedDuration::from_secs(seconds);
    let agent = |since: i64| {
        let pod =
            AgentPod { name: "p".into(), node: "a".into(), serves: false, since: Some(before(since)), trouble: None };
        vec![pod]
    };
    // It has been Ready for an hour, and was deleted at that time, with 30 s to end.
    let deleted = |at: i64| {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": before(3600)});
        let pod = json!({
            "metadata": {"name": "p", "deletionTimestamp": before(at - 30), "deletionGracePeriodSeconds": 30},
            "spec": {"nodeName": "a", "containers": []}, "status": {"conditions": [ready]},
        });
        vec![AgentPod::of(&serde_json::from_value(pod).unwrap())]
    };
    for (sentence, ready, agents, expected) in [
        ("the node is new", 29, vec![], None),
        ("it is Ready for long", 30, vec![], Some("NoAgentPod")),
        ("the pod has just been replaced", 3600, agent(29), None),
        ("the pod is being replaced", 3600, deleted(29), None),
        ("the pod does not end", 3600, deleted(30), Some("AgentNotReady")),
        ("the pod does not start", 3600, agent(30), Some("AgentNotReady")),
        ("the pod waits for its node", 10, agent(60), None),
    ] {
        let mut facts = healthy();
        let cluster = fleet_of(&mut facts);
        cluster.ready_since.insert("a".to_owned(), before(ready));
        cluster.agents = Some(agents);
        let diagnosis = Diagnosis::of(&facts);
        let error = diagnosis.findings.iter().find(|finding| finding.severity == Severity::Error);
        assert_eq!(error.map(|finding| finding.reason), expected, "{sentence}");
    }
}

#[test]
fn node_groups_with_nodes_and_groups_before_any_node_is_labelled_are_no_findings() {
    let in_group =
        json!([{"name": "rest", "selector": {"matchLabels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION}}}]);
    let empty = json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}}]);
    for (sentence, groups, labels) in [
        ("the node is in the group", in_group, json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION})),
        ("no node is labelled", empty, json!({})),
    ] {
        let mut facts = healthy();
        relabel(&mut facts, labels);
        group(&mut facts, &groups);
        let found = Diagnosis::of(&facts).findings;
        assert!(!found.iter().any(|finding| finding.reason.starts_with("NodeGroup")), "{sentence}: {found:?}");
    }
}

#[test]
fn command_that_lets_a_stopped_rollout_go_on_is_shown() {
    for (cluster, reason, command) in [
        (braked("Unproven"), "Braked", "kubectl brupop resume --failures 1.20.5"),
        (step_used_up(true), "StepFailed", "kubectl brupop resume --failures 1.20.5"),
        (step_used_up(false), "StepUnproven", "kubectl brupop approve 1 --rollout 3 --unproven"),
    ] {
        let diagnosis = Diagnosis::of(&Facts { cluster: Some(cluster), ..healthy() });
        let found = diagnosis.findings.iter().find(|finding| finding.reason == reason).unwrap();
        assert_eq!(found.next, [command], "{found:?}");
    }
}

#[test]
fn findings_are_about_the_namespace_of_the_operator() {
    let (stale, trust) = (Some(lease(600)), Some(vec![]));
    let facts = Facts { namespace: "ops".to_owned(), endpoints: Some(0), trust, lease: stale, ..healthy() };
    let diagnosis = Diagnosis::of(&facts);
    for reason in ["NoLeader", "NoAuthority", "NoEndpoints"] {
        let found = diagnosis.findings.iter().find(|finding| finding.reason == reason).unwrap();
        assert!(found.next.iter().all(|command| command.contains(" -n ops ")), "{found:?}");
        assert!(!found.next.iter().any(|command| command.contains(" deployment/")), "of one replica: {found:?}");
    }
    let found = diagnosis.findings.iter().find(|finding| finding.reason == "NoLeader").unwrap();
    assert_eq!(found.objects, ["lease/ops/brupop-controller"]);
}

#[test]
fn ready_pods_of_which_none_leads_are_one_error() {
    for (sentence, found_lease) in
        [("none renews the Lease", lease(600)), ("there is none", ControllerLease::default())]
    {
        let mut facts = Facts { lease: Some(found_lease.clone()), ..healthy() };
        let cluster = fleet_of(&mut facts);
        cluster.own = Some(own(&[(names::CONTROLLER, true), (names::APISERVER, true)]));
        cluster.lease = Some(found_lease);
        let diagnosis = Diagnosis::of(&facts);
        let errors = diagnosis.findings.iter().filter(|finding| finding.severity == Severity::Error);
        assert_eq!(errors.map(|finding| finding.reason).collect::<Vec<_>>(), ["NoLeader"], "{sentence}");
    }
}

#[test]
fn one_clock_that_differs_from_all_others_is_that_of_this_computer() {
    let mut facts = healthy();
    for name in ["b", "c"] {
        fleet_of(&mut facts).add_node(&serde_json::from_value(node(name, &json!({}))).unwrap());
    }
    facts.node_renewed = ["a", "b", "c"].map(|name| (name.to_owned(), "2026-01-01T00:12:00Z".parse().unwrap())).into();
    let diagnosis = Diagnosis::of(&facts);
    let found = diagnosis.findings.iter().find(|finding| finding.reason == "LocalClock").unwrap();
    assert_eq!(found.message, "the clock of this computer is behind that of 3 nodes");
    assert_eq!(found.next, ["date -u  # compare it with the time on another computer"]);
    assert!(!diagnosis.findings.iter().any(|finding| finding.reason == "NodeClock"));
}

#[test]
fn cluster_without_the_operator_gets_one_finding() {
    let mut facts = healthy();
    facts.objects.iter_mut().for_each(|object| object.found = None);
    (facts.cluster, facts.trust, facts.endpoints, facts.lease) = (None, None, None, None);
    let reasons: Vec<_> = Diagnosis::of(&facts).findings.iter().map(|finding| finding.reason).collect();
    assert_eq!(reasons, ["NotInstalled"]);
}

#[test]
fn namespace_without_an_operator_gets_one_finding_that_names_those_with_one() {
    for (others, message, next) in [
        (Some(vec!["ops", "brupop-system"]), "one in ops, brupop-system", Some("kubectl brupop doctor -n ops")),
        (Some(vec![]), "nor in any other", Some("kubectl brupop preflight -n brupop-system")),
        (None, "which other namespaces have one could not be read", None),
    ] {
        let others = others.map(|names| names.into_iter().map(str::to_owned).collect());
        let facts = Facts { elsewhere: Some(("nowhere".to_owned(), others)), ..Facts::default() };
        let diagnosis = Diagnosis::of(&facts);
        let [found] = diagnosis.findings.as_slice() else { panic!("{:?}", diagnosis.findings) };
        assert_eq!((found.reason, found.severity), ("NoOperator", Severity::Error));
        assert!(found.message.contains(message), "{found:?}");
        assert_eq!(found.next.first().map(String::as_str), next);
    }
}

fn list(items: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

/// An API server that has the definition of the shadows, and nothing else of an installation.
fn definition_alone() -> Server {
    let server = Server::default();
    server.add("/version", json!({"major": "1", "minor": "40", "gitVersion": "v1.40.0"}));
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": names::SHADOW_DEFINITION}});
    server.add(
        &format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", names::SHADOW_DEFINITION),
        definition,
    );
    for path in [
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/namespaces/brupop-system/pods",
        "/api/v1/namespaces/brupop-agents/pods",
        "/apis/policy/v1/poddisruptionbudgets",
        "/apis/brupop.bottlerocket.aws/v3/namespaces/brupop-system/bottlerocketshadows",
        "/apis/discovery.k8s.io/v1/namespaces/brupop-system/endpointslices",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    ] {
        server.add(path, list(&json!([])));
    }
    server
}

const OPERATORS: &str = "/apis/brupop.bottlerocket.aws/v1/bottlerocketupdateoperators";

#[tokio::test]
async fn installation_is_compared_where_no_other_namespace_is_known_to_have_an_operator() {
    let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
        "message": "", "code": 403});
    let right = "you need the right to list bottlerocketupdateoperators in all namespaces";
    let mut slow = refused.clone();
    slow["code"] = json!(504);
    let late = "cannot list bottlerocketupdateoperators in all namespaces: the API server answers 504: ";
    for (sentence, answer, not_read) in [
        ("none has one", Some(list(&json!([]))), None),
        ("their definition does not exist", None, None),
        ("they may not be listed", Some(refused), Some(right)),
        ("their list has no answer", Some(slow), Some(late)),
    ] {
        let server = definition_alone();
        answer.into_iter().for_each(|answer| server.add(OPERATORS, answer));
        let facts = facts::read(&server.client(), names::SYSTEM_NAMESPACE).await.unwrap();
        assert!(facts.elsewhere.is_none() && !facts.objects.is_empty(), "{sentence}: {:?}", facts.elsewhere);
        assert_eq!(facts.not_read.first().map(String::as_str), not_read, "{sentence}");
    }
}

#[tokio::test]
async fn objects_without_an_answer_are_named_and_more_than_three_end_the_check() {
    for (without, ends) in [(3, false), (4, true)] {
        let server = definition_alone();
        let objects = deploy::objects(&deploy::Options::default()).unwrap();
        for object in objects.iter().filter(|object| object["kind"] == "ClusterRole").take(without) {
            let name = object["metadata"]["name"].as_str().unwrap();
            let failed = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500});
            server.add(&format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"), failed);
        }
        match facts::read(&server.client(), names::SYSTEM_NAMESPACE).await {
            Ok(facts) => {
                assert!(!ends, "{:?}", facts.not_read);
                assert_eq!(
                    facts.not_read,
                    ["cannot get clusterroles: the API server answers 500: "],
                    "once for all of them"
                );
            }
            Err(error) => assert!(ends, "{error:#}"),
        }
    }
}

#[tokio::test]
async fn operator_in_another_namespace_is_named_where_the_default_one_has_none() {
    let server = definition_alone();
    let mut operator = operator(&json!({}), &json!({}));
    operator["metadata"]["namespace"] = json!("ops");
    server.add(OPERATORS, list(&json!([operator])));
    let facts = facts::read(&server.client(), names::SYSTEM_NAMESPACE).await.unwrap();
    let findings = Diagnosis::of(&facts).findings;
    let [found] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((found.reason, found.next.as_slice()), ("NoOperator", &["kubectl brupop doctor -n ops".to_owned()][..]));
}

#[tokio::test]
async fn definitions_are_compared_where_the_operator_is_in_another_namespace() {
    let server = definition_alone();
    let policy = operator(&json!({}), &json!({"observedGeneration": 1}));
    server.add("/apis/brupop.bottlerocket.aws/v1/namespaces/ops/bottlerocketupdateoperators/default", policy);
    for path in [
        "/api/v1/namespaces/ops/pods",
        "/apis/brupop.bottlerocket.aws/v3/namespaces/ops/bottlerocketshadows",
        "/apis/discovery.k8s.io/v1/namespaces/ops/endpointslices",
    ] {
        server.add(path, list(&json!([])));
    }
    let facts = facts::read(&server.client(), "ops").await.unwrap();
    assert!(facts.elsewhere.is_none() && facts.cluster.is_some(), "{:?}", facts.elsewhere);
    let kinds: BTreeSet<&str> = facts.objects.iter().filter_map(|object| object.wanted["kind"].as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["CustomResourceDefinition"]));
    let findings = Diagnosis::of(&facts).findings;
    let missing = findings.iter().find(|finding| finding.reason == "Missing").unwrap();
    assert_eq!(missing.severity, Severity::Error);
    assert!(missing.next[0].starts_with("kubectl apply --server-side -f crds.yaml"), "{missing:?}");
}

#[test]
fn nothing_is_called_well_that_was_not_read() {
    let mut facts = healthy();
    assert!(Diagnosis::of(&facts).page(None).to_string().contains("all is well"));
    facts.not_read.push("you need the right to list nodes".to_owned());
    let text = Diagnosis::of(&facts).page(None).to_string();
    assert!(text.contains("no error in what was checked; not all could be read") && !text.contains("well"), "{text}");
}

#[test]
fn diagnosis_fits_the_terminal_and_has_the_documented_shape() {
    let mut facts = healthy();
    facts.cluster = Some(fleet());
    facts.endpoints = Some(0);
    facts.not_read.push("you need the right to list leases in kube-node-lease".to_owned());
    let diagnosis = Diagnosis::of(&facts);
    let page = |width| diagnosis.page(Some(width));
    fitted("doctor", page, |line| line.trim().starts_with("kubectl"));
    snapshot("doctor-200.txt", &page(200).to_string());
    let documented = include_str!("../../../docs/plugin.md");
    for field in crate::fixtures::fields(&serde_json::to_value(&diagnosis).unwrap()) {
        assert!(documented.contains(&format!("`{field}`")), "docs/plugin.md lacks `{field}`");
    }
    for finding in &diagnosis.findings {
        assert!(documented.contains(&format!("`{}`", finding.reason)), "docs/plugin.md lacks `{}`", finding.reason);
    }
}
