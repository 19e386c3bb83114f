//! The checks of one node, in the order in which a plan makes them, with the verdict of each. A plan ends at the first
//! that a node does not pass; here those after it are made too, so that a user sees all that has to change.
//!
//! The checks are those of the plan: the gates, and the plan's own answer for what depends on other nodes. A node that is to have no other
//! version, and has not proven the one that it runs, has a check of that before them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::shadow::{Mode, Place, Progress, Step};

use super::Plan;
use crate::gates::{self, Gate, Obstacle};
use crate::phase::Phase;
use crate::policy::Policy;
use crate::survey::{NodeContext, Survey};
use crate::view::ClusterView;
use crate::wait::{Wait, WaitReason};

/// The result of one check.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckResult {
    Passed,
    /// The node waits for this reason.
    Waits(Wait),
    /// It belongs to a later part of the update, and was not made.
    NotReached,
}

/// One check of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The check as one fixed word.
    pub name: &'static str,
    /// The sentence that is true if the node passes.
    pub holds: &'static str,
    pub result: CheckResult,
    /// The exception by which the node passes, if it does by one.
    pub exception: Option<String>,
}

impl Check {
    fn new(name: &'static str, holds: &'static str, result: CheckResult) -> Self {
        Self { name, holds, result, exception: None }
    }

    /// Returns the reason why the node waits, if this check is one that it does not pass.
    pub fn wait(&self) -> Option<&Wait> {
        match &self.result {
            CheckResult::Waits(wait) => Some(wait),
            CheckResult::Passed | CheckResult::NotReached => None,
        }
    }
}

impl From<Option<Wait>> for CheckResult {
    fn from(wait: Option<Wait>) -> Self {
        wait.map_or(Self::Passed, Self::Waits)
    }
}

/// The name of the check of what depends on other nodes.
pub const TURN: &str = "HasTurn";

/// The name of the check of a proof of the version that the node runs. It keeps the node from no update: others wait for the proof.
pub const PROVEN: &str = "Proven";

/// Returns the checks of a node. `plan` is the plan for the same arguments.
pub fn checks(view: &ClusterView, policy: &Policy, plan: &Plan, now: Timestamp, name: &str) -> Vec<Check> {
    let labelled = |wait: Option<Wait>| {
        Check::new("Labelled", "the node has the label that selects it for updates", CheckResult::from(wait))
    };
    let survey = Survey::of(view, policy, now);
    let Some(node) = survey.find(name) else { return vec![labelled(Some(Wait::NotLabelled))] };
    let pause = survey.pause.wait.clone();
    let mut checks =
        vec![Check::new("NoEarlierOperator", "no host may still act for the earlier operator", pause.into())];
    let wait = plan.waits.get(name);
    if wait == Some(&Wait::Acting) {
        checks.push(Check::new("NothingUnderWay", "nothing is being written about it", Some(Wait::Acting).into()));
    }
    let Some(ctx) = NodeContext::of(view, &survey, node, now) else {
        let unreadable = view.unreadable.shadows.contains_key(name).then_some(Wait::ShadowUnreadable);
        let missing = unreadable.or_else(|| node.facts.labelled.then_some(Wait::NoShadow));
        checks.push(labelled((!node.facts.labelled).then_some(Wait::NotLabelled)));
        // Where there is no policy either, the operator may be in another namespace.
        if missing == Some(Wait::NoShadow) && !policy.present {
            checks.push(Check::new("Enabled", gates::ENABLED, Some(Wait::NoOperatorResource).into()));
        }
        checks.push(Check::new("HasShadow", "the node has a shadow", missing.into()));
        return checks;
    };
    let slot = view.slots().any(|slot| slot.uid == node.facts.uid);
    let ctx = NodeContext { slot, ..ctx };
    match node.progress() {
        None => idle(&ctx, wait, &mut checks),
        Some(progress) if progress.step.place() == Place::Waiting => staged(&ctx, wait, &mut checks),
        Some(progress) => under_way(progress, wait, &mut checks),
    }
    checks
}

/// Returns the reasons for which nodes that are to have no other version have no proof of the one that they run, by node.
pub fn without_proof(view: &ClusterView, policy: &Policy, now: Timestamp) -> BTreeMap<String, Wait> {
    let survey = Survey::of(view, policy, now);
    let contexts = survey.nodes.iter().filter_map(|node| NodeContext::of(view, &survey, node, now));
    contexts.filter_map(|ctx| Some((ctx.facts().name.clone(), unproven(&ctx)?))).collect()
}

/// Returns the reason for which an idle node has no proof of its version. An update to another one, and a drill, do not wait for that.
fn unproven(ctx: &NodeContext<'_>) -> Option<Wait> {
    let stays = ctx.version().is_err() && !ctx.mode().is_drill();
    if stays { gates::verification::wait(ctx) } else { None }
}

/// Adds the checks of some gates, each once.
fn add_gates(ctx: &NodeContext<'_>, gates: impl Iterator<Item = &'static Gate>, checks: &mut Vec<Check>) {
    for gate in gates {
        if !checks.iter().any(|check| check.name == gate.name) {
            let check = Check::new(gate.name, gate.holds, gate.wait(ctx).into());
            checks.push(Check { exception: (gate.exception)(ctx), ..check });
        }
    }
}

/// Adds the gates before the drain, for a node whose pods are known.
fn add_drain_gates(ctx: &NodeContext<'_>, checks: &mut Vec<Check>) {
    if ctx.node.pods.is_some() {
        add_gates(ctx, gates::of_drain(ctx), checks);
    } else {
        let not_reached = |gate: &Gate| Check::new(gate.name, gate.holds, CheckResult::NotReached);
        checks.extend(gates::of_drain(ctx).map(not_reached));
    }
}

/// Returns whether a node has passed all checks so far.
fn passed(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.result == CheckResult::Passed)
}

fn turn(result: CheckResult) -> Check {
    Check::new(TURN, "the budget has room, and it is the node's turn", result)
}

fn idle(ctx: &NodeContext<'_>, wait: Option<&Wait>, checks: &mut Vec<Check>) {
    let of_claim = |wait: &&Wait| matches!(wait.reason(), WaitReason::Held | WaitReason::DisarmPending);
    let left = wait.filter(of_claim).filter(|_| ctx.facts().claimed());
    checks.push(Check::new("Released", "nothing of an earlier attempt is left on the node", left.cloned().into()));
    if let Some(wait) = unproven(ctx) {
        checks.push(Check::new(PROVEN, "the node has proven the version that it runs", CheckResult::Waits(wait)));
    }
    add_gates(ctx, gates::of_idle(ctx), checks);
    let result = if passed(checks) { wait.cloned().into() } else { CheckResult::NotReached };
    checks.push(turn(result));
    add_drain_gates(ctx, checks);
}

fn staged(ctx: &NodeContext<'_>, wait: Option<&Wait>, checks: &mut Vec<Check>) {
    let holds = Phase::of_step(Step::Staging).map_or("", |phase| (phase.holds)(ctx.mode()));
    // A drill that a gate refuses ends: one that waits for its node, its agent or the web API lacks its image.
    let early = |wait: &&Wait| {
        matches!(
            wait,
            Wait::Staging | Wait::AwaitingAgent | Wait::NodeNotReady | Wait::WebApiNotReady | Wait::AgentNotReady
        )
    };
    let staging = match ctx.mode() {
        Mode::Drill { .. } => wait.filter(early).cloned(),
        Mode::Update | Mode::Verification => (!ctx.is_staged()).then(|| gates::staging(ctx)),
    };
    checks.push(Check::new("Staged", holds, staging.into()));
    add_gates(ctx, gates::of_staged(ctx), checks);
    if !passed(checks) {
        checks.push(turn(CheckResult::NotReached));
        return add_drain_gates(ctx, checks);
    }
    let known = gates::before_drain(ctx).map(Obstacle::into_wait);
    let of_pods = |wait: &&Wait| wait.reason().is_check_finding() || known.as_ref() == Some(*wait);
    let finding = wait.filter(of_pods);
    checks.push(turn(if finding.is_some() { CheckResult::Passed } else { wait.cloned().into() }));
    // Found earlier, or by what only the controller knows.
    if let Some(finding) = finding.filter(|finding| known.as_ref() != Some(finding)) {
        let holds = "the controller has checked its pods, their budgets and the expressions";
        checks.push(Check::new("PodsChecked", holds, CheckResult::Waits(finding.clone())));
    } else if ctx.node.pods.is_none() && finding.is_some() {
        return add_gates(ctx, gates::of_drain(ctx), checks);
    }
    add_drain_gates(ctx, checks);
}

fn under_way(progress: &Progress, wait: Option<&Wait>, checks: &mut Vec<Check>) {
    let mode = progress.mode();
    let path: Vec<_> = Phase::path(mode).collect();
    let Some(now) = path.iter().position(|phase| phase.step == progress.step) else {
        let ending = Phase::ENDING;
        checks.push(Check::new(ending.step.as_str(), (ending.holds)(mode), wait.cloned().into()));
        return;
    };
    for (index, phase) in path.iter().enumerate() {
        let result = match index.cmp(&now) {
            std::cmp::Ordering::Less => CheckResult::Passed,
            std::cmp::Ordering::Equal => wait.cloned().into(),
            std::cmp::Ordering::Greater => CheckResult::NotReached,
        };
        checks.push(Check::new(phase.step.as_str(), (phase.holds)(mode), result));
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::{Drill, HostState};

    use super::*;
    use crate::fixtures::{at, cluster, node, t};
    use crate::plan::plan;

    #[test]
    fn shadow_that_cannot_be_read_is_not_called_missing() {
        for (unreadable, expected) in [(false, Wait::NoShadow), (true, Wait::ShadowUnreadable)] {
            let mut a = node("a");
            a.shadow = None;
            let (mut view, policy) = cluster(vec![a], &[]);
            if unreadable {
                view.unreadable.shadows.insert("a".into(), "a field".into());
            }
            let made = plan(&view, &policy, t(0));
            let checks = checks(&view, &policy, &made, t(0), "a");
            let first = checks.iter().find_map(Check::wait);
            assert_eq!((first, made.waits.get("a")), (Some(&expected), Some(&expected)), "{checks:?}");
        }
    }

    #[test]
    fn node_that_downloads_lacks_its_image_for_the_reason_for_which_it_waits() {
        for drill in [None, Some(Drill { download: true, ..Drill::default() })] {
            let mut a = at("a", Step::Staging, 0, HostState::StagedUpdate);
            let status = &mut a.shadow.as_mut().unwrap().status;
            status.agent.state = Some(HostState::Idle);
            status.controller.progress.as_mut().unwrap().drill.clone_from(&drill);
            let (mut view, policy) = cluster(vec![a], &[]);
            for (missing, ready, expected) in [
                (None, true, Wait::Staging),
                (Some(t(0)), true, Wait::WebApiNotReady),
                (Some(t(0)), false, Wait::NodeNotReady),
            ] {
                view.web_api_missing = missing;
                view.nodes.get_mut("a").unwrap().facts.ready = ready;
                let made = plan(&view, &policy, t(60));
                assert_eq!(made.waits.get("a"), Some(&expected), "{drill:?}: {:?}", made.actions);
                let checks = checks(&view, &policy, &made, t(60), "a");
                let first = checks.iter().find(|check| check.wait().is_some()).unwrap();
                assert_eq!((first.name, first.wait()), ("Staged", Some(&expected)), "{drill:?}: {checks:?}");
            }
        }
    }
}
