//! One phase: a row of [`PHASES`](super::PHASES), and the outcomes of its `decide`.

use std::ops::Deref;

use jiff::Timestamp;
use models::condition::ConditionStatus;
use models::reason::FailureReason;
use models::shadow::{ControllerStatus, HEALTHY, Mode, Place, Progress, Step};
use models::time::after;

use crate::decision::{Action, Decision, Note};
use crate::policy::{Hook, HookWait};
use crate::survey::NodeContext;
use crate::wait::Wait;

use super::status::unblock;

/// A text that may depend on what the attempt is made for.
pub(super) type Text = fn(Mode) -> &'static str;

/// One step of an attempt: everything that others ask about it, and its decisions.
pub struct Phase {
    pub step: Step,
    /// Returns whether an attempt of this kind has the step.
    pub of: fn(Mode) -> bool,
    /// The record that has to back the step.
    pub backing: Backing,
    /// The fields that are claimed on the node.
    pub claims: Claims,
    /// The hooks that are awaited in it.
    pub hooks: Option<Awaited>,
    /// The sentence that is true once it is over.
    pub holds: Text,
    /// The thing that it waits for, for users.
    pub awaits: Text,
    /// The end of its time, for users.
    pub late: Text,
    /// The log line at its beginning.
    pub log: Text,
    /// Returns when it is given up; `None` where it has no time limit.
    pub(crate) deadline: fn(&Attempt<'_>) -> Option<Timestamp>,
    /// Decides what is next.
    pub(crate) decide: fn(&Attempt<'_>) -> Turn,
}

/// A record that the controller makes before a step: without it, the attempt is not the controller's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: nothing is disrupted, or nothing any more.
    Nothing,
    /// A slot or a claim.
    SlotOrClaim,
    /// A slot, where there is a resource that holds slots: after the reboot there may be no claim.
    Slot,
    /// The same, until the desired state is withdrawn: then the version that runs is enough.
    SlotUntilVerified,
}

/// Fields that are claimed on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    Nothing,
    /// All but the place in load balancers: connections go on.
    KeepsConnections,
    Everything,
}

/// Returns how long a hook is awaited; `None` if it is not.
pub(super) type Awaited = fn(&Hook) -> Option<HookWait>;

/// An attempt of a node.
pub(crate) struct Attempt<'a> {
    pub(super) of: &'a NodeContext<'a>,
    pub(super) progress: &'a Progress,
    pub(super) phase: &'static Phase,
}

impl<'a> Deref for Attempt<'a> {
    type Target = NodeContext<'a>;

    fn deref(&self) -> &NodeContext<'a> {
        self.of
    }
}

impl Attempt<'_> {
    pub(super) fn mode(&self) -> Mode {
        self.progress.mode()
    }

    /// Goes on to another step, with a change of the status in the same write.
    pub(super) fn next(&self, step: Step, change: impl FnOnce(&mut ControllerStatus)) -> Turn {
        self.next_with(step, self.progress.clone(), change)
    }

    /// The same, and keeps the boot in which the last step began: it shows that the node is in another one.
    pub(super) fn next_keeping_boot(&self, step: Step, progress: Progress) -> Turn {
        self.next_with(step, progress, |status| {
            if let Some(progress) = &mut status.report.progress {
                progress.boot_id.clone_from(&self.progress.boot_id);
            }
        })
    }

    /// Goes on to another step, with a change of the record of the attempt too.
    pub(super) fn next_with(&self, step: Step, progress: Progress, change: impl FnOnce(&mut ControllerStatus)) -> Turn {
        let mut status = self.controller_status();
        let (since, boot_id) = (self.now, self.facts().boot_id.clone());
        // The findings after the previous update do not apply to this boot.
        let booted = matches!(step.place(), Place::Booted | Place::Back) && step.place() != self.progress.step.place();
        if booted && !self.mode().is_drill() {
            let message = format!("the node was rebooted for {} and is being verified", progress.version);
            self.set_condition(&mut status, HEALTHY, ConditionStatus::Unknown, "Verifying", &message);
        }
        status.report.progress = Some(Progress { step, since, boot_id, ..progress });
        unblock(&mut status);
        change(&mut status);
        Turn::of(Outcome::Next(Box::new(status), None))
    }
}

/// The decision of a phase.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The step goes on.
    Stay(Wait),
    /// The step goes on with this write or live read.
    Do(Action),
    /// The node waits for its slot, and nothing else.
    WantsSlot,
    /// Another step, in this status.
    Next(Box<ControllerStatus>, Option<Note>),
    /// The attempt has failed, or is withdrawn.
    Fail(FailureReason, String),
    /// A check refuses the node, which is not out of service yet, or not for long.
    Refuse(Wait),
    /// The attempt went through.
    Pass(Option<Note>),
}

/// The decision of a phase, with the pods to evict, the expressions to query and the time to decide again.
pub(crate) type Turn = Decision<Outcome>;

/// Returns when the verification of a node has begun: a second boot in it begins none.
pub(super) fn begun(ctx: &Attempt<'_>) -> Timestamp {
    ctx.progress.verifying_since.unwrap_or(ctx.progress.since)
}

/// Returns when the soak of a node that stays well is over. It begins again once the node is Ready again, also where no leader has seen that it
/// was not. The clock of a kubelet may be ahead.
pub(super) fn soaked(ctx: &Attempt<'_>) -> Timestamp {
    let (since, ready_since) = (ctx.progress.since, ctx.facts().ready_since.filter(|since| *since <= ctx.now));
    after(ready_since.map_or(since, |ready_since| ready_since.max(since)), ctx.group().after.soak)
}

pub(super) fn stay(wait: Wait) -> Turn {
    Turn::of(Outcome::Stay(wait))
}

pub(super) fn act(action: Action) -> Turn {
    Turn::of(Outcome::Do(action))
}

pub(super) fn fail(reason: FailureReason, message: impl Into<String>) -> Turn {
    Turn::of(Outcome::Fail(reason, message.into()))
}

impl Turn {
    /// Adds an Event to the change of the step.
    pub(super) fn noting(self, note: Option<Note>) -> Self {
        self.map(|outcome| match outcome {
            Outcome::Next(status, None) => Outcome::Next(status, note),
            Outcome::Next(status, Some(own)) => Outcome::Next(status, Some(own.with(note))),
            outcome => outcome,
        })
    }
}
