//! `kubectl brupop pin`: the version that nodes update to, `spec.version.target`.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::ListParams;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use planner::plan::targets;
use planner::policy::{Policy, Target};
use planner::wait::Wait;
use semver::Version;
use serde_json::json;

use super::operator::{carry_out, new_errors, not_in_force, policy, status};
use super::stopped::nothing_moves;
use super::texts::some;
use crate::call::{list_in, nodes};
use crate::cluster::Cluster;
use crate::page::{print_line, warn};
use crate::write::{Decision, State, WriteOptions};

#[derive(Debug, Args)]
pub(crate) struct PinOptions {
    /// Version such as 1.20.5, all versions that begin alike such as 1.20, a range such as '>=1.20, <1.23', or latest.
    version: String,
    #[command(flatten)]
    write: WriteOptions,
}

/// Where a target leads the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moves {
    /// Nodes that update, each as `node-1 (1.20.4 to 1.20.5)`.
    up: Vec<String>,
    /// Nodes that move to an earlier version than they run.
    down: Vec<String>,
    /// Nodes that run a version of the target, and go on to no other one now.
    stay: Vec<String>,
    /// Nodes that are offered no version for the target.
    not_offered: Vec<String>,
    /// Nodes that run no version of the target, and that one is refused to, by the reason.
    refused: BTreeMap<String, Vec<String>>,
}

impl Moves {
    /// Returns where a policy leads the nodes, each with the version that it runs.
    fn of(
        target: &Target,
        targets: &BTreeMap<String, Result<Version, Wait>>,
        runs: &BTreeMap<String, Version>,
    ) -> Self {
        // Every version is one of `latest`: there, only the planner knows whether a node is up to date.
        let runs_target = |name: &str| target.pins() && runs.get(name).is_some_and(|version| target.allows(version));
        let mut moves = Self::default();
        for (name, wanted) in targets {
            let to = match wanted {
                Ok(version) | Err(Wait::Pinning { version }) => version,
                // The reason is about a later version of a range.
                Err(_) if runs_target(name) => {
                    moves.stay.push(name.clone());
                    continue;
                }
                Err(Wait::UpToDate) => {
                    moves.stay.push(name.clone());
                    continue;
                }
                Err(Wait::NotOffered { .. }) => {
                    moves.not_offered.push(name.clone());
                    continue;
                }
                Err(wait) => {
                    moves.refused.entry(wait.to_string()).or_default().push(name.clone());
                    continue;
                }
            };
            match runs.get(name) {
                Some(from) if to < from => moves.down.push(format!("{name} ({from} to {to})")),
                Some(from) if to > from => moves.up.push(format!("{name} ({from} to {to})")),
                _ => moves.stay.push(name.clone()),
            }
        }
        moves
    }

    /// Returns what a user should know before the write, as sentences.
    fn warnings(&self, version: &str) -> Vec<String> {
        let mut all = Vec::new();
        if !self.down.is_empty() {
            all.push(format!("{} node(s) move to an earlier version: {}", self.down.len(), some(&self.down)));
        }
        if !self.not_offered.is_empty() {
            let none = self.up.is_empty() && self.down.is_empty() && self.stay.is_empty() && self.refused.is_empty();
            let who = if none {
                "no node is offered a version for it".to_owned()
            } else {
                format!("{} node(s) are offered no version for it: {}", self.not_offered.len(), some(&self.not_offered))
            };
            all.push(format!("{version}: {who}; they wait until there is one"));
        }
        for (reason, nodes) in &self.refused {
            all.push(format!("{} node(s) wait, since {reason}: {}", nodes.len(), some(nodes)));
        }
        all
    }

    /// Returns the numbers, in words.
    fn summary(&self) -> String {
        let refused: usize = self.refused.values().map(Vec::len).sum();
        let parts = [
            (self.up.len(), "update"),
            (self.down.len(), "move to an earlier version"),
            (self.stay.len(), "stay as they are"),
            (self.not_offered.len() + refused, "wait"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} node(s) {what}"))
            .collect();
        if parts.is_empty() { "no node is under the operator".to_owned() } else { parts.join(", ") }
    }

    /// Returns what a dry run shows: the numbers with what keeps all nodes from moving, and each node that moves.
    fn preview(&self, stopped: &str) -> Vec<String> {
        let up = self.up.iter().map(|node| format!("updates: {node}"));
        let down = self.down.iter().map(|node| format!("moves to an earlier version: {node}"));
        std::iter::once(self.summary() + stopped).chain(up).chain(down).collect()
    }

    /// Returns the sentences to add about what keeps these nodes from moving, if any of them moves.
    fn stopped(&self, operator: &BottlerocketUpdateOperator) -> String {
        if self.up.is_empty() && self.down.is_empty() {
            return String::new();
        }
        let target = policy(operator).target;
        nothing_moves(operator, |version| target.allows(version))
    }
}

fn with_target(operator: &BottlerocketUpdateOperator, version: &str) -> BottlerocketUpdateOperator {
    let mut changed = operator.clone();
    changed.spec.version.get_or_insert_default().target = Some(version.to_owned());
    changed
}

fn decide(operator: &BottlerocketUpdateOperator, version: &str) -> anyhow::Result<Decision> {
    let changed = with_target(operator, version);
    if let Some(error) = new_errors(operator, &changed).first() {
        bail!("{}; nothing was written", error.message);
    }
    let present = operator.spec.version.as_ref().and_then(|version| version.target.as_deref()).unwrap_or("latest");
    let target = |operator| Policy::from_spec(operator).ok().map(|policy| policy.target);
    if present == version || target(&operator.spec).is_some_and(|present| Some(present) == target(&changed.spec)) {
        return Ok(Decision::Nothing(format!("the target is {present} already (spec.version.target)")));
    }
    let patch = json!({"spec": {"version": {"target": version}}});
    Ok(Decision::write(patch, format!("target changed from {present} to {version}")))
}

/// Returns where the policy of an operator's resource leads the nodes.
fn moves(
    operator: &BottlerocketUpdateOperator,
    nodes: &[Node],
    shadows: &[BottlerocketShadow],
    now: Timestamp,
) -> Moves {
    let mut cluster = Cluster::default();
    cluster.add_operator(operator);
    nodes.iter().for_each(|node| cluster.add_node(node));
    shadows.iter().for_each(|shadow| cluster.add_shadow(shadow));
    let shadows = cluster.shadows.iter();
    let runs = shadows
        .filter_map(|(name, shadow)| Some((name.clone(), shadow.status.agent.current_version.clone()?)))
        .collect();
    let policy = cluster.policy();
    Moves::of(&policy.target, &targets(&cluster.view(now), &policy, now), &runs)
}

pub(super) async fn pin(client: &Client, namespace: &str, options: &PinOptions) -> anyhow::Result<()> {
    let version = options.version.trim();
    let nodes = nodes(client).await?;
    let shadows: Vec<BottlerocketShadow> = list_in(client, namespace, ListParams::default()).await?;
    let now = crate::clock::now();
    let planned = std::cell::RefCell::new(None);
    let decide = |operator: &BottlerocketUpdateOperator| {
        let decision = decide(operator, version)?;
        if matches!(decision, Decision::Write(_)) {
            let changed = with_target(operator, version);
            let moves = moves(&changed, &nodes, &shadows, now);
            let (warnings, stopped) = (moves.warnings(version), moves.stopped(&changed));
            if planned.replace(Some((moves, stopped))).is_none() {
                warnings.iter().for_each(warn);
            }
        }
        Ok(decision)
    };
    let done = async |_: &_, operator: &BottlerocketUpdateOperator| {
        let moves = moves(operator, &nodes, &shadows, now);
        let canary = if policy(operator).canary.is_empty() { "" } else { ", one canary step after the other" };
        let latest =
            if policy(operator).target == Target::Latest { "; no node moves to an earlier version" } else { "" };
        Ok(State::Done(format!(
            "the target is {version}: {}{canary}{latest}{}{}",
            moves.summary(),
            moves.stopped(operator),
            not_in_force(&status(operator))
        )))
    };
    carry_out(client, namespace, &options.write, decide, done).await?;
    if let Some((moves, stopped)) = planned.take().filter(|_| options.write.is_preview()) {
        moves.preview(&stopped).iter().for_each(print_line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::operator::testing::{nothing, operator, patch};
    use super::*;
    use crate::cluster::testing;

    fn with(target: &str) -> BottlerocketUpdateOperator {
        operator(&json!({"version": {"target": target}}), &json!({}))
    }

    #[test]
    fn pin_writes_the_target_only_if_it_changes() {
        let target = |version: &str| json!({"spec": {"version": {"target": version}}});
        for (present, version) in
            [("latest", "1.20.5"), ("1.20.5", "latest"), ("1.20.5", "1.20"), ("1.20", ">=1.20, <1.23")]
        {
            assert_eq!(patch(decide(&with(present), version).unwrap()), target(version));
        }
        assert_eq!(patch(decide(&operator(&json!({}), &json!({})), "1.20.5").unwrap()), target("1.20.5"));
        for (present, version) in [("1.20.5", "1.20.5"), ("1.20.5", "v1.20.5"), ("latest", "latest")] {
            assert!(nothing(decide(&with(present), version).unwrap()).contains("already"), "{present} {version}");
        }
        assert!(nothing(decide(&operator(&json!({}), &json!({})), "latest").unwrap()).contains("latest already"));
    }

    #[test]
    fn invalid_target_is_refused_with_the_cause() {
        for (version, part) in
            [("newest", "'latest'"), (">=1.23, <1.20", "no version can match"), ("", "such as 1.20.5")]
        {
            let error = decide(&with("latest"), version).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("nothing was written"), "{version}: {error}");
        }
        // A valid target also mends an invalid one.
        patch(decide(&with("newest"), "1.20.5").unwrap());
    }

    fn node(name: &str) -> Node {
        serde_json::from_value(testing::node(name, &json!({}))).unwrap()
    }

    fn shadow(name: &str, runs: &str, offered: &[&str]) -> BottlerocketShadow {
        let mut status = testing::idle();
        status["currentVersion"] = json!(runs);
        status["updates"] = json!({"availableVersions": offered});
        serde_json::from_value(testing::shadow(name, status)).unwrap()
    }

    fn moves_to(spec: &Value) -> Moves {
        let versions = ["1.20.1", "1.20.4", "1.20.5"];
        let nodes = [node("a"), node("b"), node("c"), node("d")];
        let shadows = [
            shadow("a", "1.20.5", &versions),
            shadow("b", "1.20.1", &versions),
            shadow("c", "1.20.4", &versions),
            shadow("d", "1.20.1", &["1.20.1"]),
        ];
        moves(&operator(spec, &json!({})), &nodes, &shadows, crate::clock::now())
    }

    #[test]
    fn moves_of_nodes_follow_the_rules_of_the_planner() {
        let found = moves_to(&json!({"version": {"target": "1.20.4"}}));
        let expected = Moves {
            up: vec!["b (1.20.1 to 1.20.4)".to_owned()],
            down: vec!["a (1.20.5 to 1.20.4)".to_owned()],
            stay: vec!["c".to_owned()],
            not_offered: vec![],
            refused: BTreeMap::from([(
                Wait::WaveNotCome { version: "1.20.4".parse().unwrap() }.to_string(),
                vec!["d".to_owned()],
            )]),
        };
        assert_eq!(found, expected);
        let warnings = found.warnings("1.20.4").join("\n");
        for part in [
            "1 node(s) move to an earlier version: a (1.20.5 to 1.20.4)",
            "1 node(s) wait, since other nodes are offered 1.20.4; this node's host was not, most likely since its wave has not come: d",
        ] {
            assert!(warnings.contains(part), "{part}: {warnings}");
        }
        let summary =
            "1 node(s) update, 1 node(s) move to an earlier version, 1 node(s) stay as they are, 1 node(s) wait";
        assert_eq!(found.summary(), summary);
    }

    #[test]
    fn node_that_runs_a_version_of_the_range_stays_whatever_keeps_it_from_a_later_one() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let range = moves_to(&json!({"version": {"target": "1.20"}}));
        let up = names(&["b (1.20.1 to 1.20.5)", "c (1.20.4 to 1.20.5)"]);
        assert_eq!(range, Moves { up, stay: names(&["a", "d"]), ..Moves::default() }, "the wave of d has not come");
        let excluded = moves_to(&json!({"version": {"target": "1.20", "exclude": ["1.20.5"]}}));
        let up = names(&["b (1.20.1 to 1.20.4)"]);
        assert_eq!(excluded, Moves { up, stay: names(&["a", "c", "d"]), ..Moves::default() });
        assert_eq!(excluded.warnings("1.20"), Vec::<String>::new());
        assert_eq!(excluded.summary(), "1 node(s) update, 3 node(s) stay as they are");
        let preview = ["1 node(s) update, 3 node(s) stay as they are", "updates: b (1.20.1 to 1.20.4)"];
        assert_eq!(excluded.preview(""), preview);
        // A node that runs no version of the range waits, for the reason that it is refused one.
        let outside = moves_to(&json!({"version": {"target": ">=1.20.5, <1.21", "exclude": ["1.20.5"]}}));
        let rule = Wait::Excluded { version: "1.20.5".parse().unwrap(), rule: "1.20.5".to_owned() }.to_string();
        let refused = BTreeMap::from([(rule, names(&["b", "c"]))]);
        assert_eq!(outside, Moves { stay: names(&["a"]), not_offered: names(&["d"]), refused, ..Moves::default() });
    }

    #[test]
    fn dry_run_names_each_node_that_moves() {
        let many = |what: &str| (0..20).map(|n| format!("{what}-{n} (1.20.1 to 1.20.4)")).collect::<Vec<_>>();
        let preview = Moves { up: many("up"), down: many("down"), ..Moves::default() }.preview("");
        let is_shown = |line: &str| preview.iter().any(|shown| shown == line);
        assert_eq!(preview.len(), 41, "{preview:#?}");
        assert!(is_shown("updates: up-19 (1.20.1 to 1.20.4)"), "{preview:#?}");
        assert!(is_shown("moves to an earlier version: down-19 (1.20.1 to 1.20.4)"), "{preview:#?}");
    }

    #[test]
    fn freeze_that_keeps_nodes_from_the_target_is_said_before_and_after_the_write() {
        let frozen = json!({"versions": [{
            "version": "1.20.5", "variant": "v", "arch": "a", "firstSeen": "2026-01-01T00:00:00Z", "failed": ["a"],
            "quarantined": {"reason": "BootFellBack", "nodes": ["a"], "since": "2026-01-01T00:00:00Z"},
        }]});
        let operator = operator(&json!({"version": {"target": "1.20.4"}}), &frozen);
        let moves = moves_to(&json!({"version": {"target": "1.20.4"}}));
        let stopped = moves.stopped(&operator);
        assert!(stopped.ends_with("are resolved: kubectl brupop resume --failures 1.20.5"), "{stopped}");
        assert!(moves.preview(&stopped)[0].ends_with(&stopped), "{:?}", moves.preview(&stopped));
        assert_eq!(Moves { up: vec![], down: vec![], ..moves }.stopped(&operator), "", "no node moves");
    }

    #[test]
    fn target_that_no_node_is_offered_or_that_is_excluded_is_said_before() {
        let none = moves_to(&json!({"version": {"target": "1.99"}}));
        assert_eq!(none.warnings("1.99"), ["1.99: no node is offered a version for it; they wait until there is one"]);
        let excluded = moves_to(&json!({"version": {"target": "1.20.5", "exclude": ["1.20.5"]}}));
        let warnings = excluded.warnings("1.20.5").join("\n");
        assert!(warnings.contains("excluded by the entry '1.20.5' of spec.version.exclude"), "{warnings}");
        let latest = moves_to(&json!({"version": {"target": "latest"}}));
        assert!(latest.down.is_empty(), "{latest:?}");
        assert_eq!(Moves::default().preview(""), ["no node is under the operator"]);
    }
}
