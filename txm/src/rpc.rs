//! Endpoints of the chain: one call of JSON-RPC, typed, and what several endpoints say together.

pub mod breaker;
pub mod client;
mod heads;
pub(crate) mod hex;
pub mod http;
pub mod json;
pub mod look;
mod member;
pub mod pool;
mod raw;
#[cfg(test)]
pub(crate) mod stub;
pub mod told;

use std::future::Future;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::view::BlockRef;

/// A block that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAt {
    /// The head.
    Latest,
    /// With the pool.
    Pending,
    /// The tag `safe`.
    Safe,
    /// The tag `finalized`.
    Finalized,
    /// A height.
    Number(u64),
    /// A hash (EIP-1898).
    Hash(B256),
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcCall {
    /// `eth_chainId`.
    ChainId,
    /// `eth_getBlockByNumber` or `eth_getBlockByHash`, without transactions.
    Block(BlockAt),
    /// `eth_getTransactionCount`.
    Count(Address, BlockAt),
    /// `eth_sendRawTransaction`.
    Send(Bytes),
    /// `eth_getTransactionReceipt`.
    Receipt(B256),
    /// `eth_getTransactionByHash`: whether the endpoint knows it.
    Transaction(B256),
    /// `eth_getTransactionByHash`: its signed bytes, put together from its fields.
    Raw(B256),
    /// `eth_getTransactionBySenderAndNonce`.
    BySenderAndNonce(Address, u64),
    /// `eth_estimateGas`.
    Estimate {
        /// The account that pays.
        from: Address,
        /// The account or contract that is called.
        to: Address,
        /// Wei.
        value: U256,
        /// The data of the call.
        data: Bytes,
    },
    /// `eth_getBalance`, at the head.
    Balance(Address),
    /// `balanceOf` of a token, by `eth_call` at the head.
    TokenBalance {
        /// The token.
        contract: Address,
        /// Of this account.
        account: Address,
    },
    /// `eth_getCode`: its length.
    CodeLength(Address),
    /// `eth_feeHistory`: the usual tip of the last blocks.
    Tip,
}

impl RpcCall {
    /// Whether an endpoint looks the answer up at once, so that questions of several signers may
    /// share a request. A slow one would take the time of the others.
    pub(crate) fn is_light(&self) -> bool {
        matches!(
            self,
            RpcCall::Count(..)
                | RpcCall::Receipt(_)
                | RpcCall::Transaction(_)
                | RpcCall::Raw(_)
                | RpcCall::Balance(_)
                | RpcCall::CodeLength(_)
        )
    }
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its place.
    pub at: BlockRef,
    /// Its base fee, wei.
    pub base_fee: u128,
}

/// A log of a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptLog {
    /// The contract.
    pub contract: Address,
    /// Its topics.
    pub topics: Vec<B256>,
    /// Its data.
    pub data: Bytes,
}

/// A receipt as an endpoint says it, not believed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptRead {
    /// Of this transaction.
    pub hash: B256,
    /// Its sender.
    pub from: Address,
    /// Its block's height.
    pub block_number: u64,
    /// Its block's hash.
    pub block_hash: B256,
    /// Whether its status is 1. It is 0 otherwise.
    pub is_success: bool,
    /// The gas that was used.
    pub gas_used: u64,
    /// The price of each, wei.
    pub gas_price: u128,
    /// Its logs.
    pub logs: Vec<ReceiptLog>,
}

/// A transaction as an endpoint says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionRead {
    /// Its hash.
    pub hash: B256,
    /// Its sender.
    pub from: Address,
    /// Its nonce.
    pub nonce: u64,
    /// Its block; `None`: in the pool.
    pub block: Option<(u64, B256)>,
}

/// The answer to a call. The variant is the call's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcValue {
    /// Of ChainId, Count, Estimate and CodeLength.
    Number(u64),
    /// Of Block; `None`: not there.
    Block(Option<Block>),
    /// Of Send: the hash.
    Hash(B256),
    /// Of Receipt; `None`: not found.
    Receipt(Option<Box<ReceiptRead>>),
    /// Of Transaction and BySenderAndNonce; `None`: not found, also of Raw.
    Transaction(Option<TransactionRead>),
    /// Of Raw: bytes with the hash that was asked; `None`: it has another form than ours.
    Raw(Option<Bytes>),
    /// Of Balance, TokenBalance and Tip: wei, or units of a token.
    Amount(U256),
}

/// Why there is no answer to believe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The endpoint said an error of JSON-RPC.
    #[error("{code}: {message}")]
    Said {
        /// Its number.
        code: i64,
        /// Its words.
        message: String,
        /// The text in its data.
        data: Option<String>,
    },
    /// No answer, half of one, too much, or one that is not the call's. A send may have arrived.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// One endpoint. A batch is at most 100 calls; its answers are in the order of the calls.
pub trait Endpoint: Send + Sync + 'static {
    /// Its name in answers and metrics: host and port.
    fn name(&self) -> &str;

    /// Makes calls, in their order, in one batch.
    fn calls(
        &self,
        calls: &[RpcCall],
    ) -> impl Future<Output = Vec<Result<RpcValue, RpcError>>> + Send;
}
