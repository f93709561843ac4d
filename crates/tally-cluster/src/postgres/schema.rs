//! The tables and their versions.

use super::Pg;
use super::connection::Connection;
use super::error::{PgError, column};
use crate::rpc::ClusterId;

/// The migration from each version of the tables to the next, beginning with none. Released ones never change.
const MIGRATIONS: [&str; 4] = [
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
];

/// The version of the tables that this program needs.
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// The advisory lock that migrations hold: "tally" in ASCII.
const MIGRATION_LOCK: i64 = 0x74_61_6c_6c_79;

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS tally_schema \
    (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())";

/// What [`Pg::migrate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The version before; 0 if there were no tables.
    pub from: u32,
    /// The version now.
    pub to: u32,
}

impl Pg {
    /// Creates the tables, or brings them up to date. Does nothing if they already are. Safe to run concurrently.
    pub async fn migrate(&self) -> Result<Migration, PgError> {
        // A connection of its own: if anything fails, dropping it rolls the transaction back.
        let connection = self.connector.connect().await?;
        check_encoding(&connection).await?;
        connection.run("BEGIN").await?;
        connection.query("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        connection.run(VERSIONS).await?;
        let from = stored_version(&connection).await?;
        if from > SCHEMA_VERSION {
            return Err(PgError::SchemaNewer { found: from, known: SCHEMA_VERSION });
        }
        for (version, sql) in (1..).zip(MIGRATIONS).skip(from as usize) {
            connection.run(sql).await?;
            connection.execute("INSERT INTO tally_schema (version) VALUES ($1)", &[&version]).await?;
        }
        connection.run("COMMIT").await?;
        Ok(Migration { from, to: SCHEMA_VERSION })
    }

    /// Checks the encoding of the database, and that the tables have the version of this program.
    pub async fn check_schema(&self) -> Result<(), PgError> {
        let connection = self.reading().await?;
        check_encoding(&connection).await?;
        let found = stored_version(&connection).await?;
        match found {
            0 => Err(PgError::SchemaAbsent),
            SCHEMA_VERSION => Ok(()),
            newer if newer > SCHEMA_VERSION => Err(PgError::SchemaNewer { found, known: SCHEMA_VERSION }),
            _ => Err(PgError::SchemaOlder { found, needed: SCHEMA_VERSION }),
        }
    }

    /// Checks the tables, and returns the identity of the cluster that they belong to and whose journal is in this topic.
    pub async fn identify(&self, topic: &str) -> Result<ClusterId, PgError> {
        self.check_schema().await?;
        let rows = self.reading().await?.query("SELECT id::text FROM cluster", &[]).await?;
        let row = rows.first().ok_or_else(|| PgError::Unexpected("no row in the table `cluster`".to_owned()))?;
        let id: String = column(row, 0)?;
        Ok(ClusterId::new(&id, topic))
    }
}

/// Refuses a database that would refuse some keys when they are persisted, long after they were acknowledged.
async fn check_encoding(connection: &Connection) -> Result<(), PgError> {
    let rows = connection.query("SELECT current_setting('server_encoding')", &[]).await?;
    let encoding: String = rows.first().map_or(Ok(String::new()), |row| column(row, 0))?;
    // SQL_ASCII takes every byte as it is.
    if ["UTF8", "SQL_ASCII"].contains(&encoding.as_str()) { Ok(()) } else { Err(PgError::Encoding(encoding)) }
}

/// The version in the database; 0 if none was applied.
async fn stored_version(connection: &Connection) -> Result<u32, PgError> {
    let rows = connection.query("SELECT coalesce(max(version), 0) FROM tally_schema", &[]).await?;
    let version: i32 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    u32::try_from(version).map_err(|_| PgError::Unexpected(format!("a schema version {version}")))
}
