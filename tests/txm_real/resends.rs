//! Resends, raised prices, cancels, and commands of operators.

use serde_json::{Value, json};

use super::SIGNER;
use super::place::{Party, Place};
use crate::harness::{FIRST_BASE_FEE, crowd, eventually};

/// Both prices of each attempt, wei per gas: the highest, and the tip.
fn prices(row: &Value) -> Vec<(u128, u128)> {
    let attempts = row["attempts"].as_array().cloned().unwrap_or_default();
    let wei = |value: &Value| value.as_str().expect("text").parse::<u128>().expect("a number");
    let of =
        |attempt: &Value| (wei(&attempt["maxFeePerGas"]), wei(&attempt["maxPriorityFeePerGas"]));
    attempts.iter().map(of).collect()
}

/// The times that an attempt's bytes left.
fn sent(place: &Place, row: &Value, attempt: usize) -> usize {
    let hash = row["attempts"][attempt]["hash"].as_str().unwrap_or("not signed yet");
    place.proxy.sent().iter().filter(|sent| sent.hash.to_string() == hash).count()
}

/// Whether a price is the smallest that is 12 percent above another.
fn is_raised(before: u128, now: u128) -> bool {
    now == (before * 112).div_ceil(100)
}

/// Goal: bytes without a receipt are sent again; then only the lowest nonce is raised, by both
/// prices, rounded up; a receipt ends both. Method: two payments that no block takes; then blocks.
/// Ids: RSB-001, RSB-003.
#[test]
fn rsb_001_003_the_lowest_is_sent_again_and_raised() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "2")]);
    let node = place.first_node();
    let ids = place.pay_in_order(&node, &["a-0", "a-1"]);
    let row = node.until(&ids[0], "two raises", |row| prices(row).len() >= 3);
    assert!(sent(&place, &row, 0) >= 3, "the first one and two resends: {row}");
    let later = node.until(&ids[1], "resends", |row| sent(&place, row, 0) >= 3);
    assert_eq!(prices(&later).len(), 1, "only the lowest is raised");
    for pair in prices(&row).windows(2) {
        let ((fee, tip), (higher_fee, higher_tip)) = (pair[0], pair[1]);
        assert!(is_raised(fee, higher_fee) && is_raised(tip, higher_tip), "{row}");
    }
    place.chain.mine(1);
    for id in &ids {
        node.until(id, "its receipt", |row| !row["receipt"].is_null());
    }
    let quiet = place.proxy.sent().len();
    place.looks(12);
    assert_eq!(place.proxy.sent().len(), quiet, "a receipt ends the resends");
    for id in &ids {
        assert_eq!(place.end(&node, id)["state"], "CONFIRMED");
    }
    assert_eq!(place.chain.nonce(SIGNER), 2);
}

/// Goal: nothing above a cap is ever signed, and resends go on. Method: the base fee rises above
/// the cap, and falls; then a bound of attempts.
/// Ids: RSB-004, RSB-005.
#[test]
fn rsb_004_005_nothing_is_signed_above_a_cap() {
    const CAP_GWEI: u128 = 5;
    let cap = CAP_GWEI.to_string();
    let settings = [("FEE__MAX_FEE_GWEI_MAX", cap.as_str()), ("RESUBMIT__BUMP_AFTER", "1")];
    let place = Place::new(&settings);
    let node = place.first_node();
    let id = place.pay(&node, "a-0");
    node.becomes(&id, "TRACKING", Some("PENDING"));
    place.chain.set_base_fee(20 * FIRST_BASE_FEE);
    place.chain.mine(1);
    let row = node.becomes(&id, "TRACKING", Some("UNDERPRICED"));
    let highest = prices(&row).last().copied().expect("an attempt");
    assert!(highest.0 <= CAP_GWEI * FIRST_BASE_FEE, "{row}");
    let before = place.proxy.sent().len();
    eventually("resends", || (place.proxy.sent().len() >= before + 2).then_some(()));
    place.chain.set_base_fee(FIRST_BASE_FEE);
    let row = place.end(&node, &id);
    assert_eq!(row["state"], "CONFIRMED", "{row}");
    assert!(prices(&row).iter().all(|(fee, _)| *fee <= CAP_GWEI * FIRST_BASE_FEE), "{row}");

    node.stop();
    let node = place.node("txm-a", &[("RESUBMIT__ATTEMPTS_MAX", "2")]);
    let id = place.pay(&node, "a-1");
    let row = node.becomes(&id, "TRACKING", Some("UNDERPRICED"));
    let times = sent(&place, &row, 1);
    node.until(&id, "resends", |row| sent(&place, row, 1) >= times + 2);
    assert_eq!(prices(&node.row(&id)).len(), 2);
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}

fn cancel(node: &Party, id: &str) {
    let reply = node.post(&format!("/api/v1/tx/{id}/cancel"), &json!({}));
    assert!([200, 202].contains(&reply.status), "{reply:?}");
}

/// Goal: a cancel ends what was not signed, and else is a wish. Method: a cancel of a row that waits
/// for funds, and of one in the pool; then one that comes behind the block.
#[test]
fn rsb_006_a_cancel_at_each_state() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let mut dear = place.payment("created");
    dear["payload"]["value"] = json!("20000000000000000000000");
    let reply = node.post("/api/v1/tx", &dear).json();
    let created = reply["txId"].as_str().expect("an id");
    node.becomes(created, "CREATED", Some("WAITING_FUNDS"));
    cancel(&node, created);
    let row = node.becomes(created, "FAILED", None);
    assert_eq!((&row["code"], &row["refusal"]), (&json!("REFUSED"), &json!("CANCELLED")), "{row}");
    assert_eq!(row["nonce"], Value::Null);

    place.proxy.say("txpool is full");
    let submitted = place.pay(&node, "submitted");
    node.until(&submitted, "an answer", |row| row["attempts"][0]["class"] == "POOL_FULL");
    cancel(&node, &submitted);
    node.until(&submitted, "a cancel", |row| row["attempts"][1]["kind"] == "CANCEL");
    place.proxy.honest();
    let row = place.end(&node, &submitted);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("CANCELLED")), "{row}");

    let tracking = place.pay(&node, "tracking");
    node.becomes(&tracking, "TRACKING", Some("PENDING"));
    cancel(&node, &tracking);
    node.until(&tracking, "a cancel in the pool", |row| row["attempts"][1]["inPool"] == true);
    let pair = prices(&node.row(&tracking));
    assert!(is_raised(pair[0].0, pair[1].0) && is_raised(pair[0].1, pair[1].1), "{pair:?}");
    let row = place.end(&node, &tracking);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("CANCELLED")), "{row}");

    // The original wins: it is mined before the wish.
    let mined = place.pay(&node, "mined");
    node.becomes(&mined, "TRACKING", Some("PENDING"));
    place.chain.mine(1);
    node.becomes(&mined, "TRACKING", Some("MINED"));
    node.post(&format!("/api/v1/tx/{mined}/cancel"), &json!({}));
    assert_eq!(place.end(&node, &mined)["state"], "CONFIRMED");
}

/// Goal: switched off, what an endpoint has is left alone. Method: many looks at the chain, each
/// of which is longer than half the interval; then a block.
#[test]
fn rsb_007_switched_off_nothing_is_sent_again() {
    let settings = [("RESUBMIT__ENABLED", "false"), ("RESUBMIT__INTERVAL_MS", "100")];
    let place = Place::new(&settings);
    let node = place.first_node();
    let id = place.pay(&node, "a-0");
    node.becomes(&id, "TRACKING", Some("PENDING"));
    place.looks(20);
    assert_eq!(place.proxy.sent().len(), 1);
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}

/// Goal: a command of any node is carried out once, by the owner, and is in the audit. Method: many
/// cancels at once, of two nodes.
#[test]
fn rsb_008_a_command_of_any_node_is_carried_out_once() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let a = place.first_node();
    let b = place.node("txm-b", &[]);
    let id = place.pay(&a, "a-0");
    a.becomes(&id, "TRACKING", Some("PENDING"));
    let ended = crowd(4, |number| {
        let node = if number % 2 == 0 { &a } else { &b };
        node.operate(&["tx", "cancel", &id, "--reason", "a test"])
    });
    assert!(ended.iter().all(|(exit, ..)| *exit == 0), "{ended:?}");
    let row = place.end(&b, &id);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("CANCELLED")), "{row}");
    let cancels = row["attempts"].as_array().expect("attempts").len();
    assert_eq!(cancels, 2, "one payment, one cancel: {row}");
    let audited = format!("SELECT count(*) >= 1 FROM txm.audit WHERE tx_id = '{id}'");
    assert_eq!(place.site.sql_value(&audited), "t");
    let open = "SELECT count(*) FROM txm.tx_commands WHERE state < 2";
    assert_eq!(place.site.sql_value(open), "0");
}
