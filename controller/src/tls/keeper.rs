//! Keeps certificates and keys as the rules require: watches their sources, and carries out one write after the other.

mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use models::backoff::{Backoff, Delays};
use models::failures::LoggedFailures;
use models::names;
use models::time::between;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::certificate::{Certificate, accepts, is_pair};
use super::facts::{Authorities, Certificates, Facts, Id, Leaf, Plan, Published, Signing, Source, Subject, Write};
use super::material::{Issuing, MaterialError, PermitKey, issued};
use super::provided::{Problem, provided};
use super::store::{self, Contents, KeyRing, Safe, SecretFacts, TrustFacts};
use super::{Signer, TlsError, plan};
use crate::cache::Cache;
use crate::caches::Caches;
use crate::config::{Config, ServingCertificate};
use crate::leader::Leadership;
use crate::metrics::{Metrics, TlsSnapshot};
use planner::signature::signed_by;
use planner::view::{Projection as _, ShadowFacts, SigningKeys, TlsFacts};

/// Pause after a failure, doubled after each that follows, and its maximum. A change of any watched object ends the
/// pause.
const RETRY: Delays = (Duration::from_secs(2), Duration::from_secs(30));

/// The longest time without a check of the clock, which may have been set.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Maximum number of writes about one subject within the time that rotations wait for kubelets, and within the shortest
/// time if they wait for less. The longest way from nothing has five in all, and a rotation continues only after its
/// wait; more means a conflicting writer, which is reported. Within the longest time no more are made at all.
const CONTENTION: usize = 10;
const SHORTEST_SPAN: Duration = Duration::from_secs(10);
const LONGEST_SPAN: Duration = Duration::from_secs(60);

/// Keeps keys and certificates, for a leader.
pub struct Keeper {
    client: kube::Client,
    config: Config,
    leadership: Leadership,
    signer: Signer,
    metrics: Metrics,
    caches: Caches,
    /// Notified of changes of the objects below.
    own: Arc<watch::Sender<u64>>,
    authorities: Cache<SecretFacts>,
    serving: Cache<SecretFacts>,
    keys: Cache<SecretFacts>,
    trust: Cache<TrustFacts>,
    /// The moment since which the published contents, and the certificate in service, have been seen without a break.
    seen: HashMap<Id, Instant>,
    /// The moments of the last writes.
    written: BTreeMap<Subject, VecDeque<Instant>>,
    /// The failures of the last check.
    logged: LoggedFailures,
    /// The write that the API server last refused, or that another client reverts, until that is over.
    refused: Option<String>,
}

/// The input of a check: without a change of any of it, and before its time, there is nothing new to find.
#[derive(Clone, Debug, PartialEq)]
struct CheckInput {
    versions: [Option<String>; 4],
    requested: (Option<String>, Option<String>),
    statements: BTreeSet<String>,
}

/// The result of a check and the writes after it.
struct CheckResult {
    /// The input of the last check.
    seen: Option<CheckInput>,
    /// The time of the next check, if nothing changes before.
    wake: Option<Timestamp>,
    /// The error of each subject that failed.
    failed: BTreeMap<Subject, TlsError>,
}

/// The contents found, as facts for the rules and as values to write.
struct Found {
    facts: Facts,
    safe: Safe,
    ring: KeyRing,
    /// Certificates that no Secret of the operator names: the published ones, and those that are provided.
    others: Vec<Certificate>,
    leaf: Option<Certificate>,
    problem: Option<Problem>,
}

impl Keeper {
    pub fn new(
        client: kube::Client,
        config: Config,
        leadership: Leadership,
        signer: Signer,
        metrics: Metrics,
        caches: Caches,
    ) -> Self {
        let own = Arc::new(watch::channel(0).0);
        Self {
            client,
            config,
            leadership,
            signer,
            caches,
            authorities: Cache::new(own.clone(), &metrics.watch_errors),
            serving: Cache::new(own.clone(), &metrics.watch_errors),
            keys: Cache::new(own.clone(), &metrics.watch_errors),
            trust: Cache::new(own.clone(), &metrics.watch_errors),
            metrics,
            own,
            seen: HashMap::new(),
            written: BTreeMap::new(),
            logged: LoggedFailures::default(),
            refused: None,
        }
    }

    /// Returns the host names that agents may use.
    fn hosts(&self) -> Vec<String> {
        let service = format!("{}.{}.svc", names::APISERVER, self.config.namespace);
        vec![service.clone(), format!("{service}.{}", self.config.cluster_domain)]
    }

    /// Watches and keeps, forever.
    pub async fn run(mut self) {
        let mut watches = JoinSet::new();
        let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        for (cache, name) in [
            (&self.authorities, names::CA_SECRET),
            (&self.serving, names::SERVING_SECRET),
            (&self.keys, names::PERMIT_KEY_SECRET),
        ] {
            let secrets = Api::namespaced(self.client.clone(), &self.config.namespace);
            watches.spawn(cache.run(secrets, named(name)));
        }
        let maps = Api::namespaced(self.client.clone(), &self.config.agent_namespace);
        watches.spawn(self.trust.run(maps, named(names::TRUST_CONFIG_MAP)));

        let (mut own, mut plans) = (self.own.subscribe(), self.caches.changed.subscribe());
        let mut last: Option<CheckInput> = None;
        // By the monotonic clock: a check that finds nothing costs nothing.
        let mut wake = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let due = wake <= Instant::now();
            if self.seen().is_some_and(|seen| due || last.as_ref() != Some(&seen)) {
                let now = self.leadership.now();
                let kept = self.keep(now).await;
                last = kept.seen;
                let mut pause = pause(now, kept.wake);
                if self.log_failures(&kept.failed, Instant::now()) {
                    backoff.reset();
                }
                if !kept.failed.is_empty() {
                    pause = pause.clamp(RETRY.0, backoff.next_delay(RETRY));
                } else if self.refused.is_some() {
                    // Only a check shows that a conflict is over.
                    pause = pause.min(RETRY.1);
                }
                wake = Instant::now() + pause;
            }
            tokio::select! {
                changed = own.changed() => if changed.is_err() { return },
                changed = plans.changed() => if changed.is_err() { return },
                // Nothing can be due before everything has been listed, which is notified.
                () = tokio::time::sleep_until(wake), if last.is_some() => {}
            }
        }
    }

    /// Logs the failures, and returns whether they differ from those before.
    fn log_failures(&mut self, failed: &BTreeMap<Subject, TlsError>, clock: Instant) -> bool {
        let failing = (!failed.is_empty()).then(|| format!("{failed:?}"));
        let differs = self.logged.last() != failing.as_deref();
        let Some(text) = failing else {
            self.logged = LoggedFailures::default();
            return differs;
        };
        if self.logged.is_news(&text, clock) {
            for error in failed.values() {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "keys or certificates could not be written, trying again"
                );
            }
        }
        differs
    }

    /// Returns the input of a check; `None` until everything has been listed.
    fn seen(&self) -> Option<CheckInput> {
        let synced = self.authorities.synced() && self.serving.synced() && self.keys.synced() && self.trust.synced();
        if !synced {
            return None;
        }
        let version =
            |cache: &Cache<SecretFacts>, name: &str| cache.get(name).map(|s| SecretFacts::VERSION(&s).to_owned());
        let two_keys = self.keys.get(names::PERMIT_KEY_SECRET).is_some_and(|secret| store::has_two_keys(&secret));
        Some(CheckInput {
            versions: [
                version(&self.authorities, names::CA_SECRET),
                version(&self.serving, names::SERVING_SECRET),
                version(&self.keys, names::PERMIT_KEY_SECRET),
                self.trust.get(names::TRUST_CONFIG_MAP).map(|map| TrustFacts::VERSION(&map).to_owned()),
            ],
            requested: self.requested(),
            // Only the end of a rotation waits for them.
            statements: if two_keys { self.statements() } else { BTreeSet::new() },
        })
    }

    fn requested(&self) -> (Option<String>, Option<String>) {
        self.caches.operator.get(names::OPERATOR_NAME).map(|o| planner::plan::pending_rotations(&o)).unwrap_or_default()
    }

    /// Returns the keys of the statements in shadows.
    fn statements(&self) -> BTreeSet<String> {
        let signature = |shadow: &ShadowFacts| signed_by(shadow.spec.host.as_ref()?.signature.as_deref()?);
        self.caches.shadows.items().values().filter_map(signature).collect()
    }

    /// Checks and writes until there is nothing more to write.
    ///
    /// A refused write blocks nothing else: a Secret that cannot be changed affects only its own subject.
    async fn keep(&mut self, now: Timestamp) -> CheckResult {
        let mut failed: BTreeMap<Subject, TlsError> = BTreeMap::new();
        // The input at a failure: a change meanwhile may be its cause, and needs a check.
        let mut seen_at_failure = None;
        loop {
            let seen = self.seen();
            let found = self.gather(now, Instant::now());
            let plan = plan::plan(&found.facts, self.config.trust_wait.signed(), now);
            let next = plan.writes.iter().find(|write| !failed.contains_key(&write.subject())).cloned();
            if next.is_none() {
                let contended = self.contended(Instant::now()).then_some(TlsError::Contended);
                self.refused = failed.values().chain(&contended).find_map(TlsError::for_users);
            }
            // Also before a write, which may fail: the key that signs, and the problem, do not depend on it.
            self.report(&found, &plan);
            let Some(write) = next else {
                return CheckResult { seen: seen_at_failure.unwrap_or(seen), wake: plan.wake, failed };
            };
            let (subject, text) = (write.subject(), write.text());
            let result = if self.written_often(subject, LONGEST_SPAN, Instant::now()) {
                Err(TlsError::Contended)
            } else {
                self.write(&found, write, now).await
            };
            match result {
                Ok(()) => {
                    tracing::info!("{text}");
                    let times = self.written.entry(subject).or_default();
                    times.push_back(Instant::now());
                    if times.len() > CONTENTION {
                        times.pop_front();
                    }
                }
                Err(error @ TlsError::Lost(_)) => {
                    return CheckResult { seen, wake: None, failed: BTreeMap::from([(subject, error)]) };
                }
                Err(error) => {
                    failed.insert(subject, error);
                    seen_at_failure.get_or_insert(seen);
                }
            }
        }
    }

    /// Returns whether anything has been written so often that another client must be reverting it.
    fn contended(&self, clock: Instant) -> bool {
        self.written.keys().any(|subject| self.written_often(*subject, Duration::MAX, clock))
    }

    /// Returns whether a subject has been written too often within the time that rotations wait, which counts up to
    /// `longest`.
    fn written_often(&self, subject: Subject, longest: Duration, clock: Instant) -> bool {
        let wait = self.config.trust_wait.0;
        let span = wait.max(SHORTEST_SPAN).min(longest);
        let first = self.written.get(&subject).filter(|times| times.len() >= CONTENTION).and_then(VecDeque::front);
        first.is_some_and(|first| clock.saturating_duration_since(*first) < span)
    }

    fn gather(&mut self, now: Timestamp, clock: Instant) -> Found {
        let (authorities, serving) = (self.authorities.get(names::CA_SECRET), self.serving.get(names::SERVING_SECRET));
        let (keys, trust) = (self.keys.get(names::PERMIT_KEY_SECRET), self.trust.get(names::TRUST_CONFIG_MAP));
        let mut problem = None;
        let mut invalid = |name: &'static str, error: &MaterialError| {
            problem.get_or_insert(Problem::Invalid { name, error: error.to_string() });
        };
        let safe = authorities.as_ref().map_or(Ok(Safe::default()), Safe::read);
        let safe = safe.map_err(|error| invalid(names::CA_SECRET, &error)).ok();
        let ring = keys.as_ref().map_or(Ok(KeyRing::default()), KeyRing::read);
        let ring = ring.map_err(|error| invalid(names::PERMIT_KEY_SECRET, &error)).ok();

        let own_keys = ring.iter().flat_map(KeyRing::keys).filter_map(|key| Some((key.id.clone(), key.jwk().ok()?)));
        let own_keys: Vec<_> = own_keys.collect();
        let published = trust.as_ref().map(|trust| trust.published(&own_keys)).unwrap_or_default();
        let certificates = |text: Option<&str>| Certificate::read_all(text.unwrap_or_default()).0;
        let mut others = certificates(trust.as_ref().and_then(|trust| trust.text(names::TRUST_CA_KEY)));
        let chain = certificates(serving.as_ref().and_then(|secret| secret.text(store::CERTIFICATE)));
        let (requested_certificates, requested_key) = self.requested();
        let hosts = self.hosts();

        let certificates = safe.as_ref().map(|safe| {
            let source = match self.config.serving_certificate {
                ServingCertificate::Managed => Source::Managed,
                ServingCertificate::Provided => match provided(serving.as_ref(), &hosts, now) {
                    Ok(anchors) => {
                        others.extend(anchors.iter().cloned());
                        Source::Provided(Some(anchors))
                    }
                    Err(found) => {
                        problem.get_or_insert(found);
                        Source::Provided(None)
                    }
                },
            };
            let key = serving.as_ref().and_then(|secret| secret.text(store::KEY)).unwrap_or_default();
            let leaf = chain.first().map(|leaf| Leaf {
                id: leaf.id.clone(),
                issuer: safe.certificates().chain(&others).find(|a| issued_by(a, &chain)).map(|a| a.id.clone()),
                usable: hosts.iter().all(|host| leaf.names().contains(host)) && is_pair(&chain, key),
                from: leaf.from,
                until: leaf.until,
                issued: issued(leaf.from),
            });
            let unnamed = |certificate: &&Certificate| !safe.certificates().any(|known| known.id == certificate.id);
            Certificates {
                foreign: others.iter().filter(unnamed).cloned().collect(),
                source,
                authorities: safe.authorities.clone(),
                leaf,
                requested: requested_certificates
                    .filter(|requested| safe.authorities.carried.as_ref() != Some(requested)),
            }
        });
        if let Some(leaf) = chain.first().filter(|leaf| now < leaf.from || leaf.until <= now) {
            problem.get_or_insert(Problem::OutOfTime { from: leaf.from, until: leaf.until });
        }
        let signing = ring.as_ref().map(|ring| self.signing(ring, requested_key));
        let ids = published.authorities.iter().chain(&published.keys).chain(chain.first().map(|leaf| &leaf.id));
        let since = |id: &Id| (id.clone(), self.seen.get(id).copied().unwrap_or(clock));
        let seen: HashMap<Id, Instant> = ids.map(since).collect();
        let observed_for = |since: &Instant| SignedDuration::try_from(clock.saturating_duration_since(*since));
        let observed_for =
            seen.iter().map(|(id, since)| (id.clone(), observed_for(since).unwrap_or_default())).collect();
        self.seen = seen;
        let facts = Facts { certificates, signing, published, observed_for };
        let leaf = chain.into_iter().next();
        Found { facts, safe: safe.unwrap_or_default(), ring: ring.unwrap_or_default(), others, leaf, problem }
    }

    /// The keys that sign permits, as facts for the rules.
    fn signing(&self, ring: &KeyRing, requested: Option<String>) -> Signing {
        let id = |key: &Option<PermitKey>| key.as_ref().map(|key| key.id.clone());
        let mut statements = self.statements();
        if !self.caches.shadows.synced() || !self.caches.shadows.unreadable().is_empty() {
            // The keys of these statements are not known yet.
            statements.extend(id(&ring.before));
        }
        Signing {
            newest: id(&ring.newest),
            before: id(&ring.before),
            requested: requested.filter(|requested| ring.carried.as_ref() != Some(requested)),
            statements,
        }
    }

    /// Reports to plans, metrics and the log.
    fn report(&self, found: &Found, plan: &Plan) {
        let Found { facts, safe, ring, leaf, problem, .. } = found;
        let problem = problem.as_ref().map(ToString::to_string).or_else(|| self.refused.clone());
        let before = self.signer.facts();
        if let Some(problem) = &problem
            && before.problem.as_ref() != Some(problem)
        {
            tracing::error!(problem, "keys or certificates are invalid, or cannot be written");
        }
        let requested = self.requested().0.filter(|_| self.config.serving_certificate == ServingCertificate::Provided);
        // Keys that cannot be read are those before.
        let keys = facts.signing.is_some().then(|| SigningKeys {
            signing_key: plan.signer.clone(),
            newest_key: ring.newest.as_ref().map(|key| key.id.clone()),
            signing_keys: ring.keys().map(|key| key.id.clone()).collect(),
        });
        let reported = TlsFacts {
            // The operator has nothing to rotate where certificates are provided.
            rotated_certificates: requested.or_else(|| safe.authorities.carried.clone()),
            rotated_signing_key: ring.carried.clone(),
            problem: problem.clone(),
        };
        let news = self.signer.set_facts(keys, reported);
        if facts.signing.is_some() {
            self.signer.sign_with(ring.keys().find(|key| Some(&key.id) == plan.signer.as_ref()).cloned());
        }
        self.metrics.tls(&TlsSnapshot {
            authority: safe.authorities.newest.as_ref().map(|newest| newest.until),
            serving: leaf.as_ref().map(|leaf| leaf.until),
            certificates: plan.certificates.into(),
            signing_key: plan.signing.into(),
            problem: problem.is_some(),
        });
        if news {
            self.caches.notify();
        }
    }
}

/// Returns the time from a check to the next one.
fn pause(now: Timestamp, wake: Option<Timestamp>) -> Duration {
    // A timestamp has millisecond precision; waking a little late beats waking early and again.
    let ahead = |at: Timestamp| between(now, at) + Duration::from_millis(2);
    wake.map_or(LONGEST_REST, |at| ahead(at).min(LONGEST_REST))
}

/// Returns whether an authority issued a certificate, directly or through the others of its chain, whatever the time is
/// now.
fn issued_by(authority: &Certificate, chain: &[Certificate]) -> bool {
    let (Some(leaf), Some(at)) = (chain.first(), chain.iter().map(|certificate| certificate.from).max()) else {
        return false;
    };
    leaf.names().first().is_some_and(|name| accepts(&[authority], chain, name, at).is_ok())
}

#[cfg(test)]
mod tests;
