//! Cursors of `SCAN`: numbers that map to keys.
//!
//! `SCAN` iterates in key order, but clients expect a number as the cursor, and a key does not fit in one. So cursors are
//! kept here, until there are too many newer ones. A cursor can be reused, and on any connection, because clients may use
//! a connection pool.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use tally_core::key::Key;

use crate::limits::RESP_CURSORS_MAX;

/// The positions of iterations.
#[derive(Default)]
pub struct Cursors {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    last: u64,
    by_number: BTreeMap<u64, Key>,
    by_age: VecDeque<u64>,
}

impl Cursors {
    /// A cursor that continues after `key`.
    pub fn remember(&self, key: Key) -> u64 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.last += 1;
        let number = known.last;
        known.by_number.insert(number, key);
        known.by_age.push_back(number);
        if known.by_age.len() > RESP_CURSORS_MAX
            && let Some(oldest) = known.by_age.pop_front()
        {
            known.by_number.remove(&oldest);
        }
        number
    }

    /// The key of a cursor.
    pub fn recall(&self, number: u64) -> Option<Key> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).by_number.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_is_valid_until_there_are_too_many_newer_ones() {
        let cursors = Cursors::default();
        let key = |number: usize| Key::new(number.to_string()).unwrap();
        let first = cursors.remember(key(0));
        assert_ne!(first, 0, "zero means that the iteration is complete");
        for number in 1..RESP_CURSORS_MAX {
            cursors.remember(key(number));
        }
        assert_eq!(cursors.recall(first), Some(key(0)));
        cursors.remember(key(1));
        assert_eq!(cursors.recall(first), None);
    }
}
