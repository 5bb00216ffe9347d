//! Transactions from POST to their end, on one node and on two.

use std::time::Duration;

use alloy_primitives::U256;
use serde_json::json;

use super::node::{Node, operator, service};
use super::{PAYEE, SIGNER, pay, payment, place};
use crate::harness::{assert_refused, eventually};

/// Goal: one POST is one payment, and its end is told. Method: a payment, its repeats with the same
/// and with another body, blocks until it is final; every read and the commands of operators.
#[test]
fn a_payment_goes_from_its_post_to_its_end() {
    let (_site, chain, node) = place();
    let token = service(&[SIGNER], None);
    let before = chain.balance(PAYEE);
    let made = pay(&node, "a-1");
    assert_eq!(made.status, 202, "{made:?}");
    let id = made.json()["txId"].as_str().expect("an id").to_owned();
    assert_eq!(made.json()["nonce"], 0);
    let again = node.post(&token, "/api/v1/tx", &payment("a-1"));
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    let mut other = payment("a-1");
    other["payload"]["value"] = json!("2");
    assert_refused(&node.post(&token, "/api/v1/tx", &other), 409, "DUPLICATE_REQUEST");

    let path = format!("/api/v1/tx/{id}");
    let ended = eventually("its end", || {
        chain.mine(1);
        std::thread::sleep(Duration::from_millis(50));
        let row = node.get(&token, &path).json();
        (row["final"] == true).then_some(row)
    });
    assert_eq!(
        (&ended["state"], &ended["attempts"][0]["kind"]),
        (&json!("CONFIRMED"), &json!("PAY"))
    );
    assert_eq!(ended["receipt"]["proof"], "PAID", "{ended}");
    assert_eq!(chain.balance(PAYEE), before + U256::from(1));
    let signer = format!("{SIGNER:#x}");
    let named = format!("/api/v1/tx/by-request?signer={signer}&requestId=a-1");
    assert_eq!(node.get(&token, &named).json()["txId"], json!(id));
    let asked = json!({"requests": [
        {"signer": signer, "requestId": "a-1"}, {"signer": signer, "requestId": "none"},
    ]});
    let found = node.post(&token, "/api/v1/tx/query", &asked).json();
    assert_eq!(found["transactions"][0]["txId"], json!(id));
    assert!(found["transactions"][1].is_null());
    let listed = node.get(&token, &format!("/api/v1/tx?signer={signer}&state=CONFIRMED")).json();
    assert_eq!(listed["transactions"][0]["txId"], json!(id));
    let feed = node.get(&token, "/api/v1/tx/events?limit=1000").json();
    let seqs: Vec<u64> = feed["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|it| it["seq"].as_u64())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let rest = format!("/api/v1/tx/events?after={}", feed["next"].as_str().expect("a place"));
    assert_eq!(node.get(&token, &rest).json()["events"], json!([]));

    let cancel = format!("{path}/cancel");
    assert_refused(&node.post(&token, &cancel, &json!({})), 409, "NOT_CANCELLABLE");
    let (exit, out, _) = node.operate(&["tx", "show", &id]);
    assert!(exit == 0 && out.contains("CONFIRMED"), "{out}");
    let (exit, _, why) = node.operate(&["tx", "resubmit", &id, "--reason", "a test"]);
    assert!(exit == 1 && why.contains("NOT_CANCELLABLE"), "{why}");
    let unknown = json!({"signer": signer, "requestId": "late"});
    let stored = node.post(&token, "/api/v1/tx/cancel", &unknown);
    assert_eq!((stored.status, &stored.json()["state"]), (200, &json!("FAILED")), "{stored:?}");
    let late = node.post(&token, "/api/v1/tx", &payment("late"));
    assert_eq!((late.status, &late.json()["state"]), (200, &json!("FAILED")), "{late:?}");
}

/// Goal: a signer has one owner, and any node takes what gets its nonce later. Method: two nodes;
/// the one without the lease says where; the owner is killed, and the other one goes on.
#[test]
fn another_node_names_the_owner_and_goes_on_behind_it() {
    let (site, chain, first) = place();
    let token = service(&[SIGNER], None);
    assert_eq!(pay(&first, "a-1").status, 202);
    let second = Node::start(&site, &chain, "txm-b", &[]);
    let reply = second.post(&token, "/api/v1/tx", &payment("a-2"));
    assert_refused(&reply, 409, "NOT_LEADER");
    let url = format!("http://{}", first.clients);
    assert_eq!(reply.header("x-signer-owner"), Some(url.as_str()));
    assert_eq!(
        (&reply.json()["owner_node"], &reply.json()["owner_url"]),
        (&json!("txm-a"), &json!(url))
    );
    assert_eq!(second.post(&token, "/api/v1/tx", &payment("a-1")).status, 200);
    let mut later = payment("a-3");
    later["nonce"] = json!("later");
    let kept = second.post(&token, "/api/v1/tx", &later);
    assert_eq!((kept.status, &kept.json()["nonce"]), (202, &json!(null)), "{kept:?}");
    let named = format!("/api/v1/tx/by-request?signer={SIGNER:#x}&requestId=a-3");
    eventually("its nonce", || second.get(&token, &named).json()["nonce"].as_u64());

    first.kill();
    let made = eventually("another owner", || {
        let reply = second.post(&token, "/api/v1/tx", &payment("a-2"));
        Some(reply).filter(|reply| reply.status == 202)
    });
    assert_eq!(made.json()["nonce"], 2);
    let viewer = operator(7, "viewer");
    let signers = second.get(&viewer, "/api/v1/signers").json();
    assert_eq!(signers["signers"][0]["ownerNode"], "txm-b");
    assert_eq!(second.terminate(), Some(0));
    let third = Node::start(&site, &chain, "txm-a", &[]);
    assert_eq!(pay(&third, "a-1").status, 200);
    assert_eq!(pay(&third, "a-4").json()["nonce"], 3);
}
