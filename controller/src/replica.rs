//! One replica of the controller, leader or standby.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::FutureExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::runtime::watcher;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::apply::Applier;
use crate::cache::{Cache, Reading};
use crate::caches::Caches;
use crate::calls::Calls;
use crate::client::limited;
use crate::clock::Clock;
use crate::config::Config;
use crate::definitions::{Served, report_until_served, wait_until_served};
use crate::driver::{Driver, End, Parts};
use crate::earlier::EarlierPods;
use crate::expressions::{self, Expressions};
use crate::history::{Historian, History};
use crate::http;
use crate::jobs::{Awaited, HookJobs};
use crate::leader::{self, CampaignError, Leadership, Parameters, Peers, Release};
use crate::metrics::Metrics;
use crate::migrate::{Migrator, Progress};
use crate::notices::Notices;
use crate::surroundings::Surroundings;
use crate::tls::{Keeper, Signer};

/// Time for which a leader that handed over leaves the Lease to the others before it takes it back.
const TAKE_BACK: Duration = Duration::from_secs(5);

/// A replica, which watches and may lead.
pub(crate) struct Replica {
    config: Config,
    client: kube::Client,
    clock: Clock,
    parameters: Parameters,
    metrics: Metrics,
    calls: Calls,
    caches: Caches,
    peers: Peers,
    earlier: EarlierPods,
    /// The state of the shadows' definition.
    served: watch::Receiver<Served>,
    stop: watch::Receiver<bool>,
}

impl Replica {
    /// Begins to watch.
    pub(crate) fn start(
        config: Config,
        surroundings: Surroundings,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        let Surroundings { client, clock, parameters } = surroundings;
        let metrics = Metrics::new().context("metrics cannot be registered")?;
        let calls = Calls::default();
        let client = limited(client, calls.clone(), metrics.clone());
        let failures = &metrics.watch_errors;
        let caches = Caches::new(failures);
        let peers = Peers {
            identity: config.identity.clone(),
            pods: Cache::new(caches.changed.clone(), failures),
            agents: Cache::new(caches.changed.clone(), failures),
        };
        let earlier = EarlierPods::new(&caches.changed, failures);
        let (state, served) = watch::channel(Served::Unknown);
        let replica = Self { config, client, clock, parameters, metrics, calls, caches, peers, earlier, served, stop };
        replica.watch(state);
        Ok(replica)
    }

    /// Fills the caches. `served` receives the state of the shadows' definition.
    fn watch(&self, served: watch::Sender<Served>) {
        let Self { config, client, metrics, caches, peers, earlier, .. } = self;
        let namespace = config.namespace.as_str();
        let everything = watcher::Config::default;
        tokio::spawn(caches.nodes.run(Api::all(client.clone()), everything()));
        tokio::spawn(caches.budgets.run(Api::all(client.clone()), everything()));
        let watch_shadows = caches.shadows.run(Api::namespaced(client.clone(), namespace), everything());
        let definition = wait_until_served::<BottlerocketShadow>(client.clone(), metrics.clone(), served);
        tokio::spawn(definition.then(|()| watch_shadows));
        // There is no other one, and RBAC permits reading it by this name alone.
        let by_name = everything().fields(&format!("metadata.name={}", names::OPERATOR_NAME));
        let watch_operator = caches.operator.run(Api::namespaced(client.clone(), namespace), by_name);
        let definition =
            wait_until_served::<BottlerocketUpdateOperator>(client.clone(), metrics.clone(), watch::Sender::default());
        tokio::spawn(definition.then(|()| watch_operator));
        tokio::spawn(caches.revisions.run(Api::namespaced(client.clone(), namespace), everything()));
        tokio::spawn(caches.history.run_metadata(Api::namespaced(client.clone(), namespace), everything()));
        tokio::spawn(caches.services.run(Api::all(client.clone()), everything()));
        tokio::spawn(caches.csi_nodes.run(Api::all(client.clone()), everything()));
        tokio::spawn(caches.daemon_sets.run(Api::all(client.clone()), everything()));
        earlier.watch(client);
        let components = format!("{} in ({}, {})", names::COMPONENT_LABEL, names::CONTROLLER, names::APISERVER);
        let agents = format!("{}={}", names::COMPONENT_LABEL, names::AGENT);
        for (cache, namespace, selector) in
            [(&peers.pods, namespace, components), (&peers.agents, config.agent_namespace.as_str(), agents)]
        {
            tokio::spawn(cache.run(Api::namespaced(client.clone(), namespace), everything().labels(&selector)));
        }
    }

    /// Serves liveness, readiness and metrics until the process has to stop. A replica is ready once its caches are
    /// filled.
    pub(crate) fn serve(&self, listen: SocketAddr) -> impl Future<Output = std::io::Result<()>> + Send + use<> {
        let (ready, is_ready) = watch::channel(false);
        let caches = self.caches.clone();
        let mut changes = caches.changed.subscribe();
        tokio::spawn(async move {
            while !caches.synced() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
            ready.send_replace(true);
        });
        http::serve(listen, self.metrics.clone(), self.calls.clone(), is_ready, self.stop.clone())
    }

    /// Campaigns for the Lease and leads while it holds it, until the process has to stop. An end of the campaign before
    /// that is an error.
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let identity = &self.config.identity;
        let dated = leader::dated(self.client.clone(), self.clock.clone());
        let leases: Api<Lease> = Api::namespaced(dated, &self.config.namespace);
        let mut after = None;
        loop {
            // The lease outlives the work: it is released only when nothing of the operator is under way any more.
            let (release, released) = watch::channel(None);
            let (leadership, campaign) = leader::campaign(
                leases.clone(),
                names::CONTROLLER.to_owned(),
                identity.clone(),
                self.parameters,
                self.clock.clone(),
                after,
                released,
            );
            let work = self.lead(leadership);
            tokio::pin!(campaign, work);
            let end = tokio::select! {
                ended = &mut campaign => ended.map(|()| End::Stopped),
                end = &mut work => {
                    let how = match (&end, &self.config.node_name) {
                        (End::HandedOver, Some(node)) => Release::HandedOver(node.clone()),
                        _ => Release::Stopped,
                    };
                    release.send_replace(Some(how));
                    campaign.await.map(|()| end)
                }
            };
            match end {
                Ok(End::HandedOver) => {
                    tracing::info!(identity, "lease handed over: this replica is a standby");
                    after = Some(Instant::now() + TAKE_BACK);
                }
                Ok(End::Stopped) => return Ok(()),
                Err(error) => {
                    if matches!(error, CampaignError::Lost(_)) {
                        tracing::warn!(identity, "lease lost");
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Waits for the lead, then does a leader's work until the process has to stop, or until another replica is to take
    /// over.
    async fn lead(&self, leadership: Leadership) -> End {
        let Self { config, client, metrics, caches, peers, earlier, .. } = self;
        let mut stop = self.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return End::Stopped,
            acquired = leadership.acquired() => if !acquired { return End::Stopped },
        }
        tracing::info!(identity = config.identity, "lease acquired: this replica leads");
        metrics.lead(true);
        // A previous leader may have written what these caches have not seen yet.
        let reading = earlier.read_again(caches.read_again().of(&peers.pods).of(&peers.agents));
        let signer = Signer::default();
        let keeper = Keeper::new(
            client.clone(),
            config.clone(),
            leadership.clone(),
            signer.clone(),
            metrics.clone(),
            caches.clone(),
        );
        // Aborted at the end of the lead.
        let mut tasks = JoinSet::new();
        let (read, changes) = (reading.clone(), caches.changed.subscribe());
        tasks.spawn(async move {
            read.wait(changes).await;
            keeper.run().await;
        });
        let applier = Applier::new(
            client.clone(),
            config.namespace.clone(),
            config.identity.clone(),
            leadership,
            signer,
            metrics.clone(),
            caches.clone(),
        );
        let progress = Progress::default();
        tasks.spawn(self.migrate(applier.clone(), progress.clone()));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = report_until_served(&applier, self.served.clone(), earlier) => {}
        }
        let history = History::default();
        tasks.spawn(Historian::new(applier.clone(), history.clone(), reading.clone()).run());
        let awaited = Awaited::default();
        tasks.spawn(HookJobs::new(applier.clone(), awaited.clone()).run(reading.clone()));
        let secret = expressions::Secret {
            folder: config.prometheus_credentials_dir.clone(),
            namespace: config.namespace.clone(),
        };
        let options = expressions::Options { ca_file: config.prometheus_ca_file.clone(), secret };
        let expressions = Expressions::start(applier.clone(), options);
        let notices = Notices::start(applier.clone(), config.notices_dir.clone());
        let parts = Parts {
            peers: peers.clone(),
            earlier: earlier.clone(),
            reading,
            expressions,
            migration: progress,
            history,
            awaited,
            notices,
            own_node: config.node_name.clone(),
            leader_since: self.clock.now(),
        };
        let end = Driver::new(applier, parts).run(&self.calls, stop).await;
        self.calls.stopped();
        metrics.lead(false);
        end
    }

    /// Migrates stored shadows, once they are served, and the policy and the pods of the earlier operator
    /// are known. It does not wait for a list of the shadows: with objects that cannot be read there is none.
    fn migrate(&self, applier: Applier, progress: Progress) -> impl Future<Output = ()> + Send + use<> {
        let reading = self.earlier.read_again(Reading::default().of(&self.caches.operator));
        let (changes, mut served) = (self.caches.changed.subscribe(), self.served.clone());
        let migrator = Migrator::new(applier, self.earlier.clone(), progress);
        async move {
            if served.wait_for(|served| *served == Served::Yes).await.is_err() {
                return;
            }
            reading.wait(changes).await;
            migrator.run().await;
        }
    }
}
