//! What a worker does while the service is halted: what [`restrain`] leaves of its transfers, and reads instead of everything
//! that somebody outside asks for.

use std::sync::Arc;

use futures_util::future::join_all;

use super::queued::Queued;
use super::{Answers, Question, Worker, route};
use crate::adapters::Adapter;
use crate::coordinator::parts::Parts;
use crate::coordinator::request::Rejection;
use crate::coordinator::step::{Effect, Happened, Row, restrain};
use crate::postgres::store::{Call, Sought};
use domain::code::Code;
use domain::transfer::Participant;

/// What UBSCore is asked to look up at once.
const LOOKUPS_AT_ONCE: usize = 64;

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// What the store is told of a call while the service is halted: nothing that moves money. Whoever asked for that is
    /// told what has been decided before, or that the service is halted.
    pub(super) fn restrained(&mut self, queued: Queued) -> Option<(Queued, Call)> {
        let call = match &queued.call {
            Call::Accept { intent, .. } => match &intent.cid {
                Some(cid) => Call::Find(Sought::Cid(intent.user, cid.clone())),
                None if queued.maybe => Call::Find(Sought::ReqId(intent.req_id)),
                None => {
                    self.forget(&queued.call);
                    let nobody = queued.waiter.reject(Rejection::of(Code::ServiceHalted));
                    assert!(nobody.is_none(), "a new transfer is somebody's outside");
                    return None;
                }
            },
            Call::External(external) => Call::FindExternal(external.clone()),
            Call::Step { transfer, transition, code, log_sequence, attempt } => {
                let req_id = transfer.intent.req_id;
                let row = Row { state: transfer.state, ..self.active.get(&req_id)?.row };
                let (transition, code, log_sequence) = (transition.clone(), *code, *log_sequence);
                let whole = Effect::Step { transition, code, log_sequence };
                match restrain(row, whole, route::<T, F>) {
                    Effect::Step { transition, code, log_sequence } => Call::Step {
                        transfer: transfer.clone(),
                        transition,
                        code,
                        log_sequence,
                        attempt: *attempt,
                    },
                    // An earlier try may have been carried out, or may still be: a commit tells, and ends it.
                    _ if queued.maybe => Call::Find(Sought::ReqId(req_id)),
                    _ => {
                        self.resting.push(req_id);
                        return None;
                    }
                }
            }
            // The Funding adapter's own; a worker queues none.
            Call::Operate { .. } => return None,
            call @ (Call::Defer { .. }
            | Call::QueryOperation { .. }
            | Call::Find(_)
            | Call::FindExternal(_)
            | Call::SetFundingStatus { .. }) => call.clone(),
        };
        Some((queued, call))
    }

    /// Takes up what has rested since the service was halted.
    pub(super) fn go_on_if_resumed(&mut self) {
        if self.parts.gate.is_closed() {
            self.halt_resolving();
            return;
        }
        self.resumed_ns = self.now();
        for req_id in std::mem::take(&mut self.resting) {
            self.advance(req_id, Happened::Due);
        }
    }
}

/// What UBSCore has recorded for operations, without asking for any.
pub(super) async fn look_up<T: Adapter, F: Adapter>(
    parts: Arc<Parts<T, F>>,
    questions: Vec<Question>,
) -> Answers {
    let mut answers = Vec::with_capacity(questions.len());
    for together in questions.chunks(LOOKUPS_AT_ONCE) {
        let look = |question: &Question| {
            let (parts, req_id) = (Arc::clone(&parts), question.req_id);
            let (participant, op) = (question.participant, question.op);
            async move {
                match participant {
                    Participant::Spot => parts.spot.query(req_id, op).await,
                    Participant::Funding => parts.funding.query(req_id, op).await,
                }
            }
        };
        answers.extend(join_all(together.iter().map(look)).await);
    }
    questions.into_iter().zip(answers).collect()
}
