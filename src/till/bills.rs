//! The bills of channels: each day's bill is fetched once it is due, until it is good, and compared
//! with the rows here until nothing differs.
//!
//! A row of `channel_bills` is due at its `next_at`, and each try is written down before its call.
//! Each channel has one job at a time, beside those of the till: a bill delays no order. It never
//! halts: it is the word of an outsider.

mod fetch;
mod look;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tracing::{debug, error, warn};

use super::step::{later, pause};
use super::watch::{CallEnd, Watch};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::channels::Channel;
use crate::channels::open::{OpenChannel, OpenChannels};
use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::coordinator::recharges::Recharges;
use crate::entropy::Entropy;
use crate::gate::Gate;
use crate::postgres::bills::BillStore;
use crate::postgres::reads::Reads;
use crate::postgres::{Error, Superseded};
use crate::recharge::bill::{BillDays, BillState, ChannelBill, FindingKind};
use crate::task::Tasks;
use crate::telemetry;

/// The longest pause between two reads of the rows.
const LOOK: Duration = Duration::from_secs(30);
/// The shortest.
const LOOK_MIN: Duration = Duration::from_millis(20);
/// A channel is passed over behind a failed job for so long.
const SHUN: Duration = Duration::from_secs(30);
/// The first pause behind a try that has brought no bill. It doubles.
const RETRY: Duration = Duration::from_secs(60);
/// The longest pause between two tries.
const RETRY_CAP: Duration = Duration::from_hours(1);
/// The same of comparisons that have found something.
const COMPARE_CAP: Duration = Duration::from_hours(6);
/// A bill that is not there so long behind `bill_at` is late.
const LATE: Duration = Duration::from_hours(24);
/// The pause between two searches for bills that are late.
const WATCH: Duration = Duration::from_hours(1);
/// The most days before today that are fetched at once: channels keep bills for three months.
const DAYS_MAX: i64 = 92;
/// The most days before today of a channel that has no bill yet.
const FIRST_DAYS_MAX: i64 = 31;

/// The parts that the task works with.
pub struct BillsParts<T, F> {
    /// Has payments decided, and books returns.
    pub recharges: Arc<Recharges<T, F>>,
    /// The channels.
    pub channels: Arc<OpenChannels>,
    /// The days of each channel, by its name.
    pub days: BTreeMap<String, BillDays>,
    /// The rows of bills.
    pub store: BillStore,
    /// The task begins once its workers have found the transfers of an earlier process.
    pub coordinator: Arc<Coordinator<T, F>>,
    /// Reads of payments.
    pub reads: Reads,
    /// Closed while the service is halted.
    pub gate: Arc<Gate>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For pauses between tries.
    pub entropy: Box<dyn Entropy>,
    /// Set when the process may do nothing more.
    pub silent: Arc<AtomicBool>,
}

/// Bills, for operators.
#[derive(Clone)]
pub struct Bills {
    /// The rows of bills.
    pub store: BillStore,
    days: Arc<BTreeMap<String, BillDays>>,
    wakes: mpsc::Sender<()>,
}

impl Bills {
    /// The days of a channel; `None`: it is not in the configuration.
    pub fn days(&self, channel: &str) -> Option<&BillDays> {
        self.days.get(channel)
    }

    /// The first day of a channel that its bill can be asked for: channels keep them for three
    /// months. `None`: it is not in the configuration.
    pub fn first_kept(&self, channel: &str, now: Timestamp) -> Option<Date> {
        let today = self.days(channel)?.day_of(now);
        Some(today.checked_sub(DAYS_MAX.days()).unwrap_or(Date::MIN))
    }

    /// Has the rows read now.
    pub fn look(&self) {
        if self.wakes.try_send(()).is_err() {
            debug!("bills are looked at soon, or the process stops");
        }
    }
}

/// Starts the task. It ends when every handle is dropped.
pub fn start<T: Adapter, F: Adapter>(parts: BillsParts<T, F>, tasks: &mut Tasks) -> Bills {
    let (wakes, woken) = mpsc::channel(1);
    let (store, days) = (parts.store.clone(), Arc::new(parts.days.clone()));
    tasks.run("bills", BillsTask::new(parts).run(woken));
    Bills { store, days, wakes }
}

/// The parts that all jobs share.
struct Office<T, F> {
    recharges: Arc<Recharges<T, F>>,
    channels: Arc<OpenChannels>,
    days: BTreeMap<String, BillDays>,
    store: BillStore,
    reads: Reads,
    gate: Arc<Gate>,
    clock: Arc<dyn Clock>,
    entropy: Mutex<Box<dyn Entropy>>,
    silent: Arc<AtomicBool>,
    watch: Watch,
}

/// See the module.
struct BillsTask<T, F> {
    office: Arc<Office<T, F>>,
    coordinator: Arc<Coordinator<T, F>>,
    jobs: JoinSet<Result<(), Error>>,
    /// The channel of each job in hand.
    in_hand: BTreeMap<Id, String>,
    /// Channels that are passed over until a time, monotonic ns.
    passed: BTreeMap<String, u64>,
    /// The last day of each channel that has a row.
    known: BTreeMap<String, Date>,
    /// When the bills of a channel are searched for late ones, monotonic ns.
    watched: BTreeMap<String, u64>,
}

impl<T: Adapter, F: Adapter> BillsTask<T, F> {
    fn new(parts: BillsParts<T, F>) -> BillsTask<T, F> {
        let BillsParts { recharges, channels, days, store, coordinator, reads, .. } = parts;
        let BillsParts { gate, clock, entropy, silent, .. } = parts;
        let (entropy, watch) = (Mutex::new(entropy), Watch::default());
        let office =
            Office { recharges, channels, days, store, reads, gate, clock, entropy, silent, watch };
        BillsTask {
            office: Arc::new(office),
            coordinator,
            jobs: JoinSet::new(),
            in_hand: BTreeMap::new(),
            passed: BTreeMap::new(),
            known: BTreeMap::new(),
            watched: BTreeMap::new(),
        }
    }

    /// Works until no handle is left. A job under way may end or not: its row has its time.
    async fn run(mut self, mut woken: mpsc::Receiver<()>) -> Result<(), Superseded> {
        let (clock, coordinator) = (Arc::clone(&self.office.clock), Arc::clone(&self.coordinator));
        let mut gate = self.office.gate.watch();
        tokio::select! {
            () = coordinator.recovered() => {}
            () = ended(&mut woken) => return Ok(()),
        }
        loop {
            let wait = match self.begin().await {
                Ok(wait) => wait.clamp(LOOK_MIN, LOOK),
                // Its workers end the process.
                Err(failure) => {
                    warn!(%failure, "bills wait for PostgreSQL");
                    LOOK
                }
            };
            tokio::select! {
                biased;
                Some(ended) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.on_ended(ended);
                }
                woken = woken.recv() => match woken {
                    // A person waits for the row.
                    Some(()) => self.passed.clear(),
                    None => return Ok(()),
                },
                // The gate lives as long as this.
                _ = gate.changed() => {}
                () = clock.sleep(wait) => {}
            }
        }
    }

    fn on_ended(&mut self, ended: Result<(Id, Result<(), Error>), tokio::task::JoinError>) {
        let (id, failed) = match ended {
            Ok((id, done)) => (id, done.err().map(|failure| failure.to_string())),
            Err(broken) => {
                error!(%broken, "a job of bills broke");
                (broken.id(), Some("broken".to_owned()))
            }
        };
        let Some(channel) = self.in_hand.remove(&id) else { return };
        if let Some(why) = failed {
            warn!(channel, why, "a job of bills has no end");
            let until = Duration::from_nanos(self.office.clock.monotonic_ns()) + SHUN;
            self.passed.insert(channel, u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Begins a job for each channel that has none and a bill that is due. Returns the pause until
    /// one is due again.
    async fn begin(&mut self) -> Result<Duration, Error> {
        if self.office.is_quiet() {
            return Ok(LOOK);
        }
        let now_ns = self.office.clock.monotonic_ns();
        self.passed.retain(|_, until| *until > now_ns);
        let now = self.office.now();
        let names: Vec<String> = self.office.days.keys().cloned().collect();
        for channel in names {
            self.watch_missing(&channel, now_ns).await?;
            let is_busy = self.in_hand.values().any(|busy| *busy == channel);
            if is_busy || self.passed.contains_key(&channel) {
                continue;
            }
            self.want_days(&channel, now).await?;
            let Some(bill) = self.office.store.due_bill(&channel, now).await? else { continue };
            let office = Arc::clone(&self.office);
            let job = self.jobs.spawn(async move { office.attend(bill).await });
            self.in_hand.insert(job.id(), channel);
        }
        let next = self.office.store.next_bill_at(now).await?;
        let wait = next.map(|at| Duration::try_from(now.duration_until(at)));
        Ok(wait.map_or(LOOK, |wait| wait.unwrap_or(Duration::ZERO)))
    }

    /// Says that a bill has never come, also one that no job has reached.
    async fn watch_missing(&mut self, channel: &str, now_ns: u64) -> Result<(), Error> {
        if self.watched.get(channel).is_some_and(|next_ns| *next_ns > now_ns) {
            return Ok(());
        }
        let office = &self.office;
        if let Some(bill) = office.store.first_missing(channel).await? {
            let why = bill.what.as_deref().unwrap_or("it was not reached");
            office.watch_late(&office.days[channel], &bill, why);
        }
        office.measure(channel).await?;
        let next = Duration::from_nanos(now_ns) + WATCH;
        let next_ns = u64::try_from(next.as_nanos()).unwrap_or(u64::MAX);
        self.watched.insert(channel.to_owned(), next_ns);
        Ok(())
    }

    /// Makes the rows of the days with bills that have become due. Once a day, clean days with
    /// payments that were decided since are opened again.
    async fn want_days(&mut self, channel: &str, now: Timestamp) -> Result<(), Error> {
        let (office, days) = (&self.office, self.office.days[channel]);
        let last_due = days.last_due(now);
        if self.known.get(channel).is_some_and(|known| *known >= last_due) {
            return Ok(());
        }
        let before = |count: i64| last_due.checked_sub(count.days()).unwrap_or(Date::MIN);
        let Some(since) = office.store.channel_since(channel).await? else { return Ok(()) };
        // An operator may have asked for any day: one that is between is wanted too.
        let back = before(FIRST_DAYS_MAX);
        let back = match office.store.last_bill_day(channel).await? {
            Some(last) => back.min(last.tomorrow().unwrap_or(Date::MAX)).max(before(DAYS_MAX)),
            None => back,
        };
        let first = back.max(days.day_of(since));
        let wanted = first.series(1.day()).take_while(|day| *day <= last_due);
        let wanted: Vec<Date> = wanted.collect();
        if !wanted.is_empty() {
            office.store.want_bills(channel, &wanted, now).await?;
        }
        let offset = days.offset.seconds();
        let late = office.store.days_of_late_payments(channel, offset, now).await?;
        if !late.is_empty() {
            office.store.open_again(channel, &late, now).await?;
        }
        office.measure(channel).await?;
        self.known.insert(channel.to_owned(), last_due);
        Ok(())
    }
}

impl<T: Adapter, F: Adapter> Office<T, F> {
    /// Does the next step for a bill that is due.
    async fn attend(&self, bill: ChannelBill) -> Result<(), Error> {
        let Some(channel) = self.channels.get(&bill.channel).cloned() else { return Ok(()) };
        let Some(days) = self.days.get(&bill.channel) else { return Ok(()) };
        match bill.state {
            BillState::Wanted => self.fetch(&channel, days, bill).await?,
            _ if bill.again => self.fetch(&channel, days, bill).await?,
            BillState::Compared | BillState::Clean => {
                let name = bill.channel.clone();
                if self.look(&channel, days, bill).await? {
                    while self.store.remove_lines(&name).await? {}
                }
            }
        }
        self.measure(&channel.terms.name).await
    }

    /// Sets the gauges of a channel.
    async fn measure(&self, channel: &str) -> Result<(), Error> {
        let (open, last) = self.store.bill_backlog(channel).await?;
        for kind in FindingKind::ALL {
            let count = open.iter().find(|(found, _)| *found == kind).map_or(0, |found| found.1);
            telemetry::recharges::bill_findings(channel, kind.name(), count);
        }
        let end = last.and_then(|day| self.days.get(channel)?.span(day));
        if let Some((_, end)) = end {
            telemetry::recharges::last_good_bill(channel, end.as_second());
        }
        Ok(())
    }

    /// Whether nothing may be asked: the service is halted, or the process must end.
    fn is_quiet(&self) -> bool {
        self.gate.is_closed() || self.silent.load(Ordering::Acquire)
    }

    /// The time, as exact as PostgreSQL keeps it.
    fn now(&self) -> Timestamp {
        let now_us = i64::try_from(self.clock.now_ns() / 1_000).expect("a date of today");
        Timestamp::from_microsecond(now_us).expect("a date of today")
    }

    /// The time of the next try behind so many.
    fn later_by(&self, first: Duration, tries: u32, cap: Duration) -> Timestamp {
        later(self.now(), pause(first, tries, cap, self.entropy.lock().u64()))
    }

    /// Calls a channel, and counts the end. `None`: the adapter broke, and nothing is known.
    async fn call<R: CallEnd + Send + 'static>(
        &self,
        channel: &Arc<OpenChannel>,
        call: &'static str,
        work: impl FnOnce(&dyn Channel) -> R + Send + 'static,
    ) -> Option<R> {
        let (began_ns, lent) = (self.clock.monotonic_ns(), Arc::clone(channel));
        let ended = tokio::task::spawn_blocking(move || work(&*lent.channel)).await;
        self.counted(channel, call, began_ns, ended.ok())
    }

    /// Counts the end of a call.
    fn counted<R: CallEnd>(
        &self,
        channel: &OpenChannel,
        call: &'static str,
        began_ns: u64,
        end: Option<R>,
    ) -> Option<R> {
        let (name, now_ns) = (&channel.terms.name, self.clock.monotonic_ns());
        match &end {
            Some(end) => {
                let took = Duration::from_nanos(now_ns.saturating_sub(began_ns));
                self.watch.ended(name, call, end, now_ns, took);
            }
            None => error!(channel = name, call, "the adapter of a channel broke"),
        }
        end
    }

    /// Raises the alert about a bill that is not there a day behind its time.
    fn watch_late(&self, days: &BillDays, bill: &ChannelBill, why: &str) {
        let (name, day, now) = (&bill.channel, bill.day, self.now());
        if days.due(day).is_some_and(|due| later(due, LATE) <= now) {
            let subject = format!("{name} {day}");
            let what = format_args!("the bill of {day} of channel {name} does not come: {why}");
            alert_about(Alert::BillLate, &subject, what);
        }
    }
}

/// Returns when no handle is left.
async fn ended(woken: &mut mpsc::Receiver<()>) {
    // Everything is read once the workers are ready.
    while woken.recv().await.is_some() {}
}
