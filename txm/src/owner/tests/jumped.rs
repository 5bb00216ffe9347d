//! Nonces that another wallet used, or seemed to use, of a key that is shared on purpose.

use alloy_primitives::{Address, Bytes, U256};
use chain::class::SendClass;
use chain::fee::GasPrice;
use chain::state::{AttemptKind, TxState};
use chain::tx::FailCode;
use tokio::time::{Duration, sleep};

use super::alerts::Alerts;
use super::world::{CHAIN, GWEI, World, payee};
use crate::model::store::CommandEnd;
use crate::options::ExternalUse;
use crate::signer::{SignedBytes, Unsigned};
use crate::store::CommandWish;

/// A world that follows, and a transaction of another wallet with nonce 0, in the pool.
fn shared(fill_after: Duration) -> (World, SignedBytes) {
    let mut world = World::new(1);
    world.options.external_use = ExternalUse::Follow;
    world.options.fill_after = fill_after;
    let unsigned = Unsigned {
        chain_id: CHAIN,
        signer: world.signer(),
        nonce: 0,
        to: Address::repeat_byte(0xbb),
        value: U256::from(7),
        data: Bytes::new(),
        gas: 21_000,
        price: GasPrice { max_fee: 20 * GWEI, max_tip: 2 * GWEI },
        is_legacy: false,
    };
    let signed = world.key.raw(&unsigned);
    world.chain.pool_outside(&signed.raw);
    (world, signed)
}

/// Goal: a jumped nonce that the chain never mines is filled by a row of its own, and only then.
/// Method: the pool loses the other wallet's transaction; the payment stands behind the gap.
#[tokio::test(start_paused = true)]
async fn a_jumped_nonce_that_is_lost_is_filled_by_time() {
    let (world, foreign) = shared(Duration::from_secs(60));
    let owner = world.start("a").await;
    let paid = owner.create(world.request("r1", payee(1), 5)).await;
    assert_eq!(paid.nonce, Some(1));
    world.chain.forget(foreign.hash);
    for _ in 0..40 {
        world.chain.mine(1);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.database.jumped(world.signer()), [0], "not before its time");
    world.mine_until("the end", World::is_over).await;
    let fill = world.row("fill/0");
    assert_eq!((fill.nonce, fill.code), (Some(0), Some(FailCode::Filled)));
    assert!(fill.attempts.iter().all(|it| it.kind == AttemptKind::Fill && it.gas == 21_000));
    assert_eq!(world.state("r1"), TxState::Confirmed);
    assert_eq!(world.database.jumped(world.signer()), Vec::<u64>::new());
    world.database.check();
    assert_eq!(world.row("r1").attempts.len(), 1, "no price helps behind a gap");
}

/// Goal: a fill that another wallet's transaction keeps out of the pool is no news: the jump has
/// shown that use. Method: that transaction stays in the pool, at a higher price.
#[tokio::test(start_paused = true)]
async fn a_fill_behind_another_transaction_raises_no_alert() {
    let alerts = Alerts::default();
    let _counting = metrics::set_default_local_recorder(&alerts);
    let (world, _) = shared(Duration::from_secs(60));
    let owner = world.start("a").await;
    owner.create(world.request("r1", payee(1), 5)).await;
    let fill = |world: &World| {
        let rows = world.database.rows().into_iter();
        rows.filter(|tx| tx.new.is_fill()).find_map(|tx| tx.attempts.first()?.class)
    };
    world.until("refused", |world| fill(world) == Some(SendClass::Replacement)).await;
    sleep(Duration::from_secs(5)).await;
    for alert in ["nonce_unaccounted", "tx_replaced_elsewhere"] {
        assert_eq!(alerts.of(alert), 0, "{alert}");
    }
    world.mine_until("over", World::is_over).await;
    world.check();
}

/// Goal: a nonce that the chain has mined is never filled. Method: the other transaction is mined;
/// the time passes; an operator asks for it as well.
#[tokio::test(start_paused = true)]
async fn a_jumped_nonce_that_is_mined_stays_a_jump() {
    let (world, _) = shared(Duration::from_secs(5));
    let owner = world.start("a").await;
    owner.create(world.request("r1", payee(1), 5)).await;
    world.mine_until("the end", World::is_over).await;
    owner.create(world.request("r2", payee(1), 6)).await;
    sleep(Duration::from_secs(30)).await;
    let wish = |nonce| CommandWish::FillJumped { nonce };
    let mined = world.database.command(world.signer(), None, wish(0));
    let own = world.database.command(world.signer(), None, wish(77));
    owner.arrive().await;
    sleep(Duration::from_secs(5)).await;
    for (command, why) in [(mined, "the chain has mined"), (own, "it is not to be filled")] {
        match world.database.command_end(command) {
            Some(CommandEnd::Refused(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }
    world.mine_until("the end", World::is_over).await;
    assert_eq!(world.database.jumped(world.signer()), [0]);
    assert_eq!(world.database.rows().len(), 2, "no row of its own");
    world.database.check();
}

/// Goal: an operator fills it at once, also while the signer is suspended; and a fill that loses
/// to the other wallet suspends nothing. Method: the lost transaction comes back and is mined.
#[tokio::test(start_paused = true)]
async fn a_fill_by_command_may_lose_to_the_other_wallet() {
    let (world, foreign) = shared(Duration::from_secs(100_000));
    let owner = world.start("a").await;
    owner.create(world.request("r1", payee(1), 5)).await;
    world.until("sent", |world| world.state("r1") == TxState::Tracking).await;
    world.chain.forget(foreign.hash);
    world.chain.mine(1);
    world.database.suspend(world.signer(), "OPERATOR", "op");
    owner.arrive().await;
    let command =
        world.database.command(world.signer(), None, CommandWish::FillJumped { nonce: 0 });
    owner.arrive().await;
    world.until("a fill", |world| !world.row("fill/0").attempts.is_empty()).await;
    assert_eq!(world.database.command_end(command), Some(CommandEnd::Done));
    world.database.resume(world.signer(), "OPERATOR");
    owner.arrive().await;
    // The other wallet's bytes are dearer, and mined first.
    world.chain.submit_outside(&foreign.raw);
    world.mine_until("the end", World::is_over).await;
    assert_eq!(world.row("fill/0").code, Some(FailCode::NonceTaken));
    assert_eq!(world.state("r1"), TxState::Confirmed);
    assert_eq!(world.database.suspensions(world.signer()), Vec::<String>::new());
    world.database.check();
}
