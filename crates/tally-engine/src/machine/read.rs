//! Reading: counters from memory or the store, and never what a crash could take back.

use std::collections::BTreeMap;

use tally_core::batch::key_hash;
use tally_core::counter::{Counter, Held};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::limits::PAGE_ITEMS_MAX;
use tally_core::partition::Room;
use tally_core::reading::{Reading, Stats};
use tally_core::record;
use tally_core::surface::{Durability, EngineError, Page, PageRequest};
use tally_core::time::Millis;

use super::{Machine, State};
use crate::store::StoreError;
use crate::ticket::Wait;

/// Whether counters remain to be brought to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Some remain.
    Warming,
    /// All are there, or memory has no room for more.
    Warm,
}

/// Counters looked through per turn of the lock when listing.
pub(super) const LIST_SLICE: usize = 1 << 14;

impl Machine {
    /// Reads counters, in the order asked.
    pub async fn read(&self, keys: &[Key], durability: Durability) -> Result<Vec<Reading>, EngineError> {
        let now = self.clock.now();
        let (counters, wait) = self.look_up(keys, durability)?;
        if let Some(wait) = wait {
            wait.await.map_err(unrevealed)?;
        }
        Ok(counters.iter().map(|counter| reading(counter.as_ref(), now)).collect())
    }

    /// Reads one counter with its history.
    pub async fn stats(&self, key: &Key, durability: Durability) -> Result<Stats, EngineError> {
        let now = self.clock.now();
        let (counters, wait) = self.look_up(std::slice::from_ref(key), durability)?;
        if let Some(wait) = wait {
            wait.await.map_err(unrevealed)?;
        }
        Ok(stats(counters.first().copied().flatten(), now))
    }

    /// Lists counters in key order. Counters created or removed meanwhile may or may not be among them.
    pub async fn list(&self, page: &PageRequest) -> Result<Page, EngineError> {
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let now = self.clock.now();
        let expired_by = self.now(&self.state.lock());
        // One more than asked tells whether more follow.
        let mut found = self.created_keys(page, limit + 1, expired_by);
        self.stored_keys(page, limit + 1, expired_by, &mut found).map_err(|error| self.unreadable(&error))?;
        let mut keys: Vec<Key> = found.into_keys().take(limit + 1).collect();
        let more = keys.len() > limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| more).cloned();
        let (counters, _) = self.look_up(&keys, Durability::Applied)?;
        // That a counter is not among them says as much as that it is: everything applied so far must rest.
        if let Some(wait) = self.wait_for_all()? {
            wait.await.map_err(unrevealed)?;
        }
        let items = keys.into_iter().zip(counters).filter(|(_, counter)| counter.is_some());
        Ok(Page { items: items.map(|(key, counter)| (key, reading(counter.as_ref(), now))).collect(), next })
    }

    /// The corrections of one counter, oldest first.
    pub async fn ledger(&self, key: &Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        // One more than a page has, so that callers can tell whether there is another.
        let limit = limit.clamp(1, PAGE_ITEMS_MAX + 1);
        // Memory first: what moves to the store in between is then seen twice rather than not at all.
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
            let entry = record::read_ledger(value).ok_or_else(|| self.unreadable(&StoreError::malformed(store_key)))?;
            entries.insert(entry.seq, entry);
        }
        if let Some(wait) = wait {
            wait.await.map_err(unrevealed)?;
        }
        entries.extend(unsaved.into_iter().filter(|entry| entry.seq > after).map(|entry| (entry.seq, entry)));
        Ok(entries.into_values().take(limit).collect())
    }

    /// The counters that exist now, as they stand, and what to await before they may be shown.
    fn look_up(&self, keys: &[Key], durability: Durability) -> Result<(Vec<Option<Held>>, Option<Wait>), EngineError> {
        let mut state = self.state.lock();
        self.refuse_if_poisoned()?;
        let counters = keys.iter().map(|key| self.counter(&mut state, key.as_ref())).collect::<Result<Vec<_>, _>>();
        let counters = counters.map_err(|error| self.store_failed(&mut state, &error))?;
        let now = self.now(&state);
        let existing = |held: Option<Held>| held.filter(|held| !held.is_expired(now));
        Ok((counters.into_iter().map(existing).collect(), self.wait_for(&state, keys, durability)))
    }

    pub(super) fn unreadable(&self, error: &StoreError) -> EngineError {
        self.store_failed(&mut self.state.lock(), error)
    }

    /// What memory holds may be more than the disk does. To be asked with the state locked: whoever poisons sets the
    /// reason before taking the batches in flight.
    pub(super) fn refuse_if_poisoned(&self) -> Result<(), EngineError> {
        self.poison.reason().map_or(Ok(()), |reason| Err(EngineError::Poisoned(reason.to_owned())))
    }

    /// What readings judge expiry by: neither a clock that was set back nor a batch that is long past.
    pub(super) fn now(&self, state: &State) -> Millis {
        self.clock.now().max(state.partition.clock())
    }

    /// One counter, from the store if need be; it stays in memory when there is room.
    fn counter(&self, state: &mut State, key: KeyRef<'_>) -> Result<Option<Held>, StoreError> {
        let partition = &mut state.partition;
        if !partition.wants_counter(key) {
            return Ok(partition.held(key));
        }
        self.meters.store_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let store_key = record::counter_key(key.as_bytes());
        let Some(value) = self.store.get(&store_key)? else {
            return Ok(None);
        };
        let held = record::read_counter(&value).ok_or_else(|| StoreError::malformed(&store_key))?;
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        if partition.make_room_for_one(key, budget) == Room::Enough {
            partition.restore(&store_key, &value).map_err(|_| StoreError::malformed(&store_key))?;
        }
        Ok(Some(held))
    }

    /// After a restart, brings up to `max` counters of the store to memory, going on from key `from`. Without this the
    /// first use of every counter costs a look into the store; once all of them are there, no new key does either.
    pub fn warm(&self, from: &mut Vec<u8>, max: usize) -> Result<Warmth, StoreError> {
        let mut state = self.state.lock();
        let partition = &mut state.partition;
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        // The walk begins anew under the lock each time: only then is what it shows what memory lacks.
        let mut scan = self.store.scan(&record::counter_key(from));
        for _ in 0..max {
            if !partition.is_warming(budget) {
                return Ok(Warmth::Warm);
            }
            let Some((store_key, value)) = scan.next_entry()? else {
                partition.all_warm();
                return Ok(Warmth::Warm);
            };
            let Some(key) = record::counter_of(store_key) else {
                partition.all_warm();
                return Ok(Warmth::Warm);
            };
            partition.restore(store_key, value).map_err(|_| StoreError::malformed(store_key))?;
            from.clear();
            from.extend_from_slice(key.as_bytes());
            from.push(0);
        }
        Ok(Warmth::Warming)
    }

    /// What to await before the counters may be shown: the newest batch in flight that concerns one of them.
    pub(super) fn wait_for(&self, state: &State, keys: &[Key], durability: Durability) -> Option<Wait> {
        if durability == Durability::Applied {
            return None;
        }
        let hashes: Vec<u64> = match state.in_flight.is_empty() {
            true => return None,
            false => keys.iter().map(|key| key_hash(self.settings.seed, key.as_bytes())).collect(),
        };
        let concerns = |combiner: &tally_core::batch::Combiner| {
            keys.iter().zip(&hashes).any(|(key, &hash)| combiner.touches(hash, key.as_bytes()))
        };
        let newest = state.in_flight.iter().rev().find(|(sealed, _)| concerns(&sealed.combiner));
        newest.map(|(_, ticket)| Wait::new(ticket.clone(), durability))
    }

    /// What to await before anything at all may be shown: the newest batch in flight.
    fn wait_for_all(&self) -> Result<Option<Wait>, EngineError> {
        let state = self.state.lock();
        self.refuse_if_poisoned()?;
        Ok(newest_in_flight(&state))
    }

    /// The first `limit` matching keys that the store does not hold yet.
    fn created_keys(&self, page: &PageRequest, limit: usize, now: Millis) -> BTreeMap<Key, ()> {
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
        }
        found
    }

    /// Adds matching keys of the store until `limit` of them are known to be there.
    fn stored_keys(
        &self,
        page: &PageRequest,
        limit: usize,
        now: Millis,
        found: &mut BTreeMap<Key, ()>,
    ) -> Result<(), StoreError> {
        let after = page.after.as_ref().map_or(&[][..], |key| key.as_bytes());
        let start = record::counter_key(after.max(page.prefix.as_slice()));
        let mut scan = self.store.scan(&start);
        let mut taken = 0;
        while taken < limit
            && let Some((store_key, value)) = scan.next_entry()?
            && let Some(key) = record::counter_of(store_key)
            && key.as_bytes().starts_with(&page.prefix)
        {
            if key.as_bytes() > after {
                let key = key.to_key();
                let state = self.state.lock();
                let held = state.partition.held(key.as_ref()).or_else(|| record::read_counter(value));
                let expired = held.is_some_and(|held| held.is_expired(now));
                if !expired && !state.partition.is_removed(key.as_ref()) {
                    found.insert(key, ());
                    taken += 1;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn newest_in_flight(state: &State) -> Option<Wait> {
    state.in_flight.back().map(|(_, ticket)| Wait::new(ticket.clone(), Durability::Flushed))
}

/// A value that would have been shown after a flush that failed is not shown.
pub(super) fn unrevealed(error: EngineError) -> EngineError {
    match error {
        EngineError::OutcomeUnknown(reason) => EngineError::Poisoned(reason),
        other => other,
    }
}

fn reading(held: Option<&Held>, now: Millis) -> Reading {
    let counter = held.map(|held| &held.counter);
    Reading {
        value: counter.map_or(0, Counter::value),
        exists: counter.is_some(),
        exact: true,
        as_of: now,
        staleness_ms: 0,
        created_at: counter.map(|counter| counter.created),
        updated_at: counter.map(|counter| counter.updated),
        expires_at: held.and_then(|held| held.expires_at),
        shards: 1,
    }
}

fn stats(held: Option<Held>, now: Millis) -> Stats {
    let reading = reading(held.as_ref(), now);
    let counter = held.map(|held| held.counter).unwrap_or_default();
    let (min, max) = counter.extremes();
    let [rate_1s, rate_1m, rate_1h] = counter.rates(now);
    Stats {
        shard_values: if reading.exists { vec![reading.value] } else { Vec::new() },
        reading,
        increments: counter.increments(),
        decrements: counter.decrements(),
        min,
        max,
        rate_1s,
        rate_1m,
        rate_1h,
    }
}
