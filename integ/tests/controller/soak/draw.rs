//! The table of what may happen in a round, and what each entry does.

use integ::oracle::ClusterState;
use models::names::{
    APPROVE_STEP_ANNOTATION, CONTINUE_OTHERS_ANNOTATION, DRILL_ANNOTATION, HOLD_ANNOTATION, RELEASE_ANNOTATION,
    RESUME_ANNOTATION, RETRY_ANNOTATION,
};
use models::operator::{ActiveRollout, frozen_since};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{NODES, Soak};
use crate::bed::{Boot, Fault, ScriptedCluster, closed_schedule, open_schedule};
use crate::faults::{is_possible, writes};

macro_rules! table {
    ($($action:ident $weight:literal),+) => {
        /// Something that happens.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Action { $($action),+ }

        /// The actions with their weights.
        const TABLE: &[(Action, u32)] = &[$((Action::$action, $weight)),+];
    };
}

table![
    Release 8, Pin 3, Unpin 4, Exclude 2, Schedule 4, Budget 3, Canary 4, Hooks 4, Enabled 3, Approve 4, Resume 4, ContinueOthers 2,
    Retry 2, ReleaseNode 2, Drill 1, Hold 2, Unhold 4, FailUpdates 4, Mend 5, Cordon 2, Uncordon 4, Reboot 2, Autoscale 3,
    StopLeader 1, KillLeader 1, FaultyWrite 10, HeldWatches 2
];

/// An action, and a number that chooses what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    action: Action,
    number: usize,
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
    assert!(draws(7) == draws(7) && draws(7) != draws(8));
    for (action, _) in TABLE {
        assert!(draws(7).iter().any(|drawn| drawn.action == *action), "{action:?}");
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
        let world = cluster.now()?;
        if let Some((annotation, value)) = self.request_of_operator(&world, drawn.action) {
            cluster.request(annotation, &value).await?;
            return Ok(Some(format!("a user requests {annotation}={value}")));
        }
        let annotation = match drawn.action {
            Action::Release => return Ok(Some(format!("{} is offered", self.release(cluster)))),
            // A write that a fault delays would delay its end.
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
                return Ok(Some("watches show nothing until the controller has nothing more to ask".to_owned()));
            }
            Action::Retry => RETRY_ANNOTATION,
            Action::ReleaseNode => RELEASE_ANNOTATION,
            Action::Drill => DRILL_ANNOTATION,
            _ => "",
        };
        let Some(node) = world.nodes.keys().nth(drawn.number % world.nodes.len().max(1)) else { return Ok(None) };
        if annotation.is_empty() {
            return self.touch(cluster, &world, node.clone(), drawn).await;
        }
        if world.shadow(node).is_none() {
            return Ok(None);
        }
        cluster.request_of_node(node, annotation, &self.request()).await?;
        Ok(Some(format!("a user requests {annotation} of {node}")))
    }

    /// The change of the policy that was drawn.
    fn policy(&self, cluster: &ScriptedCluster, drawn: &Draw) -> Option<Value> {
        let number = drawn.number;
        let one_of = |all: [Value; 3]| all[number % 3].clone();
        let policy = match drawn.action {
            Action::Pin => json!({"version": {"target": self.offered[number % self.offered.len()].to_string()}}),
            Action::Unpin => json!({"version": {"target": null, "exclude": null}}),
            Action::Exclude => json!({"version": {"exclude": [self.offered.last()?.to_string()]}}),
            Action::Schedule if number.is_multiple_of(5) => json!({"schedule": closed_schedule(&cluster.time)}),
            Action::Schedule => {
                let hourly = json!({"windows": [{"cron": "0 * * * *", "duration": "20m"}], "blackouts": []});
                json!({"schedule": one_of([Value::Null, open_schedule(), hourly])})
            }
            Action::Budget => {
                let limit = one_of([json!(1), json!(2), json!("50%")]);
                json!({"maxUnavailable": limit, "strategy": {"oneZoneAtATime": number.is_multiple_of(2)}})
            }
            Action::Canary => {
                let automatic = json!([{"nodes": 1}, {"nodes": "50%", "soak": "10m"}]);
                let canary = one_of([json!([]), automatic, json!([{"nodes": 1, "approval": "Manual"}])]);
                let ahead = number.is_multiple_of(2).then(|| json!({}));
                json!({"strategy": {"canary": canary, "preStage": ahead}})
            }
            Action::Hooks => {
                let answered = json!({"name": "storage", "before": {}, "after": {}});
                let silent = json!({"name": "silent", "before": {"timeout": "10m", "onTimeout": "Continue"}});
                json!({"hooks": one_of([json!([]), json!([answered]), json!([answered, silent])])})
            }
            Action::Enabled => json!({"enabled": !number.is_multiple_of(3)}),
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
        cluster: &ScriptedCluster,
        world: &ClusterState,
        node: String,
        drawn: &Draw,
    ) -> anyhow::Result<Option<String>> {
        let annotate = |value: Value| json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}});
        let mut text = format!("a user: {:?} {node}", drawn.action);
        match drawn.action {
            // The oracle counts a held node that is down, and the operator does not.
            Action::Hold if !self.failing.contains(&node) => {
                cluster.patch_node(&node, annotate("maintenance".into())).await?;
            }
            Action::Unhold => {
                let Some(held) = world.nodes.values().find(|node| node.held()) else { return Ok(None) };
                cluster.patch_node(&held.name, annotate(Value::Null)).await?;
                text = format!("a user ends the hold of {}", held.name);
            }
            Action::FailUpdates if self.failing.len() < NODES / 2 && !world.nodes[&node].held() => {
                let boot = [Boot::FallsBack, Boot::NotReady, Boot::Never, Boot::Runs][drawn.number / 7 % 4];
                cluster.fleet.script(&node, |node| (node.boot, node.downloads) = (boot, boot != Boot::Runs));
                text = format!("updates of {node} fail from now on: {boot:?}");
                self.failing.insert(node);
            }
            Action::Mend => {
                let Some(failing) = self.failing.first().cloned() else { return Ok(None) };
                self.mend(cluster, &failing);
                text = format!("a user mends {failing}");
            }
            Action::Cordon => {
                cluster.patch_node(&node, json!({"spec": {"unschedulable": true}})).await?;
                self.cordoned.insert(node);
            }
            Action::Uncordon => {
                let Some(cordoned) = self.cordoned.pop_first() else { return Ok(None) };
                cluster.patch_node(&cordoned, json!({"spec": {"unschedulable": null}})).await?;
                text = format!("a user uncordons {cordoned}");
            }
            Action::Reboot if cluster.fleet.is_up(&node) => cluster.fleet.reboot(&node),
            Action::Autoscale => {
                cluster.remove_node(&node).await?;
                self.failing.remove(&node);
                self.cordoned.remove(&node);
                text = format!("an autoscaler deletes {node}, and {} comes", self.add_node(cluster).await?);
            }
            _ => return Ok(None),
        }
        Ok(Some(text))
    }

    /// Lets a node update and boot again.
    pub(super) fn mend(&mut self, cluster: &ScriptedCluster, node: &str) {
        self.failing.remove(node);
        cluster.fleet.script(node, |node| (node.boot, node.ready, node.downloads) = (Boot::Runs, true, true));
        if !cluster.fleet.is_up(node) {
            cluster.fleet.power_on(node);
        }
    }
}

/// The names of the canary steps that an approval would pass.
pub(super) fn approvable(world: &ClusterState) -> Option<String> {
    let steps: Vec<_> = world.status().active_rollouts.iter().filter_map(ActiveRollout::approvable).collect();
    (!steps.is_empty()).then(|| steps.join(","))
}
