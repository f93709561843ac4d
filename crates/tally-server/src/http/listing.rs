//! Many counters in one call: those named, or those with a prefix, page by page.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tally_core::key::Key;
use tally_core::reading::Reading;
use tally_core::surface::PageRequest;
use utoipa::ToSchema;

use super::App;
use super::address::{self, Query};
use super::answer::{Hex, ReadAnswer, json};
use super::problem::{Kind, Problem};
use super::reference::{ListingQuery, ReadProblems};
use crate::admission::{self, PAGE_LIMITS};
use crate::service::Freshness;

/// Counters, in the order asked or in key order.
#[derive(Serialize, ToSchema)]
struct CountersAnswer<'a> {
    /// One reading per counter.
    counters: Vec<ReadAnswer<'a>>,
    /// What to send as `cursor` for the next page; `null` at the end.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Read many counters, or list them.
///
/// With `keys`, the counters named, in that order: keys are separated by commas, and a comma within a key is
/// `%2C`. With `key`, given once for each counter, the same; a comma is then part of the key however it is encoded.
/// Otherwise those whose key begins with `prefix`, in key order, page by page. A key that is not UTF-8 is listed with
/// `key: null` and its bytes in `key_hex`.
#[utoipa::path(
    get, path = "/api/v1/counters", tag = "counters",
    params(ListingQuery),
    responses((status = 200, description = "The readings", body = CountersAnswer), ReadProblems),
)]
pub async fn counters(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let query = Query::parse_with(request.uri(), &["keys", "key", "prefix", "limit", "cursor"], "key")?;
    let single: Vec<&str> = query.all("key").collect();
    match (query.raw("keys"), single.as_slice()) {
        (None, []) => list(&app, &query).await,
        (Some(_), [_, ..]) => {
            let detail = "`keys` and `key` both name counters; use one of them";
            Err(Problem::new(Kind::InvalidParameter, detail))
        }
        (Some(keys), []) => many(&app, &query, &keys.split(',').collect::<Vec<_>>()).await,
        (None, keys) => many(&app, &query, keys).await,
    }
}

async fn many(app: &App, query: &Query<'_>, encoded: &[&str]) -> Result<Response, Problem> {
    if ["prefix", "limit", "cursor"].iter().any(|name| query.raw(name).is_some()) {
        let detail = "`keys` or `key` reads the counters it names; it goes with no `prefix`, `limit` or `cursor`";
        return Err(Problem::new(Kind::InvalidParameter, detail));
    }
    admission::keys_len(encoded.len())?;
    let keys = address::keys(encoded)?;
    let readings = app.service.read(keys.clone(), Freshness::ByPolicy).await?;
    let counters = keys.iter().zip(&readings).map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(json(StatusCode::OK, &CountersAnswer { counters, next_cursor: None }))
}

async fn list(app: &App, query: &Query<'_>) -> Result<Response, Problem> {
    let prefix = query.text("prefix")?.unwrap_or_default().into_owned().into_bytes();
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    let after = query.raw("cursor").map(decode_cursor).transpose()?;
    let page = app.service.list(PageRequest { prefix, after, limit }).await?;
    let next_cursor = page.next.as_ref().map(|key| Hex(key.as_bytes()).to_string());
    let counters = page.items.iter().map(|(key, reading)| answer(app, key, reading)).collect();
    Ok(json(StatusCode::OK, &CountersAnswer { counters, next_cursor }))
}

fn answer<'a>(app: &App, key: &'a Key, reading: &Reading) -> ReadAnswer<'a> {
    ReadAnswer::new(key.as_bytes(), reading, app.service.consistency(key.as_ref()))
}

/// A cursor is the last key of the page before, in hexadecimal; callers need not know.
fn decode_cursor(cursor: &str) -> Result<Key, Problem> {
    let invalid = || Problem::new(Kind::InvalidCursor, "send `next_cursor` of the page before, as it is");
    let digits = cursor.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(invalid());
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.and_then(|bytes| Key::new(bytes).ok()).ok_or_else(invalid)
}
