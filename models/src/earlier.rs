//! The earlier operator (bottlerocket-update-operator 0.1 to 1.x) as it is found in a cluster: how its pods are
//! recognised, and what its shadows say.
//!
//! The shadows are read without validation: their fields are free text in part, and a shadow of it must never keep a
//! takeover from continuing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Default namespace of its chart, for messages: it can be installed into any.
pub const NAMESPACE: &str = "brupop-bottlerocket-aws";

/// Name of the PriorityClass of its controller, from release 0.2 on. It has no label.
pub const PRIORITY_CLASS: &str = "brupop-controller-high-priority";

/// Versions of the shadow's definition that it uses, the older one first.
pub const VERSIONS: [&str; 2] = ["v1", "v2"];

/// Name of the ValidatingAdmissionPolicy that makes [`VERSIONS`] read-only, and of its binding.
pub const READ_ONLY_POLICY: &str = "brupop-earlier-versions";

/// The most failures that are carried over from its shadows: by then the back-off of the default policy is at its longest.
pub const MOST_FAILURES: u32 = 10;

/// Label of its pods in releases from 0.2, with the values [`COMPONENTS`].
pub const COMPONENT_LABEL: &str = "brupop.bottlerocket.aws/component";
/// Values of [`COMPONENT_LABEL`].
pub const COMPONENTS: [&str; 3] = ["agent", "apiserver", "brupop-controller"];

/// Label of its pods in releases 0.1, with the values [`FIRST_RELEASES_COMPONENTS`].
pub const FIRST_RELEASES_LABEL: &str = "update-operator";
/// Values of [`FIRST_RELEASES_LABEL`].
pub const FIRST_RELEASES_COMPONENTS: [&str; 2] = ["controller", "agent"];

/// Value that it gives to [`crate::names::BALANCER_LABEL`].
pub const BALANCER_VALUE: &str = "True";

/// Field manager of all its writes: it sends neither a manager nor a `User-Agent`. Any other such client has it too.
pub const MANAGER: &str = "unknown";

/// Returns true if a pod with these labels is one of the earlier operator's, of any release.
pub fn is_pod_of(labels: &BTreeMap<String, String>) -> bool {
    let has = |label: &str, values: &[&str]| labels.get(label).is_some_and(|value| values.contains(&value.as_str()));
    has(FIRST_RELEASES_LABEL, &FIRST_RELEASES_COMPONENTS) || has(COMPONENT_LABEL, &COMPONENTS)
}

/// Returns the label selectors that match its pods between them, and perhaps others: the labels decide ([`is_pod_of`]).
pub fn pod_selectors() -> [String; 2] {
    [format!("{COMPONENT_LABEL} in ({})", COMPONENTS.join(", ")), FIRST_RELEASES_LABEL.to_owned()]
}

/// A state of a host in the words of versions v1 and v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EarlierState {
    /// No update.
    Idle,
    /// v1: downloaded; the node is cordoned and drained in this state.
    StagedUpdate,
    /// v1: armed.
    PerformedUpdate,
    /// v2: downloaded and armed.
    StagedAndPerformedUpdate,
    /// Rebooted into the update.
    RebootedIntoUpdate,
    /// Observed after the update.
    MonitoringUpdate,
    /// v2: an error, recovery is due.
    ErrorReset,
    /// Any other word.
    Other,
}

impl EarlierState {
    fn of(word: &str) -> Self {
        match word {
            "Idle" => Self::Idle,
            "StagedUpdate" => Self::StagedUpdate,
            "PerformedUpdate" => Self::PerformedUpdate,
            "StagedAndPerformedUpdate" => Self::StagedAndPerformedUpdate,
            "RebootedIntoUpdate" => Self::RebootedIntoUpdate,
            "MonitoringUpdate" => Self::MonitoringUpdate,
            "ErrorReset" => Self::ErrorReset,
            _ => Self::Other,
        }
    }
}

/// The content of one of its shadows, of v1 or v2. A field that is absent or has another type is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierShadow {
    /// Desired state; [`EarlierState::Other`] if there is none.
    pub wanted: EarlierState,
    /// Reported state; `None` without a status.
    pub reported: Option<EarlierState>,
    /// Target version of `spec`, as text.
    pub version: Option<String>,
    /// Running version, as text.
    pub current_version: Option<String>,
    /// Number of failed calls since the last success, also of calls to its own API server: it says nothing about a
    /// version. 0 in v1.
    pub crash_count: u32,
    /// Time of the last failure, if it is a time.
    pub failed_at: Option<Timestamp>,
}

impl EarlierShadow {
    /// Reads a shadow, whatever is in it.
    pub fn read(shadow: &Value) -> Self {
        let (spec, status) = (&shadow["spec"], &shadow["status"]);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let crash_count = status["crash_count"].as_u64().unwrap_or(0);
        Self {
            wanted: spec["state"].as_str().map_or(EarlierState::Other, EarlierState::of),
            reported: status["current_state"].as_str().map(EarlierState::of),
            version: text(&spec["version"]),
            current_version: text(&status["current_version"]),
            crash_count: u32::try_from(crash_count).unwrap_or(u32::MAX),
            failed_at: status["state_transition_failure_timestamp"].as_str().and_then(|time| time.parse().ok()),
        }
    }

    /// Returns true if an update was under way: the node may be cordoned or drained by the earlier operator, its host
    /// may be armed or about to reboot.
    pub fn is_under_way(&self) -> bool {
        let idle = |state| matches!(state, EarlierState::Idle | EarlierState::Other);
        !idle(self.wanted) || self.reported.is_some_and(|state| !idle(state))
    }

    /// Returns true if a reboot of the host was requested, or was about to be: it may still go down after the pods of the
    /// earlier operator are gone.
    pub fn may_reboot(&self) -> bool {
        use EarlierState::{PerformedUpdate, RebootedIntoUpdate, StagedAndPerformedUpdate};
        self.wanted == RebootedIntoUpdate
            && matches!(self.reported, Some(PerformedUpdate | StagedAndPerformedUpdate) | None)
    }

    /// Returns true if the host may be armed: it may boot the new image at any reboot.
    pub fn may_be_armed(&self) -> bool {
        use EarlierState::{ErrorReset, PerformedUpdate, RebootedIntoUpdate, StagedAndPerformedUpdate};
        matches!(self.wanted, StagedAndPerformedUpdate | PerformedUpdate)
            || (self.wanted == RebootedIntoUpdate && self.reported != Some(RebootedIntoUpdate))
            || self.reported == Some(ErrorReset)
            || (self.wanted == EarlierState::Idle && self.crash_count > 0)
    }
}

/// Returns one of its shadows as an object to be written at `version`, without uid. One that was read at v1 is converted to
/// v2 as the earlier operator's webhook does it.
pub fn at_version(shadow: &Value, version: &str) -> Value {
    let mut at = shadow.clone();
    at["apiVersion"] = format!("{}/{version}", crate::names::GROUP).into();
    if let Some(meta) = at["metadata"].as_object_mut() {
        meta.remove("uid");
    }
    if version != "v1" {
        for field in ["/spec/state", "/status/current_state"] {
            if let Some(state) = at.pointer_mut(field)
                && matches!(state.as_str(), Some("StagedUpdate" | "PerformedUpdate"))
            {
                *state = "StagedAndPerformedUpdate".into();
            }
        }
        if let Some(status) = at["status"].as_object_mut() {
            status.entry("crash_count").or_insert(0.into());
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_every_release_are_recognised_and_no_others() {
        let labels = |all: &[(&str, &str)]| all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        for (pod, expected) in [
            (labels(&[("brupop.bottlerocket.aws/component", "agent")]), true),
            (labels(&[("brupop.bottlerocket.aws/component", "brupop-controller"), ("x", "y")]), true),
            (labels(&[("update-operator", "agent")]), true),
            (labels(&[("app.kubernetes.io/name", "brupop"), ("app.kubernetes.io/component", "brupop-agent")]), false),
            (labels(&[("brupop.bottlerocket.aws/component", "exporter")]), false),
            (labels(&[("update-operator", "mine")]), false),
            (labels(&[]), false),
        ] {
            assert_eq!(is_pod_of(&pod), expected, "{pod:?}");
        }
    }

    #[test]
    fn shadow_of_v1_is_written_at_v2_as_the_conversion_of_earlier_operator_makes_it() {
        let meta = json!({"name": "brs-a", "uid": "u"});
        let of_v1 = json!({"metadata": meta, "spec": {"state": "StagedUpdate"}, "status": {"current_state": "PerformedUpdate"}});
        let state = "StagedAndPerformedUpdate";
        let at_v2 = at_version(&of_v1, "v2");
        assert_eq!(at_v2["apiVersion"], "brupop.bottlerocket.aws/v2");
        assert_eq!(at_v2["metadata"], json!({"name": "brs-a"}));
        assert_eq!(at_v2["spec"], json!({"state": state}));
        assert_eq!(at_v2["status"], json!({"current_state": state, "crash_count": 0}));
        assert_eq!(at_version(&of_v1, "v1")["spec"], of_v1["spec"]);
        let of_v2 = json!({"metadata": meta, "spec": {"state": "ErrorReset"}, "status": {"crash_count": 3}});
        assert_eq!(at_version(&of_v2, "v2")["status"], of_v2["status"]);
        assert_eq!(at_version(&json!({"metadata": meta, "status": null}), "v2")["status"], Value::Null);
    }

    #[test]
    fn shadow_is_read_whatever_is_in_it() {
        let read = EarlierShadow::read(&json!({
            "spec": {"state": "RebootedIntoUpdate", "version": "1.20.5", "state_transition_timestamp": "no time"},
            "status": {"current_state": "StagedAndPerformedUpdate", "current_version": "1.20.0",
                "target_version": "1.20.5", "crash_count": 4_294_967_295_u32,
                "state_transition_failure_timestamp": "2024-05-01T10:00:00.5+00:00"},
        }));
        assert_eq!(read.crash_count, u32::MAX);
        assert_eq!(read.failed_at, Some("2024-05-01T10:00:00.5Z".parse().unwrap()));
        assert!(read.is_under_way() && read.may_reboot() && read.may_be_armed());

        let odd = EarlierShadow::read(&json!({
            "spec": {"state": 7, "version": {}},
            "status": {"current_state": "Flying", "crash_count": 1e30, "state_transition_failure_timestamp": "monday"},
        }));
        assert_eq!((odd.wanted, odd.reported, odd.crash_count), (EarlierState::Other, Some(EarlierState::Other), 0));
        assert_eq!((odd.version.as_deref(), odd.failed_at), (None, None));
        assert!(!odd.is_under_way());
        assert_eq!(EarlierShadow::read(&Value::Null).reported, None);
    }

    /// The states in which the earlier operator can stop, with what they can leave on the host.
    #[test]
    fn possible_state_of_host_follows_from_states_of_shadow() {
        let cases = [
            // desired, reported, crashes: under way, may reboot, may be armed
            ("Idle", None, 0, (false, false, false)),
            ("Idle", Some("Idle"), 0, (false, false, false)),
            ("Idle", Some("Idle"), 3, (false, false, true)),
            ("StagedAndPerformedUpdate", Some("Idle"), 0, (true, false, true)),
            ("StagedAndPerformedUpdate", Some("StagedAndPerformedUpdate"), 0, (true, false, true)),
            ("RebootedIntoUpdate", Some("StagedAndPerformedUpdate"), 0, (true, true, true)),
            ("RebootedIntoUpdate", Some("RebootedIntoUpdate"), 0, (true, false, false)),
            ("MonitoringUpdate", Some("RebootedIntoUpdate"), 0, (true, false, false)),
            ("Idle", Some("MonitoringUpdate"), 0, (true, false, false)),
            ("MonitoringUpdate", Some("ErrorReset"), 1, (true, false, true)),
            ("Idle", Some("ErrorReset"), 1, (true, false, true)),
            ("StagedUpdate", Some("Idle"), 0, (true, false, false)),
            ("PerformedUpdate", Some("StagedUpdate"), 0, (true, false, true)),
            ("RebootedIntoUpdate", Some("PerformedUpdate"), 0, (true, true, true)),
            ("MonitoringUpdate", Some("RebootedIntoUpdate"), 0, (true, false, false)),
        ];
        for (wanted, reported, crashes, expected) in cases {
            let mut shadow = json!({"spec": {"state": wanted}});
            if let Some(reported) = reported {
                shadow["status"] = json!({"current_state": reported, "crash_count": crashes});
            }
            let shadow = EarlierShadow::read(&shadow);
            let seen = (shadow.is_under_way(), shadow.may_reboot(), shadow.may_be_armed());
            assert_eq!(seen, expected, "{wanted} {reported:?} {crashes}");
        }
    }
}
