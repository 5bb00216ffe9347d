//! The contracts of the harness, on the node: which of them pay, and the marks of each.

use alloy_primitives::{Address, B256, U256};
use serde_json::Value;

use super::{PAYEE, SENDER, height_of, receipt};
use crate::harness::{
    ACCOUNTS, Chain, Draft, FALSE_TOKEN, FEE_TOKEN, OTHER_TOKEN, REVERTING, TOKEN, TRANSFER,
    TWICE_TOKEN, hash, mint_data, text, token_balance, transfer_data,
};

/// The minted amount, and the paid one.
const MINTED: u64 = 1_000;
const PAID: u64 = 300;

/// An event as a follower reads it: the two addresses of its topics, and its amount.
fn transfers(receipt: &Value) -> Vec<(Address, Address, u64)> {
    let logs = receipt["logs"].as_array().expect("logs");
    let read = |log: &Value| {
        assert_eq!(hash(&log["topics"][0]), TRANSFER);
        assert_eq!(log["topics"].as_array().map(Vec::len), Some(3));
        let address = |index: usize| Address::from_word(hash(&log["topics"][index]));
        let amount: U256 = text(&log["data"]).parse().expect("an amount");
        (address(1), address(2), amount.to())
    };
    logs.iter().map(read).collect()
}

/// Sends one call of a contract from [`SENDER`] and mines it: its receipt.
fn call(chain: &Chain, contract: Address, data: Vec<u8>) -> Value {
    let draft = Draft::to_contract(chain.nonce(SENDER), contract, data);
    let sent = chain.send(&chain.sign(SENDER, &draft)).expect("taken");
    chain.mine(1);
    receipt(chain, sent)
}

/// A token on a chain, with [`MINTED`] of it at [`SENDER`] if it can be minted; and the receipt of
/// a transfer of [`PAID`].
fn paid_by(chain: &Chain, code: &[u8]) -> (Address, Value) {
    let token = chain.deploy(code);
    call(chain, token, mint_data(SENDER, MINTED));
    let receipt = call(chain, token, transfer_data(PAYEE, PAID));
    for log in receipt["logs"].as_array().expect("logs") {
        assert_eq!(log["address"], receipt["to"], "the token's own event");
    }
    (token, receipt)
}

#[test]
fn a_token_that_pays_moves_the_amount_and_emits_it() {
    let chain = Chain::start();
    let (token, receipt) = paid_by(&chain, TOKEN);
    assert_eq!(receipt["status"], "0x1");
    assert_eq!(transfers(&receipt), [(SENDER, PAYEE, PAID)]);
    let balances = [SENDER, PAYEE].map(|owner| token_balance(&chain, token, owner));
    assert_eq!(balances, [MINTED - PAID, PAID].map(U256::from));
    let unpaid = call(&chain, token, transfer_data(PAYEE, MINTED));
    assert_eq!((&unpaid["status"], transfers(&unpaid)), (&"0x0".into(), Vec::new()), "reverted");
    assert!(chain.view(token, &[0; 4]).is_err(), "an unknown function reverts");
}

#[test]
fn tokens_that_do_not_pay_have_status_1_and_other_events() {
    let chain = Chain::start();
    let (token, receipt) = paid_by(&chain, FEE_TOKEN);
    let less = PAID - PAID / 100;
    assert_eq!(
        (&receipt["status"], transfers(&receipt)),
        (&"0x1".into(), vec![(SENDER, PAYEE, less)])
    );
    let balances = [SENDER, PAYEE].map(|owner| token_balance(&chain, token, owner));
    assert_eq!(balances, [MINTED - PAID, less].map(U256::from));

    let (token, receipt) = paid_by(&chain, FALSE_TOKEN);
    assert_eq!((&receipt["status"], transfers(&receipt)), (&"0x1".into(), Vec::new()));
    let answer = chain.view(token, &transfer_data(PAYEE, PAID)).expect("an answer");
    assert_eq!(answer, B256::ZERO.as_slice(), "false");

    let (_, receipt) = paid_by(&chain, OTHER_TOKEN);
    assert_eq!(
        (&receipt["status"], transfers(&receipt)),
        (&"0x1".into(), vec![(PAYEE, PAYEE, PAID)])
    );

    let (_, receipt) = paid_by(&chain, TWICE_TOKEN);
    let event = (SENDER, PAYEE, PAID);
    assert_eq!((&receipt["status"], transfers(&receipt)), (&"0x1".into(), vec![event, event]));

    let (_, receipt) = paid_by(&chain, REVERTING);
    assert_eq!((&receipt["status"], transfers(&receipt)), (&"0x0".into(), Vec::new()));
}

/// Story: a transfer reverted, since the signer had no token; a reorganization put the minting
/// before it, and the same transaction paid.
#[test]
fn a_reverted_transfer_is_reorganized_into_success() {
    let chain = Chain::start();
    let token = chain.deploy(TOKEN);
    let transfer = Draft::to_contract(0, token, transfer_data(PAYEE, PAID));
    let transfer = chain.sign(SENDER, &transfer);
    let sent = chain.send(&transfer).expect("taken");
    chain.mine(2);
    assert_eq!(receipt(&chain, sent)["status"], "0x0");
    let giver = ACCOUNTS[1];
    let mint = chain.sign(giver, &Draft::to_contract(0, token, mint_data(SENDER, MINTED)));
    chain.reorg(2, &[(&mint, 0), (&transfer, 1)]);
    let receipt = receipt(&chain, sent);
    assert_eq!((&receipt["status"], height_of(&receipt)), (&"0x1".into(), 3));
    assert_eq!(transfers(&receipt), [(SENDER, PAYEE, PAID)]);
}
