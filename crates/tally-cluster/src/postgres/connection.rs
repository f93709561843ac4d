//! Connections: opening them, time limits, prepared statements, and replacing lost ones.

use std::collections::HashMap;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use super::PgSettings;
use super::error::PgError;
use super::limits::{
    ANSWER_MS_MAX, CONNECT_MS_MAX, IDLE_IN_TRANSACTION_MS_MAX, KEEPALIVE_IDLE_MS, KEEPALIVE_INTERVAL_MS,
    KEEPALIVE_PROBES_MAX, LOCK_MS_MAX, STATEMENT_MS_MAX, UNACKNOWLEDGED_MS_MAX,
};
use super::tls::{self, PgTls};

/// Parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Opens connections.
pub(super) struct Connector {
    config: Config,
    tls: Option<PgTls>,
    address: Arc<str>,
}

impl Connector {
    pub(super) fn new(settings: &PgSettings) -> Result<Connector, PgError> {
        let invalid = |error: Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            PgError::Settings(cause.unwrap_or_else(|| error.to_string()))
        };
        let (url, tls) = tls::of_url(&settings.url, &settings.certificates)?;
        let mut config = Config::from_str(&url).map_err(invalid)?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(PgError::Settings("the URL names no host".into()));
        }
        config
            .application_name(&settings.application)
            // A standby may lag: it would answer with records older than those that memory is based on.
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
            .tcp_user_timeout(Duration::from_millis(UNACKNOWLEDGED_MS_MAX))
            .keepalives_idle(Duration::from_millis(KEEPALIVE_IDLE_MS))
            .keepalives_interval(Duration::from_millis(KEEPALIVE_INTERVAL_MS))
            .keepalives_retries(KEEPALIVE_PROBES_MAX);
        let address = address(&config).into();
        Ok(Connector { config, tls, address })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) async fn connect(&self) -> Result<Connection, PgError> {
        self.in_time(async {
            let connecting = match &self.tls {
                None => self.config.connect(NoTls).await.map(|(client, io)| (client, drive(io))),
                Some(tls) => self.config.connect(tls.clone()).await.map(|(client, io)| (client, drive(io))),
            };
            let (client, io) = connecting.map_err(|error| PgError::of_connecting(&error, &self.address))?;
            let connection = Connection {
                client,
                io,
                address: Arc::clone(&self.address),
                statements: parking_lot::Mutex::default(),
                is_silent: AtomicBool::new(false),
            };
            connection.run(&session_settings()).await?;
            Ok(connection)
        })
        .await
    }

    async fn in_time<T>(&self, connecting: impl Future<Output = Result<T, PgError>>) -> Result<T, PgError> {
        let silent = || PgError::unreachable(&self.address, format!("no connection within {CONNECT_MS_MAX} ms"));
        timeout(Duration::from_millis(CONNECT_MS_MAX), connecting).await.unwrap_or_else(|_| Err(silent()))
    }
}

/// Starts the task that drives the I/O of a connection.
fn drive(io: impl Future<Output = Result<(), Error>> + Send + 'static) -> AbortHandle {
    let task = tokio::spawn(async move {
        if let Err(error) = io.await {
            tracing::debug!(%error, "a connection to PostgreSQL ended");
        }
    });
    task.abort_handle()
}

/// Hosts and ports, for messages.
fn address(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |place: usize| ports.get(place).or(ports.first()).copied().unwrap_or(5432);
    let named = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let numeric = config.get_hostaddrs().iter().map(ToString::to_string);
    let mut hosts: Vec<String> = named.collect();
    if hosts.is_empty() {
        hosts = numeric.collect();
    }
    let places = hosts.iter().enumerate().map(|(place, host)| format!("{host}:{}", port(place)));
    places.collect::<Vec<_>>().join(",")
}

/// Time limits, and plans that do not depend on the parameters. For thousands of keys the planner would otherwise
/// choose to scan a whole table, and plan each statement anew.
fn session_settings() -> String {
    format!(
        "SET statement_timeout = {STATEMENT_MS_MAX}; SET lock_timeout = {LOCK_MS_MAX}; \
         SET idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS_MAX}; \
         SET plan_cache_mode = force_generic_plan; SET jit = off"
    )
}

/// A connection. Dropping it closes the socket, and PostgreSQL then rolls back an open transaction.
pub(super) struct Connection {
    client: Client,
    /// The task that drives its I/O.
    io: AbortHandle,
    address: Arc<str>,
    statements: parking_lot::Mutex<HashMap<&'static str, Statement>>,
    /// Whether an answer did not arrive in time. Further statements would queue up behind it.
    is_silent: AtomicBool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.io.abort();
    }
}

/// How a commit failed.
pub(super) enum CommitFailure {
    /// It was refused, so nothing was changed.
    Refused(PgError),
    /// The answer did not arrive.
    Unknown(PgError),
}

impl Connection {
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_silent.load(Relaxed)
    }

    /// Runs statements without parameters or results.
    pub(super) async fn run(&self, sql: &str) -> Result<(), PgError> {
        self.answer(self.client.batch_execute(sql)).await
    }

    pub(super) async fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, PgError> {
        let statement = self.prepared(sql).await?;
        self.answer(self.client.query(&statement, params)).await
    }

    /// Runs a statement and returns the number of rows it changed.
    pub(super) async fn execute(&self, sql: &'static str, params: Params<'_>) -> Result<u64, PgError> {
        let statement = self.prepared(sql).await?;
        self.answer(self.client.execute(&statement, params)).await
    }

    pub(super) async fn commit(&self) -> Result<(), CommitFailure> {
        let answer = timeout(Duration::from_millis(ANSWER_MS_MAX), self.client.batch_execute("COMMIT")).await;
        let Ok(answer) = answer else {
            return Err(CommitFailure::Unknown(self.silent()));
        };
        answer.map_err(|error| {
            // After a FATAL or a PANIC the commit may already be on disk.
            let severity = error.as_db_error().and_then(|db| db.parsed_severity());
            let failure = PgError::of(&error, &self.address);
            match severity {
                Some(Severity::Error) => CommitFailure::Refused(failure),
                _ => CommitFailure::Unknown(failure),
            }
        })
    }

    /// A statement is prepared once per connection. Two callers may both prepare a new one, which does no harm.
    async fn prepared(&self, sql: &'static str) -> Result<Statement, PgError> {
        if let Some(statement) = self.statements.lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.answer(self.client.prepare(sql)).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    async fn answer<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, PgError> {
        match timeout(Duration::from_millis(ANSWER_MS_MAX), answer).await {
            Ok(answer) => answer.map_err(|error| PgError::of(&error, &self.address)),
            Err(_) => Err(self.silent()),
        }
    }

    fn silent(&self) -> PgError {
        self.is_silent.store(true, Relaxed);
        PgError::unreachable(&self.address, format!("no answer within {ANSWER_MS_MAX} ms"))
    }
}

/// A connection that many callers use at the same time, for statements that need no transaction.
#[derive(Default)]
pub(super) struct SharedConnection {
    current: Mutex<Option<Arc<Connection>>>,
}

impl SharedConnection {
    /// The current connection, or a new one if it no longer works. Callers that wait while another one connects share
    /// its time limit, instead of each waiting for a full one in turn.
    pub(super) async fn get(&self, connector: &Connector) -> Result<Arc<Connection>, PgError> {
        connector
            .in_time(async {
                let mut current = self.current.lock().await;
                if let Some(connection) = current.as_ref().filter(|connection| connection.is_usable()) {
                    return Ok(Arc::clone(connection));
                }
                *current = None;
                let connection = Arc::new(Box::pin(connector.connect()).await?);
                *current = Some(Arc::clone(&connection));
                Ok(connection)
            })
            .await
    }
}
