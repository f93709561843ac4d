//! Clients that expect several databases or a cluster: there is one database, and no cluster.

use std::collections::BTreeMap;

use crate::harness::Server;
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

#[test]
fn selecting_a_database_gets_the_reply_of_redis() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    for line in ["select 0", "select 1", "select -1", "select x", "select", "select 0 0", "select 00"] {
        let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
        assert_eq!(ours.say(line), theirs.say(line), "{line}");
    }
}

#[test]
fn after_a_refused_select_nothing_is_counted_in_another_database() {
    let server = Server::start();
    for (select, name) in [("select 1", "database 1,"), ("select 15", "database 15,"), ("select x", "database x,")] {
        let mut resp = Resp::to(&server);
        assert!(!resp.say(select).error().is_empty());
        for line in ["incr a", "get a", "ping", "multi", "info", "scan 0", "flushall", "client id"] {
            let error = resp.say(line).error().to_owned();
            assert!(error.starts_with("ERR ") && error.contains(name) && error.contains("SELECT 0"), "{line}: {error}");
        }
        assert_eq!(resp.say("auth default x"), Reply::Simple("OK".into()));
        assert!(matches!(resp.say("hello 2"), Reply::Many(..)));
        assert!(resp.say("incr a").error().contains(name), "HELLO selects no database");
        assert_eq!(resp.say("select 0"), Reply::Simple("OK".into()));
        assert_eq!(resp.say("exists a"), Reply::Integer(0));
        assert!(!resp.say(select).error().is_empty());
        assert_eq!(resp.say("reset"), Reply::Simple("RESET".into()));
        assert_eq!(resp.say("exists a"), Reply::Integer(0));
        assert!(!resp.say(select).error().is_empty());
        assert_eq!(resp.say("quit"), Reply::Simple("OK".into()));
        assert!(resp.is_closed());
    }
}

#[test]
fn requests_that_were_sent_together_with_a_refused_select_are_refused() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    resp.send(b"SELECT 3\r\nINCR a\r\nINCR a\r\nSELECT 0\r\nINCR a\r\n").unwrap();
    let replies: Vec<Reply> = (0..5).map(|_| resp.reply().unwrap()).collect();
    assert!(replies[..3].iter().all(|reply| !reply.error().is_empty()), "{replies:?}");
    assert_eq!(replies[3..], [Reply::Simple("OK".into()), Reply::Integer(1)]);
}

#[test]
fn a_refused_select_aborts_its_transaction() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    for end in ["exec", "discard"] {
        assert_eq!(resp.say("multi"), Reply::Simple("OK".into()));
        assert_eq!(resp.say("select 0"), Reply::Simple("QUEUED".into()));
        assert_eq!(resp.say("incr a"), Reply::Simple("QUEUED".into()));
        assert_eq!(resp.say("select 1").error(), "ERR DB index is out of range");
        assert!(resp.say("incr a").error().contains("database 1"));
        match resp.say(end) {
            Reply::Error(text) => assert_eq!(text, ABORTED),
            reply => assert_eq!((reply, end), (Reply::Simple("OK".into()), "discard")),
        }
        assert!(resp.say(end).error().contains("database 1"), "the transaction has ended");
        assert_eq!(resp.say("select 0"), Reply::Simple("OK".into()));
    }
    assert_eq!(resp.say("exists a"), Reply::Integer(0));
    assert_eq!(resp.say("multi"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("select 0"), Reply::Simple("QUEUED".into()));
    assert_eq!(resp.say("exec").items(), [Reply::Simple("OK".into())]);
}

#[test]
fn random_keys_are_spread_over_all_counters() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    for range in [0..900, 900..1000] {
        let request = range.flat_map(|number| format!("INCR k:{number}\r\n").into_bytes()).collect::<Vec<u8>>();
        resp.send(&request).unwrap();
        request.chunk_by(|byte, _| *byte != b'\n').for_each(|_| assert_eq!(resp.reply().unwrap(), Reply::Integer(1)));
    }
    let deleted: Vec<String> = std::iter::once("DEL".into()).chain((0..900).map(|n| format!("k:{n}"))).collect();
    assert_eq!(resp.call(&deleted), Reply::Integer(900));
    let mut counts = BTreeMap::new();
    for _ in 0..2_000 {
        *counts.entry(resp.say("randomkey")).or_insert(0u32) += 1;
    }
    let most = counts.values().max().unwrap();
    assert!(counts.len() >= 95 && *most <= 60, "{} keys, one of them {most} times", counts.len());
}

#[test]
fn flushall_leaves_no_counter_even_if_some_have_expired() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    for number in 0..50 {
        assert_eq!(resp.say(&format!("incr k:{number}")), Reply::Integer(1));
    }
    for number in 0..30 {
        assert_eq!(resp.say(&format!("pexpireat k:{number} 1")), Reply::Integer(1));
    }
    assert_eq!(resp.say("flushall"), Reply::Simple("OK".into()));
    assert_eq!(resp.say("dbsize"), Reply::Integer(0));
    assert_eq!(resp.say("randomkey"), Reply::Line("$-1".into()));
}

#[test]
fn commands_are_listed_with_their_subcommands_like_in_redis() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
    let (known, listed) = (theirs.say("command list"), ours.say("command list"));
    for name in ["get", "client", "client|id", "command|docs"] {
        let name = Reply::Bulk(name.into());
        assert!(known.items().contains(&name) && listed.items().contains(&name), "{name:?}");
    }
}
