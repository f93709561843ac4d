//! Configuration in two stages: settings as typed, each with where it came from; then validated and derived.
//!
//! A flag wins over the environment, the environment over the file, the file over the default. A value that cannot
//! work stops the start and names the setting, its source, and what would work.

mod environment;
mod file;
mod size;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use tally_core::limits::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
use tally_engine::StoredClock;
use tracing::level_filters::LevelFilter;

use crate::hint::did_you_mean;
use crate::host::Host;
use crate::limits::RESP_THREADS_MAX;
use crate::policy::{Consistency, Policies};

pub use environment::warnings as environment_warnings;
pub use file::read as read_file;

/// Where a setting was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// On the command line.
    Flag,
    /// In the environment.
    Environment,
    /// In the file.
    File(PathBuf),
}

/// One setting as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What was typed.
    pub text: String,
    /// Where.
    pub source: Source,
}

/// The settings as typed; `None` where nothing was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Typed {
    /// The data directory.
    pub data: Option<Setting>,
    /// The HTTP address.
    pub http: Option<Setting>,
    /// The address of the Redis protocol.
    pub resp: Option<Setting>,
    /// The memory budget.
    pub memory: Option<Setting>,
    /// The format of the log.
    pub log: Option<Setting>,
    /// The level of the log.
    pub log_level: Option<Setting>,
    /// Whether to serve others without authentication.
    pub insecure: Option<Setting>,
    /// Threads of the Redis protocol.
    pub threads: Option<Setting>,
    /// Whether to take a stored clock back to the system's.
    pub reset_clock: Option<Setting>,
    /// Hosts to answer to besides those of the machine, each by itself.
    pub allowed_hosts: Vec<Setting>,
    /// The consistency of each namespace, by name.
    pub namespaces: Vec<(String, Setting)>,
}

impl Typed {
    /// These settings, with those of `lower` where nothing was typed.
    #[must_use]
    pub fn over(self, lower: Typed) -> Typed {
        Typed {
            data: self.data.or(lower.data),
            http: self.http.or(lower.http),
            resp: self.resp.or(lower.resp),
            memory: self.memory.or(lower.memory),
            log: self.log.or(lower.log),
            log_level: self.log_level.or(lower.log_level),
            insecure: self.insecure.or(lower.insecure),
            threads: self.threads.or(lower.threads),
            reset_clock: self.reset_clock.or(lower.reset_clock),
            allowed_hosts: if self.allowed_hosts.is_empty() { lower.allowed_hosts } else { self.allowed_hosts },
            // Only the file can name namespaces.
            namespaces: lower.namespaces,
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one object a line.
    Json,
}

/// Settings that work.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Where HTTP listens: what the address stands for, in order of preference.
    pub http: Vec<SocketAddr>,
    /// Where the Redis protocol listens; nowhere when empty.
    pub resp: Vec<SocketAddr>,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Hosts to answer to besides those of the machine, when only the machine itself can reach the server.
    pub allowed_hosts: Vec<Host<'static>>,
    /// The format of the log.
    pub log: LogFormat,
    /// The level of the log.
    pub log_level: LevelFilter,
    /// The policy of each namespace.
    pub policies: Policies,
    /// Threads of the Redis protocol; `None` leaves the number to the server.
    pub threads: Option<usize>,
    /// What to do about a stored clock that is ahead of the system's.
    pub stored_clock: StoredClock,
}

/// A setting that stops the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

const DATA_DEFAULT: &str = "./tally-data";
const HTTP_DEFAULT: &str = "127.0.0.1:7300";
const RESP_DEFAULT: &str = "127.0.0.1:7379";
/// What is typed instead of an address to have no Redis protocol.
const RESP_OFF: &str = "off";
const ALLOWED_HOSTS: &str = "allowed_hosts";

/// Checks every setting and fills in the defaults.
pub fn validate(typed: &Typed) -> Result<Config, ConfigError> {
    let exposure = validate_insecure(typed.insecure.as_ref())?;
    let is_off = typed.resp.as_ref().is_some_and(|setting| setting.text.eq_ignore_ascii_case(RESP_OFF));
    let resp = if is_off { Vec::new() } else { validate_address("resp", typed.resp.as_ref(), RESP_DEFAULT, exposure)? };
    Ok(Config {
        data: validate_data(typed.data.as_ref())?,
        http: validate_address("http", typed.http.as_ref(), HTTP_DEFAULT, exposure)?,
        resp,
        memory_bytes: validate_memory(typed.memory.as_ref())?,
        allowed_hosts: typed.allowed_hosts.iter().map(validate_allowed_host).collect::<Result<_, _>>()?,
        log: validate_log(typed.log.as_ref())?,
        log_level: validate_log_level(typed.log_level.as_ref())?,
        policies: validate_namespaces(&typed.namespaces)?,
        threads: typed.threads.as_ref().map(validate_threads).transpose()?,
        stored_clock: match validate_switch("reset_clock", typed.reset_clock.as_ref())? {
            true => StoredClock::Reset,
            false => StoredClock::Keep,
        },
    })
}

/// The error of one setting: its name, what was typed where, and what would work.
fn unusable(key: &str, setting: &Setting, hint: &str) -> ConfigError {
    let variable = format!("TALLY_{}", key.to_uppercase());
    let place = match &setting.source {
        // A list is one setting and takes its flag once for each item.
        Source::Flag if key == ALLOWED_HOSTS => "--allowed-host".to_owned(),
        Source::Flag => format!("--{}", key.replace('_', "-")),
        Source::Environment => format!("{variable} in the environment"),
        Source::File(path) => format!("`{key}` in {}", path.display()),
    };
    ConfigError(format!("{place} is `{}`, which cannot work: {hint}", setting.text))
}

fn validate_data(typed: Option<&Setting>) -> Result<PathBuf, ConfigError> {
    match typed {
        Some(setting) if setting.text.is_empty() => Err(unusable("data", setting, "name a directory")),
        Some(setting) => Ok(PathBuf::from(&setting.text)),
        None => Ok(PathBuf::from(DATA_DEFAULT)),
    }
}

/// Whether others may be served without authentication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exposure {
    LoopbackOnly,
    Insecure,
}

fn validate_insecure(typed: Option<&Setting>) -> Result<Exposure, ConfigError> {
    Ok(if validate_switch("insecure", typed)? { Exposure::Insecure } else { Exposure::LoopbackOnly })
}

/// A setting that is on or off; off unless it is typed.
fn validate_switch(key: &str, typed: Option<&Setting>) -> Result<bool, ConfigError> {
    match typed.map(|setting| (setting, setting.text.as_str())) {
        Some((_, "true" | "1" | "yes" | "on")) => Ok(true),
        None | Some((_, "false" | "0" | "no" | "off")) => Ok(false),
        Some((setting, _)) => Err(unusable(key, setting, "write true or false")),
    }
}

fn validate_threads(setting: &Setting) -> Result<usize, ConfigError> {
    let threads = setting.text.trim().parse().ok().filter(|threads| (1..=RESP_THREADS_MAX).contains(threads));
    threads.ok_or_else(|| unusable("threads", setting, &format!("write a number from 1 to {RESP_THREADS_MAX}")))
}

fn validate_address(
    key: &str,
    typed: Option<&Setting>,
    default: &str,
    exposure: Exposure,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let unset = Setting { text: default.into(), source: Source::Flag };
    let setting = typed.unwrap_or(&unset);
    let or_off = if key == "resp" { ", or off" } else { "" };
    let hint = &format!("write an address and a port, such as {default}, without a scheme{or_off}");
    let addresses: Vec<SocketAddr> = match setting.text.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => return Err(unusable(key, setting, &format!("{error}; {hint}"))),
    };
    let Some(open) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) else {
        return if addresses.is_empty() { Err(unusable(key, setting, hint)) } else { Ok(addresses) };
    };
    match exposure {
        Exposure::Insecure => Ok(addresses),
        Exposure::LoopbackOnly => {
            let hint = format!(
                "{} can be reached from other machines, and there is no authentication yet, so anyone there could \
                 change every counter. Listen on 127.0.0.1:{}, or add --insecure if the network is trusted",
                open.ip(),
                open.port()
            );
            Err(unusable(key, setting, &hint))
        }
    }
}

fn validate_allowed_host(setting: &Setting) -> Result<Host<'static>, ConfigError> {
    let hint = "write a host alone, without scheme, port or wildcard, such as tally.internal";
    Host::of_setting(setting.text.trim()).ok_or_else(|| unusable(ALLOWED_HOSTS, setting, hint))
}

fn validate_memory(typed: Option<&Setting>) -> Result<u64, ConfigError> {
    let Some(setting) = typed else { return Ok(MEMORY_BYTES_DEFAULT) };
    let hint = "write a size such as 512MiB or 2GiB";
    let bytes = size::parse(&setting.text).ok_or_else(|| unusable("memory", setting, hint))?;
    if bytes < MEMORY_BYTES_MIN {
        let hint = format!("at least {}MiB are needed", MEMORY_BYTES_MIN >> 20);
        return Err(unusable("memory", setting, &hint));
    }
    Ok(bytes)
}

fn validate_log(typed: Option<&Setting>) -> Result<LogFormat, ConfigError> {
    match typed.map(|setting| (setting, setting.text.as_str())) {
        None | Some((_, "text")) => Ok(LogFormat::Text),
        Some((_, "json")) => Ok(LogFormat::Json),
        Some((setting, _)) => Err(unusable("log", setting, "write text or json")),
    }
}

fn validate_log_level(typed: Option<&Setting>) -> Result<LevelFilter, ConfigError> {
    let Some(setting) = typed else { return Ok(LevelFilter::INFO) };
    match setting.text.as_str() {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(unusable("log_level", setting, "write error, warn, info, debug or trace")),
    }
}

fn validate_namespaces(typed: &[(String, Setting)]) -> Result<Policies, ConfigError> {
    let mut policies = Policies::default();
    for (namespace, setting) in typed {
        let key = format!("namespaces.{namespace}.consistency");
        if namespace.is_empty() || namespace.contains(':') {
            let hint = "a namespace is what stands before the first `:` of a key, so it is not empty and has none";
            return Err(unusable(&key, setting, hint));
        }
        let consistency = Consistency::from_name(&setting.text).ok_or_else(|| {
            let hint = did_you_mean(&setting.text, Consistency::ALL.iter().map(|consistency| consistency.name()));
            unusable(&key, setting, &hint)
        })?;
        policies.set_consistency(namespace, consistency);
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn typed(text: &str) -> Option<Setting> {
        Some(Setting { text: text.into(), source: Source::Flag })
    }

    #[test]
    fn nothing_typed_gives_the_defaults() {
        let config = validate(&Typed::default()).unwrap();
        assert_eq!(config.data, PathBuf::from("./tally-data"));
        assert_eq!(config.http, ["127.0.0.1:7300".parse().unwrap()]);
        assert_eq!(config.memory_bytes, 1 << 30);
    }

    #[test]
    fn an_address_others_can_reach_needs_insecure() {
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let refused = validate(&Typed { http: typed(open), ..Typed::default() }).unwrap_err();
            assert!(refused.0.contains("--insecure"), "{refused}");
            assert!(validate(&Typed { http: typed(open), insecure: typed("true"), ..Typed::default() }).is_ok());
        }
        for own in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(validate(&Typed { http: typed(own), ..Typed::default() }).is_ok(), "{own}");
        }
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let file = Typed { memory: typed("1GiB"), log: typed("json"), ..Typed::default() };
        let flag = Typed { memory: typed("2GiB"), ..Typed::default() };
        let config = validate(&flag.over(file)).unwrap();
        assert_eq!((config.memory_bytes, config.log), (2 << 30, LogFormat::Json));
    }

    #[test]
    fn allowed_hosts_come_from_one_place_alone() {
        let hosts = |text: &str| Typed { allowed_hosts: typed(text).into_iter().collect(), ..Typed::default() };
        let allowed = |typed: Typed| validate(&typed).unwrap().allowed_hosts;
        assert_eq!(allowed(hosts("a.example").over(hosts("b.example"))), [Host::Name("a.example".into())]);
        assert_eq!(allowed(Typed::default().over(hosts(" b.example"))), [Host::Name("b.example".into())]);
        let refused = validate(&hosts("https://a.example")).unwrap_err();
        assert!(refused.0.contains("--allowed-host is `https://a.example`"), "{refused}");
    }

    #[test]
    fn what_cannot_work_is_named_with_a_hint() {
        let refused = |typed: Typed| validate(&typed).unwrap_err().0;
        assert!(refused(Typed { memory: typed("1MiB"), ..Typed::default() }).contains("--memory is `1MiB`"));
        assert!(refused(Typed { log_level: typed("loud"), ..Typed::default() }).contains("--log-level is `loud`"));
        let exactly = vec![("likes".into(), Setting { text: "exactly".into(), source: Source::Flag })];
        assert!(refused(Typed { namespaces: exactly, ..Typed::default() }).contains("did you mean `exact`?"));
    }
}
