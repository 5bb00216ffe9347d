//! Nonces: a chain that is ahead, endpoints that lag, gaps.

use std::fs;

use alloy_primitives::{B256, U256, keccak256};
use serde_json::{Value, json};

use super::place::{Party, Place, operator};
use super::{PAYEE, SIGNER};
use crate::harness::{Draft, FIRST_BASE_FEE, SEND, eventually, hex_of, text};

/// A transaction of the signer that no row has, in the pool.
fn foreign(place: &Place, nonce: u64) -> String {
    let raw = place.chain.sign(SIGNER, &Draft::payment(nonce, PAYEE, 7));
    let hash = place.chain.send(&raw).expect("taken");
    place.is_foreign(hash);
    hash.to_string()
}

/// The suspensions of the signer.
fn suspensions(node: &Party) -> Vec<String> {
    let signers = node.get("/api/v1/signers").json();
    let all = signers["signers"][0]["suspensions"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|one| one["reason"].as_str().map(str::to_owned)).collect()
}

/// Goal: nonces that no row has stop the signer until two operators adopt them. Method: the key is
/// used elsewhere; nothing is signed; adopt; the payment goes on behind it.
#[test]
fn non_005_a_chain_that_is_ahead_stops_the_signer_until_it_is_adopted() {
    let place = Place::new(&[("NONCE__STATE_TIMEOUT_MS", "100")]);
    let node = place.first_node();
    let hash = foreign(&place, 0);
    place.chain.mine(1);
    let id = place.pay(&node, "a-1");
    eventually("a suspension", || {
        suspensions(&node).contains(&"NONCE_AHEAD".to_owned()).then_some(())
    });
    place.looks(3);
    assert_eq!((&node.row(&id)["nonce"], place.proxy.sent().len()), (&Value::Null, 0));
    let token = place.site.fresh_path("approver");
    fs::write(&token, operator(8, "admin")).expect("written");
    let (named, token) = (format!("0={hash}"), token.to_str().expect("text").to_owned());
    let signer = hex_of(SIGNER);
    let without = ["signer", "adopt", &signer, "--reason", "x", "--approver-token-file", &token];
    let (exit, _, why) = node.operate(&without);
    assert_eq!(exit, 1, "one is missing: {why}");
    let other = format!("0={}", B256::repeat_byte(7));
    for (words, lacks) in [
        (&["--foreign", &other, "--rest", "pay"][..], "another transaction"),
        (&["--foreign", &named], "a-1"),
    ] {
        let (exit, _, why) = node.operate(&[&without[..], words].concat());
        assert!(exit == 1 && why.contains(lacks), "{why}");
    }
    let all = ["--foreign", &named, "--pay", "a-1"];
    let (exit, _, why) = node.operate(&[&without[..], &all].concat());
    assert_eq!(exit, 0, "{why}");
    let row = place.end(&node, &id);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(1)));
    assert_eq!(suspensions(&node), Vec::<String>::new());
}

/// Goal: a key that is shared on purpose is followed. Method: another uses it; the cursor jumps,
/// the jump is a row, and the payment comes behind it.
#[test]
fn non_005_a_shared_key_is_followed() {
    let settings = [("NONCE__EXTERNAL_USE", "follow"), ("NONCE__STATE_TIMEOUT_MS", "100")];
    let place = Place::new(&settings);
    let node = place.first_node();
    foreign(&place, 0);
    foreign(&place, 1);
    place.chain.mine(1);
    let id = place.pay(&node, "a-1");
    let row = place.end(&node, &id);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(2)));
    let jump = place.site.sql("SELECT first_nonce, before_nonce FROM txm.nonce_jumps");
    assert_eq!(jump, [["0".to_owned(), "2".to_owned()]]);
}

/// Goal: a jumped nonce that the chain never mines is filled, by time or by an operator, and one
/// that is mined is not. Method: another wallet's two transactions are in the pool, which loses the
/// second; the payment stands behind it.
#[test]
fn non_005_a_jumped_nonce_that_is_lost_is_filled() {
    for by_time in [true, false] {
        let fill_after = if by_time { "1000" } else { "3600000" };
        let place = Place::new(&[
            ("NONCE__EXTERNAL_USE", "follow"),
            ("NONCE__STATE_TIMEOUT_MS", "100"),
            ("NONCE__FILL_AFTER_MS", fill_after),
        ]);
        let node = place.first_node();
        foreign(&place, 0);
        let lost = foreign(&place, 1);
        let id = place.pay(&node, "a-1");
        let row = node.until(&id, "its nonce", |row| !row["nonce"].is_null());
        assert_eq!(row["nonce"], 2);
        assert!(place.chain.drop_transaction(lost.parse().expect("a hash")));
        place.chain.mine(1);
        place.looks(2);
        let signer = hex_of(SIGNER);
        let fill = |nonce: &str| {
            let words = ["tx", "fill-gap", "--signer", &signer, "--nonce", nonce, "--reason", "x"];
            node.operate(&words)
        };
        if !by_time {
            let (exit, _, why) = fill("0");
            assert!(exit != 0 && why.contains("mined"), "the chain has it: {why}");
            let (exit, _, why) = fill("1");
            assert_eq!(exit, 0, "{why}");
        }
        let of_fill = "SELECT tx_id FROM txm.managed_tx WHERE request_id = 'fill/1'";
        let filled = eventually("a fill", || {
            let rows = place.site.sql(of_fill);
            rows.first().map(|row| row[0].clone())
        });
        let row = place.end(&node, &filled);
        assert_eq!((&row["code"], &row["nonce"]), (&json!("FILLED"), &json!(1)), "{row}");
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED");
        let signers = node.get("/api/v1/signers").json();
        assert_eq!(signers["signers"][0]["jumpedNonces"], 1, "the other wallet's");
        let rows = "SELECT count(*) FROM txm.managed_tx WHERE nonce = 0";
        assert_eq!(place.site.sql_value(rows), "0");
        let (exit, out, why) = node.operate(&["tx", "audit", "--signer", &signer]);
        assert_eq!(exit, 0, "{out}{why}");
    }
}

/// Goal: a payment that a restored database has forgotten is not paid again. Method: a copy of the
/// database is made, two payments end behind it, and the copy takes its place. Two operators import
/// both; the clients repeat their requests.
#[test]
fn non_005_a_forgotten_payment_is_imported_and_its_repeat_pays_nothing() {
    let mut place =
        Place::new(&[("NONCE__STATE_TIMEOUT_MS", "100"), ("RESUBMIT__INTERVAL_MS", "3600000")]);
    let node = place.first_node();
    let first = place.pay(&node, "a-1");
    place.end(&node, &first);
    node.stop();
    let backup = place.backup();
    let node = place.node("txm-a", &[]);
    let mut requests = ["a-2", "a-3"].map(|id| place.payment(id));
    requests[1]["businessKey"] = json!("order-3");
    requests[1]["payload"]["gas"] = json!(30_000);
    let hashes = requests.each_ref().map(|body| {
        let reply = node.post("/api/v1/tx", body);
        assert_eq!(reply.status, 202, "{reply:?}");
        let row = place.end(&node, text(&reply.json()["txId"]));
        text(&row["txHash"]).to_owned()
    });
    node.stop();
    place.restore(backup);
    let node = place.node("txm-a", &[]);
    let new = place.pay(&node, "a-4");
    eventually("a suspension", || (!suspensions(&node).is_empty()).then_some(()));
    let token = place.site.fresh_path("approver");
    fs::write(&token, operator(8, "admin")).expect("written");
    let (signer, token) = (hex_of(SIGNER), token.to_str().expect("text").to_owned());
    let named = [format!("{}=a-2", hashes[0]), format!("{}=a-3,key=order-3,gas", hashes[1])];
    let adopt = ["signer", "adopt", &signer, "--reason", "x", "--approver-token-file", &token];
    let (exit, _, why) = node.operate(&[&adopt[..], &["--import", &named[0]]].concat());
    assert!(exit == 1 && why.contains("nonce 2"), "one is missing: {why}");
    let both = ["--import", &named[0], "--import", &named[1]];
    let (exit, _, why) = node.operate(&[&adopt[..], &both].concat());
    assert_eq!(exit, 0, "{why}");
    for (nonce, body) in [(1, &requests[0]), (2, &requests[1])] {
        let reply = node.post("/api/v1/tx", body);
        assert_eq!((reply.status, &reply.json()["nonce"]), (200, &json!(nonce)), "{reply:?}");
        let id = text(&reply.json()["txId"]).to_owned();
        let mut other = body.clone();
        other["payload"]["value"] = json!("7");
        assert_eq!(node.post("/api/v1/tx", &other).status, 409);
        let row = place.end(&node, &id);
        assert_eq!(
            (&row["state"], &row["txHash"]),
            (&json!("CONFIRMED"), &json!(hashes[nonce - 1]))
        );
    }
    assert_eq!(place.end(&node, &new)["nonce"], 3);
    assert_eq!(place.chain.nonce(SIGNER), 4, "no second payment");
    let (exit, out, why) = node.operate(&["tx", "audit", "--signer", &signer]);
    assert_eq!(exit, 0, "{out}{why}");
}

/// Goal: behind a restore neither a nonce that is under way nor a request that the lost database
/// has ended is paid. Method: a request without a nonce is in the copy, and is cancelled behind it.
/// Two payments leave; the pool loses the first. On the copy their nonces are filled, the second
/// payment wins over its fill, and all clients repeat.
#[test]
fn non_005_nonces_that_were_seen_are_filled_before_a_restored_signer_pays() {
    let mut place =
        Place::new(&[("NONCE__STATE_TIMEOUT_MS", "100"), ("RESUBMIT__INTERVAL_MS", "3600000")]);
    let node = place.first_node();
    let signer = hex_of(SIGNER);
    let operate = |node: &Party, words: &[&str]| {
        let (exit, out, why) = node.operate(&[words, &["--reason", "x"]].concat());
        (exit, format!("{out}{why}"))
    };
    let resume = |node: &Party| {
        let (exit, words) = operate(node, &["signer", "resume", &signer]);
        assert_eq!(exit, 0, "{words}");
    };
    let first = place.pay(&node, "a-1");
    place.end(&node, &first);
    assert_eq!(operate(&node, &["signer", "suspend", &signer]).0, 0);
    let given_up = place.payment("w-1");
    assert_eq!(node.post("/api/v1/tx", &given_up).status, 202);
    node.stop();
    let backup = place.backup();

    let node = place.node("txm-a", &[]);
    let named = json!({"signer": signer, "requestId": "w-1"});
    assert_eq!(node.post("/api/v1/tx/cancel", &named).status, 202);
    resume(&node);
    let ended = node.post("/api/v1/tx", &given_up).json();
    node.until(text(&ended["txId"]), "its end", |row| row["code"] == "REFUSED");
    let requests = ["b-1", "b-2"].map(|id| place.payment(id));
    // Their price is far above the one that the fills have.
    place.chain.set_base_fee(20 * FIRST_BASE_FEE);
    place.chain.mine(1);
    place.looks(1);
    let hashes = requests.each_ref().map(|body| {
        let reply = node.post("/api/v1/tx", body).json();
        let row = node.until(text(&reply["txId"]), "it is sent", |row| row["state"] == "TRACKING");
        text(&row["txHash"]).to_owned()
    });
    let [lost, kept]: [B256; 2] = hashes.each_ref().map(|hash| hash.parse().expect("a hash"));
    let raws = place.sent();
    let kept = raws.iter().find(|raw| keccak256(raw) == kept).expect("its bytes");
    assert!(place.chain.drop_transaction(lost));
    place.is_foreign(lost);
    node.stop();
    place.restore(backup);
    place.chain.set_base_fee(FIRST_BASE_FEE);
    place.chain.mine(1);
    // Another pool may have it still.
    place.chain.send(kept).ok();

    let node = place.node("txm-a", &[]);
    resume(&node);
    assert_eq!(suspensions(&node), ["DATABASE_RESTORED"]);
    let token = place.site.fresh_path("approver");
    fs::write(&token, operator(8, "admin")).expect("written");
    let token = token.to_str().expect("text").to_owned();
    let adopt = |words: &[&str]| {
        let adopt = ["signer", "adopt", &signer, "--approver-token-file", &token];
        operate(&node, &[&adopt[..], words].concat())
    };
    let (exit, words) = adopt(&["--drop", "w-1"]);
    assert!(exit == 1 && words.contains("the adoption that lifts the suspension"), "{words}");
    let many = (1..=2_000).map(|n| format!("--import={}=m-{n}", B256::from(U256::from(n))));
    let many: Vec<String> = many.collect();
    let (exit, words) = adopt(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(exit == 1 && words.contains("is not mined"), "a body for thousands: {words}");
    let (exit, words) = adopt(&[]);
    assert!(exit == 0 && words.contains("still suspended: nonces up to 2"), "{words}");
    let fill = |nonce| operate(&node, &["tx", "fill-gap", "--signer", &signer, "--nonce", nonce]);
    let (exit, words) = fill("3");
    assert!(exit != 0 && words.contains("not to be filled"), "{words}");
    let (exit, words) = fill("2");
    assert_eq!(exit, 0, "{words}");
    let ends = ["fill/1", "fill/2"].map(|id| {
        let asked = format!("SELECT tx_id FROM txm.managed_tx WHERE request_id = '{id}'");
        text(&place.end(&node, &place.site.sql_value(&asked))["code"]).to_owned()
    });
    assert_eq!(ends, ["FILLED", "NONCE_TAKEN"]);
    // The policy is a count, so that their owner looks at them for a while.
    let open = "SELECT count(*) FROM txm.managed_tx WHERE final_at IS NULL AND nonce IS NOT NULL";
    eventually("their ends", || {
        place.chain.mine(1);
        (place.site.sql_value(open) == "0").then_some(())
    });
    let import = format!("{}=b-2", hashes[1]);
    for (words, lacks) in [
        (&[][..], "nonce 2"),
        (&["--import", &import], "w-1"),
        (&["--import", &import, "--pay", "w-1", "--drop", "w-1"], "w-1"),
    ] {
        let (exit, why) = adopt(words);
        assert!(exit == 1 && why.contains(lacks), "{words:?}: {why}");
    }
    let (exit, words) = adopt(&["--import", &import, "--drop", "w-1"]);
    assert!(exit == 0 && words.contains("adopted, next nonce 3"), "{words}");

    let repeats = [&requests[0], &requests[1], &given_up].map(|body| {
        let reply = node.post("/api/v1/tx", body);
        let row = place.end(&node, text(&reply.json()["txId"]));
        (reply.status, row["nonce"].clone(), text(&row["state"]).to_owned())
    });
    let wanted =
        [(202, json!(3), "CONFIRMED"), (200, json!(2), "CONFIRMED"), (200, Value::Null, "FAILED")];
    assert_eq!(repeats, wanted.map(|(status, nonce, state)| (status, nonce, state.to_owned())));
    let (exit, out, why) = node.operate(&["tx", "audit", "--signer", &signer]);
    assert_eq!(exit, 0, "{out}{why}");
}

/// Goal: a payment is not called taken because a restored database lacks the mined attempt. Method:
/// behind a backup the price is raised, and that attempt is mined; the node starts on the backup,
/// and stays suspended.
#[test]
fn non_005_a_mined_attempt_that_a_restored_database_lacks_ends_its_row_as_paid() {
    let mut place = Place::new(&[("RESUBMIT__BUMP_AFTER", "1000")]);
    let node = place.first_node();
    let id = place.pay(&node, "a-1");
    node.until(&id, "it is sent", |row| row["state"] == "TRACKING");
    node.stop();
    let backup = place.backup();
    let node = place.node("txm-a", &[("RESUBMIT__BUMP_AFTER", "1")]);
    let raised = node.until(&id, "a raise", |row| {
        row["attempts"].as_array().is_some_and(|all| all.len() > 1 && all[1]["inPool"] == true)
    });
    node.stop();
    let hash = raised["attempts"][1]["hash"].clone();
    place.chain.mine(1);
    place.restore(backup);
    let node = place.node("txm-a", &[]);
    assert_eq!(suspensions(&node), ["DATABASE_RESTORED"]);
    let row = place.end(&node, &id);
    assert_eq!((&row["state"], &row["txHash"]), (&json!("CONFIRMED"), &hash), "{row}");
    assert_eq!(row["attempts"].as_array().map(Vec::len), Some(2), "{row}");
    assert_eq!(suspensions(&node), ["DATABASE_RESTORED"]);
}

/// Goal: an endpoint that lags moves no cursor back. Method: one of two serves the head before the
/// last payment, and the next one gets the next nonce; then both do, and the cursor stands.
#[test]
fn non_006_a_lagging_endpoint_leaves_the_cursor() {
    let place = Place::new(&[("NONCE__STATE_TIMEOUT_MS", "100")]);
    let lagging = place.endpoint(&place.chain);
    let urls = [place.proxy.url(), lagging.url()].join(",");
    let node = place.node("txm-a", &[("CHAIN__RPC_URLS", &urls)]);
    place.add(&node, SIGNER);
    place.chain.mine(1);
    let old = place.chain.height();
    let first = place.pay(&node, "a-1");
    place.end(&node, &first);
    lagging.serve_old_head(old);
    let second = place.pay(&node, "a-2");
    let row = place.end(&node, &second);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(1)));

    place.proxy.serve_old_head(old);
    let third = place.pay(&node, "a-3");
    place.looks(3);
    let cursor = place.site.sql_value("SELECT next_nonce FROM txm.signer_nonce_cursor");
    assert!(
        ["2", "3"].contains(&cursor.as_str()),
        "it stands, or the third has its nonce: {cursor}"
    );
    place.proxy.honest();
    lagging.honest();
    let row = place.end(&node, &third);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(2)));
}

/// Goal: a signer with transactions under way is not added. Method: one in the pool; then mined.
#[test]
fn non_007_a_signer_with_transactions_under_way_is_refused() {
    let place = Place::new(&[]);
    let node = place.node("txm-a", &[]);
    foreign(&place, 0);
    let signer = hex_of(SIGNER);
    let add = ["signer", "add", &signer, "--reason", "a test"];
    let (exit, _, why) = node.operate(&add);
    assert!(exit != 0 && why.contains('0') && why.contains('1'), "both numbers: {why}");
    place.chain.mine(1);
    let (exit, out, why) = node.operate(&add);
    assert!(exit == 0 && out.contains("next nonce 1"), "{out}{why}");
    let id = place.pay(&node, "a-1");
    let row = place.end(&node, &id);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(1)));
}

/// Goal: a pool's loss is seen, and sent again without the interval. Method: the node drops
/// the third of six, and with it the later ones; the interval is an hour.
#[test]
fn non_008_a_dropped_transaction_is_sent_again_at_once() {
    let place = Place::new(&[("RESUBMIT__INTERVAL_MS", "3600000")]);
    let node = place.first_node();
    let ids = place.pay_in_order(&node, &["a-0", "a-1", "a-2", "a-3", "a-4", "a-5"]);
    for id in &ids {
        node.becomes(id, "TRACKING", Some("PENDING"));
    }
    let third = node.row(&ids[2]);
    let hash = third["txHash"].as_str().expect("a hash").parse().expect("a hash");
    assert!(place.chain.drop_transaction(hash));
    for id in &ids {
        assert_eq!(place.end(&node, id)["state"], "CONFIRMED");
    }
    assert_eq!(place.chain.nonce(SIGNER), 6);
    assert_eq!(place.sent().len(), 6, "the same bytes");
}

/// Goal: a nonce that no endpoint will ever take is filled, and the rows behind it are mined.
/// Method: the first payment is refused for good; the fill comes by time, then by an operator.
#[test]
fn non_009_a_blocked_nonce_is_filled_and_its_followers_are_mined() {
    for by_time in [true, false] {
        let fill_after = if by_time { "1000" } else { "3600000" };
        let place = Place::new(&[
            ("NONCE__FILL_AFTER_MS", fill_after),
            ("RESUBMIT__INTERVAL_MS", "3600000"),
        ]);
        let node = place.first_node();
        place.proxy.lie(SEND, crate::harness::Lie::say("invalid sender"));
        let blocked = place.pay(&node, "blocked");
        node.becomes(&blocked, "SUBMITTED", Some("BLOCKED"));
        let follower = || {
            let follower = place.pay(&node, "follower");
            node.until(&follower, "an attempt", |row| !row["attempts"][0].is_null());
            follower
        };
        // By time a follower that is refused too would be filled as well.
        let early = (!by_time).then(follower);
        if !by_time {
            node.command(&["tx", "fill-gap", &blocked]);
        }
        node.until(&blocked, "a fill", |row| row["attempts"][1]["kind"] == json!("FILL"));
        place.proxy.honest();
        let follower = early.unwrap_or_else(follower);
        for id in [&blocked, &follower] {
            node.command(&["tx", "resubmit", id]);
        }
        let row = place.end(&node, &blocked);
        assert_eq!((&row["state"], &row["code"]), (&json!("FAILED"), &json!("FILLED")), "{row}");
        assert_eq!(place.end(&node, &follower)["state"], "CONFIRMED");
    }
}
