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

fn with(mut schedule: Value, key: &str, value: Value) -> Value {
    schedule[key] = value;
    schedule
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

/// A sentence, a schedule, and its state at some moments.
type Case<'a> = (&'a str, Value, &'a [(&'a str, &'a str)]);

fn check(cases: &[Case<'_>]) {
    for (sentence, text, moments) in cases {
        let schedule = schedule(text);
        for (now, expected) in *moments {
            assert_eq!(words(&schedule.at(now.parse().unwrap())), *expected, "{sentence}, at {now}");
        }
    }
}

#[test]
fn windows_open_and_close() {
    let weekdays = || window("0 2 * * 1-5", "4h", "UTC");
    let pair = |second: &str| json!({"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": second, "duration": "2h"}]});
    check(&[
        ("no schedule is always open", json!({}), &[("2026-11-21T12:00:00Z", "open until ever")]),
        (
            "a window is open from its first moment to its last, on its days",
            weekdays(),
            &[
                ("2026-11-20T01:59:59.999Z", "closed until 2026-11-20T02:00:00Z"),
                ("2026-11-20T02:00:00Z", "open until 2026-11-20T06:00:00Z"),
                ("2026-11-20T05:59:59.999999999Z", "open until 2026-11-20T06:00:00Z"),
                ("2026-11-20T06:00:00Z", "closed until 2026-11-23T02:00:00Z"),
                ("2026-11-21T03:00:00Z", "closed until 2026-11-23T02:00:00Z"),
            ],
        ),
        (
            "Sunday is day 0, day 7 and SUN",
            json!({"windows": [{"cron": "0 2 * * 0", "duration": "1h"}, {"cron": "0 4 * * 7", "duration": "1h"},
                {"cron": "0 6 * * sun", "duration": "1h"}]}),
            &[
                ("2026-11-21T12:00:00Z", "closed until 2026-11-22T02:00:00Z"),
                ("2026-11-22T03:00:00Z", "closed until 2026-11-22T04:00:00Z"),
                ("2026-11-22T05:00:00Z", "closed until 2026-11-22T06:00:00Z"),
                ("2026-11-22T07:00:00Z", "closed until 2026-11-29T02:00:00Z"),
            ],
        ),
        (
            "one open window is enough",
            pair("0 12 * * *"),
            &[
                ("2026-11-20T03:00:00Z", "open until 2026-11-20T04:00:00Z"),
                ("2026-11-20T11:00:00Z", "closed until 2026-11-20T12:00:00Z"),
                ("2026-11-20T13:00:00Z", "open until 2026-11-20T14:00:00Z"),
            ],
        ),
        (
            "windows that overlap are one",
            pair("0 3 * * *"),
            &[
                ("2026-11-20T02:30:00Z", "open until 2026-11-20T05:00:00Z"),
                ("2026-11-20T03:30:00Z", "open until 2026-11-20T05:00:00Z"),
            ],
        ),
        (
            "windows that touch are one",
            pair("0 4 * * *"),
            &[("2026-11-20T03:00:00Z", "open until 2026-11-20T06:00:00Z")],
        ),
        (
            "a window that opens again while it is open stays open",
            window("0,30 2-4 * * *", "1h", "UTC"),
            &[
                ("2026-11-20T02:00:00Z", "open until 2026-11-20T05:30:00Z"),
                ("2026-11-20T05:29:00Z", "open until 2026-11-20T05:30:00Z"),
            ],
        ),
        (
            "windows of whole days in a row are one",
            window("0 0 * * 1-5", "24h", "UTC"),
            &[
                ("2026-11-18T12:00:00Z", "open until 2026-11-21T00:00:00Z"),
                ("2026-11-21T12:00:00Z", "closed until 2026-11-23T00:00:00Z"),
            ],
        ),
        (
            "a window may be weeks long",
            window("0 0 1 * *", "744h", "UTC"),
            &[("2027-02-28T12:00:00Z", "open until ever"), ("2026-11-30T12:00:00Z", "open until ever")],
        ),
        (
            "of what follows on itself all year no end is shown",
            window("* * * * *", "1m", "UTC"),
            &[("2026-11-18T12:00:30Z", "open until ever")],
        ),
        (
            "what is rare is found in years",
            window("0 0 29 FEB *", "1h", "UTC"),
            &[
                ("2026-11-18T12:00:00Z", "closed until 2028-02-29T00:00:00Z"),
                ("2028-02-29T01:00:00Z", "closed until 2032-02-29T00:00:00Z"),
                ("2096-02-29T01:00:00Z", "closed until ever"),
            ],
        ),
        (
            "a time zone without daylight saving, and half an hour off",
            window("0 2 * * *", "1h", "Asia/Kolkata"),
            &[
                ("2027-03-28T00:00:00Z", "closed until 2027-03-28T20:30:00Z"),
                ("2026-10-25T20:30:00Z", "open until 2026-10-25T21:30:00Z"),
            ],
        ),
        (
            "the days of a window are those of its time zone",
            window("0 20 * * SAT", "1h", "America/New_York"),
            &[("2026-11-21T12:00:00Z", "closed until 2026-11-22T01:00:00Z")],
        ),
        (
            "windows of several zones",
            json!({"windows": [{"cron": "0 22 * * *", "duration": "3h", "timeZone": "Europe/Berlin"},
                {"cron": "0 22 * * *", "duration": "3h", "timeZone": "America/New_York"}]}),
            &[
                ("2026-11-20T20:00:00Z", "closed until 2026-11-20T21:00:00Z"),
                ("2026-11-21T00:00:00Z", "closed until 2026-11-21T03:00:00Z"),
            ],
        ),
    ]);
}

#[test]
fn windows_follow_local_time_across_dst_changes() {
    const GAP: &str = "2027-03-28T00:59:59Z";
    check(&[
        (
            "the same hour is another moment in summer",
            window("0 5 * * *", "1h", "Europe/Berlin"),
            &[
                ("2027-03-27T12:00:00Z", "closed until 2027-03-28T03:00:00Z"),
                ("2026-10-24T12:00:00Z", "closed until 2026-10-25T04:00:00Z"),
                ("2026-10-23T12:00:00Z", "closed until 2026-10-24T03:00:00Z"),
            ],
        ),
        (
            "a window in an hour that is left out opens with the change",
            window("30 2 * * *", "1h", "Europe/Berlin"),
            &[
                (GAP, "closed until 2027-03-28T01:00:00Z"),
                ("2027-03-28T01:00:00Z", "open until 2027-03-28T02:00:00Z"),
                ("2027-03-28T01:59:59Z", "open until 2027-03-28T02:00:00Z"),
                ("2027-03-28T02:00:00Z", "closed until 2027-03-29T00:30:00Z"),
            ],
        ),
        (
            "the same in another zone, with several hours and on its day of the week",
            window("30 2,14 * * SUN", "1h", "America/New_York"),
            &[
                ("2027-03-14T06:00:00Z", "closed until 2027-03-14T07:00:00Z"),
                ("2027-03-14T07:30:00Z", "open until 2027-03-14T08:00:00Z"),
            ],
        ),
        (
            "where half an hour is left out",
            window("15 2 * * *", "1h", "Australia/Lord_Howe"),
            &[
                ("2026-10-03T15:00:00Z", "closed until 2026-10-03T15:30:00Z"),
                ("2026-10-03T16:29:00Z", "open until 2026-10-03T16:30:00Z"),
                ("2026-10-03T16:30:00Z", "closed until 2026-10-04T15:15:00Z"),
            ],
        ),
        (
            "where midnight is left out",
            window("0 0 * * 5", "1h", "Africa/Cairo"),
            &[("2026-04-23T12:00:00Z", "closed until 2026-04-23T22:00:00Z")],
        ),
        (
            "a window over the hour that is left out lasts its hours",
            window("0 1 * * *", "4h", "Europe/Berlin"),
            &[("2027-03-28T00:30:00Z", "open until 2027-03-28T04:00:00Z")],
        ),
        (
            "a window in an hour that comes twice opens once, the first time",
            window("30 2 * * *", "30m", "Europe/Berlin"),
            &[
                ("2026-10-25T00:00:00Z", "closed until 2026-10-25T00:30:00Z"),
                ("2026-10-25T00:30:00Z", "open until 2026-10-25T01:00:00Z"),
                ("2026-10-25T01:00:00Z", "closed until 2026-10-26T01:30:00Z"),
                ("2026-10-25T01:30:00Z", "closed until 2026-10-26T01:30:00Z"),
            ],
        ),
        (
            "the same in another zone",
            window("0 1 * * *", "30m", "America/New_York"),
            &[
                ("2026-11-01T05:00:00Z", "open until 2026-11-01T05:30:00Z"),
                ("2026-11-01T06:00:00Z", "closed until 2026-11-02T06:00:00Z"),
            ],
        ),
        (
            "where half an hour comes twice",
            window("45 1 * * *", "15m", "Australia/Lord_Howe"),
            &[
                ("2027-04-03T14:45:00Z", "open until 2027-04-03T15:00:00Z"),
                ("2027-04-03T15:15:00Z", "closed until 2027-04-04T15:15:00Z"),
            ],
        ),
        (
            "a window over the hour that comes twice lasts its hours, too",
            window("0 1 * * *", "4h", "Europe/Berlin"),
            &[("2026-10-25T02:30:00Z", "open until 2026-10-25T03:00:00Z")],
        ),
        (
            "a window of each hour follows the clock",
            window("30 * * * *", "20m", "Europe/Berlin"),
            &[
                ("2026-10-25T00:50:00Z", "closed until 2026-10-25T01:30:00Z"),
                ("2026-10-25T01:30:00Z", "open until 2026-10-25T01:50:00Z"),
                ("2027-03-28T00:50:00Z", "closed until 2027-03-28T01:30:00Z"),
            ],
        ),
        (
            "windows of whole days leave no hour out",
            window("0 0 * * *", "24h", "Europe/Berlin"),
            &[("2026-10-24T23:30:00Z", "open until 2026-10-25T22:00:00Z")],
        ),
    ]);
}

#[test]
fn stop_starting_before_closes_window_early() {
    let stop = |schedule: Value, before: &str| with(schedule, "stopStartingBefore", json!(before));
    check(&[
        (
            "a window closes early",
            stop(window("0 2 * * *", "4h", "UTC"), "30m"),
            &[
                ("2026-11-20T05:29:59Z", "open until 2026-11-20T05:30:00Z"),
                ("2026-11-20T05:30:00Z", "closed until 2026-11-21T02:00:00Z"),
                ("2026-11-20T06:00:00Z", "closed until 2026-11-21T02:00:00Z"),
            ],
        ),
        (
            "not where another one continues",
            stop(
                json!({"windows": [{"cron": "0 2 * * *", "duration": "2h"}, {"cron": "0 4 * * *", "duration": "1h"}]}),
                "45m",
            ),
            &[
                ("2026-11-20T03:45:00Z", "open until 2026-11-20T04:15:00Z"),
                ("2026-11-20T04:15:00Z", "closed until 2026-11-21T02:00:00Z"),
            ],
        ),
        (
            "nor where the same one continues all year",
            stop(window("0 0 * * *", "24h", "UTC"), "23h"),
            &[("2026-11-20T23:59:00Z", "open until ever")],
        ),
        (
            "a window of weeks, in which nearly nothing may start",
            stop(window("0 0 1 * *", "240h", "UTC"), "239h"),
            &[
                ("2026-11-01T00:30:00Z", "open until 2026-11-01T01:00:00Z"),
                ("2026-11-01T01:00:00Z", "closed until 2026-12-01T00:00:00Z"),
            ],
        ),
        (
            "a blackout is an end as well",
            json!({"stopStartingBefore": "1h", "blackouts": [{"from": "2026-12-20"}]}),
            &[
                ("2026-12-19T22:00:00Z", "open until 2026-12-19T23:00:00Z"),
                ("2026-12-19T23:00:00Z", "blackout until 2026-12-21T00:00:00Z"),
            ],
        ),
    ]);
}

#[test]
fn blackout_overrides_windows() {
    let christmas = |schedule: Value| with(schedule, "blackouts", json!([{"from": "2026-12-24", "to": "2026-12-26"}]));
    check(&[
        (
            "its first and its last day belong to it",
            christmas(json!({})),
            &[
                ("2026-12-23T23:59:59Z", "open until 2026-12-24T00:00:00Z"),
                ("2026-12-24T00:00:00Z", "blackout until 2026-12-27T00:00:00Z"),
                ("2026-12-26T23:59:59Z", "blackout until 2026-12-27T00:00:00Z"),
                ("2026-12-27T00:00:00Z", "open until ever"),
            ],
        ),
        (
            "after it, the next window",
            christmas(window("0 2 * * *", "4h", "UTC")),
            &[
                ("2026-12-23T12:00:00Z", "closed until 2026-12-27T02:00:00Z"),
                ("2026-12-25T03:00:00Z", "blackout until 2026-12-27T02:00:00Z"),
                ("2026-12-25T12:00:00Z", "blackout until 2026-12-27T02:00:00Z"),
            ],
        ),
        (
            "a window that it cuts off at one end is open at the other",
            christmas(window("0 22 * * *", "4h", "UTC")),
            &[
                ("2026-12-23T23:00:00Z", "open until 2026-12-24T00:00:00Z"),
                ("2026-12-24T01:00:00Z", "blackout until 2026-12-27T00:00:00Z"),
                ("2026-12-27T00:00:00Z", "open until 2026-12-27T02:00:00Z"),
            ],
        ),
        (
            "where too little is left of a window after it, the next one",
            with(christmas(window("0 22 * * *", "4h", "UTC")), "stopStartingBefore", json!("3h")),
            &[
                ("2026-12-23T22:30:00Z", "blackout until 2026-12-27T22:00:00Z"),
                ("2026-12-25T22:30:00Z", "blackout until 2026-12-27T22:00:00Z"),
            ],
        ),
        (
            "its days are those of its time zone",
            json!({"blackouts": [{"from": "2026-12-20", "timeZone": "America/New_York"}]}),
            &[
                ("2026-12-20T04:59:59Z", "open until 2026-12-20T05:00:00Z"),
                ("2026-12-21T04:59:59Z", "blackout until 2026-12-21T05:00:00Z"),
            ],
        ),
        (
            "a day on which clocks change is one day",
            json!({"blackouts": [{"from": "2026-10-25", "timeZone": "Europe/Berlin"}]}),
            &[
                ("2026-10-24T22:00:00Z", "blackout until 2026-10-25T23:00:00Z"),
                ("2026-10-25T22:59:59Z", "blackout until 2026-10-25T23:00:00Z"),
            ],
        ),
        (
            "a day without a midnight begins with the change of the clock",
            json!({"blackouts": [{"from": "2026-04-24", "timeZone": "Africa/Cairo"}]}),
            &[
                ("2026-04-23T21:59:59Z", "open until 2026-04-23T22:00:00Z"),
                ("2026-04-23T22:00:00Z", "blackout until 2026-04-24T21:00:00Z"),
            ],
        ),
        (
            "also where the change begins before midnight",
            json!({"blackouts": [{"from": "1919-03-31", "timeZone": "America/Toronto"}]}),
            &[
                ("1919-03-31T04:29:59Z", "open until 1919-03-31T04:30:00Z"),
                ("1919-03-31T04:30:00Z", "blackout until 1919-04-01T04:00:00Z"),
            ],
        ),
        (
            "blackouts that touch or overlap are one",
            json!({"blackouts": [{"from": "2026-12-22", "to": "2026-12-23"}, {"from": "2026-12-20", "to": "2026-12-21"},
                {"from": "2026-12-20"}]}),
            &[("2026-12-20T12:00:00Z", "blackout until 2026-12-24T00:00:00Z")],
        ),
        (
            "one that never ends",
            json!({"blackouts": [{"from": "2026-12-22", "to": "9999-12-31"}]}),
            &[("2026-12-25T12:00:00Z", "blackout until ever")],
        ),
    ]);
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
