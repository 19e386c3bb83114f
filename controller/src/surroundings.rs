//! Client, clock and times of the Lease: everything that a controller has from outside, besides its configuration.

use anyhow::Context as _;

use crate::client::CONNECT_LIMIT;
use crate::clock::Clock;
use crate::leader::Parameters;

/// The surroundings of a controller: on a machine [`Surroundings::infer`]; a test brings its own.
pub struct Surroundings {
    /// The client of the API server, without deadlines of its own.
    pub client: kube::Client,
    pub clock: Clock,
    /// The times of the Lease.
    pub parameters: Parameters,
}

impl Surroundings {
    /// Connects as the service account of the pod, or by the user's kubeconfig.
    pub async fn infer() -> anyhow::Result<Self> {
        let mut kubernetes = kube::Config::infer()
            .await
            .context("no Kubernetes configuration: neither a kubeconfig nor a service account")?;
        // The client's own retries repeat POST and PATCH on 429 and 503, also for minutes. Here every caller decides
        // itself.
        kubernetes.default_retry = false;
        kubernetes.connect_timeout = Some(CONNECT_LIMIT);
        let client = kube::Client::try_from(kubernetes).context("the Kubernetes client cannot be set up")?;
        Ok(Self { client, clock: Clock::default(), parameters: Parameters::default() })
    }
}
