//! Findings: the consequences of the facts about the earlier operator for a takeover. Pure functions of them.

mod tools;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use models::earlier::VERSIONS;
use models::names::{self, SHADOW_DEFINITION as DEFINITION};

use super::facts::{Conversion, Facts, Shadow, Workload};
use super::finding::{Finding, NAMED};
use crate::advice::some;
use crate::marks::{NodeState, Owners};
use crate::swap::Definition;

/// Returns the release of the earlier operator, as far as its objects distinguish them.
pub(super) fn generation(facts: &Facts) -> Option<&'static str> {
    let theirs = facts.definition.as_ref().filter(|definition| !definition.ours);
    let has = |definition: &Definition, version: &str| definition.versions.iter().any(|v| v == version);
    match theirs {
        Some(definition) if !has(definition, "v2") => Some("0.2.0 or 0.2.1"),
        Some(definition) if definition.reviews == ["v1", "v2"] => Some("0.2.2 or 1.0.0"),
        Some(definition) if definition.reviews == ["v2", "v1"] => Some("1.1.0 or later"),
        Some(_) => Some("0.2.2 or later"),
        None if facts.workloads.iter().any(|workload| workload.first_releases) => Some("0.1"),
        None => None,
    }
}

/// Returns all findings, the most important first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(facts.outdated.clone().map(|text| Finding::blocks("KubernetesTooOld", text)));
    definition(facts, &mut found);
    pods(facts, &mut found);
    tools::findings(facts, &mut found);
    shadows(facts, &mut found);
    nodes(facts, &mut found);
    found.extend(rights(facts));
    found.sort_by_key(|finding| finding.severity);
    found
}

/// Returns sentences about what no client of the API server can find out, or what could not be read.
pub(super) fn unknown(facts: &Facts) -> Vec<String> {
    let mut unknown = facts.unread.clone();
    if facts.conversion == Conversion::Untested {
        unknown.push("whether the conversion webhook answers: there is no shadow to read through it".to_owned());
    }
    let (own, _) = cordons(facts);
    if !own.is_empty() || facts.nodes.iter().any(|node| node.balancer.is_some()) {
        unknown.push(
            "who set a cordon or label as the field manager unknown: the earlier operator, or any other client \
             without a name"
                .to_owned(),
        );
    }
    if !facts.shadows.is_empty() {
        unknown
            .push("which hosts are armed, and what they are downloading: only an agent on the node knows".to_owned());
    }
    unknown
}

fn definition(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(definition) = &facts.definition else {
        found.push(if facts.workloads.is_empty() && facts.pods.is_empty() {
            Finding::note(
                "NothingFound",
                "there is no earlier operator in the cluster: install this one as docs/install.md describes",
            )
        } else {
            Finding::note(
                "NoDefinition",
                "there is no definition of the shadows, so that no shadow has to be kept, and the takeover does not know which hosts the \
                 earlier operator has asked to reboot: it waits for none of them. Wait for some minutes before you install this operator",
            )
        });
        return;
    };
    let others: Vec<&str> =
        definition.versions.iter().map(String::as_str).filter(|v| *v != "v3" && !VERSIONS.contains(v)).collect();
    if !others.is_empty() {
        found.push(Finding::blocks(
            "UnknownVersions",
            format!(
                "the definition {DEFINITION} has the version(s) {}, which neither this operator nor the earlier one \
                 has: it belongs to another program",
                others.join(", ")
            ),
        ));
    }
    if definition.live.deleting {
        found.push(Finding::blocks(
            "DefinitionIsDeleted",
            format!("the definition {DEFINITION} is being deleted, and every shadow with it; wait until it is gone, and install this operator as docs/install.md describes"),
        ));
    }
    let has_old = definition.versions.iter().any(|version| VERSIONS.contains(&version.as_str()));
    if definition.versions.iter().any(|version| version == "v3") {
        found.push(if has_old {
            Finding::note(
                "TakeoverBegun",
                "a takeover has begun: the definition has the version v3 as well; go on with it",
            )
            .run(["kubectl brupop takeover swap".to_owned()])
        } else {
            Finding::note("TakenOver", "the definition is this operator's: there is no shadow to take over")
        });
    }
    if let Conversion::Fails(message) = &facts.conversion {
        found.push(Finding::note(
            "WebhookDoesNotAnswer",
            format!(
                "the conversion webhook between v1 and v2 does not answer ({message}); that is usual, and the takeover \
                 switches it off"
            ),
        ));
    }
}

/// Fills these names into the text of a finding; `None` without any.
fn about(names: impl IntoIterator<Item = impl AsRef<str>>, mut finding: Finding) -> Option<Finding> {
    let names = some(names, NAMED);
    debug_assert!(finding.text.contains("<names>"), "{}", finding.reason);
    finding.text = finding.text.replacen("<names>", &names, 1);
    (!names.is_empty()).then_some(finding)
}

fn pods(facts: &Facts, found: &mut Vec<Finding>) {
    let made = |pod: &&Pod| facts.workloads.iter().any(|workload| workload.makes(pod));
    let alone = facts.pods.iter().filter(|pod| !made(pod));
    let alone: Vec<_> = alone.map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any())).collect();
    let names = alone.iter().map(|(namespace, name)| format!("{namespace}/{name}"));
    let deletions = alone.iter().map(|(namespace, name)| format!("kubectl delete pod -n {namespace} {name}"));
    let finding = Finding::blocks(
        "PodsWithoutWorkload",
        "pods of the earlier operator that no Deployment or DaemonSet of it makes: <names>; the takeover waits until they are \
         gone. Delete what makes them, then the pods",
    );
    found.extend(about(names, finding.run(deletions.take(NAMED))));
    let first = facts.workloads.iter().filter(|workload| workload.first_releases).map(Workload::id);
    let finding = Finding::note(
        "FirstReleases",
        "<names> is of the releases 0.1, which delete pods without regard to budgets and reboot also after a failed drain",
    );
    found.extend(about(first, finding));
}

/// Returns the nodes of the shadows for which `holds`. A node may have shadows in several namespaces.
pub(super) fn nodes_where(facts: &Facts, holds: impl Fn(&Shadow) -> bool) -> Vec<&str> {
    let nodes = facts.shadows.iter().filter(|shadow| holds(shadow)).map(|shadow| shadow.node.as_str());
    nodes.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the nodes of shadows whose Node does not exist any more.
pub(super) fn without_node(facts: &Facts) -> Vec<&str> {
    nodes_where(facts, |shadow| !facts.nodes.iter().any(|node| shadow.belongs_to(node)))
}

/// Returns the nodes with the label of the operator that have no shadow.
pub(super) fn without_shadow(facts: &Facts) -> Vec<&str> {
    if facts.incomplete {
        return Vec::new();
    }
    // A shadow that cannot be read is there all the same.
    let exists = |node: &NodeState| facts.shadow_of(node).is_some() || facts.is_unreadable(node);
    let missing = |node: &&NodeState| node.is_labelled() && !exists(node);
    facts.nodes.iter().filter(missing).map(|node| node.name.as_str()).collect()
}

fn shadows(facts: &Facts, found: &mut Vec<Finding>) {
    let missing = without_shadow(facts);
    // From v3 on, the nodes get this operator's shadows.
    let before = facts.definition.as_ref().is_some_and(|d| !d.versions.iter().any(|version| version == "v3"));
    let removal = |node: &&str| format!("kubectl label node {node} {}-", names::INTERFACE_LABEL);
    let removals: Vec<String> = missing.iter().take(NAMED).map(removal).collect();
    let all = [
        (
            facts.unreadable.iter().map(String::as_str).collect::<Vec<_>>(),
            Finding::blocks(
                "ShadowsUnreadable",
                "the API server returns these shadows in no version: <names>; the takeover keeps every shadow before it deletes \
                 one. Repair them, or delete them",
            ),
        ),
        (
            nodes_where(facts, |shadow| shadow.state.is_under_way()),
            Finding::first(
                "UpdatesUnderWay",
                "updates are under way on <names>: the takeover stops them where they are, and this operator plans these nodes \
                 again. Better wait until none is under way",
            ),
        ),
        (
            nodes_where(facts, |shadow| shadow.state.may_reboot()),
            Finding::first(
                "MayReboot",
                "these nodes may be about to reboot, also after the earlier operator is stopped: <names>; the takeover waits \
                 for them",
            ),
        ),
        (
            nodes_where(facts, |shadow| shadow.state.may_be_armed()),
            Finding::note(
                "MayBeArmed",
                "the hosts of these nodes may be armed, so that any reboot takes the new version: <names>. If one is, this \
                 operator shows HostArmedByOther for it after the takeover; reboot it, or let it be disarmed then",
            ),
        ),
        (
            without_node(facts),
            Finding::note(
                "ShadowsWithoutNode",
                "shadows whose Node does not exist any more: <names>; they are not taken over",
            ),
        ),
        (
            if before { missing } else { Vec::new() },
            Finding::first(
                "NodesWithoutShadow",
                format!(
                    "nodes with the label {}={} and without a shadow: <names>; the earlier operator has not updated them, and \
                     this one will. Remove the label from those that are to stay as they are",
                    names::INTERFACE_LABEL,
                    names::INTERFACE_VERSION
                ),
            )
            .run(removals),
        ),
    ];
    found.extend(all.into_iter().filter_map(|(names, finding)| about(names, finding)));
}

/// Returns the nodes whose cordon is most likely the earlier operator's, and the other cordoned nodes.
pub(super) fn cordons(facts: &Facts) -> (Vec<&NodeState>, Vec<&NodeState>) {
    let cordoned = facts.nodes.iter().filter(|node| node.cordon.is_some());
    cordoned.partition(|node| node.cordon.as_ref().is_some_and(Owners::are_earlier) && facts.is_of_earlier(node))
}

/// Returns the nodes with a balancer label that is most likely the earlier operator's.
pub(super) fn balancer_labels(facts: &Facts) -> Vec<&NodeState> {
    facts.nodes.iter().filter(|node| node.has_earlier_balancer_label(facts.is_of_earlier(node))).collect()
}

fn names_of<'a>(nodes: &'a [&NodeState]) -> impl Iterator<Item = &'a str> {
    nodes.iter().map(|node| node.name.as_str())
}

/// Returns a finding about these nodes with a command for each of the first ones; `None` without any.
fn with_commands(nodes: &[&NodeState], finding: Finding, command: impl Fn(&NodeState) -> String) -> Option<Finding> {
    about(names_of(nodes), finding.run(nodes.iter().take(NAMED).map(|node| command(node))))
}

fn nodes(facts: &Facts, found: &mut Vec<Finding>) {
    found.extend(not_ready(facts));
    found.extend(own_cordons(facts));
    found.extend(other_cordons(facts));
    let finding = Finding::note(
        "BalancerLabelsOfEarlierOperator",
        "labels that keep nodes out of external load balancers, most likely the earlier operator's: <names>. They stay after the \
         takeover. Remove them once the earlier operator is stopped",
    );
    found.extend(with_commands(&balancer_labels(facts), finding, |node| {
        format!("kubectl label node {} {}-", node.name, names::BALANCER_LABEL)
    }));
    let other_value = |node: &&NodeState| node.interface.is_some() && !node.is_labelled();
    let other_value: Vec<&NodeState> = facts.nodes.iter().filter(other_value).collect();
    let text = format!(
        "nodes whose label {} has another value than {}: <names>; this operator leaves them alone",
        names::INTERFACE_LABEL,
        names::INTERFACE_VERSION
    );
    found.extend(about(names_of(&other_value), Finding::note("OtherInterfaceVersion", text)));
}

fn rights(facts: &Facts) -> Option<Finding> {
    let taken_over = facts.definition.as_ref().is_none_or(|definition| definition.ours);
    (!taken_over && !facts.missing_rights.is_empty()).then(|| {
        let text = format!(
            "you need these rights too for takeover swap and undo: {}. docs/takeover.md has a ClusterRole with all that is needed",
            facts.missing_rights.join(", ")
        );
        Finding::first("RightsMissing", text)
    })
}

/// The takeover waits for the pods of such nodes, and for those of them that may reboot.
fn not_ready(facts: &Facts) -> Option<Finding> {
    let runs = !facts.workloads.is_empty() || !facts.pods.is_empty();
    let may_reboot = |node: &NodeState| facts.shadow_of(node).is_some_and(|shadow| shadow.state.may_reboot());
    let waited_for = |node: &&NodeState| !node.ready && node.is_labelled() && (runs || may_reboot(node));
    let nodes: Vec<&NodeState> = facts.nodes.iter().filter(waited_for).collect();
    let text = "nodes that are not Ready: <names>; the takeover waits until the earlier operator's pods on them have ended, which \
                only their kubelets report. Repair these nodes, or delete those that are gone for good";
    about(names_of(&nodes), Finding::first("NodesNotReady", text))
}

fn own_cordons(facts: &Facts) -> Option<Finding> {
    let (own, _) = cordons(facts);
    let idle = |node: &&NodeState| facts.shadow_of(node).is_none_or(|shadow| !shadow.state.is_under_way());
    // Without the definition, no shadow shows what is under way.
    let left: Vec<&NodeState> = own.iter().copied().filter(|node| facts.definition.is_some() && idle(node)).collect();
    let left = match some(names_of(&left), NAMED).as_str() {
        "" => String::new(),
        left => format!(" (no update is under way on {left})"),
    };
    let text = format!(
        "cordons that are most likely the earlier operator's: <names>{left}. They stay after the takeover, and this operator \
         leaves such nodes alone. Uncordon them once the earlier operator is stopped"
    );
    let finding = Finding::note("CordonsOfEarlierOperator", text);
    with_commands(&own, finding, |node| format!("kubectl uncordon {}", node.name))
}

fn other_cordons(facts: &Facts) -> Option<Finding> {
    let (_, others) = cordons(facts);
    let with_owner = |node: &&NodeState| {
        let managers = node.cordon.as_ref().map(|owners| owners.managers.join(", ")).unwrap_or_default();
        format!("{} ({})", node.name, if managers.is_empty() { "no recorded manager" } else { &managers })
    };
    let text = "cordons of other users or controllers, by field manager: <names>. They stay. The earlier operator would remove \
                such a cordon after an update; this one does not";
    about(others.iter().map(with_owner), Finding::note("CordonsOfOthers", text))
}

#[cfg(test)]
mod tests;
