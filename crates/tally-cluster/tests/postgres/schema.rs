//! Creating the tables and bringing them up to date.

use tally_cluster::postgres::{Claim, Migration, PgError, SCHEMA_VERSION};
use tally_core::time::{Millis, Position};

use super::{new_database, new_database_with, open, sql};

#[tokio::test]
async fn migrating_twice_or_concurrently_creates_the_tables_once() {
    let url = new_database();
    let pg = open(&url);
    assert_eq!(pg.check_schema().await, Err(PgError::SchemaAbsent));
    assert_eq!(pg.partitions().await, Err(PgError::SchemaAbsent));
    let (one, other) = (open(&url), open(&url));
    let (a, b, c) = tokio::join!(pg.migrate(), one.migrate(), other.migrate());
    let mut from = [a.unwrap().from, b.unwrap().from, c.unwrap().from];
    from.sort_unstable();
    assert_eq!(from, [0, SCHEMA_VERSION, SCHEMA_VERSION]);
    assert_eq!(pg.migrate().await, Ok(Migration { from: SCHEMA_VERSION, to: SCHEMA_VERSION }));
    assert_eq!(pg.check_schema().await, Ok(()));
}

#[tokio::test]
async fn a_database_of_the_first_version_is_brought_up_to_date_with_its_content() {
    let url = new_database();
    let client = sql(&url).await;
    client.batch_execute(include_str!("../../src/postgres/schema/0001.sql")).await.unwrap();
    let tables = "CREATE TABLE tally_schema (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());
        INSERT INTO tally_schema VALUES (1);
        INSERT INTO partitions (partition, position, epoch) VALUES (0, 7, 3)";
    client.batch_execute(tables).await.unwrap();
    let pg = open(&url);
    let older = PgError::SchemaOlder { found: 1, needed: SCHEMA_VERSION };
    assert_eq!(pg.check_schema().await, Err(older.clone()));
    assert!(older.to_string().contains("`tally cluster init`"), "{older}");
    assert_eq!(pg.migrate().await, Ok(Migration { from: 1, to: SCHEMA_VERSION }));
    let claim = pg.claim(0, "a").await.unwrap();
    assert_eq!(
        claim,
        Claim { epoch: 4, position: Position(7), meta: None, summed_at: Millis(0), clock_reset: Position(0) }
    );
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_absent_one_asks_for_init() {
    let url = new_database();
    let pg = open(&url);
    pg.migrate().await.unwrap();
    let client = sql(&url).await;
    client.batch_execute("INSERT INTO tally_schema VALUES (1000)").await.unwrap();
    let newer = PgError::SchemaNewer { found: 1000, known: SCHEMA_VERSION };
    assert_eq!(pg.check_schema().await, Err(newer.clone()));
    assert_eq!(pg.migrate().await, Err(newer.clone()));
    assert!(newer.to_string().contains("1000") && newer.to_string().contains(&SCHEMA_VERSION.to_string()));
    client.batch_execute("DELETE FROM tally_schema").await.unwrap();
    let absent = pg.check_schema().await.unwrap_err();
    assert!(absent.to_string().contains("`tally cluster init`"), "{absent}");
}

#[tokio::test]
async fn a_database_with_a_table_of_another_program_is_left_alone() {
    let url = new_database();
    let client = sql(&url).await;
    client.batch_execute("CREATE TABLE records (song text)").await.unwrap();
    let pg = open(&url);
    let refused = pg.migrate().await.unwrap_err();
    assert!(matches!(&refused, PgError::NotEmpty(cause) if cause.contains("records")), "{refused}");
    assert_eq!(pg.check_schema().await, Err(PgError::SchemaAbsent));
    client.batch_execute("INSERT INTO records VALUES ('still here')").await.unwrap();
}

/// It would refuse a key with other characters when it is persisted, and its partition would wait for that forever.
#[tokio::test]
async fn a_database_that_cannot_hold_every_character_is_refused() {
    let url = new_database_with(" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let refused = open(&url).migrate().await.unwrap_err();
    assert_eq!(refused, PgError::Encoding("LATIN1".to_owned()));
    assert!(refused.to_string().contains("--encoding=UTF8"), "{refused}");
    assert_eq!(open(&url).check_schema().await, Err(refused));
    let bytes = new_database_with(" ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
    assert!(open(&bytes).migrate().await.is_ok());
}
