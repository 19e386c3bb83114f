//! Drills: the agent requests and verifies a permit as for a reboot, and calls nothing on its host.

use models::permit::{PermitClaims, RehearsalClaims};

use super::*;

/// Requests a drill of the running version, and waits for the agent's nonce.
async fn rehearsal_requested(bench: &Bench, attempt: i64) -> ShadowView {
    let boot = bench.boot();
    bench.web.change_spec(|spec| {
        (spec.state, spec.version, spec.attempt) = (HostState::RehearsedUpdate, Some(OLD), attempt);
        spec.boot_id = Some(boot);
    });
    let asks = |v: &ShadowView| v.status.report.rehearsal.as_ref().is_some_and(|r| r.attempt == attempt && !r.verified);
    bench.web.until("the agent requests a rehearsal permit", asks).await
}

/// The claims of a permit for the reboot that is rehearsed.
fn claims(bench: &Bench, view: &ShadowView) -> PermitClaims {
    bench.claims_with(view, &view.status.report.rehearsal.as_ref().unwrap().nonce)
}

fn assert_nothing_armed_or_rebooted(bench: &Bench) {
    let calls = bench.calls();
    let acts = |call: &String| ["activate", "reboot", "prepare"].iter().any(|act| call.contains(act));
    assert!(!calls.iter().any(acts), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drill_verifies_its_permit_and_calls_neither_activate_nor_reboot() {
    let bench = Bench::new().await;
    let boot = bench.boot();
    let request = rehearsal_requested(&bench, 1).await;
    assert!(!acknowledged(&request) && request.status.report.armed.is_none(), "{request:?}");
    let claims = claims(&bench, &request);
    bench.issue(&claims.nonce, &RehearsalClaims::of(claims.clone()));
    let verified = |v: &ShadowView| v.status.report.rehearsal.as_ref().is_some_and(|r| r.verified) && acknowledged(v);
    let view = bench.web.until("the permit is verified", verified).await;
    assert_eq!(view.status.report.state, Some(HostState::RehearsedUpdate));
    assert_eq!(view.status.report.rehearsal.unwrap().nonce, claims.nonce);
    bench.withdraw();
    let idle = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!((idle.status.report.rehearsal, idle.status.report.armed), (None, None));
    assert_nothing_armed_or_rebooted(&bench);
    assert_eq!(bench.boot(), boot);
}

#[tokio::test(flavor = "multi_thread")]
async fn reboot_permit_is_refused_in_a_drill_and_rehearsal_permit_for_a_reboot() {
    let bench = Bench::new().await;
    let request = rehearsal_requested(&bench, 1).await;
    let reboot = claims(&bench, &request);
    bench.issue(&reboot.nonce, &reboot);
    bench.logged("the permit is refused error=\"it is for another purpose").await;
    assert_nothing_armed_or_rebooted(&bench);
    bench.withdraw();
    bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;

    bench.stage_and_wait(2).await;
    let request = bench.permit_requested().await;
    let claims = bench.claims(&request);
    bench.issue(&claims.nonce, &RehearsalClaims::of(claims.clone()));
    bench.logged_times("the permit is refused error=\"it is for another purpose", 2).await;
    let calls = bench.calls();
    assert!(!calls.iter().any(|call| call.contains("activate") || call.contains("reboot")), "{calls:?}");
    bench.withdraw();
    bench.web.until("it is withdrawn", |v| acknowledged(v) && v.status.report.armed.is_none()).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 1, "nothing is downloaded again");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_requests_the_permit_of_its_drill_again() {
    let mut bench = Bench::new().await;
    let request = rehearsal_requested(&bench, 1).await;
    let old = claims(&bench, &request);
    bench.issue(&old.nonce, &RehearsalClaims::of(old.clone()));
    bench.web.until("it is verified", |v| v.status.report.rehearsal.as_ref().is_some_and(|r| r.verified)).await;
    bench.kill_agent().await;
    bench.start_agent();
    let asks = |v: &ShadowView| v.status.report.rehearsal.as_ref().is_some_and(|r| !r.verified && r.nonce != old.nonce);
    let again = bench.web.until("it asks again", asks).await;
    assert_ne!(again.status.report.state, Some(HostState::RehearsedUpdate));
    assert_nothing_armed_or_rebooted(&bench);
}
