//! Commands about nodes: the nodes are looked up before anything is written, and each is written and waited for by itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{anyhow, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, Resource, ResourceExt as _};
use models::names;
use models::shadow::BottlerocketShadow;
use planner::view::{NodeFacts, Projection as _};
use serde::Serialize;

use crate::advice;
use crate::call::{Listed, is_unreadable, nodes};
use crate::near::near;
use crate::shell::for_cluster;
use crate::write::{Decision, Object, Outcome, State, Unacknowledged, WriteOptions, all};

/// Options of commands about nodes.
#[derive(Debug, Args)]
pub(crate) struct NodesOptions {
    /// Names of the nodes.
    #[arg(required = true, value_name = "NODE")]
    pub(super) nodes: Vec<String>,
    #[command(flatten)]
    pub(super) write: WriteOptions,
}

pub(super) struct Found {
    pub(super) name: String,
    pub(super) node: Node,
    /// `None` if there is none; an error if this version of the plugin cannot read it.
    pub(super) shadow: anyhow::Result<Option<BottlerocketShadow>>,
}

impl Found {
    /// Returns the reason why the operator does not update the node, or why that is not known; `None` if it does.
    pub(super) fn not_managed(&self) -> Option<String> {
        let labelled = NodeFacts::project(&self.node).is_some_and(|facts| facts.labelled);
        let lacks = match (labelled, &self.shadow) {
            (_, Ok(Some(_))) => return None,
            (_, Err(error)) => return Some(format!("{}: {error:#}", self.name)),
            (true, Ok(None)) => format!(
                "it has no shadow yet. To see whether the controller runs in this namespace: {}",
                for_cluster("kubectl brupop doctor")
            ),
            (false, Ok(None)) => format!("it lacks the label {}={}", names::INTERFACE_LABEL, names::INTERFACE_VERSION),
        };
        Some(format!("{} is not under the operator: {lacks}", self.name))
    }
}

/// Reads nodes and their shadows.
///
/// # Errors
/// A node does not exist: then the error names near names.
pub(super) async fn find(client: &Client, namespace: &str, wanted: &[String]) -> anyhow::Result<Vec<Found>> {
    let (mut found, mut unknown) = (Vec::<Found>::new(), Vec::new());
    for name in wanted {
        // As kubectl prints names.
        let name = name.strip_prefix("node/").unwrap_or(name);
        if found.iter().any(|node| node.name == name) {
            continue;
        }
        match Object::node(client, name).read().await? {
            Some(node) => {
                let shadow = match Object::shadow(client, namespace, name).read().await {
                    Err(error) if !is_unreadable(&error) => return Err(error),
                    shadow => shadow,
                };
                found.push(Found { name: name.to_owned(), node, shadow });
            }
            None => unknown.push(name),
        }
    }
    if unknown.is_empty() {
        return Ok(found);
    }
    // Without the right to list nodes, the error names no others.
    Err(anyhow!(unknown_nodes(&unknown, &nodes(client).await.unwrap_or_default())))
}

/// Reads the shadows of nodes.
///
/// # Errors
/// A node does not exist, or is not under the operator, or its shadow cannot be read.
pub(super) async fn find_managed(
    client: &Client,
    namespace: &str,
    wanted: &[String],
) -> anyhow::Result<Vec<(String, BottlerocketShadow)>> {
    let found = find(client, namespace, wanted).await?;
    let others: Vec<String> = found.iter().filter_map(Found::not_managed).collect();
    ensure!(others.is_empty(), "nothing was written: {}", others.join("; "));
    Ok(found.into_iter().filter_map(|node| Some((node.name, node.shadow.ok()??))).collect())
}

/// Returns the error for names that no node has, with those that are most like them.
fn unknown_nodes(unknown: &[&str], nodes: &[Node]) -> String {
    let facts = nodes.iter().filter_map(NodeFacts::project);
    let labelled: BTreeMap<String, bool> = facts.map(|node| (node.name, node.labelled)).collect();
    let noted = |name: &str| format!("{name}{}", if labelled[name] { "" } else { " (not under the operator)" });
    let mut text = "nothing was written:".to_owned();
    for name in unknown {
        let _ = write!(text, "\n  there is no node {name}");
        let near: Vec<String> = near(name, labelled.keys().map(String::as_str)).into_iter().map(noted).collect();
        if !near.is_empty() {
            let _ = write!(text, "; did you mean {}?", near.join(" or "));
        }
    }
    text
}

/// Writes what `decide` makes of each object, which is a node or its shadow, given with the name of the node and as it was read. Waits for
/// those that were written until `check` says what came of it.
///
/// # Errors
/// Those of all nodes together.
pub(super) async fn write_each<K: Listed + Resource<DynamicType = ()> + Serialize>(
    namespace: &str,
    options: &WriteOptions,
    objects: Vec<(String, Object<K>, K)>,
    decide: impl Fn(&K) -> anyhow::Result<Decision>,
    check: impl AsyncFn(&str, &K) -> anyhow::Result<State>,
) -> anyhow::Result<()> {
    let total = objects.len();
    let (mut written, mut failed) = (Vec::new(), Vec::new());
    for (name, object, read) in objects {
        match object.write(read, options.dry_run(), &decide).await {
            Ok(Outcome::Nothing(reason)) => options.print_nothing(&object.id, format_args!("{name}: {reason}")),
            Ok(Outcome::Written(_, after)) if options.timeout().is_some() => written.push((name, object, after)),
            Ok(outcome) => options.print(&object.id, outcome.sentence(&object.id, options.dry_run())),
            Err(error) => failed.push((name, error)),
        }
    }
    let waited = async |(name, _, after): &(String, Object<K>, K)| {
        Ok(match check(name, after).await? {
            State::Pending(next) => State::Pending(format!("{name}: {next}")),
            state => state,
        })
    };
    let done = |(name, object, _): &(String, Object<K>, K), sentence: String| {
        options.print(&object.id, format_args!("{name}: {sentence}"));
    };
    let status = advice::command(namespace, "status");
    let late = all(options.timeout().unwrap_or_default(), &status, written, waited, done).await;
    failed.extend(late.into_iter().map(|((name, ..), error)| (name, error)));
    together(total, failed)
}

/// Returns the errors of the nodes as one, each with the name of its node.
fn together(total: usize, failed: Vec<(String, anyhow::Error)>) -> anyhow::Result<()> {
    let late = failed.iter().all(|(_, error)| error.is::<Unacknowledged>());
    let mut errors: Vec<String> = failed.into_iter().map(|(name, error)| format!("{name}: {error:#}")).collect();
    let text = match errors.len() {
        0 => return Ok(()),
        1 if total == 1 => errors.remove(0),
        several => format!("{several} of {total} nodes failed:\n  {}", errors.join("\n  ")),
    };
    Err(if late { Unacknowledged(text).into() } else { anyhow!(text) })
}

/// Returns the name of a node that a shadow is for.
pub(super) fn node_of(shadow: &BottlerocketShadow) -> String {
    names::node_of_shadow(&shadow.name_any()).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::attempt::testing::shadow;
    use super::*;
    use crate::call::failure;

    fn node(name: &str, labelled: bool) -> Node {
        let labels = if labelled { json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION}) } else { json!({}) };
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    #[test]
    fn unknown_node_error_names_near_names_and_says_which_are_not_updated() {
        let nodes = [node("ip-10-0-0-1", true), node("ip-10-0-0-2", false), node("worker", true), node("other", true)];
        for (name, expected) in [
            (
                "ip-10-0-0-3",
                "there is no node ip-10-0-0-3; did you mean ip-10-0-0-1 or ip-10-0-0-2 (not under the operator)?",
            ),
            ("0-0-2", "there is no node 0-0-2; did you mean ip-10-0-0-2 (not under the operator)?"),
            ("wroker", "there is no node wroker; did you mean worker?"),
            ("database", "there is no node database"),
        ] {
            let error = unknown_nodes(&[name], &nodes);
            assert_eq!(error, format!("nothing was written:\n  {expected}"));
        }
    }

    #[test]
    fn node_is_under_the_operator_if_it_has_a_shadow_and_may_be_if_that_cannot_be_read() {
        let shadow = shadow(&json!({}));
        assert_eq!(node_of(&shadow), "a");
        let found = |labelled, shadow| Found { name: "a".to_owned(), node: node("a", labelled), shadow }.not_managed();
        assert_eq!(found(true, Ok(Some(shadow))), None);
        assert!(found(true, Ok(None)).unwrap().contains("no shadow yet"));
        assert!(found(false, Ok(None)).unwrap().contains(names::INTERFACE_LABEL));
        let error = kube::Error::SerdeError(serde_json::from_str::<u8>("x").unwrap_err());
        let text = found(true, Err(failure("get bottlerocketshadows", error))).unwrap();
        assert!(text.contains("kubectl brupop doctor") && !text.contains("not under the operator"), "{text}");
    }

    #[test]
    fn errors_of_several_nodes_are_reported_together() {
        let failed = |name: &str, error: anyhow::Error| (name.to_owned(), error);
        let late = || anyhow::Error::new(Unacknowledged("too late".to_owned()));
        assert!(together(2, vec![]).is_ok());
        let one = together(1, vec![failed("a", late())]).unwrap_err();
        assert!(one.is::<Unacknowledged>() && format!("{one:#}") == "a: too late", "{one:#}");
        let all_late = together(2, vec![failed("a", late()), failed("b", late())]).unwrap_err();
        assert!(all_late.is::<Unacknowledged>(), "{all_late}");
        let mixed = together(3, vec![failed("a", late()), failed("b", anyhow!("no"))]).unwrap_err();
        assert_eq!(mixed.to_string(), "2 of 3 nodes failed:\n  a: too late\n  b: no");
        assert!(!mixed.is::<Unacknowledged>());
    }
}
