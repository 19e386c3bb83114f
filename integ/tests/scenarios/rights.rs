//! Least privilege: a run in which the operator does everything that it can do uses each of its rights, and no others;
//! and each of its writes has a precondition.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use integ::bed::workload;
use integ::oracle::{Expectations, settled_audit};
use integ::rights;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;
use models::condition::ConditionStatus;
use models::names::{
    AGENT_NAMESPACE, APISERVER, AWS, INTERFACE_LABEL, OPERATOR_LABEL, OPERATOR_NAME, RETRY_ANNOTATION,
    ROTATE_CERTIFICATES_ANNOTATION, ROTATE_SIGNING_KEY_ANNOTATION, SYSTEM_NAMESPACE, TRUST_CA_KEY, TRUST_CONFIG_MAP,
    shadow_name,
};
use models::operator::{DEGRADED, STORAGE_MIGRATED};
use nix::sys::signal::Signal;
use reqwest::Client;
use serde_json::json;

use crate::interfere::{
    agent_on, blocked_drain, permit_of, poll, request_permit_with_stopped_controllers, resume_controllers, signal,
    withdraw,
};
use crate::support::{
    EVENTS_OF_NODES, SHOP, ScenarioContext, is_released, is_updated, nodes, other, run_expecting, shadow_of,
    until_event,
};
use crate::{history, migration, rotation};

/// Time after a permit at which a node with a silent agent is released: the permit's life and the longest shutdown, and
/// some.
const CERTAIN_TIMEOUT: Duration = Duration::from_secs(300);

const EXPECTED: Expectations = Expectations { max_unavailable: Some(2), nothing_left: true };

/// The token in the agent's pod on a node.
fn agents_token(ctx: &ScenarioContext, node: &str) -> anyhow::Result<String> {
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
async fn web_api(ctx: &ScenarioContext) -> anyhow::Result<Client> {
    let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), AGENT_NAMESPACE);
    let map = maps.get(TRUST_CONFIG_MAP).await?;
    let ca = map.data.and_then(|mut data| data.remove(TRUST_CA_KEY)).context("no CA is published")?;
    Ok(Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(ca.as_bytes())?)
        .proxy(reqwest::Proxy::https(ctx.bed.proxy_url())?)
        .build()?)
}

fn url(node: &str, rest: &str) -> String {
    format!("https://{APISERVER}.{SYSTEM_NAMESPACE}.svc/v1/nodes/{node}/shadow{rest}")
}

async fn revisions(ctx: &ScenarioContext) -> anyhow::Result<Vec<ControllerRevision>> {
    let api: Api<ControllerRevision> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let selector = format!("{OPERATOR_LABEL}={OPERATOR_NAME}");
    Ok(api.list(&ListParams::default().labels(&selector)).await?.items)
}

/// Has the controller create a revision, renumber the one before it, and delete the other.
async fn change_and_trim(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let until = async |what: &str, number: usize| {
        poll(what, async || Ok((revisions(ctx).await?.len() == number).then_some(()))).await
    };
    ctx.policy(&json!({"version": {"exclude": ["9.9.9"]}})).await?;
    until("there are two revisions", 2).await?;
    ctx.policy(&json!({"version": {"exclude": null}, "revisionHistoryLimit": 0})).await?;
    until("one is left", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_permission_is_used_and_every_write_is_guarded() -> anyhow::Result<()> {
    let mut options = nodes(2);
    // A standby reads the lease of the leader.
    options.deploy.controller_replicas = 2;
    options.deploy.controller_args = vec!["--trust-wait=2s".to_owned()];
    options.takeover = true;
    run_expecting(options, EXPECTED, async |ctx| {
        migration::takeover_is_due(ctx).await?;
        let silent = blocked_drain(ctx).await?;
        let other = other(&silent);
        // Its pod is put on the other node, since this one is cordoned.
        workload::apply(&ctx.bed.client, vec![workload::job(SHOP, "report")]).await?;
        ctx.until("the Job's pod is Ready", |world| {
            world.pods.values().any(|pod| pod.name.starts_with("report-") && pod.ready)
        })
        .await?;
        let force = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
        ctx.kubectl(&["apply", "--server-side", "-f", force]).await?;
        // A permit is issued and its desired state withdrawn, and the agent is silent: its node's own Lease decides.
        request_permit_with_stopped_controllers(ctx, &silent).await?;
        let agent = agent_on(ctx, &silent).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        resume_controllers(ctx);
        ctx.until("the permit is issued", |world| permit_of(world, &silent).is_some()).await?;
        withdraw(ctx, &silent).await?;

        // Meanwhile the other one: pods that its budget keeps are deleted at the deadline.
        let patch = r#"{"spec":{"minAvailable":4}}"#;
        ctx.kubectl(&["-n", SHOP, "patch", "pdb", "web", "--type=merge", "-p", patch]).await?;
        ctx.policy(&json!({"maxUnavailable": 2, "drain": {"timeout": "3s", "atDeadline": "Force"}})).await?;
        until_event(ctx, EVENTS_OF_NODES, "DrainForced", &[]).await?;
        ctx.until("the other node is updated", |world| is_updated(world, other)).await?;

        repeat_events(ctx, other).await?;
        read_shadow_past_caches(ctx, other).await?;
        ctx.bed
            .wait("the silent node is released", CERTAIN_TIMEOUT, |history| is_released(&history.end(), &silent))
            .await?;
        signal(&[agent], Signal::SIGCONT);
        ctx.until("the silent node is updated", |world| is_updated(world, &silent)).await?;

        rotate_certificates_and_signing_key(ctx).await?;
        change_and_trim(ctx).await?;
        history::remove_ended(ctx).await?;
        ctx.kubectl(&["label", "node", other, &format!("{INTERFACE_LABEL}-")]).await?;
        ctx.until("its shadow goes", |world| shadow_of(world, other).is_none()).await?;

        ctx.until_operator(STORAGE_MIGRATED, ConditionStatus::True).await?;
        let audit = settled_audit(&mut ctx.bed.control_plane.audit(), &ctx.bed.client).await?;
        let mut installed = deploy::everything()?;
        // It is not installed here; `aws::` has its rights.
        installed.retain(|object| object["metadata"]["name"] != AWS);
        let findings = rights::findings(&rights::granted(&installed)?, &audit);
        // Used where the watch of DaemonSets is behind or not permitted, and by the version before.
        let spare = |finding: &rights::Finding| {
            matches!(finding, rights::Finding::Unused(right)
                if (right.verb.as_str(), right.resource.as_str()) == ("get", "daemonsets"))
        };
        let mut wrong: Vec<String> =
            findings.iter().filter(|finding| !spare(finding)).map(ToString::to_string).collect();
        wrong.extend(rights::writes::unlisted(&audit));
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
    .await?;
    Ok(())
}

/// Repeats an Event, which is counted on the first one: about a Node and about the operator's resource.
async fn repeat_events(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    // kubectl's copy of the earlier definition has no v3, so that it reads the definition again.
    let shadow = format!("bottlerocketshadows.v3.brupop.bottlerocket.aws/{}", shadow_name(node));
    for nonce in ["first", "second"] {
        let request = format!("{RETRY_ANNOTATION}={nonce}");
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite", &shadow, &request]).await?;
        ctx.until("the retry is acknowledged", |world| {
            let record = shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.as_ref());
            record.and_then(|r| r.requests.as_ref()).and_then(|r| r.retry.as_deref()) == Some(nonce)
        })
        .await?;
    }
    // A day that does not exist.
    let broken = json!({"schedule": {"blackouts": [{"from": "2026-02-30"}]}});
    for _ in 0..2 {
        ctx.policy(&broken).await?;
        ctx.until_operator(DEGRADED, ConditionStatus::True).await?;
        ctx.policy(&json!({"schedule": null})).await?;
        ctx.until_operator(DEGRADED, ConditionStatus::False).await?;
    }
    for namespace in [EVENTS_OF_NODES, SYSTEM_NAMESPACE] {
        poll("an Event is counted twice", async || {
            let counts = "jsonpath={.items[*].series.count}";
            let counts = ctx.kubectl(&["-n", namespace, "get", "events.events.k8s.io", "-o", counts]).await?;
            Ok(counts.split_whitespace().any(|count| count == "2").then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Reads past all caches, as the documentation of the web API shows it, for diagnosis.
async fn read_shadow_past_caches(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    let web = web_api(ctx).await?;
    let answer = web.get(url(node, "?fresh=true")).bearer_auth(agents_token(ctx, node)?).send().await?;
    answer.error_for_status()?;
    Ok(())
}

/// Rotates the authority and the signing key, so that each of the Secrets is written again.
async fn rotate_certificates_and_signing_key(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let before = rotation::material(ctx).await?;
    rotation::ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, "1").await?;
    rotation::ask_for(ctx, ROTATE_SIGNING_KEY_ANNOTATION, "1").await?;
    rotation::certificates_rotated(ctx, &before).await?;
    poll("there is another key", async || Ok((rotation::material(ctx).await?.key != before.key).then_some(()))).await
}
