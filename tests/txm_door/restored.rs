//! A database that is older than a node has seen.

use std::fs;

use serde_json::{Value, json};

use super::node::{Node, operator, service};
use super::{PAYEE, SIGNER, pay, payment, place};
use crate::harness::{ACCOUNTS, Chain, Request, Site, eventually, hex_of, send};

/// Waits until the payment of this id is final.
fn ends(node: &Node, chain: &Chain, request_id: &str) {
    let token = service(&[SIGNER], None);
    let path = format!("/api/v1/tx/by-request?signer={SIGNER:#x}&requestId={request_id}");
    eventually("its end", || {
        chain.mine(1);
        (node.get(&token, &path).json()["final"] == true).then_some(())
    });
}

/// Waits until the witness in the data directory has this nonce.
fn witnessed(site: &Site, nonce: u64) {
    let has = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line == format!("nonce = {nonce}"))
    };
    eventually("the witness of the node", || {
        let files = fs::read_dir(&site.data_dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut seen = files.filter(|path| path.to_string_lossy().contains("txm-seen-"));
        seen.any(has).then_some(())
    });
}

fn suspensions(node: &Node) -> Vec<Value> {
    let listed = node.get(&operator(7, "viewer"), "/api/v1/signers").json();
    let rows = listed["signers"].as_array().expect("signers").clone();
    rows.into_iter().map(|row| row["suspensions"].clone()).collect()
}

fn refused_as_suspended(node: &Node, request_id: &str) {
    let token = service(&[SIGNER], None);
    eventually("a refusal", || {
        let reply = node.post(&token, "/api/v1/tx", &payment(request_id));
        (reply.json()["code"] == "SIGNER_SUSPENDED").then_some(())
    });
}

/// Goal: an older copy of the database pays nothing twice, even on the same server. Method: one
/// payment, a copy, two more payments; the node starts on the copy. Two operators name both, and it
/// goes on, over a restart too.
#[test]
fn a_copy_in_the_place_of_the_database_suspends_every_signer() {
    let (site, chain, node) = place();
    let other = format!("{:#x}", ACCOUNTS[1]);
    assert_eq!(node.operate(&["signer", "add", &other, "--reason", "a test"]).0, 0);
    assert_eq!(pay(&node, "a-1").status, 202);
    ends(&node, &chain, "a-1");
    assert_eq!(node.terminate(), Some(0));
    site.wait_for_disconnected();
    let copy = site.with_copied_database();

    let node = Node::start(&site, &chain, "txm-a", &[]);
    for id in ["a-2", "a-3"] {
        assert_eq!(pay(&node, id).status, 202);
        ends(&node, &chain, id);
    }
    witnessed(&site, 3);
    node.kill();

    let mut node = Node::start(&copy, &chain, "txm-a", &[]);
    node.is_not_judged();
    let all = suspensions(&node);
    assert!(
        all.len() == 2 && all.iter().all(|it| it[0]["reason"] == "DATABASE_RESTORED"),
        "{all:?}"
    );
    let about = "SELECT about FROM txm.signer_suspensions LIMIT 1";
    let about = copy.sql_value(about);
    assert!(about.contains("nonce 1 in epoch 1; seen were token"), "{about}");
    let page = send(node.ops, &Request::new("", "GET", "/metrics")).expect("a page").body;
    let counted = r#"ubscore_tx_alert_total{alert="DATABASE_RESTORED"} 0"#;
    assert!(page.contains("DATABASE_RESTORED") && !page.contains(counted), "{page}");
    refused_as_suspended(&node, "a-2");
    chain.mine(2);
    assert_eq!((chain.nonce(SIGNER), chain.pending_nonce(SIGNER)), (3, 3));

    let signer = format!("{SIGNER:#x}");
    let (exit, out, _) = node.operate(&["tx", "audit", "--signer", &signer, "--format", "json"]);
    let found: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((exit, &found["checked"]), (1, &json!(3)), "{found}");
    let differences = found["differences"].as_array().expect("a list");
    let named: Vec<(u64, &str)> = differences
        .iter()
        .filter_map(|it| Some((it["nonce"].as_u64()?, it["finding"].as_str()?)))
        .collect();
    assert_eq!(named, [(1, "NO_ROW"), (2, "NO_ROW")], "{found}");

    let second = copy.fresh_path("second");
    fs::write(&second, operator(8, "admin")).expect("written");
    let second = second.to_string_lossy().into_owned();
    for (signer, nonces) in [(signer.as_str(), &[1, 2][..]), (other.as_str(), &[])] {
        let mut adopt =
            ["signer", "adopt", signer, "--reason", "a test"].map(str::to_owned).to_vec();
        adopt.extend(["--approver-token-file".to_owned(), second.clone()]);
        for nonce in nonces {
            let hash = differences[*nonce - 1]["mined"][0].as_str().expect("a hash");
            adopt.extend(["--foreign".to_owned(), format!("{nonce}={hash}")]);
        }
        let adopt: Vec<&str> = adopt.iter().map(String::as_str).collect();
        let (exit, out, why) = node.operate(&adopt);
        assert_eq!(exit, 0, "{out}{why}");
    }
    drop(node);
    let before = chain.balance(PAYEE);
    let mut node = Node::start(&copy, &chain, "txm-a", &[]);
    node.is_not_judged();
    assert_eq!(suspensions(&node), [json!([]), json!([])], "they vouch for this database");
    // The lease of the node before it lives a moment longer: until then it is not the leader.
    let nonce = eventually("a nonce", || pay(&node, "a-4").json()["nonce"].as_u64());
    assert_eq!(nonce, 3);
    ends(&node, &chain, "a-4");
    assert_eq!(hex_of(chain.balance(PAYEE) - before), "0x1");
}
