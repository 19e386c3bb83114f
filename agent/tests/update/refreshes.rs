//! Refreshes of a host that waits.

use integ::host::{Command, Fault, Transport, UpdateState};
use models::shadow::HostState;
use models::wire::ShadowView;
use semver::Version;

use super::*;
use crate::bench::NEW;

#[tokio::test(flavor = "multi_thread")]
async fn idle_host_refreshes_at_policy_interval_and_reports_only_changes() {
    let bench = Bench::new().await;
    let interval = "1s".parse().unwrap();
    bench.web.change_spec(|spec| {
        spec.host = Some(models::shadow::HostPolicy { refresh_interval: Some(interval), ..Default::default() });
    });
    let offers = |version: Version| {
        move |v: &ShadowView| {
            v.status.report.updates.as_ref().is_some_and(|u| u.chosen_version == Some(version.clone()))
        }
    };
    bench.web.until("it reports the offer", offers(NEW)).await;
    let writes = bench.web.writes().len();
    let refreshes = || bench.calls().iter().filter(|call| call.contains("refresh")).count();
    let before = refreshes();
    let mut events = bench.host.subscribe();
    while refreshes() < before + 2 {
        events.recv().await.unwrap();
    }
    assert_eq!(bench.web.writes().len(), writes, "nothing new was found");
    bench.host.script(Fault::fails(Command::Refresh, "no network"));
    let failing = |v: &ShadowView| v.status.report.updates.as_ref().and_then(|u| u.refresh_failure.clone());
    let view = bench.web.until("it reports the failure", |v| failing(v).is_some()).await;
    assert!(offers(NEW)(&view), "the offer stays");
    bench.releases.publish(Version::new(1, 21, 0));
    bench.web.until("it reports the new offer", |v| offers(Version::new(1, 21, 0))(v) && failing(v).is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_that_the_host_cannot_start_is_reported_until_another_succeeds() {
    let bench = Bench::new().await;
    let interval = "1s".parse().unwrap();
    bench.web.change_spec(|spec| {
        spec.host = Some(models::shadow::HostPolicy { refresh_interval: Some(interval), ..Default::default() });
    });
    let updates = |v: &ShadowView| v.status.report.updates.clone().unwrap_or_default();
    bench.web.until("it reports the offer", |v| updates(v).chosen_version == Some(NEW)).await;
    let failed = Transport::Status(500, "no worker".into());
    bench.host.script(Fault::request("POST", "/actions/refresh", failed).times(u32::MAX));
    let failing = |v: &ShadowView| updates(v).refresh_failure.is_some_and(|text| text.contains("no worker"));
    let view = bench.web.until("it reports the failure", failing).await;
    assert_eq!(updates(&view).chosen_version, Some(NEW), "the offer stays");
    bench.host.clear_faults();
    bench.web.until("it reports no failure", |v| updates(v).refresh_failure.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_host_refreshes_at_policy_interval_and_keeps_its_image() {
    let mut bench = Bench::new().await;
    let interval = "1s".parse().unwrap();
    bench.web.change_spec(|spec| {
        spec.host = Some(models::shadow::HostPolicy { refresh_interval: Some(interval), ..Default::default() });
    });
    bench.stage_and_wait(1).await;
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

    let request = bench.permit_requested().await;
    bench.issue_permit(&bench.claims(&request));
    bench.rebooted(&boot).await;
    let reached = |view: &ShadowView| view.status.report.state == Some(HostState::RebootedIntoUpdate);
    let back = bench.web.until("the staged image is booted", reached).await;
    assert_eq!(back.status.report.current_version, Some(NEW));
}
