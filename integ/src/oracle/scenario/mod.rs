//! Hand-made histories: a small cluster controlled by a test, each write with its revision and its record in the audit
//! log.

mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use models::names;
use models::operator::Slot;
use models::reason::FailureReason;
use models::shadow::{
    AgentReport, Armed, ArmedPhase, AttemptResult, DrainStatus, DrainedPod, HostState, Permit, Progress, Step, UPDATED,
    VersionFailure,
};
use semver::Version;
use serde_json::{Value, json};

use super::checks::{Expectations, judge};
use super::facts::{Budget, Field, Node, Object, Operator, Pod, Shadow};
use super::history::{Change, History};
use super::hosts::{HostEvent, HostFact, HostLog};
use super::report::{Property, Verdict};
use super::world::ClusterState;
use crate::control_plane::audit::{Record, Stage};

pub(super) const CONTROLLER: &str = "system:serviceaccount:brupop-system:brupop-controller";
pub(super) const APISERVER: &str = "system:serviceaccount:brupop-system:brupop-apiserver";
pub(super) const AGENT: &str = "system:serviceaccount:brupop-agents:brupop-agent";
/// The user of writes that the audit log records only in outline.
const KUBELET: &str = "";

const OLD: &str = "1.20.0";
pub(super) const NEW_VERSION: &str = "1.20.5";

pub(super) struct Scenario {
    pub(super) expectations: Expectations,
    clock: Timestamp,
    pub(super) world: ClusterState,
    changes: Vec<Change>,
    audit: Vec<Record>,
    hosts: BTreeMap<String, (u32, HostLog)>,
    names: u32,
}

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

fn parts(title: &str) -> (String, String) {
    let (namespace, name) = title.split_once('/').unwrap();
    (namespace.to_owned(), name.to_owned())
}

/// The cluster and its time.
impl Scenario {
    /// Nodes with the operator's label, idle on the old version, with their hosts, shadows and agents' first reports.
    pub(super) fn new(nodes: &[&str]) -> Self {
        let mut scenario = Self {
            expectations: Expectations::default(),
            clock: "2026-01-01T00:00:00Z".parse().unwrap(),
            world: ClusterState::default(),
            changes: Vec::new(),
            audit: Vec::new(),
            hosts: BTreeMap::new(),
            names: 0,
        };
        let operator = Operator {
            namespace: names::SYSTEM_NAMESPACE.into(),
            name: names::OPERATOR_NAME.into(),
            ..Operator::default()
        };
        scenario.write("admin", Object::Operator(Arc::new(operator)), false);
        for name in nodes {
            scenario.hosts.insert((*name).into(), (0, HostLog { node: (*name).into(), events: Vec::new() }));
            let boot_id = scenario.boot(name);
            let label = Field::Label(names::INTERFACE_LABEL.into());
            let uid = format!("{name}-uid");
            let node = Node {
                name: (*name).into(),
                uid: uid.clone(),
                provider_id: format!("cloud:///{name}"),
                boot_id: boot_id.clone(),
                ready: true,
                fields: BTreeMap::from([(label, names::INTERFACE_VERSION.into())]),
                ..Node::default()
            };
            scenario.write(KUBELET, Object::Node(Arc::new(node)), false);
            let shadow = Shadow {
                namespace: names::SYSTEM_NAMESPACE.into(),
                name: names::shadow_name(name),
                uid: format!("{name}-shadow"),
                owner: Some(((*name).into(), uid)),
                ..Shadow::default()
            };
            scenario.write(CONTROLLER, Object::Shadow(Arc::new(shadow)), false);
            scenario.agent(name, |agent| {
                agent.state = Some(HostState::Idle);
                agent.boot_id = Some(boot_id);
                agent.current_version = Some(version(OLD));
            });
        }
        scenario
    }

    pub(super) fn history(&self) -> History {
        History::new(self.changes.clone())
    }

    pub(super) fn judge(&self) -> Verdict {
        let hosts: Vec<HostLog> = self.hosts.values().map(|(_, log)| log.clone()).collect();
        judge(&self.history(), &hosts, &self.audit, &self.expectations)
    }

    /// Asserts that the property, and no other, is violated.
    #[track_caller]
    pub(super) fn assert_only(&self, property: Property) {
        let verdict = self.judge();
        let others = verdict.violations.iter().any(|violation| violation.property != property);
        assert!(verdict.violates(property) && !others, "expected {property:?} alone: {verdict}");
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.clock += SignedDuration::from_secs(seconds);
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock
    }

    fn tick(&mut self) -> Timestamp {
        self.clock += SignedDuration::from_millis(10);
        self.clock
    }

    fn write(&mut self, user: &str, object: Object, gone: bool) {
        let received = self.tick();
        let revision = self.world.revision + 1;
        let (resource, group) = match &object {
            Object::Node(_) => ("nodes", ""),
            Object::Shadow(_) => ("bottlerocketshadows", names::GROUP),
            Object::Operator(_) => ("bottlerocketupdateoperators", names::GROUP),
            Object::Pod(_) | Object::Budget(_) => ("", ""),
        };
        let at = received + SignedDuration::from_millis(2);
        let change = Change { revision, at, gone, object };
        let (_, namespace, name) = change.object.key();
        if !resource.is_empty() && user != KUBELET {
            let answer = (!gone).then(|| json!({"metadata": {"resourceVersion": revision.to_string()}}));
            let mut record = self.record(user, "patch", group, resource, &namespace, &name);
            record.response = answer;
            self.audit.push(record);
        }
        self.world.apply(&change);
        self.changes.push(change);
    }

    fn record(&mut self, user: &str, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Record {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Record {
            audit_id: self.fresh("request"),
            stage: Stage::ResponseComplete,
            verb: verb.into(),
            uri: String::new(),
            user: user.into(),
            groups: Vec::new(),
            impersonated: None,
            user_agent: String::new(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            code: 200,
            allowed: Some(true),
            received: self.clock,
            reached: self.clock + SignedDuration::from_millis(1),
            request: None,
            response: None,
        }
    }

    fn fresh(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}-{}", self.names)
    }

    /// Removes a revision, as if the recorder had missed it.
    pub(super) fn forget_revision_before_last(&mut self) {
        self.changes.remove(self.changes.len() - 2);
    }
}

/// Writes of one object.
impl Scenario {
    pub(super) fn shadow(&mut self, node: &str, user: &str, change: impl FnOnce(&mut Shadow)) {
        let mut shadow = Shadow::clone(&self.world.shadows[&names::shadow_name(node)]);
        change(&mut shadow);
        self.write(user, Object::Shadow(Arc::new(shadow)), false);
    }

    pub(super) fn controller(&mut self, node: &str, change: impl FnOnce(&mut Shadow)) {
        self.shadow(node, CONTROLLER, change);
    }

    pub(super) fn agent(&mut self, node: &str, change: impl FnOnce(&mut AgentReport)) {
        self.shadow(node, APISERVER, |shadow| change(&mut shadow.status.agent));
    }

    pub(super) fn node(&mut self, name: &str, user: &str, change: impl FnOnce(&mut Node)) {
        let mut node = Node::clone(&self.world.nodes[name]);
        change(&mut node);
        self.write(user, Object::Node(Arc::new(node)), false);
    }

    pub(super) fn set_field(&mut self, node: &str, user: &str, manager: &str, field: Field, value: Option<&str>) {
        self.node(node, user, |node| {
            match value {
                Some(value) => {
                    node.fields.insert(field.clone(), value.into());
                    node.owners.insert(field, BTreeSet::from([manager.into()]));
                }
                None => {
                    node.fields.remove(&field);
                    node.owners.remove(&field);
                }
            };
        });
    }

    pub(super) fn hold(&mut self, node: &str) {
        let hold = Field::Annotation(names::HOLD_ANNOTATION.into());
        self.set_field(node, "admin", "kubectl", hold, Some("true"));
    }

    pub(super) fn uncordon_by_hand(&mut self, node: &str) {
        self.set_field(node, "admin", "kubectl", Field::Unschedulable, None);
    }

    pub(super) fn operator(&mut self, change: impl FnOnce(&mut Operator)) {
        let mut operator = Operator::clone(self.world.operator.as_ref().unwrap());
        change(&mut operator);
        self.write(CONTROLLER, Object::Operator(Arc::new(operator)), false);
    }

    pub(super) fn delete_operator(&mut self) {
        let operator = Arc::clone(self.world.operator.as_ref().unwrap());
        self.write("admin", Object::Operator(operator), true);
    }

    /// Deletes a Node, and with it its shadow.
    pub(super) fn delete_node(&mut self, name: &str) {
        let shadow = Arc::clone(&self.world.shadows[&names::shadow_name(name)]);
        let node = Arc::clone(&self.world.nodes[name]);
        self.write("admin", Object::Node(node), true);
        self.write("admin", Object::Shadow(shadow), true);
    }

    /// Deletes a Node, and registers another one of its name for a machine, on which its last attempt goes through.
    pub(super) fn register_again(&mut self, name: &str, machine: &str) {
        let node = Node::clone(&self.world.nodes[name]);
        let mut shadow = Shadow::clone(&self.world.shadows[&names::shadow_name(name)]);
        self.delete_node(name);
        let uid = self.fresh("node");
        let again = Node { uid: uid.clone(), provider_id: machine.into(), owners: BTreeMap::new(), ..node };
        self.write(KUBELET, Object::Node(Arc::new(again)), false);
        (shadow.uid, shadow.owner) = (self.fresh("shadow"), Some((name.into(), uid)));
        let last = shadow.status.controller.record.as_mut().and_then(|record| record.last.as_mut());
        last.unwrap().reason = UPDATED.into();
        let reported = std::mem::take(&mut shadow.status.agent);
        self.write(CONTROLLER, Object::Shadow(Arc::new(shadow)), false);
        self.agent(name, |agent| *agent = reported);
    }

    fn new_pod(&mut self, title: &str, node: Option<&str>, app: &str, kind: &str) {
        let (namespace, name) = parts(title);
        let pod = Pod {
            // As the operator's own pods do.
            tolerates_cordon: namespace == names::SYSTEM_NAMESPACE,
            namespace,
            name,
            uid: self.fresh("pod"),
            node: node.map(str::to_owned),
            labels: BTreeMap::from([("app".into(), app.into())]),
            controller: Some((kind.into(), format!("{app}-{kind}"))),
            ready: node.is_some(),
            pending: node.is_none(),
            ..Pod::default()
        };
        self.write(KUBELET, Object::Pod(Arc::new(pod)), false);
    }

    pub(super) fn pod(&mut self, title: &str, node: &str, app: &str) {
        self.new_pod(title, Some(node), app, "ReplicaSet");
    }

    pub(super) fn unbound_pod(&mut self, title: &str, app: &str) {
        self.new_pod(title, None, app, "ReplicaSet");
    }

    pub(super) fn daemon_pod(&mut self, title: &str, node: &str) {
        self.new_pod(title, Some(node), "daemon", "DaemonSet");
    }

    pub(super) fn change_pod(&mut self, title: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = Pod::clone(&self.world.pods[&parts(title)]);
        change(&mut pod);
        self.write(KUBELET, Object::Pod(Arc::new(pod)), false);
    }

    pub(super) fn pod_gone(&mut self, title: &str) {
        let pod = Arc::clone(&self.world.pods[&parts(title)]);
        self.write(KUBELET, Object::Pod(pod), true);
    }

    pub(super) fn uid_of(&self, pod: &str) -> String {
        self.world.pods[&parts(pod)].uid.clone()
    }

    pub(super) fn evict(&mut self, pod: &str) {
        let uid = self.uid_of(pod);
        self.evict_as(CONTROLLER, pod, Some(&uid), 201);
    }

    pub(super) fn evict_as(&mut self, user: &str, pod: &str, uid: Option<&str>, code: u16) {
        let options = uid.map_or(json!({}), |uid| json!({"deleteOptions": {"preconditions": {"uid": uid}}}));
        self.remove(user, "create", "pods/eviction", pod, options, code);
    }

    pub(super) fn delete_pod(&mut self, user: &str, pod: &str) {
        let options = json!({"preconditions": {"uid": self.uid_of(pod)}});
        self.remove(user, "delete", "pods", pod, options, 200);
    }

    /// Deletes a pod as another client while an eviction of it is under way. The eviction finds a pod that is
    /// terminating.
    pub(super) fn deleted_during_eviction(&mut self, user: &str, pod: &str) {
        self.tick();
        let (namespace, name) = parts(pod);
        let mut eviction = self.record(CONTROLLER, "create", "", "pods/eviction", &namespace, &name);
        eviction.code = 201;
        eviction.request = Some(json!({"deleteOptions": {"preconditions": {"uid": self.uid_of(pod)}}}));
        self.tick();
        let mut deletion = self.record(user, "delete", "", "pods", &namespace, &name);
        let revision = self.world.revision + 1;
        (deletion.request, deletion.response) =
            (Some(json!({})), Some(json!({"metadata": {"resourceVersion": revision.to_string()}})));
        self.audit.extend([eviction, deletion]);
        self.change_pod(pod, |pod| pod.terminating = true);
    }

    /// Deletes a collection: the answer, a list, has the revision of the last write, and was requested before it.
    pub(super) fn delete_collection_meanwhile(&mut self, user: &str) {
        let mut record = self.record(user, "deletecollection", "", "pods", "shop", "");
        record.received = self.clock - SignedDuration::from_secs(1);
        let revision = self.world.revision.to_string();
        record.response = Some(json!({"kind": "PodList", "metadata": {"resourceVersion": revision}, "items": []}));
        self.audit.push(record);
    }

    fn remove(&mut self, user: &str, verb: &str, resource: &str, pod: &str, options: Value, code: u16) {
        self.tick();
        let (namespace, name) = parts(pod);
        let mut record = self.record(user, verb, "", resource, &namespace, &name);
        (record.code, record.request) = (code, Some(options));
        self.audit.push(record);
        if code < 300 {
            self.change_pod(pod, |pod| pod.terminating = true);
        }
    }

    pub(super) fn budget(&mut self, title: &str, app: &str, allowed: i32, healthy: i32, desired: i32) {
        let (namespace, name) = parts(title);
        let labels = BTreeMap::from([("app".into(), app.into())]);
        let budget = Budget {
            namespace,
            name,
            selector: Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }),
            disruptions_allowed: allowed,
            current_healthy: healthy,
            desired_healthy: if allowed == 0 { healthy } else { desired },
            disrupted: BTreeSet::new(),
        };
        self.write(KUBELET, Object::Budget(Arc::new(budget)), false);
    }

    pub(super) fn change_budget(&mut self, title: &str, change: impl FnOnce(&mut Budget)) {
        let mut budget = Budget::clone(&self.world.budgets[&parts(title)]);
        change(&mut budget);
        self.write(KUBELET, Object::Budget(Arc::new(budget)), false);
    }
}

#[test]
fn history_reports_transitions_and_attempts_of_update() {
    let mut scenario = Scenario::new(&["a", "b"]);
    scenario.pod("shop/cart-1", "a", "cart");
    scenario.update("a");
    let history = scenario.history();
    let steps: Vec<Option<Step>> = history.transitions("a").into_iter().map(|(_, step)| step).collect();
    assert_eq!(
        steps,
        [
            Some(Step::Staging),
            Some(Step::LeavingLoadBalancer),
            Some(Step::Draining),
            Some(Step::Rebooting),
            Some(Step::Verifying),
            None
        ]
    );
    assert_eq!(history.transitions("b"), []);
    assert_eq!(history.max_out_of_service(), 1);
    let attempts = history.attempts();
    assert_eq!(attempts.len(), 1);
    let attempt = &attempts[0];
    assert!(attempt.updated() && attempt.ended.unwrap() > attempt.started && attempt.drained.is_positive());
    assert_eq!((attempt.node.as_str(), attempt.attempt, attempt.pods_moved), ("a", 1, 1));
    assert_eq!((attempt.from.clone(), attempt.to.clone()), (Some(version(OLD)), version(NEW_VERSION)));
    let lines: Vec<String> = history.timeline().into_iter().map(|moment| moment.text).collect();
    assert_eq!(
        lines,
        [
            "desired state StagedUpdate 1.20.5, attempt 1",
            "Staging",
            "LeavingLoadBalancer",
            "claimed",
            "Draining",
            "Rebooting",
            "desired state RebootedIntoUpdate 1.20.5, attempt 1",
            "agent: Arming",
            "permit",
            "agent: Activated",
            "boot a-boot-2",
            "Verifying",
            "released",
            "desired state withdrawn",
            "done"
        ]
    );
}

#[test]
fn no_op_apply_is_not_recorded_as_writer_of_revision() {
    let mut scenario = Scenario::new(&["a"]);
    let zone = || Field::Label("zone".into());
    scenario.set_field("a", "admin", "kubectl", zone(), Some("1"));
    scenario.set_field("a", "admin", "kubectl", zone(), None);
    let revision = scenario.world.revision.to_string();
    // An apply of the operator that came in at the same time and changed nothing.
    let mut empty = scenario.record(CONTROLLER, "patch", "", "nodes", "", "a");
    empty.received -= SignedDuration::from_secs(1);
    empty.request = Some(json!({"metadata": {"resourceVersion": revision.clone()}}));
    empty.response = Some(json!({"metadata": {"resourceVersion": revision}}));
    scenario.audit.push(empty);
    assert_eq!(scenario.judge().violations, []);
}
