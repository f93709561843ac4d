//! Walking a run forward, entry by entry or straight to a key.

use std::ops::Range;
use std::sync::Arc;

use tally_core::varint::Cursor;

use super::StoreError;
use super::run::{self, BLOCK_BYTES, Run};

/// Most bytes one read fetches ahead.
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// How much to read beyond the block that is wanted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAhead {
    /// Nothing: the next block wanted may lie anywhere.
    Never,
    /// Twice as much each time: whoever reads on will probably read on.
    Growing,
    /// As much as is sensible: everything will be read.
    Full,
}

/// A place in a run. Only moves forward. After an error it must not be used further.
pub(super) struct RunCursor {
    run: Arc<Run>,
    /// Whole blocks as read from the file; longer than they are once it has held more.
    buf: Vec<u8>,
    /// Which blocks `buf` holds.
    held: Range<usize>,
    ahead: usize,
    ahead_max: usize,
    /// The block after the one the cursor is in.
    next_block: usize,
    /// What is left to decode of the block the cursor is in, as a place in `buf`.
    rest: Range<usize>,
    key: Vec<u8>,
    /// Where in `buf` the value is; `None` for a removal.
    value: Option<Range<usize>>,
    on_entry: bool,
}

impl RunCursor {
    /// Stands before the first entry.
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

    /// The value of the entry the cursor is on; `None` for a removal.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|value| self.buf.get(value).unwrap_or_default())
    }

    /// Number of the block the cursor is in. Only meaningful on an entry.
    pub(super) fn block(&self) -> usize {
        self.next_block.saturating_sub(1)
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

    /// Moves forward to the first entry whose key is not less than `target`, or stays if it is on such a one;
    /// `false` when there is none.
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        if self.on_entry && self.key.as_slice() >= target {
            return Ok(true);
        }
        let index = &self.run.index;
        if self.next_block < index.len() && (self.next_block == 0 || index.separator(self.next_block) <= target) {
            let block = index.find(target).max(self.next_block);
            self.enter(block)?;
        }
        while self.advance()? {
            if self.key.as_slice() >= target {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes to the start of a block, reading it if need be, and checks it.
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

    fn decode(&mut self) -> Result<(), StoreError> {
        let rest = self.buf.get(self.rest.clone()).unwrap_or_default();
        let Some((value, left)) = decode_entry(rest, &mut self.key) else {
            let block = self.run.index.block(self.block());
            return Err(self.run.damaged(block.start, "the block passes its checksum and makes no sense"));
        };
        let value_end = self.rest.end - left;
        self.value = value.map(|len| value_end - len..value_end);
        self.rest.start = value_end;
        self.on_entry = true;
        Ok(())
    }
}

/// Decodes the first entry of `rest`, taking `key` from the key before to its own. Gives the length of the value,
/// which ends the entry, and how many bytes are left behind it.
#[inline]
fn decode_entry(rest: &[u8], key: &mut Vec<u8>) -> Option<(Option<usize>, usize)> {
    let mut cursor = Cursor::new(rest);
    let shared = cursor.u64()? as usize;
    if shared > key.len() {
        return None;
    }
    let suffix = cursor.bytes(run::KEY_BYTES_MAX)?;
    key.truncate(shared);
    key.extend_from_slice(suffix);
    let value = match cursor.u64()? {
        0 => None,
        coded => {
            let len = usize::try_from(coded - 1).ok()?;
            cursor.take(len)?;
            Some(len)
        }
    };
    Some((value, cursor.rest().len()))
}
