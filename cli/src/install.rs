//! `kubectl brupop install`: applies the same objects as the manifests, in their order, and waits until they run.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use deploy::{Component, Options};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::call::{call, code, if_there};
use crate::page::{print_line, progress};
use crate::preflight::{KUBECTL, preflight};
use crate::uninstall::api;

/// Time until the API server serves a definition that it has accepted.
const ESTABLISHED: Duration = Duration::from_secs(60);

/// Pause between two looks at what is waited for.
const PAUSE: Duration = Duration::from_secs(1);

/// Options of `install`.
#[derive(Debug, Args)]
pub(crate) struct InstallOptions {
    /// Registry and path in front of the images' names, such as registry.example/brupop. Default: bare names, for nodes
    /// that have the images.
    #[arg(long)]
    registry: Option<String>,
    /// Tag of all images. Default: the version of this plugin.
    #[arg(long)]
    tag: Option<String>,
    /// Install with a policy that enables updates (`spec.enabled: true`); by default none starts. A policy that exists stays
    /// as it is.
    #[arg(long)]
    enable: bool,
    /// List what would be applied, and apply nothing.
    #[arg(long)]
    dry_run: bool,
    /// Time to wait until controller and web API run; 0s does not wait.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    timeout: models::duration::Duration,
}

fn is_policy(object: &Value) -> bool {
    object["kind"] == "BottlerocketUpdateOperator"
}

fn is_definition(object: &Value) -> bool {
    object["kind"] == "CustomResourceDefinition"
}

/// Returns the objects to apply.
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
        let found = call(&format!("get customresourcedefinition {name}"), api.get(&name)).await?;
        let conditions = found.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "the API server does not serve {name} after {} s: kubectl describe crd {name}",
                ESTABLISHED.as_secs()
            );
        }
        sleep(PAUSE).await;
    }
}

/// Returns the workloads that do not run yet, each as a sentence.
async fn not_running(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut waiting = Vec::new();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    for name in [Component::Controller.name(), Component::Apiserver.name()] {
        let right = format!("get deployments in {}", names::SYSTEM_NAMESPACE);
        let found = if_there(call(&right, deployments.get(name)).await)?;
        let wanted = found.as_ref().and_then(|found| found.spec.replicas).unwrap_or(1);
        let status = found.and_then(|found| Some((found.metadata.generation, found.status?)));
        let ready = status.filter(|(generation, status)| status.observed_generation >= *generation);
        let ready = ready.and_then(|(_, status)| status.available_replicas).unwrap_or(0);
        if ready < wanted {
            waiting.push(format!("Deployment {name}: {ready} of {wanted} available"));
        }
    }
    Ok(waiting)
}

/// Returns the number of nodes that the agent runs on.
async fn agents(client: &Client) -> anyhow::Result<i32> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
    let right = format!("get daemonsets in {}", names::AGENT_NAMESPACE);
    let found = if_there(call(&right, sets.get(Component::Agent.name())).await)?;
    Ok(found.and_then(|set| set.status).map_or(0, |status| status.desired_number_scheduled))
}

/// Returns true if the operator's resource is there and starts no update.
async fn disabled(client: &Client) -> anyhow::Result<bool> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let right = format!("get bottlerocketupdateoperators in {}", names::SYSTEM_NAMESPACE);
    let found = if_there(call(&right, operators.get(names::OPERATOR_NAME)).await)?;
    Ok(found.is_some_and(|operator| operator.spec.enabled == Some(false)))
}

/// Installs the operator.
pub(crate) async fn install(client: Client, options: &InstallOptions) -> anyhow::Result<()> {
    let objects = objects(options)?;
    preflight(client.clone()).await?;
    if options.dry_run {
        for object in &objects {
            print_line(format_args!("{} (dry run)", deploy::yaml::id(object)));
        }
        return Ok(());
    }
    for object in &objects {
        let id = deploy::yaml::id(object);
        if is_policy(object) {
            // The definitions come first. The schema of the API server is known to it at once, and to others a moment later.
            for definition in objects.iter().filter(|object| is_definition(object)) {
                established(&client, definition).await?;
            }
            let (api, _, name) = api(&client, object)?;
            if if_there(call(&format!("get {id}"), api.get_metadata(&name)).await)?.is_some() {
                print_line(format_args!("{id} exists and stays as it is"));
                continue;
            }
        }
        apply(&client, object).await?;
        print_line(format_args!("{id} applied"));
    }
    let (began, limit) = (Instant::now(), options.timeout.0);
    let mut shown = began;
    while !limit.is_zero() {
        let waiting = not_running(&client).await?;
        if waiting.is_empty() {
            break;
        }
        if began.elapsed() >= limit {
            bail!(
                "everything is applied, and does not run after {}: {}. kubectl brupop doctor finds out why",
                options.timeout,
                waiting.join("; ")
            );
        }
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            progress(format_args!("waiting: {}", waiting.join("; ")));
        }
        sleep(PAUSE).await;
    }
    match agents(&client).await.context("everything is applied")? {
        0 => print_line(format_args!(
            "The operator is installed. No node is under it yet: kubectl label node NODE {}={}",
            names::INTERFACE_LABEL,
            names::INTERFACE_VERSION
        )),
        nodes => print_line(format_args!("The operator is installed, on {nodes} nodes: kubectl brupop status")),
    }
    if disabled(&client).await? {
        print_line(format_args!("No update starts before updates are enabled: kubectl brupop resume"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> InstallOptions {
        let timeout = models::duration::Duration::from_secs(0);
        InstallOptions { registry: None, tag: None, enable: false, dry_run: false, timeout }
    }

    #[test]
    fn definitions_come_first_and_policy_last() {
        let objects = objects(&options()).unwrap();
        assert!(is_definition(&objects[0]) && is_policy(objects.last().unwrap()));
        assert_eq!(objects, deploy::objects(&Options::default()).unwrap(), "the same as the manifests");
    }

    #[test]
    fn images_and_switch_follow_options() {
        let options = InstallOptions {
            registry: Some("registry.example/brupop".to_owned()),
            tag: Some("v9".to_owned()),
            enable: true,
            ..options()
        };
        let objects = objects(&options).unwrap();
        let text = serde_json::to_string(&objects).unwrap();
        assert_eq!(text.matches("\"image\":\"registry.example/brupop/").count(), text.matches("\"image\":").count());
        assert!(text.contains(":v9\""));
        assert_eq!(objects.last().unwrap()["spec"]["enabled"], true);
    }
}
