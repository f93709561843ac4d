//! The one surface front doors see of an engine: submit events and await outcomes, read, list.
//!
//! It shows neither files nor threads. The embedded engine implements it over journal files; a cluster engine
//! implements it over Kafka; both pass the same contract suite (`tally-contract`). The doc comments here are
//! that contract.

use std::future::Future;

use crate::batch::Events;
use crate::key::Key;
use crate::ledger::LedgerEntry;
use crate::outcome::Receipt;
use crate::reading::{Reading, Stats};

/// What an acknowledgement, or a reading, is allowed to rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Applied in memory: a crash may take it back (`best-effort`).
    Applied,
    /// In the journal and flushed: a crash cannot take it back.
    Flushed,
}

/// A share of the counters in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Only keys that begin with these bytes.
    pub prefix: Vec<u8>,
    /// Only keys that sort after this one.
    pub after: Option<Key>,
    /// At most this many, and never more than `PAGE_ITEMS_MAX`.
    pub limit: usize,
}

/// One page of counters in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The counters.
    pub items: Vec<(Key, Reading)>,
    /// The key to go on after, if more follow. A page whose counters were deleted meanwhile may be empty and have one.
    pub next: Option<Key>,
}

/// How an engine fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Accepts reads and writes.
    Ready,
    /// Replays its journal and will be ready.
    Recovering,
    /// Reads go on, writes are refused until there is room on the disk.
    DiskFull,
    /// A flush failed: nothing is acknowledged any more; the process must be restarted.
    Poisoned(String),
    /// Drains and stops.
    Closing,
}

/// Why an engine did not do what was asked. None of these leaves a change behind, except `OutcomeUnknown`,
/// which may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// There is no room in the journal. Nothing changed.
    #[error("the disk is full; nothing was changed")]
    DiskFull,
    /// The engine refuses work since an earlier flush failed. Nothing changed.
    #[error("the engine stopped after a failed flush: {0}; nothing was changed")]
    Poisoned(String),
    /// The change may or may not survive. With a request id, retrying is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The engine is shutting down. Nothing changed.
    #[error("the engine is shutting down; nothing was changed")]
    Closing,
    /// The store could not be read.
    #[error("the store could not be read: {0}")]
    Unreadable(String),
}

/// A counter engine.
///
/// * Events of one submission are applied in order. Each succeeds or is refused on its own.
/// * Each event has its outcome, in the order of the submission; those of one [`Events::add_times`] have one together.
/// * Events of one group ([`Events::group`]) are applied in a row: no other event comes between them, in whatever order
///   submissions are applied.
/// * A look tells what stands at its place: it sees the events before it and not those after it.
/// * From the moment it expires on, a counter does not exist, for events and for readings.
/// * `submit` resolves once every event rests on `durability`; dropping the future does not take the events back.
/// * Submissions whose futures are outstanding at once are applied in some order, each as a whole before or after
///   another event by event; what one has acknowledged, every later `read` sees.
/// * With [`Durability::Flushed`], neither a receipt nor a reading reveals what a crash could take back.
/// * An error other than [`EngineError::OutcomeUnknown`] means that nothing of the submission was applied.
pub trait Engine: Send + Sync + 'static {
    /// An empty submission to fill.
    fn events(&self) -> Events;

    /// Applies the events and resolves when they rest on `durability`.
    fn submit(
        &self,
        events: Events,
        durability: Durability,
    ) -> impl Future<Output = Result<Receipt, EngineError>> + Send;

    /// Reads counters, in the order asked. An unknown key reads zero and does not exist.
    fn read(
        &self,
        keys: Vec<Key>,
        durability: Durability,
    ) -> impl Future<Output = Result<Vec<Reading>, EngineError>> + Send;

    /// Reads one counter with its history.
    fn stats(&self, key: Key, durability: Durability) -> impl Future<Output = Result<Stats, EngineError>> + Send;

    /// Lists counters in key order.
    fn list(&self, page: PageRequest) -> impl Future<Output = Result<Page, EngineError>> + Send;

    /// The corrections of one counter, oldest first, after the entry numbered `after`.
    fn ledger(
        &self,
        key: Key,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<LedgerEntry>, EngineError>> + Send;

    /// How many counters there are. Those that have expired count until they are swept, which happens soon after.
    fn count(&self, durability: Durability) -> impl Future<Output = Result<u64, EngineError>> + Send;

    /// Some counter that exists, chosen by `number`, or nothing if there is none.
    fn sample(&self, number: u64) -> impl Future<Output = Result<Option<Key>, EngineError>> + Send;

    /// How the engine fares now.
    fn health(&self) -> Health;

    /// Resolves when the engine is poisoned, with the reason; never otherwise.
    fn poisoned(&self) -> impl Future<Output = String> + Send;

    /// What the engine measures about itself: every gauge and counter by its full metric name.
    fn measures(&self) -> Vec<Measure>;
}

/// One figure an engine reports, in base units.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Metric name with the `tally_` prefix.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// The figure and its kind.
    pub figure: Figure,
}

/// A figure by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// Only grows.
    Counter(u64),
    /// Moves both ways.
    Gauge(f64),
    /// A distribution: `(upper bound, cumulative count)` pairs, then count and sum.
    Histogram {
        /// Cumulative counts by upper bound, ascending.
        buckets: Vec<(f64, u64)>,
        /// All observations.
        count: u64,
        /// Their sum.
        sum: f64,
    },
}
