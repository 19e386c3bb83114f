use serde_json::{Value, json};

use super::*;

/// A definition that serves these versions and stores the last one.
fn definition(versions: &[&str], stored: &[&str]) -> Definition {
    Definition {
        uid: "u".into(),
        generation: 3,
        resource_version: "70".into(),
        storage: versions.last().map(|name| (*name).to_owned()).unwrap_or_default(),
        stored: stored.iter().map(|name| (*name).to_owned()).collect(),
        versions: versions.iter().map(|name| ((*name).to_owned(), true)).collect(),
        keeps_earlier: versions.contains(&"v3"),
        conversion: "None".into(),
        hash: Some("hash".into()),
    }
}

fn takeover() -> Definition {
    definition(&["v1", "v2", "v3"], &["v2", "v3"])
}

fn completed(definition: &Definition) -> CompletedMigration {
    CompletedMigration {
        uid: definition.uid.clone(),
        generation: definition.generation,
        storage_version: definition.storage.clone(),
        storage_version_hash: definition.hash.clone(),
        time: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// A run that has found that the earlier operator's versions are read-only.
fn ready() -> Known {
    Known { read_only: Some(true), ..Known::default() }
}

fn passed(work: Work, definition: &Definition, found: usize) -> Known {
    let pass = Pass { work, definition: definition.clone(), found, refused: vec![], after_wait: false };
    Known { pass: Some(pass), ..ready() }
}

fn after_wait(mut known: Known) -> Known {
    known.waited = true;
    known.pass.as_mut().unwrap().after_wait = true;
    known
}

fn refused(mut known: Known) -> Known {
    let refusal = Refusal { object: "old/brs-a".into(), message: "denied".into() };
    known.pass.as_mut().unwrap().refused = vec![refusal];
    known
}

fn auto<'a>(definition: &'a Definition, known: &'a Known) -> StorageFacts<'a> {
    StorageFacts { definition, earlier_pods: &[], completed: None, manual: false, requested: false, known }
}

#[test]
fn definition_is_read_from_its_object() {
    let schema = json!({"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": ATTEMPT_RULE}]}},
    }});
    let mut object = json!({
        "metadata": {"name": "x", "uid": "u", "generation": 3, "resourceVersion": "70"},
        "spec": {
            "group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "ks"},
            "versions": [
                {"name": "v1", "served": true, "storage": false}, {"name": "v2", "served": true, "storage": false},
                {"name": "v3", "served": true, "storage": true, "schema": schema},
            ],
            "conversion": {"strategy": "None"},
        },
        "status": {"storedVersions": ["v2", "v3"]},
    });
    let of = |object: &Value| Definition::of(&serde_json::from_value(object.clone()).unwrap(), Some("hash".into()));
    assert_eq!(of(&object), takeover());
    let older = json!([{"rule": "self.attempt >= oldSelf.attempt"}]);
    object["spec"]["versions"][2]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        older;
    assert!(!of(&object).keeps_earlier, "another rule");
    object["spec"]["versions"][1]["schema"] = schema;
    assert!(!of(&object).keeps_earlier, "the rule at another version");
    let bare = json!({"metadata": {}, "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "ks"},
        "versions": []}});
    let bare = Definition::of(&serde_json::from_value(bare).unwrap(), None);
    assert_eq!(unfit(&bare), Some(Block::StorageVersion(String::new())));
}

#[test]
fn definition_that_is_not_fit_blocks_before_anything_is_done() {
    let webhook = Definition { conversion: "Webhook".into(), ..takeover() };
    let hidden = Definition { versions: vec![("v1".into(), false), ("v3".into(), true)], ..takeover() };
    let erases = Definition { keeps_earlier: false, ..takeover() };
    for (definition, block) in [
        (webhook, Block::Conversion("Webhook".into())),
        (definition(&["v1", "v2"], &["v2"]), Block::StorageVersion("v2".into())),
        (hidden, Block::NotServed("v1".into())),
        (erases, Block::AttemptRule),
    ] {
        assert_eq!(next(auto(&definition, &after_wait(passed(Work::Earlier, &definition, 0)))), Step::Blocked(block));
    }
    let alone = Definition { keeps_earlier: false, ..definition(&["v3"], &["v3"]) };
    assert_eq!(unfit(&alone), None, "no object is the earlier operator's");
}

#[test]
fn steps_of_takeover_follow_each_other() {
    use Work::{All, Earlier};
    let now = takeover();
    let changed = Definition { generation: 4, ..takeover() };
    let pruned = Definition { stored: vec!["v3".into()], resource_version: "71".into(), ..takeover() };
    for (sentence, definition, known, expected) in [
        ("the policy is tried first", &now, Known::default(), Step::TryReadOnly),
        ("writable ones stop", &now, Known { read_only: Some(false), ..ready() }, Step::Blocked(Block::ReadOnlyPolicy)),
        ("then all objects are passed", &now, ready(), Step::Pass(Earlier)),
        ("objects were rewritten: wait", &now, passed(Earlier, &now, 2), Step::Wait),
        ("none was found, and a version is to be pruned: wait", &now, passed(Earlier, &now, 0), Step::Wait),
        ("the wait is over: check", &now, Known { waited: true, ..passed(Earlier, &now, 2) }, Step::Pass(Earlier)),
        (
            "an object was found after the wait: wait again",
            &now,
            Known { waited: false, ..after_wait(passed(Earlier, &now, 1)) },
            Step::Wait,
        ),
        ("none is left after the wait: prune", &now, after_wait(passed(Earlier, &now, 0)), Step::Prune("70".into())),
        (
            "an object that cannot be migrated keeps the versions",
            &now,
            refused(after_wait(passed(Earlier, &now, 0))),
            Step::Blocked(Block::Refused(vec![Refusal { object: "old/brs-a".into(), message: "denied".into() }])),
        ),
        ("after the prune it is complete", &pruned, after_wait(passed(Earlier, &now, 0)), Step::Complete),
        ("another client has pruned, and old objects are left", &pruned, passed(Earlier, &pruned, 1), Step::Wait),
        ("the definition was changed: pass again", &changed, after_wait(passed(Earlier, &now, 0)), Step::Pass(Earlier)),
        ("a pass of other work does not count", &now, after_wait(passed(All, &now, 0)), Step::Pass(Earlier)),
    ] {
        assert_eq!(next(auto(definition, &known)), expected, "{sentence}");
    }
}

#[test]
fn pod_of_earlier_operator_blocks_every_step_also_when_it_returns() {
    let (now, pods) = (takeover(), ["old/a".to_owned()]);
    for known in [
        Known::default(),
        ready(),
        passed(Work::Earlier, &now, 2),
        Known { waited: true, ..passed(Work::Earlier, &now, 2) },
        after_wait(passed(Work::Earlier, &now, 0)),
    ] {
        let facts = StorageFacts { earlier_pods: &pods, ..auto(&now, &known) };
        assert_eq!(next(facts), Step::Blocked(Block::EarlierPods(pods.to_vec())), "{known:?}");
    }
    let (only, known) = (definition(&["v3"], &["v3"]), Known::default());
    let facts = StorageFacts { earlier_pods: &pods, ..auto(&only, &known) };
    assert_eq!(next(facts), Step::Pass(Work::Earlier), "its versions are not served: it reads and writes nothing");
}

#[test]
fn read_only_policy_is_tried_at_each_served_earlier_version() {
    let mut now = takeover();
    assert_eq!(now.served_earlier().collect::<Vec<_>>(), ["v1", "v2"]);
    now.versions[0].1 = false;
    assert_eq!(now.served_earlier().collect::<Vec<_>>(), ["v2"]);
}

#[test]
fn new_install_is_checked_once_and_complete() {
    let only = definition(&["v3"], &["v3"]);
    assert_eq!(next(auto(&only, &Known::default())), Step::Pass(Work::Earlier), "no pods, no policy");
    assert_eq!(next(auto(&only, &passed(Work::Earlier, &only, 0))), Step::Complete);
}

#[test]
fn versions_of_this_operator_are_migrated_by_writes_without_change() {
    use Work::{All, Earlier};
    let later = definition(&["v3", "v4"], &["v3", "v4"]);
    let pruned = definition(&["v3", "v4"], &["v4"]);
    let done = completed(&pruned);
    let other_hash = CompletedMigration { storage_version_hash: Some("other".into()), ..done.clone() };
    let no_hash = CompletedMigration { storage_version_hash: None, ..done.clone() };
    let older = CompletedMigration { generation: 2, ..done.clone() };
    let replaced = CompletedMigration { uid: "before".into(), ..done.clone() };
    let back = CompletedMigration { storage_version: "v3".into(), ..done.clone() };
    for (sentence, definition, completed, requested, work) in [
        ("a version is stored besides", &later, None, false, All),
        ("no completed migration is known: storedVersions proves nothing", &pruned, None, false, All),
        ("the last one was of this definition", &pruned, Some(&done), false, Earlier),
        ("but a version is stored besides", &later, Some(&done), false, All),
        ("but a user requests it", &pruned, Some(&done), true, All),
        ("the hash differs", &pruned, Some(&other_hash), false, All),
        ("the hash is not known", &pruned, Some(&no_hash), false, Earlier),
        ("the definition has changed", &pruned, Some(&older), false, All),
        ("the definition was replaced", &pruned, Some(&replaced), false, All),
        ("another version was the storage version", &pruned, Some(&back), false, All),
    ] {
        let known = Known::default();
        let facts = StorageFacts { completed, requested, ..auto(definition, &known) };
        assert_eq!(next(facts), Step::Pass(work), "{sentence}");
    }
    // An object that was stored in the old version was found by its write.
    assert_eq!(next(auto(&later, &passed(All, &later, 1))), Step::Wait);
    assert_eq!(next(auto(&later, &after_wait(passed(All, &later, 0)))), Step::Prune("70".into()));
}

#[test]
fn manual_mode_only_looks_until_a_request() {
    use Work::{Earlier, Look};
    let (now, only) = (takeover(), definition(&["v3"], &["v3"]));
    let manual = |definition: &Definition, known: &Known, requested: bool| {
        next(StorageFacts { manual: true, requested, ..auto(definition, known) })
    };
    assert_eq!(manual(&now, &ready(), false), Step::Pass(Look));
    assert_eq!(manual(&now, &passed(Look, &now, 4), false), Step::Blocked(Block::Request(4)));
    assert_eq!(manual(&now, &passed(Look, &now, 0), false), Step::Blocked(Block::Request(0)), "it is not pruned");
    assert_eq!(manual(&now, &passed(Look, &now, 4), true), Step::Pass(Earlier));
    assert_eq!(manual(&only, &passed(Look, &only, 0), false), Step::Complete, "nothing is due");
    let later = definition(&["v3", "v4"], &["v4"]);
    assert_eq!(manual(&later, &passed(Look, &later, 0), false), Step::Blocked(Block::Request(0)));
}

/// A cluster whose objects are stored in versions, with an API server that has not seen the definition.
#[derive(Clone, Debug)]
struct Cluster {
    definition: Definition,
    objects: Vec<String>,
    /// The server behind stores one more object in the old version, before this step.
    behind: Option<usize>,
}

impl Cluster {
    /// Carries out a step as the migrator does. `stop`: the process is killed after so many writes of a pass.
    fn carry_out(&mut self, step: &Step, known: &mut Known, stop: Option<usize>) {
        match step {
            Step::TryReadOnly => known.read_only = Some(true),
            Step::Pass(work) => {
                let storage = self.definition.storage.clone();
                let due = |object: &str| if *work == Work::All { object != storage } else { is_earlier(object) };
                let found = self.objects.iter().filter(|object| due(object)).count();
                let old = self.objects.iter_mut().filter(|object| due(object));
                old.take(stop.unwrap_or(usize::MAX)).for_each(|object| object.clone_from(&storage));
                let after_wait = known.waited;
                known.waited &= found == 0;
                let definition = self.definition.clone();
                known.pass = Some(Pass { work: *work, definition, found, refused: vec![], after_wait });
            }
            Step::Wait => *known = Known { waited: true, pass: known.pass.take(), ..Known::default() },
            Step::Prune(version) => {
                assert_eq!(*version, self.definition.resource_version);
                assert!(self.objects.iter().all(|object| *object == self.definition.storage), "pruned early: {self:?}");
                self.definition.stored = vec![self.definition.storage.clone()];
                self.definition.resource_version.push('1');
            }
            Step::Complete | Step::Blocked(_) => {}
        }
    }

    /// Runs a migrator, which is killed after the step with the number `kill`. Returns the number of steps.
    fn run(&mut self, kill: Option<(usize, usize)>) -> usize {
        let mut known = Known::default();
        for number in 0..30 {
            let step = next(auto(&self.definition.clone(), &known));
            if let Step::Complete | Step::Blocked(_) = step {
                assert_eq!(step, Step::Complete, "{self:?}");
                return number;
            }
            // Objects that a server behind stores come before the wait is over.
            if self.behind == Some(number) && !known.waited {
                self.objects.push(self.definition.versions[0].0.clone());
            }
            let killed = kill.filter(|(at, _)| *at == number);
            self.carry_out(&step, &mut known, killed.map(|(_, writes)| writes));
            if killed.is_some() {
                return number;
            }
        }
        panic!("it never ends: {self:?}");
    }
}

#[test]
fn migration_that_is_killed_at_any_step_is_completed_by_the_next_leader() {
    let later = definition(&["v3", "v4"], &["v3", "v4"]);
    for (definition, objects) in [(takeover(), ["v1", "v3", "v2", "v2"]), (later, ["v3", "v4", "v3", "v3"])] {
        let objects = objects.map(str::to_owned).to_vec();
        for behind in [None, Some(0), Some(1), Some(2)] {
            let start = Cluster { definition: definition.clone(), objects: objects.clone(), behind };
            let steps = start.clone().run(None);
            for kill in (0..steps).flat_map(|at| (0..3).map(move |writes| (at, writes))) {
                let mut cluster = start.clone();
                cluster.run(Some(kill));
                cluster.run(None);
                assert!(cluster.objects.iter().all(|object| *object == definition.storage), "{kill:?}: {cluster:?}");
                assert!(cluster.definition.is_pruned(), "{kill:?}: {cluster:?}");
            }
        }
    }
}
