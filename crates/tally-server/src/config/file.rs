//! The configuration file: TOML, read key by key, so that every error names its key.

use std::path::Path;

use toml::{Table, Value};

use super::namespaces::NAMESPACE_KEYS;
use super::{CLUSTER_KEYS, ConfigError, RawSettings, Setting, SettingSource};
use crate::hint::did_you_mean;
use crate::limits::CONFIG_BYTES_MAX;

const KEYS: [&str; 13] = [
    "data",
    "http",
    "resp",
    "memory",
    "log",
    "log_level",
    "insecure",
    "threads",
    "reset_clock",
    "allowed_hosts",
    "namespaces",
    "roles",
    "cluster",
];

/// Reads the settings of a file.
pub fn read(path: &Path) -> Result<RawSettings, ConfigError> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ConfigError(format!("cannot read the configuration file {}: {why}", path.display()))
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if length > CONFIG_BYTES_MAX {
        return Err(unreadable(&format!("it has {length} bytes; the maximum is {CONFIG_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error))?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<RawSettings, ConfigError> {
    let table: Table =
        toml::from_str(text).map_err(|error| ConfigError(format!("{} is not valid TOML: {error}", path.display())))?;
    let file = File { path };
    let mut settings = RawSettings::default();
    for (key, value) in &table {
        match key.as_str() {
            "data" => settings.data = Some(file.text(key, value)?),
            "http" => settings.http = Some(file.text(key, value)?),
            "resp" => settings.resp = Some(file.text(key, value)?),
            "memory" => settings.memory = Some(file.size(key, value)?),
            "log" => settings.log = Some(file.text(key, value)?),
            "log_level" => settings.log_level = Some(file.text(key, value)?),
            "insecure" => settings.insecure = Some(file.boolean(key, value)?),
            "threads" => settings.threads = Some(file.number(key, value)?),
            "reset_clock" => settings.reset_clock = Some(file.boolean(key, value)?),
            "allowed_hosts" => settings.allowed_hosts = file.list(key, value)?,
            "roles" => settings.roles = file.list(key, value)?,
            "cluster" => settings.cluster = file.cluster(value)?,
            "namespaces" => settings.namespaces = file.namespaces(value)?,
            unknown => return Err(file.unknown(unknown, unknown, &KEYS)),
        }
    }
    Ok(settings)
}

/// The path of the file, for errors and sources.
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn setting(&self, text: impl Into<String>) -> Setting {
        Setting { text: text.into(), source: SettingSource::File(self.path.to_owned()) }
    }

    fn text(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::String(text) => Ok(self.setting(text)),
            other => Err(self.wrong_type(key, other, "a string")),
        }
    }

    fn size(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::String(text) => Ok(self.setting(text)),
            Value::Integer(bytes) => Ok(self.setting(bytes.to_string())),
            other => Err(self.wrong_type(key, other, "a size such as \"1GiB\"")),
        }
    }

    fn number(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::Integer(number) => Ok(self.setting(number.to_string())),
            other => Err(self.wrong_type(key, other, "a number")),
        }
    }

    fn boolean(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::Boolean(boolean) => Ok(self.setting(boolean.to_string())),
            other => Err(self.wrong_type(key, other, "true or false")),
        }
    }

    fn list(&self, key: &str, value: &Value) -> Result<Vec<Setting>, ConfigError> {
        match value {
            Value::Array(items) => items.iter().map(|item| self.text(key, item)).collect(),
            other => Err(self.wrong_type(key, other, "a list such as [\"tally.internal\"]")),
        }
    }

    fn namespaces(&self, value: &Value) -> Result<Vec<(String, String, Setting)>, ConfigError> {
        let example = "a table such as [namespaces.likes]";
        let namespaces = value.as_table().ok_or_else(|| self.wrong_type("namespaces", value, example))?;
        let mut settings = Vec::new();
        for (name, policy) in namespaces {
            let prefix = format!("namespaces.{name}");
            let policy = policy.as_table().ok_or_else(|| self.wrong_type(&prefix, policy, example))?;
            for (key, value) in policy {
                let full = format!("{prefix}.{key}");
                match key.as_str() {
                    "shards" if value.is_integer() => {
                        settings.push((name.clone(), key.clone(), self.number(&full, value)?));
                    }
                    "shards_max" => settings.push((name.clone(), key.clone(), self.number(&full, value)?)),
                    known if NAMESPACE_KEYS.contains(&known) => {
                        settings.push((name.clone(), key.clone(), self.text(&full, value)?));
                    }
                    unknown => return Err(self.unknown(&full, unknown, &NAMESPACE_KEYS)),
                }
            }
        }
        Ok(settings)
    }

    fn cluster(&self, value: &Value) -> Result<Vec<(String, Setting)>, ConfigError> {
        let table = value.as_table().ok_or_else(|| self.wrong_type("cluster", value, "a table [cluster]"))?;
        let mut settings = Vec::new();
        for (key, value) in table {
            let full = format!("cluster.{key}");
            match key.as_str() {
                "redis" => {
                    let nodes = self.list(&full, value)?;
                    settings.extend(nodes.into_iter().map(|node| (key.clone(), node)));
                }
                "partitions" | "replication" | "standbys" | "drift_warn" => {
                    settings.push((key.clone(), self.number(&full, value)?));
                }
                "kafka_tls" | "redis_tls" => settings.push((key.clone(), self.boolean(&full, value)?)),
                known if CLUSTER_KEYS.contains(&known) => settings.push((key.clone(), self.text(&full, value)?)),
                unknown => return Err(self.unknown(&full, unknown, &CLUSTER_KEYS)),
            }
        }
        Ok(settings)
    }

    fn wrong_type(&self, key: &str, value: &Value, expected: &str) -> ConfigError {
        let path = self.path.display();
        ConfigError(format!("`{key}` in {path}: expected {expected}, found {}", value.type_str()))
    }

    fn unknown(&self, full: &str, key: &str, known: &[&str]) -> ConfigError {
        let hint = did_you_mean(key, known.iter().copied());
        ConfigError(format!("`{full}` in {} is not a setting; {hint}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(text: &str) -> Result<RawSettings, String> {
        parse(text, Path::new("tally.toml")).map_err(|error| error.0)
    }

    #[test]
    fn every_key_is_read() {
        let settings = parsed(
            "data = \"d\"\nhttp = \"127.0.0.1:1\"\nmemory = 134217728\nlog = \"json\"\nlog_level = \"warn\"\n\
             insecure = true\nallowed_hosts = [\"a\", \"b\"]\n[namespaces.views]\nconsistency = \"best-effort\"\n",
        )
        .unwrap();
        assert_eq!(settings.memory.unwrap().text, "134217728");
        assert_eq!(settings.insecure.unwrap().text, "true");
        assert_eq!(settings.allowed_hosts.iter().map(|host| &*host.text).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(settings.namespaces.first().unwrap().2.text, "best-effort");
    }

    #[test]
    fn an_unknown_key_is_named_with_a_hint() {
        assert_eq!(
            parsed("memroy = 1").unwrap_err(),
            "`memroy` in tally.toml is not a setting; did you mean `memory`?"
        );
        let nested = parsed("[namespaces.likes]\nconsistancy = \"exact\"").unwrap_err();
        assert!(nested.contains("`namespaces.likes.consistancy`"), "{nested}");
        assert!(nested.contains("did you mean `consistency`?"), "{nested}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        assert_eq!(parsed("http = 7300").unwrap_err(), "`http` in tally.toml: expected a string, found integer");
        assert!(parsed("insecure = \"yes\"").is_err());
        assert!(parsed("allowed_hosts = \"a\"").unwrap_err().contains("a list such as"));
        assert!(parsed("allowed_hosts = [1]").is_err());
        assert!(parsed("namespaces = 1").is_err());
        assert!(parsed("[namespaces]\nlikes = 1").is_err());
        assert!(parsed("data =").unwrap_err().contains("is not valid TOML"));
    }
}
