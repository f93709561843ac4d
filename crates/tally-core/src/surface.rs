//! The interface between protocols and engines: submit events and await their outcomes, read, list.
//!
//! It exposes neither files nor threads. The embedded engine implements it over journal files, a cluster engine over
//! Kafka; both pass the same contract suite (`tally-contract`). The doc comments here are that contract.

use std::future::Future;

use crate::batch::Events;
use crate::consistency::Consistency;
use crate::counter::CounterState;
pub use crate::counter_table::counter_memory_bytes;
use crate::event::RequestId;
use crate::key::Key;
use crate::ledger::{ChainHead, LedgerEntry};
use crate::outcome::{Reads, Receipt, Token};
use crate::reading::{Reading, Stats};
use crate::request_ids::FirstOutcome;

/// How events are submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitOptions {
    /// What the acknowledgement must guarantee.
    pub consistency: Consistency,
    /// Which thread flushes.
    pub flush: FlushBy,
}

/// Which thread flushes a submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushBy {
    /// The engine's flusher thread.
    #[default]
    Engine,
    /// The submitting thread, if flushes are fast and no other thread is flushing. Saves two thread switches. For
    /// callers with a dedicated thread that submit many requests at once.
    Caller,
}

/// How fresh a read must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The consistency of the namespace, or a stronger one if the caller asks for it.
    pub consistency: Consistency,
    /// The result includes at least the writes of this token.
    pub at_least: Option<Token>,
    /// The result is at most this old.
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
    /// With this consistency and no other requirement.
    #[must_use]
    pub fn new(consistency: Consistency) -> Self {
        ReadOptions { consistency, ..ReadOptions::default() }
    }
}

/// Which counters to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Only keys that start with these bytes.
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
    /// The key to continue after, if there are more. May be set on an empty page, if its counters were deleted
    /// meanwhile.
    pub next: Option<Key>,
}

/// Whether events of some keys can be submitted as one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// They can.
    Possible,
    /// They are in different partitions.
    AcrossPartitions,
    /// Some are counted in sub-counters, so their value at a given moment is unknown.
    BestEffort,
}

/// A counter and the end of its ledger, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSnapshot {
    /// The counter, if it exists.
    pub state: Option<CounterState>,
    /// The last entry of its ledger. All entries up to it can be read at any time: a ledger only grows.
    pub head: ChainHead,
}

/// One page of keys in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<Key>,
    /// The key to continue after, if there are more.
    pub next: Option<Key>,
}

/// A place in the request ids of an engine. They are ordered by partition, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestCursor {
    /// The partition.
    pub partition: u32,
    /// The last id that was returned; `None` is before the first.
    pub after: Option<RequestId>,
}

/// One page of request ids and their first outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPage {
    /// Ids that have not expired. An id may be in several partitions.
    pub requests: Vec<(RequestId, FirstOutcome)>,
    /// Where to continue, if there are more.
    pub next: Option<RequestCursor>,
}

/// The health of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Accepts reads and writes.
    Ready,
    /// Replaying the journal.
    Recovering,
    /// Reads work; writes are refused until the disk has space.
    DiskFull,
    /// Some calls fail or wait until something that the engine needs is back.
    Degraded {
        /// Whether all writes can be expected to succeed.
        writes: bool,
        /// What is wrong.
        why: String,
    },
    /// A flush failed: nothing is acknowledged any more, and the process must be restarted.
    Poisoned(String),
    /// Draining, then stopping.
    Closing,
}

/// Why a call failed. Only after `OutcomeUnknown` may a change have been made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The disk has no space for the journal. Nothing changed.
    #[error("the disk is full; nothing was changed")]
    DiskFull,
    /// An earlier flush failed, so the engine refuses all calls. Nothing changed.
    #[error("the engine stopped after a failed flush: {0}; nothing was changed")]
    Poisoned(String),
    /// The change may or may not be durable. Retrying is safe with a request id.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The submission exceeds the limits of a call. Nothing changed.
    #[error("the call is too large; nothing was changed: send it in several parts")]
    TooLarge,
    /// The engine did not reach the token or the freshness that a read asked for in time. Nothing changed.
    #[error("the requested reading is not available yet: {0}")]
    TooStale(String),
    /// The engine is shutting down. Nothing changed.
    #[error("the engine is shutting down; nothing was changed")]
    Closing,
    /// A service that the engine needs does not answer, or its queue is full. Nothing changed.
    #[error("the service is not available: {0}; nothing was changed")]
    Unavailable(String),
    /// The store could not be read. Nothing changed.
    #[error("the store could not be read: {0}")]
    Unreadable(String),
}

/// A counter engine.
///
/// * The events of a submission are applied in order. Each succeeds or is refused on its own.
/// * Outcomes are in the order of the events, one each; the adds of one [`Events::add_times`] share one.
/// * The events of a group ([`Events::group`]) are applied in a row, with no other event between them.
/// * A read in a submission sees the events before it and not those after it.
/// * An expired counter does not exist, for events and for reads.
/// * `submit` resolves once the requested consistency is reached. Dropping the future does not cancel the events.
/// * Concurrent submissions are applied in some order, each without others in between. Once one is acknowledged, every
///   later `read` with at least [`Consistency::Accurate`] sees it.
/// * Except with [`Consistency::BestEffort`], neither a receipt nor a reading reveals what a crash could undo.
/// * After an error other than [`EngineError::OutcomeUnknown`], nothing of the submission was applied.
pub trait Engine: Send + Sync + 'static {
    /// An empty submission to fill.
    fn events(&self) -> Events;

    /// Applies the events. An outcome that is not final when the consistency is reached is marked as not
    /// [exact](crate::outcome::Outcome::exact).
    fn submit(
        &self,
        events: Events,
        options: SubmitOptions,
    ) -> impl Future<Output = Result<Receipt, EngineError>> + Send;

    /// Answers a read-only submission and reports which outcomes depend on writes that are not durable yet.
    fn read_events(
        &self,
        events: Events,
        options: ReadOptions,
    ) -> impl Future<Output = Result<Reads, EngineError>> + Send;

    /// Resolves once the journal is durable up to the token.
    fn durable(&self, token: Token) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Reads counters, in the order of the keys. An unknown key has the value zero and does not exist.
    fn read(
        &self,
        keys: Vec<Key>,
        options: ReadOptions,
    ) -> impl Future<Output = Result<Vec<Reading>, EngineError>> + Send;

    /// Reads one counter with its statistics.
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

    /// The number of counters. Expired ones count until they are swept, which happens soon after.
    fn count(&self, options: ReadOptions) -> impl Future<Output = Result<u64, EngineError>> + Send;

    /// An existing counter chosen by `number`, or `None` if there are no counters.
    fn sample(&self, number: u64) -> impl Future<Output = Result<Option<Key>, EngineError>> + Send;

    /// Resolves once everything acknowledged before is in the store, which [`Engine::all_keys`] and
    /// [`Engine::requests`] read.
    fn sync_store(&self) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// The keys of all counters in the store, and of counters that no longer exist but have a ledger, in order.
    fn all_keys(&self, after: Option<Key>, limit: usize) -> impl Future<Output = Result<KeyPage, EngineError>> + Send;

    /// Counters with the ends of their ledgers, in the order of the keys. Each is consistent by itself and includes
    /// everything acknowledged before the call.
    fn snapshots(&self, keys: Vec<Key>) -> impl Future<Output = Result<Vec<CounterSnapshot>, EngineError>> + Send;

    /// The request ids in the store that have not expired, after `after`.
    fn requests(
        &self,
        after: RequestCursor,
        limit: usize,
    ) -> impl Future<Output = Result<RequestPage, EngineError>> + Send;

    /// One key for each partition. It is not known which counter an imported request id belongs to, so the id is
    /// imported into every partition.
    fn routes(&self) -> Vec<Key>;

    /// Whether events of any keys can be submitted as one group, so there is no need to call [`Engine::grouping`].
    fn keeps_all_together(&self) -> bool {
        true
    }

    /// Whether events of these keys can be submitted as one group.
    fn grouping(&self, keys: &[&[u8]]) -> Grouping {
        let _ = keys;
        Grouping::Possible
    }

    /// The current health.
    fn health(&self) -> Health;

    /// Resolves with the reason when the engine is poisoned, and never otherwise.
    fn poisoned(&self) -> impl Future<Output = String> + Send;

    /// The engine's metrics.
    fn metrics(&self) -> Vec<Metric>;
}

/// One metric of an engine, in base units.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Metric name, including the `tally_` prefix.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The value and its type.
    pub value: MetricValue,
}

/// The value of a metric, by type.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// Never decreases.
    Counter(u64),
    /// Counters that differ in one label, whose values are fixed words.
    CounterBy {
        /// The name of the label.
        label: &'static str,
        /// The counters, by value of the label.
        counts: Vec<(&'static str, u64)>,
    },
    /// Goes up and down.
    Gauge(f64),
    /// A distribution.
    Histogram {
        /// Cumulative counts by upper bound, ascending.
        buckets: Vec<(f64, u64)>,
        /// Number of observations.
        count: u64,
        /// Sum of all observations.
        sum: f64,
    },
}
