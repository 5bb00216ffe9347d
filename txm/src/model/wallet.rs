//! A key in memory, for tests and the simulation. The same number gives the same key.

use alloy_primitives::{Address, B256, keccak256};
use k256::ecdsa::SigningKey;

use crate::signer::{SignedBytes, Unsigned, codec};

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

    /// Signs. The sender is this key's, also if the wish names another one.
    ///
    /// # Panics
    /// Never: a hash can be signed.
    pub fn sign(&self, unsigned: &Unsigned) -> SignedBytes {
        let hash = codec::signature_hash(unsigned);
        let signed = self.key.sign_prehash_recoverable(hash.as_slice());
        let raw = codec::encode(unsigned, signed.expect("a hash has 32 bytes").into());
        SignedBytes { hash: keccak256(&raw), raw }
    }
}
