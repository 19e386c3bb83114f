//! The host's settings: locked to a version, restored, and left alone where they are another client's.

use std::time::Duration;

use integ::host::{Command, EventKind, Fault, Transport, UpdatesSettings, VersionLock};
use models::condition::find_condition;
use models::permit::SettingsClaims;
use models::reason::FailureReason;
use models::shadow::{AppliedSettings, FoundSettings, HOST_REACHABLE, HostPolicy, HostState};
use models::wire::ShadowView;
use semver::Version;

use super::bench::{Bench, NEW, OLD};
use super::{acknowledged, until_failed};

const NEWEST: Version = Version::new(1, 21, 0);

/// Returns the settings calls to the host, without the transactions' names.
fn settings_calls(bench: &Bench) -> Vec<String> {
    let calls = bench.calls().into_iter().filter(|call| call.contains(" /settings") || call.contains(" /tx"));
    calls.map(|call| call.split_once("?tx=").map_or(call.clone(), |(path, _)| path.to_owned())).collect()
}

const READ: &str = "GET /settings?keys=settings.updates.version-lock,settings.updates.ignore-waves";
const STAGE: &str = "PATCH /settings";
const COMMIT: &str = "POST /tx/commit_and_apply";

fn lock_of(bench: &Bench) -> VersionLock {
    bench.host.snapshot().settings.version_lock.unwrap()
}

fn locked(bench: &Bench, version: &str) -> bool {
    lock_of(bench) == VersionLock::parse(version).unwrap()
}

fn another_client_locks(bench: &Bench, version: &str) {
    let version_lock = Some(VersionLock::parse(version).unwrap());
    bench.host.foreign_settings(UpdatesSettings { version_lock, ..UpdatesSettings::default() });
}

fn chosen(view: &ShadowView) -> Option<Version> {
    view.status.report.updates.as_ref().and_then(|updates| updates.chosen_version.clone())
}

fn reach(view: &ShadowView) -> String {
    find_condition(&view.status.conditions, HOST_REACHABLE).map(|c| c.reason.clone()).unwrap_or_default()
}

fn set(lock: &str) -> FoundSettings {
    FoundSettings {
        version_lock: Some("latest".into()),
        applied: Some(AppliedSettings { version_lock: Some(lock.into()), ..AppliedSettings::default() }),
        ..FoundSettings::default()
    }
}

/// Waits until the host has been seen to choose this version.
async fn until_chosen(bench: &Bench, version: Version) -> ShadowView {
    let what = format!("{version} is chosen");
    bench.web.until(&what, |view| chosen(view).as_ref() == Some(&version)).await
}

/// Waits until the host has got this many calls of this kind.
async fn until_called(bench: &Bench, kind: &str, times: usize) {
    let mut events = bench.host.subscribe();
    let count = || settings_calls(bench).iter().filter(|call| *call == kind).count();
    let wait = async {
        while count() < times {
            let _ = events.recv().await;
        }
    };
    assert!(tokio::time::timeout(super::bench::LIMIT, wait).await.is_ok(), "{:?}: {}", bench.calls(), bench.log());
}

/// Waits until the host has refreshed this many times more.
async fn until_looked(bench: &Bench, times: usize) {
    let mut events = bench.host.subscribe();
    let count = || bench.calls().iter().filter(|call| call.contains("refresh")).count();
    let before = count();
    let wait = async {
        while count() < before + times {
            let _ = events.recv().await;
        }
    };
    assert!(tokio::time::timeout(super::bench::LIMIT, wait).await.is_ok(), "{:?}: {}", bench.calls(), bench.log());
}

/// Takes the host through an update to `version`, by desired state and permit.
async fn update(bench: &mut Bench, attempt: i64, version: Version) {
    let boot = bench.boot();
    bench.stage_version(attempt, version);
    bench.web.until("it is staged", |v| v.status.report.state == Some(HostState::StagedUpdate)).await;
    let asking = bench.asked().await;
    bench.give(&bench.claims(&asking));
    bench.rebooted(&boot).await;
    bench.web.until("it is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    bench.withdraw();
    bench.web.until("it is idle", |v| v.status.report.state == Some(HostState::Idle) && acknowledged(v)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_asks_for_no_setting_makes_no_settings_call() {
    let mut bench = Bench::new().await;
    bench.ask(None, Some(false));
    bench.web.order(|spec| {
        spec.host = spec.host.take().map(|host| HostPolicy { disarm_in_boot: Some("another".into()), ..host });
    });
    until_chosen(&bench, NEW).await;
    update(&mut bench, 1, NEW).await;
    until_looked(&bench, 2).await;
    assert_eq!(settings_calls(&bench), [""; 0]);
    assert_eq!(bench.web.view().status.report.host, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_takes_the_host_up_to_its_version_and_not_further() {
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.ask(Some("1.20.5"), None);
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")));
    assert!(locked(&bench, "1.20.5"));
    // Read, reported, read again before the change, and read to see its result.
    assert_eq!(settings_calls(&bench)[..5], [READ, READ, STAGE, COMMIT, READ]);
    let body = bench.host.log().into_iter().find_map(|event| match event.kind {
        EventKind::Call { method, body, .. } if method == "PATCH" => Some(body),
        _ => None,
    });
    assert_eq!(body.as_deref(), Some(r#"{"updates":{"version-lock":"1.20.5"}}"#));
    update(&mut bench, 1, NEW).await;
    assert_eq!(bench.host.snapshot().running_version, NEW);
    until_looked(&bench, 2).await;
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call != READ).count(), 2, "one transaction is all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_takes_the_host_down() {
    let mut bench = Bench::with(|options| options.version = NEW).await;
    bench.ask(Some("1.20.0"), None);
    until_chosen(&bench, OLD).await;
    update(&mut bench, 1, OLD).await;
    assert_eq!(bench.host.snapshot().running_version, OLD);
    assert!(locked(&bench, "1.20.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_comes_with_its_pin_locks_before_it_downloads() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let (boot, policy) = (bench.boot(), bench.policy(Some("1.20.5"), None));
    bench.web.order(|spec| {
        spec.state = HostState::StagedUpdate;
        spec.version = Some(NEW);
        spec.attempt = 1;
        spec.boot_id = Some(boot);
        spec.host = Some(policy);
    });
    bench.web.until("it is staged", |v| v.status.report.state == Some(HostState::StagedUpdate)).await;
    let calls = bench.calls();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).unwrap();
    assert!(at("commit_and_apply") < at("refresh") && at("refresh") < at("prepare"), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_before_what_was_found_is_reported() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.web.refuse(Some(|status| status.report.host.is_some()));
    bench.ask(Some("1.20.5"), None);
    bench.logged_times("the report did not arrive", 3).await;
    assert_eq!(settings_calls(&bench), [READ]);
    bench.web.refuse(None);
    until_chosen(&bench, NEW).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_pin_is_put_back_and_forgotten() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.ask(Some("1.20.5"), Some(true));
    let view = until_chosen(&bench, NEW).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..set("1.20.5").applied.unwrap() };
    let found = FoundSettings { ignore_waves: Some(false), applied: Some(own), ..set("1.20.5") };
    assert_eq!(view.status.report.host, Some(found));
    bench.ask(None, None);
    until_chosen(&bench, NEWEST).await;
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
    assert_eq!(bench.host.snapshot().settings.ignore_waves, Some(false));
    let calls = settings_calls(&bench).len();
    until_looked(&bench, 2).await;
    assert_eq!(settings_calls(&bench).len(), calls, "and no setting is looked at any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_was_never_set_is_put_back_to_its_default() {
    let bench = Bench::with(|options| options.settings = UpdatesSettings::default()).await;
    bench.ask(Some("1.20.5"), None);
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(FoundSettings { version_lock: None, ..set("1.20.5") }));
    bench.ask(None, None);
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_changed_since_is_not_put_back() {
    let bench = Bench::new().await;
    bench.ask(Some("1.20.5"), Some(true));
    until_chosen(&bench, NEW).await;
    another_client_locks(&bench, "v1.20.0");
    let told = |v: &ShadowView| v.status.report.host.as_ref().is_some_and(|host| host.conflicting_lock.is_some());
    let view = bench.web.until("it is told", told).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() };
    let left = FoundSettings {
        ignore_waves: Some(false),
        applied: Some(own),
        conflicting_lock: Some("v1.20.0".into()),
        ..FoundSettings::default()
    };
    assert_eq!(view.status.report.host, Some(left), "the waves are ours still");
    bench.ask(None, None);
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none() && reach(v) == "Answered").await;
    assert!(locked(&bench, "v1.20.0"), "{:?}", lock_of(&bench));
    assert_eq!(bench.host.snapshot().settings.ignore_waves, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_another_client_set_is_respected_and_told() {
    let bench = Bench::new().await;
    another_client_locks(&bench, "v1.20.0");
    bench.ask(Some("1.20.5"), None);
    let view = bench.web.until("it is told", |v| reach(v) == "LockedByOther" && v.status.report.host.is_some()).await;
    let foreign = FoundSettings { conflicting_lock: Some("v1.20.0".into()), ..FoundSettings::default() };
    assert_eq!(view.status.report.host, Some(foreign));
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::LockedByOther).await;
    assert!(view.status.report.failure.unwrap().message.contains("'v1.20.0'"));
    assert!(!settings_calls(&bench).iter().any(|call| call != READ), "{:?}", settings_calls(&bench));
    assert!(!bench.calls().iter().any(|call| call.contains("prepare")));
    // Once the other client removes its lock, policy rules.
    bench.withdraw();
    another_client_locks(&bench, "latest");
    let view = until_chosen(&bench, NEW).await;
    assert_eq!((reach(&view).as_str(), view.status.report.host), ("Answered", Some(set("1.20.5"))));
    bench.staged(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_client_that_wants_the_same_is_theirs_to_take_back() {
    let bench = Bench::new().await;
    another_client_locks(&bench, "v1.20.5");
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    bench.staged(1).await;
    bench.withdraw();
    bench.ask(None, None);
    bench.web.until("it is idle", acknowledged).await;
    until_looked(&bench, 1).await;
    assert!(locked(&bench, "v1.20.5"));
    assert!(!settings_calls(&bench).iter().any(|call| call != READ), "{:?}", settings_calls(&bench));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_report_and_the_change_leaves_enough_to_go_on() {
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::request("PATCH", "/settings", Transport::LostBefore).times(3));
    bench.ask(Some("1.20.5"), None);
    until_called(&bench, STAGE, 1).await;
    bench.kill_agent().await;
    assert!(locked(&bench, "latest"));
    assert_eq!(bench.web.view().status.report.host, Some(set("1.20.5")));
    bench.start_agent();
    until_chosen(&bench, NEW).await;
    assert!(locked(&bench, "1.20.5"));
    assert_eq!(bench.web.view().status.report.host, Some(set("1.20.5")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_report_and_the_change_of_a_pin_that_is_gone_meanwhile_changes_nothing() {
    let mut bench = Bench::new().await;
    bench.host.script(Fault::request("PATCH", "/settings", Transport::LostBefore).times(3));
    bench.ask(Some("1.20.5"), None);
    until_called(&bench, STAGE, 1).await;
    bench.kill_agent().await;
    let tried = settings_calls(&bench).iter().filter(|call| *call == STAGE).count();
    bench.ask(None, None);
    bench.start_agent();
    bench.web.until("it is forgotten", |v| acknowledged(v) && v.status.report.host.is_none()).await;
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call == STAGE).count(), tried);
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_change_and_its_outcome_leaves_enough_to_put_back() {
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::request("POST", "/tx", Transport::LostAfter));
    bench.ask(Some("1.20.5"), None);
    until_called(&bench, COMMIT, 1).await;
    bench.kill_agent().await;
    assert!(locked(&bench, "1.20.5"));
    bench.start_agent();
    until_chosen(&bench, NEW).await;
    assert_eq!(bench.web.view().status.report.host, Some(set("1.20.5")));
    bench.kill_agent().await;
    bench.ask(None, None);
    bench.start_agent();
    bench.web.until("it is forgotten", |v| acknowledged(v) && v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_a_pin_moves_leaves_neither_lock_to_another_client() {
    let mut bench = Bench::with(|options| options.version = NEWEST).await;
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    bench.host.script(Fault::request("PATCH", "/settings", Transport::LostBefore).times(3));
    bench.ask(Some("1.20.0"), None);
    until_called(&bench, STAGE, 2).await;
    bench.kill_agent().await;
    assert!(locked(&bench, "1.20.5"));
    let own = bench.web.view().status.report.host.unwrap().applied.unwrap();
    assert_eq!((own.version_lock.as_deref(), own.replaces.as_deref()), (Some("1.20.0"), Some("1.20.5")));
    bench.start_agent();
    until_chosen(&bench, OLD).await;
    bench.web.until("the old one is forgotten", |v| v.status.report.host == Some(set("1.20.0"))).await;
    assert!(locked(&bench, "1.20.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_failed_and_yet_was_made_is_made_once_more_for_its_files() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    bench.ask(Some("1.20.5"), None);
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")));
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, VersionLock::parse("1.20.5").ok());
    let calls = bench.calls();
    let commits: Vec<_> = (0..calls.len()).filter(|at| calls[*at].contains("commit")).collect();
    assert_eq!(commits.len(), 2);
    let looks = calls[commits[0]..commits[1]].iter().filter(|call| call.contains("refresh")).count();
    assert!(looks < 5, "the failure is known without looking: {calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_were_never_written_are_found_out_by_what_the_host_chooses() {
    // The previous process learned of the failure and crashed: the new one sees settings that are as requested.
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    bench.ask(Some("1.20.5"), None);
    until_called(&bench, COMMIT, 1).await;
    bench.kill_agent().await;
    assert!(locked(&bench, "1.20.5"));
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
    bench.start_agent();
    until_chosen(&bench, NEW).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_lost_before_its_commit_is_made_again() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let lost = Transport::Status(422, "Tried to commit with no pending changes".into());
    bench.host.script(Fault::request("POST", "/tx", lost));
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    assert!(locked(&bench, "1.20.5"));
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call == STAGE).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_tools_learn_of_the_lock_late_is_asked_again() {
    let bench = Bench::with(|options| options.settings_lag = Duration::from_millis(2500)).await;
    bench.releases.publish(NEWEST);
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    let looks = bench.calls().iter().filter(|call| call.contains("refresh")).count();
    assert!(looks >= 2, "the first look still went by the old lock: {:?}", bench.calls());
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call == COMMIT).count(), 1);
    bench.staged(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_the_host_does_not_offer_is_looked_for_a_few_times_and_then_as_policy_says() {
    let bench = Bench::new().await;
    bench.ask(Some("9.9.9"), None);
    bench.logged("the host chooses another version than its settings require").await;
    let commits = || settings_calls(&bench).iter().filter(|call| *call == COMMIT).count();
    assert_eq!(commits(), 2, "once to lock it, and once more in case the files were never written");
    until_looked(&bench, 3).await;
    assert_eq!(commits(), 2);
    let view = bench.web.view();
    assert_eq!((reach(&view).as_str(), chosen(&view)), ("Answered", None));
    assert_eq!(view.status.report.host, Some(set("9.9.9")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wave_that_has_not_come_is_skipped_where_policy_says_so() {
    let bench = Bench::new().await;
    let never = "2100-01-01T00:00:00Z".parse().unwrap();
    bench.releases.publish_in_waves(NEWEST, [(2048, never)]);
    bench.ask(None, None);
    until_chosen(&bench, NEW).await;
    bench.ask(None, Some(true));
    let view = until_chosen(&bench, NEWEST).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() };
    let found = FoundSettings { ignore_waves: Some(false), applied: Some(own), ..FoundSettings::default() };
    assert_eq!(view.status.report.host, Some(found));
    assert!(locked(&bench, "latest"));
    bench.ask(None, None);
    until_chosen(&bench, NEW).await;
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_refuses_the_change_fails_the_order_with_its_words() {
    let bench = Bench::new().await;
    let refusal = Transport::Status(400, "Json deserialize error: no such version".into());
    bench.host.script(Fault::request("PATCH", "/settings", refusal).times(1000));
    bench.ask(Some("1.20.5"), None);
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::SettingsFailed).await;
    assert!(view.status.report.failure.unwrap().message.contains("no such version"));
    bench.withdraw();
    bench.web.until("it is told", |v| acknowledged(v) && reach(v) == "SettingsFailed").await;
    // An unchanged setting is not restored either.
    bench.ask(None, None);
    let quiet = |v: &ShadowView| acknowledged(v) && v.status.report.host.is_none() && reach(v) == "Answered";
    bench.web.until("it is forgotten", quiet).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_the_controller_did_not_sign_for_this_node_are_not_even_read() {
    let bench = Bench::new().await;
    let right = bench.policy(Some("1.20.5"), Some(true));
    let said = SettingsClaims::of("node-uid", &right).unwrap();
    let other = Bench::without_agent().await;
    for (what, signature) in [
        ("no signed statement", None),
        ("signature is wrong", Some(other.sign(&said))),
        ("another node", Some(bench.sign(&SettingsClaims { node_uid: "another".into(), ..said.clone() }))),
        (
            "another version lock",
            Some(bench.sign(&SettingsClaims { version_lock: Some("1.20.0".into()), ..said.clone() })),
        ),
        ("another choice about waves", Some(bench.sign(&SettingsClaims { ignore_waves: None, ..said.clone() }))),
        ("another purpose", Some(bench.sign(&SettingsClaims { aud: "another".into(), ..said.clone() }))),
    ] {
        bench.web.order(|spec| spec.host = Some(HostPolicy { signature, ..right.clone() }));
        let told = |v: &ShadowView| {
            let condition = find_condition(&v.status.conditions, HOST_REACHABLE);
            condition.is_some_and(|c| c.reason == "SettingsUnsigned" && c.message.contains(what))
        };
        let view = bench.web.until(what, |v| acknowledged(v) && told(v)).await;
        assert_eq!(view.status.report.host, None);
    }
    assert_eq!(settings_calls(&bench), [""; 0]);
    // The host is handled meanwhile; a desired state waits.
    until_chosen(&bench, NEW).await;
    bench.stage(1);
    bench.logged("desired state state=StagedUpdate").await;
    bench.web.order(|spec| spec.host = Some(right));
    bench.web.until("it is staged", |v| v.status.report.state == Some(HostState::StagedUpdate)).await;
    let calls = bench.calls();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).unwrap();
    assert!(at("commit_and_apply") < at("prepare"), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_are_signed_with_a_key_that_comes_later_wait_for_it() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    std::fs::rename(bench.path("trust/permit-keys.json"), bench.path("away")).unwrap();
    bench.ask(Some("1.20.5"), None);
    bench.web.until("it is told", |v| reach(v) == "SettingsUnsigned").await;
    assert_eq!(settings_calls(&bench), [""; 0]);
    std::fs::rename(bench.path("away"), bench.path("trust/permit-keys.json")).unwrap();
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")));
    bench.web.until("all is well", |v| reach(v) == "Answered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_setting_is_changed_while_an_order_to_reboot_is_open_or_another_version_is_staged() {
    let mut bench = Bench::new().await;
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    let calls = || settings_calls(&bench).iter().filter(|call| *call != READ).count();
    assert_eq!(calls(), 2);
    // The pin moves as its version is about to be downloaded: the attempt keeps the lock that it needs.
    let (boot, moved) = (bench.boot(), bench.policy(Some("1.20.0"), None));
    bench.web.order(|spec| {
        spec.state = HostState::StagedUpdate;
        spec.version = Some(NEW);
        spec.attempt = 1;
        spec.boot_id = Some(boot);
        spec.host = Some(moved);
    });
    bench
        .web
        .until("it is staged", |v| v.status.report.state == Some(HostState::StagedUpdate) && acknowledged(v))
        .await;
    let boot = bench.boot();
    let asking = bench.asked().await;
    bench.ask(None, None);
    let nonce = asking.status.report.armed.as_ref().unwrap().nonce.clone();
    let same = bench.web.until("it asks still", |v| v.status.report.armed.is_some()).await;
    assert_eq!(same.status.report.armed.as_ref().unwrap().nonce, nonce);
    bench.give(&bench.claims(&same));
    assert_eq!(calls(), 2);
    bench.rebooted(&boot).await;
    bench.web.until("it is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    assert!(locked(&bench, "1.20.5"));
    bench.withdraw();
    bench.web.until("it is put back", |v| acknowledged(v) && v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_setting_is_changed_while_an_image_is_armed() {
    let bench = Bench::new().await;
    for command in [Command::Refresh, Command::Prepare, Command::Activate] {
        bench.host.foreign(command).await.unwrap();
        bench.host.lock_free().await;
    }
    // The agent has not read the host since.
    bench.ask(Some("1.20.5"), None);
    bench.web.until("it is told", |v| acknowledged(v) && reach(v) == "HostArmedByOther").await;
    assert!(!settings_calls(&bench).iter().any(|call| call != READ), "{:?}", settings_calls(&bench));
    let policy = HostPolicy { disarm_in_boot: Some(bench.boot()), ..bench.policy(Some("1.20.5"), None) };
    bench.web.order(|spec| spec.host = Some(policy));
    bench.web.until("it is locked", |v| v.status.report.host == Some(set("1.20.5"))).await;
    until_called(&bench, COMMIT, 1).await;
    let calls = bench.calls();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).unwrap();
    assert!(at("deactivate") < at("PATCH"), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_put_back_while_an_image_is_armed() {
    let bench = Bench::new().await;
    // Refreshes would show the agent the armed image before the desired state does.
    let rarely = |policy: HostPolicy| HostPolicy { refresh_interval: Some("24h".parse().unwrap()), ..policy };
    let (pin, gone) = (rarely(bench.policy(Some("1.20.5"), None)), rarely(bench.policy(None, None)));
    bench.web.order(|spec| spec.host = Some(pin));
    until_called(&bench, READ, 3).await;
    for command in [Command::Refresh, Command::Prepare, Command::Activate] {
        bench.host.foreign(command).await.unwrap();
        bench.host.lock_free().await;
    }
    bench.web.order(|spec| spec.host = Some(gone));
    let view = bench.web.until("it is told", |v| acknowledged(v) && reach(v) == "HostArmedByOther").await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")), "it is still to be put back");
    assert!(locked(&bench, "1.20.5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_has_pending_is_not_committed_with_ours() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let socket = bench.host.socket();
    let theirs = r#"{"updates":{"seed":7}}"#;
    assert_eq!(integ::host::client::call(&socket, "PATCH", "/settings", Some(theirs)).await.unwrap().status, 204);
    bench.ask(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    assert_eq!(bench.host.snapshot().settings.seed, Some(42));
    let pending = integ::host::client::call(&socket, "GET", "/tx", None).await.unwrap();
    assert_eq!(pending.body, theirs);
}
