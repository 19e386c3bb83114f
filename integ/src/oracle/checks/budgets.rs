//! The operator violates no PodDisruptionBudget: whenever it removes a healthy pod, every budget that covers it allows
//! one more disruption, or has already counted this one. (The API server counts an eviction before it deletes the pod.)

use models::operator::AtDeadline;

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check;

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, observations: &Observations, verdict: &mut Verdict) {
        let Object::Pod(pod) = &moment.change.object else { return };
        let Some(Object::Pod(was)) = moment.before else { return };
        let deleted = (pod.terminating || moment.change.gone) && !was.terminating;
        // Budgets do not protect pods that are not healthy.
        let healthy = was.ready && !was.finished && !was.pending;
        if !deleted || !healthy || !observations.terminated_by_operator(&pod.uid, moment.revision()) {
            return;
        }
        if forced(moment.world, pod.node.as_deref()) {
            return;
        }
        for budget in moment.world.budgets.values().filter(|budget| budget.covers(pod)) {
            if budget.disruptions_allowed <= 0 && !budget.disrupted.contains(&pod.name) {
                let text = format!(
                    "{} was made to go while {} allowed no disruption ({} healthy, {} wanted)",
                    pod.title(),
                    budget.name,
                    budget.current_healthy,
                    budget.desired_healthy
                );
                verdict.report(Property::BudgetRespected, Some(moment.revision()), pod.node.as_deref(), text);
            }
        }
    }
}

/// Returns true if policy forces the remaining pods off the node at its drain's deadline, past their budgets, and that
/// is recorded.
fn forced(world: &ClusterState, node: Option<&str>) -> bool {
    let Some(node) = node.and_then(|name| world.nodes.get(name)) else { return false };
    let drain = world.shadow_of(node).and_then(|shadow| shadow.status.controller.drain.as_ref());
    let policy = world.operator.as_ref().and_then(|operator| operator.drain_of(node));
    policy.is_some_and(|drain| drain.at_deadline == Some(AtDeadline::Force))
        && drain.is_some_and(|drain| drain.forced_since.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::{CONTROLLER, Scenario};
    use super::Property;

    fn two_carts(allowed: i32) -> Scenario {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.pod("shop/cart-1", "a", "cart");
        scenario.pod("shop/cart-2", "b", "cart");
        scenario.budget("shop/cart", "cart", allowed, 2, 2 - allowed);
        scenario.until_claimed("a");
        scenario
    }

    #[test]
    fn eviction_allowed_by_pdb_is_accepted() {
        let mut scenario = two_carts(1);
        scenario.evict("shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn eviction_already_counted_by_pdb_is_accepted() {
        let mut scenario = two_carts(1);
        scenario.change_budget("shop/cart", |budget| {
            budget.disruptions_allowed = 0;
            budget.disrupted.insert("cart-1".into());
        });
        scenario.evict("shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
        assert_eq!(scenario.history().shortfalls("shop"), []);
    }

    #[test]
    fn pod_deletion_against_pdb_is_detected() {
        let mut scenario = two_carts(0);
        scenario.delete_pod(CONTROLLER, "shop/cart-1");
        scenario.change_budget("shop/cart", |budget| budget.current_healthy = 1);
        scenario.assert_only(Property::BudgetRespected);
        let shortfalls = scenario.history().shortfalls("shop");
        assert_eq!(shortfalls.len(), 1);
        assert_eq!((shortfalls[0].healthy, shortfalls[0].desired), (1, 2));
    }

    #[test]
    fn deletion_of_unready_pod_is_accepted() {
        let mut scenario = two_carts(0);
        scenario.change_pod("shop/cart-1", |pod| pod.ready = false);
        scenario.delete_pod(CONTROLLER, "shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn eviction_of_terminating_pod_is_no_pdb_violation() {
        let mut scenario = two_carts(0);
        scenario.change_pod("shop/cart-1", |pod| pod.terminating = true);
        scenario.evict("shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn pod_deleted_by_other_client_during_eviction_is_no_pdb_violation() {
        let mut scenario = two_carts(0);
        scenario.deleted_during_eviction("kubernetes-admin", "shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
        let mut scenario = two_carts(0);
        scenario.deleted_during_eviction(CONTROLLER, "shop/cart-1");
        assert!(scenario.judge().violates(Property::BudgetRespected));
    }

    #[test]
    fn pod_deletion_by_other_client_is_no_pdb_violation() {
        let mut scenario = two_carts(0);
        scenario.delete_pod("admin", "shop/cart-1");
        assert_eq!(scenario.judge().violations, []);
    }
}
