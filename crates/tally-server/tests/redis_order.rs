//! Commands of a connection are executed in order, even if combined increments overflow and are split.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use harness::resp::{Redis, Reply, request};
use harness::{Server, serve, write};

const NEARLY: &str = "9223372036854775805";
const LAST: i64 = i64::MAX;

/// Five increments of `key`, of which two fit, then `between`, then a deletion of `key`.
fn overflowing(key: &str, between: &[u8]) -> Vec<u8> {
    let incr = request(&["INCR", key]).repeat(5);
    let after = [request(&["GET", key]), request(&["DEL", key]), request(&["GET", key])].concat();
    [&incr, between, &after].concat()
}

/// Sends them and checks the replies before and after those to `between`.
fn send_and_check(client: &mut Redis, key: &str, between: &[u8], replies_between: usize) {
    assert_eq!(client.call(&["SET", key, NEARLY]).text(), "OK");
    assert!(client.send(&overflowing(key, between)));
    let replies: Vec<Reply> = (0..5 + replies_between + 3).map(|_| client.read().unwrap()).collect();
    assert_eq!(replies[..2], [Reply::Integer(LAST - 1), Reply::Integer(LAST)], "{key}");
    assert!(
        replies[2..5].iter().all(|reply| matches!(reply, Reply::Error(text) if text.contains("overflow"))),
        "{key}"
    );
    let after = &replies[replies.len() - 3..];
    assert_eq!(after, [Reply::Text(LAST.to_string()), Reply::Integer(1), Reply::Null], "{key}");
    assert_eq!(client.call(&["GET", key]), Reply::Null, "{key} stays deleted");
}

#[test]
fn overflowing_increments_stay_in_order_in_a_deep_pipeline() {
    let server = Server::start();
    let mut client = Redis::connect(&server.redis);
    // More events in one read than fit in one submission.
    let names: Vec<String> = (0..1_000).map(|number| format!("{number:x}")).collect();
    let words: Vec<&str> = std::iter::once("DEL").chain(names.iter().map(String::as_str)).collect();
    let removals = request(&words).repeat(5);
    assert!(removals.len() < 60_000);
    for round in 0..10 {
        send_and_check(&mut client, &format!("deep:{round}"), &removals, 5);
    }
}

#[test]
fn overflowing_increments_stay_in_order_across_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let settings = "[namespaces.views]\nconsistency = \"best-effort\"\n";
    let config = write(dir.path().join("tally.toml"), settings);
    let mut command = serve(&dir.path().join("data"));
    command.arg("--config").arg(config);
    let server = Server::start_with(command);
    let mut client = Redis::connect(&server.redis);
    // More events than a submitting thread flushes inline, then a change of namespace with each request.
    let names: Vec<String> = (0..900).map(|number| format!("{number:x}")).collect();
    let words: Vec<&str> = std::iter::once("DEL").chain(names.iter().map(String::as_str)).collect();
    let turns = [request(&["INCR", "views:1"]), request(&["INCR", "likes:1"])].concat().repeat(300);
    let between = [request(&words), turns].concat();
    for round in 0..50 {
        send_and_check(&mut client, &format!("mixed:{round}"), &between, 1 + 600);
    }
}
