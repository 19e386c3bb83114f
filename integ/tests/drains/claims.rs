//! Claims on a node, and the state of the node afterwards: as before.

use integ::oracle::Field;
use models::names::{BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, HOLD_ANNOTATION, SCALE_DOWN_ANNOTATION};
use models::shadow::Step;
use serde_json::json;

use crate::fleet::Case;
use crate::state::CaseState;

crate::cases![
    claim_is_released_after_shadow_deletion,
    fields_that_users_change_during_a_drain_stay_and_the_label_of_the_claim_is_restored,
    fields_that_users_set_before_an_update_stay,
    node_leaves_load_balancer_before_first_eviction,
    hold_during_drain_ends_attempt_and_keeps_cordon_until_hold_is_removed,
    claim_is_removed_after_managed_fields_reset_during_drain,
];

fn balancer() -> Field {
    Field::Label(BALANCER_LABEL.to_owned())
}

fn annotation(name: &str) -> Field {
    Field::Annotation(name.to_owned())
}

fn claim_fields<'a>(state: &'a CaseState<'_>) -> [Option<&'a str>; 4] {
    [Field::Unschedulable, balancer(), annotation(SCALE_DOWN_ANNOTATION), annotation(DO_NOT_DISRUPT_ANNOTATION)]
        .map(|field| state.node().fields.get(&field).map(String::as_str))
}

async fn fields_that_users_change_during_a_drain_stay_and_the_label_of_the_claim_is_restored(
    case: Case,
) -> anyhow::Result<()> {
    let state = case.start_blocked_drain(1).await?;
    assert_eq!(claim_fields(&state), [Some("true"), Some("brupop"), Some("true"), Some("true")]);
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}-")]).await?;
    case.until("the node is out of the balancer again", |state| state.field(&balancer()).is_some()).await?;
    case.kubectl(&["annotate", "--overwrite", "node", &case.node, &format!("{DO_NOT_DISRUPT_ANNOTATION}=please")])
        .await?;
    // `kubectl cordon` leaves no trace on a node that is cordoned already; an apply records the owner.
    let wish =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": case.node}, "spec": {"unschedulable": true}});
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), wish.to_string())?;
    let path = file.path().to_string_lossy().into_owned();
    case.kubectl(&["apply", "--server-side", "--field-manager=other", "-f", &path]).await?;
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [Some("true"), None, None, Some("please")]);
    Ok(())
}

async fn fields_that_users_set_before_an_update_stay(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("cordoned").await?;
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}=maintenance")]).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{SCALE_DOWN_ANNOTATION}=false")]).await?;
    case.kubectl(&["taint", "node", &case.node, "example.com/theirs=yes:PreferNoSchedule"]).await?;
    case.kubectl(&["cordon", &case.node]).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    let claimed = [Some("true"), Some("maintenance"), Some("false"), Some("true")];
    assert_eq!(claim_fields(&case.drained().await?), claimed, "what users have not set is claimed all the same");
    assert_eq!(claim_fields(&end), [Some("true"), Some("maintenance"), Some("false"), None]);
    assert!(end.field(&Field::Taints).is_some_and(|taints| taints.contains("example.com/theirs")));
    Ok(())
}

async fn node_leaves_load_balancer_before_first_eviction(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    let before = case.state()?.uids_on_node("web");
    case.start_update().await?;
    let state = case
        .until("the node is out of the balancer", |state| {
            state.step() == Some(Step::LeavingLoadBalancer) && state.field(&balancer()).is_some()
        })
        .await?;
    assert!(state.cordoned() && !state.pods_on_node("web").iter().any(|pod| pod.terminating));
    let drain = state.drain().cloned().unwrap_or_default();
    let recorded: Vec<&str> = drain.pods.iter().map(|pod| pod.uid.as_str()).collect();
    assert!(before.iter().all(|uid| recorded.contains(&uid.as_str())), "recorded first: {before:?} {recorded:?}");
    let end = case.updated().await?;
    assert_eq!(end.field(&balancer()), None);
    Ok(())
}

async fn hold_during_drain_ends_attempt_and_keeps_cordon_until_hold_is_removed(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    let state = case.until("the attempt has ended", |state| state.step().is_none()).await?;
    assert!(state.cordoned() && state.pods_on_node("web").len() == 1);
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn claim_is_removed_after_managed_fields_reset_during_drain(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    let reset = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
    case.kubectl(&["patch", "node", &case.node, "--type=json", "-p", reset]).await?;
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn claim_is_released_after_shadow_deletion(case: Case) -> anyhow::Result<()> {
    let state = case.start_blocked_drain(1).await?;
    let before = state.shadow().map(|shadow| shadow.uid.clone());
    let shadow = models::names::shadow_name(&case.node);
    case.kubectl(&["-n", models::names::SYSTEM_NAMESPACE, "delete", "brs", &shadow]).await?;
    case.until("there is a new shadow", |state| {
        state.shadow().is_some_and(|shadow| Some(&shadow.uid) != before.as_ref())
    })
    .await?;
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [None; 4]);
    Ok(())
}
