//! Expressions: what the policy asks of Prometheus, and of objects of the cluster, before a node is taken out of service and after its
//! update.
//!
//! ```text
//! plan names the questions that nodes wait for ──► want ──► queries: sent every interval, at most four at a time
//!        ▲                                                  checks of objects: evaluated after each change of a watch
//!        │                                                        │
//!        └── answers (in the next view) ◄── wakes the driver ◄────┘
//! ```
//!
//! Anything but a fresh quiet answer keeps the node waiting: no answer, one that cannot be read, one that is old.

mod answer;
mod course;
mod credentials;
mod follow;
mod ledger;
mod objects;
mod query;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::apply::Applier;
use ledger::Ledger;
use objects::ObjectChecks;
use planner::expressions::Question;
use planner::objects::sources;
use planner::policy::{Policy, Prometheus};
use planner::view::Answer;

pub use credentials::Secret;
pub(crate) use query::root_cause;

#[cfg(any(test, fuzzing))]
pub(crate) use answer::read as read_answer;

/// Maximum number of queries under way: Prometheus serves others too, and the load must not depend on the fleet's size.
const CONCURRENT: usize = 4;

/// The means to send queries.
#[derive(Default)]
pub struct Options {
    /// The authorities that the certificate of Prometheus is verified with.
    pub ca_file: Option<PathBuf>,
    /// The credentials.
    pub secret: Secret,
}

/// Sends the wanted queries, and evaluates the wanted checks of objects, until it is dropped.
pub struct Expressions {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
    objects: ObjectChecks,
}

struct Shared {
    ledger: Mutex<Ledger>,
    /// Notified when there may be something to send.
    wanted: Notify,
    applier: Applier,
    options: Options,
}

impl Expressions {
    /// Starts. The driver is woken for answers that have to be checked.
    pub fn start(applier: Applier, options: Options) -> Self {
        let objects = ObjectChecks::start(applier.clone());
        let shared = Arc::new(Shared { ledger: Mutex::default(), wanted: Notify::new(), applier, options });
        Self { _task: JoinSet::from_iter([run(shared.clone())]), shared, objects }
    }

    /// Sets the questions that nodes wait for, those of them whose answers are too old if they were asked before a time, and the policy:
    /// the address to send queries to, and the objects to watch. Called after each plan.
    pub fn want(&self, wanted: &BTreeSet<Question>, asked_again: &BTreeMap<Question, Timestamp>, policy: &Policy) {
        let of_objects = wanted.iter().filter_map(|question| match question {
            Question::Objects(of) => Some(of),
            Question::Query(_) => None,
        });
        self.objects.want(of_objects, sources(policy));
        let queries = wanted.iter().filter_map(query_of).collect();
        let again = asked_again.iter().filter_map(|(question, since)| Some((query_of(question)?, *since))).collect();
        let news = self.shared.ledger.lock().want(&queries, &again, policy.prometheus.as_ref(), Instant::now());
        if news {
            self.shared.applier.caches.notify();
        }
        self.shared.wanted.notify_one();
    }

    /// Returns the answers by question. Questions without an answer are left out.
    pub fn answers(&self, now: Timestamp) -> BTreeMap<Question, Answer> {
        let queries = self.shared.ledger.lock().answers(now);
        let queries = queries.into_iter().map(|(query, answer)| (Question::Query(query), answer));
        let of_objects = self.objects.answers(now).into_iter();
        queries.chain(of_objects.map(|(question, answer)| (Question::Objects(question), answer))).collect()
    }

    /// Returns the objects that the policy names and that cannot be read, each with the reason.
    pub fn problems(&self) -> Vec<String> {
        self.objects.problems()
    }
}

/// Returns the query to Prometheus, if a question is one.
fn query_of(question: &Question) -> Option<String> {
    match question {
        Question::Query(query) => Some(query.clone()),
        Question::Objects(_) => None,
    }
}

impl Shared {
    fn record(&self, query: &str, edition: u64, sent: Timestamp, answer: Answer) {
        match &answer {
            Answer::Quiet { .. } => tracing::debug!(query, "an expression is quiet"),
            Answer::Firing { series, .. } => tracing::debug!(query, series, "an expression returns something"),
            Answer::Failed { message } => tracing::debug!(query, detail = message, "an expression has no answer"),
        }
        self.applier.metrics.expression(&answer);
        let news = self.ledger.lock().record(query, edition, sent, answer);
        if news {
            self.applier.caches.notify();
        }
    }
}

/// The client and the state of sending.
struct Sender {
    client: Result<reqwest::Client, String>,
    made: Instant,
    failed: bool,
}

impl Sender {
    async fn make(settings: &Prometheus, shared: &Shared) -> Self {
        let client = query::client(settings, shared.options.ca_file.as_deref()).await;
        Self { client, made: Instant::now(), failed: false }
    }

    /// Returns whether another client is to be made: from time to time while there are no answers, since the
    /// authorities in the file may have been renewed.
    fn is_over(&self, settings: &Prometheus) -> bool {
        (self.failed || self.client.is_err()) && self.made.elapsed() >= settings.interval
    }
}

async fn run(shared: Arc<Shared>) {
    let mut under_way = FuturesUnordered::new();
    let mut sender: Option<Sender> = None;
    let mut sent_under = 0;
    loop {
        let (edition, settings, due) = {
            let mut ledger = shared.ledger.lock();
            let (edition, settings) = ledger.settings();
            let settings = settings.cloned();
            if edition != sent_under {
                // Queries to another server are not waited for.
                under_way.clear();
                sender = None;
                sent_under = edition;
            }
            (edition, settings, ledger.due(Instant::now(), CONCURRENT - under_way.len()))
        };
        if let Some(settings) = settings.filter(|_| !due.queries.is_empty()) {
            let usable = match sender.take().filter(|sender| !sender.is_over(&settings)) {
                Some(sender) => sender,
                None => Sender::make(&settings, &shared).await,
            };
            for query in due.queries {
                under_way.push(one(shared.clone(), usable.client.clone(), settings.clone(), query, edition));
            }
            sender = Some(usable);
        }
        let timer = async {
            match due.next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((query, edition, sent, answer)) = under_way.next() => {
                if let Some(sender) = &mut sender {
                    sender.failed |= matches!(answer, Answer::Failed { .. });
                }
                shared.record(&query, edition, sent, answer);
            }
            () = shared.wanted.notified() => {}
            () = timer => {}
        }
    }
}

async fn one(
    shared: Arc<Shared>,
    client: Result<reqwest::Client, String>,
    settings: Prometheus,
    query: String,
    edition: u64,
) -> (String, u64, Timestamp, Answer) {
    let sent = shared.applier.leadership.now();
    let answer = match client {
        Ok(client) => query::send(&client, &settings, &shared.options.secret, &query, sent).await,
        Err(message) => Answer::Failed { message },
    };
    (query, edition, sent, answer)
}
