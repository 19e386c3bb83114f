//! Invalid reports of the right agent.

use serde_json::{Value, json};

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{RefusalTest, TARGET_NODE};

cases![
    report_with_spec_is_refused,
    report_with_controller_status_is_refused,
    report_with_controller_condition_is_refused,
    report_with_duplicate_condition_type_is_refused,
    report_with_whole_object_is_refused,
    report_with_stale_etag_is_refused,
    report_without_specific_etag_is_refused,
    report_with_invalid_json_is_refused,
    report_without_json_object_is_refused,
    deeply_nested_report_is_refused,
    oversized_report_is_refused,
    report_with_wrong_value_types_is_refused,
    report_with_too_long_string_or_invalid_version_is_refused,
    report_with_other_media_type_is_refused,
];

const INVALID: (u16, &str) = (422, "invalid-status");

/// A report of the right agent, based on the current state.
fn report(refusal_test: &RefusalTest, body: impl AsRef<[u8]>) -> Request {
    Request::new("PUT", format!("/v1/nodes/{TARGET_NODE}/shadow/status"))
        .bearer(&refusal_test.own)
        .header("If-Match", refusal_test.etag())
        .header("Content-Type", "application/json")
        .body(body)
}

async fn assert_refused(
    refusal_test: &RefusalTest,
    body: impl AsRef<[u8]>,
    expected: (u16, &str),
) -> anyhow::Result<()> {
    refusal_test.assert_refused(&report(refusal_test, body), expected, None).await.map(|_| ())
}

async fn all_invalid(refusal_test: &RefusalTest, bodies: Vec<Value>) -> anyhow::Result<()> {
    for body in bodies {
        assert_refused(refusal_test, body.to_string(), INVALID).await?;
    }
    Ok(())
}

async fn report_with_spec_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let order = json!({"state": "RebootedIntoUpdate", "attempt": 9, "version": "9.9.9"});
    all_invalid(refusal_test, vec![json!({"spec": order}), json!({"state": "Idle", "spec": null})]).await
}

async fn report_with_controller_status_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let bodies = ["progress", "drain", "record", "results"].map(|field| json!({"state": "Idle", field: {}})).to_vec();
    all_invalid(refusal_test, bodies).await
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

async fn report_with_controller_condition_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let types = ["Drained", "Cordoned", "Blocked", "Healthy"];
    all_invalid(refusal_test, types.map(|type_| json!({"conditions": [condition(type_)]})).to_vec()).await
}

async fn report_with_duplicate_condition_type_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let twice = json!({"conditions": [condition("HostReachable"), condition("HostReachable")]});
    all_invalid(refusal_test, vec![twice]).await
}

async fn report_with_whole_object_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"status": {"state": "Idle"}}),
        json!({"apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "status": {}}),
        json!({"metadata": {"managedFields": [], "name": "brs-node-1", "finalizers": ["x"]}}),
    ];
    all_invalid(refusal_test, bodies).await
}

async fn report_with_stale_etag_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for etag in ["\"00000000000000000000000000000000\"", "\"\"", "W/\"x\"", "x, y"] {
        let mut request = report(refusal_test, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "If-Match");
        let answer = refusal_test.answered(&request.header("If-Match", etag)).await?;
        anyhow::ensure!(answer.status == 412, "{etag}: {}", answer.status);
    }
    Ok(())
}

async fn report_without_specific_etag_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for etag in [None, Some("*"), Some(""), Some("\"x\", *")] {
        let mut request = report(refusal_test, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "If-Match");
        if let Some(etag) = etag {
            request = request.header("If-Match", etag);
        }
        refusal_test.assert_refused(&request, (428, "precondition-required"), None).await?;
    }
    Ok(())
}

async fn report_with_invalid_json_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for body in [
        "{",
        "",
        "state: Idle",
        "{\"state\": \"Idle\"} {}",
        "\u{feff}{}",
        "{\"a\": 1e999999}",
        "{\"state\": \"\u{0}\"}",
    ] {
        assert_refused(refusal_test, body, (400, "malformed-request")).await?;
    }
    assert_refused(refusal_test, [0xff, 0xfe, b'{', b'}'], (400, "malformed-request")).await
}

async fn report_without_json_object_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    all_invalid(refusal_test, vec![json!([]), json!("Idle"), json!(1), Value::Null]).await
}

async fn deeply_nested_report_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    assert_refused(refusal_test, deep("[", "]"), (400, "malformed-request")).await?;
    assert_refused(refusal_test, deep("{\"a\":", "}"), (400, "malformed-request")).await
}

async fn oversized_report_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let large = json!({"state": "Idle", "padding": "x".repeat(64 * 1024)});
    assert_refused(refusal_test, large.to_string(), (413, "body-too-large")).await
}

async fn report_with_wrong_value_types_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"state": 1}),
        json!({"state": {"a": "b"}}),
        json!({"observedGeneration": "1"}),
        json!({"observedGeneration": 1.5}),
        json!({"conditions": "none"}),
        json!({"armed": []}),
        json!({"armed": {"attempt": "x"}}),
    ];
    all_invalid(refusal_test, bodies).await
}

async fn report_with_too_long_string_or_invalid_version_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"state": "Idle", "variant": "x".repeat(10_000)}),
        json!({"state": "Idle", "bootId": "x".repeat(10_000)}),
        json!({"state": "Idle", "currentVersion": "1.0"}),
        json!({"state": "Idle", "currentVersion": "../../1.2.3"}),
        json!({"state": "x".repeat(10_000)}),
    ];
    all_invalid(refusal_test, bodies).await
}

async fn report_with_other_media_type_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for media_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/apply-patch+yaml", "application/jsonp"]
    {
        let mut request = report(refusal_test, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "Content-Type");
        refusal_test.assert_refused(&request.header("Content-Type", media_type), (415, "not-json"), None).await?;
    }
    Ok(())
}
