//! The transaction manager: the nodes that `ubscore txm serve` runs.
//!
//! The sections below `[txm]` have files of their own. `Txm::validate_node` checks the needs of a
//! node, so that the service itself starts without them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use chain::fee::GasCaps;
use domain::transfer::Cid;
use serde::Deserialize;
use txm::options::TxmOptions;

use super::auth::Auth;
use super::bound::{Bound, FIVE_MINUTES_MS, HOUR_MS, bound};
use super::file::read_secret;
use super::secret::Secret;
use super::tls::{self, TlsFiles};
use super::txm_confirmations::Confirmations;
use super::txm_lease::LeaseTimes;
use super::txm_network::Network;
use super::txm_nonce::{Nonce, Submit};
use super::txm_price::{Fee, Gas};
use super::txm_resubmit::Resubmit;
use super::txm_signers::Signers;
use super::txm_trust::Trust;
use super::{
    Error, is_http_url, range, txm_confirmations, txm_lease, txm_network, txm_nonce, txm_price,
    txm_resubmit, txm_signers, txm_trust,
};
use crate::postgres::Address;

/// The section `[txm]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Txm {
    /// The name of the node for people, logs and answers.
    pub node_id: String,
    /// Address of the listener.
    pub listen: SocketAddr,
    /// Address of the operators' listener.
    pub ops_listen: SocketAddr,
    /// The URL at which clients reach the listener; absent: its own address.
    pub url: Option<String>,
    /// The certificate of both listeners and the chain to its issuer, PEM; absent: no TLS.
    pub tls_certificate_file: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key_file: Option<PathBuf>,
    /// URL of the database; absent: that of `[postgres]`. Secret: it may hold a password.
    pub postgres_url: Option<Secret>,
    /// A file that holds the URL.
    pub postgres_url_file: Option<PathBuf>,
    /// The most new transactions of one commit.
    pub batch_max: usize,
    /// The most open transactions of one signer.
    pub queue_max: usize,
    /// Between two looks for rows and commands that other nodes took, ms.
    pub poll_ms: u64,
    /// After so long without the chain a node gives its signers back, ms.
    pub release_blind_ms: u64,
    /// Time for an orderly end, ms.
    pub shutdown_timeout_ms: u64,
    /// The chain and its endpoints.
    pub chain: Network,
    /// The ownership of signers.
    pub lease: LeaseTimes,
    /// The order of transactions.
    pub nonce: Nonce,
    /// How many transactions are sent ahead.
    pub submit: Submit,
    /// Resends and bumps.
    pub resubmit: Resubmit,
    /// When a transaction is final.
    pub confirmations: Confirmations,
    /// Prices of gas.
    pub fee: Fee,
    /// Amounts of gas.
    pub gas: Gas,
    /// Keys, and the payloads that they may sign.
    pub signers: Signers,
    /// The tokens of the node's clients and operators.
    pub auth: Trust,
}

impl Default for Txm {
    fn default() -> Self {
        Self {
            node_id: "txm-1".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8090)),
            ops_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9091)),
            url: None,
            tls_certificate_file: None,
            tls_key_file: None,
            postgres_url: None,
            postgres_url_file: None,
            batch_max: 100,
            queue_max: 10_000,
            poll_ms: 100,
            release_blind_ms: 30_000,
            shutdown_timeout_ms: 10_000,
            chain: Network::default(),
            lease: LeaseTimes::default(),
            nonce: Nonce::default(),
            submit: Submit::default(),
            resubmit: Resubmit::default(),
            confirmations: Confirmations::default(),
            fee: Fee::default(),
            gas: Gas::default(),
            signers: Signers::default(),
            auth: Trust::default(),
        }
    }
}

/// The bounds of the section's own whole numbers.
#[rustfmt::skip]
const OWN: &[Bound] = &[
    bound("txm.batch_max", |c| Some(c.txm.batch_max as u64), 1, 1_000, "transactions"),
    bound("txm.queue_max", |c| Some(c.txm.queue_max as u64), 1, 1_000_000, "transactions of a signer"),
    bound("txm.poll_ms", |c| Some(c.txm.poll_ms), 10, 10_000, "ms"),
    bound("txm.release_blind_ms", |c| Some(c.txm.release_blind_ms), 1_000, HOUR_MS, "ms"),
    bound("txm.shutdown_timeout_ms", |c| Some(c.txm.shutdown_timeout_ms), 0, FIVE_MINUTES_MS, "ms"),
];

/// The bounds of all whole numbers, section by section.
pub(super) const BOUNDS: [&[Bound]; 9] = [
    OWN,
    txm_network::BOUNDS,
    txm_lease::BOUNDS,
    txm_nonce::BOUNDS,
    txm_resubmit::BOUNDS,
    txm_confirmations::BOUNDS,
    txm_price::BOUNDS,
    txm_signers::BOUNDS,
    txm_trust::BOUNDS,
];

impl Txm {
    /// The files for TLS, if TLS is configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        TlsFiles::new("txm", &self.tls_certificate_file, &self.tls_key_file)
    }

    /// Replaces the names of files by their contents. `dev`: the development secret replaces a
    /// missing one.
    pub(super) fn read_secrets(&mut self, dev: bool) -> Result<(), Error> {
        read_secret("txm.postgres_url_file", &mut self.postgres_url, &self.postgres_url_file)?;
        self.chain.read_urls()?;
        self.auth.read_secrets(dev)
    }

    /// Checks the relations between keys.
    pub(super) fn validate(&self) -> Result<(), Error> {
        tls::check([
            ("txm.tls_certificate_file", &self.tls_certificate_file),
            ("txm.tls_key_file", &self.tls_key_file),
        ])?;
        if Cid::new(&self.node_id).is_none() {
            let allowed = "1 to 64 of A-Z a-z 0-9 _ . : -";
            return Err(range("txm.node_id", format!("{:?}", self.node_id), allowed));
        }
        if let Some(url) = self.url.as_ref().filter(|url| !is_http_url(url)) {
            return Err(range("txm.url", format!("{url:?}"), "an http:// or https:// URL"));
        }
        if let Some(url) = &self.postgres_url
            && let Err(why) = Address::parse(url.expose())
        {
            return Err(range("txm.postgres_url", url, format!("a postgres:// URL ({why})")));
        }
        self.chain.validate()?;
        self.lease.validate()?;
        self.signers.validate()
    }

    /// Checks the needs of a node. `core`: the tokens of the service. `dev`: limits may be missing,
    /// and the development secret is allowed.
    pub(super) fn validate_node(&self, core: &Auth, dev: bool) -> Result<(), Error> {
        self.chain.validate_node()?;
        self.signers.validate_node(dev)?;
        self.auth.validate(core, dev)?;
        self.keep_public_tokens_at_home()
    }

    /// The development secret is public, so both listeners must stay on the loopback address.
    ///
    /// # Errors
    /// [`Error::Range`]: one of them does not.
    pub fn keep_public_tokens_at_home(&self) -> Result<(), Error> {
        for (key, listen) in [("txm.listen", self.listen), ("txm.ops_listen", self.ops_listen)] {
            if self.auth.is_public() && !listen.ip().is_loopback() {
                let allowed = "a loopback address with the development secret";
                return Err(range(key, listen, allowed));
            }
        }
        Ok(())
    }

    /// A listener on every address has none that another node could tell a client.
    ///
    /// # Errors
    /// [`Error::Missing`]: `txm.listen` is such a one, and `txm.url` is not given.
    pub fn has_url(&self) -> Result<(), Error> {
        if self.listen.ip().is_unspecified() && self.url.is_none() {
            let advice = "txm.listen is every address; give the URL at which clients reach it";
            return Err(Error::Missing { key: "txm.url".into(), advice });
        }
        Ok(())
    }

    /// The manager's settings.
    pub fn options(&self) -> TxmOptions {
        let Txm { chain, lease, nonce, resubmit, confirmations, fee, .. } = self;
        let ms = Duration::from_millis;
        TxmOptions {
            chain_id: chain.chain_id,
            quorum: chain.quorum,
            poll: ms(chain.poll_ms),
            rpc_timeout: ms(chain.timeout_ms),
            calls_in_flight_max: chain.calls_in_flight_max,
            workers: 1,
            batch_max: self.batch_max,
            queue_max: self.queue_max,
            arrivals_poll: ms(self.poll_ms),
            lease_duration: ms(lease.duration_ms),
            lease_renew: ms(lease.renew_interval_ms),
            lease_skew: ms(lease.skew_ms),
            is_chain_queried: nonce.chain_query,
            counts_pending: nonce.chain_query_mode.is_pending(),
            nonce_state_timeout: ms(nonce.state_timeout_ms),
            external_use: nonce.external_use.into(),
            jump_max: nonce.jump_max,
            fill_after: ms(nonce.fill_after_ms),
            in_flight_max: self.submit.in_flight_max,
            is_resubmitted: resubmit.enabled,
            resubmit_interval: ms(resubmit.interval_ms),
            bump_after: resubmit.bump_after,
            attempts_max: resubmit.attempts_max,
            bump_percent: fee.bump_percent,
            caps: GasCaps {
                max_fee: txm_price::wei(fee.max_fee_gwei_max),
                tip: txm_price::wei(fee.tip_gwei_max),
                cost: txm_price::wei(fee.cost_gwei_max),
            },
            is_legacy: chain.legacy_fees,
            gas_margin_percent: self.gas.margin_percent,
            gas_max: self.gas.max,
            required: confirmations.required,
            finality: confirmations.policy.into(),
            stale: ms(confirmations.stale_receipt_timeout_ms),
            receipt_workers: confirmations.receipt_workers,
            is_receipt_asked_at_once: confirmations.fetch_receipt_upon_entry,
            watch_blocks: confirmations.watch_blocks,
            sign_timeout: ms(self.signers.timeout_ms),
            release_blind: ms(self.release_blind_ms),
            shutdown_timeout: ms(self.shutdown_timeout_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Txm;
    use crate::config::tests::assert_refused;

    #[test]
    fn a_listener_on_every_address_needs_a_url() {
        let at = |listen: &str, url: Option<&str>| Txm {
            listen: listen.parse().expect("an address"),
            url: url.map(str::to_owned),
            ..Txm::default()
        };
        for listen in ["0.0.0.0:8090", "[::]:8090"] {
            let refused = at(listen, None).has_url().expect_err(listen);
            assert!(refused.to_string().starts_with("txm.url is missing"), "{refused}");
            assert!(at(listen, Some("https://txm-1.internal:8090")).has_url().is_ok());
        }
        assert!(at("127.0.0.1:8090", None).has_url().is_ok());
    }

    #[test]
    fn names_urls_and_files_are_plain() {
        assert_refused(&[
            ("[txm]\nnode_id = \"\"", "txm.node_id = \"\": must be 1 to 64"),
            ("[txm]\nnode_id = \"a b\"", "txm.node_id = "),
            ("[txm]\nurl = \"here\"", "txm.url = \"here\": must be an http"),
            ("[txm]\npostgres_url = \"mysql://u:hunter2@h\"", "txm.postgres_url = ***"),
            ("[txm]\ntls_key_file = \"a.pem\"", "txm.tls_certificate_file is missing"),
            ("[txm]\nunknown = 1", "txm.unknown: unknown key"),
            ("[txm.chain]\nunknown = 1", "txm.chain.unknown: unknown key"),
        ]);
    }
}
