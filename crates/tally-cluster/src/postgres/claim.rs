//! The owner of a partition, and its stored position.

use std::time::SystemTime;

use tally_core::record::Meta;
use tally_core::time::{Millis, Position};
use tokio_postgres::Row;

use super::Pg;
use super::columns::{self, int, millis, number};
use super::error::{PgError, column};
use super::limits::FORGET_ROWS_MAX;

/// What a worker gets with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The epoch of the claim. It is needed for persisting, and the next claim ends it.
    pub epoch: u64,
    /// The position to continue from.
    pub position: Position,
    /// Metadata as of the position; `None` if nothing was persisted yet.
    pub meta: Option<Meta>,
    /// Everything that sub-counters had counted before this time is before the position. Zero if that is not known.
    pub summed_at: Millis,
    /// The position after the last reset of the partition's clock. Zero if there was none.
    pub clock_reset: Position,
}

/// A partition as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    /// Its number.
    pub partition: u32,
    /// The stored position.
    pub position: Position,
    /// Number of claims so far.
    pub epoch: u64,
    /// Who claimed it last. It may be gone.
    pub owner: Option<String>,
    /// Metadata as of the position; `None` if nothing was persisted yet.
    pub meta: Option<Meta>,
    /// Everything that sub-counters had counted before this time is before the position. Zero if that is not known.
    pub summed_at: Millis,
    /// The position after the last reset of the partition's clock. Zero if there was none.
    pub clock_reset: Position,
    /// When it was last persisted, by PostgreSQL's clock.
    pub persisted_at: Option<Millis>,
    /// When it was last claimed, by PostgreSQL's clock.
    pub owned_at: Option<Millis>,
}

impl PartitionRow {
    /// What its next owner continues from.
    pub fn claimed(&self) -> Claim {
        let PartitionRow { epoch, position, meta, summed_at, clock_reset, .. } = *self;
        Claim { epoch, position, meta, summed_at, clock_reset }
    }
}

/// Never inserts: the number of rows is the number of partitions, which decides where keys live.
const CLAIM: &str = "UPDATE partitions SET epoch = epoch + 1, owner = $2, owned_at = clock_timestamp() \
    WHERE partition = $1 RETURNING position, epoch, clock, counters, expiring, summed_at, clock_reset";

const CREATE: &str = "INSERT INTO partitions (partition, position, epoch) \
    SELECT number, 0, 0 FROM generate_series(0, $1::int - 1) AS number ON CONFLICT (partition) DO NOTHING";

const PARTITIONS: &str = "SELECT position, epoch, clock, counters, expiring, summed_at, clock_reset, partition, owner, \
    persisted_at, owned_at FROM partitions ORDER BY partition";

/// `ARRAY` runs the inner query once, whatever the plan: a join may run it again and again, each time for other rows.
/// Locked rows are skipped, because a persist is about to write an expired id again. The outer condition on the time
/// excludes those that were written in between.
const FORGET: &str = "WITH stored AS (SELECT to_timestamp(clock / 1000.0) AS clock FROM partitions WHERE partition = $1) \
    DELETE FROM idempotent_requests WHERE partition = $1 AND expires_at <= (SELECT clock FROM stored) AND id = ANY(ARRAY\
    (SELECT id FROM idempotent_requests WHERE partition = $1 AND expires_at <= (SELECT clock FROM stored) \
     ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))";

const REQUEST_COUNT: &str = "SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = 'idempotent_requests'::regclass";

impl Pg {
    /// Makes `owner` the owner, with a new epoch, so that the previous owner can no longer persist. Waits for a persist
    /// in progress; if that takes long, fails with [`PgError::Busy`]. Fails with [`PgError::NoPartition`] if
    /// [`Pg::create_partitions`] did not create it. After any other error, claim again: an epoch may be skipped, which
    /// does no harm.
    pub async fn claim(&self, partition: u32, owner: &str) -> Result<Claim, PgError> {
        let owner = columns::text(owner.as_bytes());
        let rows = self.claiming().await?.query(CLAIM, &[&int(partition), &owner]).await?;
        let row = rows.first().ok_or(PgError::NoPartition(partition))?;
        standing(row)
    }

    /// Creates the rows of partitions that do not have one, at position zero. Their number is that of the topic.
    pub async fn create_partitions(&self, partitions: u32) -> Result<(), PgError> {
        self.claiming().await?.execute(CREATE, &[&int(partitions)]).await?;
        Ok(())
    }

    /// All partitions.
    pub async fn partitions(&self) -> Result<Vec<PartitionRow>, PgError> {
        let rows = self.reading().await?.query(PARTITIONS, &[]).await?;
        rows.iter().map(partition_row).collect()
    }

    /// The number of request ids, according to PostgreSQL's statistics. Counting them would read the whole table.
    pub async fn request_count(&self) -> Result<u64, PgError> {
        let rows = self.reading().await?.query(REQUEST_COUNT, &[]).await?;
        rows.first().map_or(Ok(0), |row| number(column(row, 0)?))
    }

    /// Deletes the request ids that had expired by the stored time of the partition, a bounded number at a time, and
    /// returns their number. The current time is not used: a worker that takes over applies the batches since the
    /// stored position again, and needs the ids that they were compared with.
    pub async fn forget_requests(&self, partition: u32) -> Result<u64, PgError> {
        let connection = self.claiming().await?;
        let (mut deleted, limit) = (0, FORGET_ROWS_MAX as i64);
        loop {
            let chunk = connection.execute(FORGET, &[&int(partition), &limit]).await?;
            deleted += chunk;
            if chunk < FORGET_ROWS_MAX as u64 {
                return Ok(deleted);
            }
        }
    }
}

fn partition_row(row: &Row) -> Result<PartitionRow, PgError> {
    let Claim { epoch, position, meta, summed_at, clock_reset } = standing(row)?;
    let time = |index| Ok::<_, PgError>(column::<Option<SystemTime>>(row, index)?.map(millis));
    Ok(PartitionRow {
        partition: columns::partition(column(row, 7)?)?,
        position,
        epoch,
        owner: column(row, 8)?,
        meta,
        summed_at,
        clock_reset,
        persisted_at: time(9)?,
        owned_at: time(10)?,
    })
}

/// From the first seven columns.
fn standing(row: &Row) -> Result<Claim, PgError> {
    let (position, epoch) = (columns::position(column(row, 0)?)?, number(column(row, 1)?)?);
    let meta = match (column(row, 2)?, column(row, 3)?, column(row, 4)?) {
        (Some(clock), Some(counters), Some(expiring)) => {
            Some(Meta { clock: Millis(number(clock)?), counters: number(counters)?, expiring: number(expiring)? })
        }
        _ => None,
    };
    let (summed_at, clock_reset) = (Millis(number(column(row, 5)?)?), columns::position(column(row, 6)?)?);
    // A reset after the position is one of an earlier topic.
    let clock_reset = if clock_reset <= position { clock_reset } else { Position(0) };
    Ok(Claim { epoch, position, meta, summed_at, clock_reset })
}
