//! One worker: the owner of a shard of accounts, a single task that does one thing at a time.
//!
//! Whatever has queued up while a commit was under way is the next batch. Nothing that anybody waits for waits for a timer
//! or for company; the mark of an end that has been told waits a moment for others. A transfer has at most one call queued,
//! one commit or one question under way. What it does while the service is halted is in `halted.rs`, and what it does for
//! operators in `operator.rs`; what comes from outside and what waits for the next commit, in `message.rs` and `queued.rs`.

mod halted;
mod held;
pub(super) mod message;
pub(super) mod operator;
mod queued;
mod recording;
mod undecided;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tracing::field::{Empty, display};
use tracing::{Instrument, Span, debug, debug_span, error, info, warn};

use self::halted::look_up;
use self::held::Moved;
use self::message::{Envelope, Message};
use self::operator::Resolving;
use self::queued::{Queued, Waiter};
use self::recording::Recordings;
use self::undecided::Undecided;
use super::hand::{Hands, LastError};
use super::numbers::Numbers;
use super::parts::Parts;
use super::request::{Accepted, Rejection};
use super::step::{Effect, Happened, Row, decide, renew, restrain};
use crate::adapters::{Adapter, Answer, Ask, Outcome, Reason, Route};
use crate::alert::{Alert, alert, alert_about};
use crate::crash;
use crate::entropy::Entropy;
use crate::gate::Pass;
use crate::postgres::store::{
    Call, Failure, Page, Reply, Sought, Stale, Store, Transfer, Unfinished, differing_fields,
};
use crate::postgres::{Superseded, sqlstate};
use crate::quota::Reservation;
use crate::telemetry;
use domain::account::UserId;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Intent, Op, Participant, ReqId, State};

/// Refunds that ended unknown before somebody is called.
const REFUND_FAILURES_ALERT: u32 = 3;

/// Tries that the store may ask for, one after the other, before somebody is called.
const STORE_FAILURES_ALERT: u32 = 3;
/// The longest wait before a store that failed is tried again: it may be back, and everything waits for it.
const STORE_RETRY_MS_MAX: u64 = 1_000;
/// Between two pages of a search that nobody waits for.
const SCAN_PAUSE_MS: u64 = 100;
/// How long the mark of an end that has been told may wait for others: nobody waits for it, and whoever comes next would
/// have to wait for its commit.
const MARK_MS: u64 = 5;
/// So many of them go at once.
const MARKS_MAX: usize = 16;
/// Between two looks at whether somebody outside has waited long enough.
const EXPIRY_MS: u64 = 100;
/// Looks for stuck transfers in the time after which one is stuck.
const STUCK_LOOKS: u64 = 4;

/// The worker that owns a user's accounts.
pub(super) fn shard_of(user: UserId, shards: usize) -> usize {
    let shards = u64::try_from(shards).expect("at most 64");
    usize::try_from(user.number() % shards).expect("below the number of shards")
}

/// A transfer under way.
struct Active {
    row: Row,
    transfer: Transfer,
    watch: watch::Sender<Transfer>,
    started_ns: u64,
    /// When its end was told, before the store has the mark.
    replied_ns: Option<u64>,
    /// Until it has ended, where this process has accepted it.
    reservation: Option<Reservation>,
    span: Span,
}

impl Active {
    fn order_number(&self) -> u64 {
        self.transfer.intent.order_number
    }

    /// Takes the reservation of its accept, which is decided.
    fn hold(&mut self, reservation: Option<Reservation>) {
        if let Some(mut reservation) = reservation {
            reservation.accept(self.transfer.created_at);
            self.reservation = Some(reservation);
        }
    }

    /// It has ended: before anybody is told, what it has not moved is free for another.
    fn release(&mut self, state: State) {
        if let Some(reservation) = self.reservation.take() {
            reservation.end(state);
        }
    }
}

/// An operation that a participant is to be asked for or, while halted, to be looked up.
struct Question {
    req_id: ReqId,
    participant: Participant,
    op: Op,
    /// It is to be refused where it is not decided.
    refuse: bool,
}

type Answers = Vec<(Question, Answer)>;
type Asking = Pin<Box<dyn Future<Output = Told> + Send>>;

/// What a participant has answered.
enum Told {
    /// About transfers.
    Answers(Answers),
    /// About records of external operations, by order number.
    Recorded(Vec<(u64, Answer)>),
}

/// What the store is doing; the store travels with it.
enum Done<S> {
    Committed(S, Vec<Queued>, Result<Vec<Reply>, Failure>),
    Scanned(S, Result<Page, Failure>),
}

type Doing<S> = Pin<Box<dyn Future<Output = Done<S>> + Send>>;

/// What a turn of the loop woke up for.
enum Woken<S> {
    Store(Done<S>),
    Replied(Told),
    Message(Option<Envelope>),
    /// Somebody has halted or resumed.
    Gate,
    Timer,
}

pub(super) struct Worker<T, F> {
    shard: usize,
    shards: u32,
    parts: Arc<Parts<T, F>>,
    numbers: Arc<Numbers>,
    entropy: Box<dyn Entropy>,
    queue: VecDeque<Queued>,
    arrivals: u64,
    /// Calls that the store does not take now, each with the time of its next try, monotonic ns.
    parked: Vec<(u64, Queued)>,
    active: HashMap<ReqId, Active>,
    undecided: Undecided,
    under_way: BTreeSet<u64>,
    asks: Vec<Question>,
    /// External operations that are not recorded yet.
    recordings: Recordings,
    /// When each user last moved money.
    moved: Moved,
    /// Steps to an end that has been told, see [`MARK_MS`].
    marks: Vec<Queued>,
    /// When the oldest of them has waited long enough, monotonic ns.
    marks_due_ns: u64,
    /// Transfers that go on when the service is resumed.
    resting: Vec<ReqId>,
    /// Transfers that operators have resolved and that still await a decision.
    resolving: HashMap<ReqId, Resolving>,
    timers: BinaryHeap<Reverse<(u64, ReqId)>>,
    /// Not before this may the store be tried again, monotonic ns.
    store_retry_ns: u64,
    store_failures: u32,
    scan_due_ns: u64,
    scan_failures: u32,
    /// Order numbers up to this one have been looked at in the present scan.
    scan_after: u64,
    /// Scans and commits take turns where both are due.
    scan_next: bool,
    /// Every unfinished transfer of earlier incarnations has been taken up.
    scanned_once: bool,
    expiry_due_ns: u64,
    /// Not before this is looked for stuck transfers again, monotonic ns.
    stuck_due_ns: u64,
    /// When the service was last resumed, monotonic ns: no transfer is stuck for having been halted.
    resumed_ns: u64,
    hands: Arc<Hands>,
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    pub(super) fn new(
        shard: usize,
        shards: u32,
        parts: Arc<Parts<T, F>>,
        numbers: Arc<Numbers>,
        hands: Arc<Hands>,
        entropy: Box<dyn Entropy>,
    ) -> Worker<T, F> {
        let scan_after = parts.watermark.saturating_sub(1);
        Worker {
            shard,
            shards,
            parts,
            numbers,
            entropy,
            queue: VecDeque::new(),
            arrivals: 0,
            parked: Vec::new(),
            active: HashMap::new(),
            undecided: Undecided::default(),
            under_way: BTreeSet::new(),
            asks: Vec::new(),
            recordings: Recordings::default(),
            moved: Moved::default(),
            marks: Vec::new(),
            marks_due_ns: 0,
            resting: Vec::new(),
            resolving: HashMap::new(),
            timers: BinaryHeap::new(),
            store_retry_ns: 0,
            store_failures: 0,
            scan_due_ns: 0,
            scan_failures: 0,
            // Below the watermark nothing is unfinished.
            scan_after,
            scan_next: true,
            scanned_once: false,
            expiry_due_ns: 0,
            stuck_due_ns: 0,
            resumed_ns: 0,
            hands,
        }
    }

    fn now(&self) -> u64 {
        self.parts.clock.monotonic_ns()
    }

    /// Puts a new call behind all others.
    fn enqueue(&mut self, queued: Queued) {
        let queued = self.arrived(queued);
        self.queue.push_back(queued);
    }

    fn arrived(&mut self, queued: Queued) -> Queued {
        self.arrivals += 1;
        Queued { arrival: self.arrivals, ..queued }
    }

    /// Lets the marks that have waited long enough into the queue, or, for a last time, all.
    fn take_marks(&mut self, last: bool) {
        if last || self.marks.len() >= MARKS_MAX || self.now() >= self.marks_due_ns {
            self.queue.extend(self.marks.drain(..));
        }
    }

    /// Runs until the inbox is closed and nothing more can be done now. What is left is in the store, and the next
    /// start goes on with it.
    pub(super) async fn run<S: Store>(
        mut self,
        store: S,
        mut inbox: mpsc::Receiver<Envelope>,
    ) -> Result<(), Superseded> {
        let mut idle_store = Some(store);
        let mut doing: Option<Doing<S>> = None;
        let mut asking: FuturesUnordered<Asking> = FuturesUnordered::new();
        let mut open = true;
        let mut gate = self.parts.gate.watch();
        loop {
            self.take_marks(!open);
            if let Some(store) = idle_store.take() {
                match self.next_job(store) {
                    Ok(job) => doing = Some(job),
                    Err(store) => idle_store = Some(store),
                }
            }
            if !self.asks.is_empty() {
                asking.push(self.ask());
            }
            asking.extend(self.record());
            let low = self.under_way.first().copied().unwrap_or(u64::MAX);
            let low = if self.scanned_once { low } else { 0 };
            self.numbers.publish(self.shard, low, self.under_way.len());
            let waited_for = self.parked.iter().any(|(_, queued)| queued.waiter.is_outside())
                || self.recordings.are_awaited();
            let idle = doing.is_none() && asking.is_empty() && self.queue.is_empty();
            if !open && idle && !waited_for {
                info!(shard = self.shard, left = self.active.len(), "worker at rest");
                return Ok(());
            }
            let mut timer = self.parts.clock.sleep(self.until_due(doing.is_some()));
            let room = open && self.queue.len() < self.parts.options.queue_max;
            let woken = tokio::select! {
                biased;
                Some(done) = conditional(doing.as_mut()) => Woken::Store(done),
                Some(replied) = asking.next(), if !asking.is_empty() => Woken::Replied(replied),
                Ok(()) = gate.changed() => Woken::Gate,
                message = inbox.recv(), if room => Woken::Message(message),
                () = &mut timer => Woken::Timer,
            };
            match woken {
                Woken::Store(done) => {
                    doing = None;
                    idle_store = Some(self.on_done(done)?);
                }
                Woken::Replied(Told::Answers(answers)) => {
                    for (question, answer) in answers {
                        self.on_answer(question.req_id, question.op, answer);
                    }
                }
                Woken::Replied(Told::Recorded(answers)) => {
                    for (number, answer) in answers {
                        self.on_recorded(number, answer.outcome);
                    }
                }
                Woken::Message(Some(message)) => {
                    self.receive(message);
                    // Everything that has come meanwhile belongs into the same batch.
                    while self.queue.len() < self.parts.options.batch_max
                        && let Ok(message) = inbox.try_recv()
                    {
                        self.receive(message);
                    }
                }
                Woken::Message(None) => open = false,
                Woken::Gate => self.go_on_if_resumed(),
                Woken::Timer => {}
            }
            self.fire_timers();
            self.expire();
            self.expire_resolving();
            self.expire_recordings();
            self.look_for_stuck();
        }
    }

    /// What the store is to do next, or the store back.
    fn next_job<S: Store>(&mut self, store: S) -> Result<Doing<S>, S> {
        let now = self.now();
        if now < self.store_retry_ns {
            return Err(store);
        }
        let scan = now >= self.scan_due_ns;
        if scan && (self.scan_next || self.queue.is_empty()) {
            return Ok(self.scan(store));
        }
        // Taken before anything is decided by it, and kept until the commit has ended.
        let pass = self.parts.gate.pass();
        let batch = self.batch(pass.is_some());
        match batch.is_empty() {
            true => Err(store),
            false => Ok(self.commit(store, batch, pass)),
        }
    }

    /// Looks at one page of what the store has: at the start for everything that is not terminal, later for what is
    /// stale and, whyever, not in our hands.
    fn scan<S: Store>(&mut self, mut store: S) -> Doing<S> {
        self.scan_next = false;
        let options = &self.parts.options;
        let shard = u32::try_from(self.shard).expect("at most 64");
        let (moved_ms, retry_cap_ms) = (options.stale_ms, options.backoff_cap_ms);
        let stale = self.scanned_once.then_some(Stale { moved_ms, retry_cap_ms });
        let filter = Unfinished { after: self.scan_after, shard, shards: self.shards, stale };
        Box::pin(async move {
            let found = store.unfinished(filter).await;
            Done::Scanned(store, found)
        })
    }

    /// What the next commit holds, and what is said of it to the store. `admitted`: whether it may move money.
    fn batch(&mut self, admitted: bool) -> Vec<(Queued, Call)> {
        let now = self.now();
        let mut batch = Vec::new();
        while batch.len() < self.parts.options.batch_max
            && let Some(mut queued) = self.queue.pop_front()
        {
            if let (Waiter::Step(req_id), Call::Step { transition, .. }) =
                (&queued.waiter, &mut queued.call)
                && let Some(active) = self.active.get(req_id)
            {
                renew(active.row, transition);
            }
            // It would be held up as well, and hold up everybody else; and nothing of a user's overtakes what came
            // before: a search for a cid must not miss its accept. What had come before the parked one goes on.
            let held_up = self.parked.iter().find(|(_, parked)| {
                let same_user = parked.user().is_some() && parked.user() == queued.user();
                same_user && parked.arrival < queued.arrival
            });
            if queued.is_expired(now) {
                self.forget_expired(queued);
            } else if let Some((due, _)) = held_up {
                self.parked.push((*due, queued));
            } else if admitted {
                let call = self.call_of(&mut queued);
                batch.push((queued, call));
            } else {
                batch.extend(self.restrained(queued));
            }
        }
        batch
    }

    fn commit<S: Store>(
        &mut self,
        mut store: S,
        mut batch: Vec<(Queued, Call)>,
        pass: Option<Pass>,
    ) -> Doing<S> {
        self.scan_next = true;
        batch.sort_by(|(_, one), (_, other)| one.place().cmp(&other.place()));
        let durable = (self.parts.durable)();
        let clock = Arc::clone(&self.parts.clock);
        // The flight is everybody's who is in it, so it is part of nobody's trace and linked with each. Where nobody looks,
        // no span is made and nothing is kept.
        let flight = debug_span!(parent: None, "flight", calls = batch.len());
        let mut commits = Vec::new();
        for (queued, call) in &batch {
            let commit = debug_span!(parent: &queued.span, "commit", call = call.name());
            if !commit.is_disabled() {
                flight.follows_from(&commit);
                commits.push(commit);
            }
        }
        Box::pin(async move {
            let _moving = pass;
            let (batch, calls): (Vec<Queued>, Vec<Call>) = batch.into_iter().unzip();
            crash::point("coordinator_before_commit");
            let began = clock.monotonic_ns();
            let result = store.commit(durable, &calls).instrument(flight).await;
            drop(commits);
            telemetry::step(telemetry::Step::Commit, clock.monotonic_ns() - began);
            crash::point("coordinator_after_commit");
            Done::Committed(store, batch, result)
        })
    }

    /// One question for everything that one participant is ready to be asked, or to refuse; the rest's turn is the next.
    fn ask(&mut self) -> Asking {
        let (participant, refuse) = (self.asks[0].participant, self.asks[0].refuse);
        let alike = |q: &Question| (q.participant, q.refuse) == (participant, refuse);
        let (mut now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asks).into_iter().partition(alike);
        self.asks = later;
        now.retain(|question| self.active.contains_key(&question.req_id));
        let intent = |question: &Question| self.active[&question.req_id].transfer.intent.clone();
        let asks = now.iter().map(|q| Ask { op: q.op, intent: intent(q) }).collect();
        let parts = Arc::clone(&self.parts);
        let Some(pass) = parts.gate.pass() else {
            return Box::pin(async { Told::Answers(look_up(parts, now).await) });
        };
        let together = debug_span!(parent: None, "ask", asks = now.len(), refuse);
        let mut orders = Vec::with_capacity(now.len());
        for question in &now {
            let order = self.order_span(question);
            together.follows_from(&order);
            orders.push(order);
        }
        Box::pin(async move {
            let _moving = pass;
            crash::point("coordinator_before_ask");
            let began = parts.clock.monotonic_ns();
            let answers = async {
                match (participant, refuse) {
                    (Participant::Spot, false) => parts.spot.ask(asks).await,
                    (Participant::Spot, true) => parts.spot.refuse(asks).await,
                    (Participant::Funding, false) => parts.funding.ask(asks).await,
                    (Participant::Funding, true) => parts.funding.refuse(asks).await,
                }
            };
            let answers: Vec<Answer> = answers.instrument(together).await;
            for (order, answer) in orders.into_iter().zip(&answers) {
                order.record("outcome", answer.outcome.name());
                order.record("log_sequence", answer.log_sequence);
            }
            let step = match participant {
                Participant::Spot => telemetry::Step::Spot,
                Participant::Funding => telemetry::Step::Funding,
            };
            telemetry::step(step, parts.clock.monotonic_ns() - began);
            crash::point("coordinator_after_ask");
            Told::Answers(now.into_iter().zip(answers).collect())
        })
    }

    /// One operation of one transfer at a participant. It ends when the answer is here: on UBSCore's own threads nothing is
    /// ever traced.
    fn order_span(&self, question: &Question) -> Span {
        let Question { req_id, participant, op, .. } = question;
        let transfer = &self.active[req_id].span;
        match participant {
            Participant::Spot => debug_span!(
                parent: transfer, "engine", op = op.name(), outcome = Empty, log_sequence = Empty
            ),
            Participant::Funding => debug_span!(
                parent: transfer, "funding", op = op.name(), outcome = Empty, log_sequence = Empty
            ),
        }
    }

    fn receive(&mut self, envelope: Envelope) {
        let Envelope { message, deadline_ns, span } = envelope;
        if self.now() >= deadline_ns {
            message.reject(Rejection::of(Code::SystemError));
            return;
        }
        let full = self.under_way.len() >= self.parts.options.active_max;
        let (mut share, mut claim) = (None, None);
        let (call, waiter) = match message {
            Message::Submit { .. } if full => {
                message.reject(Rejection::overloaded(Shortage::Worker));
                return;
            }
            Message::Submit { mut intent, fingerprint, reservation, reply } => {
                share = reservation;
                claim = intent.cid.clone().map(|cid| self.undecided.claim(intent.user, cid));
                intent.order_number = self.numbers.take(self.shard);
                self.under_way.insert(intent.order_number);
                self.numbers.set_count(self.shard, self.under_way.len());
                let row = self.row(&intent, State::Init);
                let (_, effects) = decide(row, Happened::Submitted, route::<T, F>);
                let [Effect::Accept(transition)] = effects.as_slice() else {
                    unreachable!("a submitted transfer is accepted: {effects:?}")
                };
                let (req_id, transition) = (intent.req_id, transition.clone());
                (Call::Accept { intent, fingerprint, transition }, Waiter::Accept(req_id, reply))
            }
            Message::FindCid { user, cid, reply } => {
                (Call::Find(Sought::Cid(user, cid)), Waiter::Cid(reply))
            }
            Message::IsUndecided { user, cid, reply } => {
                // An error is a caller who has gone.
                reply.send(self.undecided.holds(user, &cid)).ok();
                return;
            }
            // Without room for its record a new one waits; what has been decided before is told.
            Message::External { external, room, reply } if full || !room => {
                (Call::FindExternal(external), Waiter::External(reply))
            }
            Message::External { mut external, reply, .. } => {
                external.order_number = self.numbers.take(self.shard);
                self.under_way.insert(external.order_number);
                self.numbers.set_count(self.shard, self.under_way.len());
                (Call::External(external), Waiter::External(reply))
            }
            Message::SetFundingStatus { user, status, actor, reason, reply } => {
                (Call::SetFundingStatus { user, status, actor, reason }, Waiter::Status(reply))
            }
            Message::Attend { req_id, action, reply } if self.active.contains_key(&req_id) => {
                self.attend(req_id, action, reply, deadline_ns);
                return;
            }
            Message::Attend { req_id, action, reply } => {
                (Call::Find(Sought::ReqId(req_id)), Waiter::Attend(req_id, action, reply))
            }
            Message::Follow { req_id, reply } => {
                let active = self.active.get(&req_id);
                drop(reply.send(active.map(|active| active.watch.subscribe())));
                return;
            }
            Message::UnderWay { reply } => {
                drop(reply.send(self.under_way.iter().copied().collect()));
                return;
            }
        };
        let own = Queued::own(call, waiter);
        self.enqueue(Queued { deadline_ns, reservation: share, claim, span, ..own });
    }

    /// Rejects what was never begun and has been waited for long enough.
    fn expire(&mut self) {
        let now = self.now();
        if now < self.expiry_due_ns || !self.holds_work() {
            return;
        }
        self.expiry_due_ns = now + ns(EXPIRY_MS);
        for queued in std::mem::take(&mut self.queue) {
            match queued.is_expired(now) {
                true => self.forget_expired(queued),
                false => self.queue.push_back(queued),
            }
        }
        for (due, queued) in std::mem::take(&mut self.parked) {
            match queued.is_expired(now) {
                true => self.forget_expired(queued),
                false => self.parked.push((due, queued)),
            }
        }
    }

    fn forget_expired(&mut self, queued: Queued) {
        self.forget(&queued.call);
        let nobody = queued.waiter.reject(Rejection::of(Code::SystemError));
        assert!(nobody.is_none(), "only callers outside are kept waiting");
    }

    fn holds_work(&self) -> bool {
        !self.queue.is_empty() || !self.parked.is_empty()
    }

    /// Leaves one call aside for a while; the others go on.
    fn park(&mut self, mut queued: Queued, why: &(dyn std::error::Error + 'static)) {
        queued.tries = queued.tries.saturating_add(1);
        let stepping = match (&queued.waiter, &mut queued.call) {
            (Waiter::Step(req_id), Call::Step { attempt, .. }) => {
                self.active.get_mut(req_id).map(|active| {
                    active.row.attempt = active.row.attempt.saturating_add(1);
                    *attempt = active.row.attempt;
                    *req_id
                })
            }
            _ => None,
        };
        if let Some(req_id) = stepping {
            self.note_error(req_id, "held_up", why);
        }
        let why = telemetry::chain(why);
        let delay_ms = match stepping {
            Some(req_id) => self.back_off(req_id, &why, "held up; others go on"),
            None => {
                let delay_ms = self.backoff_ms(queued.tries);
                let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
                warn!(call, req_id, tries = queued.tries, delay_ms, why, "held up; others go on");
                delay_ms
            }
        };
        self.parked.push((self.now() + ns(delay_ms), queued));
    }

    /// Keeps why a try of a transfer came to nothing, for operators.
    fn note_error(
        &self,
        req_id: ReqId,
        class: &'static str,
        error: &(dyn std::error::Error + 'static),
    ) {
        self.note(req_id, class, sqlstate(error), telemetry::chain(error));
    }

    fn note(&self, req_id: ReqId, class: &'static str, sqlstate: Option<String>, text: String) {
        if let Some(active) = self.active.get(&req_id) {
            let at_ns = self.parts.clock.now_ns();
            let error = LastError { class, sqlstate, text, at_ns };
            self.hands.fail(self.shard, active.order_number(), error);
        }
    }

    fn row(&self, intent: &Intent, state: State) -> Row {
        let fuse = self.parts.options.fuse;
        Row { direction: intent.direction, state, attempt: 0, fuse, resolve: false }
    }

    fn on_done<S>(&mut self, done: Done<S>) -> Result<S, Superseded> {
        match done {
            Done::Committed(store, batch, result) => {
                self.on_committed(batch, result)?;
                Ok(store)
            }
            Done::Scanned(store, Ok(page)) => {
                self.scan_failures = 0;
                // In a later scan they have not moved for long, and nobody drives them on.
                if let Some(number) = page.unreadable.first()
                    && self.scanned_once
                    && !self.parts.gate.is_closed()
                {
                    let others = page.unreadable.len() - 1;
                    let what = format_args!("order {number} cannot be read, nor {others} others");
                    alert_about(Alert::TransferStuck, number, what);
                }
                // Nobody knows what they are: as long as they are there, their numbers are in use.
                self.under_way.extend(page.unreadable);
                for transfer in page.transfers {
                    if !self.active.contains_key(&transfer.intent.req_id) {
                        let state = transfer.state.name();
                        info!(req_id = %transfer.intent.req_id, state, "taking up");
                        let span = span_of(&transfer);
                        self.adopt(transfer, span, None);
                    }
                }
                match page.after {
                    Some(after) => {
                        self.scan_after = after;
                        // At the start everybody waits for it; later, commits do not.
                        let pause_ms = if self.scanned_once { SCAN_PAUSE_MS } else { 0 };
                        self.scan_due_ns = self.now() + ns(pause_ms);
                    }
                    None => {
                        self.scanned_once = true;
                        let low = self.under_way.first().copied();
                        let low = low.unwrap_or_else(|| self.numbers.next());
                        self.scan_after = low.saturating_sub(1);
                        self.scan_due_ns = self.now() + ns(self.parts.options.stale_ms);
                    }
                }
                Ok(store)
            }
            Done::Scanned(store, Err(failure)) => {
                // Commits go on meanwhile, if they can.
                self.scan_failures = self.scan_failures.saturating_add(1);
                let delay_ms = self.backoff_ms(self.scan_failures);
                let delay_ms =
                    if self.scanned_once { delay_ms } else { delay_ms.min(STORE_RETRY_MS_MAX) };
                self.scan_due_ns = self.now() + ns(delay_ms);
                let why = telemetry::chain(&failure);
                alert(
                    Alert::PostgresUnreachable,
                    format_args!("shard {}: look for unfinished transfers: {why}", self.shard),
                );
                Ok(store)
            }
        }
    }

    fn on_committed(
        &mut self,
        batch: Vec<Queued>,
        result: Result<Vec<Reply>, Failure>,
    ) -> Result<(), Superseded> {
        let failure = match result {
            Ok(replies) => {
                self.store_failures = 0;
                self.parts.committed.notify_one();
                for (queued, reply) in batch.into_iter().zip(replies) {
                    self.note_commit(&queued);
                    self.on_reply(queued, reply);
                }
                return Ok(());
            }
            Err(failure) => failure,
        };
        // A store that blames a call can be reached, though all that is asked of it may go on failing.
        if matches!(failure, Failure::Refused { .. } | Failure::Retry { index: Some(_), .. }) {
            self.store_failures = 0;
        }
        match failure {
            Failure::Refused { index, violation, source } => {
                let refused = self.requeue_but(batch, index);
                self.on_refused(refused, violation, source.as_ref());
                Ok(())
            }
            Failure::Retry { index: Some(index), source } => {
                let mut blamed = self.requeue_but(batch, index);
                if blamed.call.end_before_funding() {
                    // What was reached is committed before the next try.
                    self.queue.push_front(blamed);
                    return Ok(());
                }
                match blamed.waiter {
                    Waiter::Nobody => {}
                    _ if self.now() >= blamed.deadline_ns => {
                        let rejection = blamed.rejection();
                        self.give_up(blamed, rejection);
                    }
                    _ => self.park(blamed, source.as_ref()),
                }
                Ok(())
            }
            failure => {
                let maybe = matches!(failure, Failure::Unknown(_));
                let unreachable = matches!(failure, Failure::Unreachable(_));
                self.store_failed(&failure)?;
                for queued in batch.into_iter().rev() {
                    if let Waiter::Step(req_id) = queued.waiter {
                        self.note_error(req_id, "store", &failure);
                    }
                    self.requeue(queued, maybe, unreachable);
                }
                Ok(())
            }
        }
    }

    /// Puts a batch of which nothing was done back in front, but for one call.
    fn requeue_but(&mut self, batch: Vec<Queued>, index: usize) -> Queued {
        let mut blamed = None;
        for (at, queued) in batch.into_iter().enumerate().rev() {
            match at == index {
                true => blamed = Some(queued),
                false => self.queue.push_front(queued),
            }
        }
        blamed.expect("the store blames a call of the batch")
    }

    /// Notes a failure of the store as a whole and backs off.
    fn store_failed(&mut self, failure: &Failure) -> Result<(), Superseded> {
        if matches!(failure, Failure::Fenced) {
            alert(Alert::Fenced, format_args!("shard {} belongs to another process", self.shard));
            return Err(Superseded);
        }
        self.store_failures = self.store_failures.saturating_add(1);
        let delay_ms = self.backoff_ms(self.store_failures).min(STORE_RETRY_MS_MAX);
        let why = telemetry::chain(failure);
        let passing = self.store_failures < STORE_FAILURES_ALERT;
        if passing && matches!(failure, Failure::Retry { .. }) {
            debug!(shard = self.shard, why, "the store asks for another try");
        } else {
            alert(Alert::PostgresUnreachable, format_args!("shard {}: {why}", self.shard));
        }
        self.store_retry_ns = self.now() + ns(delay_ms);
        Ok(())
    }

    /// Puts a call that was not committed, or may have been, back in front; gives up on callers who have waited long
    /// enough.
    fn requeue(&mut self, mut queued: Queued, maybe: bool, unreachable: bool) {
        queued.maybe |= maybe;
        let late = self.now() >= queued.deadline_ns;
        // Unreachable, it will not be begun soon; what may have been begun is tried again as long as somebody waits.
        let hopeless = late || (unreachable && !queued.maybe);
        if hopeless && queued.waiter.is_outside() {
            let rejection = queued.rejection();
            self.give_up(queued, rejection);
        } else if !matches!(queued.waiter, Waiter::Nobody) {
            // A deferral is worth no second try: the timer runs all the same.
            self.queue.push_front(queued);
        }
    }

    /// Stops doing what somebody outside asked for, and tells them.
    fn give_up(&mut self, mut queued: Queued, rejection: Rejection) {
        match (&queued.call, queued.maybe) {
            // It may have been accepted after all. A later batch tells: once it is committed, none given up before it
            // can be.
            (Call::Accept { intent, .. }, true) => {
                let call = Call::Find(Sought::ReqId(intent.req_id));
                let waiter = Waiter::Lost(intent.order_number);
                let (reservation, claim) = (queued.reservation.take(), queued.claim.take());
                self.enqueue(Queued { reservation, claim, ..Queued::own(call, waiter) });
            }
            (Call::External(external), true) => self.look_for_external(external.clone()),
            _ => self.forget(&queued.call),
        }
        let nobody = queued.waiter.reject(rejection);
        assert!(nobody.is_none(), "only what somebody outside asked for is given up");
    }

    /// The store refused this one call; nothing of it was done.
    fn on_refused(
        &mut self,
        queued: Queued,
        violation: bool,
        source: &(dyn std::error::Error + 'static),
    ) {
        let why = telemetry::chain(source);
        let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
        if violation {
            let subject = violator(&queued.call);
            alert_about(Alert::ProtocolViolation, &subject, format_args!("{subject}: {why}"));
            error!(req_id, call, "refused as a violation of the protocol");
        } else {
            error!(why, req_id, call, "the store refused a call");
        }
        match queued.waiter {
            Waiter::Step(req_id) => {
                self.note_error(req_id, "refused", source);
                self.advance(req_id, Happened::Refused);
            }
            Waiter::Nobody => {}
            // Not to be forgotten, whatever it costs.
            Waiter::Lost(_) | Waiter::LostExternal => self.park(queued, source),
            _ => {
                let rejection = queued.rejection();
                self.give_up(queued, rejection);
            }
        }
    }

    fn forget(&mut self, call: &Call) {
        let number = match call {
            Call::Accept { intent, .. } => intent.order_number,
            Call::External(external) => external.order_number,
            _ => return,
        };
        self.under_way.remove(&number);
    }

    fn on_reply(&mut self, queued: Queued, reply: Reply) {
        let external = matches!(queued.waiter, Waiter::External(_) | Waiter::LostExternal);
        if external && !matches!(reply, Reply::Unreadable(_)) {
            self.on_external_reply(queued, reply);
            return;
        }
        match (queued.waiter, reply) {
            (Waiter::Accept(req_id, answer_to), Reply::Transfer(transfer)) => {
                let Call::Accept { intent, fingerprint, .. } = queued.call else {
                    unreachable!("queued together")
                };
                let replayed = transfer.intent.req_id != req_id;
                // What a repeat had taken goes back.
                let reservation = queued.reservation.filter(|_| !replayed);
                if replayed {
                    self.under_way.remove(&intent.order_number);
                    if transfer.fingerprint != fingerprint {
                        let fields = differing_fields(&transfer.fingerprint, &fingerprint);
                        let detail =
                            format!("This cid was used with another {}.", fields.join(", "));
                        let code = Code::DuplicateRequest;
                        let rejection = Rejection { detail: Some(detail), ..code.into() };
                        answer_to.send(Err(rejection));
                        return;
                    }
                }
                let key = transfer.intent.req_id;
                let progress = match self.active.get_mut(&key) {
                    Some(active) => {
                        active.hold(reservation);
                        active.watch.subscribe()
                    }
                    // Over long ago.
                    None if replayed && transfer.state.is_terminal() => watch::channel(*transfer).1,
                    None if replayed => {
                        let span = span_of(&transfer);
                        self.adopt(*transfer, span, None)
                    }
                    None => self.adopt(*transfer, queued.span, reservation),
                };
                answer_to.send(Ok(Accepted { progress, replayed }));
            }
            // Halted: what had been accepted, under this name or this cid, or nothing.
            (Waiter::Accept(req_id, answer_to), Reply::Found(Some(transfer))) => {
                let queued = Queued { waiter: Waiter::Accept(req_id, answer_to), ..queued };
                self.on_reply(queued, Reply::Transfer(transfer));
            }
            (Waiter::Accept(_, answer_to), Reply::Found(None)) => {
                self.forget(&queued.call);
                answer_to.send(Err(Rejection::of(Code::ServiceHalted)));
            }
            (Waiter::Step(req_id), Reply::Transfer(transfer) | Reply::Found(Some(transfer))) => {
                if let Some(active) = self.active.get_mut(&req_id) {
                    let _entered = active.span.clone().entered();
                    active.transfer = *transfer;
                    let (state, code) = (active.transfer.state, active.transfer.code);
                    self.hands.hold(self.shard, &active.transfer);
                    debug!(%req_id, state = state.name(), code = ?code, "stored");
                    // Whoever joins later must not be told less than a read of the store tells.
                    active.watch.send_if_modified(|replied| {
                        let ahead = replied.state.is_terminal();
                        if !ahead {
                            replied.clone_from(&active.transfer);
                        }
                        !ahead
                    });
                    self.advance(req_id, Happened::Stored(state));
                }
            }
            // Halted: PostgreSQL has no row of a transfer in hand. It is an older copy, or an edited one.
            (Waiter::Step(req_id), Reply::Found(None)) => {
                let what = format_args!(
                    "PostgreSQL has no transfer {req_id}, which this process has in hand: it rests until a resume"
                );
                alert_about(Alert::ProtocolViolation, &req_id, what);
                self.resting.push(req_id);
            }
            (Waiter::Nobody, Reply::Done) => {}
            (Waiter::Lost(order_number), Reply::Found(found)) => match found {
                Some(transfer) => match self.active.get_mut(&transfer.intent.req_id) {
                    Some(active) => active.hold(queued.reservation),
                    None => {
                        warn!(req_id = %transfer.intent.req_id, "it was accepted after all");
                        let span = span_of(&transfer);
                        self.adopt(*transfer, span, queued.reservation);
                    }
                },
                None => {
                    self.under_way.remove(&order_number);
                }
            },
            (Waiter::Cid(answer_to), Reply::Found(found)) => {
                drop(answer_to.send(Ok(found.map(|transfer| *transfer))));
            }
            (Waiter::Status(answer_to), Reply::Done) => drop(answer_to.send(Ok(()))),
            (Waiter::Attend(_, _, answer_to), Reply::Found(None)) => {
                drop(answer_to.send(Err(Rejection::of(Code::TransferNotFound))));
            }
            (Waiter::Attend(req_id, action, answer_to), Reply::Found(Some(transfer))) => {
                if !self.active.contains_key(&req_id) {
                    if transfer.state.is_terminal() {
                        drop(answer_to.send(Ok(watch::channel(*transfer).1)));
                        return;
                    }
                    warn!(%req_id, "it was in nobody's hands");
                    let span = span_of(&transfer);
                    self.adopt(*transfer, span, None);
                }
                self.attend(req_id, action, answer_to, queued.deadline_ns);
            }
            (waiter, Reply::Unreadable(why)) => {
                let (call, req_id) = (queued.call.name(), queued.call.req_id().map(display));
                error!(why, req_id, call, "a row of the store cannot be read");
                match waiter {
                    Waiter::Step(req_id) => self.advance(req_id, Happened::Refused),
                    // Its own row may be there or not: that of an earlier transfer with its cid may be what is bad.
                    waiter if waiter.is_outside() => {
                        let unclear = Queued { waiter, maybe: true, ..queued };
                        self.give_up(unclear, Rejection::unknown());
                    }
                    // Until somebody has mended the row, a restart will say so again.
                    _ => queued.reservation.map_or((), Reservation::keep),
                }
            }
            (_, reply) => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Takes a stored transfer into hand and goes on with it. `reservation`: of one that has just been accepted.
    fn adopt(
        &mut self,
        transfer: Transfer,
        span: Span,
        reservation: Option<Reservation>,
    ) -> watch::Receiver<Transfer> {
        let (watch, progress) = watch::channel(transfer.clone());
        let req_id = transfer.intent.req_id;
        let row =
            Row { attempt: transfer.retry_count, ..self.row(&transfer.intent, transfer.state) };
        let started_ns = self.now();
        self.under_way.insert(transfer.intent.order_number);
        self.hands.hold(self.shard, &transfer);
        let mut active =
            Active { row, transfer, watch, started_ns, replied_ns: None, reservation: None, span };
        active.hold(reservation);
        self.active.insert(req_id, active);
        self.advance(req_id, Happened::Due);
        progress
    }

    fn on_answer(&mut self, req_id: ReqId, op: Op, answer: Answer) {
        let outcome = answer.outcome;
        let span = self.active.get(&req_id).map_or_else(Span::none, |active| active.span.clone());
        let _entered = span.entered();
        debug!(%req_id, op = op.name(), outcome = outcome.name(), "UBSCore answered");
        self.note_answer(req_id);
        if let Outcome::Unknown(Reason::Violation | Reason::Forgotten) = outcome {
            let what = format_args!("UBSCore: {} of {req_id}", op.name());
            alert_about(Alert::ProtocolViolation, &req_id, what);
        }
        if outcome.decision().is_none() {
            let text = format!("UBSCore did not decide {}: {}", op.name(), outcome.name());
            self.note(req_id, outcome.name(), None, text);
        }
        self.advance(req_id, Happened::Answered(op, answer));
    }

    /// Decides about one transfer and sets going what has to be done.
    fn advance(&mut self, req_id: ReqId, happened: Happened) {
        let Some(active) = self.active.get(&req_id) else { return };
        let _entered = active.span.clone().entered();
        let before = active.row;
        let (mut row, mut effects) = decide(before, happened, route::<T, F>);
        if self.parts.gate.is_closed() {
            let halted = |effect| restrain(row, effect, route::<T, F>);
            effects = effects.into_iter().map(halted).collect();
            // To have looked and found nothing is no try that failed.
            if effects.contains(&Effect::Rest) {
                row.attempt = before.attempt.min(row.attempt);
            }
        }
        let active = self.active.get_mut(&req_id).expect("looked up above");
        active.row = row;
        let replied = effects.iter().any(|effect| matches!(effect, Effect::Reply(..)));
        for effect in effects {
            match effect {
                Effect::Accept(_) => unreachable!("only a submitted transfer is accepted"),
                Effect::Step { transition, code, log_sequence } => {
                    let transfer = Box::new(self.active[&req_id].transfer.clone());
                    assert_eq!(transfer.state, row.state, "{req_id}: a step from another state");
                    let attempt = row.attempt;
                    let call = Call::Step { transfer, transition, code, log_sequence, attempt };
                    let span = Span::current();
                    let step = Queued { span, ..Queued::own(call, Waiter::Step(req_id)) };
                    let step = self.arrived(step);
                    if !replied {
                        self.queue.push_back(step);
                        continue;
                    }
                    if self.marks.is_empty() {
                        self.marks_due_ns = self.now() + ns(MARK_MS);
                    }
                    self.marks.push(step);
                }
                // Which of the two it becomes is decided by the gate, when it is done.
                Effect::Ask(participant, op) | Effect::LookUp(participant, op) => {
                    self.asks.push(Question { req_id, participant, op, refuse: false });
                }
                Effect::Refuse(participant, op) => {
                    self.asks.push(Question { req_id, participant, op, refuse: true });
                }
                Effect::Rest => self.resting.push(req_id),
                Effect::Reply(state, code) => self.reply(req_id, state, code),
                Effect::Retry => self.retry(req_id),
                Effect::Finish => self.finish(req_id),
            }
        }
        self.settle_resolving(req_id);
    }

    /// Tells whoever waits where the transfer ends, before PostgreSQL has the mark.
    fn reply(&mut self, req_id: ReqId, state: State, code: Option<Code>) {
        let now = self.now();
        let Some(active) = self.active.get_mut(&req_id) else { return };
        active.replied_ns = Some(now);
        active.release(state);
        self.hands.arrived(self.shard, active.order_number());
        let active = &*active;
        active.watch.send_modify(|transfer| {
            *transfer = active.transfer.clone();
            transfer.state = state;
            transfer.code = transfer.code.or(code);
        });
    }

    fn finish(&mut self, req_id: ReqId) {
        let Some(mut active) = self.active.remove(&req_id) else { return };
        active.release(active.transfer.state);
        self.under_way.remove(&active.transfer.intent.order_number);
        self.hands.let_go(self.shard, active.transfer.intent.order_number);
        let (direction, state) = (active.row.direction.name(), active.transfer.state.name());
        let ended_ns = active.replied_ns.unwrap_or_else(|| self.now());
        let seconds = Duration::from_nanos(ended_ns - active.started_ns).as_secs_f64();
        telemetry::transfer(direction, state, seconds);
        // Nobody may be waiting any more.
        drop(active.watch.send(active.transfer));
    }

    /// Asks again later, for ever.
    fn retry(&mut self, req_id: ReqId) {
        if self.active.contains_key(&req_id) {
            let delay_ms = self.back_off(req_id, "the outcome is unknown", "will try again");
            self.timers.push(Reverse((self.now() + ns(delay_ms), req_id)));
        }
    }

    /// Counts a try of a transfer in hand that came to nothing, and has the store remember it where it can be reached;
    /// returns how long to wait before the next, milliseconds. `said`: the log line, one a try.
    fn back_off(&mut self, req_id: ReqId, why: &str, said: &str) -> u64 {
        let active = &self.active[&req_id];
        let (attempt, state) = (active.row.attempt, active.row.state);
        let (user, asset) = (active.transfer.intent.user, active.transfer.intent.asset);
        if state == State::Compensating && attempt >= REFUND_FAILURES_ALERT {
            let what = format_args!("refund of {req_id}: {attempt} tries, {why}");
            alert_about(Alert::CompensationFailing, &req_id, what);
        }
        let delay_ms = self.backoff_ms(attempt);
        warn!(%req_id, state = state.name(), attempt, delay_ms, why, "{said}");
        metrics::counter!(telemetry::RETRIES_TOTAL).increment(1);
        if self.store_failures == 0 {
            let call = Call::Defer { user, asset, req_id, state, retry_count: attempt, delay_ms };
            self.enqueue(Queued::own(call, Waiter::Nobody));
        }
        delay_ms
    }

    /// Exponential with full jitter: 1..=min(cap, base * 2^(attempt-1)) milliseconds.
    fn backoff_ms(&mut self, attempt: u32) -> u64 {
        let options = &self.parts.options;
        let doubled =
            options.backoff_base_ms.saturating_mul(1 << attempt.saturating_sub(1).min(32));
        1 + self.entropy.u64() % doubled.min(options.backoff_cap_ms).max(1)
    }

    /// Calls somebody for what has been under way for too long: once a look, with the oldest as the example.
    fn look_for_stuck(&mut self) {
        let now = self.now();
        if now < self.stuck_due_ns || self.parts.gate.is_closed() {
            return;
        }
        let stuck_ns = ns(self.parts.options.stuck_ms);
        self.stuck_due_ns = now + stuck_ns / STUCK_LOOKS;
        let age_ns = |active: &Active| now - active.started_ns.max(self.resumed_ns);
        let stuck = self.active.values().filter(|active| age_ns(active) > stuck_ns);
        let count = stuck.clone().count();
        let Some(oldest) = stuck.min_by_key(|active| (active.started_ns, active.order_number()))
        else {
            return;
        };
        let (req_id, state) = (oldest.transfer.intent.req_id, oldest.row.state.name());
        let (seconds, others) = (age_ns(oldest) / 1_000_000_000, count - 1);
        let waits_for = oldest.row.state.waits_for(oldest.row.direction);
        let waits_for = waits_for.map_or("its last commit".to_owned(), |(who, op)| {
            format!("{} {}", who.account(), op.name())
        });
        let why = self.hands.last_error(self.shard, oldest.order_number());
        let why = why.map_or("no answer yet".to_owned(), |error| error.text);
        let what = format_args!(
            "{req_id} has been under way for {seconds} s and is {state}, waiting for {waits_for}: {why}; {others} others \
             of shard {} are stuck too",
            self.shard
        );
        alert_about(Alert::TransferStuck, &req_id, what);
    }

    fn fire_timers(&mut self) {
        let now = self.now();
        while let Some(&Reverse((due, req_id))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            self.advance(req_id, Happened::Due);
        }
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parked).into_iter().partition(|(due, _)| *due <= now);
        self.parked = later;
        if !due.is_empty() {
            self.queue.extend(due.into_iter().map(|(_, queued)| queued));
            self.queue.make_contiguous().sort_by_key(|queued| queued.arrival);
        }
    }

    /// How long nothing is due.
    fn until_due(&self, storing: bool) -> Duration {
        let timer = self.timers.peek().map_or(u64::MAX, |Reverse((due, _))| *due);
        let parked = self.parked.iter().map(|(due, _)| *due).min().unwrap_or(u64::MAX);
        let work = if storing { u64::MAX } else { self.store_due_ns() };
        let marks = if self.marks.is_empty() { u64::MAX } else { self.marks_due_ns };
        let records = self.recordings.due_ns();
        let due = timer.min(parked).min(work).min(marks).min(records).saturating_sub(self.now());
        let awaited = self.recordings.are_awaited();
        let waited_for = self.holds_work() || awaited || !self.resolving.is_empty();
        let longest = if waited_for { EXPIRY_MS } else { self.parts.options.stale_ms };
        let look = match self.active.is_empty() || self.parts.gate.is_closed() {
            true => u64::MAX,
            false => self.stuck_due_ns.saturating_sub(self.now()),
        };
        Duration::from_nanos(due.min(look).min(ns(longest)))
    }

    /// When an idle store has something to do.
    fn store_due_ns(&self) -> u64 {
        let work = if self.queue.is_empty() { self.scan_due_ns } else { 0 };
        work.max(self.store_retry_ns)
    }
}

/// How each participant is asked.
fn route<T: Adapter, F: Adapter>(participant: Participant) -> Route {
    match participant {
        Participant::Funding => F::ROUTE,
        Participant::Spot => T::ROUTE,
    }
}

/// The span of a transfer that no request of ours came with.
fn span_of(transfer: &Transfer) -> Span {
    let Intent { req_id, direction, .. } = &transfer.intent;
    debug_span!(parent: None, "transfer", %req_id, direction = direction.name())
}

/// What a call that broke the protocol was about.
fn violator(call: &Call) -> String {
    match call {
        Call::Accept { intent, .. } | Call::Operate { intent, .. } => intent.req_id.to_string(),
        Call::Step { transfer, .. } => transfer.intent.req_id.to_string(),
        Call::Defer { req_id, .. } => req_id.to_string(),
        Call::QueryOperation { req_id, .. } | Call::Find(Sought::ReqId(req_id)) => {
            req_id.to_string()
        }
        Call::External(external) | Call::FindExternal(external) => external.idem_key.clone(),
        Call::Find(Sought::Cid(user, _)) | Call::SetFundingStatus { user, .. } => user.to_string(),
    }
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// A future that may be absent, and then never comes.
async fn conditional<D: Future + Unpin>(doing: Option<&mut D>) -> Option<D::Output> {
    match doing {
        Some(doing) => Some(doing.await),
        None => std::future::pending().await,
    }
}
