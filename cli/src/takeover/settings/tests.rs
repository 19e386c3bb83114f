use super::*;

fn proposed(values: &str, chosen: &[&str]) -> (Proposal, Policy) {
    let chosen: Vec<String> = chosen.iter().map(|text| (*text).to_owned()).collect();
    let chosen = windows(&chosen).unwrap();
    let proposal = propose(&Settings::of_values(values).unwrap(), chosen.as_deref(), "brupop-system");
    let (operator, policy) = parse(&proposal.text).unwrap_or_else(|error| panic!("{error:#}\n{}", proposal.text));
    assert_eq!(operator.metadata.name.as_deref(), Some("default"));
    assert!(!policy.enabled, "no update starts before the user has read it");
    (proposal, policy)
}

/// The schedule in the proposal, as compact text.
fn schedule_of(proposal: &Proposal) -> Vec<String> {
    let lines = proposal.text.lines().filter(|line| line.trim_start().starts_with("- {cron"));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn concurrent_updates_become_max_unavailable() {
    let percent = || CountOrPercent::Percent("100%".to_owned());
    for (values, expected, comment) in [
        ("image: x", CountOrPercent::Count(1), "Not set"),
        ("max_concurrent_updates: null", CountOrPercent::Count(1), "Not set"),
        ("max_concurrent_updates: \"1\"", CountOrPercent::Count(1), "max_concurrent_updates (\"1\")"),
        ("max_concurrent_updates: 7", CountOrPercent::Count(7), "max_concurrent_updates (\"7\")"),
        ("max_concurrent_updates: \"0\"", CountOrPercent::Count(1), "(\"0\")"),
        ("max_concurrent_updates: unlimited", percent(), "(\"unlimited\")"),
        ("max_concurrent_updates: \"10001\"", percent(), "more than 10000"),
        ("max_concurrent_updates: \"99999999999999999999999\"", percent(), "more than 10000"),
        ("max_concurrent_updates: many", CountOrPercent::Count(1), "Check this"),
        ("max_concurrent_updates: \"-1\"", CountOrPercent::Count(1), "Check this"),
        ("max_concurrent_updates: [1]", CountOrPercent::Count(1), "Check this"),
    ] {
        let (proposal, policy) = proposed(values, &[]);
        assert_eq!(policy.max_unavailable, expected, "{values}");
        assert!(proposal.text.contains(comment) && proposal.question.is_none(), "{}", proposal.text);
    }
}

#[test]
fn proposal_belongs_in_the_values_of_the_chart_where_helm_installs_the_policy() {
    let (proposal, _) = proposed("image: x", &[]);
    let apply = proposal.text.find("kubectl apply ").unwrap();
    let values = proposal.text.find("put it into the values of the chart instead, as policy.enabled and").unwrap();
    assert!(apply < values && values < proposal.text.find("apiVersion").unwrap(), "{}", proposal.text);
}

#[test]
fn wait_outside_of_load_balancers_is_kept() {
    let seconds = std::time::Duration::from_secs;
    for (value, expected, comment) in [
        ("\"0\"", None, "stay in external load balancers"),
        ("0", None, "stay in external load balancers"),
        ("\"90\"", Some(seconds(90)), "exclude_from_lb_wait_time_in_sec (\"90\")"),
        ("soon", None, "Check whether"),
        ("-5", None, "Check whether"),
    ] {
        let (proposal, policy) = proposed(&format!("exclude_from_lb_wait_time_in_sec: {value}"), &[]);
        assert_eq!(policy.leave_load_balancer, expected, "{value}");
        assert!(proposal.text.contains(comment), "{}", proposal.text);
    }
    assert_eq!(proposed("image: x", &[]).1.leave_load_balancer, None);
}

#[test]
fn daily_window_becomes_window_in_utc() {
    for (start, stop, expected) in [
        ("9:0:0", "21:0:0", "- {cron: \"0 9 * * *\", duration: 12h}"),
        ("22:30:0", "2:0:0", "- {cron: \"30 22 * * *\", duration: 3h30m}"),
        ("9:0:15", "21:0:0", "- {cron: \"1 9 * * *\", duration: 11h59m}"),
        ("23:59:30", "0:30:0", "- {cron: \"0 0 * * *\", duration: 30m}"),
    ] {
        let (proposal, _) = proposed(&format!("update_window_start: \"{start}\"\nupdate_window_stop: {stop}"), &[]);
        assert_eq!((schedule_of(&proposal), proposal.question), (vec![expected.to_owned()], None));
    }
    let (proposal, _) = proposed("update_window_start: \"0:0:0\"\nupdate_window_stop: \"0:0:0\"", &[]);
    assert!(schedule_of(&proposal).is_empty() && proposal.question.is_none(), "{}", proposal.text);
    // A file that sets one end has the chart's default for the other.
    for (values, expected, default) in [
        ("update_window_start: \"21:0:0\"", "- {cron: \"0 21 * * *\", duration: 3h}", "update_window_stop"),
        ("update_window_stop: \"5:30:0\"", "- {cron: \"0 0 * * *\", duration: 5h30m}", "update_window_start"),
        (
            "update_window_start: \"21:0:0\"\nupdate_window_stop: null",
            "- {cron: \"0 21 * * *\", duration: 3h}",
            "update_window_stop",
        ),
    ] {
        let (proposal, _) = proposed(values, &[]);
        assert_eq!(schedule_of(&proposal), [expected], "{values}");
        assert!(proposal.question.is_none(), "{values}");
        let comment = format!("the chart's own value of {default} (\"0:0:0\")");
        assert!(proposal.text.contains(&comment), "{}", proposal.text);
    }
    let (proposal, _) = proposed("update_window_stop: \"0:0:0\"", &[]);
    assert!(schedule_of(&proposal).is_empty() && proposal.question.is_none(), "{}", proposal.text);
    // Releases differ in what they make of two equal times.
    let (proposal, _) = proposed("update_window_start: \"9:0:0\"\nupdate_window_stop: \"9:0:0\"", &[]);
    assert!(schedule_of(&proposal).is_empty() && proposal.text.contains("# the whole day in releases before 1.2.0"));
    assert!(proposal.question.unwrap().contains("are the same time"));
    for (start, stop) in [("24:0:0", "1:0:0"), ("noon", "1:0:0"), ("9:0:10", "9:0:50"), ("9:0", "1:0:0")] {
        let (proposal, _) = proposed(&format!("update_window_start: \"{start}\"\nupdate_window_stop: \"{stop}\""), &[]);
        assert!(schedule_of(&proposal).is_empty() && proposal.question.is_some(), "{start} {stop}");
    }
}

#[test]
fn cron_expression_is_asked_and_never_translated() {
    for always in ["* * * * * * *", "* * * * * *", "''"] {
        let always = if always == "''" { String::new() } else { always.to_owned() };
        let (proposal, _) = proposed(&format!("scheduler_cron_expression: \"{always}\""), &[]);
        assert!(schedule_of(&proposal).is_empty() && proposal.question.is_none(), "{always}");
    }
    let values = "scheduler_cron_expression: \"0 0 2 * * 7 *\"\nupdate_window_start: 9:0:0\nupdate_window_stop: 21:0:0";
    let (proposal, _) = proposed(values, &[]);
    assert!(schedule_of(&proposal).is_empty(), "{}", proposal.text);
    assert!(proposal.question.unwrap().contains("\"0 0 2 * * 7 *\""));
    for part in ["# Choose when", "\"0 0 2 * * 7 *\"", "1 is Sunday", "#     - {cron"] {
        assert!(proposal.text.contains(part), "{}", proposal.text);
    }
    let (proposal, _) = proposed(values, &["0 2 * * SAT 4h Europe/Berlin", "0 22 * * 1-5 90m"]);
    let expected = [
        "- {cron: \"0 2 * * SAT\", duration: 4h, timeZone: \"Europe/Berlin\"}",
        "- {cron: \"0 22 * * 1-5\", duration: 1h30m}",
    ];
    assert_eq!((schedule_of(&proposal), proposal.question), (expected.map(str::to_owned).to_vec(), None));
    let (proposal, _) = proposed(values, &["always"]);
    assert!(schedule_of(&proposal).is_empty() && proposal.question.is_none(), "{}", proposal.text);
}

#[test]
fn invalid_window_is_refused_with_its_correction() {
    for (window, expected) in [
        ("0 2 * * SAT", "five fields of cron"),
        ("0 2 * * SAT 4h Europe/Berlin more", "five fields of cron"),
        ("0 2 * * SAT four", "'four' is no duration"),
    ] {
        let error = windows(&[window.to_owned()]).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
    assert!(windows(&["always".to_owned(), "0 2 * * SAT 4h".to_owned()]).is_err());
    // The fields are judged as those of any policy.
    let odd = windows(&["0 2 * * SUNDAY 4h Europe/Nowhere".to_owned()]).unwrap();
    let proposal = propose(&Settings::default(), odd.as_deref(), "brupop-system");
    let error = format!("{:#}", parse(&proposal.text).unwrap_err());
    assert!(error.contains("windows[0].cron") && error.contains("windows[0].timeZone"), "{error}");
}

#[test]
fn value_of_earlier_operator_stays_in_its_comment() {
    let hostile = r#"max_concurrent_updates: "1\nspec: {enabled: true}\n\u001b[2J""#;
    let (proposal, policy) = proposed(hostile, &[]);
    assert_eq!(policy.max_unavailable, CountOrPercent::Count(1));
    assert!(!proposal.text.contains('\u{1b}'), "{:?}", proposal.text);
    let hostile = "scheduler_cron_expression: \"* *\\n  enabled: true\\n#\"";
    assert!(proposed(hostile, &[]).0.question.is_some());
}

#[test]
fn values_without_effect_are_named_in_the_policy() {
    let (proposal, _) = proposed("max_concurrent_updates: 2\nscheduler: {cron: x}\n\"a\\nspec: {}\": 1", &[]);
    let named = "# the earlier operator's chart has no such keys, and ignored them: ";
    let line =
        proposal.text.lines().find(|line| line.starts_with(named)).unwrap_or_else(|| panic!("{}", proposal.text));
    assert!(line.contains("scheduler") && line.contains("spec: {}"), "a key stays in its comment: {line}");
}

#[test]
fn schedule_that_a_parent_chart_may_set_is_named_in_the_policy_and_asked_for() {
    let named =
        "# the file is one for a parent chart and has no bottlerocket-update-operator.scheduler_cron_expression";
    let (proposal, _) = proposed("bottlerocket-update-operator: {max_concurrent_updates: 2}", &[]);
    let line = proposal.text.lines().find(|line| line.starts_with(named));
    assert!(line.is_some_and(|line| line.ends_with("in force")), "{}", proposal.text);
    for own in ["max_concurrent_updates: 2", "update_window_start: '0:0:0'"] {
        let values = format!("bottlerocket-update-operator: {{{own}}}");
        let (Proposal { text, question }, _) = proposed(&values, &[]);
        assert!(question.is_some_and(|question| question.contains("the parent chart may set a schedule")), "{text}");
        assert!(text.contains(CHOOSE) && !text.contains(NO_WINDOW), "{text}");
        assert_eq!(proposed(&values, &["always"]).0.question, None, "the user has answered");
    }
    for values in [
        "bottlerocket-update-operator: {max_concurrent_updates: 2, scheduler_cron_expression: '* * * * * * *'}",
        "max_concurrent_updates: 2",
    ] {
        let (Proposal { text, question }, _) = proposed(values, &[]);
        assert!(!text.contains("parent chart") && text.contains(NO_WINDOW) && question.is_none(), "{values}: {text}");
    }
}

#[test]
fn settings_are_read_from_environment_of_each_workload() {
    let workload = |name: &str, environment: &[(&str, Option<&str>)]| Workload {
        kind: "Deployment".to_owned(),
        namespace: "n".to_owned(),
        name: name.to_owned(),
        environment: environment.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect(),
        ..Workload::default()
    };
    let settings = Settings::of_workloads(&[
        workload("agent", &[("EXCLUDE_FROM_LB_WAIT_TIME_IN_SEC", Some("30"))]),
        workload("controller", &[("MAX_CONCURRENT_UPDATE", Some("2")), ("SCHEDULER_CRON_EXPRESSION", None)]),
    ]);
    let proposal = propose(&settings, None, "elsewhere");
    let (operator, policy) = parse(&proposal.text).unwrap();
    assert_eq!(operator.metadata.namespace.as_deref(), Some("elsewhere"));
    assert_eq!(policy.max_unavailable, CountOrPercent::Count(2));
    assert_eq!(policy.leave_load_balancer, Some(std::time::Duration::from_secs(30)));
    assert!(proposal.text.contains("MAX_CONCURRENT_UPDATE of Deployment n/controller (\"2\")"), "{}", proposal.text);
    let question = proposal.question.unwrap();
    assert!(question.contains("held by another object"), "{question}");
    assert!(!proposal.text.contains("recorded"), "{}", proposal.text);

    let one_end = workload("controller", &[("UPDATE_WINDOW_START", Some("21:0:0"))]);
    let question = propose(&Settings::of_workloads(&[one_end]), None, "elsewhere").question.unwrap();
    assert!(question.contains("only one end of a window"), "{question}");

    let stopped = Workload { recorded: true, ..workload("agent", &[("EXCLUDE_FROM_LB_WAIT_TIME_IN_SEC", Some("30"))]) };
    let text = propose(&Settings::of_workloads(&[stopped]), None, "elsewhere").text;
    let expected = "recorded in the ConfigMaps brupop-system/brupop-takeover-*:\n#   Deployment n/agent\napiVersion";
    assert!(text.contains(expected) && text.contains("leaveBeforeDrain: 30s"), "{text}");
}
