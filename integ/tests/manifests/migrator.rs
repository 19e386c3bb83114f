//! Leaders that run the storage migrator alone against a real API server. The calls of each pass through a service that
//! records its writes, and ends the leader after one of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::ensure;
use controller::cache::Reading;
use controller::caches::Caches;
use controller::earlier::EarlierPods;
use controller::leader::{Parameters, Release, campaign};
use controller::metrics::Metrics;
use controller::migrate::{Migrator, Progress};
use kube::{Api, Client};
use models::names::SYSTEM_NAMESPACE;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The replicas of a controller, of which one leads at a time.
pub(super) struct Replicas {
    client: Client,
    caches: Caches,
    earlier: EarlierPods,
    /// Paths of the objects that were written, in order, by all leaders.
    writes: Arc<Mutex<Vec<String>>>,
    leaders: usize,
}

/// A leader. It ends when it is dropped.
pub(super) struct Leader {
    progress: Progress,
    changes: watch::Receiver<u64>,
    killed: watch::Receiver<bool>,
    _release: watch::Sender<Option<Release>>,
    _tasks: JoinSet<()>,
}

impl Replicas {
    /// Returns replicas that know the pods of the earlier operator.
    pub(super) async fn new(client: &Client) -> Self {
        let caches = Caches::default();
        let earlier = EarlierPods::new(&caches.changed);
        earlier.watch(client);
        earlier.read_again(Reading::default()).wait(caches.changed.subscribe()).await;
        Self { client: client.clone(), caches, earlier, writes: Arc::default(), leaders: 0 }
    }

    /// Starts the next leader. After so many writes it gets no answer any more, not even that of the last one.
    pub(super) async fn lead(&mut self, writes: usize) -> anyhow::Result<Leader> {
        self.leaders += 1;
        let (kill, killed) = watch::channel(false);
        let until = self.written().len().saturating_add(writes);
        let client = observed(self.client.clone(), self.writes.clone(), until, kill);
        // The end of a lease is not what is tested: each leader has one of its own.
        let leases = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let (release, stop) = watch::channel(None);
        let name = format!("leader-{}", self.leaders);
        let (leadership, election) = campaign(leases, name.clone(), name, Parameters::default(), None, stop);
        let mut tasks = JoinSet::new();
        tasks.spawn(async {
            let _ended = election.await;
        });
        ensure!(leadership.acquired().await, "the lease is not acquired");
        let (progress, caches) = (Progress::default(), self.caches.clone());
        let changes = caches.changed.subscribe();
        let (namespace, earlier) = (SYSTEM_NAMESPACE.to_owned(), self.earlier.clone());
        let migrator = Migrator::new(client, namespace, leadership, Metrics::new()?, caches, earlier, progress.clone());
        tasks.spawn(migrator.run());
        Ok(Leader { progress, changes, killed, _release: release, _tasks: tasks })
    }

    /// Returns the paths of the objects that were written, in order.
    pub(super) fn written(&self) -> Vec<String> {
        self.writes.lock().map(|writes| writes.clone()).unwrap_or_default()
    }

    /// Returns the number of writes to an object, which the end of its path names.
    pub(super) fn writes_to(&self, object: &str) -> usize {
        self.written().iter().filter(|path| path.trim_end_matches("/status").ends_with(object)).count()
    }
}

impl Leader {
    /// Waits until the condition reads like this, and returns true; false if the leader was ended before.
    pub(super) async fn reports(&mut self, words: &str) -> anyhow::Result<bool> {
        self.reports_in_time(words, Duration::from_secs(120)).await
    }

    pub(super) async fn reports_in_time(&mut self, words: &str, limit: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let state = self.progress.facts().state;
            if state.as_ref().is_some_and(|(_, reason, message)| *reason == words || message.starts_with(words)) {
                return Ok(true);
            }
            if *self.killed.borrow() {
                return Ok(false);
            }
            ensure!(Instant::now() < deadline, "it does not report {words}: {state:?}");
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.killed.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }
}

/// Returns the same client, which records writes. From the one with the number `until` on it answers none.
fn observed(client: Client, writes: Arc<Mutex<Vec<String>>>, until: usize, kill: watch::Sender<bool>) -> Client {
    let kill = Arc::new(kill);
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (client, writes, kill) = (client.clone(), writes.clone(), kill.clone());
        async move {
            let dry_run = request.uri().query().is_some_and(|query| query.contains("dryRun"));
            if request.method() == hyper::Method::GET || dry_run {
                return client.send(request).await;
            }
            let number = writes.lock().map_or(usize::MAX, |mut writes| {
                if writes.len() < until {
                    writes.push(request.uri().path().to_owned());
                    return writes.len();
                }
                usize::MAX
            });
            if number < until {
                return client.send(request).await;
            }
            if number == until {
                let _carried_out = client.send(request).await;
                kill.send_replace(true);
            }
            std::future::pending().await
        }
    });
    Client::new(service, SYSTEM_NAMESPACE)
}
