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

/// User, verb, group, resource, namespace, name, and what they are allowed.
type Right = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, bool);

const RIGHTS: &[Right] = &[
    (CONTROLLER, "patch", "", "nodes", "", ANY, true),
    (CONTROLLER, "update", "", "nodes", "", ANY, false),
    (CONTROLLER, "delete", "", "nodes", "", ANY, false),
    (CONTROLLER, "patch", "", "nodes/status", "", ANY, false),
    (CONTROLLER, "create", "", "pods", "default", ANY, false),
    (CONTROLLER, "create", "", "pods/exec", "default", ANY, false),
    (CONTROLLER, "patch", "apps", "controllerrevisions", SYSTEM_NAMESPACE, ANY, true),
    (CONTROLLER, "patch", "apps", "controllerrevisions", AGENT_NAMESPACE, ANY, false),
    (CONTROLLER, "patch", "apps", "controllerrevisions", "default", ANY, false),
    (CONTROLLER, "create", "apps", "controllerrevisions", "kube-system", ANY, false),
    (CONTROLLER, "create", "", "pods/eviction", "default", ANY, true),
    (CONTROLLER, "delete", "", "pods", "default", ANY, false),
    (CONTROLLER, "watch", "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", true),
    (CONTROLLER, "watch", "", "secrets", SYSTEM_NAMESPACE, "brupop-history-key", true),
    (CONTROLLER, "update", "", "secrets", SYSTEM_NAMESPACE, "brupop-history-key", false),
    (CONTROLLER, "watch", "", "secrets", SYSTEM_NAMESPACE, "other", false),
    (CONTROLLER, "list", "", "secrets", SYSTEM_NAMESPACE, ANY, false),
    (CONTROLLER, "create", "", "secrets", "default", ANY, false),
    (CONTROLLER, "update", LEASES, "leases", SYSTEM_NAMESPACE, "brupop-controller", true),
    (CONTROLLER, "update", LEASES, "leases", SYSTEM_NAMESPACE, "other", false),
    (CONTROLLER, "get", LEASES, "leases", "kube-node-lease", ANY, true),
    (CONTROLLER, "update", LEASES, "leases", "kube-node-lease", "n1", false),
    (CONTROLLER, "get", LEASES, "leases", "default", "other", false),
    (CONTROLLER, "get", LEASES, "leases", "kube-system", "kube-scheduler", false),
    (CONTROLLER, "update", LEASES, "leases", "kube-system", "kube-scheduler", false),
    (CONTROLLER, "create", LEASES, "leases", SYSTEM_NAMESPACE, ANY, true),
    (CONTROLLER, "create", LEASES, "leases", "kube-node-lease", ANY, false),
    (CONTROLLER, "create", LEASES, "leases", "default", ANY, false),
    (CONTROLLER, "watch", "", "configmaps", AGENT_NAMESPACE, "brupop-trust", true),
    (CONTROLLER, "watch", "", "configmaps", AGENT_NAMESPACE, ANY, false),
    (CONTROLLER, "patch", "", "configmaps", AGENT_NAMESPACE, "brupop-trust", true),
    (CONTROLLER, "patch", "", "configmaps", AGENT_NAMESPACE, "other", false),
    (CONTROLLER, "patch", BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, true),
    // The storage migration rewrites shadows of every namespace, and neither creates nor deletes any there.
    (CONTROLLER, "patch", BRUPOP, "bottlerocketshadows", "default", ANY, true),
    (CONTROLLER, "create", BRUPOP, "bottlerocketshadows", "default", ANY, false),
    (CONTROLLER, "delete", BRUPOP, "bottlerocketshadows", "default", ANY, false),
    (CONTROLLER, "get", DEFINITIONS, "customresourcedefinitions", "", SHADOWS, true),
    (CONTROLLER, "patch", DEFINITIONS, "customresourcedefinitions", "", SHADOWS, false),
    (CONTROLLER, "update", DEFINITIONS, "customresourcedefinitions", "", SHADOWS, false),
    (CONTROLLER, "delete", DEFINITIONS, "customresourcedefinitions", "", SHADOWS, false),
    (CONTROLLER, "patch", DEFINITIONS, "customresourcedefinitions/status", "", SHADOWS, true),
    (CONTROLLER, "patch", DEFINITIONS, "customresourcedefinitions/status", "", OPERATORS, false),
    (CONTROLLER, "patch", BRUPOP, "bottlerocketupdateoperators/status", SYSTEM_NAMESPACE, "default", true),
    (CONTROLLER, "patch", BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, "default", false),
    (CONTROLLER, "update", BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, "default", false),
    (CONTROLLER, "delete", BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, "default", false),
    (CONTROLLER, "create", "events.k8s.io", "events", "default", ANY, true),
    (CONTROLLER, "create", "events.k8s.io", "events", SYSTEM_NAMESPACE, ANY, true),
    (CONTROLLER, "create", "events.k8s.io", "events", "kube-system", ANY, false),
    (CONTROLLER, "create", "", "configmaps", AGENT_NAMESPACE, "brupop-trust", true),
    (CONTROLLER, "create", "", "configmaps", AGENT_NAMESPACE, "other", false),
    (CONTROLLER, "watch", BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, "default", true),
    (CONTROLLER, "watch", BRUPOP, "bottlerocketupdateoperators", SYSTEM_NAMESPACE, ANY, false),
    (APISERVER, "create", "authentication.k8s.io", "tokenreviews", "", ANY, true),
    (APISERVER, "patch", BRUPOP, "bottlerocketshadows/status", SYSTEM_NAMESPACE, ANY, true),
    (APISERVER, "patch", BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, false),
    (APISERVER, "get", "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", false),
    (APISERVER, "get", "", "nodes", "", ANY, false),
    (AGENT, "get", BRUPOP, "bottlerocketshadows", SYSTEM_NAMESPACE, ANY, false),
    (AGENT, "get", "", "configmaps", AGENT_NAMESPACE, "brupop-trust", false),
    (AGENT, "get", "", "nodes", "", ANY, false),
    (KUBELET, "get", "", "nodes", "", "n1", true),
    (KUBELET, "get", "", "secrets", SYSTEM_NAMESPACE, "brupop-ca", false),
    (KUBELET, "get", "", "secrets", SYSTEM_NAMESPACE, "brupop-permit-key", false),
    (KUBELET, "get", "", "secrets", SYSTEM_NAMESPACE, "brupop-history-key", false),
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
    for &(user, verb, group, resource, namespace, name, allowed) in RIGHTS {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
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
