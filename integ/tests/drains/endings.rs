//! Endings of a drain: it is cleaned up, whatever happens during it.

use models::names::{RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};

use crate::fleet::Case;

crate::cases![node_rebooted_by_other_client_during_drain_is_released, release_request_ends_attempt_without_back_off,];

async fn node_rebooted_by_other_client_during_drain_is_released(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.member()?.host.foreign_reboot().await;
    case.failed("RebootedByOther").await?;
    assert!(!case.state()?.is_charged() && !case.state()?.cordoned());
    let record = case.state()?.shadow().and_then(|shadow| shadow.status.controller.record.clone());
    assert!(record.is_some_and(|record| record.not_before.is_some()), "the next attempt waits");
    case.unblock_drain().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn release_request_ends_attempt_without_back_off(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    let release = format!("{RELEASE_ANNOTATION}=now");
    case.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow_name(&case.node), &release]).await?;
    // The next attempt may have begun by now: nothing makes it wait.
    let ended = case
        .until("the attempt ends with ReleaseRequested", |state| {
            state.last().is_some_and(|(last, _)| last == "ReleaseRequested")
        })
        .await?;
    assert!(!ended.is_charged());
    case.unblock_drain().await?;
    case.updated().await?;
    Ok(())
}
