//! The fuzz targets: each parser of outside input, and the invariants that hold for any input. The unit tests run them over
//! the inputs that are kept (`fuzz/`), the fuzzer over its own; no program contains them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use models::duration::Duration;
use models::operator::{
    BottlerocketUpdateOperatorSpec, CountOrPercent, MaintenanceWindow, NodeSelector, SchedulePolicy,
};
use models::shadow::BottlerocketShadow;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::eviction::{Meaning, meaning};
use crate::expressions::read_answer;
use crate::leader;
use planner::expressions::for_node;
use planner::policy::{Policy, Schedule, WindowState};
use planner::predicate::Predicate;
use planner::view::{Answer, NodeFacts, Projection as _, ShadowFacts};

/// A target: its name, and what is run over an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("schedules", schedules),
    ("policies", policies),
    ("durations", durations),
    ("counts", counts),
    ("version_targets", version_targets),
    ("prometheus_answers", prometheus_answers),
    ("object_expressions", object_expressions),
    ("nodes", nodes),
    ("shadows", shadows),
    ("secrets", crate::tls::fuzzing::secrets),
    ("api_answers", api_answers),
];

/// Returns the moments under test: before, within and after changes of the clocks, and the ends of time.
fn moments() -> impl Iterator<Item = Timestamp> {
    let seconds = [i64::MIN, 0, 1_774_746_000, 1_792_891_800, 1_835_395_200, 4_102_444_800, 253_402_207_200, i64::MAX];
    seconds.into_iter().map(|second| {
        let (least, most) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        Timestamp::from_second(second.clamp(least, most)).unwrap_or(Timestamp::UNIX_EPOCH)
    })
}

fn judge(schedule: &Schedule) {
    for now in moments() {
        match schedule.at(now) {
            WindowState::Open { until } => assert!(until.is_none_or(|until| until > now), "open until before {now}"),
            WindowState::Closed { opens: Some(opens), .. } => {
                assert!(opens > now, "it opens before {now}");
                let then = schedule.at(opens);
                assert!(matches!(then, WindowState::Open { .. }), "it was to open at {opens}: {then:?}");
            }
            WindowState::Closed { opens: None, .. } => {}
        }
    }
}

/// Windows as the resource has them: a cron, a duration and a time zone, one a line.
fn schedules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let mut windows = Vec::new();
    while let (Some(start), Some(duration)) = (lines.next(), lines.next()) {
        let window = json!({"start": start, "duration": duration, "timeZone": lines.next().unwrap_or("UTC")});
        if let Ok(window) = serde_json::from_value::<MaintenanceWindow>(window) {
            windows.push(window);
        }
        if windows.len() == 4 {
            break;
        }
    }
    let mut errors = Vec::new();
    let schedule = Schedule::parse("f", &SchedulePolicy { windows, ..SchedulePolicy::default() }, &mut errors);
    if errors.is_empty() {
        judge(&schedule);
    }
}

/// The complete policy.
fn policies(data: &[u8]) {
    let Ok(spec) = serde_json::from_slice::<BottlerocketUpdateOperatorSpec>(data) else { return };
    match Policy::from_spec(&spec) {
        Err(errors) => assert!(!errors.is_empty() && errors.iter().all(|error| error.field.starts_with("spec."))),
        Ok(policy) => {
            judge(&policy.all.schedule);
            for failures in [i64::MIN, 0, 1, 63, i64::MAX] {
                assert!(policy.back_off_after(failures) <= policy.back_off.max(planner::policy::BACK_OFF_LIMIT));
            }
            let node = NodeFacts::default();
            assert!(policy.group_of(&node).is_none_or(|group| group < policy.groups.len()));
        }
    }
}

/// Durations: a parsed one is written so that it parses to the same value.
fn durations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(duration) = text.parse::<Duration>() else { return };
    assert_eq!(duration.to_string().parse(), Ok(duration), "'{text}' is written as '{duration}'");
    assert!(duration.signed() >= jiff::SignedDuration::ZERO);
}

/// Counts and percentages: never none of the nodes, never more of them than there are.
fn counts(data: &[u8]) {
    let count = match serde_json::from_slice::<CountOrPercent>(data) {
        Ok(count) => count,
        Err(_) => CountOrPercent::Percent(String::from_utf8_lossy(data).into_owned()),
    };
    for total in [0, 1, 7, 100, 100_000, usize::MAX] {
        let nodes = count.of(total);
        assert!(nodes >= 1, "none of {total}");
        assert!(matches!(count, CountOrPercent::Count(_)) || nodes <= total.max(1), "{nodes} of {total}");
    }
    if let Ok(selector) = serde_json::from_slice::<NodeSelector>(data) {
        let labels = [("a".to_owned(), "b".to_owned())].into();
        assert_eq!(selector.matches(&labels), selector.clone().matches(&labels));
    }
}

/// Version targets: an exact version allows that one alone.
fn version_targets(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let spec = json!({"version": {"target": text, "exclude": [text, format!("{text} on aws-k8s-1.37/x86_64")]}});
    let Ok(spec) = serde_json::from_value::<BottlerocketUpdateOperatorSpec>(spec) else { return };
    let Ok(policy) = Policy::from_spec(&spec) else { return };
    let some = semver::Version::new(1, 20, 5);
    if let Ok(exact) = text.trim().parse::<semver::Version>() {
        assert!(policy.target.allows(&exact), "{text} does not let itself in");
        assert_eq!(policy.target.allows(&some), exact == some, "{text}");
    }
    assert!(policy.exclude.len() == 2);
    let _ = policy.exclude.iter().any(|exclusion| exclusion.covers("aws-k8s-1.37", "x86_64", &some));
}

/// Prometheus' answers: only an empty list of series is *nothing*. And the expression with a node's name in it.
fn prometheus_answers(data: &[u8]) {
    if let Ok(answer) = read_answer(data, Timestamp::UNIX_EPOCH) {
        let value: Value = serde_json::from_slice(data).unwrap_or_default();
        let result = value["data"]["result"].as_array();
        match answer {
            Answer::Quiet { .. } => {
                assert!(
                    result.is_some_and(Vec::is_empty) && value["status"] == "success",
                    "taken for nothing: {value}"
                );
            }
            Answer::Firing { series, .. } => {
                assert!(result.is_some_and(|all| !all.is_empty()), "taken for something: {value}");
                assert!(series.chars().count() <= 200 && !series.contains(char::is_control), "{series:?}");
            }
            Answer::Failed { .. } => {}
        }
    }
    let text = String::from_utf8_lossy(data);
    let (query, node) = text.split_once('\n').unwrap_or((&text, "node-1"));
    let _ = for_node(query, node);
}

/// CEL expressions, on the first line, over an object, on the others: whatever they are, an evaluation ends with a result or a cause, and
/// the same one for the fields alone that the expression is known to read.
fn object_expressions(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (expression, object) = text.split_once('\n').unwrap_or((&text, "{}"));
    let predicate = match Predicate::of(expression) {
        Ok(predicate) => predicate,
        Err(error) => return assert!(!error.is_empty()),
    };
    let object: Value = serde_json::from_str(object).unwrap_or_default();
    let kept = predicate.fields.kept_of(&object);
    let test = |object: Value| predicate.test(&[("shop/web".to_owned(), object)].into(), "node-a", "1.20.5");
    let (whole, kept) = (test(object), test(kept));
    // Errors may name an object, of which less is kept.
    assert_eq!(whole.as_ref().ok(), kept.as_ref().ok(), "{whole:?} of the whole, and {kept:?} of its fields");
}

/// A Node with any labels, annotations and names.
fn nodes(data: &[u8]) {
    let Ok(node) = serde_json::from_slice::<Node>(data) else { return };
    let Some(facts) = NodeFacts::project(&node) else { return };
    let _ = (facts.priority(), facts.os_version(), facts.bottlerocket(), facts.claimed());
    assert_eq!(facts.name, node.metadata.name.unwrap_or_default());
    assert!(facts.zone().is_empty() || facts.labels.values().any(|value| value == facts.zone()));
}

/// A shadow with any contents, such as those of another version.
fn shadows(data: &[u8]) {
    let Ok(shadow) = serde_json::from_slice::<BottlerocketShadow>(data) else { return };
    let _ = ShadowFacts::project(&shadow);
    let status = shadow.status.unwrap_or_default();
    let (agent, controller) = (status.agent_status(), status.controller_status());
    assert!(agent.conditions.len() + controller.conditions.len() <= status.conditions.len(), "one in both halves");
    let written = serde_json::to_value(&status).unwrap_or_default();
    let read = serde_json::from_value(written).ok();
    assert_eq!(read, Some(status), "what was read cannot be written and read");
}

/// Answers of the API server besides objects: the date of an answer, which is the time from then on, and on a later
/// line the reason why a pod may not be evicted, which may be a webhook's text.
fn api_answers(data: &[u8]) {
    let (date, text) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len()));
    let text = String::from_utf8_lossy(text);
    let response = http::Response::builder().header(http::header::DATE, date).body(());
    if let Some(date) = response.ok().as_ref().and_then(leader::date) {
        let clock = Clock::default();
        clock.record_answer(clock.read().at, clock.read(), date);
        let (now, minute) = (clock.now(), jiff::SignedDuration::from_mins(1));
        assert!(now.duration_since(date).abs() < minute, "it is {date} and not {now}");
    }
    for code in [403, 404, 409, 429, 500, 503] {
        let causes = json!([{"reason": "DisruptionBudget", "message": text.trim()}]);
        let status = json!({"code": code, "message": text.trim(), "details": {"causes": causes}});
        let means = serde_json::from_value::<kube::core::Status>(status).map(|status| meaning(&status).0);
        assert!(means.is_ok(), "an answer of the API server is not read: {means:?}");
        match means {
            Ok(Meaning::Leaves) => assert_eq!(code, 404, "{code} lets a pod go"),
            Ok(Meaning::Blocked { budget: Some(name), .. }) => {
                assert!(text.contains(&name) && (1..=253).contains(&name.len()), "no name of a budget: {name}");
                assert!(!name.contains(|c: char| c.is_control() || c.is_whitespace()), "no name of a budget: {name}");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn stored_fuzz_inputs_satisfy_all_invariants() {
    seeds::hold("controller", TARGETS);
}
