//! A forward cursor over a run.

use std::ops::Range;
use std::sync::Arc;

use tally_core::varint::Cursor;

use super::StoreError;
use super::run::{self, BLOCK_BYTES, Run, shared_prefix};

/// Most bytes one read fetches ahead.
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// How much to read beyond the block that is wanted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAhead {
    /// Nothing: for point lookups.
    Never,
    /// Twice as much each time: for scans of unknown length.
    Growing,
    /// The maximum: for reading the whole run.
    Full,
}

/// A forward cursor. It must not be used after an error.
pub(super) struct RunCursor {
    run: Arc<Run>,
    /// Blocks as read from the file. May be longer than their content.
    buf: Vec<u8>,
    /// Which blocks `buf` holds.
    held: Range<usize>,
    ahead: usize,
    ahead_max: usize,
    /// The block after the one the cursor is in.
    next_block: usize,
    /// The undecoded rest of the current block, as a range of `buf`.
    rest: Range<usize>,
    key: Vec<u8>,
    /// The value, as a range of `buf`; `None` for a tombstone.
    value: Option<Range<usize>>,
    on_entry: bool,
}

impl RunCursor {
    /// Begins before the first entry.
    pub(super) fn new(run: Arc<Run>, ahead: ReadAhead) -> RunCursor {
        let (ahead, ahead_max) = match ahead {
            ReadAhead::Never => (0, 0),
            ReadAhead::Growing => (BLOCK_BYTES, AHEAD_BYTES_MAX),
            ReadAhead::Full => (AHEAD_BYTES_MAX, AHEAD_BYTES_MAX),
        };
        RunCursor {
            run,
            buf: Vec::new(),
            held: 0..0,
            ahead,
            ahead_max,
            next_block: 0,
            rest: 0..0,
            key: Vec::new(),
            value: None,
            on_entry: false,
        }
    }

    /// The key of the entry the cursor is on.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value of the entry the cursor is on; `None` for a tombstone.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|value| self.buf.get(value).unwrap_or_default())
    }

    /// Number of the block the cursor is in. Only meaningful on an entry.
    pub(super) fn block(&self) -> usize {
        self.next_block.saturating_sub(1)
    }

    /// The checksum at the end of the block, already verified. Only meaningful on an entry.
    pub(super) fn block_checksum(&self) -> u32 {
        let stored = self.buf.get(self.rest.end..).and_then(|stored| stored.first_chunk());
        stored.map_or(0, |stored| u32::from_le_bytes(*stored))
    }

    /// Moves to the next entry; `false` when there is none.
    pub(super) fn advance(&mut self) -> Result<bool, StoreError> {
        while self.rest.is_empty() {
            if self.next_block >= self.run.index.len() {
                self.on_entry = false;
                return Ok(false);
            }
            self.enter(self.next_block)?;
        }
        self.decode()?;
        Ok(true)
    }

    /// Moves forward to the first entry whose key is at least `target`, or stays if it is on one; `false` if there is
    /// none.
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        if self.on_entry && self.key.as_slice() >= target {
            return Ok(true);
        }
        let index = &self.run.index;
        if self.next_block < index.len() && (self.next_block == 0 || index.separator(self.next_block) <= target) {
            let block = index.find(target, self.next_block);
            self.enter(block)?;
        }
        // All keys of later blocks are greater, so if this block has no such entry, the first of the next block is it.
        Ok(self.seek_in_block(target)? || self.advance()?)
    }

    /// Moves within the block to the first entry whose key is at least `target`; `false` at the end of the block. The
    /// current key must be less than `target`.
    ///
    /// Most entries are skipped without comparing their key. `matched` is the length of the prefix that the previous
    /// key has in common with `target`; the byte after it makes that key less than `target`. An entry that shares more
    /// than `matched` bytes with the previous key has the same byte there, so it is less too.
    fn seek_in_block(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        let mut matched = shared_prefix(&self.key, target);
        while let Some(entry) = self.next_in_block()? {
            let rest = self.buf.get(entry.suffix.clone()).unwrap_or_default();
            let (same, wanted) = target.split_at_checked(entry.shared).unwrap_or_default();
            if entry.shared > matched {
                continue;
            }
            if rest >= wanted {
                self.key.clear();
                self.key.extend_from_slice(same);
                self.key.extend_from_slice(rest);
                self.value = entry.value;
                self.on_entry = true;
                return Ok(true);
            }
            matched = entry.shared + shared_prefix(rest, wanted);
        }
        Ok(false)
    }

    /// Moves to the start of a block, which is read if needed, and verifies its checksum.
    fn enter(&mut self, block: usize) -> Result<(), StoreError> {
        if !self.held.contains(&block) {
            self.read(block)?;
        }
        let at = self.run.index.block(block);
        let base = self.run.index.block(self.held.start).start;
        let place = (at.start - base) as usize..(at.end - base) as usize;
        let content = self.buf.get(place.clone()).and_then(|part| run::checked(at.start, part));
        let Some(content) = content else {
            return Err(self.run.damaged(at.start, "the block does not match its checksum"));
        };
        self.rest = place.start..place.start + content.len();
        self.next_block = block + 1;
        self.key.clear();
        Ok(())
    }

    /// Reads a block and those after it that the read-ahead covers.
    fn read(&mut self, block: usize) -> Result<(), StoreError> {
        let start = self.run.index.block(block).start;
        let last = self.run.index.last_block_within(block, start + self.ahead as u64);
        let len = (self.run.index.block(last).end - start) as usize;
        self.ahead = (2 * self.ahead).min(self.ahead_max);
        self.held = 0..0;
        if self.buf.len() < len {
            self.buf.resize(len, 0);
        }
        let buf = self.buf.get_mut(..len).unwrap_or_default();
        self.run.file.read_at(start, buf).map_err(|error| StoreError::reading(&self.run.name, start, error))?;
        self.held = block..last + 1;
        Ok(())
    }

    /// Moves to the next entry of the block. There must be one.
    fn decode(&mut self) -> Result<(), StoreError> {
        let Some(entry) = self.next_in_block()? else { return Ok(()) };
        if entry.shared > self.key.len() {
            return Err(self.undecodable());
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(self.buf.get(entry.suffix).unwrap_or_default());
        self.value = entry.value;
        self.on_entry = true;
        Ok(())
    }

    /// Reads the next entry of the block without changing the current key; `None` at the end of the block.
    #[inline]
    fn next_in_block(&mut self) -> Result<Option<EncodedEntry>, StoreError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let entry = self.buf.get(..self.rest.end).and_then(|block| EncodedEntry::at(block, self.rest.start));
        let Some(entry) = entry else { return Err(self.undecodable()) };
        self.rest.start = entry.end;
        Ok(Some(entry))
    }

    #[cold]
    fn undecodable(&self) -> StoreError {
        let block = self.run.index.block(self.block());
        self.run.damaged(block.start, "the block matches its checksum but cannot be decoded")
    }
}

/// An entry in a block. Its parts are ranges of the block.
struct EncodedEntry {
    /// Bytes its key shares with the previous key.
    shared: usize,
    /// The rest of its key.
    suffix: Range<usize>,
    /// Its value; `None` for a tombstone.
    value: Option<Range<usize>>,
    /// Where it ends.
    end: usize,
}

impl EncodedEntry {
    /// The entry at `start`, if it is complete.
    #[inline]
    fn at(block: &[u8], start: usize) -> Option<EncodedEntry> {
        let mut cursor = Cursor::new(block.get(start..)?);
        let shared = usize::try_from(cursor.u64()?).ok()?;
        let suffix_len = cursor.bytes(run::KEY_BYTES_MAX)?.len();
        let suffix_end = block.len() - cursor.rest().len();
        let coded = cursor.u64()?;
        let value_start = block.len() - cursor.rest().len();
        let value_len = usize::try_from(coded.saturating_sub(1)).ok()?;
        cursor.take(value_len)?;
        let end = value_start + value_len;
        let value = (coded > 0).then_some(value_start..end);
        Some(EncodedEntry { shared, suffix: suffix_end - suffix_len..suffix_end, value, end })
    }
}
