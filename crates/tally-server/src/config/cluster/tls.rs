//! TLS of a cluster. Files are read here, so that an invalid one stops the start with an error that names its key.

use std::path::Path;

use tally_cluster::postgres::{Pg, PgCertificates, PgSettings};
use tally_cluster::tls::{ServerCheck, TlsClient, TlsFileError, TlsIdentity, TlsServer, TrustedCas};

use super::{Given, Roles, either, full, unpaired};
use crate::config::{ConfigError, place, validate_switch};

/// TLS for connections to Redis; `None` if it is off.
pub fn redis(given: Given<'_>) -> Result<Option<TlsClient>, ConfigError> {
    if !validate_switch(&full("redis_tls"), given.get("redis_tls"))? {
        return refuse_without(given, &["redis_ca", "redis_cert", "redis_key"], "redis_tls = true").map(|()| None);
    }
    let cas = match cas(given, "redis_ca")? {
        Some(cas) => cas,
        None => TrustedCas::of_system()
            .map_err(|error| ConfigError(format!("`{}`: {error} with redis_ca", full("redis_tls"))))?,
    };
    let identity = identity(given, "redis_cert", "redis_key")?;
    let client = TlsClient::new(ServerCheck::NameAndCa(cas), identity.as_ref());
    client.map(Some).map_err(|error| of_key(given, "redis_cert", &error))
}

/// How to connect to PostgreSQL. `sslmode` in the URL decides whether TLS is used.
pub fn postgres(given: Given<'_>) -> Result<PgSettings, ConfigError> {
    let url = given.required("postgres", "postgres://tally@10.0.0.1/tally")?;
    let certificates =
        PgCertificates { cas: cas(given, "postgres_ca")?, identity: identity(given, "postgres_cert", "postgres_key")? };
    let settings = PgSettings { certificates, ..PgSettings::new(url) };
    // The URL has a password, so it is not shown.
    Pg::new(&settings).map_err(|error| ConfigError(format!("`{}`: {error}", full("postgres"))))?;
    Ok(settings)
}

/// TLS between nodes, as an API node and as a worker; on if a CA is set.
pub fn workers(given: Given<'_>, roles: Roles) -> Result<(Option<TlsClient>, Option<TlsServer>), ConfigError> {
    let Some(cas) = cas(given, "worker_tls_ca")? else {
        let because = "worker_tls_ca, which API nodes check workers with";
        return refuse_without(given, &["worker_tls_cert", "worker_tls_key"], because).map(|()| (None, None));
    };
    let client = TlsClient::to_workers(cas).map_err(|error| of_key(given, "worker_tls_ca", &error))?;
    match identity(given, "worker_tls_cert", "worker_tls_key")? {
        Some(identity) => {
            let server = TlsServer::of_worker(&identity).map_err(|error| of_key(given, "worker_tls_cert", &error))?;
            Ok((Some(client), Some(server)))
        }
        None if roles.worker => Err(ConfigError(format!(
            "{} is missing; a worker with worker_tls_ca needs worker_tls_cert and worker_tls_key. Without them, use \
             `--roles api`",
            either("worker_tls_cert")
        ))),
        None => Ok((Some(client), None)),
    }
}

/// Refuses files that would not be used.
pub fn refuse_without(given: Given<'_>, keys: &[&str], needed: &str) -> Result<(), ConfigError> {
    match keys.iter().find_map(|key| Some((key, given.get(key)?))) {
        Some((key, setting)) => Err(ConfigError(format!("{} needs {needed}", place(&full(key), setting)))),
        None => Ok(()),
    }
}

fn cas(given: Given<'_>, key: &str) -> Result<Option<TrustedCas>, ConfigError> {
    let Some(path) = given.optional(key) else { return Ok(None) };
    TrustedCas::from_file(Path::new(&path)).map(Some).map_err(|error| of_key(given, key, &error))
}

fn identity(given: Given<'_>, certificate: &str, key: &str) -> Result<Option<TlsIdentity>, ConfigError> {
    match (given.optional(certificate), given.optional(key)) {
        (Some(certificate_path), Some(key_path)) => {
            let identity = TlsIdentity::from_files(Path::new(&certificate_path), Path::new(&key_path));
            identity.map(Some).map_err(|error| of_key(given, certificate, &error))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(unpaired(key, certificate)),
        (None, Some(_)) => Err(unpaired(certificate, key)),
    }
}

fn of_key(given: Given<'_>, key: &str, error: &TlsFileError) -> ConfigError {
    let place = given.get(key).map_or_else(|| format!("`{}`", full(key)), |setting| place(&full(key), setting));
    ConfigError(format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::tests::{accepted, refused};

    /// Creates a file that is not a certificate.
    fn file(dir: &tempfile::TempDir, name: &str) -> String {
        let path = dir.path().join(name);
        std::fs::write(&path, "password").unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn certificates_without_tls_are_refused() {
        for (key, needed) in [
            ("redis_ca", "redis_tls = true"),
            ("redis_key", "redis_tls = true"),
            ("kafka_ca", "kafka_tls = true"),
            ("worker_tls_cert", "worker_tls_ca"),
            ("worker_tls_key", "worker_tls_ca"),
        ] {
            let why = refused(&[(key, "file.pem")]);
            assert!(why.contains(&format!("TALLY_CLUSTER_{}", key.to_uppercase())) && why.contains(needed), "{why}");
        }
        assert!(refused(&[("redis_tls", "maybe")]).contains("is not a boolean"));
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        for (given, missing) in [("postgres_cert", "postgres_key"), ("postgres_key", "postgres_cert")] {
            let why = refused(&[(given, "file.pem")]);
            assert!(
                why.contains(&format!(
                    "`cluster.{missing}` (`TALLY_CLUSTER_{}`) is missing; {given} needs it",
                    missing.to_uppercase()
                )),
                "{why}"
            );
        }
    }

    #[test]
    fn a_file_that_is_missing_or_has_no_certificate_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, key) = (file(&dir, "ca.pem"), file(&dir, "key.pem"));
        let why = refused(&[("worker_tls_ca", "/nowhere/ca.pem")]);
        assert!(why.contains("TALLY_CLUSTER_WORKER_TLS_CA") && why.contains("cannot read /nowhere/ca.pem"), "{why}");
        let why = refused(&[("redis_tls", "true"), ("redis_ca", &ca)]);
        assert!(why.contains("has no certificate in PEM format") && !why.contains("password"), "{why}");
        let why = refused(&[("postgres_cert", &ca), ("postgres_key", &key)]);
        assert!(why.contains("TALLY_CLUSTER_POSTGRES_CERT") && !why.contains("password"), "{why}");
    }

    #[test]
    fn the_url_of_postgres_is_checked_and_not_shown() {
        let url = |mode: &str| format!("postgres://tally:hunter2@p/tally?sslmode={mode}");
        for (mode, expected) in [("allow", "`sslmode` must be one of"), ("verify-ca", "`postgres_ca`")] {
            let why = refused(&[("postgres", &url(mode))]);
            assert!(why.contains(expected) && !why.contains("hunter2"), "{why}");
        }
        for mode in ["disable", "prefer", "require"] {
            let config = accepted(&[("postgres", &url(mode))]);
            assert!(!format!("{config:?} {:?}", config.postgres).contains("hunter2"));
        }
    }
}
