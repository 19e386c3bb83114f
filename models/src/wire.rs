//! The web API between an agent and the cluster, version 1.
//!
//! Both sides ignore fields that they do not know, so that versions N and N±1 understand each other.

use std::fmt;
use std::str::FromStr;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::shadow::BottlerocketShadowSpec;

pub use crate::shadow::AgentStatus;

/// Maximum length of the version in [`PROCESS_HEADER`]: it becomes a label of metrics.
const LONGEST_VERSION: usize = 32;

/// Media type of the stream of `GET /v1/nodes/{node}/shadow/watch`.
pub const NDJSON: &str = "application/x-ndjson";
/// Media type of errors (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Identity of a shadow, and the version of its desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShadowMetadata {
    /// The shadow's uid. The agent's memory of an attempt is keyed by it.
    pub uid: String,
    /// Rises with each change of `spec`; the agent acknowledges it as `observedGeneration`.
    pub generation: i64,
    /// State of the shadow, by its resourceVersion. The agent sends the newest one back when it opens its
    /// next stream, so that a replica that is behind does not show it the past. It is no part of the etag.
    pub resource_version: String,
}

/// A shadow as its agent sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShadowView {
    /// Identity and generation.
    pub metadata: ShadowMetadata,
    /// Digest of uid, generation and the agent status; sent back as `If-Match` with a status.
    pub etag: String,
    /// Desired state.
    pub spec: BottlerocketShadowSpec,
    /// Last report of this agent, or of its predecessor.
    #[serde(default)]
    pub status: AgentStatus,
}

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum WatchLine {
    /// The shadow as it is now.
    Shadow {
        /// It.
        object: Box<ShadowView>,
    },
    /// The node has no shadow (yet, or any more): nothing is requested of the host.
    Absent,
    /// The stream is alive.
    Heartbeat,
    /// A line of a newer server.
    #[serde(other)]
    Unknown,
}

/// Name of the header in which an agent describes its process when it opens a stream.
pub const PROCESS_HEADER: &str = "brupop-agent";

/// An agent's process, for the metrics of the web API: agents serve no port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProcess {
    /// Version of the program.
    pub version: Version,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Time of its start, in seconds since 1970.
    pub started: u64,
}

impl fmt::Display for AgentProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, resident, started } = self;
        write!(f, "version={version} resident={resident} started={started}")
    }
}

impl FromStr for AgentProcess {
    type Err = ();

    /// Reads what another version may have written: further words are ignored.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let number = |name| word(name).and_then(|text| text.parse().ok()).ok_or(());
        let version = word("version").filter(|text| text.len() <= LONGEST_VERSION).ok_or(())?;
        Ok(Self { version: version.parse().map_err(drop)?, resident: number("resident")?, started: number("started")? })
    }
}

/// An error of the web API (RFC 9457). `detail` is for a user; nothing in it helps an attacker.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
pub struct Problem {
    /// Kind of the problem, as a fixed word in a URN.
    #[serde(rename = "type")]
    pub type_: String,
    /// The kind for a user.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Next step for the client.
    pub detail: Option<String>,
}
