//! The meaning of the eviction endpoint's answers, as observed on a real API server.

use std::time::Duration;

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

/// Returns the meaning of an answer of the eviction endpoint, or to a deletion. `retry_after` is the header of that name, `causes` are
/// the pairs of reason and message in the answer's details.
pub fn meaning(code: u16, retry_after: Option<Duration>, message: &str, causes: &[(String, String)]) -> Meaning {
    let cause = |reason: &str| causes.iter().find(|(r, _)| r == reason).map(|(_, message)| message.as_str());
    match code {
        200..=299 | 404 => Meaning::Leaves,
        409 => Meaning::OtherPod,
        429 => match cause("DisruptionBudget") {
            Some(text) => Meaning::Blocked { budget: budget_name(text), retry: retry_after.unwrap_or(BLOCKED_RETRY) },
            None => Meaning::Retry(retry_after.unwrap_or(Duration::from_secs(1))),
        },
        // The namespace is being deleted, and its pods with it.
        403 if cause("NamespaceTerminating").is_some() => Meaning::Retry(BLOCKED_RETRY),
        // Two budgets on one pod: a user has to fix that, and until then it blocks like a budget does.
        500 if message.contains("more than one PodDisruptionBudget") => {
            Meaning::Blocked { budget: None, retry: 2 * BLOCKED_RETRY }
        }
        500..=599 => Meaning::Retry(retry_after.unwrap_or(Duration::from_secs(2))),
        _ => Meaning::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_responses_map_to_expected_outcomes() {
        let budget = |text: &str| vec![("DisruptionBudget".to_owned(), text.to_owned())];
        let exhausted = budget("The disruption budget web needs 1 healthy pods and has 1 currently");
        let processing = budget("The disruption budget web is still being processed by the server.");
        let s = Duration::from_secs;
        let blocked = |retry| Meaning::Blocked { budget: Some("web".into()), retry };
        let cases = [
            ("evicted", meaning(201, None, "", &[]), Meaning::Leaves),
            ("gone", meaning(404, None, "", &[]), Meaning::Leaves),
            ("another pod of that name", meaning(409, None, "", &[]), Meaning::OtherPod),
            ("the budget is exhausted", meaning(429, None, "", &exhausted), blocked(BLOCKED_RETRY)),
            ("the budget is still processed", meaning(429, Some(s(10)), "", &processing), blocked(s(10))),
            ("throttled", meaning(429, Some(s(3)), "", &[]), Meaning::Retry(s(3))),
            ("forbidden", meaning(403, None, "", &[]), Meaning::Denied),
            ("not authenticated", meaning(401, None, "", &[]), Meaning::Denied),
            ("a webhook denies it", meaning(400, None, "", &[]), Meaning::Denied),
            (
                "the namespace is terminating",
                meaning(403, None, "", &[("NamespaceTerminating".into(), String::new())]),
                Meaning::Retry(BLOCKED_RETRY),
            ),
            (
                "two budgets",
                meaning(500, None, "This pod has more than one PodDisruptionBudget, which …", &[]),
                Meaning::Blocked { budget: None, retry: s(10) },
            ),
            ("the server is broken", meaning(503, None, "", &[]), Meaning::Retry(s(2))),
        ];
        for (sentence, got, expected) in cases {
            assert_eq!(got, expected, "{sentence}");
        }
    }
}
