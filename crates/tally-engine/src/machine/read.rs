//! Reading counters from memory or the store. A reading never reveals what a crash could lose.

use std::collections::BTreeMap;
use std::task::Poll;

use tally_core::batch::{Events, key_hash};
use tally_core::counter::CounterState;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::limits::PAGE_ITEMS_MAX;
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcomes, Reads, Receipt, Refusal, Token};
use tally_core::partition::Partition;
use tally_core::reading::{Reading, Stats};
use tally_core::record;
use tally_core::surface::{EngineError, Page, PageRequest, ReadOptions};
use tally_core::time::{Millis, Position};

use parking_lot::MutexGuard;

use super::{BatchWait, Durability, Machine, PARTITION, State};
use crate::host::{Fetched, MalformedRecord};
use crate::store::StoreError;

/// Whether counters remain to be loaded into memory after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// Some remain.
    InProgress,
    /// All are in memory, or memory has no room for more.
    Done,
}

/// Counters that a search passes before it yields.
pub(super) const LIST_SLICE: usize = 1 << 14;

/// Lets other tasks of the caller's thread run during a long search.
pub(super) async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Machine {
    /// Reads counters. The readings are in the order of the keys.
    pub async fn read(&self, keys: &[Key], durability: Durability) -> Result<Vec<Reading>, EngineError> {
        let now = self.clock.now();
        let (counters, wait) = self.look_up(keys, durability)?;
        if let Some(wait) = wait {
            wait.await.map_err(read_error)?;
        }
        Ok(counters.iter().map(|counter| Reading::exact(counter.as_ref(), now)).collect())
    }

    /// Reads one counter with its statistics.
    pub async fn stats(&self, key: &Key, durability: Durability) -> Result<Stats, EngineError> {
        let now = self.clock.now();
        let (counters, wait) = self.look_up(std::slice::from_ref(key), durability)?;
        if let Some(wait) = wait {
            wait.await.map_err(read_error)?;
        }
        Ok(Stats::exact(counters.first().copied().flatten(), now))
    }

    /// Lists counters in key order. Counters created or removed meanwhile may or may not be among them.
    pub async fn list(&self, page: &PageRequest) -> Result<Page, EngineError> {
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let now = self.now_at(&self.state.lock());
        let expired_by = now;
        // One more than the limit tells whether there is another page.
        let mut found = self.created_keys(page, limit + 1, expired_by).await;
        self.stored_keys(page, limit + 1, expired_by, &mut found).await.map_err(|error| self.unreadable(&error))?;
        let mut keys: Vec<Key> = found.into_keys().take(limit + 1).collect();
        let more = keys.len() > limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| more).cloned();
        let (counters, _) = self.look_up(&keys, Durability::Applied)?;
        // The absence of a counter is information too, so wait for everything that was applied.
        if let Some(wait) = self.wait_for_all()? {
            wait.await.map_err(read_error)?;
        }
        let items = keys.into_iter().zip(counters).filter(|(_, counter)| counter.is_some());
        Ok(Page { items: items.map(|(key, counter)| (key, Reading::exact(counter.as_ref(), now))).collect(), next })
    }

    /// The corrections of one counter, oldest first.
    pub async fn ledger(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        // One more than a page, so that callers can tell whether there is another.
        let limit = limit.clamp(1, PAGE_ITEMS_MAX + 1);
        // Memory first: an entry that moves to the store in between is then seen twice, not missed.
        let (unsaved, wait) = {
            let state = self.state.lock();
            self.refuse_if_poisoned()?;
            let unsaved: Vec<LedgerEntry> = state.partition.unsaved_ledger(key).cloned().collect();
            (unsaved, self.wait_for(&state, std::slice::from_ref(key), Durability::Flushed))
        };
        let mut entries = BTreeMap::new();
        let mut scan = self.store.scan(&record::ledger_key(key.as_ref(), after.saturating_add(1)));
        while entries.len() < limit
            && let Some((store_key, value)) = scan.next_entry().map_err(|error| self.unreadable(&error))?
            && record::is_ledger_of(store_key, key.as_ref())
        {
            let entry = record::read_ledger(value)
                .ok_or_else(|| self.unreadable(&StoreError::from(MalformedRecord::new(store_key))))?;
            entries.insert(entry.seq, entry);
        }
        if let Some(wait) = wait {
            wait.await.map_err(read_error)?;
        }
        entries.extend(unsaved.into_iter().filter(|entry| entry.seq > after).map(|entry| (entry.seq, entry)));
        Ok(entries.into_values().take(limit).collect())
    }

    /// Looks up counters, and the flush to await before they may be shown.
    fn look_up(
        &self,
        keys: &[Key],
        durability: Durability,
    ) -> Result<(Vec<Option<CounterState>>, Option<BatchWait>), EngineError> {
        let list = |partition: &Partition, _, missing: &mut MissingKeys| {
            for key in keys.iter().filter(|key| partition.is_missing(key.as_ref())) {
                missing.push(&record::counter_key(key.as_bytes()));
            }
        };
        let (mut state, fetched) = self.lock_with(list).map_err(|error| self.unreadable(&error))?;
        self.refuse_if_poisoned()?;
        let now = self.now_at(&state);
        let counter = |key: &Key| match state.partition.is_missing(key.as_ref()) {
            true => fetched.counter(key.as_ref()),
            false => Ok(state.partition.state_of(key.as_ref())),
        };
        let counters = keys.iter().map(counter).collect::<Result<Vec<_>, _>>();
        let counters = counters.map_err(|error: MalformedRecord| self.store_failed(&mut state, &error.into()))?;
        self.restore_if_room(&mut state, &fetched)?;
        let existing = |held: Option<CounterState>| held.filter(|held| !held.is_expired(now));
        Ok((counters.into_iter().map(existing).collect(), self.wait_for(&state, keys, durability)))
    }

    /// Answers events that only read, once what they saw has reached `durability`.
    pub(super) async fn submit_reads(&self, events: &Events, durability: Durability) -> Result<Receipt, EngineError> {
        let Reads { receipt, unflushed } = self.read_events(events)?;
        if durability == Durability::Flushed && !unflushed.is_empty() {
            self.durable(&receipt.token).await?;
        }
        Ok(receipt)
    }

    /// Answers events that only read, from the current state, and lists the answers that may not be shown before the
    /// journal is flushed up to the receipt's token.
    pub fn read_events(&self, events: &Events) -> Result<Reads, EngineError> {
        // A closing engine accepts no submission, not even a read-only one.
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let batch = events.batch();
        let list = |partition: &Partition, at, missing: &mut MissingKeys| partition.missing(batch, at, missing);
        let (mut state, fetched) = self.lock_with(list).map_err(|error| self.unreadable(&error))?;
        self.refuse_if_poisoned()?;
        fetched.check_counters().map_err(|error| self.store_failed(&mut state, &error.into()))?;
        let mut outcomes = Outcomes::default();
        let stored = |key: KeyRef<'_>| fetched.counter(key).ok().flatten();
        let as_of = state.partition.answer(self.clock.now(), batch, Refusal::NoRoom, stored, &mut outcomes);
        self.restore_if_room(&mut state, &fetched)?;
        let mut newest = Position(0);
        let mut unflushed = Vec::new();
        for (place, event) in batch.iter().enumerate() {
            if let Some(end) = state.journal.in_flight.end_touching(event.hash, event.key.as_bytes()) {
                newest = newest.max(end);
                unflushed.push(place as u32);
            }
        }
        let token = Token::new(PARTITION, newest);
        Ok(Reads { receipt: Receipt { outcomes: outcomes.slots().to_vec(), as_of, token }, unflushed })
    }

    /// Refuses a read whose token names a position that this engine has not reached.
    pub fn require(&self, options: &ReadOptions) -> Result<(), EngineError> {
        let applied = self.state.lock().applied;
        match &options.at_least {
            Some(token) if token.positions().any(|(partition, at)| partition != PARTITION || at > applied) => {
                Err(EngineError::TooStale("the token names a write that this server does not have".into()))
            }
            _ => Ok(()),
        }
    }

    /// Resolves once everything the token names is flushed.
    pub async fn durable(&self, token: &Token) -> Result<(), EngineError> {
        let position = token.position(PARTITION);
        let wait = {
            let state = self.state.lock();
            self.refuse_if_poisoned()?;
            state.journal.in_flight.covering(position)
        };
        match wait {
            Some(wait) => wait.await.map(|_| ()).map_err(read_error),
            None => Ok(()),
        }
    }

    /// Locks the state with everything that `list` names either in memory or fetched.
    pub(super) fn lock_with(
        &self,
        list: impl Fn(&Partition, Position, &mut MissingKeys),
    ) -> Result<(MutexGuard<'_, State>, Fetched), StoreError> {
        self.state.lock_with(&self.store, list)
    }

    fn restore_if_room(&self, state: &mut State, fetched: &Fetched) -> Result<(), EngineError> {
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        fetched.restore_within(&mut state.partition, budget).map_err(|error| self.store_failed(state, &error.into()))
    }

    pub(super) fn unreadable(&self, error: &StoreError) -> EngineError {
        self.store_failed(&mut self.state.lock(), error)
    }

    /// A poisoned engine must not answer reads: memory may hold changes that the disk does not. Call with the state
    /// locked, because poisoning sets the reason before it fails the batches in flight.
    pub(super) fn refuse_if_poisoned(&self) -> Result<(), EngineError> {
        self.poison.reason().map_or(Ok(()), |reason| Err(EngineError::Poisoned(reason.to_owned())))
    }

    /// The time at which expiry is evaluated: never earlier than that of the last batch.
    pub(super) fn now_at(&self, state: &State) -> Millis {
        self.clock.now().max(state.partition.clock())
    }

    /// After a restart, loads up to `max` counters from the store into memory, starting at key `from`. Without this,
    /// the first use of every counter costs a store lookup. Once all are in memory, new keys need no lookup either.
    pub fn warm(&self, from: &mut Vec<u8>, max: usize) -> Result<WarmUp, StoreError> {
        let snapshot = self.store.snapshot();
        let mut scan = snapshot.scan(&record::counter_key(from));
        let mut slice = Vec::with_capacity(max);
        let is_last = loop {
            if slice.len() == max {
                break false;
            }
            match scan.next_entry()? {
                Some((store_key, value)) if record::counter_of(store_key).is_some() => {
                    slice.push((store_key.to_vec(), value.to_vec()));
                }
                _ => break true,
            }
        };
        let mut state = self.state.lock();
        if !self.store.is_current(&snapshot) {
            return Ok(WarmUp::InProgress);
        }
        let partition = &mut state.partition;
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        for (store_key, value) in &slice {
            if !partition.is_warming(budget) {
                return Ok(WarmUp::Done);
            }
            partition.restore(store_key, value).map_err(|_| MalformedRecord::new(store_key))?;
        }
        if let Some(key) = slice.last().and_then(|(store_key, _)| record::counter_of(store_key)) {
            from.clear();
            from.extend_from_slice(key.as_bytes());
            from.push(0);
        }
        if is_last {
            partition.finish_warming();
            return Ok(WarmUp::Done);
        }
        Ok(WarmUp::InProgress)
    }

    /// The flush to await before the counters may be shown: that of the newest batch that touches one of them.
    pub(super) fn wait_for(&self, state: &State, keys: &[Key], durability: Durability) -> Option<BatchWait> {
        if durability == Durability::Applied {
            return None;
        }
        if state.journal.in_flight.is_empty() {
            return None;
        }
        let hashes: Vec<u64> = keys.iter().map(|key| key_hash(self.settings.seed, key.as_bytes())).collect();
        state.journal.in_flight.newest_touching(|combiner| {
            keys.iter().zip(&hashes).any(|(key, &hash)| combiner.touches(hash, key.as_bytes()))
        })
    }

    /// The flush to await before anything may be shown.
    fn wait_for_all(&self) -> Result<Option<BatchWait>, EngineError> {
        let state = self.state.lock();
        self.refuse_if_poisoned()?;
        Ok(state.journal.in_flight.newest())
    }

    /// The first `limit` matching keys that are not in the store yet.
    async fn created_keys(&self, page: &PageRequest, limit: usize, now: Millis) -> BTreeMap<Key, ()> {
        let after = page.after.as_ref().map_or(&[][..], |key| key.as_bytes());
        let mut found = BTreeMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            from = self.state.lock().partition.created_keys(at, LIST_SLICE, now, &page.prefix, after, &mut |key| {
                if let Ok(key) = Key::new(key) {
                    found.insert(key, ());
                }
                if found.len() > limit {
                    found.pop_last();
                }
            });
            if from.is_some() {
                yield_now().await;
            }
        }
        found
    }

    /// Adds up to `limit` matching keys of the store.
    async fn stored_keys(
        &self,
        page: &PageRequest,
        limit: usize,
        now: Millis,
        found: &mut BTreeMap<Key, ()>,
    ) -> Result<(), StoreError> {
        let after = page.after.as_ref().map_or(&[][..], |key| key.as_bytes());
        let start = record::counter_key(after.max(page.prefix.as_slice()));
        let mut scan = self.store.scan(&start);
        let (mut seen, mut taken) = (0, 0);
        while taken < limit
            && let Some((store_key, value)) = scan.next_entry()?
            && let Some(key) = record::counter_of(store_key)
            && key.as_bytes().starts_with(&page.prefix)
        {
            if key.as_bytes() > after {
                let key = key.to_key();
                let state = self.state.lock();
                let held = state.partition.state_of(key.as_ref()).or_else(|| record::read_counter(value));
                let expired = held.is_some_and(|held| held.is_expired(now));
                if !expired && !state.partition.is_removed(key.as_ref()) {
                    found.insert(key, ());
                    taken += 1;
                }
            }
            // Many may have expired and not be swept yet.
            seen += 1;
            if seen % LIST_SLICE == 0 {
                yield_now().await;
            }
        }
        Ok(())
    }
}

/// The error of a read whose flush failed: a read changes nothing, so its outcome is not unknown.
pub(super) fn read_error(error: EngineError) -> EngineError {
    match error {
        EngineError::OutcomeUnknown(reason) => EngineError::Poisoned(reason),
        other => other,
    }
}
