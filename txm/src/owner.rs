//! The owner of one signer: the only task of this process that makes fenced calls for it.
//!
//! ```text
//!   orders, looks, answers --> facts by row --> chain::decide --> one fenced write --> effects
//!                                 ^                                                      |
//!                                 +----- signatures, answers to sends, receipts <--------+
//! ```
//!
//! One fenced call is under way at a time. While it is, further facts gather. Everything else
//! (signing, sending, questions) runs beside it, so a slow endpoint never delays a create.
//! Nothing runs outside of the future of [`Owner::run`]: if it is dropped, everything ends.

mod book;
mod commanding;
mod creating;
mod filling;
mod following;
mod sending;
mod writing;

use std::sync::Arc;

use alloy_primitives::{B256, Bytes};
use chain::decide::{Effect, TxFact, TxRules};
use chain::fee::GasMarket;
use chain::tx::{NewTx, Tx, TxId};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::options::Finality;
use crate::prepare::{Prepared, assumed_fee};
use crate::refusal::TxRefusal;
use crate::rpc::look::Look;
use crate::rpc::pool::Counts;
use crate::rpc::{Endpoint, TransactionRead};
use crate::signer::Signer;
use crate::store::{Created, Lease, Suspension, TxCommand, TxStore};
use crate::tools::Tools;

use book::{Book, Times};
use creating::Creating;
use filling::Filling;
use following::Following;
use sending::Sending;
use writing::{Called, Writing};

/// Work for an owner.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of them are creates")]
pub enum Order {
    /// A prepared request: its gas limit is set. The answer goes to the sender.
    Create(NewTx, oneshot::Sender<Result<Created, TxRefusal>>),
    /// The news of the signer in the store: new rows without a nonce, open commands, and
    /// all suspensions.
    Arrived(Vec<Tx>, Vec<TxCommand>, Vec<Suspension>),
    /// Rows without a nonce, with a deadline that has passed by the store's clock.
    Expired(Vec<TxId>),
    /// To finish the write that is under way, and to end.
    Release,
}

/// How an owner ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerEnd {
    /// Drained. The lease is still ours, and may be released.
    Released,
    /// The lease is not ours any more.
    Fenced,
}

/// The answer to something that ran beside the loop.
enum Heard {
    Signed(sending::SignAnswer),
    Sent(sending::SendAnswer),
    SentBeside(sending::SendAnswer),
    Known(TxId, Vec<(u32, bool)>),
    Counts(Instant, Vec<Counts>),
    Market(Option<GasMarket>),
    Mined(Option<B256>, Option<u64>),
    FinalMined(Option<u64>),
    Receipts(following::ReceiptAnswers),
    Sought(TxId, Arc<Look>, Vec<TransactionRead>),
    Taken(TxId, B256, Result<Bytes, usize>),
    Prepared(TxId, u64, Result<Prepared, TxRefusal>),
}

/// Why the loop went on.
enum Event {
    Called(Called),
    Heard(Heard),
    Order(Option<Order>),
    Looked,
    Time,
}

/// The owner of one signer.
pub struct Owner<S, E, K> {
    lease: Lease,
    tools: Arc<Tools<S, E, K>>,
    deadline: watch::Receiver<Instant>,
    orders: mpsc::Receiver<Order>,
    looks: watch::Receiver<Arc<Look>>,
    look: Arc<Look>,
    book: Book,
    call: Option<BoxFuture<'static, Called>>,
    asks: FuturesUnordered<BoxFuture<'static, Heard>>,
    writing: Writing,
    creating: Creating,
    filling: Filling,
    sending: Sending,
    following: Following,
    /// Suspensions that this owner has set and the store has not shown yet.
    own_suspensions: Vec<Suspension>,
    /// The orders that arrived before the book was read.
    early: Vec<Order>,
    is_draining: bool,
    is_fenced: bool,
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    /// Prepares an owner. `deadline`: no send begins behind it. `orders`: its work; if it is
    /// closed, the owner drains.
    pub fn new(
        lease: Lease,
        deadline: watch::Receiver<Instant>,
        tools: Arc<Tools<S, E, K>>,
        orders: mpsc::Receiver<Order>,
    ) -> Owner<S, E, K> {
        let mut looks = tools.looks.clone();
        let look = looks.borrow_and_update().clone();
        Owner {
            lease,
            book: Book::new(Times {
                stale: tools.options.stale,
                fill_after: tools.options.fill_after,
            }),
            tools,
            deadline,
            orders,
            looks,
            look,
            call: None,
            asks: FuturesUnordered::new(),
            writing: Writing::default(),
            creating: Creating::default(),
            filling: Filling::default(),
            sending: Sending::default(),
            following: Following::default(),
            own_suspensions: Vec::new(),
            early: Vec::new(),
            is_draining: false,
            is_fenced: false,
        }
    }

    /// Reads the book, asks the chain, and acts for the signer until it is released or fenced.
    pub async fn run(mut self) -> OwnerEnd {
        loop {
            self.advance();
            if let Some(end) = self.end() {
                self.tools.open_rows.close(self.lease.signer);
                self.answer_all_not_leader();
                return end;
            }
            match self.next_event().await {
                Event::Called(called) => self.called(called),
                Event::Heard(heard) => self.heard(heard),
                Event::Order(order) => self.order(order),
                Event::Looked => {
                    self.look = self.looks.borrow_and_update().clone();
                    self.following.forget_refused_market();
                    self.looked();
                }
                Event::Time => {}
            }
        }
    }

    fn end(&self) -> Option<OwnerEnd> {
        let is_drained = self.is_draining && self.call.is_none() && !self.has_to_write();
        match self.is_fenced {
            true => Some(OwnerEnd::Fenced),
            false => is_drained.then_some(OwnerEnd::Released),
        }
    }

    /// Waits for the next thing to act on.
    async fn next_event(&mut self) -> Event {
        let wake = self.next_wake();
        let Owner { call, asks, orders, looks, deadline, is_draining, .. } = self;
        let called = async {
            match call {
                Some(call) => call.await,
                None => std::future::pending().await,
            }
        };
        let woken = async {
            match wake {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            called = called => {
                self.call = None;
                Event::Called(called)
            }
            Some(heard) = asks.next(), if !asks.is_empty() => Event::Heard(heard),
            order = orders.recv(), if !*is_draining => Event::Order(order),
            Ok(()) = looks.changed() => Event::Looked,
            Ok(()) = deadline.changed() => Event::Time,
            () = woken => Event::Time,
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let looks = self.writing.is_open && !self.is_draining && !self.following.waits_for_market();
        let book = self.book.next_wake().filter(|_| looks);
        let aside = self.writing.next_aside().filter(|_| self.call.is_none());
        let aside = aside.max(self.writing.pause.filter(|_| aside.is_some()));
        let fill = self.next_fill().filter(|_| self.writing.is_open && !self.is_draining);
        [book, aside, fill, self.writing.pause, self.following.pause].into_iter().flatten().min()
    }

    /// Begins all that may begin now. Nothing here awaits.
    fn advance(&mut self) {
        self.take_orders();
        let now = Instant::now();
        self.writing.pause = self.writing.pause.filter(|at| *at > now);
        self.following.pause = self.following.pause.filter(|at| *at > now);
        if self.writing.is_open && !self.is_draining {
            self.take_woken(now);
            self.hand_turns(now);
            self.take_fills(now);
        }
        self.begin_call(now);
        if self.writing.is_open && !self.is_draining {
            self.begin_questions(now);
            self.begin_prepares(now);
            self.begin_sends(now);
        }
    }

    /// Takes everything that is queued, so that one statement has all of it.
    fn take_orders(&mut self) {
        while !self.is_draining {
            match self.orders.try_recv() {
                Ok(order) => self.order(Some(order)),
                Err(mpsc::error::TryRecvError::Disconnected) => self.order(None),
                Err(mpsc::error::TryRecvError::Empty) => return,
            }
        }
    }

    fn order(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Create(new, reply)) => self.take_create(new, reply),
            Some(Order::Arrived(txs, commands, suspensions)) => {
                self.take_arrived(txs, commands, suspensions);
            }
            Some(Order::Expired(ids)) => self.take_expired(&ids),
            Some(Order::Release) | None => self.is_draining = true,
        }
    }

    fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Signed(answer) => self.heard_signed(answer),
            Heard::Sent(answer) => self.heard_sent(answer),
            Heard::SentBeside(answer) => self.heard_beside(answer),
            Heard::Known(id, known) => self.heard_known(id, known),
            Heard::Counts(asked, counts) => self.heard_counts(asked, counts),
            Heard::Market(market) => self.heard_market(market),
            Heard::Mined(at, count) => self.heard_mined(at, count),
            Heard::FinalMined(count) => self.heard_final_mined(count),
            Heard::Receipts(answers) => self.heard_receipts(answers),
            Heard::Sought(id, look, found) => self.heard_sought(id, &look, &found),
            Heard::Taken(id, hash, raw) => self.heard_taken(id, hash, raw),
            Heard::Prepared(id, version, answer) => self.heard_prepared(id, version, answer),
        }
    }

    /// Carries out the effects of a row's step, in their order.
    fn carry(&mut self, id: TxId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Sign { kind, price, gas } => self.begin_sign(id, kind, price, gas),
                Effect::Send { attempt } => self.queue_send(id, attempt),
                Effect::Receipts => self.want_receipts(id),
                Effect::LookFor => self.seek(id, None),
                Effect::Gap => self.following.wants_counts = true,
                Effect::Suspend(reason) => self.want_suspension(reason, format!("tx {id}")),
                Effect::Raise(alert) => self.raise(alert, &id.to_string()),
            }
        }
    }

    /// Raises the alert of this name about a row or a number.
    fn raise(&self, alert: &'static str, about: &str) {
        metrics::counter!("ubscore_tx_alert_total", "alert" => alert).increment(1);
        tracing::error!(
            signer = %self.lease.signer,
            token = self.lease.token,
            node = %self.tools.node,
            about,
            "{alert}"
        );
    }

    fn rules(&self) -> TxRules {
        let options = &self.tools.options;
        TxRules {
            is_resubmitted: options.is_resubmitted,
            interval: options.resubmit_interval,
            bump_after: options.bump_after,
            attempts_max: options.attempts_max,
            bump_percent: options.bump_percent,
            stale: options.stale,
            caps: options.caps,
            market: self.following.market,
            is_suspended: self.book.is_suspended(),
            required: options.required,
            is_watched: options.finality != Finality::Finalized,
        }
    }

    /// Looks at the rows that a time has come for.
    fn take_woken(&mut self, now: Instant) {
        let woken = self.book.woken(now);
        // A resend may become a bump, and a turn a signature: both need today's market.
        if woken.is_empty() || !self.has_market(now) {
            return;
        }
        // No price helps a nonce behind a jumped one that is not mined.
        let lowest = self.book.lowest_unmined();
        let jumped = self.filling.lowest_unmined();
        let lowest = lowest.filter(|nonce| jumped.is_none_or(|jumped| jumped > *nonce));
        for id in woken {
            let wants = self.book.take_wants(id, now);
            if wants.resend {
                let nonce = self.book.row(id).and_then(|row| row.tx.nonce);
                let is_lowest = nonce.is_some() && nonce == lowest;
                self.book.tell_once(id, TxFact::Due { is_lowest });
            } else if wants.stale {
                self.book.tell_once(id, TxFact::Stale);
            }
            if wants.fill && !self.book.is_suspended() {
                self.book.tell_once(id, TxFact::Fill);
            }
            if wants.turn {
                self.tell_turn(id, now);
            }
            if wants.prepare {
                self.want_prepare(id);
            }
        }
    }

    /// Keeps a row as the store has it.
    fn put(&mut self, tx: Tx, now: Instant) {
        let max_fee = assumed_fee(self.following.market, &self.tools.options.caps);
        self.tools.open_rows.keep(&tx, max_fee);
        self.book.put(tx, now);
    }
}

#[cfg(test)]
mod tests;
