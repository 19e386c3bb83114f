//! The agents' DaemonSet.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, HostPathVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
    ProjectedVolumeSource, SELinuxOptions, ServiceAccountTokenProjection, Toleration, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, INTERFACE_LABEL, INTERFACE_VERSION, SYSTEM_NAMESPACE, TOKEN_AUDIENCE,
    TRUST_CONFIG_MAP,
};
use serde_json::Value;

use crate::object::{labels, namespaced, selector, value};
use crate::options::{Component, Options, image};
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
/// The shortest life of a token that Kubernetes permits, in seconds: a stolen one soon expires.
const TOKEN_SECONDS: i64 = 600;

pub(crate) fn all(options: &Options) -> anyhow::Result<Vec<Value>> {
    Ok(vec![value(daemon_set(options))?])
}

fn daemon_set(options: &Options) -> DaemonSet {
    let container = Container {
        name: "agent".to_owned(),
        image: Some(image(COMPONENT, options)),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: pod::args(
            [
                "--node-name=$(NODE_NAME)".to_owned(),
                format!("--host-socket={SOCKET}"),
                "--boot-id-file=/proc/sys/kernel/random/boot_id".to_owned(),
                format!("--server-url=https://{APISERVER}.{SYSTEM_NAMESPACE}.svc"),
                format!("--token-file={TOKEN_DIRECTORY}/token"),
                format!("--trust-dir={TRUST_DIRECTORY}"),
            ],
            options,
        ),
        env: Some(vec![pod::field("NODE_NAME", "spec.nodeName")]),
        resources: Some(pod::resources("5m", "8Mi", "32Mi")),
        security_context: Some(pod::restricted_container()),
        volume_mounts: Some(vec![
            VolumeMount { name: "host-api".to_owned(), mount_path: SOCKET.to_owned(), ..VolumeMount::default() },
            read_only("token", TOKEN_DIRECTORY),
            read_only("trust", TRUST_DIRECTORY),
        ]),
        ..Container::default()
    };
    let template = PodSpec {
        service_account_name: Some(AGENT.to_owned()),
        // The only token is the one below, which the cluster's own API does not accept.
        automount_service_account_token: Some(false),
        node_selector: Some([(INTERFACE_LABEL.to_owned(), INTERFACE_VERSION.to_owned())].into()),
        tolerations: Some(vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]),
        priority_class_name: Some("system-node-critical".to_owned()),
        security_context: Some(PodSecurityContext {
            supplemental_groups: Some(vec![SOCKET_GROUP]),
            // The host's policy lets only its own control processes write to the socket.
            se_linux_options: Some(SELinuxOptions {
                user: Some("system_u".to_owned()),
                role: Some("system_r".to_owned()),
                type_: Some("control_t".to_owned()),
                level: Some("s0".to_owned()),
            }),
            ..pod::restricted_pod()
        }),
        // The agent has nothing to finish: a host call that is under way ends on the host.
        termination_grace_period_seconds: Some(5),
        containers: vec![container],
        volumes: Some(vec![host_socket(), token(), trust()]),
        ..PodSpec::default()
    };
    DaemonSet {
        metadata: namespaced(AGENT_NAMESPACE, AGENT),
        spec: DaemonSetSpec {
            revision_history_limit: Some(pod::REVISIONS),
            selector: selector(COMPONENT),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(COMPONENT)), ..ObjectMeta::default() }),
                spec: Some(template),
            },
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_unavailable: Some(IntOrString::String("10%".to_owned())),
                    ..RollingUpdateDaemonSet::default()
                }),
            }),
            ..DaemonSetSpec::default()
        },
        ..DaemonSet::default()
    }
}

fn read_only(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), read_only: Some(true), ..VolumeMount::default() }
}

/// The host API's socket and nothing around it.
fn host_socket() -> Volume {
    Volume {
        name: "host-api".to_owned(),
        host_path: Some(HostPathVolumeSource { path: SOCKET.to_owned(), type_: Some("Socket".to_owned()) }),
        ..Volume::default()
    }
}

fn token() -> Volume {
    Volume {
        name: "token".to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(ServiceAccountTokenProjection {
                    audience: Some(TOKEN_AUDIENCE.to_owned()),
                    expiration_seconds: Some(TOKEN_SECONDS),
                    path: "token".to_owned(),
                    ..ServiceAccountTokenProjection::default()
                }),
                ..VolumeProjection::default()
            }]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn trust() -> Volume {
    Volume {
        name: "trust".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: TRUST_CONFIG_MAP.to_owned(),
            // The leader publishes it, perhaps after this pod has started; the agent waits for it.
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}
