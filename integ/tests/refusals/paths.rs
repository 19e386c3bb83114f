//! Paths and methods that might reach another client's shadow.

use anyhow::Context as _;

use crate::cases;
use crate::raw::Request;
use crate::refusal_test::{FORBIDDEN, OTHER_NODE, RefusalTest, TARGET_NODE};

cases![
    request_for_shadow_of_other_node_is_refused,
    path_that_is_spelled_otherwise_is_refused,
    unsupported_request_is_refused,
    request_without_tls_is_refused,
    only_http_1_1_is_negotiated,
];

const NOT_FOUND: (u16, &str) = (404, "not-found");

/// Sends requests with the token of the other node's agent, which is valid for its own node.
async fn all_refused(refusal_test: &RefusalTest, rows: &[(String, (u16, &'static str))]) -> anyhow::Result<()> {
    let token = refusal_test.agents_token(OTHER_NODE).await?;
    for (path, expected) in rows {
        let reason = (*expected == FORBIDDEN).then_some("OtherNode");
        let request = Request::new("GET", path).bearer(&token);
        refusal_test.assert_refused(&request, *expected, reason).await?;
    }
    Ok(())
}

async fn request_for_shadow_of_other_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let brs = format!("brs-{OTHER_NODE}");
    let nodes = [TARGET_NODE, "node-3", "no-such-node", "*", "-", ".", brs.as_str()];
    let rows = nodes.map(|node| (format!("/v1/nodes/{node}/shadow"), FORBIDDEN));
    all_refused(refusal_test, &rows).await
}

async fn path_that_is_spelled_otherwise_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let rows = [
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
        (format!("/v1/nodes/{}/shadow", OTHER_NODE.to_uppercase()), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}./shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER_NODE}%20/shadow"), FORBIDDEN),
        (format!("//v1/nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/v1//nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/V1/nodes/{OTHER_NODE}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}/shadow/"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER_NODE}/Shadow"), NOT_FOUND),
        ("/".to_owned(), NOT_FOUND),
        ("/metrics".to_owned(), NOT_FOUND),
        ("/v1/nodes".to_owned(), NOT_FOUND),
        ("/apis/brupop.bottlerocket.aws/v3/bottlerocketshadows".to_owned(), NOT_FOUND),
    ];
    all_refused(refusal_test, &rows).await
}

/// The unit tests of the web API have all methods of all paths, by its description.
async fn unsupported_request_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let shadow = format!("/v1/nodes/{TARGET_NODE}/shadow");
    let mut rows = vec![
        ("DELETE", shadow.clone(), (405, "method-not-allowed")),
        ("PROPFIND", shadow.clone(), (405, "method-not-allowed")),
        ("PATCH", format!("{shadow}/status"), (405, "method-not-allowed")),
    ];
    for from in ["0", "-1", "1%0d%0aX:%20y", "latest", "1;2"] {
        rows.push(("GET", format!("{shadow}/watch?resourceVersion={from}"), (400, "malformed-request")));
    }
    for (method, path, expected) in rows {
        let request = Request::new(method, &path).bearer(&refusal_test.own);
        refusal_test.assert_refused(&request, expected, None).await.context(path)?;
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
