//! Reads many counters in one call: those named, or a listing by prefix, page by page.

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use tally_core::key::Key;
use tally_core::reading::Reading;
use tally_core::surface::PageRequest;
use utoipa::ToSchema;

use super::App;
use super::address::Query;
use super::answer::{Hex, ReadAnswer, json};
use super::listen::Peer;
use super::openapi::{ListingQuery, ReadProblems};
use super::problem::{Kind, Problem};
use crate::admission::{self, Action, Caller, PAGE_LIMITS};
use crate::metrics::Verb;
use crate::service::Freshness;

/// Counters, in the order of the request or in key order.
#[derive(Serialize, ToSchema)]
struct CountersAnswer<'a> {
    /// One reading per counter.
    counters: Vec<ReadAnswer<'a>>,
    /// `cursor` of the next page; `null` on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Read many counters, or list them.
///
/// `keys` reads the counters named, in that order; they are separated by commas, and a comma within a key is `%2C`.
/// `key`, repeated for each counter, does the same, and a comma is part of the key however it is encoded. Without either,
/// counters are listed by `prefix` in key order, page by page. A key that is not UTF-8 is listed with `key: null` and its
/// bytes in `key_hex`.
#[utoipa::path(
    get, path = "/api/v1/counters", tag = "counters",
    params(ListingQuery),
    responses((status = 200, description = "The readings", body = CountersAnswer), ReadProblems),
)]
pub async fn counters(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let query = Query::parse_with(request.uri(), &["keys", "key", "prefix", "limit", "cursor"], "key")?;
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
    let readings = app.service.read(keys.clone(), Freshness::default()).await?;
    let counters = keys.iter().zip(&readings).map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(json(StatusCode::OK, &CountersAnswer { counters, next_cursor: None }))
}

async fn list(app: &App, caller: &Caller, query: &Query<'_>) -> Result<Response, Problem> {
    let prefix = query.text("prefix")?.unwrap_or_default().into_owned().into_bytes();
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    let after = query.raw("cursor").map(decode_cursor).transpose()?;
    app.service.admission().admit_prefix(caller, &prefix, Action::List)?;
    let page = app.service.list(PageRequest { prefix, after, limit }).await?;
    let next_cursor = page.next.as_ref().map(|key| Hex(key.as_bytes()).to_string());
    let counters = page.items.iter().map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(json(StatusCode::OK, &CountersAnswer { counters, next_cursor }))
}

fn answer<'a>(app: &App, key: &'a Key, reading: &Reading) -> ReadAnswer<'a> {
    ReadAnswer::new(key.as_bytes(), reading, app.service.consistency(key.as_ref()))
}

/// A cursor is the last key of the previous page in hexadecimal. That is not part of the API.
fn decode_cursor(cursor: &str) -> Result<Key, Problem> {
    let invalid = || Problem::new(Kind::InvalidCursor, "send `next_cursor` of the previous page unchanged");
    let digits = cursor.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(invalid());
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.and_then(|bytes| Key::new(bytes).ok()).ok_or_else(invalid)
}
