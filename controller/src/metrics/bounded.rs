//! A set of label values that does not grow without end.

use std::collections::BTreeSet;

/// How many values are told apart.
pub(super) const LIMIT: usize = 32;

/// What all others are called.
pub(super) const OTHER: &str = "other";

/// The first values that came. Later ones are told apart only once there is room again.
pub(super) struct Bounded<T>(BTreeSet<T>);

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord + Clone> Bounded<T> {
    /// The label for a value: its own, or the common one of those that came too late.
    pub(super) fn admit(&mut self, value: &T, label: impl FnOnce(&T) -> String) -> String {
        if !self.0.contains(value) {
            if self.0.len() >= LIMIT {
                return OTHER.to_owned();
            }
            self.0.insert(value.clone());
        }
        label(value)
    }

    /// Makes room: forgets the values that are not there any more.
    pub(super) fn retain(&mut self, present: impl FnMut(&T) -> bool) {
        self.0.retain(present);
    }
}
