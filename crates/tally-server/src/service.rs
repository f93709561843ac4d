//! The service: what every protocol can do with counters, over any [`Engine`].
//!
//! A protocol hands in what admission let through and gets back what to answer. The engine appears here once it
//! has recovered; until then every call is refused with [`Failure::Recovering`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_core::batch::Events;
use tally_core::event::{Change, Details, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Outcome, Reads, Receipt, Refusal, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    Engine, EngineError, FlushBy, Health, Measure, Page, PageRequest, ReadOptions, SubmitOptions,
};
use tally_core::time::Millis;
use tally_engine::Embedded;

use crate::admission::Admission;
use crate::policy::{Consistency, Policies};

/// Counters, as protocols see them.
pub struct Service<E = Embedded> {
    engine: OnceLock<E>,
    policies: Policies,
    admission: Admission,
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// As the namespace's policy says, or more.
    pub at: Latest,
    /// At least the writes that this token proves.
    pub token: Option<Token>,
    /// At most this old.
    pub staleness_max_ms: Option<u64>,
}

/// Which state a reading shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latest {
    /// What the namespace's policy says.
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

    /// The demand as engines take it.
    fn options(self, policy: Consistency) -> ReadOptions {
        let consistency = match self.at {
            Latest::ByPolicy => policy,
            Latest::Exact => Consistency::Exact,
        };
        ReadOptions { consistency, at_least: self.token, staleness_max_ms: self.staleness_max_ms }
    }
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

impl<E: Engine> Service<E> {
    /// A service without an engine as yet.
    pub fn new(policies: Policies) -> Self {
        Service { engine: OnceLock::new(), policies, admission: Admission::default(), closing: AtomicBool::new(false) }
    }

    /// Hands over the recovered engine. A second one is ignored: there is only ever one.
    pub fn engine_ready(&self, engine: E) {
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

    /// Decides which calls reach the engine.
    pub fn admission(&self) -> &Admission {
        &self.admission
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
        let receipt = engine.submit(events, SubmitOptions::new(consistency)).await?;
        let outcome = receipt.outcomes.first().copied().ok_or_else(no_outcome)?;
        refuse_without_room(&receipt.outcomes)?;
        Ok(Written { outcome, as_of: outcome.at, token: receipt.token, consistency })
    }

    /// Intents to be gathered and applied together.
    pub fn writes(&self) -> Result<Writes<'_, E>, Failure> {
        let engine = self.engine()?;
        let events = engine.events();
        Ok(Writes { engine, policies: &self.policies, events, consistencies: Vec::new() })
    }

    /// An empty submission to fill.
    pub fn events(&self) -> Result<Events, Failure> {
        Ok(self.engine()?.events())
    }

    /// Applies events that were gathered over many calls: each succeeds or is refused on its own. The calling thread may
    /// be kept for the time of a flush.
    pub async fn submit(&self, events: Events, consistency: Consistency) -> Result<Receipt, Failure> {
        let options = SubmitOptions { consistency, flush: FlushBy::Caller };
        let expected = events.outcomes_len();
        let receipt = self.engine()?.submit(events, options).await?;
        // One outcome too many or too few would give a caller another caller's value.
        if receipt.outcomes.len() == expected { Ok(receipt) } else { Err(no_outcome().into()) }
    }

    /// Answers events that only read, and says which answers have to wait for [`Service::durable`].
    pub async fn read_events(&self, events: Events, consistency: Consistency) -> Result<Reads, Failure> {
        let expected = events.outcomes_len();
        let reads = self.engine()?.read_events(events, ReadOptions::new(consistency)).await?;
        if reads.receipt.outcomes.len() == expected { Ok(reads) } else { Err(no_outcome().into()) }
    }

    /// Resolves once what the token names is durable.
    pub async fn durable(&self, token: Token) -> Result<(), Failure> {
        Ok(self.engine()?.durable(token).await?)
    }

    /// How many counters there are.
    pub async fn count(&self) -> Result<u64, Failure> {
        Ok(self.engine()?.count(ReadOptions::default()).await?)
    }

    /// Some counter, chosen by a number.
    pub async fn sample(&self, number: u64) -> Result<Option<Key>, Failure> {
        Ok(self.engine()?.sample(number).await?)
    }

    /// Reads counters in the order asked.
    pub async fn read(&self, keys: Vec<Key>, freshness: Freshness) -> Result<Vec<Reading>, Failure> {
        let options = freshness.options(self.policies.strongest(keys.iter().map(Key::as_ref)));
        Ok(self.engine()?.read(keys, options).await?)
    }

    /// Reads one counter with its history.
    pub async fn stats(&self, key: Key) -> Result<Stats, Failure> {
        let options = ReadOptions::new(self.policies.consistency(key.as_ref()));
        Ok(self.engine()?.stats(key, options).await?)
    }

    /// Lists counters in key order.
    pub async fn list(&self, page: PageRequest) -> Result<Page, Failure> {
        Ok(self.engine()?.list(page).await?)
    }

    /// The corrections of one counter.
    pub async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        Ok(self.engine()?.ledger(key, after, limit).await?)
    }

    fn engine(&self) -> Result<&E, Failure> {
        self.engine.get().ok_or(Failure::Recovering)
    }
}

/// Intents that are applied in their order; each succeeds or is refused on its own.
pub struct Writes<'a, E = Embedded> {
    engine: &'a E,
    policies: &'a Policies,
    events: Events,
    consistencies: Vec<Consistency>,
}

impl<E: Engine> Writes<'_, E> {
    /// One intent more.
    pub fn push(&mut self, key: KeyRef<'_>, intent: Intent) {
        self.consistencies.push(self.policies.consistency(key));
        self.events.push(key, intent.change, intent.request_id, intent.details);
    }

    /// Applies them with the strongest consistency of their namespaces, and tells what became of each.
    pub async fn submit(self) -> Result<impl Iterator<Item = Written>, Failure> {
        let receipt = match self.consistencies.iter().max() {
            Some(strongest) => self.engine.submit(self.events, SubmitOptions::new(*strongest)).await?,
            None => Receipt { outcomes: Vec::new(), as_of: Millis(0), token: Token::default() },
        };
        if receipt.outcomes.len() != self.consistencies.len() {
            return Err(no_outcome().into());
        }
        refuse_without_room(&receipt.outcomes)?;
        let Receipt { outcomes, token, .. } = receipt;
        let written = move |(outcome, consistency): (Outcome, _)| Written {
            outcome,
            as_of: outcome.at,
            token: token.clone(),
            consistency,
        };
        Ok(outcomes.into_iter().zip(self.consistencies).map(written))
    }
}

/// Changes that found no room in the journal were refused all together.
fn refuse_without_room(outcomes: &[Outcome]) -> Result<(), EngineError> {
    let has_room = outcomes.iter().all(|outcome| outcome.refusal != Some(Refusal::NoRoom));
    if has_room { Ok(()) } else { Err(EngineError::DiskFull) }
}

/// An engine that breaks its contract may have applied anything.
fn no_outcome() -> EngineError {
    EngineError::OutcomeUnknown("the engine answered with another number of outcomes than events".into())
}
