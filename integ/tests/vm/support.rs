//! Shared parts of the scenarios on real nodes.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::{Programs, workload};
use integ::oracle::{ClusterState, Expectations, History};
use integ::vm::{BOOT, SOON, VmCluster};
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use semver::Version;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

/// Namespace of the workload.
const SHOP: &str = "shop";

/// A running scenario.
pub(crate) struct Scenario {
    pub(crate) cluster: VmCluster,
}

/// Runs a scenario on so many machines, and judges it.
pub(crate) async fn run(
    guests: u8,
    expectations: Expectations,
    scenario: impl AsyncFnOnce(&mut Scenario) -> anyhow::Result<()>,
) -> anyhow::Result<History> {
    let mut ctx = Scenario { cluster: VmCluster::start(guests).await? };
    let outcome = scenario(&mut ctx).await;
    if let Err(error) = outcome {
        // The cause comes first: a long output may be cut.
        return Err(anyhow::anyhow!("the scenario failed: {error:#}\n{}", ctx.diagnostics().await));
    }
    let (verdict, history) = ctx.cluster.judge(&expectations).await?;
    verdict.ensure_safe()?;
    Ok(history)
}

impl Scenario {
    /// Runs the plugin as an administrator.
    pub(crate) async fn brupop(&self, line: &str) -> anyhow::Result<String> {
        let mut command = Command::new(Programs::find()?.plugin);
        command.env("KUBECONFIG", self.cluster.control_plane.kubeconfig()).env("COLUMNS", "120");
        self.cluster.run(command, line).await
    }

    /// Creates the workload, with so many of its pods allowed to be disrupted, and waits until it is Ready.
    pub(crate) async fn shop(&self, pods: usize, max_unavailable: Value) -> anyhow::Result<()> {
        workload::apply(&self.cluster.client, workload::web(SHOP, pods, max_unavailable)).await?;
        self.shop_is_ready(pods).await
    }

    pub(crate) async fn shop_is_ready(&self, pods: usize) -> anyhow::Result<()> {
        self.until("the workload is Ready", SOON, |world| world.ready_pods(SHOP) == pods).await
    }

    /// Waits until the cluster state meets a condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<()> {
        self.cluster.recorder.wait_until_state(what, limit, holds).await?;
        Ok(())
    }

    /// Waits until every node runs a version, released.
    pub(crate) async fn updated(&self, version: &Version) -> anyhow::Result<()> {
        let nodes: Vec<&str> = self.cluster.nodes().collect();
        let limit = BOOT * u32::try_from(nodes.len())?;
        self.until(&format!("every node is on {version}"), limit, |world| {
            nodes.iter().all(|node| world.is_updated(node, version))
                && world.operator.as_ref().is_none_or(|operator| operator.status.slots.is_empty())
        })
        .await
    }

    /// Waits until the agent runs in another container than the first one of its pod.
    pub(crate) async fn agent_is_restarted(&self, node: &str) -> anyhow::Result<()> {
        let restarts = format!("get pods -n {AGENT_NAMESPACE} -o jsonpath={{..restartCount}}");
        let deadline = Instant::now() + SOON;
        while !self.cluster.kubectl(&restarts).await?.trim().parse().is_ok_and(|restarts: u32| restarts > 0) {
            ensure!(Instant::now() < deadline, "the agent on {node} still has the old socket of the host API");
            sleep(Duration::from_secs(2)).await;
        }
        Ok(())
    }

    /// Checks what the pods of a node may do, as its kernel has it.
    pub(crate) async fn promises_of_the_manifests_hold(&self, node: &str) -> anyhow::Result<()> {
        let guest = self.cluster.guests.iter().find(|guest| guest.name == node).context("no such guest")?;
        for (program, memory) in
            [("brupop-agent", 32 << 20), ("brupop-apiserver", 256 << 20), ("brupop-controller", 256 << 20)]
        {
            let pid = format!("$(pidof -s {program})");
            let status = guest.shell(&format!("cat /proc/{pid}/status")).await?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
            };
            for (name, value) in [
                ("Uid", "65532 65532 65532 65532"),
                ("Gid", "65532 65532 65532 65532"),
                ("CapEff", "0000000000000000"),
                ("CapBnd", "0000000000000000"),
                ("NoNewPrivs", "1"),
                ("Seccomp", "2"),
            ] {
                ensure!(field(name) == value, "{name} of {program}: {}, not {value}", field(name));
            }
            let agent = program == "brupop-agent";
            let api = field("Groups").split(' ').any(|group| group == "274");
            ensure!(api == agent, "groups of {program}: {}", field("Groups"));
            let mounts = guest.shell(&format!("grep ' / ' /proc/{pid}/mounts")).await?;
            ensure!(mounts.split_whitespace().nth(3).is_some_and(|options| options.starts_with("ro")), "{mounts}");
            let label = guest.shell(&format!("cat /proc/{pid}/attr/current")).await?;
            let type_ = if agent { "control_t" } else { "container_t" };
            ensure!(label.split(':').nth(2) == Some(type_), "SELinux label of {program}: {label}");
            let cgroup = format!("/sys/fs/cgroup$(cut -d: -f3 /proc/{pid}/cgroup)");
            let figures = guest.shell(&format!("cat {cgroup}/memory.max {cgroup}/memory.peak")).await?;
            let figures: Vec<u64> = figures.lines().filter_map(|line| line.trim().parse().ok()).collect();
            let [limit, peak] = figures[..] else { anyhow::bail!("memory of {program}: {figures:?}") };
            println!("{program} on {node}: memory.max {limit}, memory.peak {peak}");
            ensure!(limit == memory && peak < limit / 2, "{program} has no room under its limit: {figures:?}");
        }
        let socket = guest.shell("stat -c '%u:%g %a %C' /run/api.sock").await?;
        ensure!(socket == "0:274 660 system_u:object_r:api_socket_t:s0", "{socket}");
        ensure!(guest.shell("cat /sys/fs/selinux/enforce").await? == "1", "SELinux does not enforce");
        // As root, so that nothing but the label counts.
        for (label, may) in [("control_t", true), ("container_t", false)] {
            let writes = guest.shell(&format!("runcon -t {label} -- test -w /run/api.sock")).await;
            ensure!(writes.is_ok() == may, "{label} and the socket: {writes:?}");
        }
        Ok(())
    }

    /// Returns what explains a failure.
    async fn diagnostics(&self) -> String {
        let mut told = String::new();
        for line in [
            "get nodes,pods -A -o wide".to_owned(),
            "get events -A --sort-by=.lastTimestamp".to_owned(),
            format!("-n {SYSTEM_NAMESPACE} get brs,bruo -o yaml"),
            format!("-n {SYSTEM_NAMESPACE} logs -l app.kubernetes.io/name=brupop --tail=60 --prefix"),
            format!("-n {AGENT_NAMESPACE} logs -l app.kubernetes.io/name=brupop --tail=60 --prefix"),
        ] {
            let text = self.cluster.kubectl(&line).await.unwrap_or_else(|error| format!("{error:#}"));
            told.push_str(&format!("\n$ kubectl {line}\n{text}"));
        }
        for guest in &self.cluster.guests {
            let units = guest.shell("systemctl --failed --no-legend; journalctl -b -q --no-pager -n 40").await;
            told.push_str(&format!("\n{}:\n{}\n{}", guest.name, guest.console(), units.unwrap_or_default()));
        }
        told
    }
}
