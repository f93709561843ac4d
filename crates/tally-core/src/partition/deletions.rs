//! Sets of records that the next capture deletes from the store, with a running total of their memory.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use crate::key::Key;
use crate::time::Millis;

/// Overhead of an allocation.
const ALLOCATION_BYTES: usize = 16;

/// Items to delete, in order.
#[derive(Debug)]
pub(super) struct Deletions<T> {
    items: BTreeSet<T>,
    /// Bytes of the keys of all items.
    key_bytes: usize,
}

/// Something that is deleted by its key.
pub(super) trait Keyed: Ord {
    fn key(&self) -> &Key;
}

impl Keyed for Key {
    fn key(&self) -> &Key {
        self
    }
}

impl Keyed for (Millis, Key) {
    fn key(&self) -> &Key {
        &self.1
    }
}

impl<T> Default for Deletions<T> {
    fn default() -> Self {
        Deletions { items: BTreeSet::new(), key_bytes: 0 }
    }
}

impl<T: Keyed> Deletions<T> {
    pub(super) fn insert(&mut self, item: T) {
        let key_bytes = item.key().as_bytes().len();
        if self.items.insert(item) {
            self.key_bytes += key_bytes;
        }
    }

    pub(super) fn remove(&mut self, item: &T) {
        if self.items.remove(item) {
            self.key_bytes -= item.key().as_bytes().len();
        }
    }

    pub(super) fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.items.contains(item)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    pub(super) fn into_items(self) -> BTreeSet<T> {
        self.items
    }

    /// Bytes used. The nodes of the tree are at least half full.
    pub(super) fn memory_bytes(&self) -> usize {
        self.key_bytes + self.items.len() * (2 * size_of::<T>() + ALLOCATION_BYTES)
    }
}
