//! The table of all commands. To add one, write its spec in the file of its group and add a line here.

use phf::phf_ordered_map;

use super::spec::{CommandTable, Spec};
use super::{
    bounds, config, connection, copies, counters, database, diagnosis, expiry, info, introspection, keyspace, monitor,
    server, sets, tally, transactions, watch,
};
use crate::resp::wire::Args;

/// All commands, in the order in which they are listed.
pub static COMMANDS: CommandTable = CommandTable(phf_ordered_map! {
    "incr" => &counters::INCR,
    "incrby" => &counters::INCRBY,
    "get" => &counters::GET,
    "decr" => &counters::DECR,
    "decrby" => &counters::DECRBY,
    "tally.add" => &tally::TALLY_ADD,
    "tally.read" => &tally::TALLY_READ,
    "increx" => &bounds::INCREX,
    "mget" => &counters::MGET,
    "set" => &counters::SET,
    "getset" => &counters::GETSET,
    "setex" => &sets::SETEX,
    "psetex" => &sets::PSETEX,
    "setnx" => &sets::SETNX,
    "mset" => &sets::MSET,
    "msetnx" => &sets::MSETNX,
    "getex" => &sets::GETEX,
    "strlen" => &sets::STRLEN,
    "getdel" => &counters::GETDEL,
    "del" => &keyspace::DEL,
    "unlink" => &keyspace::UNLINK,
    "exists" => &keyspace::EXISTS,
    "touch" => &keyspace::TOUCH,
    "rename" => &copies::RENAME,
    "renamenx" => &copies::RENAMENX,
    "copy" => &copies::COPY,
    "type" => &keyspace::TYPE,
    "expire" => &expiry::EXPIRE,
    "pexpire" => &expiry::PEXPIRE,
    "expireat" => &expiry::EXPIREAT,
    "pexpireat" => &expiry::PEXPIREAT,
    "ttl" => &expiry::TTL,
    "pttl" => &expiry::PTTL,
    "persist" => &expiry::PERSIST,
    "expiretime" => &expiry::EXPIRETIME,
    "pexpiretime" => &expiry::PEXPIRETIME,
    "scan" => &keyspace::SCAN,
    "keys" => &keyspace::KEYS,
    "dbsize" => &keyspace::DBSIZE,
    "flushall" => &keyspace::FLUSHALL,
    "flushdb" => &keyspace::FLUSHDB,
    "randomkey" => &keyspace::RANDOMKEY,
    "ping" => &connection::PING,
    "echo" => &connection::ECHO,
    "hello" => &connection::HELLO,
    "auth" => &connection::AUTH,
    "select" => &database::SELECT,
    "swapdb" => &database::SWAPDB,
    "move" => &database::MOVE,
    "quit" => &connection::QUIT,
    "reset" => &connection::RESET,
    "multi" => &transactions::MULTI,
    "exec" => &transactions::EXEC,
    "discard" => &transactions::DISCARD,
    "watch" => &watch::WATCH,
    "unwatch" => &watch::UNWATCH,
    "info" => &info::INFO,
    "time" => &server::TIME,
    "client" => &connection::CLIENT,
    "command" => &introspection::COMMAND,
    "config" => &config::CONFIG,
    "function" => &server::FUNCTION,
    "object" => &diagnosis::OBJECT,
    "memory" => &diagnosis::MEMORY,
    "role" => &diagnosis::ROLE,
    "lastsave" => &diagnosis::LASTSAVE,
    "wait" => &diagnosis::WAIT,
    "acl" => &diagnosis::ACL,
    "module" => &diagnosis::MODULE,
    "slowlog" => &diagnosis::SLOWLOG,
    "latency" => &diagnosis::LATENCY,
    "monitor" => &monitor::MONITOR,
    "cluster" => &database::CLUSTER,
    "readonly" => &database::READONLY,
    "readwrite" => &database::READWRITE,
    "asking" => &database::ASKING,
});

/// The command of a request, or the text of the error if there is none or the number of arguments is wrong.
#[inline]
pub fn resolve(args: &Args<'_>) -> Result<&'static Spec, Vec<u8>> {
    COMMANDS.resolve(args, frequent(args.name()))
}

/// The most frequent commands in the two usual spellings: found by length and comparison, without hashing.
#[inline]
fn frequent(name: &[u8]) -> Option<&'static Spec> {
    Some(match name {
        b"INCR" | b"incr" => &counters::INCR,
        b"INCRBY" | b"incrby" => &counters::INCRBY,
        b"GET" | b"get" => &counters::GET,
        b"DECR" | b"decr" => &counters::DECR,
        b"SET" | b"set" => &counters::SET,
        b"MGET" | b"mget" => &counters::MGET,
        b"INCREX" | b"increx" => &bounds::INCREX,
        b"EXPIRE" | b"expire" => &expiry::EXPIRE,
        b"TALLY.ADD" | b"tally.add" => &tally::TALLY_ADD,
        _ => return None,
    })
}
