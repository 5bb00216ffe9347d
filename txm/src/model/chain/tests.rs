//! The chain in memory keeps its own rules.

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::fee::GasPrice;

use super::*;
use crate::model::wallet::Wallet;
use crate::rpc::{BlockAt, Endpoint as _, RpcCall, RpcValue};
use crate::signer::{SignedBytes, Unsigned};

const GWEI: u128 = 1_000_000_000;
const PAYEE: Address = Address::repeat_byte(9);

fn chain() -> (ModelChain, Wallet) {
    let (chain, wallet) = (ModelChain::new(7, 2), Wallet::new(3));
    chain.fund(wallet.address(), U256::from(GWEI * GWEI));
    chain.mine(1);
    (chain, wallet)
}

fn pay(wallet: &Wallet, nonce: u64, to: Address, fee: u128, data: Bytes) -> SignedBytes {
    wallet.sign(&Unsigned {
        chain_id: 7,
        signer: wallet.address(),
        nonce,
        to,
        value: if data.is_empty() { U256::from(5) } else { U256::ZERO },
        data,
        gas: 60_000,
        price: GasPrice { max_fee: fee, max_tip: 1 },
        is_legacy: false,
    })
}

async fn send(chain: &ModelChain, site: usize, signed: &SignedBytes) {
    let answers = chain.endpoints()[site].calls(&[RpcCall::Send(signed.raw.clone())]).await;
    assert_eq!(answers, [Ok(RpcValue::Hash(signed.hash))]);
}

#[tokio::test]
async fn each_fate_of_a_transaction() {
    for (fate, height) in [
        (Fate::Kept, Some(2)),
        (Fate::Moved, Some(4)),
        (Fate::Pooled, None),
        (Fate::Lost, None),
        (Fate::Replaced(Vec::new()), Some(2)),
    ] {
        let (chain, wallet) = chain();
        let signed = pay(&wallet, 0, PAYEE, 3 * GWEI, Bytes::new());
        send(&chain, 1, &signed).await;
        chain.mine(3);
        let before = chain.head();
        chain.reorg(3, &fate);
        assert_eq!(chain.head().number, before.number);
        assert_ne!(chain.head().hash, before.hash);
        let mined = chain.mined(wallet.address(), 0);
        assert_eq!(mined.map(|(_, receipt)| receipt.block_number), height, "{fate:?}");
        chain.mine(1);
        let is_paid = chain.wei(PAYEE) == U256::from(5);
        assert_eq!(is_paid, fate != Fate::Lost, "{fate:?}");
        assert_eq!(chain.raws(), [signed.raw]);
    }
    let (chain, wallet) = chain();
    let [first, other] = [3 * GWEI, 4 * GWEI].map(|fee| pay(&wallet, 0, PAYEE, fee, Bytes::new()));
    send(&chain, 0, &first).await;
    chain.mine(1);
    chain.reorg(1, &Fate::Replaced(vec![other.raw.clone()]));
    let (mined, _) = chain.mined(wallet.address(), 0).expect("mined");
    assert_eq!(mined.hash, other.hash);
    chain.mine(3);
    assert_eq!(chain.wei(PAYEE), U256::from(5), "paid once");
}

#[tokio::test]
async fn contracts_pay_or_do_not() {
    let token = Address::repeat_byte(1);
    let data = {
        let words = [PAYEE.into_word(), B256::from(U256::from(40))].concat();
        Bytes::from([&[0xa9, 0x05, 0x9c, 0xbb], words.as_slice()].concat())
    };
    for (contract, is_success, units, logs) in [
        (Contract::Token, true, 40, 1),
        (Contract::TakesFee, true, 36, 1),
        (Contract::OtherLog, true, 40, 1),
        (Contract::AnswersFalse, true, 0, 0),
        (Contract::Reverts, false, 0, 0),
    ] {
        let (chain, wallet) = chain();
        chain.deploy(token, contract);
        chain.fund_token(token, wallet.address(), U256::from(50));
        send(&chain, 0, &pay(&wallet, 0, token, 3 * GWEI, data.clone())).await;
        chain.mine(1);
        let (_, receipt) = chain.mined(wallet.address(), 0).expect("mined");
        assert_eq!(receipt.is_success, is_success, "{contract:?}");
        assert_eq!(receipt.logs.len(), logs, "{contract:?}");
        let own = receipt.logs.iter().all(|log| log.contract == token);
        assert_eq!(own, contract != Contract::OtherLog);
        assert_eq!(chain.units(token, PAYEE), U256::from(units), "{contract:?}");
    }
}

#[tokio::test]
async fn a_low_fee_waits_and_the_dearest_of_all_pools_is_mined() {
    let (chain, wallet) = chain();
    chain.set_base_fee(4 * GWEI);
    let [low, high] = [3 * GWEI, 5 * GWEI].map(|fee| pay(&wallet, 0, PAYEE, fee, Bytes::new()));
    send(&chain, 0, &low).await;
    chain.mine(1);
    assert!(chain.mined(wallet.address(), 0).is_none());
    send(&chain, 1, &high).await;
    chain.mine(1);
    assert_eq!(chain.mined(wallet.address(), 0).map(|(tx, _)| tx.hash), Some(high.hash));
    let next = pay(&wallet, 1, PAYEE, 5 * GWEI, Bytes::new());
    send(&chain, 0, &next).await;
    let counts = |site: usize| {
        let endpoint = chain.endpoints().remove(site);
        async move {
            endpoint.calls(&[RpcCall::Count(Wallet::new(3).address(), BlockAt::Pending)]).await
        }
    };
    assert_eq!(counts(1).await, [Ok(RpcValue::Number(1))]);
    chain.gossip();
    assert_eq!(counts(1).await, [Ok(RpcValue::Number(2))]);
    chain.forget(next.hash);
    assert_eq!(counts(0).await, [Ok(RpcValue::Number(1))]);
    let outside = pay(&wallet, 1, PAYEE, 9 * GWEI, Bytes::new());
    chain.submit_outside(&outside.raw);
    chain.mine(1);
    assert_eq!(chain.mined(wallet.address(), 1).map(|(tx, _)| tx.hash), Some(outside.hash));
    assert!(!chain.raws().contains(&outside.raw));
}
