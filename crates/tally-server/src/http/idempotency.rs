//! The request id of a call, from the `Idempotency-Key` header, the body, or both if they agree.

use axum::http::{HeaderMap, HeaderName};
use tally_core::event::RequestId;
use tally_core::key::KeyRef;

use super::problem::{Kind, Problem};
use crate::admission;

/// The header name of the IETF draft.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The request id of a call on `key`.
pub fn request_id(headers: &HeaderMap, body: Option<&str>, key: KeyRef<'_>) -> Result<Option<RequestId>, Problem> {
    let header = from_header(headers)?;
    let id = match (&header, body) {
        (None, None) => return Ok(None),
        (Some(header), Some(body)) if header.as_slice() != body.as_bytes() => {
            let detail = "the `Idempotency-Key` header and `request_id` in the body differ; send only one";
            return Err(Problem::new(Kind::RequestIdConflict, detail));
        }
        (Some(header), _) => header.as_slice(),
        (None, Some(body)) => body.as_bytes(),
    };
    Ok(Some(admission::request_id(key, id)?))
}

/// Refuses the header on a call that does not support it.
pub fn refuse_header(headers: &HeaderMap, instead: &'static str) -> Result<(), Problem> {
    if headers.contains_key(IDEMPOTENCY_KEY) { Err(invalid(instead)) } else { Ok(()) }
}

fn from_header(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid("`Idempotency-Key` is given more than once; send it once"));
    }
    unquote(value.as_bytes()).map(Some)
}

/// A quoted id is a structured-field string (RFC 9651); anything else is taken literally.
fn unquote(value: &[u8]) -> Result<Vec<u8>, Problem> {
    let [b'"', quoted @ ..] = value else { return Ok(value.to_vec()) };
    let broken = || invalid("`Idempotency-Key` starts with a quote but is not a valid quoted string");
    let mut id = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter();
    loop {
        match bytes.next() {
            Some(b'"') if bytes.as_slice().is_empty() => return Ok(id),
            Some(b'\\') => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => id.push(*escaped),
                _ => return Err(broken()),
            },
            Some(b'"') | None => return Err(broken()),
            Some(byte) => id.push(*byte),
        }
    }
}

fn invalid(detail: &'static str) -> Problem {
    Problem::new(Kind::InvalidRequestId, detail)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_may_be_quoted_or_bare() {
        assert_eq!(unquote(b"abc").unwrap(), b"abc");
        assert_eq!(unquote(br#""abc""#).unwrap(), b"abc");
        assert_eq!(unquote(br#""a\"b\\c""#).unwrap(), br#"a"b\c"#);
        assert_eq!(unquote(br#"a"b"#).unwrap(), br#"a"b"#);
        for broken in [&br#"""#[..], br#""abc"#, br#""a"b""#, br#""a\n""#, br#""a\"#] {
            assert_eq!(unquote(broken).unwrap_err().kind, Kind::InvalidRequestId);
        }
    }
}
