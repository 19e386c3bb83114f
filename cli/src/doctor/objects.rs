//! The objects of an installation: definitions, accounts, rights, workloads and policies, compared with those that this
//! version installs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::facts::Installed;
use super::finding::{Finding, Severity};
use crate::uninstall::is_marked;

/// The command that installs what is missing.
const APPLY: &str = "kubectl apply --server-side -f brupop.yaml  # of the operator's version: docs/install.md";

/// The same for the definitions.
const APPLY_DEFINITIONS: &str =
    "kubectl apply --server-side -f crds.yaml  # of the operator's version: docs/install.md";

/// The same for the right that `drain.atDeadline: Force` needs.
const APPLY_FORCE: &str = "kubectl apply --server-side -f force.yaml  # or the chart's rbac.forceDrain: docs/policy.md";

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn id(object: &Value) -> String {
    let (kind, name) = (text(object, "/kind").to_ascii_lowercase(), text(object, "/metadata/name"));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind}/{namespace}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

pub(super) fn check(objects: &[Installed], found: &mut Vec<Finding>) {
    let missing = objects.iter().filter(|object| object.found.is_none());
    if !objects.is_empty() && missing.clone().count() == objects.len() {
        let message = "nothing of the operator is installed in this cluster";
        found.push(Finding::error("NotInstalled", message).next(["kubectl brupop preflight".to_owned()]));
        return;
    }
    for object in objects {
        match &object.found {
            None => found.extend(not_there(&object.wanted)),
            Some(there) => found.extend(differences(&object.wanted, there)),
        }
    }
    images(objects, found);
}

fn not_there(wanted: &Value) -> Option<Finding> {
    // Rights of users: a value of the chart leaves them out.
    let mut labels = wanted["metadata"]["labels"].as_object().into_iter().flatten();
    if labels.any(|(label, _)| label.starts_with("rbac.authorization.k8s.io/aggregate-to-")) {
        return None;
    }
    if deploy::force().iter().any(|object| id(object) == id(wanted)) {
        let message = "it is missing: the controller has no right to delete pods, which the policy's drain.atDeadline: Force requires";
        return Some(Finding::error("Missing", message).of(id(wanted)).next([APPLY_FORCE.to_owned()]));
    }
    let (severity, what) = match text(wanted, "/kind") {
        // Its absence is a state of the fleet.
        "BottlerocketUpdateOperator" => return None,
        "CustomResourceDefinition" => (Severity::Error, "the definition is missing, so that its objects cannot exist"),
        "NetworkPolicy" => {
            (Severity::Warning, "it is missing, so that connections are allowed that the operator does not need")
        }
        "PodDisruptionBudget" => {
            (Severity::Warning, "it is missing, so that a drain may end all pods of the component at a time")
        }
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
            (Severity::Error, "it is missing, so that the API server does not limit what the web API may write")
        }
        "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" => {
            (Severity::Error, "it is missing, and its account lacks the rights")
        }
        _ => (Severity::Error, "it is missing"),
    };
    let next = if text(wanted, "/kind") == "CustomResourceDefinition" { APPLY_DEFINITIONS } else { APPLY };
    Some(Finding::new(severity, "Missing", what).of(id(wanted)).next([next.to_owned()]))
}

fn differences(wanted: &Value, found: &Value) -> Vec<Finding> {
    let of = |finding: Finding| finding.of(id(wanted));
    let kind = text(wanted, "/kind");
    let meta = serde_json::from_value(found["metadata"].clone()).unwrap_or_default();
    if !is_marked(&meta) && kind != "BottlerocketUpdateOperator" {
        let message = "it lacks the label of this operator's installation: another operator may have installed it";
        let next = if kind == "CustomResourceDefinition" { "kubectl brupop takeover preflight" } else { APPLY };
        return vec![of(Finding::warning("AnotherInstallation", message).next([next.to_owned()]))];
    }
    let mut findings = Vec::new();
    match kind {
        "CustomResourceDefinition" => findings.extend(definition(wanted, found)),
        "Role" | "ClusterRole" => findings.extend(rules(wanted, found)),
        "RoleBinding" | "ClusterRoleBinding" => findings.extend(binding(wanted, found)),
        "Deployment" => findings.extend(workload(
            wanted,
            found.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1),
            found.pointer("/status/readyReplicas").and_then(Value::as_i64).unwrap_or(0),
        )),
        "DaemonSet" => findings.extend(workload(
            wanted,
            found.pointer("/status/desiredNumberScheduled").and_then(Value::as_i64).unwrap_or(0),
            found.pointer("/status/numberReady").and_then(Value::as_i64).unwrap_or(0),
        )),
        _ => {}
    }
    findings.into_iter().map(of).collect()
}

/// Compares a definition: it has to be served, and to have every field that this version knows.
fn definition(wanted: &Value, found: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let holds = |type_: &str| {
        let conditions = found.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|condition| condition["type"] == type_ && condition["status"] == "True")
    };
    let name = text(wanted, "/metadata/name");
    if !holds("Established") || !holds("NamesAccepted") {
        let message = "the API server does not serve it: its conditions have the reason";
        findings.push(Finding::error("NotServed", message).next([format!("kubectl describe crd {name}")]));
    }
    let versions = |object: &'_ Value| object["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let there = versions(found);
    for version in versions(wanted) {
        let number = text(&version, "/name").to_owned();
        let Some(same) = there.iter().find(|other| other["name"] == version["name"] && other["served"] == true) else {
            let message = format!("it does not serve the version {number}");
            findings.push(Finding::error("VersionMissing", message).next([APPLY_DEFINITIONS.to_owned()]));
            continue;
        };
        if let Some(path) = first_difference(&version["schema"], &same["schema"], "") {
            let message = format!(
                "its schema in {number} is not that of this plugin's version ({}): {path}. One of both is older",
                env!("CARGO_PKG_VERSION")
            );
            findings.push(Finding::warning("SchemaDiffers", message).next([APPLY_DEFINITIONS.to_owned()]));
        }
    }
    let stored = found.pointer("/status/storedVersions").and_then(Value::as_array);
    let others: Vec<&str> = stored.into_iter().flatten().filter_map(Value::as_str).collect();
    if others.len() > 1 {
        let message = format!("objects of it may be stored in several versions: {}", others.join(", "));
        let next = "kubectl get bruo default -n brupop-system -o yaml  # condition StorageMigrated".to_owned();
        findings.push(Finding::new(Severity::Note, "StorageVersions", message).next([next]));
    }
    findings
}

/// Returns the first part of a schema that differs, other than descriptions. What only the cluster has does not count.
fn first_difference(wanted: &Value, found: &Value, path: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.iter().filter(|(name, _)| *name != "description").find_map(|(name, value)| {
                let inner = matches!(name.as_str(), "properties" | "openAPIV3Schema" | "items");
                let path = if inner { path.to_owned() } else { format!("{path}.{name}") };
                match found.get(name) {
                    Some(other) => first_difference(value, other, &path),
                    None => Some(format!("{path} is missing")),
                }
            })
        }
        _ if wanted == found => None,
        _ => Some(format!("{path} differs")),
    }
}

/// A right, as one line.
type Right = String;

fn rights(role: &Value) -> BTreeSet<Right> {
    let all = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let names = all(&rule["resourceNames"]);
        let names: Vec<String> = if names.is_empty() {
            vec![String::new()]
        } else {
            names.iter().map(|name| format!(" named {name}")).collect()
        };
        for verb in all(&rule["verbs"]) {
            for group in all(&rule["apiGroups"]) {
                for resource in all(&rule["resources"]) {
                    let of = if group.is_empty() { String::new() } else { format!(".{group}") };
                    rights.extend(names.iter().map(|name| format!("{verb} {resource}{of}{name}")));
                }
            }
            rights.extend(all(&rule["nonResourceURLs"]).iter().map(|url| format!("{verb} {url}")));
        }
    }
    rights
}

fn rules(wanted: &Value, found: &Value) -> Option<Finding> {
    let there = rights(found);
    let covered = |right: &Right| {
        let whole = right.split(" named ").next().unwrap_or_default();
        there.contains(right) || there.contains(whole)
    };
    let missing: Vec<Right> = rights(wanted).into_iter().filter(|right| !covered(right)).collect();
    let named = crate::advice::some(missing.iter().map(String::as_str), 4);
    (!missing.is_empty()).then(|| {
        Finding::error("RightsMissing", format!("it lacks rights that this version needs: {named}"))
            .next([APPLY.to_owned()])
    })
}

fn binding(wanted: &Value, found: &Value) -> Option<Finding> {
    let subjects = |object: &Value| -> BTreeSet<String> {
        let subjects = object["subjects"].as_array();
        subjects
            .into_iter()
            .flatten()
            .map(|subject| format!("{}/{}", text(subject, "/namespace"), text(subject, "/name")))
            .collect()
    };
    let same =
        text(wanted, "/roleRef/name") == text(found, "/roleRef/name") && subjects(wanted).is_subset(&subjects(found));
    (!same).then(|| {
        let message = "it does not bind the account of the operator to its role";
        Finding::error("RightsMissing", message).next([APPLY.to_owned()])
    })
}

fn workload(wanted: &Value, desired: i64, ready: i64) -> Option<Finding> {
    let (namespace, name) = (text(wanted, "/metadata/namespace"), text(wanted, "/metadata/name"));
    let kind = text(wanted, "/kind").to_ascii_lowercase();
    let describe = format!("kubectl describe {kind} {name} -n {namespace}");
    let pods = format!("kubectl get pods -n {namespace} -o wide");
    match (desired, ready) {
        (0, _) if kind == "daemonset" => {
            Some(Finding::warning("NoPods", "no node has the label that selects it for updates, so that it has no pod"))
        }
        (0, _) => Some(
            Finding::error("ScaledToZero", "it has no replica")
                .next([format!("kubectl scale {kind} {name} -n {namespace} --replicas=2")]),
        ),
        (_, 0) => {
            Some(Finding::error("NotReady", format!("none of its {desired} pods is Ready")).next([describe, pods]))
        }
        (desired, ready) if ready < desired => {
            Some(Finding::warning("NotReady", format!("{ready} of {desired} pods are Ready")).next([describe, pods]))
        }
        _ => None,
    }
}

/// Compares the images of the workloads.
fn images(objects: &[Installed], found: &mut Vec<Finding>) {
    let mut tags = BTreeSet::new();
    for there in objects.iter().filter_map(|object| object.found.as_ref()) {
        let containers = there.pointer("/spec/template/spec/containers").and_then(Value::as_array);
        for image in containers.into_iter().flatten().filter_map(|container| container["image"].as_str()) {
            let name = image.rsplit('/').next().unwrap_or_default();
            tags.insert(name.split('@').next().and_then(|name| name.split_once(':')).map_or("latest", |(_, tag)| tag));
        }
    }
    let tags: Vec<&str> = tags.into_iter().collect();
    if tags.len() > 1 {
        let message = format!(
            "its parts run images of different versions: {}. An update of it has not ended, or only a part of it was applied",
            tags.join(", ")
        );
        found.push(Finding::warning("MixedVersions", message).next([APPLY.to_owned()]));
    }
}
