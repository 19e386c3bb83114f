//! Paths and methods that might reach another client's shadow.

use crate::cases;
use crate::court::{Court, FORBIDDEN, OTHER, WANTED};
use crate::raw::Request;

cases![
    of_other_shadows,
    that_climb_to_another_shadow,
    that_are_written_otherwise,
    of_the_shadows_own_name,
    of_other_interfaces,
    by_other_methods,
    that_resume_from_nowhere,
    without_tls,
    over_another_protocol,
];

const NOT_FOUND: (u16, &str) = (404, "not-found");

/// Sends a request with the token of the other node's agent, which is valid for its own node.
async fn refused(court: &Court, path: String, told: (u16, &str)) -> anyhow::Result<()> {
    let reason = (told == FORBIDDEN).then_some("OtherNode");
    let request = Request::new("GET", path).bearer(&court.agents_token(OTHER).await?);
    court.refused(&request, told, reason).await.map(|_| ())
}

async fn of_other_shadows(court: &Court) -> anyhow::Result<()> {
    for node in [WANTED, "node-3", "no-such-node", "*", "-", "."] {
        refused(court, format!("/v1/nodes/{node}/shadow"), FORBIDDEN).await?;
    }
    Ok(())
}

async fn that_climb_to_another_shadow(court: &Court) -> anyhow::Result<()> {
    for (path, told) in [
        (format!("/v1/nodes/{OTHER}/../{WANTED}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER}/shadow/../../{WANTED}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER}%2F..%2F{WANTED}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER}%2f..%2f{WANTED}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER}/%2e%2e/{WANTED}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/..%2F{WANTED}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{WANTED}%00{OTHER}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER}%00/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{WANTED};node={OTHER}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{WANTED}%23{OTHER}/shadow"), FORBIDDEN),
        (format!("/v1/nodes/{WANTED}%3Fnode={OTHER}/shadow"), FORBIDDEN),
    ] {
        refused(court, path, told).await?;
    }
    Ok(())
}

async fn that_are_written_otherwise(court: &Court) -> anyhow::Result<()> {
    for (path, told) in [
        (format!("/v1/nodes/{}/shadow", OTHER.to_uppercase()), FORBIDDEN),
        (format!("/v1/nodes/{OTHER}./shadow"), FORBIDDEN),
        (format!("/v1/nodes/{OTHER}%20/shadow"), FORBIDDEN),
        (format!("//v1/nodes/{OTHER}/shadow"), NOT_FOUND),
        (format!("/v1//nodes/{OTHER}/shadow"), NOT_FOUND),
        (format!("/V1/nodes/{OTHER}/shadow"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER}/shadow/"), NOT_FOUND),
        (format!("/v1/nodes/{OTHER}/Shadow"), NOT_FOUND),
    ] {
        refused(court, path, told).await?;
    }
    Ok(())
}

async fn of_the_shadows_own_name(court: &Court) -> anyhow::Result<()> {
    refused(court, format!("/v1/nodes/brs-{OTHER}/shadow"), FORBIDDEN).await
}

async fn of_other_interfaces(court: &Court) -> anyhow::Result<()> {
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
        refused(court, path.to_owned(), NOT_FOUND).await?;
    }
    Ok(())
}

async fn by_other_methods(court: &Court) -> anyhow::Result<()> {
    let shadow = format!("/v1/nodes/{WANTED}/shadow");
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
        let request = Request::new(method, &shadow).bearer(&court.own);
        court.refused(&request, (405, "method-not-allowed"), None).await?;
    }
    for method in ["GET", "POST", "PATCH", "DELETE"] {
        let request = Request::new(method, format!("{shadow}/status")).bearer(&court.own);
        court.refused(&request, (405, "method-not-allowed"), None).await?;
    }
    Ok(())
}

async fn that_resume_from_nowhere(court: &Court) -> anyhow::Result<()> {
    for from in ["0", "-1", "1%0d%0aX:%20y", "latest", "1;2"] {
        let path = format!("/v1/nodes/{WANTED}/shadow/watch?resourceVersion={from}");
        court.refused(&Request::new("GET", path).bearer(&court.own), (400, "malformed-request"), None).await?;
    }
    Ok(())
}

async fn without_tls(court: &Court) -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = court.way.connect().await?;
    let request =
        format!("GET /v1/nodes/{WANTED}/shadow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", court.own);
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // An alert, a reset or nothing: anything but HTTP.
    let _ = tokio::time::timeout(crate::court::LIMIT, stream.read_to_end(&mut answer)).await?;
    anyhow::ensure!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Checks that HTTP/1.1, which agents use, is the only protocol.
async fn over_another_protocol(court: &Court) -> anyhow::Result<()> {
    let both = court.way.negotiate(&["h2", "http/1.1"]).await?;
    anyhow::ensure!(both.as_deref() == Some(b"http/1.1"), "{both:?}");
    anyhow::ensure!(court.way.negotiate(&["h2"]).await.is_err(), "HTTP/2 alone was agreed to");
    Ok(())
}
