//! The rights of users by the roles of the cluster, to which those of the operator's resources are added.

use std::time::Duration;

use anyhow::ensure;
use integ::control_plane::{ControlPlane, Options};
use models::names::SYSTEM_NAMESPACE;

use crate::helm::{DEFINITIONS, Helm, OPERATOR, kubectl};

const OPERATORS: &str = "bottlerocketupdateoperators";
const SHADOWS: &str = "bottlerocketshadows";
const HISTORIES: &str = "bottlerocketrollouthistories";

/// Returns true if a user may do something in the operator's namespace.
async fn may(control_plane: &ControlPlane, user: &str, verb: &str, resource: &str) -> anyhow::Result<bool> {
    let resource = format!("{resource}.brupop.bottlerocket.aws");
    let mut command = control_plane.kubectl_command();
    let output =
        command.args(["auth", "can-i", verb, &resource, "-n", SYSTEM_NAMESPACE, "--as", user]).output().await?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => anyhow::bail!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_of_the_cluster_contain_rights_to_the_resources() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let helm = Helm::find(Some(&control_plane)).await?;
    helm.line(&format!("install brupop-crds {DEFINITIONS} -n {SYSTEM_NAMESPACE} --create-namespace")).await?;
    helm.line(&format!("install brupop {OPERATOR} -n {SYSTEM_NAMESPACE}")).await?;
    for role in ["view", "edit", "admin"] {
        let (bound, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
        kubectl(&control_plane, &["create", "rolebinding", role, &bound, &user, "-n", SYSTEM_NAMESPACE]).await?;
    }
    // The controller manager adds them, a moment later.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
    while !may(&control_plane, "admin", "delete", HISTORIES).await? {
        ensure!(tokio::time::Instant::now() < deadline, "the rights are not added in 300 s");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (verb, resource, view, edit, admin) in [
        ("watch", SHADOWS, true, true, true),
        ("list", OPERATORS, true, true, true),
        ("get", HISTORIES, true, true, true),
        ("patch", OPERATORS, false, true, true),
        ("create", OPERATORS, false, true, true),
        ("patch", SHADOWS, false, true, true),
        ("patch", HISTORIES, false, false, false),
        ("create", SHADOWS, false, false, false),
        ("create", HISTORIES, false, false, false),
        ("delete", OPERATORS, false, false, true),
        ("delete", SHADOWS, false, false, true),
        ("delete", HISTORIES, false, false, true),
    ] {
        for (user, expected) in [("view", view), ("edit", edit), ("admin", admin), ("other", false)] {
            let found = may(&control_plane, user, verb, resource).await?;
            ensure!(found == expected, "{user} may {verb} {resource}: {found}");
        }
    }
    control_plane.stop().await
}
