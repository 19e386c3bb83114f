//! The rest that has to end before the operator can be removed, and the parts of the operator that could end it.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use models::{earlier, names};
use planner::hooks::is_open;
use planner::view::{EarlierPod, NodeFacts, Projection as _};

use crate::call::{call, get, get_metadata};
use crate::shell::for_cluster;

/// A part of the operator that ends something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Controller,
    /// The agent, by the desired state that the controller writes.
    Agent,
    Aws,
}

/// Something that has to end before the operator can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) sentence: String,
    by: Part,
    /// True if it does not end before its node, which is not Ready, is back or deleted.
    needs_node: bool,
}

impl Left {
    fn new(by: Part, sentence: String) -> Self {
        Self { sentence, by, needs_node: false }
    }

    /// Adds what the user has to do about the node, where that is away.
    fn on(self, away: Option<&NodeFacts>) -> Self {
        let Some(NodeFacts { name, .. }) = away else { return self };
        let delete = for_cluster(&format!("kubectl delete node {name}"));
        let sentence =
            format!("{}; {name} is not Ready: bring it back, or if it is gone for good: {delete}", self.sentence);
        Self { sentence, needs_node: true, ..self }
    }

    /// Whatever is under way on the node of a shadow that cannot be read.
    pub(super) fn unreadable(shadow: &str, error: &str) -> Self {
        let sentence = format!("what is under way on the node of brs {shadow}, which cannot be read ({error})");
        Self::new(Part::Controller, sentence)
    }
}

/// Returns whether nothing of what is left ends before nodes that are not Ready are back or deleted.
pub(super) fn needs_nodes(left: &[Left]) -> bool {
    left.iter().all(|left| left.needs_node)
}

/// Lists what the controller and the agents still have to end.
pub(super) fn unfinished(nodes: &[NodeFacts], shadows: &[BottlerocketShadow]) -> Vec<Left> {
    let mut left = Vec::new();
    let attempt = |shadow: &BottlerocketShadow| {
        let progress = shadow.status.as_ref()?.controller.progress.as_ref()?;
        Some((names::node_of_shadow(&shadow.name_any()).to_owned(), progress.may_still_reboot()))
    };
    let attempts: BTreeMap<String, bool> = shadows.iter().filter_map(attempt).collect();
    // An attempt under way brings its node back, or ends in time.
    let is_away = |node: &&NodeFacts| !node.ready && attempts.get(&node.name) != Some(&false);
    let away: BTreeMap<&str, &NodeFacts> =
        nodes.iter().filter(is_away).map(|node| (node.name.as_str(), node)).collect();
    // A user holds it as it is.
    let stays = |node: &str| attempts.contains_key(node) && away.get(node).is_some_and(|node| node.held());
    for shadow in shadows {
        let name = shadow.name_any();
        let node = names::node_of_shadow(&name);
        let Some(status) = shadow.status.as_ref().filter(|_| !stays(node)) else { continue };
        let away = away.get(node).copied();
        let no_agent = |otherwise: &str| {
            if away.is_some() || nodes.iter().any(|facts| facts.name == node && facts.labelled) {
                return String::new();
            }
            format!(
                ", and without its label no agent runs there that could: give {node} the label {}={} again, or {otherwise} and \
                 delete the shadow {name}",
                names::INTERFACE_LABEL,
                names::INTERFACE_VERSION
            )
        };
        if let Some(progress) = &status.controller.progress {
            let sentence = format!("the update of {node} is at {:?}", progress.step);
            left.push(Left::new(Part::Controller, sentence).on(away));
        } else if status.agent.armed.is_some() {
            let why = no_agent("reboot the host");
            let sentence = format!("the host of {node} may be armed; its agent has not reported otherwise{why}");
            left.push(Left::new(Part::Agent, sentence).on(away));
        } else if status.agent.host.as_ref().is_some_and(|host| host.applied.is_some()) {
            let why = no_agent("set updates.version-lock and updates.ignore-waves on the host");
            let sentence = format!("the settings of the host of {node} are not put back yet{why}");
            left.push(Left::new(Part::Agent, sentence).on(away));
        }
    }
    for node in nodes.iter().filter(|node| !stays(&node.name)) {
        if node.claimed() && !node.held() {
            let sentence = format!("{} is not released yet", node.name);
            left.push(Left::new(Part::Controller, sentence).on(away.get(node.name.as_str()).copied()));
        } else if node.hook_request.is_some() {
            let sentence = format!("the request to hooks on {} is not withdrawn yet", node.name);
            left.push(Left::new(Part::Controller, sentence));
        }
    }
    left
}

/// Lists what the hook for AWS has recorded and not taken back yet.
pub(super) fn not_taken_back(record: &BTreeMap<String, String>) -> impl Iterator<Item = Left> {
    record.iter().map(|(id, entry)| {
        let sentence = format!("{} has not taken back what it did for instance {id}: {entry}", names::AWS);
        Left::new(Part::Aws, sentence)
    })
}

/// Lists what Jobs of hooks have prepared and no other Job has taken back yet.
pub(super) fn prepared(jobs: &[Job]) -> impl Iterator<Item = Left> {
    jobs.iter().filter(|job| is_open(job)).map(|job| {
        let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
        let sentence = format!("what the Job {namespace}/{name} of a hook has prepared is not taken back yet");
        Left::new(Part::Controller, sentence)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    /// It does not exist, or is to have no pod.
    Absent,
    NotReady,
    Ready,
}

impl Workload {
    fn of(wanted: i32, ready: i32) -> Self {
        match (wanted, ready) {
            (0, _) => Self::Absent,
            (_, 0) => Self::NotReady,
            _ => Self::Ready,
        }
    }
}

/// The facts that say how long what is left can last.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    controller: Workload,
    agent: Workload,
    aws: Workload,
    /// True if the operator's resource exists again.
    resource: bool,
    /// A pod of the earlier operator, beside which this one does nothing.
    earlier: Option<String>,
}

impl Surroundings {
    /// Reads the operator's workloads and resource, and looks for a pod of the earlier operator.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
        let resource = get_metadata(&operators, names::OPERATOR_NAME).await?;
        let agent: Option<DaemonSet> = get(client, names::AGENT_NAMESPACE, names::AGENT).await?;
        // Where no node is selected, the sentences about the nodes say so.
        let agent = agent.map_or(Workload::Absent, |set| {
            set.status.map_or(Workload::NotReady, |status| {
                Workload::of(status.desired_number_scheduled.max(1), status.number_ready)
            })
        });
        let pods: Api<Pod> = Api::all(client.clone());
        let mut earlier = None;
        for selector in earlier::pod_selectors() {
            let running = "status.phase!=Succeeded,status.phase!=Failed";
            let first = ListParams::default().labels(&selector).fields(running).limit(1);
            // A remark alone depends on it, and the right to list all pods is not needed otherwise.
            if let Ok(found) = call("list pods in all namespaces", pods.list(&first)).await {
                earlier = earlier.or(found.items.iter().find_map(EarlierPod::project).map(|pod| pod.title));
            }
        }
        Ok(Self {
            controller: deployment(client, names::CONTROLLER).await?,
            agent,
            aws: deployment(client, names::AWS).await?,
            resource: resource.is_some_and(|meta| meta.deletion_timestamp.is_none()),
            earlier,
        })
    }

    fn of(&self, part: Part) -> Workload {
        match part {
            Part::Controller => self.controller,
            Part::Agent => self.agent,
            Part::Aws => self.aws,
        }
    }

    /// Returns true if waiting ends nothing of what is left.
    fn is_stuck(&self, left: &[Left]) -> bool {
        let no_controller = self.controller == Workload::Absent;
        // Without the controller, what the hook for AWS still does may depend on a request that is not withdrawn.
        let of_controller = left.iter().any(|left| left.by != Part::Aws);
        (no_controller && of_controller) || left.iter().all(|left| self.of(left.by) == Workload::Absent)
    }

    /// Returns true if waiting ends nothing of what is left now, nor did at the look before: what replaces a Deployment deletes it first.
    pub(super) fn is_still_stuck(&self, before: Option<&Self>, left: &[Left]) -> bool {
        self.is_stuck(left) && before.is_some_and(|before| before.is_stuck(left))
    }

    /// Returns the reasons why what is left lasts, each as a sentence.
    pub(super) fn remarks(&self, left: &[Left]) -> Vec<String> {
        let mut remarks = Vec::new();
        let needs = |part: Part| left.iter().any(|left| left.by == part);
        let (system, agents) = (names::SYSTEM_NAMESPACE, names::AGENT_NAMESPACE);
        let of_controller = needs(Part::Controller) || needs(Part::Agent);
        for (state, needed, workload, namespace, name) in [
            (self.controller, of_controller, "Deployment", system, names::CONTROLLER),
            (self.agent, needs(Part::Agent), "DaemonSet", agents, names::AGENT),
            (self.aws, needs(Part::Aws), "Deployment", system, names::AWS),
        ] {
            match state {
                Workload::Absent if needed => remarks.push(format!(
                    "no {name} runs that could end this: the {workload} {namespace}/{name} does not exist or has no pods"
                )),
                Workload::NotReady if needed => remarks.push(format!(
                    "no pod of the {workload} {namespace}/{name} is Ready: {}",
                    for_cluster(&format!("kubectl -n {namespace} get pods"))
                )),
                Workload::Absent | Workload::NotReady | Workload::Ready => {}
            }
        }
        if self.resource {
            remarks.push(format!(
                "the BottlerocketUpdateOperator {}/{} exists again, so that updates start: suspend what applies it, such as \
                 Argo CD or Flux, and run this again",
                names::SYSTEM_NAMESPACE,
                names::OPERATOR_NAME
            ));
        }
        remarks.extend(self.earlier.as_ref().map(|pod| {
            format!(
                "the operator does nothing beside the earlier operator, whose pod {pod} exists: delete what makes it"
            )
        }));
        remarks
    }
}

async fn deployment(client: &Client, name: &str) -> anyhow::Result<Workload> {
    let found: Option<Deployment> = get(client, names::SYSTEM_NAMESPACE, name).await?;
    Ok(found.map_or(Workload::Absent, |found| {
        let ready = found.status.and_then(|status| status.ready_replicas).unwrap_or(0);
        Workload::of(found.spec.replicas.unwrap_or(1), ready)
    }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;

    fn node(meta: &Value) -> NodeFacts {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let node: Node = serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap();
        NodeFacts::project(&node).unwrap()
    }

    fn claimed(annotations: &Value) -> NodeFacts {
        node(&json!({
            "name": "a", "annotations": annotations,
            "managedFields": [{
                "manager": names::CONTROLLER_MANAGER, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            }],
        }))
    }

    fn shadow(status: &Value) -> BottlerocketShadow {
        serde_json::from_value(json!({
            "metadata": {"name": "brs-a"}, "spec": {"state": "Idle", "attempt": 1}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn job_before_a_drain_blocks_uninstall_until_it_is_taken_back() {
        let job = |name: &str, phase: &str, ttl: Option<i32>| -> Job {
            let metadata = json!({
                "namespace": "rook-ceph", "name": name, "annotations": {names::JOB_PHASE_ANNOTATION: phase},
            });
            let spec = json!({"ttlSecondsAfterFinished": ttl, "template": {}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let jobs = [job("open", "before", None), job("closed", "before", Some(3600)), job("end", "after", Some(3600))];
        let left: Vec<Left> = prepared(&jobs).collect();
        assert!(left.len() == 1 && left[0].sentence.contains("rook-ceph/open"), "{left:?}");
    }

    #[test]
    fn unreleased_nodes_hosts_and_settings_block_uninstall() {
        let idle = || shadow(&json!({"state": "Idle"}));
        let drained = shadow(&json!({"progress": crate::cluster::testing::progress("Draining", 1)}));
        let armed = shadow(&json!({"armed": {
            "attempt": 1, "bootId": "b", "version": "1.20.5", "phase": "Activated", "nonce": "n",
        }}));
        let pinned = shadow(&json!({"host": {"applied": {"versionLock": "1.20.0"}}}));
        let found = shadow(&json!({"host": {"versionLock": "latest"}}));
        let label = json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION});
        let labelled = node(&json!({"name": "a", "labels": label}));
        for (sentence, nodes, shadows, expected) in [
            ("an idle node", node(&json!({"name": "a"})), idle(), None),
            ("a drain", node(&json!({"name": "a"})), drained, Some("the update of a is at Draining")),
            ("an armed host", labelled.clone(), armed.clone(), Some("its agent has not reported otherwise")),
            ("an armed host without an agent", node(&json!({"name": "a"})), armed, Some("give a the label")),
            ("a pinned host", labelled.clone(), pinned.clone(), Some("are not put back yet")),
            ("a pinned host without an agent", node(&json!({"name": "a"})), pinned, Some("give a the label")),
            ("a host of which settings were only read", node(&json!({"name": "a"})), found, None),
            ("a claim", claimed(&json!({})), idle(), Some("a is not released yet")),
            (
                "a request to hooks",
                node(&json!({"name": "a", "annotations": {names::HOOKS_ANNOTATION: "BeforeDrain/1/1"}})),
                idle(),
                Some("the request to hooks on a is not withdrawn yet"),
            ),
            ("a cordon kept by a user's hold", claimed(&json!({names::HOLD_ANNOTATION: "mine"})), idle(), None),
        ] {
            let left = unfinished(&[nodes], &[shadows]);
            match expected {
                Some(expected) => {
                    assert!(left.len() == 1 && left[0].sentence.contains(expected), "{sentence}: {left:?}");
                }
                None => assert_eq!(left, Vec::<Left>::new(), "{sentence}"),
            }
        }
    }

    #[test]
    fn node_that_is_not_ready_is_named_with_the_way_out_unless_its_attempt_goes_on_or_its_user_holds_it() {
        let mut ended = crate::cluster::testing::progress("Releasing", 1);
        (ended["permitIssued"], ended["disruptive"]) = (json!(true), json!(false));
        let ended = || shadow(&json!({"progress": ended}));
        let reboots = || shadow(&json!({"progress": crate::cluster::testing::progress("Returning", 1)}));
        let pinned = || shadow(&json!({"host": {"applied": {"versionLock": "1.20.0"}}}));
        let away = |annotations: Value| NodeFacts { ready: false, ..claimed(&annotations) };
        let held = || away(json!({names::HOLD_ANNOTATION: "mine", names::HOOKS_ANNOTATION: "BeforeDrain/1/1"}));
        let way_out = "; a is not Ready: bring it back, or if it is gone for good: kubectl delete node a";
        for (sentence, node, shadow, expected) in [
            ("its attempt has ended", away(json!({})), ended(), Some((2, true))),
            ("it is back", claimed(&json!({})), ended(), Some((2, false))),
            ("its attempt goes on", away(json!({})), reboots(), Some((2, false))),
            ("it is claimed alone", away(json!({})), shadow(&json!({"state": "Idle"})), Some((1, true))),
            ("its host is pinned", away(json!({})), pinned(), Some((2, true))),
            ("a user holds it", held(), ended(), None),
        ] {
            let left = unfinished(&[node], &[shadow]);
            let expected = expected.map(|(count, needs_node)| {
                assert_eq!(left.len(), count, "{sentence}: {left:?}");
                needs_node
            });
            assert_eq!((!left.is_empty()).then(|| needs_nodes(&left)), expected, "{sentence}: {left:?}");
            let named = left.iter().filter(|left| left.sentence.ends_with(way_out)).count();
            assert_eq!(named, if expected == Some(true) { left.len() } else { 0 }, "{sentence}: {left:?}");
        }
    }

    #[test]
    fn wait_ends_at_the_second_look_without_a_part_that_could_end_it() {
        use Workload::{Absent, NotReady, Ready};
        let left = |parts: &[Part]| parts.iter().map(|part| Left::new(*part, String::new())).collect::<Vec<_>>();
        let before = Surroundings { controller: Ready, agent: Ready, aws: Ready, resource: false, earlier: None };
        let of = |[controller, agent, aws]: [Workload; 3]| Surroundings { controller, agent, aws, ..before.clone() };
        let (claim, host, instance) = (Part::Controller, Part::Agent, Part::Aws);
        let (no_controller, crashes) = ([Absent, Ready, Ready], [NotReady, Ready, Ready]);
        let (no_agents, no_hook) = ([Ready, Absent, Ready], [Ready, Ready, Absent]);
        let controller_crashes = "no pod of the Deployment brupop-system/brupop-controller is Ready";
        let no_agent_runs = "the DaemonSet brupop-agents/brupop-agent does not exist";
        for (sentence, found, parts, stuck, remark) in [
            ("all parts run", [Ready; 3], vec![claim, host, instance], false, ""),
            ("no controller", no_controller, vec![claim], true, "no brupop-controller runs"),
            ("no controller for an agent", no_controller, vec![host], true, "no brupop-controller runs"),
            ("none for the request to a hook", no_controller, vec![claim, instance], true, "no brupop-controller runs"),
            ("no controller, and a hook that is not asked any more", no_controller, vec![instance], false, ""),
            ("a controller that crashes", crashes, vec![claim], false, controller_crashes),
            ("no agents", no_agents, vec![host], true, no_agent_runs),
            ("a node that the controller releases", no_agents, vec![claim, host], false, "no brupop-agent runs"),
            ("no hook for AWS", no_hook, vec![instance], true, "no brupop-aws runs"),
            ("no hook for AWS, and none needed", no_hook, vec![claim], false, ""),
        ] {
            let (around, left) = (of(found), left(&parts));
            assert_eq!(around.is_still_stuck(Some(&around), &left), stuck, "{sentence}");
            assert!(!around.is_still_stuck(None, &left), "{sentence}, at the first look");
            assert!(!around.is_still_stuck(Some(&before), &left), "{sentence}, where all parts ran before");
            let found = around.remarks(&left);
            let is_expected = found.iter().all(|found| found.contains(remark));
            assert!(found.len() == usize::from(!remark.is_empty()) && is_expected, "{sentence}: {found:?}");
        }
        // GitOps has created the resource again, or the earlier operator runs beside this one.
        let again = Surroundings { resource: true, ..before.clone() };
        let beside = Surroundings { earlier: Some("old/agent-1".to_owned()), ..before };
        for (around, remark) in
            [(again, "brupop-system/default exists again"), (beside, "whose pod old/agent-1 exists")]
        {
            let left = left(&[claim]);
            let found = around.remarks(&left);
            assert!(!around.is_still_stuck(Some(&around), &left), "{remark}");
            assert!(found.len() == 1 && found[0].contains(remark), "{found:?}");
        }
        assert_eq!([Workload::of(0, 0), Workload::of(2, 0), Workload::of(2, 1)], [Absent, NotReady, Ready]);
    }
}
