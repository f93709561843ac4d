//! The positions of the readings that this node has served, so that later ones are not older.

use std::collections::HashMap;

use parking_lot::Mutex;
use tally_core::key::Key;
use tally_core::time::Position;

use crate::limits::SERVED_MAX;

/// The position of the last reading of each counter, for one partition.
///
/// Counters that were not read for a long time are forgotten. They count as read at the newest position among those
/// forgotten, so forgetting may refuse a valid reading, but never lets an older one through.
#[derive(Debug)]
pub struct ServedPositions {
    known: Mutex<KnownPositions>,
    counters_max: usize,
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
    /// One for each partition. Together they remember at most [`SERVED_MAX`] counters.
    pub fn of_partitions(partitions: u32) -> Vec<ServedPositions> {
        let counters_max = SERVED_MAX / partitions.max(1) as usize;
        (0..partitions).map(|_| ServedPositions { known: Mutex::default(), counters_max }).collect()
    }

    /// Readings of the counter from before this position must not be served.
    pub fn least(&self, key: &Key) -> Position {
        let known = self.known.lock();
        known.recent.get(key).or_else(|| known.earlier.get(key)).copied().unwrap_or(known.forgotten_max)
    }

    /// Replaces the position of the counter's last reading, which was wrong.
    pub fn correct(&self, key: &Key, wrong: Position, right: Position) {
        let mut known = self.known.lock();
        let KnownPositions { recent, earlier, recent_max, earlier_max, forgotten_max } = &mut *known;
        let of_key = [recent.get_mut(key), earlier.get_mut(key)].into_iter().flatten();
        for position in of_key.chain([recent_max, earlier_max, forgotten_max]).filter(|position| **position == wrong) {
            *position = right;
        }
    }

    /// Records that a reading of this position is served.
    pub fn served(&self, key: &Key, position: Position) {
        let mut known = self.known.lock();
        let known = &mut *known;
        if let Some(last) = known.recent.get_mut(key) {
            *last = position.max(*last);
        } else {
            if known.recent.len() >= self.counters_max / 2 {
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
    use crate::limits::PARTITIONS_MAX;

    const FEW: usize = 1_000;

    fn few() -> ServedPositions {
        ServedPositions { known: Mutex::default(), counters_max: FEW }
    }

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn a_counter_is_not_served_from_before_its_last_reading() {
        let served = few();
        assert_eq!(served.least(&key(1)), Position(0));
        served.served(&key(1), Position(10));
        served.served(&key(1), Position(7));
        assert_eq!((served.least(&key(1)), served.least(&key(2))), (Position(10), Position(0)));
    }

    #[test]
    fn a_wrong_position_can_be_corrected_also_once_it_is_forgotten_whose_it_was() {
        let (served, wrong) = (few(), Position(1 << 60));
        served.served(&key(0), wrong);
        served.correct(&key(0), wrong, Position(10));
        assert_eq!(served.least(&key(0)), Position(10));
        served.served(&key(0), wrong);
        (1..=FEW).for_each(|number| served.served(&key(number), Position(number as u64)));
        assert_eq!(served.least(&key(0)), wrong);
        served.correct(&key(0), wrong, Position(11));
        assert_eq!(served.least(&key(0)), Position(11));
    }

    #[test]
    fn a_newer_reading_that_was_served_meanwhile_is_not_corrected() {
        let served = few();
        served.served(&key(1), Position(20));
        served.correct(&key(1), Position(15), Position(10));
        assert_eq!(served.least(&key(1)), Position(20));
    }

    #[test]
    fn forgetting_never_lets_an_older_reading_through() {
        let served = few();
        served.served(&key(0), Position(1_000_000));
        for number in 1..=FEW {
            served.served(&key(number), Position(number as u64));
        }
        assert!(served.least(&key(0)) >= Position(1_000_000), "it is forgotten");
        assert_eq!(served.least(&key(FEW)), Position(FEW as u64));
        let known = served.known.lock();
        assert!(known.recent.len() + known.earlier.len() <= FEW);
    }

    #[test]
    fn a_node_remembers_a_bounded_number_of_counters_however_many_partitions_there_are() {
        for partitions in [1, 3, 256, PARTITIONS_MAX] {
            let served = ServedPositions::of_partitions(partitions);
            let each_max = SERVED_MAX / partitions as usize;
            // One partition stands for all of them, because each has its own bound.
            (0..2 * each_max).for_each(|number| served[0].served(&key(number), Position(1)));
            let known = served[0].known.lock();
            let remembered = known.recent.len() + known.earlier.len();
            assert!((each_max / 2..=each_max).contains(&remembered), "{remembered} in one of {partitions}");
            assert!(remembered * served.len() <= SERVED_MAX);
        }
    }
}
