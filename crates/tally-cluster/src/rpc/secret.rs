//! The secret that API nodes and workers share.

use hyper::header::HeaderValue;
use sha2::{Digest, Sha256};

use super::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};

/// A secret. It is never shown.
#[derive(Clone)]
pub struct Secret {
    header: HeaderValue,
    digest: [u8; 32],
}

/// How connections between nodes are protected. `T` is the side: [`TlsClient`](crate::tls::TlsClient) or
/// [`TlsServer`](crate::tls::TlsServer).
#[derive(Clone, Debug)]
pub struct LinkSecurity<T> {
    /// What API nodes send to workers.
    pub secret: Option<Secret>,
    /// TLS, if it is on.
    pub tls: Option<T>,
}

/// Without TLS.
impl<T> From<Option<Secret>> for LinkSecurity<T> {
    fn from(secret: Option<Secret>) -> LinkSecurity<T> {
        LinkSecurity { secret, tls: None }
    }
}

/// Why a text cannot be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} visible ASCII characters")]
pub struct SecretError;

impl Secret {
    /// Checks length and characters.
    pub fn new(text: &str) -> Result<Secret, SecretError> {
        let is_valid = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::from_str(&format!("Bearer {text}")).ok().filter(|_| is_valid);
        let mut header = header.ok_or(SecretError)?;
        header.set_sensitive(true);
        Ok(Secret { digest: digest(&header), header })
    }

    /// What a client sends.
    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether this is what a client with the same secret sends. Takes the same time wherever they differ: digests are
    /// compared, and all of their bytes.
    pub(super) fn matches(&self, header: &HeaderValue) -> bool {
        let pairs = digest(header).into_iter().zip(self.digest);
        pairs.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

fn digest(header: &HeaderValue) -> [u8; 32] {
    Sha256::digest(header.as_bytes()).into()
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_matches() {
        let (one, other) = (Secret::new(&"a".repeat(16)).unwrap(), Secret::new(&"a".repeat(17)).unwrap());
        assert!(one.matches(&one.header()) && !one.matches(&other.header()) && !other.matches(&one.header()));
        assert!(!one.matches(&HeaderValue::from_static("")) && !one.matches(&HeaderValue::from_static("Bearer")));
        assert!(!format!("{one:?} {:?}", one.header()).contains("aaa"));
    }

    #[test]
    fn a_secret_that_is_short_long_or_not_visible_is_refused() {
        for text in ["", "fifteen letters", &"a".repeat(257), "sixteen letters é", "sixteen\nletters"] {
            assert_eq!(Secret::new(text).err(), Some(SecretError), "{text:?}");
        }
        assert!(Secret::new(&"a".repeat(256)).is_ok());
    }
}
