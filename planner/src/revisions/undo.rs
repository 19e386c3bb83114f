//! The way back to an earlier revision, with the rules and messages of `kubectl rollout`.
//!
//! A revision is not written: the policy is, by the user who asks, and the controller then finds that it has returned to
//! that revision.

use std::fmt;

use serde_json::{Value, json};

use super::{PolicyRevision, RevisionContent};

/// The message if there is no revision to list.
pub const NO_HISTORY: &str = "No rollout history found.";

/// The reason for which a revision cannot be returned to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    #[error("unable to find the specified revision")]
    NotFound,
    #[error("no last revision to roll back to")]
    NoLast,
    #[error("revision {number} cannot be read: {cause}; write the fields of spec.version that it is to have")]
    Unreadable { number: i64, cause: String },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Undo {
    /// The policy has this content already.
    Skipped { number: i64 },
    /// To write.
    Write {
        number: i64,
        /// The merge patch of the operator's resource: the fields of `spec.version` that a revision has, and no others.
        patch: Value,
        /// True if it moves no node to an earlier version than it runs, since its target is `latest`.
        keeps_versions: bool,
        /// Changes of the present policy, a line for each field; none where the present policy is invalid.
        changes: Vec<String>,
    },
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skipped { number } => {
                write!(f, "skipped rollback (current policy already matches revision {number})")
            }
            Self::Write { number, keeps_versions: false, .. } => write!(f, "rolled back to revision {number}"),
            Self::Write { number, keeps_versions: true, .. } => write!(
                f,
                "rolled back to revision {number}. Its target is 'latest', which moves no node to an earlier version: to \
                 move nodes back, write that version into spec.version.target"
            ),
        }
    }
}

/// Returns the revision before the present content of the policy: the last one that differs from it. If the policy is
/// invalid, that is the last one, which is still in force.
fn before<'a>(history: &[&'a PolicyRevision], present: Option<&RevisionContent>) -> Option<&'a PolicyRevision> {
    history.iter().rev().copied().find(|revision| revision.content.as_ref().ok() != present || present.is_none())
}

/// Returns how to return to the revision with the number `to`, or to the last one that differs from the present
/// policy if it is `None` or 0.
///
/// `history` is in order ([`super::history`]), and `present` is the content of the policy in the resource, if that is valid.
///
/// # Errors
/// There is no such revision, or it cannot be read.
pub fn undo(
    history: &[&PolicyRevision],
    present: Option<&RevisionContent>,
    to: Option<i64>,
) -> Result<Undo, UndoError> {
    let revision = match to {
        None | Some(0) => before(history, present).ok_or(UndoError::NoLast)?,
        Some(number) => history.iter().rev().copied().find(|r| r.number == number).ok_or(UndoError::NotFound)?,
    };
    let number = revision.number;
    let content = revision.content.as_ref().map_err(|cause| UndoError::Unreadable { number, cause: cause.clone() })?;
    if present == Some(content) {
        return Ok(Undo::Skipped { number });
    }
    let patch = json!({"spec": {"version": content.version_patch()}});
    let changes = present.map(|present| content.changes_from(present)).unwrap_or_default();
    Ok(Undo::Write { number, patch, keeps_versions: !content.leads_down(), changes })
}
