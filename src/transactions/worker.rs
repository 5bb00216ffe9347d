//! The one task that moves transactions. It is a loop over events: an answer of a party, the end of
//! a call of the store, a request, the gate, and the time. Nothing in it waits, so a slow store
//! delays no answer, and a silent party no other one.
//!
//! The store has one call at a time, because there is one writer. Everything that has come up
//! during a call goes into the next one together: moves and rounds into one flight, searches into
//! one read. Rows are in memory, and every decision is computed from them when its flight begins.
//! After a flight of unknown end the rows are read again before anything else leaves.

mod asking;
mod flight;
mod operators;
mod readings;
mod records;
mod requests;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::{info, warn};

use self::asking::{Asking, Crowds, Doubts};
use self::flight::Flight;
use self::readings::Reading;
use self::requests::{Pending, Sought};
use super::branches::Branches;
use super::entry::Entry;
use super::handle::TransactionMessage;
use super::parts::TransactionParts;
use crate::coordinator::worker::backoff::Backoff;
use crate::gate::Pass;
use crate::postgres::Superseded;
use crate::postgres::transactions::{
    Found, Landed, TransactionError, TransactionStore, UnfinishedPage,
};
use crate::transaction::{TransactionName, TransactionRow, TransactionState};
use domain::transfer::ReqId;

/// Rows in one read of the unfinished ones.
const PAGE_ROWS: usize = 500;
/// Calls of the store that wait; further requests stay in the inbox.
const WORK_MAX: usize = 1_024;
/// The longest wait before a failed store is tried again, milliseconds.
const STORE_RETRY_MS_MAX: u64 = 1_000;

/// A call of the store that waits for its turn.
enum Work {
    /// A round, or the end of a name that nothing stands under.
    Accept(Box<Pending>),
    /// A row by its name, for a caller.
    Find(Box<Sought>),
    /// A row that may have changed.
    Reread(ReqId),
    /// Unfinished rows above an order number.
    Unfinished(u64),
    /// Rows that a caller has decided.
    Decided,
}

/// The kinds of calls, in the order of their turns.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Moves that are ready, and rounds.
    Flight,
    /// A round that needs a flight of its own.
    Alone,
    /// Rows by their names.
    Read,
    /// Everything else, one at a time.
    Rest,
}

impl Turn {
    const ALL: [Turn; 4] = [Turn::Flight, Turn::Alone, Turn::Read, Turn::Rest];

    fn next(self) -> Turn {
        Turn::ALL[(self as usize + 1) % Turn::ALL.len()]
    }
}

/// The end of a call.
enum Done {
    Flown(Flight, Result<Landed, TransactionError>),
    Cancelled(Box<Pending>, Result<TransactionRow, TransactionError>),
    Read(Vec<Reading>, Result<Vec<Found>, TransactionError>),
    Unfinished(u64, Result<UnfinishedPage, TransactionError>),
    Decided(Result<Vec<ReqId>, TransactionError>),
}

type Running<S> = Pin<Box<dyn Future<Output = (S, Done)> + Send>>;

/// See the module.
pub(super) struct Worker<S, B> {
    parts: TransactionParts<B>,
    /// `None` during a call.
    store: Option<S>,
    running: Option<Running<S>>,
    work: VecDeque<Work>,
    /// The kind of the last call.
    turn: Turn,
    /// Failures of the store in a row, and when it may be tried, monotonic ns.
    outage: (u32, u64),
    /// Every unfinished row has been read.
    loaded: bool,
    /// Requests before that.
    early: Vec<TransactionMessage>,
    /// No handle is left: the worker ends after the call under way.
    closing: bool,
    entries: HashMap<ReqId, Entry>,
    names: HashMap<TransactionName, ReqId>,
    /// Order numbers that the watermark must not pass: of rounds that are being written, and of
    /// transactions that Funding or Spot has not ended.
    numbers_in_use: BTreeSet<u64>,
    /// Rounds of new transactions in the flight under way.
    flying: usize,
    /// The last one that a flight has looked at.
    taken_last: Option<ReqId>,
    /// The last flight was of one row alone.
    flown_alone: bool,
    /// Unfinished transactions with a row that cannot be read.
    unreadable: BTreeSet<ReqId>,
    /// Transactions to look at.
    woken: BTreeSet<ReqId>,
    /// Transactions with something to record.
    ready: BTreeSet<ReqId>,
    /// When a transaction is looked at again, monotonic ns.
    timers: BinaryHeap<Reverse<(u64, ReqId)>>,
    questions: FuturesUnordered<Asking>,
    crowds: Crowds,
    doubts: Doubts,
    backoff: Backoff,
    /// The next tick, monotonic ns.
    tick_ns: u64,
    /// Since when the service is not halted, monotonic ns. A halt makes nothing stuck.
    resumed_ns: u64,
}

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    pub(super) fn new(parts: TransactionParts<B>, store: S, backoff: Backoff) -> Worker<S, B> {
        Worker {
            parts,
            store: Some(store),
            running: None,
            work: VecDeque::from([Work::Unfinished(0)]),
            turn: Turn::Rest,
            outage: (0, 0),
            loaded: false,
            early: Vec::new(),
            closing: false,
            entries: HashMap::new(),
            names: HashMap::new(),
            numbers_in_use: BTreeSet::new(),
            flying: 0,
            taken_last: None,
            flown_alone: false,
            unreadable: BTreeSet::new(),
            woken: BTreeSet::new(),
            ready: BTreeSet::new(),
            timers: BinaryHeap::new(),
            questions: FuturesUnordered::new(),
            crowds: Crowds::default(),
            doubts: Doubts::default(),
            backoff,
            tick_ns: 0,
            resumed_ns: 0,
        }
    }

    /// Works until no handle is left. A call of the store that is under way is waited for; a
    /// question that is under way is asked again by the next start.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<TransactionMessage>,
    ) -> Result<(), Superseded> {
        let clock = Arc::clone(&self.parts.clock);
        let mut gate = self.parts.gate.watch();
        while !(self.closing && self.running.is_none()) {
            self.proceed();
            let wait = self.due_ns().saturating_sub(clock.monotonic_ns());
            tokio::select! {
                biased;
                Some((id, question, heard)) = self.questions.next(), if !self.questions.is_empty() => {
                    self.on_heard(id, question, heard);
                }
                (store, done) = under_way(&mut self.running) => {
                    (self.store, self.running) = (Some(store), None);
                    self.on_done(done)?;
                }
                message = inbox.recv(), if !self.closing && self.work.len() < WORK_MAX => {
                    match message {
                        Some(message) => self.on_message(message),
                        None => self.closing = true,
                    }
                }
                changed = gate.changed(), if !self.closing => {
                    if changed.is_err() {
                        self.closing = true;
                    }
                    self.on_gate();
                }
                () = clock.sleep(Duration::from_nanos(wait)) => {}
            }
            self.on_time();
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.parts.clock.monotonic_ns()
    }

    /// The service's clock, in microseconds as PostgreSQL keeps it: an answer has the times that
    /// its repeat will have.
    fn now(&self) -> Timestamp {
        let now_us = i64::try_from(self.parts.clock.now_ns() / 1_000).expect("a date of today");
        Timestamp::from_microsecond(now_us).expect("a date of today")
    }

    /// Looks at every transaction that has been woken, and starts the next call of the store.
    fn proceed(&mut self) {
        if self.closing {
            return;
        }
        while let Some(id) = self.woken.pop_first() {
            self.look(id);
        }
        if self.running.is_none() && self.outage.1 <= self.now_ns() {
            self.running = self.next_call();
        }
    }

    /// One transaction: something to record, or questions to ask.
    fn look(&mut self, id: ReqId) {
        let (now, now_ns, halted) = (self.now(), self.now_ns(), self.parts.gate.is_closed());
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.settle_wish();
        entry.settle_abandoning(now_ns);
        entry.answer_waiters(now_ns);
        if entry.recording || entry.stale || !self.loaded {
            return;
        }
        let fuse = self.parts.options.fuse;
        if let Some(moved) = entry.proposal(now, halted, fuse) {
            // One commit for the answers of both stores. An abort waits for neither.
            let is_abort = moved.to == TransactionState::Aborted;
            let is_half = fuse && !is_abort && entry.is_half_heard();
            if !is_half && entry.records.due_ns <= now_ns {
                self.ready.insert(id);
            }
            return;
        }
        // Late answers, which change nothing.
        entry.heard.clear();
        if !halted {
            self.ask(id, now);
        }
    }

    /// Has a transaction read again before anything of it is decided or asked.
    fn make_stale(&mut self, id: ReqId) {
        if let Some(entry) = self.entries.get_mut(&id)
            && !entry.stale
        {
            entry.stale = true;
            self.work.push_back(Work::Reread(id));
        }
    }

    /// Begins the next call: each kind has its turn, so that none waits for ever.
    fn next_call(&mut self) -> Option<Running<S>> {
        for _ in Turn::ALL {
            self.turn = self.turn.next();
            let running = match self.turn {
                Turn::Flight => self.begin_flight(),
                Turn::Alone => self.begin_alone(),
                Turn::Read => self.begin_read(),
                Turn::Rest => self.begin_rest(),
            };
            if running.is_some() {
                return running;
            }
        }
        None
    }

    fn begin_rest(&mut self) -> Option<Running<S>> {
        let is_rest = |work: &Work| match work {
            Work::Accept(pending) => pending.is_abort(),
            Work::Unfinished(_) | Work::Decided => true,
            Work::Find(_) | Work::Reread(_) => false,
        };
        loop {
            let place = self.work.iter().position(is_rest)?;
            let work = self.work.remove(place)?;
            let mut store = self.store.take().expect("no call is under way");
            return Some(match work {
                Work::Accept(pending) => match self.begin_cancel(store, pending) {
                    Some(running) => running,
                    None => continue,
                },
                Work::Unfinished(above) => Box::pin(async move {
                    let page = store.unfinished(above, PAGE_ROWS).await;
                    (store, Done::Unfinished(above, page))
                }),
                Work::Decided => Box::pin(async move {
                    let ids = store.decided().await;
                    (store, Done::Decided(ids))
                }),
                Work::Find(_) | Work::Reread(_) => unreachable!("searches have their own turn"),
            });
        }
    }

    fn on_done(&mut self, done: Done) -> Result<(), Superseded> {
        match done {
            Done::Flown(flight, result) => self.on_flown(flight, result)?,
            Done::Cancelled(pending, result) => self.on_cancelled(pending, result)?,
            Done::Read(readings, result) => self.on_read(readings, result)?,
            Done::Unfinished(above, result) => match self.result(result)? {
                Ok(page) => self.on_unfinished(page),
                Err(_) => self.work.push_back(Work::Unfinished(above)),
            },
            Done::Decided(result) => {
                if let Ok(ids) = self.result(result)? {
                    self.on_decided(ids);
                }
            }
        }
        Ok(())
    }

    /// Notes whether the store answers.
    ///
    /// # Errors
    /// [`Superseded`]: this process may do nothing any more, and answers nothing any more.
    fn result<T>(
        &mut self,
        result: Result<T, TransactionError>,
    ) -> Result<Result<T, TransactionError>, Superseded> {
        match &result {
            Ok(_) => self.outage = (0, 0),
            Err(TransactionError::Superseded) => {
                // Callers get no answer, and no word that there is none: another process may have
                // decided.
                self.parts.silent.store(true, Ordering::Release);
                self.entries.values_mut().for_each(|entry| entry.waiters.clear());
                return Err(Superseded);
            }
            Err(error) => self.note_outage(error),
        }
        Ok(result)
    }

    /// The store waits before its next call.
    fn note_outage(&mut self, error: &TransactionError) {
        let failures = self.outage.0.saturating_add(1);
        let wait_ms = self.backoff.delay_ms(failures).min(STORE_RETRY_MS_MAX);
        self.outage = (failures, self.now_ns() + ns(wait_ms));
        warn!(%error, failures, "the store of transactions did not answer");
    }

    /// Rows of the start, or of a search for rows that this process does not know.
    fn on_unfinished(&mut self, page: UnfinishedPage) {
        for row in page.rows {
            self.adopt(row);
        }
        for row in page.unreadable {
            self.pass_over(row);
        }
        if let Some(next) = page.next {
            self.work.push_back(Work::Unfinished(next));
            return;
        }
        if self.loaded {
            return;
        }
        self.loaded = true;
        let (unfinished, active_max) = (self.entries.len(), self.parts.options.active_max);
        if unfinished > active_max {
            warn!(
                unfinished,
                active_max,
                "more transactions are unfinished than UBSCore keeps places for: when its outcome \
                 map is full, some ends wait. Raise transactions.active_max"
            );
        }
        info!(transactions = self.entries.len(), "transactions of earlier processes are taken up");
        self.publish();
        self.wake_all();
        for message in std::mem::take(&mut self.early) {
            self.on_message(message);
        }
    }

    fn on_decided(&mut self, ids: Vec<ReqId>) {
        for id in ids {
            match self.entries.contains_key(&id) {
                true => self.make_stale(id),
                false if self.unreadable.contains(&id) => {}
                // This process has not accepted it, and the start has not seen it.
                false if !self.work.iter().any(|work| matches!(work, Work::Unfinished(_))) => {
                    self.work.push_back(Work::Unfinished(0));
                }
                false => {}
            }
        }
    }

    /// Takes a row as it has just been read.
    fn adopt(&mut self, row: TransactionRow) {
        let (id, now_ns) = (row.id, self.now_ns());
        if self.unreadable.remove(&id) && row.state.is_terminal() {
            // A person has mended and ended it.
            self.release_number(row.order_number);
        }
        if row.state.is_terminal() {
            if let Some(entry) = self.entries.get_mut(&id) {
                (entry.row, entry.stale) = (row, false);
                self.finish(id);
            }
            return;
        }
        self.names.insert(row.name.clone(), id);
        match row.stores_ended {
            true => self.numbers_in_use.remove(&row.order_number),
            false => self.numbers_in_use.insert(row.order_number),
        };
        let entry = self.entries.entry(id).or_insert_with(|| Entry::new(row.clone(), now_ns));
        if entry.row.state != row.state {
            entry.since_ns = now_ns;
            entry.held = None;
        }
        (entry.row, entry.stale) = (row, false);
        self.publish();
        self.woken.insert(id);
    }

    /// A final transaction leaves the memory.
    fn finish(&mut self, id: ReqId) {
        let Some(mut entry) = self.entries.remove(&id) else { return };
        entry.wish = None;
        (entry.recording, entry.stale) = (false, false);
        entry.settle_abandoning(u64::MAX);
        entry.answer_waiters(u64::MAX);
        self.count_final(&entry.row);
        (self.parts.told)(&entry.row);
        self.names.remove(&entry.row.name);
        self.numbers_in_use.remove(&entry.row.order_number);
        self.woken.remove(&id);
        self.ready.remove(&id);
        self.publish();
    }

    /// Publishes the lowest order number in use.
    fn publish(&self) {
        if self.loaded {
            let low = self.numbers_in_use.first().copied();
            self.parts.numbers.publish(low, self.numbers_in_use.len());
        }
    }

    fn wake_all(&mut self) {
        self.woken.extend(self.entries.keys().copied());
    }

    fn on_gate(&mut self) {
        self.resumed_ns = self.now_ns();
        self.wake_all();
    }

    /// Wakes a transaction at `due_ns`, monotonic.
    fn wake_at(&mut self, due_ns: u64, id: ReqId) {
        self.timers.push(Reverse((due_ns, id)));
    }

    /// When something is due without an event, monotonic ns.
    fn due_ns(&self) -> u64 {
        let timer = self.timers.peek().map_or(u64::MAX, |Reverse((due_ns, _))| *due_ns);
        let has_work = !self.work.is_empty() || !self.ready.is_empty();
        let store = if self.running.is_none() && has_work { self.outage.1 } else { u64::MAX };
        timer.min(store).min(self.tick_ns)
    }

    fn on_time(&mut self) {
        let now_ns = self.now_ns();
        while let Some(Reverse((due_ns, id))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            self.woken.insert(id);
        }
        if self.tick_ns <= now_ns {
            let tick = u64::try_from(self.parts.options.tick.as_nanos()).unwrap_or(u64::MAX);
            self.tick_ns = now_ns.saturating_add(tick);
            self.tick();
        }
    }
}

/// The call under way; without one it never ends.
async fn under_way<S>(running: &mut Option<Running<S>>) -> (S, Done) {
    match running {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

/// Milliseconds as nanoseconds.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// A time ahead, monotonic ns.
fn after(now_ns: u64, wait: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}

/// Held while money may move.
type Moving = Option<Pass>;
