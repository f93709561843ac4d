//! Imported counters: a counter of another server, with its ledger, as an event.
//!
//! A ledger that is too long for one event takes several, in order; the last one has the counter. An import that stops
//! halfway leaves part of the ledger, which a second import continues.
//!
//! An import only extends the local ledger. The hash of an entry covers all entries before it, so the head of the local
//! chain is enough to tell whether it is a prefix of the imported one.

use crate::counter::CounterState;
use crate::key::KeyRef;
use crate::ledger::{ChainHead, LedgerEntry};
use crate::limits::{COUNTER_BYTES_MAX, IMPORT_ENTRIES_MAX};

/// A counter of another server, or a part of its ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedCounter {
    part: ImportPart,
    existing: Existing,
    entries: Vec<LedgerEntry>,
}

/// Which part of an imported counter an event has, besides entries of its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportPart {
    /// Nothing: more entries follow.
    Ledger,
    /// The counter; `None` if it does not exist and only has a ledger.
    Last(Option<CounterState>),
}

/// What happens to a counter that already exists here with different content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the import is refused.
    Refuse,
    /// It is replaced.
    Replace,
}

/// Why a counter cannot be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Too many entries for one event.
    #[error("{0} ledger entries; one part has at most {IMPORT_ENTRIES_MAX}")]
    TooManyEntries(usize),
    /// An entry does not continue the chain, or was altered.
    #[error("entry {0} of the ledger does not match the hash chain")]
    BrokenChain(u64),
}

impl ImportedCounter {
    /// Checks everything that does not depend on the state, including the hashes.
    pub fn new(
        key: KeyRef<'_>,
        part: ImportPart,
        existing: Existing,
        entries: Vec<LedgerEntry>,
    ) -> Result<ImportedCounter, ImportError> {
        match entries.iter().find(|entry| entry.hash != entry.expected_hash(key)) {
            Some(altered) => Err(ImportError::BrokenChain(altered.seq)),
            None => ImportedCounter::linked(part, existing, entries),
        }
    }

    /// The same without recomputing the hashes, for events that were checked before they were journalled.
    pub(crate) fn linked(
        part: ImportPart,
        existing: Existing,
        entries: Vec<LedgerEntry>,
    ) -> Result<ImportedCounter, ImportError> {
        if entries.len() > IMPORT_ENTRIES_MAX {
            return Err(ImportError::TooManyEntries(entries.len()));
        }
        let starts =
            |first: &LedgerEntry| first.seq > 1 || first.seq == 1 && first.previous == ChainHead::default().hash;
        if let Some(first) = entries.first().filter(|first| !starts(first)) {
            return Err(ImportError::BrokenChain(first.seq));
        }
        let continues = |pair: &[LedgerEntry]| match pair {
            [before, after] => before.seq.checked_add(1) == Some(after.seq) && after.previous == before.hash,
            _ => true,
        };
        match entries.windows(2).find(|pair| !continues(pair)).and_then(|pair| pair.last()) {
            Some(broken) => Err(ImportError::BrokenChain(broken.seq)),
            None => Ok(ImportedCounter { part, existing, entries }),
        }
    }

    /// What it has besides entries.
    #[must_use]
    pub fn part(&self) -> ImportPart {
        self.part
    }

    /// What happens to a counter that exists.
    #[must_use]
    pub fn existing(&self) -> Existing {
        self.existing
    }

    /// Consecutive entries of the ledger.
    #[must_use]
    pub fn entries(&self) -> &[LedgerEntry] {
        &self.entries
    }

    /// The entries that a chain with this head lacks; `None` if the chain is not a prefix of the imported one, or there
    /// is a gap between them.
    #[must_use]
    pub fn entries_after(&self, head: ChainHead) -> Option<&[LedgerEntry]> {
        let base = self
            .entries
            .first()
            .map_or(ChainHead::default(), |first| ChainHead { seq: first.seq - 1, hash: first.previous });
        let known = usize::try_from(head.seq.checked_sub(base.seq)?).ok()?;
        let hash_there = match known.checked_sub(1) {
            None => Some(base.hash),
            Some(place) => self.entries.get(place).map(|entry| entry.hash),
        };
        match hash_there {
            Some(hash) => (hash == head.hash).then(|| &self.entries[known..]),
            // The local chain goes beyond this part. Later parts are compared with the rest of it.
            None if self.part == ImportPart::Ledger => Some(&[]),
            None => None,
        }
    }

    /// Upper bound on the size of the encoded event, without key and numbers.
    pub(crate) fn encoded_len_max(&self) -> usize {
        /// Two hashes and all numbers.
        const ENTRY_NUMBERS: usize = 160;
        let entry_len = |entry: &LedgerEntry| entry.actor.len() + entry.reason.len() + ENTRY_NUMBERS;
        COUNTER_BYTES_MAX + self.entries.iter().map(entry_len).sum::<usize>()
    }
}
