//! Paths and methods that might reach another client's shadow.

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{FORBIDDEN, OTHER_NODE, RefusalTest, TARGET_NODE};

cases![
    request_for_shadow_of_other_node_is_refused,
    path_traversal_is_refused,
    nonstandard_path_spelling_is_refused,
    shadow_object_name_as_node_is_refused,
    unknown_path_is_refused,
    unsupported_method_is_refused,
    watch_from_invalid_resource_version_is_refused,
    request_without_tls_is_refused,
    only_http_1_1_is_negotiated,
];

const NOT_FOUND: (u16, &str) = (404, "not-found");

/// Sends a request with the token of the other node's agent, which is valid for its own node.
async fn assert_refused(refusal_test: &RefusalTest, path: String, expected: (u16, &str)) -> anyhow::Result<()> {
    let reason = (expected == FORBIDDEN).then_some("OtherNode");
    let request = Request::new("GET", path).bearer(&refusal_test.agents_token(OTHER_NODE).await?);
    refusal_test.assert_refused(&request, expected, reason).await.map(|_| ())
}

async fn request_for_shadow_of_other_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for node in [TARGET_NODE, "node-3", "no-such-node", "*", "-", "."] {
        assert_refused(refusal_test, format!("/v1/nodes/{node}/shadow"), FORBIDDEN).await?;
    }
    Ok(())
}

async fn path_traversal_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for (path, expected) in [
        (format!("/v1/nodes/{OTHER_NODE}/../{TARGET_NODE}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}/shadow/../../{TARGET_NODE}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}%2F..%2F{TARGET_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}%2f..%2f{TARGET_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}/%2e%2e/{TARGET_NODE}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/..%2F{TARGET_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{TARGET_NODE}%00{OTHER_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}%00/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{TARGET_NODE};node={OTHER_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{TARGET_NODE}%23{OTHER_NODE}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{TARGET_NODE}%3Fnode={OTHER_NODE}/shadow"), FORBIDDEN),
    ] {
        assert_refused(refusal_test, path, expected).await?;
    }
    Ok(())
}

async fn nonstandard_path_spelling_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for (path, expected) in [
        (format!("/v1/nodes/{}/shadow", OTHER_NODE.to_uppercase()), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}./shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}%20/shadow"), FORBIDDEN),
        (format!("//v1/nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/v1//nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/V1/nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}/shadow/"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}/Shadow"), NOT_FOUND),
    ] {
        assert_refused(refusal_test, path, expected).await?;
    }
    Ok(())
}

async fn shadow_object_name_as_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    assert_refused(refusal_test, format!("/v1/nodes/brs-{OTHER_NODE}/shadow"), FORBIDDEN).await
}

async fn unknown_path_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for path in [
        "/",
        "/metrics",
        "/healthz",
        "/v1/nodes",
        "/v1/nodes/",
        "/v2/nodes/node-1/shadow",
        "/api/v1/nodes",
        "/apis/brupop.bottlerocket.aws/v3/bottlerocketshadows",
        "/openapi.json",
    ] {
        assert_refused(refusal_test, path.to_owned(), NOT_FOUND).await?;
    }
    Ok(())
}

async fn unsupported_method_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let shadow = format!("/v1/nodes/{TARGET_NODE}/shadow");
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
        let request = Request::new(method, &shadow).bearer(&refusal_test.own);
        refusal_test.assert_refused(&request, (405, "method-not-allowed"), None).await?;
    }
    for method in ["GET", "POST", "PATCH", "DELETE"] {
        let request = Request::new(method, format!("{shadow}/status")).bearer(&refusal_test.own);
        refusal_test.assert_refused(&request, (405, "method-not-allowed"), None).await?;
    }
    Ok(())
}

async fn watch_from_invalid_resource_version_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for from in ["0", "-1", "1%0d%0aX:%20y", "latest", "1;2"] {
        let path = format!("/v1/nodes/{TARGET_NODE}/shadow/watch?resourceVersion={from}");
        refusal_test
            .assert_refused(&Request::new("GET", path).bearer(&refusal_test.own), (400, "malformed-request"), None)
            .await?;
    }
    Ok(())
}

async fn request_without_tls_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = refusal_test.connector.connect().await?;
    let request = format!(
        "GET /v1/nodes/{TARGET_NODE}/shadow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        refusal_test.own
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // An alert, a reset or nothing: anything but HTTP.
    let _ = tokio::time::timeout(crate::refusal_test::LIMIT, stream.read_to_end(&mut answer)).await?;
    anyhow::ensure!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Checks that HTTP/1.1, which agents use, is the only protocol.
async fn only_http_1_1_is_negotiated(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let both = refusal_test.connector.negotiate(&["h2", "http/1.1"]).await?;
    anyhow::ensure!(both.as_deref() == Some(b"http/1.1"), "{both:?}");
    anyhow::ensure!(refusal_test.connector.negotiate(&["h2"]).await.is_err(), "HTTP/2 alone was agreed to");
    Ok(())
}
