//! Commands about the operator's resource.

use kube::{Client, Resource as _};
use models::condition::{find_condition, true_condition};
use models::operator::{BLOCKED, BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus, DEGRADED, PROGRESSING};
use planner::plan::{APPROVAL, INVALID_POLICY};
use planner::policy::{Policy, PolicyError};
use planner::view::{OperatorFacts, Projection as _};
use planner::wait::WaitReason;

use super::texts::{command, recorded};
use crate::advice;
use crate::write::{Change, Decision, Object, Outcome, State, WriteOptions, all, reverted};

/// Reads the operator's resource, writes what `decide` makes of it, and waits until `acknowledged` says what came of it.
pub(super) async fn carry_out(
    client: &Client,
    namespace: &str,
    options: &WriteOptions,
    decide: impl Fn(&BottlerocketUpdateOperator) -> anyhow::Result<Decision>,
    acknowledged: impl AsyncFn(&Change, &BottlerocketUpdateOperator) -> anyhow::Result<State>,
) -> anyhow::Result<()> {
    let object = Object::operator(client, namespace);
    let outcome = object.write(object.existing().await?, options.dry_run(), decide).await?;
    if let Outcome::Nothing(reason) = outcome {
        options.print_nothing(&object.id, reason);
        return Ok(());
    }
    let sentence = outcome.sentence(&object.id, options.dry_run());
    let (Outcome::Written(change, after), Some(timeout)) = (outcome, options.timeout()) else {
        options.print(&object.id, sentence);
        return Ok(());
    };
    let check = async |(): &()| {
        let now = object.existing().await?;
        if let Some(reverted) = reverted(&change, &now)? {
            return Ok(State::Failed(format!("it was written without effect: {reverted}")));
        }
        let observed = status(&now).observed_generation;
        if observed < after.meta().generation {
            return Ok(State::Pending("for the controller to read the operator's resource".to_owned()));
        }
        acknowledged(&change, &now).await
    };
    let done = |(): &(), sentence: String| options.print(&object.id, sentence);
    let failed = all(timeout, &advice::command(namespace, "status"), vec![()], check, done).await;
    failed.into_iter().next().map_or(Ok(()), |((), error)| Err(error))
}

/// Returns the status of the operator's resource; an empty one if it has none.
pub(super) fn status(operator: &BottlerocketUpdateOperator) -> BottlerocketUpdateOperatorStatus {
    operator.status.clone().unwrap_or_default()
}

pub(super) fn policy(operator: &BottlerocketUpdateOperator) -> Policy {
    Policy::in_force(OperatorFacts::project(operator).as_ref())
}

/// Returns the errors that a changed policy has and the present one does not.
pub(super) fn new_errors(
    present: &BottlerocketUpdateOperator,
    changed: &BottlerocketUpdateOperator,
) -> Vec<PolicyError> {
    let errors = |operator: &BottlerocketUpdateOperator| Policy::from_spec(&operator.spec).err().unwrap_or_default();
    let before = errors(present);
    errors(changed).into_iter().filter(|error| !before.contains(error)).collect()
}

/// Returns the sentence to add if the policy in force is not the one in the resource.
pub(super) fn not_in_force(status: &BottlerocketUpdateOperatorStatus) -> String {
    let invalid = true_condition(&status.conditions, DEGRADED).filter(|condition| condition.reason == INVALID_POLICY);
    invalid.map_or_else(String::new, |condition| {
        format!(". The policy is invalid and not in force until it is corrected: {}", condition.message)
    })
}

/// Returns the sentences to add about what stops updates beside the switch and failures.
pub(super) fn stopped_otherwise(operator: &BottlerocketUpdateOperator) -> String {
    let status = status(operator);
    let step = find_condition(&status.conditions, PROGRESSING).filter(|condition| is_of_step(&condition.reason));
    let step = step.map_or_else(String::new, |condition| {
        let (message, status) = (recorded(operator, "", &condition.message), command(operator, "status"));
        format!(". A canary step waits for a user: {message}; see {status}")
    });
    format!("{}{}{step}", not_in_force(&status), blocked(operator))
}

/// Returns the sentence to add where all nodes wait for the same.
pub(super) fn blocked(operator: &BottlerocketUpdateOperator) -> String {
    let status = status(operator);
    let blocked =
        true_condition(&status.conditions, BLOCKED).map(|condition| recorded(operator, "", &condition.message));
    blocked.map_or_else(String::new, |message| format!(". Nodes wait: {message}"))
}

/// Returns whether the condition `Progressing` with this reason says that canary steps wait for a user.
fn is_of_step(reason: &str) -> bool {
    [APPROVAL, WaitReason::StepUnproven.as_str(), WaitReason::StepFailed.as_str()].contains(&reason)
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::{Value, json};

    use super::*;
    pub(in crate::requests) use crate::cluster::testing::condition;

    pub(in crate::requests) fn operator(spec: &Value, status: &Value) -> BottlerocketUpdateOperator {
        serde_json::from_value(json!({
            "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
            "metadata": {"name": "default", "generation": 2}, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    pub(in crate::requests) fn patch(decision: Decision) -> Value {
        match decision {
            Decision::Write(change) => change.patch,
            Decision::Nothing(reason) => panic!("nothing is written: {reason}"),
        }
    }

    /// Returns the reason for which nothing is written.
    pub(in crate::requests) fn nothing(decision: Decision) -> String {
        match decision {
            Decision::Nothing(reason) => reason,
            Decision::Write(change) => panic!("{}: {}", change.what, change.patch),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{condition, operator};
    use super::*;

    #[test]
    fn only_errors_that_the_change_makes_are_its_own() {
        let present = operator(&json!({"schedule": {"blackouts": [{"from": "2026-02-30"}]}}), &json!({}));
        let mut changed = present.clone();
        assert_eq!(new_errors(&present, &changed), []);
        changed.spec.version.get_or_insert_default().target = Some("newest".to_owned());
        let errors = new_errors(&present, &changed);
        assert!(errors.len() == 1 && errors[0].field == "spec.version.target", "{errors:?}");
    }

    #[test]
    fn canary_step_that_waits_for_a_user_is_said_to_stop_updates() {
        let step = ". A canary step waits for a user: canary step 1 waits for approval; see kubectl brupop status";
        for (status, reason, expected) in [
            ("True", "AwaitingApproval", step),
            ("False", "AwaitingApproval", step),
            ("False", "StepUnproven", step),
            ("False", "StepFailed", step),
            ("True", "Updating", ""),
            ("False", "Idle", ""),
        ] {
            let message = "canary step 1 waits for approval: kubectl annotate bruo default -n <namespace> x=7/1@y";
            let mut progressing = condition(PROGRESSING, reason, message);
            progressing["status"] = json!(status);
            let operator = operator(&json!({}), &json!({"conditions": [progressing]}));
            assert_eq!(stopped_otherwise(&operator), expected, "{status} {reason}");
        }
    }

    #[test]
    fn invalid_policy_is_said_not_to_be_in_force() {
        for (reason, parts) in [("InvalidPolicy", vec!["not in force", "spec.x: no"]), ("CertificatesInvalid", vec![])]
        {
            let degraded = json!({"conditions": [condition(DEGRADED, reason, "spec.x: no")]});
            let text = not_in_force(&status(&operator(&json!({}), &degraded)));
            assert!(parts.iter().all(|part| text.contains(part)) && text.is_empty() == parts.is_empty(), "{text}");
        }
    }
}
