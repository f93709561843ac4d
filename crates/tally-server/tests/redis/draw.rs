//! Generates random commands: mostly valid ones, some with arguments that are invalid in every possible way.

use tally_sim::rng::Rng;

/// A command's arguments, its name first.
pub type Words = Vec<Vec<u8>>;

/// A generator of commands.
pub struct Draw {
    /// The source of randomness.
    pub rng: Rng,
    /// Whether expiries may be in the past.
    pub lapsing: bool,
    /// Suffix of all keys, so that each connection can have its own keys.
    pub suffix: String,
}

/// Keys with this prefix get only absolute expiries, so that these can be compared exactly.
pub const EXACT_MOMENTS: &[u8] = b"abs:";
/// A time far in the future, in seconds.
const FAR_S: u64 = 4_102_444_800;
const NOT_INTEGERS: [&str; 12] =
    ["x", "", "1.5", "+1", "01", " 1", "1 ", "-0", "-", "1e3", "9223372036854775808", "-9223372036854775809"];
/// Commands that neither side has.
const UNKNOWN: [&str; 5] = ["nope", "incrr", "get\r\nx", "tally", "x\u{e9}"];

impl Draw {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.rng.one_in(times)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// One of a few keys.
    pub fn key(&mut self) -> Vec<u8> {
        let mut key = self.short_key();
        key.truncate(512 - self.suffix.len());
        key.extend_from_slice(self.suffix.as_bytes());
        key
    }

    fn short_key(&mut self) -> Vec<u8> {
        match self.below(40) {
            0 => b"\x00\xff\r\n \"k".to_vec(),
            1 => vec![b'x'; 512],
            2..=12 => [EXACT_MOMENTS, self.below(6).to_string().as_bytes()].concat(),
            13..=16 => b"hot".to_vec(),
            17..=19 => format!("likes:{}", self.below(4)).into_bytes(),
            _ => format!("k{}", self.below(12)).into_bytes(),
        }
    }

    fn keys(&mut self, most: u64) -> Words {
        (0..=self.below(most)).map(|_| self.key()).collect()
    }

    /// An integer, usually small.
    pub fn integer(&mut self) -> i64 {
        let small = self.below(21) as i64 - 10;
        match self.below(12) {
            0 => i64::MAX - small.abs(),
            1 => i64::MIN + small.abs(),
            2 => self.rng.next_u64() as i64,
            3 => small * 1_000_000_007,
            _ => small,
        }
    }

    fn integer_or_junk(&mut self) -> Vec<u8> {
        if self.one_in(15) { self.pick(&NOT_INTEGERS).into() } else { self.integer().to_string().into_bytes() }
    }

    /// A name in upper, lower or mixed case.
    fn cased(&mut self, name: &str) -> Vec<u8> {
        match self.below(4) {
            0 => name.to_uppercase().into_bytes(),
            1 => name.bytes().map(|b| if self.one_in(2) { b.to_ascii_uppercase() } else { b }).collect(),
            _ => name.into(),
        }
    }

    fn words(&mut self, name: &str, rest: Words) -> Words {
        let mut words = vec![self.cased(name)];
        words.extend(rest);
        words
    }

    /// A command, sometimes with a missing, extra or misplaced argument.
    pub fn command(&mut self) -> Words {
        let mut words = self.well_formed();
        if self.one_in(25) {
            match self.below(4) {
                0 => {
                    words.pop();
                }
                1 => {
                    let again = self.pick(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()).to_vec();
                    words.push(again);
                }
                2 => words.push(self.pick(&["x", "", "NX", "GET", "1"]).into()),
                _ if words.len() > 4 => words.swap(3, 4),
                _ => {}
            }
        }
        if words.is_empty() { vec![b"PING".to_vec()] } else { words }
    }

    fn well_formed(&mut self) -> Words {
        let key = self.key();
        match self.below(100) {
            0..=19 => {
                let name = self.pick(&["incr", "decr", "incr"]);
                self.words(name, vec![key])
            }
            20..=34 => {
                let (name, by) = (self.pick(&["incrby", "decrby"]), self.integer_or_junk());
                self.words(name, vec![key, by])
            }
            35..=43 => {
                let name = self.pick(&["get", "get", "type", "getdel"]);
                self.words(name, vec![key])
            }
            44..=50 => {
                let name = self.pick(&["mget", "exists", "del", "unlink"]);
                let keys = self.keys(6);
                self.words(name, keys)
            }
            51..=53 => {
                let value = self.integer_or_junk();
                self.words("getset", vec![key, value])
            }
            54..=66 => self.set(key),
            67..=77 => self.expire(&key),
            78..=87 => {
                let name = self.pick(&["ttl", "pttl", "expiretime", "pexpiretime", "persist"]);
                self.words(name, vec![key])
            }
            88..=92 => self.transaction(),
            93..=94 => self.keyspace(),
            _ => self.about(),
        }
    }

    fn transaction(&mut self) -> Words {
        let name = self.pick(&["multi", "multi", "multi", "exec", "exec", "discard"]);
        self.words(name, Vec::new())
    }

    /// The count for an option or command that sets an expiry; `unit` is its unit in milliseconds.
    fn expiry(&mut self, key: &[u8], unit: u64, is_relative: bool) -> Vec<u8> {
        let count = match self.below(20) {
            0 => return self.pick(&NOT_INTEGERS).into(),
            1 => self.pick(&[i64::MAX, i64::MAX / 1000 + 1, i64::MIN, i64::MIN / 1000 - 1]),
            2 | 3 if self.lapsing => self.pick(&[0, -1, 1 - i64::from(is_relative), -1_000_000_000]),
            _ if key.starts_with(EXACT_MOMENTS) => {
                let odd = self.pick(&[0, 1, 499, 500, 501, 999]);
                ((FAR_S * 1000 + self.below(4) * 1000 + odd) / unit) as i64
            }
            // Far apart, so that both sides have them in the same order.
            _ => {
                let ahead = (10_000 + self.below(1_000_000_000)) * 1000 / unit;
                (ahead + if is_relative { 0 } else { FAR_S * 1000 / unit }) as i64
            }
        };
        // Redis cannot round the largest timestamp.
        let count = if unit == 1 && count == i64::MAX && !is_relative { i64::MAX - 10_000 } else { count };
        let is_past = count <= 0 || (!is_relative && count < FAR_S as i64);
        if is_past && !self.lapsing && (unit == 1 || count > i64::MIN / 1000) {
            b"100000000000000".to_vec()
        } else {
            count.to_string().into_bytes()
        }
    }

    /// An option that sets an expiry, and its count.
    pub fn expiry_option(&mut self, key: &[u8]) -> [Vec<u8>; 2] {
        let options = [("EX", 1000, true), ("PX", 1, true), ("EXAT", 1000, false), ("PXAT", 1, false)];
        let from = if key.starts_with(EXACT_MOMENTS) { 2 } else { 0 };
        let (name, unit, is_relative) = self.pick(&options[from..]);
        [self.cased(name), self.expiry(key, unit, is_relative)]
    }

    fn set(&mut self, key: Vec<u8>) -> Words {
        let value = self.integer_or_junk();
        let mut options: Vec<Words> = Vec::new();
        for name in ["NX", "XX", "GET", "KEEPTTL"] {
            if self.one_in(5) {
                options.push(vec![self.cased(name)]);
            }
        }
        for _ in 0..2 {
            if self.one_in(4) {
                options.push(self.expiry_option(&key).to_vec());
            }
        }
        self.shuffle(&mut options);
        let rest = [vec![key, value], options.concat()].concat();
        self.words("set", rest)
    }

    fn expire(&mut self, key: &[u8]) -> Words {
        let commands =
            [("expire", 1000, true), ("pexpire", 1, true), ("expireat", 1000, false), ("pexpireat", 1, false)];
        let from = if key.starts_with(EXACT_MOMENTS) { 2 } else { 0 };
        let (name, unit, is_relative) = self.pick(&commands[from..]);
        let mut rest = vec![key.to_vec(), self.expiry(key, unit, is_relative)];
        for _ in 0..self.below(3) {
            let option = self.pick(&["NX", "XX", "GT", "LT"]);
            rest.push(self.cased(option));
        }
        self.words(name, rest)
    }

    fn keyspace(&mut self) -> Words {
        match self.below(30) {
            0 => {
                let (name, how) = (self.pick(&["flushall", "flushdb"]), self.pick(&["", "SYNC", "async", "x"]));
                let rest = if how.is_empty() { Vec::new() } else { vec![how.into()] };
                self.words(name, rest)
            }
            1 => vec![b"flushall".to_vec(), b"sync".to_vec(), b"async".to_vec()],
            2..=6 => {
                let line = self.pick(&[
                    "scan x",
                    "scan -",
                    "scan 0 count",
                    "scan 0 count x",
                    "scan 0 count 0",
                    "scan 0 count -5",
                    "scan 0 nope 1",
                    "scan 0 match",
                    "scan 1x",
                ]);
                line.split(' ').map(Into::into).collect()
            }
            _ => self.words("dbsize", Vec::new()),
        }
    }

    fn about(&mut self) -> Words {
        let lines = [
            "ping",
            "ping hello",
            "ping a b",
            "echo x",
            "echo",
            "select 0",
            "swapdb 0 0",
            "swapdb 0 1",
            "swapdb x 0",
            "swapdb 0 x",
            "move a 0",
            "move a 1",
            "move a x",
            "readonly",
            "readwrite",
            "asking",
            "cluster",
            "cluster info",
            "client getname",
            "client setname bob",
            "client setname",
            "client nope",
            "client",
            "client no-evict on",
            "client no-evict x",
            "client list type nope",
            "client list id x",
            "client list x",
            "auth x",
            "auth default x",
            "auth nobody x",
            "auth a b c",
            "hello",
            "hello 2",
            "hello 3",
            "hello 4",
            "hello x",
            "hello 3 setname al",
            "hello 2 auth default x",
            "hello 3 auth nobody x",
            "hello 3 setname",
            "hello 3 nope",
            "hello 2 setname a\tb",
            "reset",
            "command getkeys get a",
            "command getkeys mget a b c",
            "command nope",
            "command getkeys ping x",
            "command getkeys set a",
            "command getkeys nope a",
            "config nope",
            "config get",
            "config set",
            "function nope",
            "function flush",
            "function flush x",
            "config resetstat",
        ];
        if self.one_in(4) {
            let name = self.pick(&UNKNOWN);
            return vec![name.into(), self.key(), b"b".to_vec()];
        }
        let line = self.pick(&lines);
        let mut words: Words = line.split(' ').map(Into::into).collect();
        words[0] = self.cased(line.split(' ').next().unwrap_or_default());
        words
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}
