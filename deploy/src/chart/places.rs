//! The places of the objects that a value of the chart decides.

use anyhow::{Context, ensure};
use models::names::AWS;
use serde_json::{Map, Value, json};

use crate::admission;
use crate::network;
use crate::options::Component;
use crate::pod::tolerations;

/// The content of a place, as a template.
#[derive(Debug)]
pub(super) enum Fill {
    /// A scalar, by this expression.
    Scalar(String),
    /// A field with a scalar, or no field if the expression is empty.
    Text(String),
    /// A field with a map or a list, or no field if the expression is empty.
    Field(String),
    /// Further entries of a map, by this expression.
    Entries(String),
    /// Further items of a list: these lines.
    Items(Vec<String>),
}

/// The fills of one object. In the object each has a mark in its place.
#[derive(Debug, Default)]
pub(super) struct Fills(Vec<Fill>);

/// Text before the number of a fill in its mark, and after it.
pub(super) const MARK: (&str, &str) = ("fill-", "-here");

impl Fills {
    fn mark(&mut self, fill: Fill) -> String {
        self.0.push(fill);
        format!("{}{}{}", MARK.0, self.0.len() - 1, MARK.1)
    }

    fn scalar(&mut self, expression: &str) -> Value {
        self.mark(Fill::Scalar(expression.to_owned())).into()
    }

    fn text(&mut self, expression: &str) -> Value {
        self.mark(Fill::Text(expression.to_owned())).into()
    }

    fn field(&mut self, expression: &str) -> Value {
        self.mark(Fill::Field(expression.to_owned())).into()
    }

    fn items(&mut self, lines: &[&str]) -> Value {
        self.mark(Fill::Items(lines.iter().map(|&line| line.to_owned()).collect())).into()
    }

    fn entries(&mut self, map: &mut Value, expression: &str) -> anyhow::Result<()> {
        let mark = self.mark(Fill::Entries(expression.to_owned()));
        object(map)?.insert(mark, "".into());
        Ok(())
    }

    pub(super) fn get(&self, number: usize) -> anyhow::Result<&Fill> {
        self.0.get(number).context("a mark without its fill")
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Puts a mark into each place of an object that a value decides.
pub(super) fn fill(object: &mut Value, fills: &mut Fills) -> anyhow::Result<()> {
    let kind = object["kind"].as_str().context("an object without a kind")?.to_owned();
    let (labels, annotations) = match kind.as_str() {
        "ServiceAccount" if object["metadata"]["name"] == AWS => {
            (".Values.commonLabels", "merge (dict) .Values.aws.serviceAccountAnnotations .Values.commonAnnotations")
        }
        "CustomResourceDefinition" => (
            ".Values.labels",
            // Helm deletes no object with this annotation.
            r#"merge (ternary (dict "helm.sh/resource-policy" "keep") (dict) .Values.keep) .Values.annotations"#,
        ),
        // They stay when the values no longer create them: the operator depends on their contents.
        "BottlerocketUpdateOperator" | "Namespace" => {
            (".Values.commonLabels", r#"merge (dict "helm.sh/resource-policy" "keep") .Values.commonAnnotations"#)
        }
        // So do the policy for new Jobs and its binding: once they are gone, API servers would not read changed templates again.
        _ if object["metadata"]["name"] == admission::JOBS => {
            (".Values.commonLabels", r#"merge (dict "helm.sh/resource-policy" "keep") .Values.commonAnnotations"#)
        }
        "PodMonitor" => {
            ("mergeOverwrite (dict) .Values.commonLabels .Values.monitoring.labels", ".Values.commonAnnotations")
        }
        _ => (".Values.commonLabels", ".Values.commonAnnotations"),
    };
    let metadata = at(object, "/metadata")?;
    fills.entries(at(metadata, "/labels")?, labels)?;
    ensure!(metadata["annotations"].is_null(), "annotations of the manifests have no place in the chart");
    metadata["annotations"] = fills.field(annotations);
    match kind.as_str() {
        "Deployment" | "DaemonSet" => workload(object, fills),
        "NetworkPolicy" => connections(object, fills),
        "PodMonitor" => {
            at(object, "/spec/podMetricsEndpoints/0")?["interval"] = fills.scalar(".Values.monitoring.interval");
            Ok(())
        }
        "BottlerocketUpdateOperator" => {
            object["spec"] = json!({"enabled": fills.scalar(".Values.policy.enabled")});
            fills.entries(at(object, "/spec")?, ".Values.policy.spec")
        }
        _ => Ok(()),
    }
}

fn workload(workload: &mut Value, fills: &mut Fills) -> anyhow::Result<()> {
    let name = workload["metadata"]["name"].as_str().unwrap_or_default();
    let component = Component::ALL.into_iter().chain([Component::Aws]).find(|component| component.name() == name);
    let component = component.with_context(|| format!("{name} is no component"))?;
    let part = key(component);
    let of = |value: &str| format!(".Values.{part}.{value}");
    if matches!(component, Component::Controller | Component::Apiserver) {
        workload["spec"]["replicas"] = fills.scalar(&format!("{} | int", of("replicas")));
    }
    let template = at(workload, "/spec/template")?;
    let merged = |common: &str, own: &str| format!("mergeOverwrite (dict) .Values.{common} {}", of(own));
    fills.entries(at(template, "/metadata/labels")?, &merged("commonLabels", "podLabels"))?;
    template["metadata"]["annotations"] = fills.field(&merged("commonAnnotations", "podAnnotations"));

    let pod = at(template, "/spec")?;
    pod["imagePullSecrets"] = fills.field(".Values.imagePullSecrets");
    pod["priorityClassName"] = fills.text(&of("priorityClassName"));
    pod["affinity"] = fills.field(&of("affinity"));
    if component == Component::Agent {
        // The label stays: without it the agent would start on every node.
        fills.entries(at(pod, "/nodeSelector")?, &of("nodeSelector"))?;
        pod["tolerations"] = fills.field(&of("tolerations"));
    } else {
        let (kept, _) = tolerations(pod);
        pod["tolerations"] = appended(&kept.into(), &of("tolerations"), fills);
        for field in ["nodeSelector", "topologySpreadConstraints"] {
            pod[field] = fills.field(&of(field));
        }
    }
    if component == Component::Controller {
        pod["volumes"] = appended(&pod["volumes"], &of("extraVolumes"), fills);
        let container = at(pod, "/containers/0")?;
        container["volumeMounts"] = appended(&container["volumeMounts"], &of("extraVolumeMounts"), fills);
    }
    let container = at(pod, "/containers/0")?;
    container["image"] = fills.scalar(&format!(r#"include "brupop.image" (list . "{part}")"#));
    container["imagePullPolicy"] = fills.scalar(".Values.image.pullPolicy");
    container["resources"] = fills.field(&of("resources"));
    if component == Component::Aws {
        container["env"] = fills.field(
            r#"ternary (list (dict "name" "AWS_REGION" "value" .Values.aws.region)) (list) (ne .Values.aws.region "")"#,
        );
    }
    let mut further = vec![
        r#"{{- if ne .Values.logging.format "text" }}"#.to_owned(),
        "- --log-format={{ .Values.logging.format }}".to_owned(),
        "{{- end }}".to_owned(),
        format!("{{{{- with default .Values.logging.level {} }}}}", of("logLevel")),
        r#"- {{ printf "--log-filter=%s" . | quote }}"#.to_owned(),
        "{{- end }}".to_owned(),
    ];
    if component == Component::Controller {
        let own = [
            r#"{{- if ne .Values.clusterDomain "cluster.local" }}"#,
            "- --cluster-domain={{ .Values.clusterDomain }}",
            "{{- end }}",
            r#"{{- if ne .Values.certificate.source "managed" }}"#,
            "- --serving-certificate=provided",
            "{{- end }}",
        ];
        further.extend(own.map(str::to_owned));
    }
    further.extend([
        format!("{{{{- range {} }}}}", of("extraArgs")),
        "- {{ . | quote }}".to_owned(),
        "{{- end }}".to_owned(),
    ]);
    let further: Vec<&str> = further.iter().map(String::as_str).collect();
    let mark = fills.items(&further);
    at(container, "/args")?.as_array_mut().context("no arguments")?.push(mark);
    Ok(())
}

/// A list with the items of a value after its own.
fn appended(list: &Value, expression: &str, fills: &mut Fills) -> Value {
    let Some(list) = list.as_array() else { return fills.field(expression) };
    let mut list = list.clone();
    list.push(fills.items(&[&format!("{{{{- range {expression} }}}}"), "- {{ toJson . }}", "{{- end }}"]));
    list.into()
}

/// The name of a component among the values.
pub(super) fn key(component: Component) -> &'static str {
    match component {
        Component::Agent => "agent",
        Component::Apiserver => "apiserver",
        Component::Controller => "controller",
        Component::Aws => "aws",
    }
}

fn connections(policy: &mut Value, fills: &mut Fills) -> anyhow::Result<()> {
    let of_agents = policy["metadata"]["name"] == Component::Agent.name();
    let Some(Value::Array(rules)) = policy.pointer_mut("/spec/egress") else { return Ok(()) };
    for rule in rules {
        if rule["ports"] == network::cluster_api_ports() {
            let lines = [
                "{{- range .Values.networkPolicy.apiServerPorts }}",
                "- port: {{ . | int }}",
                "  protocol: TCP",
                "{{- end }}",
            ];
            rule["ports"] = json!([fills.items(&lines)]);
        } else if rule["ports"][0]["port"] == network::PROMETHEUS_PORT {
            rule["ports"][0]["port"] = fills.scalar(".Values.networkPolicy.prometheusPort | int");
        } else if of_agents && rule["ports"][0]["port"] == network::DNS_PORT {
            rule["to"] = fills.field(".Values.networkPolicy.agentDNS");
        }
    }
    Ok(())
}

fn at<'a>(value: &'a mut Value, place: &str) -> anyhow::Result<&'a mut Value> {
    value.pointer_mut(place).with_context(|| format!("an object has no {place}"))
}

fn object(value: &mut Value) -> anyhow::Result<&mut Map<String, Value>> {
    value.as_object_mut().context("not a map")
}
