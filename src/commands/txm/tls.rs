//! TLS towards endpoints of the chain and remote signers: the issuers that are trusted, and the
//! certificate of this node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A client. `issuers`: a file of the trusted ones, PEM; `None`: those of browsers. `own`: the
/// certificate and the private key of this node, if it shows one.
///
/// # Errors
/// A file cannot be read, or holds no PEM of its kind.
pub(in crate::commands) fn client(
    issuers: Option<&Path>,
    own: Option<(&PathBuf, &PathBuf)>,
) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match issuers {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| path.display().to_string())?;
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_root_certificates(roots);
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let read = PrivateKeyDer::from_pem_file(key);
            let read = read.with_context(|| format!("{}: no private key", key.display()))?;
            let chain = certificates(certificate)?;
            builder.with_client_auth_cert(chain, read).context("the client certificate")
        }
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.with_context(|| format!("{}: cannot be read", path.display()))?;
    if found.is_empty() {
        bail!("{}: no PEM of a certificate", path.display());
    }
    Ok(found)
}
