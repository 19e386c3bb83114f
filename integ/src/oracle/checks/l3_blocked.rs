//! L3: a pod whose evictions fail for a while is named as what blocks the drain.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};

/// Time for which evictions of one pod have to fail. It is named after five seconds; this allows for a slow machine.
const FAILED_FOR: SignedDuration = SignedDuration::from_secs(60);

/// The longest pause between requests that belong together: another attempt begins later.
const PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// Number of pods that a shadow names.
const NAMED: usize = 8;

#[derive(Default)]
pub(super) struct Check {
    /// The pods that a shadow has named.
    named: BTreeSet<String>,
    /// True if a shadow has named as many pods as it can.
    full: bool,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, _: &mut Verdict) {
        if let Object::Shadow(shadow) = &moment.change.object
            && let Some(drain) = &shadow.status.controller.drain
        {
            self.full |= drain.blockers.len() >= NAMED;
            self.named.extend(drain.blockers.iter().map(|blocker| blocker.pod.clone()));
        }
    }

    fn end(&mut self, _: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        let mut failing = BTreeMap::new();
        for removal in observations.removals.iter().filter(|removal| removal.part.is_some() && removal.eviction) {
            let key = (removal.namespace.as_str(), removal.name.as_str(), removal.uid.as_deref());
            if removal.succeeded {
                failing.remove(&key);
                continue;
            }
            let (first, last, reported) = failing.entry(key).or_insert((removal.received, removal.received, false));
            if removal.received.duration_since(*last) > PAUSE {
                *first = removal.received;
            }
            *last = removal.received;
            let title = format!("{}/{}", removal.namespace, removal.name);
            let long = last.duration_since(*first) >= FAILED_FOR;
            if long && !*reported && !self.full && !self.named.contains(&title) {
                *reported = true;
                verdict.report(
                    Property::L3,
                    None,
                    None,
                    format!("{title} could not be evicted, and no shadow named it"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::{Blocker, DrainStatus};

    use super::super::super::scenario::{CONTROLLER, Scenario};
    use super::Property;

    /// A drain in which a budget refuses the eviction of a pod repeatedly.
    fn refused(times: i64) -> Scenario {
        let mut scenario = Scenario::new(&["a"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.until_claimed("a");
        let uid = scenario.uid_of("shop/cart-1");
        for _ in 0..times {
            scenario.evict_as(CONTROLLER, "shop/cart-1", Some(&uid), 429);
            scenario.wait(20);
        }
        scenario
    }

    #[test]
    fn unreported_blocked_pod_is_detected_after_one_minute() {
        refused(5).assert_only(Property::L3);
        assert_eq!(refused(2).judge().violations, []);
    }

    #[test]
    fn blocked_pod_reported_in_shadow_is_accepted() {
        let mut scenario = refused(5);
        scenario.controller("a", |shadow| {
            let blocker = Blocker {
                pod: "shop/cart-1".into(),
                budget: None,
                message: "not now".into(),
                since: jiff::Timestamp::UNIX_EPOCH,
                denied_since: None,
            };
            let drain = shadow.status.controller.drain.get_or_insert_with(DrainStatus::default);
            drain.blockers = vec![blocker];
        });
        assert_eq!(scenario.judge().violations, []);
    }
}
