//! Bodies: taking them in within bounds, and reading them as JSON with errors that name the field.
//!
//! The content type is not checked: `curl -d '{"amount":5}'` sends a form's, and means JSON.

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::error::Category;
use tally_core::limits::BODY_BYTES_MAX;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::problem::{Kind, Problem};
use crate::hint::{did_you_mean, shorten};
use crate::limits::{BATCH_BODIES_BYTES_MAX, BODY_READ_MAX, CALL_BODY_BYTES_MAX};

/// Fields the contract has and this version does not.
const UNSUPPORTED: [&str; 3] = ["member", "dimensions", "at"];
const DETAIL_CHARS_MAX: usize = 300;

/// The whole body of a call about one counter, if it is small enough and arrives in time.
pub async fn collect(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    collect_up_to(CALL_BODY_BYTES_MAX, headers, body).await
}

/// Room for the bodies of batches: all that are in memory at once share it.
pub struct BatchRoom(Semaphore);

impl Default for BatchRoom {
    fn default() -> Self {
        BatchRoom(Semaphore::new(BATCH_BODIES_BYTES_MAX))
    }
}

impl BatchRoom {
    /// The whole body of a batch. It holds its share of the room for as long as the second part lives.
    pub async fn collect(&self, headers: &HeaderMap, body: Body) -> Result<(Bytes, SemaphorePermit<'_>), Problem> {
        let expected = announced(headers).unwrap_or(BODY_BYTES_MAX as u64).min(BODY_BYTES_MAX as u64);
        let room = tokio::time::timeout(BODY_READ_MAX, self.0.acquire_many(expected as u32)).await;
        let Ok(Ok(room)) = room else {
            return Err(Problem::overloaded("too many batches are being read at once"));
        };
        Ok((collect_up_to(BODY_BYTES_MAX, headers, body).await?, room))
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

async fn collect_up_to(bytes_max: usize, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // A length that is too large is refused before any of it is read.
    if announced(headers).is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    match tokio::time::timeout(BODY_READ_MAX, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(bytes_max)),
        Ok(Err(error)) => Err(Problem::new(Kind::UnreadableBody, format!("the body did not arrive whole: {error}"))),
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_READ_MAX.as_secs());
            Err(Problem::new(Kind::BodyTimeout, detail))
        }
    }
}

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body has more than the {bytes_max} bytes this call takes; send less, or in parts");
    Problem::new(Kind::BodyTooLarge, detail)
}

/// A JSON object as the call's fields. An empty body is an empty object where the call allows it.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    parse_at_once(bytes).ok_or_else(|| diagnose::<T>(bytes))
}

/// The same, without a word about what is wrong.
pub fn parse_at_once<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    // Checked as a whole, because that is faster than string by string.
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str::<Object<T>>(text).ok().map(|Object(fields)| fields)
}

/// The fields of a JSON object, and of nothing else: a struct alone would take an array, field by field, as well.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Asks for an object, whatever is asked of it.
        struct AsObject<D>(D);

        impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsObject<D> {
            type Error = D::Error;

            fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.0.deserialize_map(visitor)
            }

            forward_to_deserialize_any! {
                bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
                unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
            }
        }

        T::deserialize(AsObject(deserializer)).map(Object)
    }
}

/// Reads the body again, slowly, to say which field is wrong and what it should be.
#[cold]
fn diagnose<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Problem {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Problem::new(Kind::InvalidJson, format!("the body is not JSON: {error}")),
    };
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'{') => {}
        None => return Problem::new(Kind::InvalidJson, "the body is empty; it must be a JSON object"),
        Some(_) => {
            return match serde_json::from_str::<de::IgnoredAny>(text) {
                Ok(_) => Problem::new(Kind::InvalidField, "the JSON is not an object; it must be `{…}`"),
                Err(error) => invalid_json(&error),
            };
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let error = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => {
            return match deserializer.end() {
                Err(error) => invalid_json(&error),
                Ok(()) => Problem::new(Kind::Internal, "the body was refused without a reason"),
            };
        }
        Err(error) => error,
    };
    let path = error.path().to_string();
    let error = error.into_inner();
    if error.classify() != Category::Data {
        return invalid_json(&error);
    }
    let message = error.to_string();
    // Where in the text it stands says less than the field does, and of an item in a batch it would say it wrongly.
    let message = message.split(" at line ").next().unwrap_or_default();
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Problem::new(Kind::MissingField, format!("`{name}` is missing; this call cannot do without it"));
    }
    match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, ")) {
        Some((name, known)) => unknown_field(name, known),
        // What is wrong with the object as a whole names its field in the message.
        None if path == "." => Problem::new(Kind::InvalidField, shorten(message, DETAIL_CHARS_MAX)),
        None => Problem::new(Kind::InvalidField, shorten(&format!("`{path}`: {message}"), DETAIL_CHARS_MAX)),
    }
}

fn invalid_json(error: &serde_json::Error) -> Problem {
    Problem::new(Kind::InvalidJson, shorten(&format!("the body is not JSON: {error}"), DETAIL_CHARS_MAX))
}

/// `known` is the rest of the message, which names the fields there are between backticks.
fn unknown_field(name: &str, known: &str) -> Problem {
    if UNSUPPORTED.contains(&name) {
        let detail = format!("`{name}` arrives with views; until then leave it out");
        return Problem::new(Kind::UnsupportedField, detail);
    }
    let hint = did_you_mean(name, known.split('`').skip(1).step_by(2));
    let detail = format!("`{}` is not a field of this call; {hint}", shorten(name, 64));
    Problem::new(Kind::UnknownField, detail)
}

/// A 64-bit integer, and nothing that merely could be one: not `5.0`, not `1e3`, not `"5"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer(pub i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(IntegerVisitor { least: i64::MIN })
    }
}

/// Takes any integer; `least` is what the message of one that is none says.
struct IntegerVisitor {
    least: i64,
}

impl Visitor<'_> for IntegerVisitor {
    type Value = Integer;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an integer from {} to {}", self.least, i64::MAX)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Integer, E> {
        Ok(Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Integer, E> {
        let out_of_range = |_| E::invalid_value(de::Unexpected::Unsigned(value), &self);
        i64::try_from(value).map(Integer).map_err(out_of_range)
    }
}

/// An amount that may be left out but must not be `null`. Admission refuses what is not positive, with a hint.
pub fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Integer>, D::Error> {
    deserializer.deserialize_i64(IntegerVisitor { least: 1 }).map(Some)
}

/// For a field that may be left out but must not be `null`: forgetting a value and sending none differ.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
