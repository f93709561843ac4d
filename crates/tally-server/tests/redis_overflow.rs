//! Combined increments that overflow: each has its own outcome, none is submitted twice, and the directory opens again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::thread;

use harness::wire::{Reply, Resp, request};
use harness::{Server, run, tally};

const CLIENTS: usize = 6;
const PIPELINE: usize = 8_000;

/// Six pipelines of refused increments used to form one batch that recovery could not read.
#[test]
fn acknowledged_increments_after_an_overflow_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path());
    let mut resp = Resp::to(&server);
    let nearly_full = i64::MAX - 100;
    resp.call(&["SET", "k", &nearly_full.to_string()]);
    let clients: Vec<Resp> = (0..CLIENTS).map(|_| Resp::to(&server)).collect();
    let applied: Vec<usize> = thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|mut resp| {
                scope.spawn(move || {
                    resp.send(&request(&["INCR", "k"]).repeat(PIPELINE)).unwrap();
                    let replies = (0..PIPELINE).map(|_| resp.reply().unwrap());
                    replies.filter(|reply| matches!(reply, Reply::Integer(_))).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(applied.iter().sum::<usize>(), 100, "exactly as many as fit: {applied:?}");
    assert_eq!(resp.say("INCR after"), Reply::Integer(1));
    server.kill();
    let checked = run(tally().arg("check").arg(dir.path()));
    assert_eq!(checked.code, 0, "{}", checked.err);
    let server = Server::start_in(dir.path());
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("GET k").number(), i64::MAX);
    assert_eq!(resp.say("GET after").number(), 1);
}

/// Amounts of all sizes in one pipeline: every reply is as if they were added one by one. The value survives a kill.
#[test]
fn mixed_amounts_at_the_end_of_the_range_act_like_adds_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path());
    let mut resp = Resp::to(&server);
    let amounts: Vec<i64> = (0..4_000).map(|n| [i64::MAX / 3, 1, 0, i64::MAX / 7, 2, -(i64::MAX / 2)][n % 6]).collect();
    let pipeline: Vec<u8> = amounts.iter().flat_map(|amount| request(&["INCRBY", "k", &amount.to_string()])).collect();
    resp.send(&pipeline).unwrap();
    let mut value = 0i64;
    for amount in &amounts {
        let reply = resp.reply().unwrap();
        match value.checked_add(*amount) {
            Some(sum) => {
                value = sum;
                assert_eq!(reply, Reply::Integer(value));
            }
            None => assert_eq!(reply.error(), "ERR increment or decrement would overflow"),
        }
    }
    server.kill();
    let server = Server::start_in(dir.path());
    assert_eq!(Resp::to(&server).say("GET k").number(), value);
}
