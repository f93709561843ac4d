//! Totals and heartbeats against a real Redis Cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tally_cluster::redis::{Heartbeat, PublishReport, RedisError, RedisSettings, Total, TotalUpdate, Totals};
use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::record::Records;
use tally_core::time::{Millis, Position};
use tally_services::RedisCluster;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a failover may take: the node timeout of the test cluster is two seconds, and the election follows.
const FAILOVER: Duration = Duration::from_secs(20);
/// Time between two attempts. No result depends on it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// For tests that do not break it. Each has its own keys.
static SHARED: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);

async fn connect(redis: &RedisCluster) -> Totals {
    Totals::connect(&RedisSettings::new(redis.addresses())).await.unwrap()
}

/// Calls `attempt` until it succeeds.
async fn wait_for<T, E: Debug>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut turns = tokio::time::interval(POLL_INTERVAL);
    loop {
        turns.tick().await;
        match attempt().await {
            Ok(value) => return value,
            Err(seen) => assert!(Instant::now() < deadline, "{what}: last seen: {seen:?}"),
        }
    }
}

fn key(name: impl AsRef<[u8]>) -> Key {
    Key::new(name).unwrap()
}

fn state(value: i64) -> CounterState {
    let mut state = CounterState::new(Millis(5));
    state.counter.add(Millis(6), i128::from(value)).unwrap();
    state
}

fn record(state: &CounterState) -> Option<Vec<u8>> {
    let mut records = Records::default();
    records.put_counter(b"k", state);
    records.iter().next().unwrap().1.map(<[u8]>::to_vec)
}

/// Until when all totals are valid, unless a test says otherwise.
const VALID_UNTIL: u64 = 1_000_000;

/// A total whose value is its position, for counters that exist.
fn update(key: &Key, position: u64, first: bool) -> TotalUpdate {
    let record = record(&state(position as i64));
    let (position, at, valid_until) = (Position(position), Millis(position), Millis(VALID_UNTIL));
    TotalUpdate { key: key.clone(), position, at, valid_until, record, summed: None, first }
}

fn total(position: u64) -> Total {
    Total {
        position: Position(position),
        at: Millis(position),
        valid_until: Millis(VALID_UNTIL),
        state: Some(state(position as i64)),
        summed: None,
        generation: 0,
    }
}

/// Without the generation, which depends on the nodes of Redis.
fn plain(total: Option<Total>) -> Option<Total> {
    total.map(|total| Total { generation: 0, ..total })
}

/// Totals as they are in Redis, including those that must not be served.
async fn stored(totals: &Totals, keys: &[Key]) -> Vec<Option<Total>> {
    let stored = totals.stored(keys).await.unwrap();
    stored.into_iter().map(|stored| plain(stored.and_then(|stored| stored.total))).collect()
}

async fn read(totals: &Totals, key: &Key) -> Option<Total> {
    plain(totals.get(std::slice::from_ref(key)).await.unwrap().remove(0))
}

/// Runs `redis-cli` on the master that owns the key. Others answer `MOVED`, which is an error.
fn cli_at_owner(redis: &RedisCluster, args: &[&str]) -> String {
    let answers: Vec<_> = redis.masters().into_iter().map(|node| redis.cli(node, args)).collect();
    answers.iter().find_map(|answer| answer.clone().ok()).unwrap_or_else(|| panic!("{args:?}: {answers:?}"))
}

fn published(published: usize) -> PublishReport {
    PublishReport { published, ..PublishReport::default() }
}

fn outdated(outdated: usize) -> PublishReport {
    PublishReport { outdated, ..PublishReport::default() }
}

#[tokio::test]
async fn a_newer_total_replaces_an_older_one_and_never_the_other_way_round() {
    let totals = connect(&SHARED).await;
    let key = key("newer wins");
    // Where bytes carry, where a double is no longer exact, and the ends of the range.
    let positions =
        [0, 1, 127, 128, 255, 256, 65_535, 65_536, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, i64::MAX as u64, u64::MAX];
    assert_eq!(totals.publish(&[update(&key, positions[0], true)]).await.unwrap(), published(1));
    for pair in positions.windows(2) {
        let (older, newer) = (update(&key, pair[0], false), update(&key, pair[1], false));
        assert_eq!(totals.publish(std::slice::from_ref(&newer)).await.unwrap(), published(1), "{pair:?}");
        assert_eq!(totals.publish(&[older]).await.unwrap(), outdated(1), "{pair:?}");
        // Another total at the same position is the same total.
        let again = TotalUpdate { record: None, ..newer };
        assert_eq!(totals.publish(&[again]).await.unwrap(), published(1), "{pair:?}");
        assert_eq!(read(&totals, &key).await, Some(total(pair[1])));
    }
    assert_eq!(totals.malformed(), 0);
}

#[tokio::test]
async fn a_deleted_counter_stays_deleted_for_an_older_worker() {
    let totals = connect(&SHARED).await;
    let key = key("deleted");
    assert_eq!(totals.publish(&[update(&key, 3, true)]).await.unwrap(), published(1));
    let deletion = TotalUpdate { record: None, ..update(&key, 5, false) };
    assert_eq!(totals.publish(&[deletion]).await.unwrap(), published(1));
    assert_eq!(totals.publish(&[update(&key, 4, true)]).await.unwrap(), outdated(1));
    assert_eq!(read(&totals, &key).await, Some(Total { state: None, ..total(5) }));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_that_race_leave_the_newest_and_a_reader_never_sees_a_total_go_back() {
    const EACH: u64 = 5_000;
    let keys: Vec<Key> = (0..10).map(|number| key(format!("race {number}"))).collect();
    let writer = async |number: u64| {
        let totals = connect(&SHARED).await;
        // All numbers below 5,000 in a scattered order. One writer has the even positions, the other the odd ones.
        let positions: Vec<u64> = (0..EACH).map(|turn| turn * 1_237 % EACH * 2 + number).collect();
        for positions in positions.chunks(50) {
            let updates: Vec<TotalUpdate> =
                positions.iter().map(|position| update(&keys[(position / 2 % 10) as usize], *position, true)).collect();
            totals.publish(&updates).await.unwrap();
        }
    };
    let reader = async {
        let totals = connect(&SHARED).await;
        let mut seen = vec![None; keys.len()];
        let mut reads = 0;
        loop {
            let read = totals.get(&keys).await.unwrap();
            let positions: Vec<Option<u64>> =
                read.iter().map(|total| total.as_ref().map(|total| total.position.0)).collect();
            assert!(positions.iter().zip(&seen).all(|(now, before)| now >= before), "{seen:?} then {positions:?}");
            seen = positions;
            reads += 1;
            // The last one of each writer is the newest of its keys.
            let newest: Vec<Option<u64>> = (0..10).map(|number| Some((EACH - 10 + number) * 2 + 1)).collect();
            if seen == newest {
                return reads;
            }
        }
    };
    let started = Instant::now();
    let raced = async { tokio::join!(writer(0), writer(1), reader) };
    let ((), (), reads) = tokio::time::timeout(PATIENCE, raced).await.unwrap();
    println!("{} racing publications in {:?}, {reads} reads of all keys meanwhile", 2 * EACH, started.elapsed());
}

#[tokio::test]
async fn a_total_that_is_not_there_is_created_only_by_its_first_publication() {
    let totals = connect(&SHARED).await;
    let (cold, warm) = (key("cold"), key("warm"));
    totals.publish(&[update(&warm, 1, true)]).await.unwrap();
    let report = totals.publish(&[update(&cold, 2, false), update(&warm, 2, false)]).await.unwrap();
    assert_eq!(report, PublishReport { published: 1, gone: vec![cold.clone()], ..PublishReport::default() });
    assert_eq!((read(&totals, &cold).await, read(&totals, &warm).await), (None, Some(total(2))));
    assert_eq!(totals.publish(&[update(&cold, 3, true)]).await.unwrap(), published(1));
    assert_eq!(read(&totals, &cold).await, Some(total(3)));
}

#[tokio::test]
async fn the_time_to_live_is_that_of_the_first_publication() {
    let settings = RedisSettings { total_ttl: Duration::from_secs(1_000), ..RedisSettings::new(SHARED.addresses()) };
    let totals = Totals::connect(&settings).await.unwrap();
    let key = key("expires");
    let time_to_live = || cli_at_owner(&SHARED, &["PTTL", "tally:t:expires"]).trim().parse::<i64>().unwrap();
    totals.publish(&[update(&key, 1, true)]).await.unwrap();
    assert!((900_000..=1_000_000).contains(&time_to_live()), "{}", time_to_live());

    cli_at_owner(&SHARED, &["PEXPIRE", "tally:t:expires", "500000"]);
    for (position, first) in [(2, false), (3, true)] {
        assert_eq!(totals.publish(&[update(&key, position, first)]).await.unwrap(), published(1));
        assert!((400_000..=500_000).contains(&time_to_live()), "{}", time_to_live());
    }

    cli_at_owner(&SHARED, &["PEXPIRE", "tally:t:expires", "1"]);
    wait_for("the expiry", async || read(&totals, &key).await.map_or(Ok(()), Err)).await;
    assert_eq!(totals.publish(&[update(&key, 4, false)]).await.unwrap().gone, std::slice::from_ref(&key));
    assert_eq!(totals.publish(&[update(&key, 4, true)]).await.unwrap(), published(1));
}

#[tokio::test]
async fn a_total_that_is_asked_for_again_is_valid_for_longer_also_if_nothing_has_changed() {
    let totals = connect(&SHARED).await;
    let key = key("asked again");
    totals.publish(&[update(&key, 1, true)]).await.unwrap();
    for first in [false, true] {
        let again = TotalUpdate { valid_until: Millis(2 * VALID_UNTIL), ..update(&key, 1, first) };
        assert_eq!(totals.publish(&[again]).await.unwrap(), published(1));
        let valid_until = read(&totals, &key).await.unwrap().valid_until;
        assert_eq!(valid_until, Millis(if first { 2 * VALID_UNTIL } else { VALID_UNTIL }));
    }
}

/// Keys all over the slots, of all bytes, with and without the braces that Redis takes the slot from.
fn many_keys(prefix: &str) -> Vec<Key> {
    let name = |number: usize| match number % 3 {
        0 => format!("{prefix}:{number}").into_bytes(),
        1 => format!("{prefix}:{{{number}}}:x").into_bytes(),
        _ => [prefix.as_bytes(), &[0, 0xff, b'\r', b'\n', b'{'], &number.to_be_bytes()].concat(),
    };
    (0..1_000).map(|number| key(name(number))).collect()
}

#[tokio::test]
async fn a_thousand_keys_of_all_slots_are_read_in_order() {
    let totals = connect(&SHARED).await;
    let keys = many_keys("many");
    let updates: Vec<TotalUpdate> =
        keys.iter().enumerate().map(|(number, key)| update(key, number as u64, true)).collect();
    let (there, absent): (Vec<_>, Vec<_>) = updates.iter().cloned().partition(|update| update.position.0 % 7 > 0);
    assert_eq!(totals.publish(&there).await.unwrap(), published(there.len()));

    let started = Instant::now();
    let read = totals.get(&keys).await.unwrap();
    println!("1,000 keys read in {:?}", started.elapsed());
    for (number, read) in read.into_iter().enumerate() {
        assert_eq!(plain(read), (number % 7 > 0).then(|| total(number as u64)), "{:?}", keys[number]);
    }
    assert!(!absent.is_empty() && totals.get(&[]).await.unwrap().is_empty());
    assert_eq!(totals.publish(&[]).await.unwrap(), PublishReport::default());

    let started = Instant::now();
    const ROUNDS: u64 = 20;
    for round in 1..=ROUNDS {
        let next: Vec<_> = keys.iter().map(|key| update(key, round * 1_000, true)).collect();
        totals.publish(&next).await.unwrap();
    }
    println!("{} totals published in {:?}", 1_000 * ROUNDS, started.elapsed());
}

#[tokio::test]
async fn a_value_that_is_not_a_total_counts_as_absent_and_is_replaced() {
    let totals = connect(&SHARED).await;
    let key = key("foreign");
    for foreign in ["", "x", "this is too long to be a total"] {
        cli_at_owner(&SHARED, &["SET", "tally:t:foreign", foreign]);
        assert_eq!(read(&totals, &key).await, None);
    }
    assert_eq!(totals.malformed(), 3);
    cli_at_owner(&SHARED, &["SET", "tally:t:foreign", "short"]);
    assert_eq!(totals.publish(&[update(&key, 1, false)]).await.unwrap().gone, std::slice::from_ref(&key));
    assert_eq!(totals.publish(&[update(&key, 1, true)]).await.unwrap(), published(1));
    for (foreign, partition) in [("tally:t:foreign", None), ("tally:p:4711", Some(4_711))] {
        cli_at_owner(&SHARED, &["DEL", foreign]);
        cli_at_owner(&SHARED, &["LPUSH", foreign, "x"]);
        match partition {
            None => {
                assert_eq!(read(&totals, &key).await, None);
                assert_eq!(totals.publish(&[update(&key, 1, false)]).await.unwrap().gone, std::slice::from_ref(&key));
                assert_eq!(totals.publish(&[update(&key, 1, true)]).await.unwrap(), published(1));
                assert_eq!(read(&totals, &key).await, Some(total(1)));
            }
            Some(partition) => {
                assert_eq!(totals.heartbeats(&[partition]).await.unwrap(), [None]);
                let heartbeat = heartbeat(partition, 1, 1, 1);
                assert_eq!(totals.publish_heartbeats(std::slice::from_ref(&heartbeat)).await.unwrap(), [true]);
                assert_eq!(totals.heartbeats(&[partition]).await.unwrap(), [Some(heartbeat)]);
            }
        }
    }
    assert_eq!(totals.malformed(), 5);
}

fn heartbeat(partition: u32, epoch: u64, position: u64, at: u64) -> Heartbeat {
    let owner = format!("worker-{epoch}:7400");
    let (position, at, standbys) = (Position(position), Millis(at), Vec::new());
    let (since, rolled_up_at, clock_reset) = (Position(0), at, Position(0));
    Heartbeat { partition, epoch, position, at, since, rolled_up_at, clock_reset, owner, standbys }
}

#[tokio::test]
async fn heartbeats_do_not_go_back_in_epoch_position_or_time() {
    let totals = connect(&SHARED).await;
    // Each is newer than the one before it.
    let steps = [(1, 0, 10), (1, 255, 10), (1, 256, 10), (1, 256, 11), (2, 3, 4), (256, 1 << 60, 0)];
    let steps = steps.map(|(epoch, position, at)| heartbeat(7, epoch, position, at));
    for (turn, step) in steps.iter().enumerate() {
        // The same one again is not older.
        for _ in 0..2 {
            assert_eq!(totals.publish_heartbeats(std::slice::from_ref(step)).await.unwrap(), [true], "{step:?}");
        }
        assert_eq!(totals.publish_heartbeats(&steps[..turn]).await.unwrap(), vec![false; turn]);
        assert_eq!(totals.heartbeats(&[7]).await.unwrap(), [Some(step.clone())]);
    }
    let others: Vec<Heartbeat> = (100..164).map(|partition| heartbeat(partition, 1, 1, 1)).collect();
    assert_eq!(totals.publish_heartbeats(&others).await.unwrap(), [true; 64]);
    let read = totals.heartbeats(&(99..165).collect::<Vec<u32>>()).await.unwrap();
    assert_eq!(read.iter().flatten().cloned().collect::<Vec<_>>(), others);
    assert!(read[0].is_none() && read[65].is_none());

    let too_long = Heartbeat { owner: "x".repeat(257), ..heartbeat(7, 300, 0, 0) };
    assert!(matches!(totals.publish_heartbeats(&[too_long]).await, Err(RedisError::Settings(_))));
}

#[tokio::test]
async fn a_killed_master_is_replaced_without_a_new_handle() {
    let redis = RedisCluster::start();
    let totals = connect(&redis).await;
    let keys = many_keys("failover");
    let updates = |position| keys.iter().map(|key| update(key, position, true)).collect::<Vec<_>>();
    assert_eq!(totals.publish(&updates(1)).await.unwrap(), published(1_000));
    let generation = totals.generation().await.unwrap();

    let killed = redis.masters()[0];
    redis.kill(killed);
    let killed_at = Instant::now();
    let publish = async || totals.publish(&updates(2)).await;
    let first = publish().await.unwrap_err();
    assert!(matches!(first, RedisError::Unreachable { .. } | RedisError::Down(_)), "{first}");
    println!("first error after {:?}: {first}", killed_at.elapsed());
    wait_for("publishing", publish).await;
    let took = killed_at.elapsed();
    println!("published again {took:?} after a master was killed");
    assert!(took < FAILOVER, "{took:?}");
    assert!(stored(&totals, &keys).await.iter().all(|read| *read == Some(total(2))));
    // Every node knows of it by now, or will soon.
    wait_for("a new generation", async || match totals.generation().await {
        Ok(now) if now != generation => Ok(()),
        other => Err(other),
    })
    .await;

    redis.restart(killed);
    assert_eq!(totals.publish(&updates(3)).await.unwrap(), published(1_000));
}

#[tokio::test]
async fn a_master_that_does_not_answer_fails_calls_in_time_and_is_replaced() {
    let redis = RedisCluster::start();
    let totals = connect(&redis).await;
    let keys = many_keys("paused");
    let updates: Vec<_> = keys.iter().map(|key| update(key, 1, true)).collect();
    totals.publish(&updates).await.unwrap();
    let paused = redis.masters()[1];
    redis.pause(paused);
    let started = Instant::now();
    let error = totals.get(&keys).await.unwrap_err();
    println!("error after {:?}: {error}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    wait_for("reading", async || totals.get(&keys).await).await;
    println!("read again {:?} after a master was paused", started.elapsed());
    assert!(started.elapsed() < FAILOVER);
    redis.resume(paused);
    redis.wait_until_ready();
    // The replica may lack what was published just before. The rest is there, and publishing again completes it.
    let there = stored(&totals, &keys).await.iter().flatten().count();
    let sizes = redis.masters().into_iter().map(|node| redis.cli(node, &["DBSIZE"]).unwrap());
    assert_eq!(there, sizes.map(|size| size.trim().parse::<usize>().unwrap()).sum::<usize>());
    println!("{there} of {} totals survived", keys.len());
    assert_eq!(totals.publish(&updates).await.unwrap(), published(1_000));
    assert!(totals.get(&keys).await.unwrap().into_iter().all(|read| plain(read) == Some(total(1))));
}

#[tokio::test]
async fn slots_that_move_are_followed() {
    let redis = RedisCluster::start();
    let totals = connect(&redis).await;
    let keys = many_keys("moving");
    let updates = |position| keys.iter().map(|key| update(key, position, true)).collect::<Vec<_>>();
    assert_eq!(totals.publish(&updates(1)).await.unwrap(), published(1_000));

    let masters = redis.masters();
    let id = |node: usize| redis.cli(node, &["CLUSTER", "MYID"]).unwrap().trim().to_owned();
    let (from, to) = (id(masters[0]), id(masters[1]));
    let reshard = ["--cluster", "reshard", &redis.addresses()[masters[0]], "--cluster-from", &from];
    let how = ["--cluster-to", &to, "--cluster-slots", "2000", "--cluster-yes"];
    redis.cli(masters[0], &[&reshard[..], &how].concat()).unwrap();
    for position in 2..4 {
        assert_eq!(totals.publish(&updates(position)).await.unwrap(), published(1_000));
        assert!(stored(&totals, &keys).await.iter().all(|read| *read == Some(total(position))));
    }
}

#[tokio::test]
async fn keys_of_a_slot_that_is_moving_are_found_on_either_node() {
    let redis = RedisCluster::start();
    let totals = connect(&redis).await;
    let (moved_later, created_there) = (key("{moving}1"), key("{moving}2"));
    totals.publish(&[update(&moved_later, 1, true)]).await.unwrap();
    let id = |node: usize| redis.cli(node, &["CLUSTER", "MYID"]).unwrap().trim().to_owned();
    let owns = |node: &usize| redis.cli(*node, &["GET", "tally:t:{moving}1"]).is_ok();
    let (from, to): (Vec<usize>, Vec<usize>) = redis.masters().into_iter().partition(owns);
    let (from, to) = (from[0], to[0]);
    let slot = redis.cli(from, &["CLUSTER", "KEYSLOT", "{moving}"]).unwrap().trim().to_owned();
    redis.cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]).unwrap();
    redis.cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]).unwrap();

    let keys = [moved_later, created_there];
    let updates = |position| keys.iter().map(|key| update(key, position, true)).collect::<Vec<_>>();
    for position in 2..4 {
        assert_eq!(totals.publish(&updates(position)).await.unwrap(), published(2));
        assert_eq!(stored(&totals, &keys).await, [Some(total(position)), Some(total(position))]);
    }
    let count = |node| redis.cli(node, &["CLUSTER", "COUNTKEYSINSLOT", &slot]).unwrap().trim().to_owned();
    assert_eq!((&count(from)[..], &count(to)[..]), ("1", "1"));
}

#[tokio::test]
async fn after_a_flush_of_data_and_scripts_only_first_publications_return() {
    let redis = RedisCluster::start();
    let totals = connect(&redis).await;
    let keys = many_keys("flushed");
    let updates = |position, first| keys.iter().map(|key| update(key, position, first)).collect::<Vec<_>>();
    totals.publish(&updates(5, true)).await.unwrap();
    redis.flush_all();
    for master in redis.masters() {
        redis.cli(master, &["SCRIPT", "FLUSH"]).unwrap();
    }
    assert!(totals.get(&keys).await.unwrap().iter().all(Option::is_none));
    assert_eq!(totals.publish(&updates(6, false)).await.unwrap().gone, keys);
    assert_eq!(totals.publish(&updates(4, true)).await.unwrap(), published(1_000));
    assert_eq!(totals.publish_heartbeats(&[heartbeat(0, 1, 1, 1)]).await.unwrap(), [true]);
}

#[tokio::test]
async fn every_registration_changes_the_entry_so_that_a_counter_in_use_stays_on_the_list() {
    const PARTITION: u32 = 7;
    let totals = connect(&SHARED).await;
    let key = key("registered");
    totals.register(PARTITION, key.as_ref(), 1, 1).await.unwrap();
    for _ in 0..100 {
        let seen = totals.active(PARTITION).await.unwrap();
        // At once, as another node may do it.
        totals.register(PARTITION, key.as_ref(), 1, 1).await.unwrap();
        assert_eq!(totals.retire(PARTITION, &[&seen[0]]).await.unwrap(), [false]);
    }
    let last = totals.active(PARTITION).await.unwrap();
    assert_eq!(totals.retire(PARTITION, &[&last[0]]).await.unwrap(), [true]);
    assert!(totals.active(PARTITION).await.unwrap().is_empty());
}

#[tokio::test]
async fn wrong_credentials_and_a_missing_server_are_told_apart() {
    let redis = RedisCluster::start_with_password("secret");
    let settings = |password: Option<&str>| RedisSettings {
        password: password.map(str::to_owned),
        ..RedisSettings::new(redis.addresses())
    };
    let totals = Totals::connect(&settings(Some("secret"))).await.unwrap();
    assert_eq!(totals.publish(&[update(&key("k"), 1, true)]).await.unwrap(), published(1));
    for password in [Some("wrong"), None] {
        let refused = Totals::connect(&settings(password)).await.err().unwrap();
        assert!(matches!(refused, RedisError::Denied(_)), "{refused}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    assert!(!format!("{:?}", settings(Some("secret"))).contains("secret"));
    let nowhere = Totals::connect(&RedisSettings::new(vec!["127.0.0.1:1".to_owned()])).await.err().unwrap();
    assert!(matches!(nowhere, RedisError::Unreachable { .. }), "{nowhere}");
    let no_nodes = Totals::connect(&RedisSettings::new(Vec::new())).await.err().unwrap();
    assert!(matches!(no_nodes, RedisError::Settings(_)), "{no_nodes}");
}
