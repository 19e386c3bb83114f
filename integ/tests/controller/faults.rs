//! Every write of the controller in a rollout, with every fault at it. What a plan finds has to hold whatever the fault is: the
//! oracle judges all that was done, and once the fault is over every node comes to its version without a user.
//!
//! The rollout has three nodes of two kinds, hooks, a canary step, a budget that lets one pod go at a time, a boot that
//! falls back, and a policy that changes in the middle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::oracle::ClusterState;
use models::names::HOOK_ANSWER_PREFIX;
use models::shadow::BLOCKED;
use rand::seq::IteratorRandom as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use crate::bed::{Boot, Due, Fault, Faults, NEW, Planned, ScriptedCluster, poll};

crate::cases![rollout_makes_the_listed_writes_and_no_others];

/// The writes of the rollout, each kind once.
const WRITES: &str = include_str!("faults/writes.txt");

/// The variable with the number that chooses the plans which `make test` runs.
const SEED: &str = "BRUPOP_SEED";

/// Number of plans which `make test` runs.
const CHOSEN: usize = 6;

/// The write that a rollout of a few seconds may end without.
const RENEWAL: &str = "update leases";

/// The node whose first boot into the version falls back, beside one of its kind that goes first.
const FALLS_BACK: &str = "node-2";

/// The node of another kind.
const OF_OTHER_KIND: &str = "node-3";

/// Time in which a controller that asks nothing has nothing to do.
const QUIET: Duration = Duration::from_millis(300);

/// One step of time, while nothing happens.
const STEP: Duration = Duration::from_mins(1);

/// The number of steps in which the rollout has to end. Without a fault it takes about ten.
const STEPS: usize = 90;

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
fn is_possible(write: &str, fault: Fault) -> bool {
    // An Event and an eviction are not objects that anybody decides by.
    let is_object = !write.starts_with("create events") && !write.starts_with("create pods/eviction");
    is_object || !matches!(fault, Fault::Recreated | Fault::Conflict)
}

/// All plans: each fault at the first write of each kind, and pairs of them at any.
pub(crate) fn plans() -> Vec<Plan> {
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let writes = || WRITES.lines().filter(|line| !line.is_empty());
    let possible: Vec<(&str, Fault)> = writes()
        .flat_map(|write| Fault::ALL.map(|fault| (write, fault)))
        .filter(|(write, fault)| is_possible(write, *fault))
        .collect();
    let at = |(write, fault): (&str, Fault), after| Planned { write: write.to_owned(), after, fault };
    let one = possible.iter().map(|&(write, fault)| {
        let words: String = write.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let name = format!("faults::at::{words}::{}", fault.name());
        Plan { name, faults: vec![at((write, fault), 0)], certain: true, chosen: false }
    });
    let mut plans: Vec<Plan> = one.collect();
    for index in (0..plans.len()).choose_multiple(&mut StdRng::seed_from_u64(seed), CHOSEN) {
        plans[index].chosen = true;
    }
    plans.extend((seed..=seed.saturating_add(PAIRS - 1)).map(|seed| {
        let mut rng = StdRng::seed_from_u64(seed);
        let chosen = possible.iter().choose_multiple(&mut rng, 2);
        let faults = chosen.into_iter().map(|&found| at(found, rng.random_range(0..3))).collect();
        // The seed is its name, so that it can be repeated: `BRUPOP_SEED` is the first one of the pairs.
        Plan { name: format!("faults::pair::{seed}"), faults, certain: false, chosen: false }
    }));
    plans
}

async fn rollout_makes_the_listed_writes_and_no_others(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let faults = roll_out(cluster, Vec::new()).await?;
    let seen: BTreeSet<String> = faults.seen().into_iter().collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/controller/faults/writes.txt");
    if std::env::var_os("BRUPOP_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(path, seen.iter().fold(String::new(), |all, write| all + write + "\n"))?;
        return Ok(());
    }
    let listed: BTreeSet<String> = WRITES.lines().map(str::to_owned).collect();
    let missing: Vec<_> = listed.difference(&seen).filter(|write| *write != RENEWAL).collect();
    let more: Vec<_> = seen.difference(&listed).collect();
    ensure!(missing.is_empty() && more.is_empty(), "not made: {missing:#?}; not in {path}: {more:#?}");
    Ok(())
}

/// Runs the rollout with the faults of a plan.
pub(crate) async fn rollout_with(cluster: &mut ScriptedCluster, plan: Plan) -> anyhow::Result<()> {
    let faults = roll_out(cluster, plan.faults.clone()).await.with_context(|| format!("{:#?}", plan.faults))?;
    if plan.certain && plan.faults.iter().any(|planned| planned.write == RENEWAL) {
        let course = &mut Course { released: true, fell_back: true, changed: true, ..Course::default() };
        poll("the Lease is renewed", async || Ok(faults.left().is_empty().then_some(()))).await?;
        course.until_quiet(cluster, &faults).await?;
    }
    let left = faults.left();
    ensure!(left.is_empty() || !plan.certain, "the controller never made these writes: {left:#?}");
    Ok(())
}

/// Runs the rollout to its end.
async fn roll_out(cluster: &mut ScriptedCluster, planned: Vec<Planned>) -> anyhow::Result<Faults> {
    let faults = Faults::new(cluster.client.clone(), planned);
    cluster.faults = Some(faults.clone());
    for number in 1..=3 {
        cluster.add_node(&format!("node-{number}"), &[]).await?;
    }
    cluster.fleet.script(FALLS_BACK, |node| node.boot = Boot::FallsBack);
    cluster.fleet.script(OF_OTHER_KIND, |node| node.arch = "aarch64");
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
        if course.until_quiet(cluster, &faults).await? {
            return Ok(faults);
        }
        cluster.pass(STEP).await?;
    }
    anyhow::bail!("the rollout does not end: {}", standing(&cluster.now()?))
}

/// The reasons why nodes are where they are.
fn standing(world: &ClusterState) -> String {
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

/// The course of a rollout so far, as far as it is the script's.
#[derive(Default)]
struct Course {
    released: bool,
    first_boot: Option<String>,
    fell_back: bool,
    changed: bool,
    /// The request of hooks that was answered last, by node.
    answered: BTreeMap<String, String>,
}

impl Course {
    /// Does what is due until nothing happens any more. Returns true at the end of the rollout.
    async fn until_quiet(&mut self, cluster: &mut ScriptedCluster, faults: &Faults) -> anyhow::Result<bool> {
        loop {
            if let Some(due) = faults.take_due() {
                carry_out(cluster, due).await?;
            }
            let acted = self.act(cluster).await?;
            let world = cluster.now()?;
            let ended = self.changed && self.fell_back && world.nodes.len() == 3;
            let updated = |node: &String| world.is_updated(node, &NEW);
            if !acted && faults.quiet() > QUIET && !faults.show() {
                let all = ended && world.nodes.keys().all(updated) && world.status().slots.is_empty();
                return Ok(all && has_ended(&world));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
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
        for (name, node) in &world.nodes {
            let request = node.hook_request().filter(|request| self.answered.get(name) != Some(*request));
            if let Some(request) = request {
                let annotation = format!("{HOOK_ANSWER_PREFIX}storage");
                cluster.patch_node(name, json!({"metadata": {"annotations": {annotation: request}}})).await?;
                self.answered.insert(name.clone(), request.clone());
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns whether the records of both rollouts have ended.
fn has_ended(world: &ClusterState) -> bool {
    let rollouts = world.status().active_rollouts;
    rollouts.iter().all(|rollout| rollout.record.as_ref().is_none_or(|record| record.ended.is_some()))
}

/// Does what a fault needs.
async fn carry_out(cluster: &mut ScriptedCluster, due: Due) -> anyhow::Result<()> {
    let answer = |done: tokio::sync::oneshot::Sender<()>| {
        let _ = done.send(());
    };
    match due {
        Due::Kill => cluster.replace_controller().await?,
        Due::Stop => {
            cluster.controller()?.stop().await?;
            cluster.start_next_controller().await?;
        }
        Due::Overtake(done) => {
            cluster.start_next_controller().await?;
            cluster.planned().await.context("the next leader plans")?;
            answer(done);
        }
        Due::Recreate(path, done) => {
            cluster.recreate(&path).await?;
            answer(done);
        }
        Due::Pass(span, done) => {
            cluster.pass(span).await?;
            answer(done);
        }
    }
    Ok(())
}
