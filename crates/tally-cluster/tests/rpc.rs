//! API nodes and workers over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tally_cluster::rpc::limits::{
    CONNECTION_REQUESTS_MAX, FIRST_REQUEST_MAX, PING_ANSWER_MAX, PING_EVERY, REQUEST_BYTES_MAX, SERVER_REQUESTS_MAX,
};
use tally_cluster::rpc::{
    ClusterId, ListenError, Need, RpcCallError, RpcClient, RpcError, RpcHandler, RpcRequest, RpcResponse, RpcServer,
    Secret,
};
use tally_core::key::Key;
use tally_core::limits::CALL_KEYS_MAX;
use tally_core::outcome::Outcomes;
use tally_core::time::{Millis, Position};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest that "at once" may take on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Time between two attempts. No result depends on it.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Answers `Count` at once, `Status` never, and `Outcomes` when the test releases it.
#[derive(Default)]
struct TestWorker {
    waiting: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    /// Requests that have begun.
    begun: AtomicUsize,
    /// Requests that have ended, answered or not.
    ended: AtomicUsize,
}

struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<TestWorker>);

impl RpcHandler for Shared {
    async fn handle(&self, request: RpcRequest) -> Result<RpcResponse, RpcError> {
        let _ends = Ends(&self.0.ended);
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        match request {
            RpcRequest::Count { partition } => Ok(RpcResponse::Count { counters: u64::from(partition), at: Millis(1) }),
            RpcRequest::Outcomes { offset, .. } => {
                let (release, released) = oneshot::channel();
                self.0.waiting.lock().insert(offset, release);
                let _ = released.await;
                Ok(outcomes_of(offset))
            }
            RpcRequest::Read { keys, .. } => {
                let records = keys.iter().map(|key| Some(key.as_bytes().to_vec())).collect();
                Ok(RpcResponse::Read { position: Position(1), at: Millis(1), summed_at: Millis(1), records })
            }
            RpcRequest::Ledger { .. } => Err(RpcError::NotHosted { owner: Some("elsewhere:1".to_owned()) }),
            RpcRequest::Status | RpcRequest::Persist { .. } | RpcRequest::Snapshots { .. } => pending().await,
        }
    }
}

impl TestWorker {
    fn release(&self, offset: u64) {
        self.waiting.lock().remove(&offset).unwrap().send(()).unwrap();
    }
}

fn outcomes_of(offset: u64) -> RpcResponse {
    RpcResponse::Outcomes { end: Position(offset + 1), at: Millis(offset), outcomes: Outcomes::default() }
}

fn outcomes(offset: u64) -> RpcRequest {
    RpcRequest::Outcomes { partition: 0, offset }
}

fn count(partition: u32) -> RpcRequest {
    RpcRequest::Count { partition }
}

fn counted(partition: u32) -> RpcResponse {
    RpcResponse::Count { counters: u64::from(partition), at: Millis(1) }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The cluster that workers and callers belong to.
fn ours() -> ClusterId {
    ClusterId::new("11111111-1111-1111-1111-111111111111", "tally")
}

async fn start(worker: &Shared) -> RpcServer {
    RpcServer::start(local(0), None, ours(), worker.clone()).await.unwrap()
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + PATIENCE
}

/// A client for one address that is shared by tasks.
#[derive(Clone)]
struct Caller {
    client: Arc<RpcClient>,
    address: String,
}

impl Caller {
    fn new(address: SocketAddr) -> Caller {
        Caller::with_secret(address, None)
    }

    fn with_secret(address: SocketAddr, secret: Option<&str>) -> Caller {
        let secret = secret.map(|secret| Secret::new(secret).unwrap());
        Caller { client: Arc::new(RpcClient::new(secret, ours())), address: address.to_string() }
    }

    async fn call(&self, request: RpcRequest) -> Result<RpcResponse, RpcCallError> {
        self.client.call(&self.address, &request, deadline()).await
    }

    /// Calls on another task.
    fn spawn(&self, request: RpcRequest) -> tokio::task::JoinHandle<Result<RpcResponse, RpcCallError>> {
        let caller = self.clone();
        tokio::spawn(async move { caller.call(request).await })
    }
}

/// Waits for a condition.
async fn wait_for<T: Debug + PartialEq>(what: &str, expected: T, mut seen: impl FnMut() -> T) {
    let deadline = Instant::now() + PATIENCE;
    let mut turns = tokio::time::interval(POLL_INTERVAL);
    loop {
        turns.tick().await;
        let seen = seen();
        if seen == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {seen:?}, not {expected:?}");
    }
}

async fn wait_until_begun(worker: &Shared, requests: usize) {
    wait_for("requests that have begun", requests, || worker.0.begun.load(Ordering::SeqCst)).await;
}

fn is_unsent(result: &Result<RpcResponse, RpcCallError>) -> bool {
    matches!(result, Err(RpcCallError::NotSent { .. }))
}

fn is_unanswered(result: &Result<RpcResponse, RpcCallError>) -> bool {
    matches!(result, Err(RpcCallError::NoAnswer { .. }))
}

/// Forwards connections to a server and counts them.
async fn counting_proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_share_one_connection_and_are_answered_in_any_order() {
    const CALLS: u64 = 2_000;
    let worker = Shared::default();
    let server = start(&worker).await;
    let (address, connections) = counting_proxy(server.address()).await;
    let caller = Caller::new(address);
    let calls: Vec<_> = (0..CALLS).map(|offset| caller.spawn(outcomes(offset))).collect();
    wait_until_begun(&worker, CALLS as usize).await;
    assert_eq!(server.requests(), CALLS as usize);
    // The last one first. Each is answered while those before it wait.
    for (offset, call) in calls.into_iter().enumerate().rev() {
        wait_for("the handler", true, || worker.0.waiting.lock().contains_key(&(offset as u64))).await;
        worker.0.release(offset as u64);
        assert_eq!(call.await.unwrap(), Ok(outcomes_of(offset as u64)));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn requests_and_errors_arrive_as_they_were_sent() {
    let server = start(&Shared::default()).await;
    let caller = Caller::new(server.address());
    let keys: Vec<Key> = (0..CALL_KEYS_MAX).map(|number| Key::new(format!("{number:0>256}")).unwrap()).collect();
    let records = keys.iter().map(|key| Some(key.as_bytes().to_vec())).collect();
    let read = RpcRequest::Read { partition: 1, need: Need::End, keys: keys.clone() };
    assert_eq!(
        caller.call(read).await,
        Ok(RpcResponse::Read { position: Position(1), at: Millis(1), summed_at: Millis(1), records })
    );
    let ledger = RpcRequest::Ledger { partition: 1, key: keys[0].clone(), after: 0, limit: 10 };
    let elsewhere = RpcError::NotHosted { owner: Some("elsewhere:1".to_owned()) };
    assert_eq!(caller.call(ledger).await, Err(RpcCallError::Worker(elsewhere)));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_worker_that_dies_end_at_once_without_an_answer() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let caller = Caller::new(server.address());
    let calls: Vec<_> = (0..10).map(|_| caller.spawn(RpcRequest::Status)).collect();
    wait_until_begun(&worker, 10).await;
    drop(server);
    let died = Instant::now();
    for call in calls {
        let result = call.await.unwrap();
        assert!(is_unanswered(&result), "{result:?}");
    }
    assert!(died.elapsed() < AT_ONCE, "{:?}", died.elapsed());
    wait_for("the handlers' end", 10, || worker.0.ended.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn a_worker_that_stops_answering_is_noticed_by_pings() {
    // Accepts, and never reads or writes.
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let caller = Caller::new(listener.local_addr().unwrap());
    let started = Instant::now();
    let call = caller.spawn(count(1));
    let (_stream, _) = listener.accept().await.unwrap();
    let result = call.await.unwrap();
    assert!(is_unanswered(&result), "{result:?}");
    assert!(started.elapsed() < PING_EVERY + PING_ANSWER_MAX + AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_returns_on_the_same_port_is_found_again() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let address = server.address();
    let caller = Caller::new(address);
    assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
    drop(server);
    // The first call may still be on the connection that has just ended.
    wait_for_call(&caller, is_unsent).await;
    let unsent = Instant::now();
    for _ in 0..1_000 {
        let result = caller.call(count(2)).await;
        assert!(is_unsent(&result), "{result:?}");
    }
    assert!(unsent.elapsed() < AT_ONCE, "{:?}", unsent.elapsed());

    let _server = RpcServer::start(address, None, ours(), worker.clone()).await.unwrap();
    let returned = Instant::now();
    wait_for_call(&caller, |result| *result == Ok(counted(3))).await;
    println!("connected again {:?} after the worker returned", returned.elapsed());
    assert!(returned.elapsed() < AT_ONCE, "{:?}", returned.elapsed());
}

/// Calls until the result is as expected.
async fn wait_for_call(caller: &Caller, is_expected: impl Fn(&Result<RpcResponse, RpcCallError>) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut turns = tokio::time::interval(POLL_INTERVAL);
    loop {
        turns.tick().await;
        let result = caller.call(count(3)).await;
        if is_expected(&result) {
            return;
        }
        assert!(Instant::now() < deadline, "{result:?}");
    }
}

#[tokio::test]
async fn only_callers_with_the_secret_are_served() {
    let (secret, other) = ("the secret of the cluster", "the secret of another one");
    let worker = Shared::default();
    let (secret, other) = (secret.replace(' ', "-"), other.replace(' ', "-"));
    let expected = Some(Secret::new(&secret).unwrap());
    let server = RpcServer::start(local(0), expected, ours(), worker.clone()).await.unwrap();
    for wrong in [None, Some(&other[..])] {
        let result = Caller::with_secret(server.address(), wrong).call(count(1)).await;
        assert!(matches!(result, Err(RpcCallError::Unauthorized { .. })), "{result:?}");
    }
    let (status, body) = post(server.address(), "/tally", vec![2, 5]).await;
    assert_eq!((status, body.len()), (StatusCode::UNAUTHORIZED, 0));
    assert_eq!(worker.0.begun.load(Ordering::SeqCst), 0);
    assert_eq!(Caller::with_secret(server.address(), Some(&secret)).call(count(1)).await, Ok(counted(1)));
    // A server without a secret ignores one.
    let server = start(&worker).await;
    assert_eq!(Caller::with_secret(server.address(), Some(&secret)).call(count(1)).await, Ok(counted(1)));
}

/// The port of a worker that has stopped may be taken by one of another cluster, which has partitions of the same
/// numbers and perhaps counters of the same names.
#[tokio::test]
async fn a_worker_of_another_cluster_does_not_answer() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let address = server.address().to_string();
    let id = "22222222-2222-2222-2222-222222222222";
    for other in [ClusterId::new(id, "tally"), ClusterId::new("11111111-1111-1111-1111-111111111111", "moved")] {
        let refused = RpcClient::new(None, other).call(&address, &count(1), deadline()).await;
        assert!(matches!(refused, Err(RpcCallError::Rejected { status: 421, .. })), "{refused:?}");
    }
    assert_eq!(worker.0.begun.load(Ordering::SeqCst), 0);
    assert_eq!(Caller::new(server.address()).call(count(1)).await, Ok(counted(1)));
}

#[tokio::test]
async fn without_a_secret_a_server_listens_on_loopback_only() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let refused = RpcServer::start(everywhere, None, ours(), Shared::default()).await.err().unwrap();
    assert!(matches!(refused, ListenError::SecretMissing(_)), "{refused}");
    let secret = Secret::new("sixteen-letters-").unwrap();
    assert!(RpcServer::start(everywhere, Some(secret), ours(), Shared::default()).await.is_ok());
    let server = start(&Shared::default()).await;
    let taken = RpcServer::start(server.address(), None, ours(), Shared::default()).await.err().unwrap();
    assert!(matches!(taken, ListenError::Bind(..)), "{taken}");
}

/// Posts a body without our client.
async fn post(address: SocketAddr, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{address}{path}"))
        .header("tally-cluster", "11111111-1111-1111-1111-111111111111/tally")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    let status = response.status();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn oversized_and_malformed_requests_are_refused_and_others_go_on() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let address = server.address();
    let waiting = Caller::new(address).spawn(outcomes(7));
    wait_until_begun(&worker, 1).await;
    for (path, body, expected) in [
        ("/tally", vec![1; REQUEST_BYTES_MAX + 1], StatusCode::PAYLOAD_TOO_LARGE),
        ("/tally", vec![1; REQUEST_BYTES_MAX], StatusCode::BAD_REQUEST),
        ("/tally", Vec::new(), StatusCode::BAD_REQUEST),
        ("/tally", vec![0xff; 100], StatusCode::BAD_REQUEST),
        // An earlier and a later version, and one byte too many.
        ("/tally", vec![1, 5], StatusCode::BAD_REQUEST),
        ("/tally", vec![3, 5], StatusCode::BAD_REQUEST),
        ("/tally", vec![2, 5, 0], StatusCode::BAD_REQUEST),
        ("/else", vec![2, 5], StatusCode::NOT_FOUND),
    ] {
        let what = format!("{path} {:?} × {}", body.first(), body.len());
        assert_eq!(post(address, path, body).await.0, expected, "{what}");
    }
    let keys = vec![Key::new("k").unwrap(); CALL_KEYS_MAX + 1];
    let too_many = RpcRequest::Read { partition: 0, need: Need::Refill, keys };
    let refused = Caller::new(address).call(too_many).await;
    assert!(matches!(refused, Err(RpcCallError::Rejected { status: 400, .. })), "{refused:?}");
    assert_eq!(worker.0.begun.load(Ordering::SeqCst), 1);
    worker.0.release(7);
    assert_eq!(waiting.await.unwrap(), Ok(outcomes_of(7)));
}

#[tokio::test]
async fn a_peer_that_is_no_worker_is_no_answer() {
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let caller = Caller::new(listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let greeting = b"-ERR unknown command\r\n".repeat(100);
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &greeting).await;
        }
    });
    let result = caller.call(count(1)).await;
    assert!(is_unanswered(&result) || is_unsent(&result), "{result:?}");
    let nowhere = Caller { address: "not an address".to_owned(), ..caller };
    assert!(is_unsent(&nowhere.call(count(1)).await));
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_the_handler() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let caller = Caller::new(server.address());
    assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
    let started = Instant::now();
    let soon = tokio::time::Instant::now() + Duration::from_millis(100);
    let result = caller.client.call(&caller.address, &RpcRequest::Status, soon).await;
    assert!(is_unanswered(&result), "{result:?}");
    assert!((Duration::from_millis(90)..AT_ONCE).contains(&started.elapsed()), "{:?}", started.elapsed());
    wait_for("the handler's end", 2, || worker.0.ended.load(Ordering::SeqCst)).await;
    wait_for("an idle server", 0, || server.requests()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_calls_that_are_dropped_at_once_end_at_the_worker_and_the_connection_goes_on() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let (address, connections) = counting_proxy(server.address()).await;
    let caller = Caller::new(address);
    for round in 1..=3 {
        let mut calls = JoinSet::new();
        for _ in 0..CONNECTION_REQUESTS_MAX {
            let caller = caller.clone();
            calls.spawn(async move { caller.call(RpcRequest::Status).await });
        }
        wait_until_begun(&worker, round * CONNECTION_REQUESTS_MAX as usize + round - 1).await;
        calls.shutdown().await;
        assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
        wait_for("an idle server", 0, || server.requests()).await;
    }
    // Cancelled before the server has accepted them.
    for _ in 0..20 {
        let mut calls = JoinSet::new();
        for _ in 0..1_000 {
            let caller = caller.clone();
            calls.spawn(async move { caller.call(RpcRequest::Status).await });
        }
        tokio::task::yield_now().await;
        calls.shutdown().await;
        assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn handlers_that_never_end_do_not_block_others() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let caller = Caller::new(server.address());
    let _stuck: Vec<_> = (0..100).map(|_| caller.spawn(RpcRequest::Status)).collect();
    wait_until_begun(&worker, 100).await;
    let started = Instant::now();
    for partition in 0..100 {
        assert_eq!(caller.call(count(partition)).await, Ok(counted(partition)));
    }
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_many_requests_refuses_the_rest() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let per_client = CONNECTION_REQUESTS_MAX as usize;
    let mut waiting = JoinSet::new();
    for _ in 0..SERVER_REQUESTS_MAX / per_client {
        let caller = Caller::new(server.address());
        for _ in 0..per_client {
            let caller = caller.clone();
            waiting.spawn(async move { caller.call(RpcRequest::Status).await });
        }
    }
    wait_until_begun(&worker, SERVER_REQUESTS_MAX).await;
    let caller = Caller::new(server.address());
    assert_eq!(caller.call(count(1)).await, Err(RpcCallError::Worker(RpcError::Overloaded)));
    waiting.shutdown().await;
    wait_for("an idle server", 0, || server.requests()).await;
    assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_requests_finish_and_tells_the_others_that_it_closes() {
    let worker = Shared::default();
    let server = start(&worker).await;
    let caller = Caller::new(server.address());
    let (finishing, stuck) = (caller.spawn(outcomes(1)), caller.spawn(outcomes(2)));
    wait_until_begun(&worker, 2).await;
    let stopping = tokio::spawn(server.stop(AT_ONCE));
    // The open connection is told so; a new one is not accepted.
    wait_for_call(&caller, |result| *result == Err(RpcCallError::Worker(RpcError::Closing))).await;
    wait_for("the handler", true, || worker.0.waiting.lock().contains_key(&1)).await;
    worker.0.release(1);
    assert_eq!(finishing.await.unwrap(), Ok(outcomes_of(1)));
    assert_eq!(stuck.await.unwrap(), Err(RpcCallError::Worker(RpcError::Closing)));
    stopping.await.unwrap();
    assert!(is_unsent(&caller.call(count(1)).await));
}

#[tokio::test]
async fn a_stop_without_requests_is_quick() {
    let server = start(&Shared::default()).await;
    let caller = Caller::new(server.address());
    assert_eq!(caller.call(count(1)).await, Ok(counted(1)));
    let started = Instant::now();
    server.stop(PATIENCE).await;
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let server = start(&Shared::default()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let mut bytes = Vec::new();
    let ended = tokio::time::timeout(FIRST_REQUEST_MAX + 2 * AT_ONCE, stream.read_to_end(&mut bytes)).await;
    assert!(ended.is_ok(), "it is open after {:?}", FIRST_REQUEST_MAX + 2 * AT_ONCE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_small_calls_are_answered() {
    const SEQUENTIAL: u32 = 10_000;
    const TASKS: u32 = 90;
    const EACH: u32 = 1_000;
    let server = start(&Shared::default()).await;
    let caller = Caller::new(server.address());
    let started = Instant::now();
    for partition in 0..SEQUENTIAL {
        assert_eq!(caller.call(count(partition)).await, Ok(counted(partition)));
    }
    println!("{SEQUENTIAL} calls one after the other: {:?}", started.elapsed());
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let caller = caller.clone();
        tasks.spawn(async move {
            for partition in 0..EACH {
                assert_eq!(caller.call(count(partition)).await, Ok(counted(partition)));
            }
        });
    }
    tasks.join_all().await;
    println!("{} calls of {TASKS} tasks: {:?}", TASKS * EACH, started.elapsed());
}
