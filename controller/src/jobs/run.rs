//! The loop of the leader: lists the Jobs of hooks, decides, and carries out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PostParams};
use kube::core::DeserializeGuard;
use models::backoff::{Backoff, Delays};
use models::names::{CONTROLLER, HOOK_LABEL, OPERATOR_NAME};
use models::plain::is_alike;
use models::shadow::Step;
use planner::hooks;
use planner::plan::Note;
use planner::policy::{Hook, Policy};
use planner::view::NodeFacts;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::decide::{Act, NewRun, Run, Snapshot, State, decide};
use super::namespaces::{record, recorded};
use super::object::{KEPT, job, reason, run};
use crate::apply::{Applier, ApplyError, create_params, patch_params};
use crate::cache::Reading;

/// Time between two rounds.
const PERIOD: Duration = Duration::from_secs(2);

/// The longest time between two rounds while something is to be taken back, or to be tried again.
const REST: Duration = Duration::from_secs(10);

/// Number of Jobs in one page of a list.
const PAGE: u32 = 500;

/// The first pause after a failed act, and the longest.
const PAUSES: Delays = (Duration::from_secs(2), Duration::from_secs(60));

/// Reason of the Event about a Job that cannot be run.
const FAILED: &str = "HookJobFailed";

/// A hook and a node.
type About = (String, String);

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

/// The state after a round.
enum Pace {
    /// A Job runs, or something was done.
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
    /// True unless the last list of Jobs had none that is to be taken back.
    open: bool,
    failures: BTreeMap<About, Failure>,
    /// The namespaces whose Jobs are not known.
    unlisted: BTreeMap<String, Failure>,
}

impl HookJobs {
    /// Returns it without any Job known.
    pub fn new(applier: Applier) -> Self {
        let (failures, unlisted) = (BTreeMap::new(), BTreeMap::new());
        Self { applier, namespaces: BTreeSet::new(), recorded: None, open: true, failures, unlisted }
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
            tracing::warn!(reason = error.text(), "the namespaces of Jobs of hooks cannot be recorded, retrying");
            return Pace::Resting;
        }
        if self.namespaces.is_empty() || (nodes.is_empty() && !self.open) {
            self.failures.clear();
            return Pace::Idle;
        }
        let nodes: BTreeMap<String, NodeFacts> = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        let runs = self.list().await;
        let unlisted: BTreeMap<String, String> =
            self.unlisted.iter().map(|(namespace, failure)| (namespace.clone(), failure.text.clone())).collect();
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
        wanted.extend(acts.iter().map(Act::about));
        self.failures.retain(|about, _| wanted.contains(about));
        let acted = self.carry_out(acts).await;
        let busy = acted || runs.iter().any(|run| run.state == State::Running);
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

    /// Returns whether anything may have changed by these acts.
    async fn carry_out(&mut self, acts: Vec<Act>) -> bool {
        let mut acted = false;
        // Where one call has no answer, as behind a webhook that hangs, each of hundreds of others would last until its time limit.
        let mut unanswered: BTreeSet<Option<String>> = BTreeSet::new();
        for act in acts {
            let (about, namespace) = (act.about(), act.namespace().map(str::to_owned));
            if self.failures.get(&about).is_some_and(Failure::waits) || unanswered.contains(&namespace) {
                continue;
            }
            // A Job that is created is open from then on.
            self.open = true;
            match self.act(&act).await {
                Ok(()) => {
                    self.failures.remove(&about);
                    acted = true;
                }
                // The Node has been written since, or another replica leads.
                Err(ApplyError::Lost(_) | ApplyError::Changed(_)) => acted = true,
                Err(error) if error.code() == Some(409) => acted = true,
                Err(error) => {
                    if error.is_unknown() {
                        unanswered.insert(namespace);
                    }
                    self.failed(&about, &error.text());
                }
            }
        }
        acted
    }

    fn decide(&self, hooks: &[Hook], nodes: &BTreeMap<String, NodeFacts>, runs: &[Run]) -> Vec<Act> {
        let caches = &self.applier.caches;
        let mut unknown: BTreeSet<String> = caches.nodes.unreadable().into_keys().collect();
        unknown.extend(nodes.values().filter(|node| !self.is_own(node)).map(|node| node.name.clone()));
        unknown.extend(runs.iter().filter(|run| self.goes_on(run)).map(|run| run.node.clone()));
        let named: BTreeSet<&String> = runs.iter().map(|run| &run.node).collect();
        let gone: BTreeSet<String> =
            named.into_iter().filter(|node| caches.nodes.get(node).is_none()).cloned().collect();
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

    /// Returns whether another client has removed the request of an attempt that goes on. The operator sets it again, and nothing is to be taken
    /// back before the attempt ends.
    fn goes_on(&self, run: &Run) -> bool {
        let (true, Some(request)) = (run.open, &run.request) else { return false };
        let node = self.applier.caches.nodes.get(&run.node);
        if node.is_none_or(|node| node.hook_request.is_some()) {
            return false;
        }
        let shadow = self.applier.caches.shadows.get(&run.node);
        let progress = shadow.and_then(|shadow| shadow.status.controller.progress);
        progress.is_some_and(|progress| progress.step != Step::Releasing && hooks::is_of(request, &progress))
    }

    /// Returns the Jobs of hooks. Namespaces where they are not known are named by `unlisted`.
    async fn list(&mut self) -> Vec<Run> {
        let mut runs = Vec::new();
        for namespace in self.namespaces.clone() {
            if self.unlisted.get(&namespace).is_some_and(Failure::waits) {
                continue;
            }
            match self.list_in(&namespace).await {
                Ok(found) => {
                    self.unlisted.remove(&namespace);
                    runs.extend(found);
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

    async fn list_in(&self, namespace: &str) -> Result<Vec<Run>, ApplyError> {
        let api: Api<DeserializeGuard<Job>> = Api::namespaced(self.applier.client.clone(), namespace);
        let mut params = ListParams::default().labels(HOOK_LABEL).limit(PAGE);
        let mut runs = Vec::new();
        loop {
            let page = api.list(&params).await.map_err(ApplyError::api("hook_jobs"))?;
            runs.extend(page.items.iter().filter_map(|found| run(found.0.as_ref().ok()?)));
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(runs),
            }
        }
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
        if !self.failures.entry(about.clone()).or_insert_with(Failure::none).count(text) {
            return;
        }
        tracing::warn!(node, hook, reason = text, "no Job can be run for a hook, retrying");
        if let Some(facts) = self.applier.caches.nodes.get(node) {
            let message = format!("no Job can be run for hook {hook}, retrying: {text}");
            self.applier.notify(&facts, Note { warning: true, reason: FAILED, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use models::names::{JOB_ATTEMPT_ANNOTATION, JOB_NODE_ANNOTATION, JOB_NUMBER_ANNOTATION, JOB_PHASE_ANNOTATION};
    use models::operator::BottlerocketUpdateOperator;
    use serde_json::Value;

    use super::*;

    /// The Lease, and the Jobs of hooks in the namespace `shop`.
    type Stored = Arc<Mutex<(Value, Vec<Value>)>>;

    fn leader(stored: &Stored) -> HookJobs {
        let stored = stored.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let stored = stored.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (lease, jobs) = &mut *stored.lock().unwrap();
                let answer = match (&parts.method, parts.uri.path()) {
                    (&Method::GET, "/apis/batch/v1/namespaces/shop/jobs") => {
                        json!({"apiVersion": "batch/v1", "kind": "JobList", "metadata": {}, "items": jobs.clone()})
                    }
                    (method, "/apis/coordination.k8s.io/v1/namespaces/brupop-system/leases/brupop-controller") => {
                        if *method == Method::PUT {
                            *lease = serde_json::from_slice(&body).unwrap();
                        }
                        lease.clone()
                    }
                    other => panic!("{other:?}"),
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        HookJobs::new(Applier::of_leader(Client::new(service, "default")))
    }

    fn known(stored: &Stored) -> Vec<String> {
        let lease: Lease = serde_json::from_value(stored.lock().unwrap().0.clone()).unwrap();
        recorded(&lease).into_iter().collect()
    }

    #[tokio::test]
    async fn later_leader_knows_the_namespace_of_a_hook_that_policy_has_dropped_until_all_is_taken_back_there() {
        let lease = json!({"metadata": {"name": CONTROLLER, "resourceVersion": "1", "annotations": {"other": "a"}}});
        let stored: Stored = Arc::new(Mutex::new((lease, Vec::new())));
        let mut first = leader(&stored);
        let job = json!({"namespace": "shop", "before": "set"});
        let operator: BottlerocketUpdateOperator = serde_json::from_value(json!({
            "metadata": {"name": OPERATOR_NAME, "uid": "1", "resourceVersion": "1"},
            "spec": {"hooks": [{"name": "ceph", "before": {"timeout": "1m"}, "job": job}]},
        }))
        .unwrap();
        first.applier.caches.operator.written(&operator);
        first.round().await;
        assert_eq!(known(&stored), ["shop"]);

        let annotations = json!({JOB_PHASE_ANNOTATION: "before", JOB_NODE_ANNOTATION: "a", JOB_ATTEMPT_ANNOTATION: "1/1",
            JOB_NUMBER_ANNOTATION: "0"});
        let meta = json!({"name": "ceph-1", "namespace": "shop", "uid": "1", "resourceVersion": "1",
            "labels": {HOOK_LABEL: "ceph"}, "annotations": annotations});
        stored.lock().unwrap().1.push(json!({"metadata": meta, "spec": {"template": {}}}));
        let mut second = leader(&stored);
        assert!(matches!(second.round().await, Pace::Busy), "the Job runs");
        assert_eq!(known(&stored), ["shop"]);
        stored.lock().unwrap().1.clear();
        assert!(matches!(second.round().await, Pace::Resting), "nothing is left");
        assert!(matches!(second.round().await, Pace::Idle));
        assert_eq!(known(&stored), Vec::<String>::new());
        assert_eq!(stored.lock().unwrap().0["metadata"]["annotations"], json!({"other": "a"}));
    }
}
