//! The operator violates no PodDisruptionBudget: whenever it removes a healthy pod, every budget that covers it allows
//! one more disruption, or has already counted this one. (The API server counts an eviction before it deletes the pod.)

use models::operator::AtDeadline;

use super::{Evidence, Moment, Object, Property, Verdict, World};

#[derive(Default)]
pub(super) struct Check;

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, evidence: &Evidence, verdict: &mut Verdict) {
        let Object::Pod(pod) = &moment.change.object else { return };
        let Some(Object::Pod(was)) = moment.before else { return };
        let told = (pod.terminating || moment.change.gone) && !was.terminating;
        // Budgets do not protect pods that are not healthy.
        let healthy = was.ready && !was.finished && !was.pending;
        if !told || !healthy || !evidence.told_by_us(&pod.uid, moment.revision()) {
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
fn forced(world: &World, node: Option<&str>) -> bool {
    let Some(node) = node.and_then(|name| world.nodes.get(name)) else { return false };
    let drain = world.shadow_of(node).and_then(|shadow| shadow.status.controller.drain.as_ref());
    let policy = world.operator.as_ref().and_then(|operator| operator.drain_of(node));
    policy.is_some_and(|drain| drain.at_deadline == Some(AtDeadline::Force))
        && drain.is_some_and(|drain| drain.forced_since.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::super::story::{CONTROLLER, Story};
    use super::Property;

    fn two_carts(allowed: i32) -> Story {
        let mut story = Story::new(&["a", "b"]);
        story.pod("shop/cart-1", "a", "cart");
        story.pod("shop/cart-2", "b", "cart");
        story.budget("shop/cart", "cart", allowed, 2, 2 - allowed);
        story.until_claimed("a");
        story
    }

    #[test]
    fn an_eviction_that_the_budget_allows_is_right() {
        let mut story = two_carts(1);
        story.evict("shop/cart-1");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn an_eviction_that_the_budget_has_counted_already_is_right() {
        let mut story = two_carts(1);
        story.change_budget("shop/cart", |budget| {
            budget.disruptions_allowed = 0;
            budget.disrupted.insert("cart-1".into());
        });
        story.evict("shop/cart-1");
        assert_eq!(story.judge().violations, []);
        assert_eq!(story.history().shortfalls("shop"), []);
    }

    #[test]
    fn a_pod_that_goes_against_its_budget_is_caught() {
        let mut story = two_carts(0);
        story.delete_pod(CONTROLLER, "shop/cart-1");
        story.change_budget("shop/cart", |budget| budget.current_healthy = 1);
        story.assert_only(Property::BudgetRespected);
        let shortfalls = story.history().shortfalls("shop");
        assert_eq!(shortfalls.len(), 1);
        assert_eq!((shortfalls[0].healthy, shortfalls[0].desired), (1, 2));
    }

    #[test]
    fn a_pod_that_was_not_healthy_may_go() {
        let mut story = two_carts(0);
        story.change_pod("shop/cart-1", |pod| pod.ready = false);
        story.delete_pod(CONTROLLER, "shop/cart-1");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_pod_that_others_had_told_to_go_is_not_ours_when_we_evict_it_as_well() {
        let mut story = two_carts(0);
        story.change_pod("shop/cart-1", |pod| pod.terminating = true);
        story.evict("shop/cart-1");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_pod_that_another_client_deletes_during_its_eviction_is_not_ours() {
        let mut story = two_carts(0);
        story.deleted_during_eviction("kubernetes-admin", "shop/cart-1");
        assert_eq!(story.judge().violations, []);
        let mut story = two_carts(0);
        story.deleted_during_eviction(CONTROLLER, "shop/cart-1");
        assert!(story.judge().violates(Property::BudgetRespected));
    }

    #[test]
    fn what_others_do_to_a_budget_is_not_ours() {
        let mut story = two_carts(0);
        story.delete_pod("admin", "shop/cart-1");
        assert_eq!(story.judge().violations, []);
    }
}
