//! A blocked drain is visible in all places that users check.

use std::time::Duration;

use models::condition::ConditionStatus;
use models::shadow::BLOCKED;

use super::support::{EVENTS_OF_NODES, status, until_event, until_metric};
use crate::interfere::{blocked_drain, unblock};
use crate::policy::wait_for;
use crate::support::{condition_of, nodes, run, shadow_of};

/// Time within which a blocked drain has to be reported.
const VISIBLE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn blocked_drain_is_reported_in_shadow_event_operator_status_and_metric() -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        let node = blocked_drain(ctx).await?;
        let world = ctx
            .bed
            .wait("the shadow and the operator's status tell of the blocked drain", VISIBLE, |history| {
                let world = history.end();
                condition_of(&world, &node, BLOCKED)
                    .is_some_and(|c| c.status == ConditionStatus::True && c.reason == "DrainBlocked")
                    && wait_for(&world, "DrainBlocked", 1)
                    && status(&world).counts.is_some_and(|counts| (counts.blocked, counts.updating) == (1, 1))
            })
            .await?
            .end();
        let drain = shadow_of(&world, &node).unwrap().status.controller.drain.clone().unwrap();
        assert!(!drain.blockers.is_empty());
        for blocker in &drain.blockers {
            assert_eq!(blocker.budget.as_deref(), Some("shop/web"));
            assert!(drain.pods.iter().any(|pod| format!("{}/{}", pod.namespace, pod.name) == blocker.pod));
        }
        let first = &drain.blockers[0].pod;
        let message = &condition_of(&world, &node, BLOCKED).unwrap().message;
        assert!(message.contains(first) && message.contains("shop/web"), "{message}");
        until_event(ctx, EVENTS_OF_NODES, "DrainBlocked", &[first, "shop/web"]).await?;
        until_metric(ctx, r#"nodes_waiting{reason="DrainBlocked"}"#, "1").await?;

        unblock(ctx).await?;
        ctx.updated().await?;
        ctx.until("no node waits", |world| {
            status(world).waiting.is_empty() && status(world).counts.is_some_and(|counts| counts.blocked == 0)
        })
        .await?;
        Ok(())
    })
    .await?;
    Ok(())
}
