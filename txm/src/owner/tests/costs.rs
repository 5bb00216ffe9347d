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
