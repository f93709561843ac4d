//! What is lost, and what is reported, when the server, the disk or the network fails.

use tally_cluster::postgres::{Claim, PersistError, Pg, PgError, PgSettings};
use tally_core::record::{self, Records};
use tally_core::time::{Millis, Position};
use tally_services::{Postgres, PostgresSettings};

use super::proxy::{Cut, Proxy};
use super::{
    SERVER, all_families, counter, fetchable, key, keys_of, new_database, new_store, open, request, sql, write,
};

#[tokio::test]
async fn a_claim_waits_for_a_persist_in_progress_and_a_dropped_persist_lets_it_go() {
    let pg = new_store().await;
    let claim = pg.claim(2, "a").await.unwrap();
    let mut persist = pg.persist(2, claim.epoch, Position(0)).await.unwrap();
    persist.write(&all_families()).await.unwrap();
    let other = pg.clone();
    let successor = tokio::spawn(async move { other.claim(2, "b").await });
    // Reads continue meanwhile, and see nothing of it.
    for _ in 0..20 {
        assert_eq!(pg.fetch(2, &keys_of(&fetchable(&all_families()))).await.unwrap().records, Vec::new());
    }
    assert!(!successor.is_finished());
    drop(persist);
    assert_eq!(
        successor.await.unwrap(),
        Ok(Claim { epoch: 2, position: Position(0), meta: None, summed_at: Millis(0), clock_reset: Position(0) })
    );
    assert_eq!(pg.count().await, Ok(0));
    write(&pg, 2, 0, 1, &all_families()).await.unwrap();
}

#[tokio::test]
async fn a_server_killed_before_the_commit_leaves_everything_as_before() {
    let server = Postgres::start();
    let pg = open(&server.url());
    pg.migrate().await.unwrap();
    write(&pg, 1, 0, 10, &all_families()).await.unwrap();
    let before = pg.fetch(1, &keys_of(&fetchable(&all_families()))).await.unwrap();

    let mut persist = pg.persist(1, 1, Position(10)).await.unwrap();
    let mut changed = Records::default();
    changed.remove_counter(&key("likes:1"));
    changed.put_counter(b"likes:2", &counter(1));
    persist.write(&changed).await.unwrap();
    server.kill();
    let lost = persist.commit(Position(20)).await.unwrap_err();
    assert!(matches!(lost, PersistError::Failed(PgError::Unreachable { .. })), "{lost}");
    let down = pg.count().await.unwrap_err();
    assert!(matches!(&down, PgError::Unreachable { .. }) && down.is_transient(), "{down}");
    assert!(matches!(pg.persist(1, 1, Position(10)).await, Err(PersistError::Failed(PgError::Unreachable { .. }))));

    server.restart();
    assert_eq!(pg.fetch(1, &keys_of(&fetchable(&all_families()))).await.unwrap(), before);
    write(&pg, 1, 10, 20, &changed).await.unwrap();
    assert_eq!(pg.fetch(1, &keys_of(&before.records)).await.unwrap().position, Position(20));
}

#[tokio::test]
async fn errors_of_connecting_say_what_is_wrong_and_hide_the_password() {
    let url = new_database();
    let error = async |url: &str| open(url).count().await.unwrap_err();
    let wrong = error(&url.replace("secret", "hunter2")).await;
    assert!(matches!(wrong, PgError::Credentials { .. }) && !wrong.is_transient(), "{wrong}");
    let missing = error(&url.replace(":secret", "")).await;
    assert!(matches!(missing, PgError::Credentials { .. }), "{missing}");
    let nowhere = error("postgres://tally:hunter2@127.0.0.1:1/postgres").await;
    assert!(matches!(&nowhere, PgError::Unreachable { address, .. } if address == "127.0.0.1:1"), "{nowhere}");
    let absent = error(&format!("{url}_absent")).await;
    assert!(matches!(absent, PgError::NoDatabase { .. }), "{absent}");
    let invalid = Pg::new(&PgSettings::new("postgres://tally:hunter2@host:port/x")).err().unwrap();
    assert!(matches!(invalid, PgError::Settings(_)), "{invalid}");
    let settings = PgSettings::new("postgres://tally:hunter2@host/x");
    for text in [wrong, missing, nowhere, absent, invalid].map(|error| error.to_string()) {
        assert!(!text.contains("hunter2") && !text.contains("secret"), "{text}");
    }
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_full_disk_is_reported_and_nothing_is_half_written() {
    let server = Postgres::start_with(&PostgresSettings { disk_mb: Some(128), ..PostgresSettings::default() });
    let pg = open(&server.url());
    pg.migrate().await.unwrap();
    write(&pg, 0, 0, 1, &all_families()).await.unwrap();
    let before = (pg.partitions().await.unwrap(), pg.list(b"", None, 100).await.unwrap());
    let mut records = Records::default();
    (0..20_000).for_each(|number| records.put_counter(format!("likes:{number:0500}").as_bytes(), &counter(number)));
    server.fill_disk();
    let full = write(&pg, 0, 1, 2, &records).await.unwrap_err();
    assert!(matches!(&full, PersistError::Failed(error @ PgError::DiskFull(_)) if error.is_transient()), "{full}");
    assert_eq!((pg.partitions().await.unwrap(), pg.list(b"", None, 100).await.unwrap()), before, "reads still work");
    server.free_disk();
    write(&pg, 0, 1, 2, &records).await.unwrap();
    assert_eq!(pg.partitions().await.unwrap()[0].position, Position(2));
}

#[tokio::test]
async fn after_a_lost_commit_persisting_again_tells_whether_it_succeeded() {
    let url = new_database();
    let proxy = Proxy::start(SERVER.port()).await;
    let pg = open(&url.replace(&format!(":{}/", SERVER.port()), &format!(":{}/", proxy.port())));
    open(&url).migrate().await.unwrap();
    write(&pg, 0, 0, 1, &all_families()).await.unwrap();

    proxy.set(Cut::BeforeCommit);
    let lost = write(&pg, 0, 1, 2, &all_families()).await.unwrap_err();
    assert!(matches!(lost, PersistError::OutcomeUnknown(PgError::Unreachable { .. })), "{lost}");
    proxy.set(Cut::AfterCommit);
    // It could begin, so the persist before it was not committed.
    let lost = write(&pg, 0, 1, 2, &all_families()).await.unwrap_err();
    assert!(matches!(lost, PersistError::OutcomeUnknown(PgError::Unreachable { .. })), "{lost}");
    proxy.set(Cut::Never);
    let again = pg.persist(0, 1, Position(1)).await.err();
    assert_eq!(again, Some(PersistError::Superseded { stored: Position(2), epoch: 1 }), "own epoch: it was committed");
    write(&pg, 0, 2, 3, &all_families()).await.unwrap();
}

#[tokio::test]
async fn a_persist_whose_session_was_ended_cannot_commit() {
    let url = new_database();
    let pg = open(&url);
    pg.migrate().await.unwrap();
    pg.create_partitions(1).await.unwrap();
    let claim = pg.claim(0, "paused").await.unwrap();
    let mut persist = pg.persist(0, claim.epoch, Position(0)).await.unwrap();
    persist.write(&all_families()).await.unwrap();
    // As PostgreSQL does once it has waited too long for the worker.
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
        WHERE datname = current_database() AND state = 'idle in transaction'";
    sql(&url).await.batch_execute(end).await.unwrap();
    assert_eq!(pg.claim(0, "successor").await.unwrap().epoch, 2);
    let refused = persist.commit(Position(1)).await.unwrap_err();
    assert!(matches!(refused, PersistError::Failed(PgError::Unreachable { .. })), "{refused}");
    assert_eq!(pg.count().await, Ok(0));
}

/// A hot standby may lag behind, even if a URL with several hosts names it.
#[tokio::test]
async fn a_server_that_takes_no_writes_is_not_read_from_either() {
    let url = new_database();
    open(&url).migrate().await.unwrap();
    assert_eq!(open(&url).count().await, Ok(0));
    let (_, name) = url.rsplit_once('/').unwrap();
    SERVER.psql(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).unwrap();
    let refused = open(&url).count().await.unwrap_err();
    assert!(matches!(&refused, PgError::Unreachable { .. }) && refused.is_transient(), "{refused}");
    assert!(refused.to_string().contains("does not allow writes"), "{refused}");
}

#[tokio::test]
async fn after_a_failed_write_nothing_can_be_committed() {
    let pg = new_store().await;
    let claim = pg.claim(0, "test").await.unwrap();
    let mut persist = pg.persist(0, claim.epoch, Position(0)).await.unwrap();
    persist.write(&all_families()).await.unwrap();
    let (id, damaged) = (request(1, super::NOW).0, [0; 3]);
    let refused = persist.write_requests([(&id[..], &damaged[..])]).await.unwrap_err();
    assert!(matches!(&refused, PersistError::Failed(PgError::Malformed { key }) if key.starts_with("i\\x01")));
    persist.write_requests([]).await.unwrap();
    assert_eq!(persist.commit(Position(1)).await, Err(PersistError::Incomplete));
    let fetched = pg.fetch(0, &keys_of(&fetchable(&all_families()))).await.unwrap();
    assert_eq!((fetched.position, fetched.records), (Position(0), Vec::new()));
    assert!(record::read_request(&damaged).is_none());
}
