//! Parses hosts: those in the `Host` header and in the setting `allowed_hosts`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address or a name, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpHost<'a> {
    /// An IP address.
    Address(IpAddr),
    /// A name, without a trailing dot.
    Name(Cow<'a, str>),
}

impl<'a> HttpHost<'a> {
    /// Parses a `Host` header. The port is dropped.
    pub fn of_request(text: &'a str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (HttpHost::Address(address.parse::<Ipv6Addr>().ok()?.into()), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                (HttpHost::named(name)?, port)
            }
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
    }

    /// Parses a setting: no port, IPv6 with or without brackets.
    pub fn of_setting(text: &str) -> Option<HttpHost<'static>> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Some(HttpHost::Address(address.into()));
        }
        let has_port = text.contains(':') && !text.ends_with(']');
        match HttpHost::of_request(text).filter(|_| !has_port)? {
            HttpHost::Address(address) => Some(HttpHost::Address(address)),
            HttpHost::Name(name) => Some(HttpHost::Name(name.into_owned().into())),
        }
    }

    fn named(text: &'a str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(HttpHost::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (!name.is_empty() && name.bytes().all(fits)).then_some(HttpHost::Name(name.into()))
    }

    /// Whether it names this machine. No public domain name does.
    pub fn is_loopback(&self) -> bool {
        match self {
            HttpHost::Address(address) => address.to_canonical().is_loopback(),
            HttpHost::Name(name) => name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("localhost")),
        }
    }

    /// Whether both are equal; names are compared without case.
    pub fn is(&self, other: &HttpHost<'_>) -> bool {
        match (self, other) {
            (HttpHost::Address(one), HttpHost::Address(other)) => one == other,
            (HttpHost::Name(one), HttpHost::Name(other)) => one.eq_ignore_ascii_case(other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn loopback_hosts_are_recognised_in_every_spelling() {
        let own = [
            "localhost",
            "LocalHost:7300",
            "localhost.",
            "tally.localhost:80",
            "127.0.0.1:7300",
            "127.9.8.7",
            "[::1]",
            "[::1]:7300",
            "[::ffff:127.0.0.1]:1",
        ];
        for text in own {
            assert!(HttpHost::of_request(text).unwrap().is_loopback(), "{text}");
        }
        for text in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "128.0.0.1"] {
            assert!(!HttpHost::of_request(text).unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn invalid_hosts_are_refused() {
        for text in
            ["", ":7300", ".", "a b", "a/b", "u@localhost", "localhost:x", "localhost:1:2", "[::1", "[::1]x", "::1"]
        {
            assert_eq!(HttpHost::of_request(text), None, "{text}");
        }
    }

    #[test]
    fn a_setting_is_a_host_without_a_port() {
        for (text, request) in
            [("Tally.Internal", "tally.internal:80"), ("fd00::1", "[fd00::1]:1"), ("[fd00::1]", "[fd00::1]")]
        {
            let allowed = HttpHost::of_setting(text).unwrap();
            assert!(HttpHost::of_request(request).unwrap().is(&allowed), "{text}");
            assert!(!HttpHost::of_request("other.internal").unwrap().is(&allowed), "{text}");
        }
        for text in ["", "*", "http://tally.internal", "tally.internal:80", "[fd00::1]:80", "a,b", "tally.internal/"] {
            assert_eq!(HttpHost::of_setting(text), None, "{text}");
        }
    }
}
