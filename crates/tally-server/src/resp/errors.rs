//! Error replies, worded as in Redis where it has the same error.

use tally_core::surface::EngineError;

use crate::service::Failure;

/// An argument of `SET`, `INCRBY` and the like is not a 64-bit integer.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// Options that are incompatible or do not exist.
pub const SYNTAX: &str = "ERR syntax error";
/// A cursor that no `SCAN` returned, or that has been dropped.
pub const INVALID_CURSOR: &str = "ERR invalid cursor";
/// A command that cannot be part of a transaction.
pub const NOT_IN_TRANSACTION: &str = "ERR Command not allowed inside a transaction";

/// The error for a request that the engine did not execute.
pub fn failure(failure: &Failure) -> String {
    match failure {
        Failure::Recovering => "LOADING Redis is loading the dataset in memory".to_owned(),
        Failure::Engine(error) => match error {
            EngineError::DiskFull => format!("MISCONF {error}"),
            EngineError::Unavailable(_) => format!("CLUSTERDOWN {error}"),
            EngineError::OutcomeUnknown(_) => format!("UNKNOWN {error}"),
            EngineError::Poisoned(_)
            | EngineError::Closing
            | EngineError::Unreadable(_)
            | EngineError::TooLarge
            | EngineError::TooStale(_) => format!("ERR {error}"),
        },
    }
}

/// Client input quoted in an error, up to the first zero byte: Redis prints a C string.
pub fn shown(word: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(word.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// An expiry that is out of range.
pub fn invalid_expiry(command: &str) -> String {
    format!("ERR invalid expire time in '{command}' command")
}
