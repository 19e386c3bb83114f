//! The controller on a real API server, with scripted nodes: Nodes, pods and the agents' reports are written by a script, as
//! kubelets and agents write them, and time passes when a case lets it. What a case needs of the cluster is real: API server,
//! admission, rights, evictions, budgets, scheduler; and the oracle judges it as everywhere.
//!
//! A controller sees all nodes of its control plane, so the cases take turns on [`STAGES`] of them, and each leaves its
//! control plane empty. `cargo test -p integ --test controller -- canary` runs the cases with that word in their name.

mod bed;
mod brake;
mod budgets;
mod canary;
mod control_plane;
mod drains;
mod earlier;
mod expressions;
mod failures;
mod faults;
mod freeze;
mod health;
mod history;
mod hooks;
mod jobs;
mod labels;
mod leader_kills;
mod leaders;
mod metrics;
mod mid_rollout_changes;
mod migration;
mod notices;
mod objects;
mod other_clients;
mod percentages;
mod prometheus;
mod recorded;
mod revisions;
mod silence;
mod soak;
mod usable;
mod windows;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use integ::durations::Stopwatch;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use bed::{ScriptedCluster, Stage};

/// Number of control planes, and of cases that run at a time.
const STAGES: usize = 3;

/// The body of a case.
type Case = for<'a> fn(&'a mut ScriptedCluster) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// Lists a module's cases under their names.
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<(&'static str, crate::Case)> {
            vec![$((stringify!($name), |cluster| Box::pin($name(cluster)))),+]
        }
    };
}
pub(crate) use cases;

/// Lists modules with their cases.
macro_rules! modules {
    ($($module:ident),+ $(,)?) => {
        vec![$((stringify!($module), $module::cases())),+]
    };
}

/// The control planes that no case uses.
struct Runner {
    runtime: Runtime,
    idle: Mutex<Vec<Stage>>,
}

impl Runner {
    fn run_case(
        &self,
        name: &str,
        keep_revisions: bool,
        case: impl for<'a> FnOnce(&'a mut ScriptedCluster) -> LocalBoxFuture<'a, anyhow::Result<()>>,
    ) -> Result<(), Failed> {
        let result = self.runtime.block_on(async {
            let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let idle = keep_revisions.then(idle).flatten();
            let stage = match idle {
                Some(stage) => stage,
                None => Stage::start(keep_revisions).await?,
            };
            let _stopwatch = Stopwatch::start(name);
            let mut cluster = ScriptedCluster::new(stage).await?;
            let outcome = AssertUnwindSafe(case(&mut cluster)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", message_of(panic.as_ref()))));
            let (result, stage) = cluster.finish(outcome).await;
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(stage);
            result
        });
        result.map_err(|error: anyhow::Error| Failed::from(format!("{error:#}")))
    }
}

/// The text of a panic, such as a failed assertion.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

/// The case that takes an hour, on a control plane of its own.
fn soak(runner: &Arc<Runner>, named: Option<&str>) -> Trial {
    let runner = runner.clone();
    let case = move || runner.run_case(soak::CASE, false, |cluster| Box::pin(soak::run(cluster)));
    Trial::test(soak::CASE, case).with_ignored_flag(named != Some(soak::CASE))
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A case more than control planes would start another one.
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(STAGES).min(STAGES));
    bed::note_panics();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runner = Arc::new(Runner { runtime, idle: Mutex::default() });
    let mut trials: Vec<Trial> = modules![
        brake,
        budgets,
        canary,
        control_plane,
        drains,
        earlier,
        expressions,
        failures,
        faults,
        freeze,
        health,
        history,
        hooks,
        jobs,
        labels,
        leader_kills,
        leaders,
        metrics,
        mid_rollout_changes,
        migration,
        notices,
        objects,
        other_clients,
        percentages,
        recorded,
        revisions,
        silence,
        usable,
        windows,
    ]
    .into_iter()
    .flat_map(|(module, cases)| cases.into_iter().map(move |(name, case)| (format!("{module}::{name}"), case)))
    .map(|(name, case)| {
        let runner = runner.clone();
        Trial::test(name.clone(), move || runner.run_case(&name, true, case))
    })
    .collect();
    let named = arguments.filter.as_deref().filter(|_| arguments.exact);
    trials.extend(faults::plans(named).into_iter().map(|plan| {
        let (runner, name, ignored) = (runner.clone(), plan.name.clone(), !plan.chosen);
        Trial::test(name.clone(), move || {
            let result = runner.run_case(&name, true, |cluster| Box::pin(faults::rollout_with(cluster, plan)));
            // All of them take long: what is found is told at once.
            result.inspect_err(|failed| eprintln!("{name}: {}", failed.message().unwrap_or_default()))
        })
        .with_ignored_flag(ignored)
    }));
    trials.extend(soak::tests());
    trials.push(soak(&runner, named));
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(Runner { runtime, idle }) = Arc::into_inner(runner) {
        for stage in idle.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if let Err(error) = runtime.block_on(stage.control_plane.stop()) {
                eprintln!("a control plane did not stop: {error:#}");
            }
        }
    }
    conclusion.exit_code()
}
