//! The DNS of the cluster: CoreDNS as a process of this machine, behind a Service as pods know it.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context as _;
use kube::Client;
use serde_json::json;
use tokio::process::{Child, Command};

use super::network::GATEWAY;
use crate::bed::workload;
use crate::control_plane::{ControlPlane, marked};

/// Address of the Service, as the kubelets of the guests have it.
const SERVICE: &str = "10.96.0.10";

/// Starts CoreDNS and publishes it to the pods. It ends when the child is dropped.
pub(super) async fn start(program: &Path, control_plane: &ControlPlane, client: &Client) -> anyhow::Result<Child> {
    let folder = control_plane.dir();
    let corefile = format!(
        ".:53 {{\n  errors\n  kubernetes cluster.local {{\n    kubeconfig {}\n  }}\n}}\n",
        control_plane.kubeconfig().display()
    );
    std::fs::write(folder.join("Corefile"), corefile)?;
    let log = std::fs::File::create(folder.join("coredns.log"))?;
    let mut command = Command::new(program);
    command.arg("-conf").arg(folder.join("Corefile")).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    marked(&mut command, folder);
    let child = command.kill_on_drop(true).spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let labels = json!({"kubernetes.io/service-name": "kube-dns"});
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]);
    workload::apply(
        client,
        vec![
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {"clusterIP": SERVICE, "ports": ports},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
                "ports": ports, "endpoints": [{"addresses": [GATEWAY.to_string()], "conditions": {"ready": true}}],
            }),
        ],
    )
    .await?;
    Ok(child)
}
