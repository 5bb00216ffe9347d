//! Requests at a chain in memory, each prepared by a node that has just looked at it.

use std::sync::Arc;

use alloy_primitives::Bytes;
use chain::payload::TokenTransfer;
use tokio::sync::watch;

use super::*;
use crate::model::chain::{Contract, ModelChain};
use crate::model::store::ModelDatabase;
use crate::options::SignerPolicy;
use crate::rpc::pool::Pool;

const SIGNER: Address = Address::repeat_byte(1);

/// Prepares a payment of one unit of a token.
async fn prepared(chain: &ModelChain, contract: Address) -> Result<u64, TxRefusal> {
    let options = crate::model::options();
    let store = ModelDatabase::new(options.lease_duration, options.lease_skew).start("a");
    let policy = SignerPolicy {
        is_native_allowed: true,
        tokens: Vec::new(),
        is_any_allowed: true,
        outflow_per_hour_max: Vec::new(),
    };
    let pool = Pool::new(chain.endpoints(), &options);
    let (_seen, looks) = watch::channel(pool.look().await);
    let tools =
        Tools::new(store, pool, (), options, [(SIGNER, policy)].into(), "a".to_owned(), looks);
    let payload = TxPayload {
        to: Address::repeat_byte(2),
        value: U256::ZERO,
        data: Bytes::new(),
        token: Some(TokenTransfer { contract, amount: U256::ONE }),
        gas: None,
    };
    let request = NewTx {
        signer: SIGNER,
        request_id: "one".to_owned(),
        business_key: None,
        payload,
        gas: None,
        deadline_ms: None,
    };
    prepare(&Arc::new(tools), &request).await.map(|prepared| prepared.gas)
}

/// Goal: a token that reverts the question for a balance is refused for good; one that no endpoint
/// answers for, or that one of them may know, is not. Method: two endpoints, of which one goes.
#[tokio::test(start_paused = true)]
async fn a_token_that_reverts_the_question_for_a_balance_is_refused_for_good() {
    let chain = ModelChain::new(31_337, 2);
    let [token, broken, missing] = [3, 4, 5].map(Address::repeat_byte);
    chain.deploy(token, Contract::Token);
    chain.deploy(broken, Contract::Reverts);
    chain.fund(SIGNER, U256::from(10).pow(U256::from(24)));
    assert_eq!(prepared(&chain, token).await, Err(TxRefusal::Unfunded));
    for contract in [broken, missing] {
        let refused = prepared(&chain, contract).await;
        assert!(matches!(refused, Err(TxRefusal::WouldRevert(_))), "{refused:?}");
    }
    chain.fund_token(token, SIGNER, U256::ONE);
    assert!(prepared(&chain, token).await.is_ok());
    chain.set_away(0, true);
    let refused = prepared(&chain, broken).await;
    assert!(matches!(refused, Err(TxRefusal::Away(_))), "{refused:?}");
}
