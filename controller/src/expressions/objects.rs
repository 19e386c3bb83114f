//! Checks of objects: the watches that the policy needs, the questions that nodes wait for, and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::time::signed;
use parking_lot::Mutex;
use planner::expressions::ObjectQuestion;
use planner::objects::{self, Objects, Source, Unread};
use planner::predicate::Fields;
use planner::view::Answer;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::course::Course;
use super::follow::{Known, follow};
use crate::apply::Applier;

/// Time for which a question is remembered after no node waits for it any more: some wait for it on every other turn.
const REMEMBERED: Duration = Duration::from_mins(5);

/// Shortest time between evaluations: changes that come close together are evaluated together.
const PACE: Duration = Duration::from_secs(1);

/// The longest one. Between these it is four times as long as the evaluations took: thousands of nodes may wait for a check that names them.
const LONGEST_PACE: Duration = Duration::from_secs(30);

/// Time after which answers that were evaluated one after the other are recorded: the first do not wait for the last.
const PORTION: Duration = Duration::from_secs(1);

/// Age from which a true answer counts for nothing if its objects have changed since.
const OUTDATED: Duration = Duration::from_secs(60);

/// Watches the objects that the policy names, and evaluates the checks that nodes wait for, until it is dropped.
pub(super) struct ObjectChecks {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    state: Mutex<ObjectsState>,
    /// Notified when there may be something to evaluate.
    due: Arc<Notify>,
    applier: Applier,
}

#[derive(Default)]
struct ObjectsState {
    watched: BTreeMap<Arc<Source>, Watched>,
    asked: BTreeMap<ObjectQuestion, Asked>,
    /// Number of the watches that have been started.
    watches: u64,
}

/// The watch of a source, which ends when it is dropped.
struct Watched {
    fields: Fields,
    known: Arc<Mutex<Known>>,
    _task: JoinSet<()>,
}

/// A question and its answers.
struct Asked {
    /// Moment at which a node waited for it last.
    wanted: Instant,
    source: Arc<Source>,
    course: Course,
    /// The edition of the objects that the last answer is by.
    edition: Option<u64>,
    /// Moment of the last answer.
    answered: Option<Instant>,
}

impl Asked {
    /// Returns the answer that is known, by the edition of the objects now, and by whether changes of them are seen.
    fn answer(&mut self, edition: u64, goes_on: bool, now: Timestamp) -> Option<Answer> {
        let current = self.edition == Some(edition);
        // Nothing has changed since. While the watch is interrupted, that is not known.
        if current && goes_on {
            self.course.confirm(now);
        }
        let answer = self.course.last()?;
        // By its absolute value: a clock that was set back must not keep an answer young.
        let is_old = |asked: Timestamp| now.duration_since(asked).abs() > signed(OUTDATED);
        let outdated = matches!(answer, Answer::Quiet { asked, .. } if !current && is_old(*asked));
        (!outdated).then(|| answer.clone())
    }
}

/// A question to evaluate on these objects.
struct Due {
    question: ObjectQuestion,
    answered: Option<Instant>,
    edition: u64,
    objects: Objects,
}

impl ObjectChecks {
    /// Starts. The driver is woken for answers that have to be checked.
    pub(super) fn start(applier: Applier) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), due: Arc::new(Notify::new()), applier });
        Self { _task: JoinSet::from_iter([evaluate(shared.clone())]), shared }
    }

    /// Sets the questions that nodes wait for, and the objects that the policy names. A watch ends when the policy does not name its
    /// objects any more, or reads other fields of them.
    pub(super) fn want<'a>(
        &self,
        questions: impl Iterator<Item = &'a ObjectQuestion>,
        sources: BTreeMap<Source, Fields>,
    ) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let ObjectsState { watched, asked, watches } = &mut *state;
        watched.retain(|source, watched| sources.get(&**source) == Some(&watched.fields));
        asked.retain(|_, asked| asked.wanted + REMEMBERED > now && watched.contains_key(&asked.source));
        for (source, fields) in sources {
            let new = || {
                *watches += 1;
                Watched::start(self.shared.applier.clone(), source.clone(), fields, *watches, self.shared.due.clone())
            };
            watched.entry(Arc::new(source.clone())).or_insert_with(new);
        }
        for question in questions {
            if let Some(asked) = asked.get_mut(question) {
                asked.wanted = now;
            } else if let Some((source, _)) = watched.get_key_value(&Source::of(&question.check)) {
                let (source, course) = (source.clone(), Course::default());
                asked.insert(question.clone(), Asked { wanted: now, source, course, edition: None, answered: None });
                self.shared.due.notify_one();
            }
        }
    }

    /// Returns the answers that are known.
    pub(super) fn answers(&self, now: Timestamp) -> Vec<(ObjectQuestion, Answer)> {
        let mut state = self.shared.state.lock();
        let ObjectsState { watched, asked, .. } = &mut *state;
        let answer = |(question, asked): (&ObjectQuestion, &mut Asked)| {
            let (edition, goes_on) = {
                let known = watched.get(&asked.source)?.known.lock();
                (known.look()?.0, known.goes_on())
            };
            Some((question.clone(), asked.answer(edition, goes_on, now)?))
        };
        asked.iter_mut().filter_map(answer).collect()
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

impl Watched {
    /// Starts the watch with this number: no two have an edition in common.
    fn start(applier: Applier, source: Source, fields: Fields, number: u64, due: Arc<Notify>) -> Self {
        let known = Arc::new(Mutex::new(Known::after(number << 32)));
        let task = follow(applier, source, fields.clone(), known.clone(), due);
        Self { fields, known, _task: JoinSet::from_iter([task]) }
    }
}

impl Shared {
    /// Returns the questions whose objects have changed since their last answer, if that was before `begun`: first those of all nodes,
    /// and of each kind first those whose last answer is the oldest.
    fn questions_due(&self, begun: Instant) -> Vec<Due> {
        let state = self.state.lock();
        let due = |(question, asked): (&ObjectQuestion, &Asked)| {
            let (edition, objects) = state.watched.get(&asked.source)?.known.lock().look()?;
            let answered = asked.answered;
            let is_due = asked.edition != Some(edition) && answered.is_none_or(|at| at < begun);
            is_due.then(|| Due { question: question.clone(), answered, edition, objects })
        };
        let mut due: Vec<Due> = state.asked.iter().filter_map(due).collect();
        due.sort_by_key(|due| (due.question.node.is_some(), due.answered));
        due
    }

    fn record(&self, made: Vec<(ObjectQuestion, u64, Answer)>) {
        let (mut news, now) = (false, Instant::now());
        let mut state = self.state.lock();
        for (question, edition, answer) in made {
            let Some(asked) = state.asked.get_mut(&question) else { continue };
            tracing::debug!(check = question.check.name, node = question.node, ?answer, "objects checked");
            self.applier.metrics.expression(&answer);
            news |= matches!(answer, Answer::Quiet { .. });
            news |= asked.course.take(answer);
            (asked.edition, asked.answered) = (Some(edition), Some(now));
        }
        drop(state);
        if news {
            self.applier.caches.notify();
        }
    }
}

/// Evaluates what is due, beside the turns of the leader.
async fn evaluate(shared: Arc<Shared>) {
    loop {
        shared.due.notified().await;
        let begun = Instant::now();
        // Each question once: objects may change faster than the questions about them are evaluated.
        loop {
            let (due, now) = (shared.questions_due(begun), shared.applier.leadership.now());
            if due.is_empty() {
                break;
            }
            match tokio::task::spawn_blocking(move || portion(due, now)).await {
                Ok(made) => shared.record(made),
                // A panic in a test: in what ships, it ends the process.
                Err(error) => {
                    tracing::error!(%error, "checks of objects could not be evaluated");
                    break;
                }
            }
        }
        sleep((begun.elapsed() * 4).clamp(PACE, LONGEST_PACE)).await;
    }
}

/// Evaluates questions until all are, or [`PORTION`] is over.
fn portion(due: Vec<Due>, now: Timestamp) -> Vec<(ObjectQuestion, u64, Answer)> {
    let (begun, mut made) = (Instant::now(), Vec::new());
    for Due { question, edition, objects, .. } in due {
        let answer = objects::answer(&question, &objects, now);
        made.push((question, edition, answer));
        if begun.elapsed() >= PORTION {
            break;
        }
    }
    made
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
            let checks = ObjectChecks::start(Applier::of_leader(Client::new(service, "default")));
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

    #[test]
    fn true_answer_counts_for_nothing_once_it_is_old_and_its_objects_have_changed() {
        let t = |second| Timestamp::from_second(second).unwrap();
        let quiet = |second| Answer::Quiet { since: t(0), asked: t(second) };
        let fires = || Answer::Firing { series: "x".into(), since: t(0), asked: t(0) };
        let asked = |answer| {
            let (wanted, source, mut course) = (Instant::now(), Arc::default(), Course::default());
            course.take(answer);
            Asked { wanted, source, course, edition: Some(1), answered: Some(wanted) }
        };
        for (sentence, answer, edition, goes_on, second, expected) in [
            ("the same objects", quiet(0), 1, true, 3600, Some(quiet(3600))),
            ("the same, as far as that is known", quiet(0), 1, false, 3600, Some(quiet(0))),
            ("other objects", quiet(0), 2, true, 60, Some(quiet(0))),
            ("other objects, and an old answer", quiet(0), 2, true, 61, None),
            ("a clock that was set back", quiet(0), 2, true, -61, None),
            ("an old answer that is false", fires(), 2, true, 61, Some(fires())),
        ] {
            assert_eq!(asked(answer).answer(edition, goes_on, t(second)), expected, "{sentence}");
        }
        let mut asked = asked(quiet(0));
        for (edition, second, expected) in
            [(1, 3600, Some(quiet(3600))), (2, 3660, Some(quiet(3600))), (2, 3661, None), (1, 3662, Some(quiet(3662)))]
        {
            assert_eq!(asked.answer(edition, true, t(second)), expected, "at {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions_that_are_the_same_for_all_nodes_are_evaluated_first_and_then_those_that_wait_longest() {
        let case = Case::start(Server::default());
        case.until(|case| case.edition().is_some()).await;
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut state = case.checks.shared.state.lock();
        let source = state.watched.keys().next().unwrap().clone();
        let asked = |(node, answered): (Option<&str>, Option<Instant>)| {
            let question = ObjectQuestion { node: node.map(str::to_owned), ..case.question.clone() };
            let (source, course) = (source.clone(), Course::default());
            (question, Asked { wanted: start, source, course, edition: None, answered })
        };
        let answered = [
            (None, Some(at(5))),
            (Some("a"), Some(at(2))),
            (Some("b"), None),
            (Some("c"), Some(at(1))),
            (Some("d"), Some(at(9))),
        ];
        state.asked = answered.into_iter().map(asked).collect();
        drop(state);
        let due = case.checks.shared.questions_due(at(9));
        let nodes: Vec<_> = due.iter().map(|due| due.question.node.as_deref()).collect();
        assert_eq!(nodes, [None, Some("b"), Some("c"), Some("a")], "that of d is answered");
    }
}
