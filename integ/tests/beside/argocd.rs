//! Argo CD applies the installation and the policy from Git, by the objects of the page about it, and reverts what differs at once.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use integ::bed::{merge, workload};
use integ::host::{BootFault, Fault};
use integ::oracle::Expectations;
use integ::pages;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use semver::Version;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::git::{BRANCH, Git};
use crate::interfere::poll;
use crate::programs::{self, Program, port};
use crate::support::{ScenarioContext, nodes, run_expecting};
use crate::tool::{
    DEFINITIONS, PAGE, POLICY, Writes, annotated, brupop, definitions, installation, maybe, policy, served, spec,
};

const NAMESPACE: &str = "argocd";
/// User agent of Argo CD's writes.
const AGENT: &str = "argocd-application-controller";

/// Argo CD, and the repository that it reads.
struct ArgoCd {
    git: Git,
    redis: Program,
    repository: Program,
    controller: Program,
    policy: Value,
}

impl ArgoCd {
    /// Starts redis, the repository server and the application controller.
    async fn start(ctx: &ScenarioContext) -> Result<Self> {
        let control_plane = &ctx.bed.control_plane;
        let folder = programs::folder("argocd").await?;
        ctx.kubectl(&["apply", "--server-side", "-f", &folder.join("definitions").display().to_string()]).await?;
        ctx.kubectl(&["create", "namespace", NAMESPACE]).await?;
        workload::apply(&ctx.bed.client, settings(ctx)?).await?;

        let redis_port = port()?.to_string();
        let redis = ["--port", &redis_port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let redis = Program::start_as(control_plane, "redis", &redis_server()?, &redis, &[])?;
        let redis_address = format!("127.0.0.1:{redis_port}");
        poll("redis listens", async || Ok(TcpStream::connect(&redis_address).await.ok().map(drop))).await?;

        let program = folder.join("argocd");
        let keys = control_plane.dir().join("gpg").display().to_string();
        let (repository_port, metrics) = (port()?.to_string(), port()?.to_string());
        let arguments = [
            "--redis",
            &redis_address,
            "--address",
            "127.0.0.1",
            "--port",
            &repository_port,
            "--metrics-address",
            "127.0.0.1",
            "--metrics-port",
            &metrics,
            "--disable-tls",
        ];
        let environment = [
            ("ARGOCD_BINARY_NAME", "argocd-repo-server"),
            ("ARGOCD_GPG_ENABLED", "false"),
            ("ARGOCD_GNUPGHOME", &keys),
            ("ARGOCD_PLUGINSOCKFILEPATH", &keys),
        ];
        std::fs::create_dir_all(&keys)?;
        let mut repository = Program::start_as(control_plane, "repo-server", &program, &arguments, &environment)?;
        repository.ready(&format!("http://127.0.0.1:{metrics}/healthz")).await?;

        let metrics = port()?.to_string();
        let repository_address = format!("127.0.0.1:{repository_port}");
        let arguments = [
            "--namespace",
            NAMESPACE,
            "--redis",
            &redis_address,
            "--repo-server",
            &repository_address,
            "--repo-server-plaintext",
            "--metrics-port",
            &metrics,
            "--app-resync",
            "5",
        ];
        let environment = [("ARGOCD_BINARY_NAME", "argocd-application-controller")];
        let mut controller =
            Program::start_as(control_plane, "application-controller", &program, &arguments, &environment)?;
        controller.ready(&format!("http://127.0.0.1:{metrics}/healthz")).await?;
        let git = Git::start(control_plane.dir()).await?;
        Ok(Self { git, redis, repository, controller, policy: Value::Null })
    }

    async fn end(self, result: Result<()>) -> Result<()> {
        let result = self.controller.end(result).await;
        let result = self.repository.end(result).await;
        self.redis.end(result).await
    }

    /// Applies the page's Application with the repository and the cluster of this test, and waits until it is synchronized.
    async fn install(&mut self, ctx: &ScenarioContext) -> Result<()> {
        self.policy = policy("Users change what Git has", &ctx.bed.options.policy)?;
        let (definitions, operator, policy) = (definitions()?, installation(ctx)?, self.policy.to_string());
        let files = [(DEFINITIONS, &*definitions), ("brupop/operator.yaml", &*operator), (POLICY, &*policy)];
        self.git.push("install the operator", &files).await?;
        let mut application: Value = serde_saphyr::from_str(&pages::yaml(PAGE, "With Argo CD")?)?;
        let here = json!({
            "source": {"repoURL": self.git.url, "targetRevision": BRANCH},
            "destination": {"server": ctx.bed.control_plane.url()},
        });
        merge(&mut application["spec"], &here);
        workload::apply(&ctx.bed.client, vec![application]).await?;
        self.synced(ctx).await
    }

    /// Changes the policy in Git by a merge patch, and waits until Argo CD has applied it.
    async fn change(&mut self, ctx: &ScenarioContext, message: &str, patch: &Value) -> Result<()> {
        merge(&mut self.policy, patch);
        self.git.push(message, &[(POLICY, &self.policy.to_string())]).await?;
        self.synced(ctx).await
    }

    /// Changes the Application by a merge patch.
    async fn configure(&self, ctx: &ScenarioContext, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        ctx.kubectl(&["-n", NAMESPACE, "patch", "application", "brupop", "--type=merge", "-p", &patch]).await.map(drop)
    }

    async fn application(&self, ctx: &ScenarioContext) -> Result<Value> {
        let object = ctx.kubectl(&["-n", NAMESPACE, "get", "application", "brupop", "-o", "json"]).await?;
        Ok(serde_json::from_str(&object)?)
    }

    /// Has Argo CD read Git and compare the cluster with it, and waits until it has.
    async fn refresh(&self, ctx: &ScenarioContext) -> Result<Value> {
        let annotation = "argocd.argoproj.io/refresh";
        let set = format!("{annotation}=hard");
        ctx.kubectl(&["-n", NAMESPACE, "annotate", "application", "brupop", "--overwrite", &set]).await?;
        poll("Argo CD has refreshed its Application", async || {
            let application = self.application(ctx).await?;
            Ok(application["metadata"]["annotations"][annotation].is_null().then_some(application))
        })
        .await
    }

    /// Waits until Argo CD says that the cluster is what Git has, and works on nothing.
    async fn synced(&self, ctx: &ScenarioContext) -> Result<()> {
        let mut last = Value::Null;
        let synced = poll("the Application is Synced", async || {
            last = self.refresh(ctx).await?;
            let running = last["status"]["operationState"]["phase"] == "Running" || !last["operation"].is_null();
            Ok((last["status"]["sync"]["status"] == "Synced" && !running).then_some(()))
        })
        .await;
        synced.with_context(|| {
            let status = &last["status"];
            let resources = status["resources"].as_array().cloned().unwrap_or_default();
            let differ: Vec<&Value> = resources.iter().filter(|resource| resource["status"] != "Synced").collect();
            format!("{differ:?} {} {}", status["operationState"]["message"], status["conditions"])
        })
    }

    /// Waits until the Application has a health.
    async fn health(&self, ctx: &ScenarioContext, health: &str) -> Result<()> {
        poll(&format!("the Application is {health}"), async || {
            let application = self.application(ctx).await?;
            Ok((application["status"]["health"]["status"] == health).then_some(()))
        })
        .await
    }
}

/// The program of redis.
fn redis_server() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/beside/redis/get.sh");
    let output = std::process::Command::new(script).output().with_context(|| format!("cannot run {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// The objects that Argo CD is configured by: the page's health script, and the cluster, which programs that run in no pod know by a Secret.
fn settings(ctx: &ScenarioContext) -> Result<Vec<Value>> {
    let part = json!({"app.kubernetes.io/part-of": "argocd"});
    let mut scripts: Value = serde_saphyr::from_str(&pages::yaml(PAGE, "Health in Argo CD")?)?;
    merge(&mut scripts["metadata"], &json!({"labels": part}));
    let kubeconfig: Value = serde_json::from_slice(&std::fs::read(ctx.bed.control_plane.kubeconfig())?)?;
    let (cluster, user) = (&kubeconfig["clusters"][0]["cluster"], &kubeconfig["users"][0]["user"]);
    let config = json!({"tlsClientConfig": {
        "caData": cluster["certificate-authority-data"],
        "certData": user["client-certificate-data"],
        "keyData": user["client-key-data"],
    }});
    let meta = |name: &str, labels: &Value| json!({"name": name, "namespace": NAMESPACE, "labels": labels});
    let secret = json!({"argocd.argoproj.io/secret-type": "cluster"});
    Ok(vec![
        scripts,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("argocd-rbac-cm", &part)}),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": meta("argocd-secret", &part),
            "stringData": {"server.secretkey": "a key of this test"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": meta("cluster", &secret),
            "stringData": {"name": "bed", "server": ctx.bed.control_plane.url(), "config": config.to_string()},
        }),
        json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": meta("default", &json!({})),
            "spec": {
                "sourceRepos": ["*"], "destinations": [{"namespace": "*", "server": "*"}],
                "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
            },
        }),
    ])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Argo CD has to be built: make test-beside"]
async fn argo_cd_reverts_nothing_that_operator_and_users_write_and_shows_the_health_of_the_rollout() -> Result<()> {
    // The operator is uninstalled at the end.
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(2), expectations, async |ctx| {
        let mut argocd = ArgoCd::start(ctx).await?;
        let result = walk(ctx, &mut argocd).await;
        argocd.end(result).await
    })
    .await?;
    Ok(())
}

async fn walk(ctx: &ScenarioContext, argocd: &mut ArgoCd) -> Result<()> {
    argocd.install(ctx).await.context("step install")?;
    ctx.reported().await?;
    argocd.health(ctx, "Suspended").await.context("updates are disabled")?;
    let mut writes = Writes::begin(ctx, AGENT).await?;
    rollout_beside_argo_cd(ctx, argocd).await.context("step rollout_beside_argo_cd")?;
    users_change_what_git_does_not_have(ctx, argocd).await.context("step users_change_what_git_does_not_have")?;
    writes.ensure_none(ctx).await?;
    health_is_that_of_the_rollout(ctx, argocd).await.context("step health_is_that_of_the_rollout")?;
    git_has_what_users_change(ctx, argocd).await.context("step git_has_what_users_change")?;
    client_side_apply(ctx, argocd).await.context("step client_side_apply")?;
    definitions_are_kept(ctx, argocd).await.context("step definitions_are_kept")?;
    uninstallation(ctx, argocd).await.context("step uninstallation")
}

async fn rollout_beside_argo_cd(ctx: &ScenarioContext, argocd: &ArgoCd) -> Result<()> {
    ctx.shop(4).await?;
    let resumed = brupop(ctx, "resume").await?;
    ensure!(
        resumed.contains(&maybe("argocd-controller", "spec.enabled")) && !resumed.contains("applies spec."),
        "{resumed}"
    );
    ctx.release();
    ctx.updated().await?;
    argocd.synced(ctx).await?;
    ensure!(spec(ctx).await?["enabled"] == true);
    argocd.health(ctx, "Healthy").await
}

async fn users_change_what_git_does_not_have(ctx: &ScenarioContext, argocd: &ArgoCd) -> Result<()> {
    for line in ["pause", "pin 1.20.5", "quarantine 1.20.9"] {
        let text = brupop(ctx, line).await?;
        ensure!(!text.contains("applies spec."), "{line}: {text}");
    }
    ctx.policy(&json!({"drain": {"timeout": "7m"}})).await?;
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, "example.com/note=mine"]).await?;
    argocd.synced(ctx).await?;
    argocd.synced(ctx).await?;
    let now = spec(ctx).await?;
    let kept = now["enabled"] == false
        && now["version"]["target"] == "1.20.5"
        && now["version"]["exclude"] == json!(["1.20.9"])
        && now["drain"]["timeout"] == "7m";
    ensure!(kept && annotated(ctx).await?.contains_key("example.com/note"), "{now}");
    let undone = brupop(ctx, "undo").await?;
    argocd.synced(ctx).await?;
    let now = spec(ctx).await?;
    let returned = now["version"]["exclude"].is_null() && now["version"]["target"] == "1.20.5";
    ensure!(returned && !undone.contains("applies spec.") && now["enabled"] == false, "{undone}: {now}");
    for line in ["pin latest", "resume"] {
        brupop(ctx, line).await?;
    }
    argocd.health(ctx, "Healthy").await
}

async fn health_is_that_of_the_rollout(ctx: &ScenarioContext, argocd: &ArgoCd) -> Result<()> {
    for member in &ctx.bed.members {
        member.host.script(Fault::boot(BootFault::NewImageFails));
    }
    ctx.bed.releases.publish(Version::new(1, 20, 7));
    argocd.health(ctx, "Degraded").await?;
    brupop(ctx, "quarantine 1.20.7").await?;
    brupop(ctx, "resume --failures 1.20.7").await?;
    argocd.health(ctx, "Healthy").await?;
    for member in &ctx.bed.members {
        member.host.clear_faults();
    }
    Ok(())
}

/// Git has `spec.enabled`: the Application of the page ignores the field and leaves it alone.
async fn git_has_what_users_change(ctx: &ScenarioContext, argocd: &mut ArgoCd) -> Result<()> {
    argocd.change(ctx, "enable updates", &json!({"spec": {"enabled": true}})).await?;
    brupop(ctx, "pause").await?;
    argocd.change(ctx, "allow two nodes", &json!({"spec": {"maxUnavailable": 2}})).await?;
    let now = spec(ctx).await?;
    ensure!(now["maxUnavailable"] == 2 && now["enabled"] == false, "the Application respects what it ignores: {now}");

    // The differences are ignored, and each synchronization overwrites them.
    argocd.configure(ctx, &json!({"spec": {"syncPolicy": {"syncOptions": ["ServerSideApply=true"]}}})).await?;
    argocd.synced(ctx).await?;
    ensure!(spec(ctx).await?["enabled"] == false, "no difference is shown");
    argocd.change(ctx, "allow one node", &json!({"spec": {"maxUnavailable": 1}})).await?;
    let now = spec(ctx).await?;
    ensure!(now["maxUnavailable"] == 1 && now["enabled"] == true, "overwritten by the next synchronization: {now}");

    // Nothing is ignored: the plugin says who reverts it, before or after that has happened.
    argocd.configure(ctx, &json!({"spec": {"ignoreDifferences": null}})).await?;
    argocd.synced(ctx).await?;
    let text = crate::commands::output_text(&crate::commands::plugin(ctx, &["pause"]).await?);
    let tool =
        "the field manager argocd-controller applies spec.enabled: if it is a tool that applies its source again";
    ensure!(text.contains(tool), "{text}");
    poll("updates are enabled again", async || {
        argocd.synced(ctx).await?;
        Ok((spec(ctx).await?["enabled"] == true).then_some(()))
    })
    .await
}

/// Without the page's options, Argo CD applies as `kubectl apply` does, and finds no difference afterwards either.
async fn client_side_apply(ctx: &ScenarioContext, argocd: &mut ArgoCd) -> Result<()> {
    argocd.configure(ctx, &json!({"spec": {"syncPolicy": {"syncOptions": null}}})).await?;
    argocd.change(ctx, "allow two nodes again", &json!({"spec": {"maxUnavailable": 2}})).await?;
    ensure!(spec(ctx).await?["maxUnavailable"] == 2);
    let mut writes = Writes::begin(ctx, AGENT).await?;
    argocd.synced(ctx).await?;
    argocd.synced(ctx).await?;
    writes.ensure_none(ctx).await
}

/// Argo CD does not take definitions for its own: the cluster is what Git has, also without them.
async fn definitions_are_kept(ctx: &ScenarioContext, argocd: &ArgoCd) -> Result<()> {
    let before = served(ctx).await?;
    argocd.git.remove("lose the definitions", DEFINITIONS).await?;
    argocd.synced(ctx).await?;
    argocd.synced(ctx).await?;
    let listed = argocd.application(ctx).await?["status"]["resources"].to_string();
    ensure!(
        !listed.contains("CustomResourceDefinition") && listed.contains("DaemonSet"),
        "Git has no definitions: {listed}"
    );
    let now = served(ctx).await?;
    ensure!(before.len() == 3 && now == before, "{before:?}, {now:?}");
    argocd.git.push("find them again", &[(DEFINITIONS, &definitions()?)]).await?;
    argocd.synced(ctx).await
}

/// As the page says: the tool is suspended first, and its object is deleted last.
async fn uninstallation(ctx: &ScenarioContext, argocd: &ArgoCd) -> Result<()> {
    argocd.configure(ctx, &json!({"spec": {"syncPolicy": {"automated": null}}})).await?;
    brupop(ctx, "uninstall --yes").await?;
    ctx.kubectl(&["-n", NAMESPACE, "delete", "application", "brupop", "--timeout=60s"]).await?;
    let left = ctx.kubectl(&["get", "namespaces", "-o", "name"]).await?;
    ensure!(!left.contains(SYSTEM_NAMESPACE), "{left}");
    let world = ctx.bed.recorder.so_far()?.end();
    ensure!(world.nodes.values().all(|node| !node.claimed()), "a node is still claimed");
    Ok(())
}
