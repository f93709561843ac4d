//! Parses the address of a request: the key in its path and the parameters in its query.
//!
//! Percent-encoding is decoded strictly: `%zz` is an error. Keys must be UTF-8 over HTTP, because answers have them in
//! JSON. A `+` is a space in a query, as in HTML forms, and a literal `+` in a path.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use axum::http::Uri;
use percent_encoding::percent_decode_str;
use tally_core::key::Key;

use super::problem::{Kind, Problem};
use crate::admission::{Action, Admission, Caller};
use crate::hint::{did_you_mean, shorten};

/// The path of every counter begins with this.
pub const COUNTERS: &str = "/api/v1/counters/";

/// Admits the keys of one call.
#[derive(Clone, Copy)]
pub struct KeyAccess<'a> {
    /// Decides whether to admit a key.
    pub admission: &'a Admission,
    /// The caller.
    pub caller: &'a Caller,
    /// What the call does.
    pub action: Action,
}

impl KeyAccess<'_> {
    /// Admits the key in a path.
    pub fn key(self, uri: &Uri) -> Result<Key, Problem> {
        let rest = uri.path().strip_prefix(COUNTERS).unwrap_or_default();
        let segment = rest.split('/').next().unwrap_or_default();
        self.decode(segment, Plus::Literal)
    }

    /// Admits the keys of a query. `keys=` was split at its commas before decoding, so `%2C` is a comma within a key.
    pub fn keys(self, encoded: &[&str]) -> Result<Vec<Key>, Problem> {
        encoded.iter().map(|encoded| self.decode(encoded, Plus::Space)).collect()
    }

    fn decode(self, encoded: &str, plus: Plus) -> Result<Key, Problem> {
        let text = decode(encoded, plus).map_err(|why| Problem::new(Kind::InvalidKey, format!("the key {why}")))?;
        Ok(self.admission.admit(self.caller, text.as_bytes(), self.action)?.to_key())
    }
}

/// The meaning of `+`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Literal,
    Space,
}

/// Decodes percent-encoding, strictly.
fn decode(encoded: &str, plus: Plus) -> Result<Cow<'_, str>, String> {
    check_escapes(encoded)?;
    let not_utf8 = |_| "is not UTF-8 after percent-decoding".to_owned();
    if plus == Plus::Space && encoded.contains('+') {
        let spaced = encoded.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map_err(not_utf8)?;
        return Ok(Cow::Owned(decoded.into_owned()));
    }
    percent_decode_str(encoded).decode_utf8().map_err(not_utf8)
}

/// Refuses a `%` without two hex digits, which `percent_decode_str` would leave as it is.
fn check_escapes(encoded: &str) -> Result<(), String> {
    for (at, _) in encoded.match_indices('%') {
        let digits = &encoded.as_bytes()[at + 1..encoded.len().min(at + 3)];
        if digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            let shown = String::from_utf8_lossy(digits);
            return Err(format!("has an invalid percent-encoding at `%{shown}`; a literal percent sign is `%25`"));
        }
    }
    Ok(())
}

/// The parameters of a query. All are known to the call, and none is repeated unless that is allowed.
pub struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    /// Parses a query and checks the names against those the call takes.
    pub fn parse(uri: &'a Uri, known: &[&str]) -> Result<Self, Problem> {
        Query::parse_with(uri, known, "")
    }

    /// The same for a call whose parameter `repeated` may be repeated.
    pub fn parse_with(uri: &'a Uri, known: &[&str], repeated: &str) -> Result<Self, Problem> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                return Err(unknown_parameter(name, known));
            }
            if name != repeated && pairs.iter().any(|(seen, _)| *seen == name) {
                return Err(Problem::new(
                    Kind::InvalidParameter,
                    format!("`{name}` is given more than once; send it once"),
                ));
            }
            pairs.push((name, value));
        }
        Ok(Query(pairs))
    }

    /// Refuses any query, for calls without parameters: ignoring one would hide a mistake.
    pub fn none(uri: &Uri) -> Result<(), Problem> {
        if uri.query().is_none_or(str::is_empty) { Ok(()) } else { Query::parse(uri, &[]).map(|_| ()) }
    }

    /// A parameter, not decoded.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Every value of a parameter, not decoded.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// A parameter as decoded text.
    pub fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
        let decoded = self.raw(name).map(|raw| decode(raw, Plus::Space)).transpose();
        decoded.map_err(|why| Problem::new(Kind::InvalidParameter, format!("`{name}` {why}")))
    }

    /// A parameter as a number. `range` is only for the message; admission checks it.
    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        // `parse` would accept a leading `+`, which is a space in a query.
        let number = raw.parse().ok().filter(|_| !raw.starts_with('+'));
        number.map(Some).ok_or_else(|| {
            let detail = format!(
                "`{name}` is `{}`; it must be an integer from {} to {}",
                shorten(raw, 64),
                range.start(),
                range.end()
            );
            Problem::new(Kind::InvalidParameter, detail)
        })
    }
}

fn unknown_parameter(name: &str, known: &[&str]) -> Problem {
    let hint = match known {
        [] => "this call takes no query parameters".to_owned(),
        known => did_you_mean(name, known.iter().copied()),
    };
    Problem::new(Kind::UnknownParameter, format!("`{name}` is not a parameter of this call; {hint}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    static ADMISSION: Admission = Admission {};

    fn caller() -> Caller {
        Caller::new(std::net::Ipv4Addr::LOCALHOST.into())
    }

    fn access(caller: &Caller) -> KeyAccess<'_> {
        KeyAccess { admission: &ADMISSION, caller, action: Action::Read }
    }

    fn key_of(uri: &str) -> Result<Vec<u8>, Kind> {
        access(&caller()).key(&uri.parse().unwrap()).map(|key| key.as_bytes().to_vec()).map_err(|problem| problem.kind)
    }

    #[test]
    fn a_key_is_the_decoded_segment_after_counters() {
        assert_eq!(key_of("/api/v1/counters/a%2Fb%25/increment").unwrap(), b"a/b%");
        assert_eq!(key_of("/api/v1/counters/a+b").unwrap(), b"a+b");
        assert_eq!(key_of("/api/v1/counters/%E2%9C%93?x=1").unwrap(), "✓".as_bytes());
    }

    #[test]
    fn a_broken_encoding_is_not_a_key() {
        for path in ["%zz", "%", "%2", "%ff", "", "%2%41"] {
            assert_eq!(key_of(&format!("/api/v1/counters/{path}")), Err(Kind::InvalidKey), "{path}");
        }
    }

    #[test]
    fn keys_split_at_the_commas_as_sent() {
        let keys: Vec<_> = access(&caller())
            .keys(&"a,b%2Cc,d+e".split(',').collect::<Vec<_>>())
            .unwrap()
            .iter()
            .map(|key| key.as_bytes().to_vec())
            .collect();
        assert_eq!(keys, [&b"a"[..], b"b,c", b"d e"]);
    }
}
