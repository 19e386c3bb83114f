mod minutes;

use serde_json::{Value, json};

use super::*;

fn read(schedule: &Value) -> (Schedule, Vec<PolicyError>) {
    let mut errors = Vec::new();
    let schedule = serde_json::from_value(schedule.clone()).unwrap();
    (Schedule::parse("spec.schedule", &schedule, &mut errors), errors)
}

fn schedule(text: &Value) -> Schedule {
    let (schedule, errors) = read(text);
    assert_eq!(errors, [], "{text}");
    schedule
}

/// Returns a schedule with one window.
fn window(cron: &str, duration: &str, zone: &str) -> Value {
    json!({"windows": [{"cron": cron, "duration": duration, "timeZone": zone}]})
}

/// Returns a state in words, for tables.
fn words(state: &WindowState) -> String {
    let moment = |at: &Option<Timestamp>| at.map_or("ever".to_owned(), |at| at.to_string());
    match state {
        WindowState::Open { until } => format!("open until {}", moment(until)),
        WindowState::Closed { opens, blackout: false } => format!("closed until {}", moment(opens)),
        WindowState::Closed { opens, blackout: true } => format!("blackout until {}", moment(opens)),
    }
}

/// Checks cases, with an empty line between any two: each has a sentence, a schedule, and its state at some moments.
fn check(cases: &str) {
    for case in cases.trim().split("\n\n") {
        let mut lines = case.lines().map(str::trim);
        let (sentence, text) = (lines.next().unwrap(), lines.next().unwrap());
        let schedule = schedule(&serde_json::from_str(text).unwrap());
        let states: Vec<_> = lines.map(|line| line.split_once(' ').unwrap()).collect();
        assert!(!states.is_empty(), "{sentence}");
        for (now, expected) in states {
            assert_eq!(words(&schedule.at(now.parse().unwrap())), expected, "{sentence}, at {now}");
        }
    }
}

#[test]
fn windows_open_and_close() {
    check(
        r#"
        no schedule is always open
        {}
          2026-11-21T12:00:00Z open until ever

        a window is open from its first moment to its last, on its days
        {"windows": [{"cron": "0 2 * * 1-5", "duration": "4h", "timeZone": "UTC"}]}
          2026-11-20T01:59:59.999Z closed until 2026-11-20T02:00:00Z
          2026-11-20T02:00:00Z open until 2026-11-20T06:00:00Z
          2026-11-20T05:59:59.999999999Z open until 2026-11-20T06:00:00Z
          2026-11-20T06:00:00Z closed until 2026-11-23T02:00:00Z
          2026-11-21T03:00:00Z closed until 2026-11-23T02:00:00Z

        Sunday is day 0, day 7 and SUN
        {"windows": [{"cron": "0 2 * * 0", "duration": "1h"}, {"cron": "0 4 * * 7", "duration": "1h"}, {"cron": "0 6 * * sun", "duration": "1h"}]}
          2026-11-21T12:00:00Z closed until 2026-11-22T02:00:00Z
          2026-11-22T03:00:00Z closed until 2026-11-22T04:00:00Z
          2026-11-22T05:00:00Z closed until 2026-11-22T06:00:00Z
          2026-11-22T07:00:00Z closed until 2026-11-29T02:00:00Z

        one open window is enough
        {"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": "0 12 * * *", "duration": "2h"}]}
          2026-11-20T03:00:00Z open until 2026-11-20T04:00:00Z
          2026-11-20T11:00:00Z closed until 2026-11-20T12:00:00Z
          2026-11-20T13:00:00Z open until 2026-11-20T14:00:00Z

        windows that overlap are one
        {"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": "0 3 * * *", "duration": "2h"}]}
          2026-11-20T02:30:00Z open until 2026-11-20T05:00:00Z
          2026-11-20T03:30:00Z open until 2026-11-20T05:00:00Z

        windows that touch are one
        {"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": "0 4 * * *", "duration": "2h"}]}
          2026-11-20T03:00:00Z open until 2026-11-20T06:00:00Z

        a window that opens again while it is open stays open
        {"windows": [{"cron": "0,30 2-4 * * *", "duration": "1h", "timeZone": "UTC"}]}
          2026-11-20T02:00:00Z open until 2026-11-20T05:30:00Z
          2026-11-20T05:29:00Z open until 2026-11-20T05:30:00Z

        windows of whole days in a row are one
        {"windows": [{"cron": "0 0 * * 1-5", "duration": "24h", "timeZone": "UTC"}]}
          2026-11-18T12:00:00Z open until 2026-11-21T00:00:00Z
          2026-11-21T12:00:00Z closed until 2026-11-23T00:00:00Z

        a window may be weeks long
        {"windows": [{"cron": "0 0 1 * *", "duration": "744h", "timeZone": "UTC"}]}
          2027-02-28T12:00:00Z open until ever
          2026-11-30T12:00:00Z open until ever

        of what follows on itself all year no end is shown
        {"windows": [{"cron": "* * * * *", "duration": "1m", "timeZone": "UTC"}]}
          2026-11-18T12:00:30Z open until ever

        what is rare is found in years
        {"windows": [{"cron": "0 0 29 FEB *", "duration": "1h", "timeZone": "UTC"}]}
          2026-11-18T12:00:00Z closed until 2028-02-29T00:00:00Z
          2028-02-29T01:00:00Z closed until 2032-02-29T00:00:00Z
          2096-02-29T01:00:00Z closed until ever

        a time zone without daylight saving, and half an hour off
        {"windows": [{"cron": "0 2 * * *", "duration": "1h", "timeZone": "Asia/Kolkata"}]}
          2027-03-28T00:00:00Z closed until 2027-03-28T20:30:00Z
          2026-10-25T20:30:00Z open until 2026-10-25T21:30:00Z

        the days of a window are those of its time zone
        {"windows": [{"cron": "0 20 * * SAT", "duration": "1h", "timeZone": "America/New_York"}]}
          2026-11-21T12:00:00Z closed until 2026-11-22T01:00:00Z

        windows of several zones
        {"windows": [{"cron": "0 22 * * *", "duration": "3h", "timeZone": "Europe/Berlin"}, {"cron": "0 22 * * *", "duration": "3h", "timeZone": "America/New_York"}]}
          2026-11-20T20:00:00Z closed until 2026-11-20T21:00:00Z
          2026-11-21T00:00:00Z closed until 2026-11-21T03:00:00Z
        "#,
    );
}

#[test]
fn windows_follow_local_time_across_dst_changes() {
    check(
        r#"
        the same hour is another moment in summer
        {"windows": [{"cron": "0 5 * * *", "duration": "1h", "timeZone": "Europe/Berlin"}]}
          2027-03-27T12:00:00Z closed until 2027-03-28T03:00:00Z
          2026-10-24T12:00:00Z closed until 2026-10-25T04:00:00Z
          2026-10-23T12:00:00Z closed until 2026-10-24T03:00:00Z

        a window in an hour that is left out opens with the change
        {"windows": [{"cron": "30 2 * * *", "duration": "1h", "timeZone": "Europe/Berlin"}]}
          2027-03-28T00:59:59Z closed until 2027-03-28T01:00:00Z
          2027-03-28T01:00:00Z open until 2027-03-28T02:00:00Z
          2027-03-28T01:59:59Z open until 2027-03-28T02:00:00Z
          2027-03-28T02:00:00Z closed until 2027-03-29T00:30:00Z

        the same in another zone, with several hours and on its day of the week
        {"windows": [{"cron": "30 2,14 * * SUN", "duration": "1h", "timeZone": "America/New_York"}]}
          2027-03-14T06:00:00Z closed until 2027-03-14T07:00:00Z
          2027-03-14T07:30:00Z open until 2027-03-14T08:00:00Z

        where half an hour is left out
        {"windows": [{"cron": "15 2 * * *", "duration": "1h", "timeZone": "Australia/Lord_Howe"}]}
          2026-10-03T15:00:00Z closed until 2026-10-03T15:30:00Z
          2026-10-03T16:29:00Z open until 2026-10-03T16:30:00Z
          2026-10-03T16:30:00Z closed until 2026-10-04T15:15:00Z

        where midnight is left out
        {"windows": [{"cron": "0 0 * * 5", "duration": "1h", "timeZone": "Africa/Cairo"}]}
          2026-04-23T12:00:00Z closed until 2026-04-23T22:00:00Z

        a window over the hour that is left out lasts its hours
        {"windows": [{"cron": "0 1 * * *", "duration": "4h", "timeZone": "Europe/Berlin"}]}
          2027-03-28T00:30:00Z open until 2027-03-28T04:00:00Z

        a window in an hour that comes twice opens once, the first time
        {"windows": [{"cron": "30 2 * * *", "duration": "30m", "timeZone": "Europe/Berlin"}]}
          2026-10-25T00:00:00Z closed until 2026-10-25T00:30:00Z
          2026-10-25T00:30:00Z open until 2026-10-25T01:00:00Z
          2026-10-25T01:00:00Z closed until 2026-10-26T01:30:00Z
          2026-10-25T01:30:00Z closed until 2026-10-26T01:30:00Z

        the same in another zone
        {"windows": [{"cron": "0 1 * * *", "duration": "30m", "timeZone": "America/New_York"}]}
          2026-11-01T05:00:00Z open until 2026-11-01T05:30:00Z
          2026-11-01T06:00:00Z closed until 2026-11-02T06:00:00Z

        where half an hour comes twice
        {"windows": [{"cron": "45 1 * * *", "duration": "15m", "timeZone": "Australia/Lord_Howe"}]}
          2027-04-03T14:45:00Z open until 2027-04-03T15:00:00Z
          2027-04-03T15:15:00Z closed until 2027-04-04T15:15:00Z

        a window over the hour that comes twice lasts its hours, too
        {"windows": [{"cron": "0 1 * * *", "duration": "4h", "timeZone": "Europe/Berlin"}]}
          2026-10-25T02:30:00Z open until 2026-10-25T03:00:00Z

        a window of each hour follows the clock
        {"windows": [{"cron": "30 * * * *", "duration": "20m", "timeZone": "Europe/Berlin"}]}
          2026-10-25T00:50:00Z closed until 2026-10-25T01:30:00Z
          2026-10-25T01:30:00Z open until 2026-10-25T01:50:00Z
          2027-03-28T00:50:00Z closed until 2027-03-28T01:30:00Z

        windows of whole days leave no hour out
        {"windows": [{"cron": "0 0 * * *", "duration": "24h", "timeZone": "Europe/Berlin"}]}
          2026-10-24T23:30:00Z open until 2026-10-25T22:00:00Z
        "#,
    );
}

#[test]
fn stop_starting_before_closes_window_early() {
    check(
        r#"
        a window closes early
        {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "UTC"}], "stopStartingBefore": "30m"}
          2026-11-20T05:29:59Z open until 2026-11-20T05:30:00Z
          2026-11-20T05:30:00Z closed until 2026-11-21T02:00:00Z
          2026-11-20T06:00:00Z closed until 2026-11-21T02:00:00Z

        not where another one continues
        {"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": "0 4 * * *", "duration": "1h"}], "stopStartingBefore": "45m"}
          2026-11-20T03:45:00Z open until 2026-11-20T04:15:00Z
          2026-11-20T04:15:00Z closed until 2026-11-21T02:00:00Z

        nor where the same one continues all year
        {"windows": [{"cron": "0 0 * * *", "duration": "24h", "timeZone": "UTC"}], "stopStartingBefore": "23h"}
          2026-11-20T23:59:00Z open until ever

        a window of weeks, in which nearly nothing may start
        {"windows": [{"cron": "0 0 1 * *", "duration": "240h", "timeZone": "UTC"}], "stopStartingBefore": "239h"}
          2026-11-01T00:30:00Z open until 2026-11-01T01:00:00Z
          2026-11-01T01:00:00Z closed until 2026-12-01T00:00:00Z

        a blackout is an end as well
        {"stopStartingBefore": "1h", "blackouts": [{"from": "2026-12-20"}]}
          2026-12-19T22:00:00Z open until 2026-12-19T23:00:00Z
          2026-12-19T23:00:00Z blackout until 2026-12-21T00:00:00Z
        "#,
    );
}

#[test]
fn blackout_overrides_windows() {
    check(
        r#"
        its first and its last day belong to it
        {"blackouts": [{"from": "2026-12-24", "to": "2026-12-26"}]}
          2026-12-23T23:59:59Z open until 2026-12-24T00:00:00Z
          2026-12-24T00:00:00Z blackout until 2026-12-27T00:00:00Z
          2026-12-26T23:59:59Z blackout until 2026-12-27T00:00:00Z
          2026-12-27T00:00:00Z open until ever

        after it, the next window
        {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "UTC"}], "blackouts": [{"from": "2026-12-24", "to": "2026-12-26"}]}
          2026-12-23T12:00:00Z closed until 2026-12-27T02:00:00Z
          2026-12-25T03:00:00Z blackout until 2026-12-27T02:00:00Z
          2026-12-25T12:00:00Z blackout until 2026-12-27T02:00:00Z

        a window that it cuts off at one end is open at the other
        {"windows": [{"cron": "0 22 * * *", "duration": "4h", "timeZone": "UTC"}], "blackouts": [{"from": "2026-12-24", "to": "2026-12-26"}]}
          2026-12-23T23:00:00Z open until 2026-12-24T00:00:00Z
          2026-12-24T01:00:00Z blackout until 2026-12-27T00:00:00Z
          2026-12-27T00:00:00Z open until 2026-12-27T02:00:00Z

        where too little is left of a window after it, the next one
        {"windows": [{"cron": "0 22 * * *", "duration": "4h", "timeZone": "UTC"}], "blackouts": [{"from": "2026-12-24", "to": "2026-12-26"}], "stopStartingBefore": "3h"}
          2026-12-23T22:30:00Z blackout until 2026-12-27T22:00:00Z
          2026-12-25T22:30:00Z blackout until 2026-12-27T22:00:00Z

        its days are those of its time zone
        {"blackouts": [{"from": "2026-12-20", "timeZone": "America/New_York"}]}
          2026-12-20T04:59:59Z open until 2026-12-20T05:00:00Z
          2026-12-21T04:59:59Z blackout until 2026-12-21T05:00:00Z

        a day on which clocks change is one day
        {"blackouts": [{"from": "2026-10-25", "timeZone": "Europe/Berlin"}]}
          2026-10-24T22:00:00Z blackout until 2026-10-25T23:00:00Z
          2026-10-25T22:59:59Z blackout until 2026-10-25T23:00:00Z

        a day without a midnight begins with the change of the clock
        {"blackouts": [{"from": "2026-04-24", "timeZone": "Africa/Cairo"}]}
          2026-04-23T21:59:59Z open until 2026-04-23T22:00:00Z
          2026-04-23T22:00:00Z blackout until 2026-04-24T21:00:00Z

        also where the change begins before midnight
        {"blackouts": [{"from": "1919-03-31", "timeZone": "America/Toronto"}]}
          1919-03-31T04:29:59Z open until 1919-03-31T04:30:00Z
          1919-03-31T04:30:00Z blackout until 1919-04-01T04:00:00Z

        blackouts that touch or overlap are one
        {"blackouts": [{"from": "2026-12-22", "to": "2026-12-23"}, {"from": "2026-12-20", "to": "2026-12-21"}, {"from": "2026-12-20"}]}
          2026-12-20T12:00:00Z blackout until 2026-12-24T00:00:00Z

        one that never ends
        {"blackouts": [{"from": "2026-12-22", "to": "9999-12-31"}]}
          2026-12-25T12:00:00Z blackout until ever
        "#,
    );
}

#[test]
fn invalid_policy_error_names_its_field() {
    let one = |key: &str, value: Value| {
        let mut window = json!({"cron": "0 2 * * *", "duration": "4h"});
        window[key] = value;
        json!({"windows": [window]})
    };
    let days = |from: &str, to: &str| json!({"blackouts": [{"from": from, "to": to}]});
    for (text, field, message) in [
        (one("timeZone", json!("Mars/Base")), "windows[0].timeZone", "such as Europe/Berlin"),
        (one("timeZone", json!("Etc/Unknown")), "windows[0].timeZone", "such as Europe/Berlin"),
        (one("cron", json!("61 2 * * *")), "windows[0].cron", "the minute '61' of '61 2 * * *' cannot be read"),
        (one("cron", json!("0 0 30 2 *")), "windows[0].cron", "names no day that any year has"),
        (one("duration", json!("0s")), "windows[0].duration", "such as 4h"),
        (one("duration", json!("745h")), "windows[0].duration", "at most 31 days"),
        (one("duration", json!("999999999h999999999h")), "windows[0].duration", "at most 31 days"),
        (
            json!({"stopStartingBefore": "1h", "windows": [{"cron": "0 2 * * *", "duration": "4h"},
                {"cron": "0 9 * * *", "duration": "1h"}]}),
            "stopStartingBefore",
            "in a window of 1h",
        ),
        (days("2026-02-30", "2026-03-01"), "blackouts[0].from", "such as 2026-12-20"),
        (days("2026-02-01", "2026-02-29"), "blackouts[0].to", "such as 2026-12-20"),
        (days("20261220", "2026-12-21"), "blackouts[0].from", "such as 2026-12-20"),
        (days("2026-12-21", "2026-12-20"), "blackouts[0].to", "2026-12-20 is before 2026-12-21"),
        (
            json!({"blackouts": [{"from": "2026-12-21"}, {"from": "2026-12-22", "timeZone": "CEST"}]}),
            "blackouts[1].timeZone",
            "such as Europe/Berlin",
        ),
    ] {
        let errors = read(&text).1;
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert_eq!(errors[0].field, format!("spec.schedule.{field}"), "{text}");
        assert!(errors[0].message.contains(message), "{text}: {}", errors[0].message);
    }
    let all = json!({"windows": [{"cron": "x", "duration": "0s", "timeZone": "Mars"}], "blackouts": [{"from": "x", "to": "y"}]});
    assert_eq!(read(&all).1.len(), 5, "every mistake is named at once");
}
