//! The key that signs the records of ended rollouts. It is no permit key: what it signs is verified for as long as it is kept,
//! so its public part stays published while a record names it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use models::names;
use serde_json::json;

use crate::apply::ApplyError;
use crate::leader::Leadership;
use crate::tls::{MaterialError, PermitKey};

/// The field of the Secret.
const KEY: &str = "key.pem";

/// The Secret with the key, and the ConfigMap with the public ones.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) leadership: Leadership,
}

fn by_name(name: &str) -> ListParams {
    // RBAC permits reading it by its name alone.
    ListParams::default().fields(&format!("metadata.name={name}"))
}

fn unusable(error: MaterialError) -> ApplyError {
    ApplyError::Signing(Box::new(error))
}

fn load(secret: &Secret) -> Result<PermitKey, ApplyError> {
    let field = secret.data.as_ref().and_then(|data| data.get(KEY));
    let text = field.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
    PermitKey::load(text.ok_or_else(|| unusable(MaterialError::Missing(KEY)))?).map_err(unusable)
}

impl Keys {
    /// Returns the key, which is made where there is none, with its public part published. Those that no record names
    /// (`named`) are withdrawn; `None`: it is not known which are named.
    pub(super) async fn signing(&self, named: Option<&BTreeSet<String>>) -> Result<PermitKey, ApplyError> {
        let key = self.secret().await?;
        self.publish(&key, named).await?;
        Ok(key)
    }

    async fn secret(&self) -> Result<PermitKey, ApplyError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = async || {
            let found = secrets.list(&by_name(names::HISTORY_KEY_SECRET)).await;
            found.map(|found| found.items.into_iter().next()).map_err(ApplyError::api("history_key"))
        };
        if let Some(secret) = read().await? {
            return load(&secret);
        }
        self.leadership.check()?;
        let key = PermitKey::make().map_err(unusable)?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(names::HISTORY_KEY_SECRET.to_owned()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(key.pem().as_bytes().to_vec()))])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
        match secrets.create(&params, &secret).await {
            Ok(_) => Ok(key),
            // An earlier try of this leader, or another one, has made it.
            Err(kube::Error::Api(status)) if status.code == 409 => match read().await? {
                Some(secret) => load(&secret),
                None => Err(ApplyError::Changed("the Secret of the history's key")),
            },
            Err(error) => Err(ApplyError::api("history_key")(error)),
        }
    }

    async fn publish(&self, key: &PermitKey, named: Option<&BTreeSet<String>>) -> Result<(), ApplyError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = maps.list(&by_name(names::HISTORY_KEYS)).await.map_err(ApplyError::api("history_keys"))?;
        let found = found.items.into_iter().next();
        let version = found.as_ref().and_then(|map| map.metadata.resource_version.clone());
        let published = found.and_then(|map| map.data).unwrap_or_default();
        let jwk = key.jwk().map_err(unusable)?.to_string();
        let kept = |id: &String| named.is_none_or(|named| named.contains(id));
        let mut wanted: BTreeMap<_, _> = published.clone().into_iter().filter(|(id, _)| kept(id)).collect();
        wanted.insert(key.id().clone(), jwk);
        if wanted == published {
            return Ok(());
        }
        self.leadership.check()?;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": names::HISTORY_KEYS, "namespace": self.namespace, "resourceVersion": version},
            "data": wanted,
        });
        let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let applied = maps.patch(names::HISTORY_KEYS, &params, &Patch::Apply(body)).await;
        applied.map(|_| ()).map_err(ApplyError::api("history_keys"))
    }
}
