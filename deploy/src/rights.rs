//! RBAC rights. Every rule has its reason; there are no wildcards, and the agents have no rights at all.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, CA_SECRET, CONTROLLER, GROUP, OPERATOR_NAME, PERMIT_KEY_SECRET, SERVING_SECRET,
    SYSTEM_NAMESPACE, TRUST_CONFIG_MAP,
};
use serde_json::Value;

use crate::object::{cluster, namespaced, value};

/// Namespace in which the API server requires Events about cluster-scoped objects, such as Nodes.
const NODE_EVENTS: &str = "default";

/// Namespace of the kubelets' Leases.
const NODE_LEASES: &str = "kube-node-lease";

const RBAC: &str = "rbac.authorization.k8s.io";
const CORE: &str = "";

const SHADOWS: &str = "bottlerocketshadows";
const SHADOWS_STATUS: &str = "bottlerocketshadows/status";
const OPERATORS: &str = "bottlerocketupdateoperators";
const OPERATORS_STATUS: &str = "bottlerocketupdateoperators/status";

/// A rule and its reason, which is also written above it in the manifests.
struct Rule {
    why: &'static str,
    rule: PolicyRule,
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

pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    let mut objects = vec![
        service_account(SYSTEM_NAMESPACE, CONTROLLER)?,
        service_account(SYSTEM_NAMESPACE, APISERVER)?,
        // No role is bound to this account: it is only a name by which the web API authenticates the agents.
        service_account(AGENT_NAMESPACE, AGENT)?,
    ];
    for granted in installed() {
        objects.extend(granted.objects()?);
    }
    Ok(objects)
}

/// The additional rights of the controller if policy has `drain.atDeadline: Force`. Not part of the installation.
pub(crate) fn force() -> anyhow::Result<Vec<Value>> {
    Ok(forced().objects()?.into())
}

/// The reason of each rule of a role, in the role's own order. Empty for other objects.
pub(crate) fn reasons(object: &Value) -> Vec<&'static str> {
    let is = |granted: &Granted| {
        let (kind, metadata) = (&object["kind"], &object["metadata"]);
        *kind == granted.kind()
            && metadata["name"] == granted.name
            && metadata["namespace"].as_str() == granted.namespace
    };
    let granted = installed().into_iter().chain([forced()]).find(is);
    granted.into_iter().flat_map(|granted| granted.rules).map(|rule| rule.why).collect()
}

fn installed() -> Vec<Granted> {
    let of = |account, namespace, rules| Granted { name: account, account, namespace, rules };
    vec![
        of(CONTROLLER, None, controller_in_cluster()),
        of(CONTROLLER, Some(SYSTEM_NAMESPACE), controller_in_system()),
        of(CONTROLLER, Some(AGENT_NAMESPACE), controller_beside_agents()),
        of(CONTROLLER, Some(NODE_LEASES), controller_at_node_leases()),
        of(CONTROLLER, Some(NODE_EVENTS), controller_at_node_events()),
        of(APISERVER, None, apiserver_in_cluster()),
        of(APISERVER, Some(SYSTEM_NAMESPACE), apiserver_in_system()),
    ]
}

fn forced() -> Granted {
    let rules = vec![rule(
        "What is left on a node at its drain's deadline is deleted, each pod under its uid, past its budget.",
        CORE,
        &["pods"],
        &["delete"],
    )];
    Granted { name: "brupop-controller-force", account: CONTROLLER, namespace: None, rules }
}

/// Rights of the controller in the whole cluster.
fn controller_in_cluster() -> Vec<Rule> {
    vec![
        rule(
            "Nodes, their state and boot; patch: the claims (cordon, labels, annotations) and, where policy asks for it, the label \
             that selects a node for updates.",
            CORE,
            &["nodes"],
            &["get", "list", "watch", "patch"],
        ),
        rule(
            "Pods on a node that is to be drained; standby replicas of the controller; readiness of the web API and the agents.",
            CORE,
            &["pods"],
            &["list", "watch"],
        ),
        rule(
            "The DaemonSet that a pod names: an orphaned pod of one would not be created again.",
            "apps",
            &["daemonsets"],
            &["get"],
        ),
        rule(
            "The drain. Pods are only ever evicted, so that budgets hold; nothing here may delete one \
             (brupop-controller-force may, where it is installed).",
            CORE,
            &["pods/eviction"],
            &["create"],
        ),
        rule("PodDisruptionBudgets that block a drain.", "policy", &["poddisruptionbudgets"], &["list", "watch"]),
    ]
}

/// Rights of the controller in its own namespace.
fn controller_in_system() -> Vec<Rule> {
    vec![
        rule(
            "A shadow for each node, and its desired state.",
            GROUP,
            &[SHADOWS],
            &["list", "watch", "create", "patch", "delete"],
        ),
        rule("The controller's fields of a shadow's status.", GROUP, &[SHADOWS_STATUS], &["patch"]),
        rule("The policy: it is read, never written.", GROUP, &[OPERATORS], &["list", "watch"]).named(&[OPERATOR_NAME]),
        rule("Slots, counts and conditions.", GROUP, &[OPERATORS_STATUS], &["patch"]).named(&[OPERATOR_NAME]),
        rule(
            "Events about the policy; repetitions are counted on the first Event.",
            "events.k8s.io",
            &["events"],
            &["create", "patch"],
        ),
        rule(
            "Leader election: the Lease is created once. A rule cannot name an object that is to be created.",
            "coordination.k8s.io",
            &["leases"],
            &["create"],
        ),
        rule(
            "Leader election; the standby watches the Lease, so that it takes over at once.",
            "coordination.k8s.io",
            &["leases"],
            &["get", "list", "watch", "update"],
        )
        .named(&[CONTROLLER]),
        rule(
            "The CA, the web API's certificate and the key of the permits: made by the leader. A rule cannot name an object that \
             is to be created.",
            CORE,
            &["secrets"],
            &["create"],
        ),
        rule(
            "The CA, the web API's certificate and the key of the permits: watched and renewed by the leader.",
            CORE,
            &["secrets"],
            &["list", "watch", "update"],
        )
        .named(&[CA_SECRET, SERVING_SECRET, PERMIT_KEY_SECRET]),
    ]
}

/// Rights of the controller in the agents' namespace.
fn controller_beside_agents() -> Vec<Rule> {
    vec![
        rule(
            "Trust of the agents: the CA bundle and the public keys of the permits. Made by an apply, which names it beforehand.",
            CORE,
            &["configmaps"],
            &["create", "list", "watch", "patch"],
        )
        .named(&[TRUST_CONFIG_MAP]),
    ]
}

/// Rights of the controller in the namespace of the kubelets' Leases.
fn controller_at_node_leases() -> Vec<Rule> {
    vec![rule(
        "Liveness of a node whose update was withdrawn: its Lease changes sooner than its condition.",
        "coordination.k8s.io",
        &["leases"],
        &["get"],
    )]
}

/// Rights of the controller in the namespace of Events about Nodes.
fn controller_at_node_events() -> Vec<Rule> {
    vec![rule(
        "Events about a Node; repetitions are counted on the first Event.",
        "events.k8s.io",
        &["events"],
        &["create", "patch"],
    )]
}

/// Rights of the web API in the whole cluster.
fn apiserver_in_cluster() -> Vec<Rule> {
    vec![
        rule(
            "Whose token that is. It is all that makes the web API worth attacking, and all that it has outside its namespace.",
            "authentication.k8s.io",
            &["tokenreviews"],
            &["create"],
        ),
        Rule {
            why: "The cluster's public keys, so that what it did not sign need not be asked about. Clusters give this to every \
                  service account; those that have taken it away give it back here.",
            rule: PolicyRule {
                non_resource_urls: Some(vec!["/openid/v1/jwks".to_owned()]),
                verbs: vec!["get".to_owned()],
                ..PolicyRule::default()
            },
        },
    ]
}

/// Rights of the web API in its own namespace.
fn apiserver_in_system() -> Vec<Rule> {
    vec![
        rule("Shadows, of which each agent is sent its own.", GROUP, &[SHADOWS], &["get", "list", "watch"]),
        rule("The agents' half of the status.", GROUP, &[SHADOWS_STATUS], &["patch"]),
    ]
}

fn rule(why: &'static str, group: &str, resources: &[&str], verbs: &[&str]) -> Rule {
    let rule = PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    };
    Rule { why, rule }
}

impl Rule {
    /// Restricts the rule to these objects.
    fn named(self, names: &[&str]) -> Self {
        Self { rule: PolicyRule { resource_names: Some(owned(names)), ..self.rule }, ..self }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A service account. Its token is mounted only in pods that request it.
fn service_account(namespace: &str, name: &str) -> anyhow::Result<Value> {
    value(ServiceAccount {
        metadata: namespaced(namespace, name),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    })
}

impl Granted {
    fn kind(&self) -> &'static str {
        if self.namespace.is_some() { "Role" } else { "ClusterRole" }
    }

    /// The role and its binding.
    fn objects(self) -> anyhow::Result<[Value; 2]> {
        let role_ref =
            RoleRef { api_group: Some(RBAC.to_owned()), kind: self.kind().to_owned(), name: self.name.to_owned() };
        let subjects = Some(vec![subject(self.account)]);
        let rules = Some(self.rules.into_iter().map(|rule| rule.rule).collect());
        let Some(namespace) = self.namespace else {
            let metadata = cluster(self.name);
            let role = ClusterRole { metadata: metadata.clone(), rules, ..ClusterRole::default() };
            return Ok([value(role)?, value(ClusterRoleBinding { metadata, role_ref, subjects })?]);
        };
        let metadata = namespaced(namespace, self.name);
        let role = Role { metadata: metadata.clone(), rules };
        Ok([value(role)?, value(RoleBinding { metadata, role_ref, subjects })?])
    }
}

/// The service account of the controller or the web API, which are in the operator's own namespace.
fn subject(account: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: account.to_owned(),
        namespace: Some(SYSTEM_NAMESPACE.to_owned()),
        ..Subject::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rule of every role, with the right to delete pods.
    fn rules() -> Vec<PolicyRule> {
        let objects = [all().unwrap(), force().unwrap()].concat();
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
        for object in [all().unwrap(), force().unwrap()].concat() {
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
        for object in all().unwrap() {
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert_ne!(subject["name"], AGENT);
                assert_eq!(subject["namespace"], SYSTEM_NAMESPACE);
            }
        }
    }
}
