//! Named cases that share a test bed: it is started when the first case needs it, and judged when all have ended.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::OnceCell;

use crate::durations::Stopwatch;

/// Runs the cases of modules, as far as the arguments name them.
pub fn run<S, C, Started, Ran, Judged>(
    arguments: &Arguments,
    modules: impl IntoIterator<Item = (&'static str, Vec<(&'static str, C)>)>,
    start: impl Fn() -> Started + Send + Sync + 'static,
    run: fn(Arc<S>, String, C) -> Ran,
    judge: fn(S) -> Judged,
) -> ExitCode
where
    S: Send + Sync + 'static,
    C: Send + 'static,
    Started: Future<Output = anyhow::Result<S>>,
    Ran: Future<Output = anyhow::Result<()>> + 'static,
    Judged: Future<Output = anyhow::Result<()>>,
{
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let bed = Arc::new((runtime, OnceCell::<Arc<S>>::new(), start));
    let mut trials = Vec::new();
    for (module, cases) in modules {
        for (case, body) in cases {
            let (bed, name) = (bed.clone(), format!("{module}::{case}"));
            trials.push(Trial::test(name.clone(), move || {
                let (runtime, shared, start) = &*bed;
                let result: anyhow::Result<()> = runtime.block_on(async {
                    let _stopwatch = Stopwatch::start(&name);
                    let shared = shared.get_or_try_init(|| async move { start().await.map(Arc::new) }).await?;
                    run(shared.clone(), name.clone(), body).await
                });
                result.map_err(|error| Failed::from(format!("{error:#}")))
            }));
        }
    }
    let conclusion = libtest_mimic::run(arguments, trials);
    let Some((runtime, shared, _)) = Arc::into_inner(bed) else {
        eprintln!("a case is still running");
        return ExitCode::FAILURE;
    };
    let judged = runtime.block_on(async {
        let Some(shared) = shared.into_inner() else { return Ok(()) };
        let shared = Arc::into_inner(shared).ok_or_else(|| anyhow::anyhow!("a case still holds the test bed"))?;
        judge(shared).await
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
