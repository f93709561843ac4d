//! The service: the operations on counters that every protocol offers, over any [`Engine`].
//!
//! Requests have passed admission. The engine is set once it has recovered; until then every call fails with
//! [`Failure::Recovering`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_core::batch::Events;
use tally_core::event::{Change, Details, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Outcome, Reads, Receipt, Refusal, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, FlushBy, Grouping, Health, KeyPage, Metric, Page, PageRequest, ReadOptions,
    RequestCursor, RequestPage, SubmitOptions,
};
use tally_core::time::Millis;
use tally_engine::backup::Backup;

use crate::admission::Admission;
use crate::engine::ServerEngine;
use crate::policy::{Consistency, Policies};

/// Counters, as the protocols use them.
pub struct Service<E = ServerEngine> {
    engine: OnceLock<E>,
    policies: Policies,
    admission: Admission,
    closing: AtomicBool,
    /// Which thread flushes the submissions of callers that gather many calls.
    gathered: FlushBy,
}

/// An admitted change.
pub struct Intent {
    /// The change to the counter.
    pub change: Change,
    /// The request id, for deduplication.
    pub request_id: Option<RequestId>,
    /// Bounds and other details.
    pub details: Option<Details>,
}

/// The result of an intent.
#[derive(Clone, Debug)]
pub struct WriteResult {
    /// The new value and the change applied.
    pub outcome: Outcome,
    /// When it was decided; for a duplicate, the time of the first answer.
    pub as_of: Millis,
    /// Identifies the write, for reads that must include it.
    pub token: Token,
    /// The consistency of the namespace.
    pub consistency: Consistency,
}

/// How fresh a reading must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// By policy, or exact.
    pub at: Latest,
    /// The reading includes the writes of this token.
    pub token: Option<Token>,
    /// Maximum staleness of the reading, in milliseconds.
    pub staleness_max_ms: Option<u64>,
}

/// Which state a reading shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latest {
    /// As the namespace's policy says.
    #[default]
    ByPolicy,
    /// Everything acknowledged before the call, whatever the policy.
    Exact,
}

impl Freshness {
    /// The newest state.
    pub fn exact() -> Self {
        Freshness { at: Latest::Exact, ..Freshness::default() }
    }

    /// As options of the engine.
    fn options(self, policy: Consistency) -> ReadOptions {
        let consistency = match self.at {
            Latest::ByPolicy => policy,
            Latest::Exact => Consistency::Exact,
        };
        ReadOptions { consistency, at_least: self.token, staleness_max_ms: self.staleness_max_ms }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The journal is being replayed.
    #[error("the server is still starting; nothing was changed: retry shortly")]
    Recovering,
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Service<ServerEngine> {
    /// The name of the engine, for metrics.
    pub fn engine_name(&self) -> &'static str {
        match self.engine.get() {
            Some(ServerEngine::Cluster(_)) => "cluster",
            Some(ServerEngine::Embedded(_)) | None => "embedded",
        }
    }
}

impl Service<ServerEngine> {
    /// Whether commands of several connections are submitted together, so that one flush covers them all.
    pub fn joins_connections(&self) -> bool {
        !matches!(self.engine.get(), Some(ServerEngine::Cluster(_)))
    }

    /// A consistent copy of the data directory.
    pub async fn backup(&self) -> Result<BackupStart, Failure> {
        match self.engine()? {
            ServerEngine::Cluster(_) => Ok(BackupStart::NoDirectory),
            ServerEngine::Embedded(engine) => Ok(engine.backup().await?.map_or(BackupStart::Busy, BackupStart::Begun)),
        }
    }
}

/// The result of starting a backup.
pub enum BackupStart {
    /// It has begun.
    Begun(Backup),
    /// Another one is being read.
    Busy,
    /// The engine has no data directory.
    NoDirectory,
}

impl<E: Engine> Service<E> {
    /// A service that does not have its engine yet.
    pub fn new(policies: Policies) -> Self {
        Service {
            engine: OnceLock::new(),
            policies,
            admission: Admission::default(),
            closing: AtomicBool::new(false),
            gathered: FlushBy::Caller,
        }
    }

    /// Leaves the flushes of gathered submissions to the engine, so that their threads can gather the next ones during
    /// a flush.
    #[must_use]
    pub fn flushed_by_engine(self) -> Self {
        Service { gathered: FlushBy::Engine, ..self }
    }

    /// Sets the recovered engine. There is only ever one; a second is ignored.
    pub fn engine_ready(&self, engine: E) {
        let _ = self.engine.set(engine);
    }

    /// From now on `health` is `Closing`.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Whether the engine has not recovered yet, so that nothing can be read or changed.
    #[inline]
    pub fn is_recovering(&self) -> bool {
        self.engine.get().is_none()
    }

    /// The health of the service.
    pub fn health(&self) -> Health {
        match self.engine.get() {
            Some(engine) => match engine.health() {
                poisoned @ Health::Poisoned(_) => poisoned,
                _ if self.closing.load(Ordering::Relaxed) => Health::Closing,
                health => health,
            },
            None if self.closing.load(Ordering::Relaxed) => Health::Closing,
            None => Health::Recovering,
        }
    }

    /// The metrics of the engine.
    pub fn metrics(&self) -> Vec<Metric> {
        self.engine.get().map(Engine::metrics).unwrap_or_default()
    }

    /// Decides which calls reach the engine.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The consistency of a key's namespace.
    pub fn consistency(&self, key: KeyRef<'_>) -> Consistency {
        self.policies.consistency(key)
    }

    /// Applies one intent: the hot path.
    pub async fn write(&self, key: KeyRef<'_>, intent: Intent) -> Result<WriteResult, Failure> {
        let engine = self.engine()?;
        let consistency = self.policies.consistency(key);
        let mut events = engine.events();
        events.push(key, intent.change, intent.request_id, intent.details);
        let receipt = engine.submit(events, SubmitOptions::new(consistency)).await?;
        let outcome = receipt.outcomes.first().copied().ok_or_else(no_outcome)?;
        refuse_if_disk_full(&receipt.outcomes)?;
        Ok(WriteResult { outcome, as_of: outcome.at, token: receipt.token, consistency })
    }

    /// An empty list of intents to be applied together.
    pub fn writes(&self) -> Result<Writes<'_, E>, Failure> {
        let engine = self.engine()?;
        let events = engine.events();
        Ok(Writes { engine, policies: &self.policies, events, consistencies: Vec::new() })
    }

    /// An empty submission to fill.
    pub fn events(&self) -> Result<Events, Failure> {
        Ok(self.engine()?.events())
    }

    /// Applies the events of many calls; each succeeds or is refused on its own. May block the calling thread for a
    /// flush, unless the engine's own thread flushes.
    pub async fn submit(&self, events: Events, consistency: Consistency) -> Result<Receipt, Failure> {
        let options = SubmitOptions { consistency, flush: self.gathered };
        let expected = events.outcomes_len();
        let receipt = self.engine()?.submit(events, options).await?;
        // With an outcome too many or too few, callers would get each other's values.
        if receipt.outcomes.len() == expected { Ok(receipt) } else { Err(no_outcome().into()) }
    }

    /// Answers events that only read. `Reads::unflushed` lists the answers that must wait for [`Service::durable`].
    pub async fn read_events(&self, events: Events, consistency: Consistency) -> Result<Reads, Failure> {
        let expected = events.outcomes_len();
        let reads = self.engine()?.read_events(events, ReadOptions::new(consistency)).await?;
        if reads.receipt.outcomes.len() == expected { Ok(reads) } else { Err(no_outcome().into()) }
    }

    /// Resolves once the writes of the token are durable.
    pub async fn durable(&self, token: Token) -> Result<(), Failure> {
        Ok(self.engine()?.durable(token).await?)
    }

    /// Whether events of these keys can be submitted as one group.
    pub fn grouping(&self, keys: &[&[u8]]) -> Grouping {
        self.engine.get().map_or(Grouping::Possible, |engine| engine.grouping(keys))
    }

    /// Whether arbitrary keys can be submitted as one group.
    pub fn keeps_all_together(&self) -> bool {
        self.engine.get().is_none_or(|engine| engine.keeps_all_together())
    }

    /// The number of counters.
    pub async fn count(&self) -> Result<u64, Failure> {
        Ok(self.engine()?.count(ReadOptions::default()).await?)
    }

    /// A counter, chosen by `number`.
    pub async fn sample(&self, number: u64) -> Result<Option<Key>, Failure> {
        Ok(self.engine()?.sample(number).await?)
    }

    /// Reads counters, in the order of `keys`.
    pub async fn read(&self, keys: Vec<Key>, freshness: Freshness) -> Result<Vec<Reading>, Failure> {
        let options = freshness.options(self.policies.strongest(keys.iter().map(Key::as_ref)));
        Ok(self.engine()?.read(keys, options).await?)
    }

    /// Reads one counter with its statistics.
    pub async fn stats(&self, key: Key, freshness: Freshness) -> Result<Stats, Failure> {
        let options = freshness.options(self.policies.consistency(key.as_ref()));
        Ok(self.engine()?.stats(key, options).await?)
    }

    /// Lists counters in key order.
    pub async fn list(&self, page: PageRequest) -> Result<Page, Failure> {
        Ok(self.engine()?.list(page).await?)
    }

    /// Resolves once everything acknowledged is in the store.
    pub async fn sync_store(&self) -> Result<(), Failure> {
        Ok(self.engine()?.sync_store().await?)
    }

    /// The keys of all counters and ledgers in the store, in order.
    pub async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, Failure> {
        Ok(self.engine()?.all_keys(after, limit).await?)
    }

    /// Counters with the heads of their ledgers.
    pub async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, Failure> {
        let expected = keys.len();
        let snapshots = self.engine()?.snapshots(keys).await?;
        if snapshots.len() == expected { Ok(snapshots) } else { Err(no_outcome().into()) }
    }

    /// The request ids in the store.
    pub async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, Failure> {
        Ok(self.engine()?.requests(after, limit).await?)
    }

    /// A key in each partition.
    pub fn routes(&self) -> Vec<Key> {
        self.engine.get().map(Engine::routes).unwrap_or_default()
    }

    /// Applies imports, and returns one outcome per event.
    pub async fn import(&self, events: Events) -> Result<Vec<Outcome>, Failure> {
        let expected = events.outcomes_len();
        let receipt = self.engine()?.submit(events, SubmitOptions::new(Consistency::Exact)).await?;
        refuse_if_disk_full(&receipt.outcomes)?;
        if receipt.outcomes.len() == expected { Ok(receipt.outcomes) } else { Err(no_outcome().into()) }
    }

    /// The corrections of one counter.
    pub async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        Ok(self.engine()?.ledger(key, after, limit).await?)
    }

    fn engine(&self) -> Result<&E, Failure> {
        self.engine.get().ok_or(Failure::Recovering)
    }
}

/// Intents that are applied in order; each succeeds or is refused on its own.
pub struct Writes<'a, E = ServerEngine> {
    engine: &'a E,
    policies: &'a Policies,
    events: Events,
    consistencies: Vec<Consistency>,
}

impl<E: Engine> Writes<'_, E> {
    /// Adds an intent.
    pub fn push(&mut self, key: KeyRef<'_>, intent: Intent) {
        self.consistencies.push(self.policies.consistency(key));
        self.events.push(key, intent.change, intent.request_id, intent.details);
    }

    /// Adds a plain add without building an [`Intent`]: most changes are plain adds, and an `Intent` is large.
    pub fn add(&mut self, key: KeyRef<'_>, delta: i64) {
        self.consistencies.push(self.policies.consistency(key));
        self.events.add(key, delta);
    }

    /// Applies them with the strongest consistency of their namespaces; one result per intent, in order.
    pub async fn submit(self) -> Result<impl Iterator<Item = WriteResult>, Failure> {
        let receipt = match self.consistencies.iter().max() {
            Some(strongest) => self.engine.submit(self.events, SubmitOptions::new(*strongest)).await?,
            None => Receipt { outcomes: Vec::new(), as_of: Millis(0), token: Token::default() },
        };
        if receipt.outcomes.len() != self.consistencies.len() {
            return Err(no_outcome().into());
        }
        refuse_if_disk_full(&receipt.outcomes)?;
        let Receipt { outcomes, token, .. } = receipt;
        let written = move |(outcome, consistency): (Outcome, _)| WriteResult {
            outcome,
            as_of: outcome.at,
            token: token.clone(),
            consistency,
        };
        Ok(outcomes.into_iter().zip(self.consistencies).map(written))
    }
}

/// A full disk refuses all changes of a submission together.
fn refuse_if_disk_full(outcomes: &[Outcome]) -> Result<(), EngineError> {
    let has_room = outcomes.iter().all(|outcome| outcome.refusal != Some(Refusal::NoRoom));
    if has_room { Ok(()) } else { Err(EngineError::DiskFull) }
}

/// The engine broke its contract, so anything may have been applied.
fn no_outcome() -> EngineError {
    EngineError::OutcomeUnknown("the engine returned a wrong number of outcomes".into())
}
