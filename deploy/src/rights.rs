//! RBAC rights. Every rule has its reason; there are no wildcards, and the agents have no rights at all.

use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, AWS, CA_SECRET, CONTROLLER, GROUP, HISTORY_KEY_SECRET, HISTORY_KEYS,
    OPERATOR_NAME, PERMIT_KEY_SECRET, SERVING_SECRET, SYSTEM_NAMESPACE, TRUST_CONFIG_MAP,
};
use serde_json::{Value, json};

use crate::object::{cluster, namespaced};

/// Namespace in which the API server requires Events about cluster-scoped objects, such as Nodes.
const NODE_EVENTS: &str = "default";

/// Namespace of the kubelets' Leases.
const NODE_LEASES: &str = "kube-node-lease";

/// Name of the definition whose objects the controller migrates.
const SHADOWS: &str = "bottlerocketshadows.brupop.bottlerocket.aws";

const RBAC: &str = "rbac.authorization.k8s.io";
const CORE: &str = "";
const EVENTS: &str = "events.k8s.io";
const DEFINITIONS: &str = "apiextensions.k8s.io";
const LEASES: &str = "coordination.k8s.io";

/// A rule and its reason, which is also written above it in the manifests.
struct Rule {
    rule: Value,
    why: &'static str,
}

/// The rights of one account, in all namespaces or in one.
struct Granted {
    /// Name of the role and of its binding.
    name: &'static str,
    account: &'static str,
    /// Namespace; absent: the whole cluster.
    namespace: Option<&'static str>,
    rules: Vec<Rule>,
}

pub(crate) fn all() -> Vec<Value> {
    let mut objects = accounts_and_roles();
    objects.extend(aggregated());
    objects
}

/// The service accounts, and what each may do.
pub(crate) fn accounts_and_roles() -> Vec<Value> {
    let mut objects = vec![
        service_account(SYSTEM_NAMESPACE, CONTROLLER),
        service_account(SYSTEM_NAMESPACE, APISERVER),
        // No role is bound to this account: it is only a name by which the web API authenticates the agents.
        service_account(AGENT_NAMESPACE, AGENT),
    ];
    objects.extend(installed().iter().flat_map(Granted::objects));
    objects
}

/// The rights of users to the operator's resources: parts of the cluster's roles `view`, `edit` and `admin`, to which the
/// API server adds them. They are bound to no account of the operator.
pub(crate) fn aggregated() -> Vec<Value> {
    for_users().iter().map(|(to, rules)| aggregated_role(to, rules)).collect()
}

/// The additional rights of the controller if policy has `drain.atDeadline: Force`. Not part of the installation.
pub(crate) fn force() -> Vec<Value> {
    forced().objects().into()
}

/// The service account of the hook for AWS, and what it may do. Not part of the installation.
pub(crate) fn aws() -> Vec<Value> {
    let mut objects = vec![service_account(SYSTEM_NAMESPACE, AWS)];
    objects.extend(granted_to_aws().iter().flat_map(Granted::objects));
    objects
}

/// The reason of each rule of a role, in the role's own order. Empty for other objects.
pub(crate) fn reasons(object: &Value) -> Vec<&'static str> {
    let granted = installed()
        .into_iter()
        .chain([forced()])
        .chain(granted_to_aws())
        .find(|granted| granted.objects()[0] == *object);
    let mut rules = granted.map(|granted| granted.rules);
    if rules.is_none() {
        let users = for_users().into_iter().find(|(to, rules)| aggregated_role(to, rules) == *object);
        rules = users.map(|(_, rules)| rules);
    }
    rules.into_iter().flatten().map(|rule| rule.why).collect()
}

/// The cluster's roles, with the rules that are added to them. `admin` contains `edit`, which contains `view`.
fn for_users() -> [(&'static str, Vec<Rule>); 3] {
    const NODES: &str = "bottlerocketshadows";
    const OPERATORS: &str = "bottlerocketupdateoperators";
    const HISTORIES: &str = "bottlerocketrollouthistories";
    let read = |resource| rule(GROUP, resource, "get list watch");
    [
        (
            "view",
            vec![
                read(NODES).why("The state of each node and of its update."),
                read(OPERATORS).why("The policy and the state of the rollout."),
                read(HISTORIES).why("The history of rollouts."),
            ],
        ),
        (
            "edit",
            vec![
                rule(GROUP, OPERATORS, "create patch update")
                    .why("The policy, and requests to the operator, which are annotations."),
                rule(GROUP, NODES, "patch update")
                    .why("Requests that concern one node: retry, release and drill, which are annotations."),
            ],
        ),
        (
            "admin",
            vec![
                rule(GROUP, OPERATORS, "delete").why("The end of all updates: the first step of an uninstallation."),
                rule(GROUP, NODES, "delete")
                    .why("A shadow that is left over; the controller creates those that it needs."),
                rule(GROUP, HISTORIES, "delete").why("Records of ended rollouts that are not to be kept."),
            ],
        ),
    ]
}

fn aggregated_role(to: &str, rules: &[Rule]) -> Value {
    let mut metadata = cluster(&format!("brupop-aggregate-to-{to}"));
    metadata["labels"][format!("{RBAC}/aggregate-to-{to}")] = "true".into();
    let rules: Vec<_> = rules.iter().map(|rule| &rule.rule).collect();
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules})
}

fn installed() -> Vec<Granted> {
    let of = |account, namespace, rules| Granted { name: account, account, namespace, rules };
    vec![
        of(CONTROLLER, None, controller_in_cluster()),
        of(CONTROLLER, Some(SYSTEM_NAMESPACE), controller_in_system()),
        of(
            CONTROLLER,
            Some(AGENT_NAMESPACE),
            vec![rule(CORE, "configmaps", "create list watch patch").named(&[TRUST_CONFIG_MAP]).why(
                "Trust of the agents: the CA bundle and the public keys of the permits. Made by an apply, which names \
                     it beforehand.",
            )],
        ),
        of(
            CONTROLLER,
            Some(NODE_LEASES),
            vec![rule(LEASES, "leases", "get").why(
                "Liveness of a node at the end of its soak, and after a withdrawn update: its Lease changes sooner \
                     than its condition.",
            )],
        ),
        of(
            CONTROLLER,
            Some(NODE_EVENTS),
            vec![
                rule(EVENTS, "events", "create patch")
                    .why("Events about a Node; repetitions are counted on the first Event."),
            ],
        ),
        Granted {
            name: "brupop-controller-migration",
            account: CONTROLLER,
            namespace: None,
            rules: controller_migration(),
        },
        of(APISERVER, None, apiserver_in_cluster()),
        of(
            APISERVER,
            Some(SYSTEM_NAMESPACE),
            vec![
                rule(GROUP, "bottlerocketshadows", "get list watch")
                    .why("Shadows, of which each agent is sent its own."),
                rule(GROUP, "bottlerocketshadows/status", "patch").why("The agent status of the shadows."),
            ],
        ),
    ]
}

fn forced() -> Granted {
    let why = "What is left on a node at its drain's deadline is deleted, each pod under its uid, past its budget.";
    let rules = vec![rule(CORE, "pods", "delete").why(why)];
    Granted { name: "brupop-controller-force", account: CONTROLLER, namespace: None, rules }
}

fn granted_to_aws() -> [Granted; 3] {
    let of = |namespace, rules| Granted { name: AWS, account: AWS, namespace, rules };
    [
        of(
            None,
            vec![
                rule(CORE, "nodes", "list watch patch")
                    .why("The requests to hooks, and the instance of each node; patch: the answers, an admission policy denies the rest."),
            ],
        ),
        of(
            Some(SYSTEM_NAMESPACE),
            vec![
                rule(GROUP, "bottlerocketupdateoperators", "list watch")
                    .named(&[OPERATOR_NAME])
                    .why("The mode, spec.autoscaling.aws."),
                rule(CORE, "configmaps", "create get patch")
                    .named(&[AWS])
                    .why("The record of what is to be taken back. Made by an apply, which names it beforehand."),
            ],
        ),
        of(
            Some(NODE_EVENTS),
            vec![rule(EVENTS, "events", "create patch").why("Events about a Node; repetitions are counted.")],
        ),
    ]
}

fn controller_in_cluster() -> Vec<Rule> {
    vec![
        rule(CORE, "nodes", "get list watch patch").why(
            "Nodes, their state and boot; patch: the claims (cordon, labels, annotations) and, where policy enables it, the \
             label that selects a node for updates. An admission policy denies all other fields.",
        ),
        rule(CORE, "pods", "list watch").why(
            "Pods on a node that is to be drained; standby replicas of the controller; readiness of the web API and the agents; \
             pods of the earlier operator, beside which nothing is done.",
        ),
        rule("apps", "daemonsets", "get list watch").why(
            "The DaemonSet that a pod names: an orphaned pod of one would not be created again. Those that want a node have a pod on it \
             again after its update.",
        ),
        rule("storage.k8s.io", "csinodes", "list watch")
            .why("The CSI drivers of each node: they are there again after its update."),
        rule("apps", "replicasets", "get")
            .why("The owner of a pod's ReplicaSet, for the history of rollouts; whether evicted pods are created again."),
        rule("batch", "jobs", "get").why("The CronJob that owns a pod's Job, for the history of rollouts."),
        rule(CORE, "services", "list watch")
            .why("The Services that select the pods of a drained node, for the history of rollouts."),
        rule(CORE, "pods/eviction", "create").why(
            "The drain. Pods are only ever evicted, so that budgets hold; nothing here may delete one \
             (brupop-controller-force may, where it is installed).",
        ),
        rule("policy", "poddisruptionbudgets", "list watch").why("PodDisruptionBudgets that block a drain."),
    ]
}

fn controller_migration() -> Vec<Rule> {
    vec![
        rule(DEFINITIONS, "customresourcedefinitions", "get watch")
            .named(&[SHADOWS])
            .why("The versions in which shadows may be stored."),
        rule(DEFINITIONS, "customresourcedefinitions/status", "patch")
            .named(&[SHADOWS])
            .why("status.storedVersions, pruned once every shadow is stored in the storage version."),
        rule(GROUP, "bottlerocketshadows", "get list patch").why(
            "Shadows of every namespace, also the earlier operator's: a version is removed only when none is stored in it. They \
             are rewritten in the storage version.",
        ),
        rule(GROUP, "bottlerocketshadows/status", "patch")
            .why("The failures that the earlier operator recorded, in the status of a rewritten shadow."),
    ]
}

fn controller_in_system() -> Vec<Rule> {
    vec![
        rule(GROUP, "bottlerocketshadows", "list watch create patch delete")
            .why("A shadow for each node, and its desired state."),
        rule(GROUP, "bottlerocketshadows/status", "patch").why("The controller's fields of a shadow's status."),
        rule(GROUP, "bottlerocketupdateoperators", "list watch")
            .named(&[OPERATOR_NAME])
            .why("The policy: it is read, never written."),
        rule(GROUP, "bottlerocketupdateoperators/status", "patch")
            .named(&[OPERATOR_NAME])
            .why("Slots, counts and conditions."),
        rule("apps", "controllerrevisions", "list watch create patch delete").why(
            "The policy's history, as Kubernetes keeps that of a DaemonSet; deleted once it is longer than the limit.",
        ),
        rule(GROUP, "bottlerocketrollouthistories", "list watch create delete")
            .why("The history of rollouts: written once; deleted once it is longer than the limits."),
        rule(GROUP, "bottlerocketrollouthistories/status", "patch")
            .why("The course of a rollout, until it has ended."),
        rule(CORE, "configmaps", "create list watch patch").named(&[HISTORY_KEYS]).why(
            "The public keys that verify the records of ended rollouts. Made by an apply, which names it beforehand.",
        ),
        rule(EVENTS, "events", "create patch")
            .why("Events about the policy; repetitions are counted on the first Event."),
        rule(LEASES, "leases", "create")
            .why("Leader election: the Lease is created once. A rule cannot name an object that is to be created."),
        rule(LEASES, "leases", "get list watch update").named(&[CONTROLLER]).why(
            "Leader election; the standby watches the Lease, so that it takes over at once. It records the namespaces of Jobs \
             of hooks.",
        ),
        rule(CORE, "secrets", "create").why(
            "The CA, the web API's certificate and the keys of the permits and of the history: made by the leader. A rule \
             cannot name an object that is to be created; an admission policy does.",
        ),
        rule(CORE, "secrets", "list watch update")
            .named(&[CA_SECRET, SERVING_SECRET, PERMIT_KEY_SECRET])
            .why("The CA, the web API's certificate and the key of the permits: watched and renewed by the leader."),
        rule(CORE, "secrets", "list watch").named(&[HISTORY_KEY_SECRET]).why("The key that signs records of ended rollouts."),
    ]
}

fn apiserver_in_cluster() -> Vec<Rule> {
    vec![
        rule("authentication.k8s.io", "tokenreviews", "create").why(
            "TokenReviews of the agents' tokens. They are all that makes the web API worth attacking, and all that it has \
             outside its namespace.",
        ),
        Rule {
            rule: json!({"nonResourceURLs": ["/openid/v1/jwks"], "verbs": ["get"]}),
            why: "The cluster's public keys, so that a token that it did not sign costs no TokenReview. Clusters grant this to every \
                  service account; where that was revoked, it is granted again here.",
        },
    ]
}

/// A rule without its reason.
fn rule(group: &str, resource: &str, verbs: &str) -> Rule {
    let verbs: Vec<_> = verbs.split(' ').collect();
    Rule { rule: json!({"apiGroups": [group], "resources": [resource], "verbs": verbs}), why: "" }
}

impl Rule {
    /// Restricts the rule to these objects.
    fn named(mut self, names: &[&str]) -> Self {
        self.rule["resourceNames"] = json!(names);
        self
    }

    fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

/// A service account. Its token is mounted only in pods that request it.
fn service_account(namespace: &str, name: &str) -> Value {
    let metadata = namespaced(namespace, name);
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": false,
    })
}

impl Granted {
    /// The role and its binding, to an account in the operator's own namespace.
    fn objects(&self) -> [Value; 2] {
        let (kind, metadata) = match self.namespace {
            Some(namespace) => ("Role", namespaced(namespace, self.name)),
            None => ("ClusterRole", cluster(self.name)),
        };
        let rules: Vec<_> = self.rules.iter().map(|rule| &rule.rule).collect();
        let api_version = format!("{RBAC}/v1");
        [
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules}),
            json!({
                "apiVersion": api_version, "kind": format!("{kind}Binding"), "metadata": metadata,
                "roleRef": {"apiGroup": RBAC, "kind": kind, "name": self.name},
                "subjects": [{"kind": "ServiceAccount", "name": self.account, "namespace": SYSTEM_NAMESPACE}],
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::PolicyRule;

    use super::*;

    /// Every rule of every role, with the right to delete pods.
    fn rules() -> Vec<PolicyRule> {
        let objects = [all(), force(), aws()].concat();
        let rules = objects.iter().filter_map(|object| object.get("rules"));
        rules.flat_map(|rules| serde_json::from_value::<Vec<PolicyRule>>(rules.clone()).unwrap()).collect()
    }

    #[test]
    fn rbac_rules_have_no_wildcards_or_escalation_verbs() {
        for rule in rules() {
            let text = serde_json::to_string(&rule).unwrap();
            assert!(!text.contains('*'), "{text}");
            for verb in ["deletecollection", "escalate", "bind", "impersonate"] {
                assert!(!rule.verbs.iter().any(|v| v == verb), "{text}");
            }
        }
    }

    #[test]
    fn every_rbac_rule_has_a_reason() {
        for object in [all(), force()].concat() {
            let (rules, reasons) = (object["rules"].as_array().map_or(0, Vec::len), reasons(&object));
            assert_eq!(rules, reasons.len(), "{object}");
            assert!(reasons.iter().all(|reason| reason.len() > 20 && reason.ends_with('.')), "{reasons:?}");
        }
    }

    #[test]
    fn existing_secrets_are_accessible_only_by_name() {
        for rule in rules() {
            let secrets = rule.resources.iter().flatten().any(|resource| resource == "secrets");
            if secrets && rule.verbs != ["create"] {
                assert!(rule.resource_names.is_some_and(|names| !names.is_empty()));
            }
        }
    }

    #[test]
    fn agents_have_no_role_bindings() {
        let objects = [all(), force(), aws()].concat();
        for subject in objects.iter().filter_map(|object| object["subjects"].as_array()).flatten() {
            assert!(subject["name"] != AGENT && subject["namespace"] == SYSTEM_NAMESPACE, "{subject}");
        }
    }

    /// A return to an earlier version replaces the workloads alone, and an upgrade the roles first.
    #[test]
    fn rights_without_which_an_earlier_version_drains_no_node_are_kept() {
        for (verb, resource) in [("get", "daemonsets"), ("create", "pods/eviction"), ("list", "pods")] {
            let permits = |rule: &PolicyRule| {
                rule.verbs.iter().any(|v| v == verb) && rule.resources.iter().flatten().any(|r| r == resource)
            };
            assert!(rules().iter().any(permits), "{verb} {resource}");
        }
    }
}
