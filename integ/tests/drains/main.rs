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
use integ::named_cases;
use libtest_mimic::Arguments;

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

async fn run_case(fleet: Arc<Fleet>, name: String, scenario: Scenario) -> anyhow::Result<()> {
    let case = Case::new(fleet, &name).await?;
    let again = case.clone();
    scenario(case).await?;
    again.ensure_released().await
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // The longest cases are the first ones.
    let modules = [
        ("claims", claims::cases()),
        ("evictions", evictions::cases()),
        ("kubectl_parity", kubectl_parity::cases()),
        ("budgets", budgets::cases()),
        ("deadlines", deadlines::cases()),
        ("endings", endings::cases()),
        ("filters", filters::cases()),
    ];
    let nodes: usize = modules.iter().map(|(_, cases)| cases.len()).sum();
    named_cases::run(&arguments, modules, move || Fleet::start(nodes), run_case, Fleet::judge)
}
