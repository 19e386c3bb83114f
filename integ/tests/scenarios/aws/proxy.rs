//! A proxy before moto. It answers as the real API does where moto has no errors and no pages, loses calls, and gives
//! credentials as the agent of EKS Pod Identity does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use models::time::after;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::moto::{locked, send};

/// Path at which a pod gets credentials.
pub(super) const CREDENTIALS: &str = "/v1/credentials";

/// Action of the STS by which a service account gets them (IRSA).
pub(super) const WEB_IDENTITY: &str = "AssumeRoleWithWebIdentity";

/// The token of the second page of each read, of which the first one is empty: AWS may return any number of results.
const SECOND_PAGE: &str = "&NextToken=second";

/// Fate of a call of AWS at the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The documented answer to a caller without the right.
    Denied,
    /// The documented answer above the limit of the rate.
    Throttled,
    /// Carried out, and never answered.
    Unanswered,
    /// Neither carried out nor answered.
    Lost,
    /// Answered as if it were carried out.
    Ignored,
}

/// State of the proxy.
#[derive(Default)]
pub(super) struct State {
    /// Calls of the program, by action, in their order; requests for credentials by path.
    pub(super) calls: Vec<String>,
    /// Times at which the program began to read.
    pub(super) reads: Vec<Instant>,
    /// Actions with a fault, for calls that name this instance or group, and how often.
    pub(super) faults: BTreeMap<&'static str, (Fault, String, usize)>,
}

/// Starts the proxy.
pub(super) async fn serve(
    tasks: &mut JoinSet<()>,
    client: reqwest::Client,
    url: String,
    state: Arc<Mutex<State>>,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (client, url, state) = (client.clone(), url.clone(), state.clone());
            connections.spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let (client, url, state) = (client.clone(), url.clone(), state.clone());
                    async move { Ok::<_, Infallible>(forward(request, &client, &url, &state).await) }
                });
                let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                let _ = served.await;
            });
        }
    });
    Ok(address)
}

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}

/// As https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html has them.
fn error(status: StatusCode, code: &str, message: &str) -> Response<Full<Bytes>> {
    let xml = format!(
        "<ErrorResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>0</RequestId></ErrorResponse>"
    );
    answer(status, xml)
}

/// The first page of a read of these objects.
fn first_page(objects: &str) -> Response<Full<Bytes>> {
    let xml = format!(
        "<Describe{objects}Response xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Describe{objects}Result><{objects}/><NextToken>second</NextToken></Describe{objects}Result></Describe{objects}Response>"
    );
    answer(StatusCode::OK, xml)
}

/// Credentials for a pod that shows a token of its service account.
fn credentials(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let token = request.headers().get("authorization").and_then(|token| token.to_str().ok()).unwrap_or_default();
    if !(token.starts_with("ey") && token.matches('.').count() == 2) {
        return answer(StatusCode::UNAUTHORIZED, "no token of a service account");
    }
    let body = json!({
        "AccessKeyId": "ASIAPOD", "SecretAccessKey": "secret", "Token": "session",
        "Expiration": after(Timestamp::now(), Duration::from_secs(3600)).to_string(),
    });
    answer(StatusCode::OK, body.to_string())
}

async fn forward(
    request: Request<Incoming>,
    client: &reqwest::Client,
    url: &str,
    state: &Mutex<State>,
) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == CREDENTIALS {
        locked(state).calls.push(CREDENTIALS.to_owned());
        return credentials(&request);
    }
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let action = body.split('&').find_map(|part| part.strip_prefix("Action=")).unwrap_or_default().to_owned();
    let fault = {
        let mut state = locked(state);
        state.calls.push(action.clone());
        let fault = state.faults.get_mut(action.as_str());
        fault.filter(|(_, name, left)| *left > 0 && body.contains(name.as_str())).map(|(fault, _, left)| {
            *left -= 1;
            *fault
        })
    };
    match fault {
        Some(Fault::Denied) => {
            let message = format!(
                "User: arn:aws:sts::123456789012:assumed-role/brupop/0 is not authorized to perform: autoscaling:{action} because no identity-based policy allows it"
            );
            return error(StatusCode::FORBIDDEN, "AccessDenied", &message);
        }
        Some(Fault::Throttled) => return error(StatusCode::BAD_REQUEST, "Throttling", "Rate exceeded"),
        Some(Fault::Ignored) => {
            let xml = format!(
                "<{action}Response xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></{action}Response>"
            );
            return answer(StatusCode::OK, xml);
        }
        Some(Fault::Lost) => std::future::pending::<()>().await,
        Some(Fault::Unanswered) | None => {}
    }
    if let Some(objects) = action.strip_prefix("Describe")
        && !body.contains(SECOND_PAGE)
    {
        if objects == "AutoScalingInstances" {
            locked(state).reads.push(Instant::now());
        }
        return first_page(objects);
    }
    let service = if action == WEB_IDENTITY { "sts" } else { "autoscaling" };
    let forwarded = send(client, url, service, body.replace(SECOND_PAGE, "")).await;
    if fault == Some(Fault::Unanswered) {
        std::future::pending::<()>().await;
    }
    match forwarded {
        Ok((status, body)) => answer(status, body),
        Err(problem) => answer(StatusCode::BAD_GATEWAY, format!("{problem:#}")),
    }
}
