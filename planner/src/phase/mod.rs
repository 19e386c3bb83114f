//! The phases of an attempt, as data: [`PHASES`] has one row for each step, with what everyone else asks about it, and its
//! `decide`, from the node with a slot to be given to its release. `docs/decisions/phases-as-data.md` says why.
//!
//! A phase decides by what it reads, and names the next one; none calls another. What several of them need is in files of its
//! own below them: the claim, the pods of a drain, the health after it, the desired state, the result. A drill is a mode of the
//! same phases ([`Mode`]), and so is the repeated verification of a node that has not proven its version. A node without an attempt is in `idle`.

mod after_update;
mod before_drain;
mod blockers;
mod boot;
mod claim;
mod comparison;
mod desired;
mod down;
mod drained;
mod draining;
mod drill;
mod drill_request;
mod dry_run;
mod end;
mod health;
mod hooks;
mod idle;
mod lease;
mod leaving_load_balancer;
mod overdue;
mod permits;
mod rebooting;
mod releasing;
mod requests;
mod result;
mod row;
mod staged;
mod staging;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod unhealthy;
mod usable;
mod verification;
mod verifying;
mod waiting;
mod workloads;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{HostState, Mode, Place, Progress, Step};

use self::row::{Attempt, Outcome};
use crate::decision::{Action, Decision, Verdict};
use crate::survey::NodeContext;
use crate::wait::Wait;

pub use self::drained::LISTED_PODS;
pub(crate) use self::idle::begin;
pub use self::row::{Backing, Claims, Phase};
pub(crate) use self::status::{failing, waiting_in_turn, with_failing_action};

/// The end of the time of a step that awaits hooks.
const HOOK_LATE: &str = "the last hook is no longer waited for, as its onTimeout says";

/// The end of the time of a drain. A drill deletes no pod past its budget.
const fn drain_late(mode: Mode) -> &'static str {
    match mode {
        Mode::Update => {
            "the drain ends: what is left is deleted, or the node is released, as spec.drain.atDeadline says"
        }
        Mode::Drill { .. } | Mode::Verification => "the drain ends, and with it the drill",
    }
}

/// The steps that take a node to a version, or rehearse that. A verification has none of them.
const LEADS_TO_VERSION: fn(Mode) -> bool = |mode| !mode.is_verification();

/// All phases, in the order in which an attempt passes them.
pub const PHASES: &[Phase] = &[
    Phase {
        step: Step::Staging,
        of: LEADS_TO_VERSION,
        backing: Backing::Nothing,
        claims: Claims::Nothing,
        hooks: None,
        holds: |mode| match mode {
            Mode::Update | Mode::Verification => "the host has staged the image",
            Mode::Drill { .. } => "the agent has taken on the drill, and the host has the image that it downloads",
        },
        awaits: |mode| match mode {
            Mode::Update | Mode::Verification | Mode::Drill { download: true, .. } => "the host downloads the image",
            Mode::Drill { .. } => "the agent takes on the drill",
        },
        late: |_| "the step Staging is given up, and the attempt fails",
        log: |_| "image to be staged again",
        deadline: waiting::given_up_at,
        decide: staging::decide,
    },
    Phase {
        step: Step::Staged,
        of: LEADS_TO_VERSION,
        backing: Backing::Nothing,
        claims: Claims::Nothing,
        hooks: None,
        holds: |_| "the node has a slot",
        awaits: |_| "its slot",
        late: |_| "it has no time limit",
        log: |mode| if mode.is_drill() { "drill waits for a slot" } else { "image staged" },
        deadline: |_| None,
        decide: staged::decide,
    },
    Phase {
        step: Step::BeforeDrain,
        of: LEADS_TO_VERSION,
        backing: Backing::SlotOrClaim,
        claims: Claims::KeepsConnections,
        hooks: Some(hooks::BEFORE_DRAIN),
        holds: |_| "hooks have answered",
        awaits: |_| "the answers of hooks",
        late: |_| HOOK_LATE,
        log: |mode| {
            if mode.is_drill() { "hooks awaited before the drain of a drill" } else { "hooks awaited before the drain" }
        },
        deadline: hooks::deadline,
        decide: before_drain::decide,
    },
    Phase {
        step: Step::LeavingLoadBalancer,
        of: LEADS_TO_VERSION,
        backing: Backing::SlotOrClaim,
        claims: Claims::Everything,
        hooks: None,
        holds: |_| "the node has left external load balancers",
        awaits: |_| "the node leaves its load balancers",
        late: |_| "the step LeavingLoadBalancer is given up, and the attempt fails",
        log: |mode| if mode.is_drill() { "leaving load balancers in a drill" } else { "leaving load balancers" },
        deadline: |ctx| Some(leaving_load_balancer::deadline(ctx)),
        decide: leaving_load_balancer::decide,
    },
    Phase {
        step: Step::Draining,
        of: LEADS_TO_VERSION,
        backing: Backing::SlotOrClaim,
        claims: Claims::Everything,
        hooks: None,
        holds: |mode| {
            if mode.is_dry() {
                "the API server has answered for each pod whether it may be evicted"
            } else {
                "the pods have left the node"
            }
        },
        awaits: |mode| {
            if mode.is_dry() {
                "the API server is asked about its pods"
            } else {
                "its pods leave, within their budgets"
            }
        },
        late: drain_late,
        log: |mode| match mode {
            Mode::Update | Mode::Verification => "drain started",
            Mode::Drill { evict: true, .. } => "drain started in a drill",
            Mode::Drill { .. } => "dry run of the drain started",
        },
        deadline: |ctx| Some(drained::ends_by(ctx)),
        decide: draining::decide,
    },
    Phase {
        step: Step::Rebooting,
        of: LEADS_TO_VERSION,
        backing: Backing::SlotOrClaim,
        claims: Claims::Everything,
        hooks: None,
        holds: |mode| match mode {
            Mode::Update | Mode::Verification => "the host has armed the image and rebooted",
            Mode::Drill { .. } => "the agent has verified a rehearsal permit",
        },
        awaits: |mode| match mode {
            Mode::Update | Mode::Verification => "the host arms the image and reboots, with a permit",
            Mode::Drill { .. } => "the agent requests and verifies a rehearsal permit",
        },
        late: |_| "the step Rebooting is given up, and the attempt fails",
        log: |mode| match mode {
            Mode::Update | Mode::Verification => "node drained",
            Mode::Drill { evict: true, .. } => "node drained in a drill",
            Mode::Drill { .. } => "dry run of the drain is over",
        },
        deadline: |ctx| Some(rebooting::deadline(ctx)),
        decide: rebooting::decide,
    },
    Phase {
        step: Step::Returning,
        of: |mode| mode == Mode::Update,
        backing: Backing::Slot,
        claims: Claims::Everything,
        hooks: None,
        holds: |_| "the node is Ready on the new version",
        awaits: |_| "the node becomes Ready",
        late: |_| "the step Returning is given up, and the attempt fails",
        log: |_| "node rebooted: waiting for it to be Ready",
        deadline: |ctx| Some(boot::deadline(ctx)),
        decide: boot::after_reboot,
    },
    Phase {
        step: Step::Verifying,
        of: |_| true,
        backing: Backing::SlotUntilVerified,
        claims: Claims::Nothing,
        hooks: None,
        holds: |_| "the node has stayed healthy for the soak",
        awaits: |_| "the end of its verification",
        late: |_| "the verification ends with what is known then",
        log: |mode| match mode {
            Mode::Update => "verification started",
            Mode::Drill { .. } => "rehearsal permit verified: node back in service, soak started",
            Mode::Verification => "node that has not proven its version is verified again",
        },
        deadline: |ctx| Some(health::deadline(ctx)),
        decide: verifying::decide,
    },
    Phase {
        step: Step::AfterUpdate,
        of: |_| true,
        backing: Backing::SlotUntilVerified,
        claims: Claims::Nothing,
        hooks: Some(hooks::AFTER_UPDATE),
        holds: |_| "hooks have answered",
        awaits: |_| "the answers of hooks",
        late: |_| HOOK_LATE,
        log: |mode| match mode {
            Mode::Update => "hooks awaited after the update",
            Mode::Drill { .. } => "hooks awaited after a drill",
            Mode::Verification => "hooks awaited after a verification",
        },
        deadline: hooks::deadline,
        decide: after_update::decide,
    },
    Phase {
        step: Step::Releasing,
        of: |_| true,
        backing: Backing::Nothing,
        claims: Claims::Nothing,
        hooks: None,
        holds: |_| "the node is released after its attempt",
        awaits: |_| "the node is released",
        late: |_| "it has no time limit",
        log: |_| "attempt ended",
        deadline: |_| None,
        decide: releasing::decide,
    },
];

impl Phase {
    /// The phase in which an attempt ends that does not go through.
    pub const ENDING: &'static Self = &PHASES[PHASES.len() - 1];

    /// Returns the phase of a step; `None` for one of another version of the controller.
    pub fn of_step(step: Step) -> Option<&'static Self> {
        PHASES.iter().find(|phase| phase.step == step)
    }

    /// Returns the phases of an attempt, in their order, without the one that ends it early.
    pub fn path(mode: Mode) -> impl Iterator<Item = &'static Self> {
        PHASES.iter().filter(move |phase| (phase.of)(mode) && phase.step.place() != Place::Over)
    }
}

/// Decides the next step of a node.
pub(crate) fn decide(ctx: &NodeContext<'_>) -> Decision {
    let progress = ctx.node.progress();
    let phase = progress.and_then(|progress| Phase::of_step(progress.step));
    let attempt = progress.map(|progress| Attempt { of: ctx, progress, phase: phase.unwrap_or(Phase::ENDING) });
    // Before any request: its answer would be a write with the forged attempt in it.
    if let Some(attempt) = attempt.as_ref().filter(|attempt| is_unbacked(attempt, phase)) {
        return end_unbacked(attempt);
    }
    let request = requests::resume(ctx).or_else(|| requests::retry(ctx)).or_else(|| requests::misunderstood(ctx));
    if let Some(action) = request {
        return Decision::act(action);
    }
    let releasing = progress.is_some_and(|progress| progress.step == Step::Releasing);
    if ctx.shadow.pending_release().is_some() {
        return match attempt.filter(|_| !releasing) {
            Some(attempt) => {
                let message = "a user requested the release of the node";
                Decision::act(end::failed(&attempt, FailureReason::ReleaseRequested, message))
            }
            None => {
                drill_request::release_request(ctx).unwrap_or_else(|| Decision::act(requests::nothing_to_release(ctx)))
            }
        };
    }
    let Some(attempt) = attempt else { return without_attempt(ctx) };
    // Pods are watched from the drain to the end of the verification without a break, so that they are listed once before the reboot.
    let watches = !matches!(attempt.phase.step.place(), Place::Waiting | Place::Over);
    let watching = |decision: Decision| if watches { decision.watching_pods() } else { decision };
    if let Some(action) = desired::signed_again(&attempt) {
        return watching(Decision::act(action));
    }
    if !phase.is_some_and(|phase| (phase.of)(attempt.mode())) {
        // Releasing the node is safe after any step: the release waits for a permit that was issued.
        let message = "its step is one of another version of the controller, or of no attempt of this kind";
        return Decision::act(end::failed(&attempt, FailureReason::ProgressLost, message));
    }
    let decision = watching((attempt.phase.decide)(&attempt).map(|outcome| conclude(&attempt, outcome)));
    status::with_blocked_condition(ctx, hooks::with_request(&attempt, decision))
}

/// Returns the verdict that follows from the outcome of a phase.
fn conclude(ctx: &Attempt<'_>, outcome: Outcome) -> Verdict {
    Verdict::Act(match outcome {
        Outcome::Stay(wait) => return Verdict::Wait(wait),
        Outcome::WantsSlot => return Verdict::WantsSlot,
        // Nothing is disrupted so far: the node waits.
        Outcome::Refuse(wait) if !ctx.mode().is_drill() && ctx.phase.step.place() == Place::Waiting => {
            return staged_waiting(ctx, wait);
        }
        Outcome::Refuse(wait) => end::refused(ctx, &wait),
        Outcome::Do(action) => action,
        Outcome::Next(status, note) => Action::Status { status, note },
        Outcome::Fail(reason, message) => end::failed(ctx, reason, &message),
        Outcome::Pass(note) => end::passed(ctx, note),
    })
}

/// A node that has its image waits, which its step says.
fn staged_waiting(ctx: &Attempt<'_>, wait: Wait) -> Verdict {
    if ctx.phase.step == Step::Staged {
        return Verdict::Wait(wait);
    }
    ctx.next(Step::Staged, |_| {}).map(|outcome| conclude(ctx, outcome)).verdict
}

/// Decides about a node without an attempt.
fn without_attempt(ctx: &NodeContext<'_>) -> Decision {
    match idle::lost(ctx) {
        Some(progress) => {
            let attempt = Attempt { of: ctx, progress: &progress, phase: Phase::ENDING };
            Decision::act(end::failed(&attempt, FailureReason::ProgressLost, "the record of this attempt is gone"))
        }
        None => idle::continued(ctx).unwrap_or_else(|| idle::decide(ctx)),
    }
}

/// Records the reason why a staged node waits, once. The findings of the last check stay until the next one:
/// `checked` is true if this was one.
pub(crate) fn waiting_staged(ctx: &NodeContext<'_>, progress: &Progress, wait: Wait, checked: bool) -> Decision {
    let attempt = Attempt { of: ctx, progress, phase: Phase::of_step(progress.step).unwrap_or(Phase::ENDING) };
    if attempt.mode().is_drill() && checked && wait.reason().is_check_finding() {
        return Decision::act(end::refused(&attempt, &wait));
    }
    match staged_waiting(&attempt, wait) {
        Verdict::Wait(wait) if !checked => waiting_in_turn(ctx, wait),
        verdict => status::with_blocked_condition(ctx, Decision::of(verdict)),
    }
}

/// Returns when the step under way is given up; `None` where it has no time limit.
pub(crate) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Timestamp> {
    let phase = Phase::of_step(progress.step)?;
    (phase.deadline)(&Attempt { of: ctx, progress, phase })
}

/// Returns whether a step that disrupts the node has neither a slot nor a claim, which the controller records
/// before it. Without the operator's resource there are no slots, and after the reboot no claim either: then the
/// desired state of the shadow decides, and once that is withdrawn, its attempt and the version that runs.
fn is_unbacked(ctx: &Attempt<'_>, phase: Option<&Phase>) -> bool {
    let spec = &ctx.shadow.spec;
    let of_attempt = spec.attempt == ctx.progress.attempt;
    let verified = spec.state == HostState::Idle
        && match ctx.mode() {
            Mode::Update => of_attempt && ctx.runs_target(ctx.progress),
            Mode::Drill { .. } => of_attempt,
            // It never had a desired state.
            Mode::Verification => true,
        };
    let needs_either = match phase.map_or(Backing::SlotOrClaim, |phase| phase.backing) {
        Backing::Nothing => false,
        Backing::SlotOrClaim => true,
        Backing::Slot => ctx.view.operator.is_some(),
        Backing::SlotUntilVerified => ctx.view.operator.is_some() && !verified,
    };
    needs_either && !ctx.slot && !ctx.facts().claimed() && !ctx.node.has_rebooted_as_desired()
}

/// Ends an attempt that is not the controller's own: it counts against the budget only if its host may still
/// act on a permit.
fn end_unbacked(ctx: &Attempt<'_>) -> Decision {
    let progress = Progress { disruptive: result::may_reboot(ctx), ..ctx.progress.clone() };
    let attempt = Attempt { of: ctx.of, progress: &progress, phase: ctx.phase };
    let message = "neither a slot nor a claim on the node backs its step";
    Decision::act(end::failed(&attempt, FailureReason::ProgressLost, message))
}
