//! `BottlerocketRolloutHistory`: the record of one rollout, and the pages with its nodes and pods.
//!
//! Both are objects of one kind. A *head* holds what the rollout was when it began, in an immutable `spec`, and its course in
//! `status`. A *page* holds the results of some nodes, and is written once. What identifies an object is in `spec`, since
//! names in labels can be changed by every client that may write them.

use jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::condition::Condition;
use crate::operator::{CanaryStep, CompletionEstimate};
use crate::schema::{Moment, StatusWord, VersionText};
use crate::shadow::RolloutResult;

pub use crate::operator::{RecordedRevision, RolloutPhase};

/// The largest size of an object of the history, in bytes.
pub const LARGEST_OBJECT: i64 = 256 * 1024;

/// The most pages of a record. With more results, the rollout goes on in a record that names this one.
pub const MOST_PAGES: usize = 640;

/// The most entries of a record.
pub const MOST_ENTRIES: usize = 400;

/// The most rows of a page.
pub const MOST_ROWS: usize = 512;

/// `Frozen`: failures have stopped the rollout.
pub const FROZEN: &str = crate::operator::FROZEN;

/// Record of one rollout, or a page of it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "brupop.bottlerocket.aws",
    version = "v1",
    kind = "BottlerocketRolloutHistory",
    plural = "bottlerocketrollouthistories",
    namespaced,
    shortname = "brh",
    category = "brupop",
    status = "BottlerocketRolloutHistoryStatus",
    derive = "PartialEq",
    doc = "Record of one rollout of a version, or a page with the results of its nodes. Written by the operator.",
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase == 'Running' || (has(self.status) && self.status == oldSelf.status)").message("the record of an ended rollout never changes"),
    validation = Rule::new("has(self.spec.rollout) ? self.metadata.name == self.spec.record : self.metadata.name.startsWith(self.spec.record + '-')").message("the name of a record is that in spec.record, and the names of its pages begin with it"),
    printcolumn(name = "Number", type_ = "integer", json_path = ".spec.rollout.number", description = "Number of the rollout"),
    printcolumn(name = "Variant", type_ = "string", json_path = ".spec.rollout.variant", description = "Variant of its nodes"),
    printcolumn(name = "Arch", type_ = "string", json_path = ".spec.rollout.arch", description = "Architecture of its nodes", priority = "1"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.rollout.version", description = "Version that the nodes updated to"),
    printcolumn(name = "Drill", type_ = "boolean", json_path = ".spec.rollout.drill", description = "True in the record of drills"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Running, Completed, Superseded or Stopped"),
    printcolumn(name = "Frozen", type_ = "string", json_path = ".status.conditions[?(@.type=='Frozen')].status", description = "True while failures have stopped the rollout"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes", description = "Attempts on its pages"),
    printcolumn(name = "Page", type_ = "integer", json_path = ".spec.page.number", description = "Number of the page"),
    printcolumn(name = "Begun", type_ = "date", json_path = ".spec.rollout.begun")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a record never changes"},
    {"rule": "has(self.rollout) != has(self.page)", "message": "either a record or a page"},
]))]
pub struct BottlerocketRolloutHistorySpec {
    /// Name of the record: this object's, or of the one that this page belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub record: String,
    /// The rollout when it began; absent in a page.
    pub rollout: Option<RecordedRollout>,
    /// Results of nodes; absent in a record.
    pub page: Option<HistoryPage>,
}

/// The operator's resource of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedOperator {
    /// Namespace of the operator's resource.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the operator's resource.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the operator's resource.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// A version that nodes ran, and how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionCount {
    /// Version.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// Number of nodes that ran it.
    pub nodes: i64,
}

/// A rollout as it was when it began.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRollout {
    /// Number of the rollout. It rises with each new one.
    #[schemars(range(min = 1))]
    pub number: i64,
    /// The operator's resource.
    pub operator: RecordedOperator,
    /// Revision of the policy.
    pub revision: RecordedRevision,
    /// Variant of the nodes, such as `aws-k8s-1.37`.
    #[schemars(length(max = 64))]
    pub variant: String,
    /// Architecture of the nodes, such as `x86_64`.
    #[schemars(length(max = 32))]
    pub arch: String,
    /// Version that the nodes update to; in the record of drills, the one that they ran, or downloaded.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// Versions that the nodes of this variant and architecture ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub from: Vec<VersionCount>,
    /// Time at which it began.
    #[schemars(with = "Moment")]
    pub begun: Timestamp,
    /// True in the record of drills, which brought no node to a version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drill: bool,
    /// Number of the rollout that it continues: nodes came after that one was completed, or it was too long for one record.
    pub first: Option<i64>,
    /// Canary steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<CanaryStep>,
    /// Whole policy (`spec` of the operator's resource), as JSON, without credentials.
    #[schemars(length(max = 65_536))]
    pub policy: String,
}

/// Results of nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryPage {
    /// Number of the page, from 1.
    #[schemars(range(min = 1))]
    pub number: i64,
    /// One row for each attempt of a node.
    #[schemars(length(max = MOST_ROWS), extend("x-kubernetes-list-type" = "atomic"))]
    pub rows: Vec<HistoryRow>,
}

/// One attempt of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryRow {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// UID of the Node.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The attempt.
    #[serde(flatten)]
    pub result: RolloutResult,
}

/// Kind of an entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum EntryKind {
    /// The rollout began.
    Begun,
    /// A canary step was passed.
    StepPassed,
    /// A canary step that was passed is due again: nodes joined, failures were resolved, or the policy changed.
    StepDueAgain,
    /// A user approved a canary step, or accepted places of it that were not proven.
    Approved,
    /// Updates were disabled.
    Paused,
    /// Updates were enabled again, or continue after failures or a brake had stopped them.
    Resumed,
    /// Failures have stopped all updates.
    Frozen,
    /// Updates that ended one after the other without a proof have braked the rollout.
    Braked,
    /// This version was quarantined.
    Quarantined,
    /// A window opened.
    WindowOpened,
    /// The window closed.
    WindowClosed,
    /// The rollout no longer waits for windows and for the soaks of canary steps.
    Urgent,
    /// Windows and soaks apply to it again.
    UrgencyEnded,
    /// Nodes went on to another version.
    Superseded,
    /// Every node ran the version.
    Completed,
    /// The rollout ended before every node ran the version.
    Stopped,
    /// An entry of another version of the operator.
    #[serde(other)]
    Unknown,
}

impl EntryKind {
    /// The word.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An event in the course of a rollout.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// Time of the event.
    #[schemars(with = "Moment")]
    pub time: Timestamp,
    /// `Begun`, `StepPassed`, `StepDueAgain`, `Approved`, `Paused`, `Resumed`, `Frozen`, `Braked`, `Quarantined`, `WindowOpened`,
    /// `WindowClosed`, `Urgent`, `UrgencyEnded`, `Superseded`, `Completed` or `Stopped`.
    #[schemars(with = "StatusWord")]
    pub kind: EntryKind,
    /// Number of the canary step, from 1.
    pub step: Option<i64>,
    /// Field manager that wrote the request, such as `kubectl-edit`. It is the name of a client, not of a person.
    #[schemars(length(max = 128))]
    pub field_manager: Option<String>,
    /// Explanation for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub message: String,
}

/// A page, as its record names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageSummary {
    /// SHA-256 of the page's `spec` in canonical JSON, hexadecimal.
    #[schemars(length(max = 64))]
    pub digest: String,
    /// Number of rows.
    pub nodes: i64,
    /// Number of pods in them.
    pub pods: i64,
    /// Size of the page as JSON, in bytes.
    pub bytes: i64,
}

/// Course of a rollout. Pages have none.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketRolloutHistoryStatus {
    /// `Running`, `Completed`, `Superseded` or `Stopped`.
    #[serde(default)]
    #[schemars(with = "StatusWord")]
    pub phase: RolloutPhase,
    /// Time at which it ended; absent while it runs.
    #[schemars(with = "Option<Moment>")]
    pub ended: Option<Timestamp>,
    /// First estimate of its completion; absent if it ended before there was one.
    pub first_estimate: Option<CompletionEstimate>,
    /// Number of attempts on all pages.
    #[serde(default)]
    pub nodes: i64,
    /// Number of pods on all pages.
    #[serde(default)]
    pub pods: i64,
    /// Events in the order in which they were recorded. Of more than 400, the oldest about windows are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_ENTRIES), extend("x-kubernetes-list-type" = "atomic"))]
    pub entries: Vec<HistoryEntry>,
    /// Pages, the first one first. Their objects may have been removed since: the digest stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_PAGES), extend("x-kubernetes-list-type" = "atomic"))]
    pub pages: Vec<PageSummary>,
    /// `Frozen`, and `Quarantined`, `Paused`, `WindowClosed` and `Urgent`, from whose changes entries follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Signature of an ended record by the operator's history key: a JWS in compact form whose claims are
    /// [`RecordClaims`].
    #[schemars(length(max = 1024))]
    pub signature: Option<String>,
}

/// The purpose that the signature of a record names, as its audience (`aud`).
pub const RECORD_AUDIENCE: &str = "brupop-rollout-history";

/// Claims of the signature of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordClaims {
    /// [`RECORD_AUDIENCE`].
    pub aud: String,
    /// Name of the record.
    pub record: String,
    /// [`record_digest`] of it.
    pub digest: String,
}

/// Returns the canonical JSON of a value: sorted keys, no blanks.
fn canonical(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(value)?;
    value.sort_all_objects();
    serde_json::to_string(&value)
}

fn hex_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the digest of a page: SHA-256 of its `spec` in canonical JSON, hexadecimal.
pub fn page_digest(spec: &impl Serialize) -> Result<String, serde_json::Error> {
    canonical(spec).map(|text| hex_digest(&text))
}

/// Returns the digest of a record: SHA-256 of its `spec` and of its `status` without the signature, in canonical JSON,
/// hexadecimal. The digests of the pages are part of the status.
///
/// A reader passes what the API server returned, and not what its own types hold of it: those of another version may know
/// fewer fields.
pub fn record_digest(spec: &impl Serialize, status: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut status = serde_json::to_value(status)?;
    if let Value::Object(fields) = &mut status {
        fields.remove("signature");
    }
    canonical(&serde_json::json!({"spec": spec, "status": status})).map(|text| hex_digest(&text))
}

/// Returns the name of a record. It follows from what identifies a rollout, so that two leaders make one record.
pub fn record_name(rollout: &RecordedRollout) -> String {
    let RecordedRollout { number, operator, revision, variant, arch, version, drill, .. } = rollout;
    let kind = if *drill { "\ndrill" } else { "" };
    let identity = format!("{}\n{}\n{variant}\n{arch}\n{version}\n{number}{kind}", operator.uid, revision.number);
    format!("rollout-{number}-{}", &hex_digest(&identity)[..10])
}

/// Returns the name of a page.
pub fn page_name(record: &str, number: i64) -> String {
    format!("{record}-p{number:03}")
}

/// Returns the number of the rollout in the name of a record.
pub fn record_number(name: &str) -> Option<i64> {
    name.strip_prefix("rollout-")?.split_once('-')?.0.parse().ok()
}

/// Returns the number in the name of a page of this record.
pub fn page_number(record: &str, name: &str) -> Option<i64> {
    name.strip_prefix(record)?.strip_prefix("-p")?.parse().ok()
}

#[cfg(test)]
mod tests;
