//! One worker: the owner of a shard of accounts. It is a single task that does one thing at a time.
//!
//! Calls that arrive during a commit form the next batch. No call waits for a timer or for company.
//! The exception is the last step of a transfer after its client has the answer. A transfer has at
//! most one call queued, or one commit or question under way.
//!
//! | parts | state |
//! |---|---|
//! | `inbox`, `reply` | messages from outside, and the way of a reply back |
//! | `queue`, `marks` | calls that wait for a commit |
//! | `batch`, `commit`, `replies` | a commit, its result, and the replies to its calls |
//! | `active`, `drive` | a transfer in hand, and its way |
//! | `old` | transfers that have been open for long |
//! | `ask`, `recording` | questions to the participants |
//! | `scan`, `stuck`, `backoff` | the search of the store, alerts, waits |
//! | `halted`, `held`, `operator` | a halted service, held withdrawals, operators |

mod active;
mod ask;
pub(crate) mod backoff;
mod batch;
mod commit;
mod drive;
mod halted;
mod held;
pub(super) mod inbox;
mod marks;
mod old;
mod operator;
mod queue;
mod recording;
mod replies;
pub(super) mod reply;
mod scan;
mod stuck;
mod undecided;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tracing::info;

use self::active::Active;
use self::ask::{Answers, Questions};
use self::backoff::{Backoff, Outage, Timers};
use self::batch::Batch;
use self::held::Moved;
use self::inbox::Envelope;
use self::marks::Marks;
use self::old::{Old, Split};
use self::operator::Resolves;
use self::queue::Queue;
use self::recording::Recordings;
use self::scan::Scan;
use self::stuck::Stuck;
use self::undecided::Undecided;
use super::hand::Hands;
use super::numbers::Numbers;
use super::parts::Parts;
use crate::adapters::{Adapter, Answer};
use crate::coordinator::request::Rejection;
use crate::entropy::Entropy;
use crate::postgres::Superseded;
use crate::postgres::store::{Failure, Page, Reply, Store};
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::ReqId;

/// Between two checks for callers that have waited long enough, milliseconds.
const EXPIRY_MS: u64 = 100;

/// The worker that owns a user's accounts, which is their shard in the journal.
pub fn shard_of(user: UserId, shards: usize) -> usize {
    let shards = u64::try_from(shards).expect("at most 64");
    usize::try_from(user.number() % shards).expect("below the number of shards")
}

/// A question to a participant under way.
type Asking = Pin<Box<dyn Future<Output = Told> + Send>>;

/// The answers of a participant.
enum Told {
    /// About transfers.
    Answers(Answers),
    /// About records of external operations, by order number.
    Recorded(Vec<(u64, Answer)>),
}

/// The result of the store's work; the store comes back with it.
enum Done<S> {
    Committed(S, Batch, Result<Vec<Reply>, Failure>),
    Scanned(S, Result<Page, Failure>),
}

type Doing<S> = Pin<Box<dyn Future<Output = Done<S>> + Send>>;

/// The cause of a turn of the loop.
enum Woken<S> {
    Store(Done<S>),
    Participant(Told),
    Message(Option<Envelope>),
    /// The service was halted or resumed.
    Gate,
    Timer,
}

pub(super) struct Worker<T, F> {
    shard: usize,
    shards: u32,
    parts: Arc<Parts<T, F>>,
    numbers: Arc<Numbers>,
    hands: Arc<Hands>,
    queue: Queue,
    marks: Marks,
    active: HashMap<ReqId, Active>,
    undecided: Undecided,
    /// Order numbers of everything that has not ended.
    under_way: BTreeSet<u64>,
    old: Old,
    questions: Questions,
    recordings: Recordings,
    moved: Moved,
    /// Transfers that go on when the service is resumed.
    resting: Vec<ReqId>,
    resolves: Resolves,
    timers: Timers,
    backoff: Backoff,
    outage: Outage,
    /// The most calls of the next commit. Fewer while the store refuses a call without its name.
    batch_limit: usize,
    scan: Scan,
    stuck: Stuck,
    /// When expired callers are next looked for, monotonic ns.
    expiry_due_ns: u64,
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
        let options = &parts.options;
        Worker {
            shard,
            shards,
            numbers,
            hands,
            queue: Queue::default(),
            marks: Marks::default(),
            active: HashMap::new(),
            undecided: Undecided::default(),
            under_way: BTreeSet::new(),
            old: Old::new(options.open_flights, options.parked_max, parts.open.from),
            questions: Questions::default(),
            recordings: Recordings::default(),
            moved: Moved::default(),
            resting: Vec::new(),
            resolves: Resolves::default(),
            timers: Timers::default(),
            backoff: Backoff::new(options.backoff_base_ms, options.backoff_cap_ms, entropy),
            outage: Outage::default(),
            batch_limit: usize::MAX,
            scan: Scan::new(parts.watermark, &parts.open),
            stuck: Stuck::new(options.stuck_ms),
            expiry_due_ns: 0,
            parts,
        }
    }

    fn now(&self) -> u64 {
        self.parts.clock.monotonic_ns()
    }

    /// Runs until the inbox is closed and nothing more can be done now. The rest is in the store,
    /// and the next start goes on with it.
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
            let marks = self.marks.take(self.now(), !open);
            self.queue.append(marks);
            if let Some(store) = idle_store.take() {
                match self.next_job(store) {
                    Ok(job) => doing = Some(job),
                    Err(store) => idle_store = Some(store),
                }
            }
            asking.extend(self.ask());
            asking.extend(self.record());
            self.publish();
            let awaited = self.queue.keeps_a_caller() || self.recordings.are_awaited();
            let idle = doing.is_none() && asking.is_empty() && self.queue.is_empty();
            if !open && idle && !awaited {
                info!(shard = self.shard, left = self.active.len(), "worker at rest");
                return Ok(());
            }
            let mut timer = self.parts.clock.sleep(self.until_due(doing.is_some()));
            let room = open && self.queue.len() < self.parts.options.queue_max;
            let woken = tokio::select! {
                biased;
                Some(done) = conditional(doing.as_mut()) => Woken::Store(done),
                Some(told) = asking.next(), if !asking.is_empty() => Woken::Participant(told),
                Ok(()) = gate.changed() => Woken::Gate,
                message = inbox.recv(), if room => Woken::Message(message),
                () = &mut timer => Woken::Timer,
            };
            match woken {
                Woken::Store(done) => {
                    doing = None;
                    idle_store = Some(self.on_done(done)?);
                }
                Woken::Participant(told) => self.on_told(told),
                Woken::Message(Some(message)) => {
                    self.receive(message);
                    // Messages that have come meanwhile belong into the same batch.
                    while self.queue.len() < self.parts.options.batch_max
                        && let Ok(message) = inbox.try_recv()
                    {
                        self.receive(message);
                    }
                }
                Woken::Message(None) => open = false,
                Woken::Gate => self.on_gate(),
                Woken::Timer => {}
            }
            self.fire_timers();
            self.expire();
            self.expire_resolving();
            self.expire_recordings();
            self.look_for_stuck();
        }
    }

    /// The next job of an idle store; without one, the store.
    fn next_job<S: Store>(&mut self, store: S) -> Result<Doing<S>, S> {
        let now = self.now();
        if now < self.outage.retry_ns() {
            return Err(store);
        }
        if self.scan.goes_first(now, self.queue.is_empty()) {
            return Ok(self.scan(store));
        }
        // Taken before the batch is put together, and kept until the commit has ended.
        let pass = self.parts.gate.pass();
        let batch = self.batch(pass.is_some());
        match batch.is_empty() {
            true => Err(store),
            false => Ok(self.commit(store, batch, pass)),
        }
    }

    fn on_done<S>(&mut self, done: Done<S>) -> Result<S, Superseded> {
        match done {
            Done::Committed(store, batch, result) => {
                self.on_committed(batch, result)?;
                Ok(store)
            }
            Done::Scanned(store, found) => {
                self.on_scanned(found);
                Ok(store)
            }
        }
    }

    fn on_told(&mut self, told: Told) {
        match told {
            Told::Answers(answers) => {
                for (question, answer) in answers {
                    self.on_answer(question, answer);
                }
            }
            Told::Recorded(answers) => {
                for (number, answer) in answers {
                    self.on_recorded(number, answer.outcome);
                }
            }
        }
    }

    /// Publishes the order numbers under way, for the watermark and the next start.
    fn publish(&self) {
        if !self.scan.is_complete() {
            self.numbers.publish(self.shard, 0, self.under_way.len());
            return;
        }
        let low = self.under_way.first().copied().unwrap_or(u64::MAX);
        self.numbers.publish(self.shard, low, self.under_way.len());
        let Split { young, old } = self.old.split(&self.under_way);
        self.numbers.publish_old(self.shard, young.unwrap_or(u64::MAX), old);
    }

    /// Rejects the calls that were never begun, once their callers have waited long enough.
    fn expire(&mut self) {
        let now = self.now();
        if now < self.expiry_due_ns || !self.queue.holds_work() {
            return;
        }
        self.expiry_due_ns = now + ns(EXPIRY_MS);
        for queued in self.queue.expire(now) {
            self.reject(queued, Rejection::of(Code::SystemError));
        }
    }

    /// The time until something is due. `storing`: whether the store is busy.
    fn until_due(&self, storing: bool) -> Duration {
        let store = match (storing, self.queue.is_empty()) {
            (true, _) => u64::MAX,
            (false, true) => self.scan.due_ns().max(self.outage.retry_ns()),
            (false, false) => self.outage.retry_ns(),
        };
        let stuck = match self.active.is_empty() || self.parts.gate.is_closed() {
            true => u64::MAX,
            false => self.stuck.due_ns(),
        };
        let due = [
            self.timers.due_ns(),
            self.queue.due_ns(),
            self.marks.due_ns(),
            self.recordings.due_ns(),
            store,
            stuck,
        ];
        let awaited =
            self.queue.holds_work() || self.recordings.are_awaited() || !self.resolves.is_empty();
        let longest = if awaited { EXPIRY_MS } else { self.parts.options.stale_ms };
        let due = due.into_iter().min().unwrap_or(u64::MAX).saturating_sub(self.now());
        Duration::from_nanos(due.min(ns(longest)))
    }
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// A future that may be absent. An absent one never ends.
async fn conditional<D: Future + Unpin>(doing: Option<&mut D>) -> Option<D::Output> {
    match doing {
        Some(doing) => Some(doing.await),
        None => std::future::pending().await,
    }
}
