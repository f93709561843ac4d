//! TLS to PostgreSQL, to Redis and between nodes: who is trusted, who we are, and what a failed handshake means.
//! Kafka's client has its own. Why rustls with ring: `docs/decisions/0025-tls-in-the-cluster.md`.

mod failure;
mod files;
mod verify;

use std::io;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use failure::TlsFailure;
pub use files::{TlsFileError, TlsIdentity, TrustedCas};

/// First byte of a TLS connection: a handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;
/// The protocol of the connections between nodes, as it is negotiated.
const HTTP2: &[u8] = b"h2";

/// What a server has to prove.
#[derive(Clone, Debug)]
pub enum ServerCheck {
    /// That its certificate is signed by one of these, and has the name that we connect to.
    NameAndCa(TrustedCas),
    /// That its certificate is signed by one of these.
    Ca(TrustedCas),
    /// Nothing: an eavesdropper is kept out, an impostor is not.
    Nothing,
}

/// Opens TLS connections.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl TlsClient {
    /// `identity` is shown to servers that ask for one.
    pub fn new(check: ServerCheck, identity: Option<&TlsIdentity>) -> Result<TlsClient, TlsFileError> {
        Ok(TlsClient(TlsConnector::from(Arc::new(client_config(check, identity)?))))
    }

    /// For connections to workers.
    pub fn to_workers(cas: TrustedCas) -> Result<TlsClient, TlsFileError> {
        let mut config = client_config(ServerCheck::NameAndCa(cas), None)?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(TlsClient(TlsConnector::from(Arc::new(config))))
    }

    /// Does the handshake with the server that `host` names: a name or an IP address.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> Result<client::TlsStream<S>, TlsFailure> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host).map_err(|_| TlsFailure::unusable_name(host))?.to_owned();
        self.0.connect(name, stream).await.map_err(|error| TlsFailure::of(&error))
    }
}

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

fn client_config(check: ServerCheck, identity: Option<&TlsIdentity>) -> Result<ClientConfig, TlsFileError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| TlsFileError::unusable(&error))?;
    let builder = match check {
        ServerCheck::NameAndCa(cas) => builder.with_root_certificates(cas.roots()),
        ServerCheck::Ca(cas) => {
            builder.dangerous().with_custom_certificate_verifier(verify::by_ca(cas.roots(), &provider))
        }
        ServerCheck::Nothing => builder.dangerous().with_custom_certificate_verifier(verify::nothing(&provider)),
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let (chain, key) = identity.parts();
            builder.with_client_auth_cert(chain, key).map_err(|error| identity.unusable(&error))
        }
    }
}

/// Accepts TLS connections.
#[derive(Clone)]
pub struct TlsServer(TlsAcceptor);

/// A connection that was accepted.
pub(crate) enum AcceptedStream {
    Tls(Box<server::TlsStream<TcpStream>>),
    /// The client does not speak TLS. Nothing was read yet.
    Unencrypted(TcpStream),
}

impl TlsServer {
    /// For connections of API nodes.
    pub fn of_worker(identity: &TlsIdentity) -> Result<TlsServer, TlsFileError> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| TlsFileError::unusable(&error))?;
        let (chain, key) = identity.parts();
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| identity.unusable(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(TlsServer(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<AcceptedStream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            return Ok(AcceptedStream::Unencrypted(stream));
        }
        Ok(AcceptedStream::Tls(Box::new(self.0.accept(stream).await?)))
    }
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsServer")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
