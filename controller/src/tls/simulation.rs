//! A simulation of every path through a rotation of managed certificates and keys, with a leader that dies after any
//! write, kubelets that are behind by up to the wait, clocks that jump, and users who request, delete and edit at any
//! moment.
//!
//! Time goes in ticks, and the leader's clock may differ. At each tick an external event may happen, and then the
//! leader, if it is alive, does so many writes before it dies or has nothing more to do. After each write all contents
//! that any kubelet may hold are checked against each other.

mod courses;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::plan::*;

/// The wait, in ticks.
const WAIT: i64 = 3;

/// A tick is long enough that a permit does not outlive the wait.
const TICK: SignedDuration = SignedDuration::from_secs(60);

fn at(tick: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + tick * TICK.as_secs()).unwrap()
}

fn wait() -> SignedDuration {
    TICK * i32::try_from(WAIT).unwrap()
}

/// An external event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    RequestCertificates,
    RequestKey,
    DeleteAuthorities,
    DeleteLeaf,
    DeleteKeys,
    DeleteTrust,
    /// Takes the newest authority and key out of the ConfigMap.
    EditTrust,
    /// No record is left of the trusted authorities.
    DeleteAuthoritiesAndTrust,
    /// The clock jumps to this many ticks ahead of the true time.
    SetClock(i64),
    /// Another leader takes over, which has seen nothing yet.
    NewLeader,
}

#[derive(Clone, Debug, Default)]
struct Simulation {
    tick: i64,
    /// The lead of the leader's clock.
    ahead: i64,
    /// The tick since which the leader has seen each thing.
    seen: BTreeMap<Id, i64>,
    /// The subject of writes that the API server refuses.
    refused: Option<Subject>,
    authorities: Option<Authorities>,
    leaf: Option<Leaf>,
    /// The newest key, the one before, and the request that was carried out.
    keys: Option<(Id, Option<Id>, Option<String>)>,
    published: Option<Published>,
    made: u32,
    requested: (Option<String>, Option<String>),
    /// The key of the statement in the only shadow.
    statement: Option<Id>,
    signer: Option<Id>,
    /// True if the statement is not signed again, e.g. while its node has an attempt under way.
    statement_stays: bool,
    /// The tick of the next check of a leader that found nothing more to do; none while there may be something.
    wake: Option<Option<i64>>,
    edited: bool,
    /// All bundles and lists of keys that were ever published, each with a mark for a user's edit, and all leaves in
    /// the Secret, each with the ticks from and to which it was the present one.
    bundles: Vec<((Published, bool), i64, i64)>,
    leaves: Vec<(Leaf, i64, i64)>,
    /// Keys that a user has revoked by deleting the Secret.
    revoked: BTreeSet<Id>,
    /// Authorities of which no record is left.
    lost: BTreeSet<Id>,
    writes: u32,
}

impl Simulation {
    /// Returns the leader's time.
    fn clock(&self) -> Timestamp {
        at(self.tick + self.ahead)
    }

    /// Returns the time for which the leader has observed each thing.
    fn observed_for(&mut self) -> BTreeMap<Id, SignedDuration> {
        let published = self.published.iter().flat_map(|published| published.authorities.iter().chain(&published.keys));
        let ids = published.chain(self.leaf.as_ref().map(|leaf| &leaf.id));
        let since = |id: &Id| (id.clone(), self.seen.get(id).copied().unwrap_or(self.tick));
        self.seen = ids.map(since).collect();
        let ticks = |since: &i64| TICK * i32::try_from(self.tick - since).unwrap();
        self.seen.iter().map(|(id, since)| (id.clone(), ticks(since))).collect()
    }

    fn facts(&mut self) -> Facts {
        let observed_for = self.observed_for();
        let published = self.published.clone().unwrap_or_default();
        let authorities = self.authorities.clone().unwrap_or_default();
        let requested = |requested: &Option<String>, carried: &Option<String>| {
            requested.clone().filter(|a| Some(a) != carried.as_ref())
        };
        let known = |id: &Id| {
            [&authorities.newest, &authorities.before].into_iter().flatten().any(|a| a.id == *id)
                || authorities.kept.iter().any(|kept| kept.authority.id == *id)
        };
        let leaf = self.leaf.clone().map(|leaf| Leaf {
            issuer: leaf.issuer.filter(|id| known(id) || published.authorities.contains(id)),
            ..leaf
        });
        let foreign = published.authorities.iter().filter(|id| !known(id));
        let foreign = foreign.map(|id| Authority::named(id, at(0), at(1_000_000))).collect();
        let (newest, before, carried) = match &self.keys {
            Some((newest, before, carried)) => (Some(newest.clone()), before.clone(), carried.clone()),
            None => (None, None, None),
        };
        Facts {
            certificates: Some(Certificates {
                source: Source::Managed,
                requested: requested(&self.requested.0, &authorities.carried),
                authorities,
                leaf,
                foreign,
            }),
            signing: Some(Signing {
                newest,
                before,
                requested: requested(&self.requested.1, &carried),
                statements: self.statement.clone().into_iter().collect(),
            }),
            published,
            observed_for,
        }
    }

    fn new_id(&mut self, what: &str) -> Id {
        self.made += 1;
        format!("{what}{}", self.made)
    }

    /// Runs one check of the leader, with its write if there is one. Returns whether there was one.
    fn turn(&mut self) -> bool {
        let now = self.clock();
        let plan = plan(&self.facts(), wait(), now);
        self.signer.clone_from(&plan.signer);
        let news = self.sign();
        let allowed = plan.writes.into_iter().find(|write| Some(write.subject()) != self.refused);
        let Some(write) = allowed else {
            assert!(plan.wake.is_none_or(|wake| wake > now));
            let ticks = |wake: Timestamp| wake.duration_since(now).as_secs().div_euclid(TICK.as_secs());
            // The leader is notified of each shadow that changes.
            self.wake = (!news).then(|| plan.wake.map(|wake| self.tick + ticks(wake)));
            self.check_rest();
            return false;
        };
        self.writes += 1;
        match write {
            Write::MakeAuthority { carried, kept } => {
                let id = self.new_id("ca");
                let made = Authority::named(&id, now, now + SignedDuration::from_hours(24 * 3650));
                let old = self.authorities.take().unwrap_or_default();
                assert_eq!(old.before, None, "a key that may still be needed is lost");
                self.authorities = Some(Authorities { newest: Some(made), before: old.newest, kept, carried });
            }
            Write::Arrange(wanted) => self.authorities = Some(wanted),
            Write::Issue(issuer) => {
                let authorities = self.authorities.as_ref().unwrap();
                let keys = [&authorities.newest, &authorities.before];
                assert!(keys.into_iter().flatten().any(|a| a.id == issuer), "issued without a key");
                let until = now + SignedDuration::from_hours(24 * 90);
                if self.leaf.as_ref().and_then(|leaf| leaf.issuer.as_ref()).is_some_and(|id| self.lost.contains(id)) {
                    // Any client with the contents published since rejected everything already.
                    self.bundles.clear();
                }
                let id = self.new_id("leaf");
                self.leaf = Some(Leaf { id, issuer: Some(issuer), usable: true, from: now, until, issued: now });
            }
            Write::MakeKey { carried } => {
                let id = self.new_id("key");
                let before = self.keys.take().map(|(newest, before, _)| {
                    assert_eq!(before, None, "a key that may still be needed is lost");
                    newest
                });
                self.keys = Some((id, before, carried));
            }
            Write::DropKey => self.keys.as_mut().unwrap().1 = None,
            Write::Publish(wanted) => (self.published, self.edited) = (Some(wanted), false),
        }
        self.check();
        true
    }

    /// Signs whenever the leader can, and re-signs what another key signed. Returns whether there was something to
    /// sign.
    fn sign(&mut self) -> bool {
        let Some(signer) = &self.signer else { return false };
        let news = !self.statement_stays && self.statement.as_ref() != Some(signer);
        if news {
            self.statement = Some(signer.clone());
        }
        // With one key only there is no choice, whatever a user removed: agents wait for it.
        let only = self.keys.as_ref().is_some_and(|(_, before, _)| before.is_none());
        for ((held, edited), ..) in self.held(&self.bundles) {
            let excused = !self.revoked.is_empty() || held.keys.is_empty() || (*edited && only);
            assert!(
                excused || held.keys.contains(signer),
                "{signer} signs, and a kubelet may hold {:?}: {self:#?}",
                held.keys
            );
        }
        news
    }

    /// Returns the contents that kubelets may hold now.
    fn held<'a, T>(&self, all: &'a [(T, i64, i64)]) -> impl Iterator<Item = &'a (T, i64, i64)> + use<'a, T> {
        // Contents that were replaced by tick `tick - WAIT` are not held any more.
        let oldest = self.tick - WAIT;
        all.iter().filter(move |(_, _, to)| *to > oldest)
    }

    fn check(&mut self) {
        let tick = self.tick;
        fn record<T: Clone + PartialEq>(all: &mut Vec<(T, i64, i64)>, now: Option<&T>, tick: i64) {
            let stands = all.last().is_some_and(|(last, _, to)| *to == i64::MAX && Some(last) == now);
            if stands {
                return;
            }
            if let Some((_, _, to)) = all.last_mut().filter(|(_, _, to)| *to == i64::MAX) {
                *to = tick;
            }
            all.extend(now.map(|now| (now.clone(), tick, i64::MAX)));
        }
        let published = self.published.clone().map(|published| (published, self.edited));
        record(&mut self.bundles, published.as_ref(), tick);
        record(&mut self.leaves, self.leaf.as_ref(), tick);
        for (leaf, issued, _) in self.held(&self.leaves) {
            for ((bundle, edited), _, replaced) in self.held(&self.bundles) {
                // An agent that trusts nothing has nothing to lose, and contents that a user removed are missing until
                // they are back.
                if bundle.authorities.is_empty() || (*edited && issued <= replaced) {
                    continue;
                }
                let issuer = leaf.issuer.as_ref().unwrap();
                assert!(
                    self.lost.contains(issuer) || bundle.authorities.contains(issuer),
                    "a server may use what {issuer} issued, and an agent may trust {:?}: {self:#?}",
                    bundle.authorities
                );
            }
        }
        // The signed statement in the shadow is accepted by every agent, too.
        if let Some(statement) = self.statement.as_ref().filter(|id| !self.revoked.contains(*id)) {
            let published = self.published.as_ref().filter(|_| !self.edited);
            assert!(
                published.is_none_or(|published| published.keys.contains(statement)),
                "{statement} is in use: {self:#?}"
            );
        }
    }

    /// Checks that, with nothing more to do at once, any client with the published contents accepts the certificate in
    /// service.
    fn check_rest(&self) {
        let issuer = self.leaf.as_ref().and_then(|leaf| leaf.issuer.as_ref());
        let published = self.published.as_ref().filter(|_| self.refused.is_none());
        let (Some(issuer), Some(published)) = (issuer, published) else { return };
        assert!(published.authorities.contains(issuer), "{issuer} issued what is in service: {self:#?}");
    }

    fn happen(&mut self, event: Event) {
        let value = Some(format!("{}", self.tick));
        match event {
            Event::Nothing => {}
            Event::RequestCertificates => self.requested.0 = value,
            Event::RequestKey => self.requested.1 = value,
            Event::DeleteAuthorities => self.authorities = None,
            Event::DeleteLeaf => self.leaf = None,
            Event::DeleteKeys => {
                let keys = self.keys.take();
                self.revoked.extend(keys.into_iter().flat_map(|(newest, before, _)| [Some(newest), before]).flatten());
            }
            Event::DeleteTrust => self.published = None,
            Event::EditTrust => {
                let (ca, key) = (
                    self.authorities.as_ref().and_then(|a| a.newest.as_ref()).map(|a| a.id.clone()),
                    self.keys.as_ref().map(|(newest, ..)| newest.clone()),
                );
                if let Some(published) = &mut self.published {
                    published.authorities.retain(|id| Some(id) != ca.as_ref());
                    published.keys.retain(|id| Some(id) != key.as_ref());
                    self.edited = true;
                }
            }
            Event::DeleteAuthoritiesAndTrust => (self.authorities, self.published) = (None, None),
            Event::SetClock(ahead) => self.ahead = ahead,
            Event::NewLeader => self.seen.clear(),
        }
        let named = |id: &Id| {
            self.authorities.as_ref().is_some_and(|authorities| {
                let ours = [&authorities.newest, &authorities.before].into_iter().flatten();
                ours.chain(authorities.kept.iter().map(|kept| &kept.authority)).any(|authority| authority.id == *id)
            })
        };
        let last = self.leaves.last().and_then(|(leaf, ..)| leaf.issuer.clone());
        let published = self.published.clone().unwrap_or_default().authorities;
        if !last.as_ref().is_some_and(|id| named(id) || published.contains(id)) {
            // With the Secret and the ConfigMap gone no record of the trusted authorities is left: that is a new start,
            // and the sooner another certificate is in service the better.
            (self.bundles, self.leaves) = (Vec::new(), Vec::new());
            self.lost.extend(last);
        }
        if !self.bundles.is_empty() {
            self.check();
        }
    }

    /// Runs a tick in which the leader does at most `writes` writes.
    fn tick(&mut self, event: Event, writes: u32) {
        self.happen(event);
        // Without an external event it finds something to do only at a time that it has set.
        let wake = self.wake.take().filter(|_| event == Event::Nothing);
        let mut left = writes;
        while left > 0 && self.turn() {
            left -= 1;
            let due = wake.is_none_or(|wake| wake.is_some_and(|wake| wake <= self.tick));
            assert!(due, "it would have slept through this until {wake:?}: {self:#?}");
            assert!(self.writes < 60, "it never comes to an end: {self:#?}");
        }
        if left == 0 {
            // It died, and the next one has seen nothing yet.
            self.happen(Event::NewLeader);
        }
        self.tick += 1;
    }

    fn installed() -> Self {
        let mut simulation = Self::default();
        for _ in 0..2 * WAIT + 2 {
            simulation.tick(Event::Nothing, u32::MAX);
        }
        simulation.writes = 0;
        simulation
    }

    fn newest(&self) -> &Id {
        &self.authorities.as_ref().unwrap().newest.as_ref().unwrap().id
    }

    fn assert_steady(&mut self) {
        for _ in 0..6 * WAIT {
            self.tick(Event::Nothing, u32::MAX);
        }
        let before = self.writes;
        self.tick(Event::Nothing, u32::MAX);
        assert_eq!(self.writes, before, "an idle cluster costs no writes");
        assert_eq!(self.leaf.as_ref().unwrap().issuer.as_ref(), Some(self.newest()));
        let (key, old, _) = self.keys.clone().unwrap();
        assert_eq!((Some(&key), old), (self.signer.as_ref(), None));
        let published = self.published.clone().unwrap();
        assert_eq!(published.keys, [key].into());
        assert!(published.authorities.contains(self.newest()));
    }
}
