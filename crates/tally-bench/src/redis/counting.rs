//! Counting in the baseline server: Tally's state machine and nothing else.

use std::io::Write;

use tally_core::batch::{Events, SlotOutcome, encode};
use tally_core::key::KeyRef;
use tally_core::outcome::Outcomes;
use tally_core::partition::Partition;
use tally_core::time::Millis;

use crate::timer::Timer;

/// Any seed will do: the load is not hostile.
const SEED: u64 = 1;

/// Counters, and the requests since the last flush.
pub struct CountingState {
    partition: Partition,
    events: Events,
    outcomes: Outcomes,
    frame: Vec<u8>,
    /// Values not answered yet.
    values: std::vec::IntoIter<i64>,
    timer: Timer,
}

impl CountingState {
    /// No counters.
    pub fn new() -> Self {
        CountingState {
            partition: Partition::new(SEED),
            events: Events::new(SEED),
            outcomes: Outcomes::default(),
            frame: Vec::new(),
            values: Vec::new().into_iter(),
            timer: Timer::start(),
        }
    }

    /// Parses every complete `INCR` in `rest` and `bytes`, and returns their number. An incomplete one is left in
    /// `rest`.
    pub fn take(&mut self, rest: &mut Vec<u8>, bytes: &[u8]) -> usize {
        let mut kept = std::mem::take(rest);
        let (mut left, mut taken) = (bytes, 0);
        if !kept.is_empty() {
            kept.extend_from_slice(bytes);
            left = &kept;
        }
        while let Some((key, after)) = increment(left) {
            self.events.add(key, 1);
            taken += 1;
            left = after;
        }
        rest.extend_from_slice(left);
        taken
    }

    /// Applies the requests and returns what the journal would write.
    pub fn apply(&mut self) -> &[u8] {
        let now = Millis((self.timer.seconds() * 1e3) as u64);
        self.outcomes.clear();
        self.partition.apply(now, self.events.batch(), &mut self.outcomes);
        self.frame.clear();
        encode(self.events.batch(), now, &mut self.frame);
        let of_slot = |slot| SlotOutcome { outcome: self.outcomes.slots()[slot], base: 0, split: None };
        let values: Vec<i64> = self.events.outcomes(of_slot).map(|outcome| outcome.value).collect();
        self.values = values.into_iter();
        self.events.clear();
        &self.frame
    }

    /// Appends the answers to the next `requests` requests.
    pub fn answer(&mut self, requests: usize, to: &mut Vec<u8>) {
        for value in self.values.by_ref().take(requests) {
            // Writing to memory cannot fail.
            let _ = write!(to, ":{value}\r\n");
        }
    }
}

/// The key of an `INCR`, and the bytes after it.
fn increment(bytes: &[u8]) -> Option<(KeyRef<'_>, &[u8])> {
    let (_, after) = word(bytes.strip_prefix(b"*2\r\n")?)?;
    let (key, after) = word(after)?;
    Some((KeyRef::new(key).ok()?, after))
}

/// A bulk string, and the bytes after it.
fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let digits = bytes.get(..end)?.strip_prefix(b"$")?;
    let len = digits.iter().fold(0, |len, digit| len * 10 + usize::from(digit.wrapping_sub(b'0')));
    let from = end + 2;
    let after = bytes.get(from + len + 2..)?;
    Some((bytes.get(from..from + len)?, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::client::encode;

    #[test]
    fn requests_split_across_reads_are_counted() {
        let mut counting = CountingState::new();
        let sent = [encode(&["INCR", "a"]), encode(&["INCR", "b"]), encode(&["INCR", "a"])].concat();
        let (mut rest, mut taken) = (Vec::new(), 0);
        for piece in sent.chunks(5) {
            taken += counting.take(&mut rest, piece);
        }
        assert_eq!((taken, rest.len()), (3, 0));
        assert!(!counting.apply().is_empty());
        let mut answers = Vec::new();
        counting.answer(3, &mut answers);
        assert_eq!(answers, b":1\r\n:1\r\n:2\r\n");
    }
}
