//! Metrics of this process from the operating system. Linux only; elsewhere they are absent.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use rustix::process::{Resource, getrlimit};

use super::NO_EXEMPLAR;

/// Memory and CPU time of the process.
pub struct ProcessUsage {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    virtual_bytes: u64,
    /// User CPU time.
    pub user_seconds: f64,
    /// System CPU time.
    pub system_seconds: f64,
    /// From the boot of the machine to the start of the process.
    started_after_boot: Duration,
}

/// Reads `/proc/self/stat`; `None` if there is none.
pub fn process_usage() -> Option<ProcessUsage> {
    parse_stat(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse_stat(stat: &str) -> Option<ProcessUsage> {
    // The second field is the name of the program in parentheses, which may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Some(ProcessUsage {
        resident_bytes: number(21)? * rustix::param::page_size() as u64,
        virtual_bytes: number(20)?,
        user_seconds: number(11)? as f64 / ticks,
        system_seconds: number(12)? as f64 / ticks,
        started_after_boot: Duration::from_secs_f64(number(19)? as f64 / ticks),
    })
}

/// Peak resident memory, from `/proc/self/status`; `None` if there is no such file.
pub fn resident_bytes_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// When the machine booted, in seconds since 1970.
fn boot_time_s() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Encodes the standard process metrics of Prometheus client libraries.
pub fn encode_process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(usage) = process_usage() else { return Ok(()) };
    let help = "User and system CPU time of the process.";
    let mut cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
    cpu.encode_counter(&(usage.user_seconds + usage.system_seconds), NO_EXEMPLAR)?;
    let started = boot_time_s().map(|boot_s| boot_s as f64 + usage.started_after_boot.as_secs_f64());
    // The directory itself is open while it is listed.
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as f64);
    let open_max = getrlimit(Resource::Nofile).current.map(|max| max as f64);
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory.", Some(usage.resident_bytes as f64)),
        ("process_virtual_memory_bytes", "Address space.", Some(usage.virtual_bytes as f64)),
        ("process_start_time_seconds", "When the process started, in seconds since 1970.", started),
        ("process_open_fds", "Open file descriptors.", open),
        ("process_max_fds", "Limit on open file descriptors.", open_max),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_name_of_the_program_does_not_disturb_the_fields_after_it() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let usage = parse_stat(&format!("1 (a ) 9 9 (b)) {}", fields.join(" "))).unwrap();
        // Counted from 1, as in proc(5).
        assert_eq!(usage.virtual_bytes, 23);
        assert_eq!(usage.resident_bytes, 24 * rustix::param::page_size() as u64);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!((usage.user_seconds, usage.system_seconds), (14.0 / ticks, 15.0 / ticks));
        assert!((usage.started_after_boot.as_secs_f64() * ticks - 22.0).abs() < 0.01);
        assert!(parse_stat("1 (tally) S 1").is_none());
    }
}
