//! A stand-in for what the next version adds: a field in each part of a shadow, a line of the stream, and a step of an update
//! with an order of its own. Built only for the tests in which two versions work side by side.

use serde::{Deserialize, Serialize};

/// A field that this version does not have. Any client that writes one sets it; one that was not written says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Novelty(#[cfg_attr(feature = "crd", schemars(length(max = 64)))] pub Option<String>);

impl Default for Novelty {
    fn default() -> Self {
        Self(Some("next".to_owned()))
    }
}

impl Novelty {
    /// Value that is read where nothing was written.
    pub fn absent() -> Self {
        Self(None)
    }

    /// Returns true if it is the default.
    pub fn is_absent(&self) -> bool {
        self.0.is_none()
    }
}
