//! Counting many at once: each item succeeds or fails on its own, and is answered in its place.

use std::fmt;
use std::marker::PhantomData;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tally_core::key::Key;
use tally_core::limits::CALL_EVENTS_MAX;
use utoipa::ToSchema;

use super::address::Query;
use super::answer::{WriteAnswer, json};
use super::body::{self, Integer, amount, present};
use super::counters::{Amount, AtBound, Direction, text};
use super::problem::{Asked, Kind, Problem, ProblemJson};
use super::reference::BatchProblems;
use super::{App, idempotency};
use crate::admission;
use crate::service::{Intent, Written};

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    increments: Items<'a>,
}

/// The items as they came, as many as a batch may have; the rest are only counted.
struct Items<'a> {
    raw: Vec<&'a RawValue>,
    count: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Counting<'a> {
            type Value = Items<'a>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an array of increments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Items<'a>, A::Error> {
                let mut raw = Vec::new();
                while raw.len() < CALL_EVENTS_MAX
                    && let Some(item) = items.next_element()?
                {
                    raw.push(item);
                }
                let mut count = raw.len();
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Items { raw, count })
            }
        }

        deserializer.deserialize_seq(Counting(PhantomData))
    }
}

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchIncrement)]
#[allow(dead_code, reason = "what the documentation shows of `Batch`")]
struct BatchShown {
    /// 1 to 10,000 increments.
    #[schema(min_items = 1, max_items = 10_000)]
    increments: Vec<Item>,
}

/// One increment of a batch.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchItem)]
struct Item {
    /// The counter, as it is: not percent-encoded.
    #[schema(min_length = 1, max_length = 512, example = "likes:post:42")]
    key: String,
    /// How much; 1 when left out.
    #[serde(default, deserialize_with = "amount")]
    #[schema(value_type = i64, required = false, minimum = 1, default = 1)]
    amount: Option<Integer>,
    /// Names this increment, so that sending it again counts once.
    #[serde(default, deserialize_with = "present")]
    #[schema(min_length = 1, max_length = 255)]
    request_id: Option<String>,
    /// The value may not fall below this.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    floor: Option<Integer>,
    /// The value may not rise above this.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    ceiling: Option<Integer>,
    /// What happens at a bound; `refuse` when left out.
    #[serde(default, deserialize_with = "present")]
    on_bound: Option<AtBound>,
}

/// What became of each increment, in their order.
#[derive(Serialize, ToSchema)]
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
enum Verdict {
    /// It goes to the engine.
    Admitted(Key, Asked),
    /// It does not; the key is named if the item did.
    Denied(Option<Key>, Problem),
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
    let batch: Batch<'_> = body::parse(&bytes)?;
    admission::batch_len(batch.increments.count)?;

    let mut intents = Vec::with_capacity(batch.increments.count);
    let verdicts: Vec<Verdict> = batch.increments.raw.iter().map(|raw| judge(raw.get(), &mut intents)).collect();
    let admitted = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Admitted(key, _) => Some(key.as_ref()),
        Verdict::Denied(..) => None,
    });
    let admitted: Vec<_> = admitted.zip(intents).collect();
    let written = if admitted.is_empty() { Vec::new() } else { app.service.write_all(admitted).await? };
    let asked = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Admitted(_, asked) => Some(asked),
        Verdict::Denied(..) => None,
    });
    let refusals = written.iter().zip(asked).map(|(written, asked)| Problem::of_outcome(&written.outcome, asked));
    let refusals: Vec<_> = refusals.collect();
    answer(&verdicts, &written, &refusals)
}

/// Reads one item by itself, so that a broken one fails alone. An admitted one leaves its intent.
fn judge(raw: &str, intents: &mut Vec<Intent>) -> Verdict {
    let item: Item = match body::parse(raw.as_bytes()) {
        Ok(item) => item,
        Err(problem) => return Verdict::Denied(key_of_broken(raw), problem),
    };
    let key = match admission::key(item.key.as_bytes()) {
        Ok(key) => key,
        Err(denied) => return Verdict::Denied(None, denied.into()),
    };
    match admit(item, &key) {
        Ok(intent) => {
            let asked = Asked::of(&intent);
            intents.push(intent);
            Verdict::Admitted(key, asked)
        }
        Err(problem) => Verdict::Denied(Some(key), problem),
    }
}

fn admit(item: Item, key: &Key) -> Result<Intent, Problem> {
    let Item { amount, request_id, floor, ceiling, on_bound, .. } = item;
    let request_id = request_id.map(|id| admission::request_id(key.as_ref(), id.as_bytes())).transpose()?;
    let amount = Amount { amount, request_id: None, floor, ceiling, on_bound };
    Ok(Intent { request_id, ..amount.admit(Direction::Up)? })
}

/// The key of an item that is otherwise unreadable, so that its answer can name it.
fn key_of_broken(raw: &str) -> Option<Key> {
    #[derive(Deserialize)]
    struct OnlyKey {
        key: String,
    }
    let only: OnlyKey = body::parse(raw.as_bytes()).ok()?;
    Key::new(only.key).ok()
}

fn answer(verdicts: &[Verdict], written: &[Written], refusals: &[Option<Problem>]) -> Result<Response, Problem> {
    let mut outcomes = written.iter().zip(refusals);
    let mut results = Vec::with_capacity(verdicts.len());
    for verdict in verdicts {
        results.push(match verdict {
            Verdict::Denied(key, problem) => {
                ItemAnswer::Failed { key: key.as_ref().map(text).transpose()?, error: problem.json(None) }
            }
            Verdict::Admitted(key, _) => match outcomes.next() {
                Some((written, None)) => ItemAnswer::Written(WriteAnswer::new(text(key)?, written)),
                Some((_, Some(refusal))) => ItemAnswer::Failed { key: Some(text(key)?), error: refusal.json(None) },
                None => return Err(Problem::new(Kind::Internal, "an item came back without an outcome")),
            },
        });
    }
    let failed = results.iter().filter(|result| matches!(result, ItemAnswer::Failed { .. })).count();
    let succeeded = results.len() - failed;
    Ok(json(StatusCode::OK, &BatchAnswer { results, succeeded, failed }))
}
