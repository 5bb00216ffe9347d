//! The leases of a node: acquired on demand and by turns, renewed together, given back drained.
//!
//! ```text
//!   desk, each tick --> acquire --> seat and owner --> released or fenced --> release
//!                                       |
//!                      each tick: renew all --> later deadlines, or lost
//! ```
//!
//! One task has all of it. Its calls and the owners run as futures of this task, so that a node
//! that is dropped or not polled, as a paused process, does nothing at all.

mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use alloy_primitives::Address;
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Duration, Instant, MissedTickBehavior, sleep, sleep_until, timeout};

use crate::crash;
use crate::news::News;
use crate::owner::{Order, Owner, OwnerEnd};
use crate::refusal::TxRefusal;
use crate::rpc::Endpoint;
use crate::seats::{Seat, Seats};
use crate::signer::Signer;
use crate::store::{Acquired, Lease, StoreError, TxStore, Wanting};
use crate::tools::Tools;

use shares::Shares;

/// The pause before a failed call about a lease is made again.
const RETRY: Duration = Duration::from_millis(100);
/// The most calls to give one lease back. Behind them it lapses, or a renewal finds it.
const RELEASES_MAX: u32 = 5;
/// The most signers without an owner that one look returns.
const WANTING_MAX: u32 = 1_000;
/// Behind the end of a lease, so that it has ended by the store's clock too.
const END_MARGIN: Duration = Duration::from_millis(5);
/// The most signers that are acquired by turns at a time.
const TAKING_MAX: usize = 8;

/// A wish of the desk.
pub(crate) enum Ask {
    /// To own a signer.
    Acquire(Address, oneshot::Sender<Result<Seat, TxRefusal>>),
    /// There is work for a signer that is not owned here.
    Wake(Address),
}

/// A signer that is owned here.
struct Owned {
    lease: Lease,
    deadline: watch::Sender<Instant>,
    orders: mpsc::Sender<Order>,
    abort: AbortHandle,
    is_releasing: bool,
}

/// The end of a call or of an owner.
enum Done {
    Acquired(Address, Instant, Result<Acquired, StoreError>),
    Renewed(Instant, BTreeMap<Address, Lease>, Result<Vec<Lease>, StoreError>),
    /// Whether it was the look of a tick.
    Wanting(bool, Result<Wanting, StoreError>),
    /// `None`: it was aborted.
    Ended(Lease, Option<OwnerEnd>),
    Ordered,
    /// Other nodes do not count this one any more, as far as the store answered.
    Left,
    /// Whether the store said so.
    Released(Lease, bool),
}

/// The keeper of a node's leases.
pub(crate) struct LeaseKeeper<S, E, K> {
    tools: Arc<Tools<S, E, K>>,
    seats: Arc<Seats>,
    asks: mpsc::Receiver<Ask>,
    keys: BTreeSet<Address>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    owned: BTreeMap<Address, Owned>,
    /// The acquires under way, each with those that wait for it.
    acquiring: BTreeMap<Address, Vec<oneshot::Sender<Result<Seat, TxRefusal>>>>,
    /// The leases that are being given back.
    releasing: BTreeSet<Address>,
    /// Leases that were to be given back, and the store did not answer.
    unreleased: BTreeMap<Address, Lease>,
    /// When another node was found to own a signer.
    others: BTreeMap<Address, Instant>,
    shares: Shares,
    is_renewing: bool,
    is_stopping: bool,
    /// Behind this time the owners are aborted.
    abort_at: Option<Instant>,
    /// When the first lease of another process ends, if that process does not renew it.
    look_at: Option<Instant>,
    /// The looks for signers without an owner that are under way.
    looking: usize,
    news: Arc<News>,
}

impl<S: TxStore, E: Endpoint, K: Signer> LeaseKeeper<S, E, K> {
    pub(crate) fn new(
        tools: Arc<Tools<S, E, K>>,
        seats: Arc<Seats>,
        asks: mpsc::Receiver<Ask>,
    ) -> LeaseKeeper<S, E, K> {
        let keys = tools.keys.addresses().into_iter().collect();
        LeaseKeeper {
            shares: Shares::new(tools.options.lease_duration),
            news: tools.store.news(),
            tools,
            seats,
            asks,
            keys,
            work: FuturesUnordered::new(),
            owned: BTreeMap::new(),
            acquiring: BTreeMap::new(),
            releasing: BTreeSet::new(),
            unreleased: BTreeMap::new(),
            others: BTreeMap::new(),
            is_renewing: false,
            is_stopping: false,
            abort_at: None,
            look_at: None,
            looking: 0,
        }
    }

    /// Keeps leases until `stop`, then gives all back, at most within `shutdown_timeout`.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut ticks = tokio::time::interval(self.tools.options.lease_renew);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        while !(self.is_stopping && self.is_idle()) {
            tokio::select! {
                biased;
                () = &mut stop, if !self.is_stopping => self.stop(),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done),
                Some(ask) = self.asks.recv() => self.ask(ask),
                _ = ticks.tick() => self.tick(),
                () = at(self.look_at), if self.look_at.is_some() => self.look(false),
                () = self.news.freed(), if self.looking == 0 => self.look(false),
                () = at(self.abort_at), if self.abort_at.is_some() => self.abort_all(),
            }
        }
    }

    /// Whether nothing is left to give back.
    fn is_idle(&self) -> bool {
        self.owned.is_empty() && self.acquiring.is_empty() && self.releasing.is_empty()
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Acquire(signer, reply) => self.wish(signer, reply),
            Ask::Wake(signer) => {
                let is_free = !self.owned.contains_key(&signer) && !self.is_of_another(signer);
                if is_free && self.may_acquire(signer) {
                    self.acquire(signer);
                }
            }
        }
    }

    fn wish(&mut self, signer: Address, reply: oneshot::Sender<Result<Seat, TxRefusal>>) {
        if let Some(seat) = self.seats.get(signer) {
            answer(reply, Ok(seat));
        } else if let Some(waiting) = self.acquiring.get_mut(&signer) {
            waiting.push(reply);
        } else if self.is_blind() {
            answer(reply, Err(TxRefusal::Away("no endpoint of the chain answers".to_owned())));
        } else if !self.may_acquire(signer) || self.owned.contains_key(&signer) {
            answer(reply, Err(TxRefusal::no_owner()));
        } else {
            self.acquire(signer);
            self.acquiring.entry(signer).or_default().push(reply);
        }
    }

    /// Whether this process may ask for a signer now. A lease that is being given back is asked for
    /// only behind that, so that the release never ends the next lease.
    fn may_acquire(&self, signer: Address) -> bool {
        !self.is_stopping
            && !self.is_blind()
            && self.keys.contains(&signer)
            && !self.releasing.contains(&signer)
            && !self.acquiring.contains_key(&signer)
    }

    /// Whether the chain is away for so long that another node may serve the signers better.
    fn is_blind(&self) -> bool {
        let blind = self.tools.looks.borrow().is_blind();
        blind.is_some_and(|time| time >= self.tools.options.release_blind)
    }

    /// Whether another node owned a signer a moment ago. It looks for new rows by itself, and if it
    /// is gone, the next look for signers without an owner tells.
    fn is_of_another(&self, signer: Address) -> bool {
        let renew = self.tools.options.lease_renew;
        self.others.get(&signer).is_some_and(|found| found.elapsed() < renew)
    }

    fn acquire(&mut self, signer: Address) {
        self.acquiring.entry(signer).or_default();
        let tools = Arc::clone(&self.tools);
        self.work.push(Box::pin(async move {
            let mut sent = Instant::now();
            let mut acquired = tools.store.acquire(signer).await;
            if matches!(acquired, Err(StoreError::Unknown(_))) {
                // It may be ours: the same question tells.
                sent = Instant::now();
                acquired = tools.store.acquire(signer).await;
            }
            Done::Acquired(signer, sent, acquired)
        }));
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Acquired(signer, sent, acquired) => self.acquired(signer, sent, acquired),
            Done::Renewed(sent, before, renewed) => self.renewed(sent, &before, renewed),
            Done::Wanting(is_tick, wanting) => self.wanted(is_tick, wanting),
            Done::Ended(lease, end) => self.ended(lease, end),
            Done::Ordered => {}
            Done::Left => self.order_releases(),
            Done::Released(lease, is_done) => {
                self.releasing.remove(&lease.signer);
                if !is_done {
                    self.unreleased.insert(lease.signer, lease);
                }
            }
        }
    }

    fn acquired(&mut self, signer: Address, sent: Instant, acquired: Result<Acquired, StoreError>) {
        let waiting = self.acquiring.remove(&signer).unwrap_or_default();
        self.others.remove(&signer);
        let answered = match acquired {
            Ok(Acquired::Mine(lease)) if self.is_stopping => {
                self.release(lease);
                Err(TxRefusal::no_owner())
            }
            Ok(Acquired::Mine(lease)) => {
                crash::point("lease_after_acquire");
                metrics::counter!("ubscore_lease_acquire_success_total").increment(1);
                Ok(self.own(lease, sent))
            }
            Ok(Acquired::Other(other)) => {
                self.others.insert(signer, Instant::now());
                Err(TxRefusal::NotLeader(other))
            }
            Ok(Acquired::Unknown) => Err(TxRefusal::SignerUnknown),
            Err(error) => {
                tracing::warn!(%signer, node = %self.tools.node, %error, "no lease was acquired");
                Err(error.into())
            }
        };
        for reply in waiting {
            answer(reply, answered.clone());
        }
        self.take_next();
    }

    /// Starts the owner of a signer.
    fn own(&mut self, lease: Lease, sent: Instant) -> Seat {
        let signer = lease.signer;
        self.unreleased.remove(&signer);
        assert!(!self.owned.contains_key(&signer), "{signer} has an owner here already");
        tracing::info!(%signer, token = lease.token, node = %self.tools.node, "acquired a signer");
        let (deadline, kept) = watch::channel(self.deadline(sent));
        let (orders, taken) = mpsc::channel(self.tools.options.queue_max.max(1));
        let (abort, aborted) = AbortHandle::new_pair();
        let owner = Owner::new(lease, kept, Arc::clone(&self.tools), taken);
        let run = Abortable::new(owner.run(), aborted);
        self.work.push(Box::pin(async move { Done::Ended(lease, run.await.ok()) }));
        let seat = Seat { lease, orders: orders.clone() };
        self.owned.insert(signer, Owned { lease, deadline, orders, abort, is_releasing: false });
        self.seats.take(seat.clone());
        seat
    }

    /// The time behind which an owner begins no send: skew before the lease's end by the store, and
    /// twice the skew before another process may own the signer.
    fn deadline(&self, sent: Instant) -> Instant {
        let options = &self.tools.options;
        sent + options.lease_duration.saturating_sub(options.lease_skew)
    }

    fn tick(&mut self) {
        let (open, lacking) = self.tools.open_rows.totals();
        gauge("ubscore_tx_open_rows", open);
        gauge("ubscore_tx_receipt_backlog", lacking);
        if self.is_blind() && !self.is_stopping && !self.owned.is_empty() {
            tracing::warn!(node = %self.tools.node, "the chain does not answer: giving signers back");
            self.order_releases();
        }
        if self.is_renewing {
            return;
        }
        self.is_renewing = true;
        let (tools, sent) = (Arc::clone(&self.tools), Instant::now());
        let before = self.owned.values().map(|owned| (owned.lease.signer, owned.lease)).collect();
        let limit = tools.options.lease_duration;
        self.work.push(Box::pin(async move {
            let renewed = timeout(limit, tools.store.renew()).await;
            let late = |_| Err(StoreError::Unknown("the renewal took too long".to_owned()));
            Done::Renewed(sent, before, renewed.unwrap_or_else(late))
        }));
    }

    /// `before`: the leases of owners here when the renewal was sent.
    fn renewed(
        &mut self,
        sent: Instant,
        before: &BTreeMap<Address, Lease>,
        renewed: Result<Vec<Lease>, StoreError>,
    ) {
        self.is_renewing = false;
        let leases: BTreeMap<Address, Lease> = match renewed {
            Ok(leases) => leases.into_iter().map(|lease| (lease.signer, lease)).collect(),
            Err(error) => {
                tracing::warn!(node = %self.tools.node, %error, "the leases were not renewed");
                show_unowned(None);
                return;
            }
        };
        let until = self.deadline(sent);
        for (signer, lease) in before {
            let Some(owned) = self.owned.get(signer).filter(|owned| owned.lease == *lease) else {
                continue;
            };
            if leases.get(signer) == Some(lease) {
                owned.deadline.send_replace(until);
            } else {
                let (token, node) = (lease.token, &self.tools.node);
                tracing::warn!(%signer, token, %node, "the lease is lost");
                owned.abort.abort();
            }
        }
        // An acquire with an unknown outcome: it is ours, and this process did not know.
        for lease in leases.values().filter(|lease| !before.contains_key(&lease.signer)) {
            let signer = lease.signer;
            let is_moving =
                self.releasing.contains(&signer) || self.acquiring.contains_key(&signer);
            if is_moving || self.owned.contains_key(&signer) {
                continue;
            }
            // Drained, or the chain is away: another node may have it.
            let is_left = self.unreleased.remove(&signer) == Some(*lease);
            if self.may_acquire(signer) && !is_left {
                self.own(*lease, sent);
            } else {
                self.release(*lease);
            }
        }
        self.look(true);
    }

    /// Looks for signers without an owner.
    fn look(&mut self, is_tick: bool) {
        self.look_at = None;
        if !self.is_stopping {
            // A blind node takes none of them, and still counts them.
            self.looking += 1;
            let tools = Arc::clone(&self.tools);
            self.work.push(Box::pin(async move {
                Done::Wanting(is_tick, tools.store.wanting(WANTING_MAX).await)
            }));
        }
    }

    fn wanted(&mut self, is_tick: bool, wanting: Result<Wanting, StoreError>) {
        self.looking -= 1;
        let wanting = match wanting {
            Ok(wanting) => wanting,
            Err(error) => {
                tracing::warn!(node = %self.tools.node, %error, "no look for signers without owner");
                show_unowned(None);
                return;
            }
        };
        show_unowned(Some(wanting.unowned));
        if self.is_stopping || self.is_blind() {
            return;
        }
        let free: Vec<Address> = wanting
            .signers
            .iter()
            .filter(|signer| self.keys.contains(*signer) && !self.owned.contains_key(*signer))
            .copied()
            .collect();
        self.look_at = wanting.next_end.map(|end| Instant::now() + end + END_MARGIN);
        self.shares.look(&free, wanting.open_signers, wanting.live_nodes, is_tick);
        self.take_next();
        if !is_tick {
            return;
        }
        let busy: Vec<(Address, usize)> = self.busy();
        if let Some(signer) = self.shares.give(&busy, Instant::now()) {
            tracing::info!(%signer, node = %self.tools.node, "giving a signer to another node");
            self.order_release(signer);
        }
    }

    /// Acquires signers without an owner, up to this node's share.
    fn take_next(&mut self) {
        while !self.is_stopping && self.acquiring.len() < TAKING_MAX {
            let held = self.busy().len() + self.acquiring.len();
            let Some(signer) = self.shares.next_to_take(held, Instant::now()) else { return };
            if self.may_acquire(signer) && !self.owned.contains_key(&signer) {
                self.acquire(signer);
            }
        }
    }

    /// The owned signers with open rows, and how many. A signer that was just acquired, with rows
    /// that are not read yet, counts too.
    fn busy(&self) -> Vec<(Address, usize)> {
        let staying = self.owned.values().filter(|owned| !owned.is_releasing);
        let counted = staying.map(|owned| {
            let signer = owned.lease.signer;
            (signer, self.tools.open_rows.count(signer).unwrap_or(usize::MAX))
        });
        counted.filter(|(_, open)| *open > 0).collect()
    }

    fn order_releases(&mut self) {
        let signers: Vec<Address> = self.owned.keys().copied().collect();
        for signer in signers {
            self.order_release(signer);
        }
    }

    /// Lets an owner finish the write that is under way, and end.
    fn order_release(&mut self, signer: Address) {
        let Some(owned) = self.owned.get_mut(&signer).filter(|owned| !owned.is_releasing) else {
            return;
        };
        owned.is_releasing = true;
        self.seats.leave(owned.lease);
        if let Err(mpsc::error::TrySendError::Full(order)) = owned.orders.try_send(Order::Release) {
            let orders = owned.orders.clone();
            self.work.push(Box::pin(async move {
                // An owner that has ended needs no order.
                drop(orders.send(order).await);
                Done::Ordered
            }));
        }
    }

    fn ended(&mut self, lease: Lease, end: Option<OwnerEnd>) {
        self.seats.leave(lease);
        self.tools.open_rows.close(lease.signer);
        self.owned.remove(&lease.signer);
        match end {
            Some(OwnerEnd::Released) => self.release(lease),
            // An aborted owner may have left a statement on its way. The release waits for it, and
            // behind the release it is fenced.
            None if self.is_stopping => self.release(lease),
            Some(OwnerEnd::Fenced) | None => {}
        }
    }

    fn release(&mut self, lease: Lease) {
        self.releasing.insert(lease.signer);
        let tools = Arc::clone(&self.tools);
        self.work.push(Box::pin(async move {
            let (signer, token, node) = (lease.signer, lease.token, &tools.node);
            let mut is_done = false;
            for _ in 0..RELEASES_MAX {
                match tools.store.release(lease).await {
                    Ok(()) => {
                        tracing::info!(%signer, token, %node, "released a signer");
                        is_done = true;
                        break;
                    }
                    Err(StoreError::Fenced { .. }) => {
                        is_done = true;
                        break;
                    }
                    Err(error) => tracing::warn!(%signer, token, %node, %error, "no release"),
                }
                sleep(RETRY).await;
            }
            Done::Released(lease, is_done)
        }));
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        self.seats.stop();
        // A quarter of the time is for the releases of those that did not drain.
        self.abort_at = Some(Instant::now() + self.tools.options.shutdown_timeout * 3 / 4);
        let tools = Arc::clone(&self.tools);
        self.work.push(Box::pin(async move {
            // Before the first release: the others take all signers only if this node counts in no
            // share.
            if let Err(error) = tools.store.leave().await {
                tracing::warn!(node = %tools.node, %error, "the others count this node for a while");
            }
            Done::Left
        }));
    }

    fn abort_all(&mut self) {
        self.abort_at = None;
        for owned in self.owned.values() {
            tracing::warn!(signer = %owned.lease.signer, "the owner did not drain in time");
            owned.abort.abort();
        }
    }
}

/// Shows the number of signers without an owner. `None`: unknown, and NaN, on which no rule fires;
/// the last number could be wrong for as long as the store is away.
fn show_unowned(unowned: Option<u32>) {
    metrics::gauge!("ubscore_signers_unowned").set(unowned.map_or(f64::NAN, f64::from));
}

/// Sets a gauge to a count.
fn gauge(name: &'static str, count: usize) {
    metrics::gauge!(name).set(u32::try_from(count).unwrap_or(u32::MAX));
}

/// Waits for a time; without one for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Answers the desk. A client that has left hears nothing.
fn answer(reply: oneshot::Sender<Result<Seat, TxRefusal>>, answer: Result<Seat, TxRefusal>) {
    drop(reply.send(answer));
}
