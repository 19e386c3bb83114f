//! The NetworkPolicies of the manifests, enforced on a real node by kube-network-policies: what the operator needs passes, and
//! the rest is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::workload;
use integ::oracle::Expectations;
use integ::vm::{GATEWAY, UPDATED};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, APPLICATION, APPLICATION_LABEL, COMPONENT_LABEL, CONTROLLER, METRICS_ENABLED,
    METRICS_LABEL, SYSTEM_NAMESPACE,
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::support::{Scenario, run};

/// Where every pod of the test listens, beside what its own program does; and this machine, which is no pod.
const PORT: u16 = 9090;

/// Time after which a connection without an answer counts as dropped. The kernel repeats an attempt after one and three seconds.
const DROPPED: Duration = Duration::from_secs(6);

/// Number of times that a connection is tried that has to pass.
const ATTEMPTS: usize = 5;

/// Label of the pods that are not the operator's.
const OTHER: &str = "network-test";

/// From where, the targets that the policies pass, and those that they drop. A target is a name of a pod and a port.
const CONNECTIONS: [(&str, &str, &str); 9] = [
    (
        AGENT,
        "brupop-apiserver:8443 dns",
        "brupop-apiserver:8080 brupop-apiserver:9090 brupop-controller:8080 api-server outside:9090 elsewhere:9090 \
         monitoring:9090 other-system:9090 other-agents:9090",
    ),
    (
        APISERVER,
        "api-server dns",
        "brupop-agent:9090 brupop-controller:8080 outside:9090 elsewhere:9090 monitoring:9090 other-system:9090",
    ),
    (
        CONTROLLER,
        "api-server dns monitoring:9090",
        "brupop-agent:9090 brupop-apiserver:8080 brupop-apiserver:8443 outside:9090 elsewhere:9090 other-system:9090",
    ),
    (
        "other-system",
        "",
        "brupop-agent:9090 brupop-apiserver:8443 brupop-apiserver:8080 brupop-controller:8080 api-server dns \
         elsewhere:9090 monitoring:9090",
    ),
    ("other-agents", "", "brupop-agent:9090 brupop-apiserver:8443 api-server dns elsewhere:9090 monitoring:9090"),
    (
        "elsewhere",
        "monitoring:9090 api-server dns",
        "brupop-agent:9090 brupop-apiserver:8443 brupop-apiserver:8080 brupop-controller:8080 other-system:9090 \
         other-agents:9090",
    ),
    (
        // It carries the labels of the agent.
        "lookalike",
        "elsewhere:9090",
        "brupop-agent:9090 brupop-apiserver:8443 brupop-apiserver:8080 brupop-controller:8080",
    ),
    (
        "monitoring",
        "brupop-apiserver:8080 brupop-controller:8080",
        "brupop-agent:9090 brupop-apiserver:8443 brupop-apiserver:9090 brupop-controller:9090 other-system:9090 \
         other-agents:9090",
    ),
    (
        "outside",
        "elsewhere:9090",
        "brupop-agent:9090 brupop-apiserver:8443 brupop-apiserver:8080 brupop-controller:8080 brupop-controller:9090 \
         other-system:9090 other-agents:9090",
    ),
];

/// The pods that are not the operator's, with their namespaces.
const PODS: [(&str, &str); 5] = [
    (SYSTEM_NAMESPACE, "other-system"),
    (AGENT_NAMESPACE, "other-agents"),
    ("elsewhere", "elsewhere"),
    ("elsewhere", "lookalike"),
    ("monitoring", "monitoring"),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn enforced_network_policies_pass_what_the_operator_needs_and_drop_the_rest() -> anyhow::Result<()> {
    run(1, Expectations { max_unavailable: Some(1), nothing_left: true }, async |ctx: &mut Scenario| {
        ctx.cluster.kubectl("apply -f integ/vm/kube-network-policies/install.yaml").await?;
        ctx.cluster.kubectl("-n kube-system rollout status daemonset/kube-network-policies --timeout=300s").await?;
        let enforcing = "nft list table inet kube-network-policies >/dev/null 2>&1";
        ctx.cluster.guests[0].shell(&format!("until {enforcing}; do sleep 1; done")).await?;
        ctx.cluster.install_by_readme().await?;
        // All that the operator does, with kubelet's probes, from the start of the plugin after a reboot on.
        ctx.cluster.publish(&UPDATED).await?;
        ctx.updated(&UPDATED).await?;

        let outside = TcpListener::bind((GATEWAY, PORT)).await?;
        let places = Places::prepare(ctx).await?;
        places.wait_until_enforced(ctx).await?;
        for (from, pass, drop) in CONNECTIONS {
            places.check(ctx, from, pass, drop).await?;
        }
        // Without the policies all of them pass: what was dropped was dropped by the policies.
        for namespace in [SYSTEM_NAMESPACE, AGENT_NAMESPACE] {
            ctx.cluster.kubectl(&format!("-n {namespace} delete networkpolicies --all")).await?;
        }
        for (from, pass, drop) in CONNECTIONS {
            places.check(ctx, from, &format!("{pass} {drop}"), "").await?;
        }
        drop(outside);
        Ok(())
    })
    .await?;
    Ok(())
}

/// A pod's address, and the name of its network namespace in the node.
struct Place {
    address: Ipv4Addr,
    namespace: String,
}

/// The pods that connections come from or go to, by name; those of the operator by component.
struct Places(BTreeMap<String, Place>);

impl Places {
    /// Creates the other pods, and makes every pod listen on `PORT`.
    async fn prepare(ctx: &Scenario) -> anyhow::Result<Self> {
        let namespaces = vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}),
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "monitoring", "labels": {METRICS_LABEL: METRICS_ENABLED}},
            }),
        ];
        workload::apply(&ctx.cluster.client, namespaces).await?;
        for (namespace, name) in PODS {
            // Pods are refused until the controller manager has created their account.
            let account = format!("-n {namespace} wait serviceaccount/default --for=create --timeout=60s");
            ctx.cluster.kubectl(&account).await?;
            workload::apply(&ctx.cluster.client, vec![pod(namespace, name)]).await?;
        }
        ctx.cluster.kubectl(&format!("wait pods -A -l {OTHER} --for=condition=Ready --timeout=120s")).await?;

        let guest = &ctx.cluster.guests[0];
        let listed =
            guest.shell("for n in $(ls /run/netns); do echo $n $(ip -n $n -4 -o address show dev eth0); done").await?;
        let mut namespaces = BTreeMap::new();
        for line in listed.lines() {
            let mut words = line.split_whitespace();
            let Some(namespace) = words.next() else { continue };
            let address = words.find_map(|word| word.split_once('/')?.0.parse::<Ipv4Addr>().ok());
            namespaces.extend(address.map(|address| (address, namespace.to_owned())));
        }
        let mut places = BTreeMap::new();
        for pod in Api::<Pod>::all(ctx.cluster.client.clone()).list(&kube::api::ListParams::default()).await? {
            // Pods of before the reboot may still be there, and their addresses may be those of others now.
            let status = pod.status.unwrap_or_default();
            if status.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let labels = pod.metadata.labels.unwrap_or_default();
            let name = match labels.get(COMPONENT_LABEL) {
                Some(component) if !labels.contains_key(OTHER) => component.clone(),
                _ => pod.metadata.name.unwrap_or_default(),
            };
            let Some(address) = status.pod_ip else { continue };
            let address: Ipv4Addr = address.parse()?;
            // Pods of the host's network have none of their own.
            if let Some(namespace) = namespaces.get(&address) {
                places.insert(name, Place { address, namespace: namespace.clone() });
            }
        }
        let all: Vec<&str> = places.values().map(|place| place.namespace.as_str()).collect();
        let listen = format!("nsenter --net=/run/netns/$n busybox httpd -p {PORT} -h /tmp");
        guest.shell(&format!("for n in {}; do {listen}; done", all.join(" "))).await?;
        Ok(Self(places))
    }

    /// Waits until the plugin isolates every pod of the operator's namespaces.
    async fn wait_until_enforced(&self, ctx: &Scenario) -> anyhow::Result<()> {
        let isolated = [AGENT, APISERVER, CONTROLLER, "other-system", "other-agents"];
        let isolated: Vec<String> =
            isolated.iter().map(|name| Ok(self.get(name)?.address.to_string())).collect::<anyhow::Result<_>>()?;
        let mut set = String::new();
        for _ in 0..30 {
            set = ctx.cluster.guests[0].shell("nft list set inet kube-network-policies podips-v4 || true").await?;
            let known: BTreeSet<&str> = set.split([' ', ',', '\t', '\r', '\n']).collect();
            if isolated.iter().all(|address| known.contains(address.as_str())) {
                return Ok(());
            }
            sleep(Duration::from_secs(2)).await;
        }
        anyhow::bail!("the plugin does not isolate all of {isolated:?}: {set}")
    }

    /// Checks the connections from a place: all of `pass` are answered, and none of `drop`.
    async fn check(&self, ctx: &Scenario, from: &str, pass: &str, drop: &str) -> anyhow::Result<()> {
        let targets: Vec<(&str, String)> = pass
            .split_whitespace()
            .chain(drop.split_whitespace())
            .map(|name| Ok((name, self.target(name)?)))
            .collect::<anyhow::Result<_>>()?;
        let mut missing = Vec::new();
        for _ in 0..ATTEMPTS {
            let answered = self.answered(ctx, from, &targets).await?;
            println!("{from} reaches {answered:?}");
            for name in drop.split_whitespace() {
                ensure!(!answered.contains(name), "{from} reaches {name}");
            }
            missing = pass.split_whitespace().filter(|name| !answered.contains(*name)).collect();
            if missing.is_empty() {
                return Ok(());
            }
        }
        anyhow::bail!("{from} does not reach {missing:?}")
    }

    /// Returns those of the targets that accept a connection.
    async fn answered<'a>(
        &self,
        ctx: &Scenario,
        from: &str,
        targets: &[(&'a str, String)],
    ) -> anyhow::Result<BTreeSet<&'a str>> {
        let mut answered = BTreeSet::new();
        if from == "outside" {
            for (name, target) in targets {
                if let Ok(stream) = timeout(DROPPED, TcpStream::connect(target.replace('/', ":"))).await {
                    stream.with_context(|| format!("{from} to {name}"))?;
                    answered.insert(*name);
                }
            }
            return Ok(answered);
        }
        let namespace = &self.get(from)?.namespace;
        let list = targets.iter().map(|(_, target)| target.as_str()).collect::<Vec<_>>().join(" ");
        let seconds = DROPPED.as_secs();
        let connect = format!("timeout {seconds} nsenter --net=/run/netns/{namespace} bash -c \"</dev/tcp/$t\"");
        let script = format!("for t in {list}; do ({connect} 2>/dev/null; echo $t $?) & done; wait");
        let output = ctx.cluster.guests[0].shell(&script).await?;
        for (name, target) in targets {
            let code = output.lines().find_map(|line| line.trim().strip_prefix(target)?.trim().parse::<u8>().ok());
            match code {
                Some(0) => _ = answered.insert(*name),
                // The exit code of `timeout`.
                Some(124) => {}
                _ => anyhow::bail!("{from} to {name}: neither answered nor dropped ({code:?}): {output}"),
            }
        }
        Ok(answered)
    }

    fn get(&self, name: &str) -> anyhow::Result<&Place> {
        self.0.get(name).with_context(|| format!("there is no pod {name}"))
    }

    /// Returns a target as bash has it in /dev/tcp.
    fn target(&self, name: &str) -> anyhow::Result<String> {
        Ok(match name.split_once(':') {
            None if name == "dns" => "10.96.0.10/53".to_owned(),
            None if name == "api-server" => "10.96.0.1/443".to_owned(),
            Some(("outside", port)) => format!("{GATEWAY}/{port}"),
            Some((pod, port)) => format!("{}/{port}", self.get(pod)?.address),
            None => anyhow::bail!("no target {name}"),
        })
    }
}

/// A pod that the namespaces of the operator admit too.
fn pod(namespace: &str, name: &str) -> Value {
    let mut labels = json!({OTHER: name});
    if name == "lookalike" {
        labels[APPLICATION_LABEL] = json!(APPLICATION);
        labels[COMPONENT_LABEL] = json!(AGENT);
    }
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "app", "image": "example.invalid/app:1", "securityContext": restricted}],
        },
    })
}
