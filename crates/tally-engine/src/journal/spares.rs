//! Spare segments: files of full length, reserved ahead of need so that a write cannot meet a full disk.
//!
//! A trimmed segment becomes a spare rather than being removed, because overwriting blocks that were written before
//! is cheaper than writing fresh ones (see [`super::pages`]). Its bytes stay; see [`super::frame`] for why they are
//! harmless. A spare carries a serial number only: it learns its base when the journal rolls into it.

use std::io;
use std::sync::Arc;

use super::segment::spare_name;
use crate::disk::{Disk, DiskFile};

/// Most spare files kept, prepared or not.
pub const SPARES_MAX: usize = 2;

/// A reserved file, ready to become a segment.
pub(super) struct Spare {
    pub name: String,
    pub file: Arc<dyn DiskFile>,
    /// Bytes of the file.
    pub len: u64,
    /// Every block before this was written in an earlier life of the file.
    pub filled: u64,
}

/// A file of an earlier life, under its name as a spare.
pub(super) struct RecycledSegment {
    pub name: String,
    /// As [`Spare::filled`]; zero if nobody remembers.
    pub filled: u64,
}

pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// Full length and synced.
    ready: Option<Spare>,
    /// Named durably, length and reservation not yet certain.
    recycled: Vec<RecycledSegment>,
    next_serial: u64,
}

impl Spares {
    /// Adopts the spares found on disk, whose names must be durable, and removes those beyond the limit.
    pub fn adopt(disk: Arc<dyn Disk>, segment_bytes: u64, serials: &[u64]) -> io::Result<Spares> {
        let (kept, surplus) = serials.split_at(serials.len().min(SPARES_MAX));
        for serial in surplus {
            disk.remove(&spare_name(*serial))?;
        }
        let recycled = kept.iter().map(|serial| RecycledSegment { name: spare_name(*serial), filled: 0 }).collect();
        let next_serial = serials.last().map_or(0, |last| last + 1);
        Ok(Spares { disk, segment_bytes, ready: None, recycled, next_serial })
    }

    pub fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    pub fn take(&mut self) -> Option<Spare> {
        self.ready.take()
    }

    /// Whether one more trimmed segment would be kept, on top of `promised` ones.
    pub fn has_place(&self, promised: usize) -> bool {
        usize::from(self.is_ready()) + self.recycled.len() + promised < SPARES_MAX
    }

    /// A name no other spare has.
    pub fn next_name(&mut self) -> String {
        self.next_serial += 1;
        spare_name(self.next_serial - 1)
    }

    /// Takes in trimmed segments under their new names, which must be durable: if a power cut could bring the old
    /// name back, it would find the next life's header under it.
    pub fn recycle(&mut self, files: Vec<RecycledSegment>) {
        self.recycled.extend(files);
    }

    /// Makes one ready if none is, and says how many became so. On an error nothing is held on disk, and it may be
    /// tried again.
    pub fn prepare(&mut self) -> io::Result<u32> {
        if self.is_ready() {
            return Ok(0);
        }
        let (RecycledSegment { name, filled }, file) = match self.next_recycled() {
            Some(recycled) => recycled,
            None => {
                let name = self.next_name();
                let file = self.disk.create(&name)?;
                (RecycledSegment { name, filled: 0 }, file)
            }
        };
        if let Err(error) = self.reserve(file.as_ref()) {
            // A reservation that failed half-way may hold on to the little room there is. The first error counts.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        self.ready = Some(Spare { name, file, len: self.segment_bytes, filled });
        Ok(1)
    }

    /// A file of an earlier life that can be opened. One that cannot, a dangling link for instance, is given up.
    fn next_recycled(&mut self) -> Option<(RecycledSegment, Arc<dyn DiskFile>)> {
        while let Some(recycled) = self.recycled.pop() {
            match self.disk.open(&recycled.name) {
                Ok(file) => return Some((recycled, file)),
                Err(error) => {
                    tracing::warn!(file = recycled.name, %error, "a spare journal segment cannot be used");
                    let _ = self.disk.remove(&recycled.name);
                }
            }
        }
        None
    }

    fn reserve(&self, file: &dyn DiskFile) -> io::Result<()> {
        if file.len()? > self.segment_bytes {
            file.truncate(self.segment_bytes)?;
        }
        file.allocate(self.segment_bytes)?;
        file.sync()
    }
}
