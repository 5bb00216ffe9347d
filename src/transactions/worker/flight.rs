//! Flights: one commit of everything that is ready to be recorded, and of the rounds that wait. A
//! flight is computed when it begins, from rows that nothing but a caller's decision can have
//! changed; the store compares their states.
//!
//! A flight that PostgreSQL refuses is done again one by one, so that one poisonous row stops no
//! other. After an unknown end nothing is a failure: rows are read again, rounds are sent again.

use std::collections::BTreeSet;
use std::ops::Bound;

use jiff::Timestamp;

use super::requests::Pending;
use super::{Done, Moving, Running, Work, Worker};
use crate::crash;
use crate::postgres::Superseded;
use crate::postgres::transactions::{
    Landed, RoundAccept, TransactionError, TransactionMove, TransactionStore,
};
use crate::telemetry;
use crate::transactions::branches::Branches;
use domain::transfer::ReqId;

/// Moves in one flight.
const MOVES_MAX: usize = 64;
/// Rounds in one flight.
const ACCEPTS_MAX: usize = 64;

/// See the module.
pub(super) struct Flight {
    moves: Vec<TransactionMove>,
    accepts: Vec<Pending>,
    at: Timestamp,
}

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    /// Begins the commit of everything that is ready, and of the rounds that wait.
    pub(super) fn begin_flight(&mut self) -> Option<Running<S>> {
        // If the first one has taken nothing, the next one takes those that fly alone.
        for _ in 0..2 {
            let at = self.now();
            // While a decision is written, a halt waits for it.
            let pass: Moving = self.parts.gate.pass();
            let (moves, is_alone) = self.take_moves(at, pass.is_none());
            let accepts = match is_alone {
                true => Vec::new(),
                false => self.take_accepts(ACCEPTS_MAX, false, pass.is_none()),
            };
            let running = self.fly(Flight { moves, accepts, at }, pass);
            if running.is_some() {
                return running;
            }
        }
        None
    }

    /// Begins the commit of one round that a flight with others was refused with.
    pub(super) fn begin_alone(&mut self) -> Option<Running<S>> {
        let (at, pass) = (self.now(), self.parts.gate.pass());
        let accepts = self.take_accepts(1, true, pass.is_none());
        self.fly(Flight { moves: Vec::new(), accepts, at }, pass)
    }

    /// Takes the moves that are ready, and whether the one that is taken needs a flight of its own.
    ///
    /// The search goes on behind the last one taken, and not every flight is for one alone: a row
    /// with commits that always end unknown takes its turn, and no more.
    fn take_moves(&mut self, at: Timestamp, halted: bool) -> (Vec<TransactionMove>, bool) {
        let fuse = self.parts.options.fuse;
        let (mut moves, mut later, mut is_alone) = (Vec::new(), BTreeSet::new(), false);
        let together = |id| self.entries.get(id).is_some_and(|entry| !entry.alone && !entry.stale);
        let others = self.ready.iter().any(together) || self.has_rounds();
        let no_alone = self.flown_alone && others;
        while moves.len() < MOVES_MAX
            && !is_alone
            && let Some(id) = self.next_ready()
        {
            let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.stale) else {
                continue;
            };
            if entry.alone && (no_alone || !moves.is_empty()) {
                later.insert(id);
                continue;
            }
            match entry.proposal(at, halted, fuse) {
                Some(moved) => {
                    entry.recording = true;
                    entry.taken = entry.heard.len();
                    moves.push(moved);
                    is_alone = entry.alone;
                }
                None => {
                    self.woken.insert(id);
                }
            }
        }
        self.ready.extend(later);
        self.flown_alone = is_alone;
        (moves, is_alone)
    }

    /// Takes the next one that is ready behind the last one taken; behind the end, the first.
    fn next_ready(&mut self) -> Option<ReqId> {
        let behind = self.taken_last.and_then(|last| {
            self.ready.range((Bound::Excluded(last), Bound::Unbounded)).next().copied()
        });
        let id = behind.or_else(|| self.ready.first().copied())?;
        self.ready.remove(&id);
        self.taken_last = Some(id);
        Some(id)
    }

    /// Whether a round waits that can share a flight.
    fn has_rounds(&self) -> bool {
        let shared =
            |work: &Work| matches!(work, Work::Accept(one) if !one.is_abort() && !one.is_alone());
        self.work.iter().any(shared)
    }

    fn fly(&mut self, flight: Flight, pass: Moving) -> Option<Running<S>> {
        if flight.moves.is_empty() && flight.accepts.is_empty() {
            return None;
        }
        let mut store = self.store.take().expect("no call is under way");
        let is_new = |pending: &&Pending| !self.names.contains_key(pending.name());
        self.flying = flight.accepts.iter().filter(is_new).count();
        Some(Box::pin(async move {
            let _moving = pass;
            if !flight.moves.is_empty() {
                crash::point("transaction_before_record");
            }
            if !flight.accepts.is_empty() {
                crash::point("transaction_before_accept");
            }
            let accepts: Vec<&RoundAccept> = flight.accepts.iter().map(Pending::accept).collect();
            let landed = store.flight(&flight.moves, &accepts, flight.at).await;
            (store, Done::Flown(flight, landed))
        }))
    }

    /// A flight has ended.
    ///
    /// # Errors
    /// [`Superseded`].
    pub(super) fn on_flown(
        &mut self,
        flight: Flight,
        result: Result<Landed, TransactionError>,
    ) -> Result<(), Superseded> {
        let Flight { moves, accepts, at } = flight;
        self.flying = 0;
        for moved in &moves {
            if let Some(entry) = self.entries.get_mut(&moved.id) {
                entry.recording = false;
            }
        }
        let is_single = moves.len() + accepts.len() == 1;
        match self.result(result)? {
            Ok(Landed { moved, accepted }) => {
                assert_eq!(moved.len(), moves.len(), "one result a move");
                assert_eq!(accepted.len(), accepts.len(), "one result a round");
                telemetry::transaction_commit(moves.len() + accepts.len());
                if !moves.is_empty() {
                    crash::point("transaction_after_record");
                }
                for (one, result) in moves.iter().zip(moved) {
                    self.on_result(one, result, at);
                }
                // Behind the moves, as in the flight: a row that a round has met has moved.
                for (pending, result) in accepts.into_iter().zip(accepted) {
                    self.on_accepted(pending, result);
                }
            }
            // Nothing was written, and one row may be the cause: each has a flight of its own.
            Err(TransactionError::Refused(why)) => {
                for moved in &moves {
                    // Only the rows are in the way, and not the store.
                    self.outage = (0, 0);
                    self.put_aside(moved.id, is_single.then_some(why.as_str()));
                }
                for pending in accepts.into_iter().rev() {
                    match is_single {
                        true => self.on_refused(pending),
                        false => {
                            self.outage = (0, 0);
                            self.work.push_front(Work::Accept(Box::new(pending.alone())));
                        }
                    }
                }
            }
            // It may have been written. Nothing leaves before the rows are read again. The cause
            // may be one of several: a row that ends the connection must not end it for all.
            Err(_) => {
                for moved in &moves {
                    if let (false, Some(entry)) = (is_single, self.entries.get_mut(&moved.id)) {
                        entry.alone = true;
                    }
                    self.make_stale(moved.id);
                }
                for pending in accepts.into_iter().rev() {
                    self.send_again(if is_single { pending } else { pending.alone() });
                }
            }
        }
        Ok(())
    }
}
