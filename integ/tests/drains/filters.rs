//! Choice of the pods to evict, and pods that would lose something by a drain.

use models::shadow::Step;
use serde_json::json;

use crate::fleet::Case;

crate::cases![
    pods_of_a_deployment_move_and_the_node_updates,
    a_bare_pod_is_refused_by_name_before_anything_is_touched,
    a_bare_pod_goes_where_policy_says_so,
    pods_beside_a_refused_one_are_not_evicted_either,
    a_bare_pod_that_has_ended_hinders_nothing_and_stays,
    an_empty_dir_goes_with_its_pod_by_default,
    an_empty_dir_keeps_its_node_where_policy_says_so,
    an_empty_dir_of_a_pod_that_has_ended_hinders_nothing,
    a_daemon_sets_pod_stays_where_it_is,
    what_only_calls_itself_a_daemon_set_is_drained,
    a_static_pods_mirror_stays,
    a_pod_that_is_being_deleted_is_waited_for_whatever_it_is,
    the_pods_to_be_moved_are_written_down_before_the_first_eviction,
    a_node_without_pods_is_updated,
];

async fn pods_of_a_deployment_move_and_the_node_updates(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty() && end.pods_of("web").len() == 3, "they are elsewhere");
    assert!(!end.cordoned());
    Ok(())
}

async fn a_bare_pod_is_refused_by_name_before_anything_is_touched(case: Case) -> anyhow::Result<()> {
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    let said = case.blocked("DrainRefused").await?;
    assert!(
        said.contains(&format!("{}/alone has no controller", case.namespace)) && said.contains("barePods"),
        "{said}"
    );
    let look = case.look()?;
    assert!(!look.cordoned() && look.at_home("alone").len() == 1);
    case.here(&["delete", "pod", "alone"]).await?;
    case.updated().await?;
    Ok(())
}

async fn a_bare_pod_goes_where_policy_says_so(case: Case) -> anyhow::Result<()> {
    case.under("evict-bare").await?;
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_of("alone").is_empty());
    Ok(())
}

async fn pods_beside_a_refused_one_are_not_evicted_either(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 2, json!({})).await?;
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    case.blocked("DrainRefused").await?;
    let look = case.look()?;
    assert!(look.at_home("web").len() == 2 && !look.at_home("web").iter().any(|pod| pod.terminating));
    case.here(&["delete", "pod", "alone"]).await?;
    case.updated().await?;
    Ok(())
}

/// Ends a pod as its containers would by themselves.
async fn ends(case: &Case, name: &str) -> anyhow::Result<()> {
    let patch = r#"{"status": {"phase": "Succeeded"}}"#;
    case.here(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch]).await?;
    case.until("the pod has ended", |look| look.pods_of(name).iter().all(|pod| pod.finished)).await?;
    Ok(())
}

async fn a_bare_pod_that_has_ended_hinders_nothing_and_stays(case: Case) -> anyhow::Result<()> {
    case.bare_pod("job", &json!({"spec": {"restartPolicy": "Never"}})).await?;
    ends(&case, "job").await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert_eq!(end.at_home("job").len(), 1, "a drain does not tidy up");
    Ok(())
}

async fn an_empty_dir_goes_with_its_pod_by_default(case: Case) -> anyhow::Result<()> {
    case.deployment("cache", 1, json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("cache").is_empty());
    Ok(())
}

async fn an_empty_dir_keeps_its_node_where_policy_says_so(case: Case) -> anyhow::Result<()> {
    case.under("keep-data").await?;
    case.deployment("cache", 1, json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}})).await?;
    case.start_update().await?;
    let said = case.blocked("DrainRefused").await?;
    assert!(said.contains("emptyDir"), "{said}");
    assert!(!case.look()?.cordoned());
    case.here(&["delete", "deployment", "cache"]).await?;
    case.updated().await?;
    Ok(())
}

async fn an_empty_dir_of_a_pod_that_has_ended_hinders_nothing(case: Case) -> anyhow::Result<()> {
    case.under("keep-data").await?;
    let spec = json!({"spec": {"restartPolicy": "Never", "volumes": [{"name": "cache", "emptyDir": {}}]}});
    case.bare_pod("job", &spec).await?;
    ends(&case, "job").await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn a_daemon_sets_pod_stays_where_it_is(case: Case) -> anyhow::Result<()> {
    case.apply(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "logs", "namespace": case.namespace},
        "spec": {
            "selector": {"matchLabels": {"app": "logs"}},
            "template": case.template("logs", &json!({})),
        },
    }))
    .await?;
    let look = case.until("its pod runs", |look| look.at_home("logs").iter().any(|pod| pod.ready)).await?;
    let before = look.at_home("logs")[0].uid.clone();
    case.start_update().await?;
    let rebooting = case.until("the node is drained", |look| look.step() == Some(Step::Rebooting)).await?;
    let pods = rebooting.at_home("logs");
    assert!(pods.len() == 1 && pods[0].uid == before && !pods[0].terminating);
    case.updated().await?;
    Ok(())
}

async fn what_only_calls_itself_a_daemon_set_is_drained(case: Case) -> anyhow::Result<()> {
    let owner = json!([{
        "apiVersion": "apps.example.com/v1", "kind": "DaemonSet", "name": "better", "controller": true,
        "uid": "6ad5a9a2-5d0d-4c0c-8a4c-3f3cf7f3c111",
    }]);
    case.bare_pod("better", &json!({"metadata": {"ownerReferences": owner}})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_of("better").is_empty());
    Ok(())
}

async fn a_static_pods_mirror_stays(case: Case) -> anyhow::Result<()> {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "digest"}}});
    case.bare_pod("static", &mirror).await?;
    case.start_update().await?;
    let rebooting = case.until("the node is drained", |look| look.step() == Some(Step::Rebooting)).await?;
    assert!(rebooting.at_home("static").iter().all(|pod| !pod.terminating) && rebooting.at_home("static").len() == 1);
    case.updated().await?;
    Ok(())
}

async fn a_pod_that_is_being_deleted_is_waited_for_whatever_it_is(case: Case) -> anyhow::Result<()> {
    // It has no controller, and does not end.
    let slow = json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 60}});
    case.bare_pod("alone", &slow).await?;
    case.here(&["delete", "pod", "alone", "--wait=false"]).await?;
    case.start_update().await?;
    let look = case
        .until("the drain waits", |look| {
            look.step() == Some(Step::Draining) && look.at_home("alone").iter().any(|pod| pod.terminating)
        })
        .await?;
    assert!(look.cordoned());
    case.here(&["delete", "pod", "alone", "--force", "--grace-period=0"]).await?;
    let end = case.updated().await?;
    assert!(end.pods_of("alone").is_empty());
    Ok(())
}

async fn the_pods_to_be_moved_are_written_down_before_the_first_eviction(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    let before: Vec<String> = case.look()?.at_home("web").iter().map(|pod| pod.uid.clone()).collect();
    case.start_update().await?;
    let look = case.until("the node leaves the balancer", |look| look.step() == Some(Step::LeavingBalancer)).await?;
    let drain = look.drain().cloned().unwrap_or_default();
    let written: Vec<&str> = drain.pods.iter().map(|pod| pod.uid.as_str()).collect();
    assert!(before.iter().all(|uid| written.contains(&uid.as_str())), "{before:?} {written:?}");
    assert!(!look.at_home("web").iter().any(|pod| pod.terminating));
    case.updated().await?;
    Ok(())
}

async fn a_node_without_pods_is_updated(case: Case) -> anyhow::Result<()> {
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}
