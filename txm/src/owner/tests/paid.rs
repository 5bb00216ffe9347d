use std::time::Duration;

use alloy_primitives::U256;
use chain::state::TxState;
use tokio::time::sleep;

use super::world::{World, payee};
use crate::model::store::{StoreCall, StoreFault};
use crate::owner::{Order, OwnerEnd};

#[tokio::test(start_paused = true)]
async fn a_payment_is_numbered_signed_stored_sent_and_confirmed() {
    let world = World::new(2);
    let owner = world.start("a").await;
    let tx = owner.create(world.request("one", payee(1), 5)).await;
    assert_eq!((tx.nonce, tx.state), (Some(0), TxState::Allocated));
    let again = owner.create(world.request("one", payee(1), 5)).await;
    assert_eq!(again.id, tx.id);
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.mine_until("confirmed", World::is_over).await;
    let row = world.row("one");
    assert_eq!(row.state, TxState::Confirmed);
    assert_eq!(row.told.len(), 4, "the block and 3 on top of it");
    assert_eq!(row.attempts.len(), 1);
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
    owner.orders.send(Order::Release).await.expect("it runs");
    let mut owner = owner;
    assert_eq!((&mut owner.owner).await.expect("it ends"), OwnerEnd::Released);
}

/// Goal: a row that this node's policy does not list is not signed, whichever node kept it. Method:
/// an owner with another policy than the one that made the row; then one that lists it.
#[tokio::test(start_paused = true)]
async fn a_payment_that_the_policy_does_not_list_is_not_signed() {
    let mut world = World::new(1);
    (world.policy.is_any_allowed, world.policy.is_native_allowed) = (false, false);
    let owner = world.start("a").await;
    let tx = owner.create(world.request("one", payee(1), 5)).await;
    assert_eq!(tx.state, TxState::Allocated);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.state("one"), TxState::Allocated);
    assert!(world.key.signed.lock().is_empty());
    assert!(world.row("one").version < 30, "it backs off");
    drop(owner);
    world.policy.is_native_allowed = true;
    let _owner = world.start("b").await;
    world.mine_until("confirmed", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn many_payments_fill_the_window_and_leave_no_hole() {
    let world = World::new(1);
    let owner = world.start("a").await;
    let mut answers = Vec::new();
    for number in 0..60 {
        answers.push(owner.order(world.request(&number.to_string(), payee(2), 1)).await);
    }
    for answer in answers {
        answer.await.expect("an answer").expect("created");
    }
    let mut nonces: Vec<_> = world.database.rows().iter().filter_map(|tx| tx.nonce).collect();
    nonces.sort_unstable();
    assert_eq!(nonces, (0..60).collect::<Vec<_>>());
    sleep(Duration::from_secs(2)).await;
    let sent = world.database.rows().iter().filter(|tx| !tx.attempts.is_empty()).count();
    assert_eq!(sent, 16, "the window");
    world.mine_until("confirmed", World::is_over).await;
    assert_eq!(world.chain.wei(payee(2)), U256::from(60));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_asked_for_by_key_and_a_refusal_is_tried_again() {
    let faults = [
        (StoreCall::Create, StoreFault::AnswerLost),
        (StoreCall::Create, StoreFault::RequestLost),
        (StoreCall::Create, StoreFault::Refused),
        (StoreCall::Create, StoreFault::Late(Duration::from_millis(2_500))),
        (StoreCall::Open, StoreFault::AnswerLost),
        (StoreCall::Write, StoreFault::AnswerLost),
        (StoreCall::Write, StoreFault::RequestLost),
        (StoreCall::Write, StoreFault::Refused),
        (StoreCall::Write, StoreFault::Late(Duration::from_millis(50))),
        (StoreCall::Write, StoreFault::Late(Duration::from_secs(3))),
        (StoreCall::Write, StoreFault::Slow(Duration::from_secs(3))),
    ];
    for (call, fault) in faults {
        // The first, second, ... call of the kind meets it.
        for before in 0..6 {
            let world = World::new(1);
            let owner = world.start("a").await;
            for number in 0..3 {
                if number == before {
                    owner.tools.store.fail(call, fault);
                }
                owner.create(world.request(&number.to_string(), payee(3), 1)).await;
                sleep(Duration::from_millis(7 * before)).await;
            }
            if before >= 3 {
                sleep(Duration::from_millis(10 * before)).await;
                owner.tools.store.fail(call, fault);
            }
            world.mine_until(&format!("{call:?} {fault:?} {before}"), World::is_over).await;
            assert_eq!(world.chain.wei(payee(3)), U256::from(3), "{call:?} {fault:?} {before}");
            world.check();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_is_away_holds_nothing_up_for_long() {
    let world = World::new(1);
    let owner = world.start("a").await;
    *world.key.away.lock() = 3;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    assert_eq!(world.key.signed.lock().len(), 1, "signed once");
    world.mine_until("confirmed", World::is_over).await;
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_fenced_owner_ends_and_its_successor_finishes() {
    let world = World::new(1);
    let old = world.start("a").await;
    old.create(world.request("one", payee(1), 5)).await;
    // Cut off from the store: its lease lapses, and a successor takes over.
    old.tools.store.cut(true);
    let new = world.start("b").await;
    assert_eq!(new.lease.token, old.lease.token + 1);
    world.until("sent", |world| world.state("one") == TxState::Tracking).await;
    old.tools.store.cut(false);
    let answer = old.order(world.request("two", payee(1), 5)).await;
    assert!(answer.await.expect("an answer").is_err());
    let mut old = old;
    assert_eq!((&mut old.owner).await.expect("it ends"), OwnerEnd::Fenced);
    world.mine_until("confirmed", World::is_over).await;
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
}
