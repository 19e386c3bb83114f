//! Digests of objects: two states with equal digests have the same future.
//!
//! Times count by their distance from now, and versions of objects by whether they are the newest ones. Texts for users and the
//! times of conditions decide nothing, and are left out.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use jiff::Timestamp;
use serde::Serialize;

/// Fields that decide nothing.
const LEFT_OUT: [&str; 3] = ["message", "lastTransitionTime", "lastRefresh"];

/// The age in seconds beyond which a time is like any earlier one: a day, longer than all spans of the policies here.
const OLD: i64 = 24 * 3600;

/// The digest of a value: what does not depend on the time, and its times.
#[derive(Clone, Debug, Default)]
pub(super) struct Digest {
    rest: u64,
    times: Vec<i64>,
}

impl Digest {
    pub(super) fn of(make: impl FnOnce(&mut Digester)) -> Self {
        let mut digester = Digester { hasher: DefaultHasher::new(), times: Vec::new() };
        make(&mut digester);
        Self { rest: digester.hasher.finish(), times: digester.times }
    }

    /// Adds it to the digest of a state at this time.
    pub(super) fn add_to(&self, hasher: &mut impl std::hash::Hasher, now: Timestamp) {
        self.rest.hash(hasher);
        for time in &self.times {
            (now.as_second() - time).clamp(-OLD, OLD).hash(hasher);
        }
    }
}

/// Adds the parts of a value.
pub(super) struct Digester {
    hasher: DefaultHasher,
    times: Vec<i64>,
}

impl Digester {
    pub(super) fn add(&mut self, part: impl Hash) {
        part.hash(&mut self.hasher);
    }

    pub(super) fn time(&mut self, time: Option<Timestamp>) {
        time.is_some().hash(&mut self.hasher);
        self.times.extend(time.map(Timestamp::as_second));
    }

    /// Adds a value as JSON, its times apart.
    pub(super) fn json(&mut self, value: &impl Serialize) {
        let text = serde_json::to_string(value).unwrap();
        let mut rest = text.as_bytes();
        let mut left_out = false;
        while let Some((first, after)) = rest.split_first() {
            if *first != b'"' {
                self.hasher.write_u8(*first);
                rest = after;
                continue;
            }
            let end = end_of_string(after);
            let (string, after) = (&after[..end], &after[end + 1..]);
            rest = after;
            let word = std::str::from_utf8(string).unwrap();
            if after.first() == Some(&b':') {
                left_out = LEFT_OUT.contains(&word);
                self.hasher.write(string);
                continue;
            }
            if std::mem::take(&mut left_out) {
                continue;
            }
            match moment(word) {
                Some(time) => self.times.push(time.as_second()),
                None => self.hasher.write(string),
            }
        }
        self.hasher.write_u8(0xff);
    }
}

/// Returns the index of the quote that ends a string.
fn end_of_string(text: &[u8]) -> usize {
    let mut index = 0;
    while text[index] != b'"' {
        index += if text[index] == b'\\' { 2 } else { 1 };
    }
    index
}

fn moment(word: &str) -> Option<Timestamp> {
    let is_long = word.len() >= 20 && word.as_bytes()[4] == b'-' && word.ends_with('Z');
    if is_long { word.parse().ok() } else { None }
}
