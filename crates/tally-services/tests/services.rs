//! Each service starts, answers, survives what is done to it, and dies with the process that started it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tally_services::{Kafka, KafkaOptions, Postgres, PostgresSettings, RedisCluster, wait_for};

fn create_topic(kafka: &Kafka, topic: &str) {
    kafka.tool("TopicCommand", &["--create", "--topic", topic, "--partitions", "1"], "").unwrap();
}

/// Appends lines; each is acknowledged by all replicas in sync.
fn produce(kafka: &Kafka, topic: &str, lines: &str) {
    kafka.tool("ConsoleProducer", &["--topic", topic, "--request-required-acks", "all"], lines).unwrap();
}

/// Reads as many records as are expected, from the first.
fn expect_records(kafka: &Kafka, topic: &str, lines: &str) {
    let count = lines.lines().count().to_string();
    let read = ["--topic", topic, "--from-beginning", "--max-messages", &count, "--timeout-ms", "60000"];
    assert_eq!(kafka.tool("consumer.ConsoleConsumer", &read, "").unwrap(), lines);
}

/// The node that leads the only partition of a topic; `None` while there is no leader.
fn leader(kafka: &Kafka, topic: &str) -> Option<usize> {
    let described = kafka.tool("TopicCommand", &["--describe", "--topic", topic], "").ok()?;
    described.split("Leader: ").nth(1)?.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_broker_keeps_records_over_a_kill_and_checks_passwords() {
    let kafka = Kafka::start_with_password("tally", "secret");
    create_topic(&kafka, "events");
    produce(&kafka, "events", "one\ntwo\n");
    let refused = kafka.tool_as(Some(("tally", "wrong")), "TopicCommand", &["--list"], "").unwrap_err();
    assert!(refused.contains("SaslAuthenticationException"), "{refused}");

    kafka.kill(0);
    assert!(kafka.pids().is_empty());
    kafka.restart(0);
    expect_records(&kafka, "events", "one\ntwo\n");
}

#[test]
fn a_cluster_of_three_brokers_elects_again_and_returns_after_an_outage() {
    // A setting that is not the default, to see that it is used.
    let properties = vec![("log.retention.check.interval.ms".to_owned(), "1000".to_owned())];
    let kafka = Kafka::start_with(&KafkaOptions { brokers: 3, properties, ..KafkaOptions::default() });
    assert_eq!(kafka.bootstrap_servers().split(',').count(), 3);
    create_topic(&kafka, "events");
    produce(&kafka, "events", "one\n");

    let killed = leader(&kafka, "events").unwrap();
    kafka.kill(killed);
    wait_for("another leader", || match leader(&kafka, "events") {
        Some(next) if next != killed => Ok(()),
        seen => Err(format!("the leader is {seen:?}")),
    });
    produce(&kafka, "events", "two\n");
    kafka.restart(killed);
    kafka.wait_until_ready();

    kafka.pause(killed);
    // The other two keep serving.
    kafka.wait_until_ready();
    kafka.resume(killed);

    kafka.stop_all();
    assert!(kafka.pids().is_empty());
    kafka.start_all();
    kafka.wait_until_ready();
    expect_records(&kafka, "events", "one\ntwo\n");
}

/// Whether the replica of a master has acknowledged everything.
fn is_replicated(info: &str) -> bool {
    let after = |name| info.split(name).nth(1).map(|rest| rest.split([',', '\r', '\n']).next().unwrap_or_default());
    after("master_repl_offset:").is_some_and(|offset| after(",offset=") == Some(offset))
}

#[test]
fn a_replica_takes_over_from_a_killed_master() {
    let redis = RedisCluster::start();
    assert_eq!((redis.addresses().len(), redis.masters().len(), redis.pids().len()), (6, 3, 6));
    // Masters that do not own the key answer `MOVED`, which is an error.
    let owner = || redis.masters().into_iter().find(|node| redis.cli(*node, &["GET", "likes"]).is_ok()).unwrap();
    let master = owner();
    assert_eq!(redis.cli(master, &["INCRBY", "likes", "42"]).unwrap(), "42\n");
    wait_for("the replica", || match redis.cli(master, &["INFO", "replication"]) {
        Ok(info) if is_replicated(&info) => Ok(()),
        other => Err(format!("{other:?}")),
    });

    redis.kill(master);
    redis.wait_until_failed_over(master);
    let masters = redis.masters();
    assert!(masters.len() == 3 && !masters.contains(&master), "{masters:?}");
    assert_eq!(redis.cli(owner(), &["GET", "likes"]).unwrap(), "42\n");

    redis.restart(master);
    assert_eq!(redis.masters(), masters, "it returned as a replica");
    redis.flush_all();
    for node in masters {
        assert_eq!(redis.cli(node, &["DBSIZE"]).unwrap().trim(), "0");
    }
}

#[test]
fn a_redis_cluster_with_a_password_wants_it_and_survives_a_pause() {
    let redis = RedisCluster::start_with_password("secret");
    let port = redis.addresses()[0].rsplit(':').next().unwrap().to_owned();
    let stranger = Command::new("redis-cli").args(["-p", &port, "PING"]).output().unwrap();
    assert!(String::from_utf8_lossy(&stranger.stdout).contains("NOAUTH"));
    let master = redis.masters()[0];
    redis.pause(master);
    redis.wait_until_failed_over(master);
    redis.resume(master);
    redis.wait_until_ready();
    assert_eq!(redis.masters().len(), 3);
}

#[test]
fn postgres_keeps_a_committed_row_over_a_kill_and_a_stop() {
    let postgres = Postgres::start();
    postgres.psql("CREATE TABLE totals (key text PRIMARY KEY, value bigint)").unwrap();
    postgres.psql("INSERT INTO totals VALUES ('likes', 42)").unwrap();
    postgres.kill();
    assert!(!postgres.is_running() && postgres.psql("SELECT 1").is_err());
    postgres.restart();
    assert_eq!(postgres.psql("SELECT key, value FROM totals").unwrap(), "likes|42\n");
    postgres.stop();
    postgres.restart();
    assert_eq!(postgres.psql("SELECT value FROM totals").unwrap(), "42\n");
    let wrong = postgres.url().replace("secret", "wrong");
    let refused = Command::new("psql").args([&wrong, "-c", "SELECT 1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("password authentication failed"));
    assert!(postgres.socket_dir().join(format!(".s.PGSQL.{}", postgres.port())).exists());
}

/// Mounting needs root. Without root, the same call must say so.
#[test]
fn postgres_on_a_disk_of_its_own_meets_a_full_disk_or_says_what_it_needs() {
    let settings = PostgresSettings { disk_mb: Some(96), ..PostgresSettings::default() };
    if !rustix::process::geteuid().is_root() {
        let refused = std::panic::catch_unwind(|| Postgres::start_with(&settings)).err().unwrap();
        assert!(refused.downcast_ref::<String>().unwrap().contains("needs root"));
        return;
    }
    let postgres = Postgres::start_with(&settings);
    postgres.psql("CREATE TABLE filler AS SELECT 'kept' AS text").unwrap();
    postgres.fill_disk();
    let grow = "INSERT INTO filler SELECT repeat(i::text, 100) FROM generate_series(1, 10000) i";
    let refused = postgres.psql(grow).unwrap_err();
    postgres.free_disk();
    // Without space for its WAL it exits, or restarts itself.
    if !postgres.is_running() {
        postgres.restart();
    }
    postgres.wait_until_available();
    assert_eq!(postgres.psql("SELECT text FROM filler").unwrap(), "kept\n", "{refused}");
    postgres.psql(grow).unwrap();
    let dir = postgres.dir().to_owned();
    drop(postgres);
    assert!(!dir.exists() && !std::fs::read_to_string("/proc/mounts").unwrap().contains(&*dir.to_string_lossy()));
}

/// Processes that have a directory below this one as their working directory, or name one in their arguments.
fn processes_in(dir: &Path) -> Vec<String> {
    let name = dir.to_string_lossy();
    let found = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        cwd.to_string_lossy().starts_with(&*name) || String::from_utf8_lossy(&arguments).contains(&*name)
    });
    found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn services_and_their_data_are_gone_when_their_parent_is_killed() {
    let shared_memory = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let mut parent = Command::new(env!("CARGO_BIN_EXE_tally-services"))
        .args(["kafka", "redis", "postgres"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
    let started: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let dirs: Vec<PathBuf> = started.iter().map(|line| line.split('\t').nth(2).unwrap().into()).collect();
    assert_eq!(dirs.len(), 3, "{started:?}");
    let counts: Vec<usize> = dirs.iter().map(|dir| processes_in(dir).len()).collect();
    assert!(counts[0] >= 1 && counts[1] >= 6 && counts[2] >= 2, "{counts:?}");
    let postmaster = std::fs::read_to_string(dirs[2].join("disk/data/postmaster.pid")).unwrap();
    let segment = format!(" {} ", postmaster.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap());
    assert!(shared_memory().contains(&segment));

    parent.kill().unwrap();
    parent.wait().unwrap();
    for dir in dirs {
        wait_for("the end of all processes", || match processes_in(&dir) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?} run")),
        });
        wait_for("the end of the data", || if dir.exists() { Err(format!("{dir:?} is there")) } else { Ok(()) });
    }
    wait_for("the end of shared memory", || {
        if shared_memory().contains(&segment) { Err(shared_memory()) } else { Ok(()) }
    });
}
