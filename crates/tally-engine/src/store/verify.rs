//! Verifies every byte of the store, for `tally check`.

use std::sync::Arc;

use tally_core::time::Position;

use super::StoreError;
use super::cursor::{ReadAhead, RunCursor};
use super::filter::hash;
use super::manifest::Manifest;
use super::run::{self, Digest, Run};
use crate::disk::Disk;
use crate::host::MalformedRecord;
use crate::identity::DirId;

/// What a valid store contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The identity of its directory; 0 in format 1.
    pub id: DirId,
    /// Its position.
    pub position: Position,
    /// Number of runs.
    pub runs: usize,
    /// Entries in them, including older versions and tombstones.
    pub entries: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// Whether a record can be decoded: its key, and its value, which is `None` for a tombstone.
pub type Decodes<'a> = &'a dyn Fn(&[u8], Option<&[u8]>) -> bool;

pub(super) fn verify(
    disk: &dyn Disk,
    decodes: Decodes<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Summary, StoreError> {
    let manifest = Manifest::read(disk)?.unwrap_or_default();
    let total = manifest.runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.bytes));
    let id = manifest.id.unwrap_or_default();
    let mut summary = Summary { id, position: manifest.position, runs: manifest.runs.len(), ..Summary::default() };
    progress(0, total);
    for &named in &manifest.runs {
        // One at a time: an open run keeps its index and filter in memory.
        let run = Arc::new(Run::open(disk, id, named)?);
        let done = summary.bytes;
        verify_run(&run, id, decodes, &mut |bytes| progress(done + bytes, total))?;
        summary.entries += named.entries;
        summary.bytes += named.bytes;
        progress(summary.bytes, total);
    }
    Ok(summary)
}

/// Reads every block. In addition to checksums it checks what lookups rely on: the order of keys, the index, the
/// filter, the counts and the digest; and that every record decodes.
fn verify_run(
    run: &Arc<Run>,
    id: DirId,
    decodes: Decodes<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let mut digest = Digest::default();
    run::header(run.number, id).1.into_iter().for_each(|checksum| digest.add(checksum));
    let mut cursor = RunCursor::new(Arc::clone(run), ReadAhead::Full);
    let (mut entries, mut tombstones, mut block) = (0, 0, usize::MAX);
    let mut last: Option<Vec<u8>> = None;
    while cursor.advance()? {
        let key = cursor.key();
        if cursor.block() != block {
            block = cursor.block();
            digest.add(cursor.block_checksum());
            progress(run.index.block(block).start);
        }
        check_entry(run, block, last.as_deref(), key)?;
        if !decodes(key, cursor.value()) {
            return Err(malformed(run, block, key));
        }
        entries += 1;
        tombstones += u64::from(cursor.value().is_none());
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
    }
    if entries != run.entries || tombstones != run.tombstones || last.as_deref() != Some(&*run.largest) {
        return Err(run.damaged(run.index.end(), "the entries do not match the footer"));
    }
    run.part_checksums()?.into_iter().for_each(|checksum| digest.add(checksum));
    if run.digest.is_some_and(|stored| stored != digest.finish()) {
        return Err(run.damaged(run.index.block(0).start, "the digest of the sections is not the one in the manifest"));
    }
    Ok(())
}

fn malformed(run: &Run, block: usize, key: &[u8]) -> StoreError {
    let error = StoreError::from(MalformedRecord::new(key));
    StoreError::Damaged { file: run.name.clone(), offset: run.index.block(block).start, what: error.to_string().into() }
}

fn check_entry(run: &Run, block: usize, last: Option<&[u8]>, key: &[u8]) -> Result<(), StoreError> {
    let wrong = |what| Err(run.damaged(run.index.block(block).start, what));
    if last.is_some_and(|last| last >= key) {
        return wrong("the keys are not in ascending order");
    }
    if last.is_none() && key != &*run.smallest {
        return wrong("the run does not begin with its smallest key");
    }
    if run.index.find(key, 0) != block {
        return wrong("the index points to another block");
    }
    if !run.filter.may_contain(hash(key)) {
        return wrong("the filter lacks a key");
    }
    Ok(())
}
