//! EC2 Auto Scaling groups: a reboot that would end in a termination does not, in both modes, and whatever ends the attempt,
//! nothing is left. The real program, installed from its manifest, calls a server that speaks the real API.

mod ends;
mod moto;
mod proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::bed::{Programs, workload};
use integ::kubelet::PodProcess;
use integ::oracle::{Expectations, Field, service_account, settled_audit};
use integ::rights;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use models::names::{AWS, AWS_HOOK, HOOK_ANSWER_PREFIX, SYSTEM_NAMESPACE};
use nix::sys::signal::Signal;
use semver::Version;
use serde_json::{Value, json};

use self::moto::Aws;
use self::proxy::{CREDENTIALS, Fault, WEB_IDENTITY};
use crate::interfere::{poll, signal};
use crate::support::{EVENTS_OF_NODES, LIMIT, NEW, ScenarioContext, nodes, record, run, run_expecting, until_event};

const STANDBY: &str = "Standby";
const SUSPEND: &str = "SuspendReplaceUnhealthy";

/// A policy with this mode.
fn mode(mode: &str) -> Value {
    json!({"autoscaling": {"aws": {"mode": mode}}, "failurePolicy": {"backOff": "1s", "maxFailures": 64}})
}

/// The credentials of the program.
#[derive(Clone, Copy)]
enum Credentials {
    Keys,
    /// Of the service account, from the STS, as EKS sets a pod up for it (IRSA).
    WebIdentity,
    /// Of the service account, from the agent on the node, as EKS sets a pod up for it.
    PodIdentity,
}

/// Variables of an environment.
type Variables = Vec<(&'static str, String)>;

impl Credentials {
    /// Environment of the program, and the path and the audience of a token of its service account.
    fn environment(self, aws: &Aws) -> (Variables, Option<(&'static str, &'static str)>) {
        match self {
            Self::Keys => {
                (vec![("AWS_ACCESS_KEY_ID", "test".to_owned()), ("AWS_SECRET_ACCESS_KEY", "test".to_owned())], None)
            }
            Self::WebIdentity => {
                let folder = "/var/run/secrets/eks.amazonaws.com/serviceaccount";
                let env = vec![
                    ("AWS_WEB_IDENTITY_TOKEN_FILE", format!("{folder}/token")),
                    ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/brupop-aws".to_owned()),
                ];
                (env, Some((folder, "sts.amazonaws.com")))
            }
            Self::PodIdentity => {
                let folder = "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount";
                let env = vec![
                    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", format!("{folder}/token")),
                    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}{CREDENTIALS}", aws.endpoint)),
                ];
                (env, Some((folder, "pods.eks.amazonaws.com")))
            }
        }
    }
}

/// The objects of the manifest, with the server in the place of AWS.
fn objects(aws: &Aws, credentials: Credentials) -> anyhow::Result<Vec<Value>> {
    ensure!(Programs::find()?.aws.is_file(), "the program brupop-aws is missing: run `make build` first");
    let mut objects = deploy::everything()?;
    objects.retain(|object| object["metadata"]["name"] == AWS);
    let (mut env, token) = credentials.environment(aws);
    env.extend([
        ("AWS_ENDPOINT_URL", aws.endpoint.clone()),
        ("AWS_REGION", "eu-central-1".to_owned()),
        // Of the machine that runs the tests, nothing is asked.
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("BRUPOP_AWS_SETTLE", "2s".to_owned()),
    ]);
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let workload = objects.iter_mut().find(|object| object["kind"] == "Deployment").context("no Deployment")?;
    let pod = &mut workload["spec"]["template"]["spec"];
    pod["containers"][0]["env"] = json!(env);
    if let Some((folder, audience)) = token {
        let token = json!({"serviceAccountToken": {"audience": audience, "path": "token", "expirationSeconds": 86400}});
        pod["volumes"] = json!([{"name": "token", "projected": {"sources": [token]}}]);
        pod["containers"][0]["volumeMounts"] = json!([{"name": "token", "mountPath": folder, "readOnly": true}]);
    }
    Ok(objects)
}

/// Installs operator and hook, gives the nodes their instances, and starts the health check. Returns the instances.
async fn install(ctx: &ScenarioContext, aws: &mut Aws) -> anyhow::Result<BTreeMap<String, String>> {
    install_with(ctx, aws, Credentials::Keys).await
}

async fn install_with(
    ctx: &ScenarioContext,
    aws: &mut Aws,
    credentials: Credentials,
) -> anyhow::Result<BTreeMap<String, String>> {
    ctx.install().await?;
    let nodes = aws.provide(ctx).await?;
    workload::apply(&ctx.bed.client, objects(aws, credentials)?).await?;
    aws.check_health(ctx, &nodes);
    Ok(nodes)
}

/// The record of the program.
async fn recorded(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let data = maps.get_opt(AWS).await?.and_then(|map| map.data).unwrap_or_default();
    Ok(data.into_keys().collect())
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
#[ignore = "make test-all: it judges the stand-in for AWS"]
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

/// The actions of these statements of the documented IAM policy.
fn documented(statements: &[usize]) -> anyhow::Result<BTreeSet<String>> {
    let page = include_str!("../../../../docs/aws.md");
    let block = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).context("no policy")?;
    let policy: Value = serde_json::from_str(block)?;
    let actions = statements.iter().map(|at| serde_json::from_value(policy["Statement"][*at]["Action"].clone()));
    let actions: Vec<Vec<String>> = actions.collect::<Result<_, _>>()?;
    Ok(actions.iter().flatten().map(|action| action.trim_start_matches("autoscaling:").to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: standby_is_left_on_every_exit has a rollout, unit tests have the calls"]
async fn rollouts_in_both_modes_terminate_nothing_whatever_happens_to_program_and_calls() -> anyhow::Result<()> {
    // Two nodes of a group, and one without.
    run(nodes(3), async |ctx| {
        let mut aws = Aws::start(ctx, 1, 2).await?;
        install_with(ctx, &mut aws, Credentials::WebIdentity).await?;
        rolls_out_in_standby(ctx, &aws).await.context("a rollout in Standby")?;
        rolls_out_with_suspended_process(ctx, &aws).await.context("a rollout with a suspended process")?;
        ctx.bed.recorder.so_far()?.ensure_updates(6)?;
        killed_program_leaves_no_instance_in_standby(ctx, &aws).await.context("the program is killed")?;
        denied_and_limited_calls_are_named(ctx, &aws).await.context("calls are denied and limited")?;
        every_right_is_used(ctx, &aws).await
    })
    .await?;
    Ok(())
}

async fn rolls_out_in_standby(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<()> {
    rolls_out(ctx, aws, STANDBY, &NEW).await?;
    let calls = aws.calls();
    for action in ["EnterStandby", "ExitStandby"] {
        ensure!(calls.iter().filter(|call| *call == action).count() == 2, "{action}: {calls:?}");
    }
    ensure_calls(aws, &[0, 1], WEB_IDENTITY)
}

async fn rolls_out_with_suspended_process(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<()> {
    aws.forget_calls();
    workload::apply(&ctx.bed.client, objects(aws, Credentials::PodIdentity)?).await?;
    let deployment = format!("deployment/{AWS}");
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", &deployment, "--timeout=240s"]).await?;
    rolls_out(ctx, aws, SUSPEND, &Version::new(1, 20, 6)).await?;
    let calls = aws.calls();
    // The reboot marks the instance unhealthy, and it would be replaced as soon as the process is resumed. Each call may be
    // repeated where the answer is seen late.
    for action in ["SuspendProcesses", "SetInstanceHealth", "ResumeProcesses"] {
        ensure!(calls.iter().filter(|call| *call == action).count() >= 2, "{action}: {calls:?}");
    }
    ensure_calls(aws, &[0, 2, 3], CREDENTIALS)
}

/// Rolls a version out in a mode.
async fn rolls_out(ctx: &ScenarioContext, aws: &Aws, with: &str, version: &Version) -> anyhow::Result<()> {
    ctx.policy(&mode(with)).await?;
    ctx.bed.releases.publish(version.clone());
    ctx.bed.wait_updated(version, LIMIT).await?;
    restored(ctx, aws, OWN).await?;
    ensure_nothing_terminated(aws)?;
    let every = aws.reads_every().context("no two reads")?;
    ensure!(every >= Duration::from_secs(1), "{every:?}");
    until_event(ctx, EVENTS_OF_NODES, "AutoScalingPrepared", &["is in no Auto Scaling group"]).await?;
    Ok(())
}

/// Ensures that the program made the calls that these statements of the documented policy allow, and this one for its credentials.
fn ensure_calls(aws: &Aws, statements: &[usize], source: &str) -> anyhow::Result<()> {
    let mut needed = documented(statements)?;
    needed.insert(source.to_owned());
    let made = aws.calls().into_iter().collect::<BTreeSet<_>>();
    ensure!(made == needed, "made: {made:?}, documented: {needed:?}");
    Ok(())
}

fn ensure_nothing_terminated(aws: &Aws) -> anyhow::Result<()> {
    let terminated = aws.terminated();
    ensure!(terminated.is_empty(), "{terminated:?}");
    Ok(())
}

/// The program is killed while a call is carried out, on the way in and on the way out.
async fn killed_program_leaves_no_instance_in_standby(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<()> {
    let (into, out) = ("EnterStandby", "ExitStandby");
    let version = Version::new(1, 20, 7);
    ctx.policy(&mode(STANDBY)).await?;
    aws.forget_calls();
    aws.fail(into, Fault::Unanswered, 1);
    aws.fail(out, Fault::Unanswered, 1);
    ctx.bed.releases.publish(version.clone());
    for action in [into, out] {
        aws.called(action, 1).await?;
        signal(&processes(ctx), Signal::SIGKILL);
    }
    ctx.bed.wait_updated(&version, LIMIT).await?;
    restored(ctx, aws, OWN).await?;
    ensure_nothing_terminated(aws)
}

async fn denied_and_limited_calls_are_named(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<()> {
    let version = Version::new(1, 20, 8);
    for action in ["DescribeAutoScalingInstances", "EnterStandby"] {
        aws.fail(action, Fault::Denied, usize::MAX);
    }
    // One more than there are nodes: an Event is repeated, which the right to patch it is for.
    aws.fail("ExitStandby", Fault::Throttled, 4);
    ctx.bed.releases.publish(version.clone());
    for action in ["DescribeAutoScalingInstances", "EnterStandby"] {
        let named = format!("IAM denies autoscaling:{action}");
        let refused = |message: &str| message.contains(&named) && message.contains("docs/aws.md");
        ctx.until(&format!("an attempt is refused for {action}"), |world| {
            world.nodes.keys().any(|node| record(world, node).last.is_some_and(|last| refused(&last.message)))
        })
        .await?;
        aws.fail(action, Fault::Denied, 0);
    }
    until_event(ctx, EVENTS_OF_NODES, "AutoScalingCallFailed", &["limits the rate of autoscaling:ExitStandby"]).await?;
    ctx.bed.wait_updated(&version, LIMIT).await?;
    restored(ctx, aws, OWN).await
}

/// Ensures that the run used each right of the program, and no other.
async fn every_right_is_used(ctx: &ScenarioContext, aws: &Aws) -> anyhow::Result<()> {
    let audit = settled_audit(&mut ctx.bed.control_plane.audit(), &ctx.bed.client).await?;
    let findings = rights::findings(&rights::granted(&objects(aws, Credentials::Keys)?)?, &audit);
    let mut wrong: Vec<String> = findings.iter().map(ToString::to_string).collect();
    wrong.extend(rights::writes::unlisted(&audit));
    let account = service_account(SYSTEM_NAMESPACE, AWS);
    wrong.retain(|finding| finding.contains(&account));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the calls"]
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
