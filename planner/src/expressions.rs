//! Insertion of a node's name into a query.

/// The only variable.
const NODE: &str = "node";

/// The reason why a query cannot be sent for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The name is not valid for a node, so it is not put into a query.
    #[error("{0:?} is not the name of a node, and is not put into a query")]
    Node(String),
    /// The query has an unknown variable. Left alone, it would match nothing, and an empty result is what an expression
    /// has to return.
    #[error("{0} is not known: $node is the only variable; in label_replace name groups by number, as $1")]
    Word(String),
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
