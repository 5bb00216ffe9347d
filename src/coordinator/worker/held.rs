//! Withdrawals to the outside that wait for a clean round of the audit, where the configuration asks for it.
//!
//! A PostgreSQL that has gone back in time shows money that the user has moved elsewhere. A round that began after the user's
//! last movement compares that movement with PostgreSQL. So the worker remembers when each of its users last moved, and lets a
//! withdrawal pass only behind such a round. Until then the store only looks for its idem_key: a repeat is answered.

use std::collections::HashMap;

use super::Worker;
use super::queued::Queued;
use crate::adapters::Adapter;
use crate::postgres::store::Call;
use domain::account::UserId;
use domain::transfer::ReqId;

/// Users remembered. At the bound those before the last clean round go; if all are later, every user counts as having moved now.
const MOVED_MAX: usize = 100_000;

/// When users last moved money, monotonic ns.
#[derive(Default)]
pub(super) struct Moved {
    users: HashMap<UserId, u64>,
    /// For users who are not remembered.
    others_ns: u64,
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// What the store is told of a call that may move money.
    pub(super) fn call_of(&self, queued: &mut Queued) -> Call {
        queued.held = self.is_held(&queued.call);
        match &queued.call {
            Call::External(external) if queued.held => Call::FindExternal(external.clone()),
            call => call.clone(),
        }
    }

    fn is_held(&self, call: &Call) -> bool {
        let (Some(clean), Call::External(external)) = (&self.parts.clean, call) else {
            return false;
        };
        let moved = self.moved.users.get(&external.user).copied();
        let moved_ns = moved.unwrap_or(self.moved.others_ns);
        external.op.takes() && !clean.has_one_after(moved_ns)
    }

    /// A commit is answered: its user has moved money, or may have.
    pub(super) fn note_commit(&mut self, queued: &Queued) {
        match &queued.call {
            Call::Accept { .. } | Call::Step { .. } | Call::Operate { .. } => {}
            Call::External(_) if !queued.held => {}
            _ => return,
        }
        if let Some((user, _)) = queued.call.lock_order() {
            self.note_moved(user);
        }
    }

    /// UBSCore has answered for a transfer in hand.
    pub(super) fn note_answer(&mut self, req_id: ReqId) {
        if let Some(user) = self.active.get(&req_id).map(|active| active.transfer.intent.user) {
            self.note_moved(user);
        }
    }

    fn note_moved(&mut self, user: UserId) {
        let (now, Some(clean)) = (self.now(), &self.parts.clean) else { return };
        let moved = &mut self.moved;
        if moved.users.len() >= MOVED_MAX {
            moved.users.retain(|_, at| !clean.has_one_after(*at));
        }
        if moved.users.len() >= MOVED_MAX {
            moved.users.clear();
            moved.others_ns = now;
        }
        moved.users.insert(user, now);
    }
}
