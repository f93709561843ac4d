//! Certificates and keys, read from PEM files once at the start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::limits::CERTIFICATE_FILE_BYTES_MAX;

/// Why certificates or a key cannot be used. Shows paths, and never what is in the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What happened.
        cause: String,
    },
    /// A file does not have what it should.
    #[error("{} has no {expected} in PEM format, which begins with `-----BEGIN`", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
        /// What it should have.
        expected: &'static str,
    },
    /// A certificate or a key does not decode, or they do not belong together.
    #[error("{} cannot be used: {cause}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The system has no CA certificates.
    #[error("this system has no CA certificates: install the package `ca-certificates`, or name the file of the CA")]
    NoSystemCas,
    /// The library refuses the settings.
    #[error("TLS cannot be used: {0}")]
    Library(String),
}

impl TlsFileError {
    pub(super) fn unusable(error: &rustls::Error) -> TlsFileError {
        TlsFileError::Library(error.to_string())
    }
}

/// Certificate authorities that vouch for servers.
#[derive(Clone)]
pub struct TrustedCas(Arc<RootCertStore>);

impl TrustedCas {
    /// Those in a file, and no others.
    pub fn from_file(path: &Path) -> Result<TrustedCas, TlsFileError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|error| TlsFileError::Unusable { path: path.to_owned(), cause: error.to_string() })?;
        }
        Ok(TrustedCas(Arc::new(roots)))
    }

    /// Those that this system trusts.
    pub fn of_system() -> Result<TrustedCas, TlsFileError> {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 { Err(TlsFileError::NoSystemCas) } else { Ok(TrustedCas(Arc::new(roots))) }
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for TrustedCas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustedCas({})", self.0.len())
    }
}

/// A certificate with its key.
#[derive(Clone)]
pub struct TlsIdentity {
    path: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
}

impl TlsIdentity {
    /// Reads a certificate, with its intermediate certificates if they are in the file, and its key.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<TlsIdentity, TlsFileError> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsFileError::Absent { path: key.to_owned(), expected: "private key" },
            error => TlsFileError::Unusable { path: key.to_owned(), cause: error.to_string() },
        })?;
        Ok(TlsIdentity { path: certificate.to_owned(), chain, key: Arc::new(key) })
    }

    pub(super) fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain.clone(), self.key.clone_key())
    }

    pub(super) fn unusable(&self, error: &rustls::Error) -> TlsFileError {
        let cause = match error {
            rustls::Error::InconsistentKeys(_) => "its key is not that of the certificate".to_owned(),
            other => other.to_string(),
        };
        TlsFileError::Unusable { path: self.path.clone(), cause }
    }
}

/// Leaves out the key.
impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsIdentity({})", self.path.display())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let text = read(path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| TlsFileError::Unusable { path: path.to_owned(), cause: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsFileError::Absent { path: path.to_owned(), expected: "certificate" });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let unreadable = |cause: String| TlsFileError::Unreadable { path: path.to_owned(), cause };
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > CERTIFICATE_FILE_BYTES_MAX {
        return Err(unreadable(format!("it has {length} bytes; the maximum is {CERTIFICATE_FILE_BYTES_MAX}")));
    }
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}
