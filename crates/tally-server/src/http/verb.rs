//! Which verb a request is counted under, from its method and path alone.

use axum::http::{Method, Uri};

use crate::metrics::Verb;

/// The verb of a request. Costs no allocation: it runs on every request, before routing.
pub fn of(method: &Method, uri: &Uri) -> Verb {
    let Some(rest) = uri.path().strip_prefix("/api/v1/counters") else {
        return Verb::Other;
    };
    let Some(rest) = rest.strip_prefix('/') else {
        return if rest.is_empty() && method == Method::GET { of_listing(uri) } else { Verb::Other };
    };
    match (rest.split_once('/'), method.as_str()) {
        (Some((_, "increment")), "POST") => Verb::Increment,
        (Some((_, "decrement")), "POST") => Verb::Decrement,
        (Some((_, "reset")), "POST") => Verb::Reset,
        (Some((_, "adjust")), "POST") => Verb::Adjust,
        (Some((_, "exact")), "GET") => Verb::Exact,
        (Some((_, "stats")), "GET") => Verb::Stats,
        (Some((_, "ledger")), "GET") => Verb::Ledger,
        (None, "GET") => Verb::Read,
        (None, "PUT") => Verb::Set,
        (None, "DELETE") => Verb::Delete,
        (None, "POST") if rest == "batch-increment" => Verb::BatchIncrement,
        _ => Verb::Other,
    }
}

fn names_keys(pair: &str) -> bool {
    pair.starts_with("keys=") || pair.starts_with("key=")
}

fn of_listing(uri: &Uri) -> Verb {
    let many = uri.query().is_some_and(|query| query.split('&').any(names_keys));
    if many { Verb::Many } else { Verb::List }
}
