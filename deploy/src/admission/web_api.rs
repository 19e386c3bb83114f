//! Writes of the web API to shadows.
//!
//! RBAC can give the right to a shadow's status as a whole or not at all. The web API needs only the agent status. The
//! controller status, on which drains and permits rest, is protected here, whatever field manager the web API names: any
//! client can use any name. The record of field owners is protected too. A field that two managers own stays when one of
//! them releases it: a client that owned the `permit` in `spec` could keep it from being withdrawn.

use kube::Resource;
use models::names::{AGENT_MANAGER, APISERVER, CONTROLLER_MANAGER, GROUP};
use models::shadow::{AGENT_CONDITIONS, AgentReport, BottlerocketShadow, ControllerReport};
use schemars::schema_for;
use serde_json::{Value, json};

use super::limits::{Limits, list, validation};
use crate::crds;
use crate::reference::property_names;

/// The policy of the web API.
pub(super) fn status_alone() -> anyhow::Result<[Value; 2]> {
    let crd = crds::of_kind(&BottlerocketShadow::kind(&()))?;
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let versions: Vec<_> = versions.map(|version| &version["name"]).collect();
    let plural = BottlerocketShadow::plural(&());
    let limits = Limits {
        name: APISERVER,
        account: APISERVER,
        part: "the web API",
        // Writes of the shadows and of their status, by each version that is served.
        rule: json!({
            "apiGroups": [GROUP], "apiVersions": versions, "resources": [plural, format!("{plural}/status")],
            "operations": ["CREATE", "UPDATE", "DELETE"], "scope": "*",
        }),
        variables: variables(),
        validations: validations(),
    };
    Ok(limits.objects())
}

fn variables() -> Vec<Value> {
    let agents = list(AGENT_CONDITIONS);
    let mut all = Vec::new();
    for (when, object) in [("Before", "oldObject"), ("After", "object")] {
        let variables = [
            // Server-side apply of an empty status leaves null.
            ("status", format!("has({object}.status) && {object}.status != null ? dyn({object}.status) : dyn({{}})")),
            ("conditions", format!("variables.status{when}.?conditions.orValue([]).filter(c, !(c.type in {agents}))")),
            ("owners", format!("dyn({object}.metadata.?managedFields.orValue([]))")),
            (
                "controllers",
                format!("variables.owners{when}.filter(o, o.?manager.orValue('') == '{CONTROLLER_MANAGER}')"),
            ),
        ];
        let named = |(name, expression)| json!({"name": format!("{name}{when}"), "expression": expression});
        all.extend(variables.map(named));
    }
    all
}

fn validations() -> Vec<Value> {
    let validation = |expression: String, message: &str| validation(&expression, "the web API", message);
    let same = |what: &str| {
        let (before, after) = (format!("variables.{what}Before"), format!("variables.{what}After"));
        format!("size({before}) == size({after}) && {before}.all(one, one in {after})")
    };
    let version = BottlerocketShadow::version(&());
    let mut all = vec![validation(
        // Another version may lack fields, and a write through it then removes them.
        format!("request.?subResource.orValue('') == 'status' && request.requestResource.version == '{version}'"),
        &format!("writes nothing but the status of shadows, as {version}"),
    )];
    for field in property_names(&schema_for!(ControllerReport)) {
        all.push(validation(
            format!("variables.statusBefore.?{field} == variables.statusAfter.?{field}"),
            &format!("may not change status.{field}, which is the controller's"),
        ));
    }
    all.extend([
        validation(same("conditions"), "may not change the controller's conditions"),
        validation(same("controllers"), "may not change what the controller owns"),
        validation(
            format!("variables.ownersAfter.all(o, {})", owns_nothing_more("o")),
            "may not make a field manager the owner of anything but the agent status",
        ),
    ]);
    all
}

/// CEL expression: an entry of `managedFields` has nothing outside the agent status that the same manager did not own
/// before. An entry may shrink: a report takes the agent status from a user, also where that user's entry has other
/// fields.
fn owns_nothing_more(entry: &str) -> String {
    let agents = property_names(&schema_for!(AgentReport));
    let fields: Vec<String> = agents.iter().map(|field| format!("f:{field}")).collect();
    let fields: Vec<&str> = [".", "f:conditions"].into_iter().chain(fields.iter().map(String::as_str)).collect();
    let conditions: Vec<String> = AGENT_CONDITIONS.iter().map(|type_| format!("k:{{\"type\":\"{type_}\"}}")).collect();
    let conditions: Vec<&str> = ["."].into_iter().chain(conditions.iter().map(String::as_str)).collect();
    // The paths to partly protected fields, and the parts of them that are free to own.
    let levels = [
        (String::new(), vec!["f:status"]),
        ("[?'f:status']".to_owned(), fields),
        ("[?'f:status'][?'f:conditions']".to_owned(), conditions),
    ];
    let within = levels.map(|(path, free)| {
        let (now, before) = (owned(entry, &path), owned("b", &path));
        format!("{now}.all(f, f in {} || {before}[?f] == {now}[?f])", list(&free))
    });
    let same = ["manager", "operation", "subresource"].map(|part| format!("b.?{part} == {entry}.?{part}"));
    // A new entry is compared with an empty one. It is the agents', or their number would be unlimited.
    let new = format!("({entry}.?manager.orValue('') == '{AGENT_MANAGER}' ? [dyn({{}})] : [])");
    // The entry that the API server itself adds at the first apply to an object without recorded owners.
    let first = format!("size(variables.ownersBefore) == 0 && {entry}.?manager.orValue('') == 'before-first-apply'");
    format!(
        "({new} + variables.ownersBefore.filter(b, {})).exists(b, {}) || ({first})",
        same.join(" && "),
        within.join(" && ")
    )
}

/// The fields under a path in an entry of `managedFields`.
fn owned(entry: &str, path: &str) -> String {
    format!("{entry}.?fieldsV1{path}.orValue({{}})")
}
