//! The one task that moves transactions. It is a loop over events: an answer of a party, the end of
//! a call of the store, a request, the gate, and the time. Nothing in it waits, so a slow store
//! delays no answer, and a silent party no other one.
//!
//! The store has one call at a time, because there is one writer. Rows are in memory, and every
//! decision is computed from them when its commit begins. After a commit of unknown end the row is
//! read again before anything else leaves.

mod asking;
mod operators;
mod records;
mod requests;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::{info, warn};

use self::asking::{Asking, Crowds, Doubts};
use self::records::Batch;
use self::requests::{Pending, Sought};
use super::branches::Branches;
use super::entry::Entry;
use super::handle::TransactionMessage;
use super::parts::TransactionParts;
use crate::coordinator::worker::backoff::Backoff;
use crate::gate::Pass;
use crate::postgres::Superseded;
use crate::postgres::transactions::{Accepted, MoveResult, TransactionError, TransactionStore};
use crate::transaction::{TransactionName, TransactionRow};
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

/// The end of a call.
enum Done {
    Accepted(Box<Pending>, Result<Accepted, TransactionError>),
    Cancelled(Box<Pending>, Result<TransactionRow, TransactionError>),
    Found(Box<Sought>, Result<Option<TransactionRow>, TransactionError>),
    Reread(ReqId, Result<Option<TransactionRow>, TransactionError>),
    Unfinished(u64, Result<Vec<TransactionRow>, TransactionError>),
    Decided(Result<Vec<ReqId>, TransactionError>),
    Recorded(Batch, Result<Vec<MoveResult>, TransactionError>),
}

type Running<S> = Pin<Box<dyn Future<Output = (S, Done)> + Send>>;

/// See the module.
pub(super) struct Worker<S, B> {
    parts: TransactionParts<B>,
    /// `None` during a call.
    store: Option<S>,
    running: Option<Running<S>>,
    work: VecDeque<Work>,
    /// The last call was a commit of moves: another kind has its turn.
    recorded_last: bool,
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
    /// A call of the store is writing a round.
    accepting: bool,
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
            recorded_last: false,
            outage: (0, 0),
            loaded: false,
            early: Vec::new(),
            closing: false,
            entries: HashMap::new(),
            names: HashMap::new(),
            numbers_in_use: BTreeSet::new(),
            accepting: false,
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
                    self.accepting = false;
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
        if entry.proposal(now, halted, self.parts.options.fuse).is_some() {
            if entry.records.due_ns <= now_ns {
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

    fn next_call(&mut self) -> Option<Running<S>> {
        if (!self.recorded_last || self.work.is_empty())
            && let Some(running) = self.begin_record()
        {
            self.recorded_last = true;
            return Some(running);
        }
        self.recorded_last = false;
        let work = self.work.pop_front()?;
        let mut store = self.store.take().expect("no call is under way");
        Some(match work {
            Work::Accept(pending) => match self.begin_accept(store, pending) {
                Some(running) => {
                    self.accepting = true;
                    running
                }
                None => return self.next_call(),
            },
            Work::Find(sought) => Box::pin(async move {
                let found = store.find(sought.name()).await;
                (store, Done::Found(sought, found))
            }),
            Work::Reread(id) => {
                // It may have ended meanwhile.
                let Some(name) = self.entries.get(&id).map(|entry| entry.row.name.clone()) else {
                    self.store = Some(store);
                    return self.next_call();
                };
                Box::pin(async move {
                    let found = store.find(&name).await;
                    (store, Done::Reread(id, found))
                })
            }
            Work::Unfinished(above) => Box::pin(async move {
                let rows = store.unfinished(above, PAGE_ROWS).await;
                (store, Done::Unfinished(above, rows))
            }),
            Work::Decided => Box::pin(async move {
                let ids = store.decided().await;
                (store, Done::Decided(ids))
            }),
        })
    }

    fn on_done(&mut self, done: Done) -> Result<(), Superseded> {
        match done {
            Done::Accepted(pending, result) => self.on_accepted(pending, result),
            Done::Cancelled(pending, result) => self.on_cancelled(pending, result),
            Done::Found(sought, result) => self.on_found(sought, result),
            Done::Recorded(batch, result) => self.on_recorded(batch, result),
            Done::Reread(id, result) => match self.result(result)? {
                Ok(Some(row)) => {
                    self.adopt(row);
                    Ok(())
                }
                Ok(None) => {
                    self.on_lost(id);
                    Ok(())
                }
                Err(_) => {
                    self.work.push_back(Work::Reread(id));
                    Ok(())
                }
            },
            Done::Unfinished(above, result) => {
                match self.result(result)? {
                    Ok(rows) => self.on_unfinished(rows),
                    Err(_) => self.work.push_back(Work::Unfinished(above)),
                }
                Ok(())
            }
            Done::Decided(result) => {
                if let Ok(ids) = self.result(result)? {
                    self.on_decided(ids);
                }
                Ok(())
            }
        }
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
                // Callers are not answered: another process may have decided.
                self.entries.values_mut().for_each(|entry| entry.waiters.clear());
                return Err(Superseded);
            }
            Err(error) => {
                let failures = self.outage.0.saturating_add(1);
                let wait_ms = self.backoff.delay_ms(failures).min(STORE_RETRY_MS_MAX);
                self.outage = (failures, self.now_ns() + ns(wait_ms));
                warn!(%error, failures, "the store of transactions did not answer");
            }
        }
        Ok(result)
    }

    /// Rows of the start, or of a search for rows that this process does not know.
    fn on_unfinished(&mut self, rows: Vec<TransactionRow>) {
        let last = rows.last().map(|row| row.order_number);
        let is_full = rows.len() >= PAGE_ROWS;
        for row in rows {
            self.adopt(row);
        }
        if let (true, Some(last)) = (is_full, last) {
            self.work.push_back(Work::Unfinished(last));
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
