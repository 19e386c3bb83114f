//! `kubectl brupop test-notices`: a notice to every receiver, on the way that all notices take.

use anyhow::bail;
use kube::{Client, ResourceExt as _};
use models::condition::false_condition;
use models::names::TEST_NOTICES_ANNOTATION;
use models::operator::{BottlerocketUpdateOperator, NOTICES_SENT};
use planner::plan::test_notice_id;

use super::operator::{carry_out, not_in_force, policy, status};
use super::texts::nonce;
use crate::write::{Decision, State, WriteOptions};

fn receivers(operator: &BottlerocketUpdateOperator) -> Vec<String> {
    let receivers = policy(operator).notices.map(|notices| notices.receivers).unwrap_or_default();
    receivers.into_iter().map(|receiver| receiver.name).collect()
}

fn decide(operator: &BottlerocketUpdateOperator, nonce: &str) -> anyhow::Result<Decision> {
    let receivers = receivers(operator);
    if receivers.is_empty() {
        bail!(
            "the policy has no receivers (spec.notices.receivers: docs/notices.md){}; nothing was written",
            not_in_force(&status(operator))
        );
    }
    let what = format!("requests a notice to {}", receivers.join(", "));
    Ok(Decision::annotate(TEST_NOTICES_ANNOTATION, nonce, what))
}

/// Returns what came of a request.
fn outcome(now: &BottlerocketUpdateOperator, nonce: &str) -> State {
    let status = status(now);
    if status.requests.is_none_or(|requests| requests.test_notices.as_deref() != Some(nonce)) {
        return State::Pending("for the controller to take the request".to_owned());
    }
    let id = test_notice_id(&now.uid().unwrap_or_default(), nonce);
    let pending = status.notices.iter().flat_map(|notices| &notices.pending).find(|notice| notice.id == id);
    let problem = false_condition(&status.conditions, NOTICES_SENT).map(|condition| condition.message.clone());
    match (pending, problem) {
        (Some(notice), problem) => {
            let problem = problem.map(|problem| format!(" ({problem})")).unwrap_or_default();
            State::Pending(format!("for {} to take it{problem}", notice.receivers.join(", ")))
        }
        (None, Some(problem)) => State::Failed(format!("a receiver did not take it: {problem}")),
        (None, None) => State::Done(format!("the notice was taken by {}", receivers(now).join(", "))),
    }
}

pub(super) async fn test(client: &Client, namespace: &str, options: &WriteOptions) -> anyhow::Result<()> {
    let nonce = nonce(crate::clock::now());
    let acknowledged = async |_: &_, now: &BottlerocketUpdateOperator| Ok(outcome(now, &nonce));
    carry_out(client, namespace, options, |operator| decide(operator, &nonce), acknowledged).await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::operator::testing::{operator, patch};
    use super::*;

    fn spec() -> Value {
        json!({"notices": {"receivers": [{"name": "on-call", "format": "Slack", "urlKey": "slack"}]}})
    }

    #[test]
    fn notice_is_requested_where_there_are_receivers() {
        let written = patch(decide(&operator(&spec(), &json!({})), "n").unwrap());
        assert_eq!(written["metadata"]["annotations"][TEST_NOTICES_ANNOTATION], "n");
        let error = decide(&operator(&json!({}), &json!({})), "n").unwrap_err().to_string();
        assert!(error.contains("no receivers") && error.contains("nothing was written"), "{error}");
    }

    #[test]
    fn outcome_is_that_of_the_requested_notice() {
        let notice = |id: &str| {
            json!({"id": id, "event": "Test", "time": "2026-01-01T00:00:00Z", "subject": "nodes", "cause": "-",
                "command": "-", "receivers": ["on-call"]})
        };
        let failing = json!([{"type": NOTICES_SENT, "status": "False", "reason": "ReceiverFails",
            "message": "on-call: it answers 503", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        for (taken, pending, conditions, expected) in [
            (None, None, json!([]), "Pending(\"for the controller to take"),
            (Some("n"), Some("/test/n"), json!([]), "Pending(\"for on-call to take it\")"),
            (
                Some("n"),
                Some("/test/n"),
                failing.clone(),
                "Pending(\"for on-call to take it (on-call: it answers 503)\")",
            ),
            (Some("n"), Some("/test/o"), json!([]), "Done(\"the notice was taken by on-call\")"),
            (Some("n"), None, failing, "Failed("),
        ] {
            let pending: Vec<Value> = pending.into_iter().map(notice).collect();
            let status = json!({"requests": {"testNotices": taken}, "conditions": conditions,
                "notices": {"blockedReported": "2026-01-01T00:00:00Z", "pending": pending}});
            let state = format!("{:?}", outcome(&operator(&spec(), &status), "n"));
            assert!(state.starts_with(expected), "{state}");
        }
    }
}
