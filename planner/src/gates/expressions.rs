//! The expressions of the policy, of Prometheus and of objects. No answer is an objection.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Obstacle;
use crate::expressions::{Check, Question, Subject};
use crate::survey::NodeContext;
use crate::view::Answer;
use crate::wait::Wait;

/// The questions about a node. One that cannot be asked is left out, and [`gate`] refuses the node.
pub(crate) fn questions<'a>(checks: &'a [Check], subject: Subject<'a>) -> impl Iterator<Item = Question> {
    checks.iter().filter_map(move |check| Some(check.question(subject).ok()?.0))
}

/// Returns the first expression that has to be quiet before a drain, and is not.
pub(crate) fn gate(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    obstacle(&ctx.group().before.checks, ctx.subject(), &ctx.view.expressions)
}

fn obstacle(checks: &[Check], subject: Subject<'_>, answers: &BTreeMap<Question, Answer>) -> Option<Obstacle> {
    checks.iter().find_map(|check| {
        let name = check.name().to_owned();
        let (question, shared) = match check.question(subject) {
            Ok(question) => question,
            // Sent without its name it could match nothing, and an empty result lets a node pass.
            Err(error) => {
                let wait = Wait::ExpressionFails { name, message: error.to_string(), shared: false };
                return Some(Obstacle::Refused(wait));
            }
        };
        match answers.get(&question) {
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

/// Expressions that are all quiet.
pub(crate) struct Quiet {
    /// Time since which all of them are.
    pub(crate) since: Timestamp,
    /// Time by which all of them were evaluated again.
    pub(crate) asked: Timestamp,
    /// Name of the one whose last evaluation is the oldest.
    pub(crate) oldest: String,
}

/// Returns since when these expressions have been quiet; `None` if there are no expressions.
pub(crate) fn quiet(
    checks: &[Check],
    subject: Subject<'_>,
    answers: &BTreeMap<Question, Answer>,
) -> Result<Option<Quiet>, Wait> {
    if let Some(obstacle) = obstacle(checks, subject, answers) {
        return Err(obstacle.into_wait());
    }
    let of = |check: &Check| match answers.get(&check.question(subject).ok()?.0)? {
        Answer::Quiet { since, asked } => Some(Quiet { since: *since, asked: *asked, oldest: check.name().to_owned() }),
        Answer::Firing { .. } | Answer::Failed { .. } => None,
    };
    let all: Vec<Quiet> = checks.iter().filter_map(of).collect();
    let since = all.iter().map(|quiet| quiet.since).max();
    let oldest = all.into_iter().min_by_key(|quiet| quiet.asked);
    Ok(since.zip(oldest).map(|(since, oldest)| Quiet { since, ..oldest }))
}

/// An expression that fires.
pub(crate) struct Firing<'a> {
    check: &'a Check,
    subject: Subject<'a>,
    /// The first series, or object.
    pub(crate) series: &'a str,
    /// Time since which it has fired.
    pub(crate) since: Timestamp,
    /// True if it is the same for all nodes.
    pub(crate) shared: bool,
}

impl Firing<'_> {
    pub(crate) fn name(&self) -> &str {
        self.check.name()
    }

    pub(crate) fn wait(&self) -> Wait {
        Wait::ExpressionFires { name: self.name().to_owned(), series: self.series.to_owned(), shared: self.shared }
    }

    /// Returns the question about another node.
    pub(crate) fn question_about(&self, node: &str) -> Option<Question> {
        Some(self.check.question(self.subject.of_node(node)).ok()?.0)
    }
}

/// Returns those of the expressions that fire.
pub(crate) fn firing<'a>(
    checks: &'a [Check],
    subject: Subject<'a>,
    answers: &'a BTreeMap<Question, Answer>,
) -> Vec<Firing<'a>> {
    let of = |check: &'a Check| {
        let (question, shared) = check.question(subject).ok()?;
        let Answer::Firing { series, since, .. } = answers.get(&question)? else { return None };
        Some(Firing { check, subject, series, since: *since, shared })
    };
    checks.iter().filter_map(of).collect()
}

/// The expressions that differ from node to node, each with the question about this one.
fn own<'a>(checks: &'a [Check], subject: Subject<'a>) -> impl Iterator<Item = (&'a Check, Question)> {
    let asked = move |check: &'a Check| {
        let (question, shared) = check.question(subject).ok()?;
        (!shared).then_some((check, question))
    };
    checks.iter().filter_map(asked)
}

/// The questions of those that differ from node to node.
pub(crate) fn own_questions<'a>(checks: &'a [Check], subject: Subject<'a>) -> impl Iterator<Item = Question> {
    own(checks, subject).map(|(_, question)| question)
}

/// Returns the first of those that differ from node to node that has no answer yet. One that has failed is asked again.
pub(crate) fn own_pending(
    checks: &[Check],
    subject: Subject<'_>,
    answers: &BTreeMap<Question, Answer>,
) -> Option<Wait> {
    let is_pending = |question: &Question| matches!(answers.get(question), None | Some(Answer::Failed { .. }));
    let (pending, _) = own(checks, subject).find(|(_, question)| is_pending(question))?;
    Some(Wait::ExpressionsPending { name: pending.name().to_owned() })
}

/// Returns the names of those that differ from node to node and are quiet.
pub(crate) fn own_quiet(checks: &[Check], subject: Subject<'_>, answers: &BTreeMap<Question, Answer>) -> Vec<String> {
    let quiet = |question: &Question| matches!(answers.get(question), Some(Answer::Quiet { .. }));
    own(checks, subject).filter(|(_, question)| quiet(question)).map(|(check, _)| check.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use models::operator::{Expression, ObjectCheck};

    use super::*;
    use crate::fixtures::{question, t};

    fn of_node(node: &str) -> Subject<'_> {
        Subject { node, version: None }
    }

    fn query(name: &str, query: &str) -> Check {
        Check::Query(Expression { name: name.into(), query: query.into() })
    }

    #[test]
    fn query_with_unknown_variable_fails_without_being_sent() {
        for query in ["ALERTS{node=\"${node}\"}", "ALERTS{node=\"$nodes\"}", "up{instance=\"$instance\"} == 0"] {
            let checks = [self::query("alerts", query)];
            assert_eq!(questions(&checks, of_node("a")).count(), 0, "{query}");
            let answers = BTreeMap::from([(question(query), Answer::Quiet { since: t(0), asked: t(0) })]);
            let found = obstacle(&checks, of_node("a"), &answers);
            assert!(matches!(found, Some(Obstacle::Refused(Wait::ExpressionFails { .. }))), "{query}: {found:?}");
            assert!(quiet(&checks, of_node("a"), &answers).is_err(), "{query}");
        }
    }

    #[test]
    fn gate_passes_only_when_all_expressions_return_nothing() {
        let checks = [query("errors", "errors > 0"), query("load", "load{node=\"$node\"} > 9")];
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
            let answers = answers.into_iter().map(|(query, answer)| (question(query), answer)).collect();
            assert_eq!(obstacle(&checks, of_node("a"), &answers), expected, "{sentence}");
        }
        assert_eq!(obstacle(&[], of_node("a"), &BTreeMap::new()), None);
    }

    #[test]
    fn expressions_are_quiet_since_the_last_of_them_became_so_and_as_of_the_oldest_answer() {
        let checks = [query("errors", "errors > 0"), query("load", "load > 9")];
        let answer = |text: &str, since, asked| (question(text), Answer::Quiet { since: t(since), asked: t(asked) });
        let answers = BTreeMap::from([answer("errors > 0", 5, 60), answer("load > 9", 20, 90)]);
        let found = quiet(&checks, of_node("a"), &answers).unwrap().unwrap();
        assert_eq!((found.since, found.asked, found.oldest.as_str()), (t(20), t(60), "errors"));
    }

    #[test]
    fn check_of_objects_is_the_same_for_all_nodes_unless_it_reads_the_name_of_the_node() {
        let version = semver::Version::new(1, 20, 5);
        let subject = Subject { node: "a", version: Some(&version) };
        for (expression, node, of) in [
            ("self.ok", None, None),
            ("self.blocked != version", None, Some("1.20.5")),
            ("all.all(v, v.spec.nodeName != node || v.status.attached)", Some("a"), None),
        ] {
            let check = ObjectCheck { expression: expression.into(), ..ObjectCheck::default() };
            let check = Check::Objects(Arc::new(check));
            let (question, shared) = check.question(subject).unwrap();
            let Question::Objects(question) = question else { panic!("{question:?}") };
            assert_eq!((question.node.as_deref(), question.version.as_deref()), (node, of), "{expression}");
            assert_eq!(shared, node.is_none(), "{expression}");
            assert_eq!(own_questions(&[check], subject).count(), usize::from(node.is_some()), "{expression}");
        }
    }
}
