//! Which host a request was sent to: a page must not reach a server of its reader's own machine by renaming it.
//!
//! Whoever owns a name can have it lead to 127.0.0.1 once a page of theirs is open ("DNS rebinding"). To the browser
//! that page and this server are then of one origin, so it may read and change everything. But it still says in `Host`
//! which name it used. A server that only its own machine can reach therefore answers to names of that machine alone,
//! and to those its operator lists.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use super::problem::{Kind, Problem};
use crate::hint::shorten;
use crate::host::Host;

/// The hosts a server answers to.
pub enum Hosts {
    /// Any: others can reach it anyway, and by names it does not know.
    Any,
    /// Those of the machine itself, and these.
    LoopbackAnd(Vec<Host<'static>>),
}

impl Hosts {
    /// Refuses a request that was sent to another host. One that names none is not a browser's.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let Hosts::LoopbackAnd(allowed) = self else { return Ok(()) };
        let answers_to = |text: &str| {
            let host = Host::of_request(text);
            host.is_some_and(|host| host.is_loopback() || allowed.iter().any(|allowed| host.is(allowed)))
        };
        let in_address = uri.authority().map(|authority| authority.as_str());
        if let Some(other) = in_address.filter(|text| !answers_to(text)) {
            return Err(misdirected(other));
        }
        let is_other = |host: &&HeaderValue| !host.to_str().is_ok_and(answers_to);
        match headers.get_all(header::HOST).iter().find(is_other) {
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
