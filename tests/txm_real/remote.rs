//! A signer elsewhere, over HTTPS with certificates of both sides: it lies, it is away, and it
//! answers another hash each time.

use alloy_primitives::{Address, Bytes, U256};
use serde_json::json;

use super::place::Place;
use super::{PAYEE, SIGNER};
use crate::harness::{KEYS, Manner, SignerSim, eventually};

/// A place without key files, and the signer with the key.
fn place(settings: &[(&str, &str)]) -> (Place, SignerSim) {
    let place = Place::with_signers(0, settings);
    let remote = SignerSim::start(&place.site, KEYS[0]);
    (place, remote)
}

/// The settings of its nodes.
fn settings(remote: &SignerSim) -> [(&'static str, String); 5] {
    remote.settings(SIGNER)
}

/// Goal: a signer that lies or is away costs time and no payment. Method: it answers each wrong
/// transaction and each failure until it was asked twice; then it is honest.
#[test]
fn sub_015_a_remote_signer_that_lies_or_is_away_spends_nothing() {
    let (place, remote) = place(&[("SIGNERS__TIMEOUT_MS", "500")]);
    let named = settings(&remote);
    let named: Vec<_> = named.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let node = place.node("txm-a", &named);
    place.add(&node, SIGNER);
    let lies = [
        ("its nonce", Manner::Changes(|wish| wish.nonce += 1)),
        ("its value", Manner::Changes(|wish| wish.value += U256::from(1))),
        ("its payee", Manner::Changes(|wish| wish.to = Address::repeat_byte(9))),
        ("its price", Manner::Changes(|wish| wish.price.max_fee += 1)),
        ("its tip", Manner::Changes(|wish| wish.price.max_tip += 1)),
        ("its gas", Manner::Changes(|wish| wish.gas += 1)),
        ("its data", Manner::Changes(|wish| wish.data = Bytes::from_static(&[1]))),
        ("its chain", Manner::Changes(|wish| wish.chain_id += 1)),
        ("its type", Manner::Changes(|wish| wish.is_legacy = true)),
        ("another sender", Manner::OtherKey),
        ("no bytes", Manner::Says(json!("0x"))),
        ("no hex", Manner::Says(json!({"raw": 7}))),
    ];
    let absences = [
        ("a refusal", Manner::Refuses),
        ("another id", Manner::OtherId),
        ("500", Manner::Status(500)),
        ("no answer", Manner::Closes),
        ("silence", Manner::Silent),
    ];
    let count = lies.len() + absences.len();
    let found = || node.metric("ubscore_signer_mismatch_total");
    for (number, (name, manner)) in lies.iter().chain(&absences).enumerate() {
        let (asked, mismatches) = (remote.asked(), found());
        remote.behaves(manner.clone());
        let id = place.pay(&node, &format!("a-{number}"));
        eventually(name, || (remote.asked() >= asked + 2).then_some(()));
        let row = node.row(&id);
        assert_eq!(
            (&row["state"], &row["attempts"], &row["final"]),
            (&json!("ALLOCATED"), &json!([]), &json!(false)),
            "{name}: {row}"
        );
        assert_eq!(found() > mismatches, number < lies.len(), "{name}");
        remote.behaves(Manner::Honest);
        assert_eq!(place.end(&node, &id)["state"], "CONFIRMED", "{name}");
    }
    assert_eq!(place.chain.nonce(SIGNER), count as u64);
    assert_eq!(place.chain.balance(Address::repeat_byte(9)), U256::ZERO);
    assert!(place.chain.balance(PAYEE) > U256::ZERO);
}

/// Goal: a signer that answers another hash each time has one transaction on the network. Method:
/// the node is killed behind its first answer, before and behind it is stored; another node goes
/// on. The first answer, if it was not stored, never leaves; stored bytes are not signed again.
#[cfg(feature = "crash")]
#[test]
fn sub_015_a_remote_signer_with_another_hash_each_time_pays_once() {
    for (point, signatures) in [("txm_after_sign", 2), ("txm_after_store", 1)] {
        let (place, remote) = place(&[("RESUBMIT__BUMP_AFTER", "1000")]);
        let named = settings(&remote);
        let mut named: Vec<_> = named.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let b = place.node("txm-b", &named);
        place.add(&b, SIGNER);
        b.stop();
        named.push(("UBSCORE_CRASH", point));
        let mut a = place.node("txm-a", &named);
        a.post_unheard("/api/v1/tx", place.payment("a-1"));
        eventually(point, || a.has_ended().then_some(()));
        assert_eq!(remote.signed().len(), 1);
        named.pop();
        let b = place.node("txm-b", &named);
        let named = "SELECT tx_id::text FROM txm.managed_tx";
        let id = place.site.sql_value(named);
        assert_eq!(place.end(&b, &id)["state"], "CONFIRMED", "{point}");
        let signed = remote.signed();
        assert_eq!(signed.len(), signatures, "{point}");
        assert!(signatures == 1 || signed[0] != signed[1], "it signs as the test wants it");
        let last = signed.last().expect("a signature").clone();
        assert_eq!(place.sent().into_iter().collect::<Vec<_>>(), [last], "{point}");
        assert_eq!(place.chain.nonce(SIGNER), 1);
    }
}
