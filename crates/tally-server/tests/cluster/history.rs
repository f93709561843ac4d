//! A recorded history of exact operations while nodes die.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tally_sim::rng::Rng;

use crate::harness::{Client, wait_for};
use crate::linearizable::{Operation, Request, Response, check};
use crate::place::{EXACT, TestCluster};

const CLIENTS: u64 = 8;
const KEYS: u64 = 3;

/// A client, and what it did with each counter.
struct Recorder<'a> {
    connection: Client,
    /// Nodes, of which it uses the first that answers.
    bases: Vec<&'a str>,
    rng: Rng,
    started: Instant,
    history: Vec<(u64, Operation)>,
}

impl Recorder<'_> {
    /// One operation. Half of the changes are repeated with their request id until their outcome is known.
    fn step(&mut self, id: &str) {
        let key = self.rng.below(KEYS);
        let amount = 1 + self.rng.below(9) as i64;
        let request = match self.rng.below(10) {
            0..4 => Request::Add(amount),
            4..7 => Request::Take(amount),
            7 => Request::Set(amount),
            _ => Request::Read,
        };
        let is_repeated = self.rng.one_in(2);
        let called_at = self.now();
        let response = match request {
            // A repeated `Set` would be a second correction, because it has no request id.
            Request::Read | Request::Set(_) => self.send(key, request, None),
            _ if !is_repeated => self.send(key, request, None),
            _ => wait_for("a known outcome", || match self.send(key, request, Some(id)) {
                None | Some(Response::Unknown) => Err("unknown"),
                response => Ok(response),
            }),
        };
        // Without an answer, the operation did nothing.
        if let Some(response) = response {
            let returned_at = self.now();
            self.history.push((key, Operation { request, response, called_at, returned_at }));
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sends one request; `None` if it certainly did nothing.
    fn send(&mut self, key: u64, request: Request, id: Option<&str>) -> Option<Response> {
        let path = format!("/api/v1/counters/exact:{key}");
        let (method, path, body) = match request {
            Request::Add(amount) => ("POST", path + "/increment", json!({ "amount": amount })),
            Request::Take(amount) => ("POST", path + "/decrement", json!({ "amount": amount, "floor": 0 })),
            Request::Set(value) => ("PUT", path, json!({ "value": value, "reason": "test" })),
            Request::Read => ("GET", path + "/exact", Value::Null),
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers: Vec<(&str, &str)> = id.map(|id| ("Idempotency-Key", id)).into_iter().collect();
        let Ok(answer) = self.connection.try_send(method, &path, &headers, &body) else {
            self.bases.rotate_left(1);
            self.connection = Client::new(self.bases[0]);
            return (request != Request::Read).then_some(Response::Unknown);
        };
        let value = answer.json["value"].as_i64();
        match answer.status {
            200 => Some(Response::Value(value.unwrap())),
            409 => Some(Response::Refused(value.unwrap())),
            503 if request == Request::Read => None,
            503 if answer.json["outcome"] == "unknown" => Some(Response::Unknown),
            503 => None,
            status => panic!("{status}: {}", answer.text),
        }
    }
}

/// From the environment, or a new one each time.
fn seed() -> u64 {
    let given = std::env::var("TALLY_SEED").ok().map(|seed| seed.parse().unwrap());
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64)
}

#[test]
fn a_history_of_exact_operations_is_linearizable_while_nodes_die() {
    let seed = seed();
    println!("TALLY_SEED={seed}");
    let cluster = TestCluster::new(EXACT);
    let mut nodes = vec![cluster.node("api"), cluster.node("api")];
    let bases: Vec<String> = nodes.iter().map(|node| node.base.clone()).collect();
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let (stop, done, started) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let mut by_key: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|client| {
            let mut bases: Vec<&str> = bases.iter().map(String::as_str).collect();
            bases.rotate_left(client as usize % 2);
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                let connection = Client::new(bases[0]);
                let rng = Rng::new(seed.wrapping_add(client));
                let mut recorder = Recorder { connection, bases, rng, started, history: Vec::new() };
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    recorder.step(&format!("{client}-{number}"));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                recorder.history
            })
        });
        let clients: Vec<_> = clients.collect();
        let wait_for_more = |more: u64| {
            let wanted = done.load(Ordering::Relaxed) + more;
            wait_for("operations", || if done.load(Ordering::Relaxed) >= wanted { Ok(()) } else { Err("too few") });
        };
        for _ in 0..2 {
            wait_for_more(300);
            workers.remove(0).kill();
            workers.push(cluster.node("worker"));
        }
        wait_for_more(300);
        // Its clients do not know the outcome of their last operation.
        nodes.remove(0).kill();
        wait_for_more(300);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            for (key, operation) in client.join().unwrap() {
                by_key.entry(key).or_default().push(operation);
            }
        }
    });
    let all = by_key.values().flatten();
    let unknown = all.clone().filter(|operation| operation.response == Response::Unknown).count();
    println!("{} operations, {unknown} of them with an unknown outcome", all.count());
    for (key, history) in &by_key {
        check(history).unwrap_or_else(|why| panic!("TALLY_SEED={seed}: exact:{key}: {why}"));
    }
}
