//! Records a real node on the course of `integ::node_recording`, against which the kubelet stand-in is held.

use std::path::Path;
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

/// Records to the file that `BRUPOP_WRITE_RECORDING` names. It takes a quarter of an hour: `make test-vm` leaves it out unless
/// it is named.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn real_node_is_recorded() -> anyhow::Result<()> {
    let path = std::env::var_os("BRUPOP_WRITE_RECORDING").context("BRUPOP_WRITE_RECORDING names no file to write")?;
    // Cargo runs tests in the folder of their package; and a path that cannot be written is no news after a quarter of an hour.
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path);
    std::fs::OpenOptions::new().append(true).create(true).open(&path).with_context(|| path.display().to_string())?;
    let mut cluster = VmCluster::start(1).await?;
    let mut machine = Real(cluster.guests.remove(0));
    let (client, node) = (cluster.client.clone(), machine.0.name.clone());
    let mut course = Course { client, node: &node, machine: &mut machine, limit: BOOT, quiet: QUIET };
    let watch = course.watch();
    let outcome = course.run(&watch).await;
    outcome.with_context(|| machine.0.console())?;
    std::fs::write(path, write(&watch.lines())?)?;
    Ok(())
}
