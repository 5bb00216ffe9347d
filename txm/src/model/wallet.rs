//! A key in memory, for tests and the simulation. The same number gives the same key.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Signature};
use k256::ecdsa::SigningKey;

use crate::signer::{SignedBytes, Unsigned};

/// A key.
#[derive(Clone, Debug)]
pub struct Wallet {
    key: SigningKey,
}

impl Wallet {
    /// The key of a number. `number`: 1 and more.
    ///
    /// # Panics
    /// With 0, which is no key.
    pub fn new(number: u64) -> Wallet {
        let bytes = B256::left_padding_from(&number.to_be_bytes());
        Wallet { key: SigningKey::from_slice(bytes.as_slice()).expect("a number above 0 is a key") }
    }

    /// Its address.
    pub fn address(&self) -> Address {
        Address::from_public_key(self.key.verifying_key())
    }

    /// Signs, whichever sender was asked for.
    pub fn sign(&self, unsigned: &Unsigned) -> SignedBytes {
        let Unsigned { chain_id, nonce, to, value, ref data, gas, price, is_legacy, .. } =
            *unsigned;
        let (to, input) = (to.into(), data.clone());
        let envelope: TxEnvelope = if is_legacy {
            let tx = TxLegacy {
                chain_id: Some(chain_id),
                nonce,
                gas_price: price.max_fee,
                gas_limit: gas,
                to,
                value,
                input,
            };
            self.seal(tx)
        } else {
            let tx = TxEip1559 {
                chain_id,
                nonce,
                gas_limit: gas,
                max_fee_per_gas: price.max_fee,
                max_priority_fee_per_gas: price.max_tip,
                to,
                value,
                access_list: Default::default(),
                input,
            };
            self.seal(tx)
        };
        SignedBytes { raw: envelope.encoded_2718().into(), hash: *envelope.tx_hash() }
    }

    fn seal<T: SignableTransaction<Signature>>(&self, tx: T) -> TxEnvelope
    where
        alloy_consensus::Signed<T>: Into<TxEnvelope>,
    {
        let hash = tx.signature_hash();
        let (signature, parity) =
            self.key.sign_prehash_recoverable(hash.as_slice()).expect("a hash has 32 bytes");
        let signed: alloy_consensus::Signed<T> = tx.into_signed((signature, parity).into());
        signed.into()
    }
}
