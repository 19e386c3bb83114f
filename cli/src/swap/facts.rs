//! The facts, read from the cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use models::earlier::{self, EarlierShadow};
use models::names::{self, GROUP, SHADOW_DEFINITION, SYSTEM_NAMESPACE};
use models::shadow::BottlerocketShadow;
use planner::view::{NodeFacts, Projection as _};
use serde_json::{Value, json};

use super::record::{self, Record};
use super::settle::{Report, unsettled};
use super::steps::{Definition, Facts, Live, Phase, ReadOnly};
use crate::call::{self, call, code, get_metadata, get_one, if_there, list, list_in};
use crate::marks::Tool;
use crate::uninstall::is_marked;

/// Time for which no shadow of the earlier operator is to be seen before the definition forgets its versions: an API
/// server that has not yet heard of v3 may still store an object in v2.
const DELAY: SignedDuration = SignedDuration::from_secs(5);

/// Number of writes in a row that have to be refused. Each may reach another API server.
const REFUSALS: usize = 3;

/// Observations that take time. They are the only thing that a command does not find again after an interruption: then
/// it observes from the start.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The first report of each node, and when it was seen.
    nodes: BTreeMap<String, (Report, Timestamp)>,
    /// Since when, in this phase, no shadow is stored in another version than the definition's.
    clear_since: Option<(Phase, Timestamp)>,
}

/// Returns the API of a kind of Kubernetes, for objects as they are, in all namespaces.
pub(super) fn untyped<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

pub(crate) fn shadow_resource(version: &str) -> ApiResource {
    let mut resource = ApiResource::erase::<BottlerocketShadow>(&());
    resource.api_version = format!("{GROUP}/{version}");
    version.clone_into(&mut resource.version);
    resource
}

/// Returns an object as it is in the cluster. Items of a list do not name their kind.
fn live(object: &DynamicObject, resource: &ApiResource) -> anyhow::Result<Live> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = json!(resource.api_version);
    value["kind"] = json!(resource.kind);
    Ok(Live {
        kept: record::kept(&value),
        uid: object.uid().unwrap_or_default(),
        version: object.resource_version().unwrap_or_default(),
        deleting: object.metadata.deletion_timestamp.is_some(),
    })
}

/// Reads all facts. The shadows are read once the earlier operator is stopped, or if `ahead` is true: with its webhook
/// dead, they may take long to fail. Where the definition has v3 alone, there is no webhook.
pub(super) async fn gather(
    client: &Client,
    memory: &mut Memory,
    quiet: SignedDuration,
    ahead: bool,
) -> anyhow::Result<Facts> {
    let now = crate::clock::now();
    let definition = definition(client).await?;
    let phase = definition.as_ref().map_or(Phase::Absent, Definition::phase);
    let (mut workloads, pods) = (workloads(client).await?, pods(client).await?);
    workloads.retain(|workload| !workload.deleting);
    // Nothing is decided by nodes and shadows before that, and a wait reads all facts every second.
    let (nodes, (earlier, own)) = if ahead || phase == Phase::Ours || (workloads.is_empty() && pods.is_empty()) {
        (nodes(client).await?, shadows(client, definition.as_ref(), phase).await?)
    } else {
        (BTreeMap::new(), (Ok(Vec::new()), None))
    };
    let unsettled = match &earlier {
        Ok(shadows) if (ahead || pods.is_empty()) && phase == Phase::Earlier => {
            let reports = reports(client, shadows, &nodes).await?;
            unsettled(&mut memory.nodes, &reports, now, quiet)
        }
        _ => Vec::new(),
    };
    let read_only = read_only(client, definition.as_ref()).await?;
    let open = read_only.policy.is_none() && read_only.binding.is_none();
    let clear = match phase {
        Phase::Both => own.is_some() && earlier.as_ref().is_ok_and(Vec::is_empty),
        Phase::Returning => own.as_ref().is_some_and(Vec::is_empty) && open,
        Phase::Absent | Phase::Earlier | Phase::Ours | Phase::Other => false,
    };
    memory.clear_since = memory.clear_since.filter(|(of, _)| *of == phase).or(Some((phase, now))).filter(|_| clear);
    Ok(Facts {
        now,
        namespace: get_metadata(&Api::<Namespace>::all(client.clone()), SYSTEM_NAMESPACE).await?.is_some(),
        record: record(client).await?,
        workloads,
        installed: installed(client).await?,
        read_only,
        rechecked: memory.clear_since.is_some_and(|(_, since)| now.duration_since(since) >= DELAY),
        definition,
        pods,
        nodes,
        earlier,
        unsettled,
        own,
    })
}

async fn nodes(client: &Client) -> anyhow::Result<BTreeMap<String, NodeFacts>> {
    Ok(call::nodes(client).await?.iter().filter_map(NodeFacts::project).map(|node| (node.name.clone(), node)).collect())
}

/// Returns true if this operator's controller or any pod of it exists.
async fn installed(client: &Client) -> anyhow::Result<bool> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = get_metadata(&api, names::CONTROLLER).await?.is_some();
    Ok(found || !call::installed_pods(client).await?.is_empty())
}

pub(crate) async fn record(client: &Client) -> anyhow::Result<Record> {
    Record::read(&list_in::<ConfigMap>(client, SYSTEM_NAMESPACE, call::installed()).await?)
}

pub(crate) async fn definition(client: &Client) -> anyhow::Result<Option<Definition>> {
    let found = get_one(&untyped::<CustomResourceDefinition>(client), SHADOW_DEFINITION).await?;
    let Some(found) = found else { return Ok(None) };
    let spec = &found.data["spec"];
    let names = |is: fn(&Value) -> bool| -> Vec<String> {
        let versions = spec["versions"].as_array().into_iter().flatten().filter(|version| is(version));
        versions.filter_map(|version| Some(version["name"].as_str()?.to_owned())).collect()
    };
    let texts = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap_or_default() };
    Ok(Some(Definition {
        live: live(&found, &ApiResource::erase::<CustomResourceDefinition>(&()))?,
        versions: names(|_| true),
        served: names(|version| version["served"] == true),
        storage: names(|version| version["storage"] == true).pop().unwrap_or_default(),
        stored: texts(&found.data["status"]["storedVersions"]),
        reviews: texts(&spec["conversion"]["webhook"]["conversionReviewVersions"]),
        tools: Tool::all_of(&found.metadata),
        ours: is_marked(&found.metadata),
    }))
}

/// Reads the workloads whose pods are the earlier operator's.
pub(crate) async fn workloads(client: &Client) -> anyhow::Result<Vec<Live>> {
    let mut found = Vec::new();
    for resource in [ApiResource::erase::<Deployment>(&()), ApiResource::erase::<DaemonSet>(&())] {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        for object in list(&api, ListParams::default()).await? {
            let labels = &object.data["spec"]["template"]["metadata"]["labels"];
            let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap_or_default();
            if earlier::is_pod_of(&labels) {
                found.push(live(&object, &resource)?);
            }
        }
    }
    Ok(found)
}

/// Reads the earlier operator's pods, terminating ones included. One that has ended acts no more.
async fn pods(client: &Client) -> anyhow::Result<Vec<String>> {
    let described = |pod: Pod| {
        let node = pod.spec.and_then(|spec| spec.node_name);
        let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
        let ends = if pod.metadata.deletion_timestamp.is_some() { ", terminating" } else { "" };
        format!("{node}{ends}")
    };
    let found = call::earlier_pods(client, described).await?;
    Ok(found.into_iter().map(|(title, more)| format!("{title}{more}")).collect())
}

/// The earlier operator's shadows, or the reason why they cannot be read; and this operator's.
type Shadows = (Result<Vec<Live>, String>, Option<Vec<Live>>);

async fn shadows(client: &Client, definition: Option<&Definition>, phase: Phase) -> anyhow::Result<Shadows> {
    if phase == Phase::Ours {
        return Ok((Ok(Vec::new()), at_own_version(client).await?.map(|(own, _)| own)));
    }
    let has_earlier = matches!(phase, Phase::Earlier | Phase::Both | Phase::Returning);
    let Some(definition) = definition.filter(|_| has_earlier) else { return Ok((Ok(Vec::new()), None)) };
    let Some(version) = definition.readable().first().copied() else {
        return Ok((Err("neither v1 nor v2 is served".to_owned()), None));
    };
    let resource = shadow_resource(version);
    let old = match list(&Api::all_with(client.clone(), &resource), ListParams::default()).await {
        Ok(objects) => objects.iter().map(|object| live(object, &resource)).collect::<anyhow::Result<Vec<_>>>()?,
        Err(error) if code(&error) == Some(403) => return Err(error),
        // With a dead webhook: 429 and 500.
        Err(error) => return Ok((Err(format!("{error:#}")), None)),
    };
    if phase == Phase::Earlier {
        return Ok((Ok(old), None));
    }
    let Some((own, unmigrated)) = at_own_version(client).await? else { return Ok((Ok(Vec::new()), None)) };
    // One that is gone at v3 was deleted between the two lists.
    Ok((Ok(old.into_iter().filter(|shadow| unmigrated.contains(&shadow.uid)).collect()), Some(own)))
}

/// Reads all shadows at v3: those with the content of this operator, and the uids of the others; `None` while v3 is not
/// served.
async fn at_own_version(client: &Client) -> anyhow::Result<Option<(Vec<Live>, BTreeSet<String>)>> {
    let resource = shadow_resource("v3");
    let answer = list::<DynamicObject>(&Api::all_with(client.clone(), &resource), ListParams::default()).await;
    let Some(all) = if_there(answer)? else { return Ok(None) };
    // Only a shadow of this operator has an attempt.
    let (migrated, unmigrated): (Vec<_>, Vec<_>) =
        all.iter().partition(|object| object.data["spec"]["attempt"].is_i64());
    let unmigrated: BTreeSet<String> = unmigrated.into_iter().filter_map(kube::ResourceExt::uid).collect();
    let own = migrated.into_iter().map(|object| live(object, &resource)).collect::<anyhow::Result<_>>()?;
    Ok(Some((own, unmigrated)))
}

/// Reads what the kubelets report of the nodes whose hosts were asked to reboot.
async fn reports(
    client: &Client,
    shadows: &[Live],
    nodes: &BTreeMap<String, NodeFacts>,
) -> anyhow::Result<BTreeMap<String, Report>> {
    let rebooting = shadows.iter().filter(|shadow| EarlierShadow::read(&shadow.kept).may_reboot());
    let names = rebooting.filter_map(|shadow| shadow.kept["metadata"]["name"].as_str()).map(names::node_of_shadow);
    let mut reports: BTreeMap<String, Report> = BTreeMap::new();
    for node in names.filter_map(|name| nodes.get(name)) {
        let report = Report { ready: node.ready, boot_id: node.boot_id.clone(), renewed: String::new() };
        reports.insert(node.name.clone(), report);
    }
    if reports.is_empty() {
        return Ok(reports);
    }
    for lease in call::node_leases(client).await? {
        if let Some(report) = reports.get_mut(&lease.name_any())
            && let Some(time) = lease.spec.and_then(|spec| spec.renew_time)
        {
            report.renewed = time.0.to_string();
        }
    }
    Ok(reports)
}

async fn read_only(client: &Client, definition: Option<&Definition>) -> anyhow::Result<ReadOnly> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut found = ReadOnly {
        policy: get_metadata(&policies, earlier::READ_ONLY_POLICY).await?.and_then(|meta| meta.uid),
        binding: get_metadata(&bindings, earlier::READ_ONLY_POLICY).await?.and_then(|meta| meta.uid),
        ..ReadOnly::default()
    };
    let version = definition.and_then(|definition| definition.readable().first().copied());
    let Some(version) = version else { return Ok(found) };
    if found.policy.is_some() && found.binding.is_some() {
        let resource = shadow_resource(version);
        found.enforced = true;
        for _ in 0..REFUSALS {
            let (enforced, refusal) = is_refused(client, &resource).await?;
            found.enforced &= enforced;
            found.refusal = found.refusal.or(refusal);
        }
    }
    Ok(found)
}

/// Returns true if the API server refuses a write at an old version for its policy, and otherwise the refusal, if it is one.
/// The write is a dry run.
async fn is_refused(client: &Client, resource: &ApiResource) -> anyhow::Result<(bool, Option<String>)> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), SYSTEM_NAMESPACE, resource);
    let mut object = DynamicObject::new("brs-takeover-check", resource);
    object.data = json!({"spec": {"state": "Idle"}});
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    match call(&format!("create bottlerocketshadows in {SYSTEM_NAMESPACE}"), api.create(&dry, &object)).await {
        Err(error) if format!("{error:#}").contains(deploy::takeover::READ_ONLY_MESSAGE) => Ok((true, None)),
        // The version is not served yet, the namespace is gone, or a policy of another tool refuses the write first.
        Err(error) if matches!(code(&error), Some(400..=499)) => Ok((false, Some(format!("{error:#}")))),
        Err(error) => Err(error),
        Ok(_) => Ok((false, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::Next;
    use super::super::undo;
    use super::*;
    use crate::uninstall::testing::Server;

    #[tokio::test]
    async fn way_back_names_armed_hosts_also_where_workloads_of_earlier_operator_are_back() {
        let server = Server::default();
        let versions = json!([{"name": "v3", "served": true, "storage": true}]);
        server.add(
            &format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{SHADOW_DEFINITION}"),
            json!({"metadata": {"name": SHADOW_DEFINITION}, "spec": {"versions": versions}}),
        );
        let agents = json!({
            "metadata": {"name": "agent", "namespace": "old"},
            "spec": {"template": {"metadata": {"labels": {earlier::COMPONENT_LABEL: "agent"}}}},
        });
        let shadow = json!({
            "kind": "BottlerocketShadow", "metadata": {"name": "brs-a", "namespace": "old"},
            "spec": {"state": "StagedAndPerformedUpdate"},
        });
        let record = Record::default().next_map(&[shadow]).unwrap();
        for (path, items) in [
            ("/apis/apps/v1/deployments", vec![]),
            ("/apis/apps/v1/daemonsets", vec![agents]),
            ("/apis/brupop.bottlerocket.aws/v3/bottlerocketshadows", vec![]),
            ("/api/v1/pods", vec![]),
            ("/api/v1/nodes", vec![json!({"metadata": {"name": "a", "uid": "n"}})]),
            ("/api/v1/namespaces/brupop-system/configmaps", vec![record]),
            ("/api/v1/namespaces/brupop-system/pods", vec![]),
            ("/api/v1/namespaces/brupop-agents/pods", vec![]),
        ] {
            server.add(path, json!({"metadata": {}, "items": items}));
        }
        let facts = gather(&server.client(), &mut Memory::default(), SignedDuration::ZERO, false).await.unwrap();
        assert_eq!(facts.workloads.len(), 1);
        let Next::Blocked(reason) = undo::next(&facts) else { panic!("it is complete") };
        assert!(reason.contains("found nothing armed: a (to let"), "{reason}");
    }
}
