//! Keeps web pages from attacking this server through a visitor's browser, and checks `Host`.
//!
//! *Cross-origin writes.* Browsers send `Origin` with every request that can change something, and pages cannot alter
//! it; `curl` and services send none. So a write with an `Origin` must come from this server's own pages.
//!
//! *DNS rebinding.* The owner of a domain can point it at 127.0.0.1 once a page from it is open. The browser then
//! treats page and server as one origin, but still sends the domain in `Host`. So a server on a loopback address
//! answers only to the names of its machine and to those that its operator lists.

use axum::http::{HeaderMap, HeaderValue, Method, Uri, Version, header};

use super::problem::{Kind, Problem};
use crate::hint::shorten;
use crate::host::HttpHost;

/// The hosts a server answers to.
pub enum Hosts {
    /// Any: other machines can reach it, by names it does not know.
    Any,
    /// Those of the machine itself, and these.
    LoopbackAnd(Vec<HttpHost<'static>>),
}

impl Hosts {
    /// Refuses a request without a clear `Host` (RFC 9112, section 3.2), and one that was sent to another host.
    pub fn admit(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let mut named = headers.get_all(header::HOST).iter();
        let host = match (named.next(), named.next()) {
            (Some(host), None) => Some(host),
            // HTTP/1.0 has no `Host`, and no browser speaks it.
            (None, _) if version < Version::HTTP_11 => None,
            (None, _) => return Err(Problem::new(Kind::InvalidHost, "`Host` is missing; HTTP/1.1 requires it")),
            (Some(_), Some(_)) => {
                return Err(Problem::new(Kind::InvalidHost, "`Host` is given more than once; send it once"));
            }
        };
        let Hosts::LoopbackAnd(allowed) = self else { return Ok(()) };
        let answers_to = |text: &str| {
            let host = HttpHost::of_request(text);
            host.is_some_and(|host| host.is_loopback() || allowed.iter().any(|allowed| host.is(allowed)))
        };
        let in_uri = uri.authority().map(|authority| authority.as_str());
        if let Some(other) = in_uri.filter(|text| !answers_to(text)) {
            return Err(misdirected(other));
        }
        let is_other = |host: &&HeaderValue| !host.to_str().is_ok_and(answers_to);
        match host.filter(is_other) {
            Some(other) => Err(misdirected(&String::from_utf8_lossy(other.as_bytes()))),
            None => Ok(()),
        }
    }
}

fn misdirected(host: &str) -> Problem {
    let detail = format!(
        "`Host` is `{}`; listening on a loopback address, this server answers to localhost, 127.0.0.1 and [::1]; add \
         another with --allowed-host, TALLY_ALLOWED_HOSTS or `allowed_hosts`",
        shorten(host, 64)
    );
    Problem::new(Kind::MisdirectedHost, detail)
}

/// Refuses a write from a page of another origin. Costs one lookup for a request without `Origin`.
pub fn admit_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    if method.is_safe() {
        return Ok(());
    }
    let host = headers.get(header::HOST).map_or(&b""[..], |host| host.as_bytes());
    if is_same_origin(origin.as_bytes(), host) {
        return Ok(());
    }
    let detail = "`Origin` and `Host` differ: a page of another site may not change counters; call from your own \
        server, or through the same host and port";
    Err(Problem::new(Kind::CrossOrigin, detail))
}

/// Whether the origin has the host and port that the request was sent to. The scheme may differ, because a proxy may
/// terminate TLS. Either side may leave out the scheme's default port.
fn is_same_origin(origin: &[u8], host: &[u8]) -> bool {
    let (authority, default_port) = match (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://")) {
        (Some(authority), _) => (authority, &b":80"[..]),
        (_, Some(authority)) => (authority, &b":443"[..]),
        _ => return false,
    };
    let without_port = |host: &[u8]| host.strip_suffix(default_port).unwrap_or(host).to_ascii_lowercase();
    !host.is_empty() && without_port(authority) == without_port(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_the_same_when_host_and_port_are() {
        let same = |origin: &str, host: &str| is_same_origin(origin.as_bytes(), host.as_bytes());
        assert!(same("http://127.0.0.1:7300", "127.0.0.1:7300"));
        assert!(same("https://Tally.example", "tally.example"));
        assert!(same("https://tally.example", "tally.example:443"));
        assert!(same("http://[::1]:7300", "[::1]:7300"));
        for other in ["http://127.0.0.1:7301", "http://evil.example", "null", "", "http://127.0.0.1", "127.0.0.1:7300"]
        {
            assert!(!same(other, "127.0.0.1:7300"), "{other}");
        }
        assert!(!same("http://", ""));
    }
}
