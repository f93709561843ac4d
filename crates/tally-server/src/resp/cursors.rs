//! Cursors of `SCAN`: numbers that stand for keys.
//!
//! Counters are walked in key order, and a key does not fit into the number a client expects. So a cursor is remembered
//! here, for as long as there are not too many newer ones. A cursor can be used again, on any connection, as
//! clients with a pool do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use tally_core::key::Key;

use crate::limits::RESP_CURSORS_MAX;

/// Where walks have got to.
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
    /// A cursor for going on after `key`.
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

    /// The key a cursor stands for.
    pub fn recall(&self, number: u64) -> Option<Key> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).by_number.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_is_good_until_too_many_are_newer() {
        let cursors = Cursors::default();
        let key = |number: usize| Key::new(number.to_string()).unwrap();
        let first = cursors.remember(key(0));
        assert_ne!(first, 0, "zero means that a walk is over");
        for number in 1..RESP_CURSORS_MAX {
            cursors.remember(key(number));
        }
        assert_eq!(cursors.recall(first), Some(key(0)));
        cursors.remember(key(1));
        assert_eq!(cursors.recall(first), None);
    }
}
