//! States of objects in a few words, without times and generated names.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ContainerState, Node, Pod};
use serde_json::Value;

/// The state of an object: a value for each of its fields.
pub type Fields = BTreeMap<String, String>;

/// The taints of the node lifecycle controller. Those that evict follow at the pace of its queue, and are not compared.
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// A Node. `boots` holds the boot ids that were seen, whose places replace them.
pub fn node(node: &Node, boots: &mut Vec<String>) -> Fields {
    let mut fields = Fields::new();
    let mut set = |field: &str, value: String| fields.insert(field.to_owned(), value);
    let status = node.status.as_ref();
    for condition in status.and_then(|status| status.conditions.as_ref()).into_iter().flatten() {
        set(&condition.type_, with(&condition.status, condition.reason.as_deref()));
    }
    if let Some(info) = status.and_then(|status| status.node_info.as_ref()) {
        let boot = boots.iter().position(|boot| *boot == info.boot_id).unwrap_or_else(|| {
            boots.push(info.boot_id.clone());
            boots.len() - 1
        });
        set("boot", (boot + 1).to_string());
    }
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    for key in TAINTS {
        let there = taints.iter().any(|taint| taint.key == key && taint.effect == "NoSchedule");
        set(&format!("taint {}", key.trim_start_matches("node.kubernetes.io/")), there.to_string());
    }
    set("unschedulable", spec.and_then(|spec| spec.unschedulable).unwrap_or_default().to_string());
    fields
}

/// A Lease, as it was created.
pub fn lease(lease: &Lease, node: &Node) -> Fields {
    let spec = lease.spec.clone().unwrap_or_default();
    let owner = lease.metadata.owner_references.iter().flatten().next();
    let owned = owner.is_some_and(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref());
    let held = spec.holder_identity == node.metadata.name;
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    [
        ("holder is the node", held.to_string()),
        ("owner is the node", owned.to_string()),
        ("seconds", seconds.to_string()),
    ]
    .map(|(field, value)| (field.to_owned(), value))
    .into()
}

/// A pod; `gone` once it is deleted from the API.
pub fn pod(pod: &Pod, gone: bool) -> Fields {
    let mut fields = Fields::new();
    let mut set = |field: &str, value: String| fields.insert(field.to_owned(), value);
    let object = match (gone, pod.metadata.deletion_grace_period_seconds) {
        (true, _) => "gone".to_owned(),
        (false, None) => "there".to_owned(),
        (false, Some(grace)) => format!("terminating: {grace} s"),
    };
    set("object", object);
    let Some(status) = &pod.status else { return fields };
    set("phase", with(status.phase.as_deref().unwrap_or_default(), status.reason.as_deref()));
    for condition in status.conditions.iter().flatten() {
        set(&condition.type_, with(&condition.status, condition.reason.as_deref()));
    }
    for container in status.container_statuses.iter().flatten() {
        set("container", state(container.state.as_ref()));
        set("container before", state(container.last_state.as_ref()));
        set("restarts", container.restart_count.to_string());
        set("container ready", container.ready.to_string());
        set("container started", container.started.unwrap_or_default().to_string());
    }
    fields
}

/// The claims of a pod's token.
pub fn token(claims: &Value, node: &Node, pod: &Pod) -> Fields {
    let bound = &claims["kubernetes.io"];
    let names = |what: &str, metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        let name = bound[what]["name"].as_str() == metadata.name.as_deref();
        let uid = bound[what]["uid"].as_str() == metadata.uid.as_deref();
        format!("name {name}, uid {uid}")
    };
    let lifetime = claims["exp"].as_i64().unwrap_or_default() - claims["iat"].as_i64().unwrap_or_default();
    let claim_names: Vec<&str> = claims.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let bound_names: Vec<&str> = bound.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    [
        ("audience", claims["aud"].to_string()),
        ("subject", claims["sub"].as_str().unwrap_or_default().to_owned()),
        ("lifetime in s", lifetime.to_string()),
        ("is the node's", names("node", &node.metadata)),
        ("is the pod's", names("pod", &pod.metadata)),
        ("claims", claim_names.join(" ")),
        ("bound to", bound_names.join(" ")),
    ]
    .map(|(field, value)| (field.to_owned(), value))
    .into()
}

fn with(status: &str, reason: Option<&str>) -> String {
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("{status}: {reason}"),
        None => status.to_owned(),
    }
}

fn state(state: Option<&ContainerState>) -> String {
    let Some(state) = state else { return "none".to_owned() };
    if let Some(waiting) = &state.waiting {
        return with("waiting", waiting.reason.as_deref());
    }
    if let Some(ended) = &state.terminated {
        return format!("{} ({})", with("terminated", ended.reason.as_deref()), ended.exit_code);
    }
    if state.running.is_some() { "running".to_owned() } else { "none".to_owned() }
}
