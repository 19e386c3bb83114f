//! PodDisruptionBudgets of the Deployments.

use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::object::{namespaced, selector};
use crate::options::Component;

/// Allows one disruption at a time: a drain, the operator's or a user's, that finds all pods of the component on one
/// node waits until the replacement of each is Ready before it evicts the next. Counted in unavailable and not in
/// available pods, so that a single pod can be evicted, too.
pub(crate) fn one_at_a_time(component: Component) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": namespaced(SYSTEM_NAMESPACE, component.name()),
        "spec": {
            "selector": selector(component),
            "maxUnavailable": 1,
            // A pod that does not serve may always be evicted: the default would block the drain for as long as it is
            // broken.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use crate::{Options, objects, yaml};

    /// Labels at a place of an object.
    fn labels(object: &Value, place: &str) -> BTreeMap<String, String> {
        let labels = object.pointer(place).unwrap_or_else(|| panic!("{} has no {place}", yaml::id(object)));
        serde_json::from_value(labels.clone()).unwrap()
    }

    fn of_kind<'a>(objects: &'a [Value], kinds: &'a [&str]) -> impl Iterator<Item = &'a Value> {
        objects.iter().filter(move |object| kinds.iter().any(|kind| object["kind"] == *kind))
    }

    /// The budgets that select the pods of a workload.
    fn budgets<'a>(objects: &'a [Value], workload: &Value) -> Vec<&'a Value> {
        let pods = labels(workload, "/spec/template/metadata/labels");
        let selects = |budget: &&Value| {
            budget["metadata"]["namespace"] == workload["metadata"]["namespace"]
                && labels(budget, "/spec/selector/matchLabels").iter().all(|(key, value)| pods.get(key) == Some(value))
        };
        of_kind(objects, &["PodDisruptionBudget"]).filter(selects).collect()
    }

    #[test]
    fn each_deployment_has_one_pdb_that_allows_one_disruption_and_always_evicts_unhealthy_pods() {
        for replicas in 1..=3 {
            let options = Options { controller_replicas: replicas, apiserver_replicas: replicas, ..Options::default() };
            let objects = objects(&options).unwrap();
            for workload in of_kind(&objects, &["Deployment"]) {
                let what = format!("{replicas} pods of {}", yaml::id(workload));
                assert_eq!(workload["spec"]["replicas"], replicas);
                let [budget] = budgets(&objects, workload)[..] else { panic!("{what} have not one budget") };
                // Nothing else: a `minAvailable` would keep a single pod.
                let selector = &workload["spec"]["selector"];
                let expected =
                    json!({"selector": selector, "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"});
                assert_eq!(budget["spec"], expected, "{what}");
            }
            // No drain evicts the pods of a DaemonSet, and none selects nothing.
            assert!(of_kind(&objects, &["DaemonSet"]).all(|workload| budgets(&objects, workload).is_empty()));
            assert_eq!(of_kind(&objects, &["PodDisruptionBudget"]).count(), 2);
        }
    }
}
