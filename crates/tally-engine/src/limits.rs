//! The bounds of the engine's files and threads; those of counters, batches and memory live in `tally_core::limits`.

use tally_core::limits::{CAPTURE_BYTES_MAX, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};

/// Journal flushed and not yet recorded in `journal.end` waits until no flush has followed for this long.
pub const MARK_IDLE_MS: u64 = 10;
/// Under load, how far the journal is durable is recorded this often.
pub const MARK_BUSY_MS: u64 = 1_000;

/// Runs that are open between merges.
pub const RUN_FILES_IDLE_MAX: usize = 16;
/// Runs of a checkpoint besides those of captures: request ids, and what sorts before them.
pub const RUN_FILES_EXTRA_MAX: usize = 2;
/// Files open besides runs: the directory and its lock, the journal's current segment, its spare, its end and one being
/// trimmed, the manifest, the output of a merge, and the directory while names are synced.
pub const OTHER_FILES_MAX: usize = 12;
/// Files of the process around the engine: standard streams, listeners, its runtime, and the fewest connections it serves.
pub const PROCESS_FILES_MAX: usize = 64;

/// File descriptors that the process must be allowed for an engine of this memory budget: a checkpoint of a memory full of
/// changes writes a run for each capture, and all of them are open together with those between merges.
#[must_use]
pub const fn files_needed(memory_bytes: u64) -> usize {
    let captures = memory_bytes.div_ceil(capture_bytes(memory_bytes) as u64) as usize;
    RUN_FILES_IDLE_MAX + captures + RUN_FILES_EXTRA_MAX + OTHER_FILES_MAX + PROCESS_FILES_MAX
}

/// Bytes captured before they are sorted and written, of a memory budget.
pub(crate) const fn capture_bytes(memory_bytes: u64) -> usize {
    let share = memory_bytes as usize / 32;
    if share < CAPTURE_BYTES_MAX { share } else { CAPTURE_BYTES_MAX }
}

const _: () = assert!(RUN_FILES_IDLE_MAX == crate::store::RUNS_IDLE_MAX);
const _: () = assert!(files_needed(MEMORY_BYTES_MIN) == files_needed(MEMORY_BYTES_DEFAULT));
const _: () = assert!(MARK_IDLE_MS > 0 && MARK_BUSY_MS >= MARK_IDLE_MS);
