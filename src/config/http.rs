//! The public listener: where it listens, what it takes from a client, and how long it waits.

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
    /// Its certificate and what leads to its issuer, PEM; absent: it speaks no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// Largest request line and headers together, bytes.
    pub header_bytes_max: usize,
    /// Time for the next whole header, and for a TLS handshake, ms; also how long an idle connection is kept.
    pub header_read_timeout_ms: u64,
    /// Time for a whole body, ms.
    pub body_read_timeout_ms: u64,
    /// Time for an answer, ms; also how long a client may take no bytes of it.
    pub request_timeout_ms: u64,
    /// Connections held at once.
    pub connections_max: usize,
    /// Most of them from one address; absent: half of them.
    pub connections_per_address_max: Option<usize>,
    /// Whether a transfer without an idempotency key is refused.
    pub cid_required: bool,
    /// How long an answer waits for a transfer to become final, ms.
    pub transfer_wait_ms: u64,
    /// Time for what is in flight after a signal to stop, ms.
    pub shutdown_timeout_ms: u64,
}

/// Waiting less for PostgreSQL to commit an accept would refuse what is merely slow.
const ACCEPT_WAIT_MS_MIN: u64 = 2_000;

/// POST waits this much longer for what its user has used and for the coordinator's word, and a name to ask for it is
/// better than none. What waits is held against it in [`crate::http::public::post`].
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

/// What its whole numbers may be.
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
    /// How long a transfer may take to be accepted, however short the wait for its end, ms.
    pub fn accept_wait_ms(&self) -> u64 {
        self.transfer_wait_ms.max(ACCEPT_WAIT_MS_MIN)
    }

    /// Connections held at once from one address.
    pub fn connections_per_address_max(&self) -> usize {
        self.connections_per_address_max.unwrap_or(self.connections_max.div_ceil(2))
    }

    /// What the listener needs to speak TLS, if it is to.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("http", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// Checks what one key demands of another.
    pub(super) fn validate(&self) -> Result<(), Error> {
        tls::check([
            ("http.tls_certificate_file", &self.tls_certificate_file),
            ("http.tls_key_file", &self.tls_key_file),
        ])?;
        let accept_ms = self.accept_wait_ms() + BESIDE_ACCEPT_MS;
        if self.request_timeout_ms <= accept_ms {
            let allowed = format!(
                "above {accept_ms} ms: http.transfer_wait_ms or {ACCEPT_WAIT_MS_MIN}, whichever is more, and \
                 {BESIDE_ACCEPT_MS}"
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
