//! Nonces that a jump passed over (`nonce.external_use = "follow"`). The chain mines most of them
//! for another wallet. One that it has not mined for long is filled by a row of its own: no later
//! nonce can be mined before it.

use std::collections::{BTreeMap, BTreeSet};

use chain::tx::Tx;
use tokio::time::{Duration, Instant};

use super::Owner;
use super::book::BACK_OFF_MAX;
use super::writing::Called;
use crate::crash;
use crate::rpc::Endpoint;
use crate::rpc::pool::Counts;
use crate::signer::Signer;
use crate::store::TxStore;

/// The most nonces that one command fills.
const FILLED_MAX: u64 = 100;

/// The nonces of one call, and the command behind it; `None`: their time has come.
pub(super) struct Filled {
    nonces: Vec<u64>,
    command: Option<u64>,
}

/// The nonces of jumps without a row.
#[derive(Default)]
pub(super) struct Filling {
    /// Since when the chain is known to lack each; `None`: it has it, or was not asked yet.
    jumped: BTreeMap<u64, Option<Instant>>,
    /// To be filled with the next call.
    due: BTreeSet<u64>,
    /// Commands for which the chain is not asked yet, with their nonces.
    asked: BTreeMap<u64, u64>,
    /// Commands to be carried out with the next calls, with their nonces.
    admitted: BTreeMap<u64, u64>,
}

impl Filling {
    /// Takes the nonces of the book. Those that were there keep their time.
    pub(super) fn open(&mut self, read: &[u64]) {
        self.jumped.retain(|nonce, _| read.contains(nonce));
        self.due.retain(|nonce| read.contains(nonce));
        for nonce in read {
            self.jumped.entry(*nonce).or_default();
        }
    }

    /// The same nonces with another call.
    pub(super) fn put_back(&mut self, filled: Filled) {
        match filled.command {
            Some(command) => self.admitted.extend(filled.nonces.last().map(|it| (command, *it))),
            None => self.due.extend(filled.nonces),
        }
    }

    /// Whether a command waits for the chain's counts.
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The lowest nonce that the chain is known to lack.
    pub(super) fn lowest_unmined(&self) -> Option<u64> {
        self.jumped.iter().find(|(_, since)| since.is_some()).map(|(nonce, _)| *nonce)
    }

    /// The chain has mined all nonces below this count, and none from it on.
    pub(super) fn see(&mut self, mined: u64, now: Instant) {
        for (nonce, since) in &mut self.jumped {
            match *nonce < mined {
                true => *since = None,
                false => drop(since.get_or_insert(now)),
            }
        }
        self.due.retain(|nonce| *nonce >= mined);
    }

    /// The time at which the next nonce is to be filled.
    fn next(&self, after: Duration) -> Option<Instant> {
        let waits = self.jumped.iter().filter(|(nonce, _)| !self.due.contains(nonce));
        waits.filter_map(|(_, since)| since.map(|since| since + after)).min()
    }
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    /// The time of the next question about jumped nonces; `None`: none, or one is under way.
    pub(super) fn next_fill(&self) -> Option<Instant> {
        let following = &self.following;
        let is_asking = following.wants_counts || following.is_counting;
        let waits = is_asking || following.pause.is_some() || self.book.is_suspended();
        self.filling.next(self.tools.options.fill_after).filter(|_| !waits)
    }

    /// Asks the chain again before a nonce is filled: it may have been mined meanwhile.
    pub(super) fn take_fills(&mut self, now: Instant) {
        self.following.wants_counts |= self.next_fill().is_some_and(|at| at <= now);
    }

    /// An operator wants a nonce filled: a jumped one, or all up to one that was seen before the
    /// rows became an older copy. The chain is asked first.
    pub(super) fn ask_fill(&mut self, command: u64, nonce: u64) {
        if nonce >= self.book.cursor.saturating_add(FILLED_MAX) {
            self.over(command, Some("it is more than 100 above the next nonce"));
            return;
        }
        self.filling.asked.insert(command, nonce);
        self.following.wants_counts = true;
    }

    /// Jumped nonces that no endpoint has mined, as a quorum tells, are filled by time or command.
    pub(super) fn compare_jumped(&mut self, counts: &[Counts], now: Instant) {
        let options = &self.tools.options;
        let mined = counts.iter().map(|count| count.latest).max().unwrap_or(0);
        self.filling.see(mined, now);
        let after = options.fill_after;
        let is_due = |since: Instant| since + after <= now;
        let due = self.filling.jumped.iter();
        let due = due.filter(|(_, since)| since.is_some_and(is_due)).map(|(nonce, _)| *nonce);
        let due: Vec<u64> = due.collect();
        if counts.len() < options.quorum.max(1) {
            let waits = !due.is_empty() || !self.filling.asked.is_empty();
            self.following.pause = self.following.pause.or(waits.then_some(now + BACK_OFF_MAX));
            self.following.wants_counts |= !self.filling.asked.is_empty();
            return;
        }
        if !self.book.is_suspended() {
            self.filling.due.extend(due);
        }
        for (command, nonce) in std::mem::take(&mut self.filling.asked) {
            let next = self.book.cursor;
            if nonce < mined {
                self.over(command, Some("the chain has mined this nonce"));
            } else if nonce >= next && mined > next {
                self.over(command, Some("the chain has nonces without a row: adopt them first"));
            } else {
                self.filling.admitted.insert(command, nonce);
            }
        }
    }

    /// Begins to make the rows of nonces that are to be filled. Returns whether there are some.
    pub(super) fn begin_fill(&mut self) -> bool {
        let filled = if let Some((command, nonce)) = self.filling.admitted.pop_first() {
            let first = self.book.cursor.min(nonce);
            Filled { nonces: (first..=nonce).collect(), command: Some(command) }
        } else if self.filling.due.is_empty() || self.is_draining || self.book.is_suspended() {
            return false;
        } else {
            let nonces = std::mem::take(&mut self.filling.due).into_iter().collect();
            Filled { nonces, command: None }
        };
        // Its rows are signed at once, at today's price.
        self.want_market();
        let (tools, lease) = (self.tools.clone(), self.lease);
        self.call = Some(Box::pin(async move {
            let is_asked = filled.command.is_some();
            let rows = tools.store.fill(lease, &filled.nonces, is_asked).await;
            Called::Filled(filled, rows)
        }));
        true
    }

    /// Takes the rows of filled nonces. Their turn is now: a window that is full waits for them.
    pub(super) fn filled(&mut self, filled: Filled, rows: Vec<Option<Tx>>) {
        crash::point("txm_after_create");
        let now = Instant::now();
        let mut refused = None;
        for (nonce, row) in filled.nonces.into_iter().zip(rows) {
            self.filling.jumped.remove(&nonce);
            match row {
                Some(tx) if !tx.state.is_terminal() && !self.book.has(tx.id) => {
                    metrics::counter!("ubscore_tx_jumped_filled_total").increment(1);
                    tracing::warn!(signer = %self.lease.signer, nonce, "a nonce is filled");
                    let id = tx.id;
                    self.put(tx, now);
                    self.take_up(id);
                }
                Some(_) => {}
                None => refused = Some("it is not to be filled, or a row has it"),
            }
        }
        if let Some(command) = filled.command {
            self.over(command, refused);
        }
    }
}
