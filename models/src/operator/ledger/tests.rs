use super::*;
use crate::operator::{MAX_SLOTS, Slot};

#[test]
fn all_slots_that_may_be_given_fit_into_one_object() {
    let (uid, time) = ("01234567-0123-0123-0123-012345678901", "2026-01-01T00:00:00.123456789Z");
    let slot = serde_json::json!({
        "uid": uid, "node": "ip-10-100-100-100.us-gov-west-1.compute.internal", "since": time,
        "update": {
            "version": "1.100.100", "variant": "aws-k8s-1.37-nvidia-fips", "arch": "x86_64", "attempt": 1000,
            "bootId": uid, "providerID": "aws:///us-gov-west-1a/i-0123456789abcdef0", "had": "Unproven",
            "permittingSince": time, "zone": "us-gov-west-1a", "group": "g".repeat(63), "controlPlane": true,
            "removedIn": uid,
        },
    });
    let slot: Slot = serde_json::from_value(slot).unwrap();
    let bytes = serde_json::to_vec(&vec![slot; MAX_SLOTS]).unwrap().len();
    assert!(bytes < 1024 * 1024, "{bytes} bytes");
}

#[test]
fn proven_node_that_falls_and_recovers_ends_no_row() {
    let start = || {
        let mut ledger = RolloutLedger { proven: 2, ..RolloutLedger::default() };
        ledger.move_node(None, ("b", Proof::Unproven, "HookTimedOut"));
        ledger.add_to_row(("b", Proof::Unproven, "HookTimedOut"), Timestamp::UNIX_EPOCH, 1, Timestamp::UNIX_EPOCH);
        ledger
    };
    let mut ledger = start();
    for _ in 0..2 {
        ledger.fall(("a", NOT_READY), |_| false);
        assert_eq!((ledger.proven, ledger.unproven, ledger.nodes.len()), (1, 2, 2), "once");
    }
    assert_eq!(ledger.nodes[1].to_string(), "a (NotReady)");
    assert_eq!(ledger.row.iter().map(|end| end.node.as_str()).collect::<Vec<_>>(), ["b", "a"], "once");
    ledger.accept();
    assert_eq!(ledger.good(), 3);
    ledger.fall(("a", NOT_READY), |_| false);
    assert_eq!(ledger.good(), 3, "a user has accepted it");
    let mut ledger = start();
    ledger.fall(("a", NOT_READY), |_| false);
    ledger.recover("a");
    assert_eq!(ledger, start());
}

/// A user has taken the node back to the old version, and it is updated again, as a trial.
#[test]
fn proven_node_that_falls_counts_for_the_brake_until_it_proves_the_version_again() {
    for (proof, end) in
        [(Proof::Free, "DrainTimedOut"), (Proof::Unproven, "HookTimedOut"), (Proof::Failed, "SoakFailed")]
    {
        let mut ledger = RolloutLedger { proven: 10, ..RolloutLedger::default() };
        ["a", "b", "c"].iter().for_each(|node| ledger.fall((node, NOT_READY), |_| false));
        ledger.brake(3, Timestamp::UNIX_EPOCH);
        ledger.add_to_row(("a", proof, end), Timestamp::UNIX_EPOCH, 3, Timestamp::UNIX_EPOCH);
        let fallen = ledger.row.iter().filter(|end| end.has_fallen() && end.is_unproven()).count();
        assert_eq!((fallen, ledger.row.len(), ledger.braked_until.is_some()), (3, 3, true), "{end}");
        ledger.move_node(None, ("a", Proof::Proven, "Updated"));
        ledger.brake(3, Timestamp::UNIX_EPOCH);
        assert_eq!((ledger.row.len(), ledger.braked_until), (2, None), "{end}: it has proven the version");
    }
}

/// They are one in twenty of the proven nodes, and have more names than a ledger keeps.
#[test]
fn large_rollout_is_braked_once_its_names_are_used_up_by_nodes_that_fall() {
    for (fallen, limit, braked) in [(63, 3, false), (64, 3, true), (200, 3, true), (200, usize::MAX, false)] {
        let mut ledger = RolloutLedger { proven: 4_000, ..RolloutLedger::default() };
        (0..fallen).for_each(|number| ledger.fall((&format!("n{number}"), NOT_READY), |_| false));
        ledger.brake(limit, Timestamp::UNIX_EPOCH);
        assert_eq!(ledger.braked_until.is_some(), braked, "{fallen} of 4000, {limit}");
    }
}

#[test]
fn share_of_a_fleet_that_comes_and_goes_is_of_the_nodes_that_there_are() {
    for (sentence, nodes, fallen, braked) in [
        ("three of 20 nodes, of 600 that were taken", 20, 3, true),
        ("three of 60", 60, 3, true),
        ("fewer than one in twenty of those that there are", 61, 3, false),
        ("fewer than the limit", 20, 2, false),
        ("more are there than were taken", 4_000, 29, false),
        ("one in twenty of those that were taken", 4_000, 30, true),
    ] {
        let mut ledger = RolloutLedger { proven: 600, ..RolloutLedger::default() };
        (0..fallen).for_each(|number| ledger.fall((&format!("n{number}"), NOT_READY), |_| false));
        ledger.brake(BrakeLimit { ends: 3, nodes }, Timestamp::UNIX_EPOCH);
        assert_eq!(ledger.braked_until.is_some(), braked, "{sentence}");
    }
}

/// Three of 60 nodes brake the rollout, and three of 61 do not.
#[test]
fn nodes_that_join_or_leave_while_a_rollout_is_braked_do_not_end_the_brake() {
    let limit = |nodes| BrakeLimit { ends: 3, nodes };
    let braked_among = |nodes: usize| {
        let mut ledger = RolloutLedger { proven: 600, ..RolloutLedger::default() };
        (0..3).for_each(|number| ledger.fall((&format!("n{number}"), NOT_READY), |_| false));
        ledger.brake(limit(nodes), Timestamp::UNIX_EPOCH);
        ledger
    };
    assert_eq!(braked_among(61).braked_until, None);
    for (sentence, recorded, nodes, braked) in [
        ("one joins", true, 61, true),
        ("many join", true, 4_000, true),
        ("half of them leave", true, 30, true),
        ("one joins, and an earlier version of the operator braked it", false, 61, false),
    ] {
        let mut ledger = braked_among(60);
        (ledger.tried, ledger.braked_among) = (2, ledger.braked_among.filter(|_| recorded));
        let until = ledger.braked_until;
        ledger.brake(limit(nodes), Timestamp::MAX);
        let expected = if braked { (2, until) } else { (0, None) };
        assert_eq!((ledger.tried, ledger.braked_until), expected, "{sentence}");
    }
    // With one more node, a brake is ended by each of these.
    type End = fn(&mut RolloutLedger);
    let cases: [(&str, End); 4] = [
        ("a proof", |ledger| ledger.move_node(None, ("a", Proof::Proven, "Updated"))),
        ("a node that is in service again", |ledger| ledger.recover("n0")),
        ("a resume", RolloutLedger::forgive),
        ("an approval without a proof", RolloutLedger::accept),
    ];
    for (sentence, end) in cases {
        let mut ledger = braked_among(60);
        end(&mut ledger);
        ledger.brake(limit(61), Timestamp::UNIX_EPOCH);
        assert_eq!((ledger.braked_until, ledger.braked_among), (None, None), "{sentence}");
    }
    let mut ledger = braked_among(60);
    ledger.brake(BrakeLimit { ends: 4, nodes: 61 }, Timestamp::UNIX_EPOCH);
    assert_eq!(ledger.braked_until, None, "policy allows one more");
}

/// No later proof takes back the end of a node that is gone, as of a spot machine, and in a fleet that comes and goes there is always one more.
#[test]
fn nodes_that_are_removed_during_their_updates_are_a_share_of_all_that_were_taken() {
    for (removed, braked) in [(6, false), (31, false), (32, true)] {
        let mut ledger = RolloutLedger { proven: 600, ..RolloutLedger::default() };
        for number in 0..removed {
            let end = format!("n{number}");
            ledger.move_node(None, (&end, Proof::Unproven, "NodeDeleted"));
            ledger.add_to_row((&end, Proof::Unproven, "NodeDeleted"), Timestamp::MIN, usize::MAX, Timestamp::MIN);
        }
        ledger.proven_by("");
        ledger.brake(BrakeLimit { ends: 3, nodes: 20 }, Timestamp::UNIX_EPOCH);
        assert_eq!(ledger.braked_until.is_some(), braked, "{removed} of 600");
    }
}

/// Before they fall, as many names as may be are those of other nodes.
#[test]
fn names_and_places_in_the_row_that_other_nodes_have_keep_no_fallen_node_from_braking_the_rollout() {
    for (sentence, named, proof, in_row, fallen, braked) in [
        ("names of unproven nodes", 40, Proof::Unproven, 0, 64, true),
        ("all names of unproven nodes", 64, Proof::Unproven, 0, 32, true),
        ("all names of unproven nodes, and fewer fall", 64, Proof::Unproven, 0, 31, false),
        ("the row too", 64, Proof::Unproven, 64, 32, true),
        ("names of nodes that failed", 40, Proof::Failed, 0, 24, true),
        ("all names of nodes that failed", 64, Proof::Failed, 0, 64, false),
    ] {
        let mut ledger = RolloutLedger { proven: 4_000, ..RolloutLedger::default() };
        for number in 0..named {
            let node = format!("other-{number}");
            ledger.move_node(None, (&node, proof, "HookTimedOut"));
            if number < in_row {
                ledger.add_to_row((&node, proof, "HookTimedOut"), Timestamp::MIN, usize::MAX, Timestamp::MIN);
            }
        }
        ledger.proven_by("");
        let used = ledger.used();
        (0..fallen).for_each(|number| ledger.fall((&format!("n{number}"), NOT_READY), |_| false));
        ledger.brake(3, Timestamp::UNIX_EPOCH);
        assert_eq!(ledger.braked_until.is_some(), braked, "{sentence}: {ledger:?}");
        assert_eq!((ledger.used(), ledger.nodes.len()), (used, LEDGER_NODES), "{sentence}");
    }
}

/// Three of 4,000 are fewer than one in twenty.
#[test]
fn names_that_failed_nodes_use_up_let_no_few_unproven_ones_brake_the_rollout() {
    for (fallen, braked) in [(0, false), (2, false), (3, true)] {
        let mut ledger = RolloutLedger { proven: 4_000, ..RolloutLedger::default() };
        for number in 0..LEDGER_NODES - fallen {
            ledger.move_node(None, (&format!("failed-{number}"), Proof::Failed, "SoakFailed"));
        }
        (0..fallen).for_each(|number| ledger.fall((&format!("fallen-{number}"), NOT_READY), |_| false));
        for number in 0..3 {
            let end = format!("other-{number}");
            ledger.move_node(None, (&end, Proof::Unproven, "HookTimedOut"));
            ledger.add_to_row((&end, Proof::Unproven, "HookTimedOut"), Timestamp::MIN, usize::MAX, Timestamp::MIN);
        }
        ledger.proven_by("");
        ledger.brake(3, Timestamp::UNIX_EPOCH);
        assert_eq!(ledger.braked_until.is_some(), braked, "{fallen}: {ledger:?}");
    }
}

#[test]
fn fallen_node_takes_the_name_of_a_node_that_is_gone_or_accepted_before_that_of_another() {
    for (sentence, gone, accepted, taken) in
        [("gone", "n40", "", "n40"), ("accepted", "", "n50", "n50"), ("neither", "", "", "n0")]
    {
        let mut ledger = RolloutLedger { proven: 100, ..RolloutLedger::default() };
        for number in 0..LEDGER_NODES {
            ledger.move_node(None, (&format!("n{number}"), Proof::Unproven, "HookTimedOut"));
        }
        ledger.nodes.iter_mut().for_each(|named| named.accepted = named.node == accepted);
        ledger.fall(("fallen", NOT_READY), |node| node == gone);
        let has_name = |node: &str| ledger.nodes.iter().any(|named| named.node == node);
        assert!(has_name("fallen") && !has_name(taken), "{sentence}: {:?}", ledger.nodes);
        assert_eq!((ledger.proven, ledger.unproven), (99, 65), "{sentence}");
    }
}
