//! One process of the transaction manager: its leases, its owners, its looks at the chain, and the
//! desk for its clients.

mod arrivals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use alloy_primitives::Address;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, sleep};

use crate::desk::Desk;
use crate::lease_keeper::LeaseKeeper;
use crate::options::{SignerPolicy, TxmOptions};
use crate::rpc::Endpoint;
use crate::rpc::look::Look;
use crate::rpc::pool::Pool;
use crate::seats::Seats;
use crate::signer::Signer;
use crate::store::TxStore;
use crate::tools::Tools;

use arrivals::Arrivals;

/// Requests of the desk to the keeper that may wait. Beyond, the desk waits.
const ASKS_MAX: usize = 1_024;

/// A node that is ready to run.
pub struct Node<S, E, K> {
    tools: Arc<Tools<S, E, K>>,
    keeper: LeaseKeeper<S, E, K>,
    arrivals: Arrivals<S, E, K>,
    looks: watch::Sender<Arc<Look>>,
}

impl<S: TxStore, E: Endpoint, K: Signer> Node<S, E, K> {
    /// Makes a node and its desk. The desk answers while the node runs. `policies`: a signer
    /// without one may sign nothing. `node`: this node's name, for logs and people.
    pub fn start(
        store: S,
        pool: Pool<E>,
        keys: K,
        options: TxmOptions,
        policies: BTreeMap<Address, SignerPolicy>,
        node: String,
    ) -> (Node<S, E, K>, Desk<S, E, K>) {
        let (looks, seen) = watch::channel(Arc::new(Look::default()));
        let tools = Arc::new(Tools::new(store, pool, keys, options, policies, node, seen));
        let (seats, wake) = (Arc::new(Seats::default()), Arc::new(Notify::new()));
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let keeper = LeaseKeeper::new(Arc::clone(&tools), Arc::clone(&seats), asked);
        let arrivals = Arrivals::new(Arc::clone(&tools), Arc::clone(&seats), Arc::clone(&wake));
        let desk = Desk::new(Arc::clone(&tools), seats, asks, wake);
        (Node { tools, keeper, arrivals, looks }, desk)
    }

    /// Runs until `stop`. Then owners finish the write that is under way, the leases are released,
    /// and it returns, at most `shutdown_timeout` later. New requests are refused meanwhile.
    ///
    /// If this future is dropped, everything of the node ends where it is, as by a kill.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Node { tools, keeper, arrivals, looks } = self;
        let limit = tools.options.shutdown_timeout;
        let stopped = Notify::new();
        let keeping = keeper.run(async {
            stop.await;
            stopped.notify_one();
        });
        let limited = async {
            stopped.notified().await;
            sleep(limit).await;
        };
        tokio::select! {
            biased;
            () = keeping => {}
            () = limited => tracing::warn!(node = %tools.node, "the node did not drain in time"),
            () = look_on(&tools, &looks) => {}
            () = arrivals.run() => {}
        }
    }
}

/// Looks at the chain, once a cycle, for ever.
async fn look_on<S, E: Endpoint, K>(tools: &Tools<S, E, K>, looks: &watch::Sender<Arc<Look>>) {
    let mut cycles = tokio::time::interval(tools.options.poll);
    cycles.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        cycles.tick().await;
        looks.send_replace(tools.pool.look().await);
    }
}
