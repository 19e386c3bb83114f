//! One object that is read, decided about, and written.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt as _};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use planner::claims::last_owner;
use serde::Serialize;
use serde_json::{Value, json};

use super::owners::{self, Path};
use super::{Change, Decision, DryRun, MANAGER};
use crate::call::{Listed, Namespaced, call, code, get_one, right};
use crate::page::warn;
use crate::shell::for_cluster;

/// Number of tries of a write while other fields of the object change.
const TRIES: usize = 8;

#[derive(Clone)]
pub(crate) struct Object<K> {
    api: Api<K>,
    name: String,
    /// The object as kubectl prints its name: `node/node-1`.
    pub(crate) id: String,
    /// The object as users of kubectl write it: `node node-1`.
    pub(crate) title: String,
    manager: &'static str,
}

pub(crate) enum Outcome<K> {
    /// Nothing was written, for this reason.
    Nothing(String),
    /// Nothing was written, since it was a dry run.
    Dry(Change),
    /// The object after the write.
    Written(Change, K),
}

impl<K> Outcome<K> {
    /// Returns what came of the write of the object `id`, as a sentence.
    pub(crate) fn sentence(&self, id: &str, dry_run: DryRun) -> String {
        match self {
            Self::Nothing(reason) => reason.clone(),
            Self::Dry(Change { patch, what }) => format!("{id} {what}{}: {patch}", dry_run.note()),
            Self::Written(change, _) => format!("{id} {}", change.what),
        }
    }
}

impl Object<Node> {
    pub(crate) fn node(client: &Client, name: &str) -> Self {
        Self {
            api: Api::all(client.clone()),
            name: name.to_owned(),
            id: format!("node/{name}"),
            title: format!("node {name}"),
            manager: MANAGER,
        }
    }
}

impl Object<BottlerocketShadow> {
    pub(crate) fn shadow(client: &Client, namespace: &str, node: &str) -> Self {
        let name = names::shadow_name(node);
        Self::namespaced(client, namespace, name, "brs")
    }
}

impl Object<BottlerocketUpdateOperator> {
    pub(crate) fn operator(client: &Client, namespace: &str) -> Self {
        let name = names::OPERATOR_NAME.to_owned();
        Self::namespaced(client, namespace, name, "bruo")
    }

    /// Reads the operator's resource.
    pub(crate) async fn existing(&self) -> anyhow::Result<BottlerocketUpdateOperator> {
        self.read().await?.with_context(|| {
            let namespace = self.api.namespace().unwrap_or_default();
            format!(
                "there is no {} in {namespace}. To see whether another namespace has the operator: {}",
                self.title,
                for_cluster("kubectl brupop doctor")
            )
        })
    }
}

impl<K: Namespaced> Object<K> {
    fn namespaced(client: &Client, namespace: &str, name: String, short: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            id: format!("{}.{}/{name}", K::kind(&()).to_lowercase(), names::GROUP),
            title: format!("{short} {name}"),
            name,
            manager: MANAGER,
        }
    }
}

impl<K: Listed + Resource<DynamicType = ()> + Serialize> Object<K> {
    /// Returns the object for writes by another field manager.
    pub(crate) fn written_by(self, manager: &'static str) -> Self {
        Self { manager, ..self }
    }

    /// Reads the object; `None` if it does not exist.
    pub(crate) async fn read(&self) -> anyhow::Result<Option<K>> {
        get_one(&self.api, &self.name).await
    }

    /// Writes what `decide` makes of the object, which `read` is. While other fields of it change, it is read and decided
    /// about again.
    ///
    /// # Errors
    /// A field that is written has changed in the meantime, besides the errors of `decide` and of the API server.
    pub(crate) async fn write(
        &self,
        mut read: K,
        dry_run: DryRun,
        decide: impl Fn(&K) -> anyhow::Result<Decision>,
    ) -> anyhow::Result<Outcome<K>> {
        let title = &self.title;
        for _ in 0..TRIES {
            let change = match decide(&read)? {
                Decision::Nothing(reason) => return Ok(Outcome::Nothing(reason)),
                Decision::Write(change) => change,
            };
            if let Some(object) = self.send(&read, &change.patch, dry_run).await? {
                warn_of_appliers(&read, &change.patch);
                let is_written = dry_run == DryRun::None;
                return Ok(if is_written { Outcome::Written(change, object) } else { Outcome::Dry(change) });
            }
            let now = self.read().await?.with_context(|| format!("{title} is gone; nothing was written"))?;
            if let Some(conflict) = conflict(title, &read, &now, &change.patch)? {
                bail!("{conflict}; nothing was written. Run the command again to decide about the object as it is now");
            }
            read = now;
        }
        bail!("{title} changes all the time; nothing was written. Run the command again")
    }

    /// Sends a merge patch at the uid and resourceVersion of the object that was read, unless it is a dry run of the client.
    /// Returns the object after it; `None` if the object is no longer the one that was read.
    async fn send(&self, read: &K, patch: &Value, dry_run: DryRun) -> anyhow::Result<Option<K>> {
        if dry_run == DryRun::Client {
            return Ok(Some(read.clone()));
        }
        let mut guarded = patch.clone();
        guarded["metadata"]["uid"] = json!(read.meta().uid);
        guarded["metadata"]["resourceVersion"] = json!(read.meta().resource_version);
        let params = PatchParams {
            field_manager: Some(self.manager.to_owned()),
            dry_run: dry_run == DryRun::Server,
            ..PatchParams::default()
        };
        let right = right("patch", &self.api);
        match call(&right, self.api.patch(&self.name, &params, &Patch::Merge(guarded))).await {
            Err(error) if code(&error) == Some(409) => Ok(None),
            answer => answer.map(Some),
        }
    }
}

/// Warns of the field managers that put back what a patch writes.
fn warn_of_appliers<K: Resource>(read: &K, patch: &Value) {
    for (manager, field) in owners::appliers(read.managed_fields(), patch) {
        warn(format_args!(
            "the field manager {manager} applies {}: if it is a tool that applies its source again and again, it reverts \
             this. Change the source too",
            owners::name(&field)
        ));
    }
    for (manager, field) in owners::possible_appliers(read.managed_fields(), patch) {
        warn(format_args!(
            "the field manager {manager} applies this object: if its source has {}, it reverts this. Change the source then",
            owners::name(&field)
        ));
    }
}

/// Returns the field of a patch that has changed since the object was read, as a sentence with its field manager.
fn conflict<K: Resource + Serialize>(title: &str, read: &K, now: &K, patch: &Value) -> anyhow::Result<Option<String>> {
    if read.meta().uid != now.meta().uid {
        return Ok(Some(format!("{title} was deleted and created again at the same time")));
    }
    let (before, after) = (serde_json::to_value(read)?, serde_json::to_value(now)?);
    let changed = |path: &Path| owners::value(&before, path) != owners::value(&after, path);
    let Some(path) = owners::fields(patch).into_iter().find(changed) else { return Ok(None) };
    let value = match owners::value(&after, &path) {
        Value::Null => "it is not set now".to_owned(),
        value => format!("it is {value} now"),
    };
    Ok(Some(format!(
        "{} of {title} was changed at the same time by {}: {value}",
        owners::name(&path),
        manager(now.managed_fields(), &path)
    )))
}

/// Returns the field manager of a field, in words.
fn manager(entries: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry], path: &[String]) -> String {
    last_owner(entries, path)
        .map_or_else(|| "a client that has removed it".to_owned(), |manager| format!("the field manager {manager}"))
}

/// Returns the field of a change that has another value in the object as it is now, as a sentence with its field manager.
pub(crate) fn reverted<K: Resource + Serialize>(change: &Change, now: &K) -> anyhow::Result<Option<String>> {
    let object = serde_json::to_value(now)?;
    let differs = |path: &Path| owners::value(&object, path) != owners::value(&change.patch, path);
    let found = owners::fields(&change.patch).into_iter().find(differs);
    Ok(found.map(|path| {
        let manager = manager(now.managed_fields(), &path);
        format!("{} was changed again by {manager}: it is {} now", owners::name(&path), owners::value(&object, &path))
    }))
}

/// Returns the field manager that wrote an annotation last.
pub(crate) fn annotated_by(object: &impl Resource, annotation: &str) -> Option<String> {
    last_owner(object.managed_fields(), &["metadata", "annotations", annotation]).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uninstall::testing::Server;

    fn operator(version: &str, spec: &Value, manager: &str) -> BottlerocketUpdateOperator {
        serde_json::from_value(json!({
            "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
            "metadata": {
                "name": "default", "uid": "u", "resourceVersion": version,
                "managedFields": [{
                    "manager": manager, "operation": "Update", "apiVersion": "brupop.bottlerocket.aws/v1",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:enabled": {}, "f:version": {"f:target": {}}}},
                }],
            },
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn conflict_names_changed_field_its_value_and_its_manager() {
        let patch = json!({"spec": {"version": {"target": "1.20.5"}}});
        let before = operator("1", &json!({"version": {"target": "latest"}}), "kubectl");
        let text = |now: &BottlerocketUpdateOperator| conflict("bruo default", &before, now, &patch).unwrap();
        let other = operator("2", &json!({"enabled": false, "version": {"target": "latest"}}), "argocd");
        assert_eq!(text(&other), None, "another field was changed");
        for (spec, value) in
            [(json!({"version": {"target": "1.21"}}), "it is \"1.21\" now"), (json!({}), "it is not set now")]
        {
            assert_eq!(
                text(&operator("2", &spec, "argocd")),
                Some(format!(
                    "spec.version.target of bruo default was changed at the same time by the field manager argocd: {value}"
                ))
            );
        }
        let mut again = before.clone();
        again.metadata.uid = Some("another".to_owned());
        assert!(text(&again).unwrap().contains("created again"));
    }

    /// Pauses an operator's resource that was read at version 1. Where the API server does not have that one, its first answer is a
    /// conflict, and each later write is accepted.
    async fn pause_beside(now: Option<BottlerocketUpdateOperator>) -> anyhow::Result<String> {
        let server = Server::default();
        let path = "/apis/brupop.bottlerocket.aws/v1/namespaces/brupop-system/bottlerocketupdateoperators/default";
        let is_conflict = now.as_ref().and_then(|now| now.metadata.resource_version.as_deref()) != Some("1");
        let now = serde_json::to_value(now).unwrap();
        if is_conflict {
            server.add_after(409, path, now);
        } else {
            server.add(path, now);
        }
        let decide = |operator: &BottlerocketUpdateOperator| {
            Ok(match operator.spec.enabled {
                Some(false) => Decision::Nothing("paused already".to_owned()),
                _ => Decision::write(json!({"spec": {"enabled": false}}), "paused"),
            })
        };
        let read = operator("1", &json!({"enabled": true}), "kubectl");
        let object = Object::operator(&server.client(), names::SYSTEM_NAMESPACE);
        Ok(match object.write(read, DryRun::None, decide).await? {
            Outcome::Written(change, at) => format!("{} at {}", change.what, at.metadata.resource_version.unwrap()),
            other => other.sentence("", DryRun::None),
        })
    }

    #[tokio::test]
    async fn write_is_decided_again_unless_its_own_field_has_changed() {
        let (enabled, paused) = (json!({"enabled": true}), json!({"enabled": false}));
        assert_eq!(pause_beside(Some(operator("1", &enabled, "kubectl"))).await.unwrap(), "paused at 1");
        let other = json!({"enabled": true, "labelNodes": true});
        let text = pause_beside(Some(operator("2", &other, "kubectl"))).await.unwrap();
        assert_eq!(text, "paused at 2", "another field has changed");
        // Nothing is sent on top of it: that would be accepted.
        let error = pause_beside(Some(operator("2", &paused, "argocd"))).await.unwrap_err().to_string();
        for part in ["spec.enabled of bruo default", "field manager argocd: it is false now", "nothing was written"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(pause_beside(None).await.unwrap_err().to_string().contains("gone; nothing was written"));
    }

    #[test]
    fn change_that_another_manager_reverts_is_reported() {
        let change = Change { patch: json!({"spec": {"enabled": false}}), what: "paused".to_owned() };
        let text = |enabled: bool| {
            let now = operator("2", &json!({"enabled": enabled}), "argocd");
            reverted(&change, &now).unwrap()
        };
        assert_eq!(text(false), None);
        let reverted = "spec.enabled was changed again by the field manager argocd: it is true now";
        assert_eq!(text(true).as_deref(), Some(reverted));
    }
}
