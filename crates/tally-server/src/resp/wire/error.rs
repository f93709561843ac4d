//! Why a stream of requests cannot be read any further.

use crate::limits::RESP_ARGS_MAX;

/// What is wrong with the stream. The connection is closed after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// What follows `*` is no number, or one that no server takes.
    InvalidCount,
    /// More arguments than this server takes.
    TooManyArguments,
    /// More arguments than a client may send that has yet to say who it is.
    StrangersCount,
    /// The line after `*` does not end.
    CountTooLong,
    /// Something else than `$` where an argument should begin.
    ExpectedBulk(u8),
    /// What follows `$` is no number, or one that nobody may send.
    InvalidLength,
    /// A longer argument than a client may send that has yet to say who it is.
    StrangersLength,
    /// The line after `$` does not end.
    LengthTooLong,
    /// An inline request that does not end, or has too many words.
    InlineTooBig,
    /// An inline request with a quote that is not closed, or closed in the middle of a word.
    UnbalancedQuotes,
    /// The client speaks HTTP. A browser may have been made to send this, so it learns nothing.
    Http,
}

impl ProtocolError {
    /// The text of the error reply; none when the connection is closed without a word.
    pub fn text(self) -> Option<Vec<u8>> {
        let what = match self {
            ProtocolError::InvalidCount => "invalid multibulk length",
            ProtocolError::TooManyArguments => return Some(too_many_arguments().into_bytes()),
            ProtocolError::StrangersCount => "unauthenticated multibulk length",
            ProtocolError::CountTooLong => "too big mbulk count string",
            ProtocolError::ExpectedBulk(_) => "expected '$', got '",
            ProtocolError::InvalidLength => "invalid bulk length",
            ProtocolError::StrangersLength => "unauthenticated bulk length",
            ProtocolError::LengthTooLong => "too big bulk count string",
            ProtocolError::InlineTooBig => "too big inline request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
            ProtocolError::Http => return None,
        };
        let mut text = [b"ERR Protocol error: ", what.as_bytes()].concat();
        if let ProtocolError::ExpectedBulk(byte) = self {
            text.extend([byte, b'\'']);
        }
        Some(text)
    }
}

fn too_many_arguments() -> String {
    format!("ERR Protocol error: too many arguments; a request has at most {RESP_ARGS_MAX}, its name included")
}
