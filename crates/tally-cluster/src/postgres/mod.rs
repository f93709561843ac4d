//! The store: the state of each partition in PostgreSQL, at one position of its journal.
//!
//! The tables (`schema/`) are meant to be queried by people, too. Their `record` columns are in the encoding of
//! [`tally_core::record`] and are what Tally reads; the other columns are derived from them. A store key's family
//! decides its table:
//!
//! ```text
//! 'c' → counters                'l' → counter_ledger
//! 'i' → idempotent_requests     'm' → columns of partitions
//! 'e' → not stored: the index on counters.expires_at serves
//! 'h' and all others → records
//! ```
//!
//! A worker [claims](Pg::claim) a partition, [fetches](Pg::fetch) records that it lacks, and [persists](Pg::persist)
//! what has changed. A persist is one transaction. It holds the lock of the partition's row, and it is refused unless
//! epoch and position are those the worker knows.

mod claim;
mod columns;
mod connection;
mod error;
mod fetch;
mod limits;
mod persist;
mod read;
mod rows;
mod schema;
mod sink;
mod store_key;
mod tls;

use std::sync::Arc;

use tokio::sync::Mutex;

pub use claim::{Claim, PartitionRow};
use connection::{Connection, Connector, SharedConnection};
pub use error::{PersistError, PgError};
pub use fetch::FetchedRecords;
pub use persist::Persist;
pub use read::ListedCounter;
pub use schema::{Migration, SCHEMA_VERSION};
pub use sink::PersistSink;
pub use tls::PgCertificates;

/// How to reach PostgreSQL.
#[derive(Clone)]
pub struct PgSettings {
    /// `postgres://user:password@host:port/database`, or `key=value` pairs as for `psql`. `sslmode` decides about TLS.
    pub url: String,
    /// For TLS.
    pub certificates: PgCertificates,
    /// What `pg_stat_activity` shows as `application_name`, such as the name of the node.
    pub application: String,
}

impl PgSettings {
    /// With this URL and no certificates, shown as `tally`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> PgSettings {
        PgSettings { url: url.into(), certificates: PgCertificates::default(), application: "tally".into() }
    }
}

/// Leaves out the URL, which has a password.
impl std::fmt::Debug for PgSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgSettings").field("application", &self.application).finish_non_exhaustive()
    }
}

/// The store. Connects on first use, and again on the next use after a connection was lost.
#[derive(Clone)]
pub struct Pg {
    connector: Arc<Connector>,
    /// For reads: statements of concurrent callers are pipelined.
    reads: Arc<SharedConnection>,
    /// For claims and for forgetting requests, which may wait for locks and must not delay reads.
    claims: Arc<SharedConnection>,
    /// For one persist at a time.
    persists: Arc<Mutex<Option<Connection>>>,
}

impl Pg {
    /// Checks the settings. Does not connect.
    pub fn new(settings: &PgSettings) -> Result<Pg, PgError> {
        Ok(Pg {
            connector: Arc::new(Connector::new(settings)?),
            reads: Arc::default(),
            claims: Arc::default(),
            persists: Arc::default(),
        })
    }

    /// Hosts and ports, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        self.connector.address()
    }

    async fn reading(&self) -> Result<Arc<Connection>, PgError> {
        self.reads.get(&self.connector).await
    }

    async fn claiming(&self) -> Result<Arc<Connection>, PgError> {
        self.claims.get(&self.connector).await
    }
}
