//! Increment, decrement, and reads of one counter.

use std::fmt;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::Response;
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use tally_core::event::{Change, OnBound};
use tally_core::key::Key;
use tally_core::reading::Reading;
use utoipa::ToSchema;

use super::address::{KeyAccess, Query};
use super::answer::{IDEMPOTENT_REPLAYED, ReadAnswer, StatsAnswer, WriteAnswer, json};
use super::body::{self, Integer, amount, present};
use super::listen::Peer;
use super::openapi::{Conflict, FreshnessQuery, IdInHeader, KeyInPath, ReadProblems, WriteAnswered, WriteProblems};
use super::problem::{Kind, Problem, RequestedChange};
use super::{App, freshness, idempotency};
use crate::admission::{self, Action, Caller};
use crate::policy::Consistency;
use crate::service::{Intent, Latest};

/// How much to add or subtract. An empty body means 1.
#[derive(Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// How much; 1 by default.
    #[serde(default, deserialize_with = "amount")]
    #[schema(value_type = i64, required = false, minimum = 1, default = 1, example = 5)]
    pub amount: Option<Integer>,
    /// A request id of 1 to 255 bytes: a retry with the same id counts once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    pub request_id: Option<String>,
    /// The lowest value allowed; not above `ceiling`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    pub floor: Option<Integer>,
    /// The highest value allowed; not below `floor`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    pub ceiling: Option<Integer>,
    /// What to do at a bound; `refuse` by default. Needs `floor` or `ceiling`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = AtBound, required = false)]
    pub on_bound: Option<AtBound>,
}

/// What to do with a change that would cross a bound.
#[derive(Clone, Copy, ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum AtBound {
    /// Change nothing and answer 409.
    Refuse,
    /// Apply the part that fits.
    Saturate,
}

/// Only from a string: a derived implementation would also accept `{"refuse":null}`.
impl<'de> Deserialize<'de> for AtBound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AtBoundVisitor;

        impl Visitor<'_> for AtBoundVisitor {
            type Value = AtBound;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`refuse` or `saturate`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AtBound, E> {
                match text {
                    "refuse" => Ok(AtBound::Refuse),
                    "saturate" => Ok(AtBound::Saturate),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_str(AtBoundVisitor)
    }
}

/// Which way an amount moves the value.
#[derive(Clone, Copy)]
pub enum Direction {
    /// Increment.
    Up,
    /// Decrement.
    Down,
}

impl Amount {
    /// The admitted change, without its request id, which may also come from a header.
    pub fn admit(&self, direction: Direction) -> Result<Intent, Problem> {
        let amount = admission::amount(self.amount.map_or(1, |amount| amount.0))?;
        let delta = match direction {
            Direction::Up => amount,
            Direction::Down => -amount,
        };
        let on_bound = self.on_bound.map(|on_bound| match on_bound {
            AtBound::Refuse => OnBound::Refuse,
            AtBound::Saturate => OnBound::Saturate,
        });
        let details = admission::bounds(self.floor.map(|n| n.0), self.ceiling.map(|n| n.0), on_bound)?;
        Ok(Intent { change: Change::Add(delta), request_id: None, details })
    }
}

/// Add to a counter.
///
/// An empty body adds 1. With a request id, in the body or as `Idempotency-Key`, a retry is safe: it gets the first
/// answer again, even if that was a refusal. `as_of` is then the time of the first answer; `token` may be newer.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/increment", tag = "counters",
    params(KeyInPath, IdInHeader),
    request_body(content = Amount, description = "An empty body means 1", example = json!({ "amount": 5 })),
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn increment(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let caller = Peer::caller_of(request.extensions());
    add(&app, request, Direction::Up, &caller).await
}

/// Subtract from a counter.
///
/// Works like `increment`, but subtracts. An empty body subtracts 1.
#[utoipa::path(
    post, path = "/api/v1/counters/{key}/decrement", tag = "counters",
    params(KeyInPath, IdInHeader),
    request_body(content = Amount, description = "An empty body means 1", example = json!({ "amount": 2 })),
    responses(WriteAnswered, WriteProblems, Conflict),
)]
pub async fn decrement(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let caller = Peer::caller_of(request.extensions());
    add(&app, request, Direction::Down, &caller).await
}

/// Adds or subtracts: a hot path, called without going through axum.
pub async fn add(app: &App, request: Request, direction: Direction, caller: &Caller) -> Result<Response, Problem> {
    let (key, intent) = read_amount(request, direction, app.access(caller, Action::Add)).await?;
    write(app, &key, intent).await
}

/// Parses the request. The rest of it is dropped before the engine is called.
async fn read_amount(request: Request, direction: Direction, access: KeyAccess<'_>) -> Result<(Key, Intent), Problem> {
    let (parts, body) = request.into_parts();
    let key = access.key(&parts.uri)?;
    Query::none(&parts.uri)?;
    let bytes = body::collect(&parts.headers, body).await?;
    let amount: Amount = if bytes.is_empty() { Amount::default() } else { body::parse(&bytes)? };
    let request_id = idempotency::request_id(&parts.headers, amount.request_id.as_deref(), key.as_ref())?;
    let intent = Intent { request_id, ..amount.admit(direction)? };
    Ok((key, intent))
}

/// Makes one change and answers it. Every write of a single counter ends here.
pub async fn write(app: &App, key: &Key, intent: Intent) -> Result<Response, Problem> {
    let requested = RequestedChange::of(&intent);
    let written = app.service.write(key.as_ref(), intent).await?;
    if let Some(refusal) = Problem::of_outcome(&written.outcome, &requested) {
        return Err(refusal);
    }
    let mut response = json(StatusCode::OK, &WriteAnswer::new(text(key)?, &written));
    if written.outcome.is_duplicate() {
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The key as text. Keys in HTTP requests are UTF-8.
pub fn text(key: &Key) -> Result<&str, Problem> {
    std::str::from_utf8(key.as_bytes()).map_err(|_| Problem::new(Kind::InvalidKey, "the key is not UTF-8"))
}

/// Read a counter.
///
/// A counter that does not exist reads 0 with `exists: false`.
#[utoipa::path(
    get, path = "/api/v1/counters/{key}", tag = "counters",
    params(KeyInPath, FreshnessQuery),
    responses((status = 200, description = "The reading", body = ReadAnswer), ReadProblems),
)]
pub async fn read(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let caller = Peer::caller_of(request.extensions());
    read_by_policy(&app, request.uri(), &caller).await
}

/// Reads at the namespace's consistency: a hot path, called without going through axum.
pub async fn read_by_policy(app: &App, uri: &Uri, caller: &Caller) -> Result<Response, Problem> {
    let key = app.access(caller, Action::Read).key(uri)?;
    let consistency = app.service.consistency(key.as_ref());
    read_one(app, uri, key, Latest::ByPolicy, consistency).await
}

/// Read a counter, reflecting everything acknowledged before the call.
#[utoipa::path(
    get, path = "/api/v1/counters/{key}/exact", tag = "counters",
    params(KeyInPath, FreshnessQuery),
    responses((status = 200, description = "The reading", body = ReadAnswer), ReadProblems),
)]
pub async fn exact(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let key = app.access(&Peer::caller_of(request.extensions()), Action::Read).key(request.uri())?;
    read_one(&app, request.uri(), key, Latest::Exact, Consistency::Exact).await
}

async fn read_one(app: &App, uri: &Uri, key: Key, at: Latest, consistency: Consistency) -> Result<Response, Problem> {
    let freshness = freshness::freshness(&Query::parse(uri, &freshness::PARAMETERS)?, at)?;
    let readings = app.service.read(vec![key.clone()], freshness).await?;
    let reading: &Reading =
        readings.first().ok_or_else(|| Problem::new(Kind::Internal, "the engine returned no reading"))?;
    Ok(json(StatusCode::OK, &ReadAnswer::new(key.as_bytes(), reading, consistency)))
}

/// Read a counter with its statistics: totals, extremes, rates, and the value of each sub-counter.
#[utoipa::path(
    get, path = "/api/v1/counters/{key}/stats", tag = "counters",
    params(KeyInPath, FreshnessQuery),
    responses((status = 200, description = "The reading and the statistics", body = StatsAnswer), ReadProblems),
)]
pub async fn stats(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let key = app.access(&Peer::caller_of(request.extensions()), Action::Read).key(request.uri())?;
    let query = Query::parse(request.uri(), &freshness::PARAMETERS)?;
    let freshness = freshness::freshness(&query, Latest::ByPolicy)?;
    let stats = app.service.stats(key.clone(), freshness).await?;
    let consistency = app.service.consistency(key.as_ref());
    Ok(json(StatusCode::OK, &StatsAnswer::new(key.as_bytes(), &stats, consistency)))
}
