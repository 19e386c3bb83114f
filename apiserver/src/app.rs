//! State shared by the request handlers, and the authentication of a request as an agent's.

use std::hash::Hash;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage as _, HttpRequest, web};
use anyhow::anyhow;
use jiff::Timestamp;
use ports::limit::{Allowance, Limiter, Source, Sources};
use ports::{connections, plain};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::auth::identity::{AgentIdentity, Bearer, check};
use crate::auth::review::{Evidence, ReviewError, Reviewer};
use crate::auth::token::Token;
use crate::cluster::{CallError, Cluster};
use crate::metrics::Metrics;
use crate::problem::{ApiError, Kind};
use crate::refusal::Refusal;
use crate::store::Store;
use crate::streams::Streams;
use crate::tls::CertificateSlot;
use crate::write::AccessError;

/// Limits on clients, and intervals, that tests shorten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rate limit of a source's refused tokens. Behind one address may be many agents, all of which a lagging clock can
    /// refuse at once; guessing a signature needs more than any possible limit.
    pub(crate) refused: Allowance,
    /// Time-out for the body of a report. It is smaller than one round trip's worth of packets.
    pub(crate) body: Duration,
    /// Maximum age of a connection without an authenticated agent. A valid token waits less, 44 s, even where the cluster's
    /// keys, a turn and the TokenReview all come at the last moment.
    pub(crate) unauthenticated: Duration,
    /// Maximum age of a connection to the plain port.
    pub(crate) plain: Duration,
    /// Time that a replica that is behind an agent waits for its watch before it calls the cluster. A watch is behind by
    /// milliseconds, or it is broken.
    pub(crate) behind: Duration,
    /// Interval of reads of the certificate's files. A rotation overlaps by minutes; a first installation waits for
    /// this.
    pub(crate) certificate: Duration,
}

impl Limits {
    pub(crate) const USUAL: Self = Self {
        refused: Allowance { burst: 200, every: Duration::from_millis(50) },
        body: Duration::from_secs(10),
        unauthenticated: Duration::from_secs(60),
        plain: plain::MAX_AGE,
        behind: Duration::from_secs(2),
        certificate: Duration::from_secs(1),
    };
}

/// The state of one server.
pub(crate) struct App {
    pub(crate) cluster: Cluster,
    pub(crate) store: Store,
    pub(crate) reviewer: Reviewer,
    /// Refused tokens, by source. Its limit is above what any mistake brings.
    pub(crate) refused: Limiter<Source>,
    /// Reports, by node.
    pub(crate) reports: Limiter<String>,
    /// Opened streams and live reads, by node.
    pub(crate) reads: Limiter<String>,
    /// Reads of this replica's copy, by node.
    pub(crate) copy_reads: Limiter<String>,
    /// TokenReviews of signed tokens, by the node that they name.
    pub(crate) reviews: Limiter<String>,
    pub(crate) sources: Sources,
    /// Log lines about refusals, by source.
    pub(crate) log_lines: Limiter<Source>,
    /// Number of such lines left out since the last one.
    pub(crate) omitted: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) certificate: Arc<CertificateSlot>,
    /// User name of the agents' service account.
    pub(crate) agent_username: String,
    pub(crate) stream_max_age: models::duration::Duration,
    pub(crate) limits: Limits,
    pub(crate) streams: Arc<Streams>,
    /// Set at shutdown, to the time at which the last stream ends.
    pub(crate) shutdown: watch::Receiver<Option<Instant>>,
    pub(crate) now: fn() -> Timestamp,
}

impl App {
    /// Returns true if the server is shutting down.
    pub(crate) fn ending(&self) -> bool {
        self.shutdown.borrow().is_some()
    }

    /// Returns an error with the reason if this replica is not ready for agents.
    pub(crate) fn ready(&self) -> Result<(), &'static str> {
        if self.ending() {
            return Err("the server is ending");
        }
        self.certificate.serves((self.now)())?;
        if !self.store.synced() {
            return Err("the shadows have not been listed yet");
        }
        Ok(())
    }
}

/// The agent of the node in the path. A handler with this parameter is reached by that agent alone.
pub(crate) struct Agent(pub(crate) AgentIdentity);

/// Marks, as an extension, a request that was authenticated as an agent's, whatever its answer.
pub(crate) struct Authenticated;

impl FromRequest for Agent {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let app = request.app_data::<web::Data<App>>().cloned();
        let token = Token::from_headers(request.headers());
        let peer = request.peer_addr();
        let node = request.match_info().get("node").unwrap_or_default().to_owned();
        let request = request.clone();
        Box::pin(async move {
            let app = app.ok_or_else(|| ApiError::new(Kind::Internal))?;
            let source = app.sources.of(peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip()));
            let bearer = authenticate(&app, source, token).await?;
            let agent = check(&bearer, &app.agent_username, &node).map_err(|refusal| {
                app.refused.charge(source, Instant::now());
                ApiError::from(refusal).cause(describe(&bearer))
            })?;
            connections::mark_authenticated();
            request.extensions_mut().insert(Authenticated);
            Ok(Self(agent))
        })
    }
}

/// Authenticates a request. A source that has sent many invalid tokens waits before another one is checked; a token
/// known to be valid passes all the same.
async fn authenticate(app: &App, source: Source, token: Result<Token, Refusal>) -> Result<Arc<Bearer>, ApiError> {
    if let Some(bearer) = token.as_ref().ok().and_then(|token| app.reviewer.remembered(token)) {
        return Ok(bearer);
    }
    // Taken first and released for valid tokens: many at once do not bypass the limit.
    take(&app.refused, source, Refusal::TooManyRefusals)?;
    let refund = || app.refused.refund(source, Instant::now());
    let token = token?;
    let evidence = app.reviewer.check(&token).await.inspect_err(|error| {
        if matches!(error, ReviewError::NoKeys) {
            refund();
        }
    })?;
    // A signed token no longer counts against its source's other nodes, but a node can have any number of tokens made.
    if let Evidence::Signed { node } = &evidence {
        refund();
        take(&app.reviews, node.clone().unwrap_or_default(), Refusal::TooManyTokens)?;
    }
    let judged = app.reviewer.review(&token, &evidence).await;
    match (&judged, &evidence) {
        (Ok(_), Evidence::Unchecked) => refund(),
        (Err(ReviewError::Refused(_)), Evidence::Signed { .. }) => app.refused.charge(source, Instant::now()),
        // An unchecked token that is not found valid counts against its source.
        (Err(_), Evidence::Unchecked) | (_, Evidence::Signed { .. }) => {}
    }
    Ok(judged?)
}

impl From<ReviewError> for ApiError {
    fn from(error: ReviewError) -> Self {
        let cause = match error {
            ReviewError::Refused(refusal) => return refusal.into(),
            ReviewError::Unavailable(error) => return error.into(),
            ReviewError::Busy => anyhow!("too many tokens wait for a TokenReview"),
            ReviewError::NoKeys => anyhow!("the cluster's keys cannot be read, and the token is signed by a new one"),
        };
        Self::new(Kind::Unavailable).cause(cause)
    }
}

/// Describes the bearer of a valid token that is refused.
fn describe(bearer: &Bearer) -> anyhow::Error {
    let none = "none";
    anyhow!(
        "the token is of {}, pod {}, node {}",
        bearer.username,
        bearer.pod_uid.as_deref().unwrap_or(none),
        bearer.node_name.as_deref().unwrap_or(none)
    )
}

/// Takes one from a rate limit, or returns an error with the time until the next.
pub(crate) fn take<K: Hash + Eq>(limiter: &Limiter<K>, key: K, refusal: Refusal) -> Result<(), ApiError> {
    limiter.take(key, Instant::now()).map_err(|wait| {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        ApiError::from(refusal).retry_after(Some(seconds))
    })
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        // A refusal by the API server to this server itself is a fault of the installation, not a passing one.
        let internal = matches!(error.code(), Some(401 | 403)) || error.is_unreadable();
        let kind = if internal { Kind::Internal } else { Kind::Unavailable };
        Self::new(kind).retry_after(error.retry_after()).cause(error)
    }
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::NoShadow => Self::new(Kind::NoShadow),
            AccessError::Refused(refusal) => refusal.into(),
            AccessError::Call(error) => error.into(),
        }
    }
}

/// Converts a refused access into the agent's answer, and logs it if the shadow is another's.
pub(crate) fn refuse_access(agent: &AgentIdentity, error: AccessError) -> ApiError {
    if let AccessError::Refused(refusal) = &error {
        log_refused_shadow(agent, *refusal);
    }
    error.into()
}

/// Logs that a shadow is not the agent's although the node's name matches.
pub(crate) fn log_refused_shadow(agent: &AgentIdentity, refusal: Refusal) {
    tracing::warn!(
        reason = <&str>::from(refusal),
        node = agent.node_name,
        token_node_uid = agent.node_uid,
        pod_uid = agent.pod_uid,
        "an agent's token and its node's shadow do not name the same Node"
    );
}
