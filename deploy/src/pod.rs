//! Common parts of the pods of all components.

use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, PodAffinityTerm,
    PodAntiAffinity, PodSecurityContext, Probe, ResourceRequirements, SeccompProfile, SecurityContext, Toleration,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::object::selector;
use crate::options::{Component, Options};

/// An arbitrary user other than root: nothing in the images belongs to it.
const USER: i64 = 65532;

/// Port of health, readiness and metrics, plain HTTP.
pub(crate) const PLAIN_PORT: i32 = 8080;

/// Number of old replica sets or revisions of a workload that are kept: enough to roll back once or twice.
pub(crate) const REVISIONS: i32 = 3;

/// An environment variable with a field of the pod, for use in arguments as `$(NAME)`.
pub(crate) fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), ..ObjectFieldSelector::default() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

pub(crate) fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        // The server's default, and part of the key of this list: an apply without it conflicts with itself.
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A probe of [`PLAIN_PORT`].
pub(crate) fn probe(path: &str, period_seconds: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(PLAIN_PORT),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(2),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// Requests of CPU and memory, and a memory limit. CPU has no limit: throttling during a drain is harmful.
pub(crate) fn resources(cpu: &str, memory: &str, memory_limit: &str) -> ResourceRequirements {
    let quantity = |text: &str| Quantity(text.to_owned());
    ResourceRequirements {
        requests: Some([("cpu".to_owned(), quantity(cpu)), ("memory".to_owned(), quantity(memory))].into()),
        limits: Some([("memory".to_owned(), quantity(memory_limit))].into()),
        ..ResourceRequirements::default()
    }
}

/// The pod's share of the `restricted` pod security standard.
pub(crate) fn restricted_pod() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        // In the pod and not in the container, so that the kubelet makes projected tokens readable for this user.
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..PodSecurityContext::default()
    }
}

/// The container's share of the `restricted` pod security standard, and a read-only root file system.
pub(crate) fn restricted_container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// Time in seconds that a pod stays on a node that does not respond before it is replaced; Kubernetes' default is 300.
/// While it stays it uses up its budget, and so blocks the drain of the node of the other replica.
const SILENT: i64 = 30;

/// Tolerations for cordoned nodes, since these pods uncordon them; unresponsive ones for [`SILENT`] seconds only.
pub(crate) fn tolerations() -> Vec<Toleration> {
    let tolerates = |key: &str, effect: &str, seconds| Toleration {
        key: Some(format!("node.kubernetes.io/{key}")),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        toleration_seconds: seconds,
        ..Toleration::default()
    };
    vec![
        tolerates("unschedulable", "NoSchedule", None),
        tolerates("not-ready", "NoExecute", Some(SILENT)),
        tolerates("unreachable", "NoExecute", Some(SILENT)),
    ]
}

/// Spreads the pods over nodes if possible: a cluster of one node runs everything.
pub(crate) fn apart(component: Component) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(selector(component)),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: term,
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Replaces one pod at a time, with a new one beside it.
pub(crate) fn one_at_a_time() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_unavailable: Some(IntOrString::Int(1)),
            max_surge: Some(IntOrString::Int(1)),
        }),
    }
}

/// Returns a program's arguments: these, and those that all programs have.
pub(crate) fn args(words: impl IntoIterator<Item = String>, options: &Options) -> Option<Vec<String>> {
    let common = options.log_format.iter().map(|format| format!("--log-format={format}"));
    Some(words.into_iter().chain(common).collect())
}
