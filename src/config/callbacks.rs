//! The listener of payment channels: its address, its limits and the networks that reach it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use super::bound::{Bound, bound};
use super::names::names;
use super::tls::{self, TlsFiles};
use super::{Error, is_http_url, range};

/// The section `[callbacks]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Callbacks {
    /// Address of the listener; it listens if recharges are enabled.
    pub listen: SocketAddr,
    /// The address at which channels reach it: `https://host[:port]`, without a path.
    pub public_url: Option<String>,
    /// The networks that may connect; empty: all.
    #[serde(deserialize_with = "names")]
    pub allow: Vec<String>,
    /// Callbacks that are verified and decided at the same time.
    pub in_flight_max: usize,
    /// The most open connections.
    pub connections_max: usize,
    /// The largest body, bytes.
    pub body_bytes_max: usize,
    /// Its certificate and the chain to its issuer, PEM; absent: no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
}

impl Default for Callbacks {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8085)),
            public_url: None,
            allow: Vec::new(),
            in_flight_max: 64,
            connections_max: 256,
            body_bytes_max: 65_536,
            tls_certificate_file: None,
            tls_key_file: None,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("callbacks.in_flight_max", |c| Some(c.callbacks.in_flight_max as u64), 1, 4_096, "callbacks"),
    bound("callbacks.connections_max", |c| Some(c.callbacks.connections_max as u64), 1, 65_536, "connections"),
    bound("callbacks.body_bytes_max", |c| Some(c.callbacks.body_bytes_max as u64), 1_024, 1_048_576, "bytes"),
];

impl Callbacks {
    /// The files for TLS, if TLS is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("callbacks", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// The networks that may connect; empty: all. A single address is a network of its own.
    ///
    /// # Errors
    /// [`Error::Range`]: a text is neither a network nor an address.
    pub fn networks(&self) -> Result<Vec<IpNet>, Error> {
        let network = |text: &String| {
            let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
            text.parse().ok().or_else(address).ok_or_else(|| {
                range("callbacks.allow", format!("{text:?}"), "networks such as 192.0.2.0/24")
            })
        };
        self.allow.iter().map(network).collect()
    }

    /// Checks the keys that are not whole numbers. `enabled`: there are recharges. In development
    /// the listener's own address stands in for `public_url`.
    pub(super) fn validate(&self, enabled: bool, dev: bool) -> Result<(), Error> {
        const URL: &str = "callbacks.public_url";
        tls::check([
            ("callbacks.tls_certificate_file", &self.tls_certificate_file),
            ("callbacks.tls_key_file", &self.tls_key_file),
        ])?;
        self.networks()?;
        match &self.public_url {
            Some(url) if !is_bare(url) => {
                let allowed = "http:// or https://host, without a path, a query or a user";
                Err(range(URL, format!("{url:?}"), allowed))
            }
            None if enabled && !dev => {
                let advice = "give the https:// address at which channels reach callbacks.listen";
                Err(Error::Missing { key: URL.into(), advice })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a URL is a scheme and a host alone.
fn is_bare(url: &str) -> bool {
    let parsed = url.parse::<hyper::Uri>().ok();
    is_http_url(url)
        && parsed.is_some_and(|url| {
            let is_anonymous = url.authority().is_some_and(|host| !host.as_str().contains('@'));
            is_anonymous && url.query().is_none() && ["", "/"].contains(&url.path())
        })
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_refused, load};

    #[test]
    fn networks_and_the_public_address_are_plain() {
        let text = "[callbacks]\nallow = [\"192.0.2.0/24\", \"::1\"]\npublic_url = \"https://h\"";
        let callbacks = load(text, &[]).expect("loaded").callbacks;
        let networks = callbacks.networks().expect("networks");
        let holds = |text: &str| {
            let address: std::net::IpAddr = text.parse().expect("an address");
            networks.iter().any(|network| network.contains(&address))
        };
        assert!(holds("192.0.2.7") && holds("::1") && !holds("192.0.3.7") && !holds("::2"));
        let given = [("UBSCORE__CALLBACKS__ALLOW", "10.0.0.0/8, 127.0.0.1")];
        assert_eq!(load("", &given).expect("loaded").callbacks.allow.len(), 2);
        assert_refused(&[
            ("[callbacks]\nallow = [\"here\"]", "callbacks.allow = \"here\": must be networks"),
            ("[callbacks]\nallow = [\"10.0.0.1/33\"]", "callbacks.allow = "),
            ("[callbacks]\npublic_url = \"h\"", "callbacks.public_url = "),
            ("[callbacks]\npublic_url = \"https://h/a\"", "callbacks.public_url = "),
            ("[callbacks]\npublic_url = \"https://h?a\"", "callbacks.public_url = "),
            ("[callbacks]\npublic_url = \"https://u@h\"", "callbacks.public_url = "),
        ]);
    }
}
