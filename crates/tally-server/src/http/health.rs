//! Health and metrics, for operators.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tally_core::surface::Health;
use utoipa::ToSchema;

use super::App;
use super::answer::json;
use super::openapi::{AnyProblems, Failed};
use super::problem::{Kind, Problem};
use crate::metrics::{self, TextFormat};

/// Whether the server accepts requests.
#[derive(Serialize, ToSchema)]
struct Readiness {
    /// Whether to send requests to this server.
    #[schema(example = true)]
    ready: bool,
    /// `ready`, `degraded`, `recovering`, `disk-full`, `poisoned` or `closing`.
    #[schema(example = "ready")]
    state: &'static str,
    /// Whether reads are answered.
    #[schema(example = true)]
    reads: bool,
    /// Whether writes are answered.
    #[schema(example = true)]
    writes: bool,
    /// An explanation, and what to do.
    #[schema(example = "reads and writes work")]
    detail: String,
}

/// Whether the process is alive.
#[utoipa::path(
    get, path = "/livez", tag = "operations",
    responses((status = 200, description = "Alive", body = String, content_type = "text/plain", example = "ok"), AnyProblems),
)]
pub async fn livez() -> Response {
    let mut response = "ok".into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the server accepts requests.
///
/// 503 while it is recovering or closing, and when its disk cannot be trusted. With a full disk it stays ready, because
/// reads still work; `writes` is then false. A node of a cluster is `degraded` while Kafka or workers do not answer, and
/// a single server while it has no file descriptors for a checkpoint.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready", body = Readiness), AnyProblems),
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
        // Still ready: other nodes need the same services and would answer no better.
        Health::Degraded { writes, why } => {
            Readiness { ready: true, state: "degraded", reads: true, writes, detail: why }
        }
        Health::Recovering => neither("recovering", "the server is still starting; retry shortly".into()),
        Health::Poisoned(why) => {
            neither("poisoned", format!("the disk cannot be trusted and the server is stopping: {why}"))
        }
        Health::Closing => neither("closing", "the server is shutting down".into()),
    }
}

/// Metrics for Prometheus.
///
/// In the text format of Prometheus, or as OpenMetrics if `Accept` asks for `application/openmetrics-text`.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, description = "Every metric", content(
            (String = "text/plain", example = "tally_counters 1.0"),
            (String = "application/openmetrics-text", example = "tally_counters 1.0"),
        )), AnyProblems, Failed),
)]
pub async fn show_metrics(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let format = TextFormat::accepted(accept);
    let text = metrics::render(&app.protocols, &app.service, format)
        .map_err(|error| Problem::new(Kind::Internal, format!("the metrics could not be written: {error}")))?;
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}
