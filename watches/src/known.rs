//! Merges what a watch shows with the answers to own calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use models::resource_version::newer;

/// Maximum number of recorded deletions. An answer is behind the watch by moments, not by a thousand deletions.
const DELETIONS: usize = 1024;

/// The known objects of one kind, by key. Of two versions of an object the newer one stays, so nothing is decided on,
/// or shown, in a state that this process has already changed.
#[derive(Debug)]
pub struct Known<T> {
    version: fn(&T) -> &str,
    items: BTreeMap<String, T>,
    synced: bool,
    /// The list that is being read.
    listing: Option<BTreeMap<String, T>>,
    /// Keys of the items that come from an answer since that list began: it may be older than they are.
    answered: BTreeSet<String>,
    /// Keys and versions of the last deletions: an answer may arrive after the watch has reported the object's end, and
    /// must not bring it back.
    deleted: VecDeque<(String, String)>,
}

impl<T> Known<T> {
    /// Returns an empty one, for items whose resource version `version` returns.
    pub fn new(version: fn(&T) -> &str) -> Self {
        let (items, answered, deleted) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Self { version, items, synced: false, listing: None, answered, deleted }
    }

    /// Returns all items.
    pub fn items(&self) -> &BTreeMap<String, T> {
        &self.items
    }

    /// Returns true if the first list is complete.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Records the begin of a list. The known items stay until its end.
    pub fn begin_list(&mut self) {
        self.listing = Some(BTreeMap::new());
        self.answered.clear();
    }

    /// Records an object of the list.
    pub fn list(&mut self, key: String, item: T) {
        self.listing.get_or_insert_default().insert(key, item);
    }

    /// Records the end of the list. It is consistent, so that it is right where it is older than what was known: the
    /// cluster was restored. Only an answer since its begin may be newer.
    pub fn end_list(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        let mut before = std::mem::replace(&mut self.items, listed);
        for key in std::mem::take(&mut self.answered) {
            if let Some(listed) = self.items.get_mut(&key)
                && let Some(known) = before.remove(&key)
                && newer((self.version)(&known), (self.version)(listed))
            {
                *listed = known;
            }
        }
        // What exists again is protected by its version, which may be lower than before.
        self.deleted.retain(|(key, _)| !self.items.contains_key(key));
        self.synced = true;
    }

    /// Records an object of the watch, unless what is known is as new. Returns true if that changes something by
    /// `matters`, which gets the new and the old item.
    pub fn observe(&mut self, key: String, item: T, matters: impl Fn(&T, &T) -> bool) -> bool {
        self.put(key, item, matters).unwrap_or(false)
    }

    /// Records an object that an own call returned; returns the same.
    pub fn answer(&mut self, key: &str, item: T, matters: impl Fn(&T, &T) -> bool) -> bool {
        let version = (self.version)(&item);
        if self.deleted.iter().any(|(deleted, end)| deleted == key && !newer(version, end)) {
            return false;
        }
        let Some(change) = self.put(key.to_owned(), item, matters) else { return false };
        self.answered.insert(key.to_owned());
        change
    }

    fn put(&mut self, key: String, item: T, matters: impl Fn(&T, &T) -> bool) -> Option<bool> {
        let change = match self.items.get(&key) {
            Some(old) if !newer((self.version)(&item), (self.version)(old)) => return None,
            Some(old) => matters(&item, old),
            None => true,
        };
        self.items.insert(key, item);
        Some(change)
    }

    /// Records a deletion of the watch. Returns true if the object was known; a successor of the same name, which an
    /// answer may have shown already, stays.
    pub fn delete(&mut self, key: &str, version: &str) -> bool {
        self.deleted.push_back((key.to_owned(), version.to_owned()));
        if self.deleted.len() > DELETIONS {
            self.deleted.pop_front();
        }
        self.items.get(key).is_some_and(|item| !newer((self.version)(item), version)) && self.forget(key)
    }

    /// Removes an object that this process has deleted. Returns true if it was known.
    pub fn forget(&mut self, key: &str) -> bool {
        self.items.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Step {
        Begin,
        Listed(&'static str),
        End,
        Watched(&'static str),
        Answered(&'static str),
        Deleted(&'static str),
    }
    use Step::{Answered, Begin, Deleted, End, Listed, Watched};

    #[test]
    fn newer_version_is_kept_and_deleted_object_stays_deleted() {
        let known = |steps: &[Step]| {
            let mut known = Known::<&str>::new(|version| version);
            for step in steps {
                match step {
                    Begin => known.begin_list(),
                    Listed(version) => known.list("a".into(), version),
                    End => known.end_list(),
                    Watched(version) => _ = known.observe("a".into(), version, PartialEq::ne),
                    Answered(version) => _ = known.answer("a", version, PartialEq::ne),
                    Deleted(version) => _ = known.delete("a", version),
                }
            }
            known.items().get("a").copied()
        };
        for (sentence, steps, expected) in [
            ("listed", vec![Begin, Listed("5"), End], Some("5")),
            ("while the list is read", vec![Begin, Listed("5")], None),
            ("missing from a new list", vec![Watched("5"), Begin, End], None),
            ("kept while a new list is read", vec![Watched("5"), Begin], Some("5")),
            ("watched", vec![Watched("9"), Watched("10")], Some("10")),
            ("an older event after an answer", vec![Watched("5"), Answered("9"), Watched("7")], Some("9")),
            ("a newer event after an answer", vec![Watched("5"), Answered("9"), Watched("10")], Some("10")),
            ("an older answer", vec![Watched("9"), Answered("7")], Some("9")),
            ("an answer before the watch", vec![Answered("7")], Some("7")),
            ("deleted", vec![Watched("5"), Deleted("6")], None),
            ("an answer after the deletion", vec![Watched("6"), Deleted("7"), Answered("6")], None),
            ("a successor", vec![Watched("6"), Deleted("7"), Answered("8")], Some("8")),
            ("a successor before the deletion", vec![Watched("6"), Answered("8"), Deleted("7")], Some("8")),
            (
                "an older list than an answer since",
                vec![Watched("5"), Begin, Listed("5"), Answered("9"), End],
                Some("9"),
            ),
            ("a newer list", vec![Watched("5"), Begin, Answered("9"), Listed("10"), End], Some("10")),
            ("a restored cluster", vec![Watched("50"), Begin, Listed("20"), End], Some("20")),
            ("answered before the restore", vec![Answered("50"), Begin, Listed("20"), End], Some("20")),
            ("deleted before the restore", vec![Deleted("50"), Begin, Listed("20"), End, Answered("21")], Some("21")),
            ("an answer from before", vec![Deleted("7"), Begin, Listed("8"), End, Answered("6")], Some("8")),
            ("a late answer behind a list", vec![Watched("6"), Deleted("7"), Begin, End, Answered("6")], None),
            ("restored during an answer", vec![Watched("50"), Begin, Answered("21"), Listed("20"), End], Some("20")),
        ] {
            assert_eq!(known(&steps), expected, "{sentence}");
        }
    }

    #[test]
    fn only_relevant_changes_are_reported() {
        let mut known = Known::<(&str, &str)>::new(|item| item.0);
        let other = |new: &(&str, &str), old: &(&str, &str)| new.1 != old.1;
        assert!(!known.synced());
        assert!(known.observe("a".into(), ("1", "x"), other), "new");
        assert!(!known.observe("a".into(), ("2", "x"), other), "another version");
        assert!(known.answer("a", ("3", "y"), other), "another content");
        assert!(!known.observe("a".into(), ("2", "z"), other), "older");
        assert!(known.delete("a", "4") && !known.delete("a", "4") && !known.forget("a"));
    }
}
