//! Events about Nodes and the operator's resource, with the operator's time. (The client's own recorder writes the local clock's, and the first of two
//! notes with one reason.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use models::names;
use models::plain::plain;
use serde_json::json;

use crate::plan::Note;
use crate::view::{NodeFacts, OperatorFacts};

/// Where the API server wants Events about objects without a namespace.
const NAMESPACE: &str = "default";

/// For how long the repetition of an Event is counted on the first one, as client-go does it.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// The longest text that an Event may have is 1 kB, in bytes.
const NOTE_LENGTH: usize = 1000;

/// How much of an object's name is in the names of its Events, which have room for 253 characters.
const NAME_LENGTH: usize = 230;

/// An Event that was published.
#[derive(Clone, Debug)]
struct Published {
    name: String,
    count: i32,
    last: Timestamp,
}

/// The object's uid, and the reason and the text of what was said of it.
type Key = (String, String, String);

/// A Node, as Events name it.
pub(super) fn node(facts: &NodeFacts) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(facts.name.clone()),
        uid: Some(facts.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The operator's resource, as Events name it.
pub(super) fn operator(facts: &OperatorFacts, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(super::shadow::OPERATOR_API.to_owned()),
        kind: Some("BottlerocketUpdateOperator".to_owned()),
        name: Some(names::OPERATOR_NAME.to_owned()),
        namespace: Some(namespace.to_owned()),
        uid: Some(facts.uid.clone()),
        ..ObjectReference::default()
    }
}

/// A text as an Event may have it.
fn told(text: &str) -> String {
    let mut text = plain(text);
    text.truncate(text.floor_char_boundary(NOTE_LENGTH));
    text
}

/// Publishes Events. Cloning shares what it remembers.
#[derive(Clone)]
pub(super) struct Recorder {
    client: kube::Client,
    identity: String,
    published: Arc<Mutex<HashMap<Key, Published>>>,
}

impl Recorder {
    pub(super) fn new(client: kube::Client, identity: String) -> Self {
        Self { client, identity, published: Arc::default() }
    }

    /// Publishes what happened to an object at `now`.
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
            let again = Published { count: before.count.saturating_add(1), last: now, ..before };
            let series = EventSeries { count: again.count, last_observed_time: MicroTime(now) };
            let patch = Patch::Merge(json!({"series": series}));
            match events.patch(&again.name, &PatchParams::default(), &patch).await {
                Ok(_) => {
                    self.remember(key, again);
                    return Ok(());
                }
                // It has expired.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(about, namespace, note, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        events.create(&PostParams::default(), &event).await?;
        self.remember(key, Published { name, count: 1, last: now });
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
            note: Some(told(&note.message)),
            action: Some("Update".to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            reporting_controller: Some(names::CONTROLLER.to_owned()),
            reporting_instance: Some(self.identity.clone()),
            ..Event::default()
        }
    }

    /// The Event that this would repeat. What is too long ago is forgotten.
    fn before(&self, key: &Key, now: Timestamp) -> Option<Published> {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.retain(|_, event| now.duration_since(event.last) < SERIES);
        published.get(key).cloned()
    }

    fn remember(&self, key: Key, event: Published) {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).insert(key, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_one_line_that_the_api_server_takes_whatever_is_in_it() {
        assert_eq!(told("attempt 1: \u{1b}[2J\r\nok"), "attempt 1: \u{fffd}[2J  ok");
        let long = told(&"ä\u{1b}".repeat(1000));
        assert!((990..=NOTE_LENGTH).contains(&long.len()), "{}", long.len());
    }
}
