//! Health and metrics, for operators.

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

/// Whether the server accepts requests.
#[derive(Serialize, ToSchema)]
struct Readiness {
    /// Whether to send requests to this server.
    ready: bool,
    /// `ready`, `degraded`, `recovering`, `disk-full`, `poisoned` or `closing`.
    #[schema(example = "ready")]
    state: &'static str,
    /// Whether reads are answered.
    reads: bool,
    /// Whether writes are answered.
    writes: bool,
    /// An explanation, and what to do.
    detail: String,
}

/// Whether the process is alive.
#[utoipa::path(
    get, path = "/livez", tag = "operations",
    responses((status = 200, description = "Alive", body = String, content_type = "text/plain")),
)]
pub async fn livez() -> Response {
    let mut response = "ok".into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the server accepts requests.
///
/// 503 while it is recovering or closing, and when its disk cannot be trusted. With a full disk it stays ready, because
/// reads still work; `writes` is then false. A node of a cluster is `degraded` while Kafka or workers do not answer.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready", body = Readiness)),
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
            let detail = "reads and writes work".into();
            Readiness { ready: true, state: "ready", reads: true, writes: true, detail }
        }
        Health::DiskFull => {
            let detail = "the disk is full: reads work, writes get 507 until there is space again".into();
            Readiness { ready: true, state: "disk-full", reads: true, writes: false, detail }
        }
        // Other nodes would answer no better: they need the same services.
        Health::Degraded { writes, why } => {
            Readiness { ready: true, state: "degraded", reads: true, writes, detail: why }
        }
        Health::Recovering => neither("recovering", "the journal is being replayed; retry shortly".into()),
        Health::Poisoned(why) => {
            neither("poisoned", format!("the disk cannot be trusted and the server is stopping: {why}"))
        }
        Health::Closing => neither("closing", "the server is shutting down".into()),
    }
}

/// Metrics in the OpenMetrics text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "OpenMetrics text", body = String,
            content_type = "application/openmetrics-text"),
        (status = 500, description = "The metrics could not be written", body = ProblemJson,
            content_type = "application/problem+json")),
)]
pub async fn show_metrics(State(app): State<App>) -> Result<Response, Problem> {
    let text = metrics::render(&app.protocols, &app.service)
        .map_err(|error| Problem::new(Kind::Internal, format!("the metrics could not be written: {error}")))?;
    let mut response = text.into_response();
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}
