//! The bounds of the engine's files and threads; those of counters, batches and memory live in `tally_core::limits`.

/// Journal flushed and not yet recorded in `journal.end` waits until no flush has followed for this long.
pub const MARK_IDLE_MS: u64 = 10;
/// Under load, how far the journal is durable is recorded this often.
pub const MARK_BUSY_MS: u64 = 1_000;

/// Runs that are open between merges.
pub const RUN_FILES_IDLE_MAX: usize = 16;
/// Runs that one checkpoint writes: the captures of a full memory, request ids, and what sorts before them.
pub const RUN_FILES_CHECKPOINT_MAX: usize = 34;
/// Files open besides runs: the directory and its lock, the journal's current segment, its spare, its end and one being
/// trimmed, the manifest, the output of a merge, and the directory while names are synced.
pub const OTHER_FILES_MAX: usize = 12;
/// Files of the process around the engine: standard streams, listeners, its runtime, and the fewest connections it serves.
pub const PROCESS_FILES_MAX: usize = 64;
/// File descriptors that the process must be allowed before the engine starts.
pub const FILES_MIN: usize = RUN_FILES_IDLE_MAX + RUN_FILES_CHECKPOINT_MAX + OTHER_FILES_MAX + PROCESS_FILES_MAX;

const _: () = assert!(RUN_FILES_IDLE_MAX == crate::store::RUNS_IDLE_MAX);
const _: () = assert!(MARK_IDLE_MS > 0 && MARK_BUSY_MS >= MARK_IDLE_MS);
