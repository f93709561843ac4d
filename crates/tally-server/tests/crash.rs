//! The kill test: writers retry every request until it is acknowledged while the server is killed again and again;
//! in the end every request has counted exactly once.
//!
//! `TALLY_KILL_CYCLES` sets the number of kills, `TALLY_KILL_SEED` the seed for their times. Which requests are in
//! progress at each kill depends on the machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{SystemTime, UNIX_EPOCH};

use harness::address::Address;
use harness::{Answer, Client, Server, run, tally, wait_for};
use serde_json::json;

const WRITERS: u64 = 8;
const KEYS: u64 = 20;
const CYCLES_DEFAULT: u64 = 10;
/// The server is killed after up to this many acknowledgements more than there are writers.
const KILL_AFTER_MAX: u64 = 200;

/// A small pseudo-random generator (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// One request: what it does and under which id.
#[derive(Clone)]
struct Request {
    id: String,
    key: String,
    delta: i64,
}

impl Request {
    fn new(writer: u64, number: u64, dice: &mut Dice) -> Request {
        let amount = 1 + dice.roll(9) as i64;
        Request {
            id: format!("w{writer}-{number}"),
            key: format!("ns{}:k{}", dice.roll(2), dice.roll(KEYS)),
            delta: if dice.roll(4) == 0 { -amount } else { amount },
        }
    }

    fn send(&self, client: &Client) -> Result<Answer, ureq::Error> {
        let verb = if self.delta < 0 { "decrement" } else { "increment" };
        let body = json!({"amount": self.delta.abs(), "request_id": self.id}).to_string();
        client.try_send("POST", &format!("/api/v1/counters/{}/{verb}", self.key), &[], &body)
    }
}

/// Writes until stopped; every request is retried until it is acknowledged. Returns all requests.
fn write_until(stop: &AtomicBool, address: &Address, writer: u64, seed: u64, acknowledged: &AtomicU64) -> Vec<Request> {
    let mut dice = Dice(seed ^ (writer << 32));
    let mut done = Vec::new();
    let mut server = address.get();
    let mut client = Client::new(&server);
    while !stop.load(SeqCst) {
        let request = Request::new(writer, done.len() as u64, &mut dice);
        loop {
            match request.send(&client) {
                Ok(answer) if answer.status == 200 => {
                    assert_eq!(answer.json["applied"], request.delta, "{}", answer.text);
                    break;
                }
                Ok(answer) => assert!([503, 507].contains(&answer.status), "{}: {}", request.id, answer.text),
                Err(_) => {
                    server = address.after(&server);
                    client = Client::new(&server);
                }
            }
        }
        acknowledged.fetch_add(1, SeqCst);
        done.push(request);
    }
    done
}

/// Kills the server at random moments and starts it again, and leaves the last one running. Every server acknowledges
/// something before it is killed, however slow the machine is.
fn kill_again_and_again(
    mut server: Server,
    data: &Path,
    address: &Address,
    cycles: u64,
    seed: u64,
    acknowledged: &AtomicU64,
) -> Server {
    let mut dice = Dice(seed);
    for _ in 0..cycles {
        let enough = acknowledged.load(SeqCst) + WRITERS + dice.roll(KILL_AFTER_MAX);
        wait_for("acknowledgements before the next kill", || {
            let seen = acknowledged.load(SeqCst);
            if seen >= enough { Ok(()) } else { Err((seen, enough)) }
        });
        server.kill();
        server = Server::start_in(data);
        address.set(&server.base);
    }
    server
}

fn assert_counted_once(server: &Server, requests: &[Request]) {
    let mut totals: BTreeMap<&str, i64> = BTreeMap::new();
    for request in requests {
        *totals.entry(&request.key).or_default() += request.delta;
    }
    for (key, total) in totals {
        assert_eq!(server.value(key), total, "{key}");
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}

#[test]
fn every_request_retried_until_acknowledged_counts_exactly_once_however_often_the_server_is_killed() {
    let cycles = number_from_env("TALLY_KILL_CYCLES").unwrap_or(CYCLES_DEFAULT);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let seed = number_from_env("TALLY_KILL_SEED").unwrap_or(clock);
    println!("{cycles} cycles, TALLY_KILL_SEED={seed}");

    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start_in(&data);
    let address = Address::new(&server.base);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (server, requests) = std::thread::scope(|scope| {
        let write = |writer| write_until(&stop, &address, writer, seed, &acknowledged);
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        let server = kill_again_and_again(server, &data, &address, cycles, seed, &acknowledged);
        stop.store(true, SeqCst);
        let requests: Vec<Request> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        (server, requests)
    });
    println!("{} requests acknowledged", requests.len());
    assert!(requests.len() as u64 >= cycles * WRITERS, "too few requests for a meaningful test: {}", requests.len());
    assert_counted_once(&server, &requests);

    let client = server.client();
    for request in requests.iter().rev().step_by(1 + requests.len() / 200) {
        let again = request.send(&client).unwrap();
        assert_eq!((again.status, &again.json["duplicate"]), (200, &json!(true)), "{}", request.id);
    }
    assert_counted_once(&server, &requests);
    server.kill();
    let checked = run(tally().arg("check").arg(&data));
    assert_eq!(checked.code, 0, "{}", checked.err);
}
