//! The next steps for certificates and keys: pure rules over the contents of the Secrets and the published ones.
//!
//! ```text
//!  made ──► published beside the old one ──► [every kubelet has it] ──► in use ──► the old one goes
//! ```
//!
//! Each step is one write, and each write leaves a state from which the same function finds the next one, so a leader
//! may die anywhere in between. Three invariants hold at each moment, for any kubelet that is at most the wait behind:
//!
//! * the serving certificate, the present one and one that was just replaced, verifies against the bundle that it
//!   holds;
//! * everything signed verifies with the keys that it holds;
//! * nothing is trusted for long because the ConfigMap lists it, which others may write: only the authorities that a
//!   Secret names, those that issued the certificate in service, and, where the Secret was deleted, the rest of the
//!   bundle for the time of one wait.
//!
//! The time since which something is published is recorded beside it, in the same object, so there is no moment at
//! which the one is written and the other is not. Contents that another client removed from the ConfigMap count as
//! never published. A wait has to be over by these times, and by the monotonic clock of this process, from when it saw
//! the thing that is waited for: so a clock that jumps makes no wait shorter, and a new leader waits once more.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use models::permit::PERMIT_LIFETIME;
use models::time::{after, signed};

use super::material::LEAF_LIFE;

/// Time for which an authority that is no longer provided stays published: longer than a pod of the web API can be cut
/// off from its kubelet and still serve agents, short enough for one that is withdrawn for cause.
pub(super) const PROVIDED_OVERLAP: SignedDuration = SignedDuration::from_hours(24);

pub(super) use super::facts::*;

/// The result of the rules for certificates or for keys.
#[derive(Debug, Default)]
struct Steps {
    /// The write before the publication.
    before: Option<Write>,
    /// The contents to publish.
    published: BTreeSet<Id>,
    /// The write after the publication.
    after: Option<Write>,
    wakes: Vec<Timestamp>,
    phase: Phase,
}

/// Returns the time after two thirds of a lifetime.
pub(super) fn renewal(from: Timestamp, until: Timestamp) -> Timestamp {
    after(from, until.duration_since(from) / 3 * 2)
}

fn is_issued_by(leaf: Option<&Leaf>, authority: &Authority) -> bool {
    leaf.is_some_and(|leaf| leaf.issuer.as_ref() == Some(&authority.id))
}

/// Decides. `wait` is the maximum time for a kubelet to have published contents.
pub(super) fn plan(facts: &Facts, wait: SignedDuration, now: Timestamp) -> Plan {
    let Facts { certificates, signing, published, observed_for } = facts;
    let rules = Rules { published, observed_for, wait, now };
    let trust = match certificates {
        Some(certificates) => rules.certificates(certificates),
        None => Steps { published: published.authorities.clone(), ..Steps::default() },
    };
    let (keys, signer) = match signing {
        Some(signing) => rules.signing(signing),
        None => (Steps { published: published.keys.clone(), ..Steps::default() }, None),
    };
    let wanted = rules.publish(trust.published, keys.published);
    let publish = (wanted != *published).then_some(Write::Publish(wanted));
    Plan {
        writes: [trust.before, keys.before, publish, trust.after, keys.after].into_iter().flatten().collect(),
        signer,
        wake: trust.wakes.into_iter().chain(keys.wakes).filter(|at| *at > now).min(),
        certificates: trust.phase,
        signing: keys.phase,
    }
}

#[derive(Clone, Copy)]
struct Rules<'a> {
    published: &'a Published,
    observed_for: &'a BTreeMap<Id, SignedDuration>,
    wait: SignedDuration,
    now: Timestamp,
}

impl Rules<'_> {
    /// Returns the time when something that appeared at `since` has been there for a span, by both clocks.
    fn over_at(&self, id: &Id, since: Timestamp, span: SignedDuration) -> Timestamp {
        let observed_for = self.observed_for.get(id).copied().unwrap_or_default();
        after(since, span).max(after(self.now, span.saturating_sub(observed_for).max(SignedDuration::ZERO)))
    }

    /// Returns the time when it has been published for a span; `None`: it is not published.
    fn published_for(&self, id: &Id, span: SignedDuration) -> Option<Timestamp> {
        Some(self.over_at(id, self.published.since_of(id)?, span))
    }

    /// Returns the time when every kubelet has it.
    fn known_at(&self, id: &Id) -> Option<Timestamp> {
        self.published_for(id, self.wait)
    }

    fn known(&self, id: &Id) -> bool {
        self.known_at(id).is_some_and(|at| at <= self.now)
    }

    /// Returns the time when every kubelet has it by the cluster's clock alone, which a leader need not have watched:
    /// enough for a rotation to begin, since the one in use then stays in use.
    fn settled_at(&self, id: &Id) -> Option<Timestamp> {
        self.published.since_of(id).map(|since| after(since, self.wait))
    }

    /// Returns the time when every server has it.
    fn taken_at(&self, leaf: &Leaf) -> Timestamp {
        self.over_at(&leaf.id, leaf.issued, self.wait)
    }

    /// Returns the contents to publish. Those that were not there all the time, or since a time in the future, count
    /// from now on.
    fn publish(&self, authorities: BTreeSet<Id>, keys: BTreeSet<Id>) -> Published {
        let since = authorities.iter().chain(&keys).map(|id| {
            let since = self.published.since_of(id).filter(|since| *since <= self.now);
            (id.clone(), since.unwrap_or(self.now))
        });
        Published { since: since.collect(), authorities, keys }
    }

    fn certificates(&self, facts: &Certificates) -> Steps {
        match &facts.source {
            Source::Managed => self.managed(facts),
            Source::Provided(provided) => self.provided(facts, provided.as_deref()),
        }
    }

    /// Returns whether an authority that no longer issues stays published: until its time, as long as a certificate of
    /// it is in service (or may be: servers keep one that was removed from the Secret), and as long as a server may not
    /// have its replacement.
    fn stays(&self, kept: &Kept, leaf: Option<&Leaf>) -> bool {
        kept.until.is_some_and(|until| self.now < until)
            || leaf.is_none_or(|leaf| {
                let id = &kept.authority.id;
                // A new leader does not publish again what the previous one removed.
                let published = self.published.authorities.contains(id);
                let taken = if published { self.taken_at(leaf) } else { after(leaf.issued, self.wait) };
                leaf.issuer.as_ref() == Some(id) || self.now < taken
            })
    }

    fn managed(&self, facts: &Certificates) -> Steps {
        let Certificates { source: _, authorities, leaf, foreign, requested } = facts;
        let leaf = leaf.as_ref();
        // The contents of a deleted Secret are needed for as long as a client uses them, and no longer; an older Secret
        // that was restored lacks at most the issuer of the certificate in service.
        let missed = |foreign: &&Authority| authorities.newest.is_none() || is_issued_by(leaf, foreign);
        let missed = foreign.iter().filter(missed).map(|a| Kept { authority: a.clone(), until: Some(self.now) });
        let kept: Vec<Kept> = authorities.kept.iter().cloned().chain(missed).collect();
        let Some(newest) = &authorities.newest else {
            let published = self.published.authorities.clone();
            let before = Some(Write::MakeAuthority { carried: requested.clone(), kept });
            return Steps { before, published, phase: Phase::Publishing, ..Steps::default() };
        };
        let mut steps = Steps::default();
        let rotate = self.is_rotation_due(facts, newest, &mut steps.wakes);
        steps.before = if kept.len() > authorities.kept.len() {
            Some(Write::Arrange(Authorities { kept: kept.clone(), ..authorities.clone() }))
        } else {
            let carried = || requested.clone().or_else(|| authorities.carried.clone());
            rotate.then(|| Write::MakeAuthority { carried: carried(), kept: kept.clone() })
        };
        let stay: Vec<&Kept> = kept.iter().filter(|kept| self.stays(kept, leaf)).collect();
        let issuing = || [Some(newest), authorities.before.as_ref()].into_iter().flatten();
        steps.published = issuing().chain(stay.iter().map(|kept| &kept.authority)).map(|a| a.id.clone()).collect();
        steps.wakes.extend(authorities.kept.iter().filter_map(|kept| kept.until));
        steps.wakes.extend(issuing().filter_map(|authority| self.known_at(&authority.id)));
        let (ready, by_newest) = (self.is_ready(facts, newest), is_issued_by(leaf, newest));
        let expiring = self.is_expiring(leaf, &mut steps.wakes);
        steps.after = match self.issuer(facts, newest) {
            Some(issuer) if expiring || (ready && !by_newest) => Some(Write::Issue(issuer.id.clone())),
            _ if by_newest && authorities.before.is_some() => Some(Write::Arrange(self.retire(authorities))),
            _ if stay.len() < authorities.kept.len() => {
                let kept = stay.iter().map(|kept| (*kept).clone()).collect();
                Some(Write::Arrange(Authorities { kept, ..authorities.clone() }))
            }
            _ => None,
        };
        steps.phase = if !ready && !by_newest {
            Phase::Publishing
        } else if !by_newest || authorities.before.is_some() {
            Phase::Switching
        } else if steps.published.len() > 1 {
            Phase::Retiring
        } else {
            Phase::Steady
        };
        steps
    }

    /// Returns whether the next authority is to be made: the newest one is in use and known everywhere, and is to be
    /// renewed or a rotation is requested.
    fn is_rotation_due(&self, facts: &Certificates, newest: &Authority, wakes: &mut Vec<Timestamp>) -> bool {
        let requested = self.is_requested(&newest.id, facts.requested.as_ref(), wakes);
        // One that is not in use and known everywhere cannot be the one before.
        let settled = facts.authorities.before.is_none()
            && is_issued_by(facts.leaf.as_ref(), newest)
            && (requested || self.known(&newest.id));
        let renewal = renewal(newest.from, newest.until);
        wakes.extend(settled.then_some(renewal));
        settled && (requested || renewal <= self.now)
    }

    /// Returns whether a requested rotation may begin.
    fn is_requested(&self, newest: &Id, request: Option<&String>, wakes: &mut Vec<Timestamp>) -> bool {
        let settled_at = self.settled_at(newest).filter(|_| request.is_some());
        wakes.extend(settled_at);
        settled_at.is_some_and(|at| at <= self.now)
    }

    /// Returns whether the newest authority may issue. The very first one breaks no trust: no certificate was issued,
    /// and nothing else is published.
    fn is_ready(&self, facts: &Certificates, newest: &Authority) -> bool {
        let published = &self.published.authorities;
        let first = facts.leaf.is_none()
            && facts.authorities.before.is_none()
            && published.iter().all(|id| *id == newest.id)
            && published.contains(&newest.id);
        first || self.known(&newest.id)
    }

    /// Returns the authority that issues now, if any client would accept its certificate.
    fn issuer<'a>(&self, facts: &'a Certificates, newest: &'a Authority) -> Option<&'a Authority> {
        let leaf = facts.leaf.as_ref();
        if self.is_ready(facts, newest) || is_issued_by(leaf, newest) {
            return Some(newest);
        }
        // Another one by the issuer of the certificate in service is accepted by any client that accepts that.
        let before = facts.authorities.before.as_ref();
        let before = before.filter(|before| is_issued_by(leaf, before) || self.known(&before.id));
        // For example, Secret and ConfigMap were deleted together: no client with the published bundle accepts the
        // certificate in service. A wait would keep agents out for longer.
        let published = self.published.authorities.contains(&newest.id);
        let lost = published && leaf.is_some_and(|leaf| leaf.issuer.is_none());
        before.or(lost.then_some(newest))
    }

    /// Returns whether the certificate in service is missing, invalid, or to be renewed.
    fn is_expiring(&self, leaf: Option<&Leaf>, wakes: &mut Vec<Timestamp>) -> bool {
        let Some(leaf) = leaf else { return true };
        let renewal = renewal(leaf.from, leaf.until);
        wakes.extend([renewal, self.taken_at(leaf)]);
        // A validity that begins in the future was set by a wrong clock, and no agent accepts it.
        leaf.issuer.is_none() || !leaf.usable || self.now < leaf.from || renewal <= self.now
    }

    /// Returns the authorities without the keys that no longer issue. The last certificate is valid for a leaf's
    /// lifetime from now at the longest.
    fn retire(&self, authorities: &Authorities) -> Authorities {
        let mut retired = authorities.clone();
        retired.kept.extend(retired.before.take().map(|authority| self.retired(authority, signed(LEAF_LIFE))));
        retired
    }

    fn retired(&self, authority: Authority, span: SignedDuration) -> Kept {
        let until = after(self.now, span).min(authority.until);
        Kept { authority, until: Some(until) }
    }

    fn provided(&self, facts: &Certificates, provided: Option<&[Authority]>) -> Steps {
        let Certificates { source: _, authorities, leaf, foreign: _, requested: _ } = facts;
        let mut steps = Steps::default();
        let mut arranged = authorities.clone();
        if let Some(provided) = provided {
            // The operator's own authorities make room.
            for ours in [arranged.newest.take(), arranged.before.take()].into_iter().flatten() {
                arranged.kept.push(self.retired(ours, signed(LEAF_LIFE)));
            }
            let is_provided = |kept: &Kept| provided.iter().any(|authority| authority.id == kept.authority.id);
            for kept in &mut arranged.kept {
                kept.until = match kept.until {
                    _ if is_provided(kept) => None,
                    None => self.retired(kept.authority.clone(), PROVIDED_OVERLAP).until,
                    until => until,
                };
            }
            let missing: Vec<_> = provided
                .iter()
                .filter(|authority| !arranged.kept.iter().any(|kept| kept.authority.id == authority.id))
                .map(|authority| Kept { authority: authority.clone(), until: None })
                .collect();
            arranged.kept.extend(missing);
            arranged.kept.retain(|kept| kept.until.is_none() || self.stays(kept, leaf.as_ref()));
        }
        steps.published = [&arranged.newest, &arranged.before].into_iter().flatten().map(|a| a.id.clone()).collect();
        steps.published.extend(arranged.kept.iter().map(|kept| kept.authority.id.clone()));
        if steps.published.is_empty() {
            // No valid one is known: those that agents have are better than none.
            steps.published.clone_from(&self.published.authorities);
        }
        steps.wakes.extend(arranged.kept.iter().filter_map(|kept| kept.until));
        steps.wakes.extend(leaf.as_ref().map(|leaf| self.taken_at(leaf)));
        steps.phase =
            if steps.published.len() > provided.map_or(0, <[_]>::len) { Phase::Retiring } else { Phase::Steady };
        steps.before = (arranged != *authorities).then_some(Write::Arrange(arranged));
        steps
    }

    fn signing(&self, facts: &Signing) -> (Steps, Option<Id>) {
        let Signing { newest, before, requested, statements } = facts;
        let mut steps = Steps::default();
        let Some(newest) = newest else {
            steps.before = Some(Write::MakeKey { carried: requested.clone() });
            steps.published.clone_from(&self.published.keys);
            steps.phase = Phase::Publishing;
            return (steps, None);
        };
        steps.published = [Some(newest), before.as_ref()].into_iter().flatten().cloned().collect();
        let Some(before) = before else {
            // With nothing else to sign with, it signs as soon as it is published: agents without it wait for it.
            let signs = self.published.keys.contains(newest);
            if self.is_requested(newest, requested.as_ref(), &mut steps.wakes) {
                steps.before = Some(Write::MakeKey { carried: requested.clone() });
            }
            return (steps, signs.then(|| newest.clone()));
        };
        if !self.known(newest) {
            steps.wakes.extend(self.known_at(newest));
            steps.phase = Phase::Publishing;
            return (steps, Some(before.clone()));
        }
        steps.phase = Phase::Retiring;
        // Permits that the old one signed until a moment ago, perhaps by a previous leader, expire by themselves.
        let life = signed(PERMIT_LIFETIME);
        if let Some(over) = self.published_for(newest, self.wait.saturating_add(self.wait.max(life))) {
            steps.wakes.push(over);
            if over <= self.now && !statements.contains(before) {
                steps.after = Some(Write::DropKey);
            }
        }
        (steps, Some(newest.clone()))
    }
}
