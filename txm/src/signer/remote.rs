//! Keys elsewhere: a signer that answers `eth_signTransaction` over HTTPS, for example Web3Signer.
//!
//! The other side is believed in nothing: each answer is checked as [`codec::check`] does it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_primitives::Address;
use chain::payload::address_text;
use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

use super::{SignError, SignedBytes, Signer, Unsigned, codec};
use crate::rpc::client::{RpcClient, RpcUrlError};
use crate::rpc::{RpcError, hex, json};

/// The most signatures under way.
const CALLS_MAX: usize = 16;

/// A signer at an address.
pub struct RemoteSigner {
    client: RpcClient,
    addresses: Vec<Address>,
    next: AtomicU64,
}

impl RemoteSigner {
    /// A signer. `hosts`: the hosts that may be asked. Plain `http` is allowed to this machine
    /// alone. `addresses`: the accounts that it has the keys of. `tls`: the roots, and the
    /// certificate of this node if the signer asks for one. `timeout`: of one signature.
    ///
    /// # Errors
    /// [`RpcUrlError`].
    pub fn new(
        url: &str,
        hosts: &[String],
        addresses: &[Address],
        tls: Option<ClientConfig>,
        timeout: Duration,
    ) -> Result<RemoteSigner, RpcUrlError> {
        let client = RpcClient::new(url, tls, timeout, CALLS_MAX)?;
        client.restrict(hosts)?;
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(RemoteSigner { client, addresses, next: AtomicU64::new(1) })
    }

    /// Host and port: logs may show them.
    pub fn name(&self) -> &str {
        self.client.name()
    }

    async fn ask(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        if self.addresses.binary_search(&unsigned.signer).is_err() {
            return Err(SignError::NoKey);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let body = json::request(id, "eth_signTransaction", json!([wish(unsigned)]));
        let answer = self.client.post(&body).await.map_err(away)?;
        let (_, outcome) = json::outcome(answer)
            .filter(|(told, _)| *told == id)
            .ok_or_else(|| SignError::Away("another id".to_owned()))?;
        let result = outcome.map_err(away)?;
        // Web3Signer answers the bytes alone; geth puts them beside the transaction.
        let raw = result.get("raw").unwrap_or(&result);
        let raw = hex::data(raw).ok_or_else(|| SignError::Mismatch("no bytes".to_owned()))?;
        codec::check(&raw, unsigned)
    }
}

impl Signer for RemoteSigner {
    fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    async fn sign(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        let signed = self.ask(unsigned).await;
        if let Err(SignError::Mismatch(about)) = &signed {
            let signer = self.name();
            tracing::error!(signer, account = %unsigned.signer, nonce = unsigned.nonce, %about, "signer_mismatch: the signer answered another transaction than was asked, and it is dropped");
            metrics::counter!("ubscore_signer_mismatch_total").increment(1);
        }
        signed
    }
}

fn away(error: RpcError) -> SignError {
    SignError::Away(error.to_string())
}

/// The transaction as `eth_signTransaction` takes it.
fn wish(unsigned: &Unsigned) -> Value {
    let mut wish = json!({
        "from": address_text(&unsigned.signer),
        "to": address_text(&unsigned.to),
        "gas": json::quantity(unsigned.gas),
        "value": format!("{:#x}", unsigned.value),
        "nonce": json::quantity(unsigned.nonce),
        "data": unsigned.data.to_string(),
        "chainId": json::quantity(unsigned.chain_id),
    });
    let fee = format!("{:#x}", unsigned.price.max_fee);
    if unsigned.is_legacy {
        wish["gasPrice"] = fee.into();
    } else {
        wish["maxFeePerGas"] = fee.into();
        wish["maxPriorityFeePerGas"] = format!("{:#x}", unsigned.price.max_tip).into();
    }
    wish
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Bytes, U256};
    use chain::fee::GasPrice;

    use super::*;
    use crate::model::wallet::Wallet;
    use crate::rpc::stub::{Reply, Stub};

    fn unsigned(wallet: &Wallet, is_legacy: bool) -> Unsigned {
        Unsigned {
            chain_id: 31_337,
            signer: wallet.address(),
            nonce: 7,
            to: Address::repeat_byte(3),
            value: U256::from(5),
            data: Bytes::from_static(&[1, 2]),
            gas: 30_000,
            price: GasPrice { max_fee: 30, max_tip: 2 },
            is_legacy,
        }
    }

    fn local() -> Vec<String> {
        vec!["127.0.0.1".to_owned()]
    }

    fn remote(stub: &Stub, wallet: &Wallet) -> RemoteSigner {
        let second = Duration::from_secs(10);
        RemoteSigner::new(&stub.url, &local(), &[wallet.address()], None, second).expect("allowed")
    }

    #[tokio::test]
    async fn a_signature_is_asked_for_and_checked() {
        let wallet = Wallet::new(5);
        for is_legacy in [false, true] {
            let unsigned = unsigned(&wallet, is_legacy);
            let signed = wallet.sign(&unsigned);
            for is_object in [false, true] {
                let raw = json!(signed.raw.to_string());
                let result = if is_object { json!({ "raw": raw, "tx": {} }) } else { raw };
                let stub = Stub::results(move |_| result.clone()).await;
                let asked = remote(&stub, &wallet).sign(&unsigned).await;
                assert_eq!(asked.as_ref(), Ok(&signed));
                let request = &stub.requests()[0];
                assert_eq!(request["method"], "eth_signTransaction");
                let wish = &request["params"][0];
                assert_eq!(wish["nonce"], "0x7");
                assert_eq!(wish["data"], "0x0102");
                assert_eq!(wish.get("gasPrice").is_some(), is_legacy);
                assert_eq!(wish.get("maxFeePerGas").is_some(), !is_legacy);
            }
        }
    }

    #[tokio::test]
    async fn another_transaction_is_a_mismatch_and_silence_is_none() {
        let wallet = Wallet::new(5);
        let unsigned = unsigned(&wallet, false);
        let other_nonce = wallet.sign(&Unsigned { nonce: 8, ..unsigned.clone() });
        let other_key = Wallet::new(6).sign(&unsigned);
        for raw in [other_nonce.raw, other_key.raw, Bytes::from_static(&[2]), Bytes::new()] {
            let stub = Stub::results(move |_| json!(raw.to_string())).await;
            let signed = remote(&stub, &wallet).sign(&unsigned).await;
            assert!(matches!(signed, Err(SignError::Mismatch(_))), "{signed:?}");
        }
        let error = json!({ "code": -32000, "message": "no" });
        let other_id = json!({ "jsonrpc": "2.0", "id": 99, "result": "0x" });
        let said = json!({ "jsonrpc": "2.0", "id": 1, "error": error });
        for reply in [Reply::Json(other_id), Reply::Json(said), Reply::Bytes(Vec::new())] {
            let stub = Stub::start(move |_| reply.clone()).await;
            let signed = remote(&stub, &wallet).sign(&unsigned).await;
            assert!(matches!(signed, Err(SignError::Away(_))), "{signed:?}");
        }
        let stub = Stub::results(|_| json!("0x")).await;
        let signed = remote(&stub, &Wallet::new(6)).sign(&unsigned).await;
        assert_eq!(signed, Err(SignError::NoKey));
        assert!(stub.requests().is_empty());
    }

    #[test]
    fn only_hosts_that_are_allowed_are_asked() {
        let new = |url, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            RemoteSigner::new(url, &hosts, &[], None, Duration::from_secs(1)).err()
        };
        assert_eq!(new("https://signer.example:9000/", &["signer.example"]), None);
        assert_eq!(new("http://127.0.0.1:9000", &["127.0.0.1"]), None);
        assert_eq!(new("https://signer.example", &["127.0.0.1"]), Some(RpcUrlError::Host));
        assert_eq!(new("http://signer.example", &["signer.example"]), Some(RpcUrlError::Plain));
        assert_eq!(new("https://a@evil.example", &["a"]), Some(RpcUrlError::Host));
        assert_eq!(new("ftp://signer.example", &["signer.example"]), Some(RpcUrlError::Scheme));
        assert_eq!(new("signer.example", &["signer.example"]), Some(RpcUrlError::Form));
    }
}
