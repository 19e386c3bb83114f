//! The states in which the earlier operator can be stopped: what its shadow says, what is on the node, and what has to become
//! of both.

/// Something on a node before the takeover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum On {
    /// A cordon by a client without a name, as the earlier operator's.
    Cordon,
    KubectlCordon,
    /// The balancer label by a client without a name.
    Balancer,
    /// An annotation and a label of the releases 0.1.
    Marks,
    /// A second shadow, with this number of failures.
    SecondShadow(u32),
    NotReady,
}

/// Lists of nodes in `preflight -o json`.
pub(super) const LISTS: [&str; 8] = [
    "/shadows/underWay",
    "/shadows/mayReboot",
    "/shadows/mayBeArmed",
    "/nodes/cordonsOfEarlierOperator",
    "/nodes/cordonsOfOthers",
    "/nodes/balancerLabelsOfEarlierOperator",
    "/nodes/marksOfFirstReleases",
    "/nodes/withoutShadow",
];
/// Lists of what is left on nodes after the swap.
pub(super) const LEFT: [&str; 3] = [CORDON, OTHER_CORDON, BALANCER];
const UNDER_WAY: &str = LISTS[0];
pub(super) const REBOOT: &str = LISTS[1];
pub(super) const ARMED: &str = LISTS[2];
const CORDON: &str = LISTS[3];
const OTHER_CORDON: &str = LISTS[4];
const BALANCER: &str = LISTS[5];
const MARKS: &str = LISTS[6];

/// Time of the last failure.
#[derive(Clone, Copy)]
pub(super) enum Failed {
    Never,
    AMinuteAgo,
    InAnHour,
    NoTime,
}

/// A node and its shadow of the earlier operator.
pub(super) struct Row {
    pub(super) sentence: &'static str,
    /// Name of the node.
    pub(super) node: &'static str,
    /// Version that the shadow is stored in.
    pub(super) stored: &'static str,
    /// Desired state.
    pub(super) wanted: &'static str,
    /// Reported state; empty without a status.
    pub(super) reported: &'static str,
    pub(super) crashes: u32,
    pub(super) failed: Failed,
    pub(super) on: &'static [On],
    /// The lists that name the node.
    pub(super) listed: &'static [&'static str],
    /// Failures on the record of the new shadow, and whether there is a back-off.
    pub(super) carried: (i64, bool),
}

const V2: Row = Row {
    sentence: "",
    node: "",
    stored: "v2",
    wanted: "Idle",
    reported: "Idle",
    crashes: 0,
    failed: Failed::Never,
    on: &[],
    listed: &[],
    carried: (0, false),
};
pub(super) const V1: Row = Row { stored: "v1", ..V2 };

pub(super) const ROWS: [Row; 24] = [
    Row { sentence: "never reported", node: "new", reported: "", ..V2 },
    Row { sentence: "left cordoned by a release up to 1.3", node: "idle", on: &[On::Cordon], listed: &[CORDON], ..V2 },
    Row {
        sentence: "in back-off, left cordoned",
        node: "failed",
        crashes: 3,
        failed: Failed::AMinuteAgo,
        on: &[On::Cordon],
        listed: &[ARMED, CORDON],
        carried: (3, true),
        ..V2
    },
    Row {
        sentence: "about to download",
        node: "started",
        wanted: "StagedAndPerformedUpdate",
        listed: &[UNDER_WAY, ARMED],
        ..V2
    },
    Row {
        sentence: "armed",
        node: "armed",
        wanted: "StagedAndPerformedUpdate",
        reported: "StagedAndPerformedUpdate",
        listed: &[UNDER_WAY, ARMED],
        ..V2
    },
    Row {
        sentence: "told to reboot, before its cordon",
        node: "told",
        wanted: "RebootedIntoUpdate",
        reported: "StagedAndPerformedUpdate",
        listed: &[UNDER_WAY, REBOOT, ARMED],
        ..V2
    },
    Row {
        sentence: "cordoned and drained for the reboot",
        node: "drained",
        wanted: "RebootedIntoUpdate",
        reported: "StagedAndPerformedUpdate",
        crashes: 1,
        failed: Failed::AMinuteAgo,
        on: &[On::Balancer, On::Cordon],
        listed: &[UNDER_WAY, REBOOT, ARMED, CORDON, BALANCER],
        carried: (1, true),
        ..V2
    },
    Row {
        sentence: "the same, cordoned by a user",
        node: "user",
        wanted: "RebootedIntoUpdate",
        reported: "StagedAndPerformedUpdate",
        on: &[On::KubectlCordon],
        listed: &[UNDER_WAY, REBOOT, ARMED, OTHER_CORDON],
        ..V2
    },
    Row {
        sentence: "rebooted, not yet uncordoned by a release up to 1.3",
        node: "rebooted",
        wanted: "RebootedIntoUpdate",
        reported: "RebootedIntoUpdate",
        on: &[On::Cordon, On::Balancer],
        listed: &[UNDER_WAY, CORDON, BALANCER],
        ..V2
    },
    Row {
        sentence: "uncordoned, not yet observed",
        node: "back",
        wanted: "MonitoringUpdate",
        reported: "RebootedIntoUpdate",
        listed: &[UNDER_WAY],
        ..V2
    },
    Row {
        sentence: "observed",
        node: "observed",
        wanted: "MonitoringUpdate",
        reported: "MonitoringUpdate",
        listed: &[UNDER_WAY],
        ..V2
    },
    Row { sentence: "done, not yet Idle", node: "done", reported: "MonitoringUpdate", listed: &[UNDER_WAY], ..V2 },
    Row {
        sentence: "an error in the middle of the drain",
        node: "error",
        wanted: "RebootedIntoUpdate",
        reported: "ErrorReset",
        crashes: 2,
        failed: Failed::AMinuteAgo,
        on: &[On::Balancer, On::Cordon],
        listed: &[UNDER_WAY, ARMED, CORDON, BALANCER],
        carried: (2, true),
        ..V2
    },
    Row {
        sentence: "an error whose recovery is due",
        node: "recovery",
        reported: "ErrorReset",
        crashes: 2,
        failed: Failed::AMinuteAgo,
        on: &[On::Balancer, On::Cordon],
        listed: &[UNDER_WAY, ARMED, CORDON, BALANCER],
        carried: (2, true),
        ..V2
    },
    Row {
        sentence: "0.2: downloaded, cordoned and drained",
        node: "v1-staged",
        wanted: "StagedUpdate",
        on: &[On::Cordon],
        listed: &[UNDER_WAY, CORDON],
        ..V1
    },
    Row {
        sentence: "0.2: to be armed",
        node: "v1-arming",
        wanted: "PerformedUpdate",
        reported: "StagedUpdate",
        on: &[On::Cordon],
        listed: &[UNDER_WAY, ARMED, CORDON],
        ..V1
    },
    Row {
        sentence: "0.2: told to reboot",
        node: "v1-told",
        wanted: "RebootedIntoUpdate",
        reported: "PerformedUpdate",
        on: &[On::Cordon],
        listed: &[UNDER_WAY, REBOOT, ARMED, CORDON],
        ..V1
    },
    Row {
        sentence: "0.2: rebooted, not yet uncordoned",
        node: "v1-back",
        wanted: "MonitoringUpdate",
        reported: "RebootedIntoUpdate",
        on: &[On::Cordon],
        listed: &[UNDER_WAY, CORDON],
        ..V1
    },
    Row {
        sentence: "the largest number of failures",
        node: "crashes",
        crashes: u32::MAX,
        failed: Failed::AMinuteAgo,
        listed: &[ARMED],
        carried: (10, true),
        ..V2
    },
    Row {
        sentence: "a failure at no time",
        node: "no-time",
        crashes: 2,
        failed: Failed::NoTime,
        listed: &[ARMED],
        carried: (2, false),
        ..V2
    },
    Row {
        sentence: "a failure in the future",
        node: "future",
        crashes: 2,
        failed: Failed::InAnHour,
        listed: &[ARMED],
        carried: (2, false),
        ..V2
    },
    Row {
        sentence: "two shadows in two namespaces: the one with more failures counts",
        node: "twice",
        crashes: 1,
        failed: Failed::AMinuteAgo,
        on: &[On::SecondShadow(4)],
        listed: &[ARMED],
        carried: (4, true),
        ..V2
    },
    Row { sentence: "updated by a release 0.1 before", node: "marked", on: &[On::Marks], listed: &[MARKS], ..V2 },
    Row { sentence: "down for other reasons", node: "down", on: &[On::NotReady], ..V2 },
];
