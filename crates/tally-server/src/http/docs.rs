//! The documentation in the binary: `/openapi.json`, the page at `/docs`, and every problem type at `/problems`.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{Redirect, Response};
use axum::routing::get;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::answer::json;
use super::problem::{Kind, Problem, ProblemJson};

/// The description and the page that shows it. The page loads nothing from other hosts.
pub fn pages(api: OpenApi) -> Router {
    // The badge of the online validator would send the description to a third party.
    let config = Config::default().validator_url("none").try_it_out_enabled(true);
    let docs: Router = SwaggerUi::new("/docs").url("/openapi.json", api).config(config).into();
    // There is no dashboard yet, so a browser is sent to the documentation.
    docs.route("/", get(|| async { Redirect::to("/docs/") }))
}

/// A type of problem.
#[derive(Serialize, ToSchema)]
struct ProblemKind {
    /// The `type` of such problems.
    #[schema(example = "/problems/bound")]
    r#type: &'static str,
    /// A short summary.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened.
    meaning: &'static str,
    /// What to do about it.
    next: &'static str,
}

impl ProblemKind {
    fn new(kind: Kind) -> Self {
        ProblemKind {
            r#type: kind.uri(),
            title: kind.title(),
            status: kind.status().as_u16(),
            meaning: kind.meaning(),
            next: kind.next(),
        }
    }
}

/// Every type of problem.
#[derive(Serialize, ToSchema)]
struct ProblemKinds {
    /// In no particular order.
    problems: Vec<ProblemKind>,
}

/// List every type of problem.
#[utoipa::path(
    get, path = "/problems", tag = "operations",
    responses((status = 200, description = "Every type", body = ProblemKinds)),
)]
pub async fn problems() -> Response {
    let problems = Kind::ALL.iter().copied().map(ProblemKind::new).collect();
    json(StatusCode::OK, &ProblemKinds { problems })
}

/// Explain a type of problem and what to do about it.
#[utoipa::path(
    get, path = "/problems/{slug}", tag = "operations",
    params(("slug" = String, Path, description = "The last part of the problem's `type`")),
    responses((status = 200, description = "The type", body = ProblemKind),
        (status = 404, description = "There is no such type", body = ProblemJson,
            content_type = "application/problem+json")),
)]
pub async fn problem(request: Request) -> Result<Response, Problem> {
    let path = request.uri().path();
    let kind = Kind::ALL.iter().find(|kind| kind.uri() == path);
    let kind = kind
        .ok_or_else(|| Problem::new(Kind::NotFound, "there is no such type of problem; `/problems` lists them all"))?;
    Ok(json(StatusCode::OK, &ProblemKind::new(*kind)))
}
