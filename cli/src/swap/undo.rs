//! The next step of `undo`: until v1 and v2 are dropped from the definition, everything that `swap` has done can be put back
//! as it was.
//!
//! ```text
//! delete shadows of this operator ► definition v1 v2 v3, stored as before ► v1 and v2 writable ► every API server knows it
//!   ► shadows as recorded ► storedVersions without v3 ► definition as recorded
//!   ► conversion as recorded ► workloads as recorded ► record deleted
//! ```
//!
//! The steps of the first two lines are left out if v3 was never stored.

use std::collections::{BTreeMap, BTreeSet};

use deploy::yaml::id;
use models::{earlier, names};
use serde_json::{Value, json};

use super::armed::{armed, disarm, has_node};
use super::steps::{Facts, Next, Phase, Step, Waiting, installed, is_api_server, open, stop, unknown, unreadable};
use crate::advice::command;
use crate::shell::for_cluster;

/// Returns the reason why `undo` does nothing once the earlier versions are dropped.
fn too_late(facts: &Facts) -> String {
    let armed = armed(facts);
    let first = if armed.is_empty() {
        String::new()
    } else {
        format!(
            "first reboot or disarm the hosts that the earlier operator may have left armed, since it cannot go on from there, \
             that have booted no other version since, and on which no agent of this operator has found nothing armed: {} (to \
             let this operator disarm them, once installed: {}). Then ",
            armed.join(", "),
            disarm(&armed)
        )
    };
    format!(
        "the definition has v3 alone, so that the takeover is complete. To go back: {first}save the ConfigMaps \
         brupop-takeover-* in brupop-system, remove this operator with its definition ({}), and install the earlier one again by \
         its own means: it makes its shadows itself",
        // It is refused for any other namespace.
        command(names::SYSTEM_NAMESPACE, "uninstall")
    )
}

pub(super) fn next(facts: &Facts) -> Next {
    if let Some(reason) = unknown(facts).or_else(|| installed(facts)) {
        return Next::Blocked(reason);
    }
    let from_v3 = match facts.phase() {
        Phase::Ours => return Next::Blocked(too_late(facts)),
        Phase::Both | Phase::Returning => Some(from_v3(facts)),
        Phase::Absent | Phase::Earlier | Phase::Other => None,
    };
    from_v3
        .or_else(|| open(facts))
        .or_else(|| conversion(facts))
        .or_else(|| workload(facts))
        .or_else(|| {
            let (name, uid) = facts.record.maps.first()?;
            let meta = json!({"name": name, "namespace": names::SYSTEM_NAMESPACE});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta});
            Some(Next::Act(Step::delete(map, uid)))
        })
        .unwrap_or(Next::Done)
}

/// Stores v2 again, or v1 where it was stored before, and then restores the definition.
fn from_v3(facts: &Facts) -> Next {
    let Some(kept) = facts.record.of_kind("CustomResourceDefinition").next() else {
        return Next::Blocked(format!(
            "the definition of the earlier operator is not recorded, so it cannot be restored: finish the takeover ({})",
            for_cluster("kubectl brupop takeover swap")
        ));
    };
    // Shadows are read only once nothing of the earlier operator runs.
    if let Some(stop) = stop(facts) {
        return stop;
    }
    let Some(own) = &facts.own else {
        return facts.earlier.as_ref().err().map_or(Next::Wait(Waiting::Served), |reason| unreadable(reason));
    };
    if !own.is_empty() {
        return Next::Act(Step::DeleteOwnShadows(own.clone()));
    }
    if facts.phase() == Phase::Both {
        return match deploy::takeover::versions_with_own(&kept["spec"]["versions"]) {
            Ok(versions) => Next::Act(Step::StoreEarlierVersion(versions)),
            Err(error) => Next::Blocked(format!("{error:#}")),
        };
    }
    if let Some(open) = open(facts) {
        return open;
    }
    if !facts.rechecked {
        return Next::Wait(Waiting::Stored);
    }
    let storage = facts.definition.as_ref().map_or("", |definition| &definition.storage);
    shadows(facts, storage).unwrap_or_else(|| {
        let stored = facts.definition.iter().flat_map(|definition| &definition.stored);
        let remaining: Vec<String> = stored.filter(|version| *version != "v3").cloned().collect();
        if facts.definition.as_ref().is_some_and(|definition| definition.stored == remaining) {
            Next::Act(Step::RestoreDefinition(kept.clone()))
        } else if remaining.is_empty() {
            Next::Act(Step::PruneStoredVersions(vec![storage.to_owned()]))
        } else {
            Next::Act(Step::PruneStoredVersions(remaining))
        }
    })
}

/// Restores the recorded shadows that are missing or incomplete.
fn shadows(facts: &Facts, storage: &str) -> Option<Next> {
    let live = match &facts.earlier {
        Ok(live) => live,
        Err(reason) => return Some(unreadable(reason)),
    };
    let live: BTreeMap<_, _> = live.iter().map(|live| (id(&live.kept), &live.kept)).collect();
    let nodes: BTreeSet<&str> = facts.nodes.values().map(|node| node.uid.as_str()).collect();
    let missing = facts.record.of_kind("BottlerocketShadow").filter(|kept| has_node(kept, &nodes)).filter_map(|kept| {
        let restored = earlier::at_version(kept, storage);
        // One that was not deleted is as it was, in the version that it is stored in.
        let is_there = live.get(&id(kept)).is_some_and(|live| same(live, kept) || same(live, &restored));
        (!is_there).then_some(restored)
    });
    let missing: Vec<Value> = missing.collect();
    (!missing.is_empty()).then_some(Next::Act(Step::RestoreShadows(missing)))
}

/// Returns true if two shadows have the same content. A field that is null says the same as one that is absent.
fn same(a: &Value, b: &Value) -> bool {
    let plain = |part: &Value| -> BTreeMap<String, Value> {
        let fields = part.as_object().into_iter().flatten();
        fields.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    ["spec", "status"].iter().all(|part| plain(&a[part]) == plain(&b[part]))
}

fn conversion(facts: &Facts) -> Option<Next> {
    let kept = &facts.record.of_kind("CustomResourceDefinition").next()?["spec"]["conversion"];
    let Some(definition) = &facts.definition else {
        return Some(Next::Blocked(
            "the definition of the shadows was deleted, and every shadow with it: install the earlier operator again by its \
             own means"
                .to_owned(),
        ));
    };
    conversion_to_set(kept, &definition.live.kept["spec"]["conversion"])
        .map(|wanted| Next::Act(Step::SetConversion(wanted)))
}

/// Returns the recorded conversion, unless the live one is the same. The authority of its webhook stays where there is one:
/// cert-manager writes the one that is valid now, and again over any other.
fn conversion_to_set(kept: &Value, live: &Value) -> Option<Value> {
    const CLIENT: &str = "/webhook/clientConfig";
    let mut wanted = kept.clone();
    let authority = live.pointer(CLIENT).map(|client| &client["caBundle"]);
    if let Some(authority) = authority.filter(|authority| authority.as_str().is_some_and(|text| !text.is_empty()))
        && let Some(Value::Object(client)) = wanted.pointer_mut(CLIENT)
    {
        client.insert("caBundle".to_owned(), authority.clone());
    }
    (wanted != *live).then_some(wanted)
}

fn workload(facts: &Facts) -> Option<Next> {
    let exists = |object: &Value| facts.workloads.iter().any(|live| id(&live.kept) == id(object));
    let all = facts.record.of_kind("Deployment").chain(facts.record.of_kind("DaemonSet"));
    let missing = all.filter(|object| !exists(object));
    let first = missing.min_by_key(|object| (!is_api_server(object), id(object)))?;
    Some(Next::Act(Step::Create(first.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_is_restored_beside_a_tool_that_writes_the_authority_of_its_webhook() {
        let webhook = |authority: Value, path: &str| {
            let mut client = json!({"service": {"name": "brupop-apiserver", "path": path}});
            if !authority.is_null() {
                client["caBundle"] = authority;
            }
            json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v2", "v1"]}})
        };
        let none = || json!({"strategy": "None"});
        let recorded = || webhook(json!("A"), "/crdconvert");
        for (sentence, kept, live, expected) in [
            ("as recorded", recorded(), recorded(), None),
            ("the conversion of the swap", recorded(), none(), Some(recorded())),
            ("the authority was renewed", recorded(), webhook(json!("B"), "/crdconvert"), None),
            ("the authority was injected after the record", webhook(Value::Null, "/crdconvert"), recorded(), None),
            ("no authority", recorded(), webhook(Value::Null, "/crdconvert"), Some(recorded())),
            ("an empty authority", recorded(), webhook(json!(""), "/crdconvert"), Some(recorded())),
            (
                "another path and a renewed authority",
                recorded(),
                webhook(json!("B"), "/other"),
                Some(webhook(json!("B"), "/crdconvert")),
            ),
            ("none was recorded", none(), recorded(), Some(none())),
        ] {
            assert_eq!(conversion_to_set(&kept, &live), expected, "{sentence}");
        }
    }
}
