//! A load of increments whose sum is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::json;

use crate::harness::{Client, Server, wait_for};

/// One in this many requests is sent again after its acknowledgement.
const REPEAT_EVERY: u64 = 5;

/// Clients that send increments with distinct ids, each until it is acknowledged.
pub struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<BTreeMap<String, u64>>>,
}

impl Load {
    /// Starts clients that alternate between these nodes, so that retries go through another one.
    pub fn start(servers: &[&Server], clients: usize) -> Load {
        let bases: Vec<String> = servers.iter().map(|server| server.base.clone()).collect();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        static LOADS: AtomicU32 = AtomicU32::new(0);
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let start = |client| {
            let (bases, stop, sent) = (bases.clone(), Arc::clone(&stop), Arc::clone(&sent));
            thread::spawn(move || count_until(&bases, (load, client), &stop, &sent))
        };
        let clients = (0..clients as u64).map(start).collect();
        Load { stop, sent, clients }
    }

    /// Number of increments that are acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until this many more are acknowledged.
    pub fn wait_for_more(&self, more: u64) {
        let wanted = self.acknowledged() + more;
        wait_for("load", || {
            let sent = self.acknowledged();
            if sent >= wanted { Ok(()) } else { Err(format!("{sent} sent")) }
        });
    }

    /// Stops, and returns what each counter got.
    pub fn stop(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for client in self.clients {
            for (key, count) in client.join().unwrap() {
                *all.entry(key).or_insert(0) += count;
            }
        }
        all
    }
}

fn count_until(
    bases: &[String],
    (load, client): (u32, u64),
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    let mut connections: Vec<Client> = bases.iter().map(|base| Client::new(base)).collect();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("load:{}", (client + number) % 7);
        let body = json!({ "amount": 1, "request_id": format!("{load}-{client}-{number}") }).to_string();
        let path = format!("/api/v1/counters/{key}/increment");
        let mut at = number as usize % connections.len();
        let mut send = || {
            wait_for("an acknowledgement", || {
                at = (at + 1) % connections.len();
                match connections[at].try_send("POST", &path, &[], &body) {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    Ok(answer) => {
                        assert_eq!(answer.status, 503, "{}", answer.text);
                        Err(answer.text)
                    }
                    Err(error) => {
                        connections[at] = Client::new(&bases[at]);
                        Err(error.to_string())
                    }
                }
            });
        };
        send();
        if number.is_multiple_of(REPEAT_EVERY) {
            send();
        }
        *counted.entry(key).or_insert(0) += 1;
        sent.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
    counted
}
