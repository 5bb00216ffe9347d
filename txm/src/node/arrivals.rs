//! Rows and commands that came to owned signers by other nodes, and the suspensions of those
//! signers: read by one statement for all of them, handed to their owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::Address;
use chain::tx::{Tx, TxId};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep_until};

use crate::news::News;
use crate::owner::Order;
use crate::seats::{Seat, Seats};
use crate::store::{ARRIVED_MAX, Arrived, Lease, Suspension, TxCommand, TxStore};
use crate::tools::Tools;

/// Behind this time a row or command that the store still has open is handed over again. Its owner
/// passes over those that it has.
const AGAIN: Duration = Duration::from_secs(5);

/// Between two looks of a node that hears the news of its store. Such a look finds passed
/// deadlines, and news that were lost.
const QUIET: Duration = Duration::from_secs(5);

/// The reader of a node's arrivals.
pub(super) struct Arrivals<S, E, K> {
    tools: Arc<Tools<S, E, K>>,
    seats: Arc<Seats>,
    wake: Arc<Notify>,
    news: Arc<News>,
    handed: Handed,
    /// More may wait in the store: the last look was full, failed, or met a full owner.
    is_behind: bool,
}

/// The arrivals that owners were given, so that they are not given twice.
#[derive(Default)]
struct Handed {
    txs: BTreeMap<TxId, Instant>,
    commands: BTreeMap<u64, Instant>,
    /// The lease with which the suspensions were given, and when. They too are given again: the
    /// owner may have read others meanwhile.
    suspensions: BTreeMap<Address, (Lease, Vec<Suspension>, Instant)>,
}

impl<S: TxStore, E, K> Arrivals<S, E, K>
where
    Tools<S, E, K>: Send + Sync,
{
    pub(super) fn new(
        tools: Arc<Tools<S, E, K>>,
        seats: Arc<Seats>,
        wake: Arc<Notify>,
    ) -> Arrivals<S, E, K> {
        let (news, handed) = (tools.store.news(), Handed::default());
        Arrivals { tools, seats, wake, news, handed, is_behind: false }
    }

    /// Reads and hands over, for ever.
    pub(super) async fn run(mut self) {
        let mut looked = Instant::now();
        loop {
            let is_quiet = self.news.is_live() && !self.is_behind;
            let pause = if is_quiet { QUIET } else { self.tools.options.arrivals_poll };
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.news.changed() => {
                    let seats = self.seats.all();
                    if !self.news.take(seats.iter().map(|seat| seat.lease.signer)) {
                        continue;
                    }
                }
                () = sleep_until(looked + pause) => {}
            }
            looked = Instant::now();
            self.read().await;
        }
    }

    async fn read(&mut self) {
        let seats = self.seats.all();
        if seats.is_empty() {
            return;
        }
        self.handed.forget(&seats, Instant::now());
        let leases: Vec<Lease> = seats.iter().map(|seat| seat.lease).collect();
        let mut known = self.tools.open_rows.without_nonce();
        known.extend(self.handed.txs.keys());
        known.sort_unstable();
        known.dedup();
        match self.tools.store.arrived(&leases, &known).await {
            Ok(arrived) => {
                self.is_behind = arrived.txs.len() >= ARRIVED_MAX;
                self.hand(&seats, arrived);
            }
            Err(error) => {
                self.is_behind = true;
                tracing::warn!(node = %self.tools.node, %error, "no look for new rows and commands");
            }
        }
    }

    fn hand(&mut self, seats: &[Seat], arrived: Arrived) {
        let now = Instant::now();
        let mut suspended: BTreeMap<Address, Vec<Suspension>> =
            arrived.suspended.into_iter().collect();
        for seat in seats {
            let signer = seat.lease.signer;
            let own = |tx: &&Tx| tx.new.signer == signer;
            let txs: Vec<Tx> = arrived.txs.iter().filter(own).cloned().collect();
            let fresh = |command: &&TxCommand| !self.handed.commands.contains_key(&command.id);
            let commands = arrived.commands.iter().filter(|(of, _)| *of == signer);
            let commands: Vec<TxCommand> =
                commands.map(|(_, command)| command).filter(fresh).cloned().collect();
            let expired = arrived.expired.iter().filter(|(of, _)| *of == signer);
            let expired: Vec<TxId> = expired.map(|(_, id)| *id).collect();
            let reasons = suspended.remove(&signer).unwrap_or_default();
            let given = self.handed.suspensions.get(&signer);
            let is_same = given.is_some_and(|given| given.0 == seat.lease && given.1 == reasons);
            if !txs.is_empty() || !commands.is_empty() || !is_same {
                let ids: Vec<TxId> = txs.iter().map(|tx| tx.id).collect();
                let numbers: Vec<u64> = commands.iter().map(|command| command.id).collect();
                let order = Order::Arrived(txs, commands, reasons.clone());
                // A full or ended owner is given them at the next look.
                if seat.orders.try_send(order).is_ok() {
                    self.handed.txs.extend(ids.into_iter().map(|id| (id, now)));
                    self.handed.commands.extend(numbers.into_iter().map(|id| (id, now)));
                    self.handed.suspensions.insert(signer, (seat.lease, reasons, now));
                } else {
                    self.is_behind = true;
                }
            }
            // Behind the rows: one may be among them. One that the owner does not know yet is told
            // again at the next look.
            if !expired.is_empty() && seat.orders.try_send(Order::Expired(expired)).is_err() {
                tracing::debug!(%signer, "the owner has too many orders");
                self.is_behind = true;
            }
        }
    }
}

impl Handed {
    /// Forgets arrivals that are old, and suspensions of signers that left.
    fn forget(&mut self, seats: &[Seat], now: Instant) {
        let is_new = |given: &Instant| now.saturating_duration_since(*given) < AGAIN;
        self.txs.retain(|_, given| is_new(given));
        self.commands.retain(|_, given| is_new(given));
        self.suspensions.retain(|signer, given| {
            let is_here = |seat: &Seat| seat.lease.signer == *signer && seat.lease == given.0;
            is_new(&given.2) && seats.iter().any(is_here)
        });
    }
}
