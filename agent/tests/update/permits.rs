//! Permits: which ones are accepted, and for how long.

use std::time::Duration;

use integ::host::Command;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use models::permit::PERMIT_LIFETIME;
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, HostState};
use models::wire::ShadowView;
use serde_json::json;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn permit_signed_with_unpublished_key_is_accepted_once_key_arrives() {
    let bench = Bench::new().await;
    let keys = bench.path("trust/permit-keys.json");
    let right = std::fs::read_to_string(&keys).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    let mut jwk = Jwk::from_encoding_key(&EncodingKey::from_ec_der(&other.serialize_der()), Algorithm::ES256).unwrap();
    jwk.common.key_id = Some("k0".into());
    let jwk = serde_json::to_value(jwk).unwrap();
    std::fs::write(&keys, json!({"keys": [jwk]}).to_string()).unwrap();
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.issue_permit(&bench.claims(&request));
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
async fn suspended_agent_rejects_expired_permit() {
    let mut bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    let pid = bench.agent().id().unwrap().to_string();
    let signal = |name: &str| std::process::Command::new("kill").args([name, &pid]).status().unwrap();
    assert!(signal("-STOP").success());
    bench.issue_permit(&bench.claims(&request));
    // Not a wait for a condition: the passing of this time is what is tested.
    tokio::time::sleep(PERMIT_LIFETIME + Duration::from_secs(1)).await;
    assert!(signal("-CONT").success());
    let nonce = |view: &ShadowView| view.status.report.armed.as_ref().map(|armed| armed.nonce.clone());
    bench.web.until("it asks again", |view| nonce(view) != nonce(&request)).await;
    assert!(!bench.calls().iter().any(|c| c.contains("activate") || c.contains("reboot")), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn host_disarmed_by_other_client_is_not_rebooted() {
    let bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    // The report that comes before the reboot does not arrive until the other client has acted.
    bench.web.refuse(Some(|report| report.report.armed.as_ref().is_some_and(|a| a.phase == ArmedPhase::Activated)));
    bench.issue_permit(&bench.claims(&request));
    until_disk_armed(&bench).await;
    // The other client acts after the agent has read the outcome, or the activation left no record and is repeated.
    bench.logged("host command succeeded command=\"activate\"").await;
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
