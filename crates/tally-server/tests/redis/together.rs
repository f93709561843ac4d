//! Many clients at once, and both protocols on the same counters.

use std::collections::BTreeSet;
use std::sync::Barrier;

use serde_json::json;

use crate::harness::wire::{Reply, Resp, request};
use crate::harness::{Client, Server, serve, write};

const STOCK: i64 = 300;
const BUYERS: usize = 100;
/// Purchases of each buyer, in one pipeline.
const EACH: usize = 10;

#[test]
fn a_thousand_purchases_from_a_stock_of_three_hundred_sell_exactly_three_hundred() {
    let server = Server::start();
    assert_eq!(Resp::to(&server).say(&format!("SET stock {STOCK}")), Reply::Simple("OK".into()));
    let (barrier, address) = (Barrier::new(BUYERS), &server.redis);
    let buy = || {
        let mut resp = Resp::try_to(address).unwrap();
        let request = request(&["INCREX", "stock", "BYINT", "-1", "LBOUND", "0"]).repeat(EACH);
        barrier.wait();
        resp.send(&request).unwrap();
        let replies = (0..EACH).map(|_| resp.reply().unwrap());
        replies.map(|reply| (reply.items()[0].number(), reply.items()[1].number())).collect::<Vec<_>>()
    };
    let bought: Vec<(i64, i64)> = std::thread::scope(|scope| {
        let buyers: Vec<_> = (0..BUYERS).map(|_| scope.spawn(buy)).collect();
        buyers.into_iter().flat_map(|buyer| buyer.join().unwrap()).collect()
    });
    assert_eq!(bought.len(), BUYERS * EACH);
    let left: BTreeSet<i64> = bought.iter().filter(|(_, applied)| *applied == -1).map(|(left, _)| *left).collect();
    let refused = bought.iter().filter(|bought| **bought == (0, 0)).count();
    assert_eq!(left, (0..STOCK).collect(), "each piece is sold once, and never more than the stock");
    assert_eq!(refused, bought.len() - STOCK as usize, "all other purchases are refused");
    assert_eq!(Resp::to(&server).say("GET stock").number(), 0);
}

#[test]
fn both_protocols_count_into_one_total() {
    let server = Server::start();
    let (resp, http) = (&server.redis, &server.base);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut resp = Resp::try_to(resp).unwrap();
                resp.send(&request(&["INCR", "k"]).repeat(500)).unwrap();
                (0..500).for_each(|_| assert!(resp.reply().unwrap().number() > 0));
            });
            scope.spawn(|| {
                let client = Client::new(http);
                for _ in 0..50 {
                    let answer = client.send("POST", "/api/v1/counters/k/increment", &[], r#"{"amount":10}"#);
                    assert_eq!(answer.status, 200, "{}", answer.text);
                }
            });
        }
    });
    assert_eq!((server.value("k"), Resp::to(&server).say("GET k").number()), (4000, 4000));
}

#[test]
fn changes_over_one_protocol_are_visible_over_the_other() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("SET a 5 EX 1000"), Reply::Simple("OK".into()));
    assert_eq!(server.value("a"), 5);
    let ledger = server.send("GET", "/api/v1/counters/a/ledger", "").json;
    assert_eq!(
        (&ledger["entries"][0]["after"], &ledger["entries"][0]["reason"]),
        (&json!(5), &json!("SET")),
        "{ledger}"
    );
    let put = server.send("PUT", "/api/v1/counters/a", r#"{"value":8,"reason":"counted again"}"#);
    assert_eq!(put.status, 200, "{}", put.text);
    assert_eq!(resp.say("GET a").number(), 8);
    assert_eq!(server.send("DELETE", "/api/v1/counters/a", "").status, 200);
    assert_eq!(resp.say("EXISTS a"), Reply::Integer(0));

    let written = resp.say("TALLY.ADD b 5 ID r1");
    assert_eq!(written.items()[..4], resp_pairs(&[("value", 5), ("applied", 5)]));
    let body = r#"{"amount":5,"request_id":"r1"}"#;
    let again = server.send("POST", "/api/v1/counters/b/increment", body);
    assert_eq!((&again.json["value"], &again.json["duplicate"]), (&json!(5), &json!(true)), "{}", again.text);
    assert!(resp.say("TALLY.ADD b 6 ID r1").error().starts_with("ERR this ID was used before"));
    resp.say("TALLY.ADD low -9223372036854775807");
    assert_eq!(resp.say("TALLY.ADD low -2 ID r2").error(), "ERR increment or decrement would overflow");
    assert!(resp.say("TALLY.ADD low -2 ID r2").error().contains("use a new ID"));
    assert_eq!(resp.say("TALLY.READ b EXACT").items()[..2], resp_pairs(&[("value", 5)]));
}

/// Pairs as a flat array.
fn resp_pairs(pairs: &[(&str, i64)]) -> Vec<Reply> {
    pairs.iter().flat_map(|(name, number)| [Reply::Bulk((*name).into()), Reply::Integer(*number)]).collect()
}

#[test]
fn pipelines_over_namespaces_of_every_consistency_are_answered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[namespaces.views]\nconsistency = \"best-effort\"\n";
    let config = write(dir.path().join("tally.toml"), text);
    let mut command = serve(&dir.path().join("data"));
    command.arg("--config").arg(config);
    let mut server = Server::start_with(command);
    let mut resp = Resp::to(&server);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        for line in
            ["INCR views:1", "INCR likes:1", "MGET views:1 likes:1", "PING", "GET views:1", "DEL views:2 likes:2"]
        {
            bytes.extend(request(&line.split(' ').collect::<Vec<_>>()));
        }
    }
    resp.send(&bytes).unwrap();
    for round in 1..=200 {
        let mut next = || resp.reply().unwrap();
        assert_eq!((next().number(), next().number()), (round, round));
        assert_eq!(next().items().iter().map(Reply::number).collect::<Vec<_>>(), [round, round]);
        assert_eq!((next(), next().number(), next()), (Reply::Simple("PONG".into()), round, Reply::Integer(0)));
    }
    // `best-effort` may lose writes only in a crash, not in a clean stop.
    assert!(server.terminate().success());
    let server = Server::start_in(&dir.path().join("data"));
    assert_eq!((server.value("views:1"), server.value("likes:1")), (200, 200));
}

#[test]
fn the_replies_of_a_deep_pipeline_stay_in_order_across_reads_keyspace_commands_and_turns() {
    const DEPTH: i64 = 30_000;
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let mut bytes = Vec::new();
    for number in 1..=DEPTH {
        bytes.extend(request(&["INCR", "a"]));
        if number % 1000 == 0 {
            bytes.extend(request(&["DBSIZE"]));
            bytes.extend(request(&["GET", "a"]));
        }
    }
    resp.send(&bytes).unwrap();
    for number in 1..=DEPTH {
        assert_eq!(resp.reply().unwrap(), Reply::Integer(number));
        if number % 1000 == 0 {
            assert_eq!((resp.reply().unwrap(), resp.reply().unwrap().number()), (Reply::Integer(1), number));
        }
    }
}
