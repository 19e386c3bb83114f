//! The writers of changes, by the API server's audit log.

use std::collections::{BTreeMap, HashMap};

use std::time::Duration;

use anyhow::ensure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use models::names;
use serde_json::Value;
use tokio::time::Instant;

use crate::control_plane::audit::{Reader, Record, requests};

/// A component of the operator, by its service account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorComponent {
    Controller,
    WebApi,
    Agent,
}

/// The user that a request counts for: the impersonated one, if any.
fn user(record: &Record) -> &str {
    record.impersonated.as_deref().unwrap_or(&record.user)
}

impl OperatorComponent {
    /// The component of a user.
    pub(super) fn of(user: &str) -> Option<Self> {
        let (namespace, account) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        match (namespace, account) {
            (names::SYSTEM_NAMESPACE, names::CONTROLLER) => Some(Self::Controller),
            (names::SYSTEM_NAMESPACE, names::APISERVER) => Some(Self::WebApi),
            (names::AGENT_NAMESPACE, names::AGENT) => Some(Self::Agent),
            _ => None,
        }
    }
}

/// The user name of a service account.
pub fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The writer of a revision, with its earliest and latest time.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) user: String,
    pub(super) received: Timestamp,
    pub(super) reached: Timestamp,
}

/// The writers of revisions.
#[derive(Debug, Default)]
pub(super) struct Writers(HashMap<u64, Writer>);

impl Writers {
    pub(super) fn read(audit: &[Record]) -> Self {
        let mut all: HashMap<u64, Writer> = HashMap::new();
        for record in audit.iter().filter(|record| record.is_write() && record.succeeded()) {
            // The answer to the deletion of a collection is a list, at the revision at which it was read.
            if record.verb == "deletecollection" {
                continue;
            }
            let Some(revision) = record.response.as_ref().and_then(revision) else { continue };
            // A write that changes nothing answers with the revision that it found. If the request named that revision
            // itself, it is certain to be one; else the first one received is the writer.
            if record.request.as_ref().and_then(self::revision) == Some(revision) {
                continue;
            }
            let writer = Writer { user: user(record).to_owned(), received: record.received, reached: record.reached };
            let first = all.entry(revision).or_insert_with(|| writer.clone());
            if writer.received < first.received {
                *first = writer;
            }
        }
        Self(all)
    }

    pub(super) fn of(&self, revision: u64) -> Option<&Writer> {
        self.0.get(&revision)
    }
}

fn revision(object: &Value) -> Option<u64> {
    object.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok()
}

/// A request to remove a pod: an eviction or a deletion.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    pub(super) part: Option<OperatorComponent>,
    pub(super) user: String,
    pub(super) eviction: bool,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The uid in its precondition.
    pub(super) uid: Option<String>,
    pub(super) succeeded: bool,
    pub(super) received: Timestamp,
}

/// All requests of the log to remove pods.
pub(super) fn removals(audit: &[Record]) -> Vec<Removal> {
    let mut all = Vec::new();
    for record in audit.iter().filter(|record| record.resource == "pods" && record.group.is_empty()) {
        let eviction = record.subresource == "eviction" && record.verb == "create";
        let deletion = record.subresource.is_empty() && matches!(record.verb.as_str(), "delete" | "deletecollection");
        if !eviction && !deletion {
            continue;
        }
        // A request that failed before its body was read (an API server going down, say) had no effect.
        if record.request.is_none() && !record.succeeded() {
            continue;
        }
        let options = if eviction { "/deleteOptions/preconditions/uid" } else { "/preconditions/uid" };
        let uid = record.request.as_ref().and_then(|request| request.pointer(options)).and_then(Value::as_str);
        all.push(Removal {
            part: OperatorComponent::of(user(record)),
            user: user(record).to_owned(),
            eviction,
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            uid: uid.map(str::to_owned),
            succeeded: record.succeeded(),
            received: record.received,
        });
    }
    all
}

/// Counts the requests of each user in a span of time, by verb and resource.
pub fn requests_by_user(
    audit: &[Record],
    since: Timestamp,
    until: Timestamp,
) -> BTreeMap<String, BTreeMap<(String, String), usize>> {
    let mut all: BTreeMap<String, BTreeMap<(String, String), usize>> = BTreeMap::new();
    for record in requests(audit).filter(|record| (since..=until).contains(&record.received)) {
        let what = if record.resource.is_empty() { record.uri.clone() } else { record.what() };
        *all.entry(user(record).to_owned()).or_default().entry((record.verb.clone(), what)).or_default() += 1;
    }
    all
}

/// Reads an audit log until it contains everything that the API server has answered by now: the record of a request may
/// come shortly after its response.
///
/// # Errors
/// When the log cannot be read, or does not catch up.
pub async fn settled_audit(reader: &mut Reader, client: &Client) -> anyhow::Result<Vec<Record>> {
    let name = format!("audit-mark-{:016x}", rand::random::<u64>());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.get_opt(&name).await?;
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut all = Vec::new();
    loop {
        all.extend(reader.read()?);
        if all.iter().rev().any(|record: &Record| record.name == name) {
            return Ok(all);
        }
        ensure!(Instant::now() < deadline, "the audit log stays behind");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
