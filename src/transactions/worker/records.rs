//! Commits of moves. A batch is computed when its commit begins, from rows that nothing but a
//! caller's decision can have changed; the store compares their states.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tracing::{debug, error};

use super::{Done, Moving, Running, Worker, ns};
use crate::alert::{Alert, alert_about};
use crate::crash;
use crate::postgres::Superseded;
use crate::postgres::transactions::{
    MoveResult, TransactionError, TransactionMove, TransactionStore,
};
use crate::transaction::{BranchState, TransactionState};
use crate::transactions::apply;
use crate::transactions::branches::Branches;
use domain::transfer::ReqId;

/// Moves in one commit.
const MOVES_MAX: usize = 64;

/// The moves of one commit.
pub(super) struct Batch {
    moves: Vec<TransactionMove>,
    at: Timestamp,
}

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    /// Begins the commit of everything that is ready.
    pub(super) fn begin_record(&mut self) -> Option<Running<S>> {
        let (at, fuse) = (self.now(), self.parts.options.fuse);
        // While a decision is written, a halt waits for it.
        let pass: Moving = self.parts.gate.pass();
        let mut batch = Batch { moves: Vec::new(), at };
        let mut later = BTreeSet::new();
        while batch.moves.len() < MOVES_MAX
            && let Some(id) = self.ready.pop_first()
        {
            let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.stale) else {
                continue;
            };
            if entry.alone && !batch.moves.is_empty() {
                later.insert(id);
                continue;
            }
            match entry.proposal(at, pass.is_none(), fuse) {
                Some(moved) => {
                    entry.recording = true;
                    entry.taken = entry.heard.len();
                    batch.moves.push(moved);
                    if entry.alone {
                        break;
                    }
                }
                None => {
                    self.woken.insert(id);
                }
            }
        }
        self.ready.extend(later);
        if batch.moves.is_empty() {
            return None;
        }
        let mut store = self.store.take().expect("no call is under way");
        Some(Box::pin(async move {
            let _moving = pass;
            crash::point("transaction_before_record");
            let recorded = store.record(&batch.moves, batch.at).await;
            (store, Done::Recorded(batch, recorded))
        }))
    }

    /// A commit of moves has ended.
    ///
    /// # Errors
    /// [`Superseded`].
    pub(super) fn on_recorded(
        &mut self,
        batch: Batch,
        result: Result<Vec<MoveResult>, TransactionError>,
    ) -> Result<(), Superseded> {
        for moved in &batch.moves {
            if let Some(entry) = self.entries.get_mut(&moved.id) {
                entry.recording = false;
            }
        }
        match self.result(result)? {
            Ok(results) => {
                assert_eq!(results.len(), batch.moves.len(), "one result a move");
                crash::point("transaction_after_record");
                for (moved, result) in batch.moves.iter().zip(results) {
                    self.on_result(moved, result, batch.at);
                }
            }
            // Nothing was written, and one row may be the cause: each has a commit of its own.
            Err(TransactionError::Refused(why)) => {
                // Only the rows are in the way, and not the store.
                self.outage = (0, 0);
                let is_single = batch.moves.len() == 1;
                for moved in &batch.moves {
                    self.put_aside(moved.id, is_single.then_some(why.as_str()));
                }
            }
            // It may have been written. Nothing leaves before the rows are read again.
            Err(_) => {
                for moved in &batch.moves {
                    self.make_stale(moved.id);
                }
            }
        }
        Ok(())
    }

    fn on_result(&mut self, moved: &TransactionMove, result: MoveResult, at: Timestamp) {
        let (now_ns, tick) = (self.now_ns(), self.parts.options.tick);
        let Some(entry) = self.entries.get_mut(&moved.id) else { return };
        (entry.alone, entry.records.count) = (false, 0);
        match result {
            MoveResult::Moved => {
                apply::whole(&mut entry.row, moved, at);
                entry.heard.drain(..std::mem::take(&mut entry.taken));
                entry.held = None;
                let state = entry.row.state;
                if moved.to != moved.from {
                    entry.since_ns = now_ns;
                    debug!(transaction = %moved.id, state = state.name(), "transaction moved");
                }
                pass_points(moved);
                if moved.stores_ended {
                    // Durable, so no start asks a store again.
                    let order_number = entry.row.order_number;
                    self.release_number(order_number);
                }
                match state.is_terminal() {
                    true => self.finish(moved.id),
                    false => {
                        self.woken.insert(moved.id);
                    }
                }
            }
            MoveResult::Changed => self.make_stale(moved.id),
            MoveResult::Held(session) => {
                debug!(transaction = %moved.id, session, "a session holds the row");
                entry.held = Some(session);
                entry.records.due_ns = super::after(now_ns, tick);
                let due_ns = entry.records.due_ns;
                self.wake_at(due_ns, moved.id);
            }
        }
    }

    /// PostgreSQL refused a commit with this move. `why`: it was the only one.
    fn put_aside(&mut self, id: ReqId, why: Option<&str>) {
        let now_ns = self.now_ns();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.alone = true;
        let Some(why) = why else {
            self.ready.insert(id);
            return;
        };
        entry.records.count = entry.records.count.saturating_add(1);
        entry.records.due_ns = now_ns + ns(self.backoff.delay_ms(entry.records.count));
        entry.trouble = Some(why.to_owned());
        let due_ns = entry.records.due_ns;
        error!(transaction = %id, why, "PostgreSQL refuses the next step of a transaction");
        self.wake_at(due_ns, id);
        // It may be the memory that is wrong.
        self.make_stale(id);
    }

    /// A row that was there is gone: the service deletes no unfinished row.
    pub(super) fn on_lost(&mut self, id: ReqId) {
        let what = format_args!("the row of unfinished transaction {id} is gone");
        alert_about(Alert::ProtocolViolation, &id, what);
        if let Some(entry) = self.entries.get_mut(&id) {
            // Nothing of it is decided or asked any more, and the watermark does not pass it.
            entry.stale = true;
            entry.answer_waiters(u64::MAX);
        }
    }
}

/// The points behind a passage.
fn pass_points(moved: &TransactionMove) {
    if moved.branches.iter().any(|branch| branch.to == BranchState::Tried) {
        crash::point("transaction_after_tried");
    }
    if moved.stores_ended {
        crash::point("transaction_after_stores");
    }
    if moved.to == moved.from {
        if moved.seal {
            crash::point("transaction_after_seal");
        }
        return;
    }
    match moved.to {
        TransactionState::Open => {}
        TransactionState::Deciding => crash::point("transaction_after_deciding"),
        TransactionState::Committed => crash::point("transaction_after_committed"),
        TransactionState::Aborted => crash::point("transaction_after_aborted"),
        TransactionState::Done | TransactionState::Cancelled => {
            crash::point("transaction_after_final");
        }
    }
}
