//! What a worker does for an operator: it tries a transfer at once, or ends the wait for a participant's decision.
//!
//! To resolve is to ask differently from now on: whoever is to pay or to credit is to refuse what it has not decided. What is
//! under way at that moment goes on, and its answer counts as always; what waits for its commit is brought in line when that
//! is put together ([`crate::coordinator::step::renew`]). An operator who is told that it was not done has it undone: the
//! transfer is asked for as before. Nothing of this outlives the process but what a participant has recorded.

use tokio::sync::watch;
use tracing::info;

use super::Worker;
use super::message::{Attended, OperatorAction};
use super::queued::{Queued, Waiter};
use crate::adapters::Adapter;
use crate::coordinator::request::Rejection;
use crate::coordinator::step::Happened;
use crate::postgres::store::Transfer;
use domain::code::Code;
use domain::transfer::ReqId;

/// A transfer that is being resolved.
pub(super) struct Resolving {
    progress: watch::Receiver<Transfer>,
    /// Who waits for it, and until when, monotonic ns: no more than the operators' listener has connections. The last of them
    /// ends it for all.
    waiting: Vec<(u64, Attended)>,
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Does what an operator wants with a transfer in hand.
    pub(super) fn attend(
        &mut self,
        req_id: ReqId,
        action: OperatorAction,
        answer_to: Attended,
        deadline_ns: u64,
    ) {
        if self.parts.gate.is_closed() {
            drop(answer_to.send(Err(Rejection::of(Code::ServiceHalted))));
            return;
        }
        let active = &self.active[&req_id];
        let (state, progress) = (active.row.state, active.watch.subscribe());
        let decided = active.replied_ns.is_some() || !state.awaits_decision();
        info!(%req_id, state = state.name(), deed = ?action, "an operator attends to it");
        if action == OperatorAction::Resolve && decided {
            drop(answer_to.send(Ok(progress)));
            return;
        }
        let waits = self.wake(req_id);
        match action {
            OperatorAction::Retry => drop(answer_to.send(Ok(progress))),
            OperatorAction::Resolve => {
                let empty = || Resolving { progress, waiting: Vec::new() };
                let resolving = self.resolving.entry(req_id).or_insert_with(empty);
                resolving.waiting.push((deadline_ns, answer_to));
                self.advance(req_id, Happened::Resolve(true));
            }
        }
        if waits {
            self.advance(req_id, Happened::Due);
        }
    }

    /// Ends a transfer's back-off. Returns whether it was waiting for its time and for nothing else, so that the caller has to
    /// go on with it; a step that was held up goes on by itself.
    fn wake(&mut self, req_id: ReqId) -> bool {
        let Some(active) = self.active.get_mut(&req_id) else { return false };
        active.row.attempt = 0;
        let user = active.transfer.intent.user;
        // What came behind it has been held up with it.
        for (due, queued) in &mut self.parked {
            if queued.user() == Some(user) {
                *due = 0;
            }
        }
        let before = self.timers.len();
        self.timers.retain(|timer| timer.0.1 != req_id);
        self.timers.len() < before
    }

    /// Tells those who have resolved a transfer, once nothing of it awaits a decision any more.
    pub(super) fn settle_resolving(&mut self, req_id: ReqId) {
        if !self.resolving.contains_key(&req_id) {
            return;
        }
        let open = self.active.get(&req_id).is_some_and(|active| {
            active.replied_ns.is_none() && active.row.state.awaits_decision()
        });
        if open {
            return;
        }
        let Some(Resolving { progress, waiting }) = self.resolving.remove(&req_id) else { return };
        for (_, answer_to) in waiting {
            // An error is an operator who has gone.
            drop(answer_to.send(Ok(progress.clone())));
        }
    }

    /// Ends what operators have waited for long enough: it is done no longer, and they are told so. Where a refusal is on its way
    /// at this moment, what has become of it is waited for: that takes no longer than a flight or a question does.
    pub(super) fn expire_resolving(&mut self) {
        let now = self.now();
        for req_id in self.resolving_names() {
            let Some(resolving) = self.resolving.get(&req_id) else { continue };
            if resolving.waiting.iter().any(|(deadline_ns, _)| *deadline_ns > now) {
                continue;
            }
            self.advance(req_id, Happened::Resolve(false));
            if !self.is_busy(req_id) {
                self.reject_resolving(req_id, Code::SystemError);
            }
        }
    }

    /// Tells every operator who waits that the service is halted.
    pub(super) fn halt_resolving(&mut self) {
        for req_id in self.resolving_names() {
            self.advance(req_id, Happened::Resolve(false));
            self.reject_resolving(req_id, Code::ServiceHalted);
        }
    }

    /// In an order, so that a simulation can be run again.
    fn resolving_names(&self) -> Vec<ReqId> {
        let mut names: Vec<ReqId> = self.resolving.keys().copied().collect();
        names.sort_unstable();
        names
    }

    fn reject_resolving(&mut self, req_id: ReqId, code: Code) {
        let unknown = self.step_of(req_id).is_none_or(|step| step.maybe);
        let Some(Resolving { waiting, .. }) = self.resolving.remove(&req_id) else { return };
        for (_, answer_to) in waiting {
            let rejection = Rejection { unknown, ..Rejection::of(code) };
            drop(answer_to.send(Err(rejection)));
        }
    }

    /// Its step that waits for a commit. What was to be refused in it is not, unless an earlier try may have been carried out.
    fn step_of(&self, req_id: ReqId) -> Option<&Queued> {
        let mut waiting = self.queue.iter().chain(self.parked.iter().map(|(_, queued)| queued));
        waiting.find(|queued| matches!(queued.waiter, Waiter::Step(name) if name == req_id))
    }

    /// Whether somebody is being asked for it, or a commit that holds a step of it is under way.
    fn is_busy(&self, req_id: ReqId) -> bool {
        let waits = self.timers.iter().any(|timer| timer.0.1 == req_id);
        self.step_of(req_id).is_none() && !waits && !self.resting.contains(&req_id)
    }
}
