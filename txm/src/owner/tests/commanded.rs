use std::time::Duration;

use alloy_primitives::{Bytes, U256};
use chain::fee::GasPrice;
use chain::state::{AttemptKind, TxState};
use chain::tx::{FailCode, SubState};
use tokio::time::sleep;

use super::alerts::Alerts;
use super::world::{CHAIN, GWEI, World, payee};
use crate::model::chain::Lie;
use crate::model::store::CommandEnd;
use crate::refusal::TxRefusal;
use crate::signer::Unsigned;
use crate::store::{CommandWish, TxStore as _};

/// A transaction of the key that no row has.
fn foreign(world: &World, nonce: u64, max_fee: u128) -> Bytes {
    let unsigned = Unsigned {
        chain_id: CHAIN,
        signer: world.signer(),
        nonce,
        to: payee(9),
        value: U256::from(1),
        data: Bytes::new(),
        gas: 21_000,
        price: GasPrice { max_fee, max_tip: max_fee / 2 },
        is_legacy: false,
    };
    world.key.raw(&unsigned).raw
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_is_ahead_suspends_the_signer() {
    let world = World::new(1);
    world.chain.submit_outside(&foreign(&world, 0, 10 * GWEI));
    world.chain.mine(1);
    let owner = world.start("a").await;
    let answer = owner.order(world.request("one", payee(1), 5)).await.await.expect("an answer");
    // No final answer before the store has shown it.
    assert!(matches!(answer, Err(TxRefusal::Away(_))), "{answer:?}");
    assert!(world.database.rows().is_empty());
    assert!(world.key.signed.lock().is_empty());
    sleep(Duration::from_secs(5)).await;
    owner.arrive().await;
    let answer = owner.order(world.request("one", payee(1), 5)).await.await.expect("an answer");
    let Err(TxRefusal::SignerSuspended(why)) = answer else { panic!("{answer:?}") };
    assert_eq!(why[0].reason, "NONCE_AHEAD");
}

/// Goal: a superseded owner takes its successor's sends for no other's. Method: it is cut off from
/// the store with a row in the pools, and its successor sends the next one.
#[tokio::test(start_paused = true)]
async fn an_owner_behind_its_deadline_concludes_nothing_from_the_chain() {
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    let world = World::new(1);
    let old = world.start("a").await;
    old.create(world.request("zero", payee(1), 1)).await;
    world.until("tracked", |world| world.state("zero") == TxState::Tracking).await;
    old.tools.store.cut(true);
    let new = world.start("b").await;
    new.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    let counted = world.chain.calls(0);
    sleep(Duration::from_secs(20)).await;
    assert!(world.chain.calls(0) > counted);
    assert_eq!(alerts.of("NONCE_AHEAD"), 0);
    world.mine_until("over", World::is_over).await;
    assert_eq!(alerts.of("NONCE_AHEAD"), 0);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_nonce_that_another_transaction_has_is_taken_once_that_is_final() {
    let world = World::new(1);
    let owner = world.start("a").await;
    // Every send of ours is lost until another one has the nonce.
    world.chain.lie(0, Lie::Refuses("txpool is full".to_owned()), 1);
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("signed", |world| world.state("one") == TxState::Submitted).await;
    world.chain.submit_outside(&foreign(&world, 0, 10 * GWEI));
    world.chain.mine(1);
    world.mine_until("over", World::is_over).await;
    let row = world.row("one");
    assert_eq!((row.state, row.code), (TxState::Failed, Some(FailCode::NonceTaken)));
    assert_eq!(world.chain.wei(payee(1)), U256::ZERO);
    owner.arrive().await;
    let answer = owner.order(world.request("two", payee(1), 5)).await.await.expect("an answer");
    assert!(matches!(answer, Err(TxRefusal::SignerSuspended(_))));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_transaction_is_sent_again_before_its_interval() {
    let world = World::new(1);
    let owner = world.start("a").await;
    for number in 0..3 {
        owner.create(world.request(&number.to_string(), payee(1), 1)).await;
    }
    world.until("tracked", |world| world.state("2") == TxState::Tracking).await;
    sleep(Duration::from_secs(3)).await;
    world.chain.forget(world.row("1").attempts[0].hash);
    let dropped = tokio::time::Instant::now();
    world.mine_until("mined", |world| world.chain.wei(payee(1)) == U256::from(3)).await;
    assert!(dropped.elapsed() < world.options.resubmit_interval / 2, "{:?}", dropped.elapsed());
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn only_the_lowest_nonce_is_bumped_and_never_above_the_caps() {
    let mut world = World::new(1);
    world.options.caps.max_fee = 12 * GWEI;
    let owner = world.start("a").await;
    for number in 0..2 {
        owner.create(world.request(&number.to_string(), payee(1), 1)).await;
    }
    world.until("tracked", |world| world.state("1") == TxState::Tracking).await;
    // No block takes it at its price.
    world.chain.set_base_fee(5 * GWEI);
    world.mine_until("bumped", |world| world.row("0").attempts.len() > 1).await;
    assert_eq!(world.row("1").attempts.len(), 1);
    world.chain.set_base_fee(100 * GWEI);
    sleep(Duration::from_secs(2_000)).await;
    assert_eq!(world.row("0").sub, Some(SubState::Underpriced));
    for attempt in world.database.rows().iter().flat_map(|tx| &tx.attempts) {
        assert!(attempt.price.max_fee <= 12 * GWEI, "{attempt:?}");
    }
    world.chain.set_base_fee(GWEI);
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::from(2));
    world.check();
}

/// Story: the base fee rose, and within a second all attempts were spent at the market of before.
#[tokio::test(start_paused = true)]
async fn a_refused_price_is_raised_by_the_market_of_a_later_look() {
    let world = World::new(1);
    let owner = world.start("a").await;
    world.chain.lie(0, Lie::Refuses("transaction underpriced".to_owned()), 1_000);
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("signed", |world| !world.row("one").attempts.is_empty()).await;
    world.chain.set_base_fee(20 * GWEI);
    world.chain.mine(1);
    sleep(Duration::from_secs(3)).await;
    let attempts = world.row("one").attempts;
    assert!((2..=5).contains(&attempts.len()), "one a look: {attempts:?}");
    assert!(attempts.last().expect("one").price.max_fee >= 40 * GWEI, "today's: {attempts:?}");
}

/// Story: a refused price waited in memory for the market of a later look. If the owner died before
/// that, its successor waited for the next resend.
#[tokio::test(start_paused = true)]
async fn a_refused_price_is_raised_by_the_next_owner() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.chain.lie(0, Lie::Refuses("transaction underpriced".to_owned()), u32::MAX);
    let sends = |world: &World| world.chain.calls_of(0, "eth_sendRawTransaction");
    world.until("sent again", |world| sends(world) == 2).await;
    owner.kill();
    let _owner = world.start("b").await;
    sleep(Duration::from_secs(5)).await;
    assert!(world.row("one").attempts.len() > 1, "{:?}", world.row("one"));
    world.chain.tell_the_truth();
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_suspended_signer_sends_stored_bytes_and_signs_no_payment() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.database.suspend(world.signer(), "halt", "operator");
    owner.arrive().await;
    let answer = owner.order(world.request("two", payee(1), 5)).await.await.expect("an answer");
    assert!(matches!(answer, Err(TxRefusal::SignerSuspended(_))));
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.state("one"), TxState::Confirmed);
    world.database.resume(world.signer(), "halt");
    owner.arrive().await;
    owner.create(world.request("two", payee(1), 5)).await;
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_row_without_a_nonce_is_prepared_and_one_that_waits_for_funds_holds_up_no_other() {
    let world = World::new(1);
    let owner = world.start("a").await;
    let store = &owner.tools.store;
    let mut dear = world.request("dear", payee(1), 5);
    dear.payload.value = U256::from(2_000_000_000 * GWEI);
    dear.gas = None;
    let mut cheap = world.request("cheap", payee(1), 5);
    cheap.gas = None;
    store.keep(&dear).await.expect("kept");
    store.keep(&cheap).await.expect("kept");
    owner.arrive().await;
    world.mine_until("paid", |world| world.state("cheap") == TxState::Confirmed).await;
    let row = world.row("dear");
    assert_eq!((row.state, row.sub), (TxState::Created, Some(SubState::WaitingFunds)));
    let command = world.database.command(world.signer(), Some(row.id), CommandWish::Cancel);
    owner.arrive().await;
    world.until("cancelled", |world| world.state("dear") == TxState::Failed).await;
    owner.arrive().await;
    assert_eq!(world.database.command_end(command), Some(CommandEnd::Done));
    assert_eq!(world.row("dear").nonce, None);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_blocked_row_is_filled_and_later_ones_are_mined() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("first", payee(1), 1)).await;
    world.until("tracked", |world| world.state("first") == TxState::Tracking).await;
    world.chain.lie(0, Lie::Refuses("exceeds block gas limit".to_owned()), 1);
    owner.create(world.request("bad", payee(1), 1)).await;
    world.until("blocked", |world| world.row("bad").sub == Some(SubState::Blocked)).await;
    owner.create(world.request("last", payee(1), 1)).await;
    let bad = world.row("bad").id;
    let command = world.database.command(world.signer(), Some(bad), CommandWish::Fill);
    owner.arrive().await;
    assert_eq!(world.database.command_end(command), Some(CommandEnd::Done));
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.row("bad").code, Some(FailCode::Filled));
    assert_eq!(world.row("bad").attempts[1].kind, AttemptKind::Fill);
    assert_eq!(world.state("last"), TxState::Confirmed);
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_row_that_stays_blocked_is_filled_by_time() {
    let world = World::new(1);
    let owner = world.start("a").await;
    world.chain.lie(0, Lie::Refuses("exceeds block gas limit".to_owned()), u32::MAX);
    owner.create(world.request("bad", payee(1), 1)).await;
    world.until("blocked", |world| world.row("bad").sub == Some(SubState::Blocked)).await;
    sleep(world.options.fill_after).await;
    world.chain.tell_the_truth();
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn lost_and_lying_answers_to_sends_end_in_one_payment() {
    let lies = [
        Lie::LostAnswer,
        Lie::LostCall,
        Lie::TakesAndSays("internal error".to_owned()),
        Lie::TakesAndSays("nonce too low".to_owned()),
        Lie::TakesAndSays("replacement transaction underpriced".to_owned()),
        Lie::Refuses("txpool is full".to_owned()),
        Lie::Refuses("nonce too high".to_owned()),
        Lie::Refuses("nonce too low".to_owned()),
        Lie::Refuses("transaction underpriced".to_owned()),
        Lie::Refuses("insufficient funds for gas * price + value".to_owned()),
        Lie::Refuses("intrinsic gas too low".to_owned()),
    ];
    for lie in lies {
        let world = World::new(1);
        let owner = world.start("a").await;
        owner.create(world.request("one", payee(1), 5)).await;
        world.chain.lie(0, lie.clone(), 2);
        world.mine_until(&format!("{lie:?}"), World::is_over).await;
        assert_eq!(world.state("one"), TxState::Confirmed, "{lie:?}");
        assert_eq!(world.chain.wei(payee(1)), U256::from(5), "{lie:?}");
        world.check();
    }
}
