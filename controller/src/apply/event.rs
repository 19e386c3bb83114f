//! Events about Nodes and the operator's resource, with the operator's time. (The client's own recorder writes the
//! local clock's time, and only the first of two notes with the same reason.)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use models::plain::plain;
use models::{limits, names};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use planner::plan::Note;
use planner::view::{NodeFacts, OperatorFacts};

/// Group and version of the operator's resource.
const OPERATOR_API: &str = "brupop.bottlerocket.aws/v1";

/// Namespace that the API server requires for Events about objects without a namespace.
const NAMESPACE: &str = "default";

/// Time within which the repetition of an Event is counted on the first one, as in client-go.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// Maximum length of an Event's note, in bytes: the API server allows 1 kB.
const NOTE_LENGTH: usize = 1000;

/// Maximum length of an object's name in the names of its Events, which may have 253 characters.
const NAME_LENGTH: usize = 230;

/// Maximum number of Events that are being written, and of those that wait for that.
const AT_A_TIME: (usize, usize) = (20, 1_000);

/// Maximum time until an Event is written.
const LIMIT: Duration = limits::WRITE;

#[derive(Clone, Debug)]
struct PublishedEvent {
    name: String,
    count: i32,
    last: Timestamp,
}

/// The object's uid, and the reason and note of the Event.
type EventKey = (String, String, String);

/// Returns the reference to a Node for Events.
pub(super) fn node(facts: &NodeFacts) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(facts.name.clone()),
        uid: Some(facts.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Returns the reference to the operator's resource for Events.
pub(super) fn operator(facts: &OperatorFacts, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(OPERATOR_API.to_owned()),
        kind: Some("BottlerocketUpdateOperator".to_owned()),
        name: Some(names::OPERATOR_NAME.to_owned()),
        namespace: Some(namespace.to_owned()),
        uid: Some(facts.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Returns a text that is valid as an Event's note.
fn note_text(text: &str) -> String {
    let mut text = plain(text);
    text.truncate(text.floor_char_boundary(NOTE_LENGTH));
    text
}

/// Publishes Events. Clones share the record of published Events.
#[derive(Clone)]
pub(super) struct Recorder {
    client: kube::Client,
    identity: String,
    published: Arc<Mutex<HashMap<EventKey, PublishedEvent>>>,
    writing: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Recorder {
    pub(super) fn new(client: kube::Client, identity: String) -> Self {
        let [writing, waiting] = [AT_A_TIME.0, AT_A_TIME.1].map(|places| Arc::new(Semaphore::new(places)));
        Self { client, identity, published: Arc::default(), writing, waiting }
    }

    /// Publishes an Event about an object at `now`, for which nothing waits: a failure has no effect but a line of the log.
    pub(super) fn send(&self, about: ObjectReference, note: Note, now: Timestamp) {
        let recorder = self.clone();
        let Ok(place) = self.waiting.clone().try_acquire_owned() else {
            tracing::warn!(
                object = about.name,
                reason = note.reason,
                "an Event is dropped: too many wait to be written"
            );
            return;
        };
        tokio::spawn(async move {
            let written = timeout(LIMIT, async {
                let _turn = recorder.writing.acquire().await;
                recorder.publish(&about, &note, now).await
            });
            let (object, reason) = (&about.name, note.reason);
            match written.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(object, reason, error, "an Event could not be published");
                }
                Err(_) => tracing::warn!(object, reason, limit = ?LIMIT, "the API server does not answer for an Event"),
            }
            drop(place);
        });
    }

    pub(super) async fn publish(
        &self,
        about: &ObjectReference,
        note: &Note,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        let key = (about.uid.clone().unwrap_or_default(), note.reason.to_owned(), note.message.clone());
        let namespace = about.namespace.as_deref().unwrap_or(NAMESPACE);
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some(before) = self.before(&key, now) {
            let again = PublishedEvent { count: before.count.saturating_add(1), last: now, ..before };
            let series = EventSeries { count: again.count, last_observed_time: MicroTime(now) };
            let patch = Patch::Merge(json!({"series": series}));
            match events.patch(&again.name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    self.published.lock().insert(key, again);
                    return Ok(());
                }
                // The Event has expired.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(about, namespace, note, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        events.create(&PostParams::default(), &event).await?;
        self.published.lock().insert(key, PublishedEvent { name, count: 1, last: now });
        Ok(())
    }

    fn event(&self, about: &ObjectReference, namespace: &str, note: &Note, now: Timestamp) -> Event {
        let name: String = about.name.iter().flat_map(|name| name.chars()).take(NAME_LENGTH).collect();
        let name = name.trim_end_matches(['.', '-']);
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:016x}", rand::random::<u64>())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(note.reason.to_owned()),
            note: Some(note_text(&note.message)),
            action: Some("Update".to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            reporting_controller: Some(names::CONTROLLER.to_owned()),
            reporting_instance: Some(self.identity.clone()),
            ..Event::default()
        }
    }

    /// Returns the Event that this one would repeat. Entries that are too old are removed.
    fn before(&self, key: &EventKey, now: Timestamp) -> Option<PublishedEvent> {
        let mut published = self.published.lock();
        published.retain(|_, event| now.duration_since(event.last) < SERIES);
        published.get(key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_message_is_sanitized_and_limited_in_length() {
        assert_eq!(note_text("attempt 1: \u{1b}[2J\r\nok"), "attempt 1: \u{fffd}[2J  ok");
        let long = note_text(&"ä\u{1b}".repeat(1000));
        assert!((990..=NOTE_LENGTH).contains(&long.len()), "{}", long.len());
    }
}
