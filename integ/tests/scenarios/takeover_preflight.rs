//! The commands that prepare a takeover from the earlier operator: they show what is there, and change nothing.

use integ::bed::workload;
use integ::oracle::Expectations;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use models::names::BALANCER_LABEL;
use serde_json::{Value, json};

use crate::commands::{output_text, plugin, plugin_as};
use crate::interfere::poll;
use crate::support::{ScenarioContext, nodes, run_expecting};
use crate::uninstall::everything;

const ANY: Expectations = Expectations { max_unavailable: Some(1), nothing_left: false };

const NAMESPACE: &str = "brupop-bottlerocket-aws";
const DEFINITION: &str = "bottlerocketshadows.brupop.bottlerocket.aws";

/// A workload of the earlier operator, with its settings.
fn earlier(kind: &str, name: &str, component: &str, environment: &[(&str, &str)]) -> Value {
    let labels = json!({"brupop.bottlerocket.aws/component": component});
    let env: Vec<Value> = environment.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "annotations": {"meta.helm.sh/release-name": "brupop", "meta.helm.sh/release-namespace": NAMESPACE},
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "app", "image": "example.invalid/brupop:v1.4.0", "env": env}]},
            },
        },
    })
}

/// Installs the definition and the workloads of the earlier operator, as Helm does.
async fn install_earlier(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/earlier-operator.yaml");
    ctx.kubectl(&["apply", "--server-side", "--field-manager=helm", "-f", definition]).await?;
    ctx.kubectl(&["wait", "--for=condition=Established", "crd", DEFINITION]).await?;
    let release = "meta.helm.sh/release-name=bottlerocket-shadow";
    let namespace = format!("meta.helm.sh/release-namespace={NAMESPACE}");
    ctx.kubectl(&["annotate", "crd", DEFINITION, release, &namespace]).await?;
    let record = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
        "metadata": {
            "name": "sh.helm.release.v1.bottlerocket-shadow.v1", "namespace": NAMESPACE,
            "labels": {"owner": "helm", "name": "bottlerocket-shadow", "status": "deployed"},
        },
    });
    let controller = [("MAX_CONCURRENT_UPDATE", "2"), ("SCHEDULER_CRON_EXPRESSION", "0 0 2 * * 7 *")];
    let objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        record,
        earlier("Deployment", "brupop-controller-deployment", "brupop-controller", &controller),
        earlier("Deployment", "brupop-apiserver", "apiserver", &[]),
        earlier("DaemonSet", "brupop-agent", "agent", &[("EXCLUDE_FROM_LB_WAIT_TIME_IN_SEC", "30")]),
    ];
    workload::apply(&ctx.bed.client, objects).await
}

/// Creates a shadow of the earlier operator; without a Node, it has no owner.
async fn shadow(ctx: &ScenarioContext, node: Option<&Node>, wanted: &str, reported: &str) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("brupop.bottlerocket.aws", "v2", "BottlerocketShadow"));
    let shadows: Api<DynamicObject> = Api::namespaced_with(ctx.bed.client.clone(), NAMESPACE, &resource);
    let name = format!("brs-{}", node.map_or_else(|| "gone".to_owned(), Node::name_any));
    let owner =
        node.map(|node| json!([{"apiVersion": "v1", "kind": "Node", "name": node.name_any(), "uid": node.uid()}]));
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "brupop.bottlerocket.aws/v2", "kind": "BottlerocketShadow",
        "metadata": {"name": name, "ownerReferences": owner.unwrap_or_else(|| json!([]))},
        "spec": {"state": wanted, "state_transition_timestamp": null, "version": null},
    }))?;
    poll("the definition is served", async || Ok(shadows.create(&PostParams::default(), &object).await.ok())).await?;
    let status = json!({"status": {
        "current_state": reported, "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": 0,
    }});
    shadows.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// The objects that a takeover is about, with their resourceVersions.
async fn versions(ctx: &ScenarioContext) -> anyhow::Result<String> {
    let columns = "custom-columns=:.kind,:.metadata.name,:.metadata.uid,:.metadata.resourceVersion";
    let definition = ctx.kubectl(&["get", "crd", DEFINITION, "-o", columns]).await?;
    let kinds = "bottlerocketshadows.v2.brupop.bottlerocket.aws,secrets,configmaps";
    let objects = ctx.kubectl(&["-n", NAMESPACE, "get", kinds, "-o", columns]).await?;
    Ok(format!("{definition}{objects}"))
}

/// Waits until Kubernetes has made its own objects of the installation, which come after it.
async fn settled(ctx: &ScenarioContext) -> anyhow::Result<()> {
    poll("the workloads have their pods, and the namespace its own objects", async || {
        let running = ctx
            .kubectl(&["-n", NAMESPACE, "get", "pods", "--field-selector=status.phase=Running", "-o", "name"])
            .await?;
        let own = ctx.kubectl(&["-n", NAMESPACE, "get", "configmaps,serviceaccounts", "-o", "name"]).await?;
        Ok((running.lines().count() >= 4 && own.lines().count() >= 2).then_some(()))
    })
    .await
}

fn check(output: &str, parts: &[&str]) {
    // Texts are wrapped.
    let words = output.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(output.contains(part) || words.contains(part), "{part} is missing in:\n{output}");
    }
}

/// Settings from a file need no cluster.
async fn of_file() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("release.yaml");
    let release = "{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, spec: {chart: {spec: {chart: \
                   bottlerocket-update-operator, sourceRef: {kind: HelmRepository, name: brupop}}}, values: \
                   {max_concurrent_updates: 3, limit: 1}}}";
    std::fs::write(&file, release)?;
    let nowhere = dir.path().join("kubeconfig");
    let proposed = plugin_as(&nowhere, &["takeover", "settings", "--values", &file.display().to_string()]).await?;
    assert!(proposed.status.success(), "{}", output_text(&proposed));
    check(
        &output_text(&proposed),
        &[
            "maxUnavailable: 3",
            "Warning: the earlier operator's chart has no such keys, and ignored them: spec.values.limit",
        ],
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn takeover_commands_show_earlier_install_and_change_nothing() -> anyhow::Result<()> {
    run_expecting(nodes(3), ANY, async |ctx| {
        let nothing = plugin(ctx, &["takeover", "preflight"]).await?;
        assert!(nothing.status.success(), "{}", output_text(&nothing));
        check(&output_text(&nothing), &["there is no earlier operator in the cluster"]);

        install_earlier(ctx).await?;
        let all: Api<Node> = Api::all(ctx.bed.client.clone());
        let found = (all.get("node-1").await?, all.get("node-2").await?);
        shadow(ctx, Some(&found.0), "Idle", "Idle").await?;
        shadow(ctx, Some(&found.1), "RebootedIntoUpdate", "StagedAndPerformedUpdate").await?;
        shadow(ctx, None, "Idle", "Idle").await?;
        // As the earlier operator writes: without a field manager.
        let cordon = json!({"spec": {"unschedulable": true}, "metadata": {"labels": {BALANCER_LABEL: "True"}}});
        all.patch("node-2", &PatchParams::default(), &Patch::Strategic(cordon)).await?;
        ctx.kubectl(&["cordon", "node-3"]).await?;
        settled(ctx).await?;
        let before = (everything(ctx).await?, versions(ctx).await?);

        let output = plugin(ctx, &["takeover", "preflight"]).await?;
        assert!(output.status.success(), "{}", output_text(&output));
        check(
            &output_text(&output),
            &[
                "Earlier operator: release 1.1.0 or later, image tags: v1.4.0",
                "DaemonSet brupop-bottlerocket-aws/brupop-agent",
                "Definition: versions v1, v2, stored in v2 now, in v2 so far, a conversion webhook that does not answer",
                "Shadows: 3; under way: node-2; may reboot: node-2; may be armed: node-2",
                "deletes the definition, and every shadow of this operator with it",
                "recorded in sh.helm.release.v1.bottlerocket-shadow.v1 in the namespace brupop-bottlerocket-aws",
                "kubectl delete secret -n brupop-bottlerocket-aws -l owner=helm,name=bottlerocket-shadow",
                "and uninstall it after the takeover if helm list -A shows it, or delete its objects",
                "shadows whose Node does not exist any more: gone",
                "and without a shadow: node-3",
                "kubectl uncordon node-2",
                "by field manager: node-3 (kubectl)",
                "kubectl label node node-2 node.kubernetes.io/exclude-from-external-load-balancers-",
                "Not known:",
            ],
        );
        let json = plugin(ctx, &["takeover", "preflight", "-o", "json"]).await?;
        let json: Value = serde_json::from_slice(&json.stdout)?;
        assert_eq!((&json["blocked"], &json["definition"]["webhook"]), (&json!(false), &json!("Fails")), "{json:#}");
        assert_eq!(json["shadows"]["withoutNode"], json!(["gone"]), "{json:#}");

        let asked = plugin(ctx, &["takeover", "settings"]).await?;
        assert!(!asked.status.success(), "{}", output_text(&asked));
        check(&output_text(&asked), &["# Choose when", "\"0 0 2 * * 7 *\"", "choose a maintenance window", "--window always"]);
        let proposed = plugin(ctx, &["takeover", "settings", "--window", "always"]).await?;
        assert!(proposed.status.success(), "{}", output_text(&proposed));
        check(&output_text(&proposed), &["enabled: false", "maxUnavailable: 2", "leaveBeforeDrain: 30s"]);

        of_file().await?;

        let watched = plugin(ctx, &["takeover", "watch", "--once"]).await?;
        assert!(watched.status.success(), "{}", output_text(&watched));
        check(
            &output_text(&watched),
            &[
                "without the window that has to be chosen, as if enabled. Nothing is written.",
                // The nodes that are cordoned count against the budget.
                "No node would begin now.",
                "BudgetUsedUp: 2 node(s) are out of service without the operator, node-2 first",
                "wants RebootedIntoUpdate, reports StagedAndPerformedUpdate; its cordon; its balancer label; may reboot",
                "NoShadow",
                "Not known without this operator's agents:",
            ],
        );
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("policy.yaml");
        std::fs::write(&file, &proposed.stdout)?;
        let file = file.display().to_string();
        let watched = plugin(ctx, &["takeover", "watch", "--once", "--policy", &file]).await?;
        check(&output_text(&watched), &["by the policy in", "BudgetUsedUp: 2 node(s)"]);

        assert_eq!((everything(ctx).await?, versions(ctx).await?), before, "nothing has changed");
        Ok(())
    })
    .await?;
    Ok(())
}
