//! The facts that decisions need: nodes with the requests to hooks, the record, and what AWS shows of instances and groups.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use models::names::{AWS_HOOK, HOOK_ANSWER_PREFIX, HOOKS_ANNOTATION};
use models::operator::{AwsMode, BottlerocketUpdateOperatorSpec, Deadlines};
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
        })
    }

    /// Returns true if a decision may differ: not after a heartbeat, which changes the version alone.
    pub(crate) fn differs(&self, old: &Self) -> bool {
        let Self { name: _, uid, version: _, instance, ready, since, request, answer } = self;
        (uid, instance, ready, since) != (&old.uid, &old.instance, &old.ready, &old.since)
            || (request, answer) != (&old.request, &old.answer)
    }

    /// Returns true if the host has been away for longer than its update gives it: its request stays then, and its group
    /// has to be able to replace it all the same.
    pub(crate) fn is_lost(&self, policy: Policy, now: Timestamp) -> bool {
        !self.ready && self.since.is_some_and(|since| between(since, now) > policy.reboot)
    }

    /// The request to prepare for the drain, if that is what is requested.
    pub(crate) fn prepares(&self) -> Option<&str> {
        self.request.as_deref().filter(|request| request.starts_with("BeforeDrain/"))
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
    /// Name of the Node, for information.
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
