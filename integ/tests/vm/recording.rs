//! Records a real node on the course of `integ::node_recording`, against which the kubelet stand-in is held.

use std::time::Duration;

use anyhow::Context as _;
use integ::node_recording::course::{Course, Machine};
use integ::node_recording::write;
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

/// Records to the file that `BRUPOP_WRITE_RECORDING` names. It takes a quarter of an hour, so that it is left out without it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn real_node_is_recorded() -> anyhow::Result<()> {
    let Some(path) = std::env::var_os("BRUPOP_WRITE_RECORDING") else {
        eprintln!("BRUPOP_WRITE_RECORDING names no file: nothing is recorded");
        return Ok(());
    };
    let mut cluster = VmCluster::start(1).await?;
    let mut machine = Real(cluster.guests.remove(0));
    let (client, node) = (cluster.client.clone(), machine.0.name.clone());
    let mut course = Course { client, node: &node, machine: &mut machine, limit: BOOT, quiet: QUIET };
    let watch = course.watch();
    let outcome = course.run(&watch).await;
    std::fs::write(path, write(&watch.lines())?)?;
    outcome.with_context(|| machine.0.console())
}
