//! The chain of the transaction manager, and the endpoints that speak for it.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, MINUTE_MS, bound};
use super::file::read_secret;
use super::names::names;
use super::secret::Secret;
use super::{Error, is_http_url, range};

/// The most endpoints: each is asked for each send.
const ENDPOINTS_MAX: usize = 16;

/// The section `[txm.chain]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// The chain's number; needed by a node.
    pub chain_id: u64,
    /// The URLs of the endpoints; needed by a node. Secret: they may hold keys.
    #[serde(deserialize_with = "urls")]
    pub rpc_urls: Vec<Secret>,
    /// A file with one URL a line, in the place of `rpc_urls`.
    pub rpc_urls_file: Option<PathBuf>,
    /// The issuers of the endpoints' certificates, PEM; absent: those of browsers.
    pub ca_file: Option<PathBuf>,
    /// Endpoints that must agree.
    pub quorum: usize,
    /// Between two looks at the heads, ms.
    pub poll_ms: u64,
    /// Timeout of a call, ms.
    pub timeout_ms: u64,
    /// The most calls under way at one endpoint.
    pub calls_in_flight_max: usize,
    /// Transactions of type 0 in the place of type 2.
    pub legacy_fees: bool,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            chain_id: 0,
            rpc_urls: Vec::new(),
            rpc_urls_file: None,
            ca_file: None,
            quorum: 1,
            poll_ms: 1_000,
            timeout_ms: 5_000,
            calls_in_flight_max: 8,
            legacy_fees: false,
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.chain.chain_id", |c| Some(c.txm.chain.chain_id), 0, 9_007_199_254_740_991, "(0: none)"),
    bound("txm.chain.quorum", |c| Some(c.txm.chain.quorum as u64), 1, ENDPOINTS_MAX as u64, "endpoints"),
    bound("txm.chain.poll_ms", |c| Some(c.txm.chain.poll_ms), 50, MINUTE_MS, "ms"),
    bound("txm.chain.timeout_ms", |c| Some(c.txm.chain.timeout_ms), 100, MINUTE_MS, "ms"),
    bound("txm.chain.calls_in_flight_max", |c| Some(c.txm.chain.calls_in_flight_max as u64), 1, 256, "calls"),
];

/// Texts that are URLs.
fn urls<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Secret>, D::Error> {
    Ok(names(deserializer)?.into_iter().map(Secret::new).collect())
}

impl Network {
    /// Replaces the name of the file by its lines. Empty lines and lines that begin with `#` are
    /// left out.
    pub(super) fn read_urls(&mut self) -> Result<(), Error> {
        let mut text = None;
        read_secret("txm.chain.rpc_urls_file", &mut text, &self.rpc_urls_file)?;
        if let Some(text) = text {
            let lines = text.expose().lines().map(str::trim);
            let urls = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            self.rpc_urls = urls.map(Secret::new).collect();
        }
        Ok(())
    }

    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let urls = &self.rpc_urls;
        if urls.len() > ENDPOINTS_MAX {
            let allowed = format!("at most {ENDPOINTS_MAX} URLs");
            return Err(range("txm.chain.rpc_urls", format!("{} URLs", urls.len()), allowed));
        }
        match urls.iter().find(|url| !is_http_url(url.expose())) {
            Some(url) => Err(range("txm.chain.rpc_urls", url, "http:// or https:// URLs")),
            None => Ok(()),
        }
    }

    /// Checks the needs of a node.
    pub(super) fn validate_node(&self) -> Result<(), Error> {
        if self.chain_id == 0 {
            let advice = "give the chain's number, 1 for Ethereum";
            return Err(Error::Missing { key: "txm.chain.chain_id".into(), advice });
        }
        if self.rpc_urls.is_empty() {
            let advice = "give the URLs of the chain's endpoints, or a file of them";
            return Err(Error::Missing { key: "txm.chain.rpc_urls".into(), advice });
        }
        if self.quorum > self.rpc_urls.len() {
            let allowed = format!("at most the number of rpc_urls, {}", self.rpc_urls.len());
            return Err(range("txm.chain.quorum", self.quorum, allowed));
        }
        Ok(())
    }
}
