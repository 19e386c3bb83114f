//! The loop of the leader: lists the Jobs of hooks, decides, and carries out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PostParams};
use kube::core::DeserializeGuard;
use models::backoff::{Backoff, Delays};
use models::failures::LoggedFailures;
use models::names::{CONTROLLER, HOOK_LABEL, OPERATOR_NAME};
use models::plain::is_alike;
use models::shadow::Progress;
use planner::plan::Note;
use planner::policy::{Hook, Policy};
use planner::view::NodeFacts;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Awaited;
use super::acts::{carry_out, why_failed};
use super::decide::{Act, Run, Snapshot, Stall, State, decide, not_run};
use super::namespaces::{record, recorded};
use super::object::{node, run};
use crate::apply::{Applier, ApplyError};
use crate::cache::Reading;

/// Time between two rounds.
const PERIOD: Duration = Duration::from_secs(2);

/// The longest time between two rounds while something is to be taken back, or to be tried again.
const REST: Duration = Duration::from_secs(10);

/// Number of Jobs in one page of a list.
const PAGE: u32 = 500;

/// Maximum number of acts under way that write Jobs of one namespace, or answers.
const AT_A_TIME: usize = 10;

/// The first pause after a failed act, and the longest.
const PAUSES: Delays = (Duration::from_secs(2), Duration::from_secs(60));

/// Reason of the Event about an act that has failed, and about a Job that has.
const FAILED: &str = "HookJobFailed";

/// Reason of the Event about a request that waits for the Job of an earlier attempt, which runs.
const AWAITING: &str = "AwaitingHookJob";

/// A hook and a node.
type About = (String, String);

/// The Jobs of a namespace that cannot be read, by name, with their nodes.
type Unread = BTreeMap<String, String>;

/// The last failure of an act or a list, and the time until it is tried again.
struct Failure {
    text: String,
    backoff: Backoff,
    until: Instant,
}

impl Failure {
    /// Returns it without a failure.
    fn none() -> Self {
        Self { text: String::new(), backoff: Backoff::default(), until: Instant::now() }
    }

    /// Counts a failure. Returns whether it is another one than the last.
    fn count(&mut self, text: &str) -> bool {
        self.until = Instant::now() + self.backoff.next_delay(PAUSES);
        let is_new = !is_alike(&self.text, text);
        text.clone_into(&mut self.text);
        is_new
    }

    fn waits(&self) -> bool {
        Instant::now() < self.until
    }
}

/// The end of an act.
struct Ended {
    about: About,
    namespace: Option<String>,
    /// The sentence about its failure.
    sentence: String,
    result: Result<(), ApplyError>,
}

/// The state after a round.
enum Pace {
    /// A Job runs, or something was done or is under way.
    Busy,
    /// A node is in its attempt, or something is to be taken back or tried again.
    Resting,
    /// Nothing changes but by a change of a node or of the policy.
    Idle,
}

/// Runs the Jobs of hooks.
pub struct HookJobs {
    applier: Applier,
    /// Those that policy names, or has named before all was taken back there: a hook that it drops takes back what it has prepared.
    namespaces: BTreeSet<String>,
    /// Those that the Lease records; `None` before the first read.
    recorded: Option<BTreeSet<String>>,
    unrecorded: LoggedFailures,
    /// True unless the last list of Jobs had none that is to be taken back.
    open: bool,
    /// By namespace.
    unread: BTreeMap<String, Unread>,
    /// Those of acts.
    failures: BTreeMap<About, Failure>,
    /// The namespaces whose Jobs are not known.
    unlisted: BTreeMap<String, Failure>,
    /// Those in which a call had no answer, as behind a webhook that hangs: each of hundreds of others would last until its time limit. `None`
    /// is for answers.
    unanswered: BTreeMap<Option<String>, Failure>,
    acting: JoinSet<Ended>,
    /// The acts of `acting`, with the namespaces whose Jobs they write.
    under_way: BTreeMap<About, Option<String>>,
    /// The texts about Jobs that did not go on in the last round. No act waits for them.
    shown: BTreeMap<About, String>,
    awaited: Awaited,
}

impl HookJobs {
    /// Returns it without any Job known.
    pub fn new(applier: Applier, awaited: Awaited) -> Self {
        Self {
            applier,
            namespaces: BTreeSet::new(),
            recorded: None,
            unrecorded: LoggedFailures::default(),
            open: true,
            unread: BTreeMap::new(),
            failures: BTreeMap::new(),
            unlisted: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            acting: JoinSet::new(),
            under_way: BTreeMap::new(),
            shown: BTreeMap::new(),
            awaited,
        }
    }

    /// Runs for as long as it is polled, once the caches are read.
    pub async fn run(mut self, reading: Reading) {
        let mut changes = self.applier.caches.changed.subscribe();
        reading.wait(changes.clone()).await;
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let pace = self.round().await;
            // A list of thousands of Jobs is followed by as long a pause.
            sleep(began.elapsed().clamp(PERIOD, REST)).await;
            let ended = match pace {
                Pace::Busy => false,
                Pace::Resting => matches!(timeout(REST, changes.changed()).await, Ok(Err(_))),
                Pace::Idle => changes.changed().await.is_err(),
            };
            if ended {
                return;
            }
        }
    }

    /// Does what is to be done now.
    async fn round(&mut self) -> Pace {
        let operator = self.applier.caches.operator.get(OPERATOR_NAME);
        let mut jobs = Policy::in_force(operator.as_ref()).hooks;
        jobs.retain(|hook| hook.job.is_some());
        let is_asked = |node: &NodeFacts| {
            node.hook_request.is_some() || jobs.iter().any(|hook| node.hook_answers.contains_key(&hook.name))
        };
        let nodes = self.applier.caches.nodes.select(is_asked);
        let named = jobs.iter().filter_map(|hook| Some(hook.job.as_ref()?.namespace.clone())).collect();
        self.follow(named, nodes.is_empty());
        if let Err(error) = self.record().await {
            // A conflict with a renewal of the Lease, or another replica leads.
            if !error.is_lasting() {
                return Pace::Busy;
            }
            let reason = error.text();
            if self.unrecorded.is_news(&reason, Instant::now()) {
                tracing::warn!(reason, "the namespaces of Jobs of hooks cannot be recorded, retrying");
            }
            return Pace::Resting;
        }
        if self.namespaces.is_empty() || (nodes.is_empty() && !self.open) {
            self.failures.clear();
            self.shown.clear();
            return Pace::Idle;
        }
        while let Some(Ok(ended)) = self.acting.try_join_next() {
            self.end(ended);
        }
        // The list may not show yet what these lead to.
        let under_way: BTreeSet<About> = self.under_way.keys().cloned().collect();
        let runs = self.list().await;
        // Also with the answers of hooks that policy has dropped.
        let of_runs: BTreeSet<&str> = runs.iter().map(|run| run.node.as_str()).collect();
        let is_answered = |node: &NodeFacts| !node.hook_answers.is_empty() && of_runs.contains(node.name.as_str());
        let nodes = nodes.into_iter().chain(self.applier.caches.nodes.select(is_answered));
        let nodes: BTreeMap<String, NodeFacts> = nodes.map(|node| (node.name.clone(), node)).collect();
        let mut unlisted = Vec::new();
        for hook in &jobs {
            let failure = hook.job.as_ref().and_then(|job| self.unlisted.get(&job.namespace));
            let Some(cause) = failure.map(|failure| failure.text.clone()) else { continue };
            let sentence = format!("{}, retrying", not_run(&hook.name));
            let stall = Stall { sentence, cause, warning: true, failed: None };
            let asked = nodes.values().filter(|node| node.hook_request.is_some());
            unlisted.extend(asked.map(|node| ((hook.name.clone(), node.name.clone()), stall.clone())));
        }
        jobs.retain(|hook| hook.job.as_ref().is_some_and(|job| !self.unlisted.contains_key(&job.namespace)));
        let (mut acts, mut stalls) = self.decide(&jobs, &nodes, &runs);
        stalls.extend(unlisted);
        self.open = !self.unlisted.is_empty()
            || !under_way.is_empty()
            || self.unread.values().any(|unread| !unread.is_empty())
            || runs.iter().any(|run| run.open);
        let wanted: BTreeSet<About> = acts.iter().map(Act::about).collect();
        self.failures.retain(|about, _| wanted.contains(about));
        acts.retain(|act| !under_way.contains(&act.about()));
        let acted = self.carry_out(&mut acts).await;
        for act in acts {
            let Some(cause) = self.unanswered.get(&act.namespace().map(str::to_owned)) else { continue };
            let (sentence, cause) = (format!("{}, retrying", act.failure()), cause.text.clone());
            let stall = Stall { sentence, cause, warning: true, failed: None };
            if !self.failures.contains_key(&act.about()) {
                stalls.entry(act.about()).or_insert(stall);
            }
        }
        self.show_stalls(stalls).await;
        let busy = acted || !self.under_way.is_empty() || runs.iter().any(|run| run.state == State::Running);
        if busy { Pace::Busy } else { Pace::Resting }
    }

    /// Follows the namespaces that policy names; others for as long as something may have to be taken back there.
    fn follow(&mut self, named: BTreeSet<String>, nothing_asked: bool) {
        // A namespace that is new to this leader may have Jobs of an earlier time.
        self.open |= !named.is_subset(&self.namespaces);
        if nothing_asked && !self.open {
            self.namespaces.clear();
        }
        self.namespaces.extend(named);
    }

    /// Has the Lease record the namespaces before a Job is created in them, beside those of the leaders before, which are read first.
    async fn record(&mut self) -> Result<(), ApplyError> {
        if self.recorded.as_ref() == Some(&self.namespaces) {
            return Ok(());
        }
        let leases: Api<Lease> = Api::namespaced(self.applier.client.clone(), &self.applier.namespace);
        let failed = || ApplyError::api("hook_job_namespaces");
        let mut lease = leases.get(CONTROLLER).await.map_err(failed())?;
        let known = recorded(&lease);
        if self.recorded.is_none() {
            self.namespaces.extend(known.iter().cloned());
        }
        if known != self.namespaces {
            record(&mut lease, &self.namespaces);
            self.applier.leadership.check()?;
            leases.replace(CONTROLLER, &PostParams::default(), &lease).await.map_err(failed())?;
        }
        self.recorded = Some(self.namespaces.clone());
        Ok(())
    }

    /// Carries out acts side by side, for as long as the time between two rounds; those that take longer go on meanwhile. Leaves those that have to
    /// wait. Returns whether anything may have changed.
    async fn carry_out(&mut self, acts: &mut Vec<Act>) -> bool {
        let (until, mut acted) = (Instant::now() + PERIOD, false);
        // Where one is tried at a time, no act that fails each time keeps the others from being that one.
        acts.sort_by_cached_key(|act| self.failures.get(&act.about()).map_or(0, |failure| failure.backoff.failures()));
        loop {
            acts.retain(|act| !self.begin(act));
            match timeout_at(until, self.acting.join_next()).await {
                Ok(Some(Ok(ended))) => acted |= self.end(ended),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return acted,
            }
        }
    }

    /// Begins an act, unless it has to wait: for another try, also of others in its namespace, or for those under way.
    fn begin(&mut self, act: &Act) -> bool {
        let (about, namespace) = (act.about(), act.namespace().map(str::to_owned));
        let failures = [self.failures.get(&about), self.unanswered.get(&namespace)];
        let most = if self.unanswered.contains_key(&namespace) { 1 } else { AT_A_TIME };
        let beside: Vec<&About> =
            self.under_way.iter().filter(|(_, of)| **of == namespace).map(|(about, _)| about).collect();
        // The second one of two answers on a Node would be written at an outdated version.
        let meets = namespace.is_none() && beside.iter().any(|(_, node)| *node == about.1);
        if meets || beside.len() >= most || failures.into_iter().flatten().any(Failure::waits) {
            return false;
        }
        // A Job that is created is open from then on.
        self.open = true;
        self.under_way.insert(about.clone(), namespace.clone());
        let (applier, act) = (self.applier.clone(), act.clone());
        self.acting.spawn(async move {
            let result = carry_out(&applier, &act).await;
            Ended { about, namespace, sentence: act.failure(), result }
        });
        true
    }

    /// Records the end of an act. Returns whether anything may have changed by it.
    fn end(&mut self, Ended { about, namespace, sentence, result }: Ended) -> bool {
        self.under_way.remove(&about);
        match result.as_ref().err().filter(|error| error.is_unknown()) {
            None => drop(self.unanswered.remove(&namespace)),
            Some(error) => {
                let failure = self.unanswered.entry(namespace).or_insert_with(Failure::none);
                // Those that were under way beside the first one lengthen no pause.
                if !failure.waits() {
                    failure.count(&error.text());
                }
            }
        }
        match result {
            Ok(()) => {
                self.failures.remove(&about);
                true
            }
            // The Node has been written since, or another replica leads.
            Err(ApplyError::Lost(_) | ApplyError::Changed(_)) => true,
            Err(error) if error.code() == Some(409) => true,
            Err(error) => {
                self.failed(&about, &sentence, &error.text());
                false
            }
        }
    }

    fn decide(
        &self,
        hooks: &[Hook],
        nodes: &BTreeMap<String, NodeFacts>,
        runs: &[Run],
    ) -> (Vec<Act>, BTreeMap<About, Stall>) {
        let caches = &self.applier.caches;
        let named: BTreeSet<&String> = runs.iter().map(|run| &run.node).collect();
        let attempts: BTreeMap<String, Progress> = caches.shadows.read(|shadows| {
            let of = |node: &String| Some((node.clone(), shadows.get(node)?.status.controller.progress.clone()?));
            nodes.keys().chain(named.iter().copied()).filter_map(of).collect()
        });
        let slots = caches.operator.read(|all| all.get(OPERATOR_NAME).map(|operator| operator.status.slots.clone()));
        let gone: BTreeSet<String> =
            named.into_iter().filter(|node| caches.nodes.get(node).is_none()).cloned().collect();
        decide(&Snapshot {
            hooks,
            nodes,
            unknown: &self.unknown(),
            attempts: &attempts,
            waits: &self.awaited.facts(),
            slots: &slots.unwrap_or_default(),
            gone: &gone,
            runs,
            now: self.applier.leadership.now(),
        })
    }

    /// Returns the nodes that cannot be read, those whose attempts cannot, and those of Jobs that cannot.
    fn unknown(&self) -> BTreeSet<String> {
        let caches = &self.applier.caches;
        let nodes = caches.nodes.unreadable().into_keys().chain(caches.shadows.unreadable().into_keys());
        nodes.chain(self.unread.values().flat_map(BTreeMap::values).cloned()).collect()
    }

    /// Returns the Jobs of hooks. Namespaces where they are not known are named by `unlisted`.
    async fn list(&mut self) -> Vec<Run> {
        let mut runs = Vec::new();
        for namespace in self.namespaces.clone() {
            if self.unlisted.get(&namespace).is_some_and(Failure::waits) {
                continue;
            }
            match self.list_in(&namespace).await {
                Ok((found, unread)) => {
                    self.unlisted.remove(&namespace);
                    runs.extend(found);
                    let known = self.unread.insert(namespace.clone(), unread.clone()).unwrap_or_default();
                    for (job, node) in unread.iter().filter(|(job, _)| !known.contains_key(*job)) {
                        tracing::warn!(namespace, job, node, "Job of hook cannot be read, its node is left alone");
                    }
                }
                Err(error) => {
                    let text = error.text();
                    if self.unlisted.entry(namespace.clone()).or_insert_with(Failure::none).count(&text) {
                        tracing::warn!(namespace, reason = text, "the Jobs of hooks cannot be listed, retrying");
                    }
                }
            }
        }
        runs
    }

    async fn list_in(&self, namespace: &str) -> Result<(Vec<Run>, Unread), ApplyError> {
        let api: Api<DeserializeGuard<Job>> = Api::namespaced(self.applier.client.clone(), namespace);
        let mut params = ListParams::default().labels(HOOK_LABEL).limit(PAGE);
        let (mut runs, mut unread) = (Vec::new(), Unread::new());
        loop {
            let page = api.list(&params).await.map_err(ApplyError::api("hook_jobs"))?;
            for found in &page.items {
                match found.0.as_ref().ok().and_then(run) {
                    Some(run) => runs.push(run),
                    None => unread.extend(node(&found.0).map(|node| (found.name_any(), node))),
                }
            }
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok((runs, unread)),
            }
        }
    }

    /// Records the failure of an act, and shows it if it is a new one.
    fn failed(&mut self, about: &About, sentence: &str, error: &str) {
        let sentence = format!("{sentence}, retrying");
        let message = format!("{sentence}: {error}");
        if self.failures.entry(about.clone()).or_insert_with(Failure::none).count(&message) {
            self.show(about, &sentence, error, true);
        }
    }

    /// Shows what keeps Jobs from going on, once for as long as it does.
    async fn show_stalls(&mut self, stalls: BTreeMap<About, Stall>) {
        let before = std::mem::take(&mut self.shown);
        for (about, Stall { sentence, mut cause, warning, failed }) in stalls {
            let text = format!("{sentence}: {cause}");
            if before.get(&about).is_none_or(|shown| !is_alike(shown, &text)) {
                if let Some(run) = &failed {
                    cause = format!("{cause}: {}", why_failed(&self.applier, run).await);
                }
                self.show(&about, &sentence, &cause, warning);
            }
            self.shown.insert(about, text);
        }
    }

    /// Shows a text in the log and by an Event on the Node, as one about a failure if it is a `warning`.
    fn show(&self, about: &About, sentence: &str, cause: &str, warning: bool) {
        let (hook, node) = about;
        if warning {
            tracing::warn!(node, hook, reason = cause, "{sentence}");
        } else {
            tracing::info!(node, hook, reason = cause, "{sentence}");
        }
        if let Some(facts) = self.applier.caches.nodes.get(node) {
            let (reason, message) = (if warning { FAILED } else { AWAITING }, format!("{sentence}: {cause}"));
            self.applier.notify(&facts, Note { warning, reason, message });
        }
    }
}

#[cfg(test)]
mod tests;
