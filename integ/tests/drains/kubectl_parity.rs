//! Agreement of `kubectl drain --dry-run=server` and the operator's filter on the same pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use models::operator::PodsAtRisk;
use planner::drain::sort;
use planner::rules::Rules;
use planner::view::PodFacts;
use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![drain_filter_matches_kubectl_drain_for_every_policy];

/// The result of one drain: the pods to evict, and those that block it.
#[derive(Debug, Default, PartialEq, Eq)]
struct DrainDecision {
    evicted: BTreeSet<String>,
    refused: BTreeSet<String>,
}

/// The result of kubectl. It names the pods to evict, or else those that it refuses.
async fn kubectl_decision(case: &Case, rules: Rules) -> anyhow::Result<DrainDecision> {
    let mut arguments = vec!["drain", &case.node, "--dry-run=server", "--ignore-daemonsets"];
    if rules.bare_pods == PodsAtRisk::Evict {
        arguments.push("--force");
    }
    if rules.empty_dir == PodsAtRisk::Evict {
        arguments.push("--delete-emptydir-data");
    }
    let prefix = format!("{}/", case.namespace);
    let of_case = |text: &str| -> BTreeSet<String> {
        let names = text.split([' ', ',', '\n', ':', '[', ']']).filter_map(|word| word.strip_prefix(&prefix));
        names.map(str::to_owned).collect()
    };
    match case.kubectl(&arguments).await {
        Ok(message) => {
            let evicted = message.lines().filter(|line| line.starts_with("evicting pod"));
            Ok(DrainDecision { evicted: evicted.flat_map(of_case).collect(), refused: BTreeSet::new() })
        }
        Err(error) => {
            let message = format!("{error:#}");
            let refused = message.split("cannot delete").skip(1).flat_map(of_case).collect();
            Ok(DrainDecision { evicted: BTreeSet::new(), refused })
        }
    }
}

/// The result of the filter, except where it differs from kubectl on purpose: pods that have ended stay.
async fn filter_decision(case: &Case, rules: Rules) -> anyhow::Result<DrainDecision> {
    let list: Value = serde_json::from_str(&case.kubectl_in_namespace(&["get", "pods", "-o", "json"]).await?)?;
    let pods: Vec<Pod> = serde_json::from_value(list["items"].clone())?;
    let facts: Vec<PodFacts> = pods.iter().map(PodFacts::of).filter(|pod| pod.node == case.node).collect();
    let sorted = sort(&facts, rules, None);
    let refused: BTreeSet<String> = sorted.refused.iter().map(|(pod, _)| pod.name.clone()).collect();
    if !refused.is_empty() {
        return Ok(DrainDecision { evicted: BTreeSet::new(), refused });
    }
    let evicted = sorted.evictable.iter().chain(&sorted.leaving).map(|pod| pod.name.clone());
    let ended = facts.iter().filter(|pod| pod.finished && pod.daemon_set.is_none() && !pod.mirror);
    Ok(DrainDecision { evicted: evicted.chain(ended.map(|pod| pod.name.clone())).collect(), refused })
}

async fn assert_decisions_match(case: &Case, description: &str) -> anyhow::Result<()> {
    for bare_pods in [PodsAtRisk::Refuse, PodsAtRisk::Evict] {
        for empty_dir in [PodsAtRisk::Refuse, PodsAtRisk::Evict] {
            let rules = Rules { bare_pods, empty_dir, ..Rules::default() };
            assert_eq!(
                filter_decision(case, rules).await?,
                kubectl_decision(case, rules).await?,
                "{description}, under {rules:?}"
            );
        }
    }
    Ok(())
}

async fn drain_filter_matches_kubectl_drain_for_every_policy(case: Case) -> anyhow::Result<()> {
    let data = json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}});
    case.apply(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "logs", "namespace": case.namespace},
        "spec": {"selector": {"matchLabels": {"app": "logs"}}, "template": case.template("logs", &data)},
    }))
    .await?;
    case.deployment_on_node("web", 2, json!({})).await?;
    assert_decisions_match(&case, "a Deployment's and a DaemonSet's pods").await?;
    case.bare_pod("static", &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "digest"}}})).await?;
    assert_decisions_match(&case, "a mirror pod besides").await?;
    case.deployment_on_node("cache", 1, data.clone()).await?;
    assert_decisions_match(&case, "an emptyDir besides").await?;
    let owner = json!([{
        "apiVersion": "apps.example.com/v1", "kind": "DaemonSet", "name": "better", "controller": true,
        "uid": "6ad5a9a2-5d0d-4c0c-8a4c-3f3cf7f3c222",
    }]);
    case.bare_pod("better", &json!({"metadata": {"ownerReferences": owner}})).await?;
    assert_decisions_match(&case, "a pod of something else that is called a DaemonSet besides").await?;
    let mut ended = data;
    ended["spec"]["restartPolicy"] = json!("Never");
    case.bare_pod("job", &ended).await?;
    let patch = r#"{"status": {"phase": "Succeeded"}}"#;
    case.kubectl_in_namespace(&["patch", "pod", "job", "--subresource=status", "--type=merge", "-p", patch]).await?;
    case.until("the pod has ended", |state| state.pods_of("job").iter().all(|pod| pod.finished)).await?;
    assert_decisions_match(&case, "a bare pod with an emptyDir that has ended besides").await?;
    case.bare_pod("alone", &json!({})).await?;
    assert_decisions_match(&case, "a bare pod besides").await?;
    Ok(())
}
