//! `ubscore tx audit`: the chain against rows and attempts.

use serde_json::Value;

use super::node::{Node, service};
use super::{PAYEE, SIGNER, pay, place};
use crate::harness::{Chain, Draft, eventually};

fn audit(node: &Node, more: &[&str]) -> (i32, Value) {
    let signer = format!("{SIGNER:#x}");
    let arguments = [&["tx", "audit", "--signer", &signer, "--format", "json"][..], more].concat();
    let (code, out, why) = node.operate(&arguments);
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{why}")))
}

fn ends(node: &Node, chain: &Chain, request_id: &str) {
    let token = service(&[SIGNER], None);
    let path = format!("/api/v1/tx/by-request?signer={SIGNER:#x}&requestId={request_id}");
    eventually("its end", || {
        chain.mine(1);
        (node.get(&token, &path).json()["final"] == true).then_some(())
    });
}

/// Goal: the audit believes the chain, and not the database. Method: two payments; then a
/// transaction with the key from elsewhere, and another hash in a row.
#[test]
fn the_audit_compares_each_nonce_with_the_chain() {
    let (site, chain, mut node) = place();
    for id in ["a-1", "a-2"] {
        assert_eq!(pay(&node, id).status, 202);
        ends(&node, &chain, id);
    }
    let (code, found) = audit(&node, &[]);
    assert_eq!((code, &found["checked"]), (0, &2.into()), "{found}");
    let signer = format!("{SIGNER:#x}");
    let (code, words, _) = node.operate(&["tx", "audit", "--signer", &signer]);
    assert!(code == 0 && words.contains("2 nonces, 0 differences"), "{words}");

    node.is_not_judged();
    let raw = chain.sign(SIGNER, &Draft::payment(2, PAYEE, 7));
    chain.send(&raw).expect("taken");
    chain.mine(1);
    site.sql(
        "ALTER TABLE txm.tx_attempts DISABLE TRIGGER USER; \
         UPDATE txm.tx_attempts a SET tx_hash = sha256(a.tx_hash) FROM txm.managed_tx t \
          WHERE t.tx_id = a.tx_id AND t.request_id = 'a-1'; \
         ALTER TABLE txm.tx_attempts ENABLE TRIGGER USER",
    );
    let (code, found) = audit(&node, &[]);
    assert_eq!(code, 1, "{found}");
    let part = |row: usize, key: &str| found["differences"][row][key].clone();
    assert_eq!((part(0, "nonce"), part(0, "finding")), (0.into(), "ANOTHER".into()), "{found}");
    assert_eq!((part(1, "nonce"), part(1, "finding")), (2.into(), "NO_ROW".into()), "{found}");
    assert_eq!(part(1, "mined").as_array().map(Vec::len), Some(1), "{found}");
    let (code, found) = audit(&node, &["--from", "1", "--to", "1"]);
    assert_eq!((code, &found["checked"]), (0, &1.into()), "{found}");
}
