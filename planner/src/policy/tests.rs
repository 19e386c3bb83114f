use models::operator::{BottlerocketUpdateOperatorSpec, Expression};

use super::*;

fn spec(text: &str) -> BottlerocketUpdateOperatorSpec {
    serde_json::from_str(text).unwrap()
}

#[test]
fn empty_spec_means_default_policy() {
    let policy = Policy::from_spec(&BottlerocketUpdateOperatorSpec::default()).unwrap();
    assert_eq!(policy, Policy { present: true, ..Policy::default() });
}

#[test]
fn policy_is_enabled_unless_it_says_otherwise() {
    for (text, enabled) in [("{}", true), (r#"{"enabled": true}"#, true), (r#"{"enabled": false}"#, false)] {
        assert_eq!(Policy::from_spec(&spec(text)).unwrap().enabled, enabled, "{text}");
    }
}

#[test]
fn documented_and_example_policies_are_valid() {
    let pages = [
        include_str!("../../../docs/policy.md"),
        include_str!("../../../docs/expressions.md"),
        include_str!("../../../docs/object-checks.md"),
        include_str!("../../../docs/hooks.md"),
        include_str!("../../../docs/aws.md"),
        include_str!("../../../docs/notices.md"),
    ];
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    let mut shown = 0;
    for block in blocks.map(|rest| rest.split("```").next().unwrap()) {
        let object: serde_json::Value = serde_saphyr::from_str(block).unwrap();
        // Beside policies there are built-in objects of Kubernetes.
        if object.get("kind").is_some_and(|kind| kind != "BottlerocketUpdateOperator") {
            continue;
        }
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(object["spec"].clone()).unwrap();
        assert_eq!(Policy::from_spec(&spec).err(), None, "{block}");
        shown += 1;
    }
    assert_eq!(shown, 16);
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/policies");
    for file in std::fs::read_dir(examples).unwrap() {
        let file = file.unwrap().path();
        let object: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(object["spec"].clone()).unwrap();
        assert_eq!(Policy::from_spec(&spec).err(), None, "{}", file.display());
        shown += 1;
    }
    assert_eq!(shown, 23);
}

#[test]
fn handling_of_auto_scaling_groups_implies_its_hook() {
    let hooks = |text: &str| Policy::from_spec(&spec(text)).unwrap().hooks;
    let aws = r#""autoscaling": {"aws": {"mode": "Standby"}}"#;
    let implied = hooks(&format!("{{{aws}}}"));
    let wait = |minutes| Some(HookWait { timeout: std::time::Duration::from_mins(minutes), continues: false });
    assert_eq!(implied, [Hook { name: "aws-autoscaling".into(), before: wait(15), after: wait(15), job: None }]);
    let continued = Some(HookWait { continues: true, ..wait(15).unwrap() });
    for (sentence, entry, before, after) in [
        ("neither phase", "", wait(15), wait(15)),
        ("a time before the drain", r#", "before": {"timeout": "40m"}"#, wait(40), wait(15)),
        ("a time after the update", r#", "after": {"timeout": "1m"}"#, wait(15), wait(1)),
        ("both", r#", "before": {"timeout": "1m"}, "after": {"timeout": "2m"}"#, wait(1), wait(2)),
        ("no time", r#", "before": {}, "after": {}"#, wait(15), wait(15)),
        ("no end of the attempt", r#", "before": {"onTimeout": "Continue"}"#, continued, wait(15)),
    ] {
        let listed = format!(r#""hooks": [{{"name": "ceph", "after": {{}}}}, {{"name": "aws-autoscaling"{entry}}}]"#);
        let found = hooks(&format!("{{{aws}, {listed}}}"));
        assert_eq!((found.len(), found[1].before, found[1].after), (2, before, after), "{sentence}");
        assert_eq!((found[0].before, found[0].after), (None, wait(5)), "{sentence}: those of others are as listed");
    }
    let alone = hooks(r#"{"hooks": [{"name": "aws-autoscaling", "before": {}}]}"#);
    assert_eq!((alone[0].before, alone[0].after), (wait(5), None), "without autoscaling.aws it is a hook as any other");
    for none in ["{}", r#"{"autoscaling": {}}"#, r#"{"autoscaler": {"protect": true}}"#] {
        assert!(hooks(none).is_empty(), "{none}");
    }
}

#[test]
fn back_off_doubles_up_to_one_day() {
    let policy = Policy::default();
    let minutes = |failures| policy.back_off_after(failures).as_secs() / 60;
    assert_eq!([minutes(1), minutes(2), minutes(3), minutes(20), minutes(i64::MAX)], [10, 20, 40, 1440, 1440]);
    assert_eq!(minutes(models::earlier::MOST_FAILURES.into()), 1440, "more failures carried over would change nothing");
}

#[test]
fn invalid_policy_error_names_its_field() {
    for (text, field) in [
        (r#"{"maxUnavailable": "0%"}"#, "spec.maxUnavailable"),
        (
            r#"{"nodeGroups": [{"name": "db", "selector": {}, "maxUnavailable": "0%"}]}"#,
            "spec.nodeGroups[0].maxUnavailable",
        ),
        (r#"{"health": {"before": {"maxUnhealthyNodes": "ten"}}}"#, "spec.health.before.maxUnhealthyNodes"),
        (r#"{"strategy": {"preStage": {"maxConcurrent": "101%"}}}"#, "spec.strategy.preStage.maxConcurrent"),
        (r#"{"version": {"target": "newest"}}"#, "spec.version.target"),
        (
            r#"{"prometheus": {"url": "http://p"}, "health": {"after": {"expressions": [{"name": "a", "query": "up{n=\"${node}\"}"}]}}}"#,
            "spec.health.after.expressions[0].query",
        ),
        (
            r#"{"version": {"urgent": {"from": "1.20.6", "reason": "CVE", "until": "2026-02-30T00:00:00Z"}}}"#,
            "spec.version.urgent.until",
        ),
        (r#"{"version": {"exclude": ["1.20.4", "never"]}}"#, "spec.version.exclude[1]"),
        (r#"{"strategy": {"canary": [{"nodes": "200%"}]}}"#, "spec.strategy.canary[0].nodes"),
        (
            r#"{"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "Mars/Base"}]}}"#,
            "spec.schedule.windows[0].timeZone",
        ),
        (
            r#"{"nodeGroups": [{"name": "db", "selector": {}, "schedule": {"windows": [{"cron": "61 2 * * *", "duration": "4h"}]}}]}"#,
            "spec.nodeGroups[0].schedule.windows[0].cron",
        ),
        (r#"{"health": {"before": {"expressions": [{"name": "errors", "query": "up == 0"}]}}}"#, "spec.prometheus.url"),
        (
            r#"{"health": {"before": {"objects": [{"name": "a", "apiVersion": "v1", "kind": "Pod", "expression": "self.status.phase =="}]}}}"#,
            "spec.health.before.objects[0].expression",
        ),
        (
            r#"{"health": {"after": {"objects": [{"name": "a", "apiVersion": "v1", "kind": "Secret", "expression": "has(self.data)"}]}}}"#,
            "spec.health.after.objects[0].expression",
        ),
        (
            r#"{"prometheus": {"url": "http://p"}, "health": {"after": {
                "expressions": [{"name": "a", "query": "up == 0"}],
                "objects": [{"name": "a", "apiVersion": "v1", "kind": "Pod", "expression": "has(self.status)"}]}}}"#,
            "spec.health.after.objects[0].name",
        ),
    ] {
        let errors = Policy::from_spec(&spec(text)).unwrap_err();
        assert_eq!(errors.iter().map(|e| e.field.as_str()).collect::<Vec<_>>(), [field], "{text}: {errors:?}");
        assert!(!errors[0].message.is_empty());
    }
}

#[test]
fn mistake_that_groups_inherit_is_reported_once_and_one_of_a_group_at_its_own_field() {
    let object = r#"{"name": "a", "apiVersion": "v1", "kind": "Pod", "expression": "has(self.spec)"}"#;
    let bad = r#"{"name": "a", "query": "up{n=\"${node}\"}"}"#;
    let good = bad.replace("${node}", "b");
    let window = r#""windows": [{"cron": "0 2 * * *", "duration": "1h"}]"#;
    for (sentence, all, group, fields) in [
        (
            "a query that a group inherits",
            format!(r#""health": {{"before": {{"expressions": [{bad}]}}}}"#),
            r#""health": {"before": {"podsReady": true}}"#.to_owned(),
            vec!["spec.health.before.expressions[0].query"],
        ),
        (
            "a query that a group replaces by its own",
            format!(r#""health": {{"before": {{"expressions": [{bad}]}}}}"#),
            format!(r#""health": {{"before": {{"expressions": [{bad}]}}}}"#),
            vec!["spec.health.before.expressions[0].query", "spec.nodeGroups[0].health.before.expressions[0].query"],
        ),
        (
            "a name that an inherited check has",
            format!(r#""health": {{"after": {{"objects": [{object}]}}}}"#),
            format!(r#""health": {{"after": {{"expressions": [{good}]}}}}"#),
            vec!["spec.nodeGroups[0].health.after.expressions[0].name"],
        ),
        (
            "windows that a group inherits",
            format!(r#""schedule": {{{window}, "stopStartingBefore": "1h"}}"#),
            r#""schedule": {"blackouts": [{"from": "2026-12-20"}]}"#.to_owned(),
            vec!["spec.schedule.stopStartingBefore"],
        ),
        (
            "windows of a group that are too short for what it inherits",
            r#""schedule": {"stopStartingBefore": "1h"}"#.to_owned(),
            format!(r#""schedule": {{{window}}}"#),
            vec!["spec.nodeGroups[0].schedule.stopStartingBefore"],
        ),
    ] {
        let text = format!(
            r#"{{"prometheus": {{"url": "http://p"}}, {all}, "nodeGroups": [{{"name": "db", "selector": {{}}, {group}}}]}}"#
        );
        let errors = Policy::from_spec(&spec(&text)).unwrap_err();
        assert_eq!(errors.iter().map(|e| e.field.as_str()).collect::<Vec<_>>(), fields, "{sentence}: {errors:?}");
    }
}

#[test]
fn stored_duration_outside_its_bounds_leaves_policy_valid() {
    let text = r#"{
        "drain": {"timeout": "0s"}, "loadBalancer": {"leaveBeforeDrain": "60h"}, "failurePolicy": {"backOff": "0s"},
        "deadlines": {"return": "0s"}, "schedule": {"windows": [{"cron": "0 2 * * *", "duration": "800h"}]},
        "rolloutHistory": {"maxAge": "0s"}}"#;
    let policy = Policy::from_spec(&spec(text)).unwrap();
    assert_eq!((policy.all.drain.timeout, policy.back_off), (Duration::from_secs(1), Duration::from_secs(1)));
    assert_eq!((policy.leave_load_balancer, policy.returning), (Some(Duration::from_hours(1)), Duration::from_mins(1)));
    assert_eq!(policy.bounded.len(), 6, "{:?}", policy.bounded);
    assert_eq!(crate::history::Limits::of(&spec(text)).max_age, Duration::from_hours(1));
}

#[test]
fn health_timeout_is_at_least_twice_the_soak() {
    for (after, minutes) in [
        (r#"{"soak": "10m", "timeout": "5m"}"#, 20),
        (r#"{"soak": "10m", "timeout": "19m"}"#, 20),
        (r#"{"soak": "10m", "timeout": "21m"}"#, 21),
        (r#"{"soak": "10m"}"#, 20),
        (r#"{"timeout": "1m"}"#, 2),
        ("{}", 15),
    ] {
        let policy = Policy::from_spec(&spec(&format!(r#"{{"health": {{"after": {after}}}}}"#))).unwrap();
        assert_eq!(policy.all.after.timeout, Duration::from_mins(minutes), "{after}");
        let group =
            format!(r#"{{"nodeGroups": [{{"name": "db", "selector": {{}}, "health": {{"after": {after}}}}}]}}"#);
        let policy = Policy::from_spec(&spec(&group)).unwrap();
        assert_eq!(policy.for_node(&NodeFacts::default()).after.timeout, Duration::from_mins(minutes), "{after}");
    }
}

#[test]
fn defaults_are_within_bounds() {
    let Policy { stage, reboot, returning, shutdown, back_off, .. } = Policy::default();
    let minutes = |minutes| Duration::from_mins(minutes);
    assert_eq!((stage, reboot, returning, shutdown), (minutes(30), minutes(30), minutes(30), minutes(4)));
    let d = |duration: Duration| models::duration::Duration(duration).to_string();
    let text = serde_json::json!({
        "deadlines": {"stage": d(stage), "reboot": d(reboot), "return": d(returning), "shutdown": d(shutdown)},
        "failurePolicy": {"backOff": d(back_off)}, "drain": {"timeout": d(Drain::default().timeout)},
        "health": {"after": {"soak": d(After::default().soak), "timeout": d(After::default().timeout)}},
    });
    assert_eq!(Policy::from_spec(&serde_json::from_value(text).unwrap()).unwrap().bounded, []);
}

#[test]
fn invalid_policy_keeps_last_valid_policy_in_force() {
    let mut operator = OperatorFacts { spec: spec(r#"{"version": {"target": "newest"}}"#), ..OperatorFacts::default() };
    let policy = Policy::in_force(Some(&operator));
    assert!(policy.present && policy.unusable, "nothing good is known");
    assert_eq!(policy.errors.len(), 1);

    operator.status.policy_in_force = Some(r#"{"maxUnavailable": 3}"#.into());
    let policy = Policy::in_force(Some(&operator));
    assert_eq!(policy.max_unavailable, CountOrPercent::Count(3));
    assert!(!policy.unusable && policy.errors.len() == 1);

    operator.spec.enabled = Some(false);
    assert!(!Policy::in_force(Some(&operator)).enabled, "the switch still switches off");
    operator.status.policy_in_force = Some(r#"{"enabled": false}"#.into());
    operator.spec.enabled = Some(true);
    assert!(Policy::in_force(Some(&operator)).enabled, "and no update waits for it: the errors alone stop them");
    assert_eq!(Policy::in_force(None), Policy::default());
}

#[test]
fn stored_group_that_hides_others_stays_in_force_and_is_named() {
    let hiding = r#"{"hooks": [{"name": "ceph", "before": {}}], "nodeGroups": [
        {"name": "all", "selector": {"matchLabels": {}}}, {"name": "db", "selector": {"matchLabels": {"tier": "db"}}}]}"#;
    for (sentence, now, errors) in
        [("it is the policy", hiding, 0), ("it is the last valid policy", r#"{"version": {"target": "newest"}}"#, 1)]
    {
        let mut operator = OperatorFacts { spec: spec(now), ..OperatorFacts::default() };
        operator.status.policy_in_force = Some(hiding.into());
        let policy = Policy::in_force(Some(&operator));
        assert!(policy.is_usable(), "{sentence}");
        assert_eq!((policy.groups.len(), policy.hooks.len(), policy.errors.len()), (2, 1, errors), "{sentence}");
        assert_eq!(policy.group_of(&NodeFacts::default()), Some(0), "{sentence}");
        let fields: Vec<&str> = policy.hiding.iter().map(|found| found.field.as_str()).collect();
        assert_eq!(fields, ["spec.nodeGroups[0].selector"], "{sentence}");
    }
    let last = r#"{"nodeGroups": [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}}, {"name": "all", "selector": {}}]}"#;
    assert_eq!(Policy::from_spec(&spec(last)).unwrap().hiding, [], "the last one hides none");
}

#[test]
fn node_uses_first_matching_group_and_defaults_for_other_fields() {
    let policy = Policy::from_spec(&spec(
        r#"{
            "drain": {"timeout": "5m"}, "health": {"after": {"soak": "2m"}},
            "nodeGroups": [
                {"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "drain": {"timeout": "1h"}},
                {"name": "rest", "selector": {}, "health": {"after": {"soak": "10s"}}}
            ]}"#,
    ))
    .unwrap();
    let node = |labels: &[(&str, &str)]| NodeFacts {
        labels: std::sync::Arc::new(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()),
        ..NodeFacts::default()
    };
    let db = policy.for_node(&node(&[("tier", "db")]));
    assert_eq!((db.drain.timeout.as_secs(), db.after.soak.as_secs()), (3600, 120));
    let rest = policy.for_node(&node(&[]));
    assert_eq!((rest.drain.timeout.as_secs(), rest.after.soak.as_secs()), (300, 10));
    assert_eq!(policy.all.after.soak.as_secs(), 120);
}

#[test]
fn group_that_sets_one_field_of_its_health_checks_keeps_the_others_of_all_nodes() {
    let policy = |group: &str| {
        let text = r#"{
            "prometheus": {"url": "http://p"},
            "health": {
                "before": {"podsReady": true, "maxUnhealthyNodes": 2, "expressions": [{"name": "a", "query": "up == 0"}]},
                "after": {"soak": "2m", "timeout": "20m", "podsReady": false, "expressions": [{"name": "b", "query": "up == 0"}]}
            },
            "nodeGroups": [{"name": "db", "selector": {}, "health": GROUP}]}"#;
        Policy::from_spec(&spec(&text.replace("GROUP", group))).unwrap()
    };
    let named = |name: &str| vec![Check::Query(Expression { name: name.into(), query: "up == 0".into() })];
    type Change = fn(&mut GroupPolicy);
    let case = |group: &str, change: Change| {
        let policy = policy(group);
        assert_eq!((&policy.all.before.checks, &policy.all.after.checks), (&named("a"), &named("b")));
        let mut expected = policy.all.clone();
        change(&mut expected);
        assert_eq!(*policy.for_node(&NodeFacts::default()), expected, "{group}");
    };
    case("{}", |_| {});
    case(r#"{"before": {}, "after": {"expressions": []}}"#, |_| {});
    case(r#"{"before": {"podsReady": false}}"#, |own| own.before.pods_ready = false);
    case(r#"{"before": {"maxUnhealthyNodes": 1}}"#, |own| {
        own.before.max_unhealthy_nodes = Some(CountOrPercent::Count(1));
    });
    case(r#"{"after": {"soak": "3m"}}"#, |own| own.after.soak = Duration::from_mins(3));
    case(r#"{"after": {"soak": "30m"}}"#, |own| {
        (own.after.soak, own.after.timeout) = (Duration::from_mins(30), Duration::from_mins(60));
    });
    case(r#"{"after": {"timeout": "1h"}}"#, |own| own.after.timeout = Duration::from_mins(60));
    case(r#"{"after": {"podsReady": true}}"#, |own| own.after.pods_ready = true);
    case(r#"{"after": {"expressions": [{"name": "c", "query": "up == 0"}]}}"#, |own| {
        own.after.checks = vec![Check::Query(Expression { name: "c".into(), query: "up == 0".into() })];
    });
}

#[test]
fn group_replaces_expressions_and_objects_of_all_nodes_each_by_itself() {
    let object = |name: &str| {
        format!(r#"{{"name": "{name}", "apiVersion": "v1", "kind": "Pod", "expression": "has(self.spec)"}}"#)
    };
    let query = |name: &str| format!(r#"{{"name": "{name}", "query": "up == 0"}}"#);
    let all = format!(r#"{{"before": {{"expressions": [{}], "objects": [{}]}}}}"#, query("q"), object("o"));
    for (own, expected) in [
        (String::new(), vec!["q", "o"]),
        (format!(r#""objects": [{}]"#, object("own")), vec!["q", "own"]),
        (format!(r#""expressions": [{}]"#, query("own")), vec!["o", "own"]),
        (format!(r#""expressions": [{}], "objects": [{}]"#, query("a"), object("b")), vec!["a", "b"]),
    ] {
        let text = format!(
            r#"{{"prometheus": {{"url": "http://p"}}, "health": {all},
                "nodeGroups": [{{"name": "db", "selector": {{}}, "health": {{"before": {{{own}}}}}}}]}}"#
        );
        let policy = Policy::from_spec(&spec(&text)).unwrap();
        let names: Vec<&str> = policy.groups[0].policy.before.checks.iter().map(Check::name).collect();
        assert_eq!(names, expected, "{own}");
    }
}
