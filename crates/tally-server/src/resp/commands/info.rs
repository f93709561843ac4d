//! `INFO`: the sections and fields that tools expect.

use std::fmt::Write;

use tally_core::surface::{Health, MetricValue};

use super::connection::REDIS_VERSION;
use super::spec::{Execution, ImmediateCall, Spec};
use crate::resp::reply::Reply;
use crate::resp::server::RespServer;
use crate::resp::stats::CommandCounts;
use crate::resp::wire::Args;

pub static INFO: Spec = Spec::new("info", -1, Execution::Immediate(info))
    .redis(
        "loading stale",
        "@slow @dangerous",
        "nondeterministic_output request_policy:all_shards response_policy:special",
    )
    .syntax(&["[section...]"])
    .docs("server", "1.0.0", "O(1)", "Returns information and statistics about the server.");

/// Writes one section.
type InfoSection = fn(&RespServer, &mut String);

/// Shown only if it is named, or with `all` or `everything`.
const COMMAND_STATS: &str = "commandstats";

const SECTIONS: [(&str, InfoSection); 10] = [
    ("server", server_section),
    ("clients", clients),
    ("memory", memory),
    ("persistence", persistence),
    ("stats", stats),
    ("replication", replication),
    ("cpu", cpu),
    (COMMAND_STATS, command_stats),
    ("cluster", cluster),
    ("keyspace", keyspace),
];

fn info(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.verbatim(&sections(call.context.server, call.args));
}

/// The named sections. Without names, all of them except `commandstats`.
fn sections(server: &RespServer, args: Args<'_>) -> String {
    let wanted = |name: &str| {
        let is_default = name != COMMAND_STATS;
        (args.len() == 1 && is_default)
            || args.iter().skip(1).any(|word| {
                let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
                is(name.as_bytes()) || is(b"all") || is(b"everything") || (is(b"default") && is_default)
            })
    };
    let mut text = String::new();
    for (name, write) in SECTIONS.into_iter().filter(|(name, _)| wanted(name)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let (first, rest) = name.split_at(1);
        match name {
            "cpu" => line(&mut text, format_args!("# CPU")),
            _ => line(&mut text, format_args!("# {}{rest}", first.to_uppercase())),
        }
        write(server, &mut text);
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = write!(text, "{line}\r\n");
}

/// A metric of the engine by its name.
fn metric(server: &RespServer, name: &str) -> f64 {
    let metrics = server.service.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    match found.map(|metric| &metric.value) {
        Some(MetricValue::Counter(count)) => *count as f64,
        Some(MetricValue::CounterBy { counts, .. }) => counts.iter().map(|(_, count)| *count as f64).sum(),
        Some(MetricValue::Gauge(value)) => *value,
        Some(MetricValue::Histogram { count, .. }) => *count as f64,
        None => 0.0,
    }
}

fn server_section(server: &RespServer, text: &mut String) {
    let uptime = server.uptime.elapsed().as_secs();
    line(text, format_args!("redis_version:{REDIS_VERSION}"));
    line(text, format_args!("tally_version:{}", env!("CARGO_PKG_VERSION")));
    line(text, format_args!("redis_mode:standalone"));
    line(text, format_args!("os:{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, format_args!("arch_bits:{}", usize::BITS));
    line(text, format_args!("process_id:{}", std::process::id()));
    line(text, format_args!("run_id:{}", server.run_id()));
    line(text, format_args!("tcp_port:{}", server.settings.address.port()));
    line(text, format_args!("server_time_usec:{}", server.now().0 * 1000));
    line(text, format_args!("uptime_in_seconds:{uptime}"));
    line(text, format_args!("uptime_in_days:{}", uptime / 86_400));
}

fn clients(server: &RespServer, text: &mut String) {
    line(text, format_args!("connected_clients:{}", server.clients.count()));
    line(text, format_args!("cluster_connections:0"));
    line(text, format_args!("maxclients:{}", server.settings.connections_max));
    line(text, format_args!("blocked_clients:0"));
    line(text, format_args!("tracking_clients:0"));
}

fn memory(server: &RespServer, text: &mut String) {
    let used = metric(server, "tally_memory_bytes") as u64;
    line(text, format_args!("used_memory:{used}"));
    line(text, format_args!("used_memory_human:{}", human(used)));
    if let Some(rss) = crate::metrics::process_usage().map(|usage| usage.resident_bytes) {
        line(text, format_args!("used_memory_rss:{rss}"));
        line(text, format_args!("used_memory_rss_human:{}", human(rss)));
    }
    if let Some(peak) = crate::metrics::resident_bytes_peak() {
        line(text, format_args!("used_memory_peak:{}", peak.max(used)));
        line(text, format_args!("used_memory_peak_human:{}", human(peak.max(used))));
    }
    line(text, format_args!("maxmemory:{}", server.settings.memory_bytes));
    line(text, format_args!("maxmemory_human:{}", human(server.settings.memory_bytes)));
    line(text, format_args!("maxmemory_policy:noeviction"));
    line(text, format_args!("mem_clients_normal:{}", server.limits.unfinished.bytes() + server.limits.unread.bytes()));
    line(text, format_args!("mem_allocator:mimalloc"));
}

fn human(bytes: u64) -> String {
    let units = [(1u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

fn persistence(server: &RespServer, text: &mut String) {
    let health = server.service.health();
    line(text, format_args!("loading:{}", u8::from(health == Health::Recovering)));
    line(text, format_args!("async_loading:0"));
    line(text, format_args!("rdb_changes_since_last_save:{}", metric(server, "tally_dirty_counters") as u64));
    line(text, format_args!("rdb_bgsave_in_progress:0"));
    line(text, format_args!("rdb_last_bgsave_status:ok"));
    line(text, format_args!("aof_enabled:1"));
    line(text, format_args!("aof_rewrite_in_progress:0"));
    let writes_well =
        matches!(health, Health::Ready | Health::Recovering | Health::Closing | Health::Degraded { writes: true, .. });
    line(text, format_args!("aof_last_write_status:{}", if writes_well { "ok" } else { "err" }));
    line(text, format_args!("aof_current_size:{}", metric(server, "tally_persist_lag_bytes") as u64));
}

fn stats(server: &RespServer, text: &mut String) {
    line(text, format_args!("total_connections_received:{}", server.clients.ever()));
    let traffic = server.clients.traffic();
    line(text, format_args!("total_commands_processed:{}", traffic.commands));
    let rate = server.stats.commands_per_second(server.uptime.elapsed(), traffic.commands);
    line(text, format_args!("instantaneous_ops_per_sec:{rate}"));
    line(text, format_args!("total_net_input_bytes:{}", traffic.received_bytes));
    line(text, format_args!("total_net_output_bytes:{}", traffic.sent_bytes));
    line(text, format_args!("rejected_connections:{}", server.metrics.refused()));
    line(text, format_args!("expired_keys:{}", metric(server, "tally_expired_counters_total") as u64));
    line(text, format_args!("evicted_keys:0"));
    let replies = server.stats.replies();
    line(text, format_args!("keyspace_hits:{}", replies.hits));
    line(text, format_args!("keyspace_misses:{}", replies.misses));
    line(text, format_args!("total_error_replies:{}", replies.errors));
}

fn command_stats(server: &RespServer, text: &mut String) {
    for (name, CommandCounts { calls, micros, rejected, failed }) in server.stats.commands() {
        let each = micros as f64 / calls.max(1) as f64;
        line(
            text,
            format_args!(
                "cmdstat_{name}:calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},\
                 failed_calls={failed}"
            ),
        );
    }
}

fn replication(server: &RespServer, text: &mut String) {
    line(text, format_args!("role:master"));
    line(text, format_args!("connected_slaves:0"));
    line(text, format_args!("master_failover_state:no-failover"));
    line(text, format_args!("master_replid:{}", server.run_id()));
    line(text, format_args!("master_repl_offset:0"));
}

fn cpu(_: &RespServer, text: &mut String) {
    if let Some(usage) = crate::metrics::process_usage() {
        line(text, format_args!("used_cpu_sys:{:.6}", usage.system_seconds));
        line(text, format_args!("used_cpu_user:{:.6}", usage.user_seconds));
    }
}

fn cluster(_: &RespServer, text: &mut String) {
    line(text, format_args!("cluster_enabled:0"));
}

fn keyspace(server: &RespServer, text: &mut String) {
    let keys = metric(server, "tally_counters") as u64;
    let expires = metric(server, "tally_expiring_counters") as u64;
    if keys > 0 {
        line(text, format_args!("db0:keys={keys},expires={expires},avg_ttl=0"));
    }
}
