//! How old readings are, and that they say so.
#![allow(clippy::unwrap_used)]

mod cluster;

use cluster::{PARTITIONS, TestServices, wait_until};
use tally_cluster::partitioner::partition_of;
use tally_cluster::redis::{Heartbeat, TotalUpdate, Totals};
use tally_core::consistency::Consistency;
use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::record::write_counter;
use tally_core::surface::{Engine, EngineError, Health, ReadOptions};
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
    Heartbeat { partition, epoch: 1, position, at, since, rolled_up_at, owner, standbys }
}

fn record(value: i64) -> Option<Vec<u8>> {
    let mut state = CounterState::new(Millis(1));
    state.counter.add(Millis(2), value.into()).unwrap();
    let mut record = Vec::new();
    write_counter(&state, &mut record);
    Some(record)
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
        let total = TotalUpdate { key: key.clone(), position, at, record: record(5), summed: None, first: true };
        totals.publish(&[total]).await.unwrap();
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
