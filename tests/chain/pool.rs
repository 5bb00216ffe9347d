//! The endpoint refuses as a common pool does, where the node alone would not.

use alloy_primitives::hex;
use serde_json::{Value, json};

use super::{PAYEE, SENDER, payment};
use crate::harness::{
    BUMP_PERCENT, CHAIN_ID, Chain, ChainProxy, Draft, FIRST_BASE_FEE, FULL, NodeError, PENDING_MAX,
    QUEUED_MAX, REPLACEMENT, Rpc, SEND, hash, hex_of, text,
};

/// Sends through an endpoint.
fn send(proxy: &ChainProxy, raw: &[u8]) -> Result<Value, NodeError> {
    Rpc::new(&proxy.url()).call(SEND, json!([hex::encode_prefixed(raw)]))
}

fn refusal(proxy: &ChainProxy, raw: &[u8]) -> String {
    send(proxy, raw).expect_err("refused").message
}

#[test]
fn a_replacement_raises_both_fees_by_a_tenth_rounded_up() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    // 1.1 times each is no whole number.
    let (fee_max, tip) = (3 * FIRST_BASE_FEE + 1, FIRST_BASE_FEE + 1);
    let raised = |fee: u128| (fee * (100 + BUMP_PERCENT)).div_ceil(100);
    let sign =
        |fee_max, tip| chain.sign(SENDER, &Draft::payment(0, PAYEE, 1).with_fees(fee_max, tip));
    let first = sign(fee_max, tip);
    send(&proxy, &first).expect("taken");
    assert_eq!(refusal(&proxy, &first), "transaction already imported", "the node's own text");
    let (fee_next, tip_next) = (raised(fee_max), raised(tip));
    for (fee_max, tip) in [(fee_next, tip), (fee_max, tip_next), (fee_next - 1, tip_next)] {
        assert_eq!(refusal(&proxy, &sign(fee_max, tip)), REPLACEMENT, "{fee_max} and {tip}");
    }
    assert_eq!(refusal(&proxy, &sign(fee_next, tip_next - 1)), REPLACEMENT);
    let second = sign(fee_next, tip_next);
    let taken = send(&proxy, &second).expect("taken");
    assert!(chain.transaction(hash(&taken)).is_some());
    // The node alone compares the highest price, and no tip.
    let tip_alone = chain.send(&sign(fee_next, tip_next * 2)).expect_err("the same fee");
    assert_eq!(tip_alone.message, REPLACEMENT);
    chain.send(&sign(fee_next + 1, tip_next - 1)).expect("a higher fee, with a smaller tip");
    assert_eq!(proxy.calls(SEND), proxy.raws().len());
    assert_eq!(proxy.raws().last(), Some(&second));
}

/// Goal: a transaction of type 0 is held against the same rules, with one price for both fees.
#[test]
fn a_legacy_transaction_is_replaced_by_the_same_rule() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let legacy = |price: u128| {
        let fields = json!({
            "type": "0x0", "chainId": hex_of(CHAIN_ID), "from": hex_of(SENDER), "to": hex_of(PAYEE),
            "nonce": "0x0", "value": "0x1", "gas": "0x5208", "gasPrice": hex_of(price),
        });
        let raw = chain.ask("eth_signTransaction", json!([fields]));
        hex::decode(text(&raw)).expect("hex")
    };
    let price = 2 * FIRST_BASE_FEE;
    send(&proxy, &legacy(price)).expect("taken");
    let raised = price * (100 + BUMP_PERCENT) / 100;
    assert_eq!(refusal(&proxy, &legacy(raised - 1)), REPLACEMENT);
    // One of type 2 with a smaller tip replaces no price.
    assert_eq!(refusal(&proxy, &payment(&chain, 0, 1)), REPLACEMENT);
    send(&proxy, &legacy(raised)).expect("taken");
}

#[test]
fn an_account_has_a_bounded_number_of_transactions() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let sign = |nonce| payment(&chain, nonce, 1);
    for nonce in 0..PENDING_MAX {
        send(&proxy, &sign(nonce)).expect("taken");
    }
    assert_eq!(refusal(&proxy, &sign(PENDING_MAX)), FULL);
    chain.mine(1);
    // One nonce is left out, and the queue behind it filled.
    let gap = PENDING_MAX;
    for nonce in gap + 1..=gap + QUEUED_MAX {
        send(&proxy, &sign(nonce)).expect("queued");
    }
    assert_eq!(refusal(&proxy, &sign(gap + QUEUED_MAX + 1)), FULL);
    assert_eq!(chain.pending_nonce(SENDER), gap);
    send(&proxy, &sign(gap)).expect("the gap may be filled");
    assert_eq!(chain.pending_nonce(SENDER), gap + QUEUED_MAX + 1);
    chain.send(&sign(gap + QUEUED_MAX + 1)).expect("the node has no bound");
}
