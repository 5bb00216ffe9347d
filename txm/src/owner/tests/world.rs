//! One signer, its database and its chain, with owners that come and go.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, Bytes, U256};
use chain::fee::GasCaps;
use chain::payload::TxPayload;
use chain::state::TxState;
use chain::tx::{NewTx, Tx, TxId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::key::Key;
use crate::model::chain::{ModelChain, ModelEndpoint};
use crate::model::store::{ModelDatabase, ModelStore};
use crate::options::{ExternalUse, Finality, SignerPolicy, TxmOptions};
use crate::owner::{Order, Owner, OwnerEnd};
use crate::refusal::TxRefusal;
use crate::rpc::look::Look;
use crate::rpc::pool::Pool;
use crate::store::{Acquired, Created, Lease, TxStore as _};
use crate::tools::Tools;

pub(super) const CHAIN: u64 = 31_337;
pub(super) const GWEI: u128 = 1_000_000_000;
/// The lease of a process that is gone lapses in this time.
const LAPSE: Duration = Duration::from_secs(13);

type TestTools = Tools<ModelStore, ModelEndpoint, Arc<Key>>;

pub(super) fn payee(number: u8) -> Address {
    Address::repeat_byte(0xa0 + number)
}

fn options() -> TxmOptions {
    let seconds = Duration::from_secs;
    TxmOptions {
        chain_id: CHAIN,
        quorum: 1,
        poll: seconds(1),
        rpc_timeout: seconds(5),
        calls_in_flight_max: 8,
        workers: 1,
        batch_max: 100,
        queue_max: 1_000,
        arrivals_poll: Duration::from_millis(100),
        lease_duration: seconds(10),
        lease_renew: seconds(3),
        lease_skew: seconds(1),
        is_chain_queried: true,
        counts_pending: true,
        nonce_state_timeout: seconds(30),
        external_use: ExternalUse::Refuse,
        jump_max: 64,
        fill_after: seconds(300),
        in_flight_max: 16,
        is_resubmitted: true,
        resubmit_interval: seconds(60),
        bump_after: 2,
        attempts_max: 10,
        bump_percent: 12,
        caps: GasCaps { max_fee: 500 * GWEI, tip: 5 * GWEI, cost: 100_000_000 * GWEI },
        is_legacy: false,
        gas_margin_percent: 120,
        gas_max: 1_000_000,
        required: 3,
        finality: Finality::Finalized,
        stale: seconds(60),
        receipt_workers: 4,
        is_receipt_asked_at_once: false,
        watch_blocks: 32,
        sign_timeout: seconds(5),
        release_blind: seconds(30),
        shutdown_timeout: seconds(5),
    }
}

/// One signer and everything around it.
pub(super) struct World {
    pub database: ModelDatabase,
    pub chain: ModelChain,
    pub key: Arc<Key>,
    pub options: TxmOptions,
    pub policy: SignerPolicy,
}

impl World {
    /// A funded signer, and so many endpoints.
    pub(super) fn new(endpoints: usize) -> World {
        let key = Arc::new(Key::new());
        let database = ModelDatabase::new(Duration::from_secs(10), Duration::from_secs(1));
        database.add_signer(key.address(), 0);
        let chain = ModelChain::new(CHAIN, endpoints);
        chain.fund(key.address(), U256::from(1_000_000_000 * GWEI));
        chain.set_base_fee(GWEI);
        chain.set_tip(GWEI);
        chain.set_depths(1, 2);
        chain.mine(4);
        for endpoint in 0..endpoints {
            chain.set_latency(endpoint, Duration::from_millis(10));
        }
        let policy = SignerPolicy {
            is_native_allowed: true,
            tokens: Vec::new(),
            is_any_allowed: true,
            outflow_per_hour_max: Vec::new(),
        };
        World { database, chain, key, options: options(), policy }
    }

    pub(super) fn signer(&self) -> Address {
        self.key.address()
    }

    /// A prepared request that pays `value` wei.
    pub(super) fn request(&self, id: &str, to: Address, value: u64) -> NewTx {
        let payload =
            TxPayload { to, value: U256::from(value), data: Bytes::new(), token: None, gas: None };
        NewTx {
            signer: self.signer(),
            request_id: id.to_owned(),
            business_key: Some(format!("for {id}")),
            payload,
            gas: Some(21_000),
            deadline_ms: None,
        }
    }

    /// The parts of a process, and the task that looks at the chain.
    pub(super) fn tools(&self, node: &str) -> (Arc<TestTools>, JoinHandle<()>) {
        let store = self.database.start(node);
        store.delay(Duration::from_millis(2));
        let pool = Pool::new(self.chain.endpoints(), &self.options);
        let policies = [(self.signer(), self.policy.clone())].into();
        let (seen, looks) = watch::channel(Arc::new(Look::default()));
        let (key, options) = (Arc::clone(&self.key), self.options.clone());
        let tools =
            Arc::new(Tools::new(store, pool, key, options, policies, node.to_owned(), looks));
        let looking = Arc::clone(&tools);
        let task = tokio::spawn(async move {
            loop {
                seen.send_replace(looking.pool.look().await);
                sleep(looking.options.poll).await;
            }
        });
        (tools, task)
    }

    /// Acquires the signer, once the lease of its owner before has lapsed.
    pub(super) async fn acquire(&self, tools: &TestTools) -> Lease {
        loop {
            if let Ok(Acquired::Mine(lease)) = tools.store.acquire(self.signer()).await {
                return lease;
            }
            sleep(LAPSE).await;
        }
    }

    /// Starts an owner on a process of its own.
    pub(super) async fn start(&self, node: &str) -> Running {
        self.start_as(node, |owner| owner).await
    }

    /// Starts an owner in a future that `wrap` makes.
    pub(super) async fn start_as<F>(
        &self,
        node: &str,
        wrap: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = OwnerEnd> + Send>>) -> F,
    ) -> Running
    where
        F: Future<Output = OwnerEnd> + Send + 'static,
    {
        let (tools, looking) = self.tools(node);
        let lease = self.acquire(&tools).await;
        let (orders, queue) = mpsc::channel(1_000);
        let (deadline, until) = watch::channel(Instant::now() + Duration::from_secs(9));
        let renewing = Arc::clone(&tools);
        let renewals = tokio::spawn(async move {
            loop {
                let sent = Instant::now();
                if renewing.store.renew().await.is_ok_and(|leases| leases.contains(&lease)) {
                    deadline.send_replace(sent + Duration::from_secs(9));
                }
                sleep(Duration::from_secs(3)).await;
            }
        });
        let owner = Owner::new(lease, until, Arc::clone(&tools), queue);
        let owner = tokio::spawn(wrap(Box::pin(owner.run())));
        Running { tools, lease, orders, owner, beside: vec![looking, renewals] }
    }

    /// Builds a block each second until a condition holds.
    pub(super) async fn mine_until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..300 {
            if holds(self) {
                return;
            }
            self.chain.mine(1);
            sleep(Duration::from_secs(1)).await;
        }
        panic!("{what}: {:#?}", self.database.rows());
    }

    /// Waits until a condition holds, without a new block.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..10_000 {
            if holds(self) {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:#?}", self.database.rows());
    }

    /// The row of a request.
    pub(super) fn row(&self, id: &str) -> Tx {
        let mut rows = self.database.rows().into_iter();
        rows.find(|tx| tx.new.request_id == id).expect("the request has a row")
    }

    pub(super) fn state(&self, id: &str) -> TxState {
        self.row(id).state
    }

    /// Every row is terminal.
    pub(super) fn is_over(&self) -> bool {
        let rows = self.database.rows();
        !rows.is_empty() && rows.iter().all(|tx| tx.state.is_terminal())
    }

    /// Judges all laws: of the store, and that each raw that any endpoint saw is an attempt's row.
    pub(super) fn check(&self) {
        self.database.check();
        self.database.check_sent(&self.chain.raws());
    }
}

/// An owner that runs.
pub(super) struct Running {
    pub tools: Arc<TestTools>,
    pub lease: Lease,
    pub orders: mpsc::Sender<Order>,
    pub owner: JoinHandle<OwnerEnd>,
    beside: Vec<JoinHandle<()>>,
}

impl Running {
    /// Begins a create. The answer comes by the receiver.
    pub(super) async fn order(&self, new: NewTx) -> oneshot::Receiver<Result<Created, TxRefusal>> {
        let (reply, answer) = oneshot::channel();
        drop(self.orders.send(Order::Create(new, reply)).await);
        answer
    }

    /// Creates a row, and returns it.
    pub(super) async fn create(&self, new: NewTx) -> Tx {
        match self.order(new).await.await.expect("an answer").expect("created") {
            Created::New(tx) | Created::Known(tx) => *tx,
            Created::Conflict(fields) => panic!("{fields:?}"),
        }
    }

    /// Hands over the news of the store, as the node does it.
    pub(super) async fn arrive(&self) {
        assert!(self.arrive_if_it_can().await, "the store");
    }

    /// The same, if the store answers.
    pub(super) async fn arrive_if_it_can(&self) -> bool {
        let known: Vec<TxId> = self.tools.open_rows.without_nonce();
        let Ok(arrived) = self.tools.store.arrived(&[self.lease], &known).await else {
            return false;
        };
        let commands = arrived.commands.into_iter().map(|(_, command)| command).collect();
        let suspended = arrived.suspended.into_iter().flat_map(|(_, all)| all).collect();
        drop(self.orders.send(Order::Arrived(arrived.txs, commands, suspended)).await);
        sleep(Duration::from_millis(200)).await;
        true
    }

    /// Ends the process at once.
    pub(super) fn kill(self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.owner.abort();
        self.beside.iter().for_each(JoinHandle::abort);
    }
}
