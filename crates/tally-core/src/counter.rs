//! One counter: separate sums of additions and subtractions, and the data for its statistics.
//!
//! Separate sums make the counter a PN-counter: both only grow, so replicas merge by taking the larger of each.
//! Corrections are additive too. The sums have 80 bits: a value that swings across the whole 64-bit range would
//! overflow 64-bit sums after two swings, and 80-bit sums after about a hundred thousand. When a sum overflows, both
//! are reduced by the same amount. That changes neither the value nor the statistics, which saturate at 64 bits.

use crate::rates::{Rates, SUM_BYTES};
use crate::time::Millis;
use crate::varint::{Cursor, put_i64, put_u64};

/// A counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    plus: u128,
    minus: u128,
    min: i64,
    max: i64,
    /// First change.
    pub created: Millis,
    /// Last change.
    pub updated: Millis,
    rates: Rates,
}

/// A counter with its expiry, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The counter.
    pub counter: Counter,
    /// From this time on the counter does not exist, although it may not be removed yet.
    pub expires_at: Option<Millis>,
}

impl CounterState {
    /// A counter at zero that does not expire, created at `now`.
    #[must_use]
    pub fn new(now: Millis) -> Self {
        CounterState { counter: Counter::new(now), expires_at: None }
    }

    /// Whether the counter no longer exists at `now`.
    #[must_use]
    pub fn is_expired(&self, now: Millis) -> bool {
        is_due(self.expires_at, now)
    }
}

/// Whether an expiry has passed at `now`.
pub(crate) fn is_due(expires_at: Option<Millis>, now: Millis) -> bool {
    expires_at.is_some_and(|at| at <= now)
}

/// Everything that a counter consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterParts {
    /// Sum of all additions.
    pub increments: u128,
    /// Sum of all subtractions, as a positive number.
    pub decrements: u128,
    /// Lowest value ever, including the initial zero.
    pub min: i64,
    /// Highest value ever, including the initial zero.
    pub max: i64,
    /// First change.
    pub created: Millis,
    /// Last change.
    pub updated: Millis,
    /// The sums of [`Rates`].
    pub rates: [i64; 6],
}

const SUM_MAX: u128 = (1 << 80) - 1;
const TIME_MAX: u64 = (1 << 48) - 1;

/// The value would leave its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl Counter {
    /// A counter at zero, created at `now`.
    #[must_use]
    pub fn new(now: Millis) -> Self {
        let now = Millis(now.0.min(TIME_MAX));
        Counter { created: now, updated: now, ..Counter::default() }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> i64 {
        // Always in range: `shift` refuses to leave it.
        self.plus.wrapping_sub(self.minus) as i64
    }

    /// Sum of all additions, saturating at 64 bits.
    #[must_use]
    pub fn increments(&self) -> u64 {
        u64::try_from(self.plus).unwrap_or(u64::MAX)
    }

    /// Sum of all subtractions as a positive number, saturating at 64 bits.
    #[must_use]
    pub fn decrements(&self) -> u64 {
        u64::try_from(self.minus).unwrap_or(u64::MAX)
    }

    /// Lowest and highest value ever, including the initial zero.
    #[must_use]
    pub fn extremes(&self) -> (i64, i64) {
        (self.min, self.max)
    }

    /// Everything it consists of.
    #[must_use]
    pub fn parts(&self) -> CounterParts {
        CounterParts {
            increments: self.plus,
            decrements: self.minus,
            min: self.min,
            max: self.max,
            created: self.created,
            updated: self.updated,
            rates: self.rates.to_sums(),
        }
    }

    /// The counter with these parts; `None` if no counter can have them.
    #[must_use]
    pub fn from_parts(parts: &CounterParts) -> Option<Counter> {
        let CounterParts { increments: plus, decrements: minus, min, max, created, updated, rates } = *parts;
        let sums_fit = plus <= SUM_MAX && minus <= SUM_MAX;
        let value = i64::try_from(plus as i128 - minus as i128).ok().filter(|_| sums_fit)?;
        let is_possible = min <= value.min(0) && max >= value.max(0) && created <= updated && updated.0 <= TIME_MAX;
        let counter = Counter { plus, minus, min, max, created, updated, rates: Rates::from_sums(rates) };
        // Rates are stored in fewer bits than `i64` has: check that packing loses none.
        let mut packed = [0; PACKED_BYTES];
        counter.pack(&mut packed);
        (is_possible && Counter::unpack(&packed) == counter).then_some(counter)
    }

    /// Net change per second over the last second, minute and hour.
    #[must_use]
    pub fn rates(&self, now: Millis) -> [f64; 3] {
        self.rates.per_second(self.updated, now)
    }

    /// Adds the total of one or more increments, which count towards the rates.
    pub fn add(&mut self, now: Millis, delta: i128) -> Result<(), Overflow> {
        let rated = delta.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        self.shift(now, delta, rated as i64)
    }

    /// Adds sums of additions and of subtractions, which count towards the rates.
    pub fn add_both(&mut self, now: Millis, increments: u128, decrements: u128) -> Result<(), Overflow> {
        let delta = |sum: u128| i128::try_from(sum).map_err(|_| Overflow);
        let mut counter = *self;
        // The net change may fit even if one of the sums does not, so subtract what they have in common first.
        let common = increments.min(decrements);
        let (more, less) = (delta(increments - common)?, delta(decrements - common)?);
        counter.add(now, more - less)?;
        counter.plus += common;
        counter.minus += common;
        if counter.plus.max(counter.minus) > SUM_MAX {
            counter.reduce_sums();
        }
        *self = counter;
        Ok(())
    }

    /// Sets the value to `target` as a correction, which does not count towards the rates.
    pub fn correct(&mut self, now: Millis, target: i64) -> Result<(), Overflow> {
        self.shift(now, i128::from(target) - i128::from(self.value()), 0)
    }

    fn shift(&mut self, now: Millis, delta: i128, rated: i64) -> Result<(), Overflow> {
        let value = i128::from(self.value()) + delta;
        let value = i64::try_from(value).map_err(|_| Overflow)?;
        let grown = if delta < 0 { &mut self.minus } else { &mut self.plus };
        // A delta that leaves the value in range has at most 64 bits.
        *grown += delta.unsigned_abs();
        if *grown > SUM_MAX {
            self.reduce_sums();
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        let now = Millis(now.0.min(TIME_MAX)).max(self.updated);
        self.rates.record(self.updated, now, rated);
        self.updated = now;
        Ok(())
    }

    /// Reduces both sums by the same amount, so that the smaller one becomes `u64::MAX`. They differ only by the value,
    /// so both are large when one overflows.
    fn reduce_sums(&mut self) {
        let excess = self.plus.min(self.minus) - u128::from(u64::MAX);
        self.plus -= excess;
        self.minus -= excess;
    }

    /// Appends the stored form, in varints, so that small numbers are short.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for sum in [self.plus, self.minus] {
            put_u64(out, (sum >> 64) as u64);
            put_u64(out, sum as u64);
        }
        put_i64(out, self.min);
        put_i64(out, self.max);
        put_u64(out, self.created.0);
        put_u64(out, self.updated.since(self.created));
        for sum in self.rates.to_sums() {
            put_i64(out, sum);
        }
    }

    /// Reads the stored form.
    #[must_use]
    pub fn decode(cursor: &mut Cursor<'_>) -> Option<Counter> {
        let mut sum = || Some(u128::from(cursor.u64()?) << 64 | u128::from(cursor.u64()?));
        let (plus, minus) = (sum()?, sum()?);
        let (min, max) = (cursor.i64()?, cursor.i64()?);
        let created = cursor.u64()?;
        let updated = created.checked_add(cursor.u64()?)?;
        let mut sums = [0; 6];
        for sum in &mut sums {
            *sum = cursor.i64()?;
        }
        let in_range = plus <= SUM_MAX && minus <= SUM_MAX && updated <= TIME_MAX;
        in_range.then_some(Counter {
            plus,
            minus,
            min,
            max,
            created: Millis(created),
            updated: Millis(updated),
            rates: Rates::from_sums(sums),
        })
    }
}

/// Bytes of a packed counter.
pub(crate) const PACKED_BYTES: usize = SUMS_AT + 2 * (SUM_BYTES[0] + SUM_BYTES[1] + SUM_BYTES[2]);

/// Offset of the sums of the rates.
const SUMS_AT: usize = 2 * 10 + 2 * 8 + 2 * 6;

/// The form in the counter table: no padding, no alignment.
pub(crate) type Packed = [u8; PACKED_BYTES];

impl Counter {
    pub(crate) fn pack(&self, out: &mut Packed) {
        out[0..10].copy_from_slice(&self.plus.to_le_bytes()[..10]);
        out[10..20].copy_from_slice(&self.minus.to_le_bytes()[..10]);
        out[20..28].copy_from_slice(&self.min.to_le_bytes());
        out[28..36].copy_from_slice(&self.max.to_le_bytes());
        out[36..42].copy_from_slice(&self.created.0.to_le_bytes()[..6]);
        out[42..48].copy_from_slice(&self.updated.0.to_le_bytes()[..6]);
        let mut at = SUMS_AT;
        for (place, sum) in self.rates.to_sums().into_iter().enumerate() {
            let bytes = SUM_BYTES[place / 2];
            out[at..at + bytes].copy_from_slice(&sum.to_le_bytes()[..bytes]);
            at += bytes;
        }
    }

    pub(crate) fn unpack(packed: &Packed) -> Counter {
        let time = |at: usize| Millis(u64::from_le_bytes(widen(&packed[at..at + 6])));
        let mut sums = [0; 6];
        let mut at = SUMS_AT;
        for (place, sum) in sums.iter_mut().enumerate() {
            let bytes = SUM_BYTES[place / 2];
            // Sign extension.
            let unused = 64 - 8 * bytes;
            *sum = (i64::from_le_bytes(widen(&packed[at..at + bytes])) << unused) >> unused;
            at += bytes;
        }
        Counter {
            plus: u128::from_le_bytes(widen(&packed[0..10])),
            minus: u128::from_le_bytes(widen(&packed[10..20])),
            min: i64::from_le_bytes(widen(&packed[20..28])),
            max: i64::from_le_bytes(widen(&packed[28..36])),
            created: time(36),
            updated: time(42),
            rates: Rates::from_sums(sums),
        }
    }
}

fn widen<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut wide = [0; N];
    wide[..bytes.len()].copy_from_slice(bytes);
    wide
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_and_encoding_keep_every_field(steps in prop::collection::vec((any::<i64>(), 0u64..1 << 44), 1..40)) {
            let mut counter = Counter::new(Millis(7));
            let mut now = 7;
            for (delta, pause) in steps {
                now += pause >> 8;
                let before = counter;
                if counter.add(Millis(now), i128::from(delta)).is_err() {
                    prop_assert_eq!(counter, before);
                }
                let mut packed = [0; PACKED_BYTES];
                counter.pack(&mut packed);
                prop_assert_eq!(Counter::unpack(&packed), counter);
                let mut coded = Vec::new();
                counter.encode(&mut coded);
                let mut cursor = Cursor::new(&coded);
                prop_assert_eq!(Counter::decode(&mut cursor), Some(counter));
                prop_assert!(cursor.is_done());
            }
        }
    }

    #[test]
    fn swings_across_the_whole_range_stay_exact() {
        let mut counter = Counter::new(Millis(0));
        // Enough to overflow the sums.
        for _ in 0..200_000 {
            assert_eq!(counter.correct(Millis(1), i64::MAX), Ok(()));
            assert_eq!(counter.add(Millis(1), 1), Err(Overflow));
            assert_eq!(counter.correct(Millis(1), i64::MIN), Ok(()));
            assert_eq!(counter.add(Millis(1), -1), Err(Overflow));
            assert_eq!(counter.value(), i64::MIN);
        }
        assert_eq!((counter.increments(), counter.decrements()), (u64::MAX, u64::MAX));
        let mut packed = [0; PACKED_BYTES];
        counter.pack(&mut packed);
        assert_eq!(Counter::unpack(&packed), counter);
        assert_eq!(counter.correct(Millis(1), 0), Ok(()));
        assert_eq!(counter.add(Millis(1), 5), Ok(()));
        assert_eq!(counter.value(), 5);
    }
}
