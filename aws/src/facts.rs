//! The facts that decisions need: nodes with the requests to hooks, the record, and what AWS shows of instances and groups.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use models::names::{AWS_HOOK, HOOK_ANSWER_PREFIX, HOOKS_ANNOTATION};
use models::operator::{AwsMode, BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec, Deadlines, Slot};
use models::time::between;
use serde::{Deserialize, Serialize};

/// The policy, as far as decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) mode: Option<AwsMode>,
    /// Time that an update gives a host to reboot and to be Ready again.
    pub(crate) reboot: Duration,
}

impl Policy {
    pub(crate) fn read(spec: &BottlerocketUpdateOperatorSpec) -> Self {
        let deadlines = spec.within_bounds().0.deadlines.clone().unwrap_or_default();
        let reboot = deadlines.reboot.unwrap_or(Deadlines::REBOOT).0;
        let returning = deadlines.returning.unwrap_or(Deadlines::RETURN).0;
        Self { mode: spec.aws_mode(), reboot: reboot.saturating_add(returning) }
    }
}

/// The operator's resource: the policy, and the updates under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) policy: Policy,
    /// `None` before the controller has written the status of this resource.
    slots: Option<Vec<Slot>>,
}

impl Operator {
    pub(crate) fn read(operator: &BottlerocketUpdateOperator) -> Self {
        let status = operator.status.as_ref().filter(|status| status.observed_generation.is_some());
        Self { policy: Policy::read(&operator.spec), slots: status.map(|status| status.slots.clone()) }
    }

    /// Stands for the resource while there is none.
    pub(crate) fn missing() -> Self {
        Self { policy: Policy::read(&Default::default()), slots: None }
    }

    /// Stands for the resource while it cannot be read: its policy may give a host more time than the default.
    pub(crate) fn unreadable() -> Self {
        Self { policy: Policy { mode: None, reboot: Duration::MAX }, slots: None }
    }

    /// Returns whether the operator has given the Node a slot for the attempt that its request names.
    pub(crate) fn backing(&self, node: &Node) -> Backing {
        let Some(slots) = &self.slots else { return Backing::Unknown };
        let attempt = node.request.as_deref().and_then(|request| request.split('/').nth(1)?.parse::<i64>().ok());
        let is_backed = slots.iter().any(|slot| slot.is_for(&node.uid, attempt));
        if is_backed { Backing::Slot } else { Backing::Missing }
    }
}

/// State of a Node's request in the operator's own record. The kubelet of a Node can write its annotations, and so
/// a request, but not that record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// There is a slot for it.
    Slot,
    /// There is none: the request is not the operator's, or its slot has not been seen yet, or was freed, also while the host may
    /// still reboot.
    Missing,
    /// The record is not known, as after the operator's resource was made again.
    Unknown,
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The resourceVersion.
    pub(crate) version: String,
    /// Id of its EC2 instance, or why it has none.
    pub(crate) instance: Result<String, String>,
    pub(crate) ready: bool,
    /// The time at which that changed.
    pub(crate) since: Option<Timestamp>,
    /// The operator's request to all hooks.
    pub(crate) request: Option<String>,
    /// The answer of this hook.
    pub(crate) answer: Option<String>,
    /// [`Operator::backing`], which is no fact of the Node itself.
    pub(crate) backing: Backing,
}

impl Node {
    pub(crate) fn read(node: &core::Node) -> Option<Self> {
        let meta = &node.metadata;
        let annotation = |name: &str| meta.annotations.as_ref()?.get(name).cloned();
        let ready =
            node.status.as_ref().and_then(|status| status.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready"));
        let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        Some(Self {
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            version: meta.resource_version.clone()?,
            instance: instance_of(provider),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            since: ready.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0)),
            request: annotation(HOOKS_ANNOTATION),
            answer: annotation(&answer_annotation()),
            backing: Backing::Unknown,
        })
    }

    /// Returns true if a decision may differ: not after a heartbeat, which changes the version alone.
    pub(crate) fn differs(&self, old: &Self) -> bool {
        let Self { name: _, uid, version: _, instance, ready, since, request, answer, backing: _ } = self;
        (uid, instance, ready, since) != (&old.uid, &old.instance, &old.ready, &old.since)
            || (request, answer) != (&old.request, &old.answer)
    }

    /// Returns true if the host has been away for longer than its update gives it: its request stays then, and its group
    /// has to be able to replace it all the same.
    pub(crate) fn is_lost(&self, policy: Policy, now: Timestamp) -> bool {
        !self.ready && self.since.is_some_and(|since| between(since, now) > policy.reboot)
    }

    /// The request to prepare for the drain, if that is what is requested, and the operator's record has a slot for it.
    /// Without one it waits: the watch of that record may be later than that of the Nodes.
    pub(crate) fn prepares(&self) -> Option<&str> {
        self.prepared().filter(|_| self.backing == Backing::Slot)
    }

    /// The request to prepare for the drain, for which what was done has to stay: with its slot, while the operator's record is not
    /// known, and without a slot while the Node is not Ready.
    ///
    /// An attempt whose host is not back from its reboot in time ends and frees its slot, while the host may still reboot by
    /// its permit: its group could replace it in the middle of that. The request stays until it is over. While the Node is Ready, the
    /// operator frees no slot before it has removed the request. So one that is Ready without a slot is back, in whatever boot, or the
    /// request is not the operator's: alone, which a kubelet can write, it keeps nothing there.
    pub(crate) fn prepared(&self) -> Option<&str> {
        let stays = self.backing != Backing::Missing || !self.ready;
        self.request.as_deref().filter(|_| self.is_before_drain() && stays)
    }

    /// Returns true if the request is one to prepare for the drain, with a slot or without.
    pub(crate) fn is_before_drain(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.starts_with("BeforeDrain/"))
    }

    /// Returns true if the request is answered, by `Done` or by a refusal.
    pub(crate) fn is_answered(&self) -> bool {
        self.request == self.answer || self.is_refused()
    }

    /// Returns true if the request has been refused: nothing has to be kept for it.
    pub(crate) fn is_refused(&self) -> bool {
        let (Some(request), Some(answer)) = (&self.request, &self.answer) else { return false };
        answer.strip_prefix(request.as_str()).is_some_and(|rest| rest.starts_with(" Refused"))
    }
}

/// Annotation with the answer of this hook.
pub(crate) fn answer_annotation() -> String {
    format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}")
}

/// Returns the EC2 instance that a `providerID` names, as in `aws:///eu-central-1a/i-0123456789abcdef0`.
fn instance_of(provider: &str) -> Result<String, String> {
    let last = provider.strip_prefix("aws://").and_then(|rest| rest.rsplit('/').next()).unwrap_or_default();
    let hexadecimal = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match last.strip_prefix("i-").is_some_and(hexadecimal) {
        true => Ok(last.to_owned()),
        false if provider.is_empty() => Err("it has no spec.providerID".to_owned()),
        false => Err(format!("its spec.providerID {provider} names no EC2 instance")),
    }
}

/// A change at AWS that is to be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Name of the Auto Scaling group.
    pub(crate) group: String,
    pub(crate) mode: AwsMode,
    /// Name of the Node for which it was recorded.
    pub(crate) node: String,
    /// Time at which it was recorded. What it records is done after that, and soon.
    pub(crate) since: Timestamp,
}

/// An instance, as its Auto Scaling group has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) group: String,
    /// State such as `InService` or `Standby`.
    pub(crate) state: String,
    /// True if its group would replace it.
    pub(crate) unhealthy: bool,
}

/// An Auto Scaling group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) min: i32,
    pub(crate) desired: i32,
    /// True while its process ReplaceUnhealthy is suspended, by this program or another client.
    pub(crate) suspended: bool,
    /// Number of its zones, if it keeps them equal (AZRebalance), else 0.
    pub(crate) balanced_zones: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_is_read_from_provider_id() {
        for id in
            ["aws:///eu-central-1a/i-0123456789abcdef0", "aws://123456789012/us-west-2-lax-1a/i-0123456789abcdef0"]
        {
            assert_eq!(instance_of(id), Ok("i-0123456789abcdef0".into()), "{id}");
        }
        for id in
            ["", "kind://docker/kind/a", "aws:///eu-central-1a/fargate-ip-10-0-0-1.internal", "aws:///a/i-", "i-0a"]
        {
            assert!(instance_of(id).is_err(), "{id}");
        }
    }

    #[test]
    fn time_for_a_reboot_is_that_of_the_policy() {
        for (spec, minutes) in [
            (serde_json::json!({}), 60),
            (serde_json::json!({"deadlines": {"reboot": "5m"}}), 35),
            (serde_json::json!({"deadlines": {"reboot": "1h", "return": "30m"}}), 90),
        ] {
            let policy = Policy::read(&serde_json::from_value(spec).unwrap());
            assert_eq!(policy, Policy { mode: None, reboot: Duration::from_mins(minutes) });
        }
    }

    #[test]
    fn node_is_not_lost_while_the_operators_resource_cannot_be_read() {
        let node: core::Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "annotations": {HOOKS_ANNOTATION: "BeforeDrain/7/100"}},
            "status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let (node, now) = (Node::read(&node).unwrap(), "2026-01-03T00:00:00Z".parse().unwrap());
        for (operator, is_lost) in [(Operator::missing(), true), (Operator::unreadable(), false)] {
            assert_eq!((node.is_lost(operator.policy, now), operator.backing(&node)), (is_lost, Backing::Unknown));
        }
    }

    #[test]
    fn readiness_is_that_of_the_condition() {
        for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
            let node: core::Node = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "1"},
                "status": {"conditions": [
                    {"type": "DiskPressure", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-02T00:00:00Z"},
                ]},
            }))
            .unwrap();
            let node = Node::read(&node).unwrap();
            assert_eq!((node.ready, node.since), (ready, Some("2026-01-02T00:00:00Z".parse().unwrap())));
        }
    }

    #[test]
    fn heartbeat_changes_nothing_and_readiness_does() {
        let node: core::Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1"},
        }))
        .unwrap();
        let old = Node::read(&node).unwrap();
        assert!(!Node { version: "2".into(), ..old.clone() }.differs(&old));
        assert!(Node { ready: true, ..old.clone() }.differs(&old));
        assert!(Node { since: Some(Timestamp::UNIX_EPOCH), ..old.clone() }.differs(&old));
    }

    #[test]
    fn request_is_backed_by_a_slot_of_its_node_and_attempt() {
        let update = |attempt: i64| serde_json::json!({"version": "1.20.5", "variant": "aws-k8s", "arch": "x86_64", "attempt": attempt, "bootId": "b"});
        let with = |slots: serde_json::Value| {
            let operator = serde_json::json!({
                "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
                "metadata": {"name": "default"}, "spec": {}, "status": {"observedGeneration": 1, "slots": slots},
            });
            Operator::read(&serde_json::from_value(operator).unwrap())
        };
        let slot = |uid: &str, update: serde_json::Value| {
            let mut slot = serde_json::json!({"uid": uid, "node": "a", "since": "2026-01-01T00:00:00Z"});
            if !update.is_null() {
                slot["update"] = update;
            }
            serde_json::json!([slot])
        };
        let node: core::Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "annotations": {HOOKS_ANNOTATION: "BeforeDrain/7/100"}},
        }))
        .unwrap();
        let mut node = Node::read(&node).unwrap();
        let null = serde_json::Value::Null;
        for (sentence, slots, expected) in [
            ("its own", slot("u", update(7)), Backing::Slot),
            ("a drill's, or one of an earlier version", slot("u", null.clone()), Backing::Slot),
            ("of another attempt", slot("u", update(6)), Backing::Missing),
            ("of another Node, perhaps of the same name", slot("v", update(7)), Backing::Missing),
            ("none", serde_json::json!([]), Backing::Missing),
        ] {
            assert_eq!(with(slots).backing(&node), expected, "{sentence}");
        }
        assert_eq!(Operator::missing().backing(&node), Backing::Unknown);
        let unwritten = serde_json::json!({
            "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator", "metadata": {"name": "default"},
            "spec": {},
        });
        let unwritten = Operator::read(&serde_json::from_value(unwritten).unwrap());
        assert_eq!(unwritten.backing(&node), Backing::Unknown, "made again");
        for request in ["BeforeDrain/", "BeforeDrain/seven/100", "BeforeDrain/77/100", "BeforeDrain"] {
            node.request = Some(request.into());
            assert_eq!(with(slot("u", update(7))).backing(&node), Backing::Missing, "{request}");
        }
    }

    #[test]
    fn answer_counts_for_its_own_request() {
        let node: core::Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1"},
        }))
        .unwrap();
        let mut node = Node::read(&node).unwrap();
        for (request, answer, answered, refused) in [
            (Some("BeforeDrain/1/5"), None, false, false),
            (Some("BeforeDrain/1/5"), Some("BeforeDrain/1/5"), true, false),
            (Some("BeforeDrain/1/5"), Some("BeforeDrain/1/5 Refused: no"), true, true),
            (Some("BeforeDrain/1/5"), Some("BeforeDrain/1/55"), false, false),
            (Some("BeforeDrain/2/6"), Some("BeforeDrain/1/5 Refused: no"), false, false),
            (None, None, true, false),
            (None, Some("BeforeDrain/1/5"), false, false),
        ] {
            (node.request, node.answer) = (request.map(Into::into), answer.map(Into::into));
            assert_eq!((node.is_answered(), node.is_refused()), (answered, refused), "{request:?} {answer:?}");
        }
    }
}
