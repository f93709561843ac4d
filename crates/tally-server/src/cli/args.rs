//! Every command and flag, with the help and the examples people see.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::server::ServerUrl;

const EXAMPLES: &str = "Examples:
  tally serve                         start a server on this machine
  tally incr likes:post:42            count one
  tally get likes:post:42             read it
  tally stats likes:post:42           its rate, its extremes
  tally check ./tally-data            verify a data directory

The server documents its HTTP interface itself, at http://127.0.0.1:7300/docs, and answers any Redis client:
  redis-cli -p 7379 INCR likes:post:42";

/// A durable counter service: increments are combined, journalled and never lost.
#[derive(Parser)]
#[command(name = "tally", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start the server.
    Serve(ServeArgs),
    /// Add to a counter.
    Incr(IncrArgs),
    /// Take away from a counter.
    Decr(DecrArgs),
    /// Read counters.
    Get(GetArgs),
    /// Read one counter with its history.
    Stats(StatsArgs),
    /// Verify a data directory without changing it.
    Check(CheckArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

const SERVE_EXAMPLES: &str = "Examples:
  tally serve
  tally serve --data /var/lib/tally --memory 4GiB
  tally serve --http 127.0.0.1:8000 --resp 127.0.0.1:6379 --log json
  tally serve --config /etc/tally.toml
  TALLY_DATA=/var/lib/tally tally serve

A flag wins over its TALLY_… variable, that over the file, that over the default. The file is TOML:
  data = \"/var/lib/tally\"
  memory = \"4GiB\"
  [namespaces.views]
  consistency = \"best-effort\"        # best-effort, eventual, accurate or exact

SIGTERM and Ctrl-C finish what is under way, flush, and exit 0; a second one stops at once.";

/// What a server is started with. All are read as text here and checked afterwards, file included.
#[derive(Args)]
#[command(after_help = SERVE_EXAMPLES)]
#[allow(dead_code, reason = "the settings are taken from the matches, which also know where each was typed")]
pub struct ServeArgs {
    /// The data directory; created if need be [default: ./tally-data]
    #[arg(long, value_name = "DIR", env = "TALLY_DATA")]
    pub data: Option<String>,
    /// Where HTTP listens [default: 127.0.0.1:7300]
    #[arg(long, value_name = "ADDR", env = "TALLY_HTTP")]
    pub http: Option<String>,
    /// Where the Redis protocol listens, or off [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR", env = "TALLY_RESP")]
    pub resp: Option<String>,
    /// Memory budget for counters and request ids; colder ones stay on disk [default: 1GiB]
    #[arg(long, value_name = "SIZE", env = "TALLY_MEMORY")]
    pub memory: Option<String>,
    /// A TOML file with settings
    #[arg(long, value_name = "FILE", env = "TALLY_CONFIG")]
    pub config: Option<String>,
    /// How the log is written: text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "TALLY_LOG")]
    pub log: Option<String>,
    /// What the log leaves out: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", env = "TALLY_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// Listen where other machines can reach it, although there is no authentication yet
    #[arg(long, value_name = "BOOL", env = "TALLY_INSECURE", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub insecure: Option<String>,
    /// Threads that serve the Redis protocol [default: one for every two cores]
    #[arg(long, value_name = "N", env = "TALLY_THREADS")]
    pub threads: Option<String>,
    /// If the data directory's clock is ahead of the system's, set it back
    #[arg(long, value_name = "BOOL", env = "TALLY_RESET_CLOCK", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub reset_clock: Option<String>,
    /// A host to answer to on a loopback address, besides localhost, 127.0.0.1 and [::1]; may be given more than once
    #[arg(long, value_name = "HOST", env = "TALLY_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_host: Vec<String>,
}

/// Which server to talk to, and how to show its answers.
#[derive(Args)]
pub struct ClientArgs {
    /// The server, by host and port; port 7300 when only a host is named
    #[arg(long, value_name = "URL", env = "TALLY_SERVER", default_value = "http://127.0.0.1:7300",
        value_parser = super::server::parse)]
    pub server: ServerUrl,
    /// How answers are shown
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How answers are shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

const INCR_EXAMPLES: &str = "Examples:
  tally incr likes:post:42
  tally incr likes:post:42 5
  tally incr orders --request-id order-7781     counts once, however often it is sent
  tally incr likes:post:42 -o json";

/// The amount of `incr`.
fn added(text: &str) -> Result<i64, String> {
    amount(text, "take away", "decr")
}

/// The amount of `decr`.
fn taken(text: &str) -> Result<i64, String> {
    amount(text, "add", "incr")
}

fn amount(text: &str, other: &str, command: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(amount @ 1..) => Ok(amount),
        Ok(0) | Err(_) => Err(format!("it must be an integer from 1 to {}", i64::MAX)),
        Ok(negative) => Err(format!("to {other}, use `tally {command} KEY {}`", negative.unsigned_abs())),
    }
}

#[derive(Args)]
#[command(after_help = INCR_EXAMPLES)]
pub struct IncrArgs {
    /// The counter
    pub key: String,
    /// How much to add
    #[arg(value_name = "N", default_value_t = 1, value_parser = added, allow_negative_numbers = true)]
    pub amount: i64,
    /// Names the request, so that sending it again counts once
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const DECR_EXAMPLES: &str = "Examples:
  tally decr stock:sku:1
  tally decr stock:sku:1 3
  tally decr stock:sku:1 --request-id order-7781";

#[derive(Args)]
#[command(after_help = DECR_EXAMPLES)]
pub struct DecrArgs {
    /// The counter
    pub key: String,
    /// How much to take away
    #[arg(value_name = "N", default_value_t = 1, value_parser = taken, allow_negative_numbers = true)]
    pub amount: i64,
    /// Names the request, so that sending it again counts once
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const GET_EXAMPLES: &str = "Examples:
  tally get likes:post:42
  tally get likes:post:42 likes:post:43 views:post:42
  tally get likes:post:42 -o json | jq '.counters[0].value'";

#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct GetArgs {
    /// The counters
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const STATS_EXAMPLES: &str = "Examples:
  tally stats likes:post:42
  tally stats likes:post:42 --server http://10.0.0.7:7300 -o json";

#[derive(Args)]
#[command(after_help = STATS_EXAMPLES)]
pub struct StatsArgs {
    /// The counter
    pub key: String,
    #[command(flatten)]
    pub client: ClientArgs,
}

const CHECK_EXAMPLES: &str = "Examples:
  tally check ./tally-data
  tally check /backup/tally-data -o json

Exits 0 when everything is as it was written. Exits 65 when something is damaged, and names the file and the byte.
Exits 1 when it could not be checked: stop the server that has it, or see whether the path is right.";

#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct CheckArgs {
    /// The data directory
    pub dir: PathBuf,
    /// How the report is shown
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

const COMPLETIONS_EXAMPLES: &str = "Examples:
  tally completions bash > /etc/bash_completion.d/tally
  tally completions zsh > \"${fpath[1]}/_tally\"
  tally completions fish > ~/.config/fish/completions/tally.fish";

#[derive(Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}
