//! The rows of one signer in memory, with their indices. Nothing here awaits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use alloy_primitives::B256;
use chain::decide::{Effect, TxFact, TxRules, TxStep, decide};
use chain::state::TxState;
use chain::tx::{SubState, Tx, TxId, TxReceipt, Wish};
use tokio::time::Instant;

use crate::store::{Suspension, TxCommand};

/// The first pause before something that failed is tried again.
pub(super) const BACK_OFF: Duration = Duration::from_millis(100);
/// The longest such pause.
pub(super) const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The pause before another look at a row that is being signed, prepared or written.
const BUSY: Duration = Duration::from_secs(1);

/// A pause that doubles with each failure.
pub(super) fn back_off(failures: u32) -> Duration {
    BACK_OFF.saturating_mul(1 << failures.min(16)).min(BACK_OFF_MAX)
}

/// A fact that waits for its row's turn to be written.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// The fact.
    pub fact: TxFact,
    /// The command behind it, which is done once the row is written.
    pub command: Option<u64>,
}

/// The index that a row stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Without a nonce.
    Later,
    /// It has a nonce and waits for its turn to be signed.
    Waiting,
    /// Its turn has come; no receipt is believed.
    Flying,
    /// Its receipt is believed; not final.
    Mined,
    /// Terminal, and still looked at.
    Watched,
}

/// A row and the facts about it that memory alone has.
#[derive(Debug)]
pub(super) struct Row {
    /// The row as the store answered it.
    pub tx: Tx,
    /// Facts that are not decided yet.
    pub facts: VecDeque<Told>,
    /// A step of it is being written.
    pub is_writing: bool,
    /// It is being signed.
    pub is_signing: bool,
    /// Its first signature was asked for, or is stored.
    pub has_turn: bool,
    /// When endpoints answered to its last send.
    pub sent: Option<Instant>,
    /// The last time that it was sent because an endpoint lacked it.
    pub missed: Option<Instant>,
    /// Failures in a row: of its signature, or of a question about it.
    pub failures: u32,
    /// It is in line for a prepare.
    pub is_in_line: bool,
    /// A prepare is under way.
    pub is_preparing: bool,
    /// A question for its receipts is under way.
    pub is_asked: bool,
    /// No receipt of it is asked for by the mined count before this time.
    pub ask_at: Option<Instant>,
    /// Questions for its receipts in a row that found none.
    pub misses: u32,
    /// The receipt that the chain shows of a terminal row, in place of its own.
    pub behind: Option<TxReceipt>,
    /// Its lookup by sender and nonce is under way or is planned.
    pub is_sought: bool,
    /// The hash that a person named as the one with its nonce.
    pub named: Option<B256>,
    /// When the row was first seen BLOCKED.
    pub blocked: Option<Instant>,
    /// The time of its next resend.
    due: Option<Instant>,
    /// When its first attempt was sent.
    first_sent: Option<Instant>,
    /// Its next turn to be prepared or signed, if the last one failed.
    pub retry: Option<Instant>,
    /// The next look at it by time: the earliest of all of these.
    wake: Option<Instant>,
    is_stale_told: bool,
    is_fill_told: bool,
    is_fill_held: bool,
    place: Place,
}

impl Row {
    fn new(tx: Tx, place: Place) -> Row {
        Row {
            tx,
            facts: VecDeque::new(),
            is_writing: false,
            is_signing: false,
            has_turn: false,
            sent: None,
            missed: None,
            failures: 0,
            is_in_line: false,
            is_preparing: false,
            is_asked: false,
            ask_at: None,
            misses: 0,
            behind: None,
            is_sought: false,
            named: None,
            blocked: None,
            due: None,
            first_sent: None,
            retry: None,
            wake: None,
            is_stale_told: false,
            is_fill_told: false,
            is_fill_held: false,
            place,
        }
    }

    /// The row with its durations as of now.
    fn at(&self, now: Instant) -> Tx {
        let mut tx = self.tx.clone();
        tx.resubmit_in = self.due.map(|due| due.saturating_duration_since(now));
        tx.sent_since = self.first_sent.map(|sent| now.saturating_duration_since(sent));
        tx
    }

    /// The receipt that the chain showed last.
    pub(super) fn shown(&self) -> Option<TxReceipt> {
        self.behind.or(self.tx.receipt)
    }

    /// When it will be without a receipt for too long.
    fn stale_at(&self, times: Times) -> Option<Instant> {
        let pends = self.place == Place::Flying && self.tx.sub == Some(SubState::Pending);
        let sent = self.first_sent.filter(|_| pends && !self.is_stale_told)?;
        Some(sent + times.stale)
    }

    /// Whether something about it is under way.
    pub(super) fn is_busy(&self) -> bool {
        let is_asked = self.is_writing || self.is_signing || self.is_preparing;
        is_asked || !self.facts.is_empty()
    }

    /// When its nonce is to be filled.
    fn fill_at(&self, times: Times) -> Option<Instant> {
        let is_open = !self.is_fill_told && !self.is_fill_held;
        Some(self.blocked.filter(|_| is_open)? + times.fill_after)
    }

    /// The looks for which the time has come.
    pub(super) fn look_at(&self, now: Instant, times: Times) -> Wants {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        // Busy: its time comes again.
        let retries = is_over(self.retry) && !self.is_busy();
        Wants {
            resend: is_over(self.due) && self.place == Place::Flying,
            stale: is_over(self.stale_at(times)),
            fill: is_over(self.fill_at(times)),
            turn: retries && self.tx.state == TxState::Allocated,
            prepare: retries && self.tx.state == TxState::Created,
        }
    }

    fn place_of(tx: &Tx, has_turn: bool) -> Place {
        match tx.state {
            TxState::Created => Place::Later,
            TxState::Confirmed | TxState::Failed => Place::Watched,
            _ if tx.receipt.is_some() => Place::Mined,
            // A cancel or a fill is signed by its command, not in the row's turn.
            TxState::Allocated if !has_turn && tx.wish == Wish::Pay => Place::Waiting,
            _ => Place::Flying,
        }
    }

    /// The index that it stands in.
    pub(super) fn place(&self) -> Place {
        Row::place_of(&self.tx, self.has_turn)
    }
}

/// How long a row may stay as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Without a receipt.
    pub stale: Duration,
    /// BLOCKED.
    pub fill_after: Duration,
}

/// The looks at a row for which the time has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wants {
    /// The next resend.
    pub resend: bool,
    /// It has been without a receipt for too long.
    pub stale: bool,
    /// It has been BLOCKED for too long.
    pub fill: bool,
    /// Another try to sign its first attempt.
    pub turn: bool,
    /// Another try to prepare it.
    pub prepare: bool,
}

/// A step that is to be written, with the facts that it came from.
#[derive(Debug)]
pub(super) struct Planned {
    /// The row.
    pub id: TxId,
    /// The fact.
    pub told: Told,
    /// The step.
    pub step: TxStep,
}

impl Planned {
    /// Whether a step stores an attempt that pays.
    pub(super) fn stores_pay(step: &TxStep) -> bool {
        step.is_new_attempt && step.tx.attempts.last().is_some_and(|last| last.kind.pays())
    }

    /// Whether its step stores an attempt that pays.
    pub(super) fn stores_payment(&self) -> bool {
        Planned::stores_pay(&self.step)
    }
}

/// The decisions of one round.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// To be written, the lowest nonce first, at most one a row.
    pub steps: Vec<Planned>,
    /// Effects of decisions that change nothing and send nothing.
    pub free: Vec<(TxId, Vec<Effect>)>,
    /// Commands that are over, with the reason of a refusal.
    pub over: Vec<(u64, Option<&'static str>)>,
}

/// The rows of one signer.
#[derive(Debug, Default)]
pub(super) struct Book {
    rows: BTreeMap<TxId, Box<Row>>,
    nonces: BTreeMap<u64, TxId>,
    waiting: BTreeSet<u64>,
    flying: BTreeSet<u64>,
    mined_rows: BTreeSet<u64>,
    watched: BTreeSet<TxId>,
    ready: BTreeSet<(u64, TxId)>,
    wakes: BTreeSet<(Instant, TxId)>,
    times: Times,
    /// The next nonce, as far as memory knows.
    pub cursor: u64,
    /// The mined count at the head that was asked last.
    pub mined: u64,
    /// The signer's suspensions.
    pub suspensions: Vec<Suspension>,
    /// Commands that are not over.
    pub commands: BTreeMap<u64, TxCommand>,
}

impl Book {
    /// An empty book.
    pub(super) fn new(times: Times) -> Book {
        Book { times, ..Book::default() }
    }

    /// Takes a row as the store has it. An older version than the one here changes nothing.
    pub(super) fn put(&mut self, tx: Tx, now: Instant) {
        let id = tx.id;
        if self.rows.get(&id).is_some_and(|row| row.tx.version > tx.version) {
            return;
        }
        if let Some(nonce) = tx.nonce {
            self.cursor = self.cursor.max(nonce + 1);
            self.nonces.insert(nonce, id);
        }
        let mut row = match self.take_out(id) {
            Some(mut row) => {
                row.tx = tx;
                row
            }
            None => {
                // Its last owner has sent what it stored: a pool may have dropped that.
                let sent = (!tx.attempts.is_empty()).then_some(now);
                Box::new(Row { sent, ..Row::new(tx, Place::Later) })
            }
        };
        row.has_turn |= !row.tx.attempts.is_empty();
        row.due = row.tx.resubmit_in.map(|wait| now + wait);
        row.first_sent = row.tx.sent_since.map(|since| now.checked_sub(since).unwrap_or(now));
        row.blocked = match row.tx.sub {
            Some(SubState::Blocked) => row.blocked.or(Some(now)),
            _ => None,
        };
        row.is_fill_told &= row.blocked.is_some();
        row.is_fill_held &= row.blocked.is_some();
        self.put_in(id, row);
    }

    /// Changes a row's memory and keeps the indices right.
    pub(super) fn change(&mut self, id: TxId, change: impl FnOnce(&mut Row)) {
        if let Some(mut row) = self.take_out(id) {
            change(&mut row);
            self.put_in(id, row);
        }
    }

    fn take_out(&mut self, id: TxId) -> Option<Box<Row>> {
        let row = self.rows.remove(&id)?;
        let nonce = row.tx.nonce.unwrap_or(u64::MAX);
        self.ready.remove(&(nonce, id));
        if let Some(wake) = row.wake {
            self.wakes.remove(&(wake, id));
        }
        match row.place {
            Place::Later => false,
            Place::Waiting => self.waiting.remove(&nonce),
            Place::Flying => self.flying.remove(&nonce),
            Place::Mined => self.mined_rows.remove(&nonce),
            Place::Watched => self.watched.remove(&id),
        };
        Some(row)
    }

    fn put_in(&mut self, id: TxId, mut row: Box<Row>) {
        let nonce = row.tx.nonce.unwrap_or(u64::MAX);
        row.place = row.place();
        match row.place {
            Place::Later => false,
            Place::Waiting => self.waiting.insert(nonce),
            Place::Flying => self.flying.insert(nonce),
            Place::Mined => self.mined_rows.insert(nonce),
            Place::Watched => self.watched.insert(id),
        };
        if !row.facts.is_empty() && !row.is_writing {
            self.ready.insert((nonce, id));
        }
        let resend = row.due.filter(|_| row.place == Place::Flying);
        let waits = [resend, row.retry, row.stale_at(self.times), row.fill_at(self.times)];
        row.wake = waits.into_iter().flatten().min();
        if let Some(wake) = row.wake {
            self.wakes.insert((wake, id));
        }
        self.rows.insert(id, row);
    }

    /// The signer may sign again: rows that stayed BLOCKED for long are filled now.
    pub(super) fn resume_fills(&mut self) {
        for id in self.ids() {
            if self.row(id).is_some_and(|row| row.is_fill_held) {
                self.change(id, |row| row.is_fill_held = false);
            }
        }
    }

    /// Forgets a row, and the commands of facts that it was told: they are open, and arrive again.
    pub(super) fn forget(&mut self, id: TxId) {
        let Some(row) = self.take_out(id) else { return };
        if let Some(nonce) = row.tx.nonce
            && self.nonces.get(&nonce) == Some(&id)
        {
            self.nonces.remove(&nonce);
        }
        for command in row.facts.iter().filter_map(|told| told.command) {
            self.commands.remove(&command);
        }
    }

    /// Adds a fact about a row. It is decided when the row's turn to be written comes.
    pub(super) fn tell(&mut self, id: TxId, fact: TxFact, command: Option<u64>) {
        self.change(id, |row| row.facts.push_back(Told { fact, command }));
    }

    /// Adds a fact, unless the same one waits already.
    pub(super) fn tell_once(&mut self, id: TxId, fact: TxFact) {
        let waits =
            self.rows.get(&id).is_some_and(|row| row.facts.iter().any(|told| told.fact == fact));
        if !waits {
            self.tell(id, fact, None);
        }
    }

    /// Whether a row is here.
    pub(super) fn has(&self, id: TxId) -> bool {
        self.rows.contains_key(&id)
    }

    /// A row.
    pub(super) fn row(&self, id: TxId) -> Option<&Row> {
        self.rows.get(&id).map(|row| &**row)
    }

    /// The row of a nonce.
    pub(super) fn at(&self, nonce: u64) -> Option<&Row> {
        self.row(*self.nonces.get(&nonce)?)
    }

    /// Every row's id.
    pub(super) fn ids(&self) -> Vec<TxId> {
        self.rows.keys().copied().collect()
    }

    /// Rows that are not terminal.
    pub(super) fn open(&self) -> usize {
        self.rows.len() - self.watched.len()
    }

    /// Terminal rows that are still looked at.
    pub(super) fn watched(&self) -> Vec<TxId> {
        self.watched.iter().copied().collect()
    }

    /// Rows with a believed receipt that are not final, by nonce.
    pub(super) fn mined_rows(&self) -> Vec<TxId> {
        self.mined_rows.iter().filter_map(|nonce| self.nonces.get(nonce).copied()).collect()
    }

    /// Whether something is on its way to the chain.
    pub(super) fn is_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    /// Whether something is sent and not mined.
    pub(super) fn has_unmined(&self) -> bool {
        self.flying.range(self.mined..).next().is_some()
    }

    /// Whether a row waits to be signed.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a row has facts to be decided.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether the signer is suspended.
    pub(super) fn is_suspended(&self) -> bool {
        !self.suspensions.is_empty()
    }

    /// The lowest nonce that is not mined, as far as is known.
    pub(super) fn lowest_unmined(&self) -> Option<u64> {
        let flying = self.flying.range(self.mined..).next();
        [flying, self.waiting.first()].into_iter().flatten().min().copied()
    }

    /// The next rows to be signed, ascending: as many as the window has room for. `most` is the
    /// window; 0: no window. A suspended signer has none: an operator's cancel or fill is signed by
    /// its command.
    pub(super) fn turns(&self, most: usize) -> Vec<TxId> {
        let room = match most {
            _ if self.is_suspended() => 0,
            0 => usize::MAX,
            most => most.saturating_sub(self.flying.range(self.mined..).take(most).count()),
        };
        let ids = self.waiting.iter().filter_map(|nonce| self.nonces.get(nonce).copied());
        ids.take(room).collect()
    }

    /// Rows below the mined count without a believed receipt, by nonce. No other row's receipt is
    /// asked for.
    pub(super) fn unreceipted(&self) -> Vec<TxId> {
        let below = self.flying.range(..self.mined);
        below.filter_map(|nonce| self.nonces.get(nonce).copied()).collect()
    }

    /// The UNACCOUNTED rows, with their nonces.
    pub(super) fn unaccounted(&self) -> Vec<(TxId, u64)> {
        let rows = self.flying.iter().filter_map(|nonce| Some((self.at(*nonce)?, *nonce)));
        let rows = rows.filter(|(row, _)| row.tx.sub == Some(SubState::Unaccounted));
        rows.map(|(row, nonce)| (row.tx.id, nonce)).collect()
    }

    /// The rows that an endpoint lacks: its pool counts up to `pending`, and these were sent before
    /// `asked`. Ascending. A row that was sent for this reason within `pause` is not named again.
    pub(super) fn missing(&self, pending: u64, asked: Instant, pause: Duration) -> Vec<TxId> {
        let from = pending.max(self.mined);
        let lacked = self.flying.range(from..).filter_map(|nonce| {
            let row = self.at(*nonce)?;
            let was_sent = row.sent.is_some_and(|at| at < asked);
            let is_new = row.missed.is_none_or(|at| at + pause <= asked);
            (was_sent && is_new).then_some(row.tx.id)
        });
        // Only if the first of them is lacked itself: a pool that has it counts beyond it.
        if self.at(from).is_none_or(|row| row.tx.attempts.is_empty()) {
            return Vec::new();
        }
        lacked.collect()
    }

    /// The next time at which a row wants a look.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// The rows that want a look now. Their time is over.
    pub(super) fn woken(&self, now: Instant) -> Vec<TxId> {
        self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }

    /// The looks that a row wants now. Each is named once: the next resend counts from the write
    /// of its step.
    pub(super) fn take_wants(&mut self, id: TxId, now: Instant) -> Wants {
        let (times, is_suspended) = (self.times, self.is_suspended());
        let wants = self.rows.get(&id).map(|row| row.look_at(now, times)).unwrap_or_default();
        self.change(id, |row| {
            row.due = row.due.filter(|at| *at > now);
            let waits = matches!(row.tx.state, TxState::Allocated | TxState::Created);
            row.retry = match row.retry.filter(|at| *at <= now) {
                Some(_) if row.is_busy() && waits => Some(now + BUSY),
                Some(_) => None,
                None => row.retry,
            };
            row.is_stale_told |= wants.stale;
            row.is_fill_told |= wants.fill && !is_suspended;
            // Its time has come, and it is filled once the signer may sign again.
            row.is_fill_held |= wants.fill && is_suspended;
        });
        wants
    }

    /// Decides facts of at most `most` rows, the lowest nonce first, until each has a step.
    pub(super) fn plan(&mut self, rules: &TxRules, most: usize, now: Instant) -> Plan {
        let mut plan = Plan::default();
        while plan.steps.len() < most {
            let Some((_, id)) = self.ready.first().copied() else { break };
            let mut row = self.take_out(id).expect("a ready row is in the book");
            while let Some(told) = row.facts.pop_front() {
                let before = row.at(now);
                let Some(step) = decide(&before, &told.fact, rules) else {
                    if let Some(command) = told.command {
                        plan.over.push((command, refusal(&row.tx, &told.fact)));
                    }
                    continue;
                };
                if !step.is_written(&before) {
                    plan.over.extend(told.command.map(|command| (command, None)));
                    plan.free.push((id, step.effects));
                    continue;
                }
                row.is_writing = true;
                plan.steps.push(Planned { id, told, step });
                break;
            }
            self.put_in(id, row);
        }
        plan
    }
}

/// Why a command did nothing; `None`: its wish is met already.
fn refusal(tx: &Tx, fact: &TxFact) -> Option<&'static str> {
    match fact {
        TxFact::Cancel if tx.state.is_terminal() => Some("the transaction is over"),
        TxFact::Cancel if tx.wish == Wish::Cancel => None,
        TxFact::Fill if tx.wish == Wish::Fill => None,
        _ if tx.state.is_terminal() => Some("the transaction is over"),
        _ => Some("nothing to do in its state"),
    }
}

#[cfg(test)]
mod tests;
