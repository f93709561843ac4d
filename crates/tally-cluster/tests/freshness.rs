//! How old readings are, and that they say so.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::time::Duration;

use cluster::{PARTITIONS, TestPlace, TestServices, wait_until};
use tally_cluster::api::Cluster;
use tally_cluster::limits::TOTAL_TTL_MS;
use tally_cluster::partitioner::partition_of;
use tally_cluster::redis::{Heartbeat, TotalUpdate, Totals};
use tally_cluster::worker::Worker;
use tally_core::consistency::Consistency;
use tally_core::counter::CounterState;
use tally_core::event::{Change, Condition, Correction, Expiry};
use tally_core::key::Key;
use tally_core::outcome::Token;
use tally_core::record::write_counter;
use tally_core::surface::{Engine, EngineError, Health, ReadOptions, SubmitOptions};
use tally_core::time::{Millis, Position};

const HOUR_MS: u64 = 3_600_000;

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// The time by the clock of this machine, which is also the brokers'.
#[allow(clippy::disallowed_methods)]
fn wall_clock() -> Millis {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Millis(since_1970.as_millis() as u64)
}

fn heartbeat(partition: u32, position: Position, at: Millis) -> Heartbeat {
    let owner = "127.0.0.1:1".to_owned();
    let (since, rolled_up_at, standbys) = (Position(0), Millis(0), Vec::new());
    Heartbeat { partition, epoch: 1, position, at, since, rolled_up_at, clock_reset: Position(0), owner, standbys }
}

fn record(value: i64) -> Option<Vec<u8>> {
    let mut state = CounterState::new(Millis(1));
    state.counter.add(Millis(2), value.into()).unwrap();
    let mut record = Vec::new();
    write_counter(&state, &mut record);
    Some(record)
}

/// Reads a counter. On a busy machine the worker may be late, which is not the point here.
async fn read(api: &Cluster, key: &Key, consistency: Consistency) -> i64 {
    loop {
        match api.read(vec![key.clone()], ReadOptions::new(consistency)).await {
            Ok(readings) => return readings[0].value,
            Err(error) => assert!(matches!(error, EngineError::Unavailable(_)), "{error}"),
        }
    }
}

async fn submit(api: &Cluster, key: &Key, change: Change) -> Token {
    let mut events = api.events();
    events.push(key.as_ref(), change, None, None);
    api.submit(events, SubmitOptions::new(Consistency::Eventual)).await.unwrap().token
}

/// Waits until Redis has a value, and the node reads the same.
fn wait_until_published(api: &Cluster, totals: &Totals, key: &Key, value: i64) {
    wait_until("the total in Redis", async || {
        let read = read(api, key, Consistency::Eventual).await;
        let stored = totals.stored(std::slice::from_ref(key)).await.unwrap().remove(0);
        let stored = stored.and_then(|stored| stored.total?.state).map(|state| state.counter.value());
        if (read, stored) == (value, Some(value)) { Ok(()) } else { Err(format!("{read}, {stored:?}")) }
    });
}

/// Waits until the worker has published all partitions.
fn wait_until_published_by(worker: &Worker, totals: &Totals) {
    let partitions: Vec<u32> = (0..PARTITIONS).collect();
    wait_until("the heartbeats of the worker", async || {
        let heartbeats = totals.heartbeats(&partitions).await.unwrap();
        let is_of_worker = |heartbeat: &Heartbeat| heartbeat.owner == worker.address();
        let of_worker = heartbeats.iter().flatten().filter(|heartbeat| is_of_worker(heartbeat)).count();
        if of_worker == partitions.len() { Ok(()) } else { Err(format!("{heartbeats:?}")) }
    });
}

#[test]
fn a_reading_is_not_older_than_an_exact_one_or_a_write_before_it() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let totals = Totals::connect(&place.redis).await.unwrap();
        let (worker, api) = (place.worker().await, place.api().await);
        let key = key("n");
        submit(&api, &key, Change::Add(8)).await;
        wait_until_published(&api, &totals, &key, 8);
        // The next worker publishes once, when it takes over.
        worker.stop().await;
        let worker = TestPlace { rollup_every: Duration::from_secs(3_600), ..place.clone() }.worker().await;
        wait_until_published_by(&worker, &totals);
        submit(&api, &key, Change::Add(2)).await;
        assert_eq!(read(&api, &key, Consistency::Exact).await, 10);
        assert_eq!(read(&api, &key, Consistency::Eventual).await, 10);
        let why = Correction::new("test", "because").unwrap();
        let set = Change::Set { value: 500, when: Condition::Always, expiry: Expiry::Keep, why };
        submit(&api, &key, set).await;
        assert_eq!(read(&api, &key, Consistency::Eventual).await, 500);
        // Nobody has published it, so it was not read from Redis.
        let stored = totals.stored(std::slice::from_ref(&key)).await.unwrap().remove(0).unwrap().total.unwrap();
        assert_eq!(stored.state.unwrap().counter.value(), 8);
    });
}

/// A total as a worker publishes it at the time `at`.
fn total(key: &Key, position: Position, at: Millis, value: i64) -> TotalUpdate {
    let valid_until = Millis(at.0 + TOTAL_TTL_MS);
    TotalUpdate { key: key.clone(), position, at, valid_until, record: record(value), summed: None, first: true }
}

/// Redis removes totals by its own clock. If that is set back, they stay.
#[test]
fn a_total_that_redis_should_have_removed_an_hour_ago_is_not_taken_for_the_value_of_now() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let totals = Totals::connect(&place.redis).await.unwrap();
        let (_worker, api) = (place.worker().await, place.api().await);
        wait_until("heartbeats", async || match api.health() {
            Health::Ready => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let key = key("stays");
        let partition = partition_of(key.as_ref(), PARTITIONS);
        let position = submit(&api, &key, Change::Add(5)).await.position(partition);
        wait_until("the round after the write", async || {
            let heartbeat = totals.heartbeats(&[partition]).await.unwrap().remove(0).unwrap();
            if heartbeat.position >= position { Ok(()) } else { Err(format!("{heartbeat:?}")) }
        });
        let at = Millis(wall_clock().0 - HOUR_MS);
        totals.publish(&[total(&key, position, at, 3)]).await.unwrap();
        let name = format!("{}:t:stays", place.redis.prefix);
        tokio::task::block_in_place(|| {
            let persisted =
                services.redis.masters().into_iter().map(|node| services.redis.cli(node, &["PERSIST", &name]));
            assert_eq!(persisted.filter(|answer| answer.as_deref().is_ok_and(|set| set.trim() == "1")).count(), 1);
        });
        assert_ne!(read(&api, &key, Consistency::Eventual).await, 3);
        // It is replaced by the one that was asked for.
        wait_until_published(&api, &totals, &key, 5);
    });
}

#[test]
fn a_new_node_knows_that_a_partition_has_had_no_worker_for_an_hour() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let totals = Totals::connect(&place.redis).await.unwrap();
        let key = key("old");
        let partition = partition_of(key.as_ref(), PARTITIONS);
        let (position, at) = (Position(1), Millis(wall_clock().0 - HOUR_MS));
        totals.publish(&[total(&key, position, at, 5)]).await.unwrap();
        assert_eq!(totals.publish_heartbeats(&[heartbeat(partition, position, at)]).await.unwrap(), [true]);
        let api = place.api().await;
        let read = async |staleness_max_ms: Option<u64>| {
            let options = ReadOptions { staleness_max_ms, ..ReadOptions::new(Consistency::Eventual) };
            api.read(vec![key.clone()], options).await
        };
        let refused = read(Some(5_000)).await.unwrap_err();
        assert!(matches!(refused, EngineError::TooStale(_)), "{refused}");
        let reading = read(None).await.unwrap()[0];
        assert!(reading.staleness_ms >= HOUR_MS, "{reading:?}");
        wait_until("the state of the partitions", async || match api.health() {
            Health::Degraded { writes: true, why } if why.contains("no worker answers for 3 of 3") => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}
