//! An engine under test and its data.

use tally_core::consistency::Consistency;
use tally_core::event::{Change, Details};
use tally_core::key::Key;
use tally_core::ledger::{CHAIN_START, LedgerEntry};
use tally_core::limits::CALL_KEYS_MAX;
use tally_core::outcome::Outcome;
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{Page, PageRequest, SubmitOptions};

use crate::{Ability, Call, EngineClient, Failure, Host, Verdict, WeakerAnswers};

/// A started engine.
pub struct Running<'h, H: Host> {
    host: &'h H,
    data: H::Data,
    engine: H::Engine,
}

impl<'h, H: Host> Running<'h, H> {
    /// Starts an engine on empty data.
    pub fn fresh(host: &'h H) -> Result<Self, Failure> {
        let data = host.prepare()?;
        let engine = host.start(&data)?;
        Ok(Running { host, data, engine })
    }

    /// Stops the engine; it can still be inspected.
    pub fn stop(&self) -> Verdict {
        self.host.stop(&self.engine)
    }

    /// Starts another engine on the data of a stopped one.
    pub fn start(self) -> Result<Self, Failure> {
        let Running { host, data, engine } = self;
        drop(engine);
        let engine = host.start(&data)?;
        Ok(Running { host, data, engine })
    }

    /// Stops the engine and starts another on its data.
    pub fn restart(self) -> Result<Self, Failure> {
        self.stop()?;
        self.start()
    }

    /// Whether callers of the engine can do this.
    pub fn can(&self, ability: Ability) -> bool {
        !self.host.lacks().contains(&ability)
    }

    /// What answers below [`Consistency::Exact`] are.
    pub fn weaker_answers(&self) -> WeakerAnswers {
        self.host.weaker_answers()
    }

    /// The engine itself.
    pub fn engine(&self) -> &H::Engine {
        &self.engine
    }

    /// An empty submission.
    #[must_use]
    pub fn call(&self) -> Call<'_, H::Engine> {
        Call::new(&self.engine, self.host.submit_options())
    }

    /// The host's default options for submissions.
    pub fn submit_options(&self) -> SubmitOptions {
        self.host.submit_options()
    }

    /// One plain increment.
    pub fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<Outcome, Failure> {
        self.call().add(key, delta).one()
    }

    /// One increment with a request id.
    pub fn add_once(&self, id: &str, key: impl AsRef<[u8]>, delta: i64) -> Result<Outcome, Failure> {
        self.call().add_once(id, key, delta).one()
    }

    /// One event of any kind.
    pub fn event(
        &self,
        key: impl AsRef<[u8]>,
        change: Change,
        id: Option<&str>,
        details: Option<Details>,
    ) -> Result<Outcome, Failure> {
        self.call().event(key, change, id, details).one()
    }

    /// Reads counters with this consistency.
    pub fn read_at(&self, keys: &[impl AsRef<[u8]>], consistency: Consistency) -> Result<Vec<Reading>, Failure> {
        let mut readings = Vec::new();
        for chunk in keys.chunks(CALL_KEYS_MAX) {
            let chunk = chunk.iter().map(Key::new).collect::<Result<Vec<_>, _>>()?;
            readings.extend(self.engine.readings(chunk, consistency)?);
        }
        assert_eq!(readings.len(), keys.len(), "one reading per key");
        Ok(readings)
    }

    /// Reads one counter.
    pub fn read(&self, key: impl AsRef<[u8]>) -> Result<Reading, Failure> {
        let readings = self.read_at(&[key], Consistency::Exact)?;
        readings.first().copied().ok_or_else(|| "no reading".into())
    }

    /// The value of one counter.
    pub fn value(&self, key: impl AsRef<[u8]>) -> Result<i64, Failure> {
        Ok(self.read(key)?.value)
    }

    /// One counter with its statistics.
    pub fn stats(&self, key: impl AsRef<[u8]>) -> Result<Stats, Failure> {
        self.engine.statistics(Key::new(key)?)
    }

    /// The number of counters.
    pub fn count(&self) -> Result<u64, Failure> {
        self.engine.counters()
    }

    /// A counter chosen by `number`.
    pub fn sample(&self, number: u64) -> Result<Option<Key>, Failure> {
        self.host.sync_listings(&self.engine)?;
        self.engine.any_counter(number)
    }

    /// One page of counters.
    pub fn page(&self, prefix: &[u8], after: Option<&Key>, limit: usize) -> Result<Page, Failure> {
        self.host.sync_listings(&self.engine)?;
        let page = PageRequest { prefix: prefix.to_vec(), after: after.cloned(), limit };
        self.engine.page(page)
    }

    /// All counters with a prefix, read page by page.
    pub fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<(Key, Reading)>, Failure> {
        let mut all: Vec<(Key, Reading)> = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(prefix, after.as_ref(), limit)?;
            assert!(page.items.len() <= limit, "a page holds at most {limit}");
            all.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// The whole ledger of a counter, page by page, with its chain verified.
    pub fn ledger(&self, key: impl AsRef<[u8]>, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        let key = Key::new(key)?;
        let mut entries: Vec<LedgerEntry> = Vec::new();
        loop {
            let after = entries.last().map_or(0, |entry| entry.seq);
            let page = self.engine.entries(key.clone(), after, limit)?;
            assert!(page.len() <= limit, "a page holds at most {limit}");
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        let stored = self.host.stored_key(&self.data, &key)?;
        let mut previous = CHAIN_START;
        for (place, entry) in (1..).zip(&entries) {
            assert_eq!(entry.seq, place, "numbered without gaps");
            assert_eq!(entry.previous, previous, "linked to the previous entry");
            assert_eq!(entry.hash, entry.expected_hash(stored.as_ref()), "hashed over its own content");
            previous = entry.hash;
        }
        Ok(entries)
    }
}
