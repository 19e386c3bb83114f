//! A set of label values of bounded size.

use std::collections::BTreeSet;

/// Maximum number of distinct values.
pub(super) const LIMIT: usize = 32;

/// Label of all other values.
pub(super) const OTHER: &str = "other";

/// The first values that came. Later ones are distinguished only once there is room again.
pub(super) struct Bounded<T>(BTreeSet<T>);

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord + Clone> Bounded<T> {
    /// Returns the label for a value: its own, or the common one if there is no room.
    pub(super) fn admit(&mut self, value: &T, label: impl FnOnce(&T) -> String) -> String {
        if !self.0.contains(value) {
            if self.0.len() >= LIMIT {
                return OTHER.to_owned();
            }
            self.0.insert(value.clone());
        }
        label(value)
    }

    /// Makes room: removes the values that are no longer present.
    pub(super) fn retain(&mut self, present: impl FnMut(&T) -> bool) {
        self.0.retain(present);
    }
}
