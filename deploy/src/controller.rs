//! The controller's Deployment, of which one pod leads and the others are on standby, and its budget.

use models::names::{AGENT_NAMESPACE, NOTICES_SECRET, PROMETHEUS_SECRET, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::options::{Component, Options};
use crate::{budget, pod};

const COMPONENT: Component = Component::Controller;
const NOTICES_DIRECTORY: &str = "/etc/brupop/notices";
const PROMETHEUS_DIRECTORY: &str = "/etc/brupop/prometheus-credentials";

pub(crate) fn all(options: &Options) -> [Value; 2] {
    let mut args = vec![
        format!("--namespace={SYSTEM_NAMESPACE}"),
        format!("--agent-namespace={AGENT_NAMESPACE}"),
        "--identity=$(POD_NAME)".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
        format!("--notices-dir={NOTICES_DIRECTORY}"),
        format!("--prometheus-credentials-dir={PROMETHEUS_DIRECTORY}"),
    ];
    args.extend(options.cluster_domain.iter().map(|domain| format!("--cluster-domain={domain}")));
    args.extend(options.controller_args.iter().cloned());
    // For 5,000 nodes. A leader that is killed for its memory is followed by one that needs as much.
    let mut container = pod::container("controller", COMPONENT, options, args, ["50m", "64Mi", "512Mi"]);
    container["env"] = json!([
        pod::field("POD_NAME", "metadata.name"),
        pod::field("NODE_NAME", "spec.nodeName"),
        pod::field("POD_IP", "status.podIP"),
    ]);
    container["ports"] = json!([pod::port(pod::METRICS_PORT, pod::PLAIN_PORT)]);
    container["readinessProbe"] = pod::probe("/readyz", 5);
    container["livenessProbe"] = pod::probe("/healthz", 10);
    container["volumeMounts"] = json!([
        {"name": "notices", "mountPath": NOTICES_DIRECTORY, "readOnly": true},
        {"name": "prometheus-credentials", "mountPath": PROMETHEUS_DIRECTORY, "readOnly": true},
    ]);
    let mut deployment = pod::deployment(SYSTEM_NAMESPACE, COMPONENT, options.controller_replicas, &container);
    // Mounted, so that the controller needs no right to read them. A user creates them, perhaps long after the pod has started.
    deployment["spec"]["template"]["spec"]["volumes"] = json!([
        {"name": "notices", "secret": {"secretName": NOTICES_SECRET, "optional": true}},
        {"name": "prometheus-credentials", "secret": {"secretName": PROMETHEUS_SECRET, "optional": true}},
    ]);
    [budget::one_at_a_time(COMPONENT), deployment]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has a section for each size of cluster that was measured, with the memory of a controller in MiB.
    #[test]
    fn controller_holds_5000_nodes_by_a_line_through_the_measured_sizes_and_half_as_much_again() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scale.md");
        let page = std::fs::read_to_string(page).unwrap();
        let [_, deployment] = all(&Options::default());
        let limit = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"];
        let limit: f64 = limit.as_str().and_then(|limit| limit.strip_suffix("Mi")).unwrap().parse().unwrap();
        for row in
            ["idle: resident memory of a controller, the larger one", "| resident memory of a controller, at most"]
        {
            let measured = page.split("\n## ").skip(1).filter_map(|section| {
                let (nodes, _) = section.split_once(" nodes with ")?;
                let (_, cells) = section.split_once(row)?;
                let seen = cells.split('|').nth(2)?.trim().strip_suffix(" MiB")?;
                Some((nodes.parse::<f64>().unwrap(), seen.parse::<f64>().unwrap()))
            });
            let mut measured: Vec<_> = measured.collect();
            measured.sort_by(|a, b| a.0.total_cmp(&b.0));
            let [(few, low), .., (many, high)] = measured[..] else { panic!("docs/scale.md has no two sizes: {row}") };
            let needed = low + (high - low) / (many - few) * (5_000.0 - few);
            assert!(limit >= 1.5 * needed, "{row}: {limit} MiB for {needed} MiB");
        }
    }
}
