//! Topology discovery against fake nodes.

#![allow(clippy::unwrap_used)]

use std::future::ready;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use super::*;
use crate::redis::scripts::KeyVerb;

/// A fake node that answers each command with `answer`. It stands for a node that is cut off from the others, which
/// is hard to do with a real one.
async fn node(listener: TcpListener, answer: impl Fn(&[String]) -> String + Clone + Send + 'static) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let answer = answer.clone();
        tokio::spawn(async move {
            let (read, mut write) = socket.split();
            let mut read = BufReader::new(read);
            let mut line = String::new();
            while read.read_line(&mut line).await.is_ok_and(|len| len > 0) {
                let count: usize = line.trim()[1..].parse().unwrap();
                let mut command = Vec::new();
                for _ in 0..count {
                    line.clear();
                    read.read_line(&mut line).await.unwrap();
                    let mut bytes = vec![0; line.trim()[1..].parse::<usize>().unwrap() + 2];
                    read.read_exact(&mut bytes).await.unwrap();
                    command.push(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned());
                }
                line.clear();
                // Not `unwrap`: a caller that was answered by another node has closed its connection.
                if write.write_all(answer(&command).as_bytes()).await.is_err() {
                    break;
                }
            }
        });
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Every slot belongs to this node.
fn owner_of_all(what: &str, port: u16) -> String {
    match what {
        "SLOTS" => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{}:{port}\r\n{}", bulk("127.0.0.1"), bulk("id")),
        _ => bulk(&format!("id 127.0.0.1:{port}@1{port} myself,master - 0 0 1 connected 0-16383\n")),
    }
}

/// Two listeners; the first has the address that is asked first.
async fn listeners() -> ([TcpListener; 2], [u16; 2]) {
    let mut listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    listeners.sort_by_key(|listener| listener.local_addr().unwrap().to_string());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    (listeners, ports)
}

/// A port that refuses connections. It stays bound, so that nobody else gets it.
fn closed_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn router(ports: &[u16]) -> ClusterRouter {
    let seeds = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    ClusterRouter::new(seeds, NodeSecurity { login: redis::RedisConnectionInfo::default(), tls: None })
}

async fn get(router: &ClusterRouter) -> RedisResult<Vec<Value>> {
    let commands = [KeyCommand { key: b"k".to_vec(), verb: KeyVerb::Get }];
    let hashes = ScriptHashes::load(async |_| Ok::<_, String>(String::new())).await.unwrap();
    router.run(&commands, &hashes).await.map(|(answers, _)| answers)
}

/// What a `GET` returns from two nodes. The first, which is asked first, gives these answers to `CLUSTER` and `GET`;
/// the second owns every slot, and is silent until `second_wakes`.
async fn get_from_two(
    cluster_info: impl Fn(&str, u16) -> String + Clone + Send + 'static,
    value: &'static str,
    second_wakes: impl Future<Output = ()> + Send + 'static,
) -> RedisResult<Vec<Value>> {
    let ([first, second], ports) = listeners().await;
    tokio::spawn(node(first, move |command| match command[0].to_uppercase().as_str() {
        "CLUSTER" => cluster_info(&command[1].to_uppercase(), ports[0]),
        "GET" | "MGET" => value.to_owned(),
        _ => "+OK\r\n".to_owned(),
    }));
    let second = node(second, move |command| match command[0].to_uppercase().as_str() {
        "CLUSTER" => owner_of_all(&command[1].to_uppercase(), ports[1]),
        "GET" | "MGET" => "$1\r\n7\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    });
    tokio::spawn(async {
        second_wakes.await;
        second.await;
    });
    get(&router(&ports)).await
}

#[tokio::test]
async fn a_partitioned_node_is_not_asked_for_the_topology_again() {
    let answers = get_from_two(owner_of_all, "-CLUSTERDOWN The cluster is down\r\n", ready(())).await.unwrap();
    assert_eq!(answers, [Value::BulkString(b"7".to_vec())]);
}

#[tokio::test]
async fn the_empty_topology_of_a_removed_node_is_ignored() {
    let nothing = |what: &str, port| match what {
        "SLOTS" => "*0\r\n".to_owned(),
        _ => bulk(&format!("id 127.0.0.1:{port}@1{port} myself,master - 0 0 0 connected\n")),
    };
    assert_eq!(get_from_two(nothing, "$-1\r\n", ready(())).await.unwrap(), [Value::BulkString(b"7".to_vec())]);
}

#[tokio::test]
async fn another_node_is_asked_after_one_names_an_owner_that_is_gone() {
    let (_bound, port) = closed_port();
    let answers = get_from_two(move |what, _| owner_of_all(what, port), "$-1\r\n", ready(())).await.unwrap();
    assert_eq!(answers, [Value::BulkString(b"7".to_vec())]);
}

#[tokio::test]
async fn a_node_that_was_slow_once_is_asked_again_while_another_keeps_naming_an_owner_that_is_gone() {
    let (_bound, port) = closed_port();
    let (asked, mut times_asked) = watch::channel(0);
    let wrong = move |what: &str, _| {
        asked.send_modify(|times| *times += usize::from(what == "SLOTS"));
        owner_of_all(what, port)
    };
    // It is asked a second time only because the second node is silent.
    let asked_twice = async move { drop(times_asked.wait_for(|times| *times >= 2).await.unwrap()) };
    let answers = get_from_two(wrong, "$-1\r\n", asked_twice).await.unwrap();
    assert_eq!(answers, [Value::BulkString(b"7".to_vec())]);
}

#[tokio::test]
async fn calls_share_the_failure_while_all_nodes_are_silent() {
    let (listeners, ports) = listeners().await;
    let router = router(&ports);
    let calls = futures_util::future::join_all((0..30).map(|_| get(&router)));
    let accepted = std::cell::Cell::new(0);
    let accept = async |listener: &TcpListener| {
        let mut silent = Vec::new();
        while let Ok(connection) = listener.accept().await {
            silent.push(connection);
            accepted.set(accepted.get() + 1);
        }
    };
    tokio::select! {
        results = calls => assert!(results.iter().all(Result::is_err), "{results:?}"),
        () = accept(&listeners[0]) => {}
        () = accept(&listeners[1]) => {}
    }
    assert!((1..=6).contains(&accepted.get()), "{} connections for 30 calls", accepted.get());
}
