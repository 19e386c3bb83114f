//! Records a real node on the course of `integ::node_recording`, against which the kubelet stand-in is held.

use std::time::Duration;

use anyhow::Context as _;
use integ::node_recording::course::{Course, Machine};
use integ::node_recording::{compare, read, write};
use integ::vm::{BOOT, Guest, VmCluster};

/// Longer than kubelets take to renew their Lease, 10 s.
const QUIET: Duration = Duration::from_secs(20);

struct Real(Guest);

impl Machine for Real {
    async fn reboot(&mut self) -> anyhow::Result<()> {
        self.0.shell("systemctl reboot").await?;
        Ok(())
    }

    async fn cut_power(&mut self) -> anyhow::Result<()> {
        self.0.cut_power().await
    }

    async fn restore_power(&mut self) -> anyhow::Result<()> {
        self.0.power_on()
    }

    async fn token(&self, pod_uid: &str) -> anyhow::Result<String> {
        let volume = format!("/var/lib/kubelet/pods/{pod_uid}/volumes/kubernetes.io~projected/token");
        self.0.shell(&format!("cat {volume}/t")).await
    }
}

/// `BRUPOP_WRITE_RECORDING` names the file to write; without it, the node is compared with the recording.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn kubelet_does_what_was_recorded() -> anyhow::Result<()> {
    let mut cluster = VmCluster::start(1).await?;
    let mut machine = Real(cluster.guests.remove(0));
    let (client, node) = (cluster.client.clone(), machine.0.name.clone());
    let mut course = Course { client, node: &node, machine: &mut machine, limit: BOOT, quiet: QUIET };
    let watch = course.watch();
    let outcome = course.run(&watch).await;
    let lines = watch.lines();
    let written = std::env::var_os("BRUPOP_WRITE_RECORDING");
    if let Some(path) = &written {
        std::fs::write(path, write(&lines)?)?;
    }
    outcome.with_context(|| machine.0.console())?;
    if written.is_some() {
        return Ok(());
    }
    let differences = compare(&read(include_str!("../../testdata/real-node.jsonl"))?, &lines);
    assert!(differences.is_empty(), "{differences:#?}");
    Ok(())
}
