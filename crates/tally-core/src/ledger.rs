//! The ledger: every correction of a counter, hash-chained so that none can be altered or removed unnoticed.
//!
//! Each counter has its own chain. An entry's hash is SHA-256 over the previous entry's hash and the entry's own
//! fields, each text preceded by its length, so the entries can be verified without Tally. The chain outlives the
//! counter: a deletion is an entry like any other.

use sha2::{Digest, Sha256};

use crate::key::KeyRef;
use crate::time::Millis;

/// What kind of correction an entry records. Part of the stored format: numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CorrectionKind {
    /// The value was set.
    Set = 1,
    /// The value was reset to zero.
    Reset = 2,
    /// A delta was added.
    Adjust = 3,
    /// The counter was removed.
    Delete = 4,
}

impl CorrectionKind {
    /// The kind with this stored number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<CorrectionKind> {
        use CorrectionKind::{Adjust, Delete, Reset, Set};
        [Set, Reset, Adjust, Delete].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// SHA-256 of an entry and, through the chain, of all entries before it.
pub type ChainHash = [u8; 32];

/// The hash before a counter's first entry.
pub const CHAIN_START: ChainHash = [0; 32];

/// The head of a counter's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainHead {
    /// Number of the last entry; 0 if there is none.
    pub seq: u64,
    /// Its hash.
    pub hash: ChainHash,
}

impl Default for ChainHead {
    fn default() -> Self {
        ChainHead { seq: 0, hash: CHAIN_START }
    }
}

/// One correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Number in the counter's chain, from 1.
    pub seq: u64,
    /// When the correction was applied.
    pub at: Millis,
    /// The kind of correction.
    pub kind: CorrectionKind,
    /// Who made it.
    pub actor: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// The value before.
    pub before: i64,
    /// The value after.
    pub after: i64,
    /// Hash of the previous entry.
    pub previous: ChainHash,
    /// Hash of this entry.
    pub hash: ChainHash,
}

impl LedgerEntry {
    /// The hash this entry must have as a correction of `key`.
    #[must_use]
    pub fn expected_hash(&self, key: KeyRef<'_>) -> ChainHash {
        let mut hasher = Sha256::new();
        hasher.update(self.previous);
        hasher.update(self.seq.to_le_bytes());
        hasher.update(self.at.0.to_le_bytes());
        hasher.update([self.kind as u8]);
        hasher.update(self.before.to_le_bytes());
        hasher.update(self.after.to_le_bytes());
        for text in [key.as_bytes(), self.actor.as_bytes(), self.reason.as_bytes()] {
            hasher.update((text.len() as u32).to_le_bytes());
            hasher.update(text);
        }
        hasher.finalize().into()
    }
}
