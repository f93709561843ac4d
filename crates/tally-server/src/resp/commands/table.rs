//! The table of commands. Arities, flags, categories and tips are Redis 7's, so that clients which read them behave.

use super::{Keys, Spec};

/// Builds the enum and the table from the same rows:
/// id, name, arity | flags | categories | tips | keys | group, since, cost | summary.
macro_rules! commands {
    ($($id:ident $name:literal $arity:literal | $flags:expr, $categories:expr, $tips:expr, $keys:expr
        , $group:literal $since:literal $complexity:literal, $summary:literal;)*) => {
        /// Every command and subcommand.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(clippy::enum_variant_names, reason = "one of Redis's commands is called COMMAND")]
        pub enum Command {
            $(#[doc = $summary] $id,)*
        }

        /// All of them, the busiest first.
        pub static SPECS: &[Spec] = &[$(Spec {
            id: Command::$id,
            name: $name,
            arity: $arity,
            flags: $flags,
            categories: $categories,
            tips: $tips,
            keys: $keys,
            group: $group,
            since: $since,
            complexity: $complexity,
            summary: $summary,
        },)*];
    };
}

/// The argument after the name is the key.
const fn one(access: &'static str) -> Option<Keys> {
    Some(Keys { first: 1, last: 1, step: 1, access })
}

/// All arguments are keys.
const fn all(access: &'static str) -> Option<Keys> {
    Some(Keys { first: 1, last: -1, step: 1, access })
}

const UPDATE: &str = "RW access update";
const SHARDS_SUM: &str = "request_policy:multi_shard response_policy:agg_sum";
const SHARDS_ALL: &str = "request_policy:all_shards response_policy:all_succeeded";
const VARIES: &str = "nondeterministic_output";
const ORDER_VARIES: &str = "nondeterministic_output_order";
const OPEN: &str = "noscript loading stale fast no_auth allow_busy";
const QUIET: &str = "noscript loading stale";
const ADMIN: &str = "admin noscript loading stale";
const ADMIN_CATEGORIES: &str = "@admin @slow @dangerous";

commands! {
    Incr "incr" 2 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "1.0.0" "O(1)", "Adds one to a counter.";
    IncrBy "incrby" 3 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "1.0.0" "O(1)", "Adds a number to a counter.";
    Get "get" 2 | "readonly fast", "@read @string @fast", "", one("RO access"),
        "string" "1.0.0" "O(1)", "Reads a counter.";
    Decr "decr" 2 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "1.0.0" "O(1)", "Takes one from a counter.";
    DecrBy "decrby" 3 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "1.0.0" "O(1)", "Takes a number from a counter.";
    TallyAdd "tally.add" -3 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "module" "0.1.0" "O(1)", "Adds a number to a counter, once per request id.";
    TallyRead "tally.read" -2 | "readonly fast", "@read @string @fast", "", one("RO access"),
        "module" "0.1.0" "O(1)", "Reads a counter and says how fresh and how exact the number is.";
    IncrEx "increx" -2 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "0.1.0" "O(1)", "Adds to a counter within bounds, and sets when it expires.";
    MGet "mget" -2 | "readonly fast", "@read @string @fast", "request_policy:multi_shard", all("RO access"),
        "string" "1.0.0" "O(N) for N keys", "Reads many counters.";
    Set "set" -3 | "write denyoom", "@write @string @slow", "", one("RW access update variable_flags"),
        "string" "1.0.0" "O(1)", "Sets a counter to a number.";
    GetSet "getset" 3 | "write denyoom fast", "@write @string @fast", "", one(UPDATE),
        "string" "1.0.0" "O(1)", "Sets a counter and answers what it was.";
    GetDel "getdel" 2 | "write fast", "@write @string @fast", "", one("RW access delete"),
        "string" "6.2.0" "O(1)", "Removes a counter and answers what it was.";
    Del "del" -2 | "write", "@keyspace @write @slow", SHARDS_SUM, all("RM delete"),
        "generic" "1.0.0" "O(N) for N keys", "Removes counters.";
    Unlink "unlink" -2 | "write fast", "@keyspace @write @fast", SHARDS_SUM, all("RM delete"),
        "generic" "4.0.0" "O(N) for N keys", "Removes counters, like DEL.";
    Exists "exists" -2 | "readonly fast", "@keyspace @read @fast", SHARDS_SUM, all("RO"),
        "generic" "1.0.0" "O(N) for N keys", "Says how many of the keys are there.";
    Type "type" 2 | "readonly fast", "@keyspace @read @fast", "", one("RO"),
        "generic" "1.0.0" "O(1)", "Says what kind of value a key has.";

    Expire "expire" -3 | "write fast", "@keyspace @write @fast", "", one("RW update"),
        "generic" "1.0.0" "O(1)", "Lets a counter go after some seconds.";
    PExpire "pexpire" -3 | "write fast", "@keyspace @write @fast", "", one("RW update"),
        "generic" "2.6.0" "O(1)", "Lets a counter go after some milliseconds.";
    ExpireAt "expireat" -3 | "write fast", "@keyspace @write @fast", "", one("RW update"),
        "generic" "1.2.0" "O(1)", "Lets a counter go at a time in seconds.";
    PExpireAt "pexpireat" -3 | "write fast", "@keyspace @write @fast", "", one("RW update"),
        "generic" "2.6.0" "O(1)", "Lets a counter go at a time in milliseconds.";
    Ttl "ttl" 2 | "readonly fast", "@keyspace @read @fast", VARIES, one("RO access"),
        "generic" "1.0.0" "O(1)", "Says how many seconds a counter has left.";
    PTtl "pttl" 2 | "readonly fast", "@keyspace @read @fast", VARIES, one("RO access"),
        "generic" "2.6.0" "O(1)", "Says how many milliseconds a counter has left.";
    Persist "persist" 2 | "write fast", "@keyspace @write @fast", "", one("RW update"),
        "generic" "2.2.0" "O(1)", "Keeps a counter that was to expire.";
    ExpireTime "expiretime" 2 | "readonly fast", "@keyspace @read @fast", "", one("RO access"),
        "generic" "7.0.0" "O(1)", "Says at which second a counter expires.";
    PExpireTime "pexpiretime" 2 | "readonly fast", "@keyspace @read @fast", "", one("RO access"),
        "generic" "7.0.0" "O(1)", "Says at which millisecond a counter expires.";

    Scan "scan" -2 | "readonly", "@keyspace @read @slow", "nondeterministic_output request_policy:special", None,
        "generic" "2.8.0" "O(1) a call, O(N) for all keys", "Lists keys, some at a time.";
    DbSize "dbsize" 1 | "readonly fast", "@keyspace @read @fast", "request_policy:all_shards response_policy:agg_sum", None,
        "server" "1.0.0" "O(1)", "Says how many keys there are.";
    FlushAll "flushall" -1 | "write", "@keyspace @write @slow @dangerous", SHARDS_ALL, None,
        "server" "1.0.0" "O(N) for all keys", "Removes everything.";
    FlushDb "flushdb" -1 | "write", "@keyspace @write @slow @dangerous", SHARDS_ALL, None,
        "server" "1.0.0" "O(N) for all keys", "Removes everything, for there is one database.";
    RandomKey "randomkey" 1 | "readonly", "@keyspace @read @slow", "request_policy:all_shards nondeterministic_output", None,
        "generic" "1.0.0" "O(1)", "Answers some key.";

    Ping "ping" -1 | "fast", "@fast @connection", SHARDS_ALL, None,
        "connection" "1.0.0" "O(1)", "Answers, to show that the server is there.";
    Echo "echo" 2 | "loading stale fast", "@fast @connection", "", None,
        "connection" "1.0.0" "O(1)", "Answers with what it was sent.";
    Hello "hello" -1 | OPEN, "@fast @connection", "", None,
        "connection" "6.0.0" "O(1)", "Chooses the version of the protocol, and may say who the client is.";
    Auth "auth" -2 | OPEN, "@fast @connection", "", None,
        "connection" "1.0.0" "O(1)", "Says who the client is.";
    Select "select" 2 | "loading stale fast", "@fast @connection", "", None,
        "connection" "1.0.0" "O(1)", "Chooses the database. There is one, number 0.";
    Quit "quit" -1 | OPEN, "@fast @connection", "", None,
        "connection" "1.0.0" "O(1)", "Closes the connection.";
    Reset "reset" 1 | OPEN, "@fast @connection", "", None,
        "connection" "6.2.0" "O(1)", "Makes the connection as new.";
    Multi "multi" 1 | "noscript loading stale fast allow_busy", "@fast @transaction", "", None,
        "transactions" "1.2.0" "O(1)", "Begins to gather commands.";
    Exec "exec" 1 | "noscript loading stale skip_slowlog", "@slow @transaction", "", None,
        "transactions" "1.2.0" "That of the commands", "Runs the gathered commands, nothing in between.";
    Discard "discard" 1 | "noscript loading stale fast allow_busy", "@fast @transaction", "", None,
        "transactions" "2.0.0" "O(N) for N commands", "Drops the gathered commands.";
    Info "info" -1 | "loading stale", "@slow @dangerous", "nondeterministic_output request_policy:all_shards response_policy:special", None,
        "server" "1.0.0" "O(1)", "Tells about the server, for people and monitoring.";
    Time "time" 1 | "loading stale fast", "@fast", VARIES, None,
        "server" "2.6.0" "O(1)", "Says what time the server has.";

    Client "client" -2 | "", "@slow", "", None,
        "connection" "2.4.0" "That of the subcommand", "Is about connections; its subcommands do the work.";
    ClientId "client|id" 2 | QUIET, "@slow @connection", "", None,
        "connection" "5.0.0" "O(1)", "Answers the number of this connection.";
    ClientGetName "client|getname" 2 | QUIET, "@slow @connection", "", None,
        "connection" "2.6.9" "O(1)", "Answers the name of this connection.";
    ClientSetName "client|setname" 3 | QUIET, "@slow @connection", "", None,
        "connection" "2.6.9" "O(1)", "Names this connection.";
    ClientSetInfo "client|setinfo" 4 | QUIET, "@slow @connection", "", None,
        "connection" "7.2.0" "O(1)", "Notes the client's library or its version.";
    ClientList "client|list" -2 | ADMIN, "@admin @slow @dangerous @connection", VARIES, None,
        "connection" "2.4.0" "O(N) for N connections", "Lists the connections.";
    ClientNoEvict "client|no-evict" 3 | ADMIN, "@admin @slow @dangerous @connection", "", None,
        "connection" "7.0.0" "O(1)", "Is accepted: no connection is closed to save memory.";
    ClientNoTouch "client|no-touch" 3 | QUIET, "@slow @connection", "", None,
        "connection" "7.2.0" "O(1)", "Is accepted: nobody asks when a key was last used.";
    ClientHelp "client|help" 2 | "loading stale", "@slow @connection", "", None,
        "connection" "5.0.0" "O(1)", "Lists the subcommands.";

    Command "command" -1 | "loading stale", "@slow @connection", ORDER_VARIES, None,
        "server" "2.8.13" "O(N) for N commands", "Tells about all commands, or about what its subcommand says.";
    CommandCount "command|count" 2 | "loading stale", "@slow @connection", "", None,
        "server" "2.8.13" "O(1)", "Says how many commands there are.";
    CommandDocs "command|docs" -2 | "loading stale", "@slow @connection", ORDER_VARIES, None,
        "server" "7.0.0" "O(N) for N commands", "Explains commands.";
    CommandInfo "command|info" -2 | "loading stale", "@slow @connection", ORDER_VARIES, None,
        "server" "2.8.13" "O(N) for N commands", "Tells about some commands.";
    CommandList "command|list" -2 | "loading stale", "@slow @connection", ORDER_VARIES, None,
        "server" "7.0.0" "O(N) for N commands", "Lists the names of commands.";
    CommandGetKeys "command|getkeys" -4 | "loading stale", "@slow @connection", "", None,
        "server" "2.8.13" "O(N) for N arguments", "Says which arguments of a request are keys.";
    CommandHelp "command|help" 2 | "loading stale", "@slow @connection", "", None,
        "server" "5.0.0" "O(1)", "Lists the subcommands.";

    Config "config" -2 | "", "@slow", "", None,
        "server" "2.0.0" "That of the subcommand", "Is about settings; its subcommands do the work.";
    ConfigGet "config|get" -3 | ADMIN, ADMIN_CATEGORIES, "", None,
        "server" "2.0.0" "O(N) for N settings", "Answers settings whose names match.";
    ConfigSet "config|set" -4 | ADMIN, ADMIN_CATEGORIES, "request_policy:all_nodes response_policy:all_succeeded", None,
        "server" "2.0.0" "O(N) for N settings", "Accepts settings as they already are; none changes while the server runs.";
    ConfigResetStat "config|resetstat" 2 | ADMIN, ADMIN_CATEGORIES, "", None,
        "server" "2.0.0" "O(1)", "Is accepted; the figures of INFO go on.";
    ConfigHelp "config|help" 2 | "loading stale", "@slow", "", None,
        "server" "5.0.0" "O(1)", "Lists the subcommands.";

    Function "function" -2 | "", "@slow", "", None,
        "scripting" "7.0.0" "That of the subcommand", "Is there for test suites that begin with FUNCTION FLUSH.";
    FunctionFlush "function|flush" -2 | "write noscript", "@write @slow @scripting", SHARDS_ALL, None,
        "scripting" "7.0.0" "O(1)", "Is accepted: there are no functions to remove.";
    FunctionHelp "function|help" 2 | "loading stale", "@slow @scripting", "", None,
        "scripting" "7.0.0" "O(1)", "Lists the subcommands.";
}
