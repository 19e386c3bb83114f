//! The next step of a storage migration: a function over what is known. It does no I/O.
//!
//! ```text
//! definition is fit? ─► earlier pods gone? ─► read-only policy in force? ─► pass over all objects
//!                                                                              │ found some
//!                            record ◄─ prune ◄─ found none, after the wait ◄─ wait ─► pass …
//! ```
//!
//! Objects decide, never `storedVersions`: an API server that has not seen a new definition stores the old version
//! without adding it there, and the migrator inside Kubernetes prunes the list even if it failed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use models::earlier;
use models::operator::CompletedMigration;
use models::shadow::ATTEMPT_RULE;

use super::rewrite::VERSION;

/// The definition of the shadows, as far as the migration depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    pub uid: String,
    pub generation: i64,
    pub resource_version: String,
    /// The storage version; empty if there is none.
    pub storage: String,
    /// `status.storedVersions`.
    pub stored: Vec<String>,
    /// The declared versions; true: served.
    pub versions: Vec<(String, bool)>,
    /// True if [`VERSION`] has the rule that refuses every write to an object without an attempt, unless it sets one.
    pub keeps_earlier: bool,
    pub conversion: String,
    /// Hash of the storage version. Only equality counts, and it may be missing.
    pub hash: Option<String>,
}

impl Definition {
    pub fn of(definition: &CustomResourceDefinition, hash: Option<String>) -> Self {
        let (meta, spec) = (&definition.metadata, &definition.spec);
        let stored = definition.status.as_ref().and_then(|status| status.stored_versions.clone());
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            storage: spec.versions.iter().find(|version| version.storage).map(|v| v.name.clone()).unwrap_or_default(),
            stored: stored.unwrap_or_default(),
            versions: spec.versions.iter().map(|version| (version.name.clone(), version.served)).collect(),
            keeps_earlier: spec.versions.iter().any(|version| version.name == VERSION && has_attempt_rule(version)),
            conversion: spec.conversion.as_ref().map_or_else(|| "None".to_owned(), |c| c.strategy.clone()),
            hash,
        }
    }

    fn declared_earlier(&self) -> impl Iterator<Item = &(String, bool)> {
        self.versions.iter().filter(|(name, _)| is_earlier(name))
    }

    pub fn served_earlier(&self) -> impl Iterator<Item = &str> {
        self.declared_earlier().filter(|(_, served)| *served).map(|(name, _)| name.as_str())
    }

    /// Returns the version in which objects of the earlier operator are read: v2 shows the fields of v1 too. `None` if
    /// the definition has neither, so that no object can be stored in them.
    pub fn reads_earlier_at(&self) -> Option<&str> {
        self.served_earlier().max()
    }

    /// Returns true if an object can be stored in a version of this operator other than the storage version. An object
    /// of a version that is not declared could not be read.
    fn has_other_versions(&self) -> bool {
        self.versions.iter().any(|(name, _)| !is_earlier(name) && *name != self.storage)
    }

    /// Returns true if `storedVersions` names the storage version alone.
    pub fn is_pruned(&self) -> bool {
        self.stored == [self.storage.as_str()]
    }

    /// Returns true for the same definition at the same generation: the migration continues.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }

    pub fn is_completed_by(&self, completed: &CompletedMigration) -> bool {
        let same_hash = match (&self.hash, &completed.storage_version_hash) {
            (Some(hash), Some(completed)) => hash == completed,
            _ => true,
        };
        self.uid == completed.uid
            && self.generation == completed.generation
            && self.storage == completed.storage_version
            && same_hash
    }
}

fn is_earlier(version: &str) -> bool {
    earlier::VERSIONS.contains(&version)
}

fn has_attempt_rule(version: &CustomResourceDefinitionVersion) -> bool {
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let spec = schema.and_then(|schema| schema.properties.as_ref()?.get("spec"));
    let mut rules = spec.and_then(|spec| spec.x_kubernetes_validations.as_ref()).into_iter().flatten();
    rules.any(|rule| rule.rule == ATTEMPT_RULE)
}

/// An object that cannot be migrated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Namespace and name.
    pub object: String,
    pub message: String,
}

/// The work of a pass over all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Objects are read, and nothing is written.
    Look,
    /// Objects of the earlier operator are rewritten, and migrations that were interrupted are continued.
    Earlier,
    /// The same, and every other object is written without a change, which stores it in the storage version.
    All,
}

/// The result of a pass over all objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    pub work: Work,
    /// The definition before it.
    pub definition: Definition,
    /// Number of objects that were not migrated when it began.
    pub found: usize,
    pub refused: Vec<Refusal>,
    /// True if the wait came before it.
    pub after_wait: bool,
}

/// The knowledge of one run, which a restart loses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The policy that refuses writes at earlier versions is in force; `None`: not tried yet.
    pub read_only: Option<bool>,
    pub pass: Option<Pass>,
    /// True if the wait is over, and no object was found since.
    pub waited: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct StorageFacts<'a> {
    pub definition: &'a Definition,
    /// Pods of the earlier operator that exist now, as namespace and name.
    pub earlier_pods: &'a [String],
    pub completed: Option<&'a CompletedMigration>,
    /// True if a migration begins only by a request.
    pub manual: bool,
    pub requested: bool,
    pub known: &'a Known,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try whether writes at the earlier versions are refused.
    TryReadOnly,
    /// Go over all objects.
    Pass(Work),
    /// Wait for API servers that have not seen the definition yet.
    Wait,
    /// Prune `storedVersions`, at this version of the definition.
    Prune(String),
    /// All objects are migrated: record it.
    Complete,
    /// Nothing can be done now.
    Blocked(Block),
}

/// A reason why a migration waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// The definition converts by a webhook.
    Conversion(String),
    /// The storage version is the earlier operator's, or there is none.
    StorageVersion(String),
    /// A version of the earlier operator is declared and not served, so that its objects cannot be read.
    NotServed(String),
    /// A version of the earlier operator is declared, and a write that changes nothing would erase its objects.
    AttemptRule,
    EarlierPods(Vec<String>),
    ReadOnlyPolicy,
    Refused(Vec<Refusal>),
    /// A request is needed; objects that are known to be not migrated.
    Request(usize),
}

pub fn next(facts: StorageFacts<'_>) -> Step {
    let StorageFacts { definition, known, .. } = facts;
    if let Some(block) = unfit(definition) {
        return Step::Blocked(block);
    }
    if definition.reads_earlier_at().is_some() {
        if !facts.earlier_pods.is_empty() {
            return Step::Blocked(Block::EarlierPods(facts.earlier_pods.to_vec()));
        }
        match known.read_only {
            None => return Step::TryReadOnly,
            Some(false) => return Step::Blocked(Block::ReadOnlyPolicy),
            Some(true) => {}
        }
    }
    let work = work(&facts);
    let Some(pass) = known.pass.as_ref().filter(|pass| pass.definition.is_same(definition) && pass.work == work) else {
        return Step::Pass(work);
    };
    if work == Work::Look {
        let due = pass.found > 0 || !definition.is_pruned() || must_write_all(&facts);
        return if due { Step::Blocked(Block::Request(pass.found)) } else { Step::Complete };
    }
    if !pass.refused.is_empty() {
        return Step::Blocked(Block::Refused(pass.refused.clone()));
    }
    // Nothing is to be pruned and nothing was found: there is nothing that an API server could have stored meanwhile.
    if pass.found == 0 && definition.is_pruned() {
        return Step::Complete;
    }
    match (known.waited, pass.found == 0 && pass.after_wait) {
        (_, true) => Step::Prune(pass.definition.resource_version.clone()),
        (true, false) => Step::Pass(work),
        (false, false) => Step::Wait,
    }
}

/// Returns what is wrong with the definition itself.
fn unfit(definition: &Definition) -> Option<Block> {
    if definition.conversion != "None" {
        return Some(Block::Conversion(definition.conversion.clone()));
    }
    if definition.storage.is_empty() || is_earlier(&definition.storage) {
        return Some(Block::StorageVersion(definition.storage.clone()));
    }
    if let Some((name, _)) = definition.declared_earlier().find(|(_, served)| !served) {
        return Some(Block::NotServed(name.clone()));
    }
    let erases = definition.declared_earlier().next().is_some() && !definition.keeps_earlier;
    erases.then_some(Block::AttemptRule)
}

fn work(facts: &StorageFacts<'_>) -> Work {
    if facts.manual && !facts.requested {
        Work::Look
    } else if must_write_all(facts) {
        Work::All
    } else {
        Work::Earlier
    }
}

/// Returns true if objects may be stored in another version of this operator. Which ones cannot be read from the API: a
/// write without a change stores an object in the storage version, and shows by its resourceVersion if it was not.
fn must_write_all(facts: &StorageFacts<'_>) -> bool {
    let completed = facts.completed.is_some_and(|completed| facts.definition.is_completed_by(completed));
    facts.definition.has_other_versions() && (facts.requested || !completed || !facts.definition.is_pruned())
}

#[cfg(test)]
mod tests;
