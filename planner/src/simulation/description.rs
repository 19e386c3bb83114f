//! A fleet as users describe it for a simulation.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::core::{Expression, Selector};
use models::duration::Duration;
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION, ZONE_LABEL};
use models::operator::BottlerocketUpdateOperatorSpec;
use models::shadow::{HostPolicy, HostState, OfferedUpdates};
use semver::Version;
use serde::{Deserialize, Deserializer};

use super::host::Host;
use super::scenario::{Fault, FaultEffect, Member, PodTemplate, Scenario, Span, Times, whole_second};
use crate::policy::{Policy, PolicyError};
use crate::view::{
    BudgetFacts, ClusterView, DaemonSetState, NodeFacts, NodeView, OperatorFacts, PodFacts, ShadowFacts,
};

/// The longest duration, and the last moment at which a simulation begins.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
const LAST_START: &str = "9000-01-01T00:00:00Z";

/// The most nodes, and the most pods, of a description.
const MOST_NODES: u32 = 1_000_000;
const MOST_PODS: usize = 50_000_000;

/// A fleet.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Description {
    /// The `spec` of the operator's resource. Default: the built-in policy.
    #[serde(default)]
    pub policy: BottlerocketUpdateOperatorSpec,
    /// The time at which the rollout begins. Default: now.
    pub start: Option<Timestamp>,
    /// The longest simulated time. Default: 60 days.
    pub horizon: Option<Duration>,
    pub nodes: Vec<NodeDescription>,
    /// The versions in the update repository.
    pub versions: Vec<Version>,
    #[serde(default)]
    pub workloads: Vec<WorkloadDescription>,
    #[serde(default)]
    pub times: TimesDescription,
    #[serde(default)]
    pub failures: Vec<FailureDescription>,
}

/// Nodes that are alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeDescription {
    pub count: u32,
    /// The beginning of their names. Default: `node`.
    pub name: Option<String>,
    /// The running version.
    pub version: Version,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The zones that they are in, in turns.
    #[serde(default)]
    pub zones: Vec<String>,
    /// The number of devices on each, by the name of their resource, such as `nvidia.com/gpu`.
    #[serde(default)]
    pub devices: BTreeMap<String, u32>,
    /// Default: `aws-k8s-1.33`.
    pub variant: Option<String>,
    /// Default: `x86_64`.
    pub arch: Option<String>,
}

/// Pods that are alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadDescription {
    /// Namespace and name, such as `shop/web`.
    pub name: String,
    /// Number of pods. Of a DaemonSet, one is on each node.
    #[serde(default)]
    pub replicas: u32,
    #[serde(default)]
    pub daemon_set: bool,
    /// Labels of the nodes that its pods are on at the beginning. Default: all.
    #[serde(default)]
    pub on: BTreeMap<String, String>,
    /// The PodDisruptionBudget of its pods.
    pub budget: Option<BudgetDescription>,
    /// From a pod's eviction to its end. Default: 1s-30s.
    pub stops: Option<SpanText>,
    /// From then to the moment at which its replacement is Ready. Default: 5s-60s.
    pub starts: Option<SpanText>,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BudgetDescription {
    pub max_unavailable: Option<AnyCount>,
    pub min_available: Option<AnyCount>,
}

/// A count from 0, or a percentage from 0% to 100%.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum AnyCount {
    Count(u32),
    Percent(String),
}

/// Durations of what hosts and agents do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimesDescription {
    pub agent: Option<SpanText>,
    pub download: Option<SpanText>,
    pub shutdown: Option<SpanText>,
    pub boot: Option<SpanText>,
}

/// Failures of attempts.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureDescription {
    /// Default: any version.
    pub version: Option<Version>,
    pub effect: FaultEffect,
    /// The share of attempts, such as `2%` or `0.5%`. Default: all of them.
    pub rate: Option<String>,
}

/// A duration such as `20s`, or two between which it is, such as `20s-90s`.
#[derive(Clone, Debug)]
pub struct SpanText(pub Span);

impl<'de> Deserialize<'de> for SpanText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let text = String::deserialize(deserializer)?;
        let read = |part: &str| part.trim().parse::<Duration>().map(|duration| duration.0).map_err(D::Error::custom);
        let (from, to) = text.split_once('-').unwrap_or((&text, &text));
        let (from, to) = (read(from)?, read(to)?);
        if to > LONGEST.0 {
            return Err(D::Error::custom(format!("'{text}' is longer than a year")));
        }
        if from > to {
            return Err(D::Error::custom(format!("'{text}' begins with the longer duration")));
        }
        Ok(Self(Span::Between(from, to)))
    }
}

/// A description that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Policy(Vec<PolicyError>),
    #[error("{field}: {problem}")]
    Field { field: String, problem: String },
}

fn problem(field: impl Into<String>, problem: impl Into<String>) -> DescriptionError {
    DescriptionError::Field { field: field.into(), problem: problem.into() }
}

impl AnyCount {
    /// Returns the number of `total`, where the disruption controller rounds percentages up.
    fn of(&self, total: i32) -> Option<i32> {
        match self {
            Self::Count(count) => i32::try_from(*count).ok(),
            Self::Percent(text) => {
                let percent: i32 =
                    text.strip_suffix('%')?.parse().ok().filter(|percent| (0..=100).contains(percent))?;
                i32::try_from((i64::from(total) * i64::from(percent) + 99) / 100).ok()
            }
        }
    }
}

/// Returns a share such as `2%` as a number from 0 to 1.
fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

impl TimesDescription {
    fn times(&self) -> Times {
        let default = Times::default();
        let span = |given: &Option<SpanText>, default| given.as_ref().map_or(default, |text| text.0.clone());
        Times {
            agent: span(&self.agent, default.agent),
            download: span(&self.download, default.download),
            shutdown: span(&self.shutdown, default.shutdown),
            boot: span(&self.boot, default.boot),
        }
    }
}

impl NodeDescription {
    /// Returns the node as its kubelet and its agent report it, in one of its zones.
    fn node(&self, zone: Option<&String>, offered: &[Version]) -> NodeView {
        let variant = self.variant.clone().unwrap_or_else(|| "aws-k8s-1.33".to_owned());
        let arch = self.arch.clone().unwrap_or_else(|| "x86_64".to_owned());
        let mut labels = self.labels.clone();
        labels.insert(INTERFACE_LABEL.to_owned(), INTERFACE_VERSION.to_owned());
        labels.extend(zone.map(|zone| (ZONE_LABEL.to_owned(), zone.clone())));
        let facts = NodeFacts {
            labelled: true,
            ready: true,
            boot_id: "boot-0".to_owned(),
            os_image: format!("Bottlerocket OS {} ({variant})", self.version),
            labels: Arc::new(labels),
            allocatable: Arc::new(self.devices.iter().map(|(name, count)| (name.clone(), count.to_string())).collect()),
            ..NodeFacts::default()
        };
        let mut shadow = ShadowFacts { generation: 1, ..ShadowFacts::default() };
        let agent = &mut shadow.status.agent;
        agent.state = Some(HostState::Idle);
        agent.observed_generation = Some(1);
        agent.boot_id = Some(facts.boot_id.clone());
        agent.current_version = Some(self.version.clone());
        (agent.variant, agent.arch) = (Some(variant), Some(arch));
        agent.updates = Some(OfferedUpdates {
            chosen_version: offered.iter().find(|version| **version > self.version).cloned(),
            available_versions: offered.to_vec(),
            ..OfferedUpdates::default()
        });
        NodeView { facts, shadow: Some(Box::new(shadow)), ..NodeView::default() }
    }
}

impl WorkloadDescription {
    fn template(&self, field: &str) -> Result<PodTemplate, DescriptionError> {
        let (namespace, name) = self
            .name
            .split_once('/')
            .ok_or_else(|| problem(format!("{field}.name"), "write namespace and name, such as shop/web"))?;
        let facts = PodFacts {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: self.name.clone(),
            controller: Some(format!("{} {name}", if self.daemon_set { "DaemonSet" } else { "ReplicaSet" })),
            controller_uid: Some(self.name.clone()),
            daemon_set: self.daemon_set.then(|| name.to_owned()),
            daemon_set_state: DaemonSetState::There,
            labels: Arc::new([("workload".to_owned(), name.to_owned())].into()),
            ready: true,
            ..PodFacts::default()
        };
        let span = |given: &Option<SpanText>, from, to| given.as_ref().map_or(Span::seconds(from, to), |t| t.0.clone());
        let replaced = (!self.daemon_set).then(|| span(&self.starts, 5, 60));
        Ok(PodTemplate { facts, leaves: span(&self.stops, 1, 30), replaced })
    }

    fn budget(&self, field: &str, template: &PodTemplate) -> Result<Option<BudgetFacts>, DescriptionError> {
        let Some(budget) = &self.budget else { return Ok(None) };
        let field = format!("{field}.budget");
        let total = i32::try_from(self.replicas).map_err(|_| problem(&field, "too many replicas"))?;
        let desired = match (&budget.max_unavailable, &budget.min_available) {
            (Some(count), None) => count.of(total).map(|count| (total - count).max(0)),
            (None, Some(count)) => count.of(total),
            _ => return Err(problem(field, "write either maxUnavailable or minAvailable")),
        };
        let desired = desired.ok_or_else(|| problem(field, "write a count, or a percentage such as 10%"))?;
        let name = template.facts.name.clone();
        Ok(Some(BudgetFacts {
            namespace: template.facts.namespace.clone(),
            name: name.clone(),
            allowed: (total - desired).max(0),
            healthy: total,
            desired,
            expected: total,
            selector: Some(Selector::from_iter([Expression::Equal("workload".to_owned(), name)])),
            ..BudgetFacts::default()
        }))
    }
}

impl Description {
    /// Returns the scenario that it describes. `now` is the beginning where it names none.
    ///
    /// # Errors
    /// The first field that cannot be simulated.
    pub fn scenario(&self, now: Timestamp) -> Result<Scenario, DescriptionError> {
        let policy = Policy::from_spec(&self.policy).map_err(DescriptionError::Policy)?;
        let start = self.start.unwrap_or(now);
        if LAST_START.parse().is_ok_and(|last: Timestamp| start > last) {
            return Err(problem("start", format!("is after {LAST_START}")));
        }
        if self.horizon.is_some_and(|horizon| horizon > LONGEST) {
            return Err(problem("horizon", "is longer than a year (8784h)"));
        }
        if self.versions.is_empty() {
            return Err(problem("versions", "name the versions that nodes may be updated to, such as [1.20.5]"));
        }
        let mut versions = self.versions.clone();
        versions.extend(self.nodes.iter().map(|nodes| nodes.version.clone()));
        versions.sort_by(|a, b| b.cmp(a));
        versions.dedup();
        let mut members = self.members(&versions.into())?;
        let (mut pods, mut budgets) = (Vec::new(), Vec::new());
        for (index, workload) in self.workloads.iter().enumerate() {
            let field = format!("workloads[{index}]");
            let template = workload.template(&field)?;
            budgets.extend(workload.budget(&field, &template)?);
            let on = |member: &Member| {
                workload.on.iter().all(|(name, value)| member.node.facts.labels.get(name) == Some(value))
            };
            let hosts: Vec<usize> = (0..members.len()).filter(|member| on(&members[*member])).collect();
            let number = if workload.daemon_set { hosts.len() } else { workload.replicas as usize };
            if hosts.is_empty() && number > 0 {
                return Err(problem(format!("{field}.on"), "no node has these labels"));
            }
            let index = u32::try_from(pods.len()).map_err(|_| problem("workloads", "too many"))?;
            if members.iter().map(|member| member.pods.len()).sum::<usize>() + number > MOST_PODS {
                return Err(problem(field, format!("more than {MOST_PODS} pods in all")));
            }
            for pod in 0..number {
                members[hosts[pod % hosts.len()]].pods.push(index);
            }
            pods.push(template);
        }
        let fault = |(index, failure): (usize, &FailureDescription)| {
            let rate = failure.rate.as_deref().map_or(Some(1.0), share);
            let field = format!("failures[{index}].rate");
            let rate = rate.ok_or_else(|| problem(field, "write a percentage from 0% to 100%, such as 2%"))?;
            Ok(Fault { version: failure.version.clone(), effect: failure.effect, rate, members: Default::default() })
        };
        let operator =
            OperatorFacts { uid: "operator".to_owned(), spec: self.policy.clone(), ..OperatorFacts::default() };
        Ok(Scenario {
            base: ClusterView { operator: Some(operator), ..ClusterView::default() },
            policy,
            start: whole_second(start),
            horizon: self.horizon.map_or(SignedDuration::from_hours(24 * 60), Duration::signed),
            members,
            pods,
            budgets,
            times: self.times.times(),
            faults: self.failures.iter().enumerate().map(fault).collect::<Result<_, _>>()?,
            arriving: Vec::new(),
            starting: Vec::new(),
            elsewhere: 0,
            exhaustive: false,
        })
    }

    fn members(&self, offered: &Arc<[Version]>) -> Result<Vec<Member>, DescriptionError> {
        let total: u64 = self.nodes.iter().map(|nodes| u64::from(nodes.count)).sum();
        if total == 0 || total > u64::from(MOST_NODES) {
            return Err(problem("nodes", format!("{total} nodes in all: from 1 to {MOST_NODES} can be simulated")));
        }
        let policy = HostPolicy {
            refresh_interval: Some(
                self.policy
                    .version
                    .as_ref()
                    .and_then(|v| v.refresh_interval)
                    .unwrap_or(Policy::default().refresh_interval),
            ),
            ..HostPolicy::default()
        };
        let mut members = Vec::new();
        for nodes in &self.nodes {
            let zones: Vec<Option<&String>> =
                if nodes.zones.is_empty() { vec![None] } else { nodes.zones.iter().map(Some).collect() };
            let alike = zones.into_iter().map(|zone| {
                let mut node = nodes.node(zone, offered);
                if let Some(shadow) = &mut node.shadow {
                    shadow.spec.host = Some(policy.clone());
                }
                Arc::new(node)
            });
            let alike: Vec<Arc<NodeView>> = alike.collect();
            let prefix = nodes.name.as_deref().unwrap_or("node");
            let width = nodes.count.to_string().len();
            members.extend((1..=nodes.count).zip(alike.iter().cycle()).map(|(number, node)| Member {
                node: node.clone(),
                name: Some(format!("{prefix}-{number:0width$}")),
                host: Host::new(nodes.version.clone()),
                offered: offered.clone(),
                pods: Vec::new(),
            }));
        }
        let mut names: Vec<&str> = members.iter().map(Member::name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(problem(
                "nodes",
                format!("two nodes have the name {}: give each kind a name of its own", pair[0]),
            ));
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<Scenario, String> {
        let description: Description = serde_json::from_value(value).map_err(|error| error.to_string())?;
        description.scenario(Timestamp::UNIX_EPOCH).map_err(|error| error.to_string())
    }

    fn fleet(change: impl FnOnce(&mut Value)) -> Value {
        let mut value = json!({
            "nodes": [{"count": 3, "version": "1.20.0", "zones": ["a", "b"]}],
            "versions": ["1.20.5"],
            "workloads": [{"name": "shop/web", "replicas": 6, "budget": {"maxUnavailable": "10%"}}],
        });
        change(&mut value);
        value
    }

    #[test]
    fn description_becomes_fleet_with_pods_and_budgets() {
        let scenario = read(fleet(|_| {})).unwrap();
        assert_eq!(scenario.members.iter().map(Member::name).collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
        assert_eq!(scenario.members.iter().map(|m| m.node.facts.zone()).collect::<Vec<_>>(), ["a", "b", "a"]);
        assert_eq!(scenario.members[0].pods.len(), 2);
        let budget = &scenario.budgets[0];
        assert_eq!((budget.allowed, budget.desired, budget.expected), (1, 5, 6), "percentages round up");
        assert!(budget.selects(&scenario.pods[0].facts));
    }

    #[test]
    fn field_that_cannot_be_simulated_is_named() {
        for (sentence, change, part) in [
            ("a misspelt field", json!({"workload": []}), "unknown field `workload`"),
            ("no version", json!({"versions": []}), "versions: name the versions"),
            ("no node", json!({"nodes": [{"count": 0, "version": "1.20.0"}]}), "nodes: 0 nodes in all"),
            (
                "a workload without a namespace",
                json!({"workloads": [{"name": "web", "replicas": 1}]}),
                "workloads[0].name",
            ),
            (
                "labels of no node",
                json!({"workloads": [{"name": "a/b", "replicas": 1, "on": {"x": "y"}}]}),
                "workloads[0].on",
            ),
            (
                "two budgets in one",
                json!({"workloads": [{"name": "a/b", "replicas": 1, "budget": {}}]}),
                "either maxUnavailable",
            ),
            (
                "a rate without a percent sign",
                json!({"failures": [{"effect": "NeverReady", "rate": "2"}]}),
                "failures[0].rate",
            ),
            (
                "an effect that is not known",
                json!({"failures": [{"effect": "Explodes"}]}),
                "unknown variant `Explodes`",
            ),
            ("durations in the wrong order", json!({"times": {"boot": "90s-20s"}}), "begins with the longer duration"),
            ("an invalid policy", json!({"policy": {"version": {"target": "one"}}}), "spec.version.target"),
            (
                "names twice",
                json!({"nodes": [{"count": 1, "version": "1.20.0"}, {"count": 1, "version": "1.20.0"}]}),
                "two nodes have the name node-1",
            ),
        ] {
            let changed = fleet(|value| {
                for (field, content) in change.as_object().unwrap() {
                    value[field] = content.clone();
                }
            });
            let error = read(changed).unwrap_err();
            assert!(error.contains(part), "{sentence}: {error}");
        }
    }
}
