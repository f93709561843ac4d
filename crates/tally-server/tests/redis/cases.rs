//! Regression tests: bugs that random commands found, and cases that cannot be compared with Redis.

use crate::harness::Server;
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};

/// Cases that failed before. Each line is a request; a case has its own connection.
const CASES: [&[&str]; 27] = [
    // An EXEC with arguments discards the transaction.
    &["multi", "incr a", "exec x", "exec", "exec x", "get a"],
    // The name is set even if a later option is invalid.
    &["hello 2 setname al x", "client getname", "hello 2 setname a\tb x", "client getname"],
    &["function flush sync x", "Function Flush sync x", "function flush x", "function flush ASYNC"],
    // Errors quote arguments up to the first zero byte.
    &["set a 1", "expire a 1 n\0x", "client list type n\0x", "hello 2 n\0x"],
    &["multi", "multi", "incr b", "exec", "get b"],
    &["multi", "nope", "incr c", "exec", "get c", "multi", "get", "discard", "exec"],
    // Commands with helpers in client libraries.
    &["setex e 100 5", "get e", "ttl e", "psetex e 100000 6", "get e", "setnx e 1", "setnx e2 1", "get e2", "get e"],
    &["setex e 0 1", "setex e x 1", "setex e -1 1", "psetex e 0 5", "psetex e 9223372036854775807 5", "setex e 1"],
    &["mset f 1 g 2 f 3", "mget f g", "mset f", "mset f 1 g", "msetnx f 1", "expire f 100", "mset f 4", "ttl f"],
    &["msetnx h 1 i 2", "mget h i", "msetnx j 1 h 9", "exists j", "msetnx k 1 k 2", "get k", "msetnx k 1 l", "msetnx"],
    &["set m 5", "getex m", "getex m ex 100", "ttl m", "getex m persist", "ttl m", "getex m px 100000", "persist m"],
    &[
        "getex m ex 0",
        "getex m ex",
        "getex m persist ex 1",
        "getex m ex 1 persist",
        "getex m ex 50 ex 100",
        "getex m nx",
    ],
    &[
        "getex none",
        "getex none ex 10",
        "getex m exat 1",
        "exists m",
        "getex m ex x",
        "getex m ex 0",
        "set m 1",
        "getex m ex x",
        "getex",
    ],
    &["set n -123", "strlen n", "strlen none", "strlen", "touch n none n", "touch", "type n", "object encoding n"],
    &["object encoding none", "object freq n", "object freq none", "object idletime none", "object nope n", "object"],
    &[
        "set o 1",
        "rename o p",
        "get o",
        "get p",
        "rename o p",
        "rename p p",
        "rename zz zz",
        "rename p",
        "renamenx p q",
    ],
    &["set p 2", "renamenx p q", "get q", "renamenx q q", "renamenx zz q", "renamenx p r", "get r", "exists p"],
    &["set s 1 ex 100", "set t 2", "rename s t", "get t", "ttl t", "set s 3", "rename s t", "ttl t", "get t"],
    &["set u 1 ex 100", "copy u v", "get v", "ttl v", "copy u v", "set u 2", "copy u v replace", "get v", "copy zz v"],
    &["copy u u", "copy u v db 0", "copy u w db 1", "copy u w db x", "copy u w db", "copy u w nope", "copy u", "get w"],
    &[
        "wait 0 0",
        "wait x 0",
        "wait 0 x",
        "wait 0 -1",
        "wait 0",
        "role",
        "acl whoami",
        "acl users",
        "acl",
        "module list",
    ],
    &[
        "slowlog get",
        "slowlog get 5",
        "slowlog get -1",
        "slowlog get -2",
        "slowlog get x",
        "slowlog len",
        "slowlog reset",
    ],
    &["latency latest", "latency reset", "latency reset a b", "latency history x", "latency history", "latency nope"],
    &[
        "memory usage none",
        "memory usage n samples",
        "memory usage n samples x",
        "memory usage n nope 1",
        "memory usage",
    ],
    &[
        "client kill 1.2.3.4:5",
        "client kill id x",
        "client kill id 0",
        "client kill type nope",
        "client kill user nope",
    ],
    &[
        "client kill skipme maybe",
        "client kill addr 1:2 skipme yes",
        "client kill nope a",
        "client kill",
        "client reply x",
    ],
    &["set d 5", "multi", "expire d -1", "get d", "set d 6 nx get", "incr d", "exec", "get d", "ttl d"],
];

#[test]
fn cases_that_random_commands_found_get_the_replies_of_redis() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    for case in CASES {
        let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
        for line in case {
            assert_eq!(ours.say(line), theirs.say(line), "{line} in {case:?}");
        }
    }
}

/// Sends each request and asserts that its reply, as text, starts with the given one.
fn assert_replies(resp: &mut Resp, cases: &[(&str, &str)]) {
    for (line, begin) in cases {
        let reply = match resp.say(line) {
            Reply::Error(text) | Reply::Simple(text) | Reply::Line(text) => text,
            Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Reply::Integer(number) => number.to_string(),
            Reply::Many(_, items) => format!("{:?}", items.iter().map(Reply::number).collect::<Vec<_>>()),
        };
        assert!(reply.starts_with(begin), "{line}: {reply}");
    }
}

#[test]
fn unsupported_requests_are_refused_with_an_error_and_change_nothing() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let long = "x".repeat(513);
    assert_replies(
        &mut resp,
        &[
            ("set a x", "ERR value is not an integer or out of range"),
            ("set a 1.5", "ERR value is not an integer or out of range"),
            ("getset a 01", "ERR value is not an integer or out of range"),
            ("exists a", "0"),
            ("incr ", "ERR "),
            (&format!("incr {long}"), "ERR "),
            (&format!("mget a {long}"), "ERR "),
            (&format!("del a {long}"), "ERR "),
            ("lpush a 1", "ERR unknown command 'lpush'"),
            ("mset a 1 b x", "ERR value is not an integer or out of range"),
            ("msetnx a 1 b 01", "ERR value is not an integer or out of range"),
            ("setex a 10 x", "ERR value is not an integer or out of range"),
            ("setnx a x", "ERR value is not an integer or out of range"),
            (&format!("mset a 1 {long} 2"), "ERR "),
            (&format!("watch a {long}"), "ERR "),
            ("subscribe a", "ERR unknown command 'subscribe'"),
            ("eval x 0", "ERR unknown command 'eval'"),
            ("scan 4711", "ERR invalid cursor"),
            ("config set maxmemory 1", "ERR CONFIG SET failed"),
            ("dbsize", "0"),
        ],
    );
}

#[test]
fn keys_lists_the_keys_that_match() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
    for key in ["a:1", "a:2", "b:1", "*", "a*"] {
        assert_eq!(ours.say(&format!("set {key} 1")), theirs.say(&format!("set {key} 1")));
    }
    for pattern in ["*", "a*", "a:?", "b:1", "a\\*", "[ab]:1", "none", "a:[^1]"] {
        let sorted = |reply: Reply| {
            let mut keys = reply.items().to_vec();
            keys.sort();
            keys
        };
        let request = format!("keys {pattern}");
        assert_eq!(sorted(ours.say(&request)), sorted(theirs.say(&request)), "{pattern}");
    }
}

#[test]
fn the_idle_time_of_a_counter_is_the_time_since_its_last_change() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_replies(&mut resp, &[("object idletime a", "$-1"), ("incr a", "1"), ("incr a", "2")]);
    crate::harness::wait_for("a second to pass", || match resp.say("object idletime a").number() {
        0 => Err(0),
        seconds => Ok(seconds),
    });
    let refused = "ERR Command not allowed inside a transaction";
    assert_replies(&mut resp, &[("incr a", "3"), ("object idletime a", "0"), ("multi", "OK")]);
    assert_replies(&mut resp, &[("object idletime a", refused), ("discard", "OK")]);
}

#[test]
fn the_memory_of_a_counter_depends_on_its_key_and_expiry() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let long = "k".repeat(100);
    assert_replies(&mut resp, &[("mset a 1 b 2", "OK"), (&format!("set {long} 1"), "OK"), ("expire b 100", "1")]);
    let mut usage = |key: &str| resp.say(&format!("memory usage {key}")).number();
    let (plain, expiring, long) = (usage("a"), usage("b"), usage(&long));
    assert!(plain > 50 && expiring > plain && long >= plain + 100, "{plain} {expiring} {long}");
}

/// The source is read before the destination is written, so another client can change it in between. Then nothing is
/// written, and the command is retried.
#[test]
fn no_increment_is_lost_while_a_counter_is_renamed() {
    const ROUNDS: i64 = 2_000;
    let server = Server::start();
    let address = server.redis.as_str();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let mut resp = Resp::try_to(address).unwrap();
            (0..ROUNDS).for_each(|_| assert!(resp.say("incr from").number() > 0));
        });
        let mut resp = Resp::to(&server);
        let mut moved = 0;
        loop {
            let is_last = adding.is_finished();
            if resp.say("rename from to") == Reply::Simple("OK".into()) {
                moved += resp.say("getdel to").number();
            }
            if is_last && resp.say("exists from") == Reply::Integer(0) {
                break;
            }
        }
        assert_eq!(moved, ROUNDS);
    });
}

#[test]
fn keyspace_commands_and_hello_abort_a_transaction() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    for line in
        ["scan 0", "dbsize", "randomkey", "flushall", "flushdb", "tally.read a", "hello 3", "keys *", "rename a b"]
    {
        let refused = "ERR Command not allowed inside a transaction";
        let aborted = "EXECABORT Transaction discarded because of previous errors.";
        assert_replies(&mut resp, &[("multi", "OK"), ("incr a", "QUEUED"), (line, refused), ("exec", aborted)]);
    }
    assert_replies(&mut resp, &[("exists a", "0")]);
}

#[test]
fn increx_works_in_a_transaction_and_refuses_incompatible_options() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_replies(
        &mut resp,
        &[
            ("increx", "ERR wrong number of arguments for 'increx' command"),
            ("increx a byfloat 1", "ERR BYFLOAT"),
            ("increx a byint x", "ERR Increment is not an integer or out of range"),
            ("increx a lbound x", "ERR LBOUND is not an integer or out of range"),
            ("increx a ubound", "ERR syntax error"),
            ("increx a byint 1 byint 1", "ERR syntax error"),
            ("increx a saturate saturate", "ERR syntax error"),
            ("increx a ex 1 px 1", "ERR syntax error"),
            ("increx a ex 10 persist", "ERR syntax error"),
            ("increx a persist enx", "ERR syntax error"),
            ("increx a enx", "ERR ENX flag requires an expiration"),
            ("increx a ex 0", "ERR invalid expire time in 'increx' command"),
            ("increx a ex x", "ERR value is not an integer or out of range"),
            ("increx a lbound 2 ubound 1", "ERR LBOUND can't be greater than UBOUND"),
            ("increx a lbound 5", "[0, 0]"),
            ("exists a", "0"),
            ("increx a byint 0", "[0, 0]"),
            ("exists a", "1"),
            ("multi", "OK"),
            ("increx a ubound 2", "QUEUED"),
            ("increx a byint 5 ubound 2", "QUEUED"),
            ("increx a byint 5 ubound 2 saturate", "QUEUED"),
        ],
    );
    let pair = |value, applied| Reply::Many(b'*', vec![Reply::Integer(value), Reply::Integer(applied)]);
    assert_eq!(resp.say("exec").items(), [pair(1, 1), pair(1, 0), pair(2, 1)]);
}

#[test]
fn a_transaction_that_is_too_large_is_refused_as_a_whole() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("multi"), Reply::Simple("OK".into()));
    let replies: Vec<_> = (0..2000).map(|_| resp.say("incr a")).collect();
    assert!(replies.iter().any(|reply| reply.error().starts_with("ERR the transaction is too large")));
    assert!(resp.say("exec").error().starts_with("EXECABORT"));
    assert_eq!(resp.say("exists a"), Reply::Integer(0));
}
