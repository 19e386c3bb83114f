//! Taking over from the earlier operator: its shadows and their back-off are kept, whatever interrupts the command, and
//! nodes whose hosts it left in the middle of an update are updated.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use integ::host::Command;
use integ::oracle::{ClusterState, Expectations, Field};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use models::names::{self, SYSTEM_NAMESPACE};
use models::shadow::BLOCKED;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::commands::{output_text, plugin, plugin_as, shell};
use crate::interfere::{is_armed, poll};
use crate::support::{NEW, ScenarioContext, condition_of, is_on, nodes, record, run_expecting};
use crate::uninstall::{EARLIER, install_lines};

const OLD_NAMESPACE: &str = "brupop-bottlerocket-aws";
const DEFINITION: &str = "bottlerocketshadows.brupop.bottlerocket.aws";
/// The kind at the version that is served now: kubectl remembers the versions that it has seen before.
const SHADOWS: &str = "bottlerocketshadows.v3.brupop.bottlerocket.aws";
const SWAP: [&str; 5] = ["takeover", "swap", "--yes", "--settle", "2s"];
const UNDO: [&str; 3] = ["takeover", "undo", "--yes"];

fn old_shadows(ctx: &ScenarioContext, version: &str) -> Api<DynamicObject> {
    let mut resource = ApiResource::erase::<models::shadow::BottlerocketShadow>(&());
    version.clone_into(&mut resource.version);
    resource.api_version = format!("{}/{version}", names::GROUP);
    Api::namespaced_with(ctx.bed.client.clone(), OLD_NAMESPACE, &resource)
}

/// Creates a shadow of the earlier operator with its status, stored in `version`.
async fn old_shadow(ctx: &ScenarioContext, node: &str, version: &str, content: &Value) -> anyhow::Result<()> {
    let name = names::shadow_name(node);
    let mut object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": format!("{}/{version}", names::GROUP), "kind": "BottlerocketShadow",
        "metadata": {"name": name}, "spec": content["spec"],
    }))?;
    let uid = ctx
        .kubectl(&["get", "nodes", "-o", &format!("jsonpath={{.items[?(@.metadata.name==\"{node}\")].metadata.uid}}")])
        .await?;
    if !uid.is_empty() {
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]);
        object.metadata.owner_references = Some(serde_json::from_value(owner)?);
    }
    let api = old_shadows(ctx, version);
    poll("the earlier definition is served", async || Ok(api.create(&PostParams::default(), &object).await.ok()))
        .await?;
    let status = Patch::Merge(json!({"status": content["status"]}));
    api.patch_status(&name, &PatchParams::default(), &status).await?;
    Ok(())
}

fn workload(kind: &str, name: &str, component: &str) -> Value {
    let labels = json!({"brupop.bottlerocket.aws/component": component});
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": OLD_NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "brupop", "image": "example.invalid/app:1"}],
                },
            },
        },
    });
    if kind == "Deployment" {
        object["spec"]["replicas"] = json!(1);
    }
    object
}

/// Installs what the earlier operator leaves in a cluster that was upgraded from a release with v1 alone.
async fn earlier_operator(ctx: &ScenarioContext) -> anyhow::Result<()> {
    // The webhook is dead, as in most clusters: no such Service exists. Objects stored in v1 are then unreadable at v2.
    let first = "sed -e '/conversion:/,/port: 443/d' -e 's/storage: true/storage: X/' -e 's/storage: false/storage: true/' \
                 -e 's/storage: X/storage: false/'";
    shell(ctx, &format!("{first} {EARLIER} | kubectl apply --server-side --field-manager=helm -f -")).await?;
    shell(ctx, &format!("kubectl create namespace {OLD_NAMESPACE}")).await?;
    old_shadow(
        ctx,
        "gone",
        "v1",
        &json!({
            "spec": {"state": "StagedUpdate", "version": "1.19.0"},
            "status": {"current_state": "Idle", "current_version": "1.18.0", "target_version": "1.19.0"},
        }),
    )
    .await?;
    shell(ctx, &format!("kubectl apply --server-side --field-manager=helm -f {EARLIER}")).await?;
    // The webhook is in force, and with it the new storage version.
    let at_v2 = old_shadows(ctx, "v2");
    poll("the definition is in force", async || Ok(at_v2.get("brs-gone").await.is_err().then_some(()))).await?;
    let status = |state: &str| json!({"current_state": state, "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": 0});
    let mut failing = status("Idle");
    failing["crash_count"] = json!(3);
    failing["state_transition_failure_timestamp"] = json!(jiff::Timestamp::now().to_string());
    let idle = json!({"state": "Idle", "state_transition_timestamp": null, "version": null});
    for (node, spec, status) in [
        ("node-1", idle, failing),
        ("node-2", json!({"state": "RebootedIntoUpdate", "version": "1.20.5"}), status("StagedAndPerformedUpdate")),
        (
            "node-3",
            json!({"state": "StagedAndPerformedUpdate", "version": "1.20.5"}),
            status("StagedAndPerformedUpdate"),
        ),
    ] {
        old_shadow(ctx, node, "v2", &json!({"spec": spec, "status": status})).await?;
    }
    integ::bed::workload::apply(
        &ctx.bed.client,
        vec![
            workload("Deployment", "brupop-apiserver", "apiserver"),
            workload("Deployment", "brupop-controller-deployment", "brupop-controller"),
            workload("DaemonSet", "brupop-agent", "agent"),
        ],
    )
    .await?;
    running(ctx).await
}

/// Waits until the earlier operator's pods run.
async fn running(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.until("the earlier operator runs", |world| world.ready_pods(OLD_NAMESPACE) == 5).await?;
    Ok(())
}

/// Brings each host to where the earlier operator was stopped: node-1 has downloaded the new version, node-2 has rebooted
/// into it, and node-3 is armed.
async fn hosts_in_mid_update(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.release();
    for (node, commands) in [
        ("node-1", &[Command::Refresh, Command::Prepare][..]),
        ("node-2", &[Command::Refresh, Command::Prepare, Command::Activate]),
        ("node-3", &[Command::Refresh, Command::Prepare, Command::Activate]),
    ] {
        let host = &ctx.bed.member(node)?.host;
        for command in commands {
            host.foreign(*command).await.map_err(|refusal| anyhow::anyhow!("{node}: {refusal:?}"))?;
            host.lock_free().await;
        }
    }
    let host = &ctx.bed.member("node-2")?.host;
    let boot = host.snapshot().boot_id;
    host.foreign_reboot().await;
    host.booted_after(&boot).await;
    let new = host.snapshot().boot_id;
    ctx.until("node-2 is Ready again", |world| world.nodes.get("node-2").is_some_and(|n| n.ready && n.boot_id == new))
        .await?;
    Ok(())
}

/// The specification of everything that `undo` has to restore.
async fn specifications(ctx: &ScenarioContext) -> anyhow::Result<Value> {
    let text = ctx.kubectl(&["get", "deployments,daemonsets", "-n", OLD_NAMESPACE, "-o", "json"]).await?;
    let workloads: Value = serde_json::from_str(&text)?;
    let definition: Value = serde_json::from_str(&ctx.kubectl(&["get", "crd", DEFINITION, "-o", "json"]).await?)?;
    let both = workloads["items"].as_array().into_iter().flatten().chain([&definition]);
    Ok(both
        .map(|object| {
            let meta = &object["metadata"];
            json!([meta["name"], meta["labels"], object["spec"]])
        })
        .collect())
}

/// Makes a user with the ClusterRole of docs/takeover.md, still unbound, and returns the path of its kubeconfig.
async fn user_of_documented_role(ctx: &ScenarioContext) -> anyhow::Result<PathBuf> {
    let role = "sed -n '/^```yaml/,/^```/p' docs/takeover.md | sed -n '/kind: ClusterRole/,/^```/p' | sed '/^```/d'";
    shell(ctx, &format!("(echo 'apiVersion: rbac.authorization.k8s.io/v1'; {role}) | kubectl apply -f -")).await?;
    let own = ctx.bed.control_plane.kubeconfig();
    let path = own.with_file_name("mover.kubeconfig");
    let file = path.display();
    shell(
        ctx,
        &format!(
            "kubectl create serviceaccount mover -n default; cp '{}' '{file}'; token=$(kubectl create token mover -n default); \
             export KUBECONFIG='{file}'; kubectl config set-credentials mover --token=\"$token\"; \
             kubectl config set-context --current --user=mover",
            own.display()
        ),
    )
    .await?;
    Ok(path)
}

/// Runs a command of the plugin until it has printed a line that `until` accepts, and kills it there. Returns that line;
/// `None` at its end.
async fn once(kubeconfig: &Path, command: &[&str], until: impl Fn(&str) -> bool) -> anyhow::Result<Option<String>> {
    let mut child = tokio::process::Command::new(integ::bed::Programs::find()?.plugin)
        .args(command)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    while let Some(line) = lines.next_line().await? {
        let ends = ["the cluster is moved", "every recorded workload", "nothing was changed"];
        if ends.iter().any(|end| line.starts_with(end)) {
            return Ok(None);
        }
        if !line.starts_with("waiting (") && until(&line) {
            child.kill().await?;
            return Ok(Some(line));
        }
    }
    let output = child.wait_with_output().await?;
    anyhow::bail!("the command ended: {}", output_text(&output))
}

/// Runs a command again and again, killed after each thing that it has done. Returns all of these.
async fn to_the_end(kubeconfig: &Path, command: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    while let Some(line) = once(kubeconfig, command, |_| true).await? {
        done.push(line);
        assert!(done.len() < 60, "{done:#?}");
    }
    Ok(done)
}

/// The content of the earlier operator's shadows, as its next program reads it: at v2, which is stored.
async fn old_contents(ctx: &ScenarioContext) -> anyhow::Result<Value> {
    let mut all = Vec::new();
    for (name, version) in [("brs-gone", "v1"), ("brs-node-1", "v2"), ("brs-node-2", "v2"), ("brs-node-3", "v2")] {
        let shadow = match old_shadows(ctx, "v2").get(name).await {
            // The conversion webhook is dead.
            Err(_) => old_shadows(ctx, version).get(name).await?,
            Ok(shadow) => shadow,
        };
        let content = json!({"metadata": {"name": name, "ownerReferences": shadow.metadata.owner_references}, "spec": shadow.data["spec"], "status": shadow.data["status"]});
        all.push(models::earlier::at_version(&content, "v2"));
    }
    Ok(all.into())
}

/// Checks that everything is as it was before the takeover.
async fn undone(ctx: &ScenarioContext, (before, shadows): (&Value, &Value)) -> anyhow::Result<()> {
    assert_eq!(specifications(ctx).await?, *before);
    assert_eq!(old_contents(ctx).await?, *shadows);
    assert!(!config_maps(ctx).await?.contains("takeover"), "{}", config_maps(ctx).await?);
    running(ctx).await
}

async fn config_maps(ctx: &ScenarioContext) -> anyhow::Result<String> {
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "configmaps", "-o", "name"]).await
}

const ANY: Expectations = Expectations { max_unavailable: Some(1), nothing_left: false };

#[tokio::test(flavor = "multi_thread")]
async fn takeover_keeps_shadows_and_back_off_whatever_interrupts_it() -> anyhow::Result<()> {
    run_expecting(nodes(3), ANY, async |ctx| {
        hosts_in_mid_update(ctx).await?;
        earlier_operator(ctx).await?;
        // As the earlier operator does: by a client without a name.
        let cordon = Patch::Strategic(json!({"spec": {"unschedulable": true}}));
        let all: Api<k8s_openapi::api::core::v1::Node> = Api::all(ctx.bed.client.clone());
        all.patch("node-2", &PatchParams::default(), &cordon).await?;
        let before = specifications(ctx).await?;

        let user = user_of_documented_role(ctx).await?;
        let refused = plugin_as(&user, &SWAP).await?;
        let text = output_text(&refused);
        assert!(!refused.status.success() && text.contains("patch customresourcedefinitions/status"), "{text}");
        assert_eq!(specifications(ctx).await?, before);
        shell(
            ctx,
            "kubectl create clusterrolebinding mover --clusterrole=brupop-takeover --serviceaccount=default:mover",
        )
        .await?;
        poll("the role is in force", async || {
            let dry = plugin_as(&user, &["takeover", "swap", "--dry-run"]).await?;
            Ok((!output_text(&dry).contains("you need")).then_some(()))
        })
        .await?;

        let asked = plugin(ctx, &["takeover", "swap"]).await?;
        assert!(!asked.status.success() && output_text(&asked).contains("--yes"), "{}", output_text(&asked));
        let dry = plugin(ctx, &["takeover", "swap", "--dry-run"]).await?;
        let text = output_text(&dry);
        assert!(dry.status.success() && text.contains("would delete DaemonSet"), "{text}");
        assert!(text.contains("shadows are missing here"), "{text}");
        assert!(text.contains("v3 alone") && text.contains("nothing was changed"), "{text}");
        assert_eq!(specifications(ctx).await?, before);

        let shadows = old_contents(ctx).await?;
        // Undo from the last moment before the earlier versions are dropped, whatever interrupts it.
        once(&user, &SWAP, |line| line.contains("stored versions v3 alone")).await?.context("not killed")?;
        assert_ne!(specifications(ctx).await?, before);
        assert!(ctx.kubectl(&["get", SHADOWS, "-A", "-o", "name"]).await?.contains("brs-node-1"));
        let restored = |line: &str| line.starts_with("restored BottlerocketShadow") && line.ends_with("brs-node-1");
        once(&user, &UNDO, restored).await?.context("not killed")?;
        // As if it had been killed before it wrote the status.
        let gone = serde_json::from_value(json!([{"op": "remove", "path": "/status"}]))?;
        let patch = Patch::<()>::Json(gone);
        old_shadows(ctx, "v2").patch_status("brs-node-1", &PatchParams::default(), &patch).await?;
        to_the_end(&user, &UNDO).await?;
        undone(ctx, (&before, &shadows)).await?;

        // Undo at once, from a moment at which the earlier operator was started again.
        once(&user, &SWAP, |line| line.contains("recorded shadows of the earlier")).await?.context("not killed")?;
        let uninstall = plugin(ctx, &["uninstall", "--yes"]).await?;
        assert!(output_text(&uninstall).contains("is under way"), "{}", output_text(&uninstall));
        let started = workload("DaemonSet", "brupop-agent", "agent");
        integ::bed::workload::apply(&ctx.bed.client, vec![started]).await?;
        let output = plugin_as(&user, &UNDO).await?;
        assert!(output.status.success(), "{}", output_text(&output));
        assert!(output_text(&output).contains("cordoned, by whichever client: node-2"), "{}", output_text(&output));
        undone(ctx, (&before, &shadows)).await?;

        let done = to_the_end(&user, &SWAP).await?;
        assert!(done.len() >= 12, "{done:#?}");
        taken_over(ctx).await?;

        let late = plugin(ctx, &["takeover", "undo", "--yes"]).await?;
        let text = output_text(&late);
        assert!(!late.status.success() && text.contains("is complete"), "{text}");
        // node-2 has booted the other version, and node-1 has failed before: its host may be armed too.
        assert!(text.contains("first reboot or disarm") && text.contains(": node-1, node-3 (to let"), "{text}");
        let found = plugin(ctx, &["takeover", "preflight", "-o", "json"]).await?;
        let found: Value = serde_json::from_slice(&found.stdout)?;
        assert_eq!(found["nodes"]["cordonsOfEarlierOperator"], json!(["node-2"]), "by the record: {found:#}");
        let again = plugin(ctx, &SWAP).await?;
        let text = output_text(&again);
        assert!(again.status.success() && text.contains("kubectl uncordon node-2"), "{text}");
        assert!(text.contains("cordoned, probably by the earlier operator"), "{text}");
        assert!(text.contains("the host of node-3 may be armed"), "{text}");
        assert!(!text.contains("the host of node-2"), "it has booted the update: {text}");
        updates(ctx, &text).await
    })
    .await?;
    Ok(())
}

/// Checks that nothing is left in the old versions, and nothing is lost.
async fn taken_over(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let definition: Value = serde_json::from_str(&ctx.kubectl(&["get", "crd", DEFINITION, "-o", "json"]).await?)?;
    assert_eq!(definition["status"]["storedVersions"], json!(["v3"]));
    assert_eq!(definition["spec"]["versions"].as_array().map(Vec::len), Some(1));
    let shadows = ctx
        .kubectl(&["get", SHADOWS, "-A", "-o", "custom-columns=:.metadata.namespace,:.metadata.name,:.spec"])
        .await?;
    assert_eq!(shadows.matches("attempt:0").count(), 3, "{shadows}");
    assert!(!shadows.contains(OLD_NAMESPACE) && !shadows.contains("brs-gone"), "{shadows}");
    let policies =
        ctx.kubectl(&["get", "validatingadmissionpolicies,validatingadmissionpolicybindings", "-o", "name"]).await?;
    assert!(!policies.contains("brupop-earlier-versions"), "{policies}");

    let world = ctx.until("the shadows are recorded", |world| world.shadows.len() == 3).await?;
    let kept = record(&world, "node-1");
    assert!(kept.failures == 3 && kept.not_before.is_some() && kept.version_failures.is_empty(), "{kept:?}");
    assert_eq!(record(&world, "node-2").failures, 0);
    for shadow in world.shadows.values() {
        assert!(shadow.owner.is_some(), "{shadow:?}");
    }
    let record = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "configmaps", "-o", "yaml"]).await?;
    for part in
        ["brs-gone", "1.19.0", "StagedUpdate", "brs-node-1", "crash_count", "conversionReviewVersions", "DaemonSet"]
    {
        assert!(record.contains(part), "{part} is not recorded:\n{record}");
    }
    Ok(())
}

/// Runs the commands about a node that the takeover has printed, which contain `part`.
async fn run_printed(ctx: &ScenarioContext, printed: &str, node: &str, part: &str) -> anyhow::Result<()> {
    let about = |line: &&str| {
        line.starts_with(&format!("left: {node} ")) || line.starts_with(&format!("left: the host of {node} "))
    };
    let commands = printed.lines().filter(about).filter_map(|line| Some(&line[line.find(": kubectl ")? + 2..]));
    let commands: Vec<&str> = commands.filter(|command| command.contains(part)).collect();
    anyhow::ensure!(commands.len() == 1, "{commands:?}: {printed}");
    shell(ctx, commands[0]).await?;
    Ok(())
}

/// Installs the operator as documented, and updates all nodes.
async fn updates(ctx: &ScenarioContext, printed: &str) -> anyhow::Result<()> {
    let host = |node: &str| ctx.bed.member(node).map(|member| member.host.clone());
    let (rebooted, armed) = (host("node-2")?, host("node-3")?);
    let boots = (rebooted.snapshot().boot_id, armed.snapshot().boot_id);
    // The definitions without force, as documented; the rest with the programs of the test.
    let lines = install_lines()?;
    let (definitions, _) = lines.rsplit_once("&&").context("more commands")?;
    shell(ctx, definitions).await?;
    ctx.install().await?;
    ctx.until("the armed host is left alone", |world| {
        condition_of(world, "node-3", BLOCKED).is_some_and(|condition| condition.reason == "HostArmedByOther")
    })
    .await?;
    ctx.renewals(2).await?;
    let world = ctx.bed.recorder.so_far()?.end();
    assert!(is_armed(&armed) && armed.snapshot().boot_id == boots.1);
    assert!(world.nodes["node-2"].fields.contains_key(&Field::Unschedulable), "node-2 stays cordoned");
    assert!(!is_on(&world, "node-1", &NEW), "node-1 is in back-off, with its image");

    run_printed(ctx, printed, "node-2", "uncordon").await?;
    let uncordoned = |world: &ClusterState| !world.nodes["node-2"].fields.contains_key(&Field::Unschedulable);
    ctx.until("node-2 is in service", |world| uncordoned(world) && is_on(world, "node-2", &NEW)).await?;
    run_printed(ctx, printed, "node-3", names::RETRY_ANNOTATION).await?;
    let world = ctx.until("node-3 is updated", |world| is_on(world, "node-3", &NEW)).await?;
    assert!(!is_on(&world, "node-1", &NEW), "node-1 is in back-off");
    run_printed(ctx, printed, "node-1", names::RETRY_ANNOTATION).await?;
    ctx.updated().await?;
    assert_eq!(rebooted.snapshot().boot_id, boots.0, "node-2 was on the version");
    Ok(())
}
