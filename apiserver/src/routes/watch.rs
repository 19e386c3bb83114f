//! `GET /v1/nodes/{node}/shadow/watch`.

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpResponse, web};
use futures::stream;
use models::wire::NDJSON;

use crate::app::{Agent, App, log_refused_shadow};
use crate::follow::{AgentStream, Counted, age};

/// The agent's shadow, now and as it changes, one JSON object a line.
pub(super) async fn get(Agent(agent): Agent, app: web::Data<App>) -> HttpResponse {
    let age = age(app.stream_max_age.0, rand::random(), agent.expires, (app.now)());
    let seen = app.store.subscribe(&agent.shadow_name());
    let metrics = app.metrics.clone();
    let owner = agent.clone();
    let stream =
        AgentStream::new(agent, seen, app.shutdown.clone(), age, Counted::new(&app.metrics.streams), move |refusal| {
            metrics.refusal(refusal);
            log_refused_shadow(&owner, refusal);
        });
    let lines = stream::unfold(stream, async |mut stream| Some((stream.next_bytes().await?, stream)));
    HttpResponse::Ok().content_type(NDJSON).insert_header((CACHE_CONTROL, "no-store")).streaming(lines)
}
