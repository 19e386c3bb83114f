//! Single decisions about certificates and keys, each as a statement.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::plan::*;

const WAIT: SignedDuration = SignedDuration::from_mins(10);

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
}

#[test]
fn unaccepted_unusable_or_expiring_certificate_is_reissued() {
    let days = |days: i64| at(days * 24 * 60);
    let known: Id = "a".into();
    let good = Leaf {
        id: "leaf".into(),
        issuer: Some(known.clone()),
        usable: true,
        from: days(-1),
        until: days(89),
        issued: days(-1),
    };
    let write = |leaf: Leaf, seen_for: SignedDuration| {
        let newest = Some(Authority::named(&known, days(-1), days(3650)));
        let certificates = Certificates {
            source: Source::Managed,
            authorities: Authorities { newest, ..Authorities::default() },
            leaf: Some(leaf.clone()),
            foreign: vec![],
            requested: None,
        };
        let published = Published {
            authorities: [known.clone()].into(),
            keys: BTreeSet::new(),
            since: [(known.clone(), days(-1))].into(),
        };
        let observed_for = [&known, &leaf.id].map(|id| (id.clone(), seen_for)).into();
        let facts = Facts { certificates: Some(certificates), signing: None, published, observed_for };
        plan(&facts, WAIT, at(0)).writes.into_iter().next()
    };
    // This holds for a new leader too: any client that accepts the certificate in service accepts another one like it.
    let seen_for = [SignedDuration::from_hours(24), SignedDuration::ZERO];
    assert_eq!(seen_for.map(|seen_for| write(good.clone(), seen_for)), [None, None]);
    for (sentence, leaf) in [
        ("its issuer is unknown", Leaf { issuer: None, ..good.clone() }),
        ("other names, or another key beside it", Leaf { usable: false, ..good.clone() }),
        ("made by a clock that was ahead", Leaf { from: days(1), until: days(91), ..good.clone() }),
        ("two thirds of its life are over", Leaf { from: days(-61), until: days(29), ..good.clone() }),
    ] {
        for seen_for in seen_for {
            assert_eq!(write(leaf.clone(), seen_for), Some(Write::Issue(known.clone())), "{sentence}");
        }
    }
}

/// Returns a rotation of both, with the new ones published at minute 0.
fn rotating(observed_for: i64) -> Facts {
    let authority = |id: &str| Some(Authority::named(id, at(-1000), at(1_000_000)));
    let authorities = Authorities { newest: authority("new"), before: authority("old"), ..Authorities::default() };
    let leaf = Leaf {
        id: "leaf".into(),
        issuer: Some("old".into()),
        usable: true,
        from: at(-1000),
        until: at(100_000),
        issued: at(-1000),
    };
    let certificates =
        Certificates { source: Source::Managed, authorities, leaf: Some(leaf), foreign: vec![], requested: None };
    let signing = Signing { newest: Some("new key".into()), before: Some("old key".into()), ..Signing::default() };
    let ids = |ids: [&str; 2]| ids.map(str::to_owned).into();
    let since = [("old", -1000), ("new", 0), ("old key", -1000), ("new key", 0)];
    let published = Published {
        authorities: ids(["old", "new"]),
        keys: ids(["old key", "new key"]),
        since: since.map(|(id, minute)| (id.to_owned(), at(minute))).into(),
    };
    let observed_for = since.map(|(id, _)| (id.to_owned(), SignedDuration::from_mins(observed_for))).into();
    Facts { certificates: Some(certificates), signing: Some(signing), published, observed_for }
}

#[test]
fn new_authority_and_key_are_used_after_wait_on_both_clocks() {
    for (sentence, observed_for, now, over, wake) in [
        ("in the middle", 4, 4, false, 10),
        ("a clock that ran ahead when it was compared, or behind when it was written", 4, 1000, false, 1006),
        ("a clock that was set back", 1000, 4, false, 10),
        ("a leader that has just begun", 0, 60, false, 70),
        ("by both", 10, 10, true, 20),
    ] {
        let plan = plan(&rotating(observed_for), WAIT, at(now));
        assert_eq!(plan.writes.contains(&Write::Issue("new".into())), over, "{sentence}");
        assert_eq!(plan.signer.as_deref(), Some(if over { "new key" } else { "old key" }), "{sentence}");
        assert_eq!(plan.wake, Some(at(wake)), "{sentence}");
    }
}

#[test]
fn removed_authority_is_not_republished_by_next_leader() {
    let mut facts = rotating(0);
    let certificates = facts.certificates.as_mut().unwrap();
    let old = certificates.authorities.before.take().unwrap();
    certificates.authorities.kept = vec![Kept { authority: old, until: Some(at(20)) }];
    let leaf = certificates.leaf.as_mut().unwrap();
    (leaf.issuer, leaf.issued) = (Some("new".into()), at(10));
    let publishes_old = |facts: &Facts, now| {
        plan(facts, WAIT, at(now))
            .writes
            .iter()
            .any(|write| matches!(write, Write::Publish(published) if published.authorities.contains("old")))
    };
    facts.published.authorities = ["new".to_owned()].into();
    assert!(publishes_old(&facts, 19), "a server may still have what it issued");
    assert!(!publishes_old(&facts, 21));
    facts.published.authorities.insert("old".into());
    let out = plan(&facts, WAIT, at(21)).writes.iter().any(|write| matches!(write, Write::Publish(_)));
    assert!(!out, "it is taken out only when this process has waited, too");
}

#[test]
fn expiring_certificate_is_reissued_by_old_authority_during_rotation() {
    let mut facts = rotating(0);
    facts.certificates.as_mut().unwrap().leaf.as_mut().unwrap().until = at(1);
    assert!(plan(&facts, WAIT, at(0)).writes.contains(&Write::Issue("old".into())));
}

#[test]
fn old_key_is_dropped_after_second_wait_on_both_clocks() {
    for (observed_for, now, goes) in [(10, 10, false), (20, 19, false), (19, 1000, false), (20, 20, true)] {
        let plan = plan(&rotating(observed_for), WAIT, at(now));
        assert_eq!(plan.writes.contains(&Write::DropKey), goes, "seen for {observed_for} min, {now} min later");
    }
}

#[test]
fn new_leader_starts_requested_rotation_at_once_unless_keys_are_recent() {
    for (sentence, now, begins) in [("what is in use has been published for long", 60, true), ("it is new", 5, false)] {
        let mut facts = rotating(0);
        let certificates = facts.certificates.as_mut().unwrap();
        certificates.authorities.before = None;
        certificates.leaf.as_mut().unwrap().issuer = Some("new".into());
        certificates.requested = Some("request".into());
        let signing = facts.signing.as_mut().unwrap();
        (signing.before, signing.requested) = (None, Some("request".into()));
        let plan = plan(&facts, WAIT, at(now));
        let carried = || Some("request".to_owned());
        let authority = |write: &Write| matches!(write, Write::MakeAuthority { carried: by, .. } if *by == carried());
        assert_eq!(plan.writes.iter().any(authority), begins, "{sentence}: {:?}", plan.writes);
        assert_eq!(plan.writes.contains(&Write::MakeKey { carried: carried() }), begins, "{sentence}");
        if !begins {
            assert_eq!(plan.wake, Some(at(10)), "{sentence}");
        }
    }
}

/// Another client has deleted the Secret of the authorities and the ConfigMap together.
#[test]
fn certificate_of_unknown_issuer_is_replaced_once_new_authority_is_published() {
    for (sentence, published, expected) in [
        ("not published yet", vec![], None),
        ("published a moment ago", vec!["new"], Some(Write::Issue("new".into()))),
        ("beside another one", vec!["new", "other"], Some(Write::Issue("new".into()))),
    ] {
        let mut facts = rotating(0);
        let certificates = facts.certificates.as_mut().unwrap();
        certificates.authorities.before = None;
        certificates.leaf.as_mut().unwrap().issuer = None;
        facts.published.authorities = published.into_iter().map(str::to_owned).collect();
        let issue = plan(&facts, WAIT, at(0)).writes.into_iter().find(|write| matches!(write, Write::Issue(_)));
        assert_eq!(issue, expected, "{sentence}");
    }
}
