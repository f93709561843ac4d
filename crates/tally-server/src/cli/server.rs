//! The server a client command talks to, as people name it: `localhost`, `10.0.0.7:7300`, `http://[::1]:7300`.

/// The port of a server that is named without one.
const PORT_DEFAULT: u16 = 7300;

/// The address calls are made to: `http://` with host and port, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(pub String);

/// Reads an address. Without a scheme it is Tally's own port that is meant, with one the scheme's.
pub fn parse(text: &str) -> Result<ServerUrl, String> {
    let (scheme, rest) = match text.trim().split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text.trim()),
    };
    match scheme.as_deref() {
        None | Some("http") => {}
        Some("https") => return Err("TLS is not supported yet; name the server with http://".into()),
        Some(other) => return Err(format!("`{other}` is not a scheme Tally speaks; name the server with http://")),
    }
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if let Some(end) = host.find(['/', '?', '#']) {
        return Err(format!("leave out `{}`: a server is named by host and port alone", &host[end..]));
    }
    if host.contains('@') {
        return Err("leave out what stands before the `@`: there is no authentication yet".into());
    }
    let (name, port) = split_port(host)?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("name a host and a port, such as 127.0.0.1:7300".into());
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
        (None, _) => return Err(format!("write an IPv6 address in brackets, such as [{host}]:{PORT_DEFAULT}")),
    };
    let Some(at) = colon else { return Ok((host, None)) };
    let port = host[at + 1..].parse().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| format!("`{}` is not a port; it is 1 to 65535", &host[at + 1..]))?;
    Ok((&host[..at], Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<String, String> {
        parse(text).map(|url| url.0)
    }

    #[test]
    fn a_server_named_without_scheme_or_port_is_one_of_tally() {
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
    fn what_cannot_work_says_what_would() {
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
