//! Tokens that pay, and those that do not; calls that revert.

use std::fs;

use alloy_primitives::{Address, U256};
use serde_json::{Value, json};

use super::place::{Party, Place, operator};
use super::{PAYEE, SIGNER};
use crate::harness::{
    ACCOUNTS, Chain, Draft, FALSE_TOKEN, FEE_TOKEN, OTHER_TOKEN, REVERTING, TOKEN, TWICE_TOKEN,
    assert_refused, hex_of, mint_data, token_balance,
};

/// The units of a payment in a token.
const UNITS: u64 = 1_000;
/// The account that mints.
const MINTER: Address = ACCOUNTS[3];

/// The request of a payment of units in a token.
fn in_token(request_id: &str, token: Address, units: u64) -> Value {
    json!({
        "signer": hex_of(SIGNER), "requestId": request_id, "nonce": "later",
        "payload": {
            "to": hex_of(PAYEE), "token": {"contract": hex_of(token), "amount": units.to_string()},
        },
    })
}

/// Mints units for the signer, as raw bytes.
fn mint(chain: &Chain, nonce: u64, token: Address) -> Vec<u8> {
    let draft = Draft::to_contract(nonce, token, mint_data(SIGNER, 10 * UNITS));
    chain.sign(MINTER, &draft)
}

/// Asks for it: its id.
fn asked(node: &Party, body: &Value) -> String {
    let reply = node.post("/api/v1/tx", body);
    assert_eq!(reply.status, 202, "{reply:?}");
    crate::harness::text(&reply.json()["txId"]).to_owned()
}

/// Goal: a token that answers false, takes a fee, or emits another's event or two does not pay, and
/// only operators end that. Method: a token of each kind, mined and deep; then one that pays.
#[test]
fn cnf_007_a_token_that_does_not_pay_is_unproven() {
    let place = Place::new(&[("SIGNERS__ALLOW", "any")]);
    // The last two say that each account has one unit.
    let kinds: [(&str, &[u8], u64); 4] = [
        ("false", FALSE_TOKEN, UNITS),
        ("fee", FEE_TOKEN, UNITS),
        ("other", OTHER_TOKEN, 1),
        ("twice", TWICE_TOKEN, 1),
    ];
    let tokens = kinds.map(|(name, code, units)| (name, place.chain.deploy(code), units));
    let pays = place.chain.deploy(TOKEN);
    for (nonce, token) in [tokens[1].1, pays].into_iter().enumerate() {
        place.chain.send(&mint(&place.chain, nonce as u64, token)).expect("taken");
    }
    place.chain.mine(1);
    let node = place.first_node();
    let mut ids = Vec::new();
    for (name, token, units) in tokens {
        let id = asked(&node, &in_token(name, token, units));
        node.becomes(&id, "TRACKING", Some("PENDING"));
        ids.push(id);
    }
    place.chain.mine(6);
    for id in &ids {
        node.becomes(id, "TRACKING", Some("UNPROVEN"));
    }
    let paid = asked(&node, &in_token("pays", pays, UNITS));
    assert_eq!(place.end(&node, &paid)["state"], "CONFIRMED");
    assert_eq!(token_balance(&place.chain, pays, PAYEE), U256::from(UNITS));
    for id in &ids {
        assert_eq!(node.row(id)["subState"], "UNPROVEN");
    }
    let approver = place.site.fresh_path("approver");
    fs::write(&approver, operator(8, "admin")).expect("written");
    let approver = approver.to_str().expect("text");
    let refused = |arguments: &[&str]| {
        let (exit, out, why) = node.operate(&[arguments, &["--reason", "a test"]].concat());
        assert_ne!(exit, 0, "{out}{why}");
    };
    refused(&["tx", "resolve", &ids[0], "--paid"]);
    refused(&["tx", "cancel", &ids[0]]);
    assert_eq!(node.row(&ids[0])["final"], false, "one operator ends nothing");
    for (id, verdict, state, code) in [
        (&ids[0], "--unpaid", "FAILED", json!("UNPROVEN")),
        (&ids[1], "--paid", "CONFIRMED", Value::Null),
    ] {
        node.command(&["tx", "resolve", id, verdict, "--approver-token-file", approver]);
        let row = node.row(id);
        assert_eq!((&row["state"], &row["code"]), (&json!(state), &code), "{row}");
    }
}

/// Goal: the outcome is that of the final chain. Method: a transfer that reverts for want of its
/// minting, which a reorganization brings back before it.
#[test]
fn cnf_006_a_reverted_transfer_that_becomes_a_success_is_confirmed() {
    let place = Place::new(&[("SIGNERS__ALLOW", "any"), ("CONFIRMATIONS__REQUIRED", "4")]);
    let token = place.chain.deploy(TOKEN);
    let minted = mint(&place.chain, 0, token);
    place.chain.send(&minted).expect("taken");
    place.chain.mine(1);
    let node = place.first_node();
    let id = asked(&node, &in_token("a-1", token, UNITS));
    node.becomes(&id, "TRACKING", Some("PENDING"));
    let transfer = place.proxy.raws().remove(0);
    place.chain.reorg(1, &[(&transfer, 0)]);
    node.until(&id, "a revert", |row| row["receipt"]["proof"] == json!("REVERTED"));
    place.chain.reorg(1, &[(&minted, 0)]);
    let row = place.end(&node, &id);
    assert_eq!((&row["state"], &row["receipt"]["proof"]), (&json!("CONFIRMED"), &json!("PAID")));
    assert_eq!(token_balance(&place.chain, token, PAYEE), U256::from(UNITS));
}

/// Goal: a refusal at prepare spends no nonce. Method: a call that reverts, a payload that is not
/// allowed and one that cannot be paid, at once and later; then a payment gets nonce 0.
/// Ids: NON-010, NON-011.
#[test]
fn non_010_011_refusals_spend_no_nonce_and_hold_up_nothing() {
    let place = Place::new(&[]);
    let reverting = place.chain.deploy(REVERTING);
    let node = place.first_node();
    let mut body = place.payment("reverts");
    body["payload"]["to"] = json!(hex_of(reverting));
    let later = asked(&node, &body);
    let refused = node.becomes(&later, "FAILED", None);
    assert_eq!((&refused["code"], &refused["nonce"]), (&json!("REFUSED"), &Value::Null));
    body["requestId"] = json!("reverts-at-once");
    body.as_object_mut().expect("an object").remove("nonce");
    assert_refused(&node.post_as_owner(&body), 422, "TX_WOULD_REVERT");
    let mut call = place.payment("a-call");
    call["payload"]["data"] = json!("0x00");
    call.as_object_mut().expect("an object").remove("nonce");
    assert_refused(&node.post_as_owner(&call), 422, "SIGNER_POLICY");

    // More than the account has.
    let mut dear = place.payment("dear");
    dear["payload"]["value"] = json!("20000000000000000000000");
    let dear = asked(&node, &dear);
    node.becomes(&dear, "CREATED", Some("WAITING_FUNDS"));
    let cheap = place.pay(&node, "cheap");
    let row = place.end(&node, &cheap);
    assert_eq!((&row["state"], &row["nonce"]), (&json!("CONFIRMED"), &json!(0)));
    assert_eq!(node.row(&dear)["nonce"], Value::Null);
    place.chain.set_balance(SIGNER, U256::from(30_000) * U256::from(10).pow(U256::from(18)));
    assert_eq!(place.end(&node, &dear)["state"], "CONFIRMED", "again when the balance suffices");
}
