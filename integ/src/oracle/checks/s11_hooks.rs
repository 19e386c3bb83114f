//! S11: no drain begins before each hook that the policy awaits has answered, or its time is over and the policy goes on
//! without it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::names::{AWS_HOOK, HOOK_ANSWER_PREFIX};
use models::operator::{BottlerocketUpdateOperatorSpec, Hook, HookWait, OnTimeout};
use models::shadow::{Progress, Step};
use models::time::between;

use super::{Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::{Field, Shadow};

/// Time after which a hook that a user adds to policy is known to the leader: a drain may begin while the change is on its way to it.
const KNOWN_AFTER: SignedDuration = SignedDuration::from_secs(2);

#[derive(Default)]
pub(super) struct Check {
    /// Since when policy awaits each hook.
    since: BTreeMap<String, Timestamp>,
}

fn progress(shadow: &Shadow) -> Option<&Progress> {
    shadow.status.controller.progress.as_ref()
}

/// The time for the answer of a hook, and for that of the one that the handling of Auto Scaling groups implies.
const TIMEOUT: Duration = Duration::from_mins(5);
const AWS_TIMEOUT: Duration = Duration::from_mins(15);

/// The hooks that a policy awaits before a drain, with their default times. The handling of Auto Scaling groups implies one, also where its
/// entry names the wait after the update alone. Its missing answer ends the attempt unless the entry says otherwise.
fn awaited(spec: &BottlerocketUpdateOperatorSpec) -> Vec<(String, HookWait, Duration)> {
    let aws = spec.autoscaling.as_ref().is_some_and(|autoscaling| autoscaling.aws.is_some());
    let is_implied = |hook: &Hook| aws && hook.name == AWS_HOOK;
    let mut hooks = spec.hooks.clone();
    if aws && !hooks.iter().any(is_implied) {
        hooks.push(Hook { name: AWS_HOOK.into(), before: None, after: None, job: None });
    }
    let before = |hook: Hook| {
        let timeout = if is_implied(&hook) { AWS_TIMEOUT } else { TIMEOUT };
        let wait = if is_implied(&hook) { Some(hook.before.unwrap_or_default()) } else { hook.before };
        Some((hook.name, wait?, timeout))
    };
    hooks.into_iter().filter_map(before).collect()
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        let now = moment.change.at;
        if let (Object::Operator(operator), false) = (&moment.change.object, moment.change.gone) {
            let hooks = awaited(&operator.spec).into_iter().map(|(hook, ..)| hook);
            self.since = hooks.map(|hook| (hook.clone(), self.since.get(&hook).copied().unwrap_or(now))).collect();
        }
        let Some((new, old)) = moment.shadow() else { return };
        let (Some(is), Some(was)) = (progress(new), old.and_then(progress)) else { return };
        let drains = matches!(is.step, Step::LeavingLoadBalancer | Step::Draining);
        if !drains || !matches!(was.step, Step::Staging | Step::Staged | Step::BeforeDrain) {
            return;
        }
        let request = format!("BeforeDrain/{}/{}", was.attempt, was.started.as_second());
        let node = moment.world.nodes.get(new.node());
        for (hook, wait, timeout) in moment.world.operator.iter().flat_map(|operator| awaited(&operator.spec)) {
            let answer = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}{hook}"));
            let answered = node.and_then(|node| node.fields.get(&answer)) == Some(&request);
            let timeout = wait.timeout.map_or(timeout, |timeout| timeout.0);
            let asked = was.step == Step::BeforeDrain && wait.on_timeout == Some(OnTimeout::Continue);
            let over = asked && between(was.since, is.since) >= timeout;
            let is_known = self.since.get(&hook).is_none_or(|since| now.duration_since(*since) > KNOWN_AFTER);
            if !answered && !over && is_known {
                let text = format!("its drain began without the answer of hook {hook}");
                verdict.report(Property::S11, Some(moment.revision()), Some(new.node()), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use models::names::HOOK_ANSWER_PREFIX;
    use models::operator::{Hook, HookWait, OnTimeout};
    use models::shadow::Step;

    use super::super::super::scenario::Scenario;
    use super::{AWS_TIMEOUT, Field, KNOWN_AFTER, Property, TIMEOUT, awaited, progress};

    /// A node whose drain begins so many seconds after its hook is awaited, with the answer that is given for its request.
    fn drained(on_timeout: OnTimeout, answer: impl Fn(&str) -> Option<String>, seconds: i64) -> Scenario {
        let mut scenario = Scenario::new(&["a"]);
        let wait = HookWait { timeout: Some(models::duration::Duration::from_secs(60)), on_timeout: Some(on_timeout) };
        let hook = Hook { name: "ceph".into(), before: Some(wait), after: None, job: None };
        scenario.operator(|operator| operator.spec.hooks = vec![hook]);
        scenario.wait(KNOWN_AFTER.as_secs());
        scenario.stage("a");
        scenario.take_slot("a");
        scenario.step("a", Step::BeforeDrain);
        scenario.claim("a");
        let mut started = 0;
        scenario.controller("a", |shadow| started = progress(shadow).unwrap().started.as_second());
        if let Some(answer) = answer(&format!("BeforeDrain/1/{started}")) {
            let field = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}ceph"));
            scenario.set_field("a", "ceph", "", field, Some(&answer));
        }
        scenario.wait(seconds);
        scenario.step("a", Step::Draining);
        scenario
    }

    #[test]
    fn drain_after_answer_or_continued_timeout_is_accepted() {
        assert_eq!(drained(OnTimeout::Fail, |request| Some(request.to_owned()), 1).judge().violations, []);
        assert_eq!(drained(OnTimeout::Continue, |_| None, 60).judge().violations, []);
    }

    #[test]
    fn drain_without_answer_is_detected() {
        for (on_timeout, seconds) in [(OnTimeout::Fail, 600), (OnTimeout::Continue, 30)] {
            drained(on_timeout, |_| None, seconds).assert_only(Property::S11);
        }
        drained(OnTimeout::Fail, |request| Some(format!("{request} Refused: no")), 1).assert_only(Property::S11);
        drained(OnTimeout::Fail, |request| Some(request.replace("/1/", "/0/")), 1).assert_only(Property::S11);
    }

    #[test]
    fn hook_that_policy_gets_as_a_drain_begins_may_not_be_known() {
        for (seconds, passes) in [(0, true), (3, false)] {
            let mut scenario = Scenario::new(&["a"]);
            scenario.stage("a");
            scenario.take_slot("a");
            let hook = Hook { name: "ceph".into(), before: Some(HookWait::default()), after: None, job: None };
            scenario.operator(|operator| operator.spec.hooks = vec![hook]);
            scenario.wait(seconds);
            scenario.step("a", Step::Draining);
            if passes {
                assert_eq!(scenario.judge().violations, []);
            } else {
                scenario.assert_only(Property::S11);
            }
        }
    }

    #[test]
    fn hook_of_auto_scaling_groups_is_awaited_whatever_its_entry_leaves_out() {
        let aws = serde_json::json!({"aws": {"mode": "Standby"}});
        for (autoscaling, entry, expected) in [
            (Some(&aws), None, Some(AWS_TIMEOUT)),
            (Some(&aws), Some(serde_json::json!({"after": {"timeout": "40m"}})), Some(AWS_TIMEOUT)),
            (Some(&aws), Some(serde_json::json!({"before": {}})), Some(AWS_TIMEOUT)),
            (None, Some(serde_json::json!({"before": {}})), Some(TIMEOUT)),
            (None, Some(serde_json::json!({"after": {}})), None),
        ] {
            let hooks: Vec<_> = entry.iter().cloned().collect();
            let mut spec = serde_json::json!({"autoscaling": autoscaling, "hooks": hooks});
            for hook in spec["hooks"].as_array_mut().into_iter().flatten() {
                hook["name"] = models::names::AWS_HOOK.into();
            }
            let found = awaited(&serde_json::from_value(spec).unwrap());
            assert_eq!(found.first().map(|(_, _, timeout)| *timeout), expected, "{autoscaling:?}, {entry:?}");
        }
    }
}
