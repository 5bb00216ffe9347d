//! The rules of a common pool, where the node of the tests has none.

use alloy_consensus::transaction::SignerRecoverable;
use alloy_consensus::{Transaction, TxEnvelope};
use alloy_eips::Decodable2718;
use alloy_primitives::Address;
use serde_json::{Value, json};

use super::chain::{Rpc, hex_of, number};

/// The smallest raise of both fees of a replacement, percent. Source: geth, `--txpool.pricebump`.
pub(crate) const BUMP_PERCENT: u128 = 10;
/// The transactions of one account that can be mined. Source: geth, `--txpool.accountslots`.
pub(crate) const PENDING_MAX: u64 = 16;
/// Those behind a gap. Source: geth, `--txpool.accountqueue`.
pub(crate) const QUEUED_MAX: u64 = 64;

/// The refusals, as geth writes them.
pub(crate) const REPLACEMENT: &str = "replacement transaction underpriced";
pub(crate) const FULL: &str = "txpool is full";

/// The part of a raw transaction that the rules compare.
struct Bid {
    sender: Address,
    nonce: u64,
    fee_max: u128,
    tip: u128,
}

/// `None`: no transaction; the node refuses it by itself.
fn bid(raw: &[u8]) -> Option<Bid> {
    let transaction = TxEnvelope::decode_2718_exact(raw).ok()?;
    let sender = transaction.recover_signer().ok()?;
    let fee_max = transaction.max_fee_per_gas();
    // One price is both.
    let tip = transaction.max_priority_fee_per_gas().unwrap_or(fee_max);
    Some(Bid { sender, nonce: transaction.nonce(), fee_max, tip })
}

/// A transaction of the pool: its nonce, its hash, and its two fees.
struct Pooled {
    nonce: u64,
    hash: String,
    fee_max: u128,
    tip: u128,
}

/// The transactions of one account in the node's pool.
fn pool_of(node: &Rpc, account: Address) -> Result<Vec<Pooled>, ureq::Error> {
    let content = node.try_call("txpool_content", json!([]))?.expect("the pool");
    let name = hex_of(account);
    let of = |part: &str| {
        let entries = content[part].get(&name).and_then(Value::as_object);
        entries.into_iter().flatten().map(|(nonce, entry)| {
            let fee = |name: &str| {
                let fee =
                    entry.get(name).filter(|fee| !fee.is_null()).unwrap_or(&entry["gasPrice"]);
                u128::from(number(fee))
            };
            Pooled {
                nonce: nonce.parse().expect("a number"),
                hash: entry["hash"].as_str().expect("a hash").to_owned(),
                fee_max: fee("maxFeePerGas"),
                tip: fee("maxPriorityFeePerGas"),
            }
        })
    };
    Ok(of("pending").chain(of("queued")).collect())
}

/// Whether `new` is at least [`BUMP_PERCENT`] above `old`, in whole wei, rounded up.
fn is_raised(old: u128, new: u128) -> bool {
    new > old && new.saturating_mul(100) >= old.saturating_mul(100 + BUMP_PERCENT)
}

/// The refusal that a common pool would answer to this transaction; `None`: it would take it, or
/// refuse it for a reason that the node of the tests has as well.
///
/// # Errors
/// The node does not answer.
pub(super) fn objection(
    node: &Rpc,
    raw: &[u8],
    hash: &str,
) -> Result<Option<&'static str>, ureq::Error> {
    let Some(bid) = bid(raw) else { return Ok(None) };
    let pool = pool_of(node, bid.sender)?;
    if pool.iter().any(|pooled| pooled.hash == hash) {
        return Ok(None);
    }
    if let Some(old) = pool.iter().find(|pooled| pooled.nonce == bid.nonce) {
        let raised = is_raised(old.fee_max, bid.fee_max) && is_raised(old.tip, bid.tip);
        return Ok((!raised).then_some(REPLACEMENT));
    }
    let count = node.try_call("eth_getTransactionCount", json!([hex_of(bid.sender), "latest"]))?;
    let mined = number(&count.expect("a count"));
    let has = |nonce: u64| pool.iter().any(|pooled| pooled.nonce == nonce);
    // The first nonce that is neither mined nor in the pool.
    let next = (mined..).find(|nonce| !has(*nonce)).expect("a pool is finite");
    if bid.nonce <= next {
        return Ok((bid.nonce >= mined + PENDING_MAX).then_some(FULL));
    }
    let queued = pool.iter().filter(|pooled| pooled.nonce > next).count();
    Ok((queued as u64 >= QUEUED_MAX).then_some(FULL))
}
