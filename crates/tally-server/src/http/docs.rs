//! The documentation the binary carries: OpenAPI at `/openapi.json`, and a page at `/docs` that works offline.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{Redirect, Response};
use axum::routing::get;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::App;
use super::answer::{WriteAnswer, json};
use super::problem::{Kind, Problem, ProblemJson};
use super::reference;

/// What stands above every call.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tally",
        description = "A durable counter service. Integers are 64-bit: read them with a parser that keeps them whole. \
            Keys are percent-encoded in paths. Errors are `application/problem+json` (RFC 9457) with a stable \
            `type`; `/problems` lists them all.",
    ),
    // Named by the answers that `reference` describes for many calls at once.
    components(schemas(ProblemJson, WriteAnswer)),
    tags(
        (name = "counters", description = "Count and read"),
        (name = "corrections", description = "Set right what was counted wrong, on the record"),
        (name = "operations", description = "Keep the server running"),
    ),
)]
pub struct Described;

/// The page and the description it shows. Nothing on it is loaded from elsewhere.
pub fn routes(mut api: utoipa::openapi::OpenApi) -> Router<App> {
    reference::finish(&mut api);
    // The badge of an online validator would send the description to a stranger.
    let config = Config::default().validator_url("none").try_it_out_enabled(true);
    let docs: Router<App> = SwaggerUi::new("/docs").url("/openapi.json", api).config(config).into();
    // Until there is a dashboard, whoever opens the address in a browser is shown what can be done here.
    docs.route("/", get(|| async { Redirect::to("/docs/") }))
}

/// What a kind of problem means.
#[derive(Serialize, ToSchema)]
struct ProblemKind {
    /// The `type` of such problems.
    #[schema(example = "/problems/bound")]
    r#type: &'static str,
    /// What it means, in a few words.
    title: &'static str,
    /// The status it is answered with.
    status: u16,
    /// What it means, in a sentence.
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

/// Every kind of problem there is.
#[derive(Serialize, ToSchema)]
struct ProblemKinds {
    /// In no particular order.
    problems: Vec<ProblemKind>,
}

/// Every `type` of problem there is.
#[utoipa::path(
    get, path = "/problems", tag = "operations",
    responses((status = 200, description = "All of them", body = ProblemKinds)),
)]
pub async fn problems() -> Response {
    let problems = Kind::ALL.iter().copied().map(ProblemKind::new).collect();
    json(StatusCode::OK, &ProblemKinds { problems })
}

/// What a `type` of problem means, and what to do about it.
#[utoipa::path(
    get, path = "/problems/{slug}", tag = "operations",
    params(("slug" = String, Path, description = "The last part of the problem's `type`")),
    responses((status = 200, description = "What it means", body = ProblemKind),
        (status = 404, description = "There is no such kind", body = ProblemJson,
            content_type = "application/problem+json")),
)]
pub async fn problem(request: Request) -> Result<Response, Problem> {
    let path = request.uri().path();
    let kind = Kind::ALL.iter().find(|kind| kind.uri() == path);
    let kind =
        kind.ok_or_else(|| Problem::new(Kind::NotFound, "there is no such kind of problem; `/problems` lists them"))?;
    Ok(json(StatusCode::OK, &ProblemKind::new(*kind)))
}
