//! What a cluster refuses, and how it says so.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use cluster::{PARTITIONS, TestPlace, TestServices, wait_until};
use tally_cluster::api::{ApiError, Cluster};
use tally_cluster::kafka::{Appender, KafkaSettings, TopicError, topic};
use tally_cluster::limits::RECORD_BYTES_MAX;
use tally_cluster::partitioner::partition_of;
use tally_cluster::policy::ShardPolicies;
use tally_cluster::postgres::{Pg, PgError, PgSettings};
use tally_cluster::worker::Worker;
use tally_core::consistency::Consistency;
use tally_core::event::{Change, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::surface::{Engine, EngineError, Health, ReadOptions, SubmitOptions};
use tally_services::wait_for;
use tokio::runtime::Handle;

/// A key in this partition.
fn key_in(partition: u32) -> Key {
    let keys = (0..).map(|number| format!("key:{number}"));
    let mut found = keys.filter(|key| partition_of(KeyRef::new(key.as_bytes()).unwrap(), PARTITIONS) == partition);
    Key::new(found.next().unwrap()).unwrap()
}

async fn add(cluster: &Cluster, key: &Key, consistency: Consistency) -> Result<i64, EngineError> {
    let mut events = cluster.events();
    events.add(key.as_ref(), 1);
    Ok(cluster.submit(events, SubmitOptions::new(consistency)).await?.outcomes[0].value)
}

fn wait_until_hosted(worker: &Worker, partitions: usize) {
    wait_for("the partitions", || {
        let hosted = worker.hosted();
        if hosted.len() == partitions { Ok(()) } else { Err(format!("{hosted:?}, {:?}", worker.stopped())) }
    });
}

fn wait_until_stopped(worker: &Worker, partition: u32) -> String {
    wait_for("the partition to stop", || worker.stopped().remove(&partition).ok_or_else(|| "it runs".to_owned()))
}

fn place() -> (&'static TestServices, TestPlace) {
    let services = TestServices::shared();
    (services, services.place(1))
}

async fn append(place: &TestPlace, partition: u32, record: &[u8]) {
    Appender::new(&place.kafka).unwrap().append(partition, record).unwrap().await.unwrap();
}

/// Deletes all records of a partition, as retention does after its time.
async fn forget(place: &TestPlace, partition: i32) {
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(&place.kafka.topic, partition, Offset::End).unwrap();
    admin(place).delete_records(&all, &AdminOptions::new()).await.unwrap();
}

fn admin(place: &TestPlace) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", &place.kafka.brokers).create().unwrap()
}

#[test]
fn a_record_that_is_not_a_batch_stops_its_partition_and_no_other() {
    let (services, place) = place();
    services.runtime.block_on(async {
        append(&place, 1, b"not a batch").await;
        // A batch of a version that does not exist yet, with a correct checksum.
        let mut newer = vec![9, 0, 0, 0];
        newer.extend_from_slice(&crc32fast::hash(&newer).to_le_bytes());
        append(&place, 2, &newer).await;
    });
    let (worker, api) = services.runtime.block_on(async { (place.worker().await, place.api().await) });
    let damaged = wait_until_stopped(&worker, 1);
    assert!(damaged.contains("record 0 of partition 1 is not a batch"), "{damaged}");
    let newer = wait_until_stopped(&worker, 2);
    assert!(newer.contains("batch format 9 is newer"), "{newer}");
    services.runtime.block_on(async {
        assert_eq!(add(&api, &key_in(0), Consistency::Exact).await, Ok(1));
        let read = api.read(vec![key_in(1)], ReadOptions::new(Consistency::Exact)).await;
        assert!(matches!(&read, Err(EngineError::Unavailable(why)) if why.contains("not a batch")), "{read:?}");
    });
}

#[test]
fn a_position_that_the_journal_no_longer_holds_stops_the_partition() {
    let (services, place) = place();
    let key = key_in(0);
    services.runtime.block_on(async {
        let worker = place.worker().await;
        let api = place.api().await;
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        assert_eq!(add(&api, &key, Consistency::Exact).await, Ok(1));
        worker.stop().await;
        for _ in 0..5 {
            add(&api, &key, Consistency::Eventual).await.unwrap();
        }
        forget(&place, 0).await;
        let worker = place.worker().await;
        let why = tokio::task::block_in_place(|| wait_until_stopped(&worker, 0));
        assert!(why.contains("Records were removed before PostgreSQL had them"), "{why}");
        let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
        let stored = pg.partitions().await.unwrap()[0].position.0;
        assert!((1..6).contains(&stored), "the stored position has not moved: {stored}");
    });
}

/// Somebody changes the topic while nodes run. Records then come with the time of the node that sent them.
#[test]
fn a_topic_that_is_set_to_create_time_loses_nothing_and_refuses_writes_until_it_is_set_back() {
    let (services, place) = place();
    let key = key_in(0);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        assert_eq!(add(&api, &key, Consistency::Exact).await, Ok(1));
        let counted = Cell::new(1);
        set_timestamps(&place, "CreateTime").await;
        let refused = wait_until("writes to be refused", || async {
            let Err(error) = add(&api, &key, Consistency::Eventual).await else {
                counted.set(counted.get() + 1);
                return Err("they are accepted".to_owned());
            };
            Ok(error.to_string())
        });
        assert!(refused.contains("LogAppendTime"), "{refused}");
        assert!(matches!(api.health(), Health::Degraded { writes: false, .. }), "{:?}", api.health());
        let read = api.read(vec![key.clone()], ReadOptions::new(Consistency::Exact)).await.unwrap();
        assert_eq!(read[0].value, counted.get(), "the last one was acknowledged");
        assert_eq!(worker.stopped(), BTreeMap::new());
        worker.stop().await;
        set_timestamps(&place, "LogAppendTime").await;
        let worker = place.worker().await;
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        let id = RequestId::new(key.as_ref(), b"retried").unwrap();
        let added = wait_until("writes to be accepted again", || async {
            let mut events = api.events();
            events.push(key.as_ref(), Change::Add(1), Some(id), None);
            let receipt = api.submit(events, SubmitOptions::new(Consistency::Exact)).await;
            receipt.map(|receipt| receipt.outcomes[0].value).map_err(|error| error.to_string())
        });
        assert_eq!(added, counted.get() + 1, "the next owner continues after records without a time");
        worker.stop().await;
    });
}

/// Sets where the time of records comes from.
async fn set_timestamps(place: &TestPlace, kind: &str) {
    let topic = ResourceSpecifier::Topic(&place.kafka.topic);
    let record_bytes = RECORD_BYTES_MAX.to_string();
    // What is not listed gets its default.
    let change = AlterConfig::new(topic)
        .set("message.timestamp.type", kind)
        .set("unclean.leader.election.enable", "false")
        .set("cleanup.policy", "delete")
        .set("retention.bytes", "-1")
        .set("max.message.bytes", &record_bytes);
    admin(place).alter_configs([&change], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
}

/// Its positions begin again, and soon reach the stored one. What is at those positions was never applied.
#[test]
fn a_topic_that_was_recreated_is_refused_even_after_it_has_grown_beyond_the_stored_position() {
    let (services, place) = place();
    let key = key_in(0);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        for _ in 0..10 {
            add(&api, &key, Consistency::Exact).await.unwrap();
        }
        worker.stop().await;
        api.close().await;
        let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
        let stored = pg.partitions().await.unwrap()[0].position.0;
        assert!(stored >= 10, "{stored}");
        recreate_topic(&place).await;
        let api = place.api().await;
        for _ in 0..2 * stored {
            add(&api, &key, Consistency::Eventual).await.unwrap();
        }
        let worker = place.worker().await;
        let why = tokio::task::block_in_place(|| wait_until_stopped(&worker, 0));
        assert!(why.contains("recreated or has lost records"), "{why}");
        assert!(!worker.hosted().contains(&0));
        assert_eq!(pg.partitions().await.unwrap()[0].position.0, stored);
        worker.stop().await;
    });
}

/// As if somebody had created it without the settings that Tally needs, and corrected them later.
#[test]
fn a_recreated_topic_whose_records_have_no_brokers_time_is_refused() {
    let (services, place) = place();
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        assert_eq!(add(&api, &key_in(0), Consistency::Exact).await, Ok(1));
        worker.stop().await;
        api.close().await;
        let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
        let stored = pg.partitions().await.unwrap()[0].position.0;
        delete_topic(&place).await;
        let topic = NewTopic::new(&place.kafka.topic, PARTITIONS as i32, TopicReplication::Fixed(1));
        let topic = topic.set("message.timestamp.type", "CreateTime");
        wait_until("a new topic", || async {
            let created = admin(&place).create_topics([&topic], &AdminOptions::new()).await.unwrap().remove(0);
            created.map_err(|error| format!("{error:?}"))
        });
        let appender = Appender::new(&place.kafka).unwrap();
        for _ in 0..stored {
            let appended = wait_until("the topic to be known", || async {
                appender.append_empty(0).await.map_err(|error| error.to_string())
            });
            assert_eq!(appended.at, None);
        }
        set_timestamps(&place, "LogAppendTime").await;
        let worker = place.worker().await;
        let why = tokio::task::block_in_place(|| wait_until_stopped(&worker, 0));
        assert!(why.contains("with the time of a broker"), "{why}");
        assert_eq!(pg.partitions().await.unwrap()[0].position.0, stored);
        worker.stop().await;
    });
}

async fn delete_topic(place: &TestPlace) {
    admin(place).delete_topics(&[&place.kafka.topic], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
}

/// Deletes the topic and creates it again.
async fn recreate_topic(place: &TestPlace) {
    delete_topic(place).await;
    let new = topic::NewJournal { partitions: PARTITIONS, replication: 1, retention_ms: 3_600_000 };
    tokio::task::block_in_place(|| {
        wait_for("a new topic", || match Handle::current().block_on(topic::create(&place.kafka, new)) {
            Ok(topic::Created::Created) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    });
}

#[test]
fn a_topic_with_another_number_of_partitions_is_refused() {
    let (services, place) = place();
    services.runtime.block_on(async {
        let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
        pg.create_partitions(PARTITIONS + 1).await.unwrap();
        let refused = Cluster::start(place.services().await, None, ShardPolicies::default()).await.err().unwrap();
        assert!(matches!(refused, ApiError::Partitions { .. }), "{refused}");
        let new = topic::NewJournal { partitions: PARTITIONS + 1, replication: 1, retention_ms: 3_600_000 };
        let refused = topic::create(&place.kafka, new).await.unwrap_err().to_string();
        assert!(refused.contains("cannot be changed"), "{refused}");
    });
}

/// An operator who wants more throughput may try this, not knowing that keys would move.
#[test]
fn partitions_that_are_added_to_the_topic_are_left_alone_and_no_node_starts_with_them() {
    let (services, place) = place();
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        for partition in 0..PARTITIONS {
            assert_eq!(add(&api, &key_in(partition), Consistency::Exact).await, Ok(1));
        }
        let more = NewPartitions::new(&place.kafka.topic, PARTITIONS as usize + 1);
        admin(&place).create_partitions([&more], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
        let why = tokio::task::block_in_place(|| wait_until_stopped(&worker, PARTITIONS));
        assert!(why.contains("docs/cluster-operations.md"), "{why}");
        assert_eq!(worker.hosted(), Vec::from_iter(0..PARTITIONS));
        let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
        assert_eq!(pg.partitions().await.unwrap().len(), PARTITIONS as usize);
        for partition in 0..PARTITIONS {
            assert_eq!(add(&api, &key_in(partition), Consistency::Exact).await, Ok(2), "what runs goes on");
        }
        let refused = Cluster::start(place.services().await, None, ShardPolicies::default()).await.err().unwrap();
        assert!(refused.to_string().contains("docs/cluster-operations.md"), "{refused}");
        let new = topic::NewJournal { partitions: PARTITIONS, replication: 1, retention_ms: 3_600_000 };
        let refused = topic::create(&place.kafka, new).await.unwrap_err().to_string();
        assert!(!refused.contains("partitions = "), "nobody is told to set the new number: {refused}");

        let reset = Appender::new(&place.kafka).unwrap().reset_clock(0).await.unwrap();
        worker.persist_all(Duration::from_secs(30)).await.unwrap();
        assert_eq!(pg.partitions().await.unwrap()[0].clock_reset, reset.end);

        // As docs/cluster-operations.md says.
        worker.stop().await;
        let begin = "UPDATE partitions SET position = 0, clock_reset = 0";
        services.postgres.psql_at(&place.postgres, begin).unwrap();
        let mut moved = place.clone();
        moved.kafka.topic = format!("{}_moved", place.kafka.topic);
        moved.redis.prefix = moved.kafka.topic.clone();
        topic::create(&moved.kafka, new).await.unwrap();
        let (worker, api) = (moved.worker().await, moved.api().await);
        tokio::task::block_in_place(|| wait_until_hosted(&worker, PARTITIONS as usize));
        for partition in 0..PARTITIONS {
            assert_eq!(add(&api, &key_in(partition), Consistency::Exact).await, Ok(3), "nothing is lost");
            let read = api.read(vec![key_in(partition)], ReadOptions::new(Consistency::Eventual)).await;
            assert_eq!(read.unwrap()[0].value, 3, "the age of a reading is known");
        }
    });
}

#[test]
fn a_topic_with_more_replicas_than_brokers_is_refused_with_the_setting_to_change() {
    let (services, place) = place();
    services.runtime.block_on(async {
        let new = topic::NewJournal { partitions: 1, replication: 3, retention_ms: 3_600_000 };
        let elsewhere = KafkaSettings { topic: "too-many-replicas".to_owned(), ..place.kafka.clone() };
        let refused = topic::create(&elsewhere, new).await.unwrap_err().to_string();
        assert!(refused.contains("TALLY_CLUSTER_REPLICATION"), "{refused}");
    });
}

#[test]
fn a_topic_that_could_lose_acknowledged_records_is_refused_with_the_command_that_mends_it() {
    let (services, place) = place();
    let good = [
        ("message.timestamp.type", "LogAppendTime"),
        ("unclean.leader.election.enable", "false"),
        ("max.message.bytes", "104857600"),
        ("retention.ms", "3600000"),
    ];
    let bad = [("retention.bytes", "1000000", "-1"), ("retention.ms", "60000", "3600000")];
    services.runtime.block_on(async {
        for (place_of, (name, value, wanted)) in bad.into_iter().enumerate() {
            let settings = KafkaSettings { topic: format!("lossy{place_of}"), ..place.kafka.clone() };
            let new = NewTopic::new(&settings.topic, 1, TopicReplication::Fixed(1));
            let new = good.iter().filter(|(of, _)| *of != name).fold(new, |new, (name, value)| new.set(name, value));
            let created = admin(&place).create_topics([&new.set(name, value)], &AdminOptions::new()).await;
            created.unwrap().remove(0).unwrap();
            let check = || match Handle::current().block_on(topic::check(&settings)) {
                Err(error @ TopicError::NoTopic(_)) => Err(error.to_string()),
                checked => Ok(checked.unwrap_err().to_string()),
            };
            let refused = tokio::task::block_in_place(|| wait_for("the topic", check));
            assert!(refused.contains(&format!("has {name}={value}")), "{refused}");
            assert!(refused.contains(&format!("--add-config {name}={wanted}")), "{refused}");
        }
        let longer = topic::NewJournal { partitions: PARTITIONS, replication: 1, retention_ms: 7_200_000 };
        let refused = topic::create(&place.kafka, longer).await.unwrap_err().to_string();
        assert!(refused.contains("has retention.ms=3600000; Tally needs 7200000"), "{refused}");
    });
}

#[test]
fn a_missing_topic_a_newer_schema_and_a_wrong_password_are_named() {
    let (services, place) = place();
    services.runtime.block_on(async {
        let mut elsewhere = place.clone();
        elsewhere.kafka.topic = "nowhere".to_owned();
        let missing =
            Cluster::start(elsewhere.services().await, None, ShardPolicies::default()).await.err().unwrap().to_string();
        assert!(missing.contains("tally cluster init"), "{missing}");
        let mut wrong = place.clone();
        wrong.postgres = place.postgres.replace(":secret@", ":wrong@");
        let refused = Cluster::start(wrong.services().await, None, ShardPolicies::default()).await.err().unwrap();
        assert!(matches!(refused, ApiError::Store(PgError::Credentials { .. })), "{refused}");
    });
    services.runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&place.postgres, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.execute("INSERT INTO tally_schema (version) VALUES (99)", &[]).await.unwrap();
        let newer = Cluster::start(place.services().await, None, ShardPolicies::default()).await.err().unwrap();
        assert!(matches!(newer, ApiError::Store(PgError::SchemaNewer { found: 99, .. })), "{newer}");
    });
}
