//! One process: its workers over the production store, and the acts on recharges as
//! `coordinator::recharges` sends them. A call is decided by the production code; here stands only
//! the way to it, with a delay, a failure or a death at each step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::ExternalOperation;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use ubscore::clock::Clock;
use ubscore::postgres::flight::EventIds;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::store::{Call, Failure, Reply, Standing, Store};
use ubscore::recharge::act::{PaymentName, RechargeAct, RechargeCall, RechargeOutcome};
use ubscore::recharge::order::{ClosingWish, Recharge};
use ubscore::recharge::payment::RechargePayment;
use ubscore::recharge::{RechargeId, ReturnId};

use super::line::Line;
use super::tables::Tables;
use super::world::{Sim, catalog};
use crate::simulation::process::{Process, ProcessClock};

/// The actor of operators.
pub(super) const OPERATOR: &str = "operator";
/// The actor of changes that follow from a channel.
pub(super) const CHANNEL: &str = "channel";
/// Workers of a process: a payment without an order may meet one of another worker.
pub(super) const SHARDS: u32 = 2;
/// For so long the caller of a call waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls of one flight.
const BATCH_MAX: usize = 3;

/// Why an act has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// It may have been carried out.
    Unknown,
    /// It was not.
    Code(Code),
}

/// The outcome of an act.
pub(super) type Acted<T> = Result<T, Turned>;

type Answered = oneshot::Sender<Acted<Reply>>;

/// A call on its way to a worker.
pub(super) struct Sent {
    call: Call,
    /// `None`: a search of the worker itself.
    caller: Option<Answered>,
    deadline: Duration,
    maybe: bool,
}

/// A running process.
pub(super) struct Shop {
    pub(super) sim: Arc<Sim>,
    pub(super) incarnation: u64,
    clock: Arc<dyn Clock>,
    inboxes: Vec<mpsc::UnboundedSender<Sent>>,
    tasks: Mutex<JoinSet<()>>,
    numbers: AtomicU64,
    /// Hurries the till.
    pub(super) look: Notify,
    /// Orders that are over and to be asked about.
    pub(super) over: Mutex<Vec<RechargeId>>,
}

impl Shop {
    /// Begins a process with its workers. The till is begun by the caller.
    pub(super) fn begin(sim: &Arc<Sim>) -> Arc<Shop> {
        let incarnation = sim.state.lock().tables.begin(SHARDS);
        let process = Process::new(incarnation, Arc::clone(&sim.time), 0);
        let clock: Arc<dyn Clock> = Arc::new(ProcessClock(process));
        let (inboxes, heard): (Vec<_>, Vec<_>) =
            (0..SHARDS).map(|_| mpsc::unbounded_channel()).unzip();
        let shop = Arc::new(Shop {
            sim: Arc::clone(sim),
            incarnation,
            clock,
            inboxes,
            tasks: Mutex::default(),
            numbers: AtomicU64::new((incarnation << 40) + 1),
            look: Notify::new(),
            over: Mutex::default(),
        });
        let events = Arc::new(EventIds::new(incarnation));
        for (shard, inbox) in (0..SHARDS).zip(heard) {
            let line = Line::new(Arc::clone(sim), incarnation, shard);
            let catalog = Arc::new(ArcSwap::from_pointee(catalog()));
            let (clock, events) = (Arc::clone(&shop.clock), Arc::clone(&events));
            let store = FlightStore::new(line, catalog, clock, events, Arc::new(()), 8);
            let worker = Arc::clone(&shop);
            shop.spawn(async move { worker.work(store, inbox).await });
        }
        // A start records the commits of the one before.
        let mut state = sim.state.lock();
        let state = &mut *state;
        state.log.extend(state.tables.externals.keys().cloned());
        drop(events);
        shop
    }

    /// Begins a task that dies with the process.
    pub(super) fn spawn(self: &Arc<Shop>, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.sim.guarded(work);
        self.tasks.lock().spawn(work);
    }

    /// Ends all tasks of the process.
    pub(super) fn die(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        drop(tasks);
    }

    /// A point at which the process may die.
    pub(super) async fn point(&self, name: &'static str) {
        if self.sim.strikes() {
            self.sim.trace(|| format!("the process dies: {name}"));
            self.sim.kill(self.incarnation);
            std::future::pending::<()>().await;
        }
    }

    /// A worker: takes calls in turn, several in one flight, and repeats those of unknown end.
    async fn work(
        self: Arc<Shop>,
        mut store: FlightStore<Line>,
        mut inbox: mpsc::UnboundedReceiver<Sent>,
    ) {
        let (mut queue, mut limit) = (VecDeque::new(), BATCH_MAX);
        loop {
            if queue.is_empty() {
                let Some(sent) = inbox.recv().await else { return };
                queue.push_back(sent);
            }
            while let Ok(sent) = inbox.try_recv() {
                queue.push_back(sent);
            }
            let count = queue.len().min(limit);
            let mut batch: Vec<Sent> = queue.drain(..count).collect();
            for sent in &mut batch {
                self.number(sent);
            }
            let calls: Vec<Call> = batch.iter().map(|sent| sent.call.clone()).collect();
            self.point("before a commit").await;
            let standing = Standing { durable: 0, open_from: 0 };
            let done = store.commit(standing, &calls).await;
            self.point("behind a commit").await;
            match done {
                Ok(replies) => {
                    limit = BATCH_MAX;
                    for (sent, reply) in batch.into_iter().zip(replies) {
                        self.reply(sent, reply);
                    }
                }
                Err(Failure::Fenced) => return,
                Err(Failure::Split(_)) => {
                    limit = count.div_ceil(2);
                    batch.into_iter().rev().for_each(|sent| queue.push_front(sent));
                }
                Err(failure) => {
                    self.failed(batch, failure, &mut queue);
                    self.sim.sleep_ms(20, 400).await;
                }
            }
        }
    }

    /// Gives a call its order number, once.
    fn number(&self, sent: &mut Sent) {
        let number = || self.numbers.fetch_add(1, Ordering::Relaxed);
        match &mut sent.call {
            Call::Recharge(call) if call.may_credit() && call.order_number == 0 => {
                call.order_number = number();
            }
            Call::External(external) if external.order_number == 0 => {
                external.order_number = number();
            }
            _ => {}
        }
    }

    /// Answers a call. A credit has its record first.
    fn reply(self: &Arc<Shop>, sent: Sent, reply: Reply) {
        let credit: Option<ExternalOperation> = match &reply {
            Reply::Recharge(reply) => reply.credit.clone(),
            _ => None,
        };
        let nothing = matches!(&reply, Reply::Recharge(reply)
            if reply.outcome == RechargeOutcome::Nothing);
        let answer = if nothing && sent.maybe { Err(Turned::Unknown) } else { Ok(reply) };
        let spent = match &sent.call {
            Call::External(external) => Some(external.idem_key.clone()),
            _ => None,
        };
        let Some(key) = credit.map(|one| one.idem_key.as_str().to_owned()).or(spent) else {
            if let Some(caller) = sent.caller {
                drop(caller.send(answer));
            }
            return;
        };
        let shop = Arc::clone(self);
        self.spawn(async move {
            shop.point("before a record").await;
            shop.sim.sleep_ms(0, 30).await;
            shop.sim.state.lock().log.insert(key);
            if let Some(caller) = sent.caller {
                drop(caller.send(answer));
            }
        });
    }

    /// What follows a commit that failed, as `worker::batch` has it.
    fn failed(&self, batch: Vec<Sent>, failure: Failure, queue: &mut VecDeque<Sent>) {
        let blamed = match &failure {
            Failure::Refused { index, violation, source } => {
                if *violation {
                    let what = format!("{source}: {:?}", batch[*index].call);
                    self.sim.breach("no act breaks the protocol", what);
                }
                vec![*index]
            }
            Failure::Blocked { indices, .. } => indices.clone(),
            Failure::Contradicted(source) => {
                self.sim.breach("no act breaks the protocol", source.to_string());
                return;
            }
            _ => (0..batch.len()).collect(),
        };
        let refused = matches!(failure, Failure::Refused { .. });
        let now = self.sim.elapsed();
        for (index, mut sent) in batch.into_iter().enumerate().rev() {
            if !blamed.contains(&index) {
                queue.push_front(sent);
                continue;
            }
            sent.maybe |= matches!(failure, Failure::Unknown(_));
            let away = matches!(failure, Failure::Unreachable(_)) && !sent.maybe;
            let over = now >= sent.deadline || away || refused;
            match sent.caller.take() {
                Some(caller) if over => {
                    let turned = match sent.maybe {
                        true => Turned::Unknown,
                        false => Turned::Code(Code::SystemError),
                    };
                    drop(caller.send(Err(turned)));
                    if let Some(search) = search_of(&sent) {
                        queue.push_back(search);
                    }
                }
                caller => queue.push_front(Sent { caller, ..sent }),
            }
        }
    }

    /// Has a call carried out by the worker of its user.
    async fn send(&self, shard: u64, call: Call) -> Acted<Reply> {
        let (caller, answer) = oneshot::channel();
        let shard = usize::try_from(shard % u64::from(SHARDS)).expect("few");
        let deadline = self.sim.elapsed() + PATIENCE;
        let sent = Sent { call, caller: Some(caller), deadline, maybe: false };
        if self.inboxes[shard].send(sent).is_err() {
            return Err(Turned::Unknown);
        }
        answer.await.unwrap_or(Err(Turned::Unknown))
    }

    /// Has an act on a recharge carried out.
    pub(super) async fn act(
        &self,
        user: Option<UserId>,
        actor: &str,
        act: RechargeAct,
    ) -> Acted<RechargeOutcome> {
        let call =
            RechargeCall { user, order_number: 0, bonus_number: 0, actor: actor.to_owned(), act };
        let shard = match (user, call.payment()) {
            (Some(user), _) => user.number(),
            (None, Some((channel, trade_no))) => {
                let id = ubscore::recharge::PaymentId::of(&channel, &trade_no);
                u64::try_from(id.number() % 97).expect("small")
            }
            (None, None) => 0,
        };
        self.sim.trace(|| format!("{actor}: {:?}", call.act));
        let reply = self.send(shard, Call::Recharge(Box::new(call))).await;
        self.point("behind an act").await;
        match reply? {
            Reply::Recharge(reply) => match reply.outcome {
                RechargeOutcome::Refused { code, .. } => Err(Turned::Code(code)),
                RechargeOutcome::Nothing => Err(Turned::Code(Code::ServiceHalted)),
                outcome => Ok(outcome),
            },
            // A row that cannot be read: there is none in the model.
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Sends a call that is no act on a recharge.
    pub(super) async fn call(&self, user: UserId, call: Call) -> Acted<Reply> {
        self.send(user.number(), call).await
    }

    /// Reads committed rows.
    pub(super) async fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> Acted<T> {
        self.sim.sleep_ms(0, 5).await;
        if self.sim.fails() {
            return Err(Turned::Code(Code::SystemError));
        }
        Ok(look(&self.sim.state.lock().tables))
    }

    /// The time, as exact as PostgreSQL keeps it.
    pub(super) fn now(&self) -> Timestamp {
        self.sim.now()
    }

    /// See `Recharges::noted`.
    pub(super) async fn noted(
        &self,
        order: &Recharge,
        reference: Option<String>,
        pay: Option<String>,
        next_at: Option<Timestamp>,
    ) -> Acted<Recharge> {
        let act = RechargeAct::Note { id: order.id, reference, pay, next_at };
        made(self.act(Some(order.user), CHANNEL, act).await?).map(|made| made.0)
    }

    /// See `Recharges::wished`.
    pub(super) async fn wished(
        &self,
        order: &Recharge,
        closing: ClosingWish,
        actor: &str,
    ) -> Acted<Recharge> {
        let act = RechargeAct::Wish { id: order.id, closing };
        made(self.act(Some(order.user), actor, act).await?).map(|made| made.0)
    }

    /// See `Recharges::closed` and `Recharges::forced`.
    pub(super) async fn closed(&self, order: &Recharge, actor: &str) -> Acted<Recharge> {
        let act = RechargeAct::Close { id: order.id };
        made(self.act(Some(order.user), actor, act).await?).map(|made| made.0)
    }

    /// See `Recharges::tried`.
    pub(super) async fn tried(
        &self,
        order: &Recharge,
        next_at: Timestamp,
    ) -> Acted<Option<Recharge>> {
        let act = RechargeAct::Try { id: order.id, version: order.version, next_at };
        let (order, replayed) = made(self.act(Some(order.user), CHANNEL, act).await?)?;
        if !replayed {
            self.sim.state.lock().judge.granted(&order);
        }
        Ok((!replayed).then_some(order))
    }

    /// See `Recharges::returned`.
    pub(super) async fn returned(
        &self,
        payment: &RechargePayment,
        id: ReturnId,
        gone: bool,
    ) -> Acted<()> {
        let user = self.holder(payment).await?;
        let gone = if gone { Ok(()) } else { Err(Code::ChannelRefused) };
        let act = RechargeAct::EndReturn { payment: name_of(payment), id, gone };
        self.act(user, CHANNEL, act).await.map(drop)
    }

    /// The user of a payment: the one that was credited, or the owner of its order.
    pub(super) async fn holder(&self, payment: &RechargePayment) -> Acted<Option<UserId>> {
        match (payment.user, payment.recharge) {
            (Some(user), _) => Ok(Some(user)),
            (None, None) => Ok(None),
            (None, Some(id)) => {
                self.read(|rows| rows.orders.get(&id).map(|order| order.user)).await
            }
        }
    }
}

/// The search that follows a call that may have been carried out: its record is still due.
fn search_of(sent: &Sent) -> Option<Sent> {
    let call = match &sent.call {
        Call::Recharge(call) if sent.maybe && call.may_credit() => Call::FindRecharge(call.clone()),
        Call::External(external) if sent.maybe => Call::FindExternal(external.clone()),
        _ => return None,
    };
    Some(Sent { call, caller: None, deadline: Duration::MAX, maybe: true })
}

/// The name of a payment in calls.
pub(super) fn name_of(payment: &RechargePayment) -> PaymentName {
    PaymentName {
        channel: payment.channel.clone(),
        trade_no: payment.trade_no.clone(),
        id: payment.id,
        recharge: payment.recharge,
    }
}

/// The order of an outcome, and whether the act was a repeat.
fn made(outcome: RechargeOutcome) -> Acted<(Recharge, bool)> {
    match outcome {
        RechargeOutcome::Order { order, replayed } => Ok((*order, replayed)),
        outcome => unreachable!("{outcome:?} answers another act"),
    }
}
