//! The limits of the history.

use super::*;

#[test]
fn history_beyond_its_limits_is_removed_from_its_oldest_end() {
    let object = |number: i64, page: Option<i64>, bytes: i64| HistoryObject {
        name: page.map_or(format!("rollout-{number}-x"), |page| page_name(&format!("rollout-{number}-x"), page)),
        uid: "u".into(),
        resource_version: "1".into(),
        record: format!("rollout-{number}-x"),
        page,
        owner: page.map(|_| format!("uid-{number}")),
        bytes,
        deleting: false,
    };
    let record = |number: i64, ended: Option<i64>| {
        let mut rollout = RecordFacts {
            name: format!("rollout-{number}-x"),
            uid: format!("uid-{number}"),
            resource_version: "1".into(),
            rollout: Server::new().begun(),
            spec: serde_json::Value::Null,
            status: BottlerocketRolloutHistoryStatus::default(),
            bytes: 1000,
        };
        rollout.rollout.number = number;
        if let Some(ended) = ended {
            (rollout.status.phase, rollout.status.ended) = (RolloutPhase::Completed, Some(t(ended)));
        } else {
            rollout.status.pages = vec![PageSummary::default()];
        }
        (rollout.name.clone(), rollout)
    };
    let records: BTreeMap<_, _> = [record(8, Some(10)), record(9, Some(20)), record(10, None)].into();
    let mut objects: Vec<HistoryObject> = (8..=10).map(|number| object(number, None, 0)).collect();
    for number in 8..=10 {
        objects.extend([object(number, Some(1), 5000), object(number, Some(2), 5000)]);
    }
    // A page of a record that another version wrote.
    objects.push(object(5, Some(1), 0));
    let objects: BTreeMap<_, _> = objects.into_iter().map(|object| (object.name.clone(), object)).collect();
    let all = Limits { records: 10, max_age: Duration::from_secs(1_000_000), bytes: 1 << 20 };
    let deleted_of = |records: &BTreeMap<String, RecordFacts>, limits: Limits, now: i64| -> Vec<String> {
        let snapshot = HistorySnapshot {
            namespace: "ns",
            operator: None,
            objects: &objects,
            records,
            unreadable: &BTreeMap::from([("rollout-5-x".to_owned(), "1".to_owned())]),
            removed: &BTreeSet::new(),
            open: &BTreeMap::new(),
            waiting: &[],
            under_way: &BTreeSet::new(),
            nodes: &[],
            now: t(now),
        };
        let objects = crate::history::limits::surplus(limits, &snapshot);
        objects.iter().map(|object| object.name.replace("rollout-", "").replace("-x", "")).collect()
    };
    let deleted = |limits, now| deleted_of(&records, limits, now);
    for (sentence, limits, now, expected) in [
        ("all fits", all, 100, vec![]),
        ("pages get old", Limits { max_age: Duration::from_secs(85), ..all }, 100, vec!["8-p001", "8-p002"]),
        (
            "records beyond the number go with their pages",
            Limits { records: 1, ..all },
            100,
            vec!["8", "8-p001", "8-p002"],
        ),
        (
            "none is kept but the running one",
            Limits { records: 0, ..all },
            100,
            vec!["8", "8-p001", "8-p002", "9", "9-p001", "9-p002"],
        ),
        ("the oldest pages go first", Limits { bytes: 24_000, ..all }, 100, vec!["8-p001", "8-p002"]),
        (
            "also those of a running rollout",
            Limits { bytes: 9_000, ..all },
            100,
            vec!["10-p001", "8-p001", "8-p002", "9-p001", "9-p002"],
        ),
        (
            "then records, but neither a running one nor its last page",
            Limits { bytes: 1, ..all },
            100,
            vec!["10-p001", "8", "8-p001", "8-p002", "9", "9-p001", "9-p002"],
        ),
    ] {
        assert_eq!(deleted(limits, now), expected, "{sentence}");
    }
    // One node's record goes before that of a fleet, whichever is older, if others have followed.
    let mut of_sizes = records.clone();
    of_sizes.extend((30..40).map(|number| record(number, Some(30))));
    for (number, nodes) in [(8, 3), (9, 1)] {
        of_sizes.get_mut(&format!("rollout-{number}-x")).unwrap().status.nodes = nodes;
    }
    let gone = |of_sizes: &_, records| deleted_of(of_sizes, Limits { records, ..all }, 100);
    assert_eq!(gone(&of_sizes, 11), ["9", "9-p001", "9-p002"]);
    of_sizes.retain(|_, record| record.rollout.number < 30);
    assert_eq!(gone(&of_sizes, 1), ["8", "8-p001", "8-p002"], "the newest ones go in their order");
}
