//! Every command and flag, with help texts and examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::server::ServerUrl;

const EXAMPLES: &str = "Examples:
  tally serve                         start a server on this machine
  tally incr likes:post:42            add 1
  tally get likes:post:42             read it
  tally stats likes:post:42           read its rates, minimum and maximum
  tally list likes:                   list counters by prefix
  tally export -o counters.jsonl      write every counter to a file
  tally check ./tally-data            verify a data directory

--server and -o can come before the command or after it. The HTTP API is documented at http://127.0.0.1:7300/docs. Any Redis client works too:
  redis-cli -p 7379 INCR likes:post:42";

/// A durable counter service.
#[derive(Parser)]
#[command(name = "tally", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Subcommand)]
pub enum CliCommand {
    /// Start the server.
    Serve(ServeArgs),
    /// Add to a counter.
    Incr(IncrArgs),
    /// Subtract from a counter.
    Decr(DecrArgs),
    /// Read counters.
    Get(GetArgs),
    /// Read one counter with its statistics.
    Stats(StatsArgs),
    /// List counters in the order of their keys.
    List(ListArgs),
    /// Set a counter to a value. The ledger records it.
    Set(SetArgs),
    /// Delete a counter. Its ledger stays.
    Delete(DeleteArgs),
    /// Show the corrections of a counter.
    Ledger(LedgerArgs),
    /// Write every counter of a running server to a file.
    Export(ExportArgs),
    /// Load counters that another server exported.
    Import(ImportArgs),
    /// Copy the data directory of a running server.
    Backup(BackupArgs),
    /// Verify a data directory without changing it.
    Check(CheckArgs),
    /// Create and inspect a cluster.
    Cluster(ClusterArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print a manual page.
    Man(ManArgs),
    /// Print the version.
    #[command(after_help = VERSION_EXAMPLES)]
    Version,
}

const SERVE_EXAMPLES: &str = "Examples:
  tally serve
  tally serve --data /var/lib/tally --memory 4GiB
  tally serve --http 127.0.0.1:8000 --resp 127.0.0.1:6379 --log json
  tally serve --config /etc/tally.toml
  TALLY_DATA=/var/lib/tally tally serve

Precedence: flag, TALLY_… variable, file, default. The file is TOML:
  data = \"/var/lib/tally\"
  memory = \"4GiB\"
  [namespaces.views]
  consistency = \"best-effort\"        # best-effort, eventual, accurate or exact

SIGTERM, SIGHUP and Ctrl-C drain, flush and exit 0. A second signal stops at once.";

/// Settings of a server, as text: they are validated together with those of the file.
#[derive(Args)]
#[command(after_help = SERVE_EXAMPLES)]
#[allow(dead_code, reason = "settings are taken from the matches, which know the source of each")]
pub struct ServeArgs {
    /// Data directory; created if missing [default: ./tally-data]
    #[arg(long, value_name = "DIR", env = "TALLY_DATA")]
    pub data: Option<String>,
    /// Address of the HTTP API [default: 127.0.0.1:7300]
    #[arg(long, value_name = "ADDR", env = "TALLY_HTTP")]
    pub http: Option<String>,
    /// Address of the Redis protocol, or off [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR", env = "TALLY_RESP")]
    pub resp: Option<String>,
    /// Memory for counters, such as 512MiB or 4GiB, at least 160MiB; cold counters stay on disk [default: 1GiB]
    #[arg(long, value_name = "SIZE", env = "TALLY_MEMORY")]
    pub memory: Option<String>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TALLY_CONFIG")]
    pub config: Option<String>,
    /// Log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "TALLY_LOG")]
    pub log: Option<String>,
    /// Log level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", env = "TALLY_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// Allow addresses that other machines can reach, although there is no authentication yet [default: false]
    #[arg(long, value_name = "BOOL", env = "TALLY_INSECURE", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub insecure: Option<String>,
    /// Threads for the Redis protocol, 1 to 64 [default: one per two cores, at most 16]
    #[arg(long, value_name = "N", env = "TALLY_THREADS")]
    pub threads: Option<String>,
    /// Set the clock of the data directory back if it is ahead of the system clock [default: false]
    #[arg(long, value_name = "BOOL", env = "TALLY_RESET_CLOCK", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub reset_clock: Option<String>,
    /// What this process does in a cluster: api, worker or api,worker [default: api,worker]
    #[arg(long, value_name = "ROLE", env = "TALLY_ROLES", value_delimiter = ',')]
    pub roles: Vec<String>,
    /// Additional host name to accept on a loopback address, besides localhost, 127.0.0.1 and [::1]; may be repeated
    #[arg(long, value_name = "HOST", env = "TALLY_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_host: Vec<String>,
}

/// The server to call and the output format.
#[derive(Args)]
pub struct ClientArgs {
    /// Server as host and port; the default port is 7300
    #[arg(long, value_name = "URL", env = "TALLY_SERVER", default_value = "http://127.0.0.1:7300",
        value_parser = super::server::parse)]
    pub server: ServerUrl,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// The output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned columns.
    Table,
    /// JSON.
    Json,
}

const INCR_EXAMPLES: &str = "Examples:
  tally incr likes:post:42
  tally incr likes:post:42 5
  tally incr orders --request-id order-7781     a retry with the same id counts once
  tally incr likes:post:42 -o json";

/// The amount of `incr`.
fn amount_to_add(text: &str) -> Result<i64, String> {
    amount(text, "subtract", "decr")
}

/// The amount of `decr`.
fn amount_to_subtract(text: &str) -> Result<i64, String> {
    amount(text, "add", "incr")
}

fn amount(text: &str, other: &str, command: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(amount @ 1..) => Ok(amount),
        Ok(0) | Err(_) => Err(format!("it must be an integer from 1 to {}", i64::MAX)),
        Ok(negative) => Err(format!("to {other}, use `tally {command} KEY {}`", negative.unsigned_abs())),
    }
}

/// The value of a counter.
fn value(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("it must be an integer from {} to {}", i64::MIN, i64::MAX))
}

#[derive(Args)]
#[command(after_help = INCR_EXAMPLES)]
pub struct IncrArgs {
    /// Key of the counter
    pub key: String,
    /// Amount to add
    #[arg(value_name = "N", default_value_t = 1, value_parser = amount_to_add, allow_negative_numbers = true)]
    pub amount: i64,
    /// Request id: a retry with the same id counts once
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
    /// Key of the counter
    pub key: String,
    /// Amount to subtract
    #[arg(value_name = "N", default_value_t = 1, value_parser = amount_to_subtract, allow_negative_numbers = true)]
    pub amount: i64,
    /// Request id: a retry with the same id counts once
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const GET_EXAMPLES: &str = "Examples:
  tally get likes:post:42
  tally get likes:post:42 likes:post:43 views:post:42
  tally get -q likes:post:42                    only the number
  tally get likes:post:42 -o json | jq '.counters[0].value'";

#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct GetArgs {
    /// Keys of the counters
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    /// Print only the values, one per line
    #[arg(short, long, conflicts_with = "output")]
    pub quiet: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const STATS_EXAMPLES: &str = "Examples:
  tally stats likes:post:42
  tally stats likes:post:42 --server http://10.0.0.7:7300 -o json";

#[derive(Args)]
#[command(after_help = STATS_EXAMPLES)]
pub struct StatsArgs {
    /// Key of the counter
    pub key: String,
    #[command(flatten)]
    pub client: ClientArgs,
}

const LIST_EXAMPLES: &str = "Examples:
  tally list
  tally list likes:
  tally list likes: --limit 5000 -o json
  tally list --all";

#[derive(Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Only keys that begin with this
    #[arg(default_value = "")]
    pub prefix: String,
    /// Maximum number of counters to list
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "all",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// List all of them
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const SET_EXAMPLES: &str = "Examples:
  tally set likes:post:42 1000 --reason 'imported from the old site'
  tally set stock:sku:1 0 --expected 3 --reason 'sold elsewhere'     only if it is 3 now";

#[derive(Args)]
#[command(after_help = SET_EXAMPLES)]
pub struct SetArgs {
    /// Key of the counter
    pub key: String,
    /// The new value
    #[arg(value_name = "N", value_parser = value, allow_negative_numbers = true)]
    pub value: i64,
    /// Why, for the ledger
    #[arg(long)]
    pub reason: String,
    /// Set it only if this is its current value
    #[arg(long, value_name = "N", value_parser = value, allow_negative_numbers = true)]
    pub expected: Option<i64>,
    /// Request id: a retry with the same id changes nothing
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const DELETE_EXAMPLES: &str = "Examples:
  tally delete likes:post:42
  tally delete likes:post:42 --reason 'post removed'";

#[derive(Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub struct DeleteArgs {
    /// Key of the counter
    pub key: String,
    /// Why, for the ledger
    #[arg(long)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const LEDGER_EXAMPLES: &str = "Examples:
  tally ledger likes:post:42
  tally ledger likes:post:42 -o json | jq '.entries[].reason'";

#[derive(Args)]
#[command(after_help = LEDGER_EXAMPLES)]
pub struct LedgerArgs {
    /// Key of the counter
    pub key: String,
    #[command(flatten)]
    pub client: ClientArgs,
}

const EXPORT_EXAMPLES: &str = "Examples:
  tally export -o counters.jsonl
  tally export --server http://10.0.0.7:7300 | gzip > counters.jsonl.gz
  tally export --server old:7300 | tally import --server new:7300 --replace -

The server keeps serving. Each counter is exported as of one moment, with its statistics, times, expiry and ledger. Request \
ids of the last 24 hours are included, so that a retry at the new server does not count twice. The file has one JSON \
object per line and ends with totals and a checksum. To move while writes go on: export and import once, stop the writers, \
do both again with --replace, then point the writers at the new server.";

#[derive(Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct ExportArgs {
    /// Server as host and port; the default port is 7300
    #[arg(long, value_name = "URL", env = "TALLY_SERVER", default_value = "http://127.0.0.1:7300",
        value_parser = super::server::parse)]
    pub server: ServerUrl,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: String,
}

const IMPORT_EXAMPLES: &str = "Examples:
  tally import counters.jsonl
  tally import --server http://10.0.0.7:7300 --replace counters.jsonl
  gunzip -c counters.jsonl.gz | tally import -

The server keeps serving. Importing the same file again changes nothing, so an import that was interrupted can be run \
again. A counter that exists with different content is left alone and reported, unless --replace is given. A file is checked \
to its end before anything is imported; from standard input, counters are imported as they arrive.

Exit codes: 0 if everything is there, 1 if counters were refused or the import failed, 65 if the file is unfinished or \
damaged, 69 if no server answers.";

#[derive(Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct ImportArgs {
    /// File that `tally export` wrote; - is standard input
    pub file: PathBuf,
    /// Replace counters that exist with different content
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const BACKUP_EXAMPLES: &str = "Examples:
  tally backup /backup/tally-2026-03-02
  tally backup --server http://10.0.0.7:7300 /backup/tally-2026-03-02

The server keeps serving. The copy has everything that was acknowledged before the backup began. It is verified, and is a \
data directory: to restore it, stop the server, replace its data directory with the copy, and start it again. The \
directory must be empty or not exist. No command accepts an interrupted backup: remove it.

Exit codes: 0 if the copy is complete and intact, 1 if not, 69 if no server answers.";

#[derive(Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub struct BackupArgs {
    /// Directory to write to
    pub dir: PathBuf,
    #[command(flatten)]
    pub client: ClientArgs,
}

const CHECK_EXAMPLES: &str = "Examples:
  tally check ./tally-data
  tally check /backup/tally-data -o json

Exit codes: 0 if the data is intact, 65 if it is damaged (file and offset are printed), 1 if it cannot be checked: \
stop the server that uses it, or correct the path.";

#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct CheckArgs {
    /// Data directory
    pub dir: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

const CLUSTER_EXAMPLES: &str = "Examples:
  tally cluster init --config /etc/tally.toml
  tally cluster status --config /etc/tally.toml
  tally cluster status --config /etc/tally.toml -o json
  tally cluster reset-clock --config /etc/tally.toml --partition 3

The file names Kafka, Redis Cluster and PostgreSQL:
  [cluster]
  kafka = \"10.0.0.1:9092\"
  redis = [\"10.0.0.1:7000\"]
  postgres = \"postgres://tally@10.0.0.1/tally\"";

#[derive(Args)]
#[command(after_help = CLUSTER_EXAMPLES)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Create the topic and the tables. Running it again changes nothing.
    Init(ClusterFileArgs),
    /// Show partitions, owners, positions and lag.
    Status(ClusterFileArgs),
    /// Set the clocks of partitions back to the time of their brokers.
    ResetClock(ClusterResetArgs),
}

const RESET_EXAMPLES: &str = "Examples:
  tally cluster reset-clock --config /etc/tally.toml
  tally cluster reset-clock --config /etc/tally.toml --partition 3 -o json

For a broker whose clock was ahead: correct that clock first. The time of a partition is that of its newest record, so \
without a reset it stands still until it is reached. Counters that had expired but were not removed yet exist again; \
expiries set meanwhile are too late by the difference. A partition whose clock was right is not changed, as long as the \
clock of its broker is right; if that differs from this machine's by more than a minute, the command exits with 1.";

#[derive(Args)]
#[command(after_help = RESET_EXAMPLES)]
pub struct ClusterResetArgs {
    /// Reset only this partition; all of them by default
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    #[command(flatten)]
    pub file: ClusterFileArgs,
}

#[derive(Args)]
#[command(after_help = CLUSTER_EXAMPLES)]
pub struct ClusterFileArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TALLY_CONFIG")]
    #[allow(dead_code, reason = "taken from the matches, like the settings of a server")]
    pub config: Option<String>,
    /// Output format
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
    /// Shell
    #[arg(value_enum)]
    pub shell: Shell,
}

const MAN_EXAMPLES: &str = "Examples:
  tally man | man -l -
  tally man serve > /usr/local/share/man/man1/tally-serve.1";

#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// Command to describe; without one, all of Tally
    pub command: Option<String>,
}

const VERSION_EXAMPLES: &str = "Examples:
  tally version";
