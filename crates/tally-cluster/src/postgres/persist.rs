//! Persisting: everything that changed between two positions of a partition, in one transaction.

use tally_core::record::{Meta, Records};
use tally_core::time::{Millis, Position};
use tokio::sync::OwnedMutexGuard;
use tokio_postgres::types::ToSql;

use super::Pg;
use super::columns::{bigint, int, number, position};
use super::connection::{CommitFailure, Connection};
use super::error::{PersistError, PgError, column};
use super::rows::TableRows;

/// A persist in progress. It holds the lock of the partition's row. Dropping it closes its connection, which undoes
/// everything; [`Persist::rollback`] keeps the connection.
pub struct Persist {
    /// Empty once the transaction has ended badly.
    connection: OwnedMutexGuard<Option<Connection>>,
    partition: u32,
    meta: Option<Meta>,
    summed_at: Millis,
    clock_reset: Position,
    /// Whether the transaction is still open.
    is_open: bool,
    /// Whether every write was completed. One that failed or whose future was dropped may have written some of its
    /// rows.
    is_whole: bool,
}

const LOCK: &str = "SELECT position, epoch FROM partitions WHERE partition = $1 FOR UPDATE";

/// After a reset of the clock, earlier times no longer apply.
const ADVANCE: &str = "UPDATE partitions SET position = $2, clock = coalesce($3, clock), \
    counters = coalesce($4, counters), expiring = coalesce($5, expiring), \
    summed_at = CASE WHEN $7 > clock_reset THEN $6 ELSE greatest(summed_at, $6) END, \
    clock_reset = greatest(clock_reset, $7), persisted_at = clock_timestamp() WHERE partition = $1";

impl Pg {
    /// Begins to persist a partition that is stored at `from` and was claimed with `epoch`. Waits for another persist
    /// of this node to end.
    pub async fn persist(&self, partition: u32, epoch: u64, from: Position) -> Result<Persist, PersistError> {
        let mut connection = self.persists.clone().lock_owned().await;
        if !connection.as_ref().is_some_and(Connection::is_usable) {
            *connection = None;
            *connection = Some(self.connector.connect().await?);
        }
        // `is_open` from the start: if this future is dropped or fails, the transaction is rolled back.
        let (meta, summed_at, clock_reset) = (None, Millis(0), Position(0));
        let mut persist =
            Persist { connection, partition, meta, summed_at, clock_reset, is_open: true, is_whole: true };
        let (stored, stored_epoch) = persist.begin().await?;
        if (stored, stored_epoch) == (from, epoch) {
            return Ok(persist);
        }
        persist.rollback().await;
        Err(PersistError::Superseded { stored, epoch: stored_epoch })
    }
}

impl Persist {
    /// Locks the partition's row first, so that a worker that was replaced fails before it has written anything.
    async fn begin(&mut self) -> Result<(Position, u64), PgError> {
        let connection = self.connection()?;
        connection.run("BEGIN").await?;
        let rows = connection.query(LOCK, &[&int(self.partition)]).await?;
        let Some(row) = rows.first() else {
            return Ok((Position(0), 0));
        };
        Ok((position(column(row, 0)?)?, number(column(row, 1)?)?))
    }

    /// Writes records; one without a value is deleted. No key may occur twice in one persist. Expiries are not stored.
    /// After an error the persist cannot be committed any more.
    pub async fn write(&mut self, records: &Records) -> Result<(), PersistError> {
        self.write_all(records.iter()).await
    }

    /// Writes request ids: store keys and values.
    pub async fn write_requests<'a>(
        &mut self,
        requests: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), PersistError> {
        self.write_all(requests.into_iter().map(|(key, value)| (key, Some(value)))).await
    }

    async fn write_all<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<(), PersistError> {
        let was_whole = std::mem::replace(&mut self.is_whole, false);
        let rows = TableRows::sort(records)?;
        rows.write(self.connection()?, self.partition).await?;
        self.meta = rows.meta().or(self.meta);
        self.is_whole = was_whole;
        Ok(())
    }

    /// Everything that sub-counters had counted before this time is before the position to be committed.
    pub fn note_summed(&mut self, before: Millis) {
        self.summed_at = self.summed_at.max(before);
    }

    /// The last reset of the partition's clock ends at this position, which is not after the one to be committed.
    pub fn note_clock_reset(&mut self, end: Position) {
        self.clock_reset = self.clock_reset.max(end);
    }

    /// Moves the partition to `to`, together with everything written. Its metadata is that of the last metadata record
    /// written; without one, it stays as it is.
    pub async fn commit(mut self, to: Position) -> Result<(), PersistError> {
        if !self.is_whole {
            return Err(PersistError::Incomplete);
        }
        let clock = self.meta.map(|meta| bigint(meta.clock.0));
        let counters = self.meta.map(|meta| bigint(meta.counters));
        let expiring = self.meta.map(|meta| bigint(meta.expiring));
        let connection = self.connection()?;
        let (moved, summed_at, clock_reset) = (bigint(to.0), bigint(self.summed_at.0), bigint(self.clock_reset.0));
        let partition: &(dyn ToSql + Sync) = &int(self.partition);
        let values = [partition, &moved, &clock, &counters, &expiring, &summed_at, &clock_reset];
        connection.execute(ADVANCE, &values).await?;
        match connection.commit().await {
            Ok(()) => {
                self.is_open = false;
                Ok(())
            }
            Err(CommitFailure::Refused(error)) => Err(PersistError::Failed(error)),
            Err(CommitFailure::Unknown(error)) => Err(PersistError::OutcomeUnknown(error)),
        }
    }

    /// Undoes everything.
    pub async fn rollback(mut self) {
        if let Ok(connection) = self.connection() {
            self.is_open = connection.run("ROLLBACK").await.is_err();
        }
    }

    fn connection(&self) -> Result<&Connection, PgError> {
        self.connection.as_ref().ok_or_else(|| PgError::Unexpected("a persist without a connection".into()))
    }
}

impl Drop for Persist {
    fn drop(&mut self) {
        if self.is_open {
            *self.connection = None;
        }
    }
}
