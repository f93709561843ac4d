//! The store in a real PostgreSQL: one server for the tests of this file, a database for each.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use tally_cluster::postgres::{Claim, PersistError, PersistSink, Pg, PgError, PgSettings};
use tally_core::batch::Events;
use tally_core::counter::{Counter, CounterState};
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::{CHAIN_START, ChainHead, CorrectionKind, LedgerEntry};
use tally_core::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS, KEY_BYTES_MAX};
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcome, Outcomes};
use tally_core::partition::Partition;
use tally_core::record::{self, Meta, Records};
use tally_core::request_ids::FirstOutcome;
use tally_core::time::{Millis, Position};
use tally_engine::host::{CaptureDriver, CaptureProgress, Hosted, ResidentPartition};
use tally_services::Postgres;
use tokio::runtime::Handle;

mod faults;
mod proxy;
mod schema;

static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);
static DATABASES: AtomicU32 = AtomicU32::new(0);

const PARTITIONS: u32 = 8;
const NOW: Millis = Millis(1_700_000_000_123);
const META: Meta = Meta { clock: NOW, counters: 2, expiring: 1 };

/// The URL of a new database.
fn new_database() -> String {
    new_database_with("")
}

fn new_database_with(options: &str) -> String {
    let name = format!("test_{}", DATABASES.fetch_add(1, Relaxed));
    SERVER.psql(&format!("CREATE DATABASE {name}{options}")).unwrap();
    SERVER.url().replace("/postgres", &format!("/{name}"))
}

fn open(url: &str) -> Pg {
    Pg::new(&PgSettings::new(url)).unwrap()
}

/// A store with its tables in a new database.
async fn new_store() -> Pg {
    let pg = open(&new_database());
    pg.migrate().await.unwrap();
    pg.create_partitions(PARTITIONS).await.unwrap();
    pg
}

/// A connection for SQL that Tally would not send.
async fn sql(url: &str) -> tokio_postgres::Client {
    let (client, io) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    client
}

fn key(bytes: impl AsRef<[u8]>) -> Key {
    Key::new(bytes).unwrap()
}

fn counter(value: i64) -> CounterState {
    let mut counter = Counter::new(NOW);
    counter.add(Millis(NOW.0 + 1), i128::from(value)).unwrap();
    CounterState { counter, expires_at: None }
}

fn expiring(value: i64, expires_at: Millis) -> CounterState {
    CounterState { expires_at: Some(expires_at), ..counter(value) }
}

fn ledger_entry(seq: u64, reason: &str) -> LedgerEntry {
    let (before, after) = (-5, i64::MAX);
    let (actor, reason) = ("alice".into(), reason.into());
    let (previous, hash) = (CHAIN_START, [seq as u8; 32]);
    LedgerEntry { seq, at: NOW, kind: CorrectionKind::Adjust, actor, reason, before, after, previous, hash }
}

fn request(id: u8, at: Millis) -> (Vec<u8>, Vec<u8>) {
    let outcome =
        Outcome { value: 7, applied: 1, exists: true, exact: true, duplicate: Some(false), refusal: None, at };
    let mut value = Vec::new();
    record::write_request(&FirstOutcome::new(99, at, &outcome), &mut value);
    (record::request_key(RequestId([id; 16])).to_vec(), value)
}

/// Records of all families.
fn all_families() -> Records {
    let mut records = Records::default();
    records.put_counter(b"likes:1", &counter(-3));
    records.put_counter(b"likes:2", &expiring(i64::MAX, Millis(NOW.0 + 60_000)));
    records.put_ledger(key("likes:1").as_ref(), &ledger_entry(1, "a recount"));
    records.put_head(key("likes:1").as_ref(), &ChainHead { seq: 1, hash: [1; 32] });
    records.put_meta(&META);
    records.sort();
    records
}

/// What a fetch of these records returns.
fn fetchable(records: &Records) -> Vec<(Vec<u8>, Vec<u8>)> {
    let stored = records.iter().filter(|(key, _)| !matches!(key[0], b'e' | b'm'));
    stored.map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())).collect()
}

fn keys_of(records: &[(Vec<u8>, Vec<u8>)]) -> MissingKeys {
    records.iter().map(|(key, _)| key).collect()
}

async fn write(pg: &Pg, partition: u32, from: u64, to: u64, records: &Records) -> Result<(), PersistError> {
    pg.create_partitions(PARTITIONS).await?;
    let row = pg.partitions().await?.into_iter().find(|row| row.partition == partition);
    let epoch = match row {
        Some(row) if row.epoch > 0 => row.epoch,
        _ => pg.claim(partition, "test").await?.epoch,
    };
    let mut persist = pg.persist(partition, epoch, Position(from)).await?;
    persist.write(records).await?;
    persist.commit(Position(to)).await
}

async fn write_counters(pg: &Pg, partition: u32, counters: &[(&[u8], CounterState)]) {
    let mut records = Records::default();
    counters.iter().for_each(|(key, state)| records.put_counter(key, state));
    records.put_meta(&Meta { clock: NOW, counters: counters.len() as u64, expiring: 0 });
    records.sort();
    write(pg, partition, 0, 1, &records).await.unwrap();
}

#[tokio::test]
async fn the_time_up_to_which_sub_counters_are_summed_is_stored_with_the_position_and_never_goes_back() {
    let pg = new_store().await;
    let mut from = Position(0);
    for (to, summed_at, stored) in [(10, Some(500), 500), (20, None, 500), (30, Some(400), 500), (40, Some(600), 600)] {
        let claim = pg.claim(1, "a").await.unwrap();
        let mut persist = pg.persist(1, claim.epoch, from).await.unwrap();
        persist.write(&all_families()).await.unwrap();
        summed_at.into_iter().for_each(|before| persist.note_summed(Millis(before)));
        from = Position(to);
        persist.commit(from).await.unwrap();
        let row = pg.partitions().await.unwrap().remove(1);
        assert_eq!((row.position, row.summed_at), (from, Millis(stored)));
        assert_eq!(pg.claim(1, "a").await.unwrap().summed_at, Millis(stored));
        let listed = pg.list(b"", None, 1).await.unwrap();
        assert_eq!(listed[0].summed_at, Millis(stored));
    }
}

#[tokio::test]
async fn a_reset_of_the_clock_is_stored_with_the_position_and_ends_what_was_known_by_the_earlier_time() {
    let pg = new_store().await;
    let mut from = Position(0);
    for (to, reset, summed_at, stored) in [(10, 0, 500, 500), (20, 15, 300, 300), (30, 15, 200, 300), (40, 0, 400, 400)]
    {
        let claim = pg.claim(1, "a").await.unwrap();
        let mut persist = pg.persist(1, claim.epoch, from).await.unwrap();
        persist.note_summed(Millis(summed_at));
        persist.note_clock_reset(Position(reset));
        from = Position(to);
        persist.commit(from).await.unwrap();
        let claim = pg.claim(1, "b").await.unwrap();
        assert_eq!(claim.summed_at, Millis(stored));
        assert_eq!(claim.clock_reset, Position(if to < 20 { 0 } else { 15 }), "it never goes back");
        assert_eq!(pg.partitions().await.unwrap()[1].claimed(), claim);
    }
}

#[tokio::test]
async fn each_claim_starts_a_new_epoch_at_the_stored_position() {
    let pg = new_store().await;
    assert_eq!(
        pg.claim(3, "a").await,
        Ok(Claim { epoch: 1, position: Position(0), meta: None, summed_at: Millis(0), clock_reset: Position(0) })
    );
    write(&pg, 3, 0, 17, &all_families()).await.unwrap();
    assert_eq!(
        pg.claim(3, "b").await,
        Ok(Claim {
            epoch: 2,
            position: Position(17),
            meta: Some(META),
            summed_at: Millis(0),
            clock_reset: Position(0)
        })
    );
    assert_eq!(pg.claim(0, "b\0c").await.map(|claim| claim.epoch), Ok(1));
    let rows = pg.partitions().await.unwrap();
    let owners: Vec<_> = rows.iter().map(|row| (row.partition, row.epoch, row.owner.as_deref())).collect();
    let unowned = |partition| (partition, 0, None);
    let owned = [
        (0, 1, Some("b\\x00c")),
        unowned(1),
        unowned(2),
        (3, 2, Some("b")),
        unowned(4),
        unowned(5),
        unowned(6),
        unowned(7),
    ];
    assert_eq!(owners, owned);
    assert!(rows[3].persisted_at.is_some() && rows[3].owned_at >= rows[3].persisted_at);
    assert_eq!((rows[0].persisted_at, rows[0].meta), (None, None));
}

/// The number of rows is the number of partitions, so one more would move counters.
#[tokio::test]
async fn a_partition_that_was_not_created_cannot_be_claimed() {
    let pg = new_store().await;
    assert_eq!(pg.claim(PARTITIONS, "a").await, Err(PgError::NoPartition(PARTITIONS)));
    assert!(!PgError::NoPartition(PARTITIONS).is_transient());
    assert_eq!(pg.partitions().await.unwrap().len(), PARTITIONS as usize);
}

#[tokio::test]
async fn what_was_persisted_is_fetched_again_together_with_its_position() {
    let pg = new_store().await;
    let records = all_families();
    let claim = pg.claim(5, "test").await.unwrap();
    let mut persist = pg.persist(5, claim.epoch, Position(0)).await.unwrap();
    persist.write(&records).await.unwrap();
    let requests = [request(1, NOW), request(2, NOW)];
    persist.write_requests(requests.iter().map(|(key, value)| (&key[..], &value[..]))).await.unwrap();
    persist.commit(Position(120)).await.unwrap();

    let mut stored = fetchable(&records);
    stored.extend(requests);
    stored.sort();
    let twice: Vec<_> = stored.iter().rev().chain(&stored).cloned().collect();
    let mut wanted = keys_of(&twice);
    [&b"cunknown"[..], b"", b"m", b"i12", b"l", b"zz"].iter().for_each(|key| wanted.push(key));
    let fetched = pg.fetch(5, &wanted).await.unwrap();
    assert_eq!(fetched.position, Position(120));
    assert_eq!(fetched.records, stored, "in key order, each once");
    assert_eq!(pg.fetch(6, &MissingKeys::default()).await.unwrap().position, Position(0), "never claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_beside_a_persist_sees_either_all_of_it_or_nothing() {
    const PERSISTS: u64 = 100;
    let (pg, keys) = (new_store().await, [key("a"), key("b")]);
    let records_at = |position: u64| {
        let mut records = Records::default();
        keys.iter().for_each(|key| records.put_counter(key.as_bytes(), &counter(position as i64)));
        records
    };
    write(&pg, 0, 0, 1, &records_at(1)).await.unwrap();
    let (reader, wanted) = (pg.clone(), keys_of(&fetchable(&records_at(1))));
    let reading = tokio::spawn(async move {
        loop {
            let fetched = reader.fetch(0, &wanted).await.unwrap();
            let values = fetched.records.iter().map(|(_, value)| record::read_counter(value).unwrap().counter.value());
            assert_eq!(values.collect::<Vec<_>>(), [fetched.position.0 as i64; 2]);
            if fetched.position == Position(PERSISTS) {
                return;
            }
        }
    });
    for position in 1..PERSISTS {
        write(&pg, 0, position, position + 1, &records_at(position + 1)).await.unwrap();
    }
    reading.await.unwrap();
}

#[tokio::test]
async fn tombstones_delete_and_later_values_replace() {
    let pg = new_store().await;
    let records = all_families();
    write(&pg, 1, 0, 1, &records).await.unwrap();
    let mut next = Records::default();
    next.remove_counter(&key("likes:1"));
    next.remove_expiry(Millis(NOW.0 + 60_000), &key("likes:2"));
    next.put_counter(b"likes:2", &counter(12));
    next.put_head(key("likes:1").as_ref(), &ChainHead { seq: 2, hash: [2; 32] });
    next.sort();
    write(&pg, 1, 1, 2, &next).await.unwrap();
    let fetched = pg.fetch(1, &keys_of(&fetchable(&records))).await.unwrap();
    let found: BTreeMap<_, _> = fetched.records.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    assert_eq!(fetched.position, Position(2));
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        [&b"clikes:2"[..], b"hlikes:1", &record::ledger_key(key("likes:1").as_ref(), 1)]
    );
    assert_eq!(record::read_counter(found[&b"clikes:2"[..]]), Some(counter(12)));
    assert_eq!(record::read_head(found[&b"hlikes:1"[..]]).map(|head| head.seq), Some(2));
    assert_eq!(pg.expired(1, Millis(u64::MAX), None, 10).await, Ok(Vec::new()), "it does not expire any more");
    assert_eq!(pg.claim(1, "next").await.unwrap().meta, Some(META), "without new metadata, the old stays");
}

#[tokio::test]
async fn columns_show_people_what_the_records_say() {
    let url = new_database();
    let pg = open(&url);
    pg.migrate().await.unwrap();
    write(&pg, 4, 0, 1, &all_families()).await.unwrap();
    let select = "SELECT name, partition, value, increments, decrements, min, max, \
        extract(epoch FROM created_at) || ' ' || extract(epoch FROM updated_at - created_at), \
        extract(epoch FROM expires_at - created_at) FROM counters WHERE key = ";
    let shown = async |sql_text: String| {
        let rows = sql(&url).await.simple_query(&sql_text).await.unwrap();
        let row = rows.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.unwrap();
        (0..row.len()).map(|index| row.get(index).unwrap_or("-").to_owned()).collect::<Vec<_>>().join("|")
    };
    let times = "1700000000.123000 0.001000";
    assert_eq!(shown(format!("{select}'likes:1'")).await, format!("likes:1|4|-3|0|3|-3|0|{times}|-"));
    let max = i64::MAX;
    let expected = format!("likes:2|4|{max}|{max}|0|0|{max}|{times}|60.000000");
    assert_eq!(shown(format!("{select}'likes:2'")).await, expected);
    let ledger = "SELECT seq, kind, actor, reason, before, after FROM counter_ledger WHERE key = 'likes:1'";
    assert_eq!(shown(ledger.into()).await, format!("1|adjust|alice|a recount|-5|{max}"));
}

#[tokio::test]
async fn a_stale_position_or_an_old_epoch_is_refused_and_changes_nothing() {
    let pg = new_store().await;
    write(&pg, 2, 0, 10, &all_families()).await.unwrap();
    let rows = pg.partitions().await.unwrap();
    let refused = |stored, epoch| Some(PersistError::Superseded { stored: Position(stored), epoch });
    assert_eq!(pg.persist(2, 1, Position(9)).await.err(), refused(10, 1));
    assert_eq!(pg.persist(2, 1, Position(11)).await.err(), refused(10, 1));
    assert_eq!(pg.persist(2, 0, Position(10)).await.err(), refused(10, 1));
    assert_eq!(pg.persist(9, 1, Position(0)).await.err(), refused(0, 0), "never claimed");
    assert_eq!(pg.partitions().await.unwrap(), rows);
    pg.claim(2, "successor").await.unwrap();
    assert_eq!(pg.persist(2, 1, Position(10)).await.err(), refused(10, 2));
    drop(pg.persist(2, 2, Position(10)).await.unwrap());
}

#[tokio::test]
async fn keys_and_texts_may_have_any_bytes() {
    let url = new_database();
    let pg = open(&url);
    pg.migrate().await.unwrap();
    let keys = [&b"\0"[..], b"a\0b", b"caf\xc3\xa9", b"caf\xc3", &[0xff; KEY_BYTES_MAX], b"'; DROP TABLE counters; --"];
    let mut records = Records::default();
    for bytes in keys {
        records.put_counter(bytes, &expiring(1, NOW));
        records.put_head(key(bytes).as_ref(), &ChainHead::default());
        records.put_ledger(key(bytes).as_ref(), &ledger_entry(1, "NUL \0 and all"));
    }
    records.put_meta(&META);
    records.sort();
    write(&pg, 0, 0, 1, &records).await.unwrap();
    let stored = fetchable(&records);
    assert_eq!(pg.fetch(0, &keys_of(&stored)).await.unwrap().records, stored);
    let entry = pg.ledger(key(keys[1]).as_ref(), 0, 10).await.unwrap();
    assert_eq!(entry, [ledger_entry(1, "NUL \0 and all")]);
    assert_eq!(pg.list(b"", None, 10).await.unwrap().len(), keys.len());
    assert_eq!(pg.expired(0, NOW, None, 10).await.unwrap().len(), keys.len());
    let rows = sql(&url).await.query("SELECT name FROM counters WHERE key LIKE 'caf%' OR key LIKE 'a%'", &[]).await;
    let mut names: Vec<String> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    names.sort();
    assert_eq!(names, ["a\\x00b", "caf\\xc3", "caf\u{e9}"]);
}

#[tokio::test]
async fn counters_of_all_partitions_are_listed_in_key_order() {
    let pg = new_store().await;
    write_counters(&pg, 0, &[(b"a", counter(1)), (b"likes:3", counter(3)), (b"likes:\xff\xff", counter(5))]).await;
    write_counters(&pg, 7, &[(b"likes:1", counter(2)), (b"likes", counter(4)), (b"likes;", counter(6))]).await;
    let listed = async |prefix: &[u8], after: Option<&[u8]>, limit| {
        let after = after.map(key);
        let listed = pg.list(prefix, after.as_ref(), limit).await.unwrap();
        assert!(listed.iter().all(|counter| counter.clock == NOW));
        listed.into_iter().map(|counter| (counter.state.counter.value(), counter.partition)).collect::<Vec<_>>()
    };
    assert_eq!(listed(b"", None, 10).await, [(1, 0), (4, 7), (2, 7), (3, 0), (5, 0), (6, 7)]);
    assert_eq!(listed(b"likes:", None, 10).await, [(2, 7), (3, 0), (5, 0)]);
    assert_eq!(listed(b"likes:", None, 2).await, [(2, 7), (3, 0)]);
    assert_eq!(listed(b"likes:", Some(b"likes:1"), 10).await, [(3, 0), (5, 0)]);
    assert_eq!(listed(b"likes:", Some(b"a"), 1).await, [(2, 7)]);
    assert_eq!(listed(b"likes:", Some(b"likes;"), 10).await, []);
    assert_eq!(listed(b"\xff", None, 10).await, []);
    assert_eq!(pg.count().await, Ok(6));
}

#[tokio::test]
async fn a_sample_is_a_counter_that_has_not_expired() {
    let pg = new_store().await;
    assert_eq!(pg.sample(7).await, Ok(None));
    write_counters(&pg, 0, &[(b"a", counter(1)), (b"gone", expiring(1, NOW)), (b"b", expiring(1, Millis(NOW.0 + 1)))])
        .await;
    let mut chosen = BTreeMap::new();
    for number in 0..40 {
        *chosen.entry(pg.sample(number).await.unwrap().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(chosen, BTreeMap::from([(key("a"), 20), (key("b"), 20)]));
    assert!(pg.sample(u64::MAX).await.unwrap().is_some());
}

#[tokio::test]
async fn expired_counters_are_found_by_time_and_partition() {
    let pg = new_store().await;
    let at = |time| expiring(1, Millis(time));
    write_counters(&pg, 0, &[(b"a", at(30)), (b"b", at(10)), (b"c", at(20)), (b"d", counter(1)), (b"z", at(u64::MAX))])
        .await;
    write_counters(&pg, 1, &[(b"other", at(5))]).await;
    let found = pg.expired(0, Millis(20), None, 10).await.unwrap();
    assert_eq!(found, [(Millis(10), key("b")), (Millis(20), key("c"))]);
    let first = pg.expired(0, Millis(100), None, 1).await.unwrap();
    assert_eq!(first, [(Millis(10), key("b"))]);
    assert_eq!(pg.expired(0, Millis(20), first.first(), 10).await.unwrap(), found[1..], "the page after it");
    assert_eq!(pg.expired(0, Millis(u64::MAX - 1), None, 10).await.unwrap().len(), 3);
    assert_eq!(pg.expired(0, Millis(u64::MAX), None, 10).await.unwrap().len(), 4);
}

/// Persists a batch of this time.
async fn store_clock(pg: &Pg, partition: u32, clock: Millis) {
    let claim = pg.claim(partition, "test").await.unwrap();
    let mut persist = pg.persist(partition, claim.epoch, claim.position).await.unwrap();
    let mut records = Records::default();
    records.put_meta(&Meta { clock, counters: 0, expiring: 0 });
    persist.write(&records).await.unwrap();
    persist.commit(Position(claim.position.0 + 1)).await.unwrap();
}

#[tokio::test]
async fn requests_are_forgotten_once_their_window_is_over() {
    let pg = new_store().await;
    let claim = pg.claim(0, "test").await.unwrap();
    let mut persist = pg.persist(0, claim.epoch, Position(0)).await.unwrap();
    let late = Millis(NOW.0 + GENERATION_MS);
    let requests = [request(1, NOW), request(2, late)];
    persist.write_requests(requests.iter().map(|(key, value)| (&key[..], &value[..]))).await.unwrap();
    persist.commit(Position(1)).await.unwrap();
    let expires = (NOW.0 / GENERATION_MS + 1) * GENERATION_MS + IDEMPOTENCY_WINDOW_MS;
    assert!(record::is_expired(&requests[0].0, &requests[0].1, Millis(expires)));
    assert!(!record::is_expired(&requests[0].0, &requests[0].1, Millis(expires - 1)));
    store_clock(&pg, 0, Millis(expires - 1)).await;
    store_clock(&pg, 1, Millis(expires)).await;
    assert_eq!(pg.forget_requests(0).await, Ok(0), "batches that are applied again may need them");
    assert_eq!(pg.forget_requests(1).await, Ok(0), "of another partition");
    store_clock(&pg, 0, Millis(expires)).await;
    assert_eq!(pg.forget_requests(0).await, Ok(1));
    assert_eq!(pg.fetch(0, &keys_of(&requests)).await.unwrap().records, requests[1..]);
}

#[tokio::test]
async fn any_number_of_requests_is_forgotten() {
    let pg = new_store().await;
    let claim = pg.claim(0, "test").await.unwrap();
    let mut persist = pg.persist(0, claim.epoch, Position(0)).await.unwrap();
    let value = request(0, NOW).1;
    let id = |number: u128| record::request_key(RequestId(number.to_be_bytes()));
    let ids: Vec<_> = (0..10_000).map(id).collect();
    persist.write_requests(ids.iter().map(|id| (&id[..], &value[..]))).await.unwrap();
    persist.commit(Position(1)).await.unwrap();
    assert_eq!(pg.forget_requests(0).await, Ok(0), "nothing is stored of the time");
    store_clock(&pg, 0, Millis(NOW.0 + 2 * IDEMPOTENCY_WINDOW_MS)).await;
    assert_eq!(pg.forget_requests(0).await, Ok(10_000));
}

#[tokio::test]
async fn ledger_entries_come_in_pages() {
    let pg = new_store().await;
    let mut records = Records::default();
    for seq in 1..=5 {
        records.put_ledger(key("a").as_ref(), &ledger_entry(seq, "why"));
        records.put_ledger(key("ab").as_ref(), &ledger_entry(seq, "another counter"));
    }
    records.sort();
    write(&pg, 0, 0, 1, &records).await.unwrap();
    let page = pg.ledger(key("a").as_ref(), 1, 2).await.unwrap();
    assert_eq!(page, [ledger_entry(2, "why"), ledger_entry(3, "why")]);
    assert_eq!(pg.ledger(key("a").as_ref(), 0, usize::MAX).await.unwrap().len(), 5);
    assert_eq!(pg.ledger(key("a").as_ref(), u64::MAX, 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_damaged_record_is_an_error_that_names_its_key() {
    let url = new_database();
    let pg = open(&url);
    pg.migrate().await.unwrap();
    write(&pg, 0, 0, 1, &all_families()).await.unwrap();
    let damage = "UPDATE counters SET record = 'x' WHERE key = 'likes:2'; UPDATE counter_ledger SET record = ''";
    sql(&url).await.batch_execute(damage).await.unwrap();
    let malformed = |key: &str| PgError::Malformed { key: key.into() };
    assert_eq!(pg.list(b"", None, 10).await, Err(malformed("clikes:2")));
    assert_eq!(pg.expired(0, Millis(u64::MAX), None, 10).await, Err(malformed("clikes:2")));
    let entry = pg.ledger(key("likes:1").as_ref(), 0, 10).await.unwrap_err();
    assert!(matches!(&entry, PgError::Malformed { key } if key.contains("likes:1")), "{entry}");
}

#[tokio::test]
async fn twenty_thousand_records_are_persisted_within_seconds() {
    let pg = new_store().await;
    let mut records = Records::default();
    (0..20_000).for_each(|number| records.put_counter(format!("likes:post:{number}").as_bytes(), &counter(number)));
    records.sort();
    let keys = keys_of(&fetchable(&records));
    for (round, what) in ["inserted", "updated"].into_iter().enumerate() {
        let begun = Instant::now();
        write(&pg, 0, round as u64, round as u64 + 1, &records).await.unwrap();
        let persisted = begun.elapsed();
        let fetched = pg.fetch(0, &keys).await.unwrap();
        println!("20,000 counters {what} in {persisted:?}, fetched in {:?}", begun.elapsed() - persisted);
        assert_eq!(fetched.records.len(), 20_000);
        assert!(persisted.as_secs() < 10, "{persisted:?}");
    }
}

/// Applies one batch with the records it needs, as a worker does.
async fn apply(worker: &ResidentPartition<()>, pg: &Pg, at: Millis, events: &Events) {
    let mut missing = MissingKeys::default();
    let applied = worker.lock().applied;
    worker.lock().partition.missing(events.batch(), applied, &mut missing);
    let fetched = pg.fetch(0, &missing).await.unwrap();
    let mut hosted = worker.lock();
    for (key, value) in &fetched.records {
        hosted.partition.restore(key, value).unwrap();
    }
    hosted.partition.apply(at, events.batch(), &mut Outcomes::default());
    hosted.applied = Position(applied.0 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_over_continues_from_what_was_captured() {
    const SEED: u64 = 7;
    let (pg, counted, set) = (new_store().await, key("counted"), key("set"));
    let mut events = Events::new(SEED);
    events.push(counted.as_ref(), Change::Add(5), Some(RequestId([9; 16])), None);
    let why = Correction::new("alice", "a recount").unwrap();
    let expiry = Expiry::At(Deadline::At(Millis(NOW.0 + 1)));
    events.push(set.as_ref(), Change::Set { value: 40, when: Condition::Always, expiry, why }, None, None);

    let claim = pg.claim(0, "first").await.unwrap();
    let hosted = Hosted { partition: Partition::new(SEED), applied: claim.position, journal: () };
    let first = ResidentPartition::new(hosted);
    apply(&first, &pg, NOW, &events).await;
    let persist = pg.persist(0, claim.epoch, claim.position).await.unwrap();
    let mut sink = PersistSink::new(persist, Handle::current());
    let capture = move || {
        let mut driver = CaptureDriver::begin(&mut first.lock().partition, 1 << 16);
        while driver.step(&first, &mut sink).unwrap() != CaptureProgress::Done {}
        sink.into_persist()
    };
    tokio::task::spawn_blocking(capture).await.unwrap().commit(Position(1)).await.unwrap();
    assert_eq!(pg.expired(0, Millis(NOW.0 + 1), None, 10).await.unwrap(), [(Millis(NOW.0 + 1), set.clone())]);

    let claim = pg.claim(0, "second").await.unwrap();
    assert_eq!((claim.epoch, claim.position), (2, Position(1)));
    let partition = Partition::with_store(SEED, claim.meta.unwrap(), 1 << 20);
    let second = ResidentPartition::new(Hosted { partition, applied: claim.position, journal: () });
    apply(&second, &pg, NOW, &events).await;
    let value = |key: KeyRef<'_>| second.lock().partition.state_of(key).unwrap().counter.value();
    assert_eq!(value(counted.as_ref()), 5, "the request id was fetched, so the add is a duplicate");
    assert_eq!(value(set.as_ref()), 40);
    assert_eq!(pg.ledger(set.as_ref(), 0, 10).await.unwrap().len(), 1);
    let unsaved: Vec<u64> = second.lock().partition.unsaved_ledger(&set).map(|entry| entry.seq).collect();
    assert_eq!(unsaved, [2], "the chain goes on where it ended");
}
