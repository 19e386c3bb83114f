//! The objects of an installation: definitions, accounts, rights, workloads and policies, compared with those that this
//! version installs.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use models::names;
use models::schema::UNDECLARED;
use serde_json::Value;

use super::aws::APPLY_AWS;
use super::facts::Installed;
use super::finding::{Finding, NAMED, Severity};
use crate::advice::{command, some};
use crate::helm::upgrade_of;
use crate::images::{image_of, newer, own_tag, tag, version};
use crate::install::{Rollout, agents_of, rollout};
use crate::marks::Tool;
use crate::preflight::KUBECTL;
use crate::shell::word;
use crate::uninstall::is_marked;

// Next steps. Each is what is known of every installation; [`next_steps`] has more of this one.

/// The step for what is missing of an installation, except a definition and what is optional. It has no command: images
/// and options are not known.
const APPLY_AGAIN: &str =
    "# apply its manifests again, with your images and options and without the policy: docs/install.md, Upgrade";

/// The step for a definition.
const APPLY_DEFINITIONS: &str =
    "kubectl apply --server-side -f crds.yaml  # of the newest version that was installed: docs/install.md, Upgrade";

/// The command that creates the policy.
pub(super) const APPLY_POLICY: &str = "kubectl apply --server-side --field-manager=policy -f POLICY.yaml  # yours, or one that starts nothing: \
     docs/runbook/waiting.md";

/// The command that grants the right that `drain.atDeadline: Force` needs.
const APPLY_FORCE: &str =
    "kubectl apply --server-side -f force.yaml  # or, with the chart, rbac.forceDrain: docs/policy.md";

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

/// Replaces the steps for what is missing by those of this installation.
pub(super) fn next_steps(objects: &[Installed], found: &mut [Finding]) {
    for step in [APPLY_AGAIN, APPLY_DEFINITIONS, APPLY_POLICY, APPLY_FORCE, APPLY_AWS] {
        let command = next_step(step, objects);
        for next in found.iter_mut().flat_map(|finding| &mut finding.next).filter(|next| next.as_str() == step) {
            next.clone_from(&command);
        }
    }
}

/// Returns the form that a step has for this installation. The first case that fits decides:
///
/// 1. The operator is newer than this plugin, which knows and installs only what an earlier version needs.
/// 2. A tool keeps the objects. An apply beside Helm with equal values is no conflict, and makes `kubectl` an owner
///    too: each later `helm upgrade` is refused then.
/// 3. This plugin can install all but the policy and what is optional, with the images that run. It refuses where Helm
///    has the definitions.
/// 4. The step stays as it is.
fn next_step(step: &str, objects: &[Installed]) -> String {
    let of_this_version = matches!(step, APPLY_AGAIN | APPLY_DEFINITIONS);
    if let Some(newest) = newer(images_of(objects).map(|(_, image)| image)).filter(|_| of_this_version) {
        let doctor = command(names::SYSTEM_NAMESPACE, "doctor");
        let own = own_tag();
        return format!("{doctor}  # with the plugin of version {newest}, that of the operator: this one is of {own}");
    }
    let remark = match step {
        APPLY_FORCE => "with the value rbac.forceDrain: docs/policy.md",
        APPLY_AWS => "with the value aws.enabled: docs/aws.md",
        _ => "docs/install.md, Upgrade",
    };
    let kept = |definitions: bool| {
        objects.iter().find_map(|object| {
            let meta = serde_json::from_value(object.found.as_ref()?["metadata"].clone()).unwrap_or_default();
            // After a takeover, the definition of the shadows may name a release of the earlier operator.
            let is_known = is_marked(&meta) && text(&object.wanted, "/metadata/name") != names::SHADOW_DEFINITION;
            let is_definition = text(&object.wanted, "/kind") == "CustomResourceDefinition";
            change_of(&meta, remark).filter(|_| is_known && is_definition == definitions)
        })
    };
    let install = || install(objects).filter(|_| step == APPLY_AGAIN && kept(true).is_none());
    kept(step == APPLY_DEFINITIONS).or_else(install).unwrap_or_else(|| step.to_owned())
}

/// Returns the command with which the tool that keeps an object changes it, if there is one; of Helm, with a remark.
fn change_of(meta: &ObjectMeta, remark: &str) -> Option<String> {
    const SOURCE: &str = "# once its source has what is missing: docs/how-to/gitops.md";
    let of_source = |tool: Tool| match tool {
        Tool::ArgoCd { application } => Some(format!("argocd app sync {}  {SOURCE}", word(&application))),
        Tool::Flux { kind, name, namespace } => {
            Some(format!("flux reconcile {kind} {} -n {} --with-source  {SOURCE}", word(&name), word(&namespace)))
        }
        Tool::Helm { .. } => None,
    };
    let upgrade = upgrade_of(meta).map(|upgrade| format!("{upgrade}  # {remark}"));
    upgrade.or_else(|| Tool::all_of(meta).into_iter().find_map(of_source))
}

/// Returns the command of this plugin that installs what is missing with the images that run; the hook for AWS is not
/// among it. There is none where it would change more than the version of images: names, registries and digests of the
/// user's own, tags that name no version, tags of several architectures, and options. It leaves a policy that exists as it is.
fn install(objects: &[Installed]) -> Option<String> {
    if objects.iter().any(has_options) {
        return None;
    }
    let own = own_tag();
    let parts = images_of(objects).filter(|(workload, _)| *workload != names::AWS);
    let images = parts.map(|(workload, image)| {
        let (registry, name) = image.rsplit_once('/').unwrap_or(("", image));
        let tag = name.strip_prefix(workload)?.strip_prefix(':')?;
        (!tag.contains('@')).then_some((registry, tag))
    });
    let images = images.collect::<Option<BTreeSet<_>>>()?;
    let (registry, first) = *images.first()?;
    let is_release =
        |tag: &str| version(tag).is_some_and(|[major, minor, patch, _]| tag == format!("v{major}.{minor}.{patch}"));
    let (tag, remark) = if images.len() == 1 && version(first).is_some_and(|of| version(&own) == Some(of)) {
        if objects.iter().any(grants_more) {
            return None;
        }
        (first, "leaves the policy as it is. With other options than these: docs/install.md, Upgrade".to_owned())
    } else if images.iter().all(|(of, tag)| *of == registry && is_release(tag)) {
        let remark = format!(
            "changes the operator to the version of this plugin, {own}, and removes rules and subjects that an overlay has added: docs/install.md, \
             Upgrade"
        );
        (own.as_str(), remark)
    } else {
        return None;
    };
    let registry = if registry.is_empty() { String::new() } else { format!(" --registry {}", word(registry)) };
    let tag = if tag == own { String::new() } else { format!(" --tag {}", word(tag)) };
    Some(format!("{}  # {remark}", command(names::SYSTEM_NAMESPACE, &format!("install{registry}{tag}"))))
}

/// Fields that [`has_options`] leaves out: the image, and what [`grants_more`] and [`definition`] compare.
const BY_THEMSELVES: [&str; 4] = ["image", "rules", "subjects", "versions"];

/// A map that is owned as a whole: with an entry of another field manager, an apply of this one conflicts.
const NODE_SELECTOR: &str = "/spec/template/spec/nodeSelector";

/// Returns whether an installation by this plugin would set back what a user has patched. It applies as the field
/// manager of the manifests: the API server removes what this manager has applied before, as of an overlay, and leaves
/// out now. What another version has otherwise counts too, since it looks the same.
fn has_options(object: &Installed) -> bool {
    let wanted = &object.wanted;
    // Optional objects are installed by themselves, and a policy that exists stays as it is.
    let is_applied = matches!(step_of(wanted), APPLY_AGAIN | APPLY_DEFINITIONS)
        && text(wanted, "/kind") != "BottlerocketUpdateOperator";
    let Some(found) = object.found.as_ref().filter(|_| is_applied) else { return false };
    let entries = found["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut applied = entries.filter(|entry| entry["manager"] == KUBECTL && entry["operation"] == "Apply");
    first_difference(wanted, found, "", &BY_THEMSELVES).is_some()
        || wanted.pointer(NODE_SELECTOR) != found.pointer(NODE_SELECTOR)
        || applied.any(|entry| sets_back(wanted, found, &entry["fieldsV1"]))
}

/// Returns whether an object lacks one of these fields of the object in the cluster, in the form of `managedFields`, or has another value
/// in it. A list or map that is owned as a whole, such as tolerations or a node selector, has no fields in it.
fn sets_back(wanted: &Value, found: &Value, fields: &Value) -> bool {
    fields.as_object().into_iter().flatten().any(|(field, inner)| {
        // `.` is the object itself.
        let Some((form, name)) = field.split_once(':').filter(|(_, name)| !BY_THEMSELVES.contains(name)) else {
            return false;
        };
        let (own, there) = (part(wanted, form, name), part(found, form, name));
        own.zip(there).map_or(own.is_none(), |(own, there)| {
            let is_whole = inner.as_object().is_none_or(serde_json::Map::is_empty);
            if is_whole { own != there } else { sets_back(own, there, inner) }
        })
    })
}

/// Returns the part of an object that `managedFields` name: `f` and a name, `k` and the keys of an item of a list, or `v` and a member of a
/// set.
fn part<'a>(object: &'a Value, form: &str, name: &str) -> Option<&'a Value> {
    if form == "f" {
        return object.get(name);
    }
    let keys: Value = serde_json::from_str(name).ok()?;
    // A key with its default may be left out.
    let has = |item: &Value, (key, value): (&String, &Value)| item.get(key).is_none_or(|own| own == value);
    let mut items = object.as_array()?.iter();
    match keys.as_object().filter(|_| form == "k") {
        Some(keys) => items.find(|item| keys.iter().all(|key| has(item, key))),
        None => items.find(|item| **item == keys),
    }
}

/// Returns whether a role has more rules, or a binding more subjects, than this version has: of an overlay, which an installation would remove.
fn grants_more(Installed { wanted, found }: &Installed) -> bool {
    let is_part =
        |there: &Value| rights(there).is_subset(&rights(wanted)) && subjects(there).is_subset(&subjects(wanted));
    step_of(wanted) == APPLY_AGAIN && found.as_ref().is_some_and(|there| !is_part(there))
}

/// Returns the step for an object that differs, or is missing.
fn step_of(wanted: &Value) -> &'static str {
    if text(wanted, "/kind") == "CustomResourceDefinition" {
        APPLY_DEFINITIONS
    } else if text(wanted, "/metadata/name") == names::AWS {
        APPLY_AWS
    } else if deploy::force().iter().any(|object| id(object) == id(wanted)) {
        APPLY_FORCE
    } else {
        APPLY_AGAIN
    }
}

fn not_there(wanted: &Value) -> Option<Finding> {
    // Rights of users: a value of the chart leaves them out.
    let mut labels = wanted["metadata"]["labels"].as_object().into_iter().flatten();
    if labels.any(|(label, _)| label.starts_with("rbac.authorization.k8s.io/aggregate-to-")) {
        return None;
    }
    let next = step_of(wanted);
    if next == APPLY_FORCE {
        let message = "it is missing: the controller has no right to delete pods, which the policy's drain.atDeadline: Force requires";
        return Some(Finding::error("Missing", message).of(id(wanted)).next([next.to_owned()]));
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
    Some(Finding::new(severity, "Missing", what).of(id(wanted)).next([next.to_owned()]))
}

fn differences(wanted: &Value, found: &Value) -> Vec<Finding> {
    let of = |finding: Finding| finding.of(id(wanted));
    let kind = text(wanted, "/kind");
    let meta = serde_json::from_value(found["metadata"].clone()).unwrap_or_default();
    // A policy is a user's, and a namespace may be: Helm makes that of a release without a label.
    if !is_marked(&meta) && !matches!(kind, "BottlerocketUpdateOperator" | "Namespace") {
        let message = "it lacks the label of this operator's installation: another operator may have installed it";
        let next =
            if kind == "CustomResourceDefinition" { "kubectl brupop takeover preflight" } else { step_of(wanted) };
        return vec![of(Finding::warning("AnotherInstallation", message).next([next.to_owned()]))];
    }
    let mut findings = Vec::new();
    match kind {
        "CustomResourceDefinition" => findings.extend(definition(wanted, found)),
        "Role" | "ClusterRole" => findings.extend(rules(wanted, found)),
        "RoleBinding" | "ClusterRoleBinding" => findings.extend(binding(wanted, found)),
        "Deployment" | "DaemonSet" => findings.extend(workload(wanted, found)),
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
        if let Some(path) = first_difference(&version["schema"], &same["schema"], "", &["description"]) {
            let message = format!(
                "its schema in {number} is not that of this plugin's version ({}): {path}. One of them is older; where that is the definition, \
                 the API server refuses writes of the operator ({UNDECLARED})",
                env!("CARGO_PKG_VERSION")
            );
            findings.push(Finding::error("SchemaDiffers", message).next([APPLY_DEFINITIONS.to_owned()]));
        }
    }
    let stored = found.pointer("/status/storedVersions").and_then(Value::as_array);
    let others: Vec<&str> = stored.into_iter().flatten().filter_map(Value::as_str).collect();
    if others.len() > 1 {
        let message = format!("objects of it may be stored in several versions: {}", others.join(", "));
        let next = "kubectl get bruo -A -o yaml  # condition StorageMigrated".to_owned();
        findings.push(Finding::new(Severity::Note, "StorageVersions", message).next([next]));
    }
    findings
}

/// Returns the first part of an object or a schema that differs, other than fields of these names. What only the cluster has does not count.
fn first_difference(wanted: &Value, found: &Value, path: &str, except: &[&str]) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.iter().filter(|(name, _)| !except.contains(&name.as_str())).find_map(|(name, value)| {
                let inner = matches!(name.as_str(), "properties" | "openAPIV3Schema" | "items");
                let path = if inner { path.to_owned() } else { format!("{path}.{name}") };
                match found.get(name) {
                    Some(other) => first_difference(value, other, &path, except),
                    None => Some(format!("{path} is missing")),
                }
            })
        }
        // Other field managers may have added to a list whose items have names.
        (Value::Array(wanted), Value::Array(found)) if wanted.iter().any(|item| item.get("name").is_some()) => {
            let has = |item: &Value| found.iter().any(|other| first_difference(item, other, path, except).is_none());
            (!wanted.iter().all(has)).then(|| format!("{path} differs"))
        }
        _ if wanted == found => None,
        _ => Some(format!("{path} differs")),
    }
}

/// Returns the rights of a role, each as one line.
fn rights(role: &Value) -> BTreeSet<String> {
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
    let covered = |right: &String| {
        let whole = right.split(" named ").next().unwrap_or_default();
        there.contains(right) || there.contains(whole)
    };
    let missing: Vec<String> = rights(wanted).into_iter().filter(|right| !covered(right)).collect();
    let named = some(&missing, 4);
    (!missing.is_empty()).then(|| {
        Finding::error("RightsMissing", format!("it lacks rights that this version needs: {named}"))
            .next([step_of(wanted).to_owned()])
    })
}

fn subjects(binding: &Value) -> BTreeSet<String> {
    let subjects = binding["subjects"].as_array().into_iter().flatten();
    subjects.map(|subject| format!("{}/{}", text(subject, "/namespace"), text(subject, "/name"))).collect()
}

fn binding(wanted: &Value, found: &Value) -> Option<Finding> {
    let same =
        text(wanted, "/roleRef/name") == text(found, "/roleRef/name") && subjects(wanted).is_subset(&subjects(found));
    (!same).then(|| {
        let message = "it does not bind the account of the operator to its role";
        Finding::error("RightsMissing", message).next([step_of(wanted).to_owned()])
    })
}

/// Compares the pods of a workload with those that it has to have: while new ones hang, earlier ones stay Ready.
fn workload(wanted: &Value, found: &Value) -> Option<Finding> {
    let (namespace, name) = (text(wanted, "/metadata/namespace"), text(wanted, "/metadata/name"));
    let kind = text(wanted, "/kind").to_ascii_lowercase();
    let (desired, ready, state) = if kind == "daemonset" {
        let set: DaemonSet = serde_json::from_value(found.clone()).unwrap_or_default();
        let (nodes, behind) = agents_of(&set);
        let ready = set.status.map_or(0, |status| status.number_ready);
        (nodes, ready, behind.map_or(Rollout::Complete, Rollout::Waits))
    } else {
        let deployment: Deployment = serde_json::from_value(found.clone()).unwrap_or_default();
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
        (deployment.spec.replicas.unwrap_or(1), ready, rollout(&deployment))
    };
    // The hook for AWS has a finding of its own, which knows whether it is awaited.
    if name == names::AWS && ready == 0 {
        return None;
    }
    let next = || {
        [format!("kubectl describe {kind} {name} -n {namespace}"), format!("kubectl get pods -n {namespace} -o wide")]
    };
    let because = |state: Rollout| state.reason().map_or_else(String::new, |reason| format!(": {reason}"));
    match (desired, ready, state) {
        (0, ..) if kind == "daemonset" => {
            Some(Finding::warning("NoPods", "no node has the label that selects it for updates, so that it has no pod"))
        }
        (0, ..) => {
            Some(Finding::error("ScaledToZero", "it has no replica").next([format!(
                "kubectl scale {kind} {name} -n {namespace} --replicas={}",
                wanted["spec"]["replicas"]
            )]))
        }
        (_, 0, state) => {
            let message = format!("none of its {desired} pods is Ready{}", because(state));
            Some(Finding::error("NotReady", message).next(next()))
        }
        (.., Rollout::Failed(reason)) => {
            Some(Finding::error("RolloutFailed", format!("Kubernetes has given up its rollout: {reason}")).next(next()))
        }
        (.., state) if ready < desired => {
            let message = format!("{ready} of {desired} pods are Ready{}", because(state));
            Some(Finding::warning("NotReady", message).next(next()))
        }
        (.., Rollout::Waits(reason)) => {
            Some(Finding::warning("RolloutIncomplete", format!("its rollout has not ended: {reason}")).next(next()))
        }
        (.., Rollout::Complete) => None,
    }
}

/// Returns the images that run, each with the name of its workload.
fn images_of(objects: &[Installed]) -> impl Iterator<Item = (&str, &str)> {
    objects.iter().filter_map(|object| {
        let image = image_of(&object.wanted, object.found.as_ref()?)?;
        Some((text(&object.wanted, "/metadata/name"), image))
    })
}

/// Compares the images of the workloads with one another, and with those of this version.
fn images(objects: &[Installed], found: &mut Vec<Finding>) {
    // By version; tags without one by themselves.
    let (mut tags, mut parts) = (BTreeMap::new(), BTreeSet::new());
    for (workload, tag) in images_of(objects).filter_map(|(workload, image)| Some((workload, tag(image)?))) {
        let of = version(tag).ok_or(tag);
        tags.insert(of, tag);
        if workload != names::AWS {
            parts.insert(of);
        }
    }
    let own = own_tag();
    let is_other = |of: &Result<[u64; 4], &str>| of.is_ok_and(|other| version(&own).is_some_and(|own| own != other));
    // The definitions may be of the operator's version, which is not known to be that of this plugin.
    if tags.keys().all(is_other) {
        found.iter_mut().filter(|of| of.reason == "SchemaDiffers").for_each(|of| of.severity = Severity::Warning);
    }
    // The hook for AWS is installed by itself.
    let next = if parts.len() > 1 || parts.iter().any(is_other) { APPLY_AGAIN } else { APPLY_AWS };
    if tags.len() > 1 {
        let message = format!(
            "its parts run images of different versions: {}. An update of it has not ended, or only a part of it was applied",
            some(tags.into_values(), NAMED)
        );
        found.push(Finding::warning("MixedVersions", message).next([next.to_owned()]));
    } else if let Some((_, other)) = tags.into_iter().find(|(of, _)| is_other(of)) {
        let message = format!(
            "its parts whose version is known run images of {other}, and this plugin is of {own}: their workloads of this version are not \
             applied, or the plugin is of another version"
        );
        found.push(Finding::warning("VersionDiffers", message).next([next.to_owned()]));
    }
}
