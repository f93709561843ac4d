//! The encoding of a batch's outcomes, which the process that applied the batch sends to the one that waits for it.
//!
//! ```text
//! version:u8, time of most outcomes, number of outcomes, outcomes
//! outcome: flags:u8, refusal:u8 if there is one, value, applied, time if it differs, split if there is one
//! split:   number of runs, runs
//! run:     offset, value, delta, applied
//! ```
//!
//! Numbers are varints. Every outcome of a batch has the batch's time, except those of duplicate requests, so it is
//! written once. An outcome of one add of a small counter takes three bytes.

use crate::limits::{BATCH_EVENTS_MAX, BATCH_PARTS_MAX};
use crate::outcome::{Outcome, Outcomes, Refusal, Split, SplitRun};
use crate::time::Millis;
use crate::varint::{Cursor, put_i64, put_u64};

const VERSION: u8 = 1;

const EXISTS: u8 = 1;
const EXACT: u8 = 1 << 1;
/// It is known whether the request was a duplicate.
const DUPLICATE_KNOWN: u8 = 1 << 2;
const DUPLICATE: u8 = 1 << 3;
const REFUSED: u8 = 1 << 4;
/// The time is not that of most outcomes.
const OTHER_TIME: u8 = 1 << 5;
const SPLIT: u8 = 1 << 6;
const UNUSED: u8 = 1 << 7;

/// Fewest bytes of an outcome: flags, value and change.
const OUTCOME_BYTES_MIN: usize = 3;
/// Fewest bytes of a run of a split.
const RUN_BYTES_MIN: usize = 4;

impl Outcomes {
    /// Appends the encoded outcomes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let time = self.slots.iter().map(|outcome| outcome.at).max().unwrap_or_default();
        out.push(VERSION);
        put_u64(out, time.0);
        put_u64(out, self.slots.len() as u64);
        let mut splits = self.splits.iter().peekable();
        for (slot, outcome) in self.slots.iter().enumerate() {
            let split = splits.next_if(|(at, _)| *at == slot).map(|(_, split)| split);
            encode_outcome(outcome, split, time, out);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` if it is malformed or exceeds the limits of a batch.
    #[must_use]
    pub fn decode(cursor: &mut Cursor<'_>) -> Option<Outcomes> {
        if cursor.u8()? != VERSION {
            return None;
        }
        let time = Millis(cursor.u64()?);
        let count = count(cursor, BATCH_EVENTS_MAX, OUTCOME_BYTES_MIN)?;
        let mut outcomes = Outcomes { slots: Vec::with_capacity(count), splits: Vec::new() };
        let mut runs_left = BATCH_PARTS_MAX;
        for _ in 0..count {
            let (outcome, split) = decode_outcome(cursor, time, runs_left)?;
            match split {
                Some(split) => {
                    runs_left -= split.runs.len();
                    outcomes.push_split(outcome, split);
                }
                None => outcomes.push(outcome),
            }
        }
        Some(outcomes)
    }
}

fn encode_outcome(outcome: &Outcome, split: Option<&Split>, time: Millis, out: &mut Vec<u8>) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    out.push(
        flag(outcome.exists, EXISTS)
            | flag(outcome.exact, EXACT)
            | flag(outcome.duplicate.is_some(), DUPLICATE_KNOWN)
            | flag(outcome.is_duplicate(), DUPLICATE)
            | flag(outcome.refusal.is_some(), REFUSED)
            | flag(outcome.at != time, OTHER_TIME)
            | flag(split.is_some(), SPLIT),
    );
    out.extend(outcome.refusal.map(|refusal| refusal as u8));
    put_i64(out, outcome.value);
    put_i64(out, outcome.applied);
    if outcome.at != time {
        put_u64(out, outcome.at.0);
    }
    if let Some(split) = split {
        encode_split(split, out);
    }
}

fn decode_outcome(cursor: &mut Cursor<'_>, time: Millis, runs_max: usize) -> Option<(Outcome, Option<Split>)> {
    let flags = cursor.u8()?;
    let has = |flag: u8| flags & flag != 0;
    if has(UNUSED) || (has(DUPLICATE) && !has(DUPLICATE_KNOWN)) {
        return None;
    }
    let refusal = if has(REFUSED) { Some(refusal_of(cursor.u8()?)?) } else { None };
    let outcome = Outcome {
        value: cursor.i64()?,
        applied: cursor.i64()?,
        exists: has(EXISTS),
        exact: has(EXACT),
        duplicate: has(DUPLICATE_KNOWN).then_some(has(DUPLICATE)),
        refusal,
        at: if has(OTHER_TIME) { Millis(cursor.u64()?) } else { time },
    };
    let split = if has(SPLIT) { Some(decode_split(cursor, runs_max)?) } else { None };
    Some((outcome, split))
}

/// Like [`Refusal::from_code`], but also accepts `NoRoom`, which is sent and never stored.
fn refusal_of(code: u8) -> Option<Refusal> {
    if code == Refusal::NoRoom as u8 { Some(Refusal::NoRoom) } else { Refusal::from_code(code) }
}

fn encode_split(split: &Split, out: &mut Vec<u8>) {
    put_u64(out, split.runs.len() as u64);
    for run in &split.runs {
        put_i64(out, run.offset);
        put_i64(out, run.value);
        put_i64(out, run.delta);
        put_u64(out, u64::from(run.applied));
    }
}

fn decode_split(cursor: &mut Cursor<'_>, runs_max: usize) -> Option<Split> {
    let count = count(cursor, runs_max, RUN_BYTES_MIN)?;
    let mut runs = Vec::with_capacity(count);
    for _ in 0..count {
        runs.push(SplitRun {
            offset: cursor.i64()?,
            value: cursor.i64()?,
            delta: cursor.i64()?,
            applied: u32::try_from(cursor.u64()?).ok()?,
        });
    }
    Some(Split { runs })
}

/// A number of items, if it is within the limit and the rest of the input is long enough for them, so that a short
/// message cannot cause a large allocation.
fn count(cursor: &mut Cursor<'_>, max: usize, item_bytes_min: usize) -> Option<usize> {
    let count = usize::try_from(cursor.u64()?).ok()?;
    (count <= max && count <= cursor.rest().len() / item_bytes_min).then_some(count)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn refusal() -> impl Strategy<Value = Refusal> {
        use Refusal::{Bound, LedgerDiffers, NoRoom, NotExpected, Overflow, PayloadMismatch};
        prop::sample::select(vec![Overflow, PayloadMismatch, Bound, NotExpected, NoRoom, LedgerDiffers])
    }

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![4 => -100i64..100, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        let at = prop_oneof![3 => Just(1_700_000_000_000), 1 => any::<u64>()];
        let flags = (any::<bool>(), any::<bool>(), option::of(any::<bool>()));
        (number(), number(), flags, option::weighted(0.2, refusal()), at).prop_map(
            |(value, applied, (exists, exact, duplicate), refusal, at)| Outcome {
                value,
                applied,
                exists,
                exact,
                duplicate,
                refusal,
                at: Millis(at),
            },
        )
    }

    fn split() -> impl Strategy<Value = Split> {
        (number(), vec((number(), any::<u32>()), 0..5)).prop_map(|(value, runs)| Split::of(value, runs.into_iter()).1)
    }

    fn outcomes() -> impl Strategy<Value = Outcomes> {
        vec((outcome(), option::weighted(0.2, split())), 0..40).prop_map(|slots| {
            let mut outcomes = Outcomes::default();
            for (outcome, split) in slots {
                match split {
                    Some(split) => outcomes.push_split(outcome, split),
                    None => outcomes.push(outcome),
                }
            }
            outcomes
        })
    }

    fn encoded(outcomes: &Outcomes) -> Vec<u8> {
        let mut bytes = Vec::new();
        outcomes.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn outcomes_survive_a_round_trip_and_leave_what_follows_them(
            outcomes in outcomes(), after in vec(any::<u8>(), 0..4),
        ) {
            let mut bytes = encoded(&outcomes);
            bytes.extend_from_slice(&after);
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(Outcomes::decode(&mut cursor), Some(outcomes));
            prop_assert_eq!(cursor.rest(), &after[..]);
        }

        #[test]
        fn outcomes_that_are_cut_short_are_refused(outcomes in outcomes(), place in any::<prop::sample::Index>()) {
            let bytes = encoded(&outcomes);
            prop_assert_eq!(Outcomes::decode(&mut Cursor::new(&bytes[..place.index(bytes.len())])), None);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = Outcomes::decode(&mut Cursor::new(&bytes));
        }

        #[test]
        fn damaged_outcomes_do_not_panic_and_whatever_decodes_encodes_again(
            outcomes in outcomes(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encoded(&outcomes);
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Some(back) = Outcomes::decode(&mut Cursor::new(&bytes)) {
                prop_assert_eq!(Outcomes::decode(&mut Cursor::new(&encoded(&back))), Some(back));
            }
        }
    }

    fn of_slots(count: usize) -> Outcomes {
        Outcomes { slots: vec![Outcome::EMPTY; count], splits: Vec::new() }
    }

    /// One split for each element of `runs`, with that many runs.
    fn of_splits(runs: &[usize]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for runs in runs {
            let run = SplitRun { offset: 0, value: 0, delta: 1, applied: 1 };
            outcomes.push_split(Outcome::EMPTY, Split { runs: vec![run; *runs] });
        }
        outcomes
    }

    #[test]
    fn the_largest_batch_fits_and_a_larger_one_is_refused() {
        let decoded = |outcomes: &Outcomes| Outcomes::decode(&mut Cursor::new(&encoded(outcomes)));
        let largest = of_slots(BATCH_EVENTS_MAX);
        assert_eq!(decoded(&largest), Some(largest));
        assert_eq!(decoded(&of_slots(BATCH_EVENTS_MAX + 1)), None);
        let largest = of_splits(&[1, BATCH_PARTS_MAX - 1]);
        assert_eq!(decoded(&largest), Some(largest));
        assert_eq!(decoded(&of_splits(&[2, BATCH_PARTS_MAX - 1])), None);
    }

    #[test]
    fn an_add_to_a_small_counter_takes_three_bytes() {
        let outcome = Outcome { value: 12, applied: 5, exists: true, at: Millis(1_700_000_000_000), ..Outcome::EMPTY };
        let bytes_of = |count| encoded(&Outcomes { slots: vec![outcome; count], splits: Vec::new() }).len();
        assert_eq!(bytes_of(100) - bytes_of(50), 150);
    }

    #[test]
    fn an_unknown_version_refusal_or_flag_is_refused() {
        let bytes = encoded(&Outcomes {
            slots: vec![Outcome { refusal: Some(Refusal::Bound), ..Outcome::EMPTY }],
            splits: Vec::new(),
        });
        let (version, flags, refusal) = (0, 3, 4);
        let changed = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Outcomes::decode(&mut Cursor::new(&bytes))
        };
        assert!(changed(refusal, Refusal::Overflow as u8).is_some());
        assert_eq!(changed(version, VERSION + 1), None);
        assert_eq!(changed(refusal, 8), None);
        assert_eq!(changed(flags, bytes[flags] | UNUSED), None);
        assert_eq!(changed(flags, REFUSED | DUPLICATE), None);
    }
}
