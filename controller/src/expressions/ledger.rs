//! The wanted queries, when each was sent, and the answers. No clock, no network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::time::signed;
use tokio::time::Instant;

use super::course::Course;
use planner::policy::Prometheus;
use planner::view::Answer;

#[derive(Default)]
struct QueryState {
    wanted: bool,
    under_way: bool,
    /// Moment of the last request: for the schedule.
    sent: Option<Instant>,
    /// Time of the request, by the clock, of the answer that is kept.
    sent_at: Option<Timestamp>,
    course: Course,
    /// The next answer is waited for, since the one before is too old.
    awaited: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Due {
    /// The queries to send now.
    pub(super) queries: Vec<String>,
    /// The time of the next check.
    pub(super) next: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Ledger {
    settings: Option<Prometheus>,
    /// Rises with each change of the settings; an answer to a query under earlier ones is discarded.
    edition: u64,
    lines: BTreeMap<String, QueryState>,
}

impl Ledger {
    /// Returns the edition of the settings, and the settings.
    pub(super) fn settings(&self) -> (u64, Option<&Prometheus>) {
        (self.edition, self.settings.as_ref())
    }

    /// Sets the wanted queries. Returns whether there are new answers to check.
    ///
    /// A query that is no longer wanted is not sent again. Its answer is kept until the interval is over: a planner
    /// that wants it on every other check would otherwise have it sent as fast as Prometheus can answer.
    /// One that is to be `asked_again` is sent at once, whatever the interval, if that was done before the time that it has there.
    pub(super) fn want(
        &mut self,
        wanted: &BTreeSet<String>,
        asked_again: &BTreeMap<String, Timestamp>,
        settings: Option<&Prometheus>,
        now: Instant,
    ) -> bool {
        if self.settings.as_ref() != settings {
            self.settings = settings.cloned();
            self.edition += 1;
            self.lines.clear();
        }
        let interval = self.interval();
        self.lines.retain(|query, line| {
            let was = std::mem::replace(&mut line.wanted, wanted.contains(query));
            (was && line.wanted) || line.under_way || line.sent.is_some_and(|sent| sent + interval > now)
        });
        let mut news = false;
        for query in wanted {
            if self.lines.contains_key(query) {
                continue;
            }
            let mut line = QueryState { wanted: true, ..QueryState::default() };
            if self.settings.is_none() {
                let message = "no Prometheus server is configured: set spec.prometheus.url to its address".to_owned();
                news |= line.course.take(Answer::Failed { message });
            }
            self.lines.insert(query.clone(), line);
        }
        for (query, since) in asked_again {
            let too_old = |line: &&mut QueryState| line.sent_at.is_some_and(|sent| sent < *since) && !line.under_way;
            if let Some(line) = self.lines.get_mut(query).filter(too_old) {
                (line.sent, line.awaited) = (None, true);
            }
        }
        news
    }

    /// Returns the queries to send now, at most `places`, those first that have waited longest. They count as sent.
    pub(super) fn due(&mut self, now: Instant, places: usize) -> Due {
        if self.settings.is_none() {
            return Due::default();
        }
        let interval = self.interval();
        let mut waiting: Vec<(Option<Instant>, &String)> = self
            .lines
            .iter()
            .filter(|(_, line)| line.wanted && !line.under_way)
            .map(|(query, line)| (line.sent.map(|sent| sent + interval), query))
            .collect();
        waiting.sort();
        let due = waiting.iter().take_while(|(at, _)| at.is_none_or(|at| at <= now)).count();
        // Without a free place the end of a query under way is the next event.
        let next = if due > places { None } else { waiting.get(due).and_then(|(at, _)| *at) };
        let queries: Vec<String> = waiting.into_iter().take(due.min(places)).map(|(_, query)| query.clone()).collect();
        for query in &queries {
            if let Some(line) = self.lines.get_mut(query) {
                line.under_way = true;
                line.sent = Some(now);
            }
        }
        Due { queries, next }
    }

    /// Records the result of a query that was sent under `edition` of the settings at `sent_at`. Returns whether it
    /// has to be checked: at another kind of answer than before, at each further empty answer, and at one that is waited for.
    pub(super) fn record(&mut self, query: &str, edition: u64, sent_at: Timestamp, answer: Answer) -> bool {
        if edition != self.edition {
            return false;
        }
        let Some(line) = self.lines.get_mut(query) else { return false };
        line.under_way = false;
        line.sent_at = Some(sent_at);
        let (quiet, awaited) = (matches!(answer, Answer::Quiet { .. }), std::mem::take(&mut line.awaited));
        let changed = line.course.take(answer);
        line.wanted && (changed || quiet || awaited)
    }

    /// Returns the known answers. An old empty answer is left out.
    pub(super) fn answers(&self, now: Timestamp) -> BTreeMap<String, Answer> {
        let interval = self.interval();
        self.lines
            .iter()
            .filter_map(|(query, line)| {
                let answer = line.course.last()?;
                // By its absolute value: a clock that was set back must not keep an answer young.
                let age = line.sent_at.map(|at| now.duration_since(at).abs());
                let older = |limit: Duration| age.is_some_and(|age| age > signed(limit));
                if !line.wanted && older(interval) {
                    return None;
                }
                let answer = match answer {
                    Answer::Quiet { .. } if older(interval.saturating_mul(2)) => Answer::Failed {
                        message: format!(
                            "the last answer of Prometheus is older than twice the interval ({interval:?}): it is slow for \
                             so many expressions; check its load, or write a longer spec.prometheus.interval"
                        ),
                    },
                    answer => answer.clone(),
                };
                Some((query.clone(), answer))
            })
            .collect()
    }

    fn interval(&self) -> Duration {
        self.settings.as_ref().map_or(Duration::ZERO, |settings| settings.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::answer_kind;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// A ledger with its own time, in seconds.
    struct Case {
        ledger: Ledger,
        start: Instant,
        settings: Prometheus,
    }

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn firing(series: &str) -> Answer {
        Answer::Firing { series: series.into(), since: t(0), asked: t(0) }
    }

    fn failed(message: &str) -> Answer {
        Answer::Failed { message: message.into() }
    }

    impl Case {
        fn new() -> Self {
            let settings = Prometheus { url: "http://p".into(), timeout: Duration::from_secs(10), interval: INTERVAL };
            Self { ledger: Ledger::default(), start: Instant::now(), settings }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn want(&mut self, second: u64, wanted: &[&str]) -> bool {
            let wanted = wanted.iter().map(|q| (*q).to_owned()).collect();
            let now = self.at(second);
            self.ledger.want(&wanted, &BTreeMap::new(), Some(&self.settings), now)
        }

        /// Wants a query, and an answer of this second or a later one.
        fn want_since(&mut self, second: u64, query: &str, since: i64) {
            let (wanted, now) = ([query.to_owned()].into(), self.at(second));
            self.ledger.want(&wanted, &[(query.to_owned(), t(since))].into(), Some(&self.settings), now);
        }

        fn due(&mut self, second: u64, places: usize) -> Vec<String> {
            let now = self.at(second);
            self.ledger.due(now, places).queries
        }

        fn ends(&mut self, second: i64, query: &str, answer: Answer) -> bool {
            self.ledger.record(query, self.ledger.edition, t(second), answer)
        }

        fn kinds(&self, second: i64) -> Vec<(String, &'static str)> {
            self.ledger.answers(t(second)).into_iter().map(|(query, answer)| (query, answer_kind(&answer))).collect()
        }
    }

    #[test]
    fn new_query_is_due_at_once_and_then_every_interval() {
        let mut case = Case::new();
        case.want(0, &["a"]);
        assert_eq!(case.due(0, 4), ["a"]);
        assert_eq!(case.due(60, 4), [""; 0], "it is under way");
        case.ends(0, "a", firing("x"));
        let now = case.at(29);
        assert_eq!(case.ledger.due(now, 4), Due { queries: vec![], next: Some(case.at(30)) });
        assert_eq!(case.due(30, 4), ["a"]);
    }

    #[test]
    fn query_whose_answer_is_too_old_is_sent_again_at_once_and_has_been_quiet_all_the_while() {
        let mut case = Case::new();
        let quiet = |since, asked| Answer::Quiet { since: t(since), asked: t(asked) };
        case.want(0, &["a"]);
        case.due(0, 4);
        case.want_since(1, "a", 1);
        assert_eq!(case.due(1, 4), [""; 0], "it is under way");
        case.ends(0, "a", quiet(0, 0));
        case.want_since(2, "a", 0);
        assert_eq!(case.due(2, 4), [""; 0], "its answer is young enough");
        case.want_since(10, "a", 9);
        assert_eq!(case.due(10, 4), ["a"]);
        case.ends(10, "a", quiet(10, 10));
        assert_eq!(case.ledger.answers(t(10))["a"], quiet(0, 10));
        case.want_since(11, "a", 9);
        assert_eq!(case.due(11, 4), [""; 0], "once");
        case.want_since(20, "a", 20);
        assert_eq!(case.due(20, 4), ["a"]);
        case.ends(20, "a", failed("no answer"));
        case.want_since(21, "a", 20);
        assert_eq!(case.due(21, 4), [""; 0], "one that fails is repeated after the interval");
    }

    #[test]
    fn longest_waiting_queries_run_first() {
        let mut case = Case::new();
        case.want(0, &["a", "b", "c"]);
        assert_eq!(case.due(0, 2), ["a", "b"]);
        let now = case.at(0);
        assert_eq!(case.ledger.due(now, 0), Due::default(), "the end of another query is awaited");
        case.ends(0, "a", firing("x"));
        assert_eq!(case.due(31, 1), ["c"], "never sent comes before sent long ago");
        case.ends(31, "c", firing("x"));
        assert_eq!(case.due(32, 1), ["a"]);
    }

    #[test]
    fn unneeded_query_is_dropped_after_interval() {
        let mut case = Case::new();
        case.want(0, &["a", "b"]);
        case.due(0, 4);
        case.ends(0, "a", firing("x"));
        case.ends(0, "b", firing("y"));
        case.want(10, &["b"]);
        assert_eq!(case.due(60, 4), ["b"]);
        assert_eq!(case.kinds(30), [("a".to_owned(), "Firing"), ("b".to_owned(), "Firing")]);
        assert_eq!(case.kinds(31), [("b".to_owned(), "Firing")]);
        case.want(60, &["b"]);
        assert_eq!(case.ledger.lines.len(), 1);
    }

    #[test]
    fn intermittently_needed_query_runs_once_per_interval() {
        let mut case = Case::new();
        let mut sent = 0;
        for second in 0..60 {
            case.want(second, if second % 2 == 0 { &["a"] } else { &[] });
            for query in case.due(second, 4) {
                sent += 1;
                case.ends(second as i64, &query, firing("x"));
            }
        }
        assert_eq!(sent, 2);
    }

    #[test]
    fn record_reports_changed_kind_of_answer_each_quiet_answer_and_one_that_is_waited_for() {
        let mut case = Case::new();
        case.want(0, &["a"]);
        let quiet = |second| Answer::Quiet { since: t(second), asked: t(second) };
        for (second, answer, news) in [
            (0, firing("x"), true),
            (1, firing("y"), false),
            (2, failed("no answer"), true),
            (3, failed("refused"), false),
            (4, quiet(4), true),
            (5, quiet(5), true),
            (6, firing("x"), true),
        ] {
            assert_eq!(case.ends(second, "a", answer.clone()), news, "{second}: {answer:?}");
        }
        case.want_since(7, "a", 7);
        for (second, news) in [(7, true), (8, false)] {
            assert_eq!(case.ends(second, "a", firing("x")), news, "{second}: an answer since 7 is waited for");
        }
        case.want(9, &[]);
        assert!(!case.ends(9, "a", quiet(9)), "it is not waited for any more");
        assert!(!case.ends(9, "never wanted", quiet(9)));
    }

    #[test]
    fn query_that_fails_between_two_answers_does_not_end_what_they_return() {
        let fires = |since, asked| Answer::Firing { series: "x".into(), since: t(since), asked: t(asked) };
        let quiet = || Answer::Quiet { since: t(1), asked: t(1) };
        let silent = || failed("no answer");
        for (sentence, between, since) in [
            ("nothing between", vec![], 0),
            ("no answer", vec![silent(), silent()], 0),
            ("an empty answer", vec![quiet()], 9),
            ("an empty answer, and then none", vec![quiet(), silent()], 9),
            ("no answer, and then an empty one", vec![silent(), quiet()], 9),
        ] {
            let mut case = Case::new();
            case.want(0, &["a"]);
            case.ends(0, "a", fires(0, 0));
            for answer in between {
                case.ends(1, "a", answer);
            }
            case.ends(9, "a", fires(9, 9));
            assert_eq!(case.ledger.answers(t(9))["a"], fires(since, 9), "{sentence}");
        }
    }

    #[test]
    fn outdated_quiet_answer_counts_as_failed() {
        let mut case = Case::new();
        case.want(0, &["a", "b"]);
        case.due(0, 4);
        case.ends(0, "a", Answer::Quiet { since: t(0), asked: t(0) });
        case.ends(0, "b", firing("x"));
        assert_eq!(case.kinds(60), [("a".to_owned(), "Quiet"), ("b".to_owned(), "Firing")]);
        assert_eq!(case.kinds(61), [("a".to_owned(), "Failed"), ("b".to_owned(), "Firing")]);
        assert_eq!(case.kinds(-61)[0].1, "Failed", "the clock was set back");
        let Some(Answer::Failed { message }) = case.ledger.answers(t(61)).remove("a") else { panic!("it is old") };
        assert!(message.contains("older than twice the interval (30s)"), "{message}");
    }

    #[test]
    fn changed_settings_discard_all_answers_including_pending_ones() {
        let mut case = Case::new();
        case.want(0, &["a", "b"]);
        case.due(0, 4);
        case.ends(0, "a", Answer::Quiet { since: t(0), asked: t(0) });
        let before = case.ledger.edition;
        case.settings.url = "http://other".into();
        case.want(1, &["a", "b"]);
        assert_eq!(case.kinds(1), []);
        assert!(!case.ledger.record("b", before, t(0), Answer::Quiet { since: t(0), asked: t(0) }));
        assert_eq!(case.kinds(1), [], "an answer of the old server");
        assert_eq!(case.due(1, 4), ["a", "b"]);
    }

    #[test]
    fn all_queries_fail_without_prometheus_settings() {
        let mut case = Case::new();
        let wanted = BTreeSet::from(["a".to_owned()]);
        let now = case.at(0);
        assert!(case.ledger.want(&wanted, &BTreeMap::new(), None, now), "the planner is notified");
        assert!(!case.ledger.want(&wanted, &BTreeMap::new(), None, now), "once");
        assert_eq!(case.kinds(100_000), [("a".to_owned(), "Failed")]);
        assert_eq!(case.due(0, 4), [""; 0]);
        assert!(!case.want(1, &["a"]));
        assert_eq!(case.kinds(1), []);
        assert_eq!(case.due(1, 4), ["a"]);
    }
}
