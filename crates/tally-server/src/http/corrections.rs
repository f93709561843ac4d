//! Corrections: set, reset, adjust and delete. Each adds an entry to the counter's ledger, which is read here too.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tally_core::event::{Change, Condition, Expiry};
use tally_core::limits::REASON_BYTES_MAX;
use utoipa::ToSchema;

use super::address::Query;
use super::answer::{LedgerEntryAnswer, json};
use super::answer_room::ledger_bytes_max;
use super::body::{self, Integer, present};
use super::counters::{text, write};
use super::listen::Peer;
use super::openapi::{
    Conflict, DeleteProblems, DeleteQuery, IdInHeader, KeyInPath, LedgerQuery, ReadProblems, WriteAnswered,
    WriteProblems,
};
use super::problem::{Kind, Problem};
use super::{App, idempotency};
use crate::admission::{self, Action, Caller, PAGE_LIMITS};
use crate::limits::LEDGER_PAGE_BYTES_MAX;
use crate::service::Intent;

/// The value to set, and the reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetValue {
    /// The new value.
    #[schema(value_type = i64)]
    value: Integer,
    /// The reason, for the ledger: 1 to 1024 bytes.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// The current value, for compare-and-set.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    expected: Option<Integer>,
    /// A request id of 1 to 255 bytes: a retry with the same id is applied once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// The reason for a reset.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// The reason, for the ledger: 1 to 1024 bytes.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// A request id of 1 to 255 bytes: a retry with the same id is applied once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// The correction to add, and the reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Adjust {
    /// The change; negative to subtract, never 0.
    #[schema(value_type = i64)]
    delta: Integer,
    /// The reason, for the ledger: 1 to 1024 bytes.
    #[serde(default)]
    #[schema(required, min_length = 1, max_length = 1024)]
    reason: String,
    /// A request id of 1 to 255 bytes: a retry with the same id is applied once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
}

/// The reason recorded for a deletion without one.
const DELETED_WITHOUT_REASON: &str = "deleted without a reason";

/// Set a counter's value.
///
/// With `expected` it is compare-and-set: 409 with the current value if that differs.
#[utoipa::path(
    put, path = "/api/v1/counters/{key}", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body(content = SetValue, example = json!({ "value": 100, "reason": "taken over from the old system" })),
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn set(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let when = |input: &SetValue| input.expected.map_or(Condition::Always, |expected| Condition::Equals(expected.0));
    correct(&app, request, |input: &SetValue, caller| {
        let why = admission::correction(caller, &input.reason)?;
        Ok(Change::Set { value: input.value.0, when: when(input), expiry: Expiry::Keep, why })
    })
    .await
}

/// Reset a counter to zero.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/reset", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body(content = Reset, example = json!({ "reason": "the contest starts again" })),
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn reset(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    correct(&app, request, |input: &Reset, caller| Ok(Change::Reset(admission::correction(caller, &input.reason)?)))
        .await
}

/// Add to a counter, as a correction.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/adjust", tag = "corrections",
    params(KeyInPath, IdInHeader),
    request_body(content = Adjust, example = json!({ "delta": -2, "reason": "two likes came from bots" })),
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn adjust(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    correct(&app, request, |input: &Adjust, caller| {
        let delta = admission::delta(input.delta.0)?;
        Ok(Change::Adjust { delta, why: admission::correction(caller, &input.reason)? })
    })
    .await
}

/// A body that may have a request id.
trait HasRequestId {
    fn request_id(&self) -> Option<&str>;
}

impl HasRequestId for SetValue {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

impl HasRequestId for Reset {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

impl HasRequestId for Adjust {
    fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

/// Parses the body of a correction and applies it.
async fn correct<T: HasRequestId + for<'a> Deserialize<'a>>(
    app: &App,
    request: Request,
    change: impl FnOnce(&T, &Caller) -> Result<Change, Problem>,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = Peer::caller_of(&parts.extensions);
    let key = app.access(&caller, Action::Correct).key(&parts.uri)?;
    Query::none(&parts.uri)?;
    let bytes = body::collect(&parts.headers, body).await?;
    let input: T = body::parse(&bytes)?;
    let change = change(&input, &caller)?;
    let request_id = idempotency::request_id(&parts.headers, input.request_id(), key.as_ref())?;
    drop(input);
    write(app, &key, Intent { change, request_id, details: None }).await
}

/// Delete a counter. Its ledger stays.
///
/// The deletion is an entry in the ledger; `reason` is optional. Deleting a counter that does not exist changes nothing,
/// adds no entry and is answered 200 with `exists: false` and `applied: 0`.
#[utoipa::path(
    delete,
    path = "/api/v1/counters/{key}",
    tag = "corrections",
    params(KeyInPath, DeleteQuery, IdInHeader),
    responses(WriteAnswered, DeleteProblems)
)]
pub async fn delete(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    let caller = Peer::caller_of(&parts.extensions);
    let key = app.access(&caller, Action::Delete).key(&parts.uri)?;
    let query = Query::parse(&parts.uri, &["reason"])?;
    let has_body = parts.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    if has_body || parts.headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(Problem::new(Kind::UnexpectedBody, "a deletion takes no body; send its reason as `?reason=`"));
    }
    let reason = query.text("reason")?;
    if reason.as_deref() == Some("") {
        let detail = format!("`reason` is empty; leave it out, or give 1 to {REASON_BYTES_MAX} bytes");
        return Err(Problem::new(Kind::InvalidReason, detail));
    }
    let why = admission::correction(&caller, reason.as_deref().unwrap_or(DELETED_WITHOUT_REASON))?;
    let request_id = idempotency::request_id(&parts.headers, None, key.as_ref())?;
    write(&app, &key, Intent { change: Change::Delete(why), request_id, details: None }).await
}

/// The corrections of a counter, oldest first.
#[derive(Serialize, ToSchema)]
struct LedgerAnswer<'a> {
    /// The counter.
    #[schema(example = "likes:post:42")]
    key: &'a str,
    /// One page of corrections.
    entries: Vec<LedgerEntryAnswer<'a>>,
    /// `after` of the next page; `null` on the last page.
    #[schema(required, example = json!(null))]
    next: Option<u64>,
}

/// List the corrections of a counter, oldest first.
///
/// Entries are hash-chained: `hash` is the SHA-256 of `previous` and the fields of the entry, so they can be verified.
#[utoipa::path(
    get, path = "/api/v1/counters/{key}/ledger", tag = "corrections",
    params(KeyInPath, LedgerQuery),
    responses((status = 200, description = "One page of corrections", body = LedgerAnswer), ReadProblems),
)]
pub async fn ledger(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let key = app.access(&Peer::caller_of(request.extensions()), Action::Read).key(request.uri())?;
    let query = Query::parse(request.uri(), &["after", "limit"])?;
    let after = query.number("after", 0..=u64::MAX)?.unwrap_or(0);
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    let room = app.answer_room.reserve(ledger_bytes_max(limit)).await?;
    // One more than the page holds shows whether there is another page.
    let mut entries = app.service.ledger(key.clone(), after, limit + 1).await?;
    let found = entries.len();
    entries.truncate(limit);
    let mut bytes = 0;
    entries.retain(|entry| {
        // At least one, then as many as fit.
        let fits = bytes < LEDGER_PAGE_BYTES_MAX;
        bytes += entry.actor.len() + entry.reason.len();
        fits
    });
    let next = entries.last().filter(|_| entries.len() < found).map(|last| last.seq);
    let entries = entries.iter().map(LedgerEntryAnswer::new).collect();
    Ok(room.hold(json(StatusCode::OK, &LedgerAnswer { key: text(&key)?, entries, next })))
}
