//! The node itself, without an endpoint before it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use alloy_primitives::{Address, B256, U256, address, hex};
use serde_json::json;

use super::{PAYEE, SENDER, height_of, payment, receipt};
use crate::harness::{
    ACCOUNTS, CHAIN_ID, Chain, Draft, FIRST_BASE_FEE, NodeError, SLOTS_IN_AN_EPOCH, hash, hex_of,
    number,
};

/// Whether a block is found by its hash.
fn has_block(chain: &Chain, hash: B256) -> bool {
    !chain.ask("eth_getBlockByHash", json!([hex_of(hash), false])).is_null()
}

#[test]
fn a_node_mines_on_demand_alone() {
    let chain = Chain::start();
    assert_eq!(number(&chain.ask("eth_chainId", json!([]))), CHAIN_ID);
    let coins = ACCOUNTS.map(|account| chain.balance(account));
    assert_eq!(coins, [U256::from(10_000) * U256::from(10).pow(U256::from(18)); 10], "wei");
    let raw = payment(&chain, 0, 7);
    let sent = chain.send(&raw).expect("taken");
    assert_eq!((chain.height(), chain.nonce(SENDER), chain.pending_nonce(SENDER)), (0, 0, 1));
    assert_eq!(chain.receipt(sent), None);
    assert!(chain.transaction(sent).expect("in the pool")["blockHash"].is_null());
    chain.mine(3);
    assert_eq!((chain.height(), chain.nonce(SENDER), chain.pending_nonce(SENDER)), (3, 1, 1));
    let receipt = receipt(&chain, sent);
    assert_eq!((&receipt["status"], height_of(&receipt)), (&json!("0x1"), 1));
    assert_eq!(chain.balance(PAYEE), U256::from(7));
    let by_nonce = chain.ask("eth_getTransactionBySenderAndNonce", json!([hex_of(SENDER), "0x0"]));
    assert_eq!(hash(&by_nonce["hash"]), sent);
    // The count at a block's hash, which a follower asks for.
    for (height, count) in [(0, "0x0"), (1, "0x1"), (3, "0x1")] {
        let at = json!([hex_of(SENDER), {"blockHash": hex_of(chain.block_hash(height))}]);
        assert_eq!(chain.ask("eth_getTransactionCount", at), count, "at {height}");
    }
    chain.set_balance(PAYEE, U256::from(1_000));
    assert_eq!(chain.balance(PAYEE), U256::from(1_000));
}

#[test]
fn the_tags_lie_behind_the_head_by_slots() {
    let chain = Chain::start();
    for height in [0, 3, 12] {
        chain.mine(height - chain.height());
        let expected = [0, 1, 2].map(|epochs| height.saturating_sub(epochs * SLOTS_IN_AN_EPOCH));
        let tags = ["latest", "safe", "finalized"].map(|tag| chain.tagged(tag));
        assert_eq!(tags, expected, "latest, safe and finalized at {height}");
    }
}

#[test]
fn a_reorganization_loses_the_transactions_that_are_not_listed() {
    let chain = Chain::start();
    let raws = [0, 1, 2].map(|nonce| payment(&chain, nonce, 1));
    let mut hashes = Vec::new();
    for raw in &raws {
        hashes.push(chain.send(raw).expect("taken"));
        chain.mine(1);
    }
    let orphan = chain.block_hash(2);
    chain.reorg(2, &[(&raws[1], 1)]);
    assert_eq!(chain.height(), 3, "the head's number stays");
    assert!(!has_block(&chain, orphan), "the old block is not found by its hash");
    assert_ne!(chain.block_hash(2), orphan);
    let heights = hashes.iter().map(|hash| chain.receipt(*hash).map(|found| height_of(&found)));
    // The first one was below; the second one has moved up; the third one is gone.
    assert_eq!(heights.collect::<Vec<_>>(), [Some(1), Some(3), None]);
    assert_eq!(chain.transaction(hashes[2]), None, "nor is it in the pool");
    assert_eq!((chain.nonce(SENDER), chain.pending_nonce(SENDER)), (2, 2));
    // The same bytes bring it back.
    assert_eq!(chain.send(&raws[2]).expect("taken"), hashes[2]);
    chain.mine(1);
    assert_eq!(height_of(&receipt(&chain, hashes[2])), 4);
}

/// Story: a cancel was mined, and the hold of the payment was released. The block was reorganized,
/// and the payment stood in its place.
#[test]
fn a_mined_cancel_is_reorganized_into_the_payment() {
    let chain = Chain::start();
    let pays = payment(&chain, 0, 5);
    let cancel = chain.sign(SENDER, &Draft::payment(0, SENDER, 0));
    let cancelled = chain.send(&cancel).expect("taken");
    chain.mine(1);
    assert_eq!(receipt(&chain, cancelled)["status"], "0x1");
    assert_eq!(chain.send(&pays).expect_err("mined").message, "nonce too low");
    chain.reorg(1, &[(&pays, 0)]);
    assert_eq!(chain.receipt(cancelled), None);
    assert_eq!(chain.balance(PAYEE), U256::from(5));
}

#[test]
fn a_reorganization_reaches_below_finalized() {
    let chain = Chain::start();
    let sent = chain.send(&payment(&chain, 0, 1)).expect("taken");
    chain.mine(8);
    assert!(chain.tagged("finalized") >= height_of(&receipt(&chain, sent)));
    chain.reorg(8, &[]);
    assert_eq!((chain.height(), chain.receipt(sent)), (8, None));
    let deeper = chain.rpc().call("anvil_reorg", json!([9, []]));
    assert!(deeper.expect_err("block 0 stays").message.starts_with("Reorg depth"));
}

/// Transactions that wait behind nonces that a reorganization took away cannot be mined. This node
/// drops them with the next block.
#[test]
fn the_pool_above_a_reorganized_nonce_is_dropped_with_the_next_block() {
    let chain = Chain::start();
    chain.send(&payment(&chain, 0, 1)).expect("taken");
    chain.mine(1);
    let waits = chain.send(&payment(&chain, 1, 1)).expect("taken");
    chain.reorg(1, &[]);
    assert_eq!(chain.nonce(SENDER), 0);
    assert!(chain.transaction(waits).is_some(), "the reorganization leaves it in the pool");
    chain.mine(1);
    assert_eq!((chain.nonce(SENDER), chain.transaction(waits)), (0, None));
}

/// Story: a node's audit did not find a mined payment, since its bytes had come again within the
/// reorganization that mined them.
#[test]
fn a_queued_transaction_that_a_reorganization_mines_stays_in_the_pool() {
    let chain = Chain::start();
    let raws = [0, 1].map(|nonce| payment(&chain, nonce, 1));
    chain.mine(1);
    for raw in &raws {
        chain.send(raw).expect("taken");
    }
    chain.mine(1);
    chain.rollback(1);
    let queued = chain.send(&raws[1]).expect("queued");
    chain.reorg(1, &[(&raws[0], 0), (&raws[1], 0)]);
    chain.mine(4);
    assert_eq!((height_of(&receipt(&chain, queued)), chain.nonce(SENDER)), (1, 2));
    let shown = chain.transaction(queued).expect("shown");
    assert!(shown["blockHash"].is_null(), "as not mined: {shown}");
    assert!(!chain.drop_transaction(queued), "only those that can be mined are dropped");
    chain.ask("anvil_dropAllTransactions", json!([]));
    assert!(!chain.transaction(queued).expect("shown")["blockHash"].is_null());
}

#[test]
fn a_rollback_lowers_the_head_and_keeps_the_pool() {
    let chain = Chain::start();
    chain.mine(3);
    let left = chain.block_hash(3);
    let sent = chain.send(&payment(&chain, 0, 1)).expect("taken");
    chain.mine(2);
    let waits = chain.send(&chain.sign(ACCOUNTS[1], &Draft::payment(0, PAYEE, 1))).expect("taken");
    chain.rollback(2);
    assert_eq!((chain.height(), chain.block_hash(3), chain.block(4)), (3, left, None));
    assert_eq!((chain.transaction(sent), chain.nonce(SENDER)), (None, 0), "gone with its block");
    chain.mine(1);
    assert_eq!(height_of(&receipt(&chain, waits)), 4);
}

#[test]
fn a_dropped_transaction_takes_the_later_ones_along() {
    let chain = Chain::start();
    let sent = [0, 1, 2, 3].map(|nonce| chain.send(&payment(&chain, nonce, 1)).expect("taken"));
    assert!(chain.drop_transaction(sent[1]));
    let there = sent.map(|hash| chain.transaction(hash).is_some());
    assert_eq!(there, [true, false, false, false]);
    assert!(!chain.drop_transaction(sent[1]), "it is gone");
}

#[test]
fn a_fee_below_the_base_fee_is_refused_or_dropped() {
    let chain = Chain::start();
    let draft = Draft::payment(0, PAYEE, 1).with_fees(FIRST_BASE_FEE - 1, 1);
    let refused = chain.send(&chain.sign(SENDER, &draft)).expect_err("too cheap");
    assert_eq!(refused.message, "max fee per gas less than block base fee");
    let sent = chain.send(&payment(&chain, 0, 1)).expect("taken");
    chain.set_base_fee(100 * FIRST_BASE_FEE);
    chain.mine(3);
    assert_eq!((chain.receipt(sent), chain.transaction(sent)), (None, None), "dropped");
    let base_fees = [0, 1, 2]
        .map(|height| u128::from(number(&chain.block(height).expect("mined")["baseFeePerGas"])));
    // An eighth less behind an empty block.
    let expected = [FIRST_BASE_FEE, 100 * FIRST_BASE_FEE, 100 * FIRST_BASE_FEE / 8 * 7];
    assert_eq!(base_fees, expected);
}

/// Goal: two endpoints that agree, and then do not. Method: blocks in one second run ahead of the
/// clock; the second node takes them, and both mine on.
#[test]
fn a_second_node_has_the_same_blocks_and_then_its_own() {
    let chain = Chain::start();
    let raw = payment(&chain, 0, 1);
    let sent = chain.send(&raw).expect("taken");
    chain.mine(30);
    chain.send(&payment(&chain, 1, 1)).expect("taken");
    let second = chain.second();
    for height in 0..=30 {
        assert_eq!(second.block(height), chain.block(height), "block {height}");
    }
    assert_eq!(second.receipt(sent), chain.receipt(sent));
    assert_eq!(second.balance(PAYEE), U256::from(1));
    let old = json!([hex_of(SENDER), {"blockHash": hex_of(second.block_hash(0))}]);
    assert_eq!(second.ask("eth_getTransactionCount", old), "0x0", "it knows old states");
    assert_eq!((chain.pending_nonce(SENDER), second.pending_nonce(SENDER)), (2, 1), "no pool");
    chain.mine(1);
    second.mine(2);
    assert_eq!(chain.balance(PAYEE), U256::from(2));
    assert_eq!((second.balance(PAYEE), second.height()), (U256::from(1), 32));
    assert_ne!(chain.block_hash(31), second.block_hash(31));
    second.reorg(32, &[(&raw, 0)]);
    assert_eq!(second.block_hash(0), chain.block_hash(0));
    assert_ne!(second.block_hash(1), chain.block_hash(1));
}

/// A client that relies on either of these would work with this node alone, or not at all.
#[test]
fn an_estimate_minds_no_empty_account_and_one_method_is_missing() {
    let chain = Chain::start();
    let empty = json!({"from": hex_of(PAYEE), "to": hex_of(SENDER), "value": "0xffffff"});
    assert_eq!(chain.ask("eth_estimateGas", json!([empty])), "0x5208");
    let missing = chain.rpc().call("txpool_contentFrom", json!([hex_of(SENDER)]));
    assert_eq!(missing.expect_err("missing").message, "Method not found");
}

/// One provocation for each row of the page's table of texts.
fn provoked(chain: &Chain) -> Vec<(&'static str, NodeError)> {
    let poor = address!("00000000000000000000000000000000000000c0");
    let sign = |from: Address, draft: &Draft| chain.sign(from, draft);
    let refused = |raw: &[u8]| chain.send(raw).expect_err("a refusal");
    let first = payment(chain, 0, 1);
    chain.send(&first).expect("taken");
    let again = refused(&first);
    let cheaper = Draft::payment(0, PAYEE, 2);
    let cheaper = refused(&sign(SENDER, &cheaper.with_fees(FIRST_BASE_FEE, FIRST_BASE_FEE)));
    chain.mine(1);
    let other = ACCOUNTS[1];
    let draft = Draft::payment(0, poor, 1);
    let too_much = Draft { value: U256::from(10).pow(U256::from(30)), ..draft.clone() };
    let base_fee = draft.clone().with_fees(1, 1);
    let tip = Draft { tip: draft.fee_max + 1, ..draft.clone() };
    let low_gas = Draft { gas: 20_999, ..draft.clone() };
    let high_gas = Draft { gas: 30_000_001, ..draft };
    vec![
        ("the same bytes again, in the pool", again),
        ("a replacement that is not dearer", cheaper),
        ("a mined nonce", refused(&first)),
        ("not enough coins", refused(&sign(other, &too_much))),
        ("a fee below the base fee", refused(&sign(other, &base_fee))),
        ("a tip above the fee", refused(&sign(other, &tip))),
        ("too little gas", refused(&sign(other, &low_gas))),
        ("more gas than a block has", refused(&sign(other, &high_gas))),
        ("another chain id", refused(&of_another_chain())),
        ("no transaction", refused(&hex!("1234"))),
        ("no bytes", refused(&[])),
        ("an unknown method", chain.rpc().call("no_such", json!([])).expect_err("unknown")),
        ("the count at an unknown block's hash", {
            let at = json!([hex_of(SENDER), {"blockHash": hex_of(B256::repeat_byte(1))}]);
            chain.rpc().call("eth_getTransactionCount", at).expect_err("unknown")
        }),
    ]
}

/// A payment of an account of ours on chain 1, signed once and for all.
fn of_another_chain() -> Vec<u8> {
    hex!(
        "02f86a0180843b9aca0084b2d05e0082520894a0ee7a142d267c1f36714e4a8f75612f20a7972001"
        "80c080a092507d032ccb65ab652be3524395b61dc572a2cc87139c92e7b0e64458d26eaea060174a"
        "ab609eeb585de120ecefa1f8654304fef7efa0352c2e93af050ef42b53"
    )
    .to_vec()
}

/// The page's table is the node's: each text, with its number, and no row more.
#[test]
fn the_texts_are_those_of_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/chain-node.md");
    let page = fs::read_to_string(page).expect("the page");
    let chapter = page.split("\n## Its texts\n").nth(1).expect("the chapter");
    let chapter = chapter.split("\n## ").next().expect("its end");
    let rows: BTreeSet<&str> =
        chapter.lines().skip_while(|line| !line.starts_with("|---")).skip(1).collect();
    let chain = Chain::start();
    let provoked: Vec<String> = provoked(&chain)
        .iter()
        .map(|(case, NodeError { code, message })| format!("| {case} | {code} | `{message}` |"))
        .collect();
    let provoked: BTreeSet<&str> = provoked.iter().map(String::as_str).collect();
    let rows: BTreeSet<&str> = rows.into_iter().filter(|row| row.starts_with('|')).collect();
    assert_eq!(rows, provoked);
}
