//! A watch that brings the objects first, as a list of them would: one request instead of two.
//!
//! The watcher of `kube` can do that too, and accepts objects of any age (`resourceVersion=0`). Here no version is requested, so
//! that the objects are at least as new as the request, as those of a list are.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use kube::api::{Api, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

/// The annotation of the bookmark that comes after the objects.
const OBJECTS_END: &str = "k8s.io/initial-events-end";

/// The codes of an API server whose feature `WatchList` is off.
const REFUSALS: [u16; 2] = [400, 422];

enum Watching<K> {
    Closed,
    Open(BoxStream<'static, kube::Result<WatchEvent<K>>>),
    /// The objects are listed before they are watched.
    Listed(BoxStream<'static, watcher::Result<Event<K>>>),
}

struct WatchList<K> {
    api: Api<K>,
    config: watcher::Config,
    lists_first: Arc<AtomicBool>,
    /// True while objects may be missing that the watch brings first.
    unfinished: Arc<AtomicBool>,
    watching: Watching<K>,
}

/// Returns the events of watches, each of which brings the objects first. Once the API server has refused that (`lists_first`), or the
/// objects did not all come (`unfinished`), they are listed before they are watched.
pub(crate) fn events<K>(
    api: Api<K>,
    config: watcher::Config,
    lists_first: Arc<AtomicBool>,
    unfinished: Arc<AtomicBool>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = WatchList { api, config, lists_first, unfinished, watching: Watching::Closed };
    stream::unfold(begin, async |mut watch| {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

impl<K> WatchList<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        loop {
            let event = match &mut self.watching {
                Watching::Listed(events) => return events.next().await,
                Watching::Open(events) => {
                    let event = events.next().await;
                    self.read(event)
                }
                Watching::Closed => self.open().await,
            };
            if event.is_some() {
                return event;
            }
        }
    }

    /// Opens a watch, or else lists the objects.
    async fn open(&mut self) -> Option<watcher::Result<Event<K>>> {
        if !self.lists_first.load(Ordering::Relaxed) && !self.unfinished.swap(true, Ordering::Relaxed) {
            let watcher::Config { label_selector, field_selector, .. } = self.config.clone();
            let params = WatchParams { label_selector, field_selector, ..WatchParams::streaming_lists() };
            match self.api.watch(&params, "").await {
                Ok(events) => {
                    self.watching = Watching::Open(events.boxed());
                    return Some(Ok(Event::Init));
                }
                Err(kube::Error::Api(status)) if REFUSALS.contains(&status.code) => {
                    let refusal = status.message;
                    tracing::info!(
                        refusal,
                        "the API server refuses to send objects with a watch; they are listed first"
                    );
                    self.lists_first.store(true, Ordering::Relaxed);
                }
                // A list may succeed all the same, as behind a proxy that holds back what a watch brings.
                Err(error) => return Some(Err(watcher::Error::WatchStartFailed(error))),
            }
        }
        self.watching = Watching::Listed(watcher::watcher(self.api.clone(), self.config.clone()).boxed());
        None
    }

    /// Returns what an event of the open watch shows.
    fn read(&mut self, event: Option<kube::Result<WatchEvent<K>>>) -> Option<watcher::Result<Event<K>>> {
        let unfinished = self.unfinished.load(Ordering::Relaxed);
        let error = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                return Some(Ok(if unfinished { Event::InitApply(object) } else { Event::Apply(object) }));
            }
            Some(Ok(WatchEvent::Deleted(object))) if !unfinished => return Some(Ok(Event::Delete(object))),
            Some(Ok(WatchEvent::Bookmark(mark))) => {
                let ends = unfinished && mark.metadata.annotations.contains_key(OBJECTS_END);
                self.unfinished.store(unfinished && !ends, Ordering::Relaxed);
                return ends.then_some(Ok(Event::InitDone));
            }
            Some(Ok(WatchEvent::Error(status))) => Some(watcher::Error::WatchError(status)),
            Some(Err(error)) => Some(watcher::Error::WatchFailed(error)),
            // The watch has ended, or what it has brought is deleted already.
            Some(Ok(WatchEvent::Deleted(_))) | None => None,
        };
        self.watching = Watching::Closed;
        error.map(Err)
    }
}
