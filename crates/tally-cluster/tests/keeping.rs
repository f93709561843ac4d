//! What keeps totals right: never going back, shared reads, and healing.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cluster;
#[path = "postgres/proxy.rs"]
mod proxy;

use std::sync::Arc;
use std::time::Duration;

use cluster::{PARTITIONS, TestPlace, TestServices};
use futures_util::future::join_all;
use proxy::{Cut, Proxy};
use tally_cluster::api::Cluster;
use tally_cluster::kafka::Tailer;
use tally_cluster::partitioner::partition_of;
use tally_cluster::redis::{Heartbeat, RedisSettings, Total, TotalUpdate, Totals};
use tally_cluster::worker::Worker;
use tally_core::consistency::Consistency;
use tally_core::counter::CounterState;
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry};
use tally_core::key::Key;
use tally_core::limits::SWEEP_SLICE;
use tally_core::outcome::Token;
use tally_core::record::write_counter;
use tally_core::surface::{Engine, Metric, MetricValue, ReadOptions, SubmitOptions};
use tally_core::time::{Millis, Position};
use tally_services::{RedisCluster, wait_for};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn add(cluster: &Cluster, key: &Key, amount: i64) {
    let mut events = cluster.events();
    events.add(key.as_ref(), amount);
    cluster.submit(events, SubmitOptions::new(Consistency::Eventual)).await.unwrap();
}

async fn read(cluster: &Cluster, key: &Key) -> i64 {
    cluster.read(vec![key.clone()], ReadOptions::new(Consistency::Eventual)).await.unwrap()[0].value
}

async fn stored(totals: &Totals, key: &Key) -> Option<Total> {
    totals.stored(std::slice::from_ref(key)).await.unwrap().remove(0).and_then(|stored| stored.total)
}

async fn stored_value(totals: &Totals, key: &Key) -> Option<i64> {
    stored(totals, key).await.and_then(|total| total.state).map(|state| state.counter.value())
}

/// Blocks a thread of the runtime, which has others.
async fn wait_until(what: &str, mut attempt: impl AsyncFnMut() -> Result<(), String>) {
    let handle = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| wait_for(what, || handle.block_on(attempt())));
}

async fn wait_until_hosted(worker: &Worker) {
    wait_until("all partitions", async || match worker.hosted().len() {
        hosted if hosted == PARTITIONS as usize => Ok(()),
        hosted => Err(format!("{hosted} hosted")),
    })
    .await;
}

fn counted(metrics: &[Metric], name: &str, label: Option<&str>) -> u64 {
    match (&metrics.iter().find(|metric| metric.name == name).unwrap().value, label) {
        (MetricValue::Counter(count), None) => *count,
        (MetricValue::CounterBy { counts, .. }, Some(label)) => {
            counts.iter().find(|(value, _)| *value == label).unwrap().1
        }
        other => panic!("{other:?}"),
    }
}

/// Cuts off the replica of a master: it keeps its state, and takes over when its master dies.
fn stop_replication(redis: &RedisCluster, master: usize) {
    // Connections of clients stay; the replica has to connect again, and cannot.
    redis.cli(master, &["CONFIG", "SET", "requirepass", "secret"]).unwrap();
    redis.cli(master, &["-a", "secret", "CLIENT", "KILL", "TYPE", "replica"]).unwrap();
}

#[test]
fn a_failover_that_loses_totals_takes_no_reading_back() {
    let services = TestServices::shared();
    let redis = RedisCluster::start();
    let place = services.place(1);
    let place = TestPlace { redis: RedisSettings { nodes: redis.addresses(), ..place.redis.clone() }, ..place };
    services.runtime.block_on(async {
        let key = key("lost");
        let worker = place.worker().await;
        let (first, second) = (place.api().await, place.api().await);
        let totals = Totals::connect(&place.redis).await.unwrap();
        wait_until_hosted(&worker).await;
        let reach = async |value: i64| {
            wait_until("the total in Redis", async || {
                let seen = (read(&first, &key).await, read(&second, &key).await, stored_value(&totals, &key).await);
                if seen == (value, value, Some(value)) { Ok(()) } else { Err(format!("{seen:?}")) }
            })
            .await;
        };
        add(&first, &key, 5).await;
        reach(5).await;
        let owner = tokio::task::block_in_place(|| {
            redis.wait_until_ready();
            let name = format!("{}:t:lost", place.redis.prefix);
            let owns = |node: &usize| redis.cli(*node, &["GET", &name]).is_ok();
            let owner = redis.masters().into_iter().find(owns).unwrap();
            stop_replication(&redis, owner);
            owner
        });
        add(&first, &key, 5).await;
        reach(10).await;
        // Nobody publishes it again.
        worker.stop().await;
        tokio::task::block_in_place(|| redis.kill(owner));
        wait_until("the replica's total", async || match totals.stored(std::slice::from_ref(&key)).await {
            Ok(_) if stored_value(&totals, &key).await == Some(5) => Ok(()),
            other => Err(format!("{other:?}, node {owner} was killed")),
        })
        .await;
        for _ in 0..20 {
            assert_eq!((read(&first, &key).await, read(&second, &key).await), (10, 10));
        }
        let worker = place.worker().await;
        wait_until_hosted(&worker).await;
        reach(10).await;
    });
}

#[test]
fn concurrent_reads_of_a_counter_that_redis_lacks_share_one_request() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        // Without a worker every request takes a while.
        let api = place.api().await;
        let key = key("cold");
        let values = join_all((0..64).map(|_| read(&api, &key))).await;
        assert!(values.iter().all(|value| *value == 0));
        let requests = counted(&api.metrics(), "tally_total_reads_total", Some("postgres"));
        assert!((1..=8).contains(&requests), "{requests} requests");
    });
}

#[test]
fn a_total_that_differs_from_the_state_is_found_healed_and_counted() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let worker = place.worker().await;
        let api = place.api().await;
        let totals = Totals::connect(&place.redis).await.unwrap();
        wait_until_hosted(&worker).await;
        let key = key("drifting");
        add(&api, &key, 5).await;
        wait_until("the total in Redis", async || {
            let seen = (read(&api, &key).await, stored_value(&totals, &key).await);
            if seen == (5, Some(5)) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        // What was read until then is published again, and would heal the total as well.
        let partition = partition_of(key.as_ref(), PARTITIONS);
        for _ in 0..2 {
            let beat = async || totals.heartbeats(&[partition]).await.unwrap().remove(0).unwrap().at;
            let before = beat().await;
            wait_until("a round", async || if beat().await > before { Ok(()) } else { Err(before.0.to_string()) })
                .await;
        }
        assert_eq!(counted(&worker.metrics(), "tally_drift_found_total", None), 0);
        let tailer = Tailer::new(&place.kafka).unwrap();
        let end = || tokio::task::block_in_place(|| tailer.end(partition).unwrap());
        let end_before = end();
        let mut wrong = CounterState::new(Millis(1));
        wrong.counter.add(Millis(2), 42).unwrap();
        let mut record = Vec::new();
        write_counter(&wrong, &mut record);
        let position = stored(&totals, &key).await.unwrap().position;
        // The second one looks newer than anything that will be published.
        for (found, position) in [(1, position), (2, Position(u64::MAX))] {
            let seen = totals.stored(std::slice::from_ref(&key)).await.unwrap().remove(0).unwrap();
            let record = Some(record.clone());
            let (at, valid_until) = (Millis(1), Millis(u64::MAX));
            let update =
                TotalUpdate { key: key.clone(), position, at, valid_until, record, summed: None, first: false };
            assert_eq!(totals.replace(&[(seen.clone(), update.clone())]).await.unwrap(), [true]);
            assert_eq!(totals.replace(&[(seen, update)]).await.unwrap(), [false], "it is another one now");
            wait_until("healing", async || {
                let metrics = worker.metrics();
                let names = ["tally_drift_found_total", "tally_drift_healed_total"];
                let counts = names.map(|name| counted(&metrics, name, None));
                let value = stored_value(&totals, &key).await;
                if counts == [found, found] && value == Some(5) {
                    Ok(())
                } else {
                    Err(format!("{counts:?}, {value:?}"))
                }
            })
            .await;
            assert_eq!(read(&api, &key).await, 5);
            // A total that is ahead counts as wrong only after the leader has accepted a batch: other brokers may know
            // less.
            assert_eq!(end() > end_before, found == 2);
        }
        assert!(stored(&totals, &key).await.unwrap().position < Position(u64::MAX));
    });
}

/// A worker that was paused may claim a partition once more before it learns that it has lost it.
#[test]
fn an_idle_owner_that_was_superseded_claims_its_partition_again() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let worker = place.worker().await;
        let api = place.api().await;
        wait_until_hosted(&worker).await;
        let key = key("idle");
        add(&api, &key, 5).await;
        worker.persist_all(Duration::from_secs(60)).await.unwrap();
        let (pg, totals) = (place.services().await.pg, Totals::connect(&place.redis).await.unwrap());
        for partition in 0..PARTITIONS {
            let nobody = "127.0.0.1:1".to_owned();
            let claim = pg.claim(partition, &nobody).await.unwrap();
            let (position, since, standbys) = (claim.position, Position(0), Vec::new());
            let (epoch, at, owner) = (claim.epoch, Millis(1), nobody);
            let (rolled_up_at, clock_reset) = (Millis(0), Position(0));
            let heartbeat =
                Heartbeat { partition, epoch, position, at, since, rolled_up_at, clock_reset, owner, standbys };
            assert_eq!(totals.publish_heartbeats(&[heartbeat]).await.unwrap(), [true]);
        }
        wait_until("the owner to answer again", async || {
            let read = api.read(vec![key.clone()], ReadOptions::new(Consistency::Exact)).await;
            let value = read.map_err(|error| error.to_string())?[0].value;
            if value == 5 { Ok(()) } else { Err(value.to_string()) }
        })
        .await;
    });
}

/// Puts the tables back to what `older_counters` and `older_partitions` have.
const GO_BACK: &str = "BEGIN; \
    UPDATE counters SET value = older.value, record = older.record FROM older_counters AS older \
        WHERE counters.key = older.key; \
    UPDATE partitions SET position = older.position, clock = older.clock FROM older_partitions AS older \
        WHERE partitions.partition = older.partition; \
    COMMIT";

/// What happens to the counter after PostgreSQL went back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterwardsComes {
    Write,
    Read,
    Nothing,
}

/// As if a PostgreSQL standby that lacked the last transactions had taken over. Nothing else tells the worker.
#[test]
fn a_worker_whose_postgres_went_back_starts_over_and_no_increment_is_missed() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let sql = |text: &str| services.postgres.psql_at(&place.postgres, text).unwrap();
        let api = place.api().await;
        let key = key("n");
        let mut value = 0;
        for next in [AfterwardsComes::Write, AfterwardsComes::Read, AfterwardsComes::Nothing] {
            let worker = place.worker().await;
            wait_until_hosted(&worker).await;
            add(&api, &key, 5).await;
            worker.persist_all(Duration::from_secs(60)).await.unwrap();
            sql("DROP TABLE IF EXISTS older_counters, older_partitions");
            sql("CREATE TABLE older_counters AS TABLE counters; CREATE TABLE older_partitions AS TABLE partitions");
            add(&api, &key, 5).await;
            value += 10;
            worker.persist_all(Duration::from_secs(60)).await.unwrap();
            worker.stop().await;
            // A worker that takes over has nothing in memory, as after an eviction.
            let worker = place.worker().await;
            wait_until_hosted(&worker).await;
            worker.persist_all(Duration::from_secs(60)).await.unwrap();
            sql(GO_BACK);
            if next == AfterwardsComes::Nothing {
                wait_until("the counters to be stored again", async || {
                    let stored = sql("SELECT value FROM counters");
                    if stored.trim() == value.to_string() { Ok(()) } else { Err(stored) }
                })
                .await;
            }
            if next == AfterwardsComes::Write {
                add(&api, &key, 1).await;
                value += 1;
            }
            wait_until("the worker to start over", async || {
                let read = api.read(vec![key.clone()], ReadOptions::new(Consistency::Exact)).await;
                let read = read.map_err(|error| error.to_string())?[0].value;
                assert_eq!(read, value);
                Ok(())
            })
            .await;
            // The other partitions went back, too, and find out when they persist.
            wait_until("all partitions to be persisted", async || worker.persist_all(Duration::from_secs(60)).await)
                .await;
            wait_until_hosted(&worker).await;
            assert_eq!(sql("SELECT value FROM counters").trim(), value.to_string());
            worker.stop().await;
        }
    });
}

/// More than one slice, so that a pass has to continue where the last slice ended.
#[test]
fn expired_counters_are_removed_also_if_they_are_many() {
    const COUNTERS: usize = 3 * SWEEP_SLICE;
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        wait_until_hosted(&worker).await;
        // The tag keeps them in one partition.
        let mut events = api.events();
        for number in 0..COUNTERS {
            let set = Change::Set {
                value: 1,
                when: Condition::Always,
                expiry: Expiry::At(Deadline::After(1)),
                why: Correction::new("test", "because").unwrap(),
            };
            events.push(key(&format!("{{t}}{number}")).as_ref(), set, None, None);
        }
        api.submit(events, SubmitOptions::new(Consistency::Exact)).await.unwrap();
        worker.persist_all(Duration::from_secs(60)).await.unwrap();
        let count = || services.postgres.psql_at(&place.postgres, "SELECT count(*) FROM counters").unwrap();
        wait_until("the removal", async || match count().trim() {
            "0" => Ok(()),
            left => Err(format!("{left} left")),
        })
        .await;
    });
}

#[test]
fn estimates_know_what_this_node_has_corrected() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        wait_until_hosted(&worker).await;
        let key = key("n");
        let submit = async |change: Change| {
            let mut events = api.events();
            events.push(key.as_ref(), change, None, None);
            api.submit(events, SubmitOptions::new(Consistency::Eventual)).await.unwrap().outcomes[0].value
        };
        let why = || Correction::new("test", "because").unwrap();
        add(&api, &key, 1).await;
        let set = Change::Set { value: 500, when: Condition::Always, expiry: Expiry::Keep, why: why() };
        assert_eq!((submit(set).await, submit(Change::Add(1)).await), (500, 501));
        assert_eq!((submit(Change::Delete(why())).await, submit(Change::Add(2)).await), (0, 2));
    });
}

#[test]
fn nobody_waits_for_a_position_that_the_journal_does_not_have() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        wait_until_hosted(&worker).await;
        let key = key("n");
        add(&api, &key, 5).await;
        let partition = partition_of(key.as_ref(), PARTITIONS);
        let forged = Token::new(partition, Position(1 << 40));
        let options = ReadOptions { at_least: Some(forged), ..ReadOptions::new(Consistency::Eventual) };
        let refused = api.read(vec![key], options).await.unwrap_err();
        assert!(refused.to_string().contains("but the journal ends at"), "{refused}");
    });
}

/// Somebody has edited Redis by hand: no worker publishes such a position.
#[test]
fn a_total_with_a_position_beyond_the_journal_does_not_keep_a_counter_from_being_read() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        let totals = Totals::connect(&place.redis).await.unwrap();
        wait_until_hosted(&worker).await;
        let key = key("edited");
        add(&api, &key, 5).await;
        wait_until("the total in Redis", async || {
            let seen = (read(&api, &key).await, stored_value(&totals, &key).await);
            if seen == (5, Some(5)) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        worker.stop().await;
        let right = stored(&totals, &key).await.unwrap().position;
        for position in [Position(1 << 40), right] {
            let seen = totals.stored(std::slice::from_ref(&key)).await.unwrap().remove(0).unwrap();
            let (at, valid_until, record) = (Millis(1), Millis(u64::MAX), None);
            let edited =
                TotalUpdate { key: key.clone(), position, at, valid_until, record, summed: None, first: false };
            assert_eq!(totals.replace(&[(seen, edited)]).await.unwrap(), [true]);
            if position != right {
                assert_eq!(read(&api, &key).await, 0, "Redis is believed");
            }
        }
        let worker = place.worker().await;
        wait_until_hosted(&worker).await;
        wait_until("the value of the journal", async || {
            match api.read(vec![key.clone()], ReadOptions::new(Consistency::Eventual)).await {
                Ok(readings) if readings[0].value == 5 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    });
}

#[test]
fn counters_in_memory_can_be_read_while_postgres_hangs_however_many_others_are_read() {
    let services = TestServices::shared();
    let place = services.place(1);
    services.runtime.block_on(async {
        let proxy = Proxy::start(services.postgres.port()).await;
        let direct = format!(":{}/", services.postgres.port());
        let postgres = place.postgres.replace(&direct, &format!(":{}/", proxy.port()));
        assert_ne!(postgres, place.postgres);
        let place = TestPlace { postgres, ..place };
        let (worker, api) = (place.worker().await, Arc::new(place.api().await));
        wait_until_hosted(&worker).await;
        let hot = key("hot");
        let exact = ReadOptions::new(Consistency::Exact);
        add(&api, &hot, 5).await;
        let cold = |number: usize| key(&format!("cold{number}"));
        let mut events = api.events();
        (0..1_000).for_each(|number| events.add(cold(number).as_ref(), 1));
        api.submit(events, SubmitOptions::new(Consistency::Exact)).await.unwrap();
        // A worker that takes over has nothing in memory.
        worker.stop().await;
        let worker = place.worker().await;
        wait_until_hosted(&worker).await;
        assert_eq!(api.read(vec![hot.clone()], exact.clone()).await.unwrap()[0].value, 5);
        proxy.set(Cut::Hang);
        let reads = (0..3_000).map(|number| {
            let (api, options, key) = (Arc::clone(&api), exact.clone(), cold(number % 1_000));
            tokio::spawn(async move { api.read(vec![key], options).await })
        });
        let reads: Vec<_> = reads.collect();
        for _ in 0..20 {
            assert_eq!(api.read(vec![hot.clone()], exact.clone()).await.unwrap()[0].value, 5);
        }
        reads.iter().for_each(|read| read.abort());
        for read in reads {
            assert!(!read.await.is_ok_and(|read| read.is_ok()), "PostgreSQL hangs");
        }
    });
}
