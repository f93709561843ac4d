//! The log: structured, on stderr, as text or JSON.

use tracing::level_filters::LevelFilter;

use crate::config::LogFormat;

/// Starts the log. Ignored if it was already started.
pub fn start(format: LogFormat, level: LevelFilter) {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    let started = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "the log was already started");
    }
}
