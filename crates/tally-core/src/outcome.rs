//! What became of an event.

use crate::time::Millis;

/// What became of one event: the value afterwards and what the event did to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The value after the event; after a refusal, the value that stands.
    pub value: i64,
    /// The signed change this event made: zero when it was refused.
    pub applied: i64,
    /// Whether the counter exists afterwards.
    pub exists: bool,
    /// Whether the request id had been seen, so that this is the first answer again.
    pub duplicate: bool,
    /// Why nothing changed, if nothing did.
    pub refusal: Option<Refusal>,
    /// When it was decided: for a duplicate, when the first answer was.
    pub at: Millis,
}

impl Outcome {
    /// Stands where an event was not tried: one before it, combined from several, overflowed as a whole, and the parts
    /// of that one come first. No outcome looks like this, because what overflows exists.
    pub(crate) const PUT_OFF: Outcome = Outcome { refusal: Some(Refusal::Overflow), ..Outcome::UNTRIED };

    /// Stands where nothing has been decided yet.
    pub const UNTRIED: Outcome =
        Outcome { value: 0, applied: 0, exists: false, duplicate: false, refusal: None, at: Millis(0) };

    /// This one and that of an equal add right behind it, as one. Once one of them is refused, so are those behind it.
    #[must_use]
    pub fn then(self, next: Outcome) -> Outcome {
        Outcome { applied: self.applied.wrapping_add(next.applied), refusal: self.refusal.or(next.refusal), ..next }
    }

    /// How many of `times` adds of `delta` were applied, of which this is the outcome together: the first so many. Each
    /// left the value `delta` short of the next, and the last of them left [`Outcome::value`].
    #[must_use]
    pub fn applied_times(&self, delta: i64, times: u32) -> u32 {
        if self.refusal.is_none() {
            return times;
        }
        // From one end of the range to the other is more than the sum can say, but not modulo 2⁶⁴.
        let sum = if delta < 0 { self.applied.wrapping_neg() } else { self.applied } as u64;
        sum.checked_div(delta.unsigned_abs()).and_then(|applied| u32::try_from(applied).ok()).unwrap_or(0).min(times)
    }
}

/// Why an event changed nothing. Part of the API and of the stored format: numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The value would leave the range of a 64-bit integer.
    Overflow = 1,
    /// The request id was used before with another payload.
    PayloadMismatch = 2,
    /// The value would cross the floor or ceiling.
    Bound = 3,
    /// Compare-and-set found another value.
    NotExpected = 4,
}

impl Refusal {
    /// The refusal with this stored number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Refusal> {
        [Refusal::Overflow, Refusal::PayloadMismatch, Refusal::Bound, Refusal::NotExpected]
            .into_iter()
            .find(|refusal| *refusal as u8 == code)
    }
}

/// The outcomes of one submission, in the order of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// One per event; those of one [`add_times`](crate::batch::Events::add_times) have one together.
    pub outcomes: Vec<Outcome>,
    /// The time of the batch the last event went into.
    pub as_of: Millis,
    /// Where in the journal the submission ends: a later read can ask to see at least this.
    pub token: Token,
}

/// Proof of a write, opaque to callers: a read that presents it sees the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
