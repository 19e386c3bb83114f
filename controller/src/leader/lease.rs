//! The Lease itself: reading, writing, and the state of the leadership.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher;
use models::backoff::Backoff;
use models::failures::{LoggedFailures, with_causes};
use models::resource_version::{is_valid, newer};
use tokio::sync::watch;

use crate::clock::Clock;

use super::election::{Next, Observed, Parameters, Record, next};

/// Annotation on a Lease that was handed over: the node that was next, which the previous leader ran on.
const HANDED_OVER_ANNOTATION: &str = "brupop.bottlerocket.aws/handed-over-for";

/// Time after a conflict before a leader reads the Lease again.
const CONFLICT_PAUSE: Duration = Duration::from_millis(100);

/// The lease is lost: this process must not write any more, and ends.
#[derive(Debug, thiserror::Error)]
#[error("the lease is lost; another replica may lead already, so this one ends")]
pub struct LostLease;

/// The failure of a campaign: this process must not write any more, and ends.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// A lease that was held is lost.
    #[error(transparent)]
    Lost(LostLease),
    /// The API server has an older lease than this candidate has seen.
    #[error("the cluster was restored to an earlier state: this process ends, and starts again to list everything")]
    Restored,
}

/// The leadership of this process, as far as it can know. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    lead: watch::Receiver<Lead>,
    renew_deadline: Duration,
    clock: Clock,
}

#[derive(Clone, Copy, Default)]
struct Lead {
    /// The beginning of the last successful renewal; `None` before the first and after the release.
    renewed: Option<Instant>,
    handed_over: bool,
}

impl Leadership {
    /// Checks the leadership right before each write. It reads the monotonic clock, which also runs while the process
    /// is stopped, so a leader that was suspended past its lease finds out before it writes.
    pub fn check(&self) -> Result<(), LostLease> {
        let renewed = self.lead.borrow().renewed;
        renewed.filter(|at| at.elapsed() < self.renew_deadline).map(|_| ()).ok_or(LostLease)
    }

    /// Waits until this process leads. Returns false if its campaign ended before.
    pub async fn acquired(&self) -> bool {
        self.lead.clone().wait_for(|lead| lead.renewed.is_some()).await.is_ok()
    }

    /// Returns whether the previous leader handed the lead over, or one before that without a later statement to the
    /// contrary.
    pub fn handed_over(&self) -> bool {
        self.lead.borrow().handed_over
    }

    /// Returns the clock, which the answers about the Lease correct.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the time now, see [`Clock::now`].
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a leadership that is over, for tests.
    #[cfg(test)]
    pub fn over() -> Self {
        Self { lead: watch::channel(Lead::default()).1, renew_deadline: Duration::ZERO, clock: Clock::default() }
    }

    /// Returns a leadership that never ends, for tests.
    #[cfg(test)]
    pub fn forever() -> Self {
        let lead = Lead { renewed: Some(Instant::now()), handed_over: false };
        Self { lead: watch::channel(lead).1, renew_deadline: Duration::from_secs(3600), clock: Clock::default() }
    }
}

/// The kind of a leader's release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    Stopped,
    /// Another replica is to lead, because this node, which the leader runs on, is next.
    HandedOver(String),
}

struct Campaign {
    api: Api<Lease>,
    name: String,
    identity: String,
    parameters: Parameters,
    clock: Clock,
    /// The moment until which a lease is left to others, since this candidate has handed it over.
    after: Option<Instant>,
    observed: Option<Observed>,
    lease: Option<Lease>,
    /// The newest version of the Lease that this candidate has seen; empty before the first. It outlives `lease`.
    newest: String,
}

/// The result of one try to get or keep the lease.
enum Attempt {
    /// The lease is held as of the beginning of the try.
    Held,
    /// Another candidate holds it, or it is left to others for now.
    Waits,
    /// The API server has an older Lease than this candidate has seen: etcd was restored to an earlier state. Watches go on from
    /// versions that the cluster has not reached again, so that no cache of this process would see a change for long.
    Restored,
}

fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(15)),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

impl Campaign {
    /// Returns the spec to write at `now`. The time is for users: no candidate uses it.
    fn spec(&self, now: Timestamp) -> LeaseSpec {
        let previous = self.lease.as_ref().and_then(|l| l.spec.clone()).unwrap_or_default();
        let ours = previous.holder_identity.as_deref() == Some(self.identity.as_str());
        let seconds = i32::try_from(self.parameters.lease_duration.as_secs()).unwrap_or(15);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: if ours { previous.acquire_time } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(previous.lease_transitions.unwrap_or(0) + i32::from(!ours)),
            ..LeaseSpec::default()
        }
    }

    /// Returns whether the Lease records that it was handed over.
    fn was_handed_over(&self) -> bool {
        let annotations = self.lease.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
        annotations.is_some_and(|annotations| annotations.contains_key(HANDED_OVER_ANNOTATION))
    }

    fn saw(&mut self, lease: Option<Lease>) {
        let now = Instant::now();
        self.observed = lease.as_ref().map(|l| Observed::update(self.observed.take(), record_of(l), now));
        if self.observed.as_ref().is_some_and(|o| !o.record.holder.is_empty() && o.record.holder != self.identity) {
            self.after = None;
        }
        let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.as_deref());
        if let Some(version) = version.filter(|version| is_valid(version) && newer(version, &self.newest)) {
            version.clone_into(&mut self.newest);
        }
        self.lease = lease;
    }

    /// Returns whether an answer of the API server is older than what this candidate has seen before.
    fn is_restored(&self, lease: &Lease) -> bool {
        let version = lease.metadata.resource_version.as_deref();
        version.is_some_and(|version| is_valid(version) && newer(&self.newest, version))
    }

    /// Returns the moment at which the lease may be taken, if that is not now.
    fn due(&self) -> Option<Instant> {
        match next(&self.identity, self.observed.as_ref(), self.after, Instant::now()) {
            Next::Wait(until) => Some(until),
            Next::Create | Next::Take | Next::Renew => None,
        }
    }

    /// Waits until the lease may be taken, as far as this candidate has seen.
    async fn until_due(&self) {
        if let Some(at) = self.due() {
            tokio::time::sleep_until(at.into()).await;
        }
    }

    /// Tries once to get or keep the lease.
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        // A leader renews what it wrote last without reading it first; after a conflict it reads.
        let held = self.lease.as_ref().is_some_and(|l| record_of(l).holder == self.identity);
        if !held {
            let lease = self.api.get_opt(&self.name).await?;
            if lease.as_ref().is_some_and(|lease| self.is_restored(lease)) {
                return Ok(Attempt::Restored);
            }
            self.saw(lease);
        }
        // The answer to the read may just have set the clock.
        let now = self.clock.now();
        let written = match next(&self.identity, self.observed.as_ref(), self.after, Instant::now()) {
            Next::Wait(_) => return Ok(Attempt::Waits),
            Next::Create => {
                let lease = Lease {
                    metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                    spec: Some(self.spec(now)),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
            Next::Take | Next::Renew => {
                let mut lease = self.lease.clone().unwrap_or_default();
                lease.spec = Some(self.spec(now));
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            // The earlier state had no Lease.
            Ok(lease) if self.is_restored(&lease) => Ok(Attempt::Restored),
            Ok(lease) => {
                self.saw(Some(lease));
                Ok(Attempt::Held)
            }
            Err(error) => {
                // After any error: read again before the next try.
                if matches!(&error, kube::Error::Api(status) if status.code == 409 || status.code == 404) {
                    self.lease = None;
                }
                Err(error)
            }
        }
    }

    async fn release(&mut self, how: &Release) -> Result<(), kube::Error> {
        let Some(mut lease) = self.lease.clone().filter(|l| record_of(l).holder == self.identity) else {
            return Ok(());
        };
        let mut spec = self.spec(self.clock.now());
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        lease.spec = Some(spec);
        let annotations = lease.metadata.annotations.get_or_insert_default();
        match how {
            Release::Stopped => annotations.remove(HANDED_OVER_ANNOTATION),
            Release::HandedOver(node) => annotations.insert(HANDED_OVER_ANNOTATION.to_owned(), node.clone()),
        };
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map(|_| ())
    }

    /// Waits until the next attempt is due: for the pause, and on a standby until the lease may be taken. Returns the
    /// kind of release if the campaign has to stop.
    async fn rest(
        &mut self,
        pause: Duration,
        leads: bool,
        changes: &mut BoxStream<'static, Option<Lease>>,
        stop: &mut watch::Receiver<Option<Release>>,
    ) -> Option<Release> {
        let rest = tokio::time::sleep(pause);
        tokio::pin!(rest);
        while !(leads && rest.is_elapsed()) {
            tokio::select! {
                // Without a sender there is no leadership to end.
                how = stop.wait_for(Option::is_some) => {
                    return Some(how.ok().and_then(|how| how.clone()).unwrap_or(Release::Stopped));
                }
                lease = changes.next(), if !leads => {
                    self.saw(lease?);
                    // Nothing to wait for: the lease may be taken now.
                    self.due()?;
                }
                () = &mut rest, if !rest.is_elapsed() => {}
                () = self.until_due(), if !leads && rest.is_elapsed() => return None,
            }
        }
        None
    }

    /// Releases the lease, or leaves it to expire.
    async fn release_in_time(&mut self, how: &Release) {
        match tokio::time::timeout(self.parameters.renew_deadline, self.release(how)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the lease could not be released; it expires");
            }
            Err(_) => {
                tracing::warn!("the API server did not answer to the release of the lease; it expires");
            }
        }
    }
}

/// Returns the changes of the Lease from the API server: `None` when it is deleted. A watch that fails is taken up
/// again; until then the Lease is read when it has run out.
fn changes(api: Api<Lease>, name: &str) -> BoxStream<'static, Option<Lease>> {
    let own = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut backoff = Backoff::default();
    let events = watcher(api, own).then(move |event| {
        let pause = if event.is_err() {
            watches::next_pause(&mut backoff, watches::LONGEST_PAUSE)
        } else {
            backoff.reset();
            Duration::ZERO
        };
        async move {
            tokio::time::sleep(pause).await;
            event
        }
    });
    let lease = |event: watcher::Result<watcher::Event<Lease>>| match event {
        Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) => Some(Some(lease)),
        Ok(watcher::Event::Delete(_)) => Some(None),
        Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => None,
    };
    events.filter_map(move |event| std::future::ready(lease(event))).boxed()
}

/// Takes part in the election until the lease is lost or released. The future ends with an error when a lease that was
/// held is lost, or when the cluster was restored to an earlier state, and without one, with the lease released, when `stop`
/// has a value. A candidate that has handed a lease over leaves it to others until `after`, and takes it then if it is still
/// free.
pub fn campaign(
    api: Api<Lease>,
    name: String,
    identity: String,
    parameters: Parameters,
    clock: Clock,
    after: Option<Instant>,
    mut stop: watch::Receiver<Option<Release>>,
) -> (Leadership, impl Future<Output = Result<(), CampaignError>>) {
    let (lead, receiver) = watch::channel(Lead::default());
    let leadership = Leadership { lead: receiver, renew_deadline: parameters.renew_deadline, clock: clock.clone() };
    // A standby receives renewals and a release at once. The death of a leader shows when the Lease has run out.
    let mut changes = changes(api.clone(), &name);
    let (observed, lease, newest) = (None, None, String::new());
    let mut campaign = Campaign { api, name, identity, parameters, clock, after, observed, lease, newest };
    let run = async move {
        let (mut last, mut failures): (Option<Instant>, _) = (None, LoggedFailures::default());
        loop {
            let began = Instant::now();
            let limit = if last.is_some() { parameters.call_limit } else { parameters.renew_deadline };
            let answer = tokio::time::timeout(limit, campaign.attempt()).await;
            if matches!(answer, Ok(Ok(_))) {
                failures = LoggedFailures::default();
            }
            let pause = match answer {
                Ok(Ok(Attempt::Held)) => {
                    let first = last.is_none();
                    last = Some(began);
                    lead.send_modify(|lead| {
                        lead.renewed = last;
                        if first {
                            lead.handed_over = campaign.was_handed_over();
                        }
                    });
                    changes = stream::pending().boxed();
                    parameters.renew_period
                }
                Ok(Ok(Attempt::Restored)) => return Err(CampaignError::Restored),
                Ok(Ok(Attempt::Waits)) if last.is_some() => return Err(CampaignError::Lost(LostLease)),
                Ok(Ok(Attempt::Waits)) => Duration::ZERO,
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    // For a leader: the answer to a renewal was lost, or the lease is. The next read shows which.
                    tracing::debug!("the lease has changed meanwhile");
                    if last.is_some() { CONFLICT_PAUSE } else { parameters.retry_period }
                }
                Ok(Err(error)) => {
                    let error = with_causes(&error);
                    if failures.is_news(&error, Instant::now()) {
                        tracing::warn!(error, "the lease could not be written");
                    }
                    parameters.retry_period
                }
                Err(_) => {
                    if failures.is_news("no answer", Instant::now()) {
                        tracing::warn!("the API server did not answer for the lease in time");
                    }
                    Duration::ZERO
                }
            };
            if last.is_some_and(|at| at.elapsed() >= parameters.renew_deadline) {
                return Err(CampaignError::Lost(LostLease));
            }
            let stopped = campaign.rest(pause, last.is_some(), &mut changes, &mut stop).await;
            if let Some(how) = stopped {
                lead.send_modify(|lead| lead.renewed = None);
                campaign.release_in_time(&how).await;
                return Ok(());
            }
        }
    };
    (leadership, run)
}
