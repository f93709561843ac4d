//! API nodes behind a real nginx with `deploy/nginx/tally.conf`, killed and restarted under load.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::nginx::{Loopback, Nginx};
use crate::harness::wire::{Reply, Resp};
use crate::harness::{self, Client, Server, tally, wait_for};
use crate::place::{Services, TestCluster};

/// Starts API nodes of a cluster at addresses that stay the same over a restart.
struct ApiNodes {
    dir: TempDir,
}

impl ApiNodes {
    fn of(cluster: &TestCluster) -> ApiNodes {
        let services = Services::shared();
        let name = cluster.sql("SELECT current_database()");
        let url = services.postgres.url();
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[cluster]\nkafka = \"{}\"\ntopic = \"{name}\"\nredis = {}\npostgres = \"{}/{name}\"\nrollup_every = \"100ms\"\n",
            services.kafka.bootstrap_servers(),
            json!(services.redis.addresses()),
            url.rsplit_once('/').unwrap().0,
        );
        harness::write(dir.path().join("tally.toml"), &text);
        ApiNodes { dir }
    }

    fn start(&self, at: Ipv4Addr) -> Server {
        let mut command = tally();
        command.args(["serve", "--roles", "api", "--config", "tally.toml"]);
        command.args(["--http", &format!("{at}:7300"), "--resp", &format!("{at}:7379")]);
        command.current_dir(self.dir.path());
        Server::start_with(command)
    }
}

/// What was acknowledged to clients.
#[derive(Default)]
struct Acknowledged {
    stop: AtomicBool,
    /// Writes over HTTP with an `Idempotency-Key`, each repeated until it was acknowledged.
    keyed: AtomicU64,
    /// Writes over the Redis protocol with an id, also repeated until acknowledged.
    redis: AtomicU64,
    /// Writes without an id, sent once: acknowledged, and those whose outcome is unknown.
    plain: AtomicU64,
    unknown: AtomicU64,
}

impl Acknowledged {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Waits until each kind of client has had this many more acknowledgements.
    fn wait_for_more(&self, more: u64) {
        let counts = || [&self.keyed, &self.redis, &self.plain].map(|count| count.load(Ordering::Relaxed));
        let before = counts();
        wait_for("load", || {
            let now = counts();
            let enough = now.iter().zip(before).all(|(now, before)| *now >= before + more);
            if enough { Ok(()) } else { Err(format!("{before:?} then, {now:?} now")) }
        });
    }
}

/// Ends the load, even if the test fails.
struct StopOnDrop<'a>(&'a Acknowledged);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn count_with_keys(base: &str, client: u64, acknowledged: &Acknowledged) {
    let mut connection = Client::new(base);
    for number in 0.. {
        if !acknowledged.goes_on() {
            return;
        }
        let id = format!("{client}-{number}");
        wait_for("an acknowledgement", || {
            let sent =
                connection.try_send("POST", "/api/v1/counters/keyed/increment", &[("Idempotency-Key", &id)], "{}");
            match sent {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text)),
                Err(error) => {
                    connection = Client::new(base);
                    Err(error.to_string())
                }
            }
        });
        acknowledged.keyed.fetch_add(1, Ordering::Relaxed);
    }
}

fn count_over_redis(address: &str, acknowledged: &Acknowledged) {
    let mut connection = Resp::try_to(address);
    for number in 0.. {
        if !acknowledged.goes_on() {
            return;
        }
        let command = format!("TALLY.ADD redis 1 ID {number}\r\n");
        wait_for("an acknowledgement", || {
            let reply = match &mut connection {
                Ok(open) => open.send(command.as_bytes()).and_then(|()| open.reply()),
                Err(error) => Err(std::io::Error::other(error.to_string())),
            };
            match reply {
                Ok(Reply::Error(text)) => Err(text),
                Ok(_) => Ok(()),
                Err(error) => {
                    connection = Resp::try_to(address);
                    Err(error.to_string())
                }
            }
        });
        acknowledged.redis.fetch_add(1, Ordering::Relaxed);
    }
}

fn count_without_keys(base: &str, acknowledged: &Acknowledged) {
    let mut connection = Client::new(base);
    while acknowledged.goes_on() {
        match connection.try_send("POST", "/api/v1/counters/plain/increment", &[], "{}") {
            Ok(answer) if answer.status == 200 => drop(acknowledged.plain.fetch_add(1, Ordering::Relaxed)),
            Ok(answer) if answer.json["outcome"] == "none" => assert_eq!(answer.status, 503, "{}", answer.text),
            Ok(answer) => {
                assert_eq!((answer.status, &answer.json["outcome"]), (503, &json!("unknown")), "{}", answer.text);
                acknowledged.unknown.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                connection = Client::new(base);
                acknowledged.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Waits until a node has answered more increments than it has now.
fn wait_for_traffic(node: &Server) {
    let increments = || -> u64 {
        let metrics = node.send("GET", "/metrics", "").text;
        let lines = metrics.lines().filter(|line| {
            line.starts_with("tally_requests_total") && line.contains("protocol=\"http\",verb=\"increment\"")
        });
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    let before = increments();
    wait_for("traffic through a node", || if increments() > before { Ok(()) } else { Err(before) });
}

#[test]
fn behind_nginx_api_nodes_are_killed_and_rolled_without_a_wrong_count() {
    let cluster = TestCluster::new("");
    let _worker = cluster.node("worker");
    let nodes = ApiNodes::of(&cluster);
    let loopback = Loopback::choose();
    let at = [loopback.address(1), loopback.address(2)];
    let (first, second) = (nodes.start(at[0]), nodes.start(at[1]));
    let nginx = Nginx::start(loopback.address(3), at, |conf| conf);
    cluster.wait_until_hosted();
    let acknowledged = Acknowledged::default();
    let _nodes = thread::scope(|scope| {
        let (acknowledged, nginx) = (&acknowledged, &nginx);
        let _stop = StopOnDrop(acknowledged);
        for client in 0..4 {
            scope.spawn(move || count_with_keys(&nginx.base, client, acknowledged));
        }
        scope.spawn(move || count_over_redis(&nginx.redis, acknowledged));
        for _ in 0..2 {
            scope.spawn(move || count_without_keys(&nginx.base, acknowledged));
        }
        acknowledged.wait_for_more(50);
        first.kill();
        acknowledged.wait_for_more(50);
        let first = nodes.start(at[0]);
        wait_for_traffic(&first);
        let mut second = second;
        assert!(second.terminate().success(), "{}", second.log());
        acknowledged.wait_for_more(50);
        let second = nodes.start(at[1]);
        wait_for_traffic(&second);
        acknowledged.wait_for_more(50);
        (first, second)
    });
    let value = |key: &str| {
        wait_for("an exact reading", || {
            let read = Client::new(&nginx.base).send("GET", &format!("/api/v1/counters/{key}/exact"), &[], "");
            if read.status == 200 { Ok(read.json["value"].as_u64().unwrap()) } else { Err(read.text) }
        })
    };
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!(value("keyed"), count(&acknowledged.keyed));
    assert_eq!(value("redis"), count(&acknowledged.redis));
    let (plain, known, unknown) = (value("plain"), count(&acknowledged.plain), count(&acknowledged.unknown));
    assert!((known..=known + unknown).contains(&plain), "{plain}: {known} acknowledged, {unknown} unknown");
}
