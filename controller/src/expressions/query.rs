//! One query to Prometheus: a POST, limits of time and size, and every possible result.

use std::error::Error;
use std::path::Path;

use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, Url};

use super::answer::{self, Unreadable, cut};
use super::credentials::Secret;
use crate::outgoing;
use planner::policy::Prometheus;
use planner::view::Answer;

/// Maximum size of an answer, in bytes. The expected answer is empty, so this is plenty, and memory stays bounded.
const BODY_LIMIT: usize = 1 << 20;

/// Advice for a query without an answer.
const REACHABLE: &str = "is the address right, and does a NetworkPolicy let the controller through?";

/// Maximum length of a cause or an address in messages.
const SHOWN_LENGTH: usize = 200;

/// Returns a client for this address. Certificates are verified with the authorities of `ca_file` alone, or without one
/// with those of the system.
pub(super) async fn client(settings: &Prometheus, ca_file: Option<&Path>) -> Result<Client, String> {
    let mut authorities = None;
    if let Some(path) = ca_file {
        let file = format!("the file of --prometheus-ca-file, {},", path.display());
        let pem = tokio::fs::read(path).await.map_err(|source| format!("{file} cannot be read: {source}"))?;
        let found = outgoing::certificates(&pem).ok_or_else(|| format!("{file} holds no certificate in PEM"))?;
        authorities = Some(found);
    }
    // No authorities are trusted, or none that can be read.
    outgoing::client(settings.url.starts_with("https:"), authorities).map_err(|error| {
        format!(
            "no authority to check the certificate of Prometheus with ({}): the controller's image holds none, so mount a \
             file with the CA and name it in --prometheus-ca-file",
            root_cause(&error)
        )
    })
}

/// Sends one query, with the credentials of the Secret where it has any. `sent` is the time of sending.
pub(super) async fn send(
    client: &Client,
    settings: &Prometheus,
    secret: &Secret,
    query: &str,
    sent: Timestamp,
) -> Answer {
    let answer = match endpoint(&settings.url) {
        Ok(url) => {
            let shown = shown(&url);
            tokio::time::timeout(settings.timeout, post(client, url, &shown, secret, query, sent))
                .await
                .unwrap_or_else(|_| Err(format!("no answer from {shown} within {:?}: {REACHABLE}", settings.timeout)))
        }
        Err(error) => Err(error),
    };
    answer.unwrap_or_else(|message| Answer::Failed { message })
}

async fn post(
    client: &Client,
    url: Url,
    shown: &str,
    secret: &Secret,
    query: &str,
    sent: Timestamp,
) -> Result<Answer, String> {
    let hint = match url.scheme() {
        "https" => "is the address right, and did the authority of --prometheus-ca-file issue its certificate?",
        _ => REACHABLE,
    };
    let transport = |error: reqwest::Error| format!("no answer from {shown}: {}; {hint}", root_cause(&error));
    let body = form(&url, query);
    let credentials = secret.read().await?;
    let request = client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    let mut response = credentials.sign(request).send().await.map_err(transport)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(format!(
            "{shown} redirects to {}, and redirects are not followed: write the address that answers itself into \
             spec.prometheus.url",
            location(&response)
        ));
    }
    let code = status.as_u16();
    if matches!(code, 401 | 403) {
        return Err(format!("{shown} answered {code}: {}", secret.advice(&credentials)));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(transport)? {
        if body.len() + chunk.len() > BODY_LIMIT {
            return Err(format!(
                "the answer of {shown} is larger than 1 MiB: let the expression return less, for example by count(...) > 0"
            ));
        }
        body.extend_from_slice(&chunk);
    }
    match answer::read(&body, sent) {
        // A query that cannot be evaluated is a 400 or 422 with the reason in the body.
        Err(refused @ (Unreadable::Refused(_) | Unreadable::NeverNothing(_))) => Err(refused.to_string()),
        // The server fails without an error in the format of Prometheus.
        _ if !status.is_success() => {
            Err(format!("{shown} answered {code}: is spec.prometheus.url the base of Prometheus' API, and is it well?"))
        }
        Err(Unreadable::Foreign(what)) => {
            Err(format!("{shown} answered, but {what}: is spec.prometheus.url the base of Prometheus' API?"))
        }
        Ok(answer) => Ok(answer),
    }
}

/// Returns the address of queries: the base, whatever path it has, and the path of the API, without user name and password.
fn endpoint(base: &str) -> Result<Url, String> {
    let address = |cause: &str| {
        format!(
            "spec.prometheus.url is not an address ({cause}): write one such as http://prometheus.monitoring.svc:9090"
        )
    };
    let mut url = Url::parse(base).map_err(|error| address(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(address("it begins with neither http:// nor https://"));
    }
    // The policy has none in a URL that is written as the standard wants it; the parser finds them in others too.
    let _ = url.set_password(None);
    let _ = url.set_username("");
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
pub(crate) fn root_cause(error: &dyn Error) -> String {
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
            let error = endpoint(base).unwrap_err();
            assert!(error.starts_with("spec.prometheus.url is not an address ("), "{base}: {error}");
        }
    }

    #[test]
    fn credentials_in_url_are_neither_sent_nor_displayed() {
        let base = r#"http://me:"secret"@p/x?token=a"#;
        assert_eq!(endpoint(base).unwrap().as_str(), "http://p/x/api/v1/query?token=a");
        let redirect = Url::parse("http://me:secret@p/x?token=secret#secret").unwrap();
        assert_eq!(shown(&redirect), "http://p/x");
    }

    #[test]
    fn query_is_sent_url_encoded_and_unchanged() {
        let query = "up{a=\"ü&=+%\"} == 0\n";
        let body = form(&endpoint("http://p/?tenant=a").unwrap(), query);
        assert_eq!(body, "query=up%7Ba%3D%22%C3%BC%26%3D%2B%25%22%7D+%3D%3D+0%0A");
    }
}
