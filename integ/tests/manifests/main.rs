//! The installation of `docs/install.md` on a real API server: it is accepted without a warning, its pods are admitted,
//! its rules refuse what they have to refuse, and its rights are sufficient and minimal.

mod admission;
mod documents;
mod edges;
mod historian;
mod history;
mod leaders;
mod lists;
mod migration;
mod migrator;
mod network;
mod pods;
mod policy;
mod revisions;
mod rights;
mod rows;
mod samples;
mod takeover;

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use integ::bed::Programs;
use integ::control_plane::{ControlPlane, Options};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use models::names::{AGENT_NAMESPACE, INTERFACE_LABEL, INTERFACE_VERSION, SYSTEM_NAMESPACE};
use models::shadow::BottlerocketShadow;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::runtime::Runtime;

#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_accepted_and_enforced_on_real_api_server() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.client();
    install(&control_plane).await?;
    reinstallation_changes_nothing(&control_plane).await?;
    pods_are_admitted(client.clone()).await?;
    pods::pods_have_only_required_privileges_and_volumes(client.clone()).await?;
    network::network_policies_allow_only_required_connections(client.clone()).await?;
    network::documented_network_policy_allows_custom_prometheus(client.clone()).await?;
    shadow_validation_rules_are_enforced(client.clone()).await?;
    policy::schema_rejects_invalid_policies(client.clone()).await?;
    policy::unknown_fields_are_rejected_or_dropped(client.clone()).await?;
    policy::emptied_policy_fields_are_accepted_in_server_side_apply(&control_plane).await?;
    policy::stored_url_with_credentials_stops_no_other_write(&control_plane).await?;
    emptied_shadow_fields_are_accepted_in_server_side_apply(client.clone()).await?;
    revisions::every_revision_of_policy_can_be_changed(client.clone()).await?;
    revisions::revisions_are_deleted_with_operator_unless_orphaned(client.clone()).await?;
    history::records_and_pages_never_change(client.clone()).await?;
    admission::web_api_may_write_only_agent_status(&control_plane).await?;
    admission::node_writes_are_limited_to_own_fields(&control_plane).await?;
    admission::controller_may_write_only_its_secrets(&control_plane).await?;
    admission::jobs_of_hooks_have_the_spec_of_templates_that_are_named(&control_plane).await?;
    rights::accounts_have_expected_rights(client).await?;
    rights::roles_of_the_cluster_contain_rights_to_the_resources(&control_plane).await?;
    columns_are_printed(&control_plane).await?;
    control_plane.stop().await
}

/// The three commands of `docs/install.md`, with the checked-in files.
async fn install(control_plane: &ControlPlane) -> anyhow::Result<()> {
    install_definitions(control_plane).await?;
    kubectl(control_plane, &["apply", "--server-side", "-f", &manifest("brupop.yaml")]).await.map(drop)
}

async fn install_definitions(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let file = manifest("crds.yaml");
    kubectl(control_plane, &["apply", "--server-side", "-f", &file]).await?;
    kubectl(control_plane, &["wait", "--for=condition=Established", "--timeout=60s", "-f", &file]).await.map(drop)
}

/// A control plane that serves the operator's kinds. Its garbage collector is stopped: the nodes of the shadows do not exist,
/// and the historian has to remove the pages of a record by itself.
async fn control_plane_of_definitions() -> anyhow::Result<ControlPlane> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    for (name, process) in control_plane.parts() {
        if name == "kube-controller-manager" {
            kill(Pid::from_raw(i32::try_from(process)?), Signal::SIGSTOP)?;
        }
    }
    install_definitions(&control_plane).await?;
    Ok(control_plane)
}

/// Runs a test on such a control plane that it shares with others. It writes to namespaces of its own alone.
fn on_shared(test: impl AsyncFnOnce(&ControlPlane) -> anyhow::Result<()>) -> anyhow::Result<()> {
    static SHARED: OnceLock<anyhow::Result<(Runtime, ControlPlane)>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let runtime = Runtime::new()?;
        let control_plane = runtime.block_on(control_plane_of_definitions())?;
        Ok((runtime, control_plane))
    });
    let (runtime, control_plane) = shared.as_ref().map_err(|error| anyhow!("the shared control plane: {error:#}"))?;
    runtime.block_on(test(control_plane))
}

async fn reinstallation_changes_nothing(control_plane: &ControlPlane) -> anyhow::Result<()> {
    // Objects without a status: their versions change only by an apply.
    let versions = ["get", "clusterroles", "brupop-controller", "brupop-apiserver", "-o", "yaml"];
    let policy = ["get", "bruo/default", "-n", SYSTEM_NAMESPACE, "-o", "yaml"];
    let generations =
        ["get", "deployments,pdb,crds", "-A", "-o", "custom-columns=:.metadata.name,:.metadata.generation"];
    let look = async || -> anyhow::Result<String> {
        let mut text = String::new();
        for command in [&versions[..], &policy[..], &generations[..]] {
            text += &kubectl(control_plane, command).await?;
        }
        Ok(text)
    };
    let before = look().await?;
    kubectl(control_plane, &["apply", "--server-side", "-f", &manifest("brupop.yaml")]).await?;
    assert_eq!(before, look().await?);
    Ok(())
}

/// Checks pod security, priority classes and quotas when the pods are created, which is when they apply, and the pods
/// that a budget selects.
async fn pods_are_admitted(client: Client) -> anyhow::Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {INTERFACE_LABEL: INTERFACE_VERSION}},
    });
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    for (name, replicas) in [("brupop-controller", 2), ("brupop-apiserver", 3)] {
        until(name, async || {
            Ok(deployments.get(name).await?.status.and_then(|status| status.replicas) == Some(replicas))
        })
        .await?;
        until(&format!("the budget of {name}"), async || {
            let status = budgets.get(name).await?.status.unwrap_or_default();
            Ok((status.expected_pods, status.desired_healthy) == (Some(replicas), Some(replicas - 1)))
        })
        .await?;
    }
    let agents: Api<DaemonSet> = Api::namespaced(client, AGENT_NAMESPACE);
    until("brupop-agent", async || {
        Ok(agents.get("brupop-agent").await?.status.is_some_and(|status| status.current_number_scheduled == 1))
    })
    .await
}

async fn shadow_validation_rules_are_enforced(client: Client) -> anyhow::Result<()> {
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client, SYSTEM_NAMESPACE);
    let order = |attempt: i64| json!({"state": "StagedUpdate", "attempt": attempt, "bootId": "b", "version": "1.20.5"});
    let with = |mut spec: Value, key: &str, value: Value| {
        spec[key] = value;
        spec
    };
    let permit = json!({"nonce": "n", "jws": "j"});
    for (what, spec, refusal) in [
        ("no attempt", json!({"state": "Idle"}), Some("attempt: Required value")),
        ("the first", json!({"state": "Idle", "attempt": 0}), None),
        ("no version", json!({"state": "StagedUpdate", "attempt": 1, "bootId": "b"}), Some("names its version")),
        ("no boot", json!({"state": "StagedUpdate", "attempt": 1, "version": "1.2.3"}), Some("names its version")),
        ("null as version", with(order(1), "version", Value::Null), Some("must be of type string")),
        ("no version at all", with(order(1), "version", json!("latest")), Some("should match")),
        ("a version with a v", with(order(1), "version", json!("v1.20.5")), Some("should match")),
        ("an order", with(order(3), "version", json!("1.20.5-rc.1+build.7")), None),
        ("a lower attempt", order(2), Some("attempt never falls")),
        ("the attempt dropped", json!({"state": "Idle"}), Some("attempt: Required value")),
        (
            "a permit for staging",
            with(order(3), "permit", permit.clone()),
            Some("a permit belongs to the desired state RebootedIntoUpdate"),
        ),
        ("an unknown state", json!({"state": "Unknown", "attempt": 3}), Some("Unsupported value")),
        ("a permit", with(with(order(3), "state", json!("RebootedIntoUpdate")), "permit", permit), None),
    ] {
        let object = shadow("brs-n1", &json!({"spec": spec}));
        expect(what, shadows.patch("brs-n1", &operator_apply(), &Patch::Apply(&object)).await, refusal)?;
    }
    for (what, path, refusal) in [
        ("the attempt removed", "/spec/attempt", "attempt: Required value"),
        ("the spec removed", "/spec", "spec: Required value"),
    ] {
        let patch = serde_json::from_value(json!([{"op": "remove", "path": path}]))?;
        let result = shadows.patch("brs-n1", &PatchParams::default(), &Patch::<()>::Json(patch)).await;
        expect(what, result, Some(refusal))?;
    }
    Ok(())
}

/// Checks that the null that server-side apply of `{}` over fields of the same manager leaves is not refused.
async fn emptied_shadow_fields_are_accepted_in_server_side_apply(client: Client) -> anyhow::Result<()> {
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client, SYSTEM_NAMESPACE);
    for host in [json!({"refreshInterval": "1h"}), json!({})] {
        let object = shadow("brs-n2", &json!({"spec": {"state": "Idle", "attempt": 0, "host": host}}));
        shadows.patch("brs-n2", &operator_apply(), &Patch::Apply(&object)).await?;
    }
    for status in [json!({"updates": {"chosenVersion": "1.2.3"}}), json!({"updates": {}}), json!({})] {
        let object = shadow("brs-n2", &json!({"status": status}));
        shadows.patch_status("brs-n2", &operator_apply(), &Patch::Apply(&object)).await?;
    }
    Ok(())
}

async fn columns_are_printed(control_plane: &ControlPlane) -> anyhow::Result<()> {
    for (kind, expected) in [
        ("brs", "NAME VERSION TARGET STEP BLOCKED LAST AGE"),
        ("bruo", "NAME ENABLED TOTAL CURRENT UPDATING FAILED FROZEN BRAKED AGE"),
    ] {
        let table = kubectl(control_plane, &["get", kind, "-n", SYSTEM_NAMESPACE]).await?;
        let heads: Vec<_> = table.lines().next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(heads.join(" "), expected);
    }
    Ok(())
}

/// Number of nodes of a large cluster.
const MANY: usize = 5_000;

/// Name of one of them. Names of equal length fill each ConfigMap of a record with the same number of shadows.
fn node_name(number: usize) -> String {
    format!("i-{number:017x}.eu-central-1.compute.internal")
}

fn shadow(name: &str, fields: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "metadata": {"name": name},
    });
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
    object
}

fn operator_apply() -> PatchParams {
    PatchParams::apply("test")
}

/// Checks that a write was refused for the given reason, or accepted if there is none.
fn expect<K>(what: &str, result: kube::Result<K>, refusal: Option<&str>) -> anyhow::Result<()> {
    match (result, refusal) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(refusal)) => bail!("{what}: accepted, not refused with '{refusal}'"),
        (Err(error), Some(refusal)) if error.to_string().contains(refusal) => Ok(()),
        (Err(error), refusal) => Err(error).with_context(|| format!("{what}: expected {refusal:?}")),
    }
}

fn manifest(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests").join(name).display().to_string()
}

fn docs(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// The YAML blocks of a text.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs kubectl and returns its output; a failure or a warning is an error.
async fn kubectl(control_plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = control_plane.kubectl_command();
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().await?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && stderr.is_empty(), "kubectl {}: {stderr}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// The plugin, with the kubeconfig of a cluster.
fn plugin_command(kubeconfig: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(Programs::find()?.plugin);
    command.env("KUBECONFIG", kubeconfig).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

/// Runs the plugin as an administrator.
async fn plugin(control_plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<Output> {
    Ok(plugin_command(control_plane.kubeconfig())?.args(arguments).output().await?)
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
    while !condition().await? {
        ensure!(tokio::time::Instant::now() < deadline, "{what} has not got there in 300 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
