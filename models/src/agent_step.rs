//! Next step of an agent: a total function of the desired state, the host and the stored report, as a table.
//!
//! ```text
//!              StagedUpdate                       RebootedIntoUpdate, same boot
//!  Idle ──► refresh, prepare ──► Staged ──► request a permit ──► activate ──► reboot ──► judge the new boot
//!   ▲                                                                                   │
//!   └────────────────────────── Idle: deactivate its own image ◄────────────────────────┘
//! ```
//!
//! A host that is busy, does not answer, or is in an unknown update state is handled before.

use crate::reason::FailureReason;
use crate::shadow::{Armed, ArmedPhase, HostState};

/// Desired state, as far as the table depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Desired {
    /// Nothing.
    Idle,
    /// Stage the image.
    Stage,
    /// Reboot into the staged image.
    Reboot,
    /// A state that this agent does not know, or a desired state without a version or a boot.
    Unknown,
}

/// Running boot, compared with that of the desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Boot {
    /// The boot that the desired state is for.
    Same,
    /// Another one.
    Other,
}

/// Content of the inactive partition set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Image {
    /// Nothing that the host reports (its update state is Idle or Available, or it has none yet).
    Nothing,
    /// The wanted version, written by a trusted prepare.
    Staged,
    /// Another version, or a possibly incomplete one.
    Doubtful,
    /// An armed image (update state Ready): any reboot boots it.
    Ready,
}

/// Owner of an armed image. Used only where the image is [`Image::Ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArmedBy {
    /// Armed by this agent, in this boot, for the attempt of the desired state.
    ThisAttempt,
    /// Armed by this agent, in this boot, for an earlier attempt.
    OlderAttempt,
    /// Another client, as far as we know.
    Other,
}

/// Progress of arming for the attempt of the desired state in its boot, by the agent's own acknowledged report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// It was armed.
    Activated,
    /// It was at most about to be armed.
    Not,
}

/// Running version, compared with that of the desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Running {
    /// The wanted one.
    Wanted,
    /// The one that ran before.
    Old,
    /// A third one.
    Third,
}

/// Everything that the step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Situation {
    /// Desired state.
    pub desired: Desired,
    /// True if this attempt has already been reported as failed.
    pub failed: bool,
    /// Running boot.
    pub boot: Boot,
    /// Staged image.
    pub image: Image,
    /// True if an activation of this operator may have changed the disk's boot flags without a record of the host.
    pub perhaps_armed: bool,
    /// Owner of an armed image.
    pub armed_by: ArmedBy,
    /// True if a user permits, in the running boot, to disarm an image that another client armed.
    pub may_disarm: bool,
    /// Progress of arming before.
    pub mark: Mark,
    /// Running version.
    pub running: Running,
}

/// Next step of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing, and report this state as reached.
    Reached(HostState),
    /// Nothing until the desired state changes; report the host as it is.
    Rest,
    /// Disarm the image.
    Deactivate,
    /// Download an image again, which clears the disk's boot flags.
    PrepareAgain,
    /// Refresh where needed, check that the version is offered, download it.
    Stage,
    /// Request a permit; with the permit: activate.
    Arm,
    /// The image is armed: report it and request a permit; with the permit: reboot.
    RebootArmed,
    /// Leave the armed image alone and report that another client armed it.
    LeaveArmed,
    /// Fail the attempt.
    Fail(FailureReason),
    /// Do nothing and report that the desired state is not known.
    Unsupported,
}

/// One row of the table: a field that is `None` fits anything. The first row that fits counts.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Desired state.
    pub desired: Option<Desired>,
    /// Failure of this attempt.
    pub failed: Option<bool>,
    /// Running boot.
    pub boot: Option<Boot>,
    /// Staged image.
    pub image: Option<Image>,
    /// True if the disk may be armed without a record.
    pub perhaps_armed: Option<bool>,
    /// Owner of an armed image.
    pub armed_by: Option<ArmedBy>,
    /// True if a user permits to disarm an image that another client armed.
    pub may_disarm: Option<bool>,
    /// Progress of arming.
    pub mark: Option<Mark>,
    /// Running version.
    pub running: Option<Running>,
    /// Next step.
    pub step: Step,
    /// Reason of the rule.
    pub reason: &'static str,
}

const ANY: Row = Row {
    desired: None,
    failed: None,
    boot: None,
    image: None,
    perhaps_armed: None,
    armed_by: None,
    may_disarm: None,
    mark: None,
    running: None,
    step: Step::Unsupported,
    reason: "",
};

const fn idle() -> Row {
    Row { desired: Some(Desired::Idle), ..ANY }
}

const fn stage() -> Row {
    Row { desired: Some(Desired::Stage), ..ANY }
}

const fn reboot(boot: Boot) -> Row {
    Row { desired: Some(Desired::Reboot), boot: Some(boot), ..ANY }
}

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        desired: Some(Desired::Unknown),
        step: Step::Unsupported,
        reason: "the desired state is of a newer controller",
        ..ANY
    },
    // Idle is always carried out, also after a failed attempt.
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::ThisAttempt),
        step: Step::Deactivate,
        reason: "withdrawn: the armed image must not be booted",
        ..idle()
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::OlderAttempt),
        step: Step::Deactivate,
        reason: "withdrawn: the armed image must not be booted",
        ..idle()
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::Other),
        may_disarm: Some(true),
        step: Step::Deactivate,
        reason: "a user asked for it, in this boot",
        ..idle()
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::Other),
        step: Step::LeaveArmed,
        reason: "an image that another client armed is left alone",
        ..idle()
    },
    Row {
        perhaps_armed: Some(true),
        step: Step::PrepareAgain,
        reason: "an activation left no record: the disk may be armed, and only another download is sure to clear it",
        ..idle()
    },
    Row { step: Step::Reached(HostState::Idle), reason: "nothing is armed", ..idle() },
    // A failed attempt is not tried again: the controller decides about another one.
    Row {
        failed: Some(true),
        step: Step::Rest,
        reason: "this attempt has failed; only Idle or a new attempt continues",
        ..ANY
    },
    // Staging disrupts nothing and is allowed in any boot.
    Row { running: Some(Running::Wanted), step: Step::Rest, reason: "the host runs the version already", ..stage() },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::ThisAttempt),
        step: Step::Deactivate,
        reason: "staging again starts from a disarmed host",
        ..stage()
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::OlderAttempt),
        step: Step::Deactivate,
        reason: "an older attempt is still armed",
        ..stage()
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::Other),
        step: Step::Fail(FailureReason::HostArmedByOther),
        reason: "an image that another client armed is left alone",
        ..stage()
    },
    Row {
        image: Some(Image::Staged),
        perhaps_armed: Some(false),
        step: Step::Reached(HostState::StagedUpdate),
        reason: "the image is there",
        ..stage()
    },
    Row { step: Step::Stage, reason: "the image is not there, or not to be trusted", ..stage() },
    // Arming is allowed only in the boot that the desired state names, and once.
    Row {
        image: Some(Image::Staged),
        mark: Some(Mark::Activated),
        step: Step::Fail(FailureReason::DisarmedByOther),
        reason: "another client disarmed the host; the permit is used up",
        ..reboot(Boot::Same)
    },
    Row {
        image: Some(Image::Doubtful),
        mark: Some(Mark::Activated),
        step: Step::Fail(FailureReason::DisarmedByOther),
        reason: "another client disarmed the host; the permit is used up",
        ..reboot(Boot::Same)
    },
    Row {
        image: Some(Image::Staged),
        step: Step::Arm,
        reason: "the image is there and the node is drained",
        ..reboot(Boot::Same)
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::ThisAttempt),
        step: Step::RebootArmed,
        reason: "armed by this attempt, and not rebooted yet",
        ..reboot(Boot::Same)
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::OlderAttempt),
        step: Step::Fail(FailureReason::NotStaged),
        reason: "what is armed belongs to an older attempt",
        ..reboot(Boot::Same)
    },
    Row {
        image: Some(Image::Ready),
        armed_by: Some(ArmedBy::Other),
        step: Step::Fail(FailureReason::HostArmedByOther),
        reason: "an image that another client armed is left alone",
        ..reboot(Boot::Same)
    },
    Row {
        step: Step::Fail(FailureReason::NotStaged),
        reason: "the drained node has no image to boot",
        ..reboot(Boot::Same)
    },
    // Another boot is judged by its version.
    Row {
        running: Some(Running::Wanted),
        step: Step::Reached(HostState::RebootedIntoUpdate),
        reason: "the host runs the version",
        ..reboot(Boot::Other)
    },
    Row {
        running: Some(Running::Old),
        mark: Some(Mark::Activated),
        step: Step::Fail(FailureReason::BootFellBack),
        reason: "armed, rebooted, and back on the old version",
        ..reboot(Boot::Other)
    },
    Row {
        running: Some(Running::Old),
        mark: Some(Mark::Not),
        step: Step::Fail(FailureReason::RebootedByOther),
        reason: "rebooted before it was armed",
        ..reboot(Boot::Other)
    },
    Row {
        running: Some(Running::Third),
        step: Step::Fail(FailureReason::BootedOtherVersion),
        reason: "back on a third version",
        ..reboot(Boot::Other)
    },
];

impl Row {
    fn fits(&self, s: &Situation) -> bool {
        fn ok<T: PartialEq>(cell: Option<&T>, value: &T) -> bool {
            cell.is_none_or(|c| c == value)
        }
        let Situation { desired, failed, boot, image, perhaps_armed, armed_by, may_disarm, mark, running } = s;
        ok(self.desired.as_ref(), desired)
            && ok(self.failed.as_ref(), failed)
            && ok(self.boot.as_ref(), boot)
            && ok(self.image.as_ref(), image)
            && ok(self.perhaps_armed.as_ref(), perhaps_armed)
            && ok(self.armed_by.as_ref(), armed_by)
            && ok(self.may_disarm.as_ref(), may_disarm)
            && ok(self.mark.as_ref(), mark)
            && ok(self.running.as_ref(), running)
    }
}

/// Returns the step for a situation. The table misses no situation (a test goes through all of them); if it did, the
/// agent would do nothing and report that.
pub fn step(situation: &Situation) -> Step {
    TABLE.iter().find(|row| row.fits(situation)).map_or(Step::Unsupported, |row| row.step)
}

/// Returns the owner of the image that is armed in the boot `boot_id`, for the attempt `attempt`, by the agent's own report.
pub fn armed_by(armed: Option<&Armed>, boot_id: &str, attempt: i64) -> ArmedBy {
    match armed {
        Some(armed) if armed.boot_id == boot_id && armed.attempt == attempt => ArmedBy::ThisAttempt,
        Some(armed) if armed.boot_id == boot_id => ArmedBy::OlderAttempt,
        _ => ArmedBy::Other,
    }
}

/// Returns the progress of arming for the attempt `attempt` in the boot `boot_id` of the desired state.
pub fn mark(armed: Option<&Armed>, boot_id: &str, attempt: i64) -> Mark {
    match armed {
        Some(armed) if armed.boot_id == boot_id && armed.attempt == attempt && armed.phase == ArmedPhase::Activated => {
            Mark::Activated
        }
        _ => Mark::Not,
    }
}

/// Returns the table in Markdown, as in the documentation.
pub fn table_markdown() -> String {
    fn cell<T: std::fmt::Debug>(value: Option<&T>) -> String {
        value.map_or_else(|| "any".to_owned(), |v| format!("{v:?}"))
    }
    let mut out = String::from(
        "| desired | failed | boot | image | perhaps armed | armed by | may disarm | mark | running | step | reason |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in TABLE {
        out.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | `{:?}` | {} |\n",
            cell(row.desired.as_ref()),
            cell(row.failed.as_ref()),
            cell(row.boot.as_ref()),
            cell(row.image.as_ref()),
            cell(row.perhaps_armed.as_ref()),
            cell(row.armed_by.as_ref()),
            cell(row.may_disarm.as_ref()),
            cell(row.mark.as_ref()),
            cell(row.running.as_ref()),
            row.step,
            row.reason
        ));
    }
    out
}

#[cfg(test)]
mod tests;
