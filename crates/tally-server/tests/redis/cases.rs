//! Regression tests: bugs that random commands found, and cases that cannot be compared with Redis.

use crate::harness::Server;
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};

/// Cases that failed before. Each line is a request; a case has its own connection.
const CASES: [&[&str]; 7] = [
    // An EXEC with arguments discards the transaction.
    &["multi", "incr a", "exec x", "exec", "exec x", "get a"],
    // The name is set even if a later option is invalid.
    &["hello 2 setname al x", "client getname", "hello 2 setname a\tb x", "client getname"],
    &["function flush sync x", "Function Flush sync x", "function flush x", "function flush ASYNC"],
    // Errors quote arguments up to the first zero byte.
    &["set a 1", "expire a 1 n\0x", "client list type n\0x", "hello 2 n\0x"],
    &["multi", "multi", "incr b", "exec", "get b"],
    &["multi", "nope", "incr c", "exec", "get c", "multi", "get", "discard", "exec"],
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
            ("mset a 1", "ERR unknown command 'mset'"),
            ("watch a", "ERR unknown command 'watch'"),
            ("subscribe a", "ERR unknown command 'subscribe'"),
            ("eval x 0", "ERR unknown command 'eval'"),
            ("scan 4711", "ERR invalid cursor"),
            ("config set maxmemory 1", "ERR CONFIG SET failed"),
            ("dbsize", "0"),
        ],
    );
}

#[test]
fn keyspace_commands_and_hello_abort_a_transaction() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    for line in ["scan 0", "dbsize", "randomkey", "flushall", "flushdb", "tally.read a", "hello 3"] {
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
