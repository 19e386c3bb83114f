//! Reasons for which attempts fail: one enum for the agent's report, the controller's record, Events and metrics.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Object that a failed attempt is counted against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Nothing: the attempt was ended from outside, so the node does not back off and the version keeps its budget.
    Nothing,
    /// The node backs off; others continue.
    Node,
    /// The version is to blame: counted once per node against its budget, and a spent budget freezes the rollout.
    Version,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident => $class:ident,)+) => {
        /// Reason of a failed attempt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum FailureReason {
            $($(#[doc = $doc])+ $name,)+
            /// A reason of a newer version of the operator.
            #[serde(other)]
            Unknown,
        }

        impl FailureReason {
            /// All reasons that this version gives.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Reason as one fixed word, as in resources, Events and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                    Self::Unknown => "Unknown",
                }
            }

            /// Object that it is counted against.
            pub const fn class(self) -> FailureClass {
                match self {
                    $(Self::$name => FailureClass::$class,)+
                    Self::Unknown => FailureClass::Node,
                }
            }
        }
    };
}

reasons! {
    /// The host could not refresh its list of updates.
    RefreshFailed => Node,
    /// The host does not offer the target version.
    VersionNotOffered => Node,
    /// The host failed to download or write the image.
    PrepareFailed => Node,
    /// The host wrote another version than the target, or wrote nothing.
    WrongImageStaged => Node,
    /// The host failed to arm the image.
    ActivateFailed => Node,
    /// The host failed to disarm the image.
    DeactivateFailed => Node,
    /// The host refused to reboot.
    RebootRefused => Node,
    /// The desired state is the reboot, but nothing, or another image, is staged.
    NotStaged => Node,
    /// Another client armed an image on the host.
    HostArmedByOther => Node,
    /// Another client of the host's API disarmed the image after the agent had armed it.
    DisarmedByOther => Node,
    /// The host booted the armed image and fell back to the old one.
    BootFellBack => Version,
    /// The host was rebooted by a client or something else in the middle of the attempt.
    RebootedByOther => Node,
    /// The host came back with neither the old nor the wanted version.
    BootedOtherVersion => Node,
    /// Staging took longer than policy allows.
    StageTimedOut => Node,
    /// The drain took longer than policy allows.
    DrainTimedOut => Node,
    /// A pod may not be evicted and policy requires to leave it alone.
    DrainRefused => Node,
    /// Pods came back to the cordoned node.
    PodsReturn => Node,
    /// A client uncordoned the node in mid-drain, again and again.
    Uncordoned => Node,
    /// A hook did not answer in time.
    HookTimedOut => Node,
    /// A hook refused.
    HookRefused => Node,
    /// A check that the node had passed before its hooks were asked refuses its drain since.
    GateRefused => Nothing,
    /// The agent did not answer in time.
    AgentSilent => Node,
    /// The node did not reboot in time.
    RebootTimedOut => Node,
    /// The node came back on the new version but did not become Ready in time.
    NotReadyAfterBoot => Version,
    /// The node did not stay healthy for the soak.
    SoakFailed => Version,
    /// The health of the node after its update could not be determined in time.
    HealthUnknown => Node,
    /// Updates were disabled, or the operator's resource is gone.
    Disabled => Nothing,
    /// The host runs the wanted version already, put there by another client.
    UpdatedByOther => Nothing,
    /// The record of the attempt was lost; the desired state is withdrawn to be safe.
    ProgressLost => Nothing,
    /// A client holds the node.
    Held => Nothing,
    /// A user requested the end of the attempt.
    ReleaseRequested => Nothing,
    /// The policy names another version now.
    PolicyChanged => Nothing,
    /// The host no longer offers the version, or policy takes a newer one that it offers, before the node was drained.
    Superseded => Nothing,
    /// The host's version lock was set by another client, and does not let the wanted version in.
    LockedByOther => Node,
    /// The host refused a change of its settings.
    SettingsFailed => Node,
    /// The node is being deleted.
    NodeDeleted => Nothing,
    /// The version has been quarantined.
    Quarantined => Nothing,
    /// The node no longer carries the label that places it under the operator.
    LabelRemoved => Nothing,
    /// The agent, or the web API, is of an earlier version that does not know drills.
    UnsupportedState => Nothing,
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_reason_counts_against_version_node_or_nothing() {
        let of = |class| {
            FailureReason::ALL.iter().filter(move |reason| reason.class() == class).map(|reason| reason.as_str())
        };
        let version = ["BootFellBack", "NotReadyAfterBoot", "SoakFailed"];
        assert_eq!(of(FailureClass::Version).collect::<Vec<_>>(), version);
        let node = [
            "RefreshFailed",
            "VersionNotOffered",
            "PrepareFailed",
            "WrongImageStaged",
            "ActivateFailed",
            "DeactivateFailed",
            "RebootRefused",
            "NotStaged",
            "HostArmedByOther",
            "DisarmedByOther",
            "RebootedByOther",
            "BootedOtherVersion",
            "StageTimedOut",
            "DrainTimedOut",
            "DrainRefused",
            "PodsReturn",
            "Uncordoned",
            "HookTimedOut",
            "HookRefused",
            "AgentSilent",
            "RebootTimedOut",
            "HealthUnknown",
            "LockedByOther",
            "SettingsFailed",
        ];
        assert_eq!(of(FailureClass::Node).collect::<Vec<_>>(), node);
        let nothing = [
            "GateRefused",
            "Disabled",
            "UpdatedByOther",
            "ProgressLost",
            "Held",
            "ReleaseRequested",
            "PolicyChanged",
            "Superseded",
            "NodeDeleted",
            "Quarantined",
            "LabelRemoved",
            "UnsupportedState",
        ];
        assert_eq!(of(FailureClass::Nothing).collect::<Vec<_>>(), nothing);
        assert_eq!(FailureReason::Unknown.class(), FailureClass::Node);
    }

    #[test]
    fn failure_reasons_serialize_as_displayed_and_unknown_ones_deserialize() {
        for reason in FailureReason::ALL {
            assert_eq!(serde_json::to_string(reason).unwrap(), format!("\"{reason}\""));
        }
        let newer: FailureReason = serde_json::from_str("\"EatenByMoths\"").unwrap();
        assert_eq!(newer, FailureReason::Unknown);
    }
}
