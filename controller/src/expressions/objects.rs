//! Checks of objects: the watches that the policy needs, the questions that nodes wait for, and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use planner::expressions::ObjectQuestion;
use planner::objects::{self, Objects, Source, Unread};
use planner::predicate::Fields;
use planner::view::Answer;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::course::Course;
use super::follow::{Known, Reader, follow};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Time for which a question is remembered after no node waits for it any more: some wait for it on every other turn.
const REMEMBERED: Duration = Duration::from_mins(5);

/// Shortest time between evaluations: changes that come close together are evaluated together.
const PACE: Duration = Duration::from_secs(1);

/// The longest one. Between these it is four times as long as the evaluations took: thousands of nodes may wait for a check that names them.
const LONGEST_PACE: Duration = Duration::from_secs(30);

/// Watches the objects that the policy names, and evaluates the checks that nodes wait for, until it is dropped.
pub(super) struct ObjectChecks {
    shared: Arc<Shared>,
    /// Without one nothing is watched.
    reader: Option<Reader>,
    task: JoinHandle<()>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when there may be something to evaluate.
    due: Arc<Notify>,
    changed: Arc<watch::Sender<u64>>,
    metrics: Metrics,
    clock: Clock,
}

#[derive(Default)]
struct State {
    watched: BTreeMap<Arc<Source>, Watched>,
    asked: BTreeMap<ObjectQuestion, Asked>,
    /// Number of the watches that have been started.
    watches: u64,
}

/// The watch of a source, which ends when it is dropped.
struct Watched {
    fields: Fields,
    known: Arc<Mutex<Known>>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A question and its answers.
struct Asked {
    /// Moment at which a node waited for it last.
    wanted: Instant,
    source: Arc<Source>,
    course: Course,
    /// The edition of the objects that the last answer is by.
    edition: Option<u64>,
}

/// A question to evaluate on these objects.
struct Due {
    question: ObjectQuestion,
    edition: u64,
    objects: Objects,
}

impl ObjectChecks {
    /// Starts. `changed` is notified of answers that have to be checked.
    pub(super) fn start(
        reader: Option<Reader>,
        changed: Arc<watch::Sender<u64>>,
        metrics: Metrics,
        clock: Clock,
    ) -> Self {
        let (state, due) = (Mutex::default(), Arc::new(Notify::new()));
        let shared = Arc::new(Shared { state, due, changed, metrics, clock });
        Self { task: tokio::spawn(evaluate(shared.clone())), shared, reader }
    }

    /// Takes in the questions that nodes wait for, and the objects that the policy names. A watch ends when the policy does not name its
    /// objects any more, or reads other fields of them.
    pub(super) fn want<'a>(
        &self,
        questions: impl Iterator<Item = &'a ObjectQuestion>,
        sources: BTreeMap<Source, Fields>,
    ) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let State { watched, asked, watches } = &mut *state;
        watched.retain(|source, watched| sources.get(&**source) == Some(&watched.fields));
        asked.retain(|_, asked| asked.wanted + REMEMBERED > now && watched.contains_key(&asked.source));
        if let Some(reader) = &self.reader {
            for (source, fields) in sources {
                let new = || {
                    *watches += 1;
                    Watched::start(reader.clone(), source.clone(), fields, *watches, self.shared.due.clone())
                };
                watched.entry(Arc::new(source.clone())).or_insert_with(new);
            }
        }
        for question in questions {
            if let Some(asked) = asked.get_mut(question) {
                asked.wanted = now;
            } else if let Some((source, _)) = watched.get_key_value(&Source::of(&question.check)) {
                let (source, course) = (source.clone(), Course::default());
                asked.insert(question.clone(), Asked { wanted: now, source, course, edition: None });
                self.shared.due.notify_one();
            }
        }
    }

    /// Returns the answers that are known.
    pub(super) fn answers(&self, now: Timestamp) -> Vec<(ObjectQuestion, Answer)> {
        let state = self.shared.state.lock();
        let answer = |(question, asked): (&ObjectQuestion, &Asked)| {
            let (edition, goes_on) = {
                let known = state.watched.get(&asked.source)?.known.lock();
                (known.look()?.0, known.goes_on())
            };
            let mut answer = asked.course.last()?.clone();
            // Nothing has changed since. While the watch is interrupted, that is not known.
            if goes_on
                && asked.edition == Some(edition)
                && let Answer::Quiet { asked, .. } | Answer::Firing { asked, .. } = &mut answer
            {
                *asked = now;
            }
            Some((question.clone(), answer))
        };
        state.asked.iter().filter_map(answer).collect()
    }

    /// Returns the objects that the policy names and that cannot be read, each with the reason. Outages are left out.
    pub(super) fn problems(&self) -> Vec<String> {
        let state = self.shared.state.lock();
        let problem = |(source, watched): (&Arc<Source>, &Watched)| match watched.known.lock().look()? {
            (_, Objects::Read(_) | Objects::Unread(Unread::Fails(_))) => None,
            (_, Objects::Unread(why)) => Some(format!("{source}: {why}")),
        };
        state.watched.iter().filter_map(problem).collect()
    }
}

impl Drop for ObjectChecks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watched {
    /// Starts the watch with this number: no two have an edition in common.
    fn start(reader: Reader, source: Source, fields: Fields, number: u64, due: Arc<Notify>) -> Self {
        let known = Arc::new(Mutex::new(Known::after(number << 32)));
        let task = tokio::spawn(follow(reader, source, fields.clone(), known.clone(), due));
        Self { fields, known, task }
    }
}

impl Shared {
    /// Returns the questions whose objects have changed since their last answer.
    fn questions_due(&self) -> Vec<Due> {
        let state = self.state.lock();
        let due = |(question, asked): (&ObjectQuestion, &Asked)| {
            let (edition, objects) = state.watched.get(&asked.source)?.known.lock().look()?;
            (asked.edition != Some(edition)).then(|| Due { question: question.clone(), edition, objects })
        };
        state.asked.iter().filter_map(due).collect()
    }

    fn record(&self, made: Vec<(ObjectQuestion, u64, Answer)>) {
        let mut news = false;
        let mut state = self.state.lock();
        for (question, edition, answer) in made {
            let Some(asked) = state.asked.get_mut(&question) else { continue };
            tracing::debug!(check = question.check.name, node = question.node, ?answer, "objects checked");
            self.metrics.expression(&answer);
            news |= matches!(answer, Answer::Quiet { .. });
            news |= asked.course.take(answer);
            asked.edition = Some(edition);
        }
        drop(state);
        if news {
            self.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }
}

/// Evaluates what is due, beside the turns of the leader.
async fn evaluate(shared: Arc<Shared>) {
    loop {
        shared.due.notified().await;
        let (due, now) = (shared.questions_due(), shared.clock.now());
        let begun = Instant::now();
        let made = tokio::task::spawn_blocking(move || {
            let evaluated = due.into_iter().map(|Due { question, edition, objects }| {
                let answer = objects::answer(&question, &objects, now);
                (question, edition, answer)
            });
            evaluated.collect::<Vec<_>>()
        });
        match made.await {
            Ok(made) => shared.record(made),
            Err(error) => tracing::error!(%error, "checks of objects could not be evaluated"),
        }
        sleep((begun.elapsed() * 4).clamp(PACE, LONGEST_PACE)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use kube::Client;
    use kube::client::Body;
    use models::operator::ObjectCheck;
    use planner::predicate::Predicate;
    use serde_json::{Value, json};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(10);

    /// A stand-in for the API server, with one object.
    #[derive(Default)]
    struct Server {
        /// The number of requests for the kind before it is served.
        kind_comes_after: usize,
        refuses_watches: AtomicBool,
        kind_requests: AtomicUsize,
        /// The number of all requests.
        requests: AtomicUsize,
    }

    impl Server {
        /// Returns the answer to a request; `None` to a watch, in which nothing happens.
        fn answer(&self, uri: &http::Uri) -> Option<(u16, Value)> {
            let status = |code: u16, reason: &str| {
                let status =
                    json!({"kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code});
                (code, status)
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            if uri.query().is_some_and(|query| query.contains("watch=true")) {
                return self.refuses_watches.load(Ordering::Relaxed).then(|| status(403, "Forbidden"));
            }
            if uri.path() == "/apis/ceph.rook.io/v1/namespaces/rook/cephclusters" {
                let object = json!({"metadata": {"name": "main", "namespace": "rook", "resourceVersion": "7"}, "status": {"health": "OK"}});
                return Some((200, json!({"metadata": {"resourceVersion": "7"}, "items": [object]})));
            }
            assert_eq!(uri.path(), "/apis/ceph.rook.io/v1");
            if self.kind_requests.fetch_add(1, Ordering::Relaxed) < self.kind_comes_after {
                return Some(status(404, "NotFound"));
            }
            let resource = json!({
                "name": "cephclusters", "singularName": "cephcluster", "namespaced": true, "kind": "CephCluster",
                "verbs": ["get", "list", "watch"],
            });
            let resources =
                json!({"kind": "APIResourceList", "groupVersion": "ceph.rook.io/v1", "resources": [resource]});
            Some((200, resources))
        }
    }

    /// A check of the object of a server.
    struct Case {
        server: Arc<Server>,
        checks: ObjectChecks,
        question: ObjectQuestion,
        sources: BTreeMap<Source, Fields>,
    }

    impl Case {
        fn start(server: Server) -> Self {
            let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
            let server = Arc::new(server);
            let served = server.clone();
            tokio::spawn(async move {
                let mut watches = Vec::new();
                while let Some((request, respond)) = handle.next_request().await {
                    let Some((code, body)) = served.answer(request.uri()) else {
                        watches.push(respond);
                        continue;
                    };
                    let body = Body::from(serde_json::to_vec(&body).unwrap());
                    respond.send_response(http::Response::builder().status(code).body(body).unwrap());
                }
            });
            let reader = Reader { client: Client::new(service, "default"), namespace: "brupop-system".to_owned() };
            let changed = Arc::new(watch::channel(0).0);
            let checks = ObjectChecks::start(Some(reader), changed, Metrics::new().unwrap(), Clock::default());
            let check = ObjectCheck {
                api_version: "ceph.rook.io/v1".into(),
                kind: "CephCluster".into(),
                namespace: Some("rook".into()),
                expression: "self.status.health == 'OK'".into(),
                ..ObjectCheck::default()
            };
            let fields = Predicate::of(&check.expression).unwrap().fields.clone();
            let sources = BTreeMap::from([(Source::of(&check), fields)]);
            let question = ObjectQuestion { node: None, version: None, check: Arc::new(check) };
            checks.want([&question].into_iter(), sources.clone());
            Self { server, checks, question, sources }
        }

        fn answers(&self) -> Vec<(ObjectQuestion, Answer)> {
            self.checks.answers(Timestamp::UNIX_EPOCH)
        }

        async fn until(&self, holds: impl Fn(&Self) -> bool) {
            let reached = async {
                while !holds(self) {
                    sleep(PACE).await;
                }
            };
            tokio::time::timeout(PATIENCE, reached).await.unwrap();
        }

        /// The edition of the objects.
        fn edition(&self) -> Option<u64> {
            let state = self.checks.shared.state.lock();
            let (_, watched) = state.watched.first_key_value()?;
            let (edition, _) = watched.known.lock().look()?;
            Some(edition)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn kind_that_is_not_served_yet_is_asked_for_again_and_its_checks_are_answered_then() {
        let case = Case::start(Server { kind_comes_after: 5, ..Server::default() });
        assert_eq!(case.answers(), []);
        case.until(|case| !case.answers().is_empty()).await;
        let failed = case.answers().remove(0).1;
        assert!(
            matches!(&failed, Answer::Failed { message } if message.contains("does not serve this kind")),
            "{failed:?}"
        );
        assert_eq!(case.checks.problems().len(), 1);
        case.until(|case| matches!(case.answers()[..], [(_, Answer::Quiet { .. })])).await;
        assert!(case.checks.problems().is_empty());
        let expression = "self.status.health != 'OK'".into();
        let opposite = Arc::new(ObjectCheck { expression, ..(*case.question.check).clone() });
        let opposite = ObjectQuestion { check: opposite, ..case.question.clone() };
        case.checks.want([&opposite].into_iter(), case.sources.clone());
        case.until(|case| case.answers().iter().any(|(_, answer)| matches!(answer, Answer::Firing { .. }))).await;
        let later = Timestamp::from_second(60).unwrap();
        for (_, answer) in case.checks.answers(later) {
            let (Answer::Quiet { asked, .. } | Answer::Firing { asked, .. }) = answer else { panic!("{answer:?}") };
            assert_eq!(asked, later, "nothing has changed until then");
        }
        // Another policy.
        case.checks.want([&case.question].into_iter(), BTreeMap::new());
        assert_eq!(case.answers(), []);
        assert!(case.checks.shared.state.lock().watched.is_empty(), "the watch has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_may_be_listed_and_not_watched_stay_unread_with_few_requests() {
        let case = Case::start(Server { refuses_watches: true.into(), ..Server::default() });
        case.until(|case| !case.checks.problems().is_empty()).await;
        let edition = case.edition();
        sleep(Duration::from_mins(10)).await;
        assert_eq!(case.edition(), edition, "they were not read for an instant");
        let problems = case.checks.problems();
        assert!(matches!(&problems[..], [problem] if problem.contains("may not list and watch")), "{problems:?}");
        let requests = case.server.requests.load(Ordering::Relaxed);
        assert!(requests < 200, "{requests} requests");
        case.server.refuses_watches.store(false, Ordering::Relaxed);
        case.until(|case| case.checks.problems().is_empty()).await;
        case.until(|case| matches!(case.answers()[..], [(_, Answer::Quiet { .. })])).await;
    }
}
