//! S8: once the failures of a version have spent the failure budget, no further node goes out of service, for any
//! version, until a user resolves them. A node that had its slot before may continue. Where a user has requested that other nodes go on,
//! no node of the variant and architecture that failed is taken to that version.

use std::collections::{BTreeMap, BTreeSet};

use super::super::world::Key;
use super::{Object, Observations, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check {
    out: BTreeMap<String, String>,
    frozen_by: Option<String>,
    failed: BTreeSet<Key>,
    contained: BTreeSet<Key>,
    acknowledged: Option<String>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        if matches!(moment.change.object, Object::Pod(_) | Object::Budget(_)) {
            return;
        }
        let world = moment.world;
        let out = world.out_of_service();
        for (_, node) in out.iter().filter(|(uid, _)| !self.out.contains_key(*uid)) {
            let held = world.update_of(node).filter(|update| self.failed.contains(update));
            let text = match (&self.frozen_by, held) {
                (Some(version), _) => format!("it was started while the failures of {version} are unresolved"),
                (None, Some((.., version))) => {
                    format!("it was started on {version}, which has failed on nodes like it")
                }
                (None, None) => continue,
            };
            verdict.report(Property::S8, Some(moment.revision()), Some(node), text);
        }
        let contained = world.contained();
        let acknowledged = world.status().requests.and_then(|requests| requests.continue_others);
        let asked = world.operator.as_ref().map(|operator| &operator.continue_others);
        let is_request = acknowledged != self.acknowledged && acknowledged.as_ref() == asked;
        if let Some((.., version)) = contained.difference(&self.contained).next().filter(|_| !is_request) {
            let text = format!("the freeze of {version} was ended for other nodes without a request");
            verdict.report(Property::S8, Some(moment.revision()), None, text);
        }
        // Removing a hold takes no node out of service.
        self.out = world.out_of_service_or_held();
        self.frozen_by = world.frozen_by().first().map(ToString::to_string);
        (self.failed, self.contained, self.acknowledged) = (world.failed_too_often(), contained, acknowledged);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::{NEW_VERSION, Scenario};
    use super::Property;
    use jiff::Timestamp;
    use models::operator::{CountOrPercent, FailurePolicy, KnownVersion, OperatorRequests, Quarantined};
    use models::reason::FailureReason;
    use models::shadow::Step;

    #[test]
    fn resolved_failure_allows_next_node_to_start() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.version_failed("a");
        scenario.resolve_failures("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn start_after_failure_is_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.version_failed("a");
        scenario.take_slot("b");
        scenario.assert_only(Property::S8);
    }

    #[test]
    fn restart_of_failed_node_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.version_failed("a");
        scenario.take_slot("a");
        scenario.assert_only(Property::S8);
    }

    #[test]
    fn node_with_slot_before_failure_may_continue() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        scenario.take_slot("b");
        scenario.version_failed("a");
        scenario.step("b", Step::LeavingLoadBalancer);
        scenario.claim("b");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn max_failures_allows_starts_and_counts_each_node_once() {
        let mut scenario = Scenario::new(&["a", "b", "c"]);
        let policy = FailurePolicy { max_failures: Some(2), ..FailurePolicy::default() };
        scenario.operator(|operator| operator.spec.failure_policy = Some(policy));
        scenario.version_failed("a");
        scenario.version_failed("a");
        scenario.take_slot("c");
        scenario.free_slot("c");
        assert_eq!(scenario.judge().violations, []);
        scenario.version_failed("b");
        scenario.take_slot("c");
        scenario.assert_only(Property::S8);
    }

    /// A version that has failed on `a`, and a user who goes on with the nodes of other architectures.
    fn contained(request: &str) -> Scenario {
        let mut scenario = Scenario::new(&["a", "b", "x"]);
        for (name, arch) in [("a", "x86_64"), ("b", "x86_64"), ("x", "aarch64")] {
            scenario.agent(name, |agent| {
                (agent.variant, agent.arch) = (Some("aws-k8s-1.37".into()), Some(arch.into()));
            });
        }
        scenario.version_failed("a");
        scenario.operator(|operator| operator.continue_others = "monday".into());
        scenario.operator(|operator| {
            operator.status.requests =
                Some(OperatorRequests { continue_others: Some(request.into()), ..OperatorRequests::default() });
            operator.status.versions = vec![KnownVersion {
                version: NEW_VERSION.parse().unwrap(),
                variant: "aws-k8s-1.37".into(),
                arch: "x86_64".into(),
                first_seen: Timestamp::UNIX_EPOCH,
                failed: vec!["a".into()],
                quarantined: Some(Quarantined {
                    reason: FailureReason::BootFellBack,
                    nodes: vec!["a".into()],
                    since: Timestamp::UNIX_EPOCH,
                    contained: true,
                }),
            }];
        });
        scenario
    }

    #[test]
    fn request_lets_nodes_of_other_kinds_start() {
        let mut scenario = contained("monday");
        scenario.step("x", Step::Staged);
        scenario.take_slot("x");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn start_of_the_failed_kind_is_detected() {
        let mut scenario = contained("monday");
        scenario.step("b", Step::Staged);
        scenario.take_slot("b");
        scenario.assert_only(Property::S8);
    }

    #[test]
    fn freeze_that_ends_for_others_without_a_request_is_detected() {
        contained("tuesday").assert_only(Property::S8);
    }
}
