//! The task of the till: finds the rows that are due, hands them out, and looks again.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tracing::{error, warn};

use super::call::Shop;
use super::lane::{Due, Lane, Place};
use super::parts::{Nudge, TillParts};
use crate::adapters::Adapter;
use crate::coordinator::{Coordinator, Rejection};
use crate::gate::Gate;
use crate::postgres::reads::Reads;
use crate::postgres::reads::recharges::{DueKind, DueLane};
use crate::postgres::{Error, Superseded};
use crate::recharge::{RechargeId, ReturnId};

/// The longest pause between two reads. A look may be lost.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest, so that a busy till needs few.
const LOOK_MIN: Duration = Duration::from_millis(10);
/// The most hints in hand; further ones wait in the queue.
const HINTS_MAX: usize = 32;
/// How long a row that failed without a new time is passed over.
const SHUN: Duration = Duration::from_secs(30);

/// The row that a job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Order(RechargeId),
    Return(ReturnId),
    /// An order that is over: beside its own row.
    Over(RechargeId),
}

/// A job in hand.
enum Job {
    /// The step that is due for a row, of a channel.
    Due(Row, String, Place),
    /// A look that was asked for.
    Hint,
}

/// See the module.
pub(super) struct TillTask<T, F> {
    shop: Arc<Shop<T, F>>,
    coordinator: Arc<Coordinator<T, F>>,
    reads: Reads,
    gate: Arc<Gate>,
    lanes: BTreeMap<String, Lane>,
    /// The same of channels that are not configured any more, once their names are read: bonuses go
    /// back and transfers to Spot go on without them.
    gone: Option<BTreeMap<String, Lane>>,
    /// The jobs of a lane.
    threads: usize,
    jobs: JoinSet<Result<(), Rejection>>,
    in_hand: HashMap<Id, Job>,
    hints: usize,
    /// Rows that are passed over until a time, monotonic ns: those in hand, and those that failed
    /// without a new time in the row.
    passed: BTreeMap<Row, u64>,
    /// When the rows are read next, at the earliest and at the latest, monotonic ns.
    read_ns: (u64, u64),
}

impl<T: Adapter, F: Adapter> TillTask<T, F> {
    pub(super) fn new(parts: TillParts<T, F>) -> TillTask<T, F> {
        let names: Vec<String> =
            parts.channels.all().map(|channel| channel.terms.name.clone()).collect();
        let threads = (parts.options.parallel / names.len().max(1)).max(1);
        let per_second = parts.options.calls_per_second_max.max(1);
        let per_second = NonZeroU32::new(per_second).expect("at least 1");
        let lane = |name: String| (name, Lane::new(threads, per_second, Arc::clone(&parts.clock)));
        let lanes = names.into_iter().map(lane).collect();
        TillTask {
            coordinator: Arc::clone(&parts.coordinator),
            reads: parts.reads.clone(),
            gate: Arc::clone(&parts.gate),
            lanes,
            gone: None,
            threads,
            jobs: JoinSet::new(),
            in_hand: HashMap::new(),
            hints: 0,
            passed: BTreeMap::new(),
            read_ns: (0, 0),
            shop: Arc::new(Shop::new(parts)),
        }
    }

    /// Works until no handle is left. Calls under way may end or not: the rows have their times.
    pub(super) async fn run(mut self, mut heard: mpsc::Receiver<Nudge>) -> Result<(), Superseded> {
        let clock = Arc::clone(&self.shop.clock);
        let mut gate = self.gate.watch();
        let coordinator = Arc::clone(&self.coordinator);
        tokio::select! {
            () = coordinator.recovered() => {}
            () = ended(&mut heard) => return Ok(()),
        }
        loop {
            let now_ns = clock.monotonic_ns();
            if self.read_ns.1 <= now_ns && self.read_ns.0 <= now_ns {
                self.read().await;
            }
            let due_ns = self.read_ns.1.max(self.read_ns.0);
            let wait = Duration::from_nanos(due_ns.saturating_sub(clock.monotonic_ns()));
            tokio::select! {
                biased;
                Some(ended) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.on_ended(ended);
                }
                looked = heard.recv(), if self.hints < HINTS_MAX => match looked {
                    Some(nudge) => self.hint(nudge),
                    None => return Ok(()),
                },
                // The gate lives as long as this.
                _ = gate.changed() => self.read_soon(),
                () = clock.sleep(wait) => {}
            }
        }
    }

    /// Lanes for the channels that are not configured any more.
    async fn unconfigured(&self) -> Result<BTreeMap<String, Lane>, Error> {
        let names = self.reads.channel_names().await?;
        let gone = names.into_iter().filter(|name| !self.lanes.contains_key(name));
        let clock = &self.shop.clock;
        Ok(gone
            .map(|name| (name, Lane::new(self.threads, NonZeroU32::MIN, clock.clone())))
            .collect())
    }

    fn lane(&mut self, channel: &str) -> Option<&mut Lane> {
        let gone = self.gone.as_mut().and_then(|lanes| lanes.get_mut(channel));
        self.lanes.get_mut(channel).or(gone)
    }

    /// Every lane with each kind of order that it takes.
    fn kinds(&self) -> impl Iterator<Item = (&String, &Lane, DueKind)> {
        let gone = self.gone.iter().flatten().flat_map(each).filter(|(.., kind)| !kind.asks());
        self.lanes.iter().flat_map(each).chain(gone)
    }

    fn read_soon(&mut self) {
        self.read_ns.1 = 0;
    }

    /// A new order is due already; one that is paid for is asked about soon.
    fn hint(&mut self, nudge: Nudge) {
        let shop = Arc::clone(&self.shop);
        let job = self.jobs.spawn(async move { shop.hinted(nudge).await });
        self.in_hand.insert(job.id(), Job::Hint);
        self.hints += 1;
        self.read_soon();
    }

    fn on_ended(&mut self, ended: Result<(Id, Result<(), Rejection>), tokio::task::JoinError>) {
        let (id, failed) = match ended {
            Ok((id, Ok(()))) => (id, None),
            Ok((id, Err(rejection))) => (id, Some(rejection.code.name().to_owned())),
            Err(broken) => {
                error!(%broken, "a job of the till broke");
                (broken.id(), Some("broken".to_owned()))
            }
        };
        match self.in_hand.remove(&id) {
            Some(Job::Hint) => self.hints -= 1,
            Some(Job::Due(row, channel, place)) => {
                if let Some(lane) = self.lane(&channel) {
                    lane.give_back(place);
                }
                self.passed.remove(&row);
                if let Some(why) = failed {
                    warn!(?row, why, "a job of the till has no end");
                    self.shun(row);
                }
            }
            None => {}
        }
        self.read_soon();
    }

    /// Passes a row over for a while: it may be due still, and stops no other one.
    fn shun(&mut self, row: Row) {
        let until = Duration::from_nanos(self.shop.clock.monotonic_ns()) + SHUN;
        self.passed.insert(row, u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Reads the due rows, hands them out, and sets the time of the next read.
    async fn read(&mut self) {
        let wait = match self.hand_out().await {
            Ok(wait) => wait.clamp(LOOK_MIN, LOOK),
            Err(failure) => {
                warn!(%failure, "the till waits for PostgreSQL");
                LOOK
            }
        };
        let now = Duration::from_nanos(self.shop.clock.monotonic_ns());
        let ns = |at: Duration| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.read_ns = (ns(now + LOOK_MIN), ns(now + wait));
    }

    /// Hands out the due rows. Returns the pause until something is due again.
    async fn hand_out(&mut self) -> Result<Duration, Error> {
        if self.shop.is_quiet() {
            return Ok(LOOK);
        }
        if self.gone.is_none() {
            self.gone = Some(self.unconfigured().await?);
        }
        let now_ns = self.shop.clock.monotonic_ns();
        self.passed.retain(|_, until| *until > now_ns);
        let now = self.shop.now();
        let (due, odd) = self.due(now).await?;
        // Rows that cannot be read have had the place of others.
        let mut wait = if odd { LOOK_MIN } else { LOOK };
        let gone = self.gone.iter_mut().flat_map(BTreeMap::values_mut);
        self.lanes.values_mut().chain(gone).for_each(Lane::pass);
        for (channel, due) in due {
            if let Some(pause) = self.begin(&channel, due) {
                wait = wait.min(pause);
            }
        }
        let all: Vec<DueLane> = self
            .kinds()
            .map(|(channel, _, kind)| DueLane { channel: channel.clone(), kind, room: 1 })
            .collect();
        if let Some(at) = self.reads.next_due(&all, now).await? {
            let until = Duration::try_from(now.duration_until(at)).unwrap_or(Duration::ZERO);
            wait = wait.min(until);
        }
        Ok(wait)
    }

    /// The rows that are due and have room, in the order of turns, and whether others cannot be
    /// read.
    async fn due(&mut self, now: Timestamp) -> Result<(Vec<(String, Due)>, bool), Error> {
        let mut lanes = Vec::new();
        for (channel, lane, kind) in self.kinds() {
            let room = lane.room(kind.asks());
            if room > 0 {
                lanes.push(DueLane { channel: channel.clone(), kind, room });
            }
        }
        let (mut orders, mut returns) = (Vec::new(), Vec::new());
        for row in self.passed.keys() {
            match row {
                Row::Order(id) => orders.push(*id),
                Row::Return(id) => returns.push(*id),
                Row::Over(_) => {}
            }
        }
        let (mut due, mut odd) = (Vec::new(), Vec::new());
        if !lanes.is_empty() {
            for (kind, id, order) in self.reads.due_orders(&lanes, now, &orders).await? {
                match order {
                    Ok(order) => {
                        due.push((order.order.channel.clone(), Due::Order(kind, Box::new(order))));
                    }
                    Err(failure) => odd.push((Row::Order(id), failure)),
                }
            }
        }
        let asking = self.lanes.iter().map(|(channel, lane)| (channel.clone(), lane.room(true)));
        // Behind a restore returns may be lost: none is sent until they are found again.
        let sends = !self.shop.recharges.needs_recover();
        let asking: Vec<_> = asking.filter(|(_, room)| *room > 0 && sends).collect();
        for (channel, room) in asking {
            for (id, back) in self.reads.due_returns(&channel, now, &returns, room).await? {
                match back {
                    Ok(back) => due.push((channel.clone(), Due::Return(Box::new(back)))),
                    Err(failure) => odd.push((Row::Return(id), failure)),
                }
            }
        }
        let over = self.shop.take_over().into_iter();
        due.extend(over.map(|over| (over.order.channel.clone(), Due::Over(Box::new(over)))));
        // Stable: within a turn the longest due is first.
        due.sort_by_key(|(_, due)| due.turn());
        for (row, failure) in &odd {
            error!(?row, %failure, "a row that is due cannot be read");
            self.shun(*row);
        }
        Ok((due, !odd.is_empty()))
    }

    /// Begins a job, if its channel has room. Returns the pause until its rate has.
    fn begin(&mut self, channel: &str, due: Due) -> Option<Duration> {
        let shop = Arc::clone(&self.shop);
        let place = match self.lane(channel)?.take(&due) {
            Ok(Some(place)) => place,
            none => {
                // It has no row to be found by.
                if let Due::Over(over) = due {
                    shop.ask_over(*over);
                }
                return none.err();
            }
        };
        let (row, job) = match due {
            Due::Order(_, order) => {
                let row = Row::Order(order.order.id);
                (row, self.jobs.spawn(async move { shop.order(*order).await }))
            }
            Due::Return(back) => {
                let row = Row::Return(back.back.id);
                (row, self.jobs.spawn(async move { shop.refund(*back).await }))
            }
            Due::Over(over) => {
                let row = Row::Over(over.order.id);
                (row, self.jobs.spawn(async move { shop.over(*over).await }))
            }
        };
        self.passed.insert(row, u64::MAX);
        self.in_hand.insert(job.id(), Job::Due(row, channel.to_owned(), place));
        None
    }
}

/// A lane with each kind of order.
fn each<'a>((channel, lane): (&'a String, &'a Lane)) -> [(&'a String, &'a Lane, DueKind); 5] {
    DueKind::ALL.map(|kind| (channel, lane, kind))
}

/// Returns when no handle is left.
async fn ended(heard: &mut mpsc::Receiver<Nudge>) {
    // A look is for nothing yet: everything is read once the workers are ready.
    while heard.recv().await.is_some() {}
}
