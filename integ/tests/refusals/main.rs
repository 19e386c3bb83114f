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
use integ::named_cases;
use libtest_mimic::Arguments;

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

async fn run_case(refusal_test: Arc<RefusalTest>, _: String, scenario: Scenario) -> anyhow::Result<()> {
    scenario(&refusal_test).await?;
    refusal_test.ensure_shadow_unchanged().await
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
    named_cases::run(&arguments, modules, RefusalTest::start, run_case, RefusalTest::judge)
}
