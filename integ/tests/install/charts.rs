//! Renderings of the charts: that of the default values is the manifest, and each value changes what it names.

use std::path::Path;

use anyhow::{Context as _, ensure};
use deploy::monitoring::{dashboard_map, pod_monitor, prometheus_rule};
use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::helm::{DEFINITIONS, Helm, OPERATOR, Objects, ROOT, manifest};

const CONTROLLER: &str = "Deployment brupop-system/brupop-controller";
const APISERVER: &str = "Deployment brupop-system/brupop-apiserver";
const AGENT: &str = "DaemonSet brupop-agents/brupop-agent";
const HOOK: &str = "Deployment brupop-system/brupop-aws";
const POLICY: &str = "BottlerocketUpdateOperator brupop-system/default";
const WORKLOADS: [&str; 3] = [CONTROLLER, APISERVER, AGENT];

/// A rendering without the annotation by which Helm keeps an object, which so many have.
fn without_keep(mut rendered: Objects, expected: usize) -> anyhow::Result<Objects> {
    let mut kept = 0;
    for object in rendered.values_mut() {
        if object["metadata"]["annotations"] == json!({"helm.sh/resource-policy": "keep"}) {
            object["metadata"].as_object_mut().context("no metadata")?.remove("annotations");
            kept += 1;
        }
    }
    ensure!(kept == expected, "{kept} objects are kept, not {expected}");
    Ok(rendered)
}

#[tokio::test]
async fn default_rendering_is_the_manifest() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let whole = json!({"namespaces": {"system": {"create": true}}});
    assert_eq!(without_keep(helm.render(OPERATOR, &whole).await?, 3)?, manifest("brupop.yaml")?);
    let mut without_namespace = manifest("brupop.yaml")?;
    without_namespace.remove("Namespace brupop-system");
    assert_eq!(without_keep(helm.render(OPERATOR, &json!({})).await?, 2)?, without_namespace);

    let definitions = manifest("crds.yaml")?;
    assert_eq!(helm.render(DEFINITIONS, &json!({"keep": false})).await?, definitions);
    assert_eq!(without_keep(helm.render(DEFINITIONS, &json!({})).await?, definitions.len())?, definitions);

    // The right to delete pods is the other manifest.
    let forced = helm.render(OPERATOR, &json!({"rbac": {"forceDrain": true}})).await?;
    for (id, object) in manifest("force.yaml")? {
        assert_eq!(forced.get(&id), Some(&object));
    }
    assert_eq!(forced.len(), without_namespace.len() + 2);

    // So is the hook for AWS.
    let with_hook = helm.render(OPERATOR, &json!({"aws": {"enabled": true}})).await?;
    let hook = manifest("aws.yaml")?;
    for (id, object) in &hook {
        assert_eq!(with_hook.get(id), Some(object), "{id}");
    }
    assert_eq!(with_hook.len(), without_namespace.len() + hook.len());
    Ok(())
}

#[tokio::test]
async fn charts_pass_lint_and_package() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    for chart in [OPERATOR, DEFINITIONS] {
        helm.line(&format!("lint --strict --namespace {SYSTEM_NAMESPACE} {chart}")).await?;
    }
    Ok(())
}

/// An object, the place in it that a value changes (empty: the object itself), and what is there then; null: nothing.
type Change = (&'static str, &'static str, Value);

/// Values, with what they change.
fn rows() -> anyhow::Result<Vec<(Value, Vec<Change>)>> {
    const POD: &str = "/spec/template/spec";
    const ANNOTATED: &str = "/spec/template/metadata/annotations";
    let args = "/spec/template/spec/containers/0/args";
    let image = "/spec/template/spec/containers/0/image";
    let digest = format!("sha256:{}", "a".repeat(64));
    let zone = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}});
    let spread =
        json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]);
    let cordoned = json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"});
    let kube_system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
    let dns = json!([{"namespaceSelector": kube_system, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]);
    let of = |object: &'static str, place: &'static str, is: Value| (object, place, is);
    let (rules, dashboards) = (prometheus_rule()?, dashboard_map());
    Ok(vec![
        (
            json!({"image": {"registry": "registry.example/brupop/", "tag": "v9", "digests": {"agent": digest}}}),
            vec![
                of(CONTROLLER, image, json!("registry.example/brupop/brupop-controller:v9")),
                of(AGENT, image, json!(format!("registry.example/brupop/brupop-agent:v9@{digest}"))),
            ],
        ),
        // As the chart of a release has it: the tag names the version.
        (
            json!({"image": {"digests": {"agent": digest}}}),
            vec![of(AGENT, image, json!(format!("brupop-agent:v{}@{digest}", env!("CARGO_PKG_VERSION"))))],
        ),
        (
            json!({"image": {"pullPolicy": "Always"}, "imagePullSecrets": [{"name": "registry"}]}),
            WORKLOADS
                .into_iter()
                .flat_map(|workload| {
                    [
                        of(workload, "/spec/template/spec/imagePullSecrets", json!([{"name": "registry"}])),
                        of(workload, "/spec/template/spec/containers/0/imagePullPolicy", json!("Always")),
                    ]
                })
                .collect(),
        ),
        (
            json!({"commonLabels": {"team": "a"}, "commonAnnotations": {"note": "1"}, "agent": {"podAnnotations": {"own": "2"}}}),
            vec![
                of("Namespace brupop-agents", "/metadata/labels/team", json!("a")),
                of("ClusterRole brupop-controller", "/metadata/annotations/note", json!("1")),
                of(POLICY, "/metadata/labels/team", json!("a")),
                of(AGENT, "/spec/template/metadata/labels/team", json!("a")),
                of(AGENT, "/spec/selector/matchLabels/team", Value::Null),
                of(AGENT, ANNOTATED, json!({"note": "1", "own": "2"})),
                of(CONTROLLER, "/spec/template/metadata/annotations/note", json!("1")),
            ],
        ),
        (
            json!({"logging": {"format": "json", "level": "debug"}, "agent": {"logLevel": "info,agent=trace"}}),
            vec![
                of(APISERVER, "/spec/template/spec/containers/0/args/5", json!("--log-format=json")),
                of(APISERVER, "/spec/template/spec/containers/0/args/6", json!("--log-filter=debug")),
                of(AGENT, "/spec/template/spec/containers/0/args/8", json!("--log-filter=info,agent=trace")),
            ],
        ),
        (
            json!({"controller": {
                "replicas": 3, "priorityClassName": "", "tolerations": [], "nodeSelector": {"pool": "a"}, "affinity": zone,
                "topologySpreadConstraints": spread, "resources": {"limits": {"memory": "1Gi"}}, "podLabels": {"b": "c"},
            }}),
            vec![
                of(CONTROLLER, "/spec/replicas", json!(3)),
                of(CONTROLLER, "/spec/template/spec/priorityClassName", Value::Null),
                of(CONTROLLER, "/spec/template/spec/tolerations", json!([cordoned])),
                of(CONTROLLER, "/spec/template/spec/nodeSelector", json!({"kubernetes.io/os": "linux", "pool": "a"})),
                of(CONTROLLER, "/spec/template/spec/affinity/nodeAffinity", zone["nodeAffinity"].clone()),
                of(CONTROLLER, "/spec/template/spec/topologySpreadConstraints", spread.clone()),
                of(CONTROLLER, "/spec/template/spec/containers/0/resources/limits/memory", json!("1Gi")),
                of(CONTROLLER, "/spec/template/spec/containers/0/resources/requests/memory", json!("64Mi")),
                of(CONTROLLER, "/spec/template/metadata/labels/b", json!("c")),
                of(CONTROLLER, "/spec/selector/matchLabels/b", Value::Null),
            ],
        ),
        (
            json!({"agent": {
                "nodeSelector": {"pool": "a"}, "tolerations": [{"key": "x", "operator": "Exists"}], "affinity": zone,
                "resources": {"limits": {"memory": "64Mi"}}, "priorityClassName": "own", "podLabels": {"b": "c"}, "extraArgs": ["--x"],
            }}),
            vec![
                of(AGENT, "/spec/template/spec/affinity", zone.clone()),
                of(AGENT, "/spec/template/spec/containers/0/resources/limits/memory", json!("64Mi")),
                of(AGENT, "/spec/template/spec/priorityClassName", json!("own")),
                of(AGENT, "/spec/template/metadata/labels/b", json!("c")),
                of(AGENT, "/spec/template/spec/containers/0/args/7", json!("--x")),
                of(
                    AGENT,
                    "/spec/template/spec/nodeSelector",
                    json!({"bottlerocket.aws/updater-interface-version": "2.0.0", "pool": "a"}),
                ),
                of(AGENT, "/spec/template/spec/tolerations", json!([{"key": "x", "operator": "Exists"}])),
            ],
        ),
        (
            json!({
                "apiserver": {
                    "replicas": 4, "priorityClassName": "own", "tolerations": [{"key": "x"}], "nodeSelector": {"pool": "a"}, "affinity": zone,
                    "topologySpreadConstraints": spread, "resources": {"limits": {"memory": "1Gi"}}, "podLabels": {"b": "c"},
                    "podAnnotations": {"own": "2"}, "logLevel": "debug", "extraArgs": ["--x"],
                },
                "controller": {"podAnnotations": {"own": "3"}, "logLevel": "trace"},
            }),
            vec![
                of(APISERVER, "/spec/replicas", json!(4)),
                of(APISERVER, "/spec/template/spec/priorityClassName", json!("own")),
                of(APISERVER, "/spec/template/spec/tolerations", json!([cordoned, {"key": "x"}])),
                of(APISERVER, "/spec/template/spec/nodeSelector", json!({"kubernetes.io/os": "linux", "pool": "a"})),
                of(APISERVER, "/spec/template/spec/affinity/nodeAffinity", zone["nodeAffinity"].clone()),
                of(APISERVER, "/spec/template/spec/topologySpreadConstraints", spread.clone()),
                of(APISERVER, "/spec/template/spec/containers/0/resources/limits/memory", json!("1Gi")),
                of(APISERVER, "/spec/template/metadata/labels/b", json!("c")),
                of(APISERVER, "/spec/template/metadata/annotations/own", json!("2")),
                of(APISERVER, "/spec/template/spec/containers/0/args/5", json!("--log-filter=debug")),
                of(APISERVER, "/spec/template/spec/containers/0/args/6", json!("--x")),
                of(CONTROLLER, "/spec/template/metadata/annotations/own", json!("3")),
                of(CONTROLLER, "/spec/template/spec/containers/0/args/7", json!("--log-filter=trace")),
            ],
        ),
        (
            json!({"namespaces": {"agents": {"create": false, "name": "hosts"}}}),
            vec![
                of("Namespace hosts", "", Value::Null),
                of(
                    "DaemonSet hosts/brupop-agent",
                    POD,
                    manifest("brupop.yaml").map_or(Value::Null, |all| all[AGENT]["spec"]["template"]["spec"].clone()),
                ),
                of("Role hosts/brupop-controller", "/metadata/namespace", json!("hosts")),
                of(CONTROLLER, "/spec/template/spec/containers/0/args/1", json!("--agent-namespace=hosts")),
            ],
        ),
        (
            json!({"policy": {"enabled": true, "spec": {"maxUnavailable": "10%", "drain": {"timeout": "1h"}}}}),
            vec![
                of(POLICY, "/spec/enabled", json!(true)),
                of(POLICY, "/spec/maxUnavailable", json!("10%")),
                of(POLICY, "/spec/drain/timeout", json!("1h")),
                of(POLICY, "/spec/version/target", json!("latest")),
            ],
        ),
        (json!({"policy": {"create": false}}), vec![of(POLICY, "", Value::Null)]),
        (
            json!({"clusterDomain": "corp.example", "certificate": {"source": "cert-manager", "issuer": {"name": "own"}}, "controller": {"extraArgs": ["--trust-wait=1m"]}}),
            vec![
                of(CONTROLLER, "/spec/template/spec/containers/0/args/7", json!("--cluster-domain=corp.example")),
                of(CONTROLLER, "/spec/template/spec/containers/0/args/8", json!("--serving-certificate=provided")),
                of(CONTROLLER, "/spec/template/spec/containers/0/args/9", json!("--trust-wait=1m")),
                of(
                    "Certificate brupop-system/brupop-apiserver",
                    "/spec/dnsNames/1",
                    json!("brupop-apiserver.brupop-system.svc.corp.example"),
                ),
                of("Certificate brupop-system/brupop-apiserver", "/spec/issuerRef/name", json!("own")),
            ],
        ),
        (
            json!({"certificate": {"source": "provided"}}),
            vec![
                of(CONTROLLER, "/spec/template/spec/containers/0/args/7", json!("--serving-certificate=provided")),
                of("Certificate brupop-system/brupop-apiserver", "", Value::Null),
            ],
        ),
        (
            json!({"networkPolicy": {"apiServerPorts": [8443], "prometheusPort": 10902}}),
            vec![
                of(
                    "NetworkPolicy brupop-system/brupop-controller",
                    "/spec/egress/0/ports",
                    json!([{"port": 8443, "protocol": "TCP"}]),
                ),
                of("NetworkPolicy brupop-system/brupop-controller", "/spec/egress/2/ports/0/port", json!(10902)),
            ],
        ),
        (
            json!({"networkPolicy": {"agentDNS": dns}}),
            vec![
                of("NetworkPolicy brupop-agents/brupop-agent", "/spec/egress/1/to", dns.clone()),
                of("NetworkPolicy brupop-system/brupop-controller", "/spec/egress/1/to", Value::Null),
            ],
        ),
        (
            json!({"networkPolicy": {"enabled": false}, "rbac": {"aggregateRoles": false}}),
            vec![
                of("NetworkPolicy brupop-system/brupop-default-deny", "", Value::Null),
                of("ClusterRole brupop-aggregate-to-edit", "", Value::Null),
            ],
        ),
        (
            json!({"monitoring": {"podMonitor": {"enabled": true}, "interval": "15s", "labels": {"release": "prometheus"}}}),
            vec![
                of("PodMonitor brupop-system/brupop", "/spec/podMetricsEndpoints/0/interval", json!("15s")),
                of("PodMonitor brupop-system/brupop", "/spec/jobLabel", json!("app.kubernetes.io/component")),
                of("PodMonitor brupop-system/brupop", "/metadata/labels/release", json!("prometheus")),
            ],
        ),
        (
            json!({"monitoring": {"serviceMonitor": {"enabled": true}}}),
            vec![
                // The endpoints and their settings are those of the PodMonitor.
                of(
                    "ServiceMonitor brupop-system/brupop",
                    "/spec/endpoints",
                    pod_monitor()["spec"]["podMetricsEndpoints"].clone(),
                ),
                of("ServiceMonitor brupop-system/brupop", "/spec/jobLabel", pod_monitor()["spec"]["jobLabel"].clone()),
                of(
                    "Service brupop-system/brupop-controller-metrics",
                    "/metadata/labels/app.kubernetes.io~1component",
                    json!("brupop-controller"),
                ),
                of(
                    "Service brupop-system/brupop-controller-metrics",
                    "/spec/selector/app.kubernetes.io~1component",
                    json!("brupop-controller"),
                ),
            ],
        ),
        (
            json!({"monitoring": {"prometheusRule": {"enabled": true}, "labels": {"release": "prometheus"}}}),
            vec![
                of("PrometheusRule brupop-system/brupop", "/spec", rules["spec"].clone()),
                of("PrometheusRule brupop-system/brupop", "/metadata/labels/release", json!("prometheus")),
            ],
        ),
        (
            json!({"monitoring": {"prometheusRule": {"enabled": true, "runbook": "https://docs.example/runbook/"}}}),
            vec![of(
                "PrometheusRule brupop-system/brupop",
                "/spec/groups/0/rules/0/annotations/runbook_url",
                json!("https://docs.example/runbook/BrupopNoLeader.md"),
            )],
        ),
        (
            json!({"monitoring": {"dashboards": {"enabled": true, "annotations": {"grafana_folder": "Bottlerocket"}}}}),
            vec![
                of("ConfigMap brupop-system/brupop-dashboards", "/data", dashboards["data"].clone()),
                of("ConfigMap brupop-system/brupop-dashboards", "/metadata/labels/grafana_dashboard", json!("1")),
                of(
                    "ConfigMap brupop-system/brupop-dashboards",
                    "/metadata/annotations/grafana_folder",
                    json!("Bottlerocket"),
                ),
            ],
        ),
        (
            json!({"controller": {
                "extraArgs": ["--prometheus-ca-file=/authority/ca.crt"],
                "extraVolumes": [{"name": "authority", "configMap": {"name": "prometheus-ca"}}],
                "extraVolumeMounts": [{"name": "authority", "mountPath": "/authority", "readOnly": true}],
            }}),
            vec![
                of(CONTROLLER, "/spec/template/spec/volumes/2/configMap/name", json!("prometheus-ca")),
                of(CONTROLLER, "/spec/template/spec/containers/0/volumeMounts/2/mountPath", json!("/authority")),
            ],
        ),
        (
            json!({"aws": {
                "enabled": true, "region": "eu-central-1", "logLevel": "debug",
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
            }, "commonAnnotations": {"note": "1"}}),
            vec![
                of(
                    "ServiceAccount brupop-system/brupop-aws",
                    "/metadata/annotations",
                    json!({"eks.amazonaws.com/role-arn": "arn", "note": "1"}),
                ),
                of("ServiceAccount brupop-system/brupop-controller", "/metadata/annotations", json!({"note": "1"})),
                of(
                    HOOK,
                    "/spec/template/spec/containers/0/env",
                    json!([{"name": "AWS_REGION", "value": "eu-central-1"}]),
                ),
                of(HOOK, "/spec/template/spec/containers/0/args/1", json!("--log-filter=debug")),
                of(HOOK, "/spec/strategy", json!({"type": "Recreate"})),
            ],
        ),
        (
            json!({"aws": {"enabled": true}, "networkPolicy": {"enabled": false}}),
            vec![of("NetworkPolicy brupop-system/brupop-aws", "", Value::Null)],
        ),
        (
            json!({"controller": {"replicas": 1}}),
            vec![of(
                CONTROLLER,
                args,
                manifest("brupop.yaml").map_or(Value::Null, |all| {
                    all[CONTROLLER]["spec"]["template"]["spec"]["containers"][0]["args"].clone()
                }),
            )],
        ),
    ])
}

#[tokio::test]
async fn each_value_changes_what_it_names() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    for (values, expected) in rows()? {
        let rendered = helm.render(OPERATOR, &values).await?;
        for (object, place, is) in expected {
            let mut found = rendered.get(object).and_then(|object| object.pointer(place)).cloned().unwrap_or_default();
            if object.contains(" hosts/brupop-agent") && !found.is_null() {
                // Nothing in the agent's pod names its namespace.
                ensure!(!found.to_string().contains("brupop-agents"), "{found}");
            }
            found.sort_all_objects();
            let mut is = is;
            is.sort_all_objects();
            ensure!(found == is, "{values}: {object} {place} is {found}, not {is}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn nothing_names_a_namespace_that_values_replace() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let file = helm.values(&json!({"namespaces": {"agents": {"name": "hosts"}}}))?;
    let text = helm.line(&format!("template brupop {OPERATOR} -n updates -f {file}")).await?;
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    for name in ["brupop-system", "brupop-agents"] {
        let lines: Vec<&&str> = code.iter().filter(|line| line.contains(name)).collect();
        ensure!(lines.is_empty(), "{lines:?}");
    }
    ensure!(code.iter().any(|line| line.contains("https://brupop-apiserver.updates.svc")), "{text}");
    Ok(())
}

#[tokio::test]
async fn invalid_values_are_refused_with_place_and_reason() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let digest = format!("sha256:{}", "a".repeat(64));
    for (values, place, reason) in [
        (json!({"controller": {"replica": 3}}), "/controller", "'replica' not allowed"),
        (json!({"controller": {"replicas": "3"}}), "/controller/replicas", "want integer"),
        (json!({"imagePullSecrets": ["registry"]}), "/imagePullSecrets/0", "want object"),
        (json!({"image": {"digests": {"agent": "v1"}}}), "/image/digests/agent", "does not match pattern"),
        (
            json!({"image": {"tag": "v9", "digests": {"agent": digest, "apiserver": digest, "controller": digest, "aws": digest}}}),
            "image.tag",
            "has no effect",
        ),
        (json!({"networkPolicy": {"apiServerPorts": []}}), "networkPolicy.apiServerPorts", "name a port"),
        (
            json!({"policy": {"spec": {"autoscaling": {"aws": {"mode": "Standby"}}}}}),
            "policy.spec.autoscaling.aws",
            "aws.enabled",
        ),
        (
            json!({"policy": {"spec": {"drain": {"atDeadline": "Force"}}}}),
            "policy.spec.drain.atDeadline",
            "rbac.forceDrain",
        ),
        (
            json!({"policy": {"spec": {"nodeGroups": [
                {"name": "web", "selector": {"matchLabels": {"pool": "web"}}, "drain": {"timeout": "1h"}},
                {"name": "batch", "selector": {"matchLabels": {"pool": "batch"}}, "drain": {"atDeadline": "Force"}},
                {"name": "rest", "selector": {}},
            ]}}}),
            "policy.spec.nodeGroups: drain.atDeadline: Force of the group batch",
            "rbac.forceDrain",
        ),
        (json!({"logging": {"format": "yaml"}}), "/logging/format", "must be one of 'text', 'json'"),
        (json!({"policy": {"enabled": "yes"}}), "/policy/enabled", "want boolean"),
        (json!({"enabled": true}), "enabled", "Updates are enabled by policy.enabled"),
        (json!({"policy": {"spec": {"enabled": true}}}), "/policy/spec", "'enabled' not allowed"),
        (json!({"policy": {"spec": {"maxUnavailble": 1}}}), "/policy/spec", "'maxUnavailble' not allowed"),
        (json!({"policy": {"spec": {"drain": {"timeout": 30}}}}), "/policy/spec/drain/timeout", "want string"),
        (json!({"networkPolicy": {"apiServerPorts": [0]}}), "/networkPolicy/apiServerPorts/0", "minimum"),
        (json!({"namespaces": {"agents": {"name": "Hosts"}}}), "/namespaces/agents/name", "does not match pattern"),
        (
            json!({"namespaces": {"agents": {"name": "brupop-system"}}}),
            "namespaces.agents.name",
            "a namespace of their own",
        ),
        (json!({"certificate": {"source": "cert-manager"}}), "certificate.issuer.name", "the name of an issuer"),
        (json!({"commonLabels": {"app.kubernetes.io/name": "x"}}), "commonLabels", "is set by the chart itself"),
        (
            json!({"controller": {"podLabels": {"app.kubernetes.io/component": "x"}}}),
            "controller.podLabels",
            "is set by the chart itself",
        ),
        (
            json!({"monitoring": {"podMonitor": {"enabled": true}, "serviceMonitor": {"enabled": true}}}),
            "monitoring",
            "not both",
        ),
    ] {
        let file = helm.values(&values)?;
        let error = helm.refused(&format!("template brupop {OPERATOR} -n {SYSTEM_NAMESPACE} -f {file}")).await?;
        ensure!(error.contains(place) && error.contains(reason), "{values}: {error}");
    }
    let error = helm.refused(&format!("template brupop {OPERATOR}")).await?;
    ensure!(error.contains("a namespace of its own, not default"), "{error}");
    let error = helm.refused(&format!("template brupop {DEFINITIONS} --set keep=no")).await?;
    ensure!(error.contains("/keep") && error.contains("want boolean"), "{error}");
    Ok(())
}

#[tokio::test]
async fn another_chart_may_have_the_charts_as_dependencies_with_the_customary_condition() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let folder = tempfile::tempdir()?;
    let charts = folder.path().join("charts");
    std::fs::create_dir(&charts)?;
    let mut dependencies = Vec::new();
    for (name, chart) in [("brupop", OPERATOR), ("brupop-crds", DEFINITIONS)] {
        std::os::unix::fs::symlink(Path::new(ROOT).join(chart).canonicalize()?, charts.join(name))?;
        dependencies.push(json!({"name": name, "version": ">=0.0.0-0", "condition": format!("{name}.enabled")}));
    }
    let chart = json!({"apiVersion": "v2", "name": "umbrella", "version": "0.0.1", "dependencies": dependencies});
    std::fs::write(folder.path().join("Chart.yaml"), chart.to_string())?;
    let umbrella = folder.path().to_str().context("a path of text")?;
    let whole = helm.render(umbrella, &json!({"brupop": {"enabled": true}, "brupop-crds": {"enabled": true}})).await?;
    let operator = helm.render(OPERATOR, &json!({})).await?;
    let definitions = helm.render(DEFINITIONS, &json!({})).await?;
    assert_eq!(whole.len(), operator.len() + definitions.len());
    let without =
        helm.render(umbrella, &json!({"brupop": {"enabled": false}, "brupop-crds": {"enabled": true}})).await?;
    assert_eq!(without, definitions);
    Ok(())
}
