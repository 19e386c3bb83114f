//! The decisions, as a function of what is known: for each node the next step, and for each entry of the record.
//!
//! ```text
//! BeforeDrain/…    record ──► EnterStandby ──► (Standby) ──► answer
//!                  record ──► SuspendProcesses ────────────► answer
//! AfterUpdate/…,   ExitStandby ──► (Pending, InService) ──► forget ──► answer
//! none, no Node    SetInstanceHealth, ResumeProcesses ────► forget ──► answer
//! host away        the same, without an answer
//! ```
//!
//! The kubelet of a Node can write the annotations of its own Node. So a request to prepare counts only with a slot of the operator for this
//! Node and attempt, while what takes back needs none. What is recorded outlasts the slot of a host that is not back from its reboot.
//!
//! Every step is decided on what there is and not on what was done before, so that one that was interrupted is taken up by
//! the next process. Nothing is done at AWS before it is recorded, and nothing is forgotten before it is taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::AwsMode;
use models::time::between;

use crate::facts::{Backing, Entry, Group, Instance, Node, Policy};

/// Time after its record in which something may be done at AWS. After it the record is renewed first, so that an entry is
/// removed only when no call is under way any more that could still do what it records.
const FRESH: Duration = Duration::from_secs(15);

/// The facts of one round.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    pub(crate) policy: Policy,
    /// The Nodes, by name.
    pub(crate) nodes: &'a BTreeMap<String, Node>,
    /// Names of the Nodes that cannot be read.
    pub(crate) unreadable: &'a BTreeSet<String>,
    /// The record, by instance.
    pub(crate) record: &'a BTreeMap<String, Entry>,
    /// Instances that AWS was asked about; `None` is one without a group.
    pub(crate) instances: &'a BTreeMap<String, Option<Instance>>,
    /// Groups that AWS was asked about; `None` is one that does not exist.
    pub(crate) groups: &'a BTreeMap<String, Option<Group>>,
    /// Keys of [`Call::key`] with a call under way, a pause after one that failed, or one that AWS may not show yet.
    pub(crate) held: &'a BTreeSet<String>,
    /// Those of them that an ExitStandby holds: AWS may still show their instances in Standby.
    pub(crate) leaving: &'a BTreeSet<String>,
    /// Number of calls that may begin.
    pub(crate) free: usize,
    /// Instances that stay unhealthy although they were set healthy, or that AWS refuses to set healthy.
    pub(crate) given_up: &'a BTreeSet<String>,
    /// Time after which AWS shows what was changed.
    pub(crate) settle: Duration,
    pub(crate) now: Timestamp,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sets or removes the answer of a node. The note says why, where nothing was done, or it is refused.
    Answer { node: String, text: Option<String>, note: Option<String> },
    /// Sets or removes an entry of the record.
    Record { instance: String, entry: Option<Entry> },
    /// Calls AWS.
    Call(Call),
}

impl Action {
    /// The entry that is set.
    fn recorded(&self) -> Option<&Entry> {
        match self {
            Self::Record { entry, .. } => entry.as_ref(),
            _ => None,
        }
    }
}

/// A call of AWS that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    EnterStandby {
        group: String,
        instance: String,
        node: String,
    },
    ExitStandby {
        group: String,
        instance: String,
    },
    /// Suspends ReplaceUnhealthy for these nodes. Idempotent, so it is called whatever the group seems to be.
    Suspend {
        group: String,
        nodes: Vec<String>,
    },
    /// Resumes ReplaceUnhealthy; the instances are forgotten once AWS shows that.
    Resume {
        group: String,
        instances: Vec<String>,
    },
    /// Sets an instance healthy that was marked unhealthy by its reboot: it never recovers by itself.
    SetHealthy {
        instance: String,
    },
}

impl Call {
    /// The instance or the group that no other call concerns at the same time.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::EnterStandby { instance, .. }
            | Self::ExitStandby { instance, .. }
            | Self::SetHealthy { instance } => instance,
            Self::Suspend { group, .. } | Self::Resume { group, .. } => group,
        }
    }
}

/// The call as the log names it.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnterStandby { group, instance, node } => {
                write!(f, "EnterStandby of instance {instance} (node {node}) in Auto Scaling group {group}")
            }
            Self::ExitStandby { group, instance } => {
                write!(f, "ExitStandby of instance {instance} in Auto Scaling group {group}")
            }
            Self::Suspend { group, nodes } => {
                let nodes = nodes.join(", ");
                write!(f, "SuspendProcesses (ReplaceUnhealthy) of Auto Scaling group {group} for {nodes}")
            }
            Self::Resume { group, instances } => {
                let instances = instances.join(", ");
                write!(f, "ResumeProcesses (ReplaceUnhealthy) of Auto Scaling group {group} for {instances}")
            }
            Self::SetHealthy { instance } => write!(f, "SetInstanceHealth (Healthy) of instance {instance}"),
        }
    }
}

/// Returns the instances that AWS has to be asked about.
pub(crate) fn instances_to_read(
    policy: Policy,
    (nodes, unreadable): (&BTreeMap<String, Node>, &BTreeSet<String>),
    record: &BTreeMap<String, Entry>,
    now: Timestamp,
) -> Vec<String> {
    let open = |node: &&Node| node.prepares().is_some() && !node.is_answered();
    let entering = nodes.values().filter(open).filter_map(|node| node.instance.as_ref().ok());
    let entering = entering.filter(|id| policy.mode.is_some() || record.contains_key(*id));
    let kept = kept(policy, (nodes, unreadable), record, now);
    let leaving = record.keys().filter(|id| !kept.contains(id.as_str()));
    let all: BTreeSet<&String> = entering.chain(leaving).collect();
    all.into_iter().cloned().collect()
}

/// The recorded instances for which what was done has to stay. A request without a slot keeps that of its own Node alone: any Node can name
/// the instance of another. That of a Node that cannot be read stays, since its update may be under way.
fn kept<'a>(
    policy: Policy,
    (nodes, unreadable): (&BTreeMap<String, Node>, &BTreeSet<String>),
    record: &'a BTreeMap<String, Entry>,
    now: Timestamp,
) -> BTreeSet<&'a str> {
    let keeps = |node: &&Node| node.prepared().is_some() && !node.is_refused() && !node.is_lost(policy, now);
    let of_requests = nodes.values().filter(keeps).filter_map(|node| {
        let (id, entry) = record.get_key_value(node.instance.as_ref().ok()?)?;
        (node.backing == Backing::Slot || node.name == entry.node).then_some(id.as_str())
    });
    let unread = record.iter().filter(|(_, entry)| unreadable.contains(&entry.node)).map(|(id, _)| id.as_str());
    of_requests.chain(unread).collect()
}

/// Returns what is to be done now.
pub(crate) fn decide(s: &Snapshot) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut suspended: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in s.nodes.values() {
        if let Some(request) = node.prepares() {
            if !node.is_answered() && !node.is_lost(s.policy, s.now) {
                let recorded: Vec<&Entry> = actions.iter().filter_map(Action::recorded).collect();
                match enter(s, node, request, &recorded) {
                    Some(Action::Call(Call::Suspend { group, nodes })) => {
                        suspended.entry(group).or_default().extend(nodes);
                    }
                    step => actions.extend(step),
                }
            }
        } else if !node.is_before_drain()
            && !node.is_answered()
            && !node.instance.as_ref().is_ok_and(|id| s.record.contains_key(id))
        {
            actions.push(Action::Answer { node: node.name.clone(), text: node.request.clone(), note: None });
        }
    }
    actions.extend(suspended.into_iter().map(|(group, nodes)| Action::Call(Call::Suspend { group, nodes })));
    let kept = kept(s.policy, (s.nodes, s.unreadable), s.record, s.now);
    let (kept, leaving): (BTreeMap<_, _>, BTreeMap<_, _>) =
        s.record.iter().partition(|(id, _)| kept.contains(id.as_str()));
    let mut groups: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for (id, entry) in leaving {
        match entry.mode {
            AwsMode::Standby => actions.extend(exit_standby(s, id, entry)),
            AwsMode::SuspendReplaceUnhealthy => groups.entry(&entry.group).or_default().push(id),
        }
    }
    for (group, ids) in groups {
        let suspended = |entry: &&&Entry| entry.mode == AwsMode::SuspendReplaceUnhealthy && entry.group == group;
        actions.extend(resume(s, group, &ids, kept.values().any(|entry| suspended(&entry))));
    }
    let mut free = s.free;
    actions.retain(|action| {
        let fits = free > 0 || !matches!(action, Action::Call(_));
        free -= usize::from(fits && matches!(action, Action::Call(_)));
        fits
    });
    actions
}

/// The next step of a node whose drain is to be prepared. `recorded`: the entries that this round sets for others.
fn enter(s: &Snapshot, node: &Node, request: &str, recorded: &[&Entry]) -> Option<Action> {
    let answer = |text: String, note: String| {
        Some(Action::Answer { node: node.name.clone(), text: Some(text), note: Some(note) })
    };
    let done = |note: String| answer(request.to_owned(), note);
    let refuse = |why: String| answer(format!("{request} Refused: {why}"), why);
    let id = match &node.instance {
        Ok(id) => id,
        Err(why) => return s.policy.mode.and_then(|_| done(format!("no Auto Scaling group has to be kept: {why}"))),
    };
    let entry = s.record.get(id);
    // Without a mode it waits: the controller may have seen a policy that this program has not seen yet.
    let mode = entry.map(|entry| entry.mode).or(s.policy.mode)?;
    let claimants: Vec<&str> =
        s.nodes.values().filter(|of| of.instance.as_ref() == Ok(id)).map(|of| of.name.as_str()).collect();
    if claimants.len() > 1 {
        return refuse(format!(
            "the Nodes {} all name instance {id} in spec.providerID, which is the machine of one of them: delete those that it is not",
            claimants.join(", ")
        ));
    }
    let Some(instance) = s.instances.get(id)? else {
        return done(format!(
            "instance {id} is in no Auto Scaling group (as with Karpenter): there is nothing to keep"
        ));
    };
    let group = instance.group.clone();
    let record = |group: String| {
        let entry = Entry { group, mode, node: node.name.clone(), since: s.now };
        Some(Action::Record { instance: id.clone(), entry: Some(entry) })
    };
    let held = |key: &str| s.held.contains(key);
    let is_stale = |entry: &Entry| between(entry.since, s.now) > FRESH;
    let wrong = || {
        let state = &instance.state;
        refuse(format!("instance {id} of Auto Scaling group {group} is {state}: such an instance is not updated"))
    };
    match (mode, instance.state.as_str(), entry) {
        (AwsMode::Standby, "InService", None) => match room(s, &group, recorded)? {
            Ok(()) => record(group),
            Err(why) => refuse(why),
        },
        (AwsMode::Standby, "InService", Some(_)) if held(id) => None,
        (AwsMode::Standby, "InService", Some(entry)) if is_stale(entry) => record(group),
        (AwsMode::Standby, "InService", Some(_)) => {
            Some(Action::Call(Call::EnterStandby { group, instance: id.clone(), node: node.name.clone() }))
        }
        (AwsMode::Standby, "Standby", _) if s.leaving.contains(id) => None,
        (AwsMode::Standby, "Standby", None) => {
            done(format!("instance {id} of Auto Scaling group {group} was in Standby before: it stays there"))
        }
        (AwsMode::Standby, "Standby", Some(_)) => {
            done(format!("instance {id} of Auto Scaling group {group} is in Standby until the update ends"))
        }
        // Put there by another client, or still on the way back from the last update.
        (AwsMode::Standby, "EnteringStandby" | "Pending" | "Pending:Wait" | "Pending:Proceed", _) => None,
        (AwsMode::Standby, ..) => wrong(),
        (AwsMode::SuspendReplaceUnhealthy, state, _) if is_leaving(state) => wrong(),
        (AwsMode::SuspendReplaceUnhealthy, ..) if held(&group) => None,
        (AwsMode::SuspendReplaceUnhealthy, _, None) => {
            let ours = s.record.values().any(|entry| entry.mode == mode && entry.group == group);
            if s.groups.get(&group)?.as_ref()?.suspended && !ours {
                return done(format!(
                    "ReplaceUnhealthy of Auto Scaling group {group} was suspended before: it stays so"
                ));
            }
            record(group)
        }
        (AwsMode::SuspendReplaceUnhealthy, _, Some(entry)) if is_stale(entry) => record(group),
        (AwsMode::SuspendReplaceUnhealthy, _, Some(entry)) => {
            Some(Action::Call(Call::Suspend { group: entry.group.clone(), nodes: vec![node.name.clone()] }))
        }
    }
}

/// Returns whether one more instance of a group may enter Standby, or why it never may; `None` while that is not known, or before another
/// node of the group is back.
fn room(s: &Snapshot, group: &str, recorded: &[&Entry]) -> Option<Result<(), String>> {
    let Group { min, desired, balanced_zones, .. } = s.groups.get(group)?.as_ref()?;
    if *balanced_zones > 1 {
        return Some(Err(format!(
            "Auto Scaling group {group} keeps its {balanced_zones} zones equal, and would launch and terminate \
             others while one is in Standby: run `aws autoscaling suspend-processes \
             --auto-scaling-group-name {group} --scaling-processes AZRebalance`, or set \
             spec.autoscaling.aws.mode to SuspendReplaceUnhealthy"
        )));
    }
    let is_other = |entry: &Entry| entry.mode == AwsMode::Standby && entry.group == group;
    let others = s.record.iter().filter(|(_, entry)| is_other(entry));
    let recorded = recorded.iter().filter(|entry| is_other(entry)).count();
    // The desired capacity that AWS shows does not yet lack these.
    let entering = recorded + others.clone().filter(|(id, _)| is_in_service(s, id)).count();
    if desired.saturating_sub(i32::try_from(entering).unwrap_or(i32::MAX)) > *min {
        return Some(Ok(()));
    }
    let is_only = recorded + others.count() == 0;
    is_only.then(|| {
        Err(format!(
            "Auto Scaling group {group} has the desired capacity {desired} and the minimum {min}, and Standby \
             would take one from it: lower the minimum, or set spec.autoscaling.aws.mode to \
             SuspendReplaceUnhealthy"
        ))
    })
}

/// Returns whether an instance in this state is on its way out of its group, for good: also `Terminating:Wait`, for the lifecycle hooks of
/// the group.
fn is_leaving(state: &str) -> bool {
    state.starts_with("Terminat") || state.starts_with("Detach")
}

fn is_in_service(s: &Snapshot, id: &str) -> bool {
    s.instances.get(id).and_then(Option::as_ref).is_some_and(|instance| instance.state == "InService")
}

/// The next step of an instance that is to be in service again.
fn exit_standby(s: &Snapshot, id: &str, entry: &Entry) -> Option<Action> {
    let state = match s.instances.get(id)? {
        // Terminated, or detached.
        None => "",
        Some(instance) => instance.state.as_str(),
    };
    match state {
        _ if s.held.contains(id) && !s.leaving.contains(id) => None,
        "Standby" if s.leaving.contains(id) => None,
        "Standby" => Some(Action::Call(Call::ExitStandby { group: entry.group.clone(), instance: id.to_owned() })),
        "EnteringStandby" | "Pending" | "Pending:Wait" | "Pending:Proceed" => None,
        // It may still be on the way into Standby.
        "InService" if between(entry.since, s.now) < s.settle => None,
        _ => Some(Action::Record { instance: id.to_owned(), entry: None }),
    }
}

/// The next steps of a group of which these instances are back. `others`: further ones of it are still updated.
fn resume(s: &Snapshot, group: &str, ids: &[&String], others: bool) -> Vec<Action> {
    // Only a node that is Ready is healthy for certain. Any other is replaced as soon as the process is resumed, as it is
    // without this program.
    let ready = |id: &String| s.nodes.values().any(|node| node.ready && node.instance.as_ref() == Ok(id));
    let is_unhealthy = |id: &String| s.instances.get(id).and_then(Option::as_ref).is_some_and(|found| found.unhealthy);
    let (awaited, back): (Vec<&String>, Vec<&String>) = ids.iter().partition(|id| match s.instances.get(**id) {
        None => true,
        Some(None) => false,
        Some(Some(found)) => ready(id) && (s.held.contains(**id) || found.unhealthy && !s.given_up.contains(**id)),
    });
    let to_heal = awaited.iter().filter(|id| is_unhealthy(id) && !s.held.contains(**id));
    let mut actions: Vec<Action> =
        to_heal.map(|id| Action::Call(Call::SetHealthy { instance: (*id).clone() })).collect();
    if s.held.contains(group) {
        return actions;
    }
    let settled = |id: &&String| s.record.get(*id).is_none_or(|entry| between(entry.since, s.now) >= s.settle);
    // An entry is enough to resume the process, so those of healthy instances do not wait for the others.
    let is_over = others
        || !awaited.is_empty()
        || match s.groups.get(group) {
            None => return actions,
            // It was deleted.
            Some(None) => true,
            // Resumed, by this program or another client, or it could not be suspended.
            Some(Some(group)) => !group.suspended && back.iter().all(settled),
        };
    if is_over {
        actions.extend(back.into_iter().map(|id| Action::Record { instance: id.clone(), entry: None }));
    } else {
        let instances = back.into_iter().cloned().collect();
        actions.push(Action::Call(Call::Resume { group: group.to_owned(), instances }));
    }
    actions
}

#[cfg(test)]
#[path = "decide_cases.rs"]
mod cases;
