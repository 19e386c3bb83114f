//! The objects of one kind as a watch shows them, also those that cannot be read.

use std::collections::BTreeMap;

use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::watcher::Event;

use crate::known::Known;

/// The objects of one kind, each reduced to an item, by key.
pub struct Objects<T> {
    /// The items of those that can be read.
    pub known: Known<T>,
    /// The reasons why objects cannot be read. None of them is known, whatever was known before: another process knows no more.
    pub unreadable: BTreeMap<String, String>,
    /// Those of the list that is being read.
    listing: BTreeMap<String, String>,
}

impl<T> Objects<T> {
    /// Returns no objects. `version` returns the resource version of an item.
    pub fn new(version: fn(&T) -> &str) -> Self {
        Self { known: Known::new(version), unreadable: BTreeMap::new(), listing: BTreeMap::new() }
    }

    /// Applies an event. `item` returns `None` for an object that is of no interest. Returns true if the event changes something by
    /// `matters`, which gets the new and the old item.
    pub fn take<K: Resource<DynamicType = ()>>(
        &mut self,
        event: Event<DeserializeGuard<K>>,
        key: impl Fn(&ObjectMeta) -> String,
        item: impl Fn(&K) -> Option<T>,
        matters: impl Fn(&T, &T) -> bool,
    ) -> bool {
        match event {
            Event::Init => {
                self.known.begin_list();
                self.listing.clear();
                false
            }
            Event::InitApply(DeserializeGuard(Ok(object))) => {
                if let Some(item) = item(&object) {
                    self.known.list(key(object.meta()), item);
                }
                false
            }
            Event::InitApply(DeserializeGuard(Err(invalid))) => {
                log_unreadable::<K>(&invalid);
                self.listing.insert(key(&invalid.metadata), invalid.error);
                false
            }
            Event::InitDone => {
                self.known.end_list();
                self.unreadable = std::mem::take(&mut self.listing);
                true
            }
            Event::Apply(DeserializeGuard(Ok(object))) => {
                let key = key(object.meta());
                let readable_again = self.unreadable.remove(&key).is_some();
                match item(&object) {
                    Some(item) => self.known.observe(key, item, matters) || readable_again,
                    None => self.delete(&key, object.meta()) || readable_again,
                }
            }
            Event::Apply(DeserializeGuard(Err(invalid))) => {
                log_unreadable::<K>(&invalid);
                let key = key(&invalid.metadata);
                self.delete(&key, &invalid.metadata);
                self.unreadable.insert(key, invalid.error);
                true
            }
            Event::Delete(guard) => {
                let key = key(guard.meta());
                let was_unreadable = self.unreadable.remove(&key).is_some();
                self.delete(&key, guard.meta()) || was_unreadable
            }
        }
    }

    /// Removes an object that was deleted, is of no interest any more or cannot be read any more.
    fn delete(&mut self, key: &str, meta: &ObjectMeta) -> bool {
        self.known.delete(key, meta.resource_version.as_deref().unwrap_or_default())
    }
}

fn log_unreadable<K: Resource<DynamicType = ()>>(invalid: &InvalidObject) {
    let (kind, InvalidObject { metadata, error }) = (K::kind(&()), invalid);
    tracing::error!(%kind, object = metadata.name, error, "an object cannot be read: nothing is decided about it");
}
