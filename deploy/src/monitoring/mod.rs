//! Files for Prometheus and Grafana: the PodMonitor, alerts and dashboards. They are plain files in `deploy/monitoring`, which
//! are installed only where the Prometheus operator is.

mod dashboards;

use anyhow::Context;
use models::names::{APPLICATION, APPLICATION_LABEL, COMPONENT_LABEL, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::object::namespaced;
use crate::options::Component;
use crate::pod;

pub use dashboards::{DASHBOARDS, expressions};

/// Alerts, as a file of rules for any Prometheus.
pub const ALERTS: &str = include_str!("../../monitoring/alerts.yaml");

/// Address of the pages of `docs/runbook`, one for each alert.
pub const RUNBOOK: &str = "https://github.com/bottlerocket-os/bottlerocket-update-operator/blob/develop/docs/runbook/";

/// Time between two scrapes. The rates of the dashboards and alerts are over at least ten of them.
pub(crate) const SCRAPE_INTERVAL: &str = "30s";

/// Label by which Grafana's sidecar finds ConfigMaps with dashboards.
pub(crate) const DASHBOARD_LABEL: &str = "grafana_dashboard";

/// The PodMonitor of the controller and the web API. Agents serve no port.
pub fn pod_monitor() -> Value {
    let components = [Component::Controller, Component::Apiserver].map(Component::name);
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor",
        "metadata": namespaced(SYSTEM_NAMESPACE, APPLICATION),
        "spec": {
            // The alerts know the job by this name.
            "jobLabel": COMPONENT_LABEL,
            "selector": {
                "matchLabels": {APPLICATION_LABEL: APPLICATION},
                "matchExpressions": [{"key": COMPONENT_LABEL, "operator": "In", "values": components}],
            },
            "podMetricsEndpoints": [{
                "port": pod::METRICS_PORT,
                "path": "/metrics",
                "interval": SCRAPE_INTERVAL,
                "relabelings": [{
                    "action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node",
                }],
            }],
        },
    })
}

/// The alerts as an object of the Prometheus operator.
///
/// # Errors
/// If the file of rules cannot be read.
pub fn prometheus_rule() -> anyhow::Result<Value> {
    let spec: Value = serde_saphyr::from_str(ALERTS).context("deploy/monitoring/alerts.yaml cannot be read")?;
    Ok(json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": namespaced(SYSTEM_NAMESPACE, APPLICATION), "spec": spec,
    }))
}

/// The dashboards as a ConfigMap, by their file names.
pub fn dashboard_map() -> Value {
    let mut map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": namespaced(SYSTEM_NAMESPACE, "brupop-dashboards")});
    map["metadata"]["labels"][DASHBOARD_LABEL] = "1".into();
    for (name, dashboard) in DASHBOARDS {
        map["data"][format!("brupop-{name}.json")] = dashboard.into();
    }
    map
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
    }

    fn alerts() -> Vec<Value> {
        let rule = prometheus_rule().unwrap();
        rule["spec"]["groups"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|group| group["rules"].as_array().unwrap().clone())
            .collect()
    }

    fn text_of<'a>(alert: &'a Value, pointer: &str) -> &'a str {
        alert.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer} of {alert}"))
    }

    #[test]
    fn each_alert_has_a_runbook_page_and_each_page_an_alert() {
        let mut names = BTreeSet::new();
        for alert in alerts() {
            let name = text_of(&alert, "/alert");
            assert_eq!(text_of(&alert, "/annotations/runbook_url"), format!("{RUNBOOK}{name}.md"));
            for part in ["summary", "description"] {
                assert!(
                    text_of(&alert, &format!("/annotations/{part}")).ends_with('.'),
                    "{part} of {name} is a sentence"
                );
            }
            names.insert(name.to_owned());
        }
        let mut pages = BTreeSet::new();
        let plugin: String = ["plugin.md", "history.md", "takeover.md"]
            .map(|page| std::fs::read_to_string(docs().join(page)).unwrap())
            .concat();
        for entry in std::fs::read_dir(docs().join("runbook")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            // Pages about other things are in this folder too.
            if name.starts_with("Brupop") {
                let page = std::fs::read_to_string(&path).unwrap();
                assert!(page.starts_with(&format!("# {name}\n")), "{name}");
                for part in ["## Impact", "## What to do", "## How it ends", "```sh", "](what-now.md)"] {
                    assert!(page.contains(part), "{name} has no {part}");
                }
                // Only commands that the docs of the plugin have.
                for command in page.split("kubectl brupop ").skip(1) {
                    let word = command.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default();
                    assert!(plugin.contains(&format!("kubectl brupop {word}")), "{name}: kubectl brupop {word}");
                }
                pages.insert(name);
            }
        }
        assert_eq!(names, pages, "alerts of deploy/monitoring/alerts.yaml, and pages of docs/runbook");
    }

    /// kube-prometheus-stack inhibits alerts of a namespace with the severity `info` until another one fires there.
    #[test]
    fn every_alert_has_a_severity_that_is_delivered() {
        for alert in &alerts() {
            let severity = text_of(alert, "/labels/severity");
            assert!(["critical", "warning"].contains(&severity), "{}: {severity}", text_of(alert, "/alert"));
        }
    }

    #[test]
    fn alerts_and_dashboards_use_documented_metrics_only() {
        let page = std::fs::read_to_string(docs().join("metrics.md")).unwrap();
        let web_api = std::fs::read_to_string(docs().join("web-api.md")).unwrap();
        let words = |line: &str| line.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let rows = page.lines().chain(web_api.lines()).filter(|line| line.starts_with("| `"));
        let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(words);
        let known: BTreeSet<String> =
            names.map(|name| name.trim_start_matches("brupop_apiserver_").to_owned()).collect();
        let queries = alerts().iter().map(|alert| text_of(alert, "/expr").to_owned()).collect::<Vec<_>>();
        let panels = DASHBOARDS.into_iter().flat_map(|(_, dashboard)| expressions(dashboard).unwrap());
        let mut found = 0;
        for query in queries.into_iter().chain(panels) {
            for prefix in ["brupop_controller_", "brupop_apiserver_"] {
                for rest in query.split(prefix).skip(1) {
                    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
                    let plain =
                        ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                    assert!(known.contains(name) || known.contains(plain), "{prefix}{name} in {query}");
                    found += 1;
                }
            }
        }
        assert!(found > 50, "{found} names of metrics");
    }

    /// The labels of a pod differ between scrape configurations, so that none can be named to be dropped.
    #[test]
    fn alerts_keep_namespace_and_job_and_labels_that_their_text_names() {
        for alert in alerts() {
            let (name, query) = (text_of(&alert, "/alert"), text_of(&alert, "/expr"));
            assert!(!query.contains(" without (") && query.contains(" by (namespace, job"), "{name}: {query}");
            let texts =
                ["summary", "description"].map(|part| text_of(&alert, &format!("/annotations/{part}"))).concat();
            for label in texts.split("$labels.").skip(1) {
                let label = label.split(' ').next().unwrap_or_default();
                let kept = query.split(" by (").skip(1).all(|rest| {
                    rest.split(')').next().is_some_and(|labels| labels.split(", ").any(|kept| kept == label))
                });
                assert!(kept, "{name} names {label}: {query}");
            }
        }
    }

    #[test]
    fn unit_tests_fire_each_alert() {
        let tests = include_str!("../../monitoring/alerts_test.yaml");
        for alert in alerts() {
            let name = text_of(&alert, "/alert");
            assert!(
                tests.contains(&format!("alertname=\"{name}\"")),
                "{name} is in no test of deploy/monitoring/alerts_test.yaml"
            );
        }
    }
}
