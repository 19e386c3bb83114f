//! The rows of `table.txt`.

use std::sync::LazyLock;

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
/// The first of them, as the table names them.
const NAMES: [&str; 7] = ["under-way", "reboot", "armed", "cordon", "other-cordon", "balancer", "marks"];
pub(super) const REBOOT: &str = LISTS[1];
pub(super) const ARMED: &str = LISTS[2];
/// Lists of what is left on nodes after the swap.
pub(super) const LEFT: [&str; 3] = [LISTS[3], LISTS[4], LISTS[5]];

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
    /// Time of the last failure; empty if there was none.
    pub(super) failed: &'static str,
    pub(super) on: Vec<On>,
    /// The lists that name the node.
    pub(super) listed: Vec<&'static str>,
    /// Failures on the record of the new shadow, and whether there is a back-off.
    pub(super) carried: (i64, bool),
}

pub(super) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = include_str!("table.txt").lines();
    lines.filter(|line| !line.starts_with('#')).map(row).collect()
});

fn row(line: &'static str) -> Row {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [node, stored, wanted, reported, failed, on, listed, carried, sentence] = cells[..] else {
        unreachable!("{line}")
    };
    let (crashes, failed) = failed.split_once(' ').unwrap_or(("0", ""));
    let (failures, waits) = carried.strip_suffix(" waits").map_or((carried, false), |failures| (failures, true));
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| unreachable!("{line}"));
    let list = |name: &str| NAMES.iter().position(|known| *known == name).unwrap_or_else(|| unreachable!("{line}"));
    let what = |word: &str| match word {
        "cordon" => On::Cordon,
        "kubectl-cordon" => On::KubectlCordon,
        "balancer" => On::Balancer,
        "marks" => On::Marks,
        "not-ready" => On::NotReady,
        _ => On::SecondShadow(number(word.trim_start_matches("another-shadow:"))),
    };
    Row {
        sentence,
        node,
        stored,
        wanted,
        reported,
        crashes: number(crashes),
        failed,
        on: on.split_whitespace().map(what).collect(),
        listed: listed.split_whitespace().map(|name| LISTS[list(name)]).collect(),
        carried: (if failures.is_empty() { 0 } else { number(failures).into() }, waits),
    }
}
