//! The statistics of `INFO`.

use std::collections::BTreeMap;

use crate::harness::Server;
use crate::harness::wire::{Reply, Resp};

fn info(resp: &mut Resp, section: &str) -> BTreeMap<String, String> {
    let Reply::Bulk(text) = resp.say(&format!("info {section}")) else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect()
}

#[test]
fn hits_misses_errors_and_bytes_are_counted() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let number = |fields: &BTreeMap<String, String>, name: &str| fields[name].parse::<i64>().unwrap();
    let before = info(&mut resp, "stats");
    for line in ["set a 1", "get a", "get none", "mget a none other", "exists a a", "ttl none", "incr a"] {
        assert!(resp.say(line).error().is_empty(), "{line}");
    }
    for line in ["set a x", "nope", "incr", "select 7", "select 0", "set b 9223372036854775807", "incr b"] {
        resp.say(line);
    }
    // Equal requests in a row are executed together, and each has its own reply.
    resp.send(&b"INCR b\r\n".repeat(3)).unwrap();
    (0..3).for_each(|_| assert!(!resp.reply().unwrap().error().is_empty()));
    let after = info(&mut resp, "stats");
    let grown = |name| number(&after, name) - number(&before, name);
    assert_eq!((grown("keyspace_hits"), grown("keyspace_misses")), (4, 4));
    assert_eq!(grown("total_error_replies"), 8);
    assert!(grown("total_net_input_bytes") > 100 && grown("total_net_output_bytes") > 100);
    assert_eq!(grown("total_commands_processed"), 18);
    assert!(after.contains_key("instantaneous_ops_per_sec"));
    let memory = info(&mut resp, "memory");
    assert!(number(&memory, "used_memory_peak") >= number(&memory, "used_memory_rss") / 2);
}

#[test]
fn the_calls_of_each_command_are_counted() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    resp.send(&b"INCR a\r\n".repeat(5)).unwrap();
    (0..5).for_each(|_| assert!(resp.reply().unwrap().number() > 0));
    for line in ["get a", "set a x", "client id", "dbsize", "multi", "get a", "get a", "exec"] {
        resp.say(line);
    }
    assert!(!info(&mut resp, "").keys().any(|name| name.starts_with("cmdstat_")), "only if asked for");
    for section in ["commandstats", "all", "everything"] {
        let stats = info(&mut resp, section);
        for (name, begin, end) in [
            ("incr", "calls=5,usec=", ",rejected_calls=0,failed_calls=0"),
            ("get", "calls=3,usec=", ",rejected_calls=0,failed_calls=0"),
            ("set", "calls=0,usec=0,usec_per_call=0.00", ",rejected_calls=1,failed_calls=0"),
            ("client|id", "calls=1,usec=", ",rejected_calls=0,failed_calls=0"),
            ("dbsize", "calls=1,usec=", ",rejected_calls=0,failed_calls=0"),
            ("exec", "calls=1,usec=", ",rejected_calls=0,failed_calls=0"),
        ] {
            let line = &stats[&format!("cmdstat_{name}")];
            assert!(line.starts_with(begin) && line.ends_with(end), "{name}: {line}");
        }
    }
}
