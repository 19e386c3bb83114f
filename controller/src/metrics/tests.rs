//! The exact text of the exported metrics.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use models::operator::{BottlerocketUpdateOperatorStatus, Counts, Freshness};
use models::shadow::{AttemptResult, ControllerReport, Record, UPDATED};
use planner::plan::Plan;
use planner::policy::Policy;
use planner::view::ClusterView;

use super::bounded::LIMIT;
use super::gauges::Sample;
use super::snapshot::samples;
use super::*;

pub(super) fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

/// Returns a controller status at a step since then.
fn at(step: Step, since: i64) -> ControllerReport {
    let progress = serde_json::json!({
        "step": step, "since": t(since), "started": t(0), "attempt": 1, "bootId": "boot", "version": "1.20.5", "from": "1.20.0",
    });
    let progress = Some(serde_json::from_value(progress).unwrap());
    ControllerReport { progress, ..ControllerReport::default() }
}

/// Returns the controller status after an attempt that ended.
fn ended(from: Option<&str>, to: &str, reason: &str) -> ControllerReport {
    let last = AttemptResult {
        attempt: 1,
        from: from.map(version),
        version: version(to),
        reason: reason.into(),
        message: String::new(),
        started: t(0),
        ended: t(1),
    };
    ControllerReport { record: Some(Record { last: Some(last), ..Record::default() }), ..ControllerReport::default() }
}

/// Passes a write to the metrics.
fn write(metrics: &Metrics, before: &ControllerReport, after: &ControllerReport, now: i64) {
    let mut shadow = ShadowFacts::default();
    shadow.status.controller = before.clone();
    metrics.wrote(&shadow, &ControllerStatus { report: after.clone(), conditions: Vec::new() }, t(now));
}

fn node<'a>(name: &'a str, step: Option<Step>, runs: &str, waits: Waits) -> NodeState<'a> {
    NodeState { name, step, version: Some(Cow::Owned(version(runs))), attempt: None, waits, left: 0 }
}

/// Returns the gauges of a fleet without nodes, of which the operator's status counts two.
fn fleet(freshness: Option<Freshness>, freshness_target: Option<Duration>) -> Vec<Sample> {
    let counts = Some(Counts { total: 2, blocked: 1, ..Counts::default() });
    let status = BottlerocketUpdateOperatorStatus { counts, freshness, ..BottlerocketUpdateOperatorStatus::default() };
    let plan = Plan { status: Some(status), window_open: true, ..Plan::default() };
    samples(&ClusterView::default(), &plan, &Policy { freshness_target, ..Policy::default() }, false, t(0))
}

pub(super) fn snapshot<'a>(now: i64, nodes: impl IntoIterator<Item = NodeState<'a>>) -> Snapshot<'a> {
    Snapshot { now: t(now), nodes: nodes.into_iter().collect(), samples: fleet(None, None) }
}

#[test]
fn freshness_exports_times_counts_and_share() {
    let metrics = leading();
    let observe =
        |freshness, target| metrics.observe(&Snapshot { samples: fleet(freshness, target), ..snapshot(0, []) });
    observe(None, None);
    assert_eq!(value(&metrics, "nodes_behind"), None, "there is no resource");
    let mut freshness = Freshness { nodes_behind: 1, oldest_since: Some(t(7)), ..Freshness::default() };
    observe(Some(freshness.clone()), None);
    let ratio = |metrics: &Metrics| value(metrics, "freshness_ratio");
    assert_eq!((value(&metrics, "nodes_behind"), ratio(&metrics)), (Some(1.0), None), "without a target");
    assert_eq!(value(&metrics, "behind_since_timestamp_seconds"), Some(seconds(t(7))));
    freshness.nodes_within_target = Some(1);
    observe(Some(freshness), Some(Duration::from_secs(60)));
    assert_eq!(value(&metrics, "nodes_within_freshness_target"), Some(1.0));
    assert_eq!((value(&metrics, "freshness_target_seconds"), ratio(&metrics)), (Some(60.0), Some(0.5)));
}

fn certificates() -> TlsSnapshot {
    TlsSnapshot {
        authority: Some(t(1000)),
        serving: Some(t(500)),
        certificates: "Steady",
        signing_key: "Publishing",
        problem: false,
    }
}

pub(super) fn leading() -> Metrics {
    let metrics = Metrics::new().unwrap();
    metrics.lead(true);
    metrics
}

/// Returns the value of a series, e.g. `leader` or `nodes_waiting{reason="Held"}`.
pub(super) fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let start = format!("brupop_controller_{series} ");
    metrics.text().lines().find_map(|line| line.strip_prefix(&start).map(|value| value.parse().unwrap()))
}

/// Passes all writes of one update with 40 s of staging, 60 s of draining, 50 s of rebooting and 90 s of verification.
fn one_update(metrics: &Metrics) {
    let mut verifying = at(Step::Verifying, 180);
    // The soak was restarted 30 s after the node came back.
    verifying.progress.as_mut().unwrap().verifying_since = Some(t(150));
    let steps = [
        (0, ControllerReport::default()),
        (0, at(Step::Staging, 0)),
        (40, at(Step::Draining, 40)),
        // A write within a step, e.g. of a blocker.
        (70, at(Step::Draining, 40)),
        (100, at(Step::Rebooting, 100)),
        (150, at(Step::Verifying, 150)),
        (180, verifying),
        (240, ended(Some("1.20.0"), "1.20.5", UPDATED)),
        // A later write leaves the record as it is.
        (250, ended(Some("1.20.0"), "1.20.5", UPDATED)),
    ];
    for pair in steps.windows(2) {
        write(metrics, &pair[0].1, &pair[1].1, pair[1].0);
    }
}

/// Writes series that differ in their last label alone in one line.
fn joined(text: &str) -> String {
    fn parts(line: &str) -> Option<(&str, &str, &str)> {
        let (labels, value) = line.rsplit_once("\"} ")?;
        let (before, last) = labels.rsplit_once("=\"")?;
        Some((before, last, value))
    }
    let lines: Vec<&str> = text.lines().collect();
    let is_like = |a: &&str, b: &&str| matches!((parts(a), parts(b)), (Some(a), Some(b)) if (a.0, a.2) == (b.0, b.2));
    let line = |alike: &[&str]| match parts(alike[0]) {
        Some((before, _, value)) => {
            let last: Vec<&str> = alike.iter().filter_map(|line| parts(line)).map(|(_, last, _)| last).collect();
            format!("{before}=\"{}\"}} {value}\n", last.join("|"))
        }
        None => format!("{}\n", alike[0]),
    };
    lines.chunk_by(is_like).map(line).collect()
}

#[test]
fn metrics_after_one_update_match_expected_text() {
    let metrics = leading();
    let waiting = node("a", Some(Step::Draining), "1.20.0", Waits::For("DrainBlocked"));
    metrics.observe(&snapshot(70, [waiting, node("b", None, "1.20.5", Waits::Not)]));
    one_update(&metrics);
    let text = joined(&metrics.text());
    let expected = include_str!("one_update.txt");
    assert!(text == expected, "metrics/one_update.txt is not what comes out:\n{text}");
}

#[test]
fn drill_counts_as_no_update_and_has_no_steps_of_one() {
    let metrics = leading();
    let before = metrics.text();
    let drill = |step, since| {
        let mut report = at(step, since);
        report.progress.as_mut().unwrap().drill = Some(models::shadow::Drill::default());
        report
    };
    let steps = [
        (0, ControllerReport::default()),
        (0, drill(Step::Staging, 0)),
        (40, drill(Step::Draining, 40)),
        (100, drill(Step::Rebooting, 100)),
        (150, drill(Step::Verifying, 150)),
        (240, ControllerReport::default()),
    ];
    for pair in steps.windows(2) {
        write(&metrics, &pair[0].1, &pair[1].1, pair[1].0);
    }
    assert_eq!(metrics.text(), before);
}

#[test]
fn repeated_verification_counts_as_no_update() {
    let metrics = leading();
    let before = metrics.text();
    let mut verification = at(Step::Verifying, 0);
    verification.progress.as_mut().unwrap().verification = true;
    write(&metrics, &ControllerReport::default(), &verification, 0);
    write(&metrics, &verification, &ended(None, "1.20.5", "Updated"), 60);
    assert_eq!(metrics.text(), before);
}

#[test]
fn first_failure_of_version_increases_existing_counter() {
    let metrics = leading();
    let failures =
        || value(&metrics, r#"updates_total{from_version="1.20.0",result="DrainTimedOut",to_version="1.20.5"}"#);
    write(&metrics, &ControllerReport::default(), &at(Step::Staging, 0), 0);
    assert_eq!(failures(), Some(0.0), "a scrape before the attempt ends finds it");
    write(&metrics, &at(Step::Staging, 0), &ended(Some("1.20.0"), "1.20.5", "DrainTimedOut"), 10);
    assert_eq!(failures(), Some(1.0));
}

#[test]
fn failure_counter_exists_for_attempt_of_previous_leader() {
    let metrics = leading();
    let (from, to) = (version("1.20.0"), version("1.20.5"));
    let draining = node("a", Some(Step::Draining), "1.20.0", Waits::Acting);
    metrics.observe(&snapshot(0, [NodeState { attempt: Some((Some(&from), &to)), ..draining }]));
    let failures = r#"updates_total{from_version="1.20.0",result="DrainTimedOut",to_version="1.20.5"}"#;
    assert_eq!(value(&metrics, failures), Some(0.0), "a scrape before the attempt ends finds it");
}

#[test]
fn standby_exports_no_fleet_metrics() {
    let metrics = Metrics::new().unwrap();
    let fleet = || snapshot(0, [node("a", None, "1.20.0", Waits::For("Held"))]);
    metrics.observe(&fleet());
    metrics.tls(&certificates());
    metrics.clock_offset(SignedDuration::from_secs(2));
    let standby = metrics.text();
    let of: Vec<_> = exported(&standby).into_iter().map(|(name, ..)| name).collect();
    let own = [
        "calls_without_answer_total",
        "connections_refused_total",
        "expressions_total",
        "leader",
        "lint_findings_total",
        "malformed_requests_total",
        "rejected_writes_total",
        "transitions_total",
        "watch_errors_total",
    ];
    let own = own.map(|name| format!("brupop_controller_{name}"));
    assert_eq!(of, own, "what it has counted itself, and that it does not lead");
    assert_eq!(value(&metrics, "leader"), Some(0.0));

    metrics.lead(true);
    metrics.observe(&fleet());
    metrics.tls(&certificates());
    metrics.clock_offset(SignedDuration::from_secs(2));
    assert_eq!(value(&metrics, "leader"), Some(1.0));
    let ends = value(&metrics, r#"certificate_expiry_timestamp_seconds{certificate="serving"}"#);
    assert_eq!(ends, Some(1_700_000_500.0));
    assert_eq!(value(&metrics, r#"rotation{of="signing_key",phase="Publishing"}"#), Some(1.0));
    assert_eq!(value(&metrics, "certificates_degraded"), Some(0.0));
    assert_eq!(value(&metrics, r#"nodes_waiting{reason="Held"}"#), Some(1.0));
    assert_eq!(value(&metrics, "clock_offset_seconds"), Some(2.0));

    metrics.lead(false);
    assert_eq!(metrics.text(), standby, "what it knew as a leader");
}

#[test]
fn waiting_since_metric_is_kept_while_evictions_are_retried() {
    let metrics = leading();
    let draining = Some(Step::Draining);
    let observe = |now: i64, step: Option<Step>, waits: Waits| {
        metrics.observe(&snapshot(now, [node("a", step, "1.20.0", waits)]));
        let since = |reason: &str| value(&metrics, &format!("waiting_since_timestamp_seconds{{reason=\"{reason}\"}}"));
        let second = |since: f64| since as i64 - t(0).as_second();
        ["DrainBlocked", "Held"].map(|reason| since(reason).map(second))
    };
    for (sentence, now, step, waits, since) in [
        ("it begins", 0, draining, Waits::For("DrainBlocked"), [Some(0), None]),
        ("it continues", 10, draining, Waits::For("DrainBlocked"), [Some(0), None]),
        ("another eviction is tried", 20, draining, Waits::Acting, [Some(0), None]),
        ("in vain", 30, draining, Waits::For("DrainBlocked"), [Some(0), None]),
        ("another reason", 40, draining, Waits::For("Held"), [None, Some(40)]),
        ("the first one again", 50, draining, Waits::For("DrainBlocked"), [Some(50), None]),
        ("the next step", 60, Some(Step::Rebooting), Waits::Acting, [None, None]),
        ("and done", 70, None, Waits::Not, [None, None]),
        ("a new wait for an old reason", 80, None, Waits::For("Held"), [None, Some(80)]),
    ] {
        assert_eq!(observe(now, step, waits), since, "{sentence}");
    }
}

#[test]
fn waiting_since_metric_begins_again_when_fewer_pods_than_ever_are_left_of_a_blocked_drain() {
    let metrics = leading();
    for (sentence, now, waits, left, since) in [
        ("it begins", 0, Waits::For("DrainBlocked"), 9, Some(0)),
        ("no pod has left", 10, Waits::For("DrainBlocked"), 9, Some(0)),
        ("one has", 20, Waits::For("DrainBlocked"), 8, Some(20)),
        ("the next ones are asked", 30, Waits::Acting, 0, Some(20)),
        ("in vain", 40, Waits::For("DrainBlocked"), 8, Some(20)),
        ("a new one comes", 50, Waits::For("DrainBlocked"), 9, Some(20)),
        ("and leaves", 60, Waits::For("DrainBlocked"), 8, Some(20)),
        ("one of before leaves", 70, Waits::For("DrainBlocked"), 7, Some(70)),
        ("none is refused any more", 80, Waits::For("Draining"), 0, None),
        ("one is again", 90, Waits::For("DrainBlocked"), 7, Some(90)),
    ] {
        let draining = node("a", Some(Step::Draining), "1.20.0", waits);
        metrics.observe(&snapshot(now, [NodeState { left, ..draining }]));
        let exported = value(&metrics, r#"waiting_since_timestamp_seconds{reason="DrainBlocked"}"#);
        assert_eq!(exported, since.map(|second| seconds(t(second))), "{sentence}");
    }
}

#[test]
fn waiting_since_metric_goes_on_after_a_pause_that_hides_the_reason() {
    for (sentence, reasons, since) in [
        ("the window closes and opens", "ExpressionFails WindowClosed ExpressionFails", 10),
        ("the expression is queried again", "ExpressionFails Blackout ExpressionsPending ExpressionFails", 20),
        ("a user pauses in the night", "BudgetUsedUp WindowClosed Disabled WindowClosed BudgetUsedUp", 30),
        ("two windows are too short for it", "BudgetUsedUp WindowClosed BudgetUsedUp WindowClosed BudgetUsedUp", 20),
        ("another reason follows the window", "ExpressionFails WindowClosed Held ExpressionFails", 30),
        ("the reason after it is another one", "Held WindowClosed ExpressionFails", 20),
        ("a pause has its own time", "WindowClosed Disabled WindowClosed", 20),
        ("the pods of a blocked drain are read again", "DrainBlocked:9 ReadingPods DrainBlocked:9", 10),
        ("one has left meanwhile", "DrainBlocked:9 ReadingPods DrainBlocked:8", 20),
        ("a new one has come, and leaves", "DrainBlocked:8 ReadingPods DrainBlocked:9 DrainBlocked:8", 10),
    ] {
        let metrics = leading();
        let mut last = "";
        for (wait, now) in reasons.split_whitespace().zip((0..).step_by(10)) {
            let (reason, left) = wait.split_once(':').unwrap_or((wait, "0"));
            let waiting = node("a", None, "1.20.0", Waits::For(reason));
            metrics.observe(&snapshot(now, [NodeState { left: left.parse().unwrap(), ..waiting }]));
            last = reason;
        }
        let exported = value(&metrics, &format!("waiting_since_timestamp_seconds{{reason=\"{last}\"}}"));
        assert_eq!(exported, Some(seconds(t(since))), "{sentence}");
        assert_eq!(metrics.text().matches("waiting_since_timestamp_seconds{").count(), 1, "{sentence}");
    }
}

#[test]
fn waiting_since_metric_reports_oldest_wait_of_existing_nodes() {
    let metrics = leading();
    let held = |name| node(name, None, "1.20.0", Waits::For("Held"));
    metrics.observe(&snapshot(0, [held("a")]));
    metrics.observe(&snapshot(5, [held("a"), held("b")]));
    let since = || value(&metrics, r#"waiting_since_timestamp_seconds{reason="Held"}"#).unwrap() as i64;
    assert_eq!(value(&metrics, r#"nodes_waiting{reason="Held"}"#), Some(2.0));
    assert_eq!(since(), t(0).as_second());
    metrics.observe(&snapshot(9, [held("b")]));
    assert_eq!(since(), t(5).as_second());
    assert_eq!(metrics.memory.lock().waits.len(), 1);
}

#[test]
fn version_labels_of_nodes_are_limited_and_reused() {
    let metrics = leading();
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let fleet = |minor: u64| {
        let nodes = names.iter().zip(0..).map(move |(name, patch)| NodeState {
            name,
            step: None,
            version: Some(Cow::Owned(Version::new(1, minor, patch))),
            attempt: None,
            waits: Waits::Not,
            left: 0,
        });
        snapshot(0, nodes)
    };
    let series = |text: &str| text.lines().filter(|l| l.starts_with("brupop_controller_nodes{")).count();
    for minor in [20, 21] {
        metrics.observe(&fleet(minor));
        assert_eq!(series(&metrics.text()), LIMIT + 1);
        assert_eq!(value(&metrics, r#"nodes{step="Idle",version="other"}"#), Some(68.0));
        assert_eq!(value(&metrics, &format!(r#"nodes{{step="Idle",version="1.{minor}.0"}}"#)), Some(1.0));
    }
}

#[test]
fn version_labels_of_updates_are_limited_and_all_updates_counted() {
    let metrics = Metrics::new().unwrap();
    for _ in 0..2 {
        for patch in 0..100 {
            let after = ended(Some(&format!("1.20.{patch}")), "1.21.0", UPDATED);
            write(&metrics, &ControllerReport::default(), &after, 0);
        }
    }
    let text = metrics.text();
    let values: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with("brupop_controller_updates_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert_eq!((values.len(), values.iter().sum::<f64>()), (LIMIT + 1, 200.0));
    let other = r#"updates_total{from_version="other",result="Updated",to_version="other"}"#;
    assert_eq!(value(&metrics, other), Some(136.0));
}

#[test]
fn unknown_reasons_and_codes_share_one_label_value() {
    let metrics = Metrics::new().unwrap();
    for reason in ["EatenByMoths", "", "SoakFailed"] {
        write(&metrics, &ControllerReport::default(), &ended(None, "1.21.0", reason), 0);
    }
    for code in [None, Some(409), Some(999), Some(0)] {
        metrics.rejected("node_claim", code);
    }
    for (series, count) in [
        (r#"updates_total{from_version="unknown",result="Unknown",to_version="1.21.0"}"#, 2.0),
        (r#"updates_total{from_version="unknown",result="SoakFailed",to_version="1.21.0"}"#, 1.0),
        (r#"rejected_writes_total{code="none",kind="node_claim"}"#, 1.0),
        (r#"rejected_writes_total{code="409",kind="node_claim"}"#, 1.0),
        (r#"rejected_writes_total{code="other",kind="node_claim"}"#, 2.0),
    ] {
        assert_eq!(value(&metrics, series), Some(count), "{series} in {}", metrics.text());
    }
}

#[test]
fn failed_drain_is_not_counted_in_drain_duration() {
    let metrics = Metrics::new().unwrap();
    write(&metrics, &at(Step::Draining, 0), &at(Step::Releasing, 1800), 1800);
    assert_eq!(value(&metrics, r#"step_duration_seconds_sum{step="Draining"}"#), Some(1800.0));
    assert_eq!(value(&metrics, "drain_duration_seconds_count"), None);
    // A clock that was set back makes no negative time.
    write(&metrics, &at(Step::Rebooting, 100), &at(Step::Verifying, 50), 50);
    assert_eq!(value(&metrics, r#"step_duration_seconds_sum{step="Rebooting"}"#), Some(0.0));
}

#[test]
fn fleet_metrics_are_derived_from_view_and_plan() {
    use models::reason::FailureReason;
    use models::shadow::VersionFailure;
    use planner::plan::Quarantine;
    use planner::view::{NodeFacts, NodeView, OperatorFacts};
    use planner::wait::Wait;

    let failure = |variant: &str| VersionFailure {
        version: version("1.20.5"),
        variant: variant.into(),
        arch: "x86_64".into(),
        reason: FailureReason::BootFellBack,
        time: t(0),
        resolved_by: None,
    };
    let facts = |name: &str| NodeFacts {
        name: name.into(),
        labelled: true,
        os_image: "Bottlerocket OS 1.19.0 (aws-k8s-1.37)".into(),
        ..NodeFacts::default()
    };
    let mut shadow = ShadowFacts::default();
    shadow.status.agent.current_version = Some(version("1.20.0"));
    shadow.status.controller = at(Step::Staged, 0);
    shadow.status.controller.record =
        Some(Record { version_failures: vec![failure("aws"), failure("metal"), failure("aws")], ..Record::default() });
    let mut view = ClusterView { operator: Some(OperatorFacts::default()), ..ClusterView::default() };
    let reported = NodeView { facts: facts("a"), shadow: Some(Box::new(shadow)), ..NodeView::default() };
    view.nodes.insert("a".into(), reported);
    view.nodes.insert("b".into(), NodeView { facts: facts("b"), ..NodeView::default() });
    view.nodes.insert(
        "c".into(),
        NodeView { facts: NodeFacts { os_image: String::new(), ..facts("c") }, ..NodeView::default() },
    );
    view.earlier_pods = vec!["old/agent-1".into(), "old/agent-2".into()];
    let waits = BTreeMap::from([
        ("a".to_owned(), Wait::Queued { position: 3, behind: None }),
        ("b".to_owned(), Wait::UpToDate),
    ]);
    let plan = Plan { waits, quarantine: Quarantine::of(&view, 1), window_open: true, ..Plan::default() };
    let policy = Policy { present: true, ..Policy::default() };
    let metrics = leading();
    metrics.observe(&Snapshot::of(&view, &plan, &policy, true, t(0)));
    for (series, expected) in [
        (r#"nodes{step="Staged",version="1.20.0"}"#, 1.0),
        (r#"nodes{step="Idle",version="1.19.0"}"#, 1.0),
        (r#"nodes{step="Idle",version="unknown"}"#, 1.0),
        (r#"nodes_waiting{reason="Queued"}"#, 1.0),
        ("slots_in_use", 0.0),
        ("slots_limit", 1.0),
        ("frozen", 1.0),
        ("quarantined_versions", 2.0),
        ("policy_degraded", 1.0),
        ("window_open", 1.0),
        ("earlier_operator_pods", 2.0),
    ] {
        assert_eq!(value(&metrics, series), Some(expected), "{series} in {}", metrics.text());
    }
    assert!(!metrics.text().contains("UpToDate"), "who needs nothing does not wait");
    metrics.observe(&Snapshot::of(&view, &plan, &Policy::default(), false, t(0)));
    assert_eq!(value(&metrics, "slots_limit"), None, "without the operator's resource there is no limit to export");
    let unwell = Wait::ClusterUnwell { ill: 2, compared: 3, nodes: Vec::new() };
    let plan = Plan { waits: BTreeMap::from([("a".to_owned(), unwell)]), ..plan };
    metrics.observe(&Snapshot::of(&view, &plan, &policy, false, t(0)));
    assert_eq!(value(&metrics, "cluster_unwell"), Some(1.0), "a node waits for it, and no time of it is recorded");
}

/// Returns metrics with every series exported at least once.
fn full() -> Metrics {
    let metrics = leading();
    metrics.tls(&certificates());
    metrics.migration("Migrating", Some(7));
    let mut fleet = snapshot(0, [node("a", None, "1.20.0", Waits::For("Held"))]);
    for (.., value) in &mut fleet.samples {
        value.get_or_insert(1.0);
    }
    // They need nodes.
    fleet.samples.push(("hosts", Some("Answered"), Some(1.0)));
    fleet.samples.push(("agent_silent_since_timestamp_seconds", Some("true"), Some(1.0)));
    metrics.observe(&fleet);
    metrics.clock_offset(SignedDuration::from_millis(-20));
    one_update(&metrics);
    metrics.served("bottlerocketshadows", true);
    metrics.rejected("shadow_status", Some(409));
    metrics.finding("S1");
    metrics.expect_notices("on-call");
    metrics.expression(&Answer::Quiet { since: t(0), asked: t(0) });
    metrics.ages(&Ages { plan: Some(Duration::from_secs(3)), ..Ages::default() });
    metrics.turned(Duration::from_millis(4));
    metrics
}

/// Returns the exported names, types and labels.
fn exported(text: &str) -> BTreeSet<(String, String, BTreeSet<String>)> {
    let mut families = BTreeMap::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("# TYPE ") {
            let (name, kind) = header.split_once(' ').unwrap();
            families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.strip_suffix('}').and_then(|s| s.split_once('{')).unwrap_or((series, ""));
            let known = families.keys().cloned().collect::<Vec<_>>();
            let plain = |suffix| name.strip_suffix(suffix).filter(|name| known.iter().any(|k| k == name));
            let name = ["_bucket", "_sum", "_count"].into_iter().find_map(plain).unwrap_or(name);
            let labels = labels.split(',').filter_map(|pair| pair.split_once('=')).map(|(label, _)| label.to_owned());
            families.get_mut(name).unwrap().1.extend(labels.filter(|label| label != "le"));
        }
    }
    families.into_iter().map(|(name, (kind, labels))| (name, kind, labels)).collect()
}

/// Returns the names, types, labels and helps of all registered series.
fn registered(metrics: &Metrics) -> Vec<(String, String, BTreeSet<String>, String)> {
    let families = metrics.collectors.iter().map(|collector| {
        let desc = collector.desc()[0].clone();
        let kind = format!("{:?}", collector.collect()[0].get_field_type()).to_lowercase();
        (desc.fq_name, kind, desc.variable_labels.into_iter().collect(), desc.help)
    });
    families.collect()
}

#[test]
fn documented_metrics_match_exported_metrics() {
    let metrics = full();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = std::fs::read_to_string(file).unwrap();
    let (_, rest) = page.split_once("<!-- table:begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- table:end -->").unwrap();
    let mut documented = BTreeSet::new();
    for row in table.lines().skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("four cells: {row}") };
        assert!(!meaning.is_empty(), "{row}");
        let word = |cell: &str| cell.trim().trim_matches('`').to_owned();
        let labels = labels.split(',').map(word).filter(|label| !label.is_empty()).collect();
        documented.insert((format!("brupop_controller_{}", word(name)), kind.to_owned(), labels));
    }
    assert_eq!(documented, exported(&metrics.text()), "metrics documented in docs/metrics.md, and exported ones");

    // The metrics exported by this test are complete.
    let registered = registered(&metrics).into_iter().map(|(name, kind, labels, _)| (name, kind, labels));
    assert_eq!(documented, registered.collect(), "metrics documented in docs/metrics.md, and registered ones");
}

#[test]
fn metric_names_and_help_follow_prometheus_conventions() {
    for (name, kind, _, help) in registered(&Metrics::new().unwrap()) {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: only counters end in _total");
        assert!(kind != "histogram" || name.ends_with("_seconds"), "{name}: a histogram names its unit");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert!(!help.is_empty() && !help.ends_with('.'), "{name}: {help}");
    }
}
