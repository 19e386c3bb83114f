//! The wait for what comes of a write.

use std::time::Duration;

use models::names::{COMPONENT_LABEL, CONTROLLER};
use tokio::time::{Instant, timeout as within};

use crate::call::or_waiting;
use crate::page::progress;
use crate::shell::for_cluster;

/// Interval of reading.
const PERIOD: Duration = Duration::from_millis(500);

/// Time after which the progress is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The text of a wait before anything is known.
const ANSWER: &str = "for an answer of the API server";

/// The error if what came of a write cannot be read.
const UNKNOWN: &str = "it was written, and what came of it is not known";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The next thing to happen.
    Pending(String),
    /// The result, as a sentence.
    Done(String),
    /// It came to nothing, for this reason.
    Failed(String),
}

/// Something was written, and it is not known that the operator has acknowledged it: exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unacknowledged(pub(crate) String);

/// Waits for each of these until `check` reports that it is done, and passes its result to `done`. Returns the errors.
/// A check that the API server does not answer is repeated. Once one hangs, all of them end with the time to wait; those that are
/// answered are each made once, however many there are. `status` is the command to type where something is not done in time.
pub(crate) async fn all<T>(
    timeout: Duration,
    status: &str,
    waiting: Vec<T>,
    check: impl AsyncFn(&T) -> anyhow::Result<State>,
    done: impl Fn(&T, String),
) -> Vec<(T, anyhow::Error)> {
    let (begun, mut shown, mut failed) = (Instant::now(), Vec::new(), Vec::new());
    let mut waiting: Vec<(T, String)> = waiting.into_iter().map(|item| (item, ANSWER.to_owned())).collect();
    loop {
        let (mut left, mut hangs) = (Vec::new(), false);
        for (item, before) in waiting {
            let rest = timeout.saturating_sub(begun.elapsed());
            let answer = within(if hangs { rest } else { rest.max(PERIOD) }, check(&item)).await;
            hangs |= answer.is_err();
            let answer = answer.unwrap_or(Ok(State::Pending(before)));
            match or_waiting(answer, |error| State::Pending(format!("{ANSWER} ({error:#})"))) {
                Ok(State::Done(sentence)) => done(&item, sentence),
                Ok(State::Pending(next)) => left.push((item, next)),
                Ok(State::Failed(reason)) => failed.push((item, anyhow::Error::msg(reason))),
                Err(error) => failed.push((item, error.context(Unacknowledged(UNKNOWN.to_owned())))),
            }
        }
        if begun.elapsed() >= timeout {
            let late = |next: String| {
                anyhow::Error::new(Unacknowledged(format!(
                    "it was written, and after {} s it still waits: {next}. See {status}, and that the controller runs ({})",
                    timeout.as_secs(),
                    for_cluster(&format!("kubectl get pods -A -l {COMPONENT_LABEL}={CONTROLLER}")),
                )))
            };
            failed.extend(left.into_iter().map(|(item, next)| (item, late(next))));
            return failed;
        }
        if left.is_empty() {
            return failed;
        }
        if begun.elapsed() >= SHOWN_AFTER {
            let now: Vec<String> = left.iter().map(|(_, next)| next.clone()).collect();
            now.iter().filter(|next| !shown.contains(*next)).for_each(|next| progress(format_args!("waiting: {next}")));
            shown = now;
        }
        waiting = left;
        tokio::time::sleep(PERIOD.min(timeout)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::call::failure;

    #[tokio::test(start_paused = true)]
    async fn each_is_waited_for_until_it_is_done_or_the_time_is_over() {
        let begun = Instant::now();
        let check = async |seconds: &u64| {
            anyhow::ensure!(*seconds != 99, "no answer");
            if *seconds == 98 {
                return Ok(State::Failed("another client".to_owned()));
            }
            let left = Duration::from_secs(*seconds).saturating_sub(begun.elapsed());
            Ok(if left.is_zero() { State::Done("ok".to_owned()) } else { State::Pending("the operator".to_owned()) })
        };
        let done = RefCell::new(Vec::new());
        let status = "kubectl brupop status -n ops";
        let failed = all(Duration::from_secs(10), status, vec![0, 4, 30, 98, 99], check, |seconds, _| {
            done.borrow_mut().push(*seconds);
        })
        .await;
        assert_eq!(done.into_inner(), [0, 4]);
        let late: Vec<_> = failed.iter().map(|(seconds, error)| (*seconds, error.is::<Unacknowledged>())).collect();
        assert_eq!(late, [(98, false), (99, true), (30, true)]);
        let part = format!("still waits: the operator. See {status}, and");
        assert!(failed[2].1.to_string().contains(&part), "{}", failed[2].1);
    }

    #[tokio::test(start_paused = true)]
    async fn checks_that_hang_take_no_longer_than_the_time_to_wait() {
        let begun = Instant::now();
        let check = async |item: &u8| match item {
            0 => Ok(State::Pending("the operator".to_owned())),
            _ => std::future::pending::<anyhow::Result<State>>().await,
        };
        let failed = all(Duration::from_secs(10), "status", vec![0, 1, 2, 3, 4, 5], check, |_, _| {}).await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        for (item, error) in failed {
            let next = if item == 0 { "the operator" } else { ANSWER };
            let expected = format!("after 10 s it still waits: {next}. See status");
            assert!(error.is::<Unacknowledged>() && error.to_string().contains(&expected), "{item}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_many_is_checked_also_where_that_takes_longer_than_the_time_to_wait() {
        let check = async |_: &u8| {
            tokio::time::sleep(Duration::from_millis(100)).await;
            anyhow::Ok(State::Done(String::new()))
        };
        let failed = all(Duration::from_secs(1), "status", vec![0_u8; 100], check, |_, _| {}).await;
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn check_without_an_answer_is_repeated_until_the_time_is_over() {
        let answer = |code: u16| {
            let status = kube::core::Status::failure("no", "Reason").with_code(code).boxed();
            Err(failure("get nodes", kube::Error::Api(status)))
        };
        let tries = RefCell::new(0);
        let check = async |item: &&str| match *item {
            "lost twice" if tries.replace_with(|tries| *tries + 1) >= 2 => Ok(State::Done("ok".to_owned())),
            "lost twice" | "never" => answer(500),
            _ => answer(403),
        };
        let done = RefCell::new(Vec::new());
        let waiting = vec!["lost twice", "refused", "never"];
        let failed = all(Duration::from_secs(10), "status", waiting, check, |item, _| {
            done.borrow_mut().push(*item);
        })
        .await;
        assert_eq!(done.into_inner(), ["lost twice"]);
        let failed: Vec<_> = failed.iter().map(|(item, error)| (*item, format!("{error:#}"))).collect();
        assert!(failed[0].0 == "refused" && failed[0].1.contains("the right to get nodes"), "{failed:?}");
        let part = "still waits: for an answer of the API server (cannot get nodes: the API server answers 500";
        assert!(failed[1].0 == "never" && failed[1].1.contains(part), "{failed:?}");
    }
}
