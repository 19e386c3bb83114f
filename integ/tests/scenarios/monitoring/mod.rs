//! `deploy/monitoring` on a real Prometheus: every alert fires once, by what it is about, and every query of the dashboards
//! returns data.
//!
//! The alerts are those that are installed, without `for` and with shorter times; promtool tests the times
//! (`deploy/monitoring/alerts_test.yaml`).

mod lossy_proxy;
mod prometheus;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::bed::workload;
use integ::host::{BootFault, Command as HostCommand, Fault, Transport};
use integ::oracle::Expectations;
use models::earlier::{COMPONENT_LABEL, NAMESPACE};
use models::names::SYSTEM_NAMESPACE;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::lossy_proxy::LossyProxy;
use self::prometheus::Prometheus;
use crate::interfere::{agent_on, poll, reboot_deadline, release_into_blocked_drain, signal, unblock};
use crate::rotation::provided::{ExternalCa, provide};
use crate::support::{ScenarioContext, is_updated, nodes, other, run, run_expecting, silent_fleet};

/// Creates a pod of the earlier operator's agent.
async fn create_earlier_pod(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "brupop-agent-x", "namespace": NAMESPACE, "labels": {COMPONENT_LABEL: "agent"}},
        "spec": {"containers": [{"name": "agent", "image": "example.invalid/agent:1"}]},
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    workload::apply(&ctx.bed.client, vec![namespace, pod]).await
}

/// The alerts that the scenarios below fire.
const ABOUT_ROLLOUTS: [&str; 6] = [
    "BrupopDrainBlocked",
    "BrupopNodesNotFresh",
    "BrupopHostApiUnreachable",
    "BrupopApprovalWanted",
    "BrupopRolloutFrozen",
    "BrupopNodeUpdateFailed",
];
const ABOUT_NODES: [&str; 4] =
    ["BrupopBudgetUsedUp", "BrupopNodeNotReturned", "BrupopRolloutBraked", "BrupopAgentSilent"];
const ABOUT_THE_OPERATOR: [&str; 9] = [
    "BrupopWebApiDown",
    "BrupopCertificatesDegraded",
    "BrupopPolicyDegraded",
    "BrupopEarlierOperatorRunning",
    "BrupopWritesRejected",
    "BrupopCertificateExpiring",
    "BrupopCallsWithoutAnswer",
    "BrupopTargetDown",
    "BrupopNoLeader",
];
/// Only an operator with a defect has a safety finding, the definitions let nothing pass that cannot be read, and the others take hours, many nodes, or a policy engine: their metrics come from a stand-in.
const OF_A_STAND_IN: [&str; 10] = [
    "BrupopSafetyFinding",
    "BrupopClusterUnwell",
    "BrupopGuardedPodsStay",
    "BrupopObjectUnreadable",
    "BrupopNoAnswerForHours",
    "BrupopReportsNotStored",
    "BrupopNoPlan",
    "BrupopNoPolicy",
    "BrupopNoticesNotSent",
    "BrupopHistoryNotWritten",
];

fn names(alerts: &[&[&str]]) -> BTreeSet<String> {
    alerts.iter().copied().flatten().map(|name| (*name).to_owned()).collect()
}

#[test]
fn scenarios_fire_every_alert() -> anyhow::Result<()> {
    let rule = deploy::monitoring::prometheus_rule()?;
    let rules = rule["spec"]["groups"][0]["rules"].as_array().context("rules")?;
    let all: BTreeSet<String> = rules.iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect();
    assert_eq!(all, names(&[&ABOUT_ROLLOUTS, &ABOUT_NODES, &ABOUT_THE_OPERATOR, &OF_A_STAND_IN]));
    Ok(())
}

#[test]
fn alerts_pass_their_unit_tests() -> anyhow::Result<()> {
    let promtool = prometheus::programs()?.join("promtool");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/monitoring");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output = Command::new(&promtool).args(arguments).current_dir(folder).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "promtool {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    }
    Ok(())
}

/// Queries of the dashboards that have not returned data yet.
struct Dashboards(BTreeSet<String>);

impl Dashboards {
    fn all() -> anyhow::Result<Self> {
        let mut queries = BTreeSet::new();
        for (_, dashboard) in deploy::monitoring::DASHBOARDS {
            queries.extend(deploy::monitoring::expressions(dashboard)?);
        }
        Ok(Self(queries))
    }

    async fn ask(&mut self, prometheus: &Prometheus) -> anyhow::Result<()> {
        for query in self.0.clone() {
            if !prometheus.query(&query).await?.is_empty() {
                self.0.remove(&query);
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: promtool tests of the alerts"]
async fn alerts_about_rollouts_fire_and_dashboards_show_data() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["freshness"] = json!({"target": "1s"});
    options.policy["strategy"] = json!({"canary": [{"nodes": 1, "approval": "Manual"}]});
    run(options, async |ctx| {
        let mut dashboards = Dashboards::all()?;
        ctx.guarded_shop(4).await?;
        ctx.install().await?;
        let prometheus = Prometheus::start(ctx, &[]).await?;
        poll("the leader is scraped", async || {
            Ok((!prometheus.query("brupop_controller_leader == 1").await?.is_empty()).then_some(()))
        })
        .await?;
        // Without `for`, a pod that has just started is down for a moment.
        poll("no alert fires on a healthy cluster", async || Ok(prometheus.firing().await?.is_empty().then_some(())))
            .await?;

        let node = release_into_blocked_drain(ctx).await?;
        let annotations = prometheus.fires("BrupopDrainBlocked").await?;
        ensure!(annotations["runbook_url"].as_str().is_some_and(|url| url.ends_with("/BrupopDrainBlocked.md")));
        prometheus.fires("BrupopNodesNotFresh").await?;
        dashboards.ask(&prometheus).await?;

        let host = &ctx.bed.member(other(&node))?.host;
        host.script(Fault::request("*", "/", Transport::LostBefore).times(10_000));
        prometheus.fires("BrupopHostApiUnreachable").await?;
        host.clear_faults();

        unblock(ctx).await?;
        ctx.until("the canary is updated", |world| is_updated(world, &node)).await?;
        prometheus.fires("BrupopApprovalWanted").await?;
        dashboards.ask(&prometheus).await?;

        host.script(Fault::fails(HostCommand::Prepare, "the repository did not answer\n").times(10_000));
        ctx.policy(&json!({"strategy": {"canary": []}})).await?;
        prometheus.fires("BrupopNodeUpdateFailed").await?;
        host.clear_faults();
        host.script(Fault::boot(BootFault::NewImageFails));
        prometheus.fires("BrupopRolloutFrozen").await?;
        poll("every query of the dashboards has returned data", async || {
            dashboards.ask(&prometheus).await?;
            Ok(dashboards.0.is_empty().then_some(()))
        })
        .await
        .with_context(|| format!("without data: {:#?}", dashboards.0))?;
        let silent = ABOUT_NODES.iter().chain(&ABOUT_THE_OPERATOR).filter(|name| **name != "BrupopTargetDown");
        let firing = prometheus.firing().await?;
        ensure!(silent.into_iter().all(|name| !firing.contains(*name)), "{firing:?}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: promtool tests of the alerts"]
async fn alerts_about_nodes_fire() -> anyhow::Result<()> {
    let kept = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(2), kept, async |ctx| {
        // The operator's own node comes last.
        ctx.install().await?;
        let prometheus = Prometheus::start(ctx, &[]).await?;
        for member in &ctx.bed.members {
            member.host.script(Fault::boot(BootFault::NeverComesBack));
        }
        reboot_deadline(ctx, "5s").await?;
        ctx.policy(&json!({"failurePolicy": {"maxConsecutiveFailures": 1}})).await?;
        ctx.kubectl(&["cordon", "node-2"]).await?;
        ctx.release();
        prometheus.fires("BrupopBudgetUsedUp").await?;
        ctx.kubectl(&["uncordon", "node-2"]).await?;
        prometheus.fires("BrupopNodeNotReturned").await?;
        prometheus.fires("BrupopRolloutBraked").await?;
        let firing = prometheus.firing().await?;
        ensure!(!firing.contains("BrupopAgentSilent"), "its node is not Ready: {firing:?}");

        let ready = ctx.bed.recorder.so_far()?.end();
        let alive =
            ready.nodes.iter().find(|(_, node)| node.ready).map(|(name, _)| name.clone()).context("a node is Ready")?;
        signal(&[agent_on(ctx, &alive).await?], Signal::SIGSTOP);
        let annotations = prometheus.fires("BrupopAgentSilent").await?;
        let text = annotations["description"].as_str().unwrap_or_default();
        let year = jiff::Timestamp::now().to_string()[..4].to_owned();
        ensure!(text.contains(&format!("Last contact {year}-")) && text.contains("; 1 agent(s)"), "{text}");
        for member in &ctx.bed.members {
            member.host.clear_faults();
        }
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_about_the_operator_fire() -> anyhow::Result<()> {
    let mut options = silent_fleet(0);
    // No certificate is provided, so the web API does not serve.
    options.deploy.controller_args.push("--serving-certificate=provided".to_owned());
    run(options, async |ctx| {
        let proxy = LossyProxy::start(&ctx.bed.control_plane).await?;
        ctx.bed.options.pods_api_server = Some(proxy.url.clone());
        ctx.bed.add_node("node-1").await?;
        ctx.bed.install().await?;
        let stand_in = StandIn::start()?;
        let prometheus = Prometheus::start(ctx, std::slice::from_ref(&stand_in.address)).await?;
        prometheus.fires("BrupopCertificatesDegraded").await?;
        let annotations = prometheus.fires("BrupopWebApiDown").await?;
        let text = annotations["description"].as_str().unwrap_or_default();
        ensure!(text.contains("Last Ready 20"), "{text}");

        ctx.policy(&json!({"schedule": {"windows": [{"cron": "61 25 * * *", "duration": "1h"}]}})).await?;
        prometheus.fires("BrupopPolicyDegraded").await?;
        create_earlier_pod(ctx).await?;
        prometheus.fires("BrupopEarlierOperatorRunning").await?;

        // The role of its namespace is gone: the next write of the operator's status is refused.
        ctx.kubectl(&[
            "-n",
            SYSTEM_NAMESPACE,
            "patch",
            "role",
            "brupop-controller",
            "--type=json",
            "-p",
            &no_status()?,
        ])
        .await?;
        ctx.policy(&json!({"schedule": null})).await?;
        prometheus.fires("BrupopWritesRejected").await?;

        let authority = ExternalCa::new("authority")?;
        let soon =
            jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date().checked_add(jiff::Span::new().days(2))?;
        let (year, month, day) = (i32::from(soon.year()), soon.month().try_into()?, soon.day().try_into()?);
        let secret = authority.secret_with(&authority.certificate, |params| {
            params.not_after = rcgen::date_time_ymd(year, month, day);
        })?;
        provide(ctx, secret).await?;
        let annotations = prometheus.fires("BrupopCertificateExpiring").await?;
        ensure!(
            annotations["summary"].as_str().is_some_and(|text| text.contains("serving certificate")),
            "{annotations}"
        );

        for alert in OF_A_STAND_IN {
            prometheus.fires(alert).await?;
        }
        proxy.drop_responses(true);
        let annotations = prometheus.fires("BrupopCallsWithoutAnswer").await?;
        let text = annotations["description"].as_str().unwrap_or_default();
        ensure!(text.contains(" calls within 15 minutes had no response"), "{text}");
        proxy.drop_responses(false);
        poll("there is a leader again", async || {
            Ok((!prometheus.firing().await?.contains("BrupopNoLeader")).then_some(()))
        })
        .await?;
        signal(&ctx.bed.processes_of(Component::Apiserver), Signal::SIGSTOP);
        prometheus.fires("BrupopTargetDown").await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "scale", "deployment/brupop-controller", "--replicas=0"]).await?;
        prometheus.fires("BrupopNoLeader").await?;
        Ok(())
    })
    .await?;
    Ok(())
}

/// A patch of the controller's role that takes the right to write the operator's status.
fn no_status() -> anyhow::Result<String> {
    let objects = deploy::everything()?;
    let role = objects.iter().find(|o| o["kind"] == "Role" && o["metadata"]["name"] == "brupop-controller");
    let rules = role.and_then(|role| role["rules"].as_array()).context("the role")?;
    let is_status = |rule: &Value| rule["resources"][0] == "bottlerocketupdateoperators/status";
    let index = rules.iter().position(is_status).context("the rule")?;
    Ok(json!([{"op": "remove", "path": format!("/rules/{index}")}]).to_string())
}

/// Metrics of an operator with a defect, in an unwell cluster, with a budget that never opens, without a policy and with an old plan, that
/// loses notices and results, and of a web API that stores no report. The counters grow with each scrape.
struct StandIn {
    address: String,
}

impl StandIn {
    fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        std::thread::spawn(move || {
            for (count, stream) in listener.incoming().enumerate() {
                let Ok(mut stream) = stream else { continue };
                let _ = stream.read(&mut [0; 4096]);
                let body = format!(
                    "brupop_controller_lint_findings_total{{property=\"S1\"}} {count}\n\
                     brupop_controller_cluster_unwell 1\nbrupop_controller_budget_stays 3\n\
                     brupop_controller_notices_failing 1\nbrupop_controller_history_failing 1\n\
                     brupop_controller_unreadable_objects{{kind=\"BottlerocketShadow\"}} 1\n\
                     brupop_controller_waiting_since_timestamp_seconds{{reason=\"RefreshFails\"}} 1\n\
                     brupop_controller_web_api_ready 1\nbrupop_controller_turn_age_seconds 1000\n\
                     brupop_apiserver_status_writes_total{{result=\"unknown\"}} {count}\n"
                );
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Ok(Self { address })
    }
}
