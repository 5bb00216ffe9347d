//! The actions of operators on transfers: a try at once, or the end of the wait for a decision.
//!
//! After a resolve, the worker asks differently: the participant that is to pay or to credit
//! records a refusal, unless it has decided. A call or a question under way goes on, and its answer
//! counts as always. A step that waits for its commit is updated when the batch is put together
//! ([`crate::coordinator::step::renew`]). If the operator is answered that it was not done, the
//! resolve is undone. Only recorded decisions survive a restart.

use std::collections::HashMap;

use tokio::sync::watch;
use tracing::info;

use super::Worker;
use super::active::Active;
use super::reply::{Caller, OperatorAction};
use crate::adapters::Adapter;
use crate::coordinator::request::Rejection;
use crate::coordinator::step::Happened;
use crate::postgres::store::Transfer;
use domain::code::Code;
use domain::transfer::ReqId;

/// An operator that gets the progress of a transfer.
pub(super) type Operator = Caller<watch::Receiver<Transfer>>;

/// A transfer that is being resolved.
struct Resolving {
    progress: watch::Receiver<Transfer>,
    /// The operators, each with the end of its wait, monotonic ns. The listener for operators has
    /// a bound of connections. The last of them ends it for all.
    waiting: Vec<(u64, Operator)>,
}

/// The transfers that operators have resolved and that still await a decision.
#[derive(Default)]
pub(super) struct Resolves(HashMap<ReqId, Resolving>);

impl Resolves {
    fn add(
        &mut self,
        req_id: ReqId,
        progress: watch::Receiver<Transfer>,
        deadline_ns: u64,
        operator: Operator,
    ) {
        let resolving = self.0.entry(req_id);
        let resolving = resolving.or_insert_with(|| Resolving { progress, waiting: Vec::new() });
        resolving.waiting.push((deadline_ns, operator));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The transfers without an operator that still waits, in an order that a simulation can
    /// repeat.
    fn overdue(&self, now: u64) -> Vec<ReqId> {
        let is_overdue = |resolving: &Resolving| {
            resolving.waiting.iter().all(|(deadline_ns, _)| *deadline_ns <= now)
        };
        let overdue = self.0.iter().filter(|(_, resolving)| is_overdue(resolving));
        let mut names: Vec<ReqId> = overdue.map(|(req_id, _)| *req_id).collect();
        names.sort_unstable();
        names
    }

    /// Answers the operators of a transfer that awaits no decision any more.
    fn settle(&mut self, req_id: ReqId) {
        if let Some(Resolving { progress, waiting }) = self.0.remove(&req_id) {
            waiting.into_iter().for_each(|(_, operator)| operator.answer(Ok(progress.clone())));
        }
    }

    /// Rejects the resolve of a transfer.
    fn reject(&mut self, req_id: ReqId, rejection: &Rejection) {
        if let Some(Resolving { waiting, .. }) = self.0.remove(&req_id) {
            waiting.into_iter().for_each(|(_, operator)| operator.answer(Err(rejection.clone())));
        }
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Carries out an operator's action on a transfer in hand.
    pub(super) fn attend(
        &mut self,
        req_id: ReqId,
        action: OperatorAction,
        operator: Operator,
        deadline_ns: u64,
    ) {
        if self.parts.gate.is_closed() {
            operator.answer(Err(Rejection::of(Code::ServiceHalted)));
            return;
        }
        let active = &self.active[&req_id];
        let (state, progress) = (active.row.state, active.progress());
        info!(%req_id, state = state.name(), deed = ?action, "an operator attends to it");
        if action == OperatorAction::Resolve && !awaits_decision(active) {
            operator.answer(Ok(progress));
            return;
        }
        let waits = self.wake(req_id);
        match action {
            OperatorAction::Retry => operator.answer(Ok(progress)),
            OperatorAction::Resolve => {
                self.resolves.add(req_id, progress, deadline_ns, operator);
                self.advance(req_id, Happened::Resolve(true));
            }
        }
        if waits {
            self.advance(req_id, Happened::Due);
        }
    }

    /// Ends the back-off of a transfer. Returns whether it was waiting for its time and for nothing
    /// else: then the caller goes on with it. A parked step goes on by itself.
    fn wake(&mut self, req_id: ReqId) -> bool {
        let Some(active) = self.active.get_mut(&req_id) else { return false };
        active.row.attempt = 0;
        // Later calls of the user were parked with it.
        self.queue.wake(active.user());
        self.timers.cancel(req_id)
    }

    /// Answers the operators that have resolved a transfer, once it awaits no decision any more.
    pub(super) fn settle_resolving(&mut self, req_id: ReqId) {
        if !self.active.get(&req_id).is_some_and(awaits_decision) {
            self.resolves.settle(req_id);
        }
    }

    /// Ends the resolves without an operator that still waits, and answers that they were not done.
    /// If a refusal is on its way at this moment, its result is waited for. That takes no longer
    /// than a commit or a question.
    pub(super) fn expire_resolving(&mut self) {
        for req_id in self.resolves.overdue(self.now()) {
            self.advance(req_id, Happened::Resolve(false));
            if !self.is_busy(req_id) {
                self.reject_resolving(req_id, Code::SystemError);
            }
        }
    }

    /// Ends all resolves, because the service is halted.
    pub(super) fn halt_resolving(&mut self) {
        for req_id in self.resolves.overdue(u64::MAX) {
            self.advance(req_id, Happened::Resolve(false));
            self.reject_resolving(req_id, Code::ServiceHalted);
        }
    }

    /// Unknown, if a commit with the refusal may have been carried out.
    fn reject_resolving(&mut self, req_id: ReqId, code: Code) {
        let unknown = self.queue.step_of(req_id).is_none_or(|step| step.ticket.maybe);
        self.resolves.reject(req_id, &Rejection { unknown, ..Rejection::of(code) });
    }

    /// Whether a participant is being asked for it, or a commit with its step is under way.
    fn is_busy(&self, req_id: ReqId) -> bool {
        let waits = self.timers.holds(req_id) || self.resting.contains(&req_id);
        self.queue.step_of(req_id).is_none() && !waits
    }
}

/// Whether an operator can still end the wait of this transfer.
fn awaits_decision(active: &Active) -> bool {
    active.replied_ns.is_none() && active.row.state.awaits_decision()
}

#[cfg(test)]
mod tests {
    use super::super::active::tests::transfer;
    use super::super::reply::Response;
    use super::*;
    use domain::transfer::State;

    type Waits = Response<watch::Receiver<Transfer>>;

    fn add(resolves: &mut Resolves, number: u64, deadline_ns: u64) -> (ReqId, Waits) {
        let transfer = transfer(number, State::SourcePending);
        let (operator, waits) = Caller::new();
        let req_id = transfer.intent.req_id;
        resolves.add(req_id, watch::channel(transfer).1, deadline_ns, operator);
        (req_id, waits)
    }

    /// A transfer's resolve ends with the last of its operators, and each of them is answered.
    #[test]
    fn a_resolve_lasts_as_long_as_its_last_operator_waits() {
        let mut resolves = Resolves::default();
        let (one, mut first) = add(&mut resolves, 1, 10);
        let (_, mut second) = add(&mut resolves, 1, 20);
        let (other, mut third) = add(&mut resolves, 2, 10);
        assert_eq!(resolves.overdue(9), []);
        assert_eq!(resolves.overdue(19), [other]);
        assert_eq!(resolves.overdue(20), [one, other]);
        resolves.settle(one);
        for waits in [&mut first, &mut second] {
            let progress = waits.try_recv().expect("answered").expect("done");
            assert_eq!(progress.borrow().intent.req_id, one);
        }
        let halted = Rejection::of(Code::ServiceHalted);
        resolves.reject(other, &halted);
        assert_eq!(third.try_recv().expect("answered").expect_err("not done"), halted);
        assert!(resolves.is_empty());
    }
}
