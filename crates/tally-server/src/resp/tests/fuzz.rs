//! Mutates requests and checks that the parser agrees with the naive one, wherever the input is split.
//!
//! `TALLY_SEED=n` reruns one seed, `TALLY_FUZZ_ROUNDS=n` sets how many inputs are tried. The inputs that mutation starts
//! from are the files in `fuzz/wire` of this crate.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tally_sim::rng::Rng;

use super::naive::{self, Verdict};
use crate::resp::commands;
use crate::resp::glob::{self, Case};
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::wire::{Limits, Parsed, Parser};

const ROUNDS_DEFAULT: u64 = 200_000;
const SEED_DEFAULT: u64 = 1;
/// Longest mutated input.
const INPUT_BYTES_MAX: usize = 400;
/// Limits that mutated requests reach.
const SMALL: Limits = Limits { bulk_bytes_max: 20, args_max: 6 };
/// Tokens that the parser recognizes.
const TOKENS: [&[u8]; 18] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"*",
    b"$",
    b"*1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"\"",
    b"'",
    b"\\x4",
    b" ",
    b"1025",
    b"1048577",
    b"POST ",
    b"9223372036854775808",
];

#[expect(clippy::disallowed_methods, reason = "the knobs of the fuzz test")]
fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/wire");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Directory order differs between machines; the inputs of a seed must not.
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    rng.below(bound as u64) as usize
}

/// One to five small changes.
fn mutate(rng: &mut Rng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    for _ in 0..=rng.below(5) {
        let at = below(rng, input.len() + 1);
        let end = (at + 1 + below(rng, 8)).min(input.len());
        match rng.below(7) {
            0 => drop(input.splice(at..at, TOKENS[below(rng, TOKENS.len())].iter().copied())),
            1 => drop(input.splice(at..at, rng.bytes(1))),
            2 if at < input.len() => input[at] = rng.next_u64() as u8,
            3 if at < input.len() => input[at] ^= 1 << rng.below(8),
            4 => drop(input.drain(at..end)),
            5 => {
                let again = input[at..end].to_vec();
                input.extend(again);
            }
            _ => input.extend(&corpus[below(rng, corpus.len())]),
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

/// Parses a stream that arrives in pieces, split at `cuts`, and passes what it reads to the rest of the module.
fn read(input: &[u8], limits: &Limits, cuts: &[usize]) -> Vec<Verdict> {
    let mut parser = Parser::default();
    let (mut from, mut told) = (0, Vec::new());
    for end in cuts.iter().copied().chain([input.len()]) {
        while from <= end {
            let parsed = parser.next(&input[from..end], limits);
            use_it(&parsed);
            if let Parsed::Incomplete { needed } = parsed {
                assert!(needed > 0, "nothing is missing");
                break;
            }
            let verdict = naive::verdict(&parsed);
            told.push(verdict.clone());
            match verdict {
                Verdict::Request(_, taken) | Verdict::Empty(taken) => {
                    assert!(taken > 0 && from + taken <= end, "took {taken} of {}", end - from);
                    from += taken;
                }
                _ => return told,
            }
        }
    }
    told
}

/// Looks up, matches and answers a request, which must not panic.
fn use_it(parsed: &Parsed<'_>) {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, ProtocolVersion::V3);
    match parsed {
        Parsed::Request(args, _) => {
            if let Err(text) = commands::resolve(args) {
                reply.error(text);
            }
            glob::matches(args.name(), args.get(1).unwrap_or_default(), Case::Insensitive);
        }
        Parsed::Broken(error) => reply.error(error.text().unwrap_or_default()),
        Parsed::Empty(_) | Parsed::Incomplete { .. } => {}
    }
    let breaks = out.iter().filter(|byte| matches!(byte, b'\r' | b'\n')).count();
    assert!(out.is_empty() || (breaks == 2 && out.ends_with(b"\r\n")), "an error is one line");
}

fn expected(input: &[u8], limits: &Limits) -> Vec<Verdict> {
    let (mut from, mut told) = (0, Vec::new());
    loop {
        let verdict = naive::parse(&input[from..], limits);
        match &verdict {
            Verdict::Incomplete => return told,
            Verdict::Request(_, taken) | Verdict::Empty(taken) => from += taken,
            Verdict::Broken(_) => {
                told.push(verdict);
                return told;
            }
        }
        told.push(verdict);
    }
}

fn check(input: &[u8], cuts: &[usize]) {
    for limits in [SMALL, Limits::UNAUTHENTICATED, Limits::AUTHENTICATED] {
        let want = expected(input, &limits);
        assert_eq!(read(input, &limits, &[]), want, "read at once");
        assert_eq!(read(input, &limits, cuts), want, "cut at {cuts:?}");
    }
}

#[test]
fn every_input_of_the_corpus_is_read_the_same_wherever_it_is_split() {
    for input in corpus() {
        let everywhere: Vec<_> = (0..input.len()).collect();
        check(&input, &everywhere);
    }
}

#[test]
fn mutated_input_is_read_as_the_naive_parser_reads_it() {
    let seed = knob("TALLY_SEED", SEED_DEFAULT);
    let rounds = knob("TALLY_FUZZ_ROUNDS", ROUNDS_DEFAULT);
    let corpus = corpus();
    let mut rng = Rng::new(seed);
    let mut requests = 0_u64;
    for round in 0..rounds {
        let mut input = corpus[below(&mut rng, corpus.len())].clone();
        mutate(&mut rng, &mut input, &corpus);
        let mut cuts: Vec<_> = (0..rng.below(4)).map(|_| below(&mut rng, input.len() + 1)).collect();
        cuts.sort_unstable();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input, &cuts)));
        assert!(outcome.is_ok(), "TALLY_SEED={seed}, round {round}, input \"{}\"", input.escape_ascii());
        requests += u64::from(matches!(naive::parse(&input, &Limits::AUTHENTICATED), Verdict::Request(..)));
    }
    println!("TALLY_SEED={seed}: {rounds} inputs, {requests} began with a whole request");
    assert!(requests > rounds / 10, "mutation leaves too little whole: {requests} of {rounds}");
}
