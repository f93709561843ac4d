//! Counting many at once: each item succeeds or fails on its own, and is answered in its place.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tally_core::key::KeyRef;
use tally_core::limits::CALL_EVENTS_MAX;
use utoipa::ToSchema;

use super::address::Query;
use super::answer::{WriteAnswer, WriteAnswers};
use super::body::{self, Integer, Object, amount, present};
use super::counters::{Amount, AtBound, Direction};
use super::problem::{Asked, Kind, Problem, ProblemJson};
use super::reference::BatchProblems;
use super::{App, idempotency};
use crate::admission;
use crate::service::{Intent, Writes, Written};

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<T> {
    increments: Items<T>,
}

/// As many items as a batch may have; the rest are only counted.
struct Items<T> {
    first: Vec<T>,
    count: usize,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Counting<T> {
            type Value = Items<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an array of increments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Items<T>, A::Error> {
                let mut first = Vec::new();
                while first.len() < CALL_EVENTS_MAX
                    && let Some(item) = items.next_element()?
                {
                    first.push(item);
                }
                let mut count = first.len();
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Items { first, count })
            }
        }

        deserializer.deserialize_seq(Counting(PhantomData))
    }
}

impl<T> Batch<T> {
    /// The items, if they are neither too few nor too many.
    fn admitted(self) -> Result<Vec<T>, Problem> {
        admission::batch_len(self.increments.count)?;
        Ok(self.increments.first)
    }
}

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchIncrement)]
#[allow(dead_code, reason = "what the documentation shows of `Batch`")]
struct BatchShown<'a> {
    /// 1 to 10,000 increments.
    #[serde(borrow)]
    #[schema(min_items = 1, max_items = 10_000)]
    increments: Vec<Item<'a>>,
}

/// One increment of a batch.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchItem)]
struct Item<'a> {
    /// The counter, as it is: not percent-encoded.
    #[serde(borrow)]
    #[schema(min_length = 1, max_length = 512, example = "likes:post:42")]
    key: Cow<'a, str>,
    /// How much; 1 when left out.
    #[serde(default, deserialize_with = "amount")]
    #[schema(value_type = i64, required = false, minimum = 1, default = 1)]
    amount: Option<Integer>,
    /// Names this increment, so that sending it again counts once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
    /// The value may not fall below this.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    floor: Option<Integer>,
    /// The value may not rise above this.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    ceiling: Option<Integer>,
    /// What happens at a bound; `refuse` when left out.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = AtBound, required = false)]
    on_bound: Option<AtBound>,
}

/// What became of each increment, in their order.
#[derive(ToSchema)]
#[allow(dead_code, reason = "what the documentation shows of what `answer` writes")]
struct BatchAnswer<'a> {
    /// One per item.
    results: Vec<ItemAnswer<'a>>,
    /// Items applied, including those answered as duplicates.
    succeeded: usize,
    /// Items that changed nothing.
    failed: usize,
}

/// What became of one increment.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum ItemAnswer<'a> {
    /// It was applied.
    #[allow(dead_code, reason = "what the documentation shows of what `WriteAnswers` writes")]
    Written(WriteAnswer<'a>),
    /// It was not.
    Failed {
        /// The counter, if the item named one.
        #[schema(required)]
        key: Option<&'a str>,
        /// Why.
        error: ProblemJson<'a>,
    },
}

/// What is known of an item before the engine saw it.
enum Verdict<'a> {
    /// It goes to the engine.
    Admitted(Cow<'a, str>, Asked),
    /// It does not; the key is named if the item did.
    Denied(Option<Cow<'a, str>>, Problem),
}

/// Add to many counters.
///
/// Up to 10,000 increments, applied in order; each succeeds or fails on its own and is answered in its place.
#[utoipa::path(
    post, path = "/api/v1/counters/batch-increment", tag = "counters",
    request_body = BatchShown,
    responses((status = 200, description = "What became of each, in their order", body = BatchAnswer), BatchProblems),
)]
pub async fn batch_increment(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    Query::none(&parts.uri)?;
    let instead = "a batch takes no `Idempotency-Key`; give each item its own `request_id`";
    idempotency::refuse_header(&parts.headers, instead)?;
    // Held until the answer is made: what a body is parsed into takes memory as well.
    let (bytes, _room) = app.batch_room.collect(&parts.headers, body).await?;
    let mut writes = app.service.writes()?;
    let verdicts = judge_all(&bytes, &mut writes)?;
    answer(&verdicts, writes.submit().await?)
}

/// Reads the items. Those admitted are among the writes afterwards.
fn judge_all<'a>(bytes: &'a [u8], writes: &mut Writes<'_>) -> Result<Vec<Verdict<'a>>, Problem> {
    if let Some(batch) = body::parse_at_once::<Batch<Object<Item<'_>>>>(bytes) {
        return Ok(batch.admitted()?.into_iter().map(|Object(item)| judge(item, writes)).collect());
    }
    // Something is broken: each item is read by itself, so that a broken one fails alone.
    let batch: Batch<&RawValue> = body::parse(bytes)?;
    let judge_raw = |raw: &'a RawValue| match body::parse(raw.get().as_bytes()) {
        Ok(item) => judge(item, writes),
        Err(problem) => Verdict::Denied(key_of_broken(raw), problem),
    };
    Ok(batch.admitted()?.into_iter().map(judge_raw).collect())
}

fn judge<'a>(item: Item<'a>, writes: &mut Writes<'_>) -> Verdict<'a> {
    let key = match admission::key(item.key.as_bytes()) {
        Ok(key) => key,
        Err(denied) => return Verdict::Denied(None, denied.into()),
    };
    match admit(&item, key) {
        Ok(intent) => {
            let asked = Asked::of(&intent);
            writes.push(key, intent);
            Verdict::Admitted(item.key, asked)
        }
        Err(problem) => Verdict::Denied(Some(item.key), problem),
    }
}

fn admit(item: &Item<'_>, key: KeyRef<'_>) -> Result<Intent, Problem> {
    let Item { amount, ref request_id, floor, ceiling, on_bound, .. } = *item;
    let request_id = request_id.as_ref().map(|id| admission::request_id(key, id.as_bytes())).transpose()?;
    let amount = Amount { amount, request_id: None, floor, ceiling, on_bound };
    Ok(Intent { request_id, ..amount.admit(Direction::Up)? })
}

/// The key of an item that is otherwise unreadable, so that its answer can name it.
fn key_of_broken(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct OnlyKey<'a> {
        #[serde(borrow)]
        key: Cow<'a, str>,
    }
    let only: OnlyKey<'_> = body::parse(raw.get().as_bytes()).ok()?;
    admission::key(only.key.as_bytes()).is_ok().then_some(only.key)
}

/// Written piece by piece: a list of answers first would cost more than counting does.
fn answer(verdicts: &[Verdict<'_>], mut written: impl Iterator<Item = Written>) -> Result<Response, Problem> {
    let mut body = WriteAnswers::with_room_for(verdicts.len());
    body.raw(b"{\"results\":[");
    let mut failed = 0;
    for (at, verdict) in verdicts.iter().enumerate() {
        if at > 0 {
            body.raw(b",");
        }
        let refusal = match verdict {
            Verdict::Denied(key, problem) => Some((key.as_deref(), Cow::Borrowed(problem))),
            Verdict::Admitted(key, asked) => {
                let no_outcome = || Problem::new(Kind::Internal, "an item came back without an outcome");
                let written = written.next().ok_or_else(no_outcome)?;
                let refusal = Problem::of_outcome(&written.outcome, asked);
                if refusal.is_none() {
                    body.written(key, &written);
                }
                refusal.map(|refusal| (Some(&**key), Cow::Owned(refusal)))
            }
        };
        if let Some((key, problem)) = refusal {
            failed += 1;
            body.value(&ItemAnswer::Failed { key, error: problem.json(None) });
        }
    }
    let succeeded = verdicts.len() - failed;
    body.raw(format!("],\"succeeded\":{succeeded},\"failed\":{failed}}}").as_bytes());
    Ok(body.into_response())
}
