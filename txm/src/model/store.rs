//! A model of the store: several processes on one database in memory, with the answers, the locks
//! and the clock of the real one, and its faults on demand.
//!
//! It is strict. A change that a law of the manager forbids is a panic that names the law, also in
//! places where the real store would only refuse. Its time is tokio's, so a paused clock drives it.
//!
//! Each call waits for the way there, carries out its one statement at an instant, and waits for
//! the way back. A future that is dropped on the way there has done nothing; on the way back it
//! has.

mod base;
mod judge;
mod statements;

use std::collections::VecDeque;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes};
use chain::decide::TxStep;
use chain::state::TxState;
use chain::tx::{NewTx, SubState, Tx, TxId};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep};

use crate::model::Draw;
use crate::news::News;
use crate::store::{
    Acquired, Arrived, CommandWish, Created, Lease, Ready, SignerBook, SignerOwner, StoreError,
    TxStore, Wanting,
};
use base::Base;
pub use base::CommandEnd;

/// A call of the store, as faults name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `acquire`.
    Acquire,
    /// `owner_of`.
    OwnerOf,
    /// `renew`.
    Renew,
    /// `leave`.
    Leave,
    /// `release`.
    Release,
    /// `wanting`.
    Wanting,
    /// `open`.
    Open,
    /// `arrived`.
    Arrived,
    /// `create`.
    Create,
    /// `number`.
    Number,
    /// `fill`.
    Fill,
    /// `keep`.
    Keep,
    /// `find`.
    Find,
    /// `write`.
    Write,
    /// `suspend`.
    Suspend,
    /// `commanded`.
    Commanded,
}

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// It is done, and the answer is lost.
    AnswerLost,
    /// It is lost on the way, and its sender hears nothing.
    RequestLost,
    /// It is given up, and arrives so much later.
    Late(Duration),
    /// The store refuses before it does anything.
    Refused,
    /// The way there takes so long.
    Slow(Duration),
}

/// A bug that a simulation plants in the database. Its judge must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreBug {
    /// The fence lets every process pass.
    NoFence,
    /// The fence reads a snapshot without a lock: a lease that was taken over a moment ago passes.
    SnapshotFence,
    /// A process is known by its name: its successor has its lease and its token.
    NameIsOwner,
    /// A row that has its nonce is numbered again.
    NumbersAgain,
    /// A step is written over any version.
    NoVersion,
    /// A nonce is filled without a look for its row.
    FillsAnyNonce,
}

/// A passage of a row, as its history has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPassage {
    /// The version behind it.
    pub version: u64,
    /// The state behind it.
    pub state: TxState,
    /// More about that.
    pub sub: Option<SubState>,
    /// The process that wrote it.
    pub incarnation: u64,
    /// Its token; `None`: it was not fenced.
    pub token: Option<u64>,
}

/// A database, for any number of processes. A clone is the same database.
#[derive(Clone)]
pub struct ModelDatabase {
    base: Arc<Mutex<Base>>,
}

impl ModelDatabase {
    /// An empty database with these settings of leases.
    pub fn new(lease_duration: Duration, lease_skew: Duration) -> ModelDatabase {
        ModelDatabase { base: Arc::new(Mutex::new(Base::new(lease_duration, lease_skew))) }
    }

    /// Adds a signer with its next nonce.
    pub fn add_signer(&self, signer: Address, cursor: u64) {
        self.base.lock().add_signer(signer, cursor);
    }

    /// Starts a process: a new incarnation, also of a name that was there.
    pub fn start(&self, node: &str) -> ModelStore {
        let me = self.base.lock().add_node(node);
        let (base, faults) = (Arc::clone(&self.base), Arc::default());
        ModelStore { base, me, faults, news: Arc::default() }
    }

    /// Writes a command, as a node's listener does. Returns its number.
    pub fn command(&self, signer: Address, tx: Option<TxId>, wish: CommandWish) -> u64 {
        self.base.lock().add_command(signer, tx, wish)
    }

    /// The end of a command; `None`: it is open.
    pub fn command_end(&self, id: u64) -> Option<CommandEnd> {
        self.base.lock().command_end(id)
    }

    /// Suspends a signer as a person does.
    pub fn suspend(&self, signer: Address, reason: &str, actor: &str) {
        self.base.lock().suspend(signer, reason, actor);
    }

    /// Lifts a suspension.
    pub fn resume(&self, signer: Address, reason: &str) {
        self.base.lock().resume(signer, reason);
    }

    /// The reasons for which a signer is suspended.
    pub fn suspensions(&self, signer: Address) -> Vec<String> {
        self.base.lock().reasons(signer)
    }

    /// The live owner of a signer: the name of the process, its incarnation, and the token.
    pub fn owner(&self, signer: Address) -> Option<(String, u64, u64)> {
        self.base.lock().owner(signer)
    }

    /// The last token of a signer; 0: it had no owner.
    pub fn token(&self, signer: Address) -> u64 {
        self.base.lock().token(signer)
    }

    /// The next nonce of a signer; 0: it is unknown.
    pub fn cursor(&self, signer: Address) -> u64 {
        self.base.lock().cursor(signer)
    }

    /// All rows, in the order in which they were made.
    pub fn rows(&self) -> Vec<Tx> {
        self.base.lock().rows()
    }

    /// A row.
    pub fn row(&self, id: TxId) -> Option<Tx> {
        self.base.lock().row(id)
    }

    /// The passages of a row, the first one first.
    pub fn passages(&self, id: TxId) -> Vec<ModelPassage> {
        self.base.lock().passages(id)
    }

    /// The nonces that jumps passed over, of a signer, without those that have a row.
    pub fn jumped(&self, signer: Address) -> Vec<u64> {
        self.base.lock().jumped(signer)
    }

    /// Plants a bug.
    pub fn plant(&self, bug: StoreBug) {
        self.base.lock().plant(bug);
    }

    /// How many fenced calls were refused.
    pub fn fenced_total(&self) -> u64 {
        self.base.lock().fenced_total()
    }

    /// Steps the store's clock, as an administrator does.
    pub fn step_clock(&self, seconds: i64) {
        self.base.lock().step_clock(seconds);
    }

    /// A copy that shares nothing with this database: a backup.
    #[must_use]
    pub fn backup(&self) -> ModelDatabase {
        ModelDatabase { base: Arc::new(Mutex::new(self.base.lock().backup())) }
    }

    /// Falls back to a backup under its running processes. Their leases stay.
    pub fn restore(&self, older: &ModelDatabase) {
        let older = older.base.lock().backup();
        self.base.lock().restore(older);
    }

    /// Admits attempts that are no transaction of the chain, for signers that only pretend.
    pub fn admit_any_bytes(&self) {
        self.base.lock().admit_any_bytes();
    }

    /// Judges the whole of it by CL1 to CL7.
    ///
    /// # Panics
    /// If a law is broken, with its name.
    pub fn check(&self) {
        self.base.lock().check();
    }

    /// Judges bytes that left: each is a stored attempt (CL3).
    ///
    /// # Panics
    /// If one is not.
    pub fn check_sent<'a>(&self, raws: impl IntoIterator<Item = &'a Bytes>) {
        let base = self.base.lock();
        for raw in raws {
            base.check_sent(raw);
        }
    }

    /// The row and number of the attempt with this hash.
    pub fn attempt(&self, hash: B256) -> Option<(TxId, u32)> {
        self.base.lock().attempt(hash)
    }
}

/// The faults of one process's way to the database.
#[derive(Default)]
struct Faults {
    planned: VecDeque<(StoreCall, StoreFault)>,
    is_cut: bool,
    latency: Duration,
    /// The numbers that decide, and the faults of a thousand calls.
    random: Option<(Draw, u64)>,
    /// The calls so far.
    asked: Vec<StoreCall>,
}

/// The store of one process.
#[derive(Clone)]
pub struct ModelStore {
    base: Arc<Mutex<Base>>,
    me: u64,
    faults: Arc<Mutex<Faults>>,
    /// The news that a test tells; by default none arrive.
    news: Arc<News>,
}

impl ModelStore {
    /// The number of this process.
    pub fn incarnation(&self) -> u64 {
        self.me
    }

    /// The next call of this kind meets a fault. Several are met in their order.
    pub fn fail(&self, call: StoreCall, fault: StoreFault) {
        self.faults.lock().planned.push_back((call, fault));
    }

    /// Cuts this process off from the database, or ends that. A call then is lost on its way.
    pub fn cut(&self, is_cut: bool) {
        self.faults.lock().is_cut = is_cut;
    }

    /// Each way, there and back, takes so long.
    pub fn delay(&self, latency: Duration) {
        self.faults.lock().latency = latency;
    }

    /// How many calls of this kind were made.
    pub fn asked(&self, call: StoreCall) -> usize {
        self.faults.lock().asked.iter().filter(|asked| **asked == call).count()
    }

    /// Of a thousand calls so many meet a fault, drawn from a seed.
    pub fn shake(&self, seed: u64, per_thousand: u64) {
        self.faults.lock().random = Some((Draw::new(seed), per_thousand));
    }

    /// Carries out a statement, with the fault of this call if there is one.
    async fn call<T: Send>(
        &self,
        call: StoreCall,
        statement: impl FnOnce(&mut Base, u64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (fault, latency) = self.faults.lock().next(call);
        // Also without latency, a call is a moment in which others go on.
        sleep(latency).await;
        let lost = || StoreError::Unknown("the connection broke".to_owned());
        let me = self.me;
        match fault {
            Some(StoreFault::Refused) => {
                return Err(StoreError::Away("the server is starting".to_owned()));
            }
            Some(StoreFault::RequestLost) => {
                sleep(TIMEOUT).await;
                return Err(lost());
            }
            Some(StoreFault::Late(time)) => {
                let due = Instant::now() + time;
                let late = move |base: &mut Base| drop(statement(base, me));
                self.base.lock().arrive_later(due, Box::new(late));
                return Err(lost());
            }
            Some(StoreFault::Slow(time)) => sleep(time).await,
            Some(StoreFault::AnswerLost) | None => {}
        }
        let answer = {
            let mut base = self.base.lock();
            base.arrive(Instant::now());
            statement(&mut base, me)
        };
        sleep(latency).await;
        match fault {
            Some(StoreFault::AnswerLost) => Err(lost()),
            _ => answer,
        }
    }
}

/// The time behind which a process gives up a call that has no answer.
const TIMEOUT: Duration = Duration::from_millis(500);

impl Faults {
    fn next(&mut self, call: StoreCall) -> (Option<StoreFault>, Duration) {
        self.asked.push(call);
        if self.is_cut {
            return (Some(StoreFault::RequestLost), self.latency);
        }
        let planned = self.planned.iter().position(|(of, _)| *of == call);
        let planned = planned.and_then(|at| self.planned.remove(at)).map(|(_, fault)| fault);
        (planned.or_else(|| self.drawn()), self.latency)
    }

    fn drawn(&mut self) -> Option<StoreFault> {
        let (draw, per_thousand) = self.random.as_mut()?;
        let is_fault = draw.below(1_000) < *per_thousand;
        let (kind, time) = (draw.below(5), Duration::from_millis(draw.below(3_000)));
        let faults = [
            StoreFault::AnswerLost,
            StoreFault::RequestLost,
            StoreFault::Late(time),
            StoreFault::Refused,
            StoreFault::Slow(time),
        ];
        faults.into_iter().nth(usize::try_from(kind).ok()?).filter(|_| is_fault)
    }
}

impl TxStore for ModelStore {
    async fn acquire(&self, signer: Address) -> Result<Acquired, StoreError> {
        self.call(StoreCall::Acquire, move |base, me| Ok(base.acquire(signer, me))).await
    }

    async fn owner_of(&self, signer: Address) -> Result<SignerOwner, StoreError> {
        self.call(StoreCall::OwnerOf, move |base, _| Ok(base.owner_of(signer))).await
    }

    async fn renew(&self) -> Result<Vec<Lease>, StoreError> {
        self.call(StoreCall::Renew, |base, me| Ok(base.renew(me))).await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.call(StoreCall::Leave, |base, me| {
            base.leave(me);
            Ok(())
        })
        .await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.call(StoreCall::Release, move |base, me| base.release(lease, me)).await
    }

    async fn wanting(&self, most: u32) -> Result<Wanting, StoreError> {
        self.call(StoreCall::Wanting, move |base, me| Ok(base.wanting(most, me))).await
    }

    async fn open(&self, lease: Lease) -> Result<SignerBook, StoreError> {
        self.call(StoreCall::Open, move |base, me| base.open(lease, me)).await
    }

    async fn arrived(&self, leases: &[Lease], known: &[TxId]) -> Result<Arrived, StoreError> {
        let (leases, known) = (leases.to_vec(), known.to_vec());
        self.call(StoreCall::Arrived, move |base, _| Ok(base.arrived(&leases, &known))).await
    }

    fn news(&self) -> Arc<News> {
        Arc::clone(&self.news)
    }

    async fn create(
        &self,
        lease: Lease,
        floor: u64,
        requests: &[NewTx],
    ) -> Result<Vec<Created>, StoreError> {
        let requests = requests.to_vec();
        let create = move |base: &mut Base, me| base.create(lease, me, floor, &requests);
        self.call(StoreCall::Create, create).await
    }

    async fn number(
        &self,
        lease: Lease,
        floor: u64,
        ready: &[Ready],
    ) -> Result<Vec<Tx>, StoreError> {
        let ready = ready.to_vec();
        let number = move |base: &mut Base, me| base.number(lease, me, floor, &ready);
        self.call(StoreCall::Number, number).await
    }

    async fn fill(
        &self,
        lease: Lease,
        nonces: &[u64],
        is_asked: bool,
    ) -> Result<Vec<Option<Tx>>, StoreError> {
        let nonces = nonces.to_vec();
        let fill = move |base: &mut Base, me| base.fill(lease, me, &nonces, is_asked);
        self.call(StoreCall::Fill, fill).await
    }

    async fn keep(&self, request: &NewTx) -> Result<Created, StoreError> {
        let request = request.clone();
        self.call(StoreCall::Keep, move |base, me| base.keep(&request, me)).await
    }

    async fn find(&self, signer: Address, request_id: &str) -> Result<Option<Tx>, StoreError> {
        let request_id = request_id.to_owned();
        self.call(StoreCall::Find, move |base, _| Ok(base.find(signer, &request_id))).await
    }

    async fn write(&self, lease: Lease, steps: &[TxStep]) -> Result<Vec<Option<Tx>>, StoreError> {
        let steps = steps.to_vec();
        self.call(StoreCall::Write, move |base, me| base.write(lease, me, &steps)).await
    }

    async fn suspend(&self, lease: Lease, reason: &str, about: &str) -> Result<(), StoreError> {
        let _about = about;
        let reason = reason.to_owned();
        let suspend = move |base: &mut Base, me| base.suspend_fenced(lease, me, &reason);
        self.call(StoreCall::Suspend, suspend).await
    }

    async fn commanded(
        &self,
        lease: Lease,
        command: u64,
        refused: Option<&str>,
    ) -> Result<(), StoreError> {
        let refused = refused.map(str::to_owned);
        let done = move |base: &mut Base, me| base.commanded(lease, me, command, refused);
        self.call(StoreCall::Commanded, done).await
    }
}
