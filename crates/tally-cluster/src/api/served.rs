//! How current the readings are that this node has served, so that later ones are not older.

use std::collections::HashMap;

use parking_lot::Mutex;
use tally_core::key::Key;
use tally_core::time::Position;

use crate::limits::SERVED_MAX;

/// The position of the last reading of each counter, for one partition.
///
/// Counters that were not read for long are forgotten. They count as read at the newest position among those forgotten, so
/// that forgetting can turn a reading away but never lets an older one through.
#[derive(Debug, Default)]
pub struct ServedPositions {
    known: Mutex<KnownPositions>,
}

#[derive(Debug, Default)]
struct KnownPositions {
    recent: HashMap<Key, Position>,
    earlier: HashMap<Key, Position>,
    recent_max: Position,
    earlier_max: Position,
    forgotten_max: Position,
}

impl ServedPositions {
    /// Readings of the counter from before this position must not be served.
    pub fn least(&self, key: &Key) -> Position {
        let known = self.known.lock();
        known.recent.get(key).or_else(|| known.earlier.get(key)).copied().unwrap_or(known.forgotten_max)
    }

    /// The position of the counter's last reading was wrong.
    pub fn correct(&self, key: &Key, wrong: Position, right: Position) {
        let mut known = self.known.lock();
        let KnownPositions { recent, earlier, recent_max, earlier_max, forgotten_max } = &mut *known;
        let of_key = [recent.get_mut(key), earlier.get_mut(key)].into_iter().flatten();
        for position in of_key.chain([recent_max, earlier_max, forgotten_max]).filter(|position| **position == wrong) {
            *position = right;
        }
    }

    /// A reading of this position is served.
    pub fn served(&self, key: &Key, position: Position) {
        let mut known = self.known.lock();
        let known = &mut *known;
        if let Some(last) = known.recent.get_mut(key) {
            *last = position.max(*last);
        } else {
            if known.recent.len() >= SERVED_MAX / 2 {
                known.forgotten_max = known.forgotten_max.max(known.earlier_max);
                known.earlier = std::mem::take(&mut known.recent);
                known.earlier_max = std::mem::take(&mut known.recent_max);
            }
            let earlier = known.earlier.get(key).copied().unwrap_or_default();
            known.recent.insert(key.clone(), position.max(earlier));
        }
        known.recent_max = known.recent_max.max(position);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn a_counter_is_not_served_from_before_its_last_reading() {
        let served = ServedPositions::default();
        assert_eq!(served.least(&key(1)), Position(0));
        served.served(&key(1), Position(10));
        served.served(&key(1), Position(7));
        assert_eq!((served.least(&key(1)), served.least(&key(2))), (Position(10), Position(0)));
    }

    #[test]
    fn a_wrong_position_can_be_corrected_also_once_it_is_forgotten_whose_it_was() {
        let (served, wrong) = (ServedPositions::default(), Position(1 << 60));
        served.served(&key(0), wrong);
        served.correct(&key(0), wrong, Position(10));
        assert_eq!(served.least(&key(0)), Position(10));
        served.served(&key(0), wrong);
        (1..=SERVED_MAX).for_each(|number| served.served(&key(number), Position(number as u64)));
        assert_eq!(served.least(&key(0)), wrong);
        served.correct(&key(0), wrong, Position(11));
        assert_eq!(served.least(&key(0)), Position(11));
    }

    #[test]
    fn a_newer_reading_that_was_served_meanwhile_is_not_corrected() {
        let served = ServedPositions::default();
        served.served(&key(1), Position(20));
        served.correct(&key(1), Position(15), Position(10));
        assert_eq!(served.least(&key(1)), Position(20));
    }

    #[test]
    fn forgetting_never_lets_an_older_reading_through() {
        let served = ServedPositions::default();
        served.served(&key(0), Position(1_000_000));
        for number in 1..=SERVED_MAX {
            served.served(&key(number), Position(number as u64));
        }
        assert!(served.least(&key(0)) >= Position(1_000_000), "it is forgotten");
        assert_eq!(served.least(&key(SERVED_MAX)), Position(SERVED_MAX as u64));
        let known = served.known.lock();
        assert!(known.recent.len() + known.earlier.len() <= SERVED_MAX);
    }
}
