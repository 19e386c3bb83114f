//! An hour of each fault, in simulated time: the agent survives it, calls neither host nor web API without pause, and
//! continues when it is over.

use integ::host::{Command, Fault, RebootFault, Transport, Worker};
use models::condition::find_condition;
use models::shadow::{ArmedPhase, HOST_ANSWERED, HOST_BUSY, HOST_REACHABLE, HostPolicy, HostState};
use semver::Version;

use super::*;
use crate::bench::web::WebFault;

/// Maximum calls in an hour of a fault. Most has a host that shows its status and refuses each command because another one
/// runs: its status and the command every few seconds. One that shows that it is busy has a call every 15 s.
const CALLS: u64 = 2_000;
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

/// The sentence, the fault, and the reported state of the host (where the web API accepts reports).
type Case = (&'static str, HostOrWebFault, Option<&'static str>);

const CASES: &[Case] = &[
    ("all is well", HostOrWebFault::Nothing, Some("Answered")),
    ("the host cuts each connection", HostOrWebFault::Connection, Some("BadAnswer")),
    ("the host reads and does not answer", HostOrWebFault::Host("*", "/", || Transport::LostBefore), Some("BadAnswer")),
    ("the host acts and does not answer", HostOrWebFault::Host("*", "/", || Transport::LostAfter), Some("BadAnswer")),
    ("the host is cut off in mid-reply", HostOrWebFault::Host("*", "/", || Transport::CutReply), Some("BadAnswer")),
    ("the host answers garbage", HostOrWebFault::Host("*", "/", || Transport::Garbage), Some("BadAnswer")),
    ("the host's status is garbage", HostOrWebFault::Host("GET", "/updates", || Transport::Garbage), Some("BadAnswer")),
    ("the host hangs", HostOrWebFault::Host("*", "/", || Transport::Slow(Duration::from_secs(25))), Some("Timeout")),
    ("the host is slow", HostOrWebFault::Host("*", "/", || Transport::Slow(Duration::from_secs(15))), Some("Answered")),
    ("the host fails", HostOrWebFault::Host("*", "/", || Transport::Status(500, "no".into())), Some("BadAnswer")),
    (
        "the host is overloaded",
        HostOrWebFault::Host("*", "/", || Transport::Status(503, String::new())),
        Some("BadAnswer"),
    ),
    (
        "the host starts nothing",
        HostOrWebFault::Host("POST", "/", || Transport::Status(500, "no".into())),
        Some("Answered"),
    ),
    (
        "the host starts nothing, oddly",
        HostOrWebFault::Host("POST", "/", || Transport::Status(418, "tea".into())),
        None,
    ),
    ("the host drops every command", HostOrWebFault::Host("POST", "/", || Transport::LostBefore), None),
    ("the host loses the answer to every command", HostOrWebFault::Host("POST", "/", || Transport::LostAfter), None),
    (
        "the host hangs at every command",
        HostOrWebFault::Host("POST", "/", || Transport::Slow(Duration::from_secs(25))),
        None,
    ),
    (
        "the host drops every look at its settings",
        HostOrWebFault::Host("GET", "/settings", || Transport::LostBefore),
        None,
    ),
    ("the host's settings are garbage", HostOrWebFault::Host("GET", "/settings", || Transport::Garbage), None),
    (
        "the host drops every change of its settings",
        HostOrWebFault::Host("PATCH", "/settings", || Transport::LostBefore),
        None,
    ),
    ("the host drops every commit", HostOrWebFault::Host("POST", "/tx", || Transport::LostBefore), None),
    ("the host loses the answer to every commit", HostOrWebFault::Host("POST", "/tx", || Transport::LostAfter), None),
    ("the host commits nothing", HostOrWebFault::Host("POST", "/tx", || Transport::Status(422, String::new())), None),
    (
        "the host forbids everything",
        HostOrWebFault::Host("POST", "/", || Transport::Status(409, "no".into())),
        Some("Answered"),
    ),
    (
        "the host is locked to commands",
        HostOrWebFault::Host("POST", "/", || Transport::Status(423, "".into())),
        Some("Answered"),
    ),
    (
        "the host is locked",
        HostOrWebFault::Host("GET", "/updates", || Transport::Status(423, "".into())),
        Some(HOST_BUSY),
    ),
    ("another client's command never ends", HostOrWebFault::Held, Some(HOST_BUSY)),
    ("the web API is down", HostOrWebFault::Web(WebFault::Down), None),
    ("the web API says nothing", HostOrWebFault::Web(WebFault::Unresponsive), None),
    ("the web API speaks garbage", HostOrWebFault::Web(WebFault::InvalidJson), None),
    ("the web API does not know the agent", HostOrWebFault::Web(WebFault::Rejects("401 Unauthorized")), None),
    ("the web API forbids it", HostOrWebFault::Web(WebFault::Rejects("403 Forbidden")), None),
    ("the web API has no shadow", HostOrWebFault::Web(WebFault::Rejects("404 Not Found")), None),
    ("the web API does not like the report", HostOrWebFault::Web(WebFault::Rejects("422 Unprocessable Entity")), None),
    ("the web API is busy", HostOrWebFault::Web(WebFault::Rejects("429 Too Many Requests")), None),
    ("the web API has lost the cluster", HostOrWebFault::Web(WebFault::Rejects("503 Service Unavailable")), None),
    ("the web API redirects", HostOrWebFault::Web(WebFault::Rejects("302 Found")), None),
    ("the web API ends each stream, as it should", HostOrWebFault::Web(WebFault::ShortStreams), Some("Answered")),
    ("the web API loses its answers", HostOrWebFault::Web(WebFault::ResponsesLost), Some("Answered")),
    ("an older web API drops what it does not know", HostOrWebFault::Web(WebFault::DropsConditions), None),
    ("a newer web API says what no one knows", HostOrWebFault::Web(WebFault::UnknownLines), Some("Answered")),
];

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
    let reported_status = || bench.web.view().status;
    assert!(pass_until(MINUTE, || reported_status().report.observed_generation == Some(1)).await, "{what}: it reports");
    if matches!(fault, HostOrWebFault::Host(_, path, _) if path.contains("settings") || path.contains("tx")) {
        let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
        bench.web.change_spec(|spec| spec.host = Some(policy));
    }
    match fault {
        HostOrWebFault::Nothing => {}
        HostOrWebFault::Host(method, path, transport) => {
            bench.host.script(Fault::request(*method, *path, transport()).times(u32::MAX));
        }
        HostOrWebFault::Connection => bench.host.script(Fault::connection().times(u32::MAX)),
        HostOrWebFault::Web(web_fault) => bench.web.web_fault(*web_fault),
        HostOrWebFault::Held => {
            bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
            bench.host.foreign(Command::Refresh).await.unwrap();
        }
    }
    // Half of it idle, and half of it with an update requested, a little longer than a command takes to count as a long one.
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
    let reason = || find_condition(&reported_status().conditions, HOST_REACHABLE).map(|c| c.reason.clone());
    if let Some(expected) = expected {
        assert_eq!(reason().as_deref(), Some(*expected), "{what}");
    }
    assert_eq!((arms(&bench.host.log()), reboots(&bench.host.log())), (0, 0), "{what}: no permit was issued");
    // The fault is over. What failed meanwhile is not retried before the next attempt.
    bench.host.clear_faults();
    bench.host.release_command();
    bench.web.web_fault(WebFault::None);
    bench.withdraw();
    let idle = || reported_status().report.observed_generation == Some(bench.web.view().metadata.generation);
    assert!(pass_until(5 * MINUTE, idle).await, "{what}: it does not take notice: {:#?}", reported_status());
    assert!(*expected != Some(HOST_BUSY) || reason().as_deref() == Some(HOST_ANSWERED), "{what}: {:?}", reason());
    bench.stage(2);
    let staged = || idle() && reported_status().report.state == Some(HostState::StagedUpdate);
    assert!(pass_until(5 * MINUTE, staged).await, "{what}: it does not go on: {:#?}", reported_status());
    if agent.has_ended() {
        agent = InProcessAgent::start(&bench);
    }
    agent.end().await.unwrap();
}

#[test]
fn agent_receives_desired_state_within_a_second_while_web_api_replicas_move() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        bench.web.web_fault(WebFault::PeriodicStreamEnds);
        pass(MINUTE).await;
        for _ in 0..60 {
            bench.web.change_spec(|_| {});
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
fn stream_is_left_that_outlives_its_time_or_the_authorities_it_began_with() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
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
        agent.end().await.unwrap();
    });
}

#[test]
fn report_is_stored_behind_admission_webhook_that_hangs() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        bench.web.web_fault(WebFault::SlowWrites);
        let agent = InProcessAgent::start(&bench);
        let stored = || bench.web.view().status.report.observed_generation == Some(1);
        assert!(pass_until(3 * MINUTE, stored).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}

#[test]
fn host_refreshes_at_most_once_per_second() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let refreshes = || {
            let log = bench.host.log();
            log.iter().filter(|event| matches!(&event.kind, EventKind::Call { path, .. } if path == REFRESH)).count()
        };
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
        agent.end().await.unwrap();
    });
}

/// A host with a staged image whose agent requests a permit.
pub(super) async fn until_permit_requested(bench: &Bench) -> models::wire::ShadowView {
    let report = || bench.web.view().status.report;
    bench.stage(1);
    assert!(pass_until(MINUTE, || report().state == Some(HostState::StagedUpdate)).await, "it stages");
    bench.request_reboot();
    assert!(pass_until(MINUTE, || report().armed.is_some()).await, "it asks");
    bench.web.view()
}

#[test]
fn refused_reboot_is_requested_again_only_after_the_back_off() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
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
        let agent = InProcessAgent::start(&bench);
        let output = "a line that the updater printed\n".repeat(70_000);
        bench.host.script(Fault::fails(Command::Prepare, output));
        bench.stage(1);
        let staged = || bench.web.view().status.report.state == Some(HostState::StagedUpdate);
        assert!(pass_until(5 * MINUTE, staged).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}

#[test]
fn late_activation_of_withdrawn_attempt_is_disarmed() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
        let queued = Transport::Slow(Duration::from_secs(68));
        bench.host.script(Fault::request("POST", "/actions/activate", queued));
        bench.issue_permit(&bench.claims(&view));
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
        let disk = bench.host.snapshot().disk;
        assert_ne!(disk.next(), Some(disk.active), "the disk is armed");
        bench.withdraw();
        let view = || bench.web.view();
        let idle = || view().status.report.observed_generation == Some(view().metadata.generation);
        assert!(pass_until(10 * MINUTE, idle).await, "{:#?}", view());
        let disk = bench.host.snapshot().disk;
        assert_eq!((disk.next(), view().status.report.armed), (Some(disk.active), None));
        assert_eq!(reboots(&bench.host.log()), 0);
        agent.end().await.unwrap();
    });
}

#[test]
fn host_whose_shadow_is_deleted_during_its_activation_is_not_rebooted() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
        bench.host.script(Fault::request("POST", "/actions/activate", Transport::Slow(Duration::from_secs(10))));
        bench.issue_permit(&bench.claims(&view));
        pass(Duration::from_secs(2)).await;
        // It goes with its Node.
        bench.web.delete();
        pass(10 * MINUTE).await;
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
        agent.end().await.unwrap();
    });
}

#[test]
fn missing_or_stale_socket_ends_agent_and_new_agent_resumes() {
    for clean in [true, false] {
        simulate(async |counts| {
            let bench = Bench::without_agent().await;
            bench.web.create();
            let agent = InProcessAgent::start(&bench);
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
            pass(9 * MINUTE).await;
            assert!(!agent.has_ended(), "the host API may only be stopped for a while");
            assert!(pass_until(2 * MINUTE, || agent.has_ended()).await, "a dead socket ends the agent");
            let ended = agent.end().await.unwrap_err();
            assert!(ended.to_string().contains("socket has been dead"), "{ended}");
            assert!(counts.calls() - calls < 150, "{} calls of a dead socket", counts.calls() - calls);
            let reason = find_condition(&bench.web.view().status.conditions, HOST_REACHABLE).unwrap().reason.clone();
            assert_eq!(reason, if clean { "SocketMissing" } else { "ConnectionRefused" });
            if clean {
                std::fs::rename(&away, &mounted).unwrap();
            } else {
                bench.host.power_on();
                pass(MINUTE / 60).await;
                bench.withdraw();
                bench.stage(2);
            }
            let agent = InProcessAgent::start(&bench);
            let staged = || bench.web.view().status.report.state == Some(HostState::StagedUpdate);
            assert!(pass_until(5 * MINUTE, staged).await, "it goes on: {:#?}", bench.web.view());
            agent.end().await.unwrap();
        });
    }
}

#[test]
fn unknown_desired_state_is_reported_without_action() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        bench.web.change_spec(|spec| {
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
fn unknown_update_state_is_reported_without_host_command() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let status = || bench.web.view().status;
        assert!(pass_until(MINUTE, || status().report.observed_generation == Some(1)).await, "it reports");
        let strange = serde_json::json!({
            "update_state": "Melting", "available_updates": ["1.20.5"], "chosen_update": {"version": "1.20.5"},
            "most_recent_command": {"cmd_type": "refresh", "cmd_status": "Success", "timestamp": "2026-11-21T01:51:32Z"},
        });
        let answer = || Transport::Status(200, strange.to_string());
        bench.host.script(Fault::request("GET", "/updates", answer()).times(u32::MAX));
        let before = bench.calls().len();
        bench.stage(1);
        let reason = || find_condition(&status().conditions, HOST_REACHABLE).map(|c| c.reason.clone());
        assert!(pass_until(MINUTE, || reason().as_deref() == Some("UnsupportedState")).await, "{:#?}", status());
        pass(HOUR).await;
        let calls = bench.calls().split_off(before);
        assert!(calls.iter().all(|call| call.starts_with("GET")), "{calls:?}");
        assert_eq!(status().report.failure, None, "it waits");
        // Nothing signals when a user has corrected it: it is re-checked.
        bench.host.clear_faults();
        let staged = || status().report.state == Some(HostState::StagedUpdate);
        assert!(pass_until(10 * MINUTE, staged).await, "{:#?}", status());
        assert_eq!(reason().as_deref(), Some("Answered"));
        agent.end().await.unwrap();
    });
}

#[test]
fn desired_state_withdrawn_during_last_read_of_host_is_not_followed_by_reboot() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let request = until_permit_requested(&bench).await;
        let slow = Transport::Slow(Duration::from_secs(4));
        bench.host.script(Fault::request("GET", "/updates/status", slow).times(u32::MAX));
        bench.issue_permit(&bench.claims(&request));
        let view = || bench.web.view();
        let activated = || view().status.report.armed.is_some_and(|armed| armed.phase == ArmedPhase::Activated);
        assert!(pass_until(MINUTE, activated).await, "{:#?}", view());
        // The agent reads the host once more before it reboots it.
        bench.withdraw();
        let idle = || view().status.report.observed_generation == Some(view().metadata.generation);
        assert!(pass_until(5 * MINUTE, idle).await, "{:#?}", view());
        let log = bench.host.log();
        assert_eq!((arms(&log), reboots(&log)), (1, 0));
        agent.end().await.unwrap();
    });
}
