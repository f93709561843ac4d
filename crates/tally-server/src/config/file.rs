//! The configuration file: TOML, read key by key so that every error names its key.

use std::path::Path;

use toml::{Table, Value};

use super::{ConfigError, Setting, Source, Typed};
use crate::hint::did_you_mean;
use crate::limits::CONFIG_BYTES_MAX;

const KEYS: [&str; 11] = [
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
];
const NAMESPACE_KEYS: [&str; 1] = ["consistency"];

/// Reads the settings a file types.
pub fn read(path: &Path) -> Result<Typed, ConfigError> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ConfigError(format!("the configuration {} cannot be read: {why}", path.display()))
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if length > CONFIG_BYTES_MAX {
        return Err(unreadable(&format!("it has {length} bytes; at most {CONFIG_BYTES_MAX} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&error))?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> Result<Typed, ConfigError> {
    let table: Table =
        toml::from_str(text).map_err(|error| ConfigError(format!("{} is not TOML: {error}", path.display())))?;
    let file = File { path };
    let mut typed = Typed::default();
    for (key, value) in &table {
        match key.as_str() {
            "data" => typed.data = Some(file.text(key, value)?),
            "http" => typed.http = Some(file.text(key, value)?),
            "resp" => typed.resp = Some(file.text(key, value)?),
            "memory" => typed.memory = Some(file.size(key, value)?),
            "log" => typed.log = Some(file.text(key, value)?),
            "log_level" => typed.log_level = Some(file.text(key, value)?),
            "insecure" => typed.insecure = Some(file.truth(key, value)?),
            "threads" => typed.threads = Some(file.number(key, value)?),
            "reset_clock" => typed.reset_clock = Some(file.truth(key, value)?),
            "allowed_hosts" => typed.allowed_hosts = file.list(key, value)?,
            "namespaces" => typed.namespaces = file.namespaces(value)?,
            unknown => return Err(file.unknown(unknown, unknown, &KEYS)),
        }
    }
    Ok(typed)
}

/// The file being read, for errors and sources.
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn setting(&self, text: impl Into<String>) -> Setting {
        Setting { text: text.into(), source: Source::File(self.path.to_owned()) }
    }

    fn text(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::String(text) => Ok(self.setting(text)),
            other => Err(self.wrong(key, other, "a string")),
        }
    }

    fn size(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::String(text) => Ok(self.setting(text)),
            Value::Integer(bytes) => Ok(self.setting(bytes.to_string())),
            other => Err(self.wrong(key, other, "a size such as \"1GiB\"")),
        }
    }

    fn number(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::Integer(number) => Ok(self.setting(number.to_string())),
            other => Err(self.wrong(key, other, "a number")),
        }
    }

    fn truth(&self, key: &str, value: &Value) -> Result<Setting, ConfigError> {
        match value {
            Value::Boolean(truth) => Ok(self.setting(truth.to_string())),
            other => Err(self.wrong(key, other, "true or false")),
        }
    }

    fn list(&self, key: &str, value: &Value) -> Result<Vec<Setting>, ConfigError> {
        match value {
            Value::Array(items) => items.iter().map(|item| self.text(key, item)).collect(),
            other => Err(self.wrong(key, other, "a list such as [\"tally.internal\"]")),
        }
    }

    fn namespaces(&self, value: &Value) -> Result<Vec<(String, Setting)>, ConfigError> {
        let example = "a table such as [namespaces.likes]";
        let namespaces = value.as_table().ok_or_else(|| self.wrong("namespaces", value, example))?;
        let mut typed = Vec::new();
        for (name, policy) in namespaces {
            let prefix = format!("namespaces.{name}");
            let policy = policy.as_table().ok_or_else(|| self.wrong(&prefix, policy, example))?;
            for (key, value) in policy {
                let full = format!("{prefix}.{key}");
                match key.as_str() {
                    "consistency" => typed.push((name.clone(), self.text(&full, value)?)),
                    unknown => return Err(self.unknown(&full, unknown, &NAMESPACE_KEYS)),
                }
            }
        }
        Ok(typed)
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &str) -> ConfigError {
        let path = self.path.display();
        ConfigError(format!("`{key}` in {path} is of type {}; it must be {wanted}", value.type_str()))
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

    fn parsed(text: &str) -> Result<Typed, String> {
        parse(text, Path::new("tally.toml")).map_err(|error| error.0)
    }

    #[test]
    fn every_key_is_read() {
        let typed = parsed(
            "data = \"d\"\nhttp = \"127.0.0.1:1\"\nmemory = 134217728\nlog = \"json\"\nlog_level = \"warn\"\n\
             insecure = true\nallowed_hosts = [\"a\", \"b\"]\n[namespaces.views]\nconsistency = \"best-effort\"\n",
        )
        .unwrap();
        assert_eq!(typed.memory.unwrap().text, "134217728");
        assert_eq!(typed.insecure.unwrap().text, "true");
        assert_eq!(typed.allowed_hosts.iter().map(|host| &*host.text).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(typed.namespaces.first().unwrap().1.text, "best-effort");
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
        assert_eq!(parsed("http = 7300").unwrap_err(), "`http` in tally.toml is of type integer; it must be a string");
        assert!(parsed("insecure = \"yes\"").is_err());
        assert!(parsed("allowed_hosts = \"a\"").unwrap_err().contains("a list such as"));
        assert!(parsed("allowed_hosts = [1]").is_err());
        assert!(parsed("namespaces = 1").is_err());
        assert!(parsed("[namespaces]\nlikes = 1").is_err());
        assert!(parsed("data =").unwrap_err().contains("is not TOML"));
    }
}
