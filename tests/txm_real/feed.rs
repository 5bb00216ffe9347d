//! The feed of all changes under concurrent commits and kills.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::place::{Party, Place};
use crate::harness::{ACCOUNTS, crowd, eventually, hex_of, text};

/// The signers, each with an owner of its own.
const SIGNERS: usize = 4;
/// The kills.
const ROUNDS: usize = 3;

/// A place of the feed as numbers.
fn place_of(event: &Value) -> Vec<u64> {
    let parts = text(&event["cursor"]).split('.');
    parts.map(|part| part.parse().expect("a number")).collect()
}

/// Pays from one of the signers.
fn pay_from(place: &Place, node: &Party, signer: usize, request_id: &str) -> String {
    let mut payment = place.payment(request_id);
    payment["signer"] = json!(hex_of(ACCOUNTS[signer]));
    let reply = node.post("/api/v1/tx", &payment);
    assert_eq!(reply.status, 202, "{reply:?}");
    text(&reply.json()["txId"]).to_owned()
}

/// Reads the feed from its begin until the flag is set and it has nothing more.
fn read(node: &Party, is_over: &AtomicBool) -> Vec<Value> {
    let (mut events, mut after) = (Vec::new(), None);
    eventually("the end of the feed", || {
        let was_over = is_over.load(Ordering::Acquire);
        let (page, next) = node.feed(after.as_deref());
        let is_end = was_over && page.is_empty();
        events.extend(page);
        after = Some(next);
        is_end.then_some(())
    });
    events
}

/// Goal: a reader that follows the feed has each event once, in order, also over concurrent commits
/// and kills. Method: payments of four signers on three nodes, of which one is killed in each round
/// and another one reads; a transaction that began first commits last.
#[test]
fn cnf_012_the_feed_has_each_event_once_over_kills() {
    let place = Place::with_signers(SIGNERS, &[]);
    let reader = place.node("txm-reader", &[]);
    for signer in &ACCOUNTS[..SIGNERS] {
        place.add(&reader, *signer);
    }
    let is_over = AtomicBool::new(false);
    let events = thread::scope(|scope| {
        let reading = scope.spawn(|| read(&reader, &is_over));
        let other = place.node("txm-b", &[]);
        let mut ids = Vec::new();
        for round in 0..ROUNDS {
            let dying = place.node(&format!("txm-{round}"), &[]);
            let paid = crowd(SIGNERS, |signer| {
                let pay = |node: &Party, name: &str| {
                    pay_from(&place, node, signer, &format!("{name}-{round}-{signer}"))
                };
                [pay(&dying, "a"), pay(&other, "b")]
            });
            ids.extend(paid.into_iter().flatten());
            place.chain.mine(1);
            dying.kill();
        }
        commits_last(&place, &other, &mut ids);
        for id in &ids {
            assert_eq!(place.end(&other, id)["state"], json!("CONFIRMED"));
        }
        // The feed waits for each transaction of the server; the last event is visible then.
        for id in &ids {
            place.story(&other, id);
        }
        is_over.store(true, Ordering::Release);
        reading.join().expect("no panic in the reader")
    });
    assert!(events.windows(2).all(|pair| place_of(&pair[0]) < place_of(&pair[1])), "in order");
    let mut seqs: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &events {
        let last = seqs.entry(text(&event["txId"])).or_default();
        assert_eq!(event["seq"], json!(*last + 1), "{event}");
        *last += 1;
    }
    let stored = place.site.sql("SELECT tx_id, event_seq FROM txm.managed_tx");
    let stored: BTreeMap<&str, u64> =
        stored.iter().map(|row| (row[0].as_str(), row[1].parse().expect("a number"))).collect();
    assert_eq!(seqs, stored);
    let count = place.site.sql_value("SELECT count(*) FROM txm.tx_events");
    assert_eq!(events.len().to_string(), count);
}

/// A transaction that has written its event first and commits last holds back the later ones, so
/// that no reader passes it.
fn commits_last(place: &Place, node: &Party, ids: &mut Vec<String>) {
    let holder = place.site.session();
    let signer = hex_of(ACCOUNTS[0]);
    holder.sql(&format!(
        "BEGIN; SELECT FROM txm.cancel_by_request('{signer}', 'late', 'a test', 'a test')"
    ));
    let id = pay_from(place, node, 1, "behind");
    let stored = node.until(&id, "its nonce", |row| !row["nonce"].is_null());
    assert_ne!(stored["state"], json!("CREATED"));
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = node.feed(after.as_deref());
        if page.is_empty() {
            break;
        }
        seen.extend(page);
        after = Some(next);
    }
    assert!(seen.iter().all(|event| event["txId"] != json!(id)), "it is committed, and held back");
    holder.sql("COMMIT");
    ids.push(id);
}
