//! A test cluster of real nodes: virtual machines with kernel, systemd, containerd, runc and kubelet, two root sets, and a host
//! API that really reboots them, on the same control plane as the simulated ones. `integ/vm` builds what they run, and
//! `make test-vm` runs the scenarios; docs/testing.md describes both.

mod dns;
mod guest;
mod network;
mod seed;
mod stand_in;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use semver::Version;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::bed::{host_log, workload};
use crate::control_plane::{self, ControlPlane};
use crate::oracle::{ClusterState, Expectations, History, HostLog, Recorder, Verdict, judge, settled_audit};
use crate::pages;

pub use self::guest::Guest;
pub use self::network::GATEWAY;
use self::stand_in::StandIn;

/// The version that a guest runs at first.
pub const FIRST: Version = Version::new(1, 20, 0);
/// The version that works.
pub const UPDATED: Version = Version::new(1, 20, 5);
/// The version that does not boot.
pub const BROKEN: Version = Version::new(1, 20, 6);

/// Longest wait for anything that contains one boot. Under emulation, beside others, one takes three minutes.
pub const BOOT: Duration = Duration::from_secs(600);

/// Time in which QEMU says what it lacks.
const QEMU_STARTS: Duration = Duration::from_secs(2);

/// Longest wait for what contains no boot.
pub const SOON: Duration = Duration::from_secs(300);

/// The files that `make test-vm` has built.
#[derive(Debug)]
struct Files {
    scripts: PathBuf,
    guest: PathBuf,
    coredns: PathBuf,
    initrd: PathBuf,
    data: PathBuf,
}

impl Files {
    fn find() -> anyhow::Result<Self> {
        let path = |name: &str| {
            let path = std::env::var_os(name).with_context(|| format!("{name} is not set: run it by make test-vm"))?;
            let path = PathBuf::from(path);
            anyhow::ensure!(path.exists(), "{name}: {} is missing: run make test-vm", path.display());
            anyhow::Ok(path)
        };
        Ok(Self {
            scripts: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/vm")),
            guest: path("BRUPOP_GUEST")?,
            coredns: path("BRUPOP_COREDNS")?,
            initrd: path("BRUPOP_VM_INITRD")?,
            data: path("BRUPOP_VM_DATA")?,
        })
    }
}

/// A running cluster of virtual machines. Dropping it ends all its processes and removes its files.
pub struct VmCluster {
    /// The nodes, by number.
    pub guests: Vec<Guest>,
    /// Records the API server's history for the oracle.
    pub recorder: Recorder,
    /// An administrator's client.
    pub client: Client,
    stand_in: Option<StandIn>,
    _dns: Child,
    /// The control plane; dropped last.
    pub control_plane: ControlPlane,
}

impl VmCluster {
    /// Starts the control plane and so many machines, and returns when each node takes pods. The operator is not installed.
    pub async fn start(guests: u8) -> anyhow::Result<Self> {
        let files = Files::find()?;
        network::check(guests)?;
        let options = control_plane::Options {
            for_nodes: Some(network::GATEWAY),
            controllers: control_plane::ALL_CONTROLLERS,
            // Kubernetes' default: an emulated node is too slow for less.
            node_monitor_grace: Duration::from_secs(50),
            ..control_plane::Options::default()
        };
        let control_plane = ControlPlane::start(options).await?;
        let client = control_plane.client();
        let recorder = Recorder::start(client.clone()).await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "kube-proxy"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"}],
        });
        workload::apply(&client, vec![binding]).await?;
        let dns = dns::start(&files.coredns, &control_plane, &client).await?;
        let mut cluster = Self { guests: Vec::new(), stand_in: None, recorder, client, _dns: dns, control_plane };
        for number in 1..=guests {
            let (name, others) = (format!("vm-{number}"), (1..=guests).filter(|other| *other != number));
            let folder = cluster.control_plane.dir().join(&name);
            std::fs::create_dir(&folder)?;
            let others: Vec<u8> = others.collect();
            seed::write(&cluster.control_plane, &folder, &name, number, &others).await?;
            let mut guest = Guest::make(&files, cluster.control_plane.dir(), &name, number, folder).await?;
            guest.power_on()?;
            cluster.guests.push(guest);
        }
        tokio::time::sleep(QEMU_STARTS).await;
        for guest in &mut cluster.guests {
            guest.runs()?;
        }
        let ready = cluster
            .recorder
            .wait_until_state("every node is Ready", BOOT, |world| {
                world.nodes.len() == usize::from(guests) && world.nodes.values().all(|node| node.ready)
            })
            .await;
        let consoles = || {
            let consoles = cluster.guests.iter().map(|guest| format!("{}:\n{}", guest.name, guest.console()));
            consoles.collect::<Vec<_>>().join("\n")
        };
        ready.with_context(consoles)?;
        Ok(cluster)
    }

    /// Adds a node without a machine, and returns when it is Ready.
    pub async fn add_stand_in(&mut self, name: &str) -> anyhow::Result<()> {
        self.stand_in = Some(StandIn::start(name, &self.control_plane, &self.client).await?);
        let ready = |world: &ClusterState| world.nodes.get(name).is_some_and(|node| node.ready);
        self.recorder.wait_until_state(&format!("{name} is Ready"), SOON, ready).await?;
        Ok(())
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        let stand_in = self.stand_in.iter().map(|stand_in| stand_in.node.name.as_str());
        self.guests.iter().map(|guest| guest.name.as_str()).chain(stand_in)
    }

    /// Runs kubectl as an administrator from the root of the repository, and returns what it prints.
    pub async fn kubectl(&self, line: &str) -> anyhow::Result<String> {
        self.run(self.control_plane.kubectl_command(), line).await
    }

    /// Runs a command with the words of a line as its arguments.
    pub async fn run(&self, mut command: Command, line: &str) -> anyhow::Result<String> {
        let output = command
            .args(line.split_whitespace())
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .kill_on_drop(true)
            .output()
            .await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        anyhow::ensure!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Runs the commands of README's installation, those about a node for each of them, and waits until every agent has
    /// reported. The times of the policy become those of a test.
    ///
    /// # Errors
    /// A command fails, README has none, or an agent is silent for longer than [`SOON`].
    pub async fn install_by_readme(&self) -> anyhow::Result<()> {
        let kubectl = self.control_plane.kubectl().parent().context("kubectl has a folder")?;
        let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap_or_default());
        let lines = pages::commands("README.md", "Install it")?;
        for line in lines.iter().filter(|line| !line.contains("--watch")) {
            let nodes = self.nodes().map(|node| line.replace("NODE", node));
            for line in nodes.take(if line.contains("NODE") { usize::MAX } else { 1 }) {
                let mut shell = Command::new("bash");
                shell.env("PATH", &path).env("KUBECONFIG", self.control_plane.kubeconfig()).args(["-ec", &line]);
                self.run(shell, "").await.with_context(|| line.clone())?;
            }
        }
        let policy = json!({"spec": {
            "version": {"refreshInterval": "10s"},
            "health": {"after": {"soak": "15s"}},
            "failurePolicy": {"backOff": "10s"},
        }});
        let patch = "patch bruo --type=merge";
        self.kubectl(&format!("-n {SYSTEM_NAMESPACE} {patch} {OPERATOR_NAME} -p {policy}")).await?;
        self.recorder
            .wait_until_state("every agent has reported", SOON, |world| {
                let reported = world.shadows.values().filter(|shadow| shadow.status.agent.updates.is_some());
                reported.count() == self.nodes().count()
            })
            .await?;
        Ok(())
    }

    /// Makes a version appear in the update repository of every node.
    pub async fn publish(&self, version: &Version) -> anyhow::Result<()> {
        for guest in &self.guests {
            guest.publish(version).await?;
        }
        if let Some(stand_in) = &self.stand_in {
            stand_in.releases.publish(version.clone());
        }
        Ok(())
    }

    /// A guest by its name.
    pub fn guest(&mut self, name: &str) -> anyhow::Result<&mut Guest> {
        self.guests.iter_mut().find(|guest| guest.name == name).with_context(|| format!("no guest {name}"))
    }

    /// Judges the whole run.
    pub async fn judge(self, expectations: &Expectations) -> anyhow::Result<(Verdict, History)> {
        let logs = self.guests.iter().map(|guest| Ok(HostLog::of(&guest.name, &guest.events()?)));
        let mut logs: Vec<HostLog> = logs.collect::<anyhow::Result<_>>()?;
        logs.extend(self.stand_in.iter().map(|stand_in| host_log(&stand_in.node.name, &stand_in.node.host)));
        let history = self.recorder.finish().await?;
        let audit = settled_audit(&mut self.control_plane.audit(), &self.client).await?;
        drop(self.guests);
        if let Some(stand_in) = self.stand_in {
            stand_in.node.kubelet.stop().await;
        }
        self.control_plane.stop().await?;
        Ok((judge(&history, &logs, &audit, expectations), history))
    }
}
