//! Keys, and the check of every answer of a signer: [`codec`] (bytes), [`keystore`] (files of this
//! machine), [`remote`] (a signer over HTTPS).

pub mod codec;
pub mod keystore;
pub mod remote;

use std::future::Future;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::fee::GasPrice;

/// A transaction to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsigned {
    /// The chain.
    pub chain_id: u64,
    /// The account that pays.
    pub signer: Address,
    /// Its nonce.
    pub nonce: u64,
    /// The account or contract that is called.
    pub to: Address,
    /// Wei.
    pub value: U256,
    /// The data of the call.
    pub data: Bytes,
    /// The gas limit.
    pub gas: u64,
    /// The prices. With `is_legacy` the `max_fee` is the one price.
    pub price: GasPrice,
    /// Type 0 with EIP-155 instead of type 2.
    pub is_legacy: bool,
}

/// The signed bytes, checked against the wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedBytes {
    /// The bytes that leave.
    pub raw: Bytes,
    /// Their hash.
    pub hash: B256,
}

/// Why nothing is signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// Not now.
    #[error("the signer does not answer: {0}")]
    Away(String),
    /// It signed something else than it was asked. CRITICAL.
    #[error("the signer answered another transaction: {0}")]
    Mismatch(String),
    /// The policy of this node forbids it.
    #[error("the policy forbids it: {0}")]
    Policy(String),
    /// There is no key for this address here.
    #[error("no key for this address here")]
    NoKey,
}

/// The keys of this node.
pub trait Signer: Send + Sync + 'static {
    /// The addresses that it can sign for, ascending.
    fn addresses(&self) -> Vec<Address>;

    /// Signs. The answer is decoded and compared field by field, its sender recovered.
    ///
    /// # Errors
    /// [`SignError`].
    fn sign(
        &self,
        unsigned: &Unsigned,
    ) -> impl Future<Output = Result<SignedBytes, SignError>> + Send;
}
