//! `kubectl brupop retry` and `release`: the requests about the attempts of nodes, which the operator acknowledges in the
//! record of the node's shadow.

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::Client;
use models::condition::{Condition, find_condition, true_condition};
use models::names::{RELEASE_ANNOTATION, RETRY_ANNOTATION};
use models::operator::{ActiveRollout, BottlerocketUpdateOperator};
use models::shadow::{
    BLOCKED, BottlerocketShadow, HOST_ARMED_BY_OTHER, HOST_REACHABLE, HostState, Mode, Progress, Record, Step,
};
use planner::view::{NodeFacts, Projection as _, ShadowFacts};
use planner::wait::{WaitReason, WaitsFor};

use super::nodes::{NodesOptions, find_managed, node_of, write_each};
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
            is_braked(operator, shadow).then_some(Self::Pause)
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
    let reason = "it is not in back-off, so that there is nothing to retry";
    // The condition may still name a back-off that is over.
    let blocked = true_condition(conditions(shadow), BLOCKED);
    let blocked = blocked.filter(|blocked| blocked.reason != WaitReason::BackOff.as_str());
    let Some(blocked) = blocked else { return Ok(Decision::Nothing(reason.to_owned())) };
    let message = recorded(shadow, &node_of(shadow), &blocked.message);
    let party = blocked.reason.parse::<WaitReason>().map(|reason| reason.explanation().0);
    if progress(shadow).is_none() && party == Ok(WaitsFor::User) {
        bail!("{reason}; nothing was written. It waits for another reason: {message}");
    }
    Ok(Decision::Nothing(format!("{reason}; it waits for another reason: {message}")))
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

/// Ends the back-off of nodes, and has those verified again that have not proven their version.
pub(super) async fn retry(client: &Client, namespace: &str, options: &NodesOptions) -> anyhow::Result<()> {
    let now = crate::clock::now();
    let nonce = nonce(now);
    let object = Object::operator(client, namespace);
    let operator = object.read().await?;
    let decide = |shadow: &BottlerocketShadow| decide_retry(operator.as_ref(), shadow, &nonce, now);
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
