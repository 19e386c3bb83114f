//! What the pods of all parts share.

use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, PodAffinityTerm,
    PodAntiAffinity, PodSecurityContext, Probe, ResourceRequirements, SeccompProfile, SecurityContext, Toleration,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::Component;
use crate::object::selector;

/// Any user but root: nothing in the images belongs to it.
const USER: i64 = 65532;

/// Port of health, readiness and metrics, plain HTTP.
pub(crate) const PLAIN_PORT: i32 = 8080;

/// How many old replica sets or revisions of a workload are kept: enough to go back once or twice.
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

/// Requests of processor time and memory, and a limit of memory. Processor time has no limit: to be throttled in the
/// middle of a drain helps no one.
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
        // In the pod and not in the container: so that the kubelet gives projected tokens to this user.
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..PodSecurityContext::default()
    }
}

/// The container's share of the `restricted` pod security standard, and a root file system that no one writes.
pub(crate) fn restricted_container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// For how many seconds a pod stays on a node that does not answer before it is replaced; Kubernetes' default is 300. While it
/// stays it uses up its budget, and with it the drain of the node that the other replica is on.
const SILENT: i64 = 30;

/// Cordoned nodes are good enough for what uncordons them, and silent ones are not.
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

/// Apart if there is room, together if there is not: a cluster of one node runs everything.
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

/// One pod at a time, with a new one beside it.
pub(crate) fn one_at_a_time() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_unavailable: Some(IntOrString::Int(1)),
            max_surge: Some(IntOrString::Int(1)),
        }),
    }
}

/// Arguments of a program.
pub(crate) fn args<const N: usize>(words: [String; N]) -> Option<Vec<String>> {
    Some(words.into())
}
