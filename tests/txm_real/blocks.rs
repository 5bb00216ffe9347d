//! Receipts, confirmations, finality and reorganizations.

use alloy_primitives::{B256, U256};
use serde_json::{Value, json};

use super::place::{Party, Place};
use super::{PAYEE, SIGNER};
use crate::harness::{ChainProxy, Draft, Lie, SEND, eventually, hex_of, text};

/// The raw bytes of a row's attempts, in order.
fn raws(place: &Place, id: &str) -> Vec<Vec<u8>> {
    let asked = format!(
        "SELECT encode(raw, 'hex') FROM txm.tx_attempts WHERE tx_id = '{id}' ORDER BY attempt"
    );
    let rows = place.site.sql(&asked).into_iter().flatten();
    rows.map(|raw| alloy_primitives::hex::decode(raw).expect("hex")).collect()
}

/// A payment that is in the pool.
fn pooled(place: &Place, node: &Party, request_id: &str) -> String {
    let id = place.pay(node, request_id);
    node.becomes(&id, "TRACKING", Some("PENDING"));
    id
}

/// Mines, one block at a time, until the receipt's block has `blocks` on top; then waits until the
/// node has told them.
fn mine_on_top(place: &Place, node: &Party, id: &str, blocks: usize) -> Value {
    for _ in 0..blocks {
        place.chain.mine(1);
    }
    node.until(id, "confirmations", |row| {
        row["confirmations"].as_array().is_some_and(|told| told.len() > blocks)
    })
}

/// The events of confirmations of a row: whether each begins a list, and its blocks.
fn told(node: &Party, id: &str) -> Vec<(bool, usize)> {
    let events = node.events(id).into_iter().filter(|event| event["type"] == "confirmations");
    let of = |event: Value| {
        let blocks = event["body"]["blocks"].as_array().map_or(0, Vec::len);
        (event["newFork"] == json!(true), blocks)
    };
    events.map(of).collect()
}

/// Goal: CONFIRMED comes with the last confirmation, never before; each block is told once.
/// Method: three confirmations by count; then one, and the tags.
/// Ids: CNF-001, CNF-003, CNF-004.
#[test]
fn cnf_001_003_004_a_row_is_final_with_its_last_confirmation() {
    let place = Place::new(&[("RESUBMIT__ENABLED", "false")]);
    let mut node = place.node("txm-a", &[("CONFIRMATIONS__REQUIRED", "3")]);
    place.add(&node, SIGNER);
    let id = pooled(&place, &node, "count");
    place.chain.mine(1);
    node.becomes(&id, "TRACKING", Some("MINED"));
    mine_on_top(&place, &node, &id, 2);
    place.looks(2);
    assert_eq!(node.row(&id)["state"], "TRACKING", "one confirmation is missing");
    place.chain.mine(1);
    node.becomes(&id, "CONFIRMED", None);
    let told = told(&node, &id);
    assert!(told.iter().skip(1).all(|(is_new, _)| !is_new) && told[0].0, "{told:?}");
    let blocks: usize = told.iter().map(|(_, blocks)| blocks).sum();
    assert_eq!(blocks, node.row(&id)["confirmations"].as_array().expect("blocks").len());

    for (policy, distance) in [("safe", 2), ("finalized", 4)] {
        node.stop();
        let settings = [("CONFIRMATIONS__REQUIRED", "1"), ("CONFIRMATIONS__POLICY", policy)];
        node = place.node("txm-a", &settings);
        let id = pooled(&place, &node, policy);
        place.chain.mine(1);
        node.becomes(&id, "TRACKING", Some("MINED"));
        let mined = place.chain.height();
        while place.chain.height() < mined + distance {
            place.looks(2);
            assert_eq!(node.row(&id)["state"], "TRACKING", "{policy}: the tag is below");
            place.chain.mine(1);
        }
        assert_eq!(place.chain.tagged(policy), mined);
        node.becomes(&id, "CONFIRMED", None);
    }
}

/// Goal: a reorganization is told as a new list, and the end is that of the chain. Method: depth 1
/// to 3 below five confirmations; the transaction is kept at its height, moved, or lost.
#[test]
fn cnf_002_a_reorganization_is_told_and_ends_right() {
    let place = Place::new(&[("CONFIRMATIONS__REQUIRED", "5")]);
    let node = place.first_node();
    for (number, (depth, block)) in
        [(1, Some(0)), (3, Some(0)), (2, Some(1)), (3, Some(2)), (1, None), (3, None)]
            .into_iter()
            .enumerate()
    {
        let name = format!("a-{number}");
        let id = pooled(&place, &node, &name);
        place.chain.mine(1);
        mine_on_top(&place, &node, &id, depth - 1);
        let before = node.row(&id);
        let bytes = raws(&place, &id).pop().expect("an attempt");
        match block {
            Some(block) => {
                place.chain.reorg(depth as u64, &[(&bytes, block)]);
                node.until(&id, "a new list", |row| row["fork"] != before["fork"]);
            }
            None => {
                let sent = place.proxy.sent().len();
                place.chain.reorg(depth as u64, &[]);
                eventually("the bytes again", || (place.proxy.sent().len() > sent).then_some(()));
            }
        }
        let row = place.end(&node, &id);
        assert_eq!(row["state"], "CONFIRMED", "{name}: {row}");
        let lists = told(&node, &id).iter().filter(|(is_new, _)| *is_new).count();
        assert!(lists >= 2, "{name}: {:?}", told(&node, &id));
        let last = row["receipt"]["blockNumber"].as_u64().expect("a number");
        let hash = place.chain.block_hash(last).to_string();
        assert_eq!(row["receipt"]["blockHash"], json!(hash), "{name}");
        assert_eq!(row["confirmations"][0]["hash"], json!(hash), "{name}");
    }
}

/// Goal: the final one of all attempts decides. Method: a mined cancel is replaced by its payment
/// in a reorganization, and a mined payment by its cancel.
/// Ids: CNF-002, RSB-006.
#[test]
fn cnf_002_rsb_006_a_replaced_transaction_ends_as_the_chain_says() {
    let place = Place::new(&[("CONFIRMATIONS__REQUIRED", "4"), ("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    for (number, (first, then, state)) in
        [("CANCEL", 0, "CONFIRMED"), ("CANCEL", 1, "FAILED"), ("PAY", 1, "FAILED")]
            .into_iter()
            .enumerate()
    {
        let name = format!("a-{number}");
        let id = pooled(&place, &node, &name);
        let nonce = node.row(&id)["nonce"].as_u64().expect("a nonce");
        let cancel = node.post(&format!("/api/v1/tx/{id}/cancel"), &json!({}));
        assert!([200, 202].contains(&cancel.status), "{cancel:?}");
        node.until(&id, "a cancel in the pool", |row| {
            row["attempts"][1]["kind"] == json!("CANCEL") && row["attempts"][1]["inPool"] == true
        });
        let attempts = raws(&place, &id);
        place.chain.mine(1);
        let mined = node.becomes(&id, "TRACKING", None);
        assert_eq!(mined["nonce"], json!(nonce));
        node.until(&id, "its receipt", |row| row["receipt"]["attempt"] == json!(2));
        if first == "PAY" {
            place.chain.reorg(1, &[(&attempts[0], 0)]);
            node.until(&id, "the payment", |row| row["receipt"]["attempt"] == json!(1));
        }
        place.chain.reorg(1, &[(&attempts[then], 0)]);
        let wanted = then + 1;
        node.until(&id, "the other one", |row| row["receipt"]["attempt"] == json!(wanted));
        let row = place.end(&node, &id);
        assert_eq!(row["state"], state, "{name}: {row}");
        assert_eq!(row["code"], if then == 0 { Value::Null } else { json!("CANCELLED") });
    }
}

/// Goal: receipts that lie end nothing. Method: each lie about a receipt, while the transaction is
/// mined and deep; then the truth.
#[test]
fn cnf_005_receipts_that_lie_end_nothing() {
    const RECEIPT: &str = "eth_getTransactionReceipt";
    let place = Place::new(&[]);
    let node = place.first_node();
    let other = json!(B256::repeat_byte(7).to_string());
    let lies = [
        ("of another transaction", Lie::field("transactionHash", other.clone())),
        ("status 2", Lie::field("status", json!("0x2"))),
        ("another block", Lie::field("blockHash", other)),
        ("another height", Lie::field("blockNumber", json!("0xffff"))),
        ("a number above 2^64", Lie::field("blockNumber", json!("0x10000000000000000"))),
        ("of another sender", Lie::field("from", json!(hex_of(PAYEE)))),
        ("no receipt", Lie::result(Value::Null)),
        ("an error", Lie::say("missing trie node")),
        ("a page", Lie::Html),
    ];
    for (number, (name, lie)) in lies.iter().enumerate() {
        let id = pooled(&place, &node, &format!("a-{number}"));
        place.proxy.lie(RECEIPT, lie.clone());
        let asked = place.proxy.calls(RECEIPT);
        place.chain.mine(4);
        eventually(name, || (place.proxy.calls(RECEIPT) >= asked + 2).then_some(()));
        let row = node.row(&id);
        assert_eq!((&row["final"], &row["receipt"]), (&json!(false), &Value::Null), "{name}");
        place.proxy.honest();
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{name}");
    }
}

/// Goal: a nonce below the final count without a receipt is UNACCOUNTED until it is found. Method:
/// the receipts are hidden and the lookup fails: it stays; then the truth: ours is found. A foreign
/// transaction takes the next nonce: NONCE_TAKEN, and the signer is suspended.
#[test]
fn cnf_008_an_unaccounted_nonce_waits_for_its_transaction() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let ours = pooled(&place, &node, "ours");
    place.proxy.lie("eth_getTransactionReceipt", Lie::result(Value::Null));
    place.proxy.lie("eth_getTransactionBySenderAndNonce", Lie::say("the method is not there"));
    place.chain.mine(8);
    node.becomes(&ours, "TRACKING", Some("UNACCOUNTED"));
    place.chain.mine(8);
    place.looks(4);
    assert_eq!(node.row(&ours)["final"], false, "not found: it stays");
    place.proxy.honest();
    assert_eq!(place.end(&node, &ours)["state"], "CONFIRMED");

    place.proxy.lie(SEND, Lie::LoseRequest);
    let theirs = place.pay(&node, "theirs");
    node.until(&theirs, "an attempt", |row| !row["attempts"][0].is_null());
    let payment = Draft::payment(1, PAYEE, 77);
    let hash = place.chain.send(&place.chain.sign(SIGNER, &payment)).expect("taken");
    place.is_foreign(hash);
    place.chain.mine(10);
    let row = place.end(&node, &theirs);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("NONCE_TAKEN")), "{row}");
    eventually("a suspension", || {
        let suspended = node.get("/api/v1/signers").json();
        (suspended["signers"][0]["status"] == "SUSPENDED").then_some(())
    });
}

/// Goal: what the chain takes back behind an end is raised, sent again, and ends nothing anew.
/// Method: a reorganization below a confirmed payment, without it.
#[test]
fn cnf_009_a_payment_that_the_chain_takes_back_is_sent_again() {
    let place = Place::new(&[]);
    let node = place.first_node();
    let id = pooled(&place, &node, "a-1");
    place.chain.mine(3);
    let row = node.becomes(&id, "CONFIRMED", None);
    let (before, sent) = (place.chain.balance(PAYEE), place.proxy.sent().len());
    place.chain.reorg(3, &[]);
    eventually("the bytes again", || (place.proxy.sent().len() > sent).then_some(()));
    eventually("the payment in the pool", || {
        (place.chain.pending_nonce(SIGNER) == 1).then_some(())
    });
    place.chain.mine(1);
    assert_eq!(place.chain.balance(PAYEE), before, "paid again, once");
    let again = node.row(&id);
    assert_eq!((&again["state"], &again["history"]), (&row["state"], &row["history"]));
    assert!(node.words().contains("reorg_after_final"), "{}", node.words());
    assert!(before > U256::ZERO);
}

/// Goal: two of three endpoints must have the receipt's block. Method: one endpoint on a fork with
/// the payment ends nothing; the two others then mine it.
#[test]
fn cnf_010_an_endpoint_on_a_fork_ends_nothing() {
    let place = Place::new(&[("CHAIN__QUORUM", "2")]);
    let second = ChainProxy::start(&place.chain);
    let fork = place.chain.second();
    let third = ChainProxy::start(&fork);
    let urls = [place.proxy.url(), second.url(), third.url()].join(",");
    let node = place.node("txm-a", &[("CHAIN__RPC_URLS", &urls)]);
    place.add(&node, SIGNER);
    let id = pooled(&place, &node, "a-1");
    eventually("the payment at the fork", || (fork.pending_nonce(SIGNER) == 1).then_some(()));
    fork.mine(6);
    place.looks(6);
    assert_eq!(node.row(&id)["final"], false, "one of three");
    let row = place.end(&node, &id);
    assert_eq!(row["state"], "CONFIRMED");
    let number = row["receipt"]["blockNumber"].as_u64().expect("a number");
    assert_eq!(text(&row["receipt"]["blockHash"]), place.chain.block_hash(number).to_string());
}

/// Goal: the feed has each event once, in order, also over kills. Method: payments on two nodes of
/// which one is killed; every seq of every row is there once.
#[test]
fn cnf_012_the_feed_has_each_event_once_over_kills() {
    let place = Place::new(&[]);
    let a = place.first_node();
    let b = place.node("txm-b", &[]);
    let ids: Vec<String> = (0..8).map(|number| place.pay(&b, &format!("a-{number}"))).collect();
    place.chain.mine(1);
    a.becomes(&ids[0], "TRACKING", Some("MINED"));
    a.kill();
    let more: Vec<String> = (8..12).map(|number| place.pay(&b, &format!("a-{number}"))).collect();
    for id in ids.iter().chain(&more) {
        assert_eq!(place.end(&b, id)["state"], "CONFIRMED");
    }
    for id in ids.iter().chain(&more) {
        let seqs: Vec<u64> =
            b.events(id).iter().map(|event| event["seq"].as_u64().expect("a number")).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        let last = format!("SELECT event_seq FROM txm.managed_tx WHERE tx_id = '{id}'");
        assert_eq!(seqs.len().to_string(), place.site.sql_value(&last));
    }
}
