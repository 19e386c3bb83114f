//! Tokens that may act for a node.

use std::path::Path;

use anyhow::Context as _;
use integ::oracle::Object;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use models::names::{AGENT_NAMESPACE, APISERVER, SYSTEM_NAMESPACE, TRUST_CA_KEY, TRUST_CONFIG_MAP};
use models::wire::{Problem, ShadowView};
use reqwest::header::{CONTENT_TYPE, IF_MATCH};
use reqwest::{Client, Response};
use serde_json::json;

use crate::support::{NEW, ScenarioContext, nodes, run};

/// The boot of a report that no agent sends.
const FALSE_BOOT: &str = "a-boot-that-never-was";

/// The token in the agent's pod on a node.
pub(crate) fn agents_token(ctx: &ScenarioContext, node: &str) -> anyhow::Result<String> {
    let pods = ctx.bed.processes_of(deploy::Component::Agent);
    let on_node = ctx.bed.member(node)?.kubelet.processes();
    let agent = pods.iter().find(|pod| on_node.contains(pod)).context("no agent")?;
    // The kernel knows the agent's arguments, and so the path of its token.
    let line = std::fs::read(format!("/proc/{}/cmdline", agent.pid))?;
    let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let file = arguments.iter().find_map(|a| a.strip_prefix("--token-file=")).context("no --token-file")?;
    std::fs::read_to_string(Path::new(file)).with_context(|| file.to_owned())
}

/// A client of the web API as agents are: through the test cluster's proxy, with the published CA.
pub(crate) async fn web_api(ctx: &ScenarioContext) -> anyhow::Result<Client> {
    let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), AGENT_NAMESPACE);
    let map = maps.get(TRUST_CONFIG_MAP).await?;
    let ca = map.data.and_then(|mut data| data.remove(TRUST_CA_KEY)).context("no CA is published")?;
    Ok(Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(ca.as_bytes())?)
        .proxy(reqwest::Proxy::https(ctx.bed.proxy_url())?)
        .build()?)
}

pub(crate) fn url(node: &str, rest: &str) -> String {
    format!("https://{APISERVER}.{SYSTEM_NAMESPACE}.svc/v1/nodes/{node}/shadow{rest}")
}

/// Status and kind of a refusal.
async fn refusal(answer: Response) -> anyhow::Result<(u16, String)> {
    let status = answer.status().as_u16();
    anyhow::ensure!(status >= 400, "this was not refused, but answered with {status}: {}", answer.text().await?);
    let problem: Problem = answer.json().await?;
    assert_eq!(problem.status, status);
    Ok((status, problem.type_.rsplit(':').next().unwrap_or_default().to_owned()))
}

/// Tries to read, to watch and to report for node-2 with a token.
async fn try_all(web: &Client, etag: &str, token: &str) -> anyhow::Result<Vec<(u16, String)>> {
    let false_report =
        json!({"state": "RebootedIntoUpdate", "currentVersion": NEW, "bootId": FALSE_BOOT, "observedGeneration": 1});
    let requests = [
        web.get(url("node-2", "")),
        web.get(url("node-2", "/watch")),
        web.put(url("node-2", "/status"))
            .header(IF_MATCH, format!("\"{etag}\""))
            .header(CONTENT_TYPE, "application/json")
            .body(false_report.to_string()),
    ];
    let mut answers = Vec::new();
    for request in requests {
        answers.push(refusal(request.bearer_auth(token).send().await?).await?);
    }
    answers.dedup();
    Ok(answers)
}

/// A token of an account in the agents' namespace, bound to no pod.
async fn create_token(ctx: &ScenarioContext, account: &str, audience: &str) -> anyhow::Result<String> {
    ctx.kubectl(&["-n", AGENT_NAMESPACE, "create", "token", account, "--audience", audience]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_invalid_token_or_token_of_other_node_are_refused() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        ctx.install().await?;
        let web = web_api(ctx).await?;
        let (own, others) = (agents_token(ctx, "node-2")?, agents_token(ctx, "node-1")?);
        assert_ne!(own, others);
        // The requests below succeed with the node's own token, so that a refusal is because of the token.
        let view: ShadowView =
            web.get(url("node-2", "")).bearer_auth(&own).send().await?.error_for_status()?.json().await?;

        let forbidden = vec![(403, "forbidden".to_owned())];
        let unauthorized = vec![(401, "unauthorized".to_owned())];
        assert_eq!(try_all(&web, &view.etag, &others).await?, forbidden, "another node's agent");
        assert_eq!(try_all(&web, &view.etag, "not.a.token").await?, unauthorized, "garbage");
        let mut forged = own.clone();
        forged.truncate(own.len() - 8);
        forged.push_str("AAAAAAAA");
        assert_eq!(try_all(&web, &view.etag, &forged).await?, unauthorized, "a forged signature");
        let other_audience = create_token(ctx, "brupop-agent", "other-audience").await?;
        assert_eq!(try_all(&web, &view.etag, other_audience.trim()).await?, unauthorized, "another audience");
        let of_no_pod = create_token(ctx, "brupop-agent", "brupop-apiserver").await?;
        assert_eq!(try_all(&web, &view.etag, of_no_pod.trim()).await?, forbidden, "the right account, but no pod");
        let other_account = create_token(ctx, "default", "brupop-apiserver").await?;
        assert_eq!(try_all(&web, &view.etag, other_account.trim()).await?, forbidden, "another account");
        let none = refusal(web.get(url("node-2", "")).send().await?).await?;
        assert_eq!(none, (401, "unauthorized".to_owned()), "no token");

        // The agent and the controller write to the shadow meanwhile, so only the false report itself is looked for.
        let history = ctx.bed.recorder.so_far()?;
        let mut boots = history.changes().iter().filter_map(|change| match &change.object {
            Object::Shadow(shadow) => shadow.status.agent.boot_id.as_deref(),
            _ => None,
        });
        assert!(boots.all(|boot| boot != FALSE_BOOT), "a false report was written");
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 0);
    Ok(())
}
