//! `BottlerocketUpdateOperator`: the switch and the policy of the whole operator.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use kube::CustomResource;
#[cfg(feature = "crd")]
use schemars::JsonSchema;

use crate::condition::Condition;
use crate::duration::Duration;

/// A number of nodes, or a share of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CountOrPercent {
    /// That many nodes.
    Count(u32),
    /// A percentage such as `10%`.
    Percent(String),
}

impl CountOrPercent {
    /// How many of `total` nodes that is: a percentage rounds down, and never below 1; a count of 0 is 1, since 0 would be
    /// a second switch beside `enabled`. `None` for a string that is no percentage (the schema refuses it).
    pub fn of(&self, total: usize) -> Option<usize> {
        match self {
            Self::Count(count) => Some((*count as usize).max(1)),
            Self::Percent(text) => {
                let percent: usize = text.strip_suffix('%')?.parse().ok()?;
                (1..=100).contains(&percent).then(|| (total * percent / 100).max(1))
            }
        }
    }
}

impl Default for CountOrPercent {
    fn default() -> Self {
        Self::Count(1)
    }
}

#[cfg(feature = "crd")]
impl JsonSchema for CountOrPercent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CountOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 4,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 1 && self <= 10000 : self.matches('^([1-9][0-9]?|100)%$')",
                "message": "write a count from 1 to 10000, or a percentage from 1% to 100%",
            }],
        })
    }
}

/// Which versions nodes become, and how hosts look for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionPolicy {
    /// How often an idle host looks for updates. Default 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_interval: Option<Duration>,
}

/// What happens at a drain's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
// In a schema an optional enumeration's own description would hide that of the field.
#[cfg_attr(feature = "crd", schemars(description = ""))]
pub enum AtDeadline {
    /// Give up, release the node, and try again later.
    #[default]
    Release,
}

/// How nodes are drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// How long a drain may take. Default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What happens then. Default Release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadline>,
}

/// How a node is judged after its update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AfterUpdatePolicy {
    /// How long a node has to stay Ready after its update before the next one starts. Default 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<Duration>,
}

/// How the health of nodes counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthPolicy {
    /// After the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterUpdatePolicy>,
}

/// What failures lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// How many nodes may fail on a version before it is quarantined and the rollout is frozen. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(range(min = 1, max = 10_000), extend("format" = "int32")))]
    pub max_failures: Option<u32>,
    /// How long a node waits after its first failed attempt; doubled with each further one, up to 24h. Default 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_off: Option<Duration>,
}

/// How long the steps of an attempt may take, besides the drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Downloading the image. Default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Duration>,
    /// From the order to reboot until the host is in another boot. Default 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Duration>,
    /// From the new boot until the node is Ready. Default 10m.
    #[serde(default, rename = "return", skip_serializing_if = "Option::is_none")]
    pub returning: Option<Duration>,
}

/// The switch and the policy of the operator. Without this resource, nothing new starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(CustomResource, JsonSchema))]
#[cfg_attr(
    feature = "crd",
    kube(
        group = "brupop.bottlerocket.aws",
        version = "v1",
        kind = "BottlerocketUpdateOperator",
        namespaced,
        shortname = "bruo",
        category = "brupop",
        status = "BottlerocketUpdateOperatorStatus",
        derive = "PartialEq",
        doc = "The switch and the policy of the Bottlerocket update operator. The one named default in the operator's own namespace counts.",
        validation = Rule::new("self.metadata.name == 'default'").message("there is one operator's resource, and it is named default"),
        printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled", description = "Whether new updates start"),
        printcolumn(name = "Total", type_ = "integer", json_path = ".status.counts.total", description = "Nodes under the operator"),
        printcolumn(name = "Current", type_ = "integer", json_path = ".status.counts.current", description = "Nodes that need no update"),
        printcolumn(name = "Updating", type_ = "integer", json_path = ".status.counts.updating", description = "Nodes on their way"),
        printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed", description = "Nodes whose last attempt failed"),
        printcolumn(name = "Frozen", type_ = "string", json_path = ".status.conditions[?(@.type=='Frozen')].status", description = "Whether failures stopped the rollout"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorSpec {
    /// Whether new updates start. Running ones end in any case. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Which versions nodes become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionPolicy>,
    /// How many nodes may be out of service because of updates, as a count or a percentage; a node under watch after its
    /// update counts. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<CountOrPercent>,
    /// How nodes are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,
    /// How the health of nodes counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthPolicy>,
    /// What failures lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// How long the other steps may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
}

/// How many nodes are where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Nodes under the operator.
    pub total: i64,
    /// Nodes that need no update.
    pub current: i64,
    /// Nodes with a staged image that wait.
    pub staged: i64,
    /// Nodes on their way.
    pub updating: i64,
    /// Nodes that something of their own blocks.
    pub blocked: i64,
    /// Nodes whose last attempt failed.
    pub failed: i64,
}

/// A node that is, or is about to be, disrupted by us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// The Node's uid, which is what counts.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
    /// The Node's name, for people.
    #[cfg_attr(feature = "crd", schemars(length(max = 253)))]
    pub node: String,
    /// Since when.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub since: Timestamp,
}

/// Why nodes wait, with a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitingCount {
    /// The reason as one fixed word.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub reason: String,
    /// How many nodes wait for it.
    pub nodes: i64,
}

/// What the operator is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorStatus {
    /// The generation that the rest of the status speaks about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many nodes are where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// The nodes that are out of service because of us. Whoever writes a node in here, with the resourceVersion it read,
    /// has the budget for it, also when two controllers are alive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 10_000), extend("x-kubernetes-list-type" = "atomic")))]
    pub slots: Vec<Slot>,
    /// The commonest reasons why nodes wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic")))]
    pub waiting: Vec<WaitingCount>,
    /// `Enabled`, `Progressing`, `Frozen`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))
    )]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_rounds_down_and_never_below_one() {
        let percent = |text: &str| CountOrPercent::Percent(text.into());
        for (budget, total, nodes) in [
            (CountOrPercent::Count(3), 100, Some(3)),
            (CountOrPercent::Count(0), 100, Some(1)),
            (percent("10%"), 100, Some(10)),
            (percent("10%"), 19, Some(1)),
            (percent("10%"), 9, Some(1)),
            (percent("10%"), 0, Some(1)),
            (percent("100%"), 7, Some(7)),
            (percent("0%"), 7, None),
            (percent("101%"), 7, None),
            (percent("ten"), 7, None),
        ] {
            assert_eq!(budget.of(total), nodes, "{budget:?} of {total}");
        }
    }
}
