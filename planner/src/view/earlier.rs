//! The pods of the earlier operator: that they exist, and nothing else about them.

use k8s_openapi::api::core::v1::Pod;
use models::earlier::is_pod_of;
use models::names::MIRROR_ANNOTATION;

use super::Projection;

/// A pod of the earlier operator that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlierPod {
    /// The name for users: namespace and name.
    pub title: String,
    pub resource_version: String,
}

impl Projection for EarlierPod {
    type Object = Pod;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// Only its beginning and its end are relevant.
    fn matters(&self, _old: &Self) -> bool {
        false
    }

    /// One that is terminating still acts on its host. A mirror pod is none: the earlier operator has no static pods, and each kubelet creates
    /// those of its node with any labels.
    fn project(pod: &Pod) -> Option<Self> {
        let (meta, phase) = (&pod.metadata, pod.status.as_ref().and_then(|status| status.phase.as_deref()));
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let mirror = meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION));
        let runs = !ended && !mirror && meta.labels.as_ref().is_some_and(is_pod_of);
        runs.then(|| Self {
            title: Self::key_of(meta),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn runs(labels: &Value, status: &Value, deleted: bool) -> bool {
        let mut pod = json!({"metadata": {"namespace": "n", "name": "a", "labels": labels}, "status": status});
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        EarlierPod::project(&serde_json::from_value(pod).unwrap()).is_some()
    }

    #[test]
    fn pod_of_earlier_operator_counts_until_it_has_ended() {
        let agent = json!({"brupop.bottlerocket.aws/component": "agent"});
        let first_release = json!({"update-operator": "agent"});
        assert!(runs(&agent, &json!({"phase": "Running"}), false));
        assert!(runs(&agent, &json!({"phase": "Running"}), true), "a terminating one");
        assert!(runs(&first_release, &json!({"phase": "Pending"}), false));
        assert!(runs(&agent, &Value::Null, false), "one without a status yet");
        for phase in ["Succeeded", "Failed"] {
            assert!(!runs(&agent, &json!({"phase": phase}), false), "{phase}");
        }
        assert!(!runs(&json!({"app.kubernetes.io/component": "brupop-agent"}), &json!({"phase": "Running"}), false));
        assert!(!runs(&Value::Null, &json!({"phase": "Running"}), false));
    }

    #[test]
    fn mirror_pod_is_none_of_the_earlier_operator_whatever_its_labels_are() {
        let is_one = |annotations: &Value| {
            let labels = json!({"update-operator": "agent"});
            let pod = json!({"metadata": {"name": "a", "labels": labels, "annotations": annotations}});
            EarlierPod::project(&serde_json::from_value(pod).unwrap()).is_some()
        };
        assert!(is_one(&json!({"example.com/team": "shop"})));
        assert!(!is_one(&json!({"kubernetes.io/config.mirror": "hash"})));
    }
}
