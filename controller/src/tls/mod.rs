//! The certificate authority, the web API's certificate and the key that signs gos: made by the leader, kept in Secrets,
//! their public halves published to the agents.

mod material;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use models::names;
use serde::Serialize;

use crate::config::Config;
use material::{Authority, GoKey, MaterialError};

/// What went wrong while making, reading or publishing keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The API server refused.
    #[error("the Secret or ConfigMap {name} could not be {verb}")]
    Api {
        /// The object.
        name: &'static str,
        /// What was tried.
        verb: &'static str,
        /// Why.
        source: kube::Error,
    },
    /// A Secret of ours is not what we wrote.
    #[error("the Secret {name} cannot be used; delete it to have a new one made")]
    Material {
        /// The Secret.
        name: &'static str,
        /// Why.
        source: MaterialError,
    },
    /// The lease is lost.
    #[error(transparent)]
    Lost(#[from] crate::leader::LostLease),
}

/// Signs gos and statements of settings. Empty until the leader has its key.
#[derive(Clone, Default)]
pub struct Signer {
    key: Arc<Mutex<Option<GoKey>>>,
}

impl Signer {
    /// Signs, if there is a key.
    pub fn sign(&self, claims: &impl Serialize) -> Option<Result<String, MaterialError>> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|key| key.sign(claims))
    }
}

#[cfg(test)]
impl Signer {
    pub(crate) fn with_a_new_key() -> Self {
        Self { key: Arc::new(Mutex::new(GoKey::make().ok())) }
    }

    /// The claims of what was signed.
    pub(crate) fn read<T: serde::de::DeserializeOwned + Clone>(&self, jws: &str) -> T {
        self.key.lock().unwrap().as_ref().unwrap().read(jws).unwrap()
    }
}

struct Vault<'a> {
    secrets: Api<Secret>,
    leadership: &'a crate::leader::Leadership,
}

fn field(secret: &Secret, key: &str) -> Option<String> {
    secret.data.as_ref()?.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
}

impl Vault<'_> {
    async fn get(&self, name: &'static str) -> Result<Option<Secret>, TlsError> {
        self.secrets.get_opt(name).await.map_err(|source| TlsError::Api { name, verb: "read", source })
    }

    /// Creates the Secret, or replaces `existing` at the resourceVersion that was read.
    async fn put(
        &self,
        name: &'static str,
        type_: &str,
        data: BTreeMap<String, String>,
        existing: Option<Secret>,
    ) -> Result<(), TlsError> {
        self.leadership.check()?;
        let data = data.into_iter().map(|(k, v)| (k, ByteString(v.into_bytes()))).collect();
        let written = match existing {
            Some(mut secret) => {
                secret.data = Some(data);
                self.secrets.replace(name, &PostParams::default(), &secret).await
            }
            None => {
                let secret = Secret {
                    metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
                    type_: Some(type_.to_owned()),
                    data: Some(data),
                    ..Secret::default()
                };
                self.secrets.create(&PostParams::default(), &secret).await
            }
        };
        written.map(|_| ()).map_err(|source| TlsError::Api { name, verb: "written", source })
    }
}

/// Publishes what agents have to trust, where it is not published already.
async fn publish(
    client: &kube::Client,
    config: &Config,
    leadership: &crate::leader::Leadership,
    trust: BTreeMap<String, String>,
) -> Result<(), TlsError> {
    let name = names::TRUST_CONFIG_MAP;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &config.agent_namespace);
    let published = maps.get_opt(name).await.map_err(|source| TlsError::Api { name, verb: "read", source })?;
    if published.and_then(|map| map.data).as_ref() == Some(&trust) {
        return Ok(());
    }
    let map = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": config.agent_namespace},
        "data": trust,
    });
    leadership.check()?;
    maps.patch(name, &PatchParams::apply(names::CONTROLLER_MANAGER).force(), &Patch::Apply(map))
        .await
        .map(|_| ())
        .map_err(|source| TlsError::Api { name, verb: "applied", source })
}

/// Makes what is missing or about to expire, loads the signing key, and publishes what agents have to trust.
/// Returns when to look again.
pub async fn ensure(
    client: &kube::Client,
    config: &Config,
    leadership: &crate::leader::Leadership,
    signer: &Signer,
    now: Timestamp,
) -> Result<Timestamp, TlsError> {
    let vault = Vault { secrets: Api::namespaced(client.clone(), &config.namespace), leadership };
    let material = |name| move |source| TlsError::Material { name, source };

    let authority = match vault.get(names::CA_SECRET).await? {
        Some(secret) => Authority::load(field(&secret, "tls.crt").as_deref(), field(&secret, "tls.key").as_deref())
            .map_err(material(names::CA_SECRET))?,
        None => {
            let authority = Authority::make(now).map_err(material(names::CA_SECRET))?;
            vault.put(names::CA_SECRET, "kubernetes.io/tls", authority.data(), None).await?;
            authority
        }
    };

    let serving = vault.get(names::SERVING_SECRET).await?;
    let renew_at = serving
        .as_ref()
        .and_then(|s| field(s, "tls.crt"))
        .filter(|pem| authority.issued(pem))
        .and_then(|pem| material::renew_at(&pem));
    let next = match renew_at {
        Some(at) if at > now => at,
        _ => {
            let service = format!("{}.{}.svc", names::APISERVER, config.namespace);
            let hosts = vec![service.clone(), format!("{service}.{}", config.cluster_domain)];
            let leaf = authority.issue(hosts, now).map_err(material(names::SERVING_SECRET))?;
            vault.put(names::SERVING_SECRET, "kubernetes.io/tls", leaf, serving).await?;
            material::default_renewal(now)
        }
    };

    let key = match vault.get(names::GO_KEY_SECRET).await? {
        Some(secret) => GoKey::load(field(&secret, "key.pem").as_deref()).map_err(material(names::GO_KEY_SECRET))?,
        None => {
            let key = GoKey::make().map_err(material(names::GO_KEY_SECRET))?;
            vault.put(names::GO_KEY_SECRET, "Opaque", key.data(), None).await?;
            key
        }
    };

    // Agents have to know a key before the first go is signed with it.
    let trust = BTreeMap::from([
        (names::TRUST_CA_KEY.to_owned(), authority.certificate().to_owned()),
        (names::TRUST_GO_KEYS.to_owned(), key.jwks().map_err(material(names::GO_KEY_SECRET))?),
    ]);
    publish(client, config, leadership, trust).await?;
    *signer.key.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use serde_json::{Value, json};

    /// The documented cure for a spoilt Secret is to delete it.
    #[tokio::test]
    async fn a_new_authority_issues_a_new_serving_certificate() {
        let now = crate::clock::now();
        let old = Authority::make(now).unwrap();
        let leaf = old.issue(vec!["brupop-apiserver.brupop-system.svc".into()], now).unwrap();
        let secret = move |name: &str, data: BTreeMap<String, String>| {
            let data: BTreeMap<_, _> = data.into_iter().map(|(k, v)| (k, ByteString(v.into_bytes()))).collect();
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "resourceVersion": "1"}, "data": data})
        };
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = seen.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
                log.lock().unwrap().push(format!("{method} {path}"));
                let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
                let (code, answer) = match (method.as_str(), path.rsplit('/').next().unwrap()) {
                    ("GET", "brupop-apiserver-tls") => (200, secret("brupop-apiserver-tls", leaf.clone())),
                    ("GET", _) => (
                        404,
                        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
                    ),
                    _ => (200, body),
                };
                let answer = Body::from(answer.to_string().into_bytes());
                reply.send_response(http::Response::builder().status(code).body(answer).unwrap());
            }
        });
        let config = <Config as clap::Parser>::parse_from(["controller", "--identity", "me"]);
        let client = kube::Client::new(service, "default");
        let leadership = crate::leader::Leadership::forever();
        let next = ensure(&client, &config, &leadership, &Signer::default(), now).await.unwrap();
        let seen = seen.lock().unwrap().clone();
        assert!(
            seen.iter().any(|call| call.starts_with("PUT") && call.ends_with("brupop-apiserver-tls")),
            "the CA is new and published, the certificate is the old CA's until {next}: {seen:#?}"
        );
    }
}
