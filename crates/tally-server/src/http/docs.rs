//! The documentation in the binary: `/openapi.json`, the page at `/docs`, and every problem type at `/problems`.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::Config;

use super::answer::json;
use super::openapi::{AnyProblems, Missing};
use super::problem::{Kind, Problem};

/// What the page may load: files of this server, and images within style sheets.
const CONTENT_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
);

/// The files of Swagger UI that the page loads.
const SWAGGER_FILES: [&str; 3] = ["swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png"];

/// The description and the page that shows it. The page loads nothing from other hosts.
pub fn pages(api: &OpenApi) -> Router {
    let mut described = Vec::new();
    // Writing plain data to memory cannot fail.
    if serde_json::to_writer(&mut described, api).is_err() {
        described.clear();
    }
    let described = Bytes::from(described);
    Router::new()
        // There is no dashboard yet, so a browser is sent to the documentation.
        .route("/", get(|| async { Redirect::to("/docs/") }))
        .route("/docs", get(|| async { Redirect::to("/docs/") }))
        .route("/docs/", get(|| async { page() }))
        .route("/docs/{file}", get(|Path(name): Path<String>| async move { file(&name) }))
        .route("/openapi.json", get(|| async { with_type("application/json", described) }))
}

fn page() -> Response {
    let mut response = with_type("text/html; charset=utf-8", include_str!("docs/index.html"));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    response
}

fn file(name: &str) -> Result<Response, Problem> {
    match name {
        "page.js" => return Ok(with_type("text/javascript; charset=utf-8", include_str!("docs/page.js"))),
        "page.css" => return Ok(with_type("text/css; charset=utf-8", include_str!("docs/page.css"))),
        _ => {}
    }
    let found = if SWAGGER_FILES.contains(&name) {
        utoipa_swagger_ui::serve(name, Arc::new(Config::default()))
            .map_err(|error| Problem::new(Kind::Internal, format!("a file of the page could not be read: {error}")))?
    } else {
        None
    };
    let found = found.ok_or_else(|| Problem::new(Kind::NotFound, "no such file; the page is `/docs/`"))?;
    let mut response = found.bytes.into_response();
    if let Ok(content_type) = HeaderValue::from_str(&found.content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    Ok(response)
}

fn with_type(content_type: &'static str, body: impl Into<Bytes>) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body.into()).into_response()
}

/// A type of problem.
#[derive(Serialize, ToSchema)]
struct ProblemKind {
    /// The `type` of such problems.
    #[schema(example = "/problems/bound")]
    r#type: &'static str,
    /// A short summary.
    #[schema(example = "The value would cross its floor or ceiling")]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 409)]
    status: u16,
    /// What happened.
    #[schema(example = "The change would have crossed the bound it was sent with. Nothing changed.")]
    meaning: &'static str,
    /// What to do about it.
    #[schema(example = "Use a smaller amount, or apply the part that fits.")]
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
    responses((status = 200, description = "Every type", body = ProblemKinds), AnyProblems),
)]
pub async fn problems() -> Response {
    let problems = Kind::ALL.iter().copied().map(ProblemKind::new).collect();
    json(StatusCode::OK, &ProblemKinds { problems })
}

/// Explain a type of problem and what to do about it.
#[utoipa::path(
    get, path = "/problems/{slug}", tag = "operations",
    params(("slug" = String, Path, description = "The last part of the problem's `type`", example = "bound")),
    responses((status = 200, description = "The type", body = ProblemKind), AnyProblems, Missing),
)]
pub async fn problem(request: Request) -> Result<Response, Problem> {
    let path = request.uri().path();
    let kind = Kind::ALL.iter().find(|kind| kind.uri() == path);
    let kind = kind
        .ok_or_else(|| Problem::new(Kind::NotFound, "there is no such type of problem; `/problems` lists them all"))?;
    Ok(json(StatusCode::OK, &ProblemKind::new(*kind)))
}
