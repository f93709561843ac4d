//! Reads many counters in one call: those named, or a listing by prefix, page by page.

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Serialize;
use tally_core::key::Key;
use tally_core::reading::Reading;
use tally_core::surface::PageRequest;
use utoipa::ToSchema;

use super::address::Query;
use super::answer::{ReadAnswer, json};
use super::answer_room::{page_bytes_max, readings_bytes_max};
use super::listen::Peer;
use super::openapi::{FreshnessQuery, ListingQuery, ReadProblems};
use super::problem::{Kind, Problem};
use super::{App, freshness};
use crate::admission::{self, Action, Caller, PAGE_LIMITS};
use crate::metrics::Verb;
use crate::service::Latest;

const PARAMETERS: [&str; 7] = ["keys", "key", "prefix", "limit", "cursor", "token", "max_staleness_ms"];

/// Counters, in the order of the request or in key order.
#[derive(Serialize, ToSchema)]
struct CountersAnswer<'a> {
    /// One reading per counter.
    counters: Vec<ReadAnswer<'a>>,
    /// `cursor` of the next page; `null` on the last page.
    #[schema(required, example = json!(null))]
    next_cursor: Option<String>,
}

/// Read many counters, or list them.
///
/// `keys` reads the counters named, in that order; they are separated by commas, and a comma within a key is `%2C`.
/// `key`, repeated for each counter, does the same, and a comma is part of the key however it is encoded. Without either,
/// counters are listed by `prefix` in key order, page by page; a listing takes neither `token` nor `max_staleness_ms`. A
/// key that is not UTF-8 is listed with `key: null` and its bytes in `key_hex`.
#[utoipa::path(
    get, path = "/api/v1/counters", tag = "counters",
    params(ListingQuery, FreshnessQuery),
    responses((status = 200, description = "The readings", body = CountersAnswer), ReadProblems),
)]
pub async fn counters(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let query = Query::parse_with(request.uri(), &PARAMETERS, "key")?;
    let caller = Peer::caller_of(request.extensions());
    let single: Vec<&str> = query.all("key").collect();
    match (query.raw("keys"), single.as_slice()) {
        (None, []) => list(&app, &caller, &query).await,
        (Some(_), [_, ..]) => {
            let detail = "`keys` and `key` both name counters; use one of them";
            Err(Problem::new(Kind::InvalidParameter, detail))
        }
        (Some(keys), []) => many(&app, &caller, &query, &keys.split(',').collect::<Vec<_>>()).await,
        (None, keys) => many(&app, &caller, &query, keys).await,
    }
}

/// Counted as `many` if the query names counters, otherwise as `list`.
pub fn verb(uri: &Uri) -> Verb {
    let names_keys = |pair: &str| pair.starts_with("keys=") || pair.starts_with("key=");
    let many = uri.query().is_some_and(|query| query.split('&').any(names_keys));
    if many { Verb::Many } else { Verb::List }
}

async fn many(app: &App, caller: &Caller, query: &Query<'_>, encoded: &[&str]) -> Result<Response, Problem> {
    if ["prefix", "limit", "cursor"].iter().any(|name| query.raw(name).is_some()) {
        let detail = "`keys` and `key` cannot be combined with `prefix`, `limit` or `cursor`";
        return Err(Problem::new(Kind::InvalidParameter, detail));
    }
    admission::keys_len(encoded.len())?;
    let keys = app.access(caller, Action::Read).keys(encoded)?;
    let freshness = freshness::freshness(query, Latest::ByPolicy)?;
    let room = app.answer_room.reserve(readings_bytes_max(keys.iter().map(Key::as_bytes))).await?;
    let readings = app.service.read(keys.clone(), freshness).await?;
    let counters = keys.iter().zip(&readings).map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(room.hold(json(StatusCode::OK, &CountersAnswer { counters, next_cursor: None })))
}

async fn list(app: &App, caller: &Caller, query: &Query<'_>) -> Result<Response, Problem> {
    if freshness::PARAMETERS.iter().any(|name| query.raw(name).is_some()) {
        let detail =
            "`token` and `max_staleness_ms` cannot be combined with a listing; name counters with `keys` or `key`";
        return Err(Problem::new(Kind::InvalidParameter, detail));
    }
    let prefix = query.text("prefix")?.unwrap_or_default().into_owned().into_bytes();
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    let after = query.raw("cursor").map(decode_cursor).transpose()?;
    app.service.admission().admit_prefix(caller, &prefix, Action::List)?;
    let room = app.answer_room.reserve(page_bytes_max(limit)).await?;
    let page = app.service.list(PageRequest { prefix, after, limit }).await?;
    let next_cursor = page.next.as_ref().map(|key| HEXLOWER.encode(key.as_bytes()));
    let counters = page.items.iter().map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(room.hold(json(StatusCode::OK, &CountersAnswer { counters, next_cursor })))
}

fn answer<'a>(app: &App, key: &'a Key, reading: &Reading) -> ReadAnswer<'a> {
    ReadAnswer::new(key.as_bytes(), reading, app.service.consistency(key.as_ref()))
}

/// A cursor is the last key of the previous page in hexadecimal. The format is not part of the API.
fn decode_cursor(cursor: &str) -> Result<Key, Problem> {
    let invalid = || Problem::new(Kind::InvalidCursor, "send `next_cursor` of the previous page unchanged");
    let bytes = HEXLOWER_PERMISSIVE.decode(cursor.as_bytes()).map_err(|_| invalid())?;
    Key::new(bytes).map_err(|_| invalid())
}
