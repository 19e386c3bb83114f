//! A real Kubernetes control plane as local processes: etcd, API server, controller manager and scheduler, on loopback,
//! in a private folder, with its own certificate authority. A start takes about three seconds.
//!
//! ```text
//! ControlPlane ── Process (etcd, kube-apiserver, kube-controller-manager, kube-scheduler)
//!      │             └─ each marked with BRUPOP_RUN_DIRECTORY, its output in <folder>/<name>.log
//!      └──────── Bed (the folder) ──pipe── reaper: ends whatever is marked, removes the folder
//! ```
//!
//! [`ControlPlane::stop`] ends all of it gracefully. A drop (a panic, an early return) does so by force, and otherwise
//! (SIGKILL, Ctrl-C) the reaper does it alone. Every other process of a test cluster, such as those of pods, is
//! [`marked`] and ended the same way; a client that restarts such processes has to end before the control plane.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, Config};
use models::names;
use tokio::process::Command;
use tokio::time::Instant;

use self::binaries::Binaries;
use self::pki::{Identity, Pki, write_private};
use self::process::{Failure, Process};
use self::reaper::RunDirectory;
use self::settings::Ports;

pub mod audit;
mod binaries;
mod pki;
mod process;
mod reaper;
mod second;
mod settings;
mod storage;

#[cfg(test)]
pub(crate) mod tests;

pub use self::reaper::{RUN_DIRECTORY_VARIABLE, marked, processes_of};
pub use self::second::{Behind, SecondApiServer};

/// Longest wait until a component is ready. Usually two seconds are enough; a machine that compiles meanwhile is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// Grace period of a component. The API server takes a second, longer with clients that keep their watches open;
/// nothing is lost when it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Number of starts tried when another process takes a port between its choice and its use.
const ATTEMPTS: u32 = 3;

/// All controllers of the controller manager that are on by default.
pub const ALL_CONTROLLERS: &str = "*";

/// The controllers whose effects the operator, its workloads or the kubelet stand-ins see.
const CONTROLLERS: &str = "serviceaccount-controller,root-ca-certificate-publisher-controller,namespace-controller,\
                           clusterrole-aggregation-controller,resourcequota-controller,\
                           validatingadmissionpolicy-status-controller,endpointslice-controller,\
                           deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller,\
                           job-controller,disruption-controller,node-lifecycle-controller,taint-eviction-controller,\
                           pod-garbage-collector-controller,garbage-collector-controller";

/// Options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time without a heartbeat after which the controller manager marks a node NotReady (Kubernetes' default: 50 s).
    pub node_monitor_grace: Duration,
    /// Keep the folder with logs, audit log and etcd's data. Set by default if `BRUPOP_KEEP` is in the environment.
    pub keep_dir: bool,
    /// Serve watches from the API server's cache, as every cluster does. Without it a watch from any revision of the
    /// run is answered, from etcd, also after a restart of the API server; with it, an old one may get 410 Gone.
    pub watch_cache: bool,
    /// The controllers that the controller manager runs, as its option `--controllers` names them.
    pub controllers: &'static str,
    /// Keep every revision, which the checks of a run read. Without it, etcd forgets those older than a minute, as in every
    /// cluster, and may hold more than its default of 2 GiB.
    pub keep_revisions: bool,
    /// The API server's audit policy.
    pub audit_policy: &'static str,
    /// An address of this machine at which real nodes reach the API server, which then also dials their kubelets.
    pub for_nodes: Option<Ipv4Addr>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_monitor_grace: Duration::from_secs(10),
            keep_dir: std::env::var_os("BRUPOP_KEEP").is_some(),
            watch_cache: true,
            controllers: CONTROLLERS,
            keep_revisions: true,
            audit_policy: settings::AUDIT_POLICY,
            for_nodes: None,
        }
    }
}

/// A running control plane.
// Fields are dropped in this order: dependents first, the folder last.
pub struct ControlPlane {
    scheduler: Process,
    controller_manager: Process,
    apiserver: Process,
    etcd: Process,
    apiserver_arguments: Vec<String>,
    binaries: Binaries,
    kubectl: PathBuf,
    probes: Probes,
    url: String,
    node_url: Option<String>,
    config: Config,
    client: Client,
    pki: Pki,
    ca_file: PathBuf,
    kubeconfig: PathBuf,
    audit_log: PathBuf,
    started_in: Duration,
    bed: RunDirectory,
}

impl ControlPlane {
    /// Starts a control plane and returns when it works: the API server answers, ServiceAccounts are created, pods get
    /// scheduled.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let binaries = Binaries::locate().await?;
        let mut attempt = 1;
        loop {
            match Self::start_once(&options, &binaries).await {
                Err(error)
                    if attempt < ATTEMPTS && error.downcast_ref::<Failure>().is_some_and(Failure::port_was_taken) =>
                {
                    tracing::info!("a port was taken; starting the control plane with others");
                    attempt += 1;
                }
                result => return result.context("the control plane did not start"),
            }
        }
    }

    async fn start_once(options: &Options, binaries: &Binaries) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let bed = RunDirectory::make(options.keep_dir)?;
        let dir = bed.folder();
        let pki = Pki::generate(dir.to_owned(), options.for_nodes)?;
        let ports = Ports::of(options)?;
        let url = format!("https://127.0.0.1:{}", ports.apiserver);
        let probes = Probes::new(dir, &pki, ports)?;

        let audit_log = dir.join("audit.log");
        write_private(&audit_log, "")?;
        write_private(&dir.join("audit-policy.yaml"), options.audit_policy)?;
        let admin = pki.client("admin", &["system:masters"])?;
        for (name, identity, namespace) in [
            ("admin", &admin, Some(names::SYSTEM_NAMESPACE)),
            ("controller-manager", &pki.client("system:kube-controller-manager", &[])?, None),
            ("scheduler", &pki.client("system:kube-scheduler", &[])?, None),
        ] {
            let content = settings::kubeconfig(&url, pki.ca_pem(), identity, namespace)?;
            write_private(&dir.join(format!("{name}.kubeconfig")), &content)?;
        }
        let config = client_config(&url, &pki, admin)?;
        let client = Client::try_from(config.clone())?;

        let mut etcd = Process::start("etcd", &binaries.path("etcd"), &settings::etcd(dir, options), dir)?;
        etcd.ready(PATIENCE, async || probes.etcd().await).await?;

        let apiserver_arguments = settings::apiserver(dir, &pki, ports, options);
        let mut apiserver = start_apiserver(binaries, &apiserver_arguments, dir)?;
        apiserver.ready(PATIENCE, async || probes.apiserver().await).await?;

        let mut controller_manager = Process::start(
            "kube-controller-manager",
            &binaries.path("kube-controller-manager"),
            &settings::controller_manager(dir, &pki, ports, options),
            dir,
        )?;
        let mut scheduler = Process::start(
            "kube-scheduler",
            &binaries.path("kube-scheduler"),
            &settings::scheduler(dir, &pki, ports),
            dir,
        )?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        controller_manager
            .ready(PATIENCE, async || {
                probes.controller_manager().await?;
                match accounts.get_opt("default").await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err("the ServiceAccount `default` is missing".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await?;
        scheduler.ready(PATIENCE, async || probes.scheduler().await).await?;

        let started_in = begun.elapsed();
        tracing::info!(?started_in, dir = %dir.display(), %url, "the control plane is up");
        Ok(Self {
            kubectl: binaries.path("kubectl"),
            ca_file: pki.file("ca.crt"),
            kubeconfig: dir.join("admin.kubeconfig"),
            binaries: binaries.clone(),
            scheduler,
            controller_manager,
            apiserver,
            etcd,
            apiserver_arguments,
            probes,
            url,
            node_url: options.for_nodes.map(|address| format!("https://{address}:{}", ports.apiserver)),
            config,
            client,
            pki,
            audit_log,
            started_in,
            bed,
        })
    }

    /// The private folder of this control plane: with a short path, readable by this user alone, removed with the
    /// control plane. It may be used for other files, which are removed with it.
    pub fn dir(&self) -> &Path {
        self.bed.folder()
    }

    /// Address of the API server, `https://127.0.0.1:PORT`. It is kept over restarts of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate authority as a PEM file.
    pub fn ca_file(&self) -> &Path {
        &self.ca_file
    }

    /// The certificate authority as PEM.
    pub fn ca_pem(&self) -> &str {
        self.pki.ca_pem()
    }

    /// The file with the private key that the cluster signs tokens with (PEM); the public one has the extension `pub`.
    pub fn service_account_key_file(&self) -> PathBuf {
        self.pki.file("sa.key")
    }

    /// A kubeconfig of the cluster's administrator that needs no other file. Its namespace is the operator's.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client of the cluster's administrator. It works only in the runtime that it is created in.
    pub fn client(&self) -> Client {
        // The same configuration has created a client before, so this does not fail; if it did, the first client is
        // used.
        Client::try_from(self.config.clone()).unwrap_or_else(|_| self.client.clone())
    }

    /// The configuration of [`ControlPlane::client`].
    pub fn client_config(&self) -> Config {
        self.config.clone()
    }

    /// A client that the API server authenticates as `user`, a member of `groups` (at most two), by a client
    /// certificate. A kubelet is `system:node:NAME` in `system:nodes`.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config_as(user, groups)?)?)
    }

    /// A kubeconfig of `user`, a member of `groups`, for a real node.
    ///
    /// # Errors
    /// The control plane was started without an address for nodes.
    pub fn node_kubeconfig(&self, user: &str, groups: &[&str]) -> anyhow::Result<String> {
        let url = self.node_url.as_deref().context("the control plane has no address for nodes")?;
        settings::kubeconfig(url, self.pki.ca_pem(), &self.pki.client(user, groups)?, None)
    }

    /// The configuration of [`ControlPlane::client_as`].
    pub fn config_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<Config> {
        client_config(&self.url, &self.pki, self.pki.client(user, groups)?)
    }

    /// The `kubectl` of the server's version.
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// A `kubectl` command of the cluster's administrator, without arguments. It writes nothing to the user's home.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("KUBECACHEDIR", self.dir().join("kubectl-cache"))
            .env("KUBERC", "off");
        marked(&mut command, self.dir());
        command
    }

    /// The audit log, one JSON object per line.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// A reader of the audit log, from its beginning.
    pub fn audit(&self) -> audit::Reader {
        audit::Reader::new(&self.audit_log)
    }

    /// Duration of the start.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Name and process id of each component.
    pub fn parts(&self) -> [(&'static str, u32); 4] {
        [
            ("etcd", self.etcd.pid()),
            ("kube-apiserver", self.apiserver.pid()),
            ("kube-controller-manager", self.controller_manager.pid()),
            ("kube-scheduler", self.scheduler.pid()),
        ]
    }

    /// Ends all components in order and removes the folder. Other marked processes are ended as well.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Self { mut scheduler, mut controller_manager, mut apiserver, mut etcd, bed, .. } = self;
        let (one, two) = tokio::join!(scheduler.stop(GRACE), controller_manager.stop(GRACE));
        one.and(two)?;
        apiserver.stop(GRACE).await?;
        etcd.stop(GRACE).await?;
        // The reaper takes about a tenth of a second, longer where it has to kill: not on this thread.
        tokio::task::spawn_blocking(move || drop(bed)).await?;
        Ok(())
    }

    /// Kills the API server, as in an outage.
    pub async fn kill_apiserver(&mut self) -> anyhow::Result<()> {
        self.apiserver.kill()
    }

    /// Starts the API server again, at the same address and with the same data, and returns when it works. A running
    /// one is killed first.
    pub async fn restart_apiserver(&mut self) -> anyhow::Result<()> {
        self.apiserver.kill()?;
        self.apiserver = start_apiserver(&self.binaries, &self.apiserver_arguments, self.bed.folder())?;
        let probes = &self.probes;
        self.apiserver
            .ready(PATIENCE, async || probes.apiserver().await)
            .await
            .context("the API server did not start again")
    }
}

fn start_apiserver(binaries: &Binaries, arguments: &[String], bed: &Path) -> anyhow::Result<Process> {
    let binary = binaries.path("kube-apiserver");
    Process::start("kube-apiserver", &binary, arguments, bed)
}

fn client_config(url: &str, pki: &Pki, identity: Identity) -> anyhow::Result<Config> {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    let mut config = Config::new(url.parse()?);
    config.root_cert = Some(vec![pki.ca_der()]);
    config.auth_info.client_certificate_data = Some(BASE64_STANDARD.encode(identity.certificate));
    config.auth_info.client_key_data = Some(BASE64_STANDARD.encode(identity.key).into());
    Ok(config)
}

/// Readiness checks of the components.
struct Probes {
    etcd: reqwest::Client,
    others: reqwest::Client,
    ports: Ports,
}

impl Probes {
    fn new(bed: &Path, pki: &Pki, ports: Ports) -> anyhow::Result<Self> {
        // Proxies of the environment do not apply to loopback.
        let etcd = reqwest::Client::builder().no_proxy().unix_socket(bed.join(settings::ETCD_SOCKET)).build()?;
        let others = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([reqwest::Certificate::from_der(&pki.ca_der())?])
            .build()?;
        Ok(Self { etcd, others, ports })
    }

    async fn etcd(&self) -> Result<(), String> {
        healthy(&self.etcd, "http://etcd/health".to_owned()).await
    }

    async fn apiserver(&self) -> Result<(), String> {
        self.over_tls(self.ports.apiserver, "readyz").await
    }

    async fn controller_manager(&self) -> Result<(), String> {
        self.over_tls(self.ports.controller_manager, "healthz").await
    }

    async fn scheduler(&self) -> Result<(), String> {
        self.over_tls(self.ports.scheduler, "healthz").await
    }

    async fn over_tls(&self, port: u16, path: &str) -> Result<(), String> {
        healthy(&self.others, format!("https://127.0.0.1:{port}/{path}")).await
    }
}

async fn healthy(client: &reqwest::Client, url: String) -> Result<(), String> {
    let answer = client.get(&url).send().await.map_err(|error| {
        let error = anyhow::Error::from(error.without_url());
        format!("{url}: {error:#}")
    })?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let body = answer.text().await.unwrap_or_default();
    Err(format!("{url}: {status}: {}", body.trim()))
}
