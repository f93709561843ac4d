//! Redis commands in a cluster: compared with a real Redis where keys are in one partition, refused where they are not, and
//! optimistic transactions across nodes.

use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};
use crate::harness::{Server, wait_for};
use crate::place::{EXACT, TestCluster};

const NAMESPACES: &str = "[namespaces.exact]\nconsistency = \"exact\"\n[namespaces.views]\nconsistency = \
                          \"best-effort\"\naggregation = \"hybrid\"\nshards = 4\n";

/// Commands of one connection. Those of another connection in between are in brackets. Keys begin with `@`.
const CASES: [&[&str]; 17] = [
    &["setex @a 100 5", "get @a", "ttl @a", "psetex @a 100000 6", "get @a", "setnx @a 1", "setnx @b 1", "get @b"],
    &["mset @c 1 @d 2 @c 3", "mget @c @d", "expire @c 100", "mset @c 4", "ttl @c", "get @c"],
    &["msetnx @e 1 @f 2", "mget @e @f", "msetnx @g 1 @e 9", "exists @g", "msetnx @h 1 @h 2", "get @h"],
    &["getex @i", "set @i 5", "getex @i", "getex @i ex 100", "ttl @i", "getex @i persist", "ttl @i", "getex @i exat 1"],
    &["exists @i", "set @j -123", "strlen @j", "strlen @none", "touch @j @none @j", "object encoding @j", "type @j"],
    &["object encoding @none", "object freq @j", "object idletime @none", "memory usage @none", "wait 0 0"],
    &["set @k 1 ex 100", "rename @k @l", "exists @k", "get @l", "ttl @l", "rename @k @l", "rename @l @l", "get @l"],
    &["set @m 2", "renamenx @m @l", "renamenx @m @n", "get @n", "exists @m", "renamenx @m @n", "renamenx @n @n"],
    &["set @o 1 ex 100", "copy @o @p", "get @p", "ttl @p", "copy @o @p", "set @o 2", "copy @o @p replace", "get @p"],
    &["copy @none @p", "copy @o @o", "multi", "setex @q 100 1", "setnx @q 2", "msetnx @r 1 @s 2", "getex @q", "exec"],
    &["watch @t", "multi", "incr @t", "get @t", "ttl @t", "exec", "get @t"],
    &["watch @u", "[incr @u]", "multi", "incr @u", "exec", "get @u", "multi", "incr @u", "exec"],
    &["set @v 1", "watch @v @none", "multi", "incr @v", "[incr @v]", "[decr @v]", "exec", "get @v"],
    &["set @w 1", "watch @w", "[del @w]", "[set @w 1]", "multi", "incr @w", "exec", "get @w"],
    &["set @x 1", "watch @x", "[expire @x 100]", "multi", "incr @x", "exec", "get @x"],
    &[
        "watch @y",
        "unwatch",
        "[incr @y]",
        "multi",
        "incr @y",
        "exec",
        "watch @y",
        "[get @y]",
        "multi",
        "get @y",
        "exec",
    ],
    &["watch @z", "[incr @z]", "multi", "msetnx @z 1", "exec", "watch @z", "incr @z", "multi", "incr @z", "exec"],
];

#[test]
fn commands_on_keys_of_one_partition_are_answered_as_by_redis() {
    let (redis, cluster) = (Redis::start_with(&["--databases", "1"]), TestCluster::new(NAMESPACES));
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    for case in CASES {
        let (mut ours, mut our_other) = (Resp::to(&first), Resp::to(&second));
        let (mut theirs, mut their_other) = (Resp::over(redis.connect()), Resp::over(redis.connect()));
        for line in case {
            let said = line.replace('@', "exact:{tag}:");
            match said.strip_prefix('[').and_then(|said| said.strip_suffix(']')) {
                Some(said) => assert_eq!(our_other.say(said), their_other.say(said), "{line} in {case:?}"),
                None => assert_eq!(rounded(ours.say(&said)), rounded(theirs.say(&said)), "{line} in {case:?}"),
            }
        }
    }
    assert_keyspace_is_shown(&first, &redis);
}

/// Some time may pass before an expiry is read: up to 10 of the 100 seconds.
fn rounded(reply: Reply) -> Reply {
    match reply {
        Reply::Integer(90..=100) => Reply::Integer(100),
        Reply::Many(kind, items) => Reply::Many(kind, items.into_iter().map(rounded).collect()),
        other => other,
    }
}

/// Listings come from PostgreSQL, which is a little behind.
fn assert_keyspace_is_shown(server: &Server, redis: &Redis) {
    let sorted = |reply: Reply| {
        let mut keys = reply.items().to_vec();
        keys.sort();
        keys
    };
    let (mut ours, mut theirs) = (Resp::to(server), Resp::over(redis.connect()));
    let expected = sorted(theirs.say("keys *"));
    wait_for("all keys", || match sorted(ours.say("keys *")) {
        keys if keys == expected => Ok(()),
        keys => Err(format!("{keys:?} instead of {expected:?}")),
    });
    assert_eq!(sorted(ours.say("keys *:[a-c]")), sorted(theirs.say("keys *:[a-c]")));
    assert!(expected.contains(&ours.say("randomkey")));
    assert!(ours.say("memory usage exact:{tag}:a").number() > 50);
    let idle = ours.say("object idletime exact:{tag}:a").number();
    assert!((0..1_000).contains(&idle), "{idle}");
}

#[test]
fn keys_of_several_partitions_are_refused_and_nothing_changes() {
    let cluster = TestCluster::new(NAMESPACES);
    let api = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&api);
    let keys: Vec<String> = (0..20).map(|number| format!("exact:{number}")).collect();
    let pairs: String = keys.iter().map(|key| format!(" {key} 1")).collect();
    redis.say("set from 1");
    let elsewhere = keys.iter().find(|key| redis.say(&format!("copy from {key}")).error().starts_with("CROSSSLOT"));
    let elsewhere = elsewhere.expect("a key of another partition");
    for line in [
        format!("mset{pairs}"),
        format!("msetnx{pairs}"),
        format!("rename from {elsewhere}"),
        format!("renamenx from {elsewhere}"),
        format!("copy from {elsewhere} replace"),
    ] {
        assert!(redis.say(&line).error().starts_with("CROSSSLOT"), "{line}");
    }
    assert_eq!(redis.say(&format!("watch {}", keys.join(" "))), Reply::Simple("OK".into()));
    redis.say("multi");
    redis.say("incr from");
    assert!(redis.say("exec").error().starts_with("CROSSSLOT"));
    assert_eq!(redis.say(&format!("exists {elsewhere}")), Reply::Integer(0));
    assert_eq!(api.value("from"), 1);
}

#[test]
fn commands_that_a_best_effort_namespace_cannot_do_are_refused_with_the_remedy() {
    let cluster = TestCluster::new(NAMESPACES);
    let api = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&api);
    for line in [
        "setnx views:a 1",
        "mset views:a 1",
        "msetnx views:a 1",
        "getex views:a ex 100",
        "rename views:a views:b",
        "renamenx views:a views:b",
        "copy views:a views:b",
    ] {
        let reply = redis.say(line);
        assert!(reply.error().contains("`eventual` or a stronger one"), "{line}: {reply:?}");
    }
    assert_eq!(redis.say("watch views:a"), Reply::Simple("OK".into()));
    redis.say("multi");
    redis.say("incr other");
    assert!(redis.say("exec").error().contains("`eventual` or a stronger one"));
    assert_eq!((redis.say("exists views:a"), api.value("other")), (Reply::Integer(0), 0));
    assert_eq!(redis.say("setex views:a 1000 12"), Reply::Simple("OK".into()));
    wait_for("the value to be read", || match redis.say("strlen views:a") {
        Reply::Integer(2) => Ok(()),
        other => Err(other),
    });
    for (line, reply) in [
        ("getex views:a", Reply::Bulk(b"12".to_vec())),
        ("touch views:a views:none", Reply::Integer(1)),
        ("object encoding views:a", Reply::Bulk(b"int".to_vec())),
    ] {
        assert_eq!(redis.say(line), reply, "{line}");
    }
    assert!(redis.say("memory usage views:a").number() > 50);
    assert_eq!(redis.say("psetex views:a 1000000 7"), Reply::Simple("OK".into()));
}

/// In an eventual namespace, an increment is acknowledged before it is applied. Reads that follow it in a pipeline are
/// not estimated.
#[test]
fn a_read_behind_an_increment_is_about_its_own_counter() {
    let cluster = TestCluster::new("");
    let api = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&api);
    let mut say_together = |lines: &[&str]| -> Vec<Reply> {
        redis.send(lines.iter().map(|line| format!("{line}\r\n")).collect::<String>().as_bytes()).unwrap();
        lines.iter().map(|_| redis.reply().unwrap()).collect()
    };
    let (null, number) = (Reply::Line("$-1".into()), Reply::Integer);
    let replies =
        say_together(&["INCR {p}a", "GET {p}none", "EXISTS {p}none {p}a", "TTL {p}a", "TTL {p}none", "GET {p}a"]);
    assert_eq!(replies, [number(1), null, number(1), number(-1), number(-2), Reply::Bulk(b"1".to_vec())]);
    // An expiry that is read in a transaction is not taken for a value, either.
    let replies = say_together(&["MULTI", "EXPIRE {p}a 1000", "TTL {p}a", "EXEC", "INCR {p}a"]);
    assert_eq!(replies[3], Reply::Many(b'*', vec![number(1), number(1000)]));
    assert_eq!(replies[4], number(2));
    wait_for("the expiry to be read", || match say_together(&["INCR {p}b", "TTL {p}a"])[1].number() {
        900..=1000 => Ok(()),
        other => Err(other),
    });
}

/// In an eventual namespace a read may be old. A transaction must not depend on an old one.
#[test]
fn what_is_read_after_watch_is_not_older_than_it() {
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let (mut here, mut there) = (Resp::to(&first), Resp::to(&second));
    for round in 1..=20 {
        assert!(matches!(there.say("incr {w}n"), Reply::Integer(_)));
        assert_eq!(here.say("watch {w}n"), Reply::Simple("OK".into()));
        assert_eq!(here.say("get {w}n").number(), round);
        assert_eq!(here.say("mget {w}n").items()[0].number(), round);
        assert_eq!(here.say("unwatch"), Reply::Simple("OK".into()));
    }
}

#[test]
fn no_update_is_lost_between_clients_of_different_nodes() {
    const ROUNDS: i64 = 15;
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let (aborted, clients) = (std::sync::atomic::AtomicU32::new(0), [&first, &second, &first, &second]);
    std::thread::scope(|scope| {
        for server in clients {
            let (mut redis, aborted) = (Resp::to(server), &aborted);
            scope.spawn(move || {
                let mut done = 0;
                while done < ROUNDS {
                    assert_eq!(redis.say("watch {s}um"), Reply::Simple("OK".into()));
                    let value = match redis.say("get {s}um") {
                        Reply::Line(_) => 0,
                        value => value.number(),
                    };
                    redis.say("multi");
                    redis.say(&format!("set {{s}}um {}", value + 1));
                    redis.say("incr {s}teps");
                    match redis.say("exec") {
                        Reply::Many(..) => done += 1,
                        Reply::Line(_) => drop(aborted.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let expected = ROUNDS * clients.len() as i64;
    assert_eq!((first.value("%7Bs%7Dum"), second.value("%7Bs%7Dteps")), (expected, expected));
    assert!(aborted.into_inner() > 0, "no two clients met");
}

/// Changes over HTTP abort it, too.
#[test]
fn a_change_over_http_through_another_node_aborts_a_transaction() {
    let cluster = TestCluster::new("");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&first);
    let null = Reply::Line("*-1".into());
    for (is_changed, expected) in [(true, null), (false, Reply::Many(b'*', vec![Reply::Integer(0)]))] {
        assert_eq!(redis.say("watch h"), Reply::Simple("OK".into()));
        if is_changed {
            assert_eq!(second.send("POST", "/api/v1/counters/h/increment", "").status, 200);
        }
        redis.say("multi");
        redis.say("decr h");
        assert_eq!(redis.say("exec"), expected);
    }
}
