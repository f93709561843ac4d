//! The manifest: lists the runs of the store and its position.
//!
//! ```text
//! magic "TALLYMAN", version u32, number of runs u32, directory id u64, position u64, next file number u64
//! for each run, newest first: file number u64, entries u64, bytes u64, format u32, digest u64
//! CRC-32 of everything before it
//! ```
//!
//! The first start writes an empty one before any other file. So if there is a run or a segment, a missing manifest is
//! damage.
//!
//! Version 1 has no directory id, and neither format nor digest of the runs. It can be read, and the first start
//! replaces it.
//!
//! It is replaced in four steps. After a crash at any point there is a complete manifest, and all its runs exist:
//! 1. `manifest.new` is written and synced;
//! 2. names are synced, so that its runs are durable before it is;
//! 3. it is renamed to `manifest`;
//! 4. names are synced, so that the old manifest cannot come back after its runs are deleted.
//!
//! Magic, version and checksum have the same offsets in every version.

use std::io;

use tally_core::time::Position;
use tally_core::varint::Cursor;

use super::StoreError;
use super::run::RunRef;
use crate::disk::Disk;
use crate::identity::DirId;

/// Name of the manifest.
pub(super) const FILE: &str = "manifest";
/// Name of the one that will replace it.
pub(super) const FILE_NEW: &str = "manifest.new";

const MAGIC: [u8; 8] = *b"TALLYMAN";
const VERSION: u32 = 2;
/// Upper bound on the size of a valid manifest.
const BYTES_MAX: u64 = 16 << 20;

/// The content of the file. The default is that of an empty store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// None in version 1.
    pub(super) id: Option<DirId>,
    pub(super) position: Position,
    pub(super) next_file: u64,
    /// Newest first.
    pub(super) runs: Vec<RunRef>,
}

impl Manifest {
    /// Reads the manifest; `None` if there is none.
    pub(super) fn read(disk: &dyn Disk) -> Result<Option<Manifest>, StoreError> {
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io(FILE, error)),
        };
        let len = file.len().map_err(|error| StoreError::io(FILE, error))?;
        if len > BYTES_MAX {
            return Err(StoreError::damaged(FILE, 0, "the file is too long to be a manifest"));
        }
        let mut bytes = vec![0; len as usize];
        file.read_at(0, &mut bytes).map_err(|error| StoreError::reading(FILE, 0, error))?;
        Manifest::decode(&bytes).map(Some)
    }

    /// Steps 1 and 2. After an error the old manifest is valid.
    pub(super) fn prepare(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let write = || {
            let file = disk.create(FILE_NEW)?;
            file.write_at(0, &self.encode())?;
            file.sync()?;
            disk.sync_names()
        };
        write().map_err(|error| StoreError::io(FILE_NEW, error))
    }

    /// Steps 3 and 4. After an error either manifest may be on disk.
    pub(super) fn publish(disk: &dyn Disk) -> Result<(), StoreError> {
        disk.rename(FILE_NEW, FILE).and_then(|()| disk.sync_names()).map_err(|error| StoreError::io(FILE, error))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(44 + 36 * self.runs.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.id.unwrap_or_default().to_bytes());
        out.extend_from_slice(&self.position.0.to_le_bytes());
        out.extend_from_slice(&self.next_file.to_le_bytes());
        for run in &self.runs {
            for number in [run.number, run.entries, run.bytes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&(if run.digest.is_some() { 2u32 } else { 1 }).to_le_bytes());
            out.extend_from_slice(&run.digest.unwrap_or_default().to_le_bytes());
        }
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Manifest, StoreError> {
        let Some((content, &stored)) = bytes.split_last_chunk() else {
            return Err(StoreError::damaged(FILE, bytes.len() as u64, "the file ends early"));
        };
        if crc32fast::hash(content) != u32::from_le_bytes(stored) {
            return Err(StoreError::damaged(FILE, 0, "the file does not match its checksum"));
        }
        let mut cursor = Cursor::new(content);
        if cursor.array() != Some(MAGIC) {
            return Err(StoreError::damaged(FILE, 0, "this is not a manifest"));
        }
        match cursor.array().map(u32::from_le_bytes) {
            Some(version @ 1..=VERSION) => Manifest::decode_fields(&mut cursor, version)
                .ok_or_else(|| StoreError::damaged(FILE, 0, "the file matches its checksum but cannot be decoded")),
            found => Err(StoreError::Version { file: FILE.into(), found: found.unwrap_or_default(), known: VERSION }),
        }
    }

    fn decode_fields(cursor: &mut Cursor<'_>, version: u32) -> Option<Manifest> {
        let count = u32::from_le_bytes(cursor.array()?);
        let id = if version == 1 { None } else { Some(DirId::from_bytes(cursor.array()?)) };
        let (position, next_file) = (Position(number(cursor)?), number(cursor)?);
        let runs = (0..count).map(|_| decode_run(cursor, version)).collect::<Option<Vec<RunRef>>>()?;
        cursor.is_done().then_some(Manifest { id, position, next_file, runs })
    }
}

fn number(cursor: &mut Cursor<'_>) -> Option<u64> {
    cursor.array().map(u64::from_le_bytes)
}

fn decode_run(cursor: &mut Cursor<'_>, version: u32) -> Option<RunRef> {
    let run = RunRef { number: number(cursor)?, entries: number(cursor)?, bytes: number(cursor)?, digest: None };
    if version == 1 {
        return Some(run);
    }
    let format = u32::from_le_bytes(cursor.array()?);
    let digest = number(cursor)?;
    match format {
        1 => Some(run),
        2 => Some(RunRef { digest: Some(digest), ..run }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn manifest() -> Manifest {
        let run = |number, digest| RunRef { number, entries: 10 * number, bytes: 1000 * number, digest };
        let runs = vec![run(8, Some(0xabc)), run(3, None)];
        Manifest { id: Some(DirId::new(5)), position: Position(77), next_file: 9, runs }
    }

    #[test]
    fn a_manifest_decodes_to_what_was_encoded() {
        assert_eq!(Manifest::decode(&manifest().encode()).unwrap(), manifest());
    }

    #[test]
    fn a_truncated_manifest_is_damaged() {
        let bytes = manifest().encode();
        for len in 0..bytes.len() {
            let error = Manifest::decode(&bytes[..len]).unwrap_err();
            assert!(matches!(error, StoreError::Damaged { ref file, .. } if file == FILE), "{len}: {error}");
        }
    }

    #[test]
    fn a_manifest_of_version_1_can_be_read() {
        let mut bytes = MAGIC.to_vec();
        for number in [1u32, 1] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [77u64, 9, 3, 30, 3000] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        let runs = vec![RunRef { number: 3, entries: 30, bytes: 3000, digest: None }];
        assert_eq!(
            Manifest::decode(&bytes).unwrap(),
            Manifest { id: None, position: Position(77), next_file: 9, runs }
        );
    }

    #[test]
    fn a_manifest_of_a_newer_version_is_not_reported_as_damage() {
        let mut bytes = manifest().encode();
        bytes[8] = 3;
        let content = bytes.len() - 4;
        let checksum = crc32fast::hash(&bytes[..content]);
        bytes[content..].copy_from_slice(&checksum.to_le_bytes());
        let error = Manifest::decode(&bytes).unwrap_err();
        assert!(matches!(error, StoreError::Version { found: 3, known: 2, .. }), "{error}");
    }
}
