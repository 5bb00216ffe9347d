//! The coordinator pool. Its workers own shards of accounts, and drive the state machine of each
//! transfer in PostgreSQL, independent of the request that began it.
//!
//! [`step`] decides, [`worker`] acts, [`watermark`] allows UBSCore to forget, [`hand`] counts the
//! transfers under way. A transfer lives in the worker of its user's shard. So no two workers run a
//! step of one transfer, and all operations of a user have one order.

pub mod balances;
pub mod hand;
mod numbers;
mod options;
mod parts;
pub mod recharges;
mod request;
pub mod step;
pub mod watermark;
pub mod worker;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Span, debug_span, warn};
use xxhash_rust::xxh3::xxh3_64;

use self::hand::{Hands, InHand, LastError};
use self::numbers::Numbers;
pub use self::numbers::TransactionNumbers;
pub use self::parts::{Options, Parts};
pub use self::request::{Accepted, ExternalDecided, Rejection, Request, Submitted};
use self::step::{Effect, Happened, Row, decide};
use self::worker::Worker;
use self::worker::inbox::{Envelope, Look, Message};
use self::worker::reply::{Caller, Client, OperatorAction, ReplyTo};
use crate::adapters::{Adapter, Ask, Outcome, Reason, Route};
use crate::alert::{Alert, alert_about};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::gate::CleanRounds;
use crate::postgres::store::{Call, External, Reply, Sought, Store, Transfer, TransitionPath};
use crate::postgres::watermark::Open;
use crate::recharge::act::{RechargeCall, RechargeOutcome};
use crate::task::Tasks;
use crate::telemetry;
use domain::account::{AccountStatus, UserId};
use domain::code::Code;
use domain::hold::HoldOrder;
use domain::shortage::{Capacity, Shortage, Vacancy};
use domain::transfer::{Cid, Decision, Direction, Duty, Intent, Op, Participant, ReqId, State};

/// The pool, as HTTP and the other rooms see it.
pub struct Coordinator<T, F> {
    inboxes: Vec<mpsc::Sender<Envelope>>,
    spot: Arc<T>,
    funding: Arc<F>,
    clock: Arc<dyn Clock>,
    entropy: Mutex<Box<dyn Entropy>>,
    numbers: Arc<Numbers>,
    hands: Arc<Hands>,
    fuse: bool,
    accept_wait: Duration,
    capacity: Arc<dyn Fn() -> Capacity + Send + Sync>,
    vacancy: Arc<dyn Fn() -> Vacancy + Send + Sync>,
    kept: usize,
    clean: Option<Arc<CleanRounds>>,
    clean_wait: Duration,
    /// Dropped with the coordinator, which ends the task that raises the watermark.
    open: watch::Sender<()>,
}

/// The result of [`Coordinator::settled`].
#[derive(Clone, Debug)]
pub struct Settled {
    /// With the state that UBSCore's record proves.
    pub transfer: Transfer,
    /// Spot has paid, though the state does not show it yet.
    pub withdrawn: bool,
}

/// UBSCore did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("UBSCore did not return the recorded outcome")]
pub struct Silent;

/// Requests that may be past the capacity check and not yet counted: about one a thread.
const ADMISSION_MARGIN: usize = 16;
/// Between two checks whether all workers have read their shards.
const RECOVERED_LOOK: Duration = Duration::from_millis(5);

impl<T: Adapter, F: Adapter> Coordinator<T, F> {
    /// Starts one worker per store. `entropy`: one for names, and one a worker for its jitter.
    pub fn start<S: Store>(
        parts: Parts<T, F>,
        stores: Vec<S>,
        mut entropy: impl FnMut() -> Box<dyn Entropy>,
        tasks: &mut Tasks,
    ) -> Coordinator<T, F> {
        let shards = u32::try_from(stores.len()).expect("at most 64");
        // One more for transactions. It holds nothing back until it is taken.
        let numbers = Arc::new(Numbers::new(parts.incarnation, shards + 1, parts.watermark));
        numbers.publish(stores.len(), u64::MAX, 0);
        numbers.publish_old(stores.len(), u64::MAX, Vec::new());
        let parts = Arc::new(parts);
        for state in State::ALL.into_iter().filter(|state| state.is_terminal()) {
            for direction in Direction::ALL {
                telemetry::expect_transfers(direction.name(), state.name());
            }
        }
        let hands = Arc::new(Hands::new(stores.len()));
        let mut inboxes = Vec::new();
        for (shard, store) in stores.into_iter().enumerate() {
            let (sender, receiver) = mpsc::channel(parts.options.queue_max);
            inboxes.push(sender);
            let (parts, numbers) = (Arc::clone(&parts), Arc::clone(&numbers));
            let hands = Arc::clone(&hands);
            let worker = Worker::new(shard, shards, parts, numbers, hands, entropy());
            tasks.run("worker", worker.run(store, receiver));
        }
        Coordinator {
            inboxes,
            spot: Arc::clone(&parts.spot),
            funding: Arc::clone(&parts.funding),
            clock: Arc::clone(&parts.clock),
            entropy: Mutex::new(entropy()),
            numbers,
            hands,
            fuse: parts.options.fuse,
            accept_wait: parts.options.accept_wait,
            capacity: Arc::clone(&parts.capacity),
            vacancy: Arc::clone(&parts.vacancy),
            kept: parts.options.kept,
            clean: parts.clean.clone(),
            clean_wait: parts.options.clean_wait,
            open: watch::channel(()).0,
        }
    }

    /// Sends a transfer to its worker. Returns at once, before the accept is decided.
    ///
    /// # Errors
    /// A [`Rejection`]: nothing was sent.
    pub async fn submit(&self, request: Request) -> Result<Submitted, Rejection> {
        let Request { user, cid, checked, fingerprint, reservation, pauses } = request;
        let req_id = ReqId::generate(self.clock.now_ns(), self.entropy.lock().u128());
        let intent = Intent {
            req_id,
            cid,
            user,
            asset: checked.asset.id,
            amount: checked.amount,
            direction: checked.direction,
            // Set by the worker, in the order of its accepts.
            order_number: 0,
        };
        // A caller may bypass the API, so both participants check their part.
        let ask = Ask { op: Op::Withdraw, intent };
        self.funding.check(&ask)?;
        self.spot.check(&ask)?;
        self.admit(&ask.intent).await?;
        let intent = ask.intent;
        let (caller, reply) = Caller::new();
        let (quiet, woken) = oneshot::channel();
        let client = Client { caller, quiet, pauses };
        // A part of the request, which lasts as long as the transfer is in hand.
        let span = debug_span!("transfer", %req_id, direction = intent.direction.name());
        let transition = self.first_path(intent.direction);
        let call = Box::new(Call::Accept { intent, fingerprint, transition });
        let message = Message::Call { call, reply_to: ReplyTo::Accept(client), reservation };
        self.send_in(span, worker::shard_of(user, self.inboxes.len()), message)?;
        Ok(Submitted { req_id, reply, quiet: woken })
    }

    /// The path of a new transfer in the commit that accepts it.
    fn first_path(&self, direction: Direction) -> TransitionPath {
        let state = State::Init;
        let row = Row { direction, state, attempt: 0, fuse: self.fuse, resolve: false };
        match decide(row, Happened::Submitted, route::<T, F>).1.pop() {
            Some(Effect::Accept(transition)) => transition,
            other => unreachable!("{other:?}: a submitted transfer is accepted"),
        }
    }

    /// Checks that UBSCore has a place for every outcome of this transfer. An accepted transfer
    /// must reach its end, so the check comes before the accept.
    ///
    /// A refusal by UBSCore takes a place in the outcome map and costs its user nothing. So the
    /// last part of the map is kept back: there UBSCore is asked beforehand whether it would
    /// refuse, and such a transfer is not accepted. The same question finds out whether a deposit
    /// has its account and balance when those tables are nearly full.
    ///
    /// # Errors
    /// A [`Rejection`] with the table that is full.
    async fn admit(&self, intent: &Intent) -> Result<(), Rejection> {
        let taken = self.waiting_or_under_way() + ADMISSION_MARGIN;
        let Vacancy { outcomes, accounts, balances } = (self.vacancy)();
        // Each transfer may take two places.
        let kept = 2 * taken + self.kept >= outcomes;
        let (op, crowded) = match intent.direction {
            Direction::FundingToSpot => (Op::Deposit, taken >= accounts.min(balances)),
            Direction::SpotToFunding => (Op::Withdraw, false),
        };
        if kept || crowded {
            // On the heap: it is long, and seldom needed.
            match Box::pin(self.spot.foresee(&Ask { op, intent: intent.clone() })).await {
                Ok(()) => {}
                Err(Code::Overloaded) if crowded => {
                    let table =
                        if accounts <= balances { Shortage::Accounts } else { Shortage::Balances };
                    alert_shortage(table);
                    return Err(Rejection::overloaded(table));
                }
                // Other transfers are still accepted, so there is no alert.
                Err(_) if kept => return Err(Rejection::overloaded(Shortage::Outcomes)),
                // Its outcome has a place, and the money comes back.
                Err(_) => {}
            }
        }
        // Checked last: other requests may have come while this one waited for its answer.
        self.shortage().map_or(Ok(()), |shortage| {
            alert_shortage(shortage);
            Err(Rejection::overloaded(shortage))
        })
    }

    /// Moves money between Funding and the outside, once per idem_key.
    ///
    /// # Errors
    /// A [`Rejection`]; if it is unknown, the same call again returns the decision.
    /// [`Code::WithdrawalHeld`]: no clean round of the audit that began after the user's last
    /// movement has ended in time, and nothing has happened.
    pub async fn external(&self, external: External) -> Result<ExternalDecided, Rejection> {
        // A caller may bypass the API.
        if !external.op.is_external() || Cid::new(&external.idem_key).is_none() {
            return Err(Rejection::of(Code::InvalidRequest));
        }
        let Some(clean) = self.clean.as_ref().filter(|_| external.op.takes()) else {
            return self.external_once(external).await;
        };
        let mut late = self.clock.sleep(self.clean_wait);
        loop {
            // Subscribed before the request for a round, so that no round is missed.
            let mut ended = clean.watch();
            match self.external_once(external.clone()).await {
                Err(held) if held.code == Code::WithdrawalHeld => clean.want(),
                answered => return answered,
            }
            if let Either::Right(_) = select(pin!(ended.changed()), &mut late).await {
                return Err(Rejection::of(Code::WithdrawalHeld));
            }
        }
    }

    /// The same, without waiting for a round of the audit.
    async fn external_once(&self, external: External) -> Result<ExternalDecided, Rejection> {
        let (caller, receiver) = Caller::new();
        let user = external.user;
        // Without room for its record a new one waits, and a repeat gets the earlier decision.
        let call = match self.shortage() {
            None => Call::External(external),
            Some(_) => Call::FindExternal(external),
        };
        self.call(user, call, ReplyTo::External(caller))?;
        let decided = receiver.await.unwrap_or_else(|_| Err(Rejection::unknown()));
        decided.map_err(|rejection| match (rejection.code, rejection.shortage) {
            (Code::Overloaded, None) => {
                Rejection::overloaded(self.shortage().unwrap_or(Shortage::Worker))
            }
            _ => rejection,
        })
    }

    /// Acts on a hold of Funding, in the user's own worker. The act is decided once, and is durable
    /// when this returns: with money from or to the outside in UBSCore's log too. The caller keeps
    /// the watermark below the order number until the hold has ended.
    ///
    /// # Errors
    /// A [`Rejection`]; if it is unknown, the same call again returns the decision. Without that
    /// nothing was done, and nothing will be. While halted, only a recorded decision is returned.
    pub async fn hold(&self, order: HoldOrder) -> Result<Decision, Rejection> {
        let is_named = order.act.outside() == (0, 0)
            || Cid::of_operation(&order.key.deposit())
                .and(Cid::of_operation(&order.key.withdrawal()))
                .is_some();
        if order.order_number == 0 || !order.act.fits() || !is_named {
            return Err(Rejection::of(Code::InvalidRequest));
        }
        let (caller, receiver) = Caller::new();
        self.call(order.user, Call::Hold(order), ReplyTo::Store(caller))?;
        match receiver.await.unwrap_or_else(|_| Err(Rejection::unknown()))? {
            Reply::Hold(decision) => Ok(decision),
            Reply::Settled(_) => Ok(Decision::Success),
            // Halted: it was only looked for.
            Reply::Found(None) => Err(Rejection::of(Code::ServiceHalted)),
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Acts on a recharge, in the worker of its user. The outcome is durable when this returns, and
    /// a credit is in UBSCore's log.
    ///
    /// # Errors
    /// A [`Rejection`]; if it is unknown, the same call again returns the outcome.
    pub async fn recharge(&self, call: RechargeCall) -> Result<RechargeOutcome, Rejection> {
        let workers = self.inboxes.len();
        let worker = match (call.user, call.payment()) {
            (Some(user), _) => worker::shard_of(user, workers),
            // One worker for each payment without an order, so that two of them never meet.
            (None, key) => usize::try_from(hash_of(&key) % workers as u64).expect("a worker"),
        };
        let (caller, receiver) = Caller::new();
        let call = Box::new(Call::Recharge(Box::new(call)));
        let reply_to = ReplyTo::Store(caller);
        self.send_to(worker, Message::Call { call, reply_to, reservation: None })?;
        match receiver.await.unwrap_or_else(|_| Err(Rejection::unknown()))? {
            Reply::Recharge(reply) => Ok(reply.outcome),
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Sets a Funding account's status. Once answered it holds for every later withdraw.
    ///
    /// # Errors
    /// A [`Rejection`]; if it is unknown, the same call again is harmless.
    pub async fn set_funding_status(
        &self,
        user: UserId,
        status: AccountStatus,
        actor: String,
        reason: String,
    ) -> Result<(), Rejection> {
        let (caller, receiver) = Caller::new();
        let call = Call::SetFundingStatus { user, status, actor, reason };
        self.call(user, call, ReplyTo::Store(caller))?;
        match receiver.await.unwrap_or_else(|_| Err(Rejection::unknown()))? {
            Reply::Done => Ok(()),
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// The transfer of this user's cid, including every accept that was sent before this call.
    ///
    /// # Errors
    /// A [`Rejection`].
    pub async fn find_cid(&self, user: UserId, cid: Cid) -> Result<Option<Transfer>, Rejection> {
        let (caller, receiver) = Caller::new();
        self.call(user, Call::Find(Sought::Cid(user, cid)), ReplyTo::Store(caller))?;
        match receiver.await.unwrap_or_else(|_| Err(Rejection::of(Code::SystemError)))? {
            Reply::Found(found) => Ok(found.map(|transfer| *transfer)),
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Has a worker commit behind everything that PostgreSQL holds now. A start misses that flight
    /// if PostgreSQL has gone back behind it, so an operator's write before it is not lost unseen.
    /// Some workers may be held up; the first one to commit is enough. If none does, that write
    /// stands all the same, and only this proof of it is missing.
    pub async fn cover(&self) {
        let workers = self.inboxes.len();
        let mut users = (1..).filter_map(UserId::new);
        let mut looks = (0..workers)
            .map(|worker| {
                let user = users.find(|user| worker::shard_of(*user, workers) == worker);
                self.find_cid(user.expect("every worker has users"), Cid::new("-").expect("short"))
            })
            .collect::<FuturesUnordered<_>>();
        while let Some(looked) = looks.next().await {
            match looked {
                Ok(_) => return,
                Err(rejection) => warn!(?rejection, "a worker could not commit"),
            }
        }
    }

    /// Whether an accept with this cid was sent and may still be committed. If not, a later read of
    /// PostgreSQL finds every transfer that was accepted with the cid.
    ///
    /// # Errors
    /// A [`Rejection`]: the answer is unknown.
    pub async fn is_undecided(&self, user: UserId, cid: Cid) -> Result<bool, Rejection> {
        let (answer_to, receiver) = oneshot::channel();
        self.send(user, Message::Look(Look::IsUndecided { user, cid, answer_to }))?;
        receiver.await.map_err(|_| Rejection::of(Code::SystemError))
    }

    /// The last error of a transfer in hand since its last transition; `None` if there was none.
    pub fn last_error(&self, intent: &Intent) -> Option<LastError> {
        let worker = worker::shard_of(intent.user, self.inboxes.len());
        self.hands.last_error(worker, intent.order_number)
    }

    /// Retries a transfer of this user at once, as for the first time. Returns its state and its
    /// progress.
    ///
    /// # Errors
    /// A [`Rejection`]: the next try comes at its usual time.
    pub async fn retry(
        &self,
        user: UserId,
        req_id: ReqId,
    ) -> Result<watch::Receiver<Transfer>, Rejection> {
        self.attend(user, req_id, OperatorAction::Retry).await
    }

    /// Ends the wait for the decision of a transfer. A recorded decision counts; otherwise a
    /// refusal with [`Code::ResolvedByOperator`] is recorded for ever. Returns its state and its
    /// progress. A repeat has the same answer, also if nothing is left to resolve.
    ///
    /// # Errors
    /// A [`Rejection`]: the transfer goes on as before, unless the code is unknown.
    pub async fn resolve(
        &self,
        user: UserId,
        req_id: ReqId,
    ) -> Result<watch::Receiver<Transfer>, Rejection> {
        self.attend(user, req_id, OperatorAction::Resolve).await
    }

    async fn attend(
        &self,
        user: UserId,
        req_id: ReqId,
        action: OperatorAction,
    ) -> Result<watch::Receiver<Transfer>, Rejection> {
        let (caller, receiver) = Caller::new();
        let call = Call::Find(Sought::ReqId(req_id));
        self.call(user, call, ReplyTo::Attend(action, caller))?;
        receiver.await.unwrap_or_else(|_| Err(Rejection::unknown()))
    }

    /// The progress of a transfer of this user. `None` if no worker has it in hand: it has ended,
    /// or is about to be read. Dropping it changes nothing.
    ///
    /// # Errors
    /// A [`Rejection`].
    pub async fn follow(
        &self,
        user: UserId,
        req_id: ReqId,
    ) -> Result<Option<watch::Receiver<Transfer>>, Rejection> {
        let (answer_to, receiver) = oneshot::channel();
        self.send(user, Message::Look(Look::Follow { req_id, answer_to }))?;
        receiver.await.map_err(|_| Rejection::of(Code::SystemError))
    }

    /// The order numbers of all transfers under way: every transfer that is not terminal in the
    /// store is among them.
    ///
    /// # Errors
    /// A [`Rejection`].
    pub async fn under_way(&self) -> Result<Vec<u64>, Rejection> {
        let mut numbers = Vec::new();
        for worker in 0..self.inboxes.len() {
            let (answer_to, receiver) = oneshot::channel();
            self.send_to(worker, Message::Look(Look::UnderWay { answer_to }))?;
            let of_worker = receiver.await;
            numbers.extend(of_worker.map_err(|_| Rejection::of(Code::SystemError))?);
        }
        Ok(numbers)
    }

    /// Every later accept has this order number or a higher one.
    pub fn order_number_next(&self) -> u64 {
        self.numbers.next()
    }

    /// The transfers in hand now, for monitoring.
    pub fn in_hand(&self) -> InHand {
        self.hands.look()
    }

    /// Transfers under way and waiting to be accepted.
    fn waiting_or_under_way(&self) -> usize {
        let waiting = self.inboxes.iter().map(|inbox| inbox.max_capacity() - inbox.capacity());
        self.numbers.count() + waiting.sum::<usize>()
    }

    /// The thing that has no room for one more transfer; `None` while new ones are accepted.
    pub fn shortage(&self) -> Option<Shortage> {
        let Capacity { transfers, bound_by } = (self.capacity)();
        (self.waiting_or_under_way() + ADMISSION_MARGIN >= transfers).then_some(bound_by)
    }

    /// Sends a call of the store to the worker of its user.
    fn call(&self, user: UserId, call: Call, reply_to: ReplyTo) -> Result<(), Rejection> {
        self.send(user, Message::Call { call: Box::new(call), reply_to, reservation: None })
    }

    fn send(&self, user: UserId, message: Message) -> Result<(), Rejection> {
        self.send_to(worker::shard_of(user, self.inboxes.len()), message)
    }

    fn send_to(&self, worker: usize, message: Message) -> Result<(), Rejection> {
        self.send_in(Span::current(), worker, message)
    }

    fn send_in(&self, span: Span, worker: usize, message: Message) -> Result<(), Rejection> {
        let wait = u64::try_from(self.accept_wait.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = self.clock.monotonic_ns().saturating_add(wait);
        let envelope = Envelope { message, deadline_ns, span };
        self.inboxes[worker].try_send(envelope).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => Rejection::overloaded(Shortage::Worker),
            mpsc::error::TrySendError::Closed(_) => Rejection::of(Code::SystemError),
        })
    }

    /// The state of a transfer for every reader. If UBSCore's record proves a later state than the
    /// store has, it is the later one. So no read returns an earlier state than a client has
    /// already seen.
    ///
    /// # Errors
    /// [`Silent`]: UBSCore did not return the recorded outcome, so the state might be too early.
    pub async fn settled(&self, transfer: Transfer) -> Result<Settled, Silent> {
        let intent = &transfer.intent;
        let Duty::Ask(Participant::Spot, op) = transfer.state.duty(intent.direction) else {
            return Ok(Settled { transfer, withdrawn: false });
        };
        // On the heap: it is long, and seldom needed.
        let answer = Box::pin(self.spot.query(intent.req_id, op)).await;
        let decision = match (answer.outcome, answer.outcome.decision()) {
            (_, Some(decision)) => decision,
            // The row was read so long ago that the transfer has ended since, and its record is
            // gone.
            (Outcome::Unknown(Reason::NotRecorded), None)
                if intent.order_number < self.numbers.forgotten_below() =>
            {
                return Err(Silent);
            }
            (Outcome::Unknown(Reason::NotRecorded), None) => {
                return Ok(Settled { transfer, withdrawn: false });
            }
            (_, None) => return Err(Silent),
        };
        let withdrawn = op.takes() && decision == Decision::Success;
        let transfer = match transfer.state.next(decision.event()) {
            Some(state) if state.is_terminal() => {
                let code = match decision {
                    Decision::Success => transfer.code,
                    Decision::Refused(code) => transfer.code.or(Some(code)),
                };
                Transfer { state, code, log_sequence: answer.log_sequence, ..transfer }
            }
            Some(_) | None => transfer,
        };
        Ok(Settled { transfer, withdrawn })
    }

    /// The place of transactions among the order numbers. Call it before
    /// [`Coordinator::keep_watermark`]: the watermark then waits for their worker.
    pub fn transaction_numbers(&self) -> TransactionNumbers {
        TransactionNumbers::begin(Arc::clone(&self.numbers), self.inboxes.len())
    }

    /// Where all transfers under way are; `None` until every worker has read its shard.
    pub fn open_transfers(&self) -> Option<Open> {
        self.numbers.open()
    }

    /// Every transfer of this user, under way or later, has this order number or a higher one.
    pub fn order_number_low(&self, user: UserId) -> u64 {
        self.numbers.low(worker::shard_of(user, self.inboxes.len()))
    }

    /// Returns when every transfer of an earlier process is in the hands of a worker.
    pub async fn recovered(&self) {
        while !self.numbers.all_have_looked() {
            self.clock.sleep(RECOVERED_LOOK).await;
        }
    }
}

/// A hash of the key of a payment, the same in every process.
fn hash_of(key: &Option<(String, String)>) -> u64 {
    let Some((channel, trade_no)) = key else { return 0 };
    xxh3_64(format!("{channel} {trade_no}").as_bytes())
}

/// How each participant is asked.
fn route<T: Adapter, F: Adapter>(participant: Participant) -> Route {
    match participant {
        Participant::Funding => F::ROUTE,
        Participant::Spot => T::ROUTE,
    }
}

/// Alerts that new transfers are refused until an operator makes room.
pub fn alert_shortage(shortage: Shortage) {
    if shortage.is_lasting() {
        let what = format_args!("{shortage}: {}", shortage.message());
        alert_about(Alert::NotTakingTransfers, &shortage, what);
    }
}
