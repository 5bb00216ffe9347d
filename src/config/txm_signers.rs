//! The keys of a node, and the payloads that they may sign.

use std::path::PathBuf;

use alloy_primitives::{Address, U256};
use chain::payload;
use serde::Deserialize;
use txm::options::SignerPolicy;

use super::bound::{Bound, MINUTE_MS, bound};
use super::names::names;
use super::secret::Secret;
use super::{Error, is_http_url, range};

/// The word for the chain's own coin.
const NATIVE: &str = "native";
/// The word for any call.
const ANY: &str = "any";

/// The section `[txm.signers]`. It counts for each signer of this node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Signers {
    /// The directory of key files, Ethereum keystore version 3.
    pub keystore_dir: Option<PathBuf>,
    /// The file of their password; a file `NAME.password` beside the key file `NAME` comes first.
    pub password_file: Option<PathBuf>,
    /// The URL of a remote signer, `eth_signTransaction`. Secret: it may hold a password.
    pub remote_url: Option<Secret>,
    /// The addresses that the remote signer signs for.
    #[serde(deserialize_with = "names")]
    pub remote_addresses: Vec<String>,
    /// The certificates that the remote signer's issuer has, PEM.
    pub remote_ca_file: Option<PathBuf>,
    /// The client certificate for the remote signer, PEM.
    pub remote_certificate_file: Option<PathBuf>,
    /// Its private key, PEM.
    pub remote_key_file: Option<PathBuf>,
    /// Timeout of a signature, ms.
    pub timeout_ms: u64,
    /// The payloads that may be signed: `native`, addresses of tokens, `any`.
    #[serde(deserialize_with = "names")]
    pub allow: Vec<String>,
    /// The most outflow of each signer in an hour, `native=WEI` or `TOKEN=UNITS`.
    #[serde(deserialize_with = "names")]
    pub outflow_per_hour_max: Vec<String>,
}

impl Default for Signers {
    fn default() -> Self {
        Self {
            keystore_dir: None,
            password_file: None,
            remote_url: None,
            remote_addresses: Vec::new(),
            remote_ca_file: None,
            remote_certificate_file: None,
            remote_key_file: None,
            timeout_ms: 5_000,
            allow: vec![NATIVE.to_owned()],
            outflow_per_hour_max: Vec::new(),
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("txm.signers.timeout_ms", |c| Some(c.txm.signers.timeout_ms), 100, MINUTE_MS, "ms"),
];

impl Signers {
    /// The payloads that each signer of this node may sign.
    ///
    /// # Errors
    /// [`Error::Range`]: a text of `allow` or of `outflow_per_hour_max` is wrong.
    pub fn policy(&self) -> Result<SignerPolicy, Error> {
        let mut policy = SignerPolicy {
            is_native_allowed: false,
            tokens: Vec::new(),
            is_any_allowed: false,
            outflow_per_hour_max: Vec::new(),
        };
        for text in &self.allow {
            match text.as_str() {
                NATIVE => policy.is_native_allowed = true,
                ANY => policy.is_any_allowed = true,
                text => policy.tokens.push(address("txm.signers.allow", text)?),
            }
        }
        for text in &self.outflow_per_hour_max {
            let limit = limit(text)?;
            if policy.outflow_per_hour_max.iter().any(|(asset, _)| *asset == limit.0) {
                let allowed = "one limit an asset";
                return Err(range(OUTFLOW, format!("{text:?}"), allowed));
            }
            policy.outflow_per_hour_max.push(limit);
        }
        Ok(policy)
    }

    /// The addresses of the remote signer.
    ///
    /// # Errors
    /// [`Error::Range`]: a text is no address.
    pub fn remote(&self) -> Result<Vec<Address>, Error> {
        let texts = self.remote_addresses.iter();
        texts.map(|text| address("txm.signers.remote_addresses", text)).collect()
    }

    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.policy()?;
        self.remote()?;
        match self.remote_url.as_ref().filter(|url| !is_http_url(url.expose())) {
            Some(url) => Err(range("txm.signers.remote_url", url, "an http:// or https:// URL")),
            None => Ok(()),
        }
    }

    /// Checks the needs of a node. `dev`: limits may be missing.
    pub(super) fn validate_node(&self, dev: bool) -> Result<(), Error> {
        let missing = |key: &'static str, advice| Err(Error::Missing { key: key.into(), advice });
        if self.keystore_dir.is_none() && self.remote_url.is_none() {
            let advice = "name the directory of key files, or give txm.signers.remote_url";
            return missing("txm.signers.keystore_dir", advice);
        }
        if self.remote_url.is_some() && self.remote_addresses.is_empty() {
            let advice = "give the addresses that the remote signer signs for";
            return missing("txm.signers.remote_addresses", advice);
        }
        let plain = self.remote_url.as_ref().filter(|url| !url.expose().starts_with("https:"));
        if let Some(url) = plain.filter(|_| !dev) {
            return Err(range("txm.signers.remote_url", url, "an https:// URL"));
        }
        let policy = self.policy()?;
        let limited =
            |asset: Option<Address>| policy.outflow_per_hour_max.iter().any(|it| it.0 == asset);
        let native = policy.is_native_allowed || policy.is_any_allowed;
        let all = (!native || limited(None)) && policy.tokens.iter().all(|it| limited(Some(*it)));
        if !all && !dev {
            let advice = "give a limit for native and for each token of txm.signers.allow; \
                          only --dev goes without";
            return missing(OUTFLOW, advice);
        }
        Ok(())
    }
}

const OUTFLOW: &str = "txm.signers.outflow_per_hour_max";

fn address(key: &'static str, text: &str) -> Result<Address, Error> {
    payload::address(text).map_err(|why| range(key, format!("{text:?}"), why.to_string()))
}

/// `native=WEI` or `TOKEN=UNITS`.
fn limit(text: &str) -> Result<(Option<Address>, U256), Error> {
    let wrong = || range(OUTFLOW, format!("{text:?}"), "native=WEI or TOKEN=UNITS");
    let (asset, most) = text.split_once('=').ok_or_else(wrong)?;
    let most = payload::value(most).map_err(|_| wrong())?;
    match asset {
        NATIVE => Ok((None, most)),
        token => Ok((Some(address(OUTFLOW, token)?), most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{assert_refused, load};

    const TOKEN: &str = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";

    #[test]
    fn the_url_of_a_signer_is_not_shown() {
        let text = "[txm.signers]\nremote_url = \"https://u:hunter2@signer.example\"";
        let config = load(text, &[]).expect("loaded");
        let shown = format!("{config:?}");
        assert!(shown.contains("remote_url") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn policies_are_words_addresses_and_limits() {
        let text = format!(
            "[txm.signers]\nallow = [\"native\", \"{TOKEN}\"]\n\
             outflow_per_hour_max = [\"native=10\", \"{TOKEN}=0x10\"]"
        );
        let signers = load(&text, &[]).expect("loaded").txm.signers;
        let policy = signers.policy().expect("a policy");
        let token = Some(TOKEN.parse().expect("an address"));
        assert!(policy.is_native_allowed && !policy.is_any_allowed);
        let limits = vec![(None, U256::from(10)), (token, U256::from(16))];
        assert_eq!(policy.outflow_per_hour_max, limits);
        let given = [("UBSCORE__TXM__SIGNERS__ALLOW", "any, native")];
        let signers = load("", &given).expect("loaded").txm.signers;
        assert!(signers.policy().expect("a policy").is_any_allowed);
        assert_refused(&[
            ("[txm.signers]\nallow = [\"all\"]", "txm.signers.allow = \"all\": must be "),
            ("[txm.signers]\noutflow_per_hour_max = [\"native\"]", OUTFLOW),
            ("[txm.signers]\noutflow_per_hour_max = [\"native=-1\"]", OUTFLOW),
            ("[txm.signers]\noutflow_per_hour_max = [\"native=1\", \"native=2\"]", OUTFLOW),
            ("[txm.signers]\nremote_url = \"hunter2\"", "txm.signers.remote_url = ***: must be "),
            ("[txm.signers]\nremote_addresses = [\"0x1\"]", "txm.signers.remote_addresses = "),
        ]);
    }
}
