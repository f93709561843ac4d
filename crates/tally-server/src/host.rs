//! Hosts: what `Host` of a request names, and what the setting `allowed_hosts` lists.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host, by address or by name, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    /// An address, an IPv6 one without its brackets.
    Address(IpAddr),
    /// A name as it was written, without a dot at its end.
    Name(Cow<'a, str>),
}

impl<'a> Host<'a> {
    /// The host that a request was sent to, from its `Host`. The port is left out: whoever connected knew it.
    pub fn of_request(text: &'a str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Host::Address(address.parse::<Ipv6Addr>().ok()?.into()), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                (Host::named(name)?, port)
            }
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
    }

    /// The host that a setting names: without a port, an IPv6 address with or without brackets.
    pub fn of_setting(text: &str) -> Option<Host<'static>> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Some(Host::Address(address.into()));
        }
        let has_port = text.contains(':') && !text.ends_with(']');
        match Host::of_request(text).filter(|_| !has_port)? {
            Host::Address(address) => Some(Host::Address(address)),
            Host::Name(name) => Some(Host::Name(name.into_owned().into())),
        }
    }

    fn named(text: &'a str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Host::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (!name.is_empty() && name.bytes().all(fits)).then_some(Host::Name(name.into()))
    }

    /// Whether it names this machine itself. No owner of a domain can bring that about.
    pub fn is_loopback(&self) -> bool {
        match self {
            Host::Address(address) => address.to_canonical().is_loopback(),
            Host::Name(name) => name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("localhost")),
        }
    }

    /// Whether both are the same; case does not matter in a name.
    pub fn is(&self, other: &Host<'_>) -> bool {
        match (self, other) {
            (Host::Address(one), Host::Address(other)) => one == other,
            (Host::Name(one), Host::Name(other)) => one.eq_ignore_ascii_case(other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn loopback_has_many_spellings() {
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
            assert!(Host::of_request(text).unwrap().is_loopback(), "{text}");
        }
        for text in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "128.0.0.1"] {
            assert!(!Host::of_request(text).unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_none() {
        for text in
            ["", ":7300", ".", "a b", "a/b", "u@localhost", "localhost:x", "localhost:1:2", "[::1", "[::1]x", "::1"]
        {
            assert_eq!(Host::of_request(text), None, "{text}");
        }
    }

    #[test]
    fn a_setting_names_a_host_alone() {
        for (text, request) in
            [("Tally.Internal", "tally.internal:80"), ("fd00::1", "[fd00::1]:1"), ("[fd00::1]", "[fd00::1]")]
        {
            let allowed = Host::of_setting(text).unwrap();
            assert!(Host::of_request(request).unwrap().is(&allowed), "{text}");
            assert!(!Host::of_request("other.internal").unwrap().is(&allowed), "{text}");
        }
        for text in ["", "*", "http://tally.internal", "tally.internal:80", "[fd00::1]:80", "a,b", "tally.internal/"] {
            assert_eq!(Host::of_setting(text), None, "{text}");
        }
    }
}
