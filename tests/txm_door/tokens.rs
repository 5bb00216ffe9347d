//! The rights of each token.

use serde_json::json;

use super::node::{operator, service, signed};
use super::{SIGNER, payment, place};
use crate::harness::{assert_refused, token};

/// Goal: each token does what its role says and no more. Method: every role, audience and claim, on
/// both listeners.
#[test]
fn a_token_does_what_its_role_and_claims_say() {
    let (_site, _chain, node) = place();
    let list = "/api/v1/tx";
    let user = signed(json!({"sub": "7", "aud": "ubscore-txm"}));
    let other = signed(json!({"sub": "pay", "role": "service", "aud": "ubscore"}));
    let unbounded = signed(json!({"sub": "pay", "role": "service", "aud": "ubscore-txm"}));
    let (viewer, admin) = (operator(7, "viewer"), operator(7, "admin"));
    for (token, status, code) in [
        (token(7, None), 401, "UNAUTHORIZED"),
        (other, 401, "UNAUTHORIZED"),
        (user, 403, "FORBIDDEN"),
        (viewer.clone(), 403, "FORBIDDEN"),
        (admin.clone(), 403, "FORBIDDEN"),
        (unbounded, 403, "FORBIDDEN"),
        (service(&[], None), 403, "FORBIDDEN"),
        (service(&[SIGNER], Some("w/")), 403, "FORBIDDEN"),
    ] {
        assert_refused(&node.post(&token, "/api/v1/tx", &payment("a-1")), status, code);
    }
    for token in [&viewer, &admin] {
        assert_eq!(node.get(token, list).status, 200);
        assert_eq!(node.get(token, "/api/v1/signers").status, 200);
    }
    let prefixed = service(&[SIGNER], Some("w/"));
    let taken = node.post(&prefixed, "/api/v1/tx", &payment("w/1"));
    assert!([202, 503].contains(&taken.status), "{taken:?}");

    // A service halts its signer, and lifts its own halt alone.
    let signer = format!("{SIGNER:#x}");
    let own = service(&[SIGNER], None);
    let body = json!({"reason": "a test"});
    let halt = format!("/api/v1/signers/{signer}/suspend");
    assert_eq!(node.post(&own, &halt, &body).json()["suspension"], "halt/pay");
    let listed = node.get(&own, "/api/v1/signers").json();
    assert_eq!(listed["signers"][0]["status"], "SUSPENDED");
    assert_refused(&node.post(&viewer, &halt, &body), 403, "FORBIDDEN");
    let (exit, ..) = node.operate(&["signer", "suspend", &signer, "--reason", "a test"]);
    assert_eq!(exit, 0);
    let lift = format!("/api/v1/signers/{signer}/resume");
    assert_eq!(node.post(&own, &lift, &body).json()["changed"], true);
    let listed = node.get(&own, "/api/v1/signers").json();
    assert_eq!(listed["signers"][0]["suspensions"][0]["reason"], "OPERATOR");
    let (exit, out, _) = node.operate(&["signer", "resume", &signer, "--reason", "a test"]);
    assert!(exit == 0 && out.contains("OPERATOR is lifted"), "{out}");
    // Two operators, and adopt.
    for name in ["OUTFLOW_LIMIT", "NONCE_AHEAD", "NONCE_TAKEN"] {
        let resume = ["signer", "resume", &signer, "--suspension", name, "--reason", "a test"];
        let (exit, _, why) = node.operate(&resume);
        assert!(exit == 1 && why.contains("FORBIDDEN"), "{why}");
    }
}
