//! The policies of namespaces.

use std::time::Duration;

use tally_cluster::limits::SHARDS_MAX_DEFAULT;
use tally_cluster::policy::{Aggregation, OnUnreachable, ShardCount, ShardLayout};
use tally_core::limits::SHARDS_MAX;

use super::{ConfigError, Setting, invalid, place, validate_duration};
use crate::hint::did_you_mean;
use crate::policy::{Consistency, NamespacePolicy, Policies};

/// Every key of a namespace.
pub const NAMESPACE_KEYS: [&str; 8] =
    ["consistency", "layout", "shards", "shards_max", "aggregation", "on_unreachable", "rollup_every", "persist_every"];

/// The value of `shards` for a number of sub-counters that follows the load.
const ADAPTIVE: &str = "adaptive";

const LAYOUTS: [(&str, ShardLayout); 3] =
    [("random", ShardLayout::Random), ("by-client", ShardLayout::ByClient), ("by-time", ShardLayout::ByTime)];
const AGGREGATIONS: [(&str, Aggregation); 3] =
    [("rollup", Aggregation::Rollup), ("on-read", Aggregation::OnRead), ("hybrid", Aggregation::Hybrid)];
const ON_UNREACHABLE: [(&str, OnUnreachable); 2] = [("fail", OnUnreachable::Fail), ("partial", OnUnreachable::Partial)];

/// Validates the policies.
pub fn validate(given: &[(String, String, Setting)]) -> Result<Policies, ConfigError> {
    let mut policies = Policies::default();
    for namespace in given.chunk_by(|a, b| a.0 == b.0) {
        let Some((name, first_key, first)) = namespace.first() else { continue };
        if name.is_empty() || name.contains(':') {
            let place = place(&format!("namespaces.{name}.{first_key}"), first);
            return Err(ConfigError(format!(
                "{place}: `{name}` is not a namespace; a namespace is the part of a key before its first `:`"
            )));
        }
        let mut policy = NamespacePolicy::default();
        let mut shards_max = SHARDS_MAX_DEFAULT;
        let mut fixed = None;
        for (_, key, setting) in namespace {
            let full = format!("namespaces.{name}.{key}");
            match key.as_str() {
                "consistency" => policy.consistency = consistency(&full, setting)?,
                "layout" => policy.shards.layout = one_of(&full, setting, &LAYOUTS)?,
                "aggregation" => policy.shards.aggregation = one_of(&full, setting, &AGGREGATIONS)?,
                "on_unreachable" => policy.shards.on_unreachable = one_of(&full, setting, &ON_UNREACHABLE)?,
                "shards" if setting.text == ADAPTIVE => fixed = None,
                "shards" => fixed = Some(shard_number(&full, setting, "`adaptive` or a number")?),
                "shards_max" => shards_max = shard_number(&full, setting, "a number")?,
                "rollup_every" => {
                    policy.rollup_every = Some(validate_duration(&full, setting, Duration::from_millis(10))?);
                }
                "persist_every" => {
                    policy.persist_every = Some(validate_duration(&full, setting, Duration::from_millis(100))?);
                }
                // Unknown keys were refused when the file was read.
                _ => {}
            }
        }
        policy.shards.count = fixed.map_or(ShardCount::Adaptive(shards_max), ShardCount::Fixed);
        policies.set(name, policy);
    }
    Ok(policies)
}

fn consistency(key: &str, setting: &Setting) -> Result<Consistency, ConfigError> {
    Consistency::from_name(&setting.text).ok_or_else(|| {
        let hint = did_you_mean(&setting.text, Consistency::ALL.iter().map(|consistency| consistency.name()));
        invalid(key, setting, &format!("is not a consistency; {hint}"))
    })
}

fn one_of<T: Copy>(key: &str, setting: &Setting, choices: &[(&'static str, T)]) -> Result<T, ConfigError> {
    let found = choices.iter().find(|(name, _)| *name == setting.text);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        invalid(key, setting, &format!("is not known; use one of {}", names.join(", ")))
    })
}

fn shard_number(key: &str, setting: &Setting, expected: &str) -> Result<u32, ConfigError> {
    let number = setting.text.parse().ok().filter(|number| (1..=SHARDS_MAX).contains(number));
    number.ok_or_else(|| invalid(key, setting, &format!("is not {expected} from 1 to {SHARDS_MAX}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tally_cluster::policy::ShardPolicy;

    use super::super::SettingSource;
    use super::*;

    fn validated(settings: &[(&str, &str)]) -> Result<Policies, String> {
        let setting = |(key, text): &(&str, &str)| {
            let source = SettingSource::File("tally.toml".into());
            ("views".to_owned(), (*key).to_owned(), Setting { text: (*text).to_owned(), source })
        };
        validate(&settings.iter().map(setting).collect::<Vec<_>>()).map_err(|error| error.0)
    }

    #[test]
    fn a_best_effort_namespace_says_how_its_sub_counters_work() {
        let policies = validated(&[
            ("consistency", "best-effort"),
            ("layout", "by-time"),
            ("shards", "8"),
            ("aggregation", "hybrid"),
            ("on_unreachable", "partial"),
            ("rollup_every", "200ms"),
        ])
        .unwrap();
        let key = tally_core::key::KeyRef::new(b"views:1").unwrap();
        assert_eq!(
            policies.shards().of(key),
            Some(&ShardPolicy {
                layout: ShardLayout::ByTime,
                count: ShardCount::Fixed(8),
                aggregation: Aggregation::Hybrid,
                on_unreachable: OnUnreachable::Partial,
            })
        );
        assert_eq!(policies.rollup_every(Duration::from_secs(1)), Duration::from_millis(200));
        assert_eq!(policies.persist_every(Duration::from_secs(30)), Duration::from_secs(30));
        let eventual = validated(&[("consistency", "eventual")]).unwrap();
        assert_eq!(eventual.shards().of(key), None);
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        for (key, text, expected) in [
            ("layout", "spread", "use one of random, by-client, by-time"),
            ("shards", "0", "is not `adaptive` or a number from 1 to 128"),
            ("shards", "many", "is not `adaptive` or a number"),
            ("shards_max", "129", "is not a number from 1 to 128"),
            ("aggregation", "never", "use one of rollup, on-read, hybrid"),
            ("on_unreachable", "hang", "use one of fail, partial"),
            ("rollup_every", "0s", "is not a duration of at least 10ms"),
        ] {
            let said = validated(&[(key, text)]).unwrap_err();
            assert!(said.starts_with(&format!("`namespaces.views.{key}` in tally.toml")), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }
}
