//! Leaders in this process. The calls of each pass through a service that records its writes, and ends the leader after one
//! of them.

use std::sync::{Arc, Mutex};

use anyhow::ensure;
use controller::apply::Applier;
use controller::caches::Caches;
use controller::clock::Clock;
use controller::leader::{Leadership, Parameters, Release, campaign};
use controller::metrics::Metrics;
use controller::tls::Signer;
use kube::{Api, Client};
use models::names::SYSTEM_NAMESPACE;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A write: the path of the object, and the status code of the answer, if one has come.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) path: String,
    pub(super) code: Option<u16>,
}

/// The replicas of a controller, which lead one after the other, or at once.
pub(super) struct Leaders {
    client: Client,
    namespace: String,
    /// The writes of all leaders, in order.
    writes: Arc<Mutex<Vec<Write>>>,
    started: usize,
    /// Turns true when the last write of each leader arrives. `None`: at once.
    arrival: Option<watch::Receiver<bool>>,
    /// Turns true when reads of Secrets are answered. `None`: at once.
    secrets: Option<watch::Receiver<bool>>,
}

/// The lead of one of them. It ends when it is dropped.
pub(super) struct Lead {
    client: Client,
    leadership: Leadership,
    /// True once the last permitted write is carried out.
    pub(super) killed: watch::Receiver<bool>,
    pub(super) tasks: JoinSet<()>,
    _release: watch::Sender<Option<Release>>,
}

impl Lead {
    /// Returns what makes its writes, with these caches.
    pub(super) fn applier(&self, namespace: &str, caches: Caches) -> anyhow::Result<Applier> {
        let (client, leadership) = (self.client.clone(), self.leadership.clone());
        let (namespace, identity) = (namespace.to_owned(), "leader".to_owned());
        Ok(Applier::new(client, namespace, identity, leadership, Signer::default(), Metrics::new()?, caches))
    }
}

impl Leaders {
    /// Returns replicas with their leases in this namespace.
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            writes: Arc::default(),
            started: 0,
            arrival: None,
            secrets: None,
        }
    }

    /// Holds the last write of each further leader back until this turns true.
    pub(super) fn hold(&mut self) -> watch::Sender<bool> {
        let (arrive, arrival) = watch::channel(false);
        self.arrival = Some(arrival);
        arrive
    }

    /// Holds the reads of Secrets of each further leader back until this turns true.
    pub(super) fn hold_secrets(&mut self) -> watch::Sender<bool> {
        let (answer, secrets) = watch::channel(false);
        self.secrets = Some(secrets);
        answer
    }

    /// Starts the next leader. After so many writes it gets no answer any more, not even that of the last one.
    pub(super) async fn lead(&mut self, writes: usize) -> anyhow::Result<Lead> {
        self.started += 1;
        let (kill, killed) = watch::channel(false);
        let until = self.written().len().saturating_add(writes);
        let holds = (self.arrival.clone(), self.secrets.clone());
        let client = observed(self.client.clone(), self.writes.clone(), until, kill, holds);
        // The end of a lease is not what is tested: each leader has one of its own.
        let leases = Api::namespaced(self.client.clone(), &self.namespace);
        let (release, stop) = watch::channel(None);
        let name = format!("leader-{}", self.started);
        let (leadership, election) =
            campaign(leases, name.clone(), name, Parameters::default(), Clock::default(), None, stop);
        let mut tasks = JoinSet::new();
        tasks.spawn(async {
            let _ended = election.await;
        });
        ensure!(leadership.acquired().await, "the lease is not acquired");
        Ok(Lead { client, leadership, killed, tasks, _release: release })
    }

    /// Returns the writes so far.
    pub(super) fn written(&self) -> Vec<Write> {
        self.writes.lock().map(|writes| writes.clone()).unwrap_or_default()
    }
}

/// Returns the same client, which records writes. From the one with the number `until` on it answers none.
fn observed(
    client: Client,
    writes: Arc<Mutex<Vec<Write>>>,
    until: usize,
    kill: watch::Sender<bool>,
    (arrival, secrets): (Option<watch::Receiver<bool>>, Option<watch::Receiver<bool>>),
) -> Client {
    let kill = Arc::new(kill);
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (client, writes, kill, arrival) = (client.clone(), writes.clone(), kill.clone(), arrival.clone());
        let secrets = secrets.clone().filter(|_| request.uri().path().ends_with("/secrets"));
        async move {
            let dry_run = request.uri().query().is_some_and(|query| query.contains("dryRun"));
            if request.method() == hyper::Method::GET || dry_run {
                if let Some(mut secrets) = secrets {
                    let _answered = secrets.wait_for(|answered| *answered).await.is_ok();
                }
                return client.send(request).await;
            }
            let number = writes.lock().map_or(usize::MAX, |mut writes| {
                if writes.len() < until {
                    writes.push(Write { path: request.uri().path().to_owned(), code: None });
                    return writes.len();
                }
                usize::MAX
            });
            let answered = async move {
                let answer = client.send(request).await?;
                if let Some(write) = writes.lock().ok().as_mut().and_then(|writes| writes.get_mut(number - 1)) {
                    write.code = Some(answer.status().as_u16());
                }
                Ok(answer)
            };
            if number < until {
                return answered.await;
            }
            match arrival {
                Some(mut arrival) if number == until => {
                    // It outlives its leader.
                    tokio::spawn(async move {
                        let _arrives = arrival.wait_for(|arrives| *arrives).await.is_ok();
                        answered.await
                    });
                    kill.send_replace(true);
                }
                None if number == until => {
                    let _carried_out = answered.await;
                    kill.send_replace(true);
                }
                _ => {}
            }
            std::future::pending().await
        }
    });
    Client::new(service, SYSTEM_NAMESPACE)
}
