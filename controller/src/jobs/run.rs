//! The loop of the leader: lists the Jobs of hooks, decides, and carries out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch};
use kube::core::DeserializeGuard;
use models::backoff::{Backoff, Delays};
use models::names::{HOOK_LABEL, OPERATOR_NAME};
use models::plain::is_alike;
use planner::hooks;
use planner::plan::Note;
use planner::policy::{Hook, Policy};
use planner::view::NodeFacts;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::decide::{Act, NewRun, Run, Snapshot, decide};
use super::object::{KEPT, job, reason, run};
use crate::apply::{Applier, ApplyError, create_params, patch_params};
use crate::cache::Reading;

/// Time between two rounds.
const PERIOD: Duration = Duration::from_secs(2);

/// The first pause after a failed act, and the longest.
const PAUSES: Delays = (Duration::from_secs(2), Duration::from_secs(60));

/// Reason of the Event about a Job that cannot be run.
const FAILED: &str = "HookJobFailed";

/// A hook and a node.
type About = (String, String);

/// The last failure of an act, and the time until it is tried again.
struct Failure {
    text: String,
    backoff: Backoff,
    until: Instant,
}

/// Runs the Jobs of hooks.
pub struct HookJobs {
    applier: Applier,
    /// Those that policy names, or has named: a hook that it drops takes back what it has prepared.
    namespaces: BTreeSet<String>,
    /// True unless the last list of Jobs had none that is to be taken back.
    open: bool,
    failures: BTreeMap<About, Failure>,
}

impl HookJobs {
    /// Returns it without any Job known.
    pub fn new(applier: Applier) -> Self {
        Self { applier, namespaces: BTreeSet::new(), open: true, failures: BTreeMap::new() }
    }

    /// Runs for as long as it is polled, once the caches are read.
    pub async fn run(mut self, reading: Reading) {
        let mut changes = self.applier.caches.changed.subscribe();
        reading.wait(changes.clone()).await;
        loop {
            changes.mark_unchanged();
            let busy = self.round().await;
            sleep(PERIOD).await;
            // Without anything under way, nothing changes but by a change of a node or of the policy.
            if !busy && changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Does what is to be done now. Returns whether anything is under way.
    async fn round(&mut self) -> bool {
        let operator = self.applier.caches.operator.get(OPERATOR_NAME);
        let mut jobs = Policy::in_force(operator.as_ref()).hooks;
        jobs.retain(|hook| hook.job.is_some());
        self.namespaces.extend(jobs.iter().filter_map(|hook| Some(hook.job.as_ref()?.namespace.clone())));
        let is_asked = |node: &NodeFacts| {
            node.hook_request.is_some() || jobs.iter().any(|hook| node.hook_answers.contains_key(&hook.name))
        };
        let nodes = self.applier.caches.nodes.select(is_asked);
        if self.namespaces.is_empty() || (nodes.is_empty() && !self.open) {
            self.failures.clear();
            return false;
        }
        let nodes: BTreeMap<String, NodeFacts> = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        let (runs, unlisted) = self.list().await;
        let mut wanted = BTreeSet::new();
        for hook in &jobs {
            let namespace = hook.job.as_ref().map(|job| &job.namespace);
            let Some(error) = namespace.and_then(|namespace| unlisted.get(namespace)) else { continue };
            for node in nodes.values().filter(|node| node.hook_request.is_some()) {
                let about = (hook.name.clone(), node.name.clone());
                self.failed(&about, error);
                wanted.insert(about);
            }
        }
        jobs.retain(|hook| hook.job.as_ref().is_some_and(|job| !unlisted.contains_key(&job.namespace)));
        let acts = self.decide(&jobs, &nodes, &runs);
        self.open = !unlisted.is_empty() || runs.iter().any(|run| run.open);
        let acts: Vec<(About, Act)> = acts.into_iter().map(|act| (act.about(), act)).collect();
        wanted.extend(acts.iter().map(|(about, _)| about.clone()));
        self.failures.retain(|about, _| wanted.contains(about));
        for (about, act) in acts {
            if self.failures.get(&about).is_some_and(|failure| Instant::now() < failure.until) {
                continue;
            }
            // A Job that is created is open from then on.
            self.open = true;
            match self.act(&act).await {
                Ok(()) => drop(self.failures.remove(&about)),
                // The Node has been written since, or another replica leads.
                Err(ApplyError::Lost(_) | ApplyError::Changed(_)) => {}
                Err(error) if error.code() == Some(409) => {}
                Err(error) => self.failed(&about, &error.text()),
            }
        }
        true
    }

    fn decide(&self, hooks: &[Hook], nodes: &BTreeMap<String, NodeFacts>, runs: &[Run]) -> Vec<Act> {
        let caches = &self.applier.caches;
        let mut unknown: BTreeSet<String> = caches.nodes.unreadable().into_keys().collect();
        unknown.extend(nodes.values().filter(|node| !self.is_own(node)).map(|node| node.name.clone()));
        let named: BTreeSet<&String> = runs.iter().map(|run| &run.node).collect();
        let gone = named.into_iter().filter(|node| caches.nodes.get(node).is_none()).cloned().collect();
        let now = self.applier.leadership.now();
        decide(&Snapshot { hooks, nodes, unknown: &unknown, gone: &gone, runs, now })
    }

    /// Returns whether the request of a node, if there is one, is of the attempt in its shadow. The kubelet of a node can write another one.
    fn is_own(&self, node: &NodeFacts) -> bool {
        let Some(request) = &node.hook_request else { return true };
        let shadow = self.applier.caches.shadows.get(&node.name);
        let progress = shadow.and_then(|shadow| shadow.status.controller.progress);
        progress.is_some_and(|progress| hooks::is_of(request, &progress))
    }

    /// Returns the Jobs of hooks, and the namespaces where they are not known, with the reason.
    async fn list(&self) -> (Vec<Run>, BTreeMap<String, String>) {
        let (mut runs, mut unlisted) = (Vec::new(), BTreeMap::new());
        let of_hooks = ListParams::default().labels(HOOK_LABEL);
        for namespace in &self.namespaces {
            let api: Api<DeserializeGuard<Job>> = Api::namespaced(self.applier.client.clone(), namespace);
            match api.list(&of_hooks).await.map_err(ApplyError::api("hook_jobs")) {
                Ok(found) => runs.extend(found.items.iter().filter_map(|found| run(found.0.as_ref().ok()?))),
                Err(error) => {
                    unlisted.insert(namespace.clone(), error.text());
                }
            }
        }
        (runs, unlisted)
    }

    async fn act(&self, act: &Act) -> Result<(), ApplyError> {
        self.applier.leadership.check()?;
        match act {
            Act::Create(new) => self.create(new).await,
            Act::Answer { hook, node, request } => self.answer(node, hook, request.as_deref()).await,
            Act::Refuse { run, request } => {
                let text = format!("{request} Refused: {}", self.reason(run).await);
                self.answer(&run.node, &run.hook, Some(&text)).await
            }
            Act::Close(run) => self.close(run).await,
        }
    }

    async fn answer(&self, node: &str, hook: &str, answer: Option<&str>) -> Result<(), ApplyError> {
        self.applier.answer_hook(node, hook, answer).await?;
        tracing::info!(node, hook, answer, "hook answered by its Job");
        Ok(())
    }

    async fn create(&self, new: &NewRun) -> Result<(), ApplyError> {
        let client = &self.applier.client;
        // As they are stored: fields that this version does not know are part of the spec too.
        let kinds = [ApiResource::erase::<PodTemplate>(&()), ApiResource::erase::<Job>(&())];
        let [templates, jobs] =
            kinds.map(|kind| Api::<DynamicObject>::namespaced_with(client.clone(), &new.namespace, &kind));
        let template = templates.get(&new.template).await.map_err(ApplyError::api("pod_template"))?;
        let shadow = self.applier.caches.shadows.get(&new.node);
        let target = shadow.and_then(|shadow| shadow.spec.version).map(|version| version.to_string());
        let version = new.version.clone().or(target).unwrap_or_default();
        let object = serde_json::from_value(job(new, &version, &template.data["template"]));
        let object: DynamicObject =
            object.map_err(|error| ApplyError::api("hook_job")(kube::Error::SerdeError(error)))?;
        match jobs.create(&create_params(), &object).await {
            // An earlier leader, or a call without an answer, has created it.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created.map_err(ApplyError::api("hook_job"))?),
        }
        let (node, hook, job) = (&new.node, &new.hook, object.metadata.name);
        tracing::info!(node, hook, job, namespace = new.namespace, "Job of hook created");
        Ok(())
    }

    /// Has the Job deleted once its time is over.
    async fn close(&self, run: &Run) -> Result<(), ApplyError> {
        let api: Api<Job> = Api::namespaced(self.applier.client.clone(), &run.namespace);
        let patch = json!({
            "metadata": {"uid": run.uid, "resourceVersion": run.resource_version},
            "spec": {"ttlSecondsAfterFinished": KEPT},
        });
        api.patch(&run.name, &patch_params(), &Patch::Merge(patch)).await.map_err(ApplyError::api("hook_job"))?;
        tracing::info!(node = run.node, hook = run.hook, job = run.name, "preparation of hook taken back");
        Ok(())
    }

    /// Returns the reason why a Job has failed.
    async fn reason(&self, run: &Run) -> String {
        let api: Api<DeserializeGuard<Pod>> = Api::namespaced(self.applier.client.clone(), &run.namespace);
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", run.name));
        let found = api.list(&of_job).await.map(|found| found.items).unwrap_or_default();
        let pods: Vec<Pod> = found.into_iter().filter_map(|found| found.0.ok()).collect();
        reason(&run.message, &pods)
    }

    /// Records a failure, and shows it if it is a new one.
    fn failed(&mut self, about: &About, text: &str) {
        let (hook, node) = about;
        let new = || Failure { text: String::new(), backoff: Backoff::default(), until: Instant::now() };
        let failure = self.failures.entry(about.clone()).or_insert_with(new);
        failure.until = Instant::now() + failure.backoff.next_delay(PAUSES);
        if is_alike(&failure.text, text) {
            return;
        }
        failure.text = text.to_owned();
        tracing::warn!(node, hook, reason = text, "no Job can be run for a hook, retrying");
        if let Some(facts) = self.applier.caches.nodes.get(node) {
            let message = format!("no Job can be run for hook {hook}, retrying: {text}");
            self.applier.notify(&facts, Note { warning: true, reason: FAILED, message });
        }
    }
}
