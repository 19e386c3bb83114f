//! The meaning of the eviction endpoint's answers, as observed on a real API server.

use std::time::Duration;

use kube::core::Status;
use planner::drain::BLOCKED_RETRY;

/// The meaning of an answer for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Evicted, or deleted already: wait until it is gone.
    Leaves,
    /// The name now belongs to another pod: read it again.
    OtherPod,
    /// A budget refuses it for now.
    Blocked {
        /// The budget, where the answer names it.
        budget: Option<String>,
        /// The time until the next request.
        retry: Duration,
    },
    /// The server is busy or broken: retry; no budget is the cause.
    Retry(Duration),
    /// Denied, as by an admission webhook or for want of a right. The drain fails if it is denied for long.
    Denied,
}

/// The longest name of an object. An admission webhook may send any text in the server's place.
const LONGEST_NAME: usize = 253;

/// Reads the budget's name from `Cannot evict pod as it would violate the pod's disruption budget. The disruption
/// budget NAME needs …`, the only place where the server names it.
fn budget_name(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("disruption budget ")?;
    let name = rest.split_whitespace().next()?;
    let fits = name.len() <= LONGEST_NAME && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    fits.then(|| name.to_owned())
}

/// Returns the meaning of an error that the eviction endpoint answers, or that a deletion is answered with, and its text.
pub fn meaning(status: &Status) -> (Meaning, String) {
    let details = status.details.as_ref();
    let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
    let cause = |reason: &str| causes.iter().find(|cause| cause.reason == reason).map(|cause| cause.message.as_str());
    let seconds = details.map_or(0, |details| details.retry_after_seconds);
    let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    let means = match status.code {
        404 => Meaning::Leaves,
        409 => Meaning::OtherPod,
        429 => match cause("DisruptionBudget") {
            Some(text) => Meaning::Blocked { budget: budget_name(text), retry: retry_after.unwrap_or(BLOCKED_RETRY) },
            None => Meaning::Retry(retry_after.unwrap_or(Duration::from_secs(1))),
        },
        // The namespace is being deleted, and its pods with it.
        403 if cause("NamespaceTerminating").is_some() => Meaning::Retry(BLOCKED_RETRY),
        // Two budgets on one pod: a user has to fix that, and until then it blocks like a budget does.
        500 if status.message.contains("more than one PodDisruptionBudget") => {
            Meaning::Blocked { budget: None, retry: 2 * BLOCKED_RETRY }
        }
        500..=599 => Meaning::Retry(retry_after.unwrap_or(Duration::from_secs(2))),
        _ => Meaning::Denied,
    };
    (means, causes.first().map_or(&status.message, |cause| &cause.message).clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn means(code: u16, retry: u32, message: &str, causes: &[(&str, &str)]) -> Meaning {
        let cause = |(reason, message): &(&str, &str)| json!({"reason": reason, "message": message});
        let causes: Vec<_> = causes.iter().map(cause).collect();
        let details = json!({"retryAfterSeconds": retry, "causes": causes});
        let status = json!({"code": code, "message": message, "details": details});
        meaning(&serde_json::from_value(status).unwrap()).0
    }

    #[test]
    fn eviction_responses_map_to_expected_outcomes() {
        let exhausted = ("DisruptionBudget", "The disruption budget web needs 1 healthy pods and has 1 currently");
        let processing = ("DisruptionBudget", "The disruption budget web is still being processed by the server.");
        let s = Duration::from_secs;
        let blocked = |retry| Meaning::Blocked { budget: Some("web".into()), retry };
        let cases = [
            ("gone", means(404, 0, "", &[]), Meaning::Leaves),
            ("another pod of that name", means(409, 0, "", &[]), Meaning::OtherPod),
            ("the budget is exhausted", means(429, 0, "", &[exhausted]), blocked(BLOCKED_RETRY)),
            ("the budget is still processed", means(429, 10, "", &[processing]), blocked(s(10))),
            ("throttled", means(429, 3, "", &[]), Meaning::Retry(s(3))),
            ("forbidden", means(403, 0, "", &[]), Meaning::Denied),
            ("not authenticated", means(401, 0, "", &[]), Meaning::Denied),
            ("a webhook denies it", means(400, 0, "", &[]), Meaning::Denied),
            (
                "the namespace is terminating",
                means(403, 0, "", &[("NamespaceTerminating", "")]),
                Meaning::Retry(BLOCKED_RETRY),
            ),
            (
                "two budgets",
                means(500, 0, "This pod has more than one PodDisruptionBudget, which …", &[]),
                Meaning::Blocked { budget: None, retry: s(10) },
            ),
            ("the server is broken", means(503, 0, "", &[]), Meaning::Retry(s(2))),
        ];
        for (sentence, got, expected) in cases {
            assert_eq!(got, expected, "{sentence}");
        }
    }
}
