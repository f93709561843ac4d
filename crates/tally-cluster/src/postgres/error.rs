//! What can go wrong with the store, and what to do about it.

use std::error::Error as _;

use tally_core::time::Position;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Error, Row};

use crate::tls::TlsFailure;

/// Why the store did not answer. A call that failed can always be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PgError {
    /// The settings are invalid.
    #[error(
        "the PostgreSQL settings are invalid: {0}; the URL has the form `postgres://user:password@host:port/database`"
    )]
    Settings(String),
    /// No connection, or a lost one. Retry later.
    #[error("PostgreSQL at {address} cannot be reached: {cause}; check that it is running and accepts connections")]
    Unreachable {
        /// Hosts and ports.
        address: String,
        /// What happened.
        cause: String,
    },
    /// The connection cannot be encrypted, or the server does not prove who it is.
    #[error("TLS with PostgreSQL at {address} failed: {cause}. See `sslmode` in the URL, and `postgres_ca`")]
    Tls {
        /// Hosts and ports.
        address: String,
        /// What happened, and what to do about it.
        cause: String,
    },
    /// User or password is wrong.
    #[error("PostgreSQL at {address} refused the credentials: {cause}; check user and password in the URL")]
    Credentials {
        /// Hosts and ports.
        address: String,
        /// What PostgreSQL said.
        cause: String,
    },
    /// The database of the URL does not exist.
    #[error("PostgreSQL at {address}: {cause}; create it with `createdb`, or correct the URL")]
    NoDatabase {
        /// Hosts and ports.
        address: String,
        /// What PostgreSQL said.
        cause: String,
    },
    /// PostgreSQL has no disk space. Retry later.
    #[error("the disk of PostgreSQL is full: {0}; free or add disk space")]
    DiskFull(String),
    /// A lock was not available, or a time limit was reached. Retry soon.
    #[error("PostgreSQL is busy: {0}; try again")]
    Busy(String),
    /// The database has no tables of Tally.
    #[error("the database has no tables of Tally: run `tally cluster init`")]
    SchemaAbsent,
    /// The tables are those of an older version.
    #[error("the database has schema version {found}, this version of Tally needs {needed}: run `tally cluster init`")]
    SchemaOlder {
        /// The version in the database.
        found: u32,
        /// The version this program needs.
        needed: u32,
    },
    /// The tables are those of a newer version.
    #[error("the database has schema version {found}, this version of Tally knows {known}: install a newer Tally here")]
    SchemaNewer {
        /// The version in the database.
        found: u32,
        /// The version this program knows.
        known: u32,
    },
    /// The database cannot hold every key.
    #[error(
        "the database has encoding {0}, which lacks characters that keys and reasons may have: create it with \
         `createdb --encoding=UTF8 --template=template0`"
    )]
    Encoding(String),
    /// The database has tables with the same names that are not Tally's.
    #[error("the database is used by something else: {0}; give Tally a database of its own")]
    NotEmpty(String),
    /// The partition was never created.
    #[error(
        "PostgreSQL has no partition {0}. Is it the right database? Partitions cannot be added: see \"The topic got more \
         partitions\" in docs/cluster-operations.md"
    )]
    NoPartition(u32),
    /// A stored record does not decode.
    #[error("the stored record `{key}` does not decode; restore it from a backup, or install the Tally that wrote it")]
    Malformed {
        /// Its store key, printable.
        key: String,
    },
    /// Anything else that PostgreSQL refused.
    #[error("PostgreSQL refused a statement: {message} (SQLSTATE {code}); its log may say more")]
    Refused {
        /// What PostgreSQL said.
        message: String,
        /// The five characters of SQLSTATE.
        code: String,
    },
    /// An answer that this version does not understand.
    #[error("PostgreSQL answered unexpectedly: {0}; its version or its tables are not those Tally expects")]
    Unexpected(String),
}

impl PgError {
    /// Whether the same call may succeed later without anybody changing settings or data. After a failure of TLS it
    /// may: a certificate can be renewed on the server.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, PgError::Unreachable { .. } | PgError::Tls { .. } | PgError::DiskFull(_) | PgError::Busy(_))
    }

    /// The record with this store key does not decode.
    pub(super) fn malformed(store_key: &[u8]) -> PgError {
        PgError::Malformed { key: store_key.escape_ascii().to_string() }
    }

    pub(super) fn unreachable(address: &str, cause: impl Into<String>) -> PgError {
        PgError::Unreachable { address: address.into(), cause: cause.into() }
    }

    /// What an error of the server at `address` means.
    pub(super) fn of(error: &Error, address: &str) -> PgError {
        if let Some(db) = error.as_db_error() {
            return PgError::of_server(db, address);
        }
        let source = error.source();
        if let Some(cause) = source.and_then(tls_failure) {
            return PgError::Tls { address: address.into(), cause };
        }
        let cause = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        // The library has no public kinds. Losing the connection is an I/O error, a closed connection or a timeout.
        let is_lost = source.is_none_or(|source| source.is::<std::io::Error>());
        if is_lost { PgError::unreachable(address, cause) } else { PgError::Unexpected(cause) }
    }

    /// What an error while connecting means: one that comes from neither network nor server is about the settings.
    pub(super) fn of_connecting(error: &Error, address: &str) -> PgError {
        match PgError::of(error, address) {
            PgError::Unexpected(cause) if cause.contains("password") => {
                PgError::Credentials { address: address.into(), cause }
            }
            PgError::Unexpected(cause) => PgError::Settings(cause),
            other => other,
        }
    }

    fn of_server(db: &DbError, address: &str) -> PgError {
        let (code, address) = (db.code(), address.to_owned());
        let cause = match db.detail() {
            Some(detail) => format!("{} ({detail})", db.message()),
            None => db.message().to_owned(),
        };
        let is = |codes: &[SqlState]| codes.contains(code);
        if is(&[SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]) {
            PgError::Credentials { address, cause }
        } else if is(&[SqlState::INVALID_CATALOG_NAME]) {
            PgError::NoDatabase { address, cause }
        } else if is(&[SqlState::DISK_FULL]) {
            PgError::DiskFull(cause)
        } else if is(&BUSY) {
            PgError::Busy(cause)
        } else if is(&UNREACHABLE) || code.code().starts_with("08") {
            PgError::Unreachable { address, cause }
        } else if is(&[SqlState::UNDEFINED_TABLE]) {
            PgError::SchemaAbsent
        } else if is(&[SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT]) {
            PgError::NotEmpty(cause)
        } else {
            PgError::Refused { message: cause, code: code.code().to_owned() }
        }
    }
}

/// What to do about an error, if it is a TLS error.
fn tls_failure(source: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(failure) = source.downcast_ref::<TlsFailure>() {
        return Some(failure.to_string());
    }
    if let Some(error) = source.downcast_ref::<std::io::Error>() {
        return TlsFailure::within(error).map(|failure| failure.to_string());
    }
    let text = source.to_string();
    // The message of the library.
    (text == "server does not support TLS").then(|| "the server has no TLS; set `ssl = on` there".to_owned())
}

const BUSY: [SqlState; 4] = [
    SqlState::LOCK_NOT_AVAILABLE,
    SqlState::QUERY_CANCELED,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::T_R_SERIALIZATION_FAILURE,
];

/// The server is starting, stopping, out of connections, or a replica that is not promoted yet.
const UNREACHABLE: [SqlState; 6] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::TOO_MANY_CONNECTIONS,
    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    SqlState::READ_ONLY_SQL_TRANSACTION,
];

/// Reads a column of an answer.
pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, PgError> {
    row.try_get(index).map_err(|error| {
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        PgError::Unexpected(format!("{error}: {cause}"))
    })
}

/// Why a persist did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistError {
    /// Position or epoch are not those of this worker. Nothing was changed.
    ///
    /// After [`PersistError::OutcomeUnknown`], this worker's epoch and the position of that persist mean that it had
    /// succeeded.
    #[error(
        "the partition is stored at position {stored} with epoch {epoch}: another worker owns it; discard this state of it"
    )]
    Superseded {
        /// The stored position.
        stored: Position,
        /// The stored epoch; 0 if the partition was never claimed.
        epoch: u64,
    },
    /// The store failed. Nothing was changed.
    #[error("{0}. Nothing was persisted")]
    Failed(#[from] PgError),
    /// A write failed before. Nothing was changed.
    #[error("a write of this persist has failed, so it cannot be committed. Nothing was persisted")]
    Incomplete,
    /// The connection was lost during the commit. Persist from the same position again: that waits for the old
    /// transaction, and is refused if it was committed.
    #[error("{0}. Whether the commit succeeded is unknown; persist from the same position again")]
    OutcomeUnknown(PgError),
}
