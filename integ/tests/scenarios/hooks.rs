//! Hooks: their answers, refusals and deadlines, what ends their request, and the two examples, whose scripts run with the real
//! `kubectl` and stand-ins for `ceph` and `amtool`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use deploy::Component;
use integ::oracle::{ClusterState, Field, Node};
use models::names::{HOLD_ANNOTATION, HOOK_ANSWER_PREFIX};
use models::shadow::{BLOCKED, Step};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::policy::wait_for;
use crate::support::{
    EVENTS_OF_NODES, ScenarioContext, condition_of, is_released, is_updated, last_reason, nodes, record, run, step_of,
    until_event,
};

/// The folder of the examples.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// A policy with one hook before the drain.
fn before(timeout: &str, on_timeout: &str) -> Value {
    json!({
        "hooks": [{"name": "storage", "before": {"timeout": timeout, "onTimeout": on_timeout}}],
        "failurePolicy": {"backOff": "1s"},
    })
}

fn answer_of<'a>(node: &'a Node, hook: &str) -> Option<&'a String> {
    node.fields.get(&Field::Annotation(format!("{HOOK_ANSWER_PREFIX}{hook}")))
}

/// Waits until the hooks of the one node are asked in another attempt than this one, and returns the request.
async fn requested(ctx: &ScenarioContext, before: &str) -> anyhow::Result<String> {
    let request = |world: &ClusterState| world.nodes["node-1"].hook_request().cloned();
    let world = ctx.until("hooks are asked", |world| request(world).is_some_and(|is| is != before)).await?;
    Ok(request(&world).unwrap_or_default())
}

async fn answer(ctx: &ScenarioContext, node: &str, answer: &str) -> anyhow::Result<()> {
    let annotation = format!("{HOOK_ANSWER_PREFIX}storage={answer}");
    ctx.kubectl(&["annotate", "node", node, "--overwrite", &annotation]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_is_awaited_before_drain_and_after_update() -> anyhow::Result<()> {
    let ending = run(nodes(1), async |ctx| {
        ctx.install().await?;
        ctx.policy(&json!({"hooks": [{"name": "storage", "before": {}, "after": {}}]})).await?;
        ctx.release();
        let request = requested(ctx, "").await?;
        let world = ctx
            .until("the wait is shown", |world| {
                condition_of(world, "node-1", BLOCKED).is_some_and(|blocked| blocked.reason == "AwaitingHook")
            })
            .await?;
        let message = &condition_of(&world, "node-1", BLOCKED).unwrap().message;
        assert!(message.contains("storage") && message.contains(&request), "{message}");
        assert_eq!(step_of(&world, "node-1"), Some(Step::BeforeDrain));
        ctx.until("the wait is counted", |world| wait_for(world, "AwaitingHook", 1)).await?;
        answer(ctx, "node-1", &request).await?;
        let after = requested(ctx, &request).await?;
        assert!(request.starts_with("BeforeDrain/1/") && after.starts_with("AfterUpdate/1/"), "{request} {after}");
        let world = ctx.until_step("node-1", Step::AfterUpdate).await?;
        assert!(!world.nodes["node-1"].claimed(), "it is back in service");
        answer(ctx, "node-1", &after).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    let mut drained = false;
    ending.history.replay(|_, _, world| {
        if world.nodes.contains_key("node-1") && step_of(world, "node-1") == Some(Step::Draining) {
            drained = true;
            assert!(world.nodes["node-1"].hook_request().is_some(), "the request stays");
        }
    });
    assert!(drained);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_hook_ends_attempt_or_not_as_policy_says() -> anyhow::Result<()> {
    let ending = run(nodes(1), async |ctx| {
        ctx.install().await?;
        ctx.policy(&before("2s", "Fail")).await?;
        ctx.release();
        let world = ctx
            .until("the attempt fails and is released", |world| {
                last_reason(world, "node-1").as_deref() == Some("HookTimedOut")
                    && is_released(world, "node-1")
                    && world.nodes["node-1"].hook_request().is_none()
            })
            .await?;
        let last = record(&world, "node-1").last.unwrap_or_else(|| panic!("just seen"));
        assert!(last.message.starts_with("hook storage has not answered the request BeforeDrain/"), "{}", last.message);
        ctx.policy(&before("2s", "Continue")).await?;
        let message = until_event(ctx, EVENTS_OF_NODES, "HookTimedOut", &["going on"]).await?;
        assert!(message.contains("storage"), "{message}");
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(is_updated(&ending.world(), "node-1"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_hook_ends_attempt_with_its_reason() -> anyhow::Result<()> {
    run(nodes(1), async |ctx| {
        ctx.install().await?;
        ctx.policy(&before("10m", "Continue")).await?;
        ctx.release();
        let request = requested(ctx, "").await?;
        answer(ctx, "node-1", &format!("{request} Refused: 2 OSDs are down")).await?;
        let world = ctx
            .until("the attempt fails", |world| last_reason(world, "node-1").as_deref() == Some("HookRefused"))
            .await?;
        let message = record(&world, "node-1").last.map(|last| last.message).unwrap_or_default();
        assert!(message.contains("storage") && message.ends_with("2 OSDs are down"), "{message}");
        // The answer to that request counts for no other one.
        let request = requested(ctx, &request).await?;
        answer(ctx, "node-1", &request).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn request_survives_controller_and_ends_with_hold_and_policy() -> anyhow::Result<()> {
    let ending = run(nodes(1), async |ctx| {
        ctx.install().await?;
        ctx.policy(&before("10m", "Fail")).await?;
        ctx.release();
        let request = requested(ctx, "").await?;
        // Killed in the middle of the wait: the next one goes on with the same attempt.
        ctx.restart(Component::Controller).await?;
        ctx.renewals(2).await?;
        let world = ctx.until_step("node-1", Step::BeforeDrain).await?;
        assert_eq!(world.nodes["node-1"].hook_request(), Some(&request));

        ctx.kubectl(&["annotate", "node", "node-1", &format!("{HOLD_ANNOTATION}=audit")]).await?;
        let world = ctx
            .until("the request is withdrawn", |world| {
                world.nodes["node-1"].hook_request().is_none() && step_of(world, "node-1").is_none()
            })
            .await?;
        assert_eq!(last_reason(&world, "node-1").as_deref(), Some("Held"));
        assert!(world.nodes["node-1"].claimed(), "a held node stays cordoned");
        ctx.kubectl(&["annotate", "node", "node-1", &format!("{HOLD_ANNOTATION}-")]).await?;

        // The policy drops the hook in the middle of the next wait.
        ctx.policy(&json!({"deadlines": {"shutdown": "1s"}})).await?;
        let next = requested(ctx, &request).await?;
        assert!(next.starts_with("BeforeDrain/2/"), "{next}");
        ctx.policy(&json!({"hooks": null})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes["node-1"].hook_request().is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_hook_after_the_update_fails_it_or_not_and_node_is_in_service() -> anyhow::Result<()> {
    let after =
        |on_timeout: &str| json!({"hooks": [{"name": "storage", "after": {"timeout": "2s", "onTimeout": on_timeout}}]});
    let ending = run(nodes(2), async |ctx| {
        ctx.install().await?;
        ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}=later")]).await?;
        ctx.policy(&after("Fail")).await?;
        ctx.release();
        let world = ctx
            .until("the attempt fails", |world| last_reason(world, "node-1").as_deref() == Some("HookTimedOut"))
            .await?;
        let last = record(&world, "node-1").last.unwrap_or_else(|| panic!("just seen"));
        assert!(
            last.message.starts_with("hook storage has not answered the request AfterUpdate/1/"),
            "{}",
            last.message
        );
        ctx.until("it runs the new version in service, and nothing is asked any more", |world| {
            is_updated(world, "node-1") && world.nodes["node-1"].hook_request().is_none()
        })
        .await?;
        ctx.policy(&after("Continue")).await?;
        ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}-")]).await?;
        until_event(ctx, EVENTS_OF_NODES, "Updated", &["; going on without an answer of hook(s) storage"]).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let results: Vec<_> = ending.history.attempts().into_iter().filter_map(|attempt| attempt.result).collect();
    assert_eq!(results.iter().filter(|result| *result == "HookTimedOut").count(), 1, "{results:?}");
    assert_eq!(results.len(), 2, "none is repeated: {results:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_node_that_awaits_hook_frees_its_slot() -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        ctx.install().await?;
        ctx.policy(&before("10m", "Fail")).await?;
        ctx.release();
        let asked = |world: &ClusterState| {
            world.nodes.iter().find(|(_, node)| node.hook_request().is_some()).map(|(name, _)| name.clone())
        };
        let world = ctx.until("a node asks", |world| asked(world).is_some()).await?;
        let node = asked(&world).unwrap_or_default();
        ctx.kubectl(&["delete", "node", &node]).await?;
        let world =
            ctx.until("the other node has the slot", |world| asked(world).is_some_and(|other| other != node)).await?;
        let other = asked(&world).unwrap_or_default();
        let request = world.nodes[&other].hook_request().cloned().unwrap_or_default();
        answer(ctx, &other, &request).await?;
        ctx.until("the other node is updated", |world| is_updated(world, &other)).await?;

        ctx.bed.member(&node)?.kubelet.register().await?;
        // The token of the agent's pod names the deleted Node; a pod of the new Node has its own.
        ctx.restart(Component::Agent).await?;
        let world = ctx
            .until("the next Node of this name is asked", |world| asked(world).is_some_and(|asked| asked == node))
            .await?;
        let request = world.nodes[&node].hook_request().cloned().unwrap_or_default();
        assert!(request.starts_with("BeforeDrain/1/"), "its first attempt: {request}");
        ctx.policy(&json!({"hooks": null})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    Ok(())
}

/// Writes a program into a folder.
fn program(folder: &Path, name: &str, script: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Puts the real `kubectl`, as the service account of the examples, and stand-ins for `ceph` and `amtool` into a folder. They
/// record their calls there, and the silences as files.
fn programs(ctx: &ScenarioContext, folder: &Path) -> anyhow::Result<()> {
    let kubectl = ctx.bed.control_plane.kubectl_command();
    let words = std::iter::once(kubectl.as_std().get_program()).chain(kubectl.as_std().get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    program(
        folder,
        "kubectl",
        &format!("exec {} --as=system:serviceaccount:brupop-hooks:hook \"$@\"\n", words.join(" ")),
    )?;
    let calls = folder.join("calls");
    let ceph = r#"case "$*" in
"osd tree") printf -- '-1 2.0 root default\n-3 1.0     host node-1\n-5 1.0     host node-2\n' ;;
"osd ls-tree "*) printf '0\n1\n' ;;
"pg stat") echo '33 pgs: 1 active+clean+scrubbing+deep, 32 active+clean; 1 GiB data, 3 GiB used, 57 GiB / 60 GiB avail' ;;
esac
"#;
    program(folder, "ceph", &format!("echo \"ceph $*\" >>'{}'\n{ceph}", calls.display()))?;
    let silences = folder.join("silences");
    fs::create_dir(&silences)?;
    let amtool = r#"for last; do :; done
case "$3" in
query) grep -lx -- "$last" * 2>/dev/null || true ;;
add) echo "$last" >"silence-of-$last" ;;
expire) rm -- "$last" ;;
esac
"#;
    let amtool = format!("echo \"amtool $*\" >>'{}'\ncd '{}' || exit\n{amtool}", calls.display(), silences.display());
    program(folder, "amtool", &amtool)
}

/// Starts the loop of an example.
fn start(ctx: &ScenarioContext, folder: &Path, hook: &str) -> anyhow::Result<Child> {
    let kubectl = ctx.bed.control_plane.kubectl_command();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
    let scripts = format!("{EXAMPLES}/hooks");
    let mut command = Command::new(format!("{scripts}/hook-loop.sh"));
    command.args([hook, &format!("{scripts}/{hook}.sh")]);
    command.envs(kubectl.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", path).env("HOOK_PAUSE", "0.2").env("ALERTMANAGER_URL", "http://127.0.0.1:9093");
    let output = fs::File::create(folder.join(format!("{hook}.log")))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).kill_on_drop(true);
    Ok(command.spawn()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_set_noout_and_silence_alerts_around_each_update() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let ending = run(nodes(2), async |ctx| {
        ctx.kubectl(&["apply", "-k", &format!("{EXAMPLES}/hooks")]).await?;
        ctx.install().await?;
        programs(ctx, folder.path())?;
        let policy = format!("{EXAMPLES}/policies/hooks.yaml");
        ctx.kubectl(&["apply", "--server-side", "--field-manager=policy", "--force-conflicts", "-f", &policy]).await?;
        let mut ceph = start(ctx, folder.path(), "ceph-noout")?;
        let _silence = start(ctx, folder.path(), "silence")?;
        ctx.release();
        // Killed before it has taken anything back, and started again.
        ctx.until("a node reboots", |world| {
            world.nodes.keys().any(|node| step_of(world, node) == Some(Step::Rebooting))
        })
        .await?;
        ceph.kill().await?;
        let _ceph = start(ctx, folder.path(), "ceph-noout")?;
        ctx.updated().await?;
        ctx.until("both hooks have taken everything back", |world| {
            let left = |node: &Node| ["ceph-noout", "silence"].iter().any(|hook| answer_of(node, hook).is_some());
            !world.nodes.values().any(|node| left(node))
        })
        .await?;
        Ok(())
    })
    .await;
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap_or_default();
    let logs = ["ceph-noout", "silence"].map(|hook| fs::read_to_string(folder.path().join(format!("{hook}.log"))));
    let ending = ending.map_err(|error| error.context(format!("{logs:?}\n{calls}")))?;
    ending.assert_updates(2);
    for node in ["node-1", "node-2"] {
        let last =
            |call: String| calls.lines().enumerate().filter(|(_, line)| **line == *call).map(|(at, _)| at).last();
        let (set, unset) =
            (last(format!("ceph osd set-group noout {node}")), last(format!("ceph osd unset-group noout {node}")));
        assert!(set.is_some() && set < unset, "{node}: {calls}");
        let silenced = |line: &str| line.contains(" silence add ") && line.ends_with(&format!("node={node}"));
        assert_eq!(calls.lines().filter(|line| silenced(line)).count(), 1, "{calls}");
    }
    assert_eq!(fs::read_dir(folder.path().join("silences"))?.count(), 0, "{calls}");
    Ok(())
}
