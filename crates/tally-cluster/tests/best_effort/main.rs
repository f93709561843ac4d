//! `best-effort` counters: sub-counters in Redis, summed into the journal.
#![allow(clippy::unwrap_used)]

#[path = "../cluster/mod.rs"]
mod cluster;
mod unreachable;

use std::time::Duration;

use cluster::{PARTITIONS, TestPlace, TestServices, wait_until};
use futures_util::future::join_all;
use tally_cluster::api::Cluster;
use tally_cluster::partitioner::partition_of;
use tally_cluster::policy::{Aggregation, OnUnreachable, ShardCount, ShardLayout, ShardPolicies, ShardPolicy};
use tally_cluster::redis::{ShardAdd, Totals};
use tally_cluster::worker::Worker;
use tally_core::consistency::Consistency;
use tally_core::event::{Bounds, Change, Condition, Correction, Details, Expiry, OnBound, RequestId};
use tally_core::key::Key;
use tally_core::limits::CALL_EVENTS_MAX;
use tally_core::outcome::{Outcome, Refusal};
use tally_core::reading::Reading;
use tally_core::surface::{Engine, EngineError, PageRequest, ReadOptions, SubmitOptions};
use tally_core::time::Millis;

const FIXED: ShardPolicy = ShardPolicy {
    layout: ShardLayout::Random,
    count: ShardCount::Fixed(8),
    aggregation: Aggregation::Rollup,
    on_unreachable: OnUnreachable::Fail,
};

/// A topic and a database with one `best-effort` namespace.
fn place(services: &TestServices, policy: ShardPolicy) -> TestPlace {
    let mut place = services.place(1);
    place.policies.set(b"views", policy);
    place
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn hosted(worker: &Worker) {
    wait_until("all partitions", async || match worker.hosted().len() {
        hosted if hosted == PARTITIONS as usize => Ok(()),
        hosted => Err(format!("{hosted} hosted")),
    });
}

async fn submit(api: &Cluster, key: &Key, change: Change, details: Option<Details>) -> Result<Outcome, EngineError> {
    let mut events = api.events();
    events.push(key.as_ref(), change, None, details);
    let receipt = api.submit(events, SubmitOptions::new(Consistency::BestEffort)).await?;
    Ok(receipt.outcomes[0])
}

async fn add(api: &Cluster, key: &Key, delta: i64) -> Outcome {
    submit(api, key, Change::Add(delta), None).await.unwrap()
}

async fn read(api: &Cluster, key: &Key, consistency: Consistency) -> Result<Reading, EngineError> {
    Ok(api.read(vec![key.clone()], ReadOptions::new(consistency)).await?[0])
}

/// Reads until the value is there.
fn read_until(api: &Cluster, key: &Key, value: i64) {
    wait_until("the value", async || match read(api, key, Consistency::BestEffort).await {
        Ok(reading) if reading.value == value => Ok(()),
        other => Err(format!("{other:?} instead of {value}")),
    });
}

fn why() -> Correction {
    Correction::new("test", "because").unwrap()
}

#[test]
fn increments_are_summed_from_sub_counters_and_persisted_exactly() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, other, worker) = (place.api().await, place.api().await, place.worker().await);
        hosted(&worker);
        let keys: Vec<Key> = (0..5).map(|number| key(&format!("views:{number}"))).collect();
        let adds = keys.iter().flat_map(|key| (1..=20).map(move |delta| (key, delta)));
        let added = join_all(adds.map(|(key, delta)| {
            let api = if delta % 2 == 0 { &api } else { &other };
            add(api, key, if delta % 5 == 0 { -delta } else { delta })
        }));
        for outcome in added.await {
            assert!(!outcome.exact && outcome.refusal.is_none(), "{outcome:?}");
        }
        let expected = (1..=20).map(|delta| if delta % 5 == 0 { -delta } else { delta }).sum();
        for key in &keys {
            // Everything acknowledged, at once, through any node.
            let exact = read(&other, key, Consistency::Exact).await.unwrap();
            assert_eq!(exact.value, expected);
            read_until(&api, key, expected);
            // A worker's reading does not include it; the published total does.
            wait_until("the number of sub-counters", async || match read(&api, key, Consistency::BestEffort).await {
                Ok(rolled_up) if exact.shards > 1 && rolled_up.shards == exact.shards => Ok(()),
                other => Err(format!("{other:?}, {exact:?}")),
            });
        }
        worker.persist_all(Duration::from_secs(30)).await.unwrap();
        worker.stop().await;
    });
    let query = |sql: &str| services.postgres.psql_at(&place.postgres, sql).unwrap();
    assert_eq!(query("SELECT count(*), min(value), max(value) FROM counters").trim(), "5|110|110");
    assert_eq!(query("SELECT sum(value) FROM counter_shards WHERE key = 'views:0'").trim(), "110");
}

/// The time by the clock of this machine, which is also the brokers'.
#[allow(clippy::disallowed_methods)]
fn wall_clock() -> Millis {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Millis(since_1970.as_millis() as u64)
}

#[test]
fn a_reading_of_a_rollup_has_everything_that_was_counted_before_its_time() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, other, mut worker) = (place.api().await, place.api().await, place.worker().await);
        hosted(&worker);
        let hot = key("views:hot");
        let mut counted: Vec<Millis> = Vec::new();
        let check = |what: &str, counted: &[Millis], reading: &Reading| {
            let before = counted.iter().filter(|at| **at < reading.as_of).count() as i64;
            assert!(reading.value >= before, "{what}: {before} were counted before the time of {reading:?}");
        };
        let mut read_fresh = 0;
        for round in 0..300 {
            add(&api, &hot, 1).await;
            counted.push(wall_clock());
            let reading = read(&other, &hot, Consistency::BestEffort).await.unwrap();
            check("read", &counted, &reading);
            read_fresh += u32::from(reading.value > 0);
            if round % 100 == 50 {
                let fresh = ReadOptions { staleness_max_ms: Some(1), ..ReadOptions::new(Consistency::BestEffort) };
                // Either it is refused as too old, or it has everything.
                if let Ok(readings) = other.read(vec![hot.clone()], fresh).await {
                    assert!(readings[0].value >= i64::from(round), "{:?}", readings[0]);
                }
                let page = PageRequest { prefix: b"views:".to_vec(), after: None, limit: 10 };
                for (_, listed) in other.list(page).await.unwrap().items {
                    check("listed", &counted, &listed);
                }
                // A successor with nothing in memory does not claim more than what is stored.
                let successor = place.worker().await;
                worker.stop().await;
                worker = successor;
            }
        }
        assert!(read_fresh > 0, "no reading had anything");
        let stale = wall_clock();
        wait_until("a reading of after the last increment", async || {
            match read(&other, &hot, Consistency::BestEffort).await {
                Ok(reading) if reading.as_of > stale && reading.value == 300 => Ok(()),
                other => Err(format!("{other:?}, written before {stale:?}")),
            }
        });
    });
}

#[test]
fn while_sub_counters_are_not_summed_the_time_of_a_rollup_reading_stands_still() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let totals = Totals::connect(&place.redis).await.unwrap();
        let redis = |args: &[&str]| services.redis.cli(0, &[&["-c"], args].concat()).unwrap();
        // A list of active counters that the worker cannot read. A writer needs it about once a second, so a slow one
        // fails, and the test tries again with another counter.
        let (hot, list) = (0..)
            .find_map(|attempt| {
                let hot = key(&format!("views:{attempt}"));
                let list = format!("{}:a:{}", place.redis.prefix, partition_of(hot.as_ref(), PARTITIONS));
                tokio::task::block_in_place(|| {
                    services.runtime.block_on(async {
                        add(&api, &hot, 1).await;
                        read_until(&api, &hot, 1);
                        // A counter of the same partition, to see how current this node believes totals are.
                        let beside = key(&format!("other:{{views:{attempt}}}"));
                        wait_until("its total", async || {
                            // Again each time: if the worker is late, PostgreSQL answers, and the worker never learns
                            // that the total is wanted.
                            let reading = read(&api, &beside, Consistency::BestEffort).await;
                            match (reading, totals.get(std::slice::from_ref(&beside)).await.unwrap()[0].as_ref()) {
                                (Ok(Reading { value: 0, .. }), Some(_)) => Ok(()),
                                other => Err(format!("{other:?}")),
                            }
                        });
                        redis(&["SET", &list, "not a list of counters"]);
                        let is_added = submit(&api, &hot, Change::Add(1), None).await.is_ok();
                        if !is_added {
                            redis(&["DEL", &list]);
                        }
                        is_added.then_some((hot, list))
                    })
                })
            })
            .unwrap();
        let counted_at = wall_clock();
        let beside = key(&format!("other:{{{}}}", std::str::from_utf8(hot.as_bytes()).unwrap()));
        wait_until("totals that are published later", async || {
            match read(&api, &beside, Consistency::Eventual).await {
                Ok(reading) if reading.as_of > counted_at => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let reading = read(&api, &hot, Consistency::BestEffort).await.unwrap();
        assert_eq!(reading.value, 1, "nothing is summed any more");
        assert!(reading.as_of <= counted_at, "{reading:?} lacks what was counted at {counted_at:?}");
        redis(&["DEL", &list]);
        wait_until("everything to be summed", async || {
            // Registers the counter again.
            let _ = submit(&api, &hot, Change::Add(1), None).await;
            match read(&api, &hot, Consistency::BestEffort).await.unwrap() {
                reading if reading.value > 1 && reading.as_of > counted_at => Ok(()),
                reading => Err(format!("{reading:?}")),
            }
        });
        worker.stop().await;
    });
}

#[test]
fn an_aggregator_that_takes_over_counts_nothing_twice_and_a_flush_loses_only_what_was_not_summed() {
    let services = TestServices::start(1);
    let place = place(&services, FIXED);
    services.runtime.block_on(async {
        let (api, mut worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let hot = key("views:hot");
        for round in 1..=3 {
            join_all((0..50).map(|_| add(&api, &hot, 1))).await;
            // Two aggregators for a moment, then one with nothing in memory.
            let successor = place.worker().await;
            worker.stop().await;
            worker = successor;
            hosted(&worker);
            join_all((0..50).map(|_| add(&api, &hot, 1))).await;
            assert_eq!(read(&api, &hot, Consistency::Exact).await.unwrap().value, round * 100);
        }
        services.redis.flush_all();
        add(&api, &hot, 7).await;
        // Registered again after a second at the latest.
        wait_until("the increment after the flush", async || {
            let value = read(&api, &hot, Consistency::Exact).await.unwrap().value;
            add(&api, &hot, 1).await;
            add(&api, &hot, -1).await;
            if value == 307 { Ok(()) } else { Err(format!("{value}")) }
        });
        worker.stop().await;
    });
}

#[test]
fn a_live_read_has_what_was_counted_since_the_last_sum() {
    let services = TestServices::shared();
    for aggregation in [Aggregation::Hybrid, Aggregation::OnRead] {
        let place = place(services, ShardPolicy { aggregation, ..FIXED });
        services.runtime.block_on(async {
            let (api, worker) = (place.api().await, place.worker().await);
            hosted(&worker);
            let live = key("views:live");
            for expected in 1..=60 {
                add(&api, &live, 1).await;
                let reading = read(&api, &live, Consistency::BestEffort).await.unwrap();
                assert_eq!(reading.value, expected, "{aggregation:?}");
                assert!(reading.exists && !reading.exact && !reading.partial);
                // Also when it is read together with others.
                let both = vec![key("likes:other"), live.clone()];
                let readings = api.read(both, ReadOptions::new(Consistency::Eventual)).await.unwrap();
                assert_eq!(readings[1].value, expected, "{aggregation:?}");
            }
            let stats = api.stats(live.clone(), ReadOptions::new(Consistency::BestEffort)).await.unwrap();
            assert_eq!(stats.reading.value, 60);
            assert_eq!(stats.shard_values.iter().sum::<i64>(), 60);
            assert_eq!(stats.reading.shards as usize, stats.shard_values.len());
            assert_eq!(stats.shard_loads.len(), stats.shard_values.len());
            worker.stop().await;
        });
    }
}

/// Found by reading: such a worker sums sub-counters, too, but its totals do not say what they have of them.
#[test]
fn a_live_read_counts_nothing_twice_if_the_worker_does_not_know_the_policy() {
    let services = TestServices::shared();
    let place = place(services, ShardPolicy { aggregation: Aggregation::Hybrid, ..FIXED });
    services.runtime.block_on(async {
        let api = place.api().await;
        let worker = TestPlace { policies: ShardPolicies::default(), ..place.clone() }.worker().await;
        hosted(&worker);
        let live = key("views:live");
        add(&api, &live, 10).await;
        assert_eq!(read(&api, &live, Consistency::Exact).await.unwrap().value, 10, "it is summed");
        let totals = place.services().await.totals;
        wait_until("a total with the sum", async || {
            assert_eq!(read(&api, &live, Consistency::BestEffort).await.unwrap().value, 10);
            let total = totals.get(std::slice::from_ref(&live)).await.map_err(|error| error.to_string())?.pop();
            let value = total.flatten().and_then(|total| total.state).map(|state| state.counter.value());
            if value == Some(10) { Ok(()) } else { Err(format!("{value:?}")) }
        });
        assert_eq!(read(&api, &live, Consistency::BestEffort).await.unwrap().value, 10);
        worker.stop().await;
    });
}

#[test]
fn a_live_read_that_names_a_token_or_an_age_includes_corrections() {
    let services = TestServices::shared();
    let mut place = place(services, ShardPolicy { aggregation: Aggregation::Hybrid, ..FIXED });
    place.shards_idle_s = 60;
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let key = key("views:corrected");
        for value in 1..=10 {
            add(&api, &key, 1).await;
            read(&api, &key, Consistency::BestEffort).await.unwrap();
            let set = Change::Set { value: value * 100, when: Condition::Always, expiry: Expiry::Keep, why: why() };
            let mut events = api.events();
            events.push(key.as_ref(), set, None, None);
            let token = api.submit(events, SubmitOptions::new(Consistency::BestEffort)).await.unwrap().token;
            let wanted = ReadOptions { at_least: Some(token), ..ReadOptions::new(Consistency::BestEffort) };
            let readings = api.read(vec![key.clone()], wanted).await;
            // Refused if it takes too long on a busy machine, but never older.
            assert!(readings.as_ref().map_or(true, |readings| readings[0].value == value * 100), "{readings:?}");
            let fresh = ReadOptions { staleness_max_ms: Some(1), ..ReadOptions::new(Consistency::BestEffort) };
            let readings = api.read(vec![key.clone()], fresh).await;
            assert!(readings.as_ref().map_or(true, |readings| readings[0].value == value * 100), "{readings:?}");
        }
        worker.stop().await;
        // Without a worker it is the outage that is reported, not an unknown outcome.
        let lost = api.read(vec![key.clone()], ReadOptions::new(Consistency::Exact)).await;
        assert!(matches!(lost, Err(EngineError::Unavailable(_))), "{lost:?}");
    });
}

#[test]
fn what_depends_on_the_value_is_refused_and_removing_it_includes_the_sub_counters() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let stock = key("views:stock");
        add(&api, &stock, 5).await;
        let bounds = Bounds { floor: Some(0), ceiling: None, on_bound: OnBound::Refuse };
        let set = |when| Change::Set { value: 3, when, expiry: Expiry::Keep, why: why() };
        for (change, details) in [
            (Change::Add(-1), Some(Details { bounds: Some(bounds), ..Details::default() })),
            (set(Condition::Equals(5)), None),
            (Change::Adjust { delta: 1, why: why() }, None),
        ] {
            let outcome = submit(&api, &stock, change, details).await.unwrap();
            assert_eq!(outcome.refusal, Some(Refusal::BestEffort));
        }
        let mut transaction = api.events();
        transaction.group(|events| {
            events.add(stock.as_ref(), 1);
            events.add(stock.as_ref(), 1);
        });
        // Others in the same call are not refused with it.
        transaction.add(stock.as_ref(), 2);
        let options = SubmitOptions::new(Consistency::BestEffort);
        let outcomes = api.submit(transaction, options).await.unwrap().outcomes;
        let refusals: Vec<_> = outcomes.iter().map(|outcome| outcome.refusal).collect();
        assert_eq!(refusals, [Some(Refusal::BestEffort), Some(Refusal::BestEffort), None]);
        assert_eq!(read(&api, &stock, Consistency::Exact).await.unwrap().value, 7);

        add(&api, &stock, 1).await;
        let deleted = submit(&api, &stock, Change::Delete(why()), None).await.unwrap();
        assert_eq!((deleted.applied, deleted.exact), (-8, false));
        add(&api, &stock, 2).await;
        assert_eq!(read(&api, &stock, Consistency::Exact).await.unwrap().value, 2);
        submit(&api, &stock, set(Condition::Always), None).await.unwrap();
        add(&api, &stock, 2).await;
        assert_eq!(read(&api, &stock, Consistency::Exact).await.unwrap().value, 5);
        submit(&api, &stock, Change::Reset(why()), None).await.unwrap();
        assert_eq!(read(&api, &stock, Consistency::Exact).await.unwrap().value, 0);
        worker.stop().await;
    });
}

#[test]
fn a_call_to_several_namespaces_treats_each_as_it_is_configured() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let (views, bounded, likes) = (key("views:x"), key("views:bounded"), key("likes:y"));
        join_all((0..30).map(|_| add(&api, &views, 1))).await;
        let mut call = api.events();
        call.push(likes.as_ref(), Change::Add(3), None, None);
        call.push(views.as_ref(), Change::Delete(why()), None, None);
        let bounds = Bounds { floor: Some(0), ceiling: None, on_bound: OnBound::Refuse };
        call.push(bounded.as_ref(), Change::Add(1), None, Some(Details { bounds: Some(bounds), ..Details::default() }));
        call.push(views.as_ref(), Change::Add(2), None, None);
        call.push(likes.as_ref(), Change::Add(4), None, None);
        let outcomes = api.submit(call, SubmitOptions::new(Consistency::Exact)).await.unwrap().outcomes;
        assert_eq!(outcomes[2].refusal, Some(Refusal::BestEffort));
        let others = [0, 1, 3, 4].map(|place: usize| outcomes[place]);
        assert!(others.iter().all(|outcome| outcome.refusal.is_none()), "{outcomes:?}");
        assert_eq!((outcomes[0].value, outcomes[4].value, outcomes[4].exact), (3, 7, true));
        // What the sub-counters had counted was removed, too.
        assert_eq!(read(&api, &views, Consistency::Exact).await.unwrap().value, 2);
        assert_eq!(read(&api, &likes, Consistency::Exact).await.unwrap().value, 7);
        worker.stop().await;
    });
}

#[test]
fn a_sum_stops_at_the_end_of_the_range_and_counting_goes_on() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let (totals, large) = (place.services().await.totals, key("views:large"));
        for shard in 0..2 {
            totals.add_to_shard(large.as_ref(), shard, ShardAdd::Up(i64::MAX as u64)).await.unwrap();
        }
        add(&api, &large, 1).await;
        assert_eq!(read(&api, &large, Consistency::Exact).await.unwrap().value, i64::MAX);
        add(&api, &large, -5).await;
        assert_eq!(read(&api, &large, Consistency::Exact).await.unwrap().value, i64::MAX - 5);
        submit(&api, &large, Change::Reset(why()), None).await.unwrap();
        assert_eq!(read(&api, &large, Consistency::Exact).await.unwrap().value, 0);
        worker.stop().await;
    });
}

#[test]
fn a_full_sub_counter_is_replaced_so_that_counting_goes_on() {
    let services = TestServices::shared();
    let place = place(services, ShardPolicy { count: ShardCount::Fixed(1), ..FIXED });
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let large = key("views:full");
        add(&api, &large, i64::MAX).await;
        submit(&api, &large, Change::Reset(why()), None).await.unwrap();
        // Clients that keep trying must not keep the sub-counter in use.
        wait_until("an increment that is not refused", async || match add(&api, &large, 1).await.refusal {
            None => Ok(()),
            Some(refusal) => Err(format!("{refusal:?}")),
        });
        assert_eq!(read(&api, &large, Consistency::Exact).await.unwrap().value, 1);
        worker.stop().await;
    });
}

/// The list is on another master than most sub-counters.
#[test]
fn increments_are_summed_although_redis_has_lost_the_list_of_active_counters() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let (totals, listed) = (place.services().await.totals, key("views:listed"));
        add(&api, &listed, 1).await;
        read_until(&api, &listed, 1);
        let partition = partition_of(listed.as_ref(), PARTITIONS);
        let active = totals.active(partition).await.unwrap();
        let active = active.iter().find(|active| active.key == listed).unwrap();
        assert_eq!(totals.retire(partition, &[active]).await.unwrap(), [true]);
        totals.add_to_shard(listed.as_ref(), 7, ShardAdd::Up(5)).await.unwrap();
        read_until(&api, &listed, 6);
        worker.stop().await;
    });
}

/// A sum is added before each correction, so the call becomes longer.
#[test]
fn a_call_of_many_corrections_is_made_in_parts() {
    let services = TestServices::shared();
    let place = place(services, FIXED);
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let many = key("views:{t}many");
        add(&api, &many, 1).await;
        let mut events = api.events();
        for value in 0..CALL_EVENTS_MAX as i64 {
            let set = Change::Set { value, when: Condition::Always, expiry: Expiry::Keep, why: why() };
            events.push(many.as_ref(), set, None, None);
        }
        let receipt = api.submit(events, SubmitOptions::new(Consistency::BestEffort)).await.unwrap();
        assert_eq!(receipt.outcomes.len(), CALL_EVENTS_MAX);
        let last = read(&api, &many, Consistency::Exact).await.unwrap().value;
        assert_eq!(last, CALL_EVENTS_MAX as i64 - 1);
        worker.stop().await;
    });
}

#[test]
fn a_hot_counter_gets_more_sub_counters() {
    let services = TestServices::shared();
    let place = place(services, ShardPolicy { count: ShardCount::Adaptive(16), ..FIXED });
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let totals = place.services().await.totals;
        let hot = key("views:hot");
        add(&api, &hot, 1).await;
        let partition = partition_of(hot.as_ref(), PARTITIONS);
        let mut shards = 1;
        let mut added = 1;
        while shards < 4 {
            // As many nodes would.
            let adds = (0..512).map(|number| totals.add_to_shard(hot.as_ref(), number % shards, ShardAdd::Up(1)));
            join_all(adds).await.into_iter().for_each(|added| added.unwrap());
            added += 512;
            shards = totals.register(partition, hot.as_ref(), 1, 1).await.unwrap().unwrap();
            assert!(added < 1_000_000, "{shards} sub-counters, {:?}", worker.shard_load());
        }
        assert!(worker.shard_load().0 > 1_000.0, "{:?}", worker.shard_load());
        assert_eq!(read(&api, &hot, Consistency::Exact).await.unwrap().value, added);
        worker.stop().await;
    });
}

#[test]
fn idle_sub_counters_are_removed_and_one_that_comes_back_after_a_failover_counts_only_what_is_new() {
    let services = TestServices::shared();
    let mut place = place(services, FIXED);
    place.shards_idle_s = 1;
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        hosted(&worker);
        let totals = place.services().await.totals;
        let idle = key("views:idle");
        let partition = partition_of(idle.as_ref(), PARTITIONS);
        join_all((0..40).map(|_| add(&api, &idle, 1))).await;
        let wanted: Vec<_> = (0..8).map(|shard| (idle.as_ref(), shard)).collect();
        let before = totals.shards(&wanted).await.unwrap();
        let gone = || {
            wait_until("the removal", async || {
                let peak = totals.peak(partition, idle.as_ref()).await.unwrap();
                let left = totals.shards(&wanted).await.unwrap().iter().flatten().count();
                if (peak, left) == (0, 0) { Ok(()) } else { Err(format!("{left} of {peak}")) }
            });
        };
        gone();
        assert_eq!(read(&api, &idle, Consistency::Exact).await.unwrap().value, 40);

        // A replica that lacks the removals takes over.
        for state in before.iter().flatten() {
            let counted = state.counted;
            let (shard, hash) = (counted.shard, xxhash_rust::xxh3::xxh3_64(idle.as_bytes()));
            let hash_key = format!("{}:s:{{{shard}:{hash:016x}}}:views:idle", place.redis.prefix);
            let (i, p) = (counted.incarnation.to_string(), counted.increments.to_string());
            services.redis.cli(0, &["-c", "HSET", &hash_key, "i", &i, "p", &p, "w", "1"]).unwrap();
        }
        totals.register(partition, idle.as_ref(), 8, 8).await.unwrap();
        assert_eq!(read(&api, &idle, Consistency::Exact).await.unwrap().value, 40);
        // And counting continues, in those as well.
        add(&api, &idle, 1).await;
        assert_eq!(read(&api, &idle, Consistency::Exact).await.unwrap().value, 41);
        gone();
        add(&api, &idle, 1).await;
        assert_eq!(read(&api, &idle, Consistency::Exact).await.unwrap().value, 42);
        worker.stop().await;
    });
}
