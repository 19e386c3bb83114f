//! The operator's resource as input of decisions: every field parsed, validated and with its default.
//!
//! The schema refuses what a pattern can refuse. The remaining errors (a time zone that does not exist, an empty range)
//! are found here, with the field, and nothing new starts; what is under way ends under the last good policy. Without one, what
//! has no permit ends at once.

mod error;
mod parse;
mod schedule;
mod version;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::operator::{
    AtDeadline, CordonedNodes, CountOrPercent, Deadlines, GuardedPods, HookJob, MAX_SLOTS, MarkedPods, NodeSelector,
    NoticeReceiver, OutOfBounds,
};
use models::permit::SHUTDOWN_LIMIT;
use models::time::after;

use crate::expressions::Check;
use crate::rules::Rules;
use crate::view::{NodeFacts, OperatorFacts, PodFacts};

pub use error::PolicyError;
pub use schedule::{Schedule, WindowState};
pub use version::{Exclusion, NodeKind, Range, Target, Urgent};

/// The longest wait after failed attempts.
pub const BACK_OFF_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A canary step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryStep {
    /// Number of nodes that have to be on the version, those of earlier steps included.
    pub nodes: CountOrPercent,
    pub soak: Duration,
    /// True if a user has to approve besides.
    pub manual: bool,
}

/// The Prometheus server for expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prometheus {
    /// The base URL of its API, without user information.
    pub url: String,
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
    /// The expressions that have to be quiet.
    pub checks: Vec<Check>,
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
    /// The expressions that have to be quiet.
    pub checks: Vec<Check>,
}

impl Default for After {
    fn default() -> Self {
        Self {
            soak: Duration::from_secs(60),
            pods_ready: true,
            timeout: Duration::from_secs(15 * 60),
            checks: Vec::new(),
        }
    }
}

/// Rules for draining a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    pub timeout: Duration,
    /// The action at the end of that time.
    pub at_deadline: AtDeadline,
    /// Handling of pods that a budget guards.
    pub guarded_pods: GuardedPods,
    /// Time for which they are asked, since the last one whose eviction was accepted.
    pub guarded_timeout: Duration,
    /// Handling of pods that autoscalers are not to move.
    pub marked_pods: MarkedPods,
    /// Rules for pods that would lose something.
    pub rules: Rules,
    pub cordoned_nodes: CordonedNodes,
    /// Time after the end of its grace period for which a terminating pod is waited for; `None`: until the deadline.
    pub skip_terminating_after: Option<Duration>,
    /// Grace period of pods, in seconds; `None`: as each pod specifies.
    pub grace: Option<i64>,
    /// True if it also waits for the pods' volumes.
    pub wait_for_volumes: bool,
}

impl Drain {
    /// Returns the grace period of a pod, in seconds, if it is longer than the drain may take.
    pub fn long_grace(&self, pod: &PodFacts) -> Option<i64> {
        let grace = self.grace.or(pod.grace)?;
        let longer = u64::try_from(grace).is_ok_and(|grace| Duration::from_secs(grace) > self.timeout);
        longer.then_some(grace)
    }

    /// Returns the rules at `now`, in which the pods to wait for no longer depend on the time.
    pub fn rules_at(&self, now: Timestamp) -> Rules {
        let skip = self.skip_terminating_after.and_then(|skip| SignedDuration::try_from(skip).ok());
        Rules {
            now: Some(now),
            overdue_since: skip.and_then(|skip| now.checked_sub(skip).ok()),
            past_budgets: self.at_deadline == AtDeadline::Force && self.guarded_pods == GuardedPods::Ask,
            ..self.rules
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30 * 60),
            at_deadline: AtDeadline::Release,
            guarded_pods: GuardedPods::Ask,
            guarded_timeout: Duration::from_secs(10 * 60),
            marked_pods: MarkedPods::Evict,
            rules: Rules::default(),
            cordoned_nodes: CordonedNodes::Skip,
            skip_terminating_after: None,
            grace: None,
            wait_for_volumes: false,
        }
    }
}

/// A hook, with the phases in which it is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub name: String,
    /// Before the drain.
    pub before: Option<HookWait>,
    /// After the update was verified.
    pub after: Option<HookWait>,
    /// The Jobs that answer; `None` if another controller does.
    pub job: Option<HookJob>,
}

/// The wait for the answer of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookWait {
    pub timeout: Duration,
    /// True if the attempt goes on without an answer.
    pub continues: bool,
}

/// Notices to other systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notices {
    pub receivers: Vec<NoticeReceiver>,
    /// Time for which a node is blocked before receivers are notified.
    pub blocked_after: Duration,
}

/// The part of the policy that may differ from one group of nodes to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupPolicy {
    pub schedule: Schedule,
    pub drain: Drain,
    pub before: Before,
    pub after: After,
}

/// A group of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    /// The nodes of the group, where no group before it matches.
    pub selector: NodeSelector,
    /// Maximum number of its nodes out of service, besides the limit for all nodes.
    pub max_unavailable: Option<CountOrPercent>,
    pub policy: GroupPolicy,
}

/// The policy in force. The defaults are those of the resource's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// True if the resource exists. Without it nothing new starts, attempts without a permit end, and nothing is proven.
    pub present: bool,
    /// True if the resource has never held a policy that can be applied. Then the same holds.
    pub unusable: bool,
    /// The errors in `spec`, if another policy is in force because of them.
    pub errors: Vec<PolicyError>,
    /// The durations in `spec` that are outside their bounds, and read as the nearest one.
    pub bounded: Vec<OutOfBounds>,
    /// The credentials in `spec`, which are not used.
    pub ignored: Vec<PolicyError>,
    /// The groups in `spec` whose empty selector leaves no node to the groups after them.
    pub hiding: Vec<PolicyError>,
    pub enabled: bool,
    pub target: Target,
    /// Time for which a version has to be known.
    pub minimum_age: Duration,
    pub exclude: Vec<Exclusion>,
    /// True if nodes skip their place in a release's waves.
    pub ignore_waves: bool,
    /// The version that windows and soaks do not delay, if there is one.
    pub urgent: Option<Urgent>,
    /// Maximum time for which a node may run an earlier version than it could; `None`: no maximum.
    pub freshness_target: Option<Duration>,
    /// Interval of an idle host's refreshes.
    pub refresh_interval: models::duration::Duration,
    /// Maximum number of nodes out of service because of the operator, as policy has it: see [`Policy::slots_among`].
    pub max_unavailable: CountOrPercent,
    /// Time for which a node that is out of service without the operator counts against the budgets.
    pub ignore_unavailable_after: Duration,
    /// Steps that a version has to pass before all nodes take it.
    pub canary: Vec<CanaryStep>,
    /// Maximum number of nodes that download ahead of their turn at a time; `None`: images are downloaded for a turn
    /// only.
    pub pre_stage: Option<CountOrPercent>,
    /// True if only nodes of one zone are out of service at a time.
    pub one_zone_at_a_time: bool,
    pub prometheus: Option<Prometheus>,
    pub stage: Duration,
    /// Maximum time from the desired state to reboot until another boot.
    pub reboot: Duration,
    /// Maximum time from the node's new boot until it is Ready.
    pub returning: Duration,
    /// Maximum time that a host takes to go down after the reboot command.
    pub shutdown: Duration,
    /// Number of nodes that may fail on a version before the rollout freezes.
    pub max_failures: usize,
    /// Number of nodes whose updates may end one after the other without a proof before the rollout is braked; `None`: 3, or one less
    /// than the nodes of the kind if these are fewer.
    pub max_consecutive_failures: Option<usize>,
    /// Back-off of a node after its first failed attempt.
    pub back_off: Duration,
    /// True if nodes that run Bottlerocket are labelled automatically.
    pub label_nodes: bool,
    /// Time before its drain at which a node leaves external load balancers; `None`: it does not.
    pub leave_load_balancer: Option<Duration>,
    /// True if autoscalers have to leave a node alone while it is out of service.
    pub protect_from_autoscalers: bool,
    pub hooks: Vec<Hook>,
    /// Notices to other systems; `None`: there is no receiver.
    pub notices: Option<Notices>,
    /// Number of revisions of the policy that are kept although no node and no status needs them.
    pub revision_history_limit: usize,
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
            errors: Vec::new(),
            bounded: Vec::new(),
            ignored: Vec::new(),
            hiding: Vec::new(),
            enabled: true,
            target: Target::Latest,
            minimum_age: Duration::ZERO,
            exclude: Vec::new(),
            ignore_waves: false,
            urgent: None,
            freshness_target: None,
            refresh_interval: models::duration::Duration::from_mins(60),
            max_unavailable: CountOrPercent::Count(1),
            ignore_unavailable_after: Duration::from_secs(3600),
            canary: Vec::new(),
            pre_stage: None,
            one_zone_at_a_time: false,
            prometheus: None,
            stage: Deadlines::STAGE.0,
            reboot: Deadlines::REBOOT.0,
            returning: Deadlines::RETURN.0,
            shutdown: SHUTDOWN_LIMIT,
            max_failures: 1,
            max_consecutive_failures: None,
            back_off: Duration::from_secs(10 * 60),
            label_nodes: false,
            leave_load_balancer: None,
            protect_from_autoscalers: true,
            hooks: Vec::new(),
            notices: None,
            revision_history_limit: 10,
            all: GroupPolicy::default(),
            groups: Vec::new(),
        }
    }
}

impl Policy {
    /// Returns the policy in force for a resource.
    ///
    /// Where `spec` cannot be applied, the last good one stays in force; the resource itself records it, so that
    /// another leader finds it.
    pub fn in_force(operator: Option<&OperatorFacts>) -> Self {
        let Some(operator) = operator else { return Self::default() };
        let errors = match Self::from_spec(&operator.spec) {
            Ok(policy) => return policy,
            Err(errors) => errors,
        };
        let last_good = operator
            .status
            .policy_in_force
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .and_then(|spec| Self::from_spec(&spec).ok());
        let policy = last_good.unwrap_or(Self { present: true, unusable: true, ..Self::default() });
        // The switch does not depend on errors elsewhere: it can always stop things. It starts nothing while there are errors.
        let enabled = operator.spec.enabled.unwrap_or(true);
        Self { enabled, errors, ..policy }
    }

    /// Returns whether a resource says when an update is good. The defaults alone do not.
    pub fn is_usable(&self) -> bool {
        self.present && !self.unusable
    }

    /// Returns the number of nodes that may be out of service at a time, of `total` under the operator.
    pub fn slots_among(&self, total: usize) -> usize {
        self.max_unavailable.of(total).min(MAX_SLOTS)
    }

    /// Returns the checks of all nodes.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        let policies = self.groups.iter().map(|group| &group.policy).chain([&self.all]);
        policies.flat_map(|policy| policy.before.checks.iter().chain(&policy.after.checks))
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

    /// Returns the end of the back-off after failures of the earlier operator, the last of them at `failed_at`. A time in
    /// the future is not one of a failure.
    pub fn continued_back_off(&self, failures: i64, failed_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let failed_at = failed_at.filter(|at| failures > 0 && *at <= now)?;
        Some(after(failed_at, self.back_off_after(failures)))
    }
}

#[cfg(test)]
mod tests;
