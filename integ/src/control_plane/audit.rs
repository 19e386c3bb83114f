//! The API server's audit log.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use nix::fcntl::{FallocateFlags, fallocate};
use serde::Deserialize;
use serde_json::Value;

/// The stage of a request at which a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Stage {
    /// The response to a long request, such as a watch, has begun.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The server failed during the request.
    Panic,
    /// A stage that the audit policy omits.
    #[serde(other)]
    Other,
}

/// One line of the audit log. A watch gives two: one when it begins, one when it ends; see [`requests`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Event")]
pub struct Record {
    /// Id of the request, shared by all its records.
    pub audit_id: String,
    /// Stage of the request at which this record was written.
    pub stage: Stage,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; the HTTP method in lower
    /// case for paths that are not resources.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// The requesting user, e.g. `system:serviceaccount:kube-system:default`.
    pub user: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The impersonated user, if any.
    pub impersonated: Option<String>,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// API group of the resource; empty for the core group and for paths that are not resources.
    pub group: String,
    /// API version of the resource.
    pub version: String,
    /// The resource in plural; empty for paths that are not resources.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The object's namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty (for lists, watches, and creations where the server has not taken it from the body).
    pub name: String,
    /// HTTP status of the response; 0 if there was none.
    pub code: u16,
    /// Decision of the API server's authoriser; absent if it was not consulted.
    pub allowed: Option<bool>,
    /// Time at which the request was received.
    pub received: Timestamp,
    /// Time at which this stage was reached.
    pub reached: Timestamp,
    /// Body of the request, for the writes that the policy lists.
    pub request: Option<Value>,
    /// Object in the response, for the writes that the policy lists.
    pub response: Option<Value>,
}

impl Record {
    /// Returns true for a request that changes, or would change, an object.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Returns true if the request succeeded.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Resource and subresource in RBAC's notation: `pods/eviction`.
    pub fn what(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Returns each request once: its first record.
pub fn requests(records: &[Record]) -> impl Iterator<Item = &Record> {
    let mut seen = HashSet::new();
    records.iter().filter(move |record| seen.insert(record.audit_id.as_str()))
}

/// Parses one line of the log.
pub fn parse(line: &str) -> serde_json::Result<Record> {
    serde_json::from_str(line)
}

/// Reads the log incrementally.
#[derive(Clone, Debug)]
pub struct Reader {
    path: PathBuf,
    offset: u64,
}

impl Reader {
    /// A reader of the log at `path`, from its beginning.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0 }
    }

    /// Frees the disk of what was read, for every reader. Positions stay, and file systems that cannot do so keep it.
    pub fn discard(&self) -> anyhow::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let _ = fallocate(&file, hole, 0, i64::try_from(self.offset)?);
        Ok(())
    }

    /// Returns the records written since the last call. The record of a request may appear shortly after its response.
    pub fn read(&mut self) -> anyhow::Result<Vec<Record>> {
        let what = || format!("cannot read the audit log {}", self.path.display());
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(what),
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset)).with_context(what)?;
        file.read_to_end(&mut bytes).with_context(what)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut records = Vec::new();
        for line in bytes[..whole].split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let line = std::str::from_utf8(line).with_context(what)?;
            match parse(line).or_else(|error| after_a_torn_record(line).ok_or(error)) {
                Ok(record) => records.push(record),
                Err(error) => return Err(error).with_context(what),
            }
        }
        self.offset += whole as u64;
        Ok(records)
    }
}

/// Parses the rest of a line that begins with a truncated record: a server that is killed while it writes leaves one,
/// and the next server's first record follows on the same line. The truncated one is lost.
fn after_a_torn_record(line: &str) -> Option<Record> {
    let start = line.rfind(r#"{"kind":"Event","apiVersion":"audit.k8s.io/"#)?;
    (start > 0).then(|| parse(&line[start..]).ok()).flatten()
}

/// The record in the API server's format.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: Stage,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<ResponseStatus>,
    #[serde(default)]
    annotations: Annotations,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    request_object: Option<Value>,
    response_object: Option<Value>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    api_version: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision")]
    decision: Option<String>,
}

impl From<Event> for Record {
    fn from(event: Event) -> Self {
        Self {
            audit_id: event.audit_id,
            stage: event.stage,
            verb: event.verb,
            uri: event.request_uri,
            user: event.user.username,
            groups: event.user.groups,
            impersonated: event.impersonated_user.map(|user| user.username),
            user_agent: event.user_agent,
            group: event.object_ref.api_group,
            version: event.object_ref.api_version,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            code: event.response_status.map_or(0, |status| status.code),
            allowed: event.annotations.decision.map(|decision| decision == "allow"),
            received: event.request_received_timestamp,
            reached: event.stage_timestamp,
            request: event.request_object,
            response: event.response_object,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(id: &str, stage: &str) -> String {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"{id}","stage":"{stage}","#
        ) + r#""requestURI":"/api/v1/namespaces/shop/pods/cart/eviction","verb":"create","user":{"username":"admin",
            "groups":["system:masters"]},"sourceIPs":["127.0.0.1"],"userAgent":"kubectl/v1.37.1","objectRef":{"resource":
            "pods","namespace":"shop","name":"cart","apiVersion":"v1","subresource":"eviction"},"responseStatus":{
            "metadata":{},"code":429},"requestObject":{"kind":"Eviction"},"requestReceivedTimestamp":
            "2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.000002Z"}"#
            .replace("\n            ", "")
            .as_str()
    }

    #[test]
    fn audit_record_has_user_verb_and_object() {
        let record = parse(&line("a", "ResponseComplete")).unwrap();
        assert_eq!((record.user.as_str(), record.verb.as_str()), ("admin", "create"));
        assert_eq!(record.what(), "pods/eviction");
        assert_eq!((record.namespace.as_str(), record.name.as_str()), ("shop", "cart"));
        assert_eq!(record.code, 429);
        assert!(record.is_write() && !record.succeeded());
        assert_eq!(record.request.unwrap()["kind"], "Eviction");
        assert!(record.received < record.reached);
    }

    #[test]
    fn audit_reader_resumes_and_waits_for_complete_lines() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut reader = Reader::new(file.path());
        assert!(reader.read().unwrap().is_empty());
        let (first, second) = (line("a", "ResponseStarted"), line("b", "ResponseComplete"));
        writeln!(file, "{first}").unwrap();
        write!(file, "{}", &second[..40]).unwrap();
        assert_eq!(reader.read().unwrap().len(), 1);
        writeln!(file, "{}", &second[40..]).unwrap();
        let records = reader.read().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].audit_id, "b");
        assert!(reader.read().unwrap().is_empty());
    }

    #[test]
    fn truncated_audit_record_is_skipped_and_next_one_is_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let whole = line("b", "ResponseComplete");
        writeln!(file, "{}{whole}", &whole[..100]).unwrap();
        let records = Reader::new(file.path()).read().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].audit_id, "b");
    }

    #[test]
    fn invalid_audit_record_is_reported_as_error() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{{}}").unwrap();
        assert!(Reader::new(file.path()).read().is_err());
    }

    #[test]
    fn watch_is_counted_as_one_request() {
        let records = [
            parse(&line("a", "ResponseStarted")).unwrap(),
            parse(&line("a", "ResponseComplete")).unwrap(),
            parse(&line("b", "ResponseComplete")).unwrap(),
        ];
        let stages: Vec<Stage> = requests(&records).map(|record| record.stage).collect();
        assert_eq!(stages, [Stage::ResponseStarted, Stage::ResponseComplete]);
    }
}
