//! Texts that several commands write.

use jiff::Timestamp;
use kube::ResourceExt;
use models::names::SYSTEM_NAMESPACE;

use crate::advice;

/// Returns the value of a one-shot request that no other request has.
pub(super) fn nonce(now: Timestamp) -> String {
    format!("kubectl-brupop {now:.9}")
}

/// Returns a text that makes a one-shot request a new value where little room is left: the time in milliseconds, to base 36.
pub(super) fn short_nonce(now: Timestamp) -> String {
    let mut rest = u64::try_from(now.as_millisecond()).unwrap_or(0);
    let mut digits = Vec::new();
    while rest > 0 || digits.is_empty() {
        let digit = u32::try_from(rest % 36).ok().and_then(|digit| char::from_digit(digit, 36));
        digits.extend(digit);
        rest /= 36;
    }
    digits.into_iter().rev().collect()
}

/// Returns a command of this plugin for the operator of this object, which is its resource or one of its shadows.
pub(super) fn command(object: &impl ResourceExt, arguments: &str) -> String {
    advice::command(object.namespace().as_deref().unwrap_or(SYSTEM_NAMESPACE), arguments)
}

/// Returns a message that the controller has recorded on an object, about this node, with its commands for the operator of the object.
pub(super) fn recorded(object: &impl ResourceExt, node: &str, message: &str) -> String {
    advice::filled(object.namespace().as_deref().unwrap_or(SYSTEM_NAMESPACE), message, node)
}

pub(super) fn some(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    advice::some(names, 8)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::attempt::testing::shadow;
    use super::*;
    use crate::shell::testing::with_context;

    #[test]
    fn recorded_message_has_commands_for_the_operator_of_the_shadow() {
        let mut shadow = shadow(&json!({}));
        shadow.metadata.namespace = Some("ops".to_owned());
        for (message, expected) in [
            ("disarm it: kubectl annotate brs brs-<node> -n <namespace> x=<any new value>", "disarm it"),
            ("see kubectl get pods -n <namespace>; then wait", "see kubectl get pods -n ops --context c; then wait"),
            ("at once by kubectl brupop retry NODE", "at once by kubectl brupop retry NODE -n ops --context c"),
        ] {
            assert_eq!(with_context("c", || recorded(&shadow, "a", message)), expected);
        }
    }

    #[test]
    fn request_value_fits_its_acknowledgement_and_differs_each_time() {
        let now = crate::clock::now();
        let later = now + jiff::SignedDuration::from_nanos(1);
        assert!(nonce(now).len() <= 64 && nonce(now) != nonce(later), "{}", nonce(now));
    }

    #[test]
    fn short_text_of_a_new_request_is_eight_characters_and_differs_each_time() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later = now + jiff::SignedDuration::from_millis(1);
        assert_eq!(short_nonce(now), "mjuohs00");
        assert_eq!(short_nonce(later), "mjuohs01");
        let decades_later: Timestamp = "2058-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(short_nonce(decades_later).len(), 8);
        assert_eq!(short_nonce(Timestamp::UNIX_EPOCH), "0");
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(some(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(some(&names[..2]), "0, 1");
    }
}
