use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use alloy_primitives::U256;
use chain::state::TxState;

use super::world::{World, payee};
use crate::owner::OwnerEnd;
use crate::store::CommandWish;

/// A future that is dropped behind so many polls: the process dies at that await.
struct Dropped {
    owner: Option<Pin<Box<dyn Future<Output = OwnerEnd> + Send>>>,
    polls: u32,
}

impl Future for Dropped {
    type Output = OwnerEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OwnerEnd> {
        if self.polls == 0 {
            self.owner = None;
            // Its tasks go on: the answers of a dead process are read by nothing.
            return Poll::Ready(OwnerEnd::Fenced);
        }
        self.polls -= 1;
        match &mut self.owner {
            Some(owner) => owner.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// Pays two requests, cancels one of them, and has the owner die at an await. Returns whether it
/// died.
async fn dies(polls: u32) -> bool {
    let world = World::new(1);
    let owner = world.start_as("a", |owner| Dropped { owner: Some(owner), polls }).await;
    let requests = [world.request("one", payee(1), 5), world.request("two", payee(2), 7)];
    for request in &requests {
        drop(owner.order(request.clone()).await.await);
    }
    let is_there = |world: &World| world.database.rows().len() == 2;
    if is_there(&world) {
        world.database.command(world.signer(), Some(world.row("two").id), CommandWish::Cancel);
        owner.arrive().await;
    }
    for _ in 0..12 {
        world.chain.mine(1);
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let is_dead = owner.owner.is_finished();
    assert!(is_dead || world.is_over(), "{polls}: {:#?}", world.database.rows());
    owner.kill();

    let owner = world.start("b").await;
    for request in requests {
        owner.create(request).await;
    }
    if !world.is_over() {
        world.database.command(world.signer(), Some(world.row("two").id), CommandWish::Cancel);
        owner.arrive().await;
    }
    world.mine_until(&format!("over, dropped at {polls}"), World::is_over).await;
    world.check();
    assert_eq!(world.state("one"), TxState::Confirmed);
    assert_eq!(world.chain.wei(payee(1)), U256::from(5), "one payment, dropped at {polls}");
    let paid = match world.state("two") {
        TxState::Confirmed => 7,
        _ => 0,
    };
    assert_eq!(world.chain.wei(payee(2)), U256::from(paid), "dropped at {polls}");
    is_dead
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_dies_at_any_await_leaves_one_payment() {
    let mut polls = 1;
    while dies(polls).await {
        polls += 1;
    }
    assert!(polls > 50, "only {polls} awaits were reached");
}
