//! The first write of each kind that the controller makes in a rollout, with each fault at it. Whatever the fault is, the oracle
//! judges all that was done, nothing is done twice, every node comes to its version without a user, and the history holds it.
//!
//! The rollout has three nodes of two kinds, hooks, a canary step, a budget that lets one pod go at a time, a boot that
//! falls back, and a policy that changes in the middle.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::oracle::{ClusterState, Field, Object};
use integ::rollout_history::recorded;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use models::history::RolloutPhase;
use models::names::{
    AGENT_NAMESPACE, CA_SECRET, HISTORY_KEY_SECRET, HOOK_ANSWER_PREFIX, PERMIT_KEY_SECRET, SERVING_SECRET,
    SYSTEM_NAMESPACE, TRUST_CONFIG_MAP,
};
use models::shadow::{BLOCKED, UPDATED};
use rand::seq::IteratorRandom as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use crate::bed::{Boot, Due, Fault, Faults, LIMIT, NEW, OLD, Planned, SHOP, ScriptedCluster, Write};

crate::cases![rollout_makes_the_listed_writes_and_no_others];

/// The writes of the rollout, each kind once. It may do without those with a question mark, which follow from what comes first.
const WRITES: &str = include_str!("faults/writes.txt");

/// Returns the kinds of writes, each with whether the rollout always makes it.
pub(crate) fn writes() -> impl Iterator<Item = (&'static str, bool)> {
    WRITES.lines().map(|line| line.strip_suffix(" ?").map_or((line, true), |write| (write, false)))
}

/// The variable with the number that chooses the plans which `make test` runs.
pub(crate) const SEED: &str = "BRUPOP_SEED";

/// Number of plans which `make test` runs.
const CHOSEN: usize = 6;

/// The node whose first boot into the version falls back, beside one of its kind that goes first.
const FALLS_BACK: &str = "node-2";

/// The node of another kind.
const OF_OTHER_KIND: &str = "node-3";

/// Time in which a controller that asks nothing has nothing to do.
const QUIET: Duration = Duration::from_millis(200);

/// The same after a fault: a controller pauses for half a second, and for a whole one the second time, before it writes again.
const QUIET_AFTER_FAULT: Duration = Duration::from_millis(1_200);

/// Time for which a fault matters to that.
const FAULT_LASTS: Duration = Duration::from_secs(3);

/// One step of time, while nothing happens.
const STEP: Duration = Duration::from_mins(3);

/// The number of steps in which the rollout has to end. Without a fault it takes about eight; nodes are verified again once an hour.
const STEPS: usize = 60;

/// Number of plans with two faults, at any write of a kind.
const PAIRS: u64 = 40;

/// The faults of a rollout.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Name of the test.
    pub(crate) name: String,
    faults: Vec<Planned>,
    /// True where the rollout has to come to each of the faults.
    certain: bool,
    /// True if it is one of those that `make test` runs.
    pub(crate) chosen: bool,
}

/// Returns whether a fault is possible at a write.
pub(crate) fn is_possible(write: &str, fault: Fault) -> bool {
    // An Event and an eviction are not objects that anybody decides by, and the first apply of a ConfigMap creates it.
    let objects = ["create events", "create pods/eviction", "patch configmaps"];
    !objects.iter().any(|other| write.starts_with(other)) || !matches!(fault, Fault::Recreated | Fault::Conflict)
}

fn plan_of_pair(possible: &[(&str, Fault)], seed: u64) -> Plan {
    let mut rng = StdRng::seed_from_u64(seed);
    let chosen = possible.iter().choose_multiple(&mut rng, 2);
    let at =
        |&(write, fault): &(&str, Fault)| Planned { write: write.to_owned(), after: rng.random_range(0..3), fault };
    let faults = chosen.into_iter().map(at).collect();
    Plan { name: format!("faults::pair::{seed}"), faults, certain: false, chosen: false }
}

/// All plans: each fault at the first write of each kind, and pairs of them at any. The one that is named alone is not left out.
pub(crate) fn plans(named: Option<&str>) -> Vec<Plan> {
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("{SEED}={seed} chooses the same faults again");
    let all = writes().flat_map(|(write, certain)| Fault::ALL.map(|fault| (write, fault, certain)));
    let all: Vec<_> = all.filter(|(write, fault, _)| is_possible(write, *fault)).collect();
    let possible: Vec<_> = all.iter().map(|&(write, fault, _)| (write, fault)).collect();
    let one = all.iter().map(|&(write, fault, certain)| {
        let words: String = write.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let name = format!("faults::at::{words}::{}", fault.name());
        let faults = vec![Planned { write: write.to_owned(), after: 0, fault }];
        Plan { name, faults, certain, chosen: false }
    });
    let mut plans: Vec<Plan> = one.collect();
    for index in
        (0..plans.len()).filter(|index| all[*index].2).choose_multiple(&mut StdRng::seed_from_u64(seed), CHOSEN)
    {
        plans[index].chosen = true;
    }
    let pair = named.and_then(|name| name.strip_prefix("faults::pair::")?.parse().ok());
    let seeds = pair.map_or(seed..=seed.saturating_add(PAIRS - 1), |seed: u64| seed..=seed);
    plans.extend(seeds.map(|seed| plan_of_pair(&possible, seed)));
    for plan in &mut plans {
        plan.chosen |= named == Some(plan.name.as_str());
    }
    plans
}

async fn rollout_makes_the_listed_writes_and_no_others(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let faults = roll_out(cluster, Vec::new()).await?;
    let seen: BTreeSet<String> = faults.seen().into_iter().collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/controller/faults/writes.txt");
    let missing: Vec<_> = writes().filter(|(write, certain)| *certain && !seen.contains(*write)).collect();
    let more: Vec<_> = seen.iter().filter(|seen| writes().all(|(write, _)| write != *seen)).collect();
    ensure!(missing.is_empty() && more.is_empty(), "not made: {missing:#?}; not in {path}: {more:#?}");
    Ok(())
}

/// Runs the rollout with the faults of a plan.
pub(crate) async fn rollout_with(cluster: &mut ScriptedCluster, plan: Plan) -> anyhow::Result<()> {
    let faults = roll_out(cluster, plan.faults.clone()).await.with_context(|| format!("{:#?}", plan.faults))?;
    let left = faults.left();
    ensure!(left.is_empty() || !plan.certain, "the controller never made these writes: {left:#?}");
    if let Some(broken) = faults.broken().filter(|_| plan.certain) {
        anyhow::bail!("the fault had no effect: {broken}");
    }
    // The records of an object are gone with it.
    let forgets = plan.faults.iter().any(|planned| planned.fault == Fault::Recreated);
    if !forgets {
        as_without_fault(cluster).await?;
    }
    Ok(())
}

/// Checks that a rollout has done what one without a fault does, and that its history holds that.
async fn as_without_fault(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let history = cluster.recorder.so_far()?;
    for node in cluster.now()?.nodes.keys() {
        let ends: Vec<String> = history.results(node).into_iter().map(|(_, end)| end).collect();
        let expected = if node == FALLS_BACK { vec!["BootFellBack", UPDATED] } else { vec![UPDATED] };
        ensure!(ends == expected, "{node} has ended as {ends:?}");
    }
    let mut claims = 0;
    history.replay(|change, before, _| {
        if let (Object::Node(node), Some(Object::Node(before))) = (&change.object, before) {
            claims += usize::from(node.claimed() && !before.claimed());
        }
    });
    let stats = cluster.verdict().await?.stats;
    ensure!((claims, stats.reboots, stats.arms) == (4, 4, 4), "done twice: {claims} claims, {stats:#?}");
    let mut steps = STEPS;
    // The history is written again a while after it could not be.
    while !is_recorded(cluster).await? {
        steps -= 1;
        ensure!(steps > 0, "the history is not complete: {:#?}", recorded(&cluster.client).await?);
        cluster.planned().await?;
        cluster.pass(STEP).await?;
    }
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    for name in [CA_SECRET, SERVING_SECRET, PERMIT_KEY_SECRET, HISTORY_KEY_SECRET] {
        ensure!(secrets.get_opt(name).await?.is_some(), "there is no Secret {name}");
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), AGENT_NAMESPACE);
    ensure!(config_maps.get_opt(TRUST_CONFIG_MAP).await?.is_some(), "there is no ConfigMap {TRUST_CONFIG_MAP}");
    Ok(())
}

/// Returns whether the history has both rollouts, completed, with the results of all attempts.
async fn is_recorded(cluster: &ScriptedCluster) -> anyhow::Result<bool> {
    let records = recorded(&cluster.client).await?;
    let rows = records.iter().map(|record| record.rows.len()).sum::<usize>();
    let completed = records.iter().all(|record| record.status.phase == RolloutPhase::Completed);
    Ok(records.len() == 2 && rows == 4 && completed)
}

/// Runs the rollout to its end.
async fn roll_out(cluster: &mut ScriptedCluster, planned: Vec<Planned>) -> anyhow::Result<Faults> {
    let faults = Faults::new(cluster.client.clone(), planned);
    cluster.faults = Some(faults.clone());
    for node in ["node-1", FALLS_BACK] {
        cluster.add_node(node, &[]).await?;
    }
    cluster.fleet.script(FALLS_BACK, |node| node.boot = Boot::FallsBack);
    cluster.fleet.add(OF_OTHER_KIND, &OLD);
    cluster.fleet.script(OF_OTHER_KIND, |node| node.arch = "aarch64");
    cluster.register_node(OF_OTHER_KIND, &[]).await?;
    let policy = json!({
        "strategy": {"canary": [{"nodes": 1}]},
        "hooks": [{"name": "storage", "before": {}, "after": {}}],
        "failurePolicy": {"maxFailures": 3, "maxConsecutiveFailures": 10, "backOff": "2m"},
        "health": {"after": {"soak": "1m", "timeout": "10m"}},
    });
    cluster.create_policy(policy).await?;
    cluster.shop(3, json!({"maxUnavailable": 1})).await?;
    cluster.start_controller(&crate::bed::ControllerOptions::default())?;
    let mut course = Course::default();
    for _ in 0..STEPS {
        let quiet = tokio::time::timeout(LIMIT, course.until_quiet(cluster, &faults)).await;
        if quiet.with_context(|| format!("it does not come to rest: {faults:?}"))?? {
            return Ok(faults);
        }
        cluster.pass(STEP).await?;
        course.forget_disruptions(cluster).await?;
        faults.note();
    }
    anyhow::bail!("the rollout does not end: {}", standing(&cluster.now()?))
}

/// The reasons why nodes are where they are.
pub(crate) fn standing(world: &ClusterState) -> String {
    let mut text = String::new();
    for name in world.nodes.keys() {
        let blocked = world.condition(name, BLOCKED).map(|blocked| (&blocked.reason, &blocked.message));
        let (step, last) = (world.step(name), world.last_reason(name));
        let _ = write!(text, "\n{name}: {step:?}, blocked: {blocked:?}, last end: {last:?}");
    }
    let status = world.status();
    let waiting: Vec<_> = status.waiting.iter().map(|count| (&count.reason, count.nodes)).collect();
    let slots: Vec<_> = status.slots.iter().map(|slot| &slot.node).collect();
    let _ = write!(text, "\nwaiting: {waiting:?}, slots: {slots:?}");
    text
}

/// Returns whether controllers have nothing more to ask, with all that watches have held back shown.
pub(crate) fn is_quiet(faults: &Faults) -> bool {
    let fresh = faults.since_fault().is_some_and(|since| since < FAULT_LASTS);
    faults.quiet() > if fresh { QUIET_AFTER_FAULT } else { QUIET } && !faults.show()
}

/// The course of a rollout so far, as far as it is the script's.
#[derive(Default)]
pub(crate) struct Course {
    released: bool,
    first_boot: Option<String>,
    fell_back: bool,
    changed: bool,
    /// Pods whose eviction was approved, and had not deleted them at the last step of time.
    approved: BTreeSet<String>,
    /// The write of a leader that does not run any more, and how often the rollout comes to rest until it arrives.
    late: Option<(usize, Box<Write>)>,
}

/// The number of rests until a late write arrives: nodes have come much further by then.
const LATE: usize = 3;

impl Course {
    /// Does what is due until nothing happens any more. Returns true at the end of the rollout.
    async fn until_quiet(&mut self, cluster: &mut ScriptedCluster, faults: &Faults) -> anyhow::Result<bool> {
        loop {
            if let Some(due) = faults.take_due() {
                self.carry_out(cluster, due).await?;
                faults.note();
            }
            if self.act(cluster).await? {
                faults.note();
            }
            if is_quiet(faults) {
                let world = cluster.now()?;
                let updated = |node: &String| world.is_updated(node, &NEW);
                let all = world.nodes.len() == 3 && world.nodes.keys().all(updated) && world.status().slots.is_empty();
                let ended = self.changed && self.fell_back && all && has_ended(&world);
                if !self.send_late(cluster, faults, ended).await? {
                    return Ok(ended);
                }
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Sends the late write when its time has come, at the latest at the end. Returns whether there was one to send.
    pub(crate) async fn send_late(
        &mut self,
        cluster: &ScriptedCluster,
        faults: &Faults,
        ended: bool,
    ) -> anyhow::Result<bool> {
        match self.late.take() {
            Some((rests, write)) if rests > 0 && !ended => self.late = Some((rests - 1, write)),
            Some((_, write)) => {
                cluster.send_late(&write).await?;
                faults.note();
                return Ok(true);
            }
            None => {}
        }
        Ok(false)
    }

    /// Frees budgets of evictions that were approved two steps of time ago and have deleted nothing, as the cluster does after two minutes
    /// of its own time.
    pub(crate) async fn forget_disruptions(&mut self, cluster: &ScriptedCluster) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), SHOP);
        let before = std::mem::take(&mut self.approved);
        for budget in budgets.list(&ListParams::default()).await?.items {
            let approved = budget.status.iter().filter_map(|status| status.disrupted_pods.as_ref()).flatten();
            self.approved.extend(approved.map(|(pod, _)| pod.clone()));
            for pod in self.approved.intersection(&before) {
                let forgotten = Patch::Merge(json!({"status": {"disruptedPods": {pod: null}}}));
                budgets.patch_status(&budget.name_any(), &PatchParams::default(), &forgotten).await?;
            }
        }
        Ok(())
    }

    /// Does what a fault needs.
    pub(crate) async fn carry_out(&mut self, cluster: &mut ScriptedCluster, due: Due) -> anyhow::Result<()> {
        match due {
            Due::Kill => cluster.replace_controller().await?,
            Due::Stop => {
                cluster.controller()?.stop().await?;
                cluster.start_next_controller().await?;
            }
            Due::Late(write) => {
                cluster.replace_controller().await?;
                self.late = Some((LATE, write));
            }
            Due::Recreate(path, done) => {
                cluster.recreate(&path).await?;
                _ = done.send(());
            }
            Due::Pass(span, done) => {
                cluster.pass(span).await?;
                _ = done.send(());
            }
        }
        Ok(())
    }

    /// Acts as users, hooks and hosts do. Returns whether there was anything to do.
    async fn act(&mut self, cluster: &ScriptedCluster) -> anyhow::Result<bool> {
        let world = cluster.now()?;
        let reported = |name: &String| world.shadow(name).is_some_and(|shadow| shadow.status.agent.updates.is_some());
        if !self.released && world.nodes.keys().all(reported) {
            self.released = true;
            cluster.fleet.release(NEW);
            return Ok(true);
        }
        let boot = world.nodes.get(FALLS_BACK).map(|node| node.boot_id.clone()).filter(|boot| !boot.is_empty());
        self.first_boot = self.first_boot.take().or(boot.clone());
        if !self.fell_back && boot.is_some() && boot != self.first_boot {
            self.fell_back = true;
            cluster.fleet.script(FALLS_BACK, |node| node.boot = Boot::Runs);
            return Ok(true);
        }
        if !self.changed && world.nodes.keys().any(|node| world.is_updated(node, &NEW)) {
            self.changed = true;
            cluster.policy(&json!({"version": {"target": NEW.to_string()}})).await?;
            return Ok(true);
        }
        answer_hook(cluster, &world).await
    }
}

/// Answers a request to hooks. Returns whether there was one.
pub(crate) async fn answer_hook(cluster: &ScriptedCluster, world: &ClusterState) -> anyhow::Result<bool> {
    let annotation = format!("{HOOK_ANSWER_PREFIX}storage");
    for (name, node) in &world.nodes {
        let answer = node.fields.get(&Field::Annotation(annotation.clone()));
        if let Some(request) = node.hook_request().filter(|request| answer != Some(*request)) {
            cluster.patch_node(name, json!({"metadata": {"annotations": {annotation: request}}})).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether the records of all rollouts have ended.
fn has_ended(world: &ClusterState) -> bool {
    let rollouts = world.status().active_rollouts;
    rollouts.iter().all(|rollout| rollout.record.as_ref().is_none_or(|record| record.ended.is_some()))
}
