//! Responses of the eviction endpoint, and pods that do not go the usual way.

use anyhow::Context as _;
use models::names::HOLD_ANNOTATION;
use models::shadow::Step;
use serde_json::{Value, json};

use crate::deadlines::events;
use crate::fleet::Case;
use crate::webhook::Webhook;

crate::cases![
    drain_evicts_more_than_500_pods,
    eviction_denied_by_webhook_ends_attempt_with_webhook_message,
    eviction_is_retried_while_webhook_is_unreachable,
    hanging_evictions_do_not_delay_other_pods_or_hold,
    drain_waits_for_pods_of_terminating_namespace,
    recreated_pods_that_tolerate_cordon_are_not_evicted_again_before_reboot,
    drain_completes_when_other_client_deletes_blocked_pods,
    system_critical_pods_are_evicted_last,
    eviction_keeps_grace_period_of_pod,
    policy_overrides_grace_period_of_pods,
    pod_with_grace_period_beyond_timeout_is_evicted_first_and_alone,
];

/// Waits until admission answers evictions of a pod as expected: rules take effect shortly after they are created.
async fn until_admission_denies(case: &Case, pod: &str, refuses: &str) -> anyhow::Result<()> {
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": case.namespace},
        "deleteOptions": {"dryRun": ["All"]},
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), body.to_string())?;
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction?dryRun=All", case.namespace);
    let file = file.path().to_string_lossy().into_owned();
    let deadline = tokio::time::Instant::now() + crate::fleet::LIMIT;
    loop {
        let answer = case.kubectl(&["create", "--raw", &path, "-f", &file]).await;
        let refused = answer.as_ref().err().is_some_and(|error| format!("{error:#}").contains(refuses));
        if refused {
            return Ok(());
        }
        anyhow::ensure!(tokio::time::Instant::now() < deadline, "admission does not say {refuses:?}: {answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// A webhook configuration for evictions in the case's namespace.
fn webhook(case: &Case, name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{
            "name": "evictions.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": 5, "clientConfig": config,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": case.namespace}},
        }],
    })
}

async fn eviction_denied_by_webhook_ends_attempt_with_webhook_message(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    let webhook_server = Webhook::refusing("ask the batch team").await?;
    let name = format!("guard-of-{}", case.namespace);
    case.apply(webhook(&case, &name, &json!({"url": webhook_server.url, "caBundle": webhook_server.ca_bundle})))
        .await?;
    let pod = case.state()?.pods_on_node("web")[0].name.clone();
    until_admission_denies(&case, &pod, "ask the batch team").await?;
    case.start_update().await?;
    let message = case.failed("DrainRefused").await?;
    assert!(message.contains(&pod) && message.contains("ask the batch team"), "{message}");
    assert!(!case.state()?.cordoned() && case.state()?.pods_on_node("web").len() == 1);
    case.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn eviction_is_retried_while_webhook_is_unreachable(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    let name = format!("absent-in-{}", case.namespace);
    case.apply(webhook(&case, &name, &json!({"url": "https://127.0.0.1:1/evictions"}))).await?;
    let pod = case.state()?.pods_on_node("web")[0].name.clone();
    until_admission_denies(&case, &pod, "failed calling webhook").await?;
    case.start_update().await?;
    let message = case.blocked("DrainBlocked").await?;
    assert!(message.contains(&pod) && message.contains("failed calling webhook"), "{message}");
    let state = case.state()?;
    let blocker = state.drain().and_then(|drain| drain.blockers.first()).context("named beside the condition")?;
    assert!(blocker.pod.ends_with(&pod) && blocker.message.contains("failed calling webhook"), "{blocker:?}");
    assert_eq!((state.step(), state.pods_on_node("web").len()), (Some(Step::Draining), 1));
    case.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    case.updated().await?;
    assert!(!events(&case, "DrainBlocked").await?.is_empty());
    Ok(())
}

async fn hanging_evictions_do_not_delay_other_pods_or_hold(case: Case) -> anyhow::Result<()> {
    // One after the other they would take longer than any timeout here.
    const PODS: usize = 12;
    case.deployment_on_node("web", PODS, json!({})).await?;
    case.deployment("zoo", 1, json!({})).await?;
    let webhook_server = Webhook::hanging().await?;
    let name = format!("hangs-in-{}", case.namespace);
    let mut config = webhook(&case, &name, &json!({"url": webhook_server.url, "caBundle": webhook_server.ca_bundle}));
    config["webhooks"][0]["timeoutSeconds"] = json!(30);
    config["webhooks"][0]["matchConditions"] = json!([{"name": "web", "expression": "request.name.startsWith('web')"}]);
    case.apply(config.clone()).await?;
    let refusing = format!("refuses-in-{}", case.namespace);
    // Rules that are created later are not in force earlier.
    let mut second = webhook(&case, &refusing, &json!({"url": "https://127.0.0.1:1/evictions"}));
    second["webhooks"][0]["matchConditions"] = json!([{"name": "zoo", "expression": "request.name.startsWith('zoo')"}]);
    case.apply(second).await?;
    let pod = case.state()?.pods_on_node("zoo")[0].name.clone();
    until_admission_denies(&case, &pod, "failed calling webhook").await?;
    case.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await?;

    case.start_update().await?;
    case.until("the pod that nothing holds back is gone", |state| state.pods_on_node("zoo").is_empty()).await?;
    let message = case.blocked("DrainBlocked").await?;
    assert!(message.contains("/web-"), "{message}");
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    let state = case.until("the attempt has ended", |state| state.step().is_none()).await?;
    assert_eq!(state.pods_on_node("web").iter().filter(|pod| !pod.terminating).count(), PODS);
    case.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.updated().await?;
    Ok(())
}

async fn drain_waits_for_pods_of_terminating_namespace(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 2, never_stopping_pods(60)).await?;
    case.kubectl(&["delete", "namespace", &case.namespace, "--wait=false"]).await?;
    case.until("its pods are going", |state| state.pods_on_node("web").iter().all(|pod| pod.terminating)).await?;
    case.start_update().await?;
    case.until("the drain waits", |state| state.step() == Some(Step::Draining)).await?;
    force_delete_pods(&case, "web").await?;
    case.updated().await?;
    Ok(())
}

/// A StatefulSet of one pod that runs on the node under test alone, also when it is cordoned.
async fn create_stateful_set(case: &Case) -> anyhow::Result<()> {
    case.apply(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": case.namespace},
        "spec": {
            "serviceName": "db", "replicas": 1,
            "selector": {"matchLabels": {"app": "db"}},
            "template": case.template("db", &tolerating_pods(case)),
        },
    }))
    .await?;
    case.until("its pod runs", |state| state.pods_on_node("db").iter().any(|pod| pod.ready)).await.map(drop)
}

/// Pods that run on the node under test alone, on which they also run when it is cordoned.
fn tolerating_pods(case: &Case) -> Value {
    let on_node = json!({"kubernetes.io/hostname": case.node});
    json!({"spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": on_node}})
}

/// Waits until the node reboots, and returns the uids of the pods of this name that were on it by then. The record
/// names one of them.
async fn pods_left_at_reboot(case: &Case, name: &str) -> anyhow::Result<Vec<String>> {
    let state = case.drained().await?;
    let conditions = state.shadow().map(|shadow| shadow.status.conditions.clone()).unwrap_or_default();
    let drained = models::condition::true_condition(&conditions, models::shadow::DRAINED).cloned();
    let message = drained.map(|drained| (drained.reason, drained.message)).unwrap_or_default();
    assert!(message.0 == "PodsLeft" && message.1.contains(&format!("{}/{name}-", case.namespace)), "{message:?}");
    Ok(state.pods_on_node(name).iter().map(|pod| pod.uid.clone()).collect())
}

async fn recreated_pods_that_tolerate_cordon_are_not_evicted_again_before_reboot(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("addon", 2, tolerating_pods(&case)).await?;
    create_stateful_set(&case).await?;
    let before: Vec<String> = case.state()?.pods_on_node("addon").iter().map(|pod| pod.uid.clone()).collect();
    // Another one that may not be evicted, so that the drain is not over before they are back.
    case.deployment("web", 1, json!({})).await?;
    case.block_with_pdb("web", 1).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    let state = case
        .until("they are back", |state| {
            let new = |pod: &&integ::oracle::Pod| pod.ready && !before.contains(&pod.uid);
            state.pods_on_node("addon").into_iter().filter(new).count() == 2
                && state.pods_on_node("addon").len() == 2
                && state.pods_on_node("db").iter().any(|pod| pod.ready)
        })
        .await?;
    let back: Vec<String> = state.pods_on_node("addon").iter().map(|pod| pod.uid.clone()).collect();
    case.unblock_drain().await?;
    let left = pods_left_at_reboot(&case, "addon").await?;
    assert!(left == back, "they were evicted once and no more: {left:?}, {back:?}");
    case.updated().await?;
    Ok(())
}

async fn drain_completes_when_other_client_deletes_blocked_pods(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(2).await?;
    // Deletion of pods past their budget by another client is not the operator's.
    case.kubectl_in_namespace(&["delete", "pods", "-l", "app=web,pod-template-hash"]).await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty());
    Ok(())
}

async fn drain_evicts_more_than_500_pods(case: Case) -> anyhow::Result<()> {
    const PODS: usize = 520;
    case.set_drain_policy("evict-bare").await?;
    let pods: Vec<Value> = (0..PODS)
        .map(|number| {
            let mut pod = case.template("many", &json!({"spec": {"nodeName": case.node}}));
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!(format!("many-{number}"));
            pod["metadata"]["namespace"] = json!(case.namespace);
            pod
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), list.to_string())?;
    case.kubectl(&["create", "-f", &file.path().to_string_lossy()]).await?;
    case.until("all run", |state| state.pods_on_node("many").iter().filter(|pod| pod.ready).count() == PODS).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_of("many").is_empty());
    Ok(())
}

async fn system_critical_pods_are_evicted_last(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("dns", 1, json!({"spec": {"priorityClassName": "system-cluster-critical"}})).await?;
    let state = case.start_blocked_drain(1).await?;
    assert!(state.pods_on_node("dns").len() == 1 && !state.pods_on_node("dns")[0].terminating);
    case.unblock_drain().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("dns").is_empty());
    Ok(())
}

/// Pods with a grace period of so many seconds that do not end.
fn never_stopping_pods(seconds: u32) -> Value {
    json!({
        "metadata": {"annotations": {"sim/stop-after": "never"}},
        "spec": {"terminationGracePeriodSeconds": seconds},
    })
}

/// Deletes the pods of that name that are on the node and do not end, as an administrator may.
async fn force_delete_pods(case: &Case, name: &str) -> anyhow::Result<()> {
    for pod in case.state()?.pods_on_node(name) {
        case.kubectl_in_namespace(&["delete", "pod", &pod.name, "--force", "--grace-period=0", "--ignore-not-found"])
            .await?;
    }
    Ok(())
}

/// The grace period of the case's pod at its eviction.
async fn grace_period_at_eviction(case: &Case) -> anyhow::Result<String> {
    case.deployment("web", 1, never_stopping_pods(600)).await?;
    let pod = case.state()?.pods_on_node("web")[0].name.clone();
    case.start_update().await?;
    case.until("it was evicted", |state| state.pods_on_node("web").iter().any(|pod| pod.terminating)).await?;
    let seconds = case
        .kubectl_in_namespace(&["get", "pod", &pod, "-o", "jsonpath={.metadata.deletionGracePeriodSeconds}"])
        .await?;
    force_delete_pods(case, "web").await?;
    case.updated().await?;
    Ok(seconds)
}

async fn eviction_keeps_grace_period_of_pod(case: Case) -> anyhow::Result<()> {
    assert_eq!(grace_period_at_eviction(&case).await?, "600");
    Ok(())
}

async fn policy_overrides_grace_period_of_pods(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("grace").await?;
    assert_eq!(grace_period_at_eviction(&case).await?, "1");
    Ok(())
}

async fn pod_with_grace_period_beyond_timeout_is_evicted_first_and_alone(case: Case) -> anyhow::Result<()> {
    let week = json!({
        "metadata": {"annotations": {"sim/stop-after": "2s"}},
        "spec": {"terminationGracePeriodSeconds": 604_800},
    });
    case.deployment_on_node("api", 2, json!({})).await?;
    case.deployment("db", 1, week).await?;
    case.start_update().await?;
    let state = case
        .until("the pod terminates", |state| {
            state.step() == Some(Step::Draining) && state.pods_on_node("db").iter().all(|pod| pod.terminating)
        })
        .await?;
    let api = state.pods_on_node("api");
    assert!(state.pods_on_node("db").is_empty() || (api.len() == 2 && api.iter().all(|pod| !pod.terminating)));
    case.updated().await?;
    Ok(())
}
