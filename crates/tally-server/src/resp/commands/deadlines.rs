//! Times in arguments: durations and timestamps, in seconds or milliseconds.

use tally_core::event::Deadline;
use tally_core::time::Millis;

use super::call::CommandError;
use crate::resp::errors::{NOT_AN_INTEGER, invalid_expiry};
use crate::resp::wire::integer;

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
}

impl TimeUnit {
    fn millis(self, count: i64) -> Option<i64> {
        match self {
            TimeUnit::Seconds => count.checked_mul(1000),
            TimeUnit::Millis => Some(count),
        }
    }
}

/// What a time is relative to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TimeOrigin {
    /// The batch that applies the command. The server's time is used to check that the deadline does not overflow.
    Batch(Millis),
    /// The Unix epoch.
    Epoch,
}

/// `count` units after the origin. A negative count means immediately.
pub fn deadline(
    unit: TimeUnit,
    count: i64,
    origin: TimeOrigin,
    command: &'static str,
) -> Result<Deadline, CommandError> {
    let millis = unit.millis(count).ok_or_else(|| invalid_expiry(command))?;
    let positive = u64::try_from(millis).unwrap_or(0);
    match origin {
        TimeOrigin::Epoch => Ok(Deadline::At(Millis(positive))),
        TimeOrigin::Batch(now) => {
            let now = i64::try_from(now.0).unwrap_or(i64::MAX);
            millis.checked_add(now).ok_or_else(|| invalid_expiry(command))?;
            Ok(Deadline::After(positive))
        }
    }
}

/// An option `EX`, `PX`, `EXAT` or `PXAT` with its count, which must be positive.
#[derive(Clone, Copy)]
pub struct ExpiryOption<'a> {
    /// The option.
    pub kind: ExpiryKind,
    /// The argument after it.
    pub count: &'a [u8],
}

/// Which of the options it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExpiryKind {
    unit: TimeUnit,
    is_relative: bool,
}

impl ExpiryKind {
    /// The option that a word names.
    pub fn named(word: &[u8]) -> Option<ExpiryKind> {
        let options: [(&[u8], TimeUnit, bool); 4] = [
            (b"EX", TimeUnit::Seconds, true),
            (b"PX", TimeUnit::Millis, true),
            (b"EXAT", TimeUnit::Seconds, false),
            (b"PXAT", TimeUnit::Millis, false),
        ];
        let (_, unit, is_relative) = options.into_iter().find(|(name, ..)| word.eq_ignore_ascii_case(name))?;
        Some(ExpiryKind { unit, is_relative })
    }
}

impl ExpiryOption<'_> {
    /// The deadline it sets.
    pub fn deadline(&self, now: Millis, command: &'static str) -> Result<Deadline, CommandError> {
        let count = integer(self.count).ok_or(NOT_AN_INTEGER)?;
        if count <= 0 {
            return Err(invalid_expiry(command).into());
        }
        let origin = if self.kind.is_relative { TimeOrigin::Batch(now) } else { TimeOrigin::Epoch };
        deadline(self.kind.unit, count, origin, command)
    }
}
