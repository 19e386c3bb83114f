//! The steps of a dry run: each is decided as if the ones before it had been carried out.

use std::collections::BTreeSet;

use models::names;
use serde_json::{Value, json};

use super::steps::{Definition, Facts, Live, Next, Step, Waiting};

/// Returns the shadow of a node in this operator's namespace.
pub(super) fn own_shadow(node: &str, status: &Value) -> Live {
    let meta = json!({"name": names::shadow_name(node), "namespace": names::SYSTEM_NAMESPACE});
    Live { kept: json!({"kind": "BottlerocketShadow", "metadata": meta, "status": status}), ..Live::default() }
}

/// Changes the facts as if the step had been carried out, or the wait had ended.
pub(super) fn assume(facts: &mut Facts, next: &Next) {
    // From the first step or wait on, v3 counts as served.
    _ = facts.own.get_or_insert_default();
    match next {
        Next::Act(step) => carry_out(facts, step),
        Next::Wait(waiting) => match waiting {
            Waiting::Pods(_) => facts.pods.clear(),
            Waiting::Nodes(_) => facts.unsettled.clear(),
            Waiting::Shadows(_) => facts.earlier = Ok(Vec::new()),
            Waiting::ReadOnly(_) => facts.read_only.enforced = true,
            Waiting::Served | Waiting::Answer(_) => {}
            Waiting::Recheck | Waiting::Stored => facts.rechecked = true,
        },
        Next::Blocked(_) | Next::Done => {}
    }
}

fn carry_out(facts: &mut Facts, step: &Step) {
    let both = || Definition {
        versions: ["v1", "v2", "v3"].map(str::to_owned).to_vec(),
        storage: "v3".to_owned(),
        stored: vec!["v2".to_owned(), "v3".to_owned()],
        ..Definition::default()
    };
    let own = facts.own.get_or_insert_default();
    match step {
        Step::CreateNamespace => facts.namespace = true,
        Step::Keep(objects) => facts.record.assume_map(objects),
        Step::Create(object) => match object["kind"].as_str() {
            Some("ValidatingAdmissionPolicy") => facts.read_only.policy = Some(String::new()),
            Some("ValidatingAdmissionPolicyBinding") => facts.read_only.binding = Some(String::new()),
            _ => facts.workloads.push(Live { kept: object.clone(), ..Live::default() }),
        },
        Step::Delete(object) => match object.kept["kind"].as_str() {
            Some("ValidatingAdmissionPolicy") => facts.read_only.policy = None,
            Some("ValidatingAdmissionPolicyBinding") => {
                (facts.read_only.binding, facts.read_only.enforced) = (None, false);
            }
            Some("ConfigMap") => facts.record.maps.retain(|(name, _)| object.kept["metadata"]["name"] != *name),
            _ => facts.workloads.retain(|other| other != object),
        },
        Step::SetConversion(conversion) => {
            if let Some(definition) = &mut facts.definition {
                definition.live.kept["spec"]["conversion"] = conversion.clone();
            }
            facts.earlier = facts.earlier.clone().or(Ok(Vec::new()));
        }
        Step::ServeAllVersions => facts.definition = Some(both()),
        Step::CreateShadows(nodes) => {
            own.extend(nodes.iter().map(|(node, _)| own_shadow(node, &Value::Null)));
        }
        Step::WriteRecords(nodes) => {
            for (node, ..) in nodes {
                let written = own_shadow(node, &json!({"record": {}}));
                own.retain(|shadow| shadow.id() != written.id());
                own.push(written);
            }
        }
        Step::DeleteShadows(_) => facts.earlier = Ok(Vec::new()),
        Step::PruneStoredVersions(stored) => {
            if let Some(definition) = &mut facts.definition {
                definition.stored.clone_from(stored);
            }
        }
        Step::ServeOwnVersion => {
            facts.definition = Some(Definition { versions: vec!["v3".to_owned()], ..both() });
        }
        Step::DeleteOwnShadows(_) => own.clear(),
        Step::StoreEarlierVersion(versions) => {
            let storage = versions.as_array().into_iter().flatten().find(|version| version["storage"] == true);
            let storage = storage.and_then(|version| version["name"].as_str()).unwrap_or_default().to_owned();
            if let Some(definition) = &mut facts.definition {
                // As the API server does.
                if !definition.stored.contains(&storage) {
                    definition.stored.push(storage.clone());
                }
                definition.storage = storage;
            }
            facts.rechecked = false;
            facts.earlier = facts.earlier.clone().or(Ok(Vec::new()));
        }
        Step::RestoreShadows(shadows) => {
            let restored = shadows.iter().map(|kept| Live { kept: kept.clone(), ..Live::default() });
            facts.earlier = Ok(facts.earlier.iter().flatten().cloned().chain(restored).collect());
        }
        Step::RestoreDefinition(kept) => {
            if let Some(definition) = &mut facts.definition {
                definition.live.kept.clone_from(kept);
                definition.versions.retain(|version| version != "v3");
            }
        }
    }
}

/// Returns all that would be done from the present state on, in order. The last one is what it ends with.
pub(super) fn all(mut facts: Facts, next: impl Fn(&Facts) -> Next) -> Vec<Next> {
    let mut all = Vec::new();
    // Every step changes the facts, so that none is repeated.
    let mut seen = BTreeSet::new();
    loop {
        let step = next(&facts);
        let ends = matches!(step, Next::Blocked(_) | Next::Done) || !seen.insert(format!("{step:?}"));
        assume(&mut facts, &step);
        all.push(step);
        if ends {
            return all;
        }
    }
}
