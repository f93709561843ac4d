//! A worker is killed: when do exact writes work again, and does an eventual write fail?

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::nodes::BenchCluster;
use crate::BenchError;
use crate::redis::client::RespClient;
use crate::timer::Timer;

/// Counters that are written to; enough that every partition has one.
const KEYS: u64 = 40;
/// Longest wait, for a rebalance and for the end of the outage.
const SECONDS_MAX: f64 = 60.0;

/// What happened.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// From the kill until an exact write to every counter was acknowledged.
    pub exact_back_seconds: f64,
    /// Eventual writes that got an error meanwhile.
    pub eventual_failed: u64,
}

/// Kills one of two workers.
pub fn run(cluster: &BenchCluster, standbys: u32) -> Result<Outage, BenchError> {
    let api = cluster.node("api", standbys)?;
    let doomed = cluster.node("worker", standbys)?;
    cluster.wait_until_hosted()?;
    let _other = cluster.node("worker", standbys)?;
    let timer = Timer::start();
    loop {
        let mut owners = cluster.wait_until_hosted()?;
        owners.sort();
        owners.dedup();
        if owners.len() == 2 {
            break;
        }
        if timer.seconds() > SECONDS_MAX {
            return Err(BenchError::new(&"the second worker got no partition"));
        }
    }
    let connect = || RespClient::connect(api.resp_port).map_err(|error| BenchError::new(&error));
    let write_all = |client: &mut RespClient, namespace: &str| {
        (0..KEYS).try_for_each(|number| client.call(&["INCR", &format!("{namespace}:{number}")]).map(drop))
    };
    write_all(&mut connect()?, "exact")?;
    if standbys > 0 {
        // Until the standbys have caught up.
        thread::park_timeout(Duration::from_secs(3));
    }
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    let exact_back_seconds = thread::scope(|scope| {
        let eventual = scope.spawn(|| {
            let mut client = connect()?;
            while !stop.load(Ordering::Relaxed) {
                if write_all(&mut client, "eventual").is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                    client = connect()?;
                }
            }
            Ok::<(), BenchError>(())
        });
        drop(doomed);
        let timer = Timer::start();
        let mut client = connect()?;
        while write_all(&mut client, "exact").is_err() {
            client = connect()?;
            if timer.seconds() > SECONDS_MAX {
                break;
            }
        }
        let seconds = timer.seconds();
        stop.store(true, Ordering::Relaxed);
        eventual.join().map_err(|_| BenchError::new(&"the load panicked"))??;
        Ok::<f64, BenchError>(seconds)
    })?;
    Ok(Outage { exact_back_seconds, eventual_failed: failed.into_inner() })
}
