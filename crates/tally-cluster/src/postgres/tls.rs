//! TLS to PostgreSQL: `sslmode` with the meaning it has for `psql`, and connections for the client library.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::client;

use super::error::PgError;
use crate::tls::{ServerCheck, TlsClient, TlsFailure, TlsIdentity, TrustedCas};

/// Certificates for connections to PostgreSQL.
#[derive(Clone, Debug, Default)]
pub struct PgCertificates {
    /// The CAs that may sign the server's certificate. If unset, `verify-full` uses those of the system.
    pub cas: Option<TrustedCas>,
    /// The certificate of this client.
    pub identity: Option<TlsIdentity>,
}

/// `sslmode` of a URL. The names and their meaning are those of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

const MODES: [(&str, SslMode); 5] = [
    ("disable", SslMode::Disable),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

/// Settings of libpq that are files, and the keys that replace them.
const FILES: [(&str, &str); 3] =
    [("sslrootcert", "postgres_ca"), ("sslcert", "postgres_cert"), ("sslkey", "postgres_key")];

/// The URL as the client library understands it, and how connections are encrypted; `None` if they never are.
pub(super) fn of_url(url: &str, certificates: &PgCertificates) -> Result<(String, Option<PgTls>), PgError> {
    let (url, mode) = take_mode(url)?;
    let PgCertificates { cas, identity } = certificates;
    let invalid = |problem: &str| PgError::Settings(problem.to_owned());
    if matches!(mode, SslMode::Disable | SslMode::Prefer) && (cas.is_some() || identity.is_some()) {
        return Err(invalid(
            "certificates are set, but the URL allows connections without TLS; add sslmode=verify-full",
        ));
    }
    let check = match (mode, cas) {
        (SslMode::Disable, _) => return Ok((url, None)),
        (SslMode::Prefer, _) | (SslMode::Require, None) => ServerCheck::Nothing,
        // As libpq does if there is a CA file.
        (SslMode::Require | SslMode::VerifyCa, Some(cas)) => ServerCheck::Ca(cas.clone()),
        (SslMode::VerifyCa, None) => {
            return Err(invalid("sslmode=verify-ca needs `postgres_ca`; with public CAs use sslmode=verify-full"));
        }
        (SslMode::VerifyFull, Some(cas)) => ServerCheck::NameAndCa(cas.clone()),
        (SslMode::VerifyFull, None) => ServerCheck::NameAndCa(system_cas()?),
    };
    let client = TlsClient::new(check, identity.as_ref()).map_err(|error| PgError::Settings(error.to_string()))?;
    Ok((url, Some(PgTls { client })))
}

fn system_cas() -> Result<TrustedCas, PgError> {
    TrustedCas::of_system().map_err(|error| PgError::Settings(format!("{error} with `postgres_ca`")))
}

/// Takes `sslmode` out of the URL. The library knows `disable`, `prefer` and `require` only, so other modes are
/// replaced.
fn take_mode(url: &str) -> Result<(String, SslMode), PgError> {
    let mut mode = SslMode::Prefer;
    let mut replaced = String::with_capacity(url.len());
    for (text, is_parameter) in parameters(url) {
        let (name, value) = if is_parameter { text.split_once('=').unwrap_or((text, "")) } else { ("", "") };
        if let Some((name, key)) = FILES.iter().find(|(file, _)| *file == name) {
            return Err(PgError::Settings(format!("`{name}` in the URL is not supported; use the key `{key}`")));
        }
        if name != "sslmode" {
            replaced.push_str(text);
            continue;
        }
        let known = MODES.iter().find(|(known, _)| *known == value.trim_matches('\''));
        let known = known.ok_or_else(|| {
            let names = MODES.map(|(name, _)| name).join(", ");
            PgError::Settings(format!("`sslmode` must be one of {names}"))
        })?;
        mode = known.1;
        let understood = if matches!(mode, SslMode::VerifyCa | SslMode::VerifyFull) { "require" } else { known.0 };
        replaced.push_str(&format!("sslmode={understood}"));
    }
    Ok((replaced, mode))
}

/// The pieces of a URL, or of `key=value` pairs: parameters, and what is between them. Together they are the whole
/// text.
fn parameters(url: &str) -> Vec<(&str, bool)> {
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    if !is_url {
        return words(url);
    }
    // A password may have a question mark.
    let credentials = url.find('@').unwrap_or(0);
    let Some(query) = url[credentials..].find('?').map(|at| credentials + at + 1) else { return vec![(url, false)] };
    let mut pieces = vec![(&url[..query], false)];
    for parameter in url[query..].split_inclusive('&') {
        let name = parameter.trim_end_matches('&');
        pieces.push((name, true));
        pieces.push((&parameter[name.len()..], false));
    }
    pieces
}

/// Splits at spaces that are not within quotes.
fn words(text: &str) -> Vec<(&str, bool)> {
    let (mut pieces, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' => quoted = !quoted,
            char if char.is_whitespace() && !quoted => {
                let end = at + char.len_utf8();
                pieces.extend([(&text[start..at], true), (&text[at..end], false)]);
                start = end;
            }
            _ => {}
        }
    }
    pieces.push((&text[start..], true));
    pieces
}

/// Encrypts connections for the client library.
#[derive(Clone, Debug)]
pub(super) struct PgTls {
    client: TlsClient,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for PgTls {
    type Stream = PgTlsStream<S>;
    type TlsConnect = PgTlsHandshake;
    type Error = TlsFailure;

    fn make_tls_connect(&mut self, host: &str) -> Result<PgTlsHandshake, TlsFailure> {
        Ok(PgTlsHandshake { client: self.client.clone(), host: host.to_owned() })
    }
}

/// A handshake to be made.
pub(super) struct PgTlsHandshake {
    client: TlsClient,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for PgTlsHandshake {
    type Stream = PgTlsStream<S>;
    type Error = TlsFailure;
    type Future = Pin<Box<dyn Future<Output = Result<PgTlsStream<S>, TlsFailure>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.client.connect(&self.host, stream).await.map(PgTlsStream) })
    }
}

/// An encrypted connection.
pub(super) struct PgTlsStream<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for PgTlsStream<S> {
    /// None: its hash depends on how the certificate is signed, which the library does not expose. PostgreSQL then
    /// authenticates without it.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PgTlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PgTlsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sslmode_is_taken_from_urls_and_from_pairs() {
        let cases = [
            ("postgres://u:p@h/d", "postgres://u:p@h/d", SslMode::Prefer),
            ("postgres://h/d?sslmode=disable", "postgres://h/d?sslmode=disable", SslMode::Disable),
            (
                "postgresql://u:a?sslmode=disable@h/d?a=b&sslmode=verify-full&c=d",
                "postgresql://u:a?sslmode=disable@h/d?a=b&sslmode=require&c=d",
                SslMode::VerifyFull,
            ),
            ("host=h sslmode=verify-ca user=u", "host=h sslmode=require user=u", SslMode::VerifyCa),
            ("host=h password='a sslmode=disable'", "host=h password='a sslmode=disable'", SslMode::Prefer),
            (r"host=h password=a\' sslmode=require", r"host=h password=a\' sslmode=require", SslMode::Require),
        ];
        for (url, replaced, mode) in cases {
            assert_eq!(take_mode(url).unwrap(), (replaced.to_owned(), mode), "{url}");
        }
    }

    #[test]
    fn a_mode_that_libpq_does_not_have_and_files_in_the_url_are_refused() {
        let refused = |url: &str| take_mode(url).unwrap_err().to_string();
        assert!(refused("postgres://h/d?sslmode=allow").contains("verify-full"));
        assert!(refused("postgres://h/d?sslrootcert=ca.pem").contains("`postgres_ca`"));
        assert!(refused("host=h sslkey=k").contains("`postgres_key`"));
    }

    #[test]
    fn a_mode_that_checks_nothing_takes_no_certificates() {
        let cas = TrustedCas::of_system().ok();
        let certificates = PgCertificates { cas: cas.clone(), identity: None };
        if cas.is_some() {
            for url in ["postgres://h/d", "postgres://h/d?sslmode=prefer", "postgres://h/d?sslmode=disable"] {
                let refused = of_url(url, &certificates).unwrap_err().to_string();
                assert!(refused.contains("add sslmode=verify-full"), "{refused}");
            }
            assert!(of_url("postgres://h/d?sslmode=require", &certificates).unwrap().1.is_some());
        }
        let refused = of_url("postgres://h/d?sslmode=verify-ca", &PgCertificates::default()).unwrap_err().to_string();
        assert!(refused.contains("`postgres_ca`"), "{refused}");
        assert!(of_url("postgres://h/d?sslmode=disable", &PgCertificates::default()).unwrap().1.is_none());
    }
}
