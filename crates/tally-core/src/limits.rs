//! Bounds that users or several crates depend on, with the relations between them checked at compile time.
//!
//! Units and bounds come last in a name: `KEY_BYTES_MAX`, `CHECKPOINT_EVERY_MS`.

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

/// Most sub-counters of one counter.
pub const SHARDS_MAX: u32 = 128;
/// Largest encoded report of a sub-counter.
pub const REPORT_BYTES_MAX: usize = 3 + 3 * 10;

/// Most events one call may submit.
pub const CALL_EVENTS_MAX: usize = 10_000;
/// Most keys one call may read.
pub const CALL_KEYS_MAX: usize = 1_000;
/// Most counters or ledger entries one page of a listing holds.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Default page size.
pub const PAGE_ITEMS_DEFAULT: usize = 100;
/// Most partitions in one token.
pub const TOKEN_PARTITIONS_MAX: usize = 1_024;
/// Largest HTTP body: the largest batch of the longest keys fits.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Most runs of equal adds in the combined events of one call.
pub const CALL_PARTS_MAX: usize = 64 << 10;
/// Most encoded bytes of one call. Engines refuse a call that exceeds any `CALL_*_MAX`.
pub const CALL_BYTES_MAX: usize = 16 << 20;

/// Events in an open batch at which the submitter seals it without waiting for the flusher.
pub const BATCH_EVENTS_SEAL: usize = 4_096;
/// Runs of equal adds in an open batch at which the submitter seals it.
pub const BATCH_PARTS_SEAL: usize = 64 << 10;
/// Most events of a batch: the call that reaches the seal limit may exceed it by its own size.
pub const BATCH_EVENTS_MAX: usize = BATCH_EVENTS_SEAL + CALL_EVENTS_MAX;
/// Most parts, besides its own, that an event adds to a batch by joining another event: its single run becomes a part,
/// and so does the single run that it joins.
pub const JOIN_PARTS_MAX: usize = 2;
/// Most runs of equal adds in a batch: the call that reaches the seal limit may exceed it by its own runs and by those
/// that result from joining.
pub const BATCH_PARTS_MAX: usize = BATCH_PARTS_SEAL + CALL_PARTS_MAX + JOIN_PARTS_MAX * CALL_EVENTS_MAX;
/// Largest encoded event: longest key, id, member, dimensions, actor and reason, plus all numbers.
pub const EVENT_BYTES_MAX: usize = 512
    + KEY_BYTES_MAX
    + REQUEST_ID_BYTES_MAX
    + MEMBER_BYTES_MAX
    + 2 * DIMENSIONS_MAX * (DIMENSION_BYTES_MAX + 2)
    + 2 * REASON_BYTES_MAX;
/// Most ledger entries of one import event. A longer ledger takes several events.
pub const IMPORT_ENTRIES_MAX: usize = 256;
/// Largest encoded ledger entry: actor, reason, two hashes and all numbers.
pub const LEDGER_ENTRY_BYTES_MAX: usize = 2 * REASON_BYTES_MAX + 256;
/// Largest encoded counter: all its numbers.
pub const COUNTER_BYTES_MAX: usize = 256;
/// Bytes of events in an open batch at which the submitter seals it.
pub const BATCH_BYTES_SEAL: usize = 4 << 20;
/// Most bytes of an encoded batch.
pub const BATCH_BYTES_MAX: usize = BATCH_BYTES_SEAL + CALL_BYTES_MAX;

/// How long a request id is remembered.
pub const IDEMPOTENCY_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;
/// Request ids expire in generations of this length, so an id is kept for the window and up to one generation more.
pub const GENERATION_MS: u64 = 60 * 60 * 1000;

/// While Tally's clock differs from the system clock, it runs faster or slower by at most one part in this many.
pub const CLOCK_SLEW_PARTS: u32 = 16;
/// Differences between the two clocks above this are logged.
pub const CLOCK_STEP_REPORTED_MS: u64 = 1_000;
/// A stored clock further ahead of the system clock than this is reported at startup.
pub const CLOCK_AHEAD_REPORTED_MS: u64 = 60_000;

/// Bytes of one journal segment. A batch never spans two.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// A submitting thread flushes inline only if the last flush took no longer than this.
pub const FLUSH_HERE_MICROS_MAX: u64 = 1_000;
/// A submitting thread flushes inline only if no more events than this, after combining, have to be applied first.
pub const FLUSH_HERE_EVENTS_MAX: usize = 1_024;
/// Sealed but unflushed bytes at which sealing waits for the disk.
pub const UNFLUSHED_BYTES_MAX: usize = 32 << 20;
/// A checkpoint starts once the journal has grown by this much since the last one.
pub const CHECKPOINT_JOURNAL_BYTES: u64 = 128 << 20;
/// A checkpoint starts at most this long after a change.
pub const CHECKPOINT_EVERY_MS: u64 = 30_000;
/// Shortest delay before a checkpoint is retried after the disk was full.
pub const CHECKPOINT_RETRY_MS: u64 = 1_000;
/// Counters a checkpoint copies each time it holds the lock. This bounds how long a writer waits for it.
pub const CAPTURE_SLICE: usize = 4_096;
/// Counters loaded after a restart each time the lock is held.
pub const WARM_SLICE: usize = 1_024;
/// Pause between two such slices.
pub const WARM_PAUSE_MICROS: u64 = 200;
/// Expiry records swept by one submission.
pub const SWEEP_SLICE: usize = 256;
/// Most expiry records swept between two checkpoints, because only a checkpoint frees the memory of removals.
pub const SWEEP_MAX: usize = 8_192;
/// Captured bytes buffered before they are sorted and written as one run.
pub const CAPTURE_BYTES_MAX: usize = 32 << 20;

/// Default memory budget of the process.
pub const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
/// Part of the budget that is not given to the engine: code, threads, connections, unflushed batches, the buffers of a
/// merge, and what the allocator keeps.
pub const PROCESS_BYTES: u64 = 96 << 20;
/// Smallest memory budget: the process, and buffers, filters and a useful cache.
pub const MEMORY_BYTES_MIN: u64 = PROCESS_BYTES + (64 << 20);

const _: () = assert!(KEY_BYTES_MAX + 64 + SHARDS_MAX as usize * REPORT_BYTES_MAX <= EVENT_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES as usize > 2 * BATCH_BYTES_MAX);
const _: () = assert!(CALL_BYTES_MAX >= CALL_EVENTS_MAX * (KEY_BYTES_MAX + 2 * REQUEST_ID_BYTES_MAX));
const _: () =
    assert!(IMPORT_ENTRIES_MAX * LEDGER_ENTRY_BYTES_MAX + COUNTER_BYTES_MAX + EVENT_BYTES_MAX <= BATCH_BYTES_SEAL);
const _: () = assert!(SWEEP_SLICE <= SWEEP_MAX);
const _: () = assert!((SWEEP_MAX * 4 * KEY_BYTES_MAX) as u64 <= (MEMORY_BYTES_MIN - PROCESS_BYTES) / 4);
const _: () = assert!(UNFLUSHED_BYTES_MAX >= BATCH_BYTES_SEAL);
const _: () = assert!(IDEMPOTENCY_WINDOW_MS.is_multiple_of(GENERATION_MS));
const _: () = assert!(CHECKPOINT_JOURNAL_BYTES >= SEGMENT_BYTES);
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(BATCH_EVENTS_MAX < u32::MAX as usize);
const _: () = assert!((2 * CAPTURE_BYTES_MAX) as u64 <= MEMORY_BYTES_MIN - PROCESS_BYTES);
