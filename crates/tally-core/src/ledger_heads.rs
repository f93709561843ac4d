//! The ledger book of a partition: the ends of all chains in use and the entries the store does not hold yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::Correction;
use crate::key::{Key, KeyRef};
use crate::ledger::{ChainHead, CorrectionKind, LedgerEntry};
use crate::time::Millis;

/// Entries by counter, oldest first.
pub type UnsavedEntries = BTreeMap<Key, Vec<LedgerEntry>>;

#[derive(Debug, Default)]
pub(crate) struct LedgerHeads {
    heads: BTreeMap<Key, ChainHead>,
    current: UnsavedEntries,
    current_bytes: usize,
    /// Closed, not yet in the store, with their size; newest last.
    unsaved: Vec<(Arc<UnsavedEntries>, usize)>,
    /// Whether the store may hold chains whose head is not in memory.
    in_store_only: bool,
}

impl LedgerHeads {
    pub(crate) fn beside_store() -> Self {
        LedgerHeads { in_store_only: true, ..LedgerHeads::default() }
    }

    /// Whether the store may hold chains that are not in memory.
    pub(crate) fn is_beside_store(&self) -> bool {
        self.in_store_only
    }

    /// Whether only the store can tell where the key's chain ends.
    pub(crate) fn is_head_unknown(&self, key: KeyRef<'_>) -> bool {
        self.in_store_only && !self.heads.contains_key(&key.to_key())
    }

    pub(crate) fn recall(&mut self, key: KeyRef<'_>, head: ChainHead) {
        self.heads.entry(key.to_key()).or_insert(head);
    }

    pub(crate) fn append(
        &mut self,
        key: KeyRef<'_>,
        at: Millis,
        kind: CorrectionKind,
        why: &Correction,
        (before, after): (i64, i64),
    ) {
        let head = self.heads.entry(key.to_key()).or_default();
        let mut entry = LedgerEntry {
            seq: head.seq + 1,
            at,
            kind,
            actor: why.actor().into(),
            reason: why.reason().into(),
            before,
            after,
            previous: head.hash,
            hash: head.hash,
        };
        entry.hash = entry.expected_hash(key);
        *head = ChainHead { seq: entry.seq, hash: entry.hash };
        self.current_bytes +=
            size_of::<LedgerEntry>() + why.actor().len() + why.reason().len() + 2 * key.as_bytes().len() + 64;
        self.current.entry(key.to_key()).or_default().push(entry);
    }

    /// The entries of `key` that the store may not hold, oldest first.
    pub(crate) fn unsaved_of<'a>(&'a self, key: &Key) -> impl Iterator<Item = &'a LedgerEntry> {
        let pages = self.unsaved.iter().map(|(pages, _)| pages.as_ref()).chain(std::iter::once(&self.current));
        let key = key.clone();
        pages.flat_map(move |pages| pages.get(&key).into_iter().flatten())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.current.is_empty() || !self.unsaved.is_empty()
    }

    pub(crate) fn begin_capture(&mut self) -> Vec<Arc<UnsavedEntries>> {
        if !self.current.is_empty() {
            let bytes = std::mem::take(&mut self.current_bytes);
            self.unsaved.push((Arc::new(std::mem::take(&mut self.current)), bytes));
        }
        self.unsaved.iter().map(|(pages, _)| Arc::clone(pages)).collect()
    }

    /// The first `pages` unsaved ones are in the store now; heads that nothing in memory needs leave it.
    pub(crate) fn committed(&mut self, pages: usize) {
        let saved = self.unsaved.drain(..pages.min(self.unsaved.len())).count();
        self.in_store_only |= saved > 0;
        let (current, unsaved) = (&self.current, &self.unsaved);
        self.heads
            .retain(|key, _| current.contains_key(key) || unsaved.iter().any(|(pages, _)| pages.contains_key(key)));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let unsaved: usize = self.unsaved.iter().map(|(_, bytes)| bytes).sum();
        self.current_bytes + unsaved + self.heads.len() * 96
    }
}
