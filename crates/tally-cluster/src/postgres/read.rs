//! Reading what is stored: listings, the ledger, expired counters, samples.

use tally_core::counter::CounterState;
use tally_core::event::RequestId;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{KEY_BYTES_MAX, SWEEP_MAX};
use tally_core::record;
use tally_core::request_ids::FirstOutcome;
use tally_core::time::Millis;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Pg;
use super::columns::{self, bigint, int, number, timestamp};
use super::error::{PgError, column};
use super::limits::{LIST_ROWS_MAX, SAMPLE_ROWS_MAX};
use super::rows::entry;

/// A counter of a listing, as of the stored position of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCounter {
    /// Its key.
    pub key: Key,
    /// The counter. It may have expired.
    pub state: CounterState,
    /// Its partition.
    pub partition: u32,
    /// The time of the partition's last stored batch, which tells how old the reading is.
    pub clock: Millis,
    /// Everything that its sub-counters had counted before this time is in it. Zero if that is not known.
    pub summed_at: Millis,
}

const LIST: &str = "SELECT c.key, c.record, c.partition, coalesce(p.clock, 0), coalesce(p.summed_at, 0) \
    FROM counters c LEFT JOIN partitions p USING (partition) \
    WHERE c.key >= $1 AND c.key < $2 ORDER BY c.key LIMIT $3";

const EXPIRED: &str = "SELECT key, record FROM counters WHERE partition = $1 AND expires_at <= $2 \
    AND (expires_at, key) > ($3, $4) ORDER BY expires_at, key LIMIT $5";

const LEDGER: &str = "SELECT key, seq, record FROM counter_ledger WHERE key = $1 AND seq > $2 ORDER BY seq LIMIT $3";

/// A chain begins with entry 1, so each ledger is found once.
const ALL_KEYS: &str = "(SELECT key FROM counters WHERE key > $1 ORDER BY key LIMIT $2) \
    UNION (SELECT key FROM counter_ledger WHERE key > $1 AND seq = 1 ORDER BY key LIMIT $2) ORDER BY key LIMIT $2";

const REQUESTS: &str = "SELECT id, record FROM idempotent_requests \
    WHERE partition = $1 AND id > $2 AND expires_at > $3 ORDER BY id LIMIT $4";

const COUNT: &str = "SELECT coalesce(sum(counters), 0)::bigint FROM partitions";

/// Blocks of the table.
const BLOCKS: &str = "SELECT pg_relation_size('counters') / current_setting('block_size')::bigint";

/// Unexpired counters from a block on, in the order in which they are stored, which needs no sorting.
const FROM_BLOCK: &str = "SELECT c.key FROM counters c LEFT JOIN partitions p USING (partition) \
    WHERE c.ctid >= $1::text::tid \
    AND (c.expires_at IS NULL OR c.expires_at > to_timestamp(coalesce(p.clock, 0) / 1000.0)) LIMIT $2";

impl Pg {
    /// Counters of all partitions whose key starts with `prefix` and sorts after `after`, in key order. Returns at most
    /// `limit`, and never more than two pages.
    pub async fn list(&self, prefix: &[u8], after: Option<&Key>, limit: usize) -> Result<Vec<ListedCounter>, PgError> {
        // The next key after `after` is one NUL longer.
        let after = after.map(|after| [after.as_bytes(), &[0]].concat()).unwrap_or_default();
        let from = prefix.max(&after);
        let (before, limit) = (prefix_end(prefix), limit.min(LIST_ROWS_MAX) as i64);
        let rows = self.reading().await?.query(LIST, &[&from, &before, &limit]).await?;
        rows.iter().map(listed).collect()
    }

    /// The keys of counters and of ledgers after `after`, in order. Returns at most `limit`, and never more than two
    /// pages.
    pub async fn all_keys(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, PgError> {
        let (after, limit) = (after.map_or(&[][..], Key::as_bytes), limit.min(LIST_ROWS_MAX) as i64);
        let rows = self.reading().await?.query(ALL_KEYS, &[&after, &limit]).await?;
        rows.iter().map(|row| columns::key(column(row, 0)?)).collect()
    }

    /// The request ids of a partition after `after` that have not expired at `at`, in order, and their first outcomes.
    /// Returns at most `limit`, and never more than two pages.
    pub async fn requests(
        &self,
        partition: u32,
        after: Option<RequestId>,
        at: Millis,
        limit: usize,
    ) -> Result<Vec<(RequestId, FirstOutcome)>, PgError> {
        let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
        let limit = limit.min(LIST_ROWS_MAX) as i64;
        let rows = self.reading().await?.query(REQUESTS, &[&int(partition), &after, &timestamp(at), &limit]).await?;
        rows.iter().map(|row| request(column(row, 0)?, column(row, 1)?)).collect()
    }

    /// Counters of a partition that have expired at `at`, and when, the oldest expiry first, after `after`. Returns at
    /// most `limit`.
    pub async fn expired(
        &self,
        partition: u32,
        at: Millis,
        after: Option<&(Millis, Key)>,
        limit: usize,
    ) -> Result<Vec<(Millis, Key)>, PgError> {
        let limit = limit.min(SWEEP_MAX) as i64;
        let (after_at, after_key) = after.map_or((Millis(0), &[][..]), |(at, key)| (*at, key.as_bytes()));
        let arguments: [&(dyn ToSql + Sync); 5] =
            [&int(partition), &timestamp(at), &timestamp(after_at), &after_key, &limit];
        let rows = self.reading().await?.query(EXPIRED, &arguments).await?;
        let mut expired = Vec::with_capacity(rows.len());
        for row in &rows {
            let key = column(row, 0)?;
            let state = columns::counter(key, column(row, 1)?)?;
            // The record decides: the column may be off for times beyond the year 9999.
            if let Some(expires_at) = state.expires_at.filter(|expires_at| *expires_at <= at) {
                expired.push((expires_at, columns::key(key)?));
            }
        }
        Ok(expired)
    }

    /// The corrections of a counter after the one numbered `after`, oldest first. Returns at most `limit`, and never
    /// more than two pages.
    pub async fn ledger(&self, key: KeyRef<'_>, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, PgError> {
        let limit = limit.min(LIST_ROWS_MAX) as i64;
        let rows = self.reading().await?.query(LEDGER, &[&key.as_bytes(), &bigint(after), &limit]).await?;
        rows.iter().map(|row| entry(column(row, 0)?, number(column(row, 1)?)?, column(row, 2)?)).collect()
    }

    /// The number of counters in all partitions, including expired ones that are not removed yet.
    pub async fn count(&self) -> Result<u64, PgError> {
        let rows = self.reading().await?.query(COUNT, &[]).await?;
        rows.first().map_or(Ok(0), |row| number(column(row, 0)?))
    }

    /// A stored counter chosen by `number`, or `None` if there are none that have not expired. Different numbers choose
    /// different blocks of the table, so random numbers choose about evenly.
    pub async fn sample(&self, number: u64) -> Result<Option<Key>, PgError> {
        let connection = self.reading().await?;
        let blocks = connection.query(BLOCKS, &[]).await?;
        let blocks: i64 = blocks.first().map_or(Ok(0), |row| column(row, 0))?;
        let blocks = blocks.max(1) as u64;
        // Blocks may be empty after deletions, even all blocks up to the end of the table. The search then continues at
        // its start.
        for block in [number % blocks, 0] {
            let (from, limit) = (format!("({block},0)"), SAMPLE_ROWS_MAX as i64);
            let rows = connection.query(FROM_BLOCK, &[&from, &limit]).await?;
            let chosen = (number / blocks).checked_rem(rows.len() as u64).unwrap_or_default();
            if let Some(row) = rows.get(chosen as usize) {
                return columns::key(column(row, 0)?).map(Some);
            }
        }
        Ok(None)
    }
}

fn listed(row: &Row) -> Result<ListedCounter, PgError> {
    let key = column(row, 0)?;
    Ok(ListedCounter {
        key: columns::key(key)?,
        state: columns::counter(key, column(row, 1)?)?,
        partition: columns::partition(column(row, 2)?)?,
        clock: Millis(number(column(row, 3)?)?),
        summed_at: Millis(number(column(row, 4)?)?),
    })
}

fn request(id: &[u8], value: &[u8]) -> Result<(RequestId, FirstOutcome), PgError> {
    let first = id.try_into().ok().map(RequestId).zip(record::read_request(value));
    first.ok_or_else(|| PgError::malformed(&[record::REQUEST_PREFIX, id].concat()))
}

/// The first bytes that sort after everything that starts with `prefix`.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let Some(last) = kept else {
        // Nothing follows such a prefix, so the end is beyond the longest key.
        return vec![u8::MAX; KEY_BYTES_MAX + 1];
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_first_that_does_not_start_with_it() {
        assert_eq!(prefix_end(b"likes:"), b"likes;");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert!(prefix_end(b"")[..] > [u8::MAX; KEY_BYTES_MAX][..]);
        assert!(prefix_end(b"\xff")[..] > [u8::MAX; KEY_BYTES_MAX][..]);
    }
}
