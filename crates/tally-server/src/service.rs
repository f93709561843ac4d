//! The service: what every front door can do with counters, over whichever engine runs.
//!
//! A front door hands in what admission let through and gets back what to answer. The engine appears here once it
//! has recovered; until then every call is refused with [`Failure::Recovering`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_core::batch::Events;
use tally_core::event::{Change, Details, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Outcome, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{Durability, Engine, EngineError, Health, Measure, Page, PageRequest};
use tally_core::time::Millis;
use tally_engine::Embedded;

use crate::policy::{Consistency, Policies};

/// Counters, as front doors see them.
pub struct Service {
    engine: OnceLock<Embedded>,
    policies: Policies,
    closing: AtomicBool,
}

/// One intended change, admitted.
pub struct Intent {
    /// What happens to the counter.
    pub change: Change,
    /// Names the request, so that a repeat is recognised.
    pub request_id: Option<RequestId>,
    /// What else it carries.
    pub details: Option<Details>,
}

/// What became of one intent.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The value afterwards and what changed.
    pub outcome: Outcome,
    /// When it was decided: for a duplicate, when the first answer was.
    pub as_of: Millis,
    /// Proof of the write.
    pub token: Token,
    /// What the acknowledgement means.
    pub consistency: Consistency,
}

/// How fresh a reading must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Whatever the namespace's policy says.
    ByPolicy,
    /// Everything acknowledged before the call, flushed, whatever the policy.
    Exact,
}

/// Why a call was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The journal is being replayed.
    #[error("the journal is being replayed; nothing was changed")]
    Recovering,
    /// The engine did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Service {
    /// A service without an engine as yet.
    pub fn new(policies: Policies) -> Self {
        Service { engine: OnceLock::new(), policies, closing: AtomicBool::new(false) }
    }

    /// Hands over the recovered engine. A second one is ignored: there is only ever one.
    pub fn engine_ready(&self, engine: Embedded) {
        let _ = self.engine.set(engine);
    }

    /// From now on the service says that it is closing.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// How the service fares.
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

    /// What the engine measures about itself.
    pub fn measures(&self) -> Vec<Measure> {
        self.engine.get().map(Engine::measures).unwrap_or_default()
    }

    /// What the policy of a key promises.
    pub fn consistency(&self, key: KeyRef<'_>) -> Consistency {
        self.policies.consistency(key)
    }

    /// Applies one intent: the hot path.
    pub async fn write(&self, key: KeyRef<'_>, intent: Intent) -> Result<Written, Failure> {
        let engine = self.engine()?;
        let consistency = self.policies.consistency(key);
        let mut events = engine.events();
        events.push(key, intent.change, intent.request_id, intent.details);
        let receipt = engine.submit(events, consistency.durability()).await?;
        let outcome = receipt.outcomes.first().copied().ok_or_else(no_outcome)?;
        Ok(Written { outcome, as_of: outcome.at, token: receipt.token, consistency })
    }

    /// Intents to be gathered and applied together.
    pub fn writes(&self) -> Result<Writes<'_>, Failure> {
        let engine = self.engine()?;
        let events = engine.events();
        Ok(Writes { engine, policies: &self.policies, events, consistencies: Vec::new(), durability: None })
    }

    /// An empty submission to fill.
    pub fn events(&self) -> Result<Events, Failure> {
        Ok(self.engine()?.events())
    }

    /// Applies events that were gathered over many calls: each succeeds or is refused on its own. The calling thread may
    /// be kept for the time of a flush.
    pub async fn submit(&self, events: Events, durability: Durability) -> Result<Receipt, Failure> {
        Ok(self.engine()?.flushing_here().submit(events, durability).await?)
    }

    /// How many counters there are.
    pub async fn count(&self) -> Result<u64, Failure> {
        Ok(self.engine()?.count(Durability::Flushed).await?)
    }

    /// Some counter, chosen by a number.
    pub async fn sample(&self, number: u64) -> Result<Option<Key>, Failure> {
        Ok(self.engine()?.sample(number).await?)
    }

    /// Reads counters in the order asked.
    pub async fn read(&self, keys: Vec<Key>, freshness: Freshness) -> Result<Vec<Reading>, Failure> {
        let durability = match freshness {
            Freshness::Exact => Durability::Flushed,
            Freshness::ByPolicy => self.policies.durability(keys.iter().map(Key::as_ref)),
        };
        Ok(self.engine()?.read(keys, durability).await?)
    }

    /// Reads one counter with its history.
    pub async fn stats(&self, key: Key) -> Result<Stats, Failure> {
        let durability = self.policies.consistency(key.as_ref()).durability();
        Ok(self.engine()?.stats(key, durability).await?)
    }

    /// Lists counters in key order.
    pub async fn list(&self, page: PageRequest) -> Result<Page, Failure> {
        Ok(self.engine()?.list(page).await?)
    }

    /// The corrections of one counter.
    pub async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        Ok(self.engine()?.ledger(key, after, limit).await?)
    }

    fn engine(&self) -> Result<&Embedded, Failure> {
        self.engine.get().ok_or(Failure::Recovering)
    }
}

/// Intents that are applied in their order; each succeeds or is refused on its own.
pub struct Writes<'a> {
    engine: &'a Embedded,
    policies: &'a Policies,
    events: Events,
    consistencies: Vec<Consistency>,
    /// What the most demanding of their namespaces asks.
    durability: Option<Durability>,
}

impl Writes<'_> {
    /// One intent more.
    pub fn push(&mut self, key: KeyRef<'_>, intent: Intent) {
        let consistency = self.policies.consistency(key);
        self.durability = self.durability.max(Some(consistency.durability()));
        self.consistencies.push(consistency);
        self.events.push(key, intent.change, intent.request_id, intent.details);
    }

    /// Applies them, and tells what became of each.
    pub async fn submit(self) -> Result<impl Iterator<Item = Written>, Failure> {
        let (outcomes, token) = match self.durability {
            Some(durability) => {
                let receipt = self.engine.submit(self.events, durability).await?;
                (receipt.outcomes, receipt.token)
            }
            None => (Vec::new(), Token(0)),
        };
        if outcomes.len() != self.consistencies.len() {
            return Err(no_outcome().into());
        }
        let written =
            move |(outcome, consistency): (Outcome, _)| Written { outcome, as_of: outcome.at, token, consistency };
        Ok(outcomes.into_iter().zip(self.consistencies).map(written))
    }
}

/// An engine that breaks its contract may have applied anything.
fn no_outcome() -> EngineError {
    EngineError::OutcomeUnknown("the engine answered without an outcome".into())
}
