//! The files that make a guest a certain node: a tar as a raw disk, which the guest unpacks to `/etc` at each boot.

use std::path::Path;

use anyhow::ensure;
use serde_json::json;
use tokio::process::Command;

use super::network::{GATEWAY, address, pods};
use crate::control_plane::ControlPlane;

/// Size of the disk, in bytes. QEMU wants it to stay the same.
const SIZE: u64 = 1 << 20;

/// Writes the seed of the node `name` with this number. `others` are the numbers of the other guests.
pub(super) async fn write(
    control_plane: &ControlPlane,
    folder: &Path,
    name: &str,
    number: u8,
    others: &[u8],
) -> anyhow::Result<()> {
    let etc = folder.join("etc");
    let routes: Vec<String> = others.iter().map(|other| format!("{}={}", pods(*other), address(*other))).collect();
    let environment = format!(
        "NODE={name}\nADDRESS={}\nGATEWAY={GATEWAY}\nROUTES=\"{}\"\nLABELS=example.com/machine=virtual\n",
        address(number),
        routes.join(" ")
    );
    let kubelet = control_plane.node_kubeconfig(&format!("system:node:{name}"), &["system:nodes"])?;
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": pods(number)}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    for (path, content) in [
        ("node.env", environment),
        ("kubernetes/ca.crt", control_plane.ca_pem().to_owned()),
        ("kubernetes/kubelet.kubeconfig", kubelet),
        ("kubernetes/kube-proxy.kubeconfig", control_plane.node_kubeconfig("system:kube-proxy", &[])?),
        ("cni/net.d/10-pods.conflist", bridge.to_string()),
    ] {
        let path = etc.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&etc))?;
        std::fs::write(path, content)?;
    }
    let seed = folder.join("seed");
    let tar = Command::new("tar").arg("-cf").arg(&seed).arg("-C").arg(&etc).arg(".").output().await?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr));
    let file = std::fs::OpenOptions::new().write(true).open(&seed)?;
    ensure!(file.metadata()?.len() <= SIZE, "the seed of {name} is larger than its disk");
    file.set_len(SIZE)?;
    Ok(())
}
