//! The embedded engine.

use std::path::PathBuf;

use tally_core::batch::Events;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::Receipt;
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{Durability, Engine, EngineError, Health, Measure, Page, PageRequest};

/// How to open an embedded engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory; created if need be.
    pub data: PathBuf,
    /// Memory budget: beyond it, cold counters and old request ids leave RAM for the store.
    pub memory_bytes: u64,
}

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{0}")]
    Other(String),
}

/// The embedded engine: cheap to clone, all clones are one engine.
#[derive(Clone)]
pub struct Embedded {}

impl Embedded {
    /// Opens the directory, recovers what it holds and starts the engine's threads. `progress` hears how many of
    /// how many bytes have been replayed.
    pub fn open(_config: &Config, _progress: &mut dyn FnMut(u64, u64)) -> Result<Embedded, OpenError> {
        Err(OpenError::Other("not yet".into()))
    }

    /// Refuses new work, drains, flushes, checkpoints and stops the engine's threads. Blocks until done.
    pub fn close(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Engine for Embedded {
    fn events(&self) -> Events {
        Events::new(0)
    }

    async fn submit(&self, _events: Events, _durability: Durability) -> Result<Receipt, EngineError> {
        Err(EngineError::Closing)
    }

    async fn read(&self, _keys: Vec<Key>, _durability: Durability) -> Result<Vec<Reading>, EngineError> {
        Err(EngineError::Closing)
    }

    async fn stats(&self, _key: Key, _durability: Durability) -> Result<Stats, EngineError> {
        Err(EngineError::Closing)
    }

    async fn list(&self, _page: PageRequest) -> Result<Page, EngineError> {
        Err(EngineError::Closing)
    }

    async fn ledger(&self, _key: Key, _after: u64, _limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        Err(EngineError::Closing)
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    async fn poisoned(&self) -> String {
        std::future::pending().await
    }

    fn measures(&self) -> Vec<Measure> {
        Vec::new()
    }
}
