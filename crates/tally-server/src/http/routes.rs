//! Every route, listed once: a handler and the verb its requests are counted under.
//!
//! Method and path are written at the handler, in its `#[utoipa::path]`. Dispatch, the OpenAPI description and the
//! metrics all follow from [`all`], so none of them can have a route that another lacks.

use std::pin::Pin;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse as _, Response};
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{Components, OpenApi};
use utoipa_axum::router::UtoipaMethodRouter;
use utoipa_axum::routes;

use super::problem::{Kind, Problem};
use super::{App, backup, batch, corrections, counters, docs, health, listing, openapi, transfer};
use crate::metrics::Verb;

/// A handler with its description.
macro_rules! route {
    ($($handler:tt)+) => { (routes!($($handler)+), boxed($($handler)+)) };
}

/// Every route. To add one, write its handler and list it here.
pub fn all() -> Routes {
    Routes::new()
        .add(Verb::Increment, route!(counters::increment))
        .add(Verb::Decrement, route!(counters::decrement))
        .add(Verb::BatchIncrement, route!(batch::batch_increment))
        .add(Verb::Read, route!(counters::read))
        .add(Verb::Set, route!(corrections::set))
        .add(Verb::Delete, route!(corrections::delete))
        .add(Verb::Exact, route!(counters::exact))
        .add(Verb::Stats, route!(counters::stats))
        .add_by_uri(listing::verb, route!(listing::counters))
        .add(Verb::Reset, route!(corrections::reset))
        .add(Verb::Adjust, route!(corrections::adjust))
        .add(Verb::Ledger, route!(corrections::ledger))
        .add(Verb::Export, route!(transfer::export))
        .add(Verb::Import, route!(transfer::import))
        .add(Verb::Backup, route!(backup::backup))
        .add(Verb::Other, route!(health::livez))
        .add(Verb::Other, route!(health::readyz))
        .add(Verb::Other, route!(health::show_metrics))
        .add(Verb::Other, route!(docs::problems))
        .add(Verb::Other, route!(docs::problem))
}

/// The routes, before they can be looked up.
pub struct Routes {
    routes: Vec<Route>,
    described: OpenApi,
}

/// One method of one path.
struct Route {
    method: Method,
    /// A segment in braces matches any segment that is not empty.
    template: String,
    verb: VerbOf,
    handler: BoxedHandler,
}

enum VerbOf {
    Always(Verb),
    Uri(fn(&Uri) -> Verb),
}

/// Answers requests. Not a `MethodRouter`, which would be cloned for each request, with all its methods.
pub type BoxedHandler = Box<dyn Fn(App, Request) -> Answering + Send + Sync>;
type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

fn boxed<H: Handler<T, App, Future = Answering> + Sync, T: 'static>(handler: H) -> BoxedHandler {
    Box::new(move |app, request| handler.clone().call(request, app))
}

impl Routes {
    fn new() -> Self {
        Routes { routes: Vec::new(), described: openapi::ApiDescription::openapi() }
    }

    fn add(self, verb: Verb, route: (UtoipaMethodRouter<App>, BoxedHandler)) -> Self {
        self.add_with(VerbOf::Always(verb), route)
    }

    /// For a route that is counted under several verbs.
    fn add_by_uri(self, verb: fn(&Uri) -> Verb, route: (UtoipaMethodRouter<App>, BoxedHandler)) -> Self {
        self.add_with(VerbOf::Uri(verb), route)
    }

    fn add_with(mut self, verb: VerbOf, (described, handler): (UtoipaMethodRouter<App>, BoxedHandler)) -> Self {
        let (schemas, paths, _) = described;
        // A handler has one method of one path.
        if let Some((template, item)) = paths.paths.into_iter().next() {
            if let Some((method, _)) = operations(&item).next() {
                self.routes.push(Route { method, template: template.clone(), verb, handler });
            }
            match self.described.paths.paths.get_mut(&template) {
                Some(described) => described.merge_operations(item),
                None => drop(self.described.paths.paths.insert(template, item)),
            }
        }
        self.described.components.get_or_insert_with(Components::new).schemas.extend(schemas);
        self
    }

    /// The OpenAPI description.
    pub fn described(&self) -> OpenApi {
        let mut described = self.described.clone();
        openapi::finish(&mut described);
        described
    }
}

/// Finds the route of a request.
pub struct Table {
    routes: Vec<Route>,
    /// The paths of each method, with indexes of routes. A literal segment goes before a parameter: `batch-increment` is
    /// also a key, for other methods.
    methods: Vec<(Method, matchit::Router<usize>)>,
}

/// The result of a route lookup.
pub enum RouteMatch<'a> {
    /// A handler.
    Handler(Verb, &'a BoxedHandler),
    /// A path that has other methods; they are listed for `Allow`.
    OtherMethods(String),
    /// No path of the table.
    Nothing,
}

impl Table {
    /// All of these routes.
    pub fn new(Routes { routes, .. }: Routes) -> Self {
        let mut methods: Vec<(Method, matchit::Router<usize>)> = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            let known = methods.iter().position(|(method, _)| *method == route.method);
            let known = known.unwrap_or_else(|| {
                methods.push((route.method.clone(), matchit::Router::new()));
                methods.len() - 1
            });
            // A test finds every route, so none is left out.
            if let Some((_, paths)) = methods.get_mut(known)
                && let Err(error) = paths.insert(&route.template, index)
            {
                tracing::error!(path = route.template, %error, "a route cannot be reached");
            }
        }
        Table { routes, methods }
    }

    /// Finds the route of a request. Runs on every request.
    pub fn find(&self, method: &Method, uri: &Uri) -> RouteMatch<'_> {
        // Whatever answers GET answers HEAD.
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        let path = uri.path();
        let paths = self.methods.iter().find(|(method, _)| method == wanted);
        match paths.and_then(|(_, paths)| self.routes.get(index_of(paths, path)?)) {
            Some(route) => RouteMatch::Handler(route.verb.of(uri), &route.handler),
            None => self.other_methods(path),
        }
    }

    fn other_methods(&self, path: &str) -> RouteMatch<'_> {
        let mut allow = Vec::new();
        for (method, _) in self.methods.iter().filter(|(_, paths)| index_of(paths, path).is_some()) {
            allow.push(method.as_str());
            if *method == Method::GET {
                allow.push("HEAD");
            }
        }
        if allow.is_empty() { RouteMatch::Nothing } else { RouteMatch::OtherMethods(allow.join(",")) }
    }
}

/// The route of a path. The library also matches a parameter in the middle of a path with an empty segment.
fn index_of(paths: &matchit::Router<usize>, path: &str) -> Option<usize> {
    let found = paths.at(path).ok()?;
    found.params.iter().all(|(_, segment)| !segment.is_empty()).then_some(*found.value)
}

impl VerbOf {
    fn of(&self, uri: &Uri) -> Verb {
        match self {
            VerbOf::Always(verb) => *verb,
            VerbOf::Uri(verb) => verb(uri),
        }
    }
}

/// The answer to a method that a path does not have; `allow` lists those it has.
pub fn wrong_method(method: &Method, allow: &str) -> Response {
    let mut response = method_not_allowed(method).into_response();
    if let Ok(allow) = HeaderValue::from_str(allow) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// The problem with a method that a path does not have.
pub fn method_not_allowed(method: &Method) -> Problem {
    let detail = format!("{method} is not a method of this path; `Allow` lists the methods it has");
    Problem::new(Kind::MethodNotAllowed, detail)
}

/// The operations of a path.
fn operations(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    let all = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::PATCH, &item.patch),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::BTreeSet;

    use super::*;

    fn table() -> Table {
        Table::new(all())
    }

    fn verb(table: &Table, method: &Method, uri: &str) -> Option<Verb> {
        match table.find(method, &uri.parse().unwrap()) {
            RouteMatch::Handler(verb, _) => Some(verb),
            _ => None,
        }
    }

    #[test]
    fn what_is_described_is_what_can_be_called_and_nothing_is_listed_twice() {
        let routes = all();
        let described = routes.described();
        let described: BTreeSet<_> = described
            .paths
            .paths
            .iter()
            .flat_map(|(template, item)| operations(item).map(|(method, _)| (method.to_string(), template.clone())))
            .collect();
        let called: Vec<_> =
            routes.routes.iter().map(|route| (route.method.to_string(), route.template.clone())).collect();
        assert_eq!(called.iter().cloned().collect::<BTreeSet<_>>(), described);
        assert_eq!(called.len(), described.len());
    }

    #[test]
    fn every_route_is_found_by_its_path() {
        let table = table();
        for (index, route) in table.routes.iter().enumerate() {
            let (_, paths) = table.methods.iter().find(|(method, _)| *method == route.method).unwrap();
            assert_eq!(paths.at(&route.template.replace(['{', '}'], "")).unwrap().value, &index, "{}", route.template);
        }
    }

    #[test]
    fn every_described_call_on_counters_has_a_verb_of_its_own() {
        let table = table();
        let mut seen = Vec::new();
        for route in table.routes.iter().filter(|route| route.template.starts_with("/api/")) {
            let path = route.template.replace("{key}", "k");
            let verb = verb(&table, &route.method, &path).unwrap();
            assert!(verb != Verb::Other && !seen.contains(&verb), "{verb:?} {path}");
            seen.push(verb);
        }
        assert!(seen.len() > 10);
    }

    #[test]
    fn a_literal_segment_goes_before_a_parameter_for_its_own_method_only() {
        let table = table();
        let path = "/api/v1/counters/batch-increment";
        assert_eq!(verb(&table, &Method::POST, path), Some(Verb::BatchIncrement));
        assert_eq!(verb(&table, &Method::GET, path), Some(Verb::Read));
        assert_eq!(verb(&table, &Method::HEAD, path), Some(Verb::Read));
        match table.find(&Method::PATCH, &path.parse().unwrap()) {
            RouteMatch::OtherMethods(allow) => assert_eq!(allow, "POST,GET,HEAD,PUT,DELETE"),
            _ => panic!("PATCH is not a method of a counter"),
        }
        for path in ["/api/v1/counters/", "/api/v1/counters//exact", "/api/v1/counters/a/b/c", "/livez/"] {
            assert!(matches!(table.find(&Method::GET, &path.parse().unwrap()), RouteMatch::Nothing), "{path}");
        }
        assert_eq!(verb(&table, &Method::GET, "/api/v1/counters?keys=a"), Some(Verb::Many));
        assert_eq!(verb(&table, &Method::GET, "/api/v1/counters?prefix=a"), Some(Verb::List));
    }
}
