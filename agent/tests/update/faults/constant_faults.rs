//! An hour of each fault, in simulated time: the agent survives it, calls neither host nor web API without pause, and
//! continues when it is over.

use std::collections::BTreeSet;

use integ::host::{Command, Fault, RebootFault, Transport, Worker};
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, HOST_ANSWERED, HOST_BUSY, HostPolicy};
use semver::Version;

use super::*;
use crate::bench::web::WebFault;
use crate::{acknowledged, disk_armed, failed, phase, reach};

/// Maximum calls in an hour of a fault. Most has a host that shows its status and refuses each command because another one
/// runs: its status and the command every few seconds. One that shows that it is busy has a call every 15 s.
const CALLS: u64 = 2_000;
/// With one connection for each request, and one more for each stream, every five seconds on average.
const TRAFFIC: u64 = 2_400;
/// Lines logged for each of them; never a turn of the loop without any.
const LINES: u64 = 30_000;

/// Names the cases to run, by words of their sentence.
const ONLY: &str = "BRUPOP_CASE";

/// A fault.
#[derive(Clone, Copy, Debug)]
enum HostOrWebFault {
    /// The host: this request, in this way.
    Host(&'static str, &'static str, fn() -> Transport),
    /// Each connection to the host is closed at once.
    Connection,
    /// The web API.
    Web(WebFault),
    /// Another client's command occupies the host.
    Held,
    /// None, as the baseline.
    Nothing,
}

use HostOrWebFault::{Connection, Held, Host, Nothing, Web};

/// The sentence, the fault, and the reported state of the host (where the web API accepts reports).
type Case = (&'static str, HostOrWebFault, Option<&'static str>);

const ANSWERED: Option<&str> = Some(HOST_ANSWERED);
const BUSY: Option<&str> = Some(HOST_BUSY);
const BAD: Option<&str> = Some("BadAnswer");

const CASES: &[Case] = &[
    ("all is well", Nothing, ANSWERED),
    ("the host cuts each connection", Connection, BAD),
    ("the host reads and does not answer", Host("*", "/", || Transport::LostBefore), BAD),
    ("the host acts and does not answer", Host("*", "/", || Transport::LostAfter), BAD),
    ("the host is cut off in mid-reply", Host("*", "/", || Transport::CutReply), BAD),
    ("the host answers garbage", Host("*", "/", || Transport::Garbage), BAD),
    ("the host's status is garbage", Host("GET", "/updates", || Transport::Garbage), BAD),
    ("the host hangs", Host("*", "/", || slow(25)), Some("Timeout")),
    ("the host is slow", Host("*", "/", || slow(15)), ANSWERED),
    ("the host fails", Host("*", "/", || Transport::Status(500, "no".into())), BAD),
    ("the host is overloaded", Host("*", "/", || Transport::Status(503, String::new())), BAD),
    ("the host starts nothing", Host("POST", "/", || Transport::Status(500, "no".into())), ANSWERED),
    ("the host starts nothing, oddly", Host("POST", "/", || Transport::Status(418, "tea".into())), None),
    ("the host drops every command", Host("POST", "/", || Transport::LostBefore), None),
    ("the host loses the answer to every command", Host("POST", "/", || Transport::LostAfter), None),
    ("the host hangs at every command", Host("POST", "/", || slow(25)), None),
    ("the host drops every look at its settings", Host("GET", "/settings", || Transport::LostBefore), None),
    ("the host's settings are garbage", Host("GET", "/settings", || Transport::Garbage), None),
    ("the host drops every change of its settings", Host("PATCH", "/settings", || Transport::LostBefore), None),
    ("the host drops every commit", Host("POST", "/tx", || Transport::LostBefore), None),
    ("the host loses the answer to every commit", Host("POST", "/tx", || Transport::LostAfter), None),
    ("the host commits nothing", Host("POST", "/tx", || Transport::Status(422, String::new())), None),
    ("the host forbids everything", Host("POST", "/", || Transport::Status(409, "no".into())), ANSWERED),
    ("the host is locked to commands", Host("POST", "/", || Transport::Status(423, String::new())), ANSWERED),
    ("the host is locked", Host("GET", "/updates", || Transport::Status(423, String::new())), BUSY),
    ("another client's command never ends", Held, BUSY),
    ("the web API is down", Web(WebFault::Down), None),
    ("the web API says nothing", Web(WebFault::Unresponsive), None),
    ("the web API speaks garbage", Web(WebFault::InvalidJson), None),
    ("the web API does not know the agent", Web(WebFault::Rejects("401 Unauthorized")), None),
    ("the web API forbids it", Web(WebFault::Rejects("403 Forbidden")), None),
    ("the web API has no shadow", Web(WebFault::Rejects("404 Not Found")), None),
    ("the web API does not like the report", Web(WebFault::Rejects("422 Unprocessable Entity")), None),
    ("the web API is busy", Web(WebFault::Rejects("429 Too Many Requests")), None),
    ("the web API has lost the cluster", Web(WebFault::Rejects("503 Service Unavailable")), None),
    ("the web API redirects", Web(WebFault::Rejects("302 Found")), None),
    ("the web API ends each stream, as it should", Web(WebFault::ShortStreams), ANSWERED),
    ("the web API loses its answers", Web(WebFault::ResponsesLost), ANSWERED),
    ("an older web API drops what it does not know", Web(WebFault::DropsConditions), None),
    ("a newer web API says what no one knows", Web(WebFault::UnknownLines), ANSWERED),
];

fn slow(seconds: u64) -> Transport {
    Transport::Slow(Duration::from_secs(seconds))
}

#[test]
fn one_hour_of_any_fault_causes_bounded_traffic_and_agent_recovers() {
    let wanted = std::env::var(ONLY).unwrap_or_default();
    for case in CASES.iter().filter(|(what, ..)| what.contains(&wanted)) {
        simulate(async |counts| run_one_hour(case, counts).await);
    }
}

async fn run_one_hour((what, fault, expected): &Case, counts: &Counts) {
    let bench = Bench::without_agent().await;
    bench.web.create();
    let mut agent = InProcessAgent::start(&bench);
    assert!(pass_until(MINUTE, || acknowledged(&bench.web.view())).await, "{what}: it reports");
    if matches!(fault, Host(_, path, _) if path.contains("settings") || path.contains("tx")) {
        let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
        bench.web.change_spec(|spec| spec.host = Some(policy));
    }
    match fault {
        Nothing => {}
        Host(method, path, transport) => {
            bench.host.script(Fault::request(*method, *path, transport()).times(u32::MAX));
        }
        Connection => bench.host.script(Fault::connection().times(u32::MAX)),
        Web(web_fault) => bench.web.web_fault(*web_fault),
        Held => {
            bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
            bench.host.foreign(Command::Refresh).await.unwrap();
        }
    }
    // Half of it idle, and a little more than half of it with an update requested.
    let (calls, traffic, lines) = (counts.calls(), bench.web.traffic(), counts.lines());
    pass(HOUR / 2).await;
    bench.stage(1);
    pass(HOUR / 2 + MINUTE).await;
    assert!(!agent.has_ended(), "{what}: it has ended");
    let (calls, traffic, lines) = (counts.calls() - calls, bench.web.traffic() - traffic, counts.lines() - lines);
    println!("{what}: {calls} calls, {traffic} connections and requests, {lines} lines");
    assert!(calls <= CALLS, "{what}: {calls} host calls in an hour");
    assert!(traffic <= TRAFFIC, "{what}: {traffic} connections and requests in an hour");
    assert!(lines <= LINES, "{what}: {lines} lines logged in an hour");
    let reason = || reach(&bench.web.view());
    if let Some(expected) = expected {
        assert_eq!(reason(), *expected, "{what}");
    }
    assert_eq!((arms(&bench.host.log()), reboots(&bench.host.log())), (0, 0), "{what}: no permit was issued");
    // The fault is over. What failed meanwhile is not retried before the next attempt.
    bench.host.clear_faults();
    bench.host.release_command();
    bench.web.web_fault(WebFault::None);
    bench.withdraw();
    let idle = || acknowledged(&bench.web.view());
    assert!(pass_until(5 * MINUTE, idle).await, "{what}: it does not take notice: {:#?}", bench.web.view());
    assert!(*expected != BUSY || reason() == HOST_ANSWERED, "{what}: {}", reason());
    bench.stage(2);
    let staged = || idle() && is_staged(&bench.web.view());
    assert!(pass_until(5 * MINUTE, staged).await, "{what}: it does not go on: {:#?}", bench.web.view());
    if agent.has_ended() {
        agent = InProcessAgent::start(&bench);
    }
    agent.end().await.unwrap();
}

#[test]
fn streams_that_end_delay_no_desired_state_and_each_begins_on_another_connection() {
    simulate_agent(async |bench| {
        bench.web.web_fault(WebFault::PeriodicStreamEnds);
        pass(MINUTE).await;
        for _ in 0..60 {
            bench.web.change_spec(|_| {});
            until(bench, Duration::from_secs(1), acknowledged).await;
            // Not in step with the streams.
            pass(Duration::from_millis(1_750)).await;
        }
        let connections = bench.web.stream_connections();
        let distinct: BTreeSet<u64> = connections.iter().copied().collect();
        assert!(connections.len() >= 20 && distinct.len() == connections.len(), "{connections:?}");
        assert_eq!(bench.web.resumed_sessions(), 0, "each connection verifies the certificate");
    });
}

#[test]
fn stream_is_left_that_outlives_its_time_or_the_authorities_it_began_with() {
    simulate_agent(async |bench| {
        let streams = || bench.web.tokens_of("GET").len();
        let trust = |bundle: &str| std::fs::write(bench.path("trust/ca.crt"), bundle).unwrap();
        assert!(pass_until(MINUTE, || streams() == 1).await, "it follows");
        pass(10 * MINUTE).await;
        assert_eq!(streams(), 1, "the web API would have ended it by now");
        pass(3 * MINUTE).await;
        assert_eq!(streams(), 2, "a server that ends no stream is left");
        trust("no certificate");
        pass(MINUTE).await;
        assert_eq!(streams(), 2, "a bundle that cannot be used replaces none");
        trust(&format!("# another one\n{}", bench.web.ca));
        pass(MINUTE).await;
        assert_eq!(streams(), 3, "the authorities were replaced");
        trust(&rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem());
        pass(MINUTE).await;
        assert_eq!(streams(), 3, "a server with a certificate of the withdrawn authority is not followed");
        bench.web.change_spec(|_| {});
        pass(MINUTE).await;
        assert_ne!(bench.web.view().status.report.observed_generation, Some(2), "nor is its desired state");
        trust(&bench.web.ca);
        assert!(pass_until(MINUTE, || streams() == 4).await, "it follows again");
    });
}

#[test]
fn report_is_stored_behind_admission_webhook_that_hangs() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        bench.web.web_fault(WebFault::SlowWrites);
        let agent = InProcessAgent::start(&bench);
        until(&bench, 3 * MINUTE, acknowledged).await;
        agent.end().await.unwrap();
    });
}

#[test]
fn host_refreshes_at_most_once_per_second() {
    simulate_agent(async |bench| {
        let refreshes = || bench.calls().iter().filter(|call| call.ends_with("/actions/refresh-updates")).count();
        let without_pause = HostPolicy { refresh_interval: Some("0s".parse().unwrap()), ..HostPolicy::default() };
        bench.web.change_spec(|spec| spec.host = Some(without_pause));
        // Half of the time idle, and half of it under successive desired states with a version that the host does not
        // offer.
        pass(MINUTE).await;
        let idle = refreshes();
        let end = Instant::now() + MINUTE;
        for attempt in 1.. {
            bench.stage_version(attempt, Version::new(1, 99, 0));
            pass(STEP).await;
            if Instant::now() >= end {
                break;
            }
        }
        let requested = refreshes() - idle;
        assert!((30..=61).contains(&idle), "{idle} refreshes in an idle minute");
        assert!((30..=61).contains(&requested), "{requested} refreshes in a minute of requests");
    });
}

#[test]
fn refused_reboot_is_requested_again_only_after_the_back_off_and_its_host_is_disarmed() {
    simulate_agent(async |bench| {
        let view = until_permit_requested(bench).await;
        let refused = RebootFault::Refused { stderr: "an inhibitor".into() };
        bench.host.script(Fault::reboot(refused).times(u32::MAX));
        let refusals = || bench.calls().iter().filter(|call| call.contains("/reboot")).count();
        bench.issue_permit(&bench.claims(&view));
        assert!(pass_until(MINUTE, || refusals() == 1).await);
        for _ in 0..20 {
            // Another generation of the same desired state.
            bench.web.change_spec(|_| {});
            settle(100).await;
        }
        assert_eq!(refusals(), 1);
        until(bench, MINUTE, |view| failed(view) == Some(FailureReason::RebootRefused)).await;
        assert_eq!((refusals(), phase(&bench.web.view())), (3, Some(ArmedPhase::Activated)), "it is armed still");
        bench.withdraw();
        until(bench, 5 * MINUTE, |view| acknowledged(view) && phase(view).is_none()).await;
        assert!(!disk_armed(bench));
    });
}

#[test]
fn status_of_many_megabytes_is_read() {
    simulate_agent(async |bench| {
        let output = "a line that the updater printed\n".repeat(70_000);
        bench.host.script(Fault::fails(Command::Prepare, output));
        bench.stage(1);
        until(bench, 5 * MINUTE, is_staged).await;
    });
}

#[test]
fn late_activation_of_withdrawn_attempt_is_disarmed() {
    simulate_agent(async |bench| {
        let view = until_permit_requested(bench).await;
        bench.host.script(Fault::request("POST", "/actions/activate", slow(68)));
        bench.issue_permit(&bench.claims(&view));
        pass(Duration::from_secs(2)).await;
        bench.withdraw();
        until(bench, 5 * MINUTE, acknowledged).await;
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
        pass(5 * MINUTE).await;
        assert!(!disk_armed(bench) && phase(&bench.web.view()).is_none(), "{:#?}", bench.web.view());
    });
}

/// The host accepts the activation, arms its disk, and is gone for a minute without a record of it.
#[test]
fn activation_whose_end_cannot_be_read_is_disarmed_once_its_attempt_is_withdrawn() {
    simulate(async |_| {
        let bench = Bench::stopped(|options| options.timings.api_restart = MINUTE).await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
        bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
        bench.host.script(Fault::request("POST", "/actions/activate", Transport::RestartAfter));
        bench.issue_permit(&bench.claims(&view));
        pass(Duration::from_secs(20)).await;
        assert!(disk_armed(&bench));
        bench.withdraw();
        until(&bench, 10 * MINUTE, acknowledged).await;
        assert!(!disk_armed(&bench) && phase(&bench.web.view()).is_none(), "{:#?}", bench.web.view());
        assert_eq!(reboots(&bench.host.log()), 0);
        agent.end().await.unwrap();
    });
}

#[test]
fn host_whose_shadow_is_deleted_during_its_activation_is_not_rebooted() {
    simulate_agent(async |bench| {
        let view = until_permit_requested(bench).await;
        bench.host.script(Fault::request("POST", "/actions/activate", slow(10)));
        bench.issue_permit(&bench.claims(&view));
        pass(Duration::from_secs(2)).await;
        // It goes with its Node.
        bench.web.delete();
        pass(10 * MINUTE).await;
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
    });
}

#[test]
fn missing_or_stale_socket_ends_agent_and_new_agent_resumes() {
    for clean in [true, false] {
        simulate(async |counts| {
            let bench = Bench::without_agent().await;
            bench.web.create();
            let agent = InProcessAgent::start(&bench);
            until(&bench, MINUTE, acknowledged).await;
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
            pass(9 * MINUTE).await;
            assert!(!agent.has_ended(), "the host API may only be stopped for a while");
            assert!(pass_until(2 * MINUTE, || agent.has_ended()).await, "a dead socket ends the agent");
            let ended = agent.end().await.unwrap_err();
            assert!(ended.to_string().contains("socket has been dead"), "{ended}");
            assert!(counts.calls() - calls < 150, "{} calls of a dead socket", counts.calls() - calls);
            assert_eq!(reach(&bench.web.view()), if clean { "SocketMissing" } else { "ConnectionRefused" });
            if clean {
                std::fs::rename(&away, &mounted).unwrap();
            } else {
                bench.host.power_on();
                pass(MINUTE / 60).await;
                bench.withdraw();
                bench.stage(2);
            }
            let agent = InProcessAgent::start(&bench);
            until(&bench, 5 * MINUTE, is_staged).await;
            agent.end().await.unwrap();
        });
    }
}

#[test]
fn unknown_desired_state_is_reported_without_action() {
    simulate_agent(async |bench| {
        bench.web.change_spec(|spec| {
            // As a newer controller's state is read here.
            spec.state = serde_json::from_str("\"Hibernate\"").unwrap();
            spec.attempt = 1;
        });
        until(bench, MINUTE, |view| reach(view) == "UnsupportedState").await;
        let writes = bench.web.writes().len();
        pass(HOUR).await;
        assert_eq!(bench.web.writes().len(), writes, "it says so once");
        assert!(!bench.calls().iter().any(|call| call.starts_with("POST")), "{:?}", bench.calls());
        assert!(!acknowledged(&bench.web.view()), "it does not say it did it");
        // A known state is followed at once.
        bench.stage(2);
        until(bench, MINUTE, is_staged).await;
        assert_eq!(reach(&bench.web.view()), HOST_ANSWERED);
    });
}

#[test]
fn unknown_update_state_is_reported_without_host_command() {
    simulate_agent(async |bench| {
        until(bench, MINUTE, acknowledged).await;
        let strange = serde_json::json!({
            "update_state": "Melting", "available_updates": ["1.20.5"], "chosen_update": {"version": "1.20.5"},
            "most_recent_command": {"cmd_type": "refresh", "cmd_status": "Success", "timestamp": "2026-11-21T01:51:32Z"},
        });
        let answer = Transport::Status(200, strange.to_string());
        bench.host.script(Fault::request("GET", "/updates", answer).times(u32::MAX));
        let before = bench.calls().len();
        bench.stage(1);
        until(bench, MINUTE, |view| reach(view) == "UnsupportedState").await;
        pass(HOUR).await;
        let calls = bench.calls().split_off(before);
        assert!(calls.iter().all(|call| call.starts_with("GET")), "{calls:?}");
        assert_eq!(failed(&bench.web.view()), None, "it waits");
        // Nothing signals when a user has corrected it: it is re-checked.
        bench.host.clear_faults();
        until(bench, 10 * MINUTE, is_staged).await;
        assert_eq!(reach(&bench.web.view()), HOST_ANSWERED);
    });
}

#[test]
fn desired_state_withdrawn_during_last_read_of_host_is_not_followed_by_reboot() {
    simulate_agent(async |bench| {
        let request = until_permit_requested(bench).await;
        bench.host.script(Fault::request("GET", "/updates/status", slow(4)).times(u32::MAX));
        bench.issue_permit(&bench.claims(&request));
        until(bench, MINUTE, |view| phase(view) == Some(ArmedPhase::Activated)).await;
        // The agent reads the host once more before it reboots it.
        bench.withdraw();
        until(bench, 5 * MINUTE, acknowledged).await;
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
    });
}
