//! Claims on a node, and the state of the node afterwards: as before.

use integ::oracle::Field;
use models::names::{BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, HOLD_ANNOTATION, SCALE_DOWN_ANNOTATION};
use models::shadow::Step;
use serde_json::json;

use crate::fleet::{Case, Look};

crate::cases![
    a_claim_of_which_the_shadow_is_deleted_is_taken_back,
    a_node_is_claimed_whole_while_it_is_drained_and_nothing_of_it_stays,
    a_node_leaves_the_balancer_before_the_first_pod_goes,
    node_that_another_user_has_cordoned_is_left_alone_until_it_is_uncordoned,
    a_person_who_cordoned_the_node_before_finds_it_cordoned,
    a_person_who_cordons_the_node_in_mid_drain_finds_it_cordoned,
    a_persons_balancer_label_stays_whatever_its_value,
    a_persons_annotation_of_another_value_stays_and_the_node_is_updated_all_the_same,
    an_annotation_that_a_person_changes_in_mid_drain_stays_as_it_is,
    a_label_that_a_person_takes_away_in_mid_drain_is_set_again,
    a_person_who_uncordons_again_and_again_gets_the_node_back,
    a_hold_before_the_update_keeps_it_from_beginning,
    a_hold_in_mid_drain_ends_the_attempt_and_keeps_the_cordon_until_it_goes,
    a_reset_of_managed_fields_in_mid_drain_leaves_nothing_behind,
    a_taint_of_a_person_stays,
    labels_that_others_set_in_mid_drain_stay,
];

fn balancer() -> Field {
    Field::Label(BALANCER_LABEL.to_owned())
}

fn annotation(name: &str) -> Field {
    Field::Annotation(name.to_owned())
}

fn parts(look: &Look) -> [Option<&str>; 4] {
    [Field::Unschedulable, balancer(), annotation(SCALE_DOWN_ANNOTATION), annotation(DO_NOT_DISRUPT_ANNOTATION)]
        .map(|field| look.node().fields.get(&field).map(String::as_str))
}

async fn a_node_is_claimed_whole_while_it_is_drained_and_nothing_of_it_stays(case: Case) -> anyhow::Result<()> {
    let look = case.drain_held_up(1).await?;
    assert_eq!(parts(&look), [Some("true"), Some("brupop"), Some("true"), Some("true")]);
    case.let_go().await?;
    assert_eq!(parts(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn a_node_leaves_the_balancer_before_the_first_pod_goes(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.start_update().await?;
    let look = case
        .until("the node is out of the balancer", |look| {
            look.step() == Some(Step::LeavingBalancer) && look.field(&balancer()).is_some()
        })
        .await?;
    assert!(look.cordoned() && !look.at_home("web")[0].terminating);
    let end = case.updated().await?;
    assert_eq!(end.field(&balancer()), None);
    Ok(())
}

async fn node_that_another_user_has_cordoned_is_left_alone_until_it_is_uncordoned(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.kubectl(&["cordon", &case.node]).await?;
    case.start_update().await?;
    let said = case.blocked("Cordoned").await?;
    assert!(said.contains("cordonedNodes"), "{said}");
    let look = case.look()?;
    assert!(look.step().is_none() && !look.node().claimed() && look.at_home("web").len() == 1);
    case.kubectl(&["uncordon", &case.node]).await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty() && !end.cordoned());
    Ok(())
}

async fn a_person_who_cordoned_the_node_before_finds_it_cordoned(case: Case) -> anyhow::Result<()> {
    case.under("cordoned").await?;
    case.deployment("web", 1, json!({})).await?;
    case.kubectl(&["cordon", &case.node]).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert_eq!(parts(&end), [Some("true"), None, None, None]);
    Ok(())
}

async fn a_person_who_cordons_the_node_in_mid_drain_finds_it_cordoned(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    // `kubectl cordon` leaves no trace on a node that is cordoned already; an apply records the owner.
    let wish =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": case.node}, "spec": {"unschedulable": true}});
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), wish.to_string())?;
    let path = file.path().to_string_lossy().into_owned();
    case.kubectl(&["apply", "--server-side", "--field-manager=other", "-f", &path]).await?;
    case.let_go().await?;
    let end = case.updated().await?;
    assert_eq!(parts(&end), [Some("true"), None, None, None]);
    Ok(())
}

async fn a_persons_balancer_label_stays_whatever_its_value(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}=maintenance")]).await?;
    let look = case.drain_held_up(1).await?;
    assert_eq!(look.field(&balancer()), Some("maintenance"));
    case.let_go().await?;
    let end = case.updated().await?;
    assert_eq!(parts(&end), [None, Some("maintenance"), None, None]);
    Ok(())
}

async fn a_persons_annotation_of_another_value_stays_and_the_node_is_updated_all_the_same(
    case: Case,
) -> anyhow::Result<()> {
    case.kubectl(&["annotate", "node", &case.node, &format!("{SCALE_DOWN_ANNOTATION}=false")]).await?;
    let look = case.drain_held_up(1).await?;
    assert_eq!(parts(&look), [Some("true"), Some("brupop"), Some("false"), Some("true")]);
    case.let_go().await?;
    let end = case.updated().await?;
    assert_eq!(parts(&end), [None, None, Some("false"), None]);
    Ok(())
}

async fn an_annotation_that_a_person_changes_in_mid_drain_stays_as_it_is(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["annotate", "--overwrite", "node", &case.node, &format!("{DO_NOT_DISRUPT_ANNOTATION}=please")])
        .await?;
    case.let_go().await?;
    let end = case.updated().await?;
    assert_eq!(parts(&end), [None, None, None, Some("please")]);
    Ok(())
}

async fn a_label_that_a_person_takes_away_in_mid_drain_is_set_again(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["label", "node", &case.node, &format!("{BALANCER_LABEL}-")]).await?;
    case.until("the node is out of the balancer again", |look| look.field(&balancer()).is_some()).await?;
    case.let_go().await?;
    assert_eq!(parts(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn a_person_who_uncordons_again_and_again_gets_the_node_back(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    // Two of them in quick succession may count as one.
    for _ in 0..12 {
        case.kubectl(&["uncordon", &case.node]).await?;
        let look = case.until("it is cordoned again, or released", |look| look.cordoned() || look.step().is_none());
        if look.await?.step().is_none() {
            break;
        }
    }
    let said = case.failed("Uncordoned").await?;
    assert!(said.contains("hold"), "{said}");
    assert_eq!(parts(&case.look()?), [None; 4]);
    Ok(())
}

async fn a_hold_before_the_update_keeps_it_from_beginning(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    case.start_update().await?;
    case.blocked("Held").await?;
    assert_eq!(parts(&case.look()?), [None; 4]);
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.updated().await?;
    Ok(())
}

async fn a_hold_in_mid_drain_ends_the_attempt_and_keeps_the_cordon_until_it_goes(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    let look = case.until("the attempt has ended", |look| look.step().is_none()).await?;
    assert!(look.cordoned() && look.at_home("web").len() == 1);
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.let_go().await?;
    assert_eq!(parts(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn a_reset_of_managed_fields_in_mid_drain_leaves_nothing_behind(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    let reset = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
    case.kubectl(&["patch", "node", &case.node, "--type=json", "-p", reset]).await?;
    case.let_go().await?;
    assert_eq!(parts(&case.updated().await?), [None; 4]);
    Ok(())
}

async fn a_taint_of_a_person_stays(case: Case) -> anyhow::Result<()> {
    case.kubectl(&["taint", "node", &case.node, "example.com/theirs=yes:PreferNoSchedule"]).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.field(&Field::Taints).is_some_and(|taints| taints.contains("example.com/theirs")));
    Ok(())
}

async fn labels_that_others_set_in_mid_drain_stay(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["label", "node", &case.node, "example.com/new=yes"]).await?;
    case.let_go().await?;
    let end = case.updated().await?;
    assert_eq!(end.field(&Field::Label("example.com/new".to_owned())), Some("yes"));
    Ok(())
}

async fn a_claim_of_which_the_shadow_is_deleted_is_taken_back(case: Case) -> anyhow::Result<()> {
    let look = case.drain_held_up(1).await?;
    let before = look.shadow().map(|shadow| shadow.uid.clone());
    let shadow = models::names::shadow_name(&case.node);
    case.kubectl(&["-n", models::names::SYSTEM_NAMESPACE, "delete", "brs", &shadow]).await?;
    case.until("there is a new shadow", |look| {
        look.shadow().is_some_and(|shadow| Some(&shadow.uid) != before.as_ref())
    })
    .await?;
    case.let_go().await?;
    assert_eq!(parts(&case.updated().await?), [None; 4]);
    Ok(())
}
