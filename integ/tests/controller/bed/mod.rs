//! A cluster of scripted nodes with the real controller, for one case.

mod actions;
mod agents;
mod faults;
mod node;
mod pieces;
mod policy;
mod process;
mod receiver;
mod stage;
mod time;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::{merge, prove, workload};
use integ::control_plane::audit::{Reader, Record};
use integ::oracle::{ClusterState, Expectations, History, Recorder, Verdict, judge, settled_audit};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use models::names::{
    self, AGENT_NAMESPACE, APISERVER, INTERFACE_LABEL, INTERFACE_VERSION, OPERATOR_NAME, SYSTEM_NAMESPACE,
};
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BottlerocketShadow, Step};
use models::time::after;
use semver::Version;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) use actions::poll;
pub(crate) use faults::{Due, Fault, Faults, Planned, Write};
pub(crate) use node::{Boot, Fleet, Held, PodRule};
pub(crate) use policy::{closed_schedule, open_schedule, other};
pub(crate) use process::{ControllerOptions, ControllerProcess, LEASE, note_panics};
pub(crate) use receiver::{Answer, Receiver, read_request};
pub(crate) use stage::Stage;
pub(crate) use time::Time;

use node::{Actors, kubelet_of, register, renew_lease};

/// Longest wait for anything; nothing is measured by it.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Namespace of the workloads.
pub(crate) const SHOP: &str = "shop";
/// The version that the nodes run at first.
pub(crate) const OLD: Version = Version::new(1, 20, 0);
/// The version that is released during a case.
pub(crate) const NEW: Version = Version::new(1, 20, 5);

/// The cluster of one case.
pub(crate) struct ScriptedCluster {
    pub(crate) stage: Stage,
    pub(crate) time: Time,
    /// The nodes' hosts, kubelets and agents.
    pub(crate) fleet: Fleet,
    pub(crate) recorder: Recorder,
    /// An administrator's client.
    pub(crate) client: Client,
    pub(crate) expectations: Expectations,
    /// The case changes what all cases need, so that no other one may have its control plane.
    pub(crate) uses_up_stage: bool,
    /// The network between the controllers and the API server, if it is not sound.
    pub(crate) faults: Option<Faults>,
    controllers: Vec<ControllerProcess>,
    /// Number of controllers that were started.
    started: usize,
    /// The kubelets' identities, by node.
    pub(crate) kubelets: Arc<Mutex<HashMap<String, Client>>>,
    actors: JoinHandle<()>,
    audit: Reader,
    records: Vec<Record>,
    began: Timestamp,
}

impl ScriptedCluster {
    /// A cluster without nodes, policy and controller.
    pub(crate) async fn new(stage: Stage) -> anyhow::Result<Self> {
        let client = stage.client.clone();
        let mut audit = stage.control_plane.audit();
        settled_audit(&mut audit, &client).await?;
        let recorder = Recorder::start(client.clone()).await?;
        let (time, fleet, kubelets) = (Time::new(), Fleet::new(&OLD), Arc::default());
        let web_api = Client::try_from(stage.config_of(APISERVER)?)?;
        let actors = Actors::new(fleet.clone(), time.clone(), client.clone(), web_api, Arc::clone(&kubelets)).start();
        let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
        let (records, began) = (Vec::new(), Timestamp::now());
        let controllers = Vec::new();
        Ok(Self {
            stage,
            time,
            fleet,
            recorder,
            client,
            expectations,
            uses_up_stage: false,
            faults: None,
            controllers,
            started: 0,
            kubelets,
            actors,
            audit,
            records,
            began,
        })
    }

    /// Starts so many nodes, the policy and a controller, and waits until every agent has reported. `policy` is merged over
    /// `spec` of the default one, which has a soak of a second; its updates are enabled.
    pub(crate) async fn start(&mut self, nodes: usize, policy: Value) -> anyhow::Result<()> {
        self.start_with(nodes, policy, &ControllerOptions::default()).await
    }

    /// The same, with these options of the controller.
    pub(crate) async fn start_with(
        &mut self,
        nodes: usize,
        policy: Value,
        options: &ControllerOptions,
    ) -> anyhow::Result<()> {
        self.add_nodes(nodes).await?;
        self.create_policy(policy).await?;
        self.start_controller(options)?;
        self.reported().await
    }

    /// The same, where a node has proven [`NEW`] already: otherwise the first one that is updated to it goes alone.
    pub(crate) async fn start_beside_proven(&mut self, nodes: usize, policy: Value) -> anyhow::Result<()> {
        self.add_nodes(nodes).await?;
        self.create_policy(policy).await?;
        prove(&self.client, &NEW).await?;
        self.start_controller(&ControllerOptions::default())?;
        self.reported().await
    }

    /// Adds nodes `node-1` to the one of this number.
    async fn add_nodes(&self, nodes: usize) -> anyhow::Result<()> {
        for number in 1..=nodes {
            self.add_node(&format!("node-{number}"), &[]).await?;
        }
        Ok(())
    }

    /// Adds a node that runs [`OLD`], with more labels than the operator's.
    pub(crate) async fn add_node(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        self.fleet.add(name, &OLD);
        self.register_node(name, labels).await
    }

    /// Registers the Node of a host that is up, and starts its agent.
    pub(crate) async fn register_node(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut all: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        all.entry(INTERFACE_LABEL.to_owned()).or_insert(INTERFACE_VERSION.to_owned());
        let kubelet = kubelet_of(&self.stage, name)?;
        register(&self.client, &kubelet, &self.fleet, name, all, self.time.now()).await?;
        self.kubelets.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned(), kubelet);
        self.create_agent(name).await
    }

    /// Deletes the Node of a machine that is down, as the controllers of some clouds do, with all that depends on it.
    pub(crate) async fn deregister(&self, node: &str) -> anyhow::Result<()> {
        Api::<Node>::all(self.client.clone()).delete(node, &DeleteParams::default()).await?;
        self.end_agent(node).await?;
        self.until_gone(node).await
    }

    /// Waits until what depends on a Node that was deleted is gone.
    async fn until_gone(&self, node: &str) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let shadows: Api<BottlerocketShadow> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        poll("the Lease and the shadow of the Node are gone", async || {
            let shadow = shadows.get_opt(&names::shadow_name(node)).await?;
            Ok((leases.get_opt(node).await?.is_none() && shadow.is_none()).then_some(()))
        })
        .await
    }

    /// Boots a machine that is down and whose Node was deleted. Its kubelet registers another one.
    pub(crate) async fn boot_and_register(&self, node: &str) -> anyhow::Result<()> {
        let before = self.fleet.boot_id(node);
        self.fleet.power_on(node);
        poll("its machine boots", async || Ok((self.fleet.boot_id(node) != before).then_some(()))).await?;
        self.fleet.script(node, |behaviour| behaviour.agent = true);
        self.register_node(node, &[]).await
    }

    /// Creates the pod of a node's agent, as the DaemonSet would.
    async fn create_agent(&self, node: &str) -> anyhow::Result<()> {
        let daemon_set = &self.stage.templates.agent;
        let mut pod = daemon_set["spec"]["template"].clone();
        merge(
            &mut pod,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": format!("{}-{node}", names::AGENT), "namespace": AGENT_NAMESPACE,
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": daemon_set["metadata"]["name"],
                        "uid": daemon_set["metadata"]["uid"], "controller": true,
                    }],
                },
                "spec": {"nodeName": node},
            }),
        );
        workload::apply(&self.client, vec![pod]).await
    }

    /// Creates the policy, and the pod of the web API that is connected to the agents.
    pub(crate) async fn create_policy(&self, policy: Value) -> anyhow::Result<()> {
        let pod = self.web_api_pod();
        let objects = deploy::objects(&deploy::Options::default())?;
        let default = objects.into_iter().find(|object| object["kind"] == "BottlerocketUpdateOperator");
        let mut operator = default.context("no default policy")?;
        let spec = json!({
            "enabled": true,
            "health": {"after": {"soak": "1s"}},
            "failurePolicy": {"backOff": "1h"},
            "deadlines": {"shutdown": "5s"},
        });
        merge(&mut operator["spec"], &spec);
        merge(&mut operator["spec"], &policy);
        workload::apply(&self.client, vec![pod, operator]).await
    }

    /// Starts another controller.
    pub(crate) fn start_controller(&mut self, options: &ControllerOptions) -> anyhow::Result<()> {
        self.started += 1;
        let (stage, time, faults) = (&self.stage, &self.time, self.faults.as_ref());
        self.controllers.push(ControllerProcess::start(stage, time, faults, self.started, options)?);
        Ok(())
    }

    /// The controller that was started last.
    pub(crate) fn controller(&mut self) -> anyhow::Result<&mut ControllerProcess> {
        self.controllers.last_mut().context("no controller was started")
    }

    /// Kills the controller and frees its Lease, as if it had run out, and starts another one.
    pub(crate) async fn replace_controller(&mut self) -> anyhow::Result<()> {
        self.controller()?.kill();
        self.start_next_controller().await
    }

    /// Frees the Lease, and starts another controller.
    pub(crate) async fn start_next_controller(&mut self) -> anyhow::Result<()> {
        self.free_lease().await?;
        let identity = format!("controller-{}", self.started + 1);
        self.start_controller(&ControllerOptions { identity, ..ControllerOptions::default() })
    }

    /// Deletes an object at once, whatever it is, and creates it again as it was, without its status.
    pub(crate) async fn recreate(&self, path: &str) -> anyhow::Result<()> {
        if let Some(node) = path.strip_prefix("/api/v1/nodes/") {
            Api::<Node>::all(self.client.clone()).delete(node, &DeleteParams::default()).await?;
            self.until_gone(node).await?;
            return self.register_node(node, &[]).await;
        }
        let client = &self.client;
        let read = async || {
            let get = faults::request(http::Method::GET, path, "application/json", String::new());
            let object = client.send(get).await?.into_body().collect_bytes().await?;
            anyhow::Ok(serde_json::from_slice::<Value>(&object)?)
        };
        let mut object = read().await?;
        let uid = object["metadata"]["uid"].clone();
        ensure!(uid.is_string(), "{path} cannot be created again: {object}");
        client.send(faults::delete(path)).await?;
        poll(&format!("{path} is gone"), async || Ok((read().await?["metadata"]["uid"] != uid).then_some(()))).await?;
        object.as_object_mut().and_then(|fields| fields.remove("status"));
        for own in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            object["metadata"].as_object_mut().and_then(|fields| fields.remove(own));
        }
        let (folder, _) = path.rsplit_once('/').context("a path of an object")?;
        // Another client may have created it by now.
        client.send(faults::request(http::Method::POST, folder, "application/json", object.to_string())).await?;
        Ok(())
    }

    /// Sends a write of a controller that does not run any more.
    pub(crate) async fn send_late(&self, write: &Write) -> anyhow::Result<()> {
        let client = ControllerProcess::client(&self.stage)?;
        let answer = client.send(write.request()).await.context("the late write")?;
        tracing::info!(status = %answer.status(), "late write");
        Ok(())
    }

    /// Lets the Lease of the leader run out: its time is not the script's.
    pub(crate) async fn free_lease(&self) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        match leases.patch(names::CONTROLLER, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets time pass; kubelets that are up have renewed their Leases at its end. They are written before: the controller may read one as soon
    /// as the time has passed. So is what has happened before it, such as the restart of a node's pods by its boot.
    pub(crate) async fn pass(&self, span: Duration) -> anyhow::Result<()> {
        self.fleet.until_written().await;
        let world = self.now()?;
        for node in world.nodes.values().filter(|node| node.ready) {
            renew_lease(&self.client, &node.name, after(self.time.now(), span)).await?;
        }
        self.time.pass(span);
        Ok(())
    }

    /// The state of the cluster now.
    pub(crate) fn now(&self) -> anyhow::Result<ClusterState> {
        self.recorder.now()
    }

    /// Waits until the cluster meets a condition, which sees the state after every change.
    pub(crate) async fn until(
        &self,
        what: &str,
        holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<ClusterState> {
        self.recorder.wait_until_state(what, LIMIT, holds).await
    }

    /// Waits until every agent has reported what its host runs.
    pub(crate) async fn reported(&self) -> anyhow::Result<()> {
        let reported = |world: &ClusterState| {
            world.nodes.values().filter(|node| node.labelled()).all(|node| {
                world.shadow_of(node).is_some_and(|shadow| {
                    shadow.status.agent.boot_id.as_deref() == Some(node.boot_id.as_str())
                        && shadow.status.agent.updates.is_some()
                })
            })
        };
        self.until("every agent has reported", reported).await.map(drop)
    }

    /// Waits until a node is in a step of an attempt.
    pub(crate) async fn until_step(&self, node: &str, step: Step) -> anyhow::Result<ClusterState> {
        self.until(&format!("{node} is in {step:?}"), |world| world.step(node) == Some(step)).await
    }

    /// Waits until every node runs [`NEW`], idle and released, and no slot is used.
    pub(crate) async fn updated(&self) -> anyhow::Result<ClusterState> {
        self.until("every node is updated", |world| {
            world.nodes.keys().all(|node| world.is_updated(node, &NEW)) && world.status().slots.is_empty()
        })
        .await
    }

    /// Waits until a controller has planned with everything that is stored now: it acknowledges a change of the policy that
    /// changes no rule.
    pub(crate) async fn planned(&self) -> anyhow::Result<ClusterState> {
        let operator = self.operators().get(OPERATOR_NAME).await?;
        let limit = operator.spec.revision_history_limit.unwrap_or(10) + 1;
        let changed = self.policy(&json!({"revisionHistoryLimit": limit})).await?;
        let generation = changed.metadata.generation.unwrap_or_default();
        self.until("the controller has seen the policy", |world| world.status().observed_generation >= Some(generation))
            .await
    }

    /// Changes the policy by a merge patch over `spec`.
    pub(crate) async fn policy(&self, spec: &Value) -> anyhow::Result<BottlerocketUpdateOperator> {
        let patch = Patch::Merge(json!({"spec": spec}));
        Ok(self.operators().patch(OPERATOR_NAME, &PatchParams::default(), &patch).await?)
    }

    /// Annotates the policy.
    pub(crate) async fn request(&self, annotation: &str, value: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
        self.operators().patch(OPERATOR_NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Annotates a node's shadow.
    pub(crate) async fn request_of_node(&self, node: &str, annotation: &str, value: &str) -> anyhow::Result<()> {
        let api: Api<BottlerocketShadow> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
        api.patch(&names::shadow_name(node), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Changes a Node by a merge patch.
    pub(crate) async fn patch_node(&self, node: &str, patch: Value) -> anyhow::Result<()> {
        Api::<Node>::all(self.client.clone()).patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Creates a Deployment `web` of so many pods with a budget, and waits until all are Ready and the budget knows it.
    pub(crate) async fn shop(&self, pods: usize, limit: Value) -> anyhow::Result<()> {
        let objects = vec![workload::deployment(SHOP, "web", pods), workload::budget(SHOP, "web", limit)];
        workload::apply(&self.client, objects).await?;
        self.until(&format!("{pods} pods of the workload are Ready"), |world| {
            let known =
                world.budgets.values().filter(|b| b.namespace == SHOP).all(|b| b.current_healthy as usize == pods);
            world.ready_pods(SHOP) == pods && known
        })
        .await
        .map(drop)
    }

    /// Uses up the budget of [`ScriptedCluster::shop`]: one more pod that it counts and that no node takes. Drains begin all the same,
    /// as under a policy that deletes at the deadline what stays.
    pub(crate) async fn block_shop(&self) -> anyhow::Result<()> {
        self.policy(&json!({"drain": {"atDeadline": "Force"}})).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-without-a-node", "namespace": SHOP, "labels": {"app": "web"}},
            "spec": {
                "nodeSelector": {"example.com/no-node": "has-this"},
                "containers": [{"name": "app", "image": "example.invalid/app:1"}],
            },
        });
        workload::apply(&self.client, vec![pod]).await
    }

    /// Lets the budget of [`ScriptedCluster::shop`] allow every disruption.
    pub(crate) async fn unblock_shop(&self) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), SHOP);
        let patch = Patch::Merge(json!({"spec": {"minAvailable": 0, "maxUnavailable": null}}));
        budgets.patch("web", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until there is an Event of the operator with this reason whose text contains all of these, and returns it.
    pub(crate) async fn until_event(&self, reason: &str, words: &[&str]) -> anyhow::Result<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        poll(&format!("there is an Event {reason} with {words:?}"), async || {
            let all = events.list(&ListParams::default()).await?;
            Ok(all.items.into_iter().find_map(|event| {
                let text = event.note.filter(|_| event.reason.as_deref() == Some(reason))?;
                words.iter().all(|word| text.contains(word)).then_some(text)
            }))
        })
        .await
    }

    /// The metrics of the controller that was started last.
    pub(crate) async fn metrics(&mut self) -> anyhow::Result<String> {
        let url = format!("http://{}/metrics", self.controller()?.plain);
        Ok(reqwest::Client::builder().no_proxy().build()?.get(url).send().await?.error_for_status()?.text().await?)
    }

    /// Creates an object as the administrator does.
    pub(crate) async fn create<K>(&self, api: Api<K>, object: Value) -> anyhow::Result<K>
    where
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        Ok(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    /// The requests of the case so far, with their writers.
    pub(crate) async fn requests(&mut self) -> anyhow::Result<&[Record]> {
        self.records.extend(settled_audit(&mut self.audit, &self.client).await?);
        Ok(&self.records)
    }

    /// Judges the case, and returns the control plane if the next case can use it.
    pub(crate) async fn finish(mut self, outcome: anyhow::Result<()>) -> (anyhow::Result<()>, Option<Stage>) {
        let failed = outcome.is_err();
        let outcome = match outcome {
            Ok(()) => self.end().await,
            Err(error) => Err(error),
        };
        let log =
            self.controllers.iter().map(|c| format!("--- {}\n{}", c.identity(), tail(&c.log()))).collect::<String>();
        for controller in &mut self.controllers {
            controller.kill();
        }
        let so_far = self.recorder.so_far();
        let judged = if failed { Ok(()) } else { self.judge().await };
        self.actors.abort();
        let errors = self.fleet.errors();
        let Self { stage, recorder, actors, began, uses_up_stage, .. } = self;
        let _ = actors.await;
        drop(recorder);
        let result = outcome.and(judged).map_err(|error| {
            let timeline = so_far.map_or_else(|error| error.to_string(), |history| timeline(&history, began));
            let script = errors.iter().fold(String::new(), |all, error| format!("{all}a scripted node: {error}\n"));
            anyhow::anyhow!("{error:#}\n{timeline}{script}{log}")
        });
        if uses_up_stage {
            return (result.and(stage.control_plane.stop().await), None);
        }
        match stage.clear().await {
            Ok(()) => (result, Some(stage)),
            Err(error) => (result.and(Err(error)), None),
        }
    }

    /// Waits until nothing of the operator is left on any node, and ends the controllers.
    async fn end(&mut self) -> anyhow::Result<()> {
        if self.expectations.nothing_left && self.controllers.iter().any(ControllerProcess::runs) {
            self.until("no node has a claim or a slot", |world| {
                world.nodes.values().all(|node| (node.held() || !node.claimed()) && node.hook_request().is_none())
                    && world.status().slots.is_empty()
            })
            .await?;
        }
        for controller in &mut self.controllers {
            controller.stop().await?;
        }
        Ok(())
    }

    async fn judge(&mut self) -> anyhow::Result<()> {
        self.ensure_no_defect()?;
        let verdict = self.verdict().await?;
        verdict.ensure_safe()
    }

    fn ensure_no_defect(&self) -> anyhow::Result<()> {
        let defects: Vec<String> = self.controllers.iter().filter_map(ControllerProcess::defect).collect();
        ensure!(defects.is_empty(), "the operator's own output shows a defect: {}", defects.join("; "));
        Ok(())
    }

    /// The oracle's verdict about the case so far.
    pub(crate) async fn verdict(&mut self) -> anyhow::Result<Verdict> {
        self.requests().await?;
        let history = self.recorder.so_far()?;
        Ok(judge(&history, &self.fleet.logs(), &self.records, &self.expectations))
    }
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n") + "\n"
}

/// The course of a case, for the analysis of a failure.
fn timeline(history: &History, began: Timestamp) -> String {
    let mut text = String::new();
    for moment in history.timeline() {
        let seconds = moment.at.duration_since(began).as_secs_f64();
        let _ = writeln!(text, "  {seconds:7.2} s  {:>6}  {:<8} {}", moment.revision, moment.node, moment.text);
    }
    for shadow in history.end().shadows.values() {
        for condition in &shadow.status.conditions {
            let _ = writeln!(
                text,
                "  at the end: {}: {} {:?} {}: {}",
                shadow.node(),
                condition.type_,
                condition.status,
                condition.reason,
                condition.message
            );
        }
    }
    text
}
