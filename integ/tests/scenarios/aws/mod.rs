//! EC2 Auto Scaling groups: a reboot that would end in a termination does not, in both modes, and whatever ends the attempt,
//! nothing is left. The real program, installed from its manifest, calls a server that speaks the real API.

mod moto;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::bed::{Programs, workload};
use integ::kubelet::PodProcess;
use integ::oracle::{Expectations, Field, service_account, settled_audit};
use integ::rights;
use models::names::{AWS, AWS_HOOK, HOLD_ANNOTATION, HOOK_ANSWER_PREFIX, SYSTEM_NAMESPACE};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::moto::{Aws, Fault};
use crate::interfere::{poll, signal};
use crate::plugin::{output_text, plugin};
use crate::support::{EVENTS_OF_NODES, ScenarioContext, last_reason, nodes, record, run, run_expecting, until_event};

const STANDBY: &str = "Standby";
const SUSPEND: &str = "SuspendReplaceUnhealthy";

/// A policy with this mode.
fn mode(mode: &str) -> Value {
    json!({"autoscaling": {"aws": {"mode": mode}}, "failurePolicy": {"backOff": "1s", "maxFailures": 64}})
}

/// The objects of the manifest, with the server in the place of AWS.
fn objects(aws: &Aws) -> anyhow::Result<Vec<Value>> {
    ensure!(Programs::find()?.aws.is_file(), "the program brupop-aws is missing: run `make build` first");
    let mut objects = deploy::everything()?;
    objects.retain(|object| object["metadata"]["name"] == AWS);
    let env = [
        ("AWS_ENDPOINT_URL", aws.endpoint.as_str()),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        // Of the machine that runs the tests, nothing is asked.
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("BRUPOP_AWS_SETTLE", "2s"),
    ];
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let workload = objects.iter_mut().find(|object| object["kind"] == "Deployment").context("no Deployment")?;
    workload["spec"]["template"]["spec"]["containers"][0]["env"] = json!(env);
    Ok(objects)
}

/// Installs operator and hook, gives the nodes their instances, and starts the health check. Returns the instances.
async fn install(ctx: &ScenarioContext, aws: &mut Aws) -> anyhow::Result<BTreeMap<String, String>> {
    ctx.install().await?;
    let nodes = aws.provide(ctx).await?;
    workload::apply(&ctx.bed.client, objects(aws)?).await?;
    aws.check_health(ctx, &nodes);
    Ok(nodes)
}

/// The record of the program.
async fn recorded(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let found =
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "configmap", AWS, "--ignore-not-found", "-o", "json"]).await?;
    let map: Value = if found.trim().is_empty() { Value::Null } else { serde_json::from_str(&found)? };
    Ok(map["data"].as_object().map(|data| data.keys().cloned().collect()).unwrap_or_default())
}

/// Waits until the group is as it was at first, nothing is recorded, and no answer is left.
async fn restored(ctx: &ScenarioContext, aws: &Aws, suspended: &[&str]) -> anyhow::Result<()> {
    let annotation = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}"));
    let wanted: BTreeSet<String> = suspended.iter().map(|process| (*process).to_owned()).collect();
    let mut last = String::new();
    let result = poll("everything is taken back", async || {
        let group = aws.group().await?;
        let world = ctx.bed.recorder.now()?;
        let answers = world.nodes.values().filter(|node| node.fields.contains_key(&annotation)).count();
        let record = recorded(ctx).await?;
        last = format!("{group:?}, {answers} answers, record {record:?}");
        let whole = group.desired == group.instances.len().to_string();
        let healthy = group.instances.values().all(|state| state == "InService Healthy");
        Ok((whole && healthy && group.suspended == wanted && answers == 0 && record.is_empty()).then_some(()))
    })
    .await;
    result.with_context(|| format!("{last}; calls: {:?}", aws.calls()))
}

/// Processes that the owner of the group has suspended.
const OWN: &[&str] = &["AZRebalance"];

fn processes(ctx: &ScenarioContext) -> Vec<PodProcess> {
    ctx.bed.processes_of(Component::Aws)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_hook_a_reboot_ends_in_a_termination() -> anyhow::Result<()> {
    run(nodes(1), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 1).await?;
        ctx.install().await?;
        let nodes = aws.provide(ctx).await?;
        aws.check_health(ctx, &nodes);
        ctx.release();
        ctx.updated().await?;
        assert_eq!(aws.terminated(), [nodes["node-1"].as_str()], "so the other scenarios would see one");
        Ok(())
    })
    .await?;
    Ok(())
}

/// The actions of a statement of the documented IAM policy.
fn documented(statement: usize) -> anyhow::Result<BTreeSet<String>> {
    let page = include_str!("../../../../docs/aws.md");
    let block = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).context("no policy")?;
    let policy: Value = serde_json::from_str(block)?;
    let actions: Vec<String> = serde_json::from_value(policy["Statement"][statement]["Action"].clone())?;
    Ok(actions.iter().map(|action| action.trim_start_matches("autoscaling:").to_owned()).collect())
}

/// A rollout over two nodes of a group and one without, which needs this statement of the policy and the first.
async fn rolls_out(with: &str, statement: usize, expected: &[&str]) -> anyhow::Result<()> {
    let ending = run(nodes(3), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        install(ctx, &mut aws).await?;
        ctx.policy(&mode(with)).await?;
        ctx.release();
        ctx.updated().await?;
        restored(ctx, &aws, OWN).await?;
        assert_eq!(aws.terminated(), [""; 0]);
        let calls = aws.calls();
        for action in expected {
            assert_eq!(calls.iter().filter(|call| call.as_str() == *action).count(), 2, "{action}: {calls:?}");
        }
        let documented: BTreeSet<String> = documented(0)?.union(&documented(statement)?).cloned().collect();
        assert_eq!(calls.into_iter().collect::<BTreeSet<_>>(), documented);
        until_event(ctx, EVENTS_OF_NODES, "AutoScalingPrepared", &["is in no Auto Scaling group"]).await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_in_standby_terminates_nothing() -> anyhow::Result<()> {
    rolls_out(STANDBY, 1, &["EnterStandby", "ExitStandby"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_with_suspended_process_terminates_nothing() -> anyhow::Result<()> {
    // The reboot marks the instance unhealthy, and it would be replaced as soon as the process is resumed.
    rolls_out(SUSPEND, 2, &["SuspendProcesses", "SetInstanceHealth", "ResumeProcesses"]).await
}

/// Kills the program while a call is carried out, on the way in and on the way out.
async fn survives_kills(with: &str, into: &'static str, out: &'static str) -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        install(ctx, &mut aws).await?;
        ctx.policy(&mode(with)).await?;
        aws.fail(into, Fault::Unanswered, 1);
        aws.fail(out, Fault::Unanswered, 1);
        ctx.release();
        for action in [into, out] {
            aws.called(action, 1).await?;
            signal(&processes(ctx), Signal::SIGKILL);
        }
        ctx.updated().await?;
        restored(ctx, &aws, OWN).await?;
        assert_eq!(aws.terminated(), [""; 0]);
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_program_leaves_no_instance_in_standby() -> anyhow::Result<()> {
    survives_kills(STANDBY, "EnterStandby", "ExitStandby").await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_program_leaves_no_process_suspended() -> anyhow::Result<()> {
    survives_kills(SUSPEND, "SuspendProcesses", "ResumeProcesses").await
}

/// Lets one attempt begin, waits until its node is prepared and another hook keeps it there, and returns the node.
async fn prepared(ctx: &ScenarioContext, aws: &Aws, with: &str) -> anyhow::Result<String> {
    let mut policy = mode(with);
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
    let kept = match with {
        STANDBY => group.instances.values().filter(|state| state.starts_with("Standby")).count() == 1,
        _ => group.suspended.contains("ReplaceUnhealthy"),
    };
    ensure!(kept && recorded(ctx).await?.len() == 1, "{group:?}");
    node.context("just seen")
}

/// Ends attempts in every way before the reboot.
async fn is_left_on_every_exit(with: &str) -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        install(ctx, &mut aws).await?;
        ctx.release();
        let hold = |node: &str| ["annotate".to_owned(), "node".into(), node.into(), format!("{HOLD_ANNOTATION}=test")];

        // Held, while the policy no longer has the mode that was entered.
        let node = prepared(ctx, &aws, with).await?;
        ctx.policy(&json!({"autoscaling": null})).await?;
        ctx.kubectl(&hold(&node).each_ref().map(String::as_str)).await?;
        restored(ctx, &aws, OWN).await?;
        ctx.kubectl(&["annotate", "node", &node, &format!("{HOLD_ANNOTATION}-")]).await?;

        // Failed: another hook refuses. The mode is another one by then.
        let node = prepared(ctx, &aws, with).await?;
        ctx.policy(&mode(if with == STANDBY { SUSPEND } else { STANDBY })).await?;
        let request = ctx.bed.recorder.now()?.nodes[&node].hook_request().cloned().unwrap_or_default();
        let refusal = format!("{HOOK_ANSWER_PREFIX}storage={request} Refused: no");
        ctx.kubectl(&["annotate", "node", &node, "--overwrite", &refusal]).await?;
        restored(ctx, &aws, OWN).await?;

        // The Node is deleted, and with it the request, while the program does not run.
        let node = prepared(ctx, &aws, with).await?;
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
async fn standby_is_left_on_every_exit() -> anyhow::Result<()> {
    is_left_on_every_exit(STANDBY).await
}

#[tokio::test(flavor = "multi_thread")]
async fn process_is_resumed_on_every_exit() -> anyhow::Result<()> {
    is_left_on_every_exit(SUSPEND).await
}

#[tokio::test(flavor = "multi_thread")]
async fn uninstallation_awaits_that_all_is_taken_back() -> anyhow::Result<()> {
    let any = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(1), any, async |ctx| {
        let mut aws = Aws::start(ctx, 0, 1).await?;
        install(ctx, &mut aws).await?;
        ctx.release();
        let node = prepared(ctx, &aws, STANDBY).await?;
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

#[tokio::test(flavor = "multi_thread")]
async fn minimum_size_and_own_suspended_processes_are_respected() -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        let mut aws = Aws::start(ctx, 2, 2).await?;
        install(ctx, &mut aws).await?;
        ctx.policy(&mode(STANDBY)).await?;
        ctx.release();
        let world = ctx
            .until("an attempt is refused", |world| {
                ["node-1", "node-2"].iter().any(|node| last_reason(world, node).as_deref() == Some("HookRefused"))
            })
            .await?;
        let message = ["node-1", "node-2"].iter().find_map(|node| record(&world, node).last).map(|last| last.message);
        let message = message.unwrap_or_default();
        assert!(message.contains("group web") && message.contains("lower the minimum"), "{message}");
        aws.processes("Suspend", "ReplaceUnhealthy").await?;
        ctx.policy(&mode(SUSPEND)).await?;
        ctx.updated().await?;
        let calls = aws.calls();
        let changes = |call: &String| !call.starts_with("Describe");
        assert!(!calls.iter().any(changes), "nothing of the group was changed: {calls:?}");
        let suspended = aws.group().await?.suspended;
        assert_eq!(suspended.into_iter().collect::<Vec<_>>(), ["AZRebalance", "ReplaceUnhealthy"]);
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_and_limited_calls_are_named() -> anyhow::Result<()> {
    run(nodes(1), async |ctx| {
        let mut aws = Aws::start(ctx, 0, 1).await?;
        install(ctx, &mut aws).await?;
        for action in ["DescribeAutoScalingInstances", "EnterStandby"] {
            aws.fail(action, Fault::Denied, 1);
        }
        ctx.policy(&mode(STANDBY)).await?;
        ctx.release();
        for action in ["DescribeAutoScalingInstances", "EnterStandby"] {
            let named = format!("IAM denies autoscaling:{action}");
            let refused = |message: &str| message.contains(&named) && message.contains("docs/aws.md");
            ctx.until(&format!("an attempt is refused for {action}"), |world| {
                record(world, "node-1").last.is_some_and(|last| refused(&last.message))
            })
            .await?;
        }
        aws.fail("ExitStandby", Fault::Throttled, 2);
        until_event(ctx, EVENTS_OF_NODES, "AutoScalingCallFailed", &["limits the rate of autoscaling:ExitStandby"])
            .await?;
        ctx.updated().await?;
        restored(ctx, &aws, OWN).await?;

        let audit = settled_audit(&mut ctx.bed.control_plane.audit(), &ctx.bed.client).await?;
        let findings = rights::findings(&rights::granted(&objects(&aws)?)?, &audit);
        let mut wrong: Vec<String> = findings.iter().map(ToString::to_string).collect();
        wrong.extend(rights::writes::unlisted(&audit));
        let account = service_account(SYSTEM_NAMESPACE, AWS);
        wrong.retain(|finding| finding.contains(&account));
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_call_keeps_no_other_node_waiting() -> anyhow::Result<()> {
    let any = Expectations { max_unavailable: Some(2), nothing_left: true };
    run_expecting(nodes(2), any, async |ctx| {
        let mut aws = Aws::start(ctx, 0, 2).await?;
        let nodes = install(ctx, &mut aws).await?;
        aws.fail_for("EnterStandby", &nodes["node-1"], Fault::Lost, usize::MAX);
        let mut policy = mode(STANDBY);
        policy["maxUnavailable"] = json!(2);
        ctx.policy(&policy).await?;
        ctx.release();
        ctx.until("the other node is updated", |world| crate::support::is_updated(world, "node-2")).await?;
        aws.fail("EnterStandby", Fault::Lost, 0);
        ctx.updated().await?;
        restored(ctx, &aws, OWN).await
    })
    .await?;
    Ok(())
}
