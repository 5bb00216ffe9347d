//! One endpoint of a pool: its breaker, and its chain as it was seen last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::breaker::Breaker;
use super::look::Seen;
use super::{Endpoint, RpcCall, RpcError, RpcValue};
use crate::options::TxmOptions;

/// The most calls of one batch, by the contract of [`Endpoint`].
pub(super) const BATCH_CALLS_MAX: usize = 100;

/// A question waits for a place no longer than so many calls may take. A busy endpoint that answers
/// is given more time than one call.
const PATIENCE_CALLS: u32 = 4;

/// An answer to one call.
pub(super) type Answer = Result<RpcValue, RpcError>;

/// An endpoint of a pool.
pub(super) struct Member<E> {
    pub(super) endpoint: E,
    breaker: Mutex<Breaker>,
    /// The places of questions: half of the calls under way, so that sends have the others.
    places: Semaphore,
    /// The longest wait for one.
    patience: Duration,
    /// The newest batch of questions. Further ones join it while it waits for a place.
    batch: Mutex<Option<Batch>>,
    /// Changed by the cycle of heads, except for `wanted` and `lacks_hashes`.
    pub(super) chain: Mutex<MemberChain>,
}

/// Questions that go to an endpoint together. Each asker drives it, so that one that is dropped
/// loses no answer of another, and it ends with its last asker.
struct Batch {
    /// `None`: they are under way.
    calls: Arc<Mutex<Option<Vec<RpcCall>>>>,
    answers: WeakShared<BoxFuture<'static, Arc<[Answer]>>>,
}

/// The chain of an endpoint.
#[derive(Default)]
pub(super) struct MemberChain {
    /// The last view that was used. It outlives cycles in which the endpoint is set aside.
    pub(super) seen: Arc<Seen>,
    /// Whether its chain id and block 0 are those of this chain.
    pub(super) is_bound: bool,
    /// Heights below the view that a receipt named. The next cycle reads them.
    pub(super) wanted: BTreeSet<u64>,
    /// Whether it refuses the hash of a block in place of its number (EIP-1898).
    pub(super) lacks_hashes: bool,
}

impl<E: Endpoint> Member<E> {
    pub(super) fn new(endpoint: E, options: &TxmOptions) -> Member<E> {
        let places = (options.calls_in_flight_max / 2).clamp(1, Semaphore::MAX_PERMITS);
        Member {
            endpoint,
            breaker: Mutex::new(Breaker::new(options.poll)),
            places: Semaphore::new(places),
            patience: options.rpc_timeout * PATIENCE_CALLS,
            batch: Mutex::default(),
            chain: Mutex::default(),
        }
    }

    /// Asks, in batches; `None`: the endpoint is left out for now.
    pub(super) async fn ask(self: &Arc<Self>, calls: &[RpcCall]) -> Option<Vec<Answer>> {
        let tries = {
            let mut breaker = self.breaker.lock();
            if !breaker.admit(Instant::now()) {
                return None;
            }
            breaker.is_shut()
        };
        let mut answers = Vec::with_capacity(calls.len());
        for part in calls.chunks(BATCH_CALLS_MAX) {
            if part.iter().all(|call| matches!(call, RpcCall::Block(_))) {
                // Heads wait for no other question: without them the node gives its signers back.
                answers.extend(self.call(part).await);
            } else if part.iter().all(RpcCall::is_light) {
                let (batch, first) = self.join(part, tries);
                answers.extend_from_slice(&batch.await[first..first + part.len()]);
            } else {
                let place = self.place(tries).await;
                answers.extend(self.call_in(place, part).await);
            }
        }
        Some(answers)
    }

    /// Asks one thing.
    pub(super) async fn ask_one(self: &Arc<Self>, call: RpcCall) -> Option<Answer> {
        self.ask(&[call]).await?.pop()
    }

    /// Puts questions in the batch that waits for a place, or in a new one. Returns the answers to
    /// the whole batch, and the index of the first of these.
    ///
    /// The questions of all signers that wait for a place form the next batch. One by one, the
    /// questions of many signers take longer than the time between two heads.
    fn join(
        self: &Arc<Self>,
        part: &[RpcCall],
        tries: bool,
    ) -> (Shared<BoxFuture<'static, Arc<[Answer]>>>, usize) {
        let mut newest = self.batch.lock();
        if let Some(batch) = &*newest
            && let Some(answers) = batch.answers.upgrade()
            && let Some(calls) = &mut *batch.calls.lock()
            && calls.len() + part.len() <= BATCH_CALLS_MAX
        {
            let first = calls.len();
            calls.extend_from_slice(part);
            return (answers, first);
        }
        let calls = Arc::new(Mutex::new(Some(part.to_vec())));
        let (member, waiting) = (Arc::clone(self), Arc::clone(&calls));
        let answers = async move {
            let place = member.place(tries).await;
            let calls = waiting.lock().take().unwrap_or_default();
            member.call_in(place, &calls).await.into()
        };
        let answers = answers.boxed().shared();
        *newest = answers.downgrade().map(|answers| Batch { calls, answers });
        (answers, 0)
    }

    /// A place for questions; `None`: the breaker has opened since they were admitted, so those
    /// that wait do not each take the time of a call; or slow questions hold all places for too
    /// long, and another endpoint is asked. `tries`: they are to try an open one.
    async fn place(&self, tries: bool) -> Option<SemaphorePermit<'_>> {
        let place = timeout(self.patience, self.places.acquire()).await.ok()?.ok()?;
        (tries || !self.is_shut()).then_some(place)
    }

    /// Makes calls if there is a place for them.
    async fn call_in(&self, place: Option<SemaphorePermit<'_>>, calls: &[RpcCall]) -> Vec<Answer> {
        match place {
            Some(_) => self.call(calls).await,
            None => vec![Err(RpcError::Unknown("it does not answer".to_owned())); calls.len()],
        }
    }

    /// Makes calls, the breaker open or not. It always has one answer a call.
    pub(super) async fn call(&self, calls: &[RpcCall]) -> Vec<Answer> {
        let mut answers = self.endpoint.calls(calls).await;
        let missing = || Err(RpcError::Unknown("no answer to this call".to_owned()));
        answers.resize_with(calls.len(), missing);
        let silent = answers.iter().all(|answer| matches!(answer, Err(RpcError::Unknown(_))));
        let mut breaker = self.breaker.lock();
        if silent {
            breaker.failed(Instant::now());
        } else {
            breaker.answered();
        }
        answers
    }

    /// The last view that was used.
    pub(super) fn seen(&self) -> Arc<Seen> {
        self.chain.lock().seen.clone()
    }

    /// Asks the next cycle for a block that is below the view.
    pub(super) fn want(&self, seen: &Seen, number: u64) {
        let lowest = seen.view.from(0, 1).next().map(|block| block.number);
        if lowest.is_some_and(|lowest| number < lowest) {
            self.chain.lock().wanted.insert(number);
        }
    }

    /// Whether its breaker is open: its last answers did not come.
    pub(super) fn is_shut(&self) -> bool {
        self.breaker.lock().is_shut()
    }

    pub(super) fn is_liar(&self) -> bool {
        self.breaker.lock().is_liar(Instant::now())
    }

    /// Sets the endpoint aside for a lie.
    pub(super) fn set_aside(&self) {
        self.breaker.lock().lied(Instant::now());
        self.disagrees("lie");
    }

    /// Counts an answer that does not fit those of the other endpoints or of earlier.
    pub(super) fn disagrees(&self, about: &'static str) {
        let endpoint = self.endpoint.name().to_owned();
        metrics::counter!("ubscore_endpoint_disagrees_total", "endpoint" => endpoint, "about" => about)
            .increment(1);
    }
}
