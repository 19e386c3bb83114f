//! The objects of an installation in the cluster: found by their label, deleted by uid, awaited.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Preconditions};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::ApiResource;
use models::names::{self, AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::{call, get_metadata, get_one, if_there, is_transient, list_metadata, right};
use crate::page::print_line;
use crate::shell::for_cluster;

/// Polling interval.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Time-out for an object to be gone after its deletion, and for a node that is not Ready to be back.
pub(super) const GONE: Duration = Duration::from_secs(5 * 60);

/// Makes a call again until a time while it may succeed later: half of an uninstallation is worse than a wait. An outage is shown once.
pub(super) async fn answered<T>(deadline: Instant, request: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut shown = false;
    loop {
        match request().await {
            Err(error) if is_transient(&error) && Instant::now() < deadline => {
                if !shown {
                    print_line(format_args!("waiting for the API server ({error:#})"));
                }
                shown = true;
                tokio::time::sleep(PERIOD).await;
            }
            answer => return answer,
        }
    }
}

/// The objects that the controller, the hook for AWS and users make: API version, kind, namespace and name. They go with their namespace, where
/// that is removed.
const MADE: [(&str, &str, &str, &str); 10] = [
    ("v1", "Secret", SYSTEM_NAMESPACE, names::CA_SECRET),
    ("v1", "Secret", SYSTEM_NAMESPACE, names::SERVING_SECRET),
    ("v1", "Secret", SYSTEM_NAMESPACE, names::PERMIT_KEY_SECRET),
    ("v1", "Secret", SYSTEM_NAMESPACE, names::HISTORY_KEY_SECRET),
    ("v1", "Secret", SYSTEM_NAMESPACE, names::NOTICES_SECRET),
    ("v1", "Secret", SYSTEM_NAMESPACE, names::PROMETHEUS_SECRET),
    ("v1", "ConfigMap", SYSTEM_NAMESPACE, names::HISTORY_KEYS),
    ("v1", "ConfigMap", SYSTEM_NAMESPACE, names::AWS),
    ("v1", "ConfigMap", AGENT_NAMESPACE, names::TRUST_CONFIG_MAP),
    ("coordination.k8s.io/v1", "Lease", SYSTEM_NAMESPACE, names::CONTROLLER),
];

/// Returns the objects that are not part of an installation and made for it later. Not all have the label of the installation: their names
/// are the operator's own.
pub(super) fn made() -> Vec<Value> {
    let objects = MADE.iter().map(|(version, kind, namespace, name)| {
        json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": namespace, "name": name}})
    });
    objects.collect()
}

/// Returns true if an object has the label of everything that is installed with this operator. The earlier operator has
/// objects of the same name, above all the definition of the shadows.
pub(crate) fn is_marked(meta: &ObjectMeta) -> bool {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(names::APPLICATION_LABEL));
    label.is_some_and(|value| value == names::APPLICATION)
}

/// An object of this operator in the cluster.
pub(super) struct Found {
    api: Api<DynamicObject>,
    name: String,
    uid: Option<String>,
    /// Kind, namespace and name.
    pub(super) id: String,
}

/// Returns the API for an object, its resource and where it is, as in a right, and its name. It is in a namespace if it names one.
pub(crate) fn api(client: &Client, object: &Value) -> anyhow::Result<(Api<DynamicObject>, String, String)> {
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let meta = &object["metadata"];
    let name = meta["name"].as_str().context("an object without a name")?.to_owned();
    Ok(match meta["namespace"].as_str() {
        Some(namespace) => {
            let right = format!("{} in {namespace}", resource.plural);
            (Api::namespaced_with(client.clone(), namespace, &resource), right, name)
        }
        None => (Api::all_with(client.clone(), &resource), resource.plural.clone(), name),
    })
}

/// Returns the object in the cluster, if it exists and was installed with this operator.
pub(super) async fn find(client: &Client, object: &Value) -> anyhow::Result<Option<Found>> {
    let id = deploy::yaml::id(object);
    let (api, _, name) = api(client, object)?;
    let Some(meta) = get_metadata(&api, &name).await? else { return Ok(None) };
    if !is_marked(&meta) && !MADE.iter().any(|(_, kind, ..)| object["kind"] == *kind) {
        let next = match object["kind"].as_str() {
            Some("Namespace") => {
                format!(". If nothing else needs it: {}", for_cluster(&format!("kubectl delete namespace {name}")))
            }
            _ => String::new(),
        };
        print_line(format_args!(
            "{id} stays: it has no label {}={}, so it was not installed with this operator{next}",
            names::APPLICATION_LABEL,
            names::APPLICATION
        ));
        return Ok(None);
    }
    if object["kind"] == "CustomResourceDefinition" {
        let others = objects_elsewhere(client, object).await.with_context(|| {
            format!("the objects of {id} cannot be listed; it is deleted only when none is another operator's")
        })?;
        if let Some(first) = others.first() {
            print_line(format_args!(
                "{id} stays: deleting it would delete {} of its objects outside of {}, such as {first}. Once they are not \
                 needed any more: {}",
                others.len(),
                names::SYSTEM_NAMESPACE,
                for_cluster(&format!("kubectl delete crd {name}"))
            ));
            return Ok(None);
        }
    }
    Ok(Some(Found { api, name, uid: meta.uid, id }))
}

/// Returns the objects of a definition in namespaces other than the operator's, as `namespace/name`: they belong to
/// another operator.
async fn objects_elsewhere(client: &Client, definition: &Value) -> anyhow::Result<Vec<String>> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a definition without names");
    let versions = spec["versions"].as_array().into_iter().flatten();
    let version = versions.last().context("a definition without versions")?;
    let (group, version) = (text(&spec["group"])?, text(&version["name"])?);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, &version, &text(&spec["names"]["kind"])?));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut found = Vec::new();
    let listed = list_metadata(&api, |meta| {
        if let Some(namespace) = meta.namespace.filter(|other| other != names::SYSTEM_NAMESPACE) {
            found.push(format!("{namespace}/{}", meta.name.unwrap_or_default()));
        }
    });
    if_there(listed.await)?;
    Ok(found)
}

/// Deletes objects, last ones first, and returns those that were there. What was not installed with this operator stays.
pub(super) async fn delete(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<Found>> {
    let mut going = Vec::new();
    for object in objects.iter().rev() {
        let deadline = Instant::now() + GONE;
        let Some(found) = answered(deadline, async || find(client, object).await).await? else { continue };
        let only_this = Preconditions { uid: found.uid.clone(), resource_version: None };
        let params = DeleteParams::background().preconditions(only_this);
        let right = right("delete", &found.api);
        let request = async || call(&right, found.api.delete(&found.name, &params)).await;
        let deleted = answered(deadline, request).await;
        if if_there(deleted).with_context(|| format!("{} cannot be deleted", found.id))?.is_some() {
            print_line(format_args!("deleted {}", found.id));
            going.push(found);
        }
    }
    Ok(going)
}

/// Returns why an object is deleted and not gone, as far as the object has it: its finalizers, and the conditions of its deletion.
fn keeping(found: &DynamicObject) -> Vec<String> {
    let finalizers = found.metadata.finalizers.iter().flatten().map(|name| format!("finalizer {name}"));
    let conditions = found.data["status"]["conditions"].as_array().into_iter().flatten();
    // A definition has these for as long as it is served.
    let is_of_deletion = |condition: &&Value| {
        condition["status"] == "True" && condition["type"] != "Established" && condition["type"] != "NamesAccepted"
    };
    let messages = conditions.filter(is_of_deletion).filter_map(|condition| condition["message"].as_str());
    finalizers.chain(messages.map(|message| message.trim_end_matches('.').to_owned())).collect()
}

/// Deletes objects as [`delete`] does, and waits until they are gone.
pub(super) async fn remove(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    let going = delete(client, objects).await?;
    let deadline = Instant::now() + GONE;
    let mut again = Vec::new();
    for Found { api, name, uid, id } in going {
        loop {
            let found = answered(deadline, async || get_metadata(&api, &name).await).await?;
            let Some(found) = found else { break };
            if found.uid != uid {
                print_line(format_args!("{id} exists again, and stays: another client has created it since"));
                // Some of these are written by others, such as cert-manager. All else is the operator itself.
                if !MADE.iter().any(|(_, kind, namespace, name)| id == format!("{kind} {namespace}/{name}")) {
                    again.push(id);
                }
                break;
            }
            if Instant::now() >= deadline {
                let whole = get_one(&api, &name).await;
                if matches!(whole, Ok(None)) {
                    break;
                }
                let causes = whole.ok().flatten().as_ref().map(keeping).unwrap_or_default().join("; ");
                let causes = if causes.is_empty() { "no reason is known" } else { &causes };
                // As the condition NamespaceContentRemaining names them.
                let of_pods = if causes.contains(" pods. ") {
                    " Pods on a node that does not answer keep their namespace until the node is back or deleted."
                } else {
                    ""
                };
                bail!("{id} is deleted and not gone: {causes}.{of_pods} Run the command again once that is mended.");
            }
            tokio::time::sleep(PERIOD / 4).await;
        }
    }
    if !again.is_empty() {
        let again = again.join(", ");
        bail!(
            "created again by another client, such as Argo CD or Flux: {again}. Suspend it, and run the command again."
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{AGAIN, AWAY, LATE, Server};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn object_that_goes_late_or_comes_back_does_not_keep_the_removal() {
        let path = "/api/v1/namespaces/brupop-system/secrets/brupop-apiserver-tls";
        for (sentence, more, left) in [
            ("cert-manager makes the Secret of its Certificate again", json!({"annotations": {AGAIN: ""}}), vec![path]),
            ("the API server is away", json!({"annotations": {AWAY: ""}}), vec![]),
            ("it goes when the time is over", json!({"annotations": {LATE: ""}, "finalizers": ["example/a"]}), vec![]),
        ] {
            let server = Server::default();
            let mut meta = json!({"name": names::SERVING_SECRET, "uid": "1"});
            meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server.add(path, json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta}));
            remove(&server.client(), &made()).await.unwrap();
            assert_eq!(server.paths(), left, "{sentence}");
        }
    }

    /// As Argo CD or Flux makes all that is deleted.
    #[tokio::test(start_paused = true)]
    async fn part_of_the_operator_that_another_client_makes_again_is_an_error() {
        let path = "/api/v1/namespaces/brupop-agents";
        let server = Server::default();
        let labels = json!({names::APPLICATION_LABEL: names::APPLICATION});
        let meta = json!({"name": AGENT_NAMESPACE, "uid": "1", "labels": labels, "annotations": {AGAIN: ""}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta});
        server.add(path, namespace.clone());
        let error = remove(&server.client(), &[namespace]).await.unwrap_err().to_string();
        assert!(error.contains("created again by another client") && error.contains(AGENT_NAMESPACE), "{error}");
    }
}
