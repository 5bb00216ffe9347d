use std::time::Duration;

use chain::state::TxState;
use tokio::time::sleep;

use super::world::{World, payee};
use crate::model::store::StoreCall;

/// The payments of a load.
const PAYMENTS: usize = 1_000;

/// Goal: the commits and calls of many payments are shared: at most 0.5 and 4 of each. Method: all
/// of them at once for one signer, with a block each second, to their ends at 20 confirmations.
/// Each fenced statement and each renewal is a commit.
#[tokio::test(start_paused = true)]
async fn payments_that_are_under_way_together_share_commits_and_calls() {
    let mut world = World::new(1);
    (world.options.required, world.options.queue_max) = (20, 10_000);
    let owner = world.start("a").await;
    let store = &owner.tools.store;
    let commits = || -> usize {
        let kinds = [StoreCall::Create, StoreCall::Number, StoreCall::Write, StoreCall::Renew];
        kinds.into_iter().map(|kind| store.asked(kind)).sum()
    };
    world.until("owned", |_| store.asked(StoreCall::Open) > 0).await;
    let before = (commits(), world.chain.calls(0));
    let mut answers = Vec::new();
    for number in 0..PAYMENTS {
        answers.push(owner.order(world.request(&number.to_string(), payee(1), 1)).await);
    }
    for answer in answers {
        answer.await.expect("an answer").expect("created");
    }
    world.mine_until("over", World::is_over).await;
    let commits = commits() - before.0;
    let calls = world.chain.calls(0) - before.1;
    assert!(commits * 2 <= PAYMENTS, "{commits} commits");
    assert!(calls <= 4 * PAYMENTS as u64, "{calls} calls");
    world.check();
}

/// Goal: the counts of a signer are asked once a head. Method: looks at a chain that stands still,
/// with a payment in the pool, and then a block.
#[tokio::test(start_paused = true)]
async fn counts_are_asked_once_a_head() {
    let world = World::new(1);
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    sleep(Duration::from_secs(5)).await;
    let counts = || world.chain.calls_of(0, "eth_getTransactionCount");
    let (before, looked) = (counts(), world.chain.calls(0));
    sleep(Duration::from_secs(20)).await;
    assert!(world.chain.calls(0) >= looked + 20, "it looks");
    assert_eq!(counts(), before);
    world.mine_until("over", World::is_over).await;
    assert!(counts() > before);
    world.check();
}

/// Goal: the question behind a send finds a receipt with the next look. Story: it was asked with
/// the look of before the send, which lacked the block. Method: a block right behind the send.
#[tokio::test(start_paused = true)]
async fn a_receipt_upon_entry_is_asked_with_the_next_look() {
    let mut world = World::new(1);
    world.options.is_receipt_asked_at_once = true;
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("sent", |world| !world.chain.raws().is_empty()).await;
    world.chain.mine(1);
    world.until("mined", |world| world.row("one").receipt.is_some()).await;
    assert_eq!(world.chain.calls_of(0, "eth_getTransactionReceipt"), 1);
    world.mine_until("over", World::is_over).await;
    world.check();
}
