//! A broken property, as the checks name it.

/// A broken property, and the description of the problem.
pub(super) type Broken = (&'static str, String);

pub(super) fn broken(property: &'static str, text: impl Into<String>) -> Option<Broken> {
    Some((property, text.into()))
}
