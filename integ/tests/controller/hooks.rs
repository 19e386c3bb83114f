//! Hooks: their requests, what ends these, and the two examples, whose scripts run with the real `kubectl` and stand-ins for
//! `ceph` and `amtool`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use integ::bed::workload;
use integ::oracle::{ClusterState, Field, Node};
use kube::Api;
use kube::api::DeleteParams;
use models::names::{HOLD_ANNOTATION, HOOK_ANSWER_PREFIX};
use models::shadow::{BLOCKED, Step};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::bed::{NEW, ScriptedCluster, other};

crate::cases![
    hook_is_awaited_before_drain_and_after_update_across_leaders_until_a_hold_or_the_policy_ends_it,
    deletion_of_node_that_awaits_hook_frees_its_slot,
    examples_set_noout_and_silence_alerts_around_each_update,
];

/// The folder of the examples.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// A policy with one hook before the drain.
fn before() -> Value {
    json!({"hooks": [{"name": "storage", "before": {"timeout": "10m", "onTimeout": "Fail"}}]})
}

fn request(world: &ClusterState, node: &str) -> Option<String> {
    world.nodes.get(node)?.hook_request().cloned()
}

/// Waits until the hooks of a node are asked in another attempt or step than this one, and returns the request.
async fn requested(cluster: &ScriptedCluster, node: &str, before: &str) -> anyhow::Result<String> {
    let asked = |world: &ClusterState| request(world, node).filter(|request| request != before);
    let world = cluster.until("hooks are asked", |world| asked(world).is_some()).await?;
    Ok(asked(&world).unwrap_or_default())
}

async fn annotate(cluster: &ScriptedCluster, node: &str, annotation: &str, value: Value) -> anyhow::Result<()> {
    cluster.patch_node(node, json!({"metadata": {"annotations": {annotation: value}}})).await
}

async fn answer(cluster: &ScriptedCluster, node: &str, answer: &str) -> anyhow::Result<()> {
    annotate(cluster, node, &format!("{HOOK_ANSWER_PREFIX}storage"), answer.into()).await
}

async fn hook_is_awaited_before_drain_and_after_update_across_leaders_until_a_hold_or_the_policy_ends_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    cluster.start(1, json!({"hooks": [{"name": "storage", "before": {}, "after": {}}]})).await?;
    cluster.fleet.release(NEW);
    let first = requested(cluster, NODE, "").await?;
    let world = cluster
        .until("the wait is shown and counted", |world| {
            world.condition(NODE, BLOCKED).is_some_and(|blocked| blocked.reason == "AwaitingHook")
                && world.waiting("AwaitingHook") == 1
        })
        .await?;
    let message = world.condition(NODE, BLOCKED).map(|blocked| blocked.message.clone()).unwrap_or_default();
    assert!(message.contains("storage") && message.contains(&first), "{message}");
    // Killed in the middle of the wait: the next one goes on with the same attempt.
    cluster.replace_controller().await?;
    let world = cluster.planned().await?;
    assert_eq!((world.step(NODE), request(&world, NODE)), (Some(Step::BeforeDrain), Some(first.clone())));

    annotate(cluster, NODE, HOLD_ANNOTATION, "audit".into()).await?;
    let world = cluster
        .until("the request is withdrawn", |world| request(world, NODE).is_none() && world.step(NODE).is_none())
        .await?;
    assert_eq!(world.last_reason(NODE).as_deref(), Some("Held"));
    assert!(world.nodes[NODE].claimed(), "a held node stays cordoned");
    annotate(cluster, NODE, HOLD_ANNOTATION, Value::Null).await?;
    cluster.pass(Duration::from_mins(1)).await?;

    let before = requested(cluster, NODE, &first).await?;
    answer(cluster, NODE, &before).await?;
    let after = requested(cluster, NODE, &before).await?;
    assert!(before.starts_with("BeforeDrain/2/") && after.starts_with("AfterUpdate/2/"), "{before} {after}");
    let world = cluster.until_step(NODE, Step::AfterUpdate).await?;
    assert!(!world.nodes[NODE].claimed(), "it is back in service");
    let mut drained = false;
    cluster.recorder.so_far()?.replay(|_, _, world| {
        if world.step(NODE) == Some(Step::Draining) {
            drained = true;
            assert!(request(world, NODE).is_some(), "the request stays");
        }
    });
    assert!(drained);
    // The policy drops the hook in the middle of the wait.
    cluster.policy(&json!({"hooks": null})).await?;
    cluster.updated().await?;
    cluster.until("the request is removed", |world| request(world, NODE).is_none()).await.map(drop)
}

async fn deletion_of_node_that_awaits_hook_frees_its_slot(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(2, before()).await?;
    cluster.fleet.release(NEW);
    let asked = |world: &ClusterState| world.nodes.keys().find(|node| request(world, node).is_some()).cloned();
    let world = cluster.until("a node asks", |world| asked(world).is_some()).await?;
    let node = asked(&world).unwrap_or_default();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cluster.client.clone());
    nodes.delete(&node, &DeleteParams::default()).await?;
    let next = other(&node);
    let request = requested(cluster, next, "").await?;
    answer(cluster, next, &request).await?;
    cluster.updated().await?;
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
fn programs(cluster: &ScriptedCluster, folder: &Path) -> anyhow::Result<()> {
    let kubectl = cluster.stage.control_plane.kubectl_command();
    let words = std::iter::once(kubectl.as_std().get_program()).chain(kubectl.as_std().get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    program(
        folder,
        "kubectl",
        &format!("exec {} --as=system:serviceaccount:brupop-hooks:hook \"$@\"\n", words.join(" ")),
    )?;
    let calls = folder.join("calls");
    let ceph = r#"case "$*" in
health) cat "$0.health" 2>/dev/null || echo HEALTH_OK ;;
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
fn start(cluster: &ScriptedCluster, folder: &Path, hook: &str) -> anyhow::Result<Child> {
    let kubectl = cluster.stage.control_plane.kubectl_command();
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

/// Runs the Job before the drain of the example of Ceph while Ceph has an error. Returns its exit code and the last line of its log.
async fn run_job_beside_an_error(folder: &Path) -> anyhow::Result<(Option<i32>, String)> {
    fs::write(folder.join("ceph.health"), "HEALTH_ERR 1 full osd(s)\n")?;
    let templates: Vec<Value> =
        serde_saphyr::from_multiple(&fs::read_to_string(format!("{EXAMPLES}/hooks/jobs.yaml"))?)?;
    let template = templates.iter().find(|object| object["metadata"]["name"] == "noout-set").context("no template")?;
    let script = template["template"]["spec"]["containers"][0]["command"][2].as_str().context("no script")?;
    let script = script.replace("/hooks/", &format!("{EXAMPLES}/hooks/"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
    let output = Command::new("sh").args(["-c", &script]).env("PATH", path).env("NODE", "node-1").output().await?;
    let log = String::from_utf8_lossy(&output.stdout);
    Ok((output.status.code(), log.lines().next_back().unwrap_or_default().to_owned()))
}

/// Updates two nodes with the hooks of both examples, one of which is killed in between.
async fn update_with_examples(cluster: &mut ScriptedCluster, folder: &Path) -> anyhow::Result<()> {
    programs(cluster, folder)?;
    let mut ceph = start(cluster, folder, "ceph-noout")?;
    let _silence = start(cluster, folder, "silence")?;
    cluster.fleet.release(NEW);
    // Killed before it has taken anything back, and started again.
    cluster
        .until("a node reboots", |world| world.nodes.keys().any(|node| world.step(node) == Some(Step::Rebooting)))
        .await?;
    ceph.kill().await?;
    let _ceph = start(cluster, folder, "ceph-noout")?;
    cluster.updated().await?;
    let answered = |node: &Node| {
        let answer = |hook| Field::Annotation(format!("{HOOK_ANSWER_PREFIX}{hook}"));
        ["ceph-noout", "silence"].into_iter().any(|hook| node.fields.contains_key(&answer(hook)))
    };
    cluster
        .until("both hooks have taken everything back", |world| !world.nodes.values().any(|node| answered(node)))
        .await
        .map(drop)
}

async fn examples_set_noout_and_silence_alerts_around_each_update(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let read = |path: &str| -> anyhow::Result<Vec<Value>> {
        Ok(serde_saphyr::from_multiple(&fs::read_to_string(format!("{EXAMPLES}/{path}"))?)?)
    };
    // The test starts the programs of the Deployments.
    let rights = read("hooks/hooks.yaml")?.into_iter().filter(|object| object["kind"] != "Deployment");
    workload::apply(&cluster.client, rights.collect()).await?;
    // Namespace, roles and bindings of the examples are left.
    cluster.uses_up_stage = true;
    let policy = read("policies/hooks.yaml")?.remove(0);
    cluster.start(2, policy["spec"].clone()).await?;
    let folder = tempfile::tempdir()?;
    let result = update_with_examples(cluster, folder.path()).await;
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap_or_default();
    let logs = ["ceph-noout", "silence"].map(|hook| fs::read_to_string(folder.path().join(format!("{hook}.log"))));
    result.map_err(|error| error.context(format!("{logs:?}\n{calls}")))?;
    cluster.recorder.so_far()?.ensure_updates(2)?;
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
    let refusal = (Some(2), "Ceph has an error: HEALTH_ERR 1 full osd(s)".to_owned());
    assert_eq!(run_job_beside_an_error(folder.path()).await?, refusal);
    Ok(())
}
