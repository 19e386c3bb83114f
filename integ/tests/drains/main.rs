//! Named cases about drains and claims, on one real control plane: each case has its own node and namespace, several
//! run side by side, and at the end the oracle judges the whole history at every revision.
//!
//! `make test-drain` runs them and prints each by name; `cargo test -p integ --test drains -- budget` runs those with
//! that word in their name.

mod budgets;
mod claims;
mod deadlines;
mod endings;
mod evictions;
mod filters;
mod fleet;
mod kubectl_parity;
mod state;
mod webhook;

use std::process::ExitCode;
use std::sync::Arc;

use futures::future::BoxFuture;
use integ::durations::Stopwatch;
use integ::oracle::Expectations;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use fleet::{Case, Fleet};

/// Number of cases that run side by side.
const AT_ONCE: usize = 12;

/// The body of a case.
type Scenario = fn(Case) -> BoxFuture<'static, anyhow::Result<()>>;

/// Lists a module's cases under their names.
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<(&'static str, crate::Scenario)> {
            vec![$((stringify!($name), |case| Box::pin($name(case)))),+]
        }
    };
}
pub(crate) use cases;

/// The fleet, started when the first case needs it.
struct CaseRunner {
    runtime: Runtime,
    fleet: OnceCell<Arc<Fleet>>,
    nodes: usize,
}

impl CaseRunner {
    fn run_case(&self, name: &str, scenario: Scenario) -> Result<(), Failed> {
        let result = self.runtime.block_on(async {
            let _stopwatch = Stopwatch::start(name);
            let fleet = self.fleet.get_or_try_init(|| async { Fleet::start(self.nodes).await.map(Arc::new) }).await?;
            let case = Case::new(fleet.clone(), name).await?;
            let again = case.clone();
            scenario(case).await?;
            again.ensure_released().await
        });
        result.map_err(|error| Failed::from(format!("{error:#}")))
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // The longest cases are the first ones of the first two.
    let modules = [
        ("claims", claims::cases()),
        ("evictions", evictions::cases()),
        ("kubectl_parity", kubectl_parity::cases()),
        ("budgets", budgets::cases()),
        ("deadlines", deadlines::cases()),
        ("endings", endings::cases()),
        ("filters", filters::cases()),
    ];
    let all: Vec<(String, Scenario)> = modules
        .into_iter()
        .flat_map(|(module, cases)| {
            cases.into_iter().map(move |(name, scenario)| (format!("{module}::{name}"), scenario))
        })
        .collect();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A case may need a second node.
    let runner = Arc::new(CaseRunner { runtime, fleet: OnceCell::new(), nodes: all.len() + fleet::SECOND_NODES });
    let trials = all
        .into_iter()
        .map(|(name, scenario)| {
            let runner = runner.clone();
            Trial::test(name.clone(), move || runner.run_case(&name, scenario))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let Some(runner) = Arc::into_inner(runner) else {
        eprintln!("a case is still running");
        return ExitCode::FAILURE;
    };
    let CaseRunner { runtime, fleet, .. } = runner;
    let judged = runtime.block_on(async {
        let Some(fleet) = fleet.into_inner() else { return Ok(()) };
        let fleet = Arc::into_inner(fleet).ok_or_else(|| anyhow::anyhow!("a case still holds the fleet"))?;
        fleet.judge(&Expectations::default()).await
    });
    match judged {
        Ok(()) if !conclusion.has_failed() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the oracle, over the history of all cases: {error:#}");
            ExitCode::FAILURE
        }
    }
}
