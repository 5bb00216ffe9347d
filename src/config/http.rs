//! The public listener: its address, its size limits and its timeouts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, FIVE_MINUTES_MS, MINUTE_MS, bound};
use super::tls::{self, TlsFiles};
use super::{Error, range};

/// The section `[http]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// Its certificate and the chain to its issuer, PEM; absent: no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
    /// The largest request body, bytes.
    pub body_bytes_max: usize,
    /// The largest request line and headers together, bytes.
    pub header_bytes_max: usize,
    /// Timeout for a whole header and for a TLS handshake, ms. An idle connection is also closed
    /// after it.
    pub header_read_timeout_ms: u64,
    /// Timeout for a whole body, ms.
    pub body_read_timeout_ms: u64,
    /// Timeout for an answer, ms. A client that reads no byte of it for as long is disconnected.
    pub request_timeout_ms: u64,
    /// The most open connections.
    pub connections_max: usize,
    /// The most open connections from one address; absent: half of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// Whether a transfer without an idempotency key is refused.
    pub cid_required: bool,
    /// How long an answer waits for the transfer's final state, ms.
    pub transfer_wait_ms: u64,
    /// Time for requests and transfers under way after a signal to stop, ms.
    pub shutdown_timeout_ms: u64,
}

/// The least wait for PostgreSQL to commit an accept, ms. A shorter wait would refuse transfers
/// that are merely slow.
const ACCEPT_WAIT_MS_MIN: u64 = 2_000;

/// POST waits this much longer, ms: for the user's usage and for the coordinator's answer. So a
/// client gets the transfer's id and can ask for it. [`crate::http::public::post`] asserts that
/// its waits fit.
pub(crate) const BESIDE_ACCEPT_MS: u64 = 4_000;

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls_certificate_file: None,
            tls_key_file: None,
            body_bytes_max: 16_384,
            header_bytes_max: 16_384,
            header_read_timeout_ms: 5_000,
            body_read_timeout_ms: 5_000,
            request_timeout_ms: 30_000,
            connections_max: 1_024,
            connections_per_address_max: None,
            cid_required: false,
            transfer_wait_ms: 2_000,
            shutdown_timeout_ms: 10_000,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("http.body_bytes_max", |c| Some(c.http.body_bytes_max as u64), 1_024, 1_048_576, "bytes"),
    bound("http.header_bytes_max", |c| Some(c.http.header_bytes_max as u64), 8_192, 65_536, "bytes"),
    bound("http.header_read_timeout_ms", |c| Some(c.http.header_read_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("http.body_read_timeout_ms", |c| Some(c.http.body_read_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("http.request_timeout_ms", |c| Some(c.http.request_timeout_ms), 100, FIVE_MINUTES_MS, "ms"),
    bound("http.connections_max", |c| Some(c.http.connections_max as u64), 1, 65_536, "connections"),
    bound("http.connections_per_address_max", |c| c.http.connections_per_address_max.map(|most| most as u64), 1, 65_536, "connections"),
    bound("http.transfer_wait_ms", |c| Some(c.http.transfer_wait_ms), 0, MINUTE_MS, "ms"),
    bound("http.shutdown_timeout_ms", |c| Some(c.http.shutdown_timeout_ms), 0, FIVE_MINUTES_MS, "ms"),
];

impl Http {
    /// Timeout for accepting a transfer, ms. It does not become shorter with `transfer_wait_ms`.
    pub fn accept_wait_ms(&self) -> u64 {
        self.transfer_wait_ms.max(ACCEPT_WAIT_MS_MIN)
    }

    /// The most open connections from one address.
    pub fn connections_per_address_max(&self) -> usize {
        self.connections_per_address_max.unwrap_or(self.connections_max.div_ceil(2))
    }

    /// The files for TLS, if TLS is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("http", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        tls::check([
            ("http.tls_certificate_file", &self.tls_certificate_file),
            ("http.tls_key_file", &self.tls_key_file),
        ])?;
        let accept_ms = self.accept_wait_ms() + BESIDE_ACCEPT_MS;
        if self.request_timeout_ms <= accept_ms {
            let allowed = format!(
                "above {accept_ms} ms: the greater of http.transfer_wait_ms and \
                 {ACCEPT_WAIT_MS_MIN}, plus {BESIDE_ACCEPT_MS}"
            );
            return Err(range("http.request_timeout_ms", self.request_timeout_ms, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::assert_refused;

    #[test]
    fn a_request_may_wait_for_its_accept_and_then_some() {
        assert_refused(&[(
            "[http]\nrequest_timeout_ms = 6000",
            "http.request_timeout_ms = 6000: must be above 6000 ms",
        )]);
    }
}
