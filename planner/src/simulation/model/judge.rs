//! The properties S1 to S13, judged on the objects at the API server and on what hosts do.

use models::reason::Proof;
use models::shadow::{Place, Progress, Step};

use super::machine::gone_by;
use super::state::{Controller, Machine, State};
use super::view::policy_index;
use super::write::{What, Write};
use super::{NAMES, NEW, SOAK, World};
use crate::claims::ClaimField;
use crate::decision::Action;
use crate::view::NodeFacts;

/// A broken property: its number, and what was found.
pub(super) type Broken = (&'static str, String);

fn broken(property: &'static str, text: impl Into<String>) -> Option<Broken> {
    Some((property, text.into()))
}

fn facts(state: &State, node: usize) -> Option<&NodeFacts> {
    state.truth[node].node.as_ref().map(|node| &node.value)
}

fn progress(state: &State, node: usize) -> Option<&Progress> {
    state.truth[node].shadow.as_ref()?.value.status.controller.progress.as_ref()
}

/// Returns whether a node is out of service because of the operator.
fn is_out(state: &State, node: usize) -> bool {
    let machine = state.machine(node);
    let claimed = |facts: &NodeFacts| facts.claims.has(ClaimField::Cordon) && !facts.held() && !machine.orphaned;
    machine.permitted.is_some() || facts(state, node).is_some_and(claimed)
}

/// Returns whether a node has been taken to the new version, or may be.
fn is_taken(state: &State, node: usize) -> bool {
    let machine = state.machine(node);
    let Some(shadow) = &state.truth[node].shadow else { return machine.taken };
    let spec = &shadow.value.spec;
    let permit = spec.permit.is_some() && spec.boot_id.as_ref() == Some(&machine.boot_id);
    machine.taken || (permit && spec.version.as_ref() == Some(&NEW))
}

/// Returns whether the update of a node that is taken to the new version goes on. One whose Node is gone is waited for no longer than
/// its deadlines.
fn is_going(state: &State, node: usize) -> bool {
    let is_away = state.machine(node).permitted.is_some();
    is_away || progress(state, node).is_some_and(|progress| progress.disruptive)
}

/// Returns whether a node has proven the new version.
fn has_proven(state: &State, node: usize) -> bool {
    let record = state.truth[node].shadow.as_ref().and_then(|shadow| shadow.value.status.controller.record.as_ref());
    let proof = record.and_then(|record| record.proof.as_ref());
    proof.is_some_and(|proof| proof.proof == Proof::Proven && proof.version == NEW)
}

/// S1 and S12 at any moment.
pub(super) fn always(state: &State, world: &World) -> Option<Broken> {
    let nodes = || 0..state.truth.len();
    let named = |chosen: Vec<usize>| chosen.into_iter().map(|node| NAMES[node]).collect::<Vec<_>>().join(", ");
    let out: Vec<usize> = nodes().filter(|node| is_out(state, *node)).collect();
    if out.len() > world.bounds.budget {
        let text = format!("{} are out of service, over a budget of {}", named(out), world.bounds.budget);
        return broken("S1", text);
    }
    let taken: Vec<usize> = nodes().filter(|node| is_taken(state, *node)).collect();
    let proven = nodes().filter(|node| has_proven(state, *node)).count();
    if let Some(places) = world.bounds.canary
        && proven < places
        && taken.len() > places
    {
        return broken("S12", format!("{} are taken to the version, over {places} places", named(taken)));
    }
    let going: Vec<usize> = taken.into_iter().filter(|node| is_going(state, *node)).collect();
    if proven == 0 && going.len() > 1 {
        return broken("S12", format!("{} go at once to a version that none has proven", named(going)));
    }
    None
}

/// Judges a reboot by a permit at the moment at which the host goes down.
pub(super) fn reboot(state: &State, node: usize) -> Option<Broken> {
    let (name, machine) = (NAMES[node], state.machine(node));
    let (permit, _) = machine.permitted.as_ref()?;
    let facts = facts(state, node)?;
    if permit.node_uid != facts.uid {
        // The Node was deleted after the call: nothing can take that back.
        return None;
    }
    let shadow = &state.truth[node].shadow.as_ref()?.value;
    if permit.boot_id != machine.boot_id {
        return broken("S2", format!("{name} reboots by a permit for another boot"));
    }
    if permit.attempt != shadow.spec.attempt {
        return broken("S2", format!("{name} reboots by a permit for attempt {}", permit.attempt));
    }
    if let Some(pod) = state.truth[node].pods.value.first() {
        return broken("S3", format!("{name} reboots with {} on it", pod.uid));
    }
    if !facts.claims.has(ClaimField::Cordon) {
        return broken("S9", format!("{name} reboots although it was released"));
    }
    None
}

/// Returns whether a Node has a slot.
pub(super) fn has_slot(state: &State, uid: &str) -> bool {
    state.operator.value.status.slots.iter().any(|slot| slot.uid == uid)
}

/// S7: what is armed is the version of the attempt.
pub(super) fn activation(state: &State, node: usize, machine: &Machine) -> Option<Broken> {
    let wanted = progress(state, node).map(|progress| &progress.version);
    let staged = machine.host.staged.as_ref();
    let text = || format!("{} arms {staged:?}, and its attempt is for {wanted:?}", NAMES[node]);
    (staged != wanted).then(|| ("S7", text()))
}

/// Judges a write at the moment at which it takes effect.
pub(super) fn arrival(state: &State, write: &Write, is_late: bool) -> Option<Broken> {
    let (node, name) = (write.node, NAMES[write.node]);
    match &write.what {
        What::Action(Action::Claim { fields, .. }) => {
            let facts = facts(state, node)?;
            if !fields.and(facts.set_otherwise).is_empty() {
                return broken("S4", format!("the claim of {name} overwrites what a user has set"));
            }
            if is_late || has_slot(state, &facts.uid) {
                None
            } else {
                broken("S1", format!("{name} is claimed without a slot"))
            }
        }
        What::Action(Action::Status { status, .. }) => proven(state, node, status.report.record.as_ref()?),
        // One that arrives late was checked before, and no agent acts on it in another boot.
        What::Permit(spec) if !is_late => {
            let facts = facts(state, node)?;
            let pods = &state.truth[node].pods.value;
            if spec.boot_id.as_ref() != Some(&facts.boot_id) {
                return broken("S2", format!("a permit for another boot of {name}"));
            }
            pods.first().and_then(|pod| broken("S3", format!("a permit while {} is on {name}", pod.uid)))
        }
        _ => None,
    }
}

/// Returns whether a node has been Ready with the new version for the soak, as its kubelet reports.
pub(super) fn is_soaked(state: &State, node: usize) -> bool {
    let runs = |facts: &NodeFacts| facts.ready && facts.os_version() == Some(NEW);
    let soaked = models::time::after(state.machine(node).ready_since, SOAK) <= state.now;
    soaked && facts(state, node).is_some_and(runs)
}

/// S12: a node has proven the version once it has been Ready with it for the soak. The withdrawal of its desired state records that in
/// an update: what happens to it from then on says nothing about the version.
fn proven(state: &State, node: usize, record: &models::shadow::Record) -> Option<Broken> {
    let now_proven = record.proof.as_ref().is_some_and(|proof| proof.proof == Proof::Proven && proof.version == NEW);
    if !now_proven || has_proven(state, node) {
        return None;
    }
    let good = state.machine(node).verified || is_soaked(state, node);
    if good { None } else { broken("S12", format!("{} counts as proven without its soak", NAMES[node])) }
}

/// Judges a decision by what the controller sees: it cannot know more.
pub(super) fn decision(state: &State, world: &World, controller: &Controller, write: &Write) -> Option<Broken> {
    if state.earlier_operator {
        return match &write.what {
            What::Operator(status) if status.slots == controller.operator.value.status.slots => None,
            _ => broken("S10", format!("{write} beside the earlier operator")),
        };
    }
    let (node, name) = (write.node, NAMES[write.node]);
    let policy = policy_index(controller);
    let failed = has_failed(controller);
    match &write.what {
        What::Operator(status) => {
            let before = &controller.operator.value.status.slots;
            let new = status.slots.iter().find(|slot| !before.iter().any(|old| old.node == slot.node))?;
            let seen = controller.seen.iter().filter_map(|seen| seen.node.as_ref());
            let claimed = seen.into_iter().any(|node| node.value.uid == new.uid && node.value.claimed());
            if claimed {
                return None;
            }
            if failed {
                return broken("S8", format!("{} is given a slot after the version has failed", new.node));
            }
            if policy == world.invalid {
                return broken("S13", format!("{} is given a slot under an invalid policy", new.node));
            }
            braked(state, world, controller, &new.node)
        }
        What::Action(Action::Status { status, .. }) => {
            let next = status.report.progress.as_ref()?;
            let shadow = &controller.seen[node].shadow.as_ref()?.value;
            let before = shadow.status.controller.progress.as_ref();
            let begins = before.is_none() && next.step == Step::Staging;
            let waited = before.is_some_and(|before| {
                matches!(before.step.place(), Place::Waiting) || before.step == Step::BeforeDrain
            });
            let drains = waited && next.step.place() == Place::Leaving;
            let leaves = drains && before.is_some_and(|before| before.step.place() == Place::Waiting);
            if (begins || leaves) && failed {
                return broken("S8", format!("{name} goes to {:?} after the version has failed", next.step));
            }
            if (begins || leaves) && policy == world.invalid {
                return broken("S13", format!("{name} goes to {:?} under an invalid policy", next.step));
            }
            if leaves && controller.seen[node].node.as_ref()?.value.cordoned_by_others() {
                return broken("S4", format!("{name} goes to {:?} although a user has cordoned it", next.step));
            }
            if leaves {
                let offered = shadow.status.agent.updates.as_ref().is_some_and(|updates| {
                    updates.chosen_version.as_ref() == Some(&next.version)
                        || updates.available_versions.contains(&next.version)
                });
                if !offered {
                    return broken("S7", format!("{name} is drained for a version that it is not offered"));
                }
            }
            if drains && next.step != Step::BeforeDrain {
                return hooks(world, controller, node, before?, next);
            }
            None
        }
        What::Permit(spec) => {
            let permitted = controller.seen[node].shadow.as_ref()?.value.spec.permit.is_some();
            if policy == world.excluding && !permitted && spec.version.as_ref() == Some(&NEW) {
                return broken("S13", format!("{name} is permitted to reboot into an excluded version"));
            }
            None
        }
        What::Evict(evictions) => {
            let seen = &controller.seen[node];
            let facts = &seen.node.as_ref()?.value;
            let observed = |uid: &str| seen.pods.value.iter().any(|pod| pod.uid == uid && pod.node == name);
            if !facts.claims.has(ClaimField::Cordon) {
                return broken("S6", format!("pods are evicted from {name}, which is not cordoned"));
            }
            let other = evictions.pods.iter().find(|eviction| !observed(&eviction.uid))?;
            broken("S6", format!("{} is evicted, which was not observed on {name}", other.uid))
        }
        _ => None,
    }
}

/// Returns whether a controller sees a failure that counts against the new version.
fn has_failed(controller: &Controller) -> bool {
    let shadows = controller.seen.iter().filter_map(|seen| seen.shadow.as_ref());
    let records = shadows.filter_map(|shadow| shadow.value.status.controller.record.as_ref());
    records
        .flat_map(|record| &record.version_failures)
        .any(|failure| failure.resolved_by.is_none() && failure.version == NEW)
}

/// S13: after as many updates in a row without a proof as policy allows, no slot is given for ten minutes.
fn braked(state: &State, world: &World, controller: &Controller, node: &str) -> Option<Broken> {
    let limit = world.bounds.brake?;
    let records = controller.seen.iter().filter_map(|seen| seen.shadow.as_ref()).filter_map(|shadow| {
        let record = shadow.value.status.controller.record.as_ref()?;
        Some((record.proof.as_ref().map(|proof| proof.proof), record.last.as_ref()?))
    });
    let records: Vec<_> = records.collect();
    let last_proven =
        records.iter().filter(|(proof, _)| *proof == Some(Proof::Proven)).map(|(_, last)| last.ended).max();
    let unproven = |proof: &Option<Proof>| matches!(proof, Some(Proof::Unproven | Proof::Failed));
    let row = records.iter().filter(|(proof, last)| unproven(proof) && last_proven.is_none_or(|at| at < last.ended));
    let row: Vec<_> = row.map(|(_, last)| last.ended).collect();
    let latest = row.iter().max()?;
    let pause = std::time::Duration::from_mins(10);
    if row.len() >= limit && state.now < models::time::after(*latest, pause) {
        return broken("S13", format!("{node} is given a slot {} updates without a proof in a row", row.len()));
    }
    None
}

/// S11: no drain begins before the hook has answered, or its time is over.
fn hooks(world: &World, controller: &Controller, node: usize, before: &Progress, next: &Progress) -> Option<Broken> {
    let timeout = world.bounds.hook?;
    let facts = &controller.seen[node].node.as_ref()?.value;
    let request = crate::hooks::request(before);
    let answered = request.is_some_and(|request| facts.hook_answers.get("slow") == Some(&request));
    let over = before.step == Step::BeforeDrain && next.since >= models::time::after(before.since, timeout);
    if answered || over { None } else { broken("S11", format!("the drain of {} begins without its hook", NAMES[node])) }
}

/// Judges a state in which nothing is left to do.
pub(super) fn rest(state: &State) -> Option<Broken> {
    let claimed = |node: &usize| facts(state, *node).is_some_and(|facts| facts.claimed() && !facts.held());
    if let Some(node) = (0..state.truth.len()).find(claimed) {
        return broken("L2", format!("nothing is left to do, and {} is still claimed", NAMES[node]));
    }
    let slots = &state.operator.value.status.slots;
    let slot = slots.iter().find(|_| state.machines.iter().all(|machine| gone_by(&machine.value).is_none()))?;
    broken("L2", format!("nothing is left to do, and {} keeps its slot", slot.node))
}
