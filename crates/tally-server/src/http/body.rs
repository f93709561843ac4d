//! Reads request bodies within limits and parses them as JSON, with errors that name the field.
//!
//! The content type is not checked, because `curl -d '{"amount":5}'` sends that of a form.

use std::fmt;
use std::marker::PhantomData;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::error::Category;
use tally_core::limits::BODY_BYTES_MAX;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::problem::{Kind, Problem};
use crate::hint::{did_you_mean, shorten};
use crate::limits::{BATCH_BODIES_BYTES_MAX, BATCH_STEP_BYTES_MIN, BODY_READ_MAX, CALL_BODY_BYTES_MAX};

/// The items of a list. Those over the limit are only counted.
pub struct Items<T, const MAX: usize> {
    /// The first ones.
    pub first: Vec<T>,
    /// How many there are.
    pub count: usize,
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Items<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemsVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ItemsVisitor<T, MAX> {
            type Value = Items<T, MAX>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an array of items")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Items<T, MAX>, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX
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

        deserializer.deserialize_seq(ItemsVisitor(PhantomData))
    }
}

/// Fields reserved for a later version.
const UNSUPPORTED: [&str; 3] = ["member", "dimensions", "at"];
const DETAIL_CHARS_MAX: usize = 300;

/// Reads the body of a call about one counter, within a size and a time limit.
pub async fn collect(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    collect_up_to(CALL_BODY_BYTES_MAX, headers, body).await
}

/// Memory that the bodies of all concurrent batches share.
///
/// A body takes room as it arrives: the length that a client announces reserves nothing. Many large bodies that arrive
/// at once could then each hold a part and wait for the rest. To prevent that deadlock, one body at a time may use a
/// reserve that is large enough for any body, so it completes or times out.
pub struct BatchBudget {
    shared: Semaphore,
    /// The right to use the reserve.
    spare: Semaphore,
}

impl Default for BatchBudget {
    fn default() -> Self {
        BatchBudget { shared: Semaphore::new(BATCH_BODIES_BYTES_MAX - BODY_BYTES_MAX), spare: Semaphore::new(1) }
    }
}

impl BatchBudget {
    /// Reads the body of a batch. Its memory is reserved until the [`BodyReservation`] is dropped. The time limit includes the
    /// time it waits for room.
    pub async fn collect(&self, headers: &HeaderMap, body: Body) -> Result<(Vec<u8>, BodyReservation<'_>), Problem> {
        let announced = announced(headers).unwrap_or(BODY_BYTES_MAX as u64);
        if announced > BODY_BYTES_MAX as u64 {
            return Err(too_large(BODY_BYTES_MAX));
        }
        let mut room = BodyReservation { of: self, shared: None, spare: None, is_waiting: false };
        match tokio::time::timeout(BODY_READ_MAX, room.read(body, announced as usize)).await {
            Ok(read) => Ok((read?, room)),
            Err(_) if room.is_waiting => Err(Problem::overloaded("too many batches are in progress")),
            Err(_) => Err(timed_out()),
        }
    }
}

/// The memory of one body.
pub struct BodyReservation<'a> {
    of: &'a BatchBudget,
    shared: Option<SemaphorePermit<'a>>,
    spare: Option<SemaphorePermit<'a>>,
    is_waiting: bool,
}

impl BodyReservation<'_> {
    async fn read(&mut self, mut body: Body, announced: usize) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            // Trailers are ignored.
            let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
            let len = bytes.len() + data.len();
            if len > BODY_BYTES_MAX {
                return Err(too_large(BODY_BYTES_MAX));
            }
            if len > bytes.capacity() {
                let capacity = len.next_power_of_two().max(BATCH_STEP_BYTES_MIN).min(announced.max(len));
                self.grow(capacity).await;
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    /// Waits until the body may take this much memory.
    async fn grow(&mut self, bytes: usize) {
        let held = self.shared.as_ref().map_or(0, SemaphorePermit::num_permits);
        if self.spare.is_some() || bytes <= held {
            return;
        }
        self.is_waiting = true;
        tokio::select! {
            biased;
            Ok(more) = self.of.shared.acquire_many((bytes - held) as u32) => match &mut self.shared {
                Some(shared) => shared.merge(more),
                none => *none = Some(more),
            },
            Ok(spare) = self.of.spare.acquire() => self.spare = Some(spare),
            // The semaphores are never closed.
            else => {}
        }
        self.is_waiting = false;
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

async fn collect_up_to(bytes_max: usize, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // A body whose announced length is too large is refused before it is read.
    if announced(headers).is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    match tokio::time::timeout(BODY_READ_MAX, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(bytes_max)),
        Ok(Err(error)) => Err(unreadable(error)),
        Err(_) => Err(timed_out()),
    }
}

fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::new(Kind::UnreadableBody, format!("the body is incomplete: {error}"))
}

fn timed_out() -> Problem {
    let detail = format!("the body did not arrive within {} s", BODY_READ_MAX.as_secs());
    Problem::new(Kind::BodyTimeout, detail)
}

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("the body has more than the {bytes_max} bytes allowed for this call");
    Problem::new(Kind::BodyTooLarge, detail)
}

/// Parses a JSON object.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    try_parse(bytes).ok_or_else(|| diagnose::<T>(bytes))
}

/// The same, without an explanation of what is wrong.
pub fn try_parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    // Validating UTF-8 once is faster than string by string.
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str::<Object<T>>(text).ok().map(|Object(fields)| fields)
}

/// The fields of a JSON object. A derived struct would also accept an array with its fields in order.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Requests an object, whatever the visitor requests.
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

/// Parses the body again, slowly, to name the field that is wrong and what it should be.
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
                Ok(()) => Problem::new(Kind::Internal, "the body was refused for an unknown reason"),
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
    // The field says more than line and column, which would be wrong for an item of a batch anyway.
    let message = message.split(" at line ").next().unwrap_or_default();
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Problem::new(Kind::MissingField, format!("`{name}` is missing; this call requires it"));
    }
    match message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, ")) {
        Some((name, known)) => unknown_field(name, known),
        // The message about an object as a whole already names the field.
        None if path == "." => Problem::new(Kind::InvalidField, shorten(message, DETAIL_CHARS_MAX)),
        None => Problem::new(Kind::InvalidField, shorten(&format!("`{path}`: {message}"), DETAIL_CHARS_MAX)),
    }
}

fn invalid_json(error: &serde_json::Error) -> Problem {
    Problem::new(Kind::InvalidJson, shorten(&format!("the body is not JSON: {error}"), DETAIL_CHARS_MAX))
}

/// `known` is the rest of serde's message, which has the known fields in backticks.
fn unknown_field(name: &str, known: &str) -> Problem {
    if UNSUPPORTED.contains(&name) {
        let detail = format!("`{name}` is not supported in this version; leave it out");
        return Problem::new(Kind::UnsupportedField, detail);
    }
    let hint = did_you_mean(name, known.split('`').skip(1).step_by(2));
    let detail = format!("`{}` is not a field of this call; {hint}", shorten(name, 64));
    Problem::new(Kind::UnknownField, detail)
}

/// A 64-bit integer, and not `5.0`, `1e3` or `"5"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer(pub i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(IntegerVisitor { minimum: i64::MIN })
    }
}

/// Accepts any integer; `minimum` is only for the message.
struct IntegerVisitor {
    minimum: i64,
}

impl Visitor<'_> for IntegerVisitor {
    type Value = Integer;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an integer from {} to {}", self.minimum, i64::MAX)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Integer, E> {
        Ok(Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Integer, E> {
        let out_of_range = |_| E::invalid_value(de::Unexpected::Unsigned(value), &self);
        i64::try_from(value).map(Integer).map_err(out_of_range)
    }
}

/// An amount: optional, but not `null`. Admission refuses what is not positive, with a hint.
pub fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Integer>, D::Error> {
    deserializer.deserialize_i64(IntegerVisitor { minimum: 1 }).map(Some)
}

/// For a field that is optional, but not `null`.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn headers(announced: usize) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, announced.into())])
    }

    #[tokio::test]
    async fn a_body_takes_room_for_what_has_arrived_not_for_what_is_announced() {
        let room = BatchBudget::default();
        let free = room.shared.available_permits();
        for (arrived, taken) in [(1, 4 << 10), (5_000, 8 << 10), (9 << 20, 16 << 20)] {
            let body = Body::from(vec![b' '; arrived]);
            let (bytes, held) = room.collect(&headers(BODY_BYTES_MAX), body).await.unwrap();
            assert_eq!((bytes.len(), free - room.shared.available_permits()), (arrived, taken));
            drop(held);
        }
        let (bytes, _held) = room.collect(&headers(5_000), Body::from(vec![b' '; 5_000])).await.unwrap();
        assert_eq!((bytes.len(), free - room.shared.available_permits()), (5_000, 5_000));
    }

    #[tokio::test]
    async fn one_body_is_read_even_if_the_shared_room_is_used_up() {
        let room = BatchBudget::default();
        let _all = room.shared.acquire_many(room.shared.available_permits() as u32).await.unwrap();
        for _ in 0..2 {
            let body = Body::from(vec![b' '; BODY_BYTES_MAX]);
            let (bytes, held) = room.collect(&headers(BODY_BYTES_MAX), body).await.unwrap();
            assert_eq!((bytes.len(), room.spare.available_permits()), (BODY_BYTES_MAX, 0));
            drop(held);
        }
    }

    /// Takes as long as the timeout for a body.
    #[tokio::test]
    async fn a_body_that_gets_no_room_in_time_is_refused_with_retry_after() {
        let room = BatchBudget::default();
        let _all = room.shared.acquire_many(room.shared.available_permits() as u32).await.unwrap();
        let _spare = room.spare.acquire().await.unwrap();
        let Err(problem) = room.collect(&headers(1), Body::from("{")).await else { panic!("it was read") };
        assert_eq!(problem.kind, Kind::Overloaded);
        assert_eq!(problem.render("/").headers()[header::RETRY_AFTER], "1");
        // The body that timed out no longer waits for room.
        assert_eq!(room.shared.available_permits() + room.spare.available_permits(), 0);
    }
}
