//! Flux applies the installation and the policy from Git every few seconds, by the objects of the page about it.

use anyhow::{Context as _, Result, ensure};
use integ::bed::{merge, workload};
use integ::host::{BootFault, Fault};
use integ::oracle::Expectations;
use integ::pages;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::git::{BRANCH, Git};
use crate::interfere::poll;
use crate::programs::{self, Program, port};
use crate::support::{NEW, OLD, ScenarioContext, nodes, run_expecting};
use crate::tool::{
    DEFINITIONS, PAGE, POLICY, Writes, annotated, brupop, definitions, installation, maybe, policy, served, spec,
};

const NAMESPACE: &str = "flux-system";
/// Interval of both controllers.
const INTERVAL: &str = "5s";
/// User agents of Flux's writes.
const AGENT: &str = "kustomize-controller";

/// Flux, and the repository that it reads.
struct Flux {
    git: Git,
    source: Program,
    kustomize: Program,
    policy: Value,
}

impl Flux {
    /// Starts both controllers.
    async fn start(ctx: &ScenarioContext) -> Result<Self> {
        let control_plane = &ctx.bed.control_plane;
        for program in ["source-controller", "kustomize-controller"] {
            let definitions = programs::folder(program).await?.join("definitions").display().to_string();
            ctx.kubectl(&["apply", "--server-side", "-f", &definitions]).await?;
        }
        ctx.kubectl(&["create", "namespace", NAMESPACE]).await?;
        let storage = control_plane.dir().join("artifacts");
        std::fs::create_dir_all(&storage)?;
        let (artifacts, health) = (format!("127.0.0.1:{}", port()?), format!("127.0.0.1:{}", port()?));
        let common = ["--enable-leader-election=false", "--watch-all-namespaces", "--events-addr=", "--metrics-addr=0"];
        let own = [
            format!("--storage-path={}", storage.display()),
            format!("--storage-addr={artifacts}"),
            format!("--storage-adv-addr={artifacts}"),
            format!("--health-addr={health}"),
        ];
        let arguments: Vec<&str> = common.into_iter().chain(own.iter().map(String::as_str)).collect();
        let environment = [("RUNTIME_NAMESPACE", NAMESPACE)];
        let mut source = Program::start(control_plane, "source-controller", &arguments, &environment).await?;
        source.ready(&format!("http://{health}/readyz")).await?;
        let health = format!("127.0.0.1:{}", port()?);
        let own = format!("--health-addr={health}");
        let arguments: Vec<&str> = common.into_iter().chain([own.as_str()]).collect();
        let mut kustomize = Program::start(control_plane, "kustomize-controller", &arguments, &environment).await?;
        kustomize.ready(&format!("http://{health}/readyz")).await?;
        let git = Git::start(control_plane.dir()).await?;
        Ok(Self { git, source, kustomize, policy: Value::Null })
    }

    async fn end(self, result: Result<()>) -> Result<()> {
        let result = self.kustomize.end(result).await;
        self.source.end(result).await
    }

    /// Applies the page's Kustomization, changed by a merge patch, with the repository that it names.
    async fn install(&mut self, ctx: &ScenarioContext) -> Result<()> {
        self.policy = policy("Users change what Git has", &ctx.bed.options.policy)?;
        let (definitions, operator, policy) = (definitions()?, installation(ctx)?, self.policy.to_string());
        let files = [(DEFINITIONS, &*definitions), ("brupop/operator.yaml", &*operator), (POLICY, &*policy)];
        self.git.push("install the operator", &files).await?;
        let repository = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": {"name": "platform", "namespace": NAMESPACE},
            "spec": {"interval": INTERVAL, "url": self.git.url, "ref": {"branch": BRANCH}},
        });
        let mut kustomization: Value = serde_saphyr::from_str(&pages::yaml(PAGE, "With Flux")?)?;
        merge(&mut kustomization["spec"], &json!({"interval": INTERVAL}));
        for object in [repository, kustomization] {
            workload::apply(&ctx.bed.client, vec![object]).await?;
        }
        self.ready(ctx, "True").await.map(drop)
    }

    /// Changes the policy in Git by a merge patch, and waits until Flux has applied it.
    async fn change(&mut self, ctx: &ScenarioContext, message: &str, patch: &Value) -> Result<()> {
        merge(&mut self.policy, patch);
        self.git.push(message, &[(POLICY, &self.policy.to_string())]).await?;
        self.fetch(ctx).await?;
        self.reconcile(ctx).await
    }

    /// Changes the Kustomization by a merge patch.
    async fn configure(&self, ctx: &ScenarioContext, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        ctx.kubectl(&["-n", NAMESPACE, "patch", "kustomization", "brupop", "--type=merge", "-p", &patch])
            .await
            .map(drop)
    }

    /// The Kustomization's condition Ready, once it is so.
    async fn ready(&self, ctx: &ScenarioContext, status: &str) -> Result<String> {
        poll(&format!("the Kustomization is Ready: {status}"), async || {
            let object = ctx.kubectl(&["-n", NAMESPACE, "get", "kustomization", "brupop", "-o", "json"]).await?;
            let object: Value = serde_json::from_str(&object)?;
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.into_iter().find(|c| c["type"] == "Ready" && c["status"] == status);
            Ok(ready.map(|ready| format!("{}: {}", ready["reason"], ready["message"])))
        })
        .await
    }

    /// Has Flux begin a reconciliation and waits until it has ended, as `flux reconcile` does.
    async fn requested(&self, ctx: &ScenarioContext, kind: &str, name: &str) -> Result<()> {
        let token = rand::random::<u64>().to_string();
        let annotation = format!("reconcile.fluxcd.io/requestedAt={token}");
        ctx.kubectl(&["-n", NAMESPACE, "annotate", kind, name, "--overwrite", &annotation]).await?;
        let path = "jsonpath={.status.lastHandledReconcileAt}";
        poll(&format!("Flux has reconciled the {kind}"), async || {
            let handled = ctx.kubectl(&["-n", NAMESPACE, "get", kind, name, "-o", path]).await?;
            Ok((handled == token).then_some(()))
        })
        .await
    }

    async fn fetch(&self, ctx: &ScenarioContext) -> Result<()> {
        self.requested(ctx, "gitrepository", "platform").await
    }

    async fn reconcile(&self, ctx: &ScenarioContext) -> Result<()> {
        self.requested(ctx, "kustomization", "brupop").await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Flux has to be built: make test-beside"]
async fn flux_reverts_nothing_that_operator_and_users_write_and_the_page_says_what_else_it_removes() -> Result<()> {
    // The operator is uninstalled at the end.
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(2), expectations, async |ctx| {
        let mut flux = Flux::start(ctx).await?;
        let result = walk(ctx, &mut flux).await;
        flux.end(result).await
    })
    .await?;
    Ok(())
}

async fn walk(ctx: &ScenarioContext, flux: &mut Flux) -> Result<()> {
    flux.install(ctx).await.context("step install")?;
    ctx.reported().await?;
    let mut writes = Writes::begin(ctx, AGENT).await?;
    rollout_beside_flux(ctx, flux).await.context("step rollout_beside_flux")?;
    users_change_what_git_does_not_have(ctx, flux).await.context("step users_change_what_git_does_not_have")?;
    writes.ensure_none(ctx).await?;
    health_is_that_of_the_rollout(ctx, flux).await.context("step health_is_that_of_the_rollout")?;
    git_has_what_users_change(ctx, flux).await.context("step git_has_what_users_change")?;
    policy_without_the_annotation(ctx, flux).await.context("step policy_without_the_annotation")?;
    definitions_are_kept(ctx, flux).await.context("step definitions_are_kept")?;
    uninstallation(ctx, flux).await.context("step uninstallation")
}

async fn rollout_beside_flux(ctx: &ScenarioContext, flux: &Flux) -> Result<()> {
    ctx.shop(4).await?;
    let resumed = brupop(ctx, "resume").await?;
    ensure!(
        resumed.contains(&maybe("kustomize-controller", "spec.enabled")) && !resumed.contains("applies spec."),
        "{resumed}"
    );
    ctx.release();
    ctx.updated().await?;
    flux.reconcile(ctx).await?;
    ensure!(spec(ctx).await?["enabled"] == true);
    flux.ready(ctx, "True").await.map(drop)
}

/// The page's policy has the annotation by which Flux merges.
async fn users_change_what_git_does_not_have(ctx: &ScenarioContext, flux: &Flux) -> Result<()> {
    for line in ["pause", "pin 1.20.5", "quarantine 1.20.9"] {
        let text = brupop(ctx, line).await?;
        ensure!(!text.contains("applies spec."), "{line}: {text}");
    }
    ctx.policy(&json!({"drain": {"timeout": "7m"}})).await?;
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, "example.com/note=mine"]).await?;
    flux.reconcile(ctx).await?;
    flux.reconcile(ctx).await?;
    let now = spec(ctx).await?;
    let kept = now["enabled"] == false
        && now["version"]["target"] == "1.20.5"
        && now["version"]["exclude"] == json!(["1.20.9"])
        && now["drain"]["timeout"] == "7m";
    ensure!(kept && annotated(ctx).await?.contains_key("example.com/note"), "{now}");
    let undone = brupop(ctx, "undo").await?;
    flux.reconcile(ctx).await?;
    let now = spec(ctx).await?;
    let returned = now["version"]["exclude"].is_null() && now["version"]["target"] == "1.20.5";
    ensure!(returned && !undone.contains("applies spec.") && now["enabled"] == false, "{undone}: {now}");
    for line in ["pin latest", "resume"] {
        brupop(ctx, line).await?;
    }
    Ok(())
}

async fn health_is_that_of_the_rollout(ctx: &ScenarioContext, flux: &mut Flux) -> Result<()> {
    for member in &ctx.bed.members {
        member.host.script(Fault::boot(BootFault::NewImageFails));
    }
    let bad = semver::Version::new(1, 20, 7);
    ctx.bed.releases.publish(bad);
    let failed = flux.ready(ctx, "False").await?;
    ensure!(failed.contains("HealthCheckFailed") && failed.contains("BottlerocketUpdateOperator"), "{failed}");
    brupop(ctx, "quarantine 1.20.7").await?;
    brupop(ctx, "resume --failures 1.20.7").await?;
    flux.ready(ctx, "True").await?;
    for member in &ctx.bed.members {
        member.host.clear_faults();
    }
    Ok(())
}

/// Git has `spec.enabled`: the Kustomization of the page ignores the field, and without that Flux applies it.
async fn git_has_what_users_change(ctx: &ScenarioContext, flux: &mut Flux) -> Result<()> {
    flux.change(ctx, "enable updates", &json!({"spec": {"enabled": true}})).await?;
    brupop(ctx, "pause").await?;
    flux.reconcile(ctx).await?;
    ensure!(spec(ctx).await?["enabled"] == false, "the Kustomization ignores the field");
    brupop(ctx, "resume").await?;

    flux.configure(ctx, &json!({"spec": {"ignore": null, "interval": "1h"}})).await?;
    flux.reconcile(ctx).await?;
    // Flux has written nothing, as there was no difference, and so it does not own the field.
    let tool =
        "the field manager kustomize-controller applies spec.enabled: if it is a tool that applies its source again";
    for warning in [&*maybe("kustomize-controller", "spec.enabled"), tool] {
        let text = brupop(ctx, "pause").await?;
        ensure!(text.contains(warning), "{text}");
        flux.reconcile(ctx).await?;
        ensure!(spec(ctx).await?["enabled"] == true, "Git decides");
    }
    flux.change(ctx, "leave updates to users", &json!({"spec": {"enabled": null}})).await
}

/// Without its annotation, Flux removes what `kubectl` has written, and leaves what the plugin has.
async fn policy_without_the_annotation(ctx: &ScenarioContext, flux: &mut Flux) -> Result<()> {
    flux.change(ctx, "have Flux decide", &json!({"metadata": {"annotations": null}})).await?;
    brupop(ctx, "pause").await?;
    brupop(ctx, &format!("quarantine {OLD}")).await?;
    ctx.policy(&json!({"drain": {"timeout": "9m"}})).await?;
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, "example.com/note=again", "--overwrite"])
        .await?;
    flux.reconcile(ctx).await?;
    flux.reconcile(ctx).await?;
    let now = spec(ctx).await?;
    ensure!(now["drain"]["timeout"] != "9m", "{now}");
    ensure!(!annotated(ctx).await?.contains_key("example.com/note"));
    ensure!(now["enabled"] == false && now["version"]["exclude"] == json!(["1.20.7", OLD.to_string()]), "{now}");
    Ok(())
}

/// Their annotations keep Flux from pruning them.
async fn definitions_are_kept(ctx: &ScenarioContext, flux: &Flux) -> Result<()> {
    let before = served(ctx).await?;
    flux.git.remove("lose the definitions", DEFINITIONS).await?;
    flux.fetch(ctx).await?;
    flux.reconcile(ctx).await?;
    let now = served(ctx).await?;
    ensure!(before.len() == 3 && now == before, "{before:?}, {now:?}");
    flux.git.push("find them again", &[(DEFINITIONS, &definitions()?)]).await
}

/// As the page says: the tool is suspended first, and its object is deleted last.
async fn uninstallation(ctx: &ScenarioContext, flux: &Flux) -> Result<()> {
    flux.configure(ctx, &json!({"spec": {"suspend": true}})).await?;
    brupop(ctx, "uninstall --yes").await?;
    ctx.kubectl(&["-n", NAMESPACE, "delete", "kustomization", "brupop", "--timeout=60s"]).await?;
    ctx.kubectl(&["-n", NAMESPACE, "delete", "gitrepository", "platform", "--timeout=60s"]).await?;
    let left = ctx.kubectl(&["get", "namespaces", "-o", "name"]).await?;
    ensure!(!left.contains(SYSTEM_NAMESPACE), "{left}");
    let world = ctx.bed.recorder.so_far()?.end();
    ensure!(world.nodes.values().all(|node| !node.claimed()), "a node is still claimed");
    let running = |name: &str| ctx.bed.member(name).map(|member| member.host.snapshot().running_version);
    ensure!(running("node-1")? == NEW && running("node-2")? == NEW);
    Ok(())
}
