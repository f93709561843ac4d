//! The documentation the binary carries: OpenAPI at `/openapi.json`, and a page at `/docs` that works offline.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::App;
use super::answer::json;
use super::problem::{Kind, Problem, ProblemJson};

/// What stands above every call.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tally",
        description = "A durable counter service. Integers are 64-bit: read them with a parser that keeps them whole. \
            Keys are percent-encoded in paths. Errors are `application/problem+json` (RFC 9457) with a stable `type`.",
    ),
    tags(
        (name = "counters", description = "Count and read"),
        (name = "corrections", description = "Set right what was counted wrong, on the record"),
        (name = "operations", description = "Keep the server running"),
    ),
)]
pub struct Described;

/// The page and the description it shows. Nothing on it is loaded from elsewhere.
pub fn routes(api: utoipa::openapi::OpenApi) -> Router<App> {
    // The badge of an online validator would send the description to a stranger.
    let config = Config::default().validator_url("none").try_it_out_enabled(true);
    SwaggerUi::new("/docs").url("/openapi.json", api).config(config).into()
}

/// What a kind of problem means.
#[derive(Serialize, ToSchema)]
struct ProblemKind {
    /// The `type` of such problems.
    r#type: &'static str,
    /// What it means, in a few words.
    title: &'static str,
    /// The status it is answered with.
    status: u16,
}

/// What a `type` of problem means.
#[utoipa::path(
    get, path = "/problems/{slug}", tag = "operations",
    params(("slug" = String, Path, description = "The last part of the problem's `type`")),
    responses((status = 200, body = ProblemKind),
        (status = 404, body = ProblemJson, content_type = "application/problem+json")),
)]
pub async fn problem(request: Request) -> Result<Response, Problem> {
    let path = request.uri().path();
    let kind = Kind::ALL.iter().find(|kind| kind.uri() == path);
    let kind = kind.ok_or_else(|| Problem::new(Kind::NotFound, "there is no such kind of problem"))?;
    let kind = ProblemKind { r#type: kind.uri(), title: kind.title(), status: kind.status().as_u16() };
    Ok(json(StatusCode::OK, &kind))
}
