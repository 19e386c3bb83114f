//! The controller: carries out the plan for each Bottlerocket node: cordons, drains, issues the permit, releases.
//!
//! ```text
//! view ──► plan ──► lint ──► apply
//! (gather)  (the planner)    (I/O; no choices but the last check before a permit)
//! ```

pub mod apply;
pub mod cache;
pub mod calls;
pub mod client;
pub mod clock;
pub mod config;
pub mod daemon_sets;
pub mod decisions;
pub mod definitions;
pub mod driver;
pub mod eviction;
pub mod expressions;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod http;
pub mod leader;
pub mod metrics;
pub mod tls;
pub mod writes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::FutureExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use tokio::sync::watch;

use crate::cache::{Cache, Reading};
use crate::config::Config;
use crate::definitions::Served;
use crate::driver::End;
use planner::view::{BudgetFacts, NodeFacts, OperatorFacts, PodFacts, ShadowFacts};

/// Time for which a leader that handed over leaves the Lease to the others before it takes it back.
const TAKE_BACK: Duration = Duration::from_secs(5);

/// Runs the controller until `stop` turns true or the lease is lost, which is an error: the process has to end, since
/// another replica may lead already.
pub async fn run(config: Config, stop: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mut kubernetes = kube::Config::infer()
        .await
        .context("no Kubernetes configuration: neither a kubeconfig nor a service account")?;
    // The client's own retries repeat POST and PATCH on 429 and 503, also for minutes. Here every caller decides
    // itself.
    kubernetes.default_retry = false;
    kubernetes.connect_timeout = Some(client::CONNECT_LIMIT);
    let client = kube::Client::try_from(kubernetes).context("the Kubernetes client cannot be set up")?;
    let metrics = metrics::Metrics::new().context("metrics cannot be registered")?;
    let calls = calls::Calls::default();
    let client = client::limited(client, calls.clone(), metrics.clone());
    clock::clock().be_wrong_by(jiff::SignedDuration::from_secs(config.clock_skew.into()));

    let changed = Arc::new(watch::channel(0).0);
    let nodes = Cache::<NodeFacts>::new(changed.clone());
    let shadows = Cache::<ShadowFacts>::new(changed.clone());
    let operator = Cache::<OperatorFacts>::new(changed.clone());
    let budgets = Cache::<BudgetFacts>::new(changed.clone());
    let namespace = config.namespace.as_str();
    let everything = watcher::Config::default;
    tokio::spawn(nodes.run(Api::<DeserializeGuard<Node>>::all(client.clone()), everything()));
    let (served, shadows_served) = watch::channel(Served::Unknown);
    let definition =
        definitions::wait_until_served::<BottlerocketShadow>(client.clone(), metrics.clone(), served.clone());
    let watch_shadows =
        shadows.run(Api::<DeserializeGuard<BottlerocketShadow>>::namespaced(client.clone(), namespace), everything());
    tokio::spawn(definition.then(|()| watch_shadows));
    let definition = definitions::wait_until_served::<BottlerocketUpdateOperator>(
        client.clone(),
        metrics.clone(),
        watch::Sender::default(),
    );
    let watch_operator = operator.run(
        Api::<DeserializeGuard<BottlerocketUpdateOperator>>::namespaced(client.clone(), namespace),
        // There is no other one, and RBAC permits reading it by this name alone.
        everything().fields(&format!("metadata.name={}", names::OPERATOR_NAME)),
    );
    tokio::spawn(definition.then(|()| watch_operator));
    tokio::spawn(budgets.run(Api::<DeserializeGuard<PodDisruptionBudget>>::all(client.clone()), everything()));
    let peers = leader::Peers {
        identity: config.identity.clone(),
        pods: Cache::<PodFacts>::new(changed.clone()),
        agents: Cache::<PodFacts>::new(changed.clone()),
    };
    let components = format!("{} in ({}, {})", names::COMPONENT_LABEL, names::CONTROLLER, names::APISERVER);
    let agents = format!("{}={}", names::COMPONENT_LABEL, names::AGENT);
    for (cache, namespace, selector) in
        [(&peers.pods, namespace, components), (&peers.agents, config.agent_namespace.as_str(), agents)]
    {
        let pods = Api::<DeserializeGuard<Pod>>::namespaced(client.clone(), namespace);
        tokio::spawn(cache.run(pods, everything().labels(&selector)));
    }

    let (ready, is_ready) = watch::channel(false);
    {
        let caches = (nodes.clone(), shadows.clone(), operator.clone(), budgets.clone());
        let mut changes = changed.subscribe();
        tokio::spawn(async move {
            while !(caches.0.synced() && caches.1.synced() && caches.2.synced() && caches.3.synced()) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
            ready.send_replace(true);
        });
    }
    let plain = tokio::spawn(http::serve(config.plain_listen, metrics.clone(), calls.clone(), is_ready, stop.clone()));

    let leases: Api<Lease> = Api::namespaced(leader::dated(client.clone(), clock::clock()), namespace);
    let parameters = leader::Parameters::default();
    let mut after = None;
    let result = loop {
        // The lease outlives the work: it is released only when nothing of the operator is under way any more.
        let (release, released) = watch::channel(None);
        let (leadership, campaign) = leader::campaign(
            leases.clone(),
            names::CONTROLLER.to_owned(),
            config.identity.clone(),
            parameters,
            after,
            released,
        );
        let caches = (nodes.clone(), shadows.clone(), operator.clone(), budgets.clone());
        let work = lead(
            &config,
            client.clone(),
            leadership,
            metrics.clone(),
            calls.clone(),
            caches,
            shadows_served.clone(),
            peers.clone(),
            changed.clone(),
            stop.clone(),
        );
        tokio::pin!(campaign, work);
        let end = tokio::select! {
            lost = &mut campaign => lost.map(|()| End::Stopped),
            end = &mut work => {
                let how = match (&end, &config.node_name) {
                    (End::HandedOver, Some(node)) => leader::Release::HandedOver(node.clone()),
                    _ => leader::Release::Stopped,
                };
                release.send_replace(Some(how));
                campaign.await.map(|()| end)
            }
        };
        match end {
            Ok(End::HandedOver) => {
                tracing::info!(identity = config.identity, "handed over, standing by");
                after = Some(Instant::now() + TAKE_BACK);
            }
            Ok(End::Stopped) => break Ok(()),
            Err(lost) => {
                tracing::warn!(identity = config.identity, "lease lost");
                break Err(anyhow::Error::from(lost));
            }
        }
    };
    if *stop.borrow() {
        match plain.await {
            Ok(served) => served.context("the plain port")?,
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "the plain port ended badly"),
        }
    }
    result
}

type Caches = (Cache<NodeFacts>, Cache<ShadowFacts>, Cache<OperatorFacts>, Cache<BudgetFacts>);

/// Waits for the lead, then does a leader's work until `stop`, or until another replica is to take over.
#[expect(clippy::too_many_arguments, reason = "each is another thing that a leader works with")]
async fn lead(
    config: &Config,
    client: kube::Client,
    leadership: leader::Leadership,
    metrics: metrics::Metrics,
    calls: calls::Calls,
    caches: Caches,
    served: watch::Receiver<Served>,
    peers: leader::Peers,
    changed: Arc<watch::Sender<u64>>,
    mut stop: watch::Receiver<bool>,
) -> End {
    let mut leads = leadership.leads();
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => return End::Stopped,
        elected = leads.wait_for(|leads| *leads) => if elected.is_err() { return End::Stopped },
    }
    tracing::info!(identity = config.identity, "lease acquired: this replica leads");
    metrics.lead(true);
    let (nodes, shadows, operator, budgets) = caches;
    // A previous leader may have written what these caches have not seen yet.
    let reading =
        Reading::default().of(&nodes).of(&shadows).of(&operator).of(&budgets).of(&peers.pods).of(&peers.agents);
    let signer = tls::Signer::default();
    let keeper = tls::Keeper::new(
        client.clone(),
        config.clone(),
        leadership.clone(),
        signer.clone(),
        metrics.clone(),
        shadows.clone(),
        operator.clone(),
        changed.clone(),
    );
    let keys = tokio::spawn({
        let (reading, changes) = (reading.clone(), changed.subscribe());
        async move {
            reading.wait(changes).await;
            keeper.run().await;
        }
    });
    let applier = apply::Applier::new(
        client,
        config.namespace.clone(),
        config.identity.clone(),
        leadership,
        signer,
        metrics.clone(),
        nodes,
        shadows,
        operator,
    );
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = definitions::report_until_served(&applier, served, &changed) => {}
    }
    let expressions =
        expressions::Expressions::start(changed.clone(), metrics.clone(), config.prometheus_ca_file.clone());
    let driver = driver::Driver::new(
        applier,
        budgets,
        peers,
        reading,
        expressions,
        changed,
        config.node_name.clone(),
        clock::now(),
    );
    let end = driver.run(&calls, stop).await;
    calls.turned(None);
    metrics.lead(false);
    keys.abort();
    end
}
