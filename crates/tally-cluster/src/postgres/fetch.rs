//! Fetching records that memory lacks, together with the stored position.

use std::collections::BTreeSet;

use tally_core::missing_keys::MissingKeys;
use tally_core::time::Position;

use super::Pg;
use super::columns::{bigint, int, position};
use super::error::{PgError, column};
use super::store_key::StoreKey;

/// Records as of a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedRecords {
    /// The stored position; 0 if the partition was never claimed.
    pub position: Position,
    /// Store keys and values, in key order, each key once. Keys without a record are left out.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One statement, because a statement sees one snapshot, and takes one round trip. It rebuilds the store keys. The row
/// of the position has none. `OFFSET 0` keeps the planner from scanning the whole ledger for a join.
const FETCH: &str = "\
    SELECT NULL::bytea, NULL::bytea, position FROM partitions WHERE partition = $1 \
    UNION ALL SELECT 'c'::bytea || key, record, NULL FROM counters WHERE key = ANY($2::bytea[]) \
    UNION ALL SELECT 'i'::bytea || id, record, NULL FROM idempotent_requests \
        WHERE partition = $1 AND id = ANY($3::bytea[]) \
    UNION ALL SELECT 'l'::bytea || int2send(length(key)::int2) || key || int8send(seq), record, NULL \
        FROM unnest($4::bytea[], $5::bigint[]) AS wanted (key, seq), LATERAL \
        (SELECT record FROM counter_ledger l WHERE l.key = wanted.key AND l.seq = wanted.seq OFFSET 0) AS found \
    UNION ALL SELECT key, value, NULL FROM records WHERE partition = $1 AND key = ANY($6::bytea[])";

impl Pg {
    /// The records with these store keys and the stored position, in one snapshot. Expiries and metadata have no
    /// record: see [`Pg::expired`] and [`Pg::claim`].
    pub async fn fetch(&self, partition: u32, keys: &MissingKeys) -> Result<FetchedRecords, PgError> {
        let (mut counters, mut requests, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ledger_keys, mut ledger_seqs) = (Vec::new(), Vec::new());
        for store_key in keys.iter().collect::<BTreeSet<_>>() {
            match StoreKey::of(store_key) {
                StoreKey::Counter(key) => counters.push(key.as_bytes()),
                StoreKey::Request(id) => requests.push(id),
                StoreKey::Ledger(key, seq) => {
                    ledger_keys.push(key.as_bytes());
                    ledger_seqs.push(bigint(seq));
                }
                StoreKey::Other(key) => others.push(key),
                StoreKey::Expiry | StoreKey::Meta => {}
            }
        }
        let connection = self.reading().await?;
        let partition = int(partition);
        let rows =
            connection.query(FETCH, &[&partition, &counters, &requests, &ledger_keys, &ledger_seqs, &others]).await?;
        let mut fetched = FetchedRecords::default();
        for row in &rows {
            match (column(row, 0)?, column(row, 1)?) {
                (Some(key), Some(value)) => fetched.records.push((key, value)),
                _ => fetched.position = position(column(row, 2)?)?,
            }
        }
        fetched.records.sort_unstable();
        Ok(fetched)
    }
}
