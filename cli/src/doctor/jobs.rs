//! Jobs of hooks: the PodTemplates that the policy names, and the right to Jobs in their namespaces.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Client;
use models::names::CONTROLLER_JOBS;
use planner::policy::Policy;

use super::finding::Finding;
use crate::call::get;

/// The command that grants the right to Jobs.
const GRANT: &str =
    "kubectl apply --server-side -f jobs.yaml -f jobs-rights.yaml  # or, with the chart, hooks.jobs: docs/hooks.md";

/// An object that the Jobs of a hook need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Needed {
    /// The RoleBinding in a namespace.
    Right(String),
    /// A PodTemplate, by its namespace and name.
    Template(String, String),
}

/// Returns the objects that the Jobs of a policy need.
pub(super) fn needed(policy: &Policy) -> BTreeSet<Needed> {
    let mut needed = BTreeSet::new();
    for job in policy.hooks.iter().filter_map(|hook| hook.job.as_ref()) {
        needed.insert(Needed::Right(job.namespace.clone()));
        let templates = job.before.iter().chain(&job.after);
        needed.extend(templates.map(|name| Needed::Template(job.namespace.clone(), name.clone())));
    }
    needed
}

pub(super) async fn exists(client: &Client, needed: &Needed) -> anyhow::Result<bool> {
    Ok(match needed {
        Needed::Right(namespace) => get::<RoleBinding>(client, namespace, CONTROLLER_JOBS).await?.is_some(),
        Needed::Template(namespace, name) => get::<PodTemplate>(client, namespace, name).await?.is_some(),
    })
}

pub(super) fn check(missing: &[Needed], found: &mut Vec<Finding>) {
    found.extend(missing.iter().map(|missing| match missing {
        Needed::Right(namespace) => {
            let message = "the policy has Jobs in this namespace, and this RoleBinding does not exist: unless another \
                           one grants the right, the controller cannot run them";
            let finding = Finding::warning("HookRightMissing", message);
            finding.of(format!("rolebinding/{namespace}/{CONTROLLER_JOBS}")).next([GRANT.to_owned()])
        }
        Needed::Template(namespace, name) => {
            let message = "the policy names it for a hook, and it does not exist: its Job cannot be run";
            let finding = Finding::error("HookTemplateMissing", message).of(format!("podtemplate/{namespace}/{name}"));
            finding.next([format!("kubectl get podtemplates -n {namespace}  # create it there: docs/hooks.md")])
        }
    }));
}

#[cfg(test)]
mod tests {
    use models::operator::HookJob;
    use planner::policy::Hook;
    use serde_json::json;

    use super::*;
    use crate::uninstall::testing::Server;

    #[tokio::test]
    async fn objects_that_the_jobs_of_the_policy_need_are_looked_for() {
        let job = json!({"namespace": "shop", "before": "set", "after": "unset"});
        let job: Option<HookJob> = serde_json::from_value(job).unwrap();
        let hook = |name: &str| Hook { name: name.to_owned(), before: None, after: None, job: job.clone() };
        let other = Hook { job: None, ..hook("other") };
        let needed = needed(&Policy { hooks: vec![hook("a"), hook("b"), other], ..Policy::default() });
        let server = Server::default();
        let meta = json!({"name": "set", "namespace": "shop"});
        server.add("/api/v1/namespaces/shop/podtemplates/set", json!({"metadata": meta}));
        let client = server.client();
        let mut missing = Vec::new();
        for needed in needed {
            if !exists(&client, &needed).await.unwrap() {
                missing.push(needed);
            }
        }
        assert_eq!(missing, [Needed::Right("shop".into()), Needed::Template("shop".into(), "unset".into())]);
    }
}
