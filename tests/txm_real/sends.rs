//! Answers of endpoints to a send: each class of the specification, from its state to the state
//! that it leads to, and back to an end when the endpoint is honest again.

use serde_json::{Value, json};

use super::SIGNER;
use super::place::{Party, Place};
use crate::harness::{Lie, SEND, eventually};

/// A text of an endpoint, and its consequence.
struct Said {
    text: &'static str,
    class: &'static str,
    state: &'static str,
    sub: Option<&'static str>,
    /// The attempts are more than one.
    asks_again: bool,
}

const fn said(text: &'static str, class: &'static str, sub: Option<&'static str>) -> Said {
    Said { text, class, state: "SUBMITTED", sub, asks_again: false }
}

/// Each class that is a text. `""`: the node's own answer.
const TEXTS: [Said; 14] = [
    Said { state: "TRACKING", ..said("", "ACCEPTED", Some("PENDING")) },
    Said { state: "TRACKING", ..said("already known", "KNOWN", Some("PENDING")) },
    Said { state: "TRACKING", ..said("transaction already imported", "KNOWN", Some("PENDING")) },
    said("nonce too low: next nonce 5, tx nonce 3", "NONCE_TOO_LOW", None),
    said("OldNonce, Current nonce: 5, nonce of tx: 3", "NONCE_TOO_LOW", None),
    said("replacement transaction underpriced", "REPLACEMENT", None),
    Said {
        asks_again: true,
        ..said("max fee per gas less than block base fee", "UNDERPRICED", None)
    },
    said("Transaction nonce is too far in the future", "NONCE_TOO_HIGH", None),
    said("txpool is full", "POOL_FULL", None),
    said("insufficient funds for gas * price + value", "FUNDS", Some("WAITING_FUNDS")),
    said("tx fee (1.10 ether) exceeds the configured cap", "FEE_CAP", Some("BLOCKED")),
    Said { asks_again: true, ..said("intrinsic gas too low", "INVALID_GAS", None) },
    said("invalid chain id for signer", "INVALID", Some("BLOCKED")),
    said("the moon is full", "UNKNOWN", None),
];

/// Whether an attempt had an answer of this class, and the row stands as the class wants it.
fn stands(row: &Value, said: &Said) -> bool {
    let attempts = row["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    attempts.iter().any(|attempt| attempt["class"] == json!(said.class))
        && row["state"] == json!(said.state)
        && (said.sub.is_none() || row["subState"] == json!(said.sub))
        && (!said.asks_again || attempts.len() > 1)
}

/// Ends a row of an endpoint that is honest again. A blocked one needs a person.
fn recovers(place: &Place, node: &Party, id: &str) {
    if node.row(id)["subState"] == json!("BLOCKED") {
        let (exit, _, why) = node.operate(&["tx", "resubmit", id, "--reason", "a test"]);
        assert_eq!(exit, 0, "{why}");
    }
    assert_eq!(place.end(node, id)["state"], "CONFIRMED", "{}", node.row(id));
}

/// Goal: each class of answers leads to its state, ends nothing, and the payment is one. Method:
/// the endpoint says the text of the class, then it is honest.
/// Ids: SUB-001, SUB-002, SUB-003, SUB-004, SUB-005, SUB-006, SUB-007, SUB-008, SUB-009,
/// SUB-010, SUB-011.
#[test]
fn sub_001_to_011_each_class_leads_to_its_state() {
    let place = Place::new(&[]);
    let node = place.first_node();
    for (number, said) in TEXTS.iter().enumerate() {
        if !said.text.is_empty() {
            place.proxy.say(said.text);
        }
        let id = place.pay(&node, &format!("a-{number}"));
        let row = node.until(&id, said.text, |row| stands(row, said));
        assert_eq!(row["final"], false, "{row}");
        place.proxy.honest();
        recovers(&place, &node, &id);
    }
    assert_eq!(place.chain.nonce(SIGNER), TEXTS.len() as u64);
}

/// Goal: no failure of an endpoint is an answer. Method: each failure of a send, delivered or not;
/// then the endpoint is honest.
/// Ids: SUB-012, SUB-013.
#[test]
fn sub_012_013_no_failure_of_an_endpoint_is_an_answer() {
    let place = Place::new(&[("CHAIN__TIMEOUT_MS", "1000"), ("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let lies = [
        ("no connection", Lie::LoseRequest),
        ("no answer", Lie::LoseAnswer),
        ("429", Lie::Status(429)),
        ("502", Lie::Status(502)),
        ("502 behind it", Lie::StatusAfter(502)),
        ("a page", Lie::Html),
        ("a redirect", Lie::Redirect),
        ("half an answer", Lie::HalfAnswer),
        ("another id", Lie::SwapIds),
        ("a long answer", Lie::LongAnswer),
        ("a compressed answer", Lie::Gzip),
        ("a late answer", Lie::DelayAnswer),
    ];
    for (number, (name, lie)) in lies.iter().enumerate() {
        let before = place.proxy.sent().len();
        place.proxy.lie(SEND, lie.clone());
        let id = place.pay(&node, &format!("a-{number}"));
        eventually(name, || (place.proxy.sent().len() >= before + 2).then_some(()));
        assert_eq!(node.row(&id)["final"], false, "{name}");
        place.proxy.honest();
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{name}");
        let hashes = place.proxy.sent().split_off(before);
        assert!(hashes.iter().all(|sent| sent.raw == hashes[0].raw), "{name}: the same bytes");
    }
    assert_eq!(place.proxy.redirects_followed(), 0);
    assert_eq!(place.chain.nonce(SIGNER), lies.len() as u64);
}

/// Goal: an endpoint that answers another hash is a liar and no answer: it is set aside, and the
/// same bytes go on by the others. Method: of two endpoints one loses the send, and the other one
/// delivers it and answers another hash; then both are honest.
#[test]
fn sub_012_an_endpoint_that_answers_another_hash_is_set_aside() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let liar = place.endpoint(&place.chain);
    let urls = format!("{},{}", place.proxy.url(), liar.url());
    let node = place.node("txm-a", &[("CHAIN__RPC_URLS", &urls)]);
    place.add(&node, SIGNER);
    place.proxy.lie(SEND, Lie::LoseRequest);
    liar.lie(SEND, Lie::result(json!(format!("0x{}", "1".repeat(64)))));
    let id = place.pay(&node, "a-1");
    eventually("a count of lies", || {
        (node.metric("ubscore_rpc_mismatch_total") == 1.0).then_some(())
    });
    let sends = place.proxy.sent().len();
    eventually("further sends", || (place.proxy.sent().len() >= sends + 2).then_some(()));
    assert_eq!(node.row(&id)["final"], false);
    liar.honest();
    place.proxy.honest();
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
    let second = place.pay(&node, "a-2");
    assert_eq!(place.end(&node, &second)["state"], "CONFIRMED");
    assert_eq!(liar.sent().len(), 1, "it gets nothing more");
    assert_eq!(place.sent().len(), 2, "the same bytes each time");
}

/// Goal: of two endpoints that contradict each other the better answer counts, and a refusal counts
/// only if both say it. Method: one endpoint refuses for good, then lacks funds, then is silent.
#[test]
fn sub_016_the_best_of_two_contradicting_answers_counts() {
    let place = Place::new(&[]);
    let other = place.endpoint(&place.chain);
    let urls = format!("{},{}", place.proxy.url(), other.url());
    let node = place.node("txm-a", &[("CHAIN__RPC_URLS", &urls)]);
    place.add(&node, SIGNER);
    for (number, text) in
        ["invalid sender", "insufficient funds", "nonce too low", "transaction underpriced"]
            .iter()
            .enumerate()
    {
        other.say(text);
        let id = place.pay(&node, &format!("a-{number}"));
        node.becomes(&id, "TRACKING", Some("PENDING"));
        other.honest();
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{text}");
    }
    // Of these two neither counts alone.
    other.say("invalid sender");
    place.proxy.say("insufficient funds for gas * price + value");
    let id = place.pay(&node, "contradiction");
    node.until(&id, "two answers", |row| {
        row["attempts"][0]["answers"].as_array().is_some_and(|answers| answers.len() == 2)
    });
    let row = node.row(&id);
    assert_eq!((&row["state"], &row["subState"]), (&json!("SUBMITTED"), &Value::Null), "{row}");
    other.honest();
    place.proxy.honest();
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}
