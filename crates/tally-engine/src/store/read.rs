//! Reading the store: one key, many keys, or all of them in order.

use std::sync::Arc;

use tally_core::missing_keys::MissingKeys;
use tally_core::record::sort_by_bytes;

use super::cursor::{ReadAhead, RunCursor};
use super::filter::hash;
use super::merge::MergeIterator;
use super::run::Run;
use super::{StoreError, StoreVersion};

impl StoreVersion {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let hash = hash(key);
        for run in self.runs.iter().filter(|run| run.may_hold(key, hash)) {
            let mut cursor = RunCursor::new(Arc::clone(run), ReadAhead::Never);
            if cursor.seek(key)? && cursor.key() == key {
                return Ok(cursor.value().map(<[u8]>::to_vec));
            }
        }
        Ok(None)
    }

    /// See [`Store::sample`](super::Store::sample). Blocks have about the same number of entries, so a random entry of
    /// a random block is a random entry.
    pub(super) fn sample(&self, prefix: &[u8], number: u64) -> Result<Option<SampledEntry>, StoreError> {
        let blocks_of = |run: &Run| match run.index.len() {
            0 => 0..0,
            _ => run.index.find(prefix, 0)..run.index.find(&after(prefix), 0) + 1,
        };
        let blocks: usize = self.runs.iter().map(|run| blocks_of(run).len()).sum();
        let Some(mut place) = number.checked_rem(blocks as u64).map(|place| place as usize) else { return Ok(None) };
        for (at, run) in self.runs.iter().enumerate() {
            let blocks_here = blocks_of(run);
            if place >= blocks_here.len() {
                place -= blocks_here.len();
                continue;
            }
            let entries = run.entries_of(blocks_here.start + place, prefix)?;
            let chosen = (number / blocks as u64).checked_rem(entries.len() as u64).unwrap_or_default() as usize;
            let Some((key, Some(value))) = entries.into_iter().nth(chosen) else { return Ok(None) };
            let newer = self.runs.get(..at).unwrap_or_default();
            return Ok(if holds_any(newer, &key)? { None } else { Some((key, value)) });
        }
        Ok(None)
    }

    pub(super) fn get_many(
        &self,
        keys: &MissingKeys,
        found: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, StoreError> {
        let holders = self.holders(&keys.iter());
        let mut wanted: Vec<(usize, RunSet)> = holders.into_iter().enumerate().filter(|(_, of)| *of != 0).collect();
        sort_by_bytes(&mut wanted, keys, |(number, _), keys| keys.key(*number));
        wanted.dedup_by_key(|(number, _)| keys.key(*number));
        let mut readers: Vec<RunReader<'_>> = self.runs.iter().map(|run| RunReader { run, cursor: None }).collect();
        for (number, holders) in &wanted {
            let key = keys.key(*number);
            for (_, reader) in readers.iter_mut().enumerate().filter(|(number, _)| holders & one_run(*number) != 0) {
                if let Some(cursor) = reader.find(key)? {
                    // The newest entry of a key wins, even if it is a tombstone.
                    if let Some(value) = cursor.value() {
                        found(key, value);
                    }
                    break;
                }
            }
        }
        Ok(wanted.len())
    }

    /// The runs that may contain each of the keys, according to ranges and filters. Goes run by run, for cache
    /// locality.
    pub(super) fn holders<'k>(&self, keys: &(impl Iterator<Item = &'k [u8]> + Clone)) -> Vec<RunSet> {
        let smallest = keys.clone().min().unwrap_or_default();
        let largest = keys.clone().max().unwrap_or_default();
        let hashes: Vec<u64> = keys.clone().map(hash).collect();
        let mut holders = vec![0; hashes.len()];
        for (number, run) in self.runs.iter().enumerate() {
            if *run.smallest > *largest || *smallest > *run.largest {
                continue;
            }
            let covers_all = *run.smallest <= *smallest && *largest <= *run.largest;
            let may_hold = |key: &[u8], hash| {
                if covers_all { run.filter.may_contain(hash) } else { run.may_hold(key, hash) }
            };
            for ((holders, key), hash) in holders.iter_mut().zip(keys.clone()).zip(&hashes) {
                *holders |= if may_hold(key, *hash) { one_run(number) } else { 0 };
            }
        }
        holders
    }
}

/// The key and the value of an entry.
pub type SampledEntry = (Vec<u8>, Vec<u8>);

/// An entry of a run; without a value, it is a tombstone.
type RunEntry = (Vec<u8>, Option<Vec<u8>>);

impl Run {
    /// The entries of one block whose keys start with `prefix`.
    fn entries_of(self: &Arc<Run>, block: usize, prefix: &[u8]) -> Result<Vec<RunEntry>, StoreError> {
        let mut cursor = RunCursor::new(Arc::clone(self), ReadAhead::Never);
        let mut entries = Vec::new();
        let mut is_on_entry = cursor.seek(prefix.max(self.index.separator(block)))?;
        while is_on_entry && cursor.block() == block && cursor.key().starts_with(prefix) {
            entries.push((cursor.key().to_vec(), cursor.value().map(<[u8]>::to_vec)));
            is_on_entry = cursor.advance()?;
        }
        Ok(entries)
    }
}

/// Whether any of the runs has an entry of this key.
fn holds_any(runs: &[Arc<Run>], key: &[u8]) -> Result<bool, StoreError> {
    let hash = hash(key);
    for run in runs.iter().filter(|run| run.may_hold(key, hash)) {
        if (RunReader { run, cursor: None }).find(key)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The smallest key greater than all that start with `prefix`, whose last byte must be less than 255.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut after = prefix.to_vec();
    if let Some(last) = after.last_mut() {
        *last = last.saturating_add(1);
    }
    after
}

/// A set of runs, one bit each. Runs beyond the last bit share it.
pub(super) type RunSet = u32;

/// The set of one run.
fn one_run(number: usize) -> RunSet {
    1 << number.min(RunSet::BITS as usize - 1)
}

/// Looks up ascending keys in a run. The cursor is created on first use.
struct RunReader<'a> {
    run: &'a Arc<Run>,
    cursor: Option<RunCursor>,
}

impl RunReader<'_> {
    /// The cursor, on the entry of `key`, if the run has one.
    fn find(&mut self, key: &[u8]) -> Result<Option<&RunCursor>, StoreError> {
        let cursor = self.cursor.get_or_insert_with(|| RunCursor::new(Arc::clone(self.run), ReadAhead::Never));
        let found = cursor.seek(key)? && cursor.key() == key;
        Ok(found.then_some(&*cursor))
    }
}

/// An ordered scan of the live entries, as of when it began.
///
/// As an iterator it returns owned entries; [`Scan::next_entry`] lends them. It ends after an error.
pub struct Scan {
    /// The runs and the start key, until the first step.
    start: Option<(Arc<StoreVersion>, Vec<u8>)>,
    /// The iterator, until its end.
    merged: Option<MergeIterator>,
}

impl Scan {
    pub(super) fn new(version: Arc<StoreVersion>, start: &[u8]) -> Scan {
        Scan { start: Some((version, start.to_vec())), merged: None }
    }

    /// The next key and its value, valid until the next call; `None` at the end.
    #[expect(clippy::type_complexity, reason = "an entry, if any: key and value")]
    pub fn next_entry(&mut self) -> Result<Option<(&[u8], &[u8])>, StoreError> {
        self.advance()?;
        Ok(self.merged.as_ref().and_then(|merged| Some((merged.key(), merged.value()?))))
    }

    /// Moves to the next entry that is not a tombstone.
    fn advance(&mut self) -> Result<(), StoreError> {
        if let Some((version, start)) = self.start.take() {
            self.merged = Some(MergeIterator::new(&version.runs, &start, ReadAhead::Growing)?);
        }
        while let Some(merged) = &mut self.merged {
            match merged.advance() {
                Ok(true) if merged.value().is_some() => break,
                Ok(true) => {}
                Ok(false) => self.merged = None,
                Err(error) => {
                    self.merged = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Vec<u8>), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).transpose()
    }
}
