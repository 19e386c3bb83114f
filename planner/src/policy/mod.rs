//! The operator's resource as input of decisions: every field parsed, validated and with its default.
//!
//! The schema refuses what a pattern can refuse. The remaining errors (a time zone that does not exist, an empty range)
//! are found here, with the field, and the last good policy stays in force.

pub mod revision;
mod schedule;
mod version;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::operator::{
    AtDeadline, BottlerocketUpdateOperatorSpec, CordonedNodes, CountOrPercent, DrainPolicy, Expression, HealthPolicy,
    MAX_FAILURES, NodeSelector, SchedulePolicy, StepApproval,
};
use models::permit::SHUTDOWN_LIMIT;

use crate::rules::Rules;
use crate::view::{NodeFacts, OperatorFacts};

pub use schedule::{Schedule, WindowState};
pub use version::{Exclusion, Range, Target};

/// The longest wait after failed attempts.
pub const BACK_OFF_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A field that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PolicyError {
    /// The field, as a path from the resource's root, such as `spec.schedule.windows[0].timeZone`.
    pub field: String,
    /// The error and its correction.
    pub message: String,
}

/// A canary step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryStep {
    /// Number of nodes that have to be on the version, those of earlier steps included.
    pub nodes: CountOrPercent,
    /// Time to wait after the last of them is done.
    pub soak: Duration,
    /// True if a user has to approve besides.
    pub manual: bool,
}

/// The Prometheus server for expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prometheus {
    /// The base URL of its API.
    pub url: String,
    /// Timeout of an answer.
    pub timeout: Duration,
    /// Interval of queries for an expression that a node waits for.
    pub interval: Duration,
}

/// Conditions before a node is taken out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// True if every pod on the node has to be Ready.
    pub pods_ready: bool,
    /// Number of nodes not Ready above which nothing starts.
    pub max_unhealthy_nodes: Option<CountOrPercent>,
    /// Expressions that have to return nothing.
    pub expressions: Vec<Expression>,
}

/// Conditions for the success of a node's update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Time for which it has to stay healthy.
    pub soak: Duration,
    /// True if its pods have to be Ready and not restarting.
    pub pods_ready: bool,
    /// Maximum time until it is healthy for the soak.
    pub timeout: Duration,
    /// Expressions that have to return nothing.
    pub expressions: Vec<Expression>,
}

impl Default for After {
    fn default() -> Self {
        Self {
            soak: Duration::from_secs(60),
            pods_ready: true,
            timeout: Duration::from_secs(15 * 60),
            expressions: Vec::new(),
        }
    }
}

/// Rules for draining a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Maximum duration.
    pub timeout: Duration,
    /// The action at the end of that time.
    pub at_deadline: AtDeadline,
    /// Rules for pods that would lose something.
    pub rules: Rules,
    /// Treatment of nodes that another user or controller has cordoned.
    pub cordoned_nodes: CordonedNodes,
    /// Time after the end of its grace period for which a terminating pod is waited for; `None`: until the deadline.
    pub skip_terminating_after: Option<Duration>,
    /// Grace period of pods, in seconds; `None`: as each pod specifies.
    pub grace: Option<i64>,
    /// True if it also waits for the pods' volumes.
    pub wait_for_volumes: bool,
}

impl Drain {
    /// Returns the rules at `now`, in which the pods to wait for no longer depend on the time.
    pub fn rules_at(&self, now: Timestamp) -> Rules {
        let skip = self.skip_terminating_after.and_then(|skip| SignedDuration::try_from(skip).ok());
        Rules { now: Some(now), overdue_since: skip.and_then(|skip| now.checked_sub(skip).ok()), ..self.rules }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30 * 60),
            at_deadline: AtDeadline::Release,
            rules: Rules::default(),
            cordoned_nodes: CordonedNodes::Skip,
            skip_terminating_after: None,
            grace: None,
            wait_for_volumes: false,
        }
    }
}

/// The part of the policy that may differ from one group of nodes to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupPolicy {
    /// Times at which nodes may be taken out of service.
    pub schedule: Schedule,
    /// Rules for draining nodes.
    pub drain: Drain,
    /// Conditions before a node is taken out of service.
    pub before: Before,
    /// Conditions for the success of a node's update.
    pub after: After,
}

/// A group of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The nodes of the group, where no group before it matches.
    pub selector: NodeSelector,
    /// Maximum number of its nodes out of service, besides the limit for all nodes.
    pub max_unavailable: Option<CountOrPercent>,
    /// The policy of the group.
    pub policy: GroupPolicy,
}

/// The policy in force. The defaults are those of the resource's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// True if the resource exists. Without it nothing new starts.
    pub present: bool,
    /// True if the resource has never held a policy that can be applied. Then nothing new starts either.
    pub unusable: bool,
    /// True if new updates start.
    pub enabled: bool,
    /// The target version of nodes.
    pub target: Target,
    /// Time for which a version has to be known.
    pub minimum_age: Duration,
    /// Versions that no node takes.
    pub exclude: Vec<Exclusion>,
    /// True if nodes skip their place in a release's waves.
    pub ignore_waves: bool,
    /// Interval of an idle host's refreshes.
    pub refresh_interval: models::duration::Duration,
    /// Maximum number of nodes out of service because of the operator.
    pub max_unavailable: CountOrPercent,
    /// Steps that a version has to pass before all nodes take it.
    pub canary: Vec<CanaryStep>,
    /// Maximum number of nodes that download ahead of their turn at a time; `None`: images are downloaded for a turn
    /// only.
    pub pre_stage: Option<CountOrPercent>,
    /// True if only nodes of one zone are out of service at a time.
    pub one_zone_at_a_time: bool,
    /// The Prometheus server for expressions.
    pub prometheus: Option<Prometheus>,
    /// Maximum time for staging.
    pub stage: Duration,
    /// Maximum time from the desired state to reboot until another boot.
    pub reboot: Duration,
    /// Maximum time from the node's new boot until it is Ready.
    pub returning: Duration,
    /// Maximum time that a host takes to go down after the reboot command.
    pub shutdown: Duration,
    /// Number of nodes that may fail on a version before the rollout freezes.
    pub max_failures: usize,
    /// Back-off of a node after its first failed attempt.
    pub back_off: Duration,
    /// True if nodes that run Bottlerocket are labelled automatically.
    pub label_nodes: bool,
    /// Time before its drain at which a node leaves external load balancers; `None`: it does not.
    pub leave_balancer: Option<Duration>,
    /// True if autoscalers have to leave a node alone while it is out of service.
    pub protect_from_autoscalers: bool,
    /// The policy of nodes in no group.
    pub all: GroupPolicy,
    /// The groups, in their order.
    pub groups: Vec<Group>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            present: false,
            unusable: false,
            enabled: true,
            target: Target::Latest,
            minimum_age: Duration::ZERO,
            exclude: Vec::new(),
            ignore_waves: false,
            refresh_interval: models::duration::Duration::from_mins(60),
            max_unavailable: CountOrPercent::Count(1),
            canary: Vec::new(),
            pre_stage: None,
            one_zone_at_a_time: false,
            prometheus: None,
            stage: Duration::from_secs(30 * 60),
            reboot: Duration::from_secs(15 * 60),
            returning: Duration::from_secs(10 * 60),
            shutdown: SHUTDOWN_LIMIT,
            max_failures: 1,
            back_off: Duration::from_secs(10 * 60),
            label_nodes: false,
            leave_balancer: None,
            protect_from_autoscalers: true,
            all: GroupPolicy::default(),
            groups: Vec::new(),
        }
    }
}

/// Default time out of external load balancers before a node's drain, where policy enables it without a time.
const LEAVE_BALANCER: Duration = Duration::from_secs(30);

/// Default number of downloads at a time, where pre-staging is enabled without a number.
const PRE_STAGE: CountOrPercent = CountOrPercent::Count(10);

impl Policy {
    /// Returns the policy of a resource.
    ///
    /// # Errors
    /// Every field that cannot be applied.
    pub fn from_spec(spec: &BottlerocketUpdateOperatorSpec) -> Result<Self, Vec<PolicyError>> {
        let default = Self::default();
        let mut errors = Vec::new();
        let version = spec.version.clone().unwrap_or_default();
        let strategy = spec.strategy.clone().unwrap_or_default();
        let deadlines = spec.deadlines.clone().unwrap_or_default();
        let failures = spec.failure_policy.clone().unwrap_or_default();
        let mut share = |field: &str, count: CountOrPercent| {
            if count.of(100).is_none() {
                errors.push(PolicyError {
                    field: field.to_owned(),
                    message: "write a count from 1, or a percentage from 1% to 100%".to_owned(),
                });
            }
            count
        };
        let max_unavailable =
            share("spec.maxUnavailable", spec.max_unavailable.clone().unwrap_or(default.max_unavailable));
        let pre_stage = strategy
            .pre_stage
            .map(|p| share("spec.strategy.preStage.maxConcurrent", p.max_concurrent.unwrap_or(PRE_STAGE)));
        let canary = strategy
            .canary
            .into_iter()
            .enumerate()
            .map(|(index, step)| CanaryStep {
                nodes: share(&format!("spec.strategy.canary[{index}].nodes"), step.nodes),
                soak: step.soak.map_or(Duration::ZERO, |d| d.0),
                manual: step.approval == Some(StepApproval::Manual),
            })
            .collect();
        let all = group_policy("spec", &GroupPolicy::default(), &spec.schedule, &spec.drain, &spec.health, &mut errors);
        let groups = spec
            .node_groups
            .iter()
            .enumerate()
            .map(|(index, group)| {
                let path = format!("spec.nodeGroups[{index}]");
                Group {
                    name: group.name.clone(),
                    selector: group.selector.clone(),
                    max_unavailable: group.max_unavailable.clone(),
                    policy: group_policy(&path, &all, &group.schedule, &group.drain, &group.health, &mut errors),
                }
            })
            .collect();
        let target = version::target("spec.version.target", version.target.as_deref(), &mut errors);
        let exclude = version::exclusions("spec.version.exclude", &version.exclude, &mut errors);
        let prometheus = spec.prometheus.clone().map(|p| Prometheus {
            url: p.url,
            timeout: p.timeout.map_or(Duration::from_secs(10), |d| d.0),
            interval: p.interval.map_or(Duration::from_secs(30), |d| d.0.max(Duration::from_secs(1))),
        });
        let policy = Self {
            present: true,
            unusable: false,
            enabled: spec.enabled.unwrap_or(default.enabled),
            target,
            minimum_age: version.minimum_age.map_or(default.minimum_age, |d| d.0),
            exclude,
            ignore_waves: version.ignore_waves.unwrap_or(default.ignore_waves),
            refresh_interval: version.refresh_interval.unwrap_or(default.refresh_interval),
            max_unavailable,
            canary,
            pre_stage,
            one_zone_at_a_time: strategy.one_zone_at_a_time.unwrap_or(default.one_zone_at_a_time),
            prometheus,
            stage: deadlines.stage.map_or(default.stage, |d| d.0),
            reboot: deadlines.reboot.map_or(default.reboot, |d| d.0),
            returning: deadlines.returning.map_or(default.returning, |d| d.0),
            shutdown: deadlines.shutdown.map_or(default.shutdown, |d| d.0),
            max_failures: failures.max_failures.map_or(default.max_failures, |n| n.min(MAX_FAILURES) as usize),
            back_off: failures.back_off.map_or(default.back_off, |d| d.0),
            label_nodes: spec.label_nodes.unwrap_or(default.label_nodes),
            leave_balancer: spec
                .load_balancer
                .as_ref()
                .map(|balancer| balancer.leave_before_drain.map_or(LEAVE_BALANCER, |d| d.0)),
            protect_from_autoscalers: spec
                .autoscaler
                .as_ref()
                .and_then(|autoscaler| autoscaler.protect)
                .unwrap_or(default.protect_from_autoscalers),
            all,
            groups,
        };
        policy.ask_somewhere(&mut errors);
        policy.ask_something(&mut errors);
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }

    /// Rejects expressions without a Prometheus server.
    fn ask_somewhere(&self, errors: &mut Vec<PolicyError>) {
        let asks =
            |policy: &GroupPolicy| !(policy.before.expressions.is_empty() && policy.after.expressions.is_empty());
        if self.prometheus.is_none() && (asks(&self.all) || self.groups.iter().any(|g| asks(&g.policy))) {
            errors.push(PolicyError {
                field: "spec.prometheus.url".to_owned(),
                message: "expressions of spec.health need a Prometheus to ask; write its address here".to_owned(),
            });
        }
    }

    /// Rejects expressions with an unknown variable: it would match nothing, and an empty result is what an expression
    /// has to return.
    fn ask_something(&self, errors: &mut Vec<PolicyError>) {
        let all = std::iter::once(("spec".to_owned(), &self.all));
        let groups = self.groups.iter().enumerate().map(|(i, g)| (format!("spec.nodeGroups[{i}]"), &g.policy));
        for (path, policy) in all.chain(groups) {
            for (when, expressions) in [("before", &policy.before.expressions), ("after", &policy.after.expressions)] {
                for (index, expression) in expressions.iter().enumerate() {
                    let Err(error) = crate::expressions::for_node(&expression.query, "node") else { continue };
                    let field = format!("{path}.health.{when}.expressions[{index}].query");
                    errors.push(PolicyError { field, message: error.to_string() });
                }
            }
        }
    }

    /// Returns the policy in force for a resource, and the errors if it is not the one in `spec`.
    ///
    /// Where `spec` cannot be applied, the last good one stays in force; the resource itself records it, so that
    /// another leader finds it.
    pub fn in_force(operator: Option<&OperatorFacts>) -> (Self, Vec<PolicyError>) {
        let Some(operator) = operator else { return (Self::default(), Vec::new()) };
        let errors = match Self::from_spec(&operator.spec) {
            Ok(policy) => return (policy, Vec::new()),
            Err(errors) => errors,
        };
        let last_good = operator
            .status
            .policy_in_force
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .and_then(|spec| Self::from_spec(&spec).ok());
        let policy = last_good.unwrap_or(Self { present: true, unusable: true, ..Self::default() });
        // The switch does not depend on errors elsewhere: it can always stop things.
        let enabled = policy.enabled && operator.spec.enabled.unwrap_or(true);
        (Self { enabled, ..policy }, errors)
    }

    /// Returns the index of a node's group, if it is in one.
    pub fn group_of(&self, node: &NodeFacts) -> Option<usize> {
        self.groups.iter().position(|group| group.selector.matches(&node.labels))
    }

    /// Returns the policy that applies to a node.
    pub fn for_node(&self, node: &NodeFacts) -> &GroupPolicy {
        self.group_of(node).map_or(&self.all, |index| &self.groups[index].policy)
    }

    /// Returns the back-off of a node after `failures` failed attempts in a row: doubled each time, up to a day.
    pub fn back_off_after(&self, failures: i64) -> Duration {
        let doublings = u32::try_from(failures.clamp(1, 20) - 1).unwrap_or(0);
        self.back_off.saturating_mul(1 << doublings).min(BACK_OFF_LIMIT)
    }
}

fn group_policy(
    path: &str,
    default: &GroupPolicy,
    schedule: &Option<SchedulePolicy>,
    drain: &Option<DrainPolicy>,
    health: &Option<HealthPolicy>,
    errors: &mut Vec<PolicyError>,
) -> GroupPolicy {
    let schedule = match schedule {
        Some(schedule) => Schedule::parse_within(&format!("{path}.schedule"), schedule, &default.schedule, errors),
        None => default.schedule.clone(),
    };
    let asked = drain.clone().unwrap_or_default();
    let drain = Drain {
        timeout: asked.timeout.map_or(default.drain.timeout, |d| d.0),
        at_deadline: asked.at_deadline.unwrap_or(default.drain.at_deadline),
        rules: Rules {
            bare_pods: asked.bare_pods.unwrap_or(default.drain.rules.bare_pods),
            empty_dir: asked.empty_dir.unwrap_or(default.drain.rules.empty_dir),
            ..Rules::default()
        },
        cordoned_nodes: asked.cordoned_nodes.unwrap_or(default.drain.cordoned_nodes),
        skip_terminating_after: asked
            .skip_terminating_after
            .map_or(default.drain.skip_terminating_after, |d| Some(d.0)),
        grace: asked.grace_period.map_or(default.drain.grace, |d| i64::try_from(d.0.as_secs().max(1)).ok()),
        wait_for_volumes: asked.wait_for_volumes.unwrap_or(default.drain.wait_for_volumes),
    };
    let HealthPolicy { before, after } = health.clone().unwrap_or_default();
    let before = before.map_or_else(
        || default.before.clone(),
        |before| Before {
            pods_ready: before.pods_ready.unwrap_or(false),
            max_unhealthy_nodes: before.max_unhealthy_nodes,
            expressions: before.expressions,
        },
    );
    let after = after.map_or_else(
        || default.after.clone(),
        |after| {
            let none = After::default();
            let soak = after.soak.map_or(none.soak, |d| d.0);
            After {
                soak,
                pods_ready: after.pods_ready.unwrap_or(none.pods_ready),
                timeout: after.timeout.map_or(none.timeout, |d| d.0).max(soak.saturating_mul(2)),
                expressions: after.expressions,
            }
        },
    );
    GroupPolicy { schedule, drain, before, after }
}

#[cfg(test)]
mod tests;
