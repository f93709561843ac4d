//! Certificates for services with TLS, made with the `openssl` command.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fail::OrFail;
use crate::scratch::ScratchDir;
use crate::tool::{Tool, program};

/// A certificate authority of this test. Its files are removed when it is dropped.
pub struct CertificateAuthority {
    dir: ScratchDir,
    /// Serial number of the last certificate. Not in a file, because tests that run in parallel would share it.
    serial: AtomicU32,
}

/// A certificate with its key, as files.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, as PEM.
    pub certificate: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
    /// The certificate of the authority that signed it.
    pub ca: PathBuf,
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl CertificateAuthority {
    /// A new authority, which nobody trusts yet.
    pub fn new() -> CertificateAuthority {
        let authority = CertificateAuthority { dir: ScratchDir::new("certificates"), serial: AtomicU32::new(1) };
        let create = authority.openssl().args(["req", "-x509", "-days", "2", "-subj", "/CN=Tally test CA"]);
        let create = create.args(["-addext", "keyUsage=critical,keyCertSign"]).args(NEW_KEY);
        create.args(["-keyout", "ca.key", "-out", "ca.pem"]).run().or_fail("cannot create a CA");
        authority
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for these names, such as `IP:127.0.0.1,DNS:localhost`. `name` is the base name of its files.
    pub fn issue(&self, name: &str, alternative_names: &str) -> CertificateFiles {
        self.issue_for_days(name, alternative_names, "2")
    }

    /// A certificate that has expired.
    pub fn issue_expired(&self, name: &str, alternative_names: &str) -> CertificateFiles {
        self.issue_for_days(name, alternative_names, "-1")
    }

    fn issue_for_days(&self, name: &str, alternative_names: &str, days: &str) -> CertificateFiles {
        let file = |extension: &str| format!("{name}.{extension}");
        let (key, request, certificate) = (file("key"), file("csr"), file("pem"));
        let extensions = self.dir.write(&file("ext"), &format!("subjectAltName={alternative_names}\n"));
        let ask = self.openssl().args(["req", "-new", "-subj", &format!("/CN={name}")]).args(NEW_KEY);
        ask.args(["-keyout", &key, "-out", &request]).run().or_fail("cannot create a key");
        let serial = (self.serial.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let sign = self.openssl().args(["x509", "-req", "-in", &request, "-days", days, "-CA", "ca.pem"]);
        let sign = sign.args(["-CAkey", "ca.key", "-set_serial", &serial, "-out", &certificate, "-extfile"]);
        sign.arg(&extensions).run().or_fail("cannot sign a certificate");
        let path = |name: &str| self.dir.path().join(name);
        CertificateFiles { certificate: path(&certificate), key: path(&key), ca: self.file() }
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn openssl(&self) -> Tool {
        Tool::new(program("openssl"), self.dir.path())
    }
}

impl Default for CertificateAuthority {
    fn default() -> CertificateAuthority {
        CertificateAuthority::new()
    }
}
