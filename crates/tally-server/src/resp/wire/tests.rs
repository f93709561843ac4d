//! The parser returns every request as it was sent, however the input is split, and refuses everything else.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Limits, Parsed, Parser, ProtocolError, Sent, integer};
use crate::limits::{RESP_ARGS_MAX, RESP_BULK_BYTES_MAX, RESP_LINE_BYTES_MAX, RESP_SCRATCH_BYTES_KEPT};
use crate::resp::tests::naive::{self, Verdict};

/// A request as clients send it.
fn encoded(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn read(input: &[u8], limits: &Limits) -> Verdict {
    naive::verdict(&Parser::default().next(input, limits))
}

fn request(words: &[&[u8]], taken: usize) -> Verdict {
    Verdict::Request(words.iter().map(|word| word.to_vec()).collect(), taken)
}

fn broken(input: impl AsRef<[u8]>, limits: &Limits) -> String {
    match Parser::default().next(input.as_ref(), limits) {
        Parsed::Broken(error) => String::from_utf8_lossy(&error.text().unwrap_or_default()).into_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn one_request_is_read_at_a_time() {
    let input = b"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n";
    let mut parser = Parser::default();
    assert_eq!(naive::verdict(&parser.next(input, &Limits::AUTHENTICATED)), request(&[b"INCR", b"a"], 21));
    assert_eq!(naive::verdict(&parser.next(&input[21..], &Limits::AUTHENTICATED)), request(&[b"PING"], 14));
    assert_eq!(naive::verdict(&parser.next(b"", &Limits::AUTHENTICATED)), Verdict::Incomplete);
}

#[test]
fn arguments_are_accessible_by_index_and_in_order() {
    let mut parser = Parser::default();
    let Parsed::Request(args, _) = parser.next(b"SET a 1\n", &Limits::AUTHENTICATED) else { panic!("not a request") };
    assert_eq!((args.len(), args.name(), args.get(2), args.get(3)), (3, &b"SET"[..], Some(&b"1"[..]), None));
    assert_eq!(args.iter().collect::<Vec<_>>(), [b"SET".as_slice(), b"a", b"1"]);
}

#[test]
fn empty_requests_are_skipped() {
    for empty in ["*0\r\n", "*-1\r\n", "*-9\r\n", "\r\n", "\n", " \t \r\n"] {
        assert_eq!(read(empty.as_bytes(), &Limits::AUTHENTICATED), Verdict::Empty(empty.len()), "{empty:?}");
    }
}

#[test]
fn a_line_is_split_into_words_like_in_redis() {
    for (line, words) in [
        ("  GET\t a \r\n", vec![&b"GET"[..], b"a"]),
        (r#"set "a b" 'c d'"#, vec![b"set", b"a b", b"c d"]),
        (r#""\x41\x6a\xZZ\n\r\t\b\a\"\\\q" x"#, vec![b"AjxZZ\n\r\t\x08\x07\"\\q", b"x"]),
        (r"'it\'s \n'", vec![br"it's \n"]),
        (r#""" x"#, vec![b"", b"x"]),
        (r#"a"b c" d"#, vec![b"ab c", b"d"]),
        ("a\x0bb \x0bc", vec![b"a\x0bb", b"c"]),
    ] {
        let input = format!("{}\n", line.trim_end_matches('\n'));
        assert_eq!(read(input.as_bytes(), &Limits::AUTHENTICATED), request(&words, input.len()), "{line:?}");
    }
}

#[test]
fn every_protocol_error_has_the_text_of_redis() {
    let authenticated = &Limits::AUTHENTICATED;
    let long = "1".repeat(RESP_LINE_BYTES_MAX + 1);
    for (input, text) in [
        ("*x\r\n".into(), "invalid multibulk length"),
        ("*\r\n".into(), "invalid multibulk length"),
        ("*01\r\n".into(), "invalid multibulk length"),
        ("*+1\r\n".into(), "invalid multibulk length"),
        (format!("*{}\r\n", RESP_ARGS_MAX + 1), "too many arguments; a request has at most 1024, its name included"),
        ("*2147483647\r\n".into(), "too many arguments; a request has at most 1024, its name included"),
        ("*2147483648\r\n".into(), "invalid multibulk length"),
        ("*9223372036854775808\r\n".into(), "invalid multibulk length"),
        ("*1\r\nx1\r\n".into(), "expected '$', got 'x'"),
        ("*1\r\n\r\n".into(), "expected '$', got '\r'"),
        ("*1\r\n$\r\n".into(), "invalid bulk length"),
        ("*1\r\n$-1\r\n".into(), "invalid bulk length"),
        ("*1\r\n$1x\r\n".into(), "invalid bulk length"),
        (format!("*1\r\n${}\r\n", RESP_BULK_BYTES_MAX + 1), "invalid bulk length"),
        (long.clone(), "too big inline request"),
        (format!("*{long}"), "too big mbulk count string"),
        (format!("*1\r\n${long}"), "too big bulk count string"),
        ("a 'b\r\n".into(), "unbalanced quotes in request"),
        ("a \"b\"c\r\n".into(), "unbalanced quotes in request"),
        ("a \"b\\\"\r\n".into(), "unbalanced quotes in request"),
        ("a ".repeat(RESP_ARGS_MAX + 1) + "\n", "too big inline request"),
    ] {
        let shown: String = input.chars().take(30).collect();
        assert_eq!(broken(&input, authenticated), format!("ERR Protocol error: {text}"), "{shown:?}");
    }
}

#[test]
fn unauthenticated_clients_have_lower_limits_and_their_own_errors() {
    let unauthenticated = &Limits::UNAUTHENTICATED;
    assert_eq!(broken("*11\r\n", unauthenticated), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(broken("*1\r\n$16385\r\n", unauthenticated), "ERR Protocol error: unauthenticated bulk length");
    assert_eq!(broken("*2147483647\r\n", unauthenticated), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(broken("*2147483648\r\n", unauthenticated), "ERR Protocol error: invalid multibulk length");
    assert_eq!(read(b"*10\r\n", unauthenticated), Verdict::Incomplete);
    assert_eq!(read(b"*1\r\n$16384\r\n", unauthenticated), Verdict::Incomplete);
}

#[test]
fn the_largest_request_is_read() {
    let input = encoded(&[vec![b'x'; RESP_BULK_BYTES_MAX]]);
    assert!(
        matches!(Parser::default().next(&input, &Limits::AUTHENTICATED), Parsed::Request(_, taken) if taken == input.len())
    );
    let input = encoded(&vec![b"x".to_vec(); RESP_ARGS_MAX]);
    assert!(
        matches!(Parser::default().next(&input, &Limits::AUTHENTICATED), Parsed::Request(args, _) if args.len() == 1024)
    );
    let input = [vec![b'x'; RESP_LINE_BYTES_MAX], b"\n".to_vec()].concat();
    assert!(matches!(Parser::default().next(&input, &Limits::AUTHENTICATED), Parsed::Request(..)));
}

#[test]
fn http_is_recognized_and_gets_no_reply() {
    for line in ["GET / HTTP/1.1", "POST /x HTTP/1.1", "post x", "Host: a", "HOST:", "PRI * HTTP/2.0", "POST 'a"] {
        let input = format!("{line}\r\nmore");
        let mut parser = Parser::default();
        let Parsed::Broken(error) = parser.next(input.as_bytes(), &Limits::AUTHENTICATED) else {
            panic!("{line} was read")
        };
        assert_eq!((error, error.text()), (ProtocolError::Http, None), "{line}");
    }
    for line in ["GET HTTP/1.1", "SET a HTTP", "GET a", "MGET a b HTTP/1.1", "postal", "SET HTTP/1.1 1"] {
        let input = format!("{line}\r\n");
        assert!(
            matches!(Parser::default().next(input.as_bytes(), &Limits::AUTHENTICATED), Parsed::Request(..)),
            "{line}"
        );
    }
}

#[test]
fn a_long_argument_that_arrives_byte_by_byte_is_not_read_again() {
    let input = encoded(&[b"SET".to_vec(), vec![b'1'; RESP_BULK_BYTES_MAX]]);
    let mut parser = Parser::default();
    for end in 0..input.len() {
        let Parsed::Incomplete { needed } = parser.next(&input[..end], &Limits::AUTHENTICATED) else { panic!("early") };
        assert!((1..=input.len() - end).contains(&needed), "{needed} at {end}");
        // Once the length is known, the result has the exact number of missing bytes.
        assert!(end < 32 || needed == input.len() - end, "{needed} at {end}");
        assert!(end < 32 || (parser.bulk == Some(RESP_BULK_BYTES_MAX) && parser.missing == 1), "at {end}");
    }
    assert!(matches!(parser.next(&input, &Limits::AUTHENTICATED), Parsed::Request(..)));
}

#[test]
fn a_long_line_that_arrives_byte_by_byte_is_searched_once() {
    for begin in [b'x', b'*'] {
        let input = [vec![begin], vec![b'1'; 5000]].concat();
        let mut parser = Parser::default();
        for end in 1..=input.len() {
            assert!(matches!(parser.next(&input[..end], &Limits::AUTHENTICATED), Parsed::Incomplete { needed: 1 }));
            assert_eq!(parser.searched, end);
        }
    }
}

#[test]
fn a_huge_announced_length_allocates_nothing() {
    let mut parser = Parser::default();
    assert!(matches!(
        parser.next(b"*1024\r\n$1048576\r\n", &Limits::AUTHENTICATED),
        Parsed::Incomplete { needed: 1_048_578 }
    ));
    assert!(parser.spans.capacity() == 0 && parser.words.capacity() == 0);
}

#[test]
fn memory_of_a_large_request_is_freed() {
    let mut parser = Parser::default();
    parser.next(&encoded(&vec![b"x".to_vec(); RESP_ARGS_MAX]), &Limits::AUTHENTICATED);
    parser.next(&[vec![b'x'; RESP_LINE_BYTES_MAX], b"\n".to_vec()].concat(), &Limits::AUTHENTICATED);
    parser.trim();
    let kept = parser.spans.capacity() * size_of::<super::Span>() + parser.words.capacity();
    assert!(kept <= 2 * RESP_SCRATCH_BYTES_KEPT, "{kept} bytes");
}

#[test]
fn integers_are_parsed_like_in_redis() {
    for (text, value) in [
        ("0", 0),
        ("7", 7),
        ("-1", -1),
        ("10", 10),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
    ] {
        assert_eq!(integer(text.as_bytes()), Some(value), "{text}");
    }
    for text in [
        "",
        "-",
        "+1",
        " 1",
        "1 ",
        "01",
        "-0",
        "-01",
        "00",
        "1a",
        "1.0",
        "--1",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "99999999999999999999",
        "100000000000000000000",
    ] {
        assert_eq!(integer(text.as_bytes()), None, "{text}");
    }
}

/// Small limits, so that generated requests reach them.
const SMALL: Limits = Limits { bulk_bytes_max: 12, args_max: 5 };

/// Mostly bytes that the parser recognizes.
fn telling() -> impl Strategy<Value = u8> {
    prop_oneof![4 => proptest::sample::select(b"*$\r\n019-+ \"'\\xaH".as_slice()), 1 => any::<u8>()]
}

/// Valid requests, one after another.
fn requests() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    vec(vec(vec(telling(), 0..12), 1..6), 1..4)
}

/// All results of the parser for a stream that arrives in pieces, split at `cuts`.
fn told(input: &[u8], cuts: impl Iterator<Item = usize>) -> Vec<Verdict> {
    let mut parser = Parser::default();
    let (mut from, mut told) = (0, Vec::new());
    for end in cuts.chain([input.len()]) {
        loop {
            let verdict = naive::verdict(&parser.next(&input[from..end.max(from)], &SMALL));
            match verdict {
                Verdict::Incomplete => break,
                Verdict::Request(_, taken) | Verdict::Empty(taken) => {
                    assert!(taken > 0 && from + taken <= end, "took {taken} of {}", end - from);
                    from += taken;
                    told.push(verdict);
                }
                Verdict::Broken(_) => {
                    told.push(verdict);
                    return told;
                }
            }
        }
    }
    told
}

/// The same results from the naive parser.
fn expected(input: &[u8]) -> Vec<Verdict> {
    let (mut from, mut told) = (0, Vec::new());
    loop {
        let verdict = naive::parse(&input[from..], &SMALL);
        match verdict {
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_survive_a_round_trip_wherever_they_are_split(requests in requests()) {
        let input: Vec<u8> = requests.iter().flat_map(|args| encoded(args)).collect();
        let want: Vec<_> =
            requests.iter().map(|args| Verdict::Request(args.clone(), encoded(args).len())).collect();
        prop_assert_eq!(&told(&input, std::iter::empty()), &want);
        prop_assert_eq!(&told(&input, 0..input.len()), &want);
        for cut in 0..input.len() {
            prop_assert_eq!(&told(&input, std::iter::once(cut)), &want);
        }
    }

    #[test]
    fn both_parsers_agree_on_random_bytes(input in vec(telling(), 0..60)) {
        let want = expected(&input);
        prop_assert_eq!(&told(&input, std::iter::empty()), &want);
        prop_assert_eq!(&told(&input, 0..input.len()), &want);
    }

    #[test]
    fn both_parsers_agree_on_damaged_requests(
        requests in requests(),
        damage in vec((any::<prop::sample::Index>(), telling()), 1..4),
    ) {
        let mut input: Vec<u8> = requests.iter().flat_map(|args| encoded(args)).collect();
        for (at, byte) in damage {
            let at = at.index(input.len());
            input[at] = byte;
        }
        let want = expected(&input);
        prop_assert_eq!(&told(&input, std::iter::empty()), &want);
        prop_assert_eq!(&told(&input, 0..input.len()), &want);
    }

    #[test]
    fn an_integer_is_parsed_exactly_as_the_standard_library_prints_it(value in any::<i64>(), noise in vec(telling(), 0..5)) {
        prop_assert_eq!(integer(value.to_string().as_bytes()), Some(value));
        let canonical = std::str::from_utf8(&noise).ok().and_then(|text| {
            text.parse::<i64>().ok().filter(|value| value.to_string() == text)
        });
        prop_assert_eq!(integer(&noise), canonical);
    }
}

#[test]
fn repeated_requests_are_counted() {
    let sent = |behind: &'static str| Sent { request: b"INCR a\r\n", behind: behind.as_bytes() };
    assert_eq!(sent("").times(9), 1);
    assert_eq!(sent("INCR a\r\nINCR a\r\nINCR b\r\nINCR a\r\n").times(9), 3);
    assert_eq!(sent("INCR a\r\nINCR a\r").times(9), 2, "an incomplete request is not counted");
    assert_eq!(sent("INCR a\r\nINCR a\r\nINCR a\r\n").times(3), 3, "not more than `max`");
    assert_eq!(sent("INCR a\r\nINCR a\r\nINCR a\r\n").times(9), 4);
    assert_eq!(sent("INCR a\r\n").times(1), 1);
    assert_eq!(sent("INCR b\r\nINCR b\r\nINCR b\r\n").times(9), 1, "other requests repeat");
}
