//! `kubectl brupop hold` and `unhold`: the annotation on a Node that keeps it out of updates.

use anyhow::bail;
use clap::Args;
use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt as _};
use models::duration::Duration;
use models::names::HOLD_ANNOTATION;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BottlerocketShadow, Mode, Place, Progress, Step};
use models::time::after;
use planner::hold::Hold;
use planner::view::{NodeFacts, Projection as _};
use serde_json::Value;

use super::attempt::{is_permitted, is_unproven, progress};
use super::nodes::{NodesOptions, find, write_each};
use crate::call::is_unreadable;
use crate::page::warn;
use crate::write::{Decision, Object, State, annotated_by};

/// Maximum length of a reason: the operator shows no more of it.
const REASON_LENGTH: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct HoldOptions {
    #[command(flatten)]
    nodes: NodesOptions,
    /// Time after which the hold ends by itself, e.g. 2h or 90m. Default: when it is removed.
    #[arg(long = "for", value_name = "DURATION")]
    duration: Option<Duration>,
    /// Reason for the hold, which the operator shows.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Replace another hold of the node.
    #[arg(long)]
    overwrite: bool,
}

impl HoldOptions {
    /// Returns the hold that the options describe, with a whole second as its end.
    fn hold(&self, now: Timestamp) -> anyhow::Result<Hold> {
        let until = match self.duration {
            Some(duration) if duration < Duration::from_secs(1) => {
                bail!("--for {duration} is too short: a hold lasts at least 1s")
            }
            // The API server's clock may be another one: not earlier than meant.
            Some(duration) => {
                Some(after(after(now, duration.0), SignedDuration::from_millis(999)).round(Unit::Second)?)
            }
            None => None,
        };
        let reason = self.reason.as_deref().map(models::plain::plain).map(|text| text.trim().to_owned());
        if reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON_LENGTH) {
            bail!("--reason is too long: write at most {REASON_LENGTH} characters");
        }
        Ok(Hold { until, reason: reason.filter(|reason| !reason.is_empty()) })
    }
}

/// Returns the hold that a Node has, also one that is over. One that is refused holds nothing.
fn hold_of(node: &Node) -> Option<Hold> {
    node.annotations().get(HOLD_ANNOTATION).and_then(|value| Hold::parse(value).ok())
}

fn describe(hold: &Hold) -> String {
    let reason = hold.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    match hold.until {
        Some(until) => format!("held until {until}{reason}"),
        None => format!("held until the hold is removed{reason}"),
    }
}

/// Decides about `hold`: another hold that is in force is replaced only on request.
fn decide_hold(node: &Node, hold: &Hold, overwrite: bool, now: Timestamp) -> anyhow::Result<Decision> {
    match hold_of(node).filter(|present| !present.is_over(now)) {
        Some(present) if present == *hold => Ok(Decision::Nothing(format!("it is {} already", describe(hold)))),
        Some(present) if !overwrite => {
            let manager = annotated_by(node, HOLD_ANNOTATION);
            let by = manager.map_or_else(String::new, |manager| format!(" by the field manager {manager}"));
            bail!(
                "it is {} already: the annotation {HOLD_ANNOTATION} was set{by}. Nothing was written; --overwrite replaces \
                 that hold",
                describe(&present)
            )
        }
        _ => Ok(Decision::annotate(HOLD_ANNOTATION, hold.to_string(), describe(hold))),
    }
}

fn decide_unhold(node: &Node) -> Decision {
    match node.annotations().get(HOLD_ANNOTATION) {
        None => Decision::Nothing("it is not held".to_owned()),
        Some(_) => Decision::annotate(HOLD_ANNOTATION, Value::Null, "not held any more"),
    }
}

/// Returns what came of `hold`.
fn held(hold: &Hold, shadow: Option<&BottlerocketShadow>, node: &NodeFacts) -> State {
    let text = describe(hold);
    let Some(shadow) = shadow else {
        return State::Done(text);
    };
    match progress(shadow) {
        Some(progress) if progress.step == Step::Releasing && is_permitted(shadow) => {
            State::Done(format!("{text}; its update has ended; it keeps its cordon and counts no more"))
        }
        Some(progress)
            if is_permitted(shadow)
                || (progress.mode() == Mode::Update
                    && matches!(progress.step.place(), Place::Booted | Place::Back)) =>
        {
            State::Done(format!("{text}; the update under way has gone too far to end: it is finished first"))
        }
        Some(progress) => State::Pending(format!(
            "for the controller to end its update to {} ({})",
            progress.version,
            progress.step.as_str()
        )),
        None if node.claimed() => State::Done(format!("{text}; its update has ended, and it stays cordoned")),
        None => State::Done(text),
    }
}

/// Returns what came of `unhold`.
fn unheld(
    operator: Option<&BottlerocketUpdateOperator>,
    shadow: Option<&BottlerocketShadow>,
    node: &NodeFacts,
) -> State {
    let progress = shadow.and_then(progress);
    if progress.is_some_and(Progress::may_still_reboot) {
        let text =
            "not held any more; its update has ended; it keeps its cordon and counts until it is back or deleted";
        return State::Done(text.to_owned());
    }
    let under_way = progress.is_some();
    if node.claimed() && !under_way {
        return State::Pending(
            "for the controller to release its cordon, once it is certain that its host does not reboot".to_owned(),
        );
    }
    let is_unproven = shadow.is_some_and(|shadow| is_unproven(operator, shadow));
    let next = if is_unproven { "it is verified again" } else { "it is updated when its turn comes" };
    let cordoned = if node.unschedulable && !under_way { ", but another client has cordoned it" } else { "" };
    State::Done(format!("not held any more; {next}{cordoned}"))
}

/// Writes the annotation of each node, and waits for what comes of it.
async fn write(
    client: &Client,
    namespace: &str,
    options: &NodesOptions,
    decide: impl Fn(&Node) -> anyhow::Result<Decision>,
    outcome: impl Fn(Option<&BottlerocketShadow>, &NodeFacts) -> State,
) -> anyhow::Result<()> {
    let mut nodes = Vec::new();
    for found in find(client, namespace, &options.nodes).await? {
        if let Some(reason) = found.not_managed() {
            warn(reason);
        }
        nodes.push((found.name.clone(), Object::node(client, &found.name), found.node));
    }
    let check = async |name: &str, _: &Node| {
        // The shadow first: an update that has ended has left its traces on the node before.
        let shadow = match Object::shadow(client, namespace, name).read().await {
            // A warning says so.
            Err(error) if is_unreadable(&error) => None,
            shadow => shadow?,
        };
        let Some(node) = Object::node(client, name).read().await? else {
            return Ok(State::Failed("the node is gone".to_owned()));
        };
        let facts = NodeFacts::project(&node).unwrap_or_default();
        Ok(outcome(shadow.as_ref(), &facts))
    };
    write_each(namespace, &options.write, nodes, decide, check).await
}

pub(super) async fn hold(client: &Client, namespace: &str, options: &HoldOptions) -> anyhow::Result<()> {
    let now = crate::clock::now();
    let hold = options.hold(now)?;
    let decide = |node: &Node| decide_hold(node, &hold, options.overwrite, now);
    write(client, namespace, &options.nodes, decide, |shadow, node| held(&hold, shadow, node)).await
}

pub(super) async fn unhold(client: &Client, namespace: &str, options: &NodesOptions) -> anyhow::Result<()> {
    // Without the right to read it, nothing is known of a proof.
    let operator = Object::operator(client, namespace).read().await.unwrap_or_default();
    let outcome = |shadow: Option<&BottlerocketShadow>, node: &NodeFacts| unheld(operator.as_ref(), shadow, node);
    write(client, namespace, options, |node| Ok(decide_unhold(node)), outcome).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use planner::claims::ClaimFields;
    use serde_json::json;

    use super::super::attempt::testing::{at, shadow};
    use super::super::operator::testing::{nothing, operator, patch};
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: HoldOptions,
    }

    fn options(arguments: &[&str]) -> HoldOptions {
        Line::try_parse_from([&["hold", "a"], arguments].concat()).unwrap().options
    }

    fn node(value: Option<&str>) -> Node {
        let mut node = json!({"metadata": {
            "name": "a",
            "managedFields": [{
                "manager": "kubectl-annotate", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:{HOLD_ANNOTATION}"): {}}}},
            }],
        }});
        if let Some(value) = value {
            node["metadata"]["annotations"] = json!({HOLD_ANNOTATION: value});
        }
        serde_json::from_value(node).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00.5Z".parse().unwrap()
    }

    #[test]
    fn hold_is_written_with_its_end_and_reason() {
        for (arguments, value) in [
            (vec![], "reason="),
            (vec!["--for", "2h"], "until=2026-01-01T02:00:01Z"),
            (vec!["--reason", " disk\nswap "], "reason=disk swap"),
            (vec!["--for", "90m", "--reason", "audit"], "until=2026-01-01T01:30:01Z reason=audit"),
        ] {
            let hold = options(&arguments).hold(now()).unwrap();
            let written = patch(decide_hold(&node(None), &hold, false, now()).unwrap());
            assert_eq!(written, json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}}));
            assert_eq!(Hold::parse(value), Ok(hold), "the operator reads what was meant");
        }
        assert!(options(&["--for", "0s"]).hold(now()).is_err());
        assert!(options(&["--reason", &"x".repeat(257)]).hold(now()).is_err());
    }

    #[test]
    fn hold_of_another_client_is_named_and_replaced_only_on_request() {
        let hold = options(&["--for", "1h"]).hold(now()).unwrap();
        for value in ["the auditors are here", "until=2026-01-01T08:00:00Z"] {
            let error = decide_hold(&node(Some(value)), &hold, false, now()).unwrap_err().to_string();
            for part in ["kubectl-annotate", HOLD_ANNOTATION, "--overwrite"] {
                assert!(error.contains(part), "{part}: {error}");
            }
            patch(decide_hold(&node(Some(value)), &hold, true, now()).unwrap());
        }
        for value in ["until=2025-12-31T23:00:00Z", "until=tomorrow"] {
            // One that is over, or refused, holds nothing.
            patch(decide_hold(&node(Some(value)), &hold, false, now()).unwrap());
        }
        let same = decide_hold(&node(Some(&hold.to_string())), &hold, false, now()).unwrap();
        assert!(nothing(same).contains("held until 2026-01-01T01:00:01Z already"));
    }

    #[test]
    fn unhold_removes_the_annotation_whatever_its_value() {
        let expected = json!({"metadata": {"annotations": {HOLD_ANNOTATION: null}}});
        for value in ["mine", "until=2025-12-31T23:00:00Z", "until=tomorrow"] {
            assert_eq!(patch(decide_unhold(&node(Some(value)))), expected, "{value}");
        }
        assert!(nothing(decide_unhold(&node(None))).contains("not held"));
    }

    /// The shadow of a node whose update has ended while its host may still reboot.
    fn not_back() -> BottlerocketShadow {
        let mut releasing = at("Releasing");
        (releasing["permitIssued"], releasing["disruptive"]) = (json!(true), json!(false));
        shadow(&json!({"progress": releasing}))
    }

    #[test]
    fn hold_waits_for_the_end_of_an_update_that_can_end() {
        let hold = Hold::default();
        let with = |step: &str| shadow(&json!({"progress": at(step)}));
        let mut permitted = with("Rebooting");
        permitted.spec.permit = Some(models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
        let claimed = NodeFacts { claims: ClaimFields::CORDON, ..NodeFacts::default() };
        for (sentence, shadow, node, done, part) in [
            ("not under the operator", None, NodeFacts::default(), true, "held until"),
            ("in service", Some(shadow(&json!({}))), NodeFacts::default(), true, "held until"),
            ("draining", Some(with("Draining")), claimed.clone(), false, "1.20.5 (Draining)"),
            ("before its permit", Some(with("Rebooting")), claimed.clone(), false, "Rebooting"),
            ("not back from its reboot", Some(not_back()), claimed.clone(), true, "has ended; it keeps its cordon"),
            ("before its release, without a permit", Some(with("Releasing")), claimed.clone(), false, "(Releasing)"),
            ("after its permit", Some(permitted), claimed.clone(), true, "finished first"),
            ("after its reboot", Some(with("Verifying")), NodeFacts::default(), true, "finished first"),
            ("ended", Some(shadow(&json!({}))), claimed, true, "stays cordoned"),
        ] {
            let (is_done, text) = match held(&hold, shadow.as_ref(), &node) {
                State::Done(text) => (true, text),
                State::Pending(text) | State::Failed(text) => (false, text),
            };
            assert!(is_done == done && text.contains(part), "{sentence}: {text}");
        }
    }

    #[test]
    fn unhold_waits_until_the_cordon_that_the_hold_has_kept_is_released() {
        let unheld = |shadow: Option<&BottlerocketShadow>, node: &NodeFacts| unheld(None, shadow, node);
        let idle = shadow(&json!({}));
        let claimed = NodeFacts { claims: ClaimFields::CORDON, unschedulable: true, ..NodeFacts::default() };
        assert!(matches!(unheld(Some(&idle), &claimed), State::Pending(_)));
        assert!(
            matches!(unheld(Some(&idle), &NodeFacts::default()), State::Done(text) if text.ends_with("turn comes"))
        );
        let cordoned = NodeFacts { unschedulable: true, ..NodeFacts::default() };
        assert!(matches!(unheld(None, &cordoned), State::Done(text) if text.contains("another client")));
        // A new update has begun already.
        assert!(matches!(unheld(Some(&shadow(&json!({"progress": at("Draining")}))), &claimed), State::Done(_)));
        // One that is not back keeps its cordon.
        let outcome = unheld(Some(&not_back()), &claimed);
        assert!(matches!(outcome, State::Done(text) if text.ends_with("counts until it is back or deleted")));
    }

    #[test]
    fn node_that_runs_its_version_without_a_proof_is_verified_after_unhold() {
        let place = json!({"node": "a", "proof": "Unproven", "reason": "Held"});
        let rollout = json!({"version": "1.20.5", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0, "ledger": {"nodes": [place]}});
        let operator = operator(&json!({}), &json!({"activeRollouts": [rollout]}));
        for (runs, end) in [("1.20.5", "it is verified again"), ("1.20.4", "it is updated when its turn comes")] {
            let outcome =
                unheld(Some(&operator), Some(&shadow(&json!({"currentVersion": runs}))), &NodeFacts::default());
            assert!(matches!(outcome, State::Done(text) if text.ends_with(end)), "{runs}");
        }
    }
}
