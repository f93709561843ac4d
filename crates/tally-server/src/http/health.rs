//! Health and metrics: for those who keep the server running.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tally_core::surface::Health;
use utoipa::ToSchema;

use super::App;
use super::answer::json;
use super::problem::{Kind, Problem, ProblemJson};
use crate::metrics;

/// Whether the server can be sent work.
#[derive(Serialize, ToSchema)]
struct Readiness {
    /// Whether to send requests here.
    ready: bool,
    /// `ready`, `recovering`, `disk-full`, `poisoned` or `closing`.
    #[schema(example = "ready")]
    state: &'static str,
    /// Whether reads are answered.
    reads: bool,
    /// Whether writes are answered.
    writes: bool,
    /// What is going on, and what to do about it.
    detail: String,
}

/// Whether the process lives.
#[utoipa::path(
    get, path = "/livez", tag = "operations",
    responses((status = 200, description = "It lives", body = String, content_type = "text/plain")),
)]
pub async fn livez() -> Response {
    let mut response = "ok".into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the server can be sent work.
///
/// 503 while it recovers, when its disk cannot be trusted, and while it closes. A full disk leaves it ready, since
/// reads go on; the body says that writes do not.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Send requests here", body = Readiness),
        (status = 503, description = "Send them elsewhere or later", body = Readiness)),
)]
pub async fn readyz(State(app): State<App>) -> Response {
    let readiness = of_health(app.service.health());
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json(status, &readiness);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !readiness.ready {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1));
    }
    response
}

fn of_health(health: Health) -> Readiness {
    let neither = |state, detail| Readiness { ready: false, state, reads: false, writes: false, detail };
    match health {
        Health::Ready => {
            let detail = "reads and writes are answered".into();
            Readiness { ready: true, state: "ready", reads: true, writes: true, detail }
        }
        Health::DiskFull => {
            let detail = "the disk is full: reads go on, writes get 507 until there is room again".into();
            Readiness { ready: true, state: "disk-full", reads: true, writes: false, detail }
        }
        Health::Recovering => neither("recovering", "the journal is being replayed; try again shortly".into()),
        Health::Poisoned(why) => neither("poisoned", format!("the disk cannot be trusted and the server stops: {why}")),
        Health::Closing => neither("closing", "the server is shutting down".into()),
    }
}

/// What the server measures about itself, in the OpenMetrics text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "OpenMetrics text", body = String,
            content_type = "application/openmetrics-text"),
        (status = 500, description = "The metrics could not be written", body = ProblemJson,
            content_type = "application/problem+json")),
)]
pub async fn show_metrics(State(app): State<App>) -> Result<Response, Problem> {
    let text = metrics::render(&app.doors, &app.service)
        .map_err(|error| Problem::new(Kind::Internal, format!("the metrics could not be written: {error}")))?;
    let mut response = text.into_response();
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}
