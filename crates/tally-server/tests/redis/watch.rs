//! Optimistic transactions: compared with a real Redis, and under contention.

use crate::harness::Server;
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};

/// Each case has the commands of one connection. Those of another connection in between are in brackets.
const CASES: [&[&str]; 22] = [
    &["watch a", "multi", "incr a", "exec", "get a"],
    &["watch a", "[incr a]", "multi", "incr a", "exec", "get a", "multi", "incr a", "exec"],
    &["set b 1", "watch b", "multi", "incr b", "[incr b]", "exec", "get b"],
    // Back to the same value.
    &["set c 1", "watch c", "[incr c]", "[decr c]", "multi", "incr c", "exec", "get c"],
    &["set d 1", "watch d", "[set d 2]", "[set d 1]", "multi", "incr d", "exec"],
    &["set e 1", "watch e", "[del e]", "multi", "incr e", "exec", "exists e"],
    &["watch f", "[set f 1]", "[del f]", "[set f 1]", "multi", "set f 5", "exec", "get f"],
    &["set g 1", "watch g", "[expire g 100]", "multi", "incr g", "exec"],
    &["set h 1 ex 100", "watch h", "[persist h]", "multi", "incr h", "exec"],
    &["set i 1", "watch i", "[get i]", "[ttl i]", "[exists i]", "[incr other]", "multi", "incr i", "exec"],
    &["watch j k l", "[incr k]", "multi", "incr j", "set l 1", "exec", "mget j k l"],
    &["watch m", "unwatch", "[incr m]", "multi", "incr m", "exec"],
    &["watch n", "multi", "discard", "[incr n]", "multi", "incr n", "exec"],
    &["watch o", "[incr o]", "multi", "nope", "exec", "multi", "incr o", "exec"],
    &["watch p", "multi", "watch q", "incr p", "exec"],
    &["watch p", "[incr p]", "multi", "exec x", "multi", "incr p", "exec"],
    &["watch r", "[incr r]", "multi", "exec", "multi", "exec"],
    &["watch s", "incr s", "multi", "incr s", "exec", "get s"],
    &["watch t", "[incr t]", "watch t", "multi", "incr t", "exec"],
    &["watch u u", "multi", "get u", "unwatch", "ping", "set u 1", "get u", "exec"],
    &["watch v", "[incr v]", "reset", "multi", "incr v", "exec"],
    &["watch", "unwatch x", "watch w", "[mset w 1 x 2]", "multi", "msetnx w 3 y 4", "exec"],
];

#[test]
fn a_transaction_is_aborted_when_redis_aborts_it() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    for version in ["hello 2", "hello 3"] {
        for case in CASES {
            let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
            let (mut their_other, mut our_other) = (Resp::over(redis.connect()), Resp::to(&server));
            assert_eq!(our_other.say("flushall"), their_other.say("flushall"));
            ours.say(version);
            theirs.say(version);
            for line in case {
                match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                    Some(line) => assert_eq!(our_other.say(line), their_other.say(line), "{line} in {case:?}"),
                    None => assert_eq!(ours.say(line), theirs.say(line), "{line} in {case:?}"),
                }
            }
        }
    }
}

#[test]
fn a_change_that_leaves_no_trace_does_not_abort_a_transaction() {
    let server = Server::start();
    let (mut resp, mut other) = (Resp::to(&server), Resp::to(&server));
    assert_eq!(resp.say("set a 1"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("watch a"), Reply::Simple("OK".into()));
    // Redis aborts: docs/redis.md lists the difference.
    assert_eq!(other.say("expire a 100"), Reply::Integer(1));
    assert_eq!(other.say("persist a"), Reply::Integer(1));
    resp.say("multi");
    resp.say("incr a");
    assert_eq!(resp.say("exec").items(), [Reply::Integer(2)]);
}

#[test]
fn a_watched_counter_that_expires_aborts_the_transaction() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("set a 1 px 50"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("watch a"), Reply::Simple("OK".into()));
    crate::harness::wait_for("the counter to expire", || match resp.say("exists a") {
        Reply::Integer(0) => Ok(()),
        other => Err(other),
    });
    assert_eq!(resp.say("multi"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("incr b"), Reply::Simple("QUEUED".into()));
    assert_eq!(resp.say("exec"), Reply::Line("*-1".into()));
    assert_eq!(resp.say("exists b"), Reply::Integer(0));
}

/// Read, then write what was read plus one: an update is lost if a transaction is applied even though another one came
/// in between.
#[test]
fn no_update_is_lost_between_many_clients() {
    const CLIENTS: i64 = 6;
    const ROUNDS: i64 = 150;
    let server = Server::start();
    let address = server.redis.as_str();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut resp = Resp::try_to(address).unwrap();
                let mut done = 0;
                while done < ROUNDS {
                    resp.send(b"WATCH sum\r\nGET sum\r\n").unwrap();
                    assert_eq!(resp.reply().unwrap(), Reply::Simple("OK".into()));
                    let value = match resp.reply().unwrap() {
                        Reply::Line(_) => 0,
                        reply => reply.number(),
                    };
                    let next = value + 1;
                    resp.send(format!("MULTI\r\nSET sum {next}\r\nINCR transactions\r\nEXEC\r\n").as_bytes()).unwrap();
                    (0..3).for_each(|_| assert!(resp.reply().unwrap().error().is_empty()));
                    done += i64::from(matches!(resp.reply().unwrap(), Reply::Many(..)));
                }
            });
        }
    });
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("get sum").number(), CLIENTS * ROUNDS);
    assert_eq!(resp.say("get transactions").number(), CLIENTS * ROUNDS);
}

#[test]
fn a_connection_watches_a_limited_number_of_keys() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let keys: Vec<String> = std::iter::once("WATCH".into()).chain((0..512).map(|n| format!("k:{n}"))).collect();
    assert_eq!(resp.call(&keys), Reply::Simple("OK".into()));
    assert_eq!(resp.call(&keys), Reply::Simple("OK".into()), "these are watched already");
    assert_eq!(resp.say("watch one-more").error(), "ERR a connection can watch at most 512 keys");
    assert_eq!(resp.say("unwatch"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("watch one-more"), Reply::Simple("OK".into()));
}

#[test]
fn a_transaction_with_guards_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path());
    let (mut resp, mut other) = (Resp::to(&server), Resp::to(&server));
    for (between, value) in [("ping", 1), ("incr a", 2)] {
        assert_eq!(resp.say("watch a"), Reply::Simple("OK".into()));
        other.say(between);
        resp.say("multi");
        resp.say("incr a");
        let reply = resp.say("exec");
        assert_eq!(other.say("get a").number(), value, "{reply:?}");
    }
    server.kill();
    let server = Server::start_in(dir.path());
    assert_eq!(Resp::to(&server).say("get a").number(), 2);
}
