//! Whatever ends an attempt, and the operator, nothing is left in a group; and a host that does not come back is left to it.

use anyhow::{Context as _, ensure};
use integ::host::{BootFault, Fault as HostFault};
use integ::oracle::{Expectations, Field};
use models::names::{AWS, AWS_HOOK, HOLD_ANNOTATION, HOOK_ANSWER_PREFIX, SYSTEM_NAMESPACE};
use nix::sys::signal::Signal;
use serde_json::json;

use super::moto::Aws;
use super::proxy::Fault;
use super::{OWN, STANDBY, SUSPEND, install, mode, processes, recorded, restored};
use crate::commands::{output_text, plugin};
use crate::interfere::{poll, signal};
use crate::support::{EVENTS_OF_NODES, ScenarioContext, nodes, run, run_expecting, silent_fleet, until_event};

/// Lets one attempt begin, waits until its instance is in Standby and another hook keeps it there, and returns the node.
async fn prepared(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<String> {
    let mut policy = mode(STANDBY);
    policy["hooks"] = json!([{"name": "storage", "before": {"timeout": "10m"}}]);
    policy["enabled"] = json!(true);
    ctx.policy(&policy).await?;
    let annotation = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}"));
    let ready = |node: &integ::oracle::Node| {
        node.hook_request().is_some() && node.fields.get(&annotation) == node.hook_request()
    };
    let world = ctx.until("a node is prepared", |world| world.nodes.values().any(|node| ready(node))).await?;
    let node = world.nodes.iter().find(|(_, node)| ready(node)).map(|(name, _)| name.clone());
    // No other attempt begins when this one ends.
    ctx.policy(&json!({"enabled": false})).await?;
    let group = aws.group().await?;
    let kept = group.instances.values().filter(|state| state.starts_with("Standby")).count();
    ensure!(kept == 1 && recorded(ctx).await?.len() == 1, "{group:?}");
    node.context("just seen")
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_is_left_on_every_exit() -> anyhow::Result<()> {
    // The policy of the first attempt enables updates.
    run(silent_fleet(2), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        install(ctx, &mut aws).await?;
        ctx.release();
        let hold = |node: &str| ["annotate".to_owned(), "node".into(), node.into(), format!("{HOLD_ANNOTATION}=test")];

        // Held, while the policy no longer has the mode that was entered.
        let node = prepared(ctx, &aws).await?;
        ctx.policy(&json!({"autoscaling": null})).await?;
        ctx.kubectl(&hold(&node).each_ref().map(String::as_str)).await?;
        restored(ctx, &aws, OWN).await?;
        ctx.kubectl(&["annotate", "node", &node, &format!("{HOLD_ANNOTATION}-")]).await?;

        // Failed: another hook refuses. The mode is another one by then.
        let node = prepared(ctx, &aws).await?;
        ctx.policy(&mode(SUSPEND)).await?;
        let request = ctx.bed.recorder.now()?.nodes[&node].hook_request().cloned().unwrap_or_default();
        let refusal = format!("{HOOK_ANSWER_PREFIX}storage={request} Refused: no");
        ctx.kubectl(&["annotate", "node", &node, "--overwrite", &refusal]).await?;
        restored(ctx, &aws, OWN).await?;

        // The Node is deleted, and with it the request, while the program does not run.
        let node = prepared(ctx, &aws).await?;
        signal(&processes(ctx), Signal::SIGKILL);
        ctx.kubectl(&["delete", "node", &node]).await?;
        restored(ctx, &aws, OWN).await?;
        assert_eq!(aws.terminated(), [""; 0]);
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the plugin"]
async fn uninstallation_awaits_that_all_is_taken_back() -> anyhow::Result<()> {
    let any = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(silent_fleet(1), any, async |ctx| {
        let mut aws = Aws::start(ctx, 0, 1).await?;
        install(ctx, &mut aws).await?;
        ctx.release();
        let node = prepared(ctx, &aws).await?;
        let found = output_text(&plugin(ctx, &["doctor"]).await?);
        assert!(!found.contains("AwsHook") && !found.contains("AwsNotTakenBack"), "{found}");
        // The attempt ends while the program does not run.
        let scale = ["-n", SYSTEM_NAMESPACE, "scale", "deployment", AWS];
        ctx.kubectl(&[&scale[..], &["--replicas=0"]].concat()).await?;
        ctx.kubectl(&["annotate", "node", &node, &format!("{HOLD_ANNOTATION}=test")]).await?;
        let mut last = String::new();
        let found = poll("doctor names the program and its record", async || {
            last = output_text(&plugin(ctx, &["doctor"]).await?);
            Ok(["AwsHookNotReady", "AwsNotTakenBack"].iter().all(|reason| last.contains(reason)).then_some(()))
        })
        .await;
        found.with_context(|| last)?;
        // The uninstallation waits while this fails.
        aws.fail("ExitStandby", Fault::Throttled, 2);
        ctx.kubectl(&[&scale[..], &["--replicas=1"]].concat()).await?;
        let done = plugin(ctx, &["uninstall", "--yes"]).await?;
        let text = output_text(&done);
        assert!(done.status.success() && text.contains("brupop-aws has not taken back"), "{text}");
        let group = aws.group().await?;
        assert!(
            group.desired == "1" && group.instances.values().all(|state| state == "InService Healthy"),
            "{group:?}"
        );
        let left = ctx.kubectl(&["get", "clusterrole,clusterrolebinding", "-o", "name"]).await?;
        assert!(!left.contains(AWS), "{left}");
        Ok(())
    })
    .await?;
    Ok(())
}

/// The instance is replaced, although its request stays.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the decisions"]
async fn lost_host_leaves_standby_and_is_replaced() -> anyhow::Result<()> {
    let kept = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(2), kept, async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        let instances = install(ctx, &mut aws).await?;
        for member in &ctx.bed.members {
            member.host.script(HostFault::boot(BootFault::NeverComesBack));
        }
        let mut policy = mode(STANDBY);
        policy["deadlines"] = json!({"reboot": "5s", "return": "1m"});
        ctx.policy(&policy).await?;
        ctx.release();
        poll("an instance is replaced", async || Ok((!aws.terminated().is_empty()).then_some(()))).await?;
        let replaced = aws.terminated();
        let lost = instances.iter().find(|(_, id)| replaced == [id.as_str()]).map(|(node, _)| node);
        let lost = lost.with_context(|| format!("{replaced:?} of {instances:?}"))?;
        let world = ctx.bed.recorder.now()?;
        let prepares = world.nodes[lost].hook_request().is_some_and(|request| request.starts_with("BeforeDrain/"));
        assert!(prepares && !world.nodes[lost].ready, "its request stays");
        until_event(ctx, EVENTS_OF_NODES, "AutoScalingRestored", &["has not returned from its reboot"]).await?;
        // As the controller of the cloud does.
        ctx.policy(&json!({"enabled": false})).await?;
        ctx.kubectl(&["delete", "node", lost]).await?;
        restored(ctx, &aws, OWN).await?;
        assert_eq!(aws.terminated(), replaced, "no other");
        Ok(())
    })
    .await?;
    Ok(())
}

/// An instance that stays unhealthy after its update: it is named with the cause, and replaced.
async fn is_named_and_replaced(fault: Fault, why: &str) -> anyhow::Result<()> {
    let kept = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(1), kept, async |ctx| {
        let mut aws = Aws::start(ctx, 0, 1).await?;
        let instances = install(ctx, &mut aws).await?;
        aws.fail("SetInstanceHealth", fault, usize::MAX);
        ctx.policy(&mode(SUSPEND)).await?;
        ctx.release();
        ctx.updated().await?;
        let words = [&*instances["node-1"], "its group may replace it", why];
        until_event(ctx, EVENTS_OF_NODES, "AutoScalingUnhealthy", &words).await?;
        restored(ctx, &aws, OWN).await?;
        poll("it is replaced", async || Ok((aws.terminated() == [&*instances["node-1"]]).then_some(()))).await
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the decisions"]
async fn instance_that_iam_denies_to_set_healthy_is_named_and_replaced() -> anyhow::Result<()> {
    is_named_and_replaced(Fault::Denied, "IAM denies autoscaling:SetInstanceHealth").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the decisions"]
async fn instance_that_stays_unhealthy_is_named_and_replaced() -> anyhow::Result<()> {
    is_named_and_replaced(Fault::Ignored, "it was set healthy 3 times").await
}
