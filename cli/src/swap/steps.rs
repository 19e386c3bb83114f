//! The next step of a takeover, as a function of what is in the cluster and in the record: a command that was interrupted
//! at any point goes on from there.
//!
//! ```text
//! keep workloads and definition ► delete workloads ► pods gone ► hosts settled ► v1 and v2 read-only ► keep shadows
//!   ► conversion None ► definition v1 v2 v3 ► shadows of this operator ► delete the kept ones
//!   ► check again ► storedVersions [v3] ► definition v3 ► policy removed
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::earlier::{self, EarlierShadow};
use models::names;
use models::shadow::{Record as ShadowRecord, is_controller_condition};
use planner::view::NodeFacts;
use serde_json::{Value, json};

use super::record::{self, Record};
use crate::marks::Tool;
use crate::shell::for_cluster;

/// An object in the cluster: the part of it that is kept, and what a write is guarded by.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Live {
    pub(crate) kept: Value,
    pub(super) uid: String,
    pub(super) version: String,
    pub(crate) deleting: bool,
}

impl Live {
    /// Kind, namespace and name, for messages.
    pub(super) fn id(&self) -> String {
        deploy::yaml::id(&self.kept)
    }
}

/// The definition of the shadows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Definition {
    pub(crate) live: Live,
    pub(crate) versions: Vec<String>,
    pub(crate) served: Vec<String>,
    pub(crate) storage: String,
    /// `status.storedVersions`.
    pub(crate) stored: Vec<String>,
    /// Versions of the conversion reviews, in their order: it changed with release 1.1.0.
    pub(crate) reviews: Vec<String>,
    pub(crate) tools: Vec<Tool>,
    /// True if it has the label of this operator's installation.
    pub(crate) ours: bool,
}

/// The progress of the takeover, as the definition shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Absent,
    /// The earlier operator's.
    Earlier,
    /// All of v1, v2 and v3, stored in v3.
    Both,
    /// This operator's.
    Ours,
    /// All of v1, v2 and v3, stored in one of the earlier operator's: `undo` is under way.
    Returning,
    Other,
}

impl Definition {
    pub(super) fn phase(&self) -> Phase {
        let is_earlier = |version: &String| earlier::VERSIONS.contains(&version.as_str());
        let (old, rest): (Vec<_>, Vec<_>) = self.versions.iter().partition(|version| is_earlier(version));
        match (old.as_slice(), rest.as_slice()) {
            ([_, ..], []) => Phase::Earlier,
            ([_, ..], [v3]) if *v3 == "v3" && self.storage == "v3" => Phase::Both,
            ([_, ..], [v3]) if *v3 == "v3" => Phase::Returning,
            ([], [v3]) if *v3 == "v3" => Phase::Ours,
            _ => Phase::Other,
        }
    }

    /// The GitOps tool that applies the definition and may delete it, if nothing keeps it from doing so.
    fn deletable_by(&self) -> Option<&'static str> {
        let annotations = &self.live.kept["metadata"]["annotations"];
        let kept_by = |annotation: &str, words: &[&str]| {
            let value = annotations[annotation].as_str().unwrap_or_default();
            words.iter().all(|word| value.contains(word))
        };
        Tool::all_of_kept(&self.live.kept).into_iter().find_map(|tool| match tool {
            Tool::ArgoCd { .. } if !kept_by("argocd.argoproj.io/sync-options", &["Prune=false", "Delete=false"]) => {
                Some("Argo CD")
            }
            Tool::Flux { kind: "kustomization", .. }
                if !kept_by("kustomize.toolkit.fluxcd.io/prune", &["disabled"]) =>
            {
                Some("Flux")
            }
            Tool::Helm { .. } | Tool::ArgoCd { .. } | Tool::Flux { .. } => None,
        })
    }

    pub(crate) fn converts_by_webhook(&self) -> bool {
        self.live.kept["spec"]["conversion"]["strategy"] == "Webhook"
    }

    /// Returns the versions in which shadows of the earlier operator can be read, the newest first.
    pub(crate) fn readable(&self) -> Vec<&'static str> {
        earlier::VERSIONS.into_iter().rev().filter(|version| self.served.iter().any(|v| v == version)).collect()
    }
}

/// The policy that makes v1 and v2 read-only.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReadOnly {
    /// Uid of the policy, if it exists.
    pub(super) policy: Option<String>,
    /// Uid of its binding, if it exists.
    pub(super) binding: Option<String>,
    /// True if the API server refused a write at v1 or v2 for it.
    pub(super) enforced: bool,
    /// The reason for which it refused the write otherwise.
    pub(super) refusal: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) now: Timestamp,
    /// True if the operator's namespace exists.
    pub(super) namespace: bool,
    pub(super) record: Record,
    pub(super) definition: Option<Definition>,
    /// The earlier operator's Deployments and DaemonSets, without those that are being deleted.
    pub(super) workloads: Vec<Live>,
    pub(super) installed: bool,
    /// The earlier operator's pods that have not ended.
    pub(super) pods: Vec<String>,
    pub(super) nodes: BTreeMap<String, NodeFacts>,
    /// The earlier operator's shadows, or the reason why they cannot be read.
    pub(super) earlier: Result<Vec<Live>, String>,
    /// Nodes that may still reboot, each with the reason.
    pub(super) unsettled: Vec<String>,
    /// The shadows with the content of this operator, in all namespaces; `None` while v3 is not served, and before the takeover.
    pub(super) own: Option<Vec<Live>>,
    pub(super) read_only: ReadOnly,
    /// True if, for the fixed delay, no shadow was seen that is stored in another version than the definition's.
    pub(super) rechecked: bool,
}

/// One step. Each is one write, or several of a kind that do not depend on one another.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    CreateNamespace,
    Keep(Vec<Value>),
    /// The policy that makes v1 and v2 read-only, or its binding; in `undo` a workload as it was.
    Create(Value),
    /// A workload, the policy or its binding; in `undo` a ConfigMap of the record.
    Delete(Live),
    SetConversion(Value),
    ServeAllVersions,
    /// Nodes, each with its uid.
    CreateShadows(Vec<(String, String)>),
    /// Nodes, each with the version of its shadow and the record to write.
    WriteRecords(Vec<(String, String, ShadowRecord)>),
    DeleteShadows(Vec<Live>),
    /// The versions that remain.
    PruneStoredVersions(Vec<String>),
    ServeOwnVersion,
    /// Only `undo`: shadows of this operator.
    DeleteOwnShadows(Vec<Live>),
    /// Only `undo`: the versions of the definition, stored in one of the earlier operator's again.
    StoreEarlierVersion(Value),
    /// Only `undo`: shadows as they were.
    RestoreShadows(Vec<Value>),
    /// Only `undo`: the definition as it was.
    RestoreDefinition(Value),
}

impl Step {
    /// Deletes an object that has this uid.
    pub(super) fn delete(kept: Value, uid: &str) -> Self {
        Self::Delete(Live { kept, uid: uid.to_owned(), ..Live::default() })
    }
}

/// Something that has to happen by itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Waiting {
    /// The reason why the API server has not answered.
    Answer(String),
    Pods(Vec<String>),
    Nodes(Vec<String>),
    /// The reason why the earlier operator's shadows cannot be read.
    Shadows(String),
    /// The answer of an API server that refuses a write at v1 or v2 for another reason.
    ReadOnly(Option<String>),
    Served,
    Recheck,
    /// Only `undo`: every API server has to store the earlier operator's version again.
    Stored,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    Act(Step),
    Wait(Waiting),
    /// Nothing can be done before the user has changed something.
    Blocked(String),
    Done,
}

impl Facts {
    pub(super) fn phase(&self) -> Phase {
        self.definition.as_ref().map_or(Phase::Absent, Definition::phase)
    }

    /// Returns the latest content of the earlier operator's shadows that are kept, by node.
    pub(super) fn kept_shadows(&self) -> BTreeMap<String, EarlierShadow> {
        let mut all: BTreeMap<String, EarlierShadow> = BTreeMap::new();
        for object in self.record.of_kind("BottlerocketShadow") {
            let node = node_of_kept(object).to_owned();
            let shadow = EarlierShadow::read(object);
            // One node in two namespaces: the longer back-off.
            if all.get(&node).is_none_or(|other| other.crash_count < shadow.crash_count) {
                all.insert(node, shadow);
            }
        }
        all
    }

    fn keep<'a>(&self, objects: impl IntoIterator<Item = &'a Value>) -> Option<Next> {
        let missing: Vec<Value> = objects.into_iter().filter(|object| !self.record.holds(object)).cloned().collect();
        if missing.is_empty() {
            return None;
        }
        if !self.namespace {
            return Some(Next::Act(Step::CreateNamespace));
        }
        Some(match record::one_map(&missing) {
            Ok(chosen) => Next::Act(Step::Keep(chosen)),
            Err(error) => Next::Blocked(error.to_string()),
        })
    }
}

pub(super) fn next(facts: &Facts) -> Next {
    unknown(facts)
        .or_else(|| obstacle(facts))
        .or_else(|| installed(facts))
        .map(Next::Blocked)
        .or_else(|| stop(facts))
        .or_else(|| match facts.phase() {
            Phase::Earlier | Phase::Returning => settle(facts).or_else(|| Some(prepare(facts))),
            Phase::Both => Some(swap_shadows(facts)),
            Phase::Absent | Phase::Ours | Phase::Other => open(facts),
        })
        .unwrap_or(Next::Done)
}

/// Returns the reason why nothing can be done with the definition, in either direction.
pub(super) fn unknown(facts: &Facts) -> Option<String> {
    let definition = facts.definition.as_ref()?;
    if definition.live.deleting {
        return Some(
            "the definition of the shadows is being deleted, and every shadow with it: wait until it is gone, then install \
             one of the operators; what is recorded stays in the ConfigMaps brupop-takeover-* in brupop-system"
                .to_owned(),
        );
    }
    (definition.phase() == Phase::Other).then(|| {
        format!(
            "the definition of the shadows has the versions {}, which are neither the earlier operator's nor this one's: \
             restore the definition that the earlier operator was installed with",
            definition.versions.join(", ")
        )
    })
}

/// Returns the reason why nothing is done beside this operator's controller: it would make shadows, and migrate those of
/// the earlier one, at the same time.
pub(super) fn installed(facts: &Facts) -> Option<String> {
    let delete = |namespace: &str| for_cluster(&format!("kubectl delete deployments,daemonsets --all -n {namespace}"));
    (facts.installed && matches!(facts.phase(), Phase::Earlier | Phase::Both | Phase::Returning)).then(|| {
        format!(
            "this operator is installed, and would write shadows at the same time: delete its workloads first ({} and {}), wait \
             until their pods are gone, then run this command again",
            delete(names::SYSTEM_NAMESPACE),
            delete(names::AGENT_NAMESPACE)
        )
    })
}

/// Returns the reason why the takeover cannot begin, before anything is touched.
fn obstacle(facts: &Facts) -> Option<String> {
    let definition = facts.definition.as_ref()?;
    if definition.phase() != Phase::Earlier {
        return None;
    }
    if let Some(tool) = definition.deletable_by() {
        return Some(format!(
            "{tool} applies the definition of the shadows and may delete it, with every shadow of this operator, once its \
             source has changed: do what {} shows for {tool}, then run this command again",
            for_cluster("kubectl brupop takeover preflight")
        ));
    }
    let shadows = facts.earlier.iter().flatten();
    facts.workloads.iter().chain(shadows).any(is_in_own_namespace).then(|| {
        format!(
            "the earlier operator is installed in {}, the namespace of this operator, where the shadows of both would have \
             the same names: move it to another namespace by its own means first",
            names::SYSTEM_NAMESPACE
        )
    })
}

/// Keeps the workloads and the definition, deletes the workloads and waits until the pods are gone.
pub(super) fn stop(facts: &Facts) -> Option<Next> {
    let definition = facts.definition.as_ref().filter(|definition| {
        // Once it is changed, what was kept before counts.
        let kept = facts.record.of_kind("CustomResourceDefinition").next().is_some();
        definition.phase() == Phase::Earlier && (definition.converts_by_webhook() || !kept)
    });
    let objects = definition.map(|definition| &definition.live).into_iter().chain(&facts.workloads);
    if let Some(keep) = facts.keep(objects.map(|object| &object.kept)) {
        return Some(keep);
    }
    let key = |workload: &&Live| (is_api_server(&workload.kept), workload.id());
    if let Some(workload) = facts.workloads.iter().min_by_key(key) {
        return Some(Next::Act(Step::Delete(workload.clone())));
    }
    (!facts.pods.is_empty()).then(|| Next::Wait(Waiting::Pods(facts.pods.clone())))
}

/// Returns true for the workload of the earlier operator's API server. It is deleted last, and created first.
pub(super) fn is_api_server(workload: &Value) -> bool {
    workload["spec"]["template"]["metadata"]["labels"][earlier::COMPONENT_LABEL] == "apiserver"
}

/// Waits for hosts that were asked to reboot, makes v1 and v2 read-only, and keeps the shadows: then they do not change
/// any more.
fn settle(facts: &Facts) -> Option<Next> {
    let by_webhook = facts.definition.as_ref().is_some_and(Definition::converts_by_webhook);
    match &facts.earlier {
        // Without the webhook every object is read as it is stored, and none is changed.
        Err(_) if by_webhook => Some(Next::Act(Step::SetConversion(json!({"strategy": "None"})))),
        Err(reason) => Some(unreadable(reason)),
        Ok(_) if !facts.unsettled.is_empty() => Some(Next::Wait(Waiting::Nodes(facts.unsettled.clone()))),
        Ok(shadows) => close(facts).or_else(|| facts.keep(shadows.iter().map(|shadow| &shadow.kept))),
    }
}

/// Right after a change of the definition, and beside an API server that is behind, that ends by itself.
pub(super) fn unreadable(reason: &str) -> Next {
    Next::Wait(Waiting::Shadows(reason.to_owned()))
}

/// Replaces the conversion, and adds v3 to the definition.
fn prepare(facts: &Facts) -> Next {
    if facts.definition.as_ref().is_some_and(Definition::converts_by_webhook) {
        return Next::Act(Step::SetConversion(json!({"strategy": "None"})));
    }
    Next::Act(Step::ServeAllVersions)
}

/// Makes v1 and v2 read-only.
fn close(facts: &Facts) -> Option<Next> {
    // That the policy is in force is tried there.
    if !facts.namespace {
        return Some(Next::Act(Step::CreateNamespace));
    }
    let [policy, binding] = deploy::takeover::read_only_policy();
    if facts.read_only.policy.is_none() {
        return Some(Next::Act(Step::Create(policy)));
    }
    if facts.read_only.binding.is_none() {
        return Some(Next::Act(Step::Create(binding)));
    }
    (!facts.read_only.enforced).then(|| Next::Wait(Waiting::ReadOnly(facts.read_only.refusal.clone())))
}

/// Removes that policy.
pub(super) fn open(facts: &Facts) -> Option<Next> {
    let [policy, binding] = deploy::takeover::read_only_policy();
    let delete = |object: Value, uid: &Option<String>| Some(Next::Act(Step::delete(object, uid.as_deref()?)));
    delete(binding, &facts.read_only.binding).or_else(|| delete(policy, &facts.read_only.policy))
}

pub(super) fn is_in_own_namespace(object: &Live) -> bool {
    object.kept["metadata"]["namespace"] == names::SYSTEM_NAMESPACE
}

pub(super) fn node_of_kept(shadow: &Value) -> &str {
    names::node_of_shadow(shadow["metadata"]["name"].as_str().unwrap_or_default())
}

/// Returns true if the controller has written nothing to a status.
fn is_untouched(status: &Value) -> bool {
    let types =
        status["conditions"].as_array().into_iter().flatten().filter_map(|condition| condition["type"].as_str());
    ["record", "progress", "drain"].iter().all(|field| status[field].is_null())
        && !types.into_iter().any(is_controller_condition)
}

/// Replaces the earlier operator's shadows by this operator's, and then the definition.
fn swap_shadows(facts: &Facts) -> Next {
    if let Some(closing) = close(facts) {
        return closing;
    }
    let Some(own) = &facts.own else { return Next::Wait(Waiting::Served) };
    let own = own.iter().filter(|shadow| is_in_own_namespace(shadow));
    let own: BTreeMap<&str, &Live> = own.map(|shadow| (node_of_kept(&shadow.kept), shadow)).collect();
    let earlier = match &facts.earlier {
        Ok(earlier) => earlier,
        Err(reason) => return unreadable(reason),
    };
    if let Some(keep) = facts.keep(earlier.iter().map(|shadow| &shadow.kept)) {
        return keep;
    }
    let (mut missing, mut records) = (Vec::new(), Vec::new());
    for (node, shadow) in facts.kept_shadows() {
        let Some(node) = facts.nodes.get(&node).filter(|node| node.labelled && !node.deleting) else { continue };
        match own.get(node.name.as_str()) {
            None => missing.push((node.name.clone(), node.uid.clone())),
            Some(found) if is_untouched(&found.kept["status"]) => {
                let record = record::back_off(&shadow, facts.now);
                records.extend(record.map(|record| (node.name.clone(), found.version.clone(), record)));
            }
            Some(_) => {}
        }
    }
    let pruned = facts.definition.as_ref().is_some_and(|definition| definition.stored == ["v3"]);
    if !missing.is_empty() {
        Next::Act(Step::CreateShadows(missing))
    } else if !records.is_empty() {
        Next::Act(Step::WriteRecords(records))
    } else if !earlier.is_empty() {
        Next::Act(Step::DeleteShadows(earlier.clone()))
    } else if !facts.rechecked {
        Next::Wait(Waiting::Recheck)
    } else if !pruned {
        Next::Act(Step::PruneStoredVersions(vec!["v3".to_owned()]))
    } else {
        Next::Act(Step::ServeOwnVersion)
    }
}

#[cfg(test)]
#[path = "steps_cases.rs"]
pub(super) mod tests;
