//! `CLIENT`: information about connections, closing them, and switching replies off.

use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp};
use crate::harness::{Server, wait_for};

#[test]
fn client_info_shows_the_line_of_this_connection() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let id = resp.say("client id").number();
    resp.say("client setname me");
    let Reply::Bulk(line) = resp.say("client info") else { panic!("no text") };
    let line = String::from_utf8(line).unwrap();
    assert!(
        line.starts_with(&format!("id={id} addr=")) && line.ends_with('\n') && line.contains(" name=me "),
        "{line}"
    );
    assert!(line.contains(" cmd=client|info "), "{line}");
}

#[test]
fn other_connections_can_be_closed() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let mut others: Vec<Resp> = (0..4).map(|_| Resp::to(&server)).collect();
    let ids: Vec<i64> = others.iter_mut().map(|other| other.say("client id").number()).collect();
    assert_eq!(resp.say(&format!("client kill id {}", ids[0])), Reply::Integer(1));
    assert!(others[0].is_closed());
    let Reply::Bulk(line) = others[1].say("client info") else { panic!("no text") };
    let line = String::from_utf8(line).unwrap();
    let address = line.split(' ').find_map(|field| field.strip_prefix("addr=")).unwrap();
    assert_eq!(resp.say(&format!("client kill {address}")), Reply::Simple("OK".into()));
    assert!(others[1].is_closed());
    assert_eq!(resp.say("client kill type pubsub"), Reply::Integer(0));
    wait_for("the closed connections to be gone", || match resp.say("client kill type normal") {
        Reply::Integer(2) => Ok(()),
        // Those that were closed before may still be listed.
        other => Err(other),
    });
    assert!(others[2].is_closed() && others[3].is_closed());
    assert_eq!(resp.say("ping"), Reply::Simple("PONG".into()), "the caller is spared");
}

#[test]
fn a_connection_that_closes_itself_gets_its_reply() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let id = resp.say("client id").number();
    assert_eq!(resp.say(&format!("client kill id {id} skipme no")), Reply::Integer(1));
    assert!(resp.is_closed());
}

/// Everything that arrives after these requests, up to the reply of a last `PING`.
fn replies_to(mut resp: Resp, lines: &[&str]) -> Vec<Reply> {
    resp.send(lines.iter().flat_map(|line| format!("{line}\r\n").into_bytes()).collect::<Vec<u8>>().as_slice())
        .unwrap();
    resp.send(b"CLIENT REPLY ON\r\nPING end\r\n").unwrap();
    let mut replies = Vec::new();
    while replies.last() != Some(&Reply::Bulk(b"end".to_vec())) {
        replies.push(resp.reply().unwrap());
    }
    replies
}

#[test]
fn replies_are_left_out_as_in_redis() {
    let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
    for case in [
        &["incr a", "client reply off", "incr a", "get a", "nope", "dbsize", "incr a"][..],
        &["client reply skip", "incr a", "incr a", "incr a", "get a"],
        &["client reply skip", "incr a", "client reply skip", "dbsize", "get a"],
        &["client reply off", "multi", "incr a", "get a", "exec", "client reply on", "get a"],
        &["client reply off", "client reply skip", "incr a", "incr a", "get a"],
        &["client reply off", "client reply nope", "client reply on", "client reply nope", "get a"],
        &["client reply off", "mget a b", "scan 0", "client reply on", "mget a b"],
        &["client reply off", "reset", "ping"],
    ] {
        let ours = replies_to(Resp::to(&server), case);
        assert_eq!(ours, replies_to(Resp::over(redis.connect()), case), "{case:?}");
    }
}
