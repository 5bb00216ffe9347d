//! Work that came by the store: rows without a nonce, commands of operators, and suspensions.

use chain::decide::TxFact;
use chain::state::TxState;
use chain::tx::{Tx, TxId};
use tokio::time::Instant;

use super::writing::DATABASE_OLDER;
use super::{Order, Owner};
use crate::rpc::Endpoint;
use crate::signer::Signer;
use crate::store::{CommandWish, Suspension, TxCommand, TxStore};

/// The suspensions that the store sets within a call. Nothing else raises an alert of them.
const SET_BY_STORE: [&str; 2] = ["DATABASE_RESTORED", "OUTFLOW_LIMIT"];
/// The actor of suspensions that the program sets.
const ACTOR: &str = "txm";

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    pub(super) fn take_arrived(
        &mut self,
        txs: Vec<Tx>,
        commands: Vec<TxCommand>,
        suspensions: Vec<Suspension>,
    ) {
        if !self.writing.is_open {
            // The book that is being read may be older.
            self.early.push(Order::Arrived(txs, commands, suspensions));
            return;
        }
        self.writing.is_arrived = true;
        let now = Instant::now();
        for tx in txs {
            // A row that is here is newer than a list that was read beside it.
            if !self.book.has(tx.id) && tx.nonce.is_none() && !tx.state.is_terminal() {
                let id = tx.id;
                self.put(tx, now);
                self.take_up(id);
            }
        }
        self.set_suspensions(suspensions);
        self.take_commands(commands, false);
    }

    /// A row that has no nonce yet gets none. It is told again, so nothing is lost if it waits.
    pub(super) fn take_expired(&mut self, ids: &[TxId]) {
        if self.may_lack_rows() {
            return;
        }
        for id in ids {
            let is_open = self.book.row(*id).is_some_and(|row| row.tx.state == TxState::Created);
            if is_open {
                self.book.tell_once(*id, TxFact::Expired);
            }
        }
    }

    /// Takes the suspensions as the store has them. One that this owner has set stays until the
    /// store has shown it.
    pub(super) fn set_suspensions(&mut self, mut read: Vec<Suspension>) {
        let was_suspended = self.book.is_suspended();
        let is_older = |all: &[Suspension]| all.iter().any(|it| it.reason == DATABASE_OLDER);
        let was_older = is_older(&self.book.suspensions);
        self.own_suspensions.retain(|own| !read.contains(own));
        for reason in SET_BY_STORE {
            let holds = |all: &[Suspension]| all.iter().any(|one| one.reason == reason);
            if holds(&read) && !holds(&self.book.suspensions) {
                self.raise(reason, "the signer");
            }
        }
        read.extend(self.own_suspensions.iter().cloned());
        self.book.suspensions = read;
        if was_older && !is_older(&self.book.suspensions) {
            // The operator vouches for this database: its book is read as by a new owner, and its
            // cursor is compared with the chain.
            self.book.cursor = 0;
            for id in self.book.ids() {
                self.book.forget(id);
            }
            self.following.wants_counts = true;
            self.writing.must_open = true;
        }
        if was_suspended && !self.book.is_suspended() {
            self.book.resume_fills();
            // The command that lifted it may have moved the cursor.
            self.writing.must_open = true;
            self.following.wants_counts = true;
        }
    }

    /// Adds suspensions to those that are known. It lifts none: their reader may have been earlier.
    pub(super) fn add_suspensions(&self, read: &[Suspension]) -> Vec<Suspension> {
        let mut all = self.book.suspensions.clone();
        all.extend(read.iter().filter(|it| !self.book.suspensions.contains(it)).cloned());
        all
    }

    /// Suspends the signer in memory, so that nothing new is signed from now on.
    pub(super) fn suspend_here(&mut self, reason: &'static str) {
        let own = Suspension { reason: reason.to_owned(), actor: ACTOR.to_owned() };
        if !self.book.suspensions.iter().any(|known| known.reason == reason) {
            self.own_suspensions.push(own.clone());
            self.book.suspensions.push(own);
        }
        let refusal = self.suspended_refusal();
        self.refuse_creates(&refusal);
    }

    /// Takes open commands. `is_whole`: the book was just read, so that a row that is not in memory
    /// is over.
    pub(super) fn take_commands(&mut self, commands: Vec<TxCommand>, is_whole: bool) {
        for command in commands {
            if self.book.commands.contains_key(&command.id) {
                continue;
            }
            let known = command.tx.is_none_or(|id| self.book.has(id));
            if !known && !is_whole {
                self.writing.must_open = true;
                continue;
            }
            let unnumbered = |id: TxId| self.book.row(id).is_some_and(|row| row.tx.nonce.is_none());
            if command.tx.is_some_and(unnumbered) && self.may_lack_rows() {
                // Open commands arrive again.
                continue;
            }
            self.book.commands.insert(command.id, command.clone());
            match command.tx.filter(|_| known) {
                Some(id) => self.command_row(id, &command),
                None if command.tx.is_some() => self.over(command.id, Some("it is over")),
                None if command.wish == CommandWish::Release => {
                    self.over(command.id, None);
                    self.is_draining = true;
                }
                None => match command.wish {
                    CommandWish::FillJumped { nonce } => self.ask_fill(command.id, nonce),
                    _ => self.over(command.id, Some("it needs a transaction")),
                },
            }
        }
    }

    fn command_row(&mut self, id: TxId, command: &TxCommand) {
        let fact = match command.wish {
            CommandWish::Resubmit => TxFact::Resubmit,
            CommandWish::Cancel => TxFact::Cancel,
            CommandWish::Fill => TxFact::Fill,
            CommandWish::Resolve { is_paid } => TxFact::Resolve { is_paid },
            CommandWish::ResolveHash(hash) => {
                // A hint to look again, never a verdict.
                self.want_receipts(id);
                self.seek(id, Some(hash));
                self.over(command.id, None);
                return;
            }
            CommandWish::Release | CommandWish::FillJumped { .. } => {
                self.over(command.id, Some("it is a signer's"));
                return;
            }
        };
        self.book.tell(id, fact, Some(command.id));
    }

    pub(super) fn over(&mut self, command: u64, refused: Option<&'static str>) {
        self.writing.over.push_back((command, refused));
    }
}
