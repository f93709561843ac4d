//! Corrections: set, reset, adjust and delete, each of them an entry in the counter's ledger; and the ledger.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tally_core::event::{Change, Condition, Expiry};
use tally_core::limits::REASON_BYTES_MAX;
use utoipa::ToSchema;

use super::address::{self, Query};
use super::answer::{LedgerEntryAnswer, json};
use super::body::{self, Integer, present};
use super::counters::{text, write};
use super::listen::Peer;
use super::problem::{Kind, Problem};
use super::reference::{
    Conflict, DeleteProblems, DeleteQuery, IdInHeader, KeyInPath, LedgerQuery, ReadProblems, WriteAnswered,
    WriteProblems,
};
use super::{App, idempotency};
use crate::admission::{self, PAGE_LIMITS};
use crate::limits::LEDGER_PAGE_BYTES_MAX;
use crate::service::Intent;

/// The value to set, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetValue {
    /// The value afterwards.
    #[schema(value_type = i64)]
    value: Integer,
    /// Why, for the ledger.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// The value that must stand there now: compare-and-set.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    expected: Option<Integer>,
    /// Names the request, so that sending it again corrects once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// Why a counter goes back to zero.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// Why, for the ledger.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// Names the request, so that sending it again corrects once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// What to add as a correction, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Adjust {
    /// What is added; negative to take away, never 0.
    #[schema(value_type = i64)]
    delta: Integer,
    /// Why, for the ledger.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// Names the request, so that sending it again corrects once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// The reason kept when a counter is deleted without one.
const DELETED_WITHOUT_REASON: &str = "deleted without a reason";

/// Set a counter's value.
///
/// With `expected` it is compare-and-set: 409 with the current value if another stands there.
#[utoipa::path(
    put, path = "/api/v1/counters/{key}", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body = SetValue,
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn set(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let when = |input: &SetValue| input.expected.map_or(Condition::Always, |expected| Condition::Equals(expected.0));
    correct(&app, request, |input: &SetValue, peer| {
        let why = admission::correction(peer, &input.reason)?;
        Ok(Change::Set { value: input.value.0, when: when(input), expiry: Expiry::Keep, why })
    })
    .await
}

/// Bring a counter back to zero.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/reset", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body = Reset,
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn reset(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    correct(&app, request, |input: &Reset, peer| Ok(Change::Reset(admission::correction(peer, &input.reason)?))).await
}

/// Add to a counter as an audited correction.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/adjust", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body = Adjust,
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn adjust(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    correct(&app, request, |input: &Adjust, peer| {
        let delta = admission::delta(input.delta.0)?;
        Ok(Change::Adjust { delta, why: admission::correction(peer, &input.reason)? })
    })
    .await
}

/// A body that may name its request.
trait Named {
    fn request_id(&self) -> Option<&str>;
}

impl Named for SetValue {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

impl Named for Reset {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

impl Named for Adjust {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

/// Reads a correction's body, turns it into a change and makes it.
async fn correct<T: Named + for<'a> Deserialize<'a>>(
    app: &App,
    request: Request,
    change: impl FnOnce(&T, std::net::IpAddr) -> Result<Change, Problem>,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let key = address::key(&parts.uri)?;
    Query::none(&parts.uri)?;
    let bytes = body::collect(&parts.headers, body).await?;
    let input: T = body::parse(&bytes)?;
    let change = change(&input, Peer::of(&parts.extensions))?;
    let request_id = idempotency::request_id(&parts.headers, input.request_id(), key.as_ref())?;
    drop(input);
    write(app, &key, Intent { change, request_id, details: None }).await
}

/// Remove a counter. Its ledger stays.
///
/// The removal is an entry of the ledger; `reason` is optional. Removing a counter that does not exist changes nothing,
/// leaves no entry and is answered 200 with `exists: false` and `applied: 0`.
#[utoipa::path(
    delete,
    path = "/api/v1/counters/{key}",
    tag = "corrections",
    params(KeyInPath, DeleteQuery, IdInHeader),
    responses(WriteAnswered, DeleteProblems)
)]
pub async fn delete(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let key = address::key(&parts.uri)?;
    let query = Query::parse(&parts.uri, &["reason"])?;
    let has_body = parts.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    if has_body || parts.headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(Problem::new(Kind::UnexpectedBody, "send the reason of a deletion as `?reason=`, without a body"));
    }
    let reason = query.text("reason")?;
    if reason.as_deref() == Some("") {
        let detail = format!("`reason` is empty; leave it out, or say in 1 to {REASON_BYTES_MAX} bytes why");
        return Err(Problem::new(Kind::InvalidReason, detail));
    }
    let why = admission::correction(Peer::of(&parts.extensions), reason.as_deref().unwrap_or(DELETED_WITHOUT_REASON))?;
    let request_id = idempotency::request_id(&parts.headers, None, key.as_ref())?;
    write(&app, &key, Intent { change: Change::Delete(why), request_id, details: None }).await
}

/// The corrections of a counter, oldest first.
#[derive(Serialize, ToSchema)]
struct LedgerAnswer<'a> {
    /// The counter.
    key: &'a str,
    /// One page of corrections.
    entries: Vec<LedgerEntryAnswer<'a>>,
    /// What to send as `after` for the next page; `null` at the end.
    #[schema(required)]
    next: Option<u64>,
}

/// The corrections of a counter, oldest first, hash-chained.
///
/// `hash` is SHA-256 over `previous` and the fields of the entry, so that anyone who holds the entries can verify them.
#[utoipa::path(
    get, path = "/api/v1/counters/{key}/ledger", tag = "corrections",
    params(KeyInPath, LedgerQuery),
    responses((status = 200, description = "One page of corrections", body = LedgerAnswer), ReadProblems),
)]
pub async fn ledger(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let key = address::key(request.uri())?;
    let query = Query::parse(request.uri(), &["after", "limit"])?;
    let after = query.number("after", 0..=u64::MAX)?.unwrap_or(0);
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    // One more than asked for tells whether there is another page.
    let mut entries = app.service.ledger(key.clone(), after, limit + 1).await?;
    let found = entries.len();
    entries.truncate(limit);
    let mut bytes = 0;
    entries.retain(|entry| {
        // At least one, and then as many as a page has room for.
        let fits = bytes < LEDGER_PAGE_BYTES_MAX;
        bytes += entry.actor.len() + entry.reason.len();
        fits
    });
    let next = entries.last().filter(|_| entries.len() < found).map(|last| last.seq);
    let entries = entries.iter().map(LedgerEntryAnswer::new).collect();
    Ok(json(StatusCode::OK, &LedgerAnswer { key: text(&key)?, entries, next }))
}
