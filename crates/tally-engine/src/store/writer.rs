//! Writing a run from entries in key order.

use std::sync::Arc;

use tally_core::varint;

use super::StoreError;
use super::filter::{Filter, hash};
use super::index::Index;
use super::run::{
    self, BLOCK_BYTES, BLOCKS_AT, CHECKSUM_BYTES, Digest, FOOTER_BYTES, Footer, KEY_BYTES_MAX, Run, VALUE_BYTES_MAX,
    shared_prefix,
};
use crate::disk::{Disk, DiskFile};
use crate::identity::DirId;

/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// A long run is synced this often. One sync of gigabytes at its end would delay the small syncs of the journal.
const SYNC_BYTES: u64 = 32 << 20;

/// A run being written. Dropped unfinished, it deletes its file.
pub(super) struct RunWriter<'a> {
    disk: &'a dyn Disk,
    file: Arc<dyn DiskFile>,
    number: u64,
    name: String,
    /// Not written yet; belongs at offset `written`.
    out: Vec<u8>,
    written: u64,
    synced: u64,
    /// Where the open block begins in `out`; `None` between blocks.
    block: Option<usize>,
    smallest: Box<[u8]>,
    last: Vec<u8>,
    entries: u64,
    tombstones: u64,
    digest: Digest,
    index: Index,
    filter: Filter,
    finished: bool,
}

impl<'a> RunWriter<'a> {
    /// Creates the file. `entries_max` sizes the filter; with more entries its false positive rate rises.
    pub(super) fn create(
        disk: &'a dyn Disk,
        id: DirId,
        number: u64,
        entries_max: u64,
    ) -> Result<RunWriter<'a>, StoreError> {
        let name = run::file_name(number);
        let file = disk.create(&name).map_err(|error| StoreError::io(&name, error))?;
        let mut out = Vec::with_capacity(WRITE_BYTES + 2 * (BLOCK_BYTES + KEY_BYTES_MAX));
        let (header, checksums) = run::header(number, id);
        out.extend_from_slice(&header);
        let mut digest = Digest::default();
        checksums.into_iter().for_each(|checksum| digest.add(checksum));
        Ok(RunWriter {
            disk,
            file,
            number,
            name,
            out,
            written: 0,
            synced: 0,
            block: None,
            smallest: Box::default(),
            last: Vec::with_capacity(KEY_BYTES_MAX),
            entries: 0,
            tombstones: 0,
            digest,
            index: Index::new(BLOCKS_AT as u64),
            filter: Filter::for_keys(entries_max),
            finished: false,
        })
    }

    /// Adds an entry; `None` is a tombstone. Keys must be strictly ascending.
    pub(super) fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        if key.len() > KEY_BYTES_MAX || value.is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            return Err(StoreError::Refused { what: "the key or the value is too long for the store" });
        }
        let mut shared = shared_prefix(&self.last, key);
        if self.entries == 0 {
            self.smallest = key.into();
        } else if self.last.get(shared) >= key.get(shared) {
            return Err(StoreError::Refused { what: "the keys of a run must be in ascending order" });
        }
        if self.block.is_none() {
            self.begin_block(key, shared)?;
            shared = 0;
        }
        self.put_entry(key, shared, value);
        self.filter.insert(hash(key));
        self.last.clear();
        self.last.extend_from_slice(key);
        if self.block.is_some_and(|start| self.out.len() - start >= BLOCK_BYTES) {
            self.end_block()?;
        }
        Ok(())
    }

    fn put_entry(&mut self, key: &[u8], shared: usize, value: Option<&[u8]>) {
        let out = &mut self.out;
        varint::put_u64(out, shared as u64);
        varint::put_bytes(out, key.get(shared..).unwrap_or_default());
        match value {
            Some(value) => {
                varint::put_u64(out, 1 + value.len() as u64);
                out.extend_from_slice(value);
            }
            None => {
                varint::put_u64(out, 0);
                self.tombstones += 1;
            }
        }
        self.entries += 1;
    }

    /// Begins a block with `key`, which shares `shared` bytes with the previous key.
    fn begin_block(&mut self, key: &[u8], shared: usize) -> Result<(), StoreError> {
        let separator = match self.entries {
            0 => &[],
            _ => key.get(..=shared).unwrap_or(key),
        };
        self.index.begin_block(separator).ok_or(StoreError::Refused { what: "the index of the run exceeds 4 GiB" })?;
        self.block = Some(self.out.len());
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), StoreError> {
        let Some(start) = self.block.take() else { return Ok(()) };
        self.end_part(start);
        self.index.end_block(self.offset());
        self.write_if(WRITE_BYTES)
    }

    /// Appends the checksum of the section that begins at `start` of `out`.
    fn end_part(&mut self, start: usize) {
        let checksum = run::checksum(self.written + start as u64, self.out.get(start..).unwrap_or_default());
        self.digest.add(checksum);
        self.out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Offset of the next byte in the file.
    fn offset(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Writes the buffer if it has at least this many bytes.
    fn write_if(&mut self, at_least: usize) -> Result<(), StoreError> {
        if self.out.len() < at_least {
            return Ok(());
        }
        self.file.write_at(self.written, &self.out).map_err(|error| StoreError::io(&self.name, error))?;
        self.written += self.out.len() as u64;
        self.out.clear();
        if self.written - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.file.sync().map_err(|error| StoreError::io(&self.name, error))?;
        self.synced = self.written;
        Ok(())
    }

    /// Completes the file and makes its content durable; the commit makes its name durable. `None`, and no file, if
    /// there were no entries.
    pub(super) fn finish(mut self) -> Result<Option<Run>, StoreError> {
        if self.entries == 0 {
            return Ok(None);
        }
        self.end_block()?;
        let filter = self.put_filter()?;
        let index = self.put_index()?;
        let blocks = self.index.len() as u64;
        let digest = Some(self.digest.finish());
        let footer = Footer { filter, index, entries: self.entries, tombstones: self.tombstones, blocks, digest };
        self.out.extend_from_slice(&footer.encode(self.offset()));
        self.write_if(0)?;
        self.sync()?;
        self.finished = true;
        Ok(Some(self.opened()))
    }

    fn put_filter(&mut self) -> Result<u64, StoreError> {
        let offset = self.offset();
        let mut filter = std::mem::replace(&mut self.filter, Filter::with_room(0));
        filter.fold(self.entries);
        let mut hasher = run::checksum_at(offset);
        for line in filter.encoded() {
            hasher.update(&line);
            self.out.extend_from_slice(&line);
            self.write_if(WRITE_BYTES)?;
        }
        let checksum = hasher.finalize();
        self.digest.add(checksum);
        self.out.extend_from_slice(&checksum.to_le_bytes());
        self.filter = filter;
        Ok(offset)
    }

    fn put_index(&mut self) -> Result<u64, StoreError> {
        let (offset, start) = (self.offset(), self.out.len());
        varint::put_bytes(&mut self.out, &self.smallest);
        varint::put_bytes(&mut self.out, &self.last);
        self.index.encode(&mut self.out);
        self.end_part(start);
        Ok(offset)
    }

    /// The finished run, without reading it back.
    fn opened(&mut self) -> Run {
        let mut index = std::mem::replace(&mut self.index, Index::new(0));
        index.shrink();
        Run {
            number: self.number,
            name: std::mem::take(&mut self.name),
            file: Arc::clone(&self.file),
            bytes: self.written,
            entries: self.entries,
            tombstones: self.tombstones,
            digest: Some(self.digest.finish()),
            smallest: std::mem::take(&mut self.smallest),
            largest: self.last.as_slice().into(),
            index,
            filter: std::mem::replace(&mut self.filter, Filter::with_room(0)),
        }
    }
}

impl Drop for RunWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            super::remove(self.disk, &self.name);
        }
    }
}

const _: () = assert!(FOOTER_BYTES == 6 * 8 + CHECKSUM_BYTES);
