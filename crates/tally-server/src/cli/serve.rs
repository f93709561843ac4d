//! `tally serve`: settings from flags, environment and file, then the server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{EXIT_FAILED, EXIT_USAGE, output};
use crate::config::{self, ConfigError, RawSettings, ServerConfig, Setting, SettingSource};

/// Runs the server with the given settings.
pub fn run(matches: Option<&ArgMatches>) -> ExitCode {
    let settings = matches.map_or_else(|| Ok(RawSettings::default()), read_settings);
    let config = match settings.and_then(|settings| config::validate(&settings)) {
        Ok(config) => config,
        Err(error) => {
            output::error(&error);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    serve(config)
}

fn serve(config: ServerConfig) -> ExitCode {
    crate::log::start(config.log, config.log_level);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for warning in config::environment_warnings(names) {
        tracing::warn!("{warning}");
    }
    match crate::serve::run(config) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error);
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// All settings. clap has already given flags precedence over the environment; the file comes after both.
fn read_settings(matches: &ArgMatches) -> Result<RawSettings, ConfigError> {
    let settings = RawSettings {
        data: setting(matches, "data"),
        http: setting(matches, "http"),
        resp: setting(matches, "resp"),
        memory: setting(matches, "memory"),
        log: setting(matches, "log"),
        log_level: setting(matches, "log_level"),
        insecure: setting(matches, "insecure"),
        threads: setting(matches, "threads"),
        reset_clock: setting(matches, "reset_clock"),
        allowed_hosts: settings(matches, "allowed_host"),
        namespaces: Vec::new(),
        roles: settings(matches, "roles"),
        cluster: config::cluster_variables(variables()),
    };
    match setting(matches, "config") {
        Some(path) => Ok(settings.over(config::read_file(&PathBuf::from(path.text))?)),
        None => Ok(settings),
    }
}

/// The environment variables that are valid Unicode.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The settings of a cluster, from the environment and the file.
pub fn read_cluster_settings(matches: &ArgMatches) -> Result<RawSettings, ConfigError> {
    let settings = RawSettings { cluster: config::cluster_variables(variables()), ..RawSettings::default() };
    match setting(matches, "config") {
        Some(path) => Ok(settings.over(config::read_file(&PathBuf::from(path.text))?)),
        None => Ok(settings),
    }
}

fn setting(matches: &ArgMatches, name: &str) -> Option<Setting> {
    settings(matches, name).into_iter().next()
}

/// Every value of a setting that may be repeated.
fn settings(matches: &ArgMatches, name: &str) -> Vec<Setting> {
    let source = match matches.value_source(name) {
        Some(ValueSource::EnvVariable) => SettingSource::Environment,
        _ => SettingSource::Flag,
    };
    let texts = matches.get_many::<String>(name).into_iter().flatten();
    texts.map(|text| Setting { text: text.clone(), source: source.clone() }).collect()
}
