//! Protocol errors: a stream of requests that cannot be parsed any further.

use crate::limits::RESP_ARGS_MAX;

/// What is wrong with the stream. The connection is closed after the error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The count after `*` is not a number, or one that no server accepts.
    InvalidCount,
    /// More arguments than this server accepts.
    TooManyArguments,
    /// More arguments than an unauthenticated client may send.
    UnauthenticatedCount,
    /// The line after `*` is too long.
    CountTooLong,
    /// Something other than `$` where an argument should begin.
    ExpectedBulk(u8),
    /// The length after `$` is not a number, or longer than any client may send.
    InvalidLength,
    /// A longer argument than an unauthenticated client may send.
    UnauthenticatedLength,
    /// The line after `$` is too long.
    LengthTooLong,
    /// An inline request that is too long or has too many words.
    InlineTooBig,
    /// An inline request with a quote that is not closed, or closed in the middle of a word.
    UnbalancedQuotes,
    /// The client speaks HTTP. It may be a browser tricked into sending this, so it gets no reply.
    Http,
}

impl ProtocolError {
    /// The text of the error reply; `None` if the connection is closed without one.
    pub fn text(self) -> Option<Vec<u8>> {
        let what = match self {
            ProtocolError::InvalidCount => "invalid multibulk length",
            ProtocolError::TooManyArguments => return Some(too_many_arguments().into_bytes()),
            ProtocolError::UnauthenticatedCount => "unauthenticated multibulk length",
            ProtocolError::CountTooLong => "too big mbulk count string",
            ProtocolError::ExpectedBulk(_) => "expected '$', got '",
            ProtocolError::InvalidLength => "invalid bulk length",
            ProtocolError::UnauthenticatedLength => "unauthenticated bulk length",
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
