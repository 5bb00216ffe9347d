//! Moves of a flight, and their results.

use jiff::Timestamp;
use tracing::{debug, error};

use super::{Worker, ns};
use crate::alert::{Alert, alert_about};
use crate::crash;
use crate::postgres::transactions::{MoveResult, TransactionMove, TransactionStore};
use crate::transaction::{BranchState, TransactionState};
use crate::transactions::apply;
use crate::transactions::branches::Branches;
use domain::transfer::ReqId;

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    pub(super) fn on_result(&mut self, moved: &TransactionMove, result: MoveResult, at: Timestamp) {
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

    /// PostgreSQL refused a flight with this move. `why`: it was alone.
    pub(super) fn put_aside(&mut self, id: ReqId, why: Option<&str>) {
        let now_ns = self.now_ns();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.alone = true;
        let Some(why) = why else {
            self.ready.insert(id);
            return;
        };
        entry.records.count = entry.records.count.saturating_add(1);
        entry.records.due_ns = now_ns + ns(self.backoff.delay_ms(entry.records.count));
        entry.trouble = Some((None, why.to_owned()));
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
        self.leave_alone(id);
    }

    /// Nothing of it is decided or asked any more, and the watermark does not pass it.
    pub(super) fn leave_alone(&mut self, id: ReqId) {
        if let Some(entry) = self.entries.get_mut(&id) {
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
