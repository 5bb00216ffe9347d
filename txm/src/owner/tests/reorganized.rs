use std::time::Duration;

use chain::state::{AttemptKind, TxState};
use chain::tx::{FailCode, SubState};

use tokio::time::sleep;

use super::alerts::Alerts;
use super::world::{World, payee};
use crate::model::chain::{Contract, Fate};
use crate::model::store::CommandEnd;
use crate::options::Finality;
use crate::store::CommandWish;
use alloy_primitives::U256;

/// A world with one mined payment, and its owner.
async fn mined(world: &World) -> super::world::Running {
    let owner = world.start("a").await;
    owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.chain.mine(2);
    world.until("mined", |world| world.row("one").told.len() == 2).await;
    owner
}

#[tokio::test(start_paused = true)]
async fn a_payment_whose_block_is_replaced_is_told_again_and_ends_once() {
    for fate in [Fate::Kept, Fate::Moved, Fate::Pooled, Fate::Lost] {
        let world = World::new(2);
        let _owner = mined(&world).await;
        let before = world.row("one").receipt.expect("mined").block_hash;
        world.chain.reorg(2, &fate);
        world.chain.mine(if fate == Fate::Lost { 1 } else { 0 });
        if matches!(fate, Fate::Kept | Fate::Moved) {
            world.until("another fork", |world| world.row("one").fork == 1).await;
        } else {
            world.until("reorganized", |world| world.row("one").receipt.is_none()).await;
            assert_eq!(world.row("one").sub, Some(SubState::Reorged), "{fate:?}");
        }
        world.mine_until(&format!("over, {fate:?}"), World::is_over).await;
        let row = world.row("one");
        assert_eq!(row.state, TxState::Confirmed, "{fate:?}");
        assert_ne!(row.receipt.expect("mined").block_hash, before, "{fate:?}");
        assert_eq!((row.fork, row.told.len()), (1, 4), "{fate:?}");
        assert_eq!(world.chain.wei(payee(1)), U256::from(5), "{fate:?}");
        assert_eq!(row.attempts.len(), 1, "{fate:?}");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_mined_cancel_that_a_reorganization_turns_into_the_payment_is_paid() {
    let world = World::new(1);
    let owner = world.start("a").await;
    let tx = owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.database.command(world.signer(), Some(tx.id), CommandWish::Cancel);
    owner.arrive().await;
    world.until("sent", |world| world.row("one").attempts.len() == 2).await;
    world.chain.mine(2);
    world.until("mined", |world| world.row("one").receipt.is_some()).await;
    let row = world.row("one");
    assert_eq!(row.attempts[1].kind, AttemptKind::Cancel);
    assert_eq!(row.receipt.map(|receipt| receipt.attempt), Some(2), "the cancel is mined");
    world.chain.reorg(2, &Fate::Replaced(vec![row.attempts[0].raw.clone()]));
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.state("one"), TxState::Confirmed);
    assert_eq!(world.chain.wei(payee(1)), U256::from(5));
    world.check();
}

#[tokio::test(start_paused = true)]
async fn a_final_payment_that_the_chain_takes_back_is_sent_again_and_stays() {
    let mut world = World::new(1);
    // A view is never replaced below a finalized block, so only a count can be wrong.
    world.options.finality = Finality::Count;
    world.chain.set_depths(1, 100);
    let _owner = mined(&world).await;
    world.mine_until("over", World::is_over).await;
    let before = world.row("one");
    world.chain.reorg(5, &Fate::Lost);
    assert_eq!(world.chain.wei(payee(1)), U256::ZERO);
    world.mine_until("sent again", |world| world.chain.wei(payee(1)) == U256::from(5)).await;
    assert_eq!(world.row("one").version, before.version);
    world.check();
}

/// Goal: a row that ended is looked at by a later owner too. Method: the owner is killed behind the
/// end, and the chain takes the payment back before the next one begins.
#[tokio::test(start_paused = true)]
async fn a_payment_that_is_taken_back_under_no_owner_is_sent_again_by_the_next_one() {
    let mut world = World::new(1);
    world.options.finality = Finality::Count;
    world.chain.set_depths(1, 100);
    let owner = mined(&world).await;
    world.mine_until("over", World::is_over).await;
    let before = world.row("one");
    assert_eq!((before.state, before.is_final), (TxState::Confirmed, false));
    owner.kill();
    world.chain.reorg(5, &Fate::Lost);
    assert_eq!(world.chain.wei(payee(1)), U256::ZERO);
    world.chain.mine(6);
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    let _next = world.start("b").await;
    world.mine_until("sent again", |world| world.chain.wei(payee(1)) == U256::from(5)).await;
    assert!(alerts.of("reorg_after_final") > 0);
    assert_eq!(world.row("one").version, before.version);
    world.check();
}

/// Goal: an endpoint that lags takes nothing back. Method: a payment that is over, and one that is
/// mined; the next owner's only endpoint ends below both.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_ends_below_a_receipt_takes_nothing_back() {
    let mut world = World::new(1);
    world.options.finality = Finality::Count;
    world.chain.set_depths(1, 100);
    let owner = mined(&world).await;
    world.mine_until("over", World::is_over).await;
    owner.create(world.request("two", payee(2), 5)).await;
    world.until("tracked", |world| world.state("two") == TxState::Tracking).await;
    world.chain.mine(1);
    world.until("mined", |world| world.row("two").receipt.is_some()).await;
    let before = world.row("two");
    owner.kill();
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    world.chain.lag(0, 7);
    let _next = world.start("b").await;
    for _ in 0..5 {
        sleep(Duration::from_secs(1)).await;
        world.chain.mine(1);
    }
    assert_eq!(alerts.of("reorg_after_final"), 0);
    assert_eq!((world.row("two").fork, world.row("two").receipt), (before.fork, before.receipt));
    world.chain.lag(0, 0);
    world.mine_until("over", World::is_over).await;
    assert_eq!((alerts.of("reorg_after_final"), world.row("two").fork), (0, 0));
    world.check();
}

/// Goal: behind FAILED nothing that pays is sent again, by a later owner either.
#[tokio::test(start_paused = true)]
async fn a_failed_payment_that_is_taken_back_is_told_and_not_sent_again() {
    let mut world = World::new(1);
    world.options.finality = Finality::Count;
    world.chain.set_depths(1, 100);
    world.chain.deploy(payee(1), Contract::Reverts);
    let owner = mined(&world).await;
    world.mine_until("over", World::is_over).await;
    assert_eq!(world.row("one").code, Some(FailCode::Reverted));
    owner.kill();
    world.chain.reorg(5, &Fate::Lost);
    let sent = world.chain.raws().len();
    world.chain.mine(6);
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    let _next = world.start("b").await;
    for _ in 0..10 {
        world.chain.mine(1);
        sleep(Duration::from_secs(1)).await;
    }
    assert!(alerts.of("reorg_after_final") > 0);
    assert_eq!(world.chain.raws().len(), sent);
    world.check();
}

/// Goal: another receipt behind an end is asked for once, and raises its alert once. Method: the
/// payment takes the place of its cancel behind the end, in a chain that goes on.
#[tokio::test(start_paused = true)]
async fn another_receipt_behind_an_end_raises_one_alert() {
    let mut world = World::new(1);
    world.options.finality = Finality::Count;
    world.chain.set_depths(1, 100);
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    let owner = world.start("a").await;
    let tx = owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    world.database.command(world.signer(), Some(tx.id), CommandWish::Cancel);
    owner.arrive().await;
    world.until("sent", |world| world.row("one").attempts.len() == 2).await;
    world.mine_until("over", World::is_over).await;
    let row = world.row("one");
    assert_eq!(row.code, Some(FailCode::Cancelled));
    world.chain.reorg(6, &Fate::Replaced(vec![row.attempts[0].raw.clone()]));
    world.chain.mine(1);
    sleep(Duration::from_secs(3)).await;
    let asked = world.chain.calls_of(0, "eth_getTransactionReceipt");
    for _ in 0..10 {
        world.chain.mine(1);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(alerts.of("reorg_after_final"), 1);
    assert_eq!(world.chain.calls_of(0, "eth_getTransactionReceipt"), asked);
    assert_eq!(world.row("one").version, row.version);
}

/// Goal: an owner looks at no row that its successor would not know: one that is final. Method:
/// both get a command for it.
#[tokio::test(start_paused = true)]
async fn an_owner_and_its_successor_know_no_final_row() {
    let world = World::new(1);
    let mut owner = mined(&world).await;
    world.mine_until("over", World::is_over).await;
    let row = world.row("one");
    assert!(row.is_final);
    sleep(Duration::from_secs(2)).await;
    for next in ["b", "c"] {
        let command = world.database.command(world.signer(), Some(row.id), CommandWish::Cancel);
        owner.arrive().await;
        owner.arrive().await;
        let end = CommandEnd::Refused("it is over".to_owned());
        assert_eq!(world.database.command_end(command), Some(end), "before {next}");
        owner.kill();
        owner = world.start(next).await;
    }
}

/// Goal: the look ends, and the store knows it: by the tag `finalized`, or by so many blocks.
#[tokio::test(start_paused = true)]
async fn an_end_is_final_once_the_finalized_tag_or_enough_blocks_are_past_it() {
    for depth in [10, 1_000] {
        let mut world = World::new(2);
        world.options.finality = Finality::Count;
        world.chain.set_depths(1, depth);
        let owner = mined(&world).await;
        world.mine_until("over", World::is_over).await;
        let before = world.row("one");
        assert!(!before.is_final, "{depth}");
        owner.kill();
        let _next = world.start("b").await;
        world.mine_until("final", |world| world.row("one").is_final).await;
        let passed = world.chain.head().number - before.receipt.expect("mined").block_number;
        let most = if depth == 10 { 10 } else { world.options.watch_blocks };
        assert!((most..most + 4).contains(&passed), "{depth}: {passed}");
        world.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_payment_is_not_paid() {
    let world = World::new(2);
    let owner = world.start("a").await;
    let tx = owner.create(world.request("one", payee(1), 5)).await;
    world.until("tracked", |world| world.state("one") == TxState::Tracking).await;
    let command = world.database.command(world.signer(), Some(tx.id), CommandWish::Cancel);
    owner.arrive().await;
    assert_eq!(world.database.command_end(command), Some(CommandEnd::Done));
    world.mine_until("over", World::is_over).await;
    let row = world.row("one");
    assert_eq!((row.state, row.code), (TxState::Failed, Some(FailCode::Cancelled)));
    assert_eq!(world.chain.wei(payee(1)), U256::ZERO);
    world.check();
}
