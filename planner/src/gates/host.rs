//! The host, as its agent reports it: the agent has to be able to use it, and another attempt has to find nothing of an earlier
//! one, nor of another client.

use models::plain::cut;
use models::shadow::{HOST_BUSY, HostState, MOST_ATTEMPTS};

use crate::survey::NodeContext;
use crate::wait::Wait;

/// The number of characters of a reported reason that a wait has.
const LONGEST_REASON: usize = 64;

/// The number of characters of a reported message that a wait has. It goes into conditions and records together with other texts.
const LONGEST_MESSAGE: usize = 512;

/// Returns the wait for a report of the node's current boot.
pub(crate) fn has_reported(ctx: &NodeContext<'_>) -> Option<Wait> {
    (!ctx.has_reported()).then_some(Wait::NoReport)
}

/// Returns the wait for a host whose update API the agent can use: without that no image is staged, and a node is drained in vain.
pub(crate) fn is_usable(ctx: &NodeContext<'_>) -> Option<Wait> {
    let condition = ctx.unusable_host()?;
    let (reason, message) = (cut(&condition.reason, LONGEST_REASON), cut(&condition.message, LONGEST_MESSAGE));
    Some(Wait::HostNotUsable { reason, message })
}

/// Returns the wait for the end of a command that has been running on the host for long. Nothing is known of its offers meanwhile.
pub(crate) fn is_not_busy(ctx: &NodeContext<'_>) -> Option<Wait> {
    let condition = ctx.host_condition().filter(|condition| condition.reason == HOST_BUSY)?;
    Some(Wait::HostBusy { message: cut(&condition.message, LONGEST_MESSAGE) })
}

pub(crate) fn not_armed_by_other(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.is_armed_by_other().then_some(Wait::HostArmedByOther)
}

/// Returns the version lock that another client set on the host, if it conflicts with the operator's.
pub(crate) fn no_conflicting_lock(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.version_lock()?;
    let lock = ctx.shadow.status.agent.host.as_ref()?.conflicting_lock.clone()?;
    Some(Wait::LockedByOther { lock })
}

/// Returns the wait until the agent has confirmed that nothing of the operator is armed.
pub(crate) fn is_disarmed(ctx: &NodeContext<'_>) -> Option<Wait> {
    let agent = &ctx.shadow.status.agent;
    let idle = ctx.shadow.spec.state == HostState::Idle && agent.state == Some(HostState::Idle);
    match (idle && ctx.caught_up(), &agent.armed) {
        (true, None) => None,
        (_, Some(_)) => Some(Wait::DisarmPending),
        (false, None) => Some(Wait::AgentNotSynced),
    }
}

pub(crate) fn has_attempts_left(ctx: &NodeContext<'_>) -> Option<Wait> {
    (ctx.last_attempt() >= MOST_ATTEMPTS).then_some(Wait::AttemptsExhausted)
}

/// Returns why policy has no version for the node.
pub(crate) fn has_target(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.version().err()
}

#[cfg(test)]
mod tests {
    use models::condition::{Condition, ConditionStatus};
    use models::shadow::{HOST_ANSWERED, HOST_ARMED_BY_OTHER, HOST_REACHABLE, UNSUPPORTED_STATE};

    use super::super::testing::refusal_of;
    use super::super::{begin, start};
    use super::*;
    use crate::fixtures::{NEW, t};
    use crate::policy::Target;
    use crate::view::ShadowFacts;

    type Change<'a> = &'a dyn Fn(&mut ShadowFacts);

    fn reachable(shadow: &mut ShadowFacts, status: ConditionStatus, reason: &str) {
        shadow.status.conditions.push(Condition {
            type_: HOST_REACHABLE.into(),
            status,
            reason: reason.into(),
            message: "as reported".into(),
            last_transition_time: t(0),
            observed_generation: None,
        });
    }

    fn reported(shadow: &mut ShadowFacts, reason: &str) {
        reachable(shadow, ConditionStatus::True, reason);
    }

    #[test]
    fn neither_attempt_nor_drain_starts_on_host_that_its_agent_cannot_use() {
        let not_usable =
            |reason: &str| Some(Wait::HostNotUsable { reason: reason.into(), message: "as reported".into() });
        let busy = Some(Wait::HostBusy { message: "as reported".into() });
        let cases = [
            ("it answers", ConditionStatus::True, HOST_ANSWERED, None),
            ("it does not answer", ConditionStatus::False, "Timeout", not_usable("Timeout")),
            ("its state is not known", ConditionStatus::True, UNSUPPORTED_STATE, not_usable(UNSUPPORTED_STATE)),
            ("it has been busy for long", ConditionStatus::True, HOST_BUSY, busy),
            ("its agent is not heard, which is another gate's", ConditionStatus::Unknown, "AgentNotReady", None),
        ];
        for (sentence, status, reason, expected) in cases {
            for (gate, name) in [(begin as fn(&NodeContext<'_>) -> _, "idle"), (start, "staged")] {
                let wait = refusal_of(gate, |view, _| {
                    reachable(view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap(), status, reason);
                });
                assert_eq!(wait, expected, "{name}: {sentence}");
            }
        }
    }

    /// The schema of a condition lets an agent write 128 and 2048 characters, of any kind.
    #[test]
    fn text_of_report_is_short_and_on_one_line() {
        let long = "x\u{1b}\n\u{202e}".repeat(512);
        for (sentence, status, reason) in [
            ("not usable", ConditionStatus::False, long.as_str()),
            ("not known", ConditionStatus::True, UNSUPPORTED_STATE),
            ("busy", ConditionStatus::True, HOST_BUSY),
        ] {
            let wait = refusal_of(begin, |view, _| {
                let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
                reachable(shadow, status, reason);
                shadow.status.conditions.last_mut().unwrap().message.clone_from(&long);
            });
            let text = wait.unwrap().to_string();
            assert!((500..700).contains(&text.chars().count()), "{sentence}: {}", text.chars().count());
            assert!(!text.contains(['\u{1b}', '\n', '\u{202e}']), "{sentence}: {text}");
        }
    }

    #[test]
    fn host_that_does_not_answer_since_its_boot_is_named_before_the_missing_report() {
        let wait = refusal_of(begin, |view, _| {
            let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
            shadow.status.agent.boot_id = Some("b0".into());
            reachable(shadow, ConditionStatus::False, "Timeout");
        });
        assert_eq!(wait.as_ref().map(Wait::as_str), Some("HostNotUsable"));
    }

    #[test]
    fn attempt_starts_only_on_reporting_host_without_foreign_changes() {
        let case = |sentence: &str, expected: Option<Wait>, change: Change<'_>| {
            let wait = refusal_of(begin, |view, policy| {
                policy.target = Target::Exact(NEW);
                change(view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap());
            });
            assert_eq!(wait, expected, "{sentence}");
        };
        case("as it was left", None, &|_| {});
        case("no report", Some(Wait::NoReport), &|shadow| shadow.status.agent.boot_id = None);
        case("a report of an earlier boot", Some(Wait::NoReport), &|shadow| {
            shadow.status.agent.boot_id = Some("b0".into());
        });
        case("armed by another client", Some(Wait::HostArmedByOther), &|shadow| reported(shadow, HOST_ARMED_BY_OTHER));
        case("busy for long", Some(Wait::HostBusy { message: "as reported".into() }), &|shadow| {
            reported(shadow, HOST_BUSY);
        });
        case(
            "busy for long, without an offer, on the version of policy, and behind its shadow",
            Some(Wait::HostBusy { message: "as reported".into() }),
            &|shadow| {
                reported(shadow, HOST_BUSY);
                shadow.status.agent.updates = None;
                shadow.status.agent.current_version = Some(NEW);
                shadow.generation = 2;
            },
        );
        case("locked by another client", Some(Wait::LockedByOther { lock: "1.0.0".into() }), &|shadow| {
            shadow.status.agent.host.get_or_insert_default().conflicting_lock = Some("1.0.0".into());
        });
        case("the agent is behind", Some(Wait::AgentNotSynced), &|shadow| shadow.generation = 2);
        case("no number is left", Some(Wait::AttemptsExhausted), &|shadow| shadow.spec.attempt = MOST_ATTEMPTS);
    }
}
