//! Resends, raised prices, cancels, and commands of operators.

use serde_json::{Value, json};

use super::SIGNER;
use super::blocks::pooled;
use super::place::{Party, Place};
#[cfg(feature = "crash")]
use crate::harness::ChainProxy;
use crate::harness::{
    FIRST_BASE_FEE, Lie, SEND, assert_refused, crowd, eventually, hex_of, number,
};

/// The time between two resends of a place, microseconds.
const INTERVAL_US: i64 = 300_000;
/// A node measures the interval by its own clock, and PostgreSQL by another one.
const SLACK_US: i64 = 3_000;

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
    // A send that began before may be on its way.
    place.looks(2);
    let quiet = place.proxy.sent().len();
    place.looks(12);
    assert_eq!(place.proxy.sent().len(), quiet, "a receipt ends the resends");
    for id in &ids {
        assert_eq!(place.end(&node, id)["state"], "CONFIRMED");
    }
    assert_eq!(place.chain.nonce(SIGNER), 2);
}

/// Goal: only bytes without a receipt are sent again, the newest ones, and not before the interval
/// has passed. Method: a payment that no block takes; PostgreSQL's times of its sends.
#[test]
fn rsb_001_the_same_bytes_are_sent_again_behind_each_interval() {
    let place = Place::new(&[
        ("RESUBMIT__BUMP_AFTER", "1000"),
        ("CONFIRMATIONS__STALE_RECEIPT_TIMEOUT_MS", "1000"),
    ]);
    let node = place.first_node();
    let id = pooled(&place, &node, "a-0");
    let asked = "SELECT floor(extract(EPOCH FROM last_submit_at) * 1000000)::bigint, resends \
                 FROM txm.managed_tx";
    let mut times: Vec<(i64, i64)> = Vec::new();
    eventually("resends", || {
        let row = place.site.sql(asked).remove(0);
        let part = |at: usize| row[at].parse::<i64>().expect("a number");
        let now = (part(0), part(1));
        if times.last() != Some(&now) {
            times.push(now);
        }
        (times.len() >= 5).then_some(())
    });
    for pair in times.windows(2) {
        let ((before, count), (now, later)) = (pair[0], pair[1]);
        let intervals = later - count;
        assert!(intervals > 0 && now - before >= intervals * (INTERVAL_US - SLACK_US), "{times:?}");
    }
    node.becomes(&id, "TRACKING", Some("STALE"));
    let row = place.end(&node, &id);
    assert_eq!(row["state"], "CONFIRMED");
    assert_eq!(row["attempts"].as_array().map(Vec::len), Some(1), "the same bytes");
    assert_eq!(place.sent().len(), 1);
}

/// Goal: a raised price is at least today's. Method: the base fee is eight times as high.
#[test]
fn rsb_003_a_raised_price_follows_the_market() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1")]);
    let node = place.first_node();
    let id = pooled(&place, &node, "a-0");
    let first = prices(&node.row(&id)).remove(0);
    place.chain.set_base_fee(8 * FIRST_BASE_FEE);
    place.chain.mine(1);
    let head = place.chain.block(place.chain.height()).expect("a head");
    let base_fee = u128::from(number(&head["baseFeePerGas"]));
    assert!(2 * base_fee > (first.0 * 112).div_ceil(100), "a step of 12 percent is too small");
    let row = node.until(&id, "today's price", |row| {
        prices(row).last().is_some_and(|(fee, _)| *fee >= 2 * base_fee)
    });
    for pair in prices(&row).windows(2) {
        let ((fee, tip), (higher_fee, higher_tip)) = (pair[0], pair[1]);
        assert!(higher_fee * 100 >= fee * 112 && higher_tip * 100 >= tip * 112, "{row}");
    }
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}

/// The resends of a payment that are written.
#[cfg(feature = "crash")]
fn written(place: &Place, id: &str) -> usize {
    let resends = format!("SELECT resends FROM txm.managed_tx WHERE tx_id = '{id}'");
    place.site.sql_value(&resends).parse().expect("a number")
}

/// A payment in the pool, of a node that has given its signer back, and its written resends. Its
/// next owners send it by resends alone.
#[cfg(feature = "crash")]
fn left(place: &Place, name: &str) -> (String, usize) {
    let node = place.node(name, &[]);
    if place.token() == 0 {
        place.add(&node, SIGNER);
    }
    let id = pooled(place, &node, name);
    node.stop();
    let resends = written(place, &id);
    (id, resends)
}

/// Goal: a resend is written before it is sent, and of two owners never both do it. Method: an
/// owner stands still between both; another node takes over and resends, each time behind its own
/// write; the first one wakes and sends nothing. Then an owner is killed between both.
#[cfg(feature = "crash")]
#[test]
fn rsb_002_two_owners_never_both_resend() {
    let place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000"), ("CHAIN__TIMEOUT_MS", "60000")]);
    let (way_a, way_b) = (place.endpoint(&place.chain), place.endpoint(&place.chain));
    let start = |name: &str, way: &ChainProxy, point: &str| {
        place.node(name, &[("CHAIN__RPC_URLS", &way.url()), ("UBSCORE_CRASH", point)])
    };
    let by_b = || place.node("txm-b", &[("CHAIN__RPC_URLS", &way_b.url())]);
    let (id, before) = left(&place, "txm-first");
    let a = start("txm-a", &way_a, "txm_before_resend=stop");
    eventually("a stop", || a.is_paused().then_some(()));
    assert_eq!((written(&place, &id), way_a.sent().len()), (before + 1, 0), "written first");

    way_b.lie(SEND, Lie::Delay);
    let b = by_b();
    for sends in 1..=2 {
        eventually("a resend on its way", || (way_b.waiting() > 0).then_some(()));
        let sent = way_b.sent().len();
        assert!(sent >= sends && before + 1 + sent <= written(&place, &id), "each written first");
        way_b.release();
        eventually("its arrival", || (way_b.waiting() == 0).then_some(()));
    }
    way_b.honest();
    let token = place.owned_by("txm-b");
    a.wake();
    eventually("an end of its ownership", || {
        let words = a.words();
        (words.contains("the lease is lost") || words.contains("fenced:")).then_some(())
    });
    let sent = way_b.sent().len();
    eventually("more resends", || {
        let is_owner_again = place.token() > token;
        (way_b.sent().len() >= sent + 2 || is_owner_again).then_some(())
    });
    let (by_a, sent) = (way_a.sent().len(), way_b.sent().len());
    let is_owner_again = place.token() > token;
    assert!(by_a == 0 || is_owner_again, "the first owner sends no more");
    assert!(before + 1 + by_a + sent <= written(&place, &id), "one was written and not sent");
    place.chain.mine(3);
    b.becomes(&id, "CONFIRMED", None);
    b.stop();
    a.kill();

    let (id, before) = left(&place, "txm-second");
    let way_c = place.endpoint(&place.chain);
    let mut c = start("txm-c", &way_c, "txm_before_resend");
    eventually("a kill", || c.has_ended().then_some(()));
    assert_eq!((written(&place, &id), way_c.sent().len()), (before + 1, 0), "written first");
    let sent = way_b.sent().len();
    let d = by_b();
    eventually("resends", || (way_b.sent().len() >= sent + 2).then_some(()));
    let more = way_b.sent().len() - sent;
    assert!(before + 1 + more <= written(&place, &id), "each is written first");
    place.chain.mine(3);
    d.becomes(&id, "CONFIRMED", None);
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

/// Goal: no transaction costs more gas than its cap. Method: the price is raised until the next
/// step would cost more.
#[test]
fn rsb_004_nothing_is_signed_above_the_cap_of_a_transaction() {
    const COST_GWEI: u128 = 105_000;
    let cost = COST_GWEI.to_string();
    let settings = [("FEE__COST_GWEI_MAX", cost.as_str()), ("RESUBMIT__BUMP_AFTER", "0")];
    let place = Place::new(&[&settings[..], &[("RESUBMIT__ATTEMPTS_MAX", "0")]].concat());
    let node = place.first_node();
    let id = place.pay(&node, "a-0");
    let row = node.becomes(&id, "TRACKING", Some("UNDERPRICED"));
    let all = prices(&row);
    let most = COST_GWEI * FIRST_BASE_FEE / 21_000;
    assert!(all.len() > 1 && all.iter().all(|(fee, _)| *fee <= most), "{row}");
    let (highest, _) = all.last().expect("an attempt");
    assert!((highest * 112).div_ceil(100) > most, "the next step is above the cap: {row}");
    let times = sent(&place, &row, all.len() - 1);
    node.until(&id, "resends", |row| sent(&place, row, all.len() - 1) >= times + 2);
    assert_eq!(prices(&node.row(&id)), all);
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
}

fn cancel(node: &Party, id: &str) {
    let reply = node.post(&format!("/api/v1/tx/{id}/cancel"), &json!({}));
    assert!([200, 202].contains(&reply.status), "{reply:?}");
}

/// Goal: a cancel ends a row that was not signed, and else is a wish. Method: a cancel of a row
/// that waits for funds, of one that no pool has, and of one in the pool; then one behind the
/// block, and one that never arrives.
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

    // The original wins: it is mined before the wish, or before the cancel has arrived.
    let mined = pooled(&place, &node, "mined");
    place.chain.mine(1);
    node.becomes(&mined, "TRACKING", Some("MINED"));
    cancel(&node, &mined);
    let row = place.end(&node, &mined);
    assert_eq!(row["state"], "CONFIRMED");
    assert_eq!(row["attempts"].as_array().map(Vec::len), Some(1), "nothing was signed: {row}");
    let late = pooled(&place, &node, "late");
    place.proxy.lie(SEND, Lie::LoseRequest);
    cancel(&node, &late);
    node.until(&late, "a cancel", |row| row["attempts"][1]["kind"] == "CANCEL");
    let row = place.end(&node, &late);
    assert_eq!((&row["state"], &row["receipt"]["attempt"]), (&json!("CONFIRMED"), &json!(1)));
    place.proxy.honest();
    for ended in [&late, &tracking] {
        let reply = node.post(&format!("/api/v1/tx/{ended}/cancel"), &json!({}));
        assert_refused(&reply, 409, "NOT_CANCELLABLE");
    }
}

/// Goal: a cancelled row with a nonce and without bytes is filled. Method: the window is full; the
/// second payment waits for its turn, and is cancelled.
#[test]
fn rsb_006_a_cancelled_nonce_without_bytes_is_filled() {
    let place = Place::new(&[("RESUBMIT__INTERVAL_MS", "3600000"), ("SUBMIT__IN_FLIGHT_MAX", "1")]);
    let node = place.first_node();
    let ids = place.pay_in_order(&node, &["a-0", "a-1", "a-2"]);
    node.becomes(&ids[0], "TRACKING", Some("PENDING"));
    place.looks(2);
    let row = node.becomes(&ids[1], "ALLOCATED", None);
    assert!(row["attempts"].as_array().is_some_and(Vec::is_empty), "it waits for its turn: {row}");
    cancel(&node, &ids[1]);
    node.until(&ids[1], "a fill", |row| row["attempts"][0]["kind"] == "FILL");
    let rows: Vec<Value> = ids.iter().map(|id| place.end(&node, id)).collect();
    let ends: Vec<&Value> = rows.iter().map(|row| &row["state"]).collect();
    assert_eq!(ends, ["CONFIRMED", "FAILED", "CONFIRMED"]);
    assert_eq!(rows[1]["code"], "FILLED");
    assert_eq!(rows[1]["attempts"].as_array().map(Vec::len), Some(1), "it never paid");
    assert_eq!(place.chain.nonce(SIGNER), 3);
}

/// Goal: switched off, bytes that an endpoint has are left alone, and nothing else changes.
/// Method: many looks at the chain, each of which is longer than half the interval; then a block.
#[test]
fn rsb_007_switched_off_nothing_is_sent_again() {
    let settings = [("RESUBMIT__ENABLED", "false"), ("RESUBMIT__INTERVAL_MS", "100")];
    let place = Place::new(&settings);
    let node = place.first_node();
    let id = place.pay(&node, "a-0");
    node.becomes(&id, "TRACKING", Some("PENDING"));
    // A send of before its acknowledgement may be on its way.
    place.looks(2);
    let sends = place.proxy.sent().len();
    place.looks(20);
    assert_eq!(place.proxy.sent().len(), sends);
    assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");

    // Bytes that no endpoint has, those that a reorganization lost, and a cancel: these go on.
    place.proxy.say("txpool is full");
    let full = place.pay(&node, "a-1");
    let row = node.until(&full, "an attempt", |row| !row["attempts"][0].is_null());
    node.until(&full, "sends", |_| sent(&place, &row, 0) >= 3);
    place.proxy.honest();
    node.becomes(&full, "TRACKING", Some("PENDING"));
    place.chain.mine(1);
    node.becomes(&full, "TRACKING", Some("MINED"));
    place.chain.reorg(1, &[]);
    node.becomes(&full, "TRACKING", Some("REORGED"));
    eventually("the bytes in the pool", || (place.chain.pending_nonce(SIGNER) == 2).then_some(()));
    assert_eq!(place.end(&node, &full)["state"], "CONFIRMED");
    let wish = pooled(&place, &node, "a-2");
    cancel(&node, &wish);
    node.until(&wish, "a cancel in the pool", |row| row["attempts"][1]["inPool"] == true);
    let row = place.end(&node, &wish);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("CANCELLED")), "{row}");
}

/// The records of the audit about a row, or about the signer: the deed, its actor and its reason.
fn audited(place: &Place, about: &str) -> Vec<Vec<String>> {
    let asked =
        format!("SELECT what, actor, reason FROM txm.audit WHERE {about} ORDER BY at, what");
    place.site.sql(&asked)
}

/// Goal: a command of any node is carried out once, by the owner, and is in the audit. Method: each
/// command on a node that is not the owner; many cancels at once, of two nodes; a cancel while the
/// owner stands still.
#[test]
fn rsb_008_a_command_of_any_node_is_carried_out_once() {
    let place = Place::new(&[("RESUBMIT__INTERVAL_MS", "3600000")]);
    let a = place.first_node();
    let id = pooled(&place, &a, "a-0");
    let b = place.node("txm-b", &[]);
    let open = "SELECT count(*) FROM txm.tx_commands WHERE state < 2";
    let sends = place.proxy.sent().len();
    b.command(&["tx", "resubmit", &id]);
    eventually("the bytes again", || (place.proxy.sent().len() == sends + 1).then_some(()));
    let ended = crowd(4, |number| {
        let node = if number % 2 == 0 { &a } else { &b };
        node.operate(&["tx", "cancel", &id, "--reason", "a test"])
    });
    assert!(ended.iter().all(|(exit, ..)| *exit == 0), "{ended:?}");
    let row = place.end(&b, &id);
    assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("CANCELLED")), "{row}");
    let attempts = row["attempts"].as_array().expect("attempts").len();
    assert_eq!(attempts, 2, "one payment, one cancel: {row}");
    assert_eq!(place.proxy.sent().len(), sends + 2, "one resend, one cancel");
    let told = audited(&place, &format!("tx_id = '{id}'"));
    let deeds: Vec<&str> = told.iter().map(|row| row[0].as_str()).collect();
    assert!(deeds.starts_with(&["resubmit", "cancel"]), "{told:?}");
    assert!(told.iter().all(|row| !row[1].is_empty() && row[2] == "a test"), "{told:?}");
    assert_eq!(place.site.sql_value(open), "0");

    // The owner stands still: the next one carries it out, and the first one not again.
    let id = pooled(&place, &a, "a-1");
    a.pause();
    b.command(&["tx", "cancel", &id]);
    b.until(&id, "a cancel in the pool", |row| row["attempts"][1]["inPool"] == true);
    let token = place.owned_by("txm-b");
    a.wake();
    a.until(&id, "the row", |row| row["attempts"][1]["inPool"] == true);
    let row = place.end(&b, &id);
    assert_eq!(row["code"], "CANCELLED");
    assert_eq!(row["attempts"].as_array().map(Vec::len), Some(2), "{row}");
    assert_eq!(place.site.sql_value(open), "0");

    a.command(&["signer", "release", &hex_of(SIGNER)]);
    let told = audited(&place, "tx_id IS NULL AND what = 'release'");
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0][2], "a test");
    let id = pooled(&place, &a, "a-2");
    assert!(place.token() > token, "it was given back");
    assert_eq!(place.end(&a, &id)["state"], "CONFIRMED");
}
