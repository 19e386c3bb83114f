//! The answers to expressions, as Prometheus gives them.

use jiff::Timestamp;

/// The answer to an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An empty result: all is well.
    Quiet {
        /// Time since which each answer has been empty.
        since: Timestamp,
        /// Time of the query that the last one answers.
        asked: Timestamp,
    },
    /// A result with at least one series.
    Firing {
        /// The first one.
        series: String,
        /// Time since which each answer has had one. A query that fails gives no answer.
        since: Timestamp,
        /// Time of the query that the last one answers.
        asked: Timestamp,
    },
    /// No answer, or none that can be read.
    Failed { message: String },
}
