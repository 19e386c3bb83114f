//! Numbers, equality, labels, the limit, and the way back.

use super::*;

#[test]
fn history_is_ordered_by_number_then_name() {
    for (sentence, added, expected) in [
        ("empty", vec![], vec![]),
        ("sorted", vec![("a", 1), ("b", 2), ("c", 3)], vec!["a", "b", "c"]),
        ("reversed", vec![("a", 3), ("b", 2), ("c", 1)], vec!["c", "b", "a"]),
        ("unsorted", vec![("a", 2), ("b", 3), ("c", 1)], vec!["c", "a", "b"]),
        ("ties", vec![("c", 1), ("b", 2), ("a", 2)], vec!["c", "a", "b"]),
    ] {
        let mut world = World::new(A);
        for (name, number) in added {
            world.add_of(name, number, &format!("1.20.{number}"));
        }
        let revisions: Vec<_> =
            world.objects.values().rev().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
        let names: Vec<_> = history("op", &revisions).iter().map(|revision| revision.name.as_str()).collect();
        assert_eq!(names, expected, "{sentence}");
    }
}

#[test]
fn one_revision_is_made_for_each_content_and_renumbered_on_return() {
    let mut world = World::new(A);
    assert_eq!(world.settle(), ["create 1"], "the first one");
    assert_eq!(world.settle(), Vec::<String>::new(), "no second one for the same");
    let name = world.named(A);
    world.set(json!({"version": {"target": "v1.20.5", "ignoreWaves": false}, "maxUnavailable": 3}));
    assert_eq!(world.settle(), Vec::<String>::new(), "a default that is spelled out");
    world.target(B);
    assert_eq!(world.settle(), ["create 2"]);
    world.target(A);
    assert_eq!(world.settle(), ["renumber 3"], "back");
    assert_eq!(world.plan().update.as_ref(), Some(&name), "its name stays");
    world.target(B);
    assert_eq!(world.settle(), ["renumber 4"], "and forward again");
    assert_eq!(world.numbers(), [(3, A.into()), (4, "ge 1.20, lt 1.23".into())], "two objects");
}

#[test]
fn revision_of_policy_is_found_by_meaning_alone() {
    for (sentence, data, actions) in [
        ("defaults that are not spelled out", json!({"form": 1}), vec![]),
        ("another content", content_of(B).data(), vec!["create 6"]),
        ("a newer form", json!({"form": 2, "target": "latest"}), vec!["create 6"]),
        ("one that cannot be decoded", json!({"target": "latest"}), vec!["create 6"]),
    ] {
        let mut world = World::new(LATEST);
        world.add("x", 5, data);
        assert_eq!(world.settle(), actions, "{sentence}");
        assert!(world.objects.contains_key("x"), "{sentence}: it is kept");
    }
}

#[test]
fn tied_numbers_are_ended_by_renumbering_revision_of_policy() {
    for (numbers, actions) in [
        ((2, 2), vec!["renumber 3"]),
        ((3, 2), vec![]),
        ((1, 2), vec!["renumber 3"]),
        ((i64::MAX - 1, i64::MAX - 1), vec!["renumber 9223372036854775807"]),
        ((i64::MAX, i64::MAX), vec![]),
    ] {
        let mut world = World::new(A);
        world.add_of("a", numbers.0, A);
        world.add_of("b", numbers.1, B);
        assert_eq!(world.settle(), actions, "{numbers:?}");
    }
}

#[test]
fn renumbering_names_only_number_and_guards() {
    let mut world = World::new(A);
    world.add_of("a", 1, A);
    world.add_of("b", 2, B);
    let patch = json!({"metadata": {"uid": "uid-a", "resourceVersion": "1"}, "revision": 3});
    assert_eq!(world.plan().actions, [RevisionAction::Renumber { name: "a".into(), patch }]);
}

#[test]
fn equal_revisions_are_reduced_to_highest_once_no_shadow_names_others() {
    let mut world = World::new(A);
    world.add_of("low", 1, A);
    world.add_of("high", 3, A);
    world.add_of("tied", 3, A);
    world.add_of("b", 2, B);
    world.add("b-again", 1, json!({"form": 1, "target": "lt 1.23, ge 1.20"}));
    world.operator().status.current_revision = Some("b-again".into());
    world.shadows = vec![shadow("one", Some("low"), false), shadow("two", Some("b-again"), false)];
    let going = LabelledShadow { deleting: true, ..shadow("three", Some("high"), false) };
    world.shadows.push(going);
    let planned = world.plan();
    assert_eq!(planned.labels, [("one", "tied"), ("two", "b")].map(|(n, l)| (n.to_owned(), l.to_owned())).into());
    assert_eq!((planned.update.as_deref(), planned.current.as_deref()), (Some("tied"), Some("b")));
    assert_eq!(planned.actions, [], "each of the others is still named");
    let done = world.settle();
    assert_eq!(done, ["delete b-again", "delete low"], "relabelled first");
    world.shadows.pop();
    assert_eq!(world.settle(), ["delete high"], "once the last shadow that named it is gone");
}

#[test]
fn kept_revision_is_live_before_first_shadow_names_it() {
    let mut world = World::new(A);
    world.limit(0);
    world.add_of("a", 9, A);
    world.add_of("low", 1, B);
    world.add_of("high", 2, B);
    world.shadows = vec![shadow("n", Some("low"), false)];
    assert_eq!(world.settle(), ["delete low"], "its shadow has the label of the other one by then");
    assert_eq!(world.shadows[0].label.as_deref(), Some("high"));
}

#[test]
fn revision_that_is_being_deleted_is_not_kept_for_equal_one() {
    let mut world = World::new(A);
    world.add_of("low", 1, A);
    world.add_of("high", 2, A).metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    let planned = world.plan();
    assert_eq!((planned.actions, planned.update.as_deref()), (vec![], Some("low")));
}

#[test]
fn revision_that_is_being_deleted_is_neither_written_nor_deleted_again() {
    let mut world = World::new(A);
    world.limit(0);
    let time: Option<_> = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    world.add_of("a", 1, A).metadata.deletion_timestamp = time.clone();
    world.add_of("b", 2, B).metadata.deletion_timestamp = time;
    let planned = world.plan();
    assert_eq!((shorts(&planned), planned.update.as_deref()), (vec![], Some("a")));
    world.objects.remove("a");
    assert_eq!(world.settle(), ["create 3"], "once it is gone");
}

#[test]
fn shadow_label_names_revision_that_node_was_last_brought_to() {
    for (sentence, label, follows, expected) in [
        ("follows, without a label", None, true, Some("b")),
        ("follows, with a label that names nothing", Some("gone"), true, Some("b")),
        ("follows, with the label of another revision", Some("a"), true, Some("b")),
        ("follows, with the label", Some("b"), true, Some("b")),
        ("does not follow, without a label", None, false, None),
        ("does not follow, with a label that names nothing", Some("gone"), false, Some("gone")),
        ("does not follow, with the label of another revision", Some("a"), false, Some("a")),
        ("does not follow any more under the same revision", Some("b"), false, Some("b")),
    ] {
        let mut world = World::new(B);
        world.add_of("a", 1, A);
        world.add_of("b", 2, B);
        world.shadows = vec![shadow("n", label, follows)];
        let planned = world.plan();
        assert_eq!(planned.labels.get("n").map(String::as_str), expected, "{sentence}");
        assert_eq!(planned.actions, [], "{sentence}");
        world.shadows[0].deleting = true;
        assert!(world.plan().labels.is_empty(), "{sentence}: nothing for one that is being deleted");
    }
    let mut world = World::new(A);
    world.shadows = vec![shadow("n", None, true)];
    assert!(world.plan().labels.is_empty(), "no label before the revision exists");
}

#[test]
fn current_revision_is_last_one_that_all_nodes_followed() {
    let mut world = World::new(A);
    world.add_of("a", 1, A);
    world.add_of("b", 2, B);
    for (sentence, target, all_follow, before, current) in [
        ("all follow", B, true, Some("a"), Some("b")),
        ("not all follow", B, false, Some("a"), Some("a")),
        ("it was deleted by hand", B, false, Some("gone"), None),
        ("there was none", B, false, None, None),
        ("the revision of the policy does not exist yet", C, true, Some("a"), Some("a")),
    ] {
        world.target(target);
        world.all_follow = all_follow;
        world.operator().status.current_revision = before.map(str::to_owned);
        assert_eq!(world.plan().current.as_deref(), current, "{sentence}");
    }
}

#[test]
fn revisions_beyond_limit_are_deleted_lowest_first_and_live_ones_never() {
    for (sentence, limit, current, label, deleted) in [
        ("limit 0", 0, None, None, vec!["r1", "r2", "r3", "r4"]),
        ("limit 1", 1, None, None, vec!["r1", "r2", "r3"]),
        ("within the limit", 4, None, None, vec![]),
        ("the current one is live", 0, Some("r2"), None, vec!["r1", "r3", "r4"]),
        ("one that a shadow names is live, and does not count", 1, None, Some("r1"), vec!["r2", "r3"]),
        ("more live ones than the limit", 1, Some("r1"), Some("r2"), vec!["r3"]),
    ] {
        let mut world = World::new("1.20.5");
        for number in 1..=5 {
            world.add_of(&format!("r{number}"), number, &format!("1.20.{number}"));
        }
        world.limit(limit);
        world.operator().status.current_revision = current.map(str::to_owned);
        let going = LabelledShadow { deleting: true, ..shadow("n", label, false) };
        for shadows in [vec![shadow("n", label, false)], vec![going]] {
            world.shadows = shadows;
            let expected: Vec<_> = deleted.iter().map(|name| format!("delete {name}")).collect();
            assert_eq!(shorts(&world.plan()), expected, "{sentence}");
        }
    }
    // All are live.
    let mut world = World::new(A);
    world.limit(0);
    world.settle();
    assert_eq!(world.settle(), Vec::<String>::new(), "the only one, which no shadow names yet");
    world.add("newer", 9, json!({"form": 7}));
    assert_eq!(world.settle(), ["renumber 10", "delete newer"], "an unreadable one counts like any other");
}

#[test]
fn unusable_policy_has_no_revision_and_invalid_one_that_of_last_valid_policy() {
    let mut world = World::new(A);
    world.settle();
    let valid = serde_json::to_string(&world.operator().spec).unwrap();
    world.set(json!({"version": {"target": "1.20.5.1"}}));
    let unusable = world.plan();
    assert_eq!((unusable.update, unusable.actions), (None, vec![]));
    world.operator().status.policy_in_force = Some(valid);
    assert_eq!(world.plan().update, Some(world.named(A)));
}

#[test]
fn lost_history_is_made_again_without_an_attempt() {
    let mut world = World::new(A);
    world.shadows = vec![shadow("a", None, true), shadow("b", None, false)];
    world.settle();
    let label = world.shadows[0].label.clone();
    world.objects.clear();
    world.shadows[1].label = Some("default-of-old".into());
    assert_eq!(world.settle(), ["create 1"]);
    assert_eq!(world.shadows[0].label, label, "the same content has the same name");
    assert_eq!(world.shadows[1].label.as_deref(), Some("default-of-old"));
}

#[test]
fn undo_finds_revision_as_kubectl_rollout_does() {
    let not_found = "unable to find the specified revision";
    let unreadable = "revision 3 cannot be read: its form 2";
    let plain = |number| format!("rolled back to revision {number}");
    let all = vec![(1, LATEST), (2, A), (3, "?"), (4, B)];
    for (sentence, history, present, to, expected) in [
        ("the last but one", vec![(1, A), (2, B)], B, None, plain(1)),
        ("0 means the last but one", vec![(1, A), (2, B)], B, Some(0), plain(1)),
        ("an equal one is not the one before", vec![(1, A), (2, B), (3, B)], B, None, plain(1)),
        ("a change that is not recorded yet", vec![(1, A), (2, B)], LATEST, None, plain(2)),
        ("a return that is not renumbered yet", vec![(1, A), (2, B)], A, None, plain(2)),
        ("an invalid policy", vec![(1, A), (2, B)], "?", None, plain(2)),
        ("a number", all.clone(), B, Some(2), plain(2)),
        ("only one", vec![(1, A)], A, None, "no last revision to roll back to".into()),
        ("only equal ones", vec![(1, A), (2, A)], A, None, "no last revision to roll back to".into()),
        ("none", vec![], A, None, "no last revision to roll back to".into()),
        ("none, a number", vec![], A, Some(1), not_found.into()),
        ("an unknown number", all.clone(), B, Some(9), not_found.into()),
        ("a negative number", all.clone(), B, Some(-1), not_found.into()),
        (
            "it is the present one",
            all.clone(),
            B,
            Some(4),
            "skipped rollback (current policy already matches revision 4)".into(),
        ),
        ("an unreadable one", all.clone(), B, Some(3), unreadable.into()),
        ("the last but one is unreadable", all.clone(), B, None, unreadable.into()),
        (
            "under latest",
            all,
            B,
            Some(1),
            "rolled back to revision 1. Its target is 'latest', which moves no node".into(),
        ),
    ] {
        let mut world = World::new(A);
        for (number, target) in history {
            match target {
                "?" => world.add(&format!("r{number}"), number, json!({"form": 2})),
                _ => world.add_of(&format!("r{number}"), number, target),
            };
        }
        let revisions: Vec<_> =
            world.objects.values().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
        let present = (present != "?").then(|| content_of(present));
        let made = undo(&history_of(&revisions), present.as_ref(), to);
        let message = made.map_or_else(|error| error.to_string(), |undo| undo.to_string());
        assert!(message.starts_with(&expected), "{sentence}: {message}");
    }
    assert_eq!(NO_HISTORY, "No rollout history found.");
}

fn history_of(revisions: &[PolicyRevision]) -> Vec<&PolicyRevision> {
    history("op", revisions)
}

#[test]
fn undo_writes_fields_of_revision_and_no_others() {
    let mut world = World::new(A);
    let excluding = json!({"form": 1, "target": "ge 1.20, lt 1.23", "exclude": ["1.20.1"], "ignoreWaves": true});
    world.add("old", 1, excluding.clone());
    world.add_of("mid", 2, LATEST);
    world.add_of("new", 3, A);
    let revisions: Vec<_> =
        world.objects.values().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect();
    let undone = |to| undo(&history_of(&revisions), None, Some(to)).unwrap();
    let version = json!({"target": ">=1.20, <1.23", "exclude": ["1.20.1"], "ignoreWaves": true});
    let patch = json!({"spec": {"version": version}});
    assert_eq!(undone(1), Undo::Write { number: 1, patch, keeps_versions: false, changes: vec![] });
    let patch = json!({"spec": {"version": {"target": "latest", "exclude": null, "ignoreWaves": null}}});
    assert_eq!(undone(2), Undo::Write { number: 2, patch, keeps_versions: true, changes: vec![] });

    // The controller then finds that the policy has returned.
    world.set(json!({"version": version}));
    assert_eq!(world.settle(), ["renumber 4"]);
    assert_eq!(world.plan().update.as_deref(), Some("old"));
}
