//! A TCP proxy in front of one service. It holds back chosen messages, so that a test knows which two steps its client
//! is between.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::harness::PATIENCE;

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

/// What is forwarded in one piece: a frame of Kafka's protocol, or what was read at once.
pub struct Message<'a> {
    pub from: Sender,
    /// Kafka's API key of the request; a response has that of its request.
    pub api_key: Option<i16>,
    pub bytes: &'a [u8],
}

impl Message<'_> {
    pub fn contains(&self, text: &str) -> bool {
        self.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

type Rule = Box<dyn Fn(&Message<'_>) -> bool + Send>;

/// How messages are delimited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Kafka,
    /// A message that matters is small and sent at once. If it were split, the test would wait for it in vain.
    Text,
}

/// A proxy with a port for each node of a service. Dropping it closes all connections; what was held is lost.
pub struct Proxy {
    shared: Arc<ProxyShared>,
}

struct ProxyShared {
    protocol: Protocol,
    /// Ports of the nodes, and those of the proxy in front of them.
    ports: Vec<(u16, u16)>,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProxyState {
    rule: Option<Rule>,
    held: usize,
    is_closed: bool,
    streams: Vec<TcpStream>,
}

impl Proxy {
    /// In front of brokers. Their addresses in responses are replaced by those of the proxy.
    pub fn of_kafka(addresses: &str) -> Proxy {
        Proxy::start(Protocol::Kafka, addresses.split(',').map(port_of))
    }

    /// In front of all nodes of a Redis Cluster; replaces addresses, too.
    pub fn of_redis(addresses: &[String]) -> Proxy {
        Proxy::start(Protocol::Text, addresses.iter().map(|address| port_of(address)))
    }

    /// In front of PostgreSQL.
    pub fn of_postgres(port: u16) -> Proxy {
        Proxy::start(Protocol::Text, [port].into_iter())
    }

    fn start(protocol: Protocol, nodes: impl Iterator<Item = u16>) -> Proxy {
        let listeners: Vec<(u16, TcpListener)> =
            nodes.map(|node| (node, TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        let ports = listeners.iter().map(|(node, listener)| (*node, listener.local_addr().unwrap().port()));
        let shared = Arc::new(ProxyShared {
            protocol,
            ports: ports.collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        for (node, listener) in listeners {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.accept(node, &listener));
        }
        Proxy { shared }
    }

    /// Where clients connect, in the order of the nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.shared.ports.iter().map(|(_, port)| format!("127.0.0.1:{port}")).collect()
    }

    /// Holds messages that match, and everything after them in the same direction of their connection. Returns once one is
    /// held.
    pub fn hold(&self, rule: impl Fn(&Message<'_>) -> bool + Send + 'static) {
        let mut state = self.shared.state.lock().unwrap();
        state.rule = Some(Box::new(rule));
        let held = self.shared.changed.wait_timeout_while(state, PATIENCE, |state| state.held == 0).unwrap();
        assert!(!held.1.timed_out(), "no message to hold was sent");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        state.is_closed = true;
        for stream in state.streams.drain(..) {
            // Fails if it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        for address in self.addresses() {
            // Wakes the accepting thread.
            let _ = TcpStream::connect(address);
        }
    }
}

impl ProxyShared {
    fn accept(self: Arc<Self>, node: u16, listener: &TcpListener) {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", node))) else { continue };
            let mut state = self.state.lock().unwrap();
            if state.is_closed {
                return;
            }
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
                state.streams.push(stream.try_clone().unwrap());
            }
            drop(state);
            let requests = Arc::new(Mutex::new(VecDeque::new()));
            for (from, input, output) in
                [(Sender::Client, client.try_clone(), server.try_clone()), (Sender::Server, Ok(server), Ok(client))]
            {
                let (input, output) = (input.unwrap(), output.unwrap());
                let (shared, requests) = (Arc::clone(&self), Arc::clone(&requests));
                thread::spawn(move || shared.forward(from, &input, &output, &requests));
            }
        }
    }

    /// Forwards one direction of a connection until it is closed.
    fn forward(&self, from: Sender, mut input: &TcpStream, mut output: &TcpStream, requests: &Mutex<VecDeque<i16>>) {
        while let Some(mut bytes) = self.read(&mut input) {
            let api_key = (self.protocol == Protocol::Kafka).then(|| match from {
                Sender::Client => {
                    let api_key = i16::from_be_bytes([bytes[4], bytes[5]]);
                    requests.lock().unwrap().push_back(api_key);
                    api_key
                }
                // Responses are in the order of the requests.
                Sender::Server => requests.lock().unwrap().pop_front().unwrap(),
            });
            if from == Sender::Server {
                self.replace_ports(&mut bytes);
            }
            if !self.pass(&Message { from, api_key, bytes: &bytes }) || output.write_all(&bytes).is_err() {
                break;
            }
        }
        for stream in [input, output] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn read(&self, input: &mut impl Read) -> Option<Vec<u8>> {
        match self.protocol {
            Protocol::Text => {
                let mut bytes = vec![0; 1 << 16];
                let read = input.read(&mut bytes).ok().filter(|read| *read > 0)?;
                bytes.truncate(read);
                Some(bytes)
            }
            Protocol::Kafka => {
                let mut bytes = vec![0; 4];
                input.read_exact(&mut bytes).ok()?;
                let len = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
                bytes.resize(4 + len, 0);
                input.read_exact(&mut bytes[4..]).ok()?;
                Some(bytes)
            }
        }
    }

    /// Waits while the message is held. Returns whether it may be forwarded.
    fn pass(&self, message: &Message<'_>) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.rule.as_ref().is_some_and(|rule| rule(message)) {
            state.held += 1;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| !state.is_closed).unwrap();
        }
        !state.is_closed
    }

    /// Replaces the ports of nodes in what a server sends with those of the proxy. All have five digits.
    fn replace_ports(&self, bytes: &mut [u8]) {
        for (node, port) in &self.ports {
            let (old, new) = match self.protocol {
                Protocol::Kafka => (kafka_address(*node), kafka_address(*port)),
                Protocol::Text => (format!(":{node}\r\n").into_bytes(), format!(":{port}\r\n").into_bytes()),
            };
            assert_eq!(old.len(), new.len(), "ports {node} and {port}");
            let mut at = 0;
            while let Some(found) = bytes[at..].windows(old.len()).position(|window| window == old) {
                bytes[at + found..][..new.len()].copy_from_slice(&new);
                at += found + new.len();
            }
        }
    }
}

fn kafka_address(port: u16) -> Vec<u8> {
    [b"127.0.0.1".as_slice(), &u32::from(port).to_be_bytes()].concat()
}

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}
