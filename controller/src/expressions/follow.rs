//! The watch of the objects of one source.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::discovery::pinned_kind;
use kube::runtime::watcher::{self, Event};
use models::backoff::Backoff;
use parking_lot::Mutex;
use planner::objects::{Objects, Source, Unread, key, size, within_bounds};
use planner::predicate::Fields;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::query::root_cause;
use crate::apply::Applier;

/// Deadline for a page of a list, and for the resource of a kind.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The longest pause after failures in a row: a right or a definition that is there at last is used within this time. A watch that fails
/// earlier after its list is one more failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Time within which the API server refuses to open a watch, if it does. One that is open shows nothing until an object changes.
const REFUSAL: Duration = Duration::from_secs(2);

/// Time for which a watch may fail before its objects count as unknown: it is back within seconds after an outage.
const OUTAGE: Duration = Duration::from_secs(30);

/// The number of objects that are read at a time. Each may be as large as 1.5 MiB, whatever is kept of it.
const PAGE: u32 = 25;

/// The objects of a source, as far as they are known.
#[derive(Default)]
pub(super) struct Known {
    objects: Option<Arc<BTreeMap<String, Value>>>,
    /// Memory of these, in bytes.
    size: usize,
    /// Those of the list that is being read.
    listing: BTreeMap<String, Value>,
    /// Memory of these, in bytes.
    listing_size: usize,
    unread: Option<Unread>,
    /// Moment of the first failure since the last complete list.
    failing_since: Option<Instant>,
    /// Rises with each change.
    edition: u64,
}

impl Known {
    /// Creates it with the edition before its first.
    pub(super) fn after(edition: u64) -> Self {
        Self { edition, ..Self::default() }
    }

    /// Returns what is known, with its edition; `None` before anything is.
    pub(super) fn look(&self) -> Option<(u64, Objects)> {
        let objects = match (&self.unread, &self.objects) {
            (Some(unread), _) => Objects::Unread(unread.clone()),
            (None, Some(objects)) => Objects::Read(objects.clone()),
            (None, None) => return None,
        };
        Some((self.edition, objects))
    }

    /// Returns whether changes are seen as they happen.
    pub(super) fn goes_on(&self) -> bool {
        self.failing_since.is_none()
    }

    /// Applies an event, and returns whether it changes what is known.
    fn take(&mut self, event: Event<DynamicObject>, source: &Source, fields: &Fields) -> Result<bool, Unread> {
        match event {
            Event::Init => {
                self.forget_listing();
                return Ok(false);
            }
            Event::InitApply(object) => {
                let (key, object) = source.kept(object, fields);
                self.listing_size += size(&object);
                self.listing.insert(key, object);
                return within_bounds(self.listing.len(), self.listing_size).map(|()| false);
            }
            Event::InitDone => {
                self.objects = Some(Arc::new(std::mem::take(&mut self.listing)));
                self.size = std::mem::take(&mut self.listing_size);
                (self.unread, self.failing_since) = (None, None);
            }
            Event::Apply(object) => {
                let (key, object) = source.kept(object, fields);
                let objects = Arc::make_mut(self.objects.get_or_insert_default());
                // Most changes are of fields that no check reads.
                if objects.get(&key) == Some(&object) {
                    return Ok(false);
                }
                self.size += size(&object);
                let before = objects.insert(key, object);
                self.size -= before.as_ref().map_or(0, size);
                within_bounds(objects.len(), self.size)?;
            }
            Event::Delete(object) => {
                let objects = Arc::make_mut(self.objects.get_or_insert_default());
                let Some(before) = objects.remove(&key(&object)) else { return Ok(false) };
                self.size -= size(&before);
            }
        }
        self.edition += 1;
        Ok(true)
    }

    /// Records the end of a watch, and returns whether it changes what is known. Until the next list is complete, the objects stay as they
    /// were for a short outage.
    fn fail(&mut self, why: Unread, now: Instant) -> bool {
        self.forget_listing();
        let since = *self.failing_since.get_or_insert(now);
        if (matches!(why, Unread::Fails(_)) && now - since < OUTAGE) || self.unread.as_ref() == Some(&why) {
            return false;
        }
        // They are not looked at any more: the next list has them again.
        self.objects = None;
        self.unread = Some(why);
        self.edition += 1;
        true
    }

    fn forget_listing(&mut self) {
        self.listing = BTreeMap::new();
        self.listing_size = 0;
    }
}

/// Watches for as long as it is polled. After each failure the kind is looked up and the list is read again: both may have changed.
pub(super) async fn follow(
    applier: Applier,
    source: Source,
    fields: Fields,
    known: Arc<Mutex<Known>>,
    due: Arc<Notify>,
) {
    let mut backoff = Backoff::default();
    loop {
        let why = observe(&applier, (&source, &fields), &known, &due, &mut backoff).await;
        let detail = why.to_string();
        if known.lock().fail(why, Instant::now()) {
            tracing::warn!(objects = %source, detail, "objects of health checks cannot be read, retrying");
            due.notify_one();
        }
        sleep(watches::next_pause(&mut backoff, LONGEST_PAUSE)).await;
    }
}

/// Watches until that fails, and returns the reason.
async fn observe(
    applier: &Applier,
    (source, fields): (&Source, &Fields),
    known: &Mutex<Known>,
    due: &Notify,
    backoff: &mut Backoff,
) -> Unread {
    let client = &applier.client;
    let silent = || Unread::Fails(format!("the API server does not answer within {LIST_LIMIT:?}"));
    let (resource, capabilities) = match timeout(LIST_LIMIT, pinned_kind(client, &source.group_version_kind())).await {
        Ok(Ok(found)) => found,
        Ok(Err(kube::Error::Discovery(_))) => return Unread::NoKind,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Unread::NoKind,
        Ok(Err(error)) => return Unread::Fails(root_cause(&error)),
        Err(_) => return silent(),
    };
    let namespace = match source.namespace_in(&capabilities) {
        Ok(namespace) => namespace,
        Err(why) => return why,
    };
    let api: Api<DynamicObject> = Api::dynamic(client.clone(), &resource, &capabilities.scope).constrain(namespace);
    let (field_selector, label_selector) = source.selectors();
    let config = watcher::Config { field_selector, label_selector, ..watcher::Config::default().page_size(PAGE) };
    let mut events = watcher::watcher(api, config).boxed().peekable();
    let mut listed: Option<Instant> = None;
    loop {
        // A quiet watch is no error; the client ends a dead one.
        let next = if listed.is_some() { Ok(events.next().await) } else { timeout(LIST_LIMIT, events.next()).await };
        if listed.is_some_and(|at| at.elapsed() > LONGEST_PAUSE) {
            *backoff = Backoff::default();
        }
        let event = match next {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => return unread(&error, &resource, source, &applier.namespace),
            Ok(None) => return Unread::Fails("the watch has ended".to_owned()),
            Err(_) => return silent(),
        };
        if matches!(event, Event::InitDone) {
            listed = Some(Instant::now());
            // The watch is opened after this event. Where it is refused, as without the right to watch, the list is of no use.
            if let Ok(Some(Err(error))) = timeout(REFUSAL, Pin::new(&mut events).peek()).await {
                return unread(error, &resource, source, &applier.namespace);
            }
        }
        let taken = known.lock().take(event, source, fields);
        match taken {
            Ok(true) => due.notify_one(),
            Ok(false) => {}
            Err(why) => return why,
        }
    }
}

fn unread(error: &watcher::Error, resource: &ApiResource, source: &Source, controller: &str) -> Unread {
    use kube::Error::Api;
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let code = match error {
        InitialListFailed(Api(status))
        | WatchStartFailed(Api(status))
        | WatchFailed(Api(status))
        | WatchError(status) => status.code,
        _ => 0,
    };
    match code {
        403 => Unread::NoRight {
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            namespace: source.namespace.clone(),
            controller: controller.to_owned(),
        },
        404 => Unread::NoKind,
        _ => Unread::Fails(root_cause(error)),
    }
}

#[cfg(test)]
mod tests {
    use planner::objects::{MOST_KEPT, MOST_OBJECTS};
    use planner::predicate::Predicate;
    use serde_json::json;

    use super::*;

    struct Case {
        known: Known,
        source: Source,
        fields: Fields,
        start: Instant,
    }

    fn object(name: &str, phase: &str, other: i64) -> DynamicObject {
        let metadata = json!({"name": name, "namespace": "shop", "managedFields": [{"manager": "x"}]});
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase, "other": other}})).unwrap()
    }

    impl Case {
        fn new() -> Self {
            let fields = Predicate::of("self.status.phase == 'Ready'").unwrap().fields.clone();
            let source = Source { api_version: "v1".into(), kind: "Pod".into(), ..Source::default() };
            Self { known: Known::default(), source, fields, start: Instant::now() }
        }

        fn take(&mut self, event: Event<DynamicObject>) -> Result<bool, Unread> {
            self.known.take(event, &self.source, &self.fields)
        }

        fn list(&mut self, objects: impl IntoIterator<Item = DynamicObject>) {
            self.take(Event::Init).unwrap();
            objects.into_iter().for_each(|object| assert_eq!(self.take(Event::InitApply(object)), Ok(false)));
            assert_eq!(self.take(Event::InitDone), Ok(true));
        }

        fn fail(&mut self, why: Unread, second: u64) -> bool {
            self.known.fail(why, self.start + Duration::from_secs(second))
        }

        /// The phases of the known objects; `None` while they are not known.
        fn phases(&self) -> Option<Vec<(String, String)>> {
            let (_, Objects::Read(objects)) = self.known.look()? else { return None };
            let phase = |(key, object): (&String, &Value)| {
                assert_eq!(*object, json!({"status": {"phase": object["status"]["phase"]}}), "nothing else is kept");
                (key.clone(), object["status"]["phase"].as_str().unwrap().to_owned())
            };
            Some(objects.iter().map(phase).collect())
        }
    }

    fn phases(objects: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(objects.iter().map(|(name, phase)| (format!("shop/{name}"), (*phase).to_owned())).collect())
    }

    #[test]
    fn objects_are_known_once_their_list_is_complete_and_follow_each_change_of_the_fields_that_are_read() {
        let mut case = Case::new();
        assert_eq!(case.known.look(), None);
        case.take(Event::Init).unwrap();
        case.take(Event::InitApply(object("a", "Ready", 1))).unwrap();
        assert_eq!(case.known.look(), None);
        assert_eq!(case.take(Event::InitDone), Ok(true));
        assert_eq!(case.phases(), phases(&[("a", "Ready")]));
        for (event, changes, expected) in [
            (Event::Apply(object("a", "Ready", 2)), false, vec![("a", "Ready")]),
            (Event::Apply(object("a", "Failed", 2)), true, vec![("a", "Failed")]),
            (Event::Apply(object("b", "Ready", 1)), true, vec![("a", "Failed"), ("b", "Ready")]),
            (Event::Delete(object("a", "Ready", 3)), true, vec![("b", "Ready")]),
            (Event::Delete(object("a", "Ready", 3)), false, vec![("b", "Ready")]),
        ] {
            let before = case.known.look().unwrap().0;
            assert_eq!(case.take(event.clone()), Ok(changes), "{event:?}");
            assert_eq!(case.phases(), phases(&expected), "{event:?}");
            assert_eq!(case.known.look().unwrap().0 != before, changes, "{event:?}");
        }
        case.list([object("c", "Ready", 1)]);
        assert_eq!(case.phases(), phases(&[("c", "Ready")]), "what another list lacks is gone");
    }

    #[test]
    fn more_objects_than_a_check_may_read_are_not_known() {
        let many = |count: usize| (0..count).map(|index| object(&format!("{index:04}"), "Ready", 1));
        let mut case = Case::new();
        case.list(many(MOST_OBJECTS));
        assert_eq!(case.take(Event::Apply(object("one-more", "Ready", 1))), Err(Unread::TooMany));
        assert!(case.fail(Unread::TooMany, 0));
        assert_eq!(case.phases(), None);
        case.take(Event::Init).unwrap();
        let taken: Vec<_> = many(MOST_OBJECTS + 1).map(|object| case.take(Event::InitApply(object))).collect();
        assert_eq!(taken.last(), Some(&Err(Unread::TooMany)), "no more of them are read");
        assert!(!case.fail(Unread::TooMany, 1) && case.known.listing.is_empty(), "nothing is kept of them");
        case.list(many(1));
        assert_eq!(case.phases().unwrap().len(), 1);
    }

    #[test]
    fn objects_that_take_more_memory_than_a_check_may_keep_are_not_known() {
        let large = |name: &str| object(name, &"x".repeat(MOST_KEPT / 4), 1);
        let mut case = Case::new();
        case.list(["a", "b", "c"].map(large));
        for change in [Event::Apply(object("c", "Ready", 1)), Event::Apply(large("c"))] {
            assert_eq!(case.take(change), Ok(true), "what was there before does not count");
        }
        assert_eq!(case.take(Event::Delete(large("a"))), Ok(true));
        assert_eq!(case.take(Event::Apply(large("d"))), Ok(true), "nor does what is gone");
        assert_eq!(case.take(Event::Apply(large("e"))), Err(Unread::TooLarge));
        assert!(case.fail(Unread::TooLarge, 0));
        assert_eq!(case.phases(), None);
        assert!(case.known.objects.is_none(), "they are not kept");
        case.take(Event::Init).unwrap();
        let taken = ["a", "b", "c", "d"].map(|name| case.take(Event::InitApply(large(name))));
        assert_eq!(taken.last(), Some(&Err(Unread::TooLarge)));
        case.list([large("a")]);
        assert_eq!(case.phases().unwrap().len(), 1);
    }

    #[test]
    fn objects_stay_known_in_a_short_outage_and_not_without_a_right_or_their_kind() {
        let outage = || Unread::Fails("connection refused".into());
        let no_right = || {
            let (group, resource, controller) = (String::new(), "pods".into(), "brupop-system".into());
            Unread::NoRight { group, resource, namespace: None, controller }
        };
        let mut case = Case::new();
        case.list([object("a", "Ready", 1)]);
        for (second, why, changes, known) in [
            (0, outage(), false, true),
            (29, outage(), false, true),
            (30, outage(), true, false),
            (31, outage(), false, false),
            (32, no_right(), true, false),
        ] {
            assert_eq!(case.fail(why, second), changes, "at {second}");
            assert_eq!(case.phases().is_some(), known, "at {second}");
        }
        case.list([object("a", "Ready", 1)]);
        assert!(case.phases().is_some() && case.known.goes_on());
        assert!(!case.fail(outage(), 60), "another outage");
        assert!(!case.known.goes_on(), "the objects may have changed since");
        for why in [no_right(), Unread::NoKind] {
            assert!(case.fail(why, 61));
            assert!(matches!(case.known.look(), Some((_, Objects::Unread(_)))));
        }
    }
}
