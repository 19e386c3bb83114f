//! The next acts of hooks that Jobs answer, from the nodes and the Jobs as they are: nothing is remembered, so that any leader goes on.
//!
//! The Job before a drain is also the record that something was prepared, also where the Node is gone. It is *open*, and stays, until the Job
//! after it has succeeded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::{Backoff, Delays};
use models::operator::Slot;
use models::shadow::{Progress, Step};
use models::time::after;
use planner::hooks::{self, HookAnswer, answer, parts};
use planner::policy::Hook;
use planner::view::NodeFacts;
use planner::wait::Wait;

/// Time for a Job after an update where the policy does not await it.
const AFTER_LIMIT: Duration = Duration::from_hours(1);

/// The first pause after a failed Job that takes something back, or after the second one in a row whose time is over, and the longest.
const PAUSES: Delays = (Duration::from_mins(1), Duration::from_mins(30));

/// The least time that is left for the answer where another Job takes the place of one whose time is over. A deadline that has not moved is nearer
/// when that one ends: its time begins after the wait, but in whole seconds and by another clock.
const LEAST: Duration = Duration::from_secs(10);

/// The request that a Job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Before,
    After,
}

impl Phase {
    /// The phase as a fixed word.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Before => hooks::BEFORE,
            Self::After => "after",
        }
    }
}

/// The state of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Complete,
    /// The time of its end.
    Failed(Timestamp),
    /// The same of one whose time was over: that is no answer.
    TimedOut(Timestamp),
}

/// A Job of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) hook: String,
    pub(super) node: String,
    pub(super) version: String,
    /// The attempt, as the request names it after its phase.
    pub(super) attempt: String,
    /// The request that it answers; `None` for one after the end of an attempt.
    pub(super) request: Option<String>,
    /// Rises with each Job of the hook, node and attempt.
    pub(super) number: u32,
    pub(super) phase: Phase,
    pub(super) on_node: bool,
    /// The PodTemplate that takes back what it has prepared.
    pub(super) after: Option<String>,
    /// True for one before a drain until what it has prepared is taken back.
    pub(super) open: bool,
    pub(super) state: State,
    /// The Job controller's message about its failure.
    pub(super) message: String,
}

/// A Job to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewRun {
    pub(super) hook: String,
    pub(super) node: String,
    /// The version that the Job before it was given; `None` for the node's own.
    pub(super) version: Option<String>,
    pub(super) attempt: String,
    /// The request that it answers.
    pub(super) request: Option<String>,
    pub(super) number: u32,
    pub(super) phase: Phase,
    pub(super) namespace: String,
    pub(super) template: String,
    pub(super) after: Option<String>,
    pub(super) on_node: bool,
    pub(super) limit: Duration,
}

/// One act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Create(NewRun),
    /// Sets the answer to the value of the request; without one, removes it.
    Answer {
        hook: String,
        node: String,
        request: Option<String>,
    },
    /// Answers the request with the reason why the Job has failed.
    Refuse {
        run: Run,
        request: String,
    },
    /// Lets the Job be deleted: what it has prepared is taken back.
    Close(Run),
}

impl Act {
    /// The hook and the node that it is about.
    pub(super) fn about(&self) -> (String, String) {
        let (hook, node) = match self {
            Self::Create(new) => (&new.hook, &new.node),
            Self::Answer { hook, node, .. } => (hook, node),
            Self::Refuse { run, .. } | Self::Close(run) => (&run.hook, &run.node),
        };
        (hook.clone(), node.clone())
    }

    /// The sentence about its failure.
    pub(super) fn failure(&self) -> String {
        match self {
            Self::Create(new) => not_run(&new.hook),
            Self::Answer { hook, request: None, .. } => format!("the answer of hook {hook} cannot be removed"),
            Self::Answer { hook, .. } | Self::Refuse { run: Run { hook, .. }, .. } => {
                format!("the answer of hook {hook} cannot be written")
            }
            Self::Close(run) => {
                format!("Job {} of hook {} cannot be given the time of its deletion", run.name, run.hook)
            }
        }
    }

    /// The namespace of the Job that it writes; none for an answer.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Create(new) => Some(&new.namespace),
            Self::Close(run) => Some(&run.namespace),
            Self::Answer { .. } | Self::Refuse { .. } => None,
        }
    }
}

/// The sentence about a hook whose Jobs cannot be run.
pub(super) fn not_run(hook: &str) -> String {
    format!("no Job can be run for hook {hook}")
}

/// The facts of a decision.
pub(super) struct Snapshot<'a> {
    /// The hooks of the policy that Jobs answer, and whose Jobs are known.
    pub(super) hooks: &'a [Hook],
    /// The nodes with a request or an answer.
    pub(super) nodes: &'a BTreeMap<String, NodeFacts>,
    /// Nodes for which nothing is done: they, their attempts, or Jobs for them cannot be read.
    pub(super) unknown: &'a BTreeSet<String>,
    /// The attempts under way, by node.
    pub(super) attempts: &'a BTreeMap<String, Progress>,
    /// The waits of the last plan for hooks, by node.
    pub(super) waits: &'a BTreeMap<String, Wait>,
    pub(super) slots: &'a [Slot],
    /// Nodes of Jobs that do not exist any more.
    pub(super) gone: &'a BTreeSet<String>,
    pub(super) runs: &'a [Run],
    pub(super) now: Timestamp,
}

/// A hook whose Jobs do not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) sentence: String,
    /// The Job that is the cause, or the error.
    pub(super) cause: String,
    /// False where a request waits for a Job that runs.
    pub(super) warning: bool,
    /// The Job, if it has failed: its reason is part of the cause.
    pub(super) failed: Option<Run>,
}

/// Returns what is to be done now, and the hooks whose Jobs do not go on, each with its node.
pub(super) fn decide(snapshot: &Snapshot<'_>) -> (Vec<Act>, BTreeMap<(String, String), Stall>) {
    let pairs = pairs(snapshot);
    let stall = |pair: &Pair<'_>| Some(((pair.name.to_owned(), pair.node.to_owned()), pair.stall()?));
    (pairs.iter().filter_map(Pair::act).collect(), pairs.iter().filter_map(stall).collect())
}

/// Returns the hooks and nodes about which anything may be to be done.
fn pairs<'a>(snapshot: &Snapshot<'a>) -> Vec<Pair<'a>> {
    let mut pairs: BTreeMap<(&str, &str), Vec<&Run>> = BTreeMap::new();
    for run in snapshot.runs {
        pairs.entry((run.hook.as_str(), run.node.as_str())).or_default().push(run);
    }
    for node in snapshot.nodes.keys() {
        for hook in snapshot.hooks {
            pairs.entry((hook.name.as_str(), node.as_str())).or_default();
        }
    }
    let known = pairs.into_iter().filter(|((_, node), _)| !snapshot.unknown.contains(*node));
    known
        .map(|((name, node), runs)| {
            let hook = snapshot.hooks.iter().find(|hook| hook.name == name);
            let (facts, progress) = (snapshot.nodes.get(node), snapshot.attempts.get(node));
            let (gone, wait) = (snapshot.gone.contains(node), snapshot.waits.get(node));
            Pair { name, node, hook, facts, gone, progress, wait, slots: snapshot.slots, runs, now: snapshot.now }
        })
        .collect()
}

/// A hook and a node.
struct Pair<'a> {
    name: &'a str,
    node: &'a str,
    hook: Option<&'a Hook>,
    facts: Option<&'a NodeFacts>,
    gone: bool,
    progress: Option<&'a Progress>,
    wait: Option<&'a Wait>,
    slots: &'a [Slot],
    runs: Vec<&'a Run>,
    now: Timestamp,
}

impl Pair<'_> {
    fn act(&self) -> Option<Act> {
        // A Job is never interrupted, and its time is limited.
        if self.runs.iter().any(|run| run.state == State::Running) {
            return None;
        }
        let asked = match self.facts.and_then(|facts| facts.hook_request.as_deref()) {
            // The kubelet of a node can write another request, and remove that of the operator, which sets it again.
            Some(request) if !self.is_own(request) => return None,
            None if self.goes_on() => return None,
            Some(request) => Some((request, parts(request)?)),
            None => None,
        };
        let attempt = asked.map(|(_, (_, attempt))| attempt);
        if let Some(record) = self.record(|of| Some(of) != attempt) {
            return self.take_back(record);
        }
        match asked {
            Some((request, (Step::BeforeDrain, attempt))) => self.before(request, attempt),
            Some((request, (_, attempt))) => self.after(request, attempt),
            None => self.has_own_answer().then(|| self.answer(None)),
        }
    }

    /// Returns whether a request is of the attempt under way, whatever its step.
    fn is_own(&self, request: &str) -> bool {
        self.progress.is_some_and(|progress| hooks::is_of(request, progress))
    }

    /// Returns whether the attempt goes on for which something was prepared: nothing is taken back before it ends.
    fn goes_on(&self) -> bool {
        let ends = self.gone || self.progress.is_none_or(|progress| progress.step == Step::Releasing);
        let mut prepared = self.runs.iter().filter(|run| run.open).filter_map(|run| run.request.as_deref());
        !ends && prepared.any(|request| self.is_own(request))
    }

    /// Returns whether the attempt awaits the answer to this request now. By turns between the two requests of its attempt, a kubelet could otherwise
    /// have one Job run after another, and have what was prepared taken for taken back.
    fn is_awaited(&self, request: &str) -> bool {
        self.progress.and_then(hooks::request).as_deref() == Some(request)
    }

    /// The request whose answer the plan awaits of this hook, and the time until which it does at least.
    fn awaited(&self) -> Option<(&str, Timestamp)> {
        let Some(Wait::AwaitingHook { hooks, request, until }) = self.wait else { return None };
        hooks.iter().any(|hook| hook == self.name).then_some((request.as_str(), *until))
    }

    /// Returns whether another Job is to answer in the place of this one: its time is over, and the deadline of the hook has moved since, as by a
    /// change of the policy. In an unwell cluster it moves for a day, and each Job before a drain stays until its attempt is over: so there are pauses.
    fn is_awaited_longer(&self, run: &Run, request: &str) -> bool {
        let State::TimedOut(at) = run.state else { return false };
        let others = self.runs.iter().filter(|of| of.request.as_deref() == Some(request) && of.number < run.number);
        let pause = Backoff::after(u32::try_from(others.count()).unwrap_or(u32::MAX)).delay(PAUSES);
        self.now >= after(at, pause)
            && self.awaited().is_some_and(|(of, until)| of == request && after(self.now, LEAST) < until)
    }

    /// Returns whether the operator has given the node a slot for its attempt, which begins without one.
    fn has_slot(&self) -> bool {
        let (Some(facts), Some(progress)) = (self.facts, self.progress) else { return false };
        self.slots.iter().any(|slot| slot.is_for(&facts.uid, Some(progress.attempt)))
    }

    /// Returns whether the Node has an answer that is to be removed. That of a hook which Jobs do not answer, or not any more, is the record of
    /// another controller, unless it is one to a request that a Job was for.
    fn has_own_answer(&self) -> bool {
        let mut requests = self.runs.iter().filter_map(|run| run.request.as_deref());
        let answered = self.facts.is_some_and(|facts| facts.hook_answers.contains_key(self.name));
        answered && (self.hook.is_some() || requests.any(|request| self.answer_to(request) != HookAnswer::Missing))
    }

    /// Prepares the node, and answers.
    fn before(&self, request: &str, attempt: &str) -> Option<Act> {
        if self.answer_to(request) != HookAnswer::Missing {
            return None;
        }
        // Also one that others have given a time after which it is deleted, or else the node would be prepared again and again.
        let last = self.last(attempt).filter(|run| run.phase == Phase::Before);
        if let Some(run) = last.filter(|run| !self.is_awaited_longer(run, request)) {
            return self.answer_by(run, request);
        }
        if !self.is_awaited(request) || !self.has_slot() {
            return None;
        }
        let hook = self.hook?;
        let job = hook.job.as_ref()?;
        // One Job takes back what both have prepared.
        let taken_back = (&job.namespace, &job.after, job.run_on_node == Some(true));
        if last.is_some_and(|run| (&run.namespace, &run.after, run.on_node) != taken_back) {
            return None;
        }
        let limit = hook.before?.timeout;
        Some(Act::Create(NewRun {
            hook: self.name.to_owned(),
            node: self.node.to_owned(),
            version: None,
            attempt: attempt.to_owned(),
            request: Some(request.to_owned()),
            number: self.next_number(attempt),
            phase: Phase::Before,
            namespace: job.namespace.clone(),
            template: job.before.clone()?,
            after: job.after.clone(),
            on_node: job.run_on_node == Some(true),
            limit,
        }))
    }

    /// Takes back what was prepared, and answers.
    fn after(&self, request: &str, attempt: &str) -> Option<Act> {
        // An answer shows nothing about the record, which is closed at the end of the attempt: the kubelet can answer too.
        if !self.is_awaited(request) || self.answer_to(request) != HookAnswer::Missing {
            return None;
        }
        let record = self.record(|of| of == attempt);
        // One that has taken back before this request knew nothing of the updated node.
        let asked = self.runs.iter().copied().filter(|run| run.request.as_deref() == Some(request));
        let last = asked.max_by_key(|run| run.number);
        if let Some(run) = last.filter(|run| !self.is_awaited_longer(run, request)) {
            return self.answer_by(run, request);
        }
        match self.new_after(attempt, Some(request), record) {
            Some(new) => Some(Act::Create(new)),
            // No Job takes anything back.
            None => record.map(|_| self.answer(Some(request))),
        }
    }

    /// Takes back what was prepared in an attempt that is over, until that succeeds.
    fn take_back(&self, record: &Run) -> Option<Act> {
        let close = || Some(Act::Close(record.clone()));
        let new = self.new_after(&record.attempt, None, Some(record));
        let Some(new) = new.filter(|new| !(new.on_node && self.gone)) else { return close() };
        match self.last_after(record).map(|last| (last.state, last.number)) {
            Some((State::Complete, _)) => close(),
            Some((State::Failed(at) | State::TimedOut(at), number)) => {
                let pause = Backoff::after(number.saturating_sub(record.number)).delay(PAUSES);
                (self.now >= after(at, pause)).then_some(Act::Create(new))
            }
            Some((State::Running, _)) => None,
            None => Some(Act::Create(new)),
        }
    }

    /// The Job after an update, or after the end of an attempt. It is of the record's templates, whatever policy says by now.
    fn new_after(&self, attempt: &str, request: Option<&str>, record: Option<&Run>) -> Option<NewRun> {
        let job = self.hook.and_then(|hook| hook.job.as_ref());
        let (namespace, template, on_node) = match (record, job) {
            (Some(record), _) => (&record.namespace, &record.after, record.on_node),
            (None, Some(job)) => (&job.namespace, &job.after, job.run_on_node == Some(true)),
            (None, None) => return None,
        };
        Some(NewRun {
            hook: self.name.to_owned(),
            node: self.node.to_owned(),
            version: record.map(|record| record.version.clone()),
            attempt: attempt.to_owned(),
            request: request.map(str::to_owned),
            number: self.next_number(attempt),
            phase: Phase::After,
            namespace: namespace.clone(),
            template: template.clone()?,
            after: None,
            on_node,
            limit: self.hook.and_then(|hook| hook.after).map_or(AFTER_LIMIT, |wait| wait.timeout),
        })
    }

    /// Returns the Job that keeps what was prepared from being taken back: it has failed, or a request of another attempt waits for it.
    fn stall(&self) -> Option<Stall> {
        let request = self.awaited().map(|(request, _)| request);
        let attempt = request.and_then(parts).map(|(_, attempt)| attempt);
        let earlier = attempt.and_then(|attempt| self.record(|of| of != attempt));
        let record = earlier.or_else(|| self.record(|_| true))?;
        let run = self.last_after(record).unwrap_or(record);
        let runs = run.state == State::Running;
        // One before a drain is followed by the first that takes back; on a Node that is gone, nothing is run any more.
        let takes_back = run.phase == Phase::After && !(run.on_node && self.gone);
        let fails = takes_back && matches!(run.state, State::Failed(_) | State::TimedOut(_));
        let sentence = match request.filter(|_| earlier.is_some()) {
            Some(request) if runs || fails => {
                let (hook, attempt) = (self.name, &record.attempt);
                format!("the request {request} waits until what hook {hook} has prepared for {attempt} is taken back")
            }
            None if fails => format!("what hook {} has prepared is not taken back, retrying", self.name),
            _ => return None,
        };
        let cause = format!("{}/{}{}", run.namespace, run.name, if runs { " runs" } else { "" });
        Some(Stall { sentence, cause, warning: fails, failed: fails.then(|| run.clone()) })
    }

    /// The last Job that is open, of such attempts.
    fn record(&self, is_of: impl Fn(&str) -> bool) -> Option<&Run> {
        self.runs.iter().copied().filter(|run| run.open && is_of(&run.attempt)).max_by_key(|run| run.number)
    }

    /// The last Job of an attempt.
    fn last(&self, attempt: &str) -> Option<&Run> {
        self.runs.iter().copied().filter(|run| run.attempt == attempt).max_by_key(|run| run.number)
    }

    /// The last Job that takes back what the record has prepared.
    fn last_after(&self, record: &Run) -> Option<&Run> {
        let afters = self.runs.iter().copied().filter(|run| run.phase == Phase::After && run.attempt == record.attempt);
        afters.filter(|run| run.number > record.number).max_by_key(|run| run.number)
    }

    fn next_number(&self, attempt: &str) -> u32 {
        self.last(attempt).map_or(0, |run| run.number.saturating_add(1))
    }

    fn answer_to(&self, request: &str) -> HookAnswer {
        self.facts.map_or(HookAnswer::Missing, |facts| answer(&facts.hook_answers, self.name, request))
    }

    /// The answer by the end of a Job. One that has run out of time gives none: whether its attempt goes on then is a matter of policy.
    fn answer_by(&self, run: &Run, request: &str) -> Option<Act> {
        match run.state {
            State::Complete => Some(self.answer(Some(request))),
            State::Failed(_) => Some(Act::Refuse { run: run.clone(), request: request.to_owned() }),
            State::Running | State::TimedOut(_) => None,
        }
    }

    fn answer(&self, request: Option<&str>) -> Act {
        Act::Answer { hook: self.name.to_owned(), node: self.node.to_owned(), request: request.map(str::to_owned) }
    }
}
