//! Settings that are not changed: unsigned, refused, or while another step is under way.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn rejected_settings_change_fails_attempt_with_host_message() {
    let bench = Bench::new().await;
    let refusal = Transport::Status(400, "Json deserialize error: no such version".into());
    bench.host.script(Fault::request("PATCH", "/settings", refusal).times(1000));
    bench.request_settings(Some("1.20.5"), None);
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::SettingsFailed).await;
    assert!(view.status.report.failure.unwrap().message.contains("no such version"));
    bench.withdraw();
    bench.web.until("it is reported", |v| acknowledged(v) && reach(v) == "SettingsFailed").await;
    // An unchanged setting is not restored either.
    bench.request_settings(None, None);
    let quiet = |v: &ShadowView| acknowledged(v) && v.status.report.host.is_none() && reach(v) == "Answered";
    bench.web.until("it is forgotten", quiet).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_without_valid_signature_cause_no_settings_call() {
    let bench = Bench::new().await;
    let right = bench.policy(Some("1.20.5"), Some(true));
    let claims = SettingsClaims::of("node-uid", &right).unwrap();
    let other = Bench::without_agent().await;
    for (what, signature) in [
        ("no signed statement", None),
        ("signature is wrong", Some(other.sign(&claims))),
        ("another node", Some(bench.sign(&SettingsClaims { node_uid: "another".into(), ..claims.clone() }))),
        (
            "another version lock",
            Some(bench.sign(&SettingsClaims { version_lock: Some("1.20.0".into()), ..claims.clone() })),
        ),
        ("another choice about waves", Some(bench.sign(&SettingsClaims { ignore_waves: None, ..claims.clone() }))),
        ("another purpose", Some(bench.sign(&SettingsClaims { aud: "another".into(), ..claims.clone() }))),
    ] {
        bench.web.change_spec(|spec| spec.host = Some(HostPolicy { signature, ..right.clone() }));
        let reported = |v: &ShadowView| {
            let condition = find_condition(&v.status.conditions, HOST_REACHABLE);
            condition.is_some_and(|c| c.reason == "SettingsUnsigned" && c.message.contains(what))
        };
        let view = bench.web.until(what, |v| acknowledged(v) && reported(v)).await;
        assert_eq!(view.status.report.host, None);
    }
    assert_eq!(settings_calls(&bench), [""; 0]);
    // The host is handled meanwhile; a desired state waits.
    until_chosen(&bench, NEW).await;
    bench.stage(1);
    bench.logged("desired state state=StagedUpdate").await;
    bench.web.change_spec(|spec| spec.host = Some(right));
    bench.web.until("it is staged", |v| v.status.report.state == Some(HostState::StagedUpdate)).await;
    let calls = bench.calls();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).unwrap();
    assert!(at("commit_and_apply") < at("prepare"), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_signed_with_unpublished_key_wait_for_it() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    std::fs::rename(bench.path("trust/permit-keys.json"), bench.path("away")).unwrap();
    bench.request_settings(Some("1.20.5"), None);
    bench.web.until("it is reported", |v| reach(v) == "SettingsUnsigned").await;
    assert_eq!(settings_calls(&bench), [""; 0]);
    std::fs::rename(bench.path("away"), bench.path("trust/permit-keys.json")).unwrap();
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")));
    bench.web.until("all is well", |v| reach(v) == "Answered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_not_changed_while_reboot_is_requested_or_other_version_is_staged() {
    let mut bench = Bench::new().await;
    bench.request_settings(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    let calls = || settings_calls(&bench).iter().filter(|call| *call != READ).count();
    assert_eq!(calls(), 2);
    // The pin moves as its version is about to be downloaded: the attempt keeps the lock that it needs.
    let (boot, moved) = (bench.boot(), bench.policy(Some("1.20.0"), None));
    bench.web.change_spec(|spec| {
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
    let request = bench.permit_requested().await;
    bench.request_settings(None, None);
    let nonce = request.status.report.armed.as_ref().unwrap().nonce.clone();
    let same = bench.web.until("it asks still", |v| v.status.report.armed.is_some()).await;
    assert_eq!(same.status.report.armed.as_ref().unwrap().nonce, nonce);
    bench.issue_permit(&bench.claims(&same));
    assert_eq!(calls(), 2);
    bench.rebooted(&boot).await;
    bench.web.until("it is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    assert!(locked(&bench, "1.20.5"));
    bench.withdraw();
    bench.web.until("it is put back", |v| acknowledged(v) && v.status.report.host.is_none()).await;
    assert!(locked(&bench, "latest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_not_changed_while_image_is_armed() {
    let bench = Bench::new().await;
    arm_by_another(&bench).await;
    // The agent has not read the host since.
    bench.request_settings(Some("1.20.5"), None);
    bench.web.until("it is reported", |v| acknowledged(v) && reach(v) == "HostArmedByOther").await;
    assert!(!settings_calls(&bench).iter().any(|call| call != READ), "{:?}", settings_calls(&bench));
    let policy = HostPolicy { disarm_in_boot: Some(bench.boot()), ..bench.policy(Some("1.20.5"), None) };
    bench.web.change_spec(|spec| spec.host = Some(policy));
    bench.web.until("it is locked", |v| v.status.report.host == Some(set("1.20.5"))).await;
    until_called(&bench, COMMIT, 1).await;
    let calls = bench.calls();
    let at = |what: &str| calls.iter().position(|call| call.contains(what)).unwrap();
    assert!(at("deactivate") < at("PATCH"), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_not_restored_while_image_is_armed() {
    let bench = Bench::new().await;
    // Refreshes would show the agent the armed image before the desired state does.
    let rarely = |policy: HostPolicy| HostPolicy { refresh_interval: Some("24h".parse().unwrap()), ..policy };
    let (pin, gone) = (rarely(bench.policy(Some("1.20.5"), None)), rarely(bench.policy(None, None)));
    bench.web.change_spec(|spec| spec.host = Some(pin));
    until_called(&bench, READ, 3).await;
    arm_by_another(&bench).await;
    bench.web.change_spec(|spec| spec.host = Some(gone));
    let view = bench.web.until("it is reported", |v| acknowledged(v) && reach(v) == "HostArmedByOther").await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")), "it is still to be put back");
    assert!(locked(&bench, "1.20.5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_settings_of_other_client_are_not_committed() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let socket = bench.host.socket();
    let theirs = r#"{"updates":{"seed":7}}"#;
    assert_eq!(integ::host::client::call(&socket, "PATCH", "/settings", Some(theirs)).await.unwrap().status, 204);
    bench.request_settings(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    assert_eq!(bench.host.snapshot().settings.seed, Some(42));
    let pending = integ::host::client::call(&socket, "GET", "/tx", None).await.unwrap();
    assert_eq!(pending.body, theirs);
}
