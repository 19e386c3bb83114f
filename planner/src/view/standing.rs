//! The time for which each node has been observed in the state in which a wait for its host begins, by the monotonic
//! clock.
//!
//! After a permit the host may be going down, and its node is kept until that is over. Times in objects record the
//! beginning, by the API server's clock; a clock that ran ahead for a moment, when they were written or when they are
//! compared, would make the wait too short. So this process counts as well, from the moment at which it saw the state.
//! A new leader counts again.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use models::shadow::Step;
use std::time::Instant;

use super::NodeView;

/// A state in which a host may be going down. Each change of it begins another wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The uid of the shadow, which records the attempt: another one has no record of it.
    shadow: Option<String>,
    /// The attempt that is being released, and the time of its beginning; `None`: there is a claim of the operator
    /// without an attempt.
    releasing: Option<(i64, Timestamp)>,
}

impl Standing {
    pub(crate) fn of(node: &NodeView) -> Option<Self> {
        let shadow = node.shadow.as_ref().map(|shadow| shadow.uid.clone());
        let releasing = match node.progress() {
            Some(progress) if progress.step == Step::Releasing => Some((progress.attempt, progress.since)),
            None if node.facts.claimed() => None,
            _ => return None,
        };
        Some(Self { shadow, releasing })
    }
}

/// The moment since which each node has been in its state.
#[derive(Debug, Default)]
pub struct Standings(HashMap<String, (Standing, Instant)>);

impl Standings {
    /// Observes all nodes, at the moment `clock`, and sets the time for which each has been in its state:
    /// [`NodeView::observed_for`].
    pub fn observe(&mut self, nodes: &mut BTreeMap<String, NodeView>, clock: Instant) {
        let mut before = std::mem::take(&mut self.0);
        for (name, node) in nodes {
            node.observed_for = std::time::Duration::ZERO;
            let Some(standing) = Standing::of(node) else { continue };
            let since = before.remove(name).filter(|(was, _)| *was == standing).map_or(clock, |(_, since)| since);
            node.observed_for = clock.saturating_duration_since(since);
            self.0.insert(name.clone(), (standing, since));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use models::shadow::HostState;

    use super::*;
    use crate::claims::ClaimFields;
    use crate::fixtures::{at, node, t};

    #[test]
    fn observed_duration_restarts_when_release_or_shadow_changes() {
        let releasing = || at("a", Step::Releasing, 0, HostState::Idle);
        let orphan = || {
            let mut node = node("a");
            node.facts.claims = ClaimFields::USUAL;
            node
        };
        let changed = |mut node: NodeView, change: &dyn Fn(&mut NodeView)| {
            change(&mut node);
            Some(node)
        };
        let later = |node: &mut NodeView| {
            node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().since = t(1);
        };
        let made_again = |node: &mut NodeView| node.shadow.as_mut().unwrap().uid = "another".into();
        let ready = |node: &mut NodeView| node.facts.ready = false;
        for (sentence, first, then, observed_for) in [
            ("released all the time", releasing(), Some(releasing()), 60),
            ("whatever else becomes of it", releasing(), changed(releasing(), &ready), 60),
            ("another release", releasing(), changed(releasing(), &later), 0),
            ("another shadow", releasing(), changed(releasing(), &made_again), 0),
            ("its record was taken away meanwhile", releasing(), Some(orphan()), 0),
            ("a claim without an attempt", orphan(), Some(orphan()), 60),
            ("of another shadow", orphan(), changed(orphan(), &made_again), 0),
            ("an attempt under way", at("a", Step::Rebooting, 0, HostState::Idle), Some(releasing()), 0),
            ("it was not there in between", orphan(), None, 0),
        ] {
            let start = Instant::now();
            let mut standings = Standings::default();
            let mut observe = |node: Option<NodeView>, second| {
                let mut nodes: BTreeMap<_, _> = node.into_iter().map(|node| ("a".to_owned(), node)).collect();
                standings.observe(&mut nodes, start + Duration::from_secs(second));
                nodes.remove("a").map(|node| node.observed_for.as_secs())
            };
            assert_eq!(observe(Some(first.clone()), 0), Some(0), "{sentence}");
            let then = if then.is_none() { (observe(None, 30), observe(Some(first), 60)).1 } else { observe(then, 60) };
            assert_eq!(then, Some(observed_for), "{sentence}");
        }
    }
}
