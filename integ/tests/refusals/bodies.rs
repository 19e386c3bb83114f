//! Invalid reports of the right agent.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{RefusalTest, TARGET_NODE};

cases![
    report_of_what_is_not_the_agents_is_refused,
    report_with_values_outside_the_schema_is_refused,
    report_that_is_no_json_object_is_refused,
    report_with_another_etag_or_media_type_is_refused,
];

const INVALID: (u16, &str) = (422, "invalid-status");
const MALFORMED: (u16, &str) = (400, "malformed-request");

/// A report of the right agent, based on the current state, that lacks the named header.
fn report(refusal_test: &RefusalTest, without: &str, body: impl AsRef<[u8]>) -> Request {
    let request = Request::new("PUT", format!("/v1/nodes/{TARGET_NODE}/shadow/status"))
        .bearer(&refusal_test.own)
        .header("If-Match", refusal_test.etag())
        .header("Content-Type", "application/json");
    let mut request = request.body(body);
    request.headers.retain(|(name, _)| *name != without);
    request
}

async fn all_refused(
    refusal_test: &RefusalTest,
    bodies: Vec<(&'static str, Vec<u8>, (u16, &'static str))>,
) -> anyhow::Result<()> {
    for (sentence, body, expected) in bodies {
        refusal_test.assert_refused(&report(refusal_test, "", body), expected, None).await.context(sentence)?;
    }
    Ok(())
}

async fn all_invalid(refusal_test: &RefusalTest, bodies: Vec<(&'static str, Value)>) -> anyhow::Result<()> {
    let bodies = bodies.into_iter().map(|(sentence, body)| (sentence, body.to_string().into_bytes(), INVALID));
    all_refused(refusal_test, bodies.collect()).await
}

async fn report_of_what_is_not_the_agents_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let desired = json!({"state": "RebootedIntoUpdate", "attempt": 9, "version": "9.9.9"});
    let condition = |type_: &str| {
        let time = "2026-01-01T00:00:00Z";
        json!({"type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": time})
    };
    let whole = json!({"apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "status": {}});
    let metadata = json!({"managedFields": [], "name": "brs-node-1", "finalizers": ["x"]});
    let bodies = vec![
        ("the desired state", json!({"spec": desired})),
        ("no desired state", json!({"state": "Idle", "spec": null})),
        ("the progress of the controller", json!({"state": "Idle", "progress": {}})),
        ("its drain", json!({"state": "Idle", "drain": {}})),
        ("its record", json!({"state": "Idle", "record": {}})),
        ("its results", json!({"state": "Idle", "results": {}})),
        ("a condition of the controller", json!({"conditions": [condition("Drained")]})),
        ("a condition twice", json!({"conditions": [condition("HostReachable"), condition("HostReachable")]})),
        ("a status in a status", json!({"status": {"state": "Idle"}})),
        ("a whole object", whole),
        ("metadata", json!({"metadata": metadata})),
    ];
    all_invalid(refusal_test, bodies).await
}

async fn report_with_values_outside_the_schema_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let long = || "x".repeat(10_000);
    let bodies = vec![
        ("a number for a word", json!({"state": 1})),
        ("a fraction for a number", json!({"observedGeneration": 1.5})),
        ("a word for a list", json!({"conditions": "none"})),
        ("a list for an object", json!({"armed": []})),
        ("a word for a number, deeper", json!({"armed": {"attempt": "x"}})),
        ("a long variant", json!({"state": "Idle", "variant": long()})),
        ("a long boot", json!({"state": "Idle", "bootId": long()})),
        ("a long state", json!({"state": long()})),
        ("half a version", json!({"state": "Idle", "currentVersion": "1.0"})),
        ("a path for a version", json!({"state": "Idle", "currentVersion": "../../1.2.3"})),
    ];
    all_invalid(refusal_test, bodies).await
}

async fn report_that_is_no_json_object_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000)).into_bytes();
    let large = json!({"state": "Idle", "padding": "x".repeat(64 * 1024)}).to_string();
    let bodies = vec![
        ("nothing", vec![], MALFORMED),
        ("YAML", b"state: Idle".to_vec(), MALFORMED),
        ("two objects", b"{\"state\": \"Idle\"} {}".to_vec(), MALFORMED),
        ("a mark of the byte order", "\u{feff}{}".into(), MALFORMED),
        ("a number that is too large", b"{\"a\": 1e999999}".to_vec(), MALFORMED),
        ("a control character", b"{\"state\": \"\0\"}".to_vec(), MALFORMED),
        ("not UTF-8", vec![0xff, 0xfe, b'{', b'}'], MALFORMED),
        ("deep lists", deep("[", "]"), MALFORMED),
        ("deep objects", deep("{\"a\":", "}"), MALFORMED),
        ("a list", b"[]".to_vec(), INVALID),
        ("null", b"null".to_vec(), INVALID),
        ("much", large.into_bytes(), (413, "body-too-large")),
    ];
    all_refused(refusal_test, bodies).await
}

async fn report_with_another_etag_or_media_type_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let body = json!({"state": "Idle"}).to_string();
    let without = |header: &str| report(refusal_test, header, &body);
    for etag in ["\"00000000000000000000000000000000\"", "\"\"", "W/\"x\"", "x, y"] {
        let answer = refusal_test.answered(&without("If-Match").header("If-Match", etag)).await?;
        anyhow::ensure!(answer.status == 412, "{etag}: {}", answer.status);
    }
    for etag in [None, Some("*"), Some(""), Some("\"x\", *")] {
        let mut request = without("If-Match");
        if let Some(etag) = etag {
            request = request.header("If-Match", etag);
        }
        let refused = refusal_test.assert_refused(&request, (428, "precondition-required"), None).await;
        refused.with_context(|| format!("{etag:?}"))?;
    }
    for media_type in ["text/plain", "application/apply-patch+yaml", "application/jsonp"] {
        let request = without("Content-Type").header("Content-Type", media_type);
        refusal_test.assert_refused(&request, (415, "not-json"), None).await.context(media_type)?;
    }
    Ok(())
}
