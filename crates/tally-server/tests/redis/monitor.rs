//! `MONITOR`: compared with a real Redis, and bounded.

use crate::harness::Server;
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};

/// What a line of a monitor shows, without time and address.
fn shown(line: Reply) -> String {
    let Reply::Simple(text) = line else { panic!("not a line of a monitor: {line:?}") };
    text.split_once("] ").unwrap_or_else(|| panic!("no address: {text}")).1.to_owned()
}

/// What a monitor sees while another connection makes these requests.
fn seen(mut monitor: Resp, mut resp: Resp, requests: &[&str]) -> Vec<String> {
    assert_eq!(monitor.say("monitor"), Reply::Simple("OK".into()));
    requests.iter().chain(&["echo end"]).for_each(|line| drop(resp.say(line)));
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "\"echo\" \"end\"") {
        lines.push(shown(monitor.reply().unwrap()));
    }
    lines
}

#[test]
fn a_monitor_sees_what_it_sees_in_redis() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    for case in [
        &["set a 1", "GeT a", "incrby a x", "mget a b", "ping", "time", "info server", "dbsize", "keys *"][..],
        // Not executed.
        &["get", "nope a", "client nope", "multi x", "monitor x"],
        // Those of a transaction are executed with EXEC.
        &["multi", "incr a", "get a", "exec"],
        &["multi", "incr", "exec", "multi", "incr a", "discard", "exec", "multi", "multi", "incr a", "exec"],
        &["watch a", "unwatch", "reset", "select 0", "select 1", "select 0"],
        // Administrative commands are not shown, and passwords are redacted.
        &["config get maxmemory", "client list", "client id", "slowlog get", "acl whoami", "role"],
        &["auth secret", "auth default secret", "hello 2 auth default secret setname me", "hello 2", "hello x"],
        &["echo \"\\\u{1}\u{7}\u{8}\r\n\té\u{0}", "echo ", "get ''", "set b 1 ex 10"],
    ] {
        let ours = seen(Resp::to(&server), Resp::to(&server), case);
        let theirs = seen(Resp::over(redis.connect()), Resp::over(redis.connect()), case);
        assert_eq!(ours, theirs, "{case:?}");
    }
}

#[test]
fn a_line_begins_with_the_time_and_the_address_of_the_client() {
    let server = Server::start();
    let (mut monitor, mut resp) = (Resp::to(&server), Resp::to(&server));
    let Reply::Bulk(info) = resp.say("client info") else { panic!("no text") };
    let info = String::from_utf8(info).unwrap();
    let address = info.split(' ').find_map(|field| field.strip_prefix("addr=")).unwrap();
    assert_eq!(monitor.say("monitor"), Reply::Simple("OK".into()));
    let before = crate::clock_ms();
    resp.say("incr a");
    let Reply::Simple(line) = monitor.reply().unwrap() else { panic!("no line") };
    let (time, rest) = line.split_once(' ').unwrap();
    assert_eq!(rest, format!("[0 {address}] \"incr\" \"a\""));
    let (seconds, micros) = time.split_once('.').unwrap();
    let at = seconds.parse::<u64>().unwrap() * 1000 + micros.parse::<u64>().unwrap() / 1000;
    assert!(micros.len() == 6 && at.abs_diff(before) < 60_000, "{time} is not about {before}");
}

#[test]
fn a_monitor_can_do_only_what_needs_no_counter_and_leaves_with_reset() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    let (mut theirs, mut ours) = (Resp::over(redis.connect()), Resp::to(&server));
    // Each request with the number of its replies and lines; a second MONITOR has none.
    let requests = [
        ("monitor", 1),
        ("get a", 1),
        ("incr a", 1),
        ("scan 0", 1),
        ("ping", 2),
        ("monitor", 0),
        ("multi", 2),
        ("ping", 1),
        ("exec", 3),
        ("reset", 1),
        ("get a", 1),
        ("ping", 1),
    ];
    for (line, replies) in requests {
        for resp in [&mut ours, &mut theirs] {
            resp.send(format!("{line}\r\n").as_bytes()).unwrap();
        }
        for _ in 0..replies {
            let [our_reply, their_reply] = [&mut ours, &mut theirs].map(|resp| match resp.reply().unwrap() {
                line @ Reply::Simple(_) if matches!(&line, Reply::Simple(text) if text.contains("[0 ")) => {
                    Reply::Simple(shown(line))
                }
                reply => reply,
            });
            assert_eq!(our_reply, their_reply, "{line}");
        }
    }
}

#[test]
fn every_request_of_a_pipeline_is_shown() {
    const REQUESTS: usize = 3_000;
    let server = Server::start();
    let (mut monitor, mut resp) = (Resp::to(&server), Resp::to(&server));
    assert_eq!(monitor.say("monitor"), Reply::Simple("OK".into()));
    resp.send(&b"INCR a\r\n".repeat(REQUESTS)).unwrap();
    (1..=REQUESTS).for_each(|value| assert_eq!(resp.reply().unwrap().number(), value as i64));
    (0..REQUESTS).for_each(|_| assert_eq!(shown(monitor.reply().unwrap()), "\"INCR\" \"a\""));
}

fn monitors(resp: &mut Resp) -> usize {
    let Reply::Bulk(list) = resp.say("client list") else { panic!("no text") };
    String::from_utf8(list).unwrap().matches(" flags=O ").count()
}

#[test]
fn a_monitor_that_does_not_read_is_disconnected() {
    let server = Server::start();
    let (mut monitor, mut resp) = (Resp::to(&server), Resp::to(&server));
    assert_eq!(monitor.say("monitor"), Reply::Simple("OK".into()));
    assert_eq!(monitors(&mut resp), 1);
    let request = crate::harness::wire::request(&["echo", &"x".repeat(1 << 20)]);
    let mut rounds = 0;
    // Sockets hold some MiB as well.
    while monitors(&mut resp) > 0 {
        rounds += 1;
        assert!(rounds < 200, "{rounds} MiB are kept for a monitor that does not read");
        resp.send(&request).unwrap();
        assert!(matches!(resp.reply().unwrap(), Reply::Bulk(_)));
    }
    assert!(rounds >= 8, "disconnected after {rounds} MiB");
    while let Ok(reply) = monitor.reply() {
        assert!(matches!(reply, Reply::Simple(_)));
    }
}

#[test]
fn there_are_few_monitors_at_a_time() {
    let server = Server::start();
    let mut all: Vec<Resp> = (0..9).map(|_| Resp::to(&server)).collect();
    for monitor in &mut all[..8] {
        assert_eq!(monitor.say("monitor"), Reply::Simple("OK".into()));
    }
    assert_eq!(all[8].say("monitor").error(), "ERR there are already 8 monitors, the maximum; close one first");
    drop(all.remove(0));
    crate::harness::wait_for("the place of a monitor that left", || match all[7].say("monitor") {
        Reply::Simple(_) => Ok(()),
        refused => Err(refused),
    });
}
