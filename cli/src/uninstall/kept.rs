//! Objects of hooks with Jobs that stay: the rights that a user has granted in other namespaces, and the policies that limit these. An API server
//! that goes on running would not enforce such a policy as before if it were deleted and created again (kubernetes/kubernetes#130887).

use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use models::names::CONTROLLER_JOBS;

use super::objects::api;
use crate::call::{get_metadata, list_everywhere};
use crate::shell::for_cluster;

/// Returns a sentence about each that the user may read, with the command that deletes it.
pub(super) async fn kept(client: &Client) -> Vec<String> {
    let named = ListParams::default().fields(&format!("metadata.name={CONTROLLER_JOBS}"));
    let bindings: Vec<RoleBinding> = list_everywhere(client, named).await.unwrap_or_default();
    let right = |binding: &RoleBinding| {
        let namespace = binding.namespace()?;
        let delete = for_cluster(&format!("kubectl delete rolebinding,role {CONTROLLER_JOBS} -n {namespace}"));
        Some(format!("the right to Jobs in the namespace {namespace} stays, which you have granted: {delete}"))
    };
    let mut sentences: Vec<String> = bindings.iter().filter_map(right).collect();
    let mut policies = Vec::new();
    for policy in deploy::jobs().iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy") {
        let Ok((api, _, name)) = api(client, policy) else { continue };
        if get_metadata(&api, &name).await.is_ok_and(|found| found.is_some()) {
            policies.push(name);
        }
    }
    if !policies.is_empty() {
        let kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding";
        let delete = for_cluster(&format!("kubectl delete {kinds} {} --ignore-not-found", policies.join(" ")));
        sentences.push(format!(
            "the admission policies for Jobs of hooks stay with their bindings ({}): deleted and created again, they \
             would not limit the Jobs of a later installation as before until the API servers restart \
             (docs/hooks.md). If the operator is not to be installed again, and no right to Jobs is left: {delete}",
            policies.join(", ")
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Server;
    use super::*;

    #[tokio::test]
    async fn rights_to_jobs_and_their_limits_are_named_with_the_commands_that_delete_them() {
        let server = Server::default();
        assert_eq!(kept(&server.client()).await, Vec::<String>::new(), "nothing may be read");

        let binding = json!({"metadata": {"name": CONTROLLER_JOBS, "namespace": "brupop-hooks"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CONTROLLER_JOBS}});
        let bindings = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBindingList", "metadata": {},
            "items": [binding]});
        server.add("/apis/rbac.authorization.k8s.io/v1/rolebindings", bindings);
        let path = format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{CONTROLLER_JOBS}");
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": CONTROLLER_JOBS}});
        server.add(&path, policy);
        let sentences = kept(&server.client()).await;
        let commands: Vec<&str> = sentences.iter().filter_map(|sentence| sentence.rsplit(": ").next()).collect();
        let policies = "validatingadmissionpolicy,validatingadmissionpolicybinding";
        assert_eq!(
            commands,
            [
                "kubectl delete rolebinding,role brupop-controller-jobs -n brupop-hooks".to_owned(),
                format!("kubectl delete {policies} brupop-controller-jobs --ignore-not-found"),
            ]
        );
    }

    #[test]
    fn right_to_jobs_has_the_name_that_is_looked_for() {
        let rights = [
            include_str!("../../../examples/hooks/jobs-rights.yaml"),
            include_str!("../../../deploy/chart/templates/jobs.yaml"),
        ];
        for text in rights {
            let (_, binding) = text.split_once("kind: RoleBinding\n").unwrap();
            assert!(binding.starts_with(&format!("metadata:\n  name: {CONTROLLER_JOBS}\n")), "{binding}");
        }
    }
}
