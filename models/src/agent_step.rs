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
    /// Rehearse the permit of a reboot, without one.
    Rehearse,
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
    /// Not known to the agent: another client, or this operator before the shadow was deleted.
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

/// Defines the situation and the table from the columns of the table.
macro_rules! columns {
    ($($(#[doc = $doc:literal])+ $column:ident: $type:ident,)+) => {
        /// Everything that the step depends on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Situation {
            $($(#[doc = $doc])+ pub $column: $type,)+
        }

        /// One row of the table: a cell that is `None` fits anything. The first row that fits counts.
        #[derive(Clone, Copy, Debug)]
        struct Row {
            $($column: Option<$type>,)+
            step: Step,
            /// Reason of the rule.
            reason: &'static str,
        }

        impl Row {
            fn fits(&self, situation: &Situation) -> bool {
                $(self.$column.is_none_or(|cell| cell == situation.$column))&&+
            }

            /// Returns the names of the columns and the texts of their cells.
            fn cells(&self) -> (Vec<String>, Vec<String>) {
                let text = |cell: Option<String>| cell.unwrap_or_else(|| "any".to_owned());
                (
                    vec![$(stringify!($column).replace('_', " ")),+],
                    vec![$(text(self.$column.map(|cell| format!("{cell:?}")))),+],
                )
            }
        }
    };
}

columns! {
    /// Desired state.
    desired: Desired,
    /// True if this attempt has already been reported as failed.
    failed: bool,
    /// Running boot.
    boot: Boot,
    /// Staged image.
    image: Image,
    /// True if an activation of this operator may have changed the disk's boot flags without a record of the host.
    perhaps_armed: bool,
    /// Owner of an armed image.
    armed_by: ArmedBy,
    /// True if a user permits, in the running boot, to disarm an image that the agent has no record of.
    may_disarm: bool,
    /// Progress of arming before.
    mark: Mark,
    /// Running version.
    running: Running,
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
    /// Request a rehearsal permit; with the permit: report that it was verified.
    Rehearse,
    /// Leave the armed image alone and report that the agent has no record of it.
    LeaveArmed,
    /// Fail the attempt.
    Fail(FailureReason),
    /// Do nothing and report that the desired state is not known.
    Unsupported,
}

/// Reads the cells of a table: `_` fits anything.
macro_rules! cell {
    ($type:ident _) => {
        None
    };
    (bool $value:tt) => {
        Some($value)
    };
    ($type:ident $value:tt) => {
        Some($type::$value)
    };
}

macro_rules! table {
    ($($desired:tt $failed:tt $boot:tt $image:tt $perhaps_armed:tt $armed_by:tt $may_disarm:tt $mark:tt $running:tt
        => $step:expr, $reason:literal;)+) => {
        &[$(Row {
            desired: cell!(Desired $desired),
            failed: cell!(bool $failed),
            boot: cell!(Boot $boot),
            image: cell!(Image $image),
            perhaps_armed: cell!(bool $perhaps_armed),
            armed_by: cell!(ArmedBy $armed_by),
            may_disarm: cell!(bool $may_disarm),
            mark: cell!(Mark $mark),
            running: cell!(Running $running),
            step: $step,
            reason: $reason,
        }),+]
    };
}

const TABLE: &[Row] = table! {
    // desired failed boot  image    perhaps_armed armed_by     may_disarm mark      running
    Unknown _      _     _        _             _            _          _         _
        => Step::Unsupported, "the desired state is of a newer controller";

    // Idle is always carried out, also after a failed attempt.
    Idle    _      _     Ready    _             ThisAttempt  _          _         _
        => Step::Deactivate, "withdrawn: the armed image must not be booted";
    Idle    _      _     Ready    _             OlderAttempt _          _         _
        => Step::Deactivate, "withdrawn: the armed image must not be booted";
    Idle    _      _     Ready    _             Other        true       _         _
        => Step::Deactivate, "a user permits it, in this boot";
    Idle    _      _     Ready    _             Other        _          _         _
        => Step::LeaveArmed, "an armed image without a record is left alone";
    Idle    _      _     _        true          _            _          _         _
        => Step::PrepareAgain,
           "an activation left no record: the disk may be armed, and only another download is sure to clear it";
    Idle    _      _     _        _             _            _          _         _
        => Step::Reached(HostState::Idle), "nothing is armed";

    // A failed attempt is not tried again: the controller decides about another one.
    _       true   _     _        _             _            _          _         _
        => Step::Rest, "this attempt has failed; only Idle or a new attempt continues";

    // Staging disrupts nothing and is allowed in any boot.
    Stage   _      _     _        _             _            _          _         Wanted
        => Step::Rest, "the host runs the version already";
    Stage   _      _     Ready    _             ThisAttempt  _          _         _
        => Step::Deactivate, "staging again starts from a disarmed host";
    Stage   _      _     Ready    _             OlderAttempt _          _         _
        => Step::Deactivate, "an older attempt is still armed";
    Stage   _      _     Ready    _             Other        _          _         _
        => Step::Fail(FailureReason::HostArmedByOther), "an armed image without a record is left alone";
    Stage   _      _     Staged   false         _            _          _         _
        => Step::Reached(HostState::StagedUpdate), "the image is there";
    Stage   _      _     _        _             _            _          _         _
        => Step::Stage, "the image is not there, or not to be trusted";

    // Arming is allowed only in the boot that the desired state names, and once.
    Reboot  _      Same  Staged   _             _            _          Activated _
        => Step::Fail(FailureReason::DisarmedByOther), "another client disarmed the host; the permit is used up";
    Reboot  _      Same  Doubtful _             _            _          Activated _
        => Step::Fail(FailureReason::DisarmedByOther), "another client disarmed the host; the permit is used up";
    Reboot  _      Same  Staged   _             _            _          _         _
        => Step::Arm, "the image is there and the node is drained";
    Reboot  _      Same  Ready    _             ThisAttempt  _          _         _
        => Step::RebootArmed, "armed by this attempt, and not rebooted yet";
    Reboot  _      Same  Ready    _             OlderAttempt _          _         _
        => Step::Fail(FailureReason::NotStaged), "what is armed belongs to an older attempt";
    Reboot  _      Same  Ready    _             Other        _          _         _
        => Step::Fail(FailureReason::HostArmedByOther), "an armed image without a record is left alone";
    Reboot  _      Same  _        _             _            _          _         _
        => Step::Fail(FailureReason::NotStaged), "the drained node has no image to boot";

    // A rehearsal arms nothing and reboots nothing: no row of it leads to a step that takes a permit for a reboot.
    Rehearse _     Other _        _             _            _          _         _
        => Step::Fail(FailureReason::RebootedByOther), "the boot of the drill is over";
    Rehearse _     _     Ready    _             ThisAttempt  _          _         _
        => Step::Deactivate, "a rehearsal leaves nothing armed";
    Rehearse _     _     Ready    _             OlderAttempt _          _         _
        => Step::Deactivate, "a rehearsal leaves nothing armed";
    Rehearse _     _     Ready    _             Other        _          _         _
        => Step::Fail(FailureReason::HostArmedByOther), "an armed image without a record is left alone";
    Rehearse _     _     _        _             _            _          _         _
        => Step::Rehearse, "the permit is requested and verified, and not used";

    // Another boot is judged by its version.
    Reboot  _      Other _        _             _            _          _         Wanted
        => Step::Reached(HostState::RebootedIntoUpdate), "the host runs the version";
    Reboot  _      Other _        _             _            _          Activated Old
        => Step::Fail(FailureReason::BootFellBack), "armed, rebooted, and back on the old version";
    Reboot  _      Other _        _             _            _          Not       Old
        => Step::Fail(FailureReason::RebootedByOther), "rebooted before it was armed";
    Reboot  _      Other _        _             _            _          _         Third
        => Step::Fail(FailureReason::BootedOtherVersion), "back on a third version";
};

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
    let activated = armed.filter(|armed| armed.phase == ArmedPhase::Activated);
    if armed_by(activated, boot_id, attempt) == ArmedBy::ThisAttempt { Mark::Activated } else { Mark::Not }
}

/// Returns the table in Markdown, as in the documentation.
pub fn table_markdown() -> String {
    let mut text = String::new();
    for row in TABLE {
        let (columns, cells) = row.cells();
        if text.is_empty() {
            text = format!("| {} | step | reason |\n{}|\n", columns.join(" | "), "| --- ".repeat(columns.len() + 2));
        }
        text.push_str(&format!("| {} | `{:?}` | {} |\n", cells.join(" | "), row.step, row.reason));
    }
    text
}

#[cfg(test)]
mod tests;
