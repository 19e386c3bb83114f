//! The courses that are explored.

use super::*;

/// Returns all sequences of this length out of `of`.
fn sequences<T: Copy>(of: &[T], length: usize) -> Vec<Vec<T>> {
    (0..length).fold(vec![vec![]], |all, _| {
        all.into_iter().flat_map(|one| of.iter().map(move |next| [one.as_slice(), &[*next]].concat())).collect()
    })
}

#[test]
fn installation_completes_when_leader_dies_after_any_write() {
    for most in 1..=6 {
        let mut simulation = Simulation::default();
        simulation.tick(Event::Nothing, most);
        simulation.tick(Event::Nothing, u32::MAX);
        assert!(simulation.leaf.is_some() && simulation.signer.is_some(), "a leader that died after {most} writes");
        simulation.assert_steady();
    }
}

#[test]
fn rotation_completes_when_leader_dies_after_any_write() {
    // The number of writes of the leader in each tick, over the whole of a rotation and one more that is requested
    // meanwhile.
    let mut ways = 0;
    let installed = Simulation::installed();
    for writes in sequences(&[0, 1, u32::MAX], usize::try_from(WAIT + 3).unwrap()) {
        for again in 0..writes.len() {
            let mut simulation = installed.clone();
            let (authority, key) = (simulation.newest().clone(), simulation.keys.clone().unwrap().0);
            simulation.happen(Event::RequestKey);
            for (tick, writes) in writes.iter().enumerate() {
                let event = if tick == 0 || tick == again { Event::RequestCertificates } else { Event::Nothing };
                simulation.tick(event, *writes);
            }
            simulation.assert_steady();
            assert_ne!(*simulation.newest(), authority);
            let published = simulation.published.as_ref().unwrap();
            assert!(published.authorities.contains(&authority), "a server may be cut off for as long as it is good");
            assert_ne!(simulation.keys.as_ref().unwrap().0, key);
            ways += 1;
        }
    }
    assert!(ways > 4000);
}

#[test]
fn old_key_stays_published_while_its_signatures_are_in_use() {
    let mut simulation = Simulation::installed();
    let old = simulation.keys.clone().unwrap().0;
    simulation.statement_stays = true;
    simulation.tick(Event::RequestKey, u32::MAX);
    for _ in 0..100 {
        simulation.tick(Event::Nothing, u32::MAX);
        assert!(simulation.published.as_ref().unwrap().keys.contains(&old));
    }
    assert_ne!(simulation.signer.as_ref(), Some(&old));
    simulation.statement_stays = false;
    // The leader is notified of each shadow that changes.
    simulation.wake = None;
    simulation.tick(Event::Nothing, u32::MAX);
    simulation.wake = None;
    simulation.assert_steady();
}

/// Actions of users, or nothing.
const EDITS: [Event; 8] = [
    Event::Nothing,
    Event::RequestCertificates,
    Event::RequestKey,
    Event::DeleteAuthorities,
    Event::DeleteLeaf,
    Event::DeleteKeys,
    Event::DeleteTrust,
    Event::EditTrust,
];

/// Runs all sequences of `length` events, far from each other and close, with a leader that dies after each write and
/// one that lives.
fn explore(length: usize, events: &[Event]) {
    let installed = Simulation::installed();
    for events in sequences(events, length) {
        for gap in [1, WAIT] {
            for writes in [1, u32::MAX] {
                let mut simulation = installed.clone();
                for event in &events {
                    // Shown with a failure.
                    println!("{event:?} {gap} {writes}");
                    simulation.tick(*event, writes);
                    for _ in 1..gap {
                        simulation.tick(Event::Nothing, writes);
                    }
                }
                simulation.assert_steady();
                println!();
            }
        }
    }
}

#[test]
fn user_edits_during_rotation_lock_no_agent_out() {
    explore(4, &EDITS);
}

#[test]
fn clock_changes_and_data_loss_during_rotation_lock_no_agent_out() {
    let more = [
        Event::DeleteAuthoritiesAndTrust,
        Event::SetClock(100),
        Event::SetClock(0),
        Event::SetClock(-100),
        Event::NewLeader,
    ];
    explore(3, &[&EDITS[..], &more].concat());
}

/// For example, an immutable Secret, or one that an admission webhook refuses.
#[test]
fn rejected_certificate_and_key_writes_do_not_block_each_other() {
    for refused in [Subject::Certificates, Subject::Signing, Subject::Trust] {
        let mut simulation = Simulation::installed();
        let (authority, key) = (simulation.newest().clone(), simulation.keys.clone().unwrap().0);
        simulation.refused = Some(refused);
        simulation.happen(Event::RequestKey);
        simulation.tick(Event::RequestCertificates, u32::MAX);
        let leaf = simulation.leaf.clone().unwrap();
        simulation.tick(Event::DeleteLeaf, u32::MAX);
        for _ in 0..6 * WAIT {
            simulation.tick(Event::Nothing, u32::MAX);
        }
        let rotated = |old: &Id, new: &Option<Id>| new.as_ref() != Some(old);
        let issuer = simulation.leaf.as_ref().and_then(|leaf| leaf.issuer.clone());
        assert_eq!(rotated(&authority, &issuer), refused != Subject::Trust, "{refused:?}");
        assert_eq!(rotated(&key, &simulation.signer), refused == Subject::Certificates, "{refused:?}");
        // With nothing new published the old ones stay in use.
        assert_eq!(
            simulation.leaf.as_ref().is_some_and(|now| now.id != leaf.id),
            refused != Subject::Certificates,
            "{refused:?}"
        );
        simulation.refused = None;
        simulation.wake = None;
        simulation.assert_steady();
        assert_ne!(*simulation.newest(), authority, "{refused:?}");
    }
}

#[test]
fn expiring_certificates_are_renewed_in_time_for_decades() {
    let mut simulation = Simulation::installed();
    let mut authorities = BTreeMap::new();
    let mut leaves = BTreeSet::new();
    let day = 24 * 60;
    for _ in 0..365 * 25 {
        simulation.writes = 0;
        // Two checks within a wait and one after it, then a day without changes.
        for _ in 0..2 * WAIT {
            simulation.tick(Event::Nothing, u32::MAX);
        }
        simulation.tick += day - 2 * WAIT;
        let now = at(simulation.tick);
        let leaf = simulation.leaf.clone().unwrap();
        assert!(
            leaf.until.duration_since(now) > SignedDuration::from_hours(24 * 29),
            "a month is left to mend what hinders it"
        );
        let newest = simulation.authorities.as_ref().unwrap().newest.clone().unwrap();
        assert!(newest.until > leaf.until);
        authorities.entry(newest.id).or_insert(now);
        leaves.insert(leaf.issued);
    }
    assert_eq!(authorities.len(), 4, "one in six and a half years: {authorities:?}");
    assert!((140..170).contains(&leaves.len()), "one in sixty days: {}", leaves.len());
    assert!(simulation.published.unwrap().authorities.len() <= 2);
}
