//! Clusters, nodes and pods for the unit tests.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus};
use models::operator::{
    ActiveRollout, BottlerocketUpdateOperatorSpec, KnownVersion, Quarantined, RolloutLedger, RolloutRecord, Slot,
    SlotUpdate,
};
use models::reason::{FailureReason, Proof};
use models::shadow::{
    Armed, ArmedPhase, AttemptResult, ControllerStatus, DrainStatus, DrainedPod, Failure, HOST_REACHABLE, HostState,
    NodeProof, OfferedUpdates, Place, Progress, Record, Step, UPDATED, is_agent_condition,
};
use semver::Version;

use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::expressions::Question;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::survey::rollout::Rollouts;
use crate::survey::settled;
use crate::view::{Blocked, ClusterView, LeaseObservations, NodeFacts, NodeView, OperatorFacts, PodFacts, ShadowFacts};

pub(crate) const OLD: Version = Version::new(1, 20, 0);
pub(crate) const NEW: Version = Version::new(1, 20, 5);

pub(crate) fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A query to Prometheus.
pub(crate) fn question(query: &str) -> Question {
    Question::Query(query.to_owned())
}

pub(crate) fn pod(node: &str, bare: bool) -> PodFacts {
    PodFacts {
        namespace: "shop".into(),
        name: format!("p-{node}"),
        uid: format!("p-{node}"),
        node: node.into(),
        controller_uid: (!bare).then(|| "rs".into()),
        ..PodFacts::default()
    }
}

pub(crate) fn node(name: &str) -> NodeView {
    let facts = NodeFacts {
        name: name.into(),
        uid: format!("uid-{name}"),
        labelled: true,
        ready: true,
        boot_id: "b1".into(),
        os_image: format!("Bottlerocket OS {OLD} (aws-k8s-1.37)"),
        ..NodeFacts::default()
    };
    let mut shadow = ShadowFacts {
        node: name.into(),
        uid: format!("shadow-{name}"),
        generation: 1,
        owner_uid: Some(facts.uid.clone()),
        ..ShadowFacts::default()
    };
    shadow.spec.host = Some(models::shadow::HostPolicy {
        refresh_interval: Some(Policy::default().refresh_interval),
        ..models::shadow::HostPolicy::default()
    });
    let agent = &mut shadow.status.agent;
    agent.state = Some(HostState::Idle);
    agent.observed_generation = Some(1);
    agent.boot_id = Some("b1".into());
    agent.current_version = Some(OLD);
    agent.variant = Some("aws-k8s-1.37".into());
    agent.arch = Some("x86_64".into());
    agent.updates = Some(OfferedUpdates { chosen_version: Some(NEW), ..OfferedUpdates::default() });
    // Observed in this state for a long time, so that the clock that plans get decides.
    NodeView {
        facts,
        shadow: Some(Box::new(shadow)),
        pods: Some(vec![]),
        observed_for: Duration::from_hours(1000),
        ..NodeView::default()
    }
}

pub(crate) fn progress(step: Step, since: i64) -> Progress {
    Progress {
        step,
        since: t(since),
        attempt: 1,
        boot_id: "b1".into(),
        version: NEW,
        from: Some(OLD),
        started: t(0),
        permit_issued: false,
        soak_restarted: false,
        interrupted: None,
        verifying_since: None,
        drill: None,
        verification: false,
        rollout: None,
        disruptive: step.place() != Place::Waiting,
    }
}

/// A node whose attempt is at `step`, with the desired state `state`.
pub(crate) fn at(name: &str, step: Step, since: i64, state: HostState) -> NodeView {
    let mut node = node(name);
    let shadow = node.shadow.as_mut().unwrap();
    shadow.spec.state = state;
    shadow.spec.attempt = 1;
    if state != HostState::Idle {
        shadow.spec.version = Some(NEW);
        shadow.spec.boot_id = Some("b1".into());
    }
    shadow.status.agent.state = Some(state);
    if state == HostState::RebootedIntoUpdate {
        shadow.status.agent.state = Some(HostState::StagedUpdate);
    }
    shadow.status.controller.progress = Some(progress(step, since));
    if progress(step, 0).disruptive {
        node.facts.claims = ClaimFields::USUAL;
        node.facts.unschedulable = true;
    }
    node
}

pub(crate) fn cluster(nodes: Vec<NodeView>, slots: &[&str]) -> (ClusterView, Policy) {
    let mut operator = OperatorFacts { uid: "op".into(), ..OperatorFacts::default() };
    operator.spec = BottlerocketUpdateOperatorSpec::default();
    operator.status.observed_generation = Some(operator.generation);
    let nodes: BTreeMap<String, NodeView> = nodes.into_iter().map(|n| (n.facts.name.clone(), n)).collect();
    let held = |name: &&str| Slot { update: nodes.get(*name).and_then(slot_update), ..slot(name) };
    operator.status.slots = slots.iter().map(held).collect();
    let policy = Policy::from_spec(&operator.spec).unwrap();
    (ClusterView { nodes, operator: Some(operator), leader_since: t(-100_000), ..ClusterView::default() }, policy)
}

/// Like [`cluster`], under the policy of `spec`.
pub(crate) fn cluster_with(nodes: Vec<NodeView>, slots: &[&str], spec: serde_json::Value) -> (ClusterView, Policy) {
    let (mut view, _) = cluster(nodes, slots);
    let policy = with_policy(&mut view, spec);
    (view, policy)
}

/// A version that the operator knows since a second.
pub(crate) fn seen(version: Version, second: i64) -> KnownVersion {
    KnownVersion {
        version,
        variant: "aws-k8s-1.37".into(),
        arch: "x86_64".into(),
        first_seen: t(second),
        failed: vec![],
        quarantined: None,
    }
}

/// The quarantine of a version on which these nodes have fallen back, since 0 s.
pub(crate) fn fallen_back(nodes: &[&str]) -> Quarantined {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    Quarantined { reason: FailureReason::BootFellBack, nodes, since: t(0), contained: false }
}

pub(crate) fn failure(version: Version) -> models::shadow::VersionFailure {
    models::shadow::VersionFailure {
        version,
        variant: "aws-k8s-1.37".into(),
        arch: "x86_64".into(),
        reason: FailureReason::BootFellBack,
        time: t(0),
        resolved_by: None,
    }
}

/// A rollout of a version among the nodes that [`node`] makes, without a passed canary step.
pub(crate) fn rollout(version: Version) -> ActiveRollout {
    ActiveRollout::new(version, "aws-k8s-1.37".into(), "x86_64".into(), t(0))
}

/// Records that a node has proven the new version, so that none goes alone.
pub(crate) fn one_proven(view: &mut ClusterView) {
    let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
    let ledger = RolloutLedger { proven: 1, ..RolloutLedger::default() };
    rollouts.push(ActiveRollout { ledger: Some(ledger), ..rollout(NEW) });
}

/// The place of a running rollout in the history.
pub(crate) fn recorded(number: i64) -> RolloutRecord {
    RolloutRecord {
        number,
        begun: t(0),
        first: None,
        revision: models::history::RecordedRevision { name: "default-x".into(), number: 3 },
        phase: models::history::RolloutPhase::Running,
        ended: None,
        first_estimate: None,
    }
}

/// The record of an attempt of the operator that updated its node, from 1 s to 50 s.
pub(crate) fn updated() -> Record {
    let last = AttemptResult {
        attempt: 1,
        from: Some(OLD),
        version: NEW,
        reason: UPDATED.into(),
        message: String::new(),
        started: t(1),
        ended: t(50),
    };
    let proof = NodeProof { version: NEW, rollout: 0, attempt: 1, proof: Proof::Proven, reason: UPDATED.into() };
    Record { last: Some(last), proof: Some(proof), ..Record::default() }
}

/// A condition that is True since 0 s.
pub(crate) fn condition(type_: &str, reason: &str, message: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status: ConditionStatus::True,
        reason: reason.into(),
        message: message.into(),
        last_transition_time: t(0),
        observed_generation: None,
    }
}

/// The report of an agent whose host does not answer.
pub(crate) fn unreachable() -> Condition {
    let condition = condition(HOST_REACHABLE, "Timeout", "the host did not answer in time");
    Condition { status: ConditionStatus::False, ..condition }
}

pub(crate) fn armed(phase: ArmedPhase) -> Armed {
    Armed { attempt: 1, boot_id: "b1".into(), version: NEW, phase, nonce: "n".into() }
}

/// A node that is drained, with the policy of `spec`. The record of its drain lists its pods.
pub(crate) fn draining(spec: serde_json::Value, pods: Vec<PodFacts>) -> (ClusterView, Policy) {
    let mut node = at("a", Step::Draining, 0, HostState::StagedUpdate);
    let listed = |pod: &PodFacts| DrainedPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..DrainedPod::default()
    };
    let pods_listed = pods.iter().map(listed).collect();
    node.shadow.as_mut().unwrap().status.controller.drain =
        Some(DrainStatus { pods: pods_listed, ..DrainStatus::default() });
    node.pods = Some(pods);
    cluster_with(vec![node], &["a"], spec)
}

/// Carries out the write about node `a` that is due at this second.
pub(crate) fn write_due(view: &mut ClusterView, policy: &Policy, second: i64) {
    let action = crate::plan::plan(view, policy, t(second)).actions.remove("a").unwrap();
    written(view, &action);
}

pub(crate) fn written(view: &mut ClusterView, action: &Action) {
    let Action::Status { status, .. } = action else { panic!("{action:?}") };
    let stored = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status;
    stored.controller = status.report.clone();
    stored.conditions.retain(|condition| is_agent_condition(&condition.type_));
    stored.conditions.extend(status.conditions.clone());
}

pub(crate) fn with_policy(view: &mut ClusterView, spec: serde_json::Value) -> Policy {
    let operator = view.operator.as_mut().unwrap();
    operator.spec = serde_json::from_value(spec).unwrap();
    Policy::from_spec(&operator.spec).unwrap()
}

/// Observations of a Lease that is renewed after this second.
pub(crate) fn renewed_after(second: i64) -> Option<LeaseObservations> {
    let first = LeaseObservations::add(None, Some(t(second)), t(second));
    Some(LeaseObservations::add(Some(first), Some(t(second + 10)), t(second)))
}

/// Has a node be Ready, or not, since then.
pub(crate) fn set_ready(facts: &mut NodeFacts, ready: bool, since: Timestamp) {
    facts.ready = ready;
    (facts.ready_since, facts.not_ready_since) = (ready.then_some(since), (!ready).then_some(since));
}

/// An answer to an eviction that was sent at `since`, with a retry at 1000 s.
pub(crate) fn answer(budget: Option<&str>, since: i64, accepted: bool) -> Blocked {
    Blocked {
        budget: budget.map(str::to_owned),
        message: "not now".into(),
        since: t(since),
        retry_at: t(1000),
        accepted,
        ..Blocked::default()
    }
}

/// The update that the slot of a node records.
fn slot_update(node: &NodeView) -> Option<SlotUpdate> {
    let away = node.update()?.step.place() >= Place::Away;
    let update = settled::update_of(&Rollouts::default(), node)?;
    Some(SlotUpdate { permitting_since: away.then(|| t(0)), ..update })
}

/// The first attempt of an update to the new version, as a slot records it before its permit.
pub(crate) fn first_update() -> SlotUpdate {
    SlotUpdate {
        version: NEW,
        variant: "aws-k8s-1.37".into(),
        arch: "x86_64".into(),
        attempt: 1,
        boot_id: "b1".into(),
        provider_id: None,
        had: None,
        permitting_since: None,
        removed_in: None,
        zone: String::new(),
        group: None,
        control_plane: false,
    }
}

/// The slot of a node, since 0 s.
pub(crate) fn slot(node: &str) -> Slot {
    Slot { uid: format!("uid-{node}"), node: node.into(), since: t(0), update: None }
}

/// The shadow of node `a`.
pub(crate) fn shadow(view: &mut ClusterView) -> &mut ShadowFacts {
    view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap()
}

/// Node `a` after its reboot by a permit, whose agent reports that the attempt failed.
pub(crate) fn failed(reason: FailureReason) -> NodeView {
    let mut node = at("a", Step::Returning, 0, HostState::RebootedIntoUpdate);
    node.facts.boot_id = "b2".into();
    let shadow = node.shadow.as_mut().unwrap();
    shadow.spec.permit = Some(models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
    shadow.status.agent.failure =
        Some(Failure { attempt: 1, step: HostState::RebootedIntoUpdate, reason, message: String::new(), time: t(1) });
    node
}

/// The status of node `a` that a plan writes.
pub(crate) fn status_of(made: &Plan) -> &ControllerStatus {
    match made.actions.get("a") {
        Some(Action::Status { status, .. }) => status,
        other => panic!("{other:?}: {:?}", made.waits),
    }
}

/// The record of node `a` that a plan writes.
pub(crate) fn record_of(made: &Plan) -> &Record {
    status_of(made).report.record.as_ref().unwrap()
}

/// The end of an attempt of node `a` that a plan writes.
pub(crate) fn last_of(made: &Plan) -> &AttemptResult {
    record_of(made).last.as_ref().unwrap()
}

/// The outcome of a plan for node `a`: the next write, the reason of a failure, or the reason why it waits.
pub(crate) fn outcome(made: &Plan) -> String {
    match made.actions.get("a") {
        None => made.waits.get("a").map_or_else(|| "nothing".to_owned(), |wait| wait.as_str().to_owned()),
        Some(Action::Status { status, .. }) => match status.report.progress.as_ref().map(|progress| progress.step) {
            Some(Step::Releasing) => status.report.record.clone().unwrap().last.unwrap().reason,
            Some(step) => format!("step {step:?}"),
            None => "no attempt".to_owned(),
        },
        Some(Action::Spec { spec }) => format!("request {:?} of {}", spec.state, spec.attempt),
        Some(Action::Permit { nonce, .. }) => format!("permit for {nonce}"),
        Some(action) => format!("{action:?}"),
    }
}

/// Carries out the first writes of a plan that create or renumber revisions, as the API server does.
pub(crate) fn record_history(view: &mut ClusterView, policy: &Policy) {
    use crate::revisions::RevisionAction;
    use crate::view::{Projection as _, RevisionFacts};
    view.revisions.get_or_insert_default();
    for action in crate::plan::plan(view, policy, t(0)).revisions {
        let known = view.revisions.get_or_insert_default();
        match action {
            RevisionAction::Create(mut revision) => {
                revision.metadata.uid = revision.metadata.name.clone();
                known.extend(RevisionFacts::project(&revision));
            }
            RevisionAction::Renumber { name, patch } => {
                let found = known.iter_mut().find(|known| known.name == name).unwrap();
                found.number = patch["revision"].as_i64().unwrap();
            }
            RevisionAction::Delete { name, .. } => known.retain(|known| known.name != name),
            other => panic!("{other:?}"),
        }
    }
}

/// The errors of a policy that cannot be applied.
pub(crate) fn invalid_policy() -> Vec<crate::policy::PolicyError> {
    vec![crate::policy::PolicyError { field: "spec.version.target".into(), message: "no version".into() }]
}
