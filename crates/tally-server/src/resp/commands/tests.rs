//! The command table, and the errors for requests that it refuses.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::sync::Arc;

use tally_core::time::Millis;

use super::call::CallContext;
use super::dispatch::dispatch;
use super::introspection::{describe_all, explain_all, filtered, help_of, keys_of};
use super::spec::Spec;
use super::table::{COMMANDS, resolve};
use crate::admission::Caller;
use crate::metrics::ProtocolMetrics;
use crate::policy::Policies;
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::server::{RespServer, ShownSettings};
use crate::resp::session::{Session, WatchedKeys};
use crate::resp::turn::{ReplySink, Turn};
use crate::resp::wire::{Limits, Parsed, Parser, Sent};
use crate::service::Service;

/// The name of the command that a line resolves to, or the error.
fn resolved(line: &str) -> String {
    let input = format!("{line}\n");
    let mut parser = Parser::default();
    let Parsed::Request(args, _) = parser.next(input.as_bytes(), &Limits::AUTHENTICATED) else { panic!("{line:?}") };
    match resolve(&args) {
        Ok(spec) => spec.name.to_owned(),
        Err(text) => String::from_utf8_lossy(&text).into_owned(),
    }
}

fn written(version: ProtocolVersion, write: impl FnOnce(&mut Reply<'_>)) -> String {
    let mut out = Vec::new();
    write(&mut Reply::new(&mut out, version));
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn every_command_is_found_by_its_name_in_any_case() {
    for spec in COMMANDS.commands() {
        let upper = spec.name.to_ascii_uppercase();
        for name in [spec.name, &upper] {
            let found = COMMANDS.find(name.as_bytes()).unwrap();
            assert!(std::ptr::eq(found, spec), "{name} leads to {}", found.name);
        }
    }
    for name in ["", "i", "inc", "incrr", "incs", "client|id", "tally\u{e}add", "\0", "getx"] {
        assert!(COMMANDS.find(name.as_bytes()).is_none(), "{name:?}");
    }
}

#[test]
fn frequent_commands_resolve_to_the_same_spec_without_hashing() {
    for name in ["INCR", "INCRBY", "GET", "DECR", "SET", "MGET", "INCREX", "EXPIRE", "TALLY.ADD"] {
        for name in [name.to_owned(), name.to_lowercase(), name.replace('E', "e")] {
            let found = COMMANDS.find(name.as_bytes()).unwrap();
            assert_eq!(
                resolved(&format!("{name} {}", "1 ".repeat(usize::from(found.arity.unsigned_abs()) - 1))),
                found.name
            );
        }
    }
}

#[test]
fn names_are_unique_and_lower_case_and_every_subcommand_has_its_container() {
    let specs: Vec<&Spec> = COMMANDS.commands_and_subcommands().collect();
    for (at, spec) in specs.iter().enumerate() {
        assert_eq!(spec.name, spec.name.to_ascii_lowercase());
        assert!(specs[..at].iter().all(|other| other.name != spec.name), "{} twice", spec.name);
        let found = COMMANDS.find_full(spec.name.as_bytes()).unwrap();
        assert!(std::ptr::eq(found, *spec), "{} leads to {}", spec.name, found.name);
        assert!(spec.categories.split(' ').all(|category| category.starts_with('@')), "{}", spec.name);
        assert!(spec.summary.ends_with('.') && !spec.since.is_empty() && !spec.complexity.is_empty());
    }
}

#[test]
fn requests_are_resolved_or_refused_with_the_errors_of_redis() {
    for (line, answer) in [
        ("incr a", "incr"),
        ("CLIENT SetName x", "client|setname"),
        ("command", "command"),
        ("incr", "ERR wrong number of arguments for 'incr' command"),
        ("INCR a b", "ERR wrong number of arguments for 'incr' command"),
        ("client", "ERR wrong number of arguments for 'client' command"),
        ("client setname", "ERR wrong number of arguments for 'client|setname' command"),
        ("client Nope x", "ERR unknown subcommand 'Nope'. Try CLIENT HELP."),
        ("foo a 'b c'", "ERR unknown command 'foo', with args beginning with: 'a' 'b c' "),
        ("Foo", "ERR unknown command 'Foo', with args beginning with: "),
        (r#""a\r\nb" "\n""#, "ERR unknown command 'a  b', with args beginning with: ' ' "),
        (r#""a\x00b" "\x00""#, "ERR unknown command 'a', with args beginning with: '' "),
    ] {
        assert_eq!(resolved(line), answer, "{line}");
    }
}

#[test]
fn a_long_unknown_command_is_truncated_in_the_error() {
    let long = "x".repeat(200);
    let cut = "x".repeat(128);
    assert_eq!(resolved(&long), format!("ERR unknown command '{cut}', with args beginning with: "));
    assert_eq!(
        resolved(&format!("f {long} b")),
        format!("ERR unknown command 'f', with args beginning with: '{cut}' ")
    );
    let (fits, rest) = ("y".repeat(120), "x".repeat(5));
    let answer = format!("ERR unknown command 'f', with args beginning with: '{fits}' '{rest}' ");
    assert_eq!(resolved(&format!("f {fits} {long} c")), answer);
    assert_eq!(resolved(&format!("client {long}")), format!("ERR unknown subcommand '{cut}'. Try CLIENT HELP."));
}

#[test]
fn unauthenticated_clients_may_only_authenticate_reset_or_quit() {
    let all = COMMANDS.commands_and_subcommands();
    let open: Vec<_> = all.filter(|spec| spec.needs_no_authentication()).map(|spec| spec.name).collect();
    assert_eq!(open, ["hello", "auth", "quit", "reset"]);
}

#[test]
fn a_command_is_described_like_in_redis() {
    let names = [b"get".as_slice(), b"nope"];
    assert_eq!(
        written(ProtocolVersion::V3, |reply| describe_all(&COMMANDS, names.into_iter(), reply)),
        "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n~2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~3\r\n+@read\r\n+@string\r\n\
         +@fast\r\n~0\r\n~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RO\r\n+access\r\n$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n\
         $5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n\
         $4\r\nspec\r\n%3\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n~0\r\n_\r\n"
    );
    let all = written(ProtocolVersion::V2, |reply| describe_all(&COMMANDS, [].into_iter(), reply));
    assert!(all.starts_with(&format!("*{}\r\n", COMMANDS.commands().len())) && all.contains("client|setname"));
}

#[test]
fn command_docs_leaves_out_unknown_commands() {
    let names = [b"ECHO".as_slice(), b"nope"];
    assert_eq!(
        written(ProtocolVersion::V3, |reply| explain_all(&COMMANDS, names.into_iter(), reply)),
        "%1\r\n$4\r\necho\r\n%5\r\n$7\r\nsummary\r\n$21\r\nReturns its argument.\r\n$5\r\nsince\r\n$5\r\n1.0.0\r\n\
         $5\r\ngroup\r\n$10\r\nconnection\r\n$10\r\ncomplexity\r\n$4\r\nO(1)\r\n\
         $9\r\narguments\r\n*1\r\n%2\r\n$4\r\nname\r\n$7\r\nmessage\r\n$4\r\ntype\r\n$6\r\nstring\r\n"
    );
    let nested =
        written(ProtocolVersion::V2, |reply| explain_all(&COMMANDS, [b"function".as_slice()].into_iter(), reply));
    assert!(nested.starts_with("*2\r\n$8\r\nfunction\r\n*10\r\n") && nested.contains("subcommands\r\n*4\r\n"));
}

#[test]
fn names_are_listed_by_pattern_and_category() {
    let listed = |filter: &[u8], by: &[u8]| filtered(&COMMANDS, filter, by);
    assert_eq!(listed(b"PATTERN", b"GETS*"), Ok(vec!["getset"]));
    assert_eq!(listed(b"pattern", b"client|i*"), Ok(vec!["client|id", "client|info"]));
    assert_eq!(listed(b"aclcat", b"Transaction"), Ok(vec!["multi", "exec", "discard", "watch", "unwatch"]));
    assert_eq!(listed(b"module", b"x"), Ok(Vec::new()));
    assert_eq!(listed(b"other", b"x"), Err("ERR syntax error".to_owned()));
    assert_eq!(COMMANDS.commands().next().map(|spec| spec.name), Some("incr"));
}

#[test]
fn the_keys_of_a_request_are_found() {
    let keys =
        |words: &[&'static str]| keys_of(&COMMANDS, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    assert_eq!(keys(&["mget", "a", "b"]), Ok(vec![b"a".as_slice(), b"b"]));
    assert_eq!(keys(&["SET", "a", "1", "NX"]), Ok(vec![b"a".as_slice()]));
    assert_eq!(keys(&["get", "a", "b"]), Err("ERR Invalid number of arguments specified for command"));
    assert_eq!(keys(&["ping", "a"]), Err("ERR The command has no key arguments"));
    assert_eq!(keys(&["client", "id"]), Err("ERR The command has no key arguments"));
    assert_eq!(keys(&["client", "zz"]), Err("ERR Invalid command specified"));
    assert_eq!(keys(&["nope", "a"]), Err("ERR Invalid command specified"));
    assert_eq!(keys(&[]), Err("ERR Invalid command specified"));
}

#[test]
fn the_documentation_of_increx_has_all_its_arguments() {
    let docs = written(ProtocolVersion::V2, |reply| explain_all(&COMMANDS, [b"increx".as_slice()].into_iter(), reply));
    let words: Vec<&str> = docs.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect();
    let tokens: Vec<&str> = words.windows(2).filter(|pair| pair[0] == "token").map(|pair| pair[1]).collect();
    let options = ["BYINT", "LBOUND", "UBOUND", "SATURATE", "EX", "PX", "EXAT", "PXAT", "PERSIST", "ENX"];
    assert_eq!(tokens, options);
    for field in ["summary", "since", "group", "complexity", "arguments", "oneof", "pure-token", "unix-time", "integer"]
    {
        assert!(words.contains(&field), "{field}: {docs}");
    }
}

/// The replies to these lines, of a server that has not recovered yet.
fn replies_while_recovering(lines: &[&str]) -> Vec<String> {
    let service = Arc::new(Service::new(Policies::default()));
    let address = "127.0.0.1:1".parse().unwrap();
    let settings = ShownSettings { data: String::new(), memory_bytes: 0, connections_max: 1, address };
    let server = Arc::new(RespServer::new(service, ProtocolMetrics::new("resp"), settings));
    let client = server.clients.add(address, address, Millis(0));
    let (caller, watched) = (Caller::new(address.ip()), WatchedKeys::default());
    let (now, reads_min) = (Millis(0), watched.reads_min());
    let context = CallContext { server: &server, client: &client, caller, now, watched: &watched, reads_min };
    let (mut session, mut parser) = (Session::default(), Parser::default());
    let replies = Replies::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (number, line) in lines.iter().enumerate() {
        let mut turn = Turn::default();
        turn.begin(number, session.version);
        let input = format!("{line}\r\n");
        let Parsed::Request(args, _) = parser.next(input.as_bytes(), &Limits::AUTHENTICATED) else {
            panic!("{line:?}")
        };
        let sent = Sent { request: input.as_bytes(), behind: &[] };
        dispatch(&context, &mut session, (args, sent), &mut turn);
        turn.end();
        runtime.block_on(turn.run(&server.service, (&server.metrics, &server.stats), &replies));
    }
    replies.0.into_inner()
}

/// Collects replies.
#[derive(Default)]
struct Replies(RefCell<Vec<String>>);

impl ReplySink for Replies {
    fn answer(&self, _: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut reply = Vec::new();
        write(&mut reply);
        self.0.borrow_mut().push(String::from_utf8(reply).unwrap());
    }
}

#[test]
fn a_server_that_is_recovering_answers_only_what_redis_answers_while_loading() {
    let loading = "-LOADING Redis is loading the dataset in memory\r\n";
    let refused = ["ping", "PING x", "incr a", "get a", "dbsize", "function flush"];
    assert_eq!(replies_while_recovering(&refused), [loading; 6]);
    let answered = ["echo x", "client getname", "select 0", "auth default x"];
    assert_eq!(replies_while_recovering(&answered), ["$1\r\nx\r\n", "$-1\r\n", "+OK\r\n", "+OK\r\n"]);
    assert!(replies_while_recovering(&["info persistence"])[0].contains("loading:1"));
    assert_eq!(
        replies_while_recovering(&["multi", "incr a", "exec"]),
        ["+OK\r\n", loading, "-EXECABORT Transaction discarded because of previous errors.\r\n"]
    );
}

#[test]
fn help_lists_the_subcommands() {
    let spec = COMMANDS.find_full(b"function|help").unwrap();
    assert_eq!(
        written(ProtocolVersion::V2, |reply| help_of(&COMMANDS, spec, reply)),
        "*5\r\n+FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n+FLUSH\r\n\
         +    Accepted for compatibility. There are no functions to delete.\r\n+HELP\r\n+    Lists the subcommands.\r\n"
    );
}
