//! The engine of this process: embedded, or an API node of a cluster.

use std::sync::Arc;

use tally_core::batch::Events;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, Grouping, Health, KeyPage, Metric, Page, PageRequest, ReadOptions,
    RequestCursor, RequestPage, SubmitOptions,
};
use tally_engine::Embedded;

use crate::cluster::ClusterNode;

/// The configured engine. An enum rather than a trait object, so that calls on the hot path are static.
#[derive(Clone)]
pub enum ServerEngine {
    /// Everything in this process.
    Embedded(Embedded),
    /// Kafka, Redis Cluster and PostgreSQL.
    Cluster(Arc<ClusterNode>),
}

/// Calls a method on whichever engine is configured.
macro_rules! either {
    ($self:ident.$method:ident($($argument:expr),*) $($await:tt)*) => {
        match $self {
            ServerEngine::Embedded(engine) => engine.$method($($argument),*)$($await)*,
            ServerEngine::Cluster(node) => node.cluster.$method($($argument),*)$($await)*,
        }
    };
}

impl Engine for ServerEngine {
    fn events(&self) -> Events {
        either!(self.events())
    }

    async fn submit(&self, events: Events, options: SubmitOptions) -> Result<Receipt, EngineError> {
        either!(self.submit(events, options).await)
    }

    async fn read_events(&self, events: Events, options: ReadOptions) -> Result<Reads, EngineError> {
        either!(self.read_events(events, options).await)
    }

    async fn durable(&self, token: Token) -> Result<(), EngineError> {
        either!(self.durable(token).await)
    }

    async fn read(&self, keys: Vec<Key>, options: ReadOptions) -> Result<Vec<Reading>, EngineError> {
        either!(self.read(keys, options).await)
    }

    async fn stats(&self, key: Key, options: ReadOptions) -> Result<Stats, EngineError> {
        either!(self.stats(key, options).await)
    }

    async fn list(&self, page: PageRequest) -> Result<Page, EngineError> {
        either!(self.list(page).await)
    }

    async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        either!(self.ledger(key, after, limit).await)
    }

    async fn count(&self, options: ReadOptions) -> Result<u64, EngineError> {
        either!(self.count(options).await)
    }

    async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        either!(self.sample(number).await)
    }

    async fn sync_store(&self) -> Result<(), EngineError> {
        either!(self.sync_store().await)
    }

    async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, EngineError> {
        either!(self.all_keys(after, limit).await)
    }

    async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, EngineError> {
        either!(self.snapshots(keys).await)
    }

    async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        either!(self.requests(after, limit).await)
    }

    fn routes(&self) -> Vec<Key> {
        either!(self.routes())
    }

    fn keeps_all_together(&self) -> bool {
        either!(self.keeps_all_together())
    }

    fn grouping(&self, keys: &[&[u8]]) -> Grouping {
        either!(self.grouping(keys))
    }

    fn health(&self) -> Health {
        either!(self.health())
    }

    async fn poisoned(&self) -> String {
        either!(self.poisoned().await)
    }

    fn metrics(&self) -> Vec<Metric> {
        match self {
            ServerEngine::Embedded(engine) => engine.metrics(),
            ServerEngine::Cluster(node) => node.metrics(),
        }
    }
}
