//! All pods of the node: watches the pods bound to it, runs one task per pod, and ends them in order when the node
//! shuts down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Ctx;
use super::container::grace_period;
use super::pod::{self, Order};
use super::status::REJECTED;

/// Priority from which a pod is critical: the node ends it after all others.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Longest time that an ordinary pod, and a critical one, may take to end when the node shuts down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
const SHUTDOWN_GRACE_CRITICAL: Duration = Duration::from_secs(1);

/// Requests the end of the node's pods; the reply comes when they have ended.
pub(crate) type ShutdownRequest = oneshot::Sender<()>;

struct Worker {
    pod: watch::Sender<Arc<Pod>>,
    orders: watch::Sender<Order>,
    /// False once the task is over; the entry stays until the object is deleted, so that the pod is not started again.
    alive: bool,
}

/// A graceful node shutdown: first the ordinary pods, then the critical ones.
struct Shutdown {
    critical: bool,
    done: Option<ShutdownRequest>,
}

pub(crate) struct Pods {
    ctx: Arc<Ctx>,
    workers: BTreeMap<String, Worker>,
    tasks: JoinSet<String>,
    shutdown: Option<Shutdown>,
}

impl Pods {
    pub(crate) fn new(ctx: Arc<Ctx>) -> Self {
        Self { ctx, workers: BTreeMap::new(), tasks: JoinSet::new(), shutdown: None }
    }

    /// Follows the node's pods for one boot.
    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<ShutdownRequest>) {
        let api: Api<Pod> = Api::all(self.ctx.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.ctx.options.node_name));
        let mut events = std::pin::pin!(watcher(api, config));
        let mut listed = BTreeSet::new();
        let mut retry = std::pin::pin!(sleep(Duration::ZERO));
        let mut waiting = false;
        loop {
            tokio::select! {
                () = &mut retry, if waiting => waiting = false,
                event = events.try_next(), if !waiting => {
                    self.ctx.may_act().await;
                    match event {
                        Ok(Some(event)) => self.take(event, &mut listed),
                        Ok(None) => return,
                        Err(error) => {
                            tracing::debug!(%error, node = self.ctx.options.node_name, "pods are listed again");
                            retry.as_mut().reset(tokio::time::Instant::now() + Duration::from_millis(200));
                            waiting = true;
                        }
                    }
                }
                Some(request) = requests.recv() => {
                    self.shutdown = Some(Shutdown { critical: false, done: Some(request) });
                    self.order_group();
                }
                Some(ended) = self.tasks.join_next() => {
                    if let Ok(uid) = ended && let Some(worker) = self.workers.get_mut(&uid) {
                        worker.alive = false;
                    }
                }
            }
            self.advance_shutdown();
        }
    }

    fn take(&mut self, event: Event<Pod>, listed: &mut BTreeSet<String>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(pod) => {
                listed.insert(uid_of(&pod));
                self.apply(pod);
            }
            Event::InitDone => {
                let lost: Vec<String> = self.workers.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
                for uid in lost {
                    self.remove(&uid);
                }
            }
            Event::Apply(pod) => self.apply(pod),
            Event::Delete(pod) => self.remove(&uid_of(&pod)),
        }
    }

    fn apply(&mut self, pod: Pod) {
        let uid = uid_of(&pod);
        let pod = Arc::new(pod);
        if let Some(worker) = self.workers.get(&uid) {
            worker.pod.send_replace(pod);
            return;
        }
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let finished = phase == "Failed" || phase == "Succeeded";
        let (pods, receiver) = watch::channel(pod.clone());
        let (orders, order) = watch::channel(Order::Live);
        self.workers.insert(uid.clone(), Worker { pod: pods, orders, alive: !finished });
        if finished {
            return;
        }
        let ctx = self.ctx.clone();
        if self.shutdown.is_some() && pod.metadata.deletion_timestamp.is_none() {
            self.tasks.spawn(async move {
                pod::reject(ctx, pod, REJECTED).await;
                uid
            });
        } else {
            self.tasks.spawn(async move {
                pod::run(ctx, receiver, order).await;
                uid
            });
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Some(worker) = self.workers.remove(uid) {
            worker.orders.send_replace(Order::Vanished);
        }
    }

    fn group(&self, critical: bool) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(move |w| w.alive && is_critical(&w.pod.borrow()) == critical)
    }

    /// Ends the pods of the current group.
    fn order_group(&self) {
        let Some(shutdown) = &self.shutdown else { return };
        let limit = if shutdown.critical { SHUTDOWN_GRACE_CRITICAL } else { SHUTDOWN_GRACE };
        for worker in self.group(shutdown.critical) {
            let grace = grace_period(&worker.pod.borrow()).min(limit);
            worker.orders.send_if_modified(|order| {
                let live = *order == Order::Live;
                if live {
                    *order = Order::Shutdown(grace);
                }
                live
            });
        }
    }

    fn advance_shutdown(&mut self) {
        let Some(shutdown) = &self.shutdown else { return };
        if shutdown.done.is_none() || self.group(shutdown.critical).next().is_some() {
            return;
        }
        let ordinary = !shutdown.critical;
        if let Some(shutdown) = &mut self.shutdown {
            if ordinary {
                shutdown.critical = true;
            } else if let Some(done) = shutdown.done.take() {
                let _ = done.send(());
                return;
            }
        }
        self.order_group();
        self.advance_shutdown();
    }
}

fn uid_of(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn is_critical(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let by_class = spec.and_then(|s| s.priority_class_name.as_deref()).is_some_and(|c| c.starts_with("system-"));
    by_class || spec.and_then(|s| s.priority).is_some_and(|p| p >= CRITICAL_PRIORITY)
}

/// Pauses a kubelet: tasks at the gate continue when it opens.
#[derive(Debug)]
pub(crate) struct PauseGate(watch::Sender<bool>);

impl PauseGate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(true))
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.0.send_replace(open);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn open(&self) {
        // The sender lives in self, so this ends only when the gate is open.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// Triggers an update of the Node's status.
pub(crate) type Wake = Arc<Notify>;
