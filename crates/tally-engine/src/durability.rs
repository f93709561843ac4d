//! Durability: what an answer of the embedded engine rests on.

use tally_core::consistency::Consistency;

/// What an acknowledgement, or a reading, is allowed to rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Applied in memory: a crash may take it back.
    Applied,
    /// In the journal and flushed: a crash cannot take it back.
    Flushed,
}

impl From<Consistency> for Durability {
    /// Memory is authoritative here, so everything but `best-effort` comes to the same.
    fn from(consistency: Consistency) -> Self {
        match consistency {
            Consistency::BestEffort => Durability::Applied,
            Consistency::Eventual | Consistency::Accurate | Consistency::Exact => Durability::Flushed,
        }
    }
}
