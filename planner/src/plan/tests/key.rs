//! Plans while keys change.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use models::shadow::{HostPolicy, HostState, Permit, Step};

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{plan, plan_reporting};
use crate::view::{ClusterView, MigrationFacts, NodeView, ReportedFacts, TlsFacts};

/// The host settings of node `a`, a signature of them, and the key that made it.
fn settings_of_a() -> (HostPolicy, String, String) {
    let host = HostPolicy {
        ignore_waves: Some(true),
        refresh_interval: Some(crate::policy::Policy::default().refresh_interval),
        ..HostPolicy::default()
    };
    let key = "key-1".to_owned();
    let header = serde_json::json!({"alg": "ES256", "kid": key}).to_string();
    let jws = format!("{}.claims.signature", BASE64_URL_SAFE_NO_PAD.encode(header));
    (host, jws, key)
}

/// Host settings that were signed by a replaced key are signed again, by the new one, and during an attempt only if the
/// key was revoked.
#[test]
fn settings_signed_by_replaced_key_are_signed_again() {
    let (host, jws, kid) = settings_of_a();
    let (ours, both, other) = ([kid.clone()], [kid.clone(), "another".to_owned()], ["another".to_owned()]);
    let idle = || node("a");
    let staging = || at("a", Step::Staging, 0, HostState::StagedUpdate);
    let rebooting = || at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    let draining = || at("a", Step::Draining, 0, HostState::RebootedIntoUpdate);
    let releasing = || at("a", Step::Releasing, 0, HostState::RebootedIntoUpdate);
    let changed = |mut node: NodeView, change: &dyn Fn(&mut NodeView)| {
        change(&mut node);
        node
    };
    let told = |node: &mut NodeView| {
        node.shadow.as_mut().unwrap().spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    };
    let elsewhere = |node: &mut NodeView| node.facts.boot_id = "b2".into();
    for (sentence, signature, keys, mut node, again) in [
        ("by the key that signs", Some(&jws), &ours[..], idle(), false),
        ("by another one", Some(&jws), &both[..], idle(), true),
        ("not at all", None, &ours[..], idle(), true),
        ("by another one, while it is not known which one signs", Some(&jws), &[], idle(), false),
        ("by the one before, in an attempt", Some(&jws), &both[..], staging(), false),
        ("by one that was revoked, in an attempt", Some(&jws), &other[..], staging(), true),
        ("by one that was revoked, before the permit", Some(&jws), &other[..], rebooting(), true),
        ("while its drain goes on again", Some(&jws), &other[..], draining(), false),
        ("after it", Some(&jws), &other[..], changed(rebooting(), &told), false),
        ("in another boot than the desired state's", Some(&jws), &other[..], changed(rebooting(), &elsewhere), false),
        ("while nothing signs", Some(&jws), &[], staging(), false),
        ("by one that was revoked, when it is being taken back", Some(&jws), &other[..], releasing(), false),
    ] {
        let spec = &mut node.shadow.as_mut().unwrap().spec;
        spec.host = Some(HostPolicy { signature: signature.cloned(), ..host.clone() });
        let (mut view, policy) = cluster_with(vec![node], &[], serde_json::json!({"version": {"ignoreWaves": true}}));
        // The last one signs.
        view.signing.signing_key = keys.last().cloned();
        view.signing.newest_key = keys.last().cloned();
        view.signing.signing_keys = keys.iter().cloned().collect();
        let order = view.nodes["a"].shadow.as_ref().unwrap().spec.clone();
        let mut made = plan(&view, &policy, t(1));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
        let signed_again = match made.actions.get("a") {
            Some(Action::Spec { spec }) if spec.state == order.state => {
                let found = (&spec.attempt, &spec.boot_id, &spec.version);
                assert_eq!(found, (&order.attempt, &order.boot_id, &order.version));
                spec.host.as_ref().is_some_and(|host| host.signature.is_none())
            }
            _ => false,
        };
        assert_eq!(signed_again, again, "{sentence}");
    }
}

/// The agent ends with the label, and puts back what it has set on the host once the node has it again.
#[test]
fn settings_are_withdrawn_from_node_without_its_label() {
    let (host, jws, kid) = settings_of_a();
    let pinned = HostPolicy { ignore_waves: None, version_lock: Some(NEW.to_string()), ..host.clone() };
    let waves = ("waves", serde_json::json!({"version": {"ignoreWaves": true}}), &host);
    let pin = ("a pin", serde_json::json!({"version": {"target": NEW.to_string()}}), &pinned);
    for ((setting, spec, host), labelled, expected) in
        [(&waves, true, false), (&waves, false, true), (&pin, true, false), (&pin, false, true)]
    {
        let mut node = node("a");
        node.facts.labelled = labelled;
        node.shadow.as_mut().unwrap().spec.host = Some(HostPolicy { signature: Some(jws.clone()), ..(*host).clone() });
        let (mut view, policy) = cluster_with(vec![node], &[], spec.clone());
        (view.signing.signing_key, view.signing.newest_key) = (Some(kid.clone()), Some(kid.clone()));
        view.signing.signing_keys = [kid.clone()].into();
        let made = plan(&view, &policy, t(1));
        let withdrawn = match made.actions.get("a") {
            Some(Action::Spec { spec }) => spec.host.as_ref().is_some_and(|host| !host.asks_settings()),
            _ => false,
        };
        assert_eq!(withdrawn, expected, "{setting}, labelled: {labelled}");
        assert!(made.shadows.is_empty(), "a shadow that asks for settings stays");
    }
}

/// A leader takes over during a rotation, and signs with the previous key for as long as it waits itself.
#[test]
fn settings_signed_by_newest_key_are_not_signed_by_previous_key() {
    let (host, jws, ours) = settings_of_a();
    for (newest, again) in [(ours.as_str(), false), ("another", true)] {
        let mut node = node("a");
        let signature = Some(jws.clone());
        node.shadow.as_mut().unwrap().spec.host = Some(HostPolicy { signature, ..host.clone() });
        let (mut view, policy) = cluster_with(vec![node], &[], serde_json::json!({"version": {"ignoreWaves": true}}));
        (view.signing.signing_key, view.signing.newest_key) = (Some("before".to_owned()), Some(newest.to_owned()));
        view.signing.signing_keys = ["before", newest].map(str::to_owned).into();
        let written = matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Spec { .. }));
        assert_eq!(written, again, "{newest}");
    }
}

/// A rotation that a user requested is acknowledged when it was begun, and never carried out for a new resource.
#[test]
fn rotation_request_is_acknowledged_when_rotation_starts() {
    let ack = |view: &ClusterView, reported: &ReportedFacts| {
        let policy = crate::policy::Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
        let requests = plan_reporting(view, reported, &policy, t(1)).status.unwrap().requests.unwrap_or_default();
        (requests.rotate_certificates, requests.rotate_signing_key)
    };
    let value = Some("1".to_owned());
    let (mut view, mut reported) = (cluster(vec![], &[]).0, ReportedFacts::default());
    let operator = view.operator.as_mut().unwrap();
    (operator.rotate_certificates, operator.rotate_signing_key) = (value.clone(), value.clone());
    assert_eq!(super::pending_rotations(operator), (value.clone(), value.clone()));
    assert_eq!(ack(&view, &reported), (None, None));
    reported.tls.rotated_signing_key = value.clone();
    assert_eq!(ack(&view, &reported), (None, value.clone()));
    reported.tls.rotated_certificates = value.clone();
    assert_eq!(ack(&view, &reported), (value.clone(), value.clone()));

    let operator = view.operator.as_mut().unwrap();
    operator.status.observed_generation = None;
    reported.tls = TlsFacts::default();
    assert_eq!(super::pending_rotations(view.operator.as_ref().unwrap()), (None, None));
    assert_eq!(ack(&view, &reported), (value.clone(), value));
}

/// A request that is done already, or that came with a new resource, is not pending.
#[test]
fn migration_request_is_acknowledged_when_migration_is_completed() {
    let status = |view: &ClusterView, reported: &ReportedFacts| {
        let policy = crate::policy::Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
        plan_reporting(view, reported, &policy, t(1)).status.unwrap()
    };
    let ack = |view: &ClusterView, reported: &ReportedFacts| {
        status(view, reported).requests.unwrap_or_default().migrate_storage
    };
    let (mut view, mut reported) = (cluster(vec![], &[]).0, ReportedFacts::default());
    let operator = view.operator.as_mut().unwrap();
    operator.migrate_storage = Some("1".to_owned());
    assert_eq!(super::pending_migration(operator).map(String::as_str), Some("1"));
    assert_eq!(ack(&view, &reported), None);
    reported.migration.carried_out = Some("0".to_owned());
    assert_eq!(ack(&view, &reported), None, "another request");
    reported.migration.carried_out = Some("1".to_owned());
    assert_eq!(ack(&view, &reported).as_deref(), Some("1"));

    reported.migration.state = Some((false, "ObjectsRefused", "one shadow".to_owned()));
    let conditions = status(&view, &reported).conditions;
    let condition = models::condition::find_condition(&conditions, models::operator::STORAGE_MIGRATED).unwrap();
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("ObjectsRefused", "one shadow"));

    let operator = view.operator.as_mut().unwrap();
    operator.status.observed_generation = None;
    reported.migration = MigrationFacts::default();
    assert_eq!(super::pending_migration(view.operator.as_ref().unwrap()), None);
    assert_eq!(ack(&view, &reported).as_deref(), Some("1"), "a new resource's request is an old one");
}
