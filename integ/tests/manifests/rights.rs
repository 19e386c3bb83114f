//! The rights of the operator's accounts, and of a kubelet, as the API server's authorizers judge them.

use anyhow::ensure;
use integ::control_plane::ControlPlane;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use models::names::{AGENT_NAMESPACE, GROUP as BRUPOP, SYSTEM_NAMESPACE};

use super::{kubectl, until};

const DEFINITIONS: &str = "apiextensions.k8s.io";
const LEASES: &str = "coordination.k8s.io";
const SHADOWS: &str = "bottlerocketshadows.brupop.bottlerocket.aws";
const OPERATORS: &str = "bottlerocketupdateoperators.brupop.bottlerocket.aws";

const CONTROLLER: &str = "system:serviceaccount:brupop-system:brupop-controller";
const APISERVER: &str = "system:serviceaccount:brupop-system:brupop-apiserver";
const AGENT: &str = "system:serviceaccount:brupop-agents:brupop-agent";
/// The kubelet of a node without a pod that mounts a Secret.
const KUBELET: &str = "system:node:n1";

/// All objects, or one that is to be created. A rule with names never allows that: where one could allow what is forbidden, its name is here.
const ANY: &str = "";

/// User, group, resource, namespace, name, and the verbs that are allowed and those that are not.
type Right = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const RIGHTS: &[Right] = &[
    (CONTROLLER, "", "nodes", "", ANY, "patch", "update delete"),
    (CONTROLLER, "", "nodes/status", "", ANY, "", "patch"),
    (CONTROLLER, "", "pods", "default", ANY, "", "create delete"),
    (CONTROLLER, "", "pods/exec", "default", ANY, "", "create"),
    (CONTROLLER, "apps", "controllerrevisions", SYSTEM_NAMESPACE, ANY, "patch", ""),
    (CONTROLLER, "apps", "controllerrevisions", AGENT_NAMESPACE, ANY, "", "patch"),
    (CONTROLLER, "apps", "controllerrevisions", "default", ANY, "", "patch"),
    (CONTROLLER, "apps", "controllerrevisions", "kube-system", ANY, "", "create"),
    (CONTROLLER, "", "pods/eviction", "default", ANY, "create", ""),
    (CONTROLLER, "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", "watch", ""),
    (CONTROLLER, "", "secrets", SYSTEM_NAMESPACE, "brupop-history-key", "watch", "update"),
    (CONTROLLER, "", "secrets", SYSTEM_NAMESPACE, "other", "", "watch"),
    (CONTROLLER, "", "secrets", SYSTEM_NAMESPACE, ANY, "", "list"),
    (CONTROLLER, "", "secrets", "default", ANY, "", "create"),
    (CONTROLLER, LEASES, "leases", SYSTEM_NAMESPACE, "brupop-controller", "update", ""),
    (CONTROLLER, LEASES, "leases", SYSTEM_NAMESPACE, "other", "", "update"),
    (CONTROLLER, LEASES, "leases", "kube-node-lease", ANY, "get", "create"),
    (CONTROLLER, LEASES, "leases", "kube-node-lease", "n1", "", "update"),
    (CONTROLLER, LEASES, "leases", "default", "other", "", "get"),
    (CONTROLLER, LEASES, "leases", "kube-system", "kube-scheduler", "", "get update"),
    (CONTROLLER, LEASES, "leases", SYSTEM_NAMESPACE, ANY, "create", ""),
    (CONTROLLER, LEASES, "leases", "default", ANY, "", "create"),
    (CONTROLLER, "", "configmaps", AGENT_NAMESPACE, "brupop-trust", "watch patch create", ""),
    (CONTROLLER, "", "configmaps", AGENT_NAMESPACE, ANY, "", "watch"),
    (CONTROLLER, "", "configmaps", AGENT_NAMESPACE, "other", "", "patch create"),
    (CONTROLLER, BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, "patch", ""),
    // The storage migration rewrites shadows of every namespace, and neither creates nor deletes any there.
    (CONTROLLER, BRUPOP, "bottlerocketshadows", "default", ANY, "patch", "create delete"),
    (CONTROLLER, DEFINITIONS, "customresourcedefinitions", "", SHADOWS, "get", "patch update delete"),
    (CONTROLLER, DEFINITIONS, "customresourcedefinitions/status", "", SHADOWS, "patch", ""),
    (CONTROLLER, DEFINITIONS, "customresourcedefinitions/status", "", OPERATORS, "", "patch"),
    (CONTROLLER, BRUPOP, "bottlerocketupdateoperators/status", SYSTEM_NAMESPACE, "default", "patch", ""),
    (CONTROLLER, BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, "default", "watch", "patch update delete"),
    (CONTROLLER, "events.k8s.io", "events", "default", ANY, "create", ""),
    (CONTROLLER, "events.k8s.io", "events", SYSTEM_NAMESPACE, ANY, "create", ""),
    (CONTROLLER, "events.k8s.io", "events", "kube-system", ANY, "", "create"),
    (CONTROLLER, BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, ANY, "", "watch"),
    (APISERVER, "authentication.k8s.io", "tokenreviews", "", ANY, "create", ""),
    (APISERVER, BRUPOP, "bottlerocketshadows/status", SYSTEM_NAMESPACE, ANY, "patch", ""),
    (APISERVER, BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, "", "patch update delete"),
    (APISERVER, "", "secrets", SYSTEM_NAMESPACE, ANY, "", "list"),
    (APISERVER, "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", "", "get"),
    (APISERVER, "", "nodes", "", ANY, "", "get patch"),
    (APISERVER, "", "pods", "", ANY, "", "list"),
    (APISERVER, "", "pods/eviction", AGENT_NAMESPACE, ANY, "", "create"),
    (AGENT, BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, "", "get"),
    (AGENT, "", "configmaps", AGENT_NAMESPACE, "brupop-trust", "", "get"),
    (AGENT, "", "nodes", "", ANY, "", "get"),
    (KUBELET, "", "nodes", "", "n1", "get", ""),
    (KUBELET, "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", "", "get"),
    (KUBELET, "", "secrets", SYSTEM_NAMESPACE, "brupop-permit-key", "", "get"),
    (KUBELET, "", "secrets", SYSTEM_NAMESPACE, "brupop-history-key", "", "get"),
];

/// Rights of users to the resources, each with the roles of the cluster that contain it.
const OF_USERS: [(&str, &str, &str); 12] = [
    ("watch", "bottlerocketshadows", "view edit admin"),
    ("list", "bottlerocketupdateoperators", "view edit admin"),
    ("get", "bottlerocketrollouthistories", "view edit admin"),
    ("patch", "bottlerocketupdateoperators", "edit admin"),
    ("create", "bottlerocketupdateoperators", "edit admin"),
    ("patch", "bottlerocketshadows", "edit admin"),
    ("patch", "bottlerocketrollouthistories", ""),
    ("create", "bottlerocketshadows", ""),
    ("create", "bottlerocketrollouthistories", ""),
    ("delete", "bottlerocketupdateoperators", "admin"),
    ("delete", "bottlerocketshadows", "admin"),
    ("delete", "bottlerocketrollouthistories", "admin"),
];

pub(super) async fn accounts_have_expected_rights(client: Client) -> anyhow::Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(client);
    for &(user, group, resource, namespace, name, allowed, denied) in RIGHTS {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let verbs = allowed.split_whitespace().map(|verb| (verb, true));
        for (verb, allowed) in verbs.chain(denied.split_whitespace().map(|verb| (verb, false))) {
            let attributes = ResourceAttributes {
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource: Some(subresource.into()),
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            };
            let may = may(&reviews, user, attributes.clone()).await?;
            ensure!(may == allowed, "{user}: {attributes:?} is allowed: {may}");
        }
    }
    Ok(())
}

async fn may(reviews: &Api<SubjectAccessReview>, user: &str, attributes: ResourceAttributes) -> anyhow::Result<bool> {
    let spec = SubjectAccessReviewSpec {
        user: Some(user.into()),
        groups: (user == KUBELET).then(|| vec!["system:nodes".to_owned()]),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Checks the roles of the cluster, to which the controller manager adds those of the operator's resources.
pub(super) async fn roles_of_the_cluster_contain_rights_to_the_resources(
    control_plane: &ControlPlane,
) -> anyhow::Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(control_plane.client());
    let right = |verb: &str, resource: &str| ResourceAttributes {
        verb: Some(verb.into()),
        group: Some(BRUPOP.into()),
        resource: Some(resource.into()),
        namespace: Some(SYSTEM_NAMESPACE.into()),
        ..ResourceAttributes::default()
    };
    for role in ["view", "edit", "admin"] {
        let (bound, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
        kubectl(control_plane, &["create", "rolebinding", role, &bound, &user, "-n", SYSTEM_NAMESPACE]).await?;
    }
    let last = right("delete", "bottlerocketrollouthistories");
    until("the rights are added", async || may(&reviews, "admin", last.clone()).await).await?;
    for (verb, resource, roles) in OF_USERS {
        for user in ["view", "edit", "admin", "other"] {
            let may = may(&reviews, user, right(verb, resource)).await?;
            ensure!(may == roles.split(' ').any(|role| role == user), "{user} may {verb} {resource}: {may}");
        }
    }
    Ok(())
}
