//! Scripted nodes: what the script says of each, and the task that writes their Nodes, pods and agents' reports.

mod pieces;

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use integ::kubelet::{ScriptedPod, node_status, scripted_status};
use integ::oracle::{HostEvent, HostFact, HostLog};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use models::condition::{Condition, ConditionStatus};
use models::names::{self, AGENT_MANAGER, SYSTEM_NAMESPACE};
use models::shadow::{BottlerocketShadow, HOST_REACHABLE, HostState, Step};
use planner::simulation::Host;
use planner::view::{NodeFacts, NodeView, Projection as _, ShadowFacts};
use semver::Version;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Time;

/// Time without an event after which agents act again.
const REPEAT: std::time::Duration = std::time::Duration::from_secs(1);
/// Longest wait for the writes that are due.
const WRITES: std::time::Duration = std::time::Duration::from_secs(10);
/// Addresses of scripted nodes, which nothing dials.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Variant and architecture that agents report.
pub(crate) const VARIANT: &str = "aws-k8s-1.37";
const ARCH: &str = "x86_64";

/// The result of the boot into an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Boot {
    /// The host runs the image, and its kubelet is Ready.
    #[default]
    Runs,
    /// The host is back on the image that it ran before.
    FallsBack,
    /// The host runs the image, and its kubelet is not Ready.
    NotReady,
    /// The host does not come back.
    Never,
}

/// A command of the host that does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Download,
    /// The agent has requested its permit, and reports nothing more.
    Activation,
}

/// The behaviour of a node, which a case may change at any time.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    /// The agent works; otherwise it is silent.
    pub(crate) agent: bool,
    /// The agent's pod is Ready.
    pub(crate) agent_ready: bool,
    /// Downloads succeed.
    pub(crate) downloads: bool,
    /// The command that does not end, until this is `None` again.
    pub(crate) held: Option<Held>,
    /// The result of the next boots into an image.
    pub(crate) boot: Boot,
    /// The kubelet is Ready, while the host is up.
    pub(crate) ready: bool,
    /// Condition of the Node that says of which resource it is short, such as `DiskPressure`.
    pub(crate) pressure: Option<&'static str>,
    /// The number of its GPUs, as its device plugin has registered them; `None` without such a plugin.
    pub(crate) gpus: Option<u32>,
    /// The architecture that the agent reports.
    pub(crate) arch: &'static str,
}

impl Default for Behaviour {
    fn default() -> Self {
        let (held, pressure, gpus) = (None, None, None);
        let (boot, arch) = (Boot::Runs, ARCH);
        Self { agent: true, agent_ready: true, downloads: true, held, boot, ready: true, pressure, gpus, arch }
    }
}

/// A rule about pods: those with the label `app`, on this node and on hosts of this version, are not Ready.
#[derive(Clone, Debug)]
pub(crate) struct PodRule {
    pub(crate) app: String,
    pub(crate) node: Option<String>,
    pub(crate) version: Option<Version>,
}

struct Scripted {
    behaviour: Behaviour,
    host: Host,
    boot_id: String,
    up: bool,
    /// The host's log, for the oracle.
    events: Vec<HostEvent>,
    /// The shutdown has been shown: the next step of the script is the boot.
    going_down: bool,
}

impl Scripted {
    fn log(&mut self, fact: HostFact) {
        self.events.push(HostEvent { at: Timestamp::now(), boot_id: self.boot_id.clone(), fact });
    }

    fn os_image(&self) -> String {
        format!("Bottlerocket OS {} ({VARIANT})", self.host.runs)
    }
}

#[derive(Default)]
pub(super) struct State {
    nodes: BTreeMap<String, Scripted>,
    offered: Vec<Version>,
    rules: Vec<PodRule>,
    /// The logs of hosts that were removed.
    removed: Vec<HostLog>,
    /// No agent can report.
    pub(super) web_api_down: bool,
    /// Writes that failed.
    errors: Vec<String>,
}

/// The scripted nodes. Clones share them.
#[derive(Clone)]
pub(crate) struct Fleet {
    state: Arc<Mutex<State>>,
    /// Notifies the task that writes.
    changed: watch::Sender<u64>,
    /// The last change after which it has written all that there was to write.
    written: watch::Sender<u64>,
}

impl Fleet {
    pub(super) fn new(version: &Version) -> Self {
        let state = State { offered: vec![version.clone()], ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(0), written: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|n| *n += 1);
        result
    }

    /// Waits until what nodes, agents and pods have come to by now is written, with its time. A case may have such writes refused.
    pub(super) async fn until_written(&self) {
        let mut written = self.written.subscribe();
        self.change(|_| ());
        let last = *self.changed.borrow();
        let wait = async { written.wait_for(|written| *written >= last).await.map(drop) };
        let _ = tokio::time::timeout(WRITES, wait).await;
    }

    /// Offers a version to all hosts.
    pub(crate) fn release(&self, version: Version) {
        self.change(|state| {
            state.offered.push(version);
            state.offered.sort_by(|a, b| b.cmp(a));
        });
    }

    /// Offers a version no more.
    pub(crate) fn retract(&self, version: &Version) {
        self.change(|state| state.offered.retain(|offered| offered != version));
    }

    /// Changes the behaviour of a node.
    pub(crate) fn script(&self, node: &str, change: impl FnOnce(&mut Behaviour)) {
        self.change(|state| state.nodes.get_mut(node).map(|scripted| change(&mut scripted.behaviour)));
    }

    /// Has pods be not Ready, to the end of the case.
    pub(crate) fn pods(&self, rule: PodRule) {
        self.change(|state| state.rules.push(rule));
    }

    /// Reboots a host that the operator has not asked for it, into what it has armed.
    pub(crate) fn reboot(&self, node: &str) {
        self.change(|state| {
            if let Some(scripted) = state.nodes.get_mut(node) {
                scripted.log(HostFact::Shutdown { by_api: false });
                scripted.going_down = true;
            }
        });
    }

    /// Boots a host that did not come back.
    pub(crate) fn power_on(&self, node: &str) {
        self.change(|state| {
            if let Some(scripted) = state.nodes.get_mut(node) {
                (scripted.up, scripted.going_down, scripted.behaviour.boot) = (true, true, Boot::Runs);
            }
        });
    }

    /// The boot of a host.
    pub(super) fn boot_id(&self, node: &str) -> Option<String> {
        self.lock().nodes.get(node).map(|scripted| scripted.boot_id.clone())
    }

    /// The writes that have failed so far.
    pub(super) fn errors(&self) -> Vec<String> {
        self.lock().errors.clone()
    }

    pub(super) fn logs(&self) -> Vec<HostLog> {
        let state = self.lock();
        let log =
            |(node, scripted): (&String, &Scripted)| HostLog { node: node.clone(), events: scripted.events.clone() };
        state.nodes.iter().map(log).chain(state.removed.iter().cloned()).collect()
    }

    /// Installs a host, and returns its boot. It has no Node yet.
    pub(crate) fn add(&self, node: &str, version: &Version) -> String {
        self.change(|state| {
            let boot_id = boot_id(node, 1);
            let mut scripted = Scripted {
                behaviour: Behaviour::default(),
                host: Host::new(version.clone()),
                boot_id: boot_id.clone(),
                up: true,
                events: Vec::new(),
                going_down: false,
            };
            scripted.log(HostFact::Booted { boot_id: boot_id.clone() });
            state.nodes.insert(node.to_owned(), scripted);
            boot_id
        })
    }
}

/// The id of a boot of a host. A shadow takes one that is no longer than those of real hosts; names of nodes may be.
fn boot_id(node: &str, number: impl std::fmt::Display) -> String {
    const KEPT: usize = 40;
    let name = node.get(node.len().saturating_sub(KEPT)..).unwrap_or(node);
    format!("{name}-boot-{number}")
}

/// The identity of a kubelet.
pub(super) fn kubelet_of(stage: &super::Stage, node: &str) -> anyhow::Result<Client> {
    stage.control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"])
}

/// Registers a Node as its kubelet.
pub(super) async fn register(
    admin: &Client,
    kubelet: &Client,
    fleet: &Fleet,
    node: &str,
    labels: BTreeMap<String, String>,
    now: Timestamp,
) -> anyhow::Result<Node> {
    let (boot_id, os_image, arch) = {
        let state = fleet.lock();
        let scripted = state.nodes.get(node).context("no such node")?;
        (scripted.boot_id.clone(), scripted.os_image(), scripted.behaviour.arch)
    };
    // Kubernetes has other names for them.
    let arch = if arch == ARCH { "amd64" } else { "arm64" };
    let mut all: BTreeMap<String, String> =
        [("kubernetes.io/hostname", node), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", arch)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    all.extend(labels);
    let mut status = node_status::facts(node, ADDRESS, &boot_id, &os_image);
    status["conditions"] = json!(node_status::conditions(false, &[], now));
    let object: Node = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": all},
        "spec": {"providerID": format!("cloud:///zone/{node}")}, "status": status,
    }))?;
    let created = Api::<Node>::all(kubelet.clone()).create(&PostParams::default(), &object).await?;
    let owner = created.owner_ref(&()).context("a Node without a name")?;
    let lease = Lease {
        metadata: kube::api::ObjectMeta {
            name: Some(node.to_owned()),
            owner_references: Some(vec![owner]),
            ..kube::api::ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    };
    let leases: Api<Lease> = Api::namespaced(kubelet.clone(), "kube-node-lease");
    leases.create(&PostParams::default(), &lease).await?;
    // As the node lifecycle controller does, which the script is too: a Node is registered with a taint.
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    Ok(Api::<Node>::all(admin.clone()).patch(node, &PatchParams::default(), &untainted).await?)
}

/// Renews the Lease of a node at this time.
pub(super) async fn renew_lease(client: &Client, node: &str, now: Timestamp) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let renewed = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let patch = Patch::Merge(json!({"spec": {"renewTime": renewed}}));
    leases.patch(node, &PatchParams::default(), &patch).await.map(drop)
}

/// The task that writes what kubelets and agents would.
pub(super) struct Actors {
    pub(super) fleet: Fleet,
    pub(super) time: Time,
    pub(super) admin: Client,
    /// A client that is the web API, which writes the agents' reports.
    pub(super) web_api: Client,
    pub(super) kubelets: Arc<Mutex<HashMap<String, Client>>>,
    shadows: BTreeMap<String, BottlerocketShadow>,
    pods: BTreeMap<String, Pod>,
    /// Restarts of each pod, by uid.
    restarts: HashMap<String, u32>,
    /// The last status written of each Node.
    nodes: HashMap<String, Value>,
    /// The last renewal of the Lease of each node that is verified.
    renewed: HashMap<String, Instant>,
}

fn is_newer<K: ResourceExtension>(new: &K, old: Option<&K>) -> bool {
    let version = |object: &K| object.version().parse::<u64>().unwrap_or_default();
    old.is_none_or(|old| version(new) > version(old))
}

/// The resourceVersion of an object.
trait ResourceExtension {
    fn version(&self) -> String;
}

impl<K: kube::ResourceExt> ResourceExtension for K {
    fn version(&self) -> String {
        self.resource_version().unwrap_or_default()
    }
}

fn key<K: kube::ResourceExt>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

/// Takes an event of a watch into a copy of the objects.
fn take<K: kube::ResourceExt>(objects: &mut BTreeMap<String, K>, event: Event<K>) {
    match event {
        Event::Apply(object) | Event::InitApply(object) => {
            if is_newer(&object, objects.get(&key(&object))) {
                objects.insert(key(&object), object);
            }
        }
        Event::Delete(object) => {
            objects.remove(&key(&object));
        }
        Event::Init | Event::InitDone => {}
    }
}

impl Actors {
    pub(super) fn new(
        fleet: Fleet,
        time: Time,
        admin: Client,
        web_api: Client,
        kubelets: Arc<Mutex<HashMap<String, Client>>>,
    ) -> Self {
        Self {
            fleet,
            time,
            admin,
            web_api,
            kubelets,
            shadows: BTreeMap::new(),
            pods: BTreeMap::new(),
            restarts: HashMap::new(),
            nodes: HashMap::new(),
            renewed: HashMap::new(),
        }
    }

    /// Starts to act.
    pub(super) fn start(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            self.run().await;
        })
    }

    async fn run(&mut self) {
        let shadows: Api<BottlerocketShadow> = Api::namespaced(self.admin.clone(), SYSTEM_NAMESPACE);
        let pods: Api<Pod> = Api::all(self.admin.clone());
        let mut shadows = watcher(shadows, watcher::Config::default()).boxed();
        let mut pods = watcher(pods, watcher::Config::default()).boxed();
        let mut changed = self.fleet.changed.subscribe();
        let mut time = self.time.steps();
        loop {
            tokio::select! {
                event = shadows.try_next() => {
                    if let Ok(Some(event)) = event { take(&mut self.shadows, event) }
                }
                event = pods.try_next() => {
                    if let Ok(Some(event)) = event { take(&mut self.pods, event) }
                }
                _ = changed.changed() => {}
                _ = time.changed() => {}
                // A request that has not been answered is repeated.
                () = tokio::time::sleep(REPEAT) => {}
            }
            let last = *self.fleet.changed.borrow();
            // An answer that is a conflict, or comes too early, is followed by an event.
            if let Err(error) = self.act().await {
                let expected = error
                    .downcast_ref::<kube::Error>()
                    .is_some_and(|error| matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409)));
                if !expected {
                    self.fleet.lock().errors.push(format!("{error:#}"));
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                self.fleet.changed.send_modify(|n| *n += 1);
            } else {
                self.fleet.written.send_replace(last);
            }
        }
    }

    async fn act(&mut self) -> anyhow::Result<()> {
        let nodes: Vec<String> = self.fleet.lock().nodes.keys().cloned().collect();
        for node in &nodes {
            self.node(node).await?;
            // The agent's report about a boot follows the boot.
            while self.agent(node).await? {
                self.node(node).await?;
            }
            self.lease(node).await?;
        }
        self.all_pods().await
    }

    fn kubelet(&self, node: &str) -> Option<Client> {
        self.kubelets.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Writes the status of a Node, and boots its host when it is down.
    async fn node(&mut self, name: &str) -> anyhow::Result<()> {
        loop {
            let (status, going_down) = {
                let state = self.fleet.lock();
                let Some(scripted) = state.nodes.get(name) else { return Ok(()) };
                let mut status = node_status::facts(name, ADDRESS, &scripted.boot_id, &scripted.os_image());
                status["shuttingDown"] = (scripted.going_down || !scripted.up).into();
                status["ready"] = scripted.behaviour.ready.into();
                status["pressure"] = scripted.behaviour.pressure.into();
                if let Some(gpus) = scripted.behaviour.gpus {
                    status["capacity"]["nvidia.com/gpu"] = gpus.to_string().into();
                    status["allocatable"]["nvidia.com/gpu"] = gpus.to_string().into();
                }
                (status, scripted.going_down)
            };
            let registered = self.nodes.contains_key(name);
            if self.nodes.get(name) != Some(&status) {
                if registered
                    || status["shuttingDown"] == true
                    || status["ready"] == false
                    || !status["pressure"].is_null()
                {
                    self.post_node(name, &status).await?;
                }
                self.nodes.insert(name.to_owned(), status);
            }
            if !going_down {
                return Ok(());
            }
            self.boot(name);
        }
    }

    async fn post_node(&self, name: &str, wanted: &Value) -> anyhow::Result<()> {
        let Some(kubelet) = self.kubelet(name) else { return Ok(()) };
        let api: Api<Node> = Api::all(kubelet);
        let Some(node) = api.get_opt(name).await? else { return Ok(()) };
        let known = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let now = self.time.now();
        let mut conditions = node_status::conditions(wanted["shuttingDown"] == true, &known, now);
        for condition in &mut conditions {
            if condition["type"] == "Ready" && wanted["ready"] == false {
                condition["status"] = "False".into();
                condition["reason"] = "KubeletNotReady".into();
                condition["message"] = "container runtime is down".into();
            }
            if condition["type"] == wanted["pressure"] {
                condition["status"] = "True".into();
            }
            let same = known.iter().find(|k| condition["type"] == k.type_ && condition["status"] == k.status);
            let since = same.and_then(|k| k.last_transition_time.as_ref()).map_or(now, |time| time.0);
            condition["lastTransitionTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
        }
        let mut status = wanted.clone();
        for own in ["shuttingDown", "ready", "pressure"] {
            status.as_object_mut().and_then(|fields| fields.remove(own));
        }
        status["conditions"] = json!(conditions);
        let patch = Patch::Strategic(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Boots a host whose shutdown has been shown, if it ever comes back.
    fn boot(&mut self, name: &str) {
        let on_node = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name);
        let restarted: Vec<String> = self.pods.values().filter(on_node).map(key).collect();
        let mut state = self.fleet.lock();
        let Some(scripted) = state.nodes.get_mut(name) else { return };
        scripted.going_down = false;
        let boot = scripted.behaviour.boot;
        let into_image = scripted.host.armed;
        if into_image && boot == Boot::Never {
            scripted.up = false;
            return;
        }
        scripted.host.boots += 1;
        if let Some(staged) = scripted.host.staged.take().filter(|_| into_image && boot != Boot::FallsBack) {
            scripted.host.runs = staged;
        }
        scripted.host.armed = false;
        scripted.host.asked = None;
        scripted.host.cleared = false;
        scripted.behaviour.ready &= !(into_image && boot == Boot::NotReady);
        let boot_id = boot_id(name, scripted.host.boots + 1);
        scripted.log(HostFact::Booted { boot_id: boot_id.clone() });
        scripted.boot_id = boot_id;
        for pod in restarted {
            *self.restarts.entry(pod).or_default() += 1;
        }
    }

    /// Renews the Lease of a node that is verified, which the controller waits for without a step of time.
    async fn lease(&mut self, name: &str) -> anyhow::Result<()> {
        let shadow_name = names::shadow_name(name);
        let shadow = self.shadows.values().find(|shadow| shadow.name_any() == shadow_name);
        let progress = shadow.and_then(|shadow| shadow.status.as_ref()?.controller.progress.as_ref());
        let verified = progress.is_some_and(|progress| progress.step == Step::Verifying);
        let runs = self.fleet.lock().nodes.get(name).is_some_and(|node| node.up && !node.going_down);
        let lately = self.renewed.get(name).is_some_and(|at| at.elapsed() < REPEAT / 2);
        if !verified || !runs || lately {
            return Ok(());
        }
        self.renewed.insert(name.to_owned(), Instant::now());
        match renew_lease(&self.admin, name, self.time.now()).await {
            // The Node was deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            renewed => renewed.map_err(Into::into),
        }
    }

    /// Carries out one step of a node's agent. Returns true if there may be another.
    async fn agent(&mut self, name: &str) -> anyhow::Result<bool> {
        let shadow_name = names::shadow_name(name);
        let Some(shadow) = self.shadows.values().find(|shadow| shadow.name_any() == shadow_name).cloned() else {
            return Ok(false);
        };
        let now = self.time.now();
        let (view, before, after) = {
            let mut state = self.fleet.lock();
            let offered = state.offered.clone();
            let connected = !state.web_api_down;
            let Some(scripted) = state.nodes.get_mut(name).filter(|_| connected) else { return Ok(false) };
            if !scripted.behaviour.agent || !scripted.up || scripted.going_down {
                return Ok(false);
            }
            let before = ShadowFacts::project(&shadow).context("a shadow without facts")?;
            let mut view = NodeView {
                facts: NodeFacts { boot_id: scripted.boot_id.clone(), ..NodeFacts::default() },
                shadow: Some(Box::new(before.clone())),
                ..NodeView::default()
            };
            let (downloads, held) = (scripted.behaviour.downloads, scripted.behaviour.held);
            if held == Some(Held::Activation) && before.status.agent.armed.is_some() {
                return Ok(false);
            }
            let host = &mut scripted.host;
            if let Some(shadow) = view.shadow.as_mut().filter(|shadow| {
                let downloading = shadow.spec.state == HostState::StagedUpdate && host.staged != shadow.spec.version;
                downloading && held == Some(Held::Download)
            }) {
                shadow.spec.state = HostState::Idle;
            }
            let (was_armed, was_cleared) = (host.armed, host.cleared);
            host.agent_step(&mut view, &offered, downloads, now);
            let armed = host.staged.clone().filter(|_| host.armed && !was_armed);
            let disarmed = was_armed && !host.armed;
            if let Some(version) = armed {
                // Once, however often the report of it is refused.
                scripted.log(HostFact::ActivateAsked);
                scripted.log(HostFact::Armed { version });
                scripted.log(HostFact::ActivateEnded);
            }
            if disarmed {
                scripted.log(HostFact::Disarmed);
            }
            if scripted.host.cleared && !was_cleared {
                scripted.log(HostFact::Shutdown { by_api: true });
                scripted.going_down = true;
            }
            let mut after = view.shadow.as_ref().map(|shadow| shadow.status.agent.clone()).unwrap_or_default();
            after.arch = Some(scripted.behaviour.arch.to_owned());
            (scripted.going_down, before.status.agent, after)
        };
        if view {
            return Ok(true);
        }
        let mut report = after;
        report.variant = Some(VARIANT.to_owned());
        if let Some(updates) = &mut report.updates {
            updates.last_refresh = updates.last_refresh.or(Some(now));
        }
        let known = shadow.status.iter().flat_map(|status| &status.conditions).find(|c| c.type_ == HOST_REACHABLE);
        let known = known.filter(|known| known.status == ConditionStatus::True);
        // An agent that is connected again replaces what the controller has said in its place.
        if report == before && known.is_some() {
            return Ok(false);
        }
        let reachable = known.cloned().unwrap_or(Condition {
            type_: HOST_REACHABLE.to_owned(),
            status: ConditionStatus::True,
            reason: "Answered".to_owned(),
            message: "the host API answers".to_owned(),
            last_transition_time: now,
            observed_generation: None,
        });
        let mut status = serde_json::to_value(&report)?;
        status["conditions"] = json!([reachable]);
        let patch = Patch::Apply(json!({
            "apiVersion": BottlerocketShadow::api_version(&()),
            "kind": BottlerocketShadow::kind(&()),
            "metadata": {"name": shadow_name, "resourceVersion": shadow.resource_version()},
            "status": status,
        }));
        let api: Api<BottlerocketShadow> = Api::namespaced(self.web_api.clone(), SYSTEM_NAMESPACE);
        let written = api.patch_status(&shadow_name, &PatchParams::apply(AGENT_MANAGER).force(), &patch).await?;
        self.shadows.insert(key(&written), written);
        Ok(true)
    }

    /// Starts and ends the pods that are bound to scripted nodes.
    async fn all_pods(&mut self) -> anyhow::Result<()> {
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            while self.pod(&uid).await? {}
        }
        Ok(())
    }

    /// Carries out one step of a pod. Returns true if there may be another.
    async fn pod(&mut self, uid: &str) -> anyhow::Result<bool> {
        let Some(pod) = self.pods.get(uid).cloned() else { return Ok(false) };
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { return Ok(false) };
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let finished = phase == "Succeeded" || phase == "Failed";
        let restarts = self.restarts.get(uid).copied().unwrap_or_default();
        let (scripted, not_ready) = {
            let state = self.fleet.lock();
            let node = state.nodes.get(&node);
            // A pod that is bound to no scripted node is the operator's own, somewhere else.
            if node.is_some_and(|node| !node.up) {
                return Ok(false);
            }
            let app = pod.labels().get("app").map(String::as_str).unwrap_or_default();
            let applies = |rule: &PodRule| {
                rule.app == app
                    && rule
                        .node
                        .as_ref()
                        .is_none_or(|name| pod.spec.as_ref().and_then(|s| s.node_name.as_ref()) == Some(name))
                    && rule.version.as_ref().is_none_or(|version| node.is_some_and(|node| node.host.runs == *version))
            };
            let agent = pod.labels().get(names::COMPONENT_LABEL).is_some_and(|component| component == names::AGENT);
            let agent_down = agent && node.is_some_and(|node| !node.behaviour.agent_ready);
            (node.is_some(), agent_down || state.rules.iter().any(applies))
        };
        let client = match self.kubelet(&node).filter(|_| scripted) {
            Some(kubelet) => kubelet,
            None => self.admin.clone(),
        };
        let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
        if terminating {
            if !finished {
                return self.post_pod(&api, &pod, ScriptedPod::Terminated).await;
            }
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
                ..DeleteParams::default()
            };
            api.delete(&pod.name_any(), &params).await?;
            self.pods.remove(uid);
            return Ok(false);
        }
        if finished {
            return Ok(false);
        }
        let has_status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()).is_some();
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let shown = statuses.map(|container| container.restart_count).max().and_then(|count| u32::try_from(count).ok());
        let running = |pod: &Pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            statuses.into_iter().any(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
        };
        let wanted = if !has_status {
            ScriptedPod::Creating
        } else if !not_ready && shown.is_some_and(|shown| shown < restarts) && running(&pod) {
            ScriptedPod::Lost { restarts: shown.unwrap_or_default() }
        } else {
            ScriptedPod::Running { ready: !not_ready, restarts }
        };
        self.post_pod(&api, &pod, wanted).await
    }

    /// Writes the status of a pod if it differs.
    async fn post_pod(&mut self, api: &Api<Pod>, pod: &Pod, state: ScriptedPod) -> anyhow::Result<bool> {
        let patch = scripted_status(pod, state, ADDRESS, self.time.now());
        let current = serde_json::to_value(&pod.status)?;
        let shown = |status: &Value| {
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let ready: Vec<_> = conditions.filter(|c| c["type"] == "Ready").map(|c| c["status"].clone()).collect();
            let containers = status["containerStatuses"].as_array().into_iter().flatten();
            let containers: Vec<_> = containers
                .map(|c| {
                    json!([
                        c["restartCount"],
                        c["ready"],
                        c["state"].as_object().map(|s| s.keys().cloned().collect::<Vec<_>>())
                    ])
                })
                .collect();
            json!([status["phase"], ready, containers])
        };
        if shown(&current) == shown(&patch["status"]) {
            return Ok(false);
        }
        let written = api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
        self.pods.insert(key(&written), written);
        Ok(true)
    }
}
