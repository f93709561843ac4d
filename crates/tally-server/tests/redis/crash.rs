//! The kill test over the Redis protocol: no value that was returned is ever lost.
//!
//! Clients send increments in pipelines while the server is killed again and again. Increments have no id here, so one
//! without a reply may or may not have counted, but one with a reply must have. `TALLY_KILL_CYCLES` sets the number of
//! kills, `TALLY_KILL_SEED` the seed for their times.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tally_sim::rng::Rng;

use crate::harness::address::Address;
use crate::harness::wire::{Reply, Resp, request};
use crate::harness::{Server, run, tally, wait_for};
use crate::{clock_ms, number_from_env};

const CLIENTS: u64 = 8;
const CYCLES_DEFAULT: u64 = 5;
/// The server is killed after up to this many increments of the shared counter more than there are clients.
const KILL_AFTER_MAX: u64 = 4_000;

/// State shared by all clients.
struct Load {
    stop: AtomicBool,
    address: Address,
    /// Increments of the shared counter that were answered.
    answered: AtomicU64,
}

impl Load {
    /// Waits until this many more increments were answered.
    fn wait_for_answers(&self, more: u64) {
        let enough = self.answered.load(SeqCst) + more;
        wait_for("replies before the next kill", || {
            let seen = self.answered.load(SeqCst);
            if seen >= enough { Ok(()) } else { Err((seen, enough)) }
        });
    }
}

/// The replies that one client got.
struct ClientReplies {
    client: u64,
    rng: Rng,
    /// The last value of its own counter, and how many increments of it were sent.
    own: i64,
    own_sent: i64,
    /// Every value that an increment of the shared counter returned.
    hot: Vec<i64>,
    hot_sent: i64,
    /// The highest value of the shared counter that it has seen.
    hot_seen: i64,
    /// The last value of the two counters that it always changes together.
    both: i64,
}

impl ClientReplies {
    fn new(client: u64, seed: u64) -> ClientReplies {
        let rng = Rng::new(seed ^ (client << 32));
        ClientReplies { client, rng, own: 0, own_sent: 0, hot: Vec::new(), hot_sent: 0, hot_seen: 0, both: 0 }
    }

    /// Sends one pipeline and reads its replies until the connection fails.
    fn pipeline(&mut self, resp: &mut Resp, load: &Load) -> io::Result<()> {
        let client = self.client;
        let mut bytes = Vec::new();
        let kinds: Vec<u64> = (0..=self.rng.below(100)).map(|_| self.rng.below(8)).collect();
        for kind in &kinds {
            let lines = match kind {
                0 => vec!["GET hot".to_owned()],
                1 => vec!["MULTI".into(), format!("INCR a:{client}"), format!("INCR b:{client}"), "EXEC".into()],
                2..=4 => vec![format!("INCR own:{client}")],
                _ => vec!["INCR hot".to_owned()],
            };
            lines.iter().for_each(|line| bytes.extend(request(&line.split(' ').collect::<Vec<_>>())));
        }
        self.own_sent += kinds.iter().filter(|kind| matches!(kind, 2..=4)).count() as i64;
        self.hot_sent += kinds.iter().filter(|kind| **kind > 4).count() as i64;
        resp.send(&bytes)?;
        let before = self.hot.len();
        let result = kinds.iter().try_for_each(|kind| self.read_reply(*kind, resp));
        load.answered.fetch_add((self.hot.len() - before) as u64, SeqCst);
        result
    }

    fn read_reply(&mut self, kind: u64, resp: &mut Resp) -> io::Result<()> {
        match kind {
            0 => {
                let seen = match resp.reply()? {
                    Reply::Line(_) => 0,
                    value => value.number(),
                };
                assert!(seen >= self.hot_seen, "hot was {} and is {seen}", self.hot_seen);
                self.hot_seen = seen;
            }
            1 => {
                let replies: Vec<_> = (0..4).map(|_| resp.reply()).collect::<io::Result<_>>()?;
                let values: Vec<_> = replies[3].items().iter().map(Reply::number).collect();
                assert!(values.len() == 2 && values[0] == values[1] && values[0] > self.both, "{values:?}");
                self.both = values[0];
            }
            2..=4 => {
                let value = resp.reply()?.number();
                assert!(self.own < value && value <= self.own_sent, "own was {} and is {value}", self.own);
                self.own = value;
            }
            _ => {
                let value = resp.reply()?.number();
                assert!(value > self.hot_seen, "hot was {} and is {value}", self.hot_seen);
                self.hot_seen = value;
                self.hot.push(value);
            }
        }
        Ok(())
    }
}

/// Sends pipelines until told to stop, to the current address of the server.
fn send_until_stopped(load: &Load, client: u64, seed: u64) -> ClientReplies {
    let mut clients = ClientReplies::new(client, seed);
    let mut server = load.address.get();
    let mut connection = Resp::try_to(&server);
    while !load.stop.load(SeqCst) {
        if !connection.as_mut().is_ok_and(|resp| clients.pipeline(resp, load).is_ok()) {
            server = load.address.after(&server);
            connection = Resp::try_to(&server);
        }
    }
    clients
}

fn assert_kept(server: &Server, clients: &[ClientReplies]) {
    let mut resp = Resp::to(server);
    let mut value = |key: String| resp.call(&["INCRBY", &key, "0"]).number();
    for client in clients {
        let own = value(format!("own:{}", client.client));
        assert!((client.own..=client.own_sent).contains(&own), "own:{} is {own}", client.client);
        let [a, b] = ["a", "b"].map(|name| value(format!("{name}:{}", client.client)));
        assert!(a == b && a >= client.both, "changed together: {a}, {b}, and {} was returned", client.both);
    }
    let hot = value("hot".into());
    let all: Vec<i64> = clients.iter().flat_map(|client| client.hot.iter().copied()).collect();
    let distinct: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "no two increments return the same value");
    let sent: i64 = clients.iter().map(|client| client.hot_sent).sum();
    let highest = distinct.last().copied().unwrap_or_default();
    assert!((highest..=sent).contains(&hot), "hot is {hot}, {highest} was returned and {sent} were sent");
}

#[test]
fn no_returned_value_is_lost_however_often_the_server_is_killed() {
    let cycles = number_from_env("TALLY_KILL_CYCLES").unwrap_or(CYCLES_DEFAULT);
    let seed = number_from_env("TALLY_KILL_SEED").unwrap_or_else(clock_ms);
    println!("{cycles} cycles, TALLY_KILL_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Server::start_in(&data);
    let load = Load { stop: AtomicBool::new(false), address: Address::new(&server.redis), answered: AtomicU64::new(0) };
    let (server, clients) = std::thread::scope(|scope| {
        let send = |client| send_until_stopped(&load, client, seed);
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || send(client))).collect();
        let mut rng = Rng::new(seed);
        for _ in 0..cycles {
            load.wait_for_answers(CLIENTS + rng.below(KILL_AFTER_MAX));
            server.kill();
            server = Server::start_in(&data);
            load.address.set(&server.redis);
        }
        load.wait_for_answers(CLIENTS);
        load.stop.store(true, SeqCst);
        (server, clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>())
    });
    let replies: usize = clients.iter().map(|client| client.hot.len()).sum();
    println!("{replies} increments of the shared counter were answered");
    assert!(replies as u64 >= cycles * CLIENTS, "too few replies for a meaningful test: {replies}");
    assert_kept(&server, &clients);
    server.kill();
    let checked = run(tally().arg("check").arg(&data));
    assert_eq!(checked.code, 0, "{}", checked.err);
}

#[test]
fn expiries_survive_a_kill_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(dir.path());
    let mut resp = Resp::to(&server);
    let at = clock_ms() as i64 + 1_000_000_123;
    for line in [
        &format!("set exact 1 pxat {at}"),
        "set relative 2 ex 1000",
        &format!("increx window ubound 5 pxat {at} enx"),
        "set kept 3 ex 1000",
        "persist kept",
        "set soon 4 px 1500",
        "set gone 5 px 1",
        "set counted 6 ex 1000",
        "incr counted",
    ] {
        assert_eq!(resp.say(line).error(), "", "{line}");
    }
    let moments = |resp: &mut Resp| {
        ["exact", "relative", "window", "kept", "counted"].map(|key| resp.call(&["PEXPIRETIME", key]).number())
    };
    let before = moments(&mut resp);
    assert_eq!((before[0], before[2], before[3]), (at, at, -1));
    for restart in 0..2 {
        if restart == 0 {
            server.kill();
        } else {
            assert!(server.terminate().success());
        }
        server = Server::start_in(dir.path());
        resp = Resp::to(&server);
        assert_eq!(moments(&mut resp), before, "restart {restart}");
        assert_eq!(resp.say("exists gone exact relative window kept counted"), Reply::Integer(5));
        assert_eq!(resp.say("get counted").number(), 7);
    }
    wait_for("the expiry of `soon`", || {
        assert!(resp.say("pttl soon").number() <= 1500);
        match resp.say("exists soon") {
            Reply::Integer(0) => Ok(()),
            other => Err(other),
        }
    });
    assert_eq!(resp.say("incr soon"), Reply::Integer(1), "a new counter starts from zero");
    assert_eq!(resp.say("ttl soon"), Reply::Integer(-1));
}
