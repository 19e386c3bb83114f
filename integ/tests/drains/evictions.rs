//! Responses of the eviction endpoint, and pods that do not go the usual way.

use anyhow::Context as _;
use models::names::HOLD_ANNOTATION;
use models::shadow::{DRAINED, Step};
use serde_json::{Value, json};

use crate::deadlines::{events, never_stopping_pods};
use crate::fleet::Case;
use crate::state::CaseState;
use crate::webhook::Webhook;

crate::cases![
    eviction_is_retried_while_webhook_is_unreachable_and_ends_attempt_with_its_message_once_it_denies,
    hanging_evictions_do_not_delay_other_pods_or_hold,
    recreated_pods_that_tolerate_cordon_are_not_evicted_again_before_reboot,
    policy_overrides_grace_period_of_pods,
];

/// Waits until admission denies evictions of a pod: rules take effect shortly after they are created.
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

async fn eviction_is_retried_while_webhook_is_unreachable_and_ends_attempt_with_its_message_once_it_denies(
    case: Case,
) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    let name = format!("guard-of-{}", case.namespace);
    case.apply(webhook(&case, &name, &json!({"url": "https://127.0.0.1:1/evictions"}))).await?;
    let pod = case.state()?.pods_on_node("web")[0].name.clone();
    until_admission_denies(&case, &pod, "failed calling webhook").await?;
    case.start_update().await?;
    let state = case.blocked("DrainBlocked", &[&pod, "failed calling webhook"]).await?;
    let blocker = state.drain().and_then(|drain| drain.blockers.first()).context("named beside the condition")?;
    assert!(blocker.pod.ends_with(&pod) && blocker.message.contains("failed calling webhook"), "{blocker:?}");
    assert_eq!((state.step(), state.pods_on_node("web").len()), (Some(Step::Draining), 1));

    let server = Webhook::refusing("ask the batch team").await?;
    case.apply(webhook(&case, &name, &json!({"url": server.url, "caBundle": server.ca_bundle}))).await?;
    let message = case.failed("DrainRefused").await?;
    assert!(message.contains(&pod) && message.contains("ask the batch team"), "{message}");
    assert!(!case.state()?.cordoned() && case.state()?.pods_on_node("web").len() == 1);
    case.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    case.retry().await?;
    case.updated().await?;
    assert!(!events(&case, "DrainBlocked").await?.is_empty());
    Ok(())
}

async fn hanging_evictions_do_not_delay_other_pods_or_hold(case: Case) -> anyhow::Result<()> {
    // One after the other they would take longer than any timeout here.
    const PODS: usize = 12;
    case.deployment_on_node("web", PODS, json!({})).await?;
    case.deployment("zoo", 1, json!({})).await?;
    let server = Webhook::hanging().await?;
    let name = format!("hangs-in-{}", case.namespace);
    let mut config = webhook(&case, &name, &json!({"url": server.url, "caBundle": server.ca_bundle}));
    config["webhooks"][0]["timeoutSeconds"] = json!(30);
    config["webhooks"][0]["matchConditions"] = json!([{"name": "web", "expression": "request.name.startsWith('web')"}]);
    case.apply(config).await?;
    // Rules that are created later are not in force earlier.
    let refusing = format!("refuses-in-{}", case.namespace);
    let mut second = webhook(&case, &refusing, &json!({"url": "https://127.0.0.1:1/evictions"}));
    second["webhooks"][0]["matchConditions"] = json!([{"name": "zoo", "expression": "request.name.startsWith('zoo')"}]);
    case.apply(second).await?;
    let pod = case.state()?.pods_on_node("zoo")[0].name.clone();
    until_admission_denies(&case, &pod, "failed calling webhook").await?;
    case.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await?;

    case.start_update().await?;
    case.until("the pod that nothing holds back is gone", |state| state.pods_on_node("zoo").is_empty()).await?;
    case.blocked("DrainBlocked", &["/web-"]).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    let state = case.until("the attempt has ended", |state| state.step().is_none()).await?;
    assert_eq!(state.pods_on_node("web").iter().filter(|pod| !pod.terminating).count(), PODS);
    case.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    case.updated().await?;
    Ok(())
}

/// Pods that run on the node under test alone, on which they also run when it is cordoned.
fn tolerating_pods(case: &Case) -> Value {
    let on_node = json!({"kubernetes.io/hostname": case.node});
    json!({"spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": on_node}})
}

async fn recreated_pods_that_tolerate_cordon_are_not_evicted_again_before_reboot(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("addon", 2, tolerating_pods(&case)).await?;
    case.apply(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": case.namespace},
        "spec": {
            "serviceName": "db", "replicas": 1,
            "selector": {"matchLabels": {"app": "db"}},
            "template": case.template("db", &tolerating_pods(&case)),
        },
    }))
    .await?;
    case.until("its pod runs", |state| state.pods_on_node("db").iter().any(|pod| pod.ready)).await?;
    let before = case.state()?.uids_on_node("addon");
    // Another one that may not be evicted, so that the drain is not over before they are back.
    case.start_blocked_drain(1).await?;
    let state = case
        .until("they are back", |state| {
            let new = |pod: &&integ::oracle::Pod| pod.ready && !before.contains(&pod.uid);
            state.pods_on_node("addon").into_iter().filter(new).count() == 2
                && state.pods_on_node("addon").len() == 2
                && state.pods_on_node("db").iter().any(|pod| pod.ready)
        })
        .await?;
    let back = state.uids_on_node("addon");
    case.unblock_drain().await?;
    let state = case.drained().await?;
    let drained = state.condition(DRAINED).context("it is drained")?;
    let named = format!("{}/addon-", case.namespace);
    assert!(drained.reason == "PodsLeft" && drained.message.contains(&named), "{drained:?}");
    assert_eq!(state.uids_on_node("addon"), back, "they were evicted once and no more");
    case.updated().await?;
    Ok(())
}

/// The grace period of a pod at its eviction. Its node has the policy `grace` then, and the pod is gone, as an administrator may have it.
async fn grace_period_at_eviction(case: &Case, app: &str) -> anyhow::Result<String> {
    let evicted = |state: &CaseState<'_>| state.pods_on_node(app).iter().any(|pod| pod.terminating);
    let pod = case.until("it is evicted", evicted).await?.pods_on_node(app)[0].name.clone();
    let seconds = case
        .kubectl_in_namespace(&["get", "pod", &pod, "-o", "jsonpath={.metadata.deletionGracePeriodSeconds}"])
        .await?;
    case.set_drain_policy("grace").await?;
    case.kubectl_in_namespace(&["delete", "pod", &pod, "--force", "--grace-period=0", "--ignore-not-found"]).await?;
    Ok(seconds)
}

async fn policy_overrides_grace_period_of_pods(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("web", 1, never_stopping_pods(600)).await?;
    // System-critical pods are evicted last, when the policy is another one.
    let mut last = never_stopping_pods(600);
    last["spec"]["priorityClassName"] = json!("system-cluster-critical");
    case.deployment_on_node("dns", 1, last).await?;
    case.allow_spare_nodes().await?;
    case.start_update().await?;
    assert_eq!(grace_period_at_eviction(&case, "web").await?, "600", "the pod's own");
    assert_eq!(grace_period_at_eviction(&case, "dns").await?, "1");
    case.updated().await?;
    Ok(())
}
