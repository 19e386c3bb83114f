//! Answers of the host, read tolerantly: a missing, new or differently typed field is never an error, so that agent and
//! host of different versions understand each other. Decisions rest only on what was understood.

use semver::Version;
use serde_json::Value;

/// The running system (`GET /os`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OsInfo {
    pub(crate) version: Version,
    /// The variant, such as `aws-k8s-1.37`.
    pub(crate) variant: String,
    /// The architecture, such as `x86_64`.
    pub(crate) arch: String,
}

impl OsInfo {
    /// Reads the answer of `GET /os`; `None` if it names no version.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Self { version: version(value.get("version_id"))?, variant: text("variant_id"), arch: text("arch") })
    }
}

/// The host's update state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpdateState {
    /// No update, as far as the host knows.
    Idle,
    /// An update is chosen.
    Available,
    /// An image is on the inactive partition set.
    Staged,
    /// That image is armed: any reboot boots it.
    Ready,
    /// A state that this agent does not know.
    Unknown(String),
}

/// A host command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    /// Check for updates.
    Refresh,
    /// Download the chosen update to the inactive partition set.
    Prepare,
    /// Arm it.
    Activate,
    /// Disarm it.
    Deactivate,
}

impl Command {
    /// Returns the name in the host's record of its last command.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Refresh => "refresh",
            Self::Prepare => "prepare",
            Self::Activate => "activate",
            Self::Deactivate => "deactivate",
        }
    }

    /// Returns the path that starts it.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Refresh => "/actions/refresh-updates",
            Self::Prepare => "/actions/prepare-update",
            Self::Activate => "/actions/activate-update",
            Self::Deactivate => "/actions/deactivate-update",
        }
    }
}

/// The host's record of the last command that ran to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandRecord {
    /// `refresh`, `prepare`, `activate` or `deactivate`.
    pub(crate) kind: String,
    pub(crate) succeeded: bool,
    /// End time. An opaque text that only has to differ.
    pub(crate) timestamp: String,
    /// Exit code, or the signal that ended the command.
    pub(crate) exit_status: Option<i64>,
    /// The full stderr output, also on success.
    pub(crate) stderr: String,
}

impl CommandRecord {
    /// Returns true if it is a record of this command.
    pub(crate) fn is(&self, command: Command) -> bool {
        self.kind == command.name()
    }

    /// Returns the reason of a failure, for a user.
    pub(crate) fn message(&self) -> String {
        let stderr = self.stderr.trim();
        match (self.exit_status, stderr.is_empty()) {
            (_, false) => stderr.to_owned(),
            (Some(code), true) => format!("the host's {} ended with status {code} without output", self.kind),
            (None, true) => format!("the host's {} failed without output", self.kind),
        }
    }
}

/// The host's record of the inactive partition set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Staging {
    /// The version, if it is valid.
    pub(crate) version: Option<Version>,
    /// True if the next boot uses it.
    pub(crate) next_to_boot: bool,
}

/// The answer of `GET /updates/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdateStatus {
    pub(crate) state: UpdateState,
    /// All versions that the host may take, newest first, including the running and older ones.
    pub(crate) available: Vec<Version>,
    /// The version that the last refresh chose. It outlives a failed refresh, so by itself it proves nothing.
    pub(crate) chosen: Option<Version>,
    pub(crate) staging: Option<Staging>,
    pub(crate) last: Option<CommandRecord>,
}

impl UpdateStatus {
    /// Reads an answer; `None` if it is not an object with a state.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let state = match value.get("update_state")?.as_str()? {
            "Idle" => UpdateState::Idle,
            "Available" => UpdateState::Available,
            "Staged" => UpdateState::Staged,
            "Ready" => UpdateState::Ready,
            other => UpdateState::Unknown(other.to_owned()),
        };
        let available = value.get("available_updates").and_then(Value::as_array);
        let last = value.get("most_recent_command").filter(|v| v.is_object()).map(|v| {
            let text = |key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            CommandRecord {
                kind: text("cmd_type"),
                succeeded: text("cmd_status") == "Success",
                timestamp: text("timestamp"),
                exit_status: v.get("exit_status").and_then(Value::as_i64),
                stderr: text("stderr"),
            }
        });
        Some(Self {
            state,
            available: available.into_iter().flatten().filter_map(|v| version(Some(v))).collect(),
            chosen: value.get("chosen_update").and_then(|v| version(v.get("version"))),
            staging: value.get("staging_partition").filter(|v| v.is_object()).map(|v| Staging {
                version: v.get("image").and_then(|image| version(image.get("version"))),
                next_to_boot: v.get("next_to_boot").and_then(Value::as_bool).unwrap_or(false),
            }),
            last,
        })
    }

    /// Returns the end time of the last command, as the host writes it.
    pub(crate) fn timestamp(&self) -> Option<&str> {
        self.last.as_ref().map(|last| last.timestamp.as_str())
    }

    /// Returns the version recorded for the inactive partition set.
    pub(crate) fn staged_version(&self) -> Option<&Version> {
        self.staging.as_ref().and_then(|staging| staging.version.as_ref())
    }
}

/// Maximum length of a version in the shadow, and the first number that is too large for it. A version beyond them
/// would have every report rejected, so it counts as none.
const LONGEST_VERSION: usize = 64;
const TOO_LARGE: u64 = 1_000_000_000_000_000_000;

fn version(value: Option<&Value>) -> Option<Version> {
    let text = value?.as_str()?;
    let text = text.strip_prefix('v').unwrap_or(text);
    let version = Version::parse(text).ok().filter(|_| text.len() <= LONGEST_VERSION)?;
    [version.major, version.minor, version.patch].iter().all(|number| *number < TOO_LARGE).then_some(version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn real_host_responses_are_parsed() {
        let status = UpdateStatus::read(&json!({
            "update_state": "Ready", "available_updates": ["1.20.5", "1.20.0"],
            "chosen_update": {"arch": "x86_64", "version": "1.20.5", "variant": "aws-k8s-1.30"},
            "active_partition": {"image": {"arch": "x86_64", "version": "1.20.0", "variant": "aws-k8s-1.30"}, "next_to_boot": false},
            "staging_partition": {"image": {"arch": "x86_64", "version": "1.20.5", "variant": "aws-k8s-1.30"}, "next_to_boot": true},
            "most_recent_command": {"cmd_type": "activate", "cmd_status": "Success", "timestamp": "2026-11-21T01:51:32.437592839Z", "exit_status": 0, "stderr": ""}
        })).unwrap();
        assert_eq!(status.state, UpdateState::Ready);
        assert_eq!(status.available.len(), 2);
        assert_eq!(status.staged_version(), Some(&Version::new(1, 20, 5)));
        assert!(status.staging.as_ref().unwrap().next_to_boot);
        assert!(status.last.as_ref().unwrap().is(Command::Activate));
        let os =
            OsInfo::read(&json!({"arch": "x86_64", "version_id": "1.20.0", "variant_id": "aws-k8s-1.30"})).unwrap();
        assert_eq!((os.version, os.arch.as_str()), (Version::new(1, 20, 0), "x86_64"));
    }

    #[test]
    fn unexpected_host_responses_are_parsed_leniently_or_rejected() {
        for value in
            [json!(null), json!(7), json!([]), json!({}), json!({"update_state": 3}), json!({"update_state": null})]
        {
            assert_eq!(UpdateStatus::read(&value), None, "{value}");
            assert_eq!(OsInfo::read(&value), None, "{value}");
        }
        let unusual = json!({
            "update_state": "Melting", "available_updates": [1, null, "x", "1.0.0", {}], "chosen_update": [],
            "staging_partition": {"image": 5, "next_to_boot": "perhaps"}, "most_recent_command": {"cmd_type": 9, "exit_status": "no"}
        });
        let status = UpdateStatus::read(&unusual).unwrap();
        assert_eq!(status.state, UpdateState::Unknown("Melting".into()));
        assert_eq!(status.available, [Version::new(1, 0, 0)]);
        assert_eq!(status.staging, Some(Staging { version: None, next_to_boot: false }));
        assert!(!status.last.unwrap().succeeded);
    }

    #[test]
    fn version_too_long_for_report_is_ignored() {
        let read = |text: &str| version(Some(&json!(text)));
        assert_eq!(read("v1.20.5"), Some(Version::new(1, 20, 5)));
        assert_eq!(read(&format!("1.20.5-{}", "x".repeat(58))), None);
        assert_eq!(read("1.20.1000000000000000000"), None);
        assert!(read("1.20.999999999999999999").is_some());
    }
}
