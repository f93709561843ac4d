//! Writing records: sorting them by table, and statements that write thousands of rows each.

use std::time::SystemTime;

use tally_core::ledger::{CorrectionKind, LedgerEntry};
use tally_core::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use tally_core::record::{self, Meta};
use tally_core::request_ids::FirstOutcome;
use tally_core::time::Millis;

use super::columns::{self, Numeric, bigint, int, text, timestamp};
use super::connection::Connection;
use super::error::PgError;
use super::limits::WRITE_ROWS_MAX;
use super::store_key::StoreKey;

/// Records by table. A tombstone has only a key.
#[derive(Default)]
pub(super) struct TableRows<'a> {
    counters: Vec<(&'a [u8], &'a [u8])>,
    removed_counters: Vec<&'a [u8]>,
    requests: Vec<(&'a [u8], &'a [u8])>,
    removed_requests: Vec<&'a [u8]>,
    ledger: Vec<(&'a [u8], u64, &'a [u8])>,
    removed_ledger: Vec<(&'a [u8], u64)>,
    others: Vec<(&'a [u8], &'a [u8])>,
    removed_others: Vec<&'a [u8]>,
    /// Sums of sub-counters, which are also among the others.
    summed: Vec<(&'a [u8], &'a [u8])>,
    meta: Option<Meta>,
}

impl<'a> TableRows<'a> {
    pub(super) fn sort(records: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<Self, PgError> {
        let mut rows = TableRows::default();
        for (store_key, value) in records {
            match (StoreKey::of(store_key), value) {
                (StoreKey::Counter(key), Some(value)) => rows.counters.push((key.as_bytes(), value)),
                (StoreKey::Counter(key), None) => rows.removed_counters.push(key.as_bytes()),
                (StoreKey::Request(id), Some(value)) => rows.requests.push((id, value)),
                (StoreKey::Request(id), None) => rows.removed_requests.push(id),
                (StoreKey::Ledger(key, seq), Some(value)) => rows.ledger.push((key.as_bytes(), seq, value)),
                (StoreKey::Ledger(key, seq), None) => rows.removed_ledger.push((key.as_bytes(), seq)),
                (StoreKey::Other(key), Some(value)) => {
                    rows.others.push((key, value));
                    rows.summed.extend(record::summed_of(key).map(|counter| (counter.as_bytes(), value)));
                }
                (StoreKey::Other(key), None) => rows.removed_others.push(key),
                (StoreKey::Meta, Some(value)) => rows.meta = Some(meta(value)?),
                (StoreKey::Expiry, _) | (StoreKey::Meta, None) => {}
            }
        }
        Ok(rows)
    }

    pub(super) fn meta(&self) -> Option<Meta> {
        self.meta
    }

    /// Writes everything except the metadata.
    pub(super) async fn write(&self, connection: &Connection, partition: u32) -> Result<(), PgError> {
        let partition = int(partition);
        for removed in self.removed_counters.chunks(WRITE_ROWS_MAX) {
            connection.execute("DELETE FROM counters WHERE key = ANY($1)", &[&removed]).await?;
        }
        for counters in self.counters.chunks(WRITE_ROWS_MAX) {
            put_counters(connection, partition, counters).await?;
        }
        for removed in self.removed_requests.chunks(WRITE_ROWS_MAX) {
            const SQL: &str = "DELETE FROM idempotent_requests WHERE partition = $1 AND id = ANY($2)";
            connection.execute(SQL, &[&partition, &removed]).await?;
        }
        for requests in self.requests.chunks(WRITE_ROWS_MAX) {
            put_requests(connection, partition, requests).await?;
        }
        for removed in self.removed_ledger.chunks(WRITE_ROWS_MAX) {
            remove_ledger(connection, removed).await?;
        }
        for entries in self.ledger.chunks(WRITE_ROWS_MAX) {
            put_ledger(connection, partition, entries).await?;
        }
        for removed in self.removed_others.chunks(WRITE_ROWS_MAX) {
            const SQL: &str = "DELETE FROM records WHERE partition = $1 AND key = ANY($2)";
            connection.execute(SQL, &[&partition, &removed]).await?;
        }
        for others in self.others.chunks(WRITE_ROWS_MAX) {
            put_others(connection, partition, others).await?;
        }
        for summed in self.summed.chunks(WRITE_ROWS_MAX) {
            put_shards(connection, summed).await?;
        }
        Ok(())
    }
}

const PUT_COUNTERS: &str = "INSERT INTO counters (partition, key, name, value, increments, decrements, min, max, \
        created_at, updated_at, expires_at, record) \
    SELECT $1, * FROM unnest($2::bytea[], $3::text[], $4::bigint[], $5::numeric[], $6::numeric[], $7::bigint[], \
        $8::bigint[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::bytea[]) \
    ON CONFLICT (key) DO UPDATE SET partition = excluded.partition, value = excluded.value, \
        increments = excluded.increments, decrements = excluded.decrements, min = excluded.min, max = excluded.max, \
        created_at = excluded.created_at, updated_at = excluded.updated_at, expires_at = excluded.expires_at, \
        record = excluded.record";

async fn put_counters(connection: &Connection, partition: i32, counters: &[(&[u8], &[u8])]) -> Result<(), PgError> {
    let states = counters.iter().map(|(key, value)| columns::counter(key, value)).collect::<Result<Vec<_>, _>>()?;
    let (keys, records): (Vec<_>, Vec<_>) = counters.iter().copied().unzip();
    let names: Vec<_> = keys.iter().map(|key| text(key)).collect();
    let values: Vec<i64> = states.iter().map(|state| state.counter.value()).collect();
    let increments: Vec<_> = states.iter().map(|state| Numeric(state.counter.increments())).collect();
    let decrements: Vec<_> = states.iter().map(|state| Numeric(state.counter.decrements())).collect();
    let (lowest, highest): (Vec<i64>, Vec<i64>) = states.iter().map(|state| state.counter.extremes()).unzip();
    let created: Vec<SystemTime> = states.iter().map(|state| timestamp(state.counter.created)).collect();
    let updated: Vec<SystemTime> = states.iter().map(|state| timestamp(state.counter.updated)).collect();
    let expires: Vec<Option<SystemTime>> = states.iter().map(|state| state.expires_at.map(timestamp)).collect();
    connection
        .execute(
            PUT_COUNTERS,
            &[
                &partition,
                &keys,
                &names,
                &values,
                &increments,
                &decrements,
                &lowest,
                &highest,
                &created,
                &updated,
                &expires,
                &records,
            ],
        )
        .await?;
    Ok(())
}

const PUT_REQUESTS: &str = "INSERT INTO idempotent_requests (partition, id, record, expires_at) \
    SELECT $1, * FROM unnest($2::bytea[], $3::bytea[], $4::timestamptz[]) \
    ON CONFLICT (partition, id) DO UPDATE SET record = excluded.record, expires_at = excluded.expires_at";

async fn put_requests(connection: &Connection, partition: i32, requests: &[(&[u8], &[u8])]) -> Result<(), PgError> {
    let first = |(id, value): &(&[u8], &[u8])| {
        record::read_request(value).ok_or_else(|| PgError::malformed(&[record::REQUEST_PREFIX, *id].concat()))
    };
    let firsts = requests.iter().map(first).collect::<Result<Vec<_>, _>>()?;
    let (ids, records): (Vec<_>, Vec<_>) = requests.iter().copied().unzip();
    let expires: Vec<SystemTime> = firsts.iter().map(|first| timestamp(expiry(first))).collect();
    connection.execute(PUT_REQUESTS, &[&partition, &ids, &records, &expires]).await?;
    Ok(())
}

/// The first time at which [`FirstOutcome::is_expired`].
fn expiry(first: &FirstOutcome) -> Millis {
    let generations = first.at.0 / GENERATION_MS + IDEMPOTENCY_WINDOW_MS / GENERATION_MS + 1;
    Millis(generations.saturating_mul(GENERATION_MS))
}

const PUT_LEDGER: &str = "INSERT INTO counter_ledger (partition, key, seq, at, kind, actor, reason, before, after, \
        previous, hash, record) \
    SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], \
        $8::bigint[], $9::bigint[], $10::bytea[], $11::bytea[], $12::bytea[]) \
    ON CONFLICT (key, seq) DO UPDATE SET partition = excluded.partition, at = excluded.at, kind = excluded.kind, \
        actor = excluded.actor, reason = excluded.reason, before = excluded.before, after = excluded.after, \
        previous = excluded.previous, hash = excluded.hash, record = excluded.record";

async fn put_ledger(connection: &Connection, partition: i32, rows: &[(&[u8], u64, &[u8])]) -> Result<(), PgError> {
    let entries = rows.iter().map(|(key, seq, value)| entry(key, *seq, value)).collect::<Result<Vec<_>, _>>()?;
    let keys: Vec<&[u8]> = rows.iter().map(|(key, _, _)| *key).collect();
    let seqs: Vec<i64> = rows.iter().map(|(_, seq, _)| bigint(*seq)).collect();
    let at: Vec<SystemTime> = entries.iter().map(|entry| timestamp(entry.at)).collect();
    let kinds: Vec<&str> = entries.iter().map(|entry| kind(entry.kind)).collect();
    let actors: Vec<_> = entries.iter().map(|entry| text(entry.actor.as_bytes())).collect();
    let reasons: Vec<_> = entries.iter().map(|entry| text(entry.reason.as_bytes())).collect();
    let (before, after): (Vec<i64>, Vec<i64>) = entries.iter().map(|entry| (entry.before, entry.after)).unzip();
    let previous: Vec<&[u8]> = entries.iter().map(|entry| &entry.previous[..]).collect();
    let hashes: Vec<&[u8]> = entries.iter().map(|entry| &entry.hash[..]).collect();
    let records: Vec<&[u8]> = rows.iter().map(|(_, _, value)| *value).collect();
    connection
        .execute(
            PUT_LEDGER,
            &[&partition, &keys, &seqs, &at, &kinds, &actors, &reasons, &before, &after, &previous, &hashes, &records],
        )
        .await?;
    Ok(())
}

async fn remove_ledger(connection: &Connection, removed: &[(&[u8], u64)]) -> Result<(), PgError> {
    const SQL: &str =
        "DELETE FROM counter_ledger WHERE (key, seq) IN (SELECT * FROM unnest($1::bytea[], $2::bigint[]))";
    let (keys, seqs): (Vec<&[u8]>, Vec<i64>) = removed.iter().map(|(key, seq)| (*key, bigint(*seq))).unzip();
    connection.execute(SQL, &[&keys, &seqs]).await?;
    Ok(())
}

const PUT_OTHERS: &str = "INSERT INTO records (partition, key, value) \
    SELECT $1, * FROM unnest($2::bytea[], $3::bytea[]) \
    ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value";

async fn put_others(connection: &Connection, partition: i32, others: &[(&[u8], &[u8])]) -> Result<(), PgError> {
    let (keys, values): (Vec<_>, Vec<_>) = others.iter().copied().unzip();
    connection.execute(PUT_OTHERS, &[&partition, &keys, &values]).await?;
    Ok(())
}

const PUT_SHARDS: &str = "INSERT INTO counter_shards (key, shard, value, updated_at) \
    SELECT *, now() FROM unnest($1::bytea[], $2::int[], $3::bigint[])";

/// Shows the sums of sub-counters to people. Tally reads the records instead.
async fn put_shards(connection: &Connection, summed: &[(&[u8], &[u8])]) -> Result<(), PgError> {
    let counters: Vec<&[u8]> = summed.iter().map(|(key, _)| *key).collect();
    let (mut keys, mut shards, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (key, value) in summed {
        let record = record::read_summed(value).ok_or_else(|| PgError::malformed(key))?;
        for shard in record.reports().iter().filter(|shard| !shard.is_closed) {
            keys.push(*key);
            shards.push(int(shard.shard));
            values.push(bigint(shard.increments).saturating_sub(bigint(shard.decrements)));
        }
    }
    connection.execute("DELETE FROM counter_shards WHERE key = ANY($1)", &[&counters]).await?;
    connection.execute(PUT_SHARDS, &[&keys, &shards, &values]).await?;
    Ok(())
}

/// The ledger entry with this key and number.
pub(super) fn entry(key: &[u8], seq: u64, value: &[u8]) -> Result<LedgerEntry, PgError> {
    record::read_ledger(value).ok_or_else(|| match columns::key(key) {
        Ok(key) => PgError::malformed(&record::ledger_key(key.as_ref(), seq)),
        Err(error) => error,
    })
}

fn meta(value: &[u8]) -> Result<Meta, PgError> {
    // Version 1 lacks a number, and was never written to a cluster.
    let meta = record::read_meta(value, || Err(PgError::malformed(record::META_KEY)))?;
    meta.ok_or_else(|| PgError::malformed(record::META_KEY))
}

fn kind(kind: CorrectionKind) -> &'static str {
    match kind {
        CorrectionKind::Set => "set",
        CorrectionKind::Reset => "reset",
        CorrectionKind::Adjust => "adjust",
        CorrectionKind::Delete => "delete",
    }
}
