//! `kubectl brupop retry` and `release`: the requests about the attempts of nodes, which the operator acknowledges in the
//! record of the node's shadow.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::Client;
use models::condition::{Condition, find_condition, true_condition};
use models::names::{RELEASE_ANNOTATION, RETRY_ANNOTATION};
use models::operator::{ActiveRollout, BottlerocketUpdateOperator, LedgerNode, RolloutLedger};
use models::reason::{FailureReason, Proof};
use models::shadow::{
    BLOCKED, BottlerocketShadow, HOST_ARMED_BY_OTHER, HOST_REACHABLE, HostState, Mode, Progress, Record, Step,
};
use planner::plan::recorded_limit;
use planner::view::{NodeFacts, Projection as _, ShadowFacts};
use planner::wait::{COUNTS_AGAIN, Wait, WaitReason, WaitsFor};

use super::nodes::{NodesOptions, find_managed, node_of, write_each};
use super::stopped::try_again;
use super::texts::{command, nonce, recorded, some};
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

/// Returns the place without a proof that the node has in a rollout whose version it runs.
fn place<'a>(operator: Option<&'a BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> Option<&'a LedgerNode> {
    let runs = shadow.status.as_ref().and_then(|status| status.agent.current_version.as_ref());
    let node = node_of(shadow);
    let mut named = rollouts(operator).filter(|rollout| runs == Some(&rollout.version)).flat_map(unproven);
    named.find(|named| named.node == node)
}

/// Returns true if the node runs its version without a proof, so that it can be verified again.
pub(super) fn is_unproven(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> bool {
    place(operator, shadow).is_some_and(|named| !named.has_fallen())
}

/// Returns true if the node had proven the version that it runs, and was not Ready any more or under pressure: it is not verified again.
pub(super) fn has_fallen(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> bool {
    place(operator, shadow).is_some_and(LedgerNode::has_fallen)
}

/// Returns the ledgers of braked rollouts of the node's kind that it has not gone through.
fn brakes<'a>(
    operator: Option<&'a BottlerocketUpdateOperator>,
    shadow: &BottlerocketShadow,
) -> impl Iterator<Item = &'a RolloutLedger> {
    let agent = shadow.status.as_ref().map(|status| &status.agent);
    let waits = move |rollout: &&ActiveRollout| {
        let Some(agent) = agent.filter(|_| rollout.is_braked()) else { return false };
        let kind = (Some(&rollout.variant), Some(&rollout.arch));
        kind == (agent.variant.as_ref(), agent.arch.as_ref())
            && agent.current_version.as_ref() != Some(&rollout.version)
    };
    rollouts(operator).filter(waits).filter_map(|rollout| rollout.ledger.as_ref())
}

/// Returns the nodes that let no other one be tried while a rollout is braked, as far as its ledger shows: they have a part in the brake, and run
/// the version without a proof.
fn stopping<'a>(
    operator: Option<&BottlerocketUpdateOperator>,
    ledger: &'a RolloutLedger,
) -> impl Iterator<Item = &'a LedgerNode> {
    let policy = operator.map(super::operator::policy).unwrap_or_default();
    let limit = recorded_limit(&policy, ledger);
    let is_named = move |end: &LedgerNode| ledger.nodes.iter().any(|named| named.node == end.node);
    let may_run = |end: &LedgerNode| end.proof != Proof::Free && end.reason != FailureReason::BootFellBack.as_str();
    ledger.row.iter().filter(move |end| may_run(end) && is_named(end) && ledger.brakes_by(end, limit))
}

/// Returns the reason that a node has recorded. One of a back-off may be over.
fn blocked(shadow: &BottlerocketShadow) -> Option<&Condition> {
    true_condition(conditions(shadow), BLOCKED).filter(|blocked| blocked.reason != WaitReason::BackOff.as_str())
}

fn is_for_user(blocked: &Condition) -> bool {
    blocked.reason.parse::<WaitReason>().is_ok_and(|reason| reason.explanation().0 == WaitsFor::User)
}

/// Returns why a node waits that no `retry` lets go on, as far as that is recorded, and whether a user has to end it.
fn other_wait(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow) -> Option<(bool, String)> {
    if let Some(blocked) = blocked(shadow) {
        return Some((is_for_user(blocked), recorded(shadow, &node_of(shadow), &blocked.message)));
    }
    let operator = operator?;
    let ledger = brakes(Some(operator), shadow).next()?;
    let nodes: Vec<&LedgerNode> = stopping(Some(operator), ledger).collect();
    if nodes.is_empty() {
        return Some((false, "its rollout is braked, and its pause is over: one node is tried alone".to_owned()));
    }
    let named: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let next = match nodes.iter().find(|named| named.is_unproven() && !named.has_fallen()) {
        Some(named) => format!("To have one verified again: {}", command(shadow, &format!("retry {}", named.node))),
        None if nodes.iter().all(|named| named.has_fallen()) => format!("Each {COUNTS_AGAIN}"),
        // One that has failed on it is not verified again.
        None => format!("To try again, once the cause is removed: {}", try_again(operator)),
    };
    let stopped = "its rollout is braked, and no node is tried while others run the version without a proof";
    Some((true, format!("{stopped}: {}. {next}", some(&named))))
}

fn conditions(shadow: &BottlerocketShadow) -> &[Condition] {
    shadow.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// Effect of a `retry` on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// The agent may disarm an image that it has no record of.
    Disarm,
    /// The node is verified again.
    Verify,
    BackOff,
    /// The pause of a braked rollout ends.
    Pause,
}

impl Retry {
    /// Returns the effect on a node as it is; `None` where there is nothing to retry.
    fn of(operator: Option<&BottlerocketUpdateOperator>, shadow: &BottlerocketShadow, now: Timestamp) -> Option<Self> {
        let reachable = find_condition(conditions(shadow), HOST_REACHABLE);
        let backs_off = || record(shadow).and_then(|record| record.not_before).is_some_and(|until| until > now);
        if reachable.is_some_and(|reachable| reachable.reason == HOST_ARMED_BY_OTHER) {
            Some(Self::Disarm)
        } else if progress(shadow).is_none() && is_unproven(operator, shadow) {
            Some(Self::Verify)
        } else if backs_off() {
            Some(Self::BackOff)
        } else {
            let is_paused = |ledger: &RolloutLedger| {
                ledger.braked_until.is_some_and(|until| until > now) && stopping(operator, ledger).next().is_none()
            };
            let is_kept = blocked(shadow).is_some_and(is_for_user);
            (!is_kept && brakes(operator, shadow).any(is_paused)).then_some(Self::Pause)
        }
    }

    /// Returns what the node is asked, what the controller is to do, and what holds once it has.
    const fn texts(self) -> [&'static str; 3] {
        match self {
            Self::Disarm => [
                "asked to disarm the image that its agent has no record of",
                "to let its agent disarm the image",
                "its agent may disarm the image that it has no record of",
            ],
            Self::Verify => ["asked to be verified again", "to verify it again", "it is not without a proof any more"],
            Self::BackOff => ["asked to end its back-off", "to end its back-off", "its back-off is over"],
            Self::Pause => [
                "asked to end the pause of its braked rollout",
                "to end the pause of its braked rollout",
                "the pause of its braked rollout is over",
            ],
        }
    }
}

const NOTHING: &str = "it is not in back-off, so that there is nothing to retry";

fn decide_retry(
    operator: Option<&BottlerocketUpdateOperator>,
    shadow: &BottlerocketShadow,
    nonce: &str,
    now: Timestamp,
) -> anyhow::Result<Decision> {
    if let Some(retry) = Retry::of(operator, shadow, now) {
        let [asked, ..] = retry.texts();
        return Ok(Decision::annotate(RETRY_ANNOTATION, nonce, asked));
    }
    if progress(shadow).is_some_and(|progress| progress.mode().is_verification()) {
        return Ok(Decision::Nothing("it is being verified again already".to_owned()));
    }
    if progress(shadow).is_none() && has_fallen(operator, shadow) {
        let text = format!("it had proven its version, and is not verified again: it {COUNTS_AGAIN}");
        return Ok(Decision::Nothing(text));
    }
    match other_wait(operator, shadow) {
        None => Ok(Decision::Nothing(NOTHING.to_owned())),
        Some((true, message)) if progress(shadow).is_none() => bail!("{}", in_vain(&message)),
        Some((_, message)) => Ok(Decision::Nothing(format!("{NOTHING}; it waits for another reason: {message}"))),
    }
}

/// Returns the error of a `retry` of a node that waits for a user, for this reason.
fn in_vain(message: &str) -> String {
    format!("{NOTHING}; nothing was written. It waits for another reason: {message}")
}

/// Returns what came of a `retry` that was to have this effect.
fn retried(
    retry: Retry,
    operator: Option<&BottlerocketUpdateOperator>,
    shadow: &BottlerocketShadow,
    nonce: &str,
) -> State {
    let [_, awaited, done] = retry.texts();
    let Some(record) = record(shadow)
        .filter(|record| record.requests.as_ref().and_then(|requests| requests.retry.as_deref()) == Some(nonce))
    else {
        return State::Pending(format!("for the controller {awaited}"));
    };
    if progress(shadow).is_some_and(|progress| progress.mode().is_verification()) {
        let status = command(shadow, "status");
        return State::Done(format!("it is being verified again; {status} shows the result"));
    }
    if progress(shadow).is_none() && is_unproven(operator, shadow) {
        let text = "it could not be verified again now: its Event Retry has the reason. It is verified again every hour, once \
                    that is over";
        return State::Done(text.to_owned());
    }
    if retry == Retry::Verify {
        return State::Done(done.to_owned());
    }
    let mut failed = record.version_failures.iter().filter(|failure| failure.resolved_by.is_none());
    State::Done(match failed.next() {
        None => format!("{done}; it is updated when its turn comes"),
        Some(failure) => format!(
            "{done}, but its failure on {} counts against that version until it is resolved: {}",
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
    let found = find_managed(client, namespace, &options.nodes).await?;
    let object = |name: &str| Object::shadow(client, namespace, name);
    let shadows: Vec<_> = found.into_iter().map(|(name, shadow)| (name.clone(), object(&name), shadow)).collect();
    let read = async |name: &str, written: &BottlerocketShadow| {
        let shadow = object(name).read().await?;
        check(written, &shadow.context("its shadow is gone")?).await
    };
    write_each(namespace, &options.write, shadows, decide, read).await
}

/// Returns those of these nodes that a user keeps out of updates, each with the reason, where a rollout is braked.
async fn kept_out(
    client: &Client,
    operator: Option<&BottlerocketUpdateOperator>,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<BTreeMap<String, Wait>> {
    let mut kept = BTreeMap::new();
    let Some(operator) = operator.filter(|operator| rollouts(Some(*operator)).any(ActiveRollout::is_braked)) else {
        return Ok(kept);
    };
    for name in names {
        let name = name.strip_prefix("node/").unwrap_or(name);
        let node = Object::node(client, name).read().await?;
        let facts = node.as_ref().and_then(NodeFacts::project).map(|facts| facts.at(now));
        let wait = facts.and_then(|facts| planner::plan::kept_out(&super::operator::policy(operator), &facts));
        kept.extend(wait.map(|wait| (name.to_owned(), wait)));
    }
    Ok(kept)
}

/// Ends the back-off of nodes, and has those verified again that have not proven their version.
pub(super) async fn retry(client: &Client, namespace: &str, options: &NodesOptions) -> anyhow::Result<()> {
    let now = crate::clock::now();
    let nonce = nonce(now);
    let object = Object::operator(client, namespace);
    let operator = object.read().await?;
    let kept = kept_out(client, operator.as_ref(), &options.nodes, now).await?;
    let decide = |shadow: &BottlerocketShadow| {
        let name = node_of(shadow);
        // The pause would end for another node.
        match (kept.get(&name), Retry::of(operator.as_ref(), shadow, now)) {
            (Some(wait), Some(Retry::Pause)) => bail!("{}", in_vain(&recorded(shadow, &name, &wait.to_string()))),
            _ => decide_retry(operator.as_ref(), shadow, &nonce, now),
        }
    };
    let check = async |written: &BottlerocketShadow, shadow: &BottlerocketShadow| {
        let effect = Retry::of(operator.as_ref(), written, now).unwrap_or(Retry::BackOff);
        Ok(retried(effect, object.read().await?.as_ref(), shadow, &nonce))
    };
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
mod tests;
