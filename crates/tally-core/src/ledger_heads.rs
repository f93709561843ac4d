//! The resident heads of ledger chains, and the ledger entries that are not in the store yet.

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
    /// Closed layers that are not in the store yet, with their size in bytes, newest last.
    unsaved: Vec<(Arc<UnsavedEntries>, usize)>,
    /// Whether the store may hold chains whose head is not resident.
    store_may_have_more: bool,
}

impl LedgerHeads {
    pub(crate) fn with_store() -> Self {
        LedgerHeads { store_may_have_more: true, ..LedgerHeads::default() }
    }

    pub(crate) fn store_may_have_more(&self) -> bool {
        self.store_may_have_more
    }

    /// Whether the head of the key's chain must be looked up in the store.
    pub(crate) fn is_head_unknown(&self, key: KeyRef<'_>) -> bool {
        self.store_may_have_more && !self.heads.contains_key(&key.to_key())
    }

    pub(crate) fn restore(&mut self, key: KeyRef<'_>, head: ChainHead) {
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
        let head = self.head(key);
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
        self.push(key, entry);
    }

    /// Appends an entry that continues the chain.
    pub(crate) fn push(&mut self, key: KeyRef<'_>, entry: LedgerEntry) {
        self.heads.insert(key.to_key(), ChainHead { seq: entry.seq, hash: entry.hash });
        self.current_bytes +=
            size_of::<LedgerEntry>() + entry.actor.len() + entry.reason.len() + 2 * key.as_bytes().len() + 64;
        self.current.entry(key.to_key()).or_default().push(entry);
    }

    /// The head of the key's chain, as far as it is resident.
    pub(crate) fn head(&self, key: KeyRef<'_>) -> ChainHead {
        self.heads.get(key.as_bytes()).copied().unwrap_or_default()
    }

    /// The entries of `key` that may not be in the store, oldest first.
    pub(crate) fn unsaved_of<'a>(&'a self, key: &Key) -> impl Iterator<Item = &'a LedgerEntry> {
        let layers = self.unsaved.iter().map(|(layer, _)| layer.as_ref()).chain(std::iter::once(&self.current));
        let key = key.clone();
        layers.flat_map(move |layer| layer.get(&key).into_iter().flatten())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.current.is_empty() || !self.unsaved.is_empty()
    }

    pub(crate) fn begin_capture(&mut self) -> Vec<Arc<UnsavedEntries>> {
        if !self.current.is_empty() {
            let bytes = std::mem::take(&mut self.current_bytes);
            self.unsaved.push((Arc::new(std::mem::take(&mut self.current)), bytes));
        }
        self.unsaved.iter().map(|(layer, _)| Arc::clone(layer)).collect()
    }

    /// Drops the oldest `layers` unsaved layers, which are in the store now, and evicts heads without unsaved entries.
    pub(crate) fn committed(&mut self, layers: usize) {
        let saved = self.unsaved.drain(..layers.min(self.unsaved.len())).count();
        self.store_may_have_more |= saved > 0;
        let (current, unsaved) = (&self.current, &self.unsaved);
        self.heads
            .retain(|key, _| current.contains_key(key) || unsaved.iter().any(|(layer, _)| layer.contains_key(key)));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let unsaved: usize = self.unsaved.iter().map(|(_, bytes)| bytes).sum();
        self.current_bytes + unsaved + self.heads.len() * 96
    }
}
