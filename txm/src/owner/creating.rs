//! New rows: requests that get their nonce at once, and rows without a nonce that are prepared.

use std::collections::VecDeque;
use std::mem;

use chain::decide::TxFact;
use chain::state::TxState;
use chain::tx::{NewTx, SubState, Tx, TxId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::book::back_off;
use super::writing::Called;
use super::{Heard, Owner, TxRefusal};
use crate::crash;
use crate::open_rows::Hold;
use crate::prepare::{Prepared, prepare};
use crate::rpc::Endpoint;
use crate::signer::Signer;
use crate::store::{Created, Ready, TxStore};

/// A request that waits for its row.
pub(super) struct Request {
    /// The request.
    pub new: NewTx,
    /// Its caller.
    pub reply: oneshot::Sender<Result<Created, TxRefusal>>,
    /// A statement with it had an unknown outcome: it may have its row.
    pub is_unknown: bool,
}

/// Requests and rows on their way to a nonce.
#[derive(Default)]
pub(super) struct Creating {
    requests: VecDeque<Request>,
    to_prepare: VecDeque<TxId>,
    preparing: usize,
    /// Prepared rows. The cost of each is held until it has its nonce.
    pub ready: Vec<(Ready, Hold)>,
}

impl Creating {
    /// The same requests again, before all later ones.
    pub(super) fn put_back(&mut self, requests: Vec<Request>, is_unknown: bool) {
        for mut request in requests.into_iter().rev() {
            request.is_unknown |= is_unknown;
            self.requests.push_front(request);
        }
    }

    /// Everything that waits for an answer.
    pub(super) fn take_all(&mut self) -> VecDeque<Request> {
        mem::take(&mut self.requests)
    }
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    pub(super) fn take_create(
        &mut self,
        new: NewTx,
        reply: oneshot::Sender<Result<Created, TxRefusal>>,
    ) {
        let waiting = self.creating.requests.len();
        let refusal = if self.book.is_suspended() {
            Some(self.suspended_refusal())
        } else if self.book.open() + waiting >= self.tools.options.queue_max {
            Some(TxRefusal::Overloaded)
        } else {
            None
        };
        match refusal {
            Some(refusal) => drop(reply.send(Err(refusal))),
            None => self.creating.requests.push_back(Request { new, reply, is_unknown: false }),
        }
    }

    /// Answers every waiting request with a refusal. One that may have its row is not refused: the
    /// book shows it, and its caller asks again.
    pub(super) fn refuse_creates(&mut self, refusal: &TxRefusal) {
        for request in self.creating.take_all() {
            let answer = match request.is_unknown {
                true => TxRefusal::Away("it may have its row".to_owned()),
                false => refusal.clone(),
            };
            self.writing.must_open |= request.is_unknown;
            drop(request.reply.send(Err(answer)));
        }
    }

    /// Begins the create of all queued requests, at most `batch_max`. Returns whether there is one.
    pub(super) fn begin_create(&mut self, now: Instant) -> bool {
        // Its caller has gone, and asks again by its key. If it has its row, the book shows it.
        let gone = |it: &Request| it.reply.is_closed();
        self.writing.must_open |= self.creating.requests.iter().any(|it| it.is_unknown && gone(it));
        self.creating.requests.retain(|it| !gone(it));
        if self.is_draining || self.creating.requests.is_empty() || !self.may_number(now) {
            return false;
        }
        let most = self.creating.requests.len().min(self.tools.options.batch_max.max(1));
        let requests: Vec<Request> = self.creating.requests.drain(..most).collect();
        let (tools, lease, floor) = (self.tools.clone(), self.lease, self.following.floor);
        self.call = Some(Box::pin(async move {
            let news: Vec<NewTx> = requests.iter().map(|request| request.new.clone()).collect();
            let created = tools.store.create(lease, floor, &news).await;
            Called::Created(requests, created)
        }));
        true
    }

    pub(super) fn created(&mut self, requests: Vec<Request>, created: Vec<Created>) {
        crash::point("txm_after_create");
        let now = Instant::now();
        let seen = self.book.cursor;
        let before = seen.max(self.following.floor);
        let lowest = created.iter().filter_map(|created| match created {
            Created::New(tx) => tx.nonce,
            Created::Known(_) | Created::Conflict(_) => None,
        });
        let lowest = lowest.min();
        self.find_hole(before, lowest);
        self.find_jump(seen, lowest);
        for (request, created) in requests.into_iter().zip(created) {
            let nonce = match &created {
                Created::New(tx) => tx.nonce,
                Created::Known(_) | Created::Conflict(_) => None,
            };
            if nonce.is_some_and(|nonce| self.find_older(nonce, seen, "a new nonce")) {
                let words = "the database is an older one".to_owned();
                drop(request.reply.send(Err(TxRefusal::Away(words))));
                continue;
            }
            match &created {
                Created::New(tx) => self.put(Tx::clone(tx), now),
                // A statement before this one made it, and its answer was lost.
                Created::Known(tx) if !tx.state.is_terminal() && !self.book.has(tx.id) => {
                    self.put(Tx::clone(tx), now);
                    self.take_up(tx.id);
                }
                Created::Known(_) | Created::Conflict(_) => {}
            }
            // A caller that has gone asks again by its key.
            drop(request.reply.send(Ok(created)));
        }
    }

    /// Puts a row without a nonce in line for its preparation.
    pub(super) fn want_prepare(&mut self, id: TxId) {
        if self.book.row(id).is_some_and(|row| !row.is_in_line) {
            self.book.change(id, |row| (row.is_in_line, row.retry) = (true, None));
            self.creating.to_prepare.push_back(id);
        }
    }

    /// Begins preparations, at most `calls_in_flight_max` at a time.
    pub(super) fn begin_prepares(&mut self, now: Instant) {
        let most = self.tools.options.calls_in_flight_max.max(1);
        while self.creating.preparing < most {
            let Some(id) = self.creating.to_prepare.pop_front() else { break };
            self.book.change(id, |row| row.is_in_line = false);
            let Some(row) = self.book.row(id).filter(|row| row.tx.state == TxState::Created) else {
                continue;
            };
            if row.is_busy() {
                self.prepare_later(id, now);
                continue;
            }
            if self.book.is_suspended() {
                if row.tx.sub != Some(SubState::Suspended) {
                    self.book.tell_once(id, TxFact::Delayed(SubState::Suspended));
                }
                self.prepare_later(id, now);
                continue;
            }
            let (tools, new, version) = (self.tools.clone(), row.tx.new.clone(), row.tx.version);
            self.book.change(id, |row| row.is_preparing = true);
            self.creating.preparing += 1;
            self.asks.push(Box::pin(async move {
                Heard::Prepared(id, version, prepare(&tools, &new).await)
            }));
        }
    }

    /// Another look at a row without a nonce, behind a pause that grows.
    fn prepare_later(&mut self, id: TxId, now: Instant) {
        self.book.change(id, |row| {
            row.retry = Some(now + back_off(row.failures));
            row.failures += 1;
        });
    }

    pub(super) fn heard_prepared(
        &mut self,
        id: TxId,
        version: u64,
        answer: Result<Prepared, TxRefusal>,
    ) {
        self.creating.preparing -= 1;
        let now = Instant::now();
        self.book.change(id, |row| row.is_preparing = false);
        let Some(row) = self.book.row(id).filter(|row| row.tx.state == TxState::Created) else {
            return;
        };
        let (now_version, sub) = (row.tx.version, row.tx.sub);
        let may_end = !self.may_lack_rows();
        match answer {
            Ok(_) if now_version != version => self.want_prepare(id),
            Ok(Prepared { gas, hold }) => {
                self.creating.ready.push((Ready { id, version, gas }, hold));
            }
            Err(refusal) if may_end && refusal.is_for_good() => {
                self.book.tell(id, TxFact::Refused(refusal.name().to_owned()), None);
            }
            Err(refusal) => {
                let is_told = sub == Some(SubState::WaitingFunds);
                if refusal == TxRefusal::Unfunded && !is_told {
                    self.book.tell_once(id, TxFact::Delayed(SubState::WaitingFunds));
                }
                self.prepare_later(id, now);
            }
        }
    }

    /// Begins to number the prepared rows. Returns whether there are some.
    pub(super) fn begin_number(&mut self, now: Instant) -> bool {
        if self.is_draining || self.creating.ready.is_empty() || !self.may_number(now) {
            return false;
        }
        let most = self.creating.ready.len().min(self.tools.options.batch_max.max(1));
        let ready: Vec<(Ready, Hold)> = self.creating.ready.drain(..most).collect();
        let (tools, lease, floor) = (self.tools.clone(), self.lease, self.following.floor);
        self.call = Some(Box::pin(async move {
            let rows: Vec<Ready> = ready.iter().map(|(ready, _)| *ready).collect();
            let numbered = tools.store.number(lease, floor, &rows).await;
            Called::Numbered(ready, numbered)
        }));
        true
    }

    pub(super) fn numbered(&mut self, ready: Vec<(Ready, Hold)>, txs: Vec<Tx>) {
        crash::point("txm_after_create");
        let now = Instant::now();
        let seen = self.book.cursor;
        let before = seen.max(self.following.floor);
        let lowest = txs.iter().filter_map(|tx| tx.nonce).min();
        self.find_hole(before, lowest);
        self.find_jump(seen, lowest);
        for tx in txs {
            if tx.nonce.is_none_or(|nonce| !self.find_older(nonce, seen, "a new nonce")) {
                self.put(tx, now);
            }
        }
        for (Ready { id, .. }, _) in &ready {
            // Passed over: its row changed meanwhile. The store is asked for it.
            if self.book.row(*id).is_some_and(|row| row.tx.state == TxState::Created) {
                self.writing.must_open = true;
                self.writing.lost.push(*id);
                self.prepare_later(*id, now);
            }
        }
    }

    /// The nonces that this one passed over are the store's to tell: the book has them as jumped.
    fn find_jump(&mut self, seen: u64, lowest: Option<u64>) {
        self.writing.must_open |= lowest.is_some_and(|lowest| lowest > seen);
    }

    /// A statement that was given up may have been written late: its rows are in the store alone.
    fn find_hole(&mut self, next: u64, lowest: Option<u64>) {
        self.writing.must_open |= lowest.is_some_and(|lowest| lowest > next);
    }
}
