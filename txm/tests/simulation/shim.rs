//! The store, the endpoints and the keys of a process: the models, with a planted bug if there is
//! one. An endpoint also judges each raw when it leaves (CL3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::class::SendClass;
use chain::decide::TxStep;
use chain::fee::GasPrice;
use chain::state::{AttemptKind, TxState};
use chain::tx::{FailCode, Proof, Tx, TxId};
use parking_lot::Mutex;
use tokio::time::{Duration, sleep};
use txm::model::chain::{ModelEndpoint, ModelTx};
use txm::model::store::{ModelDatabase, ModelStore};
use txm::model::wallet::Wallet;
use txm::rpc::{Endpoint, RpcCall, RpcError, RpcValue};
use txm::signer::{SignError, SignedBytes, Signer, Unsigned};
use txm::store::{
    Acquired, Arrived, Created, Lease, Ready, SignerBook, SignerOwner, StoreError, TxStore, Wanting,
};

use super::Planted;

/// The database that is there now: a restored one takes its place.
pub(super) type Shared = Arc<Mutex<ModelDatabase>>;

/// The store of a process.
#[derive(Clone)]
pub(super) struct Shim<S> {
    pub inner: S,
    pub database: ModelDatabase,
    pub planted: Option<Planted>,
}

impl Shim<ModelStore> {
    /// The step as the planted bug writes it.
    fn bend_step(&self, step: &mut TxStep) {
        let Some(before) = self.database.row(step.tx.id) else { return };
        match self.planted {
            Some(Planted::NonceTooLowIsSuccess) => {
                let answers = step.answers.iter().flat_map(|(_, answers)| answers);
                let says = answers.into_iter().any(|it| it.class == SendClass::NonceTooLow);
                if says && before.state.leads_to(TxState::Confirmed) {
                    (step.tx.state, step.tx.code) = (TxState::Confirmed, None);
                    end(&mut step.tx);
                }
            }
            Some(Planted::CancelledBeforeFinal) => {
                let receipt = step.tx.receipt.filter(|it| it.proof == Proof::Nothing);
                let number = receipt.map(|receipt| receipt.attempt);
                let mined = step.tx.attempts.iter().find(|it| Some(it.number) == number);
                let is_cancel = mined.is_some_and(|it| it.kind == AttemptKind::Cancel);
                if is_cancel && !step.tx.is_final && before.state.leads_to(TxState::Failed) {
                    (step.tx.state, step.tx.code) = (TxState::Failed, Some(FailCode::Cancelled));
                    end(&mut step.tx);
                }
            }
            Some(Planted::BumpBelowHighest) => {
                for (attempt, stored) in step.tx.attempts.iter_mut().zip(&before.attempts) {
                    attempt.price = stored.price;
                }
            }
            _ => {}
        }
    }

    /// A row as the planted bug reads it.
    fn bend_row(&self, tx: &mut Tx) {
        if self.planted == Some(Planted::BumpBelowHighest) {
            for attempt in &mut tx.attempts {
                attempt.price.max_fee = attempt.price.max_fee / 10 * 7;
                attempt.price.max_tip = attempt.price.max_tip / 10 * 7;
            }
        }
    }
}

fn end(tx: &mut Tx) {
    (tx.sub, tx.is_final, tx.resubmit_in) = (None, true, None);
    tx.cost = Some(U256::ZERO);
}

impl TxStore for Shim<ModelStore> {
    async fn acquire(&self, signer: Address) -> Result<Acquired, StoreError> {
        self.inner.acquire(signer).await
    }

    async fn owner_of(&self, signer: Address) -> Result<SignerOwner, StoreError> {
        self.inner.owner_of(signer).await
    }

    async fn renew(&self) -> Result<Vec<Lease>, StoreError> {
        self.inner.renew().await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.inner.leave().await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.inner.release(lease).await
    }

    async fn wanting(&self, most: u32) -> Result<Wanting, StoreError> {
        self.inner.wanting(most).await
    }

    async fn open(&self, lease: Lease) -> Result<SignerBook, StoreError> {
        let mut book = self.inner.open(lease).await?;
        book.txs.iter_mut().for_each(|tx| self.bend_row(tx));
        Ok(book)
    }

    async fn arrived(&self, leases: &[Lease], known: &[TxId]) -> Result<Arrived, StoreError> {
        self.inner.arrived(leases, known).await
    }

    async fn create(
        &self,
        lease: Lease,
        floor: u64,
        requests: &[chain::tx::NewTx],
    ) -> Result<Vec<Created>, StoreError> {
        self.inner.create(lease, floor, requests).await
    }

    async fn number(
        &self,
        lease: Lease,
        floor: u64,
        ready: &[Ready],
    ) -> Result<Vec<Tx>, StoreError> {
        let is_twice = self.planted == Some(Planted::PreparedTwice);
        let ready = if is_twice { [ready, ready].concat() } else { ready.to_vec() };
        self.inner.number(lease, floor, &ready).await
    }

    async fn fill(
        &self,
        lease: Lease,
        nonces: &[u64],
        is_asked: bool,
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        // The bug fills the nonce behind the jumped one, which a row has.
        let by = u64::from(self.planted == Some(Planted::FillsAnyNonce));
        let nonces: Vec<u64> = nonces.iter().map(|nonce| nonce + by).collect();
        self.inner.fill(lease, &nonces, is_asked).await
    }

    async fn keep(&self, request: &chain::tx::NewTx) -> Result<Created, StoreError> {
        self.inner.keep(request).await
    }

    async fn find(&self, signer: Address, request_id: &str) -> Result<Option<Tx>, StoreError> {
        self.inner.find(signer, request_id).await
    }

    async fn write(&self, lease: Lease, steps: &[TxStep]) -> Result<Vec<Option<Tx>>, StoreError> {
        let mut steps = steps.to_vec();
        steps.iter_mut().for_each(|step| self.bend_step(step));
        let mut rows = self.inner.write(lease, &steps).await?;
        rows.iter_mut().flatten().for_each(|tx| self.bend_row(tx));
        Ok(rows)
    }

    async fn suspend(&self, lease: Lease, reason: &str, about: &str) -> Result<(), StoreError> {
        self.inner.suspend(lease, reason, about).await
    }

    async fn commanded(
        &self,
        lease: Lease,
        command: u64,
        refused: Option<&str>,
    ) -> Result<(), StoreError> {
        self.inner.commanded(lease, command, refused).await
    }
}

/// An endpoint as a process sees it.
#[derive(Clone)]
pub(super) struct Site {
    pub inner: ModelEndpoint,
    pub database: Shared,
    pub keys: Arc<BTreeMap<Address, Wallet>>,
    pub sent: Arc<Mutex<BTreeSet<Bytes>>>,
    pub planted: Option<Planted>,
}

impl Site {
    /// Bytes of the same transaction, signed again at a price of this moment.
    fn sign_again(&self, raw: &Bytes) -> Bytes {
        let tx = ModelTx::decode(raw).expect("a transaction of ours");
        let price = GasPrice { max_fee: tx.max_fee + 1, max_tip: tx.max_tip };
        let unsigned = Unsigned {
            chain_id: tx.chain_id.expect("it has a chain"),
            signer: tx.from,
            nonce: tx.nonce,
            to: tx.to,
            value: tx.value,
            data: tx.data,
            gas: tx.gas,
            price,
            is_legacy: false,
        };
        self.keys[&tx.from].sign(&unsigned).raw
    }

    fn is_older(&self, hash: B256) -> bool {
        let database = self.database.lock();
        let Some((id, number)) = database.attempt(hash) else { return false };
        database.row(id).is_some_and(|row| row.attempts.last().is_some_and(|it| it.number > number))
    }
}

impl Endpoint for Site {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Result<RpcValue, RpcError>> {
        let mut calls = calls.to_vec();
        for call in &mut calls {
            let RpcCall::Send(raw) = call else { continue };
            let is_first = self.sent.lock().insert(raw.clone());
            if self.planted == Some(Planted::SignedAgain) && !is_first {
                *raw = self.sign_again(raw);
            }
            self.database.lock().check_sent([&*raw]);
        }
        let mut answers = self.inner.calls(&calls).await;
        for (call, answer) in calls.iter().zip(&mut answers) {
            match (self.planted, call) {
                (Some(Planted::NewestReceiptOnly), RpcCall::Receipt(hash))
                    if self.is_older(*hash) =>
                {
                    *answer = Ok(RpcValue::Receipt(None));
                }
                (Some(Planted::ForgottenIsTaken), RpcCall::Raw(_)) => {
                    *answer = Ok(RpcValue::Raw(None));
                }
                _ => {}
            }
        }
        answers
    }
}

/// The keys of a process.
#[derive(Clone)]
pub(super) struct Keys {
    pub keys: Arc<BTreeMap<Address, Wallet>>,
    /// The first endpoint, for a bug that sends at once.
    pub site: Site,
    pub planted: Option<Planted>,
    /// So many of the next signatures fail.
    pub away: Arc<Mutex<u32>>,
}

impl Signer for Keys {
    fn addresses(&self) -> Vec<Address> {
        self.keys.keys().copied().collect()
    }

    async fn sign(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        sleep(Duration::from_millis(1)).await;
        {
            let mut away = self.away.lock();
            if *away > 0 {
                *away -= 1;
                return Err(SignError::Away("planned".to_owned()));
            }
        }
        let signed = self.keys[&unsigned.signer].sign(unsigned);
        if self.planted == Some(Planted::SentBeforeStored) {
            drop(self.site.calls(&[RpcCall::Send(signed.raw.clone())]).await);
        }
        Ok(signed)
    }
}
