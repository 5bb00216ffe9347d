//! TLS to PostgreSQL, by libpq's `sslmode`: what is checked of the server's certificate.
//!
//! | mode | TLS | issuer | name |
//! |---|---|---|---|
//! | `disable` | no | | |
//! | `prefer` | where the server has it | no | no |
//! | `require` | yes | if `sslrootcert` is given | no |
//! | `verify-ca` | yes | yes | no |
//! | `verify-full` | yes | yes | yes |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// libpq's `sslmode`, without `allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Disable,
    /// Where the server speaks it; nothing is checked.
    Prefer,
    /// Always.
    Require,
    /// Always, and the certificate's issuer is checked.
    VerifyCa,
    /// Always, and issuer and host name are checked.
    VerifyFull,
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::Disable, Mode::Prefer, Mode::Require, Mode::VerifyCa, Mode::VerifyFull];

    /// As libpq writes it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Disable => "disable",
            Mode::Prefer => "prefer",
            Mode::Require => "require",
            Mode::VerifyCa => "verify-ca",
            Mode::VerifyFull => "verify-full",
        }
    }

    /// The mode of a name.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mode checks the issuer, and no issuer is named.
    #[error("sslmode={0} needs sslrootcert=FILE: the PEM certificates of the issuers to trust")]
    NoRoot(&'static str),
    /// The file cannot be read or holds no certificate.
    #[error("sslrootcert={}: {why}", path.display())]
    Root {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// What a connection of this mode is made with. `root`: the file of trusted issuers, PEM.
///
/// # Errors
/// [`Error`]: the operator must change the mode or the file.
pub(super) fn client(mode: Mode, root: Option<&Path>) -> Result<ClientConfig, Error> {
    let checked_name = mode == Mode::VerifyFull;
    match (mode, root) {
        (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) => Ok(unverified()),
        (Mode::VerifyCa | Mode::VerifyFull, None) => Err(Error::NoRoot(mode.name())),
        (Mode::Require | Mode::VerifyCa | Mode::VerifyFull, Some(path)) => {
            let roots = Arc::new(roots(path)?);
            let built = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
            let issuer = built.map_err(|error| unusable(path, &error))?;
            Ok(configured(Arc::new(Check {
                issuer: Some(issuer),
                name: checked_name,
                provider: provider(),
            })))
        }
    }
}

/// Encrypts, and believes every server.
pub(super) fn unverified() -> ClientConfig {
    configured(Arc::new(Check { issuer: None, name: false, provider: provider() }))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn configured(check: Arc<Check>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for TLS 1.2 and 1.3");
    builder.dangerous().with_custom_certificate_verifier(check).with_no_client_auth()
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Root { path: path.to_owned(), why: why.to_string() }
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let found: Result<Vec<_>, pem::Error> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let mut roots = RootCertStore::empty();
    for certificate in found.map_err(|error| unusable(path, &error))? {
        roots.add(certificate).map_err(|error| unusable(path, &error))?;
    }
    match roots.is_empty() {
        true => Err(unusable(path, &"no PEM of a certificate")),
        false => Ok(roots),
    }
}

/// What is checked of a server's certificate. Its key is always proved by the handshake.
#[derive(Debug)]
struct Check {
    /// Issuers to trust; `None`: all.
    issuer: Option<Arc<WebPkiServerVerifier>>,
    /// Whether the certificate must be the host's.
    name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Check {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(issuer) = &self.issuer else { return Ok(ServerCertVerified::assertion()) };
        let checked =
            issuer.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match checked {
            // The issuer is checked before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
