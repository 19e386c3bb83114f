//! Names that more than one part, a manifest or a user uses. Each is defined here once.

/// API group of all custom resources of the operator.
pub const GROUP: &str = "brupop.bottlerocket.aws";

/// Name of the shadows' definition, this operator's and the earlier one's.
pub const SHADOW_DEFINITION: &str = "bottlerocketshadows.brupop.bottlerocket.aws";

/// Namespace of the controller, the web API, the shadows and the operator's resource.
pub const SYSTEM_NAMESPACE: &str = "brupop-system";
/// Namespace of the agents. It is another one because the agents' pods mount the host's socket, which no namespace that
/// enforces the `restricted` pod security standard admits.
pub const AGENT_NAMESPACE: &str = "brupop-agents";

/// Name of the controller's Deployment, service account and Lease.
pub const CONTROLLER: &str = "brupop-controller";
/// Name of the Role for Jobs of hooks in a namespace and of its binding, and of the admission policy for new Jobs and a binding of that.
pub const CONTROLLER_JOBS: &str = "brupop-controller-jobs";
/// Name of the web API's Deployment, Service and service account.
pub const APISERVER: &str = "brupop-apiserver";
/// Name of the agents' DaemonSet and service account.
pub const AGENT: &str = "brupop-agent";
/// Name of the program that answers the hook [`AWS_HOOK`], and of its Deployment, service account and record.
pub const AWS: &str = "brupop-aws";
/// Name of the hook that keeps EC2 Auto Scaling groups from replacing nodes.
pub const AWS_HOOK: &str = "aws-autoscaling";

/// Label of everything that is installed.
pub const APPLICATION_LABEL: &str = "app.kubernetes.io/name";
/// Value of [`APPLICATION_LABEL`].
pub const APPLICATION: &str = "brupop";
/// Label of the pods: which part they are, as [`CONTROLLER`], [`APISERVER`] or [`AGENT`].
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";

/// Label of the namespaces whose pods may read the operator's metrics, and in which the controller may query Prometheus.
pub const METRICS_LABEL: &str = "brupop.bottlerocket.aws/metrics";
/// Value of [`METRICS_LABEL`].
pub const METRICS_ENABLED: &str = "enabled";

/// Audience of the agents' projected tokens: valid for the operator's web API and for nothing else.
pub const TOKEN_AUDIENCE: &str = "brupop-apiserver";

/// Field manager of everything that the controller applies.
pub const CONTROLLER_MANAGER: &str = "brupop-controller";
/// Field manager of what the web API applies: the agent status of a shadow.
pub const AGENT_MANAGER: &str = "brupop-agent";
/// Field manager under which the controller sets `HostReachable` of a silent agent. A manager of its own, from which the
/// agent's next report may take the condition: the web API may take nothing from [`CONTROLLER_MANAGER`].
pub const SILENCE_MANAGER: &str = "brupop-controller-silence";
/// Field manager of what the plugin writes for its user, or the beginning of it. Of the managers whose names begin with `kubectl`, Flux removes
/// in each object that it applies the fields that Git does not have.
pub const PLUGIN_MANAGER: &str = "brupop-plugin";

/// Label of the nodes that the operator updates, as Bottlerocket users know it.
pub const INTERFACE_LABEL: &str = "bottlerocket.aws/updater-interface-version";
/// Value of [`INTERFACE_LABEL`] for the host API that the agent uses.
pub const INTERFACE_VERSION: &str = "2.0.0";

/// Annotation on a Node: no new attempt starts, a running one ends, and a cordon of the operator stays until it is removed.
pub const HOLD_ANNOTATION: &str = "brupop.bottlerocket.aws/hold";

/// Annotation on a Node during an attempt: the request to all hooks, which its removal withdraws.
pub const HOOKS_ANNOTATION: &str = "brupop.bottlerocket.aws/hooks";
/// Prefix of the annotations on a Node with the answers of hooks, before the name of the hook.
pub const HOOK_ANSWER_PREFIX: &str = "hook.brupop.bottlerocket.aws/";

/// Label of a Job that the controller runs for a hook, and of its pods: the name of the hook.
pub const HOOK_LABEL: &str = "brupop.bottlerocket.aws/hook";
/// Label of such a Job: the name of the `PodTemplate` that its pods are made by.
pub const POD_TEMPLATE_LABEL: &str = "brupop.bottlerocket.aws/pod-template";
/// Annotation of such a Job and of its pods: the node that it is about.
pub const JOB_NODE_ANNOTATION: &str = "brupop.bottlerocket.aws/node";
/// The same: the version that the node is updated to; empty where that is not known any more.
pub const JOB_VERSION_ANNOTATION: &str = "brupop.bottlerocket.aws/version";
/// The same: the attempt, as the request to hooks names it after its phase.
pub const JOB_ATTEMPT_ANNOTATION: &str = "brupop.bottlerocket.aws/attempt";
/// The same: `before` or `after`.
pub const JOB_PHASE_ANNOTATION: &str = "brupop.bottlerocket.aws/phase";
/// The same: number of the Job among those of its hook, node and attempt.
pub const JOB_NUMBER_ANNOTATION: &str = "brupop.bottlerocket.aws/number";
/// Annotation of such a Job: the request that it answers. One after the end of an attempt has none.
pub const JOB_REQUEST_ANNOTATION: &str = "brupop.bottlerocket.aws/request";
/// Annotation of a Job before a drain: the `PodTemplate` that takes back what it has prepared.
pub const JOB_AFTER_ANNOTATION: &str = "brupop.bottlerocket.aws/after";

/// Annotation on the operator's resource: failures of versions are resolved and the rollout continues. Its value names the
/// request; a value that is acknowledged in `status.requests` is not carried out again.
pub const RESUME_ANNOTATION: &str = "brupop.bottlerocket.aws/resume";
/// Annotation on the operator's resource: versions that have frozen the rollout are held for their variant and architecture alone, and the
/// other nodes go on. Its value is the time of the last failure that it covers.
pub const CONTINUE_OTHERS_ANNOTATION: &str = "brupop.bottlerocket.aws/continue-others";
/// Annotation on the operator's resource: the canary step that waits for approval has it. Its value names the request.
pub const APPROVE_STEP_ANNOTATION: &str = "brupop.bottlerocket.aws/approve-step";
/// Annotation on the operator's resource: a new certificate authority is made and takes over. Its value names the request; on the
/// Secret of the authorities, the last one that was begun.
pub const ROTATE_CERTIFICATES_ANNOTATION: &str = "brupop.bottlerocket.aws/rotate-certificates";
/// The same for the key that signs permits and statements of settings, and its Secret.
pub const ROTATE_SIGNING_KEY_ANNOTATION: &str = "brupop.bottlerocket.aws/rotate-signing-key";
/// Annotation on the operator's resource: stored shadows are migrated to the storage version, also where that was done
/// before. Its value names the request.
pub const MIGRATE_STORAGE_ANNOTATION: &str = "brupop.bottlerocket.aws/migrate-storage";
/// Annotation on the operator's resource: every receiver of notices gets one more, which is about nothing. Its value names the
/// request.
pub const TEST_NOTICES_ANNOTATION: &str = "brupop.bottlerocket.aws/test-notices";
/// Annotation on a shadow while its migration is under way: its content in the earlier operator's version.
pub const MIGRATED_FROM_ANNOTATION: &str = "brupop.bottlerocket.aws/migrated-from";
/// Annotation on a shadow: the node's back-off ends, and an armed image without a record of its agent may be disarmed. Its value
/// names the request.
pub const RETRY_ANNOTATION: &str = "brupop.bottlerocket.aws/retry";
/// Annotation on a shadow: the attempt under way ends and the node is released. Its value names the request.
pub const RELEASE_ANNOTATION: &str = "brupop.bottlerocket.aws/release";
/// Annotation on a shadow: an update of the node is rehearsed, without a reboot. Its value names the request, and may contain
/// the words `evict` and `download`.
pub const DRILL_ANNOTATION: &str = "brupop.bottlerocket.aws/drill";

/// Label on a Node that takes it out of external load balancers, whatever its value (Kubernetes' own).
pub const BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Annotation on a Node: the cluster autoscaler leaves it alone while it is `true` (the autoscaler's own).
pub const SCALE_DOWN_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation on a Node, or on a pod: Karpenter leaves it alone while it is `true` (Karpenter's own).
pub const DO_NOT_DISRUPT_ANNOTATION: &str = "karpenter.sh/do-not-disrupt";

/// Annotation on a pod: the cluster autoscaler does not evict it while it is `false` (the autoscaler's own).
pub const SAFE_TO_EVICT_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// Label on a Node, a whole number: nodes with a higher one come first. Default 0.
pub const PRIORITY_LABEL: &str = "brupop.bottlerocket.aws/priority";
/// Label on a Node of the control plane (Kubernetes' own).
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";
/// Annotation on a mirror pod, which a kubelet creates for a static pod of its node (Kubernetes' own).
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Taint of a cordoned Node, which the control plane adds with its time (Kubernetes' own).
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";
/// Taints of Nodes that others are removing: those of the cluster autoscaler and of Karpenter, and that of a machine which a user
/// has declared gone (Kubernetes' own).
pub const REMOVAL_TAINTS: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "node.kubernetes.io/out-of-service"];
/// Label on a Node: its zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Field manager of the label that puts a node under the operator, where the operator sets it.
pub const LABEL_MANAGER: &str = "brupop-labels";

/// Label of a policy revision: the name of the operator's resource that it belongs to.
pub const OPERATOR_LABEL: &str = "brupop.bottlerocket.aws/operator";
/// Label of a policy revision: the hash in its name (Kubernetes' own).
pub const HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// Label of a shadow: the name of the policy revision that its node was last brought to (Kubernetes' own key for pods).
pub const REVISION_LABEL: &str = "controller-revision-hash";
/// Annotation on the operator's resource, and on the policy revisions made of it: the cause of a change (kubectl's own).
pub const CHANGE_CAUSE_ANNOTATION: &str = "kubernetes.io/change-cause";

/// Label of the objects of the rollout history: [`RECORD`] or [`PAGE`].
pub const HISTORY_LABEL: &str = "brupop.bottlerocket.aws/history";
/// Value of [`HISTORY_LABEL`] on the record of a rollout.
pub const RECORD: &str = "record";
/// Value of [`HISTORY_LABEL`] on a page.
pub const PAGE: &str = "page";
/// Label of the objects of the rollout history: the name of the record.
pub const RECORD_LABEL: &str = "brupop.bottlerocket.aws/record";
/// Annotation on a page of the rollout history: its size as JSON, in bytes.
pub const BYTES_ANNOTATION: &str = "brupop.bottlerocket.aws/bytes";
/// Secret with the key that signs the records of ended rollouts.
pub const HISTORY_KEY_SECRET: &str = "brupop-history-key";
/// ConfigMap with the public keys of these records, by key id, each a JWK.
pub const HISTORY_KEYS: &str = "brupop-history-keys";

/// Name of the one operator's resource that counts.
pub const OPERATOR_NAME: &str = "default";

/// Secret with the certificate authority's key. Only the controller reads it.
pub const CA_SECRET: &str = "brupop-ca";
/// Secret with the web API's serving certificate and key.
pub const SERVING_SECRET: &str = "brupop-apiserver-tls";
/// Secret with the key that signs permits.
pub const PERMIT_KEY_SECRET: &str = "brupop-permit-key";
/// Secret with the addresses and tokens of receivers of notices. A user creates it.
pub const NOTICES_SECRET: &str = "brupop-notices";
/// Secret with the credentials for Prometheus: `token`, or `username` and `password`. A user creates it.
pub const PROMETHEUS_SECRET: &str = "brupop-prometheus";
/// ConfigMap in the agents' namespace: the CA bundle and the public keys of permits.
pub const TRUST_CONFIG_MAP: &str = "brupop-trust";
/// Key of [`TRUST_CONFIG_MAP`] that holds the CA bundle, PEM.
pub const TRUST_CA_KEY: &str = "ca.crt";
/// Key of [`TRUST_CONFIG_MAP`] that holds the public keys of permits, a JWKS.
pub const TRUST_PERMIT_KEYS: &str = "permit-keys.json";

/// Annotation on [`TRUST_CONFIG_MAP`]: since when each certificate and key in it has been published, by digest.
pub const PUBLISHED_ANNOTATION: &str = "brupop.bottlerocket.aws/published";

/// Prefix of a shadow's name.
const SHADOW_PREFIX: &str = "brs-";

/// Name of the shadow of a node.
///
/// ```
/// assert_eq!(models::names::shadow_name("ip-10-0-0-1"), "brs-ip-10-0-0-1");
/// ```
pub fn shadow_name(node: &str) -> String {
    format!("{SHADOW_PREFIX}{node}")
}

/// The node that a shadow is named after.
///
/// ```
/// assert_eq!(models::names::node_of_shadow("brs-ip-10-0-0-1"), "ip-10-0-0-1");
/// ```
pub fn node_of_shadow(shadow: &str) -> &str {
    shadow.strip_prefix(SHADOW_PREFIX).unwrap_or(shadow)
}
