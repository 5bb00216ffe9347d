//! The parts of a node that the listeners use, apart from its store and keys.

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::tx::NewTx;
use futures_util::future::BoxFuture;
use txm::desk::Desk;
use txm::options::ExternalUse;
use txm::refusal::TxRefusal;
use txm::rpc::Endpoint;
use txm::rpc::pool::Counts;
use txm::signer::{Signer, Unsigned, codec};
use txm::store::{Created, Lease, TxStore};

/// A mined transaction: its signed bytes, and the fields in them.
pub struct MinedBytes {
    /// The bytes.
    pub raw: Bytes,
    /// The fields, with the sender that the signature tells.
    pub unsigned: Unsigned,
}

/// A desk over any store, endpoint and key.
pub trait TxDesk: Send + Sync {
    /// Makes the row of a request, or finds it. See [`Desk::create`].
    fn create(&self, request: NewTx, later: bool) -> BoxFuture<'_, Result<Created, TxRefusal>>;

    /// A row or a command of this signer was written.
    fn wake(&self, signer: Address);

    /// The leases of this node.
    fn owned(&self) -> Vec<Lease>;

    /// The addresses that this node can sign for.
    fn keys(&self) -> Vec<Address>;

    /// A signer's balance, wei; `None`: no endpoint answered.
    fn balance(&self, signer: Address) -> BoxFuture<'_, Option<U256>>;

    /// The counts of a signer at each endpoint that answered.
    fn counts(&self, signer: Address) -> BoxFuture<'_, Vec<Counts>>;

    /// Whether other wallets use the same keys, so that the chain may be ahead of the rows.
    fn shares_keys(&self) -> bool;

    /// The number of configured endpoints.
    fn endpoints(&self) -> usize;

    /// The hashes of a signer's mined transactions with this nonce, see [`Pool::mined_with`].
    ///
    /// [`Pool::mined_with`]: txm::rpc::pool::Pool::mined_with
    fn mined_with(
        &self,
        signer: Address,
        nonce: u64,
        hashes: Vec<B256>,
    ) -> BoxFuture<'_, Option<Vec<B256>>>;

    /// A mined transaction by its hash, in the view of a quorum, read from its own signed bytes.
    /// `None`: not mined there, or of another form than ours.
    fn mined_by(&self, hash: B256) -> BoxFuture<'_, Option<MinedBytes>>;

    /// The height of the view's head; `None`: there is none.
    fn head(&self) -> Option<u64>;
}

impl<S: TxStore, E: Endpoint, K: Signer> TxDesk for Desk<S, E, K> {
    fn create(&self, request: NewTx, later: bool) -> BoxFuture<'_, Result<Created, TxRefusal>> {
        Box::pin(Desk::create(self, request, later))
    }

    fn wake(&self, signer: Address) {
        Desk::wake(self, signer);
    }

    fn owned(&self) -> Vec<Lease> {
        Desk::owned(self)
    }

    fn keys(&self) -> Vec<Address> {
        self.tools().keys.addresses()
    }

    fn balance(&self, signer: Address) -> BoxFuture<'_, Option<U256>> {
        Box::pin(self.tools().balance(signer, None))
    }

    fn counts(&self, signer: Address) -> BoxFuture<'_, Vec<Counts>> {
        Box::pin(self.tools().pool.counts(signer))
    }

    fn shares_keys(&self) -> bool {
        self.tools().options.external_use == ExternalUse::Follow
    }

    fn endpoints(&self) -> usize {
        self.tools().pool.endpoints()
    }

    fn mined_with(
        &self,
        signer: Address,
        nonce: u64,
        hashes: Vec<B256>,
    ) -> BoxFuture<'_, Option<Vec<B256>>> {
        Box::pin(async move { self.tools().pool.mined_with(signer, nonce, &hashes).await })
    }

    fn mined_by(&self, hash: B256) -> BoxFuture<'_, Option<MinedBytes>> {
        Box::pin(async move {
            let tools = self.tools();
            let look = tools.look();
            let found = tools.pool.by_hash(&look, hash).await;
            let raw = tools.pool.raw(hash).await.ok()?;
            let unsigned = codec::read(&raw).ok()?;
            let is_of_chain = unsigned.chain_id == tools.options.chain_id;
            let is_mined = found.len() >= tools.options.quorum.max(1);
            (is_mined && is_of_chain).then_some(MinedBytes { raw, unsigned })
        })
    }

    fn head(&self) -> Option<u64> {
        self.tools().look().head().map(|head| head.at.number)
    }
}
