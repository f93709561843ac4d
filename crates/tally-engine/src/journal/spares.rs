//! Spare segments: files of full length, reserved in advance so that a flush cannot fail on a full disk.
//!
//! A trimmed segment is recycled, because overwriting blocks is cheaper than writing new ones (see [`super::pages`]).
//! Its stale bytes are harmless (see [`super::frame`]). A spare has only a serial number until the journal rolls to it.

use std::io;
use std::sync::Arc;

use super::segment::spare_name;
use crate::disk::{Disk, DiskFile, is_out_of_files};

/// Most spare files, whether reserved or not.
pub const SPARES_MAX: usize = 2;

/// A reserved file, ready to become a segment.
pub(super) struct Spare {
    pub name: String,
    pub file: Arc<dyn DiskFile>,
    /// Bytes of the file.
    pub len: u64,
    /// Every block before this has been written before.
    pub filled: u64,
}

/// A trimmed segment, renamed to a spare.
pub(super) struct RecycledSegment {
    pub name: String,
    /// As [`Spare::filled`]; 0 if unknown.
    pub filled: u64,
}

pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// Full length and synced.
    ready: Option<Spare>,
    /// The names are durable; length and reservation are not checked yet.
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

    /// Whether another trimmed segment would be kept, in addition to `promised` ones.
    pub fn has_place(&self, promised: usize) -> bool {
        usize::from(self.is_ready()) + self.recycled.len() + promised < SPARES_MAX
    }

    /// An unused name.
    pub fn next_name(&mut self) -> String {
        self.next_serial += 1;
        spare_name(self.next_serial - 1)
    }

    /// Adds trimmed segments. Their new names must be durable: otherwise a power cut could bring back the old name with
    /// another segment's header.
    pub fn recycle(&mut self, files: Vec<RecycledSegment>) {
        self.recycled.extend(files);
    }

    /// Reserves a spare if none is ready, and returns how many became ready. After an error no new file is left on
    /// disk, and it can be called again.
    pub fn prepare(&mut self) -> io::Result<u32> {
        if self.is_ready() {
            return Ok(0);
        }
        let (RecycledSegment { name, filled }, file) = match self.next_recycled()? {
            Some(recycled) => recycled,
            None => {
                let name = self.next_name();
                let file = self.disk.create(&name)?;
                (RecycledSegment { name, filled: 0 }, file)
            }
        };
        if let Err(error) = self.reserve(file.as_ref()) {
            // A partial reservation may take the last free space. The first error is the one to report.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        self.ready = Some(Spare { name, file, len: self.segment_bytes, filled });
        Ok(1)
    }

    /// A recycled segment that can be opened. One that cannot, such as a dangling link, is removed, unless the problem is
    /// a lack of file descriptors.
    fn next_recycled(&mut self) -> io::Result<Option<(RecycledSegment, Arc<dyn DiskFile>)>> {
        while let Some(recycled) = self.recycled.pop() {
            match self.disk.open(&recycled.name) {
                Ok(file) => return Ok(Some((recycled, file))),
                Err(error) if is_out_of_files(&error) => {
                    self.recycled.push(recycled);
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(file = recycled.name, %error, "a spare journal segment cannot be opened and is replaced");
                    let _ = self.disk.remove(&recycled.name);
                }
            }
        }
        Ok(None)
    }

    fn reserve(&self, file: &dyn DiskFile) -> io::Result<()> {
        if file.len()? > self.segment_bytes {
            file.truncate(self.segment_bytes)?;
        }
        file.allocate(self.segment_bytes)?;
        file.sync()
    }
}
