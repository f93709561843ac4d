//! The JSON that calls return.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use data_encoding::HEXLOWER;
use serde::{Serialize, Serializer};
use tally_core::ledger::{CorrectionKind, LedgerEntry};
use tally_core::outcome::{Outcome, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::time::Millis;
use utoipa::ToSchema;

use crate::limits::ANSWER_BYTES_FREE;
use crate::policy::Consistency;
use crate::service::WriteResult;

/// Marks a replayed answer.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const ANSWER_BYTES: usize = 256;

/// An answer in JSON.
pub fn json<T: Serialize>(status: StatusCode, answer: &T) -> Response {
    let mut body = Vec::with_capacity(ANSWER_BYTES);
    put_json(&mut body, answer);
    respond(status, body)
}

fn put_json<T: Serialize + ?Sized>(body: &mut Vec<u8>, value: &T) {
    let before = body.len();
    // Writing plain data to memory cannot fail.
    if serde_json::to_writer(&mut *body, value).is_err() {
        body.truncate(before);
    }
}

fn respond(status: StatusCode, mut body: Vec<u8>) -> Response {
    // A terminal then shows its prompt on a new line.
    body.push(b'\n');
    if body.len() > ANSWER_BYTES_FREE {
        // Only the length counts towards the shared limit, so spare capacity is freed.
        body.shrink_to_fit();
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The outcome of a write.
#[derive(Serialize, ToSchema)]
pub struct WriteAnswer<'a> {
    /// The key.
    #[schema(example = "likes:post:42")]
    key: &'a str,
    /// The value after the write. In a replayed answer, the value of the first one: the counter may have changed since.
    #[schema(example = 5)]
    value: i64,
    /// The change applied, with its sign.
    #[schema(example = 5)]
    applied: i64,
    /// Whether the request id was used before and this is the first answer again. `null` if that is not known yet.
    #[schema(required, example = false)]
    duplicate: Option<bool>,
    /// Whether the value is final, not an estimate. Always `false` in `best-effort`, where a crash can undo it.
    #[schema(example = true)]
    exact: bool,
    /// When the change was made; in a replayed answer, the time of the first one.
    #[schema(value_type = String, format = DateTime, example = "2026-03-02T09:14:07.482Z")]
    as_of: Timestamp,
    /// Identifies the write. Opaque. A read with `?token=` includes the write or gets 503. In a replayed answer it may be
    /// newer. Absent after an increment in a `best-effort` namespace of a cluster, because no read can wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "60")]
    token: Option<Displayed<Token>>,
    /// Whether the counter exists after the write.
    #[schema(example = true)]
    exists: bool,
    /// The consistency of the namespace.
    #[schema(value_type = String, example = "eventual")]
    consistency: &'static str,
}

impl<'a> WriteAnswer<'a> {
    /// The answer to a write of `key`.
    pub fn new(key: &'a str, written: &WriteResult) -> Self {
        let WriteResult { outcome, as_of, token, consistency } = written.clone();
        let names_a_position = token.positions().next().is_some();
        WriteAnswer {
            key,
            value: outcome.value,
            applied: outcome.applied,
            duplicate: outcome.duplicate,
            exact: outcome.exact && consistency != Consistency::BestEffort,
            as_of: Timestamp(as_of),
            token: if names_a_position { Some(Displayed(token)) } else { None },
            exists: outcome.exists,
            consistency: consistency.name(),
        }
    }
}

/// The answers of a batch, written by hand. Everything except the key and the numbers is the same for nearly every item,
/// and is rendered only when it changes: rendering it each time costs more than counting does.
pub struct WriteAnswers {
    body: Vec<u8>,
    /// The end of the previous answer, from `duplicate` on.
    end: Vec<u8>,
    end_of: Option<WriteResult>,
}

impl WriteAnswers {
    /// Allocates for this many answers.
    pub fn with_capacity(answers: usize) -> Self {
        WriteAnswers { body: Vec::with_capacity(ANSWER_BYTES * (answers + 1)), end: Vec::new(), end_of: None }
    }

    /// Appends JSON.
    pub fn raw(&mut self, json: &[u8]) {
        self.body.extend_from_slice(json);
    }

    /// Appends a value.
    pub fn value<T: Serialize>(&mut self, value: &T) {
        put_json(&mut self.body, value);
    }

    /// Appends the [`WriteAnswer`] of a write of `key`.
    pub fn written(&mut self, key: &str, written: &WriteResult) {
        if !self.end_of.as_ref().is_some_and(|last| has_same_end(last, written)) {
            self.end_of = Some(written.clone());
            self.render_end(written);
        }
        let outcome = &written.outcome;
        self.raw(b"{\"key\":");
        self.value(&key);
        self.raw(b",\"value\":");
        self.value(&outcome.value);
        self.raw(b",\"applied\":");
        self.value(&outcome.applied);
        self.body.extend_from_slice(&self.end);
    }

    fn render_end(&mut self, written: &WriteResult) {
        const FIRST: &[u8] = b",\"duplicate\":";
        self.end.clear();
        put_json(&mut self.end, &WriteAnswer::new("", written));
        let starts = self.end.windows(FIRST.len()).position(|bytes| bytes == FIRST).unwrap_or_default();
        self.end.drain(..starts);
    }

    /// The complete response.
    pub fn into_response(self) -> Response {
        respond(StatusCode::OK, self.body)
    }
}

/// Whether the answers to two writes are the same from `duplicate` on.
fn has_same_end(one: &WriteResult, other: &WriteResult) -> bool {
    let flags = |outcome: &Outcome| (outcome.duplicate, outcome.exact, outcome.exists);
    let end = |written: &WriteResult| (flags(&written.outcome), written.as_of, written.consistency);
    end(one) == end(other) && one.token == other.token
}

/// A reading of a counter.
#[derive(Serialize, ToSchema)]
pub struct ReadAnswer<'a> {
    /// The key; `null` if it is not UTF-8, in which case `key_hex` has it.
    #[schema(required, example = "likes:post:42")]
    key: Option<&'a str>,
    /// The bytes of a key that is not UTF-8, in hexadecimal. Such keys can be written only over the Redis protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "6c696b6573ff")]
    key_hex: Option<Hex<'a>>,
    /// The value; 0 for a counter that does not exist.
    #[schema(example = 5)]
    value: i64,
    /// Whether every acknowledged change is in the value, and no crash can undo it.
    #[schema(example = true)]
    exact: bool,
    /// The time of the reading.
    #[schema(value_type = String, format = DateTime, example = "2026-03-02T09:14:07.482Z")]
    as_of: Timestamp,
    /// How old the reading was when it was answered.
    staleness_ms: u64,
    /// Whether the counter exists.
    #[schema(example = true)]
    exists: bool,
    /// The number of sub-counters; 1 unless the namespace of a cluster is `best-effort`.
    #[schema(example = 1)]
    shards: u32,
    /// `true` if some sub-counters could not be reached, so that the value lacks what they counted; otherwise absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    partial: bool,
    /// The time of the first change; `null` if there was none.
    #[schema(value_type = Option<String>, required, format = DateTime, example = "2026-03-02T09:14:07.482Z")]
    created_at: Option<Timestamp>,
    /// The time of the last change; `null` if there was none.
    #[schema(value_type = Option<String>, required, format = DateTime, example = "2026-03-02T09:14:07.482Z")]
    updated_at: Option<Timestamp>,
    /// When the counter expires; absent if it does not. Times after the year 9999 are shown as its last millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// The consistency of the reading.
    #[schema(value_type = String, example = "eventual")]
    consistency: &'static str,
}

impl<'a> ReadAnswer<'a> {
    /// The reading of `key`.
    pub fn new(key: &'a [u8], reading: &Reading, consistency: Consistency) -> Self {
        let text = std::str::from_utf8(key).ok();
        ReadAnswer {
            key: text,
            key_hex: text.is_none().then_some(Hex(key)),
            value: reading.value,
            exact: reading.exact && consistency != Consistency::BestEffort,
            as_of: Timestamp(reading.as_of),
            staleness_ms: reading.staleness_ms,
            exists: reading.exists,
            shards: reading.shards,
            partial: reading.partial,
            created_at: reading.created_at.map(Timestamp),
            updated_at: reading.updated_at.map(Timestamp),
            expires_at: reading.expires_at.map(Timestamp),
            consistency: consistency.name(),
        }
    }
}

/// A reading with statistics.
#[derive(Serialize, ToSchema)]
pub struct StatsAnswer<'a> {
    #[serde(flatten)]
    reading: ReadAnswer<'a>,
    /// The same as `value`.
    #[schema(example = 5)]
    total: i64,
    /// The sum of everything ever added, including corrections.
    #[schema(example = 7)]
    increments: u64,
    /// The sum of everything ever subtracted, including corrections, as a positive number.
    #[schema(example = 2)]
    decrements: u64,
    /// The lowest value ever, including the initial 0.
    min: i64,
    /// The highest value ever, including the initial 0.
    #[schema(example = 7)]
    max: i64,
    /// Net change per second over the last second: a sliding-window estimate, without corrections.
    #[schema(example = 5.0)]
    rate_1s: f64,
    /// Net change per second over the last minute, estimated the same way.
    #[schema(example = 0.08)]
    rate_1m: f64,
    /// Net change per second over the last hour, estimated the same way.
    #[schema(example = 0.001)]
    rate_1h: f64,
    /// The value of each sub-counter.
    #[schema(example = json!([5]))]
    shard_values: &'a [i64],
    /// Writes per second to each sub-counter; absent if the counter has none.
    #[serde(skip_serializing_if = "<[f64]>::is_empty")]
    #[schema(required = false)]
    shard_loads: &'a [f64],
}

impl<'a> StatsAnswer<'a> {
    /// The statistics of `key`.
    pub fn new(key: &'a [u8], stats: &'a Stats, consistency: Consistency) -> Self {
        StatsAnswer {
            reading: ReadAnswer::new(key, &stats.reading, consistency),
            total: stats.reading.value,
            increments: stats.increments,
            decrements: stats.decrements,
            min: stats.min,
            max: stats.max,
            rate_1s: stats.rate_1s,
            rate_1m: stats.rate_1m,
            rate_1h: stats.rate_1h,
            shard_values: &stats.shard_values,
            shard_loads: &stats.shard_loads,
        }
    }
}

/// One correction.
#[derive(Serialize, ToSchema)]
pub struct LedgerEntryAnswer<'a> {
    /// The number of the entry, from 1.
    #[schema(example = 1)]
    seq: u64,
    /// When it was made.
    #[schema(value_type = String, format = DateTime, example = "2026-03-02T09:14:07.482Z")]
    at: Timestamp,
    /// `set`, `reset`, `adjust` or `delete`.
    #[schema(example = "adjust")]
    kind: &'static str,
    /// Who made it.
    #[schema(example = "anonymous@127.0.0.1")]
    actor: &'a str,
    /// The reason given.
    #[schema(example = "two likes came from bots")]
    reason: &'a str,
    /// The value before.
    #[schema(example = 5)]
    before: i64,
    /// The value after.
    #[schema(example = 3)]
    after: i64,
    /// SHA-256 of the previous entry, in hexadecimal.
    #[schema(value_type = String, example = "0000000000000000000000000000000000000000000000000000000000000000")]
    previous: Hex<'a>,
    /// SHA-256 of this entry and, through `previous`, of all before it.
    #[schema(value_type = String, example = "675e8998c17147a8004ae36d096bdb0b8060ba85a9be5f2c4c383b3d65f3db89")]
    hash: Hex<'a>,
}

impl<'a> LedgerEntryAnswer<'a> {
    /// One entry of a ledger.
    pub fn new(entry: &'a LedgerEntry) -> Self {
        LedgerEntryAnswer {
            seq: entry.seq,
            at: Timestamp(entry.at),
            kind: match entry.kind {
                CorrectionKind::Set => "set",
                CorrectionKind::Reset => "reset",
                CorrectionKind::Adjust => "adjust",
                CorrectionKind::Delete => "delete",
            },
            actor: &entry.actor,
            reason: &entry.reason,
            before: entry.before,
            after: entry.after,
            previous: Hex(&entry.previous),
            hash: Hex(&entry.hash),
        }
    }
}

/// A time as RFC 3339 in UTC, with milliseconds.
pub struct Timestamp(pub Millis);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const LAST_OF_YEAR_9999: u64 = 253_402_300_799_999;
        let at = UNIX_EPOCH + Duration::from_millis(self.0.0.min(LAST_OF_YEAR_9999));
        humantime::format_rfc3339_millis(at).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Anything that implements `Display`, as a JSON string.
struct Displayed<T>(T);

impl<T: fmt::Display> Serialize for Displayed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&HEXLOWER.encode_display(self.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tally_core::outcome::Outcome;

    #[test]
    fn an_answer_in_a_batch_is_the_same_as_a_single_one() {
        let keys = ["a", "é\n\"\\", ",\"duplicate\":", ""];
        let mut together = WriteAnswers::with_capacity(1);
        let mut single = Vec::new();
        // Each part changes at its own interval.
        for n in 0..64_u64 {
            let outcome = Outcome {
                value: [0, -1, i64::MAX, i64::MIN][n as usize % 4],
                applied: n as i64 / 2 - 7,
                exists: n % 5 != 0,
                exact: n / 8 % 2 == 0,
                duplicate: [None, Some(false), Some(true)][n as usize % 3],
                refusal: None,
                at: Millis(n / 8),
            };
            let consistency = Consistency::ALL[n as usize / 16];
            let written = WriteResult {
                outcome,
                as_of: outcome.at,
                token: Token::new(0, tally_core::time::Position(n / 32)),
                consistency,
            };
            let key = keys[n as usize / 3 % keys.len()];
            together.written(key, &written);
            put_json(&mut single, &WriteAnswer::new(key, &written));
        }
        assert_eq!(String::from_utf8(together.body).unwrap(), String::from_utf8(single).unwrap());
    }

    #[test]
    fn a_key_that_is_not_utf8_is_shown_in_hexadecimal() {
        let reading = Reading {
            value: 7,
            exists: true,
            exact: true,
            as_of: Millis(1_772_442_847_482),
            staleness_ms: 0,
            created_at: None,
            updated_at: Some(Millis(u64::MAX)),
            expires_at: None,
            shards: 1,
            partial: false,
        };
        let shown = |key| serde_json::to_value(ReadAnswer::new(key, &reading, Consistency::Eventual)).unwrap();
        let odd = shown(b"a\xff");
        assert_eq!((&odd["key"], &odd["key_hex"]), (&serde_json::Value::Null, &"61ff".into()));
        assert_eq!((&odd["as_of"], &odd["created_at"]), (&"2026-03-02T09:14:07.482Z".into(), &serde_json::Value::Null));
        let plain = shown("é".as_bytes());
        assert_eq!((&plain["key"], plain.get("key_hex")), (&"é".into(), None));
    }
}
