//! Nodes whose hosts were asked to reboot: the time after which no reboot of the earlier operator is to be expected.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// A node as its kubelet reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) ready: bool,
    pub(super) boot_id: String,
    /// Time of the last renewal of its Lease, as text: only a change of it counts, not the clock that wrote it.
    pub(super) renewed: String,
}

/// Returns the nodes that are not settled, each with the reason. A node is settled once it is Ready, has renewed its
/// Lease, and has either been in one boot for `quiet` or rebooted. One that no longer exists is not among them. `first` has the first
/// report of each, and when it was seen.
pub(super) fn unsettled(
    first: &mut BTreeMap<String, (Report, Timestamp)>,
    nodes: &BTreeMap<String, Report>,
    now: Timestamp,
    quiet: SignedDuration,
) -> Vec<String> {
    let mut waiting = Vec::new();
    for (name, report) in nodes {
        let (seen, at) = first.entry(name.clone()).or_insert_with(|| (report.clone(), now));
        let rebooted = seen.boot_id != report.boot_id;
        if !report.ready {
            waiting.push(format!("{name} is not Ready"));
        } else if seen.renewed == report.renewed {
            waiting.push(format!("the kubelet of {name} has not renewed its Lease"));
        } else if !rebooted && now.duration_since(*at) < quiet {
            waiting.push(format!("{name} may still reboot"));
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_settled_after_a_reboot_or_a_quiet_time_and_only_with_a_live_kubelet() {
        let t = |second| Timestamp::from_second(second).unwrap();
        let report =
            |ready, boot: &str, renewed: &str| Report { ready, boot_id: boot.to_owned(), renewed: renewed.to_owned() };
        let quiet = SignedDuration::from_secs(100);
        for (sentence, later, second, expected) in [
            ("a quiet node", report(true, "b1", "2"), 100, None),
            ("a node observed for too short a time", report(true, "b1", "2"), 99, Some("may still reboot")),
            ("a rebooted node", report(true, "b2", "2"), 1, None),
            ("a rebooted node without a new Lease", report(true, "b2", "1"), 1, Some("Lease")),
            ("a node that goes down", report(false, "b1", "2"), 500, Some("not Ready")),
            ("a dead node that is not marked yet", report(true, "b1", "1"), 500, Some("Lease")),
        ] {
            let mut first = BTreeMap::new();
            let one = |report| BTreeMap::from([("a".to_owned(), report)]);
            assert_eq!(unsettled(&mut first, &one(report(true, "b1", "1")), t(0), quiet).len(), 1);
            let waiting = unsettled(&mut first, &one(later), t(second), quiet);
            match expected {
                Some(words) => assert!(waiting.len() == 1 && waiting[0].contains(words), "{sentence}: {waiting:?}"),
                None => assert!(waiting.is_empty(), "{sentence}: {waiting:?}"),
            }
            assert!(unsettled(&mut first, &BTreeMap::new(), t(1), quiet).is_empty(), "a deleted node");
        }
    }
}
