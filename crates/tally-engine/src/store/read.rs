//! Reading the store: one key, many keys, or all of them in order.

use std::sync::Arc;

use super::cursor::{ReadAhead, RunCursor};
use super::filter::hash;
use super::merge::Merged;
use super::run::Run;
use super::{StoreError, Version};

impl Version {
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

    /// Whether some run may hold the key, as far as can be told without the disk.
    pub(super) fn may_hold(&self, key: &[u8]) -> bool {
        let hash = hash(key);
        self.runs.iter().any(|run| run.may_hold(key, hash))
    }

    /// The same for many keys: run by run, so that what has to come from memory comes for many keys at once.
    pub(super) fn may_hold_each(&self, keys: &[impl AsRef<[u8]>]) -> Vec<bool> {
        let smallest = keys.iter().map(AsRef::as_ref).min().unwrap_or_default();
        let largest = keys.iter().map(AsRef::as_ref).max().unwrap_or_default();
        let hashes: Vec<u64> = keys.iter().map(|key| hash(key.as_ref())).collect();
        let mut held = vec![false; keys.len()];
        for run in self.runs.iter().filter(|run| *run.smallest <= *largest && *smallest <= *run.largest) {
            for (held, hash) in held.iter_mut().zip(&hashes) {
                *held |= run.filter.may_contain(*hash);
            }
        }
        held
    }

    pub(super) fn get_many(&self, keys: &[&[u8]], found: &mut dyn FnMut(usize, &[u8])) -> Result<(), StoreError> {
        let mut readers: Vec<Reader<'_>> = self.runs.iter().map(|run| Reader { run, cursor: None }).collect();
        for (number, key) in keys.iter().enumerate() {
            let hash = hash(key);
            for reader in &mut readers {
                if let Some(cursor) = reader.find(key, hash)? {
                    // The newest run that knows the key decides, even if it says that it is gone.
                    if let Some(value) = cursor.value() {
                        found(number, value);
                    }
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A run in which ascending keys are looked up; its cursor is made when first needed.
struct Reader<'a> {
    run: &'a Arc<Run>,
    cursor: Option<RunCursor>,
}

impl Reader<'_> {
    /// The cursor, on the entry of `key`, if the run has one.
    fn find(&mut self, key: &[u8], hash: u64) -> Result<Option<&RunCursor>, StoreError> {
        if !self.run.may_hold(key, hash) {
            return Ok(None);
        }
        let cursor = self.cursor.get_or_insert_with(|| RunCursor::new(Arc::clone(self.run), ReadAhead::Never));
        let found = cursor.seek(key)? && cursor.key() == key;
        Ok(found.then_some(&*cursor))
    }
}

/// An ordered walk over the live entries of the store as it was when the walk began.
///
/// As an iterator it hands out owned entries; [`Scan::next_entry`] lends them. It ends after an error.
pub struct Scan {
    /// What to walk and from which key, until the first step.
    start: Option<(Arc<Version>, Vec<u8>)>,
    /// The walk, until its end.
    merged: Option<Merged>,
}

impl Scan {
    pub(super) fn new(version: Arc<Version>, start: &[u8]) -> Scan {
        Scan { start: Some((version, start.to_vec())), merged: None }
    }

    /// The next key and its value, valid until the next call; `None` at the end.
    #[expect(clippy::type_complexity, reason = "an entry, if any: key and value")]
    pub fn next_entry(&mut self) -> Result<Option<(&[u8], &[u8])>, StoreError> {
        self.advance()?;
        Ok(self.merged.as_ref().and_then(|merged| Some((merged.key(), merged.value()?))))
    }

    /// Goes to the next entry that is no removal.
    fn advance(&mut self) -> Result<(), StoreError> {
        if let Some((version, start)) = self.start.take() {
            self.merged = Some(Merged::new(&version.runs, &start, ReadAhead::Growing)?);
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
