//! The quick starts, run from their pages as they are: nothing happens to a node before it is labelled and updates are enabled.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::{Programs, TestCluster, TestClusterOptions};
use integ::host::Snapshot;
use integ::oracle::{ClusterState, Expectations};
use integ::pages;
use models::names::{CONTROLLER, CONTROLLER_MANAGER, SYSTEM_NAMESPACE};
use semver::Version;
use tokio::process::Command;

use crate::helm::{Helm, ROOT, kubectl};

const NEW: Version = Version::new(1, 20, 5);
const LIMIT: Duration = Duration::from_secs(180);

/// Runs a line in a shell, from the root of the repository, with kubectl and helm.
async fn shell(bed: &TestCluster, helm: &Helm, line: &str) -> anyhow::Result<()> {
    let kubectl = bed.control_plane.kubectl().parent().context("kubectl has a folder")?;
    let path = format!("{}:{}:{}", helm.folder()?, kubectl.display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-ec", line]).current_dir(ROOT).stdin(Stdio::null()).kill_on_drop(true);
    let output = helm.configure(&mut bash).env("PATH", path).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    Ok(())
}

/// The state of a host that an update changes.
fn on_disk(host: &Snapshot) -> String {
    format!("{:?} {:?} {:?} {:?}", host.boot_id, host.disk, host.settings, host.running_version)
}

/// Returns true if each node has reported the new version, and waits because updates are disabled.
fn all_wait(world: &ClusterState) -> bool {
    let chosen = |shadow: &integ::oracle::Shadow| {
        shadow.status.agent.updates.as_ref().and_then(|updates| updates.chosen_version.clone())
    };
    let operator = world.operator.as_ref();
    world.shadows.len() == 2
        && world.shadows.values().all(|shadow| chosen(shadow) == Some(NEW))
        && operator.is_some_and(|o| o.status.waiting.iter().any(|w| w.reason == "Disabled" && w.nodes == 2))
}

/// Waits until the leader has renewed its lease so often: it has worked since then.
async fn renewals(bed: &TestCluster, times: usize) -> anyhow::Result<()> {
    let lease = ["-n", SYSTEM_NAMESPACE, "get", "lease", CONTROLLER, "-o", "jsonpath={.spec.renewTime}"];
    let mut seen = std::collections::BTreeSet::new();
    until(bed, "the lease is renewed", &lease, |time| {
        seen.insert(time.to_owned());
        seen.len() > times
    })
    .await
}

/// Repeats a command of kubectl until its output is as it should be.
async fn until(
    bed: &TestCluster,
    what: &str,
    command: &[&str],
    mut holds: impl FnMut(&str) -> bool,
) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let output = kubectl(&bed.control_plane, command).await?;
        if holds(&output) {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < deadline, "not within {LIMIT:?}: {what}: {output}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_changes_no_node_until_it_is_labelled_and_updates_are_enabled() -> anyhow::Result<()> {
    let bed = TestCluster::start(TestClusterOptions { nodes: 2, labelled: false, ..Default::default() }).await?;
    let helm = Helm::find(Some(&bed.control_plane)).await?;
    let hosts = || bed.members.iter().map(|member| on_disk(&member.host.snapshot())).collect::<Vec<_>>();
    let owners = async || kubectl(&bed.control_plane, &["get", "nodes", "--show-managed-fields", "-o", "yaml"]).await;
    let before = hosts();
    bed.releases.publish(NEW);
    let mut lines = pages::commands("README.md", "Install it")?;
    lines.retain(|line| !line.contains("--watch"));
    let [install, label, enable] = &lines[..] else { anyhow::bail!("three lines: {lines:?}") };
    shell(&bed, &helm, install).await?;
    let rollout = ["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=120s"];
    kubectl(&bed.control_plane, &rollout).await?;
    let world = bed.recorder.so_far()?.end();
    ensure!(world.shadows.is_empty(), "no node has the label: {:?}", world.shadows);

    for member in &bed.members {
        shell(&bed, &helm, &label.replace("NODE", &member.name)).await?;
    }
    bed.wait_state("labelled nodes wait because updates are disabled", LIMIT, all_wait).await?;
    renewals(&bed, 3).await?;
    let world = bed.recorder.so_far()?.end();
    ensure!(world.nodes.values().all(|node| !node.claimed()), "{:?}", world.nodes);
    ensure!(world.shadows.values().all(|shadow| shadow.spec.attempt == 0 && shadow.step().is_none()));
    assert_eq!(hosts(), before, "no host has been touched");
    ensure!(!owners().await?.contains(&format!("manager: {CONTROLLER_MANAGER}\n")), "no Node has been written");

    let soak = r#"{"spec":{"health":{"after":{"soak":"1s"}}}}"#;
    let soak = ["patch", "bruo", "default", "-n", SYSTEM_NAMESPACE, "--type=merge", "-p", soak];
    kubectl(&bed.control_plane, &soak).await?;
    shell(&bed, &helm, enable).await?;
    bed.wait_updated(&NEW, LIMIT).await?;
    let (verdict, _) = bed.judge(&Expectations { max_unavailable: Some(1), nothing_left: true }).await?;
    verdict.ensure_safe()
}

/// The commands of the page about Helm, with other namespaces. Not judged by the oracle, which knows the operator by its usual
/// ones; there, the charts install the objects of the manifests.
#[tokio::test(flavor = "multi_thread")]
async fn release_in_other_namespaces_updates_nodes() -> anyhow::Result<()> {
    let deploy = deploy::Options { registry: Some("registry.example/brupop".to_owned()), ..deploy::Options::default() };
    let options = TestClusterOptions { nodes: 2, labelled: false, deploy, ..Default::default() };
    let bed = TestCluster::start(options).await?;
    let helm = Helm::find(Some(&bed.control_plane)).await?;
    bed.releases.publish(NEW);
    for line in pages::commands("docs/install.md", "With Helm")? {
        let mut line = line.replace(SYSTEM_NAMESPACE, "platform");
        if line.contains("install brupop ") {
            line += " --set namespaces.agents.name=platform-agents,policy.spec.health.after.soak=1s";
        }
        shell(&bed, &helm, &line).await?;
    }
    kubectl(&bed.control_plane, &["-n", "platform", "rollout", "status", "deployment", "--timeout=120s"]).await?;
    let lines = pages::commands("docs/install.md", "Label and enable with Helm")?;
    let [label, enable] = &lines[..] else { anyhow::bail!("two lines: {lines:?}") };
    for member in &bed.members {
        shell(&bed, &helm, &label.replace("NODE", &member.name)).await?;
    }
    shell(&bed, &helm, &enable.replace(SYSTEM_NAMESPACE, "platform")).await?;
    let versions = ["-n", "platform", "get", "brs", "-o", "jsonpath={.items[*].status.currentVersion}"];
    let wanted = format!("{NEW} {NEW}");
    until(&bed, "both nodes are updated", &versions, |found| found == wanted).await?;
    let mut plugin = Command::new(Programs::find()?.plugin);
    plugin.arg("status").env("KUBECONFIG", bed.control_plane.kubeconfig()).env("BRUPOP_NAMESPACE", "platform");
    let output = plugin.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && text.contains("node-1") && text.contains("node-2"), "{output:?}");
    Ok(())
}
