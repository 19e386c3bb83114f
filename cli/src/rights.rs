//! The rights that `takeover swap` and `takeover undo` need, asked for before anything is changed: a right that is
//! missing half way would leave the cluster without any operator until it is granted.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use models::earlier::READ_ONLY_POLICY;
use models::names::{GROUP, SHADOW_DEFINITION, SYSTEM_NAMESPACE};

use crate::call::{NODE_LEASES, call, code};

/// API group, resource with its subresource, namespace (empty: all, or none), verbs.
type Right = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// docs/takeover.md has them as a ClusterRole.
const TAKEOVER: &[Right] = &[
    ("", "nodes", "", &["list"]),
    ("", "pods", "", &["list"]),
    ("", "namespaces", "", &["get", "create", "patch"]),
    ("", "configmaps", SYSTEM_NAMESPACE, &["list", "create", "delete"]),
    ("apps", "deployments", "", &["get", "list", "create", "delete"]),
    ("apps", "daemonsets", "", &["list", "create", "delete"]),
    ("coordination.k8s.io", "leases", NODE_LEASES, &["list"]),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", &["get", "patch"]),
    ("apiextensions.k8s.io", "customresourcedefinitions/status", "", &["patch"]),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", "", &["get", "create", "delete"]),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", &["get", "create", "delete"]),
    (GROUP, "bottlerocketshadows", "", &["get", "list", "create", "patch", "delete"]),
    (GROUP, "bottlerocketshadows/status", "", &["patch"]),
];

/// Returns the rights of a takeover that the user lacks, as verb and resource.
pub(crate) async fn missing(client: &Client) -> anyhow::Result<Vec<String>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for (group, resource, namespace, verbs) in TAKEOVER {
        for verb in *verbs {
            let (name, subresource) =
                resource.split_once('/').map_or((*resource, None), |(name, sub)| (name, Some(sub)));
            // A right may be bound to the only objects of these kinds that are touched, but not to create them.
            let only = match (*group, *resource) {
                _ if *verb == "create" => None,
                ("apiextensions.k8s.io", _) => Some(SHADOW_DEFINITION),
                ("admissionregistration.k8s.io", _) => Some(READ_ONLY_POLICY),
                ("", "namespaces") => Some(SYSTEM_NAMESPACE),
                _ => None,
            };
            let attributes = ResourceAttributes {
                name: only.map(str::to_owned),
                group: Some((*group).to_owned()),
                resource: Some(name.to_owned()),
                subresource: subresource.map(str::to_owned),
                namespace: Some((*namespace).to_owned()),
                verb: Some((*verb).to_owned()),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            let answer = call("create selfsubjectaccessreviews", reviews.create(&PostParams::default(), &review)).await;
            match answer {
                Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
                Ok(_) => {
                    let within = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
                    missing.push(format!("{verb} {resource}{within}"));
                }
                // Every authenticated user may ask, unless the cluster's default roles were changed.
                Err(error) if code(&error) == Some(403) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// The ClusterRole in the docs.
    fn documented() -> Value {
        let text = include_str!("../../docs/takeover.md");
        let block = text.split("```yaml\n").find(|block| block.contains("name: brupop-takeover")).unwrap();
        serde_saphyr::from_str(block.split("```").next().unwrap()).unwrap()
    }

    #[test]
    fn documented_role_has_the_rights_of_a_takeover_and_no_more() {
        let needed: BTreeSet<_> = TAKEOVER
            .iter()
            .flat_map(|(group, resource, _, verbs)| verbs.iter().map(move |verb| (*group, *resource, *verb)))
            .map(|(group, resource, verb)| format!("{group} {resource} {verb}"))
            .collect();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = |value: &Value| value.as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        let mut documented_rights = BTreeSet::new();
        for rule in documented()["rules"].as_array().unwrap() {
            for group in all(&rule["apiGroups"]) {
                for resource in all(&rule["resources"]) {
                    for verb in all(&rule["verbs"]) {
                        documented_rights.insert(format!("{group} {resource} {verb}"));
                    }
                }
            }
        }
        assert_eq!(documented_rights, needed);
    }
}
