//! The web API's Deployment, its budget and its Service.

use models::names::{AGENT_NAMESPACE, SERVING_SECRET, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::object::{labels, namespaced};
use crate::options::{Component, Options};
use crate::{budget, pod};

const COMPONENT: Component = Component::Apiserver;
/// Port of the API.
pub(crate) const TLS_PORT: i32 = 8443;
const TLS_DIRECTORY: &str = "/etc/brupop/tls";

pub(crate) fn all(options: &Options) -> [Value; 3] {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": namespaced(SYSTEM_NAMESPACE, COMPONENT.name()),
        "spec": {
            "selector": labels(COMPONENT),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": "https"}],
        },
    });
    [service, budget::one_at_a_time(COMPONENT), deployment(options)]
}

fn deployment(options: &Options) -> Value {
    let args = vec![
        format!("--listen=$(POD_IP):{TLS_PORT}"),
        format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
        format!("--tls-dir={TLS_DIRECTORY}"),
        format!("--namespace={SYSTEM_NAMESPACE}"),
        format!("--agent-namespace={AGENT_NAMESPACE}"),
    ];
    // One replica has all agents while the others are away, as when they become Ready one after the other: 5,000 have to fit.
    let mut container = pod::container("apiserver", COMPONENT, options, args, ["50m", "64Mi", "768Mi"]);
    container["env"] = json!([pod::field("POD_IP", "status.podIP")]);
    container["ports"] = json!([pod::port("https", TLS_PORT), pod::port(pod::METRICS_PORT, pod::PLAIN_PORT)]);
    container["readinessProbe"] = pod::probe("/readyz", 5);
    container["livenessProbe"] = pod::probe("/healthz", 10);
    container["volumeMounts"] = json!([{"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": true}]);
    let mut deployment = pod::deployment(SYSTEM_NAMESPACE, COMPONENT, options.apiserver_replicas, &container);
    // The leader creates the Secret, perhaps after these pods have started; they are not ready until it exists.
    deployment["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "tls", "secret": {"secretName": SERVING_SECRET, "optional": true}}]);
    deployment
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has the memory of a web API without agents in MiB, and that of each agent in KiB.
    #[test]
    fn one_replica_holds_the_agents_of_5000_nodes_and_half_as_much_again() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/web-api.md");
        let page = std::fs::read_to_string(page).unwrap().replace('\n', " ");
        let figure = |before: &str| -> u64 {
            let (_, rest) = page.split_once(before).unwrap_or_else(|| panic!("docs/web-api.md has no '{before}'"));
            rest.split([' ', ',']).next().unwrap_or_default().parse().unwrap()
        };
        let alone = figure("after 2,000 reports | ") * 1024;
        let agent = figure("A stream costs about ") + figure("that has just reported about ");
        let deployment = deployment(&Options::default());
        let limit = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"];
        let limit: u64 = limit.as_str().and_then(|limit| limit.strip_suffix("Mi")).unwrap().parse().unwrap();
        assert!(limit * 1024 >= (alone + 5_000 * agent) * 3 / 2, "{limit} MiB for {alone} + 5,000 * {agent} KiB");
    }
}
