//! Reading the facts about the earlier operator. Nothing is written, and each call has a time limit.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use models::earlier;
use models::names;
use serde_json::Value;
use tokio::time::Instant;

use super::facts::{Conversion, Facts, Shadow, Workload};
use crate::call::{call, code, earlier_pods, list, nodes};
use crate::helm::Releases;
use crate::marks::{NodeState, Tool};
use crate::swap::{self, Definition, record, shadow_resource};

/// Time limit of reading one shadow: a conversion webhook that does not answer keeps the API server waiting.
const SHADOW_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of reading all shadows one by one.
const ALL_SHADOWS_LIMIT: Duration = Duration::from_secs(120);

/// Reads everything that the preflight check needs.
pub(super) async fn survey(client: &Client) -> anyhow::Result<Facts> {
    let outdated = call("get /version", client.apiserver_version()).await?;
    let mut facts = Facts { outdated: crate::preflight::outdated(&outdated), ..Facts::default() };
    facts.definition = swap::definition(client).await?;
    facts.workloads = workloads(client).await?;
    // Nothing else of them is needed, and they are kept until the end.
    let metadata_alone = |pod: Pod| Pod { metadata: pod.metadata, ..Pod::default() };
    facts.pods = earlier_pods(client, metadata_alone).await?.into_values().collect();
    facts.nodes = nodes(client).await?.iter().map(NodeState::of).collect();
    if let Some(definition) = facts.definition.clone() {
        shadows(client, &definition, &mut facts).await?;
        if definition.converts_by_webhook() {
            facts.conversion = match facts.shadows.first() {
                Some(shadow) => conversion(client, &definition, shadow).await,
                None => Conversion::Untested,
            };
        }
    }
    // Before, the shadows themselves are there.
    if facts.definition.as_ref().is_some_and(|definition| definition.versions.iter().any(|version| version == "v3")) {
        match record(client).await {
            Ok(record) => {
                facts.recorded = record.of_kind("BottlerocketShadow").map(Shadow::of).collect();
                facts.recorded_tools = record.of_kind("CustomResourceDefinition").flat_map(Tool::all_of_kept).collect();
            }
            Err(error) => facts.unread.push(format!(
                "the record of takeover swap ({error:#}): cordons and labels of the earlier operator count as those of others, and \
                 a Helm release that holds the definition is not named"
            )),
        }
    }
    let of_workloads = facts.workloads.iter().flat_map(|workload| &workload.tools);
    let tools: Vec<Tool> = facts.tools_of_definition().iter().chain(of_workloads).cloned().collect();
    facts.releases = Releases::read(client, &tools).await;
    facts.unread.extend(facts.releases.unread.iter().cloned());
    facts.missing_rights = crate::rights::missing(client).await?;
    Ok(facts)
}

/// Reads the workloads of the earlier operator, in any namespace.
pub(super) async fn workloads(client: &Client) -> anyhow::Result<Vec<Workload>> {
    Ok(swap::workloads(client).await?.iter().filter_map(|found| Workload::of(&found.kept)).collect())
}

/// Reads the workloads of the earlier operator that `takeover swap` has recorded.
pub(super) async fn recorded_workloads(client: &Client) -> anyhow::Result<Vec<Workload>> {
    let record = record(client).await?;
    let all = record.of_kind("Deployment").chain(record.of_kind("DaemonSet")).filter_map(Workload::of);
    Ok(all.map(|workload| Workload { recorded: true, ..workload }).collect())
}

fn read(shadow: &DynamicObject) -> Shadow {
    Shadow::of(&serde_json::to_value(shadow).unwrap_or(Value::Null))
}

/// Reads the shadows of the earlier operator. Without its webhook no list holds objects that are stored in two versions;
/// then each is read by itself, by the name of its Node.
pub(super) async fn shadows(client: &Client, definition: &Definition, facts: &mut Facts) -> anyhow::Result<()> {
    let versions = definition.readable();
    let Some(newest) = versions.first() else { return Ok(()) };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &shadow_resource(newest));
    match list(&all, ListParams::default()).await {
        Ok(list) => {
            // In the definition of a takeover, the shadows of this operator are read as well.
            let theirs = list.iter().filter(|shadow| shadow.namespace().as_deref() != Some(names::SYSTEM_NAMESPACE));
            facts.shadows = theirs.map(read).collect();
        }
        Err(error) if matches!(code(&error), Some(401 | 403)) => return Err(error),
        Err(error) => {
            each(client, &versions, facts).await;
            facts.unread.push(format!(
                "a list of all shadows ({error:#}): they were read one by one, by the names of the nodes, so that shadows \
                 without a Node are missing here"
            ));
        }
    }
    Ok(())
}

/// Reads the shadow of each node by itself.
async fn each(client: &Client, versions: &[&str], facts: &mut Facts) {
    let mut namespaces = facts.namespaces();
    if namespaces.is_empty() {
        namespaces.push(earlier::NAMESPACE.to_owned());
    }
    let deadline = Instant::now() + ALL_SHADOWS_LIMIT;
    for (number, node) in facts.nodes.iter().enumerate() {
        if Instant::now() >= deadline {
            let rest = facts.nodes.len() - number;
            facts.unread.push(format!("the shadows of {rest} nodes: reading all takes too long without a list"));
            facts.incomplete = true;
            break;
        }
        for namespace in &namespaces {
            let name = names::shadow_name(&node.name);
            let (mut failed, mut shadow) = (false, None);
            for version in versions {
                match get(client, version, namespace, &name).await {
                    Ok(answer) => shadow = answer,
                    Err(_) => failed = true,
                }
                if shadow.is_some() {
                    break;
                }
            }
            match shadow {
                Some(shadow) => facts.shadows.push(read(&shadow)),
                None if failed => facts.unreadable.push(format!("{namespace}/{name}")),
                None => {}
            }
        }
    }
}

/// Reads one shadow; an error is its message.
async fn get(client: &Client, version: &str, namespace: &str, name: &str) -> Result<Option<DynamicObject>, String> {
    let shadows: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &shadow_resource(version));
    match tokio::time::timeout(SHADOW_LIMIT, shadows.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(kube::Error::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", SHADOW_LIMIT.as_secs())),
    }
}

/// Tries the conversion webhook. An object is stored in one of the versions, so that reading it in the other needs it.
async fn conversion(client: &Client, definition: &Definition, shadow: &Shadow) -> Conversion {
    let versions = definition.readable();
    if versions.len() < 2 {
        return Conversion::NoWebhook;
    }
    for version in versions {
        match get(client, version, &shadow.namespace, &shadow.name).await {
            Ok(Some(_)) => {}
            // Deleted meanwhile.
            Ok(None) => return Conversion::Untested,
            Err(message) => return Conversion::Fails(message),
        }
    }
    Conversion::Answers
}
