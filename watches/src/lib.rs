//! Watches of the Kubernetes API that survive outages ([`run`]), what they show ([`Objects`]), and the merge of that with the
//! answers to own calls ([`Known`]).

mod known;
mod objects;
mod watch_list;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use models::backoff::{Backoff, equal_jitter};
use models::failures::{LoggedFailures, with_causes};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

pub use known::Known;
pub use objects::Objects;

/// Time without any data after which the connection of a watch must be dead: the API server sends a bookmark about every
/// minute. The client ends such a watch.
///
/// A watch that fails so long after its last event, of which a bookmark is none, is not resumed but begun with a list: where the
/// cluster was restored to an earlier state, a resumed one shows nothing until the cluster has reached its version again. The list
/// sets that time back, so that a quiet watch that fails again and again is listed once in this time. One that ends without a
/// failure is resumed.
pub const SILENCE: Duration = Duration::from_secs(150);

/// Deadline for a page of a list.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The longest one: a watch is back within seconds after an outage, however long that was.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Counts a failure, and returns the pause before the next try. A part of it is random, so that not all watches of all
/// processes come back at once.
pub fn next_pause(backoff: &mut Backoff, longest: Duration) -> Duration {
    equal_jitter(backoff.next_delay((FIRST_PAUSE, longest)), rand::random())
}

/// A receiver of the events of a watch.
pub trait Sink<K>: Sync {
    /// Handles an event. `read` is the number that `reads` had when this watch was begun.
    fn take(&self, read: u64, event: Event<DeserializeGuard<K>>);

    /// The longest pause after failures in a row.
    fn longest_pause(&self) -> Duration {
        LONGEST_PAUSE
    }

    /// Counts a failure, which [`run`] logs.
    fn failed(&self) {}

    /// The node whose objects these are, for the log, if they are those of one.
    fn node(&self) -> Option<&str> {
        None
    }
}

/// The log of the failures of one watch: in an outage each of hundreds fails every few seconds.
struct FailureLog<'a> {
    kind: Cow<'static, str>,
    node: Option<&'a str>,
    logged: LoggedFailures,
}

impl FailureLog<'_> {
    fn failed(&mut self, error: &str, pause: Duration) {
        let (kind, node) = (&self.kind, self.node);
        if self.logged.is_news(error, Instant::now()) {
            tracing::warn!(%kind, node, error, ?pause, "watch failed, retrying");
        } else {
            tracing::debug!(%kind, node, error, ?pause, "watch failed, retrying");
        }
    }
}

/// Watches for as long as it is polled. A lost watch is resumed, or begun with a list where it fails [`SILENCE`] after its last
/// event. A list that fails or is not answered within 30 s is retried. Each new number in `reads` causes a new list.
pub async fn run<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    reads: watch::Receiver<u64>,
    sink: &impl Sink<K>,
) where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    follow(|| watcher::watcher(api.clone(), config.clone()), reads, sink).await;
}

/// Does the same as [`run`] in one request: the watch brings the objects first, as new as those of a list. Where the API
/// server refuses that, `lists_first` is set, and from then on they are listed.
pub async fn run_as_watch_list<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    lists_first: Arc<AtomicBool>,
    reads: watch::Receiver<u64>,
    sink: &impl Sink<K>,
) where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let unfinished = Arc::new(AtomicBool::new(false));
    let watch = || watch_list::events(api.clone(), config.clone(), lists_first.clone(), unfinished.clone());
    follow(watch, reads, sink).await;
}

/// The same for the metadata of objects alone: their contents are never read.
pub async fn run_metadata<K>(
    api: Api<PartialObjectMeta<K>>,
    config: watcher::Config,
    reads: watch::Receiver<u64>,
    sink: &impl Sink<PartialObjectMeta<K>>,
) where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let guarded = |event| match event {
        Event::Apply(object) => Event::Apply(DeserializeGuard(Ok(object))),
        Event::Delete(object) => Event::Delete(DeserializeGuard(Ok(object))),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(DeserializeGuard(Ok(object))),
        Event::InitDone => Event::InitDone,
    };
    follow(|| watcher::watcher(api.clone(), config.clone()).map_ok(guarded), reads, sink).await;
}

/// Feeds the events of the watches that `watch` opens.
async fn follow<K, W>(watch: impl Fn() -> W, mut reads: watch::Receiver<u64>, sink: &impl Sink<K>)
where
    K: kube::Resource<DynamicType = ()> + Send + 'static,
    W: Stream<Item = watcher::Result<Event<DeserializeGuard<K>>>> + Send,
{
    let mut log = FailureLog { kind: K::kind(&()), node: sink.node(), logged: LoggedFailures::default() };
    let (mut backoff, mut missing) = (Backoff::default(), false);
    loop {
        let read = *reads.borrow_and_update();
        let mut events = watch().boxed();
        // The time of the last event since the list; `None` until that is complete.
        let mut shown: Option<Instant> = None;
        loop {
            let next = async {
                // A quiet watch is no error; the client ends a dead one.
                if shown.is_some() { Ok(events.next().await) } else { timeout(LIST_LIMIT, events.next()).await }
            };
            let pause = tokio::select! {
                Ok(()) = reads.changed() => break,
                next = next => match next {
                    Ok(Some(Ok(event))) => {
                        shown = match event {
                            Event::Init | Event::InitApply(_) => None,
                            Event::InitDone | Event::Apply(_) | Event::Delete(_) => Some(Instant::now()),
                        };
                        // Each try of a list begins with an event of its own.
                        if !matches!(event, Event::Init) {
                            (backoff, missing) = (Backoff::default(), false);
                        }
                        sink.take(read, event);
                        continue;
                    }
                    Ok(Some(Err(error))) => {
                        sink.failed();
                        let pause = next_pause(&mut backoff, sink.longest_pause());
                        let was_missing = std::mem::replace(&mut missing, is_not_served(&error));
                        if !missing {
                            log.failed(&with_causes(&error), pause);
                        } else if !was_missing {
                            tracing::warn!(
                                "the API server does not serve {} in version {}: their definition is missing, or is the \
                                 earlier operator's (docs/install.md); waiting for it",
                                K::plural(&()),
                                K::version(&())
                            );
                        }
                        pause
                    }
                    Ok(None) => return,
                    Err(_) => {
                        sink.failed();
                        log.failed("the API server does not answer the list", Duration::ZERO);
                        break;
                    }
                },
            };
            tokio::select! {
                Ok(()) = reads.changed() => break,
                () = sleep(pause) => {}
            }
            if shown.is_some_and(|at| at.elapsed() >= SILENCE) {
                break;
            }
        }
    }
}

/// Returns true if a watch failed because its resource is not served at all.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::ErrorKind;
    use std::sync::Mutex;

    use futures::stream;
    use kube::ResourceExt as _;
    use kube::core::{ObjectMeta, PartialObjectMetaExt as _};
    use models::shadow::BottlerocketShadow;

    use super::*;

    type Shadow = PartialObjectMeta<BottlerocketShadow>;

    /// The versions of the objects that lists have shown.
    #[derive(Default)]
    struct Listed(Mutex<Vec<String>>);

    impl Sink<Shadow> for Listed {
        fn take(&self, _: u64, event: Event<DeserializeGuard<Shadow>>) {
            if let Event::InitApply(shadow) = event {
                self.0.lock().unwrap().extend(shadow.resource_version());
            }
        }
    }

    fn list(version: &str) -> [watcher::Result<Event<DeserializeGuard<Shadow>>>; 3] {
        let metadata = ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        let shadow = DeserializeGuard(Ok(metadata.into_response_partial()));
        [Ok(Event::Init), Ok(Event::InitApply(shadow)), Ok(Event::InitDone)]
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_was_silent_shows_the_earlier_state_that_the_cluster_was_restored_to() {
        for (quiet, expected) in [(SILENCE, vec!["50", "20"]), (SILENCE / 2, vec!["50"])] {
            let (first, listed) = (Cell::new(true), Listed::default());
            let watch = || {
                let (version, quiet) = if first.replace(false) { ("50", quiet) } else { ("20", Duration::MAX) };
                let failure = async move {
                    sleep(quiet).await;
                    Err(watcher::Error::WatchFailed(kube::Error::ReadEvents(ErrorKind::TimedOut.into())))
                };
                // A resumed watch waits for a version that the cluster has not reached again.
                stream::iter(list(version)).chain(stream::once(failure)).chain(stream::pending())
            };
            let run = timeout(Duration::from_hours(1), follow(watch, watch::channel(0).1, &listed)).await;
            assert!(run.is_err(), "it watches on");
            assert_eq!(*listed.0.lock().unwrap(), expected, "the watch fails after {quiet:?}");
        }
    }

    #[test]
    fn retry_delays_grow_to_a_few_seconds_with_jitter() {
        let after = |failures| next_pause(&mut Backoff::after(failures), LONGEST_PAUSE);
        assert!(after(0) <= Duration::from_millis(250));
        let pauses: Vec<_> = (0..100).map(|_| after(u32::MAX)).collect();
        assert!(pauses.iter().all(|pause| (Duration::from_secs(2)..=Duration::from_secs(4)).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
