//! Refusals of the web API, and of other servers for the same tokens: named cases on one real control plane, with real
//! tokens.
//!
//! Every refusal is checked in three places: the response (which reveals nothing to an unauthenticated client), the
//! reason in the log, and the cluster, in which nothing has changed. `make test-security` runs them and prints each by
//! name.

mod accounts;
mod bodies;
mod deleted_objects;
mod paths;
mod raw;
mod refusal_test;
mod tokens;

use std::process::ExitCode;
use std::sync::Arc;

use futures::future::BoxFuture;
use integ::durations::Stopwatch;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use refusal_test::RefusalTest;

/// The body of a case.
type Scenario = for<'a> fn(&'a RefusalTest) -> BoxFuture<'a, anyhow::Result<()>>;

/// Lists a module's cases under their names.
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<(&'static str, crate::Scenario)> {
            vec![$((stringify!($name), |refusal_test| Box::pin($name(refusal_test)))),+]
        }
    };
}
pub(crate) use cases;

/// The cluster, started when the first case needs it.
struct CaseRunner {
    runtime: Runtime,
    refusal_test: OnceCell<RefusalTest>,
}

impl CaseRunner {
    fn run_case(&self, name: &str, scenario: Scenario) -> Result<(), Failed> {
        let result = self.runtime.block_on(async {
            let _stopwatch = Stopwatch::start(name);
            let refusal_test = self.refusal_test.get_or_try_init(RefusalTest::start).await?;
            scenario(refusal_test).await?;
            refusal_test.ensure_shadow_unchanged().await
        });
        result.map_err(|error| Failed::from(format!("{error:#}")))
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One after the other, so that each line of the web API's log belongs to one case.
    arguments.test_threads = Some(1);
    let modules = [
        ("tokens", tokens::cases()),
        ("paths", paths::cases()),
        ("bodies", bodies::cases()),
        ("accounts", accounts::cases()),
        // These delete nodes and pods, and so come last.
        ("deleted_objects", deleted_objects::cases()),
    ];
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runner = Arc::new(CaseRunner { runtime, refusal_test: OnceCell::new() });
    let trials = modules
        .into_iter()
        .flat_map(|(module, cases)| {
            cases.into_iter().map(move |(name, scenario)| (format!("{module}::{name}"), scenario))
        })
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
    let CaseRunner { runtime, refusal_test } = runner;
    let judged = runtime.block_on(async {
        match refusal_test.into_inner() {
            Some(refusal_test) => refusal_test.judge().await,
            None => Ok(()),
        }
    });
    match judged {
        Ok(()) if !conclusion.has_failed() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("over all cases: {error:#}");
            ExitCode::FAILURE
        }
    }
}
