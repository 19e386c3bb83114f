//! Which nodes: Kubernetes' label selector, with bounds on everything in it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Reads null as what is empty: server-side apply of `{}` leaves it, where the same manager had more there before.
pub(super) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is absent.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "message": "In and NotIn want values, Exists and DoesNotExist take none",
}]))]
pub struct LabelRequirement {
    /// The label's key.
    #[schemars(length(max = 317))]
    pub key: String,
    /// Operator of the comparison.
    pub operator: LabelOperator,
    /// The values of In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// A label selector. All of it has to match; an empty one matches every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Labels and their values.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true, "maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    pub match_labels: BTreeMap<String, String>,
    /// Comparisons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelRequirement>,
}

impl NodeSelector {
    /// Returns true if these labels match, by the rules of Kubernetes' `LabelSelector`.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let Self { match_labels, match_expressions } = self;
        match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed = value.is_some_and(|v| requirement.values.contains(v));
                match requirement.operator {
                    LabelOperator::In => listed,
                    LabelOperator::NotIn => !listed,
                    LabelOperator::Exists => value.is_some(),
                    LabelOperator::DoesNotExist => value.is_none(),
                }
            })
    }

    /// Returns it as the API server takes it in the parameter `labelSelector` of a list or a watch.
    pub fn to_parameter(&self) -> String {
        let Self { match_labels, match_expressions } = self;
        let equal = match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let compared = match_expressions.iter().map(|LabelRequirement { key, operator, values }| match operator {
            LabelOperator::In => format!("{key} in ({})", values.join(",")),
            LabelOperator::NotIn => format!("{key} notin ({})", values.join(",")),
            LabelOperator::Exists => key.clone(),
            LabelOperator::DoesNotExist => format!("!{key}"),
        });
        equal.chain(compared).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_selector_matches_labels_as_kubernetes_does() {
        let labels: BTreeMap<String, String> =
            [("zone", "a"), ("tier", "web")].map(|(k, v)| (k.into(), v.into())).into();
        for (selector, matches) in [
            (r#"{}"#, true),
            (r#"{"matchLabels": null}"#, true),
            (r#"{"matchLabels": {"zone": "a"}}"#, true),
            (r#"{"matchLabels": {"zone": "b"}}"#, false),
            (r#"{"matchLabels": {"zone": "a", "tier": "db"}}"#, false),
            (r#"{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}"#, true),
            (r#"{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}"#, false),
            (r#"{"matchExpressions": [{"key": "gone", "operator": "NotIn", "values": ["a"]}]}"#, true),
            (r#"{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}"#, true),
            (r#"{"matchExpressions": [{"key": "gone", "operator": "Exists"}]}"#, false),
            (r#"{"matchExpressions": [{"key": "gone", "operator": "DoesNotExist"}]}"#, true),
        ] {
            let selector: NodeSelector = serde_json::from_str(selector).unwrap();
            assert_eq!(selector.matches(&labels), matches, "{selector:?}");
        }
    }
}
