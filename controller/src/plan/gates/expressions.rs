//! Whether Prometheus has nothing to say against it. No answer is an objection.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::operator::Expression;

use crate::plan::Wait;
use crate::view::Answer;

/// The queries of a node: `$node` stands for its name.
pub(in crate::plan) fn queries<'a>(
    expressions: &'a [Expression],
    node: &'a str,
) -> impl Iterator<Item = (&'a str, String)> {
    expressions.iter().map(move |expression| {
        // A name that may not stand in a query leaves `$node` in it, which Prometheus refuses: no answer, no start.
        let query = crate::expressions::for_node(&expression.query, node).unwrap_or_else(|_| expression.query.clone());
        (expression.name.as_str(), query)
    })
}

/// The first expression that objects.
pub(super) fn gate(expressions: &[Expression], node: &str, answers: &BTreeMap<String, Answer>) -> Option<Wait> {
    queries(expressions, node).find_map(|(name, query)| {
        let name = name.to_owned();
        match answers.get(&query) {
            Some(Answer::Quiet { .. }) => None,
            Some(Answer::Firing { series }) => Some(Wait::ExpressionFires { name, series: series.clone() }),
            Some(Answer::Failed { message }) => Some(Wait::ExpressionFails { name, message: message.clone() }),
            None => Some(Wait::AskingExpressions { name }),
        }
    })
}

/// Since when all of these expressions have returned nothing; `None` if there is none of them.
pub(in crate::plan) fn quiet_since(
    expressions: &[Expression],
    node: &str,
    answers: &BTreeMap<String, Answer>,
) -> Result<Option<Timestamp>, Wait> {
    if let Some(wait) = gate(expressions, node, answers) {
        return Err(wait);
    }
    let quiet = queries(expressions, node).filter_map(|(_, query)| match answers.get(&query)? {
        Answer::Quiet { since } => Some(*since),
        Answer::Firing { .. } | Answer::Failed { .. } => None,
    });
    Ok(quiet.max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cases::t;

    #[test]
    fn every_expression_has_to_be_answered_with_nothing() {
        let expressions: Vec<_> = [("errors", "errors > 0"), ("load", "load{node=\"$node\"} > 9")]
            .map(|(name, query)| Expression { name: name.into(), query: query.into() })
            .into();
        let load = "load{node=\"a\"} > 9";
        let quiet = || Answer::Quiet { since: t(0) };
        for (sentence, answers, expected) in [
            ("no answer yet", vec![], Some(Wait::AskingExpressions { name: "errors".into() })),
            ("one of two", vec![("errors > 0", quiet())], Some(Wait::AskingExpressions { name: "load".into() })),
            ("all quiet", vec![("errors > 0", quiet()), (load, quiet())], None),
            (
                "one fires",
                vec![("errors > 0", quiet()), (load, Answer::Firing { series: "{} 12".into() })],
                Some(Wait::ExpressionFires { name: "load".into(), series: "{} 12".into() }),
            ),
            (
                "one fails",
                vec![("errors > 0", Answer::Failed { message: "no answer".into() }), (load, quiet())],
                Some(Wait::ExpressionFails { name: "errors".into(), message: "no answer".into() }),
            ),
        ] {
            let answers = answers.into_iter().map(|(query, answer)| (query.to_owned(), answer)).collect();
            assert_eq!(gate(&expressions, "a", &answers), expected, "{sentence}");
        }
        assert_eq!(gate(&[], "a", &BTreeMap::new()), None);
    }
}
