//! The Prometheus expressions. No answer is an objection.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::operator::Expression;

use super::Obstacle;
use crate::expressions::for_node;
use crate::survey::NodeContext;
use crate::view::Answer;
use crate::wait::Wait;

/// The queries of a node: `$node` is replaced by its name. One that cannot be built is not sent, and [`gate`] refuses the node.
pub(crate) fn queries(expressions: &[Expression], node: &str) -> impl Iterator<Item = String> {
    expressions.iter().filter_map(move |expression| for_node(&expression.query, node).ok())
}

/// Returns the first expression that has to return nothing before a drain, and does not.
pub(crate) fn gate(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    obstacle(&ctx.group().before.expressions, &ctx.facts().name, &ctx.view.expressions)
}

fn obstacle(expressions: &[Expression], node: &str, answers: &BTreeMap<String, Answer>) -> Option<Obstacle> {
    expressions.iter().find_map(|expression| {
        let name = expression.name.clone();
        let query = match for_node(&expression.query, node) {
            Ok(query) => query,
            // Sent without its name it could match nothing, and an empty result lets a node pass.
            Err(error) => {
                let wait = Wait::ExpressionFails { name, message: error.to_string(), shared: false };
                return Some(Obstacle::Refused(wait));
            }
        };
        let shared = query == expression.query;
        match answers.get(&query) {
            Some(answer) => objection(answer, name, shared).map(Obstacle::Refused),
            None => Some(Obstacle::Unknown(Wait::ExpressionsPending { name })),
        }
    })
}

/// Returns the objection of an answer, `shared` if it is the same for all nodes.
pub(crate) fn objection(answer: &Answer, name: String, shared: bool) -> Option<Wait> {
    match answer {
        Answer::Quiet { .. } => None,
        Answer::Firing { series, .. } => Some(Wait::ExpressionFires { name, series: series.clone(), shared }),
        Answer::Failed { message } => Some(Wait::ExpressionFails { name, message: message.clone(), shared }),
    }
}

/// Expressions that have all returned nothing.
pub(crate) struct Quiet {
    /// Time since which all of them have.
    pub(crate) since: Timestamp,
    /// Time by which all of them were queried again.
    pub(crate) asked: Timestamp,
    /// Name of the one whose last query is the oldest.
    pub(crate) oldest: String,
}

/// Returns since when these expressions have returned nothing; `None` if there are no expressions.
pub(crate) fn quiet(
    expressions: &[Expression],
    node: &str,
    answers: &BTreeMap<String, Answer>,
) -> Result<Option<Quiet>, Wait> {
    if let Some(obstacle) = obstacle(expressions, node, answers) {
        return Err(obstacle.into_wait());
    }
    let of = |expression: &Expression| match answers.get(&for_node(&expression.query, node).ok()?)? {
        Answer::Quiet { since, asked } => Some(Quiet { since: *since, asked: *asked, oldest: expression.name.clone() }),
        Answer::Firing { .. } | Answer::Failed { .. } => None,
    };
    let all: Vec<Quiet> = expressions.iter().filter_map(of).collect();
    let since = all.iter().map(|quiet| quiet.since).max();
    let oldest = all.into_iter().min_by_key(|quiet| quiet.asked);
    Ok(since.zip(oldest).map(|(since, oldest)| Quiet { since, ..oldest }))
}

/// An expression that returns something.
pub(crate) struct Firing<'a> {
    pub(crate) name: &'a str,
    /// The query as policy has it, with its variable.
    query: &'a str,
    /// The first series.
    pub(crate) series: &'a str,
    /// Time since which it has.
    pub(crate) since: Timestamp,
    /// True if it is the same for all nodes.
    pub(crate) shared: bool,
}

impl Firing<'_> {
    pub(crate) fn wait(&self) -> Wait {
        Wait::ExpressionFires { name: self.name.to_owned(), series: self.series.to_owned(), shared: self.shared }
    }

    /// Returns its query for another node.
    pub(crate) fn query_for(&self, node: &str) -> Option<String> {
        for_node(self.query, node).ok()
    }
}

/// Returns those of the expressions that return something.
pub(crate) fn firing<'a>(
    expressions: &'a [Expression],
    node: &str,
    answers: &'a BTreeMap<String, Answer>,
) -> Vec<Firing<'a>> {
    let of = |expression: &'a Expression| {
        let query = for_node(&expression.query, node).ok()?;
        let Answer::Firing { series, since, .. } = answers.get(&query)? else { return None };
        let shared = query == expression.query;
        Some(Firing { name: &expression.name, query: &expression.query, series, since: *since, shared })
    };
    expressions.iter().filter_map(of).collect()
}

/// The expressions that differ from node to node, each with its query for this one.
fn own<'a>(expressions: &'a [Expression], node: &'a str) -> impl Iterator<Item = (&'a Expression, String)> {
    let query = move |expression: &'a Expression| Some((expression, for_node(&expression.query, node).ok()?));
    expressions.iter().filter_map(query).filter(|(expression, query)| *query != expression.query)
}

/// The queries of those that differ from node to node.
pub(crate) fn own_queries<'a>(expressions: &'a [Expression], node: &'a str) -> impl Iterator<Item = String> {
    own(expressions, node).map(|(_, query)| query)
}

/// Returns the first of those that differ from node to node that has no answer yet. A query that has failed is repeated.
pub(crate) fn own_pending(expressions: &[Expression], node: &str, answers: &BTreeMap<String, Answer>) -> Option<Wait> {
    let is_pending = |query: &String| matches!(answers.get(query), None | Some(Answer::Failed { .. }));
    let (pending, _) = own(expressions, node).find(|(_, query)| is_pending(query))?;
    Some(Wait::ExpressionsPending { name: pending.name.clone() })
}

/// Returns the names of those that differ from node to node and return nothing.
pub(crate) fn own_quiet(expressions: &[Expression], node: &str, answers: &BTreeMap<String, Answer>) -> Vec<String> {
    let quiet = |query: &String| matches!(answers.get(query), Some(Answer::Quiet { .. }));
    own(expressions, node).filter(|(_, query)| quiet(query)).map(|(expression, _)| expression.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::t;

    #[test]
    fn query_with_unknown_variable_fails_without_being_sent() {
        for query in ["ALERTS{node=\"${node}\"}", "ALERTS{node=\"$nodes\"}", "up{instance=\"$instance\"} == 0"] {
            let expressions = [Expression { name: "alerts".into(), query: query.into() }];
            assert_eq!(queries(&expressions, "a").count(), 0, "{query}");
            let answers = BTreeMap::from([(query.to_owned(), Answer::Quiet { since: t(0), asked: t(0) })]);
            let found = obstacle(&expressions, "a", &answers);
            assert!(matches!(found, Some(Obstacle::Refused(Wait::ExpressionFails { .. }))), "{query}: {found:?}");
            assert!(quiet(&expressions, "a", &answers).is_err(), "{query}");
        }
    }

    #[test]
    fn gate_passes_only_when_all_expressions_return_nothing() {
        let expressions: Vec<_> = [("errors", "errors > 0"), ("load", "load{node=\"$node\"} > 9")]
            .map(|(name, query)| Expression { name: name.into(), query: query.into() })
            .into();
        let load = "load{node=\"a\"} > 9";
        let quiet = || Answer::Quiet { since: t(0), asked: t(0) };
        let pending = |name: &str| Some(Obstacle::Unknown(Wait::ExpressionsPending { name: name.into() }));
        let refused = |wait| Some(Obstacle::Refused(wait));
        for (sentence, answers, expected) in [
            ("no answer yet", vec![], pending("errors")),
            ("one of two", vec![("errors > 0", quiet())], pending("load")),
            ("all quiet", vec![("errors > 0", quiet()), (load, quiet())], None),
            (
                "one fires",
                vec![
                    ("errors > 0", quiet()),
                    (load, Answer::Firing { series: "{} 12".into(), since: t(0), asked: t(0) }),
                ],
                refused(Wait::ExpressionFires { name: "load".into(), series: "{} 12".into(), shared: false }),
            ),
            (
                "one fails",
                vec![("errors > 0", Answer::Failed { message: "no answer".into() }), (load, quiet())],
                refused(Wait::ExpressionFails { name: "errors".into(), message: "no answer".into(), shared: true }),
            ),
        ] {
            let answers = answers.into_iter().map(|(query, answer)| (query.to_owned(), answer)).collect();
            assert_eq!(obstacle(&expressions, "a", &answers), expected, "{sentence}");
        }
        assert_eq!(obstacle(&[], "a", &BTreeMap::new()), None);
    }
}
