//! Starting and stopping: listen, recover, serve, drain, close.
//!
//! The server listens before the engine has recovered, so that health checks work from the start; other calls are
//! refused with 503 until then. It prints its addresses to standard output once it is ready.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tally_core::surface::{Engine, EngineError, Health};
use tally_engine::limits::files_needed;
use tally_engine::{Embedded, OpenError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use crate::accept::Listening;
use crate::cluster::{ClusterError, ClusterNode};
use crate::config::ServerConfig;
use crate::engine::ServerEngine;
use crate::http;
use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_MIN, DRAIN_MAX, FILES_RESERVED, POISONED_GRACE, RESP_OVERLAP_CORES_MIN,
};
use crate::metrics::{ProtocolMetrics, Stopwatch};
use crate::progress;
use crate::resp;
use crate::service::Service;

/// The exit code after a failed flush: `EX_SOFTWARE` of sysexits.
const EXIT_POISONED: u8 = 70;
/// The exit code after a second signal: 128 + SIGINT, the shell convention.
const EXIT_AT_ONCE: u8 = 130;

/// Why the server did not start, or did not stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {source}. {hint} with --{flag}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
        /// The setting to change.
        flag: &'static str,
    },
    /// The cluster could not be joined.
    #[error("cannot join the cluster: {0}")]
    Cluster(#[from] ClusterError),
    /// The data directory could not be opened.
    #[error("cannot open the data in {data}: {source}")]
    Open {
        /// The directory.
        data: String,
        /// The cause.
        source: OpenError,
    },
    /// The engine did not close cleanly.
    #[error("the data was not closed cleanly: {0}")]
    Close(EngineError),
    /// A task panicked.
    #[error("a task of the server panicked: {0}")]
    Task(#[from] JoinError),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Serves until a signal or a failed flush.
pub fn run(config: ServerConfig) -> Result<ExitCode, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(config));
    // Does not wait for an interrupted recovery or shutdown: the journal is consistent at any point.
    runtime.shutdown_background();
    result
}

async fn serve(config: ServerConfig) -> Result<ExitCode, ServeError> {
    let mut signals = Signals::new()?;
    let http = bind("http", &config.http).await?;
    let resp = match config.resp[..] {
        [] => None,
        _ => Some(bind("resp", &config.resp).await?),
    };
    let address = http.local_addr()?;
    let service = Service::new(config.policies.clone());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // In a cluster a flush is a round trip to Kafka, so threads always gather the next commands during it.
    let is_overlapping = cores >= RESP_OVERLAP_CORES_MIN || config.cluster.is_some();
    let service = Arc::new(if is_overlapping { service.flushed_by_engine() } else { service });
    let listeners = Listeners::open(&config, &service, http, resp)?;

    let stopwatch = Stopwatch::start();
    // A node of a cluster has no data directory.
    let data = config.cluster.is_none().then(|| tracing::field::display(config.data.display()));
    tracing::info!(%address, resp = listeners.resp_text(), data, "recovering; until the server is ready, HTTP returns 503 \
        and the Redis protocol LOADING");
    let running = tokio::select! {
        opened = open(&config) => opened?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping during recovery");
            service.begin_closing();
            listeners.stop(Duration::ZERO).await?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let engine = running.engine();
    service.engine_ready(engine.clone());
    // Damage may be found just after opening.
    if !matches!(engine.health(), Health::Poisoned(_)) {
        print_banner(address, listeners.resp, &config);
        let opened_ms = u64::try_from(stopwatch.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(%address, resp = listeners.resp_text(), data, opened_ms, "ready");
    }

    tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "draining; a second signal stops at once");
            service.begin_closing();
            tokio::select! {
                closed = close(running, listeners) => closed,
                name = signals.next() => {
                    tracing::warn!(signal = name, "stopping at once; the next start recovers everything acknowledged");
                    Ok(ExitCode::from(EXIT_AT_ONCE))
                }
            }
        }
        reason = engine.poisoned() => {
            tracing::error!(reason, "the engine stopped and the process exits; run `tally check` on the data \
                directory before the next start, and see \"Damage\" in docs/operating.md");
            listeners.stop(POISONED_GRACE).await?;
            Ok(ExitCode::from(EXIT_POISONED))
        }
    }
}

/// The engine that was opened.
enum RunningEngine {
    Embedded(Embedded),
    ClusterNode(Arc<ClusterNode>),
}

impl RunningEngine {
    fn engine(&self) -> ServerEngine {
        match self {
            RunningEngine::Embedded(engine) => ServerEngine::Embedded(engine.clone()),
            RunningEngine::ClusterNode(node) => ServerEngine::Cluster(Arc::clone(node)),
        }
    }
}

async fn open(config: &ServerConfig) -> Result<RunningEngine, ServeError> {
    match &config.cluster {
        Some(cluster) => {
            let node = ClusterNode::start(cluster, &config.policies, config.memory_bytes).await?;
            Ok(RunningEngine::ClusterNode(Arc::new(node)))
        }
        None => Ok(RunningEngine::Embedded(open_data(config).await?)),
    }
}

/// Recovers the data directory on a blocking thread, with a progress bar.
async fn open_data(config: &ServerConfig) -> Result<Embedded, ServeError> {
    let engine_config = tally_engine::Config {
        data: config.data.clone(),
        memory_bytes: config.memory_bytes,
        clock: config.stored_clock,
    };
    let opened = tokio::task::spawn_blocking(move || {
        let bar = progress::bytes("recovering");
        let opened = Embedded::open(&engine_config, &mut |done, total| progress::show(&bar, done, total));
        bar.finish_and_clear();
        opened
    });
    opened.await?.map_err(|source| ServeError::Open { data: config.data.display().to_string(), source })
}

/// Drains the listeners, then flushes, checkpoints and closes the engine.
async fn close(running: RunningEngine, listeners: Listeners) -> Result<ExitCode, ServeError> {
    if listeners.stop(DRAIN_MAX).await? == Listening::CutOff {
        tracing::warn!(seconds = DRAIN_MAX.as_secs(), "the drain timed out; remaining requests were cut off");
    }
    let engine = match running {
        RunningEngine::Embedded(engine) => engine,
        RunningEngine::ClusterNode(node) => {
            node.stop().await;
            tracing::info!("closed");
            return Ok(ExitCode::SUCCESS);
        }
    };
    match tokio::task::spawn_blocking(move || engine.close()).await? {
        Ok(()) => {
            tracing::info!("closed");
            Ok(ExitCode::SUCCESS)
        }
        Err(EngineError::Poisoned(reason)) => {
            tracing::error!(
                reason,
                "the engine stopped while closing; run `tally check` on the data directory before the next start"
            );
            Ok(ExitCode::from(EXIT_POISONED))
        }
        Err(error) => Err(ServeError::Close(error)),
    }
}

/// The listeners of both protocols.
struct Listeners {
    /// The RESP address.
    resp: Option<SocketAddr>,
    listeners: Vec<Listener>,
}

struct Listener {
    stop: oneshot::Sender<Duration>,
    listening: JoinHandle<Listening>,
}

impl Listeners {
    /// The RESP address, for the log.
    fn resp_text(&self) -> String {
        self.resp.map_or_else(|| "off".to_owned(), |address| address.to_string())
    }

    fn open(
        config: &ServerConfig,
        service: &Arc<Service>,
        http: TcpListener,
        resp: Option<TcpListener>,
    ) -> Result<Self, ServeError> {
        let connections_max = connections_max(1 + usize::from(resp.is_some()), config.memory_bytes);
        let (http_metrics, resp_metrics) = (ProtocolMetrics::new("http"), ProtocolMetrics::new("resp"));
        let protocols: Arc<[_]> = [&http_metrics, &resp_metrics].into_iter().cloned().collect();
        warn_if_open(http.local_addr()?);
        let hosts = if http.local_addr()?.ip().to_canonical().is_loopback() {
            http::Hosts::LoopbackAnd(config.allowed_hosts.clone())
        } else {
            http::Hosts::Any
        };
        let server = Arc::new(http::Server::new(Arc::clone(service), hosts, http_metrics, protocols));
        let mut listeners = vec![Listener::open(|stopping| http::listen(http, server, connections_max, stopping))];
        let mut resp_address = None;
        if let Some(listener) = resp {
            let address = listener.local_addr()?;
            warn_if_open(address);
            let settings = resp::ShownSettings {
                data: config.data.display().to_string(),
                memory_bytes: config.memory_bytes,
                connections_max,
                address,
            };
            let server = Arc::new(resp::RespServer::new(Arc::clone(service), resp_metrics, settings));
            let threads = resp::Threads::start(&server, config.threads)?;
            listeners.push(Listener::open(|stopping| resp::listen(listener, server, threads, stopping)));
            resp_address = Some(address);
        }
        Ok(Listeners { resp: resp_address, listeners })
    }

    /// Stops accepting and waits for requests in progress, at most `drain_max`.
    async fn stop(self, drain_max: Duration) -> Result<Listening, ServeError> {
        let mut listening = Vec::new();
        for listener in self.listeners {
            // Fails only if the task has ended; awaiting it below returns the reason.
            let _ = listener.stop.send(drain_max);
            listening.push(listener.listening);
        }
        let mut ended = Listening::Drained;
        for task in listening {
            if task.await? == Listening::CutOff {
                ended = Listening::CutOff;
            }
        }
        Ok(ended)
    }
}

/// Resolves to the drain timeout when a listener must stop.
type Stopping = Pin<Box<dyn Future<Output = Duration> + Send>>;

impl Listener {
    fn open<F: Future<Output = Listening> + Send + 'static>(listen: impl FnOnce(Stopping) -> F) -> Self {
        let (stop, stopping) = oneshot::channel();
        let stopping = Box::pin(async { stopping.await.unwrap_or(Duration::ZERO) });
        Listener { stop, listening: tokio::spawn(listen(stopping)) }
    }
}

fn warn_if_open(address: SocketAddr) {
    if !address.ip().to_canonical().is_loopback() {
        tracing::warn!(%address, "other machines can reach this address and there is no authentication: anyone there can \
            change every counter");
    }
}

async fn bind(flag: &'static str, addresses: &[SocketAddr]) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addresses).await.map_err(|source| {
        let hint = match source.kind() {
            io::ErrorKind::AddrInUse => "Another `tally serve` may be running; choose another address",
            io::ErrorKind::PermissionDenied => "Ports below 1024 need privileges; choose another address",
            _ => "Choose another address",
        };
        let address = addresses.first().copied().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        ServeError::Bind { address, source, hint, flag }
    })
}

/// Prints the version, the addresses, the settings that matter most, and a first command to try.
fn print_banner(address: SocketAddr, resp: Option<SocketAddr>, config: &ServerConfig) {
    let reachable = reachable(address);
    let redis = resp.map_or_else(String::new, |resp| format!("  and redis on   redis://{}\n", self::reachable(resp)));
    let data = match &config.cluster {
        Some(cluster) => {
            format!("  node of        the cluster of topic {}, as {}\n", cluster.kafka.topic, cluster.roles)
        }
        None => format!("  data in        {}\n", config.data.display()),
    };
    let memory = indicatif::BinaryBytes(config.memory_bytes);
    let namespaces: Vec<String> = config
        .policies
        .namespaces()
        .iter()
        .map(|(name, consistency)| format!("{name} ({})", consistency.name()))
        .collect();
    let namespaces = match namespaces.is_empty() {
        true => "all eventual".to_owned(),
        false => format!("{}; all others eventual", namespaces.join(", ")),
    };
    let text = format!(
        "tally {}\n  listening on   http://{address}\n{redis}{data}  memory         {memory}\n  namespaces     \
         {namespaces}\n  documentation  http://{reachable}/docs\n  try            curl -X POST http://{reachable}/api/v1/counters/hello/increment\n",
        env!("CARGO_PKG_VERSION")
    );
    // Standard output may be closed.
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The address as seen from this machine.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("127.0.0.1:{}", address.port()) } else { address.to_string() }
}

/// The maximum number of connections per protocol. Raises the limit on open files as far as the system allows.
fn connections_max(protocols: usize, memory_bytes: u64) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let granted = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let files = granted.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    connections_within(files, protocols, memory_bytes)
}

/// Divides the open files that the engine does not need among the protocols.
fn connections_within(files: usize, protocols: usize, memory_bytes: u64) -> usize {
    let reserved = files_needed(memory_bytes).max(FILES_RESERVED);
    (files.saturating_sub(reserved) / protocols).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// A closed terminal. Settings are read at the start only, so there is nothing to reload.
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        // Exceeding the file size limit also raises SIGXFSZ, which would kill the process. With a handler the write just
        // fails, like on a full disk.
        let _ = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn up_to_1_gib_of_memory_a_fixed_number_of_files_is_reserved() {
        for memory_bytes in [GIB / 16, GIB / 2, GIB] {
            assert_eq!(connections_within(FILES_RESERVED + 1_000, 2, memory_bytes), 500);
        }
    }

    #[test]
    fn with_more_memory_the_files_of_the_engine_are_reserved() {
        let memory_bytes = 64 * GIB;
        let needed = files_needed(memory_bytes);
        assert!(needed > FILES_RESERVED, "{needed}");
        assert_eq!(connections_within(needed + 1_000, 2, memory_bytes), 500);
        assert_eq!(connections_within(needed + 1_000, 1, memory_bytes), 1_000);
    }

    #[test]
    fn connections_are_never_fewer_than_the_minimum_or_more_than_the_maximum() {
        assert_eq!(connections_within(0, 2, 64 * GIB), CONNECTIONS_MIN);
        assert_eq!(connections_within(usize::MAX, 2, GIB), CONNECTIONS_MAX);
    }
}
