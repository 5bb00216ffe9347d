use std::time::Duration;

use tokio::time::sleep;

use super::world::{World, payee};
use crate::model::store::StoreCall;

/// The payments of a load.
const PAYMENTS: usize = 200;

/// Goal: the commits and calls of many payments are shared. Method: all of them at once for one
/// signer, with a block each second, to their ends at 20 confirmations. Each fenced statement
/// and each renewal is a commit.
#[tokio::test(start_paused = true)]
async fn payments_that_are_under_way_together_share_commits_and_calls() {
    for (window, commits_max, calls_max) in [(0, 0.5, 4.0), (16, 1.0, 4.0)] {
        let mut world = World::new(1);
        (world.options.required, world.options.in_flight_max) = (20, window);
        let owner = world.start("a").await;
        sleep(Duration::from_secs(2)).await;
        let store = &owner.tools.store;
        let commits = || -> usize {
            let kinds = [StoreCall::Create, StoreCall::Number, StoreCall::Write, StoreCall::Renew];
            kinds.into_iter().map(|kind| store.asked(kind)).sum()
        };
        let before = (commits(), world.chain.calls(0));
        let mut answers = Vec::new();
        for number in 0..PAYMENTS {
            answers.push(owner.order(world.request(&number.to_string(), payee(1), 1)).await);
        }
        for answer in answers {
            answer.await.expect("an answer").expect("created");
        }
        world.mine_until("over", World::is_over).await;
        let share = |count: f64| count / PAYMENTS as f64;
        let commits = share((commits() - before.0) as f64);
        let calls = share((world.chain.calls(0) - before.1) as f64);
        eprintln!("window {window}: {commits} commits and {calls} calls a payment");
        assert!(commits <= commits_max, "window {window}: {commits} commits a payment");
        assert!(calls <= calls_max, "window {window}: {calls} calls a payment");
        world.check();
    }
}
