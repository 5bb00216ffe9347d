//! A raw transaction, decoded.

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, U256};

/// A transaction as a pool holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTx {
    /// The bytes.
    pub raw: Bytes,
    /// Their hash.
    pub hash: B256,
    /// The chain that it is signed for.
    pub chain_id: Option<u64>,
    /// Its sender.
    pub from: Address,
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
    /// The most that is paid for each gas, wei.
    pub max_fee: u128,
    /// The most tip of it, wei.
    pub max_tip: u128,
}

impl ModelTx {
    /// Decodes raw bytes; `None`: no pool can read them.
    pub fn decode(raw: &Bytes) -> Option<ModelTx> {
        let mut rest: &[u8] = raw;
        let envelope = TxEnvelope::decode_2718(&mut rest).ok().filter(|_| rest.is_empty())?;
        Some(ModelTx {
            raw: raw.clone(),
            hash: *envelope.tx_hash(),
            chain_id: envelope.chain_id(),
            from: envelope.recover_signer().ok()?,
            nonce: envelope.nonce(),
            to: envelope.to()?,
            value: envelope.value(),
            data: envelope.input().clone(),
            gas: envelope.gas_limit(),
            max_fee: envelope.max_fee_per_gas(),
            max_tip: envelope.priority_fee_or_price(),
        })
    }

    /// The gas that the bytes alone cost.
    pub fn intrinsic_gas(&self) -> u64 {
        let of = |byte: &u8| if *byte == 0 { 4 } else { 16 };
        chain::payload::TRANSFER_GAS + self.data.iter().map(of).sum::<u64>()
    }

    /// The most that it may cost, wei.
    pub fn cost_max(&self) -> U256 {
        U256::from(self.max_fee).saturating_mul(U256::from(self.gas)).saturating_add(self.value)
    }

    /// The price of each gas in a block, wei; `None`: the base fee is above it.
    pub fn price(&self, base_fee: u128) -> Option<u128> {
        (self.max_fee >= base_fee).then(|| self.max_fee.min(base_fee.saturating_add(self.max_tip)))
    }
}
