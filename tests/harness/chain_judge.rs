//! A chain and everything that left the nodes, compared with the rows.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{B256, hex, keccak256};
use serde_json::{Value, json};

use super::chain::{Rpc, hex_of, number};
use super::{Session, text};

/// The attempts that pay, by their number: PAY and BUMP.
const PAYS: [&str; 2] = ["1", "2"];

/// An attempt, and its row.
struct Attempt {
    signer: String,
    nonce: u64,
    /// The row's business key, or the row itself.
    key: String,
    pays: bool,
}

/// Fails unless each raw transaction that left is an attempt, each nonce of our signers on chain is
/// a row of ours, and no business key is paid twice.
///
/// `url`: the database. `left` returns every raw transaction that left a node. `foreign`:
/// transactions with our keys that the test made, or that a restored database has forgotten and
/// that are not to be mined. Nodes may run on. Returns the mined payments of
/// our rows.
pub(crate) fn judge_chain(
    url: &str,
    chain: &Rpc,
    left: impl FnOnce() -> Vec<Vec<u8>>,
    foreign: &[B256],
) -> Vec<Value> {
    // The rows are read last: each of these is stored before it leaves.
    let (left, mined, rows) = (left(), transactions(chain), Session::of(url));
    let raws = rows.sql("SELECT encode(raw, 'hex') FROM txm.tx_attempts");
    let raws: BTreeSet<String> = raws.into_iter().flatten().collect();
    for raw in left.iter().filter(|raw| !foreign.contains(&keccak256(raw))) {
        assert!(raws.contains(&hex::encode(raw)), "left, and is not stored: {}", hex::encode(raw));
    }
    let signers = rows.sql("SELECT signer FROM txm.signers");
    let signers: BTreeSet<String> = signers.into_iter().flatten().collect();
    let attempts = attempts(&rows);
    let (mut paid, mut payments) = (BTreeSet::new(), Vec::new());
    for transaction in mined {
        let (hash, from) = (text(&transaction["hash"]), text(&transaction["from"]));
        let is_foreign = || foreign.contains(&hash.parse().expect("a hash"));
        if !signers.contains(from) || is_foreign() {
            continue;
        }
        let attempt =
            attempts.get(hash).unwrap_or_else(|| panic!("no row has this one: {transaction}"));
        let at = (attempt.signer.as_str(), attempt.nonce);
        assert_eq!(at, (from, number(&transaction["nonce"])), "{transaction}");
        let receipt = || ask(chain, "eth_getTransactionReceipt", json!([hash]));
        if attempt.pays && receipt()["status"] == json!("0x1") {
            assert!(paid.insert(attempt.key.clone()), "paid twice: {}", attempt.key);
            payments.push(transaction);
        }
    }
    payments
}

fn ask(chain: &Rpc, method: &str, params: Value) -> Value {
    chain.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
}

/// Every mined transaction, in order.
fn transactions(chain: &Rpc) -> Vec<Value> {
    let block = |height: u64| ask(chain, "eth_getBlockByNumber", json!([hex_of(height), true]));
    let all = |height| block(height)["transactions"].as_array().expect("a list").clone();
    (1..=number(&ask(chain, "eth_blockNumber", json!([])))).flat_map(all).collect()
}

/// Every attempt, by its hash.
fn attempts(rows: &Session) -> BTreeMap<String, Attempt> {
    let rows = rows.sql(
        "SELECT '0x' || encode(a.tx_hash, 'hex'), t.signer, t.nonce, \
                coalesce('key ' || t.business_key, 'row ' || t.tx_id), a.kind \
           FROM txm.tx_attempts a JOIN txm.managed_tx t USING (tx_id)",
    );
    let read = |row: Vec<String>| {
        let [hash, signer, nonce, key, kind] = row.try_into().expect("five columns");
        let nonce = nonce.parse().expect("an attempt has a nonce");
        (hash, Attempt { signer, nonce, key, pays: PAYS.contains(&kind.as_str()) })
    };
    rows.into_iter().map(read).collect()
}
