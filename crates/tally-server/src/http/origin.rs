//! Where a request was made: a page of another site must not count or correct through somebody's browser.
//!
//! Browsers put `Origin` on every request that can change something, and pages cannot alter it; `curl` and services
//! send none. So a request with one must come from this server's own pages, and any other passes.

use axum::http::{HeaderMap, Method, header};

use super::problem::{Kind, Problem};

/// Refuses a change asked for by a page of another origin. Costs one look-up where there is no such header.
pub fn admit(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    if method.is_safe() {
        return Ok(());
    }
    let host = headers.get(header::HOST).map_or(&b""[..], |host| host.as_bytes());
    if is_same(origin.as_bytes(), host) {
        return Ok(());
    }
    let detail = "`Origin` names another host than `Host`: a page of another site may not change counters; call from \
        your own server, or through the same host and port";
    Err(Problem::new(Kind::CrossOrigin, detail))
}

/// Whether host and port of the origin are those the request was sent to. The scheme may differ: a proxy that ends TLS
/// makes `https` of it. A port that is the scheme's own may be left out on either side.
fn is_same(origin: &[u8], host: &[u8]) -> bool {
    let (named, port) = match (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://")) {
        (Some(named), _) => (named, &b":80"[..]),
        (_, Some(named)) => (named, &b":443"[..]),
        _ => return false,
    };
    let bare = |host: &[u8]| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    !host.is_empty() && bare(named) == bare(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_the_same_when_host_and_port_are() {
        let same = |origin: &str, host: &str| is_same(origin.as_bytes(), host.as_bytes());
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
