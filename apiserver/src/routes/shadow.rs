//! `GET /v1/nodes/{node}/shadow`.

use actix_web::{HttpResponse, web};
use serde::Deserialize;

use super::answer::show;
use crate::app::{Agent, App, refuse_access, take};
use crate::problem::{ApiError, Kind};
use crate::refusal::Refusal;
use crate::write::{cached, live};

#[derive(Deserialize)]
pub(super) struct Query {
    /// True to read past this replica's copy.
    #[serde(default)]
    fresh: bool,
}

/// Returns the agent's shadow. A refusal by this replica's copy is first confirmed by a live read.
pub(super) async fn get(
    Agent(agent): Agent,
    app: web::Data<App>,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> Result<HttpResponse, ApiError> {
    let Ok(query) = query else {
        return Err(ApiError::new(Kind::MalformedRequest).detail("fresh is true or false"));
    };
    let copy = if query.fresh { None } else { cached(&app.store, &agent) };
    let reads = if copy.is_some() { &app.copy_reads } else { &app.reads };
    take(reads, agent.node_name.clone(), Refusal::TooManyReads)?;
    let shadow = match copy {
        Some(shadow) => shadow,
        None => live(&app.cluster, &app.store, &agent).await.map_err(|error| refuse_access(&agent, error))?,
    };
    Ok(show(HttpResponse::Ok(), &shadow.view))
}
