//! Hosts that the earlier operator may have left armed, for the ends of `swap` and `undo`.

use std::collections::BTreeSet;

use models::earlier::EarlierShadow;
use models::names;
use models::shadow::{HOST_ANSWERED, HOST_REACHABLE};
use semver::Version;
use serde_json::Value;

use super::steps::{Facts, is_in_own_namespace, node_of_kept};
use crate::shell::for_cluster;

/// Returns the command that lets this operator disarm the hosts of these nodes.
pub(super) fn disarm(nodes: &[String]) -> String {
    let shadows: Vec<String> = nodes.iter().map(|node| names::shadow_name(node)).collect();
    for_cluster(&format!(
        "kubectl annotate bottlerocketshadows.v3.{} {} -n {} --overwrite {}=\"$(date +%s)\"",
        names::GROUP,
        shadows.join(" "),
        names::SYSTEM_NAMESPACE,
        names::RETRY_ANNOTATION
    ))
}

/// Returns the nodes whose hosts the earlier operator may have left armed, that have not booted another version since, and that
/// were not reported as disarmed.
pub(super) fn armed(facts: &Facts) -> Vec<String> {
    let nodes: BTreeSet<&str> = facts.nodes.values().map(|node| node.uid.as_str()).collect();
    let disarmed = reported_disarmed(facts);
    let mut armed = BTreeSet::new();
    for kept in facts.record.of_kind("BottlerocketShadow").filter(|kept| has_node(kept, &nodes)) {
        let (shadow, name) = (EarlierShadow::read(kept), node_of_kept(kept));
        let Some(node) = facts.nodes.get(name) else { continue };
        let then = shadow.current_version.as_deref().and_then(|version| version.parse().ok());
        let rebooted = node.os_version().zip(then).is_some_and(|(now, then): (Version, Version)| now != then);
        if shadow.may_be_armed() && !rebooted && !disarmed.contains(name) {
            armed.insert(name.to_owned());
        }
    }
    armed.into_iter().collect()
}

/// Returns the nodes on whose hosts an agent of this operator has found nothing armed. Its shadows were made by the takeover or later,
/// and the earlier operator has not run since. Other reasons of the condition may hide an armed image.
fn reported_disarmed(facts: &Facts) -> BTreeSet<&str> {
    let answers = |condition: &Value| {
        condition["type"] == HOST_REACHABLE && condition["status"] == "True" && condition["reason"] == HOST_ANSWERED
    };
    let own = facts.own.iter().flatten().filter(|shadow| is_in_own_namespace(shadow));
    let disarmed = own.filter(|shadow| {
        let status = &shadow.kept["status"];
        status["armed"].is_null() && status["conditions"].as_array().is_some_and(|all| all.iter().any(answers))
    });
    disarmed.map(|shadow| node_of_kept(&shadow.kept)).collect()
}

/// Returns false if the shadow's Node is gone: the API server would delete the shadow at once.
pub(super) fn has_node(kept: &Value, nodes: &BTreeSet<&str>) -> bool {
    let owners = kept["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners
        .filter(|owner| owner["kind"] == "Node")
        .all(|owner| nodes.contains(owner["uid"].as_str().unwrap_or_default()))
}
