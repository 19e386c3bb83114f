//! The list of all values.

use anyhow::Context;
use kube::Resource as _;
use models::names::AGENT_NAMESPACE;
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};

use super::super::places::key;
use super::shape::{boolean, integer, list_of, map, one_of, pattern, resources, strict, text, texts};
use crate::installation::everything;
use crate::monitoring::{self, DASHBOARD_LABEL};
use crate::options::Component;
use crate::pod::tolerations;
use crate::{crds, network, policy};

/// A label of DNS.
const NAME: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";

/// One value of a chart.
pub(in super::super) struct Setting {
    /// Place among the values, with dots between the levels.
    pub(super) path: String,
    pub(super) about: String,
    pub(super) default: Value,
    /// JSON schema.
    pub(super) schema: Value,
}

fn setting(path: &str, default: Value, schema: Value, about: &str) -> Setting {
    Setting { path: path.to_owned(), about: about.to_owned(), default, schema }
}

/// The comment of a group of values.
pub(super) fn section(path: &str) -> Option<&'static str> {
    Some(match path {
        "image" => {
            "The images brupop-agent, brupop-apiserver and brupop-controller, and brupop-aws where it is enabled."
        }
        "image.digests" => {
            "Digests of the images, such as sha256:…; one that is set decides what is pulled, and the tag only names its version."
        }
        "logging" => "The logs of all programs.",
        "namespaces" => "The operator's own namespace is that of the release, and the agents have another one.",
        "policy" => "The policy: the BottlerocketUpdateOperator default.",
        "certificate" => "The certificate of the web API.",
        "networkPolicy" => "NetworkPolicies deny all connections of the operator's pods except those that they need.",
        "rbac" => "Rights.",
        "hooks" => "Hooks: docs/hooks.md.",
        "monitoring" => {
            "Scraping and alerts by the Prometheus operator, which has to be there, and dashboards for Grafana."
        }
        "controller" => "The controller, which decides: one replica leads, the others are on standby.",
        "apiserver" => "The web API between the agents and the cluster.",
        "agent" => "The agent on each labelled node.",
        "aws" => "The hook that keeps EC2 Auto Scaling groups from replacing nodes: docs/aws.md.",
        _ => return None,
    })
}

/// The values of the chart of the operator.
///
/// # Errors
/// If the manifests lack an object whose field is a default.
pub(in super::super) fn of_operator() -> anyhow::Result<Vec<Setting>> {
    let digest = || pattern("^(sha256:[0-9a-f]{64})?$");
    let (mut spec, crd) = (policy::default()["spec"].take(), crds::of_kind(&BottlerocketUpdateOperator::kind(&()))?);
    let mut schema = strict(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]);
    for object in [&mut spec, &mut schema["properties"]] {
        object.as_object_mut().context("the policy is an object")?.remove("enabled");
    }
    let mut settings = Vec::new();
    settings.extend([
        setting("image.registry", json!(""), pattern("^[^\\s@]*$"), "Registry and path in front of the images' names, such as registry.example/brupop. Empty: bare names, for nodes that have the images."),
        setting("image.tag", json!(""), pattern("^[A-Za-z0-9_.-]{0,128}$"), "Tag of all images. Empty: the appVersion of the chart."),
        setting("image.pullPolicy", json!("IfNotPresent"), one_of(&["Always", "IfNotPresent", "Never"]), "When a node pulls an image."),
        setting("image.digestsOf", json!(""), pattern("^[A-Za-z0-9_.-]{0,128}$"), "The appVersion whose images the digests name. A chart of another one refuses them. Empty: not checked. The chart of a release sets it with its digests."),
        setting("image.digests.agent", json!(""), digest(), "Digest of brupop-agent."),
        setting("image.digests.apiserver", json!(""), digest(), "Digest of brupop-apiserver."),
        setting("image.digests.controller", json!(""), digest(), "Digest of brupop-controller."),
        setting("image.digests.aws", json!(""), digest(), "Digest of brupop-aws."),
        setting("imagePullSecrets", json!([]), list_of(json!({"type": "object", "required": ["name"], "additionalProperties": false, "properties": {"name": text()}})), "Secrets for pulls from the registry, such as {name: registry}. They have to exist in both namespaces."),
        setting("commonLabels", json!({}), texts(), "Labels of all objects and pods, beside those that the operator needs."),
        setting("commonAnnotations", json!({}), texts(), "Annotations of all objects and pods."),
        setting("logging.format", json!("text"), one_of(&["text", "json"]), "Format: text or json."),
        setting("logging.level", json!(""), text(), "Level or filter, such as debug or info,kube=warn. Empty: that of the program, info."),
        setting("clusterDomain", json!("cluster.local"), pattern(models::domain::PATTERN), "Domain of the cluster, for the names in the certificate of the web API."),
        setting("namespaces.system.create", json!(false), boolean(), "Render the Namespace of the release, too. Only for `helm template`: to Helm it exists already. Without it, label it pod-security.kubernetes.io/enforce=restricted yourself."),
        setting("namespaces.agents.create", json!(true), boolean(), "Create the Namespace of the agents. One that exists has to admit pods that mount a socket of the host (pod security `privileged`)."),
        setting("namespaces.agents.name", json!(AGENT_NAMESPACE), pattern(NAME), "Name of the agents' namespace."),
        setting("policy.create", json!(true), boolean(), "Create the policy. Without it, it is yours to create, and no update starts before."),
        setting("policy.enabled", json!(false), boolean(), "True: updates start, on nodes that have the label bottlerocket.aws/updater-interface-version=2.0.0."),
        setting("policy.spec", spec, schema, "All else of the policy: docs/policy.md."),
        setting("certificate.source", json!("managed"), one_of(&["managed", "provided", "cert-manager"]), "Source: `managed` by the controller; `provided` by you, as Secret brupop-apiserver-tls with ca.crt; `cert-manager`, by a Certificate of the chart."),
        setting("certificate.issuer.kind", json!("Issuer"), one_of(&["Issuer", "ClusterIssuer"]), "For `cert-manager`: kind of the issuer. It has to write ca.crt."),
        setting("certificate.issuer.name", json!(""), text(), "For `cert-manager`: name of the issuer."),
        setting("networkPolicy.enabled", json!(true), boolean(), "Create them. They also deny the connections of other pods in both namespaces."),
        setting("networkPolicy.apiServerPorts", json!(network::CLUSTER_API_PORTS), list_of(integer(1, 65535)), "Ports of the cluster's API server, of its Service and of its own."),
        setting("networkPolicy.agentDNS", json!([]), list_of(map()), "Servers of DNS that agents may connect to, as peers of a NetworkPolicy, such as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}. Empty: any address, as NodeLocal DNSCache and DNS on the host need it."),
        setting("networkPolicy.prometheusPort", json!(network::PROMETHEUS_PORT), integer(1, 65535), "Port of Prometheus, for the expressions of the policy."),
        setting("rbac.aggregateRoles", json!(true), boolean(), "Add the operator's resources to the roles view, edit and admin of the cluster."),
        setting("rbac.forceDrain", json!(false), boolean(), "Let the controller delete pods past their budgets, for policies with drain.atDeadline: Force."),
        setting(
            "hooks.jobs",
            json!([]),
            list_of(json!({
                "type": "object", "required": ["namespace", "templates"], "additionalProperties": false,
                "properties": {
                    "namespace": pattern(NAME),
                    // Without any, the rule of the Role would name all of them.
                    "templates": {"type": "array", "minItems": 1, "uniqueItems": true, "items": pattern(NAME)},
                },
            })),
            "Namespaces in which the controller may create Jobs for hooks, each with the PodTemplates that they are made by, such as {namespace: rook-ceph, templates: [noout-set, noout-unset]}.",
        ),
        setting("monitoring.podMonitor.enabled", json!(false), boolean(), "Create a PodMonitor for controller and web API. The namespace of Prometheus needs the label brupop.bottlerocket.aws/metrics=enabled, or the NetworkPolicies deny its requests."),
        setting("monitoring.serviceMonitor.enabled", json!(false), boolean(), "The same as a ServiceMonitor with its Services, for a Prometheus that takes no PodMonitors. Not both."),
        setting("monitoring.interval", json!(monitoring::SCRAPE_INTERVAL), pattern("^([0-9]+(ms|s|m|h))+$"), "Time between two scrapes. More than 2m is too rare for the alerts."),
        setting("monitoring.labels", json!({}), texts(), "Labels of the monitors and of the PrometheusRule, by which Prometheus selects them, such as {release: kube-prometheus-stack}."),
        setting("monitoring.prometheusRule.enabled", json!(false), boolean(), "Create a PrometheusRule with the alerts of docs/metrics.md."),
        setting("monitoring.prometheusRule.runbook", json!(""), pattern("^(https?://[^\\s?#$]+)?$"), "Address of the runbook, to which the alerts lead, such as https://docs.example/brupop/runbook. Empty: that of the project."),
        setting("monitoring.dashboards.enabled", json!(false), boolean(), "Create a ConfigMap with the dashboards, for Grafana's sidecar."),
        setting("monitoring.dashboards.labels", json!({DASHBOARD_LABEL: "1"}), texts(), "Labels by which the sidecar finds it."),
        setting("monitoring.dashboards.annotations", json!({}), texts(), "Annotations of it, such as {grafana_folder: Bottlerocket}."),
    ]);
    for component in [Component::Controller, Component::Apiserver, Component::Agent] {
        settings.extend(of_component(component)?);
    }
    settings.extend([
        setting("aws.enabled", json!(false), boolean(), "Install it, for policies with spec.autoscaling.aws."),
        setting("aws.region", json!(""), pattern("^[a-z0-9-]*$"), "Region of the Auto Scaling groups. Empty: that which IRSA, EKS Pod Identity or the instance's metadata name."),
        setting("aws.serviceAccountAnnotations", json!({}), texts(), "Annotations of its service account, such as eks.amazonaws.com/role-arn for IRSA."),
    ]);
    settings.extend(of_component(Component::Aws)?);
    Ok(settings)
}

fn of_component(component: Component) -> anyhow::Result<Vec<Setting>> {
    let part = key(component);
    let objects = everything()?;
    let workload = objects
        .iter()
        .find(|object| object["metadata"]["name"] == component.name() && !object["spec"]["template"].is_null())
        .with_context(|| format!("{part} has no workload"))?;
    let pod = &workload["spec"]["template"]["spec"];
    let annotations = match &workload["spec"]["template"]["metadata"]["annotations"] {
        Value::Null => json!({}),
        annotations => annotations.clone(),
    };
    let path = |value: &str| format!("{part}.{value}");
    let agent = component == Component::Agent;
    let mut settings = Vec::new();
    // One alone calls AWS.
    if !agent && component != Component::Aws {
        let replicas = &workload["spec"]["replicas"];
        settings.push(setting(&path("replicas"), replicas.clone(), integer(0, 100), "Number of pods."));
    }
    settings.extend([
        setting(&path("resources"), pod["containers"][0]["resources"].clone(), resources(), "Requests and limits. A limit of CPU would slow updates down."),
        setting(&path("priorityClassName"), pod["priorityClassName"].clone(), text(), "Priority class."),
        setting(&path("tolerations"), tolerations(pod).1.into(), list_of(map()), if agent { "Tolerations. By default all: a node with a taint is updated too." } else { "Tolerations beside that of cordoned nodes, on which an update has to be able to end. By default unresponsive nodes for a short time." }),
        setting(&path("nodeSelector"), if agent { json!({}) } else { pod["nodeSelector"].clone() }, texts(), if agent { "Labels of nodes that get an agent, beside the operator's own." } else { "Labels of the nodes that these pods run on." }),
        setting(&path("affinity"), if agent { json!({}) } else { pod["affinity"].clone() }, map(), if agent { "Affinity. A labelled node that it excludes has no agent and is not updated." } else { "Affinity. By default the pods are spread over nodes where that is possible." }),
    ]);
    if !agent {
        let about = "Spread over zones or other topologies.";
        settings.push(setting(&path("topologySpreadConstraints"), json!([]), list_of(map()), about));
    }
    settings.extend([
        setting(&path("podLabels"), json!({}), texts(), "Labels of the pods alone."),
        setting(&path("podAnnotations"), annotations, texts(), "Annotations of the pods alone."),
        setting(&path("logLevel"), json!(""), text(), "Level or filter of its log, instead of logging.level."),
        setting(&path("extraArgs"), json!([]), list_of(text()), "Further arguments of the program."),
    ]);
    if component == Component::Controller {
        let about =
            "Further volumes of its pods, such as a ConfigMap with the authority of Prometheus (docs/expressions.md).";
        settings.extend([
            setting(&path("extraVolumes"), json!([]), list_of(map()), about),
            setting(&path("extraVolumeMounts"), json!([]), list_of(map()), "Where they are mounted."),
        ]);
    }
    Ok(settings)
}

/// The values of the chart of the definitions.
pub(in super::super) fn of_definitions() -> Vec<Setting> {
    vec![
        setting(
            "keep",
            json!(true),
            boolean(),
            "Keep the definitions when the release is uninstalled: with them, Kubernetes deletes all their objects.",
        ),
        setting("labels", json!({}), texts(), "Labels of the definitions."),
        setting("annotations", json!({}), texts(), "Annotations of the definitions."),
    ]
}
