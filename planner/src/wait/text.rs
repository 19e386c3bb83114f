//! The parts of a reason's message that depend on its facts.

use jiff::Timestamp;
use models::names::{APPROVE_STEP_ANNOTATION, HOLD_ANNOTATION, RESUME_ANNOTATION};
use models::operator::{NOT_READY as FALLEN, UNDER_PRESSURE};
use models::plain::{is_alike, some_by};
use semver::Version;

use super::unfinished::UnfinishedEviction;
use crate::rules::Refusal;

/// The state of a node that a reason names, after its name.
const NOT_READY: &str = " (not Ready)";

/// The state of one whose slot is kept although its Node is gone.
const GONE: &str = ", whose Node was deleted and whose machine may still reboot: it is waited for until ";

/// The words for a canary step without a node in its soak.
const NONE_RUNS: &str = "no Ready node runs the version any more";

/// Returns a node that is not Ready, as reasons name it.
pub fn not_ready(node: &str) -> String {
    format!("{node}{NOT_READY}")
}

/// Returns a node whose Node is gone and whose machine is waited for, as reasons name it.
pub fn gone(node: &str, until: Timestamp) -> String {
    format!("{node}{GONE}{until:.0}")
}

/// Returns the name of a node that a reason names, without its state; `None` where its Node is gone.
pub fn node_name(named: &str) -> Option<&str> {
    (!named.contains(GONE)).then(|| named.strip_suffix(NOT_READY).unwrap_or(named))
}

/// `; <what> <time>` to the second, or nothing.
pub(super) fn at(what: &str, time: Option<Timestamp>) -> String {
    time.map_or_else(String::new, |time| format!("; {what} {time:.0}"))
}

pub(super) fn held(until: Option<Timestamp>, reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("the node carries the annotation {HOLD_ANNOTATION}{reason}{}", at("it ends at", until))
}

pub(super) fn back_off(until: Timestamp, reason: &str, unproven: Option<&Version>) -> String {
    match unproven {
        None => format!("the last attempt ended ({reason}); the next one is due at {until:.0}"),
        Some(version) => format!("it runs {version} without a proof ({reason}), and is verified again at {until:.0}"),
    }
}

pub(super) fn earlier_operator(pods: &[String], count: usize) -> String {
    let more = match count.saturating_sub(pods.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "the earlier bottlerocket-update-operator is running ({count} pod(s): {}{more}); nothing is done until the last of \
         its pods is gone: kubectl brupop takeover preflight",
        pods.join(", ")
    )
}

pub(super) fn queued(position: usize, behind: Option<&str>) -> String {
    match (position, behind) {
        (_, None) => format!("{position} node(s) come before this one"),
        (0, Some(node)) => format!("its turn comes next, after {node}"),
        (_, Some(node)) => format!("{position} node(s) come before this one, the last of them {node}"),
    }
}

pub(super) fn used_up(
    group: Option<&str>,
    node: &str,
    why: &str,
    count: usize,
    limit: usize,
    until: Option<Timestamp>,
) -> String {
    let lets = match group {
        Some(group) => format!("maxUnavailable of node group {group} lets {limit} be out of service"),
        None => format!("maxUnavailable lets {limit} be out of service in all"),
    };
    format!(
        "{count} node(s) are out of service without the operator, {node} first ({why}), and {lets}{}",
        at("they count until", until)
    )
}

pub(super) fn unhealthy(count: usize, limit: usize, nodes: &[String]) -> String {
    format!(
        "{count} node(s) are not Ready, {} first, and spec.health.before.maxUnhealthyNodes allows {limit}; repair them, or hold or \
         delete those that do not come back",
        nodes.join(", ")
    )
}

pub(super) fn group_full(group: &str, node: Option<&str>) -> String {
    let by = node.map_or_else(String::new, |node| format!(" by nodes under way, {node} first"));
    format!("the budget of node group {group} is used up{by}")
}

pub(super) fn drain_refused(why: Refusal, pod: &str, count: usize) -> String {
    let (what, field) = match why {
        Refusal::Bare => ("has no controller and would be lost", "barePods"),
        Refusal::Orphan => ("belongs to a DaemonSet that is gone, and would be lost", "barePods"),
        Refusal::EmptyDir => ("has an emptyDir and would lose what is in it", "emptyDir"),
        Refusal::Unread => {
            return format!(
                "{pod} belongs to a DaemonSet that cannot be read ({count} pod(s) like that); the controller's log has \
                 the reason, and deploy/manifests/brupop.yaml has the right that it needs"
            );
        }
    };
    // Pods of most CI systems have no controller, and end by themselves.
    let ends = if why == Refusal::Bare {
        "; to let it end first, cordon the node, with spec.drain.cordonedNodes set to Update"
    } else {
        ""
    };
    format!(
        "{pod} {what} by a drain ({count} pod(s) like that); delete or move it, or set spec.drain.{field} to Evict{ends}"
    )
}

pub(super) fn drain_blocked(pod: &str, budget: Option<&str>, message: &str) -> String {
    match budget {
        Some(budget) => {
            // The answer of the API server says no more than this.
            let eviction = if UnfinishedEviction::is_in(message) { format!(": {message}") } else { String::new() };
            format!("the PodDisruptionBudget {budget} allows no disruption of {pod}{eviction}")
        }
        None => format!("{pod} does not leave the node: {message}"),
    }
}

pub(super) fn unfinished(eviction: Option<&UnfinishedEviction>) -> String {
    eviction.map_or_else(String::new, |eviction| format!("; {eviction}"))
}

pub(super) fn never(until: Option<Timestamp>, by_reboot: bool) -> String {
    match until {
        None if by_reboot => {
            "; the reboot ends this pod, which no eviction moves to another node, as it is static or tolerates the cordon: let the budget \
             allow one disruption"
                .to_owned()
        }
        Some(until) => format!(
            "; its pods stayed when they were asked, and are asked again from {until:.0}, or once the spec of the budget changes: have the \
             workload move them, or let the budget allow one disruption"
        ),
        None => {
            "; spec.drain.guardedPods is Wait: let the budget allow one disruption, run one more pod, or set it to Ask"
                .to_owned()
        }
    }
}

pub(super) fn newest_offer(newest: Option<&Version>) -> String {
    newest.map_or_else(|| ", nor any other".to_owned(), |newest| format!("; the newest that it offers is {newest}"))
}

/// Returns the command of kubectl that requests something of the operator.
pub(crate) fn request(annotation: &str, value: &str) -> String {
    format!("kubectl annotate bruo default -n <namespace> --overwrite {annotation}={value}")
}

/// Returns the command of kubectl that resolves all failures.
pub(crate) fn resume() -> String {
    request(RESUME_ANNOTATION, "<any new value>")
}

/// Returns the command of kubectl that approves a step. What follows the `@` makes it a new value.
fn approve(name: &str) -> String {
    request(APPROVE_STEP_ANNOTATION, &format!("{name}@<any new text>"))
}

/// Returns a message without the command of `kubectl annotate` at its end and the words that introduce it. The plugin has its own command.
pub fn without_command(message: &str) -> &str {
    let Some((before, _)) = message.split_once(": kubectl annotate") else { return message };
    match before.rsplit_once(". ") {
        Some((reason, last)) if last.starts_with("To ") || last.starts_with("Once ") => reason,
        _ => before,
    }
}

/// `, <node>, <node>`, or nothing where none is known by its name.
fn named(nodes: &[String]) -> String {
    nodes.iter().map(|node| format!(", {node}")).collect()
}

/// The end of a sentence about nodes that had proven the version.
const FELL: &str = "were not Ready any more, or under pressure";

/// The end of a sentence about a node that had proven the version, and was not Ready any more or under pressure.
pub const COUNTS_AGAIN: &str = "counts again once it is in service on the version and has been Ready, without pressure, \
                                for spec.health.after.soak, three minutes at the least; with the end NotReady, an hour at \
                                the least, unless nodes without the version were not Ready as often in it";

/// Returns whether a node that a reason names with its end had proven the version: no verification makes it count again.
fn has_fallen(named: &str) -> bool {
    [FALLEN, UNDER_PRESSURE].iter().any(|end| named.ends_with(&format!("({end})")))
}

/// Returns the end of a sentence about nodes of which some had proven the version: when one of those counts again.
fn of_fallen() -> String {
    format!("; one with the end {FALLEN} or {UNDER_PRESSURE} {COUNTS_AGAIN}")
}

pub(super) fn unproven(approval: &str, nodes: &[String]) -> String {
    let verified = "Each that is back on the version and not held is verified again every hour, and at once by kubectl brupop retry NODE";
    let fallen = nodes.iter().filter(|node| has_fallen(node)).count();
    let (by, again) = match fallen {
        0 => ("have not proven the version".to_owned(), verified.to_owned()),
        all if all == nodes.len() => (format!("had proven the version and {FELL}"), format!("Each {COUNTS_AGAIN}")),
        _ => {
            (format!("have not proven the version, or had proven it and {FELL}"), format!("{verified}{}", of_fallen()))
        }
    };
    let (nodes, approve) = (named(nodes), approve(approval));
    format!("is not passed: its places are used up by nodes that {by}{nodes}. {again}. To accept them: {approve}")
}

pub(super) fn step_failed(nodes: &[String]) -> String {
    format!(
        "is not passed: its places are used up, and nodes have failed on the version{}. To free these places: {}",
        named(nodes),
        resume()
    )
}

/// The number of things that a message names.
const NAMED: usize = 4;

pub(super) fn not_usable(missing: &[String]) -> String {
    let missing = some_by(missing, NAMED, ", ", ", and ");
    format!("the node is Ready, and not as usable as before its drain: {missing}")
}

/// The words between the reason of a brake and the command that releases it.
pub(crate) const BEFORE_RESUME: &str = ". Once the cause is removed: ";

pub(super) fn braked(
    count: usize,
    fallen: usize,
    nodes: &[String],
    until: Option<Timestamp>,
    trial: Option<&str>,
) -> String {
    let ended = format!("{} update(s) have ended without a proof", count.saturating_sub(fallen));
    let fell = format!("{fallen} node(s) had proven the version and {FELL}");
    let cause = match fallen {
        0 => ended,
        all if all == count => fell,
        _ => format!("{ended}, and {fell}"),
    };
    let next = match (trial, until) {
        (Some(node), _) => format!("{node} is tried alone"),
        (None, Some(until)) => format!("one node is tried from {until:.0} on, once those under way are finished"),
        (None, None) => {
            "no node is tried while one of them runs the version without a proof, is not back from its reboot, or is gone \
             after its permit; where all of those are gone, only a resume lifts the brake, or approve --unproven where a \
             canary step waits"
                .to_owned()
        }
    };
    format!(
        "the rollout is braked: {cause}{}{}; {next}{BEFORE_RESUME}{}",
        named(nodes),
        if fallen > 0 { of_fallen() } else { String::new() },
        resume()
    )
}

pub(super) fn first_node(node: Option<&str>, not_back: Option<&str>) -> String {
    let next = match (node, not_back) {
        (None, Some(node)) => format!(
            "{node} has not rebooted by its permit in time; the next one goes once it is certain that it does not reboot any more, after \
             spec.deadlines.return at the latest"
        ),
        (node, _) => format!("it comes after {} has proven the version", node.unwrap_or("another node")),
    };
    format!("the first node of a rollout goes alone: {next}")
}

/// Names the nodes that have proven a version without pods of workloads, for the user who is to approve it, or says that none runs it; nothing
/// without any.
pub fn alone(nodes: &[String], none_runs: bool) -> String {
    if none_runs {
        return format!(" ({NONE_RUNS})");
    }
    if nodes.is_empty() {
        return String::new();
    }
    format!(" (no pods of workloads were scheduled to {} while they were verified)", nodes.join(", "))
}

pub(super) fn canary(until: Option<Timestamp>, approval: Option<&str>, nodes: &[String], none_runs: bool) -> String {
    if let Some(name) = approval {
        return format!("waits for approval{}: {}", alone(nodes, none_runs), approve(name));
    }
    if !nodes.is_empty() {
        return format!("is not passed; it waits for {}", nodes.join(", "));
    }
    let none_runs = if none_runs { format!(", and {NONE_RUNS}") } else { String::new() };
    format!("is not passed{}{none_runs}", at("its soak ends at", until))
}

/// Returns whether two causes for which an expression has no result are the same, except for numbers in the words of another party. The part
/// before them names the server with the code of its answer, or the kind of objects with its version: numbers count there.
pub(super) fn is_same_cause(one: &str, other: &str) -> bool {
    let parts = [one, other].map(|cause| cause.split_once(": ").unwrap_or(("", cause)));
    let [(about, words), (other_about, other_words)] = parts;
    about == other_about && is_alike(words, other_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_say_what_makes_nodes_without_a_proof_count() {
        let verified = "Each that is back on the version and not held is verified again every hour";
        let back = "counts again once it is in service on the version and has been Ready, without pressure, for spec.health.after.soak";
        let (never, fell) =
            ("nodes that have not proven the version", "had proven the version and were not Ready any more");
        for (nodes, fallen, expected, cause) in [
            (vec![], 0, [true, false, true, false], "braked: 3 update(s) have ended without a proof; "),
            (
                vec!["a (HookTimedOut)"],
                0,
                [true, false, true, false],
                "braked: 3 update(s) have ended without a proof, a (HookTimedOut); ",
            ),
            (
                vec!["a (NotReady)"],
                3,
                [false, true, false, true],
                "braked: 3 node(s) had proven the version and were not Ready any more, or under pressure, a (NotReady); ",
            ),
            (vec!["a (NodePressure)"], 3, [false, true, false, true], "braked: 3 node(s) had proven the version"),
            (
                vec!["a (HookTimedOut)", "b (NotReady)"],
                1,
                [true, true, true, false],
                "braked: 2 update(s) have ended without a proof, and 1 node(s) had proven the version and were not Ready",
            ),
            (vec!["a (HookTimedOut)"], 1, [true, false, true, false], "and 1 node(s) had proven the version"),
        ] {
            let nodes: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
            let text = unproven("7/1/unproven", &nodes);
            assert_eq!([verified, back, never, fell].map(|words| text.contains(words)), expected, "{text}");
            let text = braked(3, fallen, &nodes, None, None);
            assert!(text.contains(cause), "{text}");
            assert_eq!(text.contains(back), fallen > 0, "{text}");
        }
    }
}
