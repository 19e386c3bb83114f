//! Uninstalling: everything of the operator is removed, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::Expectations;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use models::names::{AGENT_NAMESPACE, HOLD_ANNOTATION, SYSTEM_NAMESPACE};
use serde_json::json;

use crate::commands::{output_text, plugin, shell};
use crate::interfere::{blocked_drain, poll, release_into_blocked_drain, unblock};
use crate::support::{LIMIT, ScenarioContext, nodes, run_expecting};

/// Kinds of objects that come and go by themselves.
const PASSING: [&str; 5] = ["Event", "Pod", "EndpointSlice", "Endpoints", "ControllerRevision"];

/// Every object in the API server, without transient ones, and the written fields of each Node.
pub(crate) async fn everything(ctx: &ScenarioContext) -> anyhow::Result<BTreeSet<String>> {
    let client = &ctx.bed.client;
    let mut all = BTreeSet::new();
    let discovery = Discovery::new(client.clone()).run().await?;
    for (resource, capabilities) in discovery.groups().flat_map(kube::discovery::ApiGroup::recommended_resources) {
        if !capabilities.supports_operation(verbs::LIST) || PASSING.contains(&resource.kind.as_str()) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        for object in api.list(&ListParams::default()).await.with_context(|| format!("list {}", resource.plural))? {
            let namespace = if capabilities.scope == Scope::Cluster {
                String::new()
            } else {
                object.namespace().unwrap_or_default()
            };
            let id = format!("{} {namespace}/{}", resource.kind, object.name_any());
            if resource.kind == "Node" {
                for label in object.labels() {
                    all.insert(format!("{id}: label {label:?}"));
                }
                for annotation in object.annotations() {
                    all.insert(format!("{id}: annotation {annotation:?}"));
                }
                for entry in object.managed_fields() {
                    all.insert(format!("{id}: fields of {:?}", entry.manager));
                }
                all.insert(format!("{id}: {}", object.data["spec"]));
            }
            all.insert(id);
        }
    }
    Ok(all)
}

/// Waits until the objects are those before: Kubernetes itself cleans up after a deletion, shortly after it.
async fn until_restored(ctx: &ScenarioContext, before: &BTreeSet<String>) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let after = everything(ctx).await?;
        let left: Vec<_> = after.difference(before).collect();
        let lost: Vec<_> = before.difference(&after).collect();
        if left.is_empty() && lost.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(tokio::time::Instant::now() < deadline, "left: {left:#?}\nlost: {lost:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

const ANY: Expectations = Expectations { max_unavailable: Some(1), nothing_left: false };

#[tokio::test(flavor = "multi_thread")]
async fn uninstall_during_drain_releases_node_and_restores_cluster() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.labelled = false;
    options.policy["labelNodes"] = json!(true);
    run_expecting(options, ANY, async |ctx| {
        ctx.guarded_shop(4).await?;
        let before = everything(ctx).await?;
        for by_plugin in [true, false] {
            ctx.install().await?;
            release_into_blocked_drain(ctx).await?;
            if by_plugin {
                plugin_uninstalls(ctx).await.context("the plugin uninstalls")?;
            } else {
                documented_commands_uninstall(ctx).await.context("the documented commands uninstall")?;
            }
            until_restored(ctx, &before).await?;
        }
        let again = plugin(ctx, &["uninstall", "--yes"]).await?;
        assert!(again.status.success(), "{}", output_text(&again));
        Ok(())
    })
    .await?;
    Ok(())
}

async fn plugin_uninstalls(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let asked = plugin(ctx, &["uninstall"]).await?;
    assert!(!asked.status.success() && output_text(&asked).contains("--yes"), "{}", output_text(&asked));
    let dry = plugin(ctx, &["uninstall", "--dry-run"]).await?;
    assert!(dry.status.success() && output_text(&dry).contains("would delete"), "{}", output_text(&dry));
    assert!(everything(ctx).await?.iter().any(|id| id.contains("brs-node-1")), "nothing has gone yet");
    let done = plugin(ctx, &["uninstall", "--yes"]).await?;
    assert!(done.status.success(), "{}", output_text(&done));
    Ok(())
}

/// The commands of `docs/install.md` after a text.
fn block(before: &str) -> Vec<&'static str> {
    const DOCS: &str = include_str!("../../../docs/install.md");
    let (_, block) = DOCS.split_once(before).unwrap_or_default();
    block.split("```").nth(1).unwrap_or_default().lines().skip(1).collect()
}

/// The commands for users without the plugin: those up to the checks, and those after them.
fn documented() -> (Vec<String>, Vec<String>) {
    let lines = block("The same with kubectl alone:");
    let (first, rest) = lines.split_at(lines.iter().position(|line| line.starts_with("# go on")).unwrap_or_default());
    let is_command = |line: &&&str| !line.starts_with('#');
    let owned = |lines: &[&str]| lines.iter().filter(is_command).map(|line| (*line).to_owned()).collect();
    (owned(first), owned(rest))
}

/// A node of which the claim is not looked for stays cordoned for ever.
#[test]
fn users_of_helm_look_at_the_same_before_they_uninstall() {
    let looks = |lines: Vec<&str>| -> Vec<String> {
        let gets = lines.into_iter().filter(|line| line.starts_with("kubectl get "));
        gets.map(|line| line.replace(" -n ", " --namespace ")).collect()
    };
    let (kubectl, helm) = (looks(block("The same with kubectl alone:")), looks(block("### Uninstall with Helm")));
    assert_eq!(kubectl.len(), 4, "{kubectl:?}");
    assert_eq!(helm, kubectl);
}

async fn documented_commands_uninstall(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let (first, rest) = documented();
    let (looks, rest): (Vec<_>, Vec<_>) = first.iter().skip(1).chain(&rest).partition(|line| line.contains(" get "));
    assert!(looks.len() == 4 && rest.len() >= 3, "{looks:?} {rest:?}");
    shell(ctx, &first[0]).await?;
    for look in looks {
        poll("nothing is left", async || {
            let output = shell(ctx, look).await?;
            let bare = output.lines().all(|line| line.split_whitespace().count() < 2);
            Ok(bare.then_some(()))
        })
        .await?;
    }
    for line in rest {
        shell(ctx, line).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of the plugin"]
async fn uninstall_without_a_controller_ends_at_once_and_reports_what_is_left() -> anyhow::Result<()> {
    run_expecting(nodes(2), ANY, async |ctx| {
        let target = blocked_drain(ctx).await?;
        // No node is released while there is no controller.
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "scale", "deployment", "brupop-controller", "--replicas=0"]).await?;
        poll("the controller is gone", async || {
            Ok(ctx.bed.processes_of(deploy::Component::Controller).is_empty().then_some(()))
        })
        .await?;
        let waited = plugin(ctx, &["uninstall", "--yes"]).await?;
        let text = output_text(&waited);
        assert!(!waited.status.success() && text.contains(&format!("the update of {target} is at Draining")), "{text}");
        assert!(text.contains("no brupop-controller runs that could end this") && text.contains("--abandon"), "{text}");
        assert!(ctx.kubectl(&["-n", AGENT_NAMESPACE, "get", "daemonset"]).await?.contains("brupop-agent"));

        // A node with a hold stays cordoned, and that is reported.
        ctx.kubectl(&["annotate", "node", &target, &format!("{HOLD_ANNOTATION}=mine")]).await?;
        let gone = plugin(ctx, &["uninstall", "--yes", "--abandon"]).await?;
        assert!(
            gone.status.success() && output_text(&gone).contains(&format!("kubectl uncordon {target}")),
            "{}",
            output_text(&gone)
        );
        unblock(ctx).await?;
        // Without the hold a second run releases what the first has left.
        ctx.kubectl(&["annotate", "node", &target, &format!("{HOLD_ANNOTATION}-")]).await?;
        let again = plugin(ctx, &["uninstall", "--yes"]).await?;
        assert!(again.status.success(), "{}", output_text(&again));
        let world = ctx.until("the node is as it was", |world| !world.nodes[&target].claimed()).await?;
        assert!(world.shadows.is_empty());
        Ok(())
    })
    .await?;
    Ok(())
}

pub(crate) const EARLIER: &str = "integ/testdata/earlier-operator.yaml";
const EARLIER_SHADOW: &str = "integ/testdata/earlier-shadow.yaml";

/// The installation commands of `docs/install.md`, with the programs of this build.
pub(crate) fn install_lines() -> anyhow::Result<String> {
    const DOCS: &str = include_str!("../../../docs/install.md");
    let (_, section) = DOCS.split_once("\n## Install\n").context("no section")?;
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).context("no lines")?;
    let deploy = integ::bed::Programs::find()?.plugin.with_file_name("brupop-deploy");
    Ok(block.replace("cargo run -p deploy --", &deploy.display().to_string()))
}

/// The objects of the earlier operator, with their versions.
async fn earlier_operator_objects(ctx: &ScenarioContext) -> anyhow::Result<String> {
    let columns = "custom-columns=:.kind,:.metadata.name,:.metadata.uid,:.metadata.resourceVersion";
    let definition = ctx.kubectl(&["get", "crd", "bottlerocketshadows.brupop.bottlerocket.aws", "-o", columns]).await?;
    let objects = ctx
        .kubectl(&[
            "-n",
            "brupop-bottlerocket-aws",
            "get",
            "bottlerocketshadows.v2.brupop.bottlerocket.aws",
            "-o",
            columns,
        ])
        .await?;
    Ok(format!("{definition}{objects}"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of installation and controller have its parts"]
async fn earlier_operator_is_not_modified() -> anyhow::Result<()> {
    run_expecting(nodes(1), ANY, async |ctx| {
        let free = plugin(ctx, &["preflight"]).await?;
        assert!(free.status.success(), "{}", output_text(&free));
        shell(ctx, &format!("kubectl apply --server-side --field-manager=helm -f {EARLIER}")).await?;
        shell(ctx, &format!("kubectl wait --for=condition=Established -f {EARLIER}")).await?;
        poll("the earlier operator's shadow", async || {
            Ok(shell(ctx, &format!("kubectl apply --server-side -f {EARLIER_SHADOW}")).await.ok())
        })
        .await?;
        let theirs = earlier_operator_objects(ctx).await?;
        let before = everything(ctx).await?;

        // The documented installation stops before it changes anything, whichever client applied the definition.
        let refused = format!("{:#}", shell(ctx, &install_lines()?).await.expect_err("installed"));
        assert!(refused.contains(".spec.versions"), "{refused}");
        let forced = install_lines()?.replace("--server-side", "--server-side --force-conflicts");
        let refused = format!("{:#}", shell(ctx, &forced).await.expect_err("installed"));
        assert!(refused.contains("status.storedVersions"), "{refused}");
        let checked = plugin(ctx, &["preflight"]).await?;
        assert!(
            !checked.status.success() && output_text(&checked).contains("versions v1, v2"),
            "{}",
            output_text(&checked)
        );
        assert_eq!(everything(ctx).await?, before);

        // With everything applied that is not refused, the operator waits, and reports the reason, once.
        let _ = shell(ctx, "kubectl apply --server-side -f deploy/manifests/crds.yaml").await;
        poll("the manifest is applied", async || {
            Ok(shell(ctx, "kubectl apply --server-side -f deploy/manifests/brupop.yaml").await.ok())
        })
        .await?;
        let degraded = ctx.until_operator("Degraded", models::condition::ConditionStatus::True).await?;
        assert_eq!(degraded.reason, "ShadowsNotServed", "{degraded:?}");
        assert!(degraded.message.contains("earlier bottlerocket-update-operator"), "{degraded:?}");
        assert!(degraded.message.contains("kubectl brupop takeover"), "{degraded:?}");
        ctx.renewals(3).await?;
        for component in [deploy::Component::Controller, deploy::Component::Apiserver] {
            for process in ctx.bed.processes_of(component) {
                let log = std::fs::read_to_string(ctx.bed.log_file(&process)?)?;
                // The controller's condition is another line.
                let lines = log.lines().filter(|line| !line.contains("operator degraded"));
                let lines = lines.filter(|line| line.contains("bottlerocketshadows"));
                assert_eq!(lines.count(), 1, "{log}");
            }
        }

        let done = plugin(ctx, &["uninstall", "--yes"]).await?;
        assert!(done.status.success(), "{}", output_text(&done));
        let stays = "CustomResourceDefinition bottlerocketshadows.brupop.bottlerocket.aws stays";
        assert!(output_text(&done).contains(stays), "{}", output_text(&done));
        until_restored(ctx, &before).await?;
        assert_eq!(earlier_operator_objects(ctx).await?, theirs);
        Ok(())
    })
    .await?;
    Ok(())
}
