//! The successive answers to one question.

use std::mem::discriminant;

use jiff::Timestamp;
use planner::view::Answer;

/// The last answer, with the time since which they have been of its kind.
#[derive(Default)]
pub(super) struct Course {
    last: Option<Answer>,
    /// Time since which no answer was quiet and one fired.
    firing_since: Option<Timestamp>,
}

impl Course {
    pub(super) fn last(&self) -> Option<&Answer> {
        self.last.as_ref()
    }

    /// Records that the last answer is also that of a later time.
    pub(super) fn confirm(&mut self, now: Timestamp) {
        if let Some(Answer::Quiet { asked, .. } | Answer::Firing { asked, .. }) = &mut self.last {
            *asked = now;
        }
    }

    /// Records an answer. Returns whether it is of another kind than the last one.
    pub(super) fn take(&mut self, answer: Answer) -> bool {
        let same = self.last.as_ref().is_some_and(|last| discriminant(last) == discriminant(&answer));
        self.firing_since = match &answer {
            Answer::Firing { since, .. } => self.firing_since.or(Some(*since)),
            Answer::Failed { .. } => self.firing_since,
            Answer::Quiet { .. } => None,
        };
        self.last = Some(match (&self.last, answer) {
            // Since the first of the successive answers of its kind. A question that fails does not show that it is over.
            (Some(Answer::Quiet { since, .. }), Answer::Quiet { asked, .. }) => Answer::Quiet { since: *since, asked },
            (_, Answer::Firing { series, since, asked }) => {
                Answer::Firing { series, since: self.firing_since.unwrap_or(since), asked }
            }
            (_, answer) => answer,
        });
        !same
    }
}
