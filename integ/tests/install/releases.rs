//! Releases of the charts on a real API server: installation, upgrade with the definitions, rollback, uninstallation.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use integ::bed::Programs;
use integ::control_plane::{ControlPlane, Options};
use models::names::{INTERFACE_LABEL, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::helm::{DEFINITIONS, Helm, OPERATOR, ROOT, kubectl, manifest};
use crate::kustomize::overlay_replaces_images;

const NAMESPACE: &str = "-n brupop-system --create-namespace";
const POLICY: &str = "bottlerocketupdateoperator.brupop.bottlerocket.aws/default";
const SHADOWS: &str = "bottlerocketshadows.brupop.bottlerocket.aws";
const CONTROLLER: &str = "deployment/brupop-controller";
const IMAGE: &str = ".spec.template.spec.containers[0].image";

/// A field of an object; empty if there is none.
async fn field(control_plane: &ControlPlane, object: &str, path: &str) -> anyhow::Result<String> {
    let output = format!("jsonpath={{{path}}}");
    kubectl(control_plane, &["get", object, "--all-namespaces=false", "-n", SYSTEM_NAMESPACE, "-o", &output]).await
}

async fn enabled(control_plane: &ControlPlane) -> anyhow::Result<String> {
    field(control_plane, "bruo/default", ".spec.enabled").await
}

/// The objects for monitoring and of cert-manager that are there, by kind and name.
async fn optional_objects(control_plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let kinds = "certificates.cert-manager.io,podmonitors.monitoring.coreos.com,servicemonitors.monitoring.coreos.com,\
                 prometheusrules.monitoring.coreos.com,configmaps,services";
    let get = ["get", kinds, "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/name=brupop", "-o", "name"];
    let names = kubectl(control_plane, &get).await?;
    Ok(names.lines().filter(|name| *name != "service/brupop-apiserver").map(str::to_owned).collect())
}

/// The objects of the manifest that are there, by kind and name.
async fn installed(control_plane: &ControlPlane) -> anyhow::Result<Vec<String>> {
    let get = ["get", "-f", "deploy/manifests/brupop.yaml", "--ignore-not-found", "-o", "name"];
    let output = control_plane.kubectl_command().args(get).current_dir(ROOT).output().await?;
    let error = String::from_utf8_lossy(&output.stderr);
    // Before the definitions are there, and after them.
    ensure!(output.status.success() || error.contains("BottlerocketUpdateOperator"), "{error}");
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// A copy of a chart as its next version, with changes of one file.
fn next(chart: &str, folder: &Path, file: &str, change: impl Fn(String) -> String) -> anyhow::Result<String> {
    let (from, to) = (Path::new(ROOT).join(chart), folder.join(chart));
    for part in ["", "templates", "files", "files/dashboards"].map(Path::new) {
        // The chart of the definitions has no files.
        let Ok(entries) = std::fs::read_dir(from.join(part)) else { continue };
        std::fs::create_dir_all(to.join(part))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_file() {
                std::fs::copy(&path, to.join(path.strip_prefix(&from)?))?;
            }
        }
    }
    let version =
        |text: String| text.replace("\nversion: ", "\nversion: 9").replace("\nappVersion: v", "\nappVersion: v9");
    let changes: [(&str, &dyn Fn(String) -> String); 2] = [("Chart.yaml", &version), (file, &change)];
    for (file, change) in changes {
        let before = std::fs::read_to_string(to.join(file))?;
        let after = change(before.clone());
        ensure!(before != after, "{file} has nothing to change");
        std::fs::write(to.join(file), after)?;
    }
    to.to_str().map(str::to_owned).context("a path of text")
}

/// Upgrades both releases to the next version, with a changed definition and other images. Updates stay enabled.
async fn upgraded_to_next(control_plane: &ControlPlane, helm: &Helm) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let changed = next(DEFINITIONS, folder.path(), "templates/crds.yaml", |text| {
        text.replacen("description: Attempt", "description: Changed attempt", 1)
    })?;
    helm.line(&format!("upgrade brupop-crds {changed} -n {SYSTEM_NAMESPACE}")).await?;
    ensure!(definition_is_changed(control_plane).await?, "the definition is not upgraded");
    let changed = next(OPERATOR, folder.path(), "templates/policy.yaml", |text| {
        text.replace("\nspec:\n", "\nspec:\n  labelNodes: false\n")
    })?;
    helm.line(&format!("upgrade brupop {changed} -n {SYSTEM_NAMESPACE} --reset-then-reuse-values")).await?;
    let image = field(control_plane, CONTROLLER, IMAGE).await?;
    ensure!(image.contains(":v9"), "{image}");
    assert_eq!(enabled(control_plane).await?, "true");
    Ok(())
}

async fn definition_is_changed(control_plane: &ControlPlane) -> anyhow::Result<bool> {
    let definition = kubectl(control_plane, &["get", "crd", SHADOWS, "-o", "yaml"]).await?;
    Ok(definition.contains("Changed attempt"))
}

/// A user enables updates.
async fn enable(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let patch = r#"{"spec":{"enabled":true}}"#;
    let arguments = ["patch", "bruo", "default", "-n", SYSTEM_NAMESPACE, "--type=merge", "-p", patch];
    kubectl(control_plane, &arguments).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_installed_upgraded_rolled_back_and_uninstalled() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let helm = Helm::find(Some(&control_plane)).await?;
    integ::tools::install_definitions(&control_plane).await?;

    // The operator without its definitions is refused, and nothing of it is left.
    let error = helm.refused(&format!("install brupop {OPERATOR} {NAMESPACE}")).await?;
    ensure!(error.contains("ensure CRDs are installed first"), "{error}");
    let left = installed(&control_plane).await?;
    ensure!(left.is_empty(), "{left:?}");

    helm.line(&format!("install brupop-crds {DEFINITIONS} {NAMESPACE}")).await?;
    let others = "monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true,\
                  monitoring.dashboards.enabled=true,certificate.source=cert-manager,certificate.issuer.name=own";
    let notes =
        helm.line(&format!("install brupop {OPERATOR} {NAMESPACE} --set image.registry=r.example/b,{others}")).await?;
    ensure!(notes.contains("No update starts until you enable updates") && notes.contains(INTERFACE_LABEL), "{notes}");
    assert_eq!(installed(&control_plane).await?.len(), manifest("brupop.yaml")?.len());
    let with_pod_monitor = [
        "certificate.cert-manager.io/brupop-apiserver",
        "podmonitor.monitoring.coreos.com/brupop",
        "prometheusrule.monitoring.coreos.com/brupop",
        "configmap/brupop-dashboards",
    ];
    assert_eq!(optional_objects(&control_plane).await?, with_pod_monitor);
    assert_eq!(enabled(&control_plane).await?, "false");
    let first = format!("r.example/b/brupop-controller:v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(field(&control_plane, CONTROLLER, IMAGE).await?, first);

    // A user's change that the values contradict is a conflict; by the same values it is none. Helm 3 leaves it alone.
    let three = helm.line("version --short").await?.starts_with("v3.");
    enable(&control_plane).await?;
    let upgrade = format!("upgrade brupop {OPERATOR} -n {SYSTEM_NAMESPACE} --reset-then-reuse-values");
    if three {
        helm.line(&upgrade).await?;
    } else {
        let error = helm.refused(&upgrade).await?;
        ensure!(error.contains("conflict") && error.contains(".spec.enabled"), "{error}");
    }
    assert_eq!(enabled(&control_plane).await?, "true");
    let notes = helm.line(&format!("{upgrade} --set policy.enabled=true")).await?;
    ensure!(notes.contains("Updates are enabled") && notes.contains("Do not have Helm wait for pods"), "{notes}");
    let shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {"name": "brs-a", "namespace": SYSTEM_NAMESPACE}, "spec": {"state": "Idle", "attempt": 0},
    });
    let file = helm.values(&shadow)?;
    kubectl(&control_plane, &["create", "-f", &file]).await?;

    upgraded_to_next(&control_plane, &helm).await?;
    assert_eq!(field(&control_plane, "brs/brs-a", ".spec.state").await?, "Idle");

    // Back to the revision that enabled updates, then to the first one. The definitions stay as they are.
    let revisions: Vec<Value> =
        serde_json::from_str(&helm.line(&format!("history brupop -n {SYSTEM_NAMESPACE} -o json")).await?)?;
    let good = revisions
        .iter()
        .filter(|revision| revision["status"] == "superseded")
        .filter_map(|revision| revision["revision"].as_i64());
    let last = good.max().context("no revision to go back to")?;
    helm.line(&format!("rollback brupop {last} -n {SYSTEM_NAMESPACE}")).await?;
    assert_eq!(field(&control_plane, CONTROLLER, IMAGE).await?, first);
    assert_eq!(enabled(&control_plane).await?, "true");
    // The first revision disables them. The user's own change is in the way, as in an upgrade.
    let rollback = format!("rollback brupop 1 -n {SYSTEM_NAMESPACE}");
    if three {
        helm.line(&rollback).await?;
    } else {
        let error = helm.refused(&rollback).await?;
        ensure!(error.contains(".spec.enabled"), "{error}");
        helm.line(&format!("{rollback} --force-conflicts")).await?;
    }
    assert_eq!(enabled(&control_plane).await?, "false");
    assert_eq!(optional_objects(&control_plane).await?, with_pod_monitor);
    ensure!(definition_is_changed(&control_plane).await?, "the definition is rolled back");

    // Values that no longer create them leave the policy and the agents' namespace as they are; so does an uninstallation.
    let without = format!("{upgrade} --set policy.create=false,namespaces.agents.create=false");
    // The same with a ServiceMonitor instead of the PodMonitor.
    let service_monitor = "monitoring.podMonitor.enabled=false,monitoring.serviceMonitor.enabled=true";
    helm.line(&format!("{without},{service_monitor}")).await?;
    let with_service_monitor = [
        "certificate.cert-manager.io/brupop-apiserver",
        "servicemonitor.monitoring.coreos.com/brupop",
        "prometheusrule.monitoring.coreos.com/brupop",
        "configmap/brupop-dashboards",
        "service/brupop-apiserver-metrics",
        "service/brupop-controller-metrics",
    ];
    assert_eq!(optional_objects(&control_plane).await?, with_service_monitor);
    let all = manifest("brupop.yaml")?.len();
    assert_eq!(installed(&control_plane).await?.len(), all);
    helm.line(&format!("uninstall brupop -n {SYSTEM_NAMESPACE} --wait")).await?;
    let left = installed(&control_plane).await?;
    let kept = ["namespace/brupop-system", "namespace/brupop-agents", POLICY];
    ensure!(left == kept, "{left:?}");
    let left = optional_objects(&control_plane).await?;
    ensure!(left.is_empty(), "{left:?}");
    helm.line(&format!("uninstall brupop-crds -n {SYSTEM_NAMESPACE}")).await?;
    assert_eq!(
        field(&control_plane, "brs/brs-a", ".spec.state").await?,
        "Idle",
        "the definitions are kept, with shadows"
    );
    // And are taken up by the next installation.
    helm.line(&format!("install brupop-crds {DEFINITIONS} -n {SYSTEM_NAMESPACE}")).await?;
    helm.line(&format!("upgrade brupop-crds {DEFINITIONS} -n {SYSTEM_NAMESPACE} --set keep=false")).await?;
    helm.line(&format!("uninstall brupop-crds -n {SYSTEM_NAMESPACE} --wait")).await?;
    let definitions = kubectl(&control_plane, &["get", "crd", "-o", "name"]).await?;
    ensure!(!definitions.contains("brupop"), "keep=false deletes them: {definitions}");
    definitions_of_the_earlier_operator_are_refused(&control_plane, &helm).await?;
    control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_by_kubectl_becomes_a_release() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let helm = Helm::find(Some(&control_plane)).await?;
    overlay_replaces_images(&control_plane).await.context("the kustomization")?;
    kubectl(&control_plane, &["apply", "--server-side", "-f", "deploy/manifests/crds.yaml"]).await?;
    kubectl(&control_plane, &["wait", "--for=condition=Established", "-f", "deploy/manifests/crds.yaml"]).await?;
    kubectl(&control_plane, &["apply", "--server-side", "-f", "deploy/manifests/brupop.yaml"]).await?;
    // Helm 3 knows no other way.
    let three = helm.line("version --short").await?.starts_with("v3.");
    let take = if three { "--take-ownership" } else { "--take-ownership --server-side=false" };
    for (release, chart) in [("brupop-crds", DEFINITIONS), ("brupop", OPERATOR)] {
        let install = format!("install {release} {chart} -n {SYSTEM_NAMESPACE}");
        let error = helm.refused(&install).await?;
        ensure!(error.contains("cannot be imported into the current release"), "{error}");
        let uid = field(&control_plane, &format!("crd/{SHADOWS}"), ".metadata.uid").await?;
        helm.line(&format!("{install} {take}")).await?;
        assert_eq!(field(&control_plane, &format!("crd/{SHADOWS}"), ".metadata.uid").await?, uid);
    }
    // A later version of each is no conflict with what kubectl has applied, and a user's change stays.
    enable(&control_plane).await?;
    upgraded_to_next(&control_plane, &helm).await?;
    control_plane.stop().await
}

/// Runs the plugin, and returns its exit status and all that it prints.
async fn plugin(control_plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<(bool, String)> {
    let mut command = tokio::process::Command::new(Programs::find()?.plugin);
    command.args(arguments).env("KUBECONFIG", control_plane.kubeconfig()).env_remove("BRUPOP_NAMESPACE");
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output.status.success(), text))
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_leaves_a_release_to_helm_and_uninstalls_all_but_its_namespace() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let helm = Helm::find(Some(&control_plane)).await?;
    helm.line(&format!("install brupop-crds {DEFINITIONS} {NAMESPACE}")).await?;
    // Also where only the definitions are of a release, as with an operator in another namespace.
    let expected =
        "the definitions are of the Helm release brupop-crds in the namespace brupop-system: helm install brupop CHART";
    for command in ["preflight", "install"] {
        let (success, refused) = plugin(&control_plane, &[command]).await?;
        ensure!(!success && refused.contains(expected), "{command}: {refused}");
    }
    helm.line(&format!("install brupop {OPERATOR} -n {SYSTEM_NAMESPACE}")).await?;
    // As the controller and users make them, and one of another program.
    for name in ["brupop-ca", "brupop-permit-key", "brupop-notices", "other"] {
        kubectl(&control_plane, &["create", "secret", "generic", name, "-n", SYSTEM_NAMESPACE]).await?;
    }
    let (_, found) = plugin(&control_plane, &["doctor"]).await?;
    ensure!(found.contains("NotReady") && !found.contains("AnotherInstallation"), "{found}");
    let (success, refused) = plugin(&control_plane, &["install"]).await?;
    ensure!(!success && refused.contains("the operator is of the Helm release brupop in the namespace"), "{refused}");

    // With the objects of one namespace, another one would have half an installation beside.
    for command in ["preflight", "install"] {
        let (success, refused) = plugin(&control_plane, &[command, "-n", "platform"]).await?;
        ensure!(!success && refused.contains("installs and removes the operator in brupop-system alone"), "{refused}");
    }

    let (success, text) = plugin(&control_plane, &["uninstall", "--dry-run"]).await?;
    ensure!(success && text.contains("would delete Secret brupop-system/brupop-ca"), "{text}");
    let (success, text) = plugin(&control_plane, &["uninstall", "--yes"]).await?;
    ensure!(success && text.contains("Namespace brupop-system stays: "), "{text}");
    for release in ["brupop", "brupop-crds"] {
        ensure!(text.contains(&format!("helm uninstall {release} -n brupop-system\n")), "{text}");
        helm.line(&format!("uninstall {release} -n {SYSTEM_NAMESPACE}")).await?;
    }
    let get = ["get", "secrets,configmaps", "-n", SYSTEM_NAMESPACE, "-o", "name"];
    let left = kubectl(&control_plane, &get).await?;
    let left: Vec<&str> = left.lines().filter(|name| !name.contains("sh.helm.release")).collect();
    ensure!(left == ["secret/other", "configmap/kube-root-ca.crt"], "{left:?}");
    kubectl(&control_plane, &["get", "namespace", SYSTEM_NAMESPACE]).await?;
    let parts = "namespaces,customresourcedefinitions,clusterroles,validatingadmissionpolicies,deployments,daemonsets";
    let get = ["get", parts, "-A", "-l", "app.kubernetes.io/name=brupop", "-o", "name"];
    let left = kubectl(&control_plane, &get).await?;
    ensure!(left.is_empty(), "{left}");
    control_plane.stop().await
}

async fn definitions_of_the_earlier_operator_are_refused(
    control_plane: &ControlPlane,
    helm: &Helm,
) -> anyhow::Result<()> {
    kubectl(control_plane, &["apply", "--server-side", "-f", "integ/testdata/earlier-operator.yaml"]).await?;
    let get = ["get", "crd", "-o", "jsonpath={range .items[*]}{.metadata.uid}{.spec}{end}"];
    let before = kubectl(control_plane, &get).await?;
    let error = helm.refused(&format!("install brupop-crds {DEFINITIONS} {NAMESPACE}")).await?;
    ensure!(error.contains(SHADOWS) && error.contains("cannot be imported"), "{error}");
    ensure!(kubectl(control_plane, &get).await? == before, "a definition is changed or added");
    Ok(())
}
