//! Counting counters, sampling one, and finding expired ones.

use tally_core::counter::CounterState;
use tally_core::key::{Key, KeyRef};
use tally_core::limits::{SWEEP_MAX, SWEEP_SLICE};
use tally_core::partition::{Probe, pseudo_random};
use tally_core::record;
use tally_core::surface::EngineError;
use tally_core::time::Millis;

use super::read::{LIST_SLICE, read_error, yield_now};
use super::{BatchWait, Durability, Machine, State};
use crate::host::MalformedRecord;
use crate::store::StoreError;

/// The progress of a sweep.
#[derive(Debug)]
pub struct Sweep {
    from: Vec<u8>,
    left: usize,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep { from: record::EXPIRY_PREFIX.to_vec(), left: SWEEP_MAX }
    }
}

impl Sweep {
    /// Whether the sweep stopped at its limit: a checkpoint must free memory before the next one.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left == 0
    }
}

/// Random places to try for a sample.
const SAMPLE_TRIES: u64 = 16;

/// A counter, and the flush to await before it may be shown.
type Sampled = Option<(Key, Option<BatchWait>)>;

impl Machine {
    /// The number of counters, including those that have expired and are not swept yet.
    pub async fn count(&self, durability: Durability) -> Result<u64, EngineError> {
        let (counters, wait) = {
            let state = self.state.lock();
            self.refuse_if_poisoned()?;
            (state.partition.counters(), state.journal.in_flight.newest())
        };
        match wait.filter(|_| durability == Durability::Flushed) {
            Some(wait) => wait.await.map(|_| counters).map_err(read_error),
            None => Ok(counters),
        }
    }

    /// An existing counter, chosen about uniformly by `number`.
    pub async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        let found = match self.sample_any(number)? {
            None => self.find_any(number).await?,
            found => found,
        };
        let Some((key, wait)) = found else {
            return Ok(None);
        };
        if let Some(wait) = wait {
            wait.await.map_err(read_error)?;
        }
        Ok(Some(key))
    }

    /// Tries random places in memory or in the store, in proportion to how many counters are in memory and how many are
    /// only in the store. `None` if every try hit an expired counter, or one in the store that is also in memory.
    fn sample_any(&self, number: u64) -> Result<Sampled, EngineError> {
        for attempt in 0..SAMPLE_TRIES {
            let number = pseudo_random(number, attempt);
            let in_store = {
                let state = self.state.lock();
                self.refuse_if_poisoned()?;
                let (counters, resident) = (state.partition.counters(), state.partition.resident_counters() as u64);
                let Some(place) = number.checked_rem(counters) else { return Ok(None) };
                if place < resident
                    && let Some(key) = state.partition.sample(number, self.now_at(&state))
                {
                    return Ok(Some(self.sampled(&state, key)));
                }
                place >= resident
            };
            if in_store && let Some(sampled) = self.sample_store(number)? {
                return Ok(Some(sampled));
            }
        }
        Ok(None)
    }

    /// A random counter of the store that is not in memory.
    fn sample_store(&self, number: u64) -> Result<Sampled, EngineError> {
        let entry = self.store.sample(&record::counter_key(&[]), number).map_err(|error| self.unreadable(&error))?;
        let Some((store_key, value)) = entry else { return Ok(None) };
        let Some(key) = record::counter_of(&store_key) else { return Ok(None) };
        let held = record::read_counter(&value);
        let held = held.ok_or_else(|| self.unreadable(&StoreError::from(MalformedRecord::new(&store_key))))?;
        let state = self.state.lock();
        let is_counter = state.partition.is_missing(key) && !held.is_expired(self.now_at(&state));
        Ok(is_counter.then(|| self.sampled(&state, key.to_key())))
    }

    /// The first counter after a random place. For when most counters have expired, so that `sample_any` found none.
    async fn find_any(&self, number: u64) -> Result<Sampled, EngineError> {
        match self.find_in_memory(number).await? {
            None => self.find_in_store(number).await,
            found => Ok(found),
        }
    }

    async fn find_in_memory(&self, number: u64) -> Result<Sampled, EngineError> {
        let cells = self.state.lock().partition.cells();
        let start = number.checked_rem(cells as u64).unwrap_or_default() as usize;
        for (mut from, end) in [(start, cells), (0, start)] {
            while from < end {
                {
                    let state = self.state.lock();
                    self.refuse_if_poisoned()?;
                    match state.partition.probe(from, LIST_SLICE, self.now_at(&state)) {
                        Probe::Found(key) => return Ok(Some(self.sampled(&state, key))),
                        Probe::Further(at) => from = at,
                        Probe::End => break,
                    }
                }
                yield_now().await;
            }
        }
        Ok(None)
    }

    async fn find_in_store(&self, number: u64) -> Result<Sampled, EngineError> {
        let start = record::counter_key(&number.to_be_bytes());
        for from in [&start[..], &record::counter_key(&[])] {
            let mut scan = self.store.scan(from);
            let mut seen = 0;
            while let Some((store_key, value)) = scan.next_entry().map_err(|error| self.unreadable(&error))?
                && let Some(key) = record::counter_of(store_key)
            {
                let held = record::read_counter(value);
                let held = held.ok_or_else(|| self.unreadable(&StoreError::from(MalformedRecord::new(store_key))))?;
                if let Some(sampled) = self.live_in_store(key, held) {
                    return Ok(Some(sampled));
                }
                seen += 1;
                if seen % LIST_SLICE == 0 {
                    yield_now().await;
                }
            }
        }
        Ok(None)
    }

    /// The counter, unless it has expired; `held` is what the store has of it.
    fn live_in_store(&self, key: KeyRef<'_>, held: CounterState) -> Sampled {
        let state = self.state.lock();
        // Memory is newer, and the counter may have been restored since memory was searched.
        let held = if state.partition.is_missing(key) { Some(held) } else { state.partition.state_of(key) };
        let is_live = held.is_some_and(|held| !held.is_expired(self.now_at(&state)));
        is_live.then(|| self.sampled(&state, key.to_key()))
    }

    fn sampled(&self, state: &State, key: Key) -> (Key, Option<BatchWait>) {
        let wait = self.wait_for(state, std::slice::from_ref(&key), Durability::Flushed);
        (key, wait)
    }

    /// The next expired counters, according to the store's expiry records; none at the end. Submit each as a
    /// [`Change::Sweep`](tally_core::event::Change::Sweep): only a batch may remove a counter.
    pub fn find_expired(&self, sweep: &mut Sweep) -> Result<Vec<(Millis, Key)>, StoreError> {
        let now = self.clock.now();
        let mut scan = self.store.scan(&sweep.from);
        let mut found = Vec::new();
        while found.len() < SWEEP_SLICE.min(sweep.left) {
            let Some((store_key, _)) = scan.next_entry()? else {
                break;
            };
            if !store_key.starts_with(record::EXPIRY_PREFIX) {
                break;
            }
            let (expires_at, key) = record::expiry_of(store_key).ok_or_else(|| MalformedRecord::new(store_key))?;
            if expires_at > now {
                break;
            }
            found.push((expires_at, key.to_key()));
            sweep.from.clear();
            sweep.from.extend_from_slice(store_key);
            sweep.from.push(0);
        }
        sweep.left -= found.len();
        Ok(found)
    }
}
