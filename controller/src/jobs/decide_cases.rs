//! Cases of `decide`, each a sentence about one hook and one node. The acts are carried out as the loop and the Job controller do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{HookJob, Slot};
use models::shadow::{Progress, Step};
use planner::hooks::parts;
use planner::policy::{Hook, HookWait};
use planner::view::NodeFacts;
use planner::wait::Wait;
use serde_json::json;

use super::decide::{Act, Phase, Run, Snapshot, Stall, State, decide};

const BEFORE: &str = "BeforeDrain/7/1";
const AFTER: &str = "AfterUpdate/7/1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// The attempt that awaits the answer to a request.
fn progress(request: &str) -> Progress {
    let (step, attempt) = parts(request).unwrap();
    let (number, started) = attempt.split_once('/').unwrap();
    let (number, started): (i64, i64) = (number.parse().unwrap(), started.parse().unwrap());
    let started = Timestamp::from_second(started).unwrap();
    serde_json::from_value(json!({
        "step": step.as_str(), "since": started, "attempt": number, "bootId": "b", "version": "1.20.5",
        "started": started,
    }))
    .unwrap()
}

/// A cluster with the node `a`.
struct World {
    hooks: Vec<Hook>,
    node: Option<NodeFacts>,
    progress: Option<Progress>,
    slots: Vec<Slot>,
    known: bool,
    runs: Vec<Run>,
    now: i64,
    /// The hook that the last plan awaits, and its deadline.
    awaited: Option<(&'static str, i64)>,
}

impl World {
    /// A hook `ceph` with these templates.
    fn new(before: Option<&str>, after: Option<&str>) -> Self {
        let wait =
            |template: Option<&str>| template.map(|_| HookWait { timeout: Duration::from_mins(30), continues: false });
        let job = HookJob {
            namespace: "rook-ceph".into(),
            before: before.map(Into::into),
            after: after.map(Into::into),
            run_on_node: None,
        };
        let hook = Hook { name: "ceph".into(), before: wait(before), after: wait(after), job: Some(job) };
        let node = NodeFacts { name: "a".into(), uid: "u".into(), ..NodeFacts::default() };
        let slots = vec![Slot { uid: "u".into(), node: "a".into(), since: at(0), update: None }];
        let (hooks, node, runs) = (vec![hook], Some(node), Vec::new());
        Self { hooks, node, progress: None, slots, known: true, runs, now: 0, awaited: None }
    }

    fn ceph() -> Self {
        Self::new(Some("set"), Some("unset"))
    }

    /// The attempt comes to the step of this request, and the operator sets it; without one, the attempt is over.
    fn ask(&mut self, request: Option<&str>) {
        self.progress = request.map(progress);
        self.write(request);
    }

    /// Sets or removes the request as any client can.
    fn write(&mut self, request: Option<&str>) {
        self.node.as_mut().unwrap().hook_request = request.map(Into::into);
    }

    fn step_to(&mut self, step: Step) {
        self.progress.as_mut().unwrap().step = step;
    }

    fn job_of(&mut self) -> &mut HookJob {
        self.hooks[0].job.as_mut().unwrap()
    }

    fn answer(&self) -> Option<&str> {
        self.node.as_ref()?.hook_answers.get("ceph").map(String::as_str)
    }

    fn decided(&self) -> Option<Act> {
        let (mut acts, _) = self.judged();
        assert!(acts.len() <= 1, "one hook and one node: {acts:?}");
        acts.pop()
    }

    /// Returns the sentence about what does not go on, with its cause, and whether the Job has failed.
    fn stalled(&self) -> Option<(String, bool)> {
        let found = self.judged().1.into_values().next();
        found.map(|stall| (format!("{}: {}", stall.sentence, stall.cause), stall.failed.is_some()))
    }

    fn judged(&self) -> (Vec<Act>, BTreeMap<(String, String), Stall>) {
        let nodes: BTreeMap<String, NodeFacts> =
            self.node.iter().map(|node| (node.name.clone(), node.clone())).collect();
        let one = |is: bool| -> BTreeSet<String> { is.then(|| "a".to_owned()).into_iter().collect() };
        let attempts: BTreeMap<String, Progress> =
            self.progress.iter().map(|progress| ("a".to_owned(), progress.clone())).collect();
        decide(&Snapshot {
            hooks: &self.hooks,
            nodes: &nodes,
            unknown: &one(!self.known),
            attempts: &attempts,
            waits: &self.waits(),
            slots: &self.slots,
            gone: &one(self.node.is_none()),
            runs: &self.runs,
            now: at(self.now),
        })
    }

    /// As a plan has them.
    fn waits(&self) -> BTreeMap<String, Wait> {
        let request = self.node.as_ref().and_then(|node| node.hook_request.clone());
        let wait = self.awaited.zip(request).map(|((hook, until), request)| {
            let wait = Wait::AwaitingHook { hooks: vec![hook.into()], request, until: at(until) };
            ("a".to_owned(), wait)
        });
        wait.into_iter().collect()
    }

    /// Carries out what is decided, and returns it in a word or two.
    fn step(&mut self) -> String {
        match self.decided() {
            None => "nothing".to_owned(),
            Some(Act::Create(new)) => {
                let text = format!("{} {} {}", new.phase.as_str(), new.template, new.number);
                let open = new.phase == Phase::Before;
                self.runs.push(Run {
                    name: text.clone(),
                    namespace: new.namespace,
                    uid: String::new(),
                    resource_version: String::new(),
                    hook: new.hook,
                    node: new.node,
                    version: new.version.unwrap_or_default(),
                    attempt: new.attempt,
                    request: new.request,
                    number: new.number,
                    phase: new.phase,
                    on_node: new.on_node,
                    after: new.after,
                    open,
                    state: State::Running,
                    message: String::new(),
                });
                text
            }
            Some(Act::Answer { request: Some(request), .. }) => self.answered(request),
            Some(Act::Answer { request: None, .. }) => {
                self.node.as_mut().unwrap().hook_answers.clear();
                "removed".to_owned()
            }
            Some(Act::Refuse { request, .. }) => self.answered(format!("{request} Refused: no")),
            Some(Act::Close(run)) => {
                self.runs.iter_mut().find(|other| other.name == run.name).unwrap().open = false;
                format!("close {}", run.number)
            }
        }
    }

    fn answered(&mut self, text: String) -> String {
        self.node.as_mut().unwrap().hook_answers.insert("ceph".into(), text.clone());
        text
    }

    /// Ends the Job that runs.
    fn end(&mut self, state: State) {
        self.runs.iter_mut().find(|run| run.state == State::Running).unwrap().state = state;
    }

    /// Prepares the node, and answers.
    fn prepare(&mut self) {
        self.ask(Some(BEFORE));
        assert_eq!(self.step(), "before set 0");
        assert_eq!(self.step(), "nothing", "the Job runs");
        self.end(State::Complete);
        assert_eq!(self.step(), BEFORE);
        assert_eq!(self.step(), "nothing", "answered");
    }

    /// Ends every Job well, until nothing is left to do. Returns what was done.
    fn rest(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        loop {
            let step = self.step();
            if step == "nothing" {
                if !self.runs.iter().any(|run| run.state == State::Running) {
                    return done;
                }
                self.end(State::Complete);
            } else {
                done.push(step);
            }
        }
    }
}

#[test]
fn jobs_answer_before_the_drain_and_after_the_update() {
    let mut world = World::ceph();
    world.prepare();
    world.ask(Some(AFTER));
    assert_eq!(world.rest(), ["after unset 1", AFTER]);
    world.ask(None);
    assert_eq!(world.rest(), ["close 0", "removed"]);
    assert_eq!(world.rest(), [""; 0]);
}

#[test]
fn what_was_prepared_is_taken_back_on_every_exit() {
    type Exit = fn(&mut World);
    let cases: [(&str, Exit, &[&str]); 5] = [
        ("the request is removed", |world| world.ask(None), &["after unset 1", "close 0", "removed"]),
        ("the Node is deleted", |world| world.node = None, &["after unset 1", "close 0"]),
        (
            "policy drops the hook before the end",
            |world| {
                world.hooks.clear();
                world.ask(None);
            },
            &["after unset 1", "close 0", "removed"],
        ),
        (
            "policy names another template by then",
            |world| {
                world.job_of().after = Some("other".into());
                world.ask(None);
            },
            &["after unset 1", "close 0", "removed"],
        ),
        (
            "the next attempt begins before the last one is taken back",
            |world| world.ask(Some("BeforeDrain/8/2")),
            &["after unset 1", "close 0", "before set 0", "BeforeDrain/8/2"],
        ),
    ];
    for (sentence, exit, expected) in cases {
        let mut world = World::ceph();
        world.prepare();
        exit(&mut world);
        assert_eq!(world.rest(), expected, "{sentence}");
    }
}

#[test]
fn job_that_is_running_when_its_attempt_ends_is_waited_for_and_taken_back() {
    let mut world = World::ceph();
    world.ask(Some(BEFORE));
    assert_eq!(world.step(), "before set 0");
    world.ask(None);
    assert_eq!(world.step(), "nothing");
    world.end(State::Failed(at(0)));
    assert_eq!(world.rest(), ["after unset 1", "close 0"]);
    assert_eq!(world.answer(), None);
}

#[test]
fn failed_job_refuses_and_what_it_may_have_prepared_is_taken_back() {
    let mut world = World::ceph();
    world.ask(Some(BEFORE));
    world.step();
    world.end(State::Failed(at(0)));
    assert_eq!(world.step(), format!("{BEFORE} Refused: no"));
    assert_eq!(world.step(), "nothing");
    world.ask(None);
    assert_eq!(world.rest(), ["after unset 1", "close 0", "removed"]);
}

#[test]
fn job_that_runs_out_of_time_is_no_answer_and_what_it_may_have_prepared_is_taken_back() {
    let mut world = World::ceph();
    world.ask(Some(BEFORE));
    world.step();
    world.end(State::TimedOut(at(0)));
    assert_eq!(world.rest(), [""; 0]);
    assert_eq!(world.answer(), None, "policy may go on without an answer");
    world.ask(Some(AFTER));
    assert_eq!(world.step(), "after unset 1");
    world.end(State::TimedOut(at(0)));
    assert_eq!(world.rest(), [""; 0]);
    world.ask(None);
    world.now = 60;
    assert_eq!(world.rest(), ["after unset 2", "close 0"]);
}

#[test]
fn node_that_is_registered_again_is_not_answered_by_the_job_after_its_deletion() {
    let mut world = World::ceph();
    world.prepare();
    world.node = None;
    assert_eq!(world.rest(), ["after unset 1", "close 0"]);
    world.node = World::ceph().node;
    world.ask(Some(AFTER));
    assert_eq!(world.rest(), ["after unset 2", AFTER]);
}

#[test]
fn answer_of_another_controller_is_kept_once_policy_names_no_job() {
    let mut world = World::ceph();
    world.prepare();
    world.ask(None);
    assert_eq!(world.rest(), ["after unset 1", "close 0", "removed"]);
    world.hooks.clear();
    let answer = "BeforeDrain/70/1";
    world.answered(answer.to_owned());
    assert_eq!(world.rest(), [""; 0]);
    assert_eq!(world.answer(), Some(answer));
}

#[test]
fn taking_back_is_tried_again_after_growing_pauses_until_it_succeeds() {
    let mut world = World::ceph();
    world.prepare();
    world.ask(Some(AFTER));
    assert_eq!(world.step(), "after unset 1");
    world.end(State::Failed(at(0)));
    assert_eq!(world.step(), format!("{AFTER} Refused: no"));
    assert_eq!(world.step(), "nothing", "the attempt is about to end");
    world.ask(None);
    for (failed, pause, number) in [(0, 60, 2), (60, 120, 3), (180, 240, 4)] {
        world.now = failed + pause - 1;
        assert_eq!(world.step(), "nothing");
        world.now = failed + pause;
        assert_eq!(world.step(), format!("after unset {number}"));
        world.end(State::Failed(at(world.now)));
    }
    world.now += 3600;
    assert_eq!(world.rest(), ["after unset 5", "close 0", "removed"]);
}

#[test]
fn hook_with_one_template_runs_it_alone() {
    let mut world = World::new(Some("set"), None);
    world.prepare();
    world.ask(None);
    assert_eq!(world.rest(), ["close 0", "removed"]);

    let mut world = World::new(None, Some("check"));
    world.ask(Some(BEFORE));
    assert_eq!(world.rest(), [""; 0]);
    world.ask(Some(AFTER));
    assert_eq!(world.step(), "after check 0");
    world.end(State::Failed(at(0)));
    assert_eq!(world.rest(), [format!("{AFTER} Refused: no")]);
    // It is asked again, as at each further verification.
    world.ask(Some("AfterUpdate/8/2"));
    assert_eq!(world.rest(), ["after check 0", "AfterUpdate/8/2"]);
    world.ask(None);
    assert_eq!(world.rest(), ["removed"]);
}

#[test]
fn job_on_the_node_itself_is_not_run_once_the_node_is_gone() {
    let mut world = World::ceph();
    world.job_of().run_on_node = Some(true);
    world.prepare();
    world.node = None;
    assert_eq!(world.rest(), ["close 0"]);
}

#[test]
fn nothing_is_done_for_a_node_that_cannot_be_read() {
    let mut world = World::ceph();
    world.known = false;
    world.ask(Some(BEFORE));
    assert_eq!(world.decided(), None);
    world.known = true;
    world.prepare();
    world.known = false;
    world.ask(None);
    assert_eq!(world.decided(), None, "it may be under its update");
}

#[test]
fn no_job_runs_for_a_request_that_the_operator_does_not_await() {
    type Change = fn(&mut World);
    let cases: [(&str, &str, Change); 9] = [
        ("no attempt", BEFORE, |world| world.progress = None),
        ("no attempt, after an update", AFTER, |world| world.progress = None),
        ("another attempt", BEFORE, |world| world.progress = Some(progress("BeforeDrain/8/1"))),
        ("an earlier attempt of the same number", BEFORE, |world| world.progress = Some(progress("BeforeDrain/7/2"))),
        ("an attempt that waits for its turn", BEFORE, |world| world.step_to(Step::Staged)),
        ("no slot", BEFORE, |world| world.slots.clear()),
        ("a slot of another Node of the same name", BEFORE, |world| world.slots[0].uid = "v".into()),
        ("the end of the update is not reached", AFTER, |world| world.step_to(Step::BeforeDrain)),
        ("the node has left the drain behind", BEFORE, |world| world.step_to(Step::AfterUpdate)),
    ];
    for (sentence, request, change) in cases {
        let mut world = World::ceph();
        world.ask(Some(request));
        change(&mut world);
        assert_eq!(world.rest(), [""; 0], "{sentence}");
    }
}

#[test]
fn request_that_another_client_removes_or_replaces_takes_nothing_back_while_the_attempt_goes_on() {
    for request in [None, Some(AFTER), Some("AfterUpdate/8/2")] {
        let mut world = World::ceph();
        world.prepare();
        for step in [Step::BeforeDrain, Step::Draining, Step::Rebooting, Step::Verifying] {
            world.step_to(step);
            world.write(request);
            assert_eq!(world.rest(), [""; 0], "{request:?} while {step:?}");
        }
        world.step_to(Step::Releasing);
        world.write(None);
        assert_eq!(world.rest(), ["after unset 1", "close 0", "removed"], "{request:?}");
    }
}

#[test]
fn what_was_prepared_is_taken_back_also_where_another_client_has_answered() {
    let mut world = World::ceph();
    world.prepare();
    world.ask(Some(AFTER));
    world.answered(AFTER.into());
    assert_eq!(world.rest(), [""; 0]);
    world.ask(None);
    assert_eq!(world.rest(), ["after unset 1", "close 0", "removed"]);
}

#[test]
fn node_is_prepared_once_also_where_another_client_has_the_job_deleted_after_a_time() {
    let mut world = World::ceph();
    world.ask(Some(BEFORE));
    assert_eq!(world.step(), "before set 0");
    world.runs[0].open = false;
    assert_eq!(world.rest(), [BEFORE]);
    world.node.as_mut().unwrap().hook_answers.clear();
    assert_eq!(world.rest(), [BEFORE], "no further Job");
}

#[test]
fn job_whose_time_is_over_is_followed_by_another_one_while_the_hook_is_awaited_longer() {
    let mut world = World::ceph();
    world.awaited = Some(("ceph", 1800));
    world.ask(Some(BEFORE));
    assert_eq!(world.step(), "before set 0");
    // The start of a Job is in whole seconds.
    world.now = 1799;
    world.end(State::TimedOut(at(world.now)));
    assert_eq!(world.step(), "nothing", "the deadline has not moved");
    world.awaited = Some(("ceph", 3600));
    world.slots.clear();
    assert_eq!(world.step(), "nothing", "no slot");
    world.slots = World::ceph().slots;
    world.job_of().after = Some("other".into());
    assert_eq!(world.step(), "nothing", "no one Job would take back what both have prepared");
    world.job_of().after = Some("unset".into());
    world.hooks[0].before = Some(HookWait { timeout: Duration::from_mins(50), continues: false });
    let Some(Act::Create(new)) = world.decided() else { panic!("another Job") };
    assert_eq!((new.number, new.limit), (1, Duration::from_mins(50)), "the limit of the policy now");
    assert_eq!(world.rest(), ["before set 1", BEFORE]);

    world.ask(Some(AFTER));
    assert_eq!(world.step(), "after unset 2");
    world.end(State::TimedOut(at(world.now)));
    assert_eq!(world.step(), "after unset 3");
    world.end(State::Complete);
    assert_eq!(world.rest(), [AFTER]);
    world.ask(None);
    assert_eq!(world.rest(), ["close 1", "close 0", "removed"]);
}

#[test]
fn jobs_whose_time_is_over_in_a_row_follow_after_longer_and_longer_pauses() {
    let mut world = World::ceph();
    world.awaited = Some(("ceph", 86_400));
    world.ask(Some(BEFORE));
    assert_eq!(world.step(), "before set 0");
    for (number, pause) in [(1, 0), (2, 60), (3, 120)] {
        world.now += 1800;
        let ended = world.now;
        world.end(State::TimedOut(at(ended)));
        world.now = ended + pause - 1;
        assert_eq!(world.step(), "nothing", "{number}");
        world.now = ended + pause;
        assert_eq!(world.step(), format!("before set {number}"));
    }
}

#[test]
fn no_job_follows_one_whose_time_is_over_once_the_hook_is_not_awaited() {
    type Change = fn(&mut World);
    let cases: [(&str, Change); 3] = [
        ("another hook is awaited longer", |world| world.awaited = Some(("silence", 3600))),
        ("the attempt is over", |world| world.progress = None),
        ("the step is over", |world| world.step_to(Step::Draining)),
    ];
    for (sentence, change) in cases {
        let mut world = World::ceph();
        world.ask(Some(BEFORE));
        world.step();
        (world.now, world.awaited) = (1801, Some(("ceph", 3600)));
        world.end(State::TimedOut(at(world.now)));
        change(&mut world);
        assert_eq!(world.step(), "nothing", "{sentence}");
    }
}

#[test]
fn job_that_does_not_take_back_is_named_and_so_is_the_request_that_waits_for_it() {
    let mut world = World::ceph();
    world.awaited = Some(("ceph", 1800));
    world.prepare();
    world.ask(Some("BeforeDrain/8/2"));
    assert_eq!(world.stalled(), None, "it is about to be taken back");
    assert_eq!(world.step(), "after unset 1");
    let job = "rook-ceph/after unset 1";
    let waits = "the request BeforeDrain/8/2 waits until what hook ceph has prepared for 7/1 is taken back";
    assert_eq!(world.stalled(), Some((format!("{waits}: {job} runs"), false)));
    world.end(State::Failed(at(0)));
    assert_eq!(world.stalled(), Some((format!("{waits}: {job}"), true)));
    world.ask(None);
    let kept = "what hook ceph has prepared is not taken back, retrying";
    assert_eq!(world.stalled(), Some((format!("{kept}: {job}"), true)));
    world.now = 60;
    assert_eq!(world.rest(), ["after unset 2", "close 0", "removed"]);
    assert_eq!(world.stalled(), None);
}

#[test]
fn job_is_not_said_to_be_retried_where_its_node_is_gone_nor_one_before_a_drain_to_take_back() {
    let mut world = World::ceph();
    world.awaited = Some(("ceph", 1800));
    world.job_of().run_on_node = Some(true);
    world.ask(Some(BEFORE));
    world.step();
    world.end(State::Failed(at(0)));
    world.ask(Some("BeforeDrain/8/2"));
    assert_eq!(world.stalled(), None, "the one that takes back is about to be created");
    world.ask(None);
    assert_eq!(world.step(), "after unset 1");
    world.end(State::Failed(at(0)));
    assert!(world.stalled().is_some());
    (world.node, world.progress) = (None, None);
    assert_eq!(world.stalled(), None);
    assert_eq!(world.step(), "close 0");
}

#[test]
fn failure_says_what_could_not_be_done() {
    let mut world = World::ceph();
    world.ask(Some(BEFORE));
    let create = world.decided().unwrap();
    world.step();
    world.end(State::Failed(at(0)));
    let refuse = world.decided().unwrap();
    let run = world.runs[0].clone();
    let answer = |to: Option<&str>| Act::Answer { hook: "ceph".into(), node: "a".into(), request: to.map(Into::into) };
    for (act, expected) in [
        (create, "no Job can be run for hook ceph"),
        (answer(Some(BEFORE)), "the answer of hook ceph cannot be written"),
        (refuse, "the answer of hook ceph cannot be written"),
        (answer(None), "the answer of hook ceph cannot be removed"),
        (Act::Close(run), "Job before set 0 of hook ceph cannot be given the time of its deletion"),
    ] {
        assert_eq!(act.failure(), expected);
    }
}
