//! The operators' listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use super::Error;
use super::tls::{self, TlsFiles};

/// The section `[ops]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    /// Address of the operators' listener.
    pub listen: SocketAddr,
    /// Its certificate and the chain to its issuer, PEM; absent: no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
}

impl Default for Ops {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
            tls_certificate_file: None,
            tls_key_file: None,
        }
    }
}

impl Ops {
    /// The files for TLS, if TLS is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("ops", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        tls::check([
            ("ops.tls_certificate_file", &self.tls_certificate_file),
            ("ops.tls_key_file", &self.tls_key_file),
        ])
    }
}
