//! Hostile clients on the Redis port: each is refused, limited or disconnected, memory stays within the limits in
//! docs/limits.md, and a well-behaved client is still served quickly.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::resp::{Redis, Reply, connect, request};
use harness::{Server, limited, serve, wait_for};
use socket2::{Domain, Socket, Type};

const MIB: usize = 1 << 20;
/// Maximum memory of one thread of the Redis port, as documented in docs/limits.md.
const THREAD_BYTES_MAX: usize = 512 * MIB;
/// Maximum memory of an idle connection, as documented in docs/limits.md.
const IDLE_BYTES_MAX: usize = 8 << 10;
/// Bytes of unfinished requests that the server keeps.
const UNFINISHED_BYTES_MAX: usize = 64 * MIB;
/// Limit for the median latency of a well-behaved client during an attack, generous for a slow, busy machine.
const MEDIAN_MAX: Duration = Duration::from_millis(250);
/// Number of measured rounds for the median.
const ROUNDS: usize = 200;

/// Threads of the Redis port on this machine.
fn threads() -> usize {
    (std::thread::available_parallelism().unwrap().get() / 2).clamp(1, 16)
}

fn assert_bounded(server: &Server, before: u64, median: Duration) {
    let grown = server.memory_peak_bytes() - before;
    eprintln!("{} MiB more, median {median:?}", grown >> 20);
    assert!(grown < (threads() * THREAD_BYTES_MAX) as u64, "{} MiB", grown >> 20);
    assert!(median < MEDIAN_MAX, "{median:?}");
}

/// Sends these bytes and returns everything the server sends until it closes the connection.
fn said_until_closed(address: &str, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may answer and close before everything is written.
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    let end = stream.read_to_end(&mut said);
    assert!(
        !matches!(&end, Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset),
        "not closed after {:?}: {end:?}",
        String::from_utf8_lossy(&said)
    );
    String::from_utf8_lossy(&said).into_owned()
}

/// These tests measure memory and latency, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_malformed_request_gets_an_error_and_closes_only_its_own_connection() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let mebibyte = "x".repeat(MIB);
    let three_large = format!("*4\r\n$4\r\nMGET\r\n{}", format!("${MIB}\r\n{mebibyte}\r\n").repeat(3));
    let cases: [(&[u8], &str); 12] = [
        (b"*1000000000\r\n", "too many arguments; a request has at most 1024, its name included"),
        (b"*1025\r\n", "too many arguments; a request has at most 1024, its name included"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$-2\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length"),
        (b"*2\r\n$4\r\nECHO\r\n$4294967296\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (&[b"*".as_slice(), &[b'1'; 70_000]].concat(), "too big mbulk count string"),
        (&[b'a'; (64 << 10) + 1], "too big inline request"),
        (b"GET \"unbalanced\r\n", "unbalanced quotes in request"),
        (three_large.as_bytes(), "too big request"),
    ];
    let mut good = Redis::connect(address);
    for (bytes, text) in cases {
        assert_eq!(said_until_closed(address, bytes), format!("-ERR Protocol error: {text}\r\n"));
        assert_eq!(good.call(&["PING"]).text(), "PONG");
    }
    good.wait_for_clients(1);
}

#[test]
fn a_browser_gets_no_reply_and_changes_nothing() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let body = "INCR hit\r\nINCR hit\r\n";
    let post = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(said_until_closed(address, post.as_bytes()), "");
    let get = format!("GET /INCR HTTP/1.1\r\nHost: x\r\n\r\n{body}");
    assert_eq!(said_until_closed(address, get.as_bytes()), "");
    assert_eq!(Redis::connect(address).call(&["GET", "hit"]), Reply::Null);
}

#[test]
fn requests_may_arrive_one_byte_at_a_time() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let mut slow = Redis::connect(address);
    let requests = [request(&["INCRBY", "slow", "7"]), b"GET slow\r\n".to_vec(), request(&["ECHO", "a b"])].concat();
    for byte in requests {
        assert!(slow.send(&[byte]));
    }
    assert_eq!(slow.read(), Some(Reply::Integer(7)));
    assert_eq!(slow.read(), Some(Reply::Text("7".to_owned())));
    assert_eq!(slow.read(), Some(Reply::Text("a b".to_owned())));
}

#[test]
fn the_largest_argument_is_accepted() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let text = "x".repeat(MIB);
    let mut client = Redis::connect(address);
    assert_eq!(client.call(&["ECHO", &text]).text(), text);
    let error = client.call(&["GET", &text]);
    assert!(matches!(&error, Reply::Error(text) if text.len() < 512), "a key of 1 MiB is refused with a short error");
    let error = client.call(&["CLIENT", "SETNAME", &text]);
    assert_eq!(error, Reply::Error("ERR Client names cannot be that long.".to_owned()));
    for attribute in ["LIB-NAME", "LIB-VER"] {
        assert!(matches!(client.call(&["CLIENT", "SETINFO", attribute, &text]), Reply::Error(_)));
    }
    assert!(matches!(client.call(&["HELLO", "3", "SETNAME", &text]), Reply::Error(_)));
    assert!(client.call(&["CLIENT", "LIST"]).text().len() < 1024);
}

#[test]
fn a_connection_over_the_limit_gets_an_error_and_closed_ones_free_their_slot() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(limited("-n 400", &serve(&dir.path().join("data"))));
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let max: usize = good.call(&["CONFIG", "GET", "maxclients"]).items()[1].text().parse().unwrap();
    let mut others: Vec<Redis> = (1..max).map(|_| Redis::connect(address)).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.call(&["PING"]).text(), "PONG"));
    let refused = Redis::connect(address).read();
    assert_eq!(refused, Some(Reply::Error("ERR max number of clients reached".to_owned())));
    assert_eq!(good.info("rejected_connections"), "1");
    drop(others);
    good.wait_for_clients(1);
    assert_eq!(Redis::connect(address).call(&["PING"]).text(), "PONG");
}

#[test]
fn ten_thousand_idle_connections_use_little_memory_and_do_not_slow_down_others() {
    let _alone = alone();
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let max: usize = good.call(&["CONFIG", "GET", "maxclients"]).items()[1].text().parse().unwrap();
    let own = limit.maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap());
    let count = WANTED.min(max - 8).min(own.saturating_sub(512));
    if count < WANTED {
        eprintln!("only {count} connections: the hard limit of open files allows no more");
    }
    let before = server.memory_bytes();
    // Some have sent a request that needed memory to parse.
    let many_words = format!("MGET{}\r\n", " word".repeat(1000));
    let idle: Vec<TcpStream> = (0..count)
        .map(|at| {
            let mut stream = connect(address);
            if at % 16 == 0 {
                stream.write_all(many_words.as_bytes()).unwrap();
                stream.read_exact(&mut [0; 7 + 1000 * 5]).unwrap();
            }
            stream
        })
        .collect();
    good.wait_for_clients(count + 1);
    let median = good.counts_during(ROUNDS, || {});
    let grown = usize::try_from(server.memory_bytes().saturating_sub(before)).unwrap();
    eprintln!("{count} idle connections: {} bytes each, median {median:?}", grown / count);
    assert!(grown < count * IDLE_BYTES_MAX, "{} bytes each", grown / count);
    assert!(median < MEDIAN_MAX, "{median:?}");
    drop(idle);
    good.wait_for_clients(1);
}

/// A client that keeps sending the same requests and never reads a reply.
struct Greedy {
    stream: TcpStream,
    sent: usize,
}

impl Greedy {
    fn connect(address: &str) -> Greedy {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // Small socket buffers on both sides; a small segment size also limits the server's side. So the memory for unread
        // replies is exhausted before clients are disconnected for not reading.
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_tcp_mss(536).unwrap();
        socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        Greedy { stream: socket.into(), sent: 0 }
    }

    /// Sends as much as the socket accepts; false if the connection was closed.
    fn send_on(&mut self, requests: &[u8]) -> bool {
        match self.stream.write(&requests[self.sent..]) {
            Ok(taken) => self.sent = (self.sent + taken) % requests.len(),
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
        true
    }
}

#[test]
fn clients_that_never_read_share_one_limit_and_do_not_affect_others() {
    let _alone = alone();
    const CLIENTS: usize = 400;
    /// Connections closed before the attack ends.
    const CLOSED: usize = 100;
    /// Logged if a connection is closed because the memory for unread replies is exhausted.
    const FULL: &str = "closing a connection: too many replies are waiting to be read";
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(&dir.path().join("data"));
    command.args(["--log-level", "debug"]);
    let mut server = Server::start_with(command);
    let address = &server.redis.clone();
    let mut good = Redis::connect(address);
    good.call(&["SET", "known", "1234567890"]);
    let before = server.memory_peak_bytes();
    let requests = [
        request(&["COMMAND", "DOCS"]).repeat(20),
        request(&["GET", "known"]).repeat(1000),
        request(&["ECHO", &"x".repeat(MIB)]),
    ]
    .concat();
    let median = good.counts_during(ROUNDS, || {
        let mut greedy: Vec<Greedy> = (0..CLIENTS).map(|_| Greedy::connect(address)).collect();
        wait_for("connections closed because of unread replies", || {
            for client in &mut greedy {
                if !client.send_on(&requests) {
                    *client = Greedy::connect(address);
                }
            }
            let closed = server.log().matches(FULL).count();
            if closed < CLOSED { Err(closed) } else { Ok(()) }
        });
    });
    assert_bounded(&server, before, median);
    good.wait_for_clients(1);
}

/// Opens connections that each send `bytes`, an incomplete request. The server has received as many as fit the limit
/// before the others are sent.
fn unfinished(address: &str, count: usize, bytes: &[u8]) -> Vec<Redis> {
    let mut watcher = Redis::connect(address);
    let fitting = UNFINISHED_BYTES_MAX / bytes.len();
    let mut clients: Vec<Redis> = Vec::new();
    for number in 1..=count {
        let mut client = Redis::connect(address);
        client.send(bytes);
        clients.push(client);
        watcher.wait_for("mem_clients_normal", |held: usize| held >= number.min(fitting) * bytes.len());
    }
    clients
}

#[test]
fn unfinished_requests_share_one_limit_and_all_of_their_memory_is_freed() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let before = server.memory_peak_bytes();
    let fitting = UNFINISHED_BYTES_MAX / MIB;
    let echo = request(&["ECHO", &"x".repeat(MIB)]);
    let most = &echo[..echo.len() - 3];
    for round in 0..4 {
        let mut kept = Vec::new();
        let median = good.counts_during(ROUNDS, || kept = unfinished(address, 3 * fitting, most));
        assert_bounded(&server, before, median);
        // The limit is reached, but a small request that arrives in two parts is still accepted.
        let mut small = Redis::connect(address);
        let incr = request(&["INCR", "in-two-parts"]);
        assert!(small.send(&incr[..20]));
        assert_eq!(good.call(&["PING"]).text(), "PONG");
        assert!(small.send(&incr[20..]));
        assert_eq!(small.read(), Some(Reply::Integer(round + 1)));
        // Those that were kept are answered once they are complete; all others got an error or were closed.
        let mut answered = 0;
        for client in &mut kept {
            client.send(&echo[echo.len() - 3..]);
            match client.read() {
                Some(Reply::Text(text)) => answered += usize::from(text.len() == MIB),
                Some(Reply::Error(text)) => assert_eq!(text, "ERR too many unfinished requests; try again later"),
                other => assert_eq!(other, None),
            }
        }
        assert!((fitting * 3 / 4..=fitting + 1).contains(&answered), "{answered} of {fitting} in round {round}");
        drop((kept, small));
        good.wait_for_clients(1);
    }
}

#[test]
fn endless_transactions_are_limited_individually_and_together() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let before = server.memory_peak_bytes();
    // Individually: a transaction with too many commands is refused.
    let mut endless = Redis::connect(address);
    assert_eq!(endless.call(&["MULTI"]).text(), "OK");
    let refused = (0..100_000).map(|_| endless.call(&["INCR", "spoilt"])).find(|reply| reply.text() != "QUEUED");
    assert!(matches!(refused, Some(Reply::Error(text)) if text.starts_with("ERR the transaction is too large")));
    assert!(matches!(endless.call(&["EXEC"]), Reply::Error(text) if text.starts_with("EXECABORT")));
    assert_eq!(endless.call(&["GET", "spoilt"]), Reply::Null);
    // Together: open transactions count as unfinished requests.
    let fitting = UNFINISHED_BYTES_MAX / MIB;
    let echo = request(&["ECHO", &"x".repeat(MIB / 10)]);
    let large = [request(&["MULTI"]), echo.repeat(9)].concat();
    for _ in 0..3 {
        let mut kept: Vec<Redis> = (0..2 * fitting).map(|_| Redis::connect(address)).collect();
        let mut whole = 0;
        let median = good.counts_during(ROUNDS, || {
            for client in &mut kept {
                client.send(&large);
                let replies: Vec<_> = (0..10).map_while(|_| client.read()).collect();
                whole += usize::from(replies.iter().filter(|reply| reply.text() == "QUEUED").count() == 9);
            }
        });
        assert_bounded(&server, before, median);
        // Each takes 0.9 MiB.
        assert!((fitting..fitting * 10 / 9 + 2).contains(&whole), "{whole} of {fitting}");
        drop(kept);
        good.wait_for_clients(2);
    }
}

#[test]
fn replies_of_a_transaction_that_are_too_large_are_replaced_by_errors() {
    let _alone = alone();
    let server = Server::start();
    let address = server.redis.as_str();
    let mut client = Redis::connect(address);
    let before = server.memory_peak_bytes();
    client
        .send(&[request(&["MULTI"]), request(&["COMMAND", "DOCS"]).repeat(1000), request(&["INCR", "after"])].concat());
    (0..1002).for_each(|_| assert!(matches!(client.read(), Some(Reply::Text(_)))));
    let replies = client.call(&["EXEC"]);
    assert_eq!(replies.items().len(), 1001);
    assert!(matches!(replies.items()[0], Reply::Array(_)));
    let too_large = Reply::Error("ERR the replies of the transaction are too large".to_owned());
    assert_eq!(replies.items()[999], too_large);
    assert_eq!(replies.items()[1000], Reply::Integer(1), "the increment is executed");
    assert!(server.memory_peak_bytes() - before < 32 * MIB as u64);
}

#[test]
fn abandoned_scans_are_forgotten() {
    let _alone = alone();
    const WALKS: usize = 20_000;
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    for at in 0..100 {
        good.call(&["INCR", &format!("walk:{at:03}:{}", "x".repeat(400))]);
    }
    let before = server.memory_peak_bytes();
    let median = good.counts_during(ROUNDS, || {
        let mut dropping = Redis::connect(address);
        for at in (0..WALKS).step_by(1000) {
            let count = (1 + at / 1000).to_string();
            dropping.send(&request(&["SCAN", "0", "COUNT", &count]).repeat(1000));
            (0..1000).for_each(|_| assert_ne!(dropping.read().unwrap().items()[0].text(), "0"));
        }
    });
    assert_bounded(&server, before, median);
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    loop {
        let page = good.call(&["SCAN", &cursor, "MATCH", "walk:*"]);
        seen += page.items()[1].items().len();
        cursor = page.items()[0].text().to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 100);
}

#[test]
fn patterns_are_bounded_and_matching_them_does_not_hold_up_others() {
    let _alone = alone();
    let server = Server::start();
    let mut good = Redis::connect(&server.redis);
    let requests: Vec<u8> =
        (0..4_000).flat_map(|at| request(&["INCR", &format!("{at}:{}", "k".repeat(500))])).collect();
    good.send(&requests);
    (0..4_000).for_each(|_| assert_eq!(good.read(), Some(Reply::Integer(1))));
    let long = "x".repeat(1_025);
    for refused in [
        &["KEYS", &long][..],
        &["SCAN", "0", "MATCH", &long],
        &["CONFIG", "GET", "*", &long],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", &long],
    ] {
        let reply = good.call(refused);
        assert!(matches!(&reply, Reply::Error(text) if text.contains("at most 1024")), "{reply:?}");
    }
    // Each byte of each key is compared with the whole class.
    let hostile = format!("*[{}]", "x".repeat(1_000));
    let done = AtomicBool::new(false);
    let pings = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut attacker = Redis::connect(&server.redis);
            assert_eq!(attacker.call(&["KEYS", &hostile]), Reply::Array(Vec::new()));
            done.store(true, Ordering::SeqCst);
        });
        let mut pings = 0;
        while !done.load(Ordering::SeqCst) {
            assert_eq!(good.call(&["PING"]).text(), "PONG");
            pings += 1;
        }
        pings
    });
    assert!(pings > 20, "{pings} answers while the keys were compared");
}

#[test]
fn watched_keys_count_towards_the_shared_limit_with_all_their_memory() {
    let _alone = alone();
    let server = Server::start();
    let keys: Vec<String> = (0..400).map(|at| format!("{at:x}")).collect();
    let mut watch = vec!["WATCH"];
    watch.extend(keys.iter().map(String::as_str));
    let watch = request(&watch);
    let before = server.memory_peak_bytes();
    let mut open: Vec<Redis> = Vec::new();
    let mut refused = 0;
    for _ in 0..6_000 {
        let mut client = Redis::connect(&server.redis);
        client.send(&watch);
        assert_eq!(client.read().unwrap().text(), "OK");
        client.send(b"PING\r\n");
        match client.read() {
            Some(Reply::Error(text)) => {
                assert!(text.contains("too many unfinished requests"), "{text}");
                refused += 1;
                break;
            }
            _ => open.push(client),
        }
    }
    let grown = server.memory_peak_bytes() - before;
    eprintln!("{} connections watch, {} MiB more", open.len(), grown >> 20);
    assert!(refused > 0, "{} connections hold {} MiB", open.len(), grown >> 20);
}

#[test]
fn commands_without_replies_are_counted_and_take_no_memory() {
    let _alone = alone();
    let server = Server::start();
    let mut silent = Redis::connect(&server.redis);
    let mut good = Redis::connect(&server.redis);
    assert_eq!(good.call(&["PING"]).text(), "PONG");
    let before = server.memory_peak_bytes();
    silent.send(b"CLIENT REPLY OFF\r\n");
    // Two commands in turn: their counts cannot be combined.
    let commands = b"PING\r\nNOPE\r\n".repeat(10_000);
    (0..200).for_each(|_| assert!(silent.send(&commands)));
    let calls = |info: &str| -> Option<u64> {
        info.lines().find_map(|line| line.strip_prefix("cmdstat_ping:calls=")?.split(',').next()?.parse().ok())
    };
    wait_for("the calls in INFO", || match good.call(&["INFO", "commandstats"]) {
        Reply::Text(info) if calls(&info) > Some(2_000_000) => Ok(()),
        other => Err(other),
    });
    let grown = server.memory_peak_bytes() - before;
    assert!(grown < 16 * MIB as u64, "{} MiB", grown >> 20);
}

#[test]
fn deep_pipelines_of_many_keys_are_answered_in_order_with_bounded_memory() {
    let _alone = alone();
    const CLIENTS: usize = 40;
    const DEEP: usize = 50;
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let keys: Vec<String> = (0..1000).map(|at| format!("k{at}")).collect();
    for (value, key) in keys.iter().enumerate() {
        good.send(&request(&["SET", key, &value.to_string()]));
    }
    keys.iter().for_each(|_| assert_eq!(good.read().unwrap().text(), "OK"));
    let values: Vec<Reply> = (0..1000).map(|value: usize| Reply::Text(value.to_string())).collect();
    let mut args = vec!["MGET"];
    args.extend(keys.iter().map(String::as_str));
    let pipeline = request(&args).repeat(DEEP);
    let before = server.memory_peak_bytes();
    let median = good.counts_during(ROUNDS, || {
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = Redis::connect(address);
                    let mut sender = client.sender();
                    let sent = scope.spawn({
                        let pipeline = &pipeline;
                        move || sender.write_all(pipeline).unwrap()
                    });
                    (0..DEEP).for_each(|_| assert_eq!(client.read().unwrap().items(), values));
                    sent.join().unwrap();
                });
            }
        });
    });
    assert_bounded(&server, before, median);
}

#[test]
fn simultaneous_requests_of_many_clients_are_not_gathered_all_at_once() {
    let _alone = alone();
    let mut mget = vec!["MGET"];
    mget.resize(1001, "k");
    for (name, clients, requests, replies, grown_max) in [
        ("many keys", 200, request(&mget).repeat(8), 8, 320 * MIB),
        ("long replies", 600, request(&["COMMAND", "DOCS"]).repeat(12), 12, 160 * MIB),
    ] {
        let server = Server::start();
        let mut clients: Vec<Redis> = (0..clients).map(|_| Redis::connect(&server.redis)).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
        let before = server.memory_peak_bytes();
        server.hold(|| clients.iter_mut().for_each(|client| assert!(client.send(&requests))));
        for client in &mut clients {
            (0..replies).for_each(|_| assert!(matches!(client.read(), Some(Reply::Array(_)))));
        }
        let grown = server.memory_peak_bytes() - before;
        eprintln!("{name}: {} MiB more", grown >> 20);
        assert!(grown < (threads() * grown_max) as u64, "{name}: {} MiB", grown >> 20);
    }
}

#[test]
fn listings_of_many_clients_are_not_held_in_memory_all_at_once() {
    const COUNTERS: usize = 50_000;
    let _alone = alone();
    let server = Server::start();
    let mut writer = Redis::connect(&server.redis);
    let incr = |number: usize| request(&["INCR", &format!("listed:{number:032}")]);
    for first in (0..COUNTERS).step_by(1_000) {
        assert!(writer.send(&(first..first + 1_000).flat_map(incr).collect::<Vec<u8>>()));
        (0..1_000).for_each(|_| assert_eq!(writer.read(), Some(Reply::Integer(1))));
    }
    for (name, clients, listing) in
        [("KEYS", 40, vec!["KEYS", "*"]), ("SCAN", 400, vec!["SCAN", "0", "COUNT", "1000", "MATCH", "*zz*"])]
    {
        let mut clients: Vec<Redis> = (0..clients).map(|_| Redis::connect(&server.redis)).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
        let before = server.memory_peak_bytes();
        server.hold(|| clients.iter_mut().for_each(|client| assert!(client.send(&request(&listing)))));
        let is_listed = |client: &mut Redis| matches!(client.read(), Some(Reply::Array(_)));
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| assert!(is_listed(client)));
            }
        });
        let grown = server.memory_peak_bytes() - before;
        eprintln!("{name}: {} MiB more", grown >> 20);
        assert!(grown < 128 * MIB as u64, "{name}: {} MiB", grown >> 20);
    }
}
