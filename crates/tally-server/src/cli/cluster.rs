//! `tally cluster`: creates the topic and the tables, shows the status, and resets clocks.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;
use serde_json::json;
use tally_cluster::kafka::topic::{self, Created, NewJournal};
use tally_cluster::kafka::{Appender, NO_BROKER_TIME, Tailer, TopicError};
use tally_cluster::postgres::{PartitionRow, Pg};
use tally_cluster::rpc::{PartitionStatus, Role, RpcClient, RpcRequest, RpcResponse};
use tally_core::limits::CLOCK_AHEAD_REPORTED_MS;
use tally_core::time::{Millis, Position};
use tally_engine::clock::{Clock, SystemClock};

use super::args::{ClusterArgs, ClusterCommand, ClusterFileArgs, ClusterResetArgs, Output};
use super::{EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE, output, serve};
use crate::config::{self, ClusterConfig};
use crate::http::answer::Timestamp;

/// How long a worker may take to say what it hosts.
const STATUS_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub fn run(args: &ClusterArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let (file, command) = match &args.command {
        ClusterCommand::Init(file) => (file, "init"),
        ClusterCommand::Status(file) => (file, "status"),
        ClusterCommand::ResetClock(args) => (&args.file, "reset-clock"),
    };
    let config = match read_config(matches.and_then(|matches| matches.subcommand_matches(command))) {
        Ok(config) => config,
        Err(why) => {
            output::error(&why);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string(), file),
    };
    let done = match &args.command {
        ClusterCommand::Init(file) => runtime.block_on(init(&config, file)),
        ClusterCommand::Status(file) => runtime.block_on(status(&config, file)),
        ClusterCommand::ResetClock(args) => runtime.block_on(reset_clock(&config, args)),
    };
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(why) => failed(&why, file),
    }
}

fn failed(why: &str, file: &ClusterFileArgs) -> ExitCode {
    match file.output {
        Output::Json => output::error_json(&json!({ "title": "The cluster command failed", "detail": why })),
        Output::Table => output::error(&why),
    }
    ExitCode::from(EXIT_FAILED)
}

fn read_config(matches: Option<&ArgMatches>) -> Result<ClusterConfig, String> {
    let settings = matches.map_or_else(|| Ok(config::RawSettings::default()), serve::read_cluster_settings);
    let config = settings.and_then(|settings| config::validate(&settings)).map_err(|error| error.0)?;
    config.cluster.ok_or_else(|| {
        "there is no cluster: give a file with a table [cluster] with --config, or set TALLY_CLUSTER_KAFKA, \
         TALLY_CLUSTER_REDIS and TALLY_CLUSTER_POSTGRES"
            .to_owned()
    })
}

/// A partition that is at most this many records behind is shown as ok.
const LAG_OK: u64 = 100;

/// Attempts to read the journal's end.
const END_TRIES: u32 = 3;

/// Creates the topic and the tables. Doing it again changes nothing.
async fn init(config: &ClusterConfig, args: &ClusterFileArgs) -> Result<ExitCode, String> {
    let pg = Pg::new(&config.postgres).map_err(|error| error.to_string())?;
    let migration = pg.migrate().await.map_err(|error| error.to_string())?;
    let stored = pg.partitions().await.map_err(|error| error.to_string())?;
    let known = stored.len() as u32;
    if known != 0 && known != config.partitions {
        return Err(format!(
            "PostgreSQL has the state of {known} partitions, not {}. The number cannot be changed, because counters would \
             move to other partitions. Set `partitions = {known}`",
            config.partitions
        ));
    }
    let new = NewJournal {
        partitions: config.partitions,
        replication: config.replication,
        retention_ms: u64::try_from(config.retention.as_millis()).unwrap_or(u64::MAX),
    };
    if stored.iter().any(|partition| partition.position > Position(0)) {
        check_journal(config, &stored).await?;
    }
    let created = topic::create(&config.kafka, new).await.map_err(|error| error.to_string())?;
    pg.create_partitions(config.partitions).await.map_err(|error| error.to_string())?;
    let topic_text = if created == Created::Created { "created" } else { "exists" };
    let schema_text = if migration.from == migration.to { "exists" } else { "created" };
    match args.output {
        Output::Json => output::json(&json!({
            "topic": config.kafka.topic, "partitions": config.partitions, "topic_state": topic_text,
            "schema_version": migration.to, "schema_state": schema_text,
        })),
        Output::Table => output::table(&[
            vec!["topic".to_owned(), config.kafka.topic.clone(), topic_text.to_owned()],
            vec!["partitions".to_owned(), config.partitions.to_string(), String::new()],
            vec!["schema".to_owned(), format!("version {}", migration.to), schema_text.to_owned()],
        ]),
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a topic that does not have the records of which PostgreSQL has the state.
async fn check_journal(config: &ClusterConfig, stored: &[PartitionRow]) -> Result<(), String> {
    match topic::check(&config.kafka).await {
        Err(TopicError::NoTopic(topic)) => {
            return Err(format!(
                "the topic `{topic}` does not exist, but PostgreSQL has state that came from it. Restore the topic, or use an \
                 empty database"
            ));
        }
        checked => checked.map_err(|error| error.to_string())?,
    };
    let tailer = Tailer::new(&config.kafka).map_err(|error| error.to_string())?;
    tokio::task::block_in_place(|| {
        for PartitionRow { partition, position, meta, .. } in stored {
            let clock = meta.map_or(Millis(u64::MAX), |meta| meta.clock);
            tailer.open_after(*partition, *position, clock).map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

/// Shows partitions, owners, positions and lag. Exits with [`EXIT_UNAVAILABLE`] if a partition has no worker.
async fn status(config: &ClusterConfig, args: &ClusterFileArgs) -> Result<ExitCode, String> {
    let pg = Pg::new(&config.postgres).map_err(|error| error.to_string())?;
    let cluster = pg.identify(&config.kafka.topic).await.map_err(|error| error.to_string())?;
    let rows = pg.partitions().await.map_err(|error| error.to_string())?;
    let client = RpcClient::new(config.to_workers.clone(), cluster);
    let mut hosted: BTreeMap<u32, PartitionStatus> = BTreeMap::new();
    let owners: std::collections::BTreeSet<&String> = rows.iter().filter_map(|row| row.owner.as_ref()).collect();
    for owner in owners {
        let deadline = tokio::time::Instant::now() + STATUS_MAX;
        match client.call(owner, &RpcRequest::Status, deadline).await {
            Ok(RpcResponse::Status { partitions }) => {
                let owned = partitions.into_iter().filter(|status| status.role == Role::Owner);
                hosted.extend(owned.map(|status| (status.partition, status)));
            }
            Ok(_) => {}
            Err(error) => output::error(&error),
        }
    }
    let tailer = Tailer::new(&config.kafka).map_err(|error| error.to_string())?;
    let mut table = vec![
        ["partition", "owner", "epoch", "applied", "persisted", "end", "lag", "health"].map(str::to_owned).to_vec(),
    ];
    let mut partitions = Vec::new();
    for row in rows {
        let end = tokio::task::block_in_place(|| end_of(&tailer, row.partition)).map_err(|error| error.to_string())?;
        let live = hosted.get(&row.partition);
        let applied = live.map(|live| live.applied);
        let lag = applied.map(|applied| end.0.saturating_sub(applied.0));
        let health = match (live, lag) {
            (None, _) => "no worker answers",
            (_, Some(lag)) if lag <= LAG_OK => "ok",
            _ => "behind",
        };
        let show = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        table.push(vec![
            row.partition.to_string(),
            row.owner.clone().unwrap_or_else(|| "-".to_owned()),
            row.epoch.to_string(),
            show(applied.map(|applied| applied.0)),
            row.position.0.to_string(),
            end.0.to_string(),
            show(lag),
            health.to_owned(),
        ]);
        partitions.push(json!({
            "partition": row.partition, "owner": row.owner, "epoch": row.epoch, "applied": applied.map(|applied| applied.0),
            "persisted": row.position.0, "end": end.0, "lag": lag, "health": health,
        }));
    }
    match args.output {
        Output::Json => output::json(&json!({ "topic": config.kafka.topic, "partitions": partitions })),
        Output::Table => output::table(&table),
    }
    let is_hosted = partitions.iter().all(|partition| partition["applied"].is_u64());
    Ok(if is_hosted { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNAVAILABLE) })
}

/// Appends a reset of the clock to each partition, and shows what it changes.
async fn reset_clock(config: &ClusterConfig, args: &ClusterResetArgs) -> Result<ExitCode, String> {
    let pg = Pg::new(&config.postgres).map_err(|error| error.to_string())?;
    pg.check_schema().await.map_err(|error| error.to_string())?;
    let mut rows = pg.partitions().await.map_err(|error| error.to_string())?;
    if let Some(partition) = args.partition {
        let partitions = rows.len();
        rows.retain(|row| row.partition == partition);
        if rows.is_empty() {
            return Err(format!(
                "--partition: there is no partition {partition}; they are numbered from 0, and there are {partitions}"
            ));
        }
    }
    let appender = Appender::new(&config.kafka).map_err(|error| error.to_string())?;
    let mut table = vec![["partition", "position", "clock before", "clock now", "result"].map(str::to_owned).to_vec()];
    let mut partitions = Vec::new();
    let mut some_wrong = false;
    for row in rows {
        let partition = row.partition;
        let appended = appender.reset_clock(partition).await;
        let appended = appended.map_err(|error| {
            let done = partitions.len();
            format!("partition {partition}: {error}. {done} partitions before it were reset; it is safe to run the command again")
        })?;
        let position = appended.end.0.saturating_sub(1);
        let before = row.meta.map(|meta| meta.clock);
        let set_back_ms = before.zip(appended.at).map(|(before, now)| before.since(now));
        let here = SystemClock.wall();
        let differs = |now: Millis| now.since(here).max(here.since(now)) > CLOCK_AHEAD_REPORTED_MS;
        let is_wrong = appended.at.is_none_or(differs);
        some_wrong |= is_wrong;
        let result = match set_back_ms {
            _ if appended.at.is_none() => format!("not reset: {NO_BROKER_TIME}"),
            _ if is_wrong => {
                "the clocks of the broker and of this machine differ: correct the wrong one, and run it again"
                    .to_owned()
            }
            Some(set_back_ms) if set_back_ms > 0 => {
                format!("set back by {}", humantime::format_duration(Duration::from_millis(set_back_ms)))
            }
            _ => "was not ahead".to_owned(),
        };
        let time = |at: Option<Millis>| at.map(|at| Timestamp(at).to_string());
        let show = |at: Option<Millis>| time(at).unwrap_or_else(|| "-".to_owned());
        table.push(vec![partition.to_string(), position.to_string(), show(before), show(appended.at), result.clone()]);
        partitions.push(json!({
            "partition": partition, "position": position, "clock_before": time(before), "clock": time(appended.at),
            "set_back_ms": set_back_ms, "result": result,
        }));
    }
    match args.file.output {
        Output::Json => output::json(&json!({ "topic": config.kafka.topic, "partitions": partitions })),
        Output::Table => output::table(&table),
    }
    Ok(if some_wrong { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

/// The journal's end. Retries while the partition has no leader, as happens briefly after a broker fails.
fn end_of(tailer: &Tailer, partition: u32) -> Result<Position, TopicError> {
    let mut tries = 1;
    loop {
        match tailer.end(partition) {
            Err(error) if error.is_transient() && tries < END_TRIES => tries += 1,
            answered => return answered,
        }
    }
}
