//! Failures of an attempt: reported once, with a message for users. How a boot ended is judged by the step table.

use models::agent_step::{Boot, Desired};
use models::reason::FailureReason;
use models::shadow::{Failure, HostState};

use super::moment::Moment;
use super::next::{Next, Stop};
use super::report::report;
use super::turn::{Observed, Turn};
use crate::desired_state::DesiredState;
use crate::host::types::UpdateStatus;
use crate::report::{ARMED_BY_OTHER, Finding};
use crate::situation::{Facts, host_state};

pub(super) async fn fail(
    turn: &mut Turn<'_>,
    found: &Observed,
    reason: FailureReason,
    message: String,
) -> Result<Next, Stop> {
    let (attempt, step) = (turn.desired.attempt.attempt, turn.desired.state);
    if turn.reports.is_news(attempt, reason) {
        tracing::warn!(attempt, %reason, detail = ?message, "the attempt failed");
    }
    let judges_boot = found.situation.desired == Desired::Reboot && found.situation.boot == Boot::Other;
    let failure = Failure { attempt, step, reason, message, time: Moment::now().wall };
    report(turn, found, &Finding::Failed { failure, state: host_state(&found.situation), judges_boot }).await?;
    Ok(Next::Again)
}

/// Describes a failure from the step table for a user.
pub(super) fn explain(reason: FailureReason, desired: &DesiredState, facts: &Facts) -> String {
    let wanted = desired.version.as_ref().map(ToString::to_string).unwrap_or_default();
    let runs = &facts.os.version;
    match reason {
        FailureReason::BootFellBack => format!("the host was armed with {wanted}, rebooted, and runs {runs} again"),
        FailureReason::RebootedByOther if desired.state == HostState::RehearsedUpdate => {
            "the host was rebooted during the drill".to_owned()
        }
        FailureReason::RebootedByOther => format!("the host was rebooted before it was armed with {wanted}"),
        FailureReason::BootedOtherVersion => format!("the host was to boot {wanted} and runs {runs}"),
        FailureReason::DisarmedByOther => {
            format!("the host was armed with {wanted}, and another client disarmed it before it rebooted")
        }
        FailureReason::HostArmedByOther => ARMED_BY_OTHER.to_owned(),
        FailureReason::NotStaged => {
            let staged = facts.status.as_ref().and_then(UpdateStatus::staged_version);
            let staged = staged.map_or("nothing".to_owned(), ToString::to_string);
            format!("the host is to boot {wanted}, but has {staged} staged, or possibly an incomplete image")
        }
        other => other.end().text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use models::reason::ENDS;

    /// A controller reads any other reason that an agent reports as `Unknown`.
    #[test]
    fn agent_names_each_reason_that_is_for_an_agent_to_report_and_no_other() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut files = vec![root.join("../models/src/agent_step.rs")];
        let mut folders = vec![root.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let named = texts.iter().flat_map(|text| text.split("FailureReason::").skip(1));
        let named = named.map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default());
        let named: BTreeSet<&str> = named.filter(|word| !word.is_empty()).collect();
        let reported: BTreeSet<&str> = ENDS.iter().filter(|end| end.by_agent).map(|end| end.reason).collect();
        assert_eq!(named, reported);
    }
}
