//! The cluster that all cases share, and the checks of a refusal.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integ::bed::{TestCluster, TestClusterOptions};
use integ::oracle::Expectations;
use integ::proxy::Sources;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, COMPONENT_LABEL, SYSTEM_NAMESPACE, TOKEN_AUDIENCE, TRUST_CA_KEY,
    TRUST_CONFIG_MAP,
};
use models::wire::ShadowView;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::{Duration, Instant, sleep};

use crate::deleted_objects::TokensOfDeleted;
use crate::raw::{Answer, Request, WebApiConnector};

/// Longest wait for anything; nothing is measured by it.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// The node whose shadow is attacked.
pub(crate) const TARGET_NODE: &str = "node-2";
/// Another node, with a valid agent.
pub(crate) const OTHER_NODE: &str = "node-1";
/// A node whose agent's pod may be deleted.
pub(crate) const POD_DELETION_NODE: &str = "node-3";
/// A node that may be deleted.
pub(crate) const NODE_DELETION_NODE: &str = "node-4";

/// A cluster with the operator, idle.
pub(crate) struct RefusalTest {
    pub(crate) bed: TestCluster,
    pub(crate) connector: WebApiConnector,
    /// The token of the attacked node's agent.
    pub(crate) own: String,
    before: ShadowView,
    service_account_key: EncodingKey,
    deleted: OnceCell<TokensOfDeleted>,
}

/// Response to an unauthenticated client.
pub(crate) const UNAUTHORIZED: (u16, &str) = (401, "unauthorized");
/// Response to a client without permission.
pub(crate) const FORBIDDEN: (u16, &str) = (403, "forbidden");

impl RefusalTest {
    /// Installs the operator on four nodes and waits until it is idle.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let log_format = Some(models::log::LogFormat::Json);
        let deploy =
            deploy::Options { controller_replicas: 1, apiserver_replicas: 1, log_format, ..deploy::Options::default() };
        // The log of the web API is rate-limited by the address of the client.
        let options = TestClusterOptions { nodes: 4, deploy, sources: Sources::Each, ..TestClusterOptions::default() };
        let bed = TestCluster::start(options).await?;
        bed.install().await?;
        bed.wait("every agent has reported", LIMIT, |history| {
            let world = history.end();
            world
                .nodes
                .values()
                .filter(|node| world.shadow_of(node).is_some_and(|shadow| shadow.status.agent.updates.is_some()))
                .count()
                == 4
        })
        .await?;
        let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), AGENT_NAMESPACE);
        let ca = maps.get(TRUST_CONFIG_MAP).await?.data.and_then(|mut data| data.remove(TRUST_CA_KEY));
        let ca = ca.context("no CA is published")?;
        let connector = WebApiConnector::new(&bed.proxy_url(), format!("{APISERVER}.{SYSTEM_NAMESPACE}.svc"), &ca)?;
        let own =
            token(&bed, AGENT_NAMESPACE, AGENT, TOKEN_AUDIENCE, Some(&agent_pod(&bed, TARGET_NODE).await?)).await?;
        let before = view(&connector, &own).await?;
        let pem = std::fs::read(bed.control_plane.service_account_key_file())?;
        let service_account_key = EncodingKey::from_ec_pem(&pem)?;
        Ok(Self { connector, own, before, service_account_key, deleted: OnceCell::new(), bed })
    }

    /// The tokens of deleted objects, which are deleted when a case first asks for one.
    pub(crate) async fn deleted(&self) -> anyhow::Result<&TokensOfDeleted> {
        self.deleted.get_or_try_init(|| TokensOfDeleted::of(self)).await
    }

    /// Fails if the attacked shadow has changed.
    pub(crate) async fn ensure_shadow_unchanged(&self) -> anyhow::Result<()> {
        let now = view(&self.connector, &self.own).await?;
        ensure!(now.etag == self.before.etag, "was {:#?}, is {now:#?}", self.before);
        Ok(())
    }

    /// Lets the oracle judge the whole history: no host was rebooted, no shadow written by an unauthorised client.
    pub(crate) async fn judge(self) -> anyhow::Result<()> {
        let (verdict, _) = self.bed.judge(&Expectations::default()).await?;
        verdict.ensure_safe()?;
        ensure!(verdict.stats.reboots == 0, "{:?}", verdict.stats);
        Ok(())
    }

    /// The etag that a report about the attacked node needs.
    pub(crate) fn etag(&self) -> String {
        format!("\"{}\"", self.before.etag)
    }

    /// A token of an agent for its node, as its kubelet gets it.
    pub(crate) async fn agents_token(&self, node: &str) -> anyhow::Result<String> {
        let pod = agent_pod(&self.bed, node).await?;
        token(&self.bed, AGENT_NAMESPACE, AGENT, TOKEN_AUDIENCE, Some(&pod)).await
    }

    /// The claims of a token.
    pub(crate) fn claims(token: &str) -> anyhow::Result<Value> {
        let payload = token.split('.').nth(1).context("no payload")?;
        Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?)
    }

    /// The header of a token.
    pub(crate) fn header(token: &str) -> anyhow::Result<Header> {
        Ok(jsonwebtoken::decode_header(token)?)
    }

    /// Signs claims with the cluster's own key.
    pub(crate) fn sign(&self, claims: &Value) -> anyhow::Result<String> {
        let header = Header { kid: Self::header(&self.own)?.kid, ..Header::new(Algorithm::ES256) };
        Ok(jsonwebtoken::encode(&header, claims, &self.service_account_key)?)
    }

    /// The claims of the attacked node's agent, changed, and signed with the cluster's key.
    pub(crate) fn signed_with(&self, change: impl FnOnce(&mut Value)) -> anyhow::Result<String> {
        let mut claims = Self::claims(&self.own)?;
        change(&mut claims);
        self.sign(&claims)
    }

    /// A false report about the attacked node: it would end the node's attempt as updated.
    pub(crate) fn false_report(&self) -> Request {
        let false_report =
            json!({"state": "RebootedIntoUpdate", "currentVersion": "9.9.9", "bootId": "b", "observedGeneration": 1});
        Request::new("PUT", format!("/v1/nodes/{TARGET_NODE}/shadow/status"))
            .header("If-Match", self.etag())
            .header("Content-Type", "application/json")
            .body(false_report.to_string())
    }

    /// Tries to read, to watch and to report for the attacked node with requests changed by `alter_request`, and asserts that
    /// each is refused in the same way for the same reason.
    pub(crate) async fn assert_refused_everywhere(
        &self,
        alter_request: impl Fn(Request) -> Request,
        expected: (u16, &str),
        reason: &str,
    ) -> anyhow::Result<()> {
        let shadow = format!("/v1/nodes/{TARGET_NODE}/shadow");
        let mut bodies = BTreeSet::new();
        for request in
            [Request::new("GET", &shadow), Request::new("GET", format!("{shadow}/watch")), self.false_report()]
        {
            let request = alter_request(request);
            let answer = self.assert_refused(&request, expected, Some(reason)).await?;
            bodies.insert(answer.body);
        }
        ensure!(bodies.len() == 1, "the answers differ: {bodies:?}");
        Ok(())
    }

    /// The same for one token.
    pub(crate) async fn assert_token_refused(
        &self,
        token: &str,
        expected: (u16, &str),
        reason: &str,
    ) -> anyhow::Result<()> {
        self.assert_refused_everywhere(|request| request.bearer(token), expected, reason).await?;
        let log = self.log()?;
        ensure!(token.len() < 20 || !log.contains(token), "the log shows the token");
        Ok(())
    }

    /// Tries a token that is larger than any head may be. The connection may be closed meanwhile.
    pub(crate) async fn assert_large_token_refused(&self, token: &str) -> anyhow::Result<()> {
        let answer =
            self.connector.send(&Request::new("GET", format!("/v1/nodes/{TARGET_NODE}/shadow")).bearer(token)).await?;
        ensure!(answer.refusal()? == (431, "headers-too-large".to_owned()), "{}", answer.status);
        Ok(())
    }

    /// Sends a request; returns the response when the web API accepts the connection.
    pub(crate) async fn answered(&self, request: &Request) -> anyhow::Result<Answer> {
        answered(&self.connector, request).await
    }

    /// Sends a request and checks the refusal, and the reason in the log.
    pub(crate) async fn assert_refused(
        &self,
        request: &Request,
        expected: (u16, &str),
        reason: Option<&str>,
    ) -> anyhow::Result<Answer> {
        let logged = self.log()?.len();
        let answer = self.answered(request).await?;
        let (status, kind) = answer.refusal()?;
        ensure!((status, kind.as_str()) == expected, "{} {}: {status} {kind}", request.method, request.path);
        let entry = self.log_entry(logged, status).await?;
        ensure!(entry["refusal"].as_str() == reason, "the log has another reason than {reason:?}: {entry}");
        Ok(answer)
    }

    /// Waits for the log line about a request with this status.
    async fn log_entry(&self, logged: usize, status: u16) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            let log = self.log()?;
            let mut lines = log[logged..].lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(entry) = lines.find(|line| line["target"] == "access" && line["status"] == status) {
                return Ok(entry);
            }
            ensure!(begun.elapsed() < LIMIT, "the log has no line for it: {}", &log[logged..]);
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The whole log of the web API.
    fn log(&self) -> anyhow::Result<String> {
        let process = self.bed.processes_of(deploy::Component::Apiserver).pop().context("no web API")?;
        Ok(std::fs::read_to_string(self.bed.log_file(&process)?)?)
    }
}

/// The pod of a node's agent.
pub(crate) async fn agent_pod(bed: &TestCluster, node: &str) -> anyhow::Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), AGENT_NAMESPACE);
    let of_node =
        ListParams::default().labels(&format!("{COMPONENT_LABEL}={AGENT}")).fields(&format!("spec.nodeName={node}"));
    let begun = Instant::now();
    loop {
        let living = pods.list(&of_node).await?.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
        if let Some(pod) = living {
            return Ok(pod);
        }
        ensure!(begun.elapsed() < LIMIT, "{node} has no agent");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A token of a service account, bound to a pod if there is one.
pub(crate) async fn token(
    bed: &TestCluster,
    namespace: &str,
    account: &str,
    audience: &str,
    pod: Option<&Pod>,
) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.client.clone(), namespace);
    let bound = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
    });
    let spec = TokenRequestSpec {
        audiences: Some(vec![audience.to_owned()]),
        bound_object_ref: bound,
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let granted = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    granted.status.and_then(|status| status.token).context("no token")
}

/// Sends a request, retrying on 429: these cases send more than a node's rate limit allows.
async fn answered(connector: &WebApiConnector, request: &Request) -> anyhow::Result<Answer> {
    loop {
        let answer = connector.send(request).await?;
        if answer.status != 429 {
            return Ok(answer);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// The attacked shadow, read past all caches.
async fn view(connector: &WebApiConnector, token: &str) -> anyhow::Result<ShadowView> {
    let request = Request::new("GET", format!("/v1/nodes/{TARGET_NODE}/shadow?fresh=true")).bearer(token);
    let answer = answered(connector, &request).await?;
    ensure!(answer.status == 200, "the node's own agent is refused: {}", String::from_utf8_lossy(&answer.body));
    Ok(serde_json::from_slice(&answer.body)?)
}
