//! The table of what may happen in a round, and what each entry does.

use integ::oracle::ClusterState;
use models::names::{
    APPROVE_STEP_ANNOTATION, CONTINUE_OTHERS_ANNOTATION, DRILL_ANNOTATION, HOLD_ANNOTATION, RELEASE_ANNOTATION,
    RESUME_ANNOTATION, RETRY_ANNOTATION,
};
use models::operator::frozen_since;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{NODES, Soak, approvable};
use crate::bed::{Boot, Fault, ScriptedCluster, closed_schedule, open_schedule};
use crate::faults::{is_possible, writes};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Release,
    Pin,
    Unpin,
    Exclude,
    Schedule,
    Budget,
    Canary,
    Hooks,
    Enabled,
    Approve,
    Resume,
    ContinueOthers,
    Retry,
    ReleaseNode,
    Drill,
    Hold,
    Unhold,
    FailUpdates,
    Mend,
    Cordon,
    Uncordon,
    Reboot,
    Autoscale,
    StopLeader,
    KillLeader,
    FaultyWrite,
    HeldWatches,
}

/// The actions with their weights.
const TABLE: [(Action, u32); 27] = [
    (Action::Release, 8),
    (Action::Pin, 3),
    (Action::Unpin, 4),
    (Action::Exclude, 2),
    (Action::Schedule, 4),
    (Action::Budget, 3),
    (Action::Canary, 4),
    (Action::Hooks, 4),
    (Action::Enabled, 3),
    (Action::Approve, 4),
    (Action::Resume, 4),
    (Action::ContinueOthers, 2),
    (Action::Retry, 2),
    (Action::ReleaseNode, 2),
    (Action::Drill, 1),
    (Action::Hold, 2),
    (Action::Unhold, 4),
    (Action::FailUpdates, 4),
    (Action::Mend, 5),
    (Action::Cordon, 2),
    (Action::Uncordon, 4),
    (Action::Reboot, 2),
    (Action::Autoscale, 3),
    (Action::StopLeader, 1),
    (Action::KillLeader, 1),
    (Action::FaultyWrite, 10),
    (Action::HeldWatches, 2),
];

/// An action, and a number that chooses what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) action: Action,
    pub(super) number: usize,
}

pub(super) fn draw(rng: &mut StdRng) -> Draw {
    let drawn = TABLE.choose_weighted(rng, |(_, weight)| *weight);
    let action = drawn.map_or(Action::Release, |(action, _)| *action);
    Draw { action, number: rng.random_range(0..1_000_000) }
}

/// Checks that a seed draws the same again, and that every action is drawn.
pub(super) fn check_draws() {
    let draws = |seed| {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..2_000).map(|_| draw(&mut rng)).collect::<Vec<Draw>>()
    };
    assert_eq!(draws(7), draws(7));
    assert_ne!(draws(7), draws(8));
    for (action, _) in TABLE {
        assert!(draws(7).iter().any(|drawn| drawn.action == action), "{action:?}");
    }
}

impl Soak {
    /// Does what was drawn. Returns a sentence about it; `None` where there was nothing to do.
    pub(super) async fn carry_out(
        &mut self,
        cluster: &mut ScriptedCluster,
        drawn: &Draw,
    ) -> anyhow::Result<Option<String>> {
        if let Some(policy) = self.policy(cluster, drawn) {
            cluster.policy(&policy).await?;
            return Ok(Some(format!("a user changes the policy: {policy}")));
        }
        match drawn.action {
            Action::Release => return Ok(Some(format!("{} is offered", self.release(cluster)))),
            Action::StopLeader if self.faults.left().is_empty() => {
                cluster.controller()?.stop().await?;
                cluster.start_next_controller().await?;
                return Ok(Some("the leader stops, and another one goes on".to_owned()));
            }
            Action::KillLeader => {
                cluster.replace_controller().await?;
                return Ok(Some("the leader is killed, and another one goes on".to_owned()));
            }
            Action::FaultyWrite => return Ok(self.plan_fault(drawn.number)),
            Action::HeldWatches => {
                self.faults.end();
                self.faults.plan("update leases", Fault::Stale);
                return Ok(Some("watches show nothing for a while".to_owned()));
            }
            _ => {}
        }
        let world = cluster.now()?;
        if let Some((annotation, value)) = self.request_of_operator(&world, drawn.action) {
            cluster.request(annotation, &value).await?;
            return Ok(Some(format!("a user requests {annotation}={value}")));
        }
        let Some(node) = world.nodes.keys().nth(drawn.number % world.nodes.len().max(1)).cloned() else {
            return Ok(None);
        };
        if let Some(annotation) = annotation_of_node(drawn.action).filter(|_| world.shadow(&node).is_some()) {
            cluster.request_of_node(&node, annotation, &self.request()).await?;
            return Ok(Some(format!("a user requests {annotation} of {node}")));
        }
        self.touch(cluster, &world, node, drawn).await
    }

    /// The change of the policy that was drawn.
    fn policy(&self, cluster: &ScriptedCluster, drawn: &Draw) -> Option<Value> {
        let number = drawn.number;
        let policy = match drawn.action {
            Action::Pin => json!({"version": {"target": self.offered[number % self.offered.len()].to_string()}}),
            Action::Unpin => json!({"version": {"target": null, "exclude": null}}),
            Action::Exclude => json!({"version": {"exclude": [self.offered.last()?.to_string()]}}),
            Action::Schedule => json!({"schedule": match number % 5 {
                0 => closed_schedule(&cluster.time),
                1 => json!({"windows": [{"cron": "0 * * * *", "duration": "20m"}], "blackouts": []}),
                2 => open_schedule(),
                _ => Value::Null,
            }}),
            Action::Budget => {
                let limit = [json!(1), json!(2), json!("50%")][number % 3].clone();
                json!({"maxUnavailable": limit, "strategy": {"oneZoneAtATime": number % 2 == 0}})
            }
            Action::Canary => {
                let canary = [
                    json!([]),
                    json!([{"nodes": 1}, {"nodes": "50%", "soak": "10m"}]),
                    json!([{"nodes": 1, "approval": "Manual"}]),
                ];
                let ahead = if number % 2 == 0 { json!({}) } else { Value::Null };
                json!({"strategy": {"canary": canary[number % 3], "preStage": ahead}})
            }
            Action::Hooks => {
                let answered = json!({"name": "storage", "before": {}, "after": {}});
                let silent = json!({"name": "silent", "before": {"timeout": "10m", "onTimeout": "Continue"}});
                json!({"hooks": [json!([]), json!([answered]), json!([answered, silent])][number % 3]})
            }
            Action::Enabled => json!({"enabled": number % 3 != 0}),
            _ => return None,
        };
        Some(policy)
    }

    /// The request about the fleet that was drawn, if there is a reason for it.
    fn request_of_operator(&mut self, world: &ClusterState, action: Action) -> Option<(&'static str, String)> {
        match action {
            Action::Resume => Some((RESUME_ANNOTATION, self.request())),
            Action::Approve => Some((APPROVE_STEP_ANNOTATION, format!("{}@{}", approvable(world)?, self.request()))),
            Action::ContinueOthers => {
                Some((CONTINUE_OTHERS_ANNOTATION, frozen_since(&world.status().versions)?.to_string()))
            }
            _ => None,
        }
    }

    /// Plans a fault at the next write of a kind, in place of one that has not come.
    fn plan_fault(&mut self, number: usize) -> Option<String> {
        let kinds: Vec<&str> = writes().map(|(write, _)| write).collect();
        let (write, fault) = (kinds[number % kinds.len()], Fault::ALL[number / kinds.len() % Fault::ALL.len()]);
        // The records of an object are gone with it.
        if fault == Fault::Recreated || !is_possible(write, fault) {
            return None;
        }
        self.faults.end();
        self.faults.plan(write, fault);
        Some(format!("the next '{write}' has the fault {}", fault.name()))
    }

    /// Does to a node what was drawn, as hosts, users and autoscalers do.
    async fn touch(
        &mut self,
        cluster: &mut ScriptedCluster,
        world: &ClusterState,
        node: String,
        drawn: &Draw,
    ) -> anyhow::Result<Option<String>> {
        let annotate = |value: Value| json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}});
        let text = match drawn.action {
            Action::Hold => {
                cluster.patch_node(&node, annotate("maintenance".into())).await?;
                format!("a user holds {node}")
            }
            Action::Unhold => {
                let Some(held) = world.nodes.values().find(|node| node.held()) else { return Ok(None) };
                cluster.patch_node(&held.name, annotate(Value::Null)).await?;
                format!("a user ends the hold of {}", held.name)
            }
            Action::FailUpdates if self.failing.len() < NODES / 2 => {
                let boot = [Boot::FallsBack, Boot::NotReady, Boot::Never, Boot::Runs][drawn.number / 7 % 4];
                cluster.fleet.script(&node, |node| (node.boot, node.downloads) = (boot, boot != Boot::Runs));
                let text = format!("updates of {node} fail from now on: {boot:?}");
                self.failing.insert(node);
                text
            }
            Action::Mend => {
                let Some(failing) = self.failing.first().cloned() else { return Ok(None) };
                self.mend(cluster, &failing);
                format!("a user mends {failing}")
            }
            Action::Cordon => {
                cluster.patch_node(&node, json!({"spec": {"unschedulable": true}})).await?;
                let text = format!("a user cordons {node}");
                self.cordoned.insert(node);
                text
            }
            Action::Uncordon => {
                let Some(cordoned) = self.cordoned.pop_first() else { return Ok(None) };
                cluster.patch_node(&cordoned, json!({"spec": {"unschedulable": null}})).await?;
                format!("a user uncordons {cordoned}")
            }
            Action::Reboot if cluster.fleet.is_up(&node) => {
                cluster.fleet.reboot(&node);
                format!("a user reboots {node}")
            }
            Action::Autoscale => {
                cluster.remove_node(&node).await?;
                self.failing.remove(&node);
                self.cordoned.remove(&node);
                let next = self.add_node(cluster).await?;
                format!("an autoscaler deletes {node}, and {next} comes")
            }
            _ => return Ok(None),
        };
        Ok(Some(text))
    }
}

/// The request about a node that an action is.
fn annotation_of_node(action: Action) -> Option<&'static str> {
    match action {
        Action::Retry => Some(RETRY_ANNOTATION),
        Action::ReleaseNode => Some(RELEASE_ANNOTATION),
        Action::Drill => Some(DRILL_ANNOTATION),
        _ => None,
    }
}
