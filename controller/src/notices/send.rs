//! One notice to one receiver: its address from the Secret, a POST with a time limit, and every possible result. No message
//! has the address, which is a credential.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use models::names::NOTICES_SECRET;
use models::operator::{Notice, NoticeFormat, NoticeReceiver};
use models::time::between;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};

use super::format;
use crate::clock::Clock;
use crate::expressions::root_cause;
use crate::outgoing;

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);

/// Key of the Secret with the authorities that receivers' certificates are verified with.
const CA_KEY: &str = "ca.crt";

/// The outcome of an attempt to send a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Sent,
    /// It may succeed later, at the earliest after a time that the receiver named.
    Retry {
        message: String,
        after: Option<Duration>,
        /// True if the Secret does not have what is needed.
        unusable: bool,
    },
    /// It will not succeed.
    Refused {
        message: String,
    },
}

impl Outcome {
    /// Returns the outcome of a sending that may succeed at any time.
    pub(super) fn retry(message: String) -> Self {
        Self::Retry { message, after: None, unusable: false }
    }

    /// Returns the reason why it was not sent.
    pub(super) fn message(&self) -> Option<&str> {
        match self {
            Self::Sent => None,
            Self::Retry { message, .. } | Self::Refused { message } => Some(message),
        }
    }
}

/// The Secret `brupop-notices`, as the kubelet mounts it: it is read at each sending.
pub(super) struct Secret<'a> {
    pub(super) folder: Option<&'a Path>,
    pub(super) namespace: &'a str,
}

/// The way to a receiver. Its address is shown nowhere.
pub(super) struct Target {
    client: Client,
    url: Url,
    token: Option<HeaderValue>,
}

impl Secret<'_> {
    async fn read(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(folder) = self.folder else {
            return Err("the controller has no --notices-dir: apply the manifests of this version".to_owned());
        };
        match tokio::fs::read(folder.join(key)).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("key {key} of the Secret {NOTICES_SECRET} cannot be read: {}", error.kind())),
        }
    }

    async fn text(&self, key: &str) -> Result<String, String> {
        let Some(bytes) = self.read(key).await? else {
            return Err(format!(
                "the Secret {NOTICES_SECRET} in {} has no key {key}: add it; it arrives within two minutes",
                self.namespace
            ));
        };
        let text = String::from_utf8(bytes).unwrap_or_default().trim().to_owned();
        if text.is_empty() {
            return Err(format!("key {key} of the Secret {NOTICES_SECRET} is empty, or no text: correct it"));
        }
        Ok(text)
    }

    /// Returns the way to a receiver, or the reason why there is none, with what to do.
    pub(super) async fn target(&self, receiver: &NoticeReceiver) -> Result<Target, String> {
        let key = &receiver.url_key;
        let url = Url::parse(&self.text(key).await?).ok().filter(Url::has_host);
        let plain = receiver.format == NoticeFormat::CloudEvents && receiver.token_key.is_none();
        let url = url.filter(|url| url.scheme() == "https" || (plain && url.scheme() == "http")).ok_or_else(|| {
            let http = if plain { " or http://" } else { "" };
            format!("key {key} of the Secret {NOTICES_SECRET} holds no URL that begins with https://{http}: correct it")
        })?;
        let token = match &receiver.token_key {
            None => None,
            Some(key) => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", self.text(key).await?)).map_err(|_| {
                    format!(
                        "key {key} of the Secret {NOTICES_SECRET} holds no token that a header can have: correct it"
                    )
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let client = client(url.scheme() == "https", self.read(CA_KEY).await?.as_deref())?;
        Ok(Target { client, url, token })
    }
}

/// Returns a client. Certificates are verified with these authorities alone, or without any with those of the system.
fn client(tls: bool, authorities: Option<&[u8]>) -> Result<Client, String> {
    let found = authorities.filter(|_| tls).map(outgoing::certificates);
    if found.as_ref().is_some_and(Option::is_none) {
        return Err(format!("key {CA_KEY} of the Secret {NOTICES_SECRET} holds no certificate in PEM: correct it"));
    }
    outgoing::client(tls, found.flatten()).map_err(|error| {
        format!(
            "no authority to check the receiver's certificate with ({}): add those of the receiver, in PEM, to the Secret \
             {NOTICES_SECRET} as {CA_KEY}",
            root_cause(&error)
        )
    })
}

pub(super) async fn send(secret: &Secret<'_>, receiver: &NoticeReceiver, notice: &Notice, clock: &Clock) -> Outcome {
    let target = match secret.target(receiver).await {
        Ok(target) => target,
        Err(message) => return Outcome::Retry { message, after: None, unusable: true },
    };
    let answer = tokio::time::timeout(LIMIT, post(target, receiver, secret.namespace, notice, clock)).await;
    answer.unwrap_or_else(|_| {
        Outcome::retry(format!("no answer within {LIMIT:?}: does a NetworkPolicy let the controller through?"))
    })
}

async fn post(target: Target, receiver: &NoticeReceiver, namespace: &str, notice: &Notice, clock: &Clock) -> Outcome {
    let Target { client, url, token } = target;
    let (content_type, body) = format::body(receiver, namespace, notice);
    let mut request = client.post(url).header(CONTENT_TYPE, content_type).body(body);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    match request.send().await {
        Ok(response) => outcome(receiver, response.status(), response.headers(), clock.now()),
        // The last cause has no address.
        Err(error) => Outcome::retry(format!(
            "no answer: {}; is the address right, is {CA_KEY} that of its authority, and does a NetworkPolicy let the \
             controller through?",
            root_cause(&error.without_url())
        )),
    }
}

/// Returns what the receiver's answer means.
pub(super) fn outcome(receiver: &NoticeReceiver, status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Outcome {
    let (code, key) = (status.as_u16(), &receiver.url_key);
    match code {
        200..=299 => Outcome::Sent,
        // A new token takes up to two minutes from the Secret to the controller.
        401 | 403 => Outcome::retry(format!(
            "it refuses with {code}: check address and token, in the keys that the receiver names in the Secret {NOTICES_SECRET}"
        )),
        408 | 429 | 500..=599 => {
            let after = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now));
            Outcome::Retry { message: format!("it answers {code}"), after, unusable: false }
        }
        300..=399 => Outcome::Refused {
            message: format!(
                "it redirects, and redirects are not followed: put the address that answers itself into key {key} of the \
                 Secret {NOTICES_SECRET}"
            ),
        },
        _ => Outcome::Refused {
            message: format!(
                "it refuses with {code}: check that the webhook exists and takes this format, and its address in key {key} \
                 of the Secret {NOTICES_SECRET}"
            ),
        },
    }
}

/// Returns the time that a receiver asks to wait: in seconds, or as a date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let seconds = text.trim().parse().ok().map(Duration::from_secs);
    seconds.or_else(|| {
        let at: Timestamp = DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
        Some(between(now, at))
    })
}
