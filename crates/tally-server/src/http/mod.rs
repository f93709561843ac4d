//! The HTTP protocol: checks, routes, answers and measures every request.

mod address;
pub mod answer;
mod answer_room;
mod backup;
mod batch;
mod body;
mod browsers;
mod corrections;
mod counters;
mod docs;
mod freshness;
mod health;
mod idempotency;
mod listen;
mod listing;
mod openapi;
mod parse_errors;
mod problem;
mod routes;
mod transfer;
mod transfer_items;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use tower::ServiceExt as _;

use crate::admission::{Action, Caller};
use crate::metrics::{ProtocolMetrics, Stopwatch, Verb};
use crate::service::Service;
use address::KeyAccess;
use counters::Direction;
use listen::Peer;
use problem::{Kind, Problem};
use routes::RouteMatch;

pub use browsers::Hosts;
pub use listen::listen;

/// State that all handlers share.
#[derive(Clone)]
pub struct App {
    /// Counters.
    pub service: Arc<Service>,
    /// The metrics of every protocol.
    pub protocols: Arc<[Arc<ProtocolMetrics>]>,
    /// Memory for the bodies of batches.
    pub batch_room: Arc<body::BatchBudget>,
    /// Memory for large answers.
    pub answer_room: Arc<answer_room::AnswerBudget>,
}

impl App {
    /// Access to keys for this caller and action.
    fn access<'a>(&'a self, caller: &'a Caller, action: Action) -> KeyAccess<'a> {
        KeyAccess { admission: self.service.admission(), caller, action }
    }
}

/// Answers HTTP requests over one service.
pub struct Server {
    app: App,
    hosts: Hosts,
    routes: routes::Table,
    /// The pages at `/docs`, and the 404 of any other path that is not a route.
    docs: Router,
    metrics: Arc<ProtocolMetrics>,
}

impl Server {
    /// Serves requests that were sent to one of `hosts`. `metrics` are those of HTTP, and among those of all
    /// `protocols`.
    pub fn new(
        service: Arc<Service>,
        hosts: Hosts,
        metrics: Arc<ProtocolMetrics>,
        protocols: Arc<[Arc<ProtocolMetrics>]>,
    ) -> Self {
        let app = App { service, protocols, batch_room: Arc::default(), answer_room: Arc::default() };
        let routes = routes::all();
        let docs = docs::pages(&routes.described())
            .fallback(not_found)
            .method_not_allowed_fallback(async |request: Request| routes::method_not_allowed(request.method()));
        Server { routes: routes::Table::new(routes), docs, app, hosts, metrics }
    }

    /// Answers one request: routes it, adds its path to a problem, and measures it.
    async fn answer(&self, request: Request, peer: Peer) -> Response {
        let stopwatch = Stopwatch::start();
        let found = self.routes.find(request.method(), request.uri());
        let verb = if let RouteMatch::Handler(verb, _) = found { verb } else { Verb::Other };
        let address = request.uri().path_and_query().cloned();
        let mut response = match self.admit(&request) {
            Ok(()) => self.dispatch(found, request, peer).await,
            Err(problem) => problem.into_response(),
        };
        response = self.app.answer_room.admit(response);
        if let Some(problem) = response.extensions_mut().remove::<Problem>() {
            let path = address.as_ref().map_or("", |address| address.path());
            response = render(&problem, path, &response);
        }
        self.metrics.request(verb, response.status().as_u16(), &stopwatch);
        response
    }

    /// Checks that apply to every request, whatever its route.
    fn admit(&self, request: &Request) -> Result<(), Problem> {
        self.hosts.admit(request.version(), request.uri(), request.headers())?;
        browsers::admit_origin(request.method(), request.headers())
    }

    async fn dispatch(&self, found: RouteMatch<'_>, mut request: Request, peer: Peer) -> Response {
        match found {
            // The hot paths, without boxing their futures.
            RouteMatch::Handler(Verb::Increment, _) => {
                counters::add(&self.app, request, Direction::Up, &peer.caller()).await.into_response()
            }
            RouteMatch::Handler(Verb::Decrement, _) => {
                counters::add(&self.app, request, Direction::Down, &peer.caller()).await.into_response()
            }
            RouteMatch::Handler(Verb::Read, _) => {
                counters::read_by_policy(&self.app, request.uri(), &peer.caller()).await.into_response()
            }
            RouteMatch::Handler(_, handler) => {
                request.extensions_mut().insert(peer);
                handler(self.app.clone(), request).await
            }
            RouteMatch::OtherMethods(allow) => routes::wrong_method(request.method(), &allow),
            RouteMatch::Nothing => match self.docs.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }
}

/// Renders a problem with the path of its request. `bare` is the response that carried it.
fn render(problem: &Problem, path: &str, bare: &Response) -> Response {
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

async fn not_found(request: Request<Body>) -> Problem {
    let path = request.uri().path();
    if let Some(rest) = path.strip_prefix(address::COUNTERS)
        && (rest.is_empty() || rest.starts_with('/'))
    {
        return Problem::new(Kind::InvalidKey, "the key is empty; a key has 1 to 512 bytes");
    }
    Problem::new(Kind::NotFound, "no such path; `/docs` lists every call; a `/` in a key is written `%2F`")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::Policies;
    use axum::http::StatusCode;
    use http_body_util::BodyExt;

    fn server() -> (Arc<Service>, Server) {
        let service = Arc::new(Service::new(Policies::default()));
        let metrics = ProtocolMetrics::new("http");
        (Arc::clone(&service), Server::new(service, Hosts::Any, Arc::clone(&metrics), [metrics].into()))
    }

    fn ask(server: &Server, method: &str, path: &str) -> (Response, serde_json::Value) {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        let request = request.body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (parts, body) = server.answer(request, Peer::unknown()).await.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let json = serde_json::from_slice(&bytes).unwrap_or_default();
            (Response::from_parts(parts, Body::empty()), json)
        })
    }

    #[test]
    fn while_the_journal_is_replayed_every_call_is_answered_503() {
        let (_, server) = server();
        let calls = [
            ("POST", "/api/v1/counters/a/increment"),
            ("GET", "/api/v1/counters/a"),
            ("GET", "/api/v1/counters/a/stats"),
            ("GET", "/api/v1/counters/a/ledger"),
            ("GET", "/api/v1/counters"),
            ("DELETE", "/api/v1/counters/a"),
        ];
        for (method, path) in calls {
            let (response, json) = ask(&server, method, path);
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert_eq!(response.headers()[header::RETRY_AFTER], "1", "{path}");
            assert_eq!((&json["type"], &json["outcome"]), (&"/problems/recovering".into(), &"none".into()), "{path}");
        }
        assert_eq!(ask(&server, "GET", "/livez").0.status(), StatusCode::OK);
        assert_eq!(ask(&server, "GET", "/metrics").0.status(), StatusCode::OK);
        let (ready, json) = ask(&server, "GET", "/readyz");
        assert_eq!((ready.status(), &json["state"]), (StatusCode::SERVICE_UNAVAILABLE, &"recovering".into()));
    }

    #[test]
    fn a_closing_server_is_not_ready() {
        let (service, server) = server();
        service.begin_closing();
        let (ready, json) = ask(&server, "GET", "/readyz");
        assert_eq!((ready.status(), &json["state"]), (StatusCode::SERVICE_UNAVAILABLE, &"closing".into()));
    }

    #[test]
    fn documented_limits_are_the_real_ones() {
        let says = |kind: Kind, limit: usize| kind.meaning().contains(&limit.to_string());
        assert!(says(Kind::TooManyConnections, crate::limits::CONNECTIONS_MAX));
        assert!(says(Kind::BatchTooLarge, tally_core::limits::CALL_EVENTS_MAX));
        assert!(says(Kind::HeadTooLarge, crate::limits::HEAD_BYTES_MAX));
        assert!(says(Kind::HeadTooLarge, crate::limits::HEADERS_MAX));
    }

    #[test]
    fn problem_slugs_are_unique() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.uri()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
    }
}
