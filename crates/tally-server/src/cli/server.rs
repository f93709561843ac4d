//! Parses `--server`: `localhost`, `10.0.0.7:7300`, `http://[::1]:7300`.

/// The port if neither scheme nor port is given.
const PORT_DEFAULT: u16 = 7300;

/// The base URL: `http://`, host and port, without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(pub String);

/// Parses an address. The default port is 7300 without a scheme, and that of the scheme with one.
pub fn parse(text: &str) -> Result<ServerUrl, String> {
    let (scheme, rest) = match text.trim().split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text.trim()),
    };
    match scheme.as_deref() {
        None | Some("http") => {}
        Some("https") => return Err("TLS is not supported yet; use http://".into()),
        Some(other) => return Err(format!("`{other}://` is not supported; use http://")),
    }
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if let Some(end) = host.find(['/', '?', '#']) {
        return Err(format!("leave out `{}`; use only host and port", &host[end..]));
    }
    if host.contains('@') {
        return Err("leave out everything up to the `@`; there is no authentication yet".into());
    }
    let (name, port) = split_port(host)?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("use host and port, such as 127.0.0.1:7300".into());
    }
    match (port, scheme) {
        (Some(port), _) => Ok(ServerUrl(format!("http://{name}:{port}"))),
        (None, Some(_)) => Ok(ServerUrl(format!("http://{name}"))),
        (None, None) => Ok(ServerUrl(format!("http://{name}:{PORT_DEFAULT}"))),
    }
}

fn split_port(host: &str) -> Result<(&str, Option<u16>), String> {
    let colon = match (host.rfind(']'), host.matches(':').count()) {
        (Some(end), _) => host[end..].find(':').map(|at| end + at),
        (None, 0 | 1) => host.find(':'),
        (None, _) => return Err(format!("put an IPv6 address in brackets, such as [{host}]:{PORT_DEFAULT}")),
    };
    let Some(at) = colon else { return Ok((host, None)) };
    let port = host[at + 1..].parse().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| format!("`{}` is not a port; use 1 to 65535", &host[at + 1..]))?;
    Ok((&host[..at], Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<String, String> {
        parse(text).map(|url| url.0)
    }

    #[test]
    fn the_default_port_depends_on_the_scheme() {
        let expected = [
            ("localhost", "http://localhost:7300"),
            ("10.0.0.7:8000", "http://10.0.0.7:8000"),
            ("http://localhost:7300/", "http://localhost:7300"),
            ("http://tally.internal", "http://tally.internal"),
            ("[::1]", "http://[::1]:7300"),
            ("HTTP://[::1]:80", "http://[::1]:80"),
        ];
        for (text, expected) in expected {
            assert_eq!(url(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_what_would_be_valid() {
        let cases = [
            ("https://tally.example", "TLS is not supported yet"),
            ("redis://localhost", "http://"),
            ("http://localhost:7300/api/v1", "leave out `/api/v1`"),
            ("localhost:port", "not a port"),
            ("localhost:0", "not a port"),
            ("::1", "[::1]:7300"),
            ("me@localhost", "authentication"),
            ("", "127.0.0.1:7300"),
            ("http://", "127.0.0.1:7300"),
        ];
        for (text, says) in cases {
            let error = url(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
