//! The historian over a model of the API server, which is killed between any two calls.

mod limits;

use std::sync::Arc;

use models::condition::{Condition, ConditionStatus};
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistorySpec, BottlerocketRolloutHistoryStatus, EntryKind,
};
use models::operator::{CompletionEstimate, ENABLED, KnownVersion, Quarantined, RolloutLedger, WINDOW_OPEN};
use models::shadow::{DrainedPod, Drill, PodMove, RolloutResult, UPDATED};

use super::*;
use crate::fixtures::{NEW, OLD, condition, fallen_back, recorded, rollout, seen, t};

const VARIANT: &str = "aws-k8s-1.37";
const ARCH: &str = "x86_64";

/// The API server with the objects of the history, the operator's status and the results on shadows.
#[derive(Default)]
struct Server {
    operator: OperatorFacts,
    objects: BTreeMap<String, BottlerocketRolloutHistory>,
    shadows: BTreeMap<String, Vec<RolloutResult>>,
    under_way: BTreeSet<i64>,
    version: u64,
    /// The number of results that were given up.
    dropped: usize,
    /// Every result that was ever on a shadow.
    all: BTreeSet<RowId>,
}

/// The memory of a leader, which a kill empties.
#[derive(Default)]
struct Leader {
    removed: BTreeSet<i64>,
    records: BTreeMap<String, RecordFacts>,
    open: BTreeMap<String, OpenPage>,
}

/// A condition that has this status since a second.
fn since(type_: &str, status: ConditionStatus, reason: &str, second: i64) -> Condition {
    Condition { status, last_transition_time: t(second), ..condition(type_, reason, "m") }
}

fn result(number: i64, attempt: i64, ended: i64, pods: usize) -> RolloutResult {
    let pod = |number: usize| DrainedPod {
        namespace: "shop".into(),
        name: format!("web-{number:03}"),
        uid: format!("{number:036}"),
        ip: Some("10.0.0.1".into()),
        owner: Some("Deployment/web".into()),
        budgets: vec!["web".into()],
        services: vec!["web".into()],
        moved: Some(PodMove::Evicted),
    };
    RolloutResult {
        rollout: number,
        step: 1,
        attempt,
        from: Some(OLD),
        to: NEW,
        drill: None,
        result: UPDATED.into(),
        message: String::new(),
        started: t(0),
        drain_started: Some(t(1)),
        drain_ended: Some(t(2)),
        soak_started: Some(t(3)),
        ended: t(ended),
        boot_before: "b1".into(),
        boot_after: "b2".into(),
        pods: (0..pods).map(pod).collect(),
        running: vec!["shop/web-9".into()],
    }
}

impl Server {
    /// One rollout that runs.
    fn new() -> Self {
        let mut server = Self::default();
        server.operator.uid = "op".into();
        server.operator.status.active_rollouts = vec![ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) }];
        server
    }

    fn end(&mut self, phase: RolloutPhase, at: i64) {
        let record = self.operator.status.active_rollouts[0].record.as_mut().unwrap();
        (record.phase, record.ended) = (phase, Some(t(at)));
    }

    fn add(&mut self, node: &str, result: RolloutResult) {
        self.all.insert((node.to_owned(), result.attempt));
        self.shadows.entry(node.to_owned()).or_default().push(result);
    }

    fn put(&mut self, name: &str, object: BottlerocketRolloutHistory) {
        self.version += 1;
        let mut object = object;
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(self.version.to_string());
        object.metadata.uid = Some(format!("uid-of-{name}"));
        self.objects.insert(name.to_owned(), object);
    }

    fn plan(&self, leader: &Leader, now: i64) -> HistoryPlan {
        let facts = |(name, object): (&String, &BottlerocketRolloutHistory)| {
            let page = object.spec.page.as_ref().map(|page| page.number);
            let facts = HistoryObject {
                name: name.clone(),
                uid: object.metadata.uid.clone().unwrap(),
                resource_version: object.metadata.resource_version.clone().unwrap(),
                record: object.spec.record.clone(),
                page,
                owner: page.map(|_| format!("uid-of-{}", object.spec.record)),
                bytes: 1,
                deleting: false,
            };
            (name.clone(), facts)
        };
        let objects: BTreeMap<_, _> = self.objects.iter().map(facts).collect();
        let waiting: Vec<_> = self
            .shadows
            .iter()
            .flat_map(|(node, results)| results.iter().map(move |result| (node, result)))
            .map(|(node, result)| Waiting {
                node: node.clone(),
                uid: node.clone(),
                variant: VARIANT.into(),
                arch: ARCH.into(),
                result: Arc::new(result.clone()),
                bytes: serde_json::to_vec(result).unwrap().len(),
                orphaned: false,
            })
            .collect();
        plan(&HistorySnapshot {
            unreadable: &BTreeMap::new(),
            removed: &leader.removed,
            namespace: "ns",
            operator: Some(&self.operator),
            objects: &objects,
            records: &leader.records,
            open: &leader.open,
            waiting: &waiting,
            under_way: &self.under_way,
            nodes: &[(VARIANT.into(), ARCH.into(), OLD), (VARIANT.into(), "aarch64".into(), NEW)],
            now: t(now),
        })
    }

    fn open_page(&self, record: &str, number: i64) -> OpenPage {
        let object = &self.objects[&page_name(record, number)];
        let page = object.spec.page.as_ref().unwrap();
        let bytes = serde_json::to_vec(&object.spec).unwrap().len();
        let digest = models::history::page_digest(&object.spec).unwrap();
        OpenPage { number, summary: summary(page, digest, bytes), rows: page.rows.iter().map(row_id).collect() }
    }

    /// Carries out one call. Creations of what is there return what is there.
    fn act(&mut self, leader: &mut Leader, action: HistoryAction) {
        match action {
            HistoryAction::ReadRecord { name } => {
                let record = RecordFacts::of(&self.objects[&name], &serde_json::Value::Null).unwrap();
                leader.records.insert(name, record);
            }
            HistoryAction::ReadPage { record, number } => {
                let open = self.open_page(&record, number);
                leader.open.insert(record, open);
            }
            HistoryAction::Begin { name, rollout } => {
                let spec = BottlerocketRolloutHistorySpec { record: name.clone(), rollout: Some(*rollout), page: None };
                if !self.objects.contains_key(&name) {
                    self.put(&name, BottlerocketRolloutHistory::new(&name, spec));
                }
                leader
                    .records
                    .insert(name.clone(), RecordFacts::of(&self.objects[&name], &serde_json::Value::Null).unwrap());
            }
            HistoryAction::WritePage { record, page, .. } => {
                let (name, number) = (page_name(&record, page.number), page.number);
                let spec = BottlerocketRolloutHistorySpec { record: record.clone(), rollout: None, page: Some(page) };
                if !self.objects.contains_key(&name) {
                    self.put(&name, BottlerocketRolloutHistory::new(&name, spec));
                }
                let open = self.open_page(&record, number);
                leader.open.insert(record, open);
            }
            HistoryAction::Drop { node, rows } => {
                self.dropped += rows.len();
                self.act(leader, HistoryAction::Clear { node, rows });
            }
            HistoryAction::Clear { node, rows } => {
                let results = self.shadows.get_mut(&node).unwrap();
                results.retain(|result| !rows.contains(&(node.clone(), result.attempt)));
            }
            HistoryAction::Update { name, status } => {
                let mut object = self.objects[&name].clone();
                assert_eq!(object.status.as_ref().map_or(RolloutPhase::Running, |s| s.phase), RolloutPhase::Running);
                object.status = Some(*status);
                self.put(&name, object);
                let record = RecordFacts::of(&self.objects[&name], &serde_json::Value::Null).unwrap();
                let named = |open: &OpenPage| !record.runs() || record.next_page() > open.number;
                if leader.open.get(&name).is_some_and(named) {
                    leader.open.remove(&name);
                }
                leader.records.insert(name, record);
            }
            HistoryAction::Delete { name, .. } => {
                self.objects.remove(&name);
                leader.records.remove(&name);
            }
        }
    }

    /// Runs until nothing is due; a kill comes after every `kill`th write, 0: never.
    fn settle(&mut self, leader: &mut Leader, now: i64, kill: usize) {
        let mut writes = 0;
        for _ in 0..1000 {
            let actions = self.plan(leader, now).actions;
            if actions.is_empty() {
                return;
            }
            for action in actions {
                let reads = matches!(action, HistoryAction::ReadRecord { .. } | HistoryAction::ReadPage { .. });
                self.act(leader, action);
                writes += usize::from(!reads);
                if kill > 0 && !reads && writes % kill == 0 {
                    *leader = Leader::default();
                    break;
                }
            }
            self.check();
        }
        panic!("no end: {:?}", self.plan(leader, now).actions.first());
    }

    fn rows(&self) -> Vec<RowId> {
        let pages = self.objects.values().filter_map(|object| object.spec.page.as_ref());
        pages.flat_map(|page| page.rows.iter().map(row_id)).collect()
    }

    /// Every result is on a page or on a shadow, and no result is on two pages.
    fn check(&self) {
        let rows = self.rows();
        let paged: BTreeSet<RowId> = rows.iter().cloned().collect();
        assert_eq!(rows.len(), paged.len(), "a result is on two pages");
        let waits = |id: &RowId| self.shadows.get(&id.0).is_some_and(|r| r.iter().any(|r| r.attempt == id.1));
        for id in &self.all {
            assert!(paged.contains(id) || waits(id), "the result {id:?} is lost");
        }
    }

    fn record(&self) -> &BottlerocketRolloutHistory {
        self.objects.values().find(|object| object.spec.rollout.is_some()).unwrap()
    }

    fn status(&self) -> BottlerocketRolloutHistoryStatus {
        self.record().status.clone().unwrap()
    }

    fn entries(&self) -> Vec<EntryKind> {
        self.status().entries.iter().map(|entry| entry.kind).collect()
    }
}

#[test]
fn kill_between_any_two_calls_loses_and_duplicates_no_result() {
    for kill in 1..12 {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.under_way.insert(7);
        for node in 0..3 {
            server.add(&format!("n{node}"), result(7, 1, 10, 2));
        }
        server.settle(&mut leader, 10, kill);
        assert!(server.rows().is_empty(), "results wait for others on their page");
        server.add("n3", result(7, 1, 700, 2));
        // Begun before the rollout had its number.
        server.add("n4", result(0, 4, 701, 2));
        server.settle(&mut leader, 2000, kill);
        assert_eq!(server.rows().len(), 5, "after the wait");
        server.end(RolloutPhase::Completed, 2100);
        server.add("n5", result(7, 2, 2050, 2));
        server.settle(&mut leader, 2100, kill);
        assert_eq!(server.status().phase, RolloutPhase::Running, "an attempt is under way");
        server.under_way.clear();
        server.settle(&mut leader, 2200, kill);
        let status = server.status();
        assert_eq!((status.phase, status.ended), (RolloutPhase::Completed, Some(t(2100))), "kill {kill}");
        assert_eq!((status.nodes, status.pods), (6, 12));
        let left: Vec<_> = server.shadows.iter().filter(|(_, results)| !results.is_empty()).collect();
        assert!(matches!(left[..], [(node, _)] if node == "n5"), "those of the last page alone stay: {left:?}");
        let name = server.record().metadata.name.clone().unwrap();
        for (number, page) in (1..).zip(&status.pages) {
            assert_eq!(server.open_page(&name, number).summary, *page, "kill {kill}");
        }
    }
}

#[test]
fn results_of_last_page_stay_on_shadows_and_come_on_no_second_page() {
    for kill in 0..8 {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.add("a", result(7, 1, 10, 2));
        server.end(RolloutPhase::Completed, 20);
        server.settle(&mut leader, 20, kill);
        assert_eq!(server.version, 4, "the record, its beginning, the page and the end: kill {kill}");
        assert_eq!(server.plan(&leader, 20).facts.ended, [7].into());
        let active = &mut server.operator.status.active_rollouts[0];
        active.record = Some(RolloutRecord { first: Some(7), ..recorded(8) });
        server.add("a", result(8, 2, 30, 2));
        // Begun before the rollout had its number: nothing would show that it is on a page.
        server.add("b", result(0, 1, 30, 2));
        server.settle(&mut leader, 30, kill);
        server.end(RolloutPhase::Completed, 40);
        server.settle(&mut leader, 40, kill);
        assert_eq!((server.rows().len(), server.plan(&leader, 40).facts.ended), (3, [7, 8].into()), "kill {kill}");
        assert_eq!((server.shadows["a"].len(), server.shadows["b"].len()), (2, 0), "kill {kill}");
        assert_eq!(server.dropped, 0, "kill {kill}: that one was cleared as a row of the page");
        // Without its record, the result would seem to be on no page.
        server.operator.spec.rollout_history = serde_json::from_value(serde_json::json!({"records": 1})).unwrap();
        let first = server.plan(&leader, 50).actions;
        let rows = BTreeSet::from([("a".to_owned(), 1)]);
        let clear = |action: &HistoryAction| *action == HistoryAction::Clear { node: "a".into(), rows: rows.clone() };
        let is_page =
            |action: &HistoryAction| matches!(action, HistoryAction::Delete { name, .. } if name.ends_with("-p001"));
        assert!(first.iter().any(clear) && first.iter().all(|a| clear(a) || is_page(a)), "kill {kill}: {first:?}");
    }
}

#[test]
fn record_ends_with_its_own_phase_and_time_beside_the_one_that_continues_it() {
    for kill in 0..8 {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.under_way.insert(7);
        server.settle(&mut leader, 10, kill);
        server.end(RolloutPhase::Completed, 20);
        let rollouts = &mut server.operator.status.active_rollouts;
        let replaced = ActiveRollout { ended: Some(t(25)), ..rollouts[0].clone() };
        rollouts[0].record = Some(RolloutRecord { first: Some(7), ..recorded(8) });
        rollouts.push(replaced);
        server.add("a", result(7, 1, 30, 2));
        server.settle(&mut leader, 30, kill);
        assert_eq!(server.status().phase, RolloutPhase::Running, "kill {kill}: an attempt is under way");
        server.under_way.clear();
        server.settle(&mut leader, 40, kill);
        let status = server.status();
        assert_eq!((status.phase, status.ended), (RolloutPhase::Completed, Some(t(20))), "kill {kill}");
        let running: Vec<_> = leader.records.values().filter(|record| record.runs()).collect();
        assert!(matches!(running[..], [record] if record.rollout.number == 8), "kill {kill}");
    }
}

#[test]
fn record_that_a_user_deletes_is_not_created_again_from_results_that_are_left() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.end(RolloutPhase::Completed, 10);
    server.add("a", result(7, 1, 5, 2));
    server.settle(&mut leader, 10, 0);
    server.objects.clear();
    leader.records.clear();
    assert!(!server.plan(&leader, 20).actions.is_empty(), "to a leader that never saw it, the record is missing");
    leader.removed.insert(7);
    let rows = BTreeSet::from([("a".to_owned(), 1)]);
    assert_eq!(server.plan(&leader, 20).actions, [HistoryAction::Clear { node: "a".into(), rows }]);
}

#[test]
fn result_of_another_resource_with_the_number_of_an_ended_record_waits_for_its_own() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.end(RolloutPhase::Completed, 10);
    server.add("a", result(7, 1, 5, 2));
    server.settle(&mut leader, 10, 0);
    server.operator.uid = "op-2".into();
    server.operator.status.active_rollouts[0].record = Some(recorded(7));
    server.shadows.clear();
    assert_eq!(server.plan(&leader, 15).facts.ended, BTreeSet::new());
    server.settle(&mut leader, 15, 0);
    server.add("b", result(7, 1, 20, 2));
    assert_eq!(server.plan(&leader, 20).facts.ended, BTreeSet::new());
    server.end(RolloutPhase::Completed, 30);
    server.settle(&mut leader, 30, 0);
    assert_eq!(server.rows().len(), 2);
}

#[test]
fn first_estimate_goes_with_the_next_write_or_after_the_wait_of_a_page() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.settle(&mut leader, 0, 0);
    let estimate = CompletionEstimate { at: t(900), earliest: t(900), latest: t(900), made: t(5) };
    let record = server.operator.status.active_rollouts[0].record.as_mut().unwrap();
    record.first_estimate = Some(estimate);
    let plan = server.plan(&leader, 5);
    assert_eq!((plan.actions, plan.wake), (Vec::new(), Some(t(600))));
    let mut other = Server { operator: server.operator.clone(), ..Server::new() };
    other.operator.status.active_rollouts[0].approved_step = Some(1);
    other.objects = server.objects.clone();
    other.version = server.version;
    other.settle(&mut leader, 5, 0);
    assert_eq!(other.status().first_estimate, Some(estimate), "with an entry");
    server.settle(&mut Leader::default(), 600, 0);
    assert_eq!(server.status().first_estimate, Some(estimate));
}

#[test]
fn entry_that_updates_are_enabled_again_goes_with_the_next_write_or_after_the_wait_of_a_page() {
    let enabled = |status, at: i64| since(ENABLED, status, "x", at);
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.operator.status.conditions = vec![enabled(ConditionStatus::False, 1)];
    server.settle(&mut leader, 1, 0);
    server.operator.status.conditions = vec![enabled(ConditionStatus::True, 50)];
    let plan = server.plan(&leader, 60);
    assert_eq!((plan.actions, plan.wake), (Vec::new(), Some(t(650))));
    let mut ended = Server { operator: server.operator.clone(), ..Server::new() };
    (ended.objects, ended.version) = (server.objects.clone(), server.version);
    ended.end(RolloutPhase::Completed, 70);
    ended.settle(&mut leader, 70, 0);
    let expected = [EntryKind::Begun, EntryKind::Paused, EntryKind::Resumed, EntryKind::Completed];
    assert_eq!(ended.entries(), expected, "with its end");
    server.settle(&mut Leader::default(), 650, 0);
    assert_eq!(server.entries(), expected[..3]);
    assert_eq!(server.status().entries[2].time, t(50));
}

#[test]
fn drill_has_a_record_of_its_own_beside_that_of_a_rollout() {
    let drill = |attempt, ended| RolloutResult {
        to: OLD,
        drill: Some(Drill::of("1")),
        result: "Passed".into(),
        ..result(0, attempt, ended, 2)
    };
    for kill in 0..6 {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.under_way.insert(7);
        server.settle(&mut leader, 0, kill);
        server.add("n0", drill(1, 10));
        server.add("n1", drill(1, 10));
        // The rollout is to the version that the drills were on, too: they are none of its attempts.
        server.add("n2", RolloutResult { to: NEW, ..drill(1, 10) });
        server.settle(&mut leader, 10, kill);
        server.add("n0", drill(2, 20));
        server.settle(&mut leader, 20, kill);
        assert_eq!(server.shadows.values().map(Vec::len).sum::<usize>(), 0, "kill {kill}: all are cleared at once");
        let heads = server.objects.values().filter_map(|object| Some((object.spec.rollout.clone()?, object)));
        let (drills, rollouts): (Vec<_>, Vec<_>) = heads.partition(|(head, _)| head.drill);
        assert_eq!((drills.len(), rollouts.len()), (3, 1), "kill {kill}");
        let status = |object: &BottlerocketRolloutHistory| object.status.clone().unwrap();
        assert_eq!((status(rollouts[0].1).phase, status(rollouts[0].1).nodes), (RolloutPhase::Running, 0));
        let mut nodes: Vec<_> = drills.iter().map(|(_, object)| status(object).nodes).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [1, 1, 2], "kill {kill}");
        assert!(drills.iter().all(|(head, object)| {
            status(object).phase == RolloutPhase::Completed && head.number > 7 && !head.policy.is_empty()
        }));
        server.check();
        // The next rollout gets the number of one of them if it was given at the same time, and has its own record.
        let number = drills[0].0.number;
        server.operator.status.active_rollouts[0].record = Some(recorded(number));
        server.settle(&mut leader, 30, kill);
        let same = server.objects.values().filter_map(|object| object.spec.rollout.as_ref());
        assert_eq!(same.filter(|head| head.number == number).count(), 2, "kill {kill}");
    }
}

#[test]
fn record_holds_policy_versions_and_identity_of_its_beginning() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.operator.spec.enabled = Some(true);
    server.operator.spec.prometheus = serde_json::from_value(serde_json::json!({"url": "http://me:secret@p"})).unwrap();
    server.settle(&mut leader, 0, 0);
    let rollout = server.record().spec.rollout.clone().unwrap();
    assert_eq!((rollout.number, rollout.revision.number, rollout.version.clone()), (7, 3, NEW));
    assert_eq!(rollout.from, [VersionCount { version: OLD, nodes: 1 }], "of its architecture");
    assert_eq!(rollout.policy, r#"{"enabled":true,"prometheus":{"url":"http://p"}}"#);
    assert_eq!(server.record().spec.record, record_name(&rollout));
    assert_eq!(server.entries(), [EntryKind::Begun]);
    let facts = server.plan(&leader, 0).facts;
    assert_eq!((facts.highest, facts.begun), (Some(7), [(7, rollout.begun)].into()));
}

#[test]
fn entries_tell_each_change_once_under_every_leader() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.settle(&mut leader, 0, 1);
    let set = |server: &mut Server, type_: &str, status: ConditionStatus, at: i64| {
        let conditions = &mut server.operator.status.conditions;
        conditions.retain(|condition| condition.type_ != type_);
        conditions.push(since(type_, status, "x", at));
    };
    server.operator.managers.enabled = Some("kubectl-edit".into());
    server.operator.managers.approve_step = Some("kubectl-annotate".into());
    let quarantined = Quarantined { since: t(40), ..fallen_back(&["n1"]) };
    server.operator.managers.urgent = Some("kubectl-patch".into());
    let urgency =
        models::operator::UrgencyRecord { from: NEW, reason: "CVE-2026-1234".into(), since: t(31), until: t(60) };
    let mut expected = vec![EntryKind::Begun];
    let mut step = |added: &[EntryKind], change: &dyn Fn(&mut Server)| {
        change(&mut server);
        server.settle(&mut leader, 100, 1);
        server.settle(&mut leader, 101, 0);
        expected.extend(added);
        assert_eq!(server.entries(), expected);
    };
    step(&[], &|s| set(s, ENABLED, ConditionStatus::True, 1));
    step(&[], &|s| set(s, WINDOW_OPEN, ConditionStatus::True, 1));
    step(&[EntryKind::Paused], &|s| set(s, ENABLED, ConditionStatus::False, 10));
    // That updates go on waits for another entry.
    step(&[], &|s| set(s, ENABLED, ConditionStatus::True, 20));
    step(&[EntryKind::Resumed, EntryKind::Paused], &|s| set(s, ENABLED, ConditionStatus::False, 25));
    step(&[], &|s| set(s, ENABLED, ConditionStatus::True, 28));
    step(&[EntryKind::Resumed, EntryKind::WindowClosed], &|s| set(s, WINDOW_OPEN, ConditionStatus::False, 30));
    step(&[EntryKind::WindowOpened], &|s| set(s, WINDOW_OPEN, ConditionStatus::True, 31));
    step(&[EntryKind::Urgent], &|s| {
        s.operator.status.urgent = Some(urgency.clone());
        s.operator.status.active_rollouts[0].urgent_until = Some(t(60));
    });
    step(&[EntryKind::Urgent], &|s| s.operator.status.urgent.as_mut().unwrap().until = t(70));
    step(&[EntryKind::UrgencyEnded], &|s| s.operator.status.active_rollouts[0].urgent_until = None);
    step(&[EntryKind::Approved, EntryKind::StepPassed, EntryKind::StepPassed], &|s| {
        let active = &mut s.operator.status.active_rollouts[0];
        (active.approved_step, active.steps_passed) = (Some(2), 2);
    });
    step(&[EntryKind::Quarantined, EntryKind::Frozen], &|s| {
        set(s, models::operator::FROZEN, ConditionStatus::True, 40);
        let quarantined = Some(quarantined.clone());
        s.operator.status.versions = vec![KnownVersion { quarantined, ..seen(NEW, 0) }];
    });
    step(&[EntryKind::Resumed], &|s| set(s, models::operator::FROZEN, ConditionStatus::False, 50));
    step(&[EntryKind::Braked], &|s| {
        let active = &mut s.operator.status.active_rollouts[0];
        let mut ledger = RolloutLedger { due: 9, braked_until: Some(t(60)), ..RolloutLedger::default() };
        ledger.move_node(None, ("n3", models::reason::Proof::Unproven, "RebootTimedOut"));
        ledger.row.clone_from(&ledger.nodes);
        active.ledger = Some(ledger);
    });
    step(&[EntryKind::Resumed], &|s| {
        let ledger = s.operator.status.active_rollouts[0].ledger.as_mut().unwrap();
        ledger.braked_until = None;
    });
    step(&[EntryKind::StepDueAgain], &|s| {
        let active = &mut s.operator.status.active_rollouts[0];
        (active.approved_step, active.steps_passed) = (Some(1), 1);
    });
    step(&[EntryKind::Approved, EntryKind::StepPassed], &|s| {
        let active = &mut s.operator.status.active_rollouts[0];
        active.ledger.as_mut().unwrap().accept();
        (active.approved_step, active.steps_passed) = (Some(2), 2);
    });
    step(&[EntryKind::Approved], &|s| {
        let ledger = s.operator.status.active_rollouts[0].ledger.as_mut().unwrap();
        ledger.move_node(None, ("n30", models::reason::Proof::Unproven, "RebootTimedOut"));
        ledger.accept();
    });
    step(&[EntryKind::Approved, EntryKind::StepPassed], &|s| {
        let active = &mut s.operator.status.active_rollouts[0];
        (active.approved_step, active.steps_passed) = (Some(3), 3);
    });
    let entries = server.status().entries;
    let of = |kind: EntryKind| entries.iter().find(|entry| entry.kind == kind).unwrap();
    let found = (of(EntryKind::Paused).time, of(EntryKind::Paused).field_manager.as_deref());
    assert_eq!(found, (t(10), Some("kubectl-edit")));
    assert_eq!(of(EntryKind::Approved).field_manager.as_deref(), Some("kubectl-annotate"));
    let approved = entries.iter().filter(|entry| entry.kind == EntryKind::Approved);
    let approved: Vec<_> = approved.map(|entry| (entry.step, entry.message.as_str())).collect();
    let accepted = "places without a proof were accepted: n3 (RebootTimedOut)";
    let later = "places without a proof were accepted: n30 (RebootTimedOut)";
    assert_eq!(approved, [(Some(2), ""), (Some(2), accepted), (Some(2), later), (Some(3), "")]);
    assert!(of(EntryKind::Quarantined).message.contains("n1"));
}

#[test]
fn every_accepted_place_is_named_once() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    let mut ledger = RolloutLedger { due: 64, ..RolloutLedger::default() };
    for number in 0..63 {
        let node = format!("ip-10-0-0-{number}.eu-central-1.compute.internal");
        ledger.move_node(None, (node.as_str(), models::reason::Proof::Unproven, "RebootTimedOut"));
    }
    let long = "n".repeat(253);
    ledger.move_node(None, (long.as_str(), models::reason::Proof::Unproven, "RebootTimedOut"));
    ledger.accept();
    let names: Vec<String> = ledger.nodes.iter().map(|node| models::plain::cut(&node.node, 200)).collect();
    let active = &mut server.operator.status.active_rollouts[0];
    (active.ledger, active.approved_step) = (Some(ledger), Some(1));
    server.settle(&mut leader, 0, 0);
    server.settle(&mut Leader::default(), 1, 0);
    let entries = server.status().entries;
    let approved: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::Approved).collect();
    assert!(approved.iter().all(|entry| entry.step == Some(1) && entry.message.chars().count() <= 256), "{approved:?}");
    let text: String = approved.iter().map(|entry| entry.message.as_str()).collect();
    assert!(names.iter().all(|name| text.matches(&format!(" {name}")).count() == 1), "{text}");
}

/// The annotation of an earlier `resume` stays on the resource, and its client writes other requests.
#[test]
fn end_of_a_freeze_or_brake_is_attributed_to_the_user_whose_resume_ended_it() {
    for (sentence, freeze, brake, ended, by_user) in [
        ("a node has proven the version", "NoFailures", "NotBraked", 50, false),
        ("a resume", "Resumed", "NotBraked", 50, true),
        ("a resume in the same second", "Resumed", "NotBraked", 40, true),
        ("a resume before it", "Resumed", "Resumed", 30, false),
        ("a resume that has ended another brake", "NoFailures", "Resumed", 50, true),
    ] {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.operator.managers.resume = Some("brupop-plugin".into());
        let ledger = |until| Some(RolloutLedger { braked_until: until, ..RolloutLedger::default() });
        let frozen = models::operator::FROZEN;
        server.operator.status.conditions = vec![since(frozen, ConditionStatus::True, "VersionFailed", 40)];
        server.operator.status.active_rollouts[0].ledger = ledger(Some(t(99)));
        server.settle(&mut leader, 40, 0);
        server.operator.status.conditions = vec![
            since(frozen, ConditionStatus::False, freeze, ended),
            since(models::operator::BRAKED, ConditionStatus::False, brake, ended),
        ];
        server.operator.status.active_rollouts[0].ledger = ledger(None);
        server.settle(&mut leader, 50, 0);
        let entries = server.status().entries;
        let resumed: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::Resumed).collect();
        assert_eq!(resumed.len(), 2, "{sentence}");
        let expected = by_user.then_some("brupop-plugin");
        assert!(resumed.iter().all(|entry| entry.field_manager.as_deref() == expected), "{sentence}: {resumed:?}");
        assert_eq!(resumed[0].message.contains("proven"), !by_user, "{sentence}");
    }
}

#[test]
fn rollout_of_the_failed_kind_stays_frozen_in_its_record_while_others_go_on() {
    for (own, resumed, client) in [(true, false, None), (false, true, Some("kubectl-annotate")), (false, true, None)] {
        let (mut server, mut leader) = (Server::new(), Leader::default());
        server.settle(&mut leader, 0, 1);
        server.operator.managers.continue_others = client.map(str::to_owned);
        let condition = |status, reason: &str, at| since(models::operator::FROZEN, status, reason, at);
        let quarantined = |contained| Quarantined { since: t(40), contained, ..fallen_back(&["n1"]) };
        let known = |contained| KnownVersion {
            arch: if own { ARCH.into() } else { "another".into() },
            quarantined: Some(quarantined(contained)),
            ..seen(NEW, 0)
        };
        server.operator.status.conditions = vec![condition(ConditionStatus::True, "VersionFailed", 40)];
        server.operator.status.versions = vec![known(false)];
        server.settle(&mut leader, 41, 0);
        server.operator.status.conditions = vec![condition(ConditionStatus::False, models::operator::CONTAINED, 50)];
        server.operator.status.versions = vec![known(true)];
        server.settle(&mut leader, 51, 0);
        let entries = server.status().entries;
        let found = entries.iter().find(|entry| entry.kind == EntryKind::Resumed);
        let entry = found.map(|entry| (entry.field_manager.as_deref(), entry.message.as_str()));
        assert_eq!(entry, resumed.then_some((client, "failures no longer stop updates")), "own: {own}");
    }
}

#[test]
fn record_of_another_operators_resource_is_stopped_and_stays_apart() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.settle(&mut leader, 0, 0);
    let first = server.record().metadata.name.clone().unwrap();
    server.operator.uid = "op-2".into();
    server.settle(&mut leader, 1, 0);
    assert_eq!(server.objects[&first].status.as_ref().unwrap().phase, RolloutPhase::Stopped);
    assert_eq!(server.objects.len(), 2, "the same number under another resource is another record");
}

#[test]
fn result_without_known_rollout_is_given_up_and_one_with_it_never() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    server.settle(&mut leader, 0, 0);
    server.shadows.insert("lost".into(), vec![RolloutResult { to: OLD, ..result(3, 1, 0, 0) }]);
    server.add("kept", result(7, 1, 0, 0));
    // Its number was lost with the write of the status.
    server.add("begun-before", result(5, 1, 0, 0));
    server.settle(&mut leader, 0, 0);
    assert!(server.shadows["lost"].is_empty());
    assert_eq!((server.shadows["kept"].len(), server.shadows["begun-before"].len()), (1, 1));
    server.settle(&mut leader, 2000, 0);
    assert_eq!(server.rows().len(), 2);
}

#[test]
fn page_and_record_of_5000_nodes_with_30_pods_stay_within_their_limits() {
    let (mut server, mut leader) = (Server::new(), Leader::default());
    for node in 0..5000 {
        server.add(&format!("ip-10-0-{}-{}", node / 250, node % 250), result(7, 1, node, 30));
        if node % 250 == 249 {
            server.settle(&mut leader, node, 0);
        }
    }
    server.end(RolloutPhase::Completed, 6000);
    server.settle(&mut leader, 6000, 0);
    assert_eq!(server.rows().len(), 5000);
    let mut whole = 0;
    for (name, object) in &server.objects {
        let size = serde_json::to_vec(object).unwrap().len();
        assert!(i64::try_from(size).unwrap() < LARGEST_OBJECT - 4096, "{name}: {size}");
        whole += size;
    }
    let pages = server.status().pages.len();
    assert!(pages <= 220 && whole < 48 << 20, "{pages} pages, {whole} bytes");
}

#[test]
fn row_of_any_size_fits_a_page() {
    let mut large = result(7, 1, 0, 1024);
    large.running = (0..256).map(|number| format!("{}/{number:0253}", "n".repeat(63))).collect();
    for pod in Arc::make_mut(&mut large.pods) {
        pod.name = "p".repeat(253);
        pod.services = vec!["s".repeat(63); 8];
    }
    let row = fitting(HistoryRow { node: "n".into(), uid: "n".into(), result: large });
    assert!(bytes(&row) <= ROW_BYTES && row.result.message.contains("not listed"));
}

impl Server {
    /// The rollout of its record.
    fn begun(mut self) -> RecordedRollout {
        self.settle(&mut Leader::default(), 0, 0);
        self.record().spec.rollout.clone().unwrap()
    }
}
