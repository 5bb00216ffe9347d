//! The sockets of venues.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, MINUTE_MS, bound};
use super::tls::{self, TlsFiles};
use super::{Error, range};

/// The section `[stream]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stream {
    /// The Unix socket of venues; absent: none.
    pub socket: Option<PathBuf>,
    /// The address of venues on other machines; absent: none.
    pub listen: Option<SocketAddr>,
    /// The certificate of that address and the chain to its issuer, PEM.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
    /// The most connections of both.
    pub connections_max: usize,
    /// The longest silence of a venue, ms.
    pub silence_ms: u64,
}

/// A venue sends a message each second; the shortest limit forgives one that is late.
const SILENCE_MS_MIN: u64 = 2_000;

/// The longest path of a Unix socket on Linux, bytes. The name while it is made has four more.
const SOCKET_BYTES_MAX: usize = 107 - 4;

impl Default for Stream {
    fn default() -> Self {
        Self {
            socket: None,
            listen: None,
            tls_certificate_file: None,
            tls_key_file: None,
            connections_max: 256,
            silence_ms: 3_000,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("stream.connections_max", |c| Some(c.stream.connections_max as u64), 1, 4_096, "connections"),
    bound("stream.silence_ms", |c| Some(c.stream.silence_ms), SILENCE_MS_MIN, MINUTE_MS, "ms"),
];

impl Stream {
    /// The files for TLS, if TLS is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("stream", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        tls::check([
            ("stream.tls_certificate_file", &self.tls_certificate_file),
            ("stream.tls_key_file", &self.tls_key_file),
        ])?;
        if self.listen.is_some() && self.tls_certificate_file.is_none() {
            let advice = "stream.listen speaks TLS only; on this machine use stream.socket";
            return Err(Error::Missing { key: "stream.tls_certificate_file".into(), advice });
        }
        if let Some(socket) = &self.socket
            && !(1..=SOCKET_BYTES_MAX).contains(&socket.as_os_str().len())
        {
            let allowed = format!("a path of 1..={SOCKET_BYTES_MAX} bytes");
            return Err(range("stream.socket", socket.display(), allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn an_address_needs_a_certificate_and_a_socket_a_path_that_fits() {
        let long = format!("[stream]\nsocket = \"/{}\"", "x".repeat(103));
        assert_refused(&[
            ("[stream]\nlisten = \"127.0.0.1:1\"", "stream.tls_certificate_file is missing"),
            ("[stream]\nsocket = \"\"", "stream.socket = "),
            (&long, "stream.socket = /xxx"),
        ]);
    }
}
