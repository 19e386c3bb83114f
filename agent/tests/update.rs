//! The agent as a process, between a simulated host and a stand-in for the web API.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bench;
mod settings;
mod storm;

use std::time::Duration;

use bench::web::{Weather, WriteFault};
use bench::{Bench, LIMIT, NEW, OLD};
use integ::host::{BootFault, Command, EventKind, Fault, RebootFault, UpdateState, Worker};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use models::condition::{ConditionStatus, find_condition};
use models::permit::{PERMIT_LIFETIME, PermitClaims};
use models::reason::FailureReason;
use models::shadow::{Armed, ArmedPhase, HOST_REACHABLE, HostState};
use models::wire::ShadowView;
use semver::Version;
use serde_json::json;

fn failed(view: &ShadowView) -> Option<FailureReason> {
    view.status.report.failure.as_ref().map(|failure| failure.reason)
}

fn phase(view: &ShadowView) -> Option<ArmedPhase> {
    view.status.report.armed.as_ref().map(|armed| armed.phase)
}

fn acknowledged(view: &ShadowView) -> bool {
    view.status.report.observed_generation == Some(view.metadata.generation)
}

async fn until_failed(bench: &Bench, reason: FailureReason) -> ShadowView {
    bench.web.until(reason.as_str(), |view| failed(view) == Some(reason) && acknowledged(view)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_takes_twelve_host_calls_and_five_reports() {
    let mut bench = Bench::new().await;
    let first = bench.web.view().status.report;
    assert_eq!((first.state, first.current_version), (Some(HostState::Idle), Some(OLD)));
    assert_eq!(first.boot_id, Some(bench.boot()));
    let (calls_before, writes_before) = (bench.calls().len(), bench.web.writes().len());
    assert_eq!((calls_before, writes_before), (2, 1), "{:?}", bench.calls());

    let boot = bench.boot();
    bench.staged(1).await;
    let asking = bench.asked().await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged, "not before the permit");
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    let reached = |view: &ShadowView| view.status.report.state == Some(HostState::RebootedIntoUpdate);
    let back = bench.web.until("the update is reached", reached).await;
    assert_eq!(back.status.report.current_version, Some(NEW));
    assert_eq!(back.status.report.armed, None);
    assert!(acknowledged(&back));
    bench.withdraw();
    bench.web.until("it is idle again", |v| v.status.report.state == Some(HostState::Idle) && acknowledged(v)).await;

    assert_eq!(
        bench.calls()[calls_before..],
        [
            "GET /updates/status",
            "POST /actions/refresh-updates",
            "GET /updates/status",
            "POST /actions/prepare-update",
            "GET /updates/status",
            "GET /updates/status",
            "POST /actions/activate-update",
            "GET /updates/status",
            "GET /updates/status",
            "POST /actions/reboot",
            "GET /os",
            "GET /updates/status",
        ]
    );
    let states: Vec<_> = bench.web.writes()[writes_before..]
        .iter()
        .map(|w| (w.report.state.unwrap(), w.report.armed.as_ref().map(|a| a.phase)))
        .collect();
    assert_eq!(
        states,
        [
            (HostState::StagedUpdate, None),
            (HostState::StagedUpdate, Some(ArmedPhase::Arming)),
            (HostState::StagedUpdate, Some(ArmedPhase::Activated)),
            (HostState::RebootedIntoUpdate, None),
            (HostState::Idle, None),
        ]
    );
    assert!(bench.web.tokens().iter().all(|token| token.starts_with("Bearer h.")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_not_for_us_moves_nothing() {
    let bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    let right = bench.claims(&asking);
    for (what, wrong) in [
        ("node", PermitClaims { node_uid: "another".into(), ..right.clone() }),
        ("boot", PermitClaims { boot_id: "another".into(), ..right.clone() }),
        ("attempt", PermitClaims { attempt: 2, ..right.clone() }),
        ("version", PermitClaims { version: Version::new(1, 20, 6), ..right.clone() }),
    ] {
        bench.give(&wrong);
        bench.logged(&format!("the permit is refused error=\"it is for another {what}")).await;
    }
    bench.withdraw();
    bench.web.until("it is withdrawn", |v| acknowledged(v) && v.status.report.armed.is_none()).await;
    assert!(!bench.calls().iter().any(|c| c.contains("activate") || c.contains("reboot")), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_by_a_key_that_comes_later_waits_for_it_and_is_then_taken() {
    let bench = Bench::new().await;
    let keys = bench.path("trust/permit-keys.json");
    let right = std::fs::read_to_string(&keys).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    let mut jwk = Jwk::from_encoding_key(&EncodingKey::from_ec_der(&other.serialize_der()), Algorithm::ES256).unwrap();
    jwk.common.key_id = Some("k0".into());
    let jwk = serde_json::to_value(jwk).unwrap();
    std::fs::write(&keys, json!({"keys": [jwk]}).to_string()).unwrap();
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    bench.logged("its key 'k1' is not trusted here, or not yet").await;
    assert!(!bench.calls().iter().any(|call| call.contains("activate")), "{:?}", bench.calls());
    // The new key arrives behind the old one, as the kubelet writes it: at once and whole.
    let mut both: serde_json::Value = serde_json::from_str(&right).unwrap();
    both["keys"].as_array_mut().unwrap().insert(0, jwk);
    std::fs::write(bench.path("next"), both.to_string()).unwrap();
    std::fs::rename(bench.path("next"), &keys).unwrap();
    bench
        .web
        .until("it is armed", |v| v.status.report.armed.as_ref().is_some_and(|a| a.phase == ArmedPhase::Activated))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_stopped_finds_its_permit_too_old() {
    let mut bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    let pid = bench.agent().id().unwrap().to_string();
    let signal = |name: &str| std::process::Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(signal("-STOP").success());
    bench.give(&bench.claims(&asking));
    // Not a wait for a condition: the passing of this time is what is tested.
    tokio::time::sleep(PERMIT_LIFETIME + Duration::from_secs(1)).await;
    assert!(signal("-CONT").success());
    let nonce = |view: &ShadowView| view.status.report.armed.as_ref().map(|armed| armed.nonce.clone());
    bench.web.until("it asks again", |view| nonce(view) != nonce(&asking)).await;
    assert!(!bench.calls().iter().any(|c| c.contains("activate") || c.contains("reboot")), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_armed_for_a_withdrawn_order_is_disarmed_also_by_another_process() {
    let mut bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.host.script(Fault::command(Command::Activate, Worker::Waits));
    bench.give(&bench.claims(&asking));
    bench.until_running(Command::Activate).await;
    bench.kill_agent().await;
    bench.finish_command().await;
    bench.host.lock_free().await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    bench.withdraw();
    bench.start_agent();
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!(idle.status.report.armed, None);
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")));
}

/// Returns true if any reboot boots the staged image.
fn disk_armed(bench: &Bench) -> bool {
    let disk = bench.host.snapshot().disk;
    disk.next() == Some(disk.inactive())
}

async fn until_disk_armed(bench: &Bench) {
    let wait = async {
        while !disk_armed(bench) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "the disk is not armed: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_armed_without_a_record_is_reported_and_disarmed_by_another_download() {
    let bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    bench.give(&bench.claims(&asking));
    until_failed(&bench, FailureReason::ActivateFailed).await;
    let status = bench.host.snapshot().status.unwrap();
    assert!(disk_armed(&bench) && status.update_state == UpdateState::Staged);
    bench.host.script(Fault::command(
        Command::Prepare,
        Worker::Exits { status: 1, stderr: "no network".into(), overwrote: false },
    ));
    bench.withdraw();
    let pending = |v: &ShadowView| reached(v) == Some("DeactivateFailed") && v.status.report.armed.is_some();
    let view = bench.web.until("it is reported", pending).await;
    assert!(!acknowledged(&view) && disk_armed(&bench));
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!((idle.status.report.armed, disk_armed(&bench)), (None, false));
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")));
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_armed_without_a_record_is_disarmed_by_a_restarted_agent() {
    let mut bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    bench.give(&bench.claims(&asking));
    until_disk_armed(&bench).await;
    bench.kill_agent().await;
    bench.withdraw();
    bench.start_agent();
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!((idle.status.report.armed, disk_armed(&bench)), (None, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_withdrawn_before_its_permit_downloads_nothing_again() {
    let bench = Bench::new().await;
    bench.staged(1).await;
    bench.asked().await;
    bench.withdraw();
    let idle = bench.web.until("it is idle", acknowledged).await;
    assert_eq!(idle.status.report.armed, None);
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_that_another_client_disarmed_is_not_rebooted() {
    let bench = Bench::new().await;
    bench.staged(1).await;
    let asking = bench.asked().await;
    // The report that comes before the reboot does not arrive until the other client has acted.
    bench.web.refuse(Some(|report| report.report.armed.as_ref().is_some_and(|a| a.phase == ArmedPhase::Activated)));
    bench.give(&bench.claims(&asking));
    until_disk_armed(&bench).await;
    bench.host.lock_free().await;
    bench.host.foreign(Command::Deactivate).await.unwrap();
    bench.web.refuse(None);
    let view = until_failed(&bench, FailureReason::DisarmedByOther).await;
    assert!(view.status.report.failure.unwrap().message.contains("another client disarmed it"));
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")), "{:?}", bench.calls());
    bench.withdraw();
    let idle = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!((idle.status.report.armed, disk_armed(&bench)), (None, false));
    let calls = bench.calls();
    let times = |what: &str| calls.iter().filter(|call| call.contains(what)).count();
    assert_eq!((times("prepare"), times("activate-update")), (1, 1), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_died_after_arming_asks_for_another_permit() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.host.script(Fault::command(Command::Activate, Worker::Waits));
    let old = bench.claims(&asking);
    bench.give(&old);
    bench.until_running(Command::Activate).await;
    bench.kill_agent().await;
    bench.finish_command().await;
    bench.host.lock_free().await;
    bench.start_agent();
    let asking = bench.web.until("it asks again", |v| phase(v) == Some(ArmedPhase::Activated)).await;
    assert_ne!(bench.claims(&asking).nonce, old.nonce, "a permit never outlives the process that asked for it");
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")));
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    bench.web.until("the update is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("activate")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_that_fell_back_is_charged_to_the_version() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.script(Fault::boot(BootFault::NewImageFails));
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    let view = until_failed(&bench, FailureReason::BootFellBack).await;
    assert_eq!((view.status.report.armed, view.status.report.state), (None, Some(HostState::Idle)));
    // The next attempt starts over.
    bench.withdraw();
    bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    bench.staged(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_before_arming_is_not_charged_to_the_version() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.staged(1).await;
    bench.asked().await;
    bench.kill_agent().await;
    bench.host.power_loss().await;
    bench.host.booted_after(&boot).await;
    bench.start_agent();
    let view = until_failed(&bench, FailureReason::RebootedByOther).await;
    assert_eq!(view.status.report.armed, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_keeps_failing_ends_the_attempt_with_what_the_host_said() {
    let bench = Bench::new().await;
    bench.host.script(Fault::fails(Command::Prepare, "out of space").times(3));
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::PrepareFailed).await;
    assert_eq!(view.status.report.failure.unwrap().message, "out of space");
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 3);
    bench.withdraw();
    bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    bench.staged(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_of_another_version_is_a_failure_and_a_half_one_is_not_trusted() {
    let bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Writes(Version::new(1, 20, 9))));
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::WrongImageStaged).await;
    assert!(view.status.report.failure.unwrap().message.contains("1.20.9"));

    bench.host.script(Fault::command(Command::Prepare, Worker::Vanishes));
    bench.staged(2).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_the_host_does_not_offer_is_asked_for_a_few_times_only() {
    let bench = Bench::new().await;
    bench.releases.withdraw(&NEW);
    bench.stage(1);
    until_failed(&bench, FailureReason::VersionNotOffered).await;
    assert!(!bench.calls().iter().any(|call| call.contains("prepare")));
}

#[tokio::test(flavor = "multi_thread")]
async fn arming_that_fails_once_and_a_reboot_whose_answer_is_lost_are_no_failures() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.script(Fault::fails(Command::Activate, "busy"));
    bench.host.script(Fault::reboot(RebootFault::ReplyCut));
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    bench.web.until("the update is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("/reboot")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_refuses_to_reboot_ends_the_attempt_and_is_disarmed_when_the_order_goes() {
    let bench = Bench::new().await;
    bench.host.script(Fault::reboot(RebootFault::Refused { stderr: "an inhibitor".into() }).times(3));
    bench.staged(1).await;
    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    let view = until_failed(&bench, FailureReason::RebootRefused).await;
    assert_eq!(phase(&view), Some(ArmedPhase::Activated), "it is armed still");
    bench.withdraw();
    let view = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!(view.status.report.armed, None);
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_withdrawn_during_the_download_goes_no_further() {
    let bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    bench.stage(1);
    bench.until_running(Command::Prepare).await;
    bench.withdraw();
    bench.finish_command().await;
    let view = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
}

/// Stages and arms an image on the host as another client.
async fn arm_by_another(bench: &Bench) {
    for command in [Command::Refresh, Command::Prepare, Command::Activate] {
        bench.host.foreign(command).await.unwrap();
        bench.host.lock_free().await;
    }
}

/// Returns the reason of the host's condition.
fn reached(view: &ShadowView) -> Option<&str> {
    find_condition(&view.status.conditions, HOST_REACHABLE).map(|c| c.reason.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_armed_is_left_alone_and_told() {
    let mut bench = Bench::new().await;
    bench.kill_agent().await;
    arm_by_another(&bench).await;
    bench.start_agent();
    bench.web.until("it is told", |v| reached(v) == Some("HostArmedByOther")).await;
    bench.stage(1);
    until_failed(&bench, FailureReason::HostArmedByOther).await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    assert!(!bench.calls().iter().any(|call| call.starts_with("POST")), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_armed_is_disarmed_at_a_persons_word_for_this_boot() {
    let mut bench = Bench::new().await;
    bench.kill_agent().await;
    arm_by_another(&bench).await;
    bench.start_agent();
    bench.web.until("it is told", |v| reached(v) == Some("HostArmedByOther")).await;
    let permit = |boot: String| {
        let policy = models::shadow::HostPolicy { disarm_in_boot: Some(boot), ..Default::default() };
        bench.web.order(|spec| spec.host = Some(policy));
    };
    permit("another boot".into());
    bench.web.until("it is read", acknowledged).await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    permit(bench.boot());
    let view = bench.web.until("it is disarmed", |v| acknowledged(v) && reached(v) == Some("Answered")).await;
    assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
    bench.staged(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_another_client_updates_or_takes_back_is_reported_and_no_failure() {
    let mut bench = Bench::new().await;
    for (lock, version) in [("latest", NEW), ("1.20.0", OLD)] {
        let boot = bench.boot();
        let version_lock = integ::host::VersionLock::parse(lock).ok();
        bench.host.foreign_settings(integ::host::UpdatesSettings { version_lock, ..Default::default() });
        arm_by_another(&bench).await;
        bench.host.foreign_reboot().await;
        bench.rebooted(&boot).await;
        let runs = |v: &ShadowView| {
            v.status.report.current_version == Some(version.clone()) && v.status.report.boot_id.as_ref() != Some(&boot)
        };
        let view = bench.web.until("it is reported", runs).await;
        assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
        assert_eq!(view.status.report.armed, None);
        assert!(acknowledged(&view));
    }
    // Also under an attempt to stage that was open meanwhile: it is staged again.
    let version_lock = Some(integ::host::VersionLock::latest());
    bench.host.foreign_settings(integ::host::UpdatesSettings { version_lock, ..Default::default() });
    bench.staged(1).await;
    let boot = bench.boot();
    bench.host.foreign_reboot().await;
    bench.rebooted(&boot).await;
    let staged = |v: &ShadowView| v.status.report.state == Some(HostState::StagedUpdate);
    let again = |v: &ShadowView| staged(v) && v.status.report.boot_id.as_ref() != Some(&boot);
    let view = bench.web.until("it is staged again", again).await;
    assert_eq!(failed(&view), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_survives_a_refusal_and_a_lost_answer() {
    let bench = Bench::new().await;
    bench.web.fault(WriteFault::Refused);
    bench.web.fault(WriteFault::AnswerLost);
    bench.staged(1).await;
    bench.asked().await;
    let states: Vec<_> = bench.web.writes().iter().map(|write| write.report.state.unwrap()).collect();
    assert_eq!(states, [HostState::Idle, HostState::StagedUpdate, HostState::StagedUpdate], "none is written twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_finds_another_state_is_built_again_on_it() {
    let bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    bench.stage(1);
    bench.until_running(Command::Prepare).await;
    let theirs = Armed {
        attempt: 0,
        boot_id: "long ago".into(),
        version: OLD,
        phase: ArmedPhase::Activated,
        nonce: "theirs".into(),
    };
    bench.web.tamper(|status| status.report.armed = Some(theirs.clone()));
    bench.finish_command().await;
    let staged = |v: &ShadowView| v.status.report.state == Some(HostState::StagedUpdate);
    let view = bench.web.until("the image is staged", staged).await;
    assert_eq!((bench.web.stale(), view.status.report.armed), (1, Some(theirs)));
    bench.withdraw();
    let view = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!(view.status.report.armed, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_waits_for_its_trust_its_token_and_its_shadow() {
    let mut bench = Bench::without_agent().await;
    for name in ["trust/ca.crt", "token"] {
        std::fs::rename(bench.path(name), bench.path("away")).unwrap();
        bench.start_agent();
        bench.logged(&format!("cannot read the {}", if name == "token" { "token" } else { "CA bundle" })).await;
        std::fs::rename(bench.path("away"), bench.path(name)).unwrap();
    }
    bench.web.create();
    bench.web.until("it has reported", acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_renewed_under_a_running_agent_goes_with_its_next_report_and_its_next_stream() {
    let bench = Bench::new().await;
    for (signature, weather) in [("second", Weather::Novel), ("third", Weather::Fair)] {
        let (reports, streams) = (bench.web.tokens_of("PUT").len(), bench.web.tokens_of("GET").len());
        let renewed = bench.renew_token(signature);
        bench.web.order(|spec| spec.attempt += 1);
        bench.web.until("it has reported", acknowledged).await;
        let since = bench.web.tokens_of("PUT").split_off(reports);
        assert!(!since.is_empty() && since.iter().all(|token| *token == renewed), "{signature}: {since:?}");
        // The open stream was opened with the previous token; it ends with this.
        assert_eq!(bench.web.tokens_of("GET").len(), streams);
        bench.web.weather(weather);
        let next = async {
            while bench.web.tokens_of("GET").len() == streams {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, next).await.is_ok(), "no further stream: {}", bench.log());
        assert_eq!(bench.web.tokens_of("GET")[streams], renewed, "{signature}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_host_looks_for_updates_as_policy_asks_and_tells_only_news() {
    let bench = Bench::new().await;
    let interval = "1s".parse().unwrap();
    bench.web.order(|spec| {
        spec.host = Some(models::shadow::HostPolicy { refresh_interval: Some(interval), ..Default::default() });
    });
    let offers = |version: Version| {
        move |v: &ShadowView| {
            v.status.report.updates.as_ref().is_some_and(|u| u.chosen_version == Some(version.clone()))
        }
    };
    bench.web.until("it tells the offer", offers(NEW)).await;
    let writes = bench.web.writes().len();
    let looks = || bench.calls().iter().filter(|call| call.contains("refresh")).count();
    let before = looks();
    let mut events = bench.host.subscribe();
    while looks() < before + 2 {
        events.recv().await.unwrap();
    }
    assert_eq!(bench.web.writes().len(), writes, "nothing new was found");
    bench.host.script(Fault::fails(Command::Refresh, "no network"));
    let failing = |v: &ShadowView| v.status.report.updates.as_ref().and_then(|u| u.refresh_failure.clone());
    let view = bench.web.until("it tells the failure", |v| failing(v).is_some()).await;
    assert!(offers(NEW)(&view), "the offer stays");
    bench.releases.publish(Version::new(1, 21, 0));
    bench.web.until("it tells the new offer", |v| offers(Version::new(1, 21, 0))(v) && failing(v).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_host_refreshes_as_policy_asks_and_keeps_its_image() {
    let mut bench = Bench::new().await;
    let interval = "1s".parse().unwrap();
    bench.web.order(|spec| {
        spec.host = Some(models::shadow::HostPolicy { refresh_interval: Some(interval), ..Default::default() });
    });
    bench.staged(1).await;
    let boot = bench.boot();
    let newer = Version::new(1, 21, 0);
    bench.releases.publish(newer.clone());
    bench.releases.withdraw(&NEW);
    let view = bench
        .web
        .until("what is offered now is reported", |v| {
            let updates = v.status.report.updates.as_ref();
            updates.is_some_and(|u| u.chosen_version.as_ref() == Some(&newer) && !u.available_versions.contains(&NEW))
        })
        .await;
    assert_eq!(view.status.report.state, Some(HostState::StagedUpdate));
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
    let prepared = |call: &&String| call.contains("prepare");
    assert_eq!(bench.calls().iter().filter(prepared).count(), 1, "the image is trusted as before");

    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    let reached = |view: &ShadowView| view.status.report.state == Some(HostState::RebootedIntoUpdate);
    let back = bench.web.until("the staged image is booted", reached).await;
    assert_eq!(back.status.report.current_version, Some(NEW));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_answer_is_told_and_a_dead_socket_ends_the_agent() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.power_off();
    let mut events = bench.host.subscribe();
    while !bench.host.log().iter().any(|e| e.boot_id == boot && e.kind == EventKind::Down) {
        events.recv().await.unwrap();
    }
    bench.stage(1);
    let view = bench
        .web
        .until("it is told", |v| {
            find_condition(&v.status.conditions, HOST_REACHABLE).is_some_and(|c| c.status == ConditionStatus::False)
        })
        .await;
    assert_eq!(find_condition(&view.status.conditions, HOST_REACHABLE).unwrap().reason, "ConnectionRefused");
    let ended = tokio::time::timeout(LIMIT, bench.agent().wait()).await.unwrap().unwrap();
    assert!(!ended.success());
    assert!(bench.log().contains("does not answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sigterm_ends_the_agent_without_another_host_call() {
    let mut bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    bench.stage(1);
    bench.until_running(Command::Prepare).await;
    let pid = bench.agent().id().unwrap();
    assert!(std::process::Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    let ended = tokio::time::timeout(LIMIT, bench.agent().wait()).await.unwrap().unwrap();
    assert!(ended.success());
    assert!(!bench.calls().iter().any(|call| call.contains("deactivate") || call.contains("reboot")));
}

/// Names the agent's program as it ships.
const SHIPPED: &str = "BRUPOP_AGENT_BIN";

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_use_stays_small() {
    let Some(shipped) = std::env::var_os(SHIPPED) else {
        println!(
            "the agent's memory was not measured: a debug build says nothing about it, and {SHIPPED} names no other"
        );
        return;
    };
    let bench = Bench::without_agent().await;
    bench.web.create();
    let mut agent = tokio::process::Command::new(&shipped)
        .arg("--node-name=a")
        .arg(format!("--host-socket={}", bench.host.socket().display()))
        .arg(format!("--boot-id-file={}", bench.path("proc/sys/kernel/random/boot_id").display()))
        .arg(format!("--server-url={}", bench.web.url))
        .arg(format!("--token-file={}", bench.path("token").display()))
        .arg(format!("--trust-dir={}", bench.path("trust").display()))
        .env_clear()
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    bench.web.until("the agent has reported", |v| v.status.report.observed_generation == Some(1)).await;
    bench.staged(1).await;
    bench.asked().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id().unwrap())).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (resident, anonymous, peak) = (field("VmRSS:"), field("RssAnon:"), field("VmHWM:"));
    let size = std::fs::metadata(&shipped).unwrap().len();
    println!("resident {resident} KiB, of it anonymous {anonymous} KiB; peak {peak} KiB; program {size} bytes");
    assert!(peak <= 6 * 1024, "{peak} KiB");
    assert!(size <= 4 * 1024 * 1024, "{size} bytes");
    agent.kill().await.unwrap();
}
