//! The fenced calls of an owner: one at a time, creates and steps in turn.

use std::collections::{BTreeSet, VecDeque};

use chain::decide::{Effect, TxFact, TxStep};
use chain::state::{AttemptKind, TxState};
use chain::tx::{Tx, TxId, Wish};
use tokio::time::Instant;

use super::book::{BACK_OFF_MAX, Planned, back_off};
use super::creating::Request;
use super::filling::Filled;
use super::{Owner, TxRefusal};
use crate::crash;
use crate::open_rows::Hold;
use crate::prepare::assumed_fee;
use crate::rpc::Endpoint;
use crate::signer::Signer;
use crate::store::{Created, Ready, SignerBook, StoreError, TxStore};

/// The most steps of one statement.
const STEPS_MAX: usize = 256;
/// The reason of a suspension: the database is an older one than this owner has seen.
pub(super) const DATABASE_OLDER: &str = "DATABASE_OLDER";

/// The answer to a fenced call, with its request.
pub(super) enum Called {
    Opened(Result<SignerBook, StoreError>),
    Created(Vec<Request>, Result<Vec<Created>, StoreError>),
    Numbered(Vec<(Ready, Hold)>, Result<Vec<Tx>, StoreError>),
    Written(Vec<Planned>, Result<Vec<Option<Tx>>, StoreError>),
    Suspended(&'static str, String, Result<(), StoreError>),
    Commanded(u64, Option<&'static str>, Result<(), StoreError>),
    Filled(Filled, Result<Vec<Option<Tx>>, StoreError>),
}

/// The kinds of fenced calls that take turns.
#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Create,
    Step,
    Command,
}

/// The work for the store, beside the facts of rows.
#[derive(Default)]
pub(super) struct Writing {
    /// The book was read at least once.
    pub is_open: bool,
    /// The book in memory may differ from the store's.
    pub must_open: bool,
    /// It is being read.
    pub is_opening: bool,
    /// No fenced call begins before this time.
    pub pause: Option<Instant>,
    failures: u32,
    /// Arrivals came while the book was read.
    pub is_arrived: bool,
    /// Steps that were not written, for want of an answer that says so.
    again: Vec<Planned>,
    /// Steps go one by one: together they were refused.
    is_apart: bool,
    /// Steps that were refused alone.
    aside: Vec<Aside>,
    /// The step that is being written was aside.
    trying: Option<Tried>,
    /// The calls that the store did.
    wells: u64,
    /// Rows of a write with an unknown outcome: their effects are lost.
    pub lost: Vec<TxId>,
    /// Suspensions to be written.
    suspensions: VecDeque<(&'static str, String)>,
    /// Commands that are over.
    pub over: VecDeque<(u64, Option<&'static str>)>,
    next: Kind,
}

/// A step that was refused alone, and the time of its next try.
struct Aside {
    planned: Planned,
    at: Instant,
    tried: Tried,
}

/// The tries of a step alone: how many failed, and the calls that the store had done at the last.
#[derive(Clone, Copy, Default)]
struct Tried {
    failures: u32,
    wells: u64,
}

impl Writing {
    fn is_one_by_one(&self) -> bool {
        self.is_apart || self.trying.is_some()
    }

    /// The next try of a step that was refused alone.
    pub(super) fn next_aside(&self) -> Option<Instant> {
        self.aside.iter().map(|it| it.at).min()
    }
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    /// Whether a fact or a command waits to be written before this owner may end.
    pub(super) fn has_to_write(&self) -> bool {
        let Writing { is_open, again, over, suspensions, failures, .. } = &self.writing;
        let has = self.book.is_ready() || !again.is_empty() || !over.is_empty();
        // A store that is away holds no end up: the next owner asks the chain again.
        *is_open && *failures == 0 && (has || !suspensions.is_empty())
    }

    /// Suspends the signer: in memory at once, in the store with the next call.
    pub(super) fn want_suspension(&mut self, reason: &'static str, about: String) {
        if !self.book.suspensions.iter().any(|known| known.reason == reason) {
            self.raise(reason, &about);
            self.writing.suspensions.push_back((reason, about));
        }
        self.suspend_here(reason);
    }

    /// Begins the next fenced call, if none is under way.
    pub(super) fn begin_call(&mut self, now: Instant) {
        if self.call.is_some() || self.writing.pause.is_some() {
            return;
        }
        if !self.writing.is_open || self.writing.must_open {
            self.call_open();
        } else if let Some((reason, about)) = self.writing.suspensions.pop_front() {
            self.call_suspend(reason, about);
        } else if !self.writing.again.is_empty() {
            let mut steps = std::mem::take(&mut self.writing.again);
            if self.writing.is_one_by_one() {
                self.writing.again = steps.split_off(1);
            }
            let steps = self.still_allowed(steps);
            match steps.is_empty() {
                true => self.begin_in_turn(now),
                false => self.call_write(steps),
            }
        } else {
            self.writing.is_apart = false;
            if !self.begin_aside(now) {
                self.begin_in_turn(now);
            }
        }
    }

    /// Of steps that were not written, those that store a payment are decided anew while the signer
    /// is suspended.
    fn still_allowed(&mut self, steps: Vec<Planned>) -> Vec<Planned> {
        if !self.book.is_suspended() {
            return steps;
        }
        let (pays, steps): (Vec<Planned>, Vec<Planned>) =
            steps.into_iter().partition(Planned::stores_payment);
        for Planned { id, told, .. } in pays {
            self.book.change(id, |row| {
                row.is_writing = false;
                row.facts.push_front(told);
            });
        }
        steps
    }

    /// Creates, steps and commands take turns, so that none of them waits for long.
    fn begin_in_turn(&mut self, now: Instant) {
        for _ in 0..3 {
            let kind = self.writing.next;
            let (next, is_begun) = match kind {
                Kind::Create => (Kind::Step, self.begin_create(now) || self.begin_number(now)),
                Kind::Step => (Kind::Command, self.begin_write(now)),
                Kind::Command => (Kind::Create, self.begin_commanded() || self.begin_fill()),
            };
            self.writing.next = next;
            if is_begun {
                return;
            }
        }
    }

    fn begin_commanded(&mut self) -> bool {
        let Some((command, refused)) = self.writing.over.pop_front() else { return false };
        self.call_commanded(command, refused);
        true
    }

    fn call_open(&mut self) {
        (self.writing.is_arrived, self.writing.is_opening) = (false, true);
        let (tools, lease) = (self.tools.clone(), self.lease);
        self.call = Some(Box::pin(async move { Called::Opened(tools.store.open(lease).await) }));
    }

    fn call_suspend(&mut self, reason: &'static str, about: String) {
        let (tools, lease) = (self.tools.clone(), self.lease);
        self.call = Some(Box::pin(async move {
            let done = tools.store.suspend(lease, reason, &about).await;
            Called::Suspended(reason, about, done)
        }));
    }

    fn call_commanded(&mut self, command: u64, refused: Option<&'static str>) {
        let (tools, lease) = (self.tools.clone(), self.lease);
        self.call = Some(Box::pin(async move {
            let done = tools.store.commanded(lease, command, refused).await;
            Called::Commanded(command, refused, done)
        }));
    }

    fn call_write(&mut self, steps: Vec<Planned>) {
        if steps.iter().any(|planned| matches!(planned.told.fact, TxFact::Final)) {
            crash::point("txm_before_final");
        }
        let (tools, lease) = (self.tools.clone(), self.lease);
        self.call = Some(Box::pin(async move {
            let rows: Vec<_> = steps.iter().map(|planned| planned.step.clone()).collect();
            let done = tools.store.write(lease, &rows).await;
            Called::Written(steps, done)
        }));
    }

    /// Decides the gathered facts, and begins their write. Returns whether there is one.
    fn begin_write(&mut self, now: Instant) -> bool {
        if !self.book.is_ready() {
            return false;
        }
        let rules = self.rules();
        let plan = self.book.plan(&rules, STEPS_MAX, now);
        self.writing.over.extend(plan.over);
        if !self.is_draining {
            for (id, effects) in plan.free {
                self.carry(id, effects);
            }
        }
        if plan.steps.is_empty() {
            return false;
        }
        self.call_write(plan.steps);
        true
    }

    /// Takes the answer to the fenced call.
    pub(super) fn called(&mut self, called: Called) {
        match called {
            Called::Opened(Ok(book)) => {
                self.writing.is_opening = false;
                self.opened(book);
            }
            Called::Opened(Err(error)) => {
                self.writing.is_opening = false;
                self.writing.must_open = true;
                self.failed("open", &error);
            }
            Called::Created(requests, Ok(created)) => {
                self.well();
                self.created(requests, created);
            }
            Called::Created(requests, Err(error)) => {
                // The same requests again: if they were written, their keys tell.
                self.creating.put_back(requests, matches!(error, StoreError::Unknown(_)));
                self.failed("create", &error);
            }
            Called::Numbered(ready, Ok(txs)) => {
                self.well();
                self.numbered(ready, txs);
            }
            Called::Numbered(ready, Err(error)) => {
                match error {
                    StoreError::Unknown(_) => {
                        self.writing.must_open = true;
                        // A row that was not numbered is as it was: it is prepared again.
                        self.writing.lost.extend(ready.iter().map(|(ready, _)| ready.id));
                    }
                    _ => self.creating.ready.extend(ready),
                }
                self.failed("number", &error);
            }
            Called::Written(steps, Ok(rows)) => {
                self.writing.trying = None;
                self.well();
                self.written(steps, rows);
            }
            Called::Written(steps, Err(error)) => self.not_written(steps, &error),
            Called::Suspended(reason, about, done) => self.suspended(reason, about, done),
            Called::Filled(filled, Ok(rows)) => {
                self.well();
                self.filled(filled, rows);
            }
            Called::Filled(filled, Err(error)) => {
                // The same nonces again: if they were written, the rows tell, here or in the book.
                self.writing.must_open |= matches!(error, StoreError::Unknown(_));
                self.filling.put_back(filled);
                self.failed("fill", &error);
            }
            Called::Commanded(command, _, Ok(())) => {
                self.well();
                self.book.commands.remove(&command);
            }
            Called::Commanded(command, refused, Err(error)) => {
                self.writing.over.push_front((command, refused));
                self.failed("commanded", &error);
            }
        }
    }

    fn well(&mut self) {
        self.writing.failures = 0;
        self.writing.wells += 1;
    }

    /// A fenced call was not answered well. Fenced: the end. Else a pause.
    fn failed(&mut self, what: &'static str, error: &StoreError) {
        let signer = self.lease.signer;
        if let StoreError::Fenced { found } = error {
            self.is_fenced = true;
            metrics::counter!("ubscore_lease_fenced_total").increment(1);
            tracing::warn!(
                %signer, node = %self.tools.node, token = self.lease.token, ?found, what,
                "fenced: another process owns this signer now"
            );
            return;
        }
        // The book tells why, before another nonce is asked for.
        self.writing.must_open |= matches!(error, StoreError::Suspended);
        self.writing.pause = Some(Instant::now() + back_off(self.writing.failures));
        self.writing.failures += 1;
        tracing::warn!(%signer, node = %self.tools.node, what, %error, "the store did not answer");
    }

    /// The store refuses one wrong value with its whole statement. So behind a second failure steps
    /// go one by one, and one that fails alone is put aside and tried again by itself.
    fn not_written(&mut self, steps: Vec<Planned>, error: &StoreError) {
        let aside = self.writing.trying.take();
        if let StoreError::Unknown(_) = error {
            self.writing.must_open = true;
            for Planned { id, told, .. } in steps {
                self.writing.lost.push(id);
                self.forget_command(told.command);
                self.book.change(id, |row| {
                    row.is_writing = false;
                    // A signature is worth keeping: if its row lacks it, it is stored now.
                    if matches!(told.fact, TxFact::Signed(_)) {
                        row.facts.push_front(told);
                    }
                });
            }
        } else if !matches!(error, StoreError::Fenced { .. }) {
            let mut steps = steps;
            match steps.pop() {
                Some(step) if steps.is_empty() && self.writing.is_one_by_one() => {
                    self.put_aside(step, aside.unwrap_or_default());
                    // What was aside already holds nothing up any more.
                    if aside.is_some() {
                        return;
                    }
                }
                last => {
                    steps.extend(last);
                    self.writing.is_apart |= self.writing.failures > 0;
                    steps.append(&mut self.writing.again);
                    self.writing.again = steps;
                }
            }
        }
        self.failed("write", error);
    }

    fn put_aside(&mut self, planned: Planned, before: Tried) {
        let Tried { failures, wells } = before;
        // The store did others meanwhile: the step itself is refused.
        if failures > 0 && wells < self.writing.wells {
            let field = planned.told.command;
            self.raise("tx_step_refused", &format!("tx {}, command {field:?}", planned.id));
        }
        let at = Instant::now() + back_off(failures.saturating_add(3));
        let tried = Tried { failures: failures.saturating_add(1), wells: self.writing.wells };
        self.writing.aside.push(Aside { planned, at, tried });
    }

    /// Tries a step alone that was refused before. Returns whether there is one.
    fn begin_aside(&mut self, now: Instant) -> bool {
        let Some(index) = self.writing.aside.iter().position(|it| it.at <= now) else {
            return false;
        };
        let Aside { planned, tried, .. } = self.writing.aside.swap_remove(index);
        let steps = self.still_allowed(vec![planned]);
        if steps.is_empty() {
            return false;
        }
        self.writing.trying = Some(tried);
        self.call_write(steps);
        true
    }

    /// A command may not be carried out: the book that is read next has it again.
    fn forget_command(&mut self, command: Option<u64>) {
        if let Some(command) = command {
            self.book.commands.remove(&command);
        }
    }

    fn suspended(&mut self, reason: &'static str, about: String, done: Result<(), StoreError>) {
        match done {
            Ok(()) => self.well(),
            Err(error) => {
                self.writing.suspensions.push_front((reason, about));
                self.failed("suspend", &error);
            }
        }
    }

    /// Takes the rows of a write, and carries out their effects.
    fn written(&mut self, steps: Vec<Planned>, rows: Vec<Option<Tx>>) {
        let now = Instant::now();
        if steps.iter().any(|planned| planned.step.is_new_attempt) {
            crash::point("txm_after_store");
            let is_bump = |planned: &Planned| {
                let last = planned.step.tx.attempts.last();
                planned.step.is_new_attempt
                    && last.is_some_and(|last| last.kind == AttemptKind::Bump)
            };
            if steps.iter().any(is_bump) {
                crash::point("txm_after_bump");
            }
        }
        if steps.iter().any(|planned| matches!(planned.told.fact, TxFact::Due { .. })) {
            crash::point("txm_before_resend");
        }
        let mut rows = rows.into_iter();
        for Planned { id, told, step } in steps {
            self.book.change(id, |row| row.is_writing = false);
            let Some(tx) = rows.next().flatten() else {
                // Its version is another one: the store knows more than this memory.
                tracing::warn!(signer = %self.lease.signer, tx = %id, "a step met another version");
                self.writing.must_open = true;
                self.forget_command(told.command);
                if step.tx.state == TxState::Submitted && Planned::stores_pay(&step) {
                    // Or its signer may pay no more in this hour: then the book shows a suspension
                    // and no news of the row. No second signature before that is known.
                    self.book.change(id, |row| row.retry = Some(now + BACK_OFF_MAX));
                } else {
                    self.writing.lost.push(id);
                }
                continue;
            };
            self.count(&tx, &step, &told.fact);
            self.put(tx, now);
            self.writing.over.extend(told.command.map(|command| (command, None)));
            if !self.is_draining {
                self.carry(id, step.effects);
            }
            self.rest(id);
            self.follow(id);
        }
    }

    /// Metrics and log of a row that was written.
    fn count(&self, tx: &Tx, step: &TxStep, fact: &TxFact) {
        let is_again = matches!(fact, TxFact::Due { .. } | TxFact::Missing | TxFact::Resubmit)
            && tx.state != TxState::Allocated;
        let sends = |effect: &Effect| matches!(effect, Effect::Send { .. } | Effect::Sign { .. });
        if is_again && step.effects.iter().any(sends) {
            metrics::counter!("ubscore_tx_resubmit_total").increment(1);
        }
        if let TxFact::Confirmed(confirmed) = fact
            && confirmed.new_fork
            && tx.fork > 0
        {
            metrics::counter!("ubscore_confirmations_newfork_total").increment(1);
        }
        tracing::debug!(
            signer = %self.lease.signer, tx = %tx.id, nonce = ?tx.nonce,
            node = %self.tools.node, token = self.lease.token,
            state = tx.state.name(), version = step.tx.version, "written"
        );
    }

    /// Forgets a row that is final: its next owner does not know it either.
    pub(super) fn rest(&mut self, id: TxId) {
        if self.book.row(id).is_some_and(|row| row.tx.is_final && row.facts.is_empty()) {
            self.book.forget(id);
        }
    }

    /// Takes the book that was read: at the start, or because the one here may be wrong.
    fn opened(&mut self, read: SignerBook) {
        let now = Instant::now();
        self.well();
        let (is_first, read_to) = (!self.writing.is_open, read.read_to());
        (self.writing.is_open, self.writing.must_open) = (true, false);
        // Arrivals that came while it was read may be newer, or older: both count.
        let suspensions = match self.writing.is_arrived {
            true => self.add_suspensions(&read.suspensions),
            false => read.suspensions,
        };
        self.set_suspensions(suspensions);
        let seen = self.book.cursor;
        self.find_older(read.cursor, seen, "the cursor");
        let lost = std::mem::take(&mut self.writing.lost);
        let known: BTreeSet<TxId> = read.txs.iter().map(|tx| tx.id).collect();
        let max_fee = assumed_fee(self.following.market, &self.tools.options.caps);
        self.tools.open_rows.open(self.lease.signer, &read.txs, max_fee);
        self.book.cursor = self.book.cursor.max(read.cursor);
        self.filling.open(&read.jumped);
        for tx in read.txs {
            let id = tx.id;
            let other = tx.nonce.and_then(|nonce| self.book.at(nonce));
            if other.is_some_and(|row| row.tx.id != id) {
                self.find_older(tx.nonce.unwrap_or(0), u64::MAX, "a nonce of two rows");
                continue;
            }
            let is_news = self.book.row(id).is_none_or(|row| row.tx.version < tx.version);
            self.book.put(tx, now);
            self.book.change(id, |row| {
                let stored: Vec<_> = row.tx.attempts.iter().map(|it| it.hash).collect();
                row.facts.retain(|told| match &told.fact {
                    TxFact::Signed(signed) => !stored.contains(&signed.hash),
                    _ => true,
                });
            });
            if is_news || lost.contains(&id) {
                self.take_up(id);
            }
        }
        // A row that is final is not in the book; nothing of it is left to do. One behind those
        // that were read is as it was, or arrives again.
        for id in self.book.ids() {
            let Some(row) = self.book.row(id).filter(|row| !row.tx.state.is_terminal()) else {
                continue;
            };
            let was_read = row.tx.nonce.is_some() || id <= read_to || lost.contains(&id);
            if known.contains(&id) {
                continue;
            }
            if !was_read {
                self.tools.open_rows.keep(&row.tx, max_fee);
                continue;
            }
            self.book.forget(id);
        }
        self.take_commands(read.commands, true);
        for order in std::mem::take(&mut self.early) {
            self.order(Some(match order {
                // It was read before the book, or beside it.
                super::Order::Arrived(txs, commands, read) => {
                    super::Order::Arrived(txs, commands, self.add_suspensions(&read))
                }
                other => other,
            }));
        }
        if is_first {
            self.following.wants_counts = true;
            self.want_market();
            tracing::info!(
                signer = %self.lease.signer, node = %self.tools.node, token = self.lease.token,
                rows = self.book.open(), cursor = self.book.cursor, "owned"
            );
        }
        self.looked();
    }

    /// The database fell back under this owner: a nonce or the cursor is below what it has seen.
    /// Returns whether it is so. Nothing is signed until an operator has looked.
    pub(super) fn find_older(&mut self, nonce: u64, seen: u64, about: &str) -> bool {
        let is_older = nonce < seen;
        if is_older {
            self.want_suspension(DATABASE_OLDER, format!("{about}: {nonce}, seen: {seen}"));
        }
        is_older
    }

    /// Hands an unfinished row to the table, as if no owner had done anything about it yet.
    pub(super) fn take_up(&mut self, id: TxId) {
        let Some(row) = self.book.row(id) else { return };
        let tx = &row.tx;
        let has = |kind| tx.attempts.iter().any(|attempt| attempt.kind == kind);
        let (state, mined) = (tx.state, tx.receipt.is_some());
        let wish = match tx.wish {
            Wish::Cancel if !has(AttemptKind::Cancel) && !has(AttemptKind::Fill) => {
                Some(TxFact::Cancel)
            }
            Wish::Fill if !has(AttemptKind::Fill) => Some(TxFact::Fill),
            _ => None,
        };
        match state {
            // One that was passed over waits.
            TxState::Created if row.retry.is_some() => {}
            TxState::Created => self.want_prepare(id),
            // Its turn comes again. Bytes that are not stored have never left.
            TxState::Allocated => self.book.change(id, |row| row.has_turn = row.is_signing),
            TxState::Submitted => self.book.tell_once(id, TxFact::Missing),
            TxState::Tracking if !mined => self.want_receipts(id),
            _ => {}
        }
        if let Some(fact) = wish.filter(|_| !state.is_terminal()) {
            self.book.tell_once(id, fact);
        }
    }

    /// Everything that waits for this process gets the answer that it is not the owner.
    pub(super) fn answer_all_not_leader(&mut self) {
        for request in self.creating.take_all() {
            drop(request.reply.send(Err(TxRefusal::no_owner())));
        }
        while let Ok(order) = self.orders.try_recv() {
            if let super::Order::Create(_, reply) = order {
                drop(reply.send(Err(TxRefusal::no_owner())));
            }
        }
    }

    /// The refusal of a suspended signer. A suspension that only this owner knows yet is no final
    /// answer: an owner that has been superseded takes its successor's sends for another's.
    pub(super) fn suspended_refusal(&self) -> TxRefusal {
        let suspensions = &self.book.suspensions;
        match suspensions.iter().all(|it| self.own_suspensions.contains(it)) {
            true => TxRefusal::Away("the signer is being suspended".to_owned()),
            false => TxRefusal::SignerSuspended(suspensions.clone()),
        }
    }
}
