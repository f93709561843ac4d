//! Why a call to Redis failed.

use redis::{ErrorKind, ServerErrorKind};

/// Marks TLS errors among the errors of the client library.
pub(super) const TLS_FAILED: &str = "TLS failed";

/// Why a call failed. The call can be repeated, because what was done already is not done twice. Additions are the
/// exception: see [`AddError`](super::AddError).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisError {
    /// No answer: not listening, not reachable, or too slow.
    #[error(
        "Redis does not answer at {nodes}: {reason}. Check that it runs, that this host can reach it, and \
         whether it needs `redis_tls`"
    )]
    Unreachable {
        /// The nodes of the settings.
        nodes: String,
        /// What happened.
        reason: String,
    },
    /// The connection cannot be encrypted, or a node does not prove who it is.
    #[error("{TLS_FAILED} with Redis at {nodes}: {reason}. See `redis_tls` and `redis_ca`")]
    Tls {
        /// The nodes of the settings.
        nodes: String,
        /// What happened, and what to do about it.
        reason: String,
    },
    /// User or password are wrong, or the user lacks permissions.
    #[error(
        "Redis refuses the credentials: {0}. Check user and password, and that the user may run commands on strings and \
         hashes, EVAL, EVALSHA, SCRIPT, DEL, EXISTS, TIME and CLUSTER on keys that start with `tally:`"
    )]
    Denied(String),
    /// Some slots are not served.
    #[error(
        "the Redis cluster does not serve all slots: {0}. It recovers by itself if a replica takes over; otherwise see \
         `redis-cli --cluster check`"
    )]
    Down(String),
    /// The server is not a cluster.
    #[error("Redis at {0} is not a cluster. Start it with `cluster-enabled yes`, a single node is enough")]
    NotACluster(String),
    /// The settings are invalid.
    #[error("the settings of Redis are not usable: {0}")]
    Settings(String),
    /// An unexpected answer.
    #[error("Redis gave an unexpected answer: {0}. Check that only Tally writes keys that start with `tally:`")]
    Unexpected(String),
}

impl RedisError {
    /// What an error of the client library means; `nodes` are the configured ones.
    pub(super) fn new(error: &redis::RedisError, nodes: &str) -> RedisError {
        let reason = error.to_string();
        let says = |text: &str| reason.contains(text);
        // The error of the first connection is text inside an I/O error.
        if says("cluster support disabled") {
            return RedisError::NotACluster(nodes.to_owned());
        }
        if says(TLS_FAILED) {
            return RedisError::Tls { nodes: nodes.to_owned(), reason: error.detail().unwrap_or(&reason).to_owned() };
        }
        if says("WRONGPASS") || says("NOAUTH") || says("NOPERM") || says("Password authentication failed") {
            return RedisError::Denied(reason);
        }
        match error.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => RedisError::Denied(reason),
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => {
                RedisError::Unreachable { nodes: nodes.to_owned(), reason }
            }
            ErrorKind::InvalidClientConfig => RedisError::Settings(reason),
            ErrorKind::Server(
                ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::ReadOnly,
            ) => RedisError::Down(reason),
            _ => RedisError::Unexpected(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do_next() {
        let said = |kind: ErrorKind, detail: &str| {
            RedisError::new(&(kind, "failed", detail.to_owned()).into(), "a:1, b:2").to_string()
        };
        let server = ErrorKind::Server;
        for (kind, detail, expected) in [
            (ErrorKind::Io, "Connection refused", "does not answer at a:1, b:2"),
            (ErrorKind::Io, "WRONGPASS invalid username-password pair", "Check user and password"),
            (ErrorKind::AuthenticationFailed, "", "Check user and password"),
            (server(ServerErrorKind::NoPerm), "no permissions to run EVAL", "the user may run"),
            (server(ServerErrorKind::ClusterDown), "Hash slot not served", "does not serve all slots"),
            (server(ServerErrorKind::ResponseError), "This instance has cluster support disabled", "cluster-enabled"),
            (ErrorKind::InvalidClientConfig, "no nodes", "settings of Redis"),
            (server(ServerErrorKind::ResponseError), "something else", "unexpected answer"),
        ] {
            assert!(said(kind, detail).contains(expected), "{}", said(kind, detail));
        }
    }
}
