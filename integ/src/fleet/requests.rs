//! The operator's requests to the API server, from its audit log.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::names::{AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, SYSTEM_NAMESPACE};
use parking_lot::{Mutex, MutexGuard};

use crate::control_plane::audit::{Reader, Record, Stage};
use crate::oracle::service_account;

/// The audit policy of a fleet's cluster.
pub(super) const OUTLINE: &str = include_str!("audit-policy.yaml");

/// A component of the operator that makes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The controller.
    Controller,
    /// The web API.
    WebApi,
    /// An agent, which never connects to the API server.
    Agent,
}

impl Part {
    /// Name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::WebApi => "web API",
            Self::Agent => "agent",
        }
    }

    /// The component that made a request.
    pub(super) fn of(record: &Record) -> Option<Self> {
        [(Self::Controller, SYSTEM_NAMESPACE, CONTROLLER), (Self::WebApi, SYSTEM_NAMESPACE, APISERVER)]
            .into_iter()
            .chain([(Self::Agent, AGENT_NAMESPACE, AGENT)])
            .find_map(|(part, namespace, name)| (record.user == service_account(namespace, name)).then_some(part))
    }
}

/// The kind of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKind {
    /// The component that made it.
    pub part: Part,
    /// The verb.
    pub verb: String,
    /// Resource and subresource, or the path.
    pub what: String,
    /// Status of the response if it is an error.
    pub error: Option<u16>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Request {
    at: Timestamp,
    kind: usize,
}

/// All requests of the operator so far.
pub(super) struct Requests(Mutex<Log>);

struct Log {
    reader: Reader,
    kinds: Vec<RequestKind>,
    all: Vec<Request>,
}

impl Requests {
    /// Requests of an audit log.
    pub(super) fn new(reader: Reader) -> Self {
        Self(Mutex::new(Log { reader, kinds: Vec::new(), all: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock()
    }

    /// Reads what was logged since the last call.
    pub(super) fn read(&self) -> anyhow::Result<()> {
        let log = &mut *self.lock();
        for record in log.reader.read()? {
            let Some(part) = Part::of(&record) else { continue };
            // A watch gives two records, of which the second one comes at its end.
            if record.verb == "watch" && record.stage == Stage::ResponseComplete && record.code == 200 {
                continue;
            }
            let path = || record.uri.split('?').next().unwrap_or_default().to_owned();
            let what = if record.resource.is_empty() { path() } else { record.what() };
            let error = (record.code >= 400).then_some(record.code);
            let kind = RequestKind { part, verb: record.verb.clone(), what, error };
            let kind = log.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                log.kinds.push(kind);
                log.kinds.len() - 1
            });
            log.all.push(Request { at: record.received, kind });
        }
        Ok(())
    }

    /// Number of requests of each kind between two times.
    pub(super) fn table(&self, from: Timestamp, to: Timestamp) -> BTreeMap<RequestKind, usize> {
        let log = self.lock();
        let mut table = BTreeMap::new();
        for request in log.all.iter().filter(|request| request.at >= from && request.at < to) {
            *table.entry(log.kinds[request.kind].clone()).or_default() += 1;
        }
        table
    }

    /// Requests in each second between two times, of one component or of all of them.
    pub(super) fn per_second(&self, from: Timestamp, to: Timestamp, part: Option<Part>) -> Vec<f64> {
        let seconds = usize::try_from(to.duration_since(from).as_secs()).unwrap_or_default();
        let mut counts = vec![0.0; seconds + 1];
        let log = self.lock();
        for request in &log.all {
            let wanted = part.is_none_or(|part| log.kinds[request.kind].part == part);
            let second = usize::try_from(request.at.duration_since(from).as_secs());
            if let (true, true, Ok(second)) = (wanted, request.at >= from, second)
                && let Some(count) = counts.get_mut(second)
            {
                *count += 1.0;
            }
        }
        counts
    }
}
