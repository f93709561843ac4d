//! A small RESP client: creates keys and reads the command counter.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use crate::BenchError;

/// Requests sent before their replies are read.
const PIPELINE: u64 = 1_000;

/// Encodes a command.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

/// One connection.
#[derive(Debug)]
pub struct RespClient(BufReader<TcpStream>);

impl RespClient {
    /// Connects to a port of this machine.
    pub fn connect(port: u16) -> std::io::Result<RespClient> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(RespClient(BufReader::new(stream)))
    }

    /// Sends one command and returns its reply, without type and length.
    pub fn call(&mut self, words: &[&str]) -> Result<String, BenchError> {
        self.send(&encode(words))?;
        self.reply()
    }

    /// Commands the server has processed, from `INFO`.
    pub fn commands_processed(&mut self) -> Result<u64, BenchError> {
        let info = self.call(&["INFO", "stats"])?;
        let count = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
        count.ok_or_else(|| BenchError::new(&format!("INFO has no total_commands_processed:\n{info}")))
    }

    /// Increments `count` keys once each.
    pub fn increment_all(&mut self, count: u64, key_of: impl Fn(u64) -> String) -> Result<(), BenchError> {
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

    fn send(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.0.get_mut().write_all(bytes).map_err(|error| BenchError::new(&error))
    }

    fn reply(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(|error| BenchError::new(&error))?;
        let rest = line.get(1..).unwrap_or_default().trim_end();
        match line.bytes().next() {
            Some(b'+' | b':') => Ok(rest.to_owned()),
            Some(b'$') => {
                let length: usize = rest.parse().map_err(|_| BenchError::new(&format!("no such key: {line:?}")))?;
                let mut bulk = vec![0; length + 2];
                self.0.read_exact(&mut bulk).map_err(|error| BenchError::new(&error))?;
                bulk.truncate(length);
                String::from_utf8(bulk).map_err(|error| BenchError::new(&error))
            }
            _ => Err(BenchError::new(&format!("the server replied {line:?}"))),
        }
    }
}
