use std::time::Duration;

use alloy_primitives::U256;
use chain::state::{AttemptKind, TxState};
use chain::tx::{SubState, Wish};
use tokio::time::sleep;

use super::world::{GWEI, World, payee};
use crate::model::chain::Lie;
use crate::model::store::{StoreCall, StoreFault};
use crate::refusal::TxRefusal;
use crate::store::{CommandWish, TxStore as _};

#[tokio::test(start_paused = true)]
async fn a_database_that_falls_back_under_its_owner_suspends_the_signer() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("zero", payee(1), 1)).await;
    world.mine_until("over", World::is_over).await;
    let older = world.database.backup();
    owner.create(world.request("one", payee(1), 5)).await;
    world.mine_until("over", World::is_over).await;
    world.database.restore(&older);
    let answer = owner.order(world.request("two", payee(2), 7)).await.await.expect("an answer");
    assert!(answer.is_err(), "{answer:?}");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.chain.raws().len(), 2, "nothing is signed for the old nonce");
    owner.arrive().await;
    let answer = owner.order(world.request("three", payee(2), 7)).await.await.expect("an answer");
    let Err(TxRefusal::SignerSuspended(why)) = answer else { panic!("{answer:?}") };
    assert!(why.iter().any(|it| it.reason == "DATABASE_OLDER"), "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn a_payment_by_an_attempt_that_an_older_copy_lacks_is_paid_and_not_taken() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    let older = world.database.backup();
    // No block takes it at its first price.
    world.chain.set_base_fee(5 * GWEI);
    world.mine_until("bumped", |world| world.row("one").attempts.len() > 1).await;
    drop(owner);
    world.mine_until("paid", |world| world.chain.wei(payee(1)) == U256::from(5)).await;
    world.database.restore(&older);
    assert_eq!(world.row("one").attempts.len(), 1);
    let _owner = world.start("b").await;
    world.mine_until("over", World::is_over).await;
    let row = world.row("one");
    assert_eq!((row.state, row.attempts.len()), (TxState::Confirmed, 2));
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
}

/// Goal: an owner of an older copy that no witness knows calls no paid request refused. Method: two
/// requests without a nonce are in the copy, and paid behind it. On the copy one is cancelled, and
/// the other one is refused by its preparation, both before the chain's count is known.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_nonce_does_not_end_before_the_chain_was_asked() {
    let mut world = World::new(1);
    let owner = world.start("a").await;
    for (id, number) in [("one", 1), ("two", 2)] {
        let new = world.request(id, payee(number), 5);
        owner.tools.store.keep(&new).await.expect("kept");
    }
    let older = world.database.backup();
    owner.arrive().await;
    world.mine_until("paid", World::is_over).await;
    owner.kill();
    world.database.restore(&older);
    world.database.command(world.signer(), Some(world.row("one").id), CommandWish::Cancel);
    world.policy.is_native_allowed = false;
    let owner = world.start("b").await;
    sleep(Duration::from_secs(30)).await;
    owner.arrive().await;
    assert_eq!(world.database.suspensions(world.signer()), ["NONCE_AHEAD"]);
    assert_eq!(["one", "two"].map(|id| world.state(id)), [TxState::Created; 2]);
}

/// Goal: a request without a nonce does not end while the transaction that took a nonce may have
/// paid it. Method: it is cancelled behind NONCE_TAKEN, which an operator lifts.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_nonce_does_not_end_while_a_nonce_is_taken() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.tools.store.keep(&world.request("one", payee(1), 5)).await.expect("kept");
    world.database.suspend(world.signer(), "NONCE_TAKEN", "txm");
    world.database.command(world.signer(), Some(world.row("one").id), CommandWish::Cancel);
    owner.arrive().await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.state("one"), TxState::Created);
    world.database.resume(world.signer(), "NONCE_TAKEN");
    owner.arrive().await;
    world.until("cancelled", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_book_that_is_read_again_brings_its_suspensions() {
    let world = World::new(1);
    let owner = world.start("a").await;
    *world.key.away.lock() = u32::MAX;
    owner.create(world.request("one", payee(1), 5)).await;
    world.database.suspend(world.signer(), "halt", "operator");
    // No arrival tells the owner: only the book, behind the lost answer.
    owner.tools.store.fail(StoreCall::Write, StoreFault::AnswerLost);
    sleep(world.options.resubmit_interval * 2).await;
    *world.key.away.lock() = 0;
    sleep(Duration::from_secs(60)).await;
    assert!(world.key.signed.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_row_that_stayed_blocked_while_its_signer_was_suspended_is_filled_later() {
    let world = World::new(1);
    let owner = world.start("a").await;
    world.chain.lie(0, Lie::Refuses("exceeds block gas limit".to_owned()), u32::MAX);
    owner.create(world.request("bad", payee(1), 1)).await;
    world.until("blocked", |world| world.row("bad").sub == Some(SubState::Blocked)).await;
    world.database.suspend(world.signer(), "halt", "operator");
    owner.arrive().await;
    sleep(world.options.fill_after * 2).await;
    assert_eq!(world.row("bad").wish, Wish::Pay);
    world.database.resume(world.signer(), "halt");
    owner.arrive().await;
    world.until("filled", |world| world.row("bad").wish == Wish::Fill).await;
    world.chain.tell_the_truth();
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_cancel_of_an_operator_on_a_suspended_signer_is_tried_until_it_is_stored() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.database.suspend(world.signer(), "halt", "operator");
    *world.key.away.lock() = 2;
    let id = world.row("one").id;
    world.database.command(world.signer(), Some(id), CommandWish::Cancel);
    owner.arrive().await;
    let has_cancel = |world: &World| {
        world.row("one").attempts.iter().any(|attempt| attempt.kind == AttemptKind::Cancel)
    };
    world.until("stored", has_cancel).await;
    world.mine_until("over", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn with_resends_switched_off_a_new_owner_sends_again_what_pools_dropped() {
    let mut world = World::new(1);
    world.options.is_resubmitted = false;
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    owner.kill();
    world.chain.forget(world.row("one").attempts[0].hash);
    let _owner = world.start("b").await;
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_step_that_the_store_refuses_holds_up_no_other() {
    let world = World::new(1);
    let owner = world.start("a").await;
    for number in 0..3 {
        owner.create(world.request(&number.to_string(), payee(1), 1)).await;
        owner.tools.store.fail(StoreCall::Write, StoreFault::Refused);
        owner.tools.store.fail(StoreCall::Write, StoreFault::Refused);
    }
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::from(3));
    world.check();
}
