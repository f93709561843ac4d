//! Batches of increments. Each item succeeds or fails on its own, and results are in the order of the items.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tally_core::key::KeyRef;
use tally_core::limits::CALL_EVENTS_MAX;
use utoipa::ToSchema;

use super::address::{KeyAccess, Query};
use super::answer::{WriteAnswer, WriteAnswers};
use super::answer_room::escaped_bytes;
use super::body::{self, Integer, Items, Object, amount, present};
use super::counters::{Amount, AtBound, Direction};
use super::listen::Peer;
use super::openapi::BatchProblems;
use super::problem::{Kind, Problem, ProblemJson, RequestedChange};
use super::{App, idempotency};
use crate::admission::{self, Action};
use crate::service::{Intent, WriteResult, Writes};

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<T> {
    increments: Items<T, CALL_EVENTS_MAX>,
}

impl<T> BatchBody<T> {
    /// The items, if their number is within the limits.
    fn admitted(self) -> Result<Vec<T>, Problem> {
        admission::batch_len(self.increments.count)?;
        Ok(self.increments.first)
    }
}

/// Increments in order; later ones see the earlier ones.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchIncrement)]
#[allow(dead_code, reason = "the schema of `BatchBody`")]
struct BatchSchema<'a> {
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
    /// The key, 1 to 512 bytes, not percent-encoded.
    #[serde(borrow)]
    #[schema(min_length = 1, max_length = 512, example = "likes:post:42")]
    key: Cow<'a, str>,
    /// How much; 1 by default.
    #[serde(default, deserialize_with = "amount")]
    #[schema(value_type = i64, required = false, minimum = 1, default = 1)]
    amount: Option<Integer>,
    /// A request id of 1 to 255 bytes: a retry with the same id counts once.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 255)]
    request_id: Option<String>,
    /// The lowest value allowed; not above `ceiling`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    floor: Option<Integer>,
    /// The highest value allowed; not below `floor`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = i64, required = false)]
    ceiling: Option<Integer>,
    /// What to do at a bound; `refuse` by default. Needs `floor` or `ceiling`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = AtBound, required = false)]
    on_bound: Option<AtBound>,
}

/// The result of each increment, in order.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the schema of what `answer` writes")]
struct BatchAnswer<'a> {
    /// One per item, in order.
    results: Vec<ItemAnswer<'a>>,
    /// Items applied, including those answered as duplicates.
    #[schema(example = 1)]
    succeeded: usize,
    /// Items that failed.
    #[schema(example = 0)]
    failed: usize,
}

/// The result of one increment.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum ItemAnswer<'a> {
    /// It was applied.
    #[allow(dead_code, reason = "the schema of what `WriteAnswers` writes")]
    Written(WriteAnswer<'a>),
    /// It was not.
    Failed {
        /// The key; `null` if the item has no valid one.
        #[schema(required)]
        key: Option<&'a str>,
        /// The reason.
        error: ProblemJson<'a>,
    },
}

/// The result of admission for one item.
enum Verdict<'a> {
    /// It goes to the engine.
    Admitted(Cow<'a, str>, RequestedChange),
    /// It does not; with its key, if it has a valid one.
    Denied(Option<Cow<'a, str>>, Problem),
}

impl Verdict<'_> {
    /// Maximum size of the item in the answer.
    fn answer_bytes_max(&self) -> usize {
        /// Everything but the key and the detail of a problem: names, numbers, and the longest type and title.
        const FIELDS_BYTES_MAX: usize = 512;
        /// The longest detail of a change that the counter refused.
        const REFUSAL_BYTES_MAX: usize = 384;
        let key_bytes = |key: &str| escaped_bytes(key.as_bytes());
        FIELDS_BYTES_MAX
            + match self {
                Verdict::Admitted(key, _) => key_bytes(key) + REFUSAL_BYTES_MAX,
                Verdict::Denied(key, problem) => {
                    key.as_deref().map_or(0, key_bytes) + escaped_bytes(problem.detail().as_bytes())
                }
            }
    }
}

/// Add to many counters.
///
/// Up to 10,000 increments, applied in order. Each succeeds or fails on its own; results are in the same order.
#[utoipa::path(
    post, path = "/api/v1/counters/batch-increment", tag = "counters",
    request_body(content = BatchSchema, example = json!({
        "increments": [{ "key": "likes:post:42", "amount": 5 }, { "key": "likes:post:43" }],
    })),
    responses((status = 200, description = "The result of each increment, in order", body = BatchAnswer), BatchProblems),
)]
pub async fn batch_increment(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    Query::none(&parts.uri)?;
    let instead = "a batch takes no `Idempotency-Key`; give each item its own `request_id`";
    idempotency::refuse_header(&parts.headers, instead)?;
    // The room is held until the answer is built, because the parsed items take memory too.
    let (bytes, _room) = app.batch_room.collect(&parts.headers, body).await?;
    let mut writes = app.service.writes()?;
    let caller = Peer::caller_of(&parts.extensions);
    let access = app.access(&caller, Action::Add);
    let verdicts = BatchAdmission { access, writes: &mut writes }.judge_all(&bytes)?;
    // Before the change is made: afterwards it is too late to refuse.
    let room = app.answer_room.reserve(verdicts.iter().map(Verdict::answer_bytes_max).sum()).await?;
    Ok(room.hold(answer(&verdicts, writes.submit().await?)?))
}

/// Admits the items of a batch. Admitted ones are added to `writes`.
struct BatchAdmission<'a, 'w> {
    access: KeyAccess<'a>,
    writes: &'a mut Writes<'w>,
}

impl BatchAdmission<'_, '_> {
    /// Parses and admits all items.
    fn judge_all<'b>(&mut self, bytes: &'b [u8]) -> Result<Vec<Verdict<'b>>, Problem> {
        if let Some(batch) = body::try_parse::<BatchBody<Object<Item<'_>>>>(bytes) {
            return Ok(batch.admitted()?.into_iter().map(|Object(item)| self.judge(item)).collect());
        }
        // An item is invalid: parse each on its own, so that only that one fails.
        let batch: BatchBody<&RawValue> = body::parse(bytes)?;
        let judge_raw = |raw: &'b RawValue| match body::parse(raw.get().as_bytes()) {
            Ok(item) => self.judge(item),
            Err(problem) => Verdict::Denied(key_of_broken(raw), problem),
        };
        Ok(batch.admitted()?.into_iter().map(judge_raw).collect())
    }

    fn judge<'b>(&mut self, item: Item<'b>) -> Verdict<'b> {
        let KeyAccess { admission, caller, action } = self.access;
        let key = match admission.admit(caller, item.key.as_bytes(), action) {
            Ok(key) => key,
            Err(denied) => return Verdict::Denied(None, denied.into()),
        };
        if item.is_plain() {
            return match admission::amount(item.amount.map_or(1, |amount| amount.0)) {
                Ok(delta) => {
                    self.writes.add(key, delta);
                    Verdict::Admitted(item.key, RequestedChange::add(delta))
                }
                Err(denied) => Verdict::Denied(Some(item.key), denied.into()),
            };
        }
        match admit(&item, key) {
            Ok(intent) => {
                let requested = RequestedChange::of(&intent);
                self.writes.push(key, intent);
                Verdict::Admitted(item.key, requested)
            }
            Err(problem) => Verdict::Denied(Some(item.key), problem),
        }
    }
}

impl Item<'_> {
    /// Whether it has nothing but a key and an amount.
    fn is_plain(&self) -> bool {
        self.request_id.is_none() && self.floor.is_none() && self.ceiling.is_none() && self.on_bound.is_none()
    }
}

fn admit(item: &Item<'_>, key: KeyRef<'_>) -> Result<Intent, Problem> {
    let Item { amount, ref request_id, floor, ceiling, on_bound, .. } = *item;
    let request_id = request_id.as_ref().map(|id| admission::request_id(key, id.as_bytes())).transpose()?;
    let amount = Amount { amount, request_id: None, floor, ceiling, on_bound };
    Ok(Intent { request_id, ..amount.admit(Direction::Up)? })
}

/// The key of an invalid item, for its result.
fn key_of_broken(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct OnlyKey<'a> {
        #[serde(borrow)]
        key: Cow<'a, str>,
    }
    let only: OnlyKey<'_> = body::parse(raw.get().as_bytes()).ok()?;
    // The key is only echoed, so it needs no admission.
    KeyRef::new(only.key.as_bytes()).is_ok().then_some(only.key)
}

/// Writes the answer piece by piece: building a list first costs more than counting does.
fn answer(verdicts: &[Verdict<'_>], mut written: impl Iterator<Item = WriteResult>) -> Result<Response, Problem> {
    let mut body = WriteAnswers::with_capacity(verdicts.len());
    body.raw(b"{\"results\":[");
    let mut failed = 0;
    for (at, verdict) in verdicts.iter().enumerate() {
        if at > 0 {
            body.raw(b",");
        }
        let refusal = match verdict {
            Verdict::Denied(key, problem) => Some((key.as_deref(), Cow::Borrowed(problem))),
            Verdict::Admitted(key, requested) => {
                let no_outcome = || Problem::new(Kind::Internal, "the engine returned no outcome for an item");
                let written = written.next().ok_or_else(no_outcome)?;
                let refusal = Problem::of_outcome(&written.outcome, requested);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tally_core::event::{Bounds, OnBound};
    use tally_core::limits::KEY_BYTES_MAX;
    use tally_core::outcome::{Outcome, Refusal, Token};
    use tally_core::time::{Millis, Position};

    use super::super::answer_room::readings_bytes_max;
    use super::*;
    use crate::policy::Consistency;

    #[test]
    fn no_item_of_an_answer_is_larger_than_expected() {
        let refusals = [Refusal::Overflow, Refusal::Bound, Refusal::NotExpected, Refusal::PayloadMismatch];
        let refusals = refusals.into_iter().map(Some).chain([Some(Refusal::NoRoom), Some(Refusal::BestEffort), None]);
        let bounds = Bounds { floor: Some(i64::MIN), ceiling: Some(i64::MIN), on_bound: OnBound::Refuse };
        let details = tally_core::event::Details { bounds: Some(bounds), ..Default::default() };
        let intent =
            Intent { change: tally_core::event::Change::Add(i64::MAX), request_id: None, details: Some(details) };
        let key: Cow<'_, str> = Cow::Owned("\u{1}".repeat(KEY_BYTES_MAX));
        for refusal in refusals {
            let verdict = Verdict::Admitted(key.clone(), RequestedChange::of(&intent));
            let outcome = Outcome {
                value: i64::MIN,
                applied: i64::MIN,
                exists: false,
                exact: false,
                duplicate: Some(true),
                refusal,
                at: Millis(u64::MAX),
            };
            let written = WriteResult {
                outcome,
                as_of: outcome.at,
                token: Token::new(u32::MAX, Position(u64::MAX)),
                consistency: Consistency::BestEffort,
            };
            let expected = verdict.answer_bytes_max();
            let response = answer(&[verdict], std::iter::once(written)).unwrap();
            let bytes = axum::body::HttpBody::size_hint(response.body()).lower() as usize;
            assert!(bytes <= expected, "{refusal:?}: {bytes} bytes, {expected} expected");
            assert!(readings_bytes_max(std::iter::once(key.as_bytes())) >= escaped_bytes(key.as_bytes()));
        }
        for kind in Kind::ALL {
            let verdict = Verdict::Denied(Some(key.clone()), Problem::new(*kind, "\u{1}\"\n"));
            let expected = verdict.answer_bytes_max();
            let response = answer(&[verdict], std::iter::empty()).unwrap();
            let bytes = axum::body::HttpBody::size_hint(response.body()).lower() as usize;
            assert!(bytes <= expected, "{kind:?}: {bytes} bytes, {expected} expected");
        }
    }
}
