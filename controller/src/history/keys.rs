//! The key that signs the records of ended rollouts. It is no permit key: what it signs is verified for as long as it is kept,
//! so its public part stays published while a record names it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::watcher;
use models::names;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::apply::{Applier, ApplyError, create_params};
use crate::cache::{Cache, Reading};
use crate::tls::{Complete, MaterialError, PermitKey};

/// The field of the Secret.
const KEY: &str = "key.pem";

/// Time for the first lists of both before their absence is an error: only the end of a record needs them.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// The Secret with the key, and the ConfigMap with the public ones.
pub(super) struct Keys {
    applier: Applier,
    secret: Cache<Complete<Secret>>,
    published: Cache<Complete<ConfigMap>>,
    reading: Reading,
}

fn unusable(error: MaterialError) -> ApplyError {
    ApplyError::Signing(Box::new(error))
}

impl Keys {
    pub(super) fn new(applier: &Applier) -> Self {
        let changed = || applier.caches.changed.clone();
        let failures = &applier.metrics.watch_errors;
        let secret = Cache::rarely_retried(changed(), failures);
        let published = Cache::rarely_retried(changed(), failures);
        let reading = Reading::default().of(&secret).of(&published);
        Self { applier: applier.clone(), secret, published, reading }
    }

    /// Watches both until the tasks are dropped.
    pub(super) fn watch(&self) -> JoinSet<()> {
        // RBAC permits reading them by their names alone.
        let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut watches = JoinSet::new();
        watches.spawn(self.secret.run(self.applier.api(), named(names::HISTORY_KEY_SECRET)));
        watches.spawn(self.published.run(self.applier.api(), named(names::HISTORY_KEYS)));
        watches
    }

    /// Returns the key, which is made where there is none, with its public part published. Those that no record names
    /// (`named`) are withdrawn; `None`: it is not known which are named.
    pub(super) async fn signing(&self, named: Option<&BTreeSet<String>>) -> Result<PermitKey, ApplyError> {
        if timeout(LIST_LIMIT, self.reading.wait(self.applier.caches.changed.subscribe())).await.is_err() {
            let (secret, map) = (names::HISTORY_KEY_SECRET, names::HISTORY_KEYS);
            let why = format!(
                "the Secret {secret} or the ConfigMap {map} cannot be listed; the controller's log has the reason"
            );
            return Err(ApplyError::Signing(why.into()));
        }
        let key = self.key().await?;
        self.publish(&key, named).await?;
        Ok(key)
    }

    async fn key(&self) -> Result<PermitKey, ApplyError> {
        if let Some(secret) = self.secret.get(names::HISTORY_KEY_SECRET) {
            let text = secret.text(KEY).ok_or_else(|| unusable(MaterialError::Missing(KEY)))?;
            return PermitKey::load(text).map_err(unusable);
        }
        self.applier.leadership.check()?;
        let key = PermitKey::make().map_err(unusable)?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(names::HISTORY_KEY_SECRET.to_owned()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(key.pem.as_bytes().to_vec()))])),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        match self.applier.api::<Secret>().create(&create_params(), &secret).await {
            Ok(made) => {
                self.secret.written(&made);
                Ok(key)
            }
            // An earlier try of this leader, or another one, has made it. A Role of an earlier version does not permit the watch.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.secret.read_again();
                Err(ApplyError::Changed("the Secret of the history's key"))
            }
            Err(error) => Err(ApplyError::api("history_key")(error)),
        }
    }

    async fn publish(&self, key: &PermitKey, named: Option<&BTreeSet<String>>) -> Result<(), ApplyError> {
        let found = self.published.get(names::HISTORY_KEYS).map(|found| found.0);
        let version = found.as_ref().and_then(|map| map.metadata.resource_version.clone());
        let published = found.and_then(|map| map.data).unwrap_or_default();
        let jwk = key.jwk().map_err(unusable)?.to_string();
        let kept = |id: &String| named.is_none_or(|named| named.contains(id));
        let mut wanted: BTreeMap<_, _> = published.clone().into_iter().filter(|(id, _)| kept(id)).collect();
        wanted.insert(key.id.clone(), jwk);
        if wanted == published {
            return Ok(());
        }
        self.applier.leadership.check()?;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": names::HISTORY_KEYS, "namespace": self.applier.namespace, "resourceVersion": version},
            "data": wanted,
        });
        let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let applied = self.applier.api::<ConfigMap>().patch(names::HISTORY_KEYS, &params, &Patch::Apply(body)).await;
        let applied = applied.map_err(ApplyError::api("history_keys"));
        if applied.as_ref().is_err_and(|error| error.code() == Some(409)) {
            self.published.read_again();
        }
        self.published.written(&applied?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    /// Returns the keys on an API server that answers with this: of a verb, a resource and a body.
    fn keys(mut answer: impl FnMut(&str, &str, &Value) -> (u16, Value) + Send + 'static) -> Keys {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, reply)) = server.next_request().await {
                let (parts, body) = request.into_parts();
                let sent = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                let verb = match parts.method {
                    Method::GET if parts.uri.query().unwrap_or_default().contains("watch=") => "watch",
                    Method::GET => "list",
                    Method::POST => "create",
                    _ => "patch",
                };
                let resource = parts.uri.path().split('/').nth(5).unwrap();
                let (code, body) = answer(verb, resource, &sent);
                let body = Body::from(body.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        Keys::new(&Applier::of_leader(Client::new(service, "default")))
    }

    fn list(kind: &str, items: &[Value]) -> (u16, Value) {
        (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items}))
    }

    fn refused(code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Any", "message": "no"}))
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_cannot_be_listed_are_named_and_nothing_is_written() {
        for unread in ["secrets", "configmaps"] {
            let keys = keys(move |verb, resource, _| match (verb, resource) {
                ("list", _) if resource == unread => refused(500),
                ("list", "secrets") => list("SecretList", &[]),
                ("list", _) => list("ConfigMapList", &[]),
                _ => refused(403),
            });
            let _watches = keys.watch();
            let error = keys.signing(None).await.err().unwrap().text();
            let expected = "Secret brupop-history-key or the ConfigMap brupop-history-keys cannot be listed";
            assert!(error.contains(expected), "{unread}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_are_resolved_where_the_watch_is_not_permitted() {
        let made = PermitKey::make().unwrap();
        let data = json!({KEY: ByteString(made.pem.as_bytes().to_vec())});
        let (mut secrets, mut maps) = (0_u8, 0_u8);
        // Another leader makes the Secret, and another client changes the ConfigMap, after the first list.
        let keys = keys(move |verb, resource, sent| match (verb, resource) {
            ("list", "secrets") => {
                secrets += 1;
                let secret =
                    json!({"metadata": {"name": names::HISTORY_KEY_SECRET, "resourceVersion": "1"}, "data": data});
                list("SecretList", if secrets == 1 { &[] } else { std::slice::from_ref(&secret) })
            }
            ("list", _) => {
                maps += 1;
                let meta = json!({"name": names::HISTORY_KEYS, "resourceVersion": maps.to_string()});
                list("ConfigMapList", &[json!({"metadata": meta, "data": {"earlier": "{}"}})])
            }
            ("patch", _) if sent["metadata"]["resourceVersion"] == "2" => {
                let meta = json!({"name": names::HISTORY_KEYS, "resourceVersion": "3"});
                (200, json!({"metadata": meta, "data": sent["data"]}))
            }
            ("create" | "patch", _) => refused(409),
            _ => refused(403),
        });
        let _watches = keys.watch();
        let mut tries = 0;
        let key = loop {
            match keys.signing(None).await {
                Ok(key) => break key,
                Err(error) => assert!(tries < 10, "{error}"),
            }
            tries += 1;
            tokio::time::sleep(Duration::from_mins(1)).await;
        };
        assert_eq!(key.id, made.id);
        let published = keys.published.get(names::HISTORY_KEYS).and_then(|map| map.0.data).unwrap();
        assert!(published.contains_key("earlier") && published.contains_key(&made.id), "{published:?}");
    }
}
