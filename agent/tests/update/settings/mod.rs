//! The host's settings: locked to a version, restored, and left alone where they are another client's.

mod crashes;
mod guards;

use std::time::Duration;

use integ::host::{EventKind, Fault, Transport, UpdatesSettings, VersionLock};
use models::condition::find_condition;
use models::permit::SettingsClaims;
use models::reason::FailureReason;
use models::shadow::{AppliedSettings, FoundSettings, HOST_REACHABLE, HostPolicy, HostState};
use models::wire::ShadowView;
use semver::Version;

use super::bench::{Bench, NEW, OLD};
use super::{acknowledged, arm_by_another, reach, until_failed};

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
    until(bench, || settings_calls(bench).iter().filter(|call| *call == kind).count() >= times).await;
}

/// Waits until the host has refreshed this many times more.
async fn until_looked(bench: &Bench, times: usize) {
    let count = || bench.calls().iter().filter(|call| call.contains("refresh")).count();
    let before = count();
    until(bench, || count() >= before + times).await;
}

async fn until(bench: &Bench, holds: impl Fn() -> bool) {
    let mut events = bench.host.subscribe();
    let wait = async {
        while !holds() {
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
    let request = bench.permit_requested().await;
    bench.issue_permit(&bench.claims(&request));
    bench.rebooted(&boot).await;
    bench.web.until("it is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    bench.withdraw();
    bench.web.until("it is idle", |v| v.status.report.state == Some(HostState::Idle) && acknowledged(v)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_without_settings_makes_no_settings_call() {
    let mut bench = Bench::new().await;
    bench.request_settings(None, Some(false));
    bench.web.change_spec(|spec| {
        spec.host = spec.host.take().map(|host| HostPolicy { disarm_in_boot: Some("another".into()), ..host });
    });
    until_chosen(&bench, NEW).await;
    update(&mut bench, 1, NEW).await;
    until_looked(&bench, 2).await;
    assert_eq!(settings_calls(&bench), [""; 0]);
    assert_eq!(bench.web.view().status.report.host, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_lock_updates_host_to_its_version_only() {
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.request_settings(Some("1.20.5"), None);
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
async fn version_lock_downgrades_host() {
    let mut bench = Bench::with(|options| options.version = NEW).await;
    bench.request_settings(Some("1.20.0"), None);
    until_chosen(&bench, OLD).await;
    update(&mut bench, 1, OLD).await;
    assert_eq!(bench.host.snapshot().running_version, OLD);
    assert!(locked(&bench, "1.20.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn version_lock_is_set_before_download() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let (boot, policy) = (bench.boot(), bench.policy(Some("1.20.5"), None));
    bench.web.change_spec(|spec| {
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
async fn settings_change_waits_for_report_of_previous_values() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.web.refuse(Some(|status| status.report.host.is_some()));
    bench.request_settings(Some("1.20.5"), None);
    bench.logged_times("the report did not arrive", 3).await;
    assert_eq!(settings_calls(&bench), [READ]);
    bench.web.refuse(None);
    until_chosen(&bench, NEW).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_settings_are_restored_and_dropped_from_report() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.request_settings(Some("1.20.5"), Some(true));
    let view = until_chosen(&bench, NEW).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..set("1.20.5").applied.unwrap() };
    let found = FoundSettings { ignore_waves: Some(false), applied: Some(own), ..set("1.20.5") };
    assert_eq!(view.status.report.host, Some(found));
    bench.request_settings(None, None);
    until_chosen(&bench, NEWEST).await;
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
    assert_eq!(bench.host.snapshot().settings.ignore_waves, Some(false));
    let calls = settings_calls(&bench).len();
    until_looked(&bench, 2).await;
    assert_eq!(settings_calls(&bench).len(), calls, "and no setting is looked at any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_changed_by_other_client_are_not_restored() {
    let bench = Bench::new().await;
    bench.request_settings(Some("1.20.5"), Some(true));
    until_chosen(&bench, NEW).await;
    another_client_locks(&bench, "v1.20.0");
    let reported = |v: &ShadowView| v.status.report.host.as_ref().is_some_and(|host| host.conflicting_lock.is_some());
    let view = bench.web.until("it is reported", reported).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() };
    let left = FoundSettings {
        ignore_waves: Some(false),
        applied: Some(own),
        conflicting_lock: Some("v1.20.0".into()),
        ..FoundSettings::default()
    };
    assert_eq!(view.status.report.host, Some(left), "the operator still owns the setting of the waves");
    bench.request_settings(None, None);
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none() && reach(v) == "Answered").await;
    assert!(locked(&bench, "v1.20.0"), "{:?}", lock_of(&bench));
    assert_eq!(bench.host.snapshot().settings.ignore_waves, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_version_lock_is_kept_and_reported() {
    let bench = Bench::new().await;
    another_client_locks(&bench, "v1.20.0");
    bench.request_settings(Some("1.20.5"), None);
    let view =
        bench.web.until("it is reported", |v| reach(v) == "LockedByOther" && v.status.report.host.is_some()).await;
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
    bench.stage_and_wait(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ignore_waves_policy_offers_version_before_its_wave() {
    let bench = Bench::new().await;
    let never = "2100-01-01T00:00:00Z".parse().unwrap();
    bench.releases.publish_in_waves(NEWEST, [(2048, never)]);
    bench.request_settings(None, None);
    until_chosen(&bench, NEW).await;
    bench.request_settings(None, Some(true));
    let view = until_chosen(&bench, NEWEST).await;
    let own = AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() };
    let found = FoundSettings { ignore_waves: Some(false), applied: Some(own), ..FoundSettings::default() };
    assert_eq!(view.status.report.host, Some(found));
    assert!(locked(&bench, "latest"));
    bench.request_settings(None, None);
    until_chosen(&bench, NEW).await;
    bench.web.until("it is forgotten", |v| v.status.report.host.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ignore_waves_policy_without_a_version_in_its_waves_is_no_warning() {
    let bench = Bench::new().await;
    bench.request_settings(None, None);
    until_chosen(&bench, NEW).await;
    bench.request_settings(None, Some(true));
    bench.logged("the host's offers are the same after the change of its waves").await;
    assert_eq!(bench.host.snapshot().settings.ignore_waves, Some(true));
    until_looked(&bench, 3).await;
    assert!(!bench.log().contains("the host chooses another version"), "{}", bench.log());
}
