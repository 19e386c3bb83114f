//! An hour of each fault, in simulated time: the agent survives it, calls neither host nor web API without pause, and
//! continues when it is over.

use integ::host::{Command, Fault, RebootFault, Transport, Worker};
use models::condition::find_condition;
use models::shadow::{HOST_REACHABLE, HostPolicy, HostState};
use semver::Version;

use super::*;
use crate::bench::web::Weather;

/// Maximum calls in an hour of a fault: a busy host is called once a second, everything else less often.
const CALLS: u64 = 3_700;
/// With one connection for each request, and one more for each stream, every five seconds on average.
const TRAFFIC: u64 = 2_400;
/// Lines logged for each of them; never a turn of the loop without any.
const LINES: u64 = 30_000;

/// Path of the host's refresh.
const REFRESH: &str = "/actions/refresh-updates";

/// Names the cases to run, by words of their sentence.
const ONLY: &str = "BRUPOP_CASE";

/// A fault.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The host: this request, in this way.
    Host(&'static str, &'static str, fn() -> Transport),
    /// Each connection to the host is closed at once.
    Connection,
    /// The web API.
    Web(Weather),
    /// Another client's command occupies the host.
    Held,
    /// None, as the baseline.
    Nothing,
}

/// The sentence, the fault, and the reported state of the host (where the web API accepts reports).
type Case = (&'static str, Trouble, Option<&'static str>);

const CASES: &[Case] = &[
    ("all is well", Trouble::Nothing, Some("Answered")),
    ("the host cuts each connection", Trouble::Connection, Some("BadAnswer")),
    ("the host reads and does not answer", Trouble::Host("*", "/", || Transport::LostBefore), Some("BadAnswer")),
    ("the host acts and does not answer", Trouble::Host("*", "/", || Transport::LostAfter), Some("BadAnswer")),
    ("the host is cut off in mid-reply", Trouble::Host("*", "/", || Transport::CutReply), Some("BadAnswer")),
    ("the host answers garbage", Trouble::Host("*", "/", || Transport::Garbage), Some("BadAnswer")),
    ("the host's status is garbage", Trouble::Host("GET", "/updates", || Transport::Garbage), Some("BadAnswer")),
    ("the host hangs", Trouble::Host("*", "/", || Transport::Slow(Duration::from_secs(25))), Some("Timeout")),
    ("the host is slow", Trouble::Host("*", "/", || Transport::Slow(Duration::from_secs(15))), Some("Answered")),
    ("the host fails", Trouble::Host("*", "/", || Transport::Status(500, "no".into())), Some("BadAnswer")),
    ("the host is overloaded", Trouble::Host("*", "/", || Transport::Status(503, String::new())), Some("BadAnswer")),
    ("the host starts nothing", Trouble::Host("POST", "/", || Transport::Status(500, "no".into())), Some("Answered")),
    ("the host starts nothing, oddly", Trouble::Host("POST", "/", || Transport::Status(418, "tea".into())), None),
    ("the host drops every command", Trouble::Host("POST", "/", || Transport::LostBefore), None),
    ("the host loses the answer to every command", Trouble::Host("POST", "/", || Transport::LostAfter), None),
    ("the host hangs at every command", Trouble::Host("POST", "/", || Transport::Slow(Duration::from_secs(25))), None),
    ("the host drops every look at its settings", Trouble::Host("GET", "/settings", || Transport::LostBefore), None),
    ("the host's settings are garbage", Trouble::Host("GET", "/settings", || Transport::Garbage), None),
    (
        "the host drops every change of its settings",
        Trouble::Host("PATCH", "/settings", || Transport::LostBefore),
        None,
    ),
    ("the host drops every commit", Trouble::Host("POST", "/tx", || Transport::LostBefore), None),
    ("the host loses the answer to every commit", Trouble::Host("POST", "/tx", || Transport::LostAfter), None),
    ("the host commits nothing", Trouble::Host("POST", "/tx", || Transport::Status(422, String::new())), None),
    (
        "the host forbids everything",
        Trouble::Host("POST", "/", || Transport::Status(409, "no".into())),
        Some("Answered"),
    ),
    (
        "the host is locked to commands",
        Trouble::Host("POST", "/", || Transport::Status(423, "".into())),
        Some("Answered"),
    ),
    ("the host is locked", Trouble::Host("GET", "/updates", || Transport::Status(423, "".into())), Some("Answered")),
    ("another client's command never ends", Trouble::Held, Some("Answered")),
    ("the web API is down", Trouble::Web(Weather::Down), None),
    ("the web API says nothing", Trouble::Web(Weather::Mute), None),
    ("the web API speaks garbage", Trouble::Web(Weather::Garbled), None),
    ("the web API does not know us", Trouble::Web(Weather::Refuses("401 Unauthorized")), None),
    ("the web API forbids it", Trouble::Web(Weather::Refuses("403 Forbidden")), None),
    ("the web API has no shadow", Trouble::Web(Weather::Refuses("404 Not Found")), None),
    ("the web API does not like the report", Trouble::Web(Weather::Refuses("422 Unprocessable Entity")), None),
    ("the web API is busy", Trouble::Web(Weather::Refuses("429 Too Many Requests")), None),
    ("the web API has lost the cluster", Trouble::Web(Weather::Refuses("503 Service Unavailable")), None),
    ("the web API redirects", Trouble::Web(Weather::Refuses("302 Found")), None),
    ("the web API ends each stream, as it should", Trouble::Web(Weather::Brief), Some("Answered")),
    ("the web API loses its answers", Trouble::Web(Weather::AnswersLost), Some("Answered")),
    ("an older web API drops what it does not know", Trouble::Web(Weather::Prunes), None),
    ("a newer web API says what no one knows", Trouble::Web(Weather::Novel), Some("Answered")),
];

#[test]
fn an_hour_of_any_fault_is_lived_through_without_haste_and_forgotten() {
    let wanted = std::env::var(ONLY).unwrap_or_default();
    for case in CASES.iter().filter(|(what, ..)| what.contains(&wanted)) {
        simulate(async |counts| an_hour_of(case, counts).await);
    }
}

async fn an_hour_of((what, trouble, told): &Case, counts: &Counts) {
    let bench = Bench::without_agent().await;
    bench.web.create();
    let mut agent = Within::start(&bench);
    let told_of = || bench.web.view().status;
    assert!(pass_until(MINUTE, || told_of().report.observed_generation == Some(1)).await, "{what}: it reports");
    if matches!(trouble, Trouble::Host(_, path, _) if path.contains("settings") || path.contains("tx")) {
        let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
        bench.web.order(|spec| spec.host = Some(policy));
    }
    match trouble {
        Trouble::Nothing => {}
        Trouble::Host(method, path, transport) => {
            bench.host.script(Fault::request(*method, *path, transport()).times(u32::MAX));
        }
        Trouble::Connection => bench.host.script(Fault::connection().times(u32::MAX)),
        Trouble::Web(weather) => bench.web.weather(*weather),
        Trouble::Held => {
            bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
            bench.host.foreign(Command::Refresh).await.unwrap();
        }
    }
    // Half of it idle, and half of it with an update requested.
    let (calls, traffic, lines) = (counts.calls(), bench.web.traffic(), counts.lines());
    pass(HOUR / 2).await;
    bench.stage(1);
    pass(HOUR / 2).await;
    assert!(!agent.has_ended(), "{what}: it has ended");
    let (calls, traffic, lines) = (counts.calls() - calls, bench.web.traffic() - traffic, counts.lines() - lines);
    println!("{what}: {calls} calls, {traffic} connections and requests, {lines} lines");
    assert!(calls <= CALLS, "{what}: {calls} host calls in an hour");
    assert!(traffic <= TRAFFIC, "{what}: {traffic} connections and requests in an hour");
    assert!(lines <= LINES, "{what}: {lines} lines logged in an hour");
    if let Some(told) = told {
        let reason = find_condition(&told_of().conditions, HOST_REACHABLE).map(|c| c.reason.clone());
        assert_eq!(reason.as_deref(), Some(*told), "{what}");
    }
    assert_eq!((arms(&bench.host.log()), reboots(&bench.host.log())), (0, 0), "{what}: no permit was issued");
    // The fault is over. What failed meanwhile is not retried before the next attempt.
    bench.host.mend();
    bench.host.release_command();
    bench.web.weather(Weather::Fair);
    bench.withdraw();
    let idle = || told_of().report.observed_generation == Some(bench.web.view().metadata.generation);
    assert!(pass_until(5 * MINUTE, idle).await, "{what}: it does not take notice: {:#?}", told_of());
    bench.stage(2);
    let staged = || idle() && told_of().report.state == Some(HostState::StagedUpdate);
    assert!(pass_until(5 * MINUTE, staged).await, "{what}: it does not go on: {:#?}", told_of());
    if agent.has_ended() {
        agent = Within::start(&bench);
    }
    agent.end().await.unwrap();
}

#[test]
fn agent_hears_of_each_desired_state_soon_while_the_replicas_of_the_web_api_move_from_node_to_node() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        bench.web.weather(Weather::Moves);
        pass(MINUTE).await;
        for _ in 0..60 {
            bench.web.order(|_| {});
            let generation = Some(bench.web.view().metadata.generation);
            let acknowledged = || bench.web.view().status.report.observed_generation == generation;
            assert!(pass_until(Duration::from_secs(1), acknowledged).await, "{:#?}", bench.web.view());
            // Not in step with the streams.
            pass(Duration::from_millis(1_750)).await;
        }
        agent.end().await.unwrap();
    });
}

#[test]
fn however_often_policy_and_orders_ask_for_it_the_host_looks_for_updates_once_a_second_at_most() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        let looks = || {
            let log = bench.host.log();
            log.iter().filter(|event| matches!(&event.kind, EventKind::Call { path, .. } if path == REFRESH)).count()
        };
        let without_pause = HostPolicy { refresh_interval: Some("0s".parse().unwrap()), ..HostPolicy::default() };
        bench.web.order(|spec| spec.host = Some(without_pause));
        // Half of the time idle, and half of it under successive desired states with a version that the host does not
        // offer.
        pass(MINUTE).await;
        let idle = looks();
        let end = Instant::now() + MINUTE;
        for attempt in 1.. {
            bench.stage_version(attempt, Version::new(1, 99, 0));
            pass(STEP).await;
            if Instant::now() >= end {
                break;
            }
        }
        let ordered = looks() - idle;
        assert!((30..=61).contains(&idle), "{idle} looks in an idle minute");
        assert!((30..=61).contains(&ordered), "{ordered} looks in a minute of orders");
        agent.end().await.unwrap();
    });
}

/// A host with a staged image whose agent requests a permit.
async fn asking(bench: &Bench) -> models::wire::ShadowView {
    let report = || bench.web.view().status.report;
    bench.stage(1);
    assert!(pass_until(MINUTE, || report().state == Some(HostState::StagedUpdate)).await, "it stages");
    bench.order_reboot();
    assert!(pass_until(MINUTE, || report().armed.is_some()).await, "it asks");
    bench.web.view()
}

#[test]
fn refused_reboot_is_requested_again_only_after_the_back_off() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        let asking = asking(&bench).await;
        let refused = RebootFault::Refused { stderr: "an inhibitor".into() };
        bench.host.script(Fault::reboot(refused).times(u32::MAX));
        let refusals = || bench.calls().iter().filter(|call| call.contains("/reboot")).count();
        bench.give(&bench.claims(&asking));
        assert!(pass_until(MINUTE, || refusals() == 1).await);
        for _ in 0..20 {
            // Another generation of the same desired state.
            bench.web.order(|_| {});
            settle(100).await;
        }
        assert_eq!(refusals(), 1);
        let failed = || bench.web.view().status.report.failure.is_some();
        assert!(pass_until(MINUTE, failed).await);
        assert_eq!(refusals(), 3);
        agent.end().await.unwrap();
    });
}

#[test]
fn status_of_many_megabytes_is_read() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        let output = "a line that the updater printed\n".repeat(70_000);
        bench.host.script(Fault::fails(Command::Prepare, output));
        bench.stage(1);
        let staged = || bench.web.view().status.report.state == Some(HostState::StagedUpdate);
        assert!(pass_until(5 * MINUTE, staged).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}

#[test]
fn activation_carried_out_long_after_its_order_was_withdrawn_is_disarmed() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        let asking = asking(&bench).await;
        let queued = Transport::Slow(Duration::from_secs(68));
        bench.host.script(Fault::request("POST", "/actions/activate", queued));
        bench.give(&bench.claims(&asking));
        pass(Duration::from_secs(2)).await;
        bench.withdraw();
        let view = || bench.web.view();
        let idle = || view().status.report.observed_generation == Some(view().metadata.generation);
        assert!(pass_until(5 * MINUTE, idle).await, "{:#?}", view());
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
        pass(5 * MINUTE).await;
        let disk = bench.host.snapshot().disk;
        assert_eq!((disk.next(), view().status.report.armed), (Some(disk.active), None));
        agent.end().await.unwrap();
    });
}

#[test]
fn a_socket_that_is_gone_or_stale_ends_the_agent_soon_and_a_new_one_goes_on() {
    for clean in [true, false] {
        simulate(async |counts| {
            let bench = Bench::without_agent().await;
            bench.web.create();
            let agent = Within::start(&bench);
            let acknowledged = || {
                let view = bench.web.view();
                view.status.report.observed_generation == Some(view.metadata.generation)
            };
            assert!(pass_until(MINUTE, acknowledged).await);
            // The old socket is mounted into the container.
            let mounted = bench.host.socket();
            let away = mounted.with_extension("away");
            if clean {
                std::fs::rename(&mounted, &away).unwrap();
            } else {
                bench.host.power_off();
                pass(MINUTE / 60).await;
            }
            let calls = counts.calls();
            bench.stage(1);
            assert!(pass_until(MINUTE, || agent.has_ended()).await, "a dead socket ends the agent");
            let ended = agent.end().await.unwrap_err();
            assert!(ended.to_string().contains("socket has been dead"), "{ended}");
            assert!(counts.calls() - calls < 30, "{} calls of a dead socket", counts.calls() - calls);
            let told = find_condition(&bench.web.view().status.conditions, HOST_REACHABLE).unwrap().reason.clone();
            assert_eq!(told, if clean { "SocketMissing" } else { "ConnectionRefused" });
            if clean {
                std::fs::rename(&away, &mounted).unwrap();
            } else {
                bench.host.power_on();
                pass(MINUTE / 60).await;
                bench.withdraw();
                bench.stage(2);
            }
            let agent = Within::start(&bench);
            let staged = || bench.web.view().status.report.state == Some(HostState::StagedUpdate);
            assert!(pass_until(5 * MINUTE, staged).await, "it goes on: {:#?}", bench.web.view());
            agent.end().await.unwrap();
        });
    }
}

#[test]
fn an_order_that_no_one_here_knows_is_told_and_moves_nothing() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        bench.web.order(|spec| {
            // As a newer controller's state is read here.
            spec.state = serde_json::from_str("\"Hibernate\"").unwrap();
            spec.attempt = 1;
        });
        let reason = || find_condition(&bench.web.view().status.conditions, HOST_REACHABLE).map(|c| c.reason.clone());
        assert!(pass_until(MINUTE, || reason().as_deref() == Some("UnsupportedState")).await);
        let writes = bench.web.writes().len();
        pass(HOUR).await;
        assert_eq!(bench.web.writes().len(), writes, "it says so once");
        assert!(!bench.calls().iter().any(|call| call.starts_with("POST")), "{:?}", bench.calls());
        let report = bench.web.view().status.report;
        assert_ne!(report.observed_generation, Some(bench.web.view().metadata.generation), "it does not say it did it");
        // A known state is followed at once.
        bench.stage(2);
        let staged = || bench.web.view().status.report.state == Some(HostState::StagedUpdate);
        assert!(pass_until(MINUTE, staged).await);
        assert_eq!(reason().as_deref(), Some("Answered"));
        agent.end().await.unwrap();
    });
}

#[test]
fn an_update_state_that_no_one_here_knows_is_told_and_nothing_is_asked_of_the_host() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = Within::start(&bench);
        let told = || bench.web.view().status;
        assert!(pass_until(MINUTE, || told().report.observed_generation == Some(1)).await, "it reports");
        let strange = serde_json::json!({
            "update_state": "Melting", "available_updates": ["1.20.5"], "chosen_update": {"version": "1.20.5"},
            "most_recent_command": {"cmd_type": "refresh", "cmd_status": "Success", "timestamp": "2026-11-21T01:51:32Z"},
        });
        let answer = || Transport::Status(200, strange.to_string());
        bench.host.script(Fault::request("GET", "/updates", answer()).times(u32::MAX));
        let before = bench.calls().len();
        bench.stage(1);
        let reason = || find_condition(&told().conditions, HOST_REACHABLE).map(|c| c.reason.clone());
        assert!(pass_until(MINUTE, || reason().as_deref() == Some("UnsupportedState")).await, "{:#?}", told());
        pass(HOUR).await;
        let calls = bench.calls().split_off(before);
        assert!(calls.iter().all(|call| call.starts_with("GET")), "{calls:?}");
        assert_eq!(told().report.failure, None, "it waits");
        // Nothing signals when a user has corrected it: it is re-checked.
        bench.host.mend();
        let staged = || told().report.state == Some(HostState::StagedUpdate);
        assert!(pass_until(10 * MINUTE, staged).await, "{:#?}", told());
        assert_eq!(reason().as_deref(), Some("Answered"));
        agent.end().await.unwrap();
    });
}
