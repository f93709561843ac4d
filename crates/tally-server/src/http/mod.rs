//! The HTTP front door: routes, and what every request passes on its way in and out.

mod address;
mod answer;
mod batch;
mod body;
mod corrections;
mod counters;
mod docs;
mod health;
mod idempotency;
mod listen;
mod listing;
mod origin;
mod problem;
mod rebinding;
mod reference;
mod verb;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tower::ServiceExt as _;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::metrics::{DoorMetrics, Stopwatch, Verb};
use crate::service::Service;
use counters::Direction;
use listen::Peer;
use problem::{Kind, Problem};

pub use listen::listen;
pub use rebinding::Hosts;

/// What every handler can reach.
#[derive(Clone)]
pub struct App {
    /// Counters.
    pub service: Arc<Service>,
    /// What every front door measures.
    pub doors: Arc<[Arc<DoorMetrics>]>,
    /// Memory for the bodies of batches.
    pub batch_room: Arc<body::BatchRoom>,
}

/// The front door: every route over one service.
pub struct Door {
    app: App,
    hosts: Hosts,
    router: Router,
    metrics: Arc<DoorMetrics>,
}

impl Door {
    /// Opens every route over `service`, to requests sent to one of `hosts`; `metrics` are this door's own, and among
    /// those of all `doors`.
    pub fn new(service: Arc<Service>, hosts: Hosts, metrics: Arc<DoorMetrics>, doors: Arc<[Arc<DoorMetrics>]>) -> Self {
        let app = App { service, doors, batch_room: Arc::default() };
        Door { router: router(app.clone()), app, hosts, metrics }
    }

    /// Answers one request: route, name the place of a problem, measure.
    async fn answer(&self, request: Request, peer: Peer) -> Response {
        let stopwatch = Stopwatch::start();
        let verb = verb::of(request.method(), request.uri());
        let address = request.uri().path_and_query().cloned();
        let mut response = match (self.admit(&request), verb) {
            (Err(problem), _) => problem.into_response(),
            // The hot path: what the router would find is known already, and finding it costs as much as counting.
            (Ok(()), Verb::Increment) => counters::add(&self.app, request, Direction::Up).await.into_response(),
            (Ok(()), Verb::Decrement) => counters::add(&self.app, request, Direction::Down).await.into_response(),
            (Ok(()), _) => self.route(request, peer).await,
        };
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let path = address.as_ref().map_or("", |address| address.path());
            response = placed(&problem, path, &response);
        }
        self.metrics.request(verb, response.status().as_u16(), &stopwatch);
        response
    }

    /// Whether the request may go on, whatever it asks for: what every path through the door begins with.
    fn admit(&self, request: &Request) -> Result<(), Problem> {
        self.hosts.admit(request.uri(), request.headers())?;
        origin::admit(request.method(), request.headers())
    }

    async fn route(&self, mut request: Request, peer: Peer) -> Response {
        request.extensions_mut().insert(peer);
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Writes a problem out with the path it happened at.
fn placed(problem: &Problem, path: &str, bare: &Response) -> Response {
    if problem.kind == Kind::Unreadable || problem.kind == Kind::Internal {
        tracing::error!(path, detail = problem.detail(), "a request failed");
    } else {
        tracing::debug!(path, kind = problem.kind.uri(), detail = problem.detail(), "a request was refused");
    }
    let mut response = problem.render(path);
    if let Some(allow) = bare.headers().get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow.clone());
    }
    response
}

fn router(app: App) -> Router {
    let (router, described) = OpenApiRouter::with_openapi(docs::Described::openapi())
        .routes(routes!(counters::increment))
        .routes(routes!(counters::decrement))
        .routes(routes!(batch::batch_increment))
        .routes(routes!(counters::read, corrections::set, corrections::delete))
        .routes(routes!(counters::exact))
        .routes(routes!(counters::stats))
        .routes(routes!(listing::counters))
        .routes(routes!(corrections::reset))
        .routes(routes!(corrections::adjust))
        .routes(routes!(corrections::ledger))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(health::show_metrics))
        .routes(routes!(docs::problems))
        .routes(routes!(docs::problem))
        .split_for_parts();
    // A counter may have this name as well.
    let named_like_the_batch = get(counters::read).put(corrections::set).delete(corrections::delete);
    router
        .route("/api/v1/counters/batch-increment", named_like_the_batch)
        .merge(docs::routes(described))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn nothing_here(request: Request<Body>) -> Problem {
    let path = request.uri().path();
    if let Some(rest) = path.strip_prefix(address::COUNTERS)
        && (rest.is_empty() || rest.starts_with('/'))
    {
        return Problem::new(Kind::InvalidKey, "the key is empty; a key has 1 to 512 bytes");
    }
    Problem::new(Kind::NotFound, "there is no such call; `/docs` shows those there are, and a `/` in a key is `%2F`")
}

async fn wrong_method(request: Request<Body>) -> Problem {
    let detail = format!("{} is not a method of this address; `Allow` names those there are", request.method());
    Problem::new(Kind::MethodNotAllowed, detail)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::Policies;
    use axum::http::StatusCode;
    use http_body_util::BodyExt;

    fn door() -> (Arc<Service>, Door) {
        let service = Arc::new(Service::new(Policies::default()));
        let metrics = DoorMetrics::new("http");
        (Arc::clone(&service), Door::new(service, Hosts::Any, Arc::clone(&metrics), [metrics].into()))
    }

    fn ask(door: &Door, method: &str, path: &str) -> (Response, serde_json::Value) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (parts, body) = door.answer(request, Peer::unknown()).await.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let json = serde_json::from_slice(&bytes).unwrap_or_default();
            (Response::from_parts(parts, Body::empty()), json)
        })
    }

    #[test]
    fn while_the_journal_is_replayed_every_call_is_asked_to_come_back() {
        let (_, door) = door();
        let calls = [
            ("POST", "/api/v1/counters/a/increment"),
            ("GET", "/api/v1/counters/a"),
            ("GET", "/api/v1/counters/a/stats"),
            ("GET", "/api/v1/counters/a/ledger"),
            ("GET", "/api/v1/counters"),
            ("DELETE", "/api/v1/counters/a"),
        ];
        for (method, path) in calls {
            let (response, json) = ask(&door, method, path);
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert_eq!(response.headers()[header::RETRY_AFTER], "1", "{path}");
            assert_eq!((&json["type"], &json["outcome"]), (&"/problems/recovering".into(), &"none".into()), "{path}");
        }
        assert_eq!(ask(&door, "GET", "/livez").0.status(), StatusCode::OK);
        assert_eq!(ask(&door, "GET", "/metrics").0.status(), StatusCode::OK);
        let (ready, json) = ask(&door, "GET", "/readyz");
        assert_eq!((ready.status(), &json["state"]), (StatusCode::SERVICE_UNAVAILABLE, &"recovering".into()));
    }

    #[test]
    fn a_server_that_closes_is_not_ready() {
        let (service, door) = door();
        service.begin_closing();
        let (ready, json) = ask(&door, "GET", "/readyz");
        assert_eq!((ready.status(), &json["state"]), (StatusCode::SERVICE_UNAVAILABLE, &"closing".into()));
    }

    #[test]
    fn limits_are_told_as_they_are() {
        let told = |kind: Kind, limit: usize| kind.meaning().contains(&limit.to_string());
        assert!(told(Kind::TooManyConnections, crate::limits::CONNECTIONS_MAX));
        assert!(told(Kind::BatchTooLarge, tally_core::limits::CALL_EVENTS_MAX));
    }

    #[test]
    fn every_kind_of_problem_has_a_slug_of_its_own() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.uri()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
    }
}
