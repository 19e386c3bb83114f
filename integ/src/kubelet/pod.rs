//! One pod from its binding to the node until its end.
//!
//! ```text
//! bound ─► mount volumes ─► containers ──► deleted, or the node shuts down
//!             (retried)    (until stop)       │ SIGTERM, grace, SIGKILL
//!                                             ▼
//!                           final status ─► DELETE (only if deleted)
//! ```

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Ctx;
use super::container::ContainerTask;
use super::status::{
    ContainerPhase, ContainerView, Ended, LOST, SHUT_DOWN, StatusInput, Verdict, restart_policy, status_patch,
};
use super::volumes::Volumes;

/// Delay before a retry of a failure outside this pod.
const RETRY: Duration = Duration::from_millis(200);

/// Grace period of the processes of a pod that was deleted by force.
const FORCED_GRACE: Duration = Duration::from_secs(1);

/// The conditions that a kubelet writes.
const OWN_CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "DisruptionTarget"];

/// Input of a pod's worker, beside the pod itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Run the pod.
    Live,
    /// The node shuts down; the pod has this long to end.
    Shutdown(Duration),
    /// The object is deleted from the API.
    Vanished,
}

/// Shared state of a pod's worker, its containers and its status.
pub(crate) struct PodShared {
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) pod: watch::Receiver<Arc<Pod>>,
    pub(crate) directory: PathBuf,
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) volumes: Volumes,
    /// Deadline by which containers have to end; `None` while the pod runs.
    pub(crate) stop: watch::Sender<Option<Instant>>,
    vanished: AtomicBool,
    views: Mutex<Vec<ContainerView>>,
    verdict: Mutex<Option<Verdict>>,
    ending: AtomicBool,
    changed: Notify,
    start_time: Timestamp,
    sent: tokio::sync::Mutex<Sent>,
}

/// The last status written to the API.
#[derive(Default)]
struct Sent {
    patch: Option<Value>,
    conditions: Vec<PodCondition>,
    version: u64,
}

/// Result of a write to the API.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Done,
    /// The object is deleted, or another one has its name.
    Gone,
    Failed,
}

impl PodShared {
    pub(crate) fn current(&self) -> Arc<Pod> {
        self.pod.borrow().clone()
    }

    pub(crate) fn view(&self, index: usize) -> Option<ContainerView> {
        self.views.lock().get(index).cloned()
    }

    /// Changes the state of a container, and triggers a post of the status if it differs.
    pub(crate) fn update(&self, index: usize, change: impl FnOnce(&mut ContainerView)) {
        let mut views = self.views.lock();
        let Some(view) = views.get_mut(index) else { return };
        let before = view.clone();
        change(view);
        if *view != before {
            self.changed.notify_one();
        }
    }

    /// Returns true if the end of the pod is not awaited (vanished, or with a verdict), also with a stuck volume.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.vanished.load(Ordering::SeqCst) || self.verdict.lock().is_some()
    }

    fn api(&self) -> Api<Pod> {
        let namespace = self.current().metadata.namespace.clone().unwrap_or_default();
        Api::namespaced(self.ctx.client.clone(), &namespace)
    }

    fn name(&self) -> String {
        self.current().metadata.name.clone().unwrap_or_default()
    }

    /// Posts the status if it differs from the last one posted.
    async fn post(&self) -> Written {
        self.ctx.may_act().await;
        let mut sent = self.sent.lock().await;
        let pod = self.current();
        let reported = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let version = resource_version(&pod);
        if version > sent.version && sent.patch.is_some() && ready_of(&reported) != ready_of(&sent.conditions) {
            // Another client (the node lifecycle controller) changed this status, which is the kubelet's: write it
            // again.
            sent.patch = None;
            sent.conditions.clone_from(&reported);
        }
        let mut known: Vec<PodCondition> = sent.conditions.clone();
        known.retain(|c| OWN_CONDITIONS.contains(&c.type_.as_str()));
        let others = reported.into_iter().filter(|c| !known.iter().any(|k| k.type_ == c.type_)).collect::<Vec<_>>();
        known.extend(others);
        let patch = {
            let views = self.views.lock();
            let verdict = self.verdict.lock();
            let input = StatusInput {
                pod: &pod,
                containers: &views,
                start_time: self.start_time,
                pod_ip: Some(self.pod_ip),
                host_ip: self.ctx.options.address.host_ip(),
                verdict: verdict.as_ref(),
                ending: self.ending.load(Ordering::SeqCst),
            };
            status_patch(&input, &known, Timestamp::now())
        };
        if sent.patch.as_ref() == Some(&patch) {
            return Written::Done;
        }
        match self.api().patch_status(&self.name(), &PatchParams::default(), &Patch::Strategic(&patch)).await {
            Ok(answer) => {
                sent.version = resource_version(&answer);
                sent.conditions = answer.status.and_then(|s| s.conditions).unwrap_or_default();
                sent.patch = Some(patch);
                Written::Done
            }
            Err(error) => failure(&error),
        }
    }

    async fn post_until_done(&self) -> Written {
        loop {
            match self.post().await {
                Written::Failed => sleep(RETRY).await,
                other => return other,
            }
        }
    }

    /// Posts each change; a burst of changes becomes one write.
    async fn keep_posted(self: Arc<Self>) {
        loop {
            if self.post_until_done().await == Written::Gone {
                return;
            }
            self.changed.notified().await;
        }
    }
}

fn resource_version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}

fn ready_of(conditions: &[PodCondition]) -> Option<&str> {
    conditions.iter().find(|c| c.type_ == "Ready").map(|c| c.status.as_str())
}

/// The meaning of an API error for a write that names the pod's uid.
fn failure(error: &kube::Error) -> Written {
    match error {
        kube::Error::Api(status) if status.code == 404 || status.code == 409 => Written::Gone,
        kube::Error::Api(status) if status.code == 422 => {
            tracing::warn!(error = %status, "the API server refuses a pod's status");
            Written::Failed
        }
        _ => {
            tracing::debug!(%error, "a write to a pod is tried again");
            Written::Failed
        }
    }
}

/// Marks a pod as rejected by a node that shuts down.
pub(crate) async fn reject(ctx: Arc<Ctx>, pod: Arc<Pod>, verdict: Verdict) {
    let (_sender, receiver) = watch::channel(pod);
    let host = ctx.options.address.host_ip();
    let shared = Arc::new(PodShared::new(ctx, receiver, host, PathBuf::new()));
    *shared.verdict.lock() = Some(verdict);
    shared.post_until_done().await;
}

impl PodShared {
    fn new(ctx: Arc<Ctx>, pod: watch::Receiver<Arc<Pod>>, pod_ip: Ipv4Addr, directory: PathBuf) -> Self {
        let now = pod.borrow().clone();
        let volumes = Volumes::new(
            ctx.client.clone(),
            Pod::clone(&now),
            directory.join("v"),
            ctx.options.machine.root().to_owned(),
            pod_ip,
        );
        let started = now.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or_else(Timestamp::now, |t| t.0);
        Self {
            ctx,
            directory,
            pod_ip,
            volumes,
            stop: watch::Sender::new(None),
            vanished: AtomicBool::new(false),
            views: Mutex::new(views(&now)),
            verdict: Mutex::new(None),
            ending: AtomicBool::new(false),
            changed: Notify::new(),
            start_time: started,
            sent: tokio::sync::Mutex::default(),
            pod,
        }
    }
}

fn containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default()
}

/// The first thing that a pod needs and the stand-in lacks: such a pod is not started.
fn unsupported(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let any = |needs: fn(&Container) -> bool| spec.containers.iter().any(needs);
    let gets = |c: &Container| {
        let probes = [&c.readiness_probe, &c.liveness_probe].into_iter().flatten();
        probes.filter_map(|probe| probe.http_get.as_ref()).any(|get| get.host.is_some() || get.http_headers.is_some())
    };
    let rows = [
        ("init containers", spec.init_containers.as_ref().is_some_and(|init| !init.is_empty())),
        ("the host's network", spec.host_network == Some(true)),
        ("variables from an object", any(|c| c.env_from.as_ref().is_some_and(|from| !from.is_empty()))),
        ("a hook", any(|c| c.lifecycle.is_some())),
        ("a startup probe", any(|c| c.startup_probe.is_some())),
        ("a probe with a host or headers", any(gets)),
        ("a working directory", any(|c| c.working_dir.is_some())),
        ("a part of a volume", any(|c| c.volume_mounts.iter().flatten().any(|mount| mount.sub_path.is_some()))),
        ("a volume of fields", spec.volumes.iter().flatten().any(|volume| volume.downward_api.is_some())),
    ];
    rows.into_iter().find_map(|(what, needed)| needed.then_some(what))
}

/// The state of the containers before anything is started. A run in an earlier boot of the machine counts as a run.
fn views(pod: &Pod) -> Vec<ContainerView> {
    let status = pod.status.as_ref();
    let before = |name: &str| -> Option<&ContainerStatus> {
        status.into_iter().flat_map(|s| s.container_statuses.iter().flatten()).find(|c| c.name == name)
    };
    let view = |container: &Container| {
        let earlier = before(&container.name).filter(|c| c.container_id.as_deref().is_some_and(|id| !id.is_empty()));
        let restarts = earlier.map_or(0, |c| u32::try_from(c.restart_count).unwrap_or_default() + 1);
        let last = earlier.map(|c| lost(c.container_id.clone().unwrap_or_default()));
        let (doing, last) = match last {
            // It will be restarted, so that the pod goes on.
            Some(last) if restart_policy(pod) == "Always" => (ContainerPhase::Ended(last), None),
            last => (ContainerPhase::waiting("ContainerCreating", None), last),
        };
        ContainerView {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            doing,
            last,
            restarts,
            ready: false,
            container_id: String::new(),
        }
    };
    containers(pod).iter().map(view).collect()
}

/// The end of a container that was not observed.
fn lost(container_id: String) -> Ended {
    Ended {
        exit_code: 255,
        signal: None,
        reason: LOST.to_owned(),
        message: None,
        started: None,
        finished: Timestamp::now(),
        container_id,
    }
}

/// Runs a pod to its end.
pub(crate) async fn run(ctx: Arc<Ctx>, pod: watch::Receiver<Arc<Pod>>, mut orders: watch::Receiver<Order>) {
    ctx.may_act().await;
    let first = pod.borrow().clone();
    let own_ip = ctx.ips.lock().take();
    let pod_ip = own_ip.unwrap_or_else(|| ctx.options.address.host_ip());
    let uid = first.metadata.uid.clone().unwrap_or_default();
    let directory = ctx.pod_directory(&uid);
    let shared = Arc::new(PodShared::new(ctx.clone(), pod.clone(), pod_ip, directory.clone()));

    let mut posting = JoinSet::new();
    posting.spawn(shared.clone().keep_posted());
    let mut running = JoinSet::new();
    let mut watched = pod.clone();
    tokio::select! {
        () = live(&shared, &mut running) => {}
        () = until_ended(&shared, &mut watched, &mut orders) => {}
    }
    ctx.may_act().await;
    end(&shared, &mut running, &mut watched, &mut orders).await;
    posting.shutdown().await;
    drop(running);

    let gone = shared.vanished.load(Ordering::SeqCst) || shared.post_until_done().await == Written::Gone;
    let _ = tokio::fs::remove_dir_all(&directory).await;
    if let Some(ip) = own_ip {
        ctx.ips.lock().release(ip);
    }
    if !gone && shared.current().metadata.deletion_timestamp.is_some() {
        delete(&shared, &uid).await;
    }
}

/// Starts the pod and runs it until it is cancelled.
async fn live(shared: &Arc<PodShared>, running: &mut JoinSet<()>) {
    let pod = shared.current();
    if pod.metadata.deletion_timestamp.is_some() {
        return;
    }
    // A real kubelet takes longer to start a container than to report that it will.
    shared.post().await;
    if let Some(what) = unsupported(&pod) {
        let message = format!("the kubelet stand-in does not support {what}");
        shared.ctx.event(&pod, "Warning", "Failed", &message);
        shared.update(0, |v| v.wait("CreateContainerError", Some(message)));
        return std::future::pending().await;
    }
    let images = &shared.ctx.options.images;
    let is_process = |c: &Container| images.contains(c.image.as_deref().unwrap_or_default());
    let mounted = containers(&pod).iter().any(is_process);
    if mounted {
        mount(shared).await;
    }
    for (index, spec) in containers(&pod).iter().enumerate() {
        running.spawn(ContainerTask { pod: shared.clone(), index, spec: spec.clone() }.run());
    }
    if mounted {
        shared.volumes.keep_current(shared.ctx.options.volume_lag, &shared.ctx.gate).await;
    }
    std::future::pending::<()>().await;
}

async fn mount(shared: &Arc<PodShared>) {
    let _ = std::fs::create_dir_all(shared.directory.join("v"));
    let mut last_message = String::new();
    while let Err(error) = shared.volumes.mount().await {
        let message = error.to_string();
        if message != last_message {
            shared.ctx.event(&shared.current(), "Warning", "FailedMount", &message);
            let count = shared.views.lock().len();
            for index in 0..count {
                shared.update(index, |v| v.wait("ContainerCreating", Some(message.clone())));
            }
            last_message = message;
        }
        sleep(RETRY).await;
    }
}

/// Waits until the pod is deleted, vanishes, or its node shuts down. Meanwhile a change of the pod may change its
/// status.
async fn until_ended(shared: &PodShared, pods: &mut watch::Receiver<Arc<Pod>>, orders: &mut watch::Receiver<Order>) {
    loop {
        let deleted = pods.borrow_and_update().metadata.deletion_timestamp.is_some();
        let order = *orders.borrow_and_update();
        if deleted || order != Order::Live {
            return;
        }
        shared.changed.notify_one();
        tokio::select! {
            changed = pods.changed() => if changed.is_err() { return },
            changed = orders.changed() => if changed.is_err() { return },
        }
    }
}

/// Ends the containers, each within what remains of the grace period.
async fn end(
    shared: &PodShared,
    running: &mut JoinSet<()>,
    pods: &mut watch::Receiver<Arc<Pod>>,
    orders: &mut watch::Receiver<Order>,
) {
    shared.ending.store(true, Ordering::SeqCst);
    let (mut pods_open, mut orders_open) = (true, true);
    loop {
        let now = Instant::now();
        let mut limits: Vec<Instant> = shared.stop.borrow().iter().copied().collect();
        {
            let pod = pods.borrow_and_update();
            if pod.metadata.deletion_timestamp.is_some() {
                let grace = pod.metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok());
                limits.push(now + Duration::from_secs(grace.unwrap_or_default()));
            }
        }
        match *orders.borrow_and_update() {
            Order::Live => {}
            Order::Shutdown(grace) => {
                limits.push(now + grace);
                *shared.verdict.lock() = Some(SHUT_DOWN);
            }
            Order::Vanished => {
                shared.vanished.store(true, Ordering::SeqCst);
                limits.push(now + FORCED_GRACE);
            }
        }
        let deadline = limits.into_iter().min().unwrap_or(now);
        shared.stop.send_replace(Some(deadline));
        tokio::select! {
            next = running.join_next() => if next.is_none() { break },
            changed = pods.changed(), if pods_open => pods_open = changed.is_ok(),
            changed = orders.changed(), if orders_open => orders_open = changed.is_ok(),
        }
    }
    for view in shared.views.lock().iter_mut() {
        view.ready = false;
        if let ContainerPhase::Waiting { .. } = view.doing {
            // A container that does not run and will not be started has ended, whatever the reason.
            let unknown = Ended {
                exit_code: 137,
                reason: "ContainerStatusUnknown".to_owned(),
                message: Some("The container could not be located when the pod was terminated".to_owned()),
                ..lost(String::new())
            };
            view.doing = ContainerPhase::Ended(view.last.take().unwrap_or(unknown));
        }
    }
}

/// Deletes the object, as nothing of the pod is left on the node.
async fn delete(shared: &PodShared, uid: &str) {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..DeleteParams::default()
    };
    loop {
        shared.ctx.may_act().await;
        match shared.api().delete(&shared.name(), &params).await {
            Ok(_) => return,
            Err(error) if failure(&error) == Written::Gone => return,
            Err(_) => sleep(RETRY).await,
        }
    }
}
