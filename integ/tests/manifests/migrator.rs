//! Leaders that run the storage migrator alone against a real API server.

use std::time::Duration;

use anyhow::ensure;
use controller::cache::Reading;
use controller::caches::Caches;
use controller::earlier::EarlierPods;
use controller::metrics::Metrics;
use controller::migrate::{Migrator, Progress};
use kube::Client;
use models::names::SYSTEM_NAMESPACE;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leaders::{Lead, Leaders};

/// The replicas of a controller, of which one leads at a time.
pub(super) struct Replicas {
    caches: Caches,
    earlier: EarlierPods,
    leaders: Leaders,
}

/// A leader. It ends when it is dropped.
pub(super) struct Leader {
    progress: Progress,
    changes: watch::Receiver<u64>,
    lead: Lead,
}

impl Replicas {
    /// Returns replicas that know the pods of the earlier operator.
    pub(super) async fn new(client: &Client) -> anyhow::Result<Self> {
        let failures = Metrics::new()?.watch_errors;
        let caches = Caches::new(&failures);
        let earlier = EarlierPods::new(&caches.changed, &failures);
        earlier.watch(client);
        earlier.read_again(Reading::default()).wait(caches.changed.subscribe()).await;
        Ok(Self { caches, earlier, leaders: Leaders::new(client, SYSTEM_NAMESPACE) })
    }

    /// Starts the next leader. After so many writes it gets no answer any more, not even that of the last one.
    pub(super) async fn lead(&mut self, writes: usize) -> anyhow::Result<Leader> {
        let mut lead = self.leaders.lead(writes).await?;
        let (progress, caches) = (Progress::default(), self.caches.clone());
        let changes = caches.changed.subscribe();
        let applier = lead.applier(SYSTEM_NAMESPACE, caches)?;
        let migrator = Migrator::new(applier, self.earlier.clone(), progress.clone());
        lead.tasks.spawn(migrator.run());
        Ok(Leader { progress, changes, lead })
    }

    /// Returns the paths of the objects that were written, in order.
    pub(super) fn written(&self) -> Vec<String> {
        self.leaders.written().into_iter().map(|write| write.path).collect()
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
            if *self.lead.killed.borrow() {
                return Ok(false);
            }
            ensure!(Instant::now() < deadline, "it does not report {words}: {state:?}");
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.lead.killed.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }
}
