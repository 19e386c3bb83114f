//! `kubectl brupop install`: applies the same objects as the manifests, in their order, and waits until they run.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use deploy::{Component, Options};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, DeploymentCondition, DeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Client;
use kube::api::{Patch, PatchParams};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use planner::view::{NodeFacts, Projection as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::advice::{labelling, some};
use crate::call::{self, call, code, get, if_there, or_waiting};
use crate::page::{print_line, progress};
use crate::preflight::{KUBECTL, check_registry, check_tag, deployments, preflight};
use crate::shell::for_cluster;
use crate::uninstall::{api, check_namespace};

/// Time until the API server serves a definition that it has accepted.
const ESTABLISHED: Duration = Duration::from_secs(60);

/// Pause between two looks at what is waited for.
const PAUSE: Duration = Duration::from_secs(1);

/// Time for which the conditions of a Deployment may be those of the version before.
const EARLY: Duration = Duration::from_secs(10);

/// Time for agents once all else runs: one node that is down would take all of the limit.
const AGENTS: Duration = Duration::from_secs(30);

/// The reason of the condition of a Deployment that Kubernetes gives up.
const GIVEN_UP: &str = "ProgressDeadlineExceeded";

/// The type of the condition of a Deployment whose pods the API server refuses to create, as for a quota or an admission check.
const REFUSED: &str = "ReplicaFailure";

/// Nodes that are not Ready hold up the agents: their names follow.
const HELD_UP: &str =
    "Kubernetes replaces no further agent until these nodes, which are not Ready, are back or deleted";

/// The command that finds out why the operator does not run.
const DOCTOR: &str = "kubectl brupop doctor";

#[derive(Debug, Args)]
pub(crate) struct InstallOptions {
    /// Registry and path in front of the images' names, such as registry.example/brupop. Default: bare names, for nodes
    /// that have the images.
    #[arg(long)]
    registry: Option<String>,
    /// Tag of all images. Default: the version of this plugin. One of another version is refused.
    #[arg(long)]
    tag: Option<String>,
    /// Install with a policy that enables updates (`spec.enabled: true`); by default none starts. A policy that exists stays
    /// as it is.
    #[arg(long)]
    enable: bool,
    /// List what would be applied, and apply nothing.
    #[arg(long)]
    dry_run: bool,
    /// Time to wait until the pods of the controller and the web API are of this version and run. The agents have 30s after that, within
    /// this time; those that do not run are shown, and are no failure. 0s does not wait.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    timeout: models::duration::Duration,
}

fn is_policy(object: &Value) -> bool {
    object["kind"] == "BottlerocketUpdateOperator"
}

pub(crate) fn is_definition(object: &Value) -> bool {
    object["kind"] == "CustomResourceDefinition"
}

fn objects(options: &InstallOptions) -> anyhow::Result<Vec<Value>> {
    let mut chosen = Options { registry: options.registry.clone(), ..Options::default() };
    if let Some(tag) = &options.tag {
        chosen.tag.clone_from(tag);
    }
    let mut objects = deploy::objects(&chosen)?;
    if options.enable {
        for policy in objects.iter_mut().filter(|object| is_policy(object)) {
            policy["spec"]["enabled"] = json!(true);
        }
    }
    Ok(objects)
}

/// Applies an object, as `kubectl apply --server-side` does.
async fn apply(client: &Client, object: &Value) -> anyhow::Result<()> {
    let id = deploy::yaml::id(object);
    let (api, _, name) = api(client, object)?;
    let params = PatchParams::apply(KUBECTL);
    let answer = call(&format!("apply {id}"), api.patch(&name, &params, &Patch::Apply(object))).await;
    match answer {
        Err(error) if code(&error) == Some(409) => Err(error.context(format!(
            "{id} has fields that another field manager applies: install with that tool, or have it give them up. What was \
             applied before stays; run the command again then"
        ))),
        answer => answer.map(drop),
    }
}

/// Waits until the API server serves a definition.
async fn established(client: &Client, object: &Value) -> anyhow::Result<()> {
    let (api, _, name) = api(client, object)?;
    let deadline = Instant::now() + ESTABLISHED;
    loop {
        let mut unanswered = String::new();
        let found = call(&format!("get customresourcedefinition {name}"), api.get(&name)).await;
        let found = or_waiting(found.map(Some), |error| {
            unanswered = format!(" ({error:#})");
            None
        })?;
        let conditions = found.and_then(|found| found.data["status"]["conditions"].as_array().cloned());
        let conditions = conditions.unwrap_or_default();
        if conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "the API server is not known to serve {name} after {} s{unanswered}: {}",
                ESTABLISHED.as_secs(),
                for_cluster(&format!("kubectl describe crd {name}"))
            );
        }
        sleep(PAUSE).await;
    }
}

/// A Deployment or DaemonSet that does not exist.
const NOT_THERE: &str = "it does not exist";

/// The change of a workload that its controller has not seen yet.
const NOT_OBSERVED: &str = "the change is not observed yet";

/// The state of a workload after its application.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    /// All pods are of the version that was applied, and run.
    Complete,
    /// The reason why it is not complete.
    Waits(String),
    /// Kubernetes has waited for long enough, with its message.
    Failed(String),
}

impl Rollout {
    /// Returns the reason why it is not complete.
    pub(crate) fn reason(self) -> Option<String> {
        match self {
            Self::Complete => None,
            Self::Waits(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// Returns the conditions of a Deployment with which Kubernetes gives it up.
fn given_up(status: Option<&DeploymentStatus>) -> impl Iterator<Item = &DeploymentCondition> {
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.filter(|condition| condition.reason.as_deref() == Some(GIVEN_UP))
}

/// Returns the state of a Deployment by the rules of `kubectl rollout status`: while pods of a new version hang, those of an
/// earlier one stay available. The reason has the answer of the API server where that refuses to create pods.
pub(crate) fn rollout(found: &Deployment) -> Rollout {
    let status = found.status.clone().unwrap_or_default();
    if status.observed_generation < found.metadata.generation {
        return Rollout::Waits(NOT_OBSERVED.to_owned());
    }
    let mut conditions = status.conditions.iter().flatten();
    let holds = |condition: &&DeploymentCondition| condition.status.as_deref() == Some("True");
    let refused = conditions.find(|condition| condition.type_.as_deref() == Some(REFUSED) && holds(condition));
    let answer = refused.and_then(|condition| condition.message.as_ref());
    let refused = answer.map_or_else(String::new, |answer| format!(": {answer}"));
    if let Some(failed) = given_up(Some(&status)).next() {
        let message = failed.message.as_deref().unwrap_or_default().trim_end_matches('.');
        return Rollout::Failed(format!("{message}{refused}"));
    }
    let wanted = found.spec.replicas.unwrap_or(1);
    let all = status.replicas.unwrap_or(0);
    let updated = status.updated_replicas.unwrap_or(0);
    let available = status.available_replicas.unwrap_or(0);
    if updated < wanted {
        Rollout::Waits(format!("{updated} of {wanted} pods updated{refused}"))
    } else if all > updated {
        Rollout::Waits(format!("{} pods of an earlier version left{refused}", all - updated))
    } else if available < updated {
        Rollout::Waits(format!("{available} of {updated} pods available{refused}"))
    } else {
        Rollout::Complete
    }
}

struct Before {
    time: Timestamp,
    /// The generations of the Deployments; `None` of one that did not exist.
    generations: Vec<Option<i64>>,
}

impl Before {
    /// Returns whether a Deployment was given up since. Where the application changes nothing, the condition of an earlier failure stays
    /// until a pod has changed, although its cause may be mended.
    fn is_given_up_since(&self, generation: Option<i64>, found: Option<&Deployment>) -> bool {
        let Some(found) = found else { return false };
        let is_later = |time: &Time| time.0 > self.time;
        given_up(found.status.as_ref()).any(|condition| {
            found.metadata.generation != generation || condition.last_update_time.as_ref().is_some_and(is_later)
        })
    }
}

/// Returns the Deployments that do not run in the applied version yet, each as a sentence. Unless `early`, one that was given up since
/// is an error: after a return to an earlier version, the failure of the later one is shown until a pod has changed.
async fn not_running(client: &Client, before: &Before, early: bool) -> anyhow::Result<Vec<String>> {
    let mut waiting = Vec::new();
    for ((name, found), generation) in deployments(client).await?.into_iter().zip(&before.generations) {
        match found.as_ref().map_or_else(|| Rollout::Waits(NOT_THERE.to_owned()), rollout) {
            Rollout::Complete => {}
            Rollout::Failed(reason) if !early && before.is_given_up_since(*generation, found.as_ref()) => {
                bail!(
                    "everything is applied, and does not run: Deployment {name}: {reason}. {} finds out why",
                    for_cluster(DOCTOR)
                );
            }
            Rollout::Waits(reason) | Rollout::Failed(reason) => waiting.push(format!("Deployment {name}: {reason}")),
        }
    }
    Ok(waiting)
}

/// Returns the number of nodes that the agent is to run on, and how far it is behind.
pub(crate) fn agents_of(found: &DaemonSet) -> (i32, Option<String>) {
    let status = found.status.clone().unwrap_or_default();
    let nodes = status.desired_number_scheduled;
    if status.observed_generation < found.metadata.generation {
        return (nodes, Some(NOT_OBSERVED.to_owned()));
    }
    let (updated, ready) = (status.updated_number_scheduled.unwrap_or(0), status.number_ready);
    let complete = updated >= nodes && ready >= nodes;
    (nodes, (!complete).then(|| format!("of {nodes} nodes, updated on {updated}, Ready on {ready}")))
}

/// The same of the DaemonSet in the cluster, with the second as a sentence.
async fn agents(client: &Client) -> anyhow::Result<(i32, Option<String>)> {
    let found: Option<DaemonSet> = get(client, names::AGENT_NAMESPACE, Component::Agent.name()).await?;
    let (nodes, behind) = found.as_ref().map_or_else(|| (0, Some(NOT_THERE.to_owned())), agents_of);
    Ok((nodes, behind.map(|reason| format!("DaemonSet {}: {reason}", Component::Agent.name()))))
}

/// Returns whether so many nodes that are not Ready keep Kubernetes from replacing the agents of other nodes.
pub(crate) fn holds_up_agents(found: &DaemonSet, away: usize) -> bool {
    let Some(status) = &found.status else { return false };
    let nodes = usize::try_from(status.desired_number_scheduled).unwrap_or(0);
    let update = found.spec.update_strategy.as_ref().and_then(|update| update.rolling_update.as_ref());
    let most = match update.and_then(|update| update.max_unavailable.as_ref()) {
        Some(IntOrString::Int(count)) => usize::try_from(*count).ok(),
        Some(IntOrString::String(share)) => {
            let share = share.strip_suffix('%').and_then(|share| share.parse::<usize>().ok());
            share.map(|share| (nodes * share).div_ceil(100))
        }
        None => None,
    };
    status.updated_number_scheduled.unwrap_or(0) < status.desired_number_scheduled && away >= most.unwrap_or(1).max(1)
}

/// Returns the nodes that do so.
async fn nodes_before_agents(client: &Client) -> anyhow::Result<Vec<String>> {
    let found: Option<DaemonSet> = get(client, names::AGENT_NAMESPACE, Component::Agent.name()).await?;
    let nodes = call::nodes(client).await?;
    let away = nodes.iter().filter_map(NodeFacts::project).filter(|node| node.labelled && !node.ready);
    let away: Vec<String> = away.map(|node| node.name).collect();
    Ok(if found.is_some_and(|found| holds_up_agents(&found, away.len())) { away } else { Vec::new() })
}

/// Returns the time until which agents are waited for where everything else has run since a time.
fn agents_until(others_run: Duration, limit: Duration) -> Duration {
    limit.min(others_run.saturating_add(AGENTS))
}

/// Waits until everything runs in the applied version. Agents alone are no failure: one node that is down would be one.
async fn running(client: &Client, options: &InstallOptions, before: &Before) -> anyhow::Result<()> {
    let (began, limit) = (Instant::now(), options.timeout.0);
    let (mut shown, mut others_run) = (began, None);
    while !limit.is_zero() {
        let unknown = |error: &anyhow::Error| format!("the state is not known ({error:#})");
        let waiting = not_running(client, before, began.elapsed() < EARLY).await;
        let mut waiting = or_waiting(waiting, |error| vec![unknown(error)])?;
        others_run = if waiting.is_empty() { others_run.or_else(|| Some(began.elapsed())) } else { None };
        let behind = agents(client).await.map(|(_, behind)| behind);
        waiting.extend(or_waiting(behind, |error| Some(unknown(error)))?);
        if waiting.is_empty() || others_run.is_some_and(|since| began.elapsed() >= agents_until(since, limit)) {
            break;
        }
        if began.elapsed() >= limit {
            bail!(
                "everything is applied, and after {} this is still so: {}. {} finds out why",
                options.timeout,
                waiting.join("; "),
                for_cluster(DOCTOR)
            );
        }
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            progress(format_args!("waiting: {}", waiting.join("; ")));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns true if the operator's resource is there and starts no update.
async fn disabled(client: &Client) -> anyhow::Result<bool> {
    let found: Option<BottlerocketUpdateOperator> = get(client, names::SYSTEM_NAMESPACE, names::OPERATOR_NAME).await?;
    Ok(found.is_some_and(|operator| operator.spec.enabled == Some(false)))
}

/// Returns the line about a policy that exists: an installation leaves it as it is.
async fn kept(client: &Client, object: &Value) -> anyhow::Result<Option<String>> {
    if !is_policy(object) {
        return Ok(None);
    }
    let (id, (api, _, name)) = (deploy::yaml::id(object), api(client, object)?);
    let found = if_there(call(&format!("get {id}"), api.get_metadata(&name)).await)?;
    Ok(found.map(|_| format!("{id} exists and stays as it is")))
}

/// Returns the lines of a dry run.
async fn listed(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for object in objects {
        let kept = kept(client, object).await?;
        lines.push(kept.unwrap_or_else(|| format!("{} (dry run)", deploy::yaml::id(object))));
    }
    Ok(lines)
}

pub(crate) async fn install(client: Client, namespace: &str, options: &InstallOptions) -> anyhow::Result<()> {
    check_namespace(namespace)?;
    options.tag.as_deref().map_or(Ok(()), check_tag)?;
    let objects = objects(options)?;
    let deployed = deployments(&client).await?;
    check_registry(&deployed, options.registry.as_deref())?;
    preflight(client.clone(), namespace).await?;
    if options.dry_run {
        listed(&client, &objects).await?.iter().for_each(print_line);
        return Ok(());
    }
    let generations = deployed.into_iter().map(|(_, found)| found?.metadata.generation).collect();
    let before = Before { time: crate::clock::now(), generations };
    for object in &objects {
        let id = deploy::yaml::id(object);
        if is_policy(object) {
            // The definitions come first. The schema of the API server is known to it at once, and to others a moment later.
            for definition in objects.iter().filter(|object| is_definition(object)) {
                established(&client, definition).await?;
            }
        }
        if let Some(kept) = kept(&client, object).await? {
            print_line(kept);
            continue;
        }
        apply(&client, object).await?;
        print_line(format_args!("{id} applied"));
    }
    running(&client, options, &before).await?;
    let status = for_cluster("kubectl brupop status");
    match or_waiting(agents(&client).await.map(Some), |_| None).context("everything is applied")? {
        None => print_line(format_args!(
            "The operator is installed. Whether its agents run is not known, since the API server has not answered: {status}"
        )),
        Some((_, Some(behind))) => {
            print_line(format_args!(
                "The operator is installed, and its agents do not run everywhere yet ({behind}): {status}"
            ));
            // A user who may not read nodes has the line above.
            let away = nodes_before_agents(&client).await.unwrap_or_default();
            if !away.is_empty() {
                print_line(format_args!("{HELD_UP}: {}", some(&away, 3)));
            }
        }
        Some((0, None)) => print_line(format_args!(
            "The operator is installed. No node is under it yet: {}",
            for_cluster(&labelling("NODE"))
        )),
        Some((nodes, None)) => print_line(format_args!("The operator is installed, on {nodes} nodes: {status}")),
    }
    match or_waiting(disabled(&client).await.map(Some), |_| None).context("everything is applied")? {
        None => print_line(format_args!("Whether updates are enabled is not known: {status}")),
        Some(true) => {
            let resume = for_cluster("kubectl brupop resume");
            print_line(format_args!("No update starts before updates are enabled: {resume}"));
        }
        Some(false) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
