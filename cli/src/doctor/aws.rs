//! The hook for EC2 Auto Scaling groups: it has to run where the policy awaits it, and to take back what it did.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use models::names;
use serde_json::Value;

use super::finding::Finding;
use crate::call::get;
use crate::cluster::Cluster;
use crate::install::rollout;
use crate::uninstall::aws_record;

/// The command that installs the hook for EC2 Auto Scaling groups.
pub(super) const APPLY_AWS: &str =
    "kubectl apply --server-side -f aws.yaml  # with your image in it, or, with the chart, aws.enabled: docs/aws.md";

#[derive(Clone, Debug, Default)]
pub(super) struct Hook {
    /// Number of its ready pods; `None` if it is not installed.
    pub(super) ready: Option<i32>,
    /// The reason why its pods do not run, as its Deployment has it.
    pub(super) waits: Option<String>,
    /// The record, by instance.
    pub(super) record: BTreeMap<String, String>,
}

pub(super) async fn read(client: &Client, namespace: &str) -> anyhow::Result<Hook> {
    let deployment: Option<Deployment> = get(client, namespace, names::AWS).await?;
    let waits = deployment.as_ref().and_then(|found| rollout(found).reason());
    let ready = deployment.map(|found| found.status.and_then(|status| status.ready_replicas).unwrap_or(0));
    Ok(Hook { ready, waits, record: aws_record(client, namespace).await? })
}

pub(super) fn check(hook: &Hook, cluster: &Cluster, found: &mut Vec<Finding>) {
    let namespace = &cluster.namespace;
    let deployment = || format!("deployment/{namespace}/{}", names::AWS);
    let pods = || format!("kubectl describe pods -n {namespace} -l {}={}", names::COMPONENT_LABEL, names::AWS);
    let awaited = cluster.policy().hooks.iter().any(|hook| hook.name == names::AWS_HOOK);
    if awaited && hook.ready.is_none() {
        let message = "the policy awaits it before each drain, and it is not installed: no node is updated";
        found.push(Finding::error("AwsHookMissing", message).of(deployment()).next([APPLY_AWS.to_owned()]));
    }
    if (awaited || !hook.record.is_empty()) && hook.ready == Some(0) {
        let waiting = if awaited { "no node is updated, and " } else { "" };
        let reason = hook.waits.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let message = format!("it has no ready pod{reason}: {waiting}nothing is taken back in Auto Scaling groups");
        found.push(Finding::error("AwsHookNotReady", message).of(deployment()).next([pods()]));
    }
    let under_way =
        |node: &str| cluster.shadows.get(node).is_some_and(|shadow| shadow.status.controller.progress.is_some());
    let read = |text: &String| serde_json::from_str::<Value>(text).unwrap_or_default();
    let stays = |(_, text): &(&String, &String)| !read(text)["node"].as_str().is_some_and(under_way);
    let left: Vec<(&String, &String)> = hook.record.iter().filter(stays).collect();
    if let Some((instance, text)) = left.first() {
        let more = match left.len() {
            1 => String::new(),
            count => format!(" (the first of {count})"),
        };
        let message =
            format!("no update of instance {instance}{more} is under way, and this is not taken back: {text}");
        let finding = Finding::warning("AwsNotTakenBack", message).of(format!("configmap/{namespace}/{}", names::AWS));
        let logs = hook.ready.map(|_| format!("kubectl logs -n {namespace} deployment/{}", names::AWS));
        let state = format!("aws autoscaling describe-auto-scaling-instances --instance-ids {instance}");
        found.push(finding.next(logs.into_iter().chain([state])));
    }
}
