//! The parts that every task of a node uses: store, endpoints, keys, settings, and the answers of
//! the endpoints that hold for one head.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use chain::fee::GasMarket;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use crate::open_rows::OpenRows;
use crate::options::{SignerPolicy, TxmOptions};
use crate::rpc::Endpoint;
use crate::rpc::look::Look;
use crate::rpc::pool::Pool;

/// The most accounts of one head that are remembered. Beyond, all are asked again.
const ACCOUNTS_MAX: usize = 10_000;

/// The parts of a node.
pub struct Tools<S, E, K> {
    /// The store of leases and rows.
    pub store: S,
    /// The endpoints.
    pub pool: Pool<E>,
    /// The keys.
    pub keys: K,
    /// The settings.
    pub options: TxmOptions,
    /// The policy of each signer. A signer without one may sign nothing.
    pub policies: BTreeMap<Address, SignerPolicy>,
    /// This node's name, for logs and people.
    pub node: String,
    /// The newest look at the chain.
    pub looks: watch::Receiver<Arc<Look>>,
    /// The open rows of owned signers. Each owner keeps its own signer's there.
    pub open_rows: Arc<OpenRows>,
    at_head: Mutex<AtHead>,
}

/// Answers that hold for one head, and not longer than one cycle of heads.
#[derive(Default)]
struct AtHead {
    head: Option<B256>,
    since: Option<Instant>,
    market: Arc<OnceCell<GasMarket>>,
    balances: BTreeMap<(Address, Option<Address>), Arc<OnceCell<U256>>>,
    code_lengths: BTreeMap<Address, Arc<OnceCell<u64>>>,
}

/// No endpoint answered.
struct Silent;

impl<S, E: Endpoint, K> Tools<S, E, K> {
    /// Puts the parts together. `looks`: the sender belongs to the task that looks at the chain.
    pub fn new(
        store: S,
        pool: Pool<E>,
        keys: K,
        options: TxmOptions,
        policies: BTreeMap<Address, SignerPolicy>,
        node: String,
        looks: watch::Receiver<Arc<Look>>,
    ) -> Tools<S, E, K> {
        let (open_rows, at_head) = (Arc::default(), Mutex::default());
        Tools { store, pool, keys, options, policies, node, looks, open_rows, at_head }
    }

    /// The newest look.
    pub fn look(&self) -> Arc<Look> {
        self.looks.borrow().clone()
    }

    /// The market at the head; `None`: unknown, and nothing new is signed.
    pub async fn market(&self) -> Option<GasMarket> {
        let look = self.look();
        let cell = self.at(&look).market.clone();
        let asked = || async { self.pool.market(&look).await.ok_or(Silent) };
        cell.get_or_try_init(asked).await.ok().copied()
    }

    /// The balance of an account at the head, wei, or units of a token; `None`: unknown.
    pub async fn balance(&self, account: Address, token: Option<Address>) -> Option<U256> {
        let cell = self.at(&self.look()).balances.entry((account, token)).or_default().clone();
        let asked = || async { self.pool.balance(account, token).await.ok_or(Silent) };
        cell.get_or_try_init(asked).await.ok().copied()
    }

    /// The length of an account's code at the head, bytes; `None`: unknown.
    pub async fn code_length(&self, account: Address) -> Option<u64> {
        let cell = self.at(&self.look()).code_lengths.entry(account).or_default().clone();
        let asked = || async { self.pool.code_length(account).await.ok_or(Silent) };
        cell.get_or_try_init(asked).await.ok().copied()
    }

    /// The answers of a head. Those of another head, or of an earlier cycle, are dropped.
    fn at(&self, look: &Look) -> parking_lot::MutexGuard<'_, AtHead> {
        let mut kept = self.at_head.lock();
        let head = look.head().map(|block| block.at.hash);
        let is_old = kept.since.is_none_or(|since| since.elapsed() >= self.options.poll);
        let is_full = kept.balances.len().max(kept.code_lengths.len()) >= ACCOUNTS_MAX;
        if is_old || is_full || kept.head != head {
            *kept = AtHead { head, since: Some(Instant::now()), ..AtHead::default() };
        }
        kept
    }
}
