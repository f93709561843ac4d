//! Every bound of the system, in one place, with the relations between them checked at compile time.
//!
//! Units and direction stand last in a name: `KEY_BYTES_MAX`, `CHECKPOINT_EVERY_MS`.

/// Longest key, in bytes. The shortest is one byte.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest request id, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 255;
/// Longest member, in bytes.
pub const MEMBER_BYTES_MAX: usize = 255;
/// Most dimensions one event may carry.
pub const DIMENSIONS_MAX: usize = 16;
/// Longest dimension name or value, in bytes.
pub const DIMENSION_BYTES_MAX: usize = 255;
/// Longest reason or actor of a correction, in bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// Most events one call of a front door may submit.
pub const CALL_EVENTS_MAX: usize = 10_000;
/// Most keys one call may read.
pub const CALL_KEYS_MAX: usize = 1_000;
/// Most counters or ledger entries one page of a listing holds.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Page size when the caller names none.
pub const PAGE_ITEMS_DEFAULT: usize = 100;
/// Most partitions one token names.
pub const TOKEN_PARTITIONS_MAX: usize = 1_024;
/// Largest HTTP body: the largest batch of the longest keys fits.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Most runs of equal adds that the combined events of one call consist of.
pub const CALL_PARTS_MAX: usize = 64 << 10;
/// Most encoded bytes of one call. An engine refuses a call that is larger in any of the three.
pub const CALL_BYTES_MAX: usize = 16 << 20;

/// Events an open batch gathers before a submitter seals it instead of the flusher.
pub const BATCH_EVENTS_SEAL: usize = 4_096;
/// Runs of equal adds it gathers before that.
pub const BATCH_PARTS_SEAL: usize = 64 << 10;
/// Most events a batch can hold: the last call that joins may bring as many as a call has.
pub const BATCH_EVENTS_MAX: usize = BATCH_EVENTS_SEAL + CALL_EVENTS_MAX;
/// Most runs of equal adds a batch can hold.
pub const BATCH_PARTS_MAX: usize = BATCH_PARTS_SEAL + CALL_PARTS_MAX;
/// Largest encoded event: longest key, id, member, dimensions, actor and reason, and the numbers between.
pub const EVENT_BYTES_MAX: usize = 512
    + KEY_BYTES_MAX
    + REQUEST_ID_BYTES_MAX
    + MEMBER_BYTES_MAX
    + 2 * DIMENSIONS_MAX * (DIMENSION_BYTES_MAX + 2)
    + 2 * REASON_BYTES_MAX;
/// Most bytes of events an open batch gathers before it is sealed; the last call may overshoot by its own size.
pub const BATCH_BYTES_SEAL: usize = 4 << 20;
/// Most bytes of an encoded batch.
pub const BATCH_BYTES_MAX: usize = BATCH_BYTES_SEAL + CALL_BYTES_MAX;

/// How long a request id is remembered.
pub const IDEMPOTENCY_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;
/// Request ids expire by whole generations of this length, so one is kept for the window and up to one more generation.
pub const GENERATION_MS: u64 = 60 * 60 * 1000;

/// While Tally's clock and the system's differ, Tally's runs faster or slower by one part in this many.
pub const CLOCK_SLEW_PARTS: u32 = 16;
/// A difference between the two larger than this is logged.
pub const CLOCK_STEP_REPORTED_MS: u64 = 1_000;
/// A stored clock this far ahead of the system's is reported at the start.
pub const CLOCK_AHEAD_REPORTED_MS: u64 = 60_000;

/// Bytes of one journal segment. A batch never spans two.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// A submitting thread flushes itself only if the last flush took no longer than this. Otherwise it has better things to
/// do meanwhile.
pub const FLUSH_HERE_MICROS_MAX: u64 = 1_000;
/// Likewise only if no more events than this, after combining, are to be applied before.
pub const FLUSH_HERE_EVENTS_MAX: usize = 1_024;
/// Bytes sealed but not yet flushed before sealing waits for the disk.
pub const UNFLUSHED_BYTES_MAX: usize = 32 << 20;
/// A checkpoint starts once this much journal lies behind the last one.
pub const CHECKPOINT_JOURNAL_BYTES: u64 = 128 << 20;
/// A checkpoint starts at the latest this long after a change.
pub const CHECKPOINT_EVERY_MS: u64 = 30_000;
/// After one that found no room on the disk, the next starts no sooner than this.
pub const CHECKPOINT_RETRY_MS: u64 = 1_000;
/// Counters copied for a checkpoint per turn of the lock: what a writer may wait for.
pub const CAPTURE_SLICE: usize = 4_096;
/// Counters brought to memory after a restart per turn of the lock.
pub const WARM_SLICE: usize = 1_024;
/// Pause between such turns.
pub const WARM_PAUSE_MICROS: u64 = 200;
/// Expiries looked at per turn of the lock when forgetting counters.
pub const SWEEP_SLICE: usize = 256;
/// Most expiries looked at before a checkpoint has to take what was forgotten out of memory.
pub const SWEEP_MAX: usize = 8_192;
/// Captured bytes held in memory before they are sorted and written as one run.
pub const CAPTURE_BYTES_MAX: usize = 32 << 20;

/// Memory budget when none is given.
pub const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
/// Smallest memory budget that works: buffers, filters and a useful cache.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

const _: () = assert!(SEGMENT_BYTES as usize > 2 * BATCH_BYTES_MAX);
const _: () = assert!(CALL_BYTES_MAX >= CALL_EVENTS_MAX * (KEY_BYTES_MAX + 2 * REQUEST_ID_BYTES_MAX));
const _: () = assert!(SWEEP_SLICE <= SWEEP_MAX);
const _: () = assert!((SWEEP_MAX * 4 * KEY_BYTES_MAX) as u64 <= MEMORY_BYTES_MIN / 4);
const _: () = assert!(UNFLUSHED_BYTES_MAX >= BATCH_BYTES_SEAL);
const _: () = assert!(IDEMPOTENCY_WINDOW_MS.is_multiple_of(GENERATION_MS));
const _: () = assert!(CHECKPOINT_JOURNAL_BYTES >= SEGMENT_BYTES);
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(BATCH_EVENTS_MAX < u32::MAX as usize);
const _: () = assert!((2 * CAPTURE_BYTES_MAX) as u64 <= MEMORY_BYTES_MIN);
