//! Configuration in two stages: raw settings, each with its source; then validated and derived.
//!
//! Precedence: flag, environment, file, default. An invalid value stops the start with an error that names the setting,
//! the value, and what would be valid.

mod cluster;
mod environment;
mod file;
mod namespaces;
mod size;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use tally_core::limits::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
use tally_engine::StoredClock;
use tracing::level_filters::LevelFilter;

use crate::host::HttpHost;
use crate::limits::RESP_THREADS_MAX;
use crate::policy::Policies;

pub use cluster::{CLUSTER_KEYS, ClusterConfig};
pub use environment::{cluster as cluster_variables, warnings as environment_warnings};
pub use file::read as read_file;

/// Where a setting was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// On the command line.
    Flag,
    /// In the environment.
    Environment,
    /// In the file.
    File(PathBuf),
}

/// One setting, not validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its value.
    pub text: String,
    /// Where it was given.
    pub source: SettingSource,
}

/// All settings, not validated; `None` if not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawSettings {
    /// The data directory.
    pub data: Option<Setting>,
    /// The HTTP address.
    pub http: Option<Setting>,
    /// The RESP address.
    pub resp: Option<Setting>,
    /// The memory budget.
    pub memory: Option<Setting>,
    /// The log format.
    pub log: Option<Setting>,
    /// The log level.
    pub log_level: Option<Setting>,
    /// Whether to serve other machines without authentication.
    pub insecure: Option<Setting>,
    /// The number of RESP threads.
    pub threads: Option<Setting>,
    /// Whether to set a stored clock that is ahead back to the system's.
    pub reset_clock: Option<Setting>,
    /// Additional hosts to answer to, one setting each.
    pub allowed_hosts: Vec<Setting>,
    /// The policies of namespaces: namespace, key and setting.
    pub namespaces: Vec<(String, String, Setting)>,
    /// What this process does in a cluster, one setting each.
    pub roles: Vec<Setting>,
    /// The settings of a cluster, by key.
    pub cluster: Vec<(String, Setting)>,
}

impl RawSettings {
    /// These settings, with `lower` for those not given.
    #[must_use]
    pub fn over(self, lower: RawSettings) -> RawSettings {
        RawSettings {
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
            // Namespaces are configured only in the file.
            namespaces: lower.namespaces,
            roles: if self.roles.is_empty() { lower.roles } else { self.roles },
            cluster: {
                let is_lower = |(key, _): &(String, Setting)| !self.cluster.iter().any(|(given, _)| given == key);
                let lower: Vec<_> = lower.cluster.into_iter().filter(is_lower).collect();
                self.cluster.into_iter().chain(lower).collect()
            },
        }
    }
}

/// The log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable.
    Text,
    /// One JSON object per line.
    Json,
}

/// Validated settings.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The data directory.
    pub data: PathBuf,
    /// HTTP addresses: the first that can be bound is used.
    pub http: Vec<SocketAddr>,
    /// RESP addresses, in the same way; empty if RESP is off.
    pub resp: Vec<SocketAddr>,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Additional hosts to answer to when listening on a loopback address.
    pub allowed_hosts: Vec<HttpHost<'static>>,
    /// The log format.
    pub log: LogFormat,
    /// The log level.
    pub log_level: LevelFilter,
    /// The policy of each namespace.
    pub policies: Policies,
    /// The number of RESP threads; `None` for the default.
    pub threads: Option<usize>,
    /// What to do about a stored clock that is ahead of the system's.
    pub stored_clock: StoredClock,
    /// The cluster, if there is one.
    pub cluster: Option<ClusterConfig>,
}

/// An invalid setting.
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
/// Turns RESP off, in place of an address.
const RESP_OFF: &str = "off";
const ALLOWED_HOSTS: &str = "allowed_hosts";

/// Validates every setting and fills in the defaults.
pub fn validate(raw: &RawSettings) -> Result<ServerConfig, ConfigError> {
    let exposure = validate_insecure(raw.insecure.as_ref())?;
    let is_off = raw.resp.as_ref().is_some_and(|setting| setting.text.eq_ignore_ascii_case(RESP_OFF));
    let resp = if is_off { Vec::new() } else { validate_address("resp", raw.resp.as_ref(), RESP_DEFAULT, exposure)? };
    Ok(ServerConfig {
        data: validate_data(raw.data.as_ref())?,
        http: validate_address("http", raw.http.as_ref(), HTTP_DEFAULT, exposure)?,
        resp,
        memory_bytes: validate_memory(raw.memory.as_ref())?,
        allowed_hosts: raw.allowed_hosts.iter().map(validate_allowed_host).collect::<Result<_, _>>()?,
        log: validate_log(raw.log.as_ref())?,
        log_level: validate_log_level(raw.log_level.as_ref())?,
        policies: namespaces::validate(&raw.namespaces)?,
        threads: raw.threads.as_ref().map(validate_threads).transpose()?,
        stored_clock: match validate_switch("reset_clock", raw.reset_clock.as_ref())? {
            true => StoredClock::Reset,
            false => StoredClock::Keep,
        },
        cluster: cluster::validate(&raw.cluster, &raw.roles)?,
    })
}

/// The error for a value: `problem` says what is wrong with it and what would be valid.
fn invalid(key: &str, setting: &Setting, problem: &str) -> ConfigError {
    ConfigError(format!("{}: `{}` {problem}", place(key, setting), setting.text))
}

/// Where a setting was given, by name.
fn place(key: &str, setting: &Setting) -> String {
    match &setting.source {
        // A list is one setting; its flag is repeated for each item.
        SettingSource::Flag if key == ALLOWED_HOSTS => "`--allowed-host`".to_owned(),
        SettingSource::Flag => format!("`--{}`", key.replace('_', "-")),
        SettingSource::Environment => format!("`TALLY_{}`", key.to_uppercase().replace('.', "_")),
        SettingSource::File(path) => format!("`{key}` in {}", path.display()),
    }
}

fn validate_data(given: Option<&Setting>) -> Result<PathBuf, ConfigError> {
    match given {
        Some(setting) if setting.text.is_empty() => {
            Err(ConfigError(format!("{} is empty; name a directory", place("data", setting))))
        }
        Some(setting) => Ok(PathBuf::from(&setting.text)),
        None => Ok(PathBuf::from(DATA_DEFAULT)),
    }
}

/// Whether other machines may be served without authentication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exposure {
    LoopbackOnly,
    Insecure,
}

fn validate_insecure(given: Option<&Setting>) -> Result<Exposure, ConfigError> {
    Ok(if validate_switch("insecure", given)? { Exposure::Insecure } else { Exposure::LoopbackOnly })
}

/// A boolean setting; `false` by default.
fn validate_switch(key: &str, given: Option<&Setting>) -> Result<bool, ConfigError> {
    match given.map(|setting| (setting, setting.text.as_str())) {
        Some((_, "true" | "1" | "yes" | "on")) => Ok(true),
        None | Some((_, "false" | "0" | "no" | "off")) => Ok(false),
        Some((setting, _)) => Err(invalid(key, setting, "is not a boolean; use true or false")),
    }
}

/// A duration such as `1s`, not shorter than `min`.
fn validate_duration(key: &str, setting: &Setting, min: Duration) -> Result<Duration, ConfigError> {
    let duration = humantime::parse_duration(setting.text.trim()).ok().filter(|duration| *duration >= min);
    let problem = format!("is not a duration of at least {}; use one such as 1s", humantime::format_duration(min));
    duration.ok_or_else(|| invalid(key, setting, &problem))
}

fn validate_threads(setting: &Setting) -> Result<usize, ConfigError> {
    let threads = setting.text.trim().parse().ok().filter(|threads| (1..=RESP_THREADS_MAX).contains(threads));
    threads.ok_or_else(|| invalid("threads", setting, &format!("is not a number from 1 to {RESP_THREADS_MAX}")))
}

fn validate_address(
    key: &str,
    given: Option<&Setting>,
    default: &str,
    exposure: Exposure,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let unset = Setting { text: default.into(), source: SettingSource::Flag };
    let setting = given.unwrap_or(&unset);
    let or_off = if key == "resp" { ", or off" } else { "" };
    let expected = format!("use a host and a port without a scheme, such as {default}{or_off}");
    let addresses: Vec<SocketAddr> = match setting.text.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => return Err(invalid(key, setting, &format!("is not an address ({error}); {expected}"))),
    };
    if addresses.is_empty() {
        return Err(invalid(key, setting, &format!("has no address; {expected}")));
    }
    let Some(open) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) else {
        return Ok(addresses);
    };
    match exposure {
        Exposure::Insecure => Ok(addresses),
        Exposure::LoopbackOnly => {
            let problem = format!(
                "can be reached from other machines, and there is no authentication yet: anyone there could change \
                 every counter; listen on 127.0.0.1:{}, or add --insecure if the network is trusted",
                open.port()
            );
            Err(invalid(key, setting, &problem))
        }
    }
}

fn validate_allowed_host(setting: &Setting) -> Result<HttpHost<'static>, ConfigError> {
    let problem = "is not a host; use a name or an address without scheme, port or wildcard, such as tally.internal";
    HttpHost::of_setting(setting.text.trim()).ok_or_else(|| invalid(ALLOWED_HOSTS, setting, problem))
}

fn validate_memory(given: Option<&Setting>) -> Result<u64, ConfigError> {
    let Some(setting) = given else { return Ok(MEMORY_BYTES_DEFAULT) };
    let problem = "is not a size; use one such as 512MiB or 2GiB";
    let bytes = size::parse(&setting.text).ok_or_else(|| invalid("memory", setting, problem))?;
    if bytes < MEMORY_BYTES_MIN {
        let problem = format!("is below the minimum of {}MiB", MEMORY_BYTES_MIN >> 20);
        return Err(invalid("memory", setting, &problem));
    }
    Ok(bytes)
}

fn validate_log(given: Option<&Setting>) -> Result<LogFormat, ConfigError> {
    match given.map(|setting| (setting, setting.text.as_str())) {
        None | Some((_, "text")) => Ok(LogFormat::Text),
        Some((_, "json")) => Ok(LogFormat::Json),
        Some((setting, _)) => Err(invalid("log", setting, "is not a log format; use text or json")),
    }
}

fn validate_log_level(given: Option<&Setting>) -> Result<LevelFilter, ConfigError> {
    let Some(setting) = given else { return Ok(LevelFilter::INFO) };
    match setting.text.as_str() {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(invalid("log_level", setting, "is not a log level; use error, warn, info, debug or trace")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn given(text: &str) -> Option<Setting> {
        Some(Setting { text: text.into(), source: SettingSource::Flag })
    }

    #[test]
    fn without_settings_the_defaults_apply() {
        let config = validate(&RawSettings::default()).unwrap();
        assert_eq!(config.data, PathBuf::from("./tally-data"));
        assert_eq!(config.http, ["127.0.0.1:7300".parse().unwrap()]);
        assert_eq!(config.memory_bytes, 1 << 30);
    }

    #[test]
    fn an_address_off_loopback_needs_insecure() {
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let refused = validate(&RawSettings { http: given(open), ..RawSettings::default() }).unwrap_err();
            assert!(refused.0.contains("--insecure"), "{refused}");
            assert!(
                validate(&RawSettings { http: given(open), insecure: given("true"), ..RawSettings::default() }).is_ok()
            );
        }
        for own in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(validate(&RawSettings { http: given(own), ..RawSettings::default() }).is_ok(), "{own}");
        }
    }

    #[test]
    fn a_flag_takes_precedence_over_the_file() {
        let file = RawSettings { memory: given("1GiB"), log: given("json"), ..RawSettings::default() };
        let flag = RawSettings { memory: given("2GiB"), ..RawSettings::default() };
        let config = validate(&flag.over(file)).unwrap();
        assert_eq!((config.memory_bytes, config.log), (2 << 30, LogFormat::Json));
    }

    #[test]
    fn allowed_hosts_come_from_one_source() {
        let hosts =
            |text: &str| RawSettings { allowed_hosts: given(text).into_iter().collect(), ..RawSettings::default() };
        let allowed = |raw: RawSettings| validate(&raw).unwrap().allowed_hosts;
        assert_eq!(allowed(hosts("a.example").over(hosts("b.example"))), [HttpHost::Name("a.example".into())]);
        assert_eq!(allowed(RawSettings::default().over(hosts(" b.example"))), [HttpHost::Name("b.example".into())]);
        let refused = validate(&hosts("https://a.example")).unwrap_err();
        assert!(refused.0.contains("`--allowed-host`: `https://a.example` is not a host"), "{refused}");
    }

    #[test]
    fn an_invalid_value_is_named_with_what_would_be_valid() {
        let refused = |raw: RawSettings| validate(&raw).unwrap_err().0;
        let memory = |text: &str| refused(RawSettings { memory: given(text), ..RawSettings::default() });
        assert_eq!(memory("3"), "`--memory`: `3` is below the minimum of 160MiB");
        assert_eq!(memory("lots"), "`--memory`: `lots` is not a size; use one such as 512MiB or 2GiB");
        assert_eq!(
            refused(RawSettings { log_level: given("loud"), ..RawSettings::default() }),
            "`--log-level`: `loud` is not a log level; use error, warn, info, debug or trace"
        );
        assert_eq!(
            refused(RawSettings { threads: given("0"), ..RawSettings::default() }),
            "`--threads`: `0` is not a number from 1 to 64"
        );
        assert_eq!(
            refused(RawSettings { data: given(""), ..RawSettings::default() }),
            "`--data` is empty; name a directory"
        );
        let in_file = |text: &str| Setting { text: text.into(), source: SettingSource::File("tally.toml".into()) };
        let namespace = |name: &str, text: &str| vec![(name.into(), "consistency".into(), in_file(text))];
        assert_eq!(
            refused(RawSettings { namespaces: namespace("likes", "exactly"), ..RawSettings::default() }),
            "`namespaces.likes.consistency` in tally.toml: `exactly` is not a consistency; did you mean `exact`?"
        );
        assert_eq!(
            refused(RawSettings { namespaces: namespace("a:b", "exact"), ..RawSettings::default() }),
            "`namespaces.a:b.consistency` in tally.toml: `a:b` is not a namespace; a namespace is the part of a key \
             before its first `:`"
        );
    }
}
