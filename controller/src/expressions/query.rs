//! One query to Prometheus: a POST, limits of time and size, and every possible result.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Certificate, Client, Response, Url, redirect};

use super::answer::{self, Unreadable, cut};
use planner::policy::Prometheus;
use planner::view::Answer;

/// Maximum size of an answer, in bytes. The expected answer is empty, so this is plenty, and memory stays bounded.
const BODY_LIMIT: usize = 1 << 20;

/// Maximum length of a cause or an address in messages.
const SHOWN_LENGTH: usize = 200;

/// The reason why no client could be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("the file of --prometheus-ca-file, {}, cannot be read: {source}", path.display())]
    ReadCa { path: PathBuf, source: std::io::Error },
    #[error("the file of --prometheus-ca-file, {}, holds no certificate in PEM", path.display())]
    ParseCa { path: PathBuf },
    /// No authorities are trusted, or none that can be read.
    #[error(
        "no authority to check the certificate of Prometheus with ({cause}): the controller's image holds none, so mount \
         a file with the CA and name it in --prometheus-ca-file"
    )]
    Build { cause: String },
}

/// The reason why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    #[error("spec.prometheus.url is not an address ({cause}): write one such as http://prometheus.monitoring.svc:9090")]
    Address { cause: String },
    #[error(
        "no answer from {url} within {limit:?}: is the address right, and does a NetworkPolicy let the controller through?"
    )]
    Late { url: String, limit: Duration },
    #[error("no answer from {url}: {cause}; {}", if *tls {
        "is the address right, and did the authority of --prometheus-ca-file issue its certificate?"
    } else {
        "is the address right, and does a NetworkPolicy let the controller through?"
    })]
    Transport { url: String, cause: String, tls: bool },
    #[error(
        "{url} redirects to {to}, and redirects are not followed: write the address that answers itself into spec.prometheus.url"
    )]
    Redirect { url: String, to: String },
    #[error("{url} answered {status}: the operator shows no credentials; write an address that asks for none")]
    Denied { url: String, status: u16 },
    /// The server fails without an error in the format of Prometheus.
    #[error("{url} answered {status}: is spec.prometheus.url the base of Prometheus' API, and is it well?")]
    Status { url: String, status: u16 },
    #[error("the answer of {url} is larger than 1 MiB: let the expression return less, for example by count(...) > 0")]
    Large { url: String },
    #[error("{0}")]
    Refused(Unreadable),
    #[error("{url} answered, but {what}: is spec.prometheus.url the base of Prometheus' API?")]
    Foreign { url: String, what: String },
}

/// Returns a client for this address. Certificates are verified with the authorities of `ca_file` alone, or without one
/// with those of the system.
pub(super) async fn client(settings: &Prometheus, ca_file: Option<&Path>) -> Result<Client, ClientError> {
    let builder = Client::builder()
        .redirect(redirect::Policy::none())
        // Queries go to the address in the policy, whatever the environment sets.
        .no_proxy()
        .referer(false)
        .user_agent(concat!("brupop-controller/", env!("CARGO_PKG_VERSION")));
    let builder = match ca_file {
        Some(path) => {
            let pem =
                tokio::fs::read(path).await.map_err(|source| ClientError::ReadCa { path: path.to_owned(), source })?;
            let certificates = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if certificates.is_empty() {
                return Err(ClientError::ParseCa { path: path.to_owned() });
            }
            builder.tls_certs_only(certificates)
        }
        // Without authorities of its own, a client with TLS cannot be made in an image that holds none.
        None if !settings.url.starts_with("https:") => builder.tls_certs_only([]),
        None => builder,
    };
    builder.build().map_err(|error| ClientError::Build { cause: root_cause(&error) })
}

/// Sends one query. `sent` is the time of sending.
pub(super) async fn send(client: &Client, settings: &Prometheus, query: &str, sent: Timestamp) -> Answer {
    let answer = match endpoint(&settings.url) {
        Ok(url) => {
            let shown = shown(&url);
            tokio::time::timeout(settings.timeout, post(client, url, &shown, query, sent))
                .await
                .unwrap_or(Err(QueryError::Late { url: shown, limit: settings.timeout }))
        }
        Err(error) => Err(error),
    };
    answer.unwrap_or_else(|error| Answer::Failed { message: error.to_string() })
}

async fn post(client: &Client, url: Url, shown: &str, query: &str, sent: Timestamp) -> Result<Answer, QueryError> {
    let tls = url.scheme() == "https";
    let transport =
        |error: reqwest::Error| QueryError::Transport { url: shown.to_owned(), cause: root_cause(&error), tls };
    let body = form(&url, query);
    let mut response = client
        .post(url)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body)
        .send()
        .await
        .map_err(transport)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(QueryError::Redirect { url: shown.to_owned(), to: location(&response) });
    }
    if matches!(status.as_u16(), 401 | 403) {
        return Err(QueryError::Denied { url: shown.to_owned(), status: status.as_u16() });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(transport)? {
        if body.len() + chunk.len() > BODY_LIMIT {
            return Err(QueryError::Large { url: shown.to_owned() });
        }
        body.extend_from_slice(&chunk);
    }
    match answer::read(&body, sent) {
        // A query that cannot be evaluated is a 400 or 422 with the reason in the body.
        Err(refused @ (Unreadable::Refused(_) | Unreadable::NeverNothing(_))) => Err(QueryError::Refused(refused)),
        _ if !status.is_success() => Err(QueryError::Status { url: shown.to_owned(), status: status.as_u16() }),
        Err(Unreadable::Foreign(what)) => Err(QueryError::Foreign { url: shown.to_owned(), what }),
        Ok(answer) => Ok(answer),
    }
}

/// Returns the address of queries: the base, whatever path it has, and the path of the API.
fn endpoint(base: &str) -> Result<Url, QueryError> {
    let address = |cause: &str| QueryError::Address { cause: cause.to_owned() };
    let mut url = Url::parse(base).map_err(|error| address(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(address("it begins with neither http:// nor https://"));
    }
    url.path_segments_mut().map_err(|()| address("it has no path"))?.pop_if_empty().extend(["api", "v1", "query"]);
    Ok(url)
}

/// Returns the address for messages: without user name and password.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.set_fragment(None);
    cut(url.as_str(), SHOWN_LENGTH)
}

/// Returns the query as the body of a form.
fn form(url: &Url, query: &str) -> String {
    let mut form = url.clone();
    form.set_query(None);
    form.query_pairs_mut().append_pair("query", query);
    form.query().unwrap_or_default().to_owned()
}

fn location(response: &Response) -> String {
    let to = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    // A reference without a host is shown as it is: it leads to the same server.
    to.map_or_else(
        || "nowhere".to_owned(),
        |to| Url::parse(to).map_or_else(|_| cut(to, SHOWN_LENGTH), |url| shown(&url)),
    )
}

/// Returns the last error of the chain, which has the actual cause.
fn root_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    cut(&last.to_string(), SHOWN_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_endpoint_is_appended_to_url_path() {
        for (base, expected) in [
            ("http://p:9090", "http://p:9090/api/v1/query"),
            ("http://p:9090/", "http://p:9090/api/v1/query"),
            ("https://p/prometheus", "https://p/prometheus/api/v1/query"),
            ("https://p/prometheus/", "https://p/prometheus/api/v1/query"),
            ("http://p/?tenant=a", "http://p/api/v1/query?tenant=a"),
        ] {
            assert_eq!(endpoint(base).unwrap().as_str(), expected);
        }
        for base in ["", "prometheus", "ftp://p", "http://", "http://[", "mailto:p"] {
            assert!(matches!(endpoint(base), Err(QueryError::Address { .. })), "{base}");
        }
    }

    #[test]
    fn displayed_url_contains_no_credentials() {
        let url = endpoint("http://me:secret@p/x?token=secret#secret").unwrap();
        assert_eq!(shown(&url), "http://p/x/api/v1/query");
    }

    #[test]
    fn query_is_sent_url_encoded_and_unchanged() {
        let query = "up{a=\"ü&=+%\"} == 0\n";
        let body = form(&endpoint("http://p/?tenant=a").unwrap(), query);
        assert_eq!(body, "query=up%7Ba%3D%22%C3%BC%26%3D%2B%25%22%7D+%3D%3D+0%0A");
    }
}
