//! A key of the tests, and faults of its signer.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, Bytes, Signature, TxKind, U256};
use k256::ecdsa::SigningKey;
use parking_lot::Mutex;

use crate::signer::{SignError, SignedBytes, Signer, Unsigned};

/// One key.
pub(super) struct Key {
    key: SigningKey,
    /// So many of the next signatures fail.
    pub away: Mutex<u32>,
    /// Everything that was signed.
    pub signed: Mutex<Vec<Unsigned>>,
}

impl Key {
    pub(super) fn new() -> Key {
        let key = SigningKey::from_slice(&[7; 32]).expect("a scalar");
        Key { key, away: Mutex::new(0), signed: Mutex::new(Vec::new()) }
    }

    pub(super) fn address(&self) -> Address {
        Address::from_public_key(self.key.verifying_key())
    }

    /// Signs, outside of any owner.
    pub(super) fn raw(&self, unsigned: &Unsigned) -> SignedBytes {
        let tx = TxEip1559 {
            chain_id: unsigned.chain_id,
            nonce: unsigned.nonce,
            gas_limit: unsigned.gas,
            max_fee_per_gas: unsigned.price.max_fee,
            max_priority_fee_per_gas: unsigned.price.max_tip,
            to: TxKind::Call(unsigned.to),
            value: unsigned.value,
            access_list: Default::default(),
            input: unsigned.data.clone(),
        };
        let hash = tx.signature_hash();
        let (signature, parity) =
            self.key.sign_prehash_recoverable(hash.as_slice()).expect("a hash of 32 bytes");
        let part = |bytes: &[u8]| U256::from_be_slice(bytes);
        let signature = Signature::new(
            part(&signature.r().to_bytes()),
            part(&signature.s().to_bytes()),
            parity.is_y_odd(),
        );
        let envelope = TxEnvelope::from(tx.into_signed(signature));
        SignedBytes { raw: Bytes::from(envelope.encoded_2718()), hash: *envelope.tx_hash() }
    }
}

impl Signer for std::sync::Arc<Key> {
    fn addresses(&self) -> Vec<Address> {
        vec![self.address()]
    }

    async fn sign(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let mut away = self.away.lock();
        if *away > 0 {
            *away -= 1;
            return Err(SignError::Away("test".to_owned()));
        }
        self.signed.lock().push(unsigned.clone());
        Ok(self.raw(unsigned))
    }
}
