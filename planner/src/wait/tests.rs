use super::*;

#[test]
fn closed_window_reports_its_opening_time() {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let closed = Wait::WindowClosed { opens: Some(at) };
    assert_eq!(closed.ends_at(), Some(at));
    assert_eq!(closed.to_string(), "no window is open; the next one opens at 2027-01-15T08:00:00Z");
    assert_eq!(Wait::WindowClosed { opens: None }.to_string(), "no window is open");
}

#[test]
fn times_in_messages_have_no_fractions_of_seconds() {
    let at: Timestamp = "2026-01-01T00:00:07.123456789Z".parse().unwrap();
    for wait in [
        Wait::BackOff { until: at, reason: "BootFellBack".into(), unproven: None },
        Wait::EarlierOperatorGone { until: at },
        Wait::LeavingLoadBalancer { until: at },
        Wait::Soaking { until: at },
        Wait::Held { until: Some(at), reason: None },
        Wait::WindowClosed { opens: Some(at) },
    ] {
        assert!(wait.to_string().contains("2026-01-01T00:00:07Z"), "{wait}");
    }
}

#[test]
fn wait_that_may_end_by_itself_says_when_and_what_happens_then() {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let braked = |until| Wait::Braked { count: 3, fallen: 0, nodes: vec![], until, trial: None };
    let never = |until| Wait::BudgetNeverAllows { pod: "a/b".into(), budget: "a/c".into(), until, by_reboot: false };
    let back_off = |unproven| Wait::BackOff { until: at, reason: "HookTimedOut".into(), unproven };
    for (wait, what) in [
        (braked(Some(at)), "one node is tried alone"),
        (never(Some(at)), "its pods are asked again"),
        (Wait::Held { until: Some(at), reason: None }, "the hold is over"),
        (back_off(None), "the back-off is over"),
        (back_off(Some(Version::new(1, 20, 5))), "it is verified again"),
    ] {
        assert_eq!((wait.end(), wait.ends_at()), (Some((at, what)), Some(at)));
    }
    let sooner = "asked again from 2027-01-15T08:00:00Z, or once the spec of the budget changes";
    assert!(never(Some(at)).to_string().contains(sooner), "{}", never(Some(at)));
    for wait in [braked(None), never(None), Wait::UpToDate] {
        assert_eq!((wait.end(), wait.ends_at()), (None, None), "{wait}");
    }
}

#[test]
fn pods_that_keep_a_drain_have_the_time_of_their_message_also_where_it_is_read_from_a_record() {
    let second = |second| Timestamp::from_second(second).unwrap();
    let at = second(1_800_000_000);
    let eviction = || UnfinishedEviction { pod: "a/d".into(), approved: second(1_799_999_880), until: at };
    let blocked = |message: String| Wait::DrainBlocked { pod: "a/b".into(), budget: None, message, left: 1 };
    let unhealthy = |eviction| Wait::BudgetUnhealthy { pod: "a/b".into(), budget: "a/c".into(), count: 1, eviction };
    let counted = "the PodDisruptionBudget counts the pod of the unfinished eviction again";
    let denied = format!("the API server denies its eviction, {RETRIED_UNTIL} {at:.0}: since 2026-01-01T00:00:00Z");
    for (wait, what) in [
        (blocked(denied), DENIED_FOR_GOOD),
        (blocked(eviction().to_string()), counted),
        (blocked(format!("{HAS_UNTIL} {at:.0} to end")), "the grace period of the pod is over"),
        (unhealthy(Some(eviction())), counted),
    ] {
        assert_eq!((wait.end(), end_in(&wait.to_string())), (Some((at, what)), Some((at, what))), "{wait}");
    }
    let late = format!("it is being deleted and was to have ended by {at}");
    for wait in [blocked(late), blocked(format!("the webhook answers until {at}")), unhealthy(None)] {
        assert_eq!((wait.end(), end_in(&wait.to_string())), (None, None), "{wait}");
    }
}

#[test]
fn hold_reports_its_end_and_the_reason_of_its_user() {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let annotation = "the node carries the annotation brupop.bottlerocket.aws/hold";
    for (until, reason, text) in [
        (None, None, annotation.to_owned()),
        (None, Some("audit"), format!("{annotation} (audit)")),
        (Some(at), None, format!("{annotation}; it ends at 2027-01-15T08:00:00Z")),
        (Some(at), Some("audit"), format!("{annotation} (audit); it ends at 2027-01-15T08:00:00Z")),
    ] {
        let wait = Wait::Held { until, reason: reason.map(str::to_owned) };
        assert_eq!((wait.ends_at(), wait.to_string()), (until, text));
    }
}

#[test]
fn message_names_nodes_that_are_not_ready_and_what_to_do_about_them() {
    let wait = Wait::UnhealthyNodes { count: 5, limit: 1, nodes: vec!["a".into(), "b".into()] };
    let text = "5 node(s) are not Ready, a, b first, and spec.health.before.maxUnhealthyNodes allows 1; repair them, or hold or delete those \
                that do not come back";
    assert_eq!(wait.to_string(), text);
}

#[test]
fn canary_step_says_that_no_ready_node_runs_the_version() {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let wait = |until, approval: Option<&str>| {
        let approval = approval.map(str::to_owned);
        Wait::CanaryStep { step: 1, until, approval, nodes: vec![], none_runs: true }.to_string()
    };
    let soaks = "canary step 1 is not passed; its soak ends at 2027-01-15T08:00:00Z, and no Ready node runs the version any \
                 more";
    assert_eq!(wait(Some(at), None), soaks);
    let asks = "canary step 1 waits for approval (no Ready node runs the version any more)";
    assert_eq!(without_command(&wait(None, Some("7/1"))), asks);
}

#[test]
fn message_names_rule_that_rejects_version() {
    let version = || Version::new(1, 20, 5);
    for (wait, text) in [
        (
            Wait::Excluded { version: version(), rule: "1.20".into() },
            "1.20.5 is excluded by the entry '1.20' of spec.version.exclude",
        ),
        (
            Wait::NotOffered { target: "1.21".into(), newest: Some(version()) },
            "the host offers no version for spec.version.target '1.21'; the newest that it offers is 1.20.5",
        ),
    ] {
        assert_eq!(wait.to_string(), text);
    }
}
