//! The state of the migration in words, for the condition `StorageMigrated` and the metrics.

use std::time::Duration;

use models::backoff::Backoff;
use models::earlier::READ_ONLY_POLICY;
use models::names::{MIGRATE_STORAGE_ANNOTATION, SHADOW_DEFINITION as DEFINITION};
use models::plain::{cut, some_by};

use super::plan::{Block, Refusal};
use super::rewrite::VERSION;

/// Number of objects, or pods, that a message names.
const NAMED: usize = 8;

const LONGEST_MESSAGE: usize = 2000;

/// First pause before a migration that did not complete is tried again, and the longest one.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause after objects were refused: what a policy denies, it denies again.
const LONGEST_AFTER_REFUSAL: Duration = Duration::from_secs(600);

/// Pause before all objects are checked again after a completed migration.
const CHECK_AGAIN: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// All objects are stored in this version.
    Migrated(String),
    /// So many objects are left.
    Migrating(usize),
    Blocked(Block),
    /// The API server refuses a call that the migration needs.
    MissingRight(String),
    /// The API server did not answer, or could not.
    Unanswered(String),
}

impl MigrationState {
    /// Returns its reason, as one fixed word.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Migrated(_) => "Migrated",
            Self::Migrating(_) => "Migrating",
            Self::Blocked(Block::Conversion(_)) => "ConversionNotNone",
            Self::Blocked(Block::StorageVersion(_)) => "StorageVersionNotOwn",
            Self::Blocked(Block::NotServed(_)) => "EarlierVersionNotServed",
            Self::Blocked(Block::AttemptRule) => "AttemptRuleMissing",
            Self::Blocked(Block::EarlierPods(_)) => "EarlierOperatorRunning",
            Self::Blocked(Block::ReadOnlyPolicy) => "EarlierVersionsWritable",
            Self::Blocked(Block::Refused(_)) => "ObjectsRefused",
            Self::Blocked(Block::Request(_)) => "AwaitingRequest",
            Self::MissingRight(_) => "MissingRight",
            Self::Unanswered(_) => "NoAnswer",
        }
    }

    /// Returns the objects that were refused, in order.
    pub fn refused(&self) -> &[Refusal] {
        if let Self::Blocked(Block::Refused(refused)) = self { refused } else { &[] }
    }

    /// Returns the pause before the next migration. `backoff`: those that did not complete since the last change.
    pub fn pause(&self, backoff: &mut Backoff) -> Duration {
        match self {
            Self::Migrated(_) => {
                backoff.reset();
                CHECK_AGAIN
            }
            Self::Blocked(Block::Refused(_)) => backoff.next_delay((PAUSE, LONGEST_AFTER_REFUSAL)),
            _ => backoff.next_delay((PAUSE, LONGEST_PAUSE)),
        }
    }

    /// Returns the state to publish, by the one in which the last migration ended: refusals are shown until the next
    /// migration has ended, since it may end with the same ones.
    pub fn shown<'a>(&'a self, ended: Option<&'a Self>) -> &'a Self {
        ended.filter(|ended| matches!(self, Self::Migrating(_)) && !ended.refused().is_empty()).unwrap_or(self)
    }

    /// Returns the number of objects that are left, if it is known.
    pub const fn left(&self) -> Option<usize> {
        match self {
            Self::Migrated(_) => Some(0),
            Self::Migrating(left) | Self::Blocked(Block::Request(left)) => Some(*left),
            Self::Blocked(Block::Refused(refused)) => Some(refused.len()),
            _ => None,
        }
    }

    /// Returns the condition: its truth, its reason and its message.
    pub fn condition(&self) -> (bool, &'static str, String) {
        (matches!(self, Self::Migrated(_)), self.reason(), cut(&self.message(), LONGEST_MESSAGE))
    }

    fn message(&self) -> String {
        match self {
            Self::Migrated(version) => format!("every shadow is stored in {version}"),
            Self::Migrating(0) => {
                "no shadow is left to migrate; all are checked again before status.storedVersions is pruned".to_owned()
            }
            Self::Migrating(left) => format!("{left} shadows are left to migrate"),
            Self::Blocked(block) => block.message(),
            Self::MissingRight(answer) => format!(
                "the controller lacks a right, and retries: {answer}. Apply the roles of the installation (brupop.yaml)"
            ),
            Self::Unanswered(problem) => format!("the API server gives no answer, and is asked again: {problem}"),
        }
    }
}

impl Block {
    fn message(&self) -> String {
        match self {
            Self::Conversion(strategy) => format!(
                "{DEFINITION} has the conversion strategy {strategy}: set spec.conversion to strategy None, with which stored \
                 shadows can be read at their own version"
            ),
            Self::StorageVersion(version) if version.is_empty() => format!("{DEFINITION} has no storage version"),
            Self::StorageVersion(version) => format!(
                "the storage version of {DEFINITION} is {version}, the earlier operator's: apply the definition that stores v3"
            ),
            Self::NotServed(version) => format!(
                "{DEFINITION} declares {version} without serving it, so shadows that are stored in it cannot be read: serve it \
                 until the migration is completed"
            ),
            Self::AttemptRule => format!(
                "{VERSION} of {DEFINITION} lacks the validation rule of spec.attempt, so a write of any client that changes \
                 nothing erases a shadow of the earlier operator: apply the definition of this release"
            ),
            Self::EarlierPods(pods) => format!(
                "pods of the earlier operator exist: {}. Delete its Deployments and its DaemonSet, and not its \
                 definition",
                some_by(pods, NAMED, "; ", "; and ")
            ),
            Self::ReadOnlyPolicy => format!(
                "the API server does not refuse writes at the earlier operator's versions by the ValidatingAdmissionPolicy \
                 {READ_ONLY_POLICY}, and they would lose data: apply it and its binding"
            ),
            Self::Refused(refused) => {
                let named = some_by(refused.iter().map(Refusal::to_string), NAMED, "; ", "; and ");
                format!("{} shadows cannot be migrated, so status.storedVersions is not pruned: {named}", refused.len())
            }
            Self::Request(found) => format!(
                "spec.storageMigration is Manual, and {found} shadows are known to be not migrated: kubectl annotate bruo default \
                 -n <namespace> --overwrite {MIGRATE_STORAGE_ANNOTATION}=<any new value>"
            ),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, cut(&self.message, 160))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(object: &str) -> MigrationState {
        MigrationState::Blocked(Block::Refused(vec![Refusal {
            object: object.to_owned(),
            message: "denied".to_owned(),
        }]))
    }

    #[test]
    fn pause_grows_longest_after_refusal() {
        let blocked = MigrationState::Blocked(Block::ReadOnlyPolicy);
        for (state, failures, seconds) in [
            (MigrationState::Migrated("v3".into()), 0, 3600),
            (blocked.clone(), 0, 5),
            (blocked.clone(), 3, 40),
            (blocked, 20, 60),
            (MigrationState::Unanswered("500".into()), 20, 60),
            (refused("old/brs-a"), 0, 5),
            (refused("old/brs-a"), 4, 80),
            (refused("old/brs-a"), 20, 600),
        ] {
            let pause = state.pause(&mut Backoff::after(failures));
            assert_eq!(pause, Duration::from_secs(seconds), "{state:?}, {failures}");
        }
    }

    #[test]
    fn refusals_are_shown_until_next_migration_has_ended() {
        let (migrating, migrated) = (MigrationState::Migrating(7), MigrationState::Migrated("v3".into()));
        let (refused, others) = (refused("old/brs-a"), refused("old/brs-b"));
        for (ended, now, expected) in [
            (None, &migrating, &migrating),
            (Some(&migrated), &migrating, &migrating),
            (Some(&MigrationState::Blocked(Block::ReadOnlyPolicy)), &migrating, &migrating),
            (Some(&refused), &migrating, &refused),
            (Some(&refused), &others, &others),
            (Some(&refused), &migrated, &migrated),
        ] {
            assert_eq!(now.shown(ended), expected, "{ended:?}, {now:?}");
        }
    }

    #[test]
    fn condition_names_what_blocks_and_what_to_do() {
        let refusal = |n: usize| Refusal { object: format!("old/brs-{n}"), message: "denied by a webhook".to_owned() };
        let (blocked, pods) = (MigrationState::Blocked, vec!["old/agent-x".into()]);
        let request = "brupop.bottlerocket.aws/migrate-storage=";
        for (state, reason, words) in [
            (MigrationState::Migrated("v3".into()), "Migrated", vec!["stored in v3"]),
            (MigrationState::Migrating(7), "Migrating", vec!["7 shadows are left"]),
            (blocked(Block::Conversion("Webhook".into())), "ConversionNotNone", vec!["Webhook", "strategy None"]),
            (blocked(Block::StorageVersion("v2".into())), "StorageVersionNotOwn", vec!["is v2", "stores v3"]),
            (blocked(Block::NotServed("v1".into())), "EarlierVersionNotServed", vec!["v1"]),
            (blocked(Block::AttemptRule), "AttemptRuleMissing", vec!["v3", "spec.attempt", "apply"]),
            (blocked(Block::EarlierPods(pods)), "EarlierOperatorRunning", vec!["old/agent-x", "DaemonSet"]),
            (blocked(Block::ReadOnlyPolicy), "EarlierVersionsWritable", vec!["brupop-earlier-versions"]),
            (
                blocked(Block::Refused((0..10).map(refusal).collect())),
                "ObjectsRefused",
                vec!["10 shadows", "old/brs-0: denied by a webhook", "and 2 more", "not pruned"],
            ),
            (blocked(Block::Request(3)), "AwaitingRequest", vec!["3 shadows", request]),
            (MigrationState::MissingRight("cannot list".into()), "MissingRight", vec!["cannot list", "brupop.yaml"]),
            (MigrationState::Unanswered("500".into()), "NoAnswer", vec!["500"]),
        ] {
            let (truth, word, message) = state.condition();
            assert_eq!((truth, word), (reason == "Migrated", reason));
            assert!(words.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
