//! Invalid reports of the right agent.

use serde_json::{Value, json};

use crate::cases;
use crate::court::{Court, WANTED};
use crate::raw::Request;

cases![
    with_a_spec,
    with_the_controllers_half,
    with_a_condition_of_the_controllers,
    with_two_conditions_of_a_type,
    that_are_whole_objects,
    built_on_a_stale_state,
    built_on_any_state,
    that_are_no_json,
    that_are_no_object,
    nested_without_end,
    too_large,
    with_values_of_the_wrong_kind,
    with_strings_that_are_too_long_or_no_version,
    of_another_media_type,
];

const INVALID: (u16, &str) = (422, "invalid-status");

/// A report of the right agent, based on the current state.
fn report(court: &Court, body: impl AsRef<[u8]>) -> Request {
    Request::new("PUT", format!("/v1/nodes/{WANTED}/shadow/status"))
        .bearer(&court.own)
        .header("If-Match", court.etag())
        .header("Content-Type", "application/json")
        .body(body)
}

async fn refused(court: &Court, body: impl AsRef<[u8]>, told: (u16, &str)) -> anyhow::Result<()> {
    court.refused(&report(court, body), told, None).await.map(|_| ())
}

async fn all_invalid(court: &Court, bodies: Vec<Value>) -> anyhow::Result<()> {
    for body in bodies {
        refused(court, body.to_string(), INVALID).await?;
    }
    Ok(())
}

async fn with_a_spec(court: &Court) -> anyhow::Result<()> {
    let order = json!({"state": "RebootedIntoUpdate", "attempt": 9, "version": "9.9.9"});
    all_invalid(court, vec![json!({"spec": order}), json!({"state": "Idle", "spec": null})]).await
}

async fn with_the_controllers_half(court: &Court) -> anyhow::Result<()> {
    let bodies = ["progress", "drain", "record"].map(|field| json!({"state": "Idle", field: {}})).to_vec();
    all_invalid(court, bodies).await
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

async fn with_a_condition_of_the_controllers(court: &Court) -> anyhow::Result<()> {
    let types = ["Drained", "Cordoned", "Blocked", "Healthy"];
    all_invalid(court, types.map(|type_| json!({"conditions": [condition(type_)]})).to_vec()).await
}

async fn with_two_conditions_of_a_type(court: &Court) -> anyhow::Result<()> {
    let twice = json!({"conditions": [condition("HostReachable"), condition("HostReachable")]});
    all_invalid(court, vec![twice]).await
}

async fn that_are_whole_objects(court: &Court) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"status": {"state": "Idle"}}),
        json!({"apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "status": {}}),
        json!({"metadata": {"managedFields": [], "name": "brs-node-1", "finalizers": ["x"]}}),
    ];
    all_invalid(court, bodies).await
}

async fn built_on_a_stale_state(court: &Court) -> anyhow::Result<()> {
    for etag in ["\"00000000000000000000000000000000\"", "\"\"", "W/\"x\"", "x, y"] {
        let mut request = report(court, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "If-Match");
        let answer = court.answered(&request.header("If-Match", etag)).await?;
        anyhow::ensure!(answer.status == 412, "{etag}: {}", answer.status);
    }
    Ok(())
}

async fn built_on_any_state(court: &Court) -> anyhow::Result<()> {
    for etag in [None, Some("*"), Some(""), Some("\"x\", *")] {
        let mut request = report(court, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "If-Match");
        if let Some(etag) = etag {
            request = request.header("If-Match", etag);
        }
        court.refused(&request, (428, "precondition-required"), None).await?;
    }
    Ok(())
}

async fn that_are_no_json(court: &Court) -> anyhow::Result<()> {
    for body in [
        "{",
        "",
        "state: Idle",
        "{\"state\": \"Idle\"} {}",
        "\u{feff}{}",
        "{\"a\": 1e999999}",
        "{\"state\": \"\u{0}\"}",
    ] {
        refused(court, body, (400, "malformed-request")).await?;
    }
    refused(court, [0xff, 0xfe, b'{', b'}'], (400, "malformed-request")).await
}

async fn that_are_no_object(court: &Court) -> anyhow::Result<()> {
    all_invalid(court, vec![json!([]), json!("Idle"), json!(1), Value::Null]).await
}

async fn nested_without_end(court: &Court) -> anyhow::Result<()> {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    refused(court, deep("[", "]"), (400, "malformed-request")).await?;
    refused(court, deep("{\"a\":", "}"), (400, "malformed-request")).await
}

async fn too_large(court: &Court) -> anyhow::Result<()> {
    let large = json!({"state": "Idle", "padding": "x".repeat(64 * 1024)});
    refused(court, large.to_string(), (413, "body-too-large")).await
}

async fn with_values_of_the_wrong_kind(court: &Court) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"state": 1}),
        json!({"state": {"a": "b"}}),
        json!({"observedGeneration": "1"}),
        json!({"observedGeneration": 1.5}),
        json!({"conditions": "none"}),
        json!({"armed": []}),
        json!({"armed": {"attempt": "x"}}),
    ];
    all_invalid(court, bodies).await
}

async fn with_strings_that_are_too_long_or_no_version(court: &Court) -> anyhow::Result<()> {
    let bodies = vec![
        json!({"state": "Idle", "variant": "x".repeat(10_000)}),
        json!({"state": "Idle", "bootId": "x".repeat(10_000)}),
        json!({"state": "Idle", "currentVersion": "1.0"}),
        json!({"state": "Idle", "currentVersion": "../../1.2.3"}),
        json!({"state": "x".repeat(10_000)}),
    ];
    all_invalid(court, bodies).await
}

async fn of_another_media_type(court: &Court) -> anyhow::Result<()> {
    for media_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/apply-patch+yaml", "application/jsonp"]
    {
        let mut request = report(court, json!({"state": "Idle"}).to_string());
        request.headers.retain(|(name, _)| *name != "Content-Type");
        court.refused(&request.header("Content-Type", media_type), (415, "not-json"), None).await?;
    }
    Ok(())
}
