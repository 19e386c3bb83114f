//! The answers to the questions of expressions.

use jiff::Timestamp;

/// The answer to an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An empty result, or true: all is well.
    Quiet {
        /// Time since which each answer has been this.
        since: Timestamp,
        /// Time at which the last one was asked for.
        asked: Timestamp,
    },
    /// A result with at least one series, or false.
    Firing {
        /// The first series, or the first object for which it is false.
        series: String,
        /// Time since which each answer has been this. A query that fails gives no answer.
        since: Timestamp,
        /// Time at which the last one was asked for.
        asked: Timestamp,
    },
    /// No answer, or none that can be read.
    Failed { message: String },
}
