//! Claims on a node, and the state of the node afterwards: as before.

use integ::oracle::Field;
use models::names::{BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, HOLD_ANNOTATION, SCALE_DOWN_ANNOTATION};
use models::shadow::Step;
use serde_json::json;

use crate::fleet::Case;
use crate::state::CaseState;

crate::cases![
    claim_is_released_after_shadow_deletion,
    claim_sets_all_node_fields_during_drain_and_release_removes_them,
    node_leaves_load_balancer_before_first_eviction,
    node_cordoned_by_user_is_updated_only_after_uncordon,
    cordon_set_before_update_is_kept_after_update,
    cordon_applied_by_other_manager_during_drain_is_kept,
    load_balancer_label_of_user_is_kept,
    conflicting_annotation_of_user_is_kept_and_node_is_updated,
    annotation_changed_by_user_during_drain_is_kept,
    claim_label_removed_by_user_during_drain_is_restored,
    repeated_uncordon_ends_attempt_and_releases_node,
    hold_prevents_update_from_starting,
    hold_during_drain_ends_attempt_and_keeps_cordon_until_hold_is_removed,
    claim_is_removed_after_managed_fields_reset_during_drain,
    taint_of_user_is_kept,
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

async fn claim_sets_all_node_fields_during_drain_and_release_removes_them(case: Case) -> anyhow::Result<()> {
    let state = case.start_blocked_drain(1).await?;
    assert_eq!(claim_fields(&state), [Some("true"), Some("brupop"), Some("true"), Some("true")]);
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn node_leaves_load_balancer_before_first_eviction(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.start_update().await?;
    let state = case
        .until("the node is out of the balancer", |state| {
            state.step() == Some(Step::LeavingLoadBalancer) && state.field(&balancer()).is_some()
        })
        .await?;
    assert!(state.cordoned() && !state.pods_on_node("web")[0].terminating);
    let end = case.updated().await?;
    assert_eq!(end.field(&balancer()), None);
    Ok(())
}

async fn node_cordoned_by_user_is_updated_only_after_uncordon(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.kubectl(&["cordon", &case.node]).await?;
    case.start_update().await?;
    let message = case.blocked("Cordoned").await?;
    assert!(message.contains("cordonedNodes"), "{message}");
    let state = case.state()?;
    assert!(state.step().is_none() && !state.node().claimed() && state.pods_on_node("web").len() == 1);
    case.kubectl(&["uncordon", &case.node]).await?;
    assert!(!case.updated().await?.cordoned());
    assert!(case.drained().await?.pods_on_node("web").is_empty());
    Ok(())
}

async fn cordon_set_before_update_is_kept_after_update(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("cordoned").await?;
    case.deployment("web", 1, json!({})).await?;
    case.kubectl(&["cordon", &case.node]).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert_eq!(claim_fields(&end), [Some("true"), None, None, None]);
    Ok(())
}

async fn cordon_applied_by_other_manager_during_drain_is_kept(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    // `kubectl cordon` leaves no trace on a node that is cordoned already; an apply records the owner.
    let wish =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": case.node}, "spec": {"unschedulable": true}});
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), wish.to_string())?;
    let path = file.path().to_string_lossy().into_owned();
    case.kubectl(&["apply", "--server-side", "--field-manager=other", "-f", &path]).await?;
    case.unblock_drain().await?;
    let end = case.updated().await?;
    assert_eq!(claim_fields(&end), [Some("true"), None, None, None]);
    Ok(())
}

async fn load_balancer_label_of_user_is_kept(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}=maintenance")]).await?;
    let state = case.start_blocked_drain(1).await?;
    assert_eq!(state.field(&balancer()), Some("maintenance"));
    case.unblock_drain().await?;
    let end = case.updated().await?;
    assert_eq!(claim_fields(&end), [None, Some("maintenance"), None, None]);
    Ok(())
}

async fn conflicting_annotation_of_user_is_kept_and_node_is_updated(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["annotate", "node", &case.node, &format!("{SCALE_DOWN_ANNOTATION}=false")]).await?;
    let state = case.start_blocked_drain(1).await?;
    assert_eq!(claim_fields(&state), [Some("true"), Some("brupop"), Some("false"), Some("true")]);
    case.unblock_drain().await?;
    let end = case.updated().await?;
    assert_eq!(claim_fields(&end), [None, None, Some("false"), None]);
    Ok(())
}

async fn annotation_changed_by_user_during_drain_is_kept(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.kubectl(&["annotate", "--overwrite", "node", &case.node, &format!("{DO_NOT_DISRUPT_ANNOTATION}=please")])
        .await?;
    case.unblock_drain().await?;
    let end = case.updated().await?;
    assert_eq!(claim_fields(&end), [None, None, None, Some("please")]);
    Ok(())
}

async fn claim_label_removed_by_user_during_drain_is_restored(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}-")]).await?;
    case.until("the node is out of the balancer again", |state| state.field(&balancer()).is_some()).await?;
    case.unblock_drain().await?;
    assert_eq!(claim_fields(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn repeated_uncordon_ends_attempt_and_releases_node(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    // Two of them in quick succession may count as one.
    for _ in 0..12 {
        case.kubectl(&["uncordon", &case.node]).await?;
        let state = case.until("it is cordoned again, or released", |state| state.cordoned() || state.step().is_none());
        if state.await?.step().is_none() {
            break;
        }
    }
    let message = case.failed("Uncordoned").await?;
    assert!(message.contains("hold"), "{message}");
    assert_eq!(claim_fields(&case.state()?), [None; 4]);
    Ok(())
}

async fn hold_prevents_update_from_starting(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    case.start_update().await?;
    case.blocked("Held").await?;
    assert_eq!(claim_fields(&case.state()?), [None; 4]);
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.updated().await?;
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

async fn taint_of_user_is_kept(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["taint", "node", &case.node, "example.com/theirs=yes:PreferNoSchedule"]).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.field(&Field::Taints).is_some_and(|taints| taints.contains("example.com/theirs")));
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
