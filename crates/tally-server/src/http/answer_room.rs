//! Memory for answers that clients have not read yet, shared by all connections.
//!
//! A handler reserves room before it builds a large answer. The bytes passed to hyper hold the reservation, so it ends
//! when they are written or the connection ends. Small answers always have room.

use std::sync::Arc;

use axum::body::{Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use tally_core::limits::{KEY_BYTES_MAX, REASON_BYTES_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use crate::limits::{ANSWER_BYTES_FREE, ANSWERS_BYTES_MAX, LEDGER_PAGE_BYTES_MAX, WRITE_STALL_MAX};

/// A control character takes one byte in a text and six in JSON.
const ESCAPED_BYTES_MAX: usize = 6;
/// Maximum size of the fields of a reading or a ledger entry, without its texts.
const FIELDS_BYTES_MAX: usize = 512;
/// Maximum size of a reading. A key in hexadecimal takes fewer bytes than an escaped one.
const READING_BYTES_MAX: usize = FIELDS_BYTES_MAX + ESCAPED_BYTES_MAX * KEY_BYTES_MAX;

// Answers about one counter need no reservation.
const _: () = assert!(READING_BYTES_MAX + FIELDS_BYTES_MAX <= ANSWER_BYTES_FREE);

/// Maximum size of a page of readings, whatever its keys are.
pub const fn page_bytes_max(items: usize) -> usize {
    // One more for the cursor.
    (items + 1) * READING_BYTES_MAX
}

/// Maximum size of the readings of these keys.
pub fn readings_bytes_max<'a>(keys: impl Iterator<Item = &'a [u8]>) -> usize {
    FIELDS_BYTES_MAX + keys.map(|key| FIELDS_BYTES_MAX + escaped_bytes(key).max(2 * key.len())).sum::<usize>()
}

/// Maximum size of a page of a ledger.
pub fn ledger_bytes_max(items: usize) -> usize {
    let texts = LEDGER_PAGE_BYTES_MAX.min(items * 2 * REASON_BYTES_MAX) + 2 * REASON_BYTES_MAX;
    ESCAPED_BYTES_MAX * (texts + KEY_BYTES_MAX) + (items + 1) * FIELDS_BYTES_MAX
}

/// Bytes of a text in JSON.
pub fn escaped_bytes(text: &[u8]) -> usize {
    let escaped = |byte: &u8| match byte {
        0..0x20 => ESCAPED_BYTES_MAX,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.iter().map(escaped).sum()
}

/// Memory that all large answers share.
pub struct AnswerBudget(Arc<Semaphore>);

impl Default for AnswerBudget {
    fn default() -> Self {
        AnswerBudget(Arc::new(Semaphore::new(ANSWERS_BYTES_MAX)))
    }
}

/// Room for an answer that is about to be built.
pub struct AnswerReservation(Option<OwnedSemaphorePermit>);

/// The room of an answer, in the extensions of its response. `None` for a small answer.
#[derive(Clone)]
pub struct AnswerPermit(Option<Arc<OwnedSemaphorePermit>>);

impl AnswerBudget {
    /// Waits for room for an answer of at most `bytes`.
    pub async fn reserve(&self, bytes: usize) -> Result<AnswerReservation, Problem> {
        if bytes <= ANSWER_BYTES_FREE {
            return Ok(AnswerReservation(None));
        }
        let permit = Arc::clone(&self.0).acquire_many_owned(permits(bytes));
        // After this long, clients that do not read have been disconnected, which frees their room.
        match tokio::time::timeout(WRITE_STALL_MAX, permit).await {
            Ok(Ok(permit)) => Ok(AnswerReservation(Some(permit))),
            _ => Err(no_room()),
        }
    }

    /// Reserves room for a finished answer that has no reservation, such as documentation. If there is no room, the
    /// answer is refused, because waiting would keep it in memory.
    pub fn admit(&self, response: Response) -> Response {
        let bytes = body_bytes(&response);
        if bytes <= ANSWER_BYTES_FREE || response.extensions().get::<AnswerPermit>().is_some() {
            return response;
        }
        match Arc::clone(&self.0).try_acquire_many_owned(permits(bytes)) {
            Ok(permit) => AnswerReservation(Some(permit)).hold(response),
            Err(_) => no_room().into_response(),
        }
    }
}

impl AnswerReservation {
    /// Keeps what the answer takes until it is written, and returns the rest.
    pub fn hold(self, mut response: Response) -> Response {
        let bytes = body_bytes(&response);
        let permit = self.0.and_then(|mut permit| {
            debug_assert!(bytes <= permit.num_permits(), "{bytes} bytes in {}", permit.num_permits());
            if bytes <= ANSWER_BYTES_FREE {
                return None;
            }
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
            Some(Arc::new(permit))
        });
        response.extensions_mut().insert(AnswerPermit(permit));
        response
    }
}

impl AnswerPermit {
    /// Takes the room of an answer that is about to be written.
    pub fn take(response: &mut Response) -> Self {
        response.extensions_mut().remove().unwrap_or(AnswerPermit(None))
    }

    /// Bytes that hold the room until they are dropped.
    pub fn attach(&self, bytes: Bytes) -> Bytes {
        struct PermittedBytes {
            bytes: Bytes,
            _permit: Arc<OwnedSemaphorePermit>,
        }

        impl AsRef<[u8]> for PermittedBytes {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }

        match &self.0 {
            Some(permit) => Bytes::from_owner(PermittedBytes { bytes, _permit: Arc::clone(permit) }),
            None => bytes,
        }
    }
}

fn permits(bytes: usize) -> u32 {
    bytes.min(ANSWERS_BYTES_MAX) as u32
}

fn body_bytes(response: &Response) -> usize {
    usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX)
}

fn no_room() -> Problem {
    Problem::overloaded("too many responses are waiting to be read")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::body::Body;

    fn response(bytes: usize) -> Response {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn an_answer_holds_what_it_takes_until_its_bytes_are_dropped() {
        let room = AnswerBudget::default();
        let reservation = room.reserve(10 << 20).await.unwrap();
        assert_eq!(room.0.available_permits(), ANSWERS_BYTES_MAX - (10 << 20));
        let mut response = reservation.hold(response(1 << 20));
        assert_eq!(room.0.available_permits(), ANSWERS_BYTES_MAX - (1 << 20));
        let permit = AnswerPermit::take(&mut response);
        let mut bytes = permit.attach(Bytes::from_static(b"xyz"));
        drop((permit, response));
        let rest = bytes.split_off(1);
        drop(bytes);
        assert_eq!(room.0.available_permits(), ANSWERS_BYTES_MAX - (1 << 20));
        drop(rest);
        assert_eq!(room.0.available_permits(), ANSWERS_BYTES_MAX);
    }

    #[tokio::test]
    async fn small_answers_have_room_even_if_there_is_none() {
        let room = AnswerBudget::default();
        let _all = room.reserve(ANSWERS_BYTES_MAX).await.unwrap();
        room.reserve(ANSWER_BYTES_FREE).await.unwrap();
        assert_eq!(room.admit(response(ANSWER_BYTES_FREE)).status(), 200);
        assert_eq!(room.admit(response(ANSWER_BYTES_FREE + 1)).status(), 503);
    }
}
