//! The facts that are reported to users and acknowledged, and decide nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{CompletedMigration, CompletionEstimate, OperatorRequests};

/// The facts that are reported to users and acknowledged, and decide nothing: only what makes the operator's status has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedFacts {
    /// The known facts about the keeping of keys and certificates.
    pub tls: TlsFacts,
    /// The known facts about the migration of stored shadows.
    pub migration: MigrationFacts,
    /// The last estimates; `None` until this leader has made some.
    pub estimates: Option<EstimateFacts>,
    /// The known facts about the sending of notices.
    pub notices: NoticeFacts,
    /// The objects that the policy names and that cannot be read, each with the reason.
    pub unread_objects: Vec<String>,
}

/// The facts about the sending of notices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeFacts {
    /// The notices that were sent or given up, each by its receiver and its id.
    pub done: BTreeSet<(String, String)>,
    /// The condition `NoticesSent`: its truth, its reason and its message; `None` until it is known.
    pub state: Option<(bool, &'static str, String)>,
}

/// The basis of estimates besides the nodes: they are made again when it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EstimateBasis {
    /// The numbers of the running rollouts.
    pub rollouts: BTreeSet<i64>,
    /// The generation of the policy.
    pub generation: i64,
    /// The requests that were carried out.
    pub requests: Option<OperatorRequests>,
    /// True while failures have stopped all updates.
    pub frozen: bool,
}

/// Estimates of when rollouts are completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EstimateFacts {
    pub made: Timestamp,
    /// The time that their simulation took.
    pub took: Duration,
    pub basis: EstimateBasis,
    /// By the number of the rollout. There is none for one of which no update is expected to end.
    pub rollouts: BTreeMap<i64, CompletionEstimate>,
}

/// The facts about the keeping of keys and certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// The last request for new certificates that was begun.
    pub rotated_certificates: Option<String>,
    /// The last request for a new signing key that was begun.
    pub rotated_signing_key: Option<String>,
    /// The problem with them, for users.
    pub problem: Option<String>,
}

/// The facts about the migration of stored shadows for plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationFacts {
    /// The condition `StorageMigrated`: its truth, its reason and its message; `None` until it is known.
    pub state: Option<(bool, &'static str, String)>,
    /// The last migration that this leader completed.
    pub completed: Option<CompletedMigration>,
    /// The last request that this leader carried out.
    pub carried_out: Option<String>,
}
