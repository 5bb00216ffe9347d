//! Receipts, confirmations and finality.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use alloy_primitives::{B256, U256, hex};
use serde_json::{Value, json};

use super::place::{Party, Place};
use super::{PAYEE, SIGNER};
use crate::harness::{Draft, Lie, SEND, crowd, eventually, hex_of, text};

/// The method of receipts.
const RECEIPT: &str = "eth_getTransactionReceipt";
/// The rows of the test with many of them.
const MANY: usize = 200;

/// The raw bytes of a row's attempts, in order.
pub(super) fn raws(place: &Place, id: &str) -> Vec<Vec<u8>> {
    let asked = format!(
        "SELECT encode(raw, 'hex') FROM txm.tx_attempts WHERE tx_id = '{id}' ORDER BY attempt"
    );
    let rows = place.site.sql(&asked).into_iter().flatten();
    rows.map(|raw| hex::decode(raw).expect("hex")).collect()
}

/// A payment that is in the pool.
pub(super) fn pooled(place: &Place, node: &Party, request_id: &str) -> String {
    let id = place.pay(node, request_id);
    node.becomes(&id, "TRACKING", Some("PENDING"));
    id
}

/// Mines blocks, and waits until the node has told so many on top of the receipt's block.
pub(super) fn mine_on_top(
    place: &Place,
    node: &Party,
    id: &str,
    blocks: u64,
    on_top: usize,
) -> Value {
    place.chain.mine(blocks);
    node.until(id, "confirmations", |row| {
        row["confirmations"].as_array().is_some_and(|told| told.len() > on_top)
    })
}

/// A block of a list of confirmations.
pub(super) type Told = (u64, String);

fn told(blocks: &Value) -> Vec<Told> {
    let blocks = blocks.as_array().expect("blocks");
    let of = |block: &Value| {
        (block["number"].as_u64().expect("a height"), text(&block["hash"]).to_owned())
    };
    blocks.iter().map(of).collect()
}

/// The confirmations of a row as its reader shows them.
pub(super) fn confirmations(row: &Value) -> Vec<Told> {
    told(&row["confirmations"])
}

/// The blocks of the chain from a height up.
pub(super) fn blocks_from(place: &Place, number: u64, count: usize) -> Vec<Told> {
    let end = number + count as u64;
    (number..end).map(|height| (height, place.chain.block_hash(height).to_string())).collect()
}

/// The lists of confirmations that a reader of the feed puts together, one of each fork. A new list
/// begins with the receipt's block; the others go on.
pub(super) fn lists(story: &[Value]) -> Vec<Vec<Told>> {
    let mut lists: Vec<Vec<Told>> = Vec::new();
    for event in story.iter().filter(|event| event["type"] == "confirmations") {
        let body = &event["body"];
        let blocks = told(&body["confirmations"]);
        assert_eq!(body["newFork"], event["newFork"], "{event}");
        if event["newFork"] == json!(true) {
            let receipt = &body["receipt"];
            let first = (receipt["blockNumber"].as_u64(), receipt["blockHash"].as_str());
            assert_eq!((Some(blocks[0].0), Some(blocks[0].1.as_str())), first, "{event}");
            lists.push(blocks);
        } else {
            lists.last_mut().expect("the first list is whole").extend(blocks);
        }
        let list = lists.last().expect("a list");
        assert!(list.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{event}");
    }
    lists
}

/// Goal: CONFIRMED comes with the last confirmation, never before; each block is told once, and
/// without a reorganization no list begins anew. Method: three confirmations by count; then one,
/// and the tags.
/// Ids: CNF-001, CNF-003, CNF-004.
#[test]
fn cnf_001_003_004_a_row_is_final_with_its_last_confirmation() {
    let place = Place::new(&[("RESUBMIT__ENABLED", "false")]);
    let mut node = place.node("txm-a", &[("CONFIRMATIONS__REQUIRED", "3")]);
    place.add(&node, SIGNER);
    let id = pooled(&place, &node, "count");
    place.chain.mine(1);
    node.becomes(&id, "TRACKING", Some("MINED"));
    for blocks in 1..=2 {
        mine_on_top(&place, &node, &id, 1, blocks);
        place.looks(2);
        assert_eq!(node.row(&id)["state"], "TRACKING", "{blocks} of 3");
    }
    place.chain.mine(1);
    is_confirmed_with_its_last_block(&place, &node, &id, 3);

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
        is_confirmed_with_its_last_block(&place, &node, &id, 1);
    }
}

/// The row ends without a further block. Its one list was told by its ends, the last one before
/// the end of the row.
fn is_confirmed_with_its_last_block(place: &Place, node: &Party, id: &str, required: usize) {
    let row = node.becomes(id, "CONFIRMED", None);
    assert_eq!(row["fork"], 0);
    let story = place.story(node, id);
    let mined = row["receipt"]["blockNumber"].as_u64().expect("a height");
    let whole = blocks_from(place, mined, required + 1);
    assert_eq!(confirmations(&row), whole);
    assert_eq!(lists(&story), [whole]);
    let confirmed = story.iter().filter(|event| event["type"] == "confirmations");
    assert!(
        confirmed.map(|event| &event["body"]["receipt"]).all(|receipt| *receipt == row["receipt"])
    );
    let (last, before) = story.split_last().expect("events");
    assert_eq!(
        (&last["body"]["state"], &last["body"]["final"]),
        (&json!("CONFIRMED"), &json!(true))
    );
    let is_open = |event: &Value| event["body"]["state"] != "CONFIRMED";
    assert!(before.iter().all(is_open), "{before:#?}");
}

/// Goal: receipts that lie end nothing. Method: each lie about a receipt, while the transaction is
/// mined and deep; then the truth.
#[test]
fn cnf_005_receipts_that_lie_end_nothing() {
    let place = Place::new(&[("CHAIN__TIMEOUT_MS", "1000")]);
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
        ("429", Lie::Status(429)),
        ("another id", Lie::SwapIds),
        ("a long answer", Lie::LongAnswer),
        ("half an answer", Lie::HalfAnswer),
        ("no answer", Lie::LoseAnswer),
        ("a redirect", Lie::Redirect),
        ("a compressed answer", Lie::Gzip),
    ];
    let checks = || node.metric("ubscore_receipt_check_total");
    for (number, (name, lie)) in lies.iter().enumerate() {
        let id = pooled(&place, &node, &format!("a-{number}"));
        let before = checks();
        place.proxy.lie(RECEIPT, lie.clone());
        place.chain.mine(4);
        eventually(name, || (checks() >= before + 2.0).then_some(()));
        let row = node.row(&id);
        assert_eq!((&row["final"], &row["receipt"]), (&json!(false), &Value::Null), "{name}");
        place.proxy.honest();
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{name}");
    }
    assert_eq!(place.proxy.redirects_followed(), 0);
}

/// Goal: heads that lie end nothing, and the node goes on. Method: each lie about blocks, while the
/// transaction is mined and deep; then the truth.
#[test]
fn cnf_005_heads_that_lie_end_nothing() {
    let place = Place::new(&[]);
    let node = place.first_node();
    let of_itself = Lie::change(|block| {
        if let Some(hash) = block.get("hash").cloned() {
            block["parentHash"] = hash;
        }
    });
    let lies = [
        ("a block that is its own parent", of_itself),
        ("a number above 2^64", Lie::field("number", json!("0x10000000000000000"))),
        ("another number", Lie::field("number", json!("0xffff"))),
        ("another hash", Lie::field("hash", json!(B256::repeat_byte(7).to_string()))),
        ("no block", Lie::result(Value::Null)),
    ];
    for (number, (name, lie)) in lies.iter().enumerate() {
        let id = pooled(&place, &node, &format!("a-{number}"));
        for method in ["eth_getBlockByNumber", "eth_getBlockByHash"] {
            place.proxy.lie(method, lie.clone());
        }
        // A question from before the lie gets the truth.
        place.looks(1);
        place.chain.mine(4);
        place.looks(3);
        let row = node.row(&id);
        assert_eq!((&row["final"], &row["receipt"]), (&json!(false), &Value::Null), "{name}");
        place.proxy.honest();
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{name}");
    }
    // The head falls below the receipt's block, and comes back.
    let id = pooled(&place, &node, "falls");
    let height = place.chain.height();
    place.chain.mine(1);
    node.becomes(&id, "TRACKING", Some("MINED"));
    let mined = node.row(&id);
    place.proxy.serve_old_head(height);
    place.chain.mine(4);
    place.looks(3);
    let row = node.row(&id);
    assert_eq!((&row["final"], &row["fork"]), (&json!(false), &mined["fork"]), "the head fell");
    place.proxy.honest();
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}

/// The method that finds a transaction by its signer and nonce.
const LOOKUP: &str = "eth_getTransactionBySenderAndNonce";

/// Goal: a nonce below the final count without a receipt is UNACCOUNTED until it is found. Method:
/// the receipts are hidden and the lookup fails: it stays; then the truth: ours is found. A foreign
/// transaction takes the next nonce: it stays until that is final, then NONCE_TAKEN, and the signer
/// is suspended.
#[test]
fn cnf_008_an_unaccounted_nonce_waits_for_its_transaction() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let ours = pooled(&place, &node, "ours");
    place.proxy.lie(RECEIPT, Lie::result(Value::Null));
    place.proxy.lie(LOOKUP, Lie::say("the method is not there"));
    place.chain.mine(8);
    node.becomes(&ours, "TRACKING", Some("UNACCOUNTED"));
    place.chain.mine(8);
    place.looks(4);
    assert_eq!(node.row(&ours)["final"], false, "not found: it stays");
    place.proxy.honest();
    assert_eq!(place.end(&node, &ours)["state"], "CONFIRMED");
    taken_by_another(&place, &node, 1, None);
}

/// Goal: without the lookup, a person names the transaction, and the program looks at it itself.
/// Method: the endpoint does not know the lookup; the hash of another transaction ends nothing; the
/// right one does.
#[test]
fn cnf_008_a_person_names_the_transaction_that_took_a_nonce() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let ours = pooled(&place, &node, "ours");
    let paid = place.end(&node, &ours);
    place.proxy.lie(LOOKUP, Lie::say("the method is not there"));
    taken_by_another(&place, &node, 1, Some(text(&paid["txHash"])));
}

/// Another transaction of the signer is mined with the nonce of the next payment. `wrong`: the hash
/// of one that is not it; then the endpoint does not know the lookup.
fn taken_by_another(place: &Place, node: &Party, nonce: u64, wrong: Option<&str>) {
    place.proxy.lie(SEND, Lie::LoseRequest);
    let theirs = place.pay(node, "theirs");
    node.until(&theirs, "an attempt", |row| !row["attempts"][0].is_null());
    let payment = Draft::payment(nonce, PAYEE, 77);
    let hash = place.chain.send(&place.chain.sign(SIGNER, &payment)).expect("taken");
    place.is_foreign(hash);
    place.chain.mine(2);
    place.looks(4);
    assert_eq!(node.row(&theirs)["final"], false, "it is not final");
    place.chain.mine(8);
    if let Some(wrong) = wrong {
        node.becomes(&theirs, "SUBMITTED", Some("UNACCOUNTED"));
        node.command(&["tx", "resolve", &theirs, "--hash", wrong]);
        place.looks(4);
        assert_eq!(node.row(&theirs)["subState"], "UNACCOUNTED", "a hint is no verdict");
        node.command(&["tx", "resolve", &theirs, "--hash", &hash.to_string()]);
    }
    let row = place.end(node, &theirs);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("NONCE_TAKEN")), "{row}");
    eventually("a suspension", || {
        let suspended = node.get("/api/v1/signers").json();
        (suspended["signers"][0]["status"] == "SUSPENDED").then_some(())
    });
    place.proxy.honest();
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
    let second = place.endpoint(&place.chain);
    let fork = place.chain.second();
    let third = place.endpoint(&fork);
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

/// The requests for the receipt of each hidden transaction, and the most of them at the first
/// answer about one that is not hidden.
#[derive(Default)]
struct Asked {
    hidden: BTreeMap<String, usize>,
    most: Option<usize>,
}

/// Goal: a pending transaction costs no question, and one without a receipt delays no other one.
/// Method: many payments in the pool; all are mined in one block, and the endpoint hides the
/// receipts of all but the last ten; these end while the others have none. A single worker asks.
#[test]
fn cnf_011_a_missing_receipt_delays_no_other_one() {
    const SHOWN: usize = 10;
    let place = Place::new(&[
        ("SUBMIT__IN_FLIGHT_MAX", "0"),
        ("CONFIRMATIONS__RECEIPT_WORKERS", "1"),
        ("RESUBMIT__INTERVAL_MS", "3600000"),
    ]);
    let node = place.first_node();
    crowd(10, |client| {
        for number in 0..MANY / 10 {
            place.pay(&node, &format!("a-{client}-{number}"));
        }
    });
    let stored = "SELECT encode(a.raw, 'hex'), '0x' || encode(a.tx_hash, 'hex'), t.tx_id \
                  FROM txm.tx_attempts a JOIN txm.managed_tx t USING (tx_id) ORDER BY t.nonce";
    let rows = eventually("all attempts", || {
        let rows = place.site.sql(stored);
        (rows.len() == MANY).then_some(rows)
    });
    // The endpoint keeps 16 of one account, as common pools do. The chain itself takes all.
    for row in &rows {
        let sent = place.chain.send(&hex::decode(&row[0]).expect("hex"));
        let is_there = sent.is_ok_and(|hash| hash.to_string() == row[1])
            || place.chain.transaction(row[1].parse().expect("a hash")).is_some();
        assert!(is_there, "{row:?}");
    }
    place.looks(3);
    assert_eq!(place.proxy.calls(RECEIPT), 0, "nothing is mined");
    let hidden = rows[..MANY - SHOWN].iter().map(|row| (row[1].clone(), 0)).collect();
    let asked = Arc::new(Mutex::new(Asked { hidden, most: None }));
    let seen = Arc::clone(&asked);
    let hide = Lie::change(move |receipt| {
        let hash = receipt["transactionHash"].as_str().unwrap_or_default().to_owned();
        let mut asked = seen.lock().expect("no panic");
        match asked.hidden.get_mut(&hash) {
            Some(times) => {
                *times += 1;
                *receipt = Value::Null;
            }
            None if receipt.is_object() => {
                let most = asked.hidden.values().copied().max();
                asked.most = asked.most.or(most);
            }
            None => {}
        }
    });
    place.proxy.lie(RECEIPT, hide);
    place.chain.mine(1);
    for row in &rows[MANY - SHOWN..] {
        node.until(&row[2], "its receipt", |row| !row["receipt"].is_null());
    }
    place.chain.mine(2);
    for row in &rows[MANY - SHOWN..] {
        node.becomes(&row[2], "CONFIRMED", None);
    }
    let most = asked.lock().expect("no panic").most;
    assert_eq!(most, Some(1), "no row is asked for twice before all were asked for once");
    let without = "SELECT count(*) FROM txm.managed_tx WHERE receipt IS NULL AND final_at IS NULL";
    assert_eq!(place.site.sql_value(without), (MANY - SHOWN).to_string());
    place.proxy.honest();
    let open = "SELECT count(*) FROM txm.managed_tx WHERE state <> 40";
    eventually("all ends", || (place.site.sql_value(open) == "0").then_some(()));
}
