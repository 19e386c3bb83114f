//! The agents' DaemonSet.

use models::names::{
    AGENT_NAMESPACE, APISERVER, INTERFACE_LABEL, INTERFACE_VERSION, SYSTEM_NAMESPACE, TOKEN_AUDIENCE, TRUST_CONFIG_MAP,
};
use serde_json::{Value, json};

use crate::options::{Component, Options};
use crate::pod;

const COMPONENT: Component = Component::Agent;

/// The host API's socket, on the host and in the pod.
const SOCKET: &str = "/run/api.sock";
/// Group of the host API's socket on Bottlerocket.
const SOCKET_GROUP: i64 = 274;
/// Mount path of the agent's token.
const TOKEN_DIRECTORY: &str = "/var/run/secrets/brupop";
/// Mount path of the CA bundle and the public keys of the permits.
const TRUST_DIRECTORY: &str = "/etc/brupop/trust";
/// Mount path of the directory for the probes' file, in memory.
const ALIVE_DIRECTORY: &str = "/run/brupop";
/// The shortest life of a token that Kubernetes permits, in seconds: a stolen one soon expires.
const TOKEN_SECONDS: i64 = 600;

pub(crate) fn daemon_set(options: &Options) -> Value {
    let args = vec![
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--host-socket={SOCKET}"),
        "--boot-id-file=/proc/sys/kernel/random/boot_id".to_owned(),
        format!("--server-url=https://{APISERVER}.{SYSTEM_NAMESPACE}.svc"),
        format!("--token-file={TOKEN_DIRECTORY}/token"),
        format!("--trust-dir={TRUST_DIRECTORY}"),
        alive_file(),
    ];
    let mut container = pod::container("agent", COMPONENT, options, args, ["5m", "8Mi", "32Mi"]);
    container["env"] = json!([pod::field("NODE_NAME", "spec.nodeName")]);
    container["volumeMounts"] = json!([
        {"name": "host-api", "mountPath": SOCKET},
        {"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": true},
        {"name": "trust", "mountPath": TRUST_DIRECTORY, "readOnly": true},
        {"name": "alive", "mountPath": ALIVE_DIRECTORY},
    ]);
    // A stuck or disconnected agent is not Ready within 90 s, from which the controller knows of it. It is restarted only
    // if it gives no sign of life for minutes: an agent that waits for the host or the web API is healthy, and a probe
    // that times out on a busy node is no proof.
    container["readinessProbe"] = probe("connected", 10, 5, 2);
    container["livenessProbe"] = probe("alive", 30, 30, 5);
    let mut security = pod::restricted_pod();
    security["supplementalGroups"] = json!([SOCKET_GROUP]);
    // The host's policy lets only its own control processes write to the socket.
    security["seLinuxOptions"] = json!({"user": "system_u", "role": "system_r", "type": "control_t", "level": "s0"});
    let token = json!({"audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"});
    let pod = json!({
        "serviceAccountName": COMPONENT.name(),
        // The only token is the one below, which the cluster's own API does not accept.
        "automountServiceAccountToken": false,
        "nodeSelector": {INTERFACE_LABEL: INTERFACE_VERSION},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        "securityContext": security,
        // The agent has nothing to finish: a host call that is under way ends on the host.
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            // The host API's socket and nothing around it.
            {"name": "host-api", "hostPath": {"path": SOCKET, "type": "Socket"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
            // The leader publishes it, perhaps after this pod has started; the agent waits for it.
            {"name": "trust", "configMap": {"name": TRUST_CONFIG_MAP, "optional": true}},
            // The agent serves no port: its probes read what it writes here.
            {"name": "alive", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}},
        ],
    });
    let mut workload = pod::workload("DaemonSet", AGENT_NAMESPACE, COMPONENT, &pod);
    workload["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}});
    workload
}

fn alive_file() -> String {
    format!("--alive-file={ALIVE_DIRECTORY}/alive")
}

/// A probe that runs the agent's program once more in its container.
fn probe(check: &str, period: i32, timeout: i32, failures: i32) -> Value {
    let command = [format!("/{}", COMPONENT.name()), format!("--check={check}"), alive_file()];
    json!({
        "exec": {"command": command},
        "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures,
    })
}
