//! Starting and stopping: listen, recover, serve, drain, close.
//!
//! The listener is up before the engine has recovered, so that health can be asked from the first moment; calls are
//! refused with 503 until then. Standard output says where to go once it is ready, and nothing if it never is.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tally_core::surface::{Engine, EngineError};
use tally_engine::{Embedded, OpenError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use crate::accept::Listening;
use crate::config::Config;
use crate::http;
use crate::limits::{CONNECTIONS_MAX, CONNECTIONS_MIN, DRAIN_MAX, FILES_RESERVED, POISONED_GRACE};
use crate::metrics::{ProtocolMetrics, Stopwatch};
use crate::progress;
use crate::resp;
use crate::service::Service;

/// The exit code after a failed flush: `EX_SOFTWARE` of sysexits.
const EXIT_POISONED: u8 = 70;
/// The exit code of a second signal: 128 and SIGINT, as shells have it.
const EXIT_AT_ONCE: u8 = 130;

/// Why the server did not start, or did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address could not be had.
    #[error("cannot listen on {address}: {source}. {hint} with --{flag}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
        /// The setting to change.
        flag: &'static str,
    },
    /// The data directory could not be opened.
    #[error("cannot open the data in {data}: {source}")]
    Open {
        /// The directory.
        data: String,
        /// Why.
        source: OpenError,
    },
    /// The engine did not close well.
    #[error("the data was not closed cleanly: {0}")]
    Close(EngineError),
    /// A part of the server is gone.
    #[error("a part of the server stopped by itself: {0}")]
    Task(#[from] JoinError),
    /// The system refused something.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Serves until a signal or a failed flush.
pub fn run(config: Config) -> Result<ExitCode, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(config));
    // A recovery or a closing that was interrupted is not waited for: the journal is safe to leave at any point.
    runtime.shutdown_background();
    result
}

async fn serve(config: Config) -> Result<ExitCode, ServeError> {
    let mut signals = Signals::new()?;
    let http = bind("http", &config.http).await?;
    let resp = match config.resp[..] {
        [] => None,
        _ => Some(bind("resp", &config.resp).await?),
    };
    let address = http.local_addr()?;
    let service = Arc::new(Service::new(config.policies.clone()));
    let listeners = Listeners::open(&config, &service, http, resp)?;

    let stopwatch = Stopwatch::start();
    tracing::info!(%address, resp = listeners.resp_shown(), data = %config.data.display(), "recovering; until it is done, calls are \
        answered 503 and commands LOADING");
    let engine = tokio::select! {
        opened = open(&config) => opened?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping before recovery finished");
            service.begin_closing();
            listeners.stop(Duration::ZERO).await?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    service.engine_ready(engine.clone());
    announce(address, listeners.resp, &config);
    let opened_ms = u64::try_from(stopwatch.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(%address, resp = listeners.resp_shown(), data = %config.data.display(), opened_ms, "ready");

    tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "draining; another signal stops at once");
            service.begin_closing();
            tokio::select! {
                closed = close(engine, listeners) => closed,
                name = signals.next() => {
                    tracing::warn!(signal = name, "stopping at once; a restart recovers what was acknowledged");
                    Ok(ExitCode::from(EXIT_AT_ONCE))
                }
            }
        }
        reason = engine.poisoned() => {
            tracing::error!(reason, "the engine stopped, nothing more is acknowledged and the process ends; everything \
                acknowledged is in the data directory");
            listeners.stop(POISONED_GRACE).await?;
            Ok(ExitCode::from(EXIT_POISONED))
        }
    }
}

/// Recovers the data directory off the runtime, with a bar on the terminal.
async fn open(config: &Config) -> Result<Embedded, ServeError> {
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

/// Answers what is under way, then flushes, checkpoints and leaves.
async fn close(engine: Embedded, listeners: Listeners) -> Result<ExitCode, ServeError> {
    if listeners.stop(DRAIN_MAX).await? == Listening::CutOff {
        tracing::warn!(seconds = DRAIN_MAX.as_secs(), "some requests were cut off: they took too long to finish");
    }
    match tokio::task::spawn_blocking(move || engine.close()).await? {
        Ok(()) => {
            tracing::info!("closed");
            Ok(ExitCode::SUCCESS)
        }
        Err(EngineError::Poisoned(reason)) => {
            tracing::error!(
                reason,
                "the engine stopped while closing; everything acknowledged is in the data directory"
            );
            Ok(ExitCode::from(EXIT_POISONED))
        }
        Err(error) => Err(ServeError::Close(error)),
    }
}

/// The listeners of both protocols.
struct Listeners {
    /// Where the Redis protocol listens.
    resp: Option<SocketAddr>,
    listeners: Vec<Listener>,
}

struct Listener {
    stop: oneshot::Sender<Duration>,
    listening: JoinHandle<Listening>,
}

impl Listeners {
    /// Where the Redis protocol listens, for the log.
    fn resp_shown(&self) -> String {
        self.resp.map_or_else(|| "off".to_owned(), |address| address.to_string())
    }

    fn open(
        config: &Config,
        service: &Arc<Service>,
        http: TcpListener,
        resp: Option<TcpListener>,
    ) -> Result<Self, ServeError> {
        let connections_max = connections_max(1 + usize::from(resp.is_some()));
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

    /// Stops accepting and waits for what is under way, at most `drain_max`.
    async fn stop(self, drain_max: Duration) -> Result<Listening, ServeError> {
        let mut listening = Vec::new();
        for listener in self.listeners {
            // The receiver lives as long as the listener task; if that is gone, awaiting it returns the reason.
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

/// Resolves when a listener is to stop, to the time that requests under way may take.
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

/// Says where it listens, where the data is, and what to try first.
fn announce(address: SocketAddr, resp: Option<SocketAddr>, config: &Config) {
    let reachable = reachable(address);
    let redis = resp.map_or_else(String::new, |resp| format!("  and redis on   redis://{}\n", self::reachable(resp)));
    let data = config.data.display();
    let text = format!(
        "tally {}\n  listening on   http://{address}\n{redis}  data in        {data}\n  documentation  \
         http://{reachable}/docs\n  try            curl -X POST http://{reachable}/api/v1/counters/hello/increment\n",
        env!("CARGO_PKG_VERSION")
    );
    // Nobody need be reading.
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The address as somebody on this machine reaches it.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("127.0.0.1:{}", address.port()) } else { address.to_string() }
}

/// The most connections per protocol. Raises the limit of file descriptors as far as the system allows, and shares it.
fn connections_max(protocols: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let granted = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let files = granted.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    (files.saturating_sub(FILES_RESERVED) / protocols).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        // A file larger than the process may write is an error of that write, as a full disk is. The signal that comes with
        // it would end the process if nobody took it.
        let _ = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
