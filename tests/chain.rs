//! The chain of the tests: the node, the contracts and the endpoint before it do exactly what
//! `docs/chain-node.md` and the harness say.

use alloy_primitives::{Address, B256, address};
use serde_json::Value;

use crate::harness::{ACCOUNTS, Chain, Draft, number};

/// Blocks, reorganizations, the pool and the texts of the node.
mod node;

/// The rules that the endpoint adds to the node's pool.
mod pool;

/// Each lie and failure of the endpoint.
mod lies;

/// Tokens that pay, and those that do not.
mod contracts;

/// The model of the chain, which the simulation of the manager runs on, against the node.
mod compared;

/// The account that sends.
const SENDER: Address = ACCOUNTS[0];
/// An account that has nothing at the start.
const PAYEE: Address = address!("00000000000000000000000000000000000000b0");

/// A signed payment from [`SENDER`] to [`PAYEE`].
fn payment(chain: &Chain, nonce: u64, wei: u64) -> Vec<u8> {
    chain.sign(SENDER, &Draft::payment(nonce, PAYEE, wei))
}

/// A receipt that exists.
fn receipt(chain: &Chain, hash: B256) -> Value {
    chain.receipt(hash).unwrap_or_else(|| panic!("no receipt of {hash}"))
}

/// The height that a receipt names.
fn height_of(receipt: &Value) -> u64 {
    number(&receipt["blockNumber"])
}
