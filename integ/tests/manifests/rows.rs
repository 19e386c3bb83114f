//! Nodes in every state that the earlier operator can leave, on a real API server: a takeover reports what is on each and
//! keeps its back-off, and the commands that it prints remove nothing else.

mod table;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::workload;
use integ::control_plane::{ControlPlane, Options};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use models::earlier;
use models::names::{self, BALANCER_LABEL, RETRY_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::{BottlerocketShadow, HostState};
use serde_json::{Value, json};

use self::table::{ARMED, LEFT, LISTS, On, REBOOT, ROWS, Row};
use super::takeover::{DEFINITION, EARLIER, create, definitions, shadows_in};
use super::{kubectl, plugin, until};

/// A second namespace of the earlier operator.
const SECOND: &str = "updates";

impl Row {
    fn shadow(&self, crashes: u32) -> Value {
        let mut content = json!({"spec": {"state": self.wanted, "version": "1.20.5"}});
        if !self.reported.is_empty() {
            content["status"] =
                json!({"current_state": self.reported, "current_version": "1.20.0", "target_version": "1.20.5"});
            if self.stored == "v2" {
                let now = Timestamp::now();
                content["status"]["crash_count"] = json!(crashes);
                content["status"]["state_transition_failure_timestamp"] = match self.failed {
                    "" => Value::Null,
                    "a minute ago" => json!(now - SignedDuration::from_mins(1)),
                    "in an hour" => json!(now + SignedDuration::from_hours(1)),
                    "at no time" => json!("monday"),
                    other => unreachable!("{other}"),
                };
            }
        }
        content
    }

    fn may_reboot(&self) -> bool {
        self.listed.contains(&REBOOT)
    }

    /// Everything that the node loses when the printed commands are run.
    fn released(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for on in &self.on {
            all.extend(match on {
                On::Cordon => vec!["spec unschedulable=true".to_owned(), "owned f:spec/f:unschedulable".to_owned()],
                On::Balancer => vec![
                    format!("labels {BALANCER_LABEL}=\"True\""),
                    format!("owned f:metadata/f:labels/f:{BALANCER_LABEL}"),
                ],
                On::Marks => MARKS_OF_FIRST.iter().map(|(kind, name)| format!("{kind} {name}=\"true\"")).collect(),
                On::KubectlCordon | On::SecondShadow(_) | On::NotReady => vec![],
            });
        }
        all
    }

    /// The commands that release what the earlier operator has left, as they are printed.
    fn commands(&self) -> Vec<String> {
        let node = self.node;
        let mut all = Vec::new();
        for on in &self.on {
            match on {
                On::Cordon => all.push(format!("kubectl uncordon {node}")),
                On::Balancer => all.push(format!("kubectl label node {node} {BALANCER_LABEL}-")),
                On::Marks => {
                    for (kind, name) in MARKS_OF_FIRST {
                        let verb = if kind == "labels" { "label" } else { "annotate" };
                        all.push(format!("kubectl {verb} node {node} {name}-"));
                    }
                }
                On::KubectlCordon | On::SecondShadow(_) | On::NotReady => {}
            }
        }
        if self.listed.contains(&ARMED) {
            all.push(format!(
                "kubectl annotate bottlerocketshadows.v3.{} {} -n {SYSTEM_NAMESPACE} --overwrite \
                 {RETRY_ANNOTATION}=\"$(date +%s)\"",
                names::GROUP,
                shadow_name(node)
            ));
        }
        all
    }
}

const MARKS_OF_FIRST: [(&str, &str); 2] =
    [("annotations", "bottlerocket.aws/action-wanted"), ("labels", "bottlerocket.aws/update-available")];

#[tokio::test(flavor = "multi_thread")]
async fn each_state_that_earlier_operator_leaves_is_reported_carried_over_and_released_by_printed_commands()
-> anyhow::Result<()> {
    let options = Options { node_monitor_grace: Duration::from_secs(3600), ..Options::default() };
    let control_plane = ControlPlane::start(options).await?;
    let client = control_plane.client();
    earlier_operator(&control_plane).await?;

    let report = preflight(&control_plane).await?;
    check_lists(&report, &LISTS)?;
    check_nodes_that_are_down(&report)?;
    let renewal = tokio::spawn(renew_leases(client.clone()));
    let swapped = plugin(&control_plane, &["takeover", "swap", "--yes", "--settle", "1s", "--timeout", "60s"]).await?;
    renewal.abort();
    let output = String::from_utf8(swapped.stdout)?;
    ensure!(swapped.status.success(), "{output}{}", String::from_utf8_lossy(&swapped.stderr));
    let waited = output.lines().find(|line| line.contains("asked hosts to reboot")).unwrap_or_default();
    for row in ROWS.iter() {
        let named = waited.contains(&format!("of {} has", row.node));
        ensure!(named == row.may_reboot(), "{}: {waited}", row.sentence);
    }
    check_shadows(&client).await?;
    // The record knows which nodes had a shadow.
    check_lists(&preflight(&control_plane).await?, &LEFT)?;
    check_way_back(&control_plane).await?;
    check_commands(&control_plane, &output).await?;
    check_settings(&control_plane).await?;
    control_plane.stop().await
}

/// The definition, the workloads without pods, and the nodes with their shadows, in a cluster that was upgraded from a
/// release with v1 alone. The webhook is dead.
async fn earlier_operator(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let client = control_plane.client();
    let definition: Value = serde_saphyr::from_str(EARLIER)?;
    let mut first = definition.clone();
    let mut version = definition["spec"]["versions"][0].clone();
    version["storage"] = json!(true);
    first["spec"]["versions"] = json!([version]);
    first["spec"]["conversion"] = json!({"strategy": "None"});
    let helm = PatchParams::apply("helm").force();
    definitions(&client).patch(DEFINITION, &helm, &Patch::Apply(first)).await?;
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let objects = vec![
        namespace(earlier::NAMESPACE),
        namespace(SECOND),
        deployment(earlier::NAMESPACE, "brupop-controller"),
        deployment(SECOND, "apiserver"),
    ];
    workload::apply(&client, objects).await?;
    for row in ROWS.iter().filter(|row| row.stored == "v1") {
        node_with_shadow(control_plane, row).await?;
    }
    let gone = json!({"spec": {"state": "Idle", "version": "1.20.5"}, "status": {
        "current_state": "Idle", "current_version": "1.20.0", "target_version": "1.20.5",
    }});
    create(&client, earlier::NAMESPACE, ("v1", "brs-gone"), None, &gone).await?;
    definitions(&client).patch(DEFINITION, &helm, &Patch::Apply(definition)).await?;
    let at_v2 = shadows_in(&client, earlier::NAMESPACE, "v2");
    until("the webhook is in force", async || Ok(at_v2.get("brs-gone").await.is_err())).await?;
    for row in ROWS.iter().filter(|row| row.stored == "v2") {
        node_with_shadow(control_plane, row).await?;
    }
    Ok(())
}

fn deployment(namespace: &str, component: &str) -> Value {
    let mut deployment = workload::deployment(namespace, component, 0);
    let labels = json!({earlier::COMPONENT_LABEL: component});
    deployment["spec"]["selector"]["matchLabels"] = labels.clone();
    deployment["spec"]["template"]["metadata"]["labels"] = labels;
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "MAX_CONCURRENT_UPDATE", "value": "2"}]);
    deployment
}

async fn node_with_shadow(control_plane: &ControlPlane, row: &Row) -> anyhow::Result<()> {
    let (client, name) = (control_plane.client(), row.node);
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": name, "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION}}});
    let kubelet = PostParams { field_manager: Some("kubelet".to_owned()), ..PostParams::default() };
    let node = nodes.create(&kubelet, &serde_json::from_value(node)?).await?;
    let ready = if row.on.contains(&On::NotReady) { "False" } else { "True" };
    let kubelet = PatchParams { field_manager: Some("kubelet".to_owned()), ..PatchParams::default() };
    let now = Timestamp::now();
    let condition = json!({"type": "Ready", "status": ready, "lastHeartbeatTime": now, "lastTransitionTime": now});
    let status = json!({"status": {"conditions": [condition], "nodeInfo": {"bootID": "b"}}});
    nodes.patch_status(name, &kubelet, &Patch::Strategic(status)).await?;

    // Another tool without a name.
    let unnamed = PatchParams::default();
    let other = json!({"metadata": {"labels": {"example.com/tool": "x"}, "annotations": {"example.com/tool": "x"}}});
    nodes.patch(name, &unnamed, &Patch::Merge(other)).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid()});
    let shadow = shadow_name(name);
    for on in &row.on {
        match on {
            On::Cordon => {
                let cordon = Patch::Strategic(json!({"spec": {"unschedulable": true}}));
                nodes.patch(name, &unnamed, &cordon).await?;
            }
            On::KubectlCordon => drop(kubectl(control_plane, &["cordon", name]).await?),
            On::Balancer => {
                let label = Patch::Merge(json!({"metadata": {"labels": {BALANCER_LABEL: earlier::BALANCER_VALUE}}}));
                nodes.patch(name, &unnamed, &label).await?;
            }
            On::Marks => {
                let first =
                    PatchParams { field_manager: Some("bottlerocket-update-operator".into()), ..unnamed.clone() };
                for (kind, mark) in MARKS_OF_FIRST {
                    nodes.patch(name, &first, &Patch::Merge(json!({"metadata": {kind: {mark: "true"}}}))).await?;
                }
            }
            On::SecondShadow(crashes) => {
                create(&client, SECOND, (row.stored, &shadow), Some(&owner), &row.shadow(*crashes)).await?;
            }
            On::NotReady => {}
        }
    }
    create(&client, earlier::NAMESPACE, (row.stored, &shadow), Some(&owner), &row.shadow(row.crashes)).await
}

/// Renews the Leases of the nodes that may reboot, as their kubelets do.
async fn renew_leases(client: Client) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let time = format!("{:.6}", Timestamp::now());
        for row in ROWS.iter().filter(|row| row.may_reboot()) {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": row.node}, "spec": {"holderIdentity": row.node, "renewTime": time},
            });
            leases.patch(row.node, &PatchParams::apply("kubelet"), &Patch::Apply(lease)).await?;
        }
    }
}

async fn preflight(control_plane: &ControlPlane) -> anyhow::Result<Value> {
    let output = plugin(control_plane, &["takeover", "preflight", "-o", "json"]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Checks that each node is named once in those of the lists that its row has, and in no other.
fn check_lists(report: &Value, lists: &[&str]) -> anyhow::Result<()> {
    for row in ROWS.iter() {
        for list in lists {
            let found = report.pointer(list).and_then(Value::as_array).with_context(|| format!("no {list}"))?;
            let times = found.iter().filter(|name| **name == row.node).count();
            ensure!(times == usize::from(row.listed.contains(list)), "{}: {list} {found:?}", row.sentence);
        }
    }
    Ok(())
}

/// Checks that the nodes that are not Ready are named before the takeover.
fn check_nodes_that_are_down(report: &Value) -> anyhow::Result<()> {
    let all = report["findings"].as_array().into_iter().flatten();
    let found = all.filter(|finding| finding["reason"] == "NodesNotReady");
    let down = found.map(|finding| finding["text"].to_string()).collect::<String>();
    for row in ROWS.iter() {
        let named = down.contains(&format!(" {};", row.node));
        ensure!(named == row.on.contains(&On::NotReady), "{}: {down}", row.sentence);
    }
    Ok(())
}

/// Checks that `undo` names the hosts that may be armed, and no other. No node here has booted another version.
async fn check_way_back(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let output = plugin(control_plane, &["takeover", "undo", "--yes"]).await?;
    let text = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && text.contains("the takeover is complete"), "{text}");
    for row in ROWS.iter() {
        let named = text.contains(&format!(" {} ", shadow_name(row.node)));
        ensure!(named == row.listed.contains(&ARMED), "{}: {text}", row.sentence);
    }
    Ok(())
}

/// Checks that each node has one shadow of this operator, idle, with the back-off of its row and without a version to blame.
async fn check_shadows(client: &Client) -> anyhow::Result<()> {
    let all: Api<BottlerocketShadow> = Api::all(client.clone());
    let all = all.list(&kube::api::ListParams::default()).await?.items;
    ensure!(all.len() == ROWS.len(), "one for each node that exists: {all:?}");
    for row in ROWS.iter() {
        let name = shadow_name(row.node);
        let found = all
            .iter()
            .find(|shadow| shadow.name_any() == name && shadow.namespace().as_deref() == Some(SYSTEM_NAMESPACE));
        let shadow = found.with_context(|| format!("{}: no shadow", row.sentence))?;
        let spec = &shadow.spec;
        let idle =
            spec.state == HostState::Idle && spec.attempt == 0 && spec.version.is_none() && spec.boot_id.is_none();
        ensure!(idle, "{}: {spec:?}", row.sentence);
        let record = shadow.status.clone().unwrap_or_default().controller.record.unwrap_or_default();
        let waits = record.not_before.is_some_and(|until| until > Timestamp::now());
        ensure!((record.failures, waits) == row.carried, "{}: {record:?}", row.sentence);
        let blames_nothing = record.version_failures.is_empty() && record.last.is_none();
        ensure!(blames_nothing && waits == record.not_before.is_some(), "{}: {record:?}", row.sentence);
    }
    Ok(())
}

/// Checks that a command is printed for all that is left on each node, and that these commands remove only that.
async fn check_commands(control_plane: &ControlPlane, output: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(control_plane.client());
    let printed = |node: &str| -> Vec<&str> {
        let about = output.lines().filter(|line| {
            line.starts_with(&format!("left: {node} ")) || line.starts_with(&format!("left: the host of {node} "))
        });
        about.filter_map(|line| line.find(": kubectl ").map(|at| &line[at + 2..])).collect()
    };
    let mut before = Vec::new();
    let mut script = String::new();
    for row in ROWS.iter() {
        let (mut expected, mut found) = (row.commands(), printed(row.node));
        if row.on.contains(&On::KubectlCordon) {
            // The user's own decision.
            found.retain(|command| !command.starts_with("kubectl uncordon"));
        }
        expected.sort_unstable();
        found.sort_unstable();
        ensure!(found == expected, "{}: {found:#?}", row.sentence);
        script.extend(found.iter().map(|command| format!("{command}\n")));
        before.push(paths(&nodes.get(row.node).await?)?);
    }
    shell(control_plane, &script).await?;
    for (row, before) in ROWS.iter().zip(before) {
        let after = paths(&nodes.get(row.node).await?)?;
        let lost: BTreeSet<String> = before.difference(&after).cloned().collect();
        ensure!(lost == row.released(), "{}: {lost:#?}", row.sentence);
        let new: Vec<&String> = after.difference(&before).collect();
        ensure!(new.is_empty(), "{}: {new:#?}", row.sentence);
    }
    Ok(())
}

/// Returns all labels, annotations and fields of a Node's specification, without taints that follow a cordon, and the fields
/// that clients without a name own.
fn paths(node: &Node) -> anyhow::Result<BTreeSet<String>> {
    let object = serde_json::to_value(node)?;
    let mut all = BTreeSet::new();
    for (part, fields) in [
        ("labels", &object["metadata"]["labels"]),
        ("annotations", &object["metadata"]["annotations"]),
        ("spec", &object["spec"]),
    ] {
        let fields = fields.as_object().into_iter().flatten().filter(|(name, _)| *name != "taints");
        all.extend(fields.map(|(name, value)| format!("{part} {name}={value}")));
    }
    for entry in node.managed_fields().iter().filter(|entry| entry.manager.as_deref() == Some(earlier::MANAGER)) {
        let fields = entry.fields_v1.as_ref().context("an entry without fields")?;
        leaves(&fields.0, "owned ", &mut all);
    }
    Ok(all)
}

fn leaves(fields: &Value, path: &str, all: &mut BTreeSet<String>) {
    for (name, below) in fields.as_object().into_iter().flatten() {
        if below.as_object().is_none_or(serde_json::Map::is_empty) {
            all.insert(format!("{path}{name}"));
        }
        leaves(below, &format!("{path}{name}/"), all);
    }
}

/// Runs commands as an administrator types them.
async fn shell(control_plane: &ControlPlane, script: &str) -> anyhow::Result<()> {
    let mut command = control_plane.kubectl_command();
    let kubectl = command.as_std().get_program().to_owned();
    let folder = std::path::Path::new(&kubectl).parent().context("kubectl has a folder")?;
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    command = tokio::process::Command::new("bash");
    command.args(["-ec", script]).env("PATH", path).env("KUBECONFIG", control_plane.kubeconfig());
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{script}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Checks that the settings of the workloads, which the swap has deleted, are still known.
async fn check_settings(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let output = plugin(control_plane, &["takeover", "settings"]).await?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(text.contains("recorded in the ConfigMaps") && text.contains("maxUnavailable: 2"), "{text}");
    Ok(())
}
