//! The newest known shadow, from the stream and from the answers to this agent's writes.

use std::collections::VecDeque;
use std::sync::Arc;

use models::wire::ShadowView;
use tokio::sync::watch;

/// Number of replaced reports remembered, to distinguish an old echo from another client's change.
const REMEMBERED: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The shadow, if it exists and has been seen.
    pub(crate) view: Option<Arc<ShadowView>>,
    /// Etags of reports that this agent's writes replaced.
    replaced: VecDeque<String>,
    /// Number of streams opened: behind each there may be another web API.
    streams: u64,
    /// True if the last stream that was requested has not sent the shadow yet, nor an answer a newer generation since.
    first: bool,
}

impl Known {
    /// Stores a view from the stream, unless it is older than the known one. The stream comes from a cache that may lag
    /// behind the answer to this agent's write. The first view of a stream is stored whatever its generation:
    /// generations are not signed, so one invented by a compromised web API must not outlive the connection to it. One of the
    /// known generation is stored too, unless a report has replaced it: another web API may show more of the shadow. Neither
    /// holds against a newer generation from an answer that came while the stream was being opened.
    fn streamed(&mut self, view: ShadowView) -> bool {
        let first = std::mem::take(&mut self.first);
        if let Some(current) = &self.view
            && current.metadata.uid == view.metadata.uid
        {
            let (old, new) = (current.metadata.generation, view.metadata.generation);
            let same = if first { **current == view } else { current.etag == view.etag };
            let known = same || self.replaced.contains(&view.etag);
            if (new < old && !first) || (new == old && known) {
                return false;
            }
        }
        self.view = Some(Arc::new(view));
        true
    }

    /// Stores the answer to this agent's write. It is newer than anything that the stream sent of the same generation.
    /// A late one may be about a shadow that was replaced or deleted meanwhile: an answer about another shadow than the
    /// known one counts only if it answers a write to the known one. So does one of a lower generation: the web API has
    /// read the cluster for it.
    fn answered(&mut self, view: ShadowView, replaced: &str) -> bool {
        let Some(current) = &self.view else { return false };
        let same = current.metadata.uid == view.metadata.uid;
        if !same && current.etag != replaced {
            return false;
        }
        let older = same && current.etag != replaced && current.metadata.generation > view.metadata.generation;
        let is_newer = same && current.metadata.generation < view.metadata.generation;
        if replaced != view.etag {
            self.replaced.push_back(replaced.to_owned());
            if self.replaced.len() > REMEMBERED {
                self.replaced.pop_front();
            }
        }
        self.replaced.retain(|etag| *etag != view.etag);
        if is_newer {
            self.first = false;
        }
        if !older {
            self.view = Some(Arc::new(view));
        }
        !older
    }
}

/// Holds the knowledge of the shadow, and wakes tasks that wait for a change.
#[derive(Debug, Default)]
pub(crate) struct Views(watch::Sender<Known>);

impl Views {
    /// Returns the newest shadow, from which a stream is requested now.
    pub(crate) fn opening(&self) -> Option<Arc<ShadowView>> {
        self.0.send_if_modified(|known| {
            known.first = true;
            false
        });
        self.newest()
    }

    pub(crate) fn opened(&self) {
        self.0.send_modify(|known| known.streams = known.streams.wrapping_add(1));
    }

    pub(crate) fn streams(&self) -> u64 {
        self.0.borrow().streams
    }

    pub(crate) fn streamed(&self, view: ShadowView) {
        self.0.send_if_modified(|known| known.streamed(view));
    }

    /// Records that the stream reports no shadow.
    pub(crate) fn absent(&self) {
        self.0.send_if_modified(|known| known.view.take().is_some());
    }

    /// Stores the answer to a write that was conditional on the etag `replaced`.
    pub(crate) fn answered(&self, view: ShadowView, replaced: &str) {
        self.0.send_if_modified(|known| known.answered(view, replaced));
    }

    pub(crate) fn newest(&self) -> Option<Arc<ShadowView>> {
        self.0.borrow().view.clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Known> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::HostState;

    use super::*;

    fn view(uid: &str, generation: i64, etag: &str) -> ShadowView {
        let mut view = crate::situation::tests::view(HostState::Idle);
        view.metadata.uid = uid.into();
        view.metadata.generation = generation;
        view.etag = etag.into();
        view
    }

    fn etag(views: &Views) -> String {
        views.newest().unwrap().etag.clone()
    }

    #[test]
    fn echo_of_replaced_state_is_ignored_but_foreign_change_is_not() {
        let views = Views::default();
        views.streamed(view("u", 1, "a"));
        views.answered(view("u", 1, "b"), "a");
        views.streamed(view("u", 1, "a"));
        assert_eq!(etag(&views), "b");
        views.streamed(view("u", 1, "foreign"));
        assert_eq!(etag(&views), "foreign");
    }

    #[test]
    fn newer_generation_is_taken_from_stream_or_response_and_older_ignored() {
        let views = Views::default();
        views.streamed(view("u", 2, "a"));
        views.streamed(view("u", 1, "z"));
        assert_eq!(etag(&views), "a");
        views.answered(view("u", 1, "y"), "x");
        assert_eq!(etag(&views), "a");
        views.answered(view("u", 3, "b"), "a");
        views.streamed(view("u", 4, "c"));
        assert_eq!(etag(&views), "c");
    }

    #[test]
    fn first_view_of_stream_replaces_one_of_same_generation_that_shows_less() {
        let views = Views::default();
        let attempt = || views.newest().unwrap().spec.attempt;
        let mut whole = view("u", 1, "a");
        whole.spec.attempt = 7;
        views.opening();
        views.streamed(view("u", 1, "a"));
        let less = attempt();
        views.streamed(whole.clone());
        assert_eq!(attempt(), less, "one web API changes the etag with each state");
        views.opening();
        views.streamed(whole);
        assert_ne!(less, attempt());
        views.answered(view("u", 1, "b"), "a");
        views.opening();
        views.streamed(view("u", 1, "a"));
        assert_eq!(etag(&views), "b", "a web API that is behind shows what this agent's report has replaced");
    }

    #[test]
    fn first_view_of_stream_replaces_no_answer_that_came_after_its_request() {
        let views = Views::default();
        views.streamed(view("u", 4, "a"));
        views.opening();
        views.answered(view("u", 5, "withdrawn"), "a");
        views.opened();
        views.streamed(view("u", 4, "a"));
        assert_eq!(etag(&views), "withdrawn");
    }

    #[test]
    fn forged_generation_is_dropped_with_its_stream() {
        let views = Views::default();
        views.opening();
        views.streamed(view("u", i64::MAX, "forged"));
        views.streamed(view("u", 3, "a"));
        assert_eq!(etag(&views), "forged");
        views.opening();
        views.streamed(view("u", 3, "a"));
        assert_eq!(etag(&views), "a");
        views.streamed(view("u", 2, "z"));
        assert_eq!(etag(&views), "a");
    }

    #[test]
    fn rejected_write_response_replaces_shadow_of_any_generation() {
        let views = Views::default();
        views.streamed(view("u", i64::MAX, "forged"));
        views.answered(view("u", 3, "a"), "forged");
        assert_eq!(etag(&views), "a");
        // Unless something newer has come meanwhile.
        views.streamed(view("u", 5, "c"));
        views.answered(view("u", 4, "b"), "a");
        assert_eq!(etag(&views), "c");
    }

    #[test]
    fn recreated_shadow_replaces_previous_one() {
        let views = Views::default();
        views.streamed(view("u", 9, "a"));
        views.streamed(view("v", 1, "b"));
        assert_eq!(etag(&views), "b");
        views.absent();
        assert!(views.newest().is_none());
        views.streamed(view("v", 1, "b"));
        assert_eq!(etag(&views), "b");
    }

    #[test]
    fn late_response_for_deleted_shadow_does_not_affect_successor() {
        let views = Views::default();
        views.streamed(view("dead", 9, "a"));
        views.streamed(view("successor", 1, "b"));
        let before = views.newest();
        views.answered(view("dead", 9, "c"), "a");
        assert_eq!(views.newest(), before);
        // Etags replaced in the deleted shadow do not affect its successor.
        views.streamed(view("successor", 1, "a"));
        assert_eq!(etag(&views), "a");
    }

    #[test]
    fn late_response_does_not_restore_deleted_shadow() {
        let views = Views::default();
        views.streamed(view("dead", 9, "a"));
        views.absent();
        views.answered(view("dead", 9, "b"), "a");
        assert!(views.newest().is_none());
    }

    #[test]
    fn write_response_may_introduce_successor_shadow() {
        let views = Views::default();
        views.streamed(view("dead", 9, "a"));
        views.answered(view("successor", 1, "b"), "a");
        assert_eq!((etag(&views), views.newest().unwrap().metadata.uid.clone()), ("b".into(), "successor".into()));
    }
}
