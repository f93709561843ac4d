//! CPU time and memory of a process, from /proc.

/// CPU seconds of a process, user and system.
pub fn cpu_seconds(pid: u32) -> f64 {
    /// `USER_HZ` is 100 on every Linux platform.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// Resident memory of a process in bytes: current and peak.
pub fn resident_bytes(pid: u32) -> (f64, f64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() * 1024.0
    };
    (field("VmRSS:"), field("VmHWM:"))
}
