//! `GET /v1/nodes/{node}/shadow/watch`.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::stream;
use models::resource_version::is_valid;
use models::wire::{NDJSON, PROCESS_HEADER};
use serde::Deserialize;

use crate::app::{Agent, App, log_refused_shadow, take};
use crate::follow::{AgentStream, Follower, Lifetime, age};
use crate::problem::{ApiError, Kind};
use crate::refusal::Refusal;
use crate::resume::{ResumeError, resume};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Query {
    /// The newest state that the agent has seen.
    resource_version: Option<String>,
}

/// Streams the agent's shadow, now and as it changes, one JSON object per line.
pub(super) async fn get(
    Agent(agent): Agent,
    request: HttpRequest,
    app: web::Data<App>,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let malformed = || ApiError::new(Kind::MalformedRequest).detail("resourceVersion is one that a shadow had");
    let Query { resource_version } = query.map_err(|_| malformed())?.into_inner();
    if resource_version.as_deref().is_some_and(|version| !is_valid(version)) {
        return Err(malformed());
    }
    if app.ending() {
        return Err(ApiError::new(Kind::Unavailable).detail("this replica is ending"));
    }
    take(&app.reads, agent.node_name.clone(), Refusal::TooManyReads)?;
    // A stream that waits to be resumed takes a place as an open one does.
    let mut place = app.streams.enter(&agent.node_name);
    let mut seen = app.store.subscribe(&agent.shadow_name());
    if let Some(from) = resource_version {
        let resumed = tokio::select! {
            resumed = resume(&app.cluster, &app.store, &agent, &mut seen, &from, app.limits.behind) => resumed,
            _ = &mut place.displaced => {
                return Err(ApiError::new(Kind::Unavailable).detail("newer streams have taken its place"));
            }
        };
        match resumed {
            Ok(()) => {}
            Err(ResumeError::Call(error)) => return Err(error.into()),
            Err(ResumeError::Behind) => {
                app.metrics.resumes_refused.inc();
                return Err(ApiError::new(Kind::Unavailable).detail("this replica is behind"));
            }
        }
    }
    let metrics = app.metrics.clone();
    let lifetime = Lifetime {
        age: age(app.stream_max_age.0, rand::random(), agent.expires, (app.now)()),
        shutdown: app.shutdown.clone(),
        turn: rand::random(),
        place,
        _presence: app
            .metrics
            .agents
            .enter(request.headers().get(PROCESS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok())),
    };
    let stream = AgentStream::new(Follower::new(agent.clone()), seen, lifetime, move |refusal| {
        metrics.refusals.inc(refusal);
        log_refused_shadow(&agent, refusal);
    });
    let lines = stream::unfold(stream, async |mut stream| Some((stream.next_bytes().await?, stream)));
    Ok(HttpResponse::Ok().content_type(NDJSON).insert_header((CACHE_CONTROL, "no-store")).streaming(lines))
}
