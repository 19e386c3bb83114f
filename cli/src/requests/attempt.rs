//! `kubectl brupop retry` and `release`: the requests about the attempts of nodes, which the operator acknowledges in the
//! record of the node's shadow.

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::Client;
use models::condition::{find_condition, true_condition};
use models::names::{RELEASE_ANNOTATION, RETRY_ANNOTATION};
use models::operator::{ActiveRollout, BottlerocketUpdateOperator};
use models::shadow::{
    BLOCKED, BottlerocketShadow, HOST_ARMED_BY_OTHER, HOST_REACHABLE, HostState, Mode, Progress, Record, Step,
};
use planner::view::{NodeFacts, Projection as _, ShadowFacts};
use planner::wait::{WaitReason, WaitsFor};

use super::nodes::{NodeOutcome, NodesOptions, find_managed, node_of, report};
use super::texts::{command, nonce, recorded};
use crate::failures::unproven;
use crate::write::{Decision, Object, State};

pub(super) fn progress(shadow: &BottlerocketShadow) -> Option<&Progress> {
    shadow.status.as_ref()?.controller.progress.as_ref()
}

fn record(shadow: &BottlerocketShadow) -> Option<&Record> {
    shadow.status.as_ref()?.controller.record.as_ref()
}

/// Returns true if the attempt of this number is under way.
fn is_under_way(shadow: &BottlerocketShadow, attempt: Option<i64>) -> bool {
    progress(shadow).is_some_and(|progress| Some(progress.attempt) == attempt)
}

/// Returns true if a permit for the node's reboot may have been issued.
pub(super) fn is_permitted(shadow: &BottlerocketShadow) -> bool {
    // By a rehearsal permit, no host reboots.
    let issued = shadow.spec.permit.is_some() && shadow.spec.state != HostState::RehearsedUpdate;
    issued || progress(shadow).is_some_and(|progress| progress.permit_issued)
}

/// Returns the rollouts of the operator's resource, if there is one.
fn rollouts(operator: Option<&BottlerocketUpdateOperator>) -> impl Iterator<Item = &ActiveRollout> {
    operator.and_then(|operator| operator.status.as_ref()).into_iter().flat_map(|status| &status.active_rollouts)
}

/// Returns true if the node runs its version without a proof, so that it can be verified again.
pub(super) fn is_unproven(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> bool {
    let runs = shadow.status.as_ref().and_then(|status| status.agent.current_version.as_ref());
    let node = node_of(shadow);
    let mut named = rollouts(operator).filter(|rollout| runs == Some(&rollout.version)).flat_map(unproven);
    named.any(|named| named.node == node)
}

/// Returns true if a rollout of the node's kind is braked that it has not gone through.
fn is_braked(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> bool {
    let Some(agent) = shadow.status.as_ref().map(|status| &status.agent) else { return false };
    let waits = |rollout: &ActiveRollout| {
        let kind = (Some(&rollout.variant), Some(&rollout.arch));
        kind == (agent.variant.as_ref(), agent.arch.as_ref())
            && agent.current_version.as_ref() != Some(&rollout.version)
    };
    rollouts(operator).filter(|rollout| rollout.is_braked()).any(waits)
}

fn decide_retry(
    operator: Option<&BottlerocketUpdateOperator>,
    shadow: &BottlerocketShadow,
    nonce: &str,
    now: Timestamp,
) -> anyhow::Result<Decision> {
    let write = |what| Ok(Decision::annotate(RETRY_ANNOTATION, nonce, what));
    let conditions = shadow.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if find_condition(conditions, HOST_REACHABLE).is_some_and(|c| c.reason == HOST_ARMED_BY_OTHER) {
        return write("asked to disarm the image that its agent has no record of");
    }
    if progress(shadow).is_none() && is_unproven(operator, shadow) {
        return write("asked to be verified again");
    }
    if record(shadow).and_then(|record| record.not_before).is_some_and(|until| until > now) {
        return write("asked to end its back-off");
    }
    if is_braked(operator, shadow) {
        return write("asked to end the pause of its braked rollout");
    }
    if progress(shadow).is_some_and(|progress| progress.mode().is_verification()) {
        return Ok(Decision::Nothing("it is being verified again already".to_owned()));
    }
    let reason = "it is not in back-off, so that there is nothing to retry";
    // The condition may still name a back-off that is over.
    let blocked = true_condition(conditions, BLOCKED).filter(|blocked| blocked.reason != WaitReason::BackOff.as_str());
    let Some(blocked) = blocked else { return Ok(Decision::Nothing(reason.to_owned())) };
    let message = recorded(shadow, &node_of(shadow), &blocked.message);
    let party = blocked.reason.parse::<WaitReason>().map(|reason| reason.explanation().0);
    if progress(shadow).is_none() && party == Ok(WaitsFor::User) {
        bail!("{reason}; nothing was written. It waits for another reason: {message}");
    }
    Ok(Decision::Nothing(format!("{reason}; it waits for another reason: {message}")))
}

/// Returns what came of `retry`.
fn retried(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow, nonce: &str) -> State {
    let Some(record) = record(shadow)
        .filter(|record| record.requests.as_ref().and_then(|requests| requests.retry.as_deref()) == Some(nonce))
    else {
        let what = if is_unproven(operator, shadow) { "to verify it again" } else { "to end its back-off" };
        return State::Pending(format!("for the controller {what}"));
    };
    if progress(shadow).is_some_and(|progress| progress.mode().is_verification()) {
        let status = command(shadow, "status");
        return State::Done(format!("it is being verified again; {status} shows the result"));
    }
    if progress(shadow).is_none() && is_unproven(operator, shadow) {
        let text = "its back-off is over; it could not be verified again now: its Event Retry has the reason. It is verified \
                    again every hour, once that is over";
        return State::Done(text.to_owned());
    }
    let mut failed = record.version_failures.iter().filter(|failure| failure.resolved_by.is_none());
    State::Done(match failed.next() {
        None => "its back-off is over; it is updated when its turn comes".to_owned(),
        Some(failure) => format!(
            "its back-off is over, but its failure on {} counts against that version until it is resolved: {}",
            failure.version,
            command(shadow, &format!("resume --failures {}", failure.version))
        ),
    })
}

/// Returns whether a drill is requested that the controller has neither begun nor refused.
fn has_pending_drill(shadow: &BottlerocketShadow) -> bool {
    ShadowFacts::project(shadow).is_some_and(|facts| facts.pending_drill().is_some())
}

fn decide_release(shadow: &BottlerocketShadow, nonce: &str) -> Decision {
    match progress(shadow) {
        None if has_pending_drill(shadow) => {
            let what = "asked to end the request for its drill, which has not begun";
            Decision::annotate(RELEASE_ANNOTATION, nonce, what)
        }
        None => Decision::Nothing("no update of it is under way, so that there is nothing to release".to_owned()),
        Some(progress) if progress.step == Step::Releasing => {
            Decision::Nothing("it is being released already".to_owned())
        }
        Some(progress) => {
            let what = match progress.mode() {
                Mode::Drill { .. } => "asked to end its drill and to be released".to_owned(),
                Mode::Verification => format!("asked to end the verification of {}", progress.version),
                Mode::Update => format!("asked to end its update to {} and to be released", progress.version),
            };
            Decision::annotate(RELEASE_ANNOTATION, nonce, what)
        }
    }
}

/// Returns what came of the `release` of an attempt. `node` is known once that has ended.
fn released(shadow: &BottlerocketShadow, nonce: &str, attempt: Option<i64>, node: Option<&NodeFacts>) -> State {
    let requests = record(shadow).and_then(|record| record.requests.as_ref());
    if requests.and_then(|requests| requests.release.as_deref()) != Some(nonce) {
        return State::Pending("for the controller to end its update".to_owned());
    }
    if is_under_way(shadow, attempt) {
        return State::Pending(if is_permitted(shadow) {
            "its reboot was permitted; it is released when it is certain that its host does not reboot any more"
                .to_owned()
        } else {
            "for the controller to release it".to_owned()
        });
    }
    let hold = command(shadow, &format!("hold {}", node_of(shadow)));
    State::Done(match node {
        _ if progress(shadow).is_some() => {
            format!("released; its next update has begun already. To keep it as it is: {hold}")
        }
        Some(node) if node.held() => "its update has ended; it is held and stays as it is".to_owned(),
        Some(node) if node.unschedulable => "released; it stays cordoned by another client".to_owned(),
        _ => format!("released; it is back in service. It is updated when its turn comes; to prevent that: {hold}"),
    })
}

/// Writes a request for each node, and waits until `check` says what came of it, from the shadow as it was written and as it
/// is now.
async fn request(
    client: &Client,
    namespace: &str,
    options: &NodesOptions,
    decide: impl Fn(&BottlerocketShadow) -> anyhow::Result<Decision>,
    check: impl AsyncFn(&BottlerocketShadow, &BottlerocketShadow) -> anyhow::Result<State>,
) -> anyhow::Result<()> {
    let mut outcomes = Vec::new();
    for (name, shadow) in find_managed(client, namespace, &options.nodes).await? {
        let object = Object::shadow(client, namespace, &name);
        let outcome = object.write(shadow, options.write.dry_run(), &decide).await;
        outcomes.push(NodeOutcome { name, object, outcome });
    }
    let read = async |name: &str, written: &BottlerocketShadow| {
        let shadow = Object::shadow(client, namespace, name).read().await?;
        check(written, &shadow.context("its shadow is gone")?).await
    };
    report(namespace, &options.write, outcomes, read).await
}

/// Ends the back-off of nodes, and has those verified again that have not proven their version.
pub(super) async fn retry(client: &Client, namespace: &str, options: &NodesOptions) -> anyhow::Result<()> {
    let now = crate::clock::now();
    let nonce = nonce(now);
    let object = Object::operator(client, namespace);
    let operator = object.read().await?;
    let decide = |shadow: &BottlerocketShadow| decide_retry(operator.as_ref(), shadow, &nonce, now);
    let check = async |_: &_, shadow: &BottlerocketShadow| Ok(retried(object.read().await?.as_ref(), shadow, &nonce));
    request(client, namespace, options, decide, check).await
}

pub(super) async fn release(client: &Client, namespace: &str, options: &NodesOptions) -> anyhow::Result<()> {
    let nonce = nonce(crate::clock::now());
    let check = async |written: &BottlerocketShadow, shadow: &BottlerocketShadow| {
        let attempt = progress(written).map(|progress| progress.attempt);
        let ended = !is_under_way(shadow, attempt);
        let node = if ended { Object::node(client, &node_of(shadow)).read().await? } else { None };
        let node = node.as_ref().and_then(NodeFacts::project).map(|node| node.at(crate::clock::now()));
        Ok(released(shadow, &nonce, attempt, node.as_ref()))
    };
    request(client, namespace, options, |shadow| Ok(decide_release(shadow, &nonce)), check).await
}

#[cfg(test)]
pub(super) mod testing {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the shadow of node `a` with this status.
    pub(in crate::requests) fn shadow(status: &Value) -> BottlerocketShadow {
        serde_json::from_value(json!({
            "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "metadata": {"name": "brs-a"},
            "spec": {"state": "Idle", "attempt": 1}, "status": status,
        }))
        .unwrap()
    }

    pub(in crate::requests) fn at(step: &str) -> Value {
        crate::cluster::testing::progress(step, 1)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use models::names::DRILL_ANNOTATION;
    use serde_json::{Value, json};

    use super::super::operator::testing::{condition, nothing, operator, patch};
    use super::testing::{at, shadow};
    use super::*;

    fn text(state: State) -> String {
        match state {
            State::Done(text) => text,
            State::Pending(text) => format!("pending: {text}"),
            State::Failed(text) => format!("failed: {text}"),
        }
    }

    #[test]
    fn retry_is_written_in_back_off_or_if_another_client_armed_the_host() {
        let now = crate::clock::now();
        let not_before = |seconds: i64| {
            let until = now + SignedDuration::from_secs(seconds);
            shadow(&json!({"record": {"failures": 1, "notBefore": until.to_string()}}))
        };
        let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
        assert_eq!(patch(decide_retry(None, &not_before(60), "nonce", now).unwrap()), expected);
        assert!(nothing(decide_retry(None, &not_before(-60), "nonce", now).unwrap()).contains("not in back-off"));
        let armed = shadow(&json!({"conditions": [condition(HOST_REACHABLE, HOST_ARMED_BY_OTHER, "")]}));
        assert_eq!(patch(decide_retry(None, &armed, "nonce", now).unwrap()), expected);
    }

    #[test]
    fn retry_that_ends_no_wait_fails_where_a_user_has_to_end_it() {
        let (none, drains) = (Value::Null, at("Draining"));
        let (for_user, by_itself) = (Some(true), Some(false));
        for (sentence, reason, progress, expected) in [
            ("held", "Held", &none, for_user),
            ("cordoned by a user", "Cordoned", &none, for_user),
            ("its attempts are used up", "AttemptsExhausted", &none, for_user),
            ("held, and its update has not ended yet", "Held", &drains, by_itself),
            ("its update has begun", "DrainBlocked", &drains, by_itself),
            ("a hook has yet to answer", "AwaitingHook", &drains, by_itself),
            ("pods have yet to end", "PodsTerminating", &none, by_itself),
            ("the host is busy", "HostBusy", &none, by_itself),
            ("a reason of a later version", "NoSuchReason", &none, by_itself),
            ("its back-off is just over", "BackOff", &none, None),
        ] {
            let node = shadow(&json!({"conditions": [condition(BLOCKED, reason, "MESSAGE")], "progress": progress}));
            let text = match decide_retry(None, &node, "nonce", crate::clock::now()) {
                Ok(decision) => nothing(decision),
                Err(error) => error.to_string(),
            };
            let start = "it is not in back-off, so that there is nothing to retry";
            let expected = match expected {
                Some(true) => format!("{start}; nothing was written. It waits for another reason: MESSAGE"),
                Some(false) => format!("{start}; it waits for another reason: MESSAGE"),
                None => start.to_owned(),
            };
            assert_eq!(text, expected, "{sentence}");
        }
    }

    #[test]
    fn retry_ends_the_pause_of_a_braked_rollout_for_a_node_that_waits_for_it() {
        let now = crate::clock::now();
        let braked = |until: Option<&str>| {
            operator(
                &json!({}),
                &json!({"activeRollouts": [{
                    "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": "2026-01-01T00:00:00Z",
                    "stepsPassed": 0, "ledger": {"brakedUntil": until},
                }]}),
            )
        };
        let node =
            |runs: &str, arch: &str| shadow(&json!({"currentVersion": runs, "variant": "aws-k8s-1.37", "arch": arch}));
        let until = Some("2026-01-01T06:00:00Z");
        let decide = |until, runs, arch| decide_retry(Some(&braked(until)), &node(runs, arch), "nonce", now).unwrap();
        let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
        assert_eq!(patch(decide(until, "1.20.4", "x86_64")), expected);
        for (until, runs, arch) in
            [(None, "1.20.4", "x86_64"), (until, "1.20.5", "x86_64"), (until, "1.20.4", "aarch64")]
        {
            assert!(nothing(decide(until, runs, arch)).contains("nothing to retry"), "{until:?} {runs} {arch}");
        }
    }

    #[test]
    fn retry_verifies_a_node_whose_rollout_has_it_without_a_proof() {
        let now = crate::clock::now();
        let rollout = |named: &str, word: &str| {
            let place = json!({"node": named, "proof": word, "reason": "HookTimedOut"});
            operator(
                &json!({}),
                &json!({"activeRollouts": [{
                    "version": "1.20.5", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0, "ledger": {"nodes": [place]},
                }]}),
            )
        };
        // Its own record may be of an earlier version of the operator, and say nothing.
        let with = |runs: &str, progress: Value, acknowledged: &str| {
            let record = json!({"failures": 1, "requests": {"retry": acknowledged}});
            shadow(&json!({"currentVersion": runs, "progress": progress, "record": record}))
        };
        let idle = |runs| with(runs, Value::Null, "earlier");
        let unproven = rollout("a", "Unproven");
        let decide = |operator: &_, shadow: &_| decide_retry(Some(operator), shadow, "nonce", now).unwrap();
        let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
        assert_eq!(patch(decide(&unproven, &idle("1.20.5"))), expected);
        for (operator, runs) in
            [(&rollout("b", "Unproven"), "1.20.5"), (&rollout("a", "Failed"), "1.20.5"), (&unproven, "1.20.4")]
        {
            assert!(nothing(decide(operator, &idle(runs))).contains("nothing to retry"));
        }
        assert!(nothing(decide_retry(None, &idle("1.20.5"), "nonce", now).unwrap()).contains("nothing to retry"));
        let mut verified = at("Verifying");
        verified["verification"] = json!(true);
        let verified = with("1.20.5", verified, "nonce");
        assert!(nothing(decide(&unproven, &verified)).contains("being verified again already"));
        let result = |shadow: &_| text(retried(Some(&unproven), shadow, "nonce"));
        assert!(result(&idle("1.20.5")).starts_with("pending: for the controller to verify it"));
        assert!(result(&verified).starts_with("it is being verified again"));
        assert!(result(&with("1.20.5", Value::Null, "nonce")).contains("could not be verified again now"));
    }

    #[test]
    fn retry_waits_for_its_acknowledgement_and_names_a_failure_that_is_not_resolved() {
        let with = |acknowledged: &str, failures: Value| {
            shadow(&json!({"record": {
                "failures": 1, "requests": {"retry": acknowledged}, "versionFailures": failures,
            }}))
        };
        assert!(text(retried(None, &shadow(&json!({})), "nonce")).starts_with("pending"));
        assert!(text(retried(None, &with("earlier", json!([])), "nonce")).starts_with("pending"));
        assert!(text(retried(None, &with("nonce", json!([])), "nonce")).contains("when its turn comes"));
        let failure = json!([{
            "version": "1.20.5", "variant": "v", "arch": "a", "reason": "BootFellBack", "time": "2026-01-01T00:00:00Z",
        }]);
        assert!(text(retried(None, &with("nonce", failure), "nonce")).contains("resume --failures 1.20.5"));
    }

    #[test]
    fn commands_are_for_the_node_and_the_operator_of_the_namespace() {
        let requests = json!({"retry": "nonce", "release": "nonce"});
        let failure = json!([{
            "version": "1.20.5", "variant": "v", "arch": "a", "reason": "BootFellBack", "time": "2026-01-01T00:00:00Z",
        }]);
        let record = json!({"failures": 1, "requests": requests, "versionFailures": failure});
        let in_ops = |progress: Value| {
            let mut shadow = shadow(&json!({"progress": progress, "record": record}));
            shadow.metadata.namespace = Some("ops".to_owned());
            shadow
        };
        let (mut verified, mut next) = (at("Verifying"), at("Staging"));
        verified["verification"] = json!(true);
        next["attempt"] = json!(2);
        for (state, command) in [
            (retried(None, &in_ops(verified), "nonce"), "status -n ops"),
            (retried(None, &in_ops(Value::Null), "nonce"), "resume --failures 1.20.5 -n ops"),
            (released(&in_ops(next), "nonce", Some(1), None), "hold a -n ops"),
            (released(&in_ops(Value::Null), "nonce", Some(1), None), "hold a -n ops"),
        ] {
            let text = text(state);
            assert!(text.contains(&format!("kubectl brupop {command}")), "{command}: {text}");
        }
    }

    #[test]
    fn release_is_written_only_for_an_attempt_under_way() {
        let expected = json!({"metadata": {"annotations": {RELEASE_ANNOTATION: "nonce"}}});
        assert_eq!(patch(decide_release(&shadow(&json!({"progress": at("Draining")})), "nonce")), expected);
        assert!(nothing(decide_release(&shadow(&json!({})), "nonce")).contains("nothing to release"));
        let releasing = shadow(&json!({"progress": at("Releasing")}));
        assert!(nothing(decide_release(&releasing, "nonce")).contains("being released already"));
    }

    #[test]
    fn release_is_written_for_a_drill_that_has_not_begun() {
        let expected = json!({"metadata": {"annotations": {RELEASE_ANNOTATION: "nonce"}}});
        let long = "x".repeat(100);
        for request in ["1 evict", &long] {
            let done = planner::annotations::recorded_value(request);
            for (acknowledged, waits) in [("0", true), (done.as_str(), false)] {
                let mut asked = shadow(&json!({"record": {"failures": 0, "requests": {"drill": acknowledged}}}));
                let annotations = [(DRILL_ANNOTATION.to_owned(), request.to_owned())];
                asked.metadata.annotations = Some(annotations.into());
                match decide_release(&asked, "nonce") {
                    Decision::Nothing(_) => assert!(!waits, "{request}"),
                    decision @ Decision::Write(_) => {
                        assert_eq!((patch(decision), waits), (expected.clone(), true), "{request}");
                    }
                }
            }
        }
    }

    #[test]
    fn release_waits_until_node_is_released_and_says_how_it_is_left() {
        let acknowledged = json!({"failures": 0, "requests": {"release": "nonce"}});
        let releasing = |permitted: bool| {
            let mut progress = at("Releasing");
            progress["permitIssued"] = json!(permitted);
            shadow(&json!({"progress": progress, "record": acknowledged}))
        };
        let node = |held: bool, unschedulable: bool| {
            let hold = held.then(planner::hold::Hold::default);
            NodeFacts { hold, unschedulable, ..NodeFacts::default() }
        };
        let ended = shadow(&json!({"record": acknowledged}));
        let mut next = at("Staging");
        next["attempt"] = json!(2);
        let again = shadow(&json!({"progress": next, "record": acknowledged}));
        for (sentence, shadow, node, part) in [
            ("not taken", shadow(&json!({"progress": at("Draining")})), None, "pending: for the controller to end"),
            ("without a permit", releasing(false), None, "pending: for the controller to release"),
            ("with a permit", releasing(true), None, "pending: its reboot was permitted"),
            ("updated again", again, None, "released; its next update has begun already"),
            ("in service", ended.clone(), Some(node(false, false)), "released; it is back in service"),
            ("cordoned", ended.clone(), Some(node(false, true)), "cordoned by another client"),
            ("held", ended, Some(node(true, true)), "it is held and stays as it is"),
        ] {
            let text = text(released(&shadow, "nonce", Some(1), node.as_ref()));
            assert!(text.contains(part), "{sentence}: {text}");
        }
    }
}
