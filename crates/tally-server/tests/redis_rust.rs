//! The `redis` crate, unmodified, in both versions of the protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::collections::{BTreeSet, HashMap};

use harness::Server;
use redis::{Client, Commands, Connection, RedisResult, cmd, pipe};

/// Runs the check with a connection in each version.
fn in_both_versions(check: impl Fn(&Server, Connection, &str)) {
    let server = Server::start();
    for version in ["resp2", "resp3"] {
        let client = Client::open(format!("redis://{}/?protocol={version}", server.redis)).unwrap();
        let mut connection = client.get_connection().unwrap();
        let _: () = cmd("FLUSHALL").query(&mut connection).unwrap();
        check(&server, connection, version);
    }
}

#[test]
fn counters_are_read_and_written() {
    in_both_versions(|_, mut connection, _| {
        assert_eq!(connection.incr("n", 5), Ok(5));
        assert_eq!(connection.decr("n", 2), Ok(3));
        assert_eq!(connection.get("n"), Ok(3));
        assert_eq!(connection.get("missing"), Ok(None::<i64>));
        assert_eq!(connection.mget(&["n", "missing"][..]), Ok(vec![Some(3), None]));
        let only_new = redis::SetOptions::default().conditional_set(redis::ExistenceCheck::NX);
        assert_eq!(connection.set_options("n", 9, only_new), Ok(None::<String>));
        assert_eq!(connection.expire("n", 100), Ok(true));
        let left: i64 = connection.ttl("n").unwrap();
        assert!((1..=100).contains(&left));
        let text: RedisResult<()> = connection.set("n", "text");
        assert!(text.unwrap_err().to_string().contains("not an integer"));
        assert_eq!(connection.del("n"), Ok(1));
        assert_eq!(connection.exists("n"), Ok(false));
    });
}

#[test]
fn pipelines_and_transactions_are_answered_in_order() {
    in_both_versions(|_, mut connection, _| {
        let mut long = pipe();
        for _ in 0..10_000 {
            long.incr("piped", 1);
        }
        let answers: Vec<i64> = long.query(&mut connection).unwrap();
        assert!(answers.into_iter().eq(1..=10_000));
        let answers: (i64, i64, Option<i64>, i64) =
            pipe().atomic().incr("a", 7).get("a").get("missing").del("a").query(&mut connection).unwrap();
        assert_eq!(answers, (7, 7, None, 1));
    });
}

#[test]
fn a_scan_during_writes_returns_every_key_that_exists_throughout() {
    in_both_versions(|server, mut connection, _| {
        let names: BTreeSet<String> = (0..500).map(|at| format!("stay:{at}")).collect();
        let mut all = pipe();
        for name in &names {
            all.incr(name, 1);
        }
        let _: Vec<i64> = all.query(&mut connection).unwrap();
        let mut writer = Client::open(format!("redis://{}", server.redis)).unwrap().get_connection().unwrap();
        let walk: redis::Iter<'_, String> = connection.scan_match("stay:*").unwrap();
        let mut seen = BTreeSet::new();
        let mut at = 0;
        for key in walk {
            seen.insert(key.unwrap());
            at += 1;
            let _: (i64, i64, i64) = pipe()
                .incr(format!("stay:{}", at % 500), 1)
                .incr(format!("stay:new:{at}"), 1)
                .del(format!("stay:new:{}", at - 2))
                .query(&mut writer)
                .unwrap();
        }
        assert!(names.is_subset(&seen), "{} of {} seen", names.intersection(&seen).count(), names.len());
    });
}

#[test]
fn introspection_commands_work() {
    in_both_versions(|_, mut connection, version| {
        let info: redis::InfoDict = cmd("INFO").query(&mut connection).unwrap();
        assert_eq!(info.get::<String>("redis_mode").as_deref(), Some("standalone"));
        let settings: HashMap<String, String> = cmd("CONFIG").arg("GET").arg("max*").query(&mut connection).unwrap();
        assert!(settings["maxclients"].parse::<u64>().is_ok());
        let _: () = cmd("CLIENT").arg("SETNAME").arg("rusty").query(&mut connection).unwrap();
        let id: u64 = cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
        let list: String = cmd("CLIENT").arg("LIST").arg("ID").arg(id).query(&mut connection).unwrap();
        assert!(list.starts_with(&format!("id={id} ")) && list.contains(" name=rusty "), "{list}");
        assert!(list.contains(" lib-name=redis-rs "), "{list}");
        assert!(list.contains(&version.replace("resp", " resp=")), "{list}");
        let count: usize = cmd("COMMAND").arg("COUNT").query(&mut connection).unwrap();
        let all: Vec<redis::Value> = cmd("COMMAND").query(&mut connection).unwrap();
        assert_eq!(all.len(), count);
        let docs: HashMap<String, redis::Value> =
            cmd("COMMAND").arg("DOCS").arg("incr").arg("get").query(&mut connection).unwrap();
        assert_eq!(docs.len(), 2);
    });
}
