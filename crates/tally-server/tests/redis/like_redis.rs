//! The same random commands go to a real Redis and to Tally: the replies must be the same.
//!
//! Redis gets one command at a time. Tally gets them in pipelines of any length, on the same number of connections.
//! Commands that Tally does not support are listed in `docs/redis.md`; they go only to Tally and must be refused.
//!
//! `TALLY_REDIS_COMMANDS` sets how many commands are sent, `TALLY_SEED` reruns one run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tally_sim::rng::Rng;

use crate::draw::{Draw, EXACT_MOMENTS, Words};
use crate::harness::redis::Redis;
use crate::harness::wire::{Reply, Resp, request};
use crate::harness::{Server, wait_until_equal};
use crate::increx::IncrEx;
use crate::{number_from_env, seed};

const COMMANDS_DEFAULT: u64 = 100_000;
/// Commands of one run. Each run starts with empty servers.
const RUN_COMMANDS: u64 = 10_000;
const CONNECTIONS: usize = 4;
/// How much the two sides may differ by rounding to seconds.
const ROUNDING_MAX: Duration = Duration::from_secs(1);

/// How the two replies to a command must agree.
#[derive(Clone, Debug)]
enum Check {
    /// Exactly.
    Same,
    /// As timestamps or remaining times in this unit, if both are positive: they may differ by the time that Tally was
    /// late. Other numbers exactly.
    Near(Duration),
    /// Exactly, except for the ID of the connection.
    Greeting,
    /// As pages of a `SCAN`, whatever they contain: `walk` compares the keys. Errors exactly.
    Page,
    /// As arrays, with a check for each item.
    Each(Vec<Check>),
    /// Only Tally got it, and must refuse it with an error that starts like this.
    Refused(&'static str),
}

impl Check {
    /// Whether the replies agree, if Tally executes commands up to `late` after Redis.
    fn passes(&self, ours: &Reply, theirs: &Reply, late: Duration) -> bool {
        match (self, ours, theirs) {
            (Check::Refused(text), Reply::Error(error), _) => error.starts_with(text),
            (Check::Near(unit), Reply::Integer(a), Reply::Integer(b)) if *a > 0 && *b > 0 => {
                u128::from(a.abs_diff(*b)) <= (late + ROUNDING_MAX).as_nanos().div_ceil(unit.as_nanos())
            }
            (Check::Page, Reply::Many(..), Reply::Many(..)) => {
                [ours, theirs].iter().all(|page| page.items().len() == 2)
            }
            (Check::Each(checks), Reply::Many(b'*', ours), Reply::Many(b'*', theirs)) => {
                let lengths = [ours.len(), theirs.len()];
                lengths == [checks.len(); 2]
                    && checks
                        .iter()
                        .zip(ours.iter().zip(theirs))
                        .all(|(check, (ours, theirs))| check.passes(ours, theirs, late))
            }
            (Check::Greeting, Reply::Many(a, ours), Reply::Many(b, theirs)) => {
                let but_id = |items: &[Reply]| [&items[..7], &items[8..]].concat();
                a == b && but_id(ours) == but_id(theirs)
            }
            _ => ours == theirs,
        }
    }

    /// A description of the differences.
    fn differences(&self, ours: &Reply, theirs: &Reply, late: Duration) -> String {
        match (self, ours, theirs) {
            (Check::Each(checks), Reply::Many(_, ours), Reply::Many(_, theirs)) if ours.len() == theirs.len() => {
                let all = checks.iter().zip(ours.iter().zip(theirs)).enumerate();
                let wrong = all.filter(|(_, (check, (ours, theirs)))| !check.passes(ours, theirs, late));
                wrong.map(|(at, (check, (a, b)))| format!("{at}: {}\n", check.differences(a, b, late))).collect()
            }
            _ => format!("Tally said {ours:?}, Redis {theirs:?} ({self:?}, {late:?} late)"),
        }
    }
}

/// How the replies to a command are compared.
fn check(words: &Words) -> Check {
    let name = words[0].to_ascii_lowercase();
    let is_exact = words.get(1).is_some_and(|key| key.starts_with(EXACT_MOMENTS));
    match name.as_slice() {
        b"expiretime" | b"pexpiretime" if is_exact => Check::Same,
        b"ttl" | b"expiretime" => Check::Near(Duration::from_secs(1)),
        b"pttl" | b"pexpiretime" => Check::Near(Duration::from_millis(1)),
        b"hello" => Check::Greeting,
        b"scan" => Check::Page,
        _ => Check::Same,
    }
}

/// Whether Tally refuses what Redis may accept: keys of invalid length, and values that are not integers.
fn is_refused(words: &Words) -> bool {
    let name = words[0].to_ascii_lowercase();
    let keys = match name.as_slice() {
        b"mget" | b"exists" | b"del" | b"unlink" => 1..words.len(),
        b"ping" | b"echo" | b"select" | b"client" | b"auth" | b"hello" | b"reset" | b"command" | b"config"
        | b"function" | b"multi" | b"exec" | b"discard" | b"scan" | b"flushall" | b"flushdb" | b"dbsize" => 0..0,
        _ => 1..words.len().min(2),
    };
    let is_integer = |text: &[u8]| {
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
        number.is_some_and(|number| number.to_string().as_bytes() == text)
    };
    let sets = matches!(name.as_slice(), b"set" | b"getset") && words.len() > 2 && !is_integer(&words[2]);
    sets || words[keys].iter().any(|key| key.is_empty() || key.len() > 512)
}

/// A connection to each side.
struct Pair {
    redis: Resp,
    tally: Resp,
    /// The checks of the commands queued since `MULTI`.
    queue: Option<Vec<Check>>,
}

/// A command sent to Tally and its expected reply.
struct Expected {
    words: Words,
    reply: Reply,
    check: Check,
}

struct Run {
    draw: Draw,
    pairs: Vec<Pair>,
    /// Connections that never have an open transaction.
    aside: Pair,
    redis: Redis,
    server: Server,
    seed: u64,
    sent: u64,
    /// The longest time that a pipeline took. Tally was never later than that.
    late_max: Duration,
    history: Vec<String>,
}

impl Run {
    fn new(seed: u64, lapsing: bool) -> Run {
        let (redis, server) = (Redis::start_with(&["--databases", "1"]), Server::start());
        let pair = || Pair { redis: Resp::over(redis.connect()), tally: Resp::to(&server), queue: None };
        let (pairs, aside) = ((0..CONNECTIONS).map(|_| pair()).collect(), pair());
        let draw = Draw { rng: Rng::new(seed), lapsing, suffix: String::new() };
        Run { draw, pairs, aside, redis, server, seed, sent: 0, late_max: Duration::ZERO, history: Vec::new() }
    }

    fn go(&mut self, commands: u64) {
        while self.sent < commands {
            match self.draw.below(40) {
                0 => self.walk(),
                1 => self.random_key(),
                2 if self.draw.lapsing => self.lapse(),
                3..=5 => self.pipelines_at_once(),
                _ => self.pipeline(),
            }
        }
        self.compare_everything();
    }

    /// Generates a pipeline of random length for one of the connections: its bytes and the expected replies.
    fn draw_pipeline(&mut self, at: usize) -> (Vec<u8>, Vec<Expected>) {
        let longest = self.draw.pick(&[3, 30, 200, 200]);
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..=self.draw.below(longest) {
            let next = self.next(at);
            let written = self.written(&next.words);
            let again = if self.may_repeat(at, &next) && self.draw.one_in(3) { self.draw.below(24) } else { 0 };
            let words = next.words.clone();
            expected.push(next);
            for _ in 0..again {
                let reply = self.pairs[at].redis.call(&words);
                expected.push(Expected { words: words.clone(), reply, check: Check::Same });
            }
            bytes.extend(std::iter::repeat_n(written, 1 + again as usize).flatten());
        }
        (bytes, expected)
    }

    /// Whether the command can be repeated. Tally executes equal adds in a row together.
    fn may_repeat(&self, at: usize, next: &Expected) -> bool {
        let name = next.words[0].to_ascii_lowercase();
        let adds = matches!(name.as_slice(), b"incr" | b"decr" | b"incrby" | b"decrby");
        adds && !is_refused(&next.words) && self.pairs[at].queue.is_none()
    }

    /// Sends pipelines on all connections at the same time, each with its own keys.
    fn pipelines_at_once(&mut self) {
        let begun = Instant::now();
        let mut all = Vec::new();
        for at in 0..CONNECTIONS {
            let Pair { redis, tally, queue } = &mut self.pairs[at];
            if queue.take().is_some() {
                assert_eq!(tally.say("DISCARD"), redis.say("DISCARD"), "TALLY_SEED={}", self.seed);
            }
            self.draw.suffix = format!("@{at}");
            all.push(self.draw_pipeline(at));
        }
        self.draw.suffix.clear();
        for (at, (bytes, _)) in all.iter().enumerate() {
            self.pairs[at].tally.send(bytes).unwrap();
        }
        for (at, (_, expected)) in all.into_iter().enumerate() {
            self.expect(at, expected, begun);
        }
    }

    /// Sends a pipeline on one of the connections, sometimes with a `QUIT` at the end.
    fn pipeline(&mut self) {
        let begun = Instant::now();
        let at = self.draw.below(CONNECTIONS as u64) as usize;
        let (mut bytes, mut expected) = self.draw_pipeline(at);
        let quits = self.draw.one_in(50);
        if quits {
            bytes.extend_from_slice(b"QUIT\r\nINCR hot\r\n");
            let (words, reply) = (vec![b"QUIT".to_vec()], self.pairs[at].redis.say("QUIT"));
            expected.push(Expected { words, reply, check: Check::Same });
        }
        self.pairs[at].tally.send(&bytes).unwrap();
        self.expect(at, expected, begun);
        if quits {
            let Pair { redis, tally, .. } = &mut self.pairs[at];
            assert!(redis.is_closed() && tally.is_closed(), "QUIT closes; seed {}", self.seed);
            let (redis, tally) = (Resp::over(self.redis.connect()), Resp::to(&self.server));
            self.pairs[at] = Pair { redis, tally, queue: None };
        }
    }

    /// Generates a command and executes it on Redis.
    fn next(&mut self, at: usize) -> Expected {
        let pair = &mut self.pairs[at];
        let queues = pair.queue.is_some();
        if !queues && self.draw.one_in(10) {
            let drawn = IncrEx::draw(&mut self.draw);
            let reply = drawn.act_on(&mut pair.redis);
            return Expected { words: drawn.words(&mut self.draw), reply, check: Check::Same };
        }
        let words = loop {
            let words = self.draw.command();
            let name = words[0].to_ascii_lowercase();
            let is_about_all = matches!(name.as_slice(), b"scan" | b"dbsize" | b"flushall" | b"flushdb");
            let stays_out = is_about_all || name == b"hello";
            // Expired keys may be counted until they are swept, which the two sides do at different times.
            let counts = name == b"dbsize" && self.draw.lapsing;
            // The replies to these depend on the server.
            let is_about_server = (name == b"command" && words.len() == 1)
                || (name == b"client" && words.len() == 2 && words[1] == b"list");
            let is_alone = !is_about_all || self.draw.suffix.is_empty();
            if is_alone && !is_about_server && !counts && !(queues && (stays_out || is_refused(&words))) {
                break words;
            }
        };
        if is_refused(&words) {
            let reply = Reply::Simple("not sent".into());
            return Expected { words, reply, check: Check::Refused("ERR ") };
        }
        let reply = pair.redis.call(&words);
        let mut check = check(&words);
        let is = |name: &[u8]| words[0].eq_ignore_ascii_case(name) && words.len() == 1;
        if is(b"multi") && !queues {
            pair.queue = Some(Vec::new());
        } else if is(b"exec") && queues {
            check = Check::Each(pair.queue.take().unwrap_or_default());
        } else if is(b"discard") || is(b"reset") || words[0].eq_ignore_ascii_case(b"exec") {
            pair.queue = None;
        } else if let Some(queue) = &mut pair.queue
            && reply == Reply::Simple("QUEUED".into())
        {
            queue.push(std::mem::replace(&mut check, Check::Same));
        }
        Expected { words, reply, check }
    }

    /// Encodes a command as an array, or sometimes inline if its arguments allow it.
    fn written(&mut self, words: &Words) -> Vec<u8> {
        let is_plain =
            |word: &Vec<u8>| !word.is_empty() && word.iter().all(|b| b.is_ascii_alphanumeric() || b":-.".contains(b));
        if words.iter().all(is_plain) && self.draw.one_in(4) {
            let end: &[u8] = self.draw.pick(&[b"\r\n", b"\n", b"  \r\n"]);
            return [words.join(&b' '), end.to_vec()].concat();
        }
        request(words)
    }

    /// Reads the replies to a pipeline. Redis got its first command after `begun`.
    fn expect(&mut self, at: usize, expected: Vec<Expected>, begun: Instant) {
        for Expected { words, reply, check } in expected {
            let ours = self.pairs[at].tally.reply();
            let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(&word[..word.len().min(40)])).collect();
            let shown = format!("{at}: {shown:?} -> {reply:?}");
            self.late_max = self.late_max.max(begun.elapsed());
            let Ok(ours) = ours else { panic!("no reply to {shown}: {ours:?}; TALLY_SEED={}", self.seed) };
            if !check.passes(&ours, &reply, self.late_max) {
                let (ours, shown) = (check.differences(&ours, &reply, self.late_max), &shown[..shown.len().min(300)]);
                panic!("{}\n{shown}\n{ours}", self.story(shown));
            }
            self.history.push(shown);
            self.sent += 1;
        }
    }

    /// What preceded a failure: the seed, the last commands, and the last ones with the same key.
    fn story(&self, shown: &str) -> String {
        let key = shown.split('"').nth(3).unwrap_or("-");
        let of_key: Vec<_> = self.history.iter().filter(|line| line.contains(key)).cloned().collect();
        let last = |lines: &[String], count: usize| lines[lines.len().saturating_sub(count)..].join("\n");
        let (last_commands, of_key) = (last(&self.history, 20), last(&of_key, 12));
        format!("TALLY_SEED={}\nlast commands:\n{last_commands}\nlast commands of this key:\n{of_key}", self.seed)
    }

    /// Compares a full `SCAN` of both sides.
    fn walk(&mut self) {
        let pattern = self.draw.pick(&["", "", "*", "k*", "k?", "abs:[0-2]", "*[5]", "nope*", "likes:*"]);
        let count = self.draw.pick(&["", "1", "7", "1000"]);
        let kind = self.draw.pick(&["", "", "string", "STRING", "hash"]);
        let options = [("MATCH", pattern), ("COUNT", count), ("type", kind)]
            .map(|(name, value)| (!value.is_empty()).then_some([name, value]));
        let options: Vec<&str> = options.into_iter().flatten().flatten().collect();
        let (ours, theirs) = (all_keys(&mut self.aside.tally, &options), all_keys(&mut self.aside.redis, &options));
        assert_eq!(ours, theirs, "SCAN {options:?}; TALLY_SEED={}", self.seed);
        self.sent += 1;
    }

    /// Checks that `RANDOMKEY` returns a key that exists.
    fn random_key(&mut self) {
        let (ours, theirs) = (self.aside.tally.say("RANDOMKEY"), self.aside.redis.say("RANDOMKEY"));
        match (&ours, &theirs) {
            (Reply::Bulk(key), Reply::Bulk(_)) => {
                let there = self.aside.redis.call(&[b"EXISTS", key.as_slice()]);
                assert_eq!(there, Reply::Integer(1), "RANDOMKEY {ours:?}; TALLY_SEED={}", self.seed);
            }
            _ => assert_eq!(ours, theirs, "RANDOMKEY; TALLY_SEED={}", self.seed),
        }
        self.sent += 1;
    }

    /// Makes some keys expire after a few milliseconds and waits for it.
    fn lapse(&mut self) {
        for _ in 0..self.draw.below(4) {
            let (key, ms) = (self.draw.key(), (1 + self.draw.below(20)).to_string().into_bytes());
            let words: Words = match self.draw.below(3) {
                0 => vec![b"SET".to_vec(), key.clone(), b"7".to_vec(), b"PX".to_vec(), ms],
                1 => vec![b"PEXPIRE".to_vec(), key.clone(), ms, b"LT".to_vec()],
                _ => vec![b"PEXPIRE".to_vec(), key.clone(), ms],
            };
            // No earlier expiry of the key can pass between the two calls, so both sides see it alive or both see it expired.
            let (ours, theirs) = (self.aside.tally.call(&words), self.aside.redis.call(&words));
            assert_eq!(ours, theirs, "{words:?}; TALLY_SEED={}", self.seed);
            self.history.push(format!("lapse: {words:?} -> {theirs:?}"));
            let read = [b"PTTL", key.as_slice()];
            let what = format!("the expiry after {words:?}; TALLY_SEED={}", self.seed);
            wait_until_equal(&what, &[Reply::Integer(-2), Reply::Integer(-2)], || {
                [&mut self.aside.tally, &mut self.aside.redis].map(|side| side.call(&read))
            });
            self.sent += 2;
        }
    }

    /// Compares the final state of both sides.
    fn compare_everything(&mut self) {
        let (ours, theirs) = (all_keys(&mut self.aside.tally, &[]), all_keys(&mut self.aside.redis, &[]));
        assert_eq!(ours, theirs, "TALLY_SEED={}", self.seed);
        for key in ours {
            for command in ["GET", "PEXPIRETIME"] {
                let words = vec![command.into(), key.clone()];
                let (ours, theirs) = (self.aside.tally.call(&words), self.aside.redis.call(&words));
                assert!(
                    check(&words).passes(&ours, &theirs, self.late_max),
                    "{words:?}: {ours:?}, {theirs:?}; TALLY_SEED={}",
                    self.seed
                );
            }
        }
    }
}

/// Every key that a full `SCAN` returns.
fn all_keys(resp: &mut Resp, options: &[&str]) -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = resp.call(&[&["SCAN", cursor.as_str()], options].concat());
        let [next, page] = reply.items() else { panic!("{reply:?}") };
        for key in page.items() {
            let Reply::Bulk(key) = key else { panic!("{key:?}") };
            keys.insert(key.clone());
        }
        cursor = next.number().to_string();
        if cursor == "0" {
            return keys;
        }
    }
}

#[test]
fn random_commands_get_the_replies_of_redis() {
    let commands = number_from_env("TALLY_REDIS_COMMANDS").unwrap_or(COMMANDS_DEFAULT);
    let first = seed();
    println!("{commands} commands, TALLY_SEED={first}");
    for run in 0..commands.div_ceil(RUN_COMMANDS) {
        // With a run's own seed, that run comes first.
        let seed = first + run;
        Run::new(seed, seed.is_multiple_of(2)).go(RUN_COMMANDS);
    }
}
