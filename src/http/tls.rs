//! TLS for a listener: a certificate chain and its private key, from PEM files that are read again
//! while the service runs.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use super::rotation::Rotating;
use crate::config::file::read_key_file;
use crate::config::tls::TlsFiles;

/// HTTP as the only protocol inside (RFC 7301). A client that names others is refused.
pub const HTTP_1_1: &[&[u8]] = &[b"http/1.1"];

/// Why a listener cannot speak TLS. The operator must change the configuration or a file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{section}.{key} = {}: cannot be read", path.display())]
    Read {
        /// `http`, `ops`, `stream` or `callbacks`.
        section: &'static str,
        /// Which of the two files.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file holds no PEM of its kind.
    #[error("{section}.{key} = {}: no {what} in PEM format", path.display())]
    Pem {
        /// `http`, `ops`, `stream` or `callbacks`.
        section: &'static str,
        /// Which of the two files.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The error of the parser.
        source: pem::Error,
    },
    /// The certificate is invalid, or the key is of an unknown kind or of another certificate.
    #[error(
        "{}.tls_certificate_file = {} and {}.tls_key_file = {}: cannot be used together",
        files.section, files.certificate.display(), files.section, files.key.display()
    )]
    Pair {
        /// Both files.
        files: Box<TlsFiles>,
        /// The error of the library.
        source: rustls::Error,
    },
}

/// The certificate of a listener.
pub struct Tls {
    files: TlsFiles,
    protocols: &'static [&'static [u8]],
    current: ArcSwap<Current>,
}

struct Current {
    content: Content,
    acceptor: TlsAcceptor,
}

/// The two files, as they were read.
#[derive(PartialEq)]
struct Content {
    certificates: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads the two files. `protocols`: the names of the protocols inside, none if they have none.
    ///
    /// # Errors
    /// [`TlsError`]: the operator must change something.
    pub fn new(files: TlsFiles, protocols: &'static [&'static [u8]]) -> Result<Tls, TlsError> {
        let current = Current::new(Content::read(&files)?, &files, protocols)?;
        Ok(Tls { files, protocols, current: ArcSwap::from_pointee(current) })
    }

    /// Secures a connection by the certificate in force.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.current.load().acceptor.clone()
    }
}

impl Rotating for Tls {
    fn name(&self) -> String {
        format!("certificate of {}", self.files.section)
    }

    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let content = Content::read(&self.files)?;
        if content == self.current.load().content {
            return Ok(false);
        }
        self.current.store(Arc::new(Current::new(content, &self.files, self.protocols)?));
        Ok(true)
    }
}

impl Content {
    fn read(files: &TlsFiles) -> Result<Content, TlsError> {
        let section = files.section;
        let read = |key, path: &PathBuf| {
            let failed = |source| TlsError::Read { section, key, path: path.clone(), source };
            read_key_file(path).map_err(failed)
        };
        Ok(Content {
            certificates: read("tls_certificate_file", &files.certificate)?,
            key: read("tls_key_file", &files.key)?,
        })
    }
}

impl Current {
    fn new(content: Content, files: &TlsFiles, protocols: &[&[u8]]) -> Result<Current, TlsError> {
        let section = files.section;
        let no_pem = |key, path: &PathBuf, what, source| TlsError::Pem {
            section,
            key,
            path: path.clone(),
            what,
            source,
        };
        let no_certificate =
            |source| no_pem("tls_certificate_file", &files.certificate, "certificate", source);
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&content.certificates).collect();
        let chain = chain.map_err(no_certificate)?;
        if chain.is_empty() {
            return Err(no_certificate(pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_slice(&content.key)
            .map_err(|source| no_pem("tls_key_file", &files.key, "private key", source))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has what TLS 1.2 and 1.3 need")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|source| TlsError::Pair { files: Box::new(files.clone()), source })?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Current { content, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}
