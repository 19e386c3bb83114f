//! `kubectl brupop uninstall`: ends updates in progress, releases all claims, and removes every object of the operator, but for what limits Jobs.
//!
//! Nothing is removed before every node is released: only the controller can make a host disarm, and a node that is
//! about to reboot has to be followed to its end.

mod kept;
mod objects;
mod remaining;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::error_boundary::InvalidObject;
use kube::{Client, ResourceExt as _};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use planner::view::{NodeFacts, Projection as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::kept::kept;
use self::objects::{GONE, PERIOD, answered, delete, find, made, remove};
pub(crate) use self::objects::{api, is_marked};
use self::remaining::{Left, Surroundings, needs_nodes, not_taken_back, prepared, unfinished};
use crate::advice::logs_of;
use crate::call::{self, call, check_nodes, code, get, get_metadata, get_one, if_there, list_guarded};
use crate::helm::Releases;
use crate::marks::Tool;
use crate::page::{confirm, print_line};
use crate::shell::for_cluster;

/// Kinds removed first, so that nothing is created again.
const WORKLOADS: [&str; 2] = ["DaemonSet", "Deployment"];

/// Kinds removed last, each with all that is in it, or of it.
pub(crate) const CONTAINERS: [&str; 2] = ["Namespace", "CustomResourceDefinition"];

/// Kinds that name the tool which has installed them. A namespace does so also where an earlier run has left it alone.
const OF_TOOLS: [&str; 3] = ["Deployment", "Namespace", "CustomResourceDefinition"];

/// Options of `uninstall`.
#[derive(Debug, Args)]
pub(crate) struct UninstallOptions {
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Time-out for the release of all nodes, e.g. 90s or 1h30m.
    #[arg(long, default_value = "1h")]
    timeout: models::duration::Duration,
    /// Continue after the timeout although nodes are not released, within seconds if no part of the operator runs that could
    /// release them, and after five minutes if none of them is Ready or in an update that may bring it back. Their claims are released all the same. An armed host boots into its new image at its next reboot, and host settings that a pin has changed stay changed.
    #[arg(long)]
    abandon: bool,
}

/// Returns an error for another namespace than that of the manifests, into which alone this plugin installs.
pub(crate) fn check_namespace(namespace: &str) -> anyhow::Result<()> {
    ensure!(
        namespace == names::SYSTEM_NAMESPACE,
        "kubectl brupop installs and removes the operator in {} alone, as the manifests do: --namespace (BRUPOP_NAMESPACE) is {namespace}, and an \
         operator there is installed and removed by other means, such as helm (docs/install.md)",
        names::SYSTEM_NAMESPACE
    );
    Ok(())
}

/// Returns an error where the operator is installed in another namespace: its roles, admission policies and agents have the same names there. The
/// account to which the controller's role is bound shows it, also where there is no operator's resource.
pub(crate) async fn check_elsewhere(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    let is_binding =
        |object: &&Value| object["kind"] == "ClusterRoleBinding" && object["metadata"]["name"] == names::CONTROLLER;
    for object in objects.iter().filter(is_binding) {
        let (api, resource, name) = api(client, object)?;
        let found = get_one(&api, &name).await?.filter(|found| is_marked(&found.metadata));
        let Some(found) = found else { continue };
        let namespace = found.data["subjects"][0]["namespace"].as_str().unwrap_or(names::SYSTEM_NAMESPACE);
        ensure!(
            namespace == names::SYSTEM_NAMESPACE,
            "the operator is installed in the namespace {namespace}, and its roles, admission policies and agents have the same names here: change or \
             uninstall it with the tool that has installed it, such as helm (docs/install.md). If nothing is left of it there: {}",
            for_cluster(&format!("kubectl delete {resource} {name}"))
        );
    }
    Ok(())
}

pub(crate) async fn uninstall(client: Client, namespace: &str, options: &UninstallOptions) -> anyhow::Result<()> {
    check_namespace(namespace)?;
    let objects = removable()?;
    check_elsewhere(&client, &objects).await?;
    if options.dry_run {
        return show(&client, &objects).await;
    }
    if !options.yes {
        confirm(
            "this removes the operator from the cluster: use --yes, or --dry-run to see what would be removed",
            &question(),
        )?;
    }
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    // Before anything is removed: who may not read nodes cannot release them.
    check_nodes(&client).await?;
    let right = format!("delete bottlerocketupdateoperators in {}", names::SYSTEM_NAMESPACE);
    let deleted = call(&right, operators.delete(names::OPERATOR_NAME, &DeleteParams::default())).await;
    if if_there(deleted)?.is_some() {
        print_line("deleted the operator's resource: nothing new starts");
    }
    released(&client, options).await?;
    let tools = answered(Instant::now() + GONE, async || tools(&client, &objects).await).await?;

    let (workloads, rest): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| is_one_of(object, &WORKLOADS));
    let (containers, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|object| is_one_of(object, &CONTAINERS));
    // Nothing is left that could claim or label a node when the nodes are swept.
    delete(&client, &workloads).await?;
    ended(&client).await?;
    sweep(&client).await?;
    remove(&client, &rest).await?;
    // A controller that was cut off from its kubelet, but not from the API server, may have left a last claim.
    sweep(&client).await?;
    let removed = remove_containers(&client, &containers).await;
    if removed.is_ok() {
        print_line("the operator is uninstalled");
    }
    // A second run does not find the definitions that name their release.
    for sentence in Releases::read(&client, &tools).await.left(&tools) {
        print_line(sentence);
    }
    kept(&client).await.into_iter().for_each(print_line);
    removed
}

/// Returns the objects that are removed: all but those that [`kept`] names.
fn removable() -> anyhow::Result<Vec<Value>> {
    let (mut objects, kept) = (deploy::everything()?, deploy::jobs());
    objects.retain(|object| !kept.contains(object));
    Ok(objects)
}

/// Removes namespaces and definitions, and what was made later. One dead node, whose pods keep their namespace, does not keep the Secrets.
async fn remove_containers(client: &Client, containers: &[Value]) -> anyhow::Result<()> {
    let contained = remove(client, containers).await;
    // A namespace that was made by other means is still there.
    let made = remove(client, &made()).await;
    contained.and(made)
}

/// Returns the question before anything is done. Secrets that users have created go too.
fn question() -> String {
    format!(
        "This ends all updates, releases every node and removes the operator with its records, the history of rollouts ({} keeps it) and its \
         Secrets, also those that you have created: {}, {} and a provided {}. Continue? [y/N]",
        for_cluster("kubectl brupop history --export FILE"),
        names::NOTICES_SECRET,
        names::PROMETHEUS_SECRET,
        names::SERVING_SECRET
    )
}

/// Prints what would be deleted; of what was made later, that of namespaces which stay.
async fn show(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    let (made, mut gone) = (made(), Vec::new());
    for object in objects.iter().rev().chain(made.iter().rev()) {
        if gone.contains(&&object["metadata"]["namespace"]) {
            continue;
        }
        if let Some(found) = find(client, object).await? {
            print_line(format_args!("would delete {}", found.id));
            if object["kind"] == "Namespace" {
                gone.push(&object["metadata"]["name"]);
            }
        }
    }
    kept(client).await.into_iter().for_each(print_line);
    Ok(())
}

/// Returns the tools that have installed the Deployments, the namespaces and the definitions. That of the shadows is left out: after a takeover
/// it may name a release of the earlier operator.
async fn tools(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<Tool>> {
    let mut tools = Vec::new();
    for object in objects.iter().filter(|object| is_one_of(object, &OF_TOOLS)) {
        let (api, _, name) = api(client, object)?;
        if name == names::SHADOW_DEFINITION {
            continue;
        }
        // A namespace may be of another release.
        let marked = get_metadata(&api, &name).await?.filter(is_marked);
        tools.extend(marked.iter().flat_map(Tool::all_of));
    }
    tools.sort();
    tools.dedup();
    Ok(tools)
}

pub(crate) fn is_one_of(object: &Value, kinds: &[&str]) -> bool {
    object["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
}

/// Waits until the controller has released every node.
async fn released(client: &Client, options: &UninstallOptions) -> anyhow::Result<()> {
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let deadline = Instant::now() + options.timeout.0;
    let (mut shown, mut before) = (Vec::new(), None);
    let mut needed_since: Option<Instant> = None;
    loop {
        let left = answered(deadline, async || unreleased(client, &shadows).await).await?;
        if left.is_empty() {
            return Ok(());
        }
        let around = answered(deadline, async || Surroundings::read(client).await).await?;
        let stuck = around.is_still_stuck(before.as_ref(), &left);
        // A node that was restarted, or lost its connection, may come back.
        needed_since = needs_nodes(&left).then(|| needed_since.unwrap_or_else(Instant::now));
        let passes = options.abandon && needed_since.is_some_and(|since| since.elapsed() >= GONE);
        let sentences: Vec<String> =
            left.iter().map(|left| left.sentence.clone()).chain(around.remarks(&left)).collect();
        if shown != sentences {
            for sentence in &sentences {
                print_line(format_args!("{}: {sentence}", if stuck { "left" } else { "waiting" }));
            }
            shown = sentences;
        }
        if stuck || passes || Instant::now() >= deadline {
            if options.abandon {
                print_line("continuing anyway");
                return Ok(());
            }
            let (since, advice) = if stuck {
                (
                    "what is left needs a part of the operator that does not run".to_owned(),
                    "Install the operator again and run this again, or use --abandon.".to_owned(),
                )
            } else {
                (
                    format!("after {} there is still something under way", options.timeout),
                    format!(
                        "Run it again to wait longer, see the logs of the controller ({}), or use --abandon.",
                        logs_of(names::SYSTEM_NAMESPACE, names::CONTROLLER)
                    ),
                )
            };
            bail!(
                "{since}, and nothing but the BottlerocketUpdateOperator was removed:\n  {}\n{advice}",
                shown.join("\n  ")
            );
        }
        before = Some(around);
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns what the controller and the hook for AWS have not released yet.
async fn unreleased(client: &Client, shadows: &Api<BottlerocketShadow>) -> anyhow::Result<Vec<Left>> {
    let nodes = call::nodes(client).await?;
    let now = crate::clock::now();
    let nodes: Vec<NodeFacts> = nodes.iter().filter_map(NodeFacts::project).map(|node| node.at(now)).collect();
    let (mut readable, mut left) = (Vec::new(), Vec::new());
    let listed = list_guarded(shadows, ListParams::default(), |shadow| match shadow {
        Ok(shadow) => readable.push(shadow),
        Err(InvalidObject { metadata, error }) => {
            left.push(Left::unreadable(&metadata.name.unwrap_or_default(), &error));
        }
    });
    if_there(listed.await)?;
    // Without shadows no attempt is known, and the remaining claims are released here.
    if !readable.is_empty() {
        left.extend(unfinished(&nodes, &readable));
    }
    left.extend(not_taken_back(&aws_record(client, names::SYSTEM_NAMESPACE).await?));
    left.extend(prepared(&jobs_of_hooks(client).await?));
    Ok(left)
}

/// Reads the Jobs of hooks. A user who may not list Jobs sees none.
async fn jobs_of_hooks(client: &Client) -> anyhow::Result<Vec<Job>> {
    match call::list_everywhere(client, ListParams::default().labels(names::HOOK_LABEL)).await {
        Err(error) if matches!(code(&error), Some(403 | 404)) => Ok(Vec::new()),
        found => found,
    }
}

/// Reads the record of the hook for AWS, by instance; it is empty if there is none.
pub(crate) async fn aws_record(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let map: Option<ConfigMap> = get(client, namespace, names::AWS).await?;
    Ok(map.and_then(|map| map.data).unwrap_or_default())
}

fn is_labelled_by_us(meta: &ObjectMeta) -> bool {
    meta.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(names::LABEL_MANAGER))
}

/// Patches a node, and returns false if it is gone, or another one has its name.
async fn patched(
    nodes: &Api<Node>,
    node: &NodeFacts,
    params: &PatchParams,
    patch: &Patch<Value>,
) -> anyhow::Result<bool> {
    let deadline = Instant::now() + GONE;
    let request = async || call("patch nodes", nodes.patch(&node.name, params, patch)).await;
    match answered(deadline, request).await {
        // The uid of another node is an invalid change to the API server, or a conflict.
        Err(error) if matches!(code(&error), Some(404 | 409 | 422)) => {
            let found = answered(deadline, async || get_metadata(nodes, &node.name).await).await?;
            let is_same = found.is_some_and(|meta| meta.uid.as_ref() == Some(&node.uid));
            if is_same { Err(error) } else { Ok(false) }
        }
        answer => answer.map(|_| true),
    }
}

/// Removes from the nodes what the controller has left there: claims whose shadow is gone, and the label if the
/// operator set it.
async fn sweep(client: &Client) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in answered(Instant::now() + GONE, async || call::nodes(client).await).await? {
        let facts = NodeFacts::project(&node).map(|node| node.at(crate::clock::now()));
        let Some(facts) = facts else { continue };
        let NodeFacts { name, uid, hold, unschedulable, claims, hook_request, .. } = &facts;
        let mut managers = Vec::new();
        if is_labelled_by_us(&node.metadata) {
            managers.push(names::LABEL_MANAGER);
        }
        if !claims.is_empty() {
            managers.push(names::CONTROLLER_MANAGER);
        }
        for manager in managers {
            // An apply without a field that this manager owns releases the field.
            let mut kept = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": uid},
            });
            if manager == names::CONTROLLER_MANAGER && hold.is_some() && *unschedulable {
                kept["spec"] = json!({"unschedulable": true});
                print_line(format_args!(
                    "{name} is held and stays cordoned; once it may be used again: {}",
                    for_cluster(&format!("kubectl uncordon {name}"))
                ));
            }
            let patched = patched(&nodes, &facts, &PatchParams::apply(manager), &Patch::Apply(kept)).await;
            if patched.with_context(|| format!("the operator's fields on node {name} cannot be removed"))? {
                print_line(format_args!("removed the fields of {manager} from node {name}"));
            }
        }
        if hook_request.is_some() {
            let none = json!({"metadata": {"uid": uid, "annotations": {names::HOOKS_ANNOTATION: null}}});
            let patched = patched(&nodes, &facts, &PatchParams::default(), &Patch::Merge(none)).await;
            if patched.with_context(|| format!("the request to hooks on node {name} cannot be withdrawn"))? {
                print_line(format_args!("withdrew the request to hooks on node {name}"));
            }
        }
    }
    Ok(())
}

/// Waits until the operator's pods on nodes that are ready have ended: a running one could claim a node.
async fn ended(client: &Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + GONE;
    loop {
        let left = answered(deadline, async || call::installed_pods(client).await).await?;
        if left.is_empty() {
            return Ok(());
        }
        let nodes = answered(deadline, async || call::nodes(client).await).await?;
        let silent = nodes.iter().filter_map(NodeFacts::project).filter(|node| !node.ready);
        let silent: BTreeSet<String> = silent.map(|node| node.name).collect();
        let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let (silent, live): (Vec<_>, Vec<_>) = left.iter().partition(|pod| silent.contains(&node_of(pod)));
        if live.is_empty() || Instant::now() >= deadline {
            for pod in silent.into_iter().chain(live) {
                print_line(format_args!(
                    "left behind: pod {} on {}, which has not ended",
                    pod.name_any(),
                    node_of(pod)
                ));
            }
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests;
