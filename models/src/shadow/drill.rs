//! Drills: rehearsals of an update on a node, which arm nothing and reboot nothing.

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::attempt::Blocker;
#[cfg(feature = "crd")]
use super::attempt::MOST_ATTEMPTS;
#[cfg(feature = "crd")]
use crate::schema::{JsonSchema, Moment, VersionText};

/// The most pods that a drill names as refused.
pub const MOST_REFUSED: usize = 32;

/// Word in the value of a request for a drill: the pods are evicted, and not only asked about.
pub const EVICT: &str = "evict";

/// Word in the value of a request for a drill: the image of the update is downloaded first.
pub const DOWNLOAD: &str = "download";

/// Kind of an attempt. All pass the same steps, as far as they have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The node is to run another version.
    Update,
    /// An update is rehearsed: nothing is armed, and nothing reboots.
    Drill {
        /// True if the pods are evicted; otherwise the API server is only asked whether they may be.
        evict: bool,
        /// True if the image is downloaded first.
        download: bool,
    },
    /// A node that runs its version without a proof is verified again, in service.
    Verification,
}

impl Mode {
    /// Returns whether it is a drill.
    pub const fn is_drill(self) -> bool {
        matches!(self, Self::Drill { .. })
    }

    /// Returns whether it is the repeated verification of a node.
    pub const fn is_verification(self) -> bool {
        matches!(self, Self::Verification)
    }

    /// Returns whether an image is downloaded.
    pub const fn downloads(self) -> bool {
        matches!(self, Self::Update | Self::Drill { download: true, .. })
    }

    /// Returns whether it is a drill that evicts no pod.
    pub const fn is_dry(self) -> bool {
        matches!(self, Self::Drill { evict: false, .. })
    }
}

/// A drill under way, as it was requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Drill {
    /// Value of the annotation that requested it.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub request: String,
    /// True if the pods are evicted; otherwise the API server is only asked whether they may be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evict: bool,
    /// True if the image is downloaded first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub download: bool,
    /// Pods whose eviction was refused, the first 32; known once all pods have been asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = MOST_REFUSED), extend("x-kubernetes-list-type" = "atomic")))]
    pub refused: Vec<Blocker>,
}

impl Drill {
    /// Returns the drill that a request asks for. Its value is any text that no request had before; `evict` and `download`
    /// among its words, separated by blanks or commas, are options. A misspelt option is none, so that it moves no pod.
    ///
    /// ```
    /// let drill = models::shadow::Drill::of("2026-11-25 evict");
    /// assert!(drill.evict && !drill.download);
    /// ```
    pub fn of(request: &str) -> Self {
        let has = |option: &str| request.split([' ', ',']).any(|word| word == option);
        Self { request: request.to_owned(), evict: has(EVICT), download: has(DOWNLOAD), refused: Vec::new() }
    }

    /// The mode of its attempt.
    pub const fn mode(&self) -> Mode {
        Mode::Drill { evict: self.evict, download: self.download }
    }
}

/// Result of a drill.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrillResult {
    /// The drill.
    #[serde(flatten)]
    pub drill: Drill,
    /// Number of the attempt; absent if the request was refused before one began.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: Option<i64>,
    /// Version that it was for: the one that runs, or the one that was downloaded.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub version: Option<Version>,
    /// `Passed`, `EvictionsRefused`, the reason why the drill ended early, or the reason for which an update would wait.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub result: String,
    /// Explanation for users.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub message: String,
    /// Time at which it began.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub started: Timestamp,
    /// Time at which the node was taken out of service; absent if it was not.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_started: Option<Timestamp>,
    /// Time at which the drain or its dry run was over; absent if it did not come to that.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_ended: Option<Timestamp>,
    /// Time at which the agent had verified its rehearsal permit and the soak began; absent if it did not come to that.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub soak_started: Option<Timestamp>,
    /// Time at which it ended.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub ended: Timestamp,
    /// Number of pods that an update would have evicted, or that were.
    #[serde(default)]
    pub pods: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drill_evicts_and_downloads_only_where_its_request_says_so() {
        for (request, evict, download) in [
            ("1", false, false),
            ("kubectl-brupop 2026-11-25T09:00:00.000000000Z evict download", true, true),
            ("7,evict", true, false),
            ("download 7", false, true),
            ("evicted", false, false),
            ("Evict", false, false),
            ("no-evict", false, false),
        ] {
            let drill = Drill::of(request);
            assert_eq!((drill.evict, drill.download), (evict, download), "{request}");
            assert_eq!(drill.request, request);
        }
    }
}
