//! The one surface that protocols see of an engine: submit events and await outcomes, read, list.
//!
//! It shows neither files nor threads. The embedded engine implements it over journal files; a cluster engine
//! implements it over Kafka; both pass the same contract suite (`tally-contract`). The doc comments here are
//! that contract.

use std::future::Future;

use crate::batch::Events;
use crate::consistency::Consistency;
use crate::key::Key;
use crate::ledger::LedgerEntry;
use crate::outcome::{Reads, Receipt, Token};
use crate::reading::{Reading, Stats};

/// How events are submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitOptions {
    /// What the acknowledgement has to mean.
    pub consistency: Consistency,
    /// Which thread flushes.
    pub flush: FlushBy,
}

/// Which thread flushes what is submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushBy {
    /// The engine's own.
    #[default]
    Engine,
    /// The submitting thread, where that is quick and no other thread is flushing. For callers that gather many requests
    /// into one submission and have a thread of their own: it saves waking the engine's thread and being woken by it.
    Caller,
}

/// How fresh an answer has to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// What the namespace promises, or more if the caller asks for more.
    pub consistency: Consistency,
    /// The answer reflects at least the writes this token proves.
    pub at_least: Option<Token>,
    /// The answer is at most this old.
    pub staleness_max_ms: Option<u64>,
}

impl SubmitOptions {
    /// With this consistency, flushed by the engine.
    #[must_use]
    pub fn new(consistency: Consistency) -> Self {
        SubmitOptions { consistency, flush: FlushBy::Engine }
    }
}

impl ReadOptions {
    /// With this consistency and no further demand.
    #[must_use]
    pub fn new(consistency: Consistency) -> Self {
        ReadOptions { consistency, ..ReadOptions::default() }
    }
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
    /// The submission is larger than a batch can hold. Nothing changed.
    #[error("the call is too large; nothing was changed: send it in several parts")]
    TooLarge,
    /// What a read asked for cannot be met: a token or an age that the engine has not reached in time.
    #[error("the reading asked for is not available yet: {0}")]
    TooStale(String),
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
/// * Events of one group ([`Events::group`]) are applied in a row: no other event comes between them.
/// * A read among the events tells what stands at its place: it sees the events before it and not those after it.
/// * From the moment it expires on, a counter does not exist, for events and for readings.
/// * `submit` resolves once the acknowledgement means what the consistency asks for; dropping the future does not take
///   the events back.
/// * Submissions whose futures are outstanding at once are applied in some order, each as a whole; what one has
///   acknowledged, every later `read` that asks for at least [`Consistency::Accurate`] sees.
/// * But for [`Consistency::BestEffort`], neither a receipt nor a reading reveals what a crash could take back.
/// * An error other than [`EngineError::OutcomeUnknown`] means that nothing of the submission was applied.
pub trait Engine: Send + Sync + 'static {
    /// An empty submission to fill.
    fn events(&self) -> Events;

    /// Applies the events. Where the outcome of one is not known when the consistency is met, it says so:
    /// [`Outcome::exact`](crate::outcome::Outcome::exact).
    fn submit(
        &self,
        events: Events,
        options: SubmitOptions,
    ) -> impl Future<Output = Result<Receipt, EngineError>> + Send;

    /// Answers events that only read, and says which of the answers rest on writes that are not durable yet.
    fn read_events(
        &self,
        events: Events,
        options: ReadOptions,
    ) -> impl Future<Output = Result<Reads, EngineError>> + Send;

    /// Resolves once everything the token names is durable.
    fn durable(&self, token: Token) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Reads counters, in the order asked. An unknown key reads zero and does not exist.
    fn read(
        &self,
        keys: Vec<Key>,
        options: ReadOptions,
    ) -> impl Future<Output = Result<Vec<Reading>, EngineError>> + Send;

    /// Reads one counter with its history.
    fn stats(&self, key: Key, options: ReadOptions) -> impl Future<Output = Result<Stats, EngineError>> + Send;

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
    fn count(&self, options: ReadOptions) -> impl Future<Output = Result<u64, EngineError>> + Send;

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
