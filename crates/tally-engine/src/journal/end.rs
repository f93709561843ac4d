//! `journal.end`: records outside the segments how far the journal is durable.
//!
//! A frame proves that everything before it was durable, but no frame follows the last flush. This file fills the gap:
//! it has a position before which everything was flushed, and the newest segment. A journal that ends earlier, or lacks
//! that segment, is damaged, not torn.
//!
//! ```text
//! offset  0            8         12         16             24    32        40
//!         "tallyend"   version   not used   directory id   end   segment   crc32
//!         8 bytes      u32       u32        u64            u64   u64       u32, little-endian
//! ```
//!
//! There are two such records, a page apart. They are overwritten alternately, each time followed by a sync, so a torn
//! write leaves the other one intact. The record with the greater end is valid. `segment` has all bits set if there is
//! none.
//!
//! Acknowledgements do not wait for this file, except when the journal begins a segment. A failed write is not retried,
//! because that would put the other record at risk. The next start replaces the file.

use std::io;
use std::sync::{Arc, Mutex};

use tally_core::time::Position;
use tally_core::varint::Cursor;

use super::recovery::JournalError;
use crate::disk::{Disk, DiskFile};
use crate::identity::{DirId, FOREIGN};
use crate::signal::lock;

/// Name of the file.
pub const END_FILE: &str = "journal.end";
/// Name of the file that will replace it.
const END_FILE_NEW: &str = "journal.end.new";

const MAGIC: [u8; 8] = *b"tallyend";
const VERSION: u32 = 1;
const RECORD_BYTES: usize = 44;
const CHECKED_BYTES: usize = 40;
/// Offsets of the two records.
const PLACES: [u64; 2] = [0, 4096];
const FILE_BYTES: usize = 8192;

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndRecord {
    /// Everything before this was flushed.
    pub end: Position,
    /// Where the newest segment begins, if there is one.
    pub segment: Option<Position>,
}

/// The file, open for writing.
pub struct EndFile {
    id: DirId,
    file: Arc<dyn DiskFile>,
    /// What is durable and may be recorded.
    known: Mutex<EndRecord>,
    /// Locked during a write.
    written: Mutex<LastWrite>,
}

struct LastWrite {
    record: EndRecord,
    /// The record to overwrite next; none after a failure.
    next: Option<usize>,
}

impl EndFile {
    /// Replaces the file, durably, with one that contains `record`.
    pub(super) fn create(disk: &dyn Disk, id: DirId, record: EndRecord) -> io::Result<EndFile> {
        let file = disk.create(END_FILE_NEW)?;
        file.write_at(0, &record.file(id))?;
        file.sync()?;
        disk.rename(END_FILE_NEW, END_FILE)?;
        disk.sync_names()?;
        let file = disk.open(END_FILE)?;
        Ok(EndFile { id, file, known: Mutex::new(record), written: Mutex::new(LastWrite { record, next: Some(0) }) })
    }

    /// Sets what [`EndFile::write`] will write: what is durable now.
    pub(super) fn advance(&self, end: Position, segment: Position) {
        *lock(&self.known) = EndRecord { end, segment: Some(segment) };
    }

    /// Writes what is durable, unless the file already says so. Returns whether it wrote. After a failed write, later
    /// calls do nothing.
    pub fn write(&self) -> io::Result<bool> {
        let mut written = lock(&self.written);
        let record = *lock(&self.known);
        let Some(place) = written.next.filter(|_| written.record != record) else { return Ok(false) };
        written.next = None;
        self.file.write_at(PLACES[place], &record.encode(self.id))?;
        self.file.sync()?;
        *written = LastWrite { record, next: Some(1 - place) };
        Ok(true)
    }
}

impl EndRecord {
    /// Reads the file; `None` if there is none.
    pub(super) fn read(disk: &dyn Disk, id: DirId) -> Result<Option<EndRecord>, JournalError> {
        let failed = |source| JournalError::Io { file: END_FILE.to_owned(), source };
        let damaged =
            |what: &str| JournalError::Damaged { file: END_FILE.to_owned(), offset: 0, what: what.to_owned() };
        let file = match disk.open(END_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut bytes = vec![0; FILE_BYTES];
        match file.read_at(0, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged("the file ends early")),
            other => other.map_err(failed)?,
        }
        let mut found: Option<(DirId, EndRecord)> = None;
        for place in PLACES {
            match EndRecord::decode(&bytes[place as usize..][..RECORD_BYTES]) {
                Some(Ok(record)) if found.is_none_or(|(_, found)| found.order() <= record.1.order()) => {
                    found = Some(record);
                }
                Some(Err(version)) => return Err(JournalError::Newer { file: END_FILE.to_owned(), version }),
                _ => {}
            }
        }
        match found {
            None => Err(damaged("neither record matches its checksum")),
            Some((of, _)) if of != id => Err(damaged(FOREIGN)),
            Some((_, record)) => Ok(Some(record)),
        }
    }

    /// The content of a file with this record.
    pub(super) fn file(&self, id: DirId) -> Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        for place in PLACES {
            bytes[place as usize..][..RECORD_BYTES].copy_from_slice(&self.encode(id));
        }
        bytes
    }

    fn order(&self) -> (Position, Option<Position>) {
        (self.end, self.segment)
    }

    fn encode(&self, id: DirId) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&id.to_bytes());
        out[24..32].copy_from_slice(&self.end.0.to_le_bytes());
        out[32..CHECKED_BYTES].copy_from_slice(&self.segment.map_or(u64::MAX, |base| base.0).to_le_bytes());
        let crc = crc32fast::hash(&out[..CHECKED_BYTES]);
        out[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a record: `None` if it is invalid, its version if it has a newer format.
    fn decode(bytes: &[u8]) -> Option<Result<(DirId, EndRecord), u8>> {
        let (checked, stored) = bytes.split_at_checked(CHECKED_BYTES)?;
        if crc32fast::hash(checked).to_le_bytes() != *stored {
            return None;
        }
        let mut cursor = Cursor::new(checked);
        cursor.array().filter(|magic| *magic == MAGIC)?;
        let version = u32::from_le_bytes(cursor.array()?);
        if version != VERSION {
            return Some(Err(u8::try_from(version).unwrap_or(u8::MAX)));
        }
        let _: [u8; 4] = cursor.array()?;
        let id = DirId::from_bytes(cursor.array()?);
        let end = Position(u64::from_le_bytes(cursor.array()?));
        let segment = Some(u64::from_le_bytes(cursor.array()?)).filter(|base| *base != u64::MAX).map(Position);
        Some(Ok((id, EndRecord { end, segment })))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::disk::RealDisk;

    const ID: DirId = DirId::new(7);
    const EMPTY: EndRecord = EndRecord { end: Position(0), segment: None };

    fn record(end: u64, segment: u64) -> EndRecord {
        EndRecord { end: Position(end), segment: Some(Position(segment)) }
    }

    #[test]
    fn the_latest_record_is_valid_and_a_torn_write_leaves_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        assert_eq!(EndRecord::read(&disk, ID).unwrap(), None);
        let mark = EndFile::create(&disk, ID, EMPTY).unwrap();
        assert_eq!(EndRecord::read(&disk, ID).unwrap(), Some(EMPTY));
        assert!(!mark.write().unwrap(), "it says so already");
        for end in 1..6 {
            let before = EndRecord::read(&disk, ID).unwrap();
            let intact = std::fs::read(dir.path().join(END_FILE)).unwrap();
            mark.advance(Position(100 * end), Position(end));
            assert!(mark.write().unwrap());
            assert_eq!(EndRecord::read(&disk, ID).unwrap(), Some(record(100 * end, end)));
            let after = std::fs::read(dir.path().join(END_FILE)).unwrap();
            for torn in 0..FILE_BYTES {
                if intact[torn] != after[torn] {
                    let bytes = [&after[..torn], &intact[torn..]].concat();
                    std::fs::write(dir.path().join(END_FILE), bytes).unwrap();
                    assert_eq!(EndRecord::read(&disk, ID).unwrap(), before, "torn at {torn}");
                }
            }
            std::fs::write(dir.path().join(END_FILE), after).unwrap();
        }
    }

    #[test]
    fn a_file_without_a_valid_record_or_of_another_directory_is_reported_as_damage() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        drop(EndFile::create(&disk, ID, EMPTY).unwrap());
        let error = EndRecord::read(&disk, DirId::new(8)).unwrap_err().to_string();
        assert_eq!(error, format!("{END_FILE} is damaged at byte 0: {FOREIGN}"));
        for bytes in [vec![0; FILE_BYTES], vec![]] {
            std::fs::write(dir.path().join(END_FILE), bytes).unwrap();
            assert!(matches!(EndRecord::read(&disk, ID), Err(JournalError::Damaged { file, .. }) if file == END_FILE));
        }
    }
}
