//! The end of a drain that does not end by itself.

use anyhow::Context as _;
use models::shadow::Step;
use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![
    a_drain_that_a_budget_holds_up_is_given_up_at_its_deadline_and_charged_to_no_one,
    a_pod_that_does_not_end_is_named_when_the_drain_is_given_up,
    a_node_that_was_released_is_drained_again_when_a_person_asks,
    pods_past_their_deadline_are_deleted_where_policy_says_so,
    node_is_forced_at_the_deadline_where_a_budget_could_never_allow_its_drain,
    pods_past_their_deadline_and_their_grace_are_deleted_without_it,
    a_pod_that_does_not_go_is_left_to_the_reboot_where_policy_says_so,
    a_pod_that_has_ended_is_waited_for_no_longer_than_its_grace_period,
    forced_pods_are_told_loudly,
    volumes_are_waited_for_where_policy_asks,
    volumes_hold_nothing_up_beyond_the_deadline,
    volumes_are_no_ones_business_by_default,
    an_unreachable_node_is_given_up_and_nothing_on_it_is_forced,
];

async fn a_drain_that_a_budget_holds_up_is_given_up_at_its_deadline_and_charged_to_no_one(
    case: Case,
) -> anyhow::Result<()> {
    case.under("short").await?;
    case.deployment("web", 2, json!({})).await?;
    case.guard("web", 2).await?;
    case.start_update().await?;
    let said = case.failed("DrainTimedOut").await?;
    assert!(said.contains(&format!("{}/web-", case.namespace)), "{said}");
    let look = case.look()?;
    assert!(!look.is_charged() && !look.cordoned() && look.at_home("web").len() == 2);
    case.blocked("BackOff").await?;
    Ok(())
}

async fn a_pod_that_does_not_end_is_named_when_the_drain_is_given_up(case: Case) -> anyhow::Result<()> {
    case.under("short").await?;
    case.deployment("web", 1, json!({"metadata": {"annotations": {"sim/stop-after": "never"}}})).await?;
    let pod = case.look()?.at_home("web")[0].name.clone();
    case.start_update().await?;
    let said = case.failed("DrainTimedOut").await?;
    assert!(said.contains(&pod), "{said}");
    Ok(())
}

async fn a_node_that_was_released_is_drained_again_when_a_person_asks(case: Case) -> anyhow::Result<()> {
    case.under("short").await?;
    case.deployment("web", 1, json!({})).await?;
    case.guard("web", 1).await?;
    case.start_update().await?;
    case.failed("DrainTimedOut").await?;
    // The second drain has no short deadline: after a second missed one it would wait for hours.
    case.under("default").await?;
    case.let_go().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn pods_past_their_deadline_are_deleted_where_policy_says_so(case: Case) -> anyhow::Result<()> {
    case.under("force").await?;
    case.deployment("web", 2, json!({})).await?;
    case.guard("web", 2).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}

async fn node_is_forced_at_the_deadline_where_a_budget_could_never_allow_its_drain(case: Case) -> anyhow::Result<()> {
    case.under("force").await?;
    case.deployment("web", 2, json!({})).await?;
    case.budget("web", 2, json!({"maxUnavailable": 0})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}

async fn pods_past_their_deadline_and_their_grace_are_deleted_without_it(case: Case) -> anyhow::Result<()> {
    case.under("force").await?;
    // A stuck volume keeps it terminating past its grace period.
    let stuck =
        json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 2}});
    case.deployment("web", 1, stuck).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}

async fn a_pod_that_does_not_go_is_left_to_the_reboot_where_policy_says_so(case: Case) -> anyhow::Result<()> {
    case.under("impatient").await?;
    // A stuck volume keeps it terminating past its grace period.
    let stuck =
        json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 1}});
    case.deployment("web", 1, stuck).await?;
    let pod = case.look()?.at_home("web")[0].uid.clone();
    case.start_update().await?;
    let look = case.until("the node is drained", |look| look.step() == Some(Step::Rebooting)).await?;
    assert!(look.at_home("web").iter().any(|left| left.uid == pod && left.terminating), "it is still there");
    let conditions = &look.shadow().context("it has one")?.status.conditions;
    let drained = models::condition::true_condition(conditions, models::shadow::DRAINED).context("it is drained")?;
    assert!(drained.reason == "PodsLeft" && drained.message.contains("/web-"), "{drained:?}");
    case.updated().await?;
    Ok(())
}

async fn a_pod_that_has_ended_is_waited_for_no_longer_than_its_grace_period(case: Case) -> anyhow::Result<()> {
    let kept = json!({"metadata": {"finalizers": ["example.com/keeps"]}, "spec": {"terminationGracePeriodSeconds": 3}});
    case.deployment("web", 1, kept).await?;
    let pod = case.look()?.at_home("web")[0].uid.clone();
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").iter().any(|left| left.uid == pod && left.terminating), "it is still there");
    Ok(())
}
/// Messages of the Events about the node under test.
pub(crate) async fn events(case: &Case, reason: &str) -> anyhow::Result<Vec<String>> {
    let selector = format!("reason={reason},involvedObject.name={}", case.node);
    let found = case.kubectl(&["-n", "default", "get", "events", "--field-selector", &selector, "-o", "json"]).await?;
    let found: Value = serde_json::from_str(&found)?;
    let items = found["items"].as_array().cloned().unwrap_or_default();
    Ok(items.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
}

async fn forced_pods_are_told_loudly(case: Case) -> anyhow::Result<()> {
    case.under("force-bare").await?;
    case.bare_pod("alone", &json!({"metadata": {"labels": {"app": "alone"}}})).await?;
    case.guard("alone", 1).await?;
    case.start_update().await?;
    let forced =
        case.until("it is written down", |look| look.drain().is_some_and(|drain| drain.forced_since.is_some())).await?;
    assert_eq!(forced.step(), Some(Step::Draining));
    case.updated().await?;
    let said = events(&case, "DrainForced").await?;
    assert!(said.iter().any(|said| said.contains(&format!("{}/alone", case.namespace))), "{said:?}");
    Ok(())
}

/// Reports that the kubelet uses a volume, as it does until it is unmounted.
async fn volume(case: &Case, names: &[&str]) -> anyhow::Result<()> {
    let patch = json!({"status": {"volumesInUse": names}}).to_string();
    case.kubectl(&["patch", "node", &case.node, "--subresource=status", "--type=merge", "-p", &patch]).await.map(drop)
}

async fn volumes_are_waited_for_where_policy_asks(case: Case) -> anyhow::Result<()> {
    case.under("volumes").await?;
    case.deployment("db", 1, json!({})).await?;
    volume(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    let look = case.until("the pod has gone", |look| look.at_home("db").is_empty()).await?;
    assert_eq!(look.step(), Some(Step::Draining));
    volume(&case, &[]).await?;
    case.updated().await?;
    Ok(())
}

async fn volumes_hold_nothing_up_beyond_the_deadline(case: Case) -> anyhow::Result<()> {
    case.under("volumes-short").await?;
    volume(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn volumes_are_no_ones_business_by_default(case: Case) -> anyhow::Result<()> {
    volume(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn an_unreachable_node_is_given_up_and_nothing_on_it_is_forced(case: Case) -> anyhow::Result<()> {
    case.under("force-late").await?;
    case.deployment("web", 1, json!({"metadata": {"finalizers": ["example.com/keeps"]}})).await?;
    case.guard("web", 1).await?;
    case.start_update().await?;
    case.held_up().await?;
    // As the node controller sets it when a kubelet is silent; the kubelet here is paused, so that it does not correct
    // it.
    case.member()?.kubelet.pause();
    let patch = json!({"status": {"conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
    }]}});
    case.kubectl(&["patch", "node", &case.node, "--subresource=status", "--type=strategic", "-p", &patch.to_string()])
        .await?;
    let said = case.failed("DrainTimedOut").await?;
    assert!(said.contains("not Ready"), "{said}");
    let look = case.look()?;
    assert!(look.at_home("web").iter().all(|pod| !pod.terminating) && !look.is_charged());
    case.member()?.kubelet.resume();
    Ok(())
}
