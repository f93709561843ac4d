//! Limits of the cluster engine.

use tally_core::limits::BATCH_BYTES_MAX;

/// Largest record of the journal: a batch, and what Kafka puts around it.
pub const RECORD_BYTES_MAX: usize = BATCH_BYTES_MAX + (1 << 20);
/// Shortest time that the journal keeps records: PostgreSQL may be down for that long.
pub const RETENTION_MS_MIN: u64 = 3_600_000;
/// How long an append may take before its outcome is unknown.
pub const APPEND_TIMEOUT_MS: u64 = 10_000;
/// Most appends that wait for Kafka in one process. More are refused.
pub const APPENDS_QUEUED_MAX: usize = 4_096;
/// Records read ahead per partition.
pub const TAIL_BUFFER_KIB: usize = 16 << 10;
/// A worker that the group does not hear from for this long loses its partitions. Brokers allow no less by default.
pub const SESSION_TIMEOUT_MS: u64 = 6_000;
/// How long a rebalance waits for a worker to persist the partitions it loses.
pub const REVOKE_WAIT_MS: u64 = 5_000;

/// How long a stopping worker waits until it has left the group. Afterwards the group notices by itself.
pub const LEAVE_WAIT_MS: u64 = 2 * SESSION_TIMEOUT_MS;

const _: () = assert!(REVOKE_WAIT_MS < SESSION_TIMEOUT_MS && SESSION_TIMEOUT_MS < LEAVE_WAIT_MS);

/// Outcomes of recent batches that a worker keeps per partition. Those of older ones are unknown to callers.
pub const RECENT_OUTCOMES_BYTES_MAX: usize = 16 << 20;
/// Most reads of one partition that wait for the journal's end. More are refused.
pub const READS_WAITING_MAX: usize = 4_096;
/// Most reads of a worker that fetch from PostgreSQL at once, for callers and for its own use each. Far fewer than its
/// threads for blocking calls, so that some are left while PostgreSQL hangs. A read of its own whose counters are evicted
/// just before it begins is not counted.
pub const STORE_READS_MAX: usize = 64;
/// Most reads of a worker that fetch from PostgreSQL or wait to do so. More are refused, so that what is in memory can
/// be read while PostgreSQL hangs.
pub const STORE_READS_WAITING_MAX: usize = 1_024;
/// A partition's memory divided by this is for the totals that its worker keeps current in Redis. Counters beyond that
/// are read from the worker.
pub const PUBLISHED_MEMORY_DIVISOR: usize = 8;
/// Time to live of a total in Redis, from when it was first read.
pub const TOTAL_TTL_MS: u64 = 2 * 60_000;
/// A worker keeps a total current for at least this long: its time to live in Redis, which begins later, and a margin
/// for clocks that differ.
pub const TOTAL_KEPT_MS: u64 = TOTAL_TTL_MS + 60_000;
/// Most records of the journal that are applied under one lock of the partition.
pub const GROUP_RECORDS_MAX: usize = 1_024;
/// Most events of such a group, unless one record has more.
pub const GROUP_EVENTS_MAX: usize = 8_192;
/// Most bytes of such a group, unless one record has more.
pub const GROUP_BYTES_MAX: usize = 4 << 20;
/// Captured records that are written to PostgreSQL at once.
pub const CAPTURE_BYTES: usize = 4 << 20;
/// Longest wait of a request to a worker: for outcomes, or until a position is applied.
pub const WORKER_WAIT_MS: u64 = 10_000;
/// How long a worker lets a request wait for a position of the journal. Shorter than [`WORKER_WAIT_MS`], so that the
/// caller learns what it waited for.
pub const REACH_WAIT_MS: u64 = WORKER_WAIT_MS * 4 / 5;
/// Most appends of one partition that an API node has in flight.
pub const LANE_APPENDS_MAX: usize = 2;
/// Longest wait for a place in the open batch of a partition.
pub const JOIN_WAIT_MS: u64 = 5_000;
/// Most counters whose value an API node estimates from its own writes.
pub const ESTIMATES_MAX: usize = 1 << 18;
/// Most writes of one estimate that are kept separate.
pub const ESTIMATE_WRITES_MAX: usize = 64;
/// An estimate is refreshed after this long.
pub const ESTIMATE_REFRESH_MS: u64 = 1_000;
/// Owners of partitions are looked up this often.
pub const ROUTES_REFRESH_MS: u64 = 500;
/// An API node that does not know the time of a partition tries again after this long to learn it from Kafka.
pub const TIME_RETRY_MS: u64 = 500;
/// An API node that has not appended to a partition for this long appends an empty batch, to learn the time again.
pub const TIME_LEARNED_EVERY_MS: i64 = 5 * 60_000;
/// Longest wait of a reading for the time of its partition, without which its age is not known.
pub const TIME_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
/// Longest wait for the journal's end before totals are published. Without it, they do not become more current.
pub const END_WAIT_MS: u64 = 1_000;
/// Standbys are planned this often.
pub const STANDBY_PLAN_MS: u64 = 1_000;
/// A standby asks this often how far its partition is stored.
pub const STANDBY_FOLLOW_MS: u64 = 1_000;
/// Most attempts of a standby to read records that its owner has just stored.
pub const STANDBY_READS_MAX: usize = 5;
/// Totals of a partition that are compared with its state in one round.
pub const DRIFT_SLICE: usize = 256;
/// Most standbys of a partition.
pub const STANDBYS_MAX: u32 = 8;
/// Most counters whose last reading an API node remembers, all partitions together: about 50 MiB with keys of 40 bytes.
pub const SERVED_MAX: usize = 1 << 19;
// Each partition has an equal part, which must be enough for the counters that are read again and again.
const _: () = assert!(SERVED_MAX / PARTITIONS_MAX as usize >= 512);
/// Most counters for which concurrent reads share one request to a worker. Beyond that, each caller makes its own
/// request.
pub const SHARED_READS_MAX: usize = 1 << 16;
/// Lag for metrics is asked for this often.
pub const METERS_EVERY_MS: u64 = 2_000;
/// Expired counters are looked for this often.
pub const SWEEP_EVERY_MS: u64 = 5_000;
/// A partition without records for this long gets an empty batch, which carries the time, if it has counters that expire
/// or its last record had no broker's time.
pub const IDLE_TICK_MS: u64 = 1_000;
/// Most partitions of a cluster. A token names one position for each.
pub const PARTITIONS_MAX: u32 = tally_core::limits::TOKEN_PARTITIONS_MAX as u32;
/// Longest wait for the total that an estimate is based on.
pub const ESTIMATE_WAIT: std::time::Duration = std::time::Duration::from_millis(100);
/// A partition whose totals were last published this long ago counts as having no worker.
pub const SILENT_AFTER_MS: u64 = 15_000;
/// Longest wait of a closing API node for the answers to accepted calls.
pub const CLOSE_WAIT_MS: u64 = APPEND_TIMEOUT_MS + WORKER_WAIT_MS;
/// Longest wait for a worker where PostgreSQL can answer instead.
pub const ANY_WORKER_WAIT: std::time::Duration = std::time::Duration::from_millis(500);
/// Largest file of certificates or keys.
pub const CERTIFICATE_FILE_BYTES_MAX: u64 = 4 << 20;
/// A sub-counter whose additions or subtractions have reached this sum is replaced by a new one. Redis counts up to 2⁶³ - 1.
pub const SHARD_SUM_FULL: u64 = 1 << 62;
/// Writes per second to one sub-counter above which their number is doubled.
pub const SHARD_WRITES_PER_SECOND_MAX: f64 = 1_000.0;
/// The number of sub-counters is halved when all of them together have had fewer writes per second than this share of
/// what half of them can take, for [`SHARDS_COOL_MS`].
pub const SHARDS_COOL_SHARE: f64 = 0.5;
/// How long a counter must be cool before it gets fewer sub-counters.
pub const SHARDS_COOL_MS: u64 = 30_000;
/// Most sub-counters of a counter, unless its namespace says otherwise.
pub const SHARDS_MAX_DEFAULT: u32 = 64;
/// An API node registers the counters that it writes to this often, and learns their number of sub-counters.
pub const REGISTER_EVERY_MS: u64 = 1_000;
/// Sub-counters of a counter that nobody has registered for this long are removed, once they are summed.
pub const SHARDS_IDLE_S: u64 = 60;
/// Most counters whose registration an API node remembers.
pub const REGISTERED_MAX: usize = 1 << 17;
/// Most counters in one batch of sums.
pub const SUMS_BATCH_MAX: usize = 1_000;
/// How long the `by-time` layout writes to one sub-counter.
pub const BY_TIME_MS: u64 = 1_000;

const _: () = assert!(REGISTER_EVERY_MS * 10 <= SHARDS_IDLE_S * 1_000);
/// The time of a partition follows what its brokers' clocks have shown over at least this long, and at most twice as
/// long.
pub const CLOCK_WINDOW_MS: i64 = 60_000;
/// Most events of a `best-effort` call, each with the sum of its sub-counters, that are appended at once.
pub const JOURNALED_SUMS_MAX: usize = 500;
const _: () =
    assert!(2 * JOURNALED_SUMS_MAX * tally_core::limits::EVENT_BYTES_MAX <= tally_core::limits::CALL_BYTES_MAX);
const _: () = assert!(SUMS_BATCH_MAX * tally_core::limits::EVENT_BYTES_MAX <= tally_core::limits::CALL_BYTES_MAX);
const _: () = assert!(SHARDS_MAX_DEFAULT <= tally_core::limits::SHARDS_MAX);
/// Longest wait for a worker to persist a partition before an export.
pub const SETTLE_WAIT_MS: u64 = 60_000;
