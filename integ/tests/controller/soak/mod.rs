//! An hour of random faults, policies, users and autoscalers, in which days of the cluster's time pass. The oracle judges it in pieces; at the end
//! of each all faults are over, and every node has to come to its version. Memory and descriptors of the process have to stay flat.

mod draw;
mod figures;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use integ::oracle::ClusterState;
use libtest_mimic::Trial;
use models::condition::ConditionStatus;
use models::names::{APPROVE_STEP_ANNOTATION, HOLD_ANNOTATION, RESUME_ANNOTATION, RETRY_ANNOTATION, ZONE_LABEL};
use models::operator::FROZEN;
use models::shadow::Step;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use semver::Version;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{ControllerOptions, Faults, LIMIT, OLD, ScriptedCluster};
use crate::faults::{Course, SEED, answer_hook, is_quiet, standing};
use draw::approvable;
use figures::Figures;

/// The name of the case.
pub(crate) const CASE: &str = "soak::memory_and_handles_stay_flat_under_random_faults_and_users";

/// The variable with the minutes that it takes.
const MINUTES: &str = "BRUPOP_SOAK_MINUTES";

/// One step of time in a round.
const STEP: Duration = Duration::from_mins(3);

/// The longest step while a node is verified: a longer one passes over the minute in which its Lease is read at the end of its soak, and what has
/// not been read proves nothing.
const STEP_OF_SOAK: Duration = Duration::from_secs(45);

/// The rounds of a piece.
const PIECE: usize = 6;

/// One step of time at the end of a piece, and the most of them: brakes pause for hours.
const LAST_STEP: Duration = Duration::from_mins(15);
const LAST_STEPS: usize = 80;

/// The number of steps after which users look at the nodes again.
const LOOK: usize = 8;

/// Number of nodes, and of versions that are offered at a time.
const NODES: usize = 6;
const OFFERED: usize = 4;

/// The run so far.
struct Soak {
    rng: StdRng,
    faults: Faults,
    course: Course,
    figures: Figures,
    round: usize,
    /// Sentences about this piece.
    sentences: Vec<String>,
    /// Number of requests, versions and nodes so far, which are named by it.
    count: u64,
    /// The versions that are offered, the newest last.
    offered: Vec<Version>,
    /// Nodes whose updates fail, and nodes that a user has cordoned.
    failing: BTreeSet<String>,
    cordoned: BTreeSet<String>,
}

/// Tests of what the case draws and judges.
pub(crate) fn tests() -> Vec<Trial> {
    let tests: [(&str, fn()); 2] = [
        ("soak::draws_of_one_seed_are_the_same_and_leave_nothing_out", draw::check_draws),
        ("soak::series_that_grows_is_not_flat", figures::check_growth),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    tests.map(trial).into()
}

/// Runs the case, and prints its figures.
pub(crate) async fn run(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number(SEED).unwrap_or_else(rand::random);
    let length = Duration::from_mins(number(MINUTES).unwrap_or(60));
    eprintln!("{SEED}={seed} draws the same again");
    // No other case reads what it has forgotten.
    cluster.uses_up_stage = true;
    cluster.expectations.max_unavailable = None;
    let mut soak = Soak::new(cluster, seed);
    let (began, virtual_time) = (Instant::now(), cluster.time.now());
    let outcome = soak.rounds(cluster, began + length).await;
    let passed = cluster.time.now().duration_since(virtual_time).as_secs_f64();
    let pace = passed / began.elapsed().as_secs_f64();
    eprintln!("{:.1} hours of the cluster's time, {pace:.1} in a real hour", passed / 3_600.0);
    eprintln!("{}", soak.figures.table());
    outcome.with_context(|| format!("{SEED}={seed}, round {}, after\n{}\n", soak.round, soak.sentences.join("\n")))?;
    soak.figures.ensure_flat()
}

/// The policy under which every node comes to its version.
fn base() -> Value {
    json!({
        "enabled": true, "version": {"target": null, "exclude": null}, "schedule": null, "maxUnavailable": 2,
        "strategy": null, "hooks": null,
    })
}

/// Returns whether all nodes run this version, with nothing left of any attempt.
fn has_arrived(world: &ClusterState, version: &Version) -> bool {
    let frozen = world.operator_condition(FROZEN).is_some_and(|frozen| frozen.status == ConditionStatus::True);
    let arrived = |name: &String| world.is_updated(name, version) && world.nodes[name].hook_request().is_none();
    !frozen && world.nodes.keys().all(arrived) && world.status().slots.is_empty()
}

impl Soak {
    fn new(cluster: &mut ScriptedCluster, seed: u64) -> Self {
        let faults = Faults::new(cluster.client.clone(), Vec::new());
        cluster.faults = Some(faults.clone());
        Self {
            rng: StdRng::seed_from_u64(seed),
            faults,
            course: Course::default(),
            figures: Figures::default(),
            round: 0,
            sentences: Vec::new(),
            count: 0,
            offered: vec![OLD],
            failing: BTreeSet::new(),
            cordoned: BTreeSet::new(),
        }
    }

    fn say(&mut self, cluster: &ScriptedCluster, text: &str) -> anyhow::Result<()> {
        let revision = cluster.now()?.revision;
        self.sentences.push(format!("  round {}, revision {revision}: {text}", self.round));
        Ok(())
    }

    /// Returns the value of the next request of a user.
    fn request(&mut self) -> String {
        self.count += 1;
        format!("soak-{}", self.count)
    }

    /// Offers a new version.
    fn release(&mut self, cluster: &ScriptedCluster) -> Version {
        self.count += 1;
        let version = Version::new(1, 21, self.count);
        cluster.fleet.release(version.clone());
        self.offered.push(version.clone());
        if self.offered.len() > OFFERED {
            cluster.fleet.retract(&self.offered.remove(0));
        }
        version
    }

    /// Adds a node with the image of the oldest version that is offered: of two kinds, each in a zone of its own.
    async fn add_node(&mut self, cluster: &ScriptedCluster) -> anyhow::Result<String> {
        self.count += 1;
        let name = format!("node-{}", self.count);
        let (arch, label, zone) =
            if self.count.is_multiple_of(2) { ("x86_64", "amd64", "a") } else { ("aarch64", "arm64", "b") };
        let labels = [("kubernetes.io/arch", label), (ZONE_LABEL, zone)];
        cluster.fleet.add(&name, &self.offered[0]);
        cluster.fleet.script(&name, |node| node.arch = arch);
        cluster.register_node(&name, &labels).await?;
        Ok(name)
    }

    async fn rounds(&mut self, cluster: &mut ScriptedCluster, end: Instant) -> anyhow::Result<()> {
        for _ in 0..NODES {
            self.add_node(cluster).await?;
        }
        let policy = json!({
            "maxUnavailable": 2, "failurePolicy": {"backOff": "2m", "maxFailures": 2}, "rolloutHistory": {"records": 20},
            "health": {"after": {"soak": "1m", "timeout": "10m"}},
            // The oracle counts a node that is not Ready for as long as that lasts.
            "ignoreUnavailableAfter": "168h",
        });
        cluster.create_policy(policy).await?;
        cluster.shop(NODES, json!({"maxUnavailable": 1})).await?;
        cluster.start_controller(&ControllerOptions::default())?;
        cluster.reported().await?;
        while Instant::now() < end {
            // The oracle knows of no node that was taken to a version in an earlier piece, and that its kind has gone on since.
            for version in std::mem::take(&mut self.offered) {
                cluster.fleet.retract(&version);
            }
            self.release(cluster);
            for _ in 0..PIECE {
                self.round(cluster).await?;
            }
            self.end_piece(cluster).await?;
        }
        Ok(())
    }

    async fn round(&mut self, cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
        self.round += 1;
        for _ in 0..self.rng.random_range(1..=3) {
            let drawn = draw::draw(&mut self.rng);
            if let Some(text) = self.carry_out(cluster, &drawn).await.with_context(|| format!("{drawn:?}"))? {
                self.say(cluster, &text)?;
            }
        }
        for _ in 0..self.rng.random_range(2..=5) {
            self.until_quiet(cluster, false).await?;
            self.pass(cluster, STEP, false).await?;
        }
        self.until_quiet(cluster, false).await?;
        cluster.read_requests().await?;
        self.figures.sample(cluster).await
    }

    /// Lets time pass, after which faults and hooks may need something.
    async fn pass(&mut self, cluster: &mut ScriptedCluster, span: Duration, ended: bool) -> anyhow::Result<()> {
        let mut left = span;
        while !left.is_zero() {
            let world = cluster.now()?;
            let verified = world.nodes.keys().any(|name| world.step(name) == Some(Step::Verifying));
            let step = if verified { left.min(STEP_OF_SOAK) } else { left };
            cluster.pass(step).await?;
            self.course.forget_disruptions(cluster).await?;
            self.faults.note();
            left -= step;
            if !left.is_zero() {
                self.until_quiet(cluster, ended).await?;
            }
        }
        Ok(())
    }

    /// Does what faults and hooks need until nothing happens any more.
    async fn until_quiet(&mut self, cluster: &mut ScriptedCluster, ended: bool) -> anyhow::Result<()> {
        let faults = self.faults.clone();
        let quiet = async {
            loop {
                if let Some(due) = faults.take_due() {
                    self.say(cluster, "a fault has stopped or killed the controller, or delays it")?;
                    self.course.carry_out(cluster, due).await?;
                    faults.note();
                }
                if !cluster.controller()?.runs() {
                    self.say(cluster, "the controller has ended by itself, and another one is started")?;
                    cluster.start_next_controller().await?;
                    faults.note();
                }
                if answer_hook(cluster, &cluster.now()?).await? {
                    faults.note();
                }
                if is_quiet(&faults) && !self.course.send_late(cluster, &faults, ended).await? {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        };
        let quiet = tokio::time::timeout(LIMIT, quiet).await;
        quiet.with_context(|| format!("the controller does not come to rest: {faults:?}"))?
    }

    /// Ends all faults, and all that keeps nodes from their version; waits until they have come to a new one, which it returns; and has the
    /// oracle judge.
    async fn end_piece(&mut self, cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
        self.faults.end();
        cluster.policy(&base()).await?;
        for (name, node) in cluster.now()?.nodes {
            self.mend(cluster, &name);
            if node.held() {
                cluster.patch_node(&name, json!({"metadata": {"annotations": {HOLD_ANNOTATION: null}}})).await?;
            }
        }
        for name in std::mem::take(&mut self.cordoned) {
            cluster.patch_node(&name, json!({"spec": {"unschedulable": null}})).await?;
        }
        let version = self.release(cluster);
        self.say(cluster, &format!("all faults, holds and cordons end, and {version} is offered"))?;
        for step in 0..LAST_STEPS {
            self.until_quiet(cluster, true).await?;
            let world = cluster.now()?;
            if has_arrived(&world, &version) {
                self.figures.add(&cluster.judge_piece().await?);
                self.sentences.clear();
                return Ok(());
            }
            if step.is_multiple_of(LOOK) {
                self.look(cluster, &world).await?;
            }
            self.pass(cluster, LAST_STEP, true).await?;
        }
        bail!("not all nodes come to {version}: {}", standing(&cluster.now()?))
    }

    /// Resumes the rollout, and has each node try again.
    async fn look(&mut self, cluster: &ScriptedCluster, world: &ClusterState) -> anyhow::Result<()> {
        let request = self.request();
        cluster.request(RESUME_ANNOTATION, &request).await?;
        if let Some(steps) = approvable(world) {
            cluster.request(APPROVE_STEP_ANNOTATION, &format!("{steps}@{request}")).await?;
        }
        for name in world.nodes.keys().filter(|name| world.shadow(name).is_some()) {
            cluster.request_of_node(name, RETRY_ANNOTATION, &request).await?;
        }
        Ok(())
    }
}
