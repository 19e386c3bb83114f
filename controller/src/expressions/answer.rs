//! Parsing of Prometheus' answers: nothing, something, or no answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use models::plain::shown;
use serde::Deserialize;
use serde_json::Value;

use planner::view::Answer;

/// Maximum length of a series in messages.
const SERIES_LENGTH: usize = 200;

/// Maximum length of an error of Prometheus in messages.
const ERROR_LENGTH: usize = 300;

#[derive(Deserialize)]
struct Body {
    status: String,
    error: Option<String>,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Value,
}

/// The parsed part of one series: an instant's `value`, a range's `values`, or histograms in their place.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Series {
    metric: BTreeMap<String, String>,
    value: Option<(Value, String)>,
    values: Vec<(Value, String)>,
}

/// The reason why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// The query was refused or broke off.
    #[error("Prometheus could not evaluate the expression: {0}")]
    Refused(String),
    /// The result is a number or a text, which is never empty.
    #[error(
        "the expression returns a {0}, which can never be nothing: write a comparison of series, such as sum(x) > 0"
    )]
    NeverNothing(String),
    #[error("{0}")]
    Foreign(String),
}

/// Parses the body of an answer to a query that was sent at `sent`.
pub(crate) fn read(body: &[u8], sent: Timestamp) -> Result<Answer, Unreadable> {
    let foreign = |what: &str| Unreadable::Foreign(what.to_owned());
    let body: Body = serde_json::from_slice(body).map_err(|_| foreign("it is not Prometheus' JSON"))?;
    if body.status != "success" {
        return Err(Unreadable::Refused(cut(body.error.as_deref().unwrap_or("no reason is given"), ERROR_LENGTH)));
    }
    let data = body.data.ok_or_else(|| foreign("it has no data in it"))?;
    match data.result_type.as_str() {
        "vector" | "matrix" => {}
        known @ ("scalar" | "string") => return Err(Unreadable::NeverNothing(known.to_owned())),
        other => return Err(foreign(&format!("its result is of the unknown type {:?}", cut(other, 32)))),
    }
    let Value::Array(result) = data.result else { return Err(foreign("its result is not a list")) };
    match result.into_iter().next() {
        None => Ok(Answer::Quiet { since: sent, asked: sent }),
        // The result is not empty, also where the series cannot be read.
        Some(first) => {
            let series = series_text(&serde_json::from_value(first).unwrap_or_default());
            Ok(Answer::Firing { series, since: sent, asked: sent })
        }
    }
}

/// Returns a series as Prometheus writes it, e.g. `up{job="api"} 0`.
fn series_text(series: &Series) -> String {
    let mut text = series.metric.get("__name__").cloned().unwrap_or_default();
    // Quoted with escapes, so that no value brings a line break or a closing quote into a message.
    let labels: Vec<String> =
        series.metric.iter().filter(|(name, _)| *name != "__name__").map(|(n, v)| format!("{n}={v:?}")).collect();
    if !labels.is_empty() {
        let _ = write!(text, "{{{}}}", labels.join(","));
    }
    match series.value.as_ref().or(series.values.last()) {
        Some((_, value)) if text.is_empty() => text.clone_from(value),
        Some((_, value)) => {
            let _ = write!(text, " {value}");
        }
        None if text.is_empty() => text.push_str("a series without labels"),
        None => {}
    }
    cut(&text, SERIES_LENGTH)
}

/// Returns at most `length` characters, on one line.
pub(super) fn cut(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.chars().map(shown).collect();
    }
    text.chars().take(length.saturating_sub(1)).map(shown).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn read_text(text: &str) -> Result<Answer, Unreadable> {
        read(text.as_bytes(), sent())
    }

    fn success(data: &str) -> String {
        format!(r#"{{"status":"success","data":{data}}}"#)
    }

    #[test]
    fn empty_series_list_is_quiet() {
        for result_type in ["vector", "matrix"] {
            let text = success(&format!(r#"{{"resultType":"{result_type}","result":[]}}"#));
            assert_eq!(read_text(&text), Ok(Answer::Quiet { since: sent(), asked: sent() }));
        }
        let warned = r#"{"status":"success","data":{"resultType":"vector","result":[]},"warnings":["slow"]}"#;
        assert_eq!(read_text(warned), Ok(Answer::Quiet { since: sent(), asked: sent() }));
    }

    #[test]
    fn firing_answer_contains_its_first_series() {
        for (data, series) in [
            (
                r#"{"resultType":"vector","result":[{"metric":{"__name__":"up","job":"api","instance":"a:1"},"value":[1,"0"]},{"metric":{},"value":[1,"1"]}]}"#,
                r#"up{instance="a:1",job="api"} 0"#,
            ),
            (r#"{"resultType":"vector","result":[{"metric":{"__name__":"up"},"value":[1.5,"0"]}]}"#, "up 0"),
            (r#"{"resultType":"vector","result":[{"metric":{},"value":[1,"7"]}]}"#, "7"),
            (
                r#"{"resultType":"vector","result":[{"metric":{"a":"x\ny\"z"},"value":[1,"NaN"]}]}"#,
                r#"{a="x\ny\"z"} NaN"#,
            ),
            (r#"{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"1"],[2,"2"]]}]}"#, r#"{a="b"} 2"#),
            (r#"{"resultType":"vector","result":[{"metric":{"a":"b"},"histogram":[1,{}]}]}"#, r#"{a="b"}"#),
            (r#"{"resultType":"vector","result":[null]}"#, "a series without labels"),
        ] {
            assert_eq!(
                read_text(&success(data)),
                Ok(Answer::Firing {
                    series: series.into(),
                    since: Timestamp::UNIX_EPOCH,
                    asked: Timestamp::UNIX_EPOCH
                }),
                "{data}"
            );
        }
    }

    #[test]
    fn long_series_is_truncated_to_200_characters() {
        let long = "ä".repeat(500);
        let data = format!(r#"{{"resultType":"vector","result":[{{"metric":{{"a":"{long}"}},"value":[1,"1"]}}]}}"#);
        let Ok(Answer::Firing { series, .. }) = read_text(&success(&data)) else { panic!("it is something") };
        assert_eq!(series.chars().count(), 200);
        assert!(series.starts_with("{a=\"ää") && series.ends_with("ä…"), "{series}");
    }

    #[test]
    fn invalid_response_is_never_quiet() {
        for (text, error) in [
            (success(r#"{"resultType":"scalar","result":[1,"0"]}"#), "returns a scalar, which can never be nothing"),
            (success(r#"{"resultType":"string","result":[1,""]}"#), "returns a string, which can never be nothing"),
            (success(r#"{"resultType":"streams","result":[]}"#), r#"unknown type "streams""#),
            (success(r#"{"resultType":"vector","result":null}"#), "its result is not a list"),
            (success(r#"{"resultType":"vector","result":{}}"#), "its result is not a list"),
            (success(r#"{"resultType":"vector"}"#), "not Prometheus' JSON"),
            (success("null"), "it has no data"),
            (r#"{"status":"success"}"#.to_owned(), "it has no data"),
            (
                r#"{"status":"error","errorType":"bad_data","error":"parse\nerror"}"#.to_owned(),
                "could not evaluate the expression: parse error",
            ),
            (r#"{"status":"error","data":{"resultType":"vector","result":[]}}"#.to_owned(), "no reason is given"),
            ("[]".to_owned(), "not Prometheus' JSON"),
            (String::new(), "not Prometheus' JSON"),
            ("<html>".to_owned(), "not Prometheus' JSON"),
        ] {
            let answer = read_text(&text).unwrap_err().to_string();
            assert!(answer.contains(error), "{text}: {answer}");
        }
    }
}
