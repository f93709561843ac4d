//! Why a TLS connection failed, and what to do about it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why a TLS connection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsFailure(String);

impl TlsFailure {
    /// Explains an error of a connection that is or should be encrypted.
    pub(crate) fn of(error: &io::Error) -> TlsFailure {
        if let Some(failure) = TlsFailure::within(error) {
            return failure;
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => TlsFailure(
                "it closed the connection during the handshake; check that TLS is on at this port".to_owned(),
            ),
            _ => TlsFailure(error.to_string()),
        }
    }

    /// Explains an error if it is a TLS error.
    pub(crate) fn within(error: &io::Error) -> Option<TlsFailure> {
        let inner = error.get_ref()?;
        if let Some(failure) = inner.downcast_ref::<TlsFailure>() {
            return Some(failure.clone());
        }
        Some(TlsFailure(explained(inner.downcast_ref::<Error>()?)))
    }

    pub(crate) fn silent(waited: std::time::Duration) -> TlsFailure {
        TlsFailure(format!("no handshake within {waited:?}; check that TLS is on at this port"))
    }

    pub(super) fn unusable_name(host: &str) -> TlsFailure {
        TlsFailure(format!("`{host}` is neither a host name nor an IP address, so no certificate can be checked"))
    }
}

fn explained(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::InvalidMessage(_) => "it does not speak TLS; turn TLS on there, or off here".to_owned(),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => "it requires a client certificate, and none is set".to_owned(),
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate => {
                format!("it refuses the certificate of this client ({alert:?}); check its CA and its dates")
            }
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => {
                format!("no protocol in common ({alert:?}); it must allow TLS 1.2 or 1.3 with modern ciphers")
            }
            other => format!("it ended the connection ({other:?}); its log may say more"),
        },
        other => other.to_string(),
    }
}

fn certificate(problem: &CertificateError) -> String {
    use CertificateError as E;
    match problem {
        E::UnknownIssuer => {
            "its certificate is not signed by a trusted CA; name the file of the CA that signed it".to_owned()
        }
        // Also the result of a CA that was created again under the same name.
        E::BadSignature => {
            "its certificate is not signed by a trusted CA but by another one of the same name; name the file of the CA \
             that signed it"
                .to_owned()
        }
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired; renew it".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet; check the clock of this machine".to_owned()
        }
        E::NotValidForName => format!("its certificate is for another name; {RENAME}"),
        E::NotValidForNameContext { expected, presented } => {
            let names = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            format!("its certificate is for {names}, not for {}; {RENAME}", expected.to_str())
        }
        E::Revoked => "its certificate was revoked; issue a new one".to_owned(),
        other => format!("its certificate cannot be used ({other}); issue one of version 3 that is not that of a CA"),
    }
}

const RENAME: &str = "connect to a name that it has, or issue one with this subjectAltName";

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(error: Error) -> String {
        TlsFailure::of(&io::Error::new(io::ErrorKind::InvalidData, error)).to_string()
    }

    #[test]
    fn a_failure_says_what_to_do_next() {
        let certificate = |problem| explain(Error::InvalidCertificate(problem));
        assert!(certificate(CertificateError::UnknownIssuer).contains("name the file of the CA"));
        assert!(certificate(CertificateError::Expired).contains("renew it"));
        assert!(certificate(CertificateError::NotValidYet).contains("check the clock"));
        assert!(certificate(CertificateError::NotValidForName).contains("subjectAltName"));
        assert!(
            explain(Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)).contains("turn TLS on there")
        );
        assert!(explain(Error::AlertReceived(AlertDescription::CertificateRequired)).contains("none is set"));
        assert!(explain(Error::AlertReceived(AlertDescription::UnknownCA)).contains("check its CA"));
        let closed = TlsFailure::of(&io::ErrorKind::UnexpectedEof.into()).to_string();
        assert!(closed.contains("check that TLS is on"), "{closed}");
    }

    #[test]
    fn other_errors_of_a_connection_are_none_of_tls() {
        assert_eq!(TlsFailure::within(&io::ErrorKind::ConnectionReset.into()), None);
        assert_eq!(TlsFailure::within(&io::Error::other("text")), None);
    }
}
