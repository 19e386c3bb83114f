//! Conversion of the resource's spec into the policy.

use std::sync::Arc;
use std::time::Duration;

use models::names::{AWS_HOOK, PROMETHEUS_SECRET};
use models::operator::{
    BottlerocketUpdateOperatorSpec, CanaryStep as CanaryStepSpec, CountOrPercent, DrainPolicy, Expression,
    HealthPolicy, Hook as HookSpec, HookWait as HookWaitSpec, MAX_FAILURES, NodeGroup, NodeSelector, NoticesPolicy,
    ObjectCheck, OnTimeout, PrometheusPolicy, SchedulePolicy, StepApproval, url_without_user_information,
};

use super::{
    After, Before, CanaryStep, Drain, Group, GroupPolicy, Hook, HookWait, Notices, Policy, PolicyError, Prometheus,
    Schedule, version,
};
use crate::expressions::{Check, Subject};
use crate::rules::Rules;

/// Default time out of external load balancers before a node's drain, where policy enables it without a time.
const LEAVE_LOAD_BALANCER: Duration = Duration::from_secs(30);

/// Default time for the answer of a hook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Time for an instance to leave its load balancers, for which these wait five minutes by default, and to be taken in again.
const AWS_WAIT: Duration = Duration::from_secs(15 * 60);

/// Default time for which a node is blocked before receivers are notified: shorter than a drain, after which it begins again.
const BLOCKED_AFTER: Duration = Duration::from_secs(20 * 60);

/// Default number of downloads at a time, where pre-staging is enabled without a number.
const PRE_STAGE: CountOrPercent = CountOrPercent::Count(10);

impl Policy {
    /// Returns the policy of a resource.
    ///
    /// # Errors
    /// Every field that cannot be applied. A duration outside its bounds is none, nor is a URL with credentials.
    pub fn from_spec(spec: &BottlerocketUpdateOperatorSpec) -> Result<Self, Vec<PolicyError>> {
        let (spec, bounded) = spec.within_bounds();
        let spec = spec.as_ref();
        let default = Self::default();
        let (mut errors, mut ignored) = (Vec::new(), Vec::new());
        let prometheus = spec.prometheus.as_ref().map(|server| prometheus(server, &mut ignored));
        let version = spec.version.clone().unwrap_or_default();
        let strategy = spec.strategy.clone().unwrap_or_default();
        let deadlines = spec.deadlines.clone().unwrap_or_default();
        let failures = spec.failure_policy.clone().unwrap_or_default();
        let max_unavailable = spec.max_unavailable.clone().unwrap_or(default.max_unavailable);
        let max_unavailable = checked("spec.maxUnavailable", max_unavailable, &mut errors);
        let pre_stage = strategy.pre_stage.map(|pre_stage| {
            let limit = pre_stage.max_concurrent.unwrap_or(PRE_STAGE);
            checked("spec.strategy.preStage.maxConcurrent", limit, &mut errors)
        });
        let canary = canary_steps(strategy.canary, &mut errors);
        let all = group_policy("spec", &GroupPolicy::default(), &spec.schedule, &spec.drain, &spec.health, &mut errors);
        let (groups, hiding) = node_groups(&spec.node_groups, &all, &mut errors);
        let target = version::target("spec.version.target", version.target.as_deref(), &mut errors);
        let exclude = version::exclusions("spec.version.exclude", &version.exclude, &mut errors);
        let urgent = version.urgent.and_then(|urgent| version::urgent("spec.version.urgent", urgent, &mut errors));
        let policy = Self {
            present: true,
            bounded,
            ignored,
            hiding,
            // Absent only in files for `plan` and `simulate`, whose users ask what happens once it is enabled: in the cluster the
            // API server has written the definition's default, which is false.
            enabled: spec.enabled.unwrap_or(default.enabled),
            target,
            minimum_age: version.minimum_age.map_or(default.minimum_age, |d| d.0),
            exclude,
            urgent,
            freshness_target: spec.freshness.as_ref().and_then(|freshness| freshness.target).map(|target| target.0),
            ignore_waves: version.ignore_waves.unwrap_or(default.ignore_waves),
            refresh_interval: version.refresh_interval.unwrap_or(default.refresh_interval),
            max_unavailable,
            ignore_unavailable_after: spec.ignore_unavailable_after.map_or(default.ignore_unavailable_after, |d| d.0),
            canary,
            pre_stage,
            one_zone_at_a_time: strategy.one_zone_at_a_time.unwrap_or(default.one_zone_at_a_time),
            prometheus,
            stage: deadlines.stage.map_or(default.stage, |d| d.0),
            reboot: deadlines.reboot.map_or(default.reboot, |d| d.0),
            returning: deadlines.returning.map_or(default.returning, |d| d.0),
            shutdown: deadlines.shutdown.map_or(default.shutdown, |d| d.0),
            max_failures: failures.max_failures.map_or(default.max_failures, |n| n.min(MAX_FAILURES) as usize),
            max_consecutive_failures: failures.max_consecutive_failures.map(|n| n.clamp(1, MAX_FAILURES) as usize),
            back_off: failures.back_off.map_or(default.back_off, |d| d.0),
            label_nodes: spec.label_nodes.unwrap_or(default.label_nodes),
            leave_load_balancer: spec
                .load_balancer
                .as_ref()
                .map(|balancer| balancer.leave_before_drain.map_or(LEAVE_LOAD_BALANCER, |d| d.0)),
            protect_from_autoscalers: spec
                .autoscaler
                .as_ref()
                .and_then(|autoscaler| autoscaler.protect)
                .unwrap_or(default.protect_from_autoscalers),
            hooks: hooks(spec),
            notices: spec.notices.as_ref().filter(|notices| !notices.receivers.is_empty()).map(notices),
            revision_history_limit: spec
                .revision_history_limit
                .map_or(default.revision_history_limit, |limit| limit as usize),
            all,
            groups,
            ..default
        };
        policy.reject_missing_prometheus(&mut errors);
        if errors.is_empty() { Ok(policy) } else { Err(errors) }
    }

    /// Rejects expressions without a Prometheus server.
    fn reject_missing_prometheus(&self, errors: &mut Vec<PolicyError>) {
        if self.prometheus.is_none() && self.checks().any(|check| matches!(check, Check::Query(_))) {
            errors.push(PolicyError {
                field: "spec.prometheus.url".to_owned(),
                message: "expressions of spec.health need a Prometheus to ask; write its address here".to_owned(),
            });
        }
    }
}

/// Returns a count, with an error if it is not valid.
fn checked(field: &str, count: CountOrPercent, errors: &mut Vec<PolicyError>) -> CountOrPercent {
    if !count.is_valid() {
        errors.push(PolicyError {
            field: field.to_owned(),
            message: "write a count from 1, or a percentage from 1% to 100%".to_owned(),
        });
    }
    count
}

fn canary_steps(steps: Vec<CanaryStepSpec>, errors: &mut Vec<PolicyError>) -> Vec<CanaryStep> {
    let step = |(index, step): (usize, CanaryStepSpec)| CanaryStep {
        nodes: checked(&format!("spec.strategy.canary[{index}].nodes"), step.nodes, errors),
        soak: step.soak.map_or(Duration::ZERO, |d| d.0),
        manual: step.approval == Some(StepApproval::Manual),
    };
    steps.into_iter().enumerate().map(step).collect()
}

/// Returns the groups, and those of them whose empty selector leaves no node to the groups after them.
fn node_groups(
    groups: &[NodeGroup],
    all: &GroupPolicy,
    errors: &mut Vec<PolicyError>,
) -> (Vec<Group>, Vec<PolicyError>) {
    let mut hiding = Vec::new();
    let group = |(index, group): (usize, &NodeGroup)| {
        let path = format!("spec.nodeGroups[{index}]");
        // No error: an earlier version has stored such policies, and they stay in force.
        if group.selector == NodeSelector::default() && index + 1 < groups.len() {
            hiding.push(PolicyError {
                field: format!("{path}.selector"),
                message: "it is empty and selects every node, so that no node is in the groups after it: write matchLabels or \
                          matchExpressions, or put the group last"
                    .to_owned(),
            });
        }
        Group {
            name: group.name.clone(),
            selector: group.selector.clone(),
            max_unavailable: group
                .max_unavailable
                .clone()
                .map(|count| checked(&format!("{path}.maxUnavailable"), count, errors)),
            policy: group_policy(&path, all, &group.schedule, &group.drain, &group.health, errors),
        }
    };
    let found = groups.iter().enumerate().map(group).collect();
    (found, hiding)
}

/// Returns the hooks of a policy, with the one that the handling of Auto Scaling groups implies.
fn hooks(spec: &BottlerocketUpdateOperatorSpec) -> Vec<Hook> {
    let aws = spec.aws_mode().is_some();
    let implied = HookSpec { name: AWS_HOOK.to_owned(), ..HookSpec::default() };
    let missing = aws && spec.hooks.iter().all(|hook| hook.name != AWS_HOOK);
    let all = spec.hooks.iter().chain(missing.then_some(&implied));
    all.map(|entry| hook(entry, aws && entry.name == AWS_HOOK)).collect()
}

/// Returns a hook. One that is implied is awaited before the drain and after the update, also where its entry names one of them alone.
fn hook(hook: &HookSpec, implied: bool) -> Hook {
    let timeout = if implied { AWS_WAIT } else { HOOK_TIMEOUT };
    let wait = |wait: &Option<HookWaitSpec>| {
        let wait = wait.clone().or_else(|| implied.then(HookWaitSpec::default))?;
        let continues = wait.on_timeout == Some(OnTimeout::Continue);
        Some(HookWait { timeout: wait.timeout.map_or(timeout, |d| d.0), continues })
    };
    Hook { name: hook.name.clone(), before: wait(&hook.before), after: wait(&hook.after), job: hook.job.clone() }
}

fn notices(notices: &NoticesPolicy) -> Notices {
    Notices {
        receivers: notices.receivers.clone(),
        blocked_after: notices.blocked_after.map_or(BLOCKED_AFTER, |d| d.0),
    }
}

fn prometheus(server: &PrometheusPolicy, ignored: &mut Vec<PolicyError>) -> Prometheus {
    let url = url_without_user_information(&server.url);
    if url != server.url {
        ignored.push(PolicyError {
            field: "spec.prometheus.url".to_owned(),
            message: format!(
                "the user name and password in it are not used: remove them, change the password, which all users who \
                 may read this resource could read, and write both into the Secret {PROMETHEUS_SECRET}"
            ),
        });
    }
    Prometheus {
        url,
        timeout: server.timeout.map_or(Duration::from_secs(10), |d| d.0),
        interval: server.interval.map_or(Duration::from_secs(30), |d| d.0),
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
        guarded_pods: asked.guarded_pods.unwrap_or(default.drain.guarded_pods),
        guarded_timeout: asked.guarded_timeout.map_or(default.drain.guarded_timeout, |d| d.0),
        marked_pods: asked.marked_pods.unwrap_or(default.drain.marked_pods),
        rules: Rules {
            bare_pods: asked.bare_pods.unwrap_or(default.drain.rules.bare_pods),
            empty_dir: asked.empty_dir.unwrap_or(default.drain.rules.empty_dir),
            ..Rules::default()
        },
        cordoned_nodes: asked.cordoned_nodes.unwrap_or(default.drain.cordoned_nodes),
        skip_terminating_after: asked
            .skip_terminating_after
            .map_or(default.drain.skip_terminating_after, |d| Some(d.0)),
        grace: asked.grace_period.map_or(default.drain.grace, |d| i64::try_from(d.0.as_secs()).ok()),
        wait_for_volumes: asked.wait_for_volumes.unwrap_or(default.drain.wait_for_volumes),
    };
    let HealthPolicy { before, after } = health.clone().unwrap_or_default();
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    let soak = after.soak.map_or(default.after.soak, |d| d.0);
    let before = Before {
        pods_ready: before.pods_ready.unwrap_or(default.before.pods_ready),
        max_unhealthy_nodes: before
            .max_unhealthy_nodes
            .map(|count| checked(&format!("{path}.health.before.maxUnhealthyNodes"), count, errors))
            .or_else(|| default.before.max_unhealthy_nodes.clone()),
        checks: checks(
            &format!("{path}.health.before"),
            before.expressions,
            before.objects,
            &default.before.checks,
            errors,
        ),
    };
    let after = After {
        soak,
        pods_ready: after.pods_ready.unwrap_or(default.after.pods_ready),
        timeout: after.timeout.map_or(default.after.timeout, |d| d.0).max(soak.saturating_mul(2)),
        checks: checks(
            &format!("{path}.health.after"),
            after.expressions,
            after.objects,
            &default.after.checks,
            errors,
        ),
    };
    GroupPolicy { schedule, drain, before, after }
}

/// Returns the checks of these lists. One that is empty, or absent, which is the same in the resource, is that of all nodes.
///
/// Queries with an unknown variable are errors: they would match nothing, and an empty result is what a query has to return. So are CEL
/// expressions that cannot be parsed, and names that two checks share, whose results before the drain could not be told apart.
fn checks(
    path: &str,
    expressions: Vec<Expression>,
    objects: Vec<ObjectCheck>,
    default: &[Check],
    errors: &mut Vec<PolicyError>,
) -> Vec<Check> {
    let is_inherited = |check: &&Check| match check {
        Check::Query(_) => expressions.is_empty(),
        Check::Objects(_) => objects.is_empty(),
    };
    let mut checks: Vec<Check> = default.iter().filter(is_inherited).cloned().collect();
    let queries = expressions.into_iter().map(Check::Query).enumerate();
    let queries = queries.map(|(index, check)| (format!("{path}.expressions[{index}]"), "query", check));
    let objects = objects.into_iter().map(|check| Check::Objects(Arc::new(check))).enumerate();
    let objects = objects.map(|(index, check)| (format!("{path}.objects[{index}]"), "expression", check));
    for (path, text, check) in queries.chain(objects) {
        if let Err(error) = check.question(Subject { node: "node", version: None }) {
            errors.push(PolicyError { field: format!("{path}.{text}"), message: error.to_string() });
        }
        if checks.iter().any(|other| other.name() == check.name()) {
            let message = "an expression and a check of objects have this name: write another one".to_owned();
            errors.push(PolicyError { field: format!("{path}.name"), message });
        }
        checks.push(check);
    }
    checks
}
