use std::time::Duration;

use alloy_primitives::U256;
use chain::state::TxState;
use tokio::time::sleep;

use super::world::{Running, World, payee};
use crate::model::chain::{Fate, Lie};
use crate::options::ExternalUse;
use crate::store::{CommandWish, TxStore as _};

/// Random numbers that are the same each time. Source: xorshift64, Marsaglia 2003.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn lie(dice: &mut Dice) -> Lie {
    let words = [
        "nonce too low",
        "already known",
        "replacement transaction underpriced",
        "txpool is full",
        "internal error",
        "transaction underpriced",
    ];
    let text = words[usize::try_from(dice.roll(6)).expect("small")].to_owned();
    match dice.roll(6) {
        0 => Lie::LostAnswer,
        1 => Lie::LostCall,
        2 => Lie::Refuses(text),
        3 => Lie::TakesAndSays(text),
        4 => Lie::NoReceipt,
        _ => Lie::OldHead(2),
    }
}

/// Something that happens to the chain, to an endpoint, to a row, or to the owner.
async fn happens(world: &World, dice: &mut Dice, owner: &mut Option<Running>, name: &mut u64) {
    match dice.roll(12) {
        0..=3 => world.chain.mine(1),
        4 => {
            let fates = [Fate::Kept, Fate::Moved, Fate::Pooled, Fate::Lost];
            let fate = &fates[usize::try_from(dice.roll(4)).expect("small")];
            world.chain.reorg(1 + dice.roll(3), fate);
        }
        5 | 6 => {
            let endpoint = usize::from(dice.roll(2) == 1);
            world.chain.lie(endpoint, lie(dice), 1 + u32::from(dice.roll(2) == 1));
        }
        7 => world.chain.set_away(usize::from(dice.roll(2) == 1), dice.roll(3) == 0),
        8 => {
            let rows = world.database.rows();
            let row = usize::try_from(dice.roll(40)).expect("small");
            if let (Some(tx), Some(owner)) = (rows.get(row), owner.as_ref()) {
                let wish =
                    if dice.roll(2) == 0 { CommandWish::Cancel } else { CommandWish::Resubmit };
                world.database.command(world.signer(), Some(tx.id), wish);
                owner.arrive_if_it_can().await;
            }
        }
        9 => {
            let rows = world.database.rows();
            let attempts: Vec<_> = rows.iter().flat_map(|tx| &tx.attempts).collect();
            if !attempts.is_empty() {
                let at = dice.roll(attempts.len() as u64);
                world.chain.forget(attempts[usize::try_from(at).expect("small")].hash);
            }
        }
        10 if dice.roll(3) == 0 => {
            // The process dies; the next one waits for the lease to lapse.
            *owner = None;
            *name += 1;
            let next = world.start(&format!("node {name}")).await;
            next.tools.store.shake(dice.roll(u64::MAX), 60);
            *owner = Some(next);
        }
        _ => world.chain.set_base_fee(super::world::GWEI * u128::from(1 + dice.roll(4))),
    }
}

/// Pays 40 requests while everything goes wrong, and judges the end.
async fn run(seed: u64) {
    let mut world = World::new(2);
    world.options.in_flight_max = 8;
    world.options.external_use = ExternalUse::Refuse;
    world.chain.set_depths(2, 5);
    world.chain.mine(6);
    let mut dice = Dice(seed * 0x9e37_79b9 + 1);
    let (mut owner, mut name) = (Some(world.start("node 0").await), 0);
    owner.as_ref().expect("started").tools.store.shake(seed, 60);
    for number in 0..40_u64 {
        let request = world.request(&number.to_string(), payee(1), 1 << (number % 20));
        if let Some(owner) = &owner {
            // The answer may be lost with its owner: it is asked for again below.
            drop(owner.order(request).await);
        }
        sleep(Duration::from_millis(dice.roll(2_000))).await;
        happens(&world, &mut dice, &mut owner, &mut name).await;
    }
    world.chain.tell_the_truth();
    (0..2).for_each(|endpoint| world.chain.set_away(endpoint, false));
    world.chain.set_base_fee(super::world::GWEI);
    drop(owner);
    let owner = world.start("last").await;
    for number in 0..40_u64 {
        owner.create(world.request(&number.to_string(), payee(1), 1 << (number % 20))).await;
    }
    owner.arrive_if_it_can().await;
    world.mine_until(&format!("over, seed {seed}"), World::is_over).await;
    world.check();
    let rows = world.database.rows();
    assert_eq!(rows.len(), 40, "seed {seed}");
    let paid = rows.iter().filter(|tx| tx.state == TxState::Confirmed);
    let sum = paid.fold(U256::ZERO, |sum, tx| sum + tx.new.payload.value);
    assert_eq!(world.chain.wei(payee(1)), sum, "seed {seed}");
    let arrived = owner.tools.store.arrived(&[owner.lease], &[]).await.expect("the store");
    assert!(arrived.suspended.is_empty(), "seed {seed}: {:?}", arrived.suspended);
}

#[tokio::test(start_paused = true)]
async fn payments_are_paid_once_while_everything_goes_wrong() {
    let first = std::env::var("UBSCORE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = match first {
        Some(seed) => seed..seed + 1,
        None => 0..40,
    };
    for seed in seeds {
        run(seed).await;
    }
}
