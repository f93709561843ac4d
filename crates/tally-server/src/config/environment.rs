//! Cluster settings from the environment, and warnings about unknown `TALLY_` variables, so that typos are noticed.

use super::{CLUSTER_KEYS, Setting, SettingSource};
use crate::hint::did_you_mean;

/// The settings of a server.
const SETTINGS: [&str; 12] = [
    "TALLY_DATA",
    "TALLY_HTTP",
    "TALLY_RESP",
    "TALLY_MEMORY",
    "TALLY_CONFIG",
    "TALLY_LOG",
    "TALLY_LOG_LEVEL",
    "TALLY_INSECURE",
    "TALLY_THREADS",
    "TALLY_RESET_CLOCK",
    "TALLY_ALLOWED_HOSTS",
    "TALLY_ROLES",
];

/// Variables that client commands and tests read.
const OTHERS: [&str; 7] = [
    "TALLY_SERVER",
    "TALLY_SEED",
    "TALLY_SEEDS",
    "TALLY_KILL_CYCLES",
    "TALLY_KILL_SEED",
    "TALLY_REDIS_COMMANDS",
    "TALLY_FUZZ_ROUNDS",
];

/// The key of `[cluster]` that a variable sets, such as `kafka` for `TALLY_CLUSTER_KAFKA`.
fn cluster_key(name: &str) -> Option<&'static str> {
    let key = name.strip_prefix("TALLY_CLUSTER_")?.to_lowercase();
    CLUSTER_KEYS.into_iter().find(|known| **known == key)
}

/// The settings of a cluster among these variables. `redis` is a list, separated by commas.
pub fn cluster(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, Setting)> {
    let mut settings = Vec::new();
    for (name, text) in variables {
        let Some(key) = cluster_key(&name) else { continue };
        let texts: Vec<&str> = if key == "redis" { text.split(',').collect() } else { vec![&text] };
        let setting = |text: &str| Setting { text: text.to_owned(), source: SettingSource::Environment };
        settings.extend(texts.into_iter().map(|text| (key.to_owned(), setting(text))));
    }
    settings
}

/// A warning for each unknown `TALLY_` variable. They do not stop the start: Kubernetes, for example, sets
/// `TALLY_SERVICE_HOST` in every pod next to a service named `tally`.
pub fn warnings(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("TALLY_"))
        .filter(|name| cluster_key(name).is_none())
        .filter(|name| !SETTINGS.contains(&name.as_str()) && !OTHERS.contains(&name.as_str()))
        .collect();
    unknown.sort_unstable();
    let cluster: Vec<String> = CLUSTER_KEYS.iter().map(|key| format!("TALLY_CLUSTER_{}", key.to_uppercase())).collect();
    let warn = |name: String| {
        let hint = match name.starts_with("TALLY_CLUSTER_") {
            true => did_you_mean(&name, cluster.iter().map(String::as_str)),
            false => did_you_mean(&name, SETTINGS.into_iter()),
        };
        format!("`{name}` is not a setting; {hint}")
    };
    unknown.into_iter().map(warn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variable_is_named_with_a_hint() {
        let names = ["PATH", "TALLY_DATA", "TALLY_SEEDS", "TALLY_SERVER", "TALLY_MEMROY", "TALLYHO"];
        let warnings = warnings(names.into_iter().map(str::to_owned));
        assert_eq!(warnings, ["`TALLY_MEMROY` is not a setting; did you mean `TALLY_MEMORY`?"]);
        let warnings = super::warnings(["TALLY_CLUSTER_REDSI".to_owned()].into_iter());
        assert_eq!(warnings, ["`TALLY_CLUSTER_REDSI` is not a setting; did you mean `TALLY_CLUSTER_REDIS`?"]);
    }
}
