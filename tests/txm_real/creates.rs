//! Creates of many clients over several nodes: numbers, repeats, conflicts, and lost commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::SIGNER;
use super::place::{Party, Place};
use crate::harness::{
    ACCOUNTS, Passing, Proxy, Reply, Speaker, assert_refused, crowd, eventually, hex_of,
    place as place_of, text,
};

/// Clients at the same time, and the requests of each, one behind the other.
const CLIENTS: usize = 30;
const REQUESTS: usize = 10;
/// The rows between two owners.
const ROWS_OF_AN_OWNER: usize = 60;
/// The settings of tests that send nothing twice.
const ONCE: (&str, &str) = ("RESUBMIT__INTERVAL_MS", "3600000");

/// A request that wants its nonce in its answer.
fn at_once(mut body: Value) -> Value {
    body.as_object_mut().expect("an object").remove("nonce");
    body
}

/// Asks the nodes one behind the other until one of them answers with the row.
fn made(nodes: &[&Party], first: usize, body: &Value) -> Reply {
    let mut at = first;
    eventually("its row", || {
        let reply = nodes[at % nodes.len()].post("/api/v1/tx", body);
        at += 1;
        if [200, 202].contains(&reply.status) {
            return Some(reply);
        }
        assert_eq!(reply.json()["retryable"], json!(true), "{reply:?}");
        None
    })
}

fn id(reply: &Reply) -> String {
    text(&reply.json()["txId"]).to_owned()
}

fn nonce(value: &Value) -> u64 {
    value["nonce"].as_u64().unwrap_or_else(|| panic!("no nonce: {value}"))
}

/// The rows, their nonces and the cursor have no hole and no repeat.
fn are_numbered(place: &Place, count: usize) {
    let nonces = "SELECT nonce FROM txm.managed_tx ORDER BY nonce";
    let nonces: Vec<String> = place.site.sql(nonces).into_iter().flatten().collect();
    assert_eq!(nonces, (0..count).map(|nonce| nonce.to_string()).collect::<Vec<_>>());
    let cursor = place.site.sql_value("SELECT next_nonce FROM txm.signer_nonce_cursor");
    assert_eq!(cursor, count.to_string());
}

/// Mines until every row is confirmed.
fn all_are_paid(place: &Place, count: usize) {
    let paid = "SELECT count(*) FROM txm.managed_tx WHERE state = 40";
    eventually("all payments", || {
        if place.site.sql_value(paid) == count.to_string() {
            return Some(());
        }
        place.chain.mine(1);
        place.looks(1);
        None
    });
    assert_eq!(place.chain.nonce(SIGNER), count as u64);
}

/// Goal: nonces rise strictly, without repeat and hole, over all nodes. Method: many clients make
/// rows on three nodes at the same time, half of them on any node and half on the owner; meanwhile
/// the owner gives the signer back again and again.
#[test]
fn non_001_creates_over_three_nodes_have_no_hole() {
    let place = Place::new(&[ONCE]);
    let nodes = ["txm-a", "txm-b", "txm-c"].map(|name| place.node(name, &[]));
    place.add(&nodes[0], SIGNER);
    let nodes: Vec<&Party> = nodes.iter().collect();
    let count = || -> usize {
        let count = "SELECT count(*) FROM txm.managed_tx WHERE nonce IS NOT NULL";
        place.site.sql_value(count).parse().expect("a number")
    };
    let client = |client: usize| -> Vec<u64> {
        let numbered = |request: usize| {
            let node = client + request;
            let body = place.payment(&format!("{client}-{request}"));
            if client.is_multiple_of(2) {
                return nonce(&made(&nodes, node, &at_once(body)).json());
            }
            let id = id(&made(&nodes, node, &body));
            let node = nodes[node % nodes.len()];
            nonce(&node.until(&id, "its nonce", |row| !row["nonce"].is_null()))
        };
        (0..REQUESTS).map(numbered).collect()
    };
    let given = thread::scope(|scope| {
        scope.spawn(|| {
            for part in 1..CLIENTS * REQUESTS / ROWS_OF_AN_OWNER {
                eventually("rows", || (count() >= part * ROWS_OF_AN_OWNER).then_some(()));
                nodes[part % nodes.len()].command(&["signer", "release", &hex_of(SIGNER)]);
            }
        });
        crowd(CLIENTS, client)
    });
    for nonces in &given {
        assert!(nonces.windows(2).all(|pair| pair[0] < pair[1]), "{nonces:?}");
    }
    let all: BTreeSet<u64> = given.into_iter().flatten().collect();
    assert_eq!(all, (0..(CLIENTS * REQUESTS) as u64).collect());
    are_numbered(&place, CLIENTS * REQUESTS);
    assert!(place.token() > 1, "the signer had several owners");
    all_are_paid(&place, CLIENTS * REQUESTS);
}

/// Goal: a request has one row for ever, on every node. Method: 100 times the same at the same time
/// on three nodes, half of them to any node and half to the owner; again behind its end.
#[test]
fn non_002_the_same_request_over_three_nodes_is_one_row() {
    let place = Place::new(&[ONCE]);
    let nodes = ["txm-a", "txm-b", "txm-c"].map(|name| place.node(name, &[]));
    place.add(&nodes[0], SIGNER);
    let nodes: Vec<&Party> = nodes.iter().collect();
    let later = place.payment("same");
    let now = at_once(later.clone());
    let body = |number: usize| if number.is_multiple_of(2) { &later } else { &now };
    let replies = crowd(100, |number| made(&nodes, number, body(number)));
    let new = replies.iter().filter(|reply| reply.status == 202).count();
    assert_eq!(new, 1, "the others are repeats");
    let ids: BTreeSet<String> = replies.iter().map(id).collect();
    assert_eq!(ids.len(), 1);
    let row = ids.first().expect("one");
    assert_eq!(place.end(nodes[0], row)["state"], "CONFIRMED");
    for number in 0..6 {
        let reply = nodes[number % 3].post("/api/v1/tx", body(number));
        assert_eq!((reply.status, id(&reply)), (200, row.clone()), "{reply:?}");
        assert_eq!(reply.json()["state"], "CONFIRMED");
    }
    are_numbered(&place, 1);
    assert_eq!(place.chain.nonce(SIGNER), 1);
}

/// Goal: another body under a known id, or a known purpose, is a conflict that names its fields and
/// takes no nonce. Method: each field on the owner and on another node, at once and later, before
/// and behind the end of the row.
#[test]
fn non_003_another_payload_on_any_node_is_a_conflict_that_names_its_fields() {
    let place = Place::with_signers(2, &[ONCE]);
    let a = place.first_node();
    let b = place.node("txm-b", &[]);
    place.add(&b, ACCOUNTS[1]);
    let mut first = place.payment("first");
    first["businessKey"] = json!("order-1");
    let row = id(&made(&[&a], 0, &at_once(first.clone())));
    let changes = [
        ("to", json!(hex_of(ACCOUNTS[6]))),
        ("value", json!("77")),
        ("data", json!("0x00")),
        ("gas", json!(50_000)),
    ];
    for state in ["ALLOCATED", "CONFIRMED"] {
        for (field, value) in &changes {
            let mut other = first.clone();
            other["payload"][*field] = value.clone();
            conflicts(&[&a, &b], &other, field);
        }
        let mut other = first.clone();
        other["businessKey"] = json!("order-2");
        conflicts(&[&a, &b], &other, "businessKey");
        let mut two = first.clone();
        (two["payload"]["value"], two["payload"]["gas"]) = (json!("77"), json!(50_000));
        conflicts(&[&a, &b], &two, "value, gas");
        if state == "ALLOCATED" {
            assert_eq!(place.end(&a, &row)["state"], "CONFIRMED");
        }
    }
    // A purpose is one row over all requests and signers.
    let mut purpose = place.payment("second");
    purpose["businessKey"] = json!("order-1");
    assert_conflict(&a.post("/api/v1/tx", &purpose), "businessKey");
    assert_conflict(&a.post_as_owner(&at_once(purpose.clone())), "businessKey");
    purpose["signer"] = json!(hex_of(ACCOUNTS[1]));
    assert_conflict(&b.post("/api/v1/tx", &purpose), "businessKey");
    assert_eq!(place.site.sql_value("SELECT count(*) FROM txm.managed_tx"), "1");
    let next = made(&[&a, &b], 0, &at_once(place.payment("next")));
    assert_eq!(nonce(&next.json()), 1);
    assert_eq!(place.end(&a, &id(&next))["state"], "CONFIRMED");
}

/// Each node refuses it, at once and later.
fn conflicts(nodes: &[&Party], body: &Value, fields: &str) {
    for node in nodes {
        for body in [body.clone(), at_once(body.clone())] {
            assert_conflict(&node.post("/api/v1/tx", &body), fields);
        }
    }
}

fn assert_conflict(reply: &Reply, fields: &str) {
    assert_refused(reply, 409, "DUPLICATE_REQUEST");
    let body = reply.json();
    assert!(text(&body["message"]).ends_with(&format!(": {fields}.")), "{reply:?}");
}

/// Goal: a create that failed, and one with a lost answer, leave no hole and no second row. Method:
/// the server ends the statement amid its wait; the network loses the answer behind the commit.
/// The same requests are answered with their rows.
#[test]
fn non_004_failed_and_unknown_commits_leave_no_hole() {
    let place = Place::new(&[ONCE]);
    let (left, is_armed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (lost, armed) = (Arc::clone(&left), Arc::clone(&is_armed));
    let way = Proxy::start(&place.site, move |speaker, bytes| {
        // The field `outcome` of a new row, behind its length.
        let names_it = speaker == Speaker::Server && place_of(bytes, b"\0\0\0\x03new").is_some();
        if !names_it || !armed.load(Ordering::Acquire) {
            return Passing::All;
        }
        let take = |left: usize| left.checked_sub(1);
        match lost.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(_) => Passing::Cut(0),
            Err(_) => Passing::All,
        }
    });
    let node = place.node("txm-a", &[("POSTGRES_URL", &way.url)]);
    place.add(&node, SIGNER);
    let create = |name: &str| nonce(&made(&[&node], 0, &at_once(place.payment(name))).json());
    let many = |name: &str| -> BTreeSet<u64> {
        crowd(5, |number| create(&format!("{name}-{number}"))).into_iter().collect()
    };
    assert_eq!(create("first"), 0);

    let holder = place.site.session();
    holder.sql("BEGIN; SELECT FROM txm.signer_nonce_cursor FOR UPDATE");
    let failed = thread::scope(|scope| {
        let making = scope.spawn(|| many("failed"));
        eventually("a create that waits", || {
            let ended = place.site.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                  WHERE datname = current_database() AND wait_event_type = 'Lock' \
                    AND query LIKE '%txm.create%'",
            );
            (!ended.is_empty()).then_some(())
        });
        holder.sql("ROLLBACK");
        making.join().expect("no panic")
    });
    assert_eq!(failed, (1..6).collect());

    left.store(2, Ordering::Release);
    is_armed.store(true, Ordering::Release);
    assert_eq!(many("lost"), (6..11).collect());
    // All may have shared one statement.
    assert!(left.load(Ordering::Acquire) < 2, "answers were lost");
    assert_eq!(create("next"), 11);
    are_numbered(&place, 12);
    all_are_paid(&place, 12);
}
