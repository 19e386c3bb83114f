//! The expressions of the policy, which Prometheus or objects of the cluster answer, and the questions to these about a node.

use std::sync::Arc;

use models::operator::{Expression, ObjectCheck};
use semver::Version;

use crate::predicate::Predicate;

/// The node that an expression is evaluated for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub node: &'a str,
    /// The version of its attempt; `None` without one.
    pub version: Option<&'a Version>,
}

impl<'a> Subject<'a> {
    /// Returns another node with the same version.
    pub const fn of_node(self, node: &'a str) -> Self {
        Self { node, ..self }
    }
}

/// An expression of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A query to Prometheus, which has to return nothing.
    Query(Expression),
    /// A CEL expression, which has to be true of objects of the cluster.
    Objects(Arc<ObjectCheck>),
}

/// The question of an expression: the same for all nodes, unless it names the node or the version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// A query to Prometheus, with the name of the node in it.
    Query(String),
    Objects(ObjectQuestion),
}

/// A check of objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectQuestion {
    /// The name of the node, if the expression depends on it. Questions of a large fleet differ by it first, and share the check.
    pub node: Option<String>,
    /// The version, if the expression depends on it; empty without an attempt.
    pub version: Option<String>,
    pub check: Arc<ObjectCheck>,
}

impl Check {
    /// Returns the name in reasons and messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Query(expression) => &expression.name,
            Self::Objects(check) => &check.name,
        }
    }

    /// Returns whether this is asked, and is the same for all nodes.
    pub fn is_asked_of_all(&self, question: &Question) -> bool {
        match (self, question) {
            (Self::Query(expression), Question::Query(query)) => *query == expression.query,
            (Self::Objects(check), Question::Objects(asked)) => asked.node.is_none() && asked.check == *check,
            _ => false,
        }
    }

    /// Returns the question about a node, and whether it is the same for all nodes.
    ///
    /// # Errors
    /// The reason why it cannot be asked.
    pub fn question(&self, subject: Subject<'_>) -> Result<(Question, bool), QueryError> {
        match self {
            Self::Query(expression) => {
                let query = for_node(&expression.query, subject.node)?;
                let shared = query == expression.query;
                Ok((Question::Query(query), shared))
            }
            Self::Objects(check) if check.is_about_secrets() => Err(QueryError::Secret),
            Self::Objects(check) => {
                let predicate = Predicate::of(&check.expression).map_err(QueryError::Cel)?;
                let version = || subject.version.map(Version::to_string).unwrap_or_default();
                let node = predicate.uses_node.then(|| subject.node.to_owned());
                let version = predicate.uses_version.then(version);
                let shared = node.is_none();
                Ok((Question::Objects(ObjectQuestion { node, version, check: check.clone() }), shared))
            }
        }
    }
}

/// The only variable of a query.
const NODE: &str = "node";

/// The reason why an expression cannot be evaluated for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The name is not valid for a node, so it is not put into a query.
    #[error("{0:?} is not the name of a node, and is not put into a query")]
    Node(String),
    /// The query has an unknown variable. Left alone, it would match nothing, and an empty result is what an expression
    /// has to return.
    #[error("{0} is not known: $node is the only variable; in label_replace name groups by number, as $1")]
    Word(String),
    /// Answers could reveal the keys that the controller may read, one character after the other.
    #[error("Secrets are not read for checks")]
    Secret,
    /// The CEL expression cannot be evaluated.
    #[error("{0}")]
    Cel(String),
}

/// Returns the query for one node: every `$node` is replaced by its name.
///
/// A valid node name consists of letters, digits, `-` and `.`, none of which has a meaning inside a string of PromQL,
/// so nothing has to be escaped; any other name is refused. (In a regular expression the `.` matches any character.)
///
/// # Errors
/// An invalid node name, or a variable other than `$node`.
pub fn for_node(query: &str, node: &str) -> Result<String, QueryError> {
    if !is_node_name(node) {
        return Err(QueryError::Node(node.chars().take(64).collect()));
    }
    let mut out = String::with_capacity(query.len() + node.len());
    let mut rest = query;
    while let Some(at) = rest.find('$') {
        let (before, dollar) = rest.split_at(at);
        out.push_str(before);
        let after = &dollar[1..];
        let (open, word) = match after.strip_prefix('{') {
            Some(inner) => ("{", word_of(inner)),
            None => ("", word_of(after)),
        };
        if open.is_empty() && word == NODE {
            out.push_str(node);
            rest = &after[NODE.len()..];
        } else if word.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            let close = if open.is_empty() { "" } else { "}" };
            return Err(QueryError::Word(format!("${open}{}{close}", word.chars().take(32).collect::<String>())));
        } else {
            // The end of a line in a regular expression, or a group's number.
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the letters, digits and underscores that `text` begins with.
fn word_of(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns whether the API server allows this name for a Node (RFC 1123, a subdomain).
fn is_node_name(name: &str) -> bool {
    let label = |label: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(label.chars().next())
            && edge(label.chars().next_back())
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_variable_in_query_is_replaced_with_node_name() {
        for (query, expected) in [
            (r#"up{node="$node"} == 0"#, r#"up{node="ip-10-0-0-1.eu-west-1.internal"} == 0"#),
            (
                r#"a{n="$node"} or b{n=~"$node:.*"}"#,
                r#"a{n="ip-10-0-0-1.eu-west-1.internal"} or b{n=~"ip-10-0-0-1.eu-west-1.internal:.*"}"#,
            ),
            ("count(ALERTS) > 0", "count(ALERTS) > 0"),
            ("$node", "ip-10-0-0-1.eu-west-1.internal"),
            ("$node$node", "ip-10-0-0-1.eu-west-1.internalip-10-0-0-1.eu-west-1.internal"),
            (r#"x{job=~"^(a|b)$"}"#, r#"x{job=~"^(a|b)$"}"#),
            (
                r#"label_replace(x, "a", "$1${2}", "b", "(.*):(.*)$")"#,
                r#"label_replace(x, "a", "$1${2}", "b", "(.*):(.*)$")"#,
            ),
            ("$", "$"),
            ("ü$node", "üip-10-0-0-1.eu-west-1.internal"),
        ] {
            assert_eq!(for_node(query, "ip-10-0-0-1.eu-west-1.internal").as_deref(), Ok(expected));
        }
    }

    #[test]
    fn unknown_variable_in_query_is_rejected() {
        for (query, word) in [
            (r#"up{node="${node}"}"#, "${node}"),
            (r#"up{node="$nodes"}"#, "$nodes"),
            (r#"up{node="$node_name"}"#, "$node_name"),
            (r#"up{node="$Node"}"#, "$Node"),
            (r#"up{node="$instance"}"#, "$instance"),
        ] {
            assert_eq!(for_node(query, "a"), Err(QueryError::Word(word.into())), "{query}");
        }
    }

    #[test]
    fn invalid_node_name_is_not_inserted_into_query() {
        for name in
            ["", "a\"", "a\" or up{x=\"", "a\\", "a b", "A", ".a", "a.", "a..b", "-a", "a-", "a\n", "ä", "a/b", "a.*"]
        {
            assert_eq!(for_node("up == 0", name), Err(QueryError::Node(name.into())), "{name:?}");
        }
        let long = "a".repeat(254);
        assert!(for_node("$node", &long).is_err() && for_node("$node", &long[1..]).is_ok());
    }
}
