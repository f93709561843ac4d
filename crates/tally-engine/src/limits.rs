//! Limits of the engine's files and threads. Those of counters, batches, memory, the clock, segments
//! and checkpoints are in `tally_core::limits`.

use tally_core::limits::{CAPTURE_BYTES_MAX, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};

/// `journal.end` is written once there has been no flush for this long.
pub const MARK_IDLE_MS: u64 = 10;
/// Under constant load, `journal.end` is written this often.
pub const MARK_BUSY_MS: u64 = 1_000;

/// Most runs that stay open between merges.
pub const RUN_FILES_IDLE_MAX: usize = 16;
/// Runs of a checkpoint in addition to one per capture buffer: request ids, and the records that sort before them.
pub const RUN_FILES_EXTRA_MAX: usize = 2;
/// Open files other than runs: the directory, twice, and its lock file; the journal's current segment, its spare,
/// `journal.end` and a segment being trimmed; the manifest; the output of a merge.
pub const OTHER_FILES_MAX: usize = 12;
/// Bytes of a backup that are read or written at a time.
pub const BACKUP_CHUNK_BYTES: usize = 256 << 10;

/// Open files of the rest of the process: standard streams, listeners, the runtime and a minimum of connections.
pub const PROCESS_FILES_MAX: usize = 64;

/// File descriptors that a process with this memory budget needs. In the worst case all of memory is dirty: the
/// checkpoint then writes one run per capture buffer, all open at once, in addition to the existing runs. A backup may
/// keep as many again open that have been replaced since it began. Runs that checkpoints add during a long merge are not
/// counted: if descriptors run out, a checkpoint is tried again until the merge has replaced some.
#[must_use]
pub const fn files_needed(memory_bytes: u64) -> usize {
    let captures = memory_bytes.div_ceil(capture_bytes(memory_bytes) as u64) as usize;
    let runs = RUN_FILES_IDLE_MAX + captures + RUN_FILES_EXTRA_MAX;
    2 * runs + OTHER_FILES_MAX + PROCESS_FILES_MAX
}

/// Size of the capture buffer for a memory budget.
pub(crate) const fn capture_bytes(memory_bytes: u64) -> usize {
    let share = memory_bytes as usize / 32;
    if share < CAPTURE_BYTES_MAX { share } else { CAPTURE_BYTES_MAX }
}

const _: () = assert!(RUN_FILES_IDLE_MAX == crate::store::RUNS_IDLE_MAX);
const _: () = assert!(files_needed(MEMORY_BYTES_MIN) == files_needed(MEMORY_BYTES_DEFAULT));
const _: () = assert!(MARK_IDLE_MS > 0 && MARK_BUSY_MS >= MARK_IDLE_MS);
