//! The same bytes go to a real Redis and to the parser: the replies must be equal, byte for byte.
//!
//! For an unknown command, Redis quotes the arguments in its error. That shows how it parsed the request, so the requests
//! here are for commands that neither side has.

use tally_sim::rng::Rng;

use super::redis::{AUTH, Redis};
use crate::limits::RESP_LINE_BYTES_MAX;
use crate::resp::commands;
use crate::resp::glob::{self, Case};
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::wire::{Limits, Parsed, Parser};

/// Tally's replies to these bytes, which must contain only unknown commands.
fn ours(input: &[u8], limits: &Limits) -> Vec<u8> {
    let mut parser = Parser::default();
    let mut out = Vec::new();
    let mut from = 0;
    loop {
        match parser.next(&input[from..], limits) {
            Parsed::Request(args, taken) => {
                let refusal = commands::resolve(&args).expect_err("the command must be unknown");
                Reply::new(&mut out, ProtocolVersion::V2).error(refusal);
                from += taken;
            }
            Parsed::Empty(taken) => from += taken,
            Parsed::Incomplete { .. } => return out,
            Parsed::Broken(error) => {
                if let Some(text) = error.text() {
                    Reply::new(&mut out, ProtocolVersion::V2).error(text);
                }
                return out;
            }
        }
    }
}

/// Compares the replies to an authenticated client and to an unauthenticated one.
fn compare(redis: &Redis, input: &[u8]) {
    let shown = || String::from_utf8_lossy(&input[..input.len().min(200)]).into_owned();
    let theirs = redis.answer(&[AUTH, input].concat());
    let authenticated = [b"+OK\r\n".to_vec(), ours(input, &Limits::AUTHENTICATED)].concat();
    assert_eq!(
        String::from_utf8_lossy(&authenticated),
        String::from_utf8_lossy(&theirs),
        "authenticated: {:?}",
        shown()
    );
    let (unauthenticated, theirs) = (ours(input, &Limits::UNAUTHENTICATED), redis.answer(input));
    assert_eq!(
        String::from_utf8_lossy(&unauthenticated),
        String::from_utf8_lossy(&theirs),
        "unauthenticated: {:?}",
        shown()
    );
}

#[test]
fn odd_bytes_get_the_replies_of_redis() {
    let redis = Redis::start();
    let long = "x".repeat(RESP_LINE_BYTES_MAX + 1);
    let digits = "1".repeat(RESP_LINE_BYTES_MAX + 1);
    let many = "*11\r\n".to_owned() + &"$1\r\nx\r\n".repeat(11);
    let large = format!("*2\r\n$1\r\nx\r\n$16385\r\n{}\r\n", "y".repeat(16385));
    for input in [
        "*x\r\n",
        "*\r\n",
        "*01\r\n",
        "*+1\r\n",
        "* 1\r\n",
        "*1 \r\n",
        "*-0\r\n",
        "*9223372036854775808\r\n",
        "*-9223372036854775808\r\nx\r\n",
        "*0\r\n*-1\r\n\r\n\nx\r\n",
        "*1\r\nx\r\n",
        "*1\r\n\r\n",
        "*1\r\n\n\r\n",
        "*1\r\n$\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$01\r\n",
        "*1\r\n$1x\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n$9223372036854775807\r\n",
        "*1\r\n$3\r\nfoo\r\n",
        "*1\r\n$3\r\nfooXY*1\r\n$3\r\nbar\r\n",
        "*1\rX$3\rXfoo\r\nbar\r\n",
        "*2\r\n$0\r\n\r\n$0\r\n\r\n",
        "*1\r\n$3\r\nfo",
        "x 'a b' \"c d\" \"\\x41\\n\\q\" 'it\\'s'\r\n",
        "x \"a\"b\r\n",
        "x 'a\r\n",
        "x \"a\\\"\r\n",
        "x a\"b c\"\r\n",
        "x\x0by \x0bz\x0c\r\n",
        "x\ry\nz\n",
        "\"\" x\n",
        "client nope\r\nclient\r\nclient id x\r\nincr\r\nget a b\r\n",
        &long,
        &format!("*{digits}"),
        &format!("*1\r\n${digits}"),
        &many,
        &large,
        &format!("{} {}\r\n", "n".repeat(150), "a".repeat(150)),
        &format!("n {} {} c\r\n", "a".repeat(121), "b".repeat(50)),
    ] {
        compare(&redis, input.as_bytes());
    }
}

#[test]
fn neither_side_answers_a_browser() {
    let redis = Redis::start();
    for input in ["POST / HTTP/1.1\r\nx\r\n", "host: a\r\nx\r\n", "Post\r\n"] {
        assert_eq!(ours(input.as_bytes(), &Limits::UNAUTHENTICATED), b"", "{input:?}");
        assert_eq!(redis.answer(input.as_bytes()), b"", "{input:?}");
    }
}

#[test]
fn mutated_requests_get_the_replies_of_redis() {
    const ROUNDS: u64 = 400;
    const SEEDLINGS: [&[u8]; 3] =
        [b"*3\r\n$1\r\nx\r\n$3\r\na\r\n\r\n$0\r\n\r\n", b"x 'a b' \"c\\n\"\r\n", b"*0\r\n*1\r\n$2\r\nxx\r\nx\r\n"];
    const TELLING: &[u8] = b"*$\r\n0129-+ \"'\\xaH\t\xff";
    let redis = Redis::start();
    let mut rng = Rng::new(7);
    let mut compared = 0;
    for _ in 0..ROUNDS {
        let mut input = Vec::new();
        for _ in 0..=rng.below(2) {
            input.extend(SEEDLINGS[rng.below(3) as usize]);
        }
        for _ in 0..=rng.below(4) {
            let at = rng.below(input.len() as u64) as usize;
            let byte = TELLING[rng.below(TELLING.len() as u64) as usize];
            match rng.below(3) {
                0 => input[at] = byte,
                1 => input.insert(at, byte),
                _ => drop(input.remove(at)),
            }
        }
        // Redis accepts more and longer arguments, and waits for them.
        let has_large_number = input.windows(4).any(|four| four.iter().all(u8::is_ascii_digit));
        if !has_large_number {
            compare(&redis, &input);
            compared += 1;
        }
    }
    assert!(compared > ROUNDS / 2, "{compared} were compared");
}

#[test]
fn command_info_matches_redis() {
    /// Commands that Redis 7.0 lacks, and those whose key description has a note there.
    const EXCLUDED: [&str; 7] =
        ["tally.add", "tally.read", "increx", "set", "getex", "client|setinfo", "client|no-touch"];
    let redis = Redis::start();
    for (version, hello) in [(ProtocolVersion::V2, ""), (ProtocolVersion::V3, "HELLO 3\r\n")] {
        for spec in commands::COMMANDS
            .commands_and_subcommands()
            .filter(|spec| !EXCLUDED.contains(&spec.name) && spec.subcommands.is_empty())
        {
            let request = [AUTH, format!("{hello}COMMAND INFO {}\r\n", spec.name).as_bytes()].concat();
            let theirs = redis.answer(&request);
            let mut ours = Vec::new();
            let names = [spec.name.as_bytes()].into_iter();
            commands::describe_all(&commands::COMMANDS, names, &mut Reply::new(&mut ours, version));
            let (ours, theirs) = (String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs));
            assert!(theirs.ends_with(ours.as_ref()), "{ours:?}\nis not the end of\n{theirs:?}");
        }
    }
}

#[test]
fn patterns_match_the_keys_that_redis_matches() {
    const ROUNDS: usize = 2000;
    const LETTERS: &[u8] = b"abAc]-^\\";
    const SIGNS: &[u8] = b"ab*?[]^-\\Ac";
    let redis = Redis::start();
    let mut rng = Rng::new(11);
    let mut drawn = |letters: &[u8], most: u64| -> Vec<u8> {
        (0..=rng.below(most)).map(|_| letters[rng.below(letters.len() as u64) as usize]).collect()
    };
    let keys: Vec<_> = (0..200).map(|_| drawn(LETTERS, 5)).collect();
    let patterns: Vec<_> = (0..ROUNDS).map(|_| drawn(SIGNS, 7)).collect();
    let request = |words: &[&[u8]]| {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        words.iter().for_each(|word| Reply::new(&mut bytes, ProtocolVersion::V2).bulk(word));
        bytes
    };
    let sets = keys.iter().flat_map(|key| request(&[b"SET", key, b"1"]));
    let asks = patterns.iter().flat_map(|pattern| request(&[b"KEYS", pattern]));
    let answers = redis.answer(&AUTH.iter().copied().chain(sets).chain(asks).collect::<Vec<_>>());
    // A reply with keys has the format of a request.
    let limits = Limits::AUTHENTICATED;
    let (mut parser, mut from) = (Parser::default(), b"+OK\r\n".len() * (keys.len() + 1));
    for pattern in patterns {
        let mut theirs: Vec<Vec<u8>> = Vec::new();
        from += match parser.next(&answers[from..], &limits) {
            Parsed::Request(args, taken) => {
                theirs.extend(args.iter().map(<[u8]>::to_vec));
                taken
            }
            Parsed::Empty(taken) => taken,
            other => panic!("{other:?}"),
        };
        let mut ours: Vec<_> =
            keys.iter().filter(|key| glob::matches(&pattern, key, Case::Sensitive)).cloned().collect();
        ours.sort();
        ours.dedup();
        theirs.sort();
        assert_eq!(ours, theirs, "{:?}", String::from_utf8_lossy(&pattern));
    }
    assert_eq!(from, answers.len());
}
