//! Who may do what. Every rule says what it is for; there are no wildcards, and the agents have no rights at all.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, CA_SECRET, CONTROLLER, GO_KEY_SECRET, GROUP, OPERATOR_NAME, SERVING_SECRET,
    SYSTEM_NAMESPACE, TRUST_CONFIG_MAP,
};
use serde_json::Value;

use crate::object::{cluster, namespaced, value};

/// Where the API server wants Events about objects without a namespace, such as Nodes.
const NODE_EVENTS: &str = "default";

/// Where kubelets keep the Leases of their nodes.
const NODE_LEASES: &str = "kube-node-lease";

const RBAC: &str = "rbac.authorization.k8s.io";
const CORE: &str = "";

const SHADOWS: &str = "bottlerocketshadows";
const SHADOWS_STATUS: &str = "bottlerocketshadows/status";
const OPERATORS: &str = "bottlerocketupdateoperators";
const OPERATORS_STATUS: &str = "bottlerocketupdateoperators/status";

pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    let mut objects = vec![
        service_account(SYSTEM_NAMESPACE, CONTROLLER)?,
        service_account(SYSTEM_NAMESPACE, APISERVER)?,
        // No rule and no binding stands behind this account: it is a name for the web API to know the agents by.
        service_account(AGENT_NAMESPACE, AGENT)?,
    ];
    objects.extend(in_cluster(CONTROLLER, controller_in_cluster())?);
    objects.extend(in_namespace(SYSTEM_NAMESPACE, CONTROLLER, controller_in_system())?);
    objects.extend(in_namespace(AGENT_NAMESPACE, CONTROLLER, controller_beside_agents())?);
    objects.extend(in_namespace(NODE_LEASES, CONTROLLER, controller_at_node_leases())?);
    objects.extend(in_namespace(NODE_EVENTS, CONTROLLER, controller_at_node_events())?);
    objects.extend(in_cluster(APISERVER, apiserver_in_cluster())?);
    objects.extend(in_namespace(SYSTEM_NAMESPACE, APISERVER, apiserver_in_system())?);
    Ok(objects)
}

/// What the controller may do besides where policy says `drain.atDeadline: Force`. Not part of the install.
pub(crate) fn force() -> anyhow::Result<Vec<Value>> {
    // What is left on a node at its drain's deadline is deleted, each pod under its uid, past its budget.
    in_cluster_as("brupop-controller-force", CONTROLLER, vec![rule(CORE, &["pods"], &["delete"])])
}

/// What the controller may do everywhere.
fn controller_in_cluster() -> Vec<PolicyRule> {
    vec![
        // Which nodes there are, how they are, and which boot they are in; patch: the claims (cordon, labels, annotations)
        // and, where policy wants it, the label that puts a node under the operator.
        rule(CORE, &["nodes"], &["get", "list", "watch", "patch"]),
        // What runs on a node that is to be drained, and whether it is gone; which replicas of the controller stand by.
        rule(CORE, &["pods"], &["list", "watch"]),
        // Whether the DaemonSet that a pod names is still there: nothing would bring an orphan of one back.
        rule("apps", &["daemonsets"], &["get"]),
        // The drain. Pods are only ever evicted, so that budgets hold; nothing here may delete one (`force` may).
        rule(CORE, &["pods/eviction"], &["create"]),
        // Which budget blocks a drain, and when it lets go.
        rule("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    ]
}

/// What the controller may do in its own namespace.
fn controller_in_system() -> Vec<PolicyRule> {
    vec![
        // The orders: a shadow for each node, and its spec.
        rule(GROUP, &[SHADOWS], &["list", "watch", "create", "patch", "delete"]),
        // The controller's half of a shadow's status.
        rule(GROUP, &[SHADOWS_STATUS], &["patch"]),
        // The policy, which is people's: it is read, never written.
        named(GROUP, &[OPERATORS], &[OPERATOR_NAME], &["list", "watch"]),
        // Slots, counts and conditions.
        named(GROUP, &[OPERATORS_STATUS], &[OPERATOR_NAME], &["patch"]),
        // What happened to the policy, where people look for it; again and again becomes a count on the first Event.
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        // Who leads; watched by the standby, which hears of a release at once. A rule cannot name an object that is to be
        // created.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &[CONTROLLER], &["get", "list", "watch", "update"]),
        // The CA, the web API's certificate and the key of the gos: made, watched and renewed by the leader.
        rule(CORE, &["secrets"], &["create"]),
        named(CORE, &["secrets"], &[CA_SECRET, SERVING_SECRET, GO_KEY_SECRET], &["list", "watch", "update"]),
    ]
}

/// What the controller may do in the agents' namespace.
fn controller_beside_agents() -> Vec<PolicyRule> {
    vec![
        // What the agents trust: the CA bundle and the public keys of the gos. Made by an apply, which names it beforehand.
        named(CORE, &["configmaps"], &[TRUST_CONFIG_MAP], &["create", "list", "watch", "patch"]),
    ]
}

/// What the controller may do where kubelets keep their Leases.
fn controller_at_node_leases() -> Vec<PolicyRule> {
    // Whether a node is alive after its order to reboot was withdrawn: its own Lease tells sooner than its condition.
    vec![rule("coordination.k8s.io", &["leases"], &["get"])]
}

/// What the controller may do where Events about Nodes are.
fn controller_at_node_events() -> Vec<PolicyRule> {
    // What happened to a Node, where people look for it; again and again becomes a count on the first Event.
    vec![rule("events.k8s.io", &["events"], &["create", "patch"])]
}

/// What the web API may do everywhere.
fn apiserver_in_cluster() -> Vec<PolicyRule> {
    // Whose token that is. It is all that makes the web API worth attacking, and all that it has outside its namespace.
    vec![
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        // The cluster's public keys, so that what it did not sign need not be asked about. Clusters give this to every service
        // account; those that have taken it away give it back here.
        PolicyRule {
            non_resource_urls: Some(
                ["/.well-known/openid-configuration", "/openid/v1/jwks"].map(str::to_owned).to_vec(),
            ),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        },
    ]
}

/// What the web API may do in its own namespace.
fn apiserver_in_system() -> Vec<PolicyRule> {
    vec![
        // The orders, to stream to each agent its own.
        rule(GROUP, &[SHADOWS], &["get", "list", "watch"]),
        // The agents' half of the status.
        rule(GROUP, &[SHADOWS_STATUS], &["patch"]),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule { resource_names: Some(owned(names)), ..rule(group, resources, verbs) }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A service account. Its token is mounted only where a pod asks for it.
fn service_account(namespace: &str, name: &str) -> anyhow::Result<Value> {
    value(ServiceAccount {
        metadata: namespaced(namespace, name),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    })
}

fn in_cluster(account: &str, rules: Vec<PolicyRule>) -> anyhow::Result<Vec<Value>> {
    in_cluster_as(account, account, rules)
}

fn in_cluster_as(name: &str, account: &str, rules: Vec<PolicyRule>) -> anyhow::Result<Vec<Value>> {
    let role = ClusterRole { metadata: cluster(name), rules: Some(rules), ..ClusterRole::default() };
    let binding = ClusterRoleBinding {
        metadata: cluster(name),
        role_ref: role_ref("ClusterRole", name),
        subjects: Some(vec![subject(account)]),
    };
    Ok(vec![value(role)?, value(binding)?])
}

fn in_namespace(namespace: &str, account: &str, rules: Vec<PolicyRule>) -> anyhow::Result<Vec<Value>> {
    let role = Role { metadata: namespaced(namespace, account), rules: Some(rules) };
    let binding = RoleBinding {
        metadata: namespaced(namespace, account),
        role_ref: role_ref("Role", account),
        subjects: Some(vec![subject(account)]),
    };
    Ok(vec![value(role)?, value(binding)?])
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: Some(RBAC.to_owned()), kind: kind.to_owned(), name: name.to_owned() }
}

/// The controller or the web API: both live in the operator's own namespace.
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
    fn no_rule_has_a_wildcard_or_grants_more_rights() {
        for rule in rules() {
            let text = serde_json::to_string(&rule).unwrap();
            assert!(!text.contains('*'), "{text}");
            for verb in ["deletecollection", "escalate", "bind", "impersonate"] {
                assert!(!rule.verbs.iter().any(|v| v == verb), "{text}");
            }
        }
    }

    #[test]
    fn existing_secrets_are_reached_by_name_only() {
        for rule in rules() {
            let secrets = rule.resources.iter().flatten().any(|resource| resource == "secrets");
            if secrets && rule.verbs != ["create"] {
                assert!(rule.resource_names.is_some_and(|names| !names.is_empty()));
            }
        }
    }

    #[test]
    fn nothing_is_bound_to_the_agents() {
        for object in all().unwrap() {
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert_ne!(subject["name"], AGENT);
                assert_eq!(subject["namespace"], SYSTEM_NAMESPACE);
            }
        }
    }
}
