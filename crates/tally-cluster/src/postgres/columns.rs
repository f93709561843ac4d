//! How values become columns.

use std::borrow::Cow;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, BytesMut};
use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::record;
use tally_core::time::{Millis, Position};
use tokio_postgres::types::{IsNull, ToSql, Type, accepts, to_sql_checked};

use super::error::PgError;
use super::limits::TIMESTAMP_MS_MAX;

/// A `timestamptz`.
pub(super) fn timestamp(at: Millis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at.0.min(TIMESTAMP_MS_MAX))
}

/// The time of a `timestamptz`.
pub(super) fn millis(at: SystemTime) -> Millis {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A `bigint`. Offsets, times and counts come from Kafka and from memory, so none reaches the maximum.
pub(super) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number in a `bigint` that is not negative.
pub(super) fn number(bigint: i64) -> Result<u64, PgError> {
    u64::try_from(bigint).map_err(|_| PgError::Unexpected(format!("unexpected negative number {bigint}")))
}

/// The position in a `bigint`.
pub(super) fn position(bigint: i64) -> Result<Position, PgError> {
    number(bigint).map(Position)
}

/// An `int`, which is also the type of Kafka's partition numbers.
pub(super) fn int(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// The partition in an `int`.
pub(super) fn partition(int: i32) -> Result<u32, PgError> {
    u32::try_from(int).map_err(|_| PgError::Unexpected(format!("a partition numbered {int}")))
}

/// A key in a `bytea`.
pub(super) fn key(bytes: &[u8]) -> Result<Key, PgError> {
    Key::new(bytes).map_err(|_| PgError::malformed(&record::counter_key(bytes)))
}

/// The counter with this key in a `bytea`.
pub(super) fn counter(key: &[u8], value: &[u8]) -> Result<CounterState, PgError> {
    record::read_counter(value).ok_or_else(|| PgError::malformed(&record::counter_key(key)))
}

/// Bytes as `text`, for people. PostgreSQL accepts neither invalid UTF-8 nor NUL, so those bytes become `\xNN`.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Cow::Borrowed(text),
        _ => Cow::Owned(escaped(bytes)),
    }
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\0', "\\x00"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// A `numeric` without a sign or a fraction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numeric(pub(super) u64);

impl ToSql for Numeric {
    /// Base-10,000 digits, the most significant first, preceded by their number, the exponent of the first, the sign
    /// and the number of decimal places.
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        const BASE: u64 = 10_000;
        let mut digits = [0; 5];
        let (mut rest, mut len) = (self.0, 0);
        while rest > 0 {
            digits[len] = (rest % BASE) as i16;
            rest /= BASE;
            len += 1;
        }
        out.put_i16(len as i16);
        out.put_i16((len as i16 - 1).max(0));
        out.put_i16(0);
        out.put_i16(0);
        digits[..len].iter().rev().for_each(|digit| out.put_i16(*digit));
        Ok(IsNull::No)
    }

    accepts!(NUMERIC);
    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_postgres_would_refuse_are_escaped() {
        assert_eq!(text(b"likes:post:42"), "likes:post:42");
        assert_eq!(text("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(text(b"a\0b\xff\xfec"), "a\\x00b\\xff\\xfec");
    }

    #[test]
    fn a_numeric_has_four_decimal_digits_in_each_digit() {
        let coded = |number| {
            let mut out = BytesMut::new();
            assert!(matches!(Numeric(number).to_sql(&Type::NUMERIC, &mut out), Ok(IsNull::No)));
            out.chunks(2).map(|two| i16::from_be_bytes([two[0], two[1]])).collect::<Vec<_>>()
        };
        assert_eq!(coded(0), [0, 0, 0, 0]);
        assert_eq!(coded(42), [1, 0, 0, 0, 42]);
        assert_eq!(coded(10_000), [2, 1, 0, 0, 1, 0]);
        assert_eq!(coded(u64::MAX), [5, 4, 0, 0, 1844, 6744, 737, 955, 1615]);
    }

    #[test]
    fn times_beyond_the_year_9999_are_its_end() {
        assert_eq!(millis(timestamp(Millis(1_234))), Millis(1_234));
        assert_eq!(millis(timestamp(Millis(u64::MAX))), Millis(TIMESTAMP_MS_MAX));
    }
}
