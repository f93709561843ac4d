//! The Redis protocol: compared with a real Redis, across crashes, and together with HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod cases;
mod client;
mod crash;
mod database;
mod draw;
mod expiry;
#[path = "../harness/mod.rs"]
mod harness;
mod increx;
mod info;
mod like_redis;
mod monitor;
mod together;
mod watch;

/// A number from an environment variable.
fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}

/// The time, in milliseconds since 1970.
fn clock_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The seed from the environment, or a new one each time.
fn seed() -> u64 {
    number_from_env("TALLY_SEED").unwrap_or_else(clock_ms)
}
