//! A small client of the Redis protocol: fills a server with keys and asks what it has done.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use crate::Failure;

/// Requests that are sent before their replies are read.
const PIPELINE: u64 = 1_000;

/// A command as it goes over the wire.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

/// One connection.
#[derive(Debug)]
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects to a port of this machine.
    pub fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Sends one command and gives back its reply, without the type and the length.
    pub fn call(&mut self, words: &[&str]) -> Result<String, Failure> {
        self.send(&encode(words))?;
        self.reply()
    }

    /// Commands the server has processed, as it says itself.
    pub fn commands_processed(&mut self) -> Result<u64, Failure> {
        let info = self.call(&["INFO", "stats"])?;
        let count = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
        count.ok_or_else(|| Failure::new(&format!("INFO says no total_commands_processed:\n{info}")))
    }

    /// Increments the keys of these numbers once each.
    pub fn increment_all(&mut self, count: u64, key_of: impl Fn(u64) -> String) -> Result<(), Failure> {
        for first in (0..count).step_by(PIPELINE as usize) {
            let numbers = first..count.min(first + PIPELINE);
            let requests: Vec<u8> = numbers.clone().flat_map(|number| encode(&["INCR", &key_of(number)])).collect();
            self.send(&requests)?;
            for _ in numbers {
                self.reply()?;
            }
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.get_mut().write_all(bytes).map_err(|error| Failure::new(&error))
    }

    fn reply(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(|error| Failure::new(&error))?;
        let rest = line.get(1..).unwrap_or_default().trim_end();
        match line.bytes().next() {
            Some(b'+' | b':') => Ok(rest.to_owned()),
            Some(b'$') => {
                let length: usize = rest.parse().map_err(|_| Failure::new(&format!("no such key: {line:?}")))?;
                let mut bulk = vec![0; length + 2];
                self.0.read_exact(&mut bulk).map_err(|error| Failure::new(&error))?;
                bulk.truncate(length);
                String::from_utf8(bulk).map_err(|error| Failure::new(&error))
            }
            _ => Err(Failure::new(&format!("the server replied {line:?}"))),
        }
    }
}
