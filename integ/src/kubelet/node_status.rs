//! A Node's status as a kubelet reports it, from the state of its machine. The stand-in and scripted nodes write the same.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use serde_json::{Value, json};

/// The version that the nodes report: the control plane's.
const KUBELET_VERSION: &str = "v1.37.1";

/// The facts that do not change while a machine runs, and those that change with its boot.
pub fn facts(node: &str, address: Ipv4Addr, boot_id: &str, os_image: &str) -> Value {
    let resources = json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let id = machine_id(node);
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": address.to_string()},
            {"type": "Hostname", "address": node},
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": boot_id,
            "containerRuntimeVersion": "containerd://2.1.5+bottlerocket",
            "kernelVersion": "6.1.150",
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": id,
            "operatingSystem": "linux",
            "osImage": os_image,
            "systemUUID": id,
        },
    })
}

/// The conditions that a kubelet reports; transition times move only when the status does.
pub fn conditions(shutting_down: bool, known: &[NodeCondition], now: Timestamp) -> Vec<Value> {
    let ready = if shutting_down {
        ("Ready", "False", "KubeletNotReady", "node is shutting down")
    } else {
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status")
    };
    let pressures = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ];
    let stamp = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    pressures
        .into_iter()
        .chain([ready])
        .map(|(kind, status, reason, message)| {
            let before = known.iter().find(|c| c.type_ == kind && c.status == status);
            let since = before.and_then(|c| c.last_transition_time.as_ref()).map_or(now, |t| t.0);
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": stamp(now), "lastTransitionTime": stamp(since),
            })
        })
        .collect()
}

/// A machine id from the name, so that it is the same over boots.
fn machine_id(name: &str) -> String {
    // FNV-1a, twice with different starts: stable over runs is enough.
    let hash = |start: u64| name.bytes().fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_ids_are_stable_and_differ_between_nodes() {
        assert_eq!(machine_id("a"), machine_id("a"));
        assert_ne!(machine_id("a"), machine_id("b"));
        assert_eq!(machine_id("a").len(), 32);
    }
}
